"""Pages for readers: tables, quality and methodology.

They are written as Markdown and as HTML from one content. The HTML needs nothing else: no network,
no script, light and dark, narrow and wide, and print.

quality.md is by the ESS Single Integrated Metadata Structure (SIMS 2.0). What follows from the
release is filled in: confidentiality, accuracy as far as it is of the noise, processing. What only
the office knows is marked, so that nobody takes an empty line for a no.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from dpquery.releases.extra_columns import (
    biased_columns,
    reading_sample,
    told_by,
    told_errors_words,
)
from dpquery.releases.manifest import Manifest
from dpquery.releases.manifest_facts import over_units, roundings, units_counted
from dpquery.releases.package.tables import PackagedTable
from dpquery.releases.statement import guarantee_line, known_errors, neighbour_words, unit_words
from dpquery.releases.words import count, figure, sentence, spaced, without_controls
from dpquery.spec.spec import About

PAGE_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2430; --soft: #596273; --rule: #d9dde4;
  --box: #f5f6f8; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --ink: #e6e9ef; --soft: #a2acbb;
  --rule: #343c49; --box: #1d232d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 12px; overflow-wrap: anywhere; }
h2 { font-size: 20px; margin: 36px 0 10px; padding-top: 16px; border-top: 1px solid var(--rule);
  overflow-wrap: anywhere; }
h3 { font-size: 16px; margin: 24px 0 6px; overflow-wrap: anywhere; }
p { max-width: 75ch; margin: 0 0 10px; overflow-wrap: anywhere; }
code { background: var(--box); padding: 0 4px; border-radius: 4px; overflow-wrap: inherit; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; margin: 8px 0 18px; }
th, td { padding: 6px 14px 6px 0; text-align: left; vertical-align: top; overflow-wrap: break-word;
  border-bottom: 1px solid var(--rule); }
thead th { color: var(--soft); font-weight: 600; }
td:first-child { font-weight: 600; min-width: 8ch; }
@media (max-width: 640px) {
  thead { position: absolute; left: -9999px; }
  tr, td { display: block; border: 0; padding: 0; }
  tr { border-bottom: 1px solid var(--rule); padding: 8px 0; }
  td:not(:first-child)::before { content: attr(data-head) ": "; color: var(--soft); }
  td[data-head=""]::before { content: none !important; }
  td, code { overflow-wrap: anywhere; }
  td:empty { display: none; }
}
@media print { main { max-width: none; } tr { break-inside: avoid; } }
"""
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Heading:
    """A heading of level 2 or 3."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; what stands in `backticks` is a name."""

    text: str


