"""Which tables can be fitted as wholes, of those that the questions ask for.

A column that comes from all tables together (shrunk_tables, agreeing_tables) works on the cells of
each: the strategy must hold them, and they must be few enough.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from dpquery.limits import MAX_FITTED_CELLS, MAX_FITTED_TABLE_CELLS
from dpquery.operators.blocks import Block, marginal
from dpquery.operators.valued import Valued
from dpquery.strategy.algebra.row_sums import total_of
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.shapes.strategies import Strategy

MOST_ATTRIBUTES = 6  # of a table: it has 2^6 components


@dataclass(frozen=True, eq=False)
class FittableTables:
    """Which tables can be fitted, of those that blocks ask for.

    Attributes:
        subsets: of each block, the attributes of its table; None where it cannot be fitted.
        reasons: of each block, why it cannot; empty where it can.
    """

    subsets: tuple[Subset | None, ...]
    reasons: tuple[str, ...]

    @property
    def sets(self) -> tuple[Subset, ...]:
        """The attributes of the tables that can be fitted."""
        return tuple(dict.fromkeys(subset for subset in self.subsets if subset is not None))


def fittable_tables(
    strategy: Strategy, blocks: Sequence[Block], refusal: Callable[[Block], str]
) -> FittableTables:
    """Return which tables a strategy holds whole, and small enough to be fitted.

    Args:
        strategy: what was measured.
        blocks: what is asked for.
        refusal: says why a block is not to be fitted whatever the strategy; nothing where it is.
    """
    reasons: list[str] = []
    cells: dict[Subset, int] = {}
    for block in blocks:
        subset = varying(block)
        reason = refusal(block) or _too_much(strategy, block)
        if not reason and subset not in cells:
            cells[subset] = math.prod(strategy.shape[i] for i in subset)
            if sum(cells.values()) > MAX_FITTED_CELLS:
                del cells[subset]
                reason = f"all tables have more than {MAX_FITTED_CELLS:,} cells together"
        reasons.append(reason)
    pairs = zip(blocks, reasons, strict=True)
    subsets = tuple(None if reason else varying(block) for block, reason in pairs)
    return FittableTables(subsets, tuple(reasons))


def _too_much(strategy: Strategy, block: Block) -> str:
    subset = varying(block)
    if any(isinstance(factor, Valued) for factor in block.factors):
        return "its queries are sums, not counts"
    if len(subset) > MOST_ATTRIBUTES:
        return f"a table has more than {MOST_ATTRIBUTES} attributes"
    if math.prod(strategy.shape[i] for i in subset) > MAX_FITTED_TABLE_CELLS:
        return f"a table has more than {MAX_FITTED_TABLE_CELLS:,} cells"
    if not strategy.supports(marginal(strategy.shape, subset)):
        return "the plan measures its queries, and not the cells that they count"
    return ""


def noise_of_tables(strategy: Strategy, *, noise_std: float) -> Callable[[Subset], float]:
    """Return the function that gives the sum of the variances of the cells of a table."""

    @cache
    def squared_noise(subset: Subset) -> float:
        block = marginal(strategy.shape, subset)
        return noise_std**2 * total_of(strategy.variances(block, position=None), block)

    return squared_noise


def varying(block: Block) -> Subset:
    """Return the attributes of a block that have more than one class."""
    pairs = zip(block.attributes, block.table_shape, strict=True)
    return tuple(i for i, size in pairs if size > 1)
