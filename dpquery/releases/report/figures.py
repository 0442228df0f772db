"""What each number of a release is worth: the error report.

The errors of a release, read back from its folder: for the terminal, as JSON, for the page.

A derived item read back from its file: its first rows, and how wide its intervals are.

A folder of published tables as data frames, and as a small page in a notebook.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpquery.exceptions import SpecError
from dpquery.releases.extra_columns import extra_note
from dpquery.releases.manifest import ERRORS_FILE, Manifest, read_manifest
from dpquery.releases.manifest_facts import (
    DerivedFacts,
    ItemFacts,
    SummedFacts,
    derived_note,
    facts_notes,
    over_units,
)
from dpquery.releases.report.answers import (
    ItemCells,
    labelled_tables,
    names_of_labels,
    read_cells,
    table_cells,
)
from dpquery.releases.statement import guarantee_line, simulated_words
from dpquery.releases.tables.errors import ERRORS_SCHEMA, UNKNOWN_SCHEMA
from dpquery.releases.words import count, figure, html_table, level_text, percent, within
from dpquery.spec.problems import quoted, suggestion
from dpquery.untrusted.json_values import LEAST_FIGURE, MOST, list_of, mapping, parsed, text_of
from dpquery.untrusted.parquet import UNREADABLE, opened

if TYPE_CHECKING:
    import pandas as pd


MOST_DRAWN = 1 << 18  # rows of a derived item that are read to be drawn
MOST_SHOWN = 10  # rows that are listed
INTERVAL_COLUMNS = (
    "derived item",
    "kind",
    "rows",
    "typical interval",
    "widest",
    "flagged",
    "no value",
)
_FIGURES = ("estimate", "ci_low", "ci_high")
_POINTS = " points"


@dataclass(frozen=True)
class IntervalWidths:
    """How far the intervals of a derived item reach to either side, in its unit.

    Attributes:
        typical: half of the median interval; None where no row has one.
        widest: half of the widest.
        flagged_share: share of rows with a flag.
        missing: rows without an estimate.
        unit: what stands behind a width: nothing where it is the unit of the figures.
    """

    typical: float | None
    widest: float | None
    flagged_share: float
    missing: int
    unit: str


@dataclass(frozen=True, eq=False)
class DerivedReport:
    """A derived item as the report shows it.

    Attributes:
        facts: of the manifest.
        columns: names of the columns of its file.
        cells: its rows as answers, shares in percent; None where they are dates or too many.
        rows: the first rows in words: labels, estimate, interval, flag.
        widths: of all intervals.
    """

    facts: DerivedFacts
    columns: tuple[str, ...]
    cells: ItemCells | None
    rows: tuple[tuple[str, ...], ...]
    widths: IntervalWidths

    @property
    def summary(self) -> tuple[str, ...]:
        """The item in a line, under INTERVAL_COLUMNS."""
        facts, widths = self.facts, self.widths
        return (
            facts.name,
            facts.kind,
            f"{facts.rows:,}",
            *(
                "" if width is None else _half_width(width, widths.unit)
                for width in (widths.typical, widths.widest)
            ),
            percent(widths.flagged_share),
            f"{widths.missing:,}",
        )


def _half_width(width: float, unit: str) -> str:
    """Return half of an interval; a share has no more than a hundred points."""
    if unit == _POINTS and width > 100:
        return f"over ±100{unit}"
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
    table = _in_words(table, facts)
    listed = _rows(table.slice(0, MOST_SHOWN))
    dates = pa.types.is_date32(table.schema.field("estimate").type)
    cells = None if dates or facts.rows > MOST_DRAWN else table_cells(table, None)
    return DerivedReport(facts, columns, cells, listed, widths)


def _widths(table: pa.Table, facts: DerivedFacts) -> IntervalWidths:
    """Return how wide the intervals of all rows are."""
    dates = pa.types.is_date32(table.schema.field("estimate").type)
    scale, unit = (100.0, _POINTS) if facts.kind == "share" else (1.0, " days" if dates else "")
    low, high = (
        (table[name].cast(pa.int32()) if dates else table[name]).cast(pa.float64()).to_numpy()
        for name in ("ci_low", "ci_high")
    )
    halves = (high - low)[np.isfinite(high - low)] * scale / 2
    flags = table["flag"].cast(pa.string())
    flagged = pc.sum(pc.not_equal(flags, "")).as_py() or 0
    return IntervalWidths(
        float(np.median(halves)) if halves.size else None,
        float(halves.max()) if halves.size else None,
        flagged / max(facts.rows, 1),
        table["estimate"].null_count,
        unit,
    )


def _in_words(table: pa.Table, facts: DerivedFacts) -> pa.Table:
    """Return the table with shares in percent, and quantiles by their percentage."""
    if facts.kind == "share":
        for name in _FIGURES:
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, pc.multiply(table[name], 100.0))
    if "quantile" in table.column_names:
        place = table.schema.get_field_index("quantile")
        words = pa.array([f"{100 * share:g} %" for share in table["quantile"].to_pylist()])
        table = table.set_column(place, "quantile", words.dictionary_encode())
    return table


def _rows(table: pa.Table) -> tuple[tuple[str, ...], ...]:
    """Return rows in words: labels, estimate, interval, flag."""
    before = names_of_labels(table.column_names)
    rows = []
    for row in table.to_pylist():
        labels = ("all" if row[name] is None else _word(row[name]) for name in before)
        low, high = _word(row["ci_low"]), _word(row["ci_high"])
        interval = "" if row["ci_low"] is None else f"{low} to {high}"
        rows.append((*labels, _word(row["estimate"]), interval, _word(row["flag"])))
    return tuple(rows)


def _word(value: object) -> str:
    """Return a value of a row as it is read."""
    match value:
        case None:
            return "no value"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        case _:
            return str(value)


GOOD_ERROR, GOOD_SHARE, WEAK_SHARE = 0.1, 0.1, 0.5
REPORT_COLUMNS = ("item", "answers", "rms error", "{} within", "at worst", "flagged", "verdict")
"""Heads of the table of items, with the level of the intervals that the figures behind ± are of."""
UNKNOWN_COLUMNS = ("item", "answers", "verdict")

_FILES = ("facts", "columns", "cells", "level")  # of an item: not figures
_CODED = pa.dictionary(pa.int32(), pa.string())
_AT_ONCE = 64  # rows: in a packed file, each may hold one long name
_LONGEST_NAME = 128  # bytes of a name and its place among others

ReportJson = str | int | float | None | list["ReportJson"] | dict[str, "ReportJson"]


@dataclass(frozen=True)
class ItemReport:
    """The errors of one item, in counts or relative to its estimates.

    Where the release has no error bars, all figures but `queries` and `weight` are None.

    Attributes:
        name: the item's.
        description: the item's.
        queries: number of answers.
        rmse: root mean square of their standard errors.
        median_std_error: the median of them.
        max_std_error: the largest.
        median_rel_error: median relative error; None where it is unbounded.
        worst_rel_error: largest relative error; None where an estimate is zero.
        flagged_share: share of answers with a flag.
        weight: the item's in the workload.
        facts: its files, and what its answers add up, whose unit its errors have.
        columns: of its file.
        cells: its answers, or the most and the least reliable of them where they are too many.
        level: of the noise intervals.
    """

    name: str
    description: str
    queries: int
    rmse: float | None
    median_std_error: float | None
    max_std_error: float | None
    median_rel_error: float | None
    worst_rel_error: float | None
    flagged_share: float | None
    weight: float
    facts: ItemFacts
    columns: tuple[str, ...]
    cells: ItemCells
    level: float

    @property
    def half_widths(self) -> tuple[float | None, float | None]:
        """The median and the largest half of a noise interval over its estimate.

        None where they are unbounded. Of answers that are too many to be read, the median is that
        of the standard errors, times what the intervals of the least reliable ones are over theirs.
        """
        halves = self.cells.half_widths
        bounded = halves.size and self.worst_rel_error is not None
        worst = float(halves.max()) if bounded else None
        if self.median_rel_error is None or not halves.size:
            return None, worst
        if self.cells.whole:
            return float(np.median(halves)), worst
        wider = NormalDist().inv_cdf((1 + self.level) / 2)
        if worst is not None and self.worst_rel_error:
            wider = worst / self.worst_rel_error
        return self.median_rel_error * wider, worst

    @property
    def summed(self) -> SummedFacts | None:
        """What the answers add up; None where they are counts."""
        return self.facts.summed

    @property
    def figures(self) -> dict[str, str | int | float | None]:
        """All that is known of the item as a whole, by name."""
        return {k: value for k, value in vars(self).items() if k not in _FILES}

    @property
    def title(self) -> str:
        """The name, and what the answers add up where they are no counts."""
        return self.name if self.summed is None else f"{self.name} (sum of {self.summed.of})"

    @property
    def unit(self) -> int:
        """The most that one record changes an answer: 1 for counts."""
        return 1 if self.summed is None else self.summed.largest

    @property
    def grade(self) -> str:
        """Good, fair or weak; unknown where the errors are not known."""
        if self.flagged_share is None:
            return "unknown"
        if self.flagged_share >= WEAK_SHARE or self.median_rel_error is None:
            return "weak"
        good = self.median_rel_error <= GOOD_ERROR and self.flagged_share <= GOOD_SHARE
        return "good" if good else "fair"

    @property
    def verdict(self) -> str:
        """The grade with its reasons, in a few words."""
        if self.flagged_share is None:
            return "unknown: no error bars"
        flagged = f"{percent(self.flagged_share)} of the answers are flagged"
        if self.grade == "weak" or self.median_rel_error is None:
            return f"weak: {'it is flagged' if self.queries == 1 else flagged}"
        often = "" if self.queries == 1 else "typically "
        typical = f"{often}{level_text(self.level)} within {within(self.half_widths[0])}"
        return f"{self.grade}: {typical}" + (f", {flagged}" if self.flagged_share else "")


@dataclass(frozen=True)
class Report:
    """A release, the errors of its items in spec order, and its derived items."""

    manifest: Manifest
    items: tuple[ItemReport, ...]
    derived: tuple[DerivedReport, ...] = ()

    @property
    def queries(self) -> int:
        """Number of answers in the release."""
        return sum(item.queries for item in self.items)

    @property
    def columns(self) -> tuple[str, ...]:
        """Heads of the table of items."""
        level = level_text(self.manifest.level)
        heads = tuple(head.format(level) for head in REPORT_COLUMNS)
        return heads if self.manifest.error_bars else UNKNOWN_COLUMNS

    @property
    def rmse(self) -> float | None:
        """Root mean square standard error of all answers, in units; None where some have none."""
        errors = [(i.queries, i.rmse / i.unit) for i in self.items if i.rmse is not None]
        if len(errors) < len(self.items):
            return None
        squares = math.fsum(queries * rmse**2 for queries, rmse in errors)
        return math.sqrt(squares / max(self.queries, 1))

    @property
    def flagged_share(self) -> float | None:
        """Share of all answers with a relative error worth a flag; None where it is unknown."""
        shares = [(i.queries, i.flagged_share) for i in self.items if i.flagged_share is not None]
        if len(shares) < len(self.items):
            return None
        return math.fsum(queries * share for queries, share in shares) / max(self.queries, 1)

    @property
    def errors(self) -> "pd.DataFrame":
        """The figures of the items, one row an item; missing where nobody knows them."""
        import pandas as pd

        frame = pd.DataFrame([{**item.figures, "grade": item.grade} for item in self.items])
        return frame.rename(columns={"name": "item"})

    def _repr_html_(self) -> str:
        """Return the table of items with the guarantee and the gist, for notebooks."""
        title, *notes = headline(self)
        if self.derived:
            notes.append(derived_note(self.manifest.derived))
        return html_table(title, self.columns, to_rows(self), notes)


def load_report(directory: Path) -> Report:
    """Read a release back; SpecError if the folder is not a release or is damaged."""
    manifest = read_manifest(directory)
    try:
        rows = _read_errors(directory / ERRORS_FILE, manifest)
        pairs = zip(manifest.items, rows, strict=True)
        level = manifest.level
        items = tuple(_item(directory, facts, row, level) for facts, row in pairs)
        derived = tuple(read_derived_item(directory, facts) for facts in manifest.derived)
    except UNREADABLE:
        raise SpecError(
            f"{directory} is damaged: a file named in its release.json is missing or not as it was "
            "written; run `dpquery release` again, which is free: the ledger holds the measurements"
        ) from None
    return Report(manifest, items, derived)


def _read_errors(path: Path, manifest: Manifest) -> list[dict[str, float | None]]:
    """Return the figures of every item, in order; ValueError if they are not of these items."""
    schema = ERRORS_SCHEMA if manifest.error_bars else UNKNOWN_SCHEMA
    with opened(path, rows=len(manifest.items), coded=("item",)) as file:
        if file.schema_arrow.remove_metadata() != schema.set(0, schema.field(0).with_type(_CODED)):
            raise ValueError("schema")
        if _names(file, len(manifest.items)) != [item.name for item in manifest.items]:
            raise ValueError("names")
        figures: list[dict[str, float | None]] = file.read(columns=schema.names[1:]).to_pylist()
    return figures


def _names(file: pq.ParquetFile, count: int) -> list[str | None]:
    """Return the items' names, one a row; ValueError if they are longer than any items'."""
    names: list[str | None] = []
    for batch in file.iter_batches(_AT_ONCE, columns=["item"]):
        if batch.column(0).dictionary.nbytes > _LONGEST_NAME * (count + 1):
            raise ValueError("names")
        names += batch.column(0).to_pylist()
    return names


def _item(
    directory: Path, facts: ItemFacts, row: dict[str, float | None], level: float
) -> ItemReport:
    path = directory / facts.file
    with opened(path, rows=facts.queries) as file:
        described = mapping(parsed(file.metadata.metadata[b"dpquery"]))
        columns = tuple(file.schema_arrow.names)
    labels = [text_of(label) for label in list_of(described["labels"])]
    _check_figures(row, facts)
    return ItemReport(
        name=facts.name,
        description=facts.description,
        facts=facts,
        columns=columns,
        cells=read_cells(path, labels, facts),
        level=level,
        **row,  # type: ignore[arg-type]  # the schema of errors.parquet has just been checked
    )


def _check_figures(row: Mapping[str, float | None], facts: ItemFacts) -> None:
    """Refuse figures that no release gives for an item."""
    figures = [value for value in row.values() if value is not None]
    if not all(value == 0 or LEAST_FIGURE <= value < MOST for value in figures):
        raise ValueError("figure")
    if row["queries"] != facts.queries or row["weight"] is None:
        raise ValueError("queries")


def to_json(report: Report) -> dict[str, ReportJson]:
    """Return the report as JSON values: the manifest's facts, and each item's errors."""
    manifest = report.manifest
    items: list[ReportJson] = []
    for item in report.items:
        summed = {} if item.summed is None else {"summed": asdict(item.summed)}
        items.append({**item.figures, **summed, "grade": item.grade, "verdict": item.verdict})
    return {
        "dataset": asdict(manifest.dataset),
        "privacy": {**manifest.privacy.content()},
        "guarantee": asdict(manifest.guarantee),
        "strategy": asdict(manifest.strategy),
        **({} if manifest.rap is None else {"rap": asdict(manifest.rap)}),
        **({} if manifest.adaptive is None else {"adaptive": asdict(manifest.adaptive)}),
        "level": manifest.level,
        "extra": [asdict(column) for column in manifest.extra],
        "queries": report.queries,
        "rmse": report.rmse,
        "flagged_share": report.flagged_share,
        "items": items,
        **({"derived": [_derived_json(item) for item in report.derived]} if report.derived else {}),
    }


def _derived_json(item: DerivedReport) -> dict[str, ReportJson]:
    name, kind, rows = item.facts.name, item.facts.kind, item.facts.rows
    return {"name": name, "kind": kind, "rows": rows, **asdict(item.widths)}


def to_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the table of items as text, one row an item under the report's columns."""
    return [(item.title, f"{item.queries:,}", *_cells(item), item.verdict) for item in report.items]


