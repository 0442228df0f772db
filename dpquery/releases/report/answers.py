"""The answers of an item as pictures need them: values, labels, and which are whole.

Tables of an item whose rows are numbered, read back with their labels and all columns.

The files come from outside: what their numbers point to is looked up within bounds.

The answers of one item as arrays, read from its files within bounds: what pictures draw.

An item of very many rows is not held: of it are read the answers whose relative errors are smallest
and largest.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpquery.arrays import Bools, Floats, Ints
from dpquery.limits import MAX_TABLE_QUERIES
from dpquery.releases.manifest_facts import ItemFacts
from dpquery.releases.tables.errors import FLAGS, NO_ERROR_BARS, flags, relative_errors
from dpquery.releases.tables.labels import encoded, masked
from dpquery.releases.tables.long_table import (
    AXES_SCHEMA,
    BELOW,
    EDGES_SCHEMA,
    LABELS_SCHEMA,
    NUMBERED,
    with_levels,
)
from dpquery.untrusted.json_values import LEAST_FIGURE, MOST
from dpquery.untrusted.parquet import opened

_ENDS = (("from_number", "to_number"), ("from_date", "to_date"))
_OWN = {*NUMBERED, "estimate", "std_error", "half_width"}


def labelled_tables(directory: Path, facts: ItemFacts, name: str) -> pa.Table | None:
    """Return the rows of the tables of one name, as an item of few tables has them.

    Labels are texts here, also of whole numbers and dates, whose `_from` and `_to` are numbers and
    days.

    Args:
        directory: of the release.
        facts: of the item, whose rows are numbered.
        name: attributes joined by ", ", or "total".

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


def labelled_rows(directory: Path, facts: ItemFacts, rows: Ints) -> pa.Table:
    """Return some rows of an item with what each counts in one column of words, `cell`.

    Args:
        directory: of the release.
        facts: of the item, whose rows are numbered.
        rows: (m,) their numbers in the item's file, rising.

    Raises:
        UNREADABLE: a file is missing or damaged.
    """
    with opened(directory / facts.file, rows=facts.queries) as file:
        content = pa.concat_tables(_numbered_rows(file, row, 1) for row in rows.tolist())
    axes = _content(directory / facts.tables_file, AXES_SCHEMA)
    axes = axes.filter(pc.is_in(axes["table"], pc.unique(content["table"])))
    lists = _label_lists(directory / facts.labels_file, axes["labels"])
    axes_of: dict[int, list[dict[str, int | str | None]]] = {}
    for axis in axes.to_pylist():
        axes_of.setdefault(axis["table"], []).append(axis)
    places = zip(content["table"].to_pylist(), content["cell"].to_pylist(), strict=True)
    words = [_cell_words(axes_of[table], _whole(cell), lists) for table, cell in places]
    return pa.table({"cell": pa.array(words, pa.string()), **_answers(content)})


def _cell_words(
    axes: list[dict[str, int | str | None]], cell: int, lists: Mapping[int, pa.Table]
) -> str:
    """Return what a cell counts: each attribute with its label."""
    words = [str(axes[0]["query"])] if axes[0]["query"] else []
    for axis in axes:
        if axis["attribute"] is not None:
            place = cell // max(_whole(axis["stride"]), 1) % max(_whole(axis["size"]), 1)
            label = lists[_whole(axis["labels"])]["label"][place].as_py()
            words.append(f"{axis['attribute']} {label}")
    return ", ".join(words) or "total"


def _content(path: Path, *schemas: pa.Schema) -> pa.Table:
    with opened(path, rows=None) as file:
        if file.schema_arrow.remove_metadata() not in schemas:
            raise ValueError("schema")
        return file.read()


def _label_lists(path: Path, numbers: pa.ChunkedArray) -> dict[int, pa.Table]:
    """Return the lists of labels of some numbers."""
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
    cells = 1
    for size in sizes:
        cells *= size
    if not 0 < cells <= min(MAX_TABLE_QUERIES, file.metadata.num_rows):
        raise ValueError("size")
    rows = _numbered_rows(file, _whole(axes[0]["first"]), cells)
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


