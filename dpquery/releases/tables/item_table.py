"""The file of one workload item with columns of labels: a row says in words what it counts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy import int32

from dpquery.arrays import Floats, Ints
from dpquery.releases.tables.errors import (
    FACT_FLAGS,
    FLAGS,
    NO_ERROR_BARS,
    fact_flags,
    flags,
)
from dpquery.releases.tables.item_rows import (
    Answers,
    ItemRows,
    Segment,
    query_text,
    table_text,
    with_publication,
    with_thresholds,
)
from dpquery.releases.tables.label_columns import (
    BlankColumns,
    FilledColumns,
    LabelRuns,
    encoded,
    masked,
)
from dpquery.releases.tables.labels import (
    FIRST_RULES,
    LABEL,
    AttributeColumns,
    ColumnRules,
    attribute_columns,
)
from dpquery.spec.domain import Domain
from dpquery.spec.model import Item

_VALUES = [
    pa.field("estimate", pa.float64(), nullable=False),
    pa.field("std_error", pa.float64(), nullable=False),
    pa.field("ci_low", pa.float64(), nullable=False),
    pa.field("ci_high", pa.float64(), nullable=False),
    pa.field("rel_error", pa.float64()),
    pa.field("flag", LABEL, nullable=False),
]
_WITHOUT_ERRORS = [field.with_nullable(field.name not in ("estimate", "flag")) for field in _VALUES]


@dataclass(frozen=True, eq=False, kw_only=True)
class Layout(ItemRows):
    """The rows and columns of one item's file.

    Attributes:
        attributes: its columns for each attribute index that it uses, in domain order.
        tables: text of each table's `table` column; empty where there is no such column.
        queries: text of each table's `query` column; empty where there is no such column.
    """

    attributes: Mapping[int, AttributeColumns]
    tables: tuple[str, ...]
    queries: tuple[str, ...]

    def row_columns(self, rows: int) -> Callable[[Sequence[Segment]], list[pa.Array]]:
        """Return what gives the texts and labels of rows, of at most so many at a time."""
        blank = BlankColumns(rows)
        return lambda segments: [
            *(_by_table(texts, segments) for texts in (self.tables, self.queries) if texts),
            *self._attribute_arrays(segments, blank),
        ]

    def answer_columns(self, answers: Answers) -> list[pa.Array]:
        """Return the answers with their errors, intervals and flags."""
        estimate, std_error, half_width, relative, stated = answers
        if std_error is None or half_width is None or relative is None:
            unknown = pa.nulls(len(estimate), pa.float64())
            flagged = encoded(np.zeros(len(estimate), dtype=int32), pa.array([NO_ERROR_BARS]))
            return [pa.array(estimate), unknown, unknown, unknown, unknown, flagged]
        return [
            pa.array(estimate),
            pa.array(np.ascontiguousarray(std_error)),
            *(pa.array(v) for v in (estimate - half_width, estimate + half_width)),
            masked(relative, (estimate == 0) | np.isinf(relative)),
            _flag_array(relative, stated),
        ]

    def _attribute_arrays(self, segments: Sequence[Segment], blank: BlankColumns) -> list[pa.Array]:
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
    item: Item,
    domain: Domain,
    *,
    error_bars: bool = True,
    extra: Sequence[str] = (),
    rules: ColumnRules = FIRST_RULES,
) -> Layout:
    """Return how an item's file is laid out.

    Args:
        item: the item.
        domain: of the spec.
        error_bars: whether its answers have standard errors.
        extra: names of its extra columns, in order.
        rules: how the columns of attributes are made.
    """
    used = sorted({index for table in item.tables for index in table.attributes})
    columns = {
        index: attribute_columns(domain.attributes[index], item, index=index, rules=rules)
        for index in used
    }
    counted = with_thresholds(item)
    several = counted or len(item.tables) > 1
    labels = ["table"] * several + ["query"] * counted
    fields = [pa.field(name, LABEL, nullable=False) for name in labels]
    for index, shown in columns.items():
        name = domain.attributes[index].name  # the parser has kept it apart from our columns
        labels.append(name)
        fields.append(pa.field(name, shown.type, nullable=False))
        if shown.codes is not None:
            fields.append(pa.field(f"{name}_code", LABEL))
        if shown.levels is not None:
            fields.append(pa.field(f"{name}_level", LABEL))
        if shown.ends is not None:
            upper = rules.upper(domain.attributes[index])
            fields += [pa.field(f"{name}_{end}", shown.ends) for end in ("from", upper)]
    values = _VALUES if error_bars else _WITHOUT_ERRORS
    return Layout(
        item=item,
        attributes=columns,
        labels=tuple(labels),
        schema=pa.schema([*fields, *with_publication(item, values)]),
        tables=tuple(table_text(table, domain) for table in item.tables) if several else (),
        queries=tuple(query_text(table) for table in item.tables) if counted else (),
        error_bars=error_bars,
        extra=tuple(extra),
    )


def _flag_array(relative: Floats, stated: Ints | None) -> pa.Array:
    if stated is None:
        return encoded(flags(relative), pa.array(FLAGS))
    return encoded(fact_flags(relative, stated), pa.array([*FLAGS, *FACT_FLAGS]))


def _by_table(texts: Sequence[str], segments: Sequence[Segment]) -> pa.Array:
    """Return a column with one text in all rows of a table."""
    text_of_segment = [texts[segment.table] for segment in segments]
    places = {text: place for place, text in enumerate(dict.fromkeys(text_of_segment))}
    counts = [segment.stop - segment.start for segment in segments]
    numbers = np.array([places[text] for text in text_of_segment], dtype=int32)
    return encoded(np.repeat(numbers, counts), pa.array(list(places), pa.string()))
