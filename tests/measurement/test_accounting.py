"""Charges are exact, caps hold to the last unit, and no conversion is too optimistic.

Three independent judges: OpenDP's privacy maps, Google's dp-accounting, and the definitions written
out in mpmath at 300 bits or as sums over the exact probabilities, without any bound in between.
"""

import itertools
import json
import math
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import opendp.prelude as dp
import pytest
from dense import dense_strategy
from specs import unhashed
from town import CSV, GAUSSIAN_SPEC, ok, refused

from dpquery.exceptions import BudgetExceededError, SpecError
from dpquery.measurement import accounting
from dpquery.measurement.accounting import (
    UNIT,
    Guarantee,
    _largest_rho,
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
from dpquery.measurement.gdp import squared_mu_of
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.noise.calibration import Moves, calibrated_noise, laplace_rho
from dpquery.measurement.noise.laws import LAWS
from dpquery.measurement.rounds.queries import rap_rounds
from dpquery.operators.blocks import Workload, marginal
from dpquery.plan_file.plan import plan_and_spec, read_plan
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.spec.spec import Budget, Dataset, Parent, Privacy
from dpquery.strategy.shapes.marginals import MarginalsStrategy

DELTAS = [Fraction(1, 10**3), Fraction(1, 10**6), Fraction(1, 10**9), Fraction(1, 10**30)]


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


@pytest.mark.parametrize(
    ("currency", "kind"), [("epsilon", "zcdp"), ("epsilon", "gdp"), ("mu^2", "zcdp")]
)
def test_noise_that_a_currency_does_not_bound_is_refused(currency, kind):
    """Discrete Gaussian noise and RAP are of no mu; no Gaussian noise is of a pure epsilon."""
    spent = guarantee("gaussian", epsilon=Fraction(1), delta=Fraction("1e-6"), accounting=kind)
    with pytest.raises(BudgetExceededError, match="cannot be charged to"):
        charge_units(spent, currency)


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


def test_charges_round_up_and_caps_round_down():
    tenth = guarantee("laplace", epsilon=parse_epsilon("0.1"), delta=Fraction(0))
    assert (
        10 * charge_units(tenth, "epsilon") == budget_cap(Budget(Fraction("1.0")), Privacy()).units
    )
    third = guarantee("laplace", epsilon=Fraction(1, 3), delta=Fraction(0))
    assert charge_units(third, "epsilon") == UNIT // 3 + 1
    assert charge_units(third, "rho") == UNIT // 18 + 1
    assert budget_cap(Budget(epsilon=Fraction(1, 3)), Privacy()).units == UNIT // 3
    assert budget_cap(Budget(rho=Fraction(2, 3)), Privacy()).units == 2 * UNIT // 3


@pytest.mark.parametrize("other", ["0", "1e-30", "1e-9", "1e-3"])
def test_a_cap_is_converted_at_its_own_delta(other):
    """Whatever delta the releases ask for, below or above the budget's."""
    budget = Budget(epsilon=Fraction(4), delta=Fraction("1e-6"))
    cap = budget_cap(budget, Privacy(delta=Fraction(other)))
    kept = guarantee("gaussian", epsilon=Fraction(4), delta=Fraction("1e-6"))
    assert (cap.units, cap.delta) == (charge_units(kept, "rho"), Fraction("1e-6"))


@pytest.mark.parametrize("sensitivity", [1, 2, 3, 10**12 + 1, 2**100 + 1])
@pytest.mark.parametrize("amount", ["1e-9", "0.056", "1", "17.3"])
def test_the_scale_of_a_gdp_guarantee_meets_its_squared_mu_exactly(amount, sensitivity):
    budget = accounting.Guarantee("gdp", Fraction(amount), Fraction(1), Fraction(1, 10**9))
    scale = noise_scale(budget, sensitivity)
    assert budget.law.noise == "gaussian"
    assert Fraction(sensitivity) / Fraction(scale) ** 2 <= budget.amount
    assert sensitivity / scale**2 == pytest.approx(float(amount), rel=1e-14)
    assert charge_units(budget, "rho") == math.ceil(budget.amount / 2 * UNIT)
    with pytest.raises(BudgetExceededError):
        charge_units(budget, "epsilon")


@pytest.mark.parametrize("sensitivity", [1, 2, 9, 2**53 + 1, 3**50, 10**30])
def test_sensitivity_is_rounded_up(sensitivity):
    assert Fraction(sensitivity_bound(LAWS["laplace"], sensitivity)) >= sensitivity
    root = Fraction(sensitivity_bound(LAWS["gaussian"], sensitivity))
    assert sensitivity <= root**2 <= sensitivity * (1 + Fraction(1, 2**50))
    with pytest.raises(ValueError, match="positive"):
        sensitivity_bound(LAWS["laplace"], 0)


def test_unit_variance_is_that_of_one_query():
    assert unit_variance("laplace", epsilon=Fraction(2), delta=Fraction(0)) == 0.5
    rho = guarantee("gaussian", epsilon=Fraction(1), delta=Fraction(1, 10**6)).amount
    variance = unit_variance("gaussian", epsilon=Fraction(1), delta=Fraction(1, 10**6))
    assert variance == pytest.approx(1 / (2 * float(rho)), rel=1e-14)


@pytest.mark.parametrize("text", ["0.1", " 1 ", "1e-3", ".5", "2.", "+1", "9" * 6, "0" * 99 + "1"])
def test_epsilon_is_read_exactly(text):
    assert parse_epsilon(text) == Fraction(text.strip())


@pytest.mark.parametrize(
    "text",
    [
        *("1e400", "nan", "inf", "0", "-1", "1e-400", "1e999999999", "1/3", "1_0", "0x1", "１"),
        *("", ".", "e1", "1e", "abc", "1e7", "1,5", "0" * 100 + "1", "9" * 10_000),
    ],
    ids=lambda text: text[:9],
)
def test_epsilon_that_is_no_sensible_number_is_refused_in_few_words(text):
    with pytest.raises(SpecError, match="epsilon") as caught:
        parse_epsilon(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["1", "1.5", "-1e-9", "nan", "1e-101", "1e-400"])
def test_delta_outside_the_unit_interval_is_refused(text):
    with pytest.raises(SpecError, match="delta"):
        parse_delta(text)
    assert [parse_delta(text) for text in ("1e-9", "0")] == [Fraction(1, 10**9), 0]


def test_units_are_shown_exactly():
    assert [units_text(u) for u in (0, 1, UNIT, 25 * UNIT // 10, -UNIT)] == [
        "0",
        "0.000000000000000001",
        "1",
        "2.5",
        "-1",
    ]


mpmath = pytest.importorskip("mpmath")
dp_accounting = pytest.importorskip("dp_accounting", reason="dp-accounting judges our conversions")
rdp = pytest.importorskip("dp_accounting.rdp")
pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
privacy_loss_mechanism = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
rdp_privacy_accountant = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")

MANY_EPSILONS = [
    *map(Fraction, ["0.001", "0.004", "0.01", "0.05", "0.1", "0.2", "0.3", "0.5", "0.7"]),
    *map(Fraction, ["1", "1.3", "2", "2.5", "4", "7", "10", "14", "31.7", "100"]),
]
MANY_DELTAS = [Fraction(1, 10**k) for k in (3, 4, 5, 6, 7, 9, 12)]
RHOS = [
    *map(Fraction, ["1e-6", "3e-5", "1e-4", "1e-3", "0.004", "0.017", "0.05", "0.1"]),
    *map(Fraction, ["0.25", "0.5", "0.77", "1", "2", "3.3", "6", "10", "40"]),
]
SENSITIVITIES = [1, 2, 3, 7, 12, 999, 10**6 + 3, 2**40 + 1, 3**40]
ROUNDING = 1 + 1e-12
"""A judge that computes in floats may be off by that factor."""

dp.enable_features("contrib")
mpmath.mp.prec = 300
VECTORS = dp.vector_domain(dp.atom_domain(T="i64"))


def exact(value):
    """An exact fraction at 300 bits."""
    return mpmath.mpf(value.numerator) / value.denominator


def least_epsilon(rho, delta):
    """The bound of [CKS20] at its best order: where its derivative, of one sign change, is zero."""
    rho, delta = exact(Fraction(rho)), exact(Fraction(delta))
    low, high = mpmath.mpf(-60), mpmath.mpf(60)  # of ln(alpha - 1)
    for _ in range(110):
        middle = (low + high) / 2
        order = mpmath.exp(middle)
        rising = rho * order**2 + mpmath.log((1 + order) * delta) > 0
        low, high = (low, middle) if rising else (middle, high)
    alpha = 1 + mpmath.exp(low)
    return alpha * rho + mpmath.log1p(-1 / alpha) - mpmath.log(alpha * delta) / (alpha - 1)


def opendp_noise(noise, scale):
    """The mechanism of OpenDP that adds a kind of noise."""
    if noise == "laplace":
        return dp.m.make_laplace(VECTORS, dp.l1_distance(T="f64"), scale=scale)
    return dp.m.make_gaussian(VECTORS, dp.l2_distance(T="f64"), scale=scale)


def opendp_epsilon(rho, delta):
    curve = dp.c.make_zCDP_to_approxDP(opendp_noise("gaussian", 1.0))
    return curve.map(math.sqrt(2 * rho)).epsilon(float(delta))


def orders_near_the_best(rho, delta):
    best = math.sqrt(-math.log(delta) / rho)
    return [1 + best * 10 ** (k / 200) for k in range(-300, 60)]


def dp_accounting_epsilon(rho, delta):
    orders = orders_near_the_best(float(rho), float(delta))
    accountant = rdp.RdpAccountant(orders)
    accountant.compose(dp_accounting.ZCDpEvent(float(rho)))
    return accountant.get_epsilon(float(delta))


def gaussian_delta(moves, scale, epsilon):
    """The true delta of discrete Gaussian noise on coordinates that move by so much.

    The privacy loss is (2 S + sum of squared moves) / (2 scale^2) with S = sum of moves * noise.
    Summed term by term, each positive, so that nothing cancels.
    """
    reach = math.ceil(12 * scale)
    noise = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * scale**2))
    noise /= noise.sum()
    law = np.ones(1)
    for move in moves:
        spread = np.zeros(2 * reach * abs(move) + 1)
        spread[:: abs(move)] = noise
        law = np.convolve(law, spread)
    sums = np.arange(len(law)) - len(law) // 2
    loss = (2 * sums + sum(move**2 for move in moves)) / (2 * scale**2)
    above = loss > epsilon
    return float(-(law[above] * np.expm1(epsilon - loss[above])).sum())


