"""Tables that agree, without negative cells (consistent), and the best guess at every table.

Tables that share an attribute, by way of others too, are fitted together. Where the joint classes
of all their attributes are few enough, they are margins of one joint table (joint_counts), whatever
is asked: levels, prefixes, ranges, overlapping groups, thresholds. Beyond that, each table is
fitted by its components (NonnegativeTables), which the tables share. A component has one variance
where each attribute is asked for its values and its total alone, or has two classes; where ranges,
prefixes or groups are asked of an attribute, its noise is small just for these (NoiseShape).

All answers of a table are read off its cells, so that totals and margins are the sums of what they
are made of.

Tables over many attribute sets agree if one component for each subset makes them all. Those
components that are nearest to given ones, each weighed by its precision, and leave no cell below
zero minimise a convex function. The alternating direction method of multipliers takes turns
between components, which have a closed form as they are orthogonal, and cells, which are cut at
zero ([MATH] 16; [Mullins24] poses the problem). The state of a cell is one number: with w the cell
plus its multiplier, the cut cell is max(w, 0), the multiplier min(w, 0), and components see |w|.

Each table is shrunk component by component (shrinkage), then all are moved to the nearest tables
that agree and have no negative cell (NonnegativeTables). Single answers have no interval then:
their error depends on the data, and the posterior's intervals do not hold their level. That of all
answers together is told by the noisy values (columns.told_error).
"""

import math
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block, kron_apply, marginal, outer_product
from dpquery.operators.factors import Factor, Groups, Identity, IdentityRows, Ones, Stacked, Valued
from dpquery.operators.ranges import Ranges
from dpquery.reconstruction.components import (
    Components,
    FittableTables,
    KeptAxes,
    Sizes,
    StackedSets,
    Stacks,
    add_below,
    component_noise,
    fittable_tables,
    margin,
    noise_of_tables,
    per_table,
    proper_axes,
    residual,
    shrunk_components,
    table_chunks,
    unshrunk_components,
    varying,
)
from dpquery.reconstruction.joint_counts import JointCounts, attributes_together
from dpquery.reconstruction.least_squares import Measured
from dpquery.reconstruction.nearest import SHAPED, noise_shape, onto_total, whole_cells
from dpquery.strategy.algebra.subsets import Subset, subsets_of

ITERATIONS = 10  # after which the error of shrunk tables stands still: see docs/benchmarks.md


