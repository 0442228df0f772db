"""The ledger charges once, before noise, whatever is killed, raced, edited or full.

It is on disk whole or not at all, and nobody else can change it.
"""

import errno
import json
import os
import re
import sqlite3
import stat
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from ledgers import (
    CAP,
    PANEL,
    PANEL_CAP,
    VALUES,
    WHOLE,
    charge,
    opened,
    price,
    release,
    run_script,
    spent,
    spent_by,
)
from town import SPEC, Done, contents, kinds, ok, run, start
from town import spent as town_spent

from dpquery.exceptions import (
    BudgetExceededError,
    LedgerError,
    LedgerLockedError,
    PlanConflictError,
    SpecError,
)
from dpquery.measurement import curator
from dpquery.measurement.accounting import UNIT
from dpquery.measurement.ledger import ledger as ledger_module
from dpquery.measurement.ledger import store
from dpquery.measurement.ledger.admission import check_price
from dpquery.measurement.ledger.events import Account, Event, Head, LedgerState, cap_fields
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import default_path, file_system

# Run as a script of its own: forked children then inherit no threads.
SCRIPT = """
import json, os, sys
from pathlib import Path
import numpy as np
from ledgers import CAP, charge, codes, forked, opened
from dpquery.measurement.ledger.ledger import Ledger

path = Path(sys.argv[1])
def register(i):
    with Ledger.open(path, create=True) as ledger:
        ledger.register('people', CAP)
def release(i):
    with opened(path) as ledger, ledger.hold(f"k{i}"):
        charge(ledger, f"k{i}", dataset=f"wave-{i % 4}")
        ledger.commit(f"k{i}", np.array([i]), source="OpenDP 0")
"""


def raced(work, path, times):
    """Return how so many processes ended that did the same at once, each with its number."""
    script = f"print(json.dumps(codes([forked({work}, i) for i in range({times})])))"
    return run_script(SCRIPT + script, path)


def test_racing_creators_make_one_ledger(tmp_path, record_property):
    path = tmp_path / "new" / "deep" / "ledger.db"
    assert raced("register", path, 8) == [0] * 8
    record_property("races", 8)
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


def test_a_busy_ledger_is_a_locked_one(path):
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    with opened(path, timeout=0.05) as ledger:
        with pytest.raises(LedgerLockedError, match="another process") as caught:
            ledger.register("others", CAP)
        assert caught.value.exit_code == 75
        assert ledger.head().seq == 1  # reading goes on
    database.close()


def test_of_24_racing_processes_of_four_datasets_ten_pass_the_cap_of_their_parent(
    tmp_path, record_property
):
    path = tmp_path / "state" / "ledger.db"
    roomy = replace(PANEL_CAP, units=9 * UNIT)
    with Ledger.open(path, create=True) as ledger:
        for i in range(4):
            ledger.register(f"wave-{i}", roomy, parent=PANEL)
    ended = raced("release", path, 24)
    assert sorted(ended) == [0] * 10 + [BudgetExceededError.exit_code] * 14
    with opened(path) as ledger:
        charged = spent_by(ledger)
        assert charged.pop("panel") == sum(charged.values()) == 10
        ledger.verify()
    record_property("races", 24)


def test_a_price_is_one_of_the_parents_currency_and_unit_too():
    account, parent = Account("wave-1", PANEL_CAP, parent="panel"), Account("panel", WHOLE)
    check_price(account, price(), parent=parent)
    for other in (replace(WHOLE, currency="rho"), replace(WHOLE, unit="row, replace")):
        with pytest.raises(PlanConflictError, match="changed meanwhile"):
            check_price(account, price(), parent=replace(parent, cap=other))


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


def test_a_ledger_of_another_user_is_refused(path, monkeypatch):
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(LedgerError, match="other users"), opened(path):
        pass