@pytest.mark.parametrize("delta", MANY_DELTAS)
def test_rho_to_epsilon_is_never_below_the_truth(delta, record_property):
    for rho in RHOS:
        ours, truth = (
            Fraction(epsilon_of(rho, delta)),
            max(least_epsilon(rho, delta), mpmath.mpf(0)),
        )
        assert truth <= exact(ours) <= truth * ROUNDING
        assert ours == pytest.approx(opendp_epsilon(rho, delta), rel=1e-12)
        # Its orders are a grid, and where KL divergence alone is below delta it says 0.
        theirs = dp_accounting_epsilon(rho, delta)
        assert not theirs or theirs / (1 + 1e-3) <= ours <= theirs * ROUNDING
    record_property("conversions", len(RHOS))


@pytest.mark.nightly(daily="delta[06]")
@pytest.mark.parametrize("delta", MANY_DELTAS)
def test_epsilon_to_rho_is_never_above_the_truth(delta, record_property):
    for epsilon in MANY_EPSILONS:
        rho = _largest_rho(epsilon, delta)
        more = rho * (1 + Fraction(1, 10**12)) + Fraction(2, UNIT)
        assert least_epsilon(rho, delta) <= exact(epsilon) < least_epsilon(more, delta)
        assert opendp_epsilon(rho, delta) <= float(epsilon) * ROUNDING
        orders = orders_near_the_best(float(rho), float(delta))
        losses = [order * float(rho) for order in orders]
        theirs, _ = rdp_privacy_accountant.compute_delta(orders, losses, float(epsilon))
        assert theirs <= float(delta) * (1 + 1e-2)
    record_property("conversions", len(MANY_EPSILONS))


