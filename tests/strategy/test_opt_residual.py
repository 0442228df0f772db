"""OPT_R: its gradient, its closed forms against dense twins, and that it contains the others."""

import math
from itertools import combinations

import numpy as np
import pytest
from dense import MIXED, dense_strategy, dense_workload, random_workload
from scipy.optimize import check_grad

from dpquery.exceptions import SpecError
from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.factors import Identity, Stacked, total
from dpquery.operators.gram import gram
from dpquery.operators.ranges import ListedRanges, Prefix
from dpquery.plan_file.plan import decode_strategy
from dpquery.strategy.algebra.subsets import BlockSums
from dpquery.strategy.bounds import svd_bound
from dpquery.strategy.expected_error import expected_error, weighted_queries
from dpquery.strategy.optimize.opt_residual import (
    ResidualProblem,
    block_cores,
    opt_residual,
    real_core,
)
from dpquery.strategy.search import select as select_module
from dpquery.strategy.search.candidates import Problem, residual_candidate
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.splits import CenteredCore, DenseCore

SHAPE = MIXED.shape_of_domain


def proposal_for(workload):
    problem = Problem(workload, gram(workload), "gaussian", seed=0)
    return residual_candidate(problem)


def dense_loss(strategy, workload):
    """sensitivity^2 tr((A'A)^+ V), everything written out."""
    A = dense_strategy(strategy.measurements).astype(float)
    A = A / np.sqrt((A**2).sum(axis=0).max())
    W, w = dense_workload(workload)
    return float(np.trace(np.linalg.pinv(A.T @ A, rcond=1e-12) @ W.T @ (w[:, None] * W)))


def test_the_gradient_is_that_of_the_loss():
    problem = ResidualProblem(gram(MIXED))
    rng = np.random.default_rng(1)
    roots = {i: 3 * np.eye(SHAPE[i]) + rng.normal(size=(SHAPE[i],) * 2) for i in problem.active}
    flat = problem.start(roots)
    difference = check_grad(
        lambda x: problem.loss(x)[0], lambda x: problem.loss(x)[1], flat, seed=0
    )
    assert difference < 1e-5 * np.linalg.norm(problem.loss(flat)[1])


