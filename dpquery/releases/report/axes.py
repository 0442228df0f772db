"""Axes of pictures: scales, the values that they mark, how these are written, the frame of a plot.

A scale maps values to shares of its plot, from 0 to 1. A plot is drawn once and stretches with the
window, while its texts are HTML of one size: no text is ever scaled to a size that nobody can read.
The texts of an axis are all different, and as many are written as find room beside each other in
the narrowest window.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from itertools import pairwise

NARROWEST = 264  # pixels of a plot in a window of 400
STRIP_WIDTH, PANEL_WIDTH = 140, 110  # of the column of points there; of a small plot
UNITS = 1000  # of a drawing, across and up, that stretches to the plot
LONGEST_LABEL = 30  # characters of a label beside or below a plot
_CHARACTER = 7.4  # pixels, in a wide font of 12
_GAP = 8.0  # pixels between two texts
BESIDE = 16  # pixels beside a plot into which a text below it may reach
_DAY_STEPS = (1, 2, 7, 14)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH_STEPS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 6000, 12000)


@dataclass(frozen=True)
class Tick:
    """A value that an axis marks, and how it is written."""

    value: float
    text: str


TickWriter = Callable[["Scale"], list[Tick]]
"""What marks an axis: the values with their texts."""


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from values low..high to shares 0..1."""

    low: float
    high: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the share of a value; values outside stand at the ends."""
        value = min(max(value, self.low), self.high)
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return (value - low) / (high - low)


def value_scale(values: Sequence[float]) -> Scale:
    """Return a linear scale that shows zero and all values, with a little room beyond them."""
    low, high = min((0.0, *values)), max((0.0, *values))
    room = 0.03 * (high - low) or 1.0
    return Scale(low - room * (low < 0), high + room)


def log_scale(values: Sequence[float]) -> Scale:
    """Return a logarithmic scale over positive values, from a round mark to a round mark."""
    low, high = _round_number(min(values), up=False), _round_number(max(values), up=True)
    return Scale(low, high if high > low else 10 * low, log=True)


def place_scale(values: Sequence[float]) -> Scale:
    """Return a linear scale from the least to the largest of some values."""
    low, high = min(values), max(values)
    return Scale(low, high) if high > low else Scale(low - 0.5, high + 0.5)


# ------------------------------------------------------------------------------- ticks


def number_ticks(scale: Scale, *, most: int = 5, whole: bool = False) -> list[Tick]:
    """Return round values of a scale with their texts, so many at most."""
    if scale.log:
        return written(_log_values(scale, most))
    step = _round_step((scale.high - scale.low) / most)
    step = max(step, 1.0) if whole else step
    step = 5.0 if whole and step == 2.5 else step
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    return written([k * step for k in range(first, last + 1)])


def percent_ticks(scale: Scale) -> list[Tick]:
    """Return round shares of a scale, written in percent."""
    values = [tick.value for tick in number_ticks(scale)]
    in_percent = written([100 * value for value in values])
    return [Tick(tick.value / 100, f"{tick.text} %") for tick in in_percent]


def written(values: Sequence[float]) -> list[Tick]:
    """Return values with texts of as many digits as tell them apart.

    >>> [tick.text for tick in written([0, 0.0005, 0.001])]
    ['0', '0.0005', '0.001']
    >>> [tick.text for tick in written([0.0, 250000.0, 500000.0])]
    ['0', '250,000', '500,000']
    >>> [tick.text for tick in written([1980.0, 2000.0])]
    ['1980', '2000']
    """
    several = range(3, 16)
    are_small = all(abs(value) < 10_000 for value in values)  # 1980 may be a year, 1,980 is none
    digits = next((k for k in several if len({_text(v, k) for v in values}) == len(values)), 16)
    texts = (_text(value, digits) for value in values)
    return [
        Tick(value, text.replace(",", "") if are_small else text)
        for value, text in zip(values, texts, strict=True)
    ]


def date_ticks(scale: Scale) -> list[Tick]:
    """Return first days of years, quarters, months or weeks that find room, as they are written."""
    first, last = math.ceil(scale.low), math.floor(scale.high)
    most = NARROWEST / 20
    for step in _DAY_STEPS:
        begin = first if step < 7 else first + (1 - first) % 7  # Mondays: day 1 was one
        if (last - begin) // step <= most:
            ticks = [Tick(k, _day_text(date.fromordinal(k))) for k in range(begin, last + 1, step)]
            if _fit(scale, ticks):
                return ticks
    for months in _MONTH_STEPS:
        begin, end = date.fromordinal(first).year, date.fromordinal(last).year
        ticks = []
        for year, at in (divmod(month, 12) for month in range(12 * begin, 12 * end + 12)):
            if (12 * year + at) % months == 0 and 1 <= year <= 9999:
                day = date(year, at + 1, 1)
                if first <= day.toordinal() <= last:
                    text = f"{year}" if months >= 12 else f"{_MONTHS[at]} {year}"
                    ticks.append(Tick(day.toordinal(), text))
        if len(ticks) <= most and _fit(scale, ticks):
            return ticks or [Tick(first, _day_text(date.fromordinal(first)))]
    return [Tick(first, date.fromordinal(first).isoformat())]


def end_ticks(scale: Scale, texts: tuple[str, str]) -> list[Tick]:
    """Return the first and the last value of an axis: a small plot has room for no more."""
    room = int(PANEL_WIDTH / 2 / _CHARACTER)
    ticks = [Tick(end, cut(t, room)) for end, t in zip((scale.low, scale.high), texts, strict=True)]
    return ticks if ticks[0].text != ticks[1].text else ticks[:1]


def end_days(scale: Scale) -> tuple[str, str]:
    """Return the texts of the first and the last day of an axis: months where these differ."""
    first, last = (date.fromordinal(round(end)) for end in (scale.low, scale.high))
    months = (f"{first:%Y-%m}", f"{last:%Y-%m}")  # as short as a small plot has room for
    return months if months[0] != months[1] else (_day_text(first), _day_text(last))


def label_ticks(labels: Sequence[str]) -> tuple[Scale, list[Tick]]:
    """Return the axis of places 0, 1, ..., each half a step from its neighbours, with its labels.

    Those that find room are written, evenly spaced.
    """
    scale = Scale(-0.5, len(labels) - 0.5)
    return scale, thinned(scale, [Tick(k, label) for k, label in enumerate(cut_apart(labels, 16))])


def thinned(scale: Scale, ticks: Sequence[Tick], room: float = NARROWEST) -> list[Tick]:
    """Return every tick, or every second, or third, ..., as many as stand apart in some pixels.

    Those at the ends are left out whose texts would not stand in the middle of their places.
    """
    ticks = [t for t in ticks if _shift(scale(t.value), t.text, room) == 0.5] or ticks
    every = (list(ticks[::k]) for k in range(1, len(ticks)))
    return next((shown for shown in every if _fit(scale, shown, room)), list(ticks[:1]))


def _fit(scale: Scale, ticks: Sequence[Tick], room: float = NARROWEST) -> bool:
    """Return whether texts below a plot of some pixels stand apart and are all different."""
    spans = []
    for tick in ticks:
        at, width = scale(tick.value), _CHARACTER * len(tick.text)
        begin = at * room - _shift(at, tick.text, room) * width
        spans.append((begin, begin + width))
    return len({tick.text for tick in ticks}) == len(ticks) and all(
        earlier[1] + _GAP <= later[0] for earlier, later in pairwise(spans)
    )


def _shift(at: float, text: str, room: float) -> float:
    """Return which share of a text stands left of its place: half, but it stays by its plot."""
    width = max(_CHARACTER * len(text), 1.0)
    left, right = (at * room + BESIDE) / width, ((1 - at) * room + BESIDE) / width
    return min(max(0.5, 1 - right), left)


def breaking(text: str) -> str:
    """Return a text as HTML that may go on in the next line after an underscore.

    >>> breaking("age_by <b>")
    'age_<wbr>by &lt;b&gt;'
    """
    return escape(text).replace("_", "_<wbr>")


def cut(text: str, most: int = LONGEST_LABEL) -> str:
    """Return a text of so many characters at most, cut between words where that can be.

    >>> cut("American Indian alone or combined", 24), cut("Pennsylvania", 8)
    ('American Indian alone…', 'Pennsyl…')
    """
    if len(text) <= most:
        return text
    words = text[:most].rpartition(" ")[0].rstrip(" ,+")
    return f"{words if len(words) > most // 3 else text[: most - 1].rstrip()}…"


def cut_apart(labels: Sequence[str], most: int = LONGEST_LABEL) -> list[str]:
    """Return labels of so many characters at most, which stay different where that can be.

    >>> cut_apart(["American Indian alone", "American Indian in combination"], 18)
    ['American…an alone', 'American…bination']
    """
    shown = [cut(label, most) for label in labels]
    twice = (
        {text for text in shown if shown.count(text) > 1} if len(set(shown)) < len(shown) else ()
    )
    half = most // 2 - 1
    return [
        f"{label[:half].rstrip()}…{label[-half:].lstrip()}"
        if text in twice and len(label) > most
        else text
        for label, text in zip(labels, shown, strict=True)
    ]


def _day_text(day: date) -> str:
    text = f"{day.day} {_MONTHS[day.month - 1]}"
    return f"{text} {day.year}" if day.month == day.day == 1 else text


def _log_values(scale: Scale, most: int) -> list[float]:
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    for steps in ((1, 2, 5), (1, 3), (1,)):
        marks = [k * 10.0**e for e in range(first, last + 1) for k in steps]
        marks = [mark for mark in marks if scale.low <= mark * 1.0001 <= scale.high * 1.0002]
        if len(marks) <= most:
            return marks
    return marks[:: len(marks) // most + 1]


def _round_step(step: float) -> float:
    if step <= 0 or not math.isfinite(step):
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next((k * power for k in (1, 2, 2.5, 5) if step <= k * power * 1.0001), 10 * power)


def _round_number(value: float, *, up: bool) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    marks = [k * power for k in (1, 2, 5, 10)]
    if up:
        return next(mark for mark in marks if value <= mark * 1.0001)
    return max(mark for mark in marks if mark <= value * 1.0001)


def _text(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1e15 or abs(value) < 1e-4:
        return f"{value:.{min(digits, 6)}g}".replace("e-0", "e-").replace("e+", "e")
    after = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{after}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# ------------------------------------------------------------------------------- drawn


@dataclass(frozen=True)
class Axis:
    """One axis of a plot."""

    scale: Scale  # of its values
    ticks: Sequence[Tick]  # what is written beside it
    name: str = ""  # what its values are; empty where that is said elsewhere
    grid: bool = False  # whether a line goes through the plot at each tick
    upright: bool = False  # whether the texts of a level axis stand upright
    room: float = NARROWEST  # pixels of a level axis in the narrowest window


def percent_of(share: float) -> str:
    """Return a share of a plot for a style or an attribute of SVG."""
    return f"{round(100 * share, 2) + 0.0:g}%"


def plot(
    marks: Sequence[str],
    across: Axis,
    up: Axis,
    *,
    title: str,
    words: str,
    height: float,
    view: tuple[int, int] = (UNITS, UNITS),
) -> str:
    """Return a plot with its axes, as HTML.

    The height is in pixels; marks are in units of the view. Title and words are for those who do
    not see the picture.
    """
    widest = max((len(tick.text) for tick in up.ticks), default=0)
    highest = max((len(tick.text) for tick in across.ticks), default=0) if across.upright else 0
    size = f"--w:{widest * 0.62 + 0.8:.1f}em;--h:{height:g}px;--x:{highest * 0.58 + 1.7:.1f}em"
    drawn = [
        svg_path(
            f"M0 {round(view[1] * (1 - up.scale(tick.value)))}h{view[0]}",
            cls="zero" if tick.value == 0 else "grid",
        )
        for tick in (up.ticks if up.grid else ())
    ]
    texts = (
        f'<i style="top:{percent_of(1 - up.scale(tick.value))}">{escape(tick.text)}</i>'
        for tick in up.ticks
    )
    name = f'<p class="unit">{escape(up.name)}</p>' if up.name else ""
    return (
        f'<div class="plot" style="{size}">{name}<div class="ys" aria-hidden="true">'
        f"{''.join(texts)}</div>"
        f'<svg viewBox="0 0 {view[0]} {view[1]}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}"><desc>{escape(words)}</desc>'
        f"{''.join(drawn)}{''.join(marks)}</svg>{tick_row(across)}</div>"
    )


def tick_row(axis: Axis) -> str:
    """Return the texts below a plot, and the name of the axis, as HTML."""
    cls = ' class="up"' if axis.upright else ""
    texts = []
    for tick in axis.ticks:
        at = axis.scale(tick.value)
        shift = "" if axis.upright else f";--s:{percent_of(-_shift(at, tick.text, axis.room))}"
        texts.append(f'<i{cls} style="left:{percent_of(at)}{shift}">{escape(tick.text)}</i>')
    name = f"<p>{escape(axis.name)}</p>" if axis.name else ""
    return f'<div class="xs" aria-hidden="true"><div>{"".join(texts)}</div>{name}</div>'


def svg_path(commands: str, *, cls: str) -> str:
    """Return a mark given by the commands of a path; nothing where there are none."""
    return f'<path class="{cls}" d="{commands}"></path>' if commands else ""


def polyline(points: Sequence[tuple[float, float]]) -> str:
    """Return the commands of a path through places that are shares across and up.

    >>> polyline([(0, 1), (0.1, 0.5), (0.2, 0.75)])
    'M0 0l100 500 100-250'
    """
    places = [(round(UNITS * x), round(UNITS * (1 - y))) for x, y in points]
    if not places:
        return ""
    steps = [f"{c - a} {d - b}" for (a, b), (c, d) in pairwise(places)]
    start = f"M{places[0][0]} {places[0][1]}"
    return (start + (f"l{' '.join(steps)}" if steps else "")).replace(" -", "-")
