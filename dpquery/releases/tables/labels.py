"""The columns that say which values of an attribute a row is about.

An attribute that an item asks for code by code in every table is one typed column. Any other use
(ranges, groups, totals, an `other` row, tables without the attribute) is a column of labels, to
which whole numbers, dates and numbers of rows add `_from` and `_to`, first and last whole number or
day, and bins `_from` and `_below`, the edges of a half-open range; null where the query is no
range. Listed
values whose labels are not their codes add `_code`: the code of a row that is one value, and null
elsewhere. Those of a hierarchy add `_code` and `_level`, for rows that are one group of a level.

A query's values come in runs of one length, the rows of the axes after its axis, again and again:
so they are repeated and copied, and never looked up row by row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import chain
from typing import NamedTuple, assert_never

import numpy as np
import pyarrow as pa
from numpy import float64, int32, int64
from numpy.typing import NDArray

from dpquery.arrays import Bools, Ints, Numbers
from dpquery.releases.tables.file_columns import LABEL
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Dates, Domain, Integers
from dpquery.spec.predicates import NO_RANGE, IdentitySet, PredicateSet, QueryLabels, total_label
from dpquery.spec.spec import Item


@dataclass(frozen=True)
class ColumnRules:
    """How the columns of attributes are made in the files of one release."""

    # indices of attributes that are columns of labels in all items, since they are in one of them
    labelled: frozenset[int] = frozenset()
    # whether the upper edge of bins is `_below`; in releases from plans of before it is `_to`,
    # though it is not included
    below: bool = False

    def upper(self, attribute: Attribute) -> str:
        """Return the end of the name of the column in which ranges of an attribute end."""
        return "below" if self.below and is_binned(attribute) else "to"


FIRST_RULES = ColumnRules()
"""Of releases from plans that do not say by which edition of tables they go."""


@dataclass(frozen=True, eq=False)
class ShownColumn:
    """One of the columns that show an attribute in one item."""

    # of its name: nothing of the main column, else "code", "level", "from", "to" or "below"
    end: str
    type: pa.DataType  # its Arrow type
    # its texts; None where it is typed. Where a table lacks the attribute, the first text of the
    # main column says "all": an index of zero
    dictionary: pa.Array | None
    # (n,) typed values or places in the dictionary, for each query of every predicate set that the
    # item asks of the attribute
    values: Mapping[PredicateSet, Numbers]
    # (n,) where these hold; None where they always do, which is in the main column
    known: Mapping[PredicateSet, Bools] | None = None

    def name(self, attribute: Attribute) -> str:
        """Return the name of the column in a file."""
        return f"{attribute.name}_{self.end}" if self.end else attribute.name

    def array(self, values: Numbers, missing: Bools) -> pa.Array:
        """Return the column of some values or places, null where they are missing."""
        if self.dictionary is None:
            return masked(values, missing) if self.end else pa.array(values).cast(self.type)
        places = masked(values, missing)
        return pa.DictionaryArray.from_arrays(places, self.dictionary, safe=False)


def attribute_columns(
    attribute: Attribute, item: Item, *, index: int, rules: ColumnRules = FIRST_RULES
) -> tuple[ShownColumn, ...]:
    """Return how an item shows an attribute, given the attribute's index in the domain."""
    sets_by_table = [dict((*table.axes, *table.where)).get(index) for table in item.tables]
    sets = {predicates: None for predicates in sets_by_table if predicates is not None}
    if index not in rules.labelled and _is_code_by_code(attribute, item, index):
        typed = _typed_column(attribute, next(iter(sets)))
        if typed is not None:
            return (typed,)
    return label_columns(attribute, list(sets), absent=None in sets_by_table, rules=rules)


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


def _typed_column(attribute: Attribute, predicates: PredicateSet) -> ShownColumn | None:
    """Return the column of single values that are no texts; None where they are."""
    codes = np.arange(len(predicates), dtype=int64)
    kind = attribute.columns[0].kind
    match kind:
        case _ if attribute.merged:
            return None
        case Integers(low=low):
            return ShownColumn("", pa.int64(), None, {predicates: low + codes})
        case Boolean():
            return ShownColumn("", pa.bool_(), None, {predicates: codes})
        case Dates():
            days = _days(map(kind.start, codes.tolist()))
            return ShownColumn("", pa.date32(), None, {predicates: days})
        case Categorical() | Bins():
            return None
    assert_never(kind)


def label_columns(
    attribute: Attribute,
    sets: Sequence[PredicateSet],
    *,
    absent: bool,
    rules: ColumnRules = FIRST_RULES,
) -> tuple[ShownColumn, ...]:
    """Return the columns of labels that show an attribute."""
    queries_of = {predicates: predicates.query_labels(attribute) for predicates in sets}
    labels = {predicates: queries.labels for predicates, queries in queries_of.items()}
    columns = [replace(_texts("", labels, [total_label(attribute)] * absent), known=None)]
    if attribute.levels:
        groups = {
            predicates: predicates.groups_of_levels(attribute)
            for predicates, queries in queries_of.items()
        }
        for place, end in ((1, "code"), (0, "level")):
            named = {k: [group and group[place] for group in of] for k, of in groups.items()}
            columns.append(_texts(end, named))
    elif attribute.codes:
        codes = {
            predicates: [
                None if code == NO_RANGE else attribute.codes[code]
                for code in queries.single_codes.tolist()
            ]
            for predicates, queries in queries_of.items()
        }
        columns.append(_texts("code", codes, attribute.codes))
    ends = {predicates: _ends(attribute, queries) for predicates, queries in queries_of.items()}
    kind = _ends_type(attribute)
    if kind is not None:
        known = {predicates: is_range for predicates, (_, _, is_range) in ends.items()}
        for place, end in enumerate(("from", rules.upper(attribute))):
            values = {predicates: pair[place] for predicates, pair in ends.items()}
            columns.append(ShownColumn(end, kind, None, values, known))
    return tuple(columns)


