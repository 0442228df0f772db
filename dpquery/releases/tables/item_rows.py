"""The rows of one item's file, in batches of bounded size, whatever its columns are.

Rows come in domain order: tables in spec order, and in each the C-order product of its axes'
queries. Every query has a row whatever its answer, so neither the number of rows nor their order
says anything about the data.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dpquery.arrays import Floats, Ints
from dpquery.reconstruction.table_answers import TableAnswers
from dpquery.releases.tables.errors import relative_errors
from dpquery.releases.tables.publication import PUBLICATION_FIELDS, publication_arrays
from dpquery.spec.domain import Domain
from dpquery.spec.model import Item, Table

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
class ItemRows(ABC):
    """The rows and columns of one item's file.

    Attributes:
        item: the item.
        schema: of the file but for its extra columns.
        error_bars: whether the answers have standard errors; else those columns are null.
        labels: names of the columns that say what a row is, in file order; without codes and the
            ends of ranges, which say it again.
        extra: names of the extra columns, in order.
        numbers: names of the columns that count rows.
    """

    item: Item
    schema: pa.Schema
    labels: tuple[str, ...]
    error_bars: bool = True
    extra: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    @abstractmethod
    def row_columns(self, rows: int) -> Callable[[Sequence[Segment]], list[pa.Array]]:
        """Return what gives the columns that say what rows are, of at most so many at a time."""

    @abstractmethod
    def answer_columns(self, answers: Answers) -> list[pa.Array]:
        """Return the columns of the answers."""

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
            arrays = [*columns_of(segments), *self.answer_columns(joined)]
            if self.item.publish is not None:
                rules = self.item.publish
                arrays += publication_arrays(rules, joined.estimate, joined.relative)
            arrays += self._extra_columns(extra)
            batch = pa.RecordBatch.from_arrays(arrays, schema=self.whole_schema)
            yield Batch(batch, joined.std_error, joined.relative)

    def _extra_columns(self, values: Sequence[Sequence[pa.Array]]) -> list[pa.Array]:
        """Return the extra columns, given for each segment."""
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


def with_publication(item: Item, fields: Sequence[pa.Field]) -> list[pa.Field]:
    """Return the columns of answers with those of what an item's rules publish, if it has any."""
    return [*fields, *(PUBLICATION_FIELDS if item.publish is not None else ())]


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
    return pa.array(values[segment.start : segment.stop])


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
