"""Heat maps: two columns against each other, the answers as shades with a key."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np

from dpquery.arrays import Bools, Floats, Ints
from dpquery.releases.report.axes import (
    NARROW_LAYOUT,
    WIDE_LAYOUT,
    Drawing,
    PictureLayout,
    Scale,
    Tick,
    date_ticks,
    in_layouts,
    number_ticks,
    pixel,
    shortened,
    shortened_apart,
    svg_path,
    svg_text,
    text_width,
    thinned,
    upright_text,
    written,
)

SHADES = 6  # of answers from zero on
MOST_MAP_CELLS = 3600  # of one map: each takes some fifteen bytes at each width
MOST_ROWS, MOST_COLUMNS = 60, 120
_TOP, _FLOOR, _LONGEST_LABEL = 6, 24, 120
_BELOW, _WITHHELD, _EMPTY = SHADES, SHADES + 1, SHADES + 2


@dataclass(frozen=True, eq=False)
class MapSide:
    """One side of a map.

    Attributes:
        name: of its column.
        labels: of its values.
        places: of its values, where they are marked as numbers or days; else None.
        dates: whether they are days.
        ordered: whether labels may be left out between others.
    """

    name: str
    labels: Sequence[str]
    places: Floats | None = None
    dates: bool = False
    ordered: bool = False


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Answers in rows and columns.

    Attributes:
        rows: the upright side.
        columns: the level side.
        value: (rows, columns) answers; NaN where none is shown.
        flagged: (rows, columns) whether their relative errors are worth a flag.
        withheld: (rows, columns) whether they are left out of what is published.
        unit: of the answers.
        digits: decimals that an answer is written with.
    """

    rows: MapSide
    columns: MapSide
    value: Floats
    flagged: Bools
    withheld: Bools
    unit: str
    digits: int = 0


def heat_map(cells: HeatMap, breaks: Sequence[float], *, title: str) -> str:
    """Return a map as HTML, given where its shades begin."""
    shade = _shades(cells, breaks)
    return in_layouts(lambda layout: _map(cells, shade, layout), title=title, words=_words(cells))


def shade_breaks(value: Floats) -> list[float]:
    """Return where shades begin, from zero on: evenly, or each a few times the one before.

    >>> shade_breaks(np.array([0.0, 3.0, 55.0]))
    [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    >>> shade_breaks(np.array([1.0, 20.0, 30.0, 9000.0]))
    [0.0, 10.0, 50.0, 200.0, 1000.0, 5000.0]
    """
    positive = value[value > 0]
    if not positive.size:
        return [0.0]
    top, middle = float(positive.max()), float(np.median(positive))
    if top <= 6 * middle:
        step = next(s for s in _round_numbers(top / SHADES) if s * SHADES > top)
        return [k * step for k in range(SHADES) if k * step <= top]
    marks = [m for m in _round_numbers(top / 1e6) if m <= top][-(3 * 5) :]
    for stride in (1, 2, 3):
        chosen = marks[::-1][::stride][: SHADES - 1][::-1]
        if chosen[0] <= middle:
            break
    spread = [float(f"{mark:.3g}") for mark in chosen]
    return [0.0, *spread]


def _round_numbers(least: float) -> list[float]:
    """Return 1, 2, 5 times powers of ten, from about a number on."""
    power = int(np.floor(np.log10(least)))
    return [float(f"{k}e{e}") for e in range(power, power + 8) for k in (1, 2, 5)]


def _shades(cells: HeatMap, breaks: Sequence[float]) -> Ints:
    """Return the class of each cell."""
    shade = np.searchsorted(np.asarray(breaks[1:]), cells.value, side="right").astype(np.int64)
    shade[cells.value < 0] = _BELOW
    shade[np.isnan(cells.value)] = _EMPTY
    shade[cells.withheld] = _WITHHELD
    return shade


