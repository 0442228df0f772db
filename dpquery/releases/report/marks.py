"""The three pictures: points with whiskers, lines with a band, a heat map.

Points stand in a table, one row an answer beside its number, so that the number is seen at any
width and the picture needs no words of its own. Lines and maps are plots with a description.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from itertools import groupby, pairwise
from math import inf, isnan

import numpy as np

from dpquery.arrays import Bools, Floats, Ints
from dpquery.releases.report.answers import TOTAL_LABELS
from dpquery.releases.report.axes import (
    NARROWEST,
    PANEL_WIDTH,
    STRIP_WIDTH,
    Axis,
    Scale,
    Tick,
    TickWriter,
    breaking,
    cut,
    cut_apart,
    date_ticks,
    end_days,
    end_ticks,
    label_ticks,
    log_scale,
    number_ticks,
    percent_of,
    place_scale,
    plot,
    polyline,
    svg_path,
    thinned,
    tick_row,
    value_scale,
    written,
)
from dpquery.releases.words import figure

# ------------------------------------------------------------------------------- points

FAR_TOTAL = 3  # times the largest of its parts is a total that has no place on their scale


@dataclass(frozen=True)
class Mark:
    """One answer."""

    label: str  # what it counts
    value: float  # the answer; NaN where none is shown
    text: str  # the same in words
    interval: str = ""  # its noise interval in words; empty where none is known
    low: float = float("nan")  # where that begins; NaN where none is known
    high: float = float("nan")  # where it ends
    flagged: bool = False  # whether its relative error is worth a flag
    # what it has in common with those around it, which stands above the first of them
    head: str = ""


def points(
    rows: Sequence[Mark],
    *,
    caption: str,
    heads: tuple[str, str],
    axis: str,
    ticks: TickWriter = number_ticks,
    marks: Sequence[float] = (),
    far: bool = False,
) -> str:
    """Return a table of answers with a point and a whisker for each, as HTML.

    Args:
        rows: what is drawn, from the top; those of no value have no point, and an arrow stands for
            totals that would leave the others no room.
        caption: of the table.
        heads: of the columns of labels and of values.
        axis: what the values are.
        ticks: what marks their axis.
        marks: values at which a line crosses all rows.
        far: whether the axis is logarithmic where positive values lie far apart.
    """
    parts = [r for r in rows if not {r.label, r.head} & {*TOTAL_LABELS}]
    most = max((row.value for row in parts if row.value > 0), default=inf)
    beyond = any(row.value > FAR_TOTAL * most for row in rows if row not in parts)
    of_scale = parts if beyond and not far else rows
    ends = (end for r in of_scale if not isnan(r.value) for end in (r.value, r.low, r.high))
    shown = [*(end for end in ends if not isnan(end)), *marks]
    positive = [row.value for row in rows if row.value > 0]
    far = far and bool(positive) and max(positive) > 30 * min(positive)
    scale = log_scale([end for end in shown if end > 0]) if far else value_scale(shown)
    lines = [("zero", 0.0)] * (not far) + [("mark", mark) for mark in marks]
    crossed = "".join(
        f'<line class="{cls}" x1="{at}" x2="{at}" y1="0" y2="100%"></line>'
        for cls, value in lines
        for at in [percent_of(scale(value))]
    )
    bodies = []
    for head, part in groupby(rows, key=lambda row: row.head):
        above = f'<tr><th colspan="3" scope="rowgroup">{escape(head)}</th></tr>' if head else ""
        lines_of = "".join(_row(row, scale, crossed) for row in part)
        bodies.append(f"<tbody>{above}{lines_of}</tbody>")
    name = f"{axis} (logarithmic)" if far else axis
    shown_ticks = thinned(scale, ticks(scale), STRIP_WIDTH)
    foot = tick_row(Axis(scale, shown_ticks, name, room=STRIP_WIDTH))
    return (
        f'<table class="points"><caption>{escape(caption)}</caption><thead><tr>'
        f'<th scope="col">{escape(heads[0])}</th><td></td><th scope="col">{escape(heads[1])}</th>'
        f"</tr></thead>{''.join(bodies)}<tfoot><tr><td></td><td>{foot}</td><td></td></tr></tfoot>"
        "</table>"
    )


def _row(row: Mark, scale: Scale, crossed: str) -> str:
    interval = f"<small>{escape(row.interval)}</small>" if row.interval else ""
    return (
        f'<tr><th scope="row">{breaking(row.label)}</th><td class="strip">'
        f'<svg aria-hidden="true">{crossed}{_point(row, scale)}</svg></td>'
        f"<td>{escape(row.text)}{interval}</td></tr>"
    )


def _point(row: Mark, scale: Scale) -> str:
    if isnan(row.value) or (scale.log and row.value <= 0):
        return ""
    if row.value > scale.high:
        return '<text x="100%" y="50%" dy=".35em" text-anchor="end">→</text>'
    whisker = ""
    if not isnan(row.low):
        low, high = percent_of(scale(row.low)), percent_of(scale(row.high))
        whisker = f'<line class="whisker" x1="{low}" x2="{high}" y1="50%" y2="50%"></line>'
    cls = "dot flagged" if row.flagged else "dot"
    at = percent_of(scale(row.value))
    return f'{whisker}<circle class="{cls}" cx="{at}" cy="50%" r="4.5"></circle>'


# ------------------------------------------------------------------------------- lines

PLOT_HEIGHT, PANEL_HEIGHT = 230, 84


@dataclass(frozen=True, eq=False)
class Line:
    """Estimates along an axis."""

    name: str  # what they have in common; empty where there is but one line
    places: Floats  # (n,) on the axis, rising
    value: Floats  # (n,) estimates, NaN where there is none
    low: Floats  # (n,) where their noise intervals begin, NaN where none is known
    high: Floats  # (n,) where these end
    texts: Sequence[str]  # (n,) estimates in words


@dataclass(frozen=True)
class LineAxis:
    """The axis along which lines run."""

    name: str  # what stands below it
    # "numbers", "dates", "labels" of places 0, 1, ..., or "logarithmic", as is then the upright
    # axis
    kind: str
    unit: str  # what stands above the upright axis
    labels: Sequence[str] = ()  # of the places, where they are labels

    def text(self, place: float) -> str:
        """Return how a place is called."""
        if self.kind == "dates":
            return date.fromordinal(int(place)).isoformat()
        return self.labels[int(place)] if self.kind == "labels" else f"{place:.12g}"


def line_picture(lines: Sequence[Line], axis: LineAxis, *, title: str) -> str:
    """Return lines in one plot, as HTML: a legend above it where there are several."""
    words = ". ".join(f"{f'{x.name}: ' if x.name else ''}{_line_words(x, axis)}" for x in lines)
    keys = []
    for k, line in enumerate(lines):
        band = "" if np.isnan(line.low).all() else svg_path("M0 0H24V14H0Z", cls=f"band s{k}")
        commands, cls = ("M12 7h0", "alone") if len(line.places) == 1 else ("M0 7H24", "line")
        keys.append((f"{band}{svg_path(commands, cls=f'{cls} s{k}')}", line.name))
    return legend(keys) * (len(lines) > 1) + _line_plot(lines, axis, title, words)


def line_panels(lines: Sequence[Line], axis: LineAxis, *, title: str) -> tuple[str, bool]:
    """Return a small plot for each line, as HTML, and whether all have the same scale.

    They have their own where the largest values lie so far apart that lines would be flat.
    """
    tops = [float(np.nanmax(np.append(line.high, line.value), initial=1.0)) for line in lines]
    same = max(tops) <= 8 * min(tops)
    shared = _ends(lines) if same else None
    panels = ""
    for line in lines:
        words = _line_words(line, axis)
        drawn = _line_plot([line], axis, f"{title}: {line.name}", words, shared, small=True)
        panels += f'<div class="panel"><p>{escape(cut(line.name))}</p>{drawn}</div>'
    return f'<div class="panels">{panels}</div>', same


def privacy_curve(
    curve: Sequence[tuple[float, float]], *, now: tuple[float, float], title: str
) -> str:
    """Return error against epsilon, both logarithmic, with the place of this release."""
    whole = sorted({*curve, now})
    places, value = np.array(whole).T
    texts = [figure(y) for y in value.tolist()]
    unknown = np.full(len(whole), np.nan)
    lines = [
        Line("at other budgets", places, value, unknown, unknown, texts),
        Line(
            "this release",
            np.array(now[:1]),
            np.array(now[1:]),
            unknown[:1],
            unknown[:1],
            [figure(now[1])],
        ),
    ]
    return line_picture(lines, LineAxis("ε", "logarithmic", "RMS error"), title=title)


def _line_words(line: Line, axis: LineAxis) -> str:
    """Return the ends of a line, its smallest and its largest value, in words."""
    known = np.flatnonzero(~np.isnan(line.value))
    if not len(known):
        return "nothing is published"
    places = {
        "begins": known[0],
        "ends": known[-1],
        "is smallest": known[np.argmin(line.value[known])],
        "is largest": known[np.argmax(line.value[known])],
    }
    return "; ".join(
        f"{verb} at {axis.text(line.places[k])} with {line.texts[k]}" for verb, k in places.items()
    )


def _line_plot(
    lines: Sequence[Line],
    axis: LineAxis,
    title: str,
    words: str,
    values: Sequence[float] | None = None,
    *,
    small: bool = False,
) -> str:
    """Return lines with their bands and axes; the upright axis shows `values`, or what is drawn."""
    log = axis.kind == "logarithmic"
    shown = _ends(lines) if values is None else values
    up = log_scale(shown) if log else value_scale(shown)
    places = [float(place) for line in lines for place in line.places]
    across = (log_scale if log else place_scale)(places)
    nothing = all(np.isnan(line.value).all() for line in lines)
    up_ticks = number_ticks(up, most=3 if small else 6)
    marks = [part for k, line in enumerate(lines) for part in _marks(line, across, up, k)]
    return plot(
        marks,
        Axis(
            across,
            _ticks(axis, across, small=small),
            "" if small else axis.name,
            room=PANEL_WIDTH if small else NARROWEST,
        ),
        Axis(up, up_ticks[:1] if nothing else up_ticks, "" if small else axis.unit, grid=True),
        title=title,
        words=words,
        height=PANEL_HEIGHT if small else PLOT_HEIGHT,
    ) + ("<p>nothing is published</p>" if nothing else "")


def _ticks(axis: LineAxis, across: Scale, *, small: bool) -> list[Tick]:
    if small:
        texts = (axis.text(across.low), axis.text(across.high))
        return end_ticks(across, end_days(across) if axis.kind == "dates" else texts)
    if axis.kind == "dates":
        return date_ticks(across)
    if axis.kind == "labels":
        return [t for t in label_ticks(axis.labels)[1] if across.low <= t.value <= across.high]
    return thinned(across, number_ticks(across, whole=axis.kind == "numbers"))


def _marks(line: Line, across: Scale, up: Scale, k: int) -> list[str]:
    """Return the band and the line, each in as many pieces as gaps leave."""
    bands, commands, alone = "", "", ""
    xs = [across(float(place)) for place in line.places]
    for run in _runs(~np.isnan(line.value) & ~np.isnan(line.low)):
        at = xs[run] if run.stop - run.start > 1 else [xs[run.start] - 0.004, xs[run.start] + 0.004]
        top, low = (
            zip(at, np.resize([up(float(y)) for y in ends[run]], len(at)).tolist(), strict=True)
            for ends in (line.high, line.low)
        )  # an interval without neighbours is as wide as a point
        bands += f"{polyline([*top, *[*low][::-1]])}Z"
    for run in _runs(~np.isnan(line.value)):
        ends = [(x, up(float(y))) for x, y in zip(xs[run], line.value[run], strict=True)]
        if len(ends) > 1:
            commands += polyline(ends)
        else:
            alone += f"{polyline(ends)}h0"
    parts = ((bands, "band"), (commands, "line"), (alone, "alone"))
    return [svg_path(text, cls=f"{cls} s{k}") for text, cls in parts if text]


def _runs(known: Bools) -> list[slice]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], known.astype(np.int8), [0]])))
    return [slice(begin, end) for begin, end in edges.reshape(-1, 2).tolist()]


def _ends(lines: Sequence[Line]) -> list[float]:
    shown = [~np.isnan(line.value) for line in lines]
    every = np.concatenate(
        [np.r_[x.low[s], x.high[s], x.value[s]] for x, s in zip(lines, shown, strict=True)]
    )
    known = every[~np.isnan(every)]
    return [float(known.min()), float(known.max())] if known.size else [0.0]


def legend(keys: Sequence[tuple[str, str]]) -> str:
    """Return what marks mean, as HTML, given elements of SVG of 24 by 14 pixels."""
    items = "".join(
        '<li><svg class="swatch" viewBox="0 0 24 14" aria-hidden="true">'
        f"{marks}</svg>{escape(text)}</li>"
        for marks, text in keys
    )
    return f'<ul class="legend">{items}</ul>'


# ------------------------------------------------------------------------------- maps

SHADES = 6  # of answers from zero on
MOST_MAP_CELLS = 3600  # of one map: each takes some ten bytes
MOST_ROWS, MOST_COLUMNS = 60, 120
_BELOW, _WITHHELD, _EMPTY = SHADES, SHADES + 1, SHADES + 2
_DOT = '<path class="noisy" d="M12 7h0"></path>'
_CROSS = '<path class="stroke" d="M2 13L22 1"></path>'


@dataclass(frozen=True, eq=False)
class MapSide:
    """One side of a map."""

    name: str  # of its column
    labels: Sequence[str]  # of its values
    # of its values, where they are marked as numbers or days; else None
    places: Floats | None = None
    dates: bool = False  # whether they are days
    ordered: bool = False  # whether labels may be left out between others


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Answers in rows and columns."""

    rows: MapSide  # the upright side
    columns: MapSide  # the level side
    value: Floats  # (rows, columns) answers; NaN where none is shown
    flagged: Bools  # (rows, columns) whether their relative errors are worth a flag
    withheld: Bools  # (rows, columns) whether they are left out of what is published
    digits: int = 0  # decimals that an answer is written with


