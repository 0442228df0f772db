"""The parts of which every picture is made: text, lines, paths, and how wide a text is.

Coordinates are pixels. A picture is drawn at the widths of LAYOUTS, and the page shows the one that
fits its window, so that no text is ever scaled to a size that nobody can read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
