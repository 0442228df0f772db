"""Adaptive measurement from the command line: released, reported, answered, free when repeated."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rounds import MIXED_SPEC, PERSON_SPEC, REPLACE_SPEC, rehearse_tables
from town import CSV, contents, kinds, ok, plan_town, refused, renew, spent

from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import read_plan
from dpquery.releases.folder.noisy_files import read_relaxed
from dpquery.releases.manifest import read_manifest
from dpquery.spec.parsing.read import parse

RELEASE = ("release", "data.csv", "--epsilon", "1")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "town"
    plan_town(folder, MIXED_SPEC)
    rehearse_tables(folder / "dpquery.plan")
    return folder


@pytest.fixture
def town(template, tmp_path, monkeypatch):
    return moved_to(tmp_path / "town", template, monkeypatch)


def moved_to(folder, template, monkeypatch):
    renew(folder, template)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))
    return folder


def spec():
    return parse(Path("workload.yaml").read_text(), name="workload.yaml", files={})


def compiled():
    return compile_spec(spec())


@pytest.mark.nightly
def test_preferred_tables_are_released_without_being_asked_for(town):
    done = ok(*RELEASE, "--json")
    document = json.loads(done.out)
    assert (document["mechanism"], document["strategy"]) == ("adaptive", "adaptive measurement")
    assert (document["rmse"], document["max_std_error"]) == (None, None)
    assert document["simulated"]["rmse"] == 4.5
    assert kinds() == ["register", "reserve", "commit"]
    assert ok("ledger", "verify", "--releases", "release").out.startswith("ok")
    shown = "adaptive measurement: no error bars; simulated on the default prior: weighted RMSE 4.5"
    assert shown in ok(*RELEASE).out


def test_answers_are_those_of_the_relaxed_rows_times_the_total_and_have_no_errors(town):
    ok(*RELEASE)
    manifest, operators = read_manifest(Path("release")), compiled()
    assert {path.name for path in Path("release").iterdir()} == set(manifest.files)
    run = manifest.adaptive
    rows = read_relaxed(Path("release"), operators, digest=run.rows_sha256)
    for item, places in zip(manifest.items, operators.items, strict=True):
        blocks = [operators.workload.blocks[place] for place in places]
        expected = run.total * np.concatenate([rows.answer(block).ravel() for block in blocks])
        table = pd.read_parquet(Path("release") / item.file)
        np.testing.assert_allclose(table["estimate"], expected, rtol=1e-6, atol=1e-12)
        assert table[["std_error", "ci_low", "ci_high", "rel_error"]].isna().all(axis=None)
        assert set(table["flag"]) == {"no error bars"}


def test_the_manifest_and_the_statement_say_what_was_chosen_and_measured(town):
    ok(*RELEASE)
    run = read_manifest(Path("release")).adaptive
    assert run.one_way == 4
    assert run.candidates == 11
    assert len(run.rounds) == len(run.noise_std) >= 3
    assert all(set(name.split(" x ")) <= {"age", "sex", "region", "income"} for name in run.rounds)
    words = " ".join(Path("release/statement.md").read_text().split())
    for said in (
        "made by adaptive measurement of whole tables",
        "First 4 tables of one attribute were measured with noise",
        "one of 11 tables was drawn by lot",
        f"{len(set(run.rounds))} different ones",
        "every choice and every count is paid for",
        "There are no error bars",
        "(ρ = ",
        "adaptive measurement)",
        "which of them were made and with how much noise",
    ):
        assert said in words, said
    names = [attribute.name for attribute in spec().domain.attributes]
    classes = compiled().workload.shape_of_domain
    tables = [[names.index(name) for name in table.split(" x ")] for table in run.rounds]
    sizes = [2 + math.prod(classes[i] for i in table) for table in tables]
    assert len(pd.read_parquet("release/measurements.parquet")) == sum(classes) + sum(sizes)


def test_the_same_release_again_is_free_and_the_same_to_the_last_byte(town):
    ok(*RELEASE)
    first, paid = contents("release"), spent()
    Path("data.csv").unlink()
    assert "nothing was charged" in ok(*RELEASE).err
    assert contents("release") == first
    assert spent() == paid


def test_error_report_answer_and_synthetic_work_from_the_rows(town):
    ok(*RELEASE)
    text = ok("error-report").out
    assert "no error bars" in text
    assert "simulated, not measured: weighted RMSE 4.5" in text
    page = Path("report.html").read_text()
    assert "Adaptive measurement" in page
    assert "relaxed adaptive projection" not in page.lower()
    Path("more.yaml").write_text("workload:\n  - {name: sexes, product: {sex: identity}}\n")
    assert "no error bars" in ok("answer", "release", "more.yaml").out
    manifest = read_manifest(Path("answers"))
    assert manifest.adaptive.simulated is None
    assert "read off its `relaxed_rows.parquet`" in " ".join(
        Path("answers/statement.md").read_text().split()
    )
    ok("synthetic", "--rows", "10")
    assert len(pd.read_csv("synthetic.csv")) == 10
    for option in (("--also", "integer"), ("--confidence", "0.9")):
        words = refused("answer", "release", "more.yaml", "--out", "other", *option, code=2)
        assert "the answers of adaptive measurement have no" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--epsilon", "0.5"),
            "the plan prefers adaptive measurement, which it simulated at epsilon 1",
        ),
        (("--epsilon", "1", "--delta", "1e-7"), "or give --mechanism adaptive or --mechanism lin"),
        (("--epsilon", "1", "--mechanism", "adaptive", "--noise", "laplace"), "takes Gaussian"),
        (("--epsilon", "1", "--mechanism", "adaptive", "--delta", "0"), "needs a delta"),
        (("--epsilon", "1", "--also", "integer"), "leave --also out"),
        (("--epsilon", "1", "--confidence", "0.9"), "leave --confidence out, or give --mechanism"),
        (("--epsilon", "1", "--mechanism", "rap"), "dpquery plan --mechanism rap"),
    ],
)
def test_what_adaptive_tables_cannot_do_is_refused_before_anything_is_charged(town, options, words):
    assert words in refused("release", "data.csv", *options, code=2)
    assert kinds() == ["register"]


@pytest.mark.nightly
def test_a_plan_without_adaptive_tables_refuses_them_and_names_the_remedy(gaussian_town):
    message = refused(*RELEASE, "--mechanism", "adaptive", code=2)
    assert "dpquery plan --mechanism adaptive" in message
    assert kinds() == ["register"]


def test_tables_at_another_epsilon_simulate_nothing(town):
    done = ok("release", "data.csv", "--epsilon", "0.5", "--mechanism", "adaptive")
    assert "adaptive measurement: no error bars, and the plan simulated no errors" in done.out
    assert read_manifest(Path("release")).adaptive.simulated is None


@pytest.mark.nightly
@pytest.mark.parametrize("unit", ["person", "replace"])
def test_persons_and_replaced_records_are_protected_too(tmp_path, monkeypatch, unit):
    plan_town(tmp_path / "made", PERSON_SPEC if unit == "person" else REPLACE_SPEC)
    place = moved_to(tmp_path / "town", tmp_path / "made", monkeypatch)
    rehearse_tables()
    if unit == "person":
        head, *lines = CSV.splitlines()
        named = [head + b",name", *(b"%s,p%d" % (line, k % 3) for k, line in enumerate(lines))]
        (place / "data.csv").write_bytes(b"\n".join(named) + b"\n")
    ok(*RELEASE)
    run = read_manifest(Path("release")).adaptive
    if unit == "replace":
        assert (run.total, run.total_std) == (6.0, None)
        whole = pd.read_parquet("release/whole.parquet")["estimate"]
        assert list(whole) == [pytest.approx(6, rel=1e-5)]
        ages = pd.read_parquet("release/ages.parquet")["estimate"]
        assert ages.max() <= 6 * (1 + 1e-5)  # the range of all ages leaves out the cell of others
    else:
        assert run.total_std > 0
    assert "nothing was charged" in ok(*RELEASE).err


# Plans.


@pytest.mark.nightly
def test_plan_compares_tables_with_rap_and_linear_and_a_release_follows(town):
    text = MIXED_SPEC.replace("version: 1}", "version: 1, rows: about 1000}")
    Path("workload.yaml").write_text(text)
    arguments = ("plan", "workload.yaml", "--mechanism", "adaptive", "--epsilon", "0.1")
    shown = " ".join(ok(*arguments).out.split())
    assert "linear, RAP or adaptive measurement, epsilon = 0.1" in shown
    assert re.search("preferred[^:]*: adaptive measurement", shown)
    assert "among 11 tables; answers without error bars" in shown
    planned = read_plan(Path("dpquery.plan").read_bytes())
    assert planned.preferred is planned.adaptive
    assert planned.relaxed is not None
    assert not planned.relaxed.preferred
    assert (planned.adaptive.tables, planned.adaptive.repetitions) == (11, 3)
    before = Path("dpquery.plan").read_bytes()
    document = json.loads(ok(*arguments, "--json").out)
    assert Path("dpquery.plan").read_bytes() == before
    assert document["adaptive"]["rmse"] == planned.adaptive.rmse
    assert document["rap"]["rmse"] == planned.relaxed.rmse
    done = ok("release", "data.csv", "--epsilon", "0.1")
    assert "adaptive measurement: no error bars; simulated on 3 made-up populations" in done.out
    assert "simulated, not measured" in ok("error-report").out


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (", rows: about 1000", "", "declare `dataset: {rows: about 50000}`"),
        (", accounting: zcdp", ", accounting: gdp", "adaptive measurement's as rho of zCDP"),
        (", delta: 1e-6}\nbudget", "}\nbudget", "it takes a delta"),
    ],
)
def test_plan_says_why_tables_cannot_be_rehearsed(town, old, new, words):
    text = MIXED_SPEC.replace("version: 1}", "version: 1, rows: about 1000}")
    assert old in text
    Path("new.yaml").write_text(text.replace(old, new))
    said = refused("plan", "new.yaml", "--mechanism", "adaptive", code=2)
    assert "adaptive measurement cannot be rehearsed" in said
    assert words in said


def test_plan_says_that_one_table_leaves_nothing_to_adapt_to(town):
    text = MIXED_SPEC.replace("version: 1}", "version: 1, rows: about 1000}")
    start = text.index("workload:")
    one = "workload:\n  - {name: one, product: {age: identity, sex: identity}}\n"
    Path("one.yaml").write_text(text[:start] + one)
    said = refused("plan", "one.yaml", "--mechanism", "adaptive", code=2)
    assert "there is nothing to adapt to; take --mechanism linear" in said


def hostile(change):
    document = json.loads(Path("dpquery.plan").read_text())
    change(document)
    Path("dpquery.plan").write_text(json.dumps(document, indent=1))


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan["adaptive"].pop("rmse"),
        lambda plan: plan["adaptive"].pop("tables"),
        lambda plan: plan["adaptive"].update(tables=0),
        lambda plan: plan["adaptive"].update(rounds=-1),
        lambda plan: plan["adaptive"].update(rounds=2.5),
        lambda plan: plan["adaptive"].update(rmse=-1),
        lambda plan: plan["adaptive"].update(rmse="1"),
        lambda plan: plan["adaptive"].update(epsilon="0"),
        lambda plan: plan["adaptive"].update(delta="2"),
        lambda plan: plan["adaptive"].update(repetitions=0),
        lambda plan: plan["adaptive"].update(preferred="yes"),
        lambda plan: plan.update(adaptive=None),
        lambda plan: plan.update(adaptive=[]),
        lambda plan: plan.update(relaxed=plan["adaptive"] | {"settings": {}}),
        lambda plan: plan.update(
            relaxed=plan["adaptive"]
            | {"settings": {"rounds": 2, "selected": 3, "relaxed_rows": 20, "seed": 0}}
        ),
    ],
)
def test_a_plan_whose_adaptive_tables_are_damaged_is_refused(town, change, record_property):
    hostile(change)
    words = refused(*RELEASE, code=2)
    assert "dpquery plan" in words
    assert kinds() == ["register"]
    record_property("bad inputs", 1)


def test_what_a_plan_says_of_tables_decides_nothing_that_is_drawn(town):
    """Candidates, weights and costs are worked out anew from the spec."""
    ok(*RELEASE)
    first = contents("release")["relaxed_rows.parquet"]
    hostile(lambda plan: plan["adaptive"].update(tables=2, rounds=1, rmse=0.5))
    done = ok(*RELEASE, "--out", "other")
    assert "nothing was charged" in done.err
    assert contents("other")["relaxed_rows.parquet"] == first
