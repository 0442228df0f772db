"""Replace a file whole or not at all: a draft beside it takes its place once it is written."""

import filecmp
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpquery.exceptions import DpqueryError, PlanConflictError, SpecError
from dpquery.spec.outside import open_outside

_HEAD = 1024  # bytes of a file by which it is known


def check_place(path: Path, *, mark: bytes | None = None) -> None:
    """Refuse, before any work is done, a place where no file can be put, or another one stands.

    Args:
        path: of the file to be written.
        mark: what stands in the head of every file of the kind; a file without it that is not
            empty is something else, perhaps a ledger or data. None: the caller asks by itself.

    Raises:
        SpecError: no file can have this path: it is a folder, a device or a pipe.
        PlanConflictError: a file of another kind is in the way.
    """
    if path.is_dir() or path.name in ("", ".."):
        raise SpecError(f"{path} is a folder; name a file")
    if not os.path.lexists(path):
        return
    try:
        descriptor = open_outside(path)
    except FileNotFoundError:  # a link to nothing
        return
    except OSError as problem:
        raise SpecError(f"{path} cannot be replaced: {problem.strerror}; name a file") from None
    with os.fdopen(descriptor, "rb") as file:
        head = file.read(_HEAD)
    if mark is not None and head and mark not in head:
        raise PlanConflictError(
            f"{path} holds something else, which would be lost; move it away or name another file"
        )


@contextmanager
def replacing(path: Path, *, mark: bytes | None = None) -> Iterator[Path]:
    """Yield the draft of a file, to be written in a `with` block; then it takes the file's place.

    The same content only makes the file newer, for Make. If the block fails the file is as it was,
    and nothing of the draft is left. Where the path is a link, the file that it names is meant.

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
