"""Every registered shape has every capability, held against dense matrices."""

import json
import math
import pickle
from itertools import combinations

import numpy as np
import pytest
from dense import (
    coefficients,
    dense_block,
    dense_strategy,
    random_strategies,
)

from dpquery.operators.blocks import marginal
from dpquery.plan_file.plan import SHAPES, decode_strategy
from dpquery.reconstruction.least_squares import ESTIMATES, reconstruct
from dpquery.strategy.algebra.query_powers import expand
from dpquery.strategy.sensitivity import sensitivity
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.informed import InformedStrategy
from dpquery.strategy.strategy import _matrix_bytes, check_strategy_size

SHAPE = (4, 1, 6)
every_shape = pytest.mark.parametrize("kind", SHAPES)
seeds = pytest.mark.parametrize("seed", range(4))


def strategies(kind, seed, noise="laplace"):
    """Strategies of one shape, each with a workload that it serves."""
    rng = np.random.default_rng(seed)
    pairs = random_strategies(rng, SHAPE, noise)
    chosen = [(strategy, workload) for strategy, workload in pairs if strategy.kind == kind]
    assert chosen, f"no case of the shape {kind}: add one to random_strategies"
    return chosen


def row_coefficients(strategy, block, position):
    if isinstance(strategy, DirectStrategy):
        return np.eye(block.shape[0]) / strategy.weights[position]
    return coefficients(strategy, dense_block(block).astype(float), position)


def test_every_shape_is_reconstructed():
    assert set(ESTIMATES) == {*SHAPES.values(), InformedStrategy}
    assert all(SHAPES[shape.kind] is shape for shape in SHAPES.values())


@every_shape
@seeds
def test_what_is_encoded_is_decoded(kind, seed):
    for strategy, workload in strategies(kind, seed):
        encoded = strategy.encode()
        again = decode_strategy(json.loads(json.dumps(encoded)), noise="laplace", workload=workload)
        assert (type(again), again.name) == (SHAPES[kind], strategy.name)
        assert again.shape == strategy.shape == workload.shape_of_domain
        assert again.encode() == encoded
        first, second = (dense_strategy(own.measurements).tolist() for own in (strategy, again))
        assert sorted(first) == sorted(second)  # a plan sorts the sets that are measured


@every_shape
@seeds
def test_sums_of_powers_are_those_of_dense_coefficients(kind, seed):
    for strategy, workload in strategies(kind, seed):
        uniform = strategy.uniform_variances(workload.blocks)
        for position, block in enumerate(workload.blocks):
            C = row_coefficients(strategy, block, position)
            sums = strategy.fourth_and_sixth(block, position=position)
            assert sums is not None
            for order, terms in zip(
                (2, 4, 6), (strategy.variances(block, position=position), *sums), strict=True
            ):
                expected = (C**order).sum(axis=1)
                rows = expand(terms, block.row_shape).ravel()
                assert rows == pytest.approx(expected, rel=1e-6, abs=1e-9 * expected.max())
            if position in uniform:
                squares = (C**2).sum(axis=1)
                assert np.full(len(C), uniform[position]) == pytest.approx(squares, rel=1e-6)


@every_shape
@seeds
def test_a_marginal_is_supported_where_the_measured_rows_span_it(kind, seed):
    for strategy, workload in strategies(kind, seed):
        assert strategy.serves(workload)
        A = dense_strategy(strategy.measurements).astype(float)
        onto_rows = np.linalg.pinv(A) @ A
        for size in range(len(strategy.shape) + 1):
            for S in combinations(range(len(strategy.shape)), size):
                block = marginal(strategy.shape, S)
                W = dense_block(block).astype(float)
                spanned = np.allclose(W @ onto_rows, W, atol=1e-6)
                supported = strategy.supports(block)
                assert spanned or not supported
                assert supported == spanned or not strategy.spans_its_sets


@every_shape
@seeds
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_sensitivity_is_the_largest_dense_column(kind, seed, noise):
    for strategy, _ in strategies(kind, seed, noise):
        A = np.abs(dense_strategy(strategy.measurements))
        largest = (A if noise == "laplace" else A**2).sum(axis=0).max()
        assert sensitivity(strategy.measurements, noise) == largest


@every_shape
@seeds
def test_the_size_limit_counts_every_matrix_that_a_plan_holds(kind, seed):
    for strategy, _ in strategies(kind, seed):
        check_strategy_size(strategy)
        counted = sum(sum(_matrix_bytes(factor)) for factor in strategy.written_factors)
        assert counted == packed_bytes(strategy.encode())


def packed_bytes(value):
    if isinstance(value, dict) and "data" in value:
        return 8 * value["shape"][0] * value["shape"][1]
    parts = value.values() if isinstance(value, dict) else value
    return sum(map(packed_bytes, parts)) if isinstance(value, dict | list) else 0


@every_shape
@seeds
def test_exact_counts_come_back(kind, seed):
    for strategy, workload in strategies(kind, seed):
        x = np.random.default_rng(seed).integers(0, 50, math.prod(strategy.shape)).astype(float)
        exact = [m.weight * (dense_block(m.block).astype(float) @ x) for m in strategy.measurements]
        estimates = reconstruct(strategy, exact)
        for position, block in enumerate(workload.blocks):
            answers = estimates.answer(block, position).ravel()
            assert answers == pytest.approx(dense_block(block).astype(float) @ x, abs=1e-5)
        elsewhere = pickle.loads(pickle.dumps(strategy))  # noqa: S301 as processes do, once used
        assert elsewhere.encode() == strategy.encode()
