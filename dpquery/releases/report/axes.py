"""Axes, scales and the elements of a drawing.

Axes of pictures: scales, the values that they mark, and how these are written.

All axes are drawn here and nowhere else. The texts of an axis are all different, and as many are
written as find room beside each other.

The parts of which every picture is made: text, lines, paths, and how wide a text is.

Coordinates are pixels. A picture is drawn at the widths of LAYOUTS, and the page shows the one that
fits its window, so that no text is ever scaled to a size that nobody can read.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from itertools import pairwise

FONT_SIZE = 12  # of all texts in pictures, in pixels
_SLIM, _PLAIN, _BROAD, _BROADEST = 5.0, 7.7, 9.6, 12.0  # of characters in a wide font of that size


@dataclass(frozen=True)
class PictureLayout:
    """A width at which pictures are drawn, and the class of those that are."""

    width: int
    name: str


NARROW_LAYOUT, WIDE_LAYOUT = PictureLayout(340, "narrow"), PictureLayout(700, "wide")
PANEL_LAYOUT = PictureLayout(170, "panel")
LAYOUTS = (WIDE_LAYOUT, NARROW_LAYOUT)


@dataclass(frozen=True)
class Drawing:
    """What stands in a picture, and how high it is."""

    marks: Sequence[str]
    height: float


def svg(drawing: Drawing, layout: PictureLayout, *, title: str, words: str) -> str:
    """Return a picture as an element of its own, with a title and a description in words."""
    return (
        f'<svg class="{layout.name}" viewBox="0 0 {layout.width} {pixel(drawing.height)}" '
        f'role="img" aria-label="{escape(title)}">'
        f"<desc>{escape(words)}</desc>{''.join(drawing.marks)}</svg>"
    )


def in_layouts(draw: Callable[[PictureLayout], Drawing], *, title: str, words: str) -> str:
    """Return a picture at each of LAYOUTS."""
    return "".join(svg(draw(layout), layout, title=title, words=words) for layout in LAYOUTS)


def text_width(text: str) -> float:
    """Return the most pixels that a text takes, in a wide font.

    >>> text_width("") < text_width("ill") < text_width("mmm")
    True
    """
    return sum(map(_character_width, text))


def shortened(text: str, room: float) -> str:
    """Return a text, its end cut off where it takes more pixels than there are.

    >>> shortened("Pennsylvania", 60), shortened("Ohio", 60)
    ('Penns…', 'Ohio')
    """
    if text_width(text) <= room:
        return text
    kept, used = 0, _BROADEST
    while kept < len(text) and used + _character_width(text[kept]) <= room:
        used += _character_width(text[kept])
        kept += 1
    return f"{text[:kept].rstrip()}…"


def shortened_apart(labels: Sequence[str], room: float) -> list[str]:
    """Return labels that fit into so many pixels, and stay different where that can be.

    >>> shortened_apart(["American Indian alone", "American Indian in combination"], 110)
    ['Americ…alone', 'Americ…nation']
    """
    shown = [shortened(label, room) for label in labels]
    if len(set(shown)) == len(set(labels)):
        return shown
    twice = {text for text in shown if shown.count(text) > 1}
    return [
        _middle_cut(label, room) if text in twice else text
        for label, text in zip(labels, shown, strict=True)
    ]


def _middle_cut(text: str, room: float) -> str:
    """Cut out the middle of a text, so that what is left takes no more than some pixels."""
    if text_width(text) <= room:
        return text
    for kept in range(len(text) // 2, 0, -1):
        shown = f"{text[:kept].rstrip()}…{text[-kept:].lstrip()}"
        if text_width(shown) <= room:
            return shown
    return "…"


def _character_width(character: str) -> float:
    if character in "fijlrtI ,.:;'|()[]-":
        return _SLIM
    if character in "mwMW@%—…&" or ord(character) > 0x2E7F:
        return _BROADEST
    return _BROAD if character.isupper() or character in "<>=+±~#" else _PLAIN


def svg_text(content: str, x: float, y: float, *, cls: str = "", tip: str = "") -> str:
    """Return a text at a place; with a tooltip where it says more."""
    inner = escape(content) + (f"<title>{escape(tip)}</title>" if tip and tip != content else "")
    kind = f' class="{cls}"' if cls else ""
    return f'<text x="{pixel(x)}" y="{pixel(y)}"{kind}>{inner}</text>'


def upright_text(content: str, x: float, y: float) -> str:
    """Return a text that reads upwards and begins at a place."""
    at = f"{pixel(x)} {pixel(y)}"
    return f'<text transform="translate({at}) rotate(-90)">{escape(content)}</text>'


def straight_line(x1: float, y1: float, x2: float, y2: float, *, cls: str) -> str:
    """Return a line from one place to another."""
    return svg_tag("line", x1=x1, y1=y1, x2=x2, y2=y2, cls=cls)


def svg_tag(name: str, *, cls: str, tip: str = "", **numbers: float) -> str:
    """Return a mark given by numbers, perhaps with a tooltip."""
    attributes = "".join(f' {key}="{pixel(value)}"' for key, value in numbers.items())
    inner = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<{name} class="{cls}"{attributes}>{inner}</{name}>'


def svg_path(commands: str, *, cls: str) -> str:
    """Return a mark given by the commands of a path; nothing where there are none."""
    return f'<path class="{cls}" d="{commands}"></path>' if commands else ""


def polyline(points: Sequence[tuple[float, float]]) -> str:
    """Return the commands of a path through places, to a tenth of a pixel, in few characters.

    >>> polyline([(10, 20), (11.5, 18), (13, 18.25)])
    'M10 20l1.5-2 1.5 .2'
    """
    if not points:
        return ""
    tenths = [(round(10 * x), round(10 * y)) for x, y in points]
    steps = [
        f"{_step(x - last_x)}{_joined(y - last_y)}" for (last_x, last_y), (x, y) in pairwise(tenths)
    ]
    start = f"M{_step(tenths[0][0])}{_joined(tenths[0][1])}"
    return start + (f"l{_packed(steps)}" if steps else "")


def _step(tenths: int) -> str:
    """Return a number of tenths without the zeros that say nothing."""
    whole, rest = divmod(abs(tenths), 10)
    sign = "-" if tenths < 0 else ""
    return f"{sign}{whole or ''}.{rest}" if rest else f"{sign}{whole}"


def _joined(tenths: int) -> str:
    """Return the same after another number: a sign or a point begins a new one."""
    text = _step(tenths)
    return text if text[0] == "-" else f" {text}"


def _packed(steps: Sequence[str]) -> str:
    return "".join(text if k == 0 or text[0] == "-" else f" {text}" for k, text in enumerate(steps))


def pixel(value: float) -> str:
    """Return a coordinate to a tenth of a pixel.

    >>> pixel(3.0), pixel(2.26), pixel(-0.01)
    ('3', '2.3', '0')
    """
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


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
