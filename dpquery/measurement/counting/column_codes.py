"""The codes of a column's values: one rule for each text, and the same for many at a time.

Most numbers are decided by the float next to them. Rounding to the next float never turns the order
of two numbers round, so a number whose float is below that of a bound is below the bound, and one
whose float is above it is above, however many digits they have. Where the two floats are equal the
exact rule decides. A number of at most 15 digits is the only such number that its float is next to:
a whole float says that it is whole, and which. Numbers that are typed are floats already, or whole.

Of dates with a time, the time is set to midnight, so that few texts are left. Of listed values the
texts are looked up, and a text that is not declared and begins as no number does is outside.
Whatever remains goes, each distinct text once, to the exact rule. So the code of a value depends on
its text alone, and is the one that `code_of` gives it.

The text of a typed value: that which a CSV file of the column would hold.

`12`, `1.5` by the shortest digits of the column's own precision, exact decimals, `true`,
`2024-02-29`, `2024-02-29 13:30:00`, an empty text for null, `nan` and `inf`. Where the column has a
time zone it is the time in that zone, with what this is ahead of UTC: `2024-02-29 13:30:00+01:00`,
or a Z in UTC itself. It depends on the value and on the column's type alone.

One rule holds for all kinds. White space around a text is stripped, that of Unicode too. A number
is a number, however it is written: `1`, `1.0`, `01`, `+1` and `1e0` are one value, compared
exactly. What is no number is compared letter by letter, yes and no without case. What no rule
accepts, and what is not UTF-8, is outside: it gets the column's `other` code, counted or shown, and
-1 where the column drops it. The code of a text depends on the text alone.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import lru_cache, partial
from itertools import repeat
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpquery.arrays import Bools, Floats, Ints
from dpquery.measurement.counting.sources import StoredValues
from dpquery.spec.calendar import DateFormat
from dpquery.spec.columns import Bins, Boolean, Categorical, Column, ColumnKind, Dates, Integers
from dpquery.spec.numbers import ExactNumber, nearest_float, number, of_float, whole

_Is = pa.types
_TEXTUAL = (_Is.is_binary, _Is.is_large_binary, _Is.is_large_string)
_OF_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_OF_A_DAY = 86_400
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH


def texts_of(values: pa.Array, decimal: str) -> pa.Array:
    """Return the text of each value, as bytes; no value is refused.

    Values are of any type that a source may have but a dictionary; texts are themselves.
    """
    if _Is.is_integer(values.type):
        values = values.cast(pa.large_string())
    if any(is_one(values.type) for is_one in _TEXTUAL):
        return values.cast(pa.large_binary()).fill_null(b"")
    written = pa.array(_texts(values, decimal), pa.large_string())
    return written.cast(pa.large_binary()).fill_null(b"")


def doubles(values: pa.Array) -> Floats:
    """Return floats of any width as the numbers that their texts write; any number for null."""
    # 0.0 is added so that -0.0, which a dictionary may take for 0.0, has the same text.
    numbers = values.to_numpy(zero_copy_only=False) + values.type.to_pandas_dtype()(0)
    # Narrow ones by their own shortest digits, as a double's: 0.1 is 0.1 in all of them.
    written: Floats = numbers if numbers.dtype == np.float64 else numbers.astype("U32")
    return written.astype(np.float64, copy=False)


def _texts(values: pa.Array, decimal: str) -> Iterable[str | None]:
    kind = values.type
    if _Is.is_boolean(kind):
        return (None if value is None else str(value).lower() for value in values.to_pylist())
    if _Is.is_floating(kind):
        return (
            None if missing else repr(number).replace(".", decimal)
            for number, missing in zip(
                doubles(values).tolist(), values.is_null().to_pylist(), strict=True
            )
        )
    if _Is.is_decimal(kind):
        exact = values.to_pylist()
        return (None if v is None else f"{v:f}".replace(".", decimal) for v in exact)
    if _Is.is_timestamp(kind) and kind.tz is not None:
        return _zoned_texts(values)
    written = values.cast(pa.string()).to_pylist()  # a date, or a time
    return (None if text is None else _without_zeros(text) for text in written)


def local_days(times: pa.Array) -> pa.Array:
    """Return the dates of timestamps in their own zone; of one beyond the calendar none of it."""
    local, _ = _local_seconds(times)
    days = np.clip(local // _OF_A_DAY, _FIRST_DAY - 1, _LAST_DAY + 1).astype(np.int32)
    missing = times.is_null().to_numpy(zero_copy_only=False)
    return pa.array(days, pa.int32(), mask=missing).cast(pa.date32())


def _local_seconds(times: pa.Array) -> tuple[Ints, Ints]:
    """Return the whole seconds of timestamps since 1970 in their own zone, and those in UTC.

    Those beyond the calendar are set to a day before it or behind it.
    """
    second = _OF_A_SECOND[times.type.unit]
    seconds = times.cast(pa.int64()).fill_null(0).to_numpy() // second
    seconds = np.clip(seconds, (_FIRST_DAY - 2) * _OF_A_DAY, (_LAST_DAY + 3) * _OF_A_DAY)
    if times.type.tz is None:
        return seconds, seconds
    in_zone = pa.array(seconds).cast(pa.timestamp("s", times.type.tz))
    return pc.local_timestamp(in_zone).cast(pa.int64()).to_numpy(), seconds


def _zoned_texts(times: pa.Array) -> Iterable[str | None]:
    """Return the text of each timestamp of a type with a zone; None for null."""
    local, seconds = _local_seconds(times)
    second = _OF_A_SECOND[times.type.unit]
    fractions = times.cast(pa.int64()).fill_null(0).to_numpy() % second
    ahead = (local - seconds) // 60
    rows = zip(
        pa.array(local).cast(pa.timestamp("s")).cast(pa.string()).to_pylist(),
        fractions.tolist(),
        ahead.tolist(),
        times.is_null().to_pylist(),
        strict=True,
    )
    in_utc = times.type.tz == "UTC"
    for text, fraction, minutes, missing in rows:
        hours = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
        behind = _without_zeros("." + str(second + fraction)[1:])
        yield None if missing else text + behind + ("Z" if in_utc else hours)


def _without_zeros(time: str) -> str:
    """Return a time without zeros behind its decimal point."""
    return time.rstrip("0").rstrip(".") if "." in time else time


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

    The decimal mark is that of the file, unless the column says how it writes numbers. Numbers in
    the spec have a point.
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


_REMEMBERED = 2**16
_REMEMBERED_BYTES = 64  # of a text; longer ones would take too much memory together
_FEW = 256  # values that are coded one by one
_FLOAT_DIGITS = 15  # of numbers of which no two have the same float

# A text of at most 64 characters that writes a number; others may write one too.
_DIGITS = r"^-?(?:[0-9]{1,30}(?:MARK[0-9]{0,28})?|MARK[0-9]{1,28})(?:[eE][+-]?[0-9]{1,2})?$"
_NUMBERS = {mark: _DIGITS.replace("MARK", f"[{mark}]") for mark in (".", ",")}
# A text that writes no number and has no white space around it: its ends are in ASCII.
_WORD = r"(?s)^[!-*/:-~](?:.*[!-~])?$"

_UNDECIDED = -2  # in place of a code


def numbers_in(stored: StoredValues, decimal: str) -> Floats:
    """Return the float next to the number that each record writes, (n,); nan for none."""
    parts = [_numbers_of(values, decimal)[places] for values, places in stored]
    return np.concatenate([np.zeros(0), *parts])


def _numbers_of(values: pa.Array, decimal: str) -> Floats:
    of = _written_numbers(values, decimal) if _is_text(values) else _typed_numbers(values)
    floats, read = of[0], partial(number, decimal=decimal)
    if (rest := np.isnan(floats)).any():
        texts = texts_of(values.filter(pa.array(rest)), decimal).to_pylist()
        exact = (read(text.decode(errors="replace").strip()) for text in texts)
        floats[rest] = [np.nan if value is None else nearest_float(value) for value in exact]
    return np.where(np.isfinite(floats), floats, np.nan)


class ColumnCodes:
    """The function from values of a column to their codes; it remembers a bounded number."""

    def __init__(self, column: Column, decimal: str = ".") -> None:
        """Prepare for a column of sources with this decimal mark; see `code_of`."""
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
            values: texts as binary, or of a type that has a text.
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
            numbers = (key for key in known_codes(kind, decimal) if not isinstance(key, str))
            bounds = np.unique([nearest_float(value) for value in numbers])
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