def heat_map(cells: HeatMap, breaks: Sequence[float], *, title: str) -> str:
    """Return a map as HTML, given where its shades begin."""
    shade = _shades(cells, breaks)
    height, width = shade.shape
    marks = [_area(shade == kind, cls=f"h{kind}") for kind in np.unique(shade).tolist()]
    crossed = (f"M{j} {i + 1}l1-1" for i, j in np.argwhere(shade == _WITHHELD).tolist())
    marks.append(svg_path("".join(crossed), cls="stroke"))
    dotted = np.argwhere(cells.flagged & (shade < _WITHHELD)).tolist()
    dots = "".join(f"M{j + 0.5:g} {i + 0.5:g}h0" for i, j in dotted)
    marks.append(svg_path(dots, cls="noisy small" if width > 40 else "noisy"))
    row_height = 17.0 if height <= 40 or not cells.rows.ordered else max(4.0, 480 / height)
    step = 1 if row_height >= 14 else int(np.ceil(14 / row_height))
    names = cut_apart(cells.rows.labels)
    ticks = [Tick(height - 1 - k, names[k]) for k in range(0, height, step)]
    return plot(
        marks,
        _columns(cells.columns),
        Axis(Scale(-0.5, height - 0.5), ticks, f"{cells.rows.name} down"),
        title=title,
        words=_map_words(cells),
        height=height * row_height,
        view=(width, height),
    )


