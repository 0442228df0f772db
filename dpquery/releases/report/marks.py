"""Bars and lines with their intervals.

Bars: one line an answer, its noise interval as a whisker across the end of the bar.

Lines: estimates along an ordered axis with the band of their noise intervals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from math import isnan

import numpy as np

from dpquery.arrays import Floats
from dpquery.releases.report.axes import (
    FLOOR,
    PANEL_LAYOUT,
    WIDE_LAYOUT,
    Drawing,
    PictureLayout,
    Scale,
    Tick,
    TickWriter,
    date_ticks,
    end_ticks,
    in_layouts,
    label_ticks,
    left_margin,
    level_axis,
    log_scale,
    number_ticks,
    pixel,
    place_scale,
    polyline,
    shortened,
    shortened_apart,
    straight_line,
    svg,
    svg_path,
    svg_tag,
    svg_text,
    text_width,
    upright_axis,
    value_scale,
)
from dpquery.releases.words import figure

BARS_TOP, ROW_HEIGHT, HEAD_HEIGHT = 8, 22, 24
_GAP = 8


@dataclass(frozen=True)
class Bar:
    """One answer.

    Attributes:
        label: what it counts.
        value: the answer; NaN where none is shown.
        text: the same in words, which stand at the end of the line.
        low: where its noise interval begins; NaN where none is known.
        high: where it ends.
        flagged: whether its relative error is worth a flag.
        head: what it has in common with those around it, which stands above the first of them.
        tip: tooltip.
    """

    label: str
    value: float
    text: str
    low: float = float("nan")
    high: float = float("nan")
    flagged: bool = False
    head: str = ""
    tip: str = ""


def bar_picture(bars: Sequence[Bar], *, title: str) -> str:
    """Return a bar from zero for each answer, across its end a whisker, as HTML."""
    words = _words(bars)
    ends = [end for bar in bars for end in _shown_ends(bar)]

    def scale(start: float, end: float) -> Scale:
        return value_scale(ends, start=start, end=end)

    return in_layouts(
        lambda layout: _rows(bars, layout, scale, number_ticks, ()), title=title, words=words
    )


def value_bars(
    bars: Sequence[Bar], *, title: str, ticks: TickWriter, marks: Sequence[float] = ()
) -> str:
    """Return a bar for each positive figure, logarithmic where they differ much, as HTML.

    Args:
        bars: what is drawn, from the top; those of no figure have no bar.
        title: of the chart.
        ticks: what marks the axis.
        marks: figures at which a line crosses all bars.
    """
    words = _words(bars)
    positive = [bar.value for bar in bars if bar.value > 0]
    shown = [*positive, *marks]
    log = bool(positive) and max(positive) > 30 * min(positive)

    def scale(start: float, end: float) -> Scale:
        return (log_scale if log else value_scale)(shown, start=start, end=end)

    return in_layouts(
        lambda layout: _rows(bars, layout, scale, ticks, marks), title=title, words=words
    )


def _words(bars: Sequence[Bar]) -> str:
    """Return how many bars there are, with the largest and the smallest of them."""
    known = sorted((bar for bar in bars if not isnan(bar.value)), key=lambda bar: bar.value)
    if not known:
        return f"{len(bars)} bars; nothing is published"
    names = [", ".join(filter(None, [bar.head, bar.label])) for bar in (known[-1], known[0])]
    return (
        f"{len(bars)} bars; the largest is {names[0]} with {known[-1].text}, the smallest "
        f"{names[1]} with {known[0].text}"
    )


def _shown_ends(bar: Bar) -> list[float]:
    return [
        end for end in (bar.value, bar.low, bar.high) if not isnan(end) and not isnan(bar.value)
    ]


def _rows(
    bars: Sequence[Bar],
    layout: PictureLayout,
    scale_of: Callable[[float, float], Scale],
    ticks: TickWriter,
    marks: Sequence[float],
) -> Drawing:
    label_room = max(70.0, min(max(text_width(b.label) for b in bars), 0.42 * layout.width))
    value_room = max(text_width(bar.text) for bar in bars)
    start, end = label_room + _GAP, layout.width - value_room - _GAP
    across = scale_of(start, end)
    heads = sum(1 for k, bar in enumerate(bars) if _begins(bars, k) and bar.head)
    floor = BARS_TOP + ROW_HEIGHT * len(bars) + HEAD_HEIGHT * heads
    drawn = level_axis(across, ticks(across), top=BARS_TOP, floor=floor, across=True)
    for mark in marks:
        drawn.append(straight_line(across(mark), BARS_TOP, across(mark), floor, cls="mark"))
    y = float(BARS_TOP)
    labels = shortened_apart([bar.label for bar in bars], label_room)
    for k, (bar, label) in enumerate(zip(bars, labels, strict=True)):
        if bar.head and _begins(bars, k):
            drawn.append(svg_text(shortened(bar.head, end), 0, y + 17, cls="head"))
            y += HEAD_HEIGHT
        middle, tip = y + ROW_HEIGHT / 2, bar.label if layout is WIDE_LAYOUT else ""
        drawn.append(svg_text(label, label_room, middle + 4, cls="end", tip=tip))
        drawn += _bar(bar, across, middle, tips=layout is WIDE_LAYOUT)
        drawn.append(svg_text(bar.text, layout.width, y + ROW_HEIGHT / 2 + 4, cls="value end"))
        y += ROW_HEIGHT
    return Drawing(drawn, floor + FLOOR + 2)


def _begins(bars: Sequence[Bar], k: int) -> bool:
    return k == 0 or bars[k].head != bars[k - 1].head


def _bar(bar: Bar, across: Scale, middle: float, *, tips: bool) -> list[str]:
    if isnan(bar.value):
        return []
    zero = across.start if across.log else across(0)
    at = across(bar.value)
    if across.log and bar.value <= 0:
        at = zero
    cls = " flagged" if bar.flagged else ""
    marks = [
        svg_tag(
            "rect",
            x=min(zero, at),
            y=middle - 6,
            width=max(abs(at - zero), 1.5 if across.log and bar.value > 0 else 0.0),
            height=12,
            cls=f"bar{cls}",
            tip=bar.tip if tips else "",
        ),
    ]
    if not isnan(bar.low):
        low, high = pixel(across(bar.low)), pixel(across(bar.high))
        at_ends = "".join(f"M{x} {pixel(middle - 4)}v8" for x in (low, high))
        marks.append(svg_path(f"M{low} {pixel(middle)}H{high}{at_ends}", cls="whisker"))
    return marks


PLOT_TOP, RIGHT = 20, 16
PLOT_HEIGHT = 220
PANEL_HEIGHT = 84
MOST_TIPS = 60  # marks with a tooltip in one picture: each takes as many bytes as ten points
LONGEST_TICK = 110


@dataclass(frozen=True, eq=False)
class Line:
    """Estimates along an axis.

    Attributes:
        name: what they have in common; empty where there is but one line.
        places: (n,) on the axis, rising.
        value: (n,) estimates, NaN where there is none.
        low: (n,) where their noise intervals begin, NaN where none is known.
        high: (n,) where these end.
        texts: (n,) estimates with their intervals in words.
    """

    name: str
    places: Floats
    value: Floats
    low: Floats
    high: Floats
    texts: Sequence[str]


@dataclass(frozen=True)
class LineAxis:
    """The axis along which lines run.

    Attributes:
        name: what stands below it.
        kind: "numbers", "dates", or "labels" of places 0, 1, ...
        labels: of the places, where they are labels.
        unit: what stands above the upright axis.
    """

    name: str
    kind: str
    unit: str
    labels: Sequence[str] = ()


def line_picture(lines: Sequence[Line], axis: LineAxis, *, title: str, words: str) -> str:
    """Return lines in one plot, as HTML: a legend above it where there are several."""
    legend = _legend(lines) if len(lines) > 1 else ""
    return legend + in_layouts(
        lambda layout: line_plot(lines, axis, layout), title=title, words=words
    )


def line_panels(lines: Sequence[Line], axis: LineAxis, *, title: str) -> tuple[str, bool]:
    """Return a small plot for each line, as HTML, and whether all have the same scale.

    They have their own where the largest values lie so far apart that lines would be flat.
    """
    tops = [float(np.nanmax(np.append(line.high, line.value), initial=1.0)) for line in lines]
    same = max(tops) <= 8 * min(tops)
    shared = _ends(lines) if same else None
    panels = []
    for line in lines:
        words = f"{title}: {line.name}"
        drawing = line_plot([line], axis, PANEL_LAYOUT, PANEL_HEIGHT, values=shared)
        name = escape(line.name)
        picture = svg(drawing, PANEL_LAYOUT, title=words, words=line_words(line, axis))
        panels.append(f'<div class="panel"><p title="{name}">{name}</p>{picture}</div>')
    return f'<div class="panels">{"".join(panels)}</div>', same


def line_words(line: Line, axis: LineAxis) -> str:
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
        f"{verb} at {_place_text(axis, line.places[k])} with {line.texts[k].partition(' (')[0]}"
        for verb, k in places.items()
    )


def _place_text(axis: LineAxis, place: float) -> str:
    if axis.kind == "dates":
        return date.fromordinal(int(place)).isoformat()
    return axis.labels[int(place)] if axis.kind == "labels" else f"{place:.12g}"


def line_plot(
    lines: Sequence[Line],
    axis: LineAxis,
    layout: PictureLayout,
    plot_height: float = PLOT_HEIGHT,
    *,
    values: Sequence[float] | None = None,
) -> Drawing:
    """Return lines with their bands and axes.

    Args:
        lines: what is drawn.
        axis: along which they run.
        layout: how wide the picture is; a panel has the ends of its axis written alone.
        plot_height: pixels of the plot.
        values: what the upright axis must show, where it is not that of these lines.
    """
    small = layout is PANEL_LAYOUT
    top = 10 if small else PLOT_TOP
    up = value_scale(_ends(lines) if values is None else values, start=top + plot_height, end=top)
    up_ticks = number_ticks(up, most=3 if small else 6)
    nothing = all(np.isnan(line.value).all() for line in lines)
    up_ticks = up_ticks[:1] if nothing else up_ticks
    left, right = left_margin(up_ticks), layout.width - (8 if small else RIGHT)
    places = [float(place) for line in lines for place in line.places]
    across = place_scale(places, start=left + 4, end=right)
    floor = top + plot_height
    marks = upright_axis(up, up_ticks, left=left, right=right)
    texts = (_place_text(axis, across.low), _place_text(axis, across.high))
    ticks = (
        end_ticks(across, dates=axis.kind == "dates", texts=texts)
        if small
        else _ticks(axis, across)
    )
    marks += level_axis(across, ticks, top=top, floor=floor, across=False)
    marks += [part for k, line in enumerate(lines) for part in _marks(line, across, up, k)]
    if nothing:
        marks.append(svg_text("nothing is published", left + 6, top + plot_height / 2))
    if not small:
        marks.append(svg_text(axis.unit, 0, 11, cls="tick"))
        marks.append(
            svg_text(shortened(axis.name, right), right, floor + FLOOR + 13, cls="tick end")
        )
        tips = sum(len(line.places) for line in lines) <= MOST_TIPS
        marks += _tips(lines, axis, across, up) if tips and layout.name == "wide" else []
    return Drawing(marks, floor + FLOOR + (2 if small else 18))


def _ticks(axis: LineAxis, across: Scale) -> list[Tick]:
    room = across.end - across.start
    if axis.kind == "dates":
        return date_ticks(across, room=room)
    if axis.kind == "labels":
        return label_ticks(across, axis.labels, room=min(LONGEST_TICK, room / 2))
    return number_ticks(across, most=max(2, int(room // 70)), whole=True)


def _marks(line: Line, across: Scale, up: Scale, k: int) -> list[str]:
    """Return the band and the line, each in as many pieces as gaps leave."""
    marks = []
    for run in _runs(~np.isnan(line.value) & ~np.isnan(line.low)):
        xs = [across(float(place)) for place in line.places[run]]
        tops = [(x, up(float(y))) for x, y in zip(xs, line.high[run], strict=True)]
        bottoms = [(x, up(float(y))) for x, y in zip(xs, line.low[run], strict=True)]
        if len(xs) == 1:  # an interval without neighbours is as wide as a dot
            tops, bottoms = _widened(tops), _widened(bottoms)
        marks.append(svg_path(f"{polyline([*tops, *bottoms[::-1]])}Z", cls=f"band s{k}"))
    commands, alone = "", []
    for run in _runs(~np.isnan(line.value)):
        points = [
            (across(float(x)), up(float(y)))
            for x, y in zip(line.places[run], line.value[run], strict=True)
        ]
        commands += polyline(points) if len(points) > 1 else ""
        alone += points if len(points) == 1 else []
    marks.append(svg_path(commands, cls=f"line s{k}"))
    marks += [svg_tag("circle", cx=x, cy=y, r=2.5, cls=f"key s{k}") for x, y in alone]
    return [mark for mark in marks if mark]


def _widened(ends: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x + step, y) for x, y in ends for step in (-2.5, 2.5)]


def _runs(known: np.ndarray) -> list[slice]:
    """Return the stretches of a mask that are true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], known.astype(np.int8), [0]])))
    return [slice(begin, end) for begin, end in edges.reshape(-1, 2).tolist()]


