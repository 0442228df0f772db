"""The section of an item on the page.

The part of the page about one item: its picture, how to read it, its rows and its file.

The part of the page about one derived item: its picture, its definition and its rows.
"""

from html import escape

import numpy as np

from dpquery.releases.manifest_facts import QUANTILES_IN_BINS
from dpquery.releases.report.answers import ItemCells, names_of_labels
from dpquery.releases.report.figures import DerivedReport, ItemReport
from dpquery.releases.report.kinds import picture_of
from dpquery.releases.report.shapes import Caption, Picture
from dpquery.releases.words import count

FIRST_ROWS, LISTED_ROWS = 5, 40
NAMED_COLUMNS = 60


def item_section(item: ItemReport, *, level: float) -> str:
    """Return the part of the page about an item.

    Args:
        item: the item.
        level: of the noise intervals, as a share.
    """
    unit = "count" if item.facts.summed is None else f"sum of {item.facts.summed.of}"
    has_errors = item.flagged_share is not None
    percent = f"{100 * level:g} %"
    intervals = f"estimates with {percent} noise intervals" if has_errors else "estimates without "
    title = f"{item.title}: {intervals}{'' if has_errors else 'error bars'}"
    picture = picture_of(item.cells, Caption(title, unit))
    heading = f"item-{item.name}"
    description = f"<p>{escape(item.description)}</p>" if item.description else ""
    return (
        f'<article aria-labelledby="{heading}"><h3 id="{heading}">{escape(item.title)}</h3>'
        f'{description}<p class="worth">{pill(item)}</p><div class="item">'
        f'<figure role="group" aria-labelledby="{heading}" data-kind="{picture.kind}">'
        f"{picture.html}</figure>"
        f'<div class="reading"><h4>How to read it</h4>{_reading(item, picture, percent)}'
        f"<h4>File</h4>{_file(item)}</div></div>{_rows(item, percent)}</article>\n"
    )


def pill(item: ItemReport) -> str:
    """Return the verdict on an item as HTML."""
    grade, _, words = item.verdict.partition(": ")
    return f'<span class="pill {item.grade}">{grade}</span> {escape(words)}'


def _reading(item: ItemReport, picture: Picture, percent: str) -> str:
    sentences = list(picture.notes)
    if item.flagged_share is None:
        sentences.append("This release has no error bars: how far an answer is off is not known.")
    elif item.cells.error_bars:
        sentences.append(
            f"A noise interval holds the true answer in {percent} of releases. Answers below zero "
            "are noise around small ones."
        )
    if item.facts.published is not None:
        sentences.append(_published_words(item.cells))
    if item.summed is not None:
        sentences.append(f"{item.summed.words[:1].upper()}{item.summed.words[1:]}.")
    query = _query(item.cells)
    if query:
        how_many = f"{query} the" if query == "any of" else f"at least {query}"
        sentences.append(f"Counted are records that meet {how_many} conditions.")
    fixed = [
        f"{d.name} {d.texts[0]}".removeprefix(f"{d.name} {d.name}: ")
        for d in item.cells.dimensions
        if len(d.texts) == 1 and d.name not in ("table", "query") and d.texts[0] not in ("all",)
    ]
    if fixed and item.queries > 1 and item.cells.whole:
        sentences.append(f"All rows: {', '.join(fixed)}.")
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def _published_words(cells: ItemCells) -> str:
    hidden = int(cells.withheld.sum())
    if not cells.whole:
        return "Drawn is what is published; answers that a rule leaves out have no bar."
    if not hidden:
        return "Drawn is what is published: the rules leave no answer out."
    return (
        f"Drawn is what is published: of {len(cells):,} answers a rule on noisy values leaves out "
        f"{hidden:,}, and these have no mark."
    )


def _query(cells: ItemCells) -> str:
    """Return how many conditions are to be met, where that is the same for all and not all."""
    queries = [d.texts for d in cells.dimensions if d.name == "query"]
    same = queries and len(queries[0]) == 1 and queries[0][0] != "all of"
    return queries[0][0] if same else ""


def _file(item: ItemReport) -> str:
    files = ", ".join(f"<code>{escape(name)}</code>" for name in item.facts.files)
    columns = ", ".join(f"<code>{escape(name)}</code>" for name in item.columns[:NAMED_COLUMNS])
    more = len(item.columns) - NAMED_COLUMNS
    columns += f" and {more} more" if more > 0 else ""
    return f"<p>{files}: {count(item.queries, 'row')}.</p><p>Columns: {columns}.</p>"


def _rows(item: ItemReport, percent: str) -> str:
    """Return the first rows as a table, and more of them behind a line to open."""
    cells = item.cells
    shown = min(len(cells), LISTED_ROWS)
    if not cells.whole:
        words = f"The answers drawn, in file order: {shown} of {item.queries:,} rows"
        return _table(item, (0, shown), words, percent)
    few = shown if shown <= FIRST_ROWS + 3 else FIRST_ROWS
    if few == item.queries:
        return _table(item, (0, few), "All rows", percent)
    whole = count(item.queries, "row")
    first = _table(item, (0, few), f"The first {few} of {whole}", percent)
    caption = f"Rows {few + 1} to {shown} of {whole}"
    more = _table(item, (few, shown), caption, percent)
    return f'{first}<details class="more"><summary>{caption}, as a table</summary>{more}</details>'


def _table(item: ItemReport, rows: tuple[int, int], caption: str, percent: str) -> str:
    cells = item.cells
    names = [d.name for d in cells.dimensions]
    value = "published" if item.facts.published is not None else "estimate"
    heads = [*names, value, *([f"{percent} noise interval", "flag"] if cells.error_bars else [])]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(f"<tr>{_cells_of(cells, row)}</tr>" for row in range(*rows))
    label = escape(f"{item.title}: {caption}")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cells_of(cells: ItemCells, row: int) -> str:
    texts = [d.texts[d.places[row]].removeprefix(f"{d.name}: ") for d in cells.dimensions]
    value, _, interval = cells.answer_words(row).partition(" (")
    answers = [value]
    if cells.error_bars:
        flag = "flagged" if cells.flagged[row] and not np.isnan(cells.value[row]) else ""
        answers += [interval.rstrip(")"), flag]
    shown = "".join(f'<th scope="row">{escape(text)}</th>' for text in texts)
    return shown + "".join(f"<td>{escape(text)}</td>" for text in answers)


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
