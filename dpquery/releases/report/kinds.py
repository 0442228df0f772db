"""Which picture an item has: one table of kinds, each with the shapes of answers that it fits.

Bars with whiskers, lines with a band, and heat maps. The first kind that fits is drawn; an item of
several tables is split up, and each part chooses again. All answers can be drawn by the last kind,
so that no item is left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape

import numpy as np

from dpquery.arrays import Bools, Floats, Ints
from dpquery.releases.report.answers import EXTREME_ROWS, Dimension, ItemCells
from dpquery.releases.report.heat_map import (
    MOST_COLUMNS,
    MOST_MAP_CELLS,
    MOST_ROWS,
    HeatMap,
    MapSide,
    heat_map,
    map_key,
    shade_breaks,
)
from dpquery.releases.report.marks import (
    Bar,
    Line,
    LineAxis,
    bar_picture,
    line_panels,
    line_picture,
    line_words,
)
from dpquery.releases.report.shapes import (
    MOST_GROUPS,
    Caption,
    OrderedAxis,
    Picture,
    axes_of,
    chosen_groups,
    groups_of,
    is_grid,
    median_error,
    ordered_axis,
)
from dpquery.releases.words import count, percent, within


def _bar(cells: ItemCells, row: int, label: str, head: str = "") -> Bar:
    value = float(cells.value[row])
    known = value == value
    answer = cells.answer_words(row)
    return Bar(
        label=label,
        value=value,
        text=answer.partition(" (")[0],
        low=float(cells.low[row]) if known else float("nan"),
        high=float(cells.high[row]) if known else float("nan"),
        flagged=bool(cells.flagged[row]),
        head=head,
        tip=f"{head}, {label}: {answer}" if head else f"{label}: {answer}",
    )


def draw_bars(cells: ItemCells, caption: Caption) -> Picture:
    """Return a bar for each answer, under heads where two columns or more say what it is."""
    varying = cells.varying
    heads = groups_of(cells, varying[:1]) if len(varying) > 1 else []
    if heads and is_grid(varying):
        bars = [
            _bar(cells, row, cells.words(row, varying[1:]), head)
            for head, rows in heads
            for row in rows.tolist()
        ]
    else:
        bars = [_bar(cells, row, cells.words(row, varying)) for row in range(len(cells))]
    what = "A bar goes from zero to the answer"
    return Picture("bars", bar_picture(bars, title=caption.title), _bar_notes(cells, what))


def _bar_notes(cells: ItemCells, what: str) -> tuple[str, ...]:
    if not cells.error_bars:
        return (f"{what}; how far it is off is not known.",)
    flagged = " Hollow bars are flagged." if (cells.flagged & ~cells.withheld).any() else ""
    return (f"{what}, the thin line across its end is the noise interval.{flagged}",)


def draw_one(cells: ItemCells, caption: Caption) -> Picture:
    """Return a single answer as a figure."""
    value, _, interval = cells.answer_words(0).partition(" (")
    small = f"<small>{escape(interval.rstrip(')'))}</small>" if interval else ""
    words = f"{caption.unit}; below it the noise interval" if interval else caption.unit
    html = f'<p class="one"><b>{escape(value)}</b>{small}</p>'
    return Picture("one answer", html, (f"{words[:1].upper()}{words[1:]}.",))


def draw_extremes(cells: ItemCells, caption: Caption) -> Picture:
    """Return the most and the least reliable answers as bars; the largest without error bars."""
    order = cells.by_reliability
    half = min(EXTREME_ROWS, len(order) // 2) or len(order)
    ends = (("Most reliable", order[:half]), ("Least reliable", order[len(order) - half :][::-1]))
    if not cells.error_bars:
        ends = (("Largest", order[:half]), ("Smallest", order[len(order) - half :][::-1]))
    blocks = []
    for head, rows in ends:
        bars = [_bar(cells, row, cells.words(row, cells.varying)) for row in rows.tolist()]
        title = f"{caption.title}: {head.lower()} answers"
        if bars:
            blocks.append(f"<h4>{head} answers</h4>{bar_picture(bars, title=title)}")
    notes = [
        "There are too many answers to draw all: these have the smallest and the largest noise "
        "interval for their size. They are chosen by noisy values, so chance has a part in it."
        if cells.error_bars
        else "There are too many answers to draw all: these are the largest and the smallest; how "
        "far they are off is not known.",
        "The two plots have scales of their own.",
    ]
    return Picture("extremes", "".join(blocks), (*notes, *_bar_notes(cells, "A bar is an answer")))


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


LEAST_PLACES = 5  # of two ordered columns, for a map to come before lines


def _sides(cells: ItemCells) -> tuple[Dimension, Dimension] | None:
    """Return the columns that are rows and columns of a map; None where two would not fit."""
    axes = [axis.dimension for axis in axes_of(cells, 2, len(cells))]
    others = sorted((d for d in cells.varying if d not in axes), key=lambda d: -len(d.texts))
    pair = sorted([*axes, *others][:2], key=lambda d: len(d.texts))
    if len(pair) < 2:
        return None
    rows, columns = pair
    if rows in axes and columns not in axes:
        rows, columns = columns, rows  # an axis goes to the right
    if columns not in axes:
        rows, columns = columns, rows  # more rows than columns: their names have more room
    size = len(rows.texts) * len(columns.texts)
    most = 24 if columns not in axes else MOST_COLUMNS
    fit = len(rows.texts) <= MOST_ROWS and len(columns.texts) <= most and size <= MOST_MAP_CELLS
    return (rows, columns) if fit else None


def fits_maps(cells: ItemCells, *, ordered: bool = False) -> bool:
    """Return whether two columns can be the sides of maps; only ordered ones, if that is asked."""
    sides = _sides(cells) if len(cells.varying) > 1 and is_grid(cells.varying) else None
    if sides is None or len(cells) > MOST_GROUPS * len(sides[0].texts) * len(sides[1].texts):
        return False
    return not ordered or len(axes_of(cells, LEAST_PLACES, MOST_COLUMNS)) > 1


def draw_maps(cells: ItemCells, caption: Caption) -> Picture:
    """Return a map of two columns, for each combination of the others."""
    sides = _sides(cells)
    if sides is None:
        raise ValueError("these answers fit no map")
    others = [dimension for dimension in cells.varying if dimension not in sides]
    groups = groups_of(cells, others)
    size = len(cells) // len(groups)
    chosen, said = chosen_groups(cells, groups, min(max(MOST_MAP_CELLS // size, 2), 4), "maps")
    breaks = shade_breaks(cells.value[np.concatenate([rows for _, rows in chosen])])
    maps = [_map_of(cells, rows, sides, caption) for _, rows in chosen]
    html = map_key(maps, breaks)
    for (name, _), part in zip(chosen, maps, strict=True):
        head = f"<h4>{escape(name)}</h4>" if name else ""
        html += f"{head}{heat_map(part, breaks, title=caption.of(name).title)}"
    kind = "heat map" if len(chosen) == 1 else "heat maps by group"
    return Picture(kind, html, (*said, *_map_notes(cells)))


def _map_of(
    cells: ItemCells, rows: Ints, sides: tuple[Dimension, Dimension], caption: Caption
) -> HeatMap:
    upright, level = sides
    at = (upright.places[rows], level.places[rows])
    shape = (len(upright.texts), len(level.texts))
    arrays = _arrays(cells, rows, at, shape)
    return HeatMap(_side(upright), _side(level), *arrays, caption.unit, cells.digits)


def _arrays(
    cells: ItemCells, rows: Ints, at: tuple[Ints, Ints], shape: tuple[int, int]
) -> tuple[Floats, Bools, Bools]:
    """Return values, flags and what is withheld in a map, given the place of each row."""
    value, flagged, withheld = np.full(shape, np.nan), np.zeros(shape, bool), np.zeros(shape, bool)
    value[at], flagged[at] = cells.value[rows], cells.flagged[rows]
    withheld[at] = cells.withheld[rows]
    return value, flagged, withheld


def _side(dimension: Dimension) -> MapSide:
    axis = ordered_axis(dimension)
    if axis is None:
        return MapSide(dimension.name, dimension.texts)
    places = axis.places if axis.numeric and not dimension.ranges else None
    return MapSide(dimension.name, dimension.texts, places, axis.dates, ordered=True)


def _map_notes(cells: ItemCells) -> tuple[str, ...]:
    if not cells.error_bars:
        return ("The stronger the blue, the more; how far the answers are off is not known.",)
    shades = "The stronger the blue, the more."
    if not (cells.flagged & ~cells.withheld).any():
        return (shades,)
    return (shades, "A dot marks answers that are flagged: noise is 30 % of them or more.")


MOST_BARS = 40
_TOTALS = ("all", "(all)")
MOST_TABLES = 6  # of an item that are drawn
LISTED_TABLES = 100


@dataclass(frozen=True)
class PictureKind:
    """A way to draw answers.

    Attributes:
        name: of the kind.
        fits: whether answers can be drawn so.
        draw: returns the picture.
    """

    name: str
    fits: Callable[[ItemCells], bool]
    draw: Callable[[ItemCells, Caption], Picture]


def picture_of(cells: ItemCells, caption: Caption) -> Picture:
    """Return the picture that fits answers best: of the first kind that fits."""
    kind = next(kind for kind in PICTURE_KINDS if kind.fits(cells))
    return kind.draw(cells, caption)


# ------------------------------------------------------------------------------- parts


def _tables(cells: ItemCells) -> list[tuple[str, Ints]]:
    """Return the rows of each table of an item of several, by name."""
    named = [dimension for dimension in cells.dimensions if dimension.name == "table"]
    return _rows_of_tables(cells, named[0]) if named else []


def _rows_of_tables(cells: ItemCells, tables: Dimension) -> list[tuple[str, Ints]]:
    """Return the rows of each table, those of one name together, in file order."""
    order = np.argsort(tables.places, kind="stable")
    pieces = np.split(order, np.flatnonzero(np.diff(tables.places[order])) + 1)
    return list(zip(tables.texts, pieces, strict=True))


def _fits_tables(cells: ItemCells) -> bool:
    return len(cells) > MOST_BARS and len(_tables(cells)) > 1


def _draw_tables(cells: ItemCells, caption: Caption) -> Picture:
    """Return a picture of each table, that its name opens, after a list of all of them."""
    groups = _tables(cells)
    chosen, said = chosen_groups(cells, groups, MOST_TABLES, "tables")
    blocks = [_list_of_tables(cells, groups)] if cells.error_bars else []
    kinds = []
    for k, (name, rows) in enumerate(chosen):
        picture = picture_of(cells.take(rows), caption.of(name))
        kinds += [picture.kind, *picture.parts]
        is_open = " open" if k == 0 else ""
        blocks.append(
            f"<details{is_open}><summary>{escape(name)} "
            f"<small>{count(len(rows), 'answer')}</small></summary>"
            f'{picture.html}<p class="note">{escape(" ".join(picture.notes))}</p></details>'
        )
    return Picture("tables", "".join(blocks), said, tuple(kinds))


def _list_of_tables(cells: ItemCells, groups: Sequence[tuple[str, Ints]]) -> str:
    """Return how reliable the answers of each table are, as HTML."""
    heads = ("table", "answers", "half of the noise interval, median", "flagged")
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{len(rows):,}</td>'
        f"<td>{within(_median(cells, rows))}</td>"
        f"<td>{percent(float(cells.flagged[rows].mean()))}</td></tr>"
        for name, rows in groups[:LISTED_TABLES]
    )
    more = len(groups) - LISTED_TABLES
    note = f"<p>{more:,} more tables are in the file.</p>" if more > 0 else ""
    return (
        f"<details><summary>{count(len(groups), 'table')}: how reliable each is</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Tables of the item">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}</details>"
    )


def _median(cells: ItemCells, rows: Ints) -> float | None:
    value = median_error(cells, rows)
    return value if np.isfinite(value) else None


def _but_totals(cells: ItemCells) -> Bools:
    """Return which rows are no total along an ordered column, where it has no place."""
    kept = np.ones(len(cells), dtype=bool)
    for dimension in cells.varying:
        if dimension.ends is not None:
            totals = [k for k, text in enumerate(dimension.texts) if text in _TOTALS]
            kept &= ~np.isin(dimension.places, totals)
    return kept


def _fits_but_totals(cells: ItemCells) -> bool:
    kept = _but_totals(cells)
    return len(cells) > MOST_BARS and 0 < int(kept.sum()) < len(kept)


def _draw_but_totals(cells: ItemCells, caption: Caption) -> Picture:
    """Return the picture of the other answers: a total would make all others small."""
    picture = picture_of(cells.take(np.flatnonzero(_but_totals(cells))), caption)
    return replace(picture, notes=(*picture.notes, "Totals stand in the table alone."))


PICTURE_KINDS = (
    PictureKind("extremes", lambda cells: not cells.whole, draw_extremes),
    PictureKind("one answer", lambda cells: len(cells) == 1, draw_one),
    PictureKind("tables", _fits_tables, _draw_tables),
    PictureKind("but totals", _fits_but_totals, _draw_but_totals),
    PictureKind("line", fits_line, draw_line),
    PictureKind("bars", lambda cells: len(cells) <= MOST_BARS, draw_bars),
    PictureKind("heat map", lambda cells: fits_maps(cells, ordered=True), draw_maps),
    PictureKind("lines", fits_lines, draw_lines),
    PictureKind("heat map", fits_maps, draw_maps),
    PictureKind("extremes", lambda cells: True, draw_extremes),
)
"""The kinds of pictures, in the order in which they are tried."""
