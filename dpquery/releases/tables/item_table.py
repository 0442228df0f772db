"""The rows of an item's file, labelled or numbered, and the errors beside each answer.

Flags follow the convention of health statistics, MEPS's among them: an estimate whose relative
standard error is 30 % or more is marked, from 50 % on strongly. Everything here is computed from
noisy estimates and public standard errors, so it reveals nothing beyond them; near zero a flag says
that noise swamps the answer, not that the count is small.

Answers whose error depends on the data, as those of relaxed adaptive projection, have no figures
here at all: every one is null, and their flag says so.

Rows come in domain order: tables in spec order, and in each the C-order product of its axes'
queries. Every query has a row whatever its answer, so neither the number of rows nor their order
says anything about the data.

The rules look at the estimate and its standard error, which stand in the same row: what they leave
out is not hidden. They are for the readers of a printed table, and protect nobody.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy import float64, int32, int64
from numpy.typing import NDArray

from dpquery.arrays import Bools, Floats, Ints
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.releases.tables.file_columns import ANSWER_COLUMNS, ERRORS, schema_of
from dpquery.releases.tables.labels import (
    FIRST_RULES,
    BlankColumns,
    ColumnRules,
    FilledColumn,
    LabelRuns,
    ShownColumn,
    attribute_columns,
    encoded,
    masked,
    repeated_texts,
)
from dpquery.spec.columns import Domain
from dpquery.spec.parsing.sections import PUBLICATION_COLUMNS
from dpquery.spec.spec import Item, PublicationRules, Table

NOISY, VERY_NOISY = 0.3, 0.5
FLAGS = ("", "noisy", "very noisy")
FACT_FLAGS = ("impossible", "known")
"""The flags of answers that public facts state, so that they have no noise."""
NO_ERROR_BARS = "no error bars"
"""The flag of an answer whose error is not known."""

# A positive float's leading bits order it: sign, exponent and eight bits of mantissa make bins that
# are 0.4 % wide, so that a median over any number of rows takes a few megabytes.
_DROPPED_BITS = 52 - 8
_BINS = (int(np.array(np.inf).view(int64)) >> _DROPPED_BITS) + 1

ERRORS_SCHEMA = schema_of(ERRORS.values())
UNKNOWN_SCHEMA = pa.schema([field.with_nullable(True) for field in ERRORS_SCHEMA])
"""The same where errors are not known: everything but `item`, `queries` and `weight` is null."""


def relative_errors(estimate: Floats, std_error: Floats) -> Floats:
    """Return std_error / |estimate|: infinite at an estimate of zero, zero without noise. (m,)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.abs(estimate)
        np.divide(std_error, relative, out=relative)
    relative[std_error == 0] = 0.0
    return relative


def flags(relative: Floats) -> NDArray[int32]:
    """Return for each relative error its place in FLAGS. (m,)."""
    return np.add(relative >= NOISY, relative >= VERY_NOISY, dtype=int32)


def lower_median(values: Floats) -> float:
    """Return the least of some numbers that half of them do not exceed, as `Tally` does.

    >>> lower_median(np.array([0.1, 0.2, 0.4, 9.0]))
    0.2
    """
    return float(np.quantile(values, 0.5, method="inverted_cdf"))


class Tally:
    """A running summary of one item's errors, in memory that does not grow with its rows."""

    def __init__(self) -> None:
        self.rows = self.flagged = 0
        self.squares: list[float] = []
        self.std_error, self.relative = _Median(), _Median()

    def add(self, std_error: Floats, relative: Floats) -> None:
        """Add rows: (m,) standard errors and (m,) relative errors."""
        self.rows += len(std_error)
        self.flagged += int((relative >= NOISY).sum())
        self.squares.append(float(np.square(std_error).sum()))
        self.std_error.add(std_error)
        self.relative.add(relative)

    def row(self, item: Item) -> dict[str, str | int | float | None]:
        """Return the item's row of errors.parquet; an infinite relative error is null."""
        rows = max(self.rows, 1)
        return {
            "item": item.name,
            "queries": self.rows,
            "rmse": math.sqrt(math.fsum(self.squares) / rows),
            "median_std_error": self.std_error.median,
            "max_std_error": self.std_error.high,
            "median_rel_error": _finite(self.relative.median),
            "worst_rel_error": _finite(self.relative.high),
            "flagged_share": self.flagged / rows,
            "weight": item.weight,
        }


def unknown_row(item: Item) -> dict[str, str | int | float | None]:
    """Return the row of an item whose errors are not known."""
    return dict.fromkeys(ERRORS_SCHEMA.names) | {
        "item": item.name,
        "queries": item.size,
        "weight": item.weight,
    }


