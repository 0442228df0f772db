"""Quotients of two noisy answers, with intervals that hold their level [F54].

With answers n and d of true values v and w, Fieller's interval of v / w is the set of all t for
which n - t d could be noise alone: |n - t d| <= q(t) sd(n - t d). Under Gaussian noise q is one
number. Under Laplace noise it depends on t, by how much each measured row has to do with n - t d.

A row is printed only where d passes a threshold, and among those that do d is too large by chance:
Fieller's interval does not hold among them. So it is given only where d is SURE times as large;
of the others no more is said than what is known of v / w beforehand ([MATH] 24).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Bools, Floats

REFINEMENTS = 4  # of the quantile at either end of an interval
SURE = 2.2  # thresholds from which a denominator is large by more than chance; 2 misses by 0.2 %
BEYOND_NOISE = 10  # standard errors
Critical = Callable[[Floats], Floats]
"""The quantile of |noise of n - t d| in its standard deviations, given t for every row."""


@dataclass(frozen=True, eq=False)
class DerivedRows:
    """Figures of a statistic, one a row.

    Attributes:
        estimate: (m,), NaN where there is none.
        std_error: (m,), NaN where there is none.
        low: (m,) lower ends of intervals, NaN where there is none.
        high: (m,) upper ends.
        lost: (m,) where the reason holds that there is no estimate.
        reason: why.
    """

    estimate: Floats
    std_error: Floats
    low: Floats
    high: Floats
    lost: Bools
    reason: str = ""


@dataclass(frozen=True)
class KnownRange:
    """What is known of a quotient beforehand.

    Attributes:
        low: it is no smaller.
        high: it is no larger.
        positive: whether its denominator is not below 0, so that only noise is.
    """

    low: float = -np.inf
    high: float = np.inf
    positive: bool = True

    def lost(self, below: Floats, least: Floats) -> Bools:
        """Return which noisy denominators are not above what noise alone may be."""
        return np.asarray((below if self.positive else np.abs(below)) <= least)


@dataclass(frozen=True, eq=False)
class NoisyPairs:
    """Pairs of noisy answers with their variances and covariance, (m,) each."""

    above: Floats
    below: Floats
    above_variance: Floats
    below_variance: Floats
    covariance: Floats

    def deviation(self, t: Floats) -> Floats:
        """Return the standard deviation of above - t below: (m,)."""
        mixed = self.above_variance - 2 * t * self.covariance + t**2 * self.below_variance
        return np.sqrt(np.maximum(mixed, 0.0))


def quotient_rows(
    pairs: NoisyPairs,
    critical: Critical,
    denominator: float | Floats,
    limits: KnownRange | None = None,
) -> DerivedRows:
    """Return quotients with their intervals.

    Args:
        pairs: numerators and denominators, whole numbers but for their noise.
        critical: the quantile, in standard deviations, at the level of the intervals.
        denominator: that of the denominator's own noise, in standard deviations.
        limits: what is known of the quotients; default: denominators are not below 0.
    """
    limits = limits or KnownRange()
    least = denominator * np.sqrt(pairs.below_variance)
    lost = limits.lost(pairs.below, least)
    # A denominator other than 0 is 1 or more.
    most = np.abs(pairs.above) + BEYOND_NOISE * np.sqrt(pairs.above_variance)
    with np.errstate(all="ignore"):
        estimate = np.where(lost, np.nan, pairs.above / pairs.below)
        std_error = pairs.deviation(estimate) / np.abs(pairs.below)
        ends = []
        for sign in (-1.0, 1.0):
            end = estimate
            for _ in range(REFINEMENTS):
                end = _end(pairs, critical(np.where(np.isnan(end), 0.0, end)), sign)
            ends.append(end)
    unsure = (np.abs(pairs.below) <= SURE * least) | np.isnan(ends).any(axis=0)
    low = np.where(unsure, np.fmin(np.maximum(limits.low, -most), estimate), ends[0])
    high = np.where(unsure, np.fmax(np.minimum(limits.high, most), estimate), ends[1])
    estimate, std_error, low, high = (
        np.where(lost, np.nan, values) for values in (estimate, std_error, low, high)
    )
    return DerivedRows(estimate, std_error, low, high, lost, "the denominator is lost in noise")


def difference_rows(pairs: NoisyPairs, critical: Critical) -> DerivedRows:
    """Return differences, above less below, with their intervals."""
    estimate, ones = pairs.above - pairs.below, np.ones_like(pairs.above)
    std_error = pairs.deviation(ones)
    half = critical(ones) * std_error
    never = np.zeros(len(estimate), dtype=np.bool_)
    return DerivedRows(estimate, std_error, estimate - half, estimate + half, never)


def _end(pairs: NoisyPairs, q: Floats, sign: float) -> Floats:
    """Return one root of (n - t d)^2 = q^2 var(n - t d), where the set between them is bounded."""
    square = pairs.below**2 - q**2 * pairs.below_variance
    mixed = pairs.above * pairs.below - q**2 * pairs.covariance
    # mixed^2 - square (above^2 - q^2 above_variance), without the squares that cancel in it.
    spread = (pairs.below * pairs.deviation(pairs.above / pairs.below)) ** 2
    both = pairs.above_variance * pairs.below_variance - pairs.covariance**2
    root = q * np.sqrt(np.maximum(spread - q**2 * both, 0.0))
    return np.where(square > 0, (mixed + sign * root) / square, np.nan)
