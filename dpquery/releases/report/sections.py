"""The parts of the page about one item and about one derived item.

Of each: the verdict, its levels judged apart, its picture, what is to be said of this one, and its
rows behind a line to open, with a link that holds them as CSV: a page without a script or a network
can give no more than it carries.
"""

import csv
from collections.abc import Sequence
from html import escape
from io import StringIO
from urllib.parse import quote

import numpy as np

from dpquery.releases.manifest_facts import amount_words
from dpquery.releases.report.answers import PERCENT_KINDS, DerivedReport, ItemCells
from dpquery.releases.report.figures import ItemReport
from dpquery.releases.report.pictures import Caption, Picture, picture_of
from dpquery.releases.words import (
    count,
    csv_text,
    level_text,
    percent,
    sentence,
    within,
    without_controls,
)

LISTED_ROWS = 500  # of an item's table
NAMED_COLUMNS = 60
TextRows = Sequence[Sequence[str]]


def item_section(item: ItemReport) -> tuple[str, Picture]:
    """Return the part of the page about an item, and its picture."""
    level = level_text(item.level)
    known = item.flagged_share is not None
    unit = amount_words(item.summed, weighted=item.weighted, columns=item.columns)
    value = "published" if item.facts.published is not None else "estimate"
    noise = "noise " * (item.cells.total is None)
    intervals = f"with {level} {noise}intervals" if known else "without error bars"
    picture = picture_of(item.cells, Caption(f"{item.title}: {value}s {intervals}", unit, value))
    # what the answers of each level are worth, as a table
    heads = ("level", "verdict", f"{level_text(item.level)} within", "flagged", "answers")
    rows = [
        f'<tr><th scope="row">{escape(level.name)}</th>'
        f"<td>{pill(level.worth.grade, '')}</td><td>{within(level.within)}</td>"
        f"<td>{percent(level.worth.flagged_share or 0.0)}</td><td>{level.answers:,}</td></tr>"
        for level in item.levels
    ]
    by_level = scroll_table(f"{item.title} by level", heads, rows, "By level") if rows else ""
    return _article(
        item,
        place=f"item-{item.name}",
        title=item.title,
        worth=f'<p class="worth">{pill(item.grade, item.verdict)}</p>',
        beside=by_level,
        picture=picture,
        notes=[*picture.notes, *_said(item)],
        rows=item.queries,
        heads=(value, level),
    ), picture


def derived_section(
    item: DerivedReport, *, level: float, weighted: bool
) -> tuple[str, Picture | None]:
    """Return the part of the page about a derived item, and its picture."""
    facts, percent = item.facts, level_text(level)
    notes = [f"It is: {facts.words}.", *_shown(item)]
    notes += [f"{name} adds up {', '.join(values)}." for name, values in item.sets.items()]
    in_percent = facts.kind in PERCENT_KINDS
    if in_percent:
        notes.append("Figures are in percent here, and parts of one in the file.")
    picture, value = None, "published" if facts.published else "estimate"
    if item.cells.whole and not item.cells.dates:
        units = {"quantiles": "value", "merged": amount_words(None, weighted=weighted)}
        unit = "percent" if in_percent else units.get(facts.kind, facts.kind)
        caption = Caption(f"{facts.name}, with {percent} intervals", unit, value)
        # of values added up, more of them make a larger answer: no line says anything
        picture = picture_of(item.cells, caption, lines=facts.kind != "merged")
        notes += picture.notes
    return _article(
        item,
        place=f"derived-{facts.name}",
        title=facts.name,
        picture=picture,
        notes=notes,
        rows=facts.rows,
        heads=(f"{value}{' in percent' * in_percent}", percent),
    ), picture


def pill(grade: str, verdict: str) -> str:
    """Return a verdict as HTML."""
    words = escape(verdict.partition(": ")[2]).replace(" %", "&nbsp;%")
    return f'<span class="pill {grade}">{grade}</span> {words}'


def _article(
    item: ItemReport | DerivedReport,
    *,
    place: str,
    title: str,
    picture: Picture | None,
    notes: Sequence[str],
    rows: int,
    heads: tuple[str, str],
    worth: str = "",
    beside: str = "",
) -> str:
    """Return the part of the page about an item; heads are the figures' name and the level."""
    facts, drawn = item.facts, ""
    lead = f"<p>{escape(facts.description)}</p>" if facts.description else ""
    if picture is not None:
        figure = f'<figure role="group" aria-labelledby="{place}" data-kind="{picture.kind}">'
        drawn = f"{figure}{picture.html}</figure>"
    said = "".join(f"<p>{escape(note)}</p>" for note in notes)
    file, named = (
        ", ".join(f"<code>{escape(name)}</code>" for name in names)
        for names in (facts.files, item.columns[:NAMED_COLUMNS])
    )
    more = len(item.columns) - NAMED_COLUMNS
    named += f" and {more} more" if more > 0 else ""
    return (
        f'<article aria-labelledby="{place}"><div class="lead">'
        f'<h3 id="{place}">{escape(title)}</h3>'
        f'{lead}{worth}</div><div class="item">{drawn}<div class="reading">{beside}{said}'
        f"<p>File {file}: {count(rows, 'row')}. Columns: {named}.</p></div></div>"
        f"{_table(facts.name, item.cells, rows, *heads, picture)}</article>\n"
    )


