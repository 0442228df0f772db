"""No adaptive adversary gets more out of a dataset than its cap promises, by either of its sums.

Mechanisms with two or three outcomes, so that all of it is a sum: the adversary sees every outcome,
then picks the next mechanism that the account admits, or stops. Its best strategy is found by going
through all of them, and what it reaches, the sum of (P - exp(epsilon) Q)+ over all transcripts, is
compared with the cap's delta. The account is the ledger's; filters that are wrong must be caught.
The adversary is the audit's, a step longer.
"""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
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
from dpquery.exceptions import BudgetExceededError
from dpquery.measurement.accounting import UNIT, Cap, Price, budget_cap, charge_units
from dpquery.measurement.ledger.caps import ParentCap
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.spec.spec import Budget, Privacy

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
