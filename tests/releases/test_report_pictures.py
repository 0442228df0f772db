"""Every item has the picture that fits its shape; texts stand apart; noise and gaps are seen."""

import re
from dataclasses import replace
from datetime import date
from itertools import pairwise

import numpy as np
import pytest
from picture_support import (
    KINDS_OF_SHAPES,
    articles,
    faults,
    pictures,
    release_of_shapes,
    text_boxes,
)

from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.releases.report import answers as cells_module
from dpquery.releases.report.answers import read_cells
from dpquery.releases.report.axes import Scale, date_ticks, percent_ticks, value_scale, written
from dpquery.releases.report.kinds import PICTURE_KINDS
from dpquery.releases.report.page import STYLE, page


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return release_of_shapes(tmp_path_factory.mktemp("shapes"))


@pytest.fixture(scope="module")
def parts(report):
    return articles(report)


def item_of(report, name):
    return next(item for item in report.items if item.name == name)


# ------------------------------------------------------------------------------- kinds


def test_every_shape_has_its_kind_of_picture(report, parts):
    assert [item.name for item in report.items] == [*parts] == [*KINDS_OF_SHAPES]
    kinds = {name: re.search(r'data-kind="([^"]+)"', part)[1] for name, part in parts.items()}
    assert kinds == KINDS_OF_SHAPES


def test_no_item_is_without_marks_rows_and_words(parts):
    for name, part in parts.items():
        assert 'class="one"' in part or pictures(part), name
        for words in ("How to read it", f"{name}.parquet", "Columns:", "<caption>", "<tbody>"):
            assert words in part, (name, words)


def test_whatever_no_other_kind_fits_is_drawn_by_its_extremes(report):
    assert PICTURE_KINDS[-1].name == "extremes"
    assert all(PICTURE_KINDS[-1].fits(item.cells) for item in report.items)


def test_dates_are_an_axis_and_its_marks_are_days(parts):
    for name, marks in (("days", {"Jan 2013", "Jul 2013"}), ("months", {"Jan 2013", "Jan 2014"})):
        wide, narrow = pictures(parts[name])
        assert marks <= {box.text for box in text_boxes(wide)}
        assert {mark[-4:] for mark in marks} <= {box.text[-4:] for box in text_boxes(narrow)}


def test_sums_are_drawn_in_their_unit_and_thresholds_say_what_is_counted(parts):
    assert "Sums of age: one record adds at most 99 either way" in parts["sums"]
    assert "Counted are records that meet any of the conditions." in parts["either"]


# ------------------------------------------------------------------------------- texts


def test_texts_are_inside_their_pictures_and_stand_apart_at_every_width(report):
    found = pictures(page(report))
    assert {svg.get("class") for svg in found} == {"wide", "narrow", "panel"}
    assert sum(len(text_boxes(svg)) for svg in found) > 1000
    assert [fault for svg in found for fault in faults(svg)] == []


def test_the_check_of_texts_sees_what_stands_on_each_other(parts):
    svg = pictures(parts["states"])[0]
    texts = list(svg.iter("text"))
    texts[0].set("x", "-9")
    texts[4].set("x", texts[5].get("x"))
    texts[4].set("y", texts[5].get("y"))
    assert len(faults(svg)) >= 2


def test_texts_of_an_axis_are_all_different(report):
    for svg in pictures(page(report)):
        axes = {}
        for box in text_boxes(svg):
            if box.cls == "tick end" and box.bottom < float(svg.get("viewBox").split()[3]) - 20:
                axes.setdefault("up", []).append(box.text)
            elif box.cls == "tick":
                axes.setdefault(box.bottom, []).append(box.text)
        assert axes
        for texts in axes.values():
            assert len(set(texts)) == len(texts), texts


@pytest.mark.parametrize("top", [3e-7, 0.0004, 0.0012, 0.07, 3.0, 12345.0, 99999999.0, 3e20])
def test_marks_have_as_many_digits_as_tell_them_apart(top):
    ticks = percent_ticks(value_scale([top], start=0, end=300))
    assert len(ticks) > 2
    assert len({tick.text for tick in ticks}) == len(ticks)
    for tick in ticks:
        shown = float(tick.text.removesuffix(" %").replace(",", "")) / 100
        assert shown == pytest.approx(tick.value, rel=1e-3)


def test_days_are_marked_from_a_week_to_centuries():
    for length in (2, 6, 13, 40, 100, 400, 1000, 4000, 40_000, 700_000):
        first = date(2013, 1, 1).toordinal() if length < 100_000 else 1
        scale = Scale(first, first + length, 40, 330)
        ticks = date_ticks(scale, room=290)
        assert 1 <= len(ticks) <= 15, (length, ticks)
        assert len({tick.text for tick in ticks}) == len(ticks)
        assert all(first <= tick.value <= first + length for tick in ticks)


def test_close_marks_differ():
    assert [tick.text for tick in written([1.00001, 1.00002])] == ["1.00001", "1.00002"]


# ------------------------------------------------------------------------------- honesty


def plotted(svg):
    """Return what turns a pixel of a picture into a value, from the texts of its upright axis."""
    lines = [line for line in svg.iter("line") if line.get("class") in ("grid", "zero")]
    level = [line for line in lines if line.get("y1") == line.get("y2")]
    texts = [b.text for b in text_boxes(svg) if b.cls == "tick end"][: len(level)]
    values = [float(text.replace(",", "")) for text in texts]
    pixels = [float(line.get("y1")) for line in level]
    slope = (values[-1] - values[0]) / (pixels[-1] - pixels[0])
    return lambda y: values[0] + slope * (y - pixels[0])


