"""Questions asked later of a RAP release: any at all, read off its relaxed rows, without errors."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from rounds import MIXED_SPEC, rehearse, relaxed_of
from town import ANY_PLAN, contents, ok, plan_town, refused, renew

from dpquery.commands import answer
from dpquery.operators.compile import compile_questions, compile_spec
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.reconstruction.relaxed import rows as relaxed_rows
from dpquery.reconstruction.relaxed.rows import RelaxedRows, spread_evenly
from dpquery.spec.parsing.later_queries import load_questions
from dpquery.spec.parsing.read import load_spec

MORE = """\
workload:
  - name: everything
    marginals: {ways: 4}
  - name: two_of
    threshold: {r: 2, of: [age, region, income]}
    where: {sex: F}
  - name: cumulative
    ranges: {age: prefix, income: all}
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("released") / "town"
    plan_town(folder, MIXED_SPEC)
    rehearse(folder / "dpquery.plan")
    (folder / "more.yaml").write_text(MORE)
    places = ("--ledger", folder / "state" / "ledger.db", "--out", folder / "release")
    ok("release", folder / "data.csv", "--plan", folder / "dpquery.plan", "--epsilon", "1", *places)
    return folder


@pytest.fixture
def released(template, tmp_path, monkeypatch):
    renew(tmp_path / "town", template)
    monkeypatch.chdir(tmp_path / "town")
    shutil.rmtree("state")
    Path("data.csv").unlink()


@pytest.mark.nightly
def test_any_question_is_answered_from_the_relaxed_rows(released):
    spec = load_spec(Path("workload.yaml"))
    compiled = compile_spec(spec)
    before = contents("release")
    done = json.loads(ok("answer", "release", "more.yaml", "--json").out)
    assert (done["rmse"], done["max_std_error"], done["charged"]) == (None, None, "0")
    assert contents("release") == before
    rows = relaxed_of(Path("release"), compiled)
    facts = json.loads(Path("release/release.json").read_text())
    later = load_questions(Path("more.yaml"), of=spec).spec
    new = compile_questions(later, compiled.classes)
    for item, places in zip(later.items, new.items, strict=True):
        answers = [rows.answer(new.workload.blocks[k]).ravel() for k in places]
        frame = pq.read_table(f"answers/{item.name}.parquet").to_pandas()
        np.testing.assert_allclose(
            frame["estimate"],
            facts["rap"]["total"] * np.concatenate(answers),
            rtol=1e-6,
            atol=1e-12,  # shares near 1e-43 are single-precision subnormals of a few bits
        )
        assert frame[["std_error", "ci_low", "ci_high", "rel_error"]].isna().all(axis=None)
        assert set(frame["flag"]) == {"no error bars"}


def test_a_question_of_the_release_asked_again_has_the_release_s_own_answers(released):
    ok("answer", "release", "workload.yaml")
    for item in load_spec(Path("workload.yaml")).items:
        before, again = (
            pq.read_table(f"{folder}/{item.name}.parquet") for folder in ("release", "answers")
        )
        assert before.equals(again), item.name


def test_the_folder_is_told_from_a_release_and_says_that_there_are_no_error_bars(released):
    assert "no error bars" in ok("answer", "release", "more.yaml").out
    first = contents("answers")
    ok("answer", "release", "more.yaml")
    assert contents("answers") == first
    assert "relaxed_rows.parquet" not in first
    facts = json.loads(first["release.json"])
    assert facts["answered"]["charged"] == "0"
    assert facts["rap"]["simulated"] is None
    statement = " ".join(first["statement.md"].decode().split())
    assert "asked later" in statement
    assert "There are no error bars" in statement
    assert "no error bars" in ok("error-report", "answers").out


@pytest.mark.parametrize("option", ["--also", "--confidence"])
def test_what_belongs_to_error_bars_is_refused(released, option):
    value = "integer" if option == "--also" else "0.9"
    message = refused("answer", "release", "more.yaml", option, value, code=2)
    assert f"leave {option} out" in message


