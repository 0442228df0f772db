"""The answers of an item as pictures need them: values, labels, and which are whole.

They are read from the files of a folder, which come from outside: every number is held to bounds,
and what numbers of rows point to is looked up within bounds. Of an item of very many rows those are
read whose relative errors are smallest and largest; of a derived item the first, and how wide its
intervals are.
"""

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from io import StringIO
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpquery.arrays import Bools, Floats, Ints
from dpquery.releases.manifest_facts import DerivedFacts, ItemFacts
from dpquery.releases.report.numbered import Names, labelled_rows, some_rows
from dpquery.releases.tables.item_table import lower_median
from dpquery.releases.words import figure, percent
from dpquery.untrusted.files import read_outside
from dpquery.untrusted.json_values import LEAST_FIGURE, MOST
from dpquery.untrusted.parquet import opened

HELD_VALUES = 1 << 25  # rows times columns of an item that is read whole
EXTREME_ROWS = 8  # answers of the smallest, and of the largest, relative errors
_MOST_MAP = 1 << 26  # bytes of the file that says which values are merged
_LONGEST = 1 << 22  # bytes of all texts of a column
_DAYS = date(1970, 1, 1).toordinal()  # of day 0 of an Arrow file
_LAST_DAY = date.max.toordinal()
_NUMBERS = (pa.int64(), pa.float64(), pa.bool_())
_OF_LABELS = ("_code", "_level", "_from", "_to", "_below")  # columns beside one of labels
_TOTALS = ("total_low", "total_high")
_ANSWERS = ("estimate", "ci_low", "ci_high", "flag", "published", "suppressed", *_TOTALS)
TOTAL_LABELS = ("all", "(all)")  # what a row says of a column that it sums over


@dataclass(frozen=True, eq=False)
class Dimension:
    """What one column says of the rows."""

    name: str  # of the column
    texts: tuple[str, ...]  # its different values in words, in the order of their first rows
    places: Ints  # (m,) which of them each row has
    # (n, 2) where each value begins and ends, days by their ordinal numbers; NaN where it is no
    # range; None where the column is not ordered
    ends: Floats | None = None
    dates: bool = False  # whether these are days
    ranges: bool = False  # whether values are shown as ranges, not as single numbers or days
    # what each value is one of: a level of a hierarchy, or the column; empty of a total
    levels: tuple[str, ...] = ()

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
            levels=tuple(self.levels[k] for k in kept.tolist()) if self.levels else (),
        )


