"""The report as one page that needs nothing else: no network, no script, readable in print."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from dpquery.releases.formatting import count, figure, percent, power, without_controls
from dpquery.releases.manifest.extra_columns import extra_note
from dpquery.releases.manifest.item_facts import over_units
from dpquery.releases.manifest.rap_statement import measured_count, rmse_name, simulated_words
from dpquery.releases.manifest.release_json import Manifest
from dpquery.releases.manifest.statement import (
    BIASED,
    guarantee_line,
    neighbour_words,
    odds_words,
    unit_words,
)
from dpquery.releases.report.axes import number_ticks, percent_ticks, written
from dpquery.releases.report.bars import Bar, value_bars
from dpquery.releases.report.derived_section import derived_section
from dpquery.releases.report.error_report import ItemReport, Report, optimality, to_rows
from dpquery.releases.report.item_section import item_section, pill
from dpquery.releases.report.lines import privacy_curve
from dpquery.releases.report.style import STYLE
from dpquery.releases.tables.errors import NOISY, VERY_NOISY
from dpquery.untrusted.atomic_write import replace_file

CHARTED_ITEMS = 40
REPORT_MARK = b"default-src 'none'; style-src 'unsafe-inline'\">\n<title>Error report: "
"""Text in the head of every report, by which a file is recognised as one."""
GLOSSARY = (
    (
        "Standard error",
        "How far an estimate typically lies from the count in the records because of the noise. "
        "It is known in advance and does not depend on the data.",
    ),
    (
        "RMS error",
        "The root mean square of the standard errors of all answers of an item, in counts, or in "
        "the unit of what it adds up.",
    ),
    (
        "Noise interval",
        "The range that contains the count of the records that are counted, in the stated share of "
        "releases. It is not a sampling interval: it says nothing about people who are not in the "
        "records.",
    ),
    (
        "Within, and at worst",
        "What stands behind ± is half of the noise interval at the stated level, over the size of "
        "the estimate: of the median answer, and the largest. Unbounded where an estimate is zero.",
    ),
    (
        "Flagged",
        "The relative error, the standard error over the size of the estimate, is 30 % or more "
        "(noisy), or 50 % or more (very noisy). Flags are "
        "computed from the noisy estimates, so they reveal nothing more.",
    ),
    (
        "Verdict",
        "Good: the median relative error is at most 10 %, and no more than a tenth of the answers "
        "are flagged. Weak: half of them or more are flagged. Fair: in between.",
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
UNKNOWN_GLOSSARY = (
    (
        "No error bars",
        "How far these estimates lie from the counts in the records depends on the records, and "
        "nothing was spent to find it out. It is not that the errors are small.",
    ),
    (
        "RAP",
        "Relaxed adaptive projection: the counts on which a set of relaxed rows was furthest from "
        "the records were chosen and measured with noise, and the rows fitted to them.",
    ),
    (
        "Relaxed row",
        "A record whose every attribute is a probability distribution over its values.",
    ),
    (
        "Simulated",
        "What the plan saw when it carried the same run out on other, public data. What it says of "
        "these records is an expectation at best.",
    ),
    GLOSSARY[-1],
)
ADAPTIVE_WORDS = (
    "Adaptive measurement",
    "The tables on which a set of relaxed rows was furthest from the records were chosen and "
    "measured with noise, whole, and the rows fitted to them.",
)


def write_html(report: Report, path: Path) -> None:
    """Write the page of a report, whole or not at all; DpqueryError if it cannot be written."""
    replace_file(path, without_controls(page(report)).encode(), mark=REPORT_MARK)


def page(report: Report) -> str:
    """Return the page of a report."""
    manifest = report.manifest
    title = f"{manifest.dataset.id}, version {manifest.dataset.version}"
    sections = [
        _header(report, title),
        _section("What the answers are worth", _error_charts(report)),
        _section("All items", _table(report)),
        _section("Item by item", _items(report), place="items"),
        _section("Derived from the answers", _derived(report)),
        _section("Error against privacy", _curve(manifest)),
        _section("What is promised", _promise(manifest)),
        _section("Words", _definitions(_glossary(manifest))),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        f'content="{REPORT_MARK.decode()}{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n"
        f'<body>\n<a class="skip" href="#items">To the items</a>\n'
        f"<main>\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def _header(report: Report, title: str) -> str:
    manifest = report.manifest
    guarantee = manifest.guarantee
    privacy = [f"<b>ε = {guarantee.epsilon:g}</b>"]
    if guarantee.delta:
        privacy.append(f"δ = {power(guarantee.delta)}")
    tiles = [
        ("Privacy", *privacy),
        ("Answers", f"<b>{report.queries:,}</b>", f"in {count(len(report.items), 'item')}"),
        *_worth_tiles(report),
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


def _glossary(manifest: Manifest) -> Sequence[tuple[str, str]]:
    """Return the words that the page explains."""
    if manifest.error_bars:
        return GLOSSARY
    if manifest.adaptive is None:
        return UNKNOWN_GLOSSARY
    return tuple(ADAPTIVE_WORDS if entry[0] == "RAP" else entry for entry in UNKNOWN_GLOSSARY)


def _worth_tiles(report: Report) -> list[tuple[str, ...]]:
    """Return the tiles on the errors, each with its name, its figure and a remark."""
    strategy, ratio = report.manifest.strategy, report.manifest.strategy.ratio
    fitted, name = report.manifest.fitted, f"<b>{escape(strategy.name)}</b>"
    if fitted is not None or report.rmse is None or report.flagged_share is None:
        tiles = [("Error", "<b>unknown</b>", "no error bars")]
        if fitted is not None and fitted.simulated is not None:
            seen = fitted.simulated
            main = f"<b>{figure(seen.rmse)}</b>"
            tiles.append((f"Simulated {rmse_name(seen)}", main, "counts, on other data"))
        return [*tiles, ("Strategy", name, "biased; fitted to noisy counts")]
    units = over_units(report.manifest.items)
    return [
        ("RMS error", f"<b>{figure(report.rmse)}</b>", f"counts, over all answers{units}"),
        ("Flagged", f"<b>{percent(report.flagged_share)}</b>", "of all answers"),
        (
            "Strategy",
            f"<b>{ratio:.3f}×</b>" if ratio else name,
            f"the lower bound ({escape(strategy.bound_kind)})" if ratio else "no bound is known",
        ),
    ]


def _section(title: str, body: str, *, place: str = "") -> str:
    name = f' id="{place}"' if place else ""
    return f"<section{name}><h2>{title}</h2>{body}</section>\n" if body else ""


def _error_charts(report: Report) -> str:
    if (fitted := report.manifest.fitted) is not None:
        biased = escape(BIASED.replace("**", ""))
        return f"<p>{biased}</p><p>{escape(_sentence(simulated_words(fitted)))}</p>"
    counts = [item for item in report.items if item.summed is None]
    charts = [_noise_chart(counts, "Noise: RMS error by item, in counts")] if counts else []
    for attribute in dict.fromkeys(i.summed.of for i in report.items if i.summed is not None):
        sums = [i for i in report.items if i.summed is not None and i.summed.of == attribute]
        title = f"Noise: RMS error by item, in the unit of {attribute}"
        charts.append(_noise_chart(sums, title))
    return f'<div class="pair">{"".join(charts)}{_worth_chart(report)}</div>'


def _noise_chart(items: Sequence[ItemReport], caption: str) -> str:
    bars = [Bar(i.title, i.rmse, figure(i.rmse)) for i in items if i.rmse is not None]
    drawing = value_bars(bars[:CHARTED_ITEMS], title=caption, ticks=number_ticks)
    return _figure(caption, drawing, _charted(len(bars)))


def _worth_chart(report: Report) -> str:
    bars = [
        Bar(i.title, i.median_rel_error, share_text(i.median_rel_error))
        for i in report.items
        if i.median_rel_error is not None
    ]
    if not bars:
        return ""
    drawing = value_bars(
        bars[:CHARTED_ITEMS],
        title="Median relative error by item",
        ticks=percent_ticks,
        marks=(NOISY, VERY_NOISY),
    )
    note = "Dashed lines at 30 % and 50 %: from there on an answer is flagged noisy, very noisy."
    missing = len(report.items) - len(bars)
    note += f" Unbounded, and not drawn: {count(missing, 'item')}." if missing else ""
    caption = "Worth: median relative error by item"
    return _figure(caption, drawing, f"{note} {_charted(len(bars))}".strip())


def _charted(items: int) -> str:
    return f"The first {CHARTED_ITEMS} of {items}." if items > CHARTED_ITEMS else ""


def share_text(share: float) -> str:
    """Return a share in percent, to two digits however small it is.

    >>> share_text(0.00052), share_text(0.0213), share_text(15.3)
    ('0.052 %', '2.1 %', '1,530 %')
    """
    return (
        f"{written([float(f'{100 * share:.2g}')])[0].text} %" if share < 0.0995 else percent(share)
    )


def _table(report: Report) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in report.columns)
    body = "".join(
        _table_row(item, row) for item, row in zip(report.items, to_rows(report), strict=True)
    )
    extra = extra_note(report.manifest) if report.manifest.extra else ""
    note = f"<p>{escape(extra)}.</p>" if extra else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="All items"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
    )


def _table_row(item: ItemReport, row: Sequence[str]) -> str:
    name, *figures, _ = row
    description = f"<small>{escape(item.description)}</small>" if item.description else ""
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in figures)
    return (
        f'<tr><th scope="row"><a href="#item-{item.name}">{escape(name)}</a>{description}</th>'
        f'{cells}<td class="verdict">{pill(item)}</td></tr>'
    )


def _items(report: Report) -> str:
    return "".join(item_section(item, level=report.manifest.level) for item in report.items)


def _derived(report: Report) -> str:
    return "".join(derived_section(item, level=report.manifest.level) for item in report.derived)


def _curve(manifest: Manifest) -> str:
    points = [(epsilon, rmse) for epsilon, rmse in manifest.error_by_epsilon if rmse > 0]
    if len(points) < 2 or manifest.strategy.rmse is None:
        return ""
    now = (manifest.guarantee.epsilon, manifest.strategy.rmse)
    title = "RMS error at other values of ε, same strategy"
    note = "What the same questions would cost in error at other budgets; known without the data."
    return _figure(title, privacy_curve(points, now=now, title=title), note)


def _promise(manifest: Manifest) -> str:
    privacy, guarantee = manifest.privacy, manifest.guarantee
    rows = [
        ("Protected", unit_words(privacy)),
        ("Compared", neighbour_words(privacy)),
        ("Guarantee", guarantee_line(guarantee)),
        ("In words", odds_words(guarantee, privacy).removeprefix("In words: ")),
        ("All releases", guarantee.cumulative),
        ("Strategy", _strategy(manifest)),
        ("Ledger", f"event {manifest.ledger.seq}, {manifest.ledger.head[:16]}…"),
    ]
    return _definitions(rows)


def _strategy(manifest: Manifest) -> str:
    run, chosen_tables = manifest.rap, manifest.adaptive
    if chosen_tables is not None:
        rows = count(chosen_tables.relaxed_rows, "relaxed row")
        return f"{manifest.strategy.name}: {measured_count(chosen_tables)}, {rows}"
    if run is None:
        return f"{manifest.strategy.name}; {optimality(manifest)}"
    chosen = f"{count(run.rounds, 'round')} of {run.selected:,} chosen queries"
    queries = "every query" if manifest.answered is None else "every query of the release"
    measured = f"{queries} measured once" if run.selection_scale is None else chosen
    return f"{manifest.strategy.name}: {measured}, {count(run.relaxed_rows, 'relaxed row')}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _definitions(rows: Sequence[tuple[str, str]]) -> str:
    inner = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in rows)
    return f'<dl class="words">{inner}</dl>'


def _figure(caption: str, drawing: str, note: str = "") -> str:
    small = f"<small>{escape(note)}</small>" if note else ""
    return f"<figure><figcaption>{escape(caption)}{small}</figcaption>{drawing}</figure>"
