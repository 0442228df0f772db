"""Goals: the least score is found to a certificate, and is never worse than without them."""

import math

import numpy as np
import pytest
from dense import dense_strategy, dense_workload, random_workload
from scipy.optimize import check_grad, minimize

from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.factors import Identity, Stacked, total
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.plan_file.plan import decode_strategy
from dpquery.strategy.algebra.query_powers import expand
from dpquery.strategy.bounds import svd_bound
from dpquery.strategy.expected_error import expected_error, squared_sensitivity
from dpquery.strategy.goals import (
    BudgetProblem,
    Limit,
    bounding_workload,
    even_shares,
    largest_standard_error,
    mixed,
    raised,
    reached_figure,
    row_classes,
    score,
    tuning_workload,
)
from dpquery.strategy.search.candidates import (
    Problem,
    goal_bound,
    marginals_candidate,
    residual_minimax,
    reweighted,
)
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.splits import CenteredCore

SHAPE = (4, 3, 2)
MIXED = Workload(
    SHAPE,
    (
        product(SHAPE, {0: Prefix(4), 1: Identity(3)}),
        product(SHAPE, {1: Stacked((Identity(3), total(3))), 2: Identity(2)}),
        product(SHAPE, {0: AllRanges(4)}),
        marginal(SHAPE, ()),
    ),
    (1.0, 2.0, 0.5, 1.0),
)
GOAL = (Limit("sd", (0, 3), 2.0), Limit("rmse", (1, 2), 0.5), Limit("sd", (2,), 1.0))
CORES = tuple(CenteredCore(n) for n in SHAPE)


def problem_of(workload, noise="gaussian"):
    return Problem(workload, gram(workload), noise, seed=0)


def dense_figures(strategy, workload, goal):
    """Every figure of a goal over its target, all variances by a dense pseudo-inverse."""
    A = dense_strategy(strategy.measurements).astype(float)
    W, _ = dense_workload(workload)
    peak = np.abs(A).max()
    C = W @ np.linalg.pinv(A / peak, rcond=1e-10) / peak  # of A'A the condition would be squared
    variances = (C**2).sum(axis=1) * squared_sensitivity(strategy)
    ends = np.cumsum([0, *(block.shape[0] for block in workload.blocks)])
    figures = []
    for limit in goal:
        chosen = np.concatenate([variances[ends[k] : ends[k + 1]] for k in limit.blocks])
        figure = chosen.max() if limit.figure == "sd" else chosen.mean()
        figures.append(math.sqrt(figure) / limit.target)
    return figures


def least_by_slsqp(problem):
    """The least squared score over budgets, by a general solver on the epigraph."""
    A = problem.matrix.toarray()
    start = np.append(np.zeros(A.shape[1]), math.log(A.sum(axis=1).max()))
    minimum = minimize(
        lambda z: z[-1] + math.log(np.exp(-z[:-1]).sum()),
        start,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda z: z[-1] - np.log(A @ np.exp(z[:-1]))},
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    return math.exp(minimum.fun)


@pytest.mark.parametrize("goal", [largest_standard_error(MIXED), GOAL], ids=["max", "targets"])
def test_the_best_budgets_are_those_of_a_general_solver_and_certified(goal):
    problem = BudgetProblem(MIXED, goal, CORES)
    solution = problem.solve()
    least = math.sqrt(least_by_slsqp(problem))
    assert solution.bound <= least * (1 + 1e-6)
    assert solution.score >= least * (1 - 1e-6)
    assert solution.score <= solution.bound * 1.001


def test_the_smoothed_score_has_the_gradient_it_says():
    problem = BudgetProblem(MIXED, GOAL, CORES)
    x = np.random.default_rng(0).normal(size=len(problem.subsets))
    for t in (1.0, 4.0, 64.0):
        difference = check_grad(
            lambda x, t=t: problem.smoothed(x, t)[0], lambda x, t=t: problem.smoothed(x, t)[1], x
        )
        assert difference < 1e-5 * np.linalg.norm(problem.smoothed(x, t)[1])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_the_score_promised_is_that_of_the_integer_strategy_written_out(seed):
    rng = np.random.default_rng(seed)
    workload = random_workload(rng, attributes=3)
    places = tuple(range(len(workload.blocks)))
    goals = [largest_standard_error(workload), tuple(Limit("rmse", (k,), 1.0 + k) for k in places)]
    for goal in goals:
        proposal = residual_minimax(goal, problem_of(workload))
        error = expected_error(proposal.strategy, workload)
        reached = score(goal, error, workload)
        assert reached == pytest.approx(
            max(dense_figures(proposal.strategy, workload, goal)), rel=1e-6
        )
        bound = goal_bound(problem_of(workload), goal)
        assert reached >= math.sqrt(bound.loss) * (1 - 1e-9)
        read = decode_strategy(proposal.strategy.encode(), noise="gaussian", workload=workload)
        assert expected_error(read, workload) == error


