"""Splits: the level and the remainder of every query on one measured attribute.

A count vector x of n classes is the spread z 1'x of its total, 1'z = 1, and what is left of it. A
query q has the level q z on the total, and its remainder has variance q H q' with H 1 = 0. In
marginals of factors A ([MATH] 7) that is, with g = (A'A)^-1 1 and mu = 1'g,
    z = g / mu,  H = ((A'A)^-1 - g g' / mu) / mu,
which for the cells themselves (A = I, mu = n) is z = 1/n, H = (I - 11'/n) / n.
"""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.factors import ROW_CHUNK, Factor, Identity
from dpquery.operators.inverses import inverse_array, inverse_gram, least_squares
from dpquery.operators.valued import counts_records

REFINED = 2  # steps in which (A'A)^-1 1 is refined


class Split(Protocol):
    """Level and remainder of the queries on one attribute."""

    def levels(self, queries: Factor) -> Floats:
        """Return q z of every query: (m,)."""

    def variances(self, queries: Factor) -> Floats:
        """Return q H q' of every query: (m,)."""

    def spread(self, totals: Floats) -> Floats:
        """Return z times a row of totals: (1, k) -> (n, k), or one row where all n are equal."""

    def remainder_times(self, X: Floats) -> Floats:
        """Return H X. X: (n, k)."""


class UniformSplit:
    """z = 1/n and H = (I - 11'/n) times a scale: where all classes are treated alike."""

    def __init__(self, n: int, scale: float) -> None:
        self.n, self.scale = n, scale

    def levels(self, queries: Factor) -> Floats:
        return np.asarray(queries.row_sums / self.n)

    def variances(self, queries: Factor) -> Floats:
        return np.asarray((queries.row_squares - queries.row_sums**2 / self.n) * self.scale)

    def spread(self, totals: Floats) -> Floats:
        return totals / self.n

    def remainder_times(self, X: Floats) -> Floats:
        return np.asarray((X - X.mean(axis=0, keepdims=True)) * self.scale)


class DenseSplit(ABC):
    """z and H as arrays."""

    @property
    @abstractmethod
    def z(self) -> Floats:
        """Spread of the total, 1'z = 1: (n,)."""

    @property
    @abstractmethod
    def remainder(self) -> Floats:
        """H: (n, n)."""

    def levels(self, queries: Factor) -> Floats:
        return queries.matvec(self.z)

    def variances(self, queries: Factor) -> Floats:
        """A predicate that always holds is its level: rounding may leave it no remainder."""
        always = queries.row_sums == queries.shape[1] if queries.zero_one else False
        return np.where(always, 0.0, np.maximum(queries.quadratic(self.remainder), 0.0))

    def spread(self, totals: Floats) -> Floats:
        return np.outer(self.z, totals[0])

    def remainder_times(self, X: Floats) -> Floats:
        return np.asarray(self.remainder @ X)


@dataclass(frozen=True, eq=False)
class Patterns:
    """Coefficients of distinct queries on the distinct rows of a measured factor A.

    Attributes:
        kinds: which distinct query each row of the queries is: (m,).
        levels: q z of every distinct query: (k,).
        remainders: A H q of every distinct query on every distinct row: (k, r).
        reading: A z on the same rows: (r,).
        numbers: how many rows of A each of them stands for: (k, r), or (1, r) for all queries.
    """

    kinds: Ints
    levels: Floats
    remainders: Floats
    reading: Floats
    numbers: Floats


class FactorSplit(Split, Protocol):
    """The split by a factor A that is measured in marginals.

    Attributes:
        factor: A, of full column rank.
        mu: 1'(A'A)^-1 1.
        reading: A z, which reads the total off the factor's answers: (rows,).
    """

    factor: Factor
    mu: float
    reading: Floats

    def recover(self, answers: Floats) -> Floats:
        """Return H A' times the factor's answers. answers: (rows, k) -> (n, k)."""

    def moments(self, queries: Factor, order: int) -> Floats:
        """Return sum_r (A H q)_r^c (A z q z)_r^(order - c), c = 0..order: (order + 1, m)."""

    def patterns(self, queries: Factor) -> "Patterns":
        """Return A H q and A z for distinct queries, equal rows as one with their number."""


