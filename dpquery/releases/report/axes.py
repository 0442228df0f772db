"""Axes of pictures: scales, the values that they mark, and how these are written.

All axes are drawn here and nowhere else. The texts of an axis are all different, and as many are
written as find room beside each other.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise

from dpquery.releases.report.drawing import shortened, straight_line, svg_text, text_width

FLOOR = 22  # pixels below a plot for the texts of its axis
_GAP = 8.0  # pixels between two texts
_BEYOND = 7.0  # pixels by which a text may stick out beyond its axis: every plot leaves them free
_DAY_STEPS = (1, 2, 7, 14)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH_STEPS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 6000, 12000)


@dataclass(frozen=True)
class Tick:
    """A value that an axis marks, and how it is written."""

    value: float
    text: str


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


def value_scale(values: Sequence[float], *, start: float, end: float) -> Scale:
    """Return a linear scale that shows zero and all values, with a little room beyond them."""
    low, high = min((0.0, *values)), max((0.0, *values))
    room = 0.03 * (high - low) or 1.0
    return Scale(low - room * (low < 0), high + room, start, end)


def log_scale(values: Sequence[float], *, start: float, end: float) -> Scale:
    """Return a logarithmic scale over positive values, from a round mark to a round mark."""
    low, high = _round_down(min(values)), _round_up(max(values))
    return Scale(low, high if high > low else 10 * low, start, end, log=True)


def place_scale(values: Sequence[float], *, start: float, end: float) -> Scale:
    """Return a linear scale from the least to the largest of some values."""
    low, high = min(values), max(values)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    return Scale(low, high, start, end)


# ------------------------------------------------------------------------------- ticks


def number_ticks(scale: Scale, *, most: int = 6, whole: bool = False) -> list[Tick]:
    """Return round values of a scale with their texts, so many at most.

    Args:
        scale: the axis.
        most: number of values.
        whole: whether only whole numbers mean anything.
    """
    values = _log_values(scale, most) if scale.log else _round_values(scale, most, whole=whole)
    return written(values)


def written(values: Sequence[float]) -> list[Tick]:
    """Return values with texts of as many digits as tell them apart.

    >>> [tick.text for tick in written([0, 0.0005, 0.001])]
    ['0', '0.0005', '0.001']
    >>> [tick.text for tick in written([0.0, 250000.0, 500000.0])]
    ['0', '250,000', '500,000']
    """
    digits = next((k for k in range(3, 16) if _apart([_text(v, k) for v in values])), 16)
    return [Tick(value, _text(value, digits)) for value in values]


def percent_ticks(scale: Scale, *, most: int = 6) -> list[Tick]:
    """Return round shares of a scale, written in percent."""
    values = [tick.value for tick in number_ticks(scale, most=most)]
    in_percent = written([100 * value for value in values])
    return [Tick(tick.value / 100, f"{tick.text} %") for tick in in_percent]


def date_ticks(scale: Scale, *, room: float) -> list[Tick]:
    """Return first days of years, quarters, months or weeks that find room, as they are written.

    Args:
        scale: of days by their ordinal numbers.
        room: pixels of the axis.
    """
    first, last = math.ceil(scale.low), math.floor(scale.high)
    for step in _DAY_STEPS:
        begin = first if step < 7 else first + (1 - first) % 7  # Mondays: day 1 was one
        if (last - begin) // step > room / 20:
            continue
        days = [date.fromordinal(k) for k in range(begin, last + 1, step)]
        ticks = [Tick(day.toordinal(), _day_text(day)) for day in days]
        if _fit(scale, ticks):
            return ticks
    for months in _MONTH_STEPS:
        ticks = _month_ticks(first, last, months)
        if len(ticks) <= room / 20 and _fit(scale, ticks):
            return ticks or [Tick(first, _day_text(date.fromordinal(first)))]
    return [Tick(first, date.fromordinal(first).isoformat())]


def end_ticks(scale: Scale, *, dates: bool, texts: tuple[str, str]) -> list[Tick]:
    """Return the first and the last value of an axis, which is all that a small plot has room for.

    Args:
        scale: the axis.
        dates: whether values are days.
        texts: of the two, where they are not.
    """
    ends = (scale.low, scale.high)
    if dates:
        first, last = (date.fromordinal(round(end)) for end in ends)
        texts = (_month_text(first), _month_text(last))
        if texts[0] == texts[1]:
            texts = (_day_text(first), _day_text(last))
    room = (scale.end - scale.start) / 2 - _GAP / 2 + _BEYOND
    ticks = [Tick(value, shortened(text, room)) for value, text in zip(ends, texts, strict=True)]
    return ticks if ticks[0].text != ticks[1].text else ticks[:1]


def label_ticks(scale: Scale, labels: Sequence[str], *, room: float) -> list[Tick]:
    """Return some labels of places 0, 1, ... that find room beside each other, evenly spaced.

    Args:
        scale: of the places.
        labels: of all of them.
        room: pixels that one text may take.
    """
    ticks = [Tick(place, shortened(label, room)) for place, label in enumerate(labels)]
    return thinned(scale, ticks)


def thinned(scale: Scale, ticks: Sequence[Tick]) -> list[Tick]:
    """Return every tick, or every second, or third, ..., as many as stand apart."""
    every = (list(ticks[::k]) for k in range(1, len(ticks)))
    return next((shown for shown in every if _fit(scale, shown)), list(ticks[:1]))


def _fit(scale: Scale, ticks: Sequence[Tick]) -> bool:
    """Return whether texts written below an axis stand apart and are all different."""
    spans = [_span(scale, tick) for tick in ticks]
    return _apart([tick.text for tick in ticks]) and all(
        earlier[1] + _GAP <= later[0] for earlier, later in pairwise(spans)
    )


def _span(scale: Scale, tick: Tick) -> tuple[float, float]:
    """Return where the text of a tick begins and ends: in the middle, but inside the picture."""
    width = text_width(tick.text)
    middle = scale(tick.value)
    low, high = min(scale.start, scale.end) - _BEYOND, max(scale.start, scale.end) + _BEYOND
    begin = max(low, min(middle - width / 2, high - width))
    return begin, begin + width


def _apart(texts: Sequence[str]) -> bool:
    return len(set(texts)) == len(texts)


def _text(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1e15 or abs(value) < 1e-4:
        return f"{value:.{min(digits, 6)}g}".replace("e-0", "e-").replace("e+", "e")
    after = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{after}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _day_text(day: date) -> str:
    text = f"{day.day} {_MONTHS[day.month - 1]}"
    return f"{text} {day.year}" if day.day == 1 else text


def _month_text(day: date) -> str:
    return f"{_MONTHS[day.month - 1]} {day.year}"


def _month_ticks(first: int, last: int, months: int) -> list[Tick]:
    begin, end = date.fromordinal(first), date.fromordinal(last)
    ticks = []
    for month in range(12 * begin.year, 12 * end.year + 12):
        year, at = divmod(month, 12)
        if month % months or not 1 <= year <= 9999:
            continue
        day = date(year, at + 1, 1)
        if first <= day.toordinal() <= last:
            text = f"{year}" if months >= 12 else _month_text(day)
            ticks.append(Tick(day.toordinal(), text))
    return ticks


def _round_values(scale: Scale, most: int, *, whole: bool) -> list[float]:
    step = _round_step((scale.high - scale.low) / most)
    step = max(step, 1.0) if whole else step
    step = 5.0 if whole and step == 2.5 else step
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def _log_values(scale: Scale, most: int) -> list[float]:
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    for steps in ((1, 2, 5), (1, 3), (1,)):
        marks = [k * 10.0**e for e in range(first, last + 1) for k in steps]
        marks = [mark for mark in marks if scale.low <= mark * 1.0001 <= scale.high * 1.0002]
        if len(marks) <= most:
            return marks
    return marks[:: len(marks) // most + 1]


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


# ------------------------------------------------------------------------------- drawn


def left_margin(ticks: Sequence[Tick]) -> float:
    """Return the pixels that the texts of an upright axis take."""
    return max((text_width(tick.text) for tick in ticks), default=0.0) + 10


def upright_axis(scale: Scale, ticks: Sequence[Tick], *, left: float, right: float) -> list[str]:
    """Draw an axis that goes up: a line across the plot at each tick, its text left of it."""
    marks = []
    for tick in ticks:
        y = scale(tick.value)
        cls = "zero" if tick.value == 0 else "grid"
        marks.append(straight_line(left, y, right, y, cls=cls))
        marks.append(svg_text(tick.text, left - 6, y + 4, cls="tick end"))
    return marks


def level_axis(
    scale: Scale, ticks: Sequence[Tick], *, top: float, floor: float, across: bool
) -> list[str]:
    """Draw an axis that goes to the right, its texts below; those at the ends stay inside.

    Args:
        scale: the axis.
        ticks: what it marks.
        top: where the plot begins.
        floor: where it ends, in pixels from above.
        across: whether a line goes through the plot at each tick.
    """
    marks = []
    for tick in thinned(scale, ticks):
        x = scale(tick.value)
        cls = "zero" if across and tick.value == 0 else "grid"
        marks.append(straight_line(x, top if across else floor, x, floor + 4, cls=cls))
        marks.append(svg_text(tick.text, _span(scale, tick)[0], floor + 17, cls="tick"))
    return marks


TickWriter = Callable[[Scale], list[Tick]]
"""What marks an axis: the values with their texts."""
