"""Replace a file whole or not at all: a draft beside it takes its place once it is written."""

import filecmp
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpquery.exceptions import DpqueryError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the draft of a file, to be written in a `with` block; then it takes the file's place.

    The same content only makes the file newer, for Make. If the block fails the file is as it was,
    and nothing of the draft is left.

    Raises:
        DpqueryError: the file cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        if path.exists() and filecmp.cmp(draft, path, shallow=False):
            path.touch()
        else:
            draft.replace(path)
    except OSError as problem:
        reason = os.strerror(problem.errno or 0)
        raise DpqueryError(f"cannot write {path}: {reason}; name another place") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by one of this content, as replacing does."""
    with replacing(path) as draft:
        draft.write_bytes(content)