def test_a_ledger_refused_for_its_folder_is_not_left_there(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    path = folder / "ledger.db"
    with pytest.raises(LedgerError, match="other users"), Ledger.open(path, create=True):
        pass
    assert list(folder.iterdir()) == []


OTHERS = "can be changed by other users"
BESIDE = ("-wal", "-shm", "-journal", ".locks", ".measurements")


def put_beside(path, ending, *, link=False):
    """Make a file or folder of the ledger's that all may write to, or a link."""
    beside, is_folder = path.with_name(path.name + ending), ending[0] == "."
    if link:
        beside.symlink_to(path.parent if is_folder else path.parent / "elsewhere")
    else:
        beside.mkdir() if is_folder else beside.touch()
        beside.chmod(0o777)


UNSAFE = {
    "the group may write": (lambda path: path.chmod(0o620), OTHERS),
    "all may write": (lambda path: path.chmod(0o602), OTHERS),
    "the folder of a group": (lambda path: path.parent.chmod(0o770), OTHERS),
    "a folder of all": (lambda path: path.parent.chmod(0o703), OTHERS),
    "a link": (lambda path: path.symlink_to(path.rename(path.with_name("other.db"))), "link"),
    "a link to nowhere": (lambda path: (path.unlink(), path.symlink_to("nowhere")), "link"),
    "two names": (lambda path: path.with_name("other.db").hardlink_to(path), "second name"),
    "empty": (lambda path: path.write_bytes(b""), "."),
    "no database": (lambda path: path.write_bytes(b"not a database at all" * 100), "."),
    "a folder": (lambda path: (path.unlink(), path.mkdir(mode=0o700)), "the ledger's own path"),
}
for ENDING in BESIDE:
    UNSAFE[f"{ENDING} of all"] = (partial(put_beside, ending=ENDING), OTHERS)
    UNSAFE[f"{ENDING} a link"] = (partial(put_beside, ending=ENDING, link=True), "is a link")


@pytest.mark.parametrize(("spoil", "words"), UNSAFE.values(), ids=UNSAFE)
def test_what_others_could_change_or_is_no_ledger_is_refused_in_our_words(path, spoil, words):
    spoil(path)
    for create in (False, True):
        with pytest.raises(LedgerError, match=words) as caught, Ledger.open(path, create=create):
            pass
        assert "file is not a database" not in "".join(traceback.format_exception(caught.value))


def test_the_innermost_and_latest_mount_decides_by_any_name():
    mounts = "a / ext4 rw\nb /home nfs rw\nc /home/a\\040b xfs rw\nd /ho cifs rw\ne /home ext4 rw\n"
    kinds = {"/home/a b/c": "xfs", "/home/x": "ext4", "/etc": "ext4"}
    assert {name: file_system(Path(name), mounts) for name in kinds} == kinds
    assert file_system(Path("/etc"), "") == ""
    for name in ("/mnt/Müller", "/mnt/数据", "/mnt/a\x85b\u2028c", "/mnt/\udcfc"):
        mounts = f"disk / ext4 rw 0 0\nserver:/x {name}\\040\\134x nfs4 rw 0 0\n"
        assert file_system(Path(name + " \\x/ledger.db"), mounts) == "nfs4", name


def mounted(monkeypatch, folder, kind):
    """Have a folder on a file system of a kind, for whoever asks for the mounts."""
    mounts, place = folder.parent / "mounts", str(folder).replace(" ", "\\040")
    mounts.write_bytes(os.fsencode(f"disk / ext4 rw 0 0\nserver:/x {place} {kind} rw 0 0\n"))
    monkeypatch.setattr(store, "_MOUNTS", mounts)


@pytest.mark.parametrize(
    "kind",
    [
        *("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.s3fs", "fuse.unheard-of", "9p"),
        *("afs", "lustre", "gpfs", "ceph", "glusterfs", "virtiofs", "vboxsf", "ocfs2"),
    ],
)
def test_every_file_system_of_another_machine_is_refused(path, monkeypatch, kind):
    mounted(monkeypatch, path.parent, kind)
    with pytest.raises(LedgerError, match=f"network file system .{kind}.,"), opened(path):
        pass
    with pytest.raises(LedgerError, match="network"), Ledger.open(path, create=True):
        pass


@pytest.mark.parametrize("name", ["new", "Müller", "two words"])
def test_no_ledger_is_made_on_a_network_disk_whatever_its_name(tmp_path, monkeypatch, name):
    mounted(monkeypatch, tmp_path / name, "nfs4")
    path = tmp_path / name / "deep" / "ledger.db"
    with pytest.raises(LedgerError, match="network"), Ledger.open(path, create=True):
        pass
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "fuseblk", "tmpfs"])
def test_a_file_system_of_this_machine_is_used_and_one_in_memory_is_warned_of(
    path, monkeypatch, kind
):
    mounted(monkeypatch, path.parent, kind)
    assert spent(path) == 0
    assert ["lies in memory" in risk for risk in store.risks(path)] == [True] * (kind == "tmpfs")


