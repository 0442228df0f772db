"""Selections whose figures know the public facts of a spec: what a release will state.

Strategies are searched for as if nothing were known. The best of them are then compared by the
errors of their answers given the facts, which a lower bound for any strategy does not know.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from numpy.linalg import LinAlgError

from dpquery.exceptions import SpecError
from dpquery.operators.compile import CompiledSpec
from dpquery.reconstruction.solution_check import UNSOLVED
from dpquery.releases.formatting import count
from dpquery.spec.model import Spec
from dpquery.spec.problems import quoted
from dpquery.strategy.errors.expected_error import expected_error
from dpquery.strategy.goals.goals import Goal, largest_standard_error, score
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.objectives import Objective
from dpquery.strategy.shapes.informed import InformedStrategy, informed
from dpquery.strategy.shapes.strategies import Strategy

if TYPE_CHECKING:
    from dpquery.strategy.search.select import Candidate, Flaw, Selection

COMPARED = 4  # strategies of each kind of noise, by their errors without the facts
NOT_COMPARED = "errs more without the public facts than those that were compared with them"


def check_facts(spec: Spec, compiled: CompiledSpec) -> None:
    """Refuse public facts that leave nothing to measure.

    Raises:
        SpecError: a line for every item of which no record can be in any row.
    """
    facts = compiled.facts
    if facts is None:
        return
    blocks = compiled.workload.blocks
    empty = [
        f"{item.place}: by `impossible` no record can be in any row of the item "
        f"{quoted(item.name)}: all its answers are 0; leave the item out, or correct `impossible`"
        for item, places in zip(spec.items, compiled.items, strict=True)
        if all(facts.zeros(blocks[place]).all() for place in places)
    ]
    if empty:
        raise SpecError("\n".join(empty))


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
    raise SpecError(
        "the equations of the public facts cannot be solved in floating-point numbers; leave some "
        "of `impossible` out"
    )


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
    except LinAlgError:
        return replace(candidate, proposal=None, error=None, reason=UNSOLVED, score=math.inf)
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
    zeros = sum(int(answering.facts.zeros(block).sum()) for block in compiled.workload.blocks)
    words = f"public facts: by `impossible` {count(zeros, 'answer')} of {spec.queries:,} "
    words += f"{'is' if zeros == 1 else 'are'} 0, without noise"
    if answering.conditioned:
        return (f"{words}; the errors of the others are those that they have given this",)
    if answering.tables_hold_none:
        return (f"{words}; what is measured says nothing else of such records",)
    return (
        f"{words}; the others are not corrected by it, and need not add up to these zeros: "
        f"{spec.impossible[0].place}: the impossible cells of all tables, times the answers, are "
        "too many to solve for; name fewer, or ask fewer of the attributes that they name",
    )
