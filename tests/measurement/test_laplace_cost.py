"""What Laplace noise costs in zCDP: the formula, the bound for vectors, and the charge."""

import math
from collections import Counter
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from dense import dense_strategy, random_strategies
from test_curator import SPEC, ask
from test_mechanism import wide_product

from dpquery.measurement.accounting import UNIT, budget_cap, charge_units, guarantee
from dpquery.measurement.curator import measure
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.noise.calibration import Calibration, calibrated_noise
from dpquery.measurement.noise.laplace_cost import Moves, laplace_rho
from dpquery.operators.blocks import product
from dpquery.operators.factors import Dense
from dpquery.spec.spec import Privacy
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.strategy import WeightedBlock

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


@pytest.mark.parametrize("scale", SCALES)
def test_a_hundredth_less_would_be_too_little(scale):
    for shift in SHIFTS:
        cost = 0.99 * float(laplace_rho([Moves(shift, shift**2)], scale=scale))
        assert any(divergence(shift, scale, order) > cost * order for order in (1 + 1e-4, 1.001))


def test_the_published_costs_of_continuous_noise_are_reached_at_large_scales():
    for epsilon, published in ((1, 1 / math.e), (4, 3 + math.exp(-4)), (0.1, 0.004837418)):
        move = round(epsilon * 2**40)
        cost = laplace_rho([Moves(move, move**2)], scale=2.0**40)
        assert float(cost) == pytest.approx(published, rel=1e-7)


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


@pytest.mark.parametrize("seed", range(4))
def test_no_person_costs_more_than_records_of_one_class(seed):
    """All ways to put in up to two records, or to replace two: the worst have one class."""
    rng = np.random.default_rng(seed)
    A, scale = rng.integers(-9, 10, (4, 3)), 5.0
    columns = [*A.T, np.zeros(4, int)]
    alone = max(sum(kappa(2 * abs(int(v)), scale) for v in column) for column in A.T)
    put = [a + b for a in columns for b in columns]
    assert max(sum(kappa(abs(int(v)), scale) for v in move) for move in put) <= alone * (1 + 1e-12)
    both = max(sum(kappa(4 * abs(int(v)), scale) for v in column) for column in A.T)
    replaced = [a - b for a in put for b in put]
    assert max(sum(kappa(abs(int(v)), scale) for v in move) for move in replaced) <= both


def test_a_grid_that_floors_is_paid_for():
    strategy = wide_product("laplace")
    mechanism = priced(strategy, Privacy(), Fraction(1))
    assert mechanism.shift > 0
    assert worst_cost(strategy, mechanism, 1) <= float(mechanism.guarantee.rho) * (1 + 1e-9)


def test_cells_of_many_marginals_cost_the_sum_of_their_moves_exactly():
    shape = (3,) * 6
    weights = {(i, j): 2**16 + i for i in range(6) for j in range(i)}
    mechanism = priced(MarginalsStrategy("m", "laplace", shape, weights), Privacy(), Fraction(1))
    exact = sum(kappa(weight, mechanism.scale) for weight in weights.values())
    assert float(mechanism.guarantee.rho) == pytest.approx(exact, rel=1e-9)
    assert exact == pytest.approx(1 / (2 * 15), rel=0.03)


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


def test_a_release_is_charged_what_its_noise_costs_under_the_key_that_it_had(tmp_path):
    question = ask(SPEC.replace("{epsilon: 4}", "{epsilon: 10, delta: 1e-6}"))
    rho = question.guarantee.rho
    assert Fraction(1, 5) < rho < Fraction(1, 4)  # a third and two thirds of epsilon 1, and not 1/2
    without = replace(question.mechanism, guarantee=replace(question.guarantee, rho=None))
    assert replace(question, mechanism=without).key == question.key
    data = tmp_path / "data.csv"
    data.write_text("age,sex,pay\n0,F,5\n1,M,15\n")
    with Ledger.open(tmp_path / "state" / "ledger.db", create=True) as ledger:
        ledger.register("town", budget_cap(question.spec.budget, question.spec.privacy))
        measure(data, question, ledger=ledger)
        assert measure(data, question, ledger=ledger).stored
        assert ledger.status()[0].account.spent == math.ceil(rho * UNIT)


def test_a_release_of_an_earlier_version_keeps_its_charge_and_is_free(tmp_path):
    question = ask(SPEC.replace("{epsilon: 4}", "{epsilon: 10, delta: 1e-6}"))
    unpriced = replace(question.mechanism, guarantee=replace(question.guarantee, rho=None))
    data = tmp_path / "data.csv"
    data.write_text("age,sex,pay\n0,F,5\n1,M,15\n")
    with Ledger.open(tmp_path / "state" / "ledger.db", create=True) as ledger:
        ledger.register("town", budget_cap(question.spec.budget, question.spec.privacy))
        first = measure(data, replace(question, mechanism=unpriced), ledger=ledger)
        again = measure(data, question, ledger=ledger)
        assert again.stored
        assert (again.values == first.values).all()
        assert ledger.status()[0].account.spent == UNIT // 2


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