def test_scales_meet_their_budget_in_fractions_and_by_opendp(record_property):
    for noise, deltas in (("laplace", [Fraction(0)]), ("gaussian", MANY_DELTAS[::2])):
        for epsilon, delta, step in itertools.product(MANY_EPSILONS, deltas, SENSITIVITIES):
            budget = guarantee(noise, epsilon=epsilon, delta=delta)
            scale = Fraction(noise_scale(budget, step))
            cost = step / (scale if noise == "laplace" else 2 * scale**2)
            assert budget.amount * (1 - Fraction(1, 10**12)) < cost <= budget.amount
            judge = opendp_noise(noise, float(scale))
            assert judge.map(sensitivity_bound(LAWS[noise], step)) <= budget.amount
    record_property(
        "conversions", len(MANY_EPSILONS) * (1 + len(MANY_DELTAS[::2])) * len(SENSITIVITIES)
    )


def test_the_exact_loss_of_a_release_is_never_above_its_promise(record_property):
    """By dp-accounting and by the exact law; for Laplace noise at the very epsilon too."""
    for epsilon, delta, step in itertools.product(MANY_EPSILONS[3:], MANY_DELTAS[::2], (1, 3, 40)):
        scale = noise_scale(guarantee("gaussian", epsilon=epsilon, delta=delta), step**2)
        reach = math.ceil(12 * scale) + step
        theirs = privacy_loss_mechanism.DiscreteGaussianPrivacyLoss(
            scale, step, truncation_bound=reach
        )
        assert theirs.get_delta_for_epsilon(float(epsilon)) <= delta
        assert gaussian_delta([step], scale, float(epsilon)) <= delta
    for epsilon, step in itertools.product(MANY_EPSILONS[1:], (1, 3, 40)):
        parameter = 1 / noise_scale(guarantee("laplace", epsilon=epsilon, delta=Fraction(0)), step)
        theirs = privacy_loss_mechanism.DiscreteLaplacePrivacyLoss(parameter, step)
        # At an epsilon that is just enough, and at one just below, where delta must show.
        assert theirs.get_delta_for_epsilon(float(epsilon) * ROUNDING) <= 1e-15
        assert theirs.get_delta_for_epsilon(float(epsilon) * 0.99) > 0
    record_property("conversions", 3 * (len(MANY_EPSILONS[3:]) * 4 + len(MANY_EPSILONS[1:])))


