"""Whatever a user gets wrong: what, where, the remedy, an exit code; nothing charged or changed."""

import bz2
import errno
import gzip
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from town import CSV, PERSON_SPEC, SPEC, kinds, ok, refused, run, spent

RELEASE = ("release", "data.csv", "--epsilon", "1")


@pytest.fixture(autouse=True)
def tried(record_property):
    """Count what was tried: every test here tries one bad input at least."""
    record_property("bad inputs", 1)


def test_all_mistakes_in_a_spec_are_told_at_once(town):
    Path("workload.yaml").write_text(SPEC.replace("weight: 2", "weight: x").replace("all}", "al}"))
    assert refused("plan", "workload.yaml", code=2).count("workload.yaml:") == 2


@pytest.mark.parametrize("version", ["version: 1", "version: 1, rows: about 500"])
def test_tables_too_large_to_be_counted_are_named_with_their_size(town, version):
    """Whatever is asked of them: a strategy counts all cells of a table, and so does RAP."""
    wide = SPEC.replace("version: 1", version).replace("epsilon: 4", "epsilon: 4, delta: 1e-6")
    wide = wide.replace("range: [0, 4]", "range: [0, 9999]").replace(
        "bins: [0, 10, 20.5, 50]", "range: [1, 9999]"
    )
    wide += "  - name: any\n    threshold: {r: 1, of: [age, income]}\n"
    wide += "  - name: all\n    marginals: {sets: [[age], [sex, age, income]]}\n"
    Path("workload.yaml").write_text(wide)
    said = refused("plan", "workload.yaml", code=2)
    for place, size in (("21:5: item 'any'", "99,990,000"), ("23:5: item 'all'", "199,980,000")):
        assert f"workload.yaml:{place} has a table over " in said
        assert f"{size} cells to measure, and the limit is 67,108,864" in said
    assert said.count("workload.yaml:") == 2


def test_ranges_too_many_to_be_held_are_refused_with_their_number(town):
    Path("workload.yaml").write_text(SPEC.replace("range: [0, 4]", "range: [0, 20000]"))
    said = refused("plan", "workload.yaml", code=2)
    assert ": item 'ages' asks 200,030,001 queries of age, and the limit is 67,108,864" in said
    assert said.count("workload.yaml:") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--noise", "uniform"), "'laplace', 'gaussian', 'auto'"),
        (("--noise", "gaussian"), "delta"),
        (("--confidence", "1"), "confidence 1 is not from 0.5 to 0.9999"),
        (("--confidence", "95"), "confidence 95 is not from 0.5 to 0.9999; write 0.95"),
        (("--confidence", "nan"), "confidence"),
        (("--release-number", "0"), "--release-number"),
        (("--unknown",), "--unknown"),
    ],
)
def test_other_options_out_of_range_are_refused(town, arguments, message):
    assert message in refused(*RELEASE, *arguments, code=2)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("ages sd <= 5", "ITEM: sd <= 50"),
        ("ages: sd < 5", "ITEM: sd <= 50"),
        ("ages: median <= 5", "ITEM: sd <= 50"),
        ("ages: sd <= 0", "above 0"),
        ("ages: sd <= -1", "above 0"),
        ("ages: sd <= nan", "above 0"),
        ("ages: sd <= 1e999", "above 0"),
        ("ages: sd <= 5 people", "ITEM: sd <= 50"),
        (": sd <= 5", "ITEM: sd <= 50"),
        ("agess: sd <= 5", "did you mean 'ages'"),
    ],
)
def test_a_target_that_cannot_be_read_is_refused_with_the_form(town, target, message):
    assert message in refused("plan", "workload.yaml", "--target", target, code=2)


def test_a_target_that_no_epsilon_meets_is_refused(town):
    said = refused(
        "plan", "workload.yaml", "--target", "ages: sd <= 1e-6", "--time-limit", "0", code=2
    )
    assert "the largest is 1e6; at epsilon 4 errors are " in said


def test_targets_and_another_objective_are_refused_together(town):
    options = ("--target", "ages: sd <= 9", "--objective", "max")
    assert "leave --objective out" in refused("plan", "workload.yaml", *options, code=2)


@pytest.mark.parametrize("sweep", ["", "1,,2", "1;2", "1,two", "0,1", "1,nan", "0.1 0.5"])
def test_a_sweep_that_is_no_list_of_epsilons_is_refused_with_the_form(town, sweep):
    assert "0.1,0.5,1,2" in refused("plan", "workload.yaml", "--sweep", sweep, code=2)


