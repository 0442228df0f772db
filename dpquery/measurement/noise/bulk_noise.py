"""Exact Laplace and Gaussian noise in bulk, from the operating system's randomness.

There are three laws of a number y, with f(y) = exp(-rate |y|^power): power 1 and rate 1 / scale for
Laplace, power 2 and rate 1 / (2 scale^2) for Gaussian; the scale is the fraction that its float
denotes.

*   Discrete Laplace and discrete Gaussian noise: y is whole, with P(y) proportional to f(y).
*   Rounded Gaussian noise: y is real, with density proportional to f(y), and what is drawn is the
    integer nearest to y. A tie has probability 0.

|y| = m + F is drawn in steps of 2^-halvings, m a whole number of them. Where y is whole, a step is
1 and F is 0. Where it is real, F is a uniform real in [0, 1), and a step is a half or a half of a
half of ... a half: the numbers between two integers, where rounding changes, are whole numbers of
steps, so that m alone says what y is rounded to. In what follows rates are per step. A draw repeats
one proposal until it is accepted [CKS20]:

1.  Zero (where y is whole), block h = 0, 1, ... or the tail is chosen with weight 1, 2 * 2^k f(s_h)
    or 2 f(s) / (1 - exp(-slope)). Block h holds the 2^k steps from s_h = h 2^k on (from 1 + h 2^k
    where y is whole), the tail those from s on, where the blocks end; f(s + g) <= f(s)
    exp(-slope g) for all g >= 0.
2.  In a block m is uniform, and y is accepted with probability f(y) / f(s_h). In the tail
    m = s + g with g geometric, and y is accepted with probability f(y) / (f(s) exp(-slope g)),
    which is at most 1 as f(y) <= f(m).
3.  The sign is a fair bit.

An accepted proposal is zero with weight 1 = f(0), and y in a block with weight, or density,
2 * 2^k f(s_h) * 2^-k * f(y) / f(s_h) / 2 = f(y), and y in the tail with
2 f(s) exp(-slope g) * f(y) / (f(s) exp(-slope g)) / 2 = f(y). That is the law, and nothing is cut
off. It is drawn as stated, because every choice compares a uniform real U with a threshold, U and F
being streams of fair bits of which as many are drawn as the comparison takes:

*   Step 1 inverts the cumulative weights. The thresholds are their ratios to the total, in decimal
    arithmetic of bounded error (see `thresholds`), floored to a number of bits only where the bound
    leaves one floor. Sixteen bits of U mostly decide, by a table of 2^16 entries; 64 bits decide by
    a search; a U that agrees with a threshold in all 64 goes on in Python's integers.
*   Step 2 draws Bernoulli(exp(-d)) for a real d < 1 as [CKS20] Alg. 1 does, with no exponential
    at all: A_1, A_2, ... are Bernoulli(d), Bernoulli(d / 2), ... up to the first that is 0, and the
    answer is yes where that one's number is odd. Given d they are independent, so that F is the
    same in all of them. U < d is decided by the first 7 bits of U where these exceed every d of
    the block, by 64 bits of U and of F in floating point where U and d differ by more than 2^-40,
    and otherwise by fractions: d grows with F, and further bits of U and of F are drawn until all
    U and F that begin with those drawn agree. In floating point both are below 1, U takes one
    rounding and d ten, IEEE 754 arithmetic errs by less than 2^-52 of the result in each, and the
    bits of F that are left out change d by less than 2^-66.
*   The tail, one draw in millions, is drawn in Python's integers and fractions.

So no float decides anything that its rounding could change, and no float has its exponential or
logarithm taken. All bits are os.urandom's, on Linux the kernel's ChaCha20; there is no seed. The
running time depends on what is drawn: this is not constant-time code.
"""

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate, count
from typing import Literal

import numpy as np

from dpquery.arrays import Bits, Bools, Ints
from dpquery.measurement.noise.laws import Law

Entropy = Callable[[int], bytes]
Exponent = Callable[[Fraction], Fraction]

LARGEST = 2**63 - 1
_FINENESS = 5  # blocks of at most 2^-5 scales: few proposals are refused, and every d is below 1/4
_CHUNK = 1 << 15  # the arrays of a chunk stay in the processor's cache
_UNDECIDED = 2**16 - 1
_MARGIN = 2.0**-40
_TABLED = 4  # of the bits of a block: fewer than 2^13 integers are looked up, and not computed
_DRAWN_ON = 64  # bits of a real at once


