"""A budget is one budget: what begins another one is said, and what is charged is charged once."""

import fcntl
import json
import os
import sqlite3
import time
from pathlib import Path

import pytest
from town import ANY_PLAN, ok, run

import dpquery
from dpquery.exceptions import ChangedDataError, PlanConflictError

SPEC = """\
dataset: {{id: {name}}}
privacy: {{unit: row}}
budget: {{epsilon: 10}}
domain:
  x: {{values: [a, b]}}
workload:
  - {{name: t, product: {{x: identity}}}}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of one's own with a ledger, which `plan` makes, and some records."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("d.csv").write_text("x\n" + "a\nb\na\n" * 20)
    return tmp_path


def planned(name, *options, file="s.yaml", out="dpquery.plan", parent=""):
    """Plan for a dataset of some id."""
    spec = SPEC.format(name=name + (f", parent: {parent}" if parent else ""))
    Path(file).write_text(spec)
    return run("plan", file, "--out", out, "--time-limit", 1, *options)


def on_record():
    done = run("ledger", "status", "--json")
    assert done.code == 0
    return sorted(account["dataset"] for account in json.loads(done.out))


@pytest.mark.parametrize("name", ["clinc", "clinics", "clniic", "Clinic", "cli-nic", "clinik"])
def test_an_id_like_one_on_record_is_refused(here, name):
    assert planned("clinic").code == 0
    done = planned(name, file="other.yaml", out="other.plan")
    assert (done.code, done.out, Path("other.plan").exists()) == (5, "", False)
    assert f"'{name}'" in done.err
    assert "'clinic'" in done.err
    assert "--new-dataset" in done.err
    assert on_record() == ["clinic"]
    assert planned(name, "--new-dataset", file="other.yaml", out="other.plan").code == 0
    assert on_record() == sorted(["clinic", name])
    assert planned(name, file="other.yaml", out="other.plan").code == 0  # on record by now


@pytest.mark.parametrize(
    ("known", "name", "code"),
    [("hospital", "hosbitol", 5), ("schools", "skhoolz", 0), ("abc", "abd", 5), ("ab", "ac", 0)],
)
def test_two_letters_may_be_wrong_in_eight_one_in_three_and_none_in_fewer(here, known, name, code):
    assert planned(known).code == 0
    assert planned(name, file="other.yaml", out="other.plan").code == code


@pytest.mark.parametrize("name", ["clinic-2024", "clinic-2", "school", "clinic-2023-4"])
def test_a_new_dataset_is_announced_in_one_line(here, name):
    said = planned("clinic-2023").err.splitlines()
    assert sum("clinic-2023 is new" in line for line in said) == 1
    assert "is new" not in planned("clinic-2023").err
    said = planned(name, file="other.yaml", out="other.plan")
    assert said.code == 0
    assert sum(f"{name} is new" in line for line in said.err.splitlines()) == 1


def test_a_parent_is_a_budget_too(here):
    assert planned("wave-1", parent="{id: panel, budget: {epsilon: 10}}").code == 0
    typed = "{id: panell, budget: {epsilon: 10}}"
    refused = planned("wave-2", file="b.yaml", out="b.plan", parent=typed)
    assert (refused.code, on_record()) == (5, ["panel", "wave-1"])
    assert "'panel'" in refused.err
    own = planned("panel-a", file="c.yaml", out="c.plan", parent=typed.replace("ll", "l"))
    assert own.code == 0  # its charges are charged to the parent that it is named after


def test_a_spec_that_gets_another_id_is_no_new_dataset(here):
    assert planned("clinic").code == 0
    renamed = planned("hospital")
    assert (renamed.code, on_record()) == (5, ["clinic"])
    assert "'clinic'" in renamed.err
    assert planned("hospital", file="h.yaml", out="h.plan").code == 0


def test_the_function_refuses_and_announces_as_the_command_does(here):
    assert planned("hospital").code == 0
    Path("other.yaml").write_text(SPEC.format(name="hospitl"))
    with pytest.raises(PlanConflictError, match="--new-dataset"):
        dpquery.plan("other.yaml", plan_path="other.plan", time_limit=1)
    report = dpquery.plan("other.yaml", plan_path="other.plan", time_limit=1, new_dataset=True)
    assert report.new == ("hospitl",)


def release(number, out="release"):
    return ["release", "d.csv", "--epsilon", "1", "--release-number", str(number), "--out", out]


def spent():
    """The numbers of the releases that were charged, in order."""
    events = json.loads(run("ledger", "history", "--json").out)
    return [event["details"]["release"] for event in events if event["kind"] == "reserve"]


def test_of_releases_at_once_into_one_folder_one_is_charged(here, forks):
    assert planned("ops").code == 0
    environment = {"DPQUERY_LEDGER": str(here / "state" / "ledger.db")}
    jobs = [
        {"folder": here, "arguments": release(number), "environment": environment}
        for number in (1, 2, 3, 4)
    ]
    done = forks.run(*jobs, together=True)
    assert sorted(ended.code for ended in done) == [0, 5, 5, 5]
    assert len(spent()) == 1
    assert run("ledger", "verify", "--releases", "release").code == 0
    assert all("another --out" not in ended.err for ended in done)  # nobody else has paid


def test_a_run_that_waits_for_a_folder_looks_again_before_it_is_charged(here, forks, monkeypatch):
    assert planned("ops").code == 0
    environment = {"DPQUERY_LEDGER": str(here / "state" / "ledger.db")}
    other = {"folder": here, "arguments": release(2), "environment": environment}
    waits, lock = Path(".release.writing"), fcntl.flock
    ended = []

    def slow(descriptor, how):
        of_folder = waits.exists() and os.path.samestat(waits.stat(), os.fstat(descriptor))
        if of_folder and not ended:
            ended.extend(forks.run(other))
        return lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    waiting = run(*release(1))
    assert ([done.code for done in ended], waiting.code) == ([0], 5)
    assert "holds another release" in waiting.err
    assert spent() == [2]


def test_a_refused_folder_says_that_what_was_paid_for_is_free_elsewhere(here):
    assert planned("ops").code == 0
    assert run(*release(1)).code == 0
    assert run(*release(2, "second")).code == 0
    refused = run(*release(2))
    assert refused.code == 5
    assert "the same command with another --out is free" in refused.err
    unpaid = run(*release(3))
    assert unpaid.code == 5
    assert "is free" not in unpaid.err
    assert run(*release(2, "third")).code == 0
    assert spent() == [1, 2]
    first, again = (Path(name, "t.parquet").read_bytes() for name in ("second", "third"))
    assert first == again


def test_a_charge_that_is_refused_leaves_no_folder(here):
    assert planned("ops").code == 0
    done = run("release", "d.csv", "--epsilon", 11, "--out", "deep/er/release")
    assert done.code == 3
    assert not Path("deep").exists()
    assert run("release", "none.csv", "--epsilon", 1, "--out", "deep/er/release").code == 6
    assert not Path("deep").exists()
    assert spent() == []


def test_a_folder_that_may_not_be_changed_is_refused_before_the_charge(here, monkeypatch):
    may = os.access

    def access(path, mode, **more):  # for root too, whom no mode of a folder stops
        closed = mode & os.W_OK and Path(path).name in {"empty", "second"}
        return not closed and may(path, mode, **more)

    monkeypatch.setattr(os, "access", access)
    assert planned("ops").code == 0
    Path("empty").mkdir()
    assert run(*release(1, "empty")).code == 2
    assert run(*release(2, "second")).code == 0
    assert run(*release(3, "second"), "--replace").code == 2
    assert spent() == [2]
    assert run(*release(2, "second")).code == 0  # what is there already is free as ever


def later(path, seconds=3):
    """Let a file have changed some seconds from now: no test waits for a clock."""
    moment = time.time() + seconds
    os.utime(path, (moment, moment))


def stamps(folder):
    return {path.name: path.stat().st_mtime_ns for path in Path(folder).iterdir()}


@pytest.mark.parametrize("out", ["release", "elsewhere"])
def test_numbers_of_changed_data_are_not_given_out_as_new(here, out):
    assert planned("ops").code == 0
    assert run(*release(1)).code == 0
    before = stamps("release")
    Path("d.csv").write_text("x\n" + "b\n" * 900)
    later("d.csv")
    refused = run(*release(1, out))
    assert (refused.code, refused.out) == (7, "")
    first, *_ = refused.err.splitlines()
    assert all(word in first for word in ("d.csv is newer", "`version:`", "--release-number"))
    assert stamps("release") == before
    assert Path(out).exists() == (out == "release")
    same = run(*release(1, out), "--same")
    assert same.code == 0
    assert "d.csv is newer" in same.err.splitlines()[0]
    assert Path(out, "t.parquet").read_bytes() == Path("release", "t.parquet").read_bytes()
    with pytest.raises(ChangedDataError):
        dpquery.release("d.csv", epsilon=1, out=out)
    assert dpquery.release("d.csv", epsilon=1, out=out, same=True).free
    assert run(*release(2, "new")).code == 0  # the remedy: charged, and of what is there now
    assert spent() == [1, 2]


def test_data_that_is_missing_is_said_and_what_was_paid_for_stays_free(here):
    assert planned("ops").code == 0
    assert run(*release(1)).code == 0
    assert run(*release(2, "second")).code == 0
    Path("d.csv").unlink()
    for out in ("release", "elsewhere"):
        again = run(*release(1, out))
        assert again.code == 0
        assert "d.csv is not there" in again.err.splitlines()[0]
        assert "--release-number" in again.err.splitlines()[0]
    before = stamps("release")
    for more in (("--also", "integer"), ("--confidence", "0.9")):
        refused = run(*release(1), *more)
        assert refused.code == 7
        assert "d.csv is not there" in refused.err.splitlines()[0]
        assert stamps("release") == before
    assert run(*release(2), "--replace").code == 7
    assert run(*release(2), "--replace", "--same").code == 0
    assert run("release", "nothing*.csv", *release(1)[2:], "--replace").code == 7
    assert run(*release(3, "third")).code == 6
    assert spent() == [1, 2]


@pytest.mark.parametrize("what", ["folder", "glob", "link", "database"])
def test_every_place_of_data_that_is_a_file_is_looked_at(here, what):
    assert planned("ops").code == 0
    Path("data").mkdir()
    Path("data/a.csv").write_text("x\na\n")
    Path("data/b.csv").write_text("x\nb\n")
    Path("link.csv").symlink_to("data/a.csv")
    with sqlite3.connect("data.db") as database:
        database.execute("CREATE TABLE t (x TEXT)")
    database.close()
    place, file, named = {
        "folder": ("data", "data/b.csv", "b.csv"),
        "glob": ("data/*.csv", "data/b.csv", "b.csv"),
        "link": ("link.csv", "data/a.csv", "link.csv"),
        "database": ("sqlite:data.db?table=t", "data.db", "data.db"),
    }[what]
    command = ["release", place, *release(1)[2:]]
    assert run(*command).code == 0
    assert run(*command).code == 0
    later(file)
    refused = run(*command)
    assert (refused.code, named in refused.err) == (7, True)


def test_a_file_put_into_a_folder_or_taken_away_is_a_change_however_old_it_is(here):
    assert planned("ops").code == 0
    Path("data").mkdir()
    Path("data/a.csv").write_text("x\na\n")
    assert run("release", "data", *release(1)[2:]).code == 0
    assert run("release", "data", *release(1)[2:]).code == 0
    Path("data/b.csv").write_text("x\nb\n")
    os.utime("data/b.csv", (1, 1))  # as copies and archives keep it
    later("data")
    refused = run("release", "data", *release(1)[2:])
    assert (refused.code, "data is newer" in refused.err) == (7, True)


def test_data_mended_after_the_charge_is_what_the_next_run_measures(here):
    spec = SPEC.format(name="ops") + "file: {newlines_in_quotes: true}\n"
    Path("s.yaml").write_text(spec)
    assert run("plan", "s.yaml", "--time-limit", 1).code == 0
    Path("d.csv").write_text('x\na\n"b\n')  # a lone quote
    assert run(*release(1)).code == 6
    Path("d.csv").write_text('x\na\n"b"\n')
    assert run(*release(1)).code == 0
    assert run(*release(1)).code == 0
    assert spent() == [1]


def test_a_ledger_that_was_copied_knows_the_day(here):
    assert planned("ops").code == 0
    assert run(*release(1)).code == 0
    for lock in Path("state/ledger.db.locks").iterdir():
        later(lock, 10 * 24 * 3600)
    assert run(*release(1)).code == 0
    later("d.csv", 2 * 24 * 3600)
    assert run(*release(1)).code == 7


def test_a_plan_named_as_data_is_not_called_data_that_changed(town):
    ok("release", "data.csv", "--epsilon", "1")
    ok(*ANY_PLAN, "workload.yaml", "--out", "again.plan")
    later = Path("again.plan").stat().st_mtime + 100
    os.utime("again.plan", (later, later))
    refused = run("release", "again.plan", "--epsilon", "1")
    assert refused.code == 6
    assert "again.plan: this seems to be a plan; write `dpquery release DATA`" in refused.err


def test_no_second_ledger_is_begun_beside_a_release(here):
    """The ledger is lost: plan and discover, which make one, would begin the budget anew."""
    assert planned("ops").code == 0
    assert run(*release(1)).code == 0
    for state in Path("state").iterdir():
        state.rename(here / f"gone-{state.name}")
    discover = ("discover", "d.csv", "--column", "x", "--epsilon", 1, "--delta", 1e-9)
    for command in (("plan", "s.yaml"), (*discover, "--spec", "s.yaml")):
        refused = run(*command)
        assert refused.code == 4, refused
        assert "release/ holds a release of 'ops', and there is no ledger" in refused.err
        assert not Path("state/ledger.db").exists()
    assert run("plan", "s.yaml", "--dry-run").code == 0
    assert planned("other").code != 4  # nothing was released of it
    os.remove("state/ledger.db")
    assert run("plan", "s.yaml", "--new-dataset").code == 0


def test_a_discovery_under_another_id_is_refused_as_a_plan_is(here):
    spec = SPEC.format(name="ops").replace("epsilon: 10", "epsilon: 9, delta: 1e-6, discover: 1e-7")
    Path("workload.yaml").write_text(spec)
    assert run("plan", "workload.yaml", "--time-limit", 1).code == 0
    Path("workload.yaml").write_text(spec.replace("ops", "zebra9"))
    asked = ("discover", "d.csv", "--column", "x", "--epsilon", 1, "--delta", 1e-9)
    refused = run(*asked)
    assert refused.code == 5
    assert "for which this spec was planned before" in refused.err
    assert on_record() == ["ops"]
    assert run(*asked, "--new-dataset").code == 0


def test_a_release_at_a_larger_delta_than_declared_says_so(here):
    spec = SPEC.format(name="ops").replace("epsilon: 10", "epsilon: 9, delta: 1e-6")
    Path("s.yaml").write_text(spec.replace("unit: row", "unit: row, delta: 1e-7"))
    assert run("plan", "s.yaml", "--time-limit", 1).code == 0
    gaussian = (*release(1), "--noise", "gaussian", "--delta")
    assert "delta 1e-5 is above the 1e-6 that the spec declares" in run(*gaussian, 1e-5).err
