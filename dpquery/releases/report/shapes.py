"""Which picture the answers of an item can be drawn as.

The shape of an item's answers: which columns are ordered, which have levels, what is a grid.

What a picture of answers is, what it says, and which groups of answers it shows.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.releases.report.answers import Dimension, ItemCells

MOST_LEVELS = 8
MOST_GROUPS = 5_000  # of answers that are sorted by how reliable they are, to draw some
LONG_AXIS = (
    8  # values that are drawn along an axis of their own, apart from what has no place on it
)
_TOTALS = ("all", "(all)")


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


@dataclass(frozen=True, eq=False)
class ColumnLevel:
    """Some values of a column that stand beside each other: groups of one size, or all together.

    Attributes:
        title: what they are, in words.
        rows: (m,) the rows that have one of them.
    """

    title: str
    rows: Ints


def levels(dimension: Dimension) -> list[ColumnLevel]:
    """Return the levels of a column whose values hold each other, from the outermost; else none."""
    depth = _depths(dimension)
    if depth is None:
        return []
    kinds = np.unique(depth).tolist()

    def named(kind: int) -> str:
        level = dimension.level and dimension.level[depth.index(kind)]
        return f"{dimension.name}, {level}" if level else dimension.name

    if not 1 < len(kinds) <= MOST_LEVELS:
        return []
    whole = {k: [t for t, d in zip(dimension.texts, depth, strict=True) if d == k] for k in kinds}
    return [
        ColumnLevel(
            _level_title(named(kind), whole[kind]),
            np.flatnonzero(np.asarray(depth)[dimension.places] == kind),
        )
        for kind in kinds
    ]


def _level_title(name: str, texts: Sequence[str]) -> str:
    if len(texts) == 1:
        return f"{name}: {texts[0]}"
    if len(texts) <= 3:
        return f"{name}: {', '.join(texts)}"
    return f"{name}: {len(texts):,} values, {texts[0]} to {texts[-1]}"


def _depths(dimension: Dimension) -> list[int] | None:
    """Return the level of each value, 0 the outermost; None where they do not hold each other."""
    total = [text in _TOTALS for text in dimension.texts]
    if dimension.level is not None:
        rank = {name: k for k, name in enumerate(_sorted_levels(dimension.level))}
        return [rank[name] for name in dimension.level]
    if dimension.ends is None:
        single = dimension.single
        if single is None or single.all() or not single.any():
            return [int(not is_total) for is_total in total]
        named = zip(total, single.tolist(), strict=True)
        return [0 if is_total else 1 + is_single for is_total, is_single in named]
    return _nested_depths(dimension.ends, total)


def _sorted_levels(level: Sequence[str]) -> list[str]:
    """Return the names of a hierarchy's levels, that of fewest values first, the total before."""
    counts = Counter(level)
    return sorted(counts, key=lambda name: (name != "", counts[name]))


def _nested_depths(ends: Floats, total: Sequence[bool]) -> list[int] | None:
    """Return how many ranges hold each range; None where two overlap and neither holds the other.

    A total holds all. What else is no range (other) comes last, as a level of its own, beside a
    long axis; beside a few ranges it stands among them.
    """
    known = np.flatnonzero(~np.isnan(ends[:, 0])).tolist()
    base = int(any(total))
    outside = MOST_LEVELS if len(known) >= LONG_AXIS else base
    depth = [0 if is_total else outside for is_total in total]
    if _order_of_ranges(ends[known]) is not None:
        for k in known:
            depth[k] = base
        return depth
    holding: list[int] = []
    for k in sorted(known, key=lambda place: (ends[place, 0], -ends[place, 1], place)):
        while holding and _apart(ends, holding[-1], k):
            holding.pop()
        if holding and ends[holding[-1], 1] < ends[k, 1]:
            return None
        depth[k] = base + len(holding)
        holding.append(k)
    return depth


def _apart(ends: Floats, earlier: int, later: int) -> bool:
    """Return whether a range ends before another one that does not begin before it."""
    if ends[earlier, 0] == ends[earlier, 1]:
        return bool(ends[earlier, 1] < ends[later, 0])
    closed = ends[later, 0] == ends[later, 1]
    end, begin = ends[earlier, 1], ends[later, 0]
    return bool(end < begin if closed else end <= begin)


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


def all_ranges(dimension: Dimension) -> tuple[Floats, Floats] | None:
    """Return first and last values where a column has every range between them; else None."""
    if dimension.ends is None or np.isnan(dimension.ends).any():
        return None
    first, last = (np.unique(column) for column in dimension.ends.T)
    count = len(first)
    if count < 4 or len(last) != count or len(dimension.texts) != count * (count + 1) // 2:
        return None
    return first, last


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