@dataclass(frozen=True)
class BlockLaw:
    """One law of y, in steps, and the blocks of magnitudes it is drawn by."""

    power: Literal[1, 2]  # 1 for Laplace, 2 for Gaussian
    rate: Fraction  # f(y) = exp(-rate y^power), y in steps
    bits: int  # k; a block holds 2^k steps
    blocks: int  # their number; the tail begins where they end
    # a step is 2^-halvings. 0 where y is whole; 1 at least where y is real, so that no step has a
    # half inside, and all of it is rounded to one integer
    halvings: int = 0

    @classmethod
    def of(cls, law: Law, scale: float) -> "BlockLaw":
        """Return the blocks of a law, its tail beyond about exp(-16) or exp(-18)."""
        exact = Fraction(scale)
        bits = int(exact).bit_length() - 1 - _FINENESS
        halvings = max(1, -bits) if law.real else 0
        exact *= 1 << halvings
        bits = max(0, bits + halvings)
        rate, reach = 1 / (law.power * exact**law.power), 16 if law.power == 1 else 6
        return cls(law.power, rate, bits, (math.ceil(reach * exact) >> bits) + 1, halvings)

    @property
    def first(self) -> int:
        """Where the blocks begin: 1 where zero has a weight of its own, 0 where y is real."""
        return int(not self.halvings)

    def start(self, block: int) -> int:
        """Return s_h, or where the tail begins for h = blocks."""
        return self.first + (block << self.bits)

    def exponent(self, magnitude: int | Fraction) -> Fraction:
        """Return -ln f(y)."""
        return self.rate * (magnitude if self.power == 1 else magnitude * magnitude)

    @property
    def slope(self) -> Fraction:
        """The derivative of the exponent at the tail's start, above whose tangent it lies."""
        start = self.start(self.blocks)
        return self.power * self.exponent(start) / start

    def height(self, start: int, place: int, j: int, fraction: Fraction) -> Fraction:
        """Return d / j of y = start + place + fraction in the block that begins at start."""
        return (self.exponent(start + place + fraction) - self.exponent(start)) / j

    @property
    def half(self) -> int:
        """A half, in steps: (m + half) >> halvings is nearest to m + F, whatever 0 <= F < 1 is."""
        return 1 << self.halvings >> 1

    def spread(self, block: int) -> Fraction:
        """Return the largest d in a block, or the least bound of them where y is real."""
        return self.exponent(self.start(block + 1) - self.first) - self.exponent(self.start(block))

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
            weights = [Decimal(1)] * self.first
            weights += [(2 << self.bits) * height for height in inside]
            *parts, total = accumulate([*weights, 2 * tail / (1 - _exp(self.slope))])
            return [Fraction(part / total) for part in parts]


