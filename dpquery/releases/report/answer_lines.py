"""Answers as lines: along an ordered column, alone or a line for each group."""

import numpy as np

from dpquery.arrays import Ints
from dpquery.releases.report.cells import ItemCells
from dpquery.releases.report.lines import Line, LineAxis, line_panels, line_picture, line_words
from dpquery.releases.report.picture import Caption, Picture, chosen_groups
from dpquery.releases.report.shapes import MOST_GROUPS, OrderedAxis, axes_of, groups_of, is_grid

LEAST_POINTS, LEAST_GROUP_POINTS = 5, 8  # of a line, alone or beside others
MOST_POINTS, MOST_GROUP_POINTS = 4_000, 1_500  # of a line: a window has no more pixels
TOGETHER = 3  # lines in one plot
PANEL_POINTS, LEAST_PANELS, MOST_PANELS = 2400, 4, 16  # of all small plots; number of these
ORDER_WORDS = {
    "values": "",
    "up to": "Each point counts all up to that value, so the line rises by nature; noise alone can "
    "make it fall.",
    "windows": "Each point counts a window that begins at that value; neighbours overlap.",
}


def _line(cells: ItemCells, rows: Ints, axis: OrderedAxis, name: str) -> Line:
    rows = rows[np.argsort(axis.dimension.places[rows], kind="stable")]
    places = axis.places[axis.dimension.places[rows]]
    texts = [cells.answer_words(row) for row in rows.tolist()]
    return Line(name, places, cells.value[rows], cells.low[rows], cells.high[rows], texts)


def _line_axis(axis: OrderedAxis, caption: Caption) -> LineAxis:
    kind = "dates" if axis.dates else "numbers" if axis.numeric else "labels"
    labels = () if axis.numeric else axis.dimension.texts
    return LineAxis(axis.dimension.name, kind, caption.unit, labels)


def _line_notes(cells: ItemCells, axis: OrderedAxis) -> tuple[str, ...]:
    band = (
        "The line joins the estimates, the band around it is the noise interval of each; where no "
        "band is seen, it is thinner than the line."
        if cells.error_bars
        else "The line joins the estimates; how far they are off is not known."
    )
    return tuple(filter(None, [band, ORDER_WORDS[axis.order], *_gap_notes(cells)]))


def _gap_notes(cells: ItemCells) -> list[str]:
    return ["Where the line has gaps nothing is published."] if cells.withheld.any() else []


def fits_line(cells: ItemCells) -> bool:
    """Return whether answers are those of one ordered column."""
    one = len(cells.varying) == 1 and is_grid(cells.varying)
    return one and bool(axes_of(cells, LEAST_POINTS, MOST_POINTS))


def draw_line(cells: ItemCells, caption: Caption) -> Picture:
    """Return one line with its band."""
    axis = axes_of(cells, LEAST_POINTS, MOST_POINTS)[0]
    line, line_axis = _line(cells, np.arange(len(cells)), axis, ""), _line_axis(axis, caption)
    words = line_words(line, line_axis)
    html = line_picture([line], line_axis, title=caption.title, words=words)
    return Picture("line", html, _line_notes(cells, axis))


def fits_lines(cells: ItemCells) -> bool:
    """Return whether some column is an axis, along which each combination of others is a line."""
    axes = axes_of(cells, LEAST_GROUP_POINTS, MOST_GROUP_POINTS)
    if len(cells.varying) < 2 or not axes or len(cells) > MOST_GROUPS * len(axes[0].places):
        return False
    return is_grid(cells.varying)


def draw_lines(cells: ItemCells, caption: Caption) -> Picture:
    """Return a line for each group: in one plot if they are few, else in small ones."""
    axis = axes_of(cells, LEAST_GROUP_POINTS, MOST_GROUP_POINTS)[0]
    others = [dimension for dimension in cells.varying if dimension is not axis.dimension]
    groups = groups_of(cells, others)
    line_axis, notes = _line_axis(axis, caption), _line_notes(cells, axis)
    if len(groups) <= TOGETHER:
        lines = [_line(cells, rows, axis, name) for name, rows in groups]
        words = ". ".join(f"{line.name}: {line_words(line, line_axis)}" for line in lines)
        html = line_picture(lines, line_axis, title=caption.title, words=words)
        return Picture("lines", html, notes)
    most = min(max(PANEL_POINTS // len(axis.places), LEAST_PANELS), MOST_PANELS)
    chosen, said = chosen_groups(cells, groups, most, "groups")
    lines = [_line(cells, rows, axis, name) for name, rows in chosen]
    html, same = line_panels(lines, line_axis, title=caption.title)
    scales = "All have the same scale." if same else "Each has a scale of its own."
    across = f"Across: {axis.dimension.name}; up: {caption.unit}. {scales}"
    return Picture("lines by group", html, (*said, *notes, across))
