"""What each number of a release is worth: the error report.

How values are called, and what the publication is about, is known from the plan, whose spec the
folder of a release holds; a folder of answers has none, and is told by its labels alone.
"""

import math
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dpquery.exceptions import DpqueryError
from dpquery.plan_file.plan import plan_and_spec, read_plan_file
from dpquery.releases.extra_columns import extra_note, nearer_json
from dpquery.releases.manifest import ERRORS_FILE, PLAN_FILE, Manifest, read_manifest, saying_damage
from dpquery.releases.manifest_facts import (
    ItemFacts,
    SummedFacts,
    derived_note,
    nearer_words,
    over_units,
    roundings,
)
from dpquery.releases.report.answers import (
    DerivedReport,
    ItemCells,
    read_cells,
    read_derived_item,
    width_text,
)
from dpquery.releases.report.numbered import Names
from dpquery.releases.statement import guarantee_line, known_errors, measured_errors
from dpquery.releases.tables.item_table import ERRORS_SCHEMA, UNKNOWN_SCHEMA, lower_median
from dpquery.releases.words import count, figure, html_table, level_text, percent, within
from dpquery.spec.columns import Attribute, Boolean
from dpquery.spec.predicates import GroupSet
from dpquery.spec.spec import About, Spec
from dpquery.untrusted.json_values import (
    LEAST_FIGURE,
    MOST,
    JsonValue,
    as_json,
    list_of,
    mapping,
    parsed,
    text_of,
)
from dpquery.untrusted.parquet import opened

if TYPE_CHECKING:
    import pandas as pd


MOST_LEVELS = 100  # of an item that are judged apart
MOST_NAMED = 4096  # values of merged columns that are called by what is yes
INTERVAL_COLUMNS = (
    "derived item",
    "kind",
    "rows",
    "typical interval",
    "widest",
    "flagged",
    "no value",
)


GRADE_NAMES = ("good", "fair", "weak")
GRADES = (
    "good: a typical standard error is at most 10 % of its answer, and at most 10 % of the answers "
    "are flagged (30 % or more); weak: half or more are flagged; fair: all between"
)
GOOD_COUNTS = ". Errors within one record are good, however small the answer"
GOOD_ERROR, GOOD_SHARE, WEAK_SHARE = 0.1, 0.1, 0.5
GOOD_RECORDS = 1.0  # half of a noise interval that is good however small the answer is
REPORT_COLUMNS = ("item", "answers", "RMS error", "{} within", "at worst", "flagged", "verdict")
"""Heads of the table of items, with the level of the intervals that the figures behind ± are of."""
UNKNOWN_COLUMNS = ("item", "answers", "verdict")
MEASURED_COLUMNS = ("item", "answers", "errors of a table", "of one cell")

_FILES = ("facts", "columns", "cells", "level", "weighted")  # of an item: not figures
_CODED = pa.dictionary(pa.int32(), pa.string())
_AT_ONCE = 64  # rows: in a packed file, each may hold one long name
_LONGEST_NAME = 128  # bytes of a name and its place among others


@dataclass(frozen=True)
class Judgement:
    """What some answers are worth."""

    # share of them with a flag; None where errors are not known, as all others
    flagged_share: float | None
    median_rel_error: float | None  # median relative error; None where it is unbounded
    half: float | None  # half of the median noise interval
    counts: bool = True  # whether they count records, so that a small interval is good in itself

    @property
    def relative_grade(self) -> str:
        """Good, fair or weak by errors relative to the answers; unknown where they have none."""
        if self.flagged_share is None:
            return "unknown"
        if self.flagged_share >= WEAK_SHARE or self.median_rel_error is None:
            return "weak"
        good = self.median_rel_error <= GOOD_ERROR and self.flagged_share <= GOOD_SHARE
        return "good" if good else "fair"

    @property
    def grade(self) -> str:
        """The same; good too where intervals are within a record or so, however small answers are.

        >>> Judgement(1.0, 2.0, 0.4).grade, Judgement(1.0, 2.0, 4.0).grade
        ('good', 'weak')
        """
        exact = self.counts and self.half is not None and self.half <= GOOD_RECORDS
        return "good" if exact else self.relative_grade


