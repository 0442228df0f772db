"""The report as one page that needs nothing else: no network, no script, readable in print."""

import re
from collections.abc import Callable, Collection, Sequence
from html import escape
from pathlib import Path

from dpquery.releases.extra_columns import extra_note, reading_sample
from dpquery.releases.manifest import Manifest
from dpquery.releases.manifest_facts import AdaptiveFacts
from dpquery.releases.report.axes import TickWriter, breaking, number_ticks, percent_ticks, written
from dpquery.releases.report.figures import (
    GOOD_RECORDS,
    GRADE_NAMES,
    INTERVAL_COLUMNS,
    Report,
    optimality,
    sample_words,
    to_rows,
)
from dpquery.releases.report.marks import Mark, points, privacy_curve
from dpquery.releases.report.sections import derived_section, item_section, pill, scroll_table
from dpquery.releases.statement import (
    biased_words,
    guarantee_line,
    known_errors,
    measured_count,
    neighbour_words,
    odds_words,
    rmse_name,
    unit_words,
    weighted_words,
)
from dpquery.releases.tables.item_table import NOISY, VERY_NOISY
from dpquery.releases.words import count, figure, level_text, percent, sentence, without_controls
from dpquery.spec.numbers import power
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
p { margin: 0 0 8px; max-width: 75ch; overflow-wrap: anywhere; }
.kicker, .about { color: var(--soft); }
nav ul { list-style: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 18px; }
nav { margin: 20px 0 0; } nav ul ul { margin: 2px 0 0 18px; font-size: 14px; gap: 2px 14px; }
nav li:has(ul) { flex-basis: 100%; }
small { display: block; color: var(--soft); font-size: 13px; font-weight: 400; }
summary small { display: inline; margin-left: 6px; }
code { font-size: 13px; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px;
  margin: 22px 0 0; }
.tile { background: var(--box); border-radius: 10px; padding: 12px 16px; min-width: 0; }
.tile dt { color: var(--soft); font-size: 13px; }
.tile dd { margin: 0; font-size: 20px; }
.tile b { font-size: 26px; font-weight: 650; overflow-wrap: anywhere; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr));
  gap: 24px 40px; align-items: start; }
article { padding: 0 0 22px; margin: 0 0 24px; border-bottom: 1px solid var(--rule); }
.item { display: grid; grid-template-columns: minmax(0, 700px) minmax(0, 1fr); gap: 12px 32px; }
.item > .reading:first-child { grid-column: 1 / -1; }
.reading { font-size: 14px; min-width: 0; } .reading th, .reading td { padding: 4px 12px 4px 0;
  font-size: 13px; }
.note { font-size: 13px; color: var(--soft); }
figure { margin: 0; min-width: 0; }
details { margin: 8px 0; min-width: 0; }
summary { cursor: pointer; font-weight: 600; padding: 3px 0; overflow-wrap: anywhere; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 0 0 6px;
  padding: 0; font-size: 13px; }
.legend li { display: flex; align-items: center; gap: 6px; overflow-wrap: anywhere; min-width: 0; }
.swatch { flex: none; width: 24px; height: 14px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px; }
.panel { min-width: 0; } .panel > p { font-size: 13px; margin: 0 0 8px; white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis; }
.plot { display: grid; grid-template-columns: min(var(--w), 42%) minmax(0, 1fr); font-size: 12px;
  padding-right: 18px; margin: 2px 0 10px; max-width: 760px; }
.plot svg { width: 100%; height: var(--h); display: block; overflow: visible; }
.plot .unit { grid-column: 1 / -1; margin: 0 0 8px; color: var(--soft); }
.plot i, .points i { position: absolute; font-style: normal; white-space: nowrap; line-height: 1.2;
  color: var(--soft); }
.ys { position: relative; } .ys i { right: 6px; transform: translateY(-50%); max-width: 100%;
  overflow: hidden; text-overflow: ellipsis; }
.xs { grid-column: 2; min-width: 0; } .xs div { position: relative; height: var(--x, 20px); }
.xs i { top: 5px; transform: translateX(var(--s)); }
.xs i:not(.up)::before { content: ""; position: absolute; top: -5px; height: 4px;
  left: calc(-1 * var(--s)); border-left: 1px solid var(--soft); }
