"""Derived items in a spec, in a release's folder and in answers to later questions."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from release_parts import DERIVED_ITEMS
from release_parts import HEAD as WITHOUT
from specs import unhashed
from town import GAUSSIAN_SPEC, ok, refused

from dpquery import Release, answer, package, plan, release
from dpquery.cli.show_release import report_grids
from dpquery.exceptions import SpecError
from dpquery.releases.report.figures import load_report, to_json
from dpquery.releases.report.page import page
from dpquery.spec.parsing.read import parse

MORE = """\
  - {name: rates, rate: {of: all, population: people.csv, per: 100000}}
  - {name: days, quantiles: {of: seen, over: day}}
"""
HEAD = WITHOUT.replace(
    "workload:\n", "  day: {date: {from: 2020-01, to: 2020-06, by: month}}\nworkload:\n"
)
HEAD = HEAD.replace(", delta: 1e-9", "").replace("80, 160]", "80, 160], other: show")
HEAD = HEAD.replace("derived:\n", "  - {name: seen, product: {day: identity}}\nderived:\n")
WHOM = "of the records with a declared value of income"
PEOPLE = "region,population\nS,2000\nN,1000\nW,4000\nelsewhere,7\n"


def manifest_of(folder):
    return json.loads((folder / "release" / "release.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A release with hardly any noise, and its data."""
    folder = tmp_path_factory.mktemp("derived")
    (folder / "workload.yaml").write_text(
        HEAD.replace("epsilon: 4", "epsilon: 1000000") + DERIVED_ITEMS + MORE
    )
    (folder / "people.csv").write_text(PEOPLE)
    rng = np.random.default_rng(4)
    data = pd.DataFrame(
        {
            "sex": rng.choice(["F", "M"], 400),
            "region": rng.choice(["N", "S", "W"], 400),
            "hours": rng.integers(0, 6, 400),
            "income": rng.integers(0, 160, 400),
            "day": rng.choice(["2020-01-05", "2020-03-02", "2020-05-30"], 400),
        }
    )
    data.to_csv(folder / "data.csv", index=False)
    paths = {"plan_path": folder / "dpquery.plan", "ledger_path": folder / "ledger.db"}
    plan(folder / "workload.yaml", mechanism="linear", time_limit=0.1, **paths)
    release(folder / "data.csv", epsilon=100000, out=folder / "release", **paths)
    return folder


def test_statistics_with_hardly_any_noise_are_those_of_pandas(folder):
    data = pd.read_csv(folder / "data.csv")
    tables = {name: Release(folder / "release").table(name) for name in
              ("shares", "mean", "gap", "rates", "middle", "days")}  # fmt: skip
    shares = pd.crosstab(data["sex"], data["region"], normalize="columns")
    assert tables["shares"]["estimate"].tolist() == pytest.approx(shares.values.ravel(), abs=1e-3)
    means = data.groupby("sex")["hours"].mean()
    assert tables["mean"]["estimate"].tolist() == pytest.approx(means.tolist(), abs=1e-3)
    counts = pd.crosstab(data["region"], data["sex"])
    assert tables["gap"]["estimate"].round().tolist() == (counts["M"] - counts["F"]).tolist()
    rates = data["region"].value_counts().sort_index() / [1000, 2000, 4000] * 100000
    assert tables["rates"]["estimate"].tolist() == pytest.approx(rates.tolist(), rel=1e-3)
    lower = data.groupby("sex")["hours"].quantile([0.3, 0.5], interpolation="lower")
    assert tables["middle"]["estimate"].tolist() == lower.tolist()
    assert [str(day) for day in tables["days"]["estimate"]] == ["2020-03-01"]
    for name, rows in tables.items():
        assert (rows["ci_low"] <= rows["estimate"]).all(), name
        assert (rows["estimate"] <= rows["ci_high"]).all(), name
        assert rows["reason"].isna().all()