def _numbered_rows(file: pq.ParquetFile, first: int, count: int) -> pa.Table:
    """Return some rows, reading no more than the row groups that hold them."""
    sizes = [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]
    ends = np.cumsum(sizes)
    groups = [
        k
        for k, (end, size) in enumerate(zip(ends.tolist(), sizes, strict=True))
        if end > first and end - size < first + count
    ]
    rows = file.read_row_groups(groups).slice(
        first - int(ends[groups[0]] - sizes[groups[0]]), count
    )
    if rows.num_rows != count:
        raise ValueError("rows")
    return rows


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
    """Return the answers with the columns that follow from them."""
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
    """Return a number of 0 or more."""
    if not isinstance(value, int) or value < 0:
        raise ValueError("number")
    return value


HELD_VALUES = 1 << 25  # rows times columns of an item that is read whole
EXTREME_ROWS = 8  # answers of the smallest, and of the largest, relative errors
_LONGEST = 1 << 22  # bytes of all texts of a column
_DAYS = date(1970, 1, 1).toordinal()  # of day 0 of an Arrow file
_LAST_DAY = date.max.toordinal()
_NUMBERS = (pa.int64(), pa.float64(), pa.bool_())
_OF_LABELS = ("_code", "_level", "_from", "_to", "_below")  # columns beside one of labels
_ANSWERS = ("estimate", "ci_low", "ci_high", "flag", "published", "suppressed")


@dataclass(frozen=True, eq=False)
class Dimension:
    """What one column says of the rows.

    Attributes:
        name: of the column.
        texts: its different values in words, in the order of their first rows.
        places: (m,) which of them each row has.
        ends: (n, 2) where each value begins and ends, days by their ordinal numbers; NaN where it
            is no range; None where the column is not ordered.
        dates: whether these are days.
        ranges: whether values are shown as ranges, not as single numbers or days.
    """

    name: str
    texts: tuple[str, ...]
    places: Ints
    ends: Floats | None = None
    dates: bool = False
    ranges: bool = False

    def take(self, rows: Ints) -> "Dimension":
        """Return the same of some rows, with only the values that these have."""
        kept, first, places = np.unique(self.places[rows], return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        kept = kept[order]
        return replace(
            self,
            texts=tuple(self.texts[k] for k in kept.tolist()),
            places=rank[places.reshape(-1)],
            ends=None if self.ends is None else self.ends[kept],
        )


@dataclass(frozen=True, eq=False)
class ItemCells:
    """Answers of an item: all, or those of a part of it.

    Attributes:
        value: (m,) what is published of each: NaN where nothing is.
        low: (m,) where its noise interval begins; NaN where none is known.
        high: (m,) where it ends.
        flagged: (m,) whether its relative error is worth a flag.
        withheld: (m,) whether a rule leaves it out of what is published.
        dimensions: what the columns of labels say of them.
        whole: whether these are all answers of the item.
    """

    value: Floats
    low: Floats
    high: Floats
    flagged: Bools
    withheld: Bools
    dimensions: tuple[Dimension, ...]
    whole: bool = field(default=True)

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self.value)

    def take(self, rows: Ints) -> "ItemCells":
        """Return some of the answers."""
        return replace(
            self,
            value=self.value[rows],
            low=self.low[rows],
            high=self.high[rows],
            flagged=self.flagged[rows],
            withheld=self.withheld[rows],
            dimensions=tuple(dimension.take(rows) for dimension in self.dimensions),
        )

    @cached_property
    def varying(self) -> tuple[Dimension, ...]:
        """The columns that do not say the same of all rows."""
        return tuple(dimension for dimension in self.dimensions if len(dimension.texts) > 1)

    @property
    def error_bars(self) -> bool:
        """Whether noise intervals are known."""
        return not np.isnan(self.low).all()

    @cached_property
    def relative(self) -> Floats:
        """(m,) half of the noise interval over the size of the answer; NaN where it is unknown."""
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (self.high - self.low) / 2 / np.abs(self.value)
        return np.where(self.high == self.low, 0.0, share)

    @cached_property
    def half_widths(self) -> Floats:
        """Half of each noise interval that is known over the size of its middle, the estimate."""
        known = ~np.isnan(self.low)
        low, high = self.low[known], self.high[known]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (high - low) / np.abs(high + low)
        return np.where(high == low, 0.0, share)

    @cached_property
    def by_reliability(self) -> Ints:
        """Rows that are published, most reliable first; the largest first without error bars."""
        shown = np.flatnonzero(~np.isnan(self.value))
        key = self.relative[shown] if self.error_bars else -self.value[shown]
        return shown[np.argsort(key, kind="stable")]

    def words(self, row: int, dimensions: Sequence[Dimension]) -> str:
        """Return what a row counts, in words: without what its table lacks."""
        tables = any(d.name == "table" for d in self.dimensions)
        texts = []
        for dimension in dimensions:
            text = dimension.texts[dimension.places[row]]
            unsaid = dimension.name == "table" or (tables and text in ("all", "(all)"))
            if not unsaid:
                bare = not any(character.isalpha() for character in text)
                texts.append(f"{dimension.name} {text}" if bare else text)
        return ", ".join(texts) or "all"

    @cached_property
    def digits(self) -> int:
        """How many decimals an answer is written with: two digits of its noise interval."""
        half = (self.high - self.low) / 2
        known = half[half > 0]
        if known.size:
            return min(max(1 - math.floor(math.log10(float(np.median(known)))), 0), 9)
        shown = np.abs(self.value[~np.isnan(self.value)])
        return 0 if not shown.size or shown.max() >= 10 else 3

    def number(self, value: float) -> str:
        """Return an answer, or an end of its noise interval, as it is written."""
        return f"{round(value, self.digits) + 0.0:,.{self.digits}f}"

    def answer_words(self, row: int) -> str:
        """Return an answer with its noise interval in words."""
        if np.isnan(self.value[row]):
            return "not published" if self.withheld[row] else "no value"
        value = self.number(float(self.value[row]))
        if np.isnan(self.low[row]):
            return value
        return f"{value} ({self.number(self.low[row])} to {self.number(self.high[row])})"


