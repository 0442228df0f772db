"""A budget is one budget: what is charged is charged once, though killed before any system call."""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import sqlite3
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from interference_support import COUNT, FAIL_FROM, FAIL_ONCE, KILL, failing_calls
from ledgers import CAP, charge, new_ledger, opened, release, spent
from town import FAST, contents, ok, renew, run

import dpquery
from dpquery.exceptions import ChangedDataError, LedgerError, PlanConflictError
from dpquery.measurement.accounting import UNIT
from dpquery.measurement.ledger.ledger import Ledger

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
def here(own_folder):
    """A folder of one's own with a ledger, which `plan` makes, and some records."""
    Path("d.csv").write_text("x\n" + "a\nb\na\n" * 20)
    return own_folder


def planned(name, *options, file="s.yaml", out="dpquery.plan", parent=""):
    """Plan for a dataset of some id."""
    spec = SPEC.format(name=name + (f", parent: {parent}" if parent else ""))
    Path(file).write_text(spec)
    return run("plan", file, "--out", out, *options)


@pytest.fixture
def ops(here):
    """The same with a plan for the dataset ops."""
    assert planned("ops").code == 0
    return here


def on_record():
    done = run("ledger", "status", "--json")
    assert done.code == 0
    return sorted(account["dataset"] for account in json.loads(done.out))


@pytest.mark.parametrize("name", ["clinc", "clinics", "clniic", "Clinic", "cli-nic", "clinik"])
def test_an_id_like_one_on_record_is_refused(here, name):
    assert planned("clinic").code == 0
    done = planned(name, file="other.yaml", out="other.plan")
    assert (done.code, done.out, Path("other.plan").exists()) == (5, "", False)
    assert all(words in done.err for words in (f"'{name}'", "'clinic'", "--new-dataset"))
    assert on_record() == ["clinic"]
    assert planned(name, "--new-dataset", file="other.yaml", out="other.plan").code == 0
    assert on_record() == sorted(["clinic", name])
    assert planned(name, file="other.yaml", out="other.plan").code == 0  # on record by now


LIKE = ("hospital hosbitol", "abc abd", "hospitals ahoipitals", "hospitals hopitasl")
UNLIKE = ("schools skhoolz", "ab ac", "clinic clikinnc", "clinic cianic")


@pytest.mark.parametrize("names", [*LIKE, *UNLIKE])
def test_two_letters_may_be_wrong_in_eight_one_in_three_and_none_in_fewer(here, names):
    (known, name), code = names.split(), 5 if names in LIKE else 0
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


def numbered(number, out="release"):
    return ["release", "d.csv", "--epsilon", "1", "--release-number", str(number), "--out", out]


def releases_charged():
    """The numbers of the releases that were charged, in order."""
    events = json.loads(run("ledger", "history", "--json").out)
    return [event["details"]["release"] for event in events if event["kind"] == "reserve"]


def test_of_releases_at_once_into_one_folder_one_is_charged(ops, forks):
    done = forks.run(*(command(ops, *numbered(n)) for n in (1, 2, 3, 4)), together=True)
    assert sorted(ended.code for ended in done) == [0, 5, 5, 5]
    assert len(releases_charged()) == 1
    assert run("ledger", "verify", "--releases", "release").code == 0
    assert all("another --out" not in ended.err for ended in done)  # nobody else has paid


def test_a_run_that_waits_for_a_folder_looks_again_before_it_is_charged(ops, forks, monkeypatch):
    other = command(ops, *numbered(2))
    waits, lock = Path(".release.writing"), fcntl.flock
    ended = []

    def slow(descriptor, how):
        of_folder = waits.exists() and os.path.samestat(waits.stat(), os.fstat(descriptor))
        if of_folder and not ended:
            ended.extend(forks.run(other))
        return lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    waiting = run(*numbered(1))
    assert ([done.code for done in ended], waiting.code) == ([0], 5)
    assert "holds another release" in waiting.err
    assert releases_charged() == [2]


