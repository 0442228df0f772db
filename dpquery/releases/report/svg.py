"""Charts as inline SVG: no script, no network, colours from the page's style sheet.

Coordinates are pixels of a drawing WIDTH wide that the page scales to fit. Every mark has a tooltip
and every chart a title and a description for those who cannot see it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape

from dpquery.releases.formatting import figure
from dpquery.releases.report.preview import ChartPoint, Series

WIDTH = 560
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 12, 40
LINE_HEIGHT, PLOT_HEIGHT = 23, 230
VALUE_WIDTH, MIN_LABEL, MAX_LABEL = 64, 90, 250
SLIM, PLAIN, BROAD = 5.3, 8.2, 10.8  # widths of characters in a wide font, about

Text = Callable[[float], str]


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from values low..high to pixels start..end."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; values outside stand at the ends."""
        value = min(max(value, self.low), self.high)
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    @property
    def ticks(self) -> list[float]:
        """Round values to mark, about ten at most."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1,) if last - first > 3 else (1, 2, 5)
            marks = [k * 10.0**e for e in range(first, last + 1) for k in steps]
            marks = [mark for mark in marks if self.low <= mark * 1.0001 <= self.high * 1.0002]
            return marks[:: len(marks) // 11 + 1]
        step = _round_step((self.high - self.low) / 5)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]


def scale(values: Sequence[float], *, start: float, end: float) -> Scale:
    """Return a linear scale that shows zero and all values, with a little room beyond them."""
    low, high = min((0.0, *values)), max((0.0, *values))
    room = 0.03 * (high - low) or 1.0
    return Scale(low - room * (low < 0), high + room, start, end)


def log_scale(values: Sequence[float], *, start: float, end: float) -> Scale:
    """Return a logarithmic scale over positive values, from a round mark to a round mark."""
    low, high = _round_down(min(values)), _round_up(max(values))
    return Scale(low, high if high > low else 10 * low, start, end, log=True)


def bars(
    rows: Sequence[tuple[str, float]], *, title: str, text: Text, marks: Sequence[float]
) -> str:
    """Draw a horizontal bar for each (label, value); logarithmic where values differ much.

    Args:
        rows: what is drawn, from the top.
        title: of the chart.
        text: how a value is written.
        marks: values at which a line crosses all bars.
    """
    height = TOP + LINE_HEIGHT * len(rows) + BOTTOM - 14
    start, end = _label_width([label for label, _ in rows]), WIDTH - VALUE_WIDTH
    values = [value for _, value in rows]
    positive = [value for value in values if value > 0]
    if positive and max(positive) > 30 * min(positive):
        across = log_scale(positive, start=start, end=end)
    else:
        across = scale(values, start=start, end=end)
    body = [_vertical_ticks(across, height - BOTTOM + 14, text)]
    for k, (label, value) in enumerate(rows):
        middle = TOP + LINE_HEIGHT * (k + 0.5)
        tip = f"{label}: {text(value)}"
        width = max(across(value) - start, 1) if value > 0 else 0
        bar = _tag("rect", x=start, y=middle - 7, width=width, height=14, rx=2, cls="bar", tip=tip)
        body += [_label(label, start, middle), bar]
        body.append(_text(text(value), start + width + 6, middle + 4, cls="value"))
    for mark in marks:
        if across.low <= mark <= across.high:
            body.append(_line(across(mark), TOP, across(mark), height - BOTTOM + 14, cls="mark"))
    return _chart(body, height, title, "; ".join(f"{a}: {text(b)}" for a, b in rows))


def whiskers(points: Sequence[ChartPoint], *, title: str) -> str:
    """Draw each estimate as a dot with its noise interval, if it has one, one line a point."""
    height = TOP + LINE_HEIGHT * len(points) + BOTTOM - 14
    start, end = _label_width([point.label for point in points]), WIDTH - VALUE_WIDTH
    across = scale(_ends(points), start=start, end=end)
    body = [_vertical_ticks(across, height - BOTTOM + 14, figure)]
    for k, point in enumerate(points):
        middle = TOP + LINE_HEIGHT * (k + 0.5)
        tip = _tip(point)
        flagged = " flagged" if point.flag and point.interval is not None else ""
        body.append(_label(point.label, start, middle))
        if point.interval is not None:
            low, high = map(across, point.interval)
            body.append(_line(low, middle, high, middle, cls=f"whisker{flagged}"))
        body += [
            _tag("circle", cx=across(point.estimate), cy=middle, r=4, cls=f"dot{flagged}", tip=tip),
            _text(figure(round(point.estimate)), WIDTH - 4, middle + 4, cls="value end"),
        ]
    return _chart(body, height, title, "; ".join(_tip(point) for point in points))


def lines(series: Sequence[Series], *, axis: str, title: str, dates: bool = False) -> str:
    """Draw estimates along an ordered axis, each series with the band of its noise intervals.

    A series whose points have no intervals is a line alone. With `dates`, places on the axis are
    days by their ordinal numbers.
    """
    height = TOP + PLOT_HEIGHT + BOTTOM
    points = [point for one_series in series for point in one_series.points]
    across = Scale(*_extent([point.place for point in points]), LEFT, WIDTH - RIGHT)
    up = scale(_ends(points), start=TOP + PLOT_HEIGHT, end=TOP)
    place_text = _day if dates else "{:g}".format
    body = [_axes(across, up, x_text=place_text, y_text=figure, x_title=axis)]
    for k, one_series in enumerate(series):
        intervals = [
            (across(p.place), *p.interval) for p in one_series.points if p.interval is not None
        ]
        band = [(x, up(high)) for x, _, high in intervals]
        band += [(x, up(low)) for x, low, _ in reversed(intervals)]
        if band:
            body.append(_tag("polygon", points=_path(band), cls=f"band s{k}"))
    for k, one_series in enumerate(series):
        middle = [(across(p.place), up(p.estimate)) for p in one_series.points]
        body.append(_tag("polyline", points=_path(middle), cls=f"line s{k}"))
        body += [
            _tag("circle", cx=x, cy=y, r=5, cls="hover", tip=_tip(p, one_series.name))
            for (x, y), p in zip(middle, one_series.points, strict=True)
        ]
    legend = _legend([one_series.name for one_series in series]) if len(series) > 1 else ""
    first, last = points[0], points[-1]
    words = f"{len(points)} estimates along {axis}, from {_tip(first)} to {_tip(last)}"
    return _chart([*body, legend], height, title, words)


def _day(ordinal: float) -> str:
    return date.fromordinal(round(ordinal)).isoformat()


def curve(points: Sequence[tuple[float, float]], *, now: tuple[float, float], title: str) -> str:
    """Draw error against epsilon, both logarithmic, with the place of this release."""
    height = TOP + PLOT_HEIGHT + BOTTOM
    whole = sorted({*points, now})
    across = log_scale([x for x, _ in whole], start=LEFT, end=WIDTH - RIGHT)
    up = log_scale([y for _, y in whole], start=TOP + PLOT_HEIGHT, end=TOP)
    body = [_axes(across, up, x_text=figure, y_text=figure, x_title="ε")]
    body.append(
        _tag("polyline", points=_path([(across(x), up(y)) for x, y in whole]), cls="line s0")
    )
    for x, y in whole:
        dot = "dot now" if (x, y) == now else "dot"
        tip = f"ε = {figure(x)}: error {figure(y)}"
        radius = 6 if (x, y) == now else 3
        body.append(_tag("circle", cx=across(x), cy=up(y), r=radius, cls=dot, tip=tip))
    label = "this release"
    near_end = across(now[0]) > WIDTH - 110
    x, side = across(now[0]) + (-10 if near_end else 10), "value end" if near_end else "value"
    body.append(_text(label, x, up(now[1]) - 8, cls=side))
    return _chart(body, height, title, "; ".join(f"ε {figure(x)}: {figure(y)}" for x, y in whole))


def _ends(points: Sequence[ChartPoint]) -> list[float]:
    """Return the values that a scale must show: intervals where there are some, else estimates."""
    return [end for point in points for end in point.interval or (point.estimate,)]


def _chart(body: Sequence[str], height: float, title: str, words: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title><desc>{escape(words)}</desc>{''.join(body)}</svg>"
    )


def _axes(across: Scale, up: Scale, *, x_text: Text, y_text: Text, x_title: str) -> str:
    floor = TOP + PLOT_HEIGHT
    parts = []
    for value in up.ticks:
        parts.append(_line(LEFT, up(value), WIDTH - RIGHT, up(value), cls="grid"))
        parts.append(_text(y_text(value), LEFT - 8, up(value) + 4, cls="tick end"))
    for value in across.ticks:
        parts.append(_line(across(value), floor, across(value), floor + 4, cls="grid"))
        parts.append(_text(x_text(value), across(value), floor + 17, cls="tick middle"))
    title = _text(x_title, (LEFT + WIDTH - RIGHT) / 2, floor + 35, cls="tick middle")
    return "".join([*parts, title])


def _vertical_ticks(across: Scale, floor: float, text: Text) -> str:
    parts = []
    for value in across.ticks:
        cls = "zero" if value == 0 else "grid"
        parts.append(_line(across(value), TOP, across(value), floor, cls=cls))
        parts.append(_text(text(value), across(value), floor + 15, cls="tick middle"))
    return "".join(parts)


def _legend(names: Sequence[str]) -> str:
    parts: list[str] = []
    x: float = WIDTH - RIGHT
    for k, name in reversed(list(enumerate(names))):
        shown = _shortened(name, MAX_LABEL / 2)
        x -= _width(shown) + 8
        parts.append(_text(shown, x, TOP + 10, cls="value"))
        x -= 18
        parts.append(_tag("rect", x=x, y=TOP + 1, width=12, height=10, rx=2, cls=f"key s{k}"))
    return "".join(parts)


def _label_width(labels: Sequence[str]) -> float:
    needed = max((_width(label) + 14 for label in labels), default=0.0)
    return min(max(MIN_LABEL, needed), MAX_LABEL)


def _label(label: str, start: float, middle: float) -> str:
    return _text(_shortened(label, start - 14), start - 10, middle + 4, cls="label end", tip=label)


def _shortened(text: str, room: float) -> str:
    """Cut a text to what fits."""
    shown = text
    while _width(shown) > room:
        shown = f"{shown[:-2]}…"
    return shown


def _width(text: str) -> float:
    return sum(
        BROAD if c.isupper() or c in "mw<>&@%+=—…" else SLIM if c in "fijlrt ,.:;'|()[]" else PLAIN
        for c in text
    )


def _tip(point: ChartPoint, series: str = "") -> str:
    name = f"{point.label}, {series}" if series else point.label
    notes = [point.flag] if point.flag else []
    if point.interval is not None:
        notes.insert(0, " to ".join(figure(round(end)) for end in point.interval))
    return f"{name}: {figure(round(point.estimate))} ({', '.join(notes)})"


def _text(content: str, x: float, y: float, *, cls: str, tip: str = "") -> str:
    inner = escape(content) + (f"<title>{escape(tip)}</title>" if tip and tip != content else "")
    return f'<text x="{_pixel(x)}" y="{_pixel(y)}" class="{cls}">{inner}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, *, cls: str) -> str:
    return _tag("line", x1=x1, y1=y1, x2=x2, y2=y2, cls=cls)


def _tag(name: str, *, cls: str, tip: str = "", points: str = "", **numbers: float) -> str:
    attributes = "".join(f' {key}="{_pixel(value)}"' for key, value in numbers.items())
    path = f' points="{points}"' if points else ""
    inner = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<{name} class="{cls}"{attributes}{path}>{inner}</{name}>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_pixel(x)},{_pixel(y)}" for x, y in points)


def _pixel(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _extent(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _round_step(step: float) -> float:
    """Return the next larger of 1, 2, 2.5, 5 times a power of ten."""
    if step <= 0 or not math.isfinite(step):
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next((k * power for k in (1, 2, 2.5, 5) if step <= k * power * 1.0001), 10 * power)


def _round_down(value: float) -> float:
    """Return the next smaller of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(k * power for k in (1, 2, 5) if k * power <= value * 1.0001)


def _round_up(value: float) -> float:
    """Return the next larger of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(k * power for k in (1, 2, 5, 10) if value <= k * power * 1.0001)
