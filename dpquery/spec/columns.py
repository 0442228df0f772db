# ruff: noqa: D102 (a method of a base class is described there)
"""The declared domain: how the text of CSV columns becomes codes, and codes become labels.

Nothing here is ever inferred from data.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Literal

from dpquery.exceptions import SpecError
from dpquery.spec.calendar import (
    DateFormat,
    PeriodKind,
    period_end,
    period_label,
    period_number,
    period_start,
)
from dpquery.spec.numbers import ExactNumber, NumberFormat, number
from dpquery.spec.problems import quoted


@dataclass(frozen=True)
class HierarchyLevel:
    """A level of a hierarchy of values: its groups, such as counties, each of several values."""

    name: str  # of the level
    codes: tuple[str, ...]  # of its groups, in the order in which values first lie in them
    labels: tuple[str, ...]  # what the release shows of them; two groups may have the same
    group_of: tuple[int, ...]  # of every value the position of the group that it lies in

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The codes of the values of every group."""
        members: list[list[int]] = [[] for _ in self.codes]
        for value, group in enumerate(self.group_of):
            members[group].append(value)
        return tuple(map(tuple, members))

    @cached_property
    def positions(self) -> dict[str, tuple[int, ...]]:
        """The groups that a name stands for: the one of this code, else all of this label."""
        labelled: dict[str, list[int]] = {}
        for group, label in enumerate(self.labels):
            labelled.setdefault(label, []).append(group)
        positions = {code: (group,) for group, code in enumerate(self.codes)}
        return positions | {
            label: tuple(groups) for label, groups in labelled.items() if label not in positions
        }

    @cached_property
    def numbers(self) -> dict[ExactNumber, int]:
        """The group of every code that is a number."""
        pairs = ((number(code), group) for group, code in enumerate(self.codes))
        return {value: group for value, group in pairs if value is not None}


class _Kind(ABC):
    """What texts of a column are told apart, and what they are called."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of codes that it declares."""

    @abstractmethod
    def label(self, code: int) -> str:
        """Return the public label of one code."""

    def range_label(self, first: int, last: int) -> str:
        """Return the public label of the ordered codes first..last, more than one."""
        return f"{self.label(first)} to {self.label(last)}"

    @abstractmethod
    def texts_of(self, code: int) -> tuple[str, ...]:
        """Return texts that are read as a code, the best first."""

    @property
    def words(self) -> str:
        """What is declared, in a few words."""
        last = self.length - 1
        labels = [self.label(code) for code in range(last + 1)]
        few = ", ".join(labels[:3] if last > 3 else labels)
        return f"{few}, ... {labels[last]} ({last + 1})" if last > 3 else few


@dataclass(frozen=True)
class Categorical(_Kind):
    """Listed values."""

    # of each value the text in the CSV, its code; the first of them if it has several
    values: tuple[str, ...]
    labels: tuple[str, ...]  # what the release shows
    # of each value the other texts that stand for it; empty where no value has any
    also: tuple[tuple[str, ...], ...] = ()
    # of the hierarchy that the values are the lowest level of; that one is the last. Only there may
    # two values have one label
    levels: tuple[HierarchyLevel, ...] = ()

    def __post_init__(self) -> None:
        """Check that there is one of each for every value."""
        if len(self.labels) != len(self.values) or len(self.also) not in (0, len(self.values)):
            raise ValueError("every value has a label, and texts beside it where one of them has")

    @property
    def length(self) -> int:
        return len(self.values)

    def label(self, code: int) -> str:
        return self.labels[code]

    def texts_of(self, code: int) -> tuple[str, ...]:
        return (self.values[code],)

    @property
    def words(self) -> str:
        of_levels = [f"{len(level.codes):,} by {level.name}" for level in self.levels[::-1]]
        return ", ".join(of_levels) or super().words

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """All texts of each value, its code first."""
        also = self.also or ((),) * len(self.values)
        return tuple((value, *texts) for value, texts in zip(self.values, also, strict=True))

    @property
    def coded(self) -> bool:
        """Whether a value has a label that is not its code."""
        return self.values != self.labels

    @cached_property
    def codes(self) -> dict[str, tuple[int, ...]]:
        """The codes that a text or a label stands for: several where it is a label of others."""
        codes: dict[str, list[int]] = {}
        for code, (texts, label) in enumerate(zip(self.texts, self.labels, strict=True)):
            for name in dict.fromkeys((*texts, label)):
                codes.setdefault(name, []).append(code)
        return {name: tuple(several) for name, several in codes.items()}

    @cached_property
    def numbers(self) -> dict[ExactNumber, int]:
        """The code of every text that is a number."""
        pairs = ((number(t), code) for code, texts in enumerate(self.texts) for t in texts)
        return {value: code for value, code in pairs if value is not None}