def _tips(lines: Sequence[Line], axis: LineAxis, across: Scale, up: Scale) -> list[str]:
    marks = []
    for line in lines:
        for k in np.flatnonzero(~np.isnan(line.value)).tolist():
            name = ", ".join(filter(None, [_place_text(axis, line.places[k]), line.name]))
            x, y = across(float(line.places[k])), up(float(line.value[k]))
            tip = f"{name}: {line.texts[k]}"
            marks.append(svg_tag("circle", cx=x, cy=y, r=6, cls="hover", tip=tip))
    return marks


def _ends(lines: Sequence[Line]) -> list[float]:
    """Return the values that a scale must show: intervals where there are some, else estimates."""
    shown = [~np.isnan(line.value) for line in lines]
    every = np.concatenate(
        [np.r_[x.low[s], x.high[s], x.value[s]] for x, s in zip(lines, shown, strict=True)]
    )
    known = every[~np.isnan(every)]
    return [float(known.min()), float(known.max())] if known.size else [0.0]


def _legend(lines: Sequence[Line]) -> str:
    keys = ""
    for k, line in enumerate(lines):
        known = not np.isnan(line.low).all()
        band = svg_path("M0 0H24V10H0Z", cls=f"band s{k}") if known else ""
        stroke = svg_path("M0 5H24", cls=f"line s{k}")
        keys += (
            '<li><svg class="swatch" viewBox="0 0 24 10" aria-hidden="true">'
            f"{band}{stroke}</svg>{escape(line.name)}</li>"
        )
    return f'<ul class="legend">{keys}</ul>'


