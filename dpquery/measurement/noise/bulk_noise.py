"""Exact discrete Laplace and Gaussian noise in bulk, from the operating system's randomness.

The law is P(y) proportional to f(|y|) on all integers, with f(m) = exp(-rate m^power): power 1 and
rate 1 / scale for Laplace, power 2 and rate 1 / (2 scale^2) for Gaussian; the scale is the fraction
that its float denotes. A draw repeats one proposal until it is accepted [CKS20]:

1.  Zero, block h = 0, 1, ... or the tail is chosen with weight 1, 2 * 2^k f(s_h) or
    2 f(s) / (1 - exp(-slope)). Block h holds the 2^k magnitudes from s_h = 1 + h 2^k on, the tail
    those from s on, where the blocks end; f(s + g) <= f(s) exp(-slope g) for all g >= 0.
2.  In a block the magnitude m is uniform, and is accepted with probability f(m) / f(s_h). In the
    tail m = s + g with g geometric, and is accepted with probability f(m) / (f(s) exp(-slope g)).
3.  The sign is a fair bit.

An accepted proposal is zero with weight 1 = f(0), and y in a block with weight
2 * 2^k f(s_h) * 2^-k * f(m) / f(s_h) / 2 = f(m), and y in the tail with weight
2 f(s) exp(-slope g) * f(m) / (f(s) exp(-slope g)) / 2 = f(m). That is the law, and nothing is cut
off. It is drawn as stated, because every choice compares a uniform real U with a real threshold,
and U is a stream of fair bits of which as many are drawn as the comparison takes:

*   Step 1 inverts the cumulative weights. The thresholds are their ratios to the total, in decimal
    arithmetic of bounded error (see `thresholds`), floored to a number of bits only where the bound
    leaves one floor. Sixteen bits of U mostly decide, by a table of 2^16 entries; 64 bits decide by
    a search; a U that agrees with a threshold in all 64 goes on in Python's integers.
*   Step 2 draws Bernoulli(exp(-d)) for a rational d < 1 as [CKS20] Alg. 1 does, with no exponential
    at all: A_1, A_2, ... are Bernoulli(d), Bernoulli(d / 2), ... up to the first that is 0, and the
    answer is yes where that one's number is odd. U < d is decided by the first 8 bits of U where
    these exceed every d of the block, by 64 bits against d in floating point where the two differ
    by more than 2^-40, and by fractions and more bits of U otherwise. Both are below 1, U takes one
    rounding and d five, and IEEE 754 arithmetic errs by less than 2^-52 of the result in each.
*   The tail, one draw in millions, is drawn in Python's integers and fractions.

So no float decides anything that its rounding could change, and no float has its exponential or
logarithm taken. All bits are os.urandom's, on Linux the kernel's ChaCha20; there is no seed. The
running time depends on what is drawn: this is not constant-time code.
"""

import math
import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import accumulate, count
from typing import Literal

import numpy as np

from dpquery.arrays import Bits, Bools, Ints
from dpquery.strategy.noise_kinds import Noise

Entropy = Callable[[int], bytes]

LARGEST = 2**63 - 1
_FINENESS = 5  # blocks of at most 2^-5 scales: few proposals are refused, and every d is below 1/4
_CHUNK = 1 << 15  # the arrays of a chunk stay in the processor's cache
_UNDECIDED = 2**16 - 1
_MARGIN = 2.0**-40