def test_a_refused_folder_says_that_what_was_paid_for_is_free_elsewhere(ops):
    assert run(*numbered(1)).code == 0
    assert run(*numbered(2, "second")).code == 0
    refused = run(*numbered(2))
    assert refused.code == 5
    assert "the same command with another --out is free" in refused.err
    unpaid = run(*numbered(3))
    assert unpaid.code == 5
    assert "is free" not in unpaid.err
    assert run(*numbered(2, "third")).code == 0
    assert releases_charged() == [1, 2]
    first, again = (Path(name, "t.parquet").read_bytes() for name in ("second", "third"))
    assert first == again


def test_a_charge_that_is_refused_leaves_no_folder(ops):
    done = run("release", "d.csv", "--epsilon", 11, "--out", "deep/er/release")
    assert done.code == 3
    assert not Path("deep").exists()
    assert run("release", "none.csv", "--epsilon", 1, "--out", "deep/er/release").code == 6
    assert not Path("deep").exists()
    assert releases_charged() == []


def test_a_folder_that_may_not_be_changed_is_refused_before_the_charge(ops, monkeypatch):
    may = os.access

    def access(path, mode, **more):  # for root too, whom no mode of a folder stops
        closed = mode & os.W_OK and Path(path).name in {"empty", "second"}
        return not closed and may(path, mode, **more)

    monkeypatch.setattr(os, "access", access)
    Path("empty").mkdir()
    assert run(*numbered(1, "empty")).code == 2
    assert run(*numbered(2, "second")).code == 0
    assert run(*numbered(3, "second"), "--replace").code == 2
    assert releases_charged() == [2]
    assert run(*numbered(2, "second")).code == 0  # what is there already is free as ever


def later(path, seconds=3):
    """Let a file have changed some seconds from now: no test waits for a clock."""
    moment = time.time() + seconds
    os.utime(path, (moment, moment))


def stamps(folder):
    return {path.name: path.stat().st_mtime_ns for path in Path(folder).iterdir()}


@pytest.mark.parametrize("out", ["release", "elsewhere"])
def test_numbers_of_changed_data_are_not_given_out_as_new(ops, out):
    assert run(*numbered(1)).code == 0
    before = stamps("release")
    Path("d.csv").write_text("x\n" + "b\n" * 900)
    later("d.csv")
    refused = run(*numbered(1, out))
    assert (refused.code, refused.out) == (7, "")
    first, *_ = refused.err.splitlines()
    assert all(word in first for word in ("d.csv is newer", "`version:`", "--release-number"))
    assert stamps("release") == before
    assert Path(out).exists() == (out == "release")
    same = run(*numbered(1, out), "--same")
    assert (same.code, "d.csv is newer" in same.err.splitlines()[0]) == (0, True)
    assert Path(out, "t.parquet").read_bytes() == Path("release", "t.parquet").read_bytes()
    assert run(*numbered(2, "other"), "--same").code == 5  # that one was never paid for
    with pytest.raises(ChangedDataError):
        dpquery.release("d.csv", epsilon=1, out=out)
    assert dpquery.release("d.csv", epsilon=1, out=out, same=True).free
    assert run(*numbered(2, "new")).code == 0  # the remedy: charged, and of what is there now
    assert releases_charged() == [1, 2]


def test_data_that_is_missing_is_said_and_what_was_paid_for_stays_free(ops):
    assert run(*numbered(1)).code == 0
    assert run(*numbered(2, "second")).code == 0
    Path("d.csv").unlink()
    for out in ("release", "elsewhere"):
        again = run(*numbered(1, out))
        assert again.code == 0
        assert "d.csv is not there" in again.err.splitlines()[0]
        assert "--release-number" in again.err.splitlines()[0]
    before = stamps("release")
    for more in (("--also", "integer"), ("--confidence", "0.9")):
        refused = run(*numbered(1), *more)
        assert refused.code == 7
        assert "d.csv is not there" in refused.err.splitlines()[0]
        assert stamps("release") == before
    assert run(*numbered(2), "--replace").code == 7
    assert run(*numbered(2), "--replace", "--same").code == 0
    assert run("release", "nothing*.csv", *numbered(1)[2:], "--replace").code == 7
    assert run(*numbered(3, "third")).code == 6
    assert releases_charged() == [1, 2]


