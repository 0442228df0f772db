"""OPT_C: a strategy over classes of cells that no query tells apart ([MATH] 21)."""

import math

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_CELL_CLASSES
from dpquery.operators.cell_classes import cell_classes, gram_of_classes
from dpquery.operators.factors import Dense, Factor
from dpquery.operators.gram import Gram, Mixture
from dpquery.public_chance import public_generator
from dpquery.strategy.optimize.opt_0 import opt_0
from dpquery.strategy.optimize.opt_0_moves import MOST_MOVED, MOVES_GAP, moves_optimum
from dpquery.strategy.optimize.opt_cells import CellsOptimum, cells_optimum
from dpquery.strategy.optimize.opt_residual import best_weights
from dpquery.strategy.search.problem import NoGainError, Problem, Proposal
from dpquery.strategy.shapes.cell_classes import CellClassesStrategy
from dpquery.strategy.shapes.cores import Core, DenseCore
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.weighted_block import integer_factor

CLASSES_GAIN = 1e-2  # of the loss: tables answer more later questions than classes of their cells
CONVERGED = 1e-3  # relative gap to the bound of the classes' own optimum
CLASS_BITS = 20  # of the integers of a strategy of classes: its least rows are short
_GAIN_TEXT = f"{CLASSES_GAIN / 2:.1%} of its error than the best one here"
MAX_P_CLASSES = 128  # of a p-Identity: its search takes seconds, and gains a few per cent


def cell_classes_candidate(problem: Problem) -> Proposal:
    """OPT_C: the best strategy over classes of cells that no query tells apart.

    Raises:
        NoGainError: none is better than the best one so far by CLASSES_GAIN.
    """
    most = MAX_CELL_CLASSES if problem.noise == "gaussian" else MAX_P_CLASSES
    classes = cell_classes(problem.workload, most=most)
    if len(classes.attributes) < 2:
        raise UnsupportedWorkloadError("one attribute: OPT_0 is this")
    if classes.count < 2:
        raise UnsupportedWorkloadError("all questions ask for the total")
    if problem.noise == "laplace" and classes.count == len(classes.codes):
        raise UnsupportedWorkloadError("every cell is told apart: nothing is gained by classes")
    V = gram_of_classes(problem.workload, classes)
    inner, converged, bound = _inner(problem, V)
    return Proposal(CellClassesStrategy("OPT_C", problem.noise, classes, inner), converged, bound)


def _inner(problem: Problem, V: Floats) -> tuple[ProductStrategy | ResidualStrategy, bool, float]:
    """Return the strategy of the classes' counts, whether it converged, and a bound or 0."""
    change = problem.change
    if problem.noise == "laplace":
        factor, loss, converged = _p_identity(problem, V)
        if loss > problem.least_loss / (1 + CLASSES_GAIN):
            raise NoGainError(f"no better by {_GAIN_TEXT}", bound=0.0)
        return ProductStrategy("OPT_0", "laplace", (factor,)), converged, 0.0
    if change != "enters" and len(V) <= MOST_MOVED:
        return _moved(problem, V)
    enough = problem.least_loss / (1 + CLASSES_GAIN) if change == "enters" else math.inf
    optimum = cells_optimum(V, enough=enough)
    if not isinstance(optimum, CellsOptimum):
        raise NoGainError(f"no strategy is better by {_GAIN_TEXT}", bound=optimum)
    converged = optimum.loss <= optimum.bound * (1 + CONVERGED)
    factor = integer_factor(Dense(optimum.rows), noise="gaussian", bits=CLASS_BITS)
    return ProductStrategy("OPT_0", "gaussian", (factor,)), converged, optimum.bound


def _p_identity(problem: Problem, V: Floats) -> tuple[Factor, float, bool]:
    """Return the better of p-Identities of two numbers of rows, its loss and if it converged."""
    rng = public_generator(problem.seed)
    divisors = (16, 8) if len(V) <= MOST_MOVED else (16,)
    selections = [
        opt_0(V, noise="laplace", rng=rng, p=max(1, len(V) // divisor)) for divisor in divisors
    ]
    best = min(selections, key=lambda selection: selection.loss)
    return integer_factor(best.factor, noise="laplace"), best.loss, best.converged


def _moved(problem: Problem, V: Floats) -> tuple[ProductStrategy | ResidualStrategy, bool, float]:
    """Return the optimum where records move; beside a total that is free where none leaves."""
    optimum = moves_optimum(V, problem.change)
    converged = optimum.loss <= optimum.bound * (1 + MOVES_GAP)
    factor = integer_factor(Dense(optimum.rows), noise="gaussian", bits=CLASS_BITS)
    if problem.change == "moves":
        return ProductStrategy("OPT_0", "gaussian", (factor,)), converged, optimum.bound
    cores: tuple[Core | None, ...] = (DenseCore(np.asarray(factor.dense(), dtype=np.int64)),)
    whole = Gram(
        (len(V),), np.ones(1), np.ones((1, 1), dtype=np.int32), ((Mixture(len(V), 0.0, 1.0), V),)
    )
    weights = best_weights(cores, whole, noise="gaussian", change=problem.change)
    return ResidualStrategy("OPT_R", "gaussian", cores, weights), converged, optimum.bound
