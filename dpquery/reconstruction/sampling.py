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

from dpquery.arrays import Floats
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
        if squared is not block:
            block, position = squared, None
            if not self.strategy.supports(block):
                return np.full(block.queries, np.nan)
        sums = self.estimates.answer(block, position).ravel()
        noise = standard_errors(self.strategy, block, position=position, noise_std=self.noise_std)
        return np.where(sums >= LEAST * noise, self.design_effect * sums, np.nan)

    def columns(
        self, answers: TableAnswers, block: Block, position: int | None
    ) -> SamplingColumns[Floats]:
        """Return the columns beside the answers of a block, (m,) each; nan where noise hides them.

        The interval's half is that of the noise and that of the sample, as sides of a right angle.
        """
        if answers.std_error is None or answers.half_width is None:
            raise ValueError("answers without standard errors have no intervals")
        variances = self.variances(block, position)
        if answers.stated is not None:  # what public facts state is no estimate from a sample
            variances = np.where(answers.stated > 0, np.nan, variances)
        sampling = np.sqrt(variances)
        half = np.hypot(answers.half_width, float(ndtri((1 + self.level) / 2)) * sampling)
        total = np.hypot(answers.std_error, sampling)
        return SamplingColumns(sampling, total, answers.estimate - half, answers.estimate + half)


def _of_squared_values(block: Block) -> Block:
    """Return the block that adds up the squares of what a block adds up; itself for counts."""
    if not any(isinstance(factor, Valued) for factor in block.factors):
        return block
    factors = (
        Valued(factor.inner, factor.values**2) if isinstance(factor, Valued) else factor
        for factor in block.factors
    )
    return replace(block, factors=tuple(factors))
