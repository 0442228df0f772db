"""The points of a chart of one item's answers, read from its file within bounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa

from dpquery.untrusted.json_values import LEAST_FIGURE, MOST
from dpquery.untrusted.parquet import opened

MAX_DRAWN_ROWS = 500
MAX_DRAWN_BYTES = 1 << 18  # of a file that is drawn: labels may be long
_AT_ONCE = 64  # rows: a text of a packed file may be long, and every row may hold it
_LONGEST = 16 * MAX_DRAWN_BYTES
_NUMBERS = (pa.int64(), pa.float64(), pa.bool_())
_DAYS = date(1970, 1, 1).toordinal()  # of day 0 of an Arrow file
_LAST_DAY = date.max.toordinal()
MAX_DOTS = 60
MAX_SERIES = 4
MIN_POINTS = 10

AnswerRow = dict[str, str | int | float | bool | date | None]


@dataclass(frozen=True)
class ChartPoint:
    """One answer: its label, its place on an ordered axis, and its noise interval, if known."""

    label: str
    place: float
    estimate: float
    interval: tuple[float, float] | None
    flag: str


@dataclass(frozen=True)
class Series:
    """Points that belong together; `name` is empty where there is but one series."""

    name: str
    points: tuple[ChartPoint, ...]


@dataclass(frozen=True)
class Preview:
    """An item's answers, if few enough to be drawn.

    Attributes:
        axis: the ordered attribute that the points run along; "" where there is none: then there
            is one series, to be drawn as a list.
        series: of points in file order.
        query: how many of its conditions a record must meet, such as "2 of 4", where that is the
            same for all and not all of them.
        dates: whether places on the axis are days, by their ordinal numbers.
    """

    axis: str
    series: tuple[Series, ...]
    query: str = ""
    dates: bool = False


def preview(path: Path, labels: Sequence[str]) -> Preview | None:
    """Read a file of answers if it is small, and find the axis along which to draw it.

    Args:
        path: an item's Parquet file.
        labels: its columns that say what a row is.
    """
    if path.stat().st_size > MAX_DRAWN_BYTES:
        return None
    with opened(path, rows=None) as file:
        if file.metadata.num_rows > MAX_DRAWN_ROWS:
            return None
        rows = [row for batch in file.iter_batches(_AT_ONCE) for row in _rows(batch)]
    _tell_labels_apart(rows, labels)
    queries = {str(row["query"]) for row in rows} if "query" in labels else set()
    query = queries.pop() if len(queries) == 1 else ""
    for name in labels:
        for place in (name, f"{name}_from", f"{name}_to"):
            others = [label for label in labels if label != name]
            lines = _along(rows, axis=name, place=place, others=others)
            if lines is not None:
                return replace(lines, query=query)
    if len(rows) > MAX_DOTS:
        return None
    varying = _varying(rows, labels)
    points = tuple(
        _point(row, _words(row, varying), float(place)) for place, row in enumerate(rows)
    )
    return Preview("", (Series("", points),), query)


def _tell_labels_apart(rows: Sequence[AnswerRow], labels: Sequence[str]) -> None:
    """Add the code to labels that several groups of a hierarchy have."""
    for name in labels:
        code, level = f"{name}_code", f"{name}_level"
        if rows and level in rows[0]:
            groups: dict[str, set[tuple[object, object]]] = {}
            for row in rows:
                groups.setdefault(str(row[name]), set()).add((row[level], row[code]))
            for row in rows:
                if len(groups[str(row[name])]) > 1 and row[code] is not None:
                    row[name] = f"{row[name]} ({row[code]})"


def _rows(batch: pa.RecordBatch) -> list[AnswerRow]:
    """Return some rows; ValueError if their labels are longer than any spec's."""
    for column in batch.columns:
        texts = column.dictionary if pa.types.is_dictionary(column.type) else column
        if pa.types.is_date32(texts.type):
            _check_days(texts)
        elif not pa.types.is_string(texts.type) and texts.type not in _NUMBERS:
            raise ValueError("type")
        if pa.types.is_string(texts.type) and texts.nbytes > _LONGEST:
            raise ValueError("label")
    return cast(list[AnswerRow], batch.to_pylist())


def _check_days(days: pa.Array) -> None:
    """Raise ValueError where a day is not of the years 1 to 9999."""
    numbers = days.cast(pa.int32()).drop_null().to_numpy() + np.int64(_DAYS)
    if numbers.size and not 0 < numbers.min() <= numbers.max() <= _LAST_DAY:
        raise ValueError("date")


def _along(
    rows: Sequence[AnswerRow], *, axis: str, place: str, others: Sequence[str]
) -> Preview | None:
    """Return the rows as lines along a column, if it orders them."""
    series: dict[str, dict[float, ChartPoint]] = {}
    varying, dates = _varying(rows, others), False
    for row in rows:
        value = row.get(place)
        if isinstance(value, bool | str) or value is None:
            return None
        dates, value = isinstance(value, date), _ordinal(value)
        points = series.setdefault(_words(row, varying) if varying else "", {})
        if value in points:
            return None
        points[value] = _point(row, str(row[axis]), _number(value))
    fewest = min((len(points) for points in series.values()), default=0)
    if fewest < MIN_POINTS or len(series) > MAX_SERIES:
        return None
    lines = tuple(Series(name, tuple(points.values())) for name, points in series.items())
    return Preview(axis, lines, dates=dates)


def _ordinal(value: float | date) -> float:
    return value.toordinal() if isinstance(value, date) else value


def _point(row: AnswerRow, label: str, place: float) -> ChartPoint:
    low, high = row["ci_low"], row["ci_high"]
    interval = None if low is None or high is None else (_number(low), _number(high))
    return ChartPoint(label, place, _number(row["estimate"]), interval, str(row["flag"]))


def _number(value: str | float | bool | date | None) -> float:
    """Return a number that can be drawn; ValueError if it is none: files come from outside."""
    if isinstance(value, bool | str | date) or value is None or not abs(value) < MOST:
        raise ValueError("number")
    return float(value) if abs(value) >= LEAST_FIGURE else 0.0


def _varying(rows: Sequence[AnswerRow], names: Sequence[str]) -> list[str]:
    return [name for name in names if len({row[name] for row in rows}) > 1]


def _words(row: AnswerRow, names: Sequence[str]) -> str:
    """Return the label of a row; a yes or no needs its attribute's name to mean anything.

    Where an item has several tables, the attributes that a table lacks are left out.
    """
    words = []
    for name in names:
        value = row[name]
        text = ("no", "yes")[value] if isinstance(value, bool) else str(value)
        unsaid = name == "table" or ("table" in row and text in ("all", "(all)"))
        if not unsaid:
            words.append(f"{name}: {text}" if text in ("yes", "no") else text)
    return ", ".join(words) or "all"
