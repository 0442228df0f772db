"""Published by declared rules, beside the same estimates, and in the place of nothing else."""

import json
import math
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rounds import MIXED_SPEC, rehearse
from specs import unhashed
from town import SPEC, contents, ok, plan_town, refused, spent

from dpquery.exceptions import SpecError
from dpquery.releases.manifest import read_manifest
from dpquery.releases.tables.item_table import publication_arrays, relative_errors
from dpquery.spec.parsing.read import parse
from dpquery.spec.spec import PublicationRules

RELEASE = ("release", "data.csv", "--epsilon", "1")
RULES = "publish: {suppress: {rel_error: 0.3, below: 10}, round_to: 5}\n"
ESTIMATES = np.array([0.0, -0.2, 2.4, 7.5, 9.999, 10.0, 12.5, 17.5, 1e3, -40.0, 2.5, 1e15])
STD = np.array([1.0, 1.0, 0.1, 2.0, 0.1, 3.0, 1.0, 6.0, 0.0, 1.0, 0.0, 1.0])


def by_hand(rules, estimate, std_error):
    """Return one row as the issue's words have it: what is shown, or why it is not."""
    if rules.rel_error is not None:
        if std_error is None:
            return None, "no error bars"
        relative = 0 if std_error == 0 else math.inf if estimate == 0 else std_error / abs(estimate)
        if relative >= rules.rel_error:
            return None, f"rel_error of {rules.rel_error:g} or more"
    if rules.below is not None and estimate < rules.below:
        return None, f"below {rules.below}"
    if rules.round_to is None:
        return estimate, ""
    return round(estimate / rules.round_to) * rules.round_to, ""


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "rules",
    [
        PublicationRules(0.3, 10, 5),
        PublicationRules(rel_error=0.3),
        PublicationRules(below=10),
        PublicationRules(below=-3),
        PublicationRules(round_to=1),
        PublicationRules(round_to=7),
        PublicationRules(below=0, round_to=5),
    ],
)
def test_each_row_is_what_the_rules_say(rules, known):
    relative = relative_errors(ESTIMATES, STD) if known else None
    published, suppressed = publication_arrays(rules, ESTIMATES, relative)
    expected = [
        by_hand(rules, x, std if known else None)
        for x, std in zip(ESTIMATES.tolist(), STD.tolist(), strict=True)
    ]
    assert published.to_pylist() == [value for value, _ in expected]
    assert suppressed.to_pylist() == [reason for _, reason in expected]
    assert not any(math.copysign(1, x) < 0 for x in published.to_pylist() if x == 0.0)
    assert (published.type, suppressed.type.value_type) == (pa.float64(), pa.string())


def release_of(folder, spec, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))
    plan_town(folder, spec)
    ok(*RELEASE)
    return {path.stem: pq.read_table(path) for path in Path("release").glob("*.parquet")}


def test_rules_are_free_and_leave_all_else_as_it_is(tmp_path, monkeypatch):
    plain = release_of(tmp_path, SPEC, monkeypatch)
    paid = spent()
    Path("workload.yaml").write_text(SPEC + RULES)
    ok("plan", "workload.yaml")
    done = ok(*RELEASE)
    assert "nothing was charged" in done.err
    assert spent() == paid
    rules = PublicationRules(0.3, 10, 5)
    for item in ("age_by_sex", "pairs", "ages"):
        table = pq.read_table(f"release/{item}.parquet")
        names = plain[item].column_names
        assert table.column_names == [*names, "published", "suppressed"]
        assert all(table[name].equals(plain[item][name]) for name in names)
        frame = table.to_pandas()
        rows = zip(frame["estimate"], frame["std_error"], strict=True)
        expected = [by_hand(rules, x, std) for x, std in rows]
        assert table["published"].to_pylist() == [value for value, _ in expected]
        assert table["suppressed"].to_pylist() == [reason for _, reason in expected]
    again = contents("release")
    ok(*RELEASE)
    assert contents("release") == again


def test_an_item_has_its_own_rules_or_those_of_the_spec(tmp_path, monkeypatch):
    spec = SPEC.replace("    weight: 2\n", "    weight: 2\n    publish: {round_to: 10}\n")
    least = RULES.replace("0.3", "5e-324")  # that a spec may say, and a manifest then says too
    with_rules = [(spec, [True, False, False]), (spec + least, [True, True, True])]
    for k, (text, has_column) in enumerate(with_rules):
        (tmp_path / str(k)).mkdir()
        tables = release_of(tmp_path / str(k), text, monkeypatch)
        named = [
            "published" in tables[item].column_names for item in ("age_by_sex", "pairs", "ages")
        ]
        assert named == has_column
        shown = [x for x in tables["age_by_sex"]["published"].to_pylist() if x is not None]
        assert len(shown) == 15
        assert all(x % 10 == 0 for x in shown)
        stated = {item.name: item.published for item in read_manifest(Path("release")).items}
        assert stated["age_by_sex"] == PublicationRules(round_to=10)
        assert stated["pairs"] == (PublicationRules(5e-324, 10, 5) if k else None)
        statement = Path("release/statement.md").read_text()
        assert (
            "- `published` in `age_by_sex`: the estimate, rounded to a multiple of 10." in statement
        )
        assert ("`published` in `pairs`, `ages`: the estimate, rounded to" in statement) == bool(k)
        assert "protect nobody" in statement


