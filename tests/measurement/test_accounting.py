"""Charges are exact, caps hold to the last unit, and no adaptive adversary gets more than it.

The adversary has mechanisms with two or three outcomes, so that all of it is a sum: it sees every
outcome, then picks the next mechanism that the account admits, or stops. Its best strategy is found
by going through all of them, and what it reaches, the sum of (P - exp(epsilon) Q)+ over all
transcripts, is compared with the cap's delta. The account is the ledger's; filters that are wrong
must be caught. The adversary is the audit's, a step longer.
"""

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest
from dense import analytic_gaussian_sigma
from ledgers import opened
from scipy.special import logsumexp
from scipy.stats import norm

from dpquery.audit.both_sums import (
    COINS,
    DELTA_OF_SUMS,
    EPSILON_OF_SUMS,
    fresh_account,
    worst_delta,
)
from dpquery.exceptions import BudgetExceededError, SpecError
from dpquery.measurement import accounting
from dpquery.measurement.accounting import (
    UNIT,
    Cap,
    Price,
    budget_cap,
    charge_units,
    epsilon_of,
    guarantee,
    noise_scale,
    parse_delta,
    parse_epsilon,
    sensitivity_bound,
    unit_variance,
    units_text,
)
from dpquery.measurement.gdp import squared_mu_of, squared_mu_of_pure
from dpquery.measurement.ledger.caps import ParentCap
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.noise.laplace_cost import laplace_squared_mu
from dpquery.spec.spec import Budget, Privacy

EPSILONS = [Fraction(1, 100), Fraction(1, 10), Fraction(1), Fraction(4), Fraction(20)]
DELTAS = [Fraction(1, 10**3), Fraction(1, 10**6), Fraction(1, 10**9), Fraction(1, 10**30)]


def test_conversion_has_the_published_values():
    for rho, epsilon in [("0.1", 2.1419), ("0.5", 5.2215), ("2", 11.689)]:
        assert epsilon_of(Fraction(rho), Fraction(1, 10**6)) == pytest.approx(epsilon, abs=1e-3)


@pytest.fixture(scope="module")
def opendp_epsilon():
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    curve = dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale=1.0))
    return lambda rho, delta: curve.map(math.sqrt(2 * rho)).epsilon(delta)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_rho_is_the_largest_that_meets_epsilon_by_opendp_too(opendp_epsilon, epsilon, delta):
    rho = float(guarantee("gaussian", epsilon=epsilon, delta=delta).amount)
    # The slack: OpenDP rounds its own charge up, by some units in the last place.
    assert opendp_epsilon(rho, float(delta)) <= float(epsilon) * (1 + 1e-12)
    assert opendp_epsilon(rho * (1 + 1e-6), float(delta)) > float(epsilon)
    assert epsilon_of(Fraction(rho), delta) == pytest.approx(
        opendp_epsilon(rho, float(delta)), rel=1e-12
    )


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_rho_never_promises_more_than_it_keeps(epsilon, delta):
    rho = guarantee("gaussian", epsilon=epsilon, delta=delta).amount
    assert (rho * UNIT).denominator == 1
    assert epsilon_of(rho, delta) <= math.nextafter(float(epsilon), math.inf)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", [Fraction(7, 10), Fraction(1), Fraction(4), Fraction(20)])
def test_rho_is_rounded_down_and_epsilon_up(epsilon, delta, monkeypatch):
    """At the order 2 the bound is 2 rho - ln(2 delta) - ln 2: to the last digit of either."""
    monkeypatch.setattr(accounting, "_best_order", lambda objective: 1.0)
    with localcontext(prec=90):
        two_delta = Decimal(2 * delta.numerator) / delta.denominator
        excess = Fraction(-two_delta.ln() - Decimal(2).ln())
    rho = Fraction(1, 3)
    spent = Fraction(epsilon_of(rho, delta))
    assert Fraction(math.nextafter(float(spent), 0)) < 2 * rho + excess <= spent
    whole = (epsilon + excess) + Fraction(1, 7)  # an epsilon that this order has a rho for
    computed = guarantee("gaussian", epsilon=whole, delta=delta).amount
    assert computed <= (whole - excess) / 2 < computed + Fraction(1, UNIT)


