"""Selections whose figures know the public facts of a spec: what a release will state.

Strategies are searched for as if nothing were known. The best of them are then compared by the
errors of their answers given the facts, which a lower bound for any strategy does not know.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.operators.blocks import Workload
from dpquery.operators.compile import CompiledSpec
from dpquery.operators.public_facts import IMPOSSIBLE
from dpquery.releases.formatting import count
from dpquery.spec.model import Spec
from dpquery.strategy.errors.expected_error import expected_error
from dpquery.strategy.goals.goals import Goal, largest_standard_error, score
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.objectives import Objective
from dpquery.strategy.shapes.informed import UNSOLVABLE, InformedStrategy, informed
from dpquery.strategy.shapes.strategies import Strategy

if TYPE_CHECKING:
    from dpquery.strategy.search.select import Candidate, Flaw, Selection

COMPARED = 4  # strategies of each kind of noise, by their errors without the facts
KNOWN_WEIGHT = 1e-3  # of the weight of an item, where its answers are known
UNCORRECTED = "other answers are not corrected by it"
TOO_MANY = "what is known, times the answers, is too much to solve for; name less, or ask for less"
NOT_COMPARED = "errs more without the public facts than those that were compared with them"


def searched_workload(compiled: CompiledSpec) -> Workload:
    """Return the workload that strategies are searched for: what is known weighs next to nothing.

    It stays among what they answer, so that other answers can be corrected by it.
    """
    workload, facts = compiled.workload, compiled.facts
    if facts is None or not facts.known:
        return workload
    weights = [
        weight if facts.at(position) is None else KNOWN_WEIGHT * weight
        for position, weight in enumerate(workload.weights)
    ]
    return replace(workload, weights=tuple(weights))


def with_facts(
    selections: Mapping[Noise, "Selection"],
    compiled: CompiledSpec,
    objective: Objective,
    targets: Goal,
    flaw_of: "Flaw",
) -> Mapping[Noise, "Selection"]:
    """Return selections with the best strategy given the facts, and its errors given them.

    Args:
        selections: without the facts.
        compiled: the workload and the facts; where there are none nothing changes.
        objective: what was minimised.
        targets: or what was to be met.
        flaw_of: says what is wrong with a strategy's answers.
    """
    if compiled.facts is None:
        return selections
    largest = largest_standard_error(compiled.workload) if objective == "max" else ()
    goal = targets or largest
    return {
        noise: _informed(selection, compiled, goal, flaw_of)
        for noise, selection in selections.items()
    }


def _informed(
    selection: "Selection", compiled: CompiledSpec, goal: Goal, flaw_of: "Flaw"
) -> "Selection":
    found = [candidate for candidate in selection.candidates if candidate.proposal is not None]
    compared = sorted(found, key=lambda candidate: candidate.score)[:COMPARED]
    known = [_given_facts(each, selection, compiled, goal) for each in compared]
    others = tuple(
        replace(each, proposal=None, error=None, reason=each.reason or NOT_COMPARED, score=math.inf)
        for each in selection.candidates
        if each not in compared
    )
    for best in sorted(known, key=lambda candidate: candidate.score):
        if best.proposal is not None and (best.sound or not flaw_of(best.proposal.strategy)):
            candidates = (*known, *others)
            return replace(
                selection, candidates=candidates, best=best, bound=None, score_bound=None
            )
    raise SpecError(f"{UNSOLVABLE}; leave some of `impossible` or `known` out")


def _given_facts(
    candidate: "Candidate", selection: "Selection", compiled: CompiledSpec, goal: Goal
) -> "Candidate":
    """Return a candidate with the errors of its answers given the facts."""
    if candidate.proposal is None:
        raise ValueError("a candidate without a strategy")
    workload = compiled.workload
    answering = informed(candidate.proposal.strategy, compiled.facts, workload)
    try:
        error = expected_error(answering, workload, selection.change)
    except UnsupportedWorkloadError as reason:
        return replace(candidate, proposal=None, error=None, reason=str(reason), score=math.inf)
    least = score(goal, error, workload) if goal else error.weighted_rmse
    return replace(candidate, error=error, score=least)


def facts_words(spec: Spec, compiled: CompiledSpec, strategy: Strategy) -> tuple[str, ...]:
    """Return what public facts do to a plan, in words; nothing where there are none.

    Args:
        spec: says where they stand.
        compiled: the workload and the facts.
        strategy: that is chosen.
    """
    answering = informed(strategy, compiled.facts, compiled.workload)
    if not isinstance(answering, InformedStrategy):
        return ()
    answers, lines = answering.facts.stated(compiled.workload), []
    if spec.impossible:
        stated = count(answers[IMPOSSIBLE], "answer")
        are = "is" if answers[IMPOSSIBLE] == 1 else "are"
        words = f"public facts: by `impossible` {stated} of {spec.queries:,} {are} 0, without noise"
        if not answering.has_impossible_cells:
            words += "; no table that is measured shows such records, so that nothing else changes"
        elif not answering.relied_on(IMPOSSIBLE):
            words += f"; {UNCORRECTED}: {spec.impossible[0].place}: {TOO_MANY}"
        lines.append(words)
    for item in spec.items:
        if item.known is not None:
            words = (
                f"public facts: the {count(item.size, 'answer')} of {item.name} stand in "
                f"{item.known.file} and ARE NOT PROTECTED"
            )
            if not answering.conditioned:
                words += f"; {UNCORRECTED}: {item.known.place}: {TOO_MANY}"
            lines.append(words)
    return tuple(lines)
