"""RAP and adaptive measurement by the commands: charged once, free again, honest of errors."""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from rounds import MIXED_SPEC, PERSON_SPEC, REPLACE_SPEC, rehearse, rehearse_tables
from specs import unhashed
from town import CSV, contents, kinds, ok, plan_town, refused, renew, spent

from dpquery.mechanisms import fitted
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.releases.folder.noisy_files import read_relaxed
from dpquery.releases.manifest import read_manifest
from dpquery.spec.parsing.read import parse

RELEASE = ("release", "data.csv", "--epsilon", "1")


@dataclass(frozen=True)
class Kind:
    """A mechanism without error bars: its name in commands and in words, and how it is planned."""

    name: str
    strategy: str
    rehearse: Callable

    def run(self, folder="release"):
        return getattr(read_manifest(Path(folder)), self.name)


KINDS = {
    "rap": Kind("rap", "RAP", rehearse),
    "adaptive": Kind("adaptive", "adaptive measurement", rehearse_tables),
}


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned")
    plan_town(folder / "rap", MIXED_SPEC)
    renew(folder / "adaptive", folder / "rap")
    for name, kind in KINDS.items():
        kind.rehearse(folder / name / "dpquery.plan")
    return folder


@pytest.fixture(params=KINDS)
def kind(request, templates, move_in):
    """A kind whose plan lies in the working folder, beside data and a ledger."""
    move_in(templates / request.param)
    return KINDS[request.param]


@pytest.fixture
def rap_town(templates, move_in):
    return move_in(templates / "rap")


@pytest.fixture
def town(templates, move_in):
    return move_in(templates / "adaptive")


def spec():
    return parse(Path("workload.yaml").read_text(), name="workload.yaml", files={})


def compiled():
    return compile_spec(spec())


@pytest.mark.nightly
def test_what_is_preferred_is_released_without_being_asked_for(kind):
    done = ok(*RELEASE, "--json")
    document = json.loads(done.out)
    asked = {"mechanism": kind.name, "strategy": kind.strategy, "noise": "gaussian"}
    assert {name: document[name] for name in asked} == asked
    assert (document["rmse"], document["max_std_error"]) == (None, None)
    assert document["simulated"]["rmse"] == 4.5
    assert kinds() == ["register", "reserve", "commit"]
    assert ok("ledger", "verify", "--releases", "release").out.startswith("ok")
    shown = "no error bars; simulated on the default prior: weighted RMSE 4.5, largest"
    if kind.name == "adaptive":
        shown = "no error bars; measured with noise (95 %): "
        items = [item.name for item in spec().items]
        assert [each["item"] for each in document["distances"]] == items
    assert f"{kind.strategy}: {shown}" in ok(*RELEASE).out


@pytest.mark.nightly(daily="rap")
def test_answers_are_those_of_the_relaxed_rows_times_the_total_and_have_no_errors(kind):
    ok(*RELEASE)
    manifest, operators, run = read_manifest(Path("release")), compiled(), kind.run()
    assert {path.name for path in Path("release").iterdir()} == set(manifest.files)
    rows = read_relaxed(Path("release"), operators, digest=run.rows_sha256)
    for item, places in zip(manifest.items, operators.items, strict=True):
        blocks = [operators.workload.blocks[place] for place in places]
        expected = run.total * np.concatenate([rows.answer(block).ravel() for block in blocks])
        table = pd.read_parquet(Path("release") / item.file)
        assert len(table) == item.queries
        np.testing.assert_allclose(table["estimate"], expected, rtol=1e-6, atol=1e-12)
        assert table["estimate"].between(0, run.total * 1.001).all()
        assert table[["std_error", "ci_low", "ci_high", "rel_error"]].isna().all(axis=None)
        assert set(table["flag"]) == {"no error bars"}


@pytest.mark.nightly(daily="adaptive")
def test_the_same_release_again_is_free_and_the_same_to_the_last_byte(kind):
    ok(*RELEASE)
    first, paid = contents("release"), spent()
    Path("data.csv").unlink()
    assert "nothing was charged" in ok(*RELEASE).err
    assert contents("release") == first
    ok(*RELEASE, "--out", "elsewhere")
    assert contents("elsewhere") == first
    assert spent() == paid


