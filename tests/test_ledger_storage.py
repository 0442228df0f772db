"""The ledger on disk: private, whole or not at all, and any change to it is found."""

import errno
import json
import os
import sqlite3
import stat
import traceback
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from cli_support import contents, run
from ledgers import CAP, VALUES, charge, edit, opened, release, spent

from dpquery.exceptions import (
    LedgerError,
    SpecError,
)
from dpquery.measurement import ledger_files, ledger_store
from dpquery.measurement.accounting import UNIT
from dpquery.measurement.ledger import Ledger
from dpquery.measurement.ledger_files import default_path, file_system


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


def test_a_mount_is_found_by_any_name():
    for name in ("/mnt/Müller", "/mnt/数据", "/mnt/a\x85b\u2028c", "/mnt/\udcfc"):
        mounts = f"disk / ext4 rw 0 0\nserver:/x {name}\\040\\134x nfs4 rw 0 0\n"
        assert file_system(Path(name + " \\x/ledger.db"), mounts) == "nfs4", name


def test_a_network_disk_whose_name_is_not_ascii_is_refused(tmp_path, monkeypatch):
    place = tmp_path / "Müller"
    mounts = tmp_path / "mounts"
    mounts.write_bytes(os.fsencode(f"disk / ext4 rw 0 0\nserver:/x {place} nfs4 rw 0 0\n"))
    monkeypatch.setattr(ledger_files, "_MOUNTS", mounts)
    path = place / "ledger.db"
    with pytest.raises(LedgerError, match="network"), Ledger.open(path, create=True):
        pass
    assert not place.exists()


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
    real, refused, kind = ledger_files.sync_path, {tmp_path}, code

    def sync(path):
        if path in refused:
            raise OSError(kind, os.strerror(kind))
        real(path)

    monkeypatch.setattr(ledger_files, "sync_path", sync)
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


def test_an_event_rewritten_with_its_own_hash_breaks_the_chain_after_it(path):
    with opened(path) as ledger:
        release(ledger)
        register, reserve, _ = ledger.history()
    cheaper = dict(reserve.fields) | {"units": "1"}
    event, text = ledger_store.seal(register.head, kind="reserve", day=reserve.day, fields=cheaper)
    edit(path, "UPDATE events SET body = ?, hash = ? WHERE seq = 2", text, event.head.hash)
    with pytest.raises(LedgerError, match="damaged at event 3:"), opened(path):
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
            with pytest.raises(LedgerError, match="No space left") as caught:
                ledger.commit("k1", np.zeros(600_000, np.int64), source="OpenDP 0")
        assert "CANARY" not in str(caught.value)
        assert list((path.parent / "ledger.db.measurements").iterdir()) == []
        assert ledger.commit("k1", np.ones(600_000, np.int64), source="OpenDP 0").values[0] == 1


def test_a_failed_step_is_undone_whole_and_its_file_never_outlives_the_next(path, monkeypatch):
    real = ledger_files.MeasurementFile.publish

    def publish_and_fail(file):
        real(file)
        raise OSError(5, "Input/output error")

    large = np.zeros(600_000, np.int64)
    monkeypatch.setattr(ledger_files.MeasurementFile, "publish", publish_and_fail)
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
        with pytest.raises(LedgerError, match="event 5 is another one: two copies"):
            ledger.verify([second])


def test_what_is_no_release_is_not_verified(path, tmp_path):
    with opened(path) as ledger:
        for text in (None, "{}", "[]", '{"ledger": {"seq": "x", "head": 1}}'):
            if text is not None:
                (tmp_path / "release.json").write_text(text)
            with pytest.raises(SpecError, match="not a release"):
                ledger.verify([tmp_path])


def test_events_cut_off_the_end_leave_a_measurement_that_tells(path):
    with opened(path) as ledger:
        release(ledger)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("DROP TRIGGER events_stay")
    database.execute("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)")
    database.close()
    with pytest.raises(LedgerError, match="lost events off its end"), opened(path) as ledger:
        ledger.verify()


def test_the_day_may_go_backwards_and_is_recorded_as_the_clock_has_it(path, monkeypatch):
    days = ["2031-07-01", "1999-12-31", "2026-02-28", "9999-12-31"]

    class Clock:
        @staticmethod
        def now(_):
            return datetime.fromisoformat(f"{days[0]}T23:59:59")

    monkeypatch.setattr(ledger_store, "datetime", Clock)
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