def test_pure_epsilon_is_charged_at_least_the_rho_that_it_costs(record_property):
    """At any order; randomized response, with its two outcomes, is the worst of pure mechanisms."""
    judge = dp.c.make_pureDP_to_zCDP(opendp_noise("laplace", 1.0))
    for epsilon in MANY_EPSILONS:
        spent = guarantee("laplace", epsilon=epsilon, delta=Fraction(0))
        rho = Fraction(charge_units(spent, "rho"), UNIT)
        assert judge.map(float(epsilon)) <= float(rho) * ROUNDING
        low = 1 / (1 + mpmath.exp(exact(epsilon)))
        for order in (mpmath.mpf(1.0 + 10 ** (k / 4)) for k in range(-12, 25)):
            high = 1 - low
            moment = high**order * low ** (1 - order) + low**order * high ** (1 - order)
            assert mpmath.log(moment) / (order - 1) <= order * exact(rho)
    record_property("conversions", len(MANY_EPSILONS))


@pytest.mark.nightly
def test_conversions_hold_at_the_ends_of_what_a_spec_may_say(record_property):
    """Anywhere between 1e-6 and 1e6, at any delta from 1e-100 to just below 1."""
    rng = np.random.default_rng(5)
    for _ in range(100):
        delta = Fraction(10.0 ** rng.uniform(-100, -1e-9))
        rho = Fraction(10.0 ** rng.uniform(-18, 11.5))
        truth = max(least_epsilon(rho, delta), mpmath.mpf(0))
        assert truth <= exact(Fraction(epsilon_of(rho, delta))) <= truth * (1 + 1e-6) + 1e-300
        epsilon = Fraction(10.0 ** rng.uniform(-6, 6))
        kept = _largest_rho(epsilon, delta)
        more = kept * (1 + Fraction(1, 10**6)) + Fraction(2, UNIT)
        assert kept <= 0 or least_epsilon(kept, delta) <= exact(epsilon)
        assert kept <= 0 or least_epsilon(more, delta) > exact(epsilon)
    record_property("conversions", 200)