def privacy_curve(
    points: Sequence[tuple[float, float]], *, now: tuple[float, float], title: str
) -> str:
    """Return error against epsilon, both logarithmic, with the place of this release."""
    whole = sorted({*points, now})
    words = "; ".join(f"ε {figure(x)}: {figure(y)}" for x, y in whole)
    return in_layouts(lambda layout: _curve(whole, now, layout), title=title, words=words)


def _curve(
    whole: Sequence[tuple[float, float]], now: tuple[float, float], layout: PictureLayout
) -> Drawing:
    floor = PLOT_TOP + PLOT_HEIGHT
    up = log_scale([y for _, y in whole], start=floor, end=PLOT_TOP)
    up_ticks = number_ticks(up, most=8)
    left, right = left_margin(up_ticks), layout.width - RIGHT
    across = log_scale([x for x, _ in whole], start=left + 4, end=right)
    marks = upright_axis(up, up_ticks, left=left, right=right)
    ticks = number_ticks(across, most=max(3, layout.width // 70))
    marks += level_axis(across, ticks, top=PLOT_TOP, floor=floor, across=False)
    places = [(across(x), up(y)) for x, y in whole]
    marks.append(svg_path(polyline(places), cls="line s0"))
    for (x, y), (cx, cy) in zip(whole, places, strict=True):
        here = (x, y) == now
        tip = f"ε = {figure(x)}: error {figure(y)}"
        cls = "dot now" if here else "dot"
        marks.append(svg_tag("circle", cx=cx, cy=cy, r=6 if here else 3, cls=cls, tip=tip))
    x, y = across(now[0]), up(now[1])  # the curve falls: it leaves the place above it to the right
    at_end = x + 100 > right
    place = (x - 10, y + 18, "value end") if at_end else (x + 10, y - 8, "value")
    marks.append(svg_text("this release", place[0], place[1], cls=place[2]))
    marks.append(svg_text("RMS error", 0, 11, cls="tick"))
    marks.append(svg_text("ε", right, floor + FLOOR + 13, cls="tick end"))
    return Drawing([mark for mark in marks if mark], floor + FLOOR + 18)
