"""What is solved in closed form: what is tried first, and Parts, the budget among groups of items.

The names are those of [YCPS13]: every cell (Identity), the questions (Workload), Fourier
coefficients, with equal or with the best shares of the budget (+). All are answered by least
squares over everything measured.

The groups of Parts are the items, the items over the same attributes, and those whose attributes
another item has. Parts with losses L_k answer alone from shares beta_k of the sensitivity: the loss
sum_k L_k / beta_k^2 is least, and then (sum_k L_k^(1/3))^3 under Laplace noise and
(sum_k L_k^(1/2))^2 under Gaussian noise ([MATH] 8). So much is known of the whole before all parts
are planned: what some have reached, and bounds on the others. Bounds say little of Laplace noise:
what closed forms reach divided by more than searches gain is then taken for one (`GAINS`). A part
has the quick candidates alone, not those that search several products.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.linalg import LinAlgError

from dpquery.arrays import Ints
from dpquery.exceptions import OutOfTimeError, UnsupportedWorkloadError
from dpquery.limits import MAX_RESIDUAL_ATTRIBUTES, MAX_TABLE_CELLS
from dpquery.operators.blocks import Workload
from dpquery.operators.cells import coarsest_classes, workload_over_classes
from dpquery.operators.factors import Factor, Identity, total
from dpquery.operators.gram import Gram, classes, gram, is_mixture, weighted_sum
from dpquery.operators.trees import Hierarchy
from dpquery.progress import time_left
from dpquery.strategy.bounds import Bound, in_marginal_algebra, moved_bound, quick_bound, svd_bound
from dpquery.strategy.expected_error import expected_error, weighted_queries
from dpquery.strategy.optimize.opt_hierarchy import Levels, opt_hierarchy, ordered_attributes
from dpquery.strategy.optimize.opt_residual import best_weights, split_budget
from dpquery.strategy.optimize.opt_tree import NestedSets
from dpquery.strategy.optimize.opt_union import BlockGroups, exponent, largest_sets
from dpquery.strategy.search.candidates import (
    Build,
    Problem,
    Proposal,
    check_cells,
    marginals_candidate,
    product_candidate,
    residual_candidate,
)
from dpquery.strategy.sensitivity import block_norms
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import CoarserStrategy, UnionStrategy
from dpquery.strategy.shapes.splits import CenteredCore, Core, DenseCore
from dpquery.strategy.strategy import (
    BITS,
    Noise,
    RecordChange,
    Strategy,
    WeightedBlock,
    check_strategy_size,
    resolution,
)

MAX_FOURIER_TABLES = 4096  # of a workload: beyond, OPT_M and OPT_R do the same and better


def identity(problem: Problem) -> Proposal:
    """Measure every cell of the domain."""
    shape = problem.workload.shape_of_domain
    check_cells(shape)
    factors = tuple(Identity(n) for n in shape)
    return Proposal(ProductStrategy("Identity", problem.noise, factors))


def plain_mechanism(problem: Problem) -> Proposal:
    """Measure the workload's own queries: the plain Laplace or Gaussian mechanism."""
    _check_queries(problem)
    workload = problem.workload
    weights = (resolution(1),) * len(workload.blocks)
    return Proposal(DirectStrategy("Workload", problem.noise, workload, weights))


def budgeted_mechanism(problem: Problem) -> Proposal:
    """Measure the workload's own queries with the best share of the budget for every table."""
    _check_queries(problem)
    workload = problem.workload
    if len(workload.blocks) == 1:
        raise UnsupportedWorkloadError("one table takes the whole budget")
    errors = [
        weight * float(block.shape[0])
        for weight, block in zip(workload.weights, workload.blocks, strict=True)
    ]
    costs = block_norms([WeightedBlock(1, block) for block in workload.blocks], problem.noise)
    weights = split_budget(np.array(errors), np.array(costs, float), noise=problem.noise)
    return Proposal(DirectStrategy("Workload+", problem.noise, workload, tuple(weights)))