@dataclass(frozen=True)
class TextTable:
    """A table of texts under a head."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Content = Heading | Paragraph | TextTable


def markdown_page(title: str, content: Sequence[Content]) -> str:
    """Return a page as Markdown."""
    parts = [f"# {_line(title)}"]
    for part in content:
        match part:
            case Heading(text=text, level=level):
                parts.append(f"{'#' * level} {_line(text)}")
            case Paragraph(text=text):
                parts.append(_line(text))
            case TextTable(head=head, rows=rows):
                lines = [head, ("---",) * len(head), *rows]
                cells = ([_line(text).replace("|", "\\|") for text in line] for line in lines)
                parts.append("\n".join(f"| {' | '.join(line)} |" for line in cells))
    return "\n\n".join(parts) + "\n"


def html_page(title: str, content: Sequence[Content]) -> str:
    """Return a page as HTML."""
    parts = [f"<h1>{_marked_up(title)}</h1>"]
    for part in content:
        match part:
            case Heading(text=text, level=level):
                parts.append(f"<h{level}>{_marked_up(text)}</h{level}>")
            case Paragraph(text=text):
                parts.append(f"<p>{_marked_up(text)}</p>")
            case TextTable():
                parts.append(_html_table(part))
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(without_controls(title))}</title>\n<style>{PAGE_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _html_table(table: TextTable) -> str:
    head = "".join(f'<th scope="col">{_marked_up(name)}</th>' for name in table.head)
    rows = "\n".join(
        "<tr>"
        + "".join(
            f'<td data-head="{escape(name)}">{_marked_up(cell)}</td>'
            for name, cell in zip(table.head, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    body = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>"
    return f'<div class="wide"><table>\n{body}\n</table></div>'


def _marked_up(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(spaced(text)))


def _line(text: str) -> str:
    """Return a text in which no `<` is markup; between single backticks none is anyway."""
    text = spaced(text)
    parts = [text] if "``" in text else re.split("(`[^`]*`)", text)
    return "".join(part if k % 2 else part.replace("<", "&lt;") for k, part in enumerate(parts))


OPEN = "*To be filled in by the office.*"
"""Stands where the release knows nothing."""

CONCEPTS: tuple[tuple[str, str], ...] = (
    ("S.1", "Contact"),
    ("S.2", "Metadata update"),
    ("S.3", "Statistical presentation"),
    ("S.3.1", "Data description"),
    ("S.3.2", "Classification system"),
    ("S.3.3", "Sector coverage"),
    ("S.3.4", "Statistical concepts and definitions"),
    ("S.3.5", "Statistical unit"),
    ("S.3.6", "Statistical population"),
    ("S.3.7", "Reference area"),
    ("S.3.8", "Time coverage"),
    ("S.3.9", "Base period"),
    ("S.4", "Unit of measure"),
    ("S.5", "Reference period"),
    ("S.6", "Institutional mandate"),
    ("S.6.1", "Legal acts and other agreements"),
    ("S.6.2", "Data sharing"),
    ("S.7", "Confidentiality"),
    ("S.7.1", "Confidentiality - policy"),
    ("S.7.2", "Confidentiality - data treatment"),
    ("S.8", "Release policy"),
    ("S.8.1", "Release calendar"),
    ("S.8.2", "Release calendar access"),
    ("S.8.3", "User access"),
    ("S.9", "Frequency of dissemination"),
    ("S.10", "Accessibility and clarity"),
    ("S.10.1", "News release"),
    ("S.10.2", "Publications"),
    ("S.10.3", "Online database"),
    ("S.10.4", "Micro-data access"),
    ("S.10.5", "Other"),
    ("S.10.6", "Documentation on methodology"),
    ("S.10.7", "Quality documentation"),
    ("S.11", "Quality management"),
    ("S.11.1", "Quality assurance"),
    ("S.11.2", "Quality assessment"),
    ("S.12", "Relevance"),
    ("S.12.1", "User needs"),
    ("S.12.2", "User satisfaction"),
    ("S.12.3", "Completeness"),
    ("S.13", "Accuracy and reliability"),
    ("S.13.1", "Overall accuracy"),
    ("S.13.2", "Sampling error"),
    ("S.13.3", "Non-sampling error"),
    ("S.13.3.1", "Coverage error"),
    ("S.13.3.2", "Measurement error"),
    ("S.13.3.3", "Non-response error"),
    ("S.13.3.4", "Processing error"),
    ("S.13.3.5", "Model assumption error"),
    ("S.14", "Timeliness and punctuality"),
    ("S.14.1", "Timeliness"),
    ("S.14.2", "Punctuality"),
    ("S.15", "Coherence and comparability"),
    ("S.15.1", "Comparability - geographical"),
    ("S.15.2", "Comparability - over time"),
    ("S.15.3", "Coherence - cross domain"),
    ("S.15.4", "Coherence - internal"),
    ("S.16", "Cost and burden"),
    ("S.17", "Data revision"),
    ("S.17.1", "Data revision - policy"),
    ("S.17.2", "Data revision - practice"),
    ("S.18", "Statistical processing"),
    ("S.18.1", "Source data"),
    ("S.18.2", "Frequency of data collection"),
    ("S.18.3", "Data collection"),
    ("S.18.4", "Data validation"),
    ("S.18.5", "Data compilation"),
    ("S.18.6", "Adjustment"),
    ("S.19", "Comment"),
)
"""Numbers and names of the concepts, in order; those with parts have no text of their own."""


def quality(tables: Sequence[PackagedTable], manifest: Manifest, about: About) -> list[Content]:
    """Return the content of quality.md: every concept, filled in or marked."""
    known = _known(tables, manifest, about)
    parents = {number.rpartition(".")[0] for number, _ in CONCEPTS}
    content: list[Content] = [
        Paragraph(
            "By the concepts of the ESS Single Integrated Metadata Structure, SIMS 2.0. What is "
            "said here follows from the release alone; the rest is marked."
        )
    ]
    for number, name in CONCEPTS:
        content.append(Heading(f"{number} {name}", 2 if number.count(".") == 1 else 3))
        if number in known:
            content.append(Paragraph(known[number]))
        elif number not in parents:
            content.append(Paragraph(OPEN))
    return content


def _known(tables: Sequence[PackagedTable], manifest: Manifest, about: About) -> dict[str, str]:
    items = [table for table in tables if table.name in {item.name for item in manifest.items}]
    said = {
        "S.1": about.contact,
        "S.3.7": about.area,
        "S.3.8": about.period,
        "S.5": about.period,
        "S.8.1": about.next_update and f"Next update: {about.next_update}.",
        "S.19": about.notes,
    }
    shown = f"{count(len(items), 'item')}: {', '.join(f'`{table.name}`' for table in items)}."
    if manifest.derived:
        shown += f" Derived from them: {', '.join(f'`{item.name}`' for item in manifest.derived)}."
    sums, weight = [item.summed.words for item in manifest.items if item.summed], ""
    columns = {"table"} | {field.name for table in items for field in table.fields}
    counted = f"Number of {units_counted(columns)}"
    if manifest.privacy.weight is not None:
        weight, counted = f" {manifest.privacy.weight.words}.", "Weighted count of records"
    return {number: text for number, text in said.items() if text} | {
        "S.3.1": f"{about.description or ''} {shown}".strip(),
        "S.3.2": "The values of every column are listed in `codebook.md`.",
        "S.3.4": " ".join(f"`{item.name}`: {item.words}." for item in manifest.derived) or OPEN,
        "S.3.5": f"Rows of the records of {manifest.dataset.id}. Protected: "
        f"{unit_words(manifest.privacy)}",
        "S.4": "; ".join([counted, *dict.fromkeys(sums)]) + ".",
        "S.7.2": f"Differential privacy: {guarantee_line(manifest.guarantee)}. Compared: "
        f"{neighbour_words(manifest.privacy)} {sentence(manifest.guarantee.cumulative)} "
        "`statement.md` says it in full. No table was suppressed or coarsened for "
        "confidentiality.",
        "S.10.6": "`statement.md`, and `release.plan` for what was measured.",
        "S.10.7": "This page; `errors.parquet` for the errors of every item."
        if manifest.error_bars
        else "This page; `release.json` for what is known of the errors.",
        "S.13.1": _accuracy(manifest),
        "S.13.2": _sampling(manifest),
        "S.13.3.4": _noise(manifest),
        "S.13.3.5": _model(manifest),
        "S.15.4": _coherence(manifest),
        "S.18.5": "Tables are counted from the records and noise is added "
        f"({manifest.guarantee.method}); post-processing: {sentence(manifest.processing)}{weight}",
        "S.18.6": "No seasonal adjustment is made by the release.",
    }


def _accuracy(manifest: Manifest) -> str:
    strategy = manifest.strategy
    if strategy.rmse is None:
        known = sentence(known_errors(manifest))
        return f"The numbers are biased. {known} Errors of the records themselves: {OPEN}"
    told = told_errors_words(manifest)
    return (
        f"The noise has a root mean square standard error of {figure(strategy.rmse)} over all "
        f"answers{over_units(manifest.items)}; each has its own beside it, with an interval at the "
        f"{100 * manifest.level:g} % level. {told and f'All counts together, {told}. '}"
        f"Errors of the records themselves: {OPEN}"
    )


def _sampling(manifest: Manifest) -> str:
    weight = manifest.privacy.weight
    if weight is not None and (words := reading_sample(manifest)):
        return (
            "All but quantiles have it beside them, in `sampling_std`, which is empty where "
            f"{told_by(weight)} not measured, or hidden by noise. {words}"
        )
    if weight is not None:
        return "Records have weights, as those of a sample; no error in the tables is of sampling."
    return (
        "None by the noise: intervals in the tables are of the noise and no sampling intervals. "
        f"Whether the records are a sample: {OPEN}"
    )


def _noise(manifest: Manifest) -> str:
    return (
        f"Noise is added on purpose ({manifest.guarantee.method}); it is unbiased, and its size "
        "does not depend on the records."
        if manifest.error_bars
        else "Noise is added on purpose, and a model is fitted to what was measured."
    )


def _model(manifest: Manifest) -> str:
    if manifest.error_bars:
        of = manifest.privacy.counted_words
        of += ", whose rest is in no answer" * bool(of)
        linear = f"None: estimates are linear in what was measured, and unbiased{of}."
        biased = [
            f"The column `{column.name}` is biased: {column.meaning}."
            for column in biased_columns(manifest)
        ]
        return " ".join([linear, *biased, *_of_derived(manifest)])
    return "Relaxed rows fit what was measured and guess the rest: answers are biased."


def _of_derived(manifest: Manifest) -> Iterator[str]:
    """Yield what sums over bins and derived items take for granted."""
    for name, words in roundings(manifest.items):
        yield f"`{name}` and means of it: {words}."
    kinds = {item.kind for item in manifest.derived}
    if kinds & {"share", "ratio", "mean"}:
        yield (
            "Shares, ratios and means divide noisy answers: nearly unbiased where the denominator "
            "stands out of its noise, and left empty where it does not."
        )


def _coherence(manifest: Manifest) -> str:
    named = [column.name for column in manifest.extra if column.name in ("consistent", "integer")]
    if not manifest.error_bars:
        return "All answers are read from the same relaxed rows, and agree with each other."
    names = ", ".join(f"`{name}`" for name in (manifest.counted.count if manifest.counted else ()))
    others = names and (
        f" The values of {names} may add up to less than a total, which counts records with none "
        "of them too."
    )
    beside = f" The column `{named[0]}` adds up where it is not empty." if named else ""
    return (
        "Answers are the best linear estimates from the same measurements, so that sums of "
        f"estimates agree up to rounding where one follows from the others.{beside}{others}"
    )