def read_cells(path: Path, labels: Sequence[str], facts: ItemFacts) -> ItemCells:
    """Return the answers of an item's file, or those of its extremes where they are too many.

    Args:
        path: the file.
        labels: its columns that say what a row is.
        facts: of the item.

    Raises:
        UNREADABLE: a file is missing or damaged.
    """
    with opened(path, rows=facts.queries) as file:
        columns = _columns(file, labels)
        numbers = (*_NUMBERS, pa.date32())
        texts = [name for name, kind in columns.items() if kind not in numbers]
        long = facts.queries * len(columns) > HELD_VALUES
    with opened(path, rows=facts.queries, coded=texts) as file:
        if facts.numbered:
            rows = _extreme_rows(file)
            return replace(table_cells(labelled_rows(path.parent, facts, rows), None), whole=False)
        if long:
            return replace(
                table_cells(_rows(file, _extreme_rows(file), [*columns]), labels), whole=False
            )
        return table_cells(file.read(columns=[*columns]), labels)


def _columns(file: pq.ParquetFile, labels: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the columns of labels, their codes and ends, and of answers, with their types."""
    schema = file.schema_arrow
    names = [f"{name}{end}" for name in labels for end in ("", *_OF_LABELS)]
    columns = {n: schema.field(n).type for n in (*names, *_ANSWERS) if n in schema.names}
    if any(name not in columns for name in ("estimate", "flag")) and "cell" not in labels:
        raise ValueError("columns")
    return columns


def _extreme_rows(file: pq.ParquetFile) -> Ints:
    """Return numbers of the rows of smallest and of largest relative errors, in file order."""
    names = [n for n in ("estimate", "ci_low", "ci_high", "half_width") if n in _names(file)]
    best: list[tuple[float, int]] = []
    worst: list[tuple[float, int]] = []
    first = 0
    for batch in file.iter_batches(1 << 18, columns=names):
        estimate, *ends = (_floats(batch.column(k)) for k in range(batch.num_columns))
        half = ends[0] if len(ends) == 1 else (ends[1] - ends[0]) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(np.isnan(half), -estimate, half / np.abs(estimate))
        share[np.isnan(share)] = np.inf
        order = np.argsort(share, kind="stable")
        low, high = order[:EXTREME_ROWS], order[-EXTREME_ROWS:]
        best = sorted(best + _numbered(share, low, first))[:EXTREME_ROWS]
        worst = sorted(worst + _numbered(share, high, first))[-EXTREME_ROWS:]
        first += batch.num_rows
    return np.array(sorted({row for _, row in (*best, *worst)}), dtype=np.int64)


def _numbered(share: Floats, rows: Ints, first: int) -> list[tuple[float, int]]:
    return [(float(share[row]), first + row) for row in rows.tolist()]


def _names(file: pq.ParquetFile) -> Sequence[str]:
    names: list[str] = file.schema_arrow.names
    return names


def _rows(file: pq.ParquetFile, rows: Ints, columns: Sequence[str]) -> pa.Table:
    """Return some rows, reading one row group after the other."""
    parts, first = [], 0
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        inside = rows[(rows >= first) & (rows < first + size)] - first
        if len(inside):
            parts.append(file.read_row_group(group, columns=list(columns)).take(pa.array(inside)))
        first += size
    return pa.concat_tables(parts)


def table_cells(table: pa.Table, labels: Sequence[str] | None) -> ItemCells:
    """Return the rows of a table as answers.

    Args:
        table: with columns that say what rows are, `estimate`, `ci_low`, `ci_high` and `flag`.
        labels: names of the first; None: all before `estimate` that are no codes, levels or ends.

    Raises:
        ValueError: it holds what is no label or no number.
    """
    names = table.column_names
    if labels is None:
        labels = names_of_labels(names)
    value = _checked(table["estimate"])
    withheld = np.zeros(len(value), dtype=bool)
    if "published" in names:
        published = _checked(table["published"])
        withheld = np.isnan(published)
        value = published
    low, high = (
        _checked(table[name]) if name in names else np.full(len(value), np.nan)
        for name in ("ci_low", "ci_high")
    )
    flag, flags = _texts(table["flag"])
    known = np.isnan(low) == np.isnan(high)
    if not known.all():
        raise ValueError("interval")
    return ItemCells(
        value=value,
        low=low,
        high=high,
        flagged=np.array([bool(text) for text in flags], dtype=bool)[flag] & ~np.isnan(low),
        withheld=withheld,
        dimensions=tuple(_dimension(table, name) for name in labels),
    )


def names_of_labels(columns: Sequence[str]) -> list[str]:
    """Return the columns before `estimate` that say what a row is, without codes, levels, ends."""
    before = list(columns[: columns.index("estimate")])
    return [n for n in before if not (n.endswith(_OF_LABELS) and n.rsplit("_", 1)[0] in before)]


def _checked(column: pa.ChunkedArray) -> Floats:
    """Return figures that can be drawn; ValueError if one is none: files come from outside."""
    if not pa.types.is_float64(column.type) and not pa.types.is_null(column.type):
        raise ValueError("number")
    known = column.drop_null().to_numpy()
    if known.size and not (np.abs(known) < MOST).all():
        raise ValueError("number")
    values = _floats(column)
    values[np.abs(values) < LEAST_FIGURE] = 0.0
    return values


def _floats(column: pa.ChunkedArray | pa.Array) -> Floats:
    """Return numbers as floats, NaN where they are null."""
    values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return np.array(values, dtype=np.float64)


def _texts(column: pa.ChunkedArray) -> tuple[Ints, tuple[str, ...]]:
    """Return which of its texts each row has, and these, in the order of their first rows."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0)
    texts = whole.dictionary
    if not pa.types.is_string(texts.type) or texts.nbytes > _LONGEST or whole.null_count:
        raise ValueError("label")
    indices = whole.indices.to_numpy()
    return indices.astype(np.int64), tuple(map(str, texts.to_pylist()))


def _dimension(table: pa.Table, name: str) -> Dimension:
    """Return what a column of labels says, with its codes and ends where the file has them."""
    column = table[name]
    kind = column.type
    every = np.arange(table.num_rows)
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind):
        return _labelled(table, name).take(every)
    if pa.types.is_date32(kind):
        days = _days(column)
        kept, places = np.unique(days, return_inverse=True)
        texts = tuple(date.fromordinal(int(day)).isoformat() for day in kept)
        return Dimension(name, texts, places, np.stack([kept, kept], 1), dates=True).take(every)
    if kind not in _NUMBERS or column.null_count:
        raise ValueError("type")
    if pa.types.is_boolean(kind):
        yes = np.array(column.to_numpy()).astype(np.int64)
        return Dimension(name, (f"{name}: no", f"{name}: yes"), yes).take(every)
    numbers = _floats(column)
    if not (np.abs(numbers) < MOST).all():
        raise ValueError("number")
    kept, places = np.unique(numbers, return_inverse=True)
    texts = tuple(f"{value:.12g}" for value in kept.tolist())
    return Dimension(name, texts, places, np.stack([kept, kept], 1)).take(every)


