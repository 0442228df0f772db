"""Thresholds, r of k: every closed form against records counted one by one and dense matrices."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from dense import (
    coefficients,
    dense_block,
    dense_workload,
    random_core,
    random_measured_factor,
)

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators import blocks
from dpquery.operators import gram as gram_terms
from dpquery.operators.blocks import (
    Block,
    Workload,
    differences,
    marginal,
    node_weights,
    threshold_nodes,
    threshold_sum,
    threshold_terms,
)
from dpquery.operators.blocks import product as product_block
from dpquery.operators.factors import Groups, Identity
from dpquery.operators.gram import gram
from dpquery.operators.ranges import Prefix
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.algebra.query_powers import expand, total_of
from dpquery.strategy.algebra.subsets import subsets_of, workload_eigenvalues
from dpquery.strategy.expected_error import (
    block_errors,
    expected_error,
    largest_of,
    squared_sensitivity,
)
from dpquery.strategy.search.candidates import Problem, marginals_candidate, residual_candidate
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy

SHAPE = (2, 3, 2, 3)
KINDS = {
    "all": Identity,
    "groups": lambda n: Groups.of(((0,), tuple(range(n)), (0, n - 1)), n),
    "target": lambda n: Groups.of(((n - 1,),), n),
    "prefix": Prefix,
}


def thresholds(*, shape=SHAPE, fixed=False):
    """Every r of k over up to four attributes, with targets of every kind, one attribute fixed."""
    kinds = list(KINDS)
    for k in range(1, 5 - fixed):
        for r in range(1, k + 1):
            for start in range(len(kinds)):
                factors = [KINDS[kinds[(start + i // 2) % 4]](shape[i]) for i in range(k + fixed)]
                counted = tuple(i >= fixed for i in range(k + fixed))
                yield Block(shape, tuple(range(k + fixed)), tuple(factors), counted, r)


EVERY = [*thresholds(), *thresholds(fixed=True)]


def all_targets(shape, sets, r, weights=None):
    blocks = [
        Block(shape, members, tuple(Identity(shape[i]) for i in members), (True,) * len(members), r)
        for members in sets
    ]
    return Workload(shape, tuple(blocks), weights or (1.0,) * len(blocks))


def records(count=40):
    rng = np.random.default_rng(5)
    return [tuple(int(rng.integers(n)) for n in SHAPE) for _ in range(count)]


@pytest.mark.nightly
@pytest.mark.parametrize("block", EVERY)
def test_answers_count_the_records_that_meet_r_targets(block):
    matrices, people = [factor.dense() for factor in block.factors], records()
    x = np.zeros(SHAPE, dtype=np.int64)
    for person in people:
        x[person] += 1
    expected = np.zeros(block.row_shape, dtype=np.int64)
    for row in product(*(range(m) for m in block.row_shape)):
        for person in people:
            met = [
                bool(F[j, person[i]]) for i, (F, j) in enumerate(zip(matrices, row, strict=True))
            ]
            fixed = all(m for m, counted in zip(met, block.counted, strict=True) if not counted)
            hits = sum(m for m, counted in zip(met, block.counted, strict=True) if counted)
            expected[row] += fixed and hits >= block.at_least
    assert np.array_equal(block.matvec(x.ravel()).reshape(block.row_shape), expected)
    assert np.array_equal(dense_block(block) @ x.ravel(), expected.ravel())


@pytest.mark.parametrize("limit", [0, math.inf])
def test_products_by_sets_and_by_attributes_are_those_of_the_dense_matrix(limit, monkeypatch):
    monkeypatch.setattr(blocks, "MAX_SET_SUMS", limit)
    rng = np.random.default_rng(3)
    values = Groups.of(((0,), (1,)), 3)  # of a boolean whose other texts count in totals alone
    wide = [
        Block((3,) * 6, tuple(range(6)), (values,) * 6, (True,) * 5 + (False,), r)
        for r in (2, 3, 4)
    ]
    for block in (*EVERY, *wide):
        W = dense_block(block)
        x, y = (rng.integers(-9, 2**40, size) for size in (W.shape[1], W.shape[0]))
        assert np.array_equal(block.matvec(x), W.astype(np.int64) @ x)
        assert np.array_equal(block.rmatvec(y), W.T.astype(np.int64) @ y)
        assert np.allclose(block.matvec(x / 7), W @ (x / 7), rtol=1e-12)


@pytest.mark.nightly
@pytest.mark.parametrize("paired", [0, 3])
def test_grams_are_those_of_the_dense_matrix(paired, monkeypatch):
    monkeypatch.setattr(gram_terms, "MAX_PAIRED", paired)
    for block in EVERY:
        W = dense_block(block)
        V = gram(Workload(SHAPE, (block,), (2.0,)))
        assert np.allclose(V.dense(), 2 * W.T @ W, atol=1e-9)
        x = np.arange(W.shape[1], dtype=float)
        assert np.allclose(V.matvec(x), 2 * W.T @ (W @ x))


def test_eigenvalues_are_traces_against_the_projectors():
    for block in EVERY:
        W = dense_block(block).astype(float)
        eigenvalues = workload_eigenvalues(gram(Workload(SHAPE, (block,), (1.0,))))
        for a in subsets_of(tuple(range(4))):
            P = np.ones((1, 1))
            for i, n in enumerate(SHAPE):
                mean = np.full((n, n), 1 / n)
                P = np.kron(P, np.eye(n) - mean if i in a else mean)
            trace = float(np.sum((W @ P) * W)) / math.prod(SHAPE)
            assert eigenvalues.get(a, 0.0) == pytest.approx(trace, rel=1e-9, abs=1e-12)


def strategies_over_all(noise):
    """Strategies that answer whatever is asked: marginals, cores, a product and a union of two."""
    rng = np.random.default_rng(1)
    every = {b: int(rng.integers(1, 9)) for b in subsets_of(tuple(range(4)))}
    cores = [random_core(rng, n) for n in SHAPE]
    factors = [random_measured_factor(rng, n) for n in SHAPE]
    whole = ProductStrategy("p", noise, tuple(factors))
    cells = ProductStrategy("i", noise, tuple(Identity(n) for n in SHAPE))
    return [
        MarginalsStrategy("m", noise, SHAPE, every),
        whole,
        UnionStrategy("u", noise, (whole, cells), (2, 3), ((0,), (1,))),
        *([ResidualStrategy("r", noise, tuple(cores), every)] if noise == "gaussian" else []),
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_every_row_has_the_variance_of_its_coefficients(noise):
    strategies = strategies_over_all(noise)
    for number, block in enumerate(EVERY):
        workload = Workload(SHAPE, (block,), (1.0,))
        strategy = strategies[number % len(strategies)]
        C = coefficients(strategy, dense_block(block), 0)
        expected = (C**2).sum(axis=1)
        sums = strategy.power_sums(block, position=0, order=2)
        assert np.allclose(expand(sums, block.row_shape).ravel(), expected, rtol=1e-7)
        assert total_of(sums, block) == pytest.approx(expected.sum(), rel=1e-7)
        fourth = strategy.power_sums(block, position=0, order=4)
        if fourth is not None:
            computed = expand(fourth, block.row_shape).ravel()
            assert np.allclose(computed, (C**4).sum(axis=1), rtol=1e-6)
        (error,) = block_errors(strategy, workload)
        scale = squared_sensitivity(strategy)
        assert error.max_std_error**2 == pytest.approx(scale * expected.max(), rel=1e-7)
        for variance in strategy.uniform_variances([block]).values():
            assert np.allclose(expected, variance, rtol=1e-7)


@pytest.mark.parametrize("build", [marginals_candidate, residual_candidate])
def test_answers_from_measurements_without_noise_are_the_truth(build):
    x = np.random.default_rng(0).integers(0, 9, SHAPE)
    blocks = tuple(block for block in EVERY if len(block.attributes) > 2)
    workload = Workload(SHAPE, blocks, (1.0,) * len(blocks))
    problem = Problem(workload, gram(workload), "gaussian", 0)
    strategy = build(problem).strategy
    answers = [
        float(measurement.weight)
        * measurement.block.matvec(x.ravel().astype(float))  # int64 would wrap
        for measurement in strategy.measurements
    ]
    estimates = reconstruct(strategy, answers)
    for position, block in enumerate(blocks):
        computed = estimates.answer(block, position).ravel()
        assert np.allclose(computed, dense_block(block) @ x.ravel(), atol=1e-6)


def test_predicted_errors_are_those_of_simulated_noise():
    shape, runs = (3, 2, 4), 2000
    workload = all_targets(shape, [(0, 1, 2), (0, 2)], 2, (1.0, 3.0))
    problem = Problem(workload, gram(workload), "gaussian", 0)
    strategy = residual_candidate(problem).strategy
    scale = math.sqrt(squared_sensitivity(strategy))
    rng = np.random.default_rng(0)
    errors = block_errors(strategy, workload)
    squares = [[], []]
    for _ in range(runs):
        noise = [
            scale * rng.normal(size=measurement.block.shape[0])
            for measurement in strategy.measurements
        ]
        estimates = reconstruct(strategy, noise)
        for position, block in enumerate(workload.blocks):
            squares[position].append(float((estimates.answer(block, position) ** 2).sum()))
    for squared, error in zip(squares, errors, strict=True):
        spread = np.std(squared) / math.sqrt(runs)
        assert abs(np.mean(squared) - error.total_squared) < 5 * spread
        assert spread < 0.04 * error.total_squared


def test_all_of_k_are_the_marginals():
    workload = all_targets(SHAPE, [(0, 1, 3), (1, 2)], 2)
    (first, second) = workload.blocks
    assert second.is_product
    assert not first.is_product
    same = marginal(SHAPE, (1, 2))
    x = np.arange(36)
    assert np.array_equal(second.matvec(x), same.matvec(x))
    assert second.terms == same.terms
    one, other = (gram(Workload(SHAPE, (block,), (1.0,))) for block in (second, same))
    assert workload_eigenvalues(one) == workload_eigenvalues(other)


def test_any_of_k_are_all_records_but_those_that_meet_none():
    x = np.random.default_rng(3).integers(0, 50, 36)
    for kind in KINDS.values():
        factors = tuple(kind(n) for n in SHAPE[:3])
        any_of = Block(SHAPE, (0, 1, 2), factors, (True,) * 3, 1)
        others = tuple(1 - factor.dense() for factor in factors)
        none = np.einsum("ia,jb,kc,abc->ijk", *others, x.reshape(SHAPE).sum(axis=3))
        assert np.array_equal(any_of.matvec(x), x.sum() - none.ravel())


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_thresholds_over_twelve_attributes_are_planned_in_closed_form(noise):
    shape = (2,) * 10 + (3, 3)
    workload = all_targets(shape, [tuple(range(12)), tuple(range(6))], 5, (1.0, 2.0))
    V = gram(workload)
    assert len(V.weights) <= 2**12 + 2**6
    problem = Problem(workload, V, noise, 0)
    build = residual_candidate if noise == "gaussian" else marginals_candidate
    strategy = build(problem).strategy
    error = expected_error(strategy, workload)
    eigenvalues = workload_eigenvalues(V)
    sizes = {a: math.prod(shape[i] - 1 for i in a) for a in eigenvalues}
    # The root of the eigenvalue of V on a is sqrt(v_a N / mult(a)), mult(a) times.
    svd = sum(math.sqrt(v * sizes[a]) for a, v in eigenvalues.items()) ** 2
    weighted = sum(
        weight * error_of_block.total_squared
        for weight, error_of_block in zip(workload.weights, error.blocks, strict=True)
    )
    if noise == "gaussian":
        assert weighted == pytest.approx(svd, rel=1e-4)
    else:
        assert weighted > svd


def test_eight_yes_or_no_targets_need_no_pairs_of_sets():
    shape = (2,) * 8
    factors = tuple(Groups.of(((1,),), 2) for _ in shape)
    block = Block(shape, tuple(range(8)), factors, (True,) * 8, 3)
    V = gram(Workload(shape, (block,), (1.0,)))
    hits = np.indices(shape).sum(axis=0).ravel() >= 3
    assert len(V.weights) <= 9**2
    assert V.trace == pytest.approx(hits.sum(), rel=1e-6)
    x = np.random.default_rng(0).normal(size=256)
    assert np.allclose(V.matvec(x), hits * (hits @ x), atol=1e-5)
    strategy = MarginalsStrategy("m", "gaussian", shape, {tuple(range(8)): 1})
    sums = strategy.power_sums(block, position=0, order=2)
    assert total_of(sums, block) == pytest.approx(hits.sum(), rel=1e-6)
    assert largest_of(sums) == pytest.approx(hits.sum(), rel=1e-6)


@pytest.mark.slow
def test_one_threshold_of_yes_or_no_targets_costs_one_unit_of_noise():
    shape = (2,) * 10
    factors = tuple(Groups.of(((1,),), 2) for _ in shape)
    block = Block(shape, tuple(range(10)), factors, (True,) * 10, 3)
    selection = select(Workload(shape, (block,), (1.0,)), noises=["gaussian"])["gaussian"]
    assert selection.best.error.rmse == pytest.approx(1.0, rel=1e-9)


def test_a_majority_of_three_leaves_no_pair_of_two_valued_attributes():
    workload = all_targets((2, 2, 2), [(0, 1, 2)], 2)
    assert sorted(map(len, workload_eigenvalues(gram(workload)))) == [0, 1, 1, 1, 3]
    for noise in ("gaussian", "laplace"):
        selection = select(workload, noises=[noise])[noise]
        W, _ = dense_workload(workload)
        best = selection.best.proposal.strategy
        C = coefficients(best, W, 0)
        unit = squared_sensitivity(best) * (C**2).sum() / 8
        assert selection.best.error.rmse**2 == pytest.approx(unit, rel=1e-6)


def test_a_table_too_wide_for_any_strategy_is_refused_with_its_size():
    shape = (9,) * 9
    workload = all_targets(shape, [tuple(range(9))], 4)
    with pytest.raises(UnsupportedWorkloadError, match=r"OPT_R: a table of 3.9e\+08 cells"):
        select(workload, noises=["gaussian", "laplace"])


@pytest.mark.parametrize("k", range(6))
def test_differences_are_sums_of_signed_terms(k):
    rng = np.random.default_rng(k)
    levels = rng.random(k).tolist()
    for beside, r in product(range(3), range(k + 3)):
        if not min(1, k + beside) <= r <= k + beside:
            continue
        computed = differences(levels, r, beside=beside)
        terms = threshold_terms((True,) * (k + beside), r)
        for row, a in enumerate(product((False, True), repeat=k)):
            for s in range(beside + 1):
                beside_hold = [True] * s + [False] * (beside - s)
                value = sum(
                    coef
                    * math.prod(p for p, x, y in zip(levels, mask, a, strict=False) if x and not y)
                    for coef, mask in terms
                    if all(y <= x for x, y in zip(mask, a, strict=False))
                    and all(
                        needed <= here for needed, here in zip(mask[k:], beside_hold, strict=True)
                    )
                )
                assert computed[row, s] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("k", range(13))
def test_nodes_give_every_function_of_the_hits(k):
    values = np.random.default_rng(k).normal(size=(3, k + 1))
    powers = threshold_nodes(k)[None, :] ** np.arange(k + 1)[:, None]
    assert np.allclose(node_weights(values) @ powers.T, values, atol=1e-9)


def test_tails_are_exact_beyond_64_bits():
    pairs = [(3**40, 5**30), (7**20, 2**70), (1, 11**20)]
    for r in range(4):
        expected = sum(
            math.prod(pair[i in chosen] for i, pair in enumerate(pairs))
            for size in range(r, 4)
            for chosen in combinations(range(3), size)
        )
        assert int(threshold_sum(pairs, r)) == expected


def _is_residual(candidate):
    return candidate.proposal and isinstance(candidate.proposal.strategy, ResidualStrategy)


def test_thresholds_beside_ranges_and_products_are_planned_and_proven():
    shape = (6, 4, 3, 2)
    blocks = (
        *all_targets(shape, [(0, 1, 2), (1, 2, 3)], 2).blocks,
        product_block(shape, {0: Prefix(6), 3: Identity(2)}),
        Block(shape, (0, 3), (Prefix(6), Identity(2)), (True, True), 1),
    )
    workload = Workload(shape, blocks, (1.0, 1.0, 0.5, 2.0))
    for objective in ("rmse", "max"):
        selection = select(workload, noises=["gaussian"], objective=objective)["gaussian"]
        best = min(
            (one for one in selection.candidates if _is_residual(one)), key=lambda one: one.score
        )
        assert selection.best.score <= best.score
        assert best.score >= math.sqrt(selection.score_bound.loss) * (1 - 1e-6)
        assert best.score <= 1.1 * math.sqrt(selection.score_bound.loss)