def _cells(item: ItemReport) -> tuple[str, ...]:
    if item.rmse is None or item.flagged_share is None:
        return ()
    typical, worst = item.half_widths
    return (figure(item.rmse), within(typical), within(worst), percent(item.flagged_share))


def headline(report: Report) -> list[str]:
    """Return the lines about the release as a whole: dataset, guarantee, errors, remarks."""
    manifest = report.manifest
    notes = [extra_note(manifest)] if manifest.extra else []
    notes += facts_notes(manifest.facts)
    answered = manifest.answered
    later = "" if answered is None else f", asked later of the release {answered.release[:12]}"
    return [
        f"{manifest.dataset.id}, version {manifest.dataset.version}: "
        f"{count(report.queries, 'answer')} in {count(len(report.items), 'item')}{later}",
        guarantee_line(manifest.guarantee),
        worth(report),
        *notes,
    ]


def worth(report: Report) -> str:
    """Return the error of all answers, as far as it is known, in words."""
    if (fitted := report.manifest.fitted) is not None:
        return f"answers are biased and have no error bars; {simulated_words(fitted)}"
    return (
        f"root mean square error {figure(report.rmse or 0.0)}{over_units(report.manifest.items)}; "
        f"{percent(report.flagged_share or 0.0)} of all answers are flagged; "
        f"{optimality(report.manifest)}"
    )


