"""The page and its style.

The report as one page that needs nothing else: no network, no script, readable in print.

The style sheet of the report: light and dark, wide and narrow, screen and print.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from dpquery.releases.extra_columns import extra_note
from dpquery.releases.manifest import Manifest
from dpquery.releases.manifest_facts import over_units
from dpquery.releases.report.axes import number_ticks, percent_ticks, written
from dpquery.releases.report.figures import ItemReport, Report, optimality, to_rows
from dpquery.releases.report.marks import Bar, privacy_curve, value_bars
from dpquery.releases.report.sections import derived_section, item_section, pill
from dpquery.releases.statement import (
    BIASED,
    guarantee_line,
    measured_count,
    neighbour_words,
    odds_words,
    rmse_name,
    simulated_words,
    unit_words,
)
from dpquery.releases.tables.errors import NOISY, VERY_NOISY
from dpquery.releases.words import count, figure, percent, power, without_controls
from dpquery.untrusted.files import replace_file

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --box: #f5f6f8; --ink: #1c2430; --soft: #566070;
  --rule: #d5dae2; --accent: #2f5fb3; --warn: #a54a06; --good: #17693f; --weak: #a3262a;
  --c0: #2f5fb3; --c1: #b8520f; --c2: #2b7a4b;
  --h0: #eef3fb; --h1: #cfdff5; --h2: #a3c2ea; --h3: #6f9dda; --h4: #3d73bd; --h5: #1b4583;
  --h6: #f2c9a8; --spot: #b8520f; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --box: #1d232d; --ink: #e6e9ef;
  --soft: #a8b2c1; --rule: #3a4351; --accent: #6f9fe8; --warn: #f0a35e; --good: #6fcf97;
  --weak: #f28b82; --c0: #7aa7f0; --c1: #f0a35e; --c2: #6fcf97;
  --h0: #1f2836; --h1: #26405f; --h2: #305a8c; --h3: #4279b8; --h4: #6fa0dc; --h5: #b5d2f6;
  --h6: #6b4423; --spot: #f0a35e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 64px; }
a { color: var(--accent); }
a:focus-visible, summary:focus-visible, [tabindex]:focus-visible { outline: 3px solid var(--accent);
  outline-offset: 2px; }
.skip { position: absolute; left: -9999px; }
.skip:focus { left: 12px; top: 8px; background: var(--paper); padding: 6px 10px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 20px; margin: 32px 0 14px; padding-top: 16px; border-top: 1px solid var(--rule); }
h3 { font-size: 18px; margin: 0 0 2px; overflow-wrap: anywhere; }
h4 { font-size: 14px; margin: 12px 0 4px; overflow-wrap: anywhere; }
p { margin: 0 0 8px; overflow-wrap: anywhere; }
.kicker { color: var(--soft); margin: 0 0 4px; }
small { display: block; color: var(--soft); font-size: 13px; font-weight: 400; }
summary small { display: inline; margin-left: 6px; }
code { font-size: 13px; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 22px 0 0; }
.tile { background: var(--box); border-radius: 10px; padding: 12px 16px; min-width: 0; }
.tile dt { color: var(--soft); font-size: 13px; }
.tile dd { margin: 0; font-size: 20px; }
.tile b { font-size: 26px; font-weight: 650; overflow-wrap: anywhere; }
.pair figure { margin: 0 0 26px; max-width: 700px; }
article { padding: 0 0 30px; margin: 0 0 26px; border-bottom: 1px solid var(--rule); }
.item { display: grid; grid-template-columns: minmax(0, 700px) minmax(0, 1fr); gap: 12px 32px; }
.reading { font-size: 14px; }
.note { font-size: 13px; color: var(--soft); max-width: 700px; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: 8px; overflow-wrap: anywhere; }
details { margin: 8px 0; min-width: 0; }
summary { cursor: pointer; font-weight: 600; padding: 3px 0; overflow-wrap: anywhere; }
.one b { font-size: 34px; font-weight: 650; margin-right: 12px; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 0 0 6px;
  padding: 0; font-size: 13px; }
.legend li { display: flex; align-items: center; gap: 6px; overflow-wrap: anywhere; }
.swatch { flex: none; width: 24px; height: 14px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(158px, 1fr)); gap: 12px; }
.panel { min-width: 0; max-width: 210px; }
.panel p { font-size: 13px; margin: 0; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; }
svg { display: block; width: 100%; height: auto; }
svg.wide { max-width: 700px; } svg.narrow { display: none; max-width: 480px; }
svg.panel { max-width: none; }
svg text { font-size: 12px; fill: var(--ink); }
svg .tick { fill: var(--soft); }
svg text.head { fill: var(--ink); font-weight: 600; }
svg .end { text-anchor: end; }
svg .value { font-variant-numeric: tabular-nums; }
svg line { stroke: var(--rule); } svg .zero { stroke: var(--soft); }
svg .mark { stroke: var(--warn); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg .bar { fill: var(--accent); opacity: .55; }
svg .bar.flagged { fill: var(--paper); stroke: var(--warn); opacity: 1; }
svg .whisker { fill: none; stroke: var(--ink); stroke-width: 1.5; }
svg .dot { fill: var(--accent); } svg .now { fill: var(--warn); }
svg .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
svg .band { stroke: none; opacity: .25; } svg .hover { fill: transparent; }
.line.s0 { stroke: var(--c0); } .line.s1 { stroke: var(--c1); stroke-dasharray: 7 2; }
.line.s2 { stroke: var(--c2); stroke-dasharray: 2 2; }
.band.s0, .key.s0 { fill: var(--c0); } .band.s1, .key.s1 { fill: var(--c1); }
.band.s2, .key.s2 { fill: var(--c2); }
.h0 { stroke: var(--h0); } .h1 { stroke: var(--h1); } .h2 { stroke: var(--h2); }
.h3 { stroke: var(--h3); } .h4 { stroke: var(--h4); } .h5 { stroke: var(--h5); }
.h6 { stroke: var(--h6); } .h7, .h8 { stroke: var(--box); }
svg path[class^="h"] { fill: none; shape-rendering: crispEdges; }
.stroke { stroke: var(--soft); stroke-width: .8; fill: none; }
.noisy { stroke: var(--spot); stroke-width: 3.4; stroke-linecap: round; fill: none; }
.noisy.small { stroke-width: 1.8; }
.scroll { overflow-x: auto; margin: 8px 0; }
table { border-collapse: collapse; font-size: 14px; }
section > .scroll > table { width: 100%; }
caption { text-align: left; font-weight: 600; font-size: 14px; padding: 4px 0; }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); vertical-align: top; font-variant-numeric: tabular-nums; }
article th { text-align: left; } article tbody th { font-weight: 400; }
article th + td, article td + td { text-align: right; }
thead th { color: var(--soft); font-weight: 600; }
th:first-child, .verdict, thead th:last-child { text-align: left; }
section > .scroll th:first-child, .verdict { white-space: normal; }
section > .scroll th:first-child { min-width: 150px; }
.verdict { min-width: 230px; }
.pill { display: inline-block; min-width: 46px; padding: 0 8px; border-radius: 9px;
  border: 1px solid currentColor; text-align: center; font-size: 12px; }
.good { color: var(--good); } .fair { color: var(--warn); } .weak { color: var(--weak); }
.unknown { color: var(--soft); }
.words { display: grid; grid-template-columns: minmax(100px, 170px) minmax(0, 1fr); gap: 8px 20px;
  margin: 0; }
.words dt { font-weight: 600; overflow-wrap: anywhere; }
.words dd { margin: 0; max-width: 70ch; overflow-wrap: anywhere; }
@media (max-width: 1139px) { .item { grid-template-columns: minmax(0, 1fr); }
  .reading { max-width: 700px; } }
@media screen and (max-width: 759px) { main { padding: 20px 14px 48px; }
  th, td { padding: 4px 6px; font-size: 13px; } svg.wide { display: none; }
  svg.narrow { display: block; } }
@media print { main { max-width: none; padding: 0; } article { border: 0; }
  figure svg, tr, .panel, .tile { break-inside: avoid; } h3, h4, summary { break-after: avoid; }
  .scroll { overflow: visible; } th, td { padding: 3px 6px; font-size: 12px; }
  article th, article td { white-space: normal; } article table { break-inside: avoid; }
  .skip, .more { display: none; }
  details::details-content { content-visibility: visible; display: block; } }
"""


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
