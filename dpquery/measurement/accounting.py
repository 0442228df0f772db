"""Privacy accounting: the guarantee of a release, its charge, and the noise scale that meets it.

Everything that decides is exact: guarantees are fractions, charges and caps are whole numbers of
1e-18, and every rounding goes against the spender. Laplace noise gives pure epsilon-DP. Rounded
Gaussian noise gives mu-GDP [DRS22], and (epsilon, delta) is turned into mu by the exact curve of
`gdp`. Discrete Gaussian noise gives rho-zCDP [BS16], and (epsilon, delta) is turned into
rho by the tight conversion of [CKS20] Prop. 12: for every order alpha > 1,

    epsilon <= alpha rho + ln(1 / (alpha delta)) / (alpha - 1) + ln(1 - 1 / alpha).

It holds for any alpha, so a float search may pick alpha and decimal arithmetic of 60 digits then
evaluates the bound there: no rounding in the search can make a result unsafe.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from dpquery.exceptions import BudgetExceededError, SpecError
from dpquery.measurement import gdp
from dpquery.measurement.noise.laws import Law, law_of
from dpquery.spec.numbers import power
from dpquery.spec.spec import Accounting, Budget, Privacy
from dpquery.strategy.strategy import Noise

Currency = Literal["epsilon", "rho", "mu^2"]
GuaranteeKind = Accounting
CURRENCIES: dict[Accounting, Currency] = {"pure": "epsilon", "zcdp": "rho", "gdp": "mu^2"}
"""What losses are added up in, by the accounting."""

UNIT = 10**18
EPSILONS = (Fraction(1, 10**6), Fraction(10**6))
"""The least and the largest epsilon of a release."""
_DIGITS = 60
_SLACK = Decimal("1e-30")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")


@dataclass(frozen=True)
class Guarantee:
    """The privacy guarantee of one release."""

    kind: GuaranteeKind  # "pure" for epsilon-DP, "zcdp" for rho-zCDP, "gdp" for mu-GDP
    amount: Fraction  # the epsilon, the rho or the square of mu, exactly as it is charged
    epsilon: Fraction  # the epsilon that was asked for
    delta: Fraction  # the delta that was asked for; 0 where the guarantee is pure
    # what pure noise costs in zCDP, where that was worked out for what it is added to
    rho: Fraction | None = None
    squared_mu: Fraction | None = None  # what it costs in GDP, likewise
    # the delta that a threshold spends beside the noise: of a discovery alone
    threshold: Fraction = Fraction(0)

    @property
    def native(self) -> dict[str, str]:
        """The same in exact text, as the ledger keeps it."""
        spent: dict[str, str] = {self.kind: str(self.amount)}
        return spent | {"threshold": str(self.threshold)} if self.threshold else spent

    @property
    def law(self) -> Law:
        """The law of its noise: only rounded Gaussian noise is mu-GDP exactly."""
        return law_of(self.kind)


@dataclass(frozen=True)
class Cap:
    """The most a dataset may ever spend, in a currency that is fixed when it is registered."""

    currency: Currency  # what is added up: epsilon, rho of zCDP, or the square of mu of GDP
    units: int  # the cap in units of 1e-18
    epsilon: Fraction | None = None  # the epsilon declared, or None where rho was declared
    delta: Fraction = Fraction(0)  # the delta declared with it, 0 if none
    # whose loss is added up, as `unit_of` puts it: charges for other units do not add
    unit: str = "row, add-remove"
    discover: Fraction = Fraction(0)  # the part of delta that thresholds of discoveries may spend

    @property
    def pure_units(self) -> int | None:
        """The epsilon up to which pure releases alone may be added up, in units of 1e-18.

        None where no epsilon was declared: a cap on rho promises no epsilon without a delta.
        """
        return None if self.epsilon is None else math.floor(self.epsilon * UNIT)

    @property
    def noise_delta(self) -> Fraction:
        """The delta at which the units imply the epsilon: what discoveries may not spend."""
        return self.delta - self.discover


@dataclass(frozen=True)
class Price:
    """What a release is charged: units of 1e-18 of a currency, for the loss of a protected unit.

    Units are worth something else in another currency, so a charge names all three. `pure` is the
    epsilon of a pure release, in units of 1e-18 too; None for any other. `threshold` is the delta
    that a discovery spends beside.
    """

    units: int
    currency: Currency
    unit: str
    pure: int | None = None
    threshold: Fraction = Fraction(0)


def parse_epsilon(text: str) -> Fraction:
    """Read an epsilon exactly as typed; between 1e-6 and 1e6, or a SpecError."""
    return _parse(text, name="epsilon", low=EPSILONS[0], high=EPSILONS[1])


def parse_delta(text: str) -> Fraction:
    """Read a delta exactly as typed; 0, or from 1e-100 to below 1, or a SpecError."""
    value = _parse(text, name="delta", low=Fraction(0), high=Fraction(1))
    if value == 1 or 0 < value < Fraction(1, 10**100):
        raise SpecError(f"delta {text!r} is not from 1e-100 to below 1, nor 0; try 1e-9")
    return value


def guarantee(
    noise: Noise, *, epsilon: Fraction, delta: Fraction, accounting: Accounting = "zcdp"
) -> Guarantee:
    """Return the guarantee that a noise gives under (epsilon, delta).

    Privacy: pure epsilon for Laplace noise. For Gaussian noise the largest rho, or with accounting
    "gdp" the largest squared mu, rounded down to a multiple of 1e-18, such that rho-zCDP or mu-GDP
    implies (epsilon, delta)-DP.

    Raises:
        SpecError: Gaussian noise without a delta, or an epsilon too small to be counted.
    """
    if epsilon <= 0 or not 0 <= delta < 1:
        raise ValueError("epsilon must be positive and delta in [0, 1)")
    if noise == "laplace":
        return Guarantee("pure", epsilon, epsilon=epsilon, delta=Fraction(0))
    if delta == 0:
        raise SpecError(
            "Gaussian noise needs a delta above 0, and it is 0; leave --delta out, or declare "
            "`privacy: {delta: 1e-9}`"
        )
    if accounting == "gdp":
        amount = gdp.squared_mu_of(epsilon, delta)
    else:
        amount = _largest_rho(epsilon, delta)
    if amount <= 0:
        raise SpecError(
            f"epsilon {float(epsilon):g} at delta {power(float(delta))} is too small for Gaussian "
            "noise; ask for a larger epsilon"
        )
    kind: GuaranteeKind = "gdp" if accounting == "gdp" else "zcdp"
    return Guarantee(kind, amount, epsilon=epsilon, delta=delta)


def epsilon_of_mu(mu: float, delta: Fraction, accounting: Accounting) -> float:
    """Return the epsilon of Gaussian noise of standard deviation 1 / mu at sensitivity 1."""
    if accounting == "gdp":
        return _float_up(gdp.epsilon_of_gdp(Fraction(mu) ** 2, delta))
    return epsilon_of(Fraction(mu) ** 2 / 2, delta)


def epsilon_of_units(cap: Cap, units: int) -> float:
    """Return the epsilon that units of a cap's currency imply at its delta, rounded up.

    Privacy: at what discoveries leave of the delta; together with theirs it is the cap's.

    Raises:
        ValueError: the cap has no delta.
    """
    amount = Fraction(units, UNIT)
    if cap.currency == "mu^2":
        return _float_up(gdp.epsilon_of_gdp(amount, cap.noise_delta))
    return epsilon_of(amount, cap.noise_delta)


def epsilon_of(rho: Fraction, delta: Fraction) -> float:
    """Return the epsilon that rho-zCDP implies at this delta, tight and rounded up."""
    if rho < 0 or not 0 < delta < 1:
        raise ValueError("rho must not be negative and delta must lie in (0, 1)")
    if rho == 0:
        return 0.0
    order = _best_order(lambda u: -(1 + math.exp(u)) * float(rho) - _excess(u, delta))
    with localcontext(prec=_DIGITS):
        alpha = 1 + Decimal(order)
        exact = alpha * _decimal(rho) + _decimal_excess(alpha, delta) + _SLACK
    return max(0.0, _float_up(Fraction(exact)))


def noise_scale(budget: Guarantee, sensitivity: int) -> float:
    """Return the scale of the noise in grid steps, rounded up so that the budget is never passed.

    The sensitivity is exact, the rows of a person included: D1 for Laplace noise, D2^2 for
    Gaussian.

    Privacy: the charge at this scale, see `Law.cost`, is at most the largest float below the
    budget, so that a library which rounds its charge up to a float agrees.
    """
    law, move = budget.law, sensitivity_bound(budget.law, sensitivity)
    exact, limit = Fraction(move) ** law.power, _float_down(budget.amount)
    scale = law.scale(move, limit)
    while law.cost(exact, scale) > Fraction(limit):
        scale = math.nextafter(scale, math.inf)
    return scale


def sensitivity_bound(law: Law, sensitivity: int) -> float:
    """Return D1 or D2 as a float that is not below it, from the exact D1 or D2^2."""
    if sensitivity <= 0:
        raise ValueError("a sensitivity is a positive whole number")
    if law.power == 1:
        return _float_up(Fraction(sensitivity))
    root = math.sqrt(sensitivity)
    while Fraction(root) ** 2 < sensitivity:
        root = math.nextafter(root, math.inf)
    return root


def unit_variance(
    noise: Noise,
    *,
    epsilon: Fraction,
    delta: Fraction,
    accounting: Accounting = "zcdp",
    share: Fraction = Fraction(1),
) -> float:
    """Return the noise variance of one query of sensitivity 1 that takes a share of a guarantee.

    That is, for all of it, 2 / epsilon^2 for Laplace noise, and 1 / (2 rho) or 1 / mu^2 for
    Gaussian noise.
    """
    spent = guarantee(noise, epsilon=epsilon, delta=delta, accounting=accounting)
    return spent.law.unit_variance(float(spent.amount * share))


def price_of(spent: Guarantee, currency: Currency, unit: str) -> Price:
    """Return the price of a release: what it costs in a currency, and as a pure epsilon.

    Raises:
        BudgetExceededError: noise that cannot be charged in this currency.
    """
    pure = math.ceil(spent.amount * UNIT) if spent.kind == "pure" else None
    return Price(charge_units(spent, currency), currency, unit, pure, spent.threshold)


def charge_units(spent: Guarantee, currency: Currency) -> int:
    """Return what a release costs in units of 1e-18, rounded up.

    Privacy: what Laplace noise costs was worked out with it; where it was not, epsilon-DP implies
    (epsilon^2 / 2)-zCDP [BS16], and in any case the GDP of `squared_mu_of_pure`. mu-GDP implies
    (mu^2 / 2)-zCDP [DRS22]; a rho is not turned into a mu. All of them add up under adaptive
    composition.

    Raises:
        BudgetExceededError: noise that cannot be charged in this currency.
    """
    match currency, spent.kind:
        case ("epsilon", "pure") | ("rho", "zcdp") | ("mu^2", "gdp"):
            cost = spent.amount
        case "rho", "gdp":
            cost = spent.amount / 2
        case "rho", "pure":
            cost = spent.amount**2 / 2 if spent.rho is None else spent.rho
        case "mu^2", "pure":
            whole = gdp.squared_mu_of_pure(spent.amount)
            cost = whole if spent.squared_mu is None else min(whole, spent.squared_mu)
        case "mu^2", "zcdp":
            raise BudgetExceededError(
                "the dataset's budget adds up mu^2 of GDP, which discrete Gaussian noise, RAP and "
                "adaptive measurement cannot be charged to; run `dpquery plan` again and release "
                "by a linear strategy, or declare `accounting: zcdp` in the budget of a dataset "
                "that was not charged yet"
            )
        case _:
            raise BudgetExceededError(
                "the dataset's cap is a pure epsilon, which Gaussian noise cannot be charged to; "
                "use Laplace noise, or declare the budget with a delta"
            )
    return math.ceil(cost * UNIT)


def unit_of(privacy: Privacy) -> str:
    """Return the protected unit and its neighbours in a few words.

    The limit on a person's rows is not among them: whatever it is, all of the person's rows that
    are counted are protected together.

    >>> unit_of(Privacy(person="id", max_rows=3))
    'person by id, add-remove'
    """
    unit = "row" if privacy.person is None else f"person by {privacy.person}"
    return f"{unit}, {privacy.neighbours}"


def unit_kind(unit: str) -> str:
    """Return a unit without the name of the column that identifies its persons.

    Files about the same people may call that column differently.

    >>> unit_kind("person by id, add-remove")
    'person, add-remove'
    """
    who, _, neighbours = unit.rpartition(", ")
    return f"{'row' if who == 'row' else 'person'}, {neighbours}"


def budget_cap(budget: Budget, privacy: Privacy) -> Cap:
    """Return the cap that a spec declares for its unit, rounded down.

    Privacy: an (epsilon, delta) cap becomes one on rho or mu^2 once and for all, because a running
    sum in one fixed currency stays a valid filter when plans are chosen after seeing releases.
    What discoveries may spend of delta is set apart at once, for the same reason: [MATH] 26.6.

    Raises:
        SpecError: an (epsilon, delta) too small to be counted.
    """
    unit, currency = unit_of(privacy), CURRENCIES[budget.counted]
    if budget.rho is not None:
        return Cap("rho", math.floor(budget.rho * UNIT), unit=unit)
    epsilon = budget.epsilon
    if epsilon is None:
        raise ValueError("a budget declares epsilon or rho")
    if currency == "epsilon":
        return Cap(currency, math.floor(epsilon * UNIT), epsilon=epsilon, unit=unit)
    whole = Cap(currency, 0, epsilon, budget.delta, unit, budget.discover)
    return cap_counted_in(whole, currency)


def cap_counted_in(cap: Cap, currency: Currency) -> Cap:
    """Return the cap of the same promise in another currency, rounded down.

    A cap without an epsilon or a delta is of one currency alone, and returned as it is.
    """
    if cap.epsilon is None or not cap.delta or currency == "epsilon":
        return cap
    kind: Accounting = "gdp" if currency == "mu^2" else "zcdp"
    whole = guarantee("gaussian", epsilon=cap.epsilon, delta=cap.noise_delta, accounting=kind)
    return replace(cap, currency=currency, units=math.floor(whole.amount * UNIT))


def units_text(units: int) -> str:
    """Return units of 1e-18 as exact decimal text.

    >>> units_text(250 * 10**15)
    '0.25'
    """
    whole, part = divmod(abs(units), UNIT)
    digits = f"{part:018d}".rstrip("0")
    return f"{'-' if units < 0 else ''}{whole}{'.' if digits else ''}{digits}"


def _parse(text: str, *, name: str, low: Fraction, high: Fraction) -> Fraction:
    """Read a decimal between low and high; the pattern keeps exponents small enough to expand."""
    text = text.strip()
    if len(text) <= 100 and _DECIMAL.fullmatch(text):
        value = Decimal(text)
        if value.is_zero() or -1000 < value.adjusted() < 1000:
            exact = Fraction(value)
            if low <= exact <= high:
                return exact
    shown = text if len(text) <= 30 else f"{text[:30]}..."
    raise SpecError(
        f"{name} {shown!r} is not a decimal number from {power(float(low))} to "
        f"{power(float(high))}; write it like {'0.5' if name == 'epsilon' else '1e-9'}"
    )


@lru_cache(gdp.REMEMBERED)
def _largest_rho(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Solve the bound for rho: the best over alpha of (epsilon - excess(alpha)) / alpha."""
    order = _best_order(lambda u: (float(epsilon) - _excess(u, delta)) / (1 + math.exp(u)))
    with localcontext(prec=_DIGITS):
        alpha = 1 + Decimal(order)
        exact = (_decimal(epsilon) - _decimal_excess(alpha, delta)) / alpha - _SLACK
    return Fraction(math.floor(Fraction(exact) * UNIT), UNIT)


def _excess(u: float, delta: Fraction) -> float:
    """Return epsilon - alpha rho in floats, at alpha = 1 + exp(u)."""
    order = math.exp(u)
    return u - math.log1p(order) - (math.log1p(order) + math.log(delta)) / order


def _decimal_excess(alpha: Decimal, delta: Fraction) -> Decimal:
    """Return epsilon - alpha rho to 60 digits."""
    return (1 - 1 / alpha).ln() - (alpha * _decimal(delta)).ln() / (alpha - 1)


def _best_order(objective: Callable[[float], float]) -> float:
    """Return the alpha - 1 = exp(u) that maximises an objective in u, by grids that narrow."""
    low, high = -20.0, 40.0
    for _ in range(8):
        step = (high - low) / 64
        best = max((low + i * step for i in range(65)), key=objective)
        low, high = best - step, best + step
    return math.exp((low + high) / 2)


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def _float_up(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


def _float_down(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)
