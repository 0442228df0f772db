"""The two sums of a budget: no adversary gets past its promise, and the ledger keeps to them.

A dataset whose releases are all pure is bounded by the sum of their epsilons, any other by the sum
in its currency. Mechanisms with two or three outcomes are small enough to go through every strategy
of an adversary who picks the next one by what the last returned.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from scipy.special import ndtr

from dpquery.audit.cases.expected_noise import mu_of, pure_squared_mu, rho_of
from dpquery.audit.cases.planned_cases import private_folder
from dpquery.audit.findings import Finding
from dpquery.exceptions import BudgetExceededError
from dpquery.measurement.accounting import (
    CURRENCIES,
    Cap,
    Guarantee,
    budget_cap,
    guarantee,
    price_of,
    unit_kind,
)
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.registered_caps import ParentCap
from dpquery.spec.model import Accounting, Budget, Privacy
from dpquery.strategy.noise_kinds import Noise

EPSILON_OF_SUMS, DELTA_OF_SUMS = Fraction(1), Fraction("0.03")
"""The promise that adversaries are held against: a large delta, which few steps can pass."""
_STEPS = 3
_COUNTED: tuple[Accounting, ...] = ("zcdp", "gdp")
_PROMISE = Fraction(1), Fraction("1e-6")
_HISTORIES = (
    "pure 0.5, pure 0.5, gaussian 0.1, pure 1e-6",  # epsilons fill the promise: no more fits
    "pure 0.5, gaussian 0.1, pure 0.25, pure 0.5, pure 0.25",  # what is refused is not added
    "pure 0.05, gaussian 0.5, pure 0.5, pure 0.05",  # all costs count where one is not pure
    "gaussian 0.8, gaussian 0.6, gaussian 0.4, pure 0.9, pure 0.02",
)
"""Kinds of releases and their epsilons, one after another."""

Admits = Callable[[Account, int, int | None], bool]
Charged = Callable[[Account, int, int | None], Account]


@dataclass(frozen=True)
class Coin:
    """Outcomes with their probabilities on either data set, and what they are charged.

    Attributes:
        p: the probabilities on one data set.
        q: on its neighbour.
        spent: the guarantee that is charged.
    """

    p: tuple[float, ...]
    q: tuple[float, ...]
    spent: Guarantee

    def swapped(self) -> "Coin":
        """Return the same with the data sets exchanged."""
        return replace(self, p=self.q, q=self.p)


def randomised_response(epsilon: Fraction) -> Coin:
    """Return one bit that is epsilon-DP, of which every epsilon-DP mechanism can be made."""
    p = 1 / (1 + math.exp(-epsilon))
    return Coin((p, 1 - p), (1 - p, p), Guarantee("pure", epsilon, epsilon, Fraction(0)))


def seen_ranges(mu: Fraction) -> Coin:
    """Return Gaussian noise of which three ranges are seen: mu-GDP."""
    cuts = np.array([-np.inf, -0.5 * float(mu), 1.8 + float(mu) / 2, np.inf])
    here, there = np.diff(ndtr(cuts)), np.diff(ndtr(cuts - float(mu)))
    spent = Guarantee("gdp", mu**2, EPSILON_OF_SUMS, DELTA_OF_SUMS)
    return Coin(tuple(here.tolist()), tuple(there.tolist()), spent)


COINS = [*map(randomised_response, (Fraction(1), Fraction(1, 2), Fraction(1, 4)))]
COINS += [seen_ranges(Fraction(62, 100)), seen_ranges(Fraction(31, 100))]
COINS += [coin.swapped() for coin in COINS]


def both_sums() -> Iterator[Finding]:
    """Test the rule by which accounts admit charges, and that a ledger goes by it."""
    for counted in _COUNTED:
        reached = worst_delta(fresh_account(counted), Account.admits, Account.charged, steps=_STEPS)
        yield Finding(
            "charges",
            f"every adversary of {_STEPS} steps against a budget in {CURRENCIES[counted]}",
            "releases chosen by earlier ones reach no more than delta, by whichever sum",
            0 < reached <= float(DELTA_OF_SUMS),
            f"delta reaches {reached / float(DELTA_OF_SUMS):.3f} of the promise",
        )
    for counted in _COUNTED:
        for with_parent in (False, True):
            yield _kept(counted, with_parent=with_parent)


def fresh_account(counted: Accounting) -> Account:
    """Return an account that nothing was charged to."""
    return Account("people", _cap(counted, EPSILON_OF_SUMS, DELTA_OF_SUMS))


def worst_delta(account: Account, admits: Admits, charged: Charged, *, steps: int) -> float:
    """Return the most that any adversary reaches: the sum of (P - exp(epsilon) Q)+ at its end.

    Args:
        account: before the first release.
        admits: whether a charge is accepted, as `Account.admits`.
        charged: the account after it, as `Account.charged`.
        steps: of the adversary.
    """
    currency = account.cap.currency
    prices = [
        (coin.p, coin.q, price.units, price.pure)
        for coin in COINS
        for price in [price_of(coin.spent, currency, account.cap.unit)]
    ]

    def most(before: Account, p: float, q: float, left: int) -> float:
        best = max(0.0, p - math.exp(EPSILON_OF_SUMS) * q)
        for here, there, units, pure in prices if left else []:
            if admits(before, units, pure):
                after = charged(before, units, pure)
                outcomes = zip(here, there, strict=True)
                best = max(best, sum(most(after, p * a, q * b, left - 1) for a, b in outcomes))
        return best

    return most(account, 1.0, 1.0, steps)


def _cap(counted: Accounting, epsilon: Fraction, delta: Fraction) -> Cap:
    return budget_cap(Budget(epsilon=epsilon, delta=delta, accounting=counted), Privacy())


def _kept(counted: Accounting, *, with_parent: bool) -> Finding:
    """Test which charges a ledger accepts; under a parent every other one is of another dataset."""
    wrong, charges = 0, 0
    for history in _HISTORIES:
        releases = [_release(words, counted) for words in history.split(", ")]
        accepted = _accepted(releases, counted, with_parent=with_parent)
        charges += len(releases)
        wrong += sum(a != b for a, b in zip(accepted, _expected(releases, counted), strict=True))
    of_whom = "two datasets of one parent" if with_parent else "one dataset"
    return Finding(
        "charges",
        f"a ledger of {of_whom} in {CURRENCIES[counted]}",
        "a charge is accepted where the epsilons of pure releases, or all costs, stay in the cap",
        wrong == 0,
        f"as it should be for {charges - wrong} of {charges} charges, {len(_HISTORIES)} histories",
    )


def _release(words: str, counted: Accounting) -> Guarantee:
    """Return the guarantee of a release of a history."""
    kind, epsilon = words.split()
    noise: Noise = "laplace" if kind == "pure" else "gaussian"
    delta = _PROMISE[1]
    return guarantee(noise, epsilon=Fraction(epsilon), delta=delta, accounting=counted)


def _accepted(
    releases: Sequence[Guarantee], counted: Accounting, *, with_parent: bool
) -> list[bool]:
    """Return which releases of a history a new ledger accepts."""
    cap, accepted = _cap(counted, *_PROMISE), []
    parent = ParentCap("all", replace(cap, unit=unit_kind(cap.unit))) if with_parent else None
    datasets = ("first", "second") if with_parent else ("first",)
    with (
        private_folder() as folder,
        Ledger.open(folder / "ledger" / "ledger.db", create=True) as ledger,
    ):
        for dataset in datasets:
            ledger.register(dataset, cap, parent=parent)
        for number, spent in enumerate(releases):
            key, dataset = str(number), datasets[number % len(datasets)]
            price = price_of(spent, cap.currency, cap.unit)
            native: dict[str, str] = {spent.kind: str(spent.amount)}
            try:
                with ledger.hold(key):
                    ledger.reserve(dataset, key=key, price=price, native=native, details={})
                accepted.append(True)
            except BudgetExceededError:
                accepted.append(False)
    return accepted


def _expected(releases: Sequence[Guarantee], counted: Accounting) -> list[bool]:
    """Return the same by floats: an epsilon for what is pure, and a cost for everything."""

    def cost_of(epsilon: float, delta: float) -> float:
        if counted == "gdp":
            return mu_of(epsilon, delta) ** 2 if delta else pure_squared_mu(epsilon)
        return rho_of(epsilon, delta) if delta else epsilon**2 / 2

    epsilon, delta = map(float, _PROMISE)
    most, pure, cost, accepted = cost_of(epsilon, delta), 0.0, 0.0, []
    for spent in releases:
        price = cost_of(float(spent.epsilon), float(spent.delta))
        alone = pure + (math.inf if spent.delta else float(spent.epsilon))
        accepted.append(alone <= epsilon or cost + price <= most)
        if accepted[-1]:
            pure, cost = alone, cost + price
    return accepted
