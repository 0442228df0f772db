"""Chance in a run of rounds: the exact exponential mechanism, by the system's randomness alone.

A round draws one thing after another and none twice, each with probability proportional to
exp(eta score) among those that are left. That is the law of the largest score + Gumbel(1 / eta), in
their order [DR19]; no Gumbel noise is drawn, for the law does not distinguish things of one score:
a score is drawn first, with probability proportional to (things left at it) exp(eta score), and
then one of them, each as likely.

Privacy: the log ratio of a draw between neighbours is eta (s'_q - s_q) - ln(Z' / Z) at q. Over all
q its first term spans at most r = eta times how far apart the moves of two scores can be, and a
mechanism whose log ratio spans at most r is r-bounded-range, hence (r^2 / 8)-zCDP [CR21]. Given
what was drawn before it, which is public by then, every draw is such a mechanism on what is left:
K draws cost K r^2 / 8.

Exactness: with the scores from the largest down, a uniform real U in [0, 1) chooses the first score
whose cumulative weight passes U times the total. Weights are held between whole numbers of 2^-B,
and U between two of its leading bits; where these leave two answers, both are made finer. No float
decides. All bits are os.urandom's. The running time depends on the scores: it is not protected.
"""

import math
import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Ints
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.noise.bulk_noise import Entropy, SlowSampler
from dpquery.measurement.noise.exact_noise import draw
from dpquery.progress import reporting

LARGEST_COUNT = 2**40  # synthetic counts beyond it count as that: every true count is below 2^36
_RATE_BITS = 64


class Chance(Protocol):
    """The interface of random decisions in a run; the curator's are exact and without a seed."""

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
    """The curator's random decisions: exact laws, the operating system's randomness, no seed."""

    # returns so many independent fair bytes. The product never gives another than the operating
    # system's; tests do, to make what is rare happen
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


def sharpest_rate(rho: Fraction, draws: int, span: int) -> Fraction:
    """Return the largest eta, to 64 bits after the point, with K (eta span)^2 / 8 <= rho.

    The span is how far apart the moves of two scores can be.
    """
    square = 8 * rho / (draws * span**2) * (1 << 2 * _RATE_BITS)
    return Fraction(math.isqrt(math.floor(square)), 1 << _RATE_BITS)


def differences_of(
    exact: Ints, synthetic: NDArray[np.floating], *, largest: int = LARGEST_COUNT
) -> Ints:
    """Return true counts less rounded synthetic ones: whole, whatever the public side says.

    Args:
        exact: (m,) true counts.
        synthetic: (m,) synthetic counts; what is not a number counts as 0.
        largest: what is told apart from larger ones.
    """
    limit = float(largest)
    rounded = np.rint(np.nan_to_num(synthetic, nan=0.0, posinf=limit, neginf=-limit))
    return np.asarray(exact - np.clip(rounded, -limit, limit).astype(np.int64))


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
