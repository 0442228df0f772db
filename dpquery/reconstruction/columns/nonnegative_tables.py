"""The nearest tables that agree with one another and have no negative cell.

Tables over many attribute sets agree if one component for each subset makes them all. Those
components that are nearest to given ones, each weighed by its precision, and leave no cell below
zero minimise a convex function. The alternating direction method of multipliers takes turns
between components, which have a closed form as they are orthogonal, and cells, which are cut at
zero ([MATH] 16; [Mullins24] poses the problem). The state of a cell is one number: with w the cell
plus its multiplier, the cut cell is max(w, 0), the multiplier min(w, 0), and components see |w|.
"""

import math
from collections.abc import Iterator

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.tensors import kron_apply, outer_product
from dpquery.reconstruction.columns.shrinkage import Components
from dpquery.reconstruction.columns.stacked_tables import (
    KeptAxes,
    Sizes,
    StackedSets,
    Stacks,
    margin,
    per_table,
    proper_axes,
    residual,
    spread_below,
    table_chunks,
)
from dpquery.strategy.algebra.subsets import Subset, subsets_of

ITERATIONS = 10  # after which the error of shrunk tables stands still: see docs/benchmarks.md


class NonnegativeTables:
    """Tables over many sets, moved towards the nearest that agree and have no negative cell."""

    def __init__(self, components: Components) -> None:
        """Take the components that the tables are to be near to, and start from their tables."""
        self._sets, self._given = components.sets, components
        self._values = {sizes: values.copy() for sizes, values in components.values.items()}
        self._widest = _widest_sets(self._sets)
        self._shaped = {
            sizes: [
                (place, subset)
                for place, subset in enumerate(group)
                if not components.shapes.keys().isdisjoint(subset)
            ]
            for sizes, group in self._sets.groups.items()
        }
        every = [each for sizes, each in components.precision.items() if len(sizes) > 1]
        self._step = float(np.median(np.concatenate(every))) if every else 1.0
        self._states: Stacks = {}
        for sizes, places in self._widest.items():
            self._states[sizes] = np.empty((len(places), *sizes))
            for part in table_chunks(len(places), sizes):
                self._states[sizes][part] = self._tables(sizes, places[part])

    def improve(self, iterations: int = ITERATIONS) -> None:
        """Take so many steps towards the nearest tables."""
        for _ in range(iterations):
            self._solve_components()
            self._cut_cells()

    @property
    def total(self) -> float:
        """The number of records, which every table adds up to but for what is cut at zero."""
        return max(float(self._values[()][0]), 0.0)

    def table(self, subset: Subset) -> Floats:
        """Return the table over a set, of the sizes of its attributes; no cell is negative.

        What is still below zero after some steps is cut off: the sum is higher by so much.
        """
        sizes = self._sets.sizes_of(subset)
        place = np.array([self._sets.places[subset]])
        return np.asarray(np.maximum(self._tables(sizes, place)[0], 0.0))

    def _tables(self, sizes: Sizes, places: Ints) -> Floats:
        """Return tables of one group from the components. (count, *sizes)."""
        below = spread_below(self._sets, self._values, sizes, places)
        return below + self._values[sizes][places]

    def _solve_components(self) -> None:
        """Move every component to its best value, given the cells of the tables that share it."""
        sums = {sizes: np.zeros_like(values) for sizes, values in self._given.values.items()}
        weights = {sizes: np.zeros_like(each) for sizes, each in self._given.precision.items()}
        for sizes, places in self._widest.items():
            for part in table_chunks(len(places), sizes):
                cells = np.abs(self._states[sizes][part])
                sums[sizes][places[part]] += self._step * residual(cells)
                weights[sizes][places[part]] += self._step
                for axes, sums_of_cells in _margins_of(cells):
                    part_sizes = tuple(sizes[k] for k in axes)
                    share = self._step * math.prod(part_sizes) / math.prod(sizes)
                    targets = self._sets.below(sizes, axes)[places[part]]
                    np.add.at(sums[part_sizes], targets, share * residual(sums_of_cells))
                    np.add.at(weights[part_sizes], targets, share)
        for sizes, total in sums.items():
            self._weigh_given(sizes, total, weights[sizes])
        self._values = sums

    def _weigh_given(self, sizes: Sizes, sums: Floats, weights: Floats) -> None:
        """Put the best components in the place of the weighted sums of what the cells say."""
        precision, given = self._given.precision[sizes], self._given.values[sizes]
        shaped = {
            place: self._best_where_shaped(subset, sums[place], weights[place])
            for place, subset in self._shaped[sizes]
        }
        sums += given * per_table(precision, len(sizes))
        sums /= per_table(weights + precision, len(sizes))
        for place, best in shaped.items():
            sums[place] = best

    def _best_where_shaped(self, subset: Subset, sums: Floats, weight: float) -> Floats:
        """Return the best component where noise is not white: each contrast is one by itself."""
        sizes = self._sets.sizes_of(subset)
        place = self._sets.places[subset]
        shapes = [self._given.shapes.get(i) for i in subset]
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

    def _cut_cells(self) -> None:
        """Set the cells to the tables of the components, cut at zero, and move the multipliers."""
        for sizes, places in self._widest.items():
            for part in table_chunks(len(places), sizes):
                rest = np.minimum(self._states[sizes][part], 0.0)
                self._states[sizes][part] = self._tables(sizes, places[part]) + rest


def _margins_of(tables: Floats) -> Iterator[tuple[KeptAxes, Floats]]:
    """Yield all proper margins of a stack of tables, each from a larger one, with its axes."""
    known = {tuple(range(tables.ndim - 1)): tables}
    for axes in reversed(proper_axes(tables.ndim - 1)):
        wider = next(wide for wide in reversed(known) if set(axes) < set(wide))
        known[axes] = margin(known[wider], tuple(wider.index(k) for k in axes))
        yield axes, known[axes]


def _widest_sets(sets: StackedSets) -> dict[Sizes, Ints]:
    """Return the places of the sets that are within no other, in their groups."""
    within = {
        smaller
        for group in sets.groups.values()
        for subset in group
        for smaller in subsets_of(subset)
        if len(smaller) == len(subset) - 1
    }
    widest = {
        sizes: [place for place, subset in enumerate(group) if subset not in within]
        for sizes, group in sets.groups.items()
    }
    return {sizes: np.array(places) for sizes, places in widest.items() if places}
