"""Bars: one line an answer, its noise interval as a whisker across the end of the bar."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan

from dpquery.releases.report.axes import (
    FLOOR,
    Scale,
    TickWriter,
    level_axis,
    log_scale,
    number_ticks,
    value_scale,
)
from dpquery.releases.report.drawing import (
    WIDE_LAYOUT,
    Drawing,
    PictureLayout,
    in_layouts,
    pixel,
    shortened,
    shortened_apart,
    straight_line,
    svg_path,
    svg_tag,
    svg_text,
    text_width,
)

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
