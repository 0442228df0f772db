"""The two sums of a budget: no adversary gets past its promise, and the ledger keeps to them.

A dataset whose releases are all pure is bounded by the sum of their epsilons, any other by the sum
in its currency. Mechanisms with two or three outcomes are small enough to go through every strategy
of an adversary who picks the next one by what the last returned.

A trade-off curve says how much of an event's probability on one data set can be told from its
probability on a neighbouring one. Of mu-GDP, Phi^-1(power) - Phi^-1(level) is at most mu at each
corner of the curve. The curve is convex between its corners, so they are all there is to look at.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from scipy.special import ndtr, ndtri

from dpquery.audit.cases import Size
from dpquery.audit.planned_cases import mu_of, private_folder, pure_squared_mu, rho_of
from dpquery.audit.statistics import Finding, NoiseDistribution
from dpquery.exceptions import BudgetExceededError
from dpquery.measurement.accounting import (
    CURRENCIES,
    UNIT,
    Cap,
    Guarantee,
    budget_cap,
    charge_units,
    guarantee,
    noise_scale,
    price_of,
    unit_kind,
)
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.noise.calibration import Moves, laplace_rho, laplace_squared_mu
from dpquery.spec.spec import Accounting, Budget, Privacy
from dpquery.strategy.strategy import Noise

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
    """Outcomes with their probabilities on either data set, and what they are charged."""

    p: tuple[float, ...]  # the probabilities on one data set
    q: tuple[float, ...]  # on its neighbour
    spent: Guarantee  # the guarantee that is charged

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
    """Return the most that any adversary reaches: the sum of (P - exp(epsilon) Q)+ at its end."""
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
        f"a ledger of {of_whom} in {CURRENCIES[counted]}",
        "a charge is accepted where the epsilons of pure releases, or all costs, stay in the cap",
        wrong == 0,
        f"as it should be for {charges - wrong} of {charges} charges, {len(_HISTORIES)} histories",
    )


def _release(words: str, counted: Accounting) -> Guarantee:
    kind, epsilon = words.split()
    noise: Noise = "laplace" if kind == "pure" else "gaussian"
    delta = _PROMISE[1]
    return guarantee(noise, epsilon=Fraction(epsilon), delta=delta, accounting=counted)


def _accepted(
    releases: Sequence[Guarantee], counted: Accounting, *, with_parent: bool
) -> list[bool]:
    cap, accepted = _cap(counted, *_PROMISE), []
    parent = Account("all", replace(cap, unit=unit_kind(cap.unit))) if with_parent else None
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


_SCALES = (1.0, 2.0, 3.3, 64.7, 1000.3)  # every value between two centres is added up
_ORDERS = (1.01, 1.2, 2.0, 4.0, 16.0, 256.0)
_MOVES = ((1,), (3,), (8,), (1, 1, 1, 1), (1, 5), (2, 3, 9))
"""Of the rows of a vector, in tenths of a scale, rounded up: small ones and whole scales."""
_MOST_WASTED = 1.3  # times the divergence at order one, where moves are unlike
_MOST_WASTED_IN_MU = 3  # times the squared mu, which epsilon alone does not tell at large moves
_PROMISES = tuple((Fraction(e), Fraction(d)) for e in ("0.1", "1", "4") for d in ("1e-6", "1e-9"))
_SHIFTS = (1, 7, 1_000_003)  # of an answer: noise of a few steps and of millions
_LEAST_REACHED = 0.99  # of delta, by noise of _FINE steps: coarser steps hide some
_FINE = 1000
_ROUNDING = 1e-9


def charges(_: Size) -> Iterator[Finding]:
    """Compare charges with what noise and releases disclose; no draws."""
    for scale in _SCALES:
        for tenths in (1, 10, 40):
            yield _in_rho(scale, tenths)
    for scale in _SCALES:
        yield _in_squared_mu(scale)
    for shift in _SHIFTS:
        yield _at_the_curve(shift)
    yield from both_sums()


def _moves(scale: float, tenths: int) -> Iterator[list[int]]:
    """Yield vectors of moves, a move of 1 being so many tenths of the scale."""
    for units in _MOVES:
        yield [math.ceil(unit * tenths * scale / 10) for unit in units]


def _in_rho(scale: float, tenths: int) -> Finding:
    """Test all vectors of moves of one size at one scale of Laplace noise."""
    shares = []
    for moves in _moves(scale, tenths):
        squared = sum(move * move for move in moves)
        charged = float(laplace_rho([Moves(sum(moves), squared)], scale=scale))
        at_orders = [sum(divergence(move, scale, a) for move in moves) / a for a in _ORDERS]
        shares.append((max(at_orders) / charged, laplace_limit(moves, scale) / charged))
    most, least = max(max(pair) for pair in shares), min(limit for _, limit in shares)
    return Finding(
        f"Laplace noise of scale {scale:,g}, moves of {tenths / 10:g} scales and more",
        "the rho charged is at least the divergence over the order, at all orders",
        most <= 1 + _ROUNDING and least >= 1 / _MOST_WASTED,
        f"the divergence is up to {most:.6f} of the charge and at order one at least {least:.2f}, "
        f"over {len(_MOVES)} vectors and {len(_ORDERS)} orders",
    )


def _in_squared_mu(scale: float) -> Finding:
    """Test all vectors of moves at one scale of Laplace noise."""
    law, shares = NoiseDistribution("laplace", Fraction(scale)), []
    for tenths in (1, 10, 40):
        for moves in _moves(scale, tenths):
            epsilon = sum(moves) / Fraction(scale)
            cost = laplace_squared_mu(sum(move * move for move in moves), scale=scale)
            spent = Guarantee("pure", epsilon, epsilon, Fraction(0), squared_mu=cost)
            charged = charge_units(spent, "mu^2") / UNIT
            # Of events "y is k or less": beyond both centres the likelihood ratio is constant.
            corners = ((np.arange(move), move) for move in moves)
            mus = (np.max(ndtri(law.below(k)) - ndtri(law.below(k - move))) for k, move in corners)
            shares.append(math.fsum(float(mu) ** 2 for mu in mus) / charged)
    return Finding(
        f"Laplace noise of scale {scale:,g}, charged in mu^2",
        "the mu^2 charged is at least that of every event, added up over independent rows",
        max(shares) <= 1 + _ROUNDING and min(shares) >= 1 / _MOST_WASTED_IN_MU,
        f"the squared mu of the law is {min(shares):.2f} to {max(shares):.6f} of the charge, "
        f"over {len(shares)} vectors",
    )


def _at_the_curve(shift: int) -> Finding:
    """Test the scale and charge of rounded noise by the delta of its law, where an answer moves."""
    reached, off, fine = [], 0.0, True
    for epsilon, delta in _PROMISES:
        spent = guarantee("gaussian", epsilon=epsilon, delta=delta, accounting="gdp")
        scale = noise_scale(spent, shift**2)
        law = NoiseDistribution("rounded", Fraction(scale))
        share = _delta(law, shift, float(epsilon)) / float(delta)
        fine = fine and (scale < _FINE or share >= _LEAST_REACHED)
        charged = charge_units(spent, "mu^2") / UNIT
        off = max(off, 1 - charged / (shift / scale) ** 2)
        off = max(off, abs(charged / mu_of(float(epsilon), float(delta)) ** 2 - 1))
        reached.append(share)
    return Finding(
        f"rounded Gaussian noise, moves of {shift:,}",
        "the scale keeps (epsilon, delta), and no more noise is drawn; mu^2 is that of the curve",
        max(reached) <= 1 + _ROUNDING * 1000 and fine and off <= _ROUNDING,
        f"delta is {min(reached):.4f} to {max(reached):.6f} of what was promised, "
        f"at {len(reached)} promises",
    )


def _delta(law: NoiseDistribution, shift: int, epsilon: float) -> float:
    """Return the delta of rounded noise at an epsilon, over the events "y is k or less".

    Its likelihood ratio is monotone, so that these are the best events.
    """
    scale = float(law.scale)
    turn = shift / 2 - epsilon * scale * scale / shift  # where the ratio of densities is epsilon's
    k = math.floor(turn) + np.arange(-2, 3)
    return float(np.max(law.below(k) - math.exp(epsilon) * law.below(k - shift)))


def divergence(move: int, scale: float, order: float) -> float:
    """Return the Renyi divergence of the law from the law moved, summed over the law.

    Outside of both centres both laws fall by one factor, so that the rest is a geometric series.
    """
    y = np.arange(move + 1, dtype=np.float64)
    exponents = (order * -y + (order - 1) * (move - y)) / scale
    tail = -1 / scale - math.log(-math.expm1(-1 / scale))
    log_sum = float(
        np.logaddexp.reduce([*exponents[[0, -1]] + tail, np.logaddexp.reduce(exponents)])
    )
    return (log_sum + math.log(math.tanh(1 / (2 * scale)))) / (order - 1)


def laplace_limit(moves: Sequence[int], scale: float) -> float:
    """Return the divergence at order one of moves of independent rows, in floats.

    It is E |Y - s| - E |Y| over the scale, summed over the rows.
    """
    spread = 1 / (scale * math.sinh(1 / scale))
    return math.fsum(move / scale + math.expm1(-move / scale) * spread for move in moves)
