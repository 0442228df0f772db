"""Columns beside the estimates, as a user asks for them: free, recorded, always the same."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from town import contents, ok, plan_town, refused, spent

ITEMS = ("age_by_sex", "pairs", "ages")
OLD = ("estimate", "std_error", "ci_low", "ci_high", "rel_error", "flag")
RELEASE = ("release", "data.csv", "--epsilon", "1")

needs_mbi = pytest.mark.skipif(find_spec("mbi") is None, reason="the extra mbi is not installed")


def parsed_columns(*columns):
    return [word for column in columns for word in ("--also", column)]


def table(item):
    return pq.read_table(f"release/{item}.parquet")


def test_columns_are_added_and_dropped_for_free_and_leave_the_estimates_alone(town):
    ok(*RELEASE)
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


def test_a_release_without_extra_columns_does_not_speak_of_them(town):
    ok(*RELEASE)
    assert "extra" not in json.loads(Path("release/release.json").read_text())
    assert "Post-processing: none. Estimates" in Path("release/statement.md").read_text()
    assert "beside the estimates" not in ok("error-report").out


def test_ranges_that_overlap_and_cells_beside_them_are_sums_of_one_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    spec = (
        "dataset: {id: town}\nprivacy: {unit: row}\nbudget: {epsilon: 4}\n"
        "other: drop\ndomain:\n  age: {range: [0, 4]}\n  sex: {values: [F, M]}\n"
        "workload:\n  - {name: wide, ranges: {age: {width: 2}}}\n"
        "  - {name: cells, product: {age: identity, sex: identity}}\n"
    )
    plan_town(tmp_path, spec)
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


# ------------------------------------------------------------------------- graphical model


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
