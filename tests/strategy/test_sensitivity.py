"""The sensitivity of a strategy is its largest column norm, in exact integers."""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from dense import (
    dense_block,
    dense_strategy,
    random_block,
    random_measured_factor,
    random_strategies,
)

import dpquery.strategy.algebra.joint_system as joint_module
import dpquery.strategy.sensitivity as module
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.counting.exact_answers import exact_answers
from dpquery.measurement.noise.calibration import calibrated_noise
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.cells import CellClassBlock, OrbitRows
from dpquery.operators.factors import Dense, Identity, total
from dpquery.operators.p_identity import BlockPIdentity, PIdentity
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.spec.spec import Privacy
from dpquery.strategy.algebra.joint_system import joint_system
from dpquery.strategy.algebra.query_powers import joint_power_sums
from dpquery.strategy.optimize.opt_0_laplace import p_identity
from dpquery.strategy.sensitivity import block_norms, column_support, sensitivity
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy
from dpquery.strategy.strategy import (
    Strategy,
    WeightedBlock,
    column_matrices,
    integer_factor,
    resolution,
)

noises = pytest.mark.parametrize("noise", ["laplace", "gaussian"])
seeds = pytest.mark.parametrize("seed", range(12))


def brute_force(measurements, noise):
    power = 1 if noise == "laplace" else 2
    return max(sum(abs(v) ** power for v in column) for column in dense_strategy(measurements).T)


def cases(seed, noise):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 4, int(rng.integers(1, 4))).tolist())
    return [strategy for strategy, _ in random_strategies(rng, shape, noise)]


@noises
@seeds
def test_sensitivity_is_the_largest_column_norm_and_beyond_the_search_a_bound(
    seed, noise, monkeypatch
):
    for strategy in cases(seed, noise):
        exact = brute_force(strategy.measurements, noise)
        computed = sensitivity(strategy.measurements, noise)
        assert type(computed) is int
        assert computed == exact
        with monkeypatch.context() as patch:
            patch.setattr(module, "SEARCH_LIMIT", 0)
            computed = sensitivity(strategy.measurements, noise)
        assert exact <= computed
        columns = column_matrices(strategy.measurements)
        if len(columns) == 1 and columns[0].block.is_product:
            assert exact == computed


@seeds
def test_column_support_bounds_the_nonzero_entries_of_a_column(seed):
    for strategy in cases(seed, "laplace"):
        A = dense_strategy(strategy.measurements)
        assert column_support(strategy.measurements) >= (A != 0).sum(axis=0).max()


@noises
def test_entries_that_would_wrap_64_bits_are_summed_exactly(noise):
    wide = Dense(np.array([[1 << 40, 0], [1 << 32, 1 << 32]]))
    strategy = ProductStrategy("wide", noise, (wide, wide, wide, wide))
    assert sensitivity(strategy.measurements, noise) == brute_force(strategy.measurements, noise)
    rows = np.full((3, 2), 1 << 31)
    tall = PIdentity(np.array([1 << 32, 5]), rows)
    high = PIdentity(np.array([1 << 62, 1 << 61]), np.full((3, 2), 1 << 60))
    levels = Hierarchy(4, (1, 2, 4), [1 << 61, (1 << 60) + 1, 1 << 62])
    uneven = Dense(np.array([[(1 << 40) + 3, -(1 << 33) - 5], [1 - (1 << 62), 7], [1 << 31, 9]]))
    blocks = BlockPIdentity(
        np.array([1 << 62, 1, 2]), np.full((2, 3), 1 << 60), np.array([[1 << 61, 1 << 62]] * 3), 2
    )
    for factor in (tall, high, levels, uneven, blocks):
        strategy = ProductStrategy("tall", noise, (factor,))
        exact = brute_force(strategy.measurements, noise)
        assert sensitivity(strategy.measurements, noise) == exact


@noises
def test_marginals_add_up_without_a_search_of_the_domain(noise):
    shape = (1000,) * 60
    weights = {(i, i + 1, i + 2): 3 + i for i in range(58)}
    power = 1 if noise == "laplace" else 2
    strategy = MarginalsStrategy("m", noise, shape, weights)
    expected = sum(weight**power for weight in weights.values())
    assert sensitivity(strategy.measurements, noise) == expected


@noises
def test_a_threshold_beside_a_condition_may_have_a_weight_past_64_bits(noise):
    condition = Dense(np.array([[1, 0]]))
    factors = (condition, Identity(2), Identity(3))
    block = Block((2, 2, 3), (0, 1, 2), factors, (False, True, True), 1)
    measurements = [WeightedBlock(1 << 70, block)]
    exact = brute_force(measurements, noise)
    assert block_norms(measurements, noise) == [exact]
    assert sensitivity(measurements, noise) == exact


