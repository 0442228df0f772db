"""The ledger's SQLite database: created atomically, changed by transactions, append-only."""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from dpquery.exceptions import DpqueryError, LedgerError, LedgerLockedError
from dpquery.measurement.ledger.events import JSON, Event, EventKind, LedgerState, read_chain, seal
from dpquery.measurement.ledger.files import (
    check_local,
    check_safe,
    check_safe_folder,
    make_private_folder,
)

_APPLICATION = 0x64707131  # "dpq1": another database, or another version, is not taken for ours
_LEAST_ROOM = 2**16  # bytes: SQLite's shared memory takes 32 KiB
_SCHEMA = f"""
PRAGMA synchronous = EXTRA;
PRAGMA application_id = {_APPLICATION};
CREATE TABLE events (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE TABLE measurements (seq INTEGER PRIMARY KEY, payload BLOB NOT NULL) STRICT;
CREATE TRIGGER events_keep BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TRIGGER events_stay BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TRIGGER measurements_keep BEFORE UPDATE ON measurements
    BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TRIGGER measurements_stay BEFORE DELETE ON measurements
    BEGIN SELECT RAISE(ABORT, 'append only'); END;
"""


class Store:
    """An open database of events and measurements; use `open_store`."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        """Wrap an open database."""
        self.path = path
        self._database = database

    def read(self) -> tuple[LedgerState, list[Event]]:
        """Return the state and all events; LedgerError where the chain does not hold."""
        with scrubbed(self.path):
            # In this order: what another process commits meanwhile has its event in the last.
            (counted,) = self._database.execute("PRAGMA user_version").fetchone()
            stored = {seq for (seq,) in self._database.execute("SELECT seq FROM measurements")}
            state, events = read_chain(
                self._database.execute("SELECT seq, body, hash FROM events ORDER BY seq")
            )
        commits = {event.head.seq for event in events if event.kind == "commit"}
        if counted > state.head.seq or not stored <= commits:
            raise LedgerError(
                f"the ledger at {self.path} has lost events off its end; restore a backup"
            )
        return state, events

    @contextmanager
    def writing(self) -> Iterator[LedgerState]:
        """Yield the verified state inside a write transaction; commit it, or undo it whole."""
        with scrubbed(self.path):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self.read()[0]
                self._database.execute("COMMIT")
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")

    def append(self, state: LedgerState, kind: EventKind, fields: Mapping[str, JSON]) -> None:
        """Add one event to the chain and to the state; the day is the finest time on record."""
        day = datetime.now(UTC).date().isoformat()
        event, text = seal(state.head, kind=kind, day=day, fields=fields)
        state.apply(event)
        row = (event.head.seq, text, event.head.hash)
        self._database.execute("INSERT INTO events VALUES (?, ?, ?)", row)
        # The chain alone would not show that its end is missing.
        self._database.execute(f"PRAGMA user_version = {event.head.seq:d}")

    def put(self, seq: int, payload: bytes) -> None:
        """Store the measurement of the commit event `seq`."""
        self._database.execute("INSERT INTO measurements VALUES (?, ?)", (seq, payload))

    def get(self, seq: int) -> bytes | None:
        """Return the measurement of the commit event `seq`, or None if it has no row."""
        with scrubbed(self.path):
            query = "SELECT payload FROM measurements WHERE seq = ?"
            row: tuple[object] | None = self._database.execute(query, (seq,)).fetchone()
        if row is None:
            return None
        # A damaged page can make of a blob any other type, whatever the schema says.
        return row[0] if isinstance(row[0], bytes) else b""


@contextmanager
def open_store(path: Path, *, create: bool, timeout: float) -> Iterator[Store]:
    """Open the database for a `with` block; see `Ledger.open`."""
    with scrubbed(path):
        check_local(path)
        if create and not path.exists():
            _create(path)
        if not path.exists() and not path.is_symlink():
            raise LedgerError(
                f"there is no ledger at {path}; `dpquery plan` makes one and registers the "
                "dataset, or set DPQUERY_LEDGER to the ledger's path"
            )
        check_safe(path)
        place = f"{path.absolute().as_uri()}?mode=rw"
        database = sqlite3.connect(place, uri=True, timeout=timeout, isolation_level=None)
    with closing(database):
        with scrubbed(path):
            database.execute("PRAGMA synchronous = FULL")
            (application,) = database.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION:
            raise LedgerError(f"{path} is not a ledger of this version of dpquery")
        yield Store(path, database)


def _create(path: Path) -> None:
    """Create an empty ledger atomically: write it under another name and move it into place.

    Of two processes that do this at once, one wins and the other uses the winner's. A second name
    for the same file is not even made for an instant: see `check_safe`.
    """
    make_private_folder(path.parent)
    check_safe_folder(path.parent)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if os.path.lexists(path):
            return
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)
        try:
            _write_empty(draft)
            draft.rename(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_empty(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(_SCHEMA)
        # Last: had the schema gone through the log, closing would have to move it into the file,
        # and where there is no room that fails without a word.
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise LedgerError(f"a ledger cannot be made at {path.parent}; check the disk")


@contextmanager
def scrubbed(path: Path) -> Iterator[None]:
    """Raise errors of SQLite and the system as a DpqueryError without their text."""
    failure: DpqueryError
    try:
        yield
    except sqlite3.Error as error:
        match getattr(error, "sqlite_errorcode", 0) & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                failure = LedgerLockedError(
                    f"another process holds the ledger at {path}; try again when it is done"
                )
            case sqlite3.SQLITE_FULL:
                failure = _no_room(path)
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_IOERR if (
                _is_full(path)
            ):  # SQLite says so of its log alone, not of the files that it maps into memory
                failure = _no_room(path)
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_IOERR:
                failure = LedgerError(
                    f"the ledger at {path} cannot be written; check the disk and its permissions"
                )
            case _:
                failure = LedgerError(f"the ledger at {path} is damaged; restore a backup")
    except UnicodeDecodeError:  # SQLite quotes what is damaged, and Python cannot read that
        failure = LedgerError(f"the ledger at {path} is damaged; restore a backup")
    except OSError as error:
        failure = LedgerError(f"the ledger at {path} cannot be used: {error.strerror}")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            failure = _no_room(path)
    else:
        return
    raise failure from None


def _no_room(path: Path) -> LedgerError:
    return LedgerError(f"there is no room to write the ledger at {path}; free some")


def _is_full(path: Path) -> bool:
    """Return whether the disk has no room for a page of the ledger and of what lies beside it."""
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LEAST_ROOM