class NonnegativeTables:
    """Tables over many sets, moved towards the nearest that agree and have no negative cell.

    A set that is within no other has its component in its own table alone. So such a component is
    never written down: given the cells, it is a mean of theirs and of the one it is to be near to.
    """

    def __init__(self, components: Components) -> None:
        """Take the components that the tables are to be near to, and start from their tables."""
        self._sets, self._given = components.sets, components
        groups, shapes = self._sets.groups, components.shapes
        within = {
            smaller
            for group in groups.values()
            for subset in group
            for smaller in subsets_of(subset)
            if len(smaller) == len(subset) - 1
        }
        # the places in their groups of the sets that are within no other, then of those with shapes
        widest = {
            sizes: [place for place, subset in enumerate(group) if subset not in within]
            for sizes, group in groups.items()
        }
        self._widest = {sizes: np.array(places) for sizes, places in widest.items() if places}
        self._shaped = {
            sizes: [k for k, subset in enumerate(group) if not shapes.keys().isdisjoint(subset)]
            for sizes, group in groups.items()
        }
        every = [each for sizes, each in components.precision.items() if len(sizes) > 1]
        self._step = float(np.median(np.concatenate(every))) if every else 1.0
        shared = [sizes for sizes, places in widest.items() if len(places) < len(groups[sizes])]
        self._values = {sizes: components.values[sizes].copy() for sizes in shared}
        self._weights = {sizes: np.zeros(len(groups[sizes])) for sizes in shared}
        # of the widest tables their cells, the states of these, and the margins of what states say
        self._cells: Stacks = {}
        self._states: Stacks = {}
        self._margins: dict[Sizes, dict[KeptAxes, Floats]] = {}
        for sizes, places in self._widest.items():
            self._margins[sizes] = {}
            self._cells[sizes] = components.values[sizes][places]
            for part in table_chunks(len(places), sizes):
                add_below(self._cells[sizes][part], self._below(sizes, places[part]))
            self._states[sizes] = self._cells[sizes].copy()
            for axes in proper_axes(len(sizes)):
                part_sizes = tuple(sizes[k] for k in axes)
                self._margins[sizes][axes] = np.empty((len(places), *part_sizes))
                targets = self._sets.below(sizes, axes)[places]
                np.add.at(self._weights[part_sizes], targets, self._share(sizes, part_sizes))

    def improve(self, iterations: int = ITERATIONS) -> None:
        """Take so many steps towards the nearest tables."""
        for _ in range(iterations):
            self._solve_components()
            self._move_cells()

    @property
    def total(self) -> float:
        """The number of records, which every table adds up to but for what is cut at zero."""
        return max(float((self._values if () in self._values else self._cells)[()][0]), 0.0)

    def table(self, subset: Subset) -> Floats:
        """Return the table over a set, of the sizes of its attributes; no cell is negative.

        What is still below zero after some steps is cut off: the sum is higher by so much.
        """
        sizes, place = self._sets.sizes_of(subset), self._sets.places[subset]
        rows = np.flatnonzero(self._widest.get(sizes, np.zeros(0)) == place)
        if len(rows):
            return np.asarray(np.maximum(self._cells[sizes][rows[0]], 0.0))
        tables = self._values[sizes][[place]]
        add_below(tables, self._below(sizes, np.array([place])))
        return np.asarray(np.maximum(tables[0], 0.0))

    def _share(self, sizes: Sizes, part_sizes: Sizes) -> float:
        """Return the weight with which tables pull at the component of some of their axes."""
        return self._step * math.prod(part_sizes) / math.prod(sizes)

    def _below(self, sizes: Sizes, places: Ints) -> dict[KeptAxes, Floats]:
        """Return the components of all proper subsets of some sets of a group, by their axes."""
        return {
            axes: self._values[tuple(sizes[k] for k in axes)][self._sets.below(sizes, axes)[places]]
            for axes in proper_axes(len(sizes))
        }

    def _solve_components(self) -> None:
        """Move every component to its best value, given the cells of the tables that share it."""
        sums = {sizes: np.zeros_like(values) for sizes, values in self._values.items()}
        for sizes, places in self._widest.items():
            for part in table_chunks(len(places), sizes):
                for axes, sums_of_cells in _margins_of(np.abs(self._states[sizes][part])):
                    part_sizes = tuple(sizes[k] for k in axes)
                    self._margins[sizes][axes][part] = sums_of_cells
                    pull = self._share(sizes, part_sizes) * sums_of_cells
                    targets = self._sets.below(sizes, axes)[places[part]]
                    np.add.at(sums[part_sizes], targets, pull)
        for sizes, sums_of_tables in sums.items():
            sums[sizes] = total = residual(sums_of_tables)
            precision, given = self._given.precision[sizes], self._given.values[sizes]
            weights = self._weights[sizes]
            shaped = {
                place: self._best_where_shaped(sizes, place, total[place], weights[place])
                for place in self._shaped[sizes]
            }
            total += given * per_table(precision, len(sizes))
            total /= per_table(weights + precision, len(sizes))
            for place, best in shaped.items():
                total[place] = best
        self._values = sums

    def _move_cells(self) -> None:
        """Set the cells to the tables of the components, then move the states by what was cut."""
        for sizes, places in self._widest.items():
            order, cells, states = len(sizes), self._cells[sizes], self._states[sizes]
            precision, given = self._given.precision[sizes], self._given.values[sizes]
            margins = self._margins[sizes]
            for part in table_chunks(len(places), sizes):
                at, tables = places[part], cells[part]
                believed = self._step / (self._step + precision[at])  # (count,) of the cells
                np.abs(states[part], out=tables)
                tables *= per_table(believed, order)
                tables += given[at] * per_table(1 - believed, order)
                parts = self._below(sizes, at)
                for axes, components in parts.items():
                    # less what the cells' own margins say: what is left sums to zero by each axis
                    sign = (-1) ** (order - len(axes))
                    believed_margins = per_table(believed, len(axes)) * margins[axes][part]
                    components += sign * believed_margins
                add_below(tables, parts)
            for row in np.flatnonzero(np.isin(places, self._shaped[sizes])):
                seen = self._step * residual(np.abs(states[row : row + 1]))[0]
                cells[row] = self._best_where_shaped(sizes, places[row], seen, self._step)
                add_below(cells[row : row + 1], self._below(sizes, places[row : row + 1]))
            np.minimum(states, 0.0, out=states)
            states += cells

    def _best_where_shaped(self, sizes: Sizes, place: int, sums: Floats, weight: float) -> Floats:
        """Return the best component where noise is not white: each contrast is one by itself."""
        shapes = [self._given.shapes.get(i) for i in self._sets.groups[sizes][place]]
        bases = [None if shape is None else shape.basis for shape in shapes]
        into = [None if basis is None else basis.T.__matmul__ for basis in bases]
        back = [None if basis is None else basis.__matmul__ for basis in bases]
        relative = outer_product(
            [
                np.ones(size) if shape is None else shape.precision
                for size, shape in zip(sizes, shapes, strict=True)
            ]
        )
        precision = self._given.precision[sizes][place] * relative
        given = kron_apply(into, self._given.values[sizes][place])
        best = (kron_apply(into, sums) + precision * given) / (weight + precision)
        return np.asarray(kron_apply(back, best))


