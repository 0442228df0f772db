"""The ledger's file: SQLite, its folder and locks, and the parts of a run.

Beside the database lie one lock file a key and the measurements too large for a row.

Where a later step follows from the noisy values of an earlier one, a run that ends between the two
must not draw the earlier one again: how it ended may depend on what was drawn, and drawing until a
run succeeds would be another mechanism than the one charged. So every part is made durable before
anything is computed from it, and the run that continues the reservation begins where it ended.

No event of the ledger names a part, so every part seals itself: it ends in a digest of its file's
name, which holds its key, reservation and number, of the seal of the part before, and of its
values. A part that was damaged, cut, or put in the place of another is refused. The seal has no
key: it finds accidents, and the ledger's folder is its owner's alone. A part that is lost with its
file is drawn again, which is harmless as long as the loss does not depend on what was drawn.
"""

import errno
import fcntl
import hashlib
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, date, datetime
from itertools import count, takewhile
from pathlib import Path

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import DpqueryError, LedgerError, LedgerLockedError
from dpquery.measurement.ledger.events import JSON, Event, EventKind, LedgerState, read_chain, seal

# SQLite's write-ahead log and flock both fail silently on these.
_NETWORK = frozenset(
    {"9p", "acfs", "afp", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "dfs", "glusterfs"}
    | {"gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2"}
    | {"smb3", "smbfs", "vboxsf", "virtiofs", "prl_fs", "vmhgfs"}
)
# Through FUSE come both kinds: of these it is known that the files are on this machine.
_LOCAL_FUSE = frozenset(
    {"fuse.bindfs", "fuse.cryfs", "fuse.encfs", "fuse.fuse-overlayfs", "fuse.gocryptfs"}
    | {"fuse.mergerfs", "fuse.ntfs-3g", "fuse.veracrypt", "fuse.zfs"}
)
_IN_MEMORY = frozenset({"ramfs", "tmpfs"})
_MOUNTS = Path("/proc/self/mounts")
_POLL = 0.05
# What may lie beside the ledger: SQLite's working files, and folders of ours.
_BESIDE = {
    "-wal": stat.S_ISREG,
    "-shm": stat.S_ISREG,
    "-journal": stat.S_ISREG,
    ".locks": stat.S_ISDIR,
    ".measurements": stat.S_ISDIR,
}


def default_path() -> Path:
    """Return $DPQUERY_LEDGER, or dpquery/ledger.db in the user's state directory."""
    if named := os.environ.get("DPQUERY_LEDGER"):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "state"
    return base / "dpquery" / "ledger.db"


