"""The columns that say which values of an attribute a row is about.

The columns that show the queries on one attribute: labels and, where it is ordered, range ends.

An attribute that an item asks for code by code in every table is one typed column. Any other use
(ranges, groups, totals, an `other` row, tables without the attribute) is a column of labels, to
which whole numbers, dates and numbers of rows add `_from` and `_to`, first and last whole number or
day, and bins `_from` and `_below`, the edges of a half-open range; null where the query is no
range. Listed
values whose labels are not their codes add `_code`: the code of a row that is one value, and null
elsewhere. Those of a hierarchy add `_code` and `_level`, for rows that are one group of a level.

The columns that show one attribute, filled for the rows of a batch.

A query's values come in runs of one length, the rows of the axes after its axis, again and again:
so they are repeated and copied, and never looked up row by row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import accumulate, chain
from typing import NamedTuple, assert_never

import numpy as np
import pyarrow as pa
from numpy import float64, int32, int64
from numpy.typing import NDArray

from dpquery.arrays import Bools, Floats, Ints, Numbers
from dpquery.releases.tables.file_columns import LABEL
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Dates, Domain, Integers
from dpquery.spec.predicates import (
    AllRangesSet,
    GroupSet,
    IdentitySet,
    IntervalSet,
    PredicateSet,
    PrefixSet,
    StackedSet,
    TotalSet,
    WidthSet,
)
from dpquery.spec.spec import Item


@dataclass(frozen=True)
class ColumnRules:
    """How the columns of attributes are made in the files of one release.

    Attributes:
        labelled: indices of attributes that are columns of labels in all items, since they are in
            one of them.
        below: whether the upper edge of bins is `_below`; in releases from plans of before it is
            `_to`, though it is not included.
    """

    labelled: frozenset[int] = frozenset()
    below: bool = False

    def upper(self, attribute: Attribute) -> str:
        """Return the end of the name of the column in which ranges of an attribute end."""
        return "below" if self.below and is_binned(attribute) else "to"


FIRST_RULES = ColumnRules()
"""Of releases from plans that do not say by which edition of tables they go."""
NO_RANGE = -1


@dataclass(frozen=True, eq=False)
class QueryLabels:
    """The queries of one predicate set in words and in codes.

    Attributes:
        labels: (n,) texts, in query order.
        first: (n,) first code of the range that the query is, NO_RANGE where it is none.
        last: (n,) last code of that range.
    """

    labels: Sequence[str]
    first: Ints
    last: Ints


@dataclass(frozen=True, eq=False)
class ColumnValues:
    """The values of an attribute's columns, one for each query of a predicate set.

    Attributes:
        value: (n,) typed values, or places in the column's dictionary.
        low: (n,) lower ends of ranges, NaN-free; None where the attribute has no such column.
        high: (n,) upper ends.
        is_range: (n,) where low and high hold.
        code: (n,) places in the column's codes, NO_RANGE where a query is not one value; None where
            the attribute has no such column.
        level: (n,) places in the column's levels, NO_RANGE where a query is not one group of a
            level; None where the attribute has no hierarchy.
    """

    value: Ints | NDArray[np.datetime64]
    low: Ints | Floats | NDArray[np.datetime64] | None
    high: Ints | Floats | NDArray[np.datetime64] | None
    is_range: Bools
    code: Ints | None = None
    level: Ints | None = None


@dataclass(frozen=True, eq=False)
class AttributeColumns:
    """The columns that show one attribute in one item.

    Attributes:
        type: Arrow type of the main column.
        ends: Arrow type of the `_from` and `_to` columns; None where there are none.
        dictionary: the labels, for a column of labels. Where a table lacks the attribute, the first
            of them says "all": an index of zero.
        codes: the codes, for a column of them; None where there is none.
        values: of these columns, for every predicate set that the item asks of the attribute.
        levels: the names of levels, for a column of them; None where there is no hierarchy.
    """

    type: pa.DataType
    ends: pa.DataType | None
    dictionary: pa.Array | None
    codes: pa.Array | None
    values: Mapping[PredicateSet, ColumnValues]
    levels: pa.Array | None = None


def attribute_columns(
    attribute: Attribute, item: Item, *, index: int, rules: ColumnRules = FIRST_RULES
) -> AttributeColumns:
    """Return how an item shows an attribute, given the attribute's index in the domain."""
    sets_by_table = [dict((*table.axes, *table.where)).get(index) for table in item.tables]
    sets = {predicates: None for predicates in sets_by_table if predicates is not None}
    if index not in rules.labelled and _is_code_by_code(attribute, item, index):
        return _code_columns(attribute, next(iter(sets)))
    return label_columns(attribute, list(sets), absent=None in sets_by_table)