def _margins_of(tables: Floats) -> Iterator[tuple[KeptAxes, Floats]]:
    """Yield all proper margins of a stack of tables, each from a larger one, with its axes."""
    known = {tuple(range(tables.ndim - 1)): tables}
    for axes in reversed(proper_axes(tables.ndim - 1)):
        wider = next(wide for wide in reversed(known) if set(axes) < set(wide))
        known[axes] = margin(known[wider], tuple(wider.index(k) for k in axes))
        yield axes, known[axes]


AGREEING_STEPS = 200  # towards the nearest tables: what is then below zero is far below the noise
REHEARSED_STEPS = 100  # the error of agreeing tables is then within 2 in 100 of what it stays


class AgreeingTables:
    """The consistent answers of all blocks, fitted when they are first asked for.

    Attributes:
        reasons: of each block, why it has none; empty where it has.
    """

    def __init__(
        self, measured: Measured, blocks: Sequence[Block], steps: int = AGREEING_STEPS
    ) -> None:
        """Say which tables can be fitted, of what is asked for now and later.

        Privacy:
            Post-processing: a function of noisy answers and public inputs.
        """
        self._measured = measured
        strategy = measured.strategy
        linked = [block.attributes for block in blocks]
        linked += [rows.block.attributes for rows in strategy.measurements]
        together = attributes_together(strategy.shape, linked)
        fits: dict[Block, JointCounts | _TablesApart] = {}
        lone: set[Block] = set()
        for attributes in [*together, ()]:
            asked = [block for block in blocks if _within(block, attributes)]
            joint = JointCounts(measured, attributes, asked)
            if joint.fits:
                fits |= dict.fromkeys(asked, joint)
            if len({(block.attributes, _keys(block)) for block in asked}) == 1:
                lone |= set(asked)
        self._lone = frozenset(lone)
        beyond = [block for block in blocks if block not in fits]
        tables_apart = _TablesApart(measured, beyond, steps)
        fits |= dict.fromkeys(beyond, tables_apart)
        apart = dict(zip(beyond, tables_apart.scope.reasons, strict=True))
        self.reasons = tuple(_sums(block) or apart.get(block, "") for block in blocks)
        refused = {block for block, why in zip(blocks, self.reasons, strict=True) if why}
        self._fits = {block: fit for block, fit in fits.items() if block not in refused}

    def alone(self, block: Block) -> bool:
        """Return whether no other table shares an attribute with a block."""
        return block in self._lone

    def answer(self, block: Block) -> Floats | None:
        """Return the answers of a block, of shape block.row_shape; None where it has none."""
        fit = self._fits.get(block)
        return None if fit is None else fit.answer(block)

    def whole_numbers(self, block: Block) -> Ints | None:
        """Return the same in whole numbers that add up; int64."""
        fit = self._fits.get(block)
        return None if fit is None else fit.whole_numbers(block)


