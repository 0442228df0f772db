"""The ledger charges once, before noise, whatever is killed, raced, edited or full."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import traceback
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dpquery.exceptions import (
    BudgetExceededError,
    LedgerError,
    LedgerLockedError,
    PlanConflictError,
    SpecError,
)
from dpquery.measurement import ledger as ledger_module
from dpquery.measurement import ledger_files, ledger_store
from dpquery.measurement.accounting import UNIT, Cap
from dpquery.measurement.ledger import Ledger
from dpquery.measurement.ledger_files import default_path, file_system

CAP = Cap("epsilon", 10 * UNIT, epsilon=Fraction(10))
VALUES = np.array([5, -(2**61), 0, 7], np.int64)


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "state" / "ledger.db"
    with Ledger.open(place, create=True) as ledger:
        ledger.register("people", CAP)
    return place


@contextmanager
def opened(path, **settings):
    with Ledger.open(path, create=False, **settings) as ledger:
        yield ledger


def charge(ledger, key="k1", units=UNIT, dataset="people"):
    ledger.reserve(dataset, key=key, units=units, native={"pure": "1"}, details={"release": 1})


def release(ledger, key="k1", units=UNIT, values=VALUES):
    """The protocol as the curator runs it."""
    with ledger.hold(key):
        stored = ledger.lookup("people", key=key, units=units)
        if stored is not None:
            return stored
        charge(ledger, key, units)
        return ledger.commit(key, values)


def spent(path, dataset="people"):
    with opened(path) as ledger:
        (status,) = (s for s in ledger.status() if s.account.dataset == dataset)
        return status.account.spent


# Run as a script of its own: forked children then inherit no threads.
SCRIPT = """
import os, sys
from pathlib import Path
import numpy as np
from dpquery.exceptions import DpqueryError
from dpquery.measurement.ledger import Ledger

def release(path, key, values, units=10**18):
    with Ledger.open(path, create=False) as ledger, ledger.hold(key):
        stored = ledger.lookup("people", key=key, units=units)
        if stored is None:
            ledger.reserve("people", key=key, units=units, native={}, details={})
            stored = ledger.commit(key, values)
        return stored

def forked(work):
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except DpqueryError as error:
        os._exit(error.exit_code)
    finally:
        os._exit(99)

def codes(pids):
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]

