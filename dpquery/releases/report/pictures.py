"""Which picture an item has: one table of kinds, each with the shapes of answers that it fits.

The first kind that fits is drawn; an item of several tables is split up, and each part chooses
again. All answers can be drawn by the last kind, so that no item is left out. `marks` draws.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape

import numpy as np

from dpquery.arrays import Bools, Floats, Ints
from dpquery.releases.report.answers import EXTREME_ROWS, TOTAL_LABELS, Dimension, ItemCells
from dpquery.releases.report.axes import cut
from dpquery.releases.report.marks import (
    MOST_COLUMNS,
    MOST_MAP_CELLS,
    MOST_ROWS,
    HeatMap,
    Line,
    LineAxis,
    MapSide,
    Mark,
    heat_map,
    line_panels,
    line_picture,
    map_key,
    points,
    shade_breaks,
)
from dpquery.releases.words import count

MOST_GROUPS = 5_000  # of answers that are sorted by how reliable they are, to draw some
MOST_POINTS = 64  # of answers that are drawn as such: their numbers are read beside them
LONGEST_ROW = 90  # characters of what a point is called
MOST_TABLES = 6  # of an item that are drawn
LEAST_LINE, LEAST_GROUP_LINE = 5, 8  # places of a line, alone or beside others
MOST_LINE, MOST_GROUP_LINE = 4_000, 1_500  # of a line: a window has no more pixels
TOGETHER = 3  # lines in one plot
PANEL_PLACES, LEAST_PANELS, MOST_PANELS = 2400, 4, 16  # of all small plots; number of these
ORDER_WORDS = {
    "values": "",
    "up to": "Each point counts all up to that value, so the line rises by nature; noise alone can "
    "make it fall.",
    "windows": "Each point counts a window that begins at that value; neighbours overlap.",
}


@dataclass(frozen=True)
class Caption:
    """What the pictures of an item say about it."""

    title: str  # of the item
    unit: str  # of its answers
    value: str  # head of the column of answers

    def of(self, part: str) -> "Caption":
        """Return the caption of a part of the item."""
        return replace(self, title=f"{self.title}, {part}" if part else self.title)


@dataclass(frozen=True)
class Picture:
    """A picture as HTML, of which kind it is, and what is to be said of this one."""

    kind: str  # name of its kind
    html: str  # what stands on the page
    notes: tuple[str, ...]  # sentences on what it shows and leaves out
    marks: frozenset[str]  # which of "points", "lines" and "map" it is made of


@dataclass(frozen=True)
class PictureKind:
    """A way to draw answers."""

    name: str  # of the kind
    fits: Callable[[ItemCells], bool]  # whether answers can be drawn so
    draw: Callable[[ItemCells, Caption], Picture]  # returns the picture


def picture_of(cells: ItemCells, caption: Caption, *, lines: bool = True) -> Picture:
    """Return the picture that fits answers best: of the first kind that fits, or is no line."""
    kinds = (kind for kind in PICTURE_KINDS if lines or kind.draw is not _draw_lines)
    return next(kind for kind in kinds if kind.fits(cells)).draw(cells, caption)


# ------------------------------------------------------------------------------- shapes


@dataclass(frozen=True, eq=False)
class OrderedAxis:
    """An ordered column as an axis."""

    dimension: Dimension  # the column
    places: Floats  # (n,) where each of its values stands on the axis
    # whether places are numbers or days to be marked; else they are 0, 1, ... and their values are
    # written
    numeric: bool
    # how its values follow each other: "values", "up to" (each from the same beginning) or
    # "windows" (which overlap)
    order: str

    @property
    def dates(self) -> bool:
        """Whether places are days by their ordinal numbers."""
        return self.numeric and self.dimension.dates


def ordered_axis(dimension: Dimension) -> OrderedAxis | None:
    """Return a column as an axis; None where its values do not follow each other.

    It is one of numbers where they are evenly spaced, as months and quarters are; else of labels.
    """
    ends = dimension.ends
    if ends is None or len(ends) < 2 or np.isnan(ends).any():
        return None
    first, last = ends.T
    steps = (np.diff(first), np.diff(last))
    if (steps[0] == 0).all() and (steps[1] > 0).all():
        order, places = "up to", last
    elif (steps[0] > 0).all() and (steps[1] > 0).all():
        order, places = "values" if (last[:-1] <= first[1:]).all() else "windows", first
    else:
        return None
    gaps = np.diff(places)
    even = gaps.max() <= (1.15 if dimension.dates else 1.000001) * gaps.min()
    if even or not dimension.ranges:
        return OrderedAxis(dimension, places, True, order)
    return OrderedAxis(dimension, np.arange(len(places), dtype=np.float64), False, order)


def is_grid(dimensions: Sequence[Dimension]) -> bool:
    """Return whether every combination of values has exactly one row."""
    sizes = [len(dimension.texts) for dimension in dimensions]
    rows = len(dimensions[0].places)
    return math.prod(sizes) == rows and len(np.unique(_combination(dimensions))) == rows


def _combination(dimensions: Sequence[Dimension]) -> Ints:
    number = np.zeros(len(dimensions[0].places), dtype=np.int64)
    for dimension in dimensions:
        number = number * len(dimension.texts) + dimension.places
    return number


def axes_of(cells: ItemCells, least: int, most: int) -> list[OrderedAxis]:
    """Return the columns that are axes of so many places, the longest first."""
    axes = [ordered_axis(dimension) for dimension in cells.varying]
    kept = [axis for axis in axes if axis is not None and least <= len(axis.places) <= most]
    return sorted(kept, key=lambda axis: -len(axis.places))


def groups_of(cells: ItemCells, dimensions: Sequence[Dimension]) -> list[tuple[str, Ints]]:
    """Return the rows of each combination of values, with what these are, in file order."""
    if not dimensions:
        return [("", np.arange(len(cells)))]
    number = _combination(dimensions)
    order = np.argsort(number, kind="stable")
    pieces = np.split(order, np.flatnonzero(np.diff(number[order])) + 1)
    pieces.sort(key=lambda rows: int(rows[0]))
    return [(cells.words(int(rows[0]), dimensions), rows) for rows in pieces]


def chosen_groups(
    cells: ItemCells, groups: Sequence[tuple[str, Ints]], most: int, noun: str
) -> tuple[list[tuple[str, Ints]], tuple[str, ...]]:
    """Return so many groups at most, the most and the least reliable, and words on the choice."""
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
    order = sorted(range(len(shown)), key=lambda k: _median_error(cells, shown[k][1]))
    half = most // 2
    kept = [*order[: most - half], *order[len(order) - half :]]
    words = (
        f"Of {len(shown):,} {noun} the {most - half} most and the {half} least reliable ones are "
        "drawn, in this order, by their median noise interval; all are in the file."
    )
    return [shown[k] for k in kept], (*said, words)


def _median_error(cells: ItemCells, rows: Ints) -> float:
    """Return the median relative error of some rows; infinite where nothing of them is known."""
    known = cells.relative[rows]
    known = known[~np.isnan(known)]
    return float(np.median(known)) if known.size else float("inf")


# ------------------------------------------------------------------------------- points

BY_POINTS, BY_LINES, BY_MAP = (frozenset({mark}) for mark in ("points", "lines", "map"))


def _draw_points(cells: ItemCells, caption: Caption) -> Picture:
    """Return a point for each answer, under heads where two columns or more say what it is."""
    varying = cells.varying
    by_head = len(varying) > 1 and is_grid(varying)
    heads = groups_of(cells, varying[:1]) if by_head else [("", np.arange(len(cells)))]
    rows = [
        _point(cells, row, varying[1:] if by_head else varying, head)
        for head, group in heads
        for row in group.tolist()
    ]
    name = ", ".join(d.name for d in (varying[1:] if by_head else varying)) or "answer"
    return Picture("points", _points(rows, caption, name), (), BY_POINTS)


def _point(cells: ItemCells, row: int, dimensions: Sequence[Dimension], head: str = "") -> Mark:
    value = float(cells.value[row])
    text, interval = cells.answer_words(row)
    low, high = (float(end) if interval else math.nan for end in cells.ends[:, row])
    flagged = bool(cells.flagged[row])
    label = cut(cells.words(row, dimensions), LONGEST_ROW)
    return Mark(label, value, text, interval, low, high, flagged=flagged, head=head)


def _points(rows: Sequence[Mark], caption: Caption, name: str) -> str:
    heads = (name, caption.value)
    return points(rows, caption=caption.title, heads=heads, axis=caption.unit)


def _draw_extremes(cells: ItemCells, caption: Caption) -> Picture:
    """Return the most and the least reliable answers; the largest without error bars."""
    order = cells.by_reliability
    half = min(EXTREME_ROWS, len(order) // 2) or len(order)
    most, least = (
        ("Most reliable", "Least reliable") if cells.error_bars else ("Largest", "Smallest")
    )
    html = ""
    for head, rows in ((most, order[:half]), (least, order[len(order) - half :][::-1])):
        drawn = [_point(cells, row, cells.varying) for row in rows.tolist()]
        named = replace(caption, title=f"{head} answers")
        html += _points(drawn, named, ", ".join(d.name for d in cells.varying)) if drawn else ""
    note = (
        "There are too many answers to draw all: these have the smallest and the largest noise "
        "interval for their size. They are chosen by noisy values, so chance has a part in it."
        if cells.error_bars
        else "There are too many answers to draw all: these are the largest and the smallest."
    )
    return Picture("extremes", html, (note, "The two plots have scales of their own."), BY_POINTS)


# ------------------------------------------------------------------------------- lines


def _line(cells: ItemCells, rows: Ints, axis: OrderedAxis, name: str) -> Line:
    rows = rows[np.argsort(axis.dimension.places[rows], kind="stable")]
    places = axis.places[axis.dimension.places[rows]]
    texts = [cells.answer_words(row)[0] for row in rows.tolist()]
    low, high = cells.ends[:, rows]
    return Line(name, places, cells.value[rows], low, high, texts)


def _line_axes(cells: ItemCells) -> list[OrderedAxis]:
    """Return the columns along which lines can run; none where answers are no grid."""
    alone = len(cells.varying) == 1
    least, most = (LEAST_LINE, MOST_LINE) if alone else (LEAST_GROUP_LINE, MOST_GROUP_LINE)
    axes = axes_of(cells, least, most)
    few = bool(axes) and len(cells) <= MOST_GROUPS * len(axes[0].places)
    return axes if few and is_grid(cells.varying) else []


def _draw_lines(cells: ItemCells, caption: Caption) -> Picture:
    """Return a line for each group: in one plot if they are few, else in small ones."""
    axis = _line_axes(cells)[0]
    groups = groups_of(cells, [d for d in cells.varying if d is not axis.dimension])
    kind = "dates" if axis.dates else "numbers" if axis.numeric else "labels"
    labels = () if axis.numeric else axis.dimension.texts
    line_axis = LineAxis(axis.dimension.name, kind, caption.unit, labels)
    notes = [ORDER_WORDS[axis.order]] if ORDER_WORDS[axis.order] else []
    notes += ["Where the line has gaps nothing is published."] if cells.withheld.any() else []
    if len(groups) <= TOGETHER:
        lines = [_line(cells, rows, axis, name) for name, rows in groups]
        html = line_picture(lines, line_axis, title=caption.title)
        return Picture("line" if len(lines) == 1 else "lines", html, tuple(notes), BY_LINES)
    most = min(max(PANEL_PLACES // len(axis.places), LEAST_PANELS), MOST_PANELS)
    chosen, said = chosen_groups(cells, groups, most, "groups")
    lines = [_line(cells, rows, axis, name) for name, rows in chosen]
    html, same = line_panels(lines, line_axis, title=caption.title)
    scales = "All have the same scale." if same else "Each has a scale of its own."
    across = f"Across: {axis.dimension.name}; up: {caption.unit}. {scales}"
    return Picture("lines by group", html, (*said, *notes, across), BY_LINES)


# ------------------------------------------------------------------------------- maps

LEAST_PLACES = 5  # of two ordered columns, for a map to come before lines


def _sides(cells: ItemCells) -> tuple[Dimension, Dimension] | None:
    """Return the columns that are rows and columns of a map; None where two would not fit."""
    axes = [axis.dimension for axis in axes_of(cells, 2, len(cells))]
    others = sorted((d for d in cells.varying if d not in axes), key=lambda d: -len(d.texts))
    pair = sorted([*axes, *others][:2], key=lambda d: len(d.texts))
    if len(pair) < 2 or not is_grid(cells.varying):
        return None
    rows, columns = pair
    if rows in axes and columns not in axes:
        rows, columns = columns, rows  # an axis goes to the right
    if columns not in axes:
        rows, columns = columns, rows  # more rows than columns: their names have more room
    size = len(rows.texts) * len(columns.texts)
    most = 24 if columns not in axes else MOST_COLUMNS
    fit = len(rows.texts) <= MOST_ROWS and len(columns.texts) <= most and size <= MOST_MAP_CELLS
    return (rows, columns) if fit and len(cells) <= MOST_GROUPS * size else None


def _draw_maps(cells: ItemCells, caption: Caption) -> Picture:
    """Return a map of two columns, for each combination of the others."""
    sides = _sides(cells)
    if sides is None:
        raise ValueError("these answers fit no map")
    groups = groups_of(cells, [d for d in cells.varying if d not in sides])
    most = min(max(MOST_MAP_CELLS * len(groups) // len(cells), 2), MOST_TABLES)
    chosen, said = chosen_groups(cells, groups, most, "maps")
    breaks = shade_breaks(cells.value[np.concatenate([rows for _, rows in chosen])])
    maps = [_map_of(cells, rows, sides) for _, rows in chosen]
    html = map_key(maps, breaks, caption.unit)
    for (name, _), part in zip(chosen, maps, strict=True):
        head = f"<h4>{escape(name)}</h4>" if name else ""
        html += f"{head}{heat_map(part, breaks, title=caption.of(name).title)}"
    return Picture("heat map" if len(chosen) == 1 else "heat maps by group", html, said, BY_MAP)


def _map_of(cells: ItemCells, rows: Ints, sides: tuple[Dimension, Dimension]) -> HeatMap:
    upright, level = sides
    at, shape = (upright.places[rows], level.places[rows]), (len(upright.texts), len(level.texts))
    value, flagged, withheld = np.full(shape, np.nan), np.zeros(shape, bool), np.zeros(shape, bool)
    value[at], flagged[at] = cells.value[rows], cells.flagged[rows]
    withheld[at] = cells.withheld[rows]
    return HeatMap(_side(upright), _side(level), value, flagged, withheld, cells.digits)


def _side(dimension: Dimension) -> MapSide:
    axis = ordered_axis(dimension)
    if axis is None:
        return MapSide(dimension.name, dimension.texts)
    places = axis.places if axis.numeric and not dimension.ranges else None
    return MapSide(dimension.name, dimension.texts, places, axis.dates, ordered=True)


# ------------------------------------------------------------------------------- parts


def _tables(cells: ItemCells) -> list[tuple[str, Ints]]:
    """Return the rows of each table of an item of several, by name, in file order."""
    return next(
        (
            [(d.texts[d.places[rows[0]]], rows) for _, rows in groups_of(cells, [d])]
            for d in cells.dimensions
            if d.name == "table"
        ),
        [],
    )


def _draw_tables(cells: ItemCells, caption: Caption) -> Picture:
    """Return a picture of each table, that its name opens."""
    chosen, said = chosen_groups(cells, _tables(cells), MOST_TABLES, "tables")
    html, marks = "", frozenset[str]()
    for k, (name, rows) in enumerate(chosen):
        picture = picture_of(cells.take(rows), caption.of(name))
        marks |= picture.marks
        note = f'<p class="note">{escape(" ".join(picture.notes))}</p>' if picture.notes else ""
        html += (
            f'<details class="part"{" open" if k == 0 else ""}><summary>{escape(name)} '
            f"<small>{count(len(rows), 'answer')}</small></summary>{picture.html}{note}</details>"
        )
    return Picture("tables", html, said, marks)


def _but_totals(cells: ItemCells) -> Bools:
    """Return which rows are no total along an ordered column, where it has no place."""
    kept = np.ones(len(cells), dtype=bool)
    for dimension in cells.varying:
        kept &= ~np.isin(dimension.places, _totals_along(dimension))
    return kept


def _totals_along(dimension: Dimension) -> list[int]:
    if dimension.ends is None:
        return []
    return [k for k, text in enumerate(dimension.texts) if text in TOTAL_LABELS]


def _draw_but_totals(cells: ItemCells, caption: Caption) -> Picture:
    """Return the picture of the other answers: a total would make all others small."""
    picture = picture_of(cells.take(np.flatnonzero(_but_totals(cells))), caption)
    names = " and ".join(d.name for d in cells.varying if _totals_along(d))
    return replace(
        picture, notes=(*picture.notes, f"Totals over {names} stand in the table alone.")
    )


def _many(cells: ItemCells) -> bool:
    return len(cells) > MOST_POINTS


PICTURE_KINDS = (
    PictureKind("extremes", lambda cells: not cells.whole, _draw_extremes),
    PictureKind("tables", lambda cells: _many(cells) and len(_tables(cells)) > 1, _draw_tables),
    PictureKind(
        "but totals",
        lambda cells: _many(cells) and 0 < int(_but_totals(cells).sum()) < len(cells),
        _draw_but_totals,
    ),
    PictureKind(
        "line", lambda cells: len(cells.varying) == 1 and bool(_line_axes(cells)), _draw_lines
    ),
    PictureKind("points", lambda cells: not _many(cells), _draw_points),
    PictureKind(
        "heat map",
        lambda cells: len(axes_of(cells, LEAST_PLACES, MOST_COLUMNS)) > 1 and bool(_sides(cells)),
        _draw_maps,
    ),
    PictureKind("lines", lambda cells: bool(_line_axes(cells)), _draw_lines),
    PictureKind("heat map", lambda cells: _sides(cells) is not None, _draw_maps),
    PictureKind("extremes", lambda cells: True, _draw_extremes),
)
"""The kinds of pictures, in the order in which they are tried."""