@dataclass(frozen=True)
class LevelReport:
    """The answers of one level of an item: a level of a hierarchy, a table, or totals."""

    name: str  # which columns they are no totals of
    answers: int  # how many there are
    # half of the median noise interval over the estimate; None where it is unbounded
    within: float | None
    worth: Judgement  # of them


@dataclass(frozen=True)
class ItemReport:
    """The errors of one item, in counts or relative to its estimates.

    Where the release has no error bars, all figures but `queries` and `weight` are None.
    """

    name: str
    description: str
    queries: int  # number of answers
    rmse: float | None  # root mean square of their standard errors
    median_std_error: float | None  # the median of them
    max_std_error: float | None  # the largest
    median_rel_error: float | None  # median relative error; None where it is unbounded
    worst_rel_error: float | None  # largest relative error; None where an estimate is zero
    flagged_share: float | None  # share of answers with a flag
    weight: float  # the item's in the workload
    facts: ItemFacts  # its files, and what its answers add up, whose unit its errors have
    columns: tuple[str, ...]  # of its file
    # its answers, or the most and the least reliable of them where they are too many
    cells: ItemCells
    level: float  # of the noise intervals
    weighted: bool  # whether records count as their weights

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
            return lower_median(halves), worst
        if worst is not None and self.worst_rel_error:
            return self.median_rel_error * worst / self.worst_rel_error, worst
        return self.median_rel_error * self.wider, worst

    @property
    def wider(self) -> float:
        """Times a standard error that half of a normal noise interval is."""
        return NormalDist().inv_cdf((1 + self.level) / 2)

    @property
    def summed(self) -> SummedFacts | None:
        """What the answers add up; None where they are counts."""
        return self.facts.summed

    @property
    def of_records(self) -> bool:
        """Whether the answers count records, each as one."""
        return self.summed is None and not self.weighted

    @property
    def figures(self) -> dict[str, str | int | float | None]:
        """All that is known of the item as a whole, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _FILES}

    @property
    def title(self) -> str:
        """The name, and what the answers add up where they are no counts."""
        return self.name if self.summed is None else f"{self.name} (sum of {self.summed.of})"

    @property
    def unit(self) -> int:
        """The most that one record changes an answer: 1 for counts."""
        return 1 if self.summed is None else self.summed.largest

    @property
    def worth(self) -> Judgement:
        """What the answers are worth together."""
        half = None
        if self.median_std_error is not None:
            half = self.cells.half if self.cells.whole else None
            half = self.median_std_error * self.wider if half is None else half
        return Judgement(self.flagged_share, self.median_rel_error, half, self.of_records)

    @property
    def grade(self) -> str:
        """Good, fair or weak; unknown where the errors are not known."""
        return self.worth.grade

    @property
    def verdict(self) -> str:
        """The grade with its reasons, in a few words."""
        if self.flagged_share is None:
            return "unknown: no error bars"
        worth, one = self.worth, "" if self.queries == 1 else "typical answer "
        level = level_text(self.level) + ", noise alone" * (self.cells.total is not None)
        if worth.grade != worth.relative_grade and worth.half is not None:
            return f"good: {one}±{worth.half:.2g} records ({level})"
        flagged = f"{percent(self.flagged_share)} of the answers are flagged"
        if worth.grade == "weak" or self.median_rel_error is None:
            return f"weak: {'it is flagged' if self.queries == 1 else flagged}{self.others}"
        typical = f"{one}{within(self.half_widths[0])} ({level})"
        return f"{worth.grade}: {typical}" + (f", {flagged}" if self.flagged_share else "")

    @property
    def others(self) -> str:
        """What the answers of a weak item are worth that have no flag, in words; of others none.

        Half of the answers may be of values that nobody has, and the rest be good.
        """
        if self.grade != "weak" or not self.cells.whole:
            return ""
        halves = self.cells.take(np.flatnonzero(~self.cells.flagged)).half_widths
        return f"; the unflagged {within(lower_median(halves))}" if halves.size else ""

    @cached_property
    def levels(self) -> tuple[LevelReport, ...]:
        """The levels that the answers are of, each judged apart; none where there is but one."""
        cells = self.cells
        levels = cells.levels if cells.whole and cells.error_bars else []
        if len(levels) < 2:
            return ()
        reports = []
        for name, rows in levels[:MOST_LEVELS]:
            part = cells.take(rows)
            flagged = float(part.flagged.mean())
            widths = part.half_widths
            typical = lower_median(widths) if widths.size else np.inf
            bounded = typical if np.isfinite(typical) else None
            relative = None if bounded is None else bounded / self.wider
            worth = Judgement(flagged, relative, part.half, self.of_records)
            reports.append(LevelReport(name, len(rows), bounded, worth))
        return tuple(reports)


@dataclass(frozen=True)
class Report:
    """A release, the errors of its items in spec order, its derived items, what it is about."""

    manifest: Manifest
    items: tuple[ItemReport, ...]
    derived: tuple[DerivedReport, ...] = ()
    about: About = field(default_factory=About)

    @property
    def queries(self) -> int:
        """Number of answers in the release."""
        return sum(item.queries for item in self.items)

    @property
    def columns(self) -> tuple[str, ...]:
        """Heads of the table of items."""
        level = level_text(self.manifest.level)
        heads = tuple(head.format(level) for head in REPORT_COLUMNS)
        if self.measured:
            return MEASURED_COLUMNS
        return heads if self.manifest.error_bars else UNKNOWN_COLUMNS

    @property
    def measured(self) -> dict[str, tuple[str, str]]:
        """What adaptive measurement told of the errors of each item; empty where it did not."""
        told = measured_errors(self.manifest)
        if "" in told:
            return {}
        return {name: (share or "hidden by noise", most) for name, (share, most) in told.items()}

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
    spec = _planned(directory, manifest)
    names = {} if spec is None else _names_of_values(spec)
    items, derived = [], []
    with saying_damage(directory, ERRORS_FILE):
        rows = _read_errors(directory / ERRORS_FILE, manifest)
    for facts, row in zip(manifest.items, rows, strict=True):
        with saying_damage(directory, facts.file):
            items.append(_item(directory, facts, row, manifest, names))
    for of_numbers in manifest.derived:
        with saying_damage(directory, of_numbers.file):
            derived.append(read_derived_item(directory, of_numbers))
    about = About() if spec is None else spec.about
    return Report(manifest, tuple(items), tuple(derived), about)


def _planned(directory: Path, manifest: Manifest) -> Spec | None:
    """Return the spec of a release's plan; None where the folder has none, or another."""
    try:
        content = read_plan_file(directory / PLAN_FILE)
        same = sha256(content).hexdigest() == manifest.plan and manifest.answered is None
        return plan_and_spec(content, directory / PLAN_FILE)[1] if same else None
    except (OSError, DpqueryError):
        return None


