"""What holds of every shape and strategy: capabilities, promises, sums of all tables, limits."""

import json
import math
import pickle
from itertools import chain, combinations
from itertools import product as cartesian

import numpy as np
import pytest
from dense import coefficients, dense_block, dense_strategy, random_strategies, random_workload
from hypothesis import given, settings
from hypothesis import strategies as st

import dpquery.strategy.expected_error as errors
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_RESIDUAL_ATTRIBUTES
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.factors import Dense, Groups, Identity, Stacked, total
from dpquery.operators.gram import array_of, gram
from dpquery.operators.ranges import AllRanges, ListedRanges, Prefix, WidthRanges
from dpquery.plan_file.plan import SHAPES, decode_strategy
from dpquery.reconstruction.least_squares import ESTIMATES, reconstruct
from dpquery.strategy import strategy as size_limits
from dpquery.strategy.algebra.query_powers import expand
from dpquery.strategy.algebra.subsets import Below, BlockSums, subsets_of, workload_eigenvalues
from dpquery.strategy.expected_error import (
    block_errors,
    expected_error,
    squared_sensitivity,
    weighted_queries,
)
from dpquery.strategy.optimize.opt_0 import opt_product
from dpquery.strategy.optimize.opt_marginals import opt_marginals
from dpquery.strategy.search import select as select_module
from dpquery.strategy.search.candidates import Proposal
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.informed import InformedStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.splits import CenteredCore
from dpquery.strategy.strategy import _matrix_bytes, check_strategy_size

SHAPE = (4, 1, 6)
every_shape = pytest.mark.parametrize("kind", SHAPES)
two_seeds = pytest.mark.parametrize("seed", range(2))


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
@two_seeds
def test_what_is_encoded_is_decoded(kind, seed):
    for strategy, workload in strategies(kind, seed):
        encoded = strategy.encode()
        again = decode_strategy(json.loads(json.dumps(encoded)), noise="laplace", workload=workload)
        assert (type(again), again.name) == (SHAPES[kind], strategy.name)
        assert again.shape == strategy.shape == workload.shape_of_domain
        assert again.encode() == encoded
        first, second = (dense_strategy(own.measurements).tolist() for own in (strategy, again))
        assert sorted(first) == sorted(second)  # a plan sorts the sets that are measured


@pytest.mark.nightly(daily=r"\[0-")
@every_shape
@two_seeds
def test_sums_of_powers_are_those_of_dense_coefficients(kind, seed):
    for strategy, workload in strategies(kind, seed):
        uniform = strategy.uniform_variances(workload.blocks, range(len(workload.blocks)))
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
@two_seeds
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
@two_seeds
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
@two_seeds
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


# Promises of strategy selection on random schemas and random mixtures of questions.

checked = settings(max_examples=25)


@st.composite
def factors(draw, n):
    kind = draw(st.integers(0, 7))
    first = draw(st.integers(0, n - 1))
    last = draw(st.integers(first, n - 1))
    match kind:
        case 0:
            return Identity(n)
        case 1:
            return Prefix(n)
        case 2:
            return AllRanges(n)
        case 3:
            return WidthRanges(n, last - first + 1)
        case 4:
            return ListedRanges(n, [(first, last)])
        case 5:
            return Groups.of(((first,), tuple(sorted({0, first, last}))), n)
        case 6:
            return Stacked((Identity(n), total(n)))
        case _:
            return total(n)


@st.composite
def blocks(draw, shape, most=4):
    places = st.integers(0, len(shape) - 1)
    attributes = tuple(sorted(draw(st.sets(places, max_size=most))))
    counted = [draw(st.booleans()) for _ in attributes]
    r = draw(st.integers(1, sum(counted))) if any(counted) else 0
    drawn = tuple(draw(factors(shape[i])) for i in attributes)
    return Block(shape, attributes, drawn, tuple(counted), r)