def release_rules(items: Sequence[Item], domain: Domain) -> ColumnRules:
    """Return rules by which a column of an attribute has one type in the files of all items."""
    labelled = {
        index
        for item in items
        for index in {i for table in item.tables for i in table.attributes}
        if not _is_code_by_code(domain.attributes[index], item, index)
    }
    return ColumnRules(frozenset(labelled), below=True)


def is_binned(attribute: Attribute) -> bool:
    """Return whether an attribute is one column of bins."""
    return not attribute.merged and isinstance(attribute.columns[0].kind, Bins)


def _is_code_by_code(attribute: Attribute, item: Item, index: int) -> bool:
    sets = (dict((*table.axes, *table.where)).get(index) for table in item.tables)
    return all(isinstance(predicates, IdentitySet) for predicates in sets) and (
        attribute.merged or attribute.length == attribute.shown
    )


def _code_columns(attribute: Attribute, predicates: PredicateSet) -> AttributeColumns:
    codes = np.arange(len(predicates), dtype=int64)
    kind = attribute.columns[0].kind
    if not attribute.merged:
        match kind:
            case Integers(low=low):
                values = ColumnValues(low + codes, None, None, codes >= 0)
                return AttributeColumns(pa.int64(), None, None, None, {predicates: values})
            case Boolean():
                values = ColumnValues(codes, None, None, codes >= 0)
                return AttributeColumns(pa.bool_(), None, None, None, {predicates: values})
            case Dates():
                values = ColumnValues(
                    _days(map(kind.start, codes.tolist())), None, None, codes >= 0
                )
                return AttributeColumns(pa.date32(), None, None, None, {predicates: values})
            case Categorical() | Bins():
                pass
            case _:
                assert_never(kind)
    return label_columns(attribute, [predicates], absent=False)


def label_columns(
    attribute: Attribute, sets: Sequence[PredicateSet], *, absent: bool
) -> AttributeColumns:
    """Return the columns of labels that show an attribute.

    Args:
        attribute: the attribute.
        sets: all that is asked of it.
        absent: whether some table lacks it: its rows are "all".
    """
    labels_of = {predicates: query_labels(attribute, predicates) for predicates in sets}
    texts = [*[total_label(attribute)] * absent]
    texts += [label for queries in labels_of.values() for label in queries.labels]
    places = {label: place for place, label in enumerate(dict.fromkeys(texts))}
    dictionary = pa.array(list(places), pa.string())
    if attribute.levels:
        return _by_level(attribute, labels_of, places, dictionary)
    ends = _ends_type(attribute)
    return AttributeColumns(
        type=LABEL,
        ends=ends,
        dictionary=dictionary,
        codes=pa.array(attribute.codes, pa.string()) if attribute.codes else None,
        values={
            predicates: _column_values(attribute, queries, places)
            for predicates, queries in labels_of.items()
        },
    )