@noises
def test_thresholds_far_apart_are_searched_by_kinds_of_column(noise):
    shape = (500, 500, 2)
    factors = (Prefix(500), Identity(500), Identity(2))
    signed = Block(shape, (0, 1, 2), factors, (True,) * 3, 1)
    workload = Workload(shape, (signed, marginal(shape, [0, 2])), (1.0, 1.0))
    strategy = DirectStrategy("direct", noise, workload, (2, 3))
    # A cell (i, j, k) misses a row only if all three predicates fail: i of 500 prefixes, 499, 1.
    powers = (2, 3) if noise == "laplace" else (4, 9)
    expected = powers[0] * 500 * 500 * 2 + powers[1]
    assert sensitivity(strategy.measurements, noise) == expected


@pytest.mark.parametrize("bits", [4, 16])
def test_rounding_a_laplace_factor_keeps_every_column_at_the_same_norm(bits):
    Theta = np.random.default_rng(0).random((4, 9)) / 3
    rounded = integer_factor(p_identity(Theta), noise="laplace", bits=bits)
    assert isinstance(rounded, PIdentity)
    assert rounded.column_norms(1).tolist() == [1 << bits] * 9
    assert np.abs(rounded.dense() / (1 << bits) - p_identity(Theta).dense()).max() <= 4 / (
        1 << bits
    )


def test_rounding_never_loses_a_column_whose_diagonal_all_but_vanishes():
    rounded = integer_factor(p_identity(np.full((3, 2), 1e9)), noise="laplace")
    assert np.linalg.matrix_rank(rounded.dense()) == 2
    assert rounded.column_norms(1).max() <= (1 << 16) + 3


def test_rounding_a_gaussian_factor_moves_entries_by_half_a_unit():
    A = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]
    rounded = integer_factor(Dense(A), noise="gaussian")
    assert np.issubdtype(rounded.dtype, np.integer)
    assert np.abs(rounded.dense() - A * (1 << 16)).max() <= 0.5


def test_integer_factors_are_kept_as_they_are():
    factor = Identity(7)
    assert integer_factor(factor, noise="laplace") is factor


@pytest.mark.parametrize("entry", [1, 2, 3, 255, 65535, 65536, 10**6, 10**30])
def test_resolution_lifts_the_largest_entry_to_17_bits(entry):
    scale = resolution(entry)
    assert scale & (scale - 1) == 0
    assert entry * scale >= 1 << 16
    assert scale == 1 or entry * scale < 1 << 17


# Hostile strategies of every shape: no neighbour moves the answers further than is paid for.


PAIRS = 12
DELTA = Fraction(1, 10**6)


@dataclass(frozen=True, eq=False)
class Hostile:
    """The measurements of a strategy, with integers that no search would choose."""

    shape: tuple[int, ...]
    noise: str
    measurements: tuple[WeightedBlock, ...]

    def once(self, name, work):
        return work()


def wide_integer(rng):
    """Of any width up to 40 bits, most often at the end of one, or next to it."""
    power = 1 << int(rng.integers(0, 41))
    return max(1, power + int(rng.integers(-1, 2)))


def hostile_factor(rng, factor):
    """A factor of the same shape and kind, with wide, signed, vanishing and repeated entries."""
    rows, columns = factor.shape
    match factor:
        case Dense():
            widths = rng.integers(0, 31, (rows, 1))
            entries = rng.integers(-1, 2, (rows, columns)) << widths
            return Dense(entries - rng.integers(0, 2, (rows, columns)))
        case PIdentity():
            below = rng.integers(0, 2, (rows - columns, columns)) << int(rng.integers(0, 31))
            return PIdentity(rng.integers(1, 1 << int(rng.integers(1, 31)), columns), below)
        case BlockPIdentity(inner=inner, outer=outer, size=size):
            diagonal = rng.integers(1, 1 << int(rng.integers(1, 31)), columns)
            parts = [
                rng.integers(-1, 2, part.shape) << int(rng.integers(0, 31))
                for part in (inner, outer)
            ]
            return BlockPIdentity(diagonal, *parts, size)
        case Hierarchy(sizes=sizes):
            weights = [wide_integer(rng) for _ in sizes]
            return Hierarchy(columns, sizes, weights)
        case Tree(parents=parents, weights=weights):
            wide = [[wide_integer(rng) for _ in level] for level in weights]
            return Tree(parents, list(map(np.array, wide)))
        case OrbitRows(axes=axes, cores=cores):
            signs = {b: rng.integers(-1, 2, core.shape) for b, core in cores.items()}
            wide = {b: (s | 1) << rng.integers(0, 31, s.shape) for b, s in signs.items()}
            return OrbitRows(axes, wide)
        case _:
            return factor


