"""`dpquery answer`: new questions about an old release, from its folder alone, without budget."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from rounds import MIXED_SPEC, rehearse, relaxed_of
from specs import strategies, unhashed, with_true_figures
from town import contents, kinds, ok, plan_town, refused

from dpquery.commands import answer
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import decode_strategy
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.reconstruction.relaxed import rows as relaxed_rows
from dpquery.reconstruction.relaxed.rows import RelaxedRows, spread_evenly
from dpquery.releases.folder.noisy_files import MeasurementLabel, values_digest, write_measurements
from dpquery.spec.parsing.read import load_spec, parse

MORE = """\
workload:
  - name: young_by_sex
    description: Asked later
    product: {age: prefix, sex: identity}
    weight: 3
  - name: either
    threshold: {r: 1, of: [sex, region], targets: {sex: F, region: North}}
  - name: two_of
    threshold: {r: 2, of: [sex, income]}
    where: {region: South}
  - name: everybody
    product: {}
  - name: mixed
    union:
      - any_of: {age: {ranges: [[0, 1]]}, sex: {is: F}}
      - marginals: {up_to: 1, over: [region, income]}
  - name: rich
    ranges: {income: all}
"""


@pytest.fixture
def more(town):
    Path("more.yaml").write_text(MORE)


@pytest.fixture
def asked_later(released_town):
    """Questions beside a release."""
    Path("more.yaml").write_text(MORE)


def replan(shape):
    """Put a strategy of a shape into the plan."""
    put(strategies(compile_spec(load_spec(Path("workload.yaml"))))[shape])


def put(facts):
    """Put a strategy into the plan."""
    raw = unhashed(Path("dpquery.plan").read_text())
    raw["selections"][0]["strategy"] = facts.encode()
    with_true_figures(raw)
    Path("dpquery.plan").write_text(json.dumps(raw))


def measured(folder="release"):
    """The strategy of a release and its noisy values, in units of the integer strategy."""
    folder = Path(folder)
    raw, facts = (
        unhashed((folder / f"release.{suffix}").read_text()) for suffix in ("plan", "json")
    )
    spec = parse(raw["spec"]["text"], name="spec", files={})
    compiled = compile_spec(spec)
    strategy = decode_strategy(
        raw["selections"][0]["strategy"], noise="laplace", workload=compiled.workload
    )
    values = pq.read_table(folder / "measurements.parquet")["value"].to_numpy()
    step = 2.0 ** facts["noise"]["shift"]
    return spec, compiled, strategy, values * step, facts["noise"]["scale"] * step * np.sqrt(2)


def columns(folder, name):
    read = pq.read_table(Path(folder, f"{name}.parquet"))
    return read["estimate"].to_numpy(), read["std_error"].to_numpy()


SHAPES = ("product", "marginals", "factors", "residual", "union", "cell-classes", "direct")


def test_a_release_whose_integers_are_wide_is_asked_like_any_other(town):
    residual = strategies(compile_spec(load_spec(Path("workload.yaml"))))["residual"]
    put(replace(residual, weights={b: weight << 110 for b, weight in residual.weights.items()}))
    ok("release", "data.csv", "--epsilon", "1")
    assert json.loads(Path("release/release.json").read_text())["noise"]["shift"] > 64
    ok("answer", "release", "workload.yaml")
    for name in ("age_by_sex", "pairs", "ages"):
        for answered, before in zip(
            columns("answers", name), columns("release", name), strict=True
        ):
            np.testing.assert_allclose(answered, before, rtol=1e-9, atol=1e-9)


def test_nothing_but_the_folder_is_needed_and_it_stays_as_it_is(asked_later):
    events = kinds()
    shutil.rmtree("state")
    for name in ("data.csv", "dpquery.plan", "workload.yaml"):
        Path(name).unlink()
    before = contents("release")
    done = json.loads(ok("answer", "release", "more.yaml", "--json").out)
    assert (done["charged"], done["items"], done["queries"]) == ("0", 6, 32)
    assert contents("release") == before
    assert not Path("state").exists()
    assert events.count("commit") == 1
    first = contents("answers")
    ok("answer", "release", "more.yaml")
    ok("answer", "release", "more.yaml", "--out", "twice")
    assert contents("answers") == first == contents("twice")
    grid = ok("error-report", "answers").out
    assert "young_by_sex" in grid
    assert "32 answers in 6 items, asked later of the release" in grid
    assert Path("report.html").exists()


def test_the_manifest_says_what_the_answers_come_from_and_that_nothing_was_charged(asked_later):
    ok("answer", "release", "more.yaml", "--confidence", "0.9")
    source, facts = (
        json.loads(Path(f, "release.json").read_text()) for f in ("release", "answers")
    )
    assert facts["answered"] == {
        "release": source["key"],
        "measurements": source["measurements"],
        "charged": "0",
        "guessed": [],
    }
    for name in ("guarantee", "dataset", "privacy", "plan", "ledger", "noise"):
        assert facts[name] == source[name]
    assert facts["key"] != source["key"]
    assert facts["level"] == 0.9
    statement = " ".join(Path("answers/statement.md").read_text().split())
    assert f"asked later, of the release with the key `{source['key']}`" in statement
    assert "nothing was charged" in statement
    everything = np.concatenate([columns("answers", i["name"])[1] for i in facts["items"]])
    assert facts["strategy"]["rmse"] == pytest.approx(np.sqrt(np.mean(everything**2)))
    assert facts["strategy"]["max_std_error"] == pytest.approx(everything.max())


def test_a_release_from_before_it_could_be_asked_says_so(asked_later):
    facts = unhashed(Path("release/release.json").read_text())
    del facts["measurements"]
    Path("release/release.json").write_text(json.dumps(facts))
    for name in ("measurements.parquet", "release.plan"):
        Path("release", name).unlink()
    ok("error-report", "release")
    message = refused("answer", "release", "more.yaml", code=2)
    assert "made by an older dpquery: run `dpquery release` again, which is free" in message
    ok("release", "data.csv", "--epsilon", "1")
    ok("answer", "release", "more.yaml")


def test_every_question_that_the_measurements_do_not_hold_is_named_at_its_line(town):
    replan("marginals")
    ok("release", "data.csv", "--epsilon", "1")
    Path("more.yaml").write_text(
        "workload:\n"
        "  - {name: fine, product: {age: prefix}}\n"
        "  - name: missing\n"
        "    product: {age: identity, income: {ranges: [[0, 10]]}}\n"
        "  - {name: many, marginals: {ways: 2}}\n"
        "  - {name: three, threshold: {r: 2, of: [age, sex, region]}}\n"
    )
    message = refused("answer", "release", "more.yaml", code=2)
    assert "more.yaml:3:5: 'missing': no measured table holds age x income together" in message
    assert "plan again with `marginals: {sets: [[age, income]]}`" in message
    assert "measured: age x sex, sex x region x income" in message
    assert "more.yaml:5:5: 'many': no measured table holds age x region together" in message
    assert "more.yaml:6:5: 'three': no measured table holds age x sex x region together" in message
    assert "'fine'" not in message
    assert not Path("answers").exists()


def test_of_its_own_questions_a_release_answers_combinations_and_refuses_the_rest(town):
    replan("direct")
    ok("release", "data.csv", "--epsilon", "1")
    Path("more.yaml").write_text(
        "workload:\n"
        "  - {name: some, product: {age: {between: [1, 3]}, sex: {is: M}}}\n"
        "  - {name: either, any_of: {age: {between: [1, 3]}, sex: {is: M}}}\n"
        "  - {name: three, marginals: {sets: [[sex, region, income]]}}\n"
    )
    message = refused("answer", "release", "more.yaml", code=2)
    assert message.count("more.yaml:") == 1
    assert "more.yaml:4:5: 'three': no measured table holds sex x region x income" in message
    Path("more.yaml").write_text("\n".join(Path("more.yaml").read_text().splitlines()[:-1]))
    ok("answer", "release", "more.yaml")
    women, men, both = columns("release", "age_by_sex")[0].reshape(5, 3)[1:4].sum(axis=0)
    assert columns("answers", "some")[0] == pytest.approx([(2 * men - women + both) / 3])


BANDS = """\
dataset: {id: bands}
privacy: {unit: row}
budget: {epsilon: 4}
other: drop
domain:
  age: {range: [0, 99]}
  sex: {values: [F, M]}
  race: {values: [a, b, c]}
