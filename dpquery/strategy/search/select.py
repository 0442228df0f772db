"""Choose a strategy for a workload: try every candidate, keep the best, prove how good it is.

Candidates are tried cheapest first within a time limit, in CPU seconds, so that a busy machine does
not change a plan. One that is stopped is named with its reason; the rest stand.
"""

import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from dpquery.exceptions import OutOfTimeError, UnsupportedWorkloadError
from dpquery.operators.blocks import Workload
from dpquery.operators.gram import Gram, gram
from dpquery.progress import Reporter, current_reporter, reporting, time_left
from dpquery.strategy.bounds.lower_bounds import Bound, lower_bound
from dpquery.strategy.errors.expected_error import weighted_queries
from dpquery.strategy.goals.goals import Goal, largest_standard_error
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.objectives import Objective
from dpquery.strategy.record_changes import RecordChange
from dpquery.strategy.search.attempts import (
    NOT_TRIED,
    Candidate,
    Named,
    attempt,
    best_of,
    not_needed,
)
from dpquery.strategy.search.candidates import CANDIDATES, QUICK_CANDIDATES
from dpquery.strategy.search.cell_classes_candidate import cell_classes_candidate
from dpquery.strategy.search.goal_candidates import SETTLED, goal_bound, goal_candidates
from dpquery.strategy.search.parts import parts_candidate
from dpquery.strategy.search.problem import Problem
from dpquery.strategy.shapes.strategies import Strategy

LONG_ATTRIBUTE, LONG_WORKLOAD = 128, 64  # classes of an attribute, blocks: seconds of search
LEFT_OUT = "left out: "
PARTS_NAME, CELLS_NAME = "Parts", "OPT_C"
FIRST_LONG = "OPT_x"  # the first of the candidates that may take minutes: the parts go before it
Flaw = Callable[[Strategy], str]
"""What is wrong with the answers that a strategy would give, in words; nothing if it is sound."""


def unchecked(strategy: Strategy) -> str:
    """Return that a strategy has no flaw, without looking for one."""
    return ""


def _compared() -> tuple[Named, ...]:
    """Return all candidates in the order in which they are tried."""
    place = [name for name, _ in CANDIDATES].index(FIRST_LONG)
    parts, cells = (PARTS_NAME, parts_candidate), (CELLS_NAME, cell_classes_candidate)
    return (*CANDIDATES[:place], parts, *CANDIDATES[place:], cells)


COMPARED = _compared()


@dataclass(frozen=True, eq=False)
class Selection:
    """The outcome for one kind of noise.

    Attributes:
        noise: the kind of noise.
        candidates: all that were compared, in the order tried.
        best: the one with the least objective.
        bound: a proven lower bound on the weighted loss, where one is known.
        score_bound: a proven lower bound on the square of any score, where one is known.
        change: what one record does between neighbours: sensitivities are of that.
    """

    noise: Noise
    candidates: tuple[Candidate, ...]
    best: Candidate
    bound: Bound | None
    score_bound: Bound | None
    change: RecordChange = "enters"


def select(
    workload: Workload,
    *,
    noises: Sequence[Noise],
    objective: Objective = "rmse",
    targets: Goal = (),
    seed: int = 0,
    time_limit: float = math.inf,
    jobs: int = 1,
    flaw_of: Flaw = unchecked,
    change: RecordChange = "enters",
    items: tuple[Sequence[int], ...] = (),
) -> Mapping[Noise, Selection]:
    """Select the best strategy for each kind of noise.

    Args:
        workload: the queries, over classes of codes.
        noises: "laplace", "gaussian" or both.
        objective: "rmse" (weighted by item) or "max", the largest standard error.
        targets: figures to keep below targets; given any, they are the objective.
        seed: of the optimisers' starting points; nothing private ever sees it.
        time_limit: CPU seconds for each kind of noise; candidates still at work then are left out.
        jobs: processes to use; each kind of noise takes one at most.
        flaw_of: put to the best candidate; where it finds a flaw the next one is the best. A
            function that another process can be given.
        change: what one record does between neighbours.
        items: the places of the blocks of every item; none where each block is one.
    """
    order = sorted(noises)  # Gaussian first: it is the quicker one, and stays in this process
    goal = targets or (largest_standard_error(workload) if objective == "max" else ())
    V = gram(workload)
    search = _Search(
        workload, V, goal, seed, time_limit, lower_bound(V, change), flaw_of, change, items
    )
    if jobs < 2 or len(order) < 2 or not _takes_long(workload):
        selections = [search(noise) for noise in order]
    else:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as beside:
            other = beside.submit(search, order[1])
            selections = [search(order[0]), other.result()]
    return {
        selection.noise: selection
        for selection in sorted(selections, key=lambda selection: noises.index(selection.noise))
    }


def _takes_long(workload: Workload) -> bool:
    """Return whether a second process repays its start, of about a second."""
    return max(workload.shape_of_domain) > LONG_ATTRIBUTE or len(workload.blocks) > LONG_WORKLOAD