def test_block_sums_and_their_gradient_equal_loops():
    blocks = BlockSums(gram(MIXED))
    V, rng = gram(MIXED), np.random.default_rng(2)
    c = np.append(rng.random(blocks.size - 1), 1.0)
    expected = dict.fromkeys(blocks.subsets, 0.0)
    for weight, index in zip(V.weights, V.index, strict=True):
        used = tuple(i for i in range(3) if index[i])
        for b in (b for k in range(len(used) + 1) for b in combinations(used, k)):
            coefs = [c[blocks.places(i)[i in b]][index[i]] for i in used]
            expected[b] += weight * math.prod(coefs)
    assert blocks.sums(c) == pytest.approx(list(expected.values()))
    by_sums = rng.random(len(blocks.subsets))
    slope = blocks.gradient(c, by_sums)
    for k in range(blocks.size - 1):
        step = np.zeros(blocks.size)
        step[k] = 1e-6
        change = (blocks.sums(c + step) - blocks.sums(c - step)) @ by_sums / 2e-6
        assert slope[k] == pytest.approx(change, abs=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_the_integer_strategy_has_the_dense_loss_and_what_the_optimiser_promised(seed):
    workload = random_workload(np.random.default_rng(seed), attributes=3)
    proposal = proposal_for(workload)
    selection = opt_residual(gram(workload))
    of_blocks = block_cores(gram(workload), selection.cores)
    promised = of_blocks.loss if proposal.strategy.block_cores else selection.loss
    error = expected_error(proposal.strategy, workload)
    loss = error.weighted_rmse**2 * weighted_queries(workload)
    assert loss == pytest.approx(dense_loss(proposal.strategy, workload), rel=1e-3)
    # The largest columns of blocks with cores of their own need not be of the same codes.
    assert loss >= promised * (1 - (2e-2 if proposal.strategy.block_cores else 2e-3))
    assert loss <= promised * (1 + 2e-3)
    assert loss >= svd_bound(gram(workload)).loss * (1 - 1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_it_is_never_worse_than_what_it_contains(seed, monkeypatch):
    monkeypatch.setattr(select_module, "SETTLED", -1.0)  # all are searched, whatever is reached
    monkeypatch.setattr(select_module, "CONTAINED_IN", {})
    workload = random_workload(np.random.default_rng(100 + seed), attributes=3, size=5)
    candidates = select(workload, noises=["gaussian"])["gaussian"].candidates
    scores = {
        candidate.name: candidate.error.weighted_rmse
        for candidate in candidates
        if candidate.error is not None
    }
    contained = ("OPT_x", "OPT_0", "OPT_M")
    others = [score for name, score in scores.items() if name in contained]
    assert scores["OPT_R"] <= min(others) * 1.002


@pytest.mark.parametrize("seed", range(6))
def test_it_attains_the_svd_bound_on_marginals(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(2, 9, 4).tolist())
    subsets = [b for k in range(4) for b in combinations(range(4), k) if rng.random() < 0.5]
    blocks = [marginal(shape, b) for b in subsets]
    blocks.append(product(shape, {0: Stacked((Identity(shape[0]), total(shape[0])))}))
    workload = Workload(shape, tuple(blocks), tuple(rng.random(len(blocks)) + 0.1))
    error = expected_error(proposal_for(workload).strategy, workload)
    loss = error.weighted_rmse**2 * weighted_queries(workload)
    assert loss == pytest.approx(svd_bound(gram(workload)).loss, rel=1e-4)


def test_a_real_core_has_the_gram_and_the_null_vector_it_should():
    C = np.random.default_rng(3).normal(size=(6, 6)) + 3 * np.eye(6)
    B = C / np.linalg.norm(C, axis=0)
    G = B.T @ B
    g = np.linalg.solve(G, np.ones(6))
    F = real_core(C)
    assert F.shape == (5, 6)
    assert pytest.approx(G - 1 / g.sum(), abs=1e-5) == F.T @ F
    assert F @ (g / g.sum()) == pytest.approx(np.zeros(5), abs=1e-5)


def test_one_range_among_many_codes_needs_little_more_than_itself():
    workload = Workload((40,), (product((40,), {0: ListedRanges(40, [(3, 9)])}),), (1.0,))
    error = expected_error(proposal_for(workload).strategy, workload)
    assert error.rmse < 1.05


@pytest.mark.parametrize("core", [CenteredCore(5), DenseCore(np.diag([3, 1, 4, 1, 5])[:4] - 2)])
def test_a_core_splits_counts_into_level_and_residual(core):
    F, x = core.factor.dense(), np.arange(5.0) ** 2
    z = np.broadcast_to(core.spread(np.ones((1, 1)))[:, 0], 5)
    R = core.recover(np.eye(len(F)))
    queries = Prefix(5)
    Q = queries.dense()
    V = Q.T @ Q
    assert z.sum() == pytest.approx(1)
    assert F @ z == pytest.approx(np.zeros(len(F)), abs=1e-12)
    assert R @ (F @ x) + z * x.sum() == pytest.approx(x)
    assert core.levels(queries) == pytest.approx(Q @ z)
    assert core.variances(queries) == pytest.approx(((Q @ R) ** 2).sum(axis=1))
    assert core.traces(V) == pytest.approx((z @ V @ z, np.trace(R.T @ V @ R)))


@pytest.mark.parametrize(
    "rows", [[[1, 2, 3], [2, 4, 6]], [[1, 1, 1], [1, 0, 0]]], ids=["dependent", "total"]
)
def test_a_core_that_cannot_answer_is_refused_when_it_is_read(rows):
    workload = Workload((3,), (product((3,), {0: Prefix(3)}),), (1.0,))
    encoded = proposal_for(workload).strategy.encode()
    good = decode_strategy(encoded, noise="gaussian", workload=workload)
    assert expected_error(good, workload).rmse > 0
    bad = type(good)("r", "gaussian", (DenseCore(np.array(rows)),), good.weights).encode()
    with pytest.raises(SpecError, match="plan"):
        decode_strategy(bad, noise="gaussian", workload=workload)
    del encoded["weights"][0]
    with pytest.raises(SpecError, match="plan"):
        decode_strategy(encoded, noise="gaussian", workload=workload)
