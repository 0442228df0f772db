"""What the report draws: axes, marks, and which picture an item has."""

import html
import json
import re
import shutil
import subprocess
from datetime import date
from itertools import pairwise

import numpy as np
import pytest
from report_support import (
    KINDS_OF_SHAPES,
    articles,
    every_svg,
    faults,
    level_axes,
    pictures,
    release_of_shapes,
)

from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.releases.report import answers as cells_module
from dpquery.releases.report.answers import read_cells
from dpquery.releases.report.axes import (
    NARROWEST,
    PANEL_WIDTH,
    STRIP_WIDTH,
    Scale,
    date_ticks,
    percent_ticks,
    value_scale,
    written,
)
from dpquery.releases.report.marks import HeatMap, MapSide, map_key
from dpquery.releases.report.page import STYLE, page
from dpquery.releases.report.pictures import PICTURE_KINDS


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return release_of_shapes(tmp_path_factory.mktemp("shapes"))


@pytest.fixture(scope="module")
def text(report):
    return page(report)


@pytest.fixture(scope="module")
def parts(report):
    return articles(report)


def item_of(report, name):
    return next(item for item in report.items if item.name == name)


def test_every_shape_has_its_kind_of_picture(report, parts):
    assert [item.name for item in report.items] == [*parts] == [*KINDS_OF_SHAPES]
    kinds = {name: re.search(r'data-kind="([^"]+)"', part)[1] for name, part in parts.items()}
    assert kinds == KINDS_OF_SHAPES


def test_no_item_is_without_marks_rows_and_words(parts):
    for name, part in parts.items():
        assert 'class="dot' in part or pictures(part), name
        for words in (
            f"{name}.parquet",
            "Columns:",
            "<caption>",
            "<tbody>",
            ">CSV of what is shown<",
        ):
            assert words in part, (name, words)


def test_whatever_no_other_kind_fits_is_drawn_by_its_extremes(report):
    assert PICTURE_KINDS[-1].name == "extremes"
    assert all(PICTURE_KINDS[-1].fits(item.cells) for item in report.items)


def test_dates_are_an_axis_and_its_marks_are_days(parts):
    for name, marks in (("days", {"Jan 2013", "Jul 2013"}), ("months", {"2013", "2014"})):
        ((_, texts),) = level_axes(parts[name])
        assert marks <= {text for _, _, text in texts}


def test_sums_are_drawn_in_their_unit_and_thresholds_say_what_is_counted(parts):
    assert "Sums of age: one record adds at most 99 either way" in parts["sums"]
    assert "Counted are records that meet any of the conditions." in parts["either"]


def test_texts_of_an_axis_are_different_inside_and_apart_in_the_narrowest_window(text):
    axes = level_axes(text)
    assert {room for room, _ in axes} == {NARROWEST, PANEL_WIDTH, STRIP_WIDTH}
    assert sum(len(texts) for _, texts in axes) > 150
    assert faults(text) == []
    for _, texts in axes:
        assert len({t for _, _, t in texts}) == len(texts)
    closer = re.sub(r"left:[1-9][\d.]*%", "left:12%", text)
    assert len(faults(closer)) > 50


@pytest.mark.parametrize("top", [3e-7, 0.0004, 0.0012, 0.07, 3.0, 12345.0, 99999999.0, 3e20])
def test_marks_have_as_many_digits_as_tell_them_apart(top):
    ticks = percent_ticks(value_scale([top]))
    assert len(ticks) > 2
    assert len({tick.text for tick in ticks}) == len(ticks)
    for tick in ticks:
        shown = float(tick.text.removesuffix(" %").replace(",", "")) / 100
        assert shown == pytest.approx(tick.value, rel=1e-3)


def test_days_are_marked_from_a_week_to_centuries():
    for length in (2, 6, 13, 40, 100, 400, 1000, 4000, 40_000, 700_000):
        first = date(2013, 1, 1).toordinal() if length < 100_000 else 1
        ticks = date_ticks(Scale(first, first + length))
        assert 1 <= len(ticks) <= 15, (length, ticks)
        assert len({tick.text for tick in ticks}) == len(ticks)
        assert all(first <= tick.value <= first + length for tick in ticks)


def test_close_marks_differ():
    assert [tick.text for tick in written([1.00001, 1.00002])] == ["1.00001", "1.00002"]