def _shown(item: ItemReport | DerivedReport) -> list[str]:
    """Return how many intervals leave out the sample, and how many answers the rules leave out."""
    cells, hidden, alone = item.cells, int(item.cells.withheld.sum()), int(item.cells.alone.sum())
    of_noise = f"The intervals of {alone:,} of {len(cells):,} answers are of noise alone."
    said = [of_noise] * (cells.whole and alone > 0)
    if item.facts.published is None:
        return said
    left = f"a rule on noisy values leaves out {hidden:,} of {len(cells):,} answers"
    of_whole = left if hidden else "the rules leave no answer out"
    left_out = of_whole if cells.whole else "answers that a rule leaves out have no mark"
    return [*said, f"Shown is what is published: {left_out}."]


def _said(item: ItemReport) -> list[str]:
    cells, sentences = item.cells, []
    if item.flagged_share is None:
        sentences.append("This release has no error bars: how far an answer is off is not known.")
    sentences += _shown(item)
    if item.summed is not None:
        sentences.append(sentence(item.summed.words))
    fixed = {d.name: d.texts[0] for d in cells.dimensions if len(d.texts) == 1}
    query = fixed.pop("query", "all of")
    if query != "all of":
        how_many = f"{query} the" if query == "any of" else f"at least {query}"
        sentences.append(f"Counted are records that meet {how_many} conditions.")
    same = [
        f"{name} {text.removeprefix(f'{name}: ')}"
        for name, text in fixed.items()
        if name != "table" and text != "all"
    ]
    if same and item.queries > 1 and cells.whole:
        sentences.append(f"All rows: {', '.join(same)}.")
    return sentences


def _row(cells: ItemCells, row: int) -> tuple[str, ...]:
    value, interval = cells.answer_words(row)
    flag = "flagged" if cells.flagged[row] and interval else ""
    labels = (d.texts[d.places[row]].removeprefix(f"{d.name}: ") for d in cells.dimensions)
    return (value, *((interval, flag) if cells.error_bars else ()), *labels)


def _table(
    name: str, cells: ItemCells, count_of_rows: int, value: str, level: str, picture: Picture | None
) -> str:
    """Return rows as a table behind a line to open, and the same as CSV behind a link.

    Numbers come first, so that they are seen at any width; rows that a rule leaves out are not
    listed, and rows that are drawn as points stand in a table already.
    """
    published = np.flatnonzero(~cells.withheld)
    rows = [_row(cells, row) for row in published[:LISTED_ROWS].tolist()]
    errors = [f"{level} interval", "flag"] if cells.error_bars else []
    heads = [value, *errors, *(dimension.name for dimension in cells.dimensions)]
    link = (
        f'<p><a download="{escape(name)}.csv" href="data:text/csv;charset=utf-8,'
        f'{quote(_csv(heads, rows), safe="")}">CSV of what is shown</a></p>'
    )
    if picture is not None and picture.kind == "points":
        return link
    whole = count(count_of_rows, "row")
    caption = "All rows"
    if not cells.whole:
        caption = f"{len(rows)} of {whole}, those that are drawn"
    elif len(rows) < len(cells):
        caption = f"The first {len(rows)} of {whole}"
    if len(published) < len(cells):
        caption += f", without {len(cells) - len(published):,} that a rule leaves out"
    body = ["<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows]
    table = scroll_table(f"{name}: {caption}", heads, body, caption)
    summary = f"<summary>{escape(caption)}, as a table</summary>"
    return f'<details class="full">{summary}{table}{link}</details>'


def scroll_table(
    label: str, heads: Sequence[str], rows: Sequence[str], caption: str = "", *, cls: str = "scroll"
) -> str:
    """Return a table of rows that are HTML, which moves sideways where a window is narrow."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    return (
        f'<div class="{cls}" tabindex="0" role="region" aria-label="{escape(label)}"><table>'
        f"{f'<caption>{escape(caption)}</caption>' * bool(caption)}<thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _csv(heads: Sequence[str], rows: TextRows) -> str:
    """Return rows as CSV, numbers without separators, ends of intervals in columns of their own."""
    file = StringIO()
    ends = [k for k, head in enumerate(heads) if head.endswith("interval")]
    writer = csv.writer(file, lineterminator="\n")
    names = [("from", "to") if k in ends else (head,) for k, head in enumerate(heads)]
    writer.writerow([csv_text(name) for pair in names for name in pair])
    for row in rows:
        cells: list[str] = []
        for k, text in enumerate(row):
            numbers = text.replace(",", "") if k == 0 or k in ends else text
            parts = numbers.partition(" to ")[::2] if k in ends else [numbers]
            cells += [csv_text(without_controls(part)) for part in parts]
        writer.writerow(cells)
    return file.getvalue()
