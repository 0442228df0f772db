"""Baselines over tables: the strategies that others publish for marginals and data cubes.

The names are those of [YCPS13] with and without its optimal budgets (+): I every cell (Identity), Q
the questions (Workload), F Fourier coefficients, C a greedy selection of marginals [DWHL11]. All
are answered by least squares over everything measured, which is its consistency step.
"""

import math

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_RESIDUAL_ATTRIBUTES, MAX_TABLE_CELLS
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Identity
from dpquery.operators.thresholds import threshold_sum
from dpquery.strategy.algebra.subsets import Subset, subsets_of
from dpquery.strategy.optimize.opt_residual import best_weights, split_budget
from dpquery.strategy.search.problem import Problem, Proposal, check_cells
from dpquery.strategy.shapes.cores import CenteredCore, Core, DenseCore
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.sensitivity import sensitivity
from dpquery.strategy.shapes.weighted_block import BITS, WeightedBlock, resolution, significant

MAX_BASELINE_TABLES = 4096  # of a workload: beyond, OPT_M and OPT_R do the same and better
MAX_GREEDY = 512  # marginals that the greedy selection chooses among


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
    costs = [
        float(sensitivity([WeightedBlock(1, block)], problem.noise)) for block in workload.blocks
    ]
    weights = split_budget(np.array(errors), np.array(costs), noise=problem.noise)
    return Proposal(DirectStrategy("Workload+", problem.noise, workload, tuple(weights)))


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
    shape, cores = problem.workload.shape_of_domain, _cores(problem)
    subsets = dict.fromkeys(b for a in _measurable_sets(problem) for b in subsets_of(a))
    unit = {b: math.prod(shape[i] for i in b if shape[i] > 2) for b in subsets}
    least = resolution(1) * max(unit.values())
    weights = {b: significant(least / entry, 2 * BITS) for b, entry in unit.items()}
    return Proposal(ResidualStrategy("Fourier", problem.noise, cores, weights))


def budgeted_fourier(problem: Problem) -> Proposal:
    """Measure the same with the best share of the budget for every attribute subset."""
    cores = _cores(problem)
    weights = best_weights(cores, problem.gram, noise=problem.noise)
    return Proposal(ResidualStrategy("Fourier+", problem.noise, cores, weights))


def _cores(problem: Problem) -> tuple[Core | None, ...]:
    if max(len(a) for a in _measurable_sets(problem)) > MAX_RESIDUAL_ATTRIBUTES:
        raise UnsupportedWorkloadError(
            f"a table looks at more than {MAX_RESIDUAL_ATTRIBUTES} attributes"
        )
    return tuple(_core(n) for n in problem.workload.shape_of_domain)


def _core(n: int) -> Core | None:
    """Return the core of deviations from the mean; [1, -1] for two classes."""
    if n == 2:
        return DenseCore(np.array([[1, -1]]))
    return CenteredCore(n) if n > 1 else None


def _check_queries(problem: Problem) -> None:
    workload = problem.workload
    for block in workload.blocks:
        check_cells(block.table_shape)
    if workload.shape[0] > MAX_TABLE_CELLS:
        raise UnsupportedWorkloadError(f"{workload.shape[0]:,} queries to measure")


def _measurable_sets(problem: Problem) -> list[Subset]:
    """Return the distinct attribute sets of the workload's tables; refuse those too large."""
    workload = problem.workload
    if len(workload.blocks) > MAX_BASELINE_TABLES:
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
