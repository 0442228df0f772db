"""The ledger charges once, before noise, whatever is killed, raced, edited or full."""

import json
import os
import re
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ledgers import CAP, VALUES, charge, opened, price, release, run_script, spent
from town import SPEC, Done, contents, kinds, ok, run, start
from town import spent as town_spent

from dpquery.exceptions import (
    BudgetExceededError,
    LedgerError,
    LedgerLockedError,
    PlanConflictError,
)
from dpquery.measurement import curator
from dpquery.measurement.accounting import UNIT
from dpquery.measurement.ledger import ledger as ledger_module
from dpquery.measurement.ledger.admission import RETRIES
from dpquery.measurement.ledger.events import Event, Head, LedgerState, cap_fields
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import file_system

# Run as a script of its own: forked children then inherit no threads.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import numpy as np
from ledgers import codes, forked, opened
from ledgers import release as released
from dpquery.measurement.ledger.ledger import Ledger

path = Path(sys.argv[1])
def release(key, values):
    with opened(path) as ledger:
        return released(ledger, key, values=values)
"""


def test_racing_creators_make_one_ledger(tmp_path, record_property):
    path = tmp_path / "new" / "deep" / "ledger.db"
    ended = run_script(
        SCRIPT + "from dpquery.measurement.accounting import Cap\n"
        "def register():\n"
        "    with Ledger.open(path, create=True) as ledger:\n"
        "        ledger.register('people', Cap('epsilon', 5))\n"
        "print(json.dumps(codes([forked(register) for i in range(8)])))",
        path,
    )
    assert ended == [0] * 8
    record_property("races", len(ended))
    with opened(path) as ledger:
        assert len(ledger.history()) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == ["ledger.db"]


def test_the_charge_is_durable_before_the_measurement_exists(path):
    with opened(path) as ledger, ledger.hold("k1"):
        charge(ledger)
        assert spent(path) == UNIT  # as another connection sees it
        with sqlite3.connect(path) as database:
            assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        database.close()
        assert ledger._store._database.execute("PRAGMA synchronous").fetchone() == (2,)


@pytest.mark.parametrize("size", [0, 1, 2**19, 2**19 + 1])
def test_measurements_of_any_size_come_back_exactly(path, size):
    values = np.arange(2 * size, dtype=np.int64)[::2] - 2**62
    with opened(path) as ledger:
        release(ledger, values=values)
    with opened(path) as ledger:
        np.testing.assert_array_equal(release(ledger).values, values)
        ledger.verify()
    files = list(path.parent.rglob("*.i64"))
    assert len(files) == (values.nbytes > ledger_module.LARGE)
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in files)


def test_a_retry_is_free_three_times_and_then_refused_until_abandoned(path):
    with opened(path) as ledger:
        for _ in range(1 + RETRIES):
            with ledger.hold("k1"):
                assert ledger.lookup("people", key="k1", price=price()) is None
                charge(ledger)
        with pytest.raises(BudgetExceededError, match="ledger abandon"):
            release(ledger)
        assert ledger.status()[0].unfinished == ("k1",)
        ledger.abandon("k1")
        assert ledger.status()[0].unfinished == ()
        with pytest.raises(PlanConflictError, match="no unfinished run"):
            ledger.abandon("k1")
        release(ledger)
    assert spent(path) == 2 * UNIT


@pytest.mark.parametrize("committed", [False, True])
def test_a_key_on_record_is_never_taken_for_a_dearer_one(path, committed):
    with opened(path) as ledger, ledger.hold("k1"):
        charge(ledger)
        if committed:
            ledger.commit("k1", VALUES, source="OpenDP 0")
        for ask in (
            lambda: ledger.lookup("people", key="k1", price=price(UNIT + 1)),
            lambda: charge(ledger, units=UNIT + 1),
        ):
            with pytest.raises(PlanConflictError, match="smaller charge"):
                ask()
    assert spent(path) == UNIT


def test_a_running_key_cannot_be_abandoned(path):
    with opened(path) as ledger, opened(path) as other, ledger.hold("k1"):
        charge(ledger)
        with pytest.raises(LedgerLockedError, match="same release"):
            other.abandon("k1")


def test_steps_out_of_order_are_programming_errors(path):
    with opened(path) as ledger:
        with pytest.raises(ValueError, match="hold"):
            charge(ledger)
        with pytest.raises(ValueError, match="hold"):
            ledger.commit("k1", VALUES, source="OpenDP 0")
        with ledger.hold("k1"):
            with pytest.raises(ValueError, match="without a reservation"):
                ledger.commit("k1", VALUES, source="OpenDP 0")
            with pytest.raises(ValueError, match="positive"):
                charge(ledger, units=0)
            with pytest.raises(TypeError, match="int64"):
                ledger.commit("k1", VALUES.astype(float), source="OpenDP 0")
            charge(ledger)
            first = ledger.commit("k1", VALUES, source="OpenDP 0")
            again = ledger.commit("k1", VALUES + 1, source="another")
            assert again.values.tolist() == first.values.tolist()
            assert again.source == first.source == "OpenDP 0"
            with pytest.raises(ValueError, match="look its measurement up"):
                charge(ledger)


def test_errors_of_the_caller_pass_through_unchanged(path):
    for error in (OSError("theirs"), sqlite3.OperationalError("theirs")):
        with pytest.raises(type(error), match="theirs"), opened(path) as ledger, ledger.hold("k"):
            raise error


def test_charges_for_different_units_are_never_added_up(path):
    other = replace(CAP, unit="person by id, add-remove")
    with opened(path) as ledger:
        for ask in (
            lambda: ledger.register("people", other),
            lambda: ledger.currency("people", unit=other.unit),
        ):
            with pytest.raises(PlanConflictError, match="on record for the unit 'row, add-remove'"):
                ask()
        ledger.register("people", other, changes=True)
        ledger.register("people", CAP, changes=True)
        release(ledger)
        with pytest.raises(PlanConflictError, match="cannot become epsilon for 'person by id"):
            ledger.register("people", other, changes=True)


def test_a_busy_ledger_is_a_locked_one(path):
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    with opened(path, timeout=0.05) as ledger:
        with pytest.raises(LedgerLockedError, match="another process") as caught:
            ledger.register("others", CAP)
        assert caught.value.exit_code == 75
        assert ledger.head().seq == 1  # reading goes on
    database.close()


def test_a_held_key_makes_others_wait_and_then_give_up(path):
    with opened(path) as ledger, opened(path) as other, ledger.hold("k1"):
        with pytest.raises(LedgerLockedError), other.hold("k1", timeout=0.1):
            pass
        with other.hold("k2", timeout=0):
            pass


def test_the_export_holds_public_facts_and_no_time_of_day(path):
    with opened(path) as ledger:
        release(ledger)
        lines = [json.loads(line) for line in ledger.export()]
    assert [line["kind"] for line in lines] == ["register", "reserve", "commit"]
    assert lines[1]["native"] == {"pure": "1"}
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", line["day"])
        assert not re.search(r"\d:\d\d", json.dumps(line))


def test_noise_of_before_there_was_a_choice_was_drawn_by_opendp():
    state = LedgerState()
    steps = (
        ("register", cap_fields("people", CAP)),
        ("reserve", {"key": "k", "dataset": "people", "units": "5"}),
        ("commit", {"key": "k", "sha256": "0"}),
    )
    for seq, (kind, fields) in enumerate(steps, 1):
        state.apply(Event(Head(seq, ""), kind, "2026-01-01", fields))
    assert state.entries["k"].source == "OpenDP"


# Runs at once never pass a cap or lose a charge, and releases testify to what was charged.

REAL = pytest.mark.parametrize(
    "real",
    [pytest.param(False, id="forked"), pytest.param(True, id="started", marks=pytest.mark.slow)],
)


def race(forks, commands, *, real=False):
    """Run commands at once: forked from a warm process, or each started from nothing."""
    if real:
        runs = [start(*command) for command in commands]
        said = [run.communicate(timeout=600) for run in runs]  # together, on a machine that is busy
        return [Done(run.returncode, *texts) for run, texts in zip(runs, said, strict=True)]
    folder = Path.cwd()
    environment = {"DPQUERY_LEDGER": str(folder / "state" / "ledger.db")}
    jobs = [
        {"folder": folder, "arguments": command, "environment": environment} for command in commands
    ]
    return forks.run(*jobs, together=True)


def release_command(number, epsilon="0.4", out=None):
    arguments = ["release", "data.csv", "--epsilon", epsilon, "--release-number", str(number)]
    return [*arguments, "--out", out or f"r{number}"]


@REAL
def test_of_12_releases_at_once_for_a_budget_of_five_five_succeed(
    town, forks, real, record_property
):
    done = race(forks, [release_command(number, "0.8") for number in range(1, 13)], real=real)
    codes = [ended.code for ended in done]
    assert sorted(codes) == [0] * 5 + [BudgetExceededError.exit_code] * 7, done
    assert town_spent() == "4"
    assert sorted(kinds()) == ["commit"] * 5 + ["register"] + ["reserve"] * 5
    there = [Path(f"r{number}").exists() for number in range(1, 13)]
    assert there == [code == 0 for code in codes]
    assert "ok: 5 releases in the chain" in ok("ledger", "verify", "--releases", ".").out
    assert all(
        "what is left" in ended.err or "nothing is left" in ended.err
        for ended in done
        if ended.code
    )
    record_property("races", len(done))


def test_six_twins_are_one_charge_and_the_same_bytes(town, forks, record_property):
    folders = ["a", "b", "c", "d", "same", "same"]
    done = race(forks, [release_command(1, "1", out) for out in folders])
    assert [ended.code for ended in done] == [0] * 6, done
    assert kinds() == ["register", "reserve", "commit"]
    assert town_spent() == "1"
    first, *others = (contents(out) for out in set(folders))
    assert all(other == first for other in others)
    assert sum("nothing was charged" in ended.err for ended in done) == 5
    record_property("races", len(done))


def test_of_two_caps_declared_at_once_one_is_on_record_and_the_other_is_told(
    own_folder, forks, record_property
):
    caps = ("3", "5", "3", "5")
    for number, cap in enumerate(caps):
        Path(f"w{number}.yaml").write_text(SPEC.replace("{epsilon: 4}", f"{{epsilon: {cap}}}"))
    done = race(forks, [["plan", f"w{i}.yaml", "--out", f"p{i}"] for i in range(4)])
    assert sorted(ended.code for ended in done) == [0, 0] + [PlanConflictError.exit_code] * 2, done
    (status,) = json.loads(ok("ledger", "status", "--json").out)
    for cap, ended in zip(caps, done, strict=True):
        assert (ended.code == 0) == (status["cap"] == cap)
    assert kinds() == ["register"]
    record_property("races", len(done))


def test_a_cap_changed_while_releases_run_is_kept_to_at_every_charge(town, forks, record_property):
    Path("more.yaml").write_text(SPEC.replace("{epsilon: 4}", "{epsilon: 2}"))
    lower = ["plan", "more.yaml", "--change-cap", "--out", "lower.plan"]
    done = race(forks, [*(release_command(number) for number in range(1, 9)), lower])
    assert done[-1].code == 0
    cap = 4.0
    total = 0.0
    for event in json.loads(ok("ledger", "history", "--json").out):
        if event["kind"] == "change-cap":
            cap = int(event["units"]) / 1e18
        elif event["kind"] == "reserve":
            total += int(event["units"]) / 1e18
            assert total <= cap + 1e-9
    assert sum(ended.code == 0 for ended in done[:-1]) == round(total / 0.4)
    record_property("races", len(done))


@pytest.mark.parametrize(
    ("kept", "changed"),
    [("{epsilon: 4}", "{rho: 4}"), ("{rho: 4}", "{epsilon: 4}"), ("add-remove", "replace")],
)
def test_a_charge_worked_out_for_another_cap_than_the_one_on_record_is_refused(
    town, monkeypatch, kept, changed
):
    now = SPEC.replace("{epsilon: 4}", kept) if kept[0] == "{" else SPEC
    Path("workload.yaml").write_text(now)
    ok("plan", "workload.yaml", "--change-cap")
    Path("changed.yaml").write_text(now.replace(kept, changed))
    checked = curator.check_header

    def meanwhile(*arguments):
        checked(*arguments)
        ok("plan", "changed.yaml", "--change-cap", "--out", "changed.plan")

    with monkeypatch.context() as patch:
        patch.setattr(curator, "check_header", meanwhile)
        done = run(*release_command(1, "0.1"))
    assert done.code == PlanConflictError.exit_code, done
    assert "changed meanwhile; run the command again" in " ".join(done.err.split())
    assert "reserve" not in kinds()
    assert town_spent() == "0"
    assert not Path("r1").exists()


def test_a_twin_of_a_killed_run_waits_and_then_goes_on_with_its_reservation(
    town, forks, record_property
):
    """The kernel lets go of the killed run's lock: no stale lock is left to be removed by hand."""
    job = {"folder": Path.cwd(), "arguments": release_command(1, "1")}
    job["environment"] = {"DPQUERY_LEDGER": str(Path("state/ledger.db").absolute())}
    dies = "import dpquery.measurement.curator as own, os, signal\n"
    dies += "def die(*_, **__):\n    os.kill(os.getpid(), signal.SIGKILL)\nown.tabulate = die\n"
    other = job | {"arguments": release_command(1, "1", "b")}
    done = forks.run(job | {"before": dies}, job, other, together=True)
    assert sorted(ended.code for ended in done) == [-9, 0, 0] or done[0].code == 0, done
    assert town_spent() == "1"
    assert kinds().count("reserve") == kinds().count("commit") == 1
    assert contents("r1") == contents("b")
    record_property("races", len(done))


