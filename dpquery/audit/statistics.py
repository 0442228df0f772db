"""Tests of chance that share one rate of false alarms, and what a check found.

Every test fails a sound product with probability ALPHA at most, or about that: MOST_TESTS of them
leave a little of a false alarm in a million runs. There are no second tries.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from scipy.special import gammainc, gammaincc, ndtr
from scipy.stats import beta

from dpquery.arrays import Floats, Ints
from dpquery.measurement.noise.laws import LawName

ALPHA = 7e-9
MOST_TESTS = 142
_LEAST_EXPECTED = 50  # values a cell
_MOST_CELLS = 40
_SMALL = 200  # scales of Gaussian noise below which masses are added up one by one
_ORDERS = 1 + np.exp(np.linspace(-12, 8, 401))


@dataclass(frozen=True)
class NoiseDistribution:
    """Noise on integers: P(y) proportional to exp(-|y| / scale), or to exp(-y^2 / (2 scale^2)).

    Rounded Gaussian noise has P(y) = Phi((y + 1/2) / scale) - Phi((y - 1/2) / scale).
    """

    noise: LawName  # which of the three
    scale: Fraction  # in steps of the grid

    @property
    def std(self) -> float:
        """The standard deviation, but for the discreteness of discrete laws."""
        variance = self.scale**2 * (2 if self.noise == "laplace" else 1)
        return math.sqrt(variance + (Fraction(1, 12) if self.noise == "rounded" else 0))

    def below(self, k: Ints) -> Floats:
        """Return P(y <= k), good to 1e-11."""
        scale = float(self.scale)
        if self.noise == "laplace":
            share = 1 / (1 + math.exp(-1 / scale))
            upper = -np.expm1(-(np.maximum(k, 0) + 1.0) / scale)
            upper = share * upper + (1 - share)  # P(y <= k) = 1 - q^(k + 1) / (1 + q)
            lower = share * np.exp(-np.maximum(-k, 0.0) / scale)
            return np.asarray(np.where(k >= 0, upper, lower))
        if self.noise == "rounded":
            return np.asarray(ndtr((k + 0.5) / scale))
        if scale <= _SMALL:
            steps, masses = self._masses
            place = np.clip(k - steps[0], -1, len(steps) - 1)
            return np.asarray(np.concatenate([[0.0], np.cumsum(masses)])[place + 1])
        # Euler and Maclaurin's sum from midpoint to midpoint; what is left out is of order scale^-4
        z = (k + 0.5) / scale
        density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        return np.asarray(ndtr(z) + z * density / (24 * scale**2))

    @cached_property
    def _masses(self) -> tuple[Ints, Floats]:
        """All values that have a mass to speak of, and their masses, for small Gaussian scales."""
        reach = math.ceil(12 * float(self.scale)) + 1
        steps = np.arange(-reach, reach + 1)
        weights = np.exp(-(steps**2) / (2 * float(self.scale) ** 2))
        return steps, weights / weights.sum()

    def scores(self, values: Ints) -> Floats:
        """Return values as places in their law, with mean 0 and variance 1: about uniform."""
        places = (self.below(values) + self.below(values - 1)) / 2
        return np.asarray(math.sqrt(12) * (places - 0.5))

    def all_equal(self, size: int) -> float:
        """Return the probability that so many independent draws are all the same, within 1e-3.

        Scales are those of a release: at least some hundreds.
        """
        scale = float(self.scale)
        if self.noise == "laplace":
            return float(2 * scale * (2 * scale) ** -size / size)
        root = math.sqrt(2 * math.pi) * scale
        return float(root ** (1 - size) / math.sqrt(size))

    def log_ratio(self, values: Ints, shifts: Ints) -> Floats:
        """Return ln P(values - 0) - ln P(values - shifts), added up along the last axis.

        Of rounded noise that before rounding, which differs by little at the scales of a release.
        """
        scale = float(self.scale)
        here, there = values.astype(np.float64), (values - shifts).astype(np.float64)
        if self.noise == "laplace":
            return np.asarray((np.abs(there) - np.abs(here)).sum(axis=-1) / scale)
        return np.asarray((there**2 - here**2).sum(axis=-1) / (2 * scale**2))


def goodness_of_fit(values: Ints, law: NoiseDistribution) -> float:
    """Return the p-value of values being independent draws of a law: likelihood-ratio chi-square.

    The values are counted in cells of about equal mass, each expecting _LEAST_EXPECTED at least.
    The likelihood ratio is used and not Pearson's statistic, because its tail is that of chi-square
    far out too, where ALPHA is: Pearson's is ten times too heavy there with 60 values a cell.
    """
    cells = min(_MOST_CELLS, values.size // _LEAST_EXPECTED)
    if cells < 2:
        raise ValueError("too few values to hold against a law")
    # where cells of about equal mass end; the last one never ends
    levels = np.arange(1, cells) / cells
    low = np.full(levels.size, -math.ceil(40 * law.scale), dtype=np.int64)
    high = -low
    while np.any(high - low > 1):
        middle = (low + high) // 2
        enough = law.below(middle) >= levels
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    edges = np.unique(high)
    masses = np.diff(np.concatenate([[0.0], law.below(edges), [1.0]]))
    counted = np.bincount(np.searchsorted(edges, values.ravel()), minlength=masses.size)
    return chi_square(counted, masses * values.size)


def chi_square(counted: Ints, expected: Floats) -> float:
    """Return the p-value of counts against their expectations, by the likelihood ratio.

    Cells that expect less than _LEAST_EXPECTED are taken together. The p-value is twice that of the
    law of chi-square, which is up to 1.7 times too small where ALPHA is.

    Raises:
        ValueError: there are too few values to tell anything.
    """
    rare = expected < _LEAST_EXPECTED
    if rare.any():
        counted = np.append(counted[~rare], counted[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    if expected.size == 1:
        raise ValueError("too few values to hold against a law")
    nonzero = counted > 0
    statistic = 2 * float((counted[nonzero] * np.log(counted[nonzero] / expected[nonzero])).sum())
    tail = float(gammaincc((expected.size - 1) / 2, max(0.0, statistic) / 2))
    return min(1.0, 2 * tail)


def pooled(counted: Ints, expected: Floats) -> tuple[Ints, Floats]:
    """Return counts and expectations of groups of next cells that expect _LEAST_EXPECTED at least.

    So there is something left to test where every cell expects little.
    """
    sums, starts = 0.0, [0]
    for place, mass in enumerate(expected.ravel().tolist(), start=1):
        sums += mass
        if sums >= _LEAST_EXPECTED:
            starts.append(place)
            sums = 0.0
    # What is left over at the end expects too little for a group, and joins the last one.
    groups = starts[: max(1, len(starts) - 1)]
    return np.add.reduceat(counted.ravel(), groups), np.add.reduceat(expected.ravel(), groups)


def width_of(z: Floats) -> tuple[float, float]:
    """Return the p-value of values of one standard deviation being normal by it, and their own."""
    squares = float((z**2).sum()) / 2
    tails = gammainc(z.size / 2, squares), gammaincc(z.size / 2, squares)
    return 2 * float(min(tails)), math.sqrt(2 * squares / z.size)


def combined(p_values: Iterable[float]) -> float:
    """Return the p-value of several tests taken as one [Bonferroni]."""
    values = list(p_values)
    return min(1.0, len(values) * float(min(values))) if values else 1.0


def clopper_pearson(successes: int, trials: int, *, alpha: float) -> tuple[float, float]:
    """Return bounds on a probability, each of which is wrong with probability alpha / 2 at most."""
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} of {trials}")
    low = float(beta.ppf(alpha / 2, successes, trials - successes + 1)) if successes else 0.0
    left = trials - successes
    high = float(beta.isf(alpha / 2, successes + 1, left)) if left else 1.0
    return low, high


def event_bounds(
    drawn: Floats, other_drawn: Floats, threshold: float, *, trials: int = 0
) -> tuple[float, float]:
    """Return bounds on the probability of passing a threshold: least of one law, most of another.

    Either is wrong with probability ALPHA / 2 at most. Where more trials are given than there are
    draws, as if so many had as large shares that pass.
    """
    trials = trials or len(drawn)
    hits, others = (int((values > threshold).mean() * trials) for values in (drawn, other_drawn))
    low = clopper_pearson(hits, trials, alpha=ALPHA)[0]
    return low, clopper_pearson(others, trials, alpha=ALPHA)[1]


def pure_loss(p_low: float, q_high: float) -> float:
    """Return the least epsilon of a mechanism that gives an event P >= p_low, or Q <= q_high.

    P and Q are its probabilities on neighbouring data; the event and its complement both count.
    """
    if p_low <= q_high:
        return 0.0
    if q_high == 0 or p_low == 1:
        return math.inf
    return max(math.log(p_low / q_high), math.log1p(-q_high) - math.log1p(-p_low))


def zcdp_loss(p_low: float, q_high: float) -> float:
    """Return the least rho of a mechanism that gives an event P >= p_low, or Q <= q_high.

    That is the largest D_a / a over the orders a: the Renyi divergences, both ways, of the two
    Bernoulli laws, which the mechanism's divergence cannot be below (data processing).
    """
    if p_low <= q_high:
        return 0.0
    if q_high == 0 or p_low == 1:
        return math.inf
    both = [_renyi(p_low, q_high), _renyi(q_high, p_low)]
    return float(np.max(np.array(both) / _ORDERS))


def _renyi(p: float, q: float) -> Floats:
    yes = _ORDERS * math.log(p) + (1 - _ORDERS) * math.log(q)
    no = _ORDERS * math.log1p(-p) + (1 - _ORDERS) * math.log1p(-q)
    return np.asarray(np.logaddexp(yes, no) / (_ORDERS - 1))


APART = "no event tells neighbouring data apart better than is claimed"
TO_ITS_END = "it runs to its end"
"""The claim of a part that ended in an error, which says nothing of what it was to check."""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    subject: str  # what was put to the test
    claim: str  # what must hold of it
    passed: bool  # whether it holds
    evidence: str  # the figures behind that, in a few words
    # noise values that were looked at, where they were looked at first: each counts once
    draws: int = 0
    neighbours: int = 0  # pairs of neighbouring data sets that were compared
    replicates: int = 0  # how often they were measured, each
    tests: int = 0  # statistical tests behind it; a sound product fails each with probability ALPHA
    part: str = ""  # of the audit, which `audit` adds

    @classmethod
    def of_chance(
        cls, subject: str, claim: str, p: float, evidence: str, *, draws: int = 0
    ) -> "Finding":
        """Return what one test found whose p-value is p."""
        return cls(subject, claim, p > ALPHA, f"p = {p:.2g}, {evidence}", draws=draws, tests=1)

    @classmethod
    def of_loss(
        cls, subject: str, name: str, reached: float, claimed: float, replicates: int
    ) -> "Finding":
        """Return what the best event shows of the loss between two neighbouring data sets."""
        return cls(
            subject,
            APART,
            reached <= claimed * (1 + 1e-12),
            f"{name} is at least {reached:.3f}, and {claimed:.4g} is claimed: "
            f"{reached / claimed:.0%} of it is what {replicates:,} draws of each can show",
            neighbours=1,
            replicates=replicates,
            tests=1,
        )