def _by_level(
    attribute: Attribute,
    labels_of: Mapping[PredicateSet, QueryLabels],
    places: Mapping[str, int],
    dictionary: pa.Array,
) -> AttributeColumns:
    """Return columns of labels, codes and levels; `places` are those in the dictionary."""
    groups_of = {
        predicates: _query_groups(attribute, predicates, queries)
        for predicates, queries in labels_of.items()
    }
    every = dict.fromkeys(chain.from_iterable(groups_of.values()))
    every.pop(None, None)
    level_places = _places_of(level for level, _ in filter(None, every))
    code_places = _places_of(code for _, code in filter(None, every))
    values = {}
    for predicates, groups in groups_of.items():
        pairs = [
            (NO_RANGE, NO_RANGE)
            if group is None
            else (level_places[group[0]], code_places[group[1]])
            for group in groups
        ]
        level, code = np.array(pairs, dtype=int64).reshape(-1, 2).T
        value = np.array([places[label] for label in labels_of[predicates].labels], dtype=int64)
        values[predicates] = ColumnValues(value, None, None, code != NO_RANGE, code, level)
    codes, levels = (pa.array(list(known), pa.string()) for known in (code_places, level_places))
    return AttributeColumns(LABEL, None, dictionary, codes, values, levels)


def _places_of(texts: Iterable[str]) -> dict[str, int]:
    return {text: place for place, text in enumerate(dict.fromkeys(texts))}


def _query_groups(
    attribute: Attribute, predicates: PredicateSet, queries: QueryLabels
) -> list[tuple[str, str] | None]:
    """Return level and code of every query that is one group of a level."""
    match predicates:
        case StackedSet(parts=parts):
            ends = list(accumulate(map(len, parts)))
            cut = [
                QueryLabels(
                    queries.labels[end - len(part) : end],
                    queries.first[end - len(part) : end],
                    queries.last[end - len(part) : end],
                )
                for part, end in zip(parts, ends, strict=True)
            ]
            pairs = zip(parts, cut, strict=True)
            return [group for part, rows in pairs for group in _query_groups(attribute, part, rows)]
        case GroupSet(named=named) if named:
            return list(named)
        case _:
            lowest = attribute.levels[-1]
            single = (queries.first == queries.last) & (queries.first != NO_RANGE)
            firsts = np.where(single, queries.first, NO_RANGE).tolist()
            return [None if i == NO_RANGE else (lowest.name, lowest.codes[i]) for i in firsts]


def _column_values(
    attribute: Attribute, queries: QueryLabels, places: Mapping[str, int]
) -> ColumnValues:
    value = np.array([places[label] for label in queries.labels], dtype=int64)
    is_range = queries.first != NO_RANGE
    if not attribute.in_data:  # numbers of rows, of which the last ordered code is all greater ones
        is_range &= queries.last < attribute.length - 1
        return ColumnValues(value, 1 + queries.first, 1 + queries.last, is_range)
    kind = attribute.columns[0].kind
    if attribute.merged or isinstance(kind, Categorical | Boolean):
        code = np.where(queries.first == queries.last, queries.first, NO_RANGE)
        return ColumnValues(value, None, None, is_range, code if attribute.codes else None)
    first, last = np.where(is_range, queries.first, 0), np.where(is_range, queries.last, 0)
    match kind:
        case Integers(low=low):
            return ColumnValues(value, low + first, low + last, is_range)
        case Bins(edges=edges):
            marks = np.array(edges, dtype=float64)
            return ColumnValues(value, marks[first], marks[last + 1], is_range)
        case Dates():
            starts, ends = map(kind.start, first.tolist()), map(kind.end, last.tolist())
            return ColumnValues(value, _days(starts), _days(ends), is_range)
    assert_never(kind)


def _ends_type(attribute: Attribute) -> pa.DataType | None:
    if not attribute.in_data:
        return pa.int64()
    if attribute.merged:
        return None
    match attribute.columns[0].kind:
        case Integers():
            return pa.int64()
        case Bins():
            return pa.float64()
        case Dates():
            return pa.date32()
        case _:
            return None


def _days(days: Iterable[date]) -> NDArray[np.datetime64]:
    return np.array(list(days), dtype="datetime64[D]")


