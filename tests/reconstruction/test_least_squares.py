"""Reconstruction against dense least squares, for every shape of strategy."""

from itertools import combinations

import numpy as np
import pytest
from dense import (
    coefficients,
    dense_block,
    dense_strategy,
    is_of_parts,
    random_block,
    random_strategies,
)

from dpquery.operators.blocks import Block, Workload, product
from dpquery.operators.factors import Dense, Groups, Identity, PIdentity, Stacked, total
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.reconstruction.intervals import half_widths, standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.shapes.cells import OrbitsStrategy
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy
from dpquery.strategy.shapes.splits import CenteredCore, DenseCore
from dpquery.strategy.strategy import measured_sets

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


# Questions asked later: what the measured rows span is answered exactly, all else is refused.


def weights_of_noise(strategy, block, position=None):
    """C of the answers C y, one unit vector of noise at a time."""
    sizes = [measurement.block.shape[0] for measurement in strategy.measurements]
    columns = []
    for unit in np.eye(sum(sizes)):
        noisy = np.split(unit, np.cumsum(sizes)[:-1])
        columns.append(reconstruct(strategy, noisy).answer(block, position).ravel())
    return np.array(columns).T


def in_span(strategy, block):
    A = dense_strategy(strategy.measurements).astype(float)
    A, W = A / np.abs(A).max(), dense_block(block).astype(float)
    return np.abs(W @ np.linalg.pinv(A, rcond=1e-10) @ A - W).max() < 1e-6


def check(strategy, block):
    """The answers are unbiased, their standard errors those of the noise in them."""
    C = weights_of_noise(strategy, block)
    W = dense_block(block).astype(float)
    A = dense_strategy(strategy.measurements).astype(float)
    np.testing.assert_allclose(C @ A, W, atol=1e-7)
    errors = standard_errors(strategy, block, position=None, noise_std=3.0)
    np.testing.assert_allclose(errors, 3 * np.sqrt((C**2).sum(axis=1)), rtol=1e-7, atol=1e-12)
    half = half_widths(strategy, block, errors, position=None, level=0.9)
    assert half.shape == errors.shape
    assert np.all(half >= 1.6 * errors)
    return C


@pytest.mark.nightly
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("seed", range(12))
def test_a_new_question_is_answered_by_least_squares_or_refused_as_the_span_says(seed, noise):
    rng = np.random.default_rng([seed, noise == "laplace"])
    shape = tuple(rng.integers(1, 4, 3).tolist())
    for strategy, _ in random_strategies(rng, shape, noise):
        for _ in range(4):
            block = random_block(rng, shape)
            if not strategy.supports(block):
                # Rows that hold for every record, or for none, depend on nothing.
                constant = any(
                    set(np.ptp(factor.dense(), axis=1)) == {0} for factor in block.factors
                )
                alone = isinstance(strategy, DirectStrategy) or is_of_parts(strategy)
                # Orbits answer products of predicates alone ([MATH] 22).
                alone |= isinstance(strategy, OrbitsStrategy) and not block.is_product
                assert alone or constant or not in_span(strategy, block)
                continue
            C = check(strategy, block)
            if isinstance(strategy, DirectStrategy):
                continue
            dense = dense_block(block).astype(float)
            if not is_of_parts(strategy):
                np.testing.assert_allclose(C, coefficients(strategy, dense), atol=1e-8)
                continue
            part, _ = strategy.serving_part(block, None)
            parts = np.cumsum([0, *(rows_of(part) for part in strategy.parts)])
            of_part = C[:, parts[part] : parts[part + 1]]
            np.testing.assert_allclose(of_part, coefficients(strategy, dense, part=part), atol=1e-8)


def rows_of(strategy):
    return sum(measurement.block.queries for measurement in strategy.measurements)


def test_of_the_parts_of_a_union_that_can_answer_the_one_with_least_noise_does(monkeypatch):
    shape = (3, 2)
    everything = ProductStrategy("all", "laplace", (Identity(3), Identity(2)))
    ages = ProductStrategy("ages", "laplace", (Identity(3), total(2)))
    union = UnionStrategy("u", "laplace", (everything, ages), (1, 1), ((0,), (1,)))
    monkeypatch.setattr(UnionStrategy, "joint_for", lambda *_: None)
    age, both = product(shape, {0: Prefix(3)}), product(shape, {0: Prefix(3), 1: Identity(2)})
    assert union.serving_part(age, None)[0] == 1
    assert union.serving_part(both, None)[0] == 0
    assert union.serving_part(age, 0)[0] == 0
    for block in (age, both):
        check(union, block)
    few = UnionStrategy("u", "laplace", (everything, ages), (100, 1), ((0,), (1,)))
    assert few.serving_part(age, None)[0] == 0


