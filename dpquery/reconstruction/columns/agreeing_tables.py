"""Tables without negative cells that agree with one another: `consistent` of all that is asked.

Tables that share an attribute, by way of others too, are fitted together. Where the joint classes
of all their attributes are few enough, they are margins of one joint table (joint_counts), whatever
is asked: levels, prefixes, ranges, overlapping groups, thresholds. Beyond that, each table is
fitted by its components (nonnegative_tables), which the tables share. A component has one variance
where each attribute is asked for its values and its total alone, or has two classes; where ranges,
prefixes or groups are asked of an attribute, its noise is small just for these (noise_shapes).

All answers of a table are read off its cells, so that totals and margins are the sums of what they
are made of.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block, marginal
from dpquery.operators.factors import Factor, Identity, IdentityRows, Ones, Stacked
from dpquery.operators.valued import Valued
from dpquery.reconstruction.columns.fittable_tables import (
    FittableTables,
    fittable_tables,
    noise_of_tables,
    varying,
)
from dpquery.reconstruction.columns.joint_counts import (
    JointCounts,
    Measured,
    attributes_together,
)
from dpquery.reconstruction.columns.noise_shapes import SHAPED, noise_shape
from dpquery.reconstruction.columns.nonnegative_tables import NonnegativeTables
from dpquery.reconstruction.columns.shrinkage import unshrunk_components
from dpquery.reconstruction.columns.simplex import onto_simplex
from dpquery.reconstruction.columns.stacked_tables import StackedSets
from dpquery.reconstruction.columns.whole_cells import whole_cells

AGREEING_STEPS = 200  # towards the nearest tables: what is then below zero is far below the noise


class AgreeingTables:
    """The consistent answers of all blocks, fitted when they are first asked for.

    Attributes:
        reasons: of each block, why it has none; empty where it has.
    """

    def __init__(self, measured: Measured, blocks: Sequence[Block]) -> None:
        """Say which tables can be fitted.

        Args:
            measured: what is known of them.
            blocks: what is asked for, of the release and later; others have no answers.

        Privacy:
            Post-processing: a function of noisy answers and public inputs.
        """
        self._measured = measured
        strategy = measured.strategy
        linked = [block.attributes for block in blocks]
        linked += [rows.block.attributes for rows in strategy.measurements]
        together = attributes_together(strategy.shape, linked)
        self._joint: dict[Block, JointCounts] = {}
        lone: set[Block] = set()
        for attributes in [*together, ()]:
            asked = [block for block in blocks if _within(block, attributes)]
            joint = JointCounts(measured, attributes, asked)
            if joint.fits:
                self._joint |= dict.fromkeys(asked, joint)
            if len({(block.attributes, _keys(block)) for block in asked}) == 1:
                lone |= set(asked)
        self._lone = frozenset(lone)
        beyond = [block for block in blocks if block not in self._joint]
        self._tables_apart = _TablesApart(measured, beyond)
        apart = dict(zip(beyond, self._tables_apart.scope.reasons, strict=True))
        self.reasons = tuple(_sums(block) or apart.get(block, "") for block in blocks)
        self._refused = {block for block, why in zip(blocks, self.reasons, strict=True) if why}

    def alone(self, block: Block) -> bool:
        """Return whether no other table shares an attribute with a block."""
        return block in self._lone

    def answer(self, block: Block) -> Floats | None:
        """Return the answers of a block, of shape block.row_shape; None where it has none."""
        if block in self._refused:
            return None
        if block in self._joint:
            return self._joint[block].answer(block)
        return self._tables_apart.answer(block)

    def whole_numbers(self, block: Block) -> Ints | None:
        """Return the same in whole numbers that add up; int64."""
        if block in self._refused:
            return None
        if block in self._joint:
            return self._joint[block].whole_numbers(block)
        return self._tables_apart.whole_numbers(block)


class _TablesApart:
    """Tables whose joint classes are too many: they share components, and agree as far as these."""

    def __init__(self, measured: Measured, blocks: Sequence[Block]) -> None:
        strategy = measured.strategy
        self._shaped = {
            i
            for block in blocks
            for i, factor in zip(block.attributes, block.factors, strict=True)
            if factor.shape[1] > 2 and not _white(factor)
        }

        def refusal(block: Block) -> str:
            wide = [i for i in self._shaped & set(block.attributes) if strategy.shape[i] > SHAPED]
            if not wide:
                return ""
            return (
                f"ranges, prefixes or groups are asked of an attribute of more than {SHAPED:,} "
                "classes, and the tables that it shares attributes with have too many cells "
                "together"
            )

        self.scope: FittableTables = fittable_tables(strategy, blocks, refusal)
        self._measured = measured
        self._subsets = dict(zip(blocks, self.scope.subsets, strict=True))
        self._whole: dict[tuple[int, ...], Ints] = {}

    def answer(self, block: Block) -> Floats:
        return block.apply(self._cells(block).reshape(block.table_shape))

    def whole_numbers(self, block: Block) -> Ints:
        subset = varying(block)
        if subset not in self._whole:
            cells = self._cells(block)
            self._whole[subset] = whole_cells(cells, [None] * cells.ndim)
        counted = block.apply(self._whole[subset].reshape(block.table_shape))
        return np.asarray(np.rint(counted), dtype=np.int64)

    @cached_property
    def _tables(self) -> NonnegativeTables:
        measured = self._measured
        shape = measured.strategy.shape

        def table_of(subset: tuple[int, ...]) -> Floats:
            return measured.estimates.answer(marginal(shape, subset), None)

        noise_of = noise_of_tables(measured.strategy, noise_std=measured.noise_std)
        sets = StackedSets(shape, self.scope.sets)
        fitted = {i for subset in self.scope.sets for i in subset}
        shapes = {i: noise_shape(measured.strategy, i) for i in sorted(self._shaped & fitted)}
        tables = NonnegativeTables(unshrunk_components(sets, table_of, noise_of, shapes))
        tables.improve(AGREEING_STEPS)
        return tables

    def _cells(self, block: Block) -> Floats:
        """Return the cells of a block's table: none negative, of the estimated total."""
        cells = self._tables.table(varying(block))
        flat, total = cells.reshape(1, -1), np.array([self._tables.total])
        return onto_simplex(flat, np.ones_like(flat), total).reshape(cells.shape)


def _within(block: Block, attributes: Sequence[int]) -> bool:
    """Return whether a block looks at some attributes that belong together, or at none."""
    looked_at = varying(block)
    return bool(looked_at) == bool(attributes) and set(looked_at) <= set(attributes)


def _keys(block: Block) -> tuple[object, ...]:
    return (block.at_least, *(factor.key for factor in block.factors))


def _sums(block: Block) -> str:
    """Return why a block of sums has no answers; nothing for counts."""
    valued = any(isinstance(factor, Valued) for factor in block.factors)
    return "its queries are sums, not counts" if valued else ""


def _white(factor: Factor) -> bool:
    """Return whether a factor asks for single values and the total alone."""
    if isinstance(factor, Stacked):
        return all(map(_white, factor.parts))
    return isinstance(factor, Identity | IdentityRows | Ones)
