"""Candidates tried on a workload, one after the other: their strategies, or why there is none."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from numpy.linalg import LinAlgError

from dpquery.exceptions import OutOfTimeError, UnsupportedWorkloadError
from dpquery.progress import time_left
from dpquery.strategy.errors.expected_error import ExpectedError, expected_error
from dpquery.strategy.goals.goals import Goal, score
from dpquery.strategy.search.problem import NoGainError, Problem, Proposal
from dpquery.strategy.shapes.size_limits import check_strategy_size

PROVEN = 1e-3  # relative gap to a bound on every score at which no other candidate is tried
NOT_TRIED = "not tried: "
Build = Callable[[Problem], Proposal]
"""From a workload to one strategy for it, or UnsupportedWorkloadError."""
Named = tuple[str, Build]


@dataclass(frozen=True, eq=False)
class Candidate:
    """One compared strategy; `proposal` and `error` are None where it does not apply, and why not.

    `stopped` says that the time limit cut its search short: it may have a strategy all the same,
    the best of what was searched. `score` is what is minimised, `sound` says that its answers were
    checked. `bound` is a lower bound on any loss, or 0, with a proposal or without one.
    """

    name: str
    proposal: Proposal | None
    error: ExpectedError | None
    reason: str = ""
    stopped: bool = False
    score: float = math.inf
    sound: bool = False
    bound: float = 0.0


def attempt(name: str, build: Build, problem: Problem, goal: Goal = ()) -> Candidate:
    """Return what a candidate makes of a problem; the score is the weighted RMSE without a goal."""
    try:
        proposal = build(problem)
        check_strategy_size(proposal.strategy)
        error = expected_error(proposal.strategy, problem.workload, problem.change)
    except NoGainError as reason:
        return Candidate(name, None, None, str(reason), bound=reason.bound)
    except UnsupportedWorkloadError as reason:
        return Candidate(name, None, None, str(reason))
    except OutOfTimeError as reason:
        return Candidate(name, None, None, str(reason), stopped=True)
    except LinAlgError:
        return Candidate(name, None, None, "too ill-conditioned for floating-point numbers")
    return Candidate(
        proposal.strategy.name,
        proposal,
        error,
        stopped=not proposal.converged and not time_left(name),
        score=score(goal, error, problem.workload) if goal else error.weighted_rmse,
        bound=proposal.bound,
    )


def best_of(candidates: Iterable[Candidate]) -> Candidate:
    """Return the candidate with the least score."""
    return min(candidates, key=lambda candidate: candidate.score)


def not_needed(best: Candidate, least: float) -> str:
    """Return why no other candidate is tried, in words; nothing where one may be better.

    Args:
        best: of those that were tried.
        least: a score that is proven to be below every strategy's.
    """
    if best.score > least * (1 + PROVEN):
        return ""
    return f"{NOT_TRIED}cannot beat {best.name}, which is within {PROVEN:.1%} of the bound"
