"""Size limits of a strategy, for the search that selects one and for the reader of a plan.

A candidate past a limit never wins, so that a plan made here can always be carried out.
"""

import math
from collections.abc import Sequence
from typing import assert_never

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.factors import Factor, Identity, Ones, PIdentity
from dpquery.operators.hierarchies import Haar, Hierarchy
from dpquery.strategy.shapes.cores import DenseCore
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.quad_tree import QuadTreeStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.strategy.shapes.union import UnionStrategy

MAX_TOTAL = 1 << 28  # cells of all tables of a strategy: what can be tabulated
MAX_MATRIX_BYTES = 1 << 29  # of a matrix: of 8192 codes, whose inverse takes a minute
MAX_ALL_BYTES = 1 << 31
MAX_SUBSETS = 1 << 22  # of all sets that marginals measure: each is looked at
MAX_LEVELS = 64  # of a quad-tree: the size of its blocks doubles at least now and then


def check_strategy_size(strategy: Strategy) -> None:
    """Refuse strategies that are too large to be held, read back, tabulated or answered.

    Raises:
        UnsupportedWorkloadError: its matrices, sets, levels, tables or noisy answers are too many.
    """
    if isinstance(strategy, MarginalsStrategy):
        _limit("sets and their subsets", sum(1 << len(b) for b in strategy.weights), MAX_SUBSETS)
    if isinstance(strategy, QuadTreeStrategy):
        _limit("levels", len(strategy.levels), MAX_LEVELS)
    matrices = [_matrix_bytes(factor) for factor in _written_out(strategy)]
    _limit(
        "bytes in one matrix", max((max(sizes) for sizes in matrices), default=0), MAX_MATRIX_BYTES
    )
    _limit("bytes in matrices", sum(map(sum, matrices)), MAX_ALL_BYTES)
    blocks = [measurement.block for measurement in strategy.measurements]
    cells = sum(math.prod(block.table_shape) for block in blocks)
    rows = sum(block.queries for block in blocks)
    if max(cells, rows) > MAX_TOTAL:
        raise UnsupportedWorkloadError(
            f"tables of {float(max(cells, rows)):.1e} cells in all; "
            f"a release holds {float(MAX_TOTAL):.1e}"
        )


def _limit(what: str, number: int, most: int) -> None:
    if number > most:
        raise UnsupportedWorkloadError(f"its {what} are more than the {most:,} that a plan holds")


def _written_out(strategy: Strategy) -> Sequence[Factor]:
    """Return the factors whose matrices a plan may contain."""
    match strategy:
        case ProductStrategy(factors=factors):
            return factors
        case MarginalsStrategy(factors=written):
            return tuple(written.values())
        case ResidualStrategy(cores=cores):
            return [core.factor for core in cores if isinstance(core, DenseCore)]
        case UnionStrategy(parts=parts):
            return [factor for part in parts for factor in part.factors]
        case QuadTreeStrategy() | DirectStrategy():
            return ()
    assert_never(strategy)


def _matrix_bytes(factor: Factor) -> tuple[int, ...]:
    """Return the bytes of each matrix of integers that stands for a factor in a plan."""
    rows, columns = factor.shape
    if isinstance(factor, Identity | Ones | Haar | Hierarchy):
        return (0,)
    if isinstance(factor, PIdentity):
        return 8 * columns, 8 * len(factor.rows) * columns
    return (8 * rows * columns,)
