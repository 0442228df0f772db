"""Consistent answers where queries overlap: a table with its margins, thresholds, whole numbers."""

import json
import math
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.optimize import minimize
from town import ok, plan_town

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.factors import Dense, Groups, Identity, Stacked, total
from dpquery.operators.p_identity import PIdentity
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.reconstruction import agreeing_tables, joint_counts
from dpquery.reconstruction.agreeing_tables import AgreeingTables
from dpquery.reconstruction.graphical_model import (
    _scaled,
    check_graphical,
    fit_graphical,
    junction_tree_cells,
)
from dpquery.reconstruction.least_squares import Measured
from dpquery.reconstruction.nearest import order_of_codes, whole_cells
from dpquery.strategy.expected_error import squared_sensitivity
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.strategy import Strategy, WeightedBlock

RELEASE = ("release", "data.csv", "--epsilon", "1")


def chosen(workload, noise="gaussian", kind=Strategy):
    candidates = select(workload, noises=[noise])[noise].candidates
    made = [
        candidate
        for candidate in candidates
        if candidate.proposal is not None and isinstance(candidate.proposal.strategy, kind)
    ]
    return min(made, key=lambda candidate: candidate.error.rmse).proposal.strategy


def with_total(n):
    return Stacked((Identity(n), total(n)))


def table_of(x, subset):
    return x.sum(axis=tuple(i for i in range(x.ndim) if i not in subset))


def measured(strategy, x, std, chance):
    """Answers of a strategy's measurements with normal noise."""
    for each in strategy.measurements:
        block = each.block
        table = table_of(x, block.attributes).reshape(block.table_shape).astype(float)
        exact = each.weight * block.apply(table).ravel()
        yield exact + chance.normal(0, std, block.queries)


def fitted(strategy, x, blocks, std, seed=0):
    chance = np.random.default_rng(seed)
    std *= math.sqrt(squared_sensitivity(strategy))
    noisy = list(measured(strategy, x, std, chance))
    answers = Measured(strategy, noisy, std)
    return answers.estimates, AgreeingTables(answers, blocks)


def dense_rows(block):
    """The queries of a block, written out over its table: (m, cells)."""
    cells = np.eye(math.prod(block.table_shape))
    return np.array([block.apply(cell.reshape(block.table_shape)).ravel() for cell in cells]).T


def over_domain(block, shape):
    """The queries of a block, written out over all cells."""
    units = np.eye(math.prod(shape)).reshape(-1, *shape)
    tables = [table_of(unit, block.attributes).ravel() for unit in units]
    return dense_rows(block) @ np.array(tables).T


def nearest_dense(weights, target, total):
    """The minimum of x'Px / 2 - t'x over x >= 0 of a total, by sequential quadratic programs."""
    scale, start = np.abs(np.diag(weights)).max(), np.full(len(target), total / len(target))
    for _ in range(4):  # its line search gives up early now and then
        solved = minimize(
            lambda x: (x @ weights @ x / 2 - target @ x) / scale,
            start,
            jac=lambda x: (weights @ x - target) / scale,
            bounds=[(0, None)] * len(target),
            constraints=[{"type": "eq", "fun": lambda x: x.sum() - total}],
            options={"maxiter": 3000, "ftol": 1e-14},
        )
        start = np.maximum(solved.x, 0)
        if solved.success:
            break
    return solved.x


def joint_twin(strategy, noisy):
    """Single attributes first, under the covariance of their estimates, then all cells."""
    shape = strategy.shape
    rows = np.concatenate(
        [each.weight * over_domain(each.block, shape) for each in strategy.measurements]
    )
    inverse = np.linalg.pinv(rows)
    cells = inverse @ np.concatenate(noisy)
    weights, target = rows.T @ rows, rows.T @ np.concatenate(noisy)
    for i, n in enumerate(shape):
        single = over_domain(marginal(shape, (i,)), shape)
        centred = np.eye(n) - 1 / n
        covariance = centred @ single @ inverse @ inverse.T @ single.T @ centred
        variance = np.trace(covariance) / (n - 1)
        precision = np.linalg.pinv(covariance, rcond=1e-9) * variance + np.full((n, n), 1 / n)
        counts = nearest_dense(precision, precision @ single @ cells, cells.sum())
        firm = joint_counts.FIRM / variance
        weights, target = weights + firm * single.T @ single, target + firm * single.T @ counts
    return cells, nearest_dense(weights, target, cells.sum()).reshape(shape)