def value_of(part):
    """What gives the value of a height in the drawing of a plot, from the texts left of it."""
    left = re.search(r'<div class="ys"[^>]*>(.*?)</div>', part)[1]
    marks = re.findall(r'top:([\d.]+)%">(.*?)</i>', left)
    (y0, v0), (y1, v1) = [(10 * float(y), float(v.replace(",", ""))) for y, v in marks][:2]
    return lambda y: v0 + (v1 - v0) / (y1 - y0) * (y - y0)


def places(commands):
    """Return the (n, 2) places of a path of one move and relative lines."""
    steps = np.array([float(text) for text in re.findall(r"-?\d+", commands)]).reshape(-1, 2)
    return np.cumsum(steps, axis=0)


def test_bands_are_the_intervals_of_the_file(report, parts):
    cells, value = item_of(report, "hours").cells, value_of(parts["hours"])
    (svg,) = pictures(parts["hours"])
    paths = {path.get("class"): path.get("d") for path in svg.iter("path")}
    ends = value(places(paths["band s0"])[:, 1])
    assert ends[: len(cells)] == pytest.approx(cells.high, abs=9)
    assert ends[len(cells) :][::-1] == pytest.approx(cells.low, abs=9)
    assert value(places(paths["line s0"])[:, 1]) == pytest.approx(cells.value, abs=9)


def test_points_and_whiskers_are_the_answers_and_their_intervals(report, parts):
    cells = item_of(report, "states").cells
    strips = every_svg(parts["states"])
    rows = [{e.get("class").split()[0]: e for e in svg.iter() if e.get("class")} for svg in strips]
    zero = float(rows[0]["zero"].get("x1")[:-1])

    def share(mark, name):
        return np.array([float(row[mark].get(name)[:-1]) for row in rows]) - zero

    scale = share("dot", "cx").max() / cells.value.max()
    assert (cells.value < 0).any()
    for places_of, values in (
        (share("dot", "cx"), cells.value),
        (share("whisker", "x1"), cells.low),
        (share("whisker", "x2"), cells.high),
    ):
        assert places_of == pytest.approx(values * scale, abs=0.02)
    for row in range(len(cells)):
        assert all(text in parts["states"] for text in cells.answer_words(row))


def test_what_is_not_published_has_no_mark(report, parts):
    bars, cells = parts["rounded"], item_of(report, "rounded").cells
    hidden = int(cells.withheld.sum())
    assert 0 < hidden < len(cells)
    assert len(re.findall('class="dot', bars)) == len(cells) - hidden
    assert bars.count("not published") == hidden
    assert f"a rule on noisy values leaves out {hidden} of {len(cells)} answers" in bars
    assert "not published" in parts["rounded_map"]
    line = item_of(report, "rounded_line").cells
    (svg,) = pictures(parts["rounded_line"])
    drawn = [
        len(places(part.removesuffix("h0")))
        for path in svg.iter("path")
        if path.get("class") in ("line s0", "alone s0")
        for part in path.get("d").split("M")
        if part
    ]
    assert sum(drawn) == len(line) - int(line.withheld.sum())


def test_shades_of_a_map_are_the_answers(report, parts):
    cells = item_of(report, "map").cells
    (svg,) = pictures(parts["map"])
    paths = {path.get("class"): path.get("d") for path in svg.iter("path")}
    cells_of = {
        cls: sum(map(int, re.findall(r"h(\d+)v", commands))) for cls, commands in paths.items()
    }
    first_break = float(re.search(r"0 to ([\d,.]+)</li>", parts["map"])[1].replace(",", ""))
    assert sum(cells_of.values()) == len(cells)
    assert cells_of["h6"] == (cells.value < 0).sum()
    assert cells_of["h0"] == ((cells.value >= 0) & (cells.value < first_break)).sum()
    assert paths["noisy"].count("h0") == cells.flagged.sum()


def test_the_least_and_the_most_reliable_answers_are_those_of_the_whole_file(
    report, tmp_path, monkeypatch
):
    out = release_of_shapes(tmp_path)
    whole = item_of(out, "too_wide").cells
    expected = np.sort(whole.by_reliability[:8])
    path = tmp_path / "out" / "too_wide.parquet"
    monkeypatch.setattr(cells_module, "HELD_VALUES", 10)
    few = read_cells(path, ["day", "age"], item_of(out, "too_wide").facts)
    assert not few.whole
    assert len(few) <= 16
    assert few.relative.min() == pytest.approx(whole.relative[expected].min())
    assert few.relative.max() == pytest.approx(whole.relative.max())
    words = {whole.words(row, whole.varying) for row in range(len(whole))}
    assert {few.words(row, few.varying) for row in range(len(few))} <= words