def test_more_epsilon_or_more_delta_never_gives_less_rho():
    for delta in DELTAS:
        rhos = [guarantee("gaussian", epsilon=e, delta=delta).amount for e in EPSILONS]
        assert rhos == sorted(rhos)
    for epsilon in EPSILONS:
        rhos = [guarantee("gaussian", epsilon=epsilon, delta=d).amount for d in DELTAS]
        assert rhos == sorted(rhos, reverse=True)


def test_laplace_is_pure_even_when_a_delta_is_declared():
    spent = guarantee("laplace", epsilon=Fraction(1, 3), delta=Fraction(1, 10**9))
    assert (spent.kind, spent.amount, spent.delta) == ("pure", Fraction(1, 3), 0)


def test_gaussian_needs_a_delta_and_an_epsilon_that_counts():
    with pytest.raises(SpecError, match="needs a delta"):
        guarantee("gaussian", epsilon=Fraction(1), delta=Fraction(0))
    with pytest.raises(SpecError, match="too small"):
        guarantee("gaussian", epsilon=Fraction(1, 10**12), delta=Fraction(1, 10**30))
    with pytest.raises(ValueError, match="epsilon"):
        guarantee("laplace", epsilon=Fraction(0), delta=Fraction(0))


def test_ten_tenths_fit_a_cap_of_one_exactly_and_one_unit_more_does_not():
    cap = budget_cap(Budget(epsilon=Fraction("1.0")), Privacy()).units
    tenth = guarantee("laplace", epsilon=parse_epsilon("0.1"), delta=Fraction(0))
    assert 10 * charge_units(tenth, "epsilon") == cap
    assert 10 * charge_units(tenth, "epsilon") + 1 > cap


def test_charges_round_up_and_caps_round_down():
    third = guarantee("laplace", epsilon=Fraction(1, 3), delta=Fraction(0))
    assert charge_units(third, "epsilon") == UNIT // 3 + 1
    assert charge_units(third, "rho") == UNIT // 18 + 1
    assert budget_cap(Budget(epsilon=Fraction(1, 3)), Privacy()).units == UNIT // 3
    assert budget_cap(Budget(rho=Fraction(2, 3)), Privacy()).units == 2 * UNIT // 3


def test_an_approximate_cap_becomes_rho_once():
    budget = Budget(epsilon=Fraction(4), delta=Fraction(1, 10**9))
    cap = budget_cap(budget, Privacy())
    spent = guarantee("gaussian", epsilon=Fraction(4), delta=Fraction(1, 10**9))
    assert cap.currency == "rho"
    assert cap.units == charge_units(spent, "rho")
    with pytest.raises(ValueError, match="declares"):
        budget_cap(Budget(), Privacy())


@pytest.mark.parametrize("other", ["0", "1e-30", "1e-9", "1e-3"])
def test_a_cap_is_converted_at_its_own_delta(other):
    """Whatever delta the releases ask for, below or above the budget's."""
    budget = Budget(epsilon=Fraction(4), delta=Fraction("1e-6"))
    cap = budget_cap(budget, Privacy(delta=Fraction(other)))
    kept = guarantee("gaussian", epsilon=Fraction(4), delta=Fraction("1e-6"))
    assert (cap.units, cap.delta) == (charge_units(kept, "rho"), Fraction("1e-6"))


def test_zcdp_is_refused_by_a_pure_cap():
    spent = guarantee("gaussian", epsilon=Fraction(1), delta=Fraction(1, 10**6))
    with pytest.raises(BudgetExceededError, match="Laplace"):
        charge_units(spent, "epsilon")


@pytest.mark.parametrize("sensitivity", [1, 2, 3, 10**12 + 1, 2**100 + 1])
@pytest.mark.parametrize("amount", ["1e-9", "0.056", "1", "17.3"])
def test_the_scale_of_a_gdp_guarantee_meets_its_squared_mu_exactly(amount, sensitivity):
    budget = accounting.Guarantee("gdp", Fraction(amount), Fraction(1), Fraction(1, 10**9))
    scale = noise_scale(budget, sensitivity)
    assert budget.noise == "gaussian"
    assert Fraction(sensitivity) / Fraction(scale) ** 2 <= budget.amount
    assert sensitivity / scale**2 == pytest.approx(float(amount), rel=1e-14)
    assert charge_units(budget, "rho") == math.ceil(budget.amount / 2 * UNIT)
    with pytest.raises(BudgetExceededError):
        charge_units(budget, "epsilon")