path = Path(sys.argv[1])
"""


def run_script(body, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + body, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_racing_processes_never_pass_the_cap(path):
    ended = run_script(
        "import json\n"
        "pids = [forked(lambda: release(path, f'k{i}', np.array([i]))) for i in range(24)]\n"
        "print(json.dumps(codes(pids)))",
        path,
    )
    assert sorted(ended) == [0] * 10 + [BudgetExceededError.exit_code] * 14
    assert spent(path) == CAP.units


def test_racing_creators_make_one_ledger(tmp_path):
    path = tmp_path / "new" / "deep" / "ledger.db"
    ended = run_script(
        "import json\n"
        "from dpquery.measurement.accounting import Cap\n"
        "def register():\n"
        "    with Ledger.open(path, create=True) as ledger:\n"
        "        ledger.register('people', Cap('epsilon', 5))\n"
        "print(json.dumps(codes([forked(register) for i in range(8)])))",
        path,
    )
    assert ended == [0] * 8
    with opened(path) as ledger:
        assert len(ledger.history()) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == ["ledger.db"]


def test_twins_are_charged_once_and_get_the_same_bytes(path, tmp_path):
    run_script(
        "import json\n"
        "def twin(i):\n"
        "    stored = release(path, 'same', np.array([i, i]))\n"
        "    Path(sys.argv[2], f'twin{i}').write_bytes(stored.values.tobytes())\n"
        "print(json.dumps(codes([forked(lambda: twin(i)) for i in range(6)])))",
        path,
        tmp_path,
    )
    assert len({(tmp_path / f"twin{i}").read_bytes() for i in range(6)}) == 1
    assert spent(path) == UNIT


KILLS = {
    "after the reservation": "Ledger.commit = die",
    "before the large file is complete": "files.sync_folder = die",
    "before the large file is published": "files.MeasurementFile.publish = die",
    "between the file and the event": "after(files.MeasurementFile, 'publish')",
    "before the transaction ends": "Store.put = die",
    "after the commit": "after(Ledger, 'commit')",
}


@pytest.mark.parametrize("size", [2, 600_000], ids=["in a row", "in a file"])
def test_a_kill_at_any_point_costs_one_charge_and_loses_nothing(path, size):
    ended = run_script(
        "import json, signal\n"
        "import dpquery.measurement.ledger_files as files\n"
        "from dpquery.measurement.ledger_store import Store\n"
        "def die(*args, **settings):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "def after(owner, name):\n"
        "    real = getattr(owner, name)\n"
        "    setattr(owner, name, lambda *a, **s: (real(*a, **s), die()))\n"
        "def doomed(key, patch):\n"
        "    exec(patch)\n"
        "    release(path, key, np.full(int(sys.argv[3]), 1))\n"
        "kills = json.loads(sys.argv[2])\n"
        "print(json.dumps(codes([forked(lambda: doomed(*kill)) for kill in kills.items()])))",
        path,
        json.dumps(KILLS),
        size,
    )
    unreached = {2: 3, 600_000: 1}[size]  # points that this size of measurement does not pass
    assert ended.count(0) == unreached
    assert ended.count(-9) == len(KILLS) - unreached
    assert spent(path) == len(KILLS) * UNIT
    with opened(path) as ledger:
        finished = {key for key, code in zip(KILLS, ended, strict=True) if code == 0}
        finished.add("after the commit")
        for key in KILLS:
            values = release(ledger, key, values=np.full(size, 2)).values
            assert values.tolist() == [1 if key in finished else 2] * size
            assert release(ledger, key).values.tolist() == values.tolist()
        ledger.verify()
    assert spent(path) == len(KILLS) * UNIT
    assert not list(path.parent.rglob("*.pending"))
    assert len(list(path.parent.rglob("*.i64"))) == (len(KILLS) if size > 2 else 0)


def test_the_charge_is_durable_before_the_measurement_exists(path):
    with opened(path) as ledger, ledger.hold("k1"):
        charge(ledger)
        assert spent(path) == UNIT  # as another connection sees it
        with sqlite3.connect(path) as database:
            assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        database.close()
        assert ledger._store._database.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_stored_measurement_comes_back_free_and_with_the_account_of_its_day(path):
    with opened(path) as ledger:
        first = release(ledger)
        release(ledger, "k2", 3 * UNIT)
        again = release(ledger)
    np.testing.assert_array_equal(again.values, VALUES)
    assert again.values.dtype == np.int64
    assert (again.head, again.account) == (first.head, first.account)
    assert again.account.spent == UNIT
    assert spent(path) == 4 * UNIT


@pytest.mark.parametrize("size", [0, 1, 2**19, 2**19 + 1])
def test_measurements_of_any_size_come_back_exactly(path, size):
    values = np.arange(size, dtype=np.int64) - 2**62
    with opened(path) as ledger:
        release(ledger, values=values)
    with opened(path) as ledger:
        np.testing.assert_array_equal(release(ledger).values, values)
        ledger.verify()
    files = list(path.parent.rglob("*.i64"))
    assert len(files) == (values.nbytes > ledger_module.LARGE)
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in files)


def test_a_strided_measurement_is_stored_as_its_values(path):
    values = np.arange(10, dtype=np.int64)[::2]
    with opened(path) as ledger:
        release(ledger, values=values)
        assert release(ledger).values.tolist() == [0, 2, 4, 6, 8]


def test_ten_tenths_fit_and_one_unit_more_does_not(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.register("people", Cap("epsilon", UNIT, epsilon=Fraction(1)))
        for i in range(10):
            assert release(ledger, f"k{i}", UNIT // 10)
        with pytest.raises(
            BudgetExceededError, match=r"asks for epsilon 0\.000000000000000001 and"
        ):
            release(ledger, "one more", 1)
    assert spent(path) == UNIT


def test_a_refusal_says_what_was_asked_and_what_remains_and_charges_nothing(path):
    with opened(path) as ledger:
        release(ledger, units=4 * UNIT)
        with pytest.raises(BudgetExceededError, match="epsilon 7 and 6 of 10 remain"):
            release(ledger, "k2", 7 * UNIT)
    assert spent(path) == 4 * UNIT


def test_a_retry_is_free_three_times_and_then_refused_until_abandoned(path):
    with opened(path) as ledger:
        for _ in range(1 + ledger_module.RETRIES):
            with ledger.hold("k1"):
                assert ledger.lookup("people", key="k1", units=UNIT) is None
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


def test_a_running_key_cannot_be_abandoned(path):
    with opened(path) as ledger, opened(path) as other, ledger.hold("k1"):
        charge(ledger)
        with pytest.raises(LedgerLockedError, match="same release"):
            other.abandon("k1")


def test_a_key_is_bound_to_its_dataset_and_charge(path):
    with opened(path) as ledger:
        release(ledger)
        with pytest.raises(PlanConflictError, match="another dataset or charge"):
            release(ledger, units=2 * UNIT)


def test_steps_out_of_order_are_programming_errors(path):
    with opened(path) as ledger:
        with pytest.raises(ValueError, match="hold"):
            charge(ledger)
        with pytest.raises(ValueError, match="hold"):
            ledger.commit("k1", VALUES)
        with ledger.hold("k1"):
            with pytest.raises(ValueError, match="without a reservation"):
                ledger.commit("k1", VALUES)
            with pytest.raises(ValueError, match="positive"):
                charge(ledger, units=0)
            with pytest.raises(TypeError, match="int64"):
                ledger.commit("k1", VALUES.astype(float))
            charge(ledger)
            first = ledger.commit("k1", VALUES)
            assert ledger.commit("k1", VALUES + 1).values.tolist() == first.values.tolist()
            with pytest.raises(ValueError, match="look its measurement up"):
                charge(ledger)


def test_errors_of_the_caller_pass_through_unchanged(path):
    for error in (OSError("theirs"), sqlite3.OperationalError("theirs")):
        with pytest.raises(type(error), match="theirs"), opened(path) as ledger, ledger.hold("k"):
            raise error


def test_registering_again_is_idempotent_and_another_cap_is_a_conflict(path):
    other = Cap("rho", UNIT, epsilon=Fraction(4), delta=Fraction(1, 10**9))
    with opened(path) as ledger:
        ledger.register("people", CAP)
        assert len(ledger.history()) == 1
        with pytest.raises(
            PlanConflictError,
            match="cap of epsilon 10 and the spec declares epsilon 4 at delta 1e-09",
        ):
            ledger.register("people", other)
        ledger.register("others", other)
        assert ledger.currency("others") == "rho"
        assert [s.account.cap for s in ledger.status()] == [CAP, other]


def test_a_cap_is_changed_on_record_and_in_its_currency_only(path):
    with opened(path) as ledger:
        ledger.change_cap("people", Cap("rho", UNIT))
        ledger.change_cap("people", CAP)
        release(ledger)
        with pytest.raises(PlanConflictError, match="charged in epsilon"):
            ledger.change_cap("people", Cap("rho", UNIT))
        ledger.change_cap("people", Cap("epsilon", UNIT // 2, epsilon=Fraction(1, 2)))
        with pytest.raises(BudgetExceededError, match=r"0 of 0\.5 remain"):
            release(ledger, "k2")
        ledger.register("people", Cap("epsilon", UNIT // 2, epsilon=Fraction(1, 2)))
        kinds = [event.kind for event in ledger.history()]
    assert kinds == ["register", "change-cap", "change-cap", "reserve", "commit", "change-cap"]


def test_an_unregistered_dataset_is_refused(path):
    with opened(path) as ledger, ledger.hold("k"):
        for ask in (
            lambda: charge(ledger, "k", dataset="nobody"),
            lambda: ledger.currency("nobody"),
            lambda: ledger.lookup("nobody", key="k", units=1),
        ):
            with pytest.raises(LedgerError, match="'nobody' is not registered"):
                ask()


def test_only_planning_creates_a_ledger(tmp_path):
    path = tmp_path / "none" / "ledger.db"
    with pytest.raises(LedgerError, match="dpquery plan"), opened(path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_new_ledger_and_its_folders_are_private(tmp_path):
    path = tmp_path / "a" / "b" / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.register("people", CAP)
        release(ledger)
        modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "a").rglob("*")}
    assert {modes.pop("b"), modes.pop("ledger.db.locks")} == {0o700}
    assert {"ledger.db", "ledger.db-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}


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


def test_a_network_file_system_is_refused(path, monkeypatch):
    mounts = path.parent / "mounts"
    escaped = str(path.parent).replace(" ", "\\040")
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/x {escaped} nfs4 rw 0 0\n")
    monkeypatch.setattr(ledger_files, "_MOUNTS", mounts)
    with pytest.raises(LedgerError, match=r"network file system \(nfs4\)"), opened(path):
        pass


def test_the_innermost_and_latest_mount_decides():
    mounts = "a / ext4 rw\nb /home nfs rw\nc /home/a\\040b xfs rw\nd /ho cifs rw\ne /home ext4 rw\n"
    assert file_system(Path("/home/a b/c"), mounts) == "xfs"
    assert file_system(Path("/home/x"), mounts) == "ext4"
    assert file_system(Path("/etc"), mounts) == "ext4"
    assert file_system(Path("/etc"), "") == ""


def test_the_default_path_is_the_users_state_or_as_told(monkeypatch):
    monkeypatch.delenv("DPQUERY_LEDGER", raising=False)
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_path() == Path("/h/.local/state/dpquery/ledger.db")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert default_path() == Path("/s/dpquery/ledger.db")
    monkeypatch.setenv("DPQUERY_LEDGER", "/l/x.db")
    assert default_path() == Path("/l/x.db")


def edit(path, statement, *values):
    """Change the database as a curator with a free hand would: without the triggers."""
    database = sqlite3.connect(path, isolation_level=None)
    triggers = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        database.execute(f"DROP TRIGGER {name}")
    database.execute(statement, values)
    database.close()


def test_rows_can_only_be_added(path):
    with opened(path) as ledger:
        release(ledger)
    database = sqlite3.connect(path)
    for statement in (
        "DELETE FROM events",
        "DELETE FROM measurements",
        "UPDATE events SET seq = seq + 7",
        "UPDATE measurements SET seq = seq + 7",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append only"):
            database.execute(statement)
    database.close()


@pytest.mark.parametrize(
    ("statement", "seq"),
    [
        ("UPDATE events SET body = replace(body, '1000000000000000000', '1') WHERE seq = 2", 2),
        ("UPDATE events SET hash = upper(hash) WHERE seq = 3", 3),
        ("DELETE FROM events WHERE seq = 2", 2),
        ("DELETE FROM events WHERE seq = 1", 1),
        ("INSERT INTO events VALUES (6, '{}', 'x')", 6),
        ("UPDATE events SET seq = 9 WHERE seq = 5", 6),
    ],
)
def test_tampering_is_found_at_the_event(path, statement, seq):
    with opened(path) as ledger:
        release(ledger)
        release(ledger, "k2")
    edit(path, statement)
    seq = 5 if statement.startswith("UPDATE events SET seq") else seq
    with pytest.raises(LedgerError, match=f"damaged at event {seq}:"), opened(path):
        pass


def test_a_sound_hash_over_an_impossible_event_is_found(path):
    with opened(path) as ledger:
        head = ledger.head()
    for kind, fields in [("reserve", {"dataset": "x"}), ("commit", {"key": "k"}), ("nonsense", {})]:
        event, text = ledger_store.seal(head, kind=kind, day="2026-01-01", fields=fields)
        edit(path, "INSERT INTO events VALUES (2, ?, ?)", text, event.head.hash)
        with pytest.raises(LedgerError, match="damaged at event 2:"), opened(path):
            pass
        edit(path, "DELETE FROM events WHERE seq = 2")


@pytest.mark.parametrize("size", [3, 600_000])
def test_a_changed_or_lost_measurement_is_found(path, size):
    with opened(path) as ledger:
        release(ledger, values=np.arange(size))
    for change in ("x", None):
        if size > 3:
            (file,) = path.parent.rglob("*.i64")
            file.write_bytes(b"x") if change else file.unlink()
        elif change:
            edit(path, "UPDATE measurements SET payload = x'00'")
        else:
            edit(path, "DELETE FROM measurements")
        with opened(path) as ledger:
            for use in (ledger.verify, lambda: release(ledger)):
                with pytest.raises(LedgerError):
                    use()


def test_what_is_not_a_ledger_is_refused_in_our_words(path):
    for content in (b"", b"not a database at all" * 100):
        path.write_bytes(content)
        with pytest.raises(LedgerError) as caught, opened(path):
            pass
        assert "file is not a database" not in "".join(traceback.format_exception(caught.value))
    path.unlink()
    path.mkdir(mode=0o700)
    with pytest.raises(LedgerError, match="no regular file"), opened(path):
        pass


def test_a_full_disk_undoes_the_whole_step(path):
    with opened(path) as ledger:
        database = ledger._store._database
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        with ledger.hold("k1"):
            charge(ledger)
            database.execute(f"PRAGMA max_page_count = {pages + 1}")
            with pytest.raises(LedgerError, match="no room") as caught:
                ledger.commit("k1", np.zeros(100_000, np.int64))
            assert "disk is full" not in "".join(traceback.format_exception(caught.value))
            assert [event.kind for event in ledger.history()] == ["register", "reserve"]
            database.execute("PRAGMA max_page_count = 1000000")
            ledger.commit("k1", np.zeros(100_000, np.int64))
        ledger.verify()
    assert spent(path) == UNIT


def test_a_full_disk_under_a_large_file_leaves_nothing(path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device", "CANARY")

    with opened(path) as ledger, ledger.hold("k1"):
        charge(ledger)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(LedgerError, match="No space left") as caught:
                ledger.commit("k1", np.zeros(600_000, np.int64))
        assert "CANARY" not in str(caught.value)
        assert list((path.parent / "ledger.db.measurements").iterdir()) == []
        assert ledger.commit("k1", np.ones(600_000, np.int64)).values[0] == 1


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


def write_release(folder, measurement):
    folder.mkdir()
    named = {"seq": measurement.head.seq, "head": measurement.head.hash}
    (folder / "release.json").write_text(json.dumps({"ledger": named}))
    return folder


def test_an_older_copy_is_found_by_the_releases_it_has_lost(path, tmp_path):
    copy = path.with_name("copy.db")
    with opened(path) as ledger:
        first = write_release(tmp_path / "r1", release(ledger))
    copy.write_bytes(path.read_bytes())  # closed, so all of it is in the one file
    with opened(path) as ledger:
        second = write_release(tmp_path / "r2", release(ledger, "k2"))
        assert ledger.verify([first, second]) == ledger.head()
    copy.chmod(0o600)
    copy.replace(path)
    with opened(path) as ledger:
        assert ledger.verify([first]) == ledger.head()
        with pytest.raises(LedgerError, match="older copy"):
            ledger.verify([first, second])
        release(ledger, "k3")  # the same number of events again, but not the same events
        with pytest.raises(LedgerError, match="older copy"):
            ledger.verify([second])


def test_what_is_no_release_is_not_verified(path, tmp_path):
    with opened(path) as ledger:
        for text in (None, "{}", "[]", '{"ledger": {"seq": "x", "head": 1}}'):
            if text is not None:
                (tmp_path / "release.json").write_text(text)
            with pytest.raises(SpecError, match="not a release"):
                ledger.verify([tmp_path])


def test_the_export_holds_public_facts_and_no_time_of_day(path):
    with opened(path) as ledger:
        release(ledger)
        lines = [json.loads(line) for line in ledger.export()]
    assert [line["kind"] for line in lines] == ["register", "reserve", "commit"]
    assert lines[1]["native"] == {"pure": "1"}
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", line["day"])
        assert not re.search(r"\d:\d\d", json.dumps(line))
