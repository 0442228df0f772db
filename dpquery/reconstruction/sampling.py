"""The error of a sample beside that of its noise, from private sums of squared weights.

A sum of weights over those records of a population that were drawn has the variance
sum of (1 - p) w^2 over the drawn ones, in expectation, where each record was drawn by itself with
chance p and w = 1 / p (Poisson sampling); without (1 - p), which weights of mean 1 do not tell, it
is a little more. So the sum of the squares of what the records add estimates it, and times the
declared design effect it is what clusters and strata make of it.

These sums are measured over the same tables as the weights, with noise of their own. Whether one is
told is not for itself to decide, since the few that noise makes large would be told, and be too
large: it is expected to be to its answer as all of the table are to theirs, and told where that is
LEAST times its standard error. Where it is below 0, or more than weights up to the cap can have for
a sum within its interval, nothing is said either.
"""

from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from scipy.special import ndtri

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Valued
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import Measured, TableAnswers
from dpquery.strategy.algebra.query_powers import QueryPairs, QueryRows

LEAST = 2.0  # standard errors that a sum of squares is expected to have where it is used


Held = TypeVar("Held")


class SamplingColumns(NamedTuple, Generic[Held]):
    """Something of each column of the errors of sample and noise."""

    sampling_std: Held
    total_std: Held
    total_low: Held
    total_high: Held


@dataclass(frozen=True, eq=False)
class SamplingErrors:
    """The estimated sums of squared weights of all tables, and what they say of a sample."""

    squares: Measured  # the sums, with noise
    design_effect: float  # how many times the variance of Poisson sampling there is
    level: float  # of the intervals
    at_most: float  # the cap of weights

    def variances(self, block: Block, position: int | None, answers: Floats) -> Floats:
        """Return the variance of each answer of a block that the sample makes, (m,)."""
        squared = _of_squared_values(block)
        position = position if squared is block else None
        if not self._supports(squared, position):
            return np.full(block.queries, np.nan)
        strategy, std = self.squares.strategy, self.squares.noise_std
        noise = standard_errors(strategy, squared, position=position, noise_std=std)
        return self._known(self._estimates(squared, position), noise, answers)

    def quotient_variances(
        self,
        above: tuple[Block, int | None],
        below: tuple[Block, int | None],
        of_rows: Ints,
        quotients: Floats,
        denominators: Floats,
    ) -> Floats:
        """Return the variance of each quotient that the sample makes, (m,).

        A record that adds y to the one and x to the other answer adds w (y - R x) to the first less
        R times the second, R being the quotient: the sum of squares of these over the square of the
        denominator (Taylor linearisation). Where x is 1 of all with y, that takes the sums of
        w^2 y^2, w^2 y and w^2 x; elsewhere nothing is said.

        The answers above and below are a block with its position in the plan's workload; quotients
        and denominators are (m,), and `of_rows` is which answer below each is over.
        """
        if not _holds(below[0], above[0]):
            return np.full(above[0].queries, np.nan)
        squared, every = _of_squared_values(above[0]), np.arange(above[0].queries)
        counts = squared is above[0]  # whose y is its own square
        rows = [QueryRows(above[0], every, above[1]), QueryRows(below[0], of_rows, below[1])]
        times = [counts - 2 * quotients, quotients**2]
        if not counts:
            rows, times = [*rows, QueryRows(squared, every, None)], [*times, np.ones(len(every))]
        if not all(self._supports(one.block, one.position) for one in rows):
            return np.full(len(every), np.nan)
        sums = [self._estimates(one.block, one.position)[one.places] for one in rows]
        parts = np.array([*map(np.multiply, sums, times)])
        total = parts.sum(axis=0)
        certain = np.abs(total) <= 1e-9 * np.abs(parts).sum(axis=0)  # of a row over itself
        spread = sum(
            first * second * self.squares.covariances(QueryPairs(one, other))
            for one, first in zip(rows, times, strict=True)
            for other, second in zip(rows, times, strict=True)
        )
        noise = np.sqrt(np.maximum(spread, 0.0))
        sizes = denominators * (quotients * (1 - quotients) if counts else 1.0)
        return np.where(certain, 0.0, self._known(total, noise, sizes) / denominators**2)

    def _supports(self, block: Block, position: int | None) -> bool:
        return position is not None or self.squares.strategy.supports(block)

    def _estimates(self, block: Block, position: int | None) -> Floats:
        return self.squares.estimates.answer(block, position).ravel()

    def _known(self, sums: Floats, noise: Floats, sizes: Floats) -> Floats:
        """Return the variances that sums of squares make, given what they are to go with."""
        there = np.isfinite(sizes)
        whole, squares = float(sizes[there].sum()), max(float(sums[there].sum()), 0.0)
        # where noise makes less than nothing of all sizes, none is expected
        expected = sizes * (squares / whole if whole > 0 else 0.0)
        told = (expected >= LEAST * noise) & (sums > 0)
        return np.where(told, self.design_effect * sums, np.nan)

    def columns(
        self, answers: TableAnswers, block: Block, position: int | None
    ) -> SamplingColumns[Floats]:
        """Return the columns beside the answers of a block, (m,) each; nan where noise hides it."""
        if answers.std_error is None or answers.half_width is None:
            raise ValueError("answers without standard errors have no intervals")
        variances = self.variances(block, position, answers.estimate)
        if answers.stated is not None:  # what public facts state is no estimate from a sample
            variances = np.where(answers.stated > 0, np.nan, variances)
        ends = (answers.estimate - answers.half_width, answers.estimate + answers.half_width)
        if _of_squared_values(block) is block:  # squares add up to the cap times the sum at most
            most = self.design_effect * self.at_most * ends[1]
            variances = np.where(variances > most, np.nan, variances)
        return self.together(variances, answers.estimate, answers.std_error, ends)

    def together(
        self, variances: Floats, estimate: Floats, std_error: Floats, ends: tuple[Floats, Floats]
    ) -> SamplingColumns[Floats]:
        """Return the columns of estimates, given what the sample varies and noise intervals.

        An end is as far off as the noise's and the sample's are as sides of a right angle.
        """
        sampling, (low, high) = np.sqrt(variances), ends
        beyond = float(ndtri((1 + self.level) / 2)) * sampling
        return SamplingColumns(
            sampling,
            np.hypot(std_error, sampling),
            estimate - np.hypot(estimate - low, beyond),
            estimate + np.hypot(high - estimate, beyond),
        )


def _holds(below: Block, above: Block) -> bool:
    """Return whether a record that adds anything to an answer above counts in the one below it.

    The axes below are among those above, so that this is for conditions to decide.
    """
    factors = dict(zip(above.attributes, above.factors, strict=True))
    if not (below.is_product and above.is_product):
        return False
    for i, factor in zip(below.attributes, below.factors, strict=True):
        if i in factors and factor.key == factors[i].key:
            continue
        outside = np.flatnonzero(factor.column_counts() == 0)
        met = factors[i].column_counts() if i in factors else np.ones(factor.shape[1])
        if factor.shape[0] > 1 or met[outside].any():
            return False
    return True


def _of_squared_values(block: Block) -> Block:
    """Return the block that adds up the squares of what a block adds up; itself for counts."""
    if not any(isinstance(factor, Valued) for factor in block.factors):
        return block
    factors = (
        Valued(factor.inner, factor.values**2) if isinstance(factor, Valued) else factor
        for factor in block.factors
    )
    return replace(block, factors=tuple(factors))