@dataclass(frozen=True)
class BlockLaw:
    """The law of one noise, and the blocks of magnitudes it is drawn by.

    Attributes:
        power: 1 for Laplace, 2 for Gaussian.
        rate: f(m) = exp(-rate m^power).
        bits: k; a block holds 2^k magnitudes.
        blocks: their number; the tail begins where they end.
    """

    power: Literal[1, 2]
    rate: Fraction
    bits: int
    blocks: int

    @classmethod
    def of(cls, noise: Noise, scale: float) -> "BlockLaw":
        """Return the law of a noise, its tail beyond about exp(-16) or exp(-18)."""
        exact = Fraction(scale)
        bits = max(0, int(exact).bit_length() - 1 - _FINENESS)
        if noise == "laplace":
            return cls(1, 1 / exact, bits, (math.ceil(16 * exact) >> bits) + 1)
        return cls(2, 1 / (2 * exact**2), bits, (math.ceil(6 * exact) >> bits) + 1)

    def start(self, block: int) -> int:
        """Return s_h, or where the tail begins for h = blocks."""
        return 1 + (block << self.bits)

    def exponent(self, magnitude: int) -> Fraction:
        """Return -ln f(m)."""
        return self.rate * (magnitude if self.power == 1 else magnitude * magnitude)

    @property
    def slope(self) -> Fraction:
        """The derivative of the exponent at the tail's start, above whose tangent it lies."""
        start = self.start(self.blocks)
        return self.power * self.exponent(start) / start

    def spread(self, block: int) -> Fraction:
        """Return the largest d in a block."""
        start = self.start(block)
        return self.exponent(start + (1 << self.bits) - 1) - self.exponent(start)

    def thresholds(self, bits: int) -> list[int]:
        """Return floor(2^bits c_i / c), c_i being the cumulative weights and c their total.

        With D digits every operation errs by less than 10^(1-D) of its result, exp included: the
        decimal module rounds it correctly. Exponents are below 100 and terms fewer than 2000 and
        positive, so sums are good to 10^(5-D) of themselves; 1 - exp(-slope) alone cancels, down to
        2^-53, and is good to 10^(18-D). So 10^(24-D) is ample for the ratios. By the theorem of
        Lindemann and Weierstrass no ratio is a multiple of 2^-bits, so some D settles all floors.
        """
        for digits in count(48 + bits // 3, 32):
            slack = Fraction(1, 10 ** (digits - 24))
            ratios = self._ratios(digits)
            floors = [math.floor((ratio - slack) * (1 << bits)) for ratio in ratios]
            if floors == [math.floor((ratio + slack) * (1 << bits)) for ratio in ratios]:
                break
        return floors

    def _ratios(self, digits: int) -> list[Fraction]:
        """Return the cumulative weights over their total, to so many digits."""
        with localcontext(prec=digits):
            *inside, tail = (_exp(self.exponent(self.start(h))) for h in range(self.blocks + 1))
            weights = [Decimal(1), *((2 << self.bits) * height for height in inside)]
            *parts, total = accumulate([*weights, 2 * tail / (1 - _exp(self.slope))])
            return [Fraction(part / total) for part in parts]


class BulkSampler:
    """Independent integer noise of one law, drawn in arrays.

    Args:
        noise: which law.
        scale: its scale, from 1 to below 2^52.
        entropy: returns so many independent fair bytes. The product never passes another than the
            operating system's; tests do, to make what is rare happen.
    """

    def __init__(self, noise: Noise, scale: float, *, entropy: Entropy = os.urandom) -> None:
        if not 1 <= scale < 2**52:
            raise ValueError("the scale must lie in [1, 2^52)")
        self.law = law = BlockLaw.of(noise, scale)
        self._entropy, self._slow = entropy, SlowSampler(entropy)
        self._thresholds = np.array(law.thresholds(64), dtype=np.uint64)
        coarse = (self._thresholds >> np.uint64(48)).astype(np.intp)
        self._guide = np.searchsorted(coarse, np.arange(2**16)).astype(np.uint16)
        self._guide[coarse] = _UNDECIDED
        spreads = [Fraction(0), *map(law.spread, range(law.blocks)), Fraction(0)]
        self._above = np.array([math.ceil(256 * spread) for spread in spreads], dtype=np.uint8)
        # Room for the place within a block and for the sign.
        self._word = np.dtype(f"u{next(w for w in (1, 2, 4, 8) if 8 * w > law.bits)}")

    def sample(self, size: int) -> Ints:
        """Return (size,) independent draws, those beyond +-(2^63 - 1) as that."""
        noise = np.empty(size, dtype=np.int64)
        for first in range(0, size, _CHUNK):
            noise[first : first + _CHUNK] = self._accepted(min(_CHUNK, size - first))
        return noise

    def _accepted(self, size: int) -> Ints:
        """Return (size,) accepted draws: proposals, with every refused one drawn again."""
        law, kind, choice = self.law, self._word.type, self._choices(size)
        word = self._draw(size, self._word)
        place = (word & kind((1 << law.bits) - 1)).astype(np.int64)
        sign = 1 - 2 * (word >> kind(law.bits) & kind(1)).astype(np.int64)
        start = ((choice.astype(np.int64) - 1) << law.bits) + 1
        noise: Ints = (start + place) * sign * (choice != 0)
        for i in np.flatnonzero(choice == len(self._thresholds)):
            drawn = self._slow.from_tail(law)
            noise[i] = self._accepted(1)[0] if drawn is None else sign[i] * min(drawn, LARGEST)
        if law.bits:
            refused = self._refused(choice, start, place)
            if refused.size:
                noise[refused] = self._accepted(refused.size)
        return noise

    def _choices(self, size: int) -> Bits:
        """Return step 1's choices: 0 for zero, h + 1 for block h, the largest for the tail."""
        word = self._draw(size, np.uint16)
        choice = self._guide.take(word)
        undecided = np.flatnonzero(choice == _UNDECIDED)
        more = self._draw(undecided.size, np.uint64) >> np.uint64(16)
        full = word[undecided].astype(np.uint64) << np.uint64(48) | more
        chosen = np.searchsorted(self._thresholds, full)
        choice[undecided] = chosen
        tied = self._thresholds.take(chosen, mode="clip") == full
        for i in np.flatnonzero(tied):
            choice[undecided[i]] = self._slow.choice(self.law, int(full[i]))
        return choice

    def _refused(self, choice: Bits, start: Ints, place: Ints) -> Ints:
        """Return the positions of the proposals that step 2 refuses in the blocks, by the A_j."""
        byte = self._draw(choice.size, np.uint8)
        going = np.flatnonzero(byte < self._above.take(choice))
        start, place = start[going], place[going]
        u = byte[going].astype(np.uint64) << np.uint64(56)
        u |= self._draw(going.size, np.uint64) >> np.uint64(8)
        refused = []
        for j in count(1):
            below = self._below(u, start, place, j)
            if j % 2 == 0:
                refused.append(going[~below])
            going, start, place = going[below], start[below], place[below]
            if not going.size:
                break
            u = self._draw(going.size, np.uint64)
        return np.concatenate([*refused, going])

    def _below(self, u: Bits, start: Ints, place: Ints, j: int) -> Bools:
        """Return whether U < d / j, U beginning with the bits u."""
        real = u.astype(np.float64) * 2.0**-64
        lift = 1.0 if self.law.power == 1 else (2 * start + place).astype(np.float64)
        d = place.astype(np.float64) * lift * float(self.law.rate) / j
        below = real < d
        for i in np.flatnonzero(np.abs(real - d) < _MARGIN):
            first = int(start[i])
            exact = self.law.exponent(first + int(place[i])) - self.law.exponent(first)
            below[i] = self._slow.below(exact / j, int(u[i]), bits=64)
        return below

    def _draw(self, size: int, kind: np.dtype[np.unsignedinteger] | type) -> Bits:
        dtype = np.dtype(kind)
        return np.frombuffer(self._entropy(size * dtype.itemsize), dtype=dtype)


@dataclass(frozen=True)
class SlowSampler:
    """Exact draws one at a time, in integers and fractions of any length."""

    entropy: Entropy = os.urandom

    def bits(self, size: int) -> int:
        """Return so many fair bits."""
        drawn = int.from_bytes(self.entropy(-(-size // 8)), "little")
        return drawn & ((1 << size) - 1)

    def below(self, threshold: Fraction, u: int = 0, *, bits: int = 0) -> bool:
        """Return whether U < threshold, U beginning with these bits: Bernoulli(threshold)."""
        while True:
            scaled = threshold * (1 << bits)
            if u + 1 <= scaled or u >= scaled:
                return u + 1 <= scaled
            u, bits = u << 64 | self.bits(64), bits + 64

    def choice(self, law: BlockLaw, u: int) -> int:
        """Return step 1's choice for a U that begins with these 64 bits."""
        for bits in count(128, 64):
            u = u << 64 | self.bits(64)
            thresholds = law.thresholds(bits)
            chosen = bisect_left(thresholds, u)
            if u not in thresholds[chosen : chosen + 1]:
                break
        return chosen

    def accept(self, exponent: Fraction) -> bool:
        """Return Bernoulli(exp(-exponent)), by [CKS20] Alg. 1."""
        whole = math.floor(exponent)
        parts = [Fraction(1)] * whole + [exponent - whole]
        return all(next(j for j in count(1) if not self.below(d / j)) % 2 for d in parts)

    def geometric(self, rate: Fraction) -> int:
        """Return g >= 0 with weight exp(-rate g): the upper bits one by one, the lower refused."""
        bits = max(0, math.floor(1 / rate).bit_length() - 1)
        low = self.bits(bits)
        while not self.accept(rate * low):
            low = self.bits(bits)
        high = 0
        while self.accept(rate * (1 << bits)):
            high += 1
        return high << bits | low

    def from_tail(self, law: BlockLaw) -> int | None:
        """Return a magnitude in the tail, or None where it is refused."""
        start, above = law.start(law.blocks), self.geometric(law.slope)
        envelope = law.exponent(start) + law.slope * above
        accepted = self.accept(law.exponent(start + above) - envelope)
        return start + above if accepted else None


def _exp(exponent: Fraction) -> Decimal:
    """Return exp(-exponent) at the context's precision."""
    return (-(Decimal(exponent.numerator) / Decimal(exponent.denominator))).exp()
