"""Strategies that others publish, to compare with in `make bench-strategies`.

Over tables, by the names of [YCPS13] with and without its optimal budgets (+): the workload's
tables (Marginals), a greedy selection of them (DataCube [DWHL11]), their Fourier coefficients. Over
ranges: binary trees (H2 [HRMS10]) and trees of the best branching (HB [QYL13]). All are answered by
least squares over everything measured, which is their consistency step.
"""

import math
from collections.abc import Callable

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block, threshold_sum
from dpquery.operators.factors import Factor, Identity, total
from dpquery.operators.trees import Hierarchy
from dpquery.strategy.algebra.subsets import Subset, subsets_of
from dpquery.strategy.optimize.opt_hierarchy import ordered_attributes, tree_sizes
from dpquery.strategy.optimize.opt_residual import split_budget
from dpquery.strategy.search.candidates import Problem, Proposal, check_cells
from dpquery.strategy.search.closed_forms import MAX_FOURIER_TABLES, fourier_cores
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.strategy import BITS, resolution, significant

MAX_GREEDY = 512  # marginals that the greedy selection chooses among


def marginals(problem: Problem) -> Proposal:
    """Measure the cells of every table of the workload, with equal noise."""
    tables = _measurable_sets(problem)
    return _marginals("Marginals", problem, {a: a for a in tables}, optimal=False)


def budgeted_marginals(problem: Problem) -> Proposal:
    """Measure the cells of every table of the workload, with the best shares of the budget."""
    tables = _measurable_sets(problem)
    return _marginals("Marginals+", problem, {a: a for a in tables}, optimal=True)


def data_cube(problem: Problem) -> Proposal:
    """Measure a greedy selection of the workload's tables, with equal noise."""
    return _marginals("DataCube", problem, _greedy(problem), optimal=False)


def budgeted_data_cube(problem: Problem) -> Proposal:
    """Measure a greedy selection of the workload's tables, with the best shares."""
    return _marginals("DataCube+", problem, _greedy(problem), optimal=True)


def fourier(problem: Problem) -> Proposal:
    """Measure the Fourier coefficients of every table of the workload, with equal noise.

    Over attributes of two classes they are products of [1, -1]. An attribute of more classes has
    the deviations from its mean in their place, I - 11'/n.
    """
    shape, cores = problem.workload.shape_of_domain, fourier_cores(problem)
    subsets = dict.fromkeys(b for a in _measurable_sets(problem) for b in subsets_of(a))
    unit = {b: math.prod(shape[i] for i in b if shape[i] > 2) for b in subsets}
    least = resolution(1) * max(unit.values())
    weights = {b: significant(least / entry, 2 * BITS) for b, entry in unit.items()}
    return Proposal(ResidualStrategy("Fourier", problem.noise, cores, weights))


def _measurable_sets(problem: Problem) -> list[Subset]:
    """Return the distinct attribute sets of the workload's tables; refuse those too large."""
    workload = problem.workload
    if len(workload.blocks) > MAX_FOURIER_TABLES:
        raise UnsupportedWorkloadError(f"{len(workload.blocks):,} tables")
    tables = list(dict.fromkeys(_set_of(block) for block in workload.blocks))
    for a in tables:
        check_cells([workload.shape_of_domain[i] for i in a])
    return tables


def _set_of(block: Block) -> Subset:
    return tuple(i for i in block.attributes if block.shape_of_domain[i] > 1)


def _marginals(
    name: str, problem: Problem, sources: dict[Subset, Subset], *, optimal: bool
) -> Proposal:
    """Measure the marginals that serve as sources, with equal or with the best shares.

    The best shares are those for tables each answered from its own source alone: least squares
    over all of them only lowers the error further.
    """
    workload, measured = problem.workload, list(dict.fromkeys(sources.values()))
    if not optimal:
        weights = dict.fromkeys(measured, resolution(1))
        return Proposal(MarginalsStrategy(name, problem.noise, workload.shape_of_domain, weights))
    errors = dict.fromkeys(measured, 0.0)
    for weight, block in zip(workload.weights, workload.blocks, strict=True):
        attributes = _set_of(block)
        beyond = (workload.shape_of_domain[i] for i in sources[attributes] if i not in attributes)
        errors[sources[attributes]] += weight * _squared_norm(block) * math.prod(beyond)
    shares = split_budget(
        np.array(list(errors.values())), np.ones(len(errors)), noise=problem.noise
    )
    weights = dict(zip(measured, shares, strict=True))
    return Proposal(MarginalsStrategy(name, problem.noise, workload.shape_of_domain, weights))


