"""Replace a file whole or not at all: a draft beside it takes its place once it is written."""

import filecmp
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpquery.exceptions import DpqueryError, PlanConflictError, SpecError
from dpquery.untrusted.files import open_outside

_HEAD = 1024  # bytes of a file by which it is known


def check_place(path: Path, *, mark: bytes | None = None) -> None:
    """Refuse, before any work is done, a place where no file can be put, or another one stands.

    Args:
        path: of the file to be written.
        mark: what stands in the head of every file of the kind; a file without it that is not
            empty is something else, perhaps a ledger or data. None: files of the kind have no
            mark, and what is there is compared once the file is made.

    Raises:
        SpecError: no file can have this path: its folder is missing, or it is one, or a device.
        PlanConflictError: a file of another kind is in the way.
    """
    check_named(path)
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:  # or a link to nothing
        kind = None
    except OSError as problem:
        raise SpecError(f"{path} cannot be written: {problem.strerror}; name a file") from None
    if kind is not None and not stat.S_ISREG(kind):
        raise SpecError(f"{path} is a folder, a device or a pipe; name a file")
    if kind is not None and mark is not None:
        _check_head(path, mark)
    folder = Path(os.path.realpath(path)).parent
    if not os.access(folder, os.W_OK | os.X_OK):
        reason = "may not be changed" if folder.is_dir() else "is no folder"
        raise SpecError(f"{path} cannot be written: {folder} {reason}; name another place")


def check_named(path: Path) -> None:
    """Refuse the sign for standard output, which would be a file or a folder of that name.

    Raises:
        SpecError: the path is that sign.
    """
    if path == Path("-"):
        raise SpecError(
            "'-' is not taken for standard output: what is written is there whole or not at all; "
            "name a place on the disk, and read it from there"
        )


def _check_head(path: Path, mark: bytes) -> None:
    try:
        descriptor = open_outside(path)
    except OSError as problem:
        raise SpecError(f"{path} cannot be replaced: {problem.strerror}; name a file") from None
    with os.fdopen(descriptor, "rb") as file:
        head = file.read(_HEAD)
    if head and mark not in head:
        raise _in_the_way(path)


def _in_the_way(path: Path) -> PlanConflictError:
    return PlanConflictError(
        f"{path} holds something else, which is kept; name another file, or move that one away"
    )


@contextmanager
def replacing(path: Path, *, mark: bytes | None = None) -> Iterator[Path]:
    """Yield the draft of a file, to be written in a `with` block; then it takes the file's place.

    The same content only makes the file newer, for Make; other content gives way if it has the
    mark, and never if there is none. If the block fails the file is as it was, and nothing of the
    draft is left. Where the path is a link, the file that it names is meant.

    Raises:
        DpqueryError: as check_place, or the file cannot be written.
    """
    check_place(path, mark=mark)
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield draft
        if target.exists() and filecmp.cmp(draft, target, shallow=False):
            target.touch()
        elif mark is None and target.exists():
            raise _in_the_way(path)
        else:
            draft.replace(target)
    except OSError as problem:
        reason = os.strerror(problem.errno or 0)
        raise DpqueryError(f"cannot write {path}: {reason}; name another place") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes, *, mark: bytes | None = None) -> None:
    """Replace a file by one of this content, as replacing does."""
    with replacing(path, mark=mark) as draft:
        draft.write_bytes(content)