def _names_of_values(spec: Spec) -> dict[str, dict[str, str]]:
    """Return how values are called that have a better name than their label, by attribute.

    Those of merged columns are called by what is yes; a group without a name by the shortest that
    any item of the spec gives it.
    """
    names: dict[str, dict[str, str]] = {}
    tables = [table for item in spec.items for table in item.tables]
    for index, attribute in enumerate(spec.domain.attributes):
        known = names.setdefault(attribute.name, {})
        if attribute.merged and attribute.size <= MOST_NAMED:
            known |= {attribute.label(k): _yes(attribute, k) for k in range(attribute.size)}
        groups = sorted(
            {
                group
                for table in tables
                for place, predicates in (*table.axes, *table.where)
                if place == index
                for part in getattr(predicates, "parts", (predicates,))
                if isinstance(part, GroupSet) and not part.named
                for group in part.groups
            },
            key=lambda group: -len(group[0]),
        )
        shortest = {codes: label for label, codes in groups}
        for label, codes in groups:  # a group without a name is called by all its values
            if label == ", ".join(map(attribute.label, codes)):
                known[label] = shortest[codes]
    return names


def _yes(attribute: Attribute, code: int) -> str:
    """Return a value of merged columns by what is yes: "White + Asian", or "none"."""
    parts = []
    for column in reversed(attribute.columns):
        code, own = divmod(code, column.size)
        words = [f"{word[:1].upper()}{word[1:]}" for word in column.name.split("_")]
        value = column.label(own)
        if not isinstance(column.kind, Boolean) or value not in ("yes", "no"):
            words.append(value)
        parts += [" ".join(words)] * (value != "no" or not isinstance(column.kind, Boolean))
    return " + ".join(parts[::-1]) or "none"


