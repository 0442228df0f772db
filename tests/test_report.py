"""The report says what a release is worth, needs nothing but itself, and trusts no label."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from datetime import date
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpquery.exceptions import SpecError
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.reconstruction.table_answers import TableAnswers
from dpquery.releases.folder.write import write_release
from dpquery.releases.manifest.release_json import LedgerFacts, StrategyFacts, manifest_of
from dpquery.releases.report.error_report import (
    REPORT_COLUMNS,
    headline,
    load_report,
    to_json,
    to_rows,
)
from dpquery.releases.report.html import page, write_html
from dpquery.releases.report.preview import preview
from dpquery.releases.report.svg import Scale, bars, curve, lines, log_scale, scale
from dpquery.spec.domain import Attribute, Bins, Categorical, Column, Domain, Integers
from dpquery.spec.model import Budget, Dataset, Item, Privacy, Spec, Table
from dpquery.spec.predicates import AllRangesSet, GroupSet, IdentitySet, PrefixSet

EVIL = "<script>alert('x')</script>"
DOMAIN = Domain(
    (
        Attribute("age", (Column("age", Integers(0, 29), "drop"),)),
        Attribute("sex", (Column("sex", Categorical(("1", "2"), ("Male", EVIL)), "drop"),)),
        Attribute("income", (Column("income", Bins(tuple(map(float, range(21)))), "drop"),)),
    )
)
AGE, SEX, INCOME = ((index, IdentitySet(size)) for index, size in enumerate(DOMAIN.shape))
TEENS = GroupSet(30, (("teens & <b>", tuple(range(13, 20))), ("rest", (0, 1))))

ITEMS = (
    Item("population", (Table(()),), 4.0, "Everyone"),
    Item("ages", (Table((AGE,)),), description=EVIL),
    Item("pyramid", (Table((AGE, SEX)),)),
    Item("upto", (Table(((2, PrefixSet(20, 20)),)),)),
    Item("groups", (Table(((0, TEENS), SEX)),)),
    Item("many", (Table(((0, AllRangesSet(30, 30)), SEX)),)),
    Item("pairs", (Table((SEX,)), Table((AGE,)))),
)
SIZE_OF = {"population": 1000.0, "ages": 50.0, "pyramid": 20.0, "many": 5.0, "groups": 400.0}


def answers(item):
    for table in item.tables:
        error = np.full(table.size, 5.0)
        estimate = np.full(table.size, SIZE_OF.get(item.name, 100.0)) + np.arange(table.size) % 3
        yield TableAnswers(table, estimate, error, 2 * error)


def release(folder, *, items=ITEMS, answers=answers, noise="gaussian", curve=((0.5, 10), (2, 2.5))):
    delta = Fraction(1, 10**9)
    spec = Spec(Dataset("people", "7"), Privacy(), Budget(epsilon=Fraction(4)), DOMAIN, items)
    terms = guarantee(noise, epsilon=Fraction(1), delta=delta)
    manifest = manifest_of(
        spec,
        mechanism=CalibratedNoise(terms, 0, 1, 2.0),
        noise_source="OpenDP 0",
        strategy=StrategyFacts(EVIL, "product", 5.0, 5.0, 4.0, "SVD bound", 1.25, "s" * 64),
        plan="p" * 64,
        key="k",
        ledger=LedgerFacts(1, "h" * 64),
        cumulative="Releases so far have spent 1 of 4.",
        level=0.9,
        error_by_epsilon=curve,
    )
    write_release(folder, spec=spec, answers=answers, manifest=manifest, replace=False)
    return load_report(folder)


@pytest.fixture
def report(tmp_path):
    return release(tmp_path / "out")


def item(report, name):
    return next(item for item in report.items if item.name == name)


# ------------------------------------------------------------------------------- figures


def test_items_come_in_spec_order_with_their_errors(report):
    assert [item.name for item in report.items] == [item.name for item in ITEMS]
    assert report.queries == sum(item.size for item in ITEMS)
    assert report.rmse == pytest.approx(5)
    ages = item(report, "ages")
    assert (ages.rmse, ages.max_std_error) == (5, 5)
    assert ages.median_rel_error == pytest.approx(5 / 51, rel=0.004)
    assert ages.worst_rel_error == pytest.approx(0.1)


def test_verdicts_are_in_plain_words(report):
    verdicts = {item.name: item.verdict for item in report.items}
    assert verdicts["population"] == "good: ±0.5 %"
    assert verdicts["groups"] == "good: typically ±1.2 %"
    assert verdicts["ages"] == "good: typically ±9.8 %"
    assert verdicts["pyramid"] == "fair: typically ±24 %"
    assert verdicts["many"] == "weak: 100 % of the answers are flagged"


def test_a_single_swamped_answer_is_weak(tmp_path):
    def zero(item):
        return (TableAnswers(t, np.zeros(1), np.ones(1), np.ones(1)) for t in item.tables)

    folder = release(tmp_path / "out", items=ITEMS[:1], answers=zero)
    assert folder.items[0].verdict == "weak: it is flagged"
    assert to_rows(folder)[0][3] == "unbounded"
    page(folder)


def test_json_holds_the_same_figures(report):
    printed = json.loads(json.dumps(to_json(report), allow_nan=False))
    assert printed["guarantee"]["epsilon"] == 1
    assert [item["name"] for item in printed["items"]] == [item.name for item in ITEMS]
    assert printed["items"][0]["verdict"] == "good: ±0.5 %"
    assert printed["strategy"]["ratio"] == 1.25


def test_the_terminal_gets_rows_and_a_headline(report):
    rows = to_rows(report)
    assert {len(row) for row in rows} == {len(REPORT_COLUMNS)}
    assert rows[0] == ("population", "1", "5", "±0.5 %", "±0.5 %", "0 %", "good: ±0.5 %")
    text = "\n".join(headline(report))
    for words in ("people, version 7", "ε = 1 at δ = 1e-9", "1.250 x a lower bound"):
        assert words in text


def test_previews_are_drawn_along_ordered_axes_and_stay_small(report):
    drawn = {item.name: item.preview for item in report.items}
    assert drawn["ages"].axis == "age"
    assert [series.name for series in drawn["pyramid"].series] == ["Male", EVIL]
    assert drawn["upto"].axis == "income"
    assert [p.place for p in drawn["upto"].series[0].points] == list(range(1, 21))
    assert drawn["groups"].axis == ""
    assert drawn["groups"].series[0].points[0].label == "teens & <b>, Male"
    assert drawn["many"] is None
    assert drawn["pairs"].axis == ""
    assert [p.label for p in drawn["pairs"].series[0].points[:3]] == ["Male", EVIL, "0"]


def test_a_plot_of_thresholds_says_how_many_conditions_are_to_be_met(tmp_path):
    """Whoever reads `Male, yes` takes it for those who are both."""
    row = {"table": "sex, poor", "query": "any of", "sex": "Male", "poor": "yes", "flag": ""}
    row |= {"estimate": 3.0, "ci_low": 1.0, "ci_high": 5.0}
    rows = [row, row | {"sex": "Female"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "either.parquet")
    drawn = preview(tmp_path / "either.parquet", ["table", "query", "sex", "poor"])
    assert drawn.query == "any of"
    assert [point.label for point in drawn.series[0].points] == ["Male", "Female"]
    pq.write_table(
        pa.Table.from_pylist([row, row | {"query": "all of"}]), tmp_path / "either.parquet"
    )
    drawn = preview(tmp_path / "either.parquet", ["table", "query", "sex", "poor"])
    assert drawn.query == ""
    assert [point.label for point in drawn.series[0].points] == ["any of", "all of"]


def test_dates_are_an_axis_and_its_marks_are_days(tmp_path):
    row = {"flag": "", "estimate": 3.0, "ci_low": 1.0, "ci_high": 5.0}
    days = [date(2013, month, 1) for month in range(1, 13)]
    rows = [row | {"day": day} for day in days]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "days.parquet")
    drawn = preview(tmp_path / "days.parquet", ["day"])
    assert (drawn.axis, drawn.dates) == ("day", True)
    assert [point.label for point in drawn.series[0].points] == [str(day) for day in days]
    assert ">2013-02-01<" in lines(drawn.series, axis="day", title="Days", dates=True)


def test_a_day_of_no_year_is_refused(tmp_path):
    for number in (-(2**31), 2**31 - 1, 2932897):
        days = pa.array([0, number], pa.int32()).cast(pa.date32())
        pq.write_table(pa.table({"day": days}), tmp_path / "days.parquet")
        with pytest.raises(ValueError, match="date"):
            preview(tmp_path / "days.parquet", ["day"])


# ------------------------------------------------------------------------------- damage


def test_a_folder_that_is_no_release_is_told_apart(tmp_path):
    with pytest.raises(SpecError, match="not a release"):
        load_report(tmp_path)


@pytest.mark.parametrize("name", ["ages.parquet", "errors.parquet"])
@pytest.mark.parametrize("damage", ["missing", "cut", "swapped"])
def test_damage_is_found_and_the_remedy_named(tmp_path, name, damage):
    release(tmp_path / "out")
    path = tmp_path / "out" / name
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    if damage == "swapped":
        path.write_bytes((tmp_path / "out" / "pyramid.parquet").read_bytes())
    with pytest.raises(SpecError, match="run `dpquery release` again, which is free"):
        load_report(tmp_path / "out")


def rewritten(path, **columns):
    table = pq.read_table(path)
    for name, value in columns.items():
        place = table.schema.get_field_index(name)
        values = pa.array([value] * table.num_rows)
        table = table.set_column(place, table.schema.field(place).with_type(values.type), values)
    pq.write_table(table, path)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("ages.parquet", {"estimate": "many"}),
        ("ages.parquet", {"estimate": math.inf}),
        ("ages.parquet", {"ci_high": math.nan}),
        ("ages.parquet", {"ci_low": "few"}),
        ("ages.parquet", {"age": 1e308}),
        ("errors.parquet", {"rmse": math.nan}),
        ("errors.parquet", {"worst_rel_error": -1.0}),
    ],
)
def test_what_is_no_number_is_damage_too(tmp_path, name, columns):
    release(tmp_path / "out")
    rewritten(tmp_path / "out" / name, **columns)
    with pytest.raises(SpecError, match="run `dpquery release` again, which is free"):
        load_report(tmp_path / "out")


def test_a_summary_of_more_items_than_there_are_is_not_read(tmp_path, monkeypatch):
    release(tmp_path / "out")
    path = tmp_path / "out" / "errors.parquet"
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table]), path)
    monkeypatch.setattr(pq, "read_table", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(SpecError, match="is damaged"):
        load_report(tmp_path / "out")


@pytest.mark.parametrize("change", ["swapped", "long"])
def test_errors_are_those_of_the_item_that_they_name(tmp_path, change):
    release(tmp_path / "out")
    path = tmp_path / "out" / "errors.parquet"
    table = pq.read_table(path)
    if change == "swapped":
        table = table.take([0, 2, 1, *range(3, len(ITEMS))])
    else:
        names = pa.array(["x" * 10_000_000] * len(ITEMS))
        table = table.set_column(0, table.schema.field(0), names)
    pq.write_table(table, path)
    with pytest.raises(SpecError, match="is damaged"):
        load_report(tmp_path / "out")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        pytest.param(("level",), 10**400, id="huge level"),
        pytest.param(("dataset", "id"), "\ud800", id="no text"),
        (("dataset", "id"), "\ud800"),
        pytest.param(("strategy", "ratio"), 10**400, id="huge ratio"),
        (("noise", "scale"), 1e308),
        (("guarantee", "epsilon"), -1.0),
        (("error_by_epsilon", 0), [0, 1.0]),
        (("error_by_epsilon", 0), [1.0, -1.0]),
    ],
)
def test_a_manifest_of_figures_that_cannot_be_is_damaged(tmp_path, place, value):
    release(tmp_path / "out")
    path = tmp_path / "out" / "release.json"
    part = raw = json.loads(path.read_text())
    *way, last = place
    for name in way:
        part = part[name]
    part[last] = value
    path.write_text(json.dumps(raw))
    with pytest.raises(SpecError, match="is damaged"):
        load_report(tmp_path / "out")


@pytest.mark.parametrize(
    ("place", "value", "fact"),
    [
        (("level",), 1.5, "level"),
        (("dataset", "version"), "../2", "dataset's version"),
        (("ledger", "parent"), "a/../b", "parent"),
        (("noise", "sensitivity"), "-1", "sensitivity"),
    ],
)
def test_a_damaged_manifest_says_which_fact_is_wrong(tmp_path, place, value, fact):
    release(tmp_path / "out")
    path = tmp_path / "out" / "release.json"
    raw = json.loads(path.read_text())
    (raw if len(place) == 1 else raw[place[0]])[place[-1]] = value
    path.write_text(json.dumps(raw))
    with pytest.raises(SpecError, match=f"is damaged: its {fact} is none"):
        load_report(tmp_path / "out")


# ------------------------------------------------------------------------------- the page


def test_the_page_needs_no_network_and_no_script(report):
    text = page(report)
    assert re.findall(r"https?:|//\w|@import|url\(|<script|<link|<img|<iframe", text) == []
    assert "default-src 'none'" in text


def test_labels_are_escaped_everywhere(report):
    text = page(report)
    assert "<script" not in text
    assert "<b>," not in text
    assert "&lt;script&gt;" in text


def test_every_chart_is_well_formed_and_described(report):
    charts = re.findall(r"<svg.*?</svg>", page(report), re.S)
    assert len(charts) == 8
    for chart in charts:
        root = ElementTree.fromstring(chart)  # noqa: S314  # our own page
        assert root.get("role") == "img"
        assert root.find("title").text
        assert root.find("desc").text


def test_nothing_is_drawn_outside_its_chart(report):
    for chart in re.findall(r"<svg.*?</svg>", page(report), re.S):
        root = ElementTree.fromstring(chart)  # noqa: S314  # our own page
        _, _, width, height = map(float, root.get("viewBox").split())
        for mark in root.iter():
            for names, limit in (
                (("x", "x1", "x2", "cx"), width),
                (("y", "y1", "y2", "cy"), height),
            ):
                assert all(0 <= float(mark.get(n)) <= limit for n in names if mark.get(n))


def test_the_page_follows_the_readers_colour_scheme(report):
    assert "prefers-color-scheme: dark" in page(report)


def test_the_page_is_the_same_each_time(report, tmp_path):
    write_html(report, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == page(load_report(tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "out"]


def test_a_page_that_cannot_be_written_is_reported(report, tmp_path):
    with pytest.raises(SpecError, match="cannot be written"):
        write_html(report, tmp_path / "none" / "a.html")


def test_a_page_without_a_curve_has_no_empty_section(tmp_path):
    text = page(release(tmp_path / "out", noise="laplace", curve=()))
    assert "Error against privacy" not in text
    assert "<h2>All items</h2>" in text


# ------------------------------------------------------------------------------- scales


@pytest.mark.parametrize("values", [[0.0], [5.0], [-3.0, 9.0], [-2e9, -1e9], [1e-9, 2e-9]])
def test_linear_scales_show_zero_and_every_value(values):
    axis = scale(values, start=0, end=100)
    assert axis.low <= min(0, *values) <= max(0, *values) <= axis.high
    assert [axis(value) for value in (axis.low, axis.high)] == pytest.approx([0, 100])
    assert 1 <= len(axis.ticks) <= 12


@pytest.mark.parametrize("values", [[1.0], [0.1, 4.0], [3e-5, 7e8], [20.0, 20.0]])
def test_logarithmic_scales_show_every_value_between_round_marks(values):
    axis = log_scale(values, start=0, end=100)
    assert axis.low <= min(values) * 1.0002
    assert max(values) <= axis.high * 1.0002
    assert 1 <= len(axis.ticks) <= 12
    assert all(0 <= axis(tick) <= 100 for tick in axis.ticks)


def test_bars_turn_logarithmic_when_values_differ_much():
    def width(chart):
        return [float(text) for text in re.findall(r'class="bar".*?width="([\d.]+)"', chart)]

    near = width(bars([("a", 1.0), ("b", 2.0)], title="t", text=str, marks=()))
    assert near[1] == pytest.approx(2 * near[0], rel=0.01)
    far = width(bars([("a", 1.0), ("b", 1e4)], title="t", text=str, marks=()))
    assert far[1] < 100 * far[0] + 400
    assert Scale(1, 1e4, 0, 100, log=True)(100) == pytest.approx(50)
    assert width(bars([("a", 0.0), ("b", 0.0)], title="t", text=str, marks=())) == [0, 0]


def test_the_curve_marks_this_release():
    chart = curve([(0.5, 10.0), (2.0, 2.5)], now=(1.0, 5.0), title="t")
    assert chart.count('class="dot now"') == 1
    assert "this release" in chart