@st.composite
def workloads(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    drawn = tuple(draw(st.lists(blocks(shape), min_size=1, max_size=4)))
    weights = tuple(draw(st.sampled_from([1e-6, 0.5, 1.0, 40.0, 1e6])) for _ in drawn)
    return Workload(shape, drawn, weights)


@st.composite
def schemas(draw):
    """Workloads over 2 to 12 attributes: smaller ones where there are many."""
    d = draw(st.integers(2, 12))
    size = 12 if d == 2 else 6 if d <= 4 else 3 if d <= 8 else 2
    shape = tuple(draw(st.lists(st.integers(1, size), min_size=d, max_size=d)))
    drawn = tuple(draw(st.lists(blocks(shape, most=3), min_size=1, max_size=6)))
    weights = tuple(draw(st.sampled_from([1e-3, 1.0, 1.0, 40.0])) for _ in drawn)
    return Workload(shape, drawn, weights)


def check_against_everything(workload, noise):
    """The best beats all candidates, and the product and marginal strategies as first optimised."""
    selection = select(workload, noises=[noise])[noise]
    known = [
        candidate.error.weighted_rmse
        for candidate in selection.candidates
        if candidate.error is not None
    ]
    best = selection.best.error.weighted_rmse
    assert best == min(known)
    loss, V = best**2 * weighted_queries(workload), gram(workload)
    rng = np.random.default_rng(0)
    for optimise in (opt_product, opt_marginals):
        assert loss <= optimise(V, noise=noise, rng=rng).loss * 1.001  # of rounding to integers


@pytest.mark.nightly(daily="gaussian")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@given(workload=schemas())
@settings(checked, max_examples=4)
def test_random_schemas_are_planned_no_worse_than_by_any_other_strategy(workload, noise):
    check_against_everything(workload, noise)


@pytest.mark.nightly(daily="gaussian")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@given(workload=workloads())
@settings(checked, max_examples=7)
def test_every_candidate_is_exact_bounded_and_survives_the_plan_file(workload, noise):
    selection = select(workload, noises=[noise])[noise]
    weight = sum(
        weight * block.shape[0]
        for weight, block in zip(workload.weights, workload.blocks, strict=True)
    )
    for candidate in selection.candidates:
        if candidate.proposal is None:
            assert candidate.reason
            continue
        strategy = candidate.proposal.strategy
        error = expected_error(strategy, workload)
        assert 0 < error.rmse <= error.max_std_error * (1 + 1e-9) < np.inf
        assert error.weighted_rmse**2 * weight >= selection.bound.loss * (1 - 1e-6)
        assert all(isinstance(measurement.weight, int) for measurement in strategy.measurements)
        read = decode_strategy(strategy.encode(), noise=noise, workload=workload)
        assert squared_sensitivity(read) == squared_sensitivity(strategy)
        assert expected_error(read, workload).rmse == pytest.approx(error.rmse, rel=1e-9)


@pytest.mark.nightly(daily="gaussian")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_forty_attributes_are_planned_from_their_tables_alone(noise):
    shape = (90,) * 40
    blocks = tuple(
        Block(shape, (i, i + 1), (Identity(90), Identity(90)), (True, True), 2) for i in range(39)
    )
    selection = select(Workload(shape, blocks, (1.0,) * 39), noises=[noise])[noise]
    reasons = {candidate.name: candidate.reason for candidate in selection.candidates}
    assert "cells" in reasons["Identity"]
    assert selection.best.error.weighted_rmse**2 * 39 * 8100 >= selection.bound.loss


# What is summed for all tables at once equals the sum of each; a hundred attributes work.

twenty_seeds = pytest.mark.parametrize("seed", range(20))


def random_sets(rng, d=7, count=12):
    """Sets of every size, some of them twice."""
    return [tuple(np.flatnonzero(rng.random(d) < rng.random()).tolist()) for _ in range(count)]


@twenty_seeds
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
            inside = cartesian((False, True), repeat=len(members))
            for number, kept in zip(numbers, inside, strict=True):
                chosen = tuple(
                    i for i, is_kept in zip(sets[position], kept, strict=True) if is_kept
                )
                assert below.subsets[number] == chosen


def slow_sums(V, blocks, c):
    """S_b term by term."""
    sums = dict.fromkeys(blocks.subsets, 0.0)
    for weight, index in zip(V.weights, V.index, strict=True):
        used = tuple(int(i) for i in np.flatnonzero(index))
        for b in subsets_of(tuple(i for i in used if V.shape_of_domain[i] > 1)):
            coefs = [c[blocks.places(i)[i in b]][index[i]] for i in used]
            sums[b] += weight * math.prod(coefs)
    return np.array(list(sums.values()))


@twenty_seeds
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


@twenty_seeds
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


@pytest.mark.nightly(daily=r"\[\d-")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@twenty_seeds
def test_the_variance_of_uniform_tables_is_that_of_every_query(seed, noise):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 4, int(rng.integers(1, 4))).tolist())
    kinds = (Identity, total, lambda n: Stacked((Identity(n), Identity(n))))
    plain = [
        product(shape, {i: kinds[rng.integers(3)](shape[i]) for i in b})
        for b in subsets_of(tuple(range(len(shape))))
    ]
    for strategy, workload in random_strategies(rng, shape, noise):
        blocks = (*workload.blocks, *plain)
        positions = [*range(len(workload.blocks)), *[None] * len(plain)]
        computed = strategy.uniform_variances(blocks, positions)
        if strategy.name == "marginals":
            assert set(computed) >= set(range(len(workload.blocks), len(blocks)))
        if isinstance(strategy, DirectStrategy):
            assert set(computed) == set(range(len(workload.blocks)))
        elif strategy.name not in ("marginals", "factors", "residual"):
            assert computed == {}
        for place, value in computed.items():
            terms = strategy.power_sums(blocks[place], position=positions[place], order=2)
            slow = expand(terms, blocks[place].row_shape)
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
    same, other, heavy = (product(shape, {i: queries}) for i in (0, 1, 3))
    assert strategy.likeness(same) == strategy.likeness(other) != strategy.likeness(heavy)