def test_every_limit_on_rows_and_both_neighbours_are_paid_for(record_property):
    weights, checked = {(0, 1): 5, (0,): 3, (1,): 1, (): 2}, 0
    for noise, rows, neighbours in itertools.product(
        ("laplace", "gaussian"), (1, 2, 5), ("add-remove", "replace")
    ):
        for epsilon in MANY_EPSILONS[4:15:2]:
            budget = guarantee(noise, epsilon=epsilon, delta=Fraction(1, 10**6))
            privacy = Privacy(max_rows=rows, neighbours=neighbours)
            strategy = MarginalsStrategy("four", noise, (3, 4), weights)
            columns = dense_strategy(strategy.measurements).astype(int).T
            priced = calibrated_noise(strategy, privacy=privacy, guarantee=budget)
            assert priced.shift == 0
            other = columns if neighbours == "replace" else np.zeros_like(columns[:1])
            for here, there in itertools.product(columns, other):
                move = rows * (here - there)
                size = Fraction(int(abs(move).sum() if noise == "laplace" else (move**2).sum()))
                scale = Fraction(priced.scale)
                cost = size / scale if noise == "laplace" else size / (2 * scale**2)
                assert cost <= budget.amount
                checked += 1
    record_property("conversions", checked)


@pytest.mark.parametrize("moves", [(1, 1), (1, -2), (3, 1, 2), (1, 1, 1, 1), (5, -1, 1)])
def test_a_vector_of_moves_loses_no_more_than_its_length_says(moves, record_property):
    """The exact law: a sum of spread discrete Gaussians, by convolution."""
    squared = sum(move**2 for move in moves)
    for epsilon, delta in itertools.product(MANY_EPSILONS[9:14], MANY_DELTAS[::2]):
        scale = noise_scale(guarantee("gaussian", epsilon=epsilon, delta=delta), squared)
        assert gaussian_delta(moves, scale, float(epsilon)) <= delta
        # The same noise for the largest coordinate alone is not enough: a planted mistake.
        short = noise_scale(
            guarantee("gaussian", epsilon=epsilon, delta=delta), max(map(abs, moves)) ** 2
        )
        assert gaussian_delta(moves, short * 0.75, float(epsilon)) > delta
    record_property("conversions", 5 * len(MANY_DELTAS[::2]))


