"""What a dataset can still be charged, in terms that people ask in: shares, epsilons, repetitions.

All that speaks of a budget takes its figures from here. None of them is computed from data, and
each is rounded so that it holds: an epsilon that fits is one whose exact price fits, and an epsilon
that covers what was spent is one whose exact price is no less. A dataset with a parent is charged
to two accounts; the one with less left is the one that decides.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from dpquery.exceptions import SpecError
from dpquery.measurement import accounting
from dpquery.measurement.accounting import EPSILONS, UNIT, Cap, Guarantee, Price, units_text
from dpquery.measurement.ledger.events import Account
from dpquery.spec.numbers import power
from dpquery.spec.spec import Accounting
from dpquery.strategy.strategy import Noise

_DIGITS = 3  # of an epsilon that is offered
_DECADE = 9 * 10 ** (_DIGITS - 1)  # numbers of so many digits between two powers of ten
_LEAST = -6  # the power of ten of the least epsilon
_STEPS = 12 * _DECADE  # up to the largest one
STILL_FREE = "`dpquery answer` and `dpquery error-report` of what was released stay free"
"""What can be done where nothing is left."""
PriceAt = Callable[[Fraction], Price]
"""Returns the price of a release at an epsilon; SpecError where there can be no such release."""


@dataclass(frozen=True)
class Funds:
    """A dataset's account, and its parent's if it has one."""

    account: Account  # the dataset's
    parent: Account | None = None  # its parent's, which every charge goes to as well

    @property
    def payers(self) -> tuple[Account, ...]:
        """All accounts that a release is charged to."""
        return (self.account,) if self.parent is None else (self.account, self.parent)

    @property
    def tighter(self) -> Account:
        """The account with less left, which decides."""
        return min(self.payers, key=lambda payer: payer.remaining)

    @property
    def remaining(self) -> int:
        """Units that can still be charged."""
        return max(0, self.tighter.remaining)

    def fits(self, price: Price) -> bool:
        """Whether a release of this price would be accepted: no account would pass its cap."""
        return self.threshold_left >= price.threshold and all(
            payer.admits(price.units, price.pure) for payer in self.payers
        )

    @property
    def threshold_left(self) -> Fraction:
        """The delta that thresholds of discoveries can still spend."""
        return min(payer.cap.discover - payer.threshold for payer in self.payers)

    def tightest(self, price: Price) -> Account:
        """The account with the least room for a price, by either of its sums."""

        def over(payer: Account) -> tuple[bool, Fraction]:
            ratio = payer.over(price.units, price.pure)
            return ratio is None, ratio or Fraction(0)

        return max(self.payers, key=over)

    def repetitions(self, price: Price) -> int:
        """Return how many releases of a price would be accepted, one after another."""
        over = self.tightest(price).over(price.units, price.pure)
        fitting = 0 if over is None else int(1 / over)
        return min(fitting, self.threshold_left // price.threshold) if price.threshold else fitting

    def room_for(self, price_at: PriceAt, *, epsilon: Fraction) -> "Room":
        """Return what there is room for beside or in place of a release.

        The price never falls as epsilon grows; there is no release at some epsilons that are very
        far off.
        """

        def fits(at: Fraction) -> bool:
            return self.fits(price_at(at))

        price, (largest, refused) = price_at(epsilon), _neighbours(fits, near=epsilon)
        limited = largest is None or refused is not None
        return Room(self, price, self.repetitions(price), largest, limited)

    def room_like(
        self, guarantee_at: Callable[[Fraction], Guarantee], *, epsilon: Fraction
    ) -> "Room":
        """Return what there is room for after a release whose guarantee at any epsilon is known."""
        cap = self.account.cap
        return self.room_for(lambda at: price_against(guarantee_at(at), cap), epsilon=epsilon)

    @property
    def epsilon_left(self) -> Fraction | None:
        """What a release of the cap's own guarantee could still have; None without an epsilon."""
        cap = self.tighter.cap
        if cap.epsilon is None:
            return None
        largest = [self.epsilon_left_with(noise) for noise in _noises(cap)]
        return max((epsilon for epsilon in largest if epsilon is not None), default=None)

    def epsilon_left_with(self, noise: Noise) -> Fraction | None:
        """What a release with some noise could still have at the cap's delta; None if none fits."""
        cap = self.tighter.cap
        return largest_epsilon(lambda at: self.fits(_price_at(cap, noise, at)), near=EPSILONS[1])


@dataclass(frozen=True)
class Room:
    """What some funds have room for."""

    funds: Funds  # the accounts
    price: Price  # of one release
    repetitions: int  # how many releases of this price would be accepted, one after another
    # the largest epsilon of three digits at which one release like it would be accepted; it was
    # priced, and fits. None where none does
    largest: Fraction | None
    # whether the budget sets it. It does not where no larger one can be asked for, or its noise not
    # be drawn
    limited: bool = True

    @property
    def share(self) -> float:
        """The price as a share of the whole cap of the account that decides."""
        price = self.price
        return float(self.funds.tightest(price).share(price.units, price.pure))


