"""Where the ledger lies on disk: a private folder of this user, on a disk of this machine.

Beside the database lie one lock file a key and the measurements too large for a row.
"""

import errno
import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path

from dpquery.arrays import Ints
from dpquery.exceptions import LedgerError, LedgerLockedError

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
        raise LedgerError(f"{place} is a link or no regular file; give the ledger's own path")
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