ASKED = """\
dataset: {id: blanks}
privacy: {unit: row}
budget: {epsilon: 1000000}
domain:
  year: {values: [2004, 2012]}
  trust: {values: [yes, no]}
  asked: {values: [yes, no], other: show}
workload:
  - {name: answers, product: {year: identity, trust: identity}}
  - {name: with_all, product: {year: identity, trust: identity+total}}
  - {name: yes_alone, product: {year: identity, trust: {groups: {agree: [yes]}}}}
  - {name: grouped, product: {year: identity, trust: {groups: {agree: [yes], not: [no]}}}}
  - {name: shown, product: {year: identity, asked: identity}}
derived:
"""
# Of 100 records of 2004 and of 100 of 2012: so many with yes, no and a blank.
TRUST = {2004: (46, 40, 14), 2012: (38, 13, 49)}
AMONG = [
    ("answers", "", True, "share of all with a declared value of trust and the same year"),
    ("answers", ", among: all", False, "the same year, undeclared values of trust included"),
    ("with_all", "", False, "the same year, undeclared values of trust included"),
    ("yes_alone", "", False, "the same year, undeclared values of trust included"),
    ("yes_alone", ", among: declared", True, "with a declared value of trust and the same year"),
    ("grouped", "", True, "with a declared value of trust and the same year"),
    ("shown", "", False, "the same year, undeclared values of asked included"),
]


@pytest.mark.nightly
def test_shares_are_of_those_with_an_answer_unless_rows_say_otherwise(own_folder):
    """Half of 2012 is blank: among all, trust falls from 46 to 38 %; among answers it rises."""
    items = [
        f"  - {{name: s{k}, share: {{of: {of}, within: [year]{among}}}}}\n"
        for k, (of, among, _, _) in enumerate(AMONG)
    ]
    (own_folder / "w.yaml").write_text(ASKED + "".join(items))
    rows = [
        f"{year},{text},{text}"
        for year, sizes in TRUST.items()
        for text, size in zip(("yes", "no", ""), sizes, strict=True)
        for _ in range(size)
    ]
    (own_folder / "data.csv").write_text("year,trust,asked\n" + "\n".join(rows) + "\n")
    plan("w.yaml", time_limit=0.1, ledger_path="l.db")
    made = release("data.csv", epsilon=100000, ledger_path="l.db")
    defined = {item["name"]: item["definition"] for item in json.loads(
        (own_folder / "release" / "release.json").read_text())["derived"]}  # fmt: skip
    for k, (of, _, declared, words) in enumerate(AMONG):
        table = Release(made.directory).table(f"s{k}")
        column = "asked" if of == "shown" else "trust"
        agreed = table[table[column].astype(str).isin(["yes", "agree"])]["estimate"].tolist()
        among = [yes / (yes + no + (0 if declared else blank)) for yes, no, blank in TRUST.values()]
        assert agreed == pytest.approx(among, abs=1e-3), (of, words)
        assert defined[f"s{k}"].endswith(words)
    whole = Release(made.directory).table("s2")
    of_itself = whole[whole["trust"].astype(str) == "all"]
    assert (of_itself[["estimate", "ci_low", "ci_high"]] == 1).all(axis=None)  # to the last digit


@pytest.mark.parametrize("item", ["with_all", "shown"])
def test_shares_of_declared_values_have_no_rows_for_others(item):
    share = f"  - {{name: s, share: {{of: {item}, within: [year], among: declared}}}}\n"
    with pytest.raises(SpecError, match=r"without `total` and `other` there"):
        parse(ASKED + share, name="w", files={})