@pytest.mark.nightly(daily="adaptive")
def test_error_report_answer_and_synthetic_work_from_the_rows(kind):
    ok(*RELEASE)
    text = ok("error-report").out
    assert "no error bars" in text
    adaptive = kind.name == "adaptive"
    known = (
        "measured with noise (95 %)" if adaptive else "simulated, not measured: weighted RMSE 4.5"
    )
    assert known in text
    assert ("unknown" in text) is not adaptive
    assert ("errors of a table" in text) is adaptive
    assert "flagged" not in text
    document = json.loads(ok("error-report", "--json").out)
    assert {item["rmse"] for item in document["items"]} == {None}
    stated, page = (Path(name).read_text() for name in ("release/statement.md", "report.html"))
    for text in (stated, page):
        assert ("Estimates are biased, and nobody can say by how much:" in text) != adaptive
        assert ("Estimates are biased:" in text) is adaptive
    assert "no error bars" in page
    (table,) = re.findall(r'aria-label="All items"><table>(.*?)</table>', page, re.DOTALL)
    heads, *rows = table.split("<tr>")[1:]
    names = re.findall(r'<th scope="col">(.*?)</th>', heads)
    cells = [re.findall(r"<td.*?>(.*?)</td>", row) for row in rows]
    assert {1 + len(row) for row in cells} == {len(names)}
    assert ("of one cell" in names) is adaptive
    shares = [row[names.index("errors of a table") - 1] for row in cells] if adaptive else []
    assert all(re.search("^([0-9.]+ %|hidden by noise$)", share) for share in shares)
    assert ("Adaptive measurement" in page) == ("Measured distance" in page) == adaptive
    assert ("relaxed adaptive projection" in page.lower()) != adaptive
    Path("more.yaml").write_text("workload:\n  - {name: sexes, product: {sex: identity}}\n")
    assert "no error bars" in ok("answer", "release", "more.yaml").out
    assert kind.run("answers").simulated is None
    words = " ".join(Path("answers/statement.md").read_text().split())
    assert "read off its `relaxed_rows.parquet`" in words
    ok("synthetic", "--rows", "10")
    assert len(pd.read_csv("synthetic.csv")) == 10
    for option in (("--also", "integer"), ("--confidence", "0.9")):
        words = refused("answer", "release", "more.yaml", "--out", "other", *option, code=2)
        assert f"the answers of {kind.strategy} have no" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--epsilon", "0.5"), "the plan prefers {}, which it simulated at epsilon 1"),
        (("--epsilon", "0.5"), "plan again with --epsilon 0.5"),
        (("--epsilon", "1", "--delta", "1e-7"), "--delta 1e-7, or give --mechanism {name}"),
        (("--epsilon", "1", "--mechanism", "{name}", "--noise", "laplace"), "{} needs Gaussian"),
        (("--epsilon", "1", "--mechanism", "{name}", "--delta", "0"), "needs a delta"),
        (("--epsilon", "1", "--mechanism", "{name}", "--also", "integer"), "leave --also out"),
        (
            ("--epsilon", "1", "--also", "integer", "--confidence", "0.9"),
            "leave --also out, or give --mechanism linear dpquery: the answers of {} have no noise",
        ),
        (("--epsilon", "1", "--confidence", "0.9"), "leave --confidence out, or give --mechanism"),
        (("--epsilon", "1", "--mechanism", "{other}"), "dpquery plan SPEC --mechanism {other}"),
        (("--epsilon", "1", "--mechanism", "other"), "is not one of 'linear', 'rap'"),
    ],
)
def test_what_neither_can_do_is_refused_before_anything_is_charged(kind, options, words):
    (other,) = KINDS.keys() - {kind.name}
    named = [text.format(kind.strategy, name=kind.name, other=other) for text in (*options, words)]
    assert named.pop() in refused("release", "data.csv", *named, code=2)
    assert kinds() == ["register"]


@pytest.mark.parametrize("name", ["rap", pytest.param("adaptive", marks=pytest.mark.nightly)])
def test_a_plan_without_it_refuses_it_and_names_the_remedy(gaussian_town, name):
    message = refused(*RELEASE, "--mechanism", name, code=2)
    assert f"dpquery plan SPEC --mechanism {name}" in message
    assert kinds() == ["register"]


