"""Selection of the worst answered queries: exact exponential mechanisms without replacement.

A query is off by d = true count - rounded synthetic count, a whole number. Its score is max(d, 0)
among those answered too low ("under"), max(-d, 0) among those answered too high ("over"), or |d|
("either"). A round draws queries one after another and none twice, each with probability
proportional to exp(eta score) among those that are left. That is the law of the largest
score + Gumbel(1 / eta), in their order [DR19]; no Gumbel noise is drawn, for the law does not
distinguish queries of one score: a score is drawn first, with probability proportional to
(queries left at it) exp(eta score), and then one of its queries, each as likely. The scores are
counted block by block, so memory is that of one block's answers.

Privacy: let neighbours move every count by at most D: D is 1 for rows, and the most rows of a
person for persons; replacing records moves a count by no more than that, since the records taken
out and those put in pull it in opposite directions. The synthetic counts are public. One draw has
log ratio eta (s'_q - s_q) - ln(Z' / Z) at query q, and over all q the first term spans at most
    2 eta D   for "either", where scores move up and down, by D at most;
    eta D     for "under" and "over" where records are added or removed: all counts that move at
              all move the same way then, hence all scores, and by D at most.
A mechanism whose log ratio spans at most r is r-bounded-range, hence (r^2 / 8)-zCDP [CR21]. Given
the queries drawn before it, which are public by then, every draw is such a mechanism on those left,
so that K draws cost rho = K (eta D)^2 / 2, or a quarter of that on one side: one-sided draws are
twice as sharp at the same cost, and those of one round may be split between the two sides.

Exactness: with the scores from the largest down, a uniform real U in [0, 1) chooses the first score
whose cumulative weight passes U times the total. Weights are held between whole numbers of 2^-B,
and U between two of its leading bits; where these leave two answers, both are made finer. No float
decides. All bits are os.urandom's. The running time depends on the scores: it is not protected.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Ints
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.noise.bulk_noise import Entropy, SlowSampler
from dpquery.measurement.noise.exact_noise import draw
from dpquery.progress import reporting

ErrorSide = Literal["under", "over", "either"]

LARGEST_COUNT = 2**40  # synthetic counts beyond it count as that: every true count is below 2^36
_TAKEN = -(2**63)


class Chance(Protocol):
    """The interface of random decisions in RAP; the curator's are exact and without a seed."""

    def level(self, scores: Sequence[int], members: Sequence[int], rate: Fraction) -> int:
        """Return i with probability proportional to members[i] exp(rate scores[i]).

        Args:
            scores: increasing.
            members: not negative, and not all 0.
            rate: eta, positive.
        """
        ...

    def below(self, bound: int) -> int:
        """Return a whole number from 0 to below the bound, each as likely."""
        ...

    def add_noise(
        self, answers: Ints, *, budget: Guarantee, sensitivity: int, scale: float
    ) -> Ints:
        """Return the answers, each with discrete Gaussian noise of a scale; see noise.draw."""
        ...


@dataclass(frozen=True)
class ExactChance:
    """The curator's random decisions: exact laws, the operating system's randomness, no seed.

    Attributes:
        entropy: returns so many independent fair bytes. The product never gives another than the
            operating system's; tests do, to make what is rare happen.
    """

    entropy: Entropy = os.urandom

    def level(self, scores: Sequence[int], members: Sequence[int], rate: Fraction) -> int:
        """Return i with probability proportional to members[i] exp(rate scores[i])."""
        random, u, bits = SlowSampler(self.entropy), 0, 0
        while True:
            u, bits = u << 64 | random.bits(64), bits + 64
            level = _decided(u, bits, scores, members, rate)
            if level is not None:
                return level

    def below(self, bound: int) -> int:
        """Return a whole number from 0 to below the bound, each as likely."""
        random, bits = SlowSampler(self.entropy), (bound - 1).bit_length()
        while (drawn := random.bits(bits)) >= bound:
            pass
        return drawn

    def add_noise(
        self, answers: Ints, *, budget: Guarantee, sensitivity: int, scale: float
    ) -> Ints:
        """Return the answers, each with discrete Gaussian noise of a scale; see noise.draw."""
        with reporting(None):  # the rounds are reported, not their few draws
            return draw(answers, budget=budget, sensitivity=sensitivity, scale=scale)


def select_queries(
    differences: Callable[[int], Ints],
    *,
    blocks: int,
    taken: Ints,
    sides: Sequence[tuple[ErrorSide, int]],
    rate: Fraction,
    chance: Chance,
) -> Ints:
    """Return the places of queries drawn one after another, (k, 2) in that order.

    Args:
        differences: d of the queries of the block at a position, (m,); called once for every block,
            and once more for those that hold a query drawn.
        blocks: their number.
        taken: (k, 2) places, of a block and a row in it, that were drawn in earlier rounds.
        sides: how many to draw on which side; at least so many queries are left in all.
        rate: eta.
        chance: draws scores and queries.
    """
    histograms = [_histogram(_left(differences(block), block, taken)) for block in range(blocks)]
    block_of = np.repeat(np.arange(blocks), [len(distinct) for distinct, _ in histograms])
    levels = np.concatenate([distinct for distinct, _ in histograms])
    urn = _Urn(np.concatenate([counts for _, counts in histograms]))
    picked = []
    for side, size in sides:
        distinct_scores, group = np.unique(scores_of(levels, side), return_inverse=True)
        scores, members = distinct_scores.tolist(), urn.counts(group).tolist()
        for _ in range(size):
            level = chance.level(scores, members, rate)
            entry, rank = urn.take(np.flatnonzero(group == level), chance.below(members[level]))
            members[level] -= 1
            picked.append((int(block_of[entry]), int(levels[entry]), rank))
    return _rows(picked, differences, taken)