def test_the_report_says_how_wide_derived_intervals_are(folder):
    report = load_report(folder / "release")
    for item in report.derived:
        rows = pd.read_parquet(folder / "release" / item.facts.file)
        halves = (rows["ci_high"] - rows["ci_low"]) / 2
        if item.facts.name == "days":
            halves = halves.map(lambda half: half.total_seconds() / 86400)
        scale = 100 if item.facts.kind in ("share", "ratio") else 1
        middle = halves.dropna().sort_values().iloc[(halves.count() - 1) // 2]
        assert item.widths.typical == pytest.approx(scale * middle), item.facts.name
        assert item.widths.widest == pytest.approx(scale * halves.max())
        assert item.widths.flagged_share == pytest.approx((rows["flag"] != "").mean())
        assert item.widths.missing == rows["estimate"].isna().sum()
    summaries = {item.facts.name: item.summary for item in report.derived}
    assert summaries["shares"][3].endswith(" points")
    assert summaries["days"][3].endswith(" days")
    assert to_json(report)["derived"][0]["name"] == report.derived[0].facts.name
    shown = page(report)
    for name, _, _, *figures in summaries.values():
        head, tail = f'<a href="#derived-{name}">', "".join(f"<td>{cell}</td>" for cell in figures)
        assert tail in shown[shown.index(head) :].partition("</tr>")[0]
    last = report_grids(report)[-1]
    assert [row[0] for row in last.rows] == [*summaries]
    assert "half of the 95 % interval" in last.title


def test_the_page_shows_derived_items_and_shares_and_ratios_in_percent(folder):
    text = page(load_report(folder / "release"))
    names = [item.facts.name for item in load_report(folder / "release").derived]
    assert names == [facts["name"] for facts in manifest_of(folder)["derived"]]
    sections = dict(re.findall(r'<h3 id="derived-(\w+)">(.*?)</article>', text, re.DOTALL))
    assert [*sections] == names
    for name in ("shares", "part"):
        parts = pd.read_parquet(folder / "release" / f"{name}.parquet")["estimate"]
        shown = re.findall(r"<td>([\d.,]+)(?:</td><td>|<small>)[\d.,]+ to", sections[name])
        assert [float(cell) for cell in shown] == pytest.approx(100 * parts, rel=1e-3)
    assert "<svg" in sections["shares"]
    assert "<svg" not in sections["days"]  # dates are listed
    assert "2020-03-01" in sections["days"]
    assert WHOM in sections["medians"]
    assert "interpolated within a bin" in sections["medians"]
    assert "interpolated" not in sections["days"] + sections["shares"]
    assert WHOM in (folder / "release" / "statement.md").read_text()


def test_columns_of_attributes_have_one_type_in_all_files(folder):
    types = {}
    for path in (folder / "release").glob("*.parquet"):
        for field in pq.read_schema(path):
            if field.name in ("sex", "region", "hours", "income", "day"):
                types.setdefault(field.name, set()).add(str(field.type))
    assert {"sex", "region"} <= types.keys()
    assert [name for name, kinds in types.items() if len(kinds) > 1] == []


def test_a_package_has_derived_items_with_the_meaning_of_their_columns(folder, tmp_path):
    package(folder / "release", out=tmp_path / "package", also=("csv",))
    with (tmp_path / "package" / "shares.csv").open() as file:
        head = next(file)
    assert head.strip().endswith('"ci_low","ci_high","flag","reason"')
    described = json.loads((tmp_path / "package" / "datapackage.json").read_text())
    by_name = {resource["name"]: resource for resource in described["resources"]}
    assert {"shares", "mean", "days"} <= by_name.keys()
    fields = {field["name"]: field for field in by_name["shares"]["schema"]["fields"]}
    assert fields["estimate"]["description"].startswith("The share, from noisy answers")
    for name, limited in (("medians.parquet", False), ("medians", True)):
        (error,) = (f for f in by_name[name]["schema"]["fields"] if f["name"] == "std_error")
        assert ("minimum" in error.get("constraints", {})) is limited  # null there, read as NaN
    quality = (tmp_path / "package" / "quality.md").read_text()
    assert "Derived from them: `shares`" in quality
    assert WHOM in quality
    assert WHOM in by_name["medians"]["description"]
    (share,) = (f for f in by_name["medians"]["schema"]["fields"] if f["name"] == "quantile")
    assert WHOM in share["description"]


def test_covariances_of_a_release_have_its_squared_errors_on_the_diagonal(folder):
    opened = Release(folder / "release")
    errors = opened.table("people")["std_error"]
    whole = opened.covariance("people")
    assert np.diag(whole) == pytest.approx(errors.to_numpy() ** 2)
    assert whole == pytest.approx(whole.T)
    some = opened.covariance([("people", 4), ("all", 1)], "people")
    assert some[0] == pytest.approx(whole[4])
    assert some.shape == (2, 6)
    with pytest.raises(SpecError, match=r"no item 'peple'; did you mean 'people'"):
        opened.covariance("people", [("peple", 0)])
    with pytest.raises(SpecError, match="has rows 0 to 5, and no row 6"):
        opened.covariance([("people", 6)])


def test_answers_have_the_derived_items_of_the_release_byte_for_byte(folder):
    """The same statistics asked later, without a workload of their own, and twice."""
    (folder / "later.yaml").write_text("derived:\n" + DERIVED_ITEMS)
    for out in ("first", "second"):
        answer(folder / "release", folder / "later.yaml", out=folder / out)
    for name in ("shares", "mean", "medians"):
        rows = pd.read_parquet(folder / "first" / f"{name}.parquet")
        pd.testing.assert_frame_equal(rows, pd.read_parquet(folder / "release" / f"{name}.parquet"))
    for path in (folder / "first").iterdir():
        assert path.read_bytes() == (folder / "second" / path.name).read_bytes()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("share: {of: people, within: [hours]}", "'people' has no rows by 'hours'"),
        ("share: {of: people, within: [sex, region]}", "leave out of `within`"),
        ("share: {of: peple}", "no item of the workload is called 'peple'; did you mean 'people'?"),
        ("ratio: {of: all, to: people}", "'people' has rows by 'sex', and 'all' has none"),
        ("mean: {sum: people}", "name an item of the workload with `sum:"),
        ("mean: {sum: hours, count: hours}", "'hours' is a sum; name an item that counts records"),
        ("difference: {of: all, between: {sex: [M, F]}}", "no rows by 'sex', but by region; add"),
        ("difference: {of: people, between: {sex: [M, M]}}", "the two values are one"),
        ("quantiles: {of: people, over: income}", "ask for `income: prefix` in an item"),
        ("quantiles: {of: people, over: sex}", "have no order"),
        ("quantiles: {of: incomes, over: income, at: [0.5, 0.2]}", "must rise"),
        ("quantiles: {of: incomes, over: income, at: [1.5]}", "above 0 and below 1, found '1.5'"),
        ("quantiles: {of: incomes, over: income, at: medain}", "or a word; did you mean 'median'?"),
        ("rate: {of: all, population: short.csv}", "has no population for W"),
        ("rate: {of: all, population: zero.csv}", "zero.csv:3:1: this population cannot"),
        ("rate: {of: all, population: twice.csv}", "twice.csv:3:1: this row is there twice"),
        ("rate: {of: all, population: head.csv}", "expected one column 'region' in the header"),
        ("rate: {of: incomes, population: head.csv}", "expected one column 'sex'"),
    ],
)
def test_mistakes_in_derived_items_are_named(line, message):
    files = {
        "short.csv": "region,population\nN,1\nS,2\n",
        "zero.csv": "region,population\nN,1\nS,0\nW,2\n",
        "twice.csv": "region,population\nN,1\nN,2\n",
        "head.csv": "place,population\nN,1\n",
    }
    with pytest.raises(SpecError) as caught:
        parse(WITHOUT + f"  - {{name: one, {line}}}\n", name="w.yaml", files=files)
    assert message in str(caught.value)
    assert "w.yaml:1" in str(caught.value)


