"""What is tried first, whatever the clock says: strategies in closed form, and trees of blocks.

The names are those of [YCPS13]: every cell (Identity), the questions (Workload), Fourier
coefficients, with equal or with the best shares of the budget (+). All are answered by least
squares over everything measured.
"""

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_RESIDUAL_ATTRIBUTES, MAX_TABLE_CELLS
from dpquery.operators.factors import Factor, Identity, total
from dpquery.operators.trees import Hierarchy
from dpquery.strategy.optimize.opt_hierarchy import Levels, opt_hierarchy, ordered_attributes
from dpquery.strategy.optimize.opt_residual import best_weights, split_budget
from dpquery.strategy.search.candidates import Problem, Proposal, check_cells
from dpquery.strategy.sensitivity import sensitivity
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.splits import CenteredCore, Core, DenseCore
from dpquery.strategy.strategy import BITS, WeightedBlock, resolution

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
    costs = [
        float(sensitivity([WeightedBlock(1, block)], problem.noise)) for block in workload.blocks
    ]
    weights = split_budget(np.array(errors), np.array(costs), noise=problem.noise)
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
