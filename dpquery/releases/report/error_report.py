"""The errors of a release, read back from its folder: for the terminal, as JSON, for the page."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpquery.exceptions import SpecError
from dpquery.releases.formatting import count, figure, html_table, level_text, percent, within
from dpquery.releases.manifest.derived_facts import derived_note
from dpquery.releases.manifest.extra_columns import extra_note
from dpquery.releases.manifest.item_facts import ItemFacts, SummedFacts, over_units
from dpquery.releases.manifest.manifest_input import read_manifest
from dpquery.releases.manifest.public_facts import facts_notes
from dpquery.releases.manifest.rap_statement import simulated_words
from dpquery.releases.manifest.release_json import ERRORS_FILE, Manifest
from dpquery.releases.manifest.statement import guarantee_line
from dpquery.releases.report.cells import ItemCells, read_cells
from dpquery.releases.report.derived_report import DerivedReport, read_derived_item
from dpquery.releases.tables.errors import ERRORS_SCHEMA, UNKNOWN_SCHEMA
from dpquery.untrusted.json_values import LEAST_FIGURE, MOST, list_of, mapping, parsed, text_of
from dpquery.untrusted.parquet import UNREADABLE, opened

if TYPE_CHECKING:
    import pandas as pd

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
