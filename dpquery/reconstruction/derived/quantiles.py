"""Quantiles of an ordered attribute from noisy counts up to each of its values.

With noisy counts P_j up to value j and T of all, the p-quantile is where P_j - p T passes from
below to above zero. Its interval is the set of all values at which that could be so, tested with
the joint covariance of the counts: of whole values it holds at least its level, and where values
are interpolated within bins it holds it exactly but for gaps in the set, which are filled.
The estimate is where the rising counts nearest to the noisy ones (weighted least squares) pass
p T ([MATH] 24).
"""

from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats
from dpquery.reconstruction.derived.quotients import DerivedRows


@dataclass(frozen=True, eq=False)
class NoisyDistributions:
    """Noisy counts up to each value, of several groups, with the covariances that quantiles need.

    Attributes:
        counts: (g, n) up to each value; the last are those of all.
        variances: (g, n) of them.
        with_next: (g, n - 1) covariance of each with the next.
        with_all: (g, n) covariance of each with the last.
    """

    counts: Floats
    variances: Floats
    with_next: Floats
    with_all: Floats

    @property
    def lost(self) -> Floats:
        """The number of records of each group in standard deviations of its noise: (g,)."""
        return self.counts[:, -1] / np.sqrt(np.maximum(self.variances[:, -1], 1e-300))


def quantile_rows(
    noisy: NoisyDistributions,
    probabilities: tuple[float, ...],
    q: float,
    *,
    ends: Floats,
    interpolated: bool,
) -> DerivedRows:
    """Return quantiles with their intervals, group by group: (g * probabilities,).

    Args:
        noisy: the counts.
        probabilities: of the quantiles.
        q: two-sided quantile of the noise, in standard deviations, at the level of the intervals.
        ends: what values are called: (n,) values, or (n + 1,) the edges of bins.
        interpolated: whether values are bins, within which quantiles are interpolated.
    """
    groups, several = len(noisy.counts), len(probabilities)
    estimate, low, high = (np.full((groups, several), np.nan) for _ in range(3))
    lost = noisy.lost <= q
    for g in range(groups):
        if lost[g]:
            continue
        estimated = quantile_places(
            noisy.counts[g], noisy.variances[g], probabilities, interpolated=interpolated
        )
        for k, (p, place) in enumerate(zip(probabilities, estimated, strict=True)):
            one = _Crossing.of(noisy, g, p)
            span = one.within_bins(q) if interpolated else one.whole_values(q)
            span = (min(span[0], place), max(span[1], place))
            places = np.array([place, *span])
            estimate[g, k], low[g, k], high[g, k] = np.interp(places, np.arange(len(ends)), ends)
    flat = np.repeat(lost, several)
    unknown = np.full(groups * several, np.nan)
    reason = "the number of records is lost in noise"
    return DerivedRows(estimate.ravel(), unknown, low.ravel(), high.ravel(), flat, reason)


def quantile_places(
    counts: Floats, variances: Floats, probabilities: tuple[float, ...], *, interpolated: bool
) -> list[float]:
    """Return where quantiles of one group stand, in places of values or of edges of bins.

    Args:
        counts: (n,) noisy counts up to each value.
        variances: (n,) of them.
        probabilities: of the quantiles.
        interpolated: whether values are bins, within which quantiles are interpolated.
    """
    from scipy.optimize import isotonic_regression  # slow to import; few releases need it

    weights = 1 / np.maximum(variances, 1e-12 * variances.max() + 1e-300)
    rising, places = isotonic_regression(counts, weights=weights).x, []
    for p in probabilities:
        passed = int(np.argmax(rising >= p * rising[-1]))
        if not interpolated:
            places.append(float(passed))
            continue
        before = rising[passed - 1] if passed else 0.0
        step = rising[passed] - before
        share = (p * rising[-1] - before) / step if step > 0 else 0.5
        places.append(passed + float(np.clip(share, 0, 1)))
    return places


@dataclass(frozen=True, eq=False)
class _Crossing:
    """P_j - p T of one group for j = -1, 0, .., n - 1, where P_-1 is 0: (n + 1,)."""

    level: Floats
    variance: Floats
    with_next: Floats

    @classmethod
    def of(cls, noisy: NoisyDistributions, g: int, p: float) -> "_Crossing":
        counts = np.concatenate([[0.0], noisy.counts[g]])
        variances = np.concatenate([[0.0], noisy.variances[g]])
        with_all = np.concatenate([[0.0], noisy.with_all[g]])
        with_next = np.concatenate([[0.0], noisy.with_next[g]])
        every = p**2 * variances[-1]
        return cls(
            counts - p * counts[-1],
            np.maximum(variances - 2 * p * with_all + every, 0.0),
            with_next - p * (with_all[:-1] + with_all[1:]) + every,
        )

    def whole_values(self, q: float) -> tuple[float, float]:
        """Return the first and last value that P_j - p T could first reach zero at."""
        margin = q * np.sqrt(self.variance)
        possible = (self.level[1:] + margin[1:] >= 0) & (self.level[:-1] - margin[:-1] < 0)
        places = np.flatnonzero(possible)
        return (float(places[0]), float(places[-1])) if len(places) else (np.inf, -np.inf)

    def within_bins(self, q: float) -> tuple[float, float]:
        """Return the first and last place, in bins, at which P - p T could be zero.

        Within a bin it is a + b w, with a variance that is quadratic in w in [0, 1].
        """
        a, b = self.level[:-1], np.diff(self.level)
        v, u, c = self.variance[:-1], self.variance[1:], self.with_next
        square = b**2 - q**2 * (v + u - 2 * c)
        mixed = a * b - q**2 * (c - v)
        plain = a**2 - q**2 * v
        start, stop = plain <= 0, square + 2 * mixed + plain <= 0
        with np.errstate(all="ignore"):
            root = np.sqrt(np.maximum(mixed**2 - square * plain, 0.0))
            roots = np.stack([(-mixed - root) / square, (-mixed + root) / square])
        exists = (mixed**2 >= square * plain) & np.isfinite(roots) & (roots >= 0) & (roots <= 1)
        first = np.where(start, 0.0, np.where(exists, roots, np.inf).min(axis=0))
        last = np.where(stop, 1.0, np.where(exists, roots, -np.inf).max(axis=0))
        places = np.arange(len(a))
        return float((places + first).min()), float((places + last).max())
