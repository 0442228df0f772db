"""OPT_F: its gradients, its closed forms against dense twins, and that it contains the others."""

import math

import numpy as np
import pytest
from dense import MIXED, dense_strategy, dense_workload, random_workload
from scipy.optimize import check_grad

from dpquery.exceptions import OutOfTimeError, UnsupportedWorkloadError
from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.factors import Identity, Stacked, total
from dpquery.operators.gram import gram
from dpquery.operators.ranges import Prefix
from dpquery.operators.trees import Tree
from dpquery.plan_file.plan import decode_strategy
from dpquery.progress import reporting
from dpquery.strategy.expected_error import expected_error, weighted_queries
from dpquery.strategy.optimize.opt_factors import FactorsProblem, check_optimisable, opt_factors
from dpquery.strategy.search.candidates import Problem, factors_candidate

SHAPE = MIXED.shape_of_domain


def problem_of(workload):
    return Problem(workload, gram(workload), "laplace", seed=0)


def optimised(workload, *, max_cells=1e8):
    problem = problem_of(workload)
    return problem, opt_factors(
        problem.gram,
        rng=np.random.default_rng(0),
        max_cells=max_cells,
        marginals=problem.marginals,
        product=problem.product,
    )


def a_point(seed=1):
    """A problem, weights of all subsets and a root for two of the three attributes."""
    problem, rng = FactorsProblem(gram(MIXED), max_cells=1e8), np.random.default_rng(seed)
    theta = rng.random(len(problem.lattice)) + 0.1
    return problem, theta, {0: rng.random((2, 5)), 1: rng.random((1, 4))}


def dense_loss(A, workload):
    """sensitivity^2 tr((A'A)^+ V), everything written out."""
    A = A / np.abs(A).sum(axis=0).max()
    W, w = dense_workload(workload)
    return float(np.trace(np.linalg.pinv(A.T @ A, rcond=1e-12) @ W.T @ (w[:, None] * W)))


def test_the_gradient_is_that_of_the_loss():
    problem, theta, roots = a_point()
    ends = np.cumsum([len(theta), *(root.size for root in roots.values())])

    def unpacked(flat):
        first, *pieces = np.split(flat, ends[:-1])
        return first, {i: p.reshape(roots[i].shape) for i, p in zip(roots, pieces, strict=True)}

    def slope(flat):
        _, by_theta, by_roots = problem.loss(*unpacked(flat))
        return np.concatenate([by_theta, *(root.ravel() for root in by_roots.values())])

    flat = np.concatenate([theta, *(root.ravel() for root in roots.values())])
    difference = check_grad(lambda x: problem.loss(*unpacked(x))[0], slope, flat, seed=0)
    assert difference < 1e-5 * np.linalg.norm(slope(flat))


def test_the_loss_is_the_dense_one():
    problem, theta, roots = a_point()
    factors = [np.eye(n) for n in SHAPE]
    for i, root in roots.items():
        factors[i] = np.vstack([np.eye(SHAPE[i]), root]) / (1 + root.sum(axis=0))
    rows = []
    for b, row in problem.place.items():
        matrix = np.ones((1, 1))
        for i, n in enumerate(SHAPE):
            matrix = np.kron(matrix, factors[i] if i in b else np.ones((1, n)))
        rows.append(theta[row] * matrix)
    expected = dense_loss(np.vstack(rows), MIXED)
    assert math.exp(problem.loss(theta, roots)[0]) == pytest.approx(expected, rel=1e-4)


def test_weights_that_leave_a_table_unmeasured_have_infinite_loss():
    problem, theta, roots = a_point()
    value, by_theta, by_roots = problem.loss(0 * theta, roots)
    assert value == math.inf
    assert not by_theta.any()
    assert not any(root.any() for root in by_roots.values())


@pytest.mark.parametrize("seed", range(8))
def test_it_is_never_worse_than_products_and_marginals(seed):
    workload = random_workload(np.random.default_rng(200 + seed), attributes=3, size=5)
    problem, selection = optimised(workload)
    assert selection.loss <= problem.marginals.loss * (1 + 1e-5)
    # Its factors are p-Identities: products of trees are OPT_x alone.
    trees = any(isinstance(factor, Tree) for factor in problem.product.factors)
    assert selection.loss <= problem.product.loss * (1 + (5e-3 if trees else 1e-5))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [None, 1, 4, 13, 18])
def test_the_integer_strategy_has_the_dense_loss_and_what_the_optimiser_promised(seed):
    workload = MIXED
    if seed is not None:
        workload = random_workload(np.random.default_rng(seed), attributes=3)
    strategy = factors_candidate(problem_of(workload)).strategy
    error = expected_error(strategy, workload)
    loss = error.weighted_rmse**2 * weighted_queries(workload)
    A = dense_strategy(strategy.measurements).astype(float)
    assert loss == pytest.approx(dense_loss(A, workload), rel=1e-3)
    assert loss == pytest.approx(optimised(workload)[1].loss, rel=2e-3)
    again = decode_strategy(strategy.encode(), noise="laplace", workload=workload)
    assert expected_error(again, workload).rmse == pytest.approx(error.rmse, rel=1e-9)


def test_overlapping_factors_beat_both_products_and_cells():
    """Ranges of one attribute beside tables of others: neither family alone is good at it."""
    shape = (32, 32, 8)
    blocks = (
        product(shape, {0: Prefix(32), 1: Prefix(32)}),
        product(shape, {0: Prefix(32), 2: Identity(8)}),
    )
    problem, selection = optimised(Workload(shape, blocks, (1.0, 1.0)))
    assert selection.loss < 0.8 * min(problem.marginals.loss, problem.product.loss)
    assert set(selection.factors) <= {0, 1, 2}
    for factor in selection.factors.values():
        assert factor.column_norms(1) == pytest.approx(np.ones(factor.shape[1]))


def test_a_table_of_too_many_cells_is_not_measured():
    _, selection = optimised(MIXED, max_cells=20)
    assert all(math.prod(SHAPE[i] for i in b) <= 20 for b in selection.weights)
    with pytest.raises(UnsupportedWorkloadError, match="cells"):
        optimised(MIXED, max_cells=19)


@pytest.mark.parametrize(
    ("workload", "other"),
    [
        (Workload((9, 1), (product((9, 1), {0: Prefix(9)}),), (1.0,)), "OPT_0"),
        (Workload((3, 4), (marginal((3, 4), [0, 1]), marginal((3, 4), [1])), (1.0, 2.0)), "OPT_M"),
        (
            Workload((3, 4), (product((3, 4), {0: Stacked((Identity(3), total(3)))}),), (1.0,)),
            "OPT_M",
        ),
    ],
)
def test_where_it_is_another_candidate_no_time_is_spent(workload, other):
    with pytest.raises(UnsupportedWorkloadError, match=f"the same as {other}"):
        check_optimisable(gram(workload))


def test_stopped_while_it_descends_it_hands_over_what_it_has_reached():
    messages = []

    def stop(text):
        messages.append(text)
        if sum("OPT_F" in message for message in messages) >= 30:
            raise OutOfTimeError

    with reporting(stop):
        proposal = factors_candidate(problem_of(MIXED))
    assert sum("OPT_F" in message for message in messages) < 60
    assert proposal.strategy.serves(MIXED)