def test_only_planning_creates_a_ledger(tmp_path):
    path = tmp_path / "none" / "ledger.db"
    with pytest.raises(LedgerError, match="dpquery plan"), opened(path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_whatever_the_umask_a_new_ledger_is_for_its_owner_alone(tmp_path, mask):
    path = tmp_path / "a" / "b" / "ledger.db"
    before = os.umask(mask)
    try:
        with Ledger.open(path, create=True) as ledger:
            ledger.register("people", CAP)
            release(ledger, values=np.zeros(600_000, np.int64))
            paths = [tmp_path / "a", *(tmp_path / "a").rglob("*")]
            modes = {p.name: stat.S_IMODE(p.lstat().st_mode) for p in paths}
    finally:
        os.umask(before)
    folders = {"a", "b", "ledger.db.locks", "ledger.db.measurements"}
    assert {"ledger.db", "ledger.db-wal", *folders} < modes.keys()
    assert {name for name, mode in modes.items() if mode != 0o600} == folders
    assert {modes[name] for name in folders} == {0o700}


def test_a_ledger_that_others_could_change_is_refused(path):
    for place, mode in ((path, 0o620), (path, 0o602), (path.parent, 0o770), (path.parent, 0o703)):
        before = place.stat().st_mode
        place.chmod(mode)
        with pytest.raises(LedgerError, match="can be changed by other users"), opened(path):
            pass
        place.chmod(before)


def test_a_ledger_of_another_user_is_refused(path, monkeypatch):
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(LedgerError, match="other users"), opened(path):
        pass


def test_a_link_is_not_followed(path):
    for target in (path, path.with_name("nowhere")):
        link = path.with_name("link.db")
        link.symlink_to(target)
        for create in (False, True):
            with pytest.raises(LedgerError, match="link"), Ledger.open(link, create=create):
                pass
        link.unlink()


def test_a_mount_is_found_by_any_name():
    for name in ("/mnt/Müller", "/mnt/数据", "/mnt/a\x85b\u2028c", "/mnt/\udcfc"):
        mounts = f"disk / ext4 rw 0 0\nserver:/x {name}\\040\\134x nfs4 rw 0 0\n"
        assert file_system(Path(name + " \\x/ledger.db"), mounts) == "nfs4", name


def test_a_ledger_refused_for_its_folder_is_not_left_there(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    path = folder / "ledger.db"
    with pytest.raises(LedgerError, match="other users"), Ledger.open(path, create=True):
        pass
    assert list(folder.iterdir()) == []