.xs i.up { writing-mode: vertical-rl; transform: translateX(-50%) rotate(180deg); }
.xs p { margin: 0; max-width: none; text-align: right; color: var(--soft); font-size: 12px; }
.plot path { fill: none; vector-effect: non-scaling-stroke; }
.plot path.grid { stroke: var(--rule); } .plot path.zero { stroke: var(--soft); }
path.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
path.alone { fill: none; stroke-width: 7; stroke-linecap: round; }
path.band { stroke: none; opacity: .25; }
.line.s0, .alone.s0 { stroke: var(--c0); } .line.s1 { stroke: var(--c1); stroke-dasharray: 7 2; }
.alone.s1 { stroke: var(--c1); }
.line.s2 { stroke: var(--c2); stroke-dasharray: 2 2; } .alone.s2 { stroke: var(--c2); }
path.band.s0 { fill: var(--c0); } path.band.s1 { fill: var(--c1); }
path.band.s2 { fill: var(--c2); }
path.h0 { fill: var(--h0); } path.h1 { fill: var(--h1); } path.h2 { fill: var(--h2); }
path.h3 { fill: var(--h3); } path.h4 { fill: var(--h4); } path.h5 { fill: var(--h5); }
path.h6 { fill: var(--h6); } path.h7 { fill: var(--box); }
path.h8 { fill: var(--paper); stroke: var(--rule); stroke-width: .8; }
path[class^="h"] { shape-rendering: crispEdges; }
path.stroke { stroke: var(--soft); stroke-width: .8; }
path.noisy { stroke: var(--spot); stroke-width: 3.6; stroke-linecap: round; }
path.noisy.small { stroke-width: 2; }
table { border-collapse: collapse; font-size: 14px; }
caption { text-align: left; font-weight: 600; font-size: 14px; padding: 4px 0; }
th, td { padding: 5px 10px; text-align: left; border-bottom: 1px solid var(--rule);
  vertical-align: top; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; margin: 8px 0; } .full .scroll { max-height: 480px; }
.scroll th, .scroll td { white-space: nowrap; }
.reading .scroll :is(th, td) { white-space: normal; padding-right: 8px; }
thead th { color: var(--soft); font-weight: 600; }
tbody th { font-weight: 400; } .all th, .all td { white-space: normal; }
.all tbody th { min-width: 130px; overflow-wrap: anywhere; } .all .verdict { min-width: 160px; }
.all tr > :nth-child(n+3), .reading tr > :nth-child(n+3), .points tr > :nth-child(3),
.full tr > :first-child { text-align: right; }
.all td:nth-child(n+3) { white-space: nowrap; }
.points { width: 100%; table-layout: fixed; }
.points th, .points td { padding: 1px 6px 1px 0; vertical-align: middle; border: 0;
  overflow-wrap: break-word; line-height: 1.3; }
.points thead th, .points thead td { border-bottom: 1px solid var(--rule); }
.points tr > :first-child { width: 32%; }
.points tr > :last-child { width: 25%; padding-left: 12px; }
.points th[scope="rowgroup"] { font-weight: 600; padding: 8px 0 0; width: auto; }
.points tfoot td { border-top: 1px solid var(--rule); vertical-align: top; font-size: 12px; }
.points small { font-size: 12px; }
.points td.strip { position: relative; height: 24px; padding: 0; }
.strip svg { position: absolute; left: 0; top: 0; width: 100%; height: 100%; overflow: visible; }
.strip line { stroke: var(--rule); } .strip .zero { stroke: var(--soft); }
.strip .mark { stroke: var(--warn); stroke-width: 1.5; stroke-dasharray: 4 3; }
.strip .whisker { stroke: var(--accent); stroke-width: 2; opacity: .7; }
.strip .dot { fill: var(--accent); stroke: var(--accent); stroke-width: 1.5; }
.strip text { fill: var(--accent); font-size: 18px; }
.strip .dot.flagged { fill: var(--paper); stroke: var(--warn); }
.pill { display: inline-block; min-width: 46px; padding: 0 8px; border-radius: 9px;
  border: 1px solid currentColor; text-align: center; font-size: 12px; }
.good { color: var(--good); } .fair { color: var(--warn); } .weak { color: var(--weak); }
.unknown { color: var(--soft); }
.words { display: grid; grid-template-columns: minmax(100px, 170px) minmax(0, 1fr); gap: 8px 20px;
  margin: 0; }
