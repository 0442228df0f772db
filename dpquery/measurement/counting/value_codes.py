"""Codes of field texts in the declared domain: a total function for each column.

Text is stripped of the white space around it first. What no rule accepts is outside: it gets the
column's `other` code where one is declared, and -1 otherwise.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from dpquery.spec.domain import Bins, Boolean, Categorical, Column, Integers

# 34.0 is how many programs write a whole number in a column with gaps.
_WHOLE = re.compile(rb"[+-]?[0-9]+(\.0*)?")
_NUMBER = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# No number that matters is longer, and the time to read one grows faster than its length.
_LONGEST_NUMBER = 64
_REMEMBERED = 2**16


def code_of(column: Column) -> Callable[[bytes], int]:
    """Return the function from the text of a field to its code, -1 if it has none.

    Categorical: a declared value, letter for letter. Integers: decimal digits with an optional
    sign, and zeros after a decimal point. Bins: a decimal number in a half-open bin; never inf or
    nan. Boolean: a declared text, whatever its case.
    """
    outside = column.length if column.other else -1
    match column.kind:
        case Categorical(values=values):
            listed = {value.encode().strip(): code for code, value in enumerate(values)}
            return lambda text: listed.get(text.strip(), outside)
        case Integers(low=low, high=high):
            return lambda text: _integer_code(text.strip(), low, high, outside)
        case Bins(edges=edges):
            return lambda text: _bin_code(text.strip(), edges, outside)
        case Boolean(true=true, false=false):
            folded = {text.strip().casefold(): 0 for text in false}
            folded |= {text.strip().casefold(): 1 for text in true}
            return lambda text: _boolean_code(text.strip(), folded, outside)
        case _:
            assert_never(column.kind)


def coder(column: Column) -> Callable[[list[bytes]], NDArray[np.int64]]:
    """Return the function from distinct texts to their codes; it remembers a bounded number."""
    plain = code_of(column)
    remembered = lru_cache(_REMEMBERED)(plain)

    def codes(texts: list[bytes]) -> NDArray[np.int64]:
        coded = (remembered(t) if len(t) <= _LONGEST_NUMBER else plain(t) for t in texts)
        return np.fromiter(coded, np.int64, len(texts))

    return codes


def _integer_code(text: bytes, low: int, high: int, outside: int) -> int:
    if len(text) > _LONGEST_NUMBER or not _WHOLE.fullmatch(text):
        return outside
    value = int(text.partition(b".")[0])
    return value - low if low <= value <= high else outside


def _bin_code(text: bytes, edges: tuple[float, ...], outside: int) -> int:
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        return outside
    value = float(text)  # inf where it overflows, which is past the last edge
    return bisect_right(edges, value) - 1 if edges[0] <= value < edges[-1] else outside


def _boolean_code(text: bytes, folded: Mapping[str, int], outside: int) -> int:
    try:
        return folded.get(text.decode().casefold(), outside)
    except UnicodeDecodeError:
        return outside
