"""Choose a strategy for a workload: try every candidate, keep the best, prove how good it is.

Candidates are tried cheapest first: the closed forms whatever the clock says, then the searches,
until one is as good as proven optimal or a time limit is over, in CPU seconds, so that a busy
machine does not change a plan. A search that is stopped hands over its best so far; those that are
not begun are named with their reason.

Where there is a choice between two kinds of noise, both have their quick candidates first, and one
that is far from being taken then has no long searches (`Reach`).
"""

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, pthread_sigmask
from typing import TypeVar

from numpy.linalg import LinAlgError
from threadpoolctl import threadpool_limits

from dpquery.exceptions import OutOfTimeError, UnsupportedWorkloadError
from dpquery.operators.blocks import Workload
from dpquery.operators.gram import Gram, gram
from dpquery.progress import current_reporter, report_progress, reporting, stage, time_left
from dpquery.strategy.bounds import Bound, lower_bound
from dpquery.strategy.expected_error import ExpectedError, expected_error, weighted_queries
from dpquery.strategy.minimax import Goal, largest_standard_error, score
from dpquery.strategy.optimize.opt_residual import MAX_CORE
from dpquery.strategy.search.candidates import (
    SETTLED,
    Build,
    NoGainError,
    Problem,
    Proposal,
    cell_classes_candidate,
    factors_candidate,
    goal_bound,
    goal_candidates,
    marginals_candidate,
    orbits_candidate,
    product_candidate,
    residual_candidate,
    union_candidate,
)
from dpquery.strategy.search.closed_forms import (
    budgeted_fourier,
    budgeted_mechanism,
    identity,
    opt_h,
    parts_candidate,
    plain_mechanism,
)
from dpquery.strategy.strategy import Noise, Objective, RecordChange, Strategy, check_strategy_size

State = TypeVar("State")
Outcome = TypeVar("Outcome")


@contextmanager
def other_process() -> Iterator[ProcessPoolExecutor]:
    """Yield another process to work in, which ends with this one's work whatever becomes of it.

    A Ctrl-C reaches every process of a terminal. The other one is deaf to it, from its start on,
    and ended from here: what it would say of it is of no use to anybody. Linear algebra has one
    thread there, as in `plan`: threads that wait for each other take most of the time with small
    matrices, which a search is limited in, and sums come out otherwise on another machine.
    """
    spawned, others = multiprocessing.get_context("spawn"), multiprocessing.active_children()
    with ProcessPoolExecutor(
        1, mp_context=spawned, initializer=threadpool_limits, initargs=(1,)
    ) as executor:
        before = pthread_sigmask(SIG_BLOCK, {SIGINT})
        try:
            executor.submit(int).add_done_callback(lambda _: None)  # starts it, with this mask
        finally:
            pthread_sigmask(SIG_SETMASK, before)
        # Python 3.11 waits for ever for what is being sent to a process that has ended, as long as
        # this one could read it too: https://github.com/python/cpython/issues/109047
        executor._call_queue._reader.close()  # type: ignore[attr-defined]
        try:
            yield executor
        except BaseException:
            for process in set(multiprocessing.active_children()) - {*others}:
                process.terminate()
            raise


def side_by_side(
    work: Callable[[State], Outcome], states: Sequence[State], beside: ProcessPoolExecutor | None
) -> list[Outcome]:
    """Return what is made of each state: of the last in another process, where there is one."""
    if beside is None:
        return [work(state) for state in states]
    other = beside.submit(work, states[-1])
    done = [*map(work, states[:-1])]
    report_progress("waiting for the other kind of noise")
    return [*done, other.result()]


Builds = tuple[tuple[str, Build], ...]
CLOSED_FORMS: Builds = (
    ("Identity", identity),
    ("Workload", plain_mechanism),
    ("Workload+", budgeted_mechanism),
    ("Fourier+", budgeted_fourier),
)
"""Tried whatever the clock says."""
SEARCHES: Builds = (
    ("OPT_R", residual_candidate),
    ("OPT_M", marginals_candidate),
    ("OPT_H", opt_h),
    ("OPT_S", orbits_candidate),
    ("OPT_x", product_candidate),
    ("OPT_C", cell_classes_candidate),
    ("Parts", parts_candidate),
    ("OPT_F", factors_candidate),
    ("OPT_+", union_candidate),
)
"""Cheapest first, and before those that take as long what most often ends at the bound.

A new optimiser is one function here and one line in this table.
"""
SEARCH_ROUNDS = (SEARCHES[:4], SEARCHES[4:7], SEARCHES[7:8], SEARCHES[8:])
"""Quick searches and three rounds of long ones: both kinds of noise are compared between them.

In the second round one kind follows the other, and is compared with what that has found.
"""
LEADS = (math.inf, 2.0, 1.6, 1.4)
"""Times that searches from a round on lower an error: beside Parts, 1.5 at most where measured, and
OPT_+ 1.2 at most.
"""
UNTIMED = {name for name, _ in CLOSED_FORMS} | {"Parts"}
"""Candidates that are tried whatever the clock says."""
CONTAINED_IN: dict[tuple[str, Noise], str] = {
    (name, "gaussian"): "OPT_R" for name in ("OPT_M", "OPT_H")
}
"""Searches whose every strategy has the Gram of one that another search looks through ([MATH] 7).

Under Gaussian noise the Gram says all: the error and what a record changes. Trees are among the
cores of attributes that OPT_R has cores for.
"""