@dataclass(frozen=True, eq=False)
class _Search:
    """The search for one kind of noise: a value that another process can be given."""

    workload: Workload
    gram: Gram
    goal: Goal
    seed: int
    time_limit: float
    bound: Bound | None
    flaw_of: Flaw
    change: RecordChange
    items: tuple[Sequence[int], ...]

    def __call__(self, noise: Noise) -> Selection:
        end, reporter = time.process_time() + self.time_limit, current_reporter()

        def tell(text: str) -> None:
            reporter(f"{noise}: {text}")

        def tell_in_time(text: str) -> None:
            if time.process_time() > end:
                raise OutOfTimeError(f"not finished within {self.time_limit:g} CPU seconds")
            tell(text)

        with reporting(tell_in_time):
            return self._selected(noise, tell)

    def _selected(self, noise: Noise, tell: Reporter) -> Selection:
        problem = Problem(
            self.workload, self.gram, noise, self.seed, change=self.change, items=self.items
        )
        candidates = self._compared(problem)
        bound = _best_bound(candidates, self.bound, self.change)
        score_bound = _score_bound(problem, self.goal, bound)
        for name, build in goal_candidates(self.goal):
            tell(name)
            best = min(candidates, key=lambda candidate: candidate.score)
            if score_bound and best.score <= math.sqrt(score_bound.loss) * (1 + SETTLED):
                reason = f"{best.name} is as good as proven optimal"
                candidates.append(Candidate(name, None, None, reason))
                continue
            within = replace(problem, least_score=best.score)
            candidate = attempt(name, build, within, self.goal)
            candidates = _sound([*candidates, candidate], self.flaw_of)
        return _best(candidates, problem, bound, score_bound)

    def _compared(self, problem: Problem) -> list[Candidate]:
        """Return all candidates for the weighted RMSE; those that cannot be the best with no error.

        Quick ones take no notice of the clock, and the parts always have something to hand over.
        """
        candidates: list[Candidate] = []
        for number, (name, build) in enumerate(COMPARED):
            in_time = time_left(name)
            if number >= QUICK_CANDIDATES:
                candidates, reason = self._settled(candidates)
                if not (reason or in_time or name == PARTS_NAME):
                    reason = f"{NOT_TRIED}{self.time_limit:g} CPU seconds were over before"
                if reason:
                    candidates.append(Candidate(name, None, None, reason, stopped=not in_time))
                    continue
            candidates.append(
                attempt(name, build, _with_what_is_known(problem, name, candidates), self.goal)
            )
        return _sound(candidates, self.flaw_of)

    def _settled(self, candidates: list[Candidate]) -> tuple[list[Candidate], str]:
        """Return the candidates, and why no other one is needed: the best is sound, and proven."""
        bound = _best_bound(candidates, self.bound, self.change)
        if self.goal or bound is None:
            return candidates, ""
        least = math.sqrt(bound.loss / weighted_queries(self.workload))
        if not_needed(best_of(candidates), least):
            candidates = _sound(candidates, self.flaw_of)
        return candidates, not_needed(best_of(candidates), least)


def _with_what_is_known(problem: Problem, name: str, candidates: Sequence[Candidate]) -> Problem:
    """Return the problem with what others have reached, for the parts, OPT_+ and OPT_C."""
    if name in (PARTS_NAME, CELLS_NAME):
        errors = [candidate.error for candidate in candidates if candidate.error]
        least = min((error.weighted_rmse for error in errors), default=math.inf)
        queries = weighted_queries(problem.workload)
        return replace(problem, least_score=least, least_loss=queries * least**2)
    known = [c.proposal.strategy for c in candidates if c.name == PARTS_NAME and c.proposal]
    return replace(problem, before=known[0]) if known and name == "OPT_+" else problem


def _sound(candidates: Sequence[Candidate], flaw_of: Flaw) -> list[Candidate]:
    """Return the candidates with the best one checked; one with a flaw is replaced by the next."""
    checked = list(candidates)
    while True:
        place = min(range(len(checked)), key=lambda k: checked[k].score)
        best = checked[place]
        flaw = "" if best.proposal is None or best.sound else flaw_of(best.proposal.strategy)
        if not flaw:
            checked[place] = replace(best, sound=True)
            return checked
        checked[place] = Candidate(best.name, None, None, f"{LEFT_OUT}{flaw}")


def _best(
    candidates: Sequence[Candidate],
    problem: Problem,
    bound: Bound | None,
    score_bound: Bound | None,
) -> Selection:
    best = min(candidates, key=lambda candidate: candidate.score)
    if best.proposal is None:
        reasons = "; ".join(f"{candidate.name}: {candidate.reason}" for candidate in candidates)
        raise UnsupportedWorkloadError(f"no strategy fits this workload ({reasons})")
    return Selection(problem.noise, tuple(candidates), best, bound, score_bound, problem.change)


def _best_bound(
    candidates: Sequence[Candidate], bound: Bound | None, change: RecordChange
) -> Bound | None:
    """Return the best bound; those of candidates are for records that enter or leave."""
    if change == "moves within":
        return bound
    bounds = [bound] + [
        Bound(candidate.bound, "dual bound") for candidate in candidates if candidate.bound
    ]
    known = [bound for bound in bounds if bound is not None]
    return max(known, key=lambda bound: bound.loss, default=None)


def _score_bound(problem: Problem, goal: Goal, bound: Bound | None) -> Bound | None:
    """Return the best bound on the square of the score; the largest error is at least any RMSE."""
    queries = weighted_queries(problem.workload)
    mean = None if bound is None else Bound(bound.loss / queries, bound.kind)
    if not goal:
        return mean
    known = [mean] if goal == largest_standard_error(problem.workload) else []
    with suppress(OutOfTimeError):  # the bound that is known stands
        known.append(goal_bound(problem, goal))
    return max((bound for bound in known if bound), key=lambda bound: bound.loss, default=None)
