"""Items whose rows are numbered, read back with their labels and all columns.

The files come from outside: what their numbers point to is looked up within bounds.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpquery.arrays import Ints
from dpquery.limits import MAX_TABLE_QUERIES
from dpquery.releases.manifest_facts import ItemFacts
from dpquery.releases.tables.item_table import FLAGS, NO_ERROR_BARS, flags, relative_errors
from dpquery.releases.tables.labels import encoded, masked
from dpquery.releases.tables.long_table import (
    AXES_SCHEMA,
    BELOW,
    EDGES_SCHEMA,
    LABELS_SCHEMA,
    NUMBERED,
    with_levels,
)
from dpquery.untrusted.parquet import opened

_ENDS = (("from_number", "to_number"), ("from_date", "to_date"))
_OWN = {*NUMBERED, "estimate", "std_error", "half_width"}
Names = Mapping[str, Mapping[str, str]]
"""How values are called where that is not their label in the files, by column."""


def labelled_tables(directory: Path, facts: ItemFacts, name: str) -> pa.Table | None:
    """Return the rows of the tables of one name, as an item of few tables has them.

    Labels are texts here, also of whole numbers and dates, whose `_from` and `_to` are numbers and
    days.

    Returns:
        The tables, one after the other; None where there is none of that name.

    Raises:
        UNREADABLE: a file is missing or damaged.
    """
    axes = _content(directory / facts.tables_file, AXES_SCHEMA)
    axes = axes.filter(pc.equal(axes["name"].cast(pa.string()), name))
    if not axes.num_rows:
        return None
    lists = _label_lists(directory / facts.labels_file, axes["labels"])
    with opened(directory / facts.file, rows=facts.queries) as file:
        starts = sorted({*axes["first"].to_pylist()})
        tables = [
            _labelled_rows(file, axes.filter(pc.equal(axes["first"], first)).to_pylist(), lists)
            for first in starts
        ]
    return pa.concat_tables(tables, promote_options="default")


def labelled_rows(directory: Path, facts: ItemFacts, rows: Ints, names: Names) -> pa.Table:
    """Return some rows of an item with what each counts in one column of words, `cell`.

    Raises:
        UNREADABLE: a file is missing or damaged.
    """
    with opened(directory / facts.file, rows=facts.queries) as file:
        content = some_rows(file, rows)
    axes = _content(directory / facts.tables_file, AXES_SCHEMA)
    axes = axes.filter(pc.is_in(axes["table"], pc.unique(content["table"])))
    lists = _label_lists(directory / facts.labels_file, axes["labels"])
    axes_of: dict[int, list[dict[str, int | str | None]]] = {}
    for axis in axes.to_pylist():
        axes_of.setdefault(axis["table"], []).append(axis)
    cells = []
    for table, cell in zip(content["table"].to_pylist(), content["cell"].to_pylist(), strict=True):
        query = axes_of[table][0]["query"]
        words = [str(query)] if query else []
        for axis in axes_of[table]:
            if axis["attribute"] is not None:
                place = (
                    _whole(cell) // max(_whole(axis["stride"]), 1) % max(_whole(axis["size"]), 1)
                )
                attribute, labels = str(axis["attribute"]), lists[_whole(axis["labels"])]["label"]
                label = labels[place].as_py()
                words.append(f"{attribute} {names.get(attribute, {}).get(label, label)}")
        cells.append(", ".join(words) or "total")
    return pa.table({"cell": pa.array(cells, pa.string()), **_answers(content)})


def _content(path: Path, *schemas: pa.Schema) -> pa.Table:
    with opened(path, rows=None) as file:
        if file.schema_arrow.remove_metadata() not in schemas:
            raise ValueError("schema")
        return file.read()


def _label_lists(path: Path, numbers: pa.ChunkedArray) -> dict[int, pa.Table]:
    schemas = (LABELS_SCHEMA, EDGES_SCHEMA)
    labels = _content(path, *schemas, *map(with_levels, schemas))
    lists = {}
    for number in pc.unique(numbers.drop_null()).to_pylist():
        lists[number] = labels.filter(pc.equal(labels["labels"], number))
        if lists[number]["place"].to_pylist() != list(range(lists[number].num_rows)):
            raise ValueError("places")
    return lists


def _labelled_rows(
    file: pq.ParquetFile, axes: list[dict[str, int | str | None]], lists: Mapping[int, pa.Table]
) -> pa.Table:
    """Return one table, given the rows that describe its axes."""
    sizes = [_whole(axis["size"]) for axis in axes]
    cells = math.prod(sizes)
    if not 0 < cells <= min(MAX_TABLE_QUERIES, file.metadata.num_rows):
        raise ValueError("size")
    rows = some_rows(file, _whole(axes[0]["first"]) + np.arange(cells))
    numbers = [rows[name].combine_chunks().to_numpy() for name in NUMBERED]
    if set(numbers[0].tolist()) != {axes[0]["table"]} or not np.array_equal(
        numbers[1], np.arange(cells)
    ):
        raise ValueError("rows")
    columns: dict[str, pa.Array] = {"table": pa.array([axes[0]["name"]] * cells, pa.string())}
    if axes[0]["query"]:
        columns["query"] = pa.array([axes[0]["query"]] * cells, pa.string())
    for axis, size in zip(axes, sizes, strict=True):
        if axis["attribute"] is not None:
            places = numbers[1] // _whole(axis["stride"]) % size
            content = lists[_whole(axis["labels"])]
            columns |= _attribute_columns(str(axis["attribute"]), places, content)
    columns |= _answers(rows)
    return pa.table(columns | {k: rows[k] for k in rows.column_names if k not in _OWN})


def some_rows(file: pq.ParquetFile, rows: Ints, columns: Sequence[str] | None = None) -> pa.Table:
    """Return rows of rising numbers, reading no more than the row groups that hold them."""
    parts, first = [], 0
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        inside = rows[(rows >= first) & (rows < first + size)] - first
        if len(inside):
            parts.append(file.read_row_group(group, columns=columns).take(pa.array(inside)))
        first += size
    if sum(part.num_rows for part in parts) != len(rows):
        raise ValueError("rows")
    return pa.concat_tables(parts)


def _attribute_columns(
    attribute: str, places: Ints, labels: pa.Table
) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns that show an attribute: labels, and codes, levels and ends if any."""
    taken = labels.take(pa.array(places))
    yield attribute, taken["label"]
    if labels["code"].null_count < labels.num_rows:
        yield f"{attribute}_code", taken["code"]
    if "level" in labels.column_names and labels["level"].null_count < labels.num_rows:
        yield f"{attribute}_level", taken["level"]
    binned = BELOW.name in labels.column_names and labels[BELOW.name].null_count < labels.num_rows
    for low, high in _ENDS:
        if labels[low].null_count < labels.num_rows:
            yield f"{attribute}_from", taken[low]
            if binned:
                yield f"{attribute}_below", taken[BELOW.name]
            else:
                yield f"{attribute}_to", taken[high]


def _answers(rows: pa.Table) -> dict[str, pa.Array]:
    estimate = rows["estimate"].to_numpy()
    names = ("std_error", "ci_low", "ci_high", "rel_error")
    if rows["std_error"].null_count or rows["half_width"].null_count:
        unknown = dict.fromkeys(names, pa.nulls(len(estimate), pa.float64()))
        flag = encoded(np.zeros(len(estimate), dtype=np.int32), pa.array([NO_ERROR_BARS]))
        return {"estimate": rows["estimate"], **unknown, "flag": flag}
    std_error, half = rows["std_error"].to_numpy(), rows["half_width"].to_numpy()
    relative = relative_errors(estimate, std_error)
    values = (
        rows["std_error"],
        pa.array(estimate - half),
        pa.array(estimate + half),
        masked(relative, (estimate == 0) | np.isinf(relative)),
    )
    flag = encoded(flags(relative), pa.array(FLAGS))
    return {"estimate": rows["estimate"], **dict(zip(names, values, strict=True)), "flag": flag}


def _whole(value: int | str | None) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("number")
    return value