def _read_errors(path: Path, manifest: Manifest) -> list[dict[str, float | None]]:
    """Return the figures of every item, in order; ValueError if they are not of these items."""
    schema = ERRORS_SCHEMA if manifest.error_bars else UNKNOWN_SCHEMA
    with opened(path, rows=len(manifest.items), coded=("item",)) as file:
        if file.schema_arrow.remove_metadata() != schema.set(0, schema.field(0).with_type(_CODED)):
            raise ValueError("schema")
        # the items' names, one a row; ValueError if they are longer than any items'
        names: list[str | None] = []
        for batch in file.iter_batches(_AT_ONCE, columns=["item"]):
            if batch.column(0).dictionary.nbytes > _LONGEST_NAME * (len(manifest.items) + 1):
                raise ValueError("names")
            names += batch.column(0).to_pylist()
        if names != [item.name for item in manifest.items]:
            raise ValueError("names")
        figures: list[dict[str, float | None]] = file.read(columns=schema.names[1:]).to_pylist()
    return figures


def _item(
    directory: Path,
    facts: ItemFacts,
    row: dict[str, float | None],
    manifest: Manifest,
    names: Names,
) -> ItemReport:
    path = directory / facts.file
    with opened(path, rows=facts.queries) as file:
        described = mapping(parsed(file.metadata.metadata[b"dpquery"]))
        columns = tuple(file.schema_arrow.names)
    labels = [text_of(label) for label in list_of(described["labels"])]
    figures = [value for value in row.values() if value is not None]
    if not all(value == 0 or LEAST_FIGURE <= value < MOST for value in figures):
        raise ValueError("figure")
    if row["queries"] != facts.queries or row["weight"] is None:
        raise ValueError("queries")
    return ItemReport(
        name=facts.name,
        description=facts.description,
        facts=facts,
        columns=columns,
        cells=read_cells(path, labels, facts, names),
        level=manifest.level,
        weighted=manifest.privacy.weight is not None,
        **row,  # type: ignore[arg-type]  # the schema of errors.parquet has just been checked
    )


def sample_words(report: Report) -> list[str]:
    """Say how wide intervals of sample and noise are, and of how many answers, beside noise's."""
    every: list[tuple[str, ItemCells, str | None, int, str]]
    every = [(i.name, i.cells, None, i.queries, "answer") for i in report.items]
    for of in report.derived:
        if of.facts.kind != "quantiles":
            every.append((of.facts.name, of.cells, of.widths.unit, of.facts.rows, "row"))
    words = []
    for name, item, unit, rows, noun in every:
        if (cells := item.sampled) is None:
            continue
        widths = []
        for low, high in (cells.ends, cells.noise) if len(cells) else ():
            half = lower_median((high - low) / (np.abs(high + low) if unit is None else 2.0))
            widths.append(within(half) if unit is None else width_text(half, unit))
        part = [f"{len(cells):,} of {count(rows, noun)}"] if len(cells) < rows else []
        beside = "; ".join([*(f"noise {width}" for width in widths[1:]), *part])
        words.append(f"{name} {widths[0] if widths else 'none'} ({beside})")
    level = level_text(report.manifest.level)
    return [f"of sample and noise, {level} within: {', '.join(words)}"] if words else []