def query_labels(attribute: Attribute, predicates: PredicateSet) -> QueryLabels:
    """Return the queries of a predicate set in words and in codes; O(number of queries)."""
    match predicates:
        case IdentitySet():
            codes = np.array(predicates.codes, dtype=int64)
            ends = np.where(codes < attribute.length, codes, NO_RANGE)
            return QueryLabels([attribute.label(code) for code in codes.tolist()], ends, ends)
        case TotalSet():
            return QueryLabels([total_label(attribute)], *np.full((2, 1), NO_RANGE, dtype=int64))
        case GroupSet(groups=groups):
            runs = [_run(codes, attribute.length) for _, codes in groups]
            first, last = np.array(runs, dtype=int64).reshape(-1, 2).T
            return QueryLabels([label for label, _ in groups], first, last)
        case StackedSet(parts=parts):
            parts_described = [query_labels(attribute, part) for part in parts]
            return QueryLabels(
                [label for queries in parts_described for label in queries.labels],
                np.concatenate([queries.first for queries in parts_described]),
                np.concatenate([queries.last for queries in parts_described]),
            )
        case PrefixSet() | AllRangesSet() | WidthSet() | IntervalSet():
            column = attribute.columns[0]
            first, last = _range_codes(predicates)
            pairs = zip(first.tolist(), last.tolist(), strict=True)
            return QueryLabels([column.range_label(i, j) for i, j in pairs], first, last)
    assert_never(predicates)


def total_label(attribute: Attribute) -> str:
    """Return the label of "whatever the attribute": all, unless one of its values is called so."""
    kinds = [column.kind for column in attribute.columns]
    declared = {label for kind in kinds if isinstance(kind, Categorical) for label in kind.labels}
    return "(all)" if "all" in declared else "all"


def _run(codes: Sequence[int], length: int) -> tuple[int, int]:
    """Return (first, last) if sorted codes are a range of ordered codes, else NO_RANGE twice."""
    if codes and codes[-1] - codes[0] == len(codes) - 1 and codes[-1] < length:
        return codes[0], codes[-1]
    return NO_RANGE, NO_RANGE


def _range_codes(
    predicates: PrefixSet | AllRangesSet | WidthSet | IntervalSet,
) -> tuple[Ints, Ints]:
    """Return first and last codes as predicates.ranges yields them, without a Python loop."""
    match predicates:
        case PrefixSet(length=length):
            return np.zeros(length, dtype=int64), np.arange(length, dtype=int64)
        case AllRangesSet(length=length):
            i, j = np.triu_indices(length)
            return i.astype(int64), j.astype(int64)
        case WidthSet(width=width):
            first = np.arange(len(predicates), dtype=int64)
            return first, first + width - 1
        case IntervalSet(bounds=bounds):
            first, last = np.array(bounds, dtype=int64).reshape(-1, 2).T
            return first, last
    assert_never(predicates)


# How the columns of these types are filled.
_DTYPES = {pa.int64(): "int64", pa.float64(): "float64", pa.date32(): "datetime64[D]"}
_LONG = 1 << 9  # values: copies of fewer cost more than what is copied


class LabelRuns(NamedTuple):
    """Rows start..stop-1 of a table, which begin a batch's row `begin`, in runs of one query."""

    begin: int
    start: int
    stop: int
    length: int

    @property
    def rows(self) -> slice:
        """The rows of the batch."""
        return slice(self.begin, self.begin + self.stop - self.start)