def _map(cells: HeatMap, shade: Ints, layout: PictureLayout) -> Drawing:
    rows, columns = shade.shape
    room = min(_LONGEST_LABEL if layout is NARROW_LAYOUT else 240, 0.42 * layout.width)
    left = min(max(text_width(label) for label in cells.rows.labels), room) + 8
    right = layout.width - 8
    width = (right - left) / columns
    height = 16.0 if rows <= 40 or not cells.rows.ordered else max(4.0, 480 / rows)
    upright = _stand_upright(cells.columns, width)
    longest = max(text_width(label) for label in cells.columns.labels) if upright else 0
    highest = _LONGEST_LABEL if layout is NARROW_LAYOUT else 1.5 * _LONGEST_LABEL
    top = _TOP + (min(longest, highest) + 6 if upright else 0)
    marks = []
    for kind in np.unique(shade).tolist():
        marks.append(_area(shade == kind, left, top, width, height, cls=f"h{kind}"))
    marks.append(_strokes(shade == _WITHHELD, left, top, width, height))
    marks.append(_dots(cells.flagged & (shade < _WITHHELD), left, top, width, height))
    marks += _row_labels(cells.rows, top, height, left, tips=layout is WIDE_LAYOUT)
    floor = top + rows * height
    if upright:
        for k, label in enumerate(shortened_apart(cells.columns.labels, highest)):
            marks.append(upright_text(label, left + (k + 0.5) * width + 4, top - 4))
    else:
        marks += _column_labels(cells.columns, left, width, columns, floor)
    names = f"{cells.rows.name} (down) by {cells.columns.name} (across)"
    marks.append(
        svg_text(shortened(names, layout.width), 0, floor + (14 if upright else 36), cls="tick")
    )
    return Drawing([mark for mark in marks if mark], floor + (20 if upright else 42))


def _stand_upright(side: MapSide, width: float) -> bool:
    """Return whether labels of columns have to stand upright: none may be left out."""
    return not side.ordered and max(map(text_width, side.labels)) + 6 > width


def _row_labels(side: MapSide, top: float, height: float, left: float, *, tips: bool) -> list[str]:
    count = len(side.labels)
    step = 1 if height >= 13 else int(np.ceil(13 / height))
    labels = shortened_apart(side.labels, left - 6)
    return [
        svg_text(
            labels[k],
            left - 6,
            top + (k + 0.5) * height + 4,
            cls="end",
            tip=side.labels[k] if tips else "",
        )
        for k in range(0, count, step)
    ]