def _columns(side: MapSide) -> Axis:
    """Return the axis below a map: numbers or days where it has them, else labels."""
    name, count = f"{side.name} across", len(side.labels)
    if side.places is not None and count > 1:
        half = (float(side.places[-1]) - float(side.places[0])) / (count - 1) / 2
        scale = Scale(float(side.places[0]) - half, float(side.places[-1]) + half)
        inside = Scale(float(side.places[0]), float(side.places[-1]))
        numbers = thinned(scale, number_ticks(inside, whole=True))
        return Axis(scale, date_ticks(scale) if side.dates else numbers, name)
    scale, ticks = label_ticks(side.labels)
    if side.ordered or len(ticks) == count:
        return Axis(scale, ticks, name)
    labels = cut_apart(side.labels, 24)  # of names none is left out
    return Axis(scale, [Tick(k, label) for k, label in enumerate(labels)], name, upright=True)


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
    return [0.0, *(float(f"{mark:.3g}") for mark in chosen)]


def _round_numbers(least: float) -> list[float]:
    """Return 1, 2, 5 times powers of ten, from about a number on."""
    power = int(np.floor(np.log10(least)))
    return [float(f"{k}e{e}") for e in range(power, power + 8) for k in (1, 2, 5)]


def _shades(cells: HeatMap, breaks: Sequence[float]) -> Ints:
    shade = np.searchsorted(np.asarray(breaks[1:]), cells.value, side="right").astype(np.int64)
    shade[cells.value < 0] = _BELOW
    shade[np.isnan(cells.value)] = _EMPTY
    shade[cells.withheld] = _WITHHELD
    return shade


