"""Which picture the answers of an item can be drawn as.

The shape of an item's answers: which columns are ordered, what is a grid.

What a picture of answers is, what it says, and which groups of answers it shows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.releases.report.answers import Dimension, ItemCells

MOST_GROUPS = 5_000  # of answers that are sorted by how reliable they are, to draw some


@dataclass(frozen=True, eq=False)
class OrderedAxis:
    """An ordered column as an axis.

    Attributes:
        dimension: the column.
        places: (n,) where each of its values stands on the axis.
        numeric: whether places are numbers or days to be marked; else they are 0, 1, ... and
            their values are written.
        order: how its values follow each other: "values", "up to" (each from the same beginning)
            or "windows" (which overlap).
    """

    dimension: Dimension
    places: Floats
    numeric: bool
    order: str

    @property
    def dates(self) -> bool:
        """Whether places are days by their ordinal numbers."""
        return self.numeric and self.dimension.dates


def ordered_axis(dimension: Dimension) -> OrderedAxis | None:
    """Return a column as an axis; None where its values do not follow each other."""
    ends = dimension.ends
    if ends is None or len(ends) < 2 or np.isnan(ends).any():
        return None
    order = _order_of_ranges(ends)
    if order is None:
        return None
    return _spaced(dimension, ends[:, int(order == "up to")], order)


def _order_of_ranges(ends: Floats) -> str | None:
    """Return how (n, 2) ranges follow each other; None where they do not."""
    first, last = ends.T
    step_first, step_last = np.diff(first), np.diff(last)
    if len(ends) > 1 and (step_first == 0).all() and (step_last > 0).all():
        return "up to"
    if not ((step_first > 0).all() and (step_last > 0).all()):
        return None
    return "values" if (last[:-1] <= first[1:]).all() else "windows"


def _spaced(dimension: Dimension, places: Floats, order: str) -> OrderedAxis:
    """Return an axis of numbers where they are evenly spaced, and else one of labels.

    Months and quarters count as evenly spaced.
    """
    steps = np.diff(places)
    even = steps.max() <= (1.15 if dimension.dates else 1.000001) * steps.min()
    if even or not dimension.ranges:
        return OrderedAxis(dimension, places, True, order)
    return OrderedAxis(dimension, np.arange(len(places), dtype=np.float64), False, order)


def is_grid(dimensions: Sequence[Dimension]) -> bool:
    """Return whether every combination of values has exactly one row."""
    sizes = [len(dimension.texts) for dimension in dimensions]
    rows = len(dimensions[0].places)
    if math.prod(sizes) != rows:
        return False
    number = np.zeros(rows, dtype=np.int64)
    for dimension, size in zip(dimensions, sizes, strict=True):
        number = number * size + dimension.places
    return len(np.unique(number)) == rows


def axes_of(cells: ItemCells, least: int, most: int) -> list[OrderedAxis]:
    """Return the columns that are axes of so many places, the longest first."""
    axes = [ordered_axis(dimension) for dimension in cells.varying]
    kept = [axis for axis in axes if axis is not None and least <= len(axis.places) <= most]
    return sorted(kept, key=lambda axis: -len(axis.places))


def groups_of(cells: ItemCells, dimensions: Sequence[Dimension]) -> list[tuple[str, Ints]]:
    """Return the rows of each combination of values, with what these are, in file order."""
    if not dimensions:
        return [("", np.arange(len(cells)))]
    number = np.zeros(len(cells), dtype=np.int64)
    for dimension in dimensions:
        number = number * len(dimension.texts) + dimension.places
    order = np.argsort(number, kind="stable")
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    pieces = np.split(order, starts[1:])
    pieces.sort(key=lambda rows: int(rows[0]))
    return [(cells.words(int(rows[0]), dimensions), rows) for rows in pieces]


def median_error(cells: ItemCells, rows: Ints) -> float:
    """Return the median relative error of some rows; infinite where nothing of them is known."""
    known = cells.relative[rows]
    known = known[~np.isnan(known)]
    return float(np.median(known)) if known.size else float("inf")


@dataclass(frozen=True)
class Caption:
    """What the pictures of an item say about it.

    Attributes:
        title: of the item.
        unit: of its answers.
    """

    title: str
    unit: str

    def of(self, part: str) -> "Caption":
        """Return the caption of a part of the item."""
        return Caption(f"{self.title}, {part}" if part else self.title, self.unit)


@dataclass(frozen=True)
class Picture:
    """A picture as HTML, of which kind it is, and how it is read.

    Attributes:
        kind: name of its kind in PICTURE_KINDS.
        html: what stands on the page.
        notes: sentences on how to read it.
        parts: names of the kinds of its parts, where it is made of several.
    """

    kind: str
    html: str
    notes: tuple[str, ...]
    parts: tuple[str, ...] = ()


def chosen_groups(
    cells: ItemCells, groups: Sequence[tuple[str, Ints]], most: int, noun: str
) -> tuple[list[tuple[str, Ints]], tuple[str, ...]]:
    """Return so many groups at most, the most and the least reliable, and words on the choice.

    Args:
        cells: the answers.
        groups: names and rows of all groups.
        most: number of groups.
        noun: what a group is called, in the plural.
    """
    if len(groups) <= most:
        return list(groups), ()
    shown = [group for group in groups if not np.isnan(cells.value[group[1]]).all()]
    hidden = len(groups) - len(shown)
    said = (f"In {hidden:,} of {len(groups):,} {noun} nothing is published.",) if hidden else ()
    if len(shown) <= most:
        return shown or list(groups[:1]), said
    if not cells.error_bars:
        first = f"The first {most} of {len(groups):,} {noun} are drawn; all are in the file."
        return shown[:most], (*said, first)
    order = sorted(range(len(shown)), key=lambda k: median_error(cells, shown[k][1]))
    half = most // 2
    kept = [*order[: most - half], *order[len(order) - half :]]
    words = (
        f"Of {len(shown):,} {noun} the {most - half} most and the {half} least reliable ones are "
        "drawn, in this order, by their median noise interval; all are in the file."
    )
    return [shown[k] for k in kept], (*said, words)
