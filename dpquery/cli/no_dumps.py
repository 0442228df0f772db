"""Keep the records in this process's memory from reaching a disk or another process."""

import ctypes
import resource
import sys

_PR_SET_DUMPABLE = 4


def forbid_dumps() -> None:
    """Forbid core dumps, for good; call it before the records are read.

    The limit alone is ignored where the kernel pipes dumps to a program, as many systems do. On
    Linux the process is therefore marked too, which also keeps other processes of the same user
    from reading its memory. What the kernel swaps out is not covered.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