def _column_labels(side: MapSide, left: float, width: float, count: int, floor: float) -> list[str]:
    """Return the texts below a map, each in the middle of its column."""
    middle = Scale(0, max(count - 1, 1), left + width / 2, left + (count - 0.5) * width)
    ticks = [Tick(k, label) for k, label in enumerate(side.labels)]
    if side.places is not None and count > 1:
        low, high = float(side.places[0]), float(side.places[-1])
        scale = Scale(low, high, middle.start, middle.end)
        room = middle.end - middle.start
        ticks = (
            date_ticks(scale, room=room)
            if side.dates
            else number_ticks(scale, most=max(2, int(room // 40)), whole=True)
        )
        middle = scale
    shown = [Tick(tick.value, shortened(tick.text, 110)) for tick in ticks]
    low, high = left, left + count * width + 8
    marks = []
    for tick in thinned(middle, shown):
        half = text_width(tick.text) / 2
        x = max(low, min(middle(tick.value) - half, high - 2 * half))
        marks.append(svg_text(tick.text, x, floor + 16, cls="tick"))
    return marks


def _area(mask: Bools, left: float, top: float, width: float, height: float, *, cls: str) -> str:
    """Return all cells of one class as one path: lines as thick as a row, one for neighbours."""
    commands = [
        f"M{pixel(left + begin * width)} {pixel(top + (row + 0.5) * height)}"
        f"h{pixel((end - begin) * width)}"
        for row, begin, end in _stretches(mask)
    ]
    path = svg_path("".join(commands), cls=cls)
    return path.replace("<path", f'<path stroke-width="{pixel(height)}"', 1)


def _stretches(mask: Bools) -> list[tuple[int, int, int]]:
    """Return row, first and last column + 1 of every stretch of a mask."""
    padded = np.pad(mask.astype(np.int8), ((0, 0), (1, 1)))
    rows, edges = np.nonzero(np.diff(padded, axis=1))
    return [
        (int(row), int(begin), int(end))
        for row, begin, end in zip(rows[::2], edges[::2], edges[1::2], strict=True)
    ]


def _strokes(mask: Bools, left: float, top: float, width: float, height: float) -> str:
    """Return a stroke through every cell that is not published."""
    commands = [
        f"M{pixel(left + k * width + 1)} {pixel(top + (i + 1) * height - 1)}"
        f"L{pixel(left + (k + 1) * width - 1)} {pixel(top + i * height + 1)}"
        for i, k in np.argwhere(mask).tolist()
    ]
    return svg_path("".join(commands), cls="stroke")


def _dots(mask: Bools, left: float, top: float, width: float, height: float) -> str:
    """Return a dot in every cell that is flagged."""
    size = min(2.4, width / 2, height / 2)
    commands = [
        f"M{pixel(left + (k + 0.5) * width)} {pixel(top + (i + 0.5) * height)}h0"
        for i, k in np.argwhere(mask).tolist()
    ]
    cls = "noisy small" if size < 2 else "noisy"
    return svg_path("".join(commands), cls=cls)


def map_key(maps: Sequence[HeatMap], breaks: Sequence[float]) -> str:
    """Return what each shade and sign of some maps means, as HTML."""
    texts = [tick.text for tick in written(breaks)]
    entries = [(f"h{k}", f"{text} to {end}") for k, (text, end) in enumerate(pairwise(texts))]
    entries.append((f"h{len(texts) - 1}", f"{texts[-1]} and more"))
    shades = np.unique(np.concatenate([_shades(cells, breaks).ravel() for cells in maps])).tolist()
    words = {_BELOW: "below 0: noise", _WITHHELD: "not published", _EMPTY: "no value"}
    entries += [(f"h{kind}", text) for kind, text in words.items() if kind in shades]
    if any((cells.flagged & ~np.isnan(cells.value)).any() for cells in maps):
        entries.append(("dotted", "flagged: relative error 30 % or more"))
    items = "".join(
        f'<li><svg class="swatch" viewBox="0 0 24 14" aria-hidden="true">{_swatch(cls)}</svg>'
        f"{escape(text)}</li>"
        for cls, text in entries
    )
    return f'<ul class="legend"><li>{escape(maps[0].unit)}:</li>{items}</ul>'


def _swatch(cls: str) -> str:
    shown = "h1" if cls == "dotted" else cls
    extra = '<path class="noisy" d="M12 7h0"></path>' if cls == "dotted" else ""
    extra += '<path class="stroke" d="M2 13L22 1"></path>' if cls == "h7" else ""
    return f'<path class="{shown}" stroke-width="14" d="M0 7H24"></path>{extra}'


def _words(cells: HeatMap) -> str:
    """Return the extent, the smallest and the largest answer in words."""
    size = f"{len(cells.rows.labels)} rows by {len(cells.columns.labels)} columns"
    if np.isnan(cells.value).all():
        return f"{size}; nothing is published"
    ends = []
    for verb, at in (("smallest", np.nanargmin), ("largest", np.nanargmax)):
        i, k = np.unravel_index(int(at(cells.value)), cells.value.shape)
        where = f"{cells.rows.labels[int(i)]}, {cells.columns.labels[int(k)]}"
        ends.append(f"{verb} at {where} with {cells.value[i, k]:,.{cells.digits}f}")
    return f"{size}; {'; '.join(ends)}"
