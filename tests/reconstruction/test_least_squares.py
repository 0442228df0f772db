"""Reconstruction against dense least squares, for every shape of strategy."""

from itertools import combinations

import numpy as np
import pytest

from dpquery.operators.blocks import Block, Workload, product
from dpquery.operators.factors import Dense, Identity, PIdentity, total
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy
from dpquery.strategy.shapes.splits import CenteredCore, DenseCore

SHAPE = (3, 1, 4, 2)


def p_identity(n, seed):
    rows = np.random.default_rng(seed).integers(0, 2**14, (1, n))
    return PIdentity(2**16 - rows.sum(axis=0), rows)


def full_product():
    return ProductStrategy(
        "p", "laplace", (p_identity(3, 0), Identity(1), Dense(_triangle(4)), Identity(2))
    )


def _triangle(n):
    return np.triu(np.random.default_rng(n).integers(1, 50, (n, n))) + 60 * np.eye(n, dtype=int)


def union():
    parts = (
        ProductStrategy("a", "laplace", (p_identity(3, 1), Identity(1), total(4), Identity(2))),
        ProductStrategy("b", "laplace", (total(3), Identity(1), p_identity(4, 2), Identity(2))),
    )
    return UnionStrategy("u", "laplace", parts, (3, 5), ((0, 1), (2,)))


def residual():
    rows = np.random.default_rng(4).integers(-9, 10, (3, 4))
    cores = (CenteredCore(3), None, DenseCore(rows), CenteredCore(2))
    subsets = [b for k in range(4) for b in combinations((0, 2, 3), k)]
    weights = {b: 3 + 5 * place for place, b in enumerate(subsets)}
    return ResidualStrategy("r", "gaussian", cores, weights)


def blocks_over(*attribute_sets):
    kinds = {0: Prefix(3), 1: Identity(1), 2: AllRanges(4), 3: Identity(2)}
    return [product(SHAPE, {i: kinds[i] for i in attributes}) for attributes in attribute_sets]


def signed_block():
    factors = (Prefix(3), Identity(4), Identity(2))
    return Block(SHAPE, (0, 2, 3), factors, (True, True, False), 1)


def dense_answers(strategy, noisy, block):
    """W A^+ y with everything written out."""
    A = np.vstack(
        [
            m.weight * np.array([m.block.matvec(e) for e in np.eye(24)]).T
            for m in strategy.measurements
        ]
    )
    W = np.array([block.matvec(e) for e in np.eye(24)]).T
    return W @ np.linalg.pinv(A, rcond=1e-12) @ np.concatenate([values.ravel() for values in noisy])


def noisy_answers(strategy, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 50, 24)
    return [
        m.weight * m.block.matvec(x) + m.weight * rng.normal(size=m.block.shape[0])
        for m in strategy.measurements
    ]


CASES = [
    (full_product(), [*blocks_over((0, 2, 3), (2,), (), (1, 3), (0, 1, 2, 3)), signed_block()]),
    (
        MarginalsStrategy(
            "m", "gaussian", SHAPE, {(0, 2): 7, (2, 3): 900, (0, 3): 4, (3,): 65536, (0, 2, 3): 2}
        ),
        [*blocks_over((0, 2), (2, 3), (3,), (), (0, 1), (0, 2, 3)), signed_block()],
    ),
    (MarginalsStrategy("m", "laplace", SHAPE, {(0, 2): 7, (3,): 9}), blocks_over((0,), (2,), (3,))),
    (
        MarginalsStrategy(
            "f",
            "laplace",
            SHAPE,
            {(0, 2): 7, (2, 3): 900, (0, 3): 4, (3,): 65536, (0, 2, 3): 2},
            {0: p_identity(3, 5), 2: Dense(_triangle(4))},
        ),
        [*blocks_over((0, 2), (2, 3), (3,), (), (0, 1), (0, 2, 3)), signed_block()],
    ),
    (union(), blocks_over((0, 3), (0,), (2, 3))),
    (residual(), [*blocks_over((0, 2, 3), (2,), (), (1, 3), (0, 1, 2, 3)), signed_block()]),
]


@pytest.mark.parametrize(("strategy", "blocks"), CASES)
def test_answers_equal_dense_least_squares(strategy, blocks):
    noisy = noisy_answers(strategy)
    estimates = reconstruct(strategy, noisy)
    for position, block in enumerate(blocks):
        expected = dense_answers(strategy, noisy, block)
        assert estimates.answer(block, position).ravel() == pytest.approx(expected, rel=1e-7)


def test_direct_answers_are_the_noisy_ones():
    blocks = blocks_over((0, 2), (3,))
    strategy = DirectStrategy("w", "laplace", Workload(SHAPE, tuple(blocks), (1.0, 1.0)), (4, 8))
    noisy = noisy_answers(strategy)
    estimates = reconstruct(strategy, noisy)
    for position, block in enumerate(blocks):
        expected = noisy[position] / strategy.weights[position]
        assert np.array_equal(estimates.answer(block, position).ravel(), expected)


def test_a_union_beyond_the_limit_answers_each_part_from_its_own_strategy(monkeypatch):
    monkeypatch.setattr("dpquery.strategy.algebra.joint_system.MAX_JOINT_MEASURED", 10)
    strategy = union()
    noisy = noisy_answers(strategy)
    estimates = reconstruct(strategy, noisy)
    for position, block in enumerate(blocks_over((0, 3), (0,), (2, 3))):
        k = strategy.served[position][0]
        part = strategy.parts[k]
        scaled = noisy[k] / strategy.measurements[k].weight * part.measurements[0].weight
        expected = dense_answers(part, [scaled], block)
        assert estimates.answer(block, position).ravel() == pytest.approx(expected, rel=1e-8)


def test_a_hundred_attributes_need_no_more_than_their_tables():
    shape = (100,) * 100
    strategy = MarginalsStrategy("m", "gaussian", shape, {(3, 70): 5, (99,): 2})
    truth = np.arange(10_000.0).reshape(100, 100)
    tail = np.full(100, truth.sum() / 100)
    estimates = reconstruct(strategy, [5 * truth.ravel(), 2 * tail])
    block = product(shape, {3: Identity(100), 70: Prefix(100)})
    assert estimates.answer(block, 0) == pytest.approx(truth.cumsum(axis=1), rel=1e-9)
