"""The error of relaxed rows where all queries of a workload were measured: by whole tables.

No query is held by itself: the answers of a block are matrix products of half-tables (see relaxed),
and so is the gradient, of the table of residuals with either half.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.operators.blocks import Workload
from dpquery.operators.factors import Array
from dpquery.reconstruction.rap.mirror_descent import FitTarget, Misfit
from dpquery.reconstruction.rap.partition import Partition
from dpquery.reconstruction.rap.relaxed_rows import (
    ROWS_AT_ONCE,
    Floats,
    at_least,
    half_table,
    halves,
)


@dataclass(frozen=True, eq=False)
class WholeTables:
    """How far relaxed rows are from the noisy answers of all queries of a workload.

    Attributes:
        workload: the blocks that were measured.
        noisy: for each the measured answers, as fractions of one.
        std: standard deviation of their noise.
    """

    workload: Workload
    noisy: tuple[Array, ...]
    std: float

    @property
    def target(self) -> FitTarget:
        """The answers with their noise, for the projection."""
        count = self.workload.shape[0]
        return FitTarget(self.misfit, count * self.std**2, count)

    @property
    def partition(self) -> Partition:
        """Every class by itself: all of them are told apart."""
        shape = self.workload.shape_of_domain
        return Partition(shape, np.arange(sum(shape)))

    def misfit(self, masses: Floats) -> Misfit:
        """Compare with the answers. masses: (sum of shape, n')."""
        total, worst, gradient = 0.0, 0.0, np.zeros_like(masses)
        spans = self.partition.spans
        for block, noisy in zip(self.workload.blocks, self.noisy, strict=True):
            if not block.attributes:
                continue
            own = [spans[i] for i in block.attributes]
            factors = list(zip(block.factors, own, strict=True))
            chances = [np.asarray(f.matmat(masses[s]), dtype=masses.dtype) for f, s in factors]
            answers = at_least(chances, block.counted, block.at_least)
            residuals = answers - noisy.reshape(block.row_shape)
            total += float(np.vdot(residuals, residuals))
            worst = max(worst, float(np.abs(residuals).max()) / self.std)
            slopes = at_least_slopes(chances, block.counted, block.at_least, 2 * residuals)
            for (factor, span), slope in zip(factors, slopes, strict=True):
                gradient[span] += factor.rmatmat(slope)
        return Misfit(total, worst, gradient)


def at_least_slopes(
    chances: Sequence[Floats],
    counted: Sequence[bool],
    r: int,
    table: Array,
    *,
    held: Sequence[bool] = (),
) -> list[Array]:
    """Return n' times the gradient of <table, at_least(chances, ...)> by the chances.

    Args:
        chances: for each axis (m_i, n') the probability of every predicate in every row.
        counted: which axes are counted.
        r: how many of these are to hold.
        table: (m_1, ..., m_k), of size 1 along the axes that are not held.
        held: the axes of the term to start from; by default all.

    Returns:
        For each axis (m_i, n'); zeros along the axes that are not held.
    """
    held = held or [True] * len(chances)
    t = sum(inside and own for inside, own in zip(held, counted, strict=True))
    coef = (-1) ** (t - r) * math.comb(t - 1, t - r) if t > r else 1
    inside = [i for i, own in enumerate(held) if own]
    slopes: list[Array] = [np.zeros_like(p) for p in chances]
    flat = table.reshape([len(chances[i]) for i in inside])
    if inside:
        for i, own in zip(inside, _slopes([chances[i] for i in inside], flat), strict=True):
            slopes[i] += coef * own
    missing = next((i for i, own in enumerate(held) if not own), len(held))
    for i in (i for i in range(missing if t > r else 0) if counted[i]):
        fewer = [own and j != i for j, own in enumerate(held)]
        summed = table.sum(axis=i, keepdims=True)
        for slope, own in zip(
            slopes, at_least_slopes(chances, counted, r, summed, held=fewer), strict=True
        ):
            slope += own
    return slopes


def _slopes(chances: Sequence[Floats], table: Array) -> list[Array]:
    """Return n' times the gradient of <table, mean_product(chances)> by the chances."""
    slopes: list[list[Array]] = [[] for _ in chances]
    for start in range(0, chances[0].shape[1], ROWS_AT_ONCE):
        some = [p[:, start : start + ROWS_AT_ONCE] for p in chances]
        left, right = halves(some)
        matrix = table.reshape(-1, math.prod(map(len, right)))
        by_half = [*_within(left, matrix @ half_table(right))]
        by_half += _within(right, matrix.T @ half_table(left))
        for own, slope in zip(slopes, by_half, strict=False):
            own.append(slope)
    return [np.concatenate(own, axis=1) for own in slopes]


def _within(chances: Sequence[Floats], table: Array) -> list[Array]:
    """Return the gradient of sum_rows <table, prod_i p_i> by each p_i. table: (prod m_i, n')."""
    slopes = []
    for i in range(len(chances)):
        own = table.reshape(*map(len, chances), -1)
        for j in reversed(range(len(chances))):
            if j != i:
                others = (1,) * (j) + (len(chances[j]),) + (1,) * (own.ndim - j - 2) + (-1,)
                own = (own * chances[j].reshape(others)).sum(axis=j)
        slopes.append(own)
    return slopes
