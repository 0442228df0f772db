"""Parts: every group of items planned alone, and the budget split among them in closed form.

Groups are the items themselves, the items over the same attributes, and those whose attributes
another item has. Parts with losses L_k answer alone from shares beta_k of the sensitivity: the loss
sum_k L_k / beta_k^2 is least, and then (sum_k L_k^(1/3))^3 under Laplace noise and
(sum_k L_k^(1/2))^2 under Gaussian noise ([MATH] 8). So much is known of the whole before all parts
are planned: what some have reached, and bounds on the others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpquery.arrays import Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.gram import gram
from dpquery.operators.merged import coarsest_classes, workload_over_classes
from dpquery.progress import time_left
from dpquery.strategy.bounds.lower_bounds import lower_bound
from dpquery.strategy.errors.expected_error import weighted_queries
from dpquery.strategy.optimize.block_groups import exponent
from dpquery.strategy.optimize.opt_union import BlockGroups
from dpquery.strategy.search.attempts import Candidate, attempt, best_of, not_needed
from dpquery.strategy.search.candidates import BASELINES, CANDIDATES, side_by_side
from dpquery.strategy.search.problem import Problem, Proposal, check_cells
from dpquery.strategy.shapes.coarser import CoarserStrategy
from dpquery.strategy.shapes.strategies import Strategy

MAX_PARTS = 64  # groups of one division that are planned
BOUND_BUDGET = 4e9  # floating point operations for the bound on a part: about a third of a second
LIKELY = {name: k for k, name in enumerate(("Identity", "Workload", "OPT_R", "OPT_x"))}
BASELINE_NAMES = {name for name, _ in BASELINES}
LONG_SEARCHES = {"OPT_H", "OPT_F", "OPT_+"}
SEARCHED_CLASSES = 32  # of an attribute up to which a part has the long searches too
BlockGroup = tuple[int, ...]


def parts_candidate(problem: Problem) -> Proposal:
    """Parts: the best division of the workload into groups that are planned alone.

    Raises:
        UnsupportedWorkloadError: there is one group, or no division is better than `least_score`.
    """
    divisions = [groups for groups in divisions_of(problem) if 1 < len(groups) <= MAX_PARTS]
    if not divisions:
        raise UnsupportedWorkloadError("there is nothing to divide the workload into")
    plans = _Plans(problem)
    least, best = plans.loss_of(problem.least_score), None
    for groups in divisions:
        loss = plans.split_loss(groups, below=least)
        if loss < least:
            least, best = loss, groups
    if best is None:
        raise UnsupportedWorkloadError("parts planned alone cannot beat what is known already")
    return plans.proposal(best)


def divisions_of(problem: Problem) -> tuple[BlockGroups, ...]:
    """Return the divisions of the blocks that are tried: items, and items that belong together."""
    blocks, shape = problem.workload.blocks, problem.workload.shape_of_domain
    items = problem.items or tuple((place,) for place in range(len(blocks)))
    sets = [
        frozenset(i for place in places for i in blocks[place].attributes if shape[i] > 1)
        for places in items
    ]
    tops: list[frozenset[int]] = []
    for attributes in sorted(dict.fromkeys(sets), key=len, reverse=True):
        if not any(attributes <= top for top in tops):
            tops.append(attributes)
    homes = [next(top for top in tops if attributes <= top) for attributes in sets]
    keys: tuple[Sequence[object], ...] = (range(len(items)), sets, homes)
    return tuple(dict.fromkeys(_gathered(items, key) for key in keys))


def _gathered(items: Sequence[Sequence[int]], keys: Sequence[object]) -> BlockGroups:
    """Return the blocks of all items of a key together, for every key."""
    groups: dict[object, list[int]] = {}
    for places, key in zip(items, keys, strict=True):
        groups.setdefault(key, []).extend(places)
    return tuple(tuple(sorted(places)) for places in groups.values())


@dataclass(frozen=True, eq=False)
class _Part:
    """A group of blocks as a problem of its own, over the classes of codes that it tells apart.

    Attributes:
        problem: over the classes.
        classes: of the codes of every attribute.
        bound: a lower bound on the loss of every strategy for it, or 0.
    """

    problem: Problem
    classes: tuple[Ints, ...]
    bound: float


@dataclass(frozen=True, eq=False)
class _Plan:
    """The best strategy for a group alone, and its loss."""

    strategy: Strategy
    converged: bool
    loss: float


class _Plans:
    """The plans of groups of blocks, and lower bounds on them, each made once."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.power = problem, exponent(problem.noise)
        self.parts: dict[BlockGroup, _Part] = {}
        self.known: dict[BlockGroup, _Plan] = {}

    def loss_of(self, score: float) -> float:
        """Return the weighted loss of a weighted RMSE of the whole workload."""
        return score**2 * weighted_queries(self.problem.workload)

    def split_loss(self, groups: BlockGroups, *, below: float) -> float:
        """Return the loss of the groups' plans under the best split; infinite if not `below`."""
        roots = {group: self.part(group).bound ** self.power for group in groups}
        for group in sorted(groups, key=lambda group: -roots[group]):
            if sum(roots.values()) ** (1 / self.power) >= below:
                return math.inf
            roots[group] = self.plan(group).loss ** self.power
        return float(sum(roots.values()) ** (1 / self.power))

    def part(self, group: BlockGroup) -> _Part:
        """Return a group as a problem of its own."""
        if group not in self.parts:
            blocks = self.problem.workload.select(group)
            classes = coarsest_classes(blocks)
            workload = workload_over_classes(blocks, classes)
            V = gram(workload)
            problem = Problem(
                workload, V, self.problem.noise, self.problem.seed, change=self.problem.change
            )
            bound = lower_bound(V, problem.change, BOUND_BUDGET)
            self.parts[group] = _Part(problem, classes, 0.0 if bound is None else bound.loss)
        return self.parts[group]

    def plan(self, group: BlockGroup) -> _Plan:
        """Return the best strategy for a group alone.

        Raises:
            UnsupportedWorkloadError: there is none.
        """
        if group not in self.known:
            part = self.part(group)
            queries = weighted_queries(part.problem.workload)
            best = _best_alone(part.problem, math.sqrt(part.bound / queries), len(group))
            if best.proposal is None:
                raise UnsupportedWorkloadError(f"a part has no strategy ({best.reason})")
            strategy = best.proposal.strategy
            if strategy.shape != self.problem.workload.shape_of_domain:
                strategy = CoarserStrategy(strategy.name, strategy.noise, part.classes, strategy)
            for rows in strategy.measurements:
                check_cells(rows.block.table_shape)
            loss = best.score**2 * queries
            self.known[group] = _Plan(strategy, best.proposal.converged, loss)
        return self.known[group]

    def proposal(self, groups: BlockGroups) -> Proposal:
        """Return the plans of the groups side by side, each with its share of the sensitivity."""
        plans = [self.known[group] for group in groups]
        power = self.power if self.problem.noise == "laplace" else self.power / 2
        strategy = side_by_side(
            "Parts",
            self.problem,
            [plan.strategy for plan in plans],
            [plan.loss**power for plan in plans],
            groups,
            self.problem.change,
        )
        return Proposal(strategy, all(plan.converged for plan in plans))


def _best_alone(problem: Problem, least: float, tables: int) -> Candidate:
    """Return the best of all candidates; of the baselines, where there is no time left.

    Those that most often are proven to be best come first.
    """
    candidates: list[Candidate] = []
    small = max(problem.workload.shape_of_domain) <= SEARCHED_CLASSES
    order = sorted(CANDIDATES, key=lambda pair: LIKELY.get(pair[0], len(LIKELY)))
    for name, build in order:
        in_time = time_left(f"a part of {tables} tables: {name}")
        quick = name not in LONG_SEARCHES and (name, problem.noise) != ("OPT_x", "laplace")
        if (in_time and (small or quick)) or name in BASELINE_NAMES:
            candidates.append(attempt(name, build, problem))
            if not_needed(best_of(candidates), least):
                break
    return best_of(candidates)