@pytest.mark.parametrize("releases", [2, 5, 16])
@pytest.mark.parametrize("delta", [Fraction(1, 10**4), Fraction(1, 10**9)])
def test_a_cap_filled_by_many_releases_holds_by_the_exact_accountant(
    releases, delta, record_property
):
    """Gaussian and Laplace releases share a cap; their losses are convolved by dp-accounting."""
    whole = Fraction(3)
    cap = budget_cap(Budget(epsilon=whole, delta=delta), Privacy())
    share = Fraction(cap.units // releases, UNIT)
    gaussian = Guarantee("zcdp", share, epsilon=whole, delta=delta)
    assert releases * charge_units(gaussian, "rho") <= cap.units
    # Coarser than the true losses, and rounded up.
    noisy = pld.from_discrete_gaussian_mechanism(
        noise_scale(gaussian, 9), 3, value_discretization_interval=2e-3, use_connect_dots=True
    )
    assert noisy.self_compose(releases).get_delta_for_epsilon(float(whole)) <= delta
    loss = Fraction(math.isqrt(int(2 * share * 10**12)), 10**6)
    pure = guarantee("laplace", epsilon=loss, delta=Fraction(0))
    assert charge_units(pure, "rho") <= share * UNIT
    laplace = pld.from_discrete_laplace_mechanism(
        1 / noise_scale(pure, 4), 4, value_discretization_interval=2e-3, use_connect_dots=True
    )
    mixed = noisy.self_compose(releases // 2).compose(
        laplace.self_compose(releases - releases // 2)
    )
    assert mixed.get_delta_for_epsilon(float(whole)) <= delta
    assert noisy.self_compose(4 * releases).get_delta_for_epsilon(float(whole)) > delta
    record_property("conversions", 2)


def test_the_parts_of_rap_add_up_to_its_rho_by_opendps_maps(record_property):
    shape, checked = (4, 3, 5), 0
    blocks = (marginal(shape, [0, 1]), marginal(shape, [2]), marginal(shape, [1, 2]))
    workload = Workload(shape, blocks, (1.0, 1.0, 1.0))
    for rho, rows, neighbours in itertools.product(RHOS[4:], (1, 3), ("add-remove", "replace")):
        budget = Guarantee("zcdp", rho, epsilon=Fraction(1), delta=Fraction(1, 10**6))
        privacy = Privacy(max_rows=rows, neighbours=neighbours)
        settings = RapSettings(rounds=3, selected=4, relaxed_rows=10, seed=0)
        split = rap_rounds(workload, settings, privacy=privacy, guarantee=budget, rows=None)

        def gaussian(part, squared, *, split=split):
            judge = opendp_noise("gaussian", split.scale(part, squared))
            return judge.map(sensitivity_bound(LAWS["gaussian"], squared))

        metric = dp.linf_distance(T="i64", monotonic=neighbours == "add-remove")
        pick = dp.m.make_noisy_max(
            VECTORS, metric, dp.zero_concentrated_divergence(), scale=float(1 / split.rate)
        )
        spent = gaussian(split.total_rho, split.first_sensitivity)
        for _ in range(settings.rounds):
            spent += settings.selected * pick.map(rows)
            places = np.array([[0, 0], [1, 2], [2, 3], [2, 4]])
            spent += gaussian(split.measurement_rho, split.sensitivity(places))
        assert float(rho) * 0.999 < spent <= float(rho) * ROUNDING
        checked += 1
    record_property("conversions", checked)


def test_zcdp_costs_at_most_a_quarter_more_noise_than_the_exact_law_allows(record_property):
    """How much is given away: the least scale by the exact law over ours, one number released."""
    for epsilon, delta in itertools.product(MANY_EPSILONS[3:], MANY_DELTAS):
        ours = noise_scale(guarantee("gaussian", epsilon=epsilon, delta=delta), 100)
        theirs = 10 * dp_accounting.get_sigma_gaussian(float(epsilon), float(delta))
        assert 1 < ours / theirs < 1.25
    record_property("conversions", len(MANY_EPSILONS[3:]) * len(MANY_DELTAS))


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("delta", [Fraction(1, 10**4), Fraction(1, 10**9)])
def test_a_cap_filled_by_laplace_releases_at_their_own_cost_holds_by_the_exact_accountant(
    rows, delta, record_property
):
    """As many as the cap admits, in each of which a record moves rows by a twentieth of a scale."""
    whole = Fraction(3)
    cap = budget_cap(Budget(epsilon=whole, delta=delta), Privacy())
    cost = laplace_rho([Moves(rows, rows)], scale=20.0)
    releases = cap.units // math.ceil(cost * UNIT)
    assert releases >= cap.units // math.ceil(Fraction(rows, 20) ** 2 / 2 * UNIT)
    row = pld.from_discrete_laplace_mechanism(
        0.05, 1, value_discretization_interval=1e-3, use_connect_dots=True
    )
    assert row.self_compose(rows * releases).get_delta_for_epsilon(float(whole)) <= delta
    assert row.self_compose(4 * rows * releases).get_delta_for_epsilon(float(whole)) > delta
    record_property("conversions", 1)


# What losses are added up as: said by the first plan, kept by the record, carried by releases.

TOWN = GAUSSIAN_SPEC.replace("neighbours: replace", "neighbours: add-remove")
OPEN = "{epsilon: 4, delta: 1e-6}"


@pytest.fixture
def folder(own_folder):
    Path("people.csv").write_bytes(CSV)
    return own_folder


def planned(accounting="", *options, parent="", name="town", text=TOWN):
    """Plan the town; what is added up is left open, or fixed by the spec."""
    budget = f"{OPEN[:-1]}, accounting: {accounting}}}" if accounting else OPEN
    spec = text.replace(OPEN, budget).replace(", version: 1", parent)
    Path("workload.yaml").write_text(spec.replace("id: town", f"id: {name}"))
    quick = ("--epsilon", 1, "--time-limit", 0, "--why")
    return " ".join(ok("plan", "workload.yaml", *quick, *options).out.split())


def accounts():
    with Ledger.open(Path("state/ledger.db"), create=False) as ledger:
        return {status.account.dataset: status.account for status in ledger.status()}


def currencies():
    return {name: account.cap.currency for name, account in accounts().items()}


def released(out="release"):
    ok("release", "people.csv", "--epsilon", 1, "--noise", "gaussian", "--out", out)
    return json.loads(Path(out, "release.json").read_text())


GDP_OF_1 = squared_mu_of(Fraction(1), Fraction(1, 10**6))


def test_a_plan_with_gaussian_noise_counts_in_gdp_and_takes_the_noise_of_the_curve(folder):
    counted = "losses are added up as mu^2 of GDP, which RAP and adaptive measurement cannot be "
    assert f"{counted}charged to: the plan prefers Gaussian noise" in planned()
    assert currencies() == {"town": "mu^2"}
    made = released()
    promise, noise = made["guarantee"], made["noise"]
    assert (promise["kind"], promise["mechanism"]) == ("gdp", "rounded Gaussian")
    assert promise["rho"] is None
    assert promise["mu"] == pytest.approx(math.sqrt(GDP_OF_1))
    assert Fraction(promise["charged"]) == GDP_OF_1
    exact = Fraction(int(noise["sensitivity"])) / Fraction(noise["scale"]) ** 2
    assert GDP_OF_1 * (1 - Fraction(1, 10**12)) < exact <= GDP_OF_1
    statement = Path("release/statement.md").read_text()
    assert "of Gaussian differential privacy, rounded Gaussian noise)" in statement
    assert "normal noise rounded to a whole number" in " ".join(statement.split())
    assert accounts()["town"].spent == GDP_OF_1 * UNIT
    assert accounts()["town"].pure is None
    again = ok("release", "people.csv", "--epsilon", 1, "--noise", "gaussian")
    assert "nothing was charged" in again.err
    ok("error-report")
    ok("answer", "release", "workload.yaml", "--out", "answers")


def test_the_spec_overrules_the_choice_and_the_record_keeps_it(folder):
    assert "losses are added up" not in planned("zcdp")
    assert "accounting" not in json.loads(Path("dpquery.plan").read_text())
    promise = released("before")["guarantee"]
    assert (promise["kind"], promise.get("mu")) == ("zcdp", None)
    assert currencies() == {"town": "rho"}
    assert "losses are added up as rho of zCDP: town is on record so" in planned()
    assert read_plan(Path("dpquery.plan").read_bytes()).accounting == "zcdp"
    assert currencies() == {"town": "rho"}
    assert released()["guarantee"]["mechanism"] == "discrete Gaussian"
    Path("workload.yaml").write_text(TOWN.replace(OPEN, OPEN[:-1] + ", accounting: gdp}"))
    message = refused("plan", "workload.yaml", "--change-cap", code=5)
    assert "charged in rho" in message


def test_a_record_in_epsilon_takes_laplace_noise_alone(folder):
    planned("pure")
    assert currencies() == {"town": "epsilon"}
    plan, _ = plan_and_spec(Path("dpquery.plan").read_bytes(), Path("dpquery.plan"))
    assert [one.noise for one in plan.selections] == ["laplace"]


PARENT = ", parent: {id: panel, budget: {epsilon: 8, delta: 1e-6}}"


def test_a_dataset_that_was_not_charged_moves_to_what_the_next_plan_says(folder):
    """To and fro, its parent and that one's other datasets with it, at caps worked out anew."""
    small = {"parent": PARENT, "text": TOWN[: TOWN.index("  - name: pairs")]}
    planned(name="other", **small)
    family = {"town", "other", "panel"}
    for kind, currency in (("zcdp", "rho"), ("gdp", "mu^2"), ("zcdp", "rho")):
        planned(kind, "--new-dataset", **small)
        assert currencies() == dict.fromkeys(family, currency)
        for name, account in accounts().items():
            promise = Budget(Fraction(8 if name == "panel" else 4), Fraction(1, 10**6))
            budget = replace(promise, accounting=kind)
            assert account.cap.units == budget_cap(budget, Privacy()).units
    assert "cannot be charged to: the plan prefers Gaussian noise" in planned(**small)
    assert currencies() == dict.fromkeys(family, "mu^2")
    released()
    spec = Path("workload.yaml").read_text()
    Path("workload.yaml").write_text(spec.replace(OPEN, OPEN[:-1] + ", accounting: zcdp}"))
    refused("plan", "workload.yaml", code=5)


def test_a_plan_looks_at_the_ledger_once_before_it_searches(folder, monkeypatch):
    opened, real = [], Ledger.open.__func__

    def counting(cls, path, *, create, **terms):
        opened.append(create)
        return real(cls, path, create=create, **terms)

    monkeypatch.setattr(Ledger, "open", classmethod(counting))
    planned()
    assert opened == [True, True]  # what registration would say, and registration
    opened.clear()
    planned()
    assert opened == [False, True, True]  # what is on record


def planned_twice(first, second, *names):
    """Have the plan of one ledger, or other files of then too, stand beside another ledger."""
    planned(first)
    files = {name: Path(name).read_bytes() for name in ("dpquery.plan", *names)}
    Path("state/ledger.db").rename("elsewhere.db")
    planned(second)
    for name, content in files.items():
        Path(name).write_bytes(content)


@pytest.mark.nightly
def test_a_release_in_gdp_is_charged_half_of_mu_squared_where_rho_adds_up(folder):
    planned_twice("", "zcdp", "workload.yaml")
    assert released()["guarantee"]["kind"] == "gdp"
    assert accounts()["town"].spent == math.ceil(GDP_OF_1 * UNIT / 2)


def test_a_release_in_rho_is_refused_where_mu_squared_adds_up(folder):
    planned_twice("zcdp", "")
    message = refused("release", "people.csv", "--epsilon", 1, "--noise", "gaussian", code=3)
    assert "run `dpquery plan` again" in message
    assert "accounting: zcdp" in message


def test_a_plan_that_counts_in_two_ways_is_refused(folder):
    planned("zcdp")
    raw = unhashed(Path("dpquery.plan").read_text())
    Path("dpquery.plan").write_text(json.dumps(raw | {"accounting": "gdp"}, indent=1))
    assert "two ways" in refused("release", "people.csv", "--epsilon", 1, code=2)


def test_budgets_agree_on_what_is_added_up():
    rho, pure = Budget(rho=Fraction(1)), Budget(epsilon=Fraction(1))
    open_one = replace(pure, delta=Fraction(1, 10**6))
    assert (open_one.fixed, open_one.counted) == (None, "zcdp")
    assert (rho.fixed, pure.fixed) == ("zcdp", "pure")
    assert Dataset("a", "1", parent=Parent("b", rho)).parent.budget.fixed == "zcdp"
