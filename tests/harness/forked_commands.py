"""Commands in processes of their own, without the second that importing takes each of them.

A server process imports everything once and forks for every job: a fork is a process like any
other, with its own files, locks and end. It runs with failing_calls.c preloaded where there is a C
compiler, so that the n-th call which changes the disk can be made to fail, or to be the last.
"""

import atexit
import contextlib
import ctypes
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

COUNT, KILL, FAIL_ONCE, FAIL_FROM = 1, 2, 3, 4
HERE = Path(__file__).resolve().parent
# What a job may use, and what takes time and is the same for all of them.
WARM = """
import contextlib, gc, io, sys
import dpquery.cli.show_release, dpquery.cli.show_plan, dpquery.commands.release
import dpquery.commands.answer
import opendp.prelude, numpy, pandas, pyarrow.csv, pyarrow.parquet, pyarrow.pandas_compat
import ledgers, rich.console, rich.status, rich.table, town
from dpquery.cli.app import main
from dpquery.reconstruction.intervals import laplace_quantile
laplace_quantile(numpy.ones(1), numpy.ones(1), 0.95)
for command in ("release x --epsilon 1 --plan /nowhere", "ledger status --ledger /nowhere"):
    sys.argv = ["dpquery", *command.split()]
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        main()
gc.freeze()
"""


@dataclass(frozen=True)
class Ended:
    """How a job ended: its exit code (negative: a signal), what it said, the calls it made."""

    code: int
    out: str
    err: str
    names: tuple[str, ...]


class Forks:
    """A server of forked processes, for a `with` block."""

    def __init__(self, library):
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE)])
        if library is not None:
            environment |= {"LD_PRELOAD": str(library)}
        self._server = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, str(library or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def run(self, *jobs, together=False, kill_after=None):
        """Run jobs and say how each ended, in the order given.

        A job is a dict: "folder" to run in; "arguments" of the command line, or "code" to run;
        "before", code that is not counted; "arm", a (mode, number, errno); "environment".
        `kill_after`: seconds after which they are killed.
        """
        request = {"jobs": jobs, "together": together, "kill_after": kill_after}
        self._server.stdin.write(json.dumps(request, default=str) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, "the server of forked processes has ended"
        return [Ended(**fields) for fields in json.loads(answer)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.communicate()


@functools.cache
def failing_calls():
    """The compiled library that makes calls fail, or None where no C compiler works."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    room = tempfile.TemporaryDirectory(prefix="failing_calls")
    atexit.register(room.cleanup)
    library = Path(room.name) / "failing_calls.so"
    source = HERE / "failing_calls.c"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        ctypes.CDLL(library)
    except (OSError, subprocess.CalledProcessError):
        return None  # a compiler that does not work is none
    return library


def serve(library):
    calls = ctypes.CDLL(library) if library else None
    if calls is not None:
        calls.call_name.restype = ctypes.c_char_p
        calls.calls_made.restype = ctypes.c_long
        calls.arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int]
    for line in sys.stdin:
        request = json.loads(line)
        waves = [request["jobs"]] if request["together"] else [[job] for job in request["jobs"]]
        ended = [
            job_end for wave in waves for job_end in run_wave(wave, calls, request["kill_after"])
        ]
        print(json.dumps(ended), flush=True)


def run_wave(jobs, calls, kill_after):
    with tempfile.TemporaryDirectory() as folder:
        said = [(f"{folder}/{i}.out", f"{folder}/{i}.err") for i in range(len(jobs))]
        for path in (side for pair in said for side in pair):
            Path(path).touch()  # a job may be killed before it opens them
        pids = [fork(job, *files, calls) for job, files in zip(jobs, said, strict=True)]
        if kill_after is not None:
            time.sleep(kill_after)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        call_count = calls.calls_made() if calls and any("arm" in job for job in jobs) else 0
        names = [calls.call_name(number).decode() for number in range(1, call_count + 1)]
        return [
            {"code": code, "out": read(out), "err": read(err), "names": names}
            for code, (out, err) in zip(codes, said, strict=True)
        ]


def read(path):
    return Path(path).read_text(errors="replace")


def fork(job, out, err, calls):
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.environ |= job.get("environment", {})
        os.environ.pop("LD_PRELOAD", None)
        os.chdir(job["folder"])
        for descriptor, path in ((1, out), (2, err)):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        code = work(job, calls)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def work(job, calls):
    from dpquery.cli.app import main

    scope = {}
    exec(job.get("before", ""), scope)  # noqa: S102 - text of a test
    sys.argv = ["dpquery", *job.get("arguments", [])]
    if "arm" in job and calls is not None:
        calls.arm(*job["arm"])
    try:
        if "code" in job:
            exec(job["code"], scope)  # noqa: S102 - text of a test
        else:
            main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        if "arm" in job and calls is not None:
            calls.disarm()
    return 0


if __name__ == "__main__":
    library = sys.argv[1]
    exec(WARM, {})  # noqa: S102 - text of this file
    from town import quickly

    with quickly():
        serve(library)