def budgeted_fourier(problem: Problem) -> Proposal:
    """Measure the Fourier coefficients of all tables, with the best share for every attribute set.

    Over attributes of two classes they are products of [1, -1]. An attribute of more classes has
    the deviations from its mean in their place, I - 11'/n.
    """
    cores = fourier_cores(problem)
    weights = best_weights(cores, problem.gram, noise=problem.noise)
    return Proposal(ResidualStrategy("Fourier+", problem.noise, cores, weights))


def fourier_cores(problem: Problem) -> tuple[Core | None, ...]:
    """Return the core of every attribute; refuse tables that are too large, or too many."""
    blocks, shape = problem.workload.blocks, problem.workload.shape_of_domain
    if len(blocks) > MAX_FOURIER_TABLES:
        raise UnsupportedWorkloadError(f"{len(blocks):,} tables")
    for table in {tuple(i for i in block.attributes if shape[i] > 1) for block in blocks}:
        check_cells([shape[i] for i in table])
        if len(table) > MAX_RESIDUAL_ATTRIBUTES:
            raise UnsupportedWorkloadError(
                f"a table looks at more than {MAX_RESIDUAL_ATTRIBUTES} attributes"
            )
    return tuple(_core(n) for n in shape)


def _core(n: int) -> Core | None:
    if n == 2:
        return DenseCore(np.array([[1, -1]]))
    return CenteredCore(n) if n > 1 else None


def _check_queries(problem: Problem) -> None:
    workload = problem.workload
    for block in workload.blocks:
        check_cells(block.table_shape)
    if workload.shape[0] > MAX_TABLE_CELLS:
        raise UnsupportedWorkloadError(f"{workload.shape[0]:,} queries to measure")


def opt_h(problem: Problem) -> Proposal:
    """OPT_H: trees of the best branching with a weight for each level.

    Attributes with queries of ranges or groups take a tree, those with queries of single values
    alone the identity, and those that no table looks at the total. It serves where OPT_0 would
    need an (n, n) array.
    """
    shape, looked_at = problem.workload.shape_of_domain, np.any(problem.gram.index, axis=0)
    check_cells([n for n, needed in zip(shape, looked_at, strict=True) if needed])
    if not ordered_attributes(problem.gram):
        raise UnsupportedWorkloadError("no attribute is asked for ranges")
    levels = opt_hierarchy(problem.gram, noise=problem.noise).levels
    factors: list[Factor] = []
    for i, n in enumerate(shape):
        if i in levels:
            factors.append(integer_hierarchy(n, levels[i]))
        else:
            factors.append(Identity(n) if looked_at[i] or n == 1 else total(n))
    return Proposal(ProductStrategy("OPT_H", problem.noise, tuple(factors)))


def integer_hierarchy(n: int, levels: Levels) -> Factor:
    """Round level weights to BITS bits and leave out the levels that vanish, but for the cells."""
    peak = max(levels.weights)
    weights = [round(weight / peak * (1 << BITS)) for weight in levels.weights]
    weights[0] = max(1, weights[0])
    remaining = [
        (size, weight) for size, weight in zip(levels.sizes, weights, strict=True) if weight
    ]
    if len(remaining) == 1:
        return Identity(n)
    return Hierarchy(n, [size for size, _ in remaining], [weight for _, weight in remaining])


MAX_PARTS = 64  # groups of one division that are planned
BOUND_CLASSES = 512  # whose eigenvalues are worked out for a bound: a tenth of a second
SEARCHED_CLASSES: Mapping[Noise, int] = {"gaussian": 512, "laplace": 32}
"""Of an attribute whose rows are searched for: about a second."""
GAINS: Mapping[Noise, float] = {"gaussian": math.inf, "laplace": 2.0}
"""Times that searches lower the error of a part's closed forms at most: 1.8 where measured."""
PROVEN = 1e-3  # relative gap to the bound on a part at which no other strategy is tried
BlockGroup = tuple[int, ...]