workload:
  - name: bands
    product: {age: {ranges: [[0, 17], [18, 64], [65, 99]]}, sex: identity}
"""


@pytest.fixture
def bands(town):
    Path("bands.yaml").write_text(BANDS)
    Path("data.csv").write_text("age,sex,race\n3,F,a\n40,M,b\n70,F,c\n")
    ok("plan", "bands.yaml")
    ok("release", "data.csv", "--epsilon", "1")


def test_codes_that_were_counted_as_one_are_named(bands):
    Path("more.yaml").write_text(
        "workload:\n"
        "  - {name: grown, product: {age: {between: [18, 99]}}}\n"
        "  - name: young\n"
        "    product: {age: {between: [0, 36]}, race: identity}\n"
        "  - {name: sexes, product: {sex: identity}}\n"
    )
    message = refused("answer", "release", "more.yaml", code=2)
    assert "more.yaml:3:5: 'young' tells '18' from '37' of 'age'" in message
    assert "'young' tells 'a' from 'b' of 'race'" in message
    assert "no question of its spec told them apart" in message
    assert "'grown'" not in message


def test_bands_of_the_release_can_be_joined(bands):
    Path("more.yaml").write_text(
        "workload:\n"
        "  - {name: grown, product: {age: {between: [18, 99]}, sex: identity+total}}\n"
        "  - {name: child, any_of: {age: {between: [0, 17]}, sex: {is: F}}}\n"
    )
    ok("answer", "release", "more.yaml")
    read = pq.read_table("release/bands.parquet").to_pylist()
    cells = {(row["age"], row["sex"]): row["estimate"] for row in read}
    women, men = (cells["18-64", sex] + cells["65-99", sex] for sex in "FM")
    np.testing.assert_allclose(columns("answers", "grown")[0], [women, men, women + men])


def forge(within=None, **changes):
    """Change facts of the manifest, or of a part of it."""
    path = Path("release/release.json")
    facts = unhashed(path.read_text())
    (facts[within] if within else facts).update(changes)
    path.write_text(json.dumps(facts))


def other_values():
    path = Path("release/measurements.parquet")
    table = pq.read_table(path)
    changed = [table["value"].to_numpy() + 1]
    pq.write_table(table.set_column(3, table.schema.field(3), changed), path)


def fewer_values():
    """A file of other values whose digest the manifest confirms."""
    path = Path("release/measurements.parquet")
    values = pq.read_table(path)["value"].to_numpy()[:-1]
    write_measurements(
        path, values, (MeasurementLabel("age", 1, len(values)),), metadata={"dpquery": "{}"}
    )
    forge(measurements=values_digest(values))


def another_plan():
    path = Path("release/release.plan")
    raw = json.loads(path.read_text())
    raw["selections"][0]["strategy"]["name"] = "another"
    path.write_text(json.dumps(raw))
    forge(plan=hashlib.sha256(path.read_bytes()).hexdigest())


def a_plan_that_is_none():
    path = Path("release/release.plan")
    path.write_bytes(b"\xff\x00")
    forge(plan=hashlib.sha256(path.read_bytes()).hexdigest())


DAMAGE = {
    "values changed": other_values,
    "values missing": lambda: Path("release/measurements.parquet").unlink(),
    "values cut": lambda: Path("release/measurements.parquet").write_bytes(b"PAR1"),
    "fewer values": fewer_values,
    "another digest": lambda: forge(measurements="0" * 64),
    "plan missing": lambda: Path("release/release.plan").unlink(),
    "plan changed": lambda: Path("release/release.plan").write_bytes(b"{}"),
    "another plan": another_plan,
    "no plan": a_plan_that_is_none,
    "no noise": lambda: forge("noise", scale=-1.0),
    "a grid beyond all numbers": lambda: forge("noise", shift=10**9),
    "less noise": lambda: forge("noise", scale=1000.0),
    "a finer grid": lambda: forge("noise", shift=-10),
    "another sensitivity": lambda: forge("noise", sensitivity="7"),
    "another epsilon": lambda: forge("guarantee", epsilon=1000.0),
    "an epsilon that is none": lambda: forge("guarantee", epsilon=1e300),
    "no manifest": lambda: Path("release/release.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_forged_release_is_refused(asked_later, damage):
    DAMAGE[damage]()
    refused("answer", "release", "more.yaml", code=2)
    assert not Path("answers").exists()


def test_a_file_in_place_of_the_folder_is_no_release(more):
    message = refused("answer", "more.yaml", "more.yaml", code=2)
    assert "more.yaml is a file and no release folder; write `dpquery answer RELEASE" in message


def test_answers_are_never_written_over_a_release(asked_later):
    ok("release", "data.csv", "--epsilon", "0.5", "--out", "other")
    ask = ("answer", "release", "more.yaml", "--replace", "--out")
    Path("link").symlink_to("release")
    Path("loop").symlink_to("loop")
    assert "is not a folder" in refused(*ask, "loop", code=5)
    for out in ("release", "release/answers", ".", "link"):
        assert "name another folder" in refused(*ask, out, code=5)
    assert "holds a release, not answers" in refused(*ask, "other", code=5)
    ok("answer", "release", "more.yaml")
    assert "name the release itself" in refused("answer", "answers", "more.yaml", code=2)


def test_answers_to_other_questions_give_way_only_when_asked(asked_later):
    ok("answer", "release", "more.yaml")
    Path("more.yaml").write_text("workload: [{name: a, product: {age: prefix}}]")
    message = refused("answer", "release", "more.yaml", code=5)
    assert "answers holds answers to other questions: name a new folder" in message
    assert "with --replace" in message
    Path("releas.yaml").touch()  # nearer than the folder, but none
    assert "did you mean 'release'?" in refused("answer", "relea", "more.yaml", code=2)
    ok("answer", "release", "more.yaml", "--replace")
    written = ["a.parquet", "errors.parquet", "release.json", "statement.md"]
    assert sorted(contents("answers")) == written


# Questions asked later of a RAP release: any at all, read off its relaxed rows, without errors.


MORE_OF_RAP = """\
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
    (folder / "more.yaml").write_text(MORE_OF_RAP)
    places = ("--ledger", folder / "state" / "ledger.db", "--out", folder / "release")
    ok("release", folder / "data.csv", "--plan", folder / "dpquery.plan", "--epsilon", "1", *places)
    return folder


@pytest.fixture
def released(template, move_in):
    move_in(template)
    shutil.rmtree("state")
    Path("data.csv").unlink()


BANDS_OF_RAP = """\
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


def test_a_rap_release_says_what_it_guesses(template, move_in, monkeypatch):
    move_in(template)
    text = Path("workload.yaml").read_text()
    head = text[: text.index("workload:")]
    Path("few.yaml").write_text(head + BANDS_OF_RAP)
    ok("plan", "few.yaml", "--out", "few.plan")
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
