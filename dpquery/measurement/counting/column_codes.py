"""Codes of the values of a column, many at a time: those of `value_codes`, found faster.

Most numbers are decided by the float next to them. Rounding to the next float never turns the order
of two numbers round, so a number whose float is below that of a bound is below the bound, and one
whose float is above it is above, however many digits they have. Where the two floats are equal the
exact rule decides. A number of at most 15 digits is the only such number that its float is next to:
a whole float says that it is whole, and which. Numbers that are typed are floats already, or whole.

Of dates with a time, the time is set to midnight, so that few texts are left. Of listed values the
texts are looked up, and a text that is not declared and begins as no number does is outside.
Whatever remains goes, each distinct text once, to the exact rule. So the code of a value depends on
its text alone, and is the one that `value_codes.code_of` gives it.
"""

from functools import lru_cache
from itertools import repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpquery.arrays import Bools, Floats, Ints
from dpquery.measurement.counting.value_codes import code_of, declared_numbers
from dpquery.measurement.counting.value_texts import doubles, local_days, texts_of
from dpquery.spec.calendar import DateFormat
from dpquery.spec.domain import Bins, Boolean, Categorical, Column, ColumnKind, Dates, Integers
from dpquery.spec.numbers import nearest_float

_REMEMBERED = 2**16
_REMEMBERED_BYTES = 64  # of a text; longer ones would take too much memory together
_FEW = 256  # values that are coded one by one
_FLOAT_DIGITS = 15  # of numbers of which no two have the same float
_Is = pa.types

# A text of at most 64 characters that writes a number; others may write one too.
_DIGITS = r"^-?(?:[0-9]{1,30}(?:MARK[0-9]{0,28})?|MARK[0-9]{1,28})(?:[eE][+-]?[0-9]{1,2})?$"
_NUMBERS = {mark: _DIGITS.replace("MARK", f"[{mark}]") for mark in (".", ",")}
# A text that writes no number and has no white space around it: its ends are in ASCII.
_WORD = r"(?s)^[!-*/:-~](?:.*[!-~])?$"

_UNDECIDED = -2  # in place of a code


class ColumnCodes:
    """The function from values of a column to their codes; it remembers a bounded number."""

    def __init__(self, column: Column, decimal: str = ".") -> None:
        """Prepare for a column of sources with this decimal mark; see `value_codes.code_of`."""
        self._kind, self._written = column.kind, column.number
        # Typed numbers have texts that the column's own rule reads.
        self._decimal = decimal if column.number is None else column.number.decimal
        self._rule = code_of(column, decimal)
        self._remembered = lru_cache(_REMEMBERED)(self._rule)
        self._outside = -1 if column.drops else column.length
        bounds, self._between = _steps(column.kind, decimal, self._outside)
        self._bounds = np.append(bounds, np.nan)
        self._listed: dict[bytes, int] = {}
        if isinstance(column.kind, Categorical):
            declared = [text.encode() for texts in column.kind.texts for text in texts]
            self._listed = {text: self._rule(text) for text in declared}

    def of(self, values: pa.Array) -> Ints:
        """Return the code of each value, (n,); of null that of an empty text.

        Args:
            values: texts as binary, or of a type that `value_texts` has a text for.
        """
        if len(values) <= _FEW:
            return self._by_rule(texts_of(values, self._decimal))
        if isinstance(self._kind, Dates):
            values = _at_midnight(values, self._kind.format)
            codes = np.full(len(values), _UNDECIDED)
        elif _is_text(values):
            codes = self._of_texts(values)
        else:
            codes = self._of_numbers(*_typed_numbers(values))
        rest = codes == _UNDECIDED
        if rest.any():
            distinct = values.filter(pa.array(rest)).dictionary_encode()
            decided = self._by_rule(texts_of(distinct.dictionary, self._decimal))
            places = distinct.indices.fill_null(len(decided)).to_numpy()
            codes[rest] = np.append(decided, self._rule(b""))[places]
        return codes

    def _by_rule(self, texts: pa.Array) -> Ints:
        coded = (
            self._remembered(text) if len(text) <= _REMEMBERED_BYTES else self._rule(text)
            for text in texts.to_pylist()
        )
        return np.fromiter(coded, np.int64, len(texts))

    def _of_texts(self, texts: pa.Array) -> Ints:
        """Return codes as far as they are decided."""
        if self._written is not None:
            return np.full(len(texts), _UNDECIDED)
        if self._listed:
            found = map(self._listed.get, texts.to_pylist(), repeat(_UNDECIDED))
            codes = np.fromiter(found, np.int64, len(texts))
        else:
            codes = np.full(len(texts), _UNDECIDED)
        rest = np.flatnonzero(codes == _UNDECIDED)
        if rest.size > _FEW:
            texts = texts.take(pa.array(rest))
            codes[rest] = self._of_numbers(*_written_numbers(texts, self._decimal))
            if not isinstance(self._kind, Boolean):  # which is read without case
                left = codes[rest] == _UNDECIDED
                codes[rest[left & _flags(pc.match_substring_regex(texts, _WORD))]] = self._outside
        return codes

    def _of_numbers(self, floats: Floats, short: Bools) -> Ints:
        """Return codes as far as they are decided.

        Args:
            floats: of each number the float next to it; nan, or infinite, for none.
            short: which numbers have at most _FLOAT_DIGITS digits, or are whole as the float is.
        """
        if isinstance(self._kind, Integers):
            low, high = self._kind.low, self._kind.high
            inside = (floats == np.floor(floats)) & (low <= floats) & (floats <= high)
            codes = np.where(inside, _UNDECIDED, self._outside)
            exact = inside & short & (np.abs(floats) < 10.0**_FLOAT_DIGITS)
            codes[exact] = floats[exact].astype(np.int64) - low
        else:
            place = np.searchsorted(self._bounds[:-1], floats)
            codes = np.where(self._bounds[place] == floats, _UNDECIDED, self._between[place])
        codes[~np.isfinite(floats)] = _UNDECIDED
        return codes