def parts_candidate(problem: Problem) -> Proposal:
    """Parts: the best division of the workload into groups that are planned alone.

    Raises:
        UnsupportedWorkloadError: there is one group, or no division can have a loss below
            `least_loss`.
    """
    divisions = [groups for groups in divisions_of(problem) if 1 < len(groups) <= MAX_PARTS]
    if not divisions:
        raise UnsupportedWorkloadError("there is nothing to divide the workload into")
    plans = _Plans(problem)
    least, best = problem.least_loss, None
    for groups in reversed(divisions):  # finer ones say what coarser ones cannot fall below
        loss = plans.split_loss(groups, below=least)
        if loss < least:
            least, best = loss, groups
    if best is None:
        raise UnsupportedWorkloadError("parts planned alone cannot win")
    return plans.proposal(best)


def divisions_of(problem: Problem) -> tuple[BlockGroups, ...]:
    """Return the divisions of the blocks that are tried: items, and items that belong together."""
    blocks, shape = problem.workload.blocks, problem.workload.shape_of_domain
    items = problem.items or tuple((place,) for place in range(len(blocks)))
    sets = [
        frozenset(i for place in places for i in blocks[place].attributes if shape[i] > 1)
        for places in items
    ]
    keys: tuple[Sequence[object], ...] = (largest_sets(sets), sets, range(len(items)))
    return tuple(dict.fromkeys(_gathered(items, key) for key in keys))


def _gathered(items: Sequence[Sequence[int]], keys: Sequence[object]) -> BlockGroups:
    groups: dict[object, list[int]] = {}
    for places, key in zip(items, keys, strict=True):
        groups.setdefault(key, []).extend(places)
    return tuple(tuple(sorted(places)) for places in groups.values())


@dataclass(frozen=True, eq=False)
class _Part:
    """A group of blocks as a problem of its own, over the classes of codes that it tells apart."""

    problem: Problem  # over the classes
    classes: tuple[Ints, ...]  # of the codes of every attribute
    bound: float  # a lower bound on the loss of every strategy for it, or 0

    @cached_property
    def closed(self) -> "_Plan | None":
        forms = [plain_mechanism, budgeted_mechanism]
        if self.problem.noise == "laplace" or not _is_short(self.problem):
            forms += [identity, opt_h]
        return self.best_of(forms)

    @cached_property
    def best(self) -> "_Plan":
        best = self.best_of(_searches(self.problem), self.closed)
        if best is None:
            raise UnsupportedWorkloadError("a part has no strategy")
        return best

    def best_of(self, builds: Iterable[Build], best: "_Plan | None" = None) -> "_Plan | None":
        """Return the best of a plan and what candidates make, until one is as good as optimal."""
        problem, queries = self.problem, weighted_queries(self.problem.workload)
        for build in builds:
            if best is not None and best.loss <= self.bound * (1 + PROVEN):
                break
            try:
                proposal = build(problem)
                check_strategy_size(proposal.strategy)
                error = expected_error(proposal.strategy, problem.workload, problem.change)
            except (UnsupportedWorkloadError, OutOfTimeError, LinAlgError):
                continue
            loss = error.weighted_rmse**2 * queries
            if best is None or loss < best.loss:
                best = _Plan(proposal.strategy, proposal.converged, loss)
            if best.loss <= proposal.bound * (1 + PROVEN):
                break
        return best


@dataclass(frozen=True, eq=False)
class _Plan:
    strategy: Strategy
    converged: bool
    loss: float


