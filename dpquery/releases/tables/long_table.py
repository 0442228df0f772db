"""Items of very many tables, and derived items, as rows.

Where an item has more tables than MAX_LABELLED_TABLES, columns that say for every row what it
counts would be most of its file: one for every attribute of the item, of which a table has two or
three. Its rows are numbered instead, by table and by cell, and two small files say what the
numbers mean: which attributes each table has, and how the values of each are called.

The cells of a table are the C-order product of its axes' queries: that on an axis is the
(cell // stride) % size-th of its list of labels.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy import int32, int64

from dpquery.arrays import Floats, Ints
from dpquery.reconstruction.derived import DerivedRows
from dpquery.reconstruction.merging import Merging, rows_along
from dpquery.releases.tables.file_columns import AXES, LABEL, LABELS, schema_of
from dpquery.releases.tables.item_table import (
    FLAGS,
    ItemRows,
    Segment,
    answer_fields,
    flags,
    layout,
    publication_arrays,
    query_text,
    relative_errors,
    table_text,
    with_thresholds,
)
from dpquery.releases.tables.labels import (
    FIRST_RULES,
    ColumnRules,
    attribute_columns,
    encoded,
    label_columns,
    masked,
    repeated_texts,
)
from dpquery.spec.columns import Attribute, Dates, Domain, HierarchyLevel
from dpquery.spec.predicates import NO_RANGE, PredicateSet
from dpquery.spec.spec import DerivedItem, Item, MergedRows, Quantiles, Table

NUMBERED = ("table", "cell")
"""The columns that say what a row is."""
AXES_SCHEMA = schema_of(AXES.values())
BELOW, _LEVEL = LABELS["below_number"].field, LABELS["level"].field
EDGES_SCHEMA = schema_of(column for name, column in LABELS.items() if name != "level")
LABELS_SCHEMA = pa.schema([field for field in EDGES_SCHEMA if field.name != BELOW.name])
"""Columns of `<item>.labels.parquet` where the upper edge of bins has none of its own."""


def with_levels(schema: pa.Schema) -> pa.Schema:
    """Return the columns of labels where attributes of the item have a hierarchy."""
    return schema.append(_LEVEL)


def long_layout(item: Item, *, error_bars: bool = True, extra: Sequence[str] = ()) -> ItemRows:
    """Return how the answers of an item of very many tables are laid out."""
    names = ("cell", "estimate", "std_error", "half_width")
    fields = answer_fields(*names, error_bars=error_bars, rules=item.publish)
    return ItemRows(
        item=item,
        schema=pa.schema([AXES["table"].field, *fields]),
        labels=NUMBERED,
        row_columns=lambda _: _numbers,
        numbers=NUMBERED,
        error_bars=error_bars,
        extra=tuple(extra),
    )


def axes_table(item: Item, domain: Domain) -> pa.Table:
    """Return `<item>.tables.parquet`: the attributes of every table, in order.

    A table without any attribute has one row too.
    """
    numbers, first = label_lists(item), 0
    rows: list[tuple[int, ...]] = []
    for k, table in enumerate(item.tables):
        rows += [(k, first, *axis) for axis in _axes(table, numbers)]
        first += table.size
    table_of, first_of, attribute, labels, size, stride = np.array(rows, dtype=int64).T
    counted = with_thresholds(item)
    return pa.Table.from_arrays(
        [
            pa.array(table_of.astype(int32)),
            repeated_texts([table_text(table, domain) for table in item.tables], table_of),
            repeated_texts(
                [query_text(table) if counted else "" for table in item.tables], table_of
            ),
            pa.array(first_of),
            repeated_texts([attribute.name for attribute in domain.attributes], attribute),
            masked(labels.astype(int32), labels == NO_RANGE),
            pa.array(size),
            pa.array(stride),
        ],
        schema=AXES_SCHEMA,
    )


def labels_table(item: Item, domain: Domain, *, rules: ColumnRules = FIRST_RULES) -> pa.Table:
    """Return `<item>.labels.parquet`: the queries on each attribute, in words.

    Where an attribute has such, also by codes, by levels and by the ends of ranges.
    """
    lists = label_lists(item)
    by_level = any(domain.attributes[index].levels for index, _ in lists)
    schema = EDGES_SCHEMA if rules.below else LABELS_SCHEMA
    schema = with_levels(schema) if by_level else schema
    batches = [
        _label_list(number, domain.attributes[index], predicates, schema, rules)
        for (index, predicates), number in lists.items()
    ]
    return pa.Table.from_batches(batches, schema).combine_chunks()


def label_lists(item: Item) -> dict[tuple[int, PredicateSet], int]:
    """Return the number of each list of labels: of an attribute's index and what is asked of it."""
    numbers: dict[tuple[int, PredicateSet], int] = {}
    for table in item.tables:
        for axis in (*table.axes, *table.where):
            numbers.setdefault(axis, len(numbers))
    return numbers