@pytest.mark.nightly
def test_numbered_items_are_drawn_like_labelled_ones(report, tmp_path):
    numbered = release_of_shapes(tmp_path, labelled=1)
    item = item_of(numbered, "pairs")
    assert item.facts.numbered
    labelled = item_of(report, "pairs").cells
    values = {
        (round(v, 6), round(low, 6)) for v, low in zip(labelled.value, labelled.low, strict=True)
    }
    assert {
        (round(v, 6), round(x, 6)) for v, x in zip(item.cells.value, item.cells.low, strict=True)
    } <= values
    assert item.cells.relative.max() == pytest.approx(labelled.relative.max())
    assert "hour " in " ".join(item.cells.dimensions[0].texts)
    part = articles(numbered)["pairs"]
    assert 'data-kind="extremes"' in part
    assert "pairs.labels.parquet" in part
    assert faults(part) == []


def test_everything_can_be_reached_and_read_without_a_picture(report, text):
    names = re.findall(r' id="([^"]+)"', text)
    assert len(set(names)) == len(names)
    targets = re.findall(r'href="#([^"]+)"', text)
    assert set(targets) <= set(names)
    assert len(targets) > len(report.items)
    for region in re.findall(r'<div class="scroll"[^>]*>', text):
        assert 'tabindex="0" role="region" aria-label="' in region
    ranks = [int(rank) for rank in re.findall(r"<h([1-6])", text)]
    assert ranks[0] == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(ranks))
    assert text.count("<table") == text.count("<thead")
    assert re.search('tabindex="[1-9]', text) is None


def luminance(colour):
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_stand_off_the_paper(scheme):
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.S)
    colours = {
        k: v if len(v) == 7 else "#" + "".join(2 * c for c in v[1:])
        for k, v in re.findall(r"--([\w]+): (#[0-9a-f]+)", blocks[scheme])
    }
    for name in ("ink", "soft", "warn", "good", "weak", "accent"):
        assert contrast(colours[name], colours["paper"]) >= 4.5, name
    for name in ("ink", "soft"):
        assert contrast(colours[name], colours["box"]) >= 4.5, name
    for name in ("c0", "c1", "c2", "spot"):
        assert contrast(colours[name], colours["paper"]) >= 3, name
    shades = [luminance(colours[f"h{k}"]) for k in range(6)]
    assert shades == sorted(shades, reverse=scheme == 0)


def test_the_page_of_all_shapes_is_light_and_the_same_each_time(report, text):
    assert page(report) == text
    assert len(text) < 60_000 * len(report.items)


def test_answers_that_are_all_alike_make_whole_pictures(tmp_path):
    def alike(item):
        for table in item.tables:
            error = np.full(table.size, 1.0)
            yield TableAnswers(table, 0 * error, error, error)

    report = release_of_shapes(tmp_path, answers=alike)
    text = re.sub(r"<style>.*?</style>", "", page(report), flags=re.DOTALL)
    assert re.search(r"\bnan\b|\binf\b", text.lower()) is None
    assert faults(text) == []


@pytest.mark.parametrize(("unit", "noise"), [("count", True), ("percent", True), ("gap", False)])
def test_what_is_below_zero_is_noise_where_nothing_can_be_there(unit, noise):
    side, nothing = MapSide("x", ["a"]), np.zeros((1, 1), bool)
    key = map_key([HeatMap(side, side, np.array([[-1.0]]), nothing, nothing)], [0.0, 1.0], unit)
    assert "below 0" in key
    assert ("noise" in key) == noise


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)
WIDTHS = (400, 800, 1400)

