"""The report says what a release is worth, needs nothing but itself, and trusts no label."""

import csv
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_support import ITEMS, SEX, release
from town import ok, run

from dpquery.exceptions import SpecError
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.releases.report.axes import Scale, log_scale, number_ticks, value_scale
from dpquery.releases.report.figures import REPORT_COLUMNS, headline, load_report, to_json, to_rows
from dpquery.releases.report.marks import Mark, points, privacy_curve
from dpquery.releases.report.page import page, write_html
from dpquery.spec.spec import Item, Table


@pytest.fixture
def report(tmp_path):
    return release(tmp_path / "out")


def item(report, name):
    return next(item for item in report.items if item.name == name)


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
    assert verdicts["population"] == "good: ±1.0 % (90 %)"
    assert verdicts["groups"] == "good: typical answer ±2.5 % (90 %)"
    assert verdicts["ages"] == "good: typical answer ±20 % (90 %)"
    assert verdicts["pyramid"] == "fair: typical answer ±48 % (90 %)"
    assert verdicts["many"] == "weak: 100 % of the answers are flagged"


def test_the_head_counts_the_verdicts(report):
    tile = page(report).partition("<dt>Verdicts</dt>")[2].partition("</div>")[0]
    told = {grade: int(number) for number, grade in re.findall(r"(\d+) (good|fair|weak)", tile)}
    assert told == Counter(item.grade for item in report.items)


@pytest.mark.parametrize(
    ("error", "verdict"), [(9.0, "weak: it is flagged"), (0.4, "good: ±0.4 records (90 %)")]
)
def test_a_single_swamped_answer_is_weak_unless_it_is_right_to_a_record(tmp_path, error, verdict):
    def zero(item):
        return (
            TableAnswers(t, np.zeros(1), np.full(1, error), np.full(1, error)) for t in item.tables
        )

    folder = release(tmp_path / "out", items=ITEMS[:1], answers=zero)
    assert folder.items[0].verdict == verdict
    assert to_rows(folder)[0][3] == "unbounded"
    page(folder)


def test_levels_of_an_item_are_judged_apart(tmp_path):
    def totals(item):
        for table in item.tables:
            every = np.full(table.size, 2.0 if table.axes else 1000.0)
            yield TableAnswers(table, every, np.full(table.size, 5.0), np.full(table.size, 10.0))

    items = (Item("both", (Table(()), Table((SEX,)))), Item("one", (Table((SEX,)),)))
    both, one = release(tmp_path / "out", items=items, answers=totals).items
    assert [(level.name, level.answers, level.worth.grade) for level in both.levels] == [
        ("total", 1, "good"),
        ("sex", 2, "weak"),
    ]
    assert both.levels[0].within == pytest.approx(0.01)
    assert one.levels == ()


def test_json_holds_the_same_figures(report):
    printed = json.loads(json.dumps(to_json(report), allow_nan=False))
    assert printed["guarantee"]["epsilon"] == 1
    assert [item["name"] for item in printed["items"]] == [item.name for item in ITEMS]
    assert printed["items"][0]["verdict"] == "good: ±1.0 % (90 %)"
    assert printed["strategy"]["ratio"] == 1.25


def test_the_terminal_gets_rows_and_a_headline(report):
    rows = to_rows(report)
    assert {len(row) for row in rows} == {len(REPORT_COLUMNS)}
    assert rows[0] == ("population", "1", "5", "±1.0 %", "±1.0 %", "0 %", "good: ±1.0 % (90 %)")
    text = "\n".join(headline(report))
    for words in ("people, version 7", "ε = 1 at δ = 1e-9", "at most 1.250 times the least error"):
        assert words in text


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
        (("dataset", "version"), "../2", "dataset.version"),
        (("ledger", "parent"), "a/../b", "ledger.parent"),
        (("noise", "sensitivity"), "-1", "noise.sensitivity"),
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
    assert len(charts) > 2 * len(ITEMS)
    for chart in charts:
        root = ElementTree.fromstring(chart)  # noqa: S314  # our own page
        if root.get("aria-hidden") != "true":
            assert root.get("role") == "img"
            assert root.get("aria-label")
            assert root.find("desc").text