@pytest.mark.parametrize("sensitivity", [1, 2, 3, 7, 10**6 + 3, 2**40 + 1, 3**60])
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_scale_meets_the_budget_exactly_and_wastes_nothing(noise, epsilon, sensitivity):
    budget = guarantee(noise, epsilon=epsilon, delta=Fraction(1, 10**9))
    scale = Fraction(noise_scale(budget, sensitivity))
    charge = sensitivity / (scale if noise == "laplace" else 2 * scale**2)
    assert budget.amount * (1 - Fraction(1, 10**14)) < charge <= budget.amount


@pytest.mark.parametrize("sensitivity", [1, 2, 9, 2**53 + 1, 3**50, 10**30])
def test_sensitivity_is_rounded_up(sensitivity):
    assert Fraction(sensitivity_bound("laplace", sensitivity)) >= sensitivity
    root = Fraction(sensitivity_bound("gaussian", sensitivity))
    assert sensitivity <= root**2 <= sensitivity * (1 + Fraction(1, 2**50))
    with pytest.raises(ValueError, match="positive"):
        sensitivity_bound("laplace", 0)


def test_unit_variance_is_that_of_one_query():
    assert unit_variance("laplace", epsilon=Fraction(2), delta=Fraction(0)) == 0.5
    rho = guarantee("gaussian", epsilon=Fraction(1), delta=Fraction(1, 10**6)).amount
    variance = unit_variance("gaussian", epsilon=Fraction(1), delta=Fraction(1, 10**6))
    assert variance == pytest.approx(1 / (2 * float(rho)), rel=1e-14)


def test_analytic_gaussian_has_the_published_sigma():
    assert analytic_gaussian_sigma(1.0, 1e-6) == pytest.approx(4.224679, abs=1e-6)
    # It is tighter than any calibration that goes through zCDP.
    assert analytic_gaussian_sigma(1.0, 1e-6) < math.sqrt(
        unit_variance("gaussian", epsilon=Fraction(1), delta=Fraction(1, 10**6))
    )


@pytest.mark.parametrize("text", ["0.1", " 1 ", "1e-3", ".5", "2.", "+1", "999999"])
def test_epsilon_is_read_exactly(text):
    assert parse_epsilon(text) == Fraction(text.strip())


@pytest.mark.parametrize(
    "text",
    [
        *("1e400", "nan", "inf", "0", "-1", "1e-400", "1e999999999", "1/3", "1_0", "0x1", "１"),
        *("", ".", "e1", "1e", "abc", "1e7", "1,5"),
    ],
)
def test_epsilon_that_is_no_sensible_number_is_refused(text):
    with pytest.raises(SpecError, match="epsilon"):
        parse_epsilon(text)


@pytest.mark.parametrize("text", ["1", "1.5", "-1e-9", "nan", "1e-101", "1e-400"])
def test_delta_outside_the_unit_interval_is_refused(text):
    with pytest.raises(SpecError, match="delta"):
        parse_delta(text)


def test_delta_is_read_exactly():
    assert parse_delta("1e-9") == Fraction(1, 10**9)
    assert parse_delta("0") == 0