def test_the_column_of_a_persons_id_that_is_missing_is_named_as_such(town):
    Path("workload.yaml").write_text(PERSON_SPEC)
    ok("plan", "workload.yaml", "--time-limit", "0", "--change-cap")
    Path("data.csv").write_bytes(CSV.replace(b"name", b"nme", 1))
    said = refused(*RELEASE, code=6)
    assert "lacks the declared column name; `privacy: unit: person` names 'name': change it" in said
    assert "column:`" not in said
    assert "nme" not in said


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("dta.csv", "there is no file dta.csv; did you mean 'data.csv'? nothing was charged"),
        ("nowhere.parquet", "there is no file nowhere.parquet; give the path of a data file"),
        (
            "workload.yaml",
            "workload.yaml: this seems to be a spec, not the data; write `dpquery release DATA`",
        ),
    ],
)
def test_a_name_that_is_no_file_of_data_is_told_from_the_folder(town, given, message):
    assert message in refused("release", given, "--epsilon", "1", code=6)


def test_data_and_spec_in_the_wrong_order_are_told(town):
    said = refused("check", "workload.yaml", "data.csv", "--to-pipe", code=6)
    assert (
        "workload.yaml: this seems to be a spec, not the data; write `dpquery check DATA SPEC`"
        in said
    )


def test_a_file_that_is_named_twice_by_one_name_is_named_once(town):
    said = refused("release", "data.csv", "data.csv", "--epsilon", "1", code=6)
    assert "data.csv is named twice, so that" in said


def test_tables_too_large_to_count_are_refused_before_anything_is_charged(town, monkeypatch):
    monkeypatch.setattr("dpquery.measurement.counting.tables.MAX_COUNTED_CELLS", 5)
    assert "the limit is 5" in refused(*RELEASE, code=2)
    assert kinds() == ["register"]


def test_an_epsilon_that_leaves_no_noise_to_draw_is_refused_before_anything_is_charged(town):
    assert "ask for a smaller epsilon" in refused(*RELEASE[:-1], "1e6", code=2)
    assert kinds() == ["register"]


def test_another_release_in_the_folder_is_kept_unless_replace_is_given(released_town):
    other = ("release", "data.csv", "--epsilon", "0.5")
    assert "--replace" in refused(*other, code=5)
    assert spent() == "1"
    ok(*other, "--replace")
    assert json.loads(Path("release/release.json").read_text())["guarantee"]["epsilon"] == 0.5


def test_a_release_with_a_file_of_the_users_is_not_replaced(released_town):
    Path("release/notes.txt").write_text("mine")
    said = refused("release", "data.csv", "--epsilon", "0.5", "--replace", code=5)
    assert "notes.txt" in said


def test_error_report_on_a_damaged_release_says_so(released_town):
    for name in ("errors.parquet", "pairs.parquet"):
        path = Path("release", name)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        assert "damaged" in refused("error-report", code=2)
        path.unlink()
        assert "damaged" in refused("error-report", code=2)
        path.write_bytes(whole)
    ok("error-report")


def test_a_ledger_that_does_not_know_the_dataset_is_refused(town):
    other = SPEC.replace("id: town", "id: village")
    Path("other.yaml").write_text(other)
    ok("plan", "other.yaml", "--ledger", "state/other.db", "--out", "other.plan")
    said = refused(*RELEASE, "--ledger", "state/other.db", code=4)
    assert "'town' is not registered in the ledger at state/other.db, which has village;" in said


def test_a_damaged_ledger_is_refused_by_every_command(released_town):
    with closing(sqlite3.connect("state/ledger.db")) as database:
        database.execute("DROP TRIGGER events_keep")
        database.execute("UPDATE events SET body = replace(body, '1000', '2000') WHERE seq = 2")
        database.commit()
    for command in (RELEASE, ("plan", "workload.yaml"), ("ledger", "status"), ("ledger", "verify")):
        assert "ledger" in refused(*command, code=4)


def test_a_text_that_is_named_as_the_ledger_is_no_damaged_one(town):
    said = refused(*RELEASE, "--ledger", "workload.yaml", code=4)
    assert "workload.yaml is no ledger (an SQLite file); check DPQUERY_LEDGER or --ledger" in said


def test_a_full_disk_is_called_so_where_a_page_is_written(released_town, monkeypatch):

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    assert "cannot write report.html: the disk is full" in refused("error-report", code=70)


