"""A ledger is on disk whole or not at all, where its owner alone can change it and locks hold."""

import errno
import os
import sqlite3
import stat
import traceback
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from ledgers import CAP, VALUES, charge, new_ledger, opened, release, spent
from town import contents, run

from dpquery.exceptions import LedgerError, SpecError
from dpquery.measurement.accounting import UNIT, Cap
from dpquery.measurement.ledger import store
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import default_path, file_system


def test_what_is_not_a_ledger_is_refused_in_our_words(path):
    for content in (b"", b"not a database at all" * 100):
        path.write_bytes(content)
        with pytest.raises(LedgerError) as caught, opened(path):
            pass
        assert "file is not a database" not in "".join(traceback.format_exception(caught.value))
    path.unlink()
    path.mkdir(mode=0o700)
    with pytest.raises(LedgerError, match="is a folder; give the ledger's own path"), opened(path):
        pass


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


def test_the_day_may_go_backwards_and_is_recorded_as_the_clock_has_it(path, monkeypatch):
    days = ["2031-07-01", "1999-12-31", "2026-02-28", "9999-12-31"]

    class Clock:
        @staticmethod
        def now(_):
            return datetime.fromisoformat(f"{days[0]}T23:59:59")

    monkeypatch.setattr(store, "datetime", Clock)
    recorded = []
    while days:
        with opened(path) as ledger:
            release(ledger, days[0])
            recorded.append(days.pop(0))
    with opened(path) as ledger:
        ledger.verify()
        assert [event.day for event in ledger.history()[1::2]] == recorded
        assert [event.day for event in ledger.history()[2::2]] == recorded
    assert spent(path) == 4 * UNIT


def test_a_new_ledger_is_whole_in_its_file_before_its_log_is_closed(tmp_path, monkeypatch):
    """Closing moves what the log holds into the file; on a full disk it fails without a word."""
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


@pytest.mark.slow
def test_a_hundred_thousand_events_are_read_and_added_to(tmp_path):
    path = new_ledger(tmp_path)
    with opened(path) as ledger, ledger._store.writing() as state:
        for number in range(50_000):
            key = f"{number:064x}"
            charge = {"dataset": "people", "key": key, "units": "1", "native": {}, "details": {}}
            ledger._store.append(state, "reserve", charge)
            stored = {"key": key, "sha256": "0" * 64, "size": 1, "source": "x"}
            ledger._store.append(state, "commit", stored)
    with opened(path) as ledger:
        ledger.change_cap("people", Cap("epsilon", 60_000))
        (status,) = ledger.status()
    assert (status.account.spent, status.releases) == (50_000, 50_000)
    assert status.account.remaining == 10_000


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


@pytest.mark.parametrize("beside", ["-wal", "-shm", "-journal", ".locks", ".measurements"])
def test_what_lies_beside_it_is_refused_where_others_could_change_it_or_it_is_a_link(path, beside):
    neighbour = path.with_name(path.name + beside)
    neighbour.mkdir() if beside[0] == "." else neighbour.touch()
    neighbour.chmod(0o777)
    with pytest.raises(LedgerError, match="can be changed by other users"), opened(path):
        pass
    neighbour.rmdir() if beside[0] == "." else neighbour.unlink()
    neighbour.symlink_to(path.parent if beside[0] == "." else path.parent / "elsewhere")
    with pytest.raises(LedgerError, match="is a link"), opened(path):
        pass
    neighbour.unlink()
    with opened(path) as ledger:
        release(ledger)


def test_a_second_name_of_the_ledger_is_refused_under_both(path):
    other = path.with_name("other.db")
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(LedgerError, match="second name"), opened(name):
            pass
    other.unlink()
    assert spent(path) == 0


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