def test_at_another_epsilon_nothing_is_simulated(kind):
    done = ok("release", "data.csv", "--epsilon", "0.5", "--mechanism", kind.name)
    known = ", and the plan simulated no errors"
    if kind.name == "adaptive":
        known = "; measured with noise (95 %): "
    assert f"{kind.strategy}: no error bars{known}" in done.out
    assert kind.run().simulated is None


@pytest.mark.nightly
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("unit", ["person", "replace"])
def test_persons_and_replaced_records_are_protected_too(own_folder, unit, name):
    plan_town(own_folder, PERSON_SPEC if unit == "person" else REPLACE_SPEC)
    KINDS[name].rehearse()
    if unit == "person":
        head, *lines = CSV.splitlines()
        named = [head + b",name", *(b"%s,p%d" % (line, k % 3) for k, line in enumerate(lines))]
        Path("data.csv").write_bytes(b"\n".join(named) + b"\n")
    ok(*RELEASE)
    run = KINDS[name].run()
    if unit == "replace":
        assert (run.total, run.total_std) == (6.0, None)
        whole = pd.read_parquet("release/whole.parquet")
        assert [*whole.filter(["estimate", "unbiased"]).loc[0]] == pytest.approx(
            [6] * (1 + (name == "adaptive")), rel=1e-5
        )
        ages = pd.read_parquet("release/ages.parquet")["estimate"]
        assert ages.max() <= 6 * (1 + 1e-5)  # the range of all ages leaves out the cell of others
    else:
        assert run.total_std > 0
    assert "nothing was charged" in ok(*RELEASE).err


def test_another_release_number_pays_and_draws_afresh(rap_town):
    ok(*RELEASE)
    ok(*RELEASE, "--release-number", "2", "--out", "second")
    assert float(spent()) == pytest.approx(2 * 0.0243559703595, rel=1e-9)
    first, second = (read_manifest(Path(name)) for name in ("release", "second"))
    assert first.key != second.key
    assert first.measurements != second.measurements


@pytest.mark.nightly
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


def test_the_linear_strategy_can_be_asked_for(rap_town):
    document = json.loads(ok(*RELEASE, "--mechanism", "linear", "--json").out)
    assert document["mechanism"] == "linear"
    assert document["rmse"] > 0
    assert "relaxed_rows.parquet" not in contents("release")


def test_a_kind_of_noise_asks_for_a_linear_strategy(rap_town):
    half = ("release", "data.csv", "--epsilon", "0.5")
    document = json.loads(ok(*half, "--noise", "laplace", "--json").out)
    assert (document["mechanism"], document["noise"]) == ("linear", "laplace")


def test_a_linear_strategy_that_was_preferred_elsewhere_is_released_with_a_word(rap_town):
    rehearse(preferred=False)
    assert "compared" not in ok(*RELEASE).err
    half = ("release", "data.csv", "--epsilon", "0.5")
    words = "RAP was compared at epsilon 1 only\n"
    assert words in ok(*half, "--out", "auto").err
    delta = ("--delta", "1e-7", "--out", "delta", "--release-number", "2")
    assert "compared at epsilon 1 and delta 1e-6 only\n" in ok(*half, *delta).err
    assert words in ok(*half, "--out", "auto").err  # free, and as true as before
    for options in (("--mechanism", "linear"), ("--mechanism", "rap"), ("--noise", "gaussian")):
        assert "compared" not in ok(*half, *options, "--out", options[1]).err


def test_more_queries_than_there_are_cannot_be_chosen(rap_town):
    rehearse(settings=RapSettings(rounds=10, selected=100, relaxed_rows=20, seed=0))
    assert "fewer rounds" in refused(*RELEASE, code=2)
    assert kinds() == ["register"]


