"""Prefixes, all ranges, windows and listed ranges, and inverses that go by ranges."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.factors import (
    Factor,
    Groups,
    Identity,
    IdentityRows,
    Ones,
    Stacked,
    absolute_power,
)

CACHED = 1 << 16  # entries of a chunk of rows that is gone through again and again


class Ranges(Factor):
    """Ranges first..last of n codes, both ends included; subclasses say which."""

    zero_one = True

    @property
    @abstractmethod
    def bounds(self) -> tuple[Ints, Ints]:
        """First and last code of every range: two (m,) integer arrays."""

    def matmat(self, X: Numbers) -> Numbers:
        (first, last), C = self.bounds, _cumulative(X)
        return np.asarray(C[last + 1] - C[first])

    def rmatmat(self, Y: Numbers) -> Numbers:
        (first, last), (m, n) = self.bounds, self.shape
        if m == 1:  # of many single ranges most of the time would go into making sparse matrices
            inside = np.arange(n)[:, None]
            return np.asarray(((first <= inside) & (inside <= last)) * Y)
        rows, ones = np.arange(m), np.ones(m, dtype=np.int64)
        starts = sp.csr_array((ones, (first, rows)), shape=(n + 1, m))
        ends = sp.csr_array((ones, (last + 1, rows)), shape=(n + 1, m))
        return np.asarray(np.cumsum(starts @ Y - ends @ Y, axis=0)[:-1])

    def gram(self) -> Floats:
        return self.gram_at(np.arange(self.shape[1]))

    def weighted_gram(self, weights: Floats) -> Floats:
        """Weigh the ranges that hold both j and k: first <= j and last >= k. O(m + n^2)."""
        count = np.zeros((self.shape[1], self.shape[1]))
        np.add.at(count, self.bounds, weights)
        return _holding_both(count)

    def gram_at(self, codes: Ints) -> Floats:
        """Cut the ranges off at the codes: O(m + k^2) for k of them, in their order."""
        if np.any(np.diff(codes) < 0):
            order = np.argsort(codes)
            places = np.argsort(order)
            return self.gram_at(codes[order])[np.ix_(places, places)]
        (first, last), count = self.bounds, np.zeros((len(codes), len(codes)))
        start, stop = np.searchsorted(codes, first), np.searchsorted(codes, last, side="right")
        inside = start < stop
        np.add.at(count, (start[inside], stop[inside] - 1), 1.0)
        return _holding_both(count)

    def gram_of_spans(self, size: int) -> Floats:
        """Return C'C for the codes C that ranges hold of spans of so many: O(m + spans^2)."""
        (first, last), spans = self.bounds, -(-self.shape[1] // size)
        start, stop = first // size, last // size
        lacking = [(start, first - start * size), (stop, (stop + 1) * size - 1 - last)]
        touched, across = np.zeros((spans, spans)), np.zeros((spans + 1, spans))
        np.add.at(touched, (start, stop), float(size) ** 2)
        touched = _holding_both(touched)
        for span, codes in lacking:
            np.add.at(across, (start, span), size * codes)
            np.add.at(across, (stop + 1, span), -size * codes)
            for other, others in lacking:
                np.add.at(touched, (span, other), codes * others)
        across = np.cumsum(across, axis=0)[:-1]
        return touched - across - across.T

    def column_norms(self, power: int) -> Ints:
        return self.rmatvec(np.ones(self.shape[0], dtype=np.int64))

    def row_power_sums(self, M: Numbers, power: int) -> Numbers:
        (first, last), C = self.bounds, _cumulative(M)
        step = max(1, CACHED // M.shape[1])
        pieces = [
            absolute_power(C[last[i : i + step] + 1] - C[first[i : i + step]], power).sum(axis=1)
            for i in range(0, self.shape[0], step)
        ]
        return np.concatenate(pieces)

    def quadratic(self, M: Floats) -> Floats:
        C = _cumulative(_cumulative(M).T)
        (i, last) = self.bounds
        j = last + 1
        return np.asarray(C[j, j] - C[i, j] - C[j, i] + C[i, i])


class ListedRanges(Ranges):
    """Ranges given one by one."""

    held = ("listed",)

    def __init__(self, n: int, bounds: Sequence[tuple[int, int]]) -> None:
        self.listed = np.array(bounds, dtype=np.int64).reshape(-1, 2)
        self.shape = (len(self.listed), n)

    @property
    def bounds(self) -> tuple[Ints, Ints]:
        return self.listed[:, 0], self.listed[:, 1]


class Prefix(Ranges):
    """The ranges 0..j for every j below `length`; codes from there on (`other`) are in none."""

    def __init__(self, n: int, length: int | None = None) -> None:
        self.shape = (n if length is None else length, n)

    @property
    def bounds(self) -> tuple[Ints, Ints]:
        last = np.arange(self.shape[0])
        return np.zeros_like(last), last

    def matmat(self, X: Numbers) -> Numbers:
        return np.asarray(np.cumsum(X[: self.shape[0]], axis=0))

    def rmatmat(self, Y: Numbers) -> Numbers:
        out = np.zeros((self.shape[1], Y.shape[1]), dtype=Y.dtype)
        np.cumsum(Y[::-1], axis=0, out=out[: self.shape[0]][::-1])
        return out

    def gram_at(self, codes: Ints) -> Floats:
        i = codes.astype(np.float64)
        return np.asarray(np.maximum(self.shape[0] - np.maximum(i[:, None], i), 0))


class AllRanges(Ranges):
    """The ranges i..j for every i <= j < `length`, i in the outer loop."""

    def __init__(self, n: int, length: int | None = None) -> None:
        self.length = n if length is None else length
        self.shape = (self.length * (self.length + 1) // 2, n)

    @property
    def bounds(self) -> tuple[Ints, Ints]:
        return np.triu_indices(self.length)

    def gram_matmat(self, X: Numbers) -> Numbers:
        """Use (F'F)_jk = (min(j, k) + 1) (length - max(j, k)): O(n) a column, never a row."""
        below, above = (side[:, None] for side in self._sides)
        left = np.cumsum(below * X, axis=0)
        right = np.cumsum((above * X)[::-1], axis=0)[::-1] - above * X
        return np.asarray(above * left + below * right)

    def column_norms(self, power: int) -> Ints:
        below, above = self._sides
        return np.asarray(below * above)

    @property
    def _sides(self) -> tuple[Ints, Ints]:
        """How many ranges start at or before each code, and how many end there or behind it."""
        j = np.arange(self.shape[1])
        return j + 1, np.maximum(self.length - j, 0)

    def gram_at(self, codes: Ints) -> Floats:
        i = codes.astype(np.float64)
        low, high = np.minimum(i[:, None], i), np.maximum(i[:, None], i)
        return np.asarray((low + 1) * np.maximum(self.length - high, 0))


class WidthRanges(Ranges):
    """Every range of one width: n - width + 1 of them."""

    def __init__(self, n: int, width: int) -> None:
        if not 1 <= width <= n:
            raise ValueError(f"width {width} outside 1..{n}")
        self.width = width
        self.shape = (n - width + 1, n)

    @property
    def bounds(self) -> tuple[Ints, Ints]:
        first = np.arange(self.shape[0])
        return first, first + self.width - 1

    def gram_at(self, codes: Ints) -> Floats:
        m = self.shape[0]
        low, high = np.minimum(codes[:, None], codes), np.maximum(codes[:, None], codes)
        shared = np.minimum(low, m - 1) - np.maximum(high - self.width + 1, 0) + 1
        return np.asarray(np.maximum(shared, 0), dtype=np.float64)


class Columns(Factor):
    """Some columns of a factor, in any order: column j is column codes[j] of `inner`."""

    held = ("inner", "codes")

    def __init__(self, inner: Factor, codes: Ints) -> None:
        if len(np.unique(codes)) < len(codes):
            raise ValueError("a column is taken twice")
        self.inner, self.codes = inner, np.asarray(codes, dtype=np.int64)
        self.shape = (inner.shape[0], len(self.codes))
        self.zero_one, self.dtype = inner.zero_one, inner.dtype

    def _spread(self, X: Numbers) -> Numbers:
        out = np.zeros((self.inner.shape[1], X.shape[1]), dtype=X.dtype)
        out[self.codes] = X
        return out

    def matmat(self, X: Numbers) -> Numbers:
        return self.inner.matmat(self._spread(X))

    def rmatmat(self, Y: Numbers) -> Numbers:
        return np.asarray(self.inner.rmatmat(Y)[self.codes])

    def gram(self) -> Floats:
        return np.asarray(self.inner.gram_at(self.codes), dtype=np.float64)

    def gram_at(self, codes: Ints) -> Numbers:
        return self.inner.gram_at(self.codes[codes])

    def gram_matmat(self, X: Numbers) -> Numbers:
        return np.asarray(self.inner.gram_matmat(self._spread(X))[self.codes])

    def column_norms(self, power: int) -> Numbers:
        return np.asarray(self.inner.column_norms(power)[self.codes])

    def row_power_sums(self, M: Numbers, power: int) -> Numbers:
        return self.inner.row_power_sums(self._spread(M), power)

    def quadratic(self, M: Floats) -> Floats:
        if 2 * len(self.codes) < self.inner.shape[1]:  # M spread over all codes would be far larger
            return super().quadratic(M)
        return self.inner.quadratic(self._spread(self._spread(M).T))


def _holding_both(count: Floats) -> Floats:
    """Return how many ranges hold both j and k, from how many go from each code to each."""
    upper = np.cumsum(np.cumsum(count, axis=0)[:, ::-1], axis=1)[:, ::-1]
    return np.triu(upper) + np.triu(upper, 1).T


def _cumulative(X: Numbers) -> Numbers:
    """Return the cumulative sums of the rows with a row of zeros on top: (n + 1, k)."""
    out = np.zeros((X.shape[0] + 1, X.shape[1]), dtype=X.dtype)
    np.cumsum(X, axis=0, out=out[1:])
    return out


RANGES_AT_ONCE = 1 << 14  # so many numbers stay in a core's cache


class OrderedInverse(ABC):
    """A symmetric (n, n) matrix M over ordered codes, known by its products and its ranges."""

    n: int

    @abstractmethod
    def matmat(self, X: Numbers) -> Floats:
        """Return M X. X: (n, k)."""

    @abstractmethod
    def _of_some_ranges(self, first: Ints, last: Ints) -> Floats:
        """Return q M q' of the ranges first..last, at most RANGES_AT_ONCE: (m,)."""

    @abstractmethod
    def _of_rows(self, rows: "sp.csr_array") -> Floats:
        """Return diag(Q M Q') of sparse rows. Q: (m, n)."""

    def array(self) -> Floats:
        """Return it written out: (n, n)."""
        return self.matmat(np.eye(self.n))

    def quadratic(self, queries: Factor) -> Floats:
        """Return diag(Q M Q') of a query matrix: (m,)."""
        match queries:
            case Stacked(parts=parts):
                return np.concatenate([self.quadratic(part) for part in parts])
            case Ranges(bounds=bounds):
                return self._of_ranges(*bounds)
            case Identity():
                return self._of_ranges(np.arange(self.n), np.arange(self.n))
            case IdentityRows(codes=codes):
                return self._of_ranges(codes, codes)
            case Ones(shape=(m, n)):
                return np.full(m, self._of_ranges(np.zeros(1, int), np.array([n - 1]))[0])
            case Groups(matrix=matrix):
                return self._of_rows(matrix)
            case Columns():
                return queries.quadratic(self.array())
            case _:
                return self._of_rows(sp.csr_array(queries.dense().astype(np.float64)))

    def _of_ranges(self, first: Ints, last: Ints) -> Floats:
        pieces = range(0, len(first), RANGES_AT_ONCE)
        spans = [slice(start, start + RANGES_AT_ONCE) for start in pieces]
        return np.concatenate([self._of_some_ranges(first[span], last[span]) for span in spans])
