"""The error of relaxed rows where all queries of some blocks were measured: by whole tables.

No query is stored by itself: the answers of a block are matrix products of half-tables (see
relaxed_rows), and so is the gradient, of the table of residuals with either half.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpquery.arrays import Singles
from dpquery.operators.blocks import Workload
from dpquery.reconstruction.rap.mirror_descent import FitTarget, Misfit
from dpquery.reconstruction.rap.partition import Partition
from dpquery.reconstruction.rap.relaxed_rows import (
    ROWS_AT_ONCE,
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
        std: for each the standard deviation of their noise.
    """

    workload: Workload
    noisy: tuple[Singles, ...]
    std: tuple[float, ...]

    @property
    def target(self) -> FitTarget:
        """The answers with their noise, for the projection.

        Errors are weighed against those of the most precise block: the noise of every answer then
        adds as much to their sum.
        """
        count = self.workload.shape[0]
        return FitTarget(self.misfit, count * min(self.std) ** 2, count)

    @cached_property
    def partition(self) -> Partition:
        """Every class in a group by itself: the queries distinguish all of them."""
        shape = self.workload.shape_of_domain
        return Partition(shape, np.arange(sum(shape)))

    def misfit(self, masses: Singles) -> Misfit:
        """Compare with the answers. masses: (sum of shape, n')."""
        gradient = np.zeros_like(masses)
        total, worst = self.add_blocks(range(len(self.std)), masses, gradient)
        return Misfit(total, worst, gradient)

    def add_blocks(
        self, places: Iterable[int], masses: Singles, gradient: Singles
    ) -> tuple[float, float]:
        """Add the gradient of some blocks' errors, and return their sum and the worst error."""
        total, worst = 0.0, 0.0
        spans, least = self.partition.spans, min(self.std)
        for place in places:
            block, noisy, std = self.workload.blocks[place], self.noisy[place], self.std[place]
            if not block.attributes:
                continue
            spans_of_block = [spans[i] for i in block.attributes]
            factors = list(zip(block.factors, spans_of_block, strict=True))
            probabilities = [
                np.asarray(f.matmat(masses[s]), dtype=masses.dtype) for f, s in factors
            ]
            answers = at_least(probabilities, block.counted, block.at_least)
            residuals = answers - noisy.reshape(block.row_shape)
            weight = (least / std) ** 2
            total += weight * float(np.vdot(residuals, residuals))
            worst = max(worst, float(np.abs(residuals).max()) / std)
            slope_of_error = 2 * weight * residuals
            slopes = at_least_slopes(probabilities, block.counted, block.at_least, slope_of_error)
            for (factor, span), slope in zip(factors, slopes, strict=True):
                gradient[span] += factor.rmatmat(slope)
        return total, worst


def at_least_slopes(
    probabilities: Sequence[Singles],
    counted: Sequence[bool],
    r: int,
    table: Singles,
    *,
    in_term: Sequence[bool] = (),
) -> list[Singles]:
    """Return n' times the gradient of <table, at_least(probabilities, ...)> by the probabilities.

    Args:
        probabilities: for each axis (m_i, n') the probability of every predicate in every row.
        counted: which axes are counted.
        r: how many of these are to hold.
        table: (m_1, ..., m_k), of size 1 along the axes that are not in the term.
        in_term: for each axis whether its predicates are in the term to start from; by default all.

    Returns:
        For each axis (m_i, n'); zeros for the axes that are not in the term.
    """
    in_term = in_term or [True] * len(probabilities)
    t = sum(among and also for among, also in zip(in_term, counted, strict=True))
    coef = (-1) ** (t - r) * math.comb(t - 1, t - r) if t > r else 1
    inside = [i for i, among in enumerate(in_term) if among]
    slopes: list[Singles] = [np.zeros_like(p) for p in probabilities]
    flat = table.reshape([len(probabilities[i]) for i in inside])
    if inside:
        of_term = _slopes([probabilities[i] for i in inside], flat)
        for i, slope in zip(inside, of_term, strict=True):
            slopes[i] += coef * slope
    missing = next((i for i, among in enumerate(in_term) if not among), len(in_term))
    for i in (i for i in range(missing if t > r else 0) if counted[i]):
        fewer = [among and j != i for j, among in enumerate(in_term)]
        summed = table.sum(axis=i, keepdims=True)
        of_fewer = at_least_slopes(probabilities, counted, r, summed, in_term=fewer)
        for slope, term in zip(slopes, of_fewer, strict=True):
            slope += term
    return slopes


def _slopes(probabilities: Sequence[Singles], table: Singles) -> list[Singles]:
    """Return n' times the gradient of <table, mean_product(probabilities)> by the probabilities."""
    slopes: list[list[Singles]] = [[] for _ in probabilities]
    for start in range(0, probabilities[0].shape[1], ROWS_AT_ONCE):
        left, right = halves([p[:, start : start + ROWS_AT_ONCE] for p in probabilities])
        matrix = table.reshape(-1, math.prod(map(len, right)))
        by_half = [*_within(left, matrix @ half_table(right))]
        by_half += _within(right, matrix.T @ half_table(left))
        for slopes_of_axis, slope in zip(slopes, by_half, strict=False):
            slopes_of_axis.append(slope)
    return [np.concatenate(slopes_of_axis, axis=1) for slopes_of_axis in slopes]


def _within(probabilities: Sequence[Singles], table: Singles) -> list[Singles]:
    """Return the gradient of sum_rows <table, prod_i p_i> by each p_i. table: (prod m_i, n')."""
    slopes = []
    for i in range(len(probabilities)):
        slope = table.reshape(*map(len, probabilities), -1)
        for j in reversed(range(len(probabilities))):
            if j != i:
                along_j = (1,) * j + (len(probabilities[j]),) + (1,) * (slope.ndim - j - 2) + (-1,)
                slope = (slope * probabilities[j].reshape(along_j)).sum(axis=j)
        slopes.append(slope)
    return slopes
