"""Public facts of a spec, from its words to the files of a release and of later answers."""

import hashlib
import json
import math

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from pinned import LAPLACE
from specs import unhashed
from test_spec_mistakes import mistakes
from town import refused

from dpquery import Release, answer, error_report, package, plan, release
from dpquery.cli.show_release import release_json, release_text
from dpquery.cli.show_why import why_grids
from dpquery.commands.replicates import noise_of
from dpquery.exceptions import SpecError
from dpquery.limits import MAX_FACT_ATOMS
from dpquery.measurement.release_key import linear_key
from dpquery.operators import compile as compiling
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import decode_strategy
from dpquery.planning.search import check_facts
from dpquery.releases.manifest import read_manifest
from dpquery.releases.statement import statement
from dpquery.spec.parsing.read import load_spec, parse
from dpquery.strategy.shapes.informed import informed

HEAD = """\
dataset: {id: town}
privacy: {unit: row}
budget: {epsilon: 400}
other: drop
domain:
  age: {range: [0, 11]}
  employed: boolean
  region: {values: {1: North, 2: South}}
  hours: {range: [0, 6]}
"""
IMPOSSIBLE = """\
impossible:
  - {age: {between: [0, 4]}, employed: yes}
  - {employed: no, hours: {between: [1, 6]}}
"""
ITEMS = """\
workload:
  - {name: cells, product: {age: identity, employed: identity, region: identity}}
  - {name: by_region, product: {region: identity}}
  - {name: worked, product: {employed: identity, hours: prefix}}
  - {name: hours, sum: {of: hours, by: {employed: identity}}}
"""
KNOWN = ITEMS.replace(
    "{name: by_region, product: {region: identity}}",
    "{name: by_region, product: {region: identity}, known: {file: r.csv, why: register of 2020}}",
)
QUESTIONS = (
    "workload: [{name: young, product: {age: {ranges: [[0, 2], [3, 6]]}, employed: identity}}]"
)


def people(seed=5, workers_among_children=False):
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 12, 1500)
    employed = (rng.random(1500) < 0.6) & ((age > 4) | workers_among_children)
    hours = np.where(employed, rng.integers(0, 7, 1500), 0)
    columns = {"age": age, "employed": np.where(employed, "yes", "no")}
    return pd.DataFrame(columns | {"region": rng.choice(["1", "2"], 1500), "hours": hours})


def totals(data, off=0):
    counts = data["region"].value_counts()
    return f"region,value,source\nNorth,{counts['1'] + off},x\n2,{counts['2']},x\n"


def made(folder, spec, data, *, epsilon=40, off=0, **options):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "workload.yaml").write_text(spec)
    (folder / "r.csv").write_text(totals(data, off))
    data.to_csv(folder / "data.csv", index=False)
    paths = {"plan_path": folder / "dpquery.plan", "ledger_path": folder / "ledger.db"}
    report = plan(folder / "workload.yaml", mechanism="linear", time_limit=0.1, **paths)
    done = release(folder / "data.csv", epsilon=epsilon, out=folder / "out", **options, **paths)
    return report, done


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """A release whose facts are true: its folder, its plan and what release reported."""
    folder = tmp_path_factory.mktemp("facts")
    return folder, *made(folder, HEAD + IMPOSSIBLE + KNOWN, people())


@pytest.fixture(scope="module")
def contradicted(tmp_path_factory):
    """One whose data hold impossible records, and whose total of a region is off by 60."""
    folder = tmp_path_factory.mktemp("contradicted")
    data = people(workers_among_children=True)
    return folder, *made(folder, HEAD + IMPOSSIBLE + KNOWN, data, off=60)


def rows(folder, item):
    return pq.read_table(folder / f"{item}.parquet").to_pandas()