LONG_ATTRIBUTE, LONG_WORKLOAD = 96, 32  # classes of an attribute, blocks: seconds of search
AS_GOOD = "is as good as proven optimal"
PROVEN_OPTIMAL = f"another one {AS_GOOD}"
LEFT_OUT = "left out: "
FAR = f"{LEFT_OUT}such noise is far from being taken at this epsilon; --search-both searches it too"
Flaw = Callable[[Strategy], str]
"""What is wrong with the answers that a strategy would give, in words; nothing if it is sound."""


def unchecked(strategy: Strategy) -> str:
    """Return that a strategy has no flaw, without looking for one."""
    return ""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One compared strategy; `proposal` and `error` are None where it does not apply, and why not.

    `stopped` says that the time limit cut its search short: it may have a strategy all the same,
    the best of what was searched. `LEFT_OUT` before the reason says that its answers would have a
    flaw. `score` is what is minimised, `sound` says that its answers were checked. `bound` is a
    lower bound on any loss, or 0, with a proposal or without one.
    """

    name: str
    proposal: Proposal | None
    error: ExpectedError | None
    reason: str = ""
    stopped: bool = False
    score: float = math.inf
    sound: bool = False
    bound: float = 0.0


@dataclass(frozen=True, eq=False)
class Selection:
    """The outcome for one kind of noise."""

    noise: Noise  # the kind of noise
    candidates: tuple[Candidate, ...]  # all that were compared, in the order tried
    best: Candidate  # the one with the least objective
    bound: Bound | None  # a proven lower bound on the weighted loss, where one is known
    score_bound: Bound | None  # a proven lower bound on the square of any score, where one is known
    # what one record does between neighbours: sensitivities are of that
    change: RecordChange = "enters"


Reach = Callable[[Selection, Selection, float], float]
"""How far one kind of noise is from being taken in place of another, by what both have so far.

It is not taken unless its score falls below so many times what it is: from 1 on it may be. The last
argument is how many times searches may still lower it.
"""


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
    reach: Reach | None = None,
    proving: bool = True,
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
        reach: which kind of noise is worth its long searches; without it both are.
        proving: whether dual bounds are worked out: seconds; or the SVD bound alone.
    """
    order = sorted(noises)  # Gaussian first: it is the quicker one, and stays in this process
    goal = targets or (largest_standard_error(workload) if objective == "max" else ())
    V = gram(workload)
    bound = lower_bound(V, change, proving=proving)
    search = _Search(workload, V, goal, seed, time_limit, bound, flaw_of, change, items)
    parallel = jobs > 1 and len(order) > 1 and _takes_long(workload)
    turns = 1 if parallel else len(order)
    states = [search.begun(noise, turn % turns, turns) for turn, noise in enumerate(order)]
    compared = reach if len(order) > 1 else None
    with other_process() if parallel else nullcontext() as beside:
        tables = _rounds(goal)
        rounds = zip(tables, LEADS, strict=True) if compared else ((sum(tables, ()), math.inf),)
        for turn, (table, lead) in enumerate(rounds):
            searched = partial(search.searched, table=table)
            if compared and turn > 0:
                states = search.compared(states, compared, lead)
            if compared and turn == 1:
                first, second = states
                first, second = search.compared([searched(first), second], compared, lead)
                states = [first, searched(second)]
            else:
                states = side_by_side(searched, states, beside)
        selections = side_by_side(search.selection, states, beside)
    ordered = sorted(selections, key=lambda selection: noises.index(selection.noise))
    return {selection.noise: selection for selection in ordered}