@dataclass(frozen=True, eq=False)
class ItemCells:
    """Answers of an item: all, or those of a part of it."""

    value: Floats  # (m,) what is published of each: NaN where nothing is
    low: Floats  # (m,) where its noise interval begins; NaN where none is known
    high: Floats  # (m,) where it ends
    flagged: Bools  # (m,) whether its relative error is worth a flag
    withheld: Bools  # (m,) whether a rule leaves it out of what is published
    dimensions: tuple[Dimension, ...]  # what the columns of labels say of them
    whole: bool = True  # whether these are all answers of the item
    dates: bool = False  # whether they are days, by their ordinal numbers
    total: Floats | None = None  # (2, m) ends of intervals of sample and noise, if there are such

    def __len__(self) -> int:
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
            total=None if self.total is None else self.total[:, rows],
        )

    @cached_property
    def ends(self) -> Floats:
        """(2, m) ends of intervals that are shown: of sample and noise, if known, or of noise."""
        known, noise = self.total, self.noise
        return noise if known is None else np.where(np.isnan(known), noise, known)

    @property
    def noise(self) -> Floats:
        """(2, m) ends of intervals of noise."""
        return np.array([self.low, self.high])

    @property
    def sampled(self) -> "ItemCells | None":
        """Those whose intervals take in the sample; None if not all cells are here."""
        if self.total is None or not self.whole:
            return None
        return self.take(np.flatnonzero(self.total[0] < self.total[1]))

    @cached_property
    def alone(self) -> Bools:
        """(m,) whether an interval is of noise alone where others may take in the sample."""
        return ~np.isnan(self.low) & (self.total is not None and np.isnan(self.total).any(axis=0))

    @cached_property
    def varying(self) -> tuple[Dimension, ...]:
        """The columns that do not say the same of all rows."""
        return tuple(dimension for dimension in self.dimensions if len(dimension.texts) > 1)

    @cached_property
    def levels(self) -> list[tuple[str, Ints]]:
        """The rows of each level: which columns, or levels of theirs, rows are no totals of."""
        level_of = [
            [d.levels[place] if d.levels else d.name for place in d.places.tolist()]
            for d in self.varying
            if d.name not in ("table", "query")
        ]
        rows: dict[tuple[str, ...], list[int]] = {}
        for row, level in enumerate(zip(*level_of, strict=True)):
            rows.setdefault(level, []).append(row)
        return [(", ".join(filter(None, k)) or "total", np.array(v)) for k, v in rows.items()]

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

    @property
    def half(self) -> float | None:
        """The median half of a noise interval; None where none is known."""
        known = (self.high - self.low)[~np.isnan(self.low)] / 2
        return lower_median(known) if known.size else None

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
            unsaid = dimension.name == "table" or (tables and text in TOTAL_LABELS)
            if not unsaid:
                bare = not any(character.isalpha() for character in text)
                texts.append(f"{dimension.name} {text}" if bare else text)
        return ", ".join(texts) or "all"

    @cached_property
    def digits(self) -> int:
        """How many decimals an answer is written with: two digits of its interval."""
        half = np.diff(self.ends, axis=0)[0] / 2
        known = half[half > 0]
        if known.size:
            return min(max(1 - math.floor(math.log10(float(np.median(known)))), 0), 9)
        shown = np.abs(self.value[~np.isnan(self.value)])
        return 0 if not shown.size or shown.max() >= 10 else 3

    def number(self, value: float) -> str:
        """Return an answer, or an end of its interval, as it is written."""
        if self.dates:
            return date.fromordinal(round(value)).isoformat()
        return f"{round(value, self.digits) + 0.0:,.{self.digits}f}"

    def answer_words(self, row: int) -> tuple[str, str]:
        """Return an answer and its interval in words; empty where there is none."""
        if np.isnan(self.value[row]):
            return "not published" if self.withheld[row] else "no value", ""
        value = self.number(float(self.value[row]))
        if np.isnan(self.low[row]):
            return value, ""
        ends = " to ".join(map(self.number, self.ends[:, row].tolist()))
        return value, ends + " (noise alone)" * bool(self.alone[row])


def read_cells(
    path: Path, labels: Sequence[str], facts: ItemFacts, names: Names = MappingProxyType({})
) -> ItemCells:
    """Return the answers of an item's file, or those of its extremes where they are too many.

    Raises:
        UNREADABLE: a file is missing or damaged.
    """
    with opened(path, rows=facts.queries) as file:
        columns = _columns(file, labels)
        numbers = (*_NUMBERS, pa.date32())
        texts = [name for name, kind in columns.items() if kind not in numbers]
        long = facts.queries * len(columns) > HELD_VALUES
    with opened(path, rows=facts.queries, coded=texts) as file:
        if not facts.numbered and not long:
            return table_cells(file.read(columns=[*columns]), labels, names)
        rows = _extreme_rows(file)
        if facts.numbered:
            cells = table_cells(labelled_rows(path.parent, facts, rows, names), None)
        else:
            cells = table_cells(some_rows(file, rows, [*columns]), labels, names)
        return replace(cells, whole=False)


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
    known = ("estimate", "ci_low", "ci_high", "half_width")
    names = [name for name in known if name in file.schema_arrow.names]
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