def _squared_norm(block: Block) -> float:
    """Return the sum of squares of a block's entries over its own table.

    Those of an r-of-k block are 0 or 1, so that it is a count of entries.
    """
    if block.is_product:
        return math.prod(float(factor.row_squares.sum()) for factor in block.factors)
    scale, pairs = 1, []
    for factor, counted in zip(block.factors, block.counted, strict=True):
        hits = int(factor.row_sums.sum())
        if counted:
            pairs.append((math.prod(factor.shape) - hits, hits))
        else:
            scale *= hits
    return float(scale * int(threshold_sum(pairs, block.at_least)))


def _greedy(problem: Problem) -> dict[Subset, Subset]:
    """Return which measured table answers each table of the workload, chosen greedily [DWHL11].

    Starts from the tables that no other holds and adds one after the other while the total squared
    error falls, each table answered from one measured table alone: count^2 times the measured
    cells that are added up for it.
    """
    tables, shape = _measurable_sets(problem), problem.workload.shape_of_domain
    if len(tables) > MAX_GREEDY:
        raise UnsupportedWorkloadError(f"{len(tables):,} marginals to choose among")
    cells = [float(math.prod(shape[i] for i in a)) for a in tables]
    summed = np.array(
        [
            [count if set(a) <= set(b) else math.inf for a in tables]
            for b, count in zip(tables, cells, strict=True)
        ]
    )
    chosen = [k for k, a in enumerate(tables) if not any(set(a) < set(b) for b in tables)]
    nearest = summed[chosen].min(axis=0)
    score = len(chosen) ** 2 * float(nearest.sum())
    while len(chosen) < len(tables):
        totals = np.minimum(summed, nearest).sum(axis=1)
        k = int(np.argmin(totals))
        if (len(chosen) + 1) ** 2 * float(totals[k]) >= score:
            break
        chosen.append(k)
        nearest = np.minimum(nearest, summed[k])
        score = len(chosen) ** 2 * float(nearest.sum())
    order: Ints = np.argmin(summed[chosen], axis=0)
    return {a: tables[chosen[int(k)]] for a, k in zip(tables, order, strict=True)}


def h2(problem: Problem) -> Proposal:
    """Binary trees with equal noise on all nodes (H2 of [HRMS10])."""
    return _product("H2", problem, lambda _, n: hierarchy(n, tree_sizes(n, 2)))


def hb(problem: Problem) -> Proposal:
    """Trees of the best branching without their root, with equal noise (HB of [QYL13])."""
    return _product("HB", problem, lambda _, n: hierarchy(n, tree_sizes(n, best_branching(n))[:-1]))


def hierarchy(n: int, sizes: tuple[int, ...]) -> Factor:
    """Return the tree of these block sizes with equal weights; one level is the identity."""
    return Hierarchy(n, sizes, (1,) * len(sizes)) if len(sizes) > 1 else Identity(n)


def _product(name: str, problem: Problem, build: Callable[[int, int], Factor]) -> Proposal:
    ordered, factors = _check(problem), []
    looked_at = np.any(problem.gram.index, axis=0)
    for i, n in enumerate(problem.workload.shape_of_domain):
        if i in ordered:
            factors.append(build(i, n))
        else:
            factors.append(Identity(n) if looked_at[i] or n == 1 else total(n))
    return Proposal(ProductStrategy(name, problem.noise, tuple(factors)))


def _check(problem: Problem) -> list[int]:
    """Return the attributes that take a hierarchy."""
    shape = problem.workload.shape_of_domain
    looked_at = np.any(problem.gram.index, axis=0)
    check_cells([n for n, needed in zip(shape, looked_at, strict=True) if needed])
    ordered = ordered_attributes(problem.gram)
    if not ordered:
        raise UnsupportedWorkloadError("no attribute is asked for ranges")
    return ordered


def best_branching(n: int) -> int:
    """Return the branching of HB: least mean variance over all ranges, by the rule of [QYL13].

    With h = ceil(log_b n) levels below the root it goes with (b - 1) h^3 - 2 (b + 1) h^2 / 3.
    """

    def error(b: int) -> float:
        h = len(tree_sizes(n, b)) - 1
        return (b - 1) * h**3 - 2 * (b + 1) * h**2 / 3

    return min(range(2, n + 1), key=error)


BASELINES = {
    "Marginals": marginals,
    "Marginals+": budgeted_marginals,
    "DataCube": data_cube,
    "DataCube+": budgeted_data_cube,
    "Fourier": fourier,
    "H2": h2,
    "HB": hb,
}
