"""Files from outside: regular ones, and no more of them than can be held."""

import errno
import os
import stat
from pathlib import Path


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
