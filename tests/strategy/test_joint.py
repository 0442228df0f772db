"""Products solved together against dense pseudo-inverses: variances, answers, and limits."""

import numpy as np
import pytest
from dense import (
    check_half_widths,
    coefficients,
    dense_block,
    random_block,
    random_measured_factor,
)

import dpquery.strategy.algebra.joint_system as joint_module
from dpquery.operators.blocks import Block, product
from dpquery.operators.factors import Dense, Identity, PIdentity, total
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.reconstruction.intervals import half_widths, standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.algebra.joint_covariances import joint_power_sums
from dpquery.strategy.algebra.joint_system import joint_system
from dpquery.strategy.shapes.marginals import ProductStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy


def random_parts(rng, shape, count):
    """Products over random attributes; some share a factor, as the parts of OPT_+ may."""
    wide = [i for i, n in enumerate(shape) if n > 1]
    shared = {i: random_measured_factor(rng, shape[i]) for i in wide}
    parts = []
    for _ in range(count):
        kept = [i for i in wide if rng.random() < 0.7]
        factors = {i: random_measured_factor(rng, shape[i]) for i in kept}
        parts.append({i: shared[i] if rng.random() < 0.5 else factors[i] for i in kept})
    weights = [int(v) for v in rng.integers(1, 90, count)]
    return parts, weights


def dense_parts(shape, parts, weights):
    return [
        weight * dense_block(product(shape, part)).astype(float)
        for part, weight in zip(parts, weights, strict=True)
    ]


def supported(rng, shape, parts):
    """Random blocks that some part alone could answer, and which one."""
    for _ in range(8):
        block = random_block(rng, shape)
        wide = {i for i in block.attributes if shape[i] > 1}
        homes = [k for k, part in enumerate(parts) if wide <= set(part)]
        if homes:
            yield block, homes[0]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("count", [1, 2, 4])
def test_variances_and_answers_equal_those_of_the_pseudo_inverse(seed, count):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 5, int(rng.integers(1, 4))).tolist())
    parts, weights = random_parts(rng, shape, count)
    joint = joint_system(shape, parts, weights)
    stack = dense_parts(shape, parts, weights)
    plus = np.linalg.pinv(np.vstack(stack), rcond=1e-12)
    noisy = [1e4 * rng.normal(size=len(A)) for A in stack]
    sizes = [[part[i].shape[0] for i in sorted(part)] for part in parts]
    projected = joint.project([y.reshape(size) for y, size in zip(noisy, sizes, strict=True)])
    for block, home in supported(rng, shape, parts):
        W = dense_block(block).astype(float)
        expected = ((W @ plus) ** 2).sum(axis=1)
        computed = joint.variances(block)
        assert computed.shape == block.row_shape
        tolerance = 1e-8 * expected.max()
        assert computed.ravel() == pytest.approx(expected, rel=1e-7, abs=tolerance)
        for order, sums in zip((4, 6), joint_power_sums(joint, block), strict=True):
            dense = ((W @ plus) ** order).sum(axis=1)
            assert sums.shape == block.row_shape
            assert sums.ravel() == pytest.approx(dense, rel=1e-6, abs=1e-8 * dense.max())
        alone = ((W @ np.linalg.pinv(stack[home], rcond=1e-12)) ** 2).sum(axis=1)
        assert np.all(computed.ravel() <= alone * (1 + 1e-7) + tolerance)
        answers = W @ plus @ np.concatenate(noisy)
        scale = np.abs(answers).max() + 1e-3
        assert joint.answer(block, projected).ravel() == pytest.approx(answers, abs=1e-6 * scale)


def test_two_parts_of_many_attributes_need_no_dense_matrix():
    rng = np.random.default_rng(0)
    parts, weights = random_parts(rng, (9, 8, 7, 6, 5, 4), 2)
    joint = joint_system((9, 8, 7, 6, 5, 4), parts, weights)
    assert all(stack.R.shape[1:] == (1, 1) for stack in joint.stacks)


