"""What is summed for all tables at once equals the sum of each; a hundred attributes work."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from dense import random_strategies, random_workload

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_RESIDUAL_ATTRIBUTES
from dpquery.operators.blocks import Block, Workload, marginal
from dpquery.operators.blocks import product as product_block
from dpquery.operators.factors import Identity, Stacked, total
from dpquery.operators.gram import array_of, gram
from dpquery.operators.ranges import Prefix
from dpquery.plan_file.plan import decode_strategy
from dpquery.strategy.algebra.query_powers import expand
from dpquery.strategy.algebra.subsets import (
    Below,
    BlockSums,
    distinct_rows,
    member_products,
    subsets_of,
    workload_eigenvalues,
)
from dpquery.strategy.bounds import svd_bound
from dpquery.strategy.expected_error import block_errors, expected_error, squared_sensitivity
from dpquery.strategy.search.candidates import Problem, residual_candidate
from dpquery.strategy.sensitivity import sensitivity
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.splits import CenteredCore

seeds = pytest.mark.parametrize("seed", range(20))


def random_sets(rng, d=7, count=12):
    """Sets of every size, some of them twice."""
    return [tuple(np.flatnonzero(rng.random(d) < rng.random()).tolist()) for _ in range(count)]


@seeds
def test_every_subset_of_every_set_is_numbered_once_and_found(seed):
    sets = random_sets(np.random.default_rng(seed))
    below = Below(sets)
    assert set(below.subsets) == {a for members in sets for a in subsets_of(members)}
    assert list(below.subsets) == sorted(set(below.subsets), key=lambda a: (len(a), a))
    for group in below.groups:
        for position, members, numbers in zip(
            group.positions, group.members, group.below, strict=True
        ):
            assert tuple(members) == sets[position]
            inside = product((False, True), repeat=len(members))
            for number, kept in zip(numbers, inside, strict=True):
                chosen = tuple(
                    i for i, is_kept in zip(sets[position], kept, strict=True) if is_kept
                )
                assert below.subsets[number] == chosen


@seeds
def test_incidence_says_which_subset_is_below_which_set(seed):
    sets = random_sets(np.random.default_rng(seed))
    below = Below(sets)
    expected = [[float(set(a) <= set(b)) for b in sets] for a in below.subsets]
    assert below.incidence.toarray().tolist() == expected


def test_rows_of_large_indices_are_told_apart():
    big = (1 << 62) - 1
    rows = np.array([[big, 3, big], [big, 3, big - 1], [0, 3, big], [big, 3, big]])
    distinct, numbers = distinct_rows(rows)
    assert distinct.tolist() == [[0, 3, big], [big, 3, big - 1], [big, 3, big]]
    assert numbers.tolist() == [2, 1, 0, 2]


def test_member_products_are_products_over_members():
    values = np.array([2.0, 3.0, 5.0, 7.0])
    sets = [(1, 3), (), (0, 1, 2), (3,), (1, 3)]
    assert member_products(sets, values).tolist() == [21, 1, 30, 7, 21]


def slow_sums(V, blocks, c):
    """S_b term by term."""
    sums = dict.fromkeys(blocks.subsets, 0.0)
    for weight, index in zip(V.weights, V.index, strict=True):
        used = tuple(int(i) for i in np.flatnonzero(index))
        for b in subsets_of(tuple(i for i in used if V.shape_of_domain[i] > 1)):
            coefs = [c[blocks.places(i)[i in b]][index[i]] for i in used]
            sums[b] += weight * math.prod(coefs)
    return np.array(list(sums.values()))


@seeds
def test_block_sums_and_their_gradient_equal_loops(seed):
    rng = np.random.default_rng(seed)
    V = gram(random_workload(rng, attributes=5))
    blocks = BlockSums(V)
    c = np.append(rng.normal(size=blocks.size - 1), 1.0)
    assert blocks.sums(c) == pytest.approx(slow_sums(V, blocks, c))
    by_sums = rng.normal(size=len(blocks.subsets))
    slope = blocks.gradient(c, by_sums)
    for k in range(blocks.size - 1):
        step = np.eye(blocks.size)[k]  # S is multilinear: a whole step is the derivative
        change = (slow_sums(V, blocks, c + step) - slow_sums(V, blocks, c)) @ by_sums
        assert slope[k] == pytest.approx(change, abs=1e-9 * np.abs(slope).max())


def test_block_sums_refuse_a_table_of_too_many_attributes():
    shape = (2,) * (MAX_RESIDUAL_ATTRIBUTES + 1)
    wide = gram(Workload(shape, (marginal(shape, range(len(shape))),), (1.0,)))
    with pytest.raises(UnsupportedWorkloadError, match="13 attributes"):
        BlockSums(wide)
    assert len(BlockSums(wide, most=13).subsets) == 1 << 13


@seeds
def test_workload_eigenvalues_equal_traces_against_dense_projectors(seed):
    workload = random_workload(np.random.default_rng(seed))
    V, shape = gram(workload), workload.shape_of_domain
    eigenvalues, wide = workload_eigenvalues(V), [i for i, n in enumerate(shape) if n > 1]
    for a in subsets_of(tuple(wide)):
        value = 0.0
        for weight, index in zip(V.weights, V.index, strict=True):
            contribution = weight
            for i, n in enumerate(shape):
                flat = np.full((n, n), 1 / n)
                projector = np.eye(n) - flat if i in a else flat
                contribution *= np.sum(projector * array_of(V.matrices[i][index[i]])) / n
            value += contribution
        assert eigenvalues.get(a, 0.0) == pytest.approx(value, abs=1e-12 * V.trace)
    assert set(eigenvalues) <= set(subsets_of(tuple(wide)))


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@seeds
def test_the_variance_of_uniform_tables_is_that_of_every_query(seed, noise):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 4, int(rng.integers(1, 4))).tolist())
    kinds = (Identity, total, lambda n: Stacked((Identity(n), Identity(n))))
    plain = [
        product_block(shape, {i: kinds[rng.integers(3)](shape[i]) for i in b})
        for b in subsets_of(tuple(range(len(shape))))
    ]
    for strategy, workload in random_strategies(rng, shape, noise):
        if strategy.name not in ("marginals", "factors", "residual"):
            assert strategy.uniform_variances(workload.blocks) == {}
            continue
        blocks = (*workload.blocks, *plain)
        computed = strategy.uniform_variances(blocks)
        if strategy.name == "marginals":
            assert set(computed) >= set(range(len(workload.blocks), len(blocks)))
        for position, value in computed.items():
            terms = strategy.power_sums(blocks[position], position=position, order=2)
            slow = expand(terms, blocks[position].row_shape)
            assert slow == pytest.approx(np.full(slow.shape, value), rel=1e-9)


def test_tables_that_are_alike_have_the_same_variances():
    shape, queries = (3,) * 4, Prefix(3)
    weights = {b: 1 + (3 in b) for b in subsets_of((0, 1, 2, 3))}
    cores = tuple(CenteredCore(3) for _ in shape)
    strategy = ResidualStrategy("residual", "gaussian", cores, weights)
    stated = {}
    for b in subsets_of((0, 1, 2, 3)):
        for at_least in range(min(1, len(b)), len(b) + 1):
            for factor in (queries, total(3), Identity(3)):
                block = Block(shape, b, (factor,) * len(b), (True,) * len(b), at_least)
                variances = expand(strategy.variances(block, position=None), block.row_shape)
                like = strategy.likeness(block)
                assert stated.setdefault(like, variances.tolist()) == variances.tolist()
    same, other, heavy = (product_block(shape, {i: queries}) for i in (0, 1, 3))
    assert strategy.likeness(same) == strategy.likeness(other) != strategy.likeness(heavy)


def test_a_uniform_table_that_is_not_measured_is_refused():
    strategy = MarginalsStrategy("m", "laplace", (3, 2), {(0,): 1})
    workload = Workload((3, 2), (marginal((3, 2), [0]), marginal((3, 2), [1])), (1.0, 1.0))
    with pytest.raises(UnsupportedWorkloadError, match="no measured marginal"):
        block_errors(strategy, workload)


@pytest.mark.slow
def test_a_hundred_attributes_and_all_their_three_way_tables_reach_the_bound():
    shape = tuple(np.random.default_rng(0).integers(2, 21, 100).tolist())
    blocks = tuple(marginal(shape, b) for k in range(4) for b in combinations(range(100), k))
    workload = Workload(shape, blocks, (1.0,) * len(blocks))
    V = gram(workload)
    strategy = residual_candidate(Problem(workload, V, "gaussian", 0)).strategy
    assert len(strategy.weights) == len(blocks) == 166_751
    error, bound = expected_error(strategy, workload), svd_bound(V)
    loss = error.rmse**2 * workload.shape[0]
    assert bound.loss * (1 - 1e-9) <= loss <= bound.loss * (1 + 1e-4)
    exact = sum(
        weight**2 * math.prod(shape[i] * (shape[i] - 1) for i in b)
        for b, weight in strategy.weights.items()
    )
    assert sensitivity(strategy.measurements, "gaussian") == exact
    for position in (0, 17, 3_000, 166_750):
        terms = strategy.power_sums(blocks[position], position=position, order=2)
        variance = squared_sensitivity(strategy) * float(np.max(expand(terms)))
        assert error.blocks[position].max_std_error == pytest.approx(math.sqrt(variance))
    same = decode_strategy(strategy.encode(), noise="gaussian", workload=workload)
    assert same.weights == strategy.weights