def test_relaxed_rows_that_are_missing_or_damaged_are_refused(released):
    Path("release/relaxed_rows.parquet").write_bytes(b"PAR1")
    refused("answer", "release", "more.yaml", code=2)
    Path("release/relaxed_rows.parquet").unlink()
    refused("answer", "release", "more.yaml", code=2)


BANDS = """\
workload:
  - name: both
    product: {age: {between: [0, 2]}}
"""


def test_questions_that_would_not_fit_into_memory_are_refused_at_their_lines(released, monkeypatch):
    monkeypatch.setattr(answer, "MAX_RAP_TABLE_QUERIES", 20)
    message = refused("answer", "release", "more.yaml", code=2)
    assert "more.yaml:2:5: 'everything' has a table of" in message
    assert "'cumulative'" in message
    monkeypatch.setattr(answer, "MAX_RAP_TABLE_QUERIES", 1 << 26)
    monkeypatch.setattr(answer, "MAX_RAP_PREDICATES", 1)
    message = refused("answer", "release", "more.yaml", code=2)
    assert "more.yaml:4:5: 'two_of' has" in message
    assert "'everything'" not in message
    assert not Path("answers").exists()


def test_values_that_nothing_measured_tells_apart_are_equally_likely_and_said_to_be(released):
    spec = load_spec(Path("workload.yaml"))
    rows = relaxed_of(Path("release"), compile_spec(spec))
    halves = [codes // 2 for codes in compile_spec(spec).classes]
    shape = tuple(int(half.max()) + 1 for half in halves)
    parts = [
        np.stack([rows.distribution(i)[:, codes == k].sum(axis=1) for k in range(n)], axis=1)
        for i, (codes, n) in enumerate(zip(halves, shape, strict=True))
    ]
    merged = RelaxedRows(shape, np.concatenate(parts, axis=1).astype(np.float32))
    again = spread_evenly(merged, halves, compile_spec(spec).classes)
    assert again.shape == rows.shape
    for i, codes in enumerate(halves):
        for code in range(len(codes)):
            share = merged.distribution(i)[:, codes[code]] / (codes == codes[code]).sum()
            np.testing.assert_allclose(again.distribution(i)[:, code], share, rtol=1e-6)
    assert spread_evenly(merged, halves, halves) is merged


def test_a_rap_release_says_what_it_guesses(template, tmp_path, monkeypatch):
    renew(tmp_path / "town", template)
    monkeypatch.chdir(tmp_path / "town")
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "town" / "state" / "ledger.db"))
    text = Path("workload.yaml").read_text()
    head = text[: text.index("workload:")]
    Path("few.yaml").write_text(head + BANDS)
    ok(*ANY_PLAN, "few.yaml", "--out", "few.plan")
    rehearse(Path("few.plan"), settings=RapSettings(1, 0, 20, 0))
    ok("release", "data.csv", "--plan", "few.plan", "--epsilon", "1", "--out", "few")
    done = ok("answer", "few", "more.yaml", "--json")
    assert json.loads(done.out)["guessed"] == ["age", "sex", "region", "income"]
    with monkeypatch.context() as patched:
        patched.setattr(relaxed_rows, "MAX_FINER_NUMBERS", 20 * 13 - 1)
        message = refused("answer", "few", "more.yaml", code=2)
        assert "13 values apart, which takes relaxed rows of 260 numbers" in message
    assert "a guess: values of age, sex, region, income" in ok("answer", "few", "more.yaml").out
    statement = Path("answers/statement.md").read_text()
    assert statement.count("**A guess:**") == 4
    answers = pq.read_table("answers/everything.parquet").to_pandas()
    by_sex = answers.groupby("sex", observed=True)["estimate"].sum()
    assert by_sex["F"] == pytest.approx(by_sex["M"])