@pytest.mark.parametrize("what", ["folder", "glob", "link", "database", "older"])
def test_every_place_of_data_that_is_a_file_is_looked_at(ops, what):
    """A file put into a folder or taken away is a change, however old it is."""
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
        "older": ("data", "data", "data is newer"),
    }[what]
    command = ["release", place, *numbered(1)[2:]]
    assert run(*command).code == 0
    assert run(*command).code == 0
    if what == "older":
        Path("data/c.csv").write_text("x\nb\n")
        os.utime("data/c.csv", (1, 1))  # as copies and archives keep it
    later(file)
    refused = run(*command)
    assert (refused.code, named in refused.err) == (7, True)


def test_data_mended_after_the_charge_is_what_the_next_run_measures(here):
    spec = SPEC.format(name="ops") + "file: {newlines_in_quotes: true}\n"
    Path("s.yaml").write_text(spec)
    assert run("plan", "s.yaml", "--time-limit", 1).code == 0
    Path("d.csv").write_text('x\na\n"b\n')  # a lone quote
    assert run(*numbered(1)).code == 6
    Path("d.csv").write_text('x\na\n"b"\n')
    assert run(*numbered(1)).code == 0
    assert run(*numbered(1)).code == 0
    assert releases_charged() == [1]


def test_a_ledger_that_was_copied_knows_the_day(ops):
    assert run(*numbered(1)).code == 0
    for lock in Path("state/ledger.db.locks").iterdir():
        later(lock, 10 * 24 * 3600)
    assert run(*numbered(1)).code == 0
    later("d.csv", 2 * 24 * 3600)
    assert run(*numbered(1)).code == 7


def test_a_plan_named_as_data_is_not_called_data_that_changed(released_town):
    ok("plan", "workload.yaml", "--out", "again.plan")
    later("again.plan", 100)
    refused = run("release", "again.plan", "--epsilon", "1")
    assert refused.code == 6
    assert "this seems to be a plan, not the data; write `dpquery release DATA" in refused.err


def test_no_second_ledger_is_begun_beside_a_release(ops):
    """The ledger is lost: plan and discover, which make one, would begin the budget anew."""
    assert run(*numbered(1)).code == 0
    for state in Path("state").iterdir():
        state.rename(ops / f"gone-{state.name}")
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
    gaussian = (*numbered(1), "--noise", "gaussian", "--delta")
    assert "delta 1e-5 is above the 1e-6 that the spec declares" in run(*gaussian, 1e-5).err


# Killed before any of its system calls, or refused any of them, a run loses nothing.

needs_a_compiler = pytest.mark.skipif(failing_calls() is None, reason="needs cc, on Linux")

WAYS = {
    "killed": (KILL, 0),
    "refused for want of room": (FAIL_ONCE, errno.ENOSPC),
    "refused by the disk": (FAIL_ONCE, errno.EIO),
    "out of room from there on": (FAIL_FROM, errno.ENOSPC),
}
SIZES = {"in a row": 2, "in a file": 600_000}


def disturbing(*, some, all_):
    """Parameters (way, step): every day two ways at some calls, else each way at all or many."""
    everyday = [pytest.param(way, some, id=f"{way}, some") for way in list(WAYS)[:2]]
    slow = [pytest.param(way, all_, id=way, marks=pytest.mark.slow) for way in WAYS]
    return pytest.mark.parametrize(("way", "step"), everyday + slow)


@pytest.fixture
def folder():
    """A folder in memory, if there is one: what a kill leaves does not depend on the disk."""
    with TemporaryDirectory(dir=FAST) as name:
        yield Path(name)


def numbers(calls, step):
    """Numbers of the calls to disturb: all, or some, others every time, and the last."""
    return sorted({*range(1 + secrets.randbelow(step), calls + 1, step), calls})


PRELUDE = """
import sys
from pathlib import Path
import numpy as np
from dpquery.exceptions import DpqueryError
from dpquery.measurement.ledger.ledger import Ledger
from ledgers import CAP, charge, opened, release
def reported(work):
    try:
        work()
    except DpqueryError as error:
        sys.stderr.write(str(error))
        sys.exit(error.exit_code)
"""
RELEASES = """
def work():
    with opened(Path("state/ledger.db")) as ledger:
        release(ledger, "k2", values=np.full({size}, 1))
"""
REGISTERS = """
def work():
    with Ledger.open(Path("new/deep/ledger.db"), create=True) as ledger:
        ledger.register("people", CAP)
"""
ABANDONS = """
def work():
    with opened(Path("state/ledger.db")) as ledger:
        ledger.abandon("k3")
"""