def test_a_weight_far_below_the_others_still_counts():
    shape = (3, 4)
    parts = [{0: Identity(3)}, {0: Identity(3), 1: Dense(np.triu(np.ones((4, 4), dtype=int)))}]
    joint = joint_system(shape, parts, [1 << 40, 1])
    computed = joint.variances(product(shape, {0: Identity(3), 1: Prefix(4)}))
    plus = np.linalg.pinv(np.vstack(dense_parts(shape, parts, [1 << 10, 1])), rcond=1e-14)
    W = dense_block(product(shape, {0: Identity(3), 1: Prefix(4)})).astype(float)
    expected = ((W @ plus) ** 2).sum(axis=1).reshape(3, 4)
    assert computed[:, :3] == pytest.approx(expected[:, :3], rel=1e-4)


@pytest.mark.parametrize("limit", ["MAX_JOINT_MEASURED", "MAX_JOINT_CELLS", "MAX_JOINT_CLASSES"])
def test_what_is_too_large_is_left_to_the_parts(limit, monkeypatch):
    factors = [Identity(4), PIdentity(np.full(4, 9), np.ones((1, 4), dtype=int)), Dense(np.eye(4))]
    parts = [{0: factor, 1: Identity(2)} for factor in factors]
    assert joint_system((4, 2), parts, [1, 2, 3]) is not None
    monkeypatch.setattr(joint_module, limit, 3)
    assert joint_system((4, 2), parts, [1, 2, 3]) is None


SHAPE = (6, 3)
BLOCKS = (
    product(SHAPE, {0: AllRanges(6), 1: Identity(3)}),
    product(SHAPE, {0: Prefix(6)}),
    Block(SHAPE, (0, 1), (Prefix(6), Identity(3)), (True, True), 1),
)


def union(noise="laplace"):
    rows = np.random.default_rng(3).integers(0, 2**13, (2, 6))
    both = (PIdentity(2**16 - rows.sum(axis=0), rows), Identity(3))
    parts = (
        ProductStrategy("a", noise, both),
        ProductStrategy("b", noise, (Dense(np.tri(6, dtype=int) + np.eye(6, dtype=int)), total(3))),
    )
    return UnionStrategy("u", noise, parts, (1, 9_000), ((0, 2), (1,)))


@pytest.mark.nightly
@pytest.mark.statistical
def test_released_answers_err_as_their_standard_errors_say():
    rng, runs, scale, strategy = np.random.default_rng(8), 3000, 1e6, union()
    answered = [[] for _ in BLOCKS]
    for _ in range(runs):
        noisy = [rng.laplace(scale=scale, size=m.block.shape[0]) for m in strategy.measurements]
        estimates = reconstruct(strategy, noisy)
        for place, block in enumerate(BLOCKS):
            answered[place].append(estimates.answer(block, place).ravel())
    for place, block in enumerate(BLOCKS):
        noise = np.array(answered[place])
        std = standard_errors(strategy, block, position=place, noise_std=scale * 2**0.5)
        half = half_widths(strategy, block, std, position=place, level=0.95)
        assert noise.std(axis=0) == pytest.approx(std, rel=0.09)
        assert np.sqrt((noise**2).mean()) == pytest.approx(np.sqrt((std**2).mean()), rel=0.03)
        C = coefficients(strategy, dense_block(block)) * scale * 2**0.5
        check_half_widths(C, half, level=0.95)
        covered = (np.abs(noise) <= half).mean(axis=0)
        assert 0.935 < covered.min() <= covered.max() < 0.965


def test_a_block_of_too_many_rows_is_answered_and_priced_by_its_own_part(monkeypatch):
    strategy = union()
    noisy = [np.arange(1e6, 1e6 + m.block.shape[0]) ** 1.1 for m in strategy.measurements]
    assert all(strategy.joint_for(block) is not None for block in BLOCKS)
    monkeypatch.setattr("dpquery.strategy.algebra.joint_system.MAX_JOINT_ROWS", 20)
    assert [strategy.joint_for(block) is None for block in BLOCKS] == [True, False, False]
    estimates = reconstruct(strategy, noisy)
    part, whole = strategy.parts[0], strategy.measurements[0]
    alone = reconstruct(part, [noisy[0] * part.measurements[0].weight / whole.weight])
    expected = alone.answer(BLOCKS[0], 0)
    assert estimates.answer(BLOCKS[0], 0) == pytest.approx(expected, rel=1e-9)
    local = standard_errors(part, BLOCKS[0], position=0, noise_std=1.0)
    scaled = local * part.measurements[0].weight / whole.weight
    assert standard_errors(strategy, BLOCKS[0], position=0, noise_std=1.0) == pytest.approx(scaled)
