"""The text of a typed value: that which a CSV file of the column would hold.

`12`, `1.5` by the shortest digits of the column's own precision, exact decimals, `true`,
`2024-02-29`, `2024-02-29 13:30:00` (with a Z where the column has a time zone: in UTC), an empty
text for null, `nan` and `inf`. It depends on the value and on the column's type alone.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from dpquery.arrays import Floats

_Is = pa.types
_TEXTUAL = (_Is.is_binary, _Is.is_large_binary, _Is.is_large_string)


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
    if _Is.is_timestamp(kind):
        zone = "" if kind.tz is None else "Z"
        times = values.cast(pa.timestamp(kind.unit)).cast(pa.string()).to_pylist()
        return (None if time is None else _without_zeros(time) + zone for time in times)
    written = values.cast(pa.string()).to_pylist()  # a date, or a time of day
    return (None if text is None else _without_zeros(text) for text in written)


def _without_zeros(time: str) -> str:
    """Return a time without zeros behind its decimal point."""
    return time.rstrip("0").rstrip(".") if "." in time else time
