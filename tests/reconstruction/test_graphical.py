"""The graphical model: what it takes in, what it cannot hold, and what it gains."""

from importlib.util import find_spec

import numpy as np
import pytest

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.factors import Dense, Identity, PIdentity, total
from dpquery.reconstruction.graphical_model import (
    _scaled,
    check_graphical,
    fit_graphical,
    junction_tree_cells,
)
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.strategy import WeightedBlock

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
        estimates = reconstruct(CHAIN, noisy)
        total = float(estimates.answer(marginal(SHAPE, ()), 0))
        model = fit_graphical(CHAIN, noisy, noise_std=60.0, total=total)
        tables = (estimates.answer(block, 0), model.answer(block))
        squares += [np.square(answered - truth).mean() for answered in tables]
        assert tables[1].min() >= 0
        assert tables[1].sum() == pytest.approx(total)
        ends = [model.answer(marginal(SHAPE, (i,))).sum() for i in range(4)]
        np.testing.assert_allclose(ends, total)
        by_third = model.answer(marginal(SHAPE, (2, 3))).sum(axis=1)
        np.testing.assert_allclose(tables[1].sum(axis=0), by_third)
    assert squares[1] < 0.8 * squares[0]


@needs_mbi
def test_without_much_noise_the_model_has_the_counts():
    rng = np.random.default_rng(3)
    x = rng.poisson(200, SHAPE).astype(float)
    noisy = noisy_answers(CHAIN, x, 20.0, rng)
    model = fit_graphical(CHAIN, noisy, noise_std=20.0, total=x.sum())
    np.testing.assert_allclose(model.answer(marginal(SHAPE, (0, 2))), x.sum(axis=(1, 3)), atol=50)


@needs_mbi
def test_the_same_values_give_the_same_bytes():
    rng = np.random.default_rng(4)
    noisy = noisy_answers(CHAIN, rng.poisson(3, SHAPE).astype(float), 10.0, rng)
    first, second = (
        fit_graphical(CHAIN, noisy, noise_std=10.0, total=300.0).answer(marginal(SHAPE, (2, 3)))
        for _ in range(2)
    )
    assert first.tobytes() == second.tobytes()