def test_a_name_is_taken_once():
    for name in ("people", "errors"):
        with pytest.raises(SpecError, match=r"names an item already|becomes a file"):
            parse(WITHOUT + f"  - {{name: {name}, share: {{of: people}}}}\n", name="w", files={})


BLANKS = (
    "dataset: {id: b}\nprivacy: {unit: row}\nbudget: {epsilon: 1000000}\ndomain:\n"
    "  sex: {values: [F, M]}\n  hours: {range: [1, 5]}\nworkload:\n"
    "  - {name: hours, sum: {of: hours, by: {sex: identity}}}\n"
    "  - {name: people, product: {sex: identity}}\n"
)
WORKED = "  - {name: worked, product: {sex: identity, hours: identity}}\n"


def test_a_mean_is_of_those_who_have_a_value(tmp_path):
    """Records with a blank, or a value beyond the range, would pull it down."""
    rng = np.random.default_rng(2)
    hours = rng.integers(1, 9, 900).astype(str)
    hours[::4] = ""
    data = pd.DataFrame({"sex": rng.choice(["F", "M"], 900), "hours": hours})
    data.to_csv(tmp_path / "data.csv", index=False)
    derived = "derived:\n  - {name: mean, mean: {sum: hours}}\n"
    derived += "  - {name: of_all, mean: {sum: hours, count: people}}\n"
    (tmp_path / "w.yaml").write_text(BLANKS + WORKED + derived)
    paths = {"plan_path": tmp_path / "p.plan", "ledger_path": tmp_path / "l.db"}
    plan(tmp_path / "w.yaml", mechanism="linear", time_limit=0.1, **paths)
    release(tmp_path / "data.csv", epsilon=20000, out=tmp_path / "r", **paths)
    known = pd.to_numeric(data["hours"]).where(lambda value: value <= 5)
    means = Release(tmp_path / "r").table("mean")["estimate"]
    assert means.tolist() == pytest.approx(known.groupby(data["sex"]).mean().tolist(), abs=1e-3)
    of_all = Release(tmp_path / "r").table("of_all")["estimate"]
    filled = known.fillna(0).groupby(data["sex"]).mean()
    assert of_all.tolist() == pytest.approx(filled.tolist(), abs=1e-3)


