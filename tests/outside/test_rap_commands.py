"""A release by RAP from the command line: charged once, free again, honest about its errors."""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from rounds import MIXED_SPEC, PERSON_SPEC, REPLACE_SPEC, rehearse, relaxed_of
from town import CSV, contents, kinds, ok, plan_town, refused, renew, spent

from dpquery.operators.compile import compile_spec
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.releases.manifest import read_manifest
from dpquery.spec.parsing.read import parse

RELEASE = ("release", "data.csv", "--epsilon", "1")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "town"
    plan_town(folder, MIXED_SPEC)
    rehearse(folder / "dpquery.plan")
    return folder


@pytest.fixture
def rap_town(template, tmp_path, monkeypatch):
    return moved_to(tmp_path / "town", template, monkeypatch)


def moved_to(folder, template, monkeypatch):
    renew(folder, template)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))
    return folder


def compiled():
    return compile_spec(parse(Path("workload.yaml").read_text(), name="workload.yaml", files={}))


# ------------------------------------------------------------------------------- end to end


@pytest.mark.nightly
def test_a_preferred_rap_is_released_without_being_asked_for(rap_town):
    done = ok(*RELEASE, "--json")
    document = json.loads(done.out)
    assert (document["mechanism"], document["strategy"], document["noise"]) == (
        "rap",
        "RAP",
        "gaussian",
    )
    assert (document["rmse"], document["max_std_error"]) == (None, None)
    assert document["simulated"]["rmse"] == 4.5
    assert kinds() == ["register", "reserve", "commit"]
    assert ok("ledger", "verify", "--releases", "release").out.startswith("ok")
    shown = "no error bars; simulated on the default prior: weighted RMSE 4.5, largest"
    assert shown in ok(*RELEASE).out


def test_every_table_is_there_and_its_errors_are_null(rap_town):
    ok(*RELEASE)
    manifest = read_manifest(Path("release"))
    assert {path.name for path in Path("release").iterdir()} == set(manifest.files)
    for item in manifest.items:
        table = pd.read_parquet(Path("release") / item.file)
        assert len(table) == item.queries
        assert table["estimate"].between(0, manifest.rap.total * 1.001).all()
        assert table[["std_error", "ci_low", "ci_high", "rel_error"]].isna().all(axis=None)
        assert set(table["flag"]) == {"no error bars"}


def test_answers_are_those_of_the_relaxed_rows_times_the_total(rap_town):
    ok(*RELEASE)
    operators = compiled()
    rows, total = relaxed_of(Path("release"), operators), read_manifest(Path("release")).rap.total
    for item, places in zip(read_manifest(Path("release")).items, operators.items, strict=True):
        blocks = [operators.workload.blocks[place] for place in places]
        expected = np.concatenate([rows.answer(block).ravel() for block in blocks])
        estimates = pq.read_table(Path("release") / item.file)["estimate"].to_numpy()
        np.testing.assert_allclose(estimates, total * expected, rtol=1e-6, atol=1e-12)


def test_the_same_release_again_is_free_and_the_same_to_the_last_byte(rap_town):
    ok(*RELEASE)
    first, paid = contents("release"), spent()
    Path("data.csv").unlink()
    again = ok(*RELEASE)
    assert "nothing was charged" in again.err
    assert contents("release") == first
    ok(*RELEASE, "--out", "elsewhere")
    assert contents("elsewhere") == first
    assert spent() == paid


def test_another_release_number_pays_and_draws_afresh(rap_town):
    ok(*RELEASE)
    ok(*RELEASE, "--release-number", "2", "--out", "second")
    assert float(spent()) == pytest.approx(2 * 0.0243559703595, rel=1e-9)
    first, second = (read_manifest(Path(name)) for name in ("release", "second"))
    assert first.key != second.key
    assert first.measurements != second.measurements


def test_error_report_says_that_errors_are_unknown(rap_town):
    ok(*RELEASE)
    text = ok("error-report").out
    assert "no error bars" in text
    assert "simulated, not measured: weighted RMSE 4.5" in text
    assert "unknown" in text
    assert "flagged" not in text
    document = json.loads(ok("error-report", "--json").out)
    assert {item["rmse"] for item in document["items"]} == {None}
    assert "no error bars" in Path("report.html").read_text()


def test_rap_at_another_epsilon_simulates_nothing(rap_town):
    done = ok("release", "data.csv", "--epsilon", "0.5", "--mechanism", "rap")
    assert "the plan simulated no errors" in done.out
    assert read_manifest(Path("release")).rap.simulated is None


def test_without_a_signal_answers_add_up_to_about_the_declared_number(rap_town):
    Path("workload.yaml").write_text(MIXED_SPEC.replace("1}", "1, rows: about 1000}"))
    ok("plan", "workload.yaml", "--mechanism", "linear")
    rehearse()
    ok("release", "data.csv", "--epsilon", "0.0001", "--mechanism", "rap")
    rap = read_manifest(Path("release")).rap
    assert rap.declared == 1000
    assert rap.total_std > 50_000
    assert rap.total == pytest.approx(1000, rel=0.05)
    table = pd.read_parquet("release/age_by_sex.parquet")
    assert table["estimate"].sum() / 2 == pytest.approx(rap.total, rel=1e-4)
    words = " ".join(Path("release/statement.md").read_text().split())
    assert "and weighed by inverse variances with the declared number, 1,000" in words


@pytest.mark.nightly
def test_all_queries_can_be_measured_at_once(rap_town):
    rehearse(settings=RapSettings(rounds=1, selected=0, relaxed_rows=20, seed=0))
    ok(*RELEASE)
    assert read_manifest(Path("release")).rap.selection_scale is None
    assert "was measured with noise, once" in Path("release/statement.md").read_text()
    assert "nothing was charged" in ok(*RELEASE).err