def test_answers_that_facts_state_are_exact_and_flagged(town):
    folder, data = town[0] / "out", people()
    cells = rows(folder, "cells")
    impossible = (cells.age.astype(int) < 5) & cells.employed
    assert impossible.sum() == 10
    assert (cells[impossible][["estimate", "std_error", "ci_low", "ci_high"]] == 0).all(axis=None)
    assert (cells.flag[impossible] == "impossible").all()
    assert not cells.flag[~impossible].isin(["impossible", "known"]).any()
    assert (cells.std_error[~impossible] > 0).all()
    known = rows(folder, "by_region")
    assert known.estimate.tolist() == data.region.value_counts()[["1", "2"]].tolist()
    assert (known.std_error == 0).all()
    assert (known.flag == "known").all()
    # Sums of the others meet the facts: by region to the last digit but rounding.
    by_region = cells.groupby("region").estimate.sum()
    np.testing.assert_allclose(by_region, known.estimate, rtol=1e-9)
    worked = rows(folder, "worked")  # who does not work has no hours: all prefixes are one
    idle = worked[~worked.employed]
    assert idle.estimate.max() - idle.estimate.min() < 1e-6
    hours = rows(folder, "hours")
    assert hours.flag.tolist() == ["impossible", ""]
    assert hours.estimate[0] == 0


def test_errors_that_are_planned_are_errors_that_are_released(town):
    folder, report, _ = town
    planned = report.errors.set_index("item")
    at_epsilon = read_manifest(folder / "out").guarantee.epsilon
    for item in ("cells", "by_region", "worked", "hours"):
        std = rows(folder / "out", item).std_error
        rmse = float(np.sqrt((std**2).mean())) * at_epsilon  # Laplace noise goes with 1/epsilon
        assert rmse == pytest.approx(planned.rmse[item], rel=1e-3, abs=1e-9), item
        assert std.max() * at_epsilon == pytest.approx(
            planned.max_std_error[item], rel=1e-3, abs=1e-9
        )
    assert planned.rmse["by_region"] == 0
    without = compile_spec(parse(HEAD + ITEMS, name="w", files={}))
    assert without.facts is None


def test_what_is_known_is_expected_to_be_good_even_of_nobody(tmp_path):
    """About one record: one of the two regions has none, and its number is known all the same."""
    (tmp_path / "r.csv").write_text(totals(people()))
    (tmp_path / "w.yaml").write_text(
        HEAD.replace("{id: town}", "{id: town, rows: about 1}") + KNOWN
    )
    report = plan(tmp_path / "w.yaml", ledger_path=tmp_path / "l.db", time_limit=0, dry_run=True)
    (known,) = (item for item in report.worth.items if item.name == "by_region")
    assert (known.rmse, known.grade, known.relative) == (0, "good", 0)


def test_facts_change_nothing_that_is_measured(town, tmp_path):
    """With the strategy that the facts chose, a spec without them measures under the same key."""
    folder = town[0]
    content = unhashed((folder / "dpquery.plan").read_text())
    spec = load_spec(folder / "workload.yaml")

    keys, sizes = set(), set()
    for text in (spec.text, HEAD + ITEMS):
        parsed = parse(text, name="w", files=spec.files)
        compiled = compile_spec(parsed)
        (chosen,) = content["selections"]
        strategy = decode_strategy(chosen["strategy"], noise="laplace", workload=compiled.workload)
        answering = informed(strategy, compiled.facts, compiled.workload)
        sizes.add(type(answering).__name__)
        assert answering.encode() == strategy.encode()
        measured = answering.measurements
        keys.add(linear_key(parsed, compiled, measured=measured, mechanism=LAPLACE, release=1))
    assert len(keys) == 1
    assert "InformedStrategy" in sizes


def test_impossible_records_change_nothing_but_noisy_values(tmp_path, monkeypatch):
    """With the noise taken out of sight, files with and without them leave the same words."""
    shown = []
    for k, among_children in enumerate((False, True)):
        folder = tmp_path / str(k)
        data = people(workers_among_children=among_children)
        _, done = made(folder, HEAD + IMPOSSIBLE + ITEMS, data, epsilon=0.001)
        manifest = json.loads((folder / "out" / "release.json").read_text())
        for fact in manifest["facts"]:
            for noisy in ("statistic", "p_value"):
                fact[noisy] = 0
        for private in ("ledger", "measurements", "sha256"):
            del manifest[private]
        names = sorted(path.name for path in (folder / "out").iterdir())
        shown.append((names, manifest, done.mechanism.query.key))
    assert shown[0] == shown[1]


