"""A step of the ledger is on disk whole or not at all, be the disk full or the ledger long."""

import os
import sqlite3
import stat
import traceback
from datetime import datetime

import numpy as np
import pytest
from ledgers import CAP, VALUES, charge, new_ledger, opened, release, spent

from dpquery.exceptions import LedgerError
from dpquery.measurement.accounting import UNIT, Cap
from dpquery.measurement.ledger import store
from dpquery.measurement.ledger import store as ledger_store


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