def price_against(spent: Guarantee, cap: Cap) -> Price:
    """Return what a guarantee is charged against a cap.

    Raises:
        BudgetExceededError: the cap cannot be charged for it at all.
    """
    return accounting.price_of(spent, cap.currency, cap.unit)


def largest_epsilon(fits: Callable[[Fraction], bool], *, near: Fraction) -> Fraction | None:
    """Return the largest epsilon of three digits that fits, or None where none does.

    Args:
        fits: whether an epsilon fits; where it does, so does every smaller one. SpecError where
            there can be no release.
        near: an epsilon at which there can be one. Where there can be none, the epsilon is too
            small if it is below this, and too large if it is above.
    """
    return _neighbours(fits, near=near)[0]


def epsilon_spent(account: Account) -> Fraction | None:
    """Return the least epsilon of three digits that covers all that is spent, at the cap's delta.

    Privacy: a guarantee of that epsilon is charged no less than was spent, or all that was spent is
    pure and adds up to no more. None where the cap has no epsilon, or where none of up to 1e6
    covers it.
    """
    cap, spent, pure = account.cap, account.spent, account.pure
    if cap.epsilon is None:
        return None
    if spent == 0:
        return Fraction(0)

    def short_of(epsilon: Fraction) -> bool:
        if pure is not None and pure <= epsilon * UNIT:
            return False
        return _price_at(cap, _noises(cap)[0], epsilon).units < spent

    return _neighbours(short_of, near=EPSILONS[1])[1]


def _neighbours(
    fits: Callable[[Fraction], bool], *, near: Fraction
) -> tuple[Fraction | None, Fraction | None]:
    """Return the largest epsilon of three digits that fits, and the least that does not.

    Both were put to `fits` themselves, so that no error of the search can make either untrue.
    """
    fitting, other, low, high = None, None, -1, _STEPS + 1
    while high - low > 1:
        middle = (low + high) // 2
        epsilon = _on_grid(middle)
        try:
            if fits(epsilon):
                fitting, low = epsilon, middle
            else:
                other, high = epsilon, middle
        except SpecError:
            low, high = (middle, high) if epsilon < near else (low, middle)
    return fitting, other


def times_left(over: Fraction) -> str:
    """Return a charge over what is left, where it does not fit, in two digits, never rounded down.

    >>> times_left(Fraction(1001, 1000))
    '1.1 times'
    """
    step = Fraction(10) ** (math.floor(math.log10(over)) - 1)
    return f"{float(math.ceil(over / step) * step):,g} times"


def epsilon_text(epsilon: Fraction, delta: Fraction = Fraction(0)) -> str:
    """Return an epsilon of three digits as it is typed: exactly; one that fits at a delta with it.

    >>> epsilon_text(Fraction("2.93")), epsilon_text(Fraction("0.00000123"), Fraction("1e-7"))
    ('2.93', '1.23e-6 (delta 1e-7)')
    """
    return power(float(epsilon)) + (f" (delta {delta_text(delta)})" if delta else "")


def delta_text(delta: Fraction) -> str:
    """Return a delta exactly: as it is typed, where that says it.

    >>> delta_text(Fraction("5e-9")), delta_text(Fraction(1, 3))
    ('5e-9', '1/3')
    """
    typed = power(float(delta))
    return typed if Fraction(typed) == delta else str(delta)


def cap_text(cap: Cap, *, by_epsilons: bool = False, form: Callable[[float], str] = power) -> str:
    """Return a cap in words, and which sum is held against it where that is not plain."""
    if cap.epsilon is None:
        return f"rho {units_text(cap.units)}"
    delta = f" at delta {form(float(cap.delta))}" if cap.delta else ""
    delta += f" ({form(float(cap.discover))} of it for discoveries)" if cap.discover else ""
    counted = ", counted as mu^2 of GDP" if cap.currency == "mu^2" else ""
    if by_epsilons:
        counted = ", counted as a plain sum of pure epsilons"
    return f"epsilon {float(cap.epsilon):g}{delta}{counted}"


def _noises(cap: Cap) -> tuple[Noise, ...]:
    """Return the kinds of noise that a cap can be charged for; first that whose promise is its."""
    return ("laplace",) if cap.currency == "epsilon" else ("gaussian", "laplace")


def _price_at(cap: Cap, noise: Noise, epsilon: Fraction) -> Price:
    """Return the price of a release at the cap's delta, and at another epsilon.

    Laplace noise is priced by its epsilon alone, which is never less than what it costs.
    """
    kind: Accounting = "gdp" if cap.currency == "mu^2" else "zcdp"
    spent = accounting.guarantee(noise, epsilon=epsilon, delta=cap.noise_delta, accounting=kind)
    return price_against(spent, cap)


def _on_grid(place: int) -> Fraction:
    decade, step = divmod(place, _DECADE)
    power = decade + _LEAST - _DIGITS + 1
    return Fraction((10 ** (_DIGITS - 1) + step) * 10 ** max(power, 0), 10 ** max(-power, 0))
