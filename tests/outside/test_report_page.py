"""The page of the report: what it calls things, what stands first, what its links hold."""

import csv
import json
import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
from town import ok, run

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


def test_levels_are_judged_apart(text):
    levels = re.findall(r'<th scope="row">(state, age|age)</th>', article(text, "levels"))
    assert levels == ["state, age", "age"]


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


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_what_stands_behind_the_sign_is_half_of_the_interval(tmp_path, monkeypatch, noise, level):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("s.yaml").write_text(WORDS_SPEC)
    Path("d.csv").write_text("x\n" + "a\nb\nc\nd\nd\ne\n" * 90)
    assert run("plan", "s.yaml", "--time-limit", 1).code == 0
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


def test_a_share_that_nothing_is_known_of_is_not_seven_hundred_points(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("s.yaml").write_text(WORDS_SPEC)
    Path("d.csv").write_text("x\na\nb\n")
    assert run("plan", "s.yaml", "--time-limit", 1).code == 0
    for number in range(1, 9):
        how = ("--epsilon", "0.1", "--release-number", number, "--replace", "--confidence", "0.99")
        assert run("release", "d.csv", *how).code == 0
        printed = run("error-report").out
        for width in re.findall(r"(?<!over )±([\d,.]+) points", printed):
            assert float(width.replace(",", "")) <= 100
