"""Charges are exact, caps hold to the last unit, and no conversion is smaller than the truth."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest

from dpquery.exceptions import BudgetExceededError, SpecError
from dpquery.measurement import accounting
from dpquery.measurement.accounting import (
    UNIT,
    analytic_gaussian_sigma,
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
from dpquery.measurement.noise.laplace_cost import laplace_squared_mu
from dpquery.spec.spec import Budget, Privacy

EPSILONS = [Fraction(1, 100), Fraction(1, 10), Fraction(1), Fraction(4), Fraction(20)]
DELTAS = [Fraction(1, 10**3), Fraction(1, 10**6), Fraction(1, 10**9), Fraction(1, 10**30)]


def brute_epsilon(rho: float, delta: float) -> float:
    """The conversion, minimised over two million orders."""
    order = np.exp(np.linspace(-12, 25, 2_000_001))
    alpha = 1 + order
    return float(np.min(alpha * rho + np.log(order / alpha) - np.log(alpha * delta) / order))


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("rho", [1e-6, 0.001, 0.1, 0.5, 2.0, 50.0])
def test_conversion_is_the_minimum_over_all_orders(rho, delta):
    ours = epsilon_of(Fraction(rho), delta)
    brute = brute_epsilon(rho, float(delta))
    assert ours <= max(brute, 0) * (1 + 1e-12)
    assert ours >= brute * (1 - 1e-9)


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
