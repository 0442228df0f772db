"""The text of a typed value: that which a CSV file of the column would hold.

`12`, `1.5` by the shortest digits of the column's own precision, exact decimals, `true`,
`2024-02-29`, `2024-02-29 13:30:00`, an empty text for null, `nan` and `inf`. Where the column has a
time zone it is the time in that zone, with what this is ahead of UTC: `2024-02-29 13:30:00+01:00`,
or a Z in UTC itself. It depends on the value and on the column's type alone.
"""

from collections.abc import Iterable
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpquery.arrays import Floats, Ints

_Is = pa.types
_TEXTUAL = (_Is.is_binary, _Is.is_large_binary, _Is.is_large_string)
_OF_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_OF_A_DAY = 86_400
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH


def texts_of(values: pa.Array, decimal: str) -> pa.Array:
    """Return the text of each value, as bytes; no value is refused.

    Args:
        values: of any type that a source may have but a dictionary; texts are themselves.
        decimal: the mark that the spec declares for numbers.
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
    """Return the text of each value, as the module says; None for null."""
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