.words dt { font-weight: 600; overflow-wrap: anywhere; }
.words dd { margin: 0; max-width: 70ch; overflow-wrap: anywhere; }
@media (max-width: 1139px) { .item { grid-template-columns: minmax(0, 1fr); } }
@media screen and (max-width: 759px) { main { padding: 20px 14px 48px; }
  th, td { padding: 4px 6px; font-size: 13px; } .points tr > :first-child { width: 34%; }
  .all tr > :nth-child(n+5) { display: none; } .all tbody th, .all .verdict { min-width: 90px; }
  .points tr > :last-child { width: 28%; } .words { grid-template-columns: minmax(0, 1fr); } }
@media print { body { font-size: 13px; } main { max-width: none; padding: 0; }
  article { border: 0; padding: 0; } .item, .panels { display: block; }
  .panel { display: inline-block; width: 24%; vertical-align: top; } .scroll { overflow: visible; }
  .pair { grid-template-columns: 1fr 1fr; } small { font-size: 11px; }
  th, td { padding: 3px 8px; font-size: 12px; } .words { gap: 3px 20px; font-size: 12px; }
  .full th, .full td { padding: 0 10px; font-size: 11px; }
  .plot { font-size: 10px; } .plot svg, .ys { height: min(var(--h), 560px); }
  .plot, tr, .panel, .tile, .lead, .reading p, .legend,
  :is(.points tbody, .scroll table):not(:has(tr:nth-child(25)), .all *) { break-inside: avoid; }
  h2, h3, h4, .lead, summary, caption, thead, .legend { break-after: avoid; }
  .reading p:last-child, .note, .all tr:last-child, tfoot { break-before: avoid; }
  .skip, nav, [download], .full:has(tr:nth-child(61)), .full summary { display: none; }
  details:is(.part, .full)::details-content { content-visibility: visible; display: block; } }