def _texts(
    end: str, texts_of: Mapping[PredicateSet, Sequence[str | None]], listed: Sequence[str] = ()
) -> ShownColumn:
    every = dict.fromkeys([*listed, *chain.from_iterable(texts_of.values())])
    every.pop(None, None)
    numbers = {text: number for number, text in enumerate(every)}
    places = {
        predicates: np.array([numbers.get(text, NO_RANGE) for text in texts], dtype=int32)
        for predicates, texts in texts_of.items()
    }
    known = {predicates: place != NO_RANGE for predicates, place in places.items()}
    return ShownColumn(end, LABEL, pa.array(list(numbers), pa.string()), places, known)


def _ends_type(attribute: Attribute) -> pa.DataType | None:
    if not attribute.in_data:
        return pa.int64()
    types = {Integers: pa.int64(), Bins: pa.float64(), Dates: pa.date32()}
    return None if attribute.merged else types.get(type(attribute.columns[0].kind))


def _ends(attribute: Attribute, queries: QueryLabels) -> tuple[Numbers, Numbers, Bools]:
    """Return where the range of every query begins and ends, and whether it is one. (n,) each."""
    is_range = queries.first != NO_RANGE
    if not attribute.in_data:  # numbers of rows, of which the last ordered code is all greater ones
        is_range &= queries.last < attribute.length - 1
        return 1 + queries.first, 1 + queries.last, is_range
    first, last = np.maximum(queries.first, 0), np.maximum(queries.last, 0)  # hidden if no range
    match attribute.columns[0].kind:
        case Bins(edges=edges):
            marks = np.array(edges, dtype=float64)
            return marks[first], marks[last + 1], is_range
        case Dates() as kind:
            starts, ends = map(kind.start, first.tolist()), map(kind.end, last.tolist())
            return _days(starts), _days(ends), is_range
        case Integers(low=low):
            return low + first, low + last, is_range
        case _:
            return first, last, is_range


def _days(days: Iterable[date]) -> NDArray[np.datetime64]:
    return np.array(list(days), dtype="datetime64[D]")


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
        self._first = pa.array(np.zeros(rows, dtype=int32))
        self._nulls = {kind: pa.nulls(rows, kind) for kind in (*_DTYPES, pa.int32())}

    def array(self, column: ShownColumn, rows: int) -> pa.Array:
        """Return the first label, "all", in the main column, and nothing in the others."""
        if column.dictionary is None:
            return self._nulls[column.type].slice(0, rows)
        places = self._nulls[pa.int32()] if column.end else self._first
        return pa.DictionaryArray.from_arrays(places.slice(0, rows), column.dictionary, safe=False)


class FilledColumn:
    """One column over the rows of a batch, "all" or empty where it is not filled."""

    def __init__(self, column: ShownColumn, rows: int) -> None:
        self.column = column
        dtype = "int32" if column.dictionary is not None else _DTYPES.get(column.type, "int64")
        self.value: Numbers = np.zeros(rows, dtype=dtype)
        self.missing = np.full(rows, column.known is not None)

    def fill(self, predicates: PredicateSet, runs: LabelRuns) -> None:
        """Fill the rows of a table with the values of a predicate set."""
        values = self.column.values[predicates].astype(self.value.dtype, copy=False)
        repeat_runs(values, runs, self.value[runs.rows])
        if self.column.known is not None:
            repeat_runs(~self.column.known[predicates], runs, self.missing[runs.rows])

    def array(self) -> pa.Array:
        """Return the column."""
        return self.column.array(self.value, self.missing)


def encoded(places: NDArray[int32], dictionary: pa.Array) -> pa.Array:
    """Return a column of labels: (m,) places in a dictionary, all of them inside it."""
    return pa.DictionaryArray.from_arrays(pa.array(places), dictionary, safe=False)


def repeated_texts(texts: Sequence[str], places: Ints) -> pa.Array:
    """Return a column of labels: of (m,) places in some texts, null at NO_RANGE."""
    distinct = {text: k for k, text in enumerate(dict.fromkeys(texts))}
    number_of = np.array([distinct[text] for text in texts], dtype=int32)
    numbers = masked(number_of[places], places == NO_RANGE)
    return pa.DictionaryArray.from_arrays(numbers, pa.array(list(distinct), pa.string()))


def masked(values: Numbers, missing: Bools) -> pa.Array:
    """Return a column with nulls where values are missing, without a mask where none is."""
    return pa.array(values, mask=missing) if missing.any() else pa.array(values)
