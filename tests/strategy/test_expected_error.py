"""Expected errors against the dense pseudo-inverse and against simulation."""

import math

import numpy as np
import pytest
from dense import (
    coefficients,
    dense_block,
    dense_strategy,
    random_strategies,
)

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_EXPANDED_ROWS
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.factors import Identity, Ones
from dpquery.operators.ranges import Prefix
from dpquery.strategy.algebra.query_powers import expand, total_of
from dpquery.strategy.expected_error import (
    block_errors,
    expected_error,
    largest_of,
    squared_sensitivity,
)
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy

seeds = pytest.mark.parametrize("seed", range(25))


def cases(seed, noise="laplace"):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 4, int(rng.integers(1, 4))).tolist())
    return random_strategies(rng, shape, noise)


def block_coefficients(strategy, block, position):
    if isinstance(strategy, DirectStrategy):
        return np.eye(block.shape[0]) / strategy.weights[position]
    return coefficients(strategy, dense_block(block), position)


@seeds
@pytest.mark.parametrize("order", [2, 4])
def test_power_sums_equal_those_of_the_pseudo_inverse(seed, order):
    for strategy, workload in cases(seed):
        for position, block in enumerate(workload.blocks):
            terms = strategy.power_sums(block, position=position, order=order)
            if terms is None:
                assert order == 4
                signed = isinstance(strategy, MarginalsStrategy) and not block.is_product
                assert signed or isinstance(strategy, UnionStrategy)
                continue
            C = block_coefficients(strategy, block, position)
            expected = (C**order).sum(axis=1)
            computed = expand(terms, block.row_shape).ravel()
            assert computed == pytest.approx(expected, rel=1e-6, abs=1e-9 * expected.max())
            assert total_of(terms, block) == pytest.approx(expected.sum(), rel=1e-6)
            assert largest_of(terms) == pytest.approx(expected.max(), rel=1e-6)


@pytest.mark.nightly
@seeds
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_expected_error_equals_the_dense_one(seed, noise):
    for strategy, workload in cases(seed, noise):
        A = np.abs(dense_strategy(strategy.measurements)).astype(float)
        scale = A.sum(axis=0).max() ** 2 if noise == "laplace" else (A**2).sum(axis=0).max()
        variances, weights = [], []
        for position, (weight, block) in enumerate(
            zip(workload.weights, workload.blocks, strict=True)
        ):
            of_block = (block_coefficients(strategy, block, position) ** 2).sum(axis=1)
            variances += list(of_block)
            weights += [weight] * len(of_block)
            error = block_errors(strategy, workload)[position]
            assert error.total_squared == pytest.approx(scale * of_block.sum(), rel=1e-6)
            assert error.max_std_error == pytest.approx(math.sqrt(scale * of_block.max()), rel=1e-6)
        computed = expected_error(strategy, workload)
        assert computed.rmse == pytest.approx(math.sqrt(scale * np.mean(variances)), rel=1e-6)
        weighted = math.sqrt(scale * np.average(variances, weights=weights))
        assert computed.weighted_rmse == pytest.approx(weighted, rel=1e-6)
        assert computed.max_std_error == pytest.approx(math.sqrt(scale * max(variances)), rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_predicted_variance_agrees_with_simulated_noise(seed, noise):
    rng, runs = np.random.default_rng(seed), 4000
    for strategy, workload in cases(seed, noise):
        scale = math.sqrt(squared_sensitivity(strategy))
        errors = block_errors(strategy, workload)
        for position, (block, error) in enumerate(zip(workload.blocks, errors, strict=True)):
            C = block_coefficients(strategy, block, position)
            draw = rng.laplace if noise == "laplace" else rng.normal
            unit = draw(size=(C.shape[1], runs)) / (math.sqrt(2) if noise == "laplace" else 1)
            simulated = ((scale * C @ unit) ** 2).sum(axis=0)
            standard_error = simulated.std() / math.sqrt(runs)
            assert abs(simulated.mean() - error.total_squared) <= 5 * standard_error


@pytest.mark.nightly
@seeds
@pytest.mark.parametrize("order", [2, 4])
def test_a_union_too_large_to_solve_as_one_has_the_errors_of_its_parts(seed, order, monkeypatch):
    together, workload = cases(seed)[2]
    assert together.joint is not None
    monkeypatch.setattr("dpquery.strategy.algebra.joint_system.MAX_JOINT_MEASURED", 0)
    apart, _ = cases(seed)[2]
    assert apart.joint is None
    for position, block in enumerate(workload.blocks):
        expected = (coefficients(apart, dense_block(block), position) ** order).sum(axis=1)
        terms = apart.power_sums(block, position=position, order=order)
        computed = expand(terms, block.row_shape).ravel()
        assert computed == pytest.approx(expected, rel=1e-6, abs=1e-9 * expected.max())


def test_an_unmeasured_attribute_is_refused_by_name_of_the_reason():
    shape = (3, 2)
    block = marginal(shape, [1])
    summed = ProductStrategy("p", "laplace", (Identity(3), Ones(1, 2)))
    with pytest.raises(UnsupportedWorkloadError, match="sums over"):
        summed.power_sums(block, position=0, order=2)
    marginals = MarginalsStrategy("m", "laplace", shape, {(0,): 1})
    with pytest.raises(UnsupportedWorkloadError, match="no measured marginal"):
        marginals.power_sums(block, position=0, order=2)


def test_a_table_too_large_to_list_gets_a_bound_on_its_largest_error():
    n = math.isqrt(MAX_EXPANDED_ROWS) + 2
    terms = [
        (2.0, [np.linspace(0, 1, n), np.linspace(1, 0, n)]),
        (-1.0, [np.ones(1), np.ones(1)]),
        (1.0, [np.linspace(1, 0, n), np.ones(1)]),
    ]
    assert largest_of(terms) == 3.0


def test_a_hundred_attributes_have_finite_errors_of_every_order():
    shape = (900,) * 100
    strategy = MarginalsStrategy("m", "laplace", shape, {(3, 70): 5, (99,): 2, (): 1})
    block = product(shape, {3: Prefix(900), 70: Identity(900)})
    for order in (2, 4):
        terms = strategy.power_sums(block, position=0, order=order)
        assert 0 < total_of(terms, block) < np.inf
    signed = Block(shape, (3, 70), block.factors, (True, True), 1)
    workload = Workload(shape, (block, signed), (1.0, 1.0))
    assert 0 < expected_error(strategy, workload).rmse < np.inf