def optimality(manifest: Manifest) -> str:
    """Return the ratio of the strategy's error to a lower bound, in words."""
    strategy = manifest.strategy
    if strategy.ratio is None:
        return "no lower bound is known for this workload"
    return f"{strategy.ratio:.3f} x a lower bound on any strategy ({strategy.bound_kind})"


class PublishedTables:
    """Views of a release's folder, or of answers': what is published there and nothing else.

    Every call reads the folder anew, so that what comes out is the caller's to change.

    Attributes:
        directory: the folder.
    """

    directory: Path

    @cached_property
    def manifest(self) -> Manifest:
        """The facts of release.json."""
        return read_manifest(self.directory)

    @property
    def items(self) -> tuple[str, ...]:
        """Names of the items, in spec order."""
        return tuple(facts.name for facts in self.manifest.items)

    def arrow(self, item: str, table: str | None = None) -> pa.Table:
        """Return an item's answers, one row a query, with the columns of its file.

        Args:
            item: its name.
            table: one of its tables, by its attributes joined by ", ", or "total"; all unless
                named. Where the rows of the file are numbered, those of one table come with
                labels, intervals and flags.

        Raises:
            SpecError: there is no such item or table, or its file is damaged.
        """
        for derived in self.manifest.derived:
            if derived.name == item and table is None:
                return self._read(derived.file, rows=derived.rows)
        facts = self._facts(item)
        if table is None:
            return self._read(facts.file, rows=facts.queries)
        rows = self._rows_of(facts, table)
        if rows is None:
            raise SpecError(f"item {quoted(item)} of {self.directory} has no table {quoted(table)}")
        return rows

    def table(self, item: str, table: str | None = None) -> "pd.DataFrame":
        """Return an item's answers as a data frame: see `arrow`."""
        frame: pd.DataFrame = self.arrow(item, table).to_pandas()
        return frame

    @property
    def errors(self) -> "pd.DataFrame":
        """The errors of the answers, one row an item: errors.parquet."""
        table = self._read(ERRORS_FILE, rows=len(self.manifest.items))
        frame: pd.DataFrame = table.to_pandas()
        return frame

    def _facts(self, item: str) -> ItemFacts:
        facts = {item.name: item for item in self.manifest.items}
        if item not in facts:
            hint = suggestion(item, self.items)
            raise SpecError(f"{self.directory} has no item {quoted(item)}{hint}")
        return facts[item]

    def _rows_of(self, facts: ItemFacts, table: str) -> pa.Table | None:
        """Return the rows of an item's tables of one name; None where it has none."""
        if facts.numbered:
            with self._damage(facts.file):
                return labelled_tables(self.directory, facts, table)
        rows = self._read(facts.file, rows=facts.queries)
        if "table" in rows.column_names:
            rows = rows.filter(pc.equal(rows["table"].cast(pa.string()), table))
            return rows if rows.num_rows else None
        return None

    def _read(self, name: str, *, rows: int) -> pa.Table:
        with self._damage(name), opened(self.directory / name, rows=rows) as file:
            return file.read()

    @contextmanager
    def _damage(self, name: str) -> Iterator[None]:
        """Turn what a damaged file raises into one error that says what to do."""
        try:
            yield
        except UNREADABLE:
            raise SpecError(
                f"{self.directory} is damaged: {name} is missing or not as it was written; run "
                "`dpquery release` again, which is free: the ledger holds the measurements"
            ) from None

    def __repr__(self) -> str:
        """Return the class and the folder: a whole report is no text to print."""
        return f"<{type(self).__name__}: {self.directory}>"

    def _repr_html_(self) -> str:
        """Return the error report's table, for notebooks."""
        pass  # MOVED

        return load_report(self.directory)._repr_html_()