def places(commands):
    """Return the (n, 2) places of a path of one move and relative lines."""
    numbers = [float(text) for text in re.findall(r"-?\d*\.?\d+", commands)]
    steps = np.array(numbers).reshape(-1, 2)
    return np.cumsum(steps, axis=0)


def test_bands_are_the_intervals_of_the_file(report, parts):
    cells = item_of(report, "hours").cells
    for svg in pictures(parts["hours"]):
        value_of = plotted(svg)
        band = next(p for p in svg.iter("path") if p.get("class") == "band s0")
        ends = value_of(places(band.get("d"))[:, 1])
        count = len(cells)
        assert ends[:count] == pytest.approx(cells.high, abs=9)
        assert ends[count:][::-1] == pytest.approx(cells.low, abs=9)
        line = next(p for p in svg.iter("path") if p.get("class") == "line s0")
        assert value_of(places(line.get("d"))[:, 1]) == pytest.approx(cells.value, abs=9)


def test_bars_begin_at_zero_and_whiskers_are_the_intervals(report, parts):
    cells = item_of(report, "states").cells
    svg = pictures(parts["states"])[0]
    zero = float(next(line for line in svg.iter("line") if line.get("class") == "zero").get("x1"))
    bars = [b for b in svg.iter("rect") if b.get("class", "").startswith("bar")]
    left = np.array([float(bar.get("x")) for bar in bars])
    width = np.array([float(bar.get("width")) for bar in bars])
    below = cells.value < 0
    assert below.any()
    assert np.where(below, left + width, left) == pytest.approx(np.full(len(bars), zero), abs=0.11)
    scale = width.max() / cells.value.max()
    assert width == pytest.approx(np.abs(cells.value) * scale, abs=0.2)
    whiskers = [p.get("d") for p in svg.iter("path") if p.get("class") == "whisker"]
    for path, low, high in zip(whiskers, cells.low, cells.high, strict=True):
        ends = [float(text) for text in re.match(r"M([\d.]+) [\d.]+H([\d.]+)", path).groups()]
        assert ends == pytest.approx([zero + low * scale, zero + high * scale], abs=0.2)


def test_what_is_not_published_has_no_mark(report, parts):
    bars, cells = parts["rounded"], item_of(report, "rounded").cells
    hidden = int(cells.withheld.sum())
    assert 0 < hidden < len(cells)
    for svg in pictures(bars):
        drawn = [b for b in svg.iter("rect") if b.get("class", "").startswith("bar")]
        assert len(drawn) == len(cells) - hidden
        assert [box.text for box in text_boxes(svg)].count("not published") == hidden
    assert f"a rule on noisy values leaves out {hidden}" in bars
    assert "not published" in parts["rounded_map"]
    line = item_of(report, "rounded_line").cells
    for svg in pictures(parts["rounded_line"]):
        drawn = sum(
            len(places(part))
            for path in svg.iter("path")
            if path.get("class") == "line s0"
            for part in path.get("d").split("M")
            if part
        )
        alone = sum(circle.get("class") == "key s0" for circle in svg.iter("circle"))
        assert drawn + alone == len(line) - int(line.withheld.sum())


def test_shades_of_a_map_are_the_answers(report, parts):
    cells = item_of(report, "map").cells
    svg = pictures(parts["map"])[0]
    drawn = {}
    for path in svg.iter("path"):
        if re.fullmatch(r"h\d", path.get("class")):
            widths = [float(text) for text in re.findall(r"h([\d.]+)", path.get("d"))]
            drawn[path.get("class")] = sum(widths)
    cell = sum(drawn.values()) / len(cells)
    assert drawn["h6"] / cell == pytest.approx((cells.value < 0).sum(), abs=0.5)
    assert drawn["h0"] / cell == pytest.approx(
        ((cells.value >= 0) & (cells.value < first_break(parts["map"]))).sum(), abs=0.5
    )
    dots = next(p for p in svg.iter("path") if p.get("class", "").startswith("noisy"))
    assert dots.get("d").count("h0") == cells.flagged.sum()


def first_break(part):
    return float(re.search(r"0 to ([\d,.]+)</li>", part)[1].replace(",", ""))


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
    assert [fault for svg in pictures(part) for fault in faults(svg)] == []


def test_without_error_bars_no_interval_is_drawn_and_the_page_says_so(report):
    item = item_of(report, "hours")
    unknown = replace(
        item.cells, low=np.full(24, np.nan), high=np.full(24, np.nan), flagged=np.zeros(24, bool)
    )
    bare = replace(item, cells=unknown, flagged_share=None)
    part = articles(replace(report, items=(bare,)))["hours"]
    assert "band" not in part.replace("the band", "")
    assert "This release has no error bars" in part


# ------------------------------------------------------------------------------- access


def test_everything_can_be_reached_and_read_without_a_picture(report):
    text = page(report)
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
    for name in ("c0", "c1", "c2"):
        assert contrast(colours[name], colours["paper"]) >= 3, name
    shades = [luminance(colours[f"h{k}"]) for k in range(6)]
    assert shades == sorted(shades, reverse=scheme == 0)


def test_the_page_of_all_shapes_is_light_and_the_same_each_time(report):
    text = page(report)
    assert page(report) == text
    assert len(text) < 40_000 * len(report.items)


def test_answers_that_are_all_alike_make_whole_pictures(tmp_path):
    def alike(item):
        for table in item.tables:
            error = np.full(table.size, 1.0)
            yield TableAnswers(table, 0 * error, error, error)

    report = release_of_shapes(tmp_path, answers=alike)
    text = re.sub(r"<style>.*?</style>", "", page(report), flags=re.DOTALL)
    assert re.search(r"\bnan\b|\binf\b", text.lower()) is None
    assert [fault for svg in pictures(text) for fault in faults(svg)] == []
