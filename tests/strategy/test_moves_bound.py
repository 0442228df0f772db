"""Strategies and bounds for records that are replaced, beside a search over all strategies."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dense import MIXED, dense_strategy, dense_workload
from scipy.optimize import minimize

from dpquery.operators.blocks import Workload, product
from dpquery.operators.factors import Identity
from dpquery.operators.gram import gram
from dpquery.operators.ranges import Prefix
from dpquery.strategy.bounds import lower_bound, moved_bound
from dpquery.strategy.expected_error import expected_error, weighted_queries
from dpquery.strategy.goals import largest_standard_error
from dpquery.strategy.optimize.fixed_point import move_budgets, moves_optimum
from dpquery.strategy.search.select import select
from dpquery.strategy.sensitivity import sensitivity

noises = pytest.mark.parametrize("noise", ["laplace", "gaussian"])
changes = pytest.mark.parametrize("change", ["moves", "moves within"])


def least_width(A, noise, change):
    """How far a record moves the answers, by brute force."""
    power, columns = (1 if noise == "laplace" else 2), list(A.T)
    moves = [a - b for a in columns for b in columns] + (columns if change == "moves" else [])
    return max(sum(abs(v) ** power for v in move) for move in moves)


def optimum_by_search(V, change, seed):
    """The least loss of any strategy of a few cells, by a smooth search from random starts."""
    n = len(V)
    E = np.eye(n) if change == "moves" else np.linalg.svd(np.ones((1, n)))[2][1:].T
    m = E.shape[1]
    U = E.T @ V @ E
    pairs = [(i, j) for i in range(n) for j in range(i)]
    moves = [E[i] - E[j] for i, j in pairs] + ([*E] if change == "moves" else [])
    M = np.array(moves)
    rng = np.random.default_rng(seed)
    best = np.inf

    def loss(flat, t):
        C = flat.reshape(m, m)
        X = C.T @ C + 1e-9 * np.eye(m)
        long = np.einsum("ki,ij,kj->k", M, X, M)
        top = long.max()
        error = np.trace(np.linalg.solve(X, U))
        return math.log(top) + math.log(((long / top) ** t).sum()) / t + math.log(error)

    for _ in range(2):
        point = (np.eye(m) + 0.3 * rng.normal(size=(m, m))).ravel()
        for t in (4, 16, 64, 256, 1024):
            point = minimize(loss, point, args=(t,), method="BFGS").x
        C = point.reshape(m, m)
        X = C.T @ C
        best = min(best, np.einsum("ki,ij,kj->k", M, X, M).max() * np.trace(np.linalg.solve(X, U)))
    return best


@changes
@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_of_one_attribute_is_that_of_a_search_and_its_bound_holds(seed, change):
    rng = np.random.default_rng(seed)
    W = rng.integers(0, 2, (7, 4)).astype(float)
    V = W.T @ W + np.diag([1.0, 0.5, 2.0, 1.0])
    found = moves_optimum(V, change, rounds=2000)
    searched = optimum_by_search(V, change, seed)
    assert found.bound <= searched * (1 + 1e-6)
    assert searched <= found.loss * (1 + 1e-3)
    assert found.loss <= found.bound * 1.001
    A = found.rows
    distances = [((A[:, i] - A[:, j]) ** 2).sum() for i in range(4) for j in range(4)]
    leaving = (A**2).sum(axis=0).max() if change == "moves" else 0
    assert max(*distances, leaving) <= 1 + 1e-9


CELLS = Workload((3, 2), (product((3, 2), {0: Identity(3), 1: Identity(2)}),), (1.0,))
SIDES = Workload(
    (3, 2),
    (product((3, 2), {0: Identity(3)}), product((3, 2), {1: Identity(2)}), product((3, 2), {})),
    (1.0, 3.0, 1.0),
)
LINE = Workload((5,), (product((5,), {0: Prefix(5)}),), (1.0,))


@pytest.mark.nightly
@changes
@pytest.mark.parametrize("workload", [CELLS, SIDES, LINE], ids=["cells", "sides", "line"])
def test_no_strategy_is_better_than_the_bound_and_the_chosen_one_reaches_it(workload, change):
    W, weights = dense_workload(workload)
    V = (W.T * weights) @ W
    bound = lower_bound(gram(workload), change)
    searched = optimum_by_search(V + 1e-9 * np.eye(len(V)), change, 0)
    assert bound.loss <= searched * (1 + 1e-6)
    selection = select(workload, noises=["gaussian"], change=change)["gaussian"]
    reached = selection.best.score**2 * weighted_queries(workload)
    assert bound.loss * (1 - 1e-9) <= reached <= bound.loss * 1.002
    assert reached >= searched * 0.997


@pytest.mark.nightly
@changes
@noises
def test_no_candidate_beats_a_bound_and_figures_are_those_of_the_dense_strategy(change, noise):
    workload = replace(MIXED)
    selection = select(workload, noises=[noise], change=change)[noise]
    for candidate in selection.candidates:
        if candidate.proposal is None:
            continue
        strategy = candidate.proposal.strategy
        loss = candidate.score**2 * weighted_queries(workload)
        assert selection.bound is None or loss >= selection.bound.loss * (1 - 1e-6)
        error = expected_error(strategy, workload, change)
        assert error.weighted_rmse == pytest.approx(candidate.score, rel=1e-9)
        A = dense_strategy(strategy.measurements)
        width = sensitivity(strategy.measurements, noise, change)
        assert width >= least_width(A, noise, change)


def test_records_that_never_leave_are_bound_apart_from_those_that_enter():
    """The bound for records that enter is above the best strategy for records that stay."""
    workload = Workload((4,), (product((4,), {}), product((4,), {0: Identity(4)})), (100.0, 1.0))
    V = gram(workload)
    within = select(workload, noises=["gaussian"], change="moves within")["gaussian"]
    reached = within.best.score**2 * weighted_queries(workload)
    assert reached < lower_bound(V).loss
    assert lower_bound(V, "moves within").loss <= reached * (1 + 1e-9)
    assert lower_bound(V, "moves").loss >= lower_bound(V).loss


@changes
@pytest.mark.parametrize("seed", range(6))
def test_a_bound_for_records_that_enter_gives_one_for_those_that_move(seed, change):
    """Never above the optimum, and near it where a record is a small part of the workload."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 9))
    factor = Prefix(n) if seed % 2 else Identity(n)
    G = gram(Workload((n,), (product((n,), {0: factor}),), (float(rng.uniform(0.1, 9)),)))
    optimum = moves_optimum(G.dense(), change).loss
    moved = moved_bound(lower_bound(G), G)
    assert moved is None or moved.loss <= optimum * (1 + 1e-6)
    wide = gram(Workload((64,), (product((64,), {0: Identity(64)}),), (1.0,)))
    moved, entering = moved_bound(lower_bound(wide), wide), lower_bound(wide)
    assert moved.loss > 0.9 * entering.loss