@pytest.mark.nightly
def test_later_questions_have_rules_of_their_own(released_town):
    questions = "workload: [{name: sexes, product: {sex: identity}}]\n"
    Path("plain.yaml").write_text(questions)
    Path("ruled.yaml").write_text(questions + "publish: {round_to: 3}\n")
    ok("answer", "release", "plain.yaml", "--out", "answers")
    assert "published" not in pq.read_table("answers/sexes.parquet").column_names
    assert "--replace" in refused("answer", "release", "ruled.yaml", "--out", "answers", code=5)
    ok("answer", "release", "ruled.yaml", "--out", "answers", "--replace")
    table = pq.read_table("answers/sexes.parquet")
    assert all(x % 3 == 0 for x in table["published"].to_pylist())


@pytest.mark.slow
def test_a_rule_on_errors_leaves_out_answers_whose_errors_are_not_known(own_folder):
    plan_town(own_folder, MIXED_SPEC + RULES)
    rehearse(own_folder / "dpquery.plan")
    ok(*RELEASE, "--mechanism", "rap")
    for item in read_manifest(Path("release")).items:
        table = pq.read_table(f"release/{item.file}")
        assert table["published"].null_count == len(table)
        assert set(table["suppressed"].to_pylist()) == {"no error bars"}


@pytest.mark.parametrize(
    "rules",
    [
        {"rel_error": None, "below": None, "round_to": None},
        {"rel_error": -1.0, "below": None, "round_to": None},
        {"rel_error": 0.0, "below": None, "round_to": None},
        {"rel_error": None, "below": None, "round_to": 0},
        {"rel_error": "0.3", "below": None, "round_to": 5},
    ],
)
def test_rules_that_no_release_states_are_refused(released_town, rules):
    path = Path("release/release.json")
    content = unhashed(path.read_text())
    content["items"][0]["published"] = rules
    path.write_text(json.dumps(content))
    with pytest.raises(SpecError, match="damaged"):
        read_manifest(Path("release"))


def test_an_attribute_may_be_called_published_where_there_are_no_rules():
    named = SPEC.replace("region:", "published:").replace("region,", "published,")
    assert parse(named, name="w.yaml", files={}).items[0].publish is None
    with pytest.raises(SpecError, match="a column that the release adds; name the attribute"):
        parse(named + RULES, name="w.yaml", files={})


# Columns beside the estimates, as a user asks for them: free, recorded, always the same.


ITEMS = ("age_by_sex", "pairs", "ages")

needs_mbi = pytest.mark.skipif(find_spec("mbi") is None, reason="the extra mbi is not installed")


def parsed_columns(*columns):
    return [word for column in columns for word in ("--also", column)]


def table(item):
    return pq.read_table(f"release/{item}.parquet")


def test_columns_are_added_and_dropped_for_free_and_leave_the_estimates_alone(released_town):
    plain, paid = contents("release"), spent()
    before = {item: table(item) for item in ITEMS}
    columns = ("integer", "nonnegative", "thresholded:1.5", "consistent")
    done = ok(*RELEASE, *parsed_columns(*columns))
    assert "nothing was charged" in done.err
    for item, rows in before.items():
        now = table(item)
        added = [column.partition(":")[0] for column in columns]
        assert now.column_names == [*rows.column_names, *added]
        for name in rows.column_names:
            assert now[name].equals(rows[name])
    with_columns = contents("release")
    ok(*RELEASE, *parsed_columns(*columns))
    assert contents("release") == with_columns
    ok(*RELEASE)
    assert contents("release") == plain
    assert spent() == paid