class CellSplit(UniformSplit):
    """Every class counted: A = I."""

    def __init__(self, n: int) -> None:
        super().__init__(n, 1 / n)
        self.factor: Factor = Identity(n)
        self.mu, self.reading = float(n), np.full(n, 1 / n)

    def recover(self, answers: Floats) -> Floats:
        return np.asarray((answers - answers.mean(axis=0, keepdims=True)) / self.n)

    def moments(self, queries: Factor, order: int) -> Floats:
        """The same, in closed form for queries that are 0 or 1."""
        if not counts_records(queries):
            return self._moments_of_any(queries, order)
        s, n = queries.row_sums.astype(np.float64), self.n
        mean = s / n
        sums = [
            (s * (1 - mean) ** c + (n - s) * (-mean) ** c) * mean ** (order - c)
            for c in range(order + 1)
        ]
        return np.array(sums) / float(n) ** order

    def patterns(self, queries: Factor) -> "Patterns":
        """Counts of one size are one kind; a class is in such a query or it is not."""
        if not counts_records(queries):
            levels = self.levels(queries)
            remainders = (queries.dense() - levels[:, None]) / self.n
            return _each_a_pattern(levels, remainders, self.reading)
        sizes, kinds = np.unique(queries.row_sums, return_inverse=True)
        means = sizes / self.n
        return Patterns(
            kinds=kinds.ravel(),
            levels=means,
            remainders=np.stack([1 - means, -means], axis=1) / self.n,
            reading=np.full(2, 1 / self.n),
            numbers=np.stack([sizes, self.n - sizes], axis=1).astype(np.float64),
        )

    def _moments_of_any(self, queries: Factor, order: int) -> Floats:
        """Return the moments of queries with any entries, some rows or columns at a time."""
        levels, (m, n) = self.levels(queries), queries.shape
        total, step = np.zeros((order + 1, m)), max(1, ROW_CHUNK // max(m, n))
        for start in range(0, min(m, n), step):
            width = min(step, min(m, n) - start)
            if m <= n:
                rows = slice(start, start + width)
                entries = queries.rmatmat(np.eye(m, width, -start)).T
            else:
                rows = slice(0, m)
                entries = queries.matmat(np.eye(n, width, -start))
            centred = entries - levels[rows, None]
            for c in range(order + 1):
                total[c, rows] += (centred**c).sum(axis=1)
        return total * levels ** np.arange(order, -1, -1)[:, None] / float(n) ** order


class DenseFactorSplit(DenseSplit):
    """An optimised factor: an integer matrix of full column rank."""

    def __init__(self, factor: Factor) -> None:
        self.factor, self._inverse = factor, inverse_array(inverse_gram(factor))
        ones = np.ones(factor.shape[1])
        g = self._inverse.sum(axis=0)
        for _ in range(REFINED):  # rows of the inverse nearly cancel where A hardly sees some codes
            g = g + self._inverse @ (ones - factor.rmatvec(factor.matvec(g)))
        self.mu = float(g.sum())
        self._z: Floats = g / self.mu
        self.reading = factor.matvec(self.z)

    @property
    def z(self) -> Floats:
        return self._z

    @cached_property
    def remainder(self) -> Floats:
        return np.asarray(self._inverse / self.mu - np.outer(self.z, self.z))

    @cached_property
    def _recovery(self) -> Floats:
        """H A': (n, rows)."""
        return np.asarray(self.factor.matmat(self.remainder).T)

    def recover(self, answers: Floats) -> Floats:
        counts = self._solver(answers)
        return np.asarray((counts - np.outer(self.z, counts.sum(axis=0))) / self.mu)

    @cached_property
    def _solver(self) -> Callable[[Floats], Floats]:
        return least_squares(self.factor)

    def moments(self, queries: Factor, order: int) -> Floats:
        m, rows = queries.shape[0], self.factor.shape[0]
        total, step = np.zeros((order + 1, m)), max(1, ROW_CHUNK // max(m, 1))
        for start in range(0, rows, step):
            remainders = queries.matmat(self._recovery[:, start : start + step])
            reading = self.reading[start : start + step]
            power = np.ones_like(remainders)
            for c in range(order + 1):
                total[c] += power @ reading ** (order - c)
                power *= remainders
        return total * self.levels(queries) ** np.arange(order, -1, -1)[:, None]

    def patterns(self, queries: Factor) -> "Patterns":
        remainders = queries.matmat(self._recovery)
        return _each_a_pattern(self.levels(queries), remainders, self.reading)


def _each_a_pattern(levels: Floats, remainders: Floats, reading: Floats) -> Patterns:
    """Return every query as a pattern of its own, over every row of the measured factor."""
    return Patterns(
        kinds=np.arange(len(remainders)),
        levels=levels,
        remainders=remainders,
        reading=reading,
        numbers=np.ones((1, len(reading))),
    )


def split_by(factor: Factor) -> FactorSplit:
    """Return the split of a factor of full column rank."""
    if isinstance(factor, Identity):
        return CellSplit(factor.shape[1])
    return DenseFactorSplit(factor)
