"""Size limits of a strategy, for the search that selects one and for the reader of a plan.

A candidate past a limit never wins, so that a plan made here can always be carried out.
"""

import math

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import (
    MAX_MATRICES_BYTES,
    MAX_MATRIX_BYTES,
    MAX_STRATEGY_CELLS,
)
from dpquery.operators.block_p_identity import BlockPIdentity
from dpquery.operators.factors import Factor, Identity, Ones, PIdentity
from dpquery.operators.hierarchies import Haar, Hierarchy
from dpquery.operators.trees import Tree
from dpquery.strategy.shapes.strategies import Strategy


def check_strategy_size(strategy: Strategy) -> None:
    """Refuse strategies that are too large to be stored, read back, tabulated or answered.

    Raises:
        UnsupportedWorkloadError: its matrices, sets, levels, tables or noisy answers are too many.
    """
    for what, (number, most) in strategy.listings.items():
        _limit(what, number, most)
    matrices = [_matrix_bytes(factor) for factor in strategy.written_factors]
    _limit(
        "bytes in one matrix", max((max(sizes) for sizes in matrices), default=0), MAX_MATRIX_BYTES
    )
    _limit("bytes in matrices", sum(map(sum, matrices)), MAX_MATRICES_BYTES)
    blocks = [measurement.block for measurement in strategy.measurements]
    cells = sum(math.prod(block.table_shape) for block in blocks)
    rows = sum(block.queries for block in blocks)
    if max(cells, rows) > MAX_STRATEGY_CELLS:
        raise UnsupportedWorkloadError(
            f"tables of {float(max(cells, rows)):.1e} cells in all; "
            f"a release holds {float(MAX_STRATEGY_CELLS):.1e}"
        )


def _limit(what: str, number: int, most: int) -> None:
    if number > most:
        raise UnsupportedWorkloadError(f"its {what} are more than the {most:,} that a plan holds")


def _matrix_bytes(factor: Factor) -> tuple[int, ...]:
    """Return the bytes of each matrix of integers that stands for a factor in a plan."""
    rows, columns = factor.shape
    if isinstance(factor, Identity | Ones | Haar | Hierarchy):
        return (0,)
    if isinstance(factor, Tree):
        return tuple(8 * len(level) for level in (*factor.parents, *factor.weights))
    if isinstance(factor, PIdentity):
        return 8 * columns, 8 * len(factor.rows) * columns
    if isinstance(factor, BlockPIdentity):
        return 8 * columns, 8 * factor.inner.size, 8 * factor.outer.size
    return (8 * rows * columns,)