def test_the_columns_hold_what_they_say(town):
    ok(*RELEASE, *parsed_columns("nonnegative", "consistent", "thresholded:1.5", "integer"))
    for item in ITEMS:
        frame = table(item).to_pandas()
        assert np.array_equal(frame["nonnegative"], frame["estimate"].clip(lower=0))
        zero = frame["estimate"] < np.maximum(1.5 * frame["std_error"], 0)
        assert np.array_equal(frame["thresholded"], frame["estimate"].mask(zero, 0.0))
        assert (frame["consistent"] >= 0).all()
        assert (frame["integer"] >= 0).all()
    pairs = table("pairs").to_pandas()
    for _, frame in pairs.groupby("table"):
        assert frame["consistent"].sum() == pytest.approx(max(0, frame["estimate"].sum()))
        assert frame["integer"].sum() == round(frame["consistent"].sum())
    by_sex = table("age_by_sex").to_pandas()
    for column in ("consistent", "integer"):
        wide = by_sex.pivot_table(index="age", columns="sex", values=column)
        assert wide["all"].to_numpy() == pytest.approx((wide["F"] + wide["M"]).to_numpy())


def test_the_manifest_and_the_statement_name_the_columns_in_order(town):
    ok(*RELEASE, *parsed_columns("thresholded", "consistent"))
    manifest = json.loads(Path("release/release.json").read_text())
    assert [column["asked"] for column in manifest["extra"]] == ["thresholded", "consistent"]
    assert manifest["postprocessing"].endswith("extra columns thresholded, consistent")
    statement = Path("release/statement.md").read_text()
    assert "- `thresholded`: the estimate, or zero where it is below sqrt(2 ln m)" in statement
    assert "belong to `estimate`, and to no other column" in statement
    report = ok("error-report")
    assert "beside the estimates: thresholded, consistent; errors, intervals and" in report.out
    assert "belong to the estimates" in Path("report.html").read_text()
    as_json = json.loads(ok("error-report", "--json").out)
    assert [column["name"] for column in as_json["extra"]] == ["thresholded", "consistent"]


def test_ranges_that_overlap_and_cells_beside_them_are_sums_of_one_table(own_folder):
    spec = (
        "dataset: {id: town}\nprivacy: {unit: row}\nbudget: {epsilon: 4}\n"
        "other: drop\ndomain:\n  age: {range: [0, 4]}\n  sex: {values: [F, M]}\n"
        "workload:\n  - {name: wide, ranges: {age: {width: 2}}}\n"
        "  - {name: cells, product: {age: identity, sex: identity}}\n"
    )
    plan_town(own_folder, spec)
    ok(*RELEASE, *parsed_columns("consistent", "integer", "nonnegative"))
    wide, cells = table("wide"), table("cells")
    for column in ("consistent", "integer"):
        ages = np.array(cells[column]).reshape(5, 2).sum(axis=1)
        assert np.array(wide[column]) == pytest.approx(ages[:-1] + ages[1:])
        assert min(ages) >= 0
    assert wide["nonnegative"].null_count == 0
    extra = json.loads(Path("release/release.json").read_text())["extra"]
    assert all(not facts["empty"] for facts in extra)
    assert "Empty in" not in Path("release/statement.md").read_text()


@pytest.mark.parametrize(
    ("column", "message"),
    [("nonegative", "did you mean 'nonnegative'?"), ("thresholded:0", "positive number")],
)
def test_a_wrong_column_is_refused_before_anything_is_charged(town, column, message):
    assert message in refused(*RELEASE, "--also", column, code=2)
    assert spent() == "0"


def test_an_attribute_may_not_have_the_name_of_an_extra_column(town):
    text = Path("workload.yaml").read_text().replace("income", "integer")
    Path("other.yaml").write_text(text)
    assert "is the name of a column" in refused("plan", "other.yaml", code=2)


def test_later_answers_have_extra_columns_too_whatever_the_release_has(town):
    Path("more.yaml").write_text(
        "workload:\n  - {name: sexes, product: {sex: identity}}\n"
        "  - {name: old, product: {age: identity, sex: identity}}\n"
    )
    ok(*RELEASE, *parsed_columns("nonnegative"))
    ok("answer", "release", "more.yaml", *parsed_columns("integer", "consistent"))
    frame = pq.read_table("answers/old.parquet").to_pandas()
    assert list(frame.columns[-2:]) == ["integer", "consistent"]
    assert frame["consistent"].sum() == pytest.approx(max(0, frame["estimate"].sum()))
    facts = json.loads(Path("answers/release.json").read_text())
    assert [column["name"] for column in facts["extra"]] == ["integer", "consistent"]
    ok("answer", "release", "more.yaml")
    plain = pq.read_table("answers/old.parquet").to_pandas()
    assert list(plain.columns) == list(frame.columns[:-2])
    wrong = refused("answer", "release", "more.yaml", "--also", "consistant", code=2)
    assert "did you mean 'consistent'?" in wrong


@pytest.mark.skipif(find_spec("mbi") is not None, reason="the extra mbi is installed")
def test_a_graphical_model_without_the_extra_is_refused_before_the_charge(town):
    message = refused(*RELEASE, "--also", "graphical", code=2)
    assert "pip install 'dpquery[mbi]'" in message
    assert spent() == "0"