def _area(mask: Bools, *, cls: str) -> str:
    """Return all cells of one class as one path: a rectangle for neighbours in a row."""
    rows, edges = np.nonzero(np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1))
    stretches = zip(rows[::2].tolist(), edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    commands = (f"M{begin} {row}h{end - begin}v1h{begin - end}z" for row, begin, end in stretches)
    return svg_path("".join(commands), cls=cls)


def map_key(maps: Sequence[HeatMap], breaks: Sequence[float], unit: str) -> str:
    """Return what each shade and sign of some maps means, as HTML."""
    texts = [tick.text for tick in written(breaks)]
    entries = [(k, f"{text} to {end}") for k, (text, end) in enumerate(pairwise(texts))]
    entries.append((len(texts) - 1, f"{texts[-1]} and more"))
    entries[0] = (0, f"{unit}: {entries[0][1]}")
    shades = np.unique(np.concatenate([_shades(cells, breaks).ravel() for cells in maps])).tolist()
    # Counts and shares cannot be below zero; differences can.
    below = "below 0: noise" if unit in ("count", "percent") else "below 0"
    words = {_BELOW: below, _WITHHELD: "not published", _EMPTY: "no value"}
    entries += [(kind, text) for kind, text in words.items() if kind in shades]
    signs = {_WITHHELD: _CROSS}
    keys = [
        (f'<path class="h{kind}" d="M0 0h24v14H0z"></path>{signs.get(kind, "")}', text)
        for kind, text in entries
    ]
    if any((cells.flagged & ~np.isnan(cells.value)).any() for cells in maps):
        keys.append((f'<path class="h1" d="M0 0h24v14H0z"></path>{_DOT}', "flagged"))
    return legend(keys)


def _map_words(cells: HeatMap) -> str:
    size = f"{len(cells.rows.labels)} rows by {len(cells.columns.labels)} columns"
    if np.isnan(cells.value).all():
        return f"{size}; nothing is published"
    ends = []
    for verb, at in (("smallest", np.nanargmin), ("largest", np.nanargmax)):
        i, k = np.unravel_index(int(at(cells.value)), cells.value.shape)
        where = f"{cells.rows.labels[int(i)]}, {cells.columns.labels[int(k)]}"
        ends.append(f"{verb} at {where} with {cells.value[i, k]:,.{cells.digits}f}")
    return f"{size}; {'; '.join(ends)}"