def errors_table(
    rows: Sequence[dict[str, str | int | float | None]], *, known: bool = True
) -> pa.Table:
    """Return the content of errors.parquet: one row an item, in spec order."""
    return pa.Table.from_pylist(list(rows), schema=ERRORS_SCHEMA if known else UNKNOWN_SCHEMA)


class _Median:
    """The median of non-negative numbers, to 0.4 % where they crowd, and their exact maximum."""

    def __init__(self) -> None:
        self.counts, self.sums = np.zeros(_BINS, dtype=int64), np.zeros(_BINS)
        self.first, self.end = _BINS, 1  # no other bins are in use: few of them are
        self.high = 0.0

    def add(self, values: Floats) -> None:
        if not len(values):
            return
        if values.strides == (0,):  # one number for all rows
            self._add(values[:1], len(values))
            return
        self._add(np.ascontiguousarray(values, dtype=float64), 1)

    def _add(self, values: Floats, times: int) -> None:
        bins = values.view(int64) >> _DROPPED_BITS
        low = int(bins.min())
        bins -= low
        counts = np.bincount(bins)
        bins_added = slice(low, low + len(counts))
        self.first, self.end = min(self.first, low), max(self.end, bins_added.stop)
        self.counts[bins_added] += times * counts
        self.sums[bins_added] += times * np.bincount(bins, weights=values)
        self.high = max(self.high, float(values.max()))

    @property
    def median(self) -> float:
        """The mean of the bin that holds the lower median; 0 if there are no numbers."""
        first = min(self.first, self.end - 1)
        reached = np.cumsum(self.counts[first : self.end])
        bin_of_median = first + int(np.searchsorted(reached, (reached[-1] + 1) // 2))
        return min(float(self.sums[bin_of_median] / max(self.counts[bin_of_median], 1)), self.high)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def answer_fields(
    *names: str, error_bars: bool = True, rules: PublicationRules | None = None
) -> list[pa.Field]:
    """Return columns of answers, and those of what is published by an item's rules, if any.

    Where there are no error bars, columns of errors are empty.
    """
    fields = [ANSWER_COLUMNS[name].field for name in names]
    if not error_bars:
        fields = [f.with_nullable(f.nullable or f.name in ERROR_NAMES) for f in fields]
    return fields + [
        ANSWER_COLUMNS[name].field for name in PUBLICATION_COLUMNS if rules is not None
    ]


def publication_arrays(
    rules: PublicationRules, estimate: Floats, relative: Floats | None
) -> list[pa.Array]:
    """Return what is published of (m,) estimates, null where it is left out, and why it is.

    Args:
        rules: what is left out, and what the others are rounded to.
        estimate: (m,) estimates.
        relative: (m,) their relative errors; None where no errors are known: a rule on them then
            leaves everything out.
    """
    reason, reasons = np.zeros(len(estimate), dtype=int32), [""]
    for text, left_out in _left_out(rules, estimate, relative):
        reason[left_out & (reason == 0)] = len(reasons)
        reasons.append(text)
    step = rules.round_to
    shown = estimate if step is None else step * np.rint(estimate / step) + 0.0  # no zero below 0
    return [masked(shown, reason > 0), encoded(reason, pa.array(reasons, pa.string()))]


def _left_out(
    rules: PublicationRules, estimate: Floats, relative: Floats | None
) -> Iterator[tuple[str, Bools]]:
    """Yield for every rule why it leaves estimates out, in words, and which: (m,)."""
    if rules.rel_error is not None and relative is None:
        yield NO_ERROR_BARS, np.ones(len(estimate), dtype=bool)
    elif rules.rel_error is not None and relative is not None:
        yield f"rel_error of {rules.rel_error:g} or more", relative >= rules.rel_error
    if rules.below is not None:
        yield f"below {rules.below:,}", estimate < rules.below


BATCH_ROWS = 1 << 18
INTEGER_COLUMNS = frozenset({"integer"})
"""Extra columns of whole numbers."""

Values = Floats


class Batch(NamedTuple):
    """Some rows of an item's file, with the errors in them that the summary needs, if known."""

    rows: pa.RecordBatch
    std_error: Values | None
    relative: Values | None


class Segment(NamedTuple):
    """Rows start..stop-1 of one table."""

    table: int
    start: int
    stop: int


class Answers(NamedTuple):
    """Answers of some rows, (m,) each; their errors are None where they are not known.

    So is what public facts state, where there are none.
    """

    estimate: Values
    std_error: Values | None
    half_width: Values | None
    relative: Values | None
    stated: Ints | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ItemRows:
    """The rows and columns of one item's file."""

    item: Item  # the item
    schema: pa.Schema  # of the file but for its extra columns
    # names of the columns that say what a row is, in file order; without codes and the ends of
    # ranges, which say it again
    labels: tuple[str, ...]
    # gives, for at most so many rows at a time, what gives the columns that say what rows are
    row_columns: Callable[[int], Callable[[Sequence[Segment]], list[pa.Array]]]
    error_bars: bool = True  # whether the answers have standard errors; else those columns are null
    extra: tuple[str, ...] = ()  # names of the extra columns, in order
    numbers: tuple[str, ...] = ()  # names of the columns that count rows

    @property
    def whole_schema(self) -> pa.Schema:
        """The schema of the file; extra columns come last, null where a table has no values."""
        added = [pa.field(name, _extra_type(name)) for name in self.extra]
        return pa.schema([*self.schema, *added])

    def batches(
        self, answers: Iterator[TableAnswers], *, rows: int = BATCH_ROWS
    ) -> Iterator[Batch]:
        """Yield the whole file in batches of at most `rows` rows; memory O(one table + a batch).

        By their size the file differs in nothing but its row groups.

        Raises:
            ValueError: the answers are not those of the item's tables.
        """
        place, current = -1, None
        columns_of = self.row_columns(min(rows, self.item.size))
        for segments in _batches_of([table.size for table in self.item.tables], rows):
            pieces: list[list[Values]] = []
            extra, stated = [], []
            for segment in segments:
                while place < segment.table:
                    place, current = place + 1, next(answers, None)
                if current is None or len(current.estimate) != self.item.tables[place].size:
                    raise ValueError(f"item {self.item.name} has no answers for table {place}")
                part = slice(segment.start, segment.stop)
                if (current.std_error is not None) != self.error_bars:
                    raise ValueError(f"item {self.item.name} is laid out for other answers")
                fields = (current.estimate, current.std_error, current.half_width)
                pieces.append([values[part] for values in fields if values is not None])
                extra.append([_part(values, segment) for values in current.extra])
                stated += [] if current.stated is None else [current.stated[part]]
            joined = _answers(*map(_joined, zip(*pieces, strict=True)))
            joined = joined._replace(stated=np.concatenate(stated) if stated else None)
            arrays = columns_of(segments)
            arrays += [_answer_column(n, joined) for n in self.schema.names if n in _ANSWERED]
            if self.item.publish is not None:
                rules = self.item.publish
                arrays += publication_arrays(rules, joined.estimate, joined.relative)
            arrays += self._extra_columns(extra)
            batch = pa.RecordBatch.from_arrays(arrays, schema=self.whole_schema)
            yield Batch(batch, joined.std_error, joined.relative)

    def _extra_columns(self, values: Sequence[Sequence[pa.Array]]) -> list[pa.Array]:
        if not self.extra:
            return []
        types = [_extra_type(name) for name in self.extra]
        columns = zip(types, *values, strict=True)
        return [pa.concat_arrays([part.cast(kind) for part in parts]) for kind, *parts in columns]


def table_text(table: Table, domain: Domain) -> str:
    """Return the attributes of a table in words."""
    return ", ".join(domain.attributes[index].name for index, _ in table.axes) or "total"


def query_text(table: Table) -> str:
    """Return how many of a row's conditions must hold, in words."""
    if table.threshold >= len(table.axes):
        return "all of"
    return "any of" if table.threshold == 1 else f"{table.threshold} of {len(table.axes)}"


def with_thresholds(item: Item) -> bool:
    """Return whether some rows of an item count records that meet fewer than all conditions."""
    return any(table.threshold < len(table.axes) for table in item.tables)


def _answers(
    estimate: Values, std_error: Values | None = None, half_width: Values | None = None
) -> Answers:
    relative = None if std_error is None else relative_errors(estimate, std_error)
    return Answers(estimate, std_error, half_width, relative)


def _extra_type(name: str) -> pa.DataType:
    return pa.int64() if name in INTEGER_COLUMNS else pa.float64()


def _joined(parts: Sequence[Values]) -> Values:
    """Return the parts end to end; a single one as it is, which may be a view of one number."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _part(values: Floats | Ints | None, segment: Segment) -> pa.Array:
    """Return some rows of an extra column; nulls where the table has no such values."""
    if values is None:
        return pa.nulls(segment.stop - segment.start)
    part = values[segment.start : segment.stop]
    return pa.array(part, from_pandas=True)  # nan is null


def _batches_of(sizes: Sequence[int], rows: int) -> Iterator[list[Segment]]:
    """Cut tables, one after the other, into lists of segments of `rows` rows in all."""
    batch: list[Segment] = []
    room = rows
    for table, size in enumerate(sizes):
        start = 0
        while start < size:
            stop = min(size, start + room)
            batch.append(Segment(table, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield batch
                batch, room = [], rows
    if batch:
        yield batch


ERROR_NAMES = ("std_error", "half_width", "ci_low", "ci_high", "rel_error")
_ANSWERED = frozenset({"estimate", "flag", *ERROR_NAMES})
_VALUES = ("estimate", "std_error", "ci_low", "ci_high", "rel_error", "flag")


def _answer_column(name: str, answers: Answers) -> pa.Array:
    """Return one of _ANSWERED; where errors are not known, their columns are empty."""
    estimate, std_error, half_width, relative, stated = answers
    if name == "estimate":
        return pa.array(estimate)
    if std_error is None or half_width is None or relative is None:
        if name != "flag":
            return pa.nulls(len(estimate), pa.float64())
        return encoded(np.zeros(len(estimate), dtype=int32), pa.array([NO_ERROR_BARS]))
    match name:
        case "std_error":
            return pa.array(np.ascontiguousarray(std_error))
        case "half_width":
            return pa.array(np.ascontiguousarray(half_width))
        case "ci_low":
            return pa.array(estimate - half_width)
        case "ci_high":
            return pa.array(estimate + half_width)
        case "rel_error":
            return masked(relative, (estimate == 0) | np.isinf(relative))
        case _ if stated is None:
            return encoded(flags(relative), pa.array(FLAGS))
        case _:  # `stated` is a place in FACT_FLAGS from 1, or 0
            places = np.where(stated > 0, len(FLAGS) - 1 + stated, flags(relative)).astype(int32)
            return encoded(places, pa.array([*FLAGS, *FACT_FLAGS]))


def _attribute_arrays(
    item: Item,
    attributes: Mapping[int, tuple[ShownColumn, ...]],
    segments: Sequence[Segment],
    blank: BlankColumns,
) -> list[pa.Array]:
    """Return the columns of attributes, by index in domain order, of the rows of some segments."""
    total = sum(segment.stop - segment.start for segment in segments)
    present = {i for segment in segments for i in item.tables[segment.table].attributes}
    filling = {i: [FilledColumn(column, total) for column in attributes[i]] for i in present}
    begin = 0
    for place, start, stop in segments:
        table = item.tables[place]
        length = table.size
        runs = []
        for i, predicates in table.axes:
            length //= len(predicates)
            runs.append((i, predicates, length))
        runs += [(i, predicates, table.size) for i, predicates in table.where]
        for i, predicates, length in runs:
            for column in filling[i]:
                column.fill(predicates, LabelRuns(begin, start, stop, length))
        begin += stop - start
    return [
        array
        for i, columns in attributes.items()
        for array in (
            [column.array() for column in filling[i]]
            if i in present
            else [blank.array(column, total) for column in columns]
        )
    ]


def layout(
    item: Item,
    domain: Domain,
    *,
    error_bars: bool = True,
    extra: Sequence[str] = (),
    rules: ColumnRules = FIRST_RULES,
) -> ItemRows:
    """Return how an item's file is laid out."""
    used = sorted({index for table in item.tables for index in table.attributes})
    columns = {
        index: attribute_columns(domain.attributes[index], item, index=index, rules=rules)
        for index in used
    }
    counted = with_thresholds(item)
    several = counted or len(item.tables) > 1
    labels = ["table"] * several + ["query"] * counted
    fields = answer_fields(*labels)
    for index, shown in columns.items():
        attribute = domain.attributes[index]  # the parser has kept its name apart from our columns
        labels.append(attribute.name)
        fields += [pa.field(c.name(attribute), c.type, nullable=bool(c.end)) for c in shown]
    values = answer_fields(*_VALUES, error_bars=error_bars, rules=item.publish)
    tables = tuple(table_text(table, domain) for table in item.tables) if several else ()
    queries = tuple(query_text(table) for table in item.tables) if counted else ()

    def row_columns(rows: int) -> Callable[[Sequence[Segment]], list[pa.Array]]:
        blank = BlankColumns(rows)
        return lambda segments: [
            *(_by_table(texts, segments) for texts in (tables, queries) if texts),
            *_attribute_arrays(item, columns, segments, blank),
        ]

    return ItemRows(
        item=item,
        labels=tuple(labels),
        schema=pa.schema([*fields, *values]),
        row_columns=row_columns,
        error_bars=error_bars,
        extra=tuple(extra),
    )


def _by_table(texts: Sequence[str], segments: Sequence[Segment]) -> pa.Array:
    counts = [segment.stop - segment.start for segment in segments]
    places = np.repeat(np.arange(len(segments)), counts)
    return repeated_texts([texts[segment.table] for segment in segments], places)
