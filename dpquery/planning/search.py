"""The search for the best strategies of a spec; items with fixed shares of the budget, each alone.

A share is of what the release costs: of epsilon under Laplace noise, of rho or of the square of mu
under Gaussian noise. Sensitivities of parts that are measured side by side add up (their squares
under Gaussian noise), so that a part whose rows take a share of that takes the same of the cost.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.measurement.noise.calibration import record_change
from dpquery.operators.blocks import Workload
from dpquery.operators.cells import coarsest_classes, workload_over_classes
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.plan import Target
from dpquery.planning.public_facts import searched_workload, with_facts
from dpquery.planning.targets import goal_of
from dpquery.spec.spec import Spec
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.minimax import largest_standard_error, score
from dpquery.strategy.search.candidates import Proposal, check_cells
from dpquery.strategy.search.select import Candidate, Flaw, Reach, Selection, select, unchecked
from dpquery.strategy.shapes.side_by_side import CoarserStrategy, UnionStrategy
from dpquery.strategy.strategy import Noise, Objective, Strategy, check_strategy_size

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