class _TablesApart:
    """Tables whose joint classes are too many: they share components, and agree as far as these."""

    def __init__(self, measured: Measured, blocks: Sequence[Block], steps: int) -> None:
        strategy, self._steps = measured.strategy, steps
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

        noise_of = noise_of_tables(measured)
        sets = StackedSets(shape, self.scope.sets)
        fitted = {i for subset in self.scope.sets for i in subset}
        shapes = {i: noise_shape(measured.strategy, i) for i in sorted(self._shaped & fitted)}
        tables = NonnegativeTables(unshrunk_components(sets, table_of, noise_of, shapes))
        tables.improve(self._steps)
        return tables

    def _cells(self, block: Block) -> Floats:
        return onto_total(self._tables.table(varying(block)), self._tables.total)


def _within(block: Block, attributes: Sequence[int]) -> bool:
    """Return whether a block looks at some attributes that belong together, or at none."""
    looked_at = varying(block)
    return bool(looked_at) == bool(attributes) and set(looked_at) <= set(attributes)


def _keys(block: Block) -> tuple[object, ...]:
    return (block.at_least, *(factor.key for factor in block.factors))


def _sums(block: Block) -> str:
    valued = any(isinstance(factor, Valued) for factor in block.factors)
    return "its queries are sums, not counts" if valued else ""


def _white(factor: Factor) -> bool:
    """Return whether a factor asks for single values and the total alone."""
    if isinstance(factor, Stacked):
        return all(map(_white, factor.parts))
    return isinstance(factor, Identity | IdentityRows | Ones)


def not_shrunk(block: Block) -> str:
    """Return why the answers of a block are not shrunk; nothing where they are.

    Only what counts disjoint cells, and their totals, is: noise of other answers is far smaller
    than that of the cells that they add up, and the sums of shrunk cells would err more.
    """
    if not block.is_product or any(map(_overlaps, block.factors)):
        return "its queries overlap, and sums of shrunk cells err more than their estimates"
    return ""


def _overlaps(factor: Factor) -> bool:
    """Return whether ranges, or groups, of one set hold the same code."""
    if isinstance(factor, Stacked):
        return any(map(_overlaps, factor.parts))
    return isinstance(factor, Ranges | Groups) and int(factor.column_norms(1).max()) > 1


class ShrunkTables:
    """The guesses at all tables that can be shrunk, block by block."""

    def __init__(self, measured: Measured, blocks: Sequence[Block]) -> None:
        self.scope = fittable_tables(measured.strategy, blocks, not_shrunk)
        self.measured, self.blocks = measured, blocks
        self._subsets = dict(zip(blocks, self.scope.subsets, strict=True))
        self._sets = StackedSets(measured.strategy.shape, self.scope.sets)
        self._noise = component_noise(self._sets, noise_of_tables(measured))
        self._tables = self._fit()

    def answer(self, block: Block) -> Floats | None:
        """Return the answers of a block, of shape block.row_shape; None where it has none."""
        if self._subsets.get(block) is None:
            return None
        return block.apply(self._tables.table(varying(block)).reshape(block.table_shape))

    def refitted(self, measured: Measured) -> "ShrunkTables":
        """Return the same tables, shrunk by other noisy values of the same measurements."""
        other = copy(self)
        other.measured = measured
        other._tables = other._fit()
        return other

    def _fit(self) -> NonnegativeTables:
        shape, estimates = self.measured.strategy.shape, self.measured.estimates

        def table_of(subset: Subset) -> Floats:
            return estimates.answer(marginal(shape, subset), None)

        components = shrunk_components(self._sets, table_of, self._noise)
        tables = NonnegativeTables(components)
        tables.improve()
        return tables