def test_a_wide_domain_is_bound_by_what_holds_for_records_that_enter():
    shape = (40, 40)
    V = gram(Workload(shape, (product(shape, {0: Identity(40), 1: Prefix(40)}),), (1.0,)))
    entering = lower_bound(V).loss
    for change in ("moves", "moves within"):
        assert 1.3 * entering < lower_bound(V, change).loss < 2 * entering


@pytest.mark.nightly
@changes
def test_the_largest_error_is_minimised_for_records_that_move_too(change):
    plain = select(MIXED, noises=["gaussian"], change=change)["gaussian"]
    tuned = select(MIXED, noises=["gaussian"], objective="max", change=change)["gaussian"]
    assert largest_standard_error(MIXED)
    assert tuned.best.error.max_std_error <= plain.best.error.max_std_error * (1 + 1e-9)
    if tuned.score_bound is not None:
        assert tuned.best.score**2 >= tuned.score_bound.loss * (1 - 1e-6)


def test_budgets_over_moves_are_proven_optimal():
    rng = np.random.default_rng(4)
    for _ in range(20):
        S, Q = rng.random(5) + 0.01, rng.random((9, 5)) * (rng.random((9, 5)) < 0.6)
        Q[0] += 0.01
        budgets = move_budgets(S, Q)
        assert (Q @ budgets.weights).max() <= 1 + 1e-9
        assert budgets.loss == pytest.approx((S / budgets.weights).sum())
        assert budgets.bound <= budgets.loss <= budgets.bound * 1.001