def _labelled(table: pa.Table, name: str) -> Dimension:
    """Return what a column of labels says; those that several groups have carry their codes."""
    names = table.column_names
    places, texts = _texts(table[name])
    if f"{name}_level" in names and f"{name}_code" in names:
        of_level, level_texts = _known_texts(table[f"{name}_level"])
        of_code, code_texts = _known_texts(table[f"{name}_code"])
        sizes = (len(texts), len(level_texts), len(code_texts))
        number = np.ravel_multi_index((places, of_level, of_code), sizes)
        numbers, places = np.unique(number, return_inverse=True)
        kept = np.unravel_index(numbers, sizes)
        shown = [texts[k] for k in kept[0].tolist()]
        codes = [code_texts[k] for k in kept[2].tolist()]
        twice = {text for text, many in Counter(shown).items() if many > 1}
        texts = tuple(
            f"{text} ({code})" if text in twice and code else text
            for text, code in zip(shown, codes, strict=True)
        )
    texts = tuple(f"{name}: {text}" if text in ("yes", "no") else text for text in texts)
    ends, dates = _label_ends(table, name, places, len(texts))
    return Dimension(name, texts, places, ends, dates, ends is not None)


def _known_texts(column: pa.ChunkedArray) -> tuple[Ints, tuple[str, ...]]:
    """Return which of its texts each row has, and these; the last of them is of rows of none."""
    missing = np.array(column.is_null().to_numpy())
    places, texts = _texts(column.filter(~missing) if missing.any() else column)
    whole = np.full(len(column), len(texts), dtype=np.int64)
    whole[~missing] = places
    return whole, (*texts, "")


def _label_ends(table: pa.Table, name: str, places: Ints, count: int) -> tuple[Floats | None, bool]:
    """Return where each label's range begins and ends, and whether these are days."""
    names = [f"{name}{end}" for end in ("_from", "_to", "_below")]
    columns = [table[end] for end in names if end in table.column_names]
    if len(columns) < 2:
        return None, False
    dates = pa.types.is_date32(columns[0].type)
    ends = np.full((count, 2), np.nan)
    for k, column in enumerate(columns):
        numbers = _days(column) if dates else _floats(column)
        if not (np.abs(numbers[~np.isnan(numbers)]) < MOST).all():
            raise ValueError("number")
        ends[places, k] = numbers
    return ends, dates


def _days(column: pa.ChunkedArray) -> Floats:
    """Return days by their ordinal numbers, NaN where they are null; of the years 1 to 9999."""
    numbers = _floats(column.cast(pa.int32())) + _DAYS
    known = numbers[~np.isnan(numbers)]
    if known.size and not 0 < known.min() <= known.max() <= _LAST_DAY:
        raise ValueError("date")
    return numbers
