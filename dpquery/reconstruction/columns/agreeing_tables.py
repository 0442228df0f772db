"""Tables without negative cells that agree with one another: `consistent` where totals overlap.

The components of tables are measured with white noise where each attribute is asked for its values
and its total alone, or has two classes: then the nearest tables, each component weighed by one over
its variance, are those nearest in standard errors. Where ranges, prefixes or groups are asked of an
attribute, its noise is small just for these, and no component has one variance: tables over such an
attribute are left out.

All answers of a table are read off its cells, so that totals and margins are the sums of what they
are made of. Cells in whole numbers are rounded from the total down, axis by axis, largest
remainders up, so that totals along the first axes are nearest whole numbers too.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block, marginal
from dpquery.operators.factors import Factor, Identity, IdentityRows, Ones, Stacked
from dpquery.reconstruction.columns.fittable_tables import (
    fittable_tables,
    noise_of_tables,
    varying,
)
from dpquery.reconstruction.columns.nonnegative_tables import NonnegativeTables
from dpquery.reconstruction.columns.shrinkage import unshrunk_components
from dpquery.reconstruction.columns.simplex import to_whole
from dpquery.reconstruction.columns.stacked_tables import StackedSets
from dpquery.reconstruction.least_squares import Estimates
from dpquery.strategy.shapes.strategies import Strategy

AGREEING_STEPS = 200  # towards the nearest tables: what is then below zero is far below the noise


class AgreeingTables:
    """The consistent cells of all tables that can be fitted, block by block; fitted when asked."""

    def __init__(
        self,
        strategy: Strategy,
        estimates: Estimates,
        blocks: Sequence[Block],
        *,
        noise_std: float,
    ) -> None:
        """Say which tables can be fitted.

        Args:
            strategy: what was measured.
            estimates: the least-squares solution.
            blocks: what is asked for, of the release and later; others have no answers.
            noise_std: standard deviation of the noise on each measured row.

        Privacy:
            Post-processing: a function of noisy answers and public inputs.
        """
        colored = {
            i
            for block in blocks
            for i, factor in zip(block.attributes, block.factors, strict=True)
            if factor.shape[1] > 2 and not _white(factor)
        }

        def refusal(block: Block) -> str:
            if colored.isdisjoint(block.attributes):
                return ""
            return "ranges, prefixes or groups are asked of one of its attributes"

        self.scope = fittable_tables(strategy, blocks, refusal)
        self._strategy, self._estimates, self._noise_std = strategy, estimates, noise_std
        self._subsets = dict(zip(blocks, self.scope.subsets, strict=True))
        self._whole: dict[tuple[int, ...], Ints] = {}

    def answer(self, block: Block) -> Floats | None:
        """Return the answers of a block, of shape block.row_shape; None where it has none."""
        if self._subsets.get(block) is None:
            return None
        return block.apply(self._cells(block))

    def whole_numbers(self, block: Block) -> Ints | None:
        """Return the same in whole numbers that add up; int64."""
        subset = self._subsets.get(block)
        if subset is None:
            return None
        if subset not in self._whole:
            self._whole[subset] = whole_cells(self._cells(block))
        counted = block.apply(self._whole[subset].reshape(block.table_shape))
        return np.asarray(np.rint(counted), dtype=np.int64)

    @cached_property
    def _tables(self) -> NonnegativeTables:
        shape = self._strategy.shape

        def table_of(subset: tuple[int, ...]) -> Floats:
            return self._estimates.answer(marginal(shape, subset), None)

        noise_of = noise_of_tables(self._strategy, noise_std=self._noise_std)
        sets = StackedSets(shape, self.scope.sets)
        tables = NonnegativeTables(unshrunk_components(sets, table_of, noise_of))
        tables.improve(AGREEING_STEPS)
        return tables

    def _cells(self, block: Block) -> Floats:
        """Return the cells of a block's table: none negative, of the estimated total."""
        cells = self._tables.table(varying(block))
        total, size = self._tables.total, float(cells.sum())
        cells = cells * (total / size) if size > 0 else cells
        return np.asarray(cells.reshape(block.table_shape))


def _white(factor: Factor) -> bool:
    """Return whether a factor asks for single values and the total alone."""
    if isinstance(factor, Stacked):
        return all(map(_white, factor.parts))
    return isinstance(factor, Identity | IdentityRows | Ones)


def whole_cells(cells: Floats) -> Ints:
    """Round the cells of a table so that sums along its first axes are nearest whole numbers.

    Args:
        cells: none negative.

    >>> whole_cells(np.array([[0.4, 0.4], [1.3, 0.7]]))
    array([[1, 0],
           [1, 1]])
    """
    rounded = np.rint(cells.sum()).astype(np.int64).reshape(1)
    for axis in range(cells.ndim):
        sums = cells.sum(axis=tuple(range(axis + 1, cells.ndim)))
        rounded = to_whole(sums.reshape(len(rounded), -1), rounded).reshape(-1)
    return np.asarray(rounded.reshape(cells.shape))