def _label_list(
    number: int,
    attribute: Attribute,
    predicates: PredicateSet,
    schema: pa.Schema,
    rules: ColumnRules,
) -> pa.RecordBatch:
    rows = len(predicates)
    columns = {c.end: c for c in label_columns(attribute, [predicates], absent=False, rules=rules)}

    def filled(end: str, field: str) -> pa.Array:
        kind = schema.field(field).type
        column = columns.get(end)
        if column is None or pa.types.is_date32(column.type) != pa.types.is_date32(kind):
            return pa.nulls(rows, kind)
        known = np.ones(rows, dtype=bool) if column.known is None else column.known[predicates]
        return column.array(column.values[predicates], ~known).cast(kind)

    arrays = [pa.array(np.full(rows, number, dtype=int32)), pa.array(np.arange(rows, dtype=int64))]
    for field in schema.names[len(arrays) :]:
        end = "" if field == "label" else field.partition("_")[0]
        arrays.append(filled(end, field))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _axes(
    table: Table, numbers: dict[tuple[int, PredicateSet], int]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield attribute, list of labels, size and stride of a table's axes, then of its conditions.

    A table without any has one row, of no attribute.
    """
    if not table.attributes:
        yield (NO_RANGE, NO_RANGE, 1, 1)
    stride = table.size
    for i, predicates in table.axes:
        stride //= len(predicates)
        yield (i, numbers[i, predicates], len(predicates), stride)
    for i, predicates in table.where:
        yield (i, numbers[i, predicates], 1, 1)


def _numbers(segments: Sequence[Segment]) -> list[pa.Array]:
    """Return the numbers of table and cell of the rows of some segments."""
    table, start, stop = np.array(segments, dtype=int64).T
    lengths = stop - start
    begin = np.cumsum(lengths) - lengths
    cells: Ints = np.arange(int(lengths.sum()), dtype=int64)
    cells += np.repeat(start - begin, lengths)
    return [pa.array(np.repeat(table.astype(int32), lengths)), pa.array(cells)]


LOST = "lost in noise"
"""The flag of a row without an estimate, of which the column `reason` says why."""
_MERGED = "merged"
"""The column of merged rows, and of their map, that says which values are added up."""
_FIGURES = ("estimate", "std_error", "ci_low", "ci_high")


class DerivedTable(NamedTuple):
    """What is written of a derived item."""

    rows: pa.Table
    map: pa.Table | None = None  # of merged rows: which of them every value is in
    merged: float | None = None  # the share of the item's rows that are added up with others
    missed: float | None = None  # the share of merged rows that are less precise than was asked
    no_more: bool = False  # whether some of these were known to be so beforehand
    own_sizes: bool = False  # whether the sizes of merged rows were the release's own answers


def derived_table(
    item: DerivedItem, figures: DerivedRows, domain: Domain, rules: ColumnRules
) -> DerivedTable:
    """Return the rows of a derived item: labels, `quantile` of quantiles, figures, flag, reason.

    Of merged rows the last columns say how many each adds up, and what that is called in the map.
    """
    statistic, merging = item.statistic, figures.merging
    rows, dates = statistic.rows if merging is None else merging.rows, None
    of_rows = Item(item.name, (rows,))
    labelled = layout(of_rows, domain, error_bars=True, rules=rules)
    arrays = labelled.row_columns(rows.size)([Segment(0, 0, rows.size)])
    fields = [labelled.schema.field(k) for k in range(len(arrays))]
    if isinstance(statistic, Quantiles):
        several = len(statistic.probabilities)
        of_group = pa.array(np.repeat(np.arange(rows.size), several))
        arrays = [array.take(of_group) for array in arrays]
        arrays.append(pa.array(np.tile(statistic.probabilities, rows.size)))
        fields.append(pa.field("quantile", pa.float64(), nullable=False))
        kind = domain.attributes[statistic.attribute].columns[0].kind
        dates = kind if isinstance(kind, Dates) else None
    said = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    if merging is not None:
        arrays = [array.take(pa.array(merging.places)) for array in arrays]
    values = (figures.estimate, figures.std_error, figures.low, figures.high)
    for name, column in zip(_FIGURES, values, strict=True):
        as_days = dates if name != "std_error" else None
        arrays.append(_figures(column, as_days))
        fields.append(pa.field(name, arrays[-1].type))
    relative = relative_errors(figures.estimate, figures.std_error)
    if merging is not None:
        arrays.append(_figures(np.where(np.isfinite(relative), relative, np.nan), None))
        fields.append(pa.field("rel_error", arrays[-1].type))
    if figures.sample is not None:
        for name, column in figures.sample._asdict().items():
            arrays.append(_figures(column, None))
            fields.append(pa.field(name, arrays[-1].type))
    places = masked(np.zeros(len(figures.lost), dtype=np.int32), ~figures.lost)
    arrays += [_flags(figures), pa.DictionaryArray.from_arrays(places, pa.array([figures.reason]))]
    fields += [pa.field("flag", LABEL, nullable=False), pa.field("reason", LABEL)]
    if merging is None or not isinstance(statistic, MergedRows):
        return DerivedTable(pa.Table.from_arrays(arrays, schema=pa.schema(fields)))
    if statistic.publish is not None:
        arrays += publication_arrays(statistic.publish, figures.estimate, relative)
        fields += answer_fields(rules=statistic.publish)
    attribute = domain.attributes[statistic.attribute]
    columns = attribute_columns(attribute, of_rows, index=statistic.attribute, rules=rules)
    own = [shown.name(attribute) for shown in columns]
    of_sums, sums = _sums(statistic, merging, attribute)
    cells = np.array([len(added) for added in merging.of])
    arrays += [pa.array(cells), encoded(of_sums.astype(int32), pa.array(sums.codes))]
    fields += [pa.field("cells", pa.int64(), nullable=False)]
    fields += [pa.field(_MERGED, LABEL, nullable=False)]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    written = _map(attribute, sums, said.drop_columns(own), rows_along(rows, statistic.attribute))
    share = float(cells[cells > 1].sum() / cells.sum())
    missed = figures.std_error > statistic.rel_error * figures.estimate
    no_more = bool((missed & merging.missed).any())
    return DerivedTable(table, written, share, float(missed.mean()), no_more)


def _sums(
    statistic: MergedRows, merging: Merging, attribute: Attribute
) -> tuple[Ints, HierarchyLevel]:
    """Return which set of values each merged row adds up, and the sets.

    These are a level of the values of each group of rows in turn, each with a code of its own.
    """
    axis = [i for i, _ in statistic.rows.axes].index(statistic.attribute)
    predicates = merging.rows.axes[axis][1]
    labels = codes = tuple(predicates.query_labels(attribute).labels)
    if attribute.levels:
        groups = zip(labels, predicates.groups_of_levels(attribute), strict=True)
        codes = tuple(" ".join(group or (label,)) for label, group in groups)
    of_merged = np.unravel_index(merging.places, merging.rows.shape)[axis]
    added: Ints = np.empty(statistic.rows.size, dtype=np.int64)
    for query, rows in zip(of_merged, merging.of, strict=True):
        added[rows] = query
    along = rows_along(statistic.rows, statistic.attribute)[:, : attribute.length]
    return of_merged, HierarchyLevel(_MERGED, codes, labels, tuple(added[along].ravel().tolist()))


def _map(attribute: Attribute, sums: HierarchyLevel, others: pa.Table, along: Ints) -> pa.Table:
    """Return in which sum each declared value is, group of rows by group, with its levels.

    Behind stands what the others say of the rows of each group, `along` (groups, sets). The lines
    of one group are a hierarchy for another spec.
    """
    n = attribute.length
    listed = tuple(attribute.label(code) for code in range(n))
    *above, lowest = attribute.levels or (
        HierarchyLevel(attribute.name, listed, listed, tuple(range(n))),
    )
    written = dict[str, Sequence[str] | pa.Array]()
    for level in (lowest, sums, *(level for level in above if level.name != _MERGED)):
        places = np.resize(level.group_of, len(along) * n).tolist()
        written[level.name] = [level.codes[k] for k in places]
        if level.labels != level.codes:
            written[f"{level.name}_label"] = [level.labels[k] for k in places]
    for name in others.column_names:
        written[name] = others[name].take(pa.array(np.repeat(along[:, 0], n)))
    return pa.table(written)


def _figures(values: Floats, dates: Dates | None) -> pa.Array:
    """Return a column with nulls for what is not known; places of periods by their first days."""
    missing = np.isnan(values)
    if dates is None:
        return masked(values, missing)
    days = [None if np.isnan(place) else dates.start(int(place)) for place in values.tolist()]
    return pa.array(days, pa.date32())


def _flags(figures: DerivedRows) -> pa.Array:
    known = ~np.isnan(figures.std_error)
    estimate = np.where(known, figures.estimate, 1.0)
    relative = relative_errors(estimate, np.where(known, figures.std_error, 0.0))
    noisy = flags(relative)
    if figures.unsure is not None:
        noisy[figures.unsure] = len(FLAGS) - 1
    places = np.where(figures.lost, len(FLAGS), noisy).astype(np.int32)
    return encoded(places, pa.array([*FLAGS, LOST]))