class BulkSampler:
    """Independent integer noise of one law, drawn in arrays.

    Args:
        law: which.
        scale: its scale, from 1 to below 2^52.
        entropy: returns so many independent fair bytes. The product never passes another than the
            operating system's; tests do, to make what is rare happen.
    """

    def __init__(self, law: Law, scale: float, *, entropy: Entropy = os.urandom) -> None:
        if not 1 <= scale < 2**52:
            raise ValueError("the scale must lie in [1, 2^52)")
        self.law = blocks = BlockLaw.of(law, scale)
        self._entropy, self._slow = entropy, SlowSampler(entropy)
        self._thresholds, self._guide, self._above, self._integers = _tables(blocks)
        # Room for the place within a block and for the sign, and mostly for the seven bits.
        self._word = np.dtype(f"u{next(w for w in (1, 2, 4, 8) if 8 * w > blocks.bits)}")

    def sample(self, size: int) -> Ints:
        """Return (size,) independent draws, those beyond +-(2^63 - 1) as that."""
        noise = np.empty(size, dtype=np.int64)
        chunks = range(0, max(1, size), _CHUNK)
        undecided = [self._proposed(noise[first : first + _CHUNK], first) for first in chunks]
        refused = self._refused(_Proposals.joined(undecided))
        if refused.size:
            noise[refused] = self.sample(refused.size)
        return noise

    def _proposed(self, noise: Ints, first: int) -> "_Proposals":
        """Write proposals into an array, and return those in blocks that may yet be refused.

        Args:
            noise: to be filled.
            first: where it begins in the sample.
        """
        law, choice = self.law, self._choices(noise.size)
        word = self._draw(noise.size, self._word)
        self._write(noise, choice, word)
        for i in np.flatnonzero(choice == len(self._thresholds)):
            drawn = self._slow.from_tail(law)
            sign = 1 - 2 * (int(word[i]) >> law.bits & 1)
            noise[i] = self.sample(1)[0] if drawn is None else sign * min(drawn, LARGEST)
        seven = self._seven_bits(word)
        going = np.flatnonzero(seven < self._above.max())  # a few more than of each block
        going = going[seven[going] < self._above.take(choice[going])]
        start = ((choice[going].astype(np.int64) - law.first) << law.bits) + law.first
        place = (word[going] & word.dtype.type((1 << law.bits) - 1)).astype(np.int64)
        u = seven[going].astype(np.uint64) << np.uint64(57)
        u |= self._draw(going.size, np.uint64) >> np.uint64(7)
        fraction = self._draw(going.size, np.uint64) if law.halvings else np.zeros_like(u)
        return _Proposals(going + first, start, place, fraction, u)

    def _write(self, noise: Ints, choice: Bits, word: Bits) -> None:
        """Write the integers of step 1's choices; those of the tail are not looked at.

        Args:
            noise: to be filled.
            choice: c is block c - first, or zero.
            word: the place within the block, and the sign above it.
        """
        law, kind = self.law, word.dtype.type
        if law.bits <= _TABLED:
            index = choice << np.uint16(law.bits + 1)
            index |= word & kind((2 << law.bits) - 1)
            self._integers.take(index, out=noise, mode="clip")
            return
        np.left_shift(choice, law.bits, out=noise, dtype=np.int64)
        noise += (word & kind((1 << law.bits) - 1)).astype(np.int64)
        noise += law.start(-law.first) + law.half
        noise >>= law.halvings
        if law.first:
            noise *= choice != 0
        sign = (word >> kind(law.bits) & kind(1)).astype(np.int64)
        sign *= -2
        sign += 1
        noise *= sign

    def _seven_bits(self, word: Bits) -> Bits:
        """Return the first bits of every U: those above the sign, or others if these are too few.

        There are none where all blocks are single integers, none of which is refused.
        """
        if not self._above.any():
            return word[:0]
        used = self.law.bits + 1
        if 8 * word.itemsize < used + 7:
            return self._draw(word.size, np.uint8) & np.uint8(127)
        return (word >> word.dtype.type(used)).astype(np.uint8) & np.uint8(127)

    def _choices(self, size: int) -> Bits:
        """Return step 1's choices: 0 for zero if it is one, then the blocks, and the tail."""
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

    def _refused(self, proposals: "_Proposals") -> Ints:
        """Return the positions of those that step 2 refuses, by the A_j."""
        refused = []
        for j in count(1):
            below = self._below(proposals, j)
            if j % 2 == 0:
                refused.append(proposals.position[~below])
            if not (left := int(np.count_nonzero(below))):
                break
            proposals = proposals.where(below, self._draw(left, np.uint64))
        return np.concatenate([*refused, proposals.position[:0]])

    def _below(self, proposals: "_Proposals", j: int) -> Bools:
        """Return whether U < d / j."""
        law, u = self.law, proposals.u.astype(np.float64) * 2.0**-64
        step = proposals.place + proposals.fraction.astype(np.float64) * 2.0**-64
        d = step * (1.0 if law.power == 1 else 2 * proposals.start + step) * float(law.rate) / j
        below = u < d
        for i in np.flatnonzero(np.abs(u - d) < _MARGIN).tolist():
            start, place, fraction = proposals.exactly(i, law)
            height = partial(law.height, start, place, j)
            below[i] = self._slow.below(LazyReal.of(int(proposals.u[i])), height, fraction)
        return below

    def _draw(self, size: int, kind: np.dtype[np.unsignedinteger] | type) -> Bits:
        dtype = np.dtype(kind)
        return np.frombuffer(self._entropy(size * dtype.itemsize), dtype=dtype)


@lru_cache(maxsize=8)
def _tables(law: BlockLaw) -> tuple[Bits, Bits, Bits, Ints]:
    """Return what decides quickly, from public numbers alone; small draws of one law share it.

    Returns:
        The thresholds of step 1 in 64 bits; its choice for each 16 bits, or _UNDECIDED; for each
        choice the least of seven bits of U that accept; where blocks are short, the integer of each
        choice, sign and place, the first of which varies least.
    """
    thresholds = np.array(law.thresholds(64), dtype=np.uint64)
    coarse = (thresholds >> np.uint64(48)).astype(np.intp)
    guide = np.searchsorted(coarse, np.arange(2**16)).astype(np.uint16)
    guide[coarse] = _UNDECIDED
    spreads = [Fraction(0)] * law.first
    spreads += [*map(law.spread, range(law.blocks)), Fraction(0)]
    above = np.array([math.ceil(128 * spread) for spread in spreads], dtype=np.uint8)
    integers = _integers(law) if law.bits <= _TABLED else np.zeros(0, dtype=np.int64)
    for table in (thresholds, guide, above, integers):
        table.flags.writeable = False
    return thresholds, guide, above, integers