SPANNED = (4, 3)
WORKLOAD = Workload(
    SPANNED,
    (
        product(SPANNED, {0: Stacked((Identity(4), total(4))), 1: Prefix(3)}),
        Block(SPANNED, (0, 1), (Identity(4), Identity(3)), (True, True), 1),
        product(SPANNED, {0: Prefix(4)}),
    ),
    (1.0, 1.0, 1.0),
)


def direct():
    return DirectStrategy("d", "laplace", WORKLOAD, (3, 1, 4))


@pytest.mark.parametrize("position", range(3))
def test_a_question_that_was_measured_as_it_stands_keeps_its_answer(position):
    block = WORKLOAD.blocks[position]
    coefs = weights_of_noise(direct(), block, position)
    np.testing.assert_array_equal(weights_of_noise(direct(), block), coefs)


def test_rows_that_were_measured_are_those_very_rows():
    later = product(SPANNED, {0: Identity(4), 1: Prefix(3)})
    C = check(direct(), later)
    assert np.count_nonzero(C) == len(C)
    some = Block(
        SPANNED,
        (0, 1),
        (Groups.of(((2,), (0,)), 4), Groups.of(((1,),), 3)),
        (True, True),
        1,
    )
    C = check(direct(), some)
    assert np.count_nonzero(C) == len(C) == 2


@pytest.mark.parametrize(
    ("block", "answered"),
    [
        (product(SPANNED, {0: AllRanges(4)}), True),
        (product(SPANNED, {1: Identity(3)}), True),
        (product(SPANNED, {}), True),
        (Block(SPANNED, (0, 1), (Prefix(4), Identity(3)), (True, True), 1), True),
        (
            Block((2, 2, 3), (0, 1, 2), tuple(map(Identity, (2, 2, 3))), (True,) * 3, 2),
            None,
        ),
    ],
)
def test_combinations_of_measured_rows_are_answered_with_their_exact_error(block, answered):
    if answered:
        assert direct().supports(block)
        check(direct(), block)
        return
    shape = block.shape_of_domain
    workload = Workload(shape, (block, product(shape, {0: Identity(2)})), (1.0, 1.0))
    strategy = DirectStrategy("d", "gaussian", workload, (2, 5))
    assert strategy.supports(block)
    assert not strategy.supports(product(shape, {0: Identity(2), 1: Identity(2)}))
    assert strategy.supports(product(shape, {0: Prefix(2)}))
    check(strategy, block)


def test_measured_sets_are_the_largest():
    weights = {(): 1, (0,): 1, (0, 1): 2, (2,): 3, (1, 2): 1, (3,): 1}
    strategy = MarginalsStrategy("m", "laplace", (2, 2, 2, 1), weights)
    assert measured_sets(strategy) == ((0, 1), (1, 2))
    only = MarginalsStrategy("m", "laplace", (2, 2), {(): 1})
    assert measured_sets(only) == ((),)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_noise_intervals_of_new_questions_cover_as_often_as_they_say(noise):
    """Ten thousand draws for each strategy; an interval may be wider, never narrower."""
    rng = np.random.default_rng(3)
    shape, block = (3, 2, 3), Block((3, 2, 3), (0, 2), (Prefix(3), Identity(3)), (True, True), 1)
    draw = rng.normal if noise == "gaussian" else rng.laplace
    for strategy, _ in random_strategies(rng, shape, noise):
        if not strategy.supports(block):
            continue
        C = weights_of_noise(strategy, block)
        std = standard_errors(strategy, block, position=None, noise_std=1.0)
        half = half_widths(strategy, block, std, position=None, level=0.9)
        errors = C @ draw(size=(C.shape[1], 10_000)) / (1 if noise == "gaussian" else np.sqrt(2))
        np.testing.assert_allclose(errors.std(axis=1), std, rtol=0.06)
        covered = (np.abs(errors) <= half[:, None]).mean(axis=1)
        assert np.all(covered > 0.885), strategy.name
