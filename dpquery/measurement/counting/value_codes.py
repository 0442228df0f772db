"""Codes of field texts in the declared domain: a total function for each column.

One rule holds for all kinds. White space around a text is stripped, that of Unicode too. A number
is a number, however it is written: `1`, `1.0`, `01`, `+1` and `1e0` are one value, compared
exactly. What is no number is compared letter by letter, yes and no without case. What no rule
accepts, and what is not UTF-8, is outside: it gets the column's `other` code, counted or shown, and
-1 where the column drops it. The code of a text depends on the text alone.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import assert_never

from dpquery.spec.domain import Bins, Boolean, Categorical, Column, Dates, Integers
from dpquery.spec.numbers import ExactNumber, number, of_float, whole

_PLAIN_DIGITS = 18  # digits that are surely a whole number of the spec's size
_OUTSIDE = -1

_Reader = Callable[[str], ExactNumber | None]
Known = dict[str | ExactNumber, int]
"""The codes of declared texts, and of the numbers among them."""


def code_of(column: Column, decimal: str = ".") -> Callable[[bytes], int]:
    """Return the function from the text of a field to its code, -1 if it has none.

    Categorical: a declared text, or its number. Integers: a whole number. Bins: a number in a
    half-open bin; never inf or nan. Boolean: a declared text whatever its case, or its number.
    Dates: a date of the declared format.

    Args:
        column: what its texts may be.
        decimal: the decimal mark of the file, unless the column says how it writes numbers. Numbers
            in the spec have a point.
    """
    outside = _OUTSIDE if column.drops else column.length
    position = _position(column, decimal)

    def code(field: bytes) -> int:
        try:
            text = field.decode().strip()
        except UnicodeDecodeError:
            return outside
        place = position(text)
        return outside if place < 0 else place

    return code


def number_of(column: Column, decimal: str) -> Callable[[str], ExactNumber | None]:
    """Return the function from a text of a column to the number that it writes."""
    return partial(number, decimal=decimal) if column.number is None else column.number.number


def _position(column: Column, decimal: str) -> Callable[[str], int]:
    """Return the function from a stripped text to its code, _OUTSIDE if it has none."""
    read = number_of(column, decimal)
    match kind := column.kind:
        case Categorical():
            listed = known_codes(kind, decimal)
            return lambda text: _listed(text, listed, decimal)
        case Integers(low=low, high=high):
            return lambda text: _integer(text, low, high, read)
        case Bins(edges=edges):
            exact = tuple(map(of_float, edges))
            return lambda text: _bin(text, edges, exact, read)
        case Boolean():
            folded = known_codes(kind, decimal)
            return lambda text: _listed(text.casefold(), folded, decimal)
        case Dates():
            return lambda text: _period(text, kind)
        case _:
            assert_never(kind)


def declared_numbers(kind: Categorical | Boolean, decimal: str) -> list[ExactNumber]:
    """Return all numbers that have the code of a declared text."""
    return [key for key in known_codes(kind, decimal) if not isinstance(key, str)]


def known_codes(kind: Categorical | Boolean, decimal: str) -> Known:
    """Return the codes of declared texts, and of the numbers among them, in either writing.

    Those of yes and no are casefolded, as what is looked up must be.
    """
    texts_of_code: Iterable[Sequence[str]]
    match kind:
        case Categorical():
            texts_of_code = kind.texts
        case Boolean(true=true, false=false):
            texts_of_code = [[text.casefold() for text in texts] for texts in (false, true)]
    known: Known = {}
    for code, texts in enumerate(texts_of_code):
        for text in texts:
            for key in (text, number(text, decimal), number(text)):
                if key is not None:
                    known.setdefault(key, code)
    return known


def _listed(text: str, known: Mapping[str | ExactNumber, int], decimal: str) -> int:
    code = known.get(text)
    if code is not None:
        return code
    value = number(text, decimal)
    return _OUTSIDE if value is None else known.get(value, _OUTSIDE)


def _integer(text: str, low: int, high: int, read: _Reader) -> int:
    if len(text) <= _PLAIN_DIGITS and text.isascii() and text.isdigit():
        value: int | None = int(text)
    else:
        exact = read(text)
        value = None if exact is None else whole(exact)
    return value - low if value is not None and low <= value <= high else _OUTSIDE


def _bin(text: str, edges: tuple[float, ...], exact: tuple[ExactNumber, ...], read: _Reader) -> int:
    value = read(text)
    if value is None:
        return _OUTSIDE
    place = bisect_right(exact, value)
    return place - 1 if 0 < place < len(edges) else _OUTSIDE


def _period(text: str, kind: Dates) -> int:
    day = kind.format.read(text)
    if day is None or not kind.first <= day <= kind.last:
        return _OUTSIDE
    return kind.code(day)
