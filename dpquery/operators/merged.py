"""Factors over classes of codes that they do not tell apart: coarser ones, and back again."""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Floats, Ints, Numbers, numbered_by_first
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.factors import (
    Factor,
    Groups,
    Identity,
    IdentityRows,
    Ones,
    Stacked,
)
from dpquery.operators.ranges import Columns
from dpquery.public_chance import public_generator

PROBED_ROWS = 1 << 22  # of a factor: one with more is taken to tell all codes apart
_PROBES = 2  # random sums of rows by which columns are compared, of 64 bits each


class Spread(Factor):
    """A factor over classes, spread over their codes: column j is column classes[j] of `inner`."""

    def __init__(self, inner: Factor, classes: Ints) -> None:
        self.inner, self.classes = inner, np.asarray(classes, dtype=np.int64)
        n = len(self.classes)
        if n == 0 or self.classes.min() < 0 or self.classes.max() >= inner.shape[1]:
            raise ValueError("a code of no class")
        self.shape = (inner.shape[0], n)
        # Groups do not say that they are 0/1: the grids of earlier releases hang on it.
        self.zero_one = inner.zero_one or isinstance(inner, Groups)
        self.dtype = inner.dtype

    @cached_property
    def key(self) -> Hashable:
        return ("merged", self.inner.key, self.classes.tobytes())

    @cached_property
    def _members(self) -> "sp.csr_array[np.int64, tuple[int, int]]":
        """The 0/1 matrix of which code is in which class: (classes, n)."""
        n = len(self.classes)
        ones = np.ones(n, dtype=np.int64)
        return sp.csr_array((ones, (self.classes, np.arange(n))), shape=(self.inner.shape[1], n))

    def _summed(self, X: Numbers) -> Numbers:
        return np.asarray(self._members @ X)

    def matmat(self, X: Numbers) -> Numbers:
        return self.inner.matmat(self._summed(X))

    def rmatmat(self, Y: Numbers) -> Numbers:
        return np.asarray(self.inner.rmatmat(Y)[self.classes])

    def gram(self) -> Numbers:
        return np.asarray(self.inner.gram()[np.ix_(self.classes, self.classes)])

    def column_norms(self, power: int) -> Numbers:
        return np.asarray(self.inner.column_norms(power)[self.classes])

    def column_counts(self) -> Ints:
        return np.asarray(self.inner.column_counts()[self.classes])

    def max_abs(self) -> int:
        return self.inner.max_abs()

    def row_power_sums(self, M: Numbers, power: int) -> Numbers:
        return self.inner.row_power_sums(self._summed(M), power)

    def quadratic(self, M: Floats) -> Floats:
        return self.inner.quadratic(self._summed(self._summed(M).T))


def told_apart(factors: Sequence[Factor], n: int) -> Ints:
    """Return a class for each of n codes: codes of one class have equal columns in all factors.

    Classes are numbered by their first codes. Columns are compared by random sums of their rows,
    which differ but for a chance of 2^-128 a pair where columns do.
    """
    rng, columns = public_generator(0), []
    for factor in factors:
        if factor.shape[0] > PROBED_ROWS:
            return np.arange(n)
        probes = rng.integers(-(1 << 62), 1 << 62, size=(factor.shape[0], _PROBES))
        columns.append(factor.rmatmat(probes))
    if not columns:
        return np.zeros(n, dtype=np.int64)
    return numbered_by_first(np.concatenate(columns, axis=1))


def over_classes(factor: Factor, classes: Ints) -> Factor:
    """Return a factor over classes of codes that it does not tell apart."""
    _, first = np.unique(classes, return_index=True)
    k = len(first)
    if k == len(classes):
        return factor
    match factor:
        case Ones():
            return Ones(factor.shape[0], k)
        case IdentityRows():
            return IdentityRows(k, classes[factor.codes])
        case Groups():
            return _groups(factor.matrix[:, first])
        case Stacked():
            return Stacked(tuple(over_classes(part, classes) for part in factor.parts))
        case _:
            return Columns(factor, first)


def _groups(matrix: "sp.csr_array[np.int64, tuple[int, int]]") -> Factor:
    """Return groups of classes; where each is one class of its own, those classes."""
    m, k = matrix.shape
    sizes = np.diff(matrix.indptr)
    if np.all(sizes == 1) and len(np.unique(matrix.indices)) == m:
        codes = matrix.indices.astype(np.int64)
        return Identity(k) if np.array_equal(codes, np.arange(k)) else IdentityRows(k, codes)
    return Groups(matrix)


def block_over_classes(block: Block, classes: Sequence[Ints]) -> Block:
    """Return a block over classes of the codes of every attribute."""
    shape = tuple(int(codes.max()) + 1 for codes in classes)
    return _with_factors(block, shape, lambda i, factor: over_classes(factor, classes[i]))


def block_over_codes(block: Block, classes: Sequence[Ints]) -> Block:
    """Return the block over codes that asks the same as one over their classes."""
    shape = tuple(len(codes) for codes in classes)
    return _with_factors(block, shape, lambda i, factor: _over_codes(factor, classes[i]))


def _with_factors(
    block: Block, shape: tuple[int, ...], factor_of: Callable[[int, Factor], Factor]
) -> Block:
    """Return a block over another domain, its factors replaced by attribute."""
    pairs = zip(block.attributes, block.factors, strict=True)
    factors = tuple(factor_of(i, factor) for i, factor in pairs)
    return replace(block, shape_of_domain=shape, factors=factors)


def _over_codes(factor: Factor, classes: Ints) -> Factor:
    if isinstance(factor, Ones):
        return Ones(factor.shape[0], len(classes))
    if factor.shape[1] == len(classes) and not isinstance(factor, Groups):
        return factor
    return Spread(factor, classes)


def coarsest_classes(workload: Workload) -> tuple[Ints, ...]:
    """Return the classes of the codes of every attribute that no block tells apart."""
    factors: list[dict[Hashable, Factor]] = [{} for _ in workload.shape_of_domain]
    for block in workload.blocks:
        for i, factor in zip(block.attributes, block.factors, strict=True):
            factors[i][factor.key] = factor
    return tuple(
        told_apart(list(by_key.values()), n)
        for n, by_key in zip(workload.shape_of_domain, factors, strict=True)
    )


def workload_over_classes(workload: Workload, classes: Sequence[Ints]) -> Workload:
    """Return the workload over classes of codes that no block tells apart."""
    known: dict[tuple[int, Hashable], Factor] = {}
    shape = tuple(int(codes.max()) + 1 for codes in classes)

    def coarse(i: int, factor: Factor) -> Factor:
        key = (i, factor.key)
        if key not in known:
            known[key] = over_classes(factor, classes[i])
        return known[key]

    blocks = tuple(_with_factors(block, shape, coarse) for block in workload.blocks)
    return Workload(shape, blocks, workload.weights, workload.units)
