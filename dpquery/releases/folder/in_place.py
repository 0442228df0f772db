"""Folders that are whole or not there, whatever happens while they are written.

Everything is written into `.<name>.writing` beside the target, which no other user may enter, and
is on disk before it moves into place in two renames: the earlier folder out, the new one in.
Between the two the target is missing for an instant; if a run dies in it, the next one puts the
earlier folder back. The workshop is locked while it is used, so that two runs wait for each other,
and the next run removes whatever one that died has left.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpquery.measurement.ledger.files import sync_path

NEW, OLD = "new", "old"


@contextmanager
def workshop_beside(directory: Path) -> Iterator[Path]:
    """Lock the folder beside a target in which a release is made; remove it at the end."""
    workshop = directory.with_name(f".{directory.name}.writing")
    descriptor = _lock(workshop)
    try:
        _clear(workshop, directory)
        try:
            yield workshop
        finally:
            _clear(workshop, directory)
            workshop.rmdir()
    finally:
        os.close(descriptor)


def _lock(workshop: Path) -> int:
    """Create the folder if it is missing and lock it, once no other run is using it."""
    while True:
        with suppress(FileExistsError):
            workshop.mkdir(mode=0o700)
        try:
            descriptor = os.open(workshop, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # the run before us has just removed it
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), workshop.stat()):
                return descriptor
        os.close(descriptor)


def _clear(workshop: Path, directory: Path) -> None:
    """Put back an earlier folder that was being replaced, and remove everything else."""
    if (workshop / OLD).exists() and not directory.exists():
        (workshop / OLD).rename(directory)
    for remnant in workshop.iterdir():
        shutil.rmtree(remnant)


def move_in(workshop: Path, directory: Path) -> None:
    """Move what was made in a workshop to its place, and an earlier folder there out of it."""
    if directory.exists():
        directory.rename(workshop / OLD)
    (workshop / NEW).rename(directory)
    sync_path(directory.parent)


def disk_words(problem: OSError) -> str:
    """Return why something could not be written, in words."""
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
    return "the disk is full" if full else os.strerror(problem.errno or errno.EIO)