def test_a_uniform_table_that_is_not_measured_is_refused():
    strategy = MarginalsStrategy("m", "laplace", (3, 2), {(0,): 1})
    workload = Workload((3, 2), (marginal((3, 2), [0]), marginal((3, 2), [1])), (1.0, 1.0))
    with pytest.raises(UnsupportedWorkloadError, match="no measured marginal"):
        block_errors(strategy, workload)


# What the search chooses can be read back from a plan: one set of limits holds for both.

FLAGS = (2,) * 14
WORKLOAD = Workload(FLAGS, tuple(marginal(FLAGS, [i]) for i in range(14)), (1.0,) * 14)
EVERY = chain.from_iterable(combinations(range(14), k) for k in range(15))


def wide(problem):
    """Every marginal of fourteen attributes: 3^14 subsets of subsets, past 2^22."""
    return Proposal(MarginalsStrategy("wide", problem.noise, FLAGS, dict.fromkeys(EVERY, 1)))


def plain(problem):
    ways = {(i,): 1 for i in range(14)}
    return Proposal(MarginalsStrategy("plain", problem.noise, FLAGS, ways))


def test_a_candidate_that_could_not_be_read_back_never_wins(monkeypatch):
    monkeypatch.setattr(select_module, "CLOSED_FORMS", (("wide", wide), ("plain", plain)))
    monkeypatch.setattr(select_module, "SEARCH_ROUNDS", ((), (), (), ()))
    chosen = select(WORKLOAD, noises=["laplace"])["laplace"]
    refused, *_ = chosen.candidates
    assert "more than the 4,194,304 that a plan holds" in refused.reason
    assert chosen.best.name == "plain"
    decode_strategy(chosen.best.proposal.strategy.encode(), noise="laplace", workload=WORKLOAD)


@pytest.mark.parametrize("limit", ["MAX_MATRIX_BYTES", "MAX_MATRICES_BYTES"])
def test_matrices_are_counted_as_a_plan_writes_them(monkeypatch, limit):
    factors = (Dense(Identity(2).dense()), *(total(2) for _ in FLAGS[1:]))
    strategy = ProductStrategy("dense", "laplace", factors)
    monkeypatch.setattr(size_limits, limit, 32)
    size_limits.check_strategy_size(strategy)
    monkeypatch.setattr(size_limits, limit, 31)
    with pytest.raises(SpecError, match="more than the 31 that a plan holds"):
        size_limits.check_strategy_size(strategy)


@pytest.mark.parametrize("other", [1, 1 << 30])
def test_a_largest_error_that_is_exact_on_one_machine_only_is_no_damage(monkeypatch, other):
    """Which it is hangs on rows that are told apart in floats."""
    shape = (5, 4)
    workload = Workload(shape, (product(shape, {0: Prefix(5), 1: Prefix(4)}),), (1.0,))
    strategy = MarginalsStrategy("m", "laplace", shape, {(0, 1): 3, (0,): 2, (): 1})
    monkeypatch.setattr(errors, "MAX_EXPANDED_ROWS", 12)
    monkeypatch.setattr(errors, "_is_exact", lambda _: other > 1)
    error = expected_error(strategy, workload)
    low, high = error.max_between
    assert low <= error.max_std_error <= high
    assert low < high
    monkeypatch.setattr(errors, "_is_exact", lambda _: other == 1)
    assert low <= expected_error(strategy, workload).max_std_error <= high
