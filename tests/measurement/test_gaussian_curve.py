"""The curve of GDP and what Laplace noise costs in rho, in intervals, hold by other arithmetic."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest
from dense import dense_strategy, random_strategies
from test_curator import SPEC, ask
from test_expected_error import wide_product

from dpquery.measurement.accounting import (
    UNIT,
    Guarantee,
    budget_cap,
    charge_units,
    guarantee,
    noise_scale,
)
from dpquery.measurement.curator import measure
from dpquery.measurement.gdp import (
    PI,
    Interval,
    delta_of,
    epsilon_of_gdp,
    mills,
    squared_mu_of,
    squared_mu_of_pure,
)
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.noise.calibration import (
    HALF_PI_ABOVE,
    Calibration,
    Moves,
    calibrated_noise,
    laplace_rho,
    laplace_squared_mu,
)
from dpquery.operators.blocks import product
from dpquery.operators.factors import Dense
from dpquery.spec.spec import Privacy
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.strategy import WeightedBlock

mpmath = pytest.importorskip("mpmath")
dp_accounting = pytest.importorskip("dp_accounting", reason="dp-accounting judges our conversions")
pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

EPSILONS = [Fraction(e) for e in ("1e-6", "1e-3", "0.1", "0.5", "1", "4", "20", "1000", "1e6")]
DELTAS = [
    Fraction(d) for d in ("1e-100", "1e-30", "1e-9", "1e-6", "1e-3", "0.1", "0.9", "0.999999")
]


@pytest.fixture(autouse=True)
def precise():
    """Work in 1,200 bits: what cancels is far less than that."""
    with mpmath.workprec(1200):
        yield


def exact(value):
    return mpmath.mpf(value.numerator) / mpmath.mpf(value.denominator)


def exact_delta(epsilon, squared_mu):
    """Delta by its definition."""
    mu, e = mpmath.sqrt(exact(squared_mu)), exact(epsilon)
    upper = mpmath.erfc((e / mu - mu / 2) / mpmath.sqrt(2))
    return (upper - mpmath.exp(e) * mpmath.erfc((e / mu + mu / 2) / mpmath.sqrt(2))) / 2


def test_pi_is_between_its_bounds_by_machin_s_formula():
    def arctan_of_inverse(n, terms):
        return sum(Fraction((-1) ** k, (2 * k + 1) * n ** (2 * k + 1)) for k in range(terms))

    low = 4 * (4 * arctan_of_inverse(5, 60) - arctan_of_inverse(239, 21))
    high = 4 * (4 * arctan_of_inverse(5, 61) - arctan_of_inverse(239, 20))
    assert Fraction(PI.low) < low < high < Fraction(PI.high)
    assert Fraction(PI.high) / 2 < HALF_PI_ABOVE < Fraction(PI.high) / 2 + Fraction(1, 10**39)


@pytest.mark.parametrize(
    "x", ["-40", "-6.5", "-6", "-1", "0", "0.3", "2", "5.99", "6", "7", "40", "1e9"]
)
def test_mills_ratio_is_between_its_bounds(x):
    bounds = mills(Interval(Decimal(x), Decimal(x)))
    up_to_here = mills(Interval(Decimal(x) - Decimal("0.125"), Decimal(x)))
    with mpmath.workprec(4000):
        at = mpmath.mpf(x)
        if at < 100:
            ratio = mpmath.exp(at**2 / 2) * mpmath.erfc(at / mpmath.sqrt(2))
            ratio *= mpmath.sqrt(mpmath.pi / 2)
        else:
            ratio = 1 / at - 1 / at**3 + 3 / at**5 - 15 / at**7 + 105 / at**9
        assert mpmath.mpf(str(bounds.low)) <= ratio <= mpmath.mpf(str(bounds.high))
        assert 0 <= mpmath.mpf(str(up_to_here.low)) <= ratio  # at the end where it is least
    assert bounds.high - bounds.low <= bounds.high * Decimal("1e-40")


@pytest.mark.nightly(daily="delta[27]")
@pytest.mark.parametrize("delta", DELTAS)
def test_mu_is_the_largest_whole_number_of_units_that_keeps_the_promise(delta, record_property):
    for epsilon in EPSILONS:
        squared_mu = squared_mu_of(epsilon, delta)
        assert squared_mu <= 0 or exact_delta(epsilon, squared_mu) <= exact(delta)
        assert exact_delta(epsilon, squared_mu + Fraction(1, UNIT)) > exact(delta)
    record_property("conversions", len(EPSILONS))


def test_epsilon_is_the_least_whole_number_of_units_that_mu_implies():
    for squared_mu, delta in itertools.product(
        map(Fraction, ("1e-9", "0.05", "1", "9")), DELTAS[2:]
    ):
        epsilon = epsilon_of_gdp(squared_mu, delta)
        assert exact_delta(epsilon, squared_mu) <= exact(delta)
        if epsilon > 0:
            assert exact_delta(epsilon - Fraction(2, UNIT), squared_mu) > exact(delta)
    assert epsilon_of_gdp(Fraction(1), Fraction("0.5")) == 0  # the total variation is 0.383


def test_pure_noise_costs_the_least_mu_whose_curve_lies_below_randomised_response():
    """The curve of mu is at or below its one corner, and only just."""
    for epsilon in EPSILONS:
        squared_mu = squared_mu_of_pure(epsilon)
        corner = 1 / (1 + mpmath.exp(exact(epsilon)))
        for mu2, safe in ((squared_mu, True), (squared_mu - Fraction(1, UNIT), False)):
            half = mpmath.sqrt(exact(mu2)) / 2
            assert (mpmath.erfc(half / mpmath.sqrt(2)) / 2 <= corner) == safe


@pytest.mark.parametrize("epsilon", ["0.1", "0.5", "1", "4"])
@pytest.mark.parametrize("delta", ["1e-6", "1e-9"])
def test_sigma_is_that_of_dp_accounting_and_at_least_what_opendp_asks(epsilon, delta):
    spent = guarantee(
        "gaussian", epsilon=Fraction(epsilon), delta=Fraction(delta), accounting="gdp"
    )
    sigma = noise_scale(spent, 10**12) / 10**6
    theirs = dp_accounting.get_sigma_gaussian(float(epsilon), float(delta))
    assert sigma == pytest.approx(theirs, rel=1e-7)
    judged = pld.from_gaussian_mechanism(sigma, use_connect_dots=True)
    assert judged.get_delta_for_epsilon(float(epsilon)) == pytest.approx(float(delta), rel=2e-3)
    by_rho = guarantee("gaussian", epsilon=Fraction(epsilon), delta=Fraction(delta))
    dp.enable_features("contrib")
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    measured = dp.m.make_gaussian(*space, scale=noise_scale(by_rho, 1))
    opendp = dp.c.make_zCDP_to_approxDP(measured).map(1.0).epsilon(delta=float(delta))
    assert opendp == pytest.approx(float(epsilon), rel=1e-6)  # and that takes more noise
    assert 1.04 < noise_scale(by_rho, 10**12) / 10**6 / sigma < 1.1


def laplace_law(scale, shift, reach):
    y = np.arange(-reach, reach + shift + 1)
    at = np.exp(-np.abs(y) / scale)
    moved = np.exp(-np.abs(y - shift) / scale)
    return at / at.sum(), moved / moved.sum()


@pytest.mark.nightly(daily=r"\[(1|2\.5)|8\.0-moves[0124]")
@pytest.mark.parametrize("moves", [(1,), (3,), (2, 1), (1, 1, 1), (4, 4)])
@pytest.mark.parametrize("scale", [1.0, 2.5, 8.0])
def test_laplace_noise_is_gdp_for_what_it_is_charged(moves, scale):
    """By its definition, at every epsilon: no event tells the laws apart better than mu allows."""
    p = q = np.ones(1)
    for move in moves:
        law, moved = laplace_law(scale, move, int(12 * scale))
        p, q = np.multiply.outer(p, law).ravel(), np.multiply.outer(q, moved).ravel()
        kept = (p > 1e-13) | (q > 1e-13)
        p, q = p[kept], q[kept]
    spent = Guarantee(
        "pure",
        Fraction(sum(moves)) / Fraction(scale),
        Fraction(1),
        Fraction(0),
        squared_mu=laplace_squared_mu(sum(move**2 for move in moves), scale=scale),
    )
    charged = Fraction(charge_units(spent, "mu^2"), UNIT)
    deltas = {}
    for epsilon in np.linspace(0, float(spent.amount), 25):
        seen = np.maximum(p - np.exp(epsilon) * q, 0).sum()
        deltas[epsilon] = seen
        assert seen <= float(delta_of(Fraction(float(epsilon)), charged).high) + 1e-9
    assert any(
        seen > float(delta_of(Fraction(float(epsilon)), charged / 3).high) + 1e-9
        for epsilon, seen in deltas.items()
    )


SCALES = (1.0, 1.3, 2.0, 5.7, 40.0, 1000.5)
SHIFTS = (1, 2, 3, 7, 20, 150, 2000)
ORDERS = (1 + 1e-6, 1.01, 1.5, 2.0, 3.3, 8.0, 32.0, 1000.0)


def kappa(shift, scale):
    """The cost of one move, in floats."""
    x = shift / scale
    return x + math.expm1(-x) / (scale * math.sinh(1 / scale))


def divergence(shift, scale, order):
    """D_order of the law from the law moved, summed over the law.

    Beyond what is summed one by one both laws fall geometrically, and the ratio does not change.
    """
    y = np.arange(-200, shift + 201, dtype=float)
    here, there = -np.abs(y) / scale, -np.abs(y - shift) / scale
    exponents = order * here + (1 - order) * there
    ends = exponents[[0, -1]] - 1 / scale - math.log(-math.expm1(-1 / scale))
    log_sum = np.logaddexp.reduce([*exponents, *ends])
    log_total = math.log(1 / math.tanh(1 / (2 * scale)))
    return (log_sum - log_total) / (order - 1)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shift", SHIFTS)
def test_one_move_costs_the_limit_at_order_one_and_no_order_more(shift, scale):
    cost = float(laplace_rho([Moves(shift, shift**2)], scale=scale))
    assert cost == pytest.approx(kappa(shift, scale), rel=1e-9)
    over_order = [divergence(shift, scale, order) / order for order in ORDERS]
    assert max(over_order[1:]) <= cost * (1 + 1e-12) + 1e-12
    assert sorted(over_order[1:], reverse=True) == pytest.approx(over_order[1:], rel=1e-12)
    assert over_order[0] == pytest.approx(cost, rel=1e-4, abs=1e-8)
    assert cost <= (shift / scale) ** 2 / 2


def test_the_cost_is_rounded_up_at_every_scale_and_move():
    """Held against 200 digits, where 60 cancel most: next to 1, and at the largest scale."""
    rng = np.random.default_rng(0)
    for scale in (1.0, 1 + 2.0**-52, 3.3, 2.0**30, 2.0**52 * (1 - 2.0**-53)):
        for _ in range(30):
            total = int(rng.integers(1, 1 << int(rng.integers(1, 60))))
            squared = total * int(rng.integers(1, total + 1))
            exact = laplace_rho([Moves(total, squared)], scale=scale)
            with localcontext(prec=200):
                t, z = Decimal(scale), Decimal(squared) / total / Decimal(scale)
                sinh = ((1 / t).exp() - (-1 / t).exp()) / 2
                true = total / t * (1 - (1 - (-z).exp()) / (z * t * sinh))
                charged = Decimal(exact.numerator) / exact.denominator
            if total / scale < 10**6:
                assert 0 <= Fraction(charged) - Fraction(true) <= Fraction(2, 10**30)


@pytest.mark.parametrize("scale", SCALES)
def test_moves_of_a_vector_never_cost_more_than_is_bounded(scale):
    rng = np.random.default_rng(int(scale * 10))
    for _ in range(200):
        moves = rng.integers(0, 1 << int(rng.integers(1, 9)), int(rng.integers(1, 9))) + 1
        total, squared = int(moves.sum()), int((moves**2).sum())
        cost = float(laplace_rho([Moves(total, squared)], scale=scale))
        exact = sum(kappa(move, scale) for move in moves.tolist())
        assert exact <= cost * (1 + 1e-9) + 1e-12
        assert cost <= kappa(total, scale) * (1 + 1e-9) + 1e-12
        if len(set(moves.tolist())) == 1:
            assert exact == pytest.approx(cost, rel=1e-9, abs=1e-12)
        more = (Moves(total + 1, squared), Moves(total, squared + 1))
        assert all(float(laplace_rho([move], scale=scale)) >= cost for move in more)


def priced(strategy, privacy, epsilon):
    budget = guarantee("laplace", epsilon=epsilon, delta=Fraction(0))
    return calibrated_noise(strategy, privacy=privacy, guarantee=budget)


def worst_cost(strategy, mechanism, person, *, replace=False):
    """The costliest column: its moves on the grid, `person` records of one class together.

    Or the costliest difference of two columns, one of them of zeros.
    """
    A, grid = dense_strategy(strategy.measurements), 1 << mechanism.shift
    costs, columns = [], list(A.T)
    if replace:
        columns += [first - second for first in A.T for second in A.T]
    for column in columns:
        moves = [person * (-(-abs(int(entry)) // grid)) for entry in column]
        costs.append(sum(kappa(move, mechanism.scale) for move in moves))
    return max(costs)


@pytest.mark.parametrize("seed", range(12))
def test_no_column_costs_more_than_is_charged(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 4, int(rng.integers(1, 4))).tolist())
    for strategy, _ in random_strategies(rng, shape, "laplace"):
        for rows, neighbours in ((1, "add-remove"), (3, "add-remove"), (2, "replace")):
            privacy = Privacy(person="id", max_rows=rows, neighbours=neighbours)
            epsilon = Fraction(int(rng.integers(1, 40)), 10)
            mechanism = priced(strategy, privacy, epsilon)
            charged = charge_units(mechanism.guarantee, "rho") / UNIT
            replace = neighbours == "replace"
            assert worst_cost(strategy, mechanism, rows, replace=replace) <= charged * (1 + 1e-9)
            assert charged <= float(epsilon**2 / 2) + 1e-17


def test_a_grid_that_floors_is_paid_for():
    strategy = wide_product("laplace")
    mechanism = priced(strategy, Privacy(), Fraction(1))
    assert mechanism.shift > 0
    assert worst_cost(strategy, mechanism, 1) <= float(mechanism.guarantee.rho) * (1 + 1e-9)


def test_all_on_one_row_costs_the_cost_of_one_move():
    strategy = MarginalsStrategy("m", "laplace", (5,), {(0,): 2**16})
    mechanism = priced(strategy, Privacy(), Fraction(4))
    rho = mechanism.guarantee.rho
    assert float(rho) == pytest.approx(kappa(2**16, mechanism.scale), rel=1e-12)
    assert charge_units(mechanism.guarantee, "rho") == math.ceil(rho * UNIT)
    assert charge_units(mechanism.guarantee, "epsilon") == 4 * UNIT
    unknown = replace(mechanism.guarantee, rho=None)
    assert charge_units(unknown, "rho") == 8 * UNIT


def test_blocks_apart_and_together_are_both_bounds_and_the_smaller_counts():
    """Apart where columns are alike in every block; together where their maxima are elsewhere."""
    left, right = (Dense(np.array([row], dtype=np.int64)) for row in ([40, 1], [1, 40]))
    blocks = [WeightedBlock(1, product((2,), {0: factor})) for factor in (left, right)]
    rho = float(Calibration(tuple(blocks), "laplace", 0, 1, "enters").rho(41.0))
    assert kappa(40, 41.0) + kappa(1, 41.0) <= rho < 1.9 * kappa(40, 41.0)


def test_a_release_costs_what_its_noise_does_and_one_of_an_earlier_version_stays_free(tmp_path):
    question = ask(SPEC.replace("{epsilon: 4}", "{epsilon: 10, delta: 1e-6}"))
    rho = question.guarantee.rho
    assert Fraction(1, 5) < rho < Fraction(1, 4)  # a third and two thirds of epsilon 1, and not 1/2
    without = replace(question.mechanism, guarantee=replace(question.guarantee, rho=None))
    older = replace(question, mechanism=without)
    assert older.key == question.key
    data = tmp_path / "data.csv"
    data.write_text("age,sex,pay\n0,F,5\n1,M,15\n")
    for earlier, spent in ((question, math.ceil(rho * UNIT)), (older, UNIT // 2)):
        with Ledger.open(tmp_path / f"{spent}" / "ledger.db", create=True) as ledger:
            ledger.register("town", budget_cap(question.spec.budget, question.spec.privacy))
            first = measure(data, earlier, ledger=ledger)
            again = measure(data, question, ledger=ledger)
            assert again.stored
            assert (again.values == first.values).all()
            assert ledger.status()[0].account.spent == spent


@pytest.mark.parametrize("shift", [0, 3])
def test_rows_of_zeros_cost_nothing(shift):
    zeros, ones = (
        WeightedBlock(8, product((2,), {0: Dense(np.full((1, 2), entry))})) for entry in (0, 1)
    )
    costs = [
        Calibration(blocks, "laplace", shift, 1, "enters").rho(9.0)
        for blocks in ((ones,), (zeros, ones))
    ]
    assert costs[0] == costs[1] > 0


def test_blocks_that_move_alike_cost_as_often_as_there_are():
    blocks = [Moves(3, 5), Moves(7, 11), Moves(3, 5), Moves(3, 5)]
    one_by_one = sum(laplace_rho([block], scale=20.0) for block in blocks)
    assert laplace_rho(blocks, scale=20.0) == one_by_one
    assert laplace_rho(Counter(blocks), scale=20.0) == one_by_one
