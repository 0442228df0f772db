"""The exact privacy curve of Gaussian noise, in interval arithmetic: what a mu is worth, and costs.

mu-GDP implies (epsilon, delta)-DP for exactly the delta of one Gaussian measurement [BW18, DRS22],

    delta(epsilon, mu) = Phi(-u) - exp(epsilon) Phi(-v),  u = epsilon / mu - mu / 2,  v = u + mu,
                       = phi(u) (M(u) - M(v)),

M = (1 - Phi) / phi being Mills' ratio; the second line has no large exponential, and neither of its
terms is ever lost in the other. M falls, so an upper bound of delta takes an upper bound of M(u)
and a lower one of M(v). Every operation here gives two decimals of 60 digits between which the
exact result lies. What is searched for is a whole number of units, decided by such bounds alone:
the same on every machine, and never on the wrong side. The analysis is in docs/MATH.md, section 26.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Self

REMEMBERED = 2**12  # conversions: a search asks for the same ones again
_UNIT = 10**18  # amounts are whole numbers of 1 / _UNIT
_DOWN = Context(prec=60, rounding=ROUND_FLOOR, Emin=MIN_EMIN, Emax=MAX_EMAX)
_UP = Context(prec=60, rounding=ROUND_CEILING, Emin=MIN_EMIN, Emax=MAX_EMAX)
_SERIES_BELOW = 6  # from here on the continued fraction takes fewer terms
_FRACTION_TERMS = 4000  # over x^2, and some more
_FAR_BELOW = -37  # zero: from here on floats tell Mills' ratio no longer


@dataclass(frozen=True)
class Interval:
    """Two decimals between which a number lies; operations round outwards."""

    low: Decimal
    high: Decimal

    @classmethod
    def of(cls, value: Fraction | int) -> Self:
        """Return the interval of a fraction."""
        above, below = Decimal(value.numerator), Decimal(value.denominator)
        return cls(_DOWN.divide(above, below), _UP.divide(above, below))

    def __add__(self, other: "Interval") -> "Interval":
        """Return the sum."""
        return Interval(_DOWN.add(self.low, other.low), _UP.add(self.high, other.high))

    def __sub__(self, other: "Interval") -> "Interval":
        """Return the difference."""
        return Interval(_DOWN.subtract(self.low, other.high), _UP.subtract(self.high, other.low))

    def __mul__(self, other: "Interval") -> "Interval":
        """Return the product."""
        ends = [(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(
            min(_DOWN.multiply(a, b) for a, b in ends), max(_UP.multiply(a, b) for a, b in ends)
        )

    def __truediv__(self, other: "Interval") -> "Interval":
        """Return the quotient by an interval above zero."""
        if other.low <= 0:
            raise ZeroDivisionError("the divisor's interval must lie above zero")
        return self * Interval(_DOWN.divide(1, other.high), _UP.divide(1, other.low))

    def exp(self) -> "Interval":
        """Return the exponential; decimal's is the nearest to the exact one, so one further is."""
        low = max(Decimal(0), _DOWN.next_minus(_DOWN.exp(self.low)))
        return Interval(low, _UP.next_plus(_UP.exp(self.high)))

    def sqrt(self) -> "Interval":
        """Return the square root of an interval not below zero; as for `exp`."""
        low = max(Decimal(0), _DOWN.next_minus(_DOWN.sqrt(self.low)))
        return Interval(low, _UP.next_plus(_UP.sqrt(self.high)))


_ZERO, _ONE, _TWO = Interval.of(0), Interval.of(1), Interval.of(2)
PI = Interval(
    Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781"),
    Decimal("3.14159265358979323846264338327950288419716939937510582097494459230782"),
)
_HALF_ROOT = (PI / _TWO).sqrt()  # 1 / (2 phi(0))
_DENSITY = _ONE / (_TWO * PI).sqrt()


