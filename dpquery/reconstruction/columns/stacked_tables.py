"""Tables over many attribute sets, those of equal sizes stacked into one array.

A table t over a set S is the sum of one component for each subset b of S, spread evenly over the
other attributes ([MATH] 16):
    t = sum_{b below S} r_b (x) 1/n,        n the cells of S beyond b,
where every axis of r_b sums to zero. Components of different subsets are orthogonal, so that each
can be worked on alone. With thousands of small tables the loops are over sizes, not over tables.
"""

import math
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.strategy.algebra.subsets import Subset, subsets_of

Sizes = tuple[int, ...]
KeptAxes = tuple[int, ...]
Stacks = dict[Sizes, Floats]
"""(count, *sizes) for each group of sets: see StackedSets."""
TABLE_CHUNK = 1 << 17  # numbers that are worked on at once: they fit the processor's cache


class StackedSets:
    """Attribute sets and all their subsets, grouped by the sizes of their attributes.

    Attributes:
        shape: sizes of all attributes.
        groups: the sets of each sizes, smaller sets first.
        places: of each set in its group.
    """

    def __init__(self, shape: Sizes, sets: Iterable[Subset]) -> None:
        """Take the sizes of all attributes, and sets whose subsets are added."""
        closed = {subset for attributes in sets for subset in subsets_of(attributes)}
        self.shape = shape
        self.groups: dict[Sizes, list[Subset]] = {}
        for subset in sorted(closed, key=lambda each: (len(each), each)):
            self.groups.setdefault(self.sizes_of(subset), []).append(subset)
        self.places = {
            subset: place for group in self.groups.values() for place, subset in enumerate(group)
        }
        self._below: dict[tuple[Sizes, KeptAxes], Ints] = {}

    def sizes_of(self, subset: Subset) -> Sizes:
        """Return the sizes of the attributes of a set."""
        return tuple(self.shape[i] for i in subset)

    def below(self, sizes: Sizes, axes: KeptAxes) -> Ints:
        """Return for each set of a group the place of its subset at some axes. (count,)."""
        if (sizes, axes) not in self._below:
            subsets = (tuple(subset[k] for k in axes) for subset in self.groups[sizes])
            places = (self.places[subset] for subset in subsets)
            self._below[sizes, axes] = np.fromiter(places, np.int64, len(self.groups[sizes]))
        return self._below[sizes, axes]


def table_chunks(count: int, sizes: Sizes) -> Iterator[slice]:
    """Yield so many places in parts whose tables have some TABLE_CHUNK numbers together."""
    step = max(1, TABLE_CHUNK // max(1, math.prod(sizes)))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


@cache
def proper_axes(order: int) -> tuple[KeptAxes, ...]:
    """Return the places of all proper subsets of a set of `order` members, smaller ones first."""
    return tuple(axes for size in range(order) for axes in combinations(range(order), size))


def largest_axes(order: int) -> tuple[KeptAxes, ...]:
    """Return the places of the subsets of one member less."""
    return tuple(combinations(range(order), order - 1)) if order else ()


def residual(tables: Floats) -> Floats:
    """Return the components over all axes of a stack of tables. (count, *sizes)."""
    for axis in range(1, tables.ndim):
        tables = tables - tables.mean(axis=axis, keepdims=True)
    return tables


def margin(tables: Floats, axes: KeptAxes) -> Floats:
    """Return the sums over all axes of a stack of tables but some. (count, *sizes of axes)."""
    others = tuple(k + 1 for k in range(tables.ndim - 1) if k not in axes)
    return np.asarray(tables.sum(axis=others)) if others else tables


def with_axes(values: Floats, axes: KeptAxes, order: int) -> Floats:
    """Return a stack over some axes with an axis of length one for each of the others."""
    sizes = dict(zip(axes, values.shape[1:], strict=True))
    return values.reshape(len(values), *(sizes.get(k, 1) for k in range(order)))


def per_table(figures: Floats, order: int) -> Floats:
    """Return one figure a table so that it multiplies a stack of tables of that order."""
    return figures.reshape(-1, *[1] * order)


def spread_below(sets: StackedSets, components: Stacks, sizes: Sizes, places: Ints) -> Floats:
    """Return what the proper subsets' components say of tables of one group. (count, *sizes)."""
    order, cells = len(sizes), math.prod(sizes)
    total = np.zeros((len(places), *sizes))
    for wide in largest_axes(order):
        # Each component is added once, to the first of the margins that contain it.
        share = _share_of(sets, components, sizes, places, wide)
        total += with_axes(share, wide, order) * (math.prod(sizes[k] for k in wide) / cells)
    return total


def _share_of(
    sets: StackedSets, components: Stacks, sizes: Sizes, places: Ints, wide: KeptAxes
) -> Floats:
    """Return the sum over a margin of the components that are added there, spread over it."""
    order = len(sizes)
    wide_sizes = tuple(sizes[k] for k in wide)
    total = np.zeros((len(places), *wide_sizes))
    for axes in proper_axes(order):
        if _first_margin(axes, order) != wide:
            continue
        part_sizes = tuple(sizes[k] for k in axes)
        part = components[part_sizes][sets.below(sizes, axes)[places]]
        inner = tuple(wide.index(k) for k in axes)
        total += with_axes(part, inner, len(wide)) * (math.prod(part_sizes) / math.prod(wide_sizes))
    return total


@cache
def _first_margin(axes: KeptAxes, order: int) -> KeptAxes:
    return next(wide for wide in largest_axes(order) if set(axes) <= set(wide))