def _integers(law: BlockLaw) -> Ints:
    """Return what each choice, sign and place is rounded to; 0 for zero, and for the tail."""
    places = np.arange(1 << law.bits)
    table = np.zeros((law.first + law.blocks + 1, 2, places.size), dtype=np.int64)
    for block in range(law.blocks):
        magnitudes = (law.start(block) + places + law.half) >> law.halvings
        table[law.first + block] = magnitudes, -magnitudes
    return table.ravel()


@dataclass(frozen=True)
class _Proposals:
    """Proposals in blocks that are neither accepted nor refused so far."""

    position: Ints  # of each in the sample
    start: Ints  # s_h of their blocks
    place: Ints  # whole steps from there on
    fraction: Bits  # the first 64 bits of F, 0 where y is whole
    u: Bits  # the first 64 bits of the U that is compared next
    # every F of which more bits were drawn, by position: a proposal has one F
    drawn_on: dict[int, "LazyReal"] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: "Sequence[_Proposals]") -> "_Proposals":
        """Return the proposals of all chunks."""
        return cls(
            np.concatenate([part.position for part in parts]),
            np.concatenate([part.start for part in parts]),
            np.concatenate([part.place for part in parts]),
            np.concatenate([part.fraction for part in parts]),
            np.concatenate([part.u for part in parts]),
        )

    def where(self, kept: Bools, u: Bits) -> "_Proposals":
        """Return some of them, each with its next U."""
        position, start, place = self.position[kept], self.start[kept], self.place[kept]
        return _Proposals(position, start, place, self.fraction[kept], u, self.drawn_on)

    def exactly(self, i: int, law: BlockLaw) -> tuple[int, int, "LazyReal"]:
        """Return start, place and F of the i-th of them."""
        exact = LazyReal(width=Fraction(0)) if law.first else LazyReal.of(int(self.fraction[i]))
        fraction = self.drawn_on.setdefault(int(self.position[i]), exact)
        return int(self.start[i]), int(self.place[i]), fraction


@dataclass
class LazyReal:
    """A uniform real of which as many bits are drawn as its comparisons take."""

    low: Fraction = Fraction(0)  # the bits that are drawn
    width: Fraction = Fraction(1)  # it is uniform in [low, low + width); 0 where it is low

    @classmethod
    def of(cls, word: int) -> "LazyReal":
        """Return the real of which these are the first 64 bits."""
        return cls(Fraction(word, 2**64), Fraction(1, 2**64))

    @property
    def high(self) -> Fraction:
        """An upper bound that it does not reach, but where it is known."""
        return self.low + self.width


@dataclass(frozen=True)
class SlowSampler:
    """Exact draws one at a time, in integers and fractions of any length."""

    entropy: Entropy = os.urandom

    def bits(self, size: int) -> int:
        """Return so many fair bits."""
        drawn = int.from_bytes(self.entropy(-(-size // 8)), "little")
        return drawn & ((1 << size) - 1)

    def draw_on(self, real: LazyReal) -> None:
        """Draw the next bits of a real."""
        if real.width:
            real.width /= 1 << _DRAWN_ON
            real.low += real.width * self.bits(_DRAWN_ON)

    def below(self, u: LazyReal, height: Exponent, fraction: LazyReal) -> bool:
        """Return whether U < height(F), for a height that increases in F."""
        while True:
            if u.high <= height(fraction.low):
                return True
            if u.low >= height(fraction.high):
                return False
            self.draw_on(u)
            self.draw_on(fraction)

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
        """Return Bernoulli(exp(-exponent))."""
        return self.accept_at(lambda _: exponent, LazyReal(width=Fraction(0)))

    def accept_at(self, exponent: Exponent, fraction: LazyReal) -> bool:
        """Return Bernoulli(exp(-exponent(F))), the exponent growing with F, by [CKS20] Alg. 1.

        It is as many equal parts of at most 1 as it takes, and the algorithm has to say yes to all.
        """
        parts = max(1, math.ceil(exponent(fraction.high)))

        def below(j: int) -> bool:
            return self.below(LazyReal(), lambda f: exponent(f) / (j * parts), fraction)

        return all(next(j for j in count(1) if not below(j)) % 2 for _ in range(parts))

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
        """Return the integer nearest to a magnitude in the tail, or None where that is refused."""
        start = law.start(law.blocks)
        magnitude = start + (above := self.geometric(law.slope))
        envelope = law.exponent(start) + law.slope * above
        fraction = LazyReal(width=Fraction(1 - law.first))
        accepted = self.accept_at(lambda f: law.exponent(magnitude + f) - envelope, fraction)
        return (magnitude + law.half) >> law.halvings if accepted else None


def _exp(exponent: Fraction) -> Decimal:
    """Return exp(-exponent) at the context's precision."""
    return (-(Decimal(exponent.numerator) / Decimal(exponent.denominator))).exp()