def test_a_ledger_in_a_git_checkout_is_warned_of(path, tmp_path, monkeypatch):
    mounted(monkeypatch, path.parent, "ext4")
    before = store.risks(path)
    # The folder of the tests may be in a checkout itself.
    assert bool(before) == any((folder / ".git").exists() for folder in path.parents)
    (path.parents[1] / ".git").write_text("gitdir: elsewhere")  # a file in a worktree
    (risk,) = store.risks(path)
    assert "git checkout" in risk


def odd_places(folder):
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "a_file").touch()
    (folder / "a_folder").mkdir(mode=0o700)
    os.mkfifo(folder / "a_pipe", 0o600)
    yield from ("loop", "loop/ledger.db", "a_file/ledger.db", "a_folder", "a_pipe", "x" * 300)
    yield from (
        "a_folder/../a_file/",
        "../" * 60 + "dev/null",
        "a_folder/" + "y/" * 3000 + "ledger.db",
    )


@pytest.mark.parametrize(
    "command", ["plan workload.yaml", "release data.csv --epsilon 1", "ledger status"]
)
def test_an_odd_place_for_a_ledger_is_refused_in_our_words(town, command):
    before = set(contents("."))
    for place in odd_places(town):
        done = run(*command.split(), "--ledger", place)
        codes = {LedgerError.exit_code, SpecError.exit_code if len(place) > 255 else None}
        assert done.code in codes, (place, done)
        assert "Traceback" not in done.err
    assert "release" not in set(contents(".")) - before


# A ledger is on disk whole or not at all.


def test_a_full_disk_undoes_the_whole_step(path):
    with opened(path) as ledger:
        database = ledger._store._database
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        with ledger.hold("k1"):
            charge(ledger)
            database.execute(f"PRAGMA max_page_count = {pages + 1}")
            with pytest.raises(LedgerError, match="no room") as caught:
                ledger.commit("k1", np.zeros(100_000, np.int64), source="OpenDP 0")
            assert "disk is full" not in "".join(traceback.format_exception(caught.value))
            assert [event.kind for event in ledger.history()] == ["register", "reserve"]
            database.execute("PRAGMA max_page_count = 1000000")
            ledger.commit("k1", np.zeros(100_000, np.int64), source="OpenDP 0")
        ledger.verify()
    assert spent(path) == UNIT


