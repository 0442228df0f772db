"""Derived items and public populations, read."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.limits import MAX_MERGED_PAIRS
from dpquery.spec.columns import Attribute, Bins, Boolean, Dates, Integers
from dpquery.spec.parsing.item_fields import (
    QUANTILE_WORDS,
    DerivedFields,
    DifferenceFields,
    MeanFields,
    MergedRowsFields,
    QuantileFields,
    RateFields,
    RatioFields,
    ShareFields,
)
from dpquery.spec.parsing.listed_values import FileLine, as_wide, file_lines
from dpquery.spec.parsing.predicate_sets import Scope, column_taken, read_condition
from dpquery.spec.parsing.yaml_nodes import Node, TextNode
from dpquery.spec.predicates import (
    GroupSet,
    IdentitySet,
    PredicateSet,
    PrefixSet,
    StackedSet,
    TotalSet,
    even_spread,
    with_values,
)
from dpquery.spec.problems import UnreadableError, quoted, suggestion
from dpquery.spec.spec import (
    DerivedItem,
    Difference,
    Item,
    MergedRows,
    Quantiles,
    Quotient,
    Rate,
    Statistic,
    Table,
)

POPULATION = "population"
"""The column of a file of populations that holds them."""


def read_row_values(
    read_file: Callable[[str], str],
    name: str,
    node: Node,
    table: Table,
    attributes: Mapping[int, Attribute],
    called: Sequence[str],
    read: Callable[[str, FileLine], float],
) -> tuple[Floats, Ints]:
    """Return a number for every row of a table, in row order, and its line: (m,) each.

    Args:
        read_file: returns the text of a file: a header with the attributes of the table's rows and
            a column of numbers, then a line for each row, by labels or codes.
        name: of the file.
        node: where it is named.
        table: whose rows have numbers.
        attributes: by index.
        called: what the column of numbers may be called; the first of these that is there.
        read: returns the number of a text, given its line.
    """
    lines = file_lines(node, name, read_file)
    header = lines[0].cells
    column = next((each for each in called if each in header), called[0])
    named = [attributes[i].name for i, _ in table.axes]
    for needed in (*named, column):
        if header.count(needed) != 1:
            raise node.mistake(
                f"{lines[0].place}: expected one column {quoted(needed)} in the header; write "
                f"{','.join([*named, column])}"
            )
    columns = [header.index(each) for each in named]
    codes = [_numbers(attributes[i], asked, node) for i, asked in table.axes]
    numbers, line_of = np.zeros(table.shape), np.zeros(table.shape, dtype=np.int64)
    for line in lines[1:]:
        try:
            value = read(as_wide(line, lines[0]).cells[header.index(column)], line)
        except UnreadableError as error:
            raise node.mistake(f"{line.place}: {error.message}") from None
        cell = [known.get(line.cells[k]) for k, known in zip(columns, codes, strict=True)]
        if None in cell:
            continue  # of a value that the item does not ask for
        place = tuple(part for part in cell if part is not None)
        if line_of[place]:
            raise node.mistake(f"{line.place}: this row is there twice; keep one")
        numbers[place], line_of[place] = value, line.place.line
    missing = np.argwhere(line_of == 0)
    if len(missing):
        row = [
            next(label for label, k in known.items() if k == place)
            for known, place in zip(codes, missing[0].tolist(), strict=True)
        ]
        others = f"{len(missing):,} of {table.size:,} rows, the first of them "
        raise node.mistake(
            f"{name} has no {column} for {others * (len(missing) > 1)}"
            f"{', '.join(row) or 'the one row'}; add a line for each, by labels or codes"
        )
    return numbers.ravel(), line_of.ravel()


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _population(text: str, line: FileLine) -> float:
    value = _float(text)
    if not 0 < value < 1e18:
        raise line.mistake("this population cannot be divided by; expected a number above 0")
    return value


def _numbers(attribute: Attribute, asked: PredicateSet, node: Node) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for number, names in enumerate(_names(attribute, asked, node)):
        for name in names:
            numbers.setdefault(name, number)
    return numbers


def _names(attribute: Attribute, asked: PredicateSet, node: Node) -> Iterator[tuple[str, ...]]:
    match asked:
        case IdentitySet():
            codes, kind = attribute.codes, attribute.columns[0].kind
            for code in asked.codes:
                named = codes[code : code + 1]
                if isinstance(kind, Boolean) and not attribute.merged and code < kind.length:
                    texts = kind.texts_of(code)
                    named = (*texts, *map(str.upper, texts), *map(str.title, texts))
                if isinstance(kind, Dates) and code < kind.length:
                    named = (*named, kind.start(code).isoformat())  # as tables show them
                yield (attribute.label(code), *named)
        case GroupSet(groups=groups):
            for label, _ in groups:
                yield (label,)
        case TotalSet():
            yield ("all",)
        case StackedSet(parts=parts):
            for part in parts:
                yield from _names(attribute, part, node)
        case _:
            raise node.mistake(
                f"the item asks of {quoted(attribute.name)} for ranges, which a file of "
                "numbers cannot name; ask for identity or groups"
            )


def _size(text: str, line: FileLine) -> float:
    value = _float(text)
    if not abs(value) < 1e18:
        raise line.mistake("this is no size; expected a number")
    return value  # an earlier release may have estimates below 0, which their sums need


Condition = tuple[int, PredicateSet]
"""An attribute and the one predicate on it that records are to meet."""


def _meeting(table: Table, *conditions: Condition) -> Table:
    """Return a table of the records that meet more conditions, on attributes it asks nothing of."""
    where = sorted((*table.where, *conditions), key=lambda condition: condition[0])
    return replace(table, where=tuple(where))


def _ordered(attribute: Attribute) -> bool:
    return not attribute.merged and isinstance(attribute.columns[0].kind, Integers | Bins | Dates)


DERIVED_COLUMNS = ("quantile", "cells", "merged", "reason")
"""Columns that no item has: no attribute of a derived item may be called so."""


def read_derived(
    nodes: Iterable[Node],
    items: Sequence[Item],
    scope: Scope,
    read_file: Callable[[str], str],
    taken: Collection[str] = (),
    folder: Path | None = None,
    records: int | None = None,
    weighted: bool = False,
) -> tuple[DerivedItem, ...]:
    """Return the derived items of a section, in file order.

    Args:
        nodes: of the items.
        items: that they may be made of; of several with one name the first.
        scope: what they may refer to.
        read_file: returns the text of a file that is named.
        taken: names that they may not have.
        folder: from which other releases are named; None where none can be.
        records: how many there are, about; None where nobody said.
        weighted: whether each counts as its weight.
    """
    by_name: dict[str, Item] = {}
    for item in items:
        by_name.setdefault(item.name, item)
    derived = dict[str, DerivedItem]()
    reader = _Reader(by_name, scope, read_file, folder, derived, records, weighted)
    for node in nodes:
        with node.problems.collected():
            given = DerivedFields.read(node)
            if given.name in derived or given.name in taken:
                raise given.node("name").mistake(
                    f"{quoted(given.name)} names an item already; rename one"
                )
            reader.named.clear()
            statistic, definition = reader.read(given)
            derived[given.name] = DerivedItem(
                given.name,
                statistic,
                given.description,
                definition,
                str(node.place),
                tuple(dict.fromkeys(reader.named)),
            )
    return tuple(derived.values())


@dataclass(frozen=True, eq=False)
class _Reader:
    """Reads statistics of named items."""

    items: Mapping[str, Item]
    scope: Scope
    read_file: Callable[[str], str]
    folder: Path | None
    derived: Mapping[str, DerivedItem]
    records: int | None
    weighted: bool
    # the items that were looked up for the statistic that is read
    named: list[str] = field(default_factory=list)

    def read(self, given: DerivedFields) -> tuple[Statistic, str]:
        """Return a statistic and what it is in words."""
        readers: dict[str, Callable[[Any], tuple[Statistic, str]]] = {
            "share": self._share,
            "ratio": self._ratio,
            "mean": self._mean,
            "difference": self._difference,
            "rate": self._rate,
            "quantiles": self._quantiles,
            "merged": self._merged,
        }
        statistic, words = readers[given.chosen](getattr(given, given.chosen))
        for i in statistic.rows.attributes:
            name = self._names[i]
            if name in DERIVED_COLUMNS:
                raise given.node().mistake(column_taken(name))
        return statistic, words

    @property
    def _attributes(self) -> dict[int, Attribute]:
        return {i: a for i, a in self.scope.declared.values() if a is not None}

    @property
    def _names(self) -> dict[int, str]:
        return {i: name for name, (i, _) in self.scope.declared.items()}

    def _item(self, node: Node, *, counts: bool = False) -> tuple[str, Table]:
        """Return the name and the one table of an item; `counts` refuses a sum."""
        if not isinstance(node, TextNode):
            raise node.mistake("expected the name of an item of the workload")
        if not self.items:
            raise UnreadableError(None)
        if node.text in self.derived:
            raise node.mistake(
                f"{quoted(node.text)} is derived itself, and statistics are made of items of the "
                "workload; work this one out of the release, with `dpquery replicates` for its "
                "error"
            )
        if node.text not in self.items:
            raise node.mistake(
                f"no item of the workload is called {quoted(node.text)}"
                f"{suggestion(node.text, self.items)}"
            )
        item = self.items[node.text]
        self.named.append(item.name)
        if len(item.tables) != 1 or item.tables[0].threshold < len(item.tables[0].axes):
            raise node.mistake(
                f"{quoted(node.text)} is not one table with a row for every combination, which "
                "statistics are derived from; add that table to the workload as an item of its "
                "own, `product: {...}` or `sum: {...}`"
            )
        if counts and item.tables[0].summed is not None:
            message = f"{quoted(item.name)} is a sum; name an item that counts records"
            raise node.mistake(message)
        return item.name, item.tables[0]

    def _check_has(self, node: Node, name: str, table: Table, i: int) -> None:
        """Refuse an attribute that an item has no rows by."""
        has = [self._names[k] for k, _ in table.axes]
        if self._names[i] not in has:
            raise node.mistake(
                f"{quoted(name)} has no rows by {quoted(self._names[i])}, but by "
                f"{', '.join(has) or 'no attribute'}; add it to the item, or name another"
            )

    def _share(self, given: ShareFields) -> tuple[Statistic, str]:
        name, numerator = self._item(given.of)
        axes, within = dict(numerator.axes), list[int]()
        for node in given.within:
            i, _ = self.scope.attribute(node, [self._names[k] for k in axes])
            within.append(i)
            if i not in axes and not node.problems.none:
                raise UnreadableError(None)  # it may be of those that are at fault
            self._check_has(node, name, numerator, i)
        if not (self.scope.complete and given.problems.none):
            raise UnreadableError(None)  # which rows there are is not known
        if set(within) == set(axes):
            raise given.node("within").mistake(
                f"every row of {quoted(name)} is all of what it is to be a share of; leave out of "
                "`within` the attribute whose values are to add up to 1"
            )
        kept = tuple(axis for axis in numerator.axes if axis[0] in within)
        conditions, declared, blank = list[Condition](), list[str](), list[str]()
        for i, asked in numerator.axes:
            values = None if i in within else with_values(self._attributes[i])
            if values is None:
                continue
            rows, all_of = asked.asked, values.asked
            if given.among == "declared" and (rows & ~all_of).any():
                raise given.node("among").mistake(
                    f"{quoted(name)} has rows for more than the declared values of "
                    f"{quoted(self._names[i])}, which are no part of them; name an item without "
                    "`total` and `other` there"
                )
            if given.among == "declared" or (not given.among and np.array_equal(rows, all_of)):
                conditions.append((i, values))
                declared.append(self._names[i])
            else:
                blank.append(self._names[i])
        named = ", ".join(self._names[i] for i in sorted(within))
        among = " and ".join(
            [f"with a declared value of {', '.join(declared)}"] * bool(declared)
            + [f"{'' if declared else 'with '}the same {named}"] * bool(within)
        )
        words = " ".join(filter(None, (f"{name} as a share of all", among)))
        if blank:
            words += f", undeclared values of {', '.join(blank)} included"
        return Quotient(
            "share", numerator, _meeting(replace(numerator, axes=kept), *conditions)
        ), words

    def _ratio(self, given: RatioFields) -> tuple[Statistic, str]:
        name, numerator = self._item(given.of)
        other, denominator = self._item(given.to)
        self._check_axes(given.to, name, numerator, other, denominator)
        return Quotient("ratio", numerator, denominator), f"{name} over {other}"

    def _mean(self, given: MeanFields) -> tuple[Statistic, str]:
        name, numerator = self._item(given.sum_)
        if numerator.summed is None:
            raise given.sum_.mistake(
                f"{quoted(name)} counts records, and a mean is of what they add up to; name an "
                "item of the workload with `sum: {of: ..., by: ...}`"
            )
        of = self._names[numerator.summed.attribute]
        _, attribute = self.scope.declared[of]
        rounding = "" if attribute is None else numerator.summed.rounding_words(attribute)
        rounding = f" ({rounding})" if rounding else ""
        if given.count is None:
            denominator, words = self._counted(numerator, of)
            return Quotient("mean", numerator, denominator), f"{name} over {words}{rounding}"
        other, denominator = self._item(given.count, counts=True)
        self._check_axes(given.count, name, numerator, other, denominator)
        return Quotient("mean", numerator, denominator), f"{name} over {other}{rounding}"

    def _counted(self, numerator: Table, of: str) -> tuple[Table, str]:
        """Return the table that counts whose numbers a sum adds up, and what it counts.

        A record without a declared value adds nothing, and would pull the mean down; where the
        spec says what such a record adds, it is one of them.
        """
        denominator = replace(numerator, summed=None)
        counted = "the weight of the records" if self.weighted else "the number of records"
        index, attribute = self.scope.declared[of]
        if attribute is None:
            raise UnreadableError(None)
        asked = {i for i, _ in (*numerator.axes, *numerator.where)}
        values = () if numerator.summed is None else numerator.summed.values
        if index in asked or any(values[attribute.length :]):
            return denominator, counted
        declared = with_values(attribute)
        if declared is None:
            return denominator, counted
        narrowed = _meeting(denominator, (index, declared))
        return narrowed, f"{counted} with a value of {of}"

    def _check_axes(
        self, node: Node, name: str, numerator: Table, other: str, denominator: Table
    ) -> None:
        """Refuse a denominator that has not one row for each of the numerator's."""
        axes = dict(numerator.axes)
        for i, predicates in denominator.axes:
            if axes.get(i) != predicates:
                attribute = quoted(self._names[i])
                raise node.mistake(
                    f"{quoted(other)} has rows by {attribute}, and {quoted(name)} "
                    f"{'asks otherwise of it' if i in axes else 'has none'}: which row goes with "
                    f"which is open; ask the same of {attribute} in both, or leave it out of "
                    f"{quoted(other)}"
                )

    def _difference(self, given: DifferenceFields) -> tuple[Statistic, str]:
        name, table = self._item(given.of)
        if given.chosen == "release":
            if self.folder is None:
                raise given.node("release").mistake(
                    "a plan knows no other release; ask for this difference later, in a file of "
                    "questions to `dpquery answer`"
                )
            release = str(self.folder / given.release)
            return Difference(table, table, table, release), f"{name} less that of another release"
        node = given.node("between")
        if len(given.between) != 1:
            raise node.mistake(
                "expected one attribute with its two values, as in {sex: [Male, Female]}"
            )
        ((key, pair),) = given.between
        index, attribute = self.scope.attribute(key)
        self._check_has(key, name, table, index)
        rows = replace(table, axes=tuple(axis for axis in table.axes if axis[0] != index))
        sides = [read_condition(side, attribute) for side in pair]
        first, second = (_meeting(rows, (index, side)) for side in sides)
        if first == second:
            raise node.mistake("the two values are one; name two")
        labels = [side.groups[0][0] for side in sides if hasattr(side, "groups")]
        return Difference(first, second, rows), f"{name}: {' less '.join(labels)}"

    def _rate(self, given: RateFields) -> tuple[Statistic, str]:
        name, table = self._item(given.of)
        population = self._numbers(given, "population", table, (POPULATION,), _population)
        return Rate(table, given.per, population), f"{name} per {given.per:g} of {given.population}"

    def _quantiles(self, given: QuantileFields) -> tuple[Statistic, str]:
        name, table = self._item(given.of, counts=True)
        index, attribute = self.scope.attribute(given.over)
        asked = dict(table.axes).get(index)
        parts = asked.parts if isinstance(asked, StackedSet) else (asked,)
        if not _ordered(attribute):
            raise given.over.mistake(
                f"the values of {quoted(attribute.name)} have no order, and so no quantiles"
            )
        if not any(isinstance(part, IdentitySet | PrefixSet) for part in parts):
            raise given.over.mistake(
                f"{quoted(name)} holds neither every value of {quoted(attribute.name)} nor the "
                f"counts up to each; ask for `{attribute.name}: prefix` in an item of the workload "
                "and name that"
            )
        others = tuple(axis for axis in table.axes if axis[0] != index)
        prefix = PrefixSet(attribute.size, attribute.length)
        axes = tuple(sorted((*others, (index, prefix)), key=lambda axis: axis[0]))
        rows, cumulative = replace(table, axes=others), replace(table, axes=axes)
        probabilities = self._probabilities(given)
        weight = "the weight of " * self.weighted
        words = f"quantiles of {attribute.name} from {name}, of {weight}the records"
        if with_values(attribute) is not None:
            words += f" with a declared value of {attribute.name}"
        if isinstance(attribute.columns[0].kind, Bins):
            words += (
                " (interpolated within a bin as if spread evenly there, which no interval includes)"
            )
        return Quantiles(rows, index, cumulative, probabilities), words

    def _merged(self, given: MergedRowsFields) -> tuple[Statistic, str]:
        name, table = self._item(given.of, counts=True)
        index, attribute = self.scope.attribute(given.over)
        if not (_ordered(attribute) or attribute.levels):
            raise given.over.mistake(
                f"the values of {quoted(attribute.name)} have neither an order nor a hierarchy, so "
                "that nothing says which of them belong together; ask for groups of them instead"
            )
        if not isinstance(dict(table.axes).get(index), IdentitySet):
            raise given.over.mistake(
                f"{quoted(name)} does not have one row for each value of "
                f"{quoted(attribute.name)}; ask for `{attribute.name}: identity` in an item of the "
                "workload and name that"
            )
        for level, below in pairwise(attribute.levels):
            if len({*zip(below.group_of, level.group_of, strict=True)}) > len(below.codes):
                raise given.over.mistake(
                    f"a {below.name} of {quoted(attribute.name)} lies in several groups of "
                    f"{level.name}, so that siblings are not one family; merge an item over an "
                    "attribute whose levels nest"
                )
        given.problems.levels_named |= {(attribute.name, each.name) for each in attribute.levels}
        pairs = table.size * len(dict(table.axes)[index])
        if pairs > MAX_MERGED_PAIRS:
            raise given.over.mistake(
                f"{table.size:,} rows are too many to be merged over {quoted(attribute.name)}: "
                f"{pairs:,} pairs of rows, and the limit is {MAX_MERGED_PAIRS:,}; ask for fewer "
                "values"
            )
        sizes = self._sizes(given, table)
        even = "as if all rows but those of `other` were of one size"
        even += ", and values of `where` as frequent as others" * bool(table.where)
        expected = even if given.sizes is None else f"by {given.sizes}"
        words = (
            f"{name}, added up over {attribute.name} up to a relative error of "
            f"{given.rel_error:g}, {expected}"
        )
        rules = self.items[name].publish
        return MergedRows(table, index, given.rel_error, sizes, given.sizes is None, rules), words

    def _sizes(self, given: MergedRowsFields, table: Table) -> tuple[float, ...]:
        if given.sizes is not None:
            return self._numbers(given, "sizes", table, ("size", "estimate"), _size)
        if self.records is None:
            public = "`total: N`" if self.weighted else "`rows: about N`"
            raise given.node().mistake(
                f"how large rows are to be expected is not known; say {public} of the "
                f"{'weight' if self.weighted else 'dataset'}, or name a file with `sizes:`"
            )
        sizes: Floats = np.array(float(self.records))
        attributes = self._attributes
        for i, asked in (*table.axes, *table.where):
            spread = even_spread(attributes[i])
            shares = [float(spread[list(codes)].sum()) for codes in asked.members()]
            sizes = np.multiply.outer(sizes, shares)
        return tuple(sizes.ravel().tolist())

    def _numbers(
        self,
        given: RateFields | MergedRowsFields,
        key: str,
        table: Table,
        columns: Sequence[str],
        read: Callable[[str, FileLine], float],
    ) -> tuple[float, ...]:
        file, node = getattr(given, key), given.node(key)
        declared = self._attributes
        values, _ = read_row_values(self.read_file, file, node, table, declared, columns, read)
        return tuple(map(float, values.tolist()))

    def _probabilities(self, given: QuantileFields) -> tuple[float, ...]:
        if isinstance(given.at, str):
            parts = QUANTILE_WORDS[given.at]
            return tuple(k / parts for k in range(1, parts))
        if list(given.at) != sorted(set(given.at)):
            raise given.node("at").mistake("the probabilities must rise, each once")
        return given.at