def to_json(report: Report) -> dict[str, JsonValue]:
    """Return the report as JSON values: the manifest's facts, and each item's errors."""
    manifest = report.manifest
    items: list[JsonValue] = []
    for item in report.items:
        summed = {} if item.summed is None else {"summed": asdict(item.summed)}
        items.append({**item.figures, **summed, "grade": item.grade, "verdict": item.verdict})
    return {
        "dataset": asdict(manifest.dataset),
        "privacy": as_json(manifest.privacy),
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
        **nearer_json(manifest),
        **({"derived": [_derived_json(item) for item in report.derived]} if report.derived else {}),
    }


def _derived_json(item: DerivedReport) -> dict[str, JsonValue]:
    name, kind, rows = item.facts.name, item.facts.kind, item.facts.rows
    shares = {"merged": item.facts.merged, "missed": item.facts.missed}
    merged = {key: share for key, share in shares.items() if share is not None}
    return {"name": name, "kind": kind, "rows": rows, **merged, **asdict(item.widths)}


def to_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the table of items as text, one row an item under the report's columns."""
    return [(item.title, f"{item.queries:,}", *_told(report, item)) for item in report.items]


def _told(report: Report, item: ItemReport) -> tuple[str, ...]:
    if measured := report.measured:
        return measured.get(item.name, ("not measured", ""))  # an item of the total alone
    return (*_cells(item), item.verdict)


def _cells(item: ItemReport) -> tuple[str, ...]:
    if item.rmse is None or item.flagged_share is None:
        return ()
    typical, worst = item.half_widths
    return (figure(item.rmse), within(typical), within(worst), percent(item.flagged_share))


def headline(report: Report) -> list[str]:
    """Return the lines about the release as a whole: dataset, guarantee, errors, remarks."""
    manifest = report.manifest
    weight = manifest.privacy.weight
    notes = [weight.warning] if weight and weight.warning else []
    notes += [extra_note(manifest)] if manifest.extra else []
    notes += sample_words(report)
    notes += [fact.note for fact in manifest.facts]
    notes += [nearer_words(*manifest.nearer)] if manifest.nearer else []
    notes += [f"{name} and means of it: {words}" for name, words in roundings(manifest.items)]
    answered = manifest.answered
    later = "" if answered is None else f", asked later of the release {answered.release[:12]}"
    later += "" if weight is None else f"; {weight.clause}"
    return [
        f"{manifest.dataset.id}, version {manifest.dataset.version}: "
        f"{count(report.queries, 'answer')} in {count(len(report.items), 'item')}{later}",
        guarantee_line(manifest.guarantee),
        worth(report),
        *notes,
    ]


MEASURED_ERRORS = (
    "measured with noise (95 %): what the errors of all cells of a table add up to on average, as "
    "a share of the records, and the largest error of one cell, where noise does not hide it"
)


def worth(report: Report) -> str:
    """Return the error of all answers, as far as it is known, in words."""
    if report.manifest.fitted is not None:
        known = MEASURED_ERRORS if report.measured else known_errors(report.manifest)
        return f"answers are biased and have no error bars; {known}"
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
    least = "the least error that any strategy can have"
    if strategy.ratio < 1.0005:
        return f"within 0.1 % of {least}"
    return f"at most {strategy.ratio:.3f} times {least}"