def test_a_full_disk_under_a_large_file_leaves_nothing(path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device", "CANARY")

    with opened(path) as ledger, ledger.hold("k1"):
        charge(ledger)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(LedgerError, match="there is no room") as caught:
                ledger.commit("k1", np.zeros(600_000, np.int64), source="OpenDP 0")
        assert "CANARY" not in str(caught.value)
        assert list((path.parent / "ledger.db.measurements").iterdir()) == []
        assert ledger.commit("k1", np.ones(600_000, np.int64), source="OpenDP 0").values[0] == 1


def test_a_failed_step_is_undone_whole_and_its_file_never_outlives_the_next(path, monkeypatch):
    real = store.MeasurementFile.publish

    def publish_and_fail(file):
        real(file)
        raise OSError(5, "Input/output error")

    large = np.zeros(600_000, np.int64)
    monkeypatch.setattr(store.MeasurementFile, "publish", publish_and_fail)
    with opened(path) as ledger:
        for go_on in (lambda: charge(ledger), lambda: None):
            with ledger.hold("k1"):
                charge(ledger)
                with pytest.raises(LedgerError, match="Input/output"):
                    ledger.commit("k1", large, source="OpenDP 0")
                assert "commit" not in [event.kind for event in ledger.history()]
                assert len(list(path.parent.rglob("*.i64"))) == 1
                go_on()
        ledger.abandon("k1")
        assert list(path.parent.rglob("*.i64")) == []


def test_an_uncommitted_draw_is_removed_when_its_run_is_begun_again(path):
    with opened(path) as ledger, ledger.hold("k1"):
        charge(ledger)
        (entry,) = ledger._store.read()[0].entries.values()
        file = ledger._file(entry)
        file.write_pending(VALUES)
        file.publish()
        charge(ledger)
        assert list(path.parent.rglob("*.i64")) == []


def test_a_large_file_and_its_name_are_durable_before_the_commit(path, monkeypatch):
    synced = []
    real = os.fsync

    def watched(descriptor):
        with opened(path) as other:
            synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), other.head().seq))
        real(descriptor)

    with opened(path) as ledger, ledger.hold("k1"):
        charge(ledger)
        monkeypatch.setattr(os, "fsync", watched)
        ledger.commit("k1", np.zeros(600_000, np.int64), source="OpenDP 0")
    # The new folder's name, the file, its pending name, its name.
    assert synced == [(True, 2), (False, 2), (True, 2), (True, 2)]


def test_a_new_ledger_is_whole_in_its_file_before_its_log_is_closed(tmp_path, monkeypatch):
    """Closing moves what the log holds into the file; on a full disk it fails without a word."""
    with monkeypatch.context() as patched:
        patched.setattr(store, "_SCHEMA", "no statement")
        with pytest.raises(sqlite3.OperationalError):
            store._create(tmp_path / "ledger.db")
    assert list(tmp_path.iterdir()) == []
    seen = []

    class Watched(sqlite3.Connection):
        def close(self):
            (draft,) = tmp_path.glob("*.new")
            alone = tmp_path / "alone" / "ledger.db"
            alone.parent.mkdir(mode=0o700)
            alone.write_bytes(draft.read_bytes())
            alone.chmod(0o600)
            seen.append(alone)
            super().close()

    real = sqlite3.connect
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", lambda *a, **s: real(*a, **s, factory=Watched))
        store._create(tmp_path / "ledger.db")
    (alone,) = seen
    with opened(alone) as ledger:
        ledger.register("people", CAP)
        release(ledger)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EINVAL])
def test_a_folder_that_was_there_need_not_be_readable(tmp_path, monkeypatch, code):
    """Where names can be made in a folder but not listed, or it cannot be synchronised."""
    real, refused, kind = store.sync_path, {tmp_path}, code

    def sync(path):
        if path in refused:
            raise OSError(kind, os.strerror(kind))
        real(path)

    monkeypatch.setattr(store, "sync_path", sync)
    with Ledger.open(tmp_path / "a" / "b" / "ledger.db", create=True):
        pass
    refused = {tmp_path / "c"}  # a folder just made, whose names must be durable
    with pytest.raises(LedgerError), Ledger.open(tmp_path / "c/b/ledger.db", create=True):
        pass
    refused, kind = {tmp_path}, errno.EIO
    with pytest.raises(LedgerError), Ledger.open(tmp_path / "d" / "ledger.db", create=True):
        pass


def test_the_default_path_is_the_users_state_or_as_told(monkeypatch):
    monkeypatch.delenv("DPQUERY_LEDGER", raising=False)
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_path() == Path("/h/.local/state/dpquery/ledger.db")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert default_path() == Path("/s/dpquery/ledger.db")
    monkeypatch.setenv("DPQUERY_LEDGER", "/l/x.db")
    assert default_path() == Path("/l/x.db")
