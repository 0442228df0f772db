"""Cores: the rows measured of one attribute beside its total.

A core F has n - 1 independent rows (or more of that rank) and one null vector z, scaled to
1'z = 1. With Q = I - z 1', R = Q F^+ and H = R R' a count vector is x = z 1'x + R F x, so a query q
is answered by its level q z on the total and by q R on F x, with variance q H q' under unit noise
([MATH] 6). Nothing is measured twice: the total says nothing of F x, nor F x of the total.
"""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

import math
import operator
from functools import cached_property
from typing import Protocol

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.factors import Centered, Dense, Factor
from dpquery.operators.gram import Matrix, total_sum, trace, trace_with
from dpquery.strategy.shapes.splits import DenseSplit, Split, UniformSplit


class Core(Split, Protocol):
    """The measured rows of one attribute, their variances and their recovery."""

    factor: Factor

    def power_sums(self, queries: Factor, order: int) -> Floats:
        """Return the sum of even powers of q R of every query: (m,)."""

    def traces(self, V: Matrix) -> tuple[float, float]:
        """Return (z'Vz, tr(H V)) for the Gram V of a workload's matrix."""

    def recover(self, answers: Floats) -> Floats:
        """Return R times the core's answers. answers: (rows, k) -> (n, k)."""


class CenteredCore(UniformSplit):
    """n I - 11': optimal where the workload treats all codes alike ([MATH] 4)."""

    def __init__(self, n: int) -> None:
        super().__init__(n, 1 / n**2)
        self.factor: Factor = Centered(n)

    def power_sums(self, queries: Factor, order: int) -> Floats:
        mean = queries.row_sums / self.n
        sums = [
            math.comb(order, k) * (-mean) ** k * queries.row_powers(order - k)
            for k in range(order + 1)
        ]
        return np.asarray(np.maximum(np.sum(sums, axis=0), 0.0) / float(self.n) ** order)

    def traces(self, V: Matrix) -> tuple[float, float]:
        level = total_sum(V) / self.n**2
        return level, (trace(V) - self.n * level) / self.n**2

    def recover(self, answers: Floats) -> Floats:
        return np.asarray((answers - answers.mean(axis=0, keepdims=True)) / self.n)


class DenseCore(DenseSplit):
    """An optimised core: an integer matrix of n - 1 rows and full row rank."""

    def __init__(self, matrix: Ints) -> None:
        if matrix.shape[0] != matrix.shape[1] - 1:
            raise ValueError(f"a core of {matrix.shape[1]} classes has {matrix.shape[0]} rows")
        self.factor: Factor = Dense(matrix)

    def is_null(self, spread: Ints) -> bool:
        """Return whether a vector of integers is the null vector: exactly, in whole numbers."""
        if len(spread) != self.factor.shape[1]:
            return False
        rows, entries = self.factor.dense().tolist(), spread.tolist()
        return all(sum(map(operator.mul, row, entries)) == 0 for row in rows)

    @cached_property
    def _parts(self) -> tuple[Floats, Floats]:
        """(z, R); ValueError where the rows are not independent."""
        F = self.factor.dense().astype(np.float64)
        U, s, Vt = np.linalg.svd(F / np.abs(F).max(), full_matrices=True)
        z, plus = Vt[-1], (Vt[:-1].T / s) @ U.T / np.abs(F).max()
        if s[-1] < 1e-8 * s[0] or abs(z.sum()) < 1e-8:
            raise ValueError("the rows of a core must be independent, of the total too")
        z = z / z.sum()
        return z, plus - np.outer(z, plus.sum(axis=0))

    @cached_property
    def z(self) -> Floats:
        return self._parts[0]

    @cached_property
    def remainder(self) -> Floats:
        R = self._parts[1]
        return np.asarray(R @ R.T)

    def power_sums(self, queries: Factor, order: int) -> Floats:
        return queries.row_power_sums(self._parts[1], order)

    def traces(self, V: Matrix) -> tuple[float, float]:
        return trace_with(np.outer(self.z, self.z), V), trace_with(self.remainder, V)

    def recover(self, answers: Floats) -> Floats:
        return np.asarray(self._parts[1] @ answers)
