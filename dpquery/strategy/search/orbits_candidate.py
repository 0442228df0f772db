"""OPT_S: a strategy that treats interchangeable codes alike ([MATH] 22)."""

import math

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_CELL_CLASSES, MAX_CLASSED_CELLS
from dpquery.operators.gram import classes
from dpquery.operators.orbit_rows import OrbitAxis, OrbitRows
from dpquery.strategy.algebra.interchangeable_codes import LARGEST_COMPARED, Orbits, orbits_of
from dpquery.strategy.optimize.opt_orbits import OrbitsOptimum, orbits_optimum
from dpquery.strategy.search.cell_classes_candidate import CLASSES_GAIN, CONVERGED
from dpquery.strategy.search.problem import NoGainError, Problem, Proposal
from dpquery.strategy.shapes.orbits import OrbitsStrategy

ORBIT_BITS = 24  # of the columns' length: no entry has more than the grid of exact answers


def orbits_candidate(problem: Problem) -> Proposal:
    """OPT_S: the best strategy for Gaussian noise where codes are interchangeable.

    Raises:
        NoGainError: none is better than the best one so far by CLASSES_GAIN.
    """
    if problem.noise != "gaussian":
        raise UnsupportedWorkloadError("for Gaussian noise only")
    if problem.change != "enters":
        raise UnsupportedWorkloadError("for records that enter or leave only")
    if not all(block.is_product for block in problem.workload.blocks):
        raise UnsupportedWorkloadError("for products of predicates, not for thresholds")
    gram = problem.gram
    attributes = tuple(i for i in problem.workload.attributes if gram.shape_of_domain[i] > 1)
    if len(attributes) < 2:
        raise UnsupportedWorkloadError("one attribute: OPT_0 is this")
    cells = math.prod(gram.shape_of_domain[i] for i in attributes)
    if cells <= MAX_CELL_CLASSES:
        raise UnsupportedWorkloadError(f"no more than {MAX_CELL_CLASSES:,} cells: OPT_C is this")
    if cells > MAX_CLASSED_CELLS:
        raise UnsupportedWorkloadError(f"{float(cells):.1e} cells to measure at once")
    for i in attributes:
        matrices = gram.matrices[i]
        if len(matrices) * classes(matrices[0]) ** 2 > LARGEST_COMPARED:
            raise UnsupportedWorkloadError("an attribute with too many codes to compare them all")
    orbits = [orbits_of(matrices) for matrices in gram.matrices]
    if all(len(axis.sizes) == len(axis.place) for axis in orbits):
        raise UnsupportedWorkloadError("no codes are interchangeable")
    optimum = orbits_optimum(gram, orbits, enough=problem.least_loss / (1 + CLASSES_GAIN))
    if not isinstance(optimum, OrbitsOptimum):
        reason = f"no strategy is better by {CLASSES_GAIN / 2:.1%} of its error than one here"
        raise NoGainError(reason, bound=optimum)
    strategy = _integer_strategy(problem.workload.shape_of_domain, attributes, orbits, optimum)
    return Proposal(strategy, optimum.loss <= optimum.bound * (1 + CONVERGED), optimum.bound)


def _integer_strategy(
    whole: tuple[int, ...],
    attributes: tuple[int, ...],
    orbits: list[Orbits],
    optimum: OrbitsOptimum,
) -> OrbitsStrategy:
    """Return the optimum on a grid of 2^-ORBIT_BITS; attributes that are not asked are left out."""
    axes = [OrbitAxis(orbits[i].place) for i in attributes]
    cores = {
        tuple(b[i] for i in attributes): np.rint(core * (1 << ORBIT_BITS)).astype(np.int64)
        for b, core in optimum.cores.items()
    }
    return OrbitsStrategy("OPT_S", "gaussian", whole, attributes, OrbitRows(axes, cores))
