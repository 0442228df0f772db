"""Public facts in a plan: refused, relied on, and put in words.

Nothing here looks at data: what is held against each other is what the spec and its files say.

Selections whose figures know the public facts of a spec: what a release will state.

Strategies are searched for as if nothing were known. The best of them are then compared by the
errors of their answers given the facts, which a lower bound for any strategy does not know.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import solve_triangular

from dpquery.arrays import Floats
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_FACT_ROWS
from dpquery.operators.blocks import Block, Workload, marginal
from dpquery.operators.compile import IMPOSSIBLE, CompiledSpec, KnownAnswers, PublicFacts
from dpquery.operators.factors import Valued
from dpquery.releases.words import count
from dpquery.spec.problems import quoted
from dpquery.spec.spec import Item, Spec
from dpquery.strategy.algebra.query_powers import QueryRows
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.minimax import Goal, largest_standard_error, score
from dpquery.strategy.shapes.informed import (
    DEPENDENT,
    UNSOLVABLE,
    Equalities,
    InformedStrategy,
    informed,
    inner_products,
    with_independent,
)
from dpquery.strategy.strategy import Noise, Objective, Strategy

if TYPE_CHECKING:
    from dpquery.strategy.search.select import Candidate, Flaw, Selection


OFF = 1e-6  # of the largest total: what rounding may make of a sum of them


def check_facts(spec: Spec, compiled: CompiledSpec) -> None:
    """Refuse public facts that leave nothing to measure, or cannot all be true.

    Raises:
        SpecError: a line for every item that is at fault.
    """
    facts = compiled.facts
    if facts is None:
        return
    mistakes = [*_empty_items(spec, compiled, facts), *_totals_of_none(spec, compiled, facts)]
    mistakes = mistakes or [*_sums_at_odds(spec, compiled, facts)]
    mistakes = mistakes or [*_parts_above_wholes(spec, compiled, facts)]
    if mistakes:
        raise SpecError("\n".join(mistakes))


def _empty_items(spec: Spec, compiled: CompiledSpec, facts: PublicFacts) -> Iterator[str]:
    blocks = compiled.workload.blocks
    for item, places in zip(spec.items, compiled.items, strict=True):
        if item.known is None and all(facts.zeros(blocks[place]).all() for place in places):
            yield (
                f"{item.place}: by `impossible` no record can be in any row of the item "
                f"{quoted(item.name)}, so that all its answers are 0; leave the item out, or "
                "correct `impossible`"
            )
    if all(item.known is not None for item in spec.items):
        yield f"{spec.items[0].place}: all items are known: nothing is left to measure; add another"


def _totals_of_none(spec: Spec, compiled: CompiledSpec, facts: PublicFacts) -> Iterator[str]:
    for item, known, block in _known_items(spec, compiled, facts):
        wrong = np.flatnonzero(facts.zeros(block) & (known.values != 0))
        if len(wrong):
            yield (
                f"{_line(item, int(wrong[0]))} says {known.values[wrong[0]]:,.0f}, and by "
                "`impossible` there can be none; correct one of them"
            )


def _sums_at_odds(spec: Spec, compiled: CompiledSpec, facts: PublicFacts) -> Iterator[str]:
    """Yield totals that follow from others, and are said to be something else."""
    basis: list[Equalities] = []
    if facts.impossible is not None:
        named = set(facts.impossible.attributes)
        named |= {i for *_, block in _known_items(spec, compiled, facts) for i in block.attributes}
        shape, attributes = compiled.workload.shape_of_domain, tuple(sorted(named))
        if facts.impossible.count(shape, attributes) <= MAX_FACT_ROWS and facts.known:
            cells = marginal(shape, attributes)
            places = np.flatnonzero(facts.zeros(cells))
            if len(places):
                none = np.zeros(len(places))
                basis = [Equalities(IMPOSSIBLE, QueryRows(cells, places), none)]
    for item, known, block in _known_items(spec, compiled, facts):
        if len(known.values) > MAX_FACT_ROWS:
            continue
        rows = QueryRows(block, np.arange(len(known.values)), known.position)
        basis = with_independent(basis, Equalities(item.name, rows, known.values))
        implied, follows = _implied(basis, rows)
        off = np.abs(implied - known.values) > OFF * max(1.0, float(np.abs(known.values).max()))
        wrong = np.flatnonzero(follows & off)
        if len(wrong):
            at = int(wrong[0])
            yield (
                f"{_line(item, at)} says {known.values[at]:,.0f}, and it follows from what else is "
                f"known that it is {implied[at]:,.0f}; correct one of them"
            )
            return


def _implied(basis: Sequence[Equalities], rows: QueryRows) -> tuple[Floats, "np.ndarray"]:
    """Return what follows from equalities for some queries, and for which all of it does."""
    whole = np.block([[inner_products(a.rows, b.rows) for b in basis] for a in basis])
    cross = np.concatenate([inner_products(each.rows, rows) for each in basis])
    root, values = np.linalg.cholesky(whole), np.concatenate([each.values for each in basis])
    solved = solve_triangular(root, cross, lower=True)
    squares = np.diag(inner_products(rows, rows))
    follows = squares - np.einsum("nr,nr->r", solved, solved) <= 10 * DEPENDENT * squares.max()
    return solved.T @ solve_triangular(root, values, lower=True), follows


def _parts_above_wholes(spec: Spec, compiled: CompiledSpec, facts: PublicFacts) -> Iterator[str]:
    """Yield totals of records that are above one that counts all of these and others."""
    counts = [
        (item, known, QueryRows(block, np.arange(len(known.values)), known.position))
        for item, known, block in _known_items(spec, compiled, facts)
        if len(known.values) <= MAX_FACT_ROWS
        and not any(isinstance(factor, Valued) for factor in block.factors)
    ]
    for item, known, rows in counts:
        sizes = np.diag(inner_products(rows, rows))
        for other, above, wider in counts:
            within = inner_products(rows, wider) >= sizes[:, None] * (1 - DEPENDENT)
            wrong = np.argwhere(within & (known.values[:, None] > above.values))
            if len(wrong):
                part, whole = map(int, wrong[0])
                yield (
                    f"{_line(item, part)} says {known.values[part]:,.0f}, and "
                    f"{_line(other, whole)}, which counts these records too, says "
                    f"{above.values[whole]:,.0f}; correct one of them"
                )
                return


def _known_items(
    spec: Spec, compiled: CompiledSpec, facts: PublicFacts
) -> Iterator[tuple[Item, KnownAnswers, Block]]:
    by_name = {item.name: item for item in spec.items}
    for known in facts.known:
        yield by_name[known.source], known, compiled.workload.blocks[known.position]


def _line(item: Item, row: int) -> str:
    if item.known is None:
        raise ValueError("an item that is not known")
    return f"{item.known.place}: {item.known.file}:{item.known.lines[row]}"


COMPARED = 4  # strategies of each kind of noise, by their errors without the facts
KNOWN_WEIGHT = 1e-3  # of the weight of an item, where its answers are known
UNCORRECTED = "other answers are not corrected by it"
TOO_MANY = "what is known, times the answers, is too much to solve for; name less, or ask for less"
NOT_COMPARED = "has a larger error without the public facts than those that were compared with them"


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

    Where there are no facts nothing changes.
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
    """Return what public facts do to a plan, in words; nothing where there are none."""
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