def hostile(rng, strategy: Strategy):
    measurements = []
    for measurement in strategy.measurements:
        block, weight = measurement.block, measurement.weight
        if isinstance(block, CellClassBlock):
            factors = tuple(hostile_factor(rng, factor) for factor in block.inner.factors)
            block = replace(block, inner=replace(block.inner, factors=factors))
        elif block.is_product and rng.random() < 0.8:
            factors = tuple(hostile_factor(rng, factor) for factor in block.factors)
            block = replace(block, factors=factors)
        weight = wide_integer(rng) if rng.random() < 0.5 else weight
        measurements.append(WeightedBlock(weight, block))
    return Hostile(strategy.shape, strategy.noise, tuple(measurements))


def strategies_of(rng, noise):
    """One of every shape, as random and as hostile."""
    shape = tuple(rng.integers(1, 4, int(rng.integers(1, 4))).tolist())
    drawn = [strategy for strategy, _ in random_strategies(rng, shape, noise)]
    for strategy in drawn:
        yield Hostile(strategy.shape, noise, tuple(strategy.measurements))
        yield hostile(rng, strategy)


def on_the_grid(A, x, shift):
    """Floored answers of Python ints."""
    return [int(value) >> shift for value in A @ x.ravel().astype(object)]


def measured(strategy, x, shift):
    """The answers that the product would add noise to."""
    answers = []
    for measurement in strategy.measurements:
        beyond = tuple(i for i in range(x.ndim) if i not in measurement.block.attributes)
        answers += exact_answers(measurement, x.sum(axis=beyond), shift=shift).tolist()
    return answers


def norm(differences, power):
    return sum(abs(value) ** power for value in differences)


def faults(seed, noise, *, measured_ones):
    """Yield what is wrong with strategies of a seed; those that can be measured are listed."""
    rng = np.random.default_rng(seed)
    power = 1 if noise == "laplace" else 2
    budget = guarantee(noise, epsilon=Fraction(1), delta=DELTA)
    for strategy in strategies_of(rng, noise):
        A = dense_strategy(strategy.measurements)
        exact = max(norm(column, power) for column in A.T)
        if sensitivity(strategy.measurements, noise) != exact:
            yield strategy, "not the largest column"
        if exact == 0:  # one number of which nothing is measured: no noise is for that
            continue
        rows, neighbours = int(rng.integers(1, 4)), str(rng.choice(["add-remove", "replace"]))
        privacy = Privacy(person="id", max_rows=rows, neighbours=neighbours)
        try:
            mechanism = calibrated_noise(strategy, privacy=privacy, guarantee=budget)
        except UnsupportedWorkloadError:
            continue
        shift, cells = mechanism.shift, A.shape[1]
        for _ in range(PAIRS):
            before = rng.integers(0, 1 << int(rng.integers(1, 25)), strategy.shape) + rows
            after = before.copy().ravel()
            put, taken = rng.integers(0, cells, 2)
            after[put] += rows
            if neighbours == "replace":
                after[taken] -= int(rng.integers(0, rows + 1))  # another person may have fewer
            pair = (before, after.reshape(strategy.shape))
            answers = [on_the_grid(A, x, shift) for x in pair]
            if [measured(strategy, x, shift) for x in pair] != answers:
                yield strategy, "not the exact answers"
            moved = [int(b) - int(a) for a, b in zip(*answers, strict=True)]
            if norm(moved, power) > mechanism.sensitivity:
                yield strategy, "a move that is not paid for"
        measured_ones.append(strategy)


fuzz_seeds = [*range(25), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(25, 150))]


@pytest.mark.nightly(daily="11-gaussian")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("seed", fuzz_seeds)
def test_no_neighbour_moves_a_hostile_strategy_further_than_its_sensitivity(
    seed, noise, record_property
):
    strategies = []
    assert list(faults(seed, noise, measured_ones=strategies)) == []
    assert len(strategies) >= 8
    record_property("hostile strategies", len(strategies))
    record_property("pairs of tables", PAIRS * len(strategies))


# Products solved together against dense pseudo-inverses: variances, answers, and limits.


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


@pytest.mark.nightly(daily=r"-[0-6]\]")
@pytest.mark.parametrize("seed", range(12))
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
