"""The report as one page that needs nothing else: no network, no script, readable in print."""

import os
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from pathlib import Path

from dpquery.exceptions import DpqueryError
from dpquery.release.errors import NOISY, VERY_NOISY
from dpquery.release.manifest import Manifest
from dpquery.release.report import COLUMNS, ItemReport, Report, optimality, to_rows
from dpquery.release.statement import guarantee_line, neighbour_words, odds_words, unit_words
from dpquery.release.style import STYLE
from dpquery.release.svg import bars, curve, lines, whiskers
from dpquery.release.wording import count, figure, percent, power

MAX_PREVIEWS = 24
GLOSSARY = (
    (
        "Standard error",
        "How far an estimate typically lies from the count in the records because of the noise. "
        "It is known in advance and does not depend on the data.",
    ),
    (
        "RMS error",
        "The root mean square of the standard errors of all answers of an item, in counts.",
    ),
    (
        "Noise interval",
        "The range that contains the count in the records in the stated share of releases. It is "
        "not a sampling interval: it says nothing about people who are not in the records.",
    ),
    (
        "Typical and worst",
        "The median and the largest relative error: the standard error over the size of the "
        "estimate. Unbounded where an estimate is zero.",
    ),
    (
        "Flagged",
        "The relative error is 30 % or more (noisy), or 50 % or more (very noisy). Flags are "
        "computed from the noisy estimates, so they reveal nothing more.",
    ),
    (
        "Verdict",
        "Good: typically within 10 %, and no more than a tenth of the answers flagged. Weak: half "
        "of them or more are flagged. Fair: in between.",
    ),
    (
        "Lower bound",
        "No way of spending the same budget on the same questions, with noise of this kind added "
        "to linear measurements, has a smaller root mean square error.",
    ),
    (
        "ε, δ, ρ",
        "Measures of what a release can give away about one protected unit; smaller is safer.",
    ),
)


