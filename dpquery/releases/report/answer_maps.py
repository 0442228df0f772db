"""Answers as heat maps: two columns against each other, or every range of one."""

from datetime import date
from html import escape

import numpy as np

from dpquery.arrays import Bools, Floats, Ints
from dpquery.releases.report.cells import Dimension, ItemCells
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
from dpquery.releases.report.picture import Caption, Picture, chosen_groups
from dpquery.releases.report.shapes import (
    MOST_GROUPS,
    all_ranges,
    axes_of,
    groups_of,
    is_grid,
    ordered_axis,
)

LEAST_PLACES = 5  # of two ordered columns, for a map to come before lines
LEAST_RANGES = 20  # of one column that are drawn as a triangle


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


def fits_ranges(cells: ItemCells) -> bool:
    """Return whether answers are those of every range of one column."""
    if len(cells.varying) != 1 or len(cells) < LEAST_RANGES or not is_grid(cells.varying):
        return False
    ends = all_ranges(cells.varying[0])
    return ends is not None and len(ends[0]) <= MOST_COLUMNS


def draw_ranges(cells: ItemCells, caption: Caption) -> Picture:
    """Return every range of one column as a triangle: first value down, last value across."""
    dimension = cells.varying[0]
    ends = all_ranges(dimension)
    if ends is None or dimension.ends is None:
        raise ValueError("these answers are not every range")
    places = dimension.ends[dimension.places]
    at = (np.searchsorted(ends[0], places[:, 0]), np.searchsorted(ends[1], places[:, 1]))
    every = np.arange(len(cells))
    arrays = _arrays(cells, every, at, (len(ends[0]), len(ends[1])))
    upright, level = (
        _end_side(dimension, f"{dimension.name} {verb}", end)
        for verb, end in zip(("from", "to"), ends, strict=True)
    )
    triangle = HeatMap(upright, level, *arrays, caption.unit, cells.digits, triangle=True)
    breaks = shade_breaks(cells.value)
    html = map_key([triangle], breaks) + heat_map(triangle, breaks, title=caption.title)
    how = f"Each cell is a range of {dimension.name}: its row is where it begins, its column where "
    return Picture("ranges", html, (f"{how}it ends.", *_map_notes(cells)))


def _end_side(dimension: Dimension, name: str, ends: Floats) -> MapSide:
    if dimension.dates:
        days = [date.fromordinal(int(end)).isoformat() for end in ends]
        return MapSide(name, days, ends, dates=True, ordered=True)
    return MapSide(name, [f"{end:,.12g}" for end in ends.tolist()], ordered=True)