def test_the_files_say_what_was_relied_on(town):
    folder, report, done = town
    manifest = read_manifest(folder / "out")
    first, second = manifest.facts
    assert [first.source, second.source] == ["`impossible`", "by_region"]
    assert (first.relied_on, second.relied_on) == (True, True)
    assert first.words == "age 0-4 with employed yes; or employed no with hours 1-6"
    assert (second.answers, second.tested, second.words) == (2, 2, "register of 2020")
    text = (folder / "r.csv").read_text()
    assert second.sha256 == hashlib.sha256(text.encode()).hexdigest()
    words = statement(manifest)
    assert "**The 2 answers of `by_region` are public and ARE NOT PROTECTED" in words
    assert second.sha256 in words
    assert "By public knowledge no record has age 0-4 with employed yes" in words
    assert manifest.strategy.lower_bound is None
    screen = release_text(done, exact=False)
    assert (
        "public facts of by_region (2 answers, NOT PROTECTED): the noisy answers do not" in screen
    )
    assert len(release_json(done)["facts"]) == 2
    (grid, *_) = why_grids(report)
    assert (
        "public facts: the 2 answers of by_region stand in r.csv and ARE NOT PROTECTED"
        in grid.notes
    )
    assert any("by `impossible`" in note and "are 0, without noise" in note for note in grid.notes)


def test_later_answers_and_covariances_know_the_facts(town, tmp_path):
    folder = town[0]
    (tmp_path / "q.yaml").write_text(QUESTIONS)
    answer(folder / "out", tmp_path / "q.yaml", out=tmp_path / "answers")
    young = rows(tmp_path / "answers", "young")
    assert young.flag.tolist() == ["", "impossible", "", ""]
    cells = rows(folder / "out", "cells").assign(age=lambda t: t.age.astype(int))
    wanted = cells[(cells.age >= 3) & (cells.age <= 6) & cells.employed]
    assert young.estimate[3] == pytest.approx(wanted.estimate.sum())
    opened = Release(folder / "out")
    covariance = opened.covariance("cells")
    std = rows(folder / "out", "cells").std_error
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-6, atol=1e-9)
    chosen = np.zeros(len(cells))
    chosen[wanted.index] = 1
    assert np.sqrt(chosen @ covariance @ chosen) == pytest.approx(young.std_error[3], rel=1e-6)
    assert not opened.covariance("by_region").any()
    assert read_manifest(tmp_path / "answers").facts == read_manifest(folder / "out").facts


@pytest.mark.nightly
def test_replicates_have_the_noise_that_is_left_and_none_where_answers_are_stated(town):
    release, draws = Release(town[0] / "out"), 300
    items = [item for item in release.spec.items if item.name in ("cells", "by_region")]
    drawn = noise_of(release, items, draws=draws)
    np.testing.assert_allclose(drawn["by_region"], 0, atol=1e-4)
    std = rows(town[0] / "out", "cells").std_error.to_numpy()
    seen = np.sqrt(np.mean(drawn["cells"].astype(float) ** 2, axis=0))
    np.testing.assert_allclose(seen, std, rtol=6 * math.sqrt(5 / 4 / draws), atol=1e-4)


def test_what_the_noisy_answers_contradict_is_said_and_not_forced(contradicted):
    folder, _, done = contradicted
    manifest = read_manifest(folder / "out")
    assert [fact.relied_on for fact in manifest.facts] == [False, False]
    assert all(fact.p_value < 1e-6 for fact in manifest.facts)
    known = rows(folder / "out", "by_region")
    assert (known.std_error > 0).all()
    assert (known.flag == "").all()
    off = known.estimate[0] - (people(workers_among_children=True).region == "1").sum()
    assert abs(off) < 8 * known.std_error[0]
    cells = rows(folder / "out", "cells")
    assert (cells.std_error > 0).all()
    words, screen = statement(manifest), release_text(done, exact=False)
    assert words.count("**The noisy answers contradict this, and it was not relied on:**") == 2
    assert screen.count("warning: the noisy answers contradict the public facts of") == 2
    assert "they were not relied on" in screen
    shown = error_report(folder / "out")
    assert manifest.strategy.rmse == pytest.approx(shown.rmse, rel=1e-3)
    assert manifest.strategy.rmse > 1.05 * done.mechanism.priced.rmse


def test_the_report_and_the_package_take_facts(town, tmp_path):
    folder = town[0]
    package(folder / "out", out=tmp_path / "package")
    described = json.loads((tmp_path / "package" / "datapackage.json").read_text())
    (cells,) = (each for each in described["resources"] if each["name"].startswith("cells"))
    (flag,) = (each for each in cells["schema"]["fields"] if each["name"] == "flag")
    assert "`impossible` or `known` where a public fact" in flag["description"]