def write_html(report: Report, path: Path) -> None:
    """Write the page of a report, whole or not at all; DpqueryError if it cannot be written."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(page(report), encoding="utf-8")
        part.replace(path)
    except OSError as problem:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise DpqueryError(
            f"cannot write {path}: {os.strerror(problem.errno or 0)}; name another place"
        ) from None


def page(report: Report) -> str:
    """Return the page of a report."""
    manifest = report.manifest
    title = f"{manifest.dataset.id}, version {manifest.dataset.version}"
    sections = [
        _header(report, title),
        _section("What the answers are worth", _error_charts(report)),
        _section("All items", _table(report)),
        _section("A closer look", _previews(report)),
        _section("Error against privacy", _curve(manifest)),
        _section("What is promised", _promise(manifest)),
        _section("Words", _glossary()),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>Error report: {escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def _header(report: Report, title: str) -> str:
    manifest = report.manifest
    guarantee = manifest.guarantee
    privacy = [f"<b>ε = {guarantee.epsilon:g}</b>"]
    if guarantee.delta:
        privacy.append(f"δ = {power(guarantee.delta)}")
    strategy, ratio = manifest.strategy, manifest.strategy.ratio
    tiles = [
        ("Privacy", *privacy),
        ("Answers", f"<b>{report.queries:,}</b>", f"in {count(len(report.items), 'item')}"),
        ("RMS error", f"<b>{figure(report.rmse)}</b>", "counts, over all answers"),
        ("Flagged", f"<b>{percent(report.flagged_share)}</b>", "of all answers"),
        (
            "Strategy",
            f"<b>{ratio:.3f}×</b>" if ratio else f"<b>{escape(strategy.name)}</b>",
            f"the lower bound ({escape(strategy.bound_kind)})" if ratio else "no bound is known",
        ),
    ]
    boxes = "".join(
        f'<div class="tile"><dt>{name}</dt><dd>{main}<small>{" ".join(rest)}</small></dd></div>'
        for name, main, *rest in tiles
    )
    return (
        f"<header><p class=kicker>Differentially private tables: error report</p>"
        f"<h1>{escape(title)}</h1><p>{escape(guarantee_line(guarantee))}.</p>"
        f"<dl class=tiles>{boxes}</dl></header>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>\n" if body else ""


def _error_charts(report: Report) -> str:
    noise = bars(
        [(item.name, item.rmse) for item in report.items],
        title="RMS error by item, in counts",
        text=figure,
        marks=(),
    )
    known = [(i.name, i.median_rel_error) for i in report.items if i.median_rel_error is not None]
    worth = bars(
        [(name, error) for name, error in known],
        title="Median relative error by item",
        text=lambda value: percent(value) if value else "0",
        marks=(NOISY, VERY_NOISY),
    )
    note = "Lines at 30 % and 50 %: from there on an answer is flagged noisy, very noisy."
    left = _figure("Noise: RMS error by item, in counts", noise)
    right = _figure("Worth: median relative error by item", worth, note) if known else ""
    return f'<div class="pair">{left}{right}</div>'


def _table(report: Report) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    body = "".join(
        _table_row(item, row) for item, row in zip(report.items, to_rows(report), strict=True)
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="All items"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _table_row(item: ItemReport, row: Sequence[str]) -> str:
    name, *figures, verdict = row
    description = f"<small>{escape(item.description)}</small>" if item.description else ""
    grade, _, words = verdict.partition(": ")
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in figures)
    return (
        f'<tr><th scope="row">{escape(name)}{description}</th>{cells}'
        f'<td class="verdict"><span class="pill {item.grade}">{grade}</span> '
        f"{escape(words)}</td></tr>"
    )


def _previews(report: Report) -> str:
    level = f"{100 * report.manifest.level:g} %"
    drawn = [own for item in report.items if (own := _preview(item, level))]
    left = "" if len(drawn) <= MAX_PREVIEWS else f"<p>The first {MAX_PREVIEWS} are shown.</p>"
    return f'<div class="flow">{"".join(drawn[:MAX_PREVIEWS])}</div>{left}' if drawn else ""


def _preview(item: ItemReport, level: str) -> str:
    own = item.preview
    if own is None or item.queries < 2:
        return ""
    title = f"{item.name}: estimates with {level} noise intervals"
    if own.axis:
        drawing = lines(own.series, axis=own.axis, title=title)
    else:
        drawing = whiskers(own.series[0].points, title=title)
    caption = f"{item.name}. {item.description}" if item.description else item.name
    note = f"With {level} noise intervals; {item.verdict}."
    return _figure(caption, drawing, note)


def _curve(manifest: Manifest) -> str:
    points = [(epsilon, rmse) for epsilon, rmse in manifest.error_by_epsilon if rmse > 0]
    if len(points) < 2:
        return ""
    now = (manifest.guarantee.epsilon, manifest.strategy.rmse)
    title = "RMS error at other values of ε, same strategy"
    note = "What the same questions would cost in error at other budgets; known without the data."
    return _figure(title, curve(points, now=now, title=title), note)


def _promise(manifest: Manifest) -> str:
    privacy, guarantee = manifest.privacy, manifest.guarantee
    rows = [
        ("Protected", unit_words(privacy)),
        ("Compared", neighbour_words(privacy)),
        ("Guarantee", guarantee_line(guarantee)),
        ("In words", odds_words(guarantee, privacy).removeprefix("In words: ")),
        ("All releases", guarantee.cumulative),
        ("Strategy", f"{manifest.strategy.name}; {optimality(manifest)}"),
        ("Ledger", f"event {manifest.ledger.seq}, {manifest.ledger.head[:16]}…"),
    ]
    return _definitions(rows)


def _glossary() -> str:
    return _definitions(GLOSSARY)


def _definitions(rows: Sequence[tuple[str, str]]) -> str:
    inner = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in rows)
    return f'<dl class="words">{inner}</dl>'


def _figure(caption: str, drawing: str, note: str = "") -> str:
    small = f"<small>{escape(note)}</small>" if note else ""
    return f"<figure><figcaption>{escape(caption)}{small}</figcaption>{drawing}</figure>"
