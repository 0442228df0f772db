"""Candidates for a goal: strategies selected for weights of queries that lower the score.

The least score of a goal is the largest least weighted error over all weights of queries (minimax).
For cores and Gaussian noise the weights for fixed cores come from a convex problem (minimax.py) and
cores are selected anew for them, in turn. Any other candidate is selected for weights that go up
where its last strategy was worst. The best strategy of all rounds is kept, by its exact score.
"""

import math
from dataclasses import replace
from functools import partial

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_RESIDUAL_ATTRIBUTES
from dpquery.operators.gram import gram
from dpquery.progress import report_progress
from dpquery.strategy.bounds.lower_bounds import Bound, lower_bound, svd_bound
from dpquery.strategy.errors.expected_error import expected_error
from dpquery.strategy.goals.goals import Goal, score
from dpquery.strategy.goals.minimax import BudgetProblem, Budgets
from dpquery.strategy.goals.query_weights import (
    Share,
    bounding_workload,
    even_shares,
    raised,
    tuning_workload,
)
from dpquery.strategy.optimize.opt_residual import opt_residual
from dpquery.strategy.search.attempts import Build
from dpquery.strategy.search.candidates import (
    integer_core,
    marginals_candidate,
    product_candidate,
    union_candidate,
    with_free_total,
)
from dpquery.strategy.search.problem import Problem, Proposal, check_cells
from dpquery.strategy.shapes.cores import CenteredCore, Core
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.weighted_block import BITS, significant

REWEIGHTINGS = 8
PATIENCE = 2  # rounds without a better strategy
WORTH = 0.01  # relative gain below which a round was the last
SETTLED = 1e-3  # relative gap of score and weighted mean at which no weights help further


def goal_candidates(goal: Goal) -> tuple[tuple[str, Build], ...]:
    """Return the candidates that a goal adds, cheapest first; none where there is no goal."""
    if not goal:
        return ()
    return (
        ("OPT_R minimax", partial(residual_minimax, goal)),
        ("OPT_M minimax", partial(reweighted, goal, marginals_candidate)),
        ("OPT_x minimax", partial(reweighted, goal, product_candidate)),
        ("OPT_+ minimax", partial(reweighted, goal, union_candidate)),
    )


def starting_shares(problem: Problem, goal: Goal) -> list[Share]:
    """Return the best weights for centered cores under any noise; even ones where too many."""
    workload = problem.workload
    widest = max((len(block.attributes) for block in workload.blocks), default=0)
    if widest > MAX_RESIDUAL_ATTRIBUTES:
        return even_shares(goal, workload)
    shape = workload.shape_of_domain
    cores = tuple(CenteredCore(n) if n > 1 else None for n in shape)
    try:
        return BudgetProblem(workload, goal, cores).solve().shares
    except UnsupportedWorkloadError:
        return even_shares(goal, workload)


def goal_bound(problem: Problem, goal: Goal) -> Bound | None:
    """Return a proven lower bound on the square of the score of every strategy, if there is one."""
    workload = problem.workload
    V = gram(bounding_workload(workload, goal, even_shares(goal, workload)))
    known = [lower_bound(V, problem.change)]
    if problem.change == "enters" and svd_bound(V) is not None:
        shares = starting_shares(problem, goal)
        known.append(svd_bound(gram(bounding_workload(workload, goal, shares))))
    return max((bound for bound in known if bound), key=lambda bound: bound.loss, default=None)


def residual_minimax(goal: Goal, problem: Problem) -> Proposal:
    """OPT_R for a goal: the best budgets on the cores for the workload, or for even weights."""
    if problem.noise != "gaussian":
        raise UnsupportedWorkloadError("for Gaussian noise only")
    workload, shape = problem.workload, problem.workload.shape_of_domain
    best: tuple[Budgets, tuple[Core | None, ...]] | None = None
    for weighting in (workload, tuning_workload(workload, goal, even_shares(goal, workload))):
        selection = opt_residual(gram(weighting))
        for b in selection.subsets:
            check_cells([shape[i] for i in b])
        cores = tuple(integer_core(n, F) for n, F in zip(shape, selection.cores, strict=True))
        budgets = BudgetProblem(workload, goal, cores).solve()
        if best is None or budgets.score < best[0].score:
            best = budgets, cores
        if all(F is None for F in selection.cores):
            break
    if best is None:
        raise ValueError("no cores")
    weights = _integer_weights(best[0])
    if problem.change == "moves within":
        weights = with_free_total(weights, workload.shape_of_domain)
    return Proposal(
        ResidualStrategy("OPT_R minimax", problem.noise, best[1], weights),
        converged=best[0].score <= best[0].bound * (1 + SETTLED),
    )


def reweighted(goal: Goal, build: Build, problem: Problem) -> Proposal:
    """Return the best strategy of another candidate for weights that follow its worst queries."""
    workload = problem.workload
    shares = even_shares(goal, workload)
    best, least, latest, strategy = None, math.inf, 0, None
    for turn in range(REWEIGHTINGS):
        tuned = tuning_workload(workload, goal, shares)
        candidate = build(replace(problem, workload=tuned, gram=gram(tuned), before=strategy))
        strategy = candidate.strategy
        error = expected_error(candidate.strategy, workload, problem.change)
        reached = score(goal, error, workload)
        report_progress(f"{candidate.strategy.name} minimax round {turn + 1}: score {reached:.6g}")
        settled = least * (1 - WORTH) < reached < least
        if reached < least:
            best, least, latest = candidate, reached, turn
        if settled:
            break
        shares, mean = raised(
            shares,
            goal,
            workload,
            candidate.strategy,
            power=1 / (1 + turn),
            change=problem.change,
        )
        if reached**2 <= mean * (1 + SETTLED) or turn - latest >= PATIENCE:
            break
        if (
            mean >= problem.least_score**2
        ):  # no strategy of this kind scores less than it does on mean
            break
    if best is None:
        raise ValueError("at least one round")
    strategy = replace(best.strategy, name=f"{best.strategy.name} minimax")
    return replace(best, strategy=strategy, bound=0.0)


def _integer_weights(budgets: Budgets) -> dict[tuple[int, ...], int]:
    """Return integer weights in proportion to 1 / s_b."""
    scale = float(1 << BITS) * max(budgets.noise.values())
    return {b: significant(scale / noise) for b, noise in budgets.noise.items()}