def test_units_are_shown_exactly():
    assert [units_text(u) for u in (0, 1, UNIT, 25 * UNIT // 10, -UNIT)] == [
        "0",
        "0.000000000000000001",
        "1",
        "2.5",
        "-1",
    ]


def test_a_long_text_is_not_repeated_whole():
    with pytest.raises(SpecError) as caught:
        accounting.parse_epsilon("9" * 10_000)
    assert len(str(caught.value)) < 200


def test_squared_mu_is_to_the_last_unit_what_it_was_worked_out_to_be():
    """The values are those of test_gaussian_curve, which needs other libraries to judge them."""
    of_a_promise = {
        ("0.1", "1e-6"): 758_707_757_054_792,
        ("1", "1e-6"): 56_028_963_825_260_677,
        ("1", "1e-9"): 33_114_830_490_173_312,
        ("4", "1e-9"): 451_761_008_810_889_997,
    }
    for (epsilon, delta), units in of_a_promise.items():
        assert squared_mu_of(Fraction(epsilon), Fraction(delta)) == Fraction(units, UNIT)
    of_pure = {
        "0.1": 15_702_348_541_448_818,
        "1": 1_517_911_190_741_958_631,
        "4": 17_593_646_410_245_938_126,
    }
    for epsilon, units in of_pure.items():
        assert squared_mu_of_pure(Fraction(epsilon)) == Fraction(units, UNIT)
    # Moves of squared norm 3 at scale 2: (pi / 2) 3 / 4, and hardly more.
    above = laplace_squared_mu(3, scale=2.0) - Fraction(math.pi) * 3 / 8
    assert 0 < above < Fraction(1, 10**15)


ORDERS = 1 + np.geomspace(1e-4, 1e4, 400)


@pytest.mark.parametrize("accounting", ["zcdp", "gdp"])
def test_no_adversary_reaches_more_than_delta(accounting):
    account = fresh_account(accounting)
    assert (
        0 < worst_delta(account, Account.admits, Account.charged, steps=4) <= float(DELTA_OF_SUMS)
    )


def test_the_mechanisms_are_what_they_are_charged_for():
    for coin in COINS:
        p, q = np.array(coin.p), np.array(coin.q)
        rho, squared_mu = (charge_units(coin.spent, sum_of) / UNIT for sum_of in ("rho", "mu^2"))
        for a, b in ((p, q), (q, p)):
            terms = np.outer(ORDERS - 1, np.log(a / b)) + np.log(a)
            divergence = logsumexp(terms, axis=1) / (ORDERS - 1)
            assert (divergence <= ORDERS * rho * (1 + 1e-9)).all()
            order = np.argsort(-a / b)  # the corners of the trade-off curve
            power, level = np.cumsum(a[order])[:-1], np.cumsum(b[order])[:-1]
            mu = math.sqrt(squared_mu)
            assert (norm.ppf(power) - norm.ppf(level) <= mu * (1 + 1e-9)).all()
        if coin.spent.kind == "pure":
            assert np.abs(np.log(p / q)).max() <= coin.spent.amount * (1 + 1e-9)
    assert np.abs(np.log(np.array(COINS[3].p) / COINS[3].q)).max() > EPSILON_OF_SUMS


def forgets_that_a_release_was_not_pure(account, units, pure):
    return replace(account.charged(units, 0), pure=account.pure + (pure or 0))


def counts_the_pure_apart(account, units, pure):
    """Each kind fills a sum of its own."""
    return replace(
        account.charged(units if pure is None else 0, 0), pure=account.pure + (pure or 0)
    )


def never_mind_the_pure_sum(account, units, pure):
    return pure is not None or units <= account.remaining


@pytest.mark.parametrize("accounting", ["zcdp", "gdp"])
@pytest.mark.parametrize(
    ("admits", "charged"),
    [
        (Account.admits, forgets_that_a_release_was_not_pure),
        (Account.admits, counts_the_pure_apart),
        (never_mind_the_pure_sum, Account.charged),
    ],
)
def test_a_wrong_filter_is_caught(accounting, admits, charged):
    assert worst_delta(fresh_account(accounting), admits, charged, steps=3) > 1.2 * float(
        DELTA_OF_SUMS
    )


def test_pure_releases_alone_fill_the_epsilon_of_the_cap_exactly():
    account, tenth = fresh_account("zcdp"), UNIT // 10
    for _ in range(10):
        assert account.admits(account.cap.units, tenth)
        account = account.charged(account.cap.units, tenth)
    assert not account.admits(1, 1)
    assert not account.admits(1, None)
    assert account.share_spent == 1


def test_after_a_release_that_is_not_pure_only_the_sum_in_the_currency_counts():
    account = fresh_account("zcdp")
    mixed = account.charged(1, UNIT // 10).charged(1, None)
    assert not mixed.admits(account.cap.units, 1)
    assert mixed.admits(account.cap.units - 2, None)
    assert not mixed.charged(1, 1).admits(account.cap.units - 2, 1)


def test_a_cap_in_rho_alone_has_no_sum_of_epsilons():
    account = Account("people", budget_cap(Budget(rho=Fraction(1)), Privacy()))
    assert not account.admits(UNIT + 1, 1)


def charge(ledger, key, units, *, epsilon=None, dataset="people"):
    pure = None if epsilon is None else math.ceil(Fraction(epsilon) * UNIT)
    native = {"zcdp": str(Fraction(units, UNIT))} if epsilon is None else {"pure": epsilon}
    with ledger.hold(key):
        price = Price(units, CAP.currency, CAP.unit, pure)
        ledger.lookup(dataset, key=key, price=price)
        ledger.reserve(dataset, key=key, price=price, native=native, details={})


CAP = Cap("rho", UNIT // 10, epsilon=Fraction(4), delta=Fraction(1, 10**9))


def account_of(ledger, dataset="people"):
    return next(s.account for s in ledger.status() if s.account.dataset == dataset)


def test_the_ledger_counts_both_sums_again_when_it_is_opened(tmp_path):
    path = tmp_path / "state" / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.register("people", CAP)
        charge(ledger, "a", UNIT, epsilon="3/2")
        charge(ledger, "b", UNIT, epsilon="5/2")
        with pytest.raises(BudgetExceededError):
            charge(ledger, "c", 1, epsilon="1/1000000")
        with pytest.raises(BudgetExceededError):
            charge(ledger, "d", 1)
        ledger.abandon("a")
    with opened(path) as ledger:
        account = account_of(ledger)
        assert (account.spent, account.pure) == (2 * UNIT, 4 * UNIT)
        with pytest.raises(BudgetExceededError):
            charge(ledger, "a", UNIT, epsilon="3/2")
        charge(ledger, "b", UNIT, epsilon="5/2")  # goes on at no charge
        assert account_of(ledger) == account


def test_one_release_that_is_not_pure_ends_the_sum_of_epsilons_for_good(tmp_path):
    path = tmp_path / "state" / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.register("people", CAP)
        charge(ledger, "gaussian", UNIT // 50)
        with pytest.raises(BudgetExceededError):
            charge(ledger, "laplace", UNIT, epsilon="1")
        ledger.abandon("gaussian")
        with pytest.raises(BudgetExceededError):
            charge(ledger, "laplace", UNIT, epsilon="1")
        charge(ledger, "small", UNIT // 50, epsilon="1/5")
        assert account_of(ledger).pure is None


def test_a_parent_adds_up_the_epsilons_of_all_its_datasets(tmp_path):
    path = tmp_path / "state" / "ledger.db"
    panel = ParentCap("panel", replace(CAP, unit="row, add-remove"))
    with Ledger.open(path, create=True) as ledger:
        ledger.register("people", CAP)
        charge(ledger, "before", UNIT, epsilon="1")
        ledger.register("others", CAP, parent=panel)
        ledger.change_cap("people", CAP, parent=panel)
        assert account_of(ledger, "panel").pure == UNIT
        charge(ledger, "one", UNIT, epsilon="3", dataset="others")
        with pytest.raises(BudgetExceededError):
            charge(ledger, "two", UNIT, epsilon="1/10")
        parent = account_of(ledger, "panel")
        assert (parent.spent, parent.pure) == (2 * UNIT, 4 * UNIT)


def test_the_guarantee_on_record_is_the_one_that_was_priced(tmp_path):
    path = tmp_path / "state" / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.register("people", CAP)
        price = Price(UNIT, CAP.currency, CAP.unit, UNIT // 2)
        with ledger.hold("k"):
            for native in ({}, {"zcdp": "1/2"}, {"pure": "1"}, {"pure": "1/2", "zcdp": "1"}):
                with pytest.raises(ValueError, match="guarantee"):
                    ledger.reserve("people", key="k", price=price, native=native, details={})
        assert account_of(ledger).spent == 0
