"""Factors: identity, ones, dense and centred ones, and rows of few entries.

A factor is an (m, n) matrix: m predicates over n codes. It carries scipy's method names without
scipy's base class, so scipy.sparse.linalg takes it as it is. Integer factors applied to integer
arrays give exact integers; that is what measurement relies on.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Floats, Ints, Numbers

ROW_CHUNK = 1 << 22  # entries of a dense chunk of rows: 32 MB of float64


class Factor(ABC):
    """An (m, n) matrix known by its products.

    Subclasses give `shape`, `held`, `matmat` and `rmatmat`; the rest follows, and is overridden
    where the structure gives it cheaper.
    """

    shape: tuple[int, int]
    zero_one = False  # whether every entry is 0 or 1
    held: tuple[str, ...] = ()  # names of what tells matrices of one class and shape apart
    dtype = np.dtype(np.int64)

    @cached_property
    def key(self) -> Hashable:
        """A value equal for equal matrices of one class; Grams are shared by it."""
        held = (_key_of(getattr(self, name)) for name in self.held)
        return (type(self).__name__, self.shape, *held)

    @abstractmethod
    def matmat(self, X: Numbers) -> Numbers:
        """Return F X. X: (n, k)."""

    @abstractmethod
    def rmatmat(self, Y: Numbers) -> Numbers:
        """Return F'Y. Y: (m, k)."""

    def matvec(self, x: Numbers) -> Numbers:
        return np.asarray(self.matmat(x.reshape(-1, 1))[:, 0])

    def rmatvec(self, y: Numbers) -> Numbers:
        return np.asarray(self.rmatmat(y.reshape(-1, 1))[:, 0])

    def row(self, number: int) -> Numbers:
        """Return one row of the matrix: (n,)."""
        unit = np.zeros(self.shape[0], dtype=np.int64)
        unit[number] = 1
        return self.rmatvec(unit)

    def dense(self) -> Numbers:
        """Return the matrix itself. O(m n)."""
        return self.matmat(np.eye(self.shape[1], dtype=self.dtype))

    def gram(self) -> Numbers:
        """Return F'F as an (n, n) array."""
        return self.rmatmat(self.dense())

    def weighted_gram(self, weights: Floats) -> Floats:
        """Return F' diag(weights) F as an (n, n) array. weights: (m,)."""
        return self.rmatmat(weights[:, None] * self.dense())

    def gram_matmat(self, X: Numbers) -> Numbers:
        """Return F'F X. X: (n, k)."""
        return self.rmatmat(self.matmat(X))

    def gram_at(self, codes: Ints) -> Numbers:
        """Return the rows and columns of F'F at some codes: (len(codes), len(codes))."""
        units = np.zeros((self.shape[1], len(codes)), dtype=self.dtype)
        units[codes, np.arange(len(codes))] = 1
        return np.asarray(self.gram_matmat(units)[codes])

    def column_norms(self, power: int) -> Numbers:
        """Return sum_i |F_ij|^power for every column j: exact for integer factors."""
        return np.asarray((np.abs(self.dense()) ** power).sum(axis=0))

    def column_counts(self) -> Ints:
        """Return the number of nonzero entries of every column."""
        if self.zero_one:
            return self.column_norms(1)
        return np.asarray((self.dense() != 0).sum(axis=0))

    @cached_property
    def max_abs(self) -> int:
        """Return the largest absolute entry, rounded up to an integer."""
        if self.zero_one:
            return 1
        return int(np.ceil(np.abs(self.dense()).max()))

    def growth(self) -> int:
        """Return how many times what is in X anything on the way to `matmat` may be at most."""
        return max(1, self.max_abs) * self.shape[1]

    def row_power_sums(self, M: Numbers, power: int) -> Numbers:
        """Return sum_c |(F M)_rc|^power for every row r. M: (n, k)."""
        return np.asarray(absolute_power(self.matmat(M), power).sum(axis=1))

    def quadratic(self, M: Floats) -> Floats:
        """Return diag(F M F') for a symmetric M: (n, n)."""
        return np.asarray(np.einsum("ij,ij->i", self.matmat(M), self.dense()))

    def row_powers(self, power: int) -> Floats:
        """Return sum_j F_ij^power for every row i; F^0 is all ones."""
        if power == 0:
            return np.full(self.shape[0], float(self.shape[1]))
        if self.zero_one:
            return self.row_sums.astype(np.float64)
        return np.asarray((self.dense().astype(np.float64) ** power).sum(axis=1))

    @cached_property
    def row_sums(self) -> Numbers:
        """F 1: (m,)."""
        return self.matvec(np.ones(self.shape[1], dtype=self.dtype))

    @cached_property
    def row_squares(self) -> Numbers:
        """Squared norms of the rows: (m,)."""
        return self.row_sums if self.zero_one else np.asarray((self.dense() ** 2).sum(axis=1))


