"""The columns that show one attribute, filled for the rows of a batch.

A query's values come in runs of one length, the rows of the axes after its axis, again and again:
so they are repeated and copied, and never looked up row by row.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy import int32
from numpy.typing import NDArray

from dpquery.arrays import Bools, Numbers
from dpquery.releases.tables.labels import NO_RANGE, AttributeColumns
from dpquery.spec.predicates import PredicateSet

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