def calls_of(forks, job):
    """Run a job undisturbed and return the names of its calls."""
    (done,) = forks.run(job | {"arm": (COUNT, 0, 0)})
    assert done.code == 0, done
    assert len(done.names) > 5
    return done.names


def disturbed(forks, job, *, way, number):
    """Run a job whose call of this number is the one; it ends as it may."""
    mode, error = WAYS[way]
    (done,) = forks.run(job | {"arm": (mode, number, error)})
    if mode == KILL:
        assert done.code == -9, done
        assert done.out == done.err == ""
    else:
        assert done.code in {0, LedgerError.exit_code, 70}, done
        assert not re.search("Traceback|internal error|CANARY", done.err), done
        assert done.code == 0 or done.err
    return done


@pytest.mark.nightly
@needs_a_compiler
@disturbing(some=8, all_=1)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_release_disturbed_at_any_call_is_charged_once_and_goes_on_free(
    folder, forks, way, size, step, record_property
):
    template = folder / "template"
    with opened(new_ledger(template)) as ledger:
        release(ledger, "k1", values=np.full(size, 7))
    working = folder / "own"
    path = working / "state" / "ledger.db"
    job = {
        "folder": working,
        "before": PRELUDE + RELEASES.format(size=size),
        "code": "reported(work)",
    }
    renew(working, template)
    crashes = numbers(len(calls_of(forks, job)), step)
    charged, committed, crashed = set(), set(), 0
    for number in crashes:
        renew(working, template)
        done = disturbed(forks, job, way=way, number=number)
        crashed += done.code != 0
        with opened(path) as ledger:
            ledger.verify()
            kinds = [event.kind for event in ledger.history()]
            assert kinds in (
                *(["register", "reserve", "commit"], ["register", "reserve", "commit", "reserve"]),
                ["register", "reserve", "commit", "reserve", "commit"],
            )
            assert done.code != 0 or kinds[3:] == ["reserve", "commit"]
            charged.add(len(kinds) > 3)
            committed.add(len(kinds) > 4)
            kept = 1 if len(kinds) > 4 else 2
            for values in (np.full(size, 2), np.full(size, 3)):
                assert set(release(ledger, "k2", values=values).values.tolist()) == {kept}
            assert set(release(ledger, "k1").values.tolist()) == {7}
            ledger.verify()
        assert spent(path) == 2 * UNIT
        left = {file.suffix for file in path.with_name("ledger.db.measurements").glob("*")}
        assert left <= {".i64"}
    # Some were disturbed before, and some after.
    assert charged == committed == {False, True}
    record_property("crashes", crashed)


@needs_a_compiler
@disturbing(some=8, all_=1)
def test_a_ledger_whose_making_is_disturbed_at_any_call_is_whole_or_not_there(
    folder, forks, way, step, record_property
):
    job = {"folder": folder, "before": PRELUDE + REGISTERS, "code": "reported(work)"}
    crashes = numbers(len(calls_of(forks, job)), step)
    path, crashed = folder / "new" / "deep" / "ledger.db", 0
    for number in crashes:
        shutil.rmtree(folder / "new")
        crashed += disturbed(forks, job, way=way, number=number).code != 0
        with Ledger.open(path, create=True) as ledger:
            ledger.register("people", CAP)
            assert [event.kind for event in ledger.history()] == ["register"]
            release(ledger)
        assert {left.name for left in path.parent.iterdir()} == {"ledger.db", "ledger.db.locks"}
    record_property("crashes", crashed)


@needs_a_compiler
@disturbing(some=8, all_=1)
def test_giving_up_disturbed_at_any_call_gives_no_charge_back(
    folder, forks, way, step, record_property
):
    template = folder / "template"
    with opened(new_ledger(template)) as ledger, ledger.hold("k3"):
        charge(ledger, "k3")
        ledger.draft("k3").append(np.arange(3))
    working = folder / "own"
    path = working / "state" / "ledger.db"
    job = {"folder": working, "before": PRELUDE + ABANDONS, "code": "reported(work)"}
    renew(working, template)
    crashes, crashed = numbers(len(calls_of(forks, job)), step), 0
    for number in crashes:
        renew(working, template)
        crashed += disturbed(forks, job, way=way, number=number).code != 0
        assert spent(path) == UNIT
        with opened(path) as ledger:
            given_up = ledger.history()[-1].kind == "abandon"
            if not given_up:
                with ledger.hold("k3"):  # what was drawn is still there to be gone on with
                    charge(ledger, "k3")
                    assert [values.tolist() for values in ledger.draft("k3").parts()] == [[0, 1, 2]]
                ledger.abandon("k3")
            assert release(ledger, "k3").values.tolist() == [5, -(2**61), 0, 7]
        assert spent(path) == 2 * UNIT
    record_property("crashes", crashed)