@pytest.mark.parametrize("seed", range(4))
def test_for_marginals_the_largest_error_is_proven_optimal(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(2, 9, 4).tolist())
    blocks = tuple(
        marginal(shape, b) for b in [(), (0,), (1, 2), (0, 3), (1, 2, 3)] if rng.random() < 0.8
    )
    stacked = {i: Stacked((Identity(shape[i]), total(shape[i]))) for i in (0, 2)}
    for workload in (
        Workload(shape, (*blocks, marginal(shape, (2,))), (1.0,) * (len(blocks) + 1)),
        Workload(shape, (product(shape, stacked),), (1.0,)),
    ):
        goal = largest_standard_error(workload)
        selection = select(workload, noises=["gaussian"], objective="max")["gaussian"]
        ratio = selection.best.error.max_std_error / math.sqrt(selection.score_bound.loss)
        assert 1 - 1e-9 <= ratio < 1.001
        assert selection.best.score == score(goal, selection.best.error, workload)


@pytest.mark.parametrize(
    ("seed", "noise"), [*((k, "gaussian") for k in range(6)), (1, "laplace"), (4, "laplace")]
)
def test_a_goal_is_served_no_worse_than_by_strategies_for_the_rmse(seed, noise):
    workload = random_workload(np.random.default_rng(50 + seed), attributes=3, size=4)
    plain = select(workload, noises=[noise])[noise]
    for objective, targets in (("max", ()), ("rmse", (Limit("sd", (0,), 3.0),))):
        goal = targets or largest_standard_error(workload)
        selection = select(workload, noises=[noise], objective=objective, targets=targets)[noise]
        others = [candidate.error for candidate in plain.candidates if candidate.error is not None]
        assert selection.best.score <= min(score(goal, error, workload) for error in others)
        if selection.score_bound is not None:
            assert selection.best.score**2 >= selection.score_bound.loss * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_a_weighted_workload_is_at_most_the_score_of_any_strategy(seed):
    rng = np.random.default_rng(seed)
    even = even_shares(GOAL, MIXED)
    assert sum(part.mass for part in even) == pytest.approx(1)
    strategy = marginals_candidate(problem_of(MIXED)).strategy
    shares, mean = raised(even, GOAL, MIXED, strategy, power=float(rng.random()))
    reached = score(GOAL, expected_error(strategy, MIXED), MIXED)
    assert sum(part.mass for part in shares) == pytest.approx(1)
    assert all(vector.sum() == pytest.approx(1) for part in shares for vector in part.rows)
    for weights, figure in ((even, mean), (shares, None), (mixed(even, shares, 0.3), None)):
        bounding = bounding_workload(MIXED, GOAL, weights)
        error = expected_error(strategy, bounding)
        total = sum(
            w * block.total_squared for w, block in zip(bounding.weights, error.blocks, strict=True)
        )
        assert total <= reached**2 * (1 + 1e-9)
        assert svd_bound(gram(bounding)).loss <= total * (1 + 1e-9)
        if figure is not None:
            assert total == pytest.approx(figure)


def test_a_tuning_workload_keeps_every_block_in_its_place_and_weighs_its_queries():
    goal = (Limit("sd", (0,), 2.0), Limit("rmse", (0, 3), 4.0))
    shares = even_shares(goal, MIXED)
    tuned = tuning_workload(MIXED, goal, shares)
    assert [block.attributes for block in tuned.blocks] == [
        block.attributes for block in MIXED.blocks
    ]
    assert [block.shape for block in tuned.blocks] == [block.shape for block in MIXED.blocks]
    exact, kept = gram(bounding_workload(MIXED, goal, shares)).dense(), gram(tuned.select((0, 3)))
    assert kept.dense() == pytest.approx(exact)
    assert all(weight > 0 for weight in tuned.weights)


@pytest.mark.parametrize("seed", range(6))
def test_classes_of_queries_expand_to_every_query(seed):
    workload = random_workload(np.random.default_rng(seed), attributes=3)
    strategy = marginals_candidate(problem_of(workload)).strategy
    for k, block in enumerate(workload.blocks):
        terms = strategy.power_sums(block, position=k, order=2)
        classes = row_classes(block, terms)
        short = np.broadcast_to(expand(classes.terms), classes.shape)
        assert sum(len(count) for count in classes.counts) == sum(classes.shape)
        index = np.ix_(*classes.members) if classes.members else ()
        assert short[index] == pytest.approx(expand(terms, block.row_shape))


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_reweighting_brings_the_largest_error_of_an_optimiser_down(noise):
    workload = Workload(
        (6, 5, 4),
        tuple(marginal((6, 5, 4), b) for b in [(), (0,), (0, 1), (1, 2), (0, 1, 2)]),
        (1.0,) * 5,
    )
    goal = largest_standard_error(workload)
    plain = marginals_candidate(problem_of(workload, noise)).strategy
    tuned = reweighted(goal, marginals_candidate, problem_of(workload, noise)).strategy
    before = expected_error(plain, workload).max_std_error
    assert expected_error(tuned, workload).max_std_error < 0.6 * before


def test_a_figure_is_read_off_the_errors_of_its_blocks():
    strategy = residual_minimax(GOAL, problem_of(MIXED)).strategy
    error = expected_error(strategy, MIXED)
    ratios = [reached_figure(limit, error, MIXED) / limit.target for limit in GOAL]
    assert ratios == pytest.approx(dense_figures(strategy, MIXED, GOAL), rel=1e-6)
    assert score(GOAL, error, MIXED) == max(ratios)
