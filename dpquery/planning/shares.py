"""Strategies whose items have fixed shares of the budget: each planned alone, side by side.

A share is of what the release costs: of epsilon under Laplace noise, of rho or of the square of mu
under Gaussian noise. Sensitivities of parts that are measured side by side add up (their squares
under Gaussian noise), so that a part whose rows take a share of that takes the same of the cost.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.operators.blocks import Workload
from dpquery.operators.cells import coarsest_classes, workload_over_classes
from dpquery.operators.compile import CompiledSpec
from dpquery.spec.spec import Spec
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.goals import largest_standard_error, score
from dpquery.strategy.search.candidates import Proposal, check_cells
from dpquery.strategy.search.select import Candidate, Flaw, Selection, select, unchecked
from dpquery.strategy.shapes.side_by_side import CoarserStrategy, UnionStrategy
from dpquery.strategy.strategy import Noise, Objective, RecordChange, Strategy, check_strategy_size

BY_SHARES = "Shares"
"""The name of a strategy whose parts have the shares that the spec gives them."""


@dataclass(frozen=True)
class ShareSearch:
    """How strategies of parts are searched for."""

    objective: Objective  # what is minimised
    seed: int  # of the optimisers' starting points
    time_limit: float  # CPU seconds for each kind of noise, for all parts together
    jobs: int  # processes to use
    change: RecordChange  # what one record does between neighbours


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


def selections_by_shares(
    groups: Sequence[tuple[tuple[int, ...], Fraction]],
    workload: Workload,
    noises: Sequence[Noise],
    search: ShareSearch,
    flaw_of: Flaw,
) -> Mapping[Noise, Selection]:
    """Return for each kind of noise the best strategies of all groups, side by side.

    Raises:
        SpecError: no strategy of a group can be measured beside others, or the answers of all have
            a flaw.
    """
    parts: dict[Noise, list[Strategy]] = {noise: [] for noise in noises}
    for places, _ in groups:
        for noise, strategy in _best_of(workload.select(places), noises, search, len(groups)):
            parts[noise].append(strategy)
    shares, blocks = [float(share) for _, share in groups], tuple(places for places, _ in groups)
    return {
        noise: _selection(noise, parts[noise], shares, blocks, workload, search, flaw_of)
        for noise in noises
    }


def _selection(
    noise: Noise,
    parts: Sequence[Strategy],
    shares: Sequence[float],
    blocks: tuple[tuple[int, ...], ...],
    workload: Workload,
    search: ShareSearch,
    flaw_of: Flaw,
) -> Selection:
    lengths = shares if noise == "laplace" else [math.sqrt(share) for share in shares]
    strategy = UnionStrategy.of_shares(BY_SHARES, parts, lengths, blocks, search.change)
    check_strategy_size(strategy)
    error = expected_error(strategy, workload, search.change)
    goal = largest_standard_error(workload) if search.objective == "max" else ()
    least = score(goal, error, workload) if goal else error.weighted_rmse
    flaw = flaw_of(strategy)
    if flaw:
        raise SpecError(f"items with a `share` cannot be planned side by side: {flaw}")
    best = Candidate(BY_SHARES, Proposal(strategy), error, score=least, sound=True)
    return Selection(noise, (best,), best, None, None, search.change)


def _best_of(
    workload: Workload, noises: Sequence[Noise], search: ShareSearch, groups: int
) -> list[tuple[Noise, Strategy]]:
    """Return the best strategy of a group alone, over the codes of the whole, by noise."""
    classes = coarsest_classes(workload)
    merged = any(len(codes) > int(codes.max()) + 1 for codes in classes)
    coarse = workload_over_classes(workload, classes) if merged else workload
    selections = select(
        coarse,
        noises=noises,
        objective=search.objective,
        seed=search.seed,
        time_limit=search.time_limit / groups,
        jobs=search.jobs,
        flaw_of=unchecked,
        change=search.change,
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


def _fits(strategy: Strategy, merged: bool) -> bool:
    """Return whether a strategy may be measured beside others, over their codes."""
    if not strategy.may_be_part or (merged and isinstance(strategy, CoarserStrategy)):
        return False
    if not isinstance(strategy, UnionStrategy):
        return True
    return not merged and not any(isinstance(part, UnionStrategy) for part in strategy.parts)