def test_a_mean_that_takes_blanks_for_nought_is_refused_with_both_remedies(tmp_path):
    """No question tells a blank from 0 hours: the records with a value are not counted."""
    text = BLANKS.replace("[1, 5]", "[0, 5]") + "derived:\n  - {name: mean, mean: {sum: hours}}\n"
    (tmp_path / "w.yaml").write_text(text)
    paths = {"plan_path": tmp_path / "p.plan", "ledger_path": tmp_path / "l.db"}
    with pytest.raises(SpecError) as refused:
        plan(tmp_path / "w.yaml", mechanism="linear", time_limit=0.1, **paths)
    assert "w.yaml:11:5: 'mean' tells '0' from 'other' of 'hours'" in str(refused.value)
    assert "; add `- {name: mean_of, product: {" in str(refused.value)
    assert "; or count records without a value of 'hours' too, which add 0" in str(refused.value)
    assert "by naming the item that counts its records with `count:`; or" in str(refused.value)
    assert "or give 'hours' `other: drop`, which leaves" in str(refused.value)


def test_means_that_no_strategy_can_hold_are_refused_before_one_is_looked_for(
    tmp_path, monkeypatch
):
    """All of them at once: a search of minutes would end in the same refusal."""
    means = "".join(f"  - {{name: mean_{n}, mean: {{sum: hours}}}}\n" for n in (1, 2))
    (tmp_path / "w.yaml").write_text(BLANKS.replace("[1, 5]", "[0, 5]") + "derived:\n" + means)
    monkeypatch.setattr("dpquery.planning.search.select", None)
    paths = {"plan_path": tmp_path / "p.plan", "ledger_path": tmp_path / "l.db"}
    with pytest.raises(SpecError) as refused:
        plan(tmp_path / "w.yaml", mechanism="linear", **paths)
    first, second = str(refused.value).splitlines()
    assert "w.yaml:11:5: 'mean_1' tells '0' from 'other' of 'hours'" in first
    assert "w.yaml:12:5: 'mean_2' tells '0' from 'other' of 'hours'" in second
    assert not (tmp_path / "p.plan").exists()


def test_a_difference_between_releases_has_the_noise_of_both(folder):
    paths = {"plan_path": folder / "dpquery.plan", "ledger_path": folder / "ledger.db"}
    release(folder / "data.csv", epsilon=50, out=folder / "later", release_number=2, **paths)
    line = "derived: [{name: change, difference: {of: people, release: %s}}]\n"
    (folder / "change.yaml").write_text(line % "later")
    answer(folder / "release", folder / "change.yaml", out=folder / "change")
    rows = pd.read_parquet(folder / "change" / "change.parquet")
    before, after = (Release(folder / name).table("people") for name in ("later", "release"))
    off = after["estimate"] - before["estimate"]
    assert rows["estimate"].tolist() == pytest.approx(off.tolist())
    spread = np.hypot(before["std_error"], after["std_error"])
    assert rows["std_error"].tolist() == pytest.approx(spread.tolist())
    assert ((rows["ci_low"] < rows["estimate"]) & (rows["estimate"] < rows["ci_high"])).all()
    other = json.loads((folder / "later" / "release.json").read_text())
    (facts,) = json.loads((folder / "change" / "release.json").read_text())["derived"]
    assert f"less that of release {other['key'][:12]} of town, version 1" in facts["definition"]
    assert "limited by both guarantees together" in (folder / "change" / "statement.md").read_text()
    (folder / "same.yaml").write_text(line % "release")
    with pytest.raises(SpecError, match="the same measurements as the release itself"):
        answer(folder / "release", folder / "same.yaml", out=folder / "same")
    text = "  - {name: change, difference: {of: people, release: later}}\n"
    with pytest.raises(SpecError, match="a plan knows no other release"):
        parse(WITHOUT + text, name="w.yaml", files={})