"""


CHARTED_ITEMS = 40
REPORT_MARK = b"default-src 'none'; style-src 'unsafe-inline'\">\n<title>Error report: "
"""Text in the head of every report, by which a file is recognised as one."""
_OR_EXACT = f"; or half of the noise interval is typically {GOOD_RECORDS:g} record or less"
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
        f"are flagged{_OR_EXACT}. Weak: half of them or more are flagged. Fair: in between.",
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
        "How far an estimate lies from the count in the records depends on the records, and was "
        "not measured for single estimates. It is not that the errors are small.",
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
    title = report.about.title or f"{manifest.dataset.id}, version {manifest.dataset.version}"
    parts = [item_section(item) for item in report.items]
    weighted = manifest.privacy.weight is not None
    derived = [
        derived_section(item, level=manifest.level, weighted=weighted) for item in report.derived
    ]
    marks = {mark for _, shown in [*parts, *derived] if shown is not None for mark in shown.marks}
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
    sections = [
        ("all", "All items", _table(report)),
        ("worth", "What the answers are worth", _error_charts(report)),
        ("reading", "How to read it", _reading(report, marks)),
        ("items", "Item by item", "".join(html for html, _ in parts)),
        ("derived", "Derived from the answers", "".join(html for html, _ in derived)),
        ("curve", "Error against privacy", _curve(manifest)),
        ("promise", "What is promised", _definitions(rows)),
        ("words", "Words", _definitions(_glossary(manifest))),
    ]
    sections = [section for section in sections if section[2]]
    bodies = (
        f'<section id="{place}"><h2>{name}</h2>{body}</section>\n' for place, name, body in sections
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        f'content="{REPORT_MARK.decode()}{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n"
        f'<body>\n<a class="skip" href="#items">To the items</a>\n'
        f"<main>\n{_header(report, title)}{_contents(report, sections)}{''.join(bodies)}</main>\n"
        "</body>\n</html>\n"
    )


def _contents(report: Report, sections: Sequence[tuple[str, str, str]]) -> str:
    links = ""
    for place, name, _ in sections:
        below = ""
        if place == "items":
            of_items = (
                f'<li><a href="#item-{item.name}">{escape(item.title)}</a></li>'
                for item in report.items
            )
            below = f"<ul>{''.join(of_items)}</ul>"
        links += f'<li><a href="#{place}">{name}</a>{below}</li>'
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n'


def _header(report: Report, title: str) -> str:
    manifest, about = report.manifest, report.about
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
    facts = {
        "Dataset": f"{manifest.dataset.id}, version {manifest.dataset.version}",
        "Period": about.period,
        "Area": about.area,
        "Next update": about.next_update,
        "Contact": about.contact,
        "Licence": about.licence,
    }
    said = " · ".join(f"{name}: {text}" for name, text in facts.items() if text)
    description = f"<p>{escape(about.description)}</p>" if about.description else ""
    return (
        f"<header><p class=kicker>Differentially private tables: error report</p>"
        f"<h1>{escape(title)}</h1>{description}<p class=about>{escape(said)}</p>"
        f"<p>{escape(guarantee_line(guarantee))}.</p><dl class=tiles>{boxes}</dl></header>\n"
    )


HOW_TO_READ = {
    "points": (
        "A point is an estimate, the line through it its interval. Hollow points are "
        "flagged: their standard error is 30 % of the estimate or more. An arrow stands for a "
        "total that lies far beyond the scale.",
        "A point is an estimate. An arrow stands for a total that lies far beyond the scale.",
    ),
    "lines": (
        "A line joins the estimates, the band around it is the interval of each; where no "
        "band is seen, it is thinner than the line.",
        "A line joins the estimates.",
    ),
    "map": (
        "In a map, the stronger the blue, the more. A dot marks answers that are flagged, a stroke "
        "those that are not published.",
        "In a map, the stronger the blue, the more. A stroke marks answers that are not published.",
    ),
}
"""How each mark of the pictures is read, where errors are known and where they are not."""


def _reading(report: Report, marks: Collection[str]) -> str:
    level = level_text(report.manifest.level)
    known, weight = report.manifest.error_bars, report.manifest.privacy.weight
    of = report.manifest.privacy.counted_words
    sentences = [] if weight is None else [f"{weight.words}."]
    sentences += [words[not known] for mark, words in HOW_TO_READ.items() if mark in marks]
    if known:
        sentences += [
            f"A noise interval holds the true answer{of and of + ','} in {level} of releases. "
            "Answers below zero are noise around small ones.",
            "Intervals that are drawn or listed are of sample and noise where the release has the "
            "error of the sample, else of noise; other figures, flags and verdicts are of noise."
            * report.manifest.tells_sample,
            "An item whose answers are of several levels is judged at each of them. What is drawn "
            "for many is chosen by noisy values, so chance has a part in it.",
        ]
    html = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences if sentence)
    return re.sub("`([^`]+)`", r"<code>\1</code>", html)


def _glossary(manifest: Manifest) -> Sequence[tuple[str, str]]:
    if manifest.error_bars and manifest.privacy.weight is not None:
        sample = reading_sample(manifest).replace("`", "")
        of_sample = f"How far answers typically lie from those of the population. {sample}"
        told = GLOSSARY + (("Error of the sample", of_sample),) * bool(sample)
        return [(name, weighted_words(words).replace(_OR_EXACT, "")) for name, words in told]
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
        if isinstance(fitted, AdaptiveFacts) and fitted.distances:
            worst = max(fitted.distances, key=lambda each: each.distance)
            share = f"<b>{worst.share(fitted.total)}</b>"
            tiles = [("Measured distance (95 %)", share, "of the records, the mean over tables")]
        elif fitted is not None and fitted.simulated is not None:
            seen = fitted.simulated
            main = f"<b>{figure(seen.rmse)}</b>"
            tiles.append((f"Simulated {rmse_name(seen.weighted)}", main, "counts, on other data"))
        return [*tiles, ("Strategy", name, "biased; fitted to noisy counts")]
    grades = [item.grade for item in report.items]
    given = [
        f"{grades.count(grade)} {grade}" for grade in (*GRADE_NAMES, "unknown") if grade in grades
    ]
    return [
        ("Verdicts", f"<b>{given[0]}</b>", ", ".join([*given[1:], "by item"])),
        ("Flagged", f"<b>{percent(report.flagged_share)}</b>", "of all answers"),
        (
            "Strategy",
            f"<b>{share_text(max(ratio - 1, 0.0))}</b>" if ratio else name,
            "above the least possible error, at most" if ratio else "no bound is known",
        ),
    ]


def _error_charts(report: Report) -> str:
    if report.manifest.fitted is not None:
        biased = escape(biased_words(report.manifest).replace("**", ""))
        return f"<p>{biased}</p><p>{escape(sentence(known_errors(report.manifest)))}</p>"
    charts, weighted = [], "weighted " * (report.manifest.privacy.weight is not None)
    for unit in dict.fromkeys(i.summed and i.summed.of for i in report.items):
        errors = [(i.title, i.rmse) for i in report.items if (i.summed and i.summed.of) == unit]
        name = f"in {weighted}counts" if unit is None else f"in the unit of {weighted}{unit}"
        charts.append(_error_chart(f"Noise: RMS error by item, {name}", "RMS error", errors))
    relative = [(i.title, i.median_rel_error) for i in report.items]
    missing = sum(error is None for _, error in relative)
    note = "Dashed lines at 30 % and 50 %: from there on an answer is flagged noisy, very noisy."
    note += f" Unbounded, and not drawn: {count(missing, 'item')}." if missing else ""
    if missing < len(relative):
        caption, marks = "Worth: median relative error by item", (NOISY, VERY_NOISY)
        charts.append(
            _error_chart(caption, "relative error", relative, share_text, percent_ticks, marks)
            + f'<p class="note">{note}</p>'
        )
    return f'<div class="pair">{"".join(f"<div>{chart}</div>" for chart in charts)}</div>'


def _error_chart(
    caption: str,
    head: str,
    errors: Sequence[tuple[str, float | None]],
    text: Callable[[float], str] = figure,
    ticks: TickWriter = number_ticks,
    marks: Sequence[float] = (),
) -> str:
    """Return a point for the error of each item, on a logarithmic axis where they lie far apart."""
    known = [(title, error) for title, error in errors if error is not None]
    rows = [Mark(title, error, text(error)) for title, error in known[:CHARTED_ITEMS]]
    more = f", the first {CHARTED_ITEMS} of {len(known)}" if len(known) > CHARTED_ITEMS else ""
    heads, caption = ("item", head), f"{caption}{more}"
    return points(rows, caption=caption, heads=heads, axis=head, ticks=ticks, marks=marks, far=True)


def share_text(share: float) -> str:
    """Return a share in percent, to two digits however small it is.

    >>> share_text(0.00052), share_text(0.0213), share_text(15.3)
    ('0.052 %', '2.1 %', '1,530 %')
    """
    return (
        f"{written([float(f'{100 * share:.2g}')])[0].text} %" if share < 0.0995 else percent(share)
    )


def _table(report: Report) -> str:
    names = list(report.columns)
    heads = [names[0], names[-1], *names[2:-1], names[1]]
    body = []
    for item, (name, answers, *figures, verdict) in zip(report.items, to_rows(report), strict=True):
        description = f"<small>{escape(item.description)}</small>" if item.description else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in (*figures, answers))
        judged = escape(verdict) if report.measured else pill(item.grade, verdict)
        body.append(
            f'<tr><th scope="row"><a href="#item-{item.name}">{breaking(name)}</a>{description}'
            f'</th><td class="verdict">{judged}</td>{cells}</tr>'
        )
    notes = [extra_note(report.manifest)] if report.manifest.extra else []
    note = "".join(f"<p>{escape(words)}.</p>" for words in (*notes, *sample_words(report)))
    table = scroll_table("All items", heads, body, cls="scroll all")
    return f"{table}{_derived_table(report)}{note}"


def _derived_table(report: Report) -> str:
    """Return how wide the intervals of derived items are, and how many rows have no value."""
    if not report.derived:
        return ""
    body = [
        f'<tr><th scope="row"><a href="#derived-{name}">{breaking(name)}</a></th>'
        f"{''.join(f'<td>{escape(cell)}</td>' for cell in figures)}</tr>"
        for name, *figures in (item.summary for item in report.derived)
    ]
    return scroll_table("Derived items", INTERVAL_COLUMNS, body, cls="scroll reading")


def _curve(manifest: Manifest) -> str:
    curve = [(epsilon, rmse) for epsilon, rmse in manifest.error_by_epsilon if rmse > 0]
    if len(curve) < 2 or manifest.strategy.rmse is None:
        return ""
    now = (manifest.guarantee.epsilon, manifest.strategy.rmse)
    title = "RMS error at other values of ε, same strategy"
    note = "What the same questions would cost in error at other budgets; known without the data."
    return f'{privacy_curve(curve, now=now, title=title)}<p class="note">{note}</p>'


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


def _definitions(rows: Sequence[tuple[str, str]]) -> str:
    inner = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in rows)
    return f'<dl class="words">{inner}</dl>'