@dataclass(frozen=True)
class Integers(_Kind):
    """The whole numbers low..high, both included.

    >>> Integers(0, 114).range_label(0, 17), Integers(0, 114).words
    ('0-17', '0 to 114')
    """

    low: int
    high: int

    @property
    def length(self) -> int:
        return self.high - self.low + 1

    def label(self, code: int) -> str:
        return str(self.low + code)

    def range_label(self, first: int, last: int) -> str:
        if self.low + first < 0:
            return super().range_label(first, last)
        return f"{self.low + first}-{self.low + last}"

    def texts_of(self, code: int) -> tuple[str, ...]:
        return (self.label(code),)

    @property
    def words(self) -> str:
        return f"{self.low} to {self.high}"


@dataclass(frozen=True)
class Bins(_Kind):
    """Half-open bins [edges[i], edges[i+1]); a value outside all of them is outside the domain."""

    edges: tuple[float, ...]

    @property
    def length(self) -> int:
        return len(self.edges) - 1

    def label(self, code: int) -> str:
        return self.range_label(code, code)

    def range_label(self, first: int, last: int) -> str:
        return f"[{_number(self.edges[first])}, {_number(self.edges[last + 1])})"

    def texts_of(self, code: int) -> tuple[str, ...]:
        low, high = self.edges[code : code + 2]
        return tuple(repr(number).removesuffix(".0") for number in (low / 2 + high / 2, low))

    @property
    def words(self) -> str:
        return f"{self.length} bins of {self.range_label(0, self.length - 1)}"

    def rounding_words(self, numbers: Sequence[float]) -> str:
        """Say what a sum leaves out that adds one number for each bin: the places in the bins.

        Numbers that lie outside their bins are in another unit, and say no distance.

        >>> Bins((0.0, 10.0, 50.0)).rounding_words([5, 20])
        'a record adds one number for its bin, up to 30 from its own (in 10 to 50)'
        """
        places = list(zip(self.edges, numbers, self.edges[1:], strict=False))
        inside, distance = all(low <= number <= high for low, number, high in places), ""
        if inside:
            far, low, high = max((max(at - low, high - at), low, high) for low, at, high in places)
            where = f"in {_number(low)} to {_number(high)}"
            distance = f", up to {_number(far)} from its own ({where})"
        return f"a record adds one number for its bin{distance}"


@dataclass(frozen=True)
class Boolean(_Kind):
    """Yes or no; code 0 is no. Texts are compared without case."""

    true: tuple[str, ...] = ("true", "yes", "y", "t", "1")
    false: tuple[str, ...] = ("false", "no", "n", "f", "0")

    @property
    def length(self) -> int:
        return 2

    def label(self, code: int) -> str:
        return ("no", "yes")[code]

    def texts_of(self, code: int) -> tuple[str, ...]:
        return self.true if code else self.false


