"""The part of the page about one derived item: its picture, its definition and its rows."""

from html import escape

from dpquery.releases.formatting import count
from dpquery.releases.manifest.derived_facts import QUANTILES_IN_BINS
from dpquery.releases.report.cells import names_of_labels
from dpquery.releases.report.derived_report import DerivedReport
from dpquery.releases.report.kinds import picture_of
from dpquery.releases.report.picture import Caption

_UNITS = {"share": "percent", "quantiles": "value"}


def derived_section(item: DerivedReport, *, level: float) -> str:
    """Return the part of the page about a derived item.

    Args:
        item: the derived item.
        level: of the intervals, as a share.
    """
    facts, percent = item.facts, f"{100 * level:g} %"
    heading = f"derived-{facts.name}"
    description = f"<p>{escape(facts.description)}</p>" if facts.description else ""
    reading = [
        f"It is: {facts.definition}.",
        f"An interval holds the true figure in {percent} of releases.",
    ]
    if facts.kind == "quantiles":
        reading.append(QUANTILES_IN_BINS)
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