@pytest.mark.parametrize("beside", ["-wal", "-shm", "-journal"])
def test_working_files_that_others_could_change_or_that_are_links_are_refused(path, beside):
    own = path.with_name(path.name + beside)
    own.touch(mode=0o600)
    own.chmod(0o666)
    with pytest.raises(LedgerError, match="can be changed by other users"), opened(path):
        pass
    own.unlink()
    own.symlink_to(path.parent / "elsewhere")
    with pytest.raises(LedgerError, match="is a link"), opened(path):
        pass
    own.unlink()
    with opened(path) as ledger:
        release(ledger)


@pytest.mark.parametrize("beside", [".locks", ".measurements"])
def test_folders_beside_it_that_others_could_change_or_that_are_links_are_refused(path, beside):
    own = path.with_name(path.name + beside)
    own.mkdir(mode=0o700)
    own.chmod(0o777)
    with pytest.raises(LedgerError, match="can be changed by other users"), opened(path):
        pass
    own.rmdir()
    own.symlink_to(path.parent)
    with pytest.raises(LedgerError, match="is a link"), opened(path):
        pass


def test_a_second_name_of_the_ledger_is_refused_under_both(path):
    other = path.with_name("other.db")
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(LedgerError, match="second name"), opened(name):
            pass
    other.unlink()
    assert spent(path) == 0


def test_whatever_the_umask_the_ledger_is_for_its_owner_alone(tmp_path):
    for mask in (0, 0o077):
        path = tmp_path / f"{mask}" / "deep" / "ledger.db"
        before = os.umask(mask)
        try:
            with Ledger.open(path, create=True) as ledger:
                ledger.register("people", CAP)
                release(ledger, values=np.zeros(600_000, np.int64))
                found = [*(tmp_path / f"{mask}").rglob("*"), tmp_path / f"{mask}"]
        finally:
            os.umask(before)
        modes = {p.name: stat.S_IMODE(p.lstat().st_mode) for p in found if p.exists()}
        assert len(modes) > 6
        assert all(mode & 0o077 == 0 for mode in modes.values()), modes


@pytest.mark.parametrize(
    "kind",
    [
        *("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.s3fs", "fuse.unheard-of", "9p"),
        *("afs", "lustre", "gpfs", "ceph", "glusterfs", "virtiofs", "vboxsf", "ocfs2"),
    ],
)
def test_every_file_system_of_another_machine_is_refused(path, monkeypatch, kind):
    mounts = path.parent / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/x {path.parent} {kind} rw 0 0\n")
    monkeypatch.setattr(ledger_files, "_MOUNTS", mounts)
    with pytest.raises(LedgerError, match=f"network file system .{kind}.,"), opened(path):
        pass
    with pytest.raises(LedgerError, match="network"), Ledger.open(path, create=True):
        pass


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "fuseblk", "tmpfs"])
def test_file_systems_of_this_machine_are_used_and_one_in_memory_is_warned_of(
    path, monkeypatch, kind
):
    mounts = path.parent / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nx {path.parent} {kind} rw 0 0\n")
    monkeypatch.setattr(ledger_files, "_MOUNTS", mounts)
    assert spent(path) == 0
    assert ["lies in memory" in risk for risk in ledger_files.risks(path)] == [True] * (
        kind == "tmpfs"
    )


def test_a_ledger_in_a_git_checkout_is_warned_of(path, tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    mounts.write_text("disk / ext4 rw 0 0\n")
    monkeypatch.setattr(ledger_files, "_MOUNTS", mounts)
    before = ledger_files.risks(path)
    # The folder of the tests may be in a checkout itself.
    assert bool(before) == any((own / ".git").exists() for own in path.parents)
    (path.parents[1] / ".git").write_text("gitdir: elsewhere")  # a file in a worktree
    (risk,) = ledger_files.risks(path)
    assert "git checkout" in risk


def test_a_ledger_cannot_be_made_on_a_network_file_system(tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(ledger_files, "_MOUNTS", mounts)
    path = tmp_path / "new" / "ledger.db"
    with pytest.raises(LedgerError, match="network"), Ledger.open(path, create=True):
        pass
    assert not path.exists()


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
        assert done.code == LedgerError.exit_code, (place, done)
        assert "Traceback" not in done.err
    assert "release" not in set(contents(".")) - before


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
        ledger_store._create(tmp_path / "ledger.db")
    (alone,) = seen
    with opened(alone) as ledger:
        ledger.register("people", CAP)
        release(ledger)