@dataclass(frozen=True)
class Dates(_Kind):
    """The periods of the calendar from that of `first` to that of `last`.

    A period that `first` or `last` cuts holds only its days from `first` to `last`.
    """

    first: date  # the first day
    last: date  # the last day, not before the first
    by: PeriodKind  # the kind of the periods; weeks are those of ISO 8601 and begin on Monday
    format: DateFormat  # of dates in the CSV

    @property
    def length(self) -> int:
        return self.code(self.last) + 1

    def code(self, day: date) -> int:
        """Return the code of the period that a day from first to last lies in."""
        return period_number(day, self.by) - period_number(self.first, self.by)

    def start(self, code: int) -> date:
        """Return the first day of a code's period, which may lie before `first`."""
        return period_start(self._number(code), self.by)

    def end(self, code: int) -> date:
        """Return the last day of a code's period, which may lie after `last`."""
        return period_end(self._number(code), self.by)

    def label(self, code: int) -> str:
        return period_label(self._number(code), self.by)

    def texts_of(self, code: int) -> tuple[str, ...]:
        return (self.format.write(max(self.first, self.start(code))),)

    @property
    def words(self) -> str:
        return f"{self.first} to {self.last} by {self.by}"

    def _number(self, code: int) -> int:
        return period_number(self.first, self.by) + code


ColumnKind = Categorical | Integers | Bins | Boolean | Dates
Other = Literal["count", "show", "drop"]
"""What a text outside a column's kind does: see Column.other."""


@dataclass(frozen=True)
class Column:
    """One CSV column: its header name, its kind, and what a text outside its kind does.

    With `count` and `show` every such text has the last code. Under `count` totals and sums over
    the column include it, and single values do not show it; under `show` it is a value like any
    other. With `drop` a record with such a text belongs to no cell. Numbers are written as `number`
    says, where it is given, and by digits and the mark that the file declares otherwise.
    """

    name: str
    kind: ColumnKind
    other: Other = "count"
    number: NumberFormat | None = None

    @property
    def length(self) -> int:
        """Number of codes that the kind declares."""
        return self.kind.length

    @property
    def drops(self) -> bool:
        """Whether a text outside the kind takes its record out of every table."""
        return self.other == "drop"

    @property
    def size(self) -> int:
        """Number of codes, that of all other texts included."""
        return self.length + (not self.drops)

    @property
    def shown(self) -> int:
        """Number of codes that single values show: the first of them."""
        return self.length + (self.other == "show")

    def label(self, code: int) -> str:
        """Return the public label of one code."""
        return "other" if code == self.length else self.kind.label(code)

    def range_label(self, first: int, last: int) -> str:
        """Return the public label of the ordered codes first..last."""
        return self.label(first) if first == last else self.kind.range_label(first, last)


_NUMBERS = re.compile(r"[0-9]+ *[-\u2013] *[0-9]+|[0-9]+ *\+|[<>] *[0-9]+")  # 0-9, 80+, < 10
_CURLY = "\u2018\u2019\u201a\u201c\u201d\u201e"


def doubts(domain: "Domain") -> Iterator[str]:
    """Yield what listed values may not have been meant to be: they are right where data hold them.

    >>> column = Column("age", Categorical(("0-9", "10-19"), ("0-9", "10-19")))
    >>> [words.partition(";")[0] for words in doubts(Domain((Attribute("age", (column,)),)))]
    ["the values of 'age' look like ranges of numbers, and count records that hold these texts"]
    """
    for column in domain.columns:
        values = column.kind.values if isinstance(column.kind, Categorical) else ()
        if len(values) > 1 and all(map(_NUMBERS.fullmatch, values)):
            yield (
                f"the values of {quoted(column.name)} look like ranges of numbers, and count "
                "records that hold these texts; where the data hold numbers, declare "
                "`bins: [0, 10, 20]` (from 0 to below 10, from 10 to below 20)"
            )
        if len(values) > 1 and sum(";" in value for value in values) == 1:
            (one,) = (value for value in values if ";" in value)
            yield f"the value {quoted(one)} of {quoted(column.name)} holds a semicolon: two values?"
        if isinstance(column.kind, Categorical) and ("", "") in zip(
            values, column.kind.labels, strict=True
        ):
            yield (
                f"the blank of {quoted(column.name)} is shown as nothing; write its values as a "
                'mapping with a label for it, such as `"": no answer`'
            )
        if len(values) == 1 and len(values[0].split()) == 2:
            yield (
                f"{quoted(column.name)} has one value, {quoted(values[0])}: two values have a "
                "comma between them"
            )
        if any(value[:1] in _CURLY and value[-1:] in _CURLY for value in values if value):
            yield (
                f"values of {quoted(column.name)} have curly quotes, which are read as letters; "
                "where they are no part of the data, write straight ones or none"
            )