def test_nothing_is_drawn_outside_its_chart(report):
    text = page(report)
    shares = [float(x) for x in re.findall(r'(?:x1|x2|cx|left|top)[=:]"?(-?[\d.]+)%', text)]
    assert len(shares) > 100
    assert all(0 <= share <= 100 for share in shares)


def test_the_page_is_the_same_each_time(report, tmp_path):
    write_html(report, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == page(load_report(tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "out"]


def test_a_page_without_a_curve_has_no_empty_section(tmp_path):
    text = page(release(tmp_path / "out", noise="laplace", curve=()))
    assert "Error against privacy" not in text
    assert "<h2>All items</h2>" in text
    assert 'href="#curve"' not in text


@pytest.mark.parametrize("values", [[0.0], [5.0], [-3.0, 9.0], [-2e9, -1e9], [1e-9, 2e-9]])
def test_linear_scales_show_zero_and_every_value(values):
    axis = value_scale(values)
    assert axis.low <= min(0, *values) <= max(0, *values) <= axis.high
    assert [axis(value) for value in (axis.low, axis.high)] == pytest.approx([0, 1])
    assert 1 <= len(number_ticks(axis)) <= 12


@pytest.mark.parametrize("values", [[1.0], [0.1, 4.0], [3e-5, 7e8], [20.0, 20.0]])
def test_logarithmic_scales_show_every_value_between_round_marks(values):
    axis = log_scale(values)
    assert axis.low <= min(values) * 1.0002
    assert max(values) <= axis.high * 1.0002
    ticks = number_ticks(axis)
    assert 1 <= len(ticks) <= 7
    assert all(0 <= axis(tick.value) <= 1 for tick in ticks)


def chart_of(*values, marks=()):
    rows = [Mark(f"{k}", value, f"{value:g}") for k, value in enumerate(values)]
    chart = points(rows, caption="t", heads=("a", "b"), axis="error", marks=marks, far=True)
    return chart, [float(x) for x in re.findall(r'class="dot" cx="([\d.]+)%', chart)]


def test_an_axis_turns_logarithmic_when_values_differ_much_and_says_so():
    near, places = chart_of(1.0, 2.0)
    assert places[1] == pytest.approx(2 * places[0], rel=0.01)
    far, places = chart_of(1.0, 1e2, 1e4)
    assert places[1] == pytest.approx((places[0] + places[2]) / 2, abs=0.1)
    assert ("(logarithmic)" in near, "(logarithmic)" in far) == (False, True)
    assert Scale(1, 1e4, log=True)(100) == pytest.approx(0.5)
    assert chart_of(0.0, 0.0)[1] == [0, 0]


@pytest.mark.parametrize(
    ("total", "label", "arrows"), [(31, "all", 1), (29, "all", 0), (31, "x", 0)]
)
def test_a_total_far_beyond_its_parts_has_an_arrow_and_leaves_them_the_scale(total, label, arrows):
    rows = [Mark("a", 10.0, "10"), Mark("b", 5.0, "5"), Mark(label, float(total), f"{total}")]
    chart = points(rows, caption="t", heads=("a", "b"), axis="count")
    places = [float(x) for x in re.findall(r'class="dot" cx="([\d.]+)%', chart)]
    assert chart.count("→") == arrows == 3 - len(places)
    assert places[0] == pytest.approx(97 if arrows else 1000 / (1.03 * total), abs=0.5)
    assert f">{total}</td>" in chart


def test_lines_that_are_promised_are_drawn_whatever_the_values():
    for values in ((0.001, 0.002), (1e-6, 0.2), (0.1, 90.0)):
        chart, _ = chart_of(*values, marks=(0.3, 0.5))
        assert len(set(re.findall(r'class="mark" x1="([\d.]+)', chart))) == 2


def test_the_curve_marks_this_release():
    chart = privacy_curve([(0.5, 10.0), (2.0, 2.5)], now=(1.0, 5.0), title="t")
    line = re.search(r'line s0" d="M(\d+) (\d+)l(\d+) (-?\d+)', chart).groups()
    now = re.findall(r'alone s1" d="M(\d+) (\d+)h0', chart)[-1]  # the first is of the legend
    x, y, dx, dy = map(int, line)
    assert (x + dx, y + dy) == tuple(map(int, now))
    assert "this release" in chart


# The page of the report: what it calls things, what stands first, what its links hold.

SPEC = """\
about: {title: "Who <lives> where", contact: "a@b.example", period: "2025", area: "Here"}
dataset: {id: town, version: 3}
privacy: {unit: row, delta: 1e-9}
budget: {epsilon: 400, delta: 1e-9}
domain:
  race: {merge: {white: boolean, asian: boolean, other_race: boolean}}
  state: {values: [Maine, Ohio, Texas, Utah]}
  age: {range: [0, 49]}
workload:
  - {name: races, product: {race: identity}}
  - name: areas
    product: {state: {groups: {North: [Maine, Ohio], South: [Texas, Utah]}}}
  - name: unnamed
    union:
      - {product: {}, where: {state: {in: [Maine, Ohio]}}}
      - {product: {}, where: {state: {in: [Ohio, Texas]}}}
  - {name: levels, product: {state: identity+total, age: identity}}
  - {name: few, product: {age: identity, race: identity}, publish: {suppress: {below: 12}}}
"""


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """A folder with a release of next to no noise, and its page."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "spec.yaml").write_text(SPEC)
    rng = np.random.default_rng(1)
    rows = zip(*(rng.integers(0, n, 3000) for n in (2, 2, 2, 4, 50)), strict=True)
    states = ("Maine", "Ohio", "Texas", "Utah")
    words = ("no", "yes")
    lines = [f"{words[a]},{words[b]},{words[c]},{states[d]},{e}" for a, b, c, d, e in rows]
    lines.insert(0, "white,asian,other_race,state,age")
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    ledger = ("--ledger", folder / "ledger.db")
    plan = folder / "town.plan"
    ok("plan", folder / "spec.yaml", "--out", plan, "--time-limit", "0", *ledger)
    release = ("--plan", plan, "--epsilon", "200", "--out", folder / "release")
    ok("release", folder / "data.csv", *release, *ledger)
    ok("error-report", folder / "release", "--html", folder / "page.html")
    return folder


@pytest.fixture(scope="module")
def text(town):
    return (town / "page.html").read_text()


def article(text, name):
    return re.search(rf'<article aria-labelledby="item-{name}">.*?</article>', text, re.S)[0]


def rows_of(text, name):
    """The rows that the link of an item holds."""
    link = re.search(r'href="data:text/csv;charset=utf-8,([^"]*)"', article(text, name))[1]
    return list(csv.DictReader(unquote(link).splitlines()))


def test_the_head_says_what_is_published_by_whom_and_of_which_data(text):
    head = text[text.index("<header>") : text.index("</header>")]
    assert "<h1>Who &lt;lives&gt; where</h1>" in head
    for words in ("town, version 3", "a@b.example", "2025", "Here"):
        assert words in head


def test_values_of_merged_columns_are_called_by_what_is_yes(text):
    names = [row["race"] for row in rows_of(text, "races")]
    assert sorted(names, key=len)[:4] == ["none", "Asian", "White", "Other Race"]
    assert "White + Asian + Other Race" in names
    assert "white=" not in text


def test_a_group_without_a_name_is_called_as_another_item_calls_it(text):
    assert [row["state"] for row in rows_of(text, "unnamed")] == ["North", "Ohio, Texas"]


@pytest.mark.parametrize("plan", ["missing", "another"])
def test_without_its_plan_labels_stand_as_they_are_in_the_files(town, tmp_path, plan):
    for path in (town / "release").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "release.plan"
    content = path.read_bytes().replace(b"a@b.example", b"c@d.example")
    path.unlink() if plan == "missing" else path.write_bytes(content)
    ok("error-report", tmp_path, "--html", tmp_path / "page.html")
    bare = (tmp_path / "page.html").read_text()
    assert "white=yes" in bare
    assert "<h1>town, version 3</h1>" in bare


def test_an_answer_within_a_record_is_good_however_small(town, tmp_path):
    page = ("--html", tmp_path / "page.html")
    items = json.loads(ok("error-report", town / "release", *page, "--json").out)["items"]
    assert {item["grade"] for item in items} == {"good"}
    assert all({"name", "rmse", "verdict"} <= item.keys() for item in items)


def test_the_verdict_stands_second_and_numbers_before_labels(text):
    heads = re.findall(r"<th scope=\"col\">(.*?)</th>", text[text.index('id="all"') :])
    assert heads[:2] == ["item", "verdict"]
    full = article(text, "levels").partition('class="full"')[2]
    heads = re.findall(r"<th scope=\"col\">(.*?)</th>", full)
    assert heads == ["estimate", "95 % interval", "flag", "state", "age"]


def test_rows_that_a_rule_leaves_out_are_in_no_table_and_no_link(town, text):
    rows = rows_of(text, "few")
    assert 0 < len(rows) < 400
    assert min(float(row["published"]) for row in rows) >= 12
    assert "not published" not in article(text, "few").partition('class="full"')[2]


def test_the_contents_lead_to_every_section_and_item(text):
    nav = re.search(r"<nav.*?</nav>", text, re.S)[0]
    places = re.findall(r'href="#([^"]+)"', nav)
    assert [p for p in places if p.startswith("item-")] == [
        f"item-{name}" for name in ("races", "areas", "unnamed", "levels", "few")
    ]
    assert {*re.findall(r'<section id="(\w+)"', text)} <= {*places}
    assert text.count("How to read it") == 2  # a link and a head


# What words and signs mean, held against the numbers in the files.


WORDS_SPEC = """\
dataset: {id: ops}
privacy: {unit: row, delta: 1e-6}
budget: {epsilon: 10, delta: 1e-6}
domain:
  x: {values: [a, b, c, d, e]}
workload:
  - {name: t, product: {x: identity}}
  - {name: n, product: {}}
derived:
  - {name: s, share: {of: t}}
"""


@pytest.mark.nightly(daily=r"0\.8-gaussian|0\.95-laplace")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_what_stands_behind_the_sign_is_half_of_the_interval(own_folder, noise, level):
    Path("s.yaml").write_text(WORDS_SPEC)
    Path("d.csv").write_text("x\n" + "a\nb\nc\nd\nd\ne\n" * 90)
    assert run("plan", "s.yaml").code == 0
    how = ("--epsilon", 1, "--noise", noise, "--confidence", level)
    assert run("release", "d.csv", *how).code == 0
    printed = run("error-report").out
    assert f"{100 * level:g} % within" in printed
    for item in ("t", "n"):
        rows = pd.read_parquet(f"release/{item}.parquet")
        halves = (rows["ci_high"] - rows["ci_low"]) / 2 / rows["estimate"].abs()
        (line,) = re.findall(rf"^{item} .*$", printed, re.MULTILINE)
        typical, worst = (float(figure) for figure in re.findall(r"±([\d.]+) %", line))
        assert typical == pytest.approx(100 * halves.median(), rel=0.06)
        assert worst == pytest.approx(100 * halves.max(), rel=0.06)
    shares = pd.read_parquet("release/s.parquet")
    half = 100 * (shares["ci_high"] - shares["ci_low"]).median() / 2
    (line,) = re.findall(r"^s .*$", printed, re.MULTILINE)
    assert float(re.search(r"±([\d.]+) points", line)[1]) == pytest.approx(half, rel=0.01)
    assert f"half of the {100 * level:g} % interval" in printed


@pytest.mark.nightly
def test_a_share_that_nothing_is_known_of_is_not_seven_hundred_points(own_folder):
    Path("s.yaml").write_text(WORDS_SPEC)
    Path("d.csv").write_text("x\na\nb\n")
    assert run("plan", "s.yaml").code == 0
    for number in range(1, 9):
        how = ("--epsilon", "0.1", "--release-number", number, "--replace", "--confidence", "0.99")
        assert run("release", "d.csv", *how).code == 0
        printed = run("error-report").out
        for width in re.findall(r"(?<!over )±([\d,.]+) points", printed):
            assert float(width.replace(",", "")) <= 100
