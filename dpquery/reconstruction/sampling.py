"""The error of a sample beside that of its noise, from private sums of squared weights.

A sum of weights over those records of a population that were drawn has the variance
sum of (1 - p) w^2 over the drawn ones, in expectation, where each record was drawn by itself with
chance p and w = 1 / p (Poisson sampling); without (1 - p), which weights of mean 1 do not tell, it
is a little more. So the sum of the squares of what the records add estimates it, and times the
declared design effect it is what clusters and strata make of it.

These sums are measured over the same tables as the weights, with noise of their own. Where one is
less than LEAST times its standard error, noise hides it: nothing is said then.
"""

from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from scipy.special import ndtri

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Valued
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import Estimates, TableAnswers
from dpquery.strategy.strategy import Strategy

LEAST = 2.0  # standard errors of a sum of squares from which on it is used


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

    strategy: Strategy  # what was measured
    estimates: Estimates  # the least-squares solution of the squares
    noise_std: float  # standard deviation of their noise on each measured row
    design_effect: float  # how many times the variance of Poisson sampling there is
    level: float  # of the intervals

    def variances(self, block: Block, position: int | None) -> Floats:
        """Return the variance of each answer of a block that the sample makes, (m,)."""
        squared = _of_squared_values(block)
        return self._known(*self._sums(squared, position if squared is block else None))

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

        Args:
            above: the block of the answers above, with its position in the plan's workload.
            below: that of the answers below.
            of_rows: which of these each is over.
            quotients: (m,) what they are.
            denominators: (m,) the answers below.
        """
        if not _holds(*below, above[0]):
            return np.full(above[0].queries, np.nan)
        squared = _of_squared_values(above[0])
        parts = [(*self._sums(*above), -2 * quotients)]
        if squared is above[0]:
            parts = [(*self._sums(*above), 1 - 2 * quotients)]
        else:
            parts.append((*self._sums(squared, None), np.ones_like(quotients)))
        sums, noise = self._sums(*below)
        parts.append((sums[of_rows], noise[of_rows], quotients**2))
        total = sum(sums * times for sums, _, times in parts)
        with np.errstate(all="ignore"):
            most = sum(noise * np.abs(times) for _, noise, times in parts)
            return self._known(np.asarray(total), np.asarray(most)) / denominators**2

    def _sums(self, block: Block, position: int | None) -> tuple[Floats, Floats]:
        """Return estimated sums of squared weights, and their standard errors; nan without any."""
        if position is None and not self.strategy.supports(block):
            return np.full(block.queries, np.nan), np.full(block.queries, np.nan)
        sums = self.estimates.answer(block, position).ravel()
        return sums, standard_errors(
            self.strategy, block, position=position, noise_std=self.noise_std
        )

    def _known(self, sums: Floats, noise: Floats) -> Floats:
        return np.where(sums >= LEAST * noise, self.design_effect * sums, np.nan)

    def columns(
        self, answers: TableAnswers, block: Block, position: int | None
    ) -> SamplingColumns[Floats]:
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


def _holds(below: Block, _: int | None, above: Block) -> bool:
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
