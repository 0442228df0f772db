"""Questions asked later: what the measured rows span is answered exactly, all else is refused."""

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
from dpquery.operators.factors import Groups, Identity, Stacked, total
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.reconstruction.intervals import half_widths, standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.shapes.cells import OrbitsStrategy
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy
from dpquery.strategy.strategy import measured_sets


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


SHAPE = (4, 3)
WORKLOAD = Workload(
    SHAPE,
    (
        product(SHAPE, {0: Stacked((Identity(4), total(4))), 1: Prefix(3)}),
        Block(SHAPE, (0, 1), (Identity(4), Identity(3)), (True, True), 1),
        product(SHAPE, {0: Prefix(4)}),
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
    later = product(SHAPE, {0: Identity(4), 1: Prefix(3)})
    C = check(direct(), later)
    assert np.count_nonzero(C) == len(C)
    some = Block(
        SHAPE,
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
        (product(SHAPE, {0: AllRanges(4)}), True),
        (product(SHAPE, {1: Identity(3)}), True),
        (product(SHAPE, {}), True),
        (Block(SHAPE, (0, 1), (Prefix(4), Identity(3)), (True, True), 1), True),
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
