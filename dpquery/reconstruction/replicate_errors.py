"""The error of a sample from replicate weights, of which a survey publishes some for each record.

By each an answer is another one, and the variance of the answer is a factor times the sum of
squares of how far these are from it ([Wol07]): 1/K for balanced half samples, (n - 1) / n for a
jackknife, 4/80 in the ACS. What is measured is by how much they differ, sum by sum, with noise of
its own that is independent from replicate to replicate. A square has the variance of its noise more
on average, which is taken off, so that what is told is without bias.

It is told where it is LEAST times its standard error by noise: differences d with noise of standard
error s give a sum of K squares the variance 4 s^2 sum d^2 + 2 K s^4. Noise has a say in that, so
that just above what is told is too large on average. Elsewhere nothing is said. Intervals are by
Student's t with the survey's degrees of freedom, and fewer for noise (Satterthwaite).

Whatever answers are made of, sums of weights or quotients of such, differences are made of alike.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block
from dpquery.reconstruction.least_squares import Measured
from dpquery.reconstruction.sampling import (
    LEAST,
    SampleVariances,
    SamplingErrors,
    Taken,
    std_of,
    sum_of,
)
from dpquery.strategy.algebra.query_powers import QueryRows

DIFFERENCES_HIDDEN = "noise hides how far replicate weights move it"
_NO_NOISE = 1e-6  # of the noise of its parts: what is so little is a row over itself


def least_told(factor: float, copies: int, std: float) -> float:
    """Return from what variance on replicates tell it, given the noise in each difference."""
    half = 2 * LEAST**2  # x = S / s^2 with x^2 = LEAST^2 (4 x + 2 K)
    return factor * std**2 * (half + math.sqrt(half**2 + 2 * LEAST**2 * copies))


@dataclass(frozen=True, eq=False)
class ReplicateErrors(SamplingErrors):
    """The estimated differences of all replicates, and what they say of a sample."""

    differences: tuple[Measured, ...]  # sums of replicate weights less the weights, with noise
    factor: float  # of the sum of their squares
    degrees: int  # of freedom, that the survey gives its variances

    def of_block(self, block: Block, position: int | None) -> SampleVariances:
        """Return the variance of each answer of a block that the sample makes."""
        every = np.arange(block.queries)
        return self._of([Taken(QueryRows(block, every, position), np.ones(len(every)))])

    def quotient_variances(
        self,
        above: tuple[Block, int | None],
        below: tuple[Block, int | None],
        of_rows: Ints,
        quotients: Floats,
    ) -> SampleVariances:
        """Return the variance that the sample makes of each answer above less R times one below."""
        every = np.arange(above[0].queries)
        rows = QueryRows(above[0], every, above[1]), QueryRows(below[0], of_rows, below[1])
        return self._of([Taken(rows[0], np.ones(len(every))), Taken(rows[1], -quotients)])

    def difference_variances(
        self, first: tuple[Block, int | None], second: tuple[Block, int | None]
    ) -> SampleVariances:
        """Return the variance that the sample makes of answers of a block less those of another."""
        every, one = np.arange(first[0].queries), np.ones(first[0].queries)
        rows = (QueryRows(block, every, position) for block, position in (first, second))
        return self._of([*map(Taken, rows, (one, -one))])

    def merged_variances(
        self, block: Block, position: int | None, merged: Callable[[Floats], Floats], std: Floats
    ) -> SampleVariances:
        """Return those of sums of answers of a block, whose noise has the standard errors given."""
        noise = self.differences[0].noise_std / self.weights.noise_std * std
        answers = (one.estimates.answer(block, position).ravel() for one in self.differences)
        return self._told(map(merged, answers), noise)

    def missing(self, block: Block, position: int | None) -> str:
        """Return why nothing is known of the sample in any answer of a block, if that is so."""
        hidden = np.isnan(self.variances(block, position).variance).all()
        return DIFFERENCES_HIDDEN if hidden else ""

    def _of(self, values: Sequence[Taken]) -> SampleVariances:
        """Return the variances of what values add up to; 0 of what is certain."""
        noise = std_of(self.differences[0], values)
        alone = np.max([std_of(self.differences[0], [one]) for one in values], axis=0)
        found = self._told((sum_of(one, values) for one in self.differences), noise)
        certain = noise <= _NO_NOISE * alone
        return found._replace(variance=np.where(certain, 0.0, found.variance))

    def _told(self, differences: Iterable[Floats], std: Floats) -> SampleVariances:
        """Return the variances that differences make, each (m,), given their noise, (m,)."""
        copies, squared = len(self.differences), np.zeros(len(std))
        for each in differences:
            squared += each**2
        squared -= copies * std**2
        doubt = np.sqrt(4 * std**2 * np.maximum(squared, 0.0) + 2 * copies * std**4)
        told = (squared >= LEAST * doubt) & (squared > 0)
        variance = np.where(told, self.factor * squared, np.nan)
        with np.errstate(all="ignore"):  # where nothing is told
            degrees = 1 / (1 / self.degrees + (doubt / squared) ** 2 / 2)
        return SampleVariances(variance, told, np.where(told, degrees, np.inf))