@lru_cache(REMEMBERED)
def squared_mu_of(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest squared mu, in whole units, with which mu-GDP implies (epsilon, delta)-DP.

    >>> round(float(squared_mu_of(Fraction(1), Fraction(1, 10**6))) ** -0.5, 4)  # sigma
    4.2247
    """
    if epsilon <= 0 or not 0 < delta < 1:
        raise ValueError("epsilon must be positive and delta in (0, 1)")
    promised = Interval.of(delta).low
    least, wanted = float(epsilon), math.log(delta)
    near = _near(lambda mu: _near_delta(least, mu) - wanted)

    def excess(units: int) -> Decimal:
        return _log_ratio(delta_of(epsilon, Fraction(units, _UNIT)).high, promised)

    return Fraction(_last(excess, _UNIT * near**2), _UNIT)


@lru_cache(REMEMBERED)
def epsilon_of_gdp(squared_mu: Fraction, delta: Fraction) -> Fraction:
    """Return the epsilon that mu-GDP implies at a delta, rounded up to whole units.

    >>> round(float(epsilon_of_gdp(Fraction(56, 1000), Fraction(1, 10**6))), 4)
    0.9997
    """
    if squared_mu < 0 or not 0 < delta < 1:
        raise ValueError("the squared mu must not be negative, and delta in (0, 1)")
    if squared_mu == 0 or delta_of(Fraction(0), squared_mu).high <= Interval.of(delta).low:
        return Fraction(0)
    promised = Interval.of(delta).low

    def shortfall(units: int) -> Decimal:
        return _log_ratio(delta_of(Fraction(units, _UNIT), squared_mu).high, promised).copy_negate()

    mu, wanted = math.sqrt(squared_mu), math.log(delta)
    near = _near(lambda epsilon: wanted - _near_delta(epsilon, mu))
    return Fraction(_last(shortfall, _UNIT * near) + 1, _UNIT)


@lru_cache(REMEMBERED)
def squared_mu_of_pure(epsilon: Fraction) -> Fraction:
    """Return the least squared mu, in whole units, such that epsilon-DP implies mu-GDP.

    That is mu = 2 Phi^-1(exp(epsilon) / (1 + exp(epsilon))), where the curve of mu touches that of
    randomised response [DRS22]; Phi(-mu / 2) (1 + exp(epsilon)) <= 1 is what decides.

    >>> round(float(squared_mu_of_pure(Fraction(1))), 4)
    1.5179
    """
    odds = _ONE + Interval.of(epsilon).exp()

    def shortfall(units: int) -> Decimal:
        half = Interval.of(Fraction(units, 4 * _UNIT)).sqrt()
        return _UP.ln((_density(half) * mills(half) * odds).high).copy_negate()

    least = float(epsilon)
    wanted = least + math.log1p(math.exp(-least)) - math.log(2 * math.pi) / 2
    near = _near(lambda half: half * half / 2 - math.log(_near_mills(half)) - wanted)
    return Fraction(_last(shortfall, 4 * _UNIT * near**2) + 1, _UNIT)


def delta_of(epsilon: Fraction, squared_mu: Fraction) -> Interval:
    """Return an interval with the delta of mu-GDP at an epsilon of 0 or more; mu is positive."""
    mu = Interval.of(squared_mu).sqrt()
    ratio, half = Interval.of(epsilon) / mu, mu / _TWO
    u, v = ratio - half, ratio + half
    return _density(u) * (mills(u) - mills(v))


def tail(x: Fraction) -> Interval:
    """Return the probability that a standard normal number is above one."""
    exact = Interval.of(x)
    return _density(exact) * mills(exact)


def _density(x: Interval) -> Interval:
    ends = x.low.copy_abs(), x.high.copy_abs()
    size = Interval(_ZERO.low if x.low <= 0 <= x.high else min(ends), max(ends))
    return _DENSITY * (_ZERO - size * size / _TWO).exp()


def mills(x: Interval) -> Interval:
    """Return Mills' ratio (1 - Phi(x)) / phi(x) = exp(x^2 / 2) (integral of exp(-t^2 / 2) over x).

    Mills' ratio M falls, so that M(low) is the most; it is convex, and M' = x M - 1, so that the
    tangent at `low` is never above it.
    """
    width, least = Interval(x.high, x.high) - Interval(x.low, x.low), _mills(x.low)
    tangent = least + (Interval(x.low, x.low) * least - _ONE) * width
    return Interval(max(Decimal(0), tangent.low), least.high)


def _mills(x: Decimal) -> Interval:
    """Return Mills' ratio of an exact number: M(x) above 0, and 1 / phi(x) - M(-x) below."""
    size = x.copy_abs()
    if x >= _SERIES_BELOW:
        return _continued_fraction(x)
    root = _HALF_ROOT * (Interval(x, x) * Interval(x, x) / _TWO).exp()  # 1 / (2 phi(x))
    if size < _SERIES_BELOW:
        return root - _series(size) if x > 0 else root + _series(size)
    return root + root - _continued_fraction(size)


def _continued_fraction(x: Decimal) -> Interval:
    """Return Mills' ratio for x above 0, by 1 / (x + 1 / (x + 2 / (x + 3 / (x + ...)))).

    It is begun at a tail of which no more is used than that it lies between x and x + n / x.
    """
    terms = 30 + _FRACTION_TERMS // int(x) ** 2  # for some 50 digits
    low, high = x, _UP.add(x, _UP.divide(terms, x))
    for k in range(terms - 1, 0, -1):
        low, high = _DOWN.add(x, _DOWN.divide(k, high)), _UP.add(x, _UP.divide(k, low))
    return Interval(_DOWN.divide(1, high), _UP.divide(1, low))


def _series(x: Decimal) -> Interval:
    """Return (Phi(x) - 1/2) / phi(x) = x + x^3 / 3 + x^5 / (3 5) + ... for x from 0 on.

    Where x^2 is at most half of the next odd number, each term is at most half of the one before,
    and all that follow a term add up to that term at most.
    """
    square_low, square_high = _DOWN.multiply(x, x), _UP.multiply(x, x)
    low = high = term_low = term_high = x
    odd = 1
    while square_high > (odd + 1) // 2 or term_high > low.scaleb(-65):
        odd += 2
        term_low = _DOWN.divide(_DOWN.multiply(term_low, square_low), odd)
        term_high = _UP.divide(_UP.multiply(term_high, square_high), odd)
        low, high = _DOWN.add(low, term_low), _UP.add(high, term_high)
    return Interval(low, _UP.add(high, term_high))


def _log_ratio(above: Decimal, below: Decimal) -> Decimal:
    """Return the logarithm of a quotient rounded up: above zero wherever the exact one is."""
    return _UP.ln(_UP.divide(above, below))


def _last(excess: Callable[[int], Decimal], near: float) -> int:
    """Return the last whole number at which a rising function is not above zero; 0 if none is.

    Where to look is a guess, mended by a secant; what is returned is decided by the function there
    and at the next number.
    """
    place = max(1, int(near))
    ahead = place + max(1, place >> 20)
    here, there = excess(place), excess(ahead)
    if there > here:
        place = max(1, place - int(here * (ahead - place) / (there - here)))
    step = 1
    if excess(place) <= 0:
        low = place
        while excess(low + step) <= 0:
            low, step = low + step, 2 * step
        high = low + step
    else:
        high = place
        while high > step and excess(high - step) > 0:
            high, step = high - step, 2 * step
        low = max(0, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    return low


def _near(rises: Callable[[float], float]) -> float:
    """Return about where a rising function of floats passes zero, between 1e-12 and 1e6."""
    low, high = math.log(1e-12), math.log(1e6)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(math.exp(middle)) <= 0 else (low, middle)
    return math.exp(low)


def _near_delta(epsilon: float, mu: float) -> float:
    """Return about the logarithm of the delta of mu at an epsilon; 0 where it is near 1."""
    u = epsilon / mu - mu / 2
    if u < _FAR_BELOW:
        return 0.0
    ratio = _near_mills(u) - _near_mills(u + mu)
    return -u * u / 2 + math.log(max(ratio, 1e-300) / math.sqrt(2 * math.pi))


def _near_mills(x: float) -> float:
    """Return about Mills' ratio; 1e300 far below zero."""
    if x > 20:
        return 1 / (x + 1 / (x + 2 / (x + 3 / (x + 4 / x))))
    if x < _FAR_BELOW:
        return 1e300
    return math.sqrt(math.pi / 2) * math.exp(x * x / 2) * math.erfc(x / math.sqrt(2))
