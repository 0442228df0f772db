"""The search for the best strategies of a spec, given its public facts; fixed shares each alone.

A share is of what the release costs: of epsilon under Laplace noise, of rho or of the square of mu
under Gaussian noise. Sensitivities of parts that are measured side by side add up (their squares
under Gaussian noise), so that a part whose rows take a share of that takes the same of the cost.

Public facts are refused, relied on, and put in words without a look at data: what is held against
each other is what the spec and its files say. Strategies are searched for as if nothing were known.
The best of them are then compared by the errors of their answers given the facts, which a lower
bound for any strategy does not know.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from scipy.linalg import solve_triangular

from dpquery.arrays import Bools, Floats
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_FACT_ROWS
from dpquery.measurement.noise.calibration import record_change
from dpquery.operators.blocks import Block, Workload, marginal
from dpquery.operators.cells import coarsest_classes, workload_over_classes
from dpquery.operators.compile import IMPOSSIBLE, CompiledSpec, KnownAnswers, PublicFacts
from dpquery.operators.factors import Valued
from dpquery.plan_file.plan import Target
from dpquery.planning.targets import goal_of
from dpquery.releases.words import count
from dpquery.spec.problems import quoted
from dpquery.spec.spec import Item, Spec
from dpquery.strategy.algebra.query_powers import QueryRows
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.minimax import Goal, largest_standard_error, score
from dpquery.strategy.search.candidates import Proposal, check_cells
from dpquery.strategy.search.select import Candidate, Flaw, Reach, Selection, select, unchecked
from dpquery.strategy.shapes.informed import (
    DEPENDENT,
    UNSOLVABLE,
    Equalities,
    InformedStrategy,
    informed,
    inner_products,
    with_independent,
)
from dpquery.strategy.shapes.side_by_side import CoarserStrategy, UnionStrategy
from dpquery.strategy.strategy import Noise, Objective, Strategy, check_strategy_size

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


def _implied(basis: Sequence[Equalities], rows: QueryRows) -> tuple[Floats, Bools]:
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
    selections: Mapping[Noise, Selection],
    compiled: CompiledSpec,
    objective: Objective,
    targets: Goal,
    flaw_of: Flaw,
) -> Mapping[Noise, Selection]:
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


def _informed(selection: Selection, compiled: CompiledSpec, goal: Goal, flaw_of: Flaw) -> Selection:
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
    candidate: Candidate, selection: Selection, compiled: CompiledSpec, goal: Goal
) -> Candidate:
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


BY_SHARES = "Shares"
"""The name of a strategy whose parts have the shares that the spec gives them."""


@dataclass(frozen=True, eq=False)
class PlanSearch:
    """How the best strategies for a spec are searched for."""

    spec: Spec
    compiled: CompiledSpec
    noises: Sequence[Noise]
    objective: Objective  # what is minimised
    seed: int  # of the optimisers' starting points
    time_limit: float  # CPU seconds for each kind of noise, for all parts together
    jobs: int  # processes to use
    flaw_of: Flaw  # see `select`
    reach: Reach | None = None  # likewise

    def best(self, targets: Sequence[Target]) -> Mapping[Noise, Selection]:
        """Return the best strategies: for the workload as a whole, or items with fixed shares.

        Raises:
            SpecError: there are shares and targets, which split the budget otherwise.
        """
        compiled, groups = self.compiled, share_groups(self.spec, self.compiled)
        if groups and targets:
            raise SpecError(
                "targets decide how the budget is split, and so does `share` in the spec; leave "
                "--target out, or `share`"
            )
        goal = goal_of(targets, self.spec, compiled)
        if groups:
            found = self.of_groups(groups)
        else:
            found = select(
                searched_workload(compiled),
                noises=self.noises,
                objective=self.objective,
                targets=goal,
                seed=self.seed,
                time_limit=self.time_limit,
                jobs=self.jobs,
                change=record_change(self.spec),
                items=compiled.items,
                flaw_of=self.flaw_of,
                reach=self.reach,
            )
        return with_facts(found, compiled, self.objective, goal, self.flaw_of)

    def quick(self, targets: Sequence[Target]) -> Mapping[Noise, Selection]:
        """Return the best of the quick candidates."""
        return replace(self, time_limit=0).best(targets)

    def of_groups(
        self, groups: Sequence[tuple[tuple[int, ...], Fraction]]
    ) -> Mapping[Noise, Selection]:
        """Return for each kind of noise the best strategies of all groups, side by side.

        Raises:
            SpecError: no strategy of a group can be measured beside others, or the answers of all
                have a flaw.
        """
        workload, shares = self.compiled.workload, [float(share) for _, share in groups]
        parts: dict[Noise, list[Strategy]] = {noise: [] for noise in self.noises}
        for places, _ in groups:
            for noise, strategy in self._best_of(workload.select(places), len(groups)):
                parts[noise].append(strategy)
        blocks = tuple(places for places, _ in groups)
        return {noise: self._side_by_side(noise, parts[noise], shares, blocks) for noise in parts}

    def _side_by_side(
        self,
        noise: Noise,
        parts: Sequence[Strategy],
        shares: Sequence[float],
        blocks: tuple[tuple[int, ...], ...],
    ) -> Selection:
        workload, change = self.compiled.workload, record_change(self.spec)
        lengths = shares if noise == "laplace" else [math.sqrt(share) for share in shares]
        strategy = UnionStrategy.of_shares(BY_SHARES, parts, lengths, blocks, change)
        check_strategy_size(strategy)
        error = expected_error(strategy, workload, change)
        goal = largest_standard_error(workload) if self.objective == "max" else ()
        least = score(goal, error, workload) if goal else error.weighted_rmse
        flaw = self.flaw_of(strategy)
        if flaw:
            raise SpecError(f"items with a `share` cannot be planned side by side: {flaw}")
        best = Candidate(BY_SHARES, Proposal(strategy), error, score=least, sound=True)
        return Selection(noise, (best,), best, None, None, change)

    def _best_of(self, workload: Workload, groups: int) -> list[tuple[Noise, Strategy]]:
        """Return the best strategy of a group alone, over the codes of the whole, by noise."""
        classes = coarsest_classes(workload)
        merged = any(len(codes) > int(codes.max()) + 1 for codes in classes)
        selections = select(
            workload_over_classes(workload, classes) if merged else workload,
            noises=self.noises,
            objective=self.objective,
            seed=self.seed,
            time_limit=self.time_limit / groups,
            jobs=self.jobs,
            change=record_change(self.spec),
            flaw_of=unchecked,
        )
        chosen = []
        for noise, selection in selections.items():
            for candidate in sorted(selection.candidates, key=lambda each: each.score):
                if candidate.proposal is None or not _fits(candidate.proposal.strategy, merged):
                    continue
                strategy = candidate.proposal.strategy
                if merged:
                    strategy = CoarserStrategy(strategy.name, noise, classes, strategy)
                try:
                    for rows in strategy.measurements:
                        check_cells(rows.block.table_shape)
                except UnsupportedWorkloadError:
                    continue
                chosen.append((noise, strategy))
                break
            else:
                raise SpecError(
                    f"no strategy of an item with a `share` is one part of several ({noise})"
                )
        return chosen


def share_groups(
    spec: Spec, compiled: CompiledSpec
) -> tuple[tuple[tuple[int, ...], Fraction], ...]:
    """Return the blocks that are planned together, and the share of each; none without shares.

    Every item with a share is one group, and all the others are the last.
    """
    groups, others = list[tuple[tuple[int, ...], Fraction]](), list[int]()
    for item, places in zip(spec.items, compiled.items, strict=True):
        if item.share is None:
            others.extend(places)
        else:
            groups.append((tuple(places), item.share))
    if groups and others:
        groups.append((tuple(others), 1 - sum((share for _, share in groups), Fraction(0))))
    return tuple(groups)


def _fits(strategy: Strategy, merged: bool) -> bool:
    """Return whether a strategy may be measured beside others, over their codes."""
    if not strategy.may_be_part or (merged and isinstance(strategy, CoarserStrategy)):
        return False
    if not isinstance(strategy, UnionStrategy):
        return True
    return not merged and not any(isinstance(part, UnionStrategy) for part in strategy.parts)