def table_cells(
    table: pa.Table, labels: Sequence[str] | None, names: Names = MappingProxyType({})
) -> ItemCells:
    """Return the rows of a table as answers.

    Args:
        table: with columns that say what rows are, `estimate`, `ci_low`, `ci_high` and `flag`.
        labels: names of the first; None: all before `estimate` that are no codes, levels or ends.
        names: of values that are called otherwise than in the table.

    Raises:
        ValueError: it holds what is no label or no number.
    """
    columns = table.column_names
    if labels is None:
        before = list(columns[: columns.index("estimate")])
        labels = [
            n for n in before if not (n.endswith(_OF_LABELS) and n.rsplit("_", 1)[0] in before)
        ]
    value = _checked(table["estimate"])
    withheld = np.zeros(len(value), dtype=bool)
    if "published" in columns:
        published = _checked(table["published"])
        withheld = np.isnan(published)
        value = published
    low, high = (
        _checked(table[name]) if name in columns else np.full(len(value), np.nan)
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
        dimensions=tuple(_dimension(table, name, names.get(name, {})) for name in labels),
        dates=pa.types.is_date32(table.schema.field("estimate").type),
        total=np.array([_checked(table[n]) for n in _TOTALS]) if _TOTALS[0] in columns else None,
    )


def _checked(column: pa.ChunkedArray) -> Floats:
    """Return figures that can be drawn; ValueError if one is none: files come from outside."""
    if pa.types.is_date32(column.type):
        return _days(column)
    if not pa.types.is_float64(column.type) and not pa.types.is_null(column.type):
        raise ValueError("number")
    known = column.drop_null().to_numpy()
    if known.size and not (np.abs(known) < MOST).all():
        raise ValueError("number")
    values = _floats(column)
    values[np.abs(values) < LEAST_FIGURE] = 0.0
    return values


def _floats(column: pa.ChunkedArray | pa.Array) -> Floats:
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


def _dimension(table: pa.Table, name: str, shown: Mapping[str, str]) -> Dimension:
    """Return what a column of labels says, with its codes and ends where the file has them."""
    column = table[name]
    kind = column.type
    every = np.arange(table.num_rows)
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind):
        return _labelled(table, name, shown).take(every)
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


def _labelled(table: pa.Table, name: str, named: Mapping[str, str]) -> Dimension:
    """Return what a column of labels says; those that several groups have carry their codes."""
    names = table.column_names
    places, texts = _texts(table[name])
    total = "(all)" if "(all)" in texts else "all"
    levels = tuple("" if text == total else name for text in texts)
    if f"{name}_level" in names and f"{name}_code" in names:
        of_level, level_texts = _known_texts(table[f"{name}_level"])
        of_code, code_texts = _known_texts(table[f"{name}_code"])
        sizes = (len(texts), len(level_texts), len(code_texts))
        number = np.ravel_multi_index((places, of_level, of_code), sizes)
        numbers, places = np.unique(number, return_inverse=True)
        kept = np.unravel_index(numbers, sizes)
        shown = [texts[k] for k in kept[0].tolist()]
        levels = tuple(level_texts[k] for k in kept[1].tolist())
        levels = tuple(
            level or ("" if text == total else name)
            for level, text in zip(levels, shown, strict=True)
        )
        codes = [code_texts[k] for k in kept[2].tolist()]
        twice = {text for text, many in Counter(shown).items() if many > 1}
        texts = tuple(
            f"{text} ({code})" if text in twice and code else text
            for text, code in zip(shown, codes, strict=True)
        )
    texts = tuple(
        f"{name}: {text}" if text in ("yes", "no") else named.get(text, text) for text in texts
    )
    ends, dates = _label_ends(table, name, places, len(texts))
    return Dimension(name, texts, places, ends, dates, ends is not None, levels)


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


MOST_DRAWN = 1 << 18  # rows of a derived item that are read to be drawn
_FIGURES = ("estimate", "ci_low", "ci_high")
_POINTS = " points"
PERCENT_KINDS = ("share", "ratio")  # which the page shows in percent, the file as parts of one


@dataclass(frozen=True)
class IntervalWidths:
    """How far the intervals of a derived item reach to either side, in its unit."""

    typical: float | None  # half of the median interval; None where no row has one
    widest: float | None  # half of the widest
    flagged_share: float  # share of rows with a flag
    missing: int  # rows without an estimate
    unit: str  # what stands behind a width: nothing where it is the unit of the figures