def _rounds(goal: Goal) -> tuple[Builds, ...]:
    """Return the rounds of searches with the candidates that a goal adds: two of them are quick."""
    (quick, long, longest, last), added = SEARCH_ROUNDS, goal_candidates(goal)
    return (*quick, *added[:2]), long, (*longest, *added[2:]), last


def _takes_long(workload: Workload) -> bool:
    """Return whether a second process repays its start, of about a second."""
    return max(workload.shape_of_domain) > LONG_ATTRIBUTE or len(workload.blocks) > LONG_WORKLOAD


@dataclass(frozen=True, eq=False)
class _State:
    """What was tried so far for one kind of noise: a value that another process can be given."""

    problem: Problem  # with the selections that several candidates start from
    candidates: tuple[Candidate, ...] = ()  # in the order tried
    seconds: float = 0.0  # CPU seconds that it took
    far: bool = False  # whether the kind of noise is far from being taken, see `Reach`
    worth_below: float = math.inf  # the loss below which it would not be
    turn: int = 0  # which kind of noise it is, of those that take turns in this process
    turns: int = 1  # how many do

    @property
    def words(self) -> str:
        return f"looking for the best strategy with {self.problem.noise.capitalize()} noise"

    def shares(self, table: Builds, searches: int) -> list[tuple[float, float]]:
        """Return where each search of a round lies in all of them; closed forms count as one."""
        tried = len(self.candidates) - len(CLOSED_FORMS) + 1 if self.candidates else 0
        here = len(table) + (not self.candidates)
        start = tried * self.turns + self.turn * here
        whole = self.turns * (searches + 1)
        return [((start + k) / whole, (start + k + 1) / whole) for k in range(here)]

    @property
    def least_score(self) -> float:
        return min(candidate.score for candidate in self.candidates)

    def checked(self, flaw_of: Flaw) -> "_State":
        return replace(self, candidates=tuple(_sound(self.candidates, flaw_of)))


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

    def begun(self, noise: Noise, turn: int, turns: int) -> "_State":
        problem = Problem(
            self.workload, self.gram, noise, self.seed, change=self.change, items=self.items
        )
        return _State(problem, turn=turn, turns=turns)

    def searched(self, state: "_State", *, table: Builds) -> "_State":
        with self._limited(state) as clock:
            problem, candidates = state.problem, list(state.candidates)
            ends = iter(state.shares(table, sum(map(len, _rounds(self.goal)))))
            if not candidates:
                with stage(state.words, *next(ends)):
                    candidates = [self._tried(name, build, problem) for name, build in CLOSED_FORMS]
            for name, build in table:
                least = min(self._least_loss(candidates), state.worth_below)
                problem = problem.knowing(least)
                with stage(state.words, *next(ends)):
                    candidates = self._with(name, build, problem, candidates, state.far)
        return replace(state, problem=problem, candidates=tuple(candidates), seconds=clock())

    def compared(self, states: Sequence["_State"], reach: Reach, lead: float) -> list["_State"]:
        """Return the states of two kinds of noise with what each has to reach to be taken."""
        if any(state.least_score == math.inf for state in states):
            return list(states)
        first, second = map(self._best, states)
        shares = reach(first, second, lead), reach(second, first, lead)
        for k, share in enumerate(shares):
            other = min(states[1 - k].candidates, key=lambda candidate: candidate.score)
            if share < 1 and not other.sound:  # by answers that may have a flaw
                checked = list(states)
                checked[1 - k] = states[1 - k].checked(self.flaw_of)
                return self.compared(checked, reach, lead)
        return [self._within(*pair) for pair in zip(states, shares, strict=True)]

    def _within(self, state: "_State", share: float) -> "_State":
        """Return a state of which the score is to fall below a share of what it is."""
        if share >= 1:
            return replace(state, far=False, worth_below=math.inf)
        worth_below = share**2 * self._least_loss(state.candidates)
        return replace(state, far=True, worth_below=worth_below)

    def selection(self, state: "_State") -> Selection:
        """Return the outcome, after the candidates that a goal adds.

        Of a kind of noise that is far from being taken no answers are tried: a release tries those
        of what it takes, before it is charged.
        """
        with self._limited(state):
            problem, candidates = state.problem, list(state.candidates)
            if not state.far:
                candidates = self._instead(problem, _sound(candidates, self.flaw_of))
            bound = _best_bound(candidates, self.bound, self.change)
            return _best(candidates, problem, bound, self._score_bound(bound))

    def _score_bound(self, bound: Bound | None) -> Bound | None:
        """Return the best bound on the square of the score; no largest error is below an RMSE."""
        queries = weighted_queries(self.workload)
        mean = None if bound is None else Bound(bound.loss / queries, bound.kind)
        if not self.goal:
            return mean
        known = [mean] if self.goal == largest_standard_error(self.workload) else []
        with suppress(OutOfTimeError):  # the bound that is known stands
            known.append(self._goal_bound)
        return max((bound for bound in known if bound), key=lambda bound: bound.loss, default=None)

    @cached_property
    def _goal_bound(self) -> Bound | None:
        return goal_bound(self.begun("gaussian", 0, 1).problem, self.goal)

    def _best(self, state: "_State") -> Selection:
        bound = _best_bound(state.candidates, self.bound, self.change)
        return _best(state.candidates, state.problem, bound, None)

    @contextmanager
    def _limited(self, state: "_State") -> Iterator[Callable[[], float]]:
        """Refuse to go on once the time limit is over; yields the CPU seconds taken in all."""
        begun, reporter = time.process_time() - state.seconds, current_reporter()

        def seconds() -> float:
            return time.process_time() - begun

        def tell_in_time(text: str) -> None:
            if seconds() > self.time_limit:
                raise OutOfTimeError(f"not finished within {self.time_limit:g} CPU seconds")
            reporter(text)

        with reporting(tell_in_time):
            yield seconds

    def _with(
        self, name: str, build: Build, problem: Problem, candidates: list[Candidate], far: bool
    ) -> list[Candidate]:
        """Return the candidates and one more; nothing is searched for that could not win."""
        if far and name not in UNTIMED:
            return [*candidates, Candidate(name, None, None, FAR)]
        if self._why_not(name, problem, candidates).endswith(AS_GOOD):
            candidates = _sound(candidates, self.flaw_of)
        if reason := self._why_not(name, problem, candidates):
            return [*candidates, Candidate(name, None, None, reason)]
        if name in dict(goal_candidates(self.goal)):
            problem = replace(problem, least_score=min(each.score for each in candidates))
        return [*candidates, self._tried(name, build, problem)]

    def _instead(self, problem: Problem, candidates: list[Candidate]) -> list[Candidate]:
        """Return the candidates with those searched that were left to one that has a flaw."""
        builds = dict(SEARCHES)
        flawed = {c.name for c in candidates if c.reason.startswith(LEFT_OUT)}
        left = {c.name for c in candidates if CONTAINED_IN.get((c.name, problem.noise)) in flawed}
        if not left:
            return candidates
        tried = [
            self._tried(c.name, builds[c.name], problem) if c.name in left and not c.proposal else c
            for c in candidates
        ]
        return _sound(tried, self.flaw_of)

    def _why_not(self, name: str, problem: Problem, candidates: Sequence[Candidate]) -> str:
        bound = _best_bound(candidates, self.bound, self.change)
        if self.goal:
            least = self._score_bound(bound) if name in dict(goal_candidates(self.goal)) else None
            best = min(candidates, key=lambda candidate: candidate.score)
            is_settled = least and best.score <= math.sqrt(least.loss) * (1 + SETTLED)
            return f"{best.name} {AS_GOOD}" if is_settled else ""
        if bound and self._least_loss(candidates) <= bound.loss * (1 + SETTLED):
            return PROVEN_OPTIMAL
        wider = CONTAINED_IN.get((name, problem.noise))
        if name == "OPT_H" and max(self.workload.shape_of_domain) > MAX_CORE:
            return ""
        if any(c.name == wider and c.proposal and not c.stopped for c in candidates):
            return f"contained in what {wider} searches"
        return ""

    def _least_loss(self, candidates: Sequence[Candidate]) -> float:
        if self.goal:
            return math.inf
        queries = weighted_queries(self.workload)
        rmses = [candidate.error.weighted_rmse for candidate in candidates if candidate.error]
        return queries * min(rmses, default=math.inf) ** 2

    def _tried(self, name: str, build: Build, problem: Problem) -> Candidate:
        """Return what a candidate makes of a problem; once time is over, only of a quick one."""
        quick = name in UNTIMED
        if not time_left(name) and not quick:
            reason = f"not finished within {self.time_limit:g} CPU seconds"
            return Candidate(name, None, None, reason, stopped=True)
        candidate = _try(name, build, problem, self.goal)
        if candidate.proposal is None or quick or time_left(name):
            return candidate
        return replace(candidate, stopped=True)


def _try(name: str, build: Build, problem: Problem, goal: Goal) -> Candidate:
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
    least = score(goal, error, problem.workload) if goal else error.weighted_rmse
    return Candidate(proposal.strategy.name, proposal, error, score=least, bound=proposal.bound)


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