@dataclass(frozen=True)
class Attribute:
    """A named axis of the count tensor: one column, or several merged into one (first is slowest).

    The code of a merged attribute is the mixed-radix number of its columns' codes.
    """

    name: str  # of the axis, and of its column in the release
    # of the data; of an attribute that is not in them, one of the same form
    columns: tuple[Column, ...]
    # whether the codes are read from the columns; not where it is `person_rows`
    in_data: bool = True

    @property
    def size(self) -> int:
        """Number of codes."""
        return math.prod(column.size for column in self.columns)

    @property
    def length(self) -> int:
        """Number of ordered codes: all but `other`; a merged attribute has no order to speak of."""
        return self.columns[0].length if len(self.columns) == 1 else self.size

    @property
    def shown(self) -> int:
        """Number of codes that single values show."""
        return math.prod(column.shown for column in self.columns)

    @property
    def merged(self) -> bool:
        """Whether several columns make up this attribute."""
        return len(self.columns) > 1

    @property
    def levels(self) -> tuple[HierarchyLevel, ...]:
        """The levels of its hierarchy, the lowest last; none where it has no hierarchy."""
        kind = self.columns[0].kind
        return kind.levels if not self.merged and isinstance(kind, Categorical) else ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The texts that stand for the values in the data, where labels differ from them.

        Of a hierarchy always: labels there may be the same.
        """
        kind = self.columns[0].kind
        coded = not self.merged and isinstance(kind, Categorical) and (kind.coded or kind.levels)
        return kind.values if coded and isinstance(kind, Categorical) else ()

    def label(self, code: int) -> str:
        """Return the public label of one code."""
        parts = []
        for column in reversed(self.columns):
            code, column_code = divmod(code, column.size)
            parts.append((column, column_code))
        if not self.merged:
            return self.columns[0].label(parts[0][1])
        return ", ".join(
            f"{column.name}={column.label(column_code)}" for column, column_code in parts[::-1]
        )


PERSON_ROWS = "rows_per_person"


def person_rows(most: int) -> Attribute:
    """Return the attribute that says how many rows the person of a row has.

    One of the rows of each person that are counted has the person's number: 1 to `most`, or more.
    The others have the last code, which belongs to no single value. So single values count persons,
    and a row is in one cell, as it is of any attribute.
    """
    labels = (*map(str, range(1, most + 1)), "more")
    column = Column(PERSON_ROWS, Categorical(labels, labels), other="count")
    return Attribute(PERSON_ROWS, (column,), in_data=False)


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


@dataclass(frozen=True)
class Domain:
    """The attributes in file order; a cell of the domain is one code of each."""

    attributes: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        if not self.attributes:
            raise SpecError("the domain has no attributes; declare at least one under `domain`")

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the data, in file order."""
        return tuple(c for attribute in self.in_data for c in attribute.columns)

    @property
    def in_data(self) -> tuple[Attribute, ...]:
        """The attributes that are read from the data; they come before any other."""
        return tuple(attribute for attribute in self.attributes if attribute.in_data)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of all attributes."""
        return tuple(attribute.size for attribute in self.attributes)

    @property
    def size(self) -> int:
        """Number of cells N, as an exact Python int."""
        return math.prod(self.shape)

    def index(self, name: str) -> int:
        """Return the position of an attribute; KeyError if no attribute has the name."""
        for i, attribute in enumerate(self.attributes):
            if attribute.name == name:
                return i
        raise KeyError(name)
