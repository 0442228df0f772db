"""Files from outside, read within bounds, and files replaced whole.

Replace a file whole or not at all: a draft beside it takes its place once it is written.

What a file is by its first bytes, where a program writes the same ones into every such file.

They are a property of the format and of no record. Nothing is read by them: they say in a refusal
what the file is, and repeat nothing of it.
"""

import errno
import filecmp
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpquery.exceptions import DpqueryError, PlanConflictError, SpecError


def read_outside(path: Path, *, most: int) -> bytes:
    """Return the bytes of a regular file of at most `most` bytes.

    Raises:
        OSError: as open_outside, or the file is larger; `strerror` says which.
    """
    descriptor = open_outside(path)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes")
    return content


def open_outside(path: Path) -> int:
    """Return the descriptor of a regular file, open for reading.

    A pipe would be waited for, and a device read without end: neither is.

    Raises:
        OSError: it cannot be opened, or is no regular file; `strerror` says why.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:
        raise OSError(errno.EINVAL, "its name is no path") from None
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISFIFO(kind):
        raise OSError(errno.EINVAL, "it is a pipe; write it to a file first")
    raise OSError(errno.EINVAL, "it is not a regular file")


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


def disk_words(problem: OSError) -> str:
    """Return why something could not be written, in words."""
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
    return "the disk is full" if full else os.strerror(problem.errno or errno.EIO)


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
        reason = disk_words(problem)
        raise DpqueryError(f"cannot write {path}: {reason}; name another place") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes, *, mark: bytes | None = None) -> None:
    """Replace a file by one of this content, as replacing does."""
    with replacing(path, mark=mark) as draft:
        draft.write_bytes(content)


_FIRST_BYTES = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bz2"),
    (b"PK\x03\x04", "zip"),
    (b"PAR1", "Parquet"),
    (b"ARROW1", "Arrow"),
    (b"SQLite format 3\0", "SQLite"),
    (b"\xd0\xcf\x11\xe0", "Office"),
    (b"<stata_dta>", "Stata"),
    (b"$FL2", "SPSS"),
    (b"\x89PNG", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"%PDF-", "PDF"),
)
_PLAN = b'"format": "dpquery.'
_DELIMITERS = ",;\t|"
OTHER_TEXT = "some other text"
_LINES = 5  # of a text that tell whether it is a table


def kind_of(first_bytes: bytes) -> str:
    """Return what a file is that begins so; an empty text for text, and what is not known.

    >>> kind_of(b"PAR1..."), kind_of(b"age,sex")
    ('Parquet', '')
    """
    if first_bytes[8:12] == b"DUCK":
        return "DuckDB"
    return next((kind for mark, kind in _FIRST_BYTES if first_bytes.startswith(mark)), "")


OURS = "a plan or another file of dpquery"


def seems_to_be(content: bytes, name: str) -> str:
    r"""Return in words what a file seems to be by its first bytes and lines, or by its name.

    >>> seems_to_be(b"age;sex\n3;F\n", "persons.txt"), seems_to_be(b"a word", "note.txt")
    ('a CSV file', 'some other text')
    """
    kind, head = kind_of(content), content[:4096]
    if kind:
        return f"{kind} data"
    if not content:
        return "empty"
    if _PLAN in head:
        return OURS
    lines = [line for line in head.decode("latin-1").splitlines() if line.strip()][:_LINES]
    table = any(lines and all(mark in line for line in lines) for mark in _DELIMITERS)
    if name.lower().endswith((".csv", ".tsv")) or (table and not head.lstrip().startswith(b"{")):
        return "a CSV file"
    return "JSON" if head.lstrip()[:1] in (b"{", b"[") else OTHER_TEXT