class _Urn:
    """The number of queries left at each entry: a block and a difference in it."""

    def __init__(self, left: Ints) -> None:
        """Start with so many queries at each entry."""
        self._left = left
        self._ranks_taken: dict[int, list[int]] = {}

    def counts(self, group: Ints) -> Ints:
        """Return how many queries are left in each group of entries."""
        counts = np.zeros(int(group.max()) + 1, dtype=np.int64)
        np.add.at(counts, group, self._left)
        return counts

    def take(self, entries: Ints, rank: int) -> tuple[int, int]:
        """Remove the query of a rank among those left at some entries.

        Returns:
            Its entry, and its rank among all that were ever at the entry.
        """
        ends = np.cumsum(self._left[entries])
        place = int(np.searchsorted(ends, rank, side="right"))
        entry = int(entries[place])
        rank -= int(ends[place] - self._left[entry])
        self._left[entry] -= 1
        earlier = self._ranks_taken.setdefault(entry, [])
        for other in sorted(earlier):
            rank += rank >= other
        earlier.append(rank)
        return entry, rank


def differences_of(exact: Ints, synthetic: NDArray[np.floating]) -> Ints:
    """Return true counts less rounded synthetic ones: whole, whatever the public side says.

    Args:
        exact: (m,) true counts.
        synthetic: (m,) synthetic counts; what is not a number counts as 0.
    """
    limit = float(LARGEST_COUNT)
    rounded = np.rint(np.nan_to_num(synthetic, nan=0.0, posinf=limit, neginf=-limit))
    return np.asarray(exact - np.clip(rounded, -limit, limit).astype(np.int64))


def scores_of(differences: Ints, side: ErrorSide) -> Ints:
    """Return the scores of queries with these differences."""
    if side == "either":
        return np.abs(differences)
    return np.maximum(differences if side == "under" else -differences, 0)


def _left(differences: Ints, block: int, taken: Ints) -> Ints:
    """Return a block's differences, those of queries already drawn marked as _TAKEN."""
    struck = differences.copy()
    struck[taken[taken[:, 0] == block, 1]] = _TAKEN
    return struck


def _histogram(differences: Ints) -> tuple[Ints, Ints]:
    """Return the distinct differences, increasing, and the number of queries at each."""
    left = differences[differences != _TAKEN]
    if not left.size:
        return left, left
    least = int(left.min())
    if int(left.max()) - least < 4 * left.size + 2**16:
        counts = np.bincount(left - least)
        levels = np.flatnonzero(counts)
        return levels + least, counts[levels]
    return np.unique(left, return_counts=True)


def _rows(
    picked: list[tuple[int, int, int]], differences: Callable[[int], Ints], taken: Ints
) -> Ints:
    """Return the places of queries given as (block, difference, rank among those with it)."""
    places = np.empty((len(picked), 2), dtype=np.int64)
    for block in sorted({block for block, _, _ in picked}):
        left = _left(differences(block), block, taken)
        for k, (position, difference, rank) in enumerate(picked):
            if position == block:
                places[k] = block, np.flatnonzero(left == difference)[rank]
    return places


def _decided(
    u: int, bits: int, scores: Sequence[int], members: Sequence[int], rate: Fraction
) -> int | None:
    """Return the level that every U in [u, u + 1) / 2^bits chooses, or None if there are several.

    Weights are counted in units of 2^-B of the largest score's. A score more than `reach` below it
    has a weight below one unit, as rate (reach + 1) > B ln 2.
    """
    last = max(i for i, queries in enumerate(members) if queries)
    total = sum(members)
    fineness = bits + 64 + total.bit_length()
    reach = int(fineness * Fraction(6932, 10000) / rate)
    first = bisect_left(scores, scores[last] - reach)
    order = [i for i in range(last, first - 1, -1) if members[i]]
    low = [_weight(scores[last] - scores[i], rate, fineness) for i in order]
    lows = list(accumulate(members[i] * weight for i, weight in zip(order, low, strict=True)))
    below = list(accumulate(members[i] for i in order))
    highs = [weight + 3 * queries for weight, queries in zip(lows, below, strict=True)]
    tail = total - below[-1]
    most = highs[-1] + tail
    chosen = bisect_left(lows, -(-(u + 1) * most >> bits))
    if chosen == len(order):
        if tail:
            return None
        chosen -= 1
    if chosen and highs[chosen - 1] << bits > u * lows[-1]:
        return None
    return order[chosen]


@lru_cache(maxsize=1 << 17)
def _weight(gap: int, rate: Fraction, fineness: int) -> int:
    """Return w with w <= 2^B exp(-rate gap) <= w + 3, w >= 0; the exponent is at most B.

    With D digits the exponent, being at most B, errs by at most B 10^-D, and its exponential,
    which is rounded correctly, and the product by a relative 10^(1-D) each: together by less than
    (B + 30) 10^-D 2^B, which is less than 1 for the D chosen.
    """
    with localcontext(prec=fineness * 302 // 1000 + len(str(fineness)) + 5):
        exponent = Decimal(rate.numerator * gap) / Decimal(rate.denominator)
        scaled = (-exponent).exp() * Decimal(1 << fineness)
    return max(0, int(scaled) - 1)