def repeat_runs(values: Numbers, runs: LabelRuns, out: Numbers) -> None:
    """Write values[row // length % n] for each row of a table to out. values: (n,)."""
    start, stop, length = runs.start, runs.stop, runs.length
    n, rows = len(values), stop - start
    if rows < n * length:
        first = start // length
        repeated = values[np.arange(first, -(-stop // length)) % n]
        out[:] = np.repeat(repeated, length)[start - first * length :][:rows]
        return
    cycle = np.tile(np.repeat(values, length), -(-_LONG // (n * length)))
    if begun := start % len(cycle):
        cycle = np.roll(cycle, -begun)
    whole = rows - rows % len(cycle)
    out[:whole].reshape(-1, len(cycle))[:] = cycle
    out[whole:] = cycle[: rows - whole]


class BlankColumns:
    """The columns of attributes in rows whose table lacks them, allocated once for a file."""

    def __init__(self, rows: int) -> None:
        """Prepare for batches of at most so many rows."""
        self._first = pa.array(np.zeros(rows, dtype=int32))
        self._nulls = {kind: pa.nulls(rows, kind) for kind in _DTYPES}
        self._no_codes = pa.nulls(rows, pa.int32())

    def arrays(self, columns: AttributeColumns, rows: int) -> list[pa.Array]:
        """Return the first label, "all", no code, no level and no ends."""
        first = self._first.slice(0, rows)
        arrays = [pa.DictionaryArray.from_arrays(first, columns.dictionary, safe=False)]
        if columns.codes is not None:
            missing = self._no_codes.slice(0, rows)
            arrays.append(pa.DictionaryArray.from_arrays(missing, columns.codes))
        if columns.levels is not None:
            missing = self._no_codes.slice(0, rows)
            arrays.append(pa.DictionaryArray.from_arrays(missing, columns.levels))
        if columns.ends is not None:
            arrays += [self._nulls[columns.ends].slice(0, rows)] * 2
        return arrays


class FilledColumns:
    """The columns of one attribute over the rows of a batch, "all" where they are not filled."""

    def __init__(self, columns: AttributeColumns, rows: int) -> None:
        """Make room for so many rows."""
        self.columns = columns
        dtype = _DTYPES.get(columns.type, "int64") if columns.dictionary is None else "int32"
        self.value: Numbers = np.zeros(rows, dtype=dtype)
        if columns.codes is not None:
            self.code: Numbers = np.full(rows, NO_RANGE, dtype=int32)
        if columns.levels is not None:
            self.level: Numbers = np.full(rows, NO_RANGE, dtype=int32)
        if columns.ends is not None:
            dtype = _DTYPES[columns.ends]
            self.low, self.high = np.zeros(rows, dtype=dtype), np.zeros(rows, dtype=dtype)
            self.missing = np.ones(rows, dtype=np.bool_)

    def fill(self, predicates: PredicateSet, runs: LabelRuns) -> None:
        """Fill the rows of a table with the values of a predicate set."""
        values = self.columns.values[predicates]
        repeat_runs(values.value.astype(self.value.dtype), runs, self.value[runs.rows])
        if values.low is not None and values.high is not None:
            repeat_runs(values.low, runs, self.low[runs.rows])
            repeat_runs(values.high, runs, self.high[runs.rows])
            repeat_runs(~values.is_range, runs, self.missing[runs.rows])
        if values.code is not None:
            repeat_runs(values.code.astype(int32), runs, self.code[runs.rows])
        if values.level is not None:
            repeat_runs(values.level.astype(int32), runs, self.level[runs.rows])

    def arrays(self) -> list[pa.Array]:
        """Return the main column and, where there are such, codes, levels and ends of ranges."""
        if self.columns.dictionary is None:
            return [pa.array(self.value).cast(self.columns.type)]
        arrays = [encoded(self.value, self.columns.dictionary)]
        if self.columns.codes is not None:
            places = masked(self.code, self.code == NO_RANGE)
            arrays.append(pa.DictionaryArray.from_arrays(places, self.columns.codes))
        if self.columns.levels is not None:
            places = masked(self.level, self.level == NO_RANGE)
            arrays.append(pa.DictionaryArray.from_arrays(places, self.columns.levels))
        if self.columns.ends is not None:
            arrays += [masked(ends, self.missing) for ends in (self.low, self.high)]
        return arrays


def encoded(places: NDArray[int32], dictionary: pa.Array) -> pa.Array:
    """Return a column of labels: (m,) places in a dictionary, all of them inside it."""
    return pa.DictionaryArray.from_arrays(pa.array(places), dictionary, safe=False)


def masked(values: Numbers, missing: Bools) -> pa.Array:
    """Return a column with nulls where values are missing, without a mask where none is."""
    return pa.array(values, mask=missing) if missing.any() else pa.array(values)