def _key_of(value: object) -> Hashable:
    match value:
        case Factor(key=key):
            return key
        case tuple():
            return tuple(map(_key_of, value))
        case sp.csr_array():
            return value.indices.tobytes(), value.indptr.tobytes()
        case np.ndarray():
            return value.dtype.str, value.shape, value.tobytes()
        case _:
            return str(value)


def absolute_power(X: Numbers, power: int) -> Numbers:
    """Return |x|^power of every entry; even powers by multiplication, which is much faster."""
    if power % 2:
        return np.asarray(np.abs(X) ** power)
    squares = X * X
    out = squares if power == 2 else squares * squares
    for _ in range(power // 2 - 2):
        out *= squares
    return out


class Identity(Factor):
    """One query a code."""

    zero_one = True

    def __init__(self, n: int) -> None:
        self.shape = (n, n)

    def matmat(self, X: Numbers) -> Numbers:
        return X

    def rmatmat(self, Y: Numbers) -> Numbers:
        return Y

    def gram(self) -> Floats:
        return np.eye(self.shape[1])

    def weighted_gram(self, weights: Floats) -> Floats:
        return np.diag(weights)

    def column_norms(self, power: int) -> Ints:
        return np.ones(self.shape[1], dtype=np.int64)

    def quadratic(self, M: Floats) -> Floats:
        return np.diagonal(M).copy()


class IdentityRows(Factor):
    """One query for each of some codes; the others are in none."""

    held = ("codes",)

    zero_one = True

    def __init__(self, n: int, codes: Ints) -> None:
        self.codes = np.asarray(codes, dtype=np.int64)
        self.shape = (len(self.codes), n)
        if len(np.unique(self.codes)) < len(self.codes):
            raise ValueError("a code is selected twice")

    def matmat(self, X: Numbers) -> Numbers:
        return np.asarray(X[self.codes])

    def rmatmat(self, Y: Numbers) -> Numbers:
        out = np.zeros((self.shape[1], *Y.shape[1:]), dtype=Y.dtype)
        out[self.codes] = Y
        return out

    def gram(self) -> Floats:
        return np.diag(self.column_norms(2).astype(np.float64))

    def weighted_gram(self, weights: Floats) -> Floats:
        return np.diag(self.rmatmat(weights))

    def column_norms(self, power: int) -> Ints:
        return self.rmatmat(np.ones(self.shape[0], dtype=np.int64))

    def quadratic(self, M: Floats) -> Floats:
        return np.asarray(np.diagonal(M)[self.codes])


class Ones(Factor):
    """The total query, m times over; Ones(1, n) is Total."""

    zero_one = True

    def __init__(self, m: int, n: int) -> None:
        self.shape = (m, n)

    def matmat(self, X: Numbers) -> Numbers:
        return np.repeat(X.sum(axis=0, keepdims=True), self.shape[0], axis=0)

    def rmatmat(self, Y: Numbers) -> Numbers:
        return np.repeat(Y.sum(axis=0, keepdims=True), self.shape[1], axis=0)

    def gram(self) -> Floats:
        return np.full((self.shape[1], self.shape[1]), float(self.shape[0]))

    def column_norms(self, power: int) -> Ints:
        return np.full(self.shape[1], self.shape[0], dtype=np.int64)

    def quadratic(self, M: Floats) -> Floats:
        return np.full(self.shape[0], M.sum())


def total(n: int) -> Ones:
    """Return the total query over n codes."""
    return Ones(1, n)


class Centered(Factor):
    """n I - 11': every code against the mean of all, in integers; of rank n - 1."""

    def __init__(self, n: int) -> None:
        self.shape = (n, n)

    def matmat(self, X: Numbers) -> Numbers:
        return np.asarray(self.shape[1] * X - X.sum(axis=0, keepdims=True))

    def rmatmat(self, Y: Numbers) -> Numbers:
        return self.matmat(Y)

    def gram(self) -> Floats:
        return self.shape[1] * self.dense().astype(np.float64)

    def column_norms(self, power: int) -> Ints:
        n = self.shape[1]
        return np.full(n, (n - 1) ** power + n - 1, dtype=np.int64)

    def column_counts(self) -> Ints:
        return np.full(self.shape[1], self.shape[0] if self.shape[0] > 1 else 0)

    def growth(self) -> int:
        return 2 * self.shape[1]

    @cached_property
    def max_abs(self) -> int:
        return self.shape[0] - 1


class Dense(Factor):
    """A matrix held as an array; integer arrays stay exact."""

    held = ("matrix",)

    def __init__(self, matrix: Numbers) -> None:
        self.matrix = np.ascontiguousarray(matrix)
        self.matrix.setflags(write=False)
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype = self.matrix.dtype

    def matmat(self, X: Numbers) -> Numbers:
        return self.matrix @ X

    def rmatmat(self, Y: Numbers) -> Numbers:
        return self.matrix.T @ Y

    def dense(self) -> Numbers:
        return self.matrix

    def gram(self) -> Floats:
        A = self.matrix.astype(np.float64)
        return A.T @ A


class Stacked(Factor):
    """Several factors of one attribute, one below the other."""

    held = ("parts",)

    def __init__(self, parts: tuple[Factor, ...]) -> None:
        self.parts = parts
        self.zero_one = all(part.zero_one for part in parts)
        self.shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        self.dtype = np.result_type(*(part.dtype for part in parts))

    def matmat(self, X: Numbers) -> Numbers:
        return np.concatenate([part.matmat(X) for part in self.parts])

    def rmatmat(self, Y: Numbers) -> Numbers:
        ends = np.cumsum([part.shape[0] for part in self.parts])[:-1]
        pieces = np.split(Y, ends)
        return np.asarray(sum(p.rmatmat(y) for p, y in zip(self.parts, pieces, strict=True)))

    def gram(self) -> Numbers:
        return np.asarray(sum(part.gram() for part in self.parts))

    def column_norms(self, power: int) -> Numbers:
        return np.asarray(sum(part.column_norms(power) for part in self.parts))

    @cached_property
    def max_abs(self) -> int:
        return max(part.max_abs for part in self.parts)

    def row_powers(self, power: int) -> Floats:
        return np.concatenate([part.row_powers(power) for part in self.parts])

    def row_power_sums(self, M: Numbers, power: int) -> Numbers:
        return np.concatenate([part.row_power_sums(M, power) for part in self.parts])

    def quadratic(self, M: Floats) -> Floats:
        return np.concatenate([part.quadratic(M) for part in self.parts])

    @cached_property
    def row_squares(self) -> Numbers:
        return np.concatenate([part.row_squares for part in self.parts])


class Groups(Factor):
    """Listed groups of codes: a sparse 0/1 matrix, kept as CSR."""

    held = ("matrix",)

    def __init__(self, matrix: "sp.csr_array[np.int64, tuple[int, int]]") -> None:
        self.matrix = matrix
        self.shape = matrix.shape

    @classmethod
    def of(cls, groups: tuple[tuple[int, ...], ...], n: int) -> "Groups":
        """Build from the code lists of the groups."""
        sizes = [len(codes) for codes in groups]
        columns = np.array([code for codes in groups for code in codes], dtype=np.int64)
        ones = np.ones(len(columns), dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        return cls(sp.csr_array((ones, columns, starts), shape=(len(groups), n)))

    def matmat(self, X: Numbers) -> Numbers:
        return np.asarray(self.matrix @ X)

    def rmatmat(self, Y: Numbers) -> Numbers:
        return np.asarray(self.matrix.T @ Y)

    def gram(self) -> Floats:
        return self.gram_at(np.arange(self.shape[1]))

    def gram_at(self, codes: Ints) -> Floats:
        columns = self.matrix[:, codes]
        return np.asarray((columns.T @ columns).toarray(), dtype=np.float64)

    def column_norms(self, power: int) -> Ints:
        return np.asarray(self.matrix.sum(axis=0), dtype=np.int64)

    @cached_property
    def max_abs(self) -> int:
        return 1

    def column_counts(self) -> Ints:
        return self.column_norms(1)

    def row_powers(self, power: int) -> Floats:
        if power == 0:
            return super().row_powers(power)
        return self.row_sums.astype(np.float64)

    @cached_property
    def row_squares(self) -> Numbers:
        return self.row_sums


class Valued(Factor):
    """F diag(v): row i adds up the whole numbers v of the codes that meet predicate i."""

    held = ("inner", "values")

    def __init__(self, inner: Factor, values: Ints) -> None:
        """Take predicates F, every entry 0 or 1, and a value for each of their codes."""
        self.inner, self.values = inner, np.asarray(values)
        if self.values.shape != (inner.shape[1],) or self.values.dtype != np.int64:
            raise ValueError(f"{self.values.shape} values for {inner.shape[1]} codes")
        self.shape, self.dtype = inner.shape, inner.dtype

    def matmat(self, X: Numbers) -> Numbers:
        return self.inner.matmat(self.values[:, None] * X)

    def rmatmat(self, Y: Numbers) -> Numbers:
        return np.asarray(self.values[:, None] * self.inner.rmatmat(Y))

    def dense(self) -> Numbers:
        m, n = self.shape
        return self.rmatmat(np.eye(m, dtype=self.dtype)).T if m < n else super().dense()

    def gram(self) -> Numbers:
        return np.asarray(self.values[:, None] * self.inner.gram() * self.values)

    def weighted_gram(self, weights: Floats) -> Floats:
        return np.asarray(self.values[:, None] * self.inner.weighted_gram(weights) * self.values)

    def gram_matmat(self, X: Numbers) -> Numbers:
        return np.asarray(self.values[:, None] * self.inner.gram_matmat(self.values[:, None] * X))

    def column_norms(self, power: int) -> Numbers:
        """Return sum_i |F_ij|^power for every column: floats where whole numbers might not fit."""
        fits = self.max_abs**power * self.shape[0] < 1 << 63
        sizes = np.abs(self.values if fits else self.values.astype(np.float64))
        return np.asarray(sizes**power * self._met)

    def column_counts(self) -> Ints:
        return np.where(self.values != 0, self._met, 0)

    @cached_property
    def max_abs(self) -> int:
        return int(np.abs(self.values[self._met > 0]).max(initial=0))

    @cached_property
    def _met(self) -> Ints:
        """How many predicates every code meets: (n,)."""
        return np.asarray(self.inner.column_norms(1), dtype=np.int64)

    def row_power_sums(self, M: Numbers, power: int) -> Numbers:
        return self.inner.row_power_sums(self.values[:, None] * M, power)

    def quadratic(self, M: Floats) -> Floats:
        return self.inner.quadratic(self.values[:, None] * M * self.values)

    def row_powers(self, power: int) -> Floats:
        if power == 0:
            return super().row_powers(power)
        return self.inner.matvec(self.values.astype(np.float64) ** power)

    @cached_property
    def row_squares(self) -> Numbers:
        return self.row_powers(2)


def counts_records(factor: Factor) -> bool:
    """Return whether all entries are 0 or 1: whether every row counts what meets a predicate."""
    if factor.zero_one:
        return True
    whole = np.issubdtype(factor.dtype, np.integer) and factor.max_abs <= 1
    return whole and int(factor.column_norms(1).sum()) == int(factor.row_sums.sum())


class Weighted(Factor):
    """A factor whose rows are scaled by the roots of their weights."""

    held = ("factor", "weights")

    def __init__(self, factor: Factor, weights: Floats) -> None:
        self.factor, self.weights = factor, weights
        self.dtype = np.result_type(np.float64)
        self.shape = factor.shape
        self.roots = np.sqrt(weights)

    def matmat(self, X: Numbers) -> Numbers:
        return np.asarray(self.roots[:, None] * self.factor.matmat(X))

    def rmatmat(self, Y: Numbers) -> Numbers:
        return self.factor.rmatmat(self.roots[:, None] * Y)

    def gram(self) -> Floats:
        return self.factor.weighted_gram(self.weights)


def weighted(factor: Factor, weights: Floats) -> Factor:
    """Return diag(weights)^(1/2) F, with the parts of stacked factors weighted one by one."""
    if not isinstance(factor, Stacked):
        return Weighted(factor, weights)
    ends = np.cumsum([part.shape[0] for part in factor.parts])[:-1]
    pieces = np.split(weights, ends)
    return Stacked(tuple(weighted(p, w) for p, w in zip(factor.parts, pieces, strict=True)))


class Sent:
    """A value that is pickled without its cached properties, some of which are functions."""

    def __getstate__(self) -> dict[str, object]:
        """Return all attributes but the cached properties."""
        kind = type(self)
        return {
            name: value
            for name, value in vars(self).items()
            if not isinstance(getattr(kind, name, None), cached_property)
        }
