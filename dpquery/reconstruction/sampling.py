"""The error of a sample beside that of its noise, from private sums of squared weights.

Records of a population that were drawn each by itself, with chances of one over their weights w
(Poisson sampling), give a sum of w y the variance that the sum of w (w - 1) y^2 over those drawn
estimates without bias ([SSW92], 3.5). Weights that are no inverse chances, but scaled, say nothing
of how many were not drawn: of them it is the sum of w^2 y^2. Times the declared design effect it is
what clusters and strata make of it.

Sums of squares are measured over the same tables as the weights, with noise of their own. Whether
one is told is not for that noise to decide, since those that it makes large would be told, and be
too large: what is expected of a sum of squares is the same sum of weights, times the ratio of both
that public numbers say, and it is told where that is LEAST times its standard error. Below 0
nothing is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Valued
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import Measured, TableAnswers
from dpquery.strategy.algebra.query_powers import QueryPairs, QueryRows

LEAST = 3.0  # standard errors that a sum of squares is expected to have where it is used
SQUARES_NOT_MEASURED = (
    "squares of what it adds up are not measured; ask for a table by that column as well"
)
HIDDEN_BY_NOISE = "noise may hide the sums of squared weights that it takes"


class SamplingColumns(NamedTuple):
    """The errors of the sample, and of sample and noise together, (m,) each."""

    sampling_std: Floats
    total_std: Floats
    total_low: Floats
    total_high: Floats


@dataclass(frozen=True, eq=False)
class SamplingErrors:
    """The estimated sums of squared weights of all tables, and what they say of a sample."""

    weights: Measured  # the sums of weights, with noise
    squares: Measured  # those of their squares, or of w (w - 1)
    ratio: float  # of these to the weights, as public numbers have it
    design_effect: float  # how many times the variance of Poisson sampling there is
    level: float  # of the intervals

    def variances(self, block: Block, position: int | None) -> Floats:
        """Return the variance of each answer of a block that the sample makes, (m,)."""
        squared = of_squared_values(block)
        position = position if squared is block else None
        if not self._supports(squared, position):
            return np.full(block.queries, np.nan)
        strategy, std = self.squares.strategy, self.squares.noise_std
        noise = standard_errors(strategy, squared, position=position, noise_std=std)
        return self.known(self.sums(squared, position), noise)

    def quotient_variances(
        self,
        above: tuple[Block, int | None],
        below: tuple[Block, int | None],
        of_rows: Ints,
        quotients: Floats,
    ) -> Floats:
        """Return the variance that the sample makes of each answer above less R times one below.

        That of a quotient R is this over the square of its denominator (Taylor linearisation). A
        record that adds y to the one and x to the other adds w (y - R x) to both. Where x is 1 of
        all with y, that takes sums of w^2 y^2, w^2 y and w^2 x; elsewhere nothing is said.

        The answers above and below are a block with its position in the plan's workload; quotients
        are (m,), and `of_rows` is which answer below each is over.
        """
        if not _holds(below[0], above[0]):
            return np.full(above[0].queries, np.nan)
        squared, every = of_squared_values(above[0]), np.arange(above[0].queries)
        counts = squared is above[0]  # whose y is its own square
        rows = [QueryRows(above[0], every, above[1]), QueryRows(below[0], of_rows, below[1])]
        times = [counts - 2 * quotients, quotients**2]
        if not counts:
            rows, times = [*rows, QueryRows(squared, every, None)], [*times, np.ones(len(every))]
        return self._combined(rows, times)

    def difference_variances(
        self, first: tuple[Block, int | None], second: tuple[Block, int | None]
    ) -> Floats:
        """Return the variance that the sample makes of answers of a block less those of another.

        No record is in both; elsewhere nothing is said.
        """
        if _overlap(first[0], second[0]):
            return np.full(first[0].queries, np.nan)
        every, rows = np.arange(first[0].queries), list[QueryRows]()
        for block, position in (first, second):
            squared = of_squared_values(block)
            rows.append(QueryRows(squared, every, position if squared is block else None))
        return self._combined(rows, [np.ones(len(every))] * 2)

    def _combined(self, rows: Sequence[QueryRows], times: Sequence[Floats]) -> Floats:
        """Return the variances that sums of squares make together, each taken so many times."""
        if not all(self._supports(one.block, one.position) for one in rows):
            return np.full(len(times[0]), np.nan)
        parts = np.array(
            [
                each * self.sums(one.block, one.position)[:, one.places]
                for one, each in zip(rows, times, strict=True)
            ]
        )
        total = parts.sum(axis=0)
        certain = np.abs(total) <= 1e-9 * np.abs(parts).sum(axis=0)  # of a row over itself
        spread = sum(
            first * second * self.squares.covariances(QueryPairs(one, other))
            for one, first in zip(rows, times, strict=True)
            for other, second in zip(rows, times, strict=True)
        )
        known = self.known(total, np.sqrt(np.maximum(spread, 0.0)))
        return np.where(certain[0], 0.0, known)

    def missing(self, block: Block, position: int | None) -> str:
        """Return why nothing is known of the sample in any answer of a block, if that is so."""
        squared = of_squared_values(block)
        if not self._supports(squared, position if squared is block else None):
            return SQUARES_NOT_MEASURED
        return HIDDEN_BY_NOISE if np.isnan(self.variances(block, position)).all() else ""

    def _supports(self, block: Block, position: int | None) -> bool:
        return position is not None or self.squares.strategy.supports(block)

    def sums(self, block: Block, position: int | None) -> Floats:
        """Return what is estimated of the squares, and of the weights, of a block: (2, m)."""
        both = (self.squares, self.weights)
        return np.array([each.estimates.answer(block, position).ravel() for each in both])

    def known(self, sums: Floats, noise: Floats) -> Floats:
        """Return the variances that sums make; nan where noise may hide them.

        Sums are (2, m), of squares and of weights; noise is the standard error of the first, (m,).
        """
        squares, weights = sums
        told = (self.ratio * weights >= LEAST * noise) & (squares > 0)
        return np.where(told, self.design_effect * squares, np.nan)

    def columns(self, answers: TableAnswers, block: Block, position: int | None) -> SamplingColumns:
        """Return the columns beside the answers of a block, (m,) each; nan where noise hides it."""
        if answers.std_error is None or answers.half_width is None:
            raise ValueError("answers without standard errors have no intervals")
        variances = self.variances(block, position)
        if answers.stated is not None:  # what public facts state is no estimate from a sample
            variances = np.where(answers.stated > 0, np.nan, variances)
        ends = (answers.estimate - answers.half_width, answers.estimate + answers.half_width)
        return self.together(variances, answers.estimate, answers.std_error, ends)

    def together(
        self, variances: Floats, estimate: Floats, std_error: Floats, ends: tuple[Floats, Floats]
    ) -> SamplingColumns:
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


def _overlap(first: Block, second: Block) -> bool:
    """Return whether a record may count in one row of both; thresholds are taken to."""
    factors = dict(zip(second.attributes, second.factors, strict=True))
    both = first.is_product and second.is_product
    return not both or all(
        (factor.column_counts() * factors[i].column_counts()).any()
        for i, factor in zip(first.attributes, first.factors, strict=True)
        if i in factors
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


def of_squared_values(block: Block) -> Block:
    """Return the block that adds up the squares of what a block adds up; itself for counts."""
    if not any(isinstance(factor, Valued) for factor in block.factors):
        return block
    factors = (
        Valued(factor.inner, factor.values**2) if isinstance(factor, Valued) else factor
        for factor in block.factors
    )
    return replace(block, factors=tuple(factors))