@pytest.mark.parametrize("unit", ["person", "replace"])
def test_persons_and_replaced_records_are_protected_too(tmp_path, monkeypatch, unit):
    plan_town(tmp_path / "made", PERSON_SPEC if unit == "person" else REPLACE_SPEC)
    town = moved_to(tmp_path / "town", tmp_path / "made", monkeypatch)
    rehearse()
    if unit == "person":
        lines = CSV.splitlines()
        named = [
            lines[0] + b",name",
            *(b"%s,p%d" % (line, k % 3) for k, line in enumerate(lines[1:])),
        ]
        (town / "data.csv").write_bytes(b"\n".join(named) + b"\n")
    ok(*RELEASE)
    rap = read_manifest(Path("release")).rap
    if unit == "replace":
        assert (rap.total, rap.total_std) == (6.0, None)
        (estimate,) = pd.read_parquet("release/whole.parquet")["estimate"]
        assert estimate == pytest.approx(6, rel=1e-5)
    else:
        assert rap.total_std > 0
    assert "nothing was charged" in ok(*RELEASE).err


@pytest.mark.nightly
def test_plan_release_report_answer_and_synthetic_follow_each_other(rap_town):
    spec = MIXED_SPEC.replace("version: 1}", "version: 1, rows: about 1000}")
    Path("workload.yaml").write_text(spec)
    ok("plan", "workload.yaml", "--mechanism", "rap", "--epsilon", "0.1")
    done = ok("release", "data.csv", "--epsilon", "0.1")
    assert "simulated on 3 made-up populations" in done.out
    assert "simulated, not measured" in ok("error-report").out
    Path("more.yaml").write_text("workload:\n  - {name: sexes, product: {sex: identity}}\n")
    assert "no error bars" in ok("answer", "release", "more.yaml").out
    ok("synthetic", "--rows", "10")
    assert len(pd.read_csv("synthetic.csv")) == 10
    assert ok("ledger", "verify", "--releases", "release").out.startswith("ok")


# ------------------------------------------------------------------------------- the choice


def test_the_linear_strategy_can_be_asked_for(rap_town):
    document = json.loads(ok(*RELEASE, "--mechanism", "linear", "--json").out)
    assert document["mechanism"] == "linear"
    assert document["rmse"] > 0
    assert "relaxed_rows.parquet" not in contents("release")


def test_a_kind_of_noise_asks_for_a_linear_strategy(rap_town):
    half = ("release", "data.csv", "--epsilon", "0.5")
    document = json.loads(ok(*half, "--noise", "laplace", "--json").out)
    assert (document["mechanism"], document["noise"]) == ("linear", "laplace")


def test_a_plan_that_does_not_prefer_rap_releases_a_linear_strategy(rap_town):
    rehearse(preferred=False)
    assert json.loads(ok(*RELEASE, "--json").out)["mechanism"] == "linear"


def test_a_linear_strategy_that_was_preferred_elsewhere_is_released_with_a_word(rap_town):
    rehearse(preferred=False)
    assert "compared" not in ok(*RELEASE).err
    half = ("release", "data.csv", "--epsilon", "0.5")
    words = "RAP was compared at epsilon 1 only\n"
    assert words in ok(*half, "--out", "auto").err
    delta = ("--delta", "1e-7", "--out", "delta", "--release-number", "2")
    assert "compared at epsilon 1 and delta 1e-06 only\n" in ok(*half, *delta).err
    assert words in ok(*half, "--out", "auto").err  # free, and as true as before
    for options in (("--mechanism", "linear"), ("--mechanism", "rap"), ("--noise", "gaussian")):
        assert "compared" not in ok(*half, *options, "--out", options[1]).err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--epsilon", "0.5"), "plan again with --epsilon 0.5"),
        (("--epsilon", "1", "--delta", "1e-7"), "--delta 1e-07, or give --mechanism rap"),
        (("--epsilon", "1", "--mechanism", "rap", "--noise", "laplace"), "RAP takes Gaussian"),
        (("--epsilon", "1", "--mechanism", "rap", "--delta", "0"), "needs a delta"),
        (("--epsilon", "1", "--mechanism", "rap", "--also", "integer"), "leave --also out"),
        (("--epsilon", "1", "--also", "integer"), "leave --also out"),
        (("--epsilon", "1", "--confidence", "0.9"), "leave --confidence out, or give --mechanism"),
        (("--epsilon", "1", "--mechanism", "other"), "choose one of auto, linear, rap"),
    ],
)
def test_what_rap_cannot_do_is_refused_before_anything_is_charged(rap_town, options, words):
    assert words in refused("release", "data.csv", *options, code=2)
    assert kinds() == ["register"]


def test_a_plan_without_rap_refuses_it_and_names_the_remedy(gaussian_town):
    message = refused(*RELEASE, "--mechanism", "rap", code=2)
    assert "dpquery plan --mechanism rap" in message
    assert kinds() == ["register"]


def test_more_queries_than_there_are_cannot_be_chosen(rap_town):
    rehearse(settings=RapSettings(rounds=10, selected=100, relaxed_rows=20, seed=0))
    assert "fewer rounds" in refused(*RELEASE, code=2)
    assert kinds() == ["register"]


def test_relaxed_rows_that_would_not_fit_are_refused_before_anything_is_charged(rap_town):
    rehearse(settings=RapSettings(rounds=2, selected=3, relaxed_rows=2**20, seed=0))
    with mock.patch("dpquery.measurement.rounds.budget.MAX_RAP_FIT_NUMBERS", 2**20 * 12):
        assert "relaxed rows" in refused(*RELEASE, code=2)
    assert kinds() == ["register"]