def test_columns_that_know_no_facts_are_refused(tmp_path):
    with pytest.raises(SpecError, match="--also consistent knows no public facts"):
        made(tmp_path, HEAD + IMPOSSIBLE + ITEMS, people(), also=["consistent"])
    made(tmp_path, HEAD + IMPOSSIBLE + ITEMS, people(), also=["nonnegative"])
    cells = rows(tmp_path / "out", "cells")
    assert (cells.nonnegative[cells.flag == "impossible"] == 0).all()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ("prefer: closest\n", {}, "guesses that may be biased know no public facts"),
        ("", {"mechanism": "rap"}, "RAP knows no public facts; leave"),
    ],
)
def test_rap_and_guesses_are_refused(own_folder, change, options, message):
    head = HEAD.replace("{id: town}", "{id: town, rows: about 1500}")
    (own_folder / "workload.yaml").write_text(
        head + change + IMPOSSIBLE + ITEMS.split("  - {name: h")[0]
    )
    with pytest.raises(SpecError, match=message):
        plan("workload.yaml", ledger_path="ledger.db", plan_path="p", **options)


def known_mistakes(text, item="product: {region: identity}"):
    spec = HEAD + KNOWN.replace("product: {region: identity}, known", f"{item}, known")
    found = mistakes(spec, {"r.csv": text})
    assert all(line.startswith("w.yaml:12:") for line in found)
    return [line.split(": ", 1)[1] for line in found]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("region,value\nNorth,3\n", "r.csv has no value for South; add a line"),
        ("region,value\nNorth,3\nSouth,4\n1,3\n", "r.csv:4:1: this row is there twice; keep one"),
        ("region,value\nNorth,-3\nSouth,4\n", "r.csv:2:1: this is no total of records; expected 0"),
        ("region,value\nNorth,3.5\nSouth,4\n", "r.csv:2:1: this is no total; expected a whole"),
        ("region,value\nNorth,\nSouth,4\n", "r.csv:2:1: this is no total; expected a whole number"),
        (
            "region,total\nNorth,3\nSouth,4\n",
            "r.csv:1:1: expected one column 'value' in the header",
        ),
        (
            "place,value\nNorth,3\nSouth,4\n",
            "r.csv:1:1: expected one column 'region' in the header",
        ),
        ("region,value\nNorth,3,4\nSouth,4\n", "r.csv:2:1: expected 2 fields, as the header has"),
        ("", "the file 'r.csv' lists no value"),
    ],
)
def test_a_file_of_totals_is_refused_at_its_line(text, message):
    (found,) = known_mistakes(text)
    assert found.startswith(message)


def test_only_one_ordinary_table_can_be_known():
    text = "region,value\nNorth,3\nSouth,4\n"
    for item in ("marginals: {ways: 1}", "any_of: {region: {is: North}, employed: {is: yes}}"):
        (found,) = known_mistakes(text, item)
        assert found.startswith("only an item of one table")
    (found,) = known_mistakes("age,value\n3,4\n", "product: {age: prefix}")
    assert "asks of 'age' for ranges, which a file of numbers cannot name" in found


def test_a_sum_may_be_known_and_below_zero():
    item = "sum: {of: hours, by: {region: identity}, value: {1: -1}}"
    spec = HEAD + KNOWN.replace("product: {region: identity}, known", f"{item}, known")
    parsed = parse(spec, name="w", files={"r.csv": "region,value\n1,-5\n2,-7\n"})
    assert parsed.items[1].known.values == (-5, -7)
    assert parsed.items[1].known.lines == (2, 3)


def test_questions_asked_later_have_no_facts(town, tmp_path):
    (tmp_path / "q.yaml").write_text(
        "workload: [{name: t, product: {region: identity}, known: {file: r.csv, why: x}}]"
    )
    with pytest.raises(SpecError, match="what is known belongs to the spec of a release"):
        answer(town[0] / "out", tmp_path / "q.yaml", out=tmp_path / "answers")
    (tmp_path / "q.yaml").write_text("impossible: [{age: 3}]\n" + QUESTIONS)
    with pytest.raises(SpecError, match="no key 'impossible'"):
        answer(town[0] / "out", tmp_path / "q.yaml", out=tmp_path / "answers")