@needs_mbi
def test_the_graphical_model_answers_like_one_table_of_records(town):
    ok(*RELEASE, *parsed_columns("graphical", "consistent"))
    first = contents("release")
    ages = table("ages").to_pandas().set_index("age")["graphical"]
    assert (ages >= 0).all()
    by_sex = table("age_by_sex").to_pandas()
    total = by_sex[by_sex["sex"] == "all"]["graphical"].sum()
    assert ages["0-4"] == pytest.approx(total)
    manifest = json.loads(Path("release/release.json").read_text())
    assert {"jax", "mbi"} <= set(manifest["libraries"])
    ok(*RELEASE, *parsed_columns("graphical", "consistent"))
    assert contents("release") == first


QUESTIONS = "workload:\n  - {name: sexes, product: {sex: identity}}\n"
FILES = {
    "plan": ("plan", "workload.yaml", "--time-limit", "0", "--out"),
    "page": ("error-report", "release", "--html"),
    "records": ("synthetic", "release", "--rows", "20", "--out"),
    "spec": ("init",),
}
FOLDERS = {
    "release": ("release", "data.csv", "--epsilon", "1", "--release-number", "2", "--out"),
    "answers": ("answer", "release", "more.yaml", "--out"),
}
KEPT = (
    "june.html",
    "state/ledger.db",
    "data.csv",
    "dpquery.plan",
    "workload.yaml",
    "more.yaml",
    "notes.txt",
)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs") / "town"
    plan_town(folder, MIXED_SPEC)
    rehearse(folder / "dpquery.plan")
    (folder / "more.yaml").write_text(QUESTIONS)
    (folder / "notes.txt").write_text("ten years")
    (folder / "june.html").write_text("<html><title>Error report: June</title></html>")
    places = ("--plan", folder / "dpquery.plan", "--ledger", folder / "state" / "ledger.db")
    ok("release", folder / "data.csv", "--epsilon", "1", "--out", folder / "release", *places)
    return folder


@pytest.fixture
def among_others(template, move_in):
    move_in(template)


among_files = pytest.mark.usefixtures("among_others")


@pytest.mark.nightly(daily="plan-june|page-data|records-data|spec-state")
@among_files
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("command", FILES)
def test_no_file_takes_the_place_of_another_kind(command, kept):
    if (command, kept) != ("plan", "dpquery.plan"):
        refused(*FILES[command], kept, code=5)
    Path("link").symlink_to(kept)
    if (command, kept) != ("plan", "dpquery.plan"):
        refused(*FILES[command], "link", code=5)


@pytest.mark.nightly(daily=r"release-state/|answers-data|release-\.")
@among_files
@pytest.mark.parametrize("kept", [*KEPT, "state", "."])
@pytest.mark.parametrize("command", FOLDERS)
def test_no_folder_takes_the_place_of_anything_else(command, kept):
    refused(*FOLDERS[command], kept, code=5)
    refused(*FOLDERS[command], kept, "--replace", code=5)


@among_files
def test_a_ledger_in_a_folder_to_be_replaced_is_kept():
    for command, folder in (("answers", "other"), ("release", "release")):
        if not Path(folder).exists():
            ok(*FOLDERS[command], folder)
        for name in (".ledger.db", "ledger.db"):
            place = Path(folder, name)
            place.write_bytes(Path("state/ledger.db").read_bytes())
            Path("more.yaml").write_text(QUESTIONS.replace("sexes", "others"))
            said = refused(*FOLDERS[command], folder, "--replace", code=5)
            assert f"also holds {name}" in said
            place.unlink()


@among_files
@pytest.mark.parametrize("command", [*FILES, *FOLDERS])
def test_the_sign_for_standard_output_is_no_name(command):
    said = refused(*(FILES | FOLDERS)[command], "-", code=2)
    assert "'-' is not taken for standard output" in said


@among_files
@pytest.mark.parametrize("place", ["none/x", "data.csv/x", "state", "pipe", "loop", "/dev/null"])
@pytest.mark.parametrize("command", FILES)
def test_a_place_where_no_file_can_be_is_refused(command, place):
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    said = refused(*FILES[command], place, code=2)
    assert f"dpquery: {place} " in said


@among_files
@pytest.mark.parametrize("command", FILES)
def test_a_link_into_a_folder_that_is_missing_is_refused(command):
    Path("link").symlink_to("none/x")
    assert "is no folder" in refused(*FILES[command], "link", code=2)


@among_files
@pytest.mark.parametrize("command", ["plan", "page", "records"])
def test_the_same_output_again_changes_nothing(command):
    ok(*FILES[command], "again")
    before = contents(".")
    ok(*FILES[command], "again")
    assert contents(".")["again"] == before["again"]