NESTED = Groups.of(((0, 1, 2), (3, 4), (5,)), 6)
CROSSING = Groups.of(((0, 3), (1, 2, 4)), 6)
TWINS = {
    "both margins": ((6, 3), lambda n, m: [{0: with_total(n), 1: with_total(m)}]),
    "levels, and values of another": (
        (6, 3),
        lambda n, m: [{0: Stacked((total(n), NESTED, Identity(n))), 1: Identity(m)}],
    ),
    "hierarchies that do not nest": (
        (6, 3),
        lambda n, m: [{0: NESTED, 1: Identity(m)}, {0: CROSSING, 1: with_total(m)}, {0: Prefix(n)}],
    ),
    "prefixes of both, and ranges": (
        (6, 4),
        lambda n, m: [{0: Prefix(n), 1: Prefix(m)}, {0: AllRanges(n)}],
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_one_joint_table_is_the_nearest_by_the_true_covariances(name, monkeypatch):
    """A dense twin: quadratic programs over measured rows that are written out."""
    monkeypatch.setattr(joint_counts, "TOLERANCE", 1e-9)
    shape, asked = TWINS[name]
    blocks = tuple(product(shape, factors) for factors in asked(*shape))
    blocks += (marginal(shape, (0, 1)),)
    strategy = chosen(Workload(shape, blocks, (1.0,) * len(blocks)))
    x = np.random.default_rng(5).poisson(2.0, shape) * (np.arange(shape[0])[:, None] > 1)
    std = 4.0 * math.sqrt(squared_sensitivity(strategy))
    noisy = list(measured(strategy, x, std, np.random.default_rng(1)))
    tables = AgreeingTables(Measured(strategy, noisy, std), blocks)
    cells, nearest = joint_twin(strategy, noisy)
    assert cells.min() < -1  # zero is what it is cut at
    for block in blocks:
        answers = tables.answer(block)
        twin = block.apply(table_of(nearest, block.attributes))
        assert answers == pytest.approx(twin, abs=0.03)


def test_components_beyond_joint_classes_are_the_nearest_too(monkeypatch):
    """With ranges, their noise has a shape: a dense twin, of strategies that split exactly so."""
    shape = (6, 4)
    blocks = (product(shape, {0: Prefix(6), 1: with_total(4)}), marginal(shape, (0, 1)))
    strategy = chosen(Workload(shape, blocks, (1.0, 1.0)), "laplace", MarginalsStrategy)
    x = np.random.default_rng(5).poisson(3.0, shape)
    std = 4.0 * math.sqrt(squared_sensitivity(strategy))
    noisy = list(measured(strategy, x, std, np.random.default_rng(1)))
    monkeypatch.setattr(joint_counts, "FIRM", 1e4)
    cells, nearest = joint_twin(strategy, noisy)
    assert cells.min() < -1
    monkeypatch.setattr(joint_counts, "MAX_JOINT_COUNTS", 5)
    tables = AgreeingTables(Measured(strategy, noisy, std), blocks)
    assert tables.answer(blocks[1]) == pytest.approx(nearest, abs=0.1)


def test_tables_agree_with_one_another_and_err_less():
    shape = (12, 8, 5)
    blocks = tuple(
        product(shape, {i: with_total(shape[i]) for i in pair})
        for pair in combinations(range(3), 2)
    )
    strategy = chosen(Workload(shape, blocks, (1.0,) * 3))
    rng = np.random.default_rng(3)
    x = rng.poisson(np.multiply.outer(np.multiply.outer(0.6 ** np.arange(12), 0.5 ** np.arange(8)),
                                      0.4 ** np.arange(5)) * 200)  # fmt: skip
    estimates, tables = fitted(strategy, x, blocks, 5.0)
    before = after = 0.0
    for block in blocks:
        truth = block.apply(table_of(x, block.attributes))
        before += float(np.sum((estimates.answer(block, None) - truth) ** 2))
        after += float(np.sum((tables.answer(block) - truth) ** 2))
    assert after < 0.7 * before
    first, second, third = (tables.answer(block) for block in blocks)
    noise = math.sqrt(before / sum(block.queries for block in blocks))
    assert first[:, -1] == pytest.approx(second[:, -1], abs=0.1 * noise)
    assert first[-1] == pytest.approx(third[:, -1], abs=0.1 * noise)


def test_whole_cells_keep_the_sums_of_runs_and_come_near_those_across_lines():
    cells = np.random.default_rng(0).gamma(0.4, 3.0, (30, 5, 4))
    whole = whole_cells(cells, (None, None, None))
    assert whole.min() >= 0
    assert np.abs(whole - cells).max() < 1
    assert np.abs(np.cumsum(whole - cells, axis=0)).max() < 1.001
    assert np.abs(whole.sum(axis=(1, 2)) - cells.sum(axis=(1, 2))).max() < 4
    assert whole.sum() == round(cells.sum())
    same = np.full((30, 20), 0.4)
    assert np.abs(whole_cells(same, (None, None)).sum(axis=1) - 8).max() <= 2
    assert np.abs(whole_cells(same.T, (None, None)).sum(axis=0) - 8).max() <= 2


def test_groups_that_are_not_neighbours_keep_their_sums_in_whole_numbers():
    codes = np.arange(24) % 4
    states = Groups.of(tuple(tuple(np.flatnonzero(codes == k).tolist()) for k in range(4)), 24)
    order = order_of_codes([Stacked((Identity(24), states, total(24)))], 24)
    cells = np.random.default_rng(2).gamma(0.5, 1.0, (2, 24))
    whole = whole_cells(cells, (None, order))
    assert np.abs(states.matmat((whole - cells).T)).max() < 1.001
    assert order_of_codes([Prefix(24), states], 24) is None


def test_attributes_of_too_many_classes_for_their_noise_are_left_out_with_the_reason(monkeypatch):
    shape = (6, 3, 2)
    blocks = (
        product(shape, {0: with_total(6), 1: with_total(3)}),
        product(shape, {0: Prefix(6)}),
        product(shape, {1: with_total(3), 2: with_total(2)}),
    )
    strategy = chosen(Workload(shape, blocks, (1.0,) * 3))
    monkeypatch.setattr(joint_counts, "MAX_JOINT_COUNTS", 35)
    _, tables = fitted(strategy, np.ones(shape), blocks, 1.0)
    assert tables.reasons == ("", "", "")
    monkeypatch.setattr(agreeing_tables, "SHAPED", 5)
    _, tables = fitted(strategy, np.ones(shape), blocks, 1.0)
    assert tables.answer(blocks[0]) is None
    assert tables.reasons[0].startswith("ranges, prefixes or groups are asked")
    assert tables.answer(blocks[2]) is not None


@pytest.mark.nightly(daily=r"\[10\]")
@pytest.mark.parametrize("cells", [10**6, 10])
def test_tables_with_ranges_and_groups_add_up_and_margins_err_no_more_than_estimates(
    cells, monkeypatch
):
    monkeypatch.setattr(joint_counts, "MAX_JOINT_COUNTS", cells)
    shape = (24, 9, 4)
    halves = Groups.of((tuple(range(12)), tuple(range(12, 24))), 24)
    blocks = (
        product(shape, {0: Stacked((halves, Identity(24))), 1: with_total(9)}),
        product(shape, {0: Identity(24), 2: with_total(4)}),
        product(shape, {1: Prefix(9), 2: Identity(4)}),
    )
    strategy = chosen(Workload(shape, blocks, (1.0,) * 3))
    rng = np.random.default_rng(3)
    even = np.multiply.outer(np.multiply.outer(0.8 ** np.arange(24), 0.5 ** np.arange(9)),
                             0.4 ** np.arange(4))  # fmt: skip
    x = rng.poisson(even * 300)
    estimates, tables = fitted(strategy, x, blocks, 8.0)

    def squares(answers):
        pairs = zip(answers, blocks, strict=True)
        return sum(
            float(np.sum((given - block.apply(table_of(x, block.attributes))) ** 2))
            for given, block in pairs
        )

    consistent = [tables.answer(block) for block in blocks]
    assert squares(consistent) < 0.75 * squares([estimates.answer(b, None) for b in blocks])
    for values in (consistent, [tables.whole_numbers(block) for block in blocks]):
        first, second, third = values
        assert min(each.min() for each in values) >= 0
        assert first[:2, :] == pytest.approx(
            np.stack([first[2:14].sum(axis=0), first[14:].sum(axis=0)])
        )
        assert first[2:, -1] == pytest.approx(first[2:, :-1].sum(axis=1))
        near = 1e-6 if cells > 1000 else 6.0
        assert first[2:, -1] == pytest.approx(second[:, -1], abs=near)
        assert np.cumsum(first[:2, :-1].sum(axis=0)) == pytest.approx(third.sum(axis=1), abs=near)


def test_a_release_has_a_table_with_both_margins_in_whole_numbers(own_folder):
    plan_town(
        own_folder,
        "dataset: {id: town}\nprivacy: {unit: row}\nbudget: {epsilon: 4}\nother: drop\n"
        "domain:\n  age: {range: [0, 4]}\n  sex: {values: [F, M]}\nworkload:\n"
        "  - {name: both, product: {age: identity+total, sex: identity+total}}\n",
    )
    ok(*RELEASE, "--also", "consistent", "--also", "integer")
    frame = pq.read_table("release/both.parquet").to_pandas()
    assert not frame["consistent"].isna().any()
    assert frame["integer"].dtype == np.int64
    for column in ("consistent", "integer"):
        wide = frame.pivot_table(index="age", columns="sex", values=column, observed=False)
        assert wide["all"].to_numpy() == pytest.approx((wide["F"] + wide["M"]).to_numpy())
        ages = wide.drop(index="all").sum()
        assert wide.loc["all"].to_numpy() == pytest.approx(ages.to_numpy())
        assert (wide.to_numpy() >= 0).all()
    extra = json.loads(Path("release/release.json").read_text())["extra"]
    assert [facts["empty"] for facts in extra] == [[], []]


# The graphical model: what it takes in, what it cannot hold, and what it gains.


needs_mbi = pytest.mark.skipif(find_spec("mbi") is None, reason="the extra mbi is not installed")
SHAPE = (6, 1, 4, 5)
CHAIN = MarginalsStrategy("x", "gaussian", SHAPE, {(): 1, (0, 2): 2, (2, 3): 3, (1, 3): 1})


def test_the_cells_of_a_junction_tree_are_those_of_its_cliques():
    shape = (2, 3, 5, 7)
    assert junction_tree_cells(shape, [()]) == 0
    assert junction_tree_cells(shape, [(0, 1), (2, 3)]) == 6 + 35
    assert junction_tree_cells(shape, [(0, 1), (1, 2), (2, 3)]) == 6 + 15 + 35
    assert junction_tree_cells(shape, [(0, 1), (0, 2), (0, 3), (0,)]) == 6 + 10 + 14
    square = [(0, 1), (1, 2), (2, 3), (0, 3)]  # one chord makes two triangles
    assert junction_tree_cells(shape, square) in (30 + 70, 42 + 105)


def test_a_junction_tree_that_cannot_be_held_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr("dpquery.reconstruction.graphical_model.find_spec", lambda _: object())
    pairs = {(i, j): 1 for i in range(6) for j in range(i + 1, 6)}
    with pytest.raises(UnsupportedWorkloadError, match=r"1\.0e\+12 cells"):
        check_graphical(MarginalsStrategy("x", "gaussian", (100,) * 6, pairs))


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr("dpquery.reconstruction.graphical_model.find_spec", lambda _: object())


def test_the_workload_itself_says_nothing_of_the_number_of_records(installed):
    workload = Workload((3,), (marginal((3,), (0,)),), (1.0,))
    with pytest.raises(UnsupportedWorkloadError, match="own queries"):
        check_graphical(DirectStrategy("x", "gaussian", workload, (1,)))


def test_queries_too_many_to_write_out_are_refused(installed):
    factor = PIdentity(np.ones(5000, dtype=np.int64), np.ones((1, 5000), dtype=np.int64))
    with pytest.raises(UnsupportedWorkloadError, match="numbers to write out"):
        check_graphical(ProductStrategy("x", "gaussian", (factor,)))


class Table:
    """What mbi hands to a query, without mbi."""

    def __init__(self, values):
        self.values = values

    def datavector(self, *, flatten):
        assert not flatten
        return self.values


@needs_mbi
def test_measurements_enter_through_their_own_queries():
    import jax

    rng = np.random.default_rng(1)
    factors = {
        0: Dense(rng.integers(-3, 9, (7, 4))),
        1: Identity(3),
        2: PIdentity(rng.integers(1, 5, 5), rng.integers(0, 4, (2, 5))),
        3: total(2),
    }
    weighted_block = WeightedBlock(6, product((4, 3, 5, 2), factors))
    x = rng.normal(size=(4, 3, 5, 2))
    noisy = weighted_block.weight * weighted_block.block.apply(x).ravel()
    with jax.enable_x64(True):
        values, std, query = _scaled(weighted_block, noisy, 2.0)
        answers = np.asarray(query(Table(x)))
    np.testing.assert_allclose(answers, values, rtol=1e-12)
    assert std / 2.0 == pytest.approx(values[0] / noisy[0])
    dense = np.array([np.asarray(query(Table(e))) for e in np.eye(120).reshape(-1, 4, 3, 5, 2)])
    assert query.op_norm_sq() == pytest.approx(np.linalg.norm(dense, 2) ** 2, rel=1e-5)


def noisy_answers(strategy, x, std, rng):
    noisy = []
    for measurement in strategy.measurements:
        others = tuple(i for i in range(x.ndim) if i not in measurement.block.attributes)
        exact = measurement.weight * measurement.block.apply(x.sum(axis=others)).ravel()
        noisy.append(exact + rng.normal(0, std, len(exact)))
    return noisy


@needs_mbi
def test_the_model_errs_less_than_least_squares_on_sparse_tables_and_is_one_table_of_records():
    rng = np.random.default_rng(2)
    x = np.where(rng.random(SHAPE) < 0.2, rng.poisson(50, SHAPE), 0).astype(float)
    block = marginal(SHAPE, (0, 2))
    truth = x.sum(axis=(1, 3))
    squares = np.zeros(2)
    for _ in range(3):
        noisy = noisy_answers(CHAIN, x, 60.0, rng)
        answers = Measured(CHAIN, noisy, 60.0)
        total, model = answers.total, fit_graphical(answers)
        tables = (answers.estimates.answer(block, 0), model.answer(block))
        squares += [np.square(answered - truth).mean() for answered in tables]
        assert tables[1].min() >= 0
        assert tables[1].sum() == pytest.approx(total)
        ends = [model.answer(marginal(SHAPE, (i,))).sum() for i in range(4)]
        np.testing.assert_allclose(ends, total)
        by_third = model.answer(marginal(SHAPE, (2, 3))).sum(axis=1)
        np.testing.assert_allclose(tables[1].sum(axis=0), by_third)
    assert squares[1] < 0.8 * squares[0]