@dataclass(frozen=True, eq=False)
class DerivedReport:
    """A derived item as the report shows it."""

    facts: DerivedFacts
    columns: tuple[str, ...]  # names of the columns of its file
    # its rows as answers, those of PERCENT_KINDS in percent; the first of them where they are too
    # many
    cells: ItemCells
    widths: IntervalWidths  # of all intervals of noise
    sets: Mapping[str, Sequence[str]]  # the values that numbered sets of merged rows add up

    @property
    def summary(self) -> tuple[str, ...]:
        """The item in a line, under INTERVAL_COLUMNS."""
        facts, widths = self.facts, self.widths
        typical, widest = (
            "" if width is None else width_text(width, widths.unit)
            for width in (widths.typical, widths.widest)
        )
        return (
            facts.name,
            facts.kind,
            f"{facts.rows:,}",
            typical,
            widest,
            percent(widths.flagged_share),
            f"{widths.missing:,}",
        )


def width_unit(kind: str) -> tuple[float, str]:
    """Return what a width of a kind of statistic is multiplied by on screens, and its unit then."""
    return (100.0, _POINTS) if kind in PERCENT_KINDS else (1.0, "")


def width_text(width: float, unit: str) -> str:
    """Return half of an interval; a share has no more than a hundred points."""
    if unit == _POINTS and width > 100:
        return f"over ±100{unit}"
    if not width and not unit:
        return "one value"  # of whole numbers the interval holds that alone
    return f"±{figure(width)}{unit}"


def read_derived_item(directory: Path, facts: DerivedFacts) -> DerivedReport:
    """Return what the report shows of a derived item.

    Raises:
        UNREADABLE: its file is missing or damaged.
    """
    with opened(directory / facts.file, rows=facts.rows) as file:
        columns = tuple(file.schema_arrow.names)
        if not {*_FIGURES, "flag"} <= {*columns}:
            raise ValueError("columns")
        batches = file.iter_batches(MOST_DRAWN)
        table = pa.Table.from_batches([next(batches)]) if facts.rows else file.read()
        widths = _widths(file.read(columns=[*_FIGURES, "flag"]), facts)
    # the table with shares and ratios in percent, and quantiles by their percentage
    if facts.kind in PERCENT_KINDS:
        for name in {*_FIGURES, "total_low", "total_high"} & {*columns}:
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, pc.multiply(table[name], 100.0))
    if "quantile" in table.column_names:
        place = table.schema.get_field_index("quantile")
        words = pa.array([f"{100 * share:g} %" for share in table["quantile"].to_pylist()])
        table = table.set_column(place, "quantile", words.dictionary_encode())
    cells = replace(table_cells(table, None), whole=facts.rows <= MOST_DRAWN)
    return DerivedReport(facts, columns, cells, widths, _sets(directory, facts))


def _sets(directory: Path, facts: DerivedFacts) -> dict[str, list[str]]:
    """Return the values that numbered sets of merged rows add up, by the set's name and number."""
    if facts.merged is None:
        return {}
    text = read_outside(directory / facts.map_file, most=_MOST_MAP).decode()
    sets: dict[str, dict[str, None]] = {}
    try:
        heads, *lines = csv.reader(StringIO(text), strict=True)
        of, value = (
            heads.index(h) if h in heads else 0 for h in ("merged_label", f"{heads[0]}_label")
        )
        for line in lines if of else ():
            name, numbered, first = line[of].partition(", set ")
            if numbered:
                called = f"{name}, set {first.partition(' ')[0]}"
                sets.setdefault(called, {})[line[value]] = None
    except csv.Error:
        raise ValueError("map") from None
    return {name: [*values] for name, values in sets.items()}


def _widths(table: pa.Table, facts: DerivedFacts) -> IntervalWidths:
    dates = pa.types.is_date32(table.schema.field("estimate").type)
    scale, unit = (1.0, " days") if dates else width_unit(facts.kind)
    low, high = (
        (table[name].cast(pa.int32()) if dates else table[name]).cast(pa.float64()).to_numpy()
        for name in ("ci_low", "ci_high")
    )
    halves = (high - low)[np.isfinite(high - low)] * scale / 2
    flags = table["flag"].cast(pa.string())
    flagged = pc.sum(pc.not_equal(flags, "")).as_py() or 0
    return IntervalWidths(
        lower_median(halves) if halves.size else None,
        float(halves.max()) if halves.size else None,
        flagged / max(facts.rows, 1),
        table["estimate"].null_count,
        unit,
    )
