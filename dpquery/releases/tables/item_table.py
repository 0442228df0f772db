"""The file of one workload item: its columns, and its rows in batches of bounded size.

Rows come in domain order: tables in spec order, and in each the C-order product of its axes'
queries. Every query has a row whatever its answer, so neither the number of rows nor their order
says anything about the data.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy import int32

from dpquery.arrays import Floats, Ints
from dpquery.reconstruction.table_answers import TableAnswers
from dpquery.releases.tables.errors import FLAGS, NO_ERROR_BARS, flags, relative_errors
from dpquery.releases.tables.label_columns import (
    BlankColumns,
    FilledColumns,
    LabelRuns,
    encoded,
    masked,
)
from dpquery.releases.tables.labels import LABEL, AttributeColumns, attribute_columns
from dpquery.releases.tables.publication import PUBLICATION_FIELDS, publication_arrays
from dpquery.spec.domain import Domain
from dpquery.spec.model import Item, Table

BATCH_ROWS = 1 << 18
INTEGER_COLUMNS = frozenset({"integer"})
"""Extra columns of whole numbers."""

_VALUES = [
    pa.field("estimate", pa.float64(), nullable=False),
    pa.field("std_error", pa.float64(), nullable=False),
    pa.field("ci_low", pa.float64(), nullable=False),
    pa.field("ci_high", pa.float64(), nullable=False),
    pa.field("rel_error", pa.float64()),
    pa.field("flag", LABEL, nullable=False),
]
_WITHOUT_ERRORS = [field.with_nullable(field.name not in ("estimate", "flag")) for field in _VALUES]

Values = Floats


class Batch(NamedTuple):
    """Some rows of an item's file, with the errors in them that the summary needs, if known."""

    rows: pa.RecordBatch
    std_error: Values | None
    relative: Values | None


class _Segment(NamedTuple):
    """Rows start..stop-1 of one table."""

    table: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Layout:
    """The rows and columns of one item's file.

    Attributes:
        item: the item.
        attributes: its columns for each attribute index that it uses, in domain order.
        labels: names of the columns that say what a row is, in file order; without codes and the
            ends of ranges, which say it again.
        schema: of the file but for its extra columns.
        tables: text of each table's `table` column; empty where there is no such column.
        queries: text of each table's `query` column; empty where there is no such column.
        error_bars: whether the answers have standard errors; else those columns are null.
        extra: names of the extra columns, in order.
    """

    item: Item
    attributes: Mapping[int, AttributeColumns]
    labels: tuple[str, ...]
    schema: pa.Schema
    tables: tuple[str, ...]
    queries: tuple[str, ...]
    error_bars: bool = True
    extra: tuple[str, ...] = ()

    @property
    def whole_schema(self) -> pa.Schema:
        """The schema of the file; extra columns come last, null where a table has no values."""
        added = [pa.field(name, _extra_type(name)) for name in self.extra]
        return pa.schema([*self.schema, *added])

    def batches(
        self, answers: Iterator[TableAnswers], *, rows: int = BATCH_ROWS
    ) -> Iterator[Batch]:
        """Yield the whole file in batches of at most `rows` rows; memory O(one table + a batch).

        Args:
            answers: of the item's tables, in order.
            rows: of a batch; the file differs in nothing but its row groups.

        Raises:
            ValueError: the answers are not those of the item's tables.
        """
        place, current, blank = -1, None, BlankColumns(min(rows, self.item.size))
        for segments in _batches_of([table.size for table in self.item.tables], rows):
            pieces: list[list[Values]] = []
            extra = []
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
            batch = self._batch(segments, blank, *map(_joined, zip(*pieces, strict=True)))
            yield self._extended(batch, extra) if self.extra else batch

    def _extended(self, batch: Batch, extra: Sequence[Sequence[pa.Array]]) -> Batch:
        """Add the extra columns, given for each segment, to a batch."""
        types = [_extra_type(name) for name in self.extra]
        columns = zip(types, *extra, strict=True)
        added = [pa.concat_arrays([part.cast(kind) for part in parts]) for kind, *parts in columns]
        arrays = [*batch.rows.columns, *added]
        return batch._replace(rows=pa.RecordBatch.from_arrays(arrays, schema=self.whole_schema))

    def _batch(
        self,
        segments: Sequence[_Segment],
        blank: BlankColumns,
        estimate: Values,
        std_error: Values | None = None,
        half_width: Values | None = None,
    ) -> Batch:
        arrays = [
            *(_by_table(texts, segments) for texts in (self.tables, self.queries) if texts),
            *self._attribute_arrays(segments, blank),
            pa.array(estimate),
        ]
        relative = None
        if std_error is None or half_width is None:
            unknown = pa.nulls(len(estimate), pa.float64())
            flagged = encoded(np.zeros(len(estimate), dtype=int32), pa.array([NO_ERROR_BARS]))
            arrays += [unknown, unknown, unknown, unknown, flagged]
        else:
            relative = relative_errors(estimate, std_error)
            arrays += [
                pa.array(np.ascontiguousarray(std_error)),
                *(pa.array(v) for v in (estimate - half_width, estimate + half_width)),
                masked(relative, (estimate == 0) | np.isinf(relative)),
                encoded(flags(relative), pa.array(FLAGS)),
            ]
        if self.item.publish is not None:
            arrays += publication_arrays(self.item.publish, estimate, relative)
        return Batch(pa.RecordBatch.from_arrays(arrays, schema=self.schema), std_error, relative)

    def _attribute_arrays(
        self, segments: Sequence[_Segment], blank: BlankColumns
    ) -> list[pa.Array]:
        total = sum(segment.stop - segment.start for segment in segments)
        present = {i for segment in segments for i in self.item.tables[segment.table].attributes}
        filling = {i: FilledColumns(self.attributes[i], total) for i in sorted(present)}
        begin = 0
        for place, start, stop in segments:
            table = self.item.tables[place]
            length = table.size
            for i, predicates in table.axes:
                length //= len(predicates)
                filling[i].fill(predicates, LabelRuns(begin, start, stop, length))
            for i, predicates in table.where:
                filling[i].fill(predicates, LabelRuns(begin, start, stop, table.size))
            begin += stop - start
        columns = self.attributes.items()
        filled = [
            filling[i].arrays() if i in present else blank.arrays(c, total) for i, c in columns
        ]
        return [array for arrays in filled for array in arrays]


