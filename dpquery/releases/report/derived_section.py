"""The part of the page about one derived item: its picture, its definition and its rows."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dpquery.releases.formatting import count
from dpquery.releases.manifest.derived_facts import DerivedFacts
from dpquery.releases.report.cells import ItemCells, names_of_labels, table_cells
from dpquery.releases.report.kinds import picture_of
from dpquery.releases.report.picture import Caption
from dpquery.untrusted.parquet import opened

MOST_DRAWN = 1 << 18  # rows of a derived item that are read to be drawn
MOST_SHOWN = 10  # rows that are listed
_FIGURES = ("estimate", "ci_low", "ci_high")
_UNITS = {"share": "percent", "quantiles": "value"}


@dataclass(frozen=True, eq=False)
class DerivedReport:
    """A derived item as the page shows it.

    Attributes:
        facts: of the manifest.
        columns: names of the columns of its file.
        cells: its rows as answers, shares in percent; None where they are dates or too many.
        rows: the first rows in words: labels, estimate, interval, flag.
    """

    facts: DerivedFacts
    columns: tuple[str, ...]
    cells: ItemCells | None
    rows: tuple[tuple[str, ...], ...]


def read_derived_item(directory: Path, facts: DerivedFacts) -> DerivedReport:
    """Return what the page shows of a derived item.

    Raises:
        UNREADABLE: its file is missing or damaged.
    """
    with opened(directory / facts.file, rows=facts.rows) as file:
        columns = tuple(file.schema_arrow.names)
        if not {*_FIGURES, "flag"} <= {*columns}:
            raise ValueError("columns")
        batches = file.iter_batches(MOST_DRAWN)
        table = pa.Table.from_batches([next(batches)]) if facts.rows else file.read()
    table = _in_words(table, facts)
    listed = table.slice(0, MOST_SHOWN)
    if pa.types.is_date32(table.schema.field("estimate").type):
        return DerivedReport(facts, columns, None, _rows(listed))
    cells = table_cells(table, None)
    return DerivedReport(facts, columns, cells if facts.rows <= MOST_DRAWN else None, _rows(listed))


def derived_section(item: DerivedReport, *, level: float) -> str:
    """Return the part of the page about a derived item.

    Args:
        item: the derived item.
        level: of the intervals, as a share.
    """
    facts, percent = item.facts, f"{100 * level:g} %"
    heading = f"derived-{facts.name}"
    description = f"<p>{escape(facts.description)}</p>" if facts.description else ""
    definition = f"{facts.definition[:1].upper()}{facts.definition[1:]}."
    reading = [definition, f"An interval holds the true figure in {percent} of releases."]
    if facts.kind == "share":
        reading.append("Shares are in percent here, and parts of one in the file.")
    figure = ""
    if item.cells is not None:
        unit = _UNITS.get(facts.kind, facts.kind)
        picture = picture_of(item.cells, Caption(f"{facts.name}, with {percent} intervals", unit))
        figure = (
            f'<figure role="group" aria-labelledby="{heading}" data-kind="{picture.kind}">'
            f"{picture.html}</figure>"
        )
        reading += picture.notes
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in reading)
    columns = ", ".join(f"<code>{escape(name)}</code>" for name in item.columns)
    return (
        f'<article aria-labelledby="{heading}"><h3 id="{heading}">{escape(facts.name)}</h3>'
        f'{description}<div class="item">{figure}'
        f'<div class="reading"><h4>How to read it</h4>{words}<h4>File</h4>'
        f"<p><code>{escape(facts.file)}</code>: {count(facts.rows, 'row')}.</p>"
        f"<p>Columns: {columns}.</p></div></div>{_listed(item, percent)}</article>\n"
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


def _listed(item: DerivedReport, percent: str) -> str:
    """Return the first rows as a table."""
    before = names_of_labels(item.columns)
    unit = " in percent" if item.facts.kind == "share" else ""
    heads = (*before, f"estimate{unit}", f"{percent} interval", "flag")
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<th scope="row">{escape(text)}</th>' for text in row[: len(before)])
        + "".join(f"<td>{escape(text)}</td>" for text in row[len(before) :])
        + "</tr>"
        for row in item.rows
    )
    shown = len(item.rows)
    whole = count(item.facts.rows, "row")
    caption = "All rows" if shown == item.facts.rows else f"The first {shown} of {whole}"
    label = escape(f"{item.facts.name}: {caption}")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )
