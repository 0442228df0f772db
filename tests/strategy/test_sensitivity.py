"""The sensitivity of a strategy is its largest column norm, in exact integers."""

import numpy as np
import pytest
from dense import dense_strategy, random_strategies, random_workload

import dpquery.strategy.sensitivity as module
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.factors import Dense, Identity, PIdentity
from dpquery.operators.p_identity import BlockPIdentity
from dpquery.operators.ranges import Prefix
from dpquery.operators.trees import Hierarchy
from dpquery.strategy.optimize.opt_0_laplace import p_identity
from dpquery.strategy.search.select import select
from dpquery.strategy.sensitivity import block_norms, column_support, sensitivity
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.strategy import WeightedBlock, column_matrices, integer_factor, resolution

noises = pytest.mark.parametrize("noise", ["laplace", "gaussian"])
seeds = pytest.mark.parametrize("seed", range(25))


def brute_force(measurements, noise):
    power = 1 if noise == "laplace" else 2
    return max(sum(abs(v) ** power for v in column) for column in dense_strategy(measurements).T)


def cases(seed, noise):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 4, int(rng.integers(1, 4))).tolist())
    return [strategy for strategy, _ in random_strategies(rng, shape, noise)]


@noises
@seeds
def test_sensitivity_is_the_largest_column_norm(seed, noise):
    for strategy in cases(seed, noise):
        computed = sensitivity(strategy.measurements, noise)
        assert type(computed) is int
        assert computed == brute_force(strategy.measurements, noise)


@noises
@seeds
def test_beyond_the_search_limit_sensitivity_is_an_upper_bound(seed, noise, monkeypatch):
    monkeypatch.setattr(module, "SEARCH_LIMIT", 0)
    for strategy in cases(seed, noise):
        exact = brute_force(strategy.measurements, noise)
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


@pytest.mark.parametrize("objective", ["rmse", pytest.param("max", marks=pytest.mark.slow)])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("seed", range(6))
def test_every_candidate_has_the_sensitivity_of_what_it_measures(seed, noise, objective):
    workload = random_workload(np.random.default_rng(seed), attributes=3, size=5)
    for candidate in select(workload, noises=[noise], objective=objective)[noise].candidates:
        if candidate.proposal is not None:
            measured = candidate.proposal.strategy.measurements
            assert sensitivity(measured, noise) == brute_force(measured, noise), candidate.name


def test_a_single_total_has_the_sensitivity_of_its_weight():
    block = product((5, 3), {})
    assert sensitivity((WeightedBlock(7, block),), "laplace") == 7
    assert sensitivity((WeightedBlock(7, block),), "gaussian") == 49