def layout(
    item: Item, domain: Domain, *, error_bars: bool = True, extra: Sequence[str] = ()
) -> Layout:
    """Return how an item's file is laid out.

    Args:
        item: the item.
        domain: of the spec.
        error_bars: whether its answers have standard errors.
        extra: names of its extra columns, in order.
    """
    used = sorted({index for table in item.tables for index in table.attributes})
    columns = {
        index: attribute_columns(domain.attributes[index], item, index=index) for index in used
    }
    counted = any(table.threshold < len(table.axes) for table in item.tables)
    several = counted or len(item.tables) > 1
    labels = ["table"] * several + ["query"] * counted
    fields = [pa.field(name, LABEL, nullable=False) for name in labels]
    for index, shown in columns.items():
        name = domain.attributes[index].name  # the parser has kept it apart from our columns
        labels.append(name)
        fields.append(pa.field(name, shown.type, nullable=False))
        if shown.codes is not None:
            fields.append(pa.field(f"{name}_code", LABEL))
        if shown.ends is not None:
            fields += [pa.field(f"{name}_from", shown.ends), pa.field(f"{name}_to", shown.ends)]
    values = _VALUES if error_bars else _WITHOUT_ERRORS
    if item.publish is not None:
        values = [*values, *PUBLICATION_FIELDS]
    return Layout(
        item=item,
        attributes=columns,
        labels=tuple(labels),
        schema=pa.schema([*fields, *values]),
        tables=tuple(_table_text(table, domain) for table in item.tables) if several else (),
        queries=tuple(_query_text(table) for table in item.tables) if counted else (),
        error_bars=error_bars,
        extra=tuple(extra),
    )


def _extra_type(name: str) -> pa.DataType:
    return pa.int64() if name in INTEGER_COLUMNS else pa.float64()


def _joined(parts: Sequence[Values]) -> Values:
    """Return the parts end to end; a single one as it is, which may be a view of one number."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _by_table(texts: Sequence[str], segments: Sequence[_Segment]) -> pa.Array:
    """Return a column with one text in all rows of a table."""
    text_of_segment = [texts[segment.table] for segment in segments]
    places = {text: place for place, text in enumerate(dict.fromkeys(text_of_segment))}
    counts = [segment.stop - segment.start for segment in segments]
    numbers = np.array([places[text] for text in text_of_segment], dtype=int32)
    return encoded(np.repeat(numbers, counts), pa.array(list(places), pa.string()))


def _part(values: Floats | Ints | None, segment: _Segment) -> pa.Array:
    """Return some rows of an extra column; nulls where the table has no such values."""
    if values is None:
        return pa.nulls(segment.stop - segment.start)
    return pa.array(values[segment.start : segment.stop])


def _batches_of(sizes: Sequence[int], rows: int) -> Iterator[list[_Segment]]:
    """Cut tables, one after the other, into lists of segments of `rows` rows in all."""
    batch: list[_Segment] = []
    room = rows
    for table, size in enumerate(sizes):
        start = 0
        while start < size:
            stop = min(size, start + room)
            batch.append(_Segment(table, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield batch
                batch, room = [], rows
    if batch:
        yield batch


def _table_text(table: Table, domain: Domain) -> str:
    return ", ".join(domain.attributes[index].name for index, _ in table.axes) or "total"


def _query_text(table: Table) -> str:
    if table.threshold >= len(table.axes):
        return "all of"
    return "any of" if table.threshold == 1 else f"{table.threshold} of {len(table.axes)}"