def test_relaxed_rows_that_would_not_fit_are_refused_before_anything_is_charged(rap_town):
    rehearse(settings=RapSettings(rounds=2, selected=3, relaxed_rows=2**20, seed=0))
    with mock.patch("dpquery.measurement.rounds.queries.MAX_RAP_FIT_NUMBERS", 2**20 * 12):
        assert "relaxed rows" in refused(*RELEASE, code=2)
    assert kinds() == ["register"]


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
    closing = 1 + 2 * len(run.distances)
    noisy = pd.read_parquet("release/measurements.parquet")
    assert len(noisy) == sum(classes) + sum(sizes) + closing
    assert [each.item for each in run.distances] == [item.name for item in spec().items]
    for each in run.distances:
        assert each.words(run.total) in words
    assert not run.refitted


@pytest.mark.nightly(daily="1-300")
@pytest.mark.parametrize(("edition", "number"), [(1, 300), (2, 600), (3, 600), (4, 600)])
def test_a_run_of_an_older_edition_is_released_again_free_and_as_it_was(
    town, monkeypatch, edition, number
):
    plan_town(town, MIXED_SPEC.replace("version: 1}", "version: 1, rows: about 1000}"))
    rehearse_tables()
    with monkeypatch.context() as patch:
        older = functools.partial(fitted.adaptive_mechanism, edition=edition)
        patch.setattr(fitted, "adaptive_mechanism", older)
        ok("release", "data.csv", "--epsilon", "1", "--out", "old")
    paid = spent()
    ok("release", "data.csv", "--epsilon", "1", "--out", "again")
    assert spent() == paid
    for name in ("relaxed_rows.parquet", "measurements.parquet"):
        assert Path("again", name).read_bytes() == Path("old", name).read_bytes()
    ok("release", "data.csv", "--epsilon", "1", "--out", "new", "--release-number", "2")
    assert float(spent()) == pytest.approx(2 * float(paid))
    old, new = (read_manifest(Path(name)).adaptive for name in ("old", "new"))
    assert (old.relaxed_rows, len(old.distances)) == (number, len(spec().items) * (edition > 2))
    assert (new.relaxed_rows, len(new.distances)) == (600, len(spec().items))
    assert (new.one_way_std < old.one_way_std / 2) == (edition < 4)
    assert {each.largest is None for each in old.distances} <= {True}
    facts = json.loads(Path("old/release.json").read_text())["adaptive"]
    assert ("distances" in facts) == (edition > 2)
    for name in ("old", "new"):
        ok("answer", name, "workload.yaml", "--out", f"{name}-later")
        said, again = (pd.read_parquet(Path(f, "upto.parquet")) for f in (name, f"{name}-later"))
        pd.testing.assert_frame_equal(said, again)
    assert read_manifest(Path("new-later")).adaptive.distances == ()


@pytest.mark.nightly
def test_rows_that_are_fitted_otherwise_than_those_that_were_measured_are_said_to_be(
    town, monkeypatch
):
    """As on another machine, whose arithmetic rounds otherwise."""
    ok(*RELEASE)
    real = fitted.released_rows

    def otherwise(*given):
        rows = real(*given)
        return dataclasses.replace(rows, values=np.nextafter(rows.values, np.float32(1)))

    monkeypatch.setattr(fitted, "released_rows", otherwise)
    ok(*RELEASE, "--out", "again")
    assert "fitted again" in Path("again/statement.md").read_text()
    assert read_manifest(Path("again")).adaptive.refitted
    assert "fitted again" not in Path("release/statement.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (", rows: about 1000", "", "declare `dataset: {rows: about 50000}`"),
        (", accounting: zcdp", ", accounting: gdp", "adaptive measurement's as rho of zCDP"),
        (", delta: 1e-6}\nbudget", "}\nbudget", "it needs a delta"),
        (
            "workload:\n",
            "derived:\n  - {name: part, share: {of: age_by_sex}}\nworkload:\n",
            ": new.yaml:13:5: derived items need error bars, which the answers of adaptive",
        ),
    ],
)
def test_plan_says_why_tables_cannot_be_rehearsed(town, old, new, words):
    text = MIXED_SPEC.replace("version: 1}", "version: 1, rows: about 1000}")
    assert old in text
    Path("new.yaml").write_text(text.replace(old, new))
    said = refused("plan", "new.yaml", "--mechanism", "adaptive", code=2)
    assert "adaptive measurement cannot be rehearsed" in said
    assert words in said


def hostile(change):
    document = unhashed(Path("dpquery.plan").read_text())
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