def make_private_folder(folder: Path) -> None:
    """Create a folder and the parents it lacks, durably, each for this user alone."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for part in reversed(missing):
        part.mkdir(mode=0o700, exist_ok=True)
        try:
            sync_path(part.parent)
        except OSError as error:
            # Of the folder that was there, not ours perhaps, only entering need be allowed.
            if part.parent in missing or error.errno not in {errno.EACCES, errno.EINVAL}:
                raise


def check_safe(path: Path) -> None:
    """Refuse a ledger that others could change.

    Raises:
        LedgerError: says what is wrong with the file, with what lies beside it, or with its folder,
            and what to do.
    """
    check_safe_folder(path.parent)
    _check_owner(path, path.lstat(), kind=stat.S_ISREG)  # a link is none
    for ending, kind in _BESIDE.items():
        beside = path.with_name(path.name + ending)
        with suppress(FileNotFoundError):  # SQLite removes its own when the last run ends
            _check_owner(beside, beside.lstat(), kind=kind)


def check_safe_folder(folder: Path) -> None:
    """Refuse a folder in which others could change a ledger; it may be reached through a link."""
    _check_owner(folder, folder.stat(), kind=stat.S_ISDIR)


def check_local(path: Path) -> None:
    """Refuse a place on a network file system, whether there is a ledger yet or not.

    Raises:
        LedgerError: says which file system it is, and what to do.
    """
    if _is_network(mounted := file_system(_real(path), _mounts())):
        raise LedgerError(
            f"{path} lies on a network file system ({mounted}), where locks cannot be relied on; "
            "keep the ledger on a local disk and set DPQUERY_LEDGER to it"
        )


def _check_owner(place: Path, status: os.stat_result, *, kind: Callable[[int], bool]) -> None:
    """Refuse what is of another kind than asked for, or can be changed by another user."""
    if not kind(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a link or no regular file"
        raise LedgerError(f"{place} is {what}; give the ledger's own path, such as ledger.db in it")
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise LedgerError(
            f"{place} can be changed by other users; keep the ledger in a folder of your own "
            "(chmod 700) and the file to yourself (chmod 600)"
        )
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        # SQLite names its write-ahead log after the path: two names are two logs of one database.
        raise LedgerError(
            f"{place} has a second name (a hard link), by which it could be changed unseen; remove "
            "that name, or make it a copy"
        )


def risks(path: Path) -> list[str]:
    """Return warnings: what could make a ledger at this place get lost or be forked."""
    warnings, place = [], _real(path)
    if file_system(place, _mounts()) in _IN_MEMORY:
        warnings.append(
            f"{path} lies in memory: when the machine restarts it is gone, and what was spent is "
            "forgotten; set DPQUERY_LEDGER to a path on a disk"
        )
    if any((parent / ".git").exists() for parent in place.parents):
        warnings.append(
            f"{path} lies in a git checkout: never commit it, since every branch would have a "
            "budget of its own; set DPQUERY_LEDGER to a path outside, if it is to be kept"
        )
    return warnings


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # a loop of links is no error here: it is found as a link


def _is_network(kind: str) -> bool:
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def _mounts() -> str:
    return os.fsdecode(_MOUNTS.read_bytes()) if _MOUNTS.exists() else ""


def file_system(path: Path, mounts: str) -> str:
    """Return the type of the file system a path lies on, from the text of /proc/self/mounts.

    >>> file_system(Path("/home/a"), "disk / ext4 rw 0 0" + chr(10) + "srv:/h /home nfs4 rw 0 0")
    'nfs4'
    """
    best, kind = Path(), ""
    for line in mounts.split("\n"):  # other ends of lines can be part of a name
        _, point, listed_kind, *_ = [*line.split(" "), "", "", ""]
        # A space is written \040; what is not ASCII stands as it is.
        place = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point))
        if path.is_relative_to(place) and len(place.parts) >= len(best.parts):
            best, kind = place, listed_kind
    return kind


def lock_key(ledger: Path, key: str, *, timeout: float) -> int:
    """Lock one key across processes; return the descriptor whose closing unlocks it.

    The lock file stays: removing it would let two processes hold two files of one name.

    Raises:
        LedgerLockedError: another process held it for `timeout` seconds.
    """
    file = _lock_file(ledger, key)
    make_private_folder(file.parent)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + timeout
    while not _try_lock(descriptor):
        if time.monotonic() >= deadline:
            os.close(descriptor)
            raise LedgerLockedError(
                "another process is making this same release; try again when it is done"
            )
        time.sleep(_POLL)
    return descriptor


def measured_after(ledger: Path, key: str, day: str) -> int:
    """Return when the run began that measured a key, in nanoseconds of the epoch.

    The time of its lock, which the run that charges or goes on sets; of a ledger that was copied,
    whose locks are newer or not there, the end of the day on record.
    """
    days = date.fromisoformat(day).toordinal() + 1 - date(1970, 1, 1).toordinal()
    at_most = days * 24 * 3600 * 10**9
    with suppress(FileNotFoundError):
        return min(at_most, _lock_file(ledger, key).stat().st_mtime_ns)
    return at_most


def _lock_file(ledger: Path, key: str) -> Path:
    return ledger.with_name(ledger.name + ".locks") / _digest(key)


class MeasurementFile:
    """The file of a large measurement: pending until its commit, then final.

    Its name comes from the key and its reservation, so a run that continues the reservation finds
    and removes what a killed run left: a draw that was never committed must never be seen. A
    measurement made in several steps has a file for each of its parts beside it.
    """

    def __init__(self, ledger: Path, *, key: str, reserved: int, part: int | None = None) -> None:
        """Name the files; touches nothing."""
        self._folder = ledger.with_name(ledger.name + ".measurements")
        name = f"{_digest(key)}-{reserved}" + ("" if part is None else f"-{part}")
        self._final = self._folder / f"{name}.i64"
        self._pending = self._final.with_suffix(".pending")

    @property
    def name(self) -> str:
        """Name the final file, without its folder."""
        return self._final.name

    def write_pending(self, values: Ints) -> None:
        """Write raw little-endian int64 durably, under the pending name."""
        make_private_folder(self._folder)
        self.remove()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(self._pending, flags, 0o600), "wb") as file:
                file.write(values.data)
                file.flush()
                os.fsync(file.fileno())
            sync_path(self._folder)
        except BaseException:
            self.remove()
            raise

    def publish(self) -> None:
        """Give the pending file its final name, durably."""
        self._pending.replace(self._final)
        sync_path(self._folder)

    def exists(self) -> bool:
        """Return whether the file is final."""
        return self._final.exists()

    def read(self) -> bytes:
        """Return the bytes of the final file."""
        return self._final.read_bytes()

    def remove(self) -> None:
        """Remove both files where they exist."""
        self._pending.unlink(missing_ok=True)
        self._final.unlink(missing_ok=True)


def sync_path(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:40]


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
                f"there is no ledger at {path}; check the path in --ledger or DPQUERY_LEDGER, or, "
                "if there was none yet, make one with `dpquery plan`"
            )
        check_safe(path)
        place = f"{path.absolute().as_uri()}?mode=rw"
        database = sqlite3.connect(place, uri=True, timeout=timeout, isolation_level=None)
    with closing(database):
        with scrubbed(path):
            database.execute("PRAGMA synchronous = FULL")
            (application,) = database.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION:
            found = "is no ledger of this version of dpquery" if application else "holds no ledger"
            raise LedgerError(
                f"{path} {found}; if it was one, restore a backup, since a new one would not know "
                "what was spent; else name another with --ledger"
            )
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
            case sqlite3.SQLITE_NOTADB:
                failure = LedgerError(
                    f"{path} is no ledger (an SQLite file); check DPQUERY_LEDGER or --ledger, or "
                    "restore a backup if it was one"
                )
            case _:
                failure = _damaged(path)
    except UnicodeDecodeError:  # SQLite quotes what is damaged, and Python cannot read that
        failure = _damaged(path)
    except OSError as error:
        failure = LedgerError(
            f"the ledger at {path} cannot be used: {error.strerror}; make its folder, check the "
            "folder's permissions, or name another with --ledger or DPQUERY_LEDGER"
        )
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            failure = _no_room(path)
    else:
        return
    raise failure from None


def _damaged(path: Path) -> LedgerError:
    return LedgerError(
        f"the ledger at {path} is damaged; restore a backup, and do not start a new ledger: it "
        "would not know what was spent"
    )


def _no_room(path: Path) -> LedgerError:
    return LedgerError(f"there is no room to write the ledger at {path}; free some")


def _is_full(path: Path) -> bool:
    """Return whether the disk has no room for a page of the ledger and of what lies beside it."""
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LEAST_ROOM


_SEAL = hashlib.sha256().digest_size


class PartialMeasurement:
    """The parts of one reserved measurement, in order, each a file of its own.

    Args:
        ledger: the ledger's path, beside which the files lie.
        file: of the part of a number.
    """

    def __init__(self, ledger: Path, file: Callable[[int], MeasurementFile]) -> None:
        """Name the files; reads nothing."""
        self._ledger, self._file = ledger, file
        self._count, self._seal = 0, b""

    def parts(self) -> list[Ints]:
        """Return the parts that are durable; LedgerError where one is not as it was written."""
        self._seal = b""
        parts: list[Ints] = []
        with scrubbed(self._ledger):
            while (file := self._file(len(parts))).exists():
                content = file.read()
                values, seal = content[:-_SEAL], content[-_SEAL:]
                if len(values) % 8 or seal != self._sealing(file, values):
                    raise LedgerError(
                        f"the parts of an unfinished measurement beside {self._ledger} are damaged,"
                        " or begun by an earlier version; `dpquery ledger status` names it, and "
                        "`dpquery ledger abandon` gives it up: its charge stays spent, and a new "
                        "run pays anew"
                    )
                self._seal = seal
                parts.append(np.frombuffer(values, dtype="<i8").astype(np.int64))
        self._count = len(parts)
        return parts

    def append(self, values: Ints) -> None:
        """Write the next part durably, behind those that are there."""
        with scrubbed(self._ledger):
            file, words = self._file(self._count), np.ascontiguousarray(values, dtype="<i8")
            seal = self._sealing(file, words.tobytes())
            file.write_pending(np.concatenate([words, np.frombuffer(seal, dtype="<i8")]))
            file.publish()
        self._count, self._seal = self._count + 1, seal

    def clear(self) -> None:
        """Remove all parts, the last first, so that those left are always the first ones.

        They are not read: what is damaged can be given up too.
        """
        with scrubbed(self._ledger):
            numbers = takewhile(lambda number: self._file(number).exists(), count())
            for number in reversed(list(numbers)):
                self._file(number).remove()
        self._count, self._seal = 0, b""

    def _sealing(self, file: MeasurementFile, values: bytes) -> bytes:
        """Return the seal of a part that follows those read and written so far."""
        named = f"{file.name} {len(values)} ".encode()
        return hashlib.sha256(named + self._seal + values).digest()
