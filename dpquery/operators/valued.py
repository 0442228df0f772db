"""Predicates times a value of every code: the rows of sums."""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

from collections.abc import Hashable
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.factors import Factor


class Valued(Factor):
    """F diag(v): row i adds up the whole numbers v of the codes that meet predicate i."""

    def __init__(self, inner: Factor, values: Ints) -> None:
        """Take predicates F, every entry 0 or 1, and a value for each of their codes."""
        self.inner, self.values = inner, np.asarray(values)
        if self.values.shape != (inner.shape[1],) or self.values.dtype != np.int64:
            raise ValueError(f"{self.values.shape} values for {inner.shape[1]} codes")
        self.shape, self.dtype = inner.shape, inner.dtype

    @cached_property
    def key(self) -> Hashable:
        return ("valued", self.inner.key, self.values.tobytes())

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
        fits = self.max_abs() ** power * self.shape[0] < 1 << 63
        sizes = np.abs(self.values if fits else self.values.astype(np.float64))
        return np.asarray(sizes**power * self._met)

    def column_counts(self) -> Ints:
        return np.where(self.values != 0, self._met, 0)

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
    whole = np.issubdtype(factor.dtype, np.integer) and factor.max_abs() <= 1
    return whole and int(factor.column_norms(1).sum()) == int(factor.row_sums.sum())
