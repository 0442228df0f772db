"""The declared domain: how the text of CSV columns becomes codes, and codes become labels.

Nothing here is ever inferred from data.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from dpquery.exceptions import SpecError


@dataclass(frozen=True)
class Categorical:
    """Listed values: `values` is the text in the CSV, `labels` what the release shows."""

    values: tuple[str, ...]
    labels: tuple[str, ...]

    @cached_property
    def codes(self) -> dict[str, tuple[int, ...]]:
        """The codes that a text or a label stands for: two if it is one's text, another's label."""
        codes: dict[str, tuple[int, ...]] = {}
        for code, names in enumerate(zip(self.values, self.labels, strict=True)):
            for name in dict.fromkeys(names):
                codes[name] = (*codes.get(name, ()), code)
        return codes


@dataclass(frozen=True)
class Integers:
    """The whole numbers low..high, both included."""

    low: int
    high: int


@dataclass(frozen=True)
class Bins:
    """Half-open bins [edges[i], edges[i+1]); a value outside all of them is outside the domain."""

    edges: tuple[float, ...]


@dataclass(frozen=True)
class Boolean:
    """Yes or no; code 0 is no. Texts are compared without case."""

    true: tuple[str, ...] = ("true", "yes", "y", "t", "1")
    false: tuple[str, ...] = ("false", "no", "n", "f", "0")


ColumnKind = Categorical | Integers | Bins | Boolean


@dataclass(frozen=True)
class Column:
    """One CSV column: its header name, its kind, and whether anything else has a bin of its own.

    With `other` the last code is the bin for every text outside the kind; without it a record
    with such a text belongs to no cell.
    """

    name: str
    kind: ColumnKind
    other: bool = False

    @property
    def length(self) -> int:
        """Number of codes that the kind declares."""
        match self.kind:
            case Categorical(values=values):
                return len(values)
            case Integers(low=low, high=high):
                return high - low + 1
            case Bins(edges=edges):
                return len(edges) - 1
            case Boolean():
                return 2

    @property
    def size(self) -> int:
        """Number of codes, the `other` bin included."""
        return self.length + self.other

    def label(self, code: int) -> str:
        """Return the public label of one code."""
        if code == self.length:
            return "other"
        match self.kind:
            case Categorical(labels=labels):
                return labels[code]
            case Integers(low=low):
                return str(low + code)
            case Bins(edges=edges):
                return f"[{_number(edges[code])}, {_number(edges[code + 1])})"
            case Boolean():
                return ("no", "yes")[code]

    def range_label(self, first: int, last: int) -> str:
        """Return the public label of the ordered codes first..last.

        >>> Column("age", Integers(0, 114)).range_label(0, 17)
        '0-17'
        """
        if first == last:
            return self.label(first)
        match self.kind:
            case Bins(edges=edges):
                return f"[{_number(edges[first])}, {_number(edges[last + 1])})"
            case Integers(low=low) if low + first >= 0:
                return f"{low + first}-{low + last}"
            case _:
                return f"{self.label(first)} to {self.label(last)}"


@dataclass(frozen=True)
class Attribute:
    """A named axis of the count tensor: one column, or several merged into one (first is slowest).

    The code of a merged attribute is the mixed-radix number of its columns' codes.
    """

    name: str
    columns: tuple[Column, ...]

    @property
    def size(self) -> int:
        """Number of codes."""
        return math.prod(column.size for column in self.columns)

    @property
    def length(self) -> int:
        """Number of ordered codes: all but `other`; a merged attribute has no order to speak of."""
        return self.columns[0].length if len(self.columns) == 1 else self.size

    @property
    def merged(self) -> bool:
        """Whether several columns make up this attribute."""
        return len(self.columns) > 1

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


def _number(value: float) -> str:
    """Return a number's shortest exact text, so that no two edges look alike."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


@dataclass(frozen=True)
class Domain:
    """The attributes in file order; a cell of the domain is one code of each."""

    attributes: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        if not self.attributes:
            raise SpecError("the domain has no attributes; declare at least one under `domain`")

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