LATER = ["release", "data.csv", "--epsilon", "1", "--replace"]


@pytest.fixture
def working_town(planned_town, folder, monkeypatch):
    """A town that holds an earlier release; a function makes the working folder the same again."""
    template, working = folder / "template", folder / "own"
    renew(template, planned_town)
    renew(working, template)
    working.mkdir(exist_ok=True)
    monkeypatch.chdir(working)
    monkeypatch.setenv("DPQUERY_LEDGER", str(working / "state" / "ledger.db"))
    ok("release", "data.csv", "--epsilon", "0.5")
    renew(template, working)

    def again():
        monkeypatch.chdir(folder)
        renew(working, template)
        monkeypatch.chdir(working)

    return working, again


def command(folder, *arguments, **settings):
    environment = {"DPQUERY_LEDGER": str(folder / "state" / "ledger.db")}
    return {"folder": folder, "arguments": arguments, "environment": environment} | settings


def events():
    with opened(Path("state/ledger.db")) as ledger:
        return ledger.history()


def charges():
    return [event.kind for event in events() if event.kind in {"reserve", "commit"}]


def check_left_behind(before):
    """Check what a disturbed run left: return whether its measurement is committed."""
    published = Path("release") if Path("release").exists() else Path(".release.writing/old")
    with opened(Path("state/ledger.db")) as ledger:
        ledger.verify([published])
    kinds = charges()
    assert kinds in (["reserve", "commit", "reserve", "commit"][:most] for most in (2, 3, 4))
    if contents("release") != before:
        # The new one is in its place, or the earlier one is on its way out.
        assert len(kinds) == 4
        if Path("release").exists():
            assert json.loads(Path("release/release.json").read_text())["ledger"]["seq"] > 3
        else:
            assert contents(".release.writing/old") == before
    return len(kinds) == 4


def check_completed(forks, folder, committed):
    """Run again to the end: free, whole, the committed measurement, nothing left lying about."""
    stored = events()[-1].fields["sha256"] if committed else None
    first, second = forks.run(command(folder, *LATER), command(folder, *LATER, "--out", "again"))
    assert first.code == second.code == 0, first
    assert charges() == ["reserve", "commit"] * 2
    assert spent(Path("state/ledger.db"), "town") == 3 * UNIT // 2
    published = json.loads(Path("release/release.json").read_text())["measurements"]
    assert published == events()[-1].fields["sha256"]
    assert stored in (None, published)
    assert contents("again") == contents("release")
    with opened(Path("state/ledger.db")) as ledger:
        ledger.verify([Path("release"), Path("again")])
    left = [name for name in contents(".") if re.search(r"writing|pending|/\.|db\.new", name)]
    assert not left


def telling(forks, job):
    """Numbers of the calls to disturb: of a long row of the same calls only the ends."""
    names = ["", *calls_of(forks, job), ""]
    return [n for n in range(1, len(names) - 1) if not names[n - 1] == names[n] == names[n + 1]]


@needs_a_compiler
@disturbing(some=40, all_=5)
def test_a_command_disturbed_at_any_call_loses_nothing_and_the_next_completes_it(
    working_town, forks, way, step, record_property
):
    working, again = working_town
    before = contents("release")
    job = command(working, *LATER)
    messages = telling(forks, job)
    assert len(messages) > 40
    crashes, crashed = [messages[place - 1] for place in numbers(len(messages), step)], 0
    for number in crashes:
        again()
        done = disturbed(forks, job, way=way, number=number)
        crashed += done.code != 0
        committed = check_left_behind(before)
        assert done.code != 0 or committed
        check_completed(forks, working, committed)
    record_property("crashes", crashed)