def refused_facts(spec, **files):
    parsed = parse(spec, name="w.yaml", files={f"{name}.csv": text for name, text in files.items()})
    with pytest.raises(SpecError) as caught:
        check_facts(parsed, compile_spec(parsed))
    return str(caught.value)


AREA = "product: {region: identity, employed: identity}, known: {file: a.csv, why: x}"
TOTAL = "product: {}, known: {file: t.csv, why: x}"
AREAS = "region,employed,value\n1,yes,10\n1,no,20\n2,yes,30\n2,no,40\n"


def with_items(*items):
    named = (f"  - {{name: k{k}, {item}}}\n" for k, item in enumerate(items))
    return ITEMS + "".join(named)


def test_an_item_of_which_nothing_is_possible_is_refused():
    items = with_items("where: {employed: yes}, product: {age: {ranges: [[0, 2], [3, 4]]}}")
    message = refused_facts(HEAD + IMPOSSIBLE + items)
    assert message.startswith(
        "w.yaml:18:5: by `impossible` no record can be in any row of the item"
    )
    assert "'k0'" in message
    # Each of two conditions leaves records, and both together none.
    both = "impossible: [{region: North, employed: yes}, {region: South, employed: yes}]\n"
    message = refused_facts(HEAD + both + with_items("where: {employed: yes}, product: {}"))
    assert "'k0'" in message


def test_totals_that_contradict_one_another_are_refused_with_their_lines():
    message = refused_facts(HEAD + with_items(AREA, TOTAL), a=AREAS, t="value\n99\n")
    assert "t.csv:2 says 99, and it follows from what else is known that it is 100" in message
    fine = parse(
        HEAD + with_items(AREA, TOTAL), name="w", files={"a.csv": AREAS, "t.csv": "value\n100\n"}
    )
    check_facts(fine, compile_spec(fine))
    north = "where: {region: North}, product: {}, known: {file: t.csv, why: x}"
    ages = "where: {region: North}, product: {age: {groups: {young: [0, 1]}}}, "
    ages += "known: {file: a.csv, why: x}"
    message = refused_facts(
        HEAD + with_items(north, ages), a="age,value\nyoung,8\n", t="value\n7\n"
    )
    assert "a.csv:2 says 8, and " in message
    assert "t.csv:2, which counts these records too, says 7; correct one of them" in message


def test_totals_that_contradict_impossible_are_refused():
    workers = "where: {age: {between: [0, 4]}}, product: {employed: identity}, "
    workers += "known: {file: t.csv, why: x}"
    message = refused_facts(
        HEAD + IMPOSSIBLE + with_items(workers), t="employed,value\nyes,1\nno,5\n"
    )
    assert "t.csv:2 says 1, and by `impossible` there can be none; correct one" in message
    children = "where: {age: {between: [0, 4]}}, product: {}, known: {file: t.csv, why: x}"
    idle = "where: {age: {between: [0, 4]}, employed: no}, product: {}, "
    idle += "known: {file: a.csv, why: x}"
    message = refused_facts(
        HEAD + IMPOSSIBLE + with_items(children, idle), t="value\n9\n", a="value\n8\n"
    )
    assert "a.csv:2 says 8, and it follows from what else is known that it is 9" in message


def test_a_spec_of_which_all_is_known_is_refused():
    items = f"workload: [{{name: t, {TOTAL}}}]\n"
    assert "all items are known: nothing is left to measure" in refused_facts(
        HEAD + items, t="value\n9\n"
    )


def test_too_many_pieces_are_refused(monkeypatch):
    assert MAX_FACT_ATOMS >= 1 << 16
    monkeypatch.setattr(compiling, "MAX_FACT_ATOMS", 3)
    with pytest.raises(SpecError, match=r"w\.yaml:11:5: the impossible combinations cut"):
        compile_spec(parse(HEAD + IMPOSSIBLE + ITEMS, name="w.yaml", files={}))


def test_a_file_that_is_not_there_is_named(own_folder):
    (own_folder / "workload.yaml").write_text(HEAD + KNOWN)
    message = refused("plan", "workload.yaml", "--ledger", "l.db", code=2)
    assert "r.csv cannot be read" in message