def _at_midnight(values: pa.Array, written: DateFormat) -> pa.Array:
    """Return values that have the same day as those of a column of dates, and fewer times."""
    if _is_text(values) and written.midnight is not None:
        pattern, replacement = written.midnight
        return pc.replace_substring_regex(values, pattern=pattern, replacement=replacement)
    if _Is.is_timestamp(values.type) and not written.text:
        return local_days(values)
    return values


def _steps(kind: ColumnKind, decimal: str, outside: int) -> tuple[Floats, Ints]:
    """Return the floats next to all bounds, (n,), and the codes below, between and above, (n+1,).

    Whole numbers have their own rule and no bounds, dates have no numbers.
    """
    match kind:
        case Bins(edges=edges):
            return np.array(edges), np.array([outside, *range(len(edges) - 1), outside])
        case Categorical() | Boolean():
            bounds = np.unique([nearest_float(value) for value in declared_numbers(kind, decimal)])
            return bounds, np.full(bounds.size + 1, outside)
        case _:
            return np.zeros(0), np.full(1, outside)


def _is_text(values: pa.Array) -> bool:
    return bool(_Is.is_binary(values.type) or _Is.is_large_binary(values.type))


def _flags(booleans: pa.Array) -> Bools:
    flags: Bools = booleans.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _written_numbers(texts: pa.Array, decimal: str) -> tuple[Floats, Bools]:
    """Return the float next to the number that each text writes, nan for none; and which are short.

    Texts that write a number in an uncommon way have nan, too.
    """
    plain = pc.match_substring_regex(texts, _NUMBERS[decimal])
    written = texts.filter(plain)
    if decimal != ".":
        written = pc.replace_substring(written, decimal, ".")
    floats = np.full(len(texts), np.nan)
    floats[_flags(plain)] = written.cast(pa.large_string()).cast(pa.float64()).to_numpy()
    return floats, _flags(pc.less_equal(pc.binary_length(texts), _FLOAT_DIGITS))


def _typed_numbers(values: pa.Array) -> tuple[Floats, Bools]:
    """Return the same for typed values; nan for those that are no numbers."""
    kind = values.type
    if _Is.is_decimal(kind):
        return _written_numbers(values.cast(pa.string()).cast(pa.binary()), ".")
    floats = np.full(len(values), np.nan)
    if _Is.is_floating(kind):
        floats = doubles(values)
    elif _Is.is_integer(kind):
        floats = values.to_numpy(zero_copy_only=False).astype(np.float64)
    return floats, np.ones(len(values), np.bool_)