@pytest.mark.parametrize("change", [{"file": "../x.parquet"}, {"name": "people"}, {"rows": 0}])
def test_a_forged_derived_item_is_refused(folder, tmp_path, change):
    manifest = unhashed((folder / "release" / "release.json").read_text())
    manifest["derived"][0] |= change
    (tmp_path / "release.json").write_text(json.dumps(manifest))
    with pytest.raises(SpecError, match=r"its (derived\.rows|items|items\.file) is none that"):
        load_report(tmp_path)


def test_lint_refuses_a_mean_of_what_no_item_counts_as_plan_does(own_folder):
    sums = "  - {name: years, sum: {of: age, by: {sex: identity}}}\n"
    sums += "  - {name: ages, product: {age: identity}}\n"
    counts = "  - {name: persons, product: {sex: identity, age: identity}}\n"
    head = GAUSSIAN_SPEC.replace("other: drop\n", "").partition("workload:")[0] + "workload:\n"
    mean = "derived:\n  - {name: mean_age, mean: {sum: years}}\n"
    Path("workload.yaml").write_text(head + sums + mean)
    said = refused("lint", "workload.yaml", code=2)
    assert said == refused("plan", "workload.yaml", "--time-limit", "0", "--dry-run", code=2)
    assert "workload.yaml:15:5: 'mean_age' is made of counts by age x sex" in said
    Path("workload.yaml").write_text(head + sums + counts + mean)
    assert "no mistakes" in ok("lint", "workload.yaml").out
    ok("plan", "workload.yaml", "--time-limit", "0", "--dry-run")


def test_a_sum_whose_squares_are_not_measured_says_so(own_folder):
    head = (
        "dataset: {id: sample, version: 1}\nbudget: {epsilon: 1e6}\nprivacy: {unit: row, weight: "
    )
    head += "{column: wt, at_most: 2, total: 18, effective: 9, design_effect: 1}}\n"
    head += "domain: {sex: {values: [F, M]}, age: {range: [0, 90]}}\nworkload:\n"
    items = "  - {name: sexes, product: {sex: identity}}\n"
    items += "  - {name: ages, sum: {of: age, by: {sex: identity}}}\n"
    Path("data.csv").write_text("sex,age,wt\nF,1,2\nM,2,2\n")
    both = "  - {name: all, product: {sex: identity, age: identity}}\n"
    why = ["squares of what it adds up are not measured; ask for a table by that column as well"]
    hidden = ["noise may hide the sums of squared weights that it takes"]
    for asked, empty in ((items, why), (items + both, hidden), (items + both, [])):
        ages = "[0, 90]" if empty else "[0, 3]"
        Path("workload.yaml").write_text(head.replace("[0, 90]", ages) + asked)
        ok("plan", "workload.yaml", "--epsilon", "40000", "--time-limit", "0")
        ok("release", "data.csv", "--epsilon", "40000", "--replace")
        facts, *others = json.loads(Path("release/release.json").read_text())["extra"]
        told = [(each["item"], each["reason"]) for each in facts["empty"]]
        assert told == [("ages", reason) for reason in empty]
        assert [each["empty"] for each in others] == [[], [], []]
        statement = Path("release/statement.md").read_text()
        assert all(f"Empty in tables of `ages`: {reason}." in statement for reason in empty)
        assert ("Empty in" in statement) is bool(empty)
