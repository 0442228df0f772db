"""Two plans side by side: the errors are those that each plan promises, and nothing is written."""

import json
from pathlib import Path

import pandas as pd
import pytest
from rounds import MIXED_SPEC, rehearse
from town import ANY_PLAN, SPEC, contents, ok, plan_town, refused

from dpquery import compare
from dpquery.exceptions import SpecError

OTHER = SPEC.replace("    weight: 2\n", "    weight: 50\n").replace(
    "  - name: ages\n    ranges: {age: all}\n", "  - name: sexes\n    product: {sex: identity}\n"
)


@pytest.fixture
def two(town):
    """A town with its plan, and another spec with its own."""
    Path("other.yaml").write_text(OTHER)
    ok(*ANY_PLAN, "other.yaml", "--out", "other.plan")
    return town


def promised(spec, epsilon):
    """What `plan` says of a spec's items at an epsilon."""
    done = json.loads(ok("plan", spec, "--out", "again.plan", "--epsilon", epsilon, "--json").out)
    return {item["name"]: item for item in done["selections"][0]["items"]}


@pytest.mark.nightly
def test_the_errors_are_those_that_each_plan_promises(two):
    first, second = promised("workload.yaml", "0.5"), promised("other.yaml", "0.5")
    before = contents(".")
    frame = compare("dpquery.plan", "other.plan", epsilon="0.5").errors.set_index("item")
    assert contents(".") == before
    assert list(frame.index) == ["age_by_sex", "pairs", "ages", "sexes"]
    for items, place in ((first, "first"), (second, "second")):
        for name, item in items.items():
            assert frame.loc[name, f"rmse_{place}"] == pytest.approx(item["rmse"])
            assert frame.loc[name, f"max_std_error_{place}"] == pytest.approx(item["max_std_error"])
            assert frame.loc[name, f"queries_{place}"] == item["queries"]
    assert frame.loc["pairs", "ratio"] == pytest.approx(
        second["pairs"]["rmse"] / first["pairs"]["rmse"]
    )
    assert frame.loc["age_by_sex", "ratio"] < 1  # it weighs more
    assert pd.isna(frame.loc["ages", "rmse_second"])
    assert pd.isna(frame.loc["sexes", "ratio"])


@pytest.mark.nightly
def test_a_spec_is_planned_for_it_and_nothing_is_put_on_record(two):
    before = contents(".")
    by_plans = compare("dpquery.plan", "other.plan")
    by_specs = compare("workload.yaml", "other.yaml")
    assert contents(".") == before
    pd.testing.assert_frame_equal(by_plans.errors, by_specs.errors)


def test_what_is_printed_says_which_plan_is_which(two):
    done = ok("compare", "dpquery.plan", "other.plan", "--epsilon", "2")
    lines = done.out.splitlines()
    assert lines[0] == "expected errors in counts at epsilon = 2"
    assert [line.split()[0] for line in lines[2:6]] == ["age_by_sex", "pairs", "ages", "sexes"]
    assert len(lines[2].split()) == 7
    assert len(lines[5].split()) == 4  # the first plan has no such item
    assert "first: dpquery.plan, " in lines[6]
    assert "second: other.plan, " in lines[7]
    assert "50 % of the budget" in lines[7]
    as_json = json.loads(ok("compare", "dpquery.plan", "other.plan", "--json").out)
    assert [one["name"] for one in as_json["first"]["items"]] == ["age_by_sex", "pairs", "ages"]
    assert as_json["second"]["name"] == "other.plan"


@pytest.mark.slow
def test_a_plan_that_prefers_rap_is_said_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    plan_town(tmp_path, MIXED_SPEC)
    rehearse(tmp_path / "dpquery.plan")
    done = ok("compare", "dpquery.plan", "dpquery.plan")
    assert done.out.count("prefers RAP, whose errors depend on the records") == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.plan", None, "cannot be read: No such file or directory; name a plan or a spec"),
        ("text.yaml", "no: spec\n", "text.yaml:1:1: this is no spec"),
        ("cut.plan", '{\n  "format": "dpquery.plan/3",\n', "damaged"),
    ],
)
def test_what_is_neither_plan_nor_spec_is_refused(town, name, content, message):
    if content is not None:
        Path(name).write_text(content)
    with pytest.raises(SpecError) as caught:
        compare("dpquery.plan", name)
    assert message in str(caught.value)
    assert message in refused("compare", "dpquery.plan", name, code=2)