MEASURE = r"""
const faults = [], page = document.documentElement;
document.querySelectorAll("details").forEach(part => { part.open = true; });
if (page.scrollWidth > window.innerWidth) faults.push(`the page is ${page.scrollWidth} wide`);
let charts = 0, texts = 0, smallest = 99;
const overlap = (a, b) => Math.min(Math.min(a.right, b.right) - Math.max(a.left, b.left) - 1,
                                   Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) - 3);
document.querySelectorAll(".plot, table.points").forEach(chart => {
  const frame = chart.getBoundingClientRect();
  const name = chart.querySelector("svg[aria-label], caption");
  const called = name.ariaLabel || name.textContent;
  if (!frame.width) return;
  charts += 1;
  const boxes = [...chart.querySelectorAll("i, tbody th, tbody td:last-child")].map(text =>
    [text.textContent, text.getBoundingClientRect(), parseFloat(getComputedStyle(text).fontSize)]);
  if (boxes.length < 2) faults.push(`${called}: an axis is lost`);
  texts += boxes.length;
  boxes.forEach(([text, box, size], k) => {
    smallest = Math.min(smallest, size);
    if (box.left < frame.left - 1 || box.right > frame.right + 1
        || box.top < frame.top - 12 || box.bottom > frame.bottom + 1)
      faults.push(`${called}: ${text} is cut off`);
    boxes.slice(0, k).forEach(([other, around]) => {
      if (overlap(box, around) > 0) faults.push(`${called}: ${text} stands on ${other}`);
    });
  });
});
const blocksOfText = "article, section, figure, .reading, .tile, .legend li, p, h1, h2, h3, h4";
document.querySelectorAll(`${blocksOfText}, summary`).forEach(part => {
    const box = part.getBoundingClientRect();
    if (box.width && !part.closest(".skip") && (box.right > page.clientWidth + 1 || box.left < -1))
      faults.push(`${part.tagName} sticks out: ${part.textContent.slice(0, 40)}`);
  });
const blocks = [...document.querySelectorAll("article > *, .item > *, figure > *, .legend li")];
blocks.forEach(one => blocks.forEach(two => {
  if (one.compareDocumentPosition(two) & Node.DOCUMENT_POSITION_FOLLOWING && !one.contains(two)
      && one.getBoundingClientRect().width && two.getBoundingClientRect().width
      && overlap(one.getBoundingClientRect(), two.getBoundingClientRect()) > 0)
    faults.push(`${one.tagName}.${one.className} lies on ${two.tagName}.${two.className}`);
}));
parent.postMessage(JSON.stringify(
  {width: window.innerWidth, charts, texts, smallest, faults: faults.slice(0, 20)}), "*");
"""


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    return CHROMIUM


def run(browser, folder, *arguments):
    profile = folder / "profile"
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={profile}", *arguments],
        capture_output=True,
        timeout=120,
        check=True,
    )
    shutil.rmtree(profile, ignore_errors=True)
    return done.stdout.decode()


def measured(browser, folder, text, width):
    """What a script finds in the page in a frame of a width: the page itself allows no script."""
    inside = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    inside += f"<script>addEventListener('load', () => {{{MEASURE}}})</script>"
    outer = (
        "<!doctype html><pre></pre><script>addEventListener('message', event => {"
        "document.querySelector('pre').textContent = event.data;"
        "document.querySelector('iframe').remove(); })</script>"
        f'<iframe style="border:0;width:{width}px;height:1000px" srcdoc="{html.escape(inside)}">'
        "</iframe>"
    )
    (folder / "frame.html").write_text(outer, encoding="utf-8")
    dumped = run(
        browser,
        folder,
        "--window-size=1600,1200",
        "--virtual-time-budget=20000",
        "--dump-dom",
        f"file://{folder}/frame.html",
    )
    return json.loads(html.unescape(re.search(r"<pre>(.*?)</pre>", dumped, re.DOTALL)[1]))


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overlaps_is_cut_off_or_scrolls(browser, text, tmp_path, width):
    seen = measured(browser, tmp_path, text, width)
    assert seen["faults"] == []
    assert seen["width"] == width
    assert seen["charts"] >= len(KINDS_OF_SHAPES)
    assert seen["texts"] > 300
    assert seen["smallest"] >= 11


@pytest.mark.slow
def test_it_can_be_printed(browser, text, tmp_path):
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    target = tmp_path / "page.pdf"
    run(browser, tmp_path, f"--print-to-pdf={target}", f"file://{tmp_path}/page.html")
    content = target.read_bytes()
    assert content.startswith(b"%PDF")
    assert 5 < len(re.findall(rb"/Type\s*/Page\b", content)) < 50