def test_an_interrupted_command_says_what_it_left(town, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    planned = Path("dpquery.plan").read_bytes()
    monkeypatch.setattr("dpquery.planning.search.select", interrupted)
    said = refused("plan", "workload.yaml", code=130)
    assert "interrupted; nothing was charged and no plan was written" in said
    with monkeypatch.context() as patched:
        patched.setattr("dpquery.measurement.curator.tabulate", interrupted)
        stopped = run(*RELEASE)
    assert "if `dpquery ledger status` has it charged" in stopped.err
    assert "the same command again is free" in stopped.err
    assert Path("dpquery.plan").read_bytes() == planned
    assert not Path("release").exists()
    ok(*RELEASE)
    monkeypatch.setattr("dpquery.commands.others.write_package", interrupted)
    assert refused("package", code=130) == "dpquery: interrupted; nothing was charged"


def test_a_release_past_the_budget_is_refused_before_the_data_are_opened(town):
    Path("data.csv").unlink()
    said = refused("release", "data.csv", "--epsilon", "4.5", code=3)
    assert "needs 1.2 times what is left of the budget of epsilon 4;" in said
    assert "the largest that still fits is --epsilon 4 --noise laplace;" in said
    assert "nothing was charged" in said


def test_a_free_repeat_names_what_was_not_opened(released_town):
    for given, named in (
        (["dtaa.csv"], "dtaa.csv was"),
        (["a.csv", "b.csv", "c.csv"], "a.csv and 2 more were"),
    ):
        said = ok("release", *given, "--epsilon", "1").err
        assert f"the ledger gave this release again; {named} not opened" in said
    assert (
        "dat.csv is not there (did you mean 'data.csv'?)"
        in ok("release", "dat.csv", "--epsilon", "1").err
    )
    assert "this seems to be a spec" in refused(
        "release", "workload.yaml", "--epsilon", "1", code=6
    )


OTHER_KINDS = {
    "gzip": (gzip.compress(CSV, mtime=0), "it is gzip: give it the suffix .gz"),
    "bz2": (bz2.compress(CSV), "it is bz2: give it the suffix .bz2"),
    "zip": (b"PK\x03\x04" + bytes(99), "it is a zip archive, as .xlsx files are"),
    "Parquet": (b"PAR1" + b"\n" * 99, "it is Parquet: give it the suffix .parquet"),
    "Arrow": (b"ARROW1\0\0" + bytes(99), "it is Arrow: give it the suffix .arrow"),
    "SQLite": (b"SQLite format 3\0" + bytes(99), "name a table, 'sqlite:FILE?table=NAME'"),
    "DuckDB": (bytes(8) + b"DUCK" + bytes(99), "name a table, 'duckdb:FILE?table=NAME'"),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_a_file_of_another_kind_is_named_by_its_first_bytes_before_the_charge(town, kind):
    content, words = OTHER_KINDS[kind]
    Path("data.csv").write_bytes(content)
    assert words in refused(*RELEASE, code=6)
    for name in ("data.csv.gz", "data.parquet"):
        if kind.lower() not in {"gzip", "parquet"}:
            Path(name).write_bytes(content)
            assert words in refused("release", name, "--epsilon", "1", code=6)
    assert spent() == "0"


def test_what_is_packed_is_named_too(town):
    Path("data.csv.gz").write_bytes(gzip.compress(b"PAR1" + bytes(99)))
    said = refused("release", "data.csv.gz", "--epsilon", "1", code=6)
    assert "what is packed in it is Parquet; unpack it" in said
    Path("data.csv.gz").write_bytes(CSV)
    said = refused("release", "data.csv.gz", "--epsilon", "1", code=6)
    assert "it is not gzip, as its suffix says; give it the suffix of what it is" in said


def test_a_cap_changed_in_the_spec_is_refused_until_it_is_changed_on_record(town):
    Path("workload.yaml").write_text(SPEC.replace("{epsilon: 4}", "{epsilon: 8}"))
    said = refused("plan", "workload.yaml", code=5)
    assert "--change-cap" in said
    assert "epsilon 4" in said
    assert "epsilon 8" in said
    done = ok("plan", "workload.yaml", "--change-cap")
    assert "on record is now epsilon 8" in done.err
    ok("release", "data.csv", "--epsilon", "5")


def test_a_ledger_that_refuses_a_spec_does_so_before_the_search(town, monkeypatch):
    monkeypatch.setattr("dpquery.planning.search.select", None)
    Path("workload.yaml").write_text(SPEC.replace("{epsilon: 4}", "{epsilon: 8}"))
    assert "--change-cap" in refused("plan", "workload.yaml", code=5)
