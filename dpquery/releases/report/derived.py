"""A derived item read back from its file: its first rows, and how wide its intervals are."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpquery.releases.manifest_facts import DerivedFacts
from dpquery.releases.report.answers import ItemCells, table_cells
from dpquery.releases.tables.item_table import lower_median
from dpquery.releases.words import figure, percent
from dpquery.untrusted.parquet import opened

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
    return DerivedReport(facts, columns, cells, widths)


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