class _Plans:
    """The plans of groups of blocks, and lower bounds on them, each made once."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.power = problem, exponent(problem.noise)
        self.finer: BlockGroups = ()
        self.parts: dict[BlockGroup, _Part] = {}
        self.known: dict[BlockGroup, _Plan] = {}

    def split_loss(self, groups: BlockGroups, *, below: float) -> float:
        """Return the loss of the groups' plans under the best split; infinite if not `below`."""
        roots = {group: self.part(group).bound ** self.power for group in groups}
        self.finer = groups
        largest_first = sorted(groups, key=self._size, reverse=True)
        for least in (self._least, lambda group: self.plan(group).loss):
            for group in largest_first:
                if sum(roots.values()) ** (1 / self.power) >= below:
                    return math.inf
                roots[group] = least(group) ** self.power
        return float(sum(roots.values()) ** (1 / self.power))

    def _least(self, group: BlockGroup) -> float:
        """Return what no plan of a group falls below, by its bound or by its closed forms."""
        part = self.part(group)
        gain = GAINS[part.problem.noise]
        closed = part.closed if gain < math.inf else None
        return part.bound if closed is None else max(part.bound, closed.loss / gain**2)

    def _size(self, group: BlockGroup) -> float:
        """Return what says how large a group's loss may be: most of the sum is to be known soon."""
        part = self.part(group)
        return max(part.bound, weighted_queries(part.problem.workload))

    def part(self, group: BlockGroup) -> _Part:
        """Return a group as a problem of its own; the loss of several is no less than their sum."""
        if group not in self.parts:
            whole = self.problem
            proving = time_left("Parts")
            alone = whole.workload.select(group)
            classes, workload, V, bound = _coarsened(alone, whole.change, proving)
            problem = Problem(workload, V, whole.noise, whole.seed, change=whole.change)
            within = sum(self.parts[one].bound for one in self.finer if set(one) <= set(group))
            self.parts[group] = _Part(problem, classes, max(bound, within))
        return self.parts[group]

    def plan(self, group: BlockGroup) -> _Plan:
        if group not in self.known:
            part = self.part(group)
            best = part.best
            strategy = best.strategy
            merged = strategy.shape != self.problem.workload.shape_of_domain
            if merged or isinstance(strategy, DirectStrategy):  # its groups of codes are 0/1 then
                strategy = CoarserStrategy(strategy.name, strategy.noise, part.classes, strategy)
            for rows in strategy.measurements:
                check_cells(rows.block.table_shape)
            self.known[group] = _Plan(strategy, best.converged, best.loss)
        return self.known[group]

    def proposal(self, groups: BlockGroups) -> Proposal:
        plans = [self.known[group] for group in groups]
        power = self.power if self.problem.noise == "laplace" else self.power / 2
        strategy = UnionStrategy.of_shares(
            "Parts",
            [plan.strategy for plan in plans],
            [plan.loss**power for plan in plans],
            groups,
            self.problem.change,
        )
        return Proposal(strategy, all(plan.converged for plan in plans))


@lru_cache(maxsize=4 * MAX_PARTS)  # every kind of noise and other weights ask for the same
def _coarsened(
    blocks: Workload, change: RecordChange, proving: bool
) -> tuple[tuple[Ints, ...], Workload, Gram, float]:
    """Return blocks' classes of codes, the blocks over them, their Gram, and a bound on the loss.

    It is the SVD bound; 0 where that takes long or is not known.
    """
    coarsest = coarsest_classes(blocks)
    workload = workload_over_classes(blocks, coarsest)
    V = gram(workload)
    mixtures, bound = in_marginal_algebra(V), None
    if mixtures or max(V.shape_of_domain) <= BOUND_CLASSES:
        if mixtures or len(V.weights) == 1:
            bound = svd_bound(V)
        elif proving:
            bound = Bound(quick_bound(V), "SVD bound")
    if bound is not None and change == "moves within":
        bound = moved_bound(bound, V)
    return coarsest, workload, V, 0.0 if bound is None else bound.loss


def _is_short(problem: Problem) -> bool:
    """Return whether the rows of all attributes are known, or few enough to be searched for."""
    most = SEARCHED_CLASSES[problem.noise]
    return all(
        all(is_mixture(V) or classes(V) <= most for V in matrices)
        or NestedSets.of(weighted_sum(np.ones(len(matrices)), matrices)) is not None
        for matrices in problem.gram.matrices
    )


def _searches(problem: Problem) -> Iterator[Build]:
    """Return what is searched for a part: what is most often the optimum first.

    A search for the rows of long attributes is left out, unless these are nested sets, and all
    searches where no time is left.
    """
    searches = [marginals_candidate]
    if problem.noise == "gaussian":
        searches.insert(0, residual_candidate)
    if _is_short(problem):
        searches.insert(0 if len(problem.gram.weights) == 1 else 1, product_candidate)
    for build in searches:
        if time_left("Parts"):
            yield build
