"""Choose a strategy for a workload: try every candidate, keep the best, prove how good it is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpquery.exceptions import OutOfTimeError, UnsupportedWorkloadError
from dpquery.operators.blocks import Workload
from dpquery.operators.gram import gram
from dpquery.strategy.bounds import Bound, svd_bound
from dpquery.strategy.candidates import CANDIDATES
from dpquery.strategy.expected_error import ExpectedError, expected_error
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.problem import Found, Problem
from dpquery.strategy.strategies import Strategy

MAX_TOTAL = 1 << 27  # cells of all tables of a strategy, half of what can be tabulated
Objective = Literal["rmse", "max"]


@dataclass(frozen=True, eq=False)
class Candidate:
    """One compared strategy; `found` and `error` are None where it does not apply, and why not."""

    name: str
    found: Found | None
    error: ExpectedError | None
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Selection:
    """The outcome for one kind of noise.

    Attributes:
        noise: the kind of noise.
        candidates: all that were compared, in the order tried.
        best: the one with the least objective.
        bound: a proven lower bound on the weighted loss, where one is known.
    """

    noise: Noise
    candidates: tuple[Candidate, ...]
    best: Candidate
    bound: Bound | None


def select(
    workload: Workload,
    *,
    noises: Sequence[Noise],
    objective: Objective = "rmse",
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Mapping[Noise, Selection]:
    """Select the best strategy for each kind of noise.

    Args:
        workload: what is asked, over classes of codes.
        noises: "laplace", "gaussian" or both.
        objective: "rmse" (weighted by item) or "max", the largest standard error.
        seed: of the optimisers' starting points; nothing private ever sees it.
        progress: told what is being tried.
    """
    return {noise: _select(workload, noise, objective, seed, progress) for noise in noises}


def _select(
    workload: Workload,
    noise: Noise,
    objective: Objective,
    seed: int,
    progress: Callable[[str], None],
) -> Selection:
    V = gram(workload)
    problem = Problem(workload, V, noise, seed, progress)
    candidates = []
    for name, build in CANDIDATES:
        progress(f"{noise}: {name}")
        try:
            found = build(problem)
            _check_size(found.strategy)
            error = expected_error(found.strategy, workload)
        except (UnsupportedWorkloadError, OutOfTimeError) as reason:
            candidates.append(Candidate(name, None, None, str(reason)))
            continue
        candidates.append(Candidate(found.strategy.name, found, error))
    scores = [_score(candidate, objective) for candidate in candidates]
    best = candidates[int(np.argmin(scores))]
    if best.found is None:
        reasons = "; ".join(f"{own.name}: {own.reason}" for own in candidates)
        raise UnsupportedWorkloadError(f"no strategy fits this workload ({reasons})")
    bounds = [svd_bound(V)] + [
        Bound(own.found.bound, "dual bound") for own in candidates if own.found and own.found.bound
    ]
    known = [bound for bound in bounds if bound is not None]
    return Selection(noise, tuple(candidates), best, max(known, key=lambda b: b.loss, default=None))


def _check_size(strategy: Strategy) -> None:
    """Refuse strategies whose tables, or noisy answers, together are too many to hold."""
    blocks = [own.block for own in strategy.measurements]
    cells = sum(math.prod(block.table_shape) for block in blocks)
    rows = sum(block.shape[0] for block in blocks)
    if max(cells, rows) > MAX_TOTAL:
        raise UnsupportedWorkloadError(f"tables of {float(max(cells, rows)):.1e} cells in all")


def _score(candidate: Candidate, objective: Objective) -> float:
    if candidate.error is None:
        return float("inf")
    error = candidate.error
    return error.weighted_rmse if objective == "rmse" else error.max_std_error
