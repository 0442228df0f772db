"""Runs of the product with all noise and choice fixed, and all that can be seen of them.

What is fixed depends on sizes alone, which are public, so a difference between two runs over two
files has come from the data by another way than through the noise.
"""

import atexit
import contextlib
import ctypes
import functools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest import mock

import numpy as np
from damage import CANARY
from python_files import PYTHON_PATH
from rounds import MIXED_SPEC, REPLACE_SPEC, rehearse
from rounds import PERSON_SPEC as RAP_PERSON_SPEC
from town import GAUSSIAN_SPEC, PERSON_SPEC, SPEC, Done, contents, plan_town, run

from dpquery.plan_file.rehearsals import RapSettings
from dpquery.progress import report_progress

LONG_AGO = 1_000_000_007  # when every data file was written, in seconds
CHANGING = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod"}
CHANGING |= {"os.truncate", "os.utime", "os.setxattr", "os.mkfifo", "os.system", "os.exec"}
CHANGING |= {"subprocess.Popen", "socket.connect", "socket.bind", "tempfile.mkstemp"}
CHANGING |= {"tempfile.mkdtemp", "sqlite3.connect", "syslog.syslog", "shutil.copyfile"}

# Incomes, which are in the files of every kind of damage, are weights too.
WEIGHTED_SPEC = PERSON_SPEC.replace("  income: {bins: [0, 10, 20.5, 50]}\n", "").replace(
    "neighbours",
    "weight: {column: income, at_most: 30, step: 0.5, total: 90, effective: 60, design_effect: 2}, "
    "neighbours",
)
WEIGHTED_SPEC = WEIGHTED_SPEC.replace("[sex, region, income]", "[sex, region]")
# Ages and sexes, under the headers rep1 and rep2, are their replicates.
REPLICATE_SPEC = """\
dataset: {id: town, version: 1}
privacy:
  unit: {person: name, max_rows: 2}
  delta: 1e-6
  weight:
    column: income
    at_most: 30
    step: 0.5
    replicates: {first: rep1, count: 2, factor: 1, at_most: 20}
budget: {epsilon: 4, delta: 1e-6}
other: drop
domain:
  region: {values: {1: North, 2: South}, other: show}
workload:
  - {name: regions, product: {region: identity+total}}
"""

MORE = """\
workload:
  - {name: cumulative, ranges: {age: prefix}}
  - {name: two, product: {region: identity, sex: identity}}
"""


@dataclass(frozen=True)
class Step:
    """A command, the exit code it must end in, and where it crashes, if it does."""

    command: str
    code: int = 0
    crash: str = ""


@dataclass(frozen=True)
class Seen:
    """All that can be seen of some commands over a file.

    Attributes:
        done: what each printed, and its exit code.
        files: every file below the folder, with its mode and content.
        calls: what Python opened, made, renamed and removed meanwhile, in order.
        stray: files that are as old as the data.
    """

    done: tuple[Done, ...]
    files: dict[str, tuple[int, bytes]]
    calls: tuple[tuple[str, ...], ...]
    stray: tuple[str, ...]

    def difference(self, other):
        """Name what differs; nothing where all is the same."""
        differing = [f"command {k}" for k in range(len(self.done)) if self.done[k] != other.done[k]]
        names = sorted(self.files.keys() | other.files.keys())
        differing += [name for name in names if self.files.get(name) != other.files.get(name)]
        return differing + ["the order of calls"] * (self.calls != other.calls) + [*other.stray]

    def holding_the_canary(self):
        """Name the outputs and files that hold the canary, or are named after it."""
        secret = CANARY.encode()
        leaking = [
            name for name, (_, content) in self.files.items() if secret in content + name.encode()
        ]
        return leaking + [
            str(k) for k, step in enumerate(self.done) if CANARY in step.out + step.err
        ]


def fixed_draw(answers, **_):
    """Noise that hides everything: values from their number alone."""
    report_progress("drawing noise", 1.0)
    return np.random.default_rng(answers.size).integers(-(2**20), 2**20, answers.size)


def fixed_select(differences, *, blocks, taken, sides, **_):
    """Choose the first queries that are left; every difference is worked out all the same."""
    struck = {tuple(place) for place in taken.tolist()}
    places = [(block, row) for block in range(blocks) for row in range(len(differences(block)))]
    left = [place for place in places if place not in struck]
    return np.array(left[: sum(size for _, size in sides)], dtype=np.int64)


FIXED = {
    "dpquery.measurement.curator.draw": fixed_draw,
    "dpquery.measurement.rounds.chance.draw": fixed_draw,
    "dpquery.measurement.rounds.queries.select_queries": fixed_select,
}


def fix_all_chance():
    """Replace noise and selection in this process, once and for all."""
    for place, fixed in FIXED.items():
        module, _, name = place.rpartition(".")
        setattr(import_module(module), name, fixed)


def fails(failure):
    """A function that fails whatever it is given."""

    def failing(*_, **__):
        raise failure

    return failing


def carry_out(step):
    """Run a step in this process."""
    if not step.crash:
        return run(*step.command.split())
    with mock.patch(step.crash, fails(RuntimeError(CANARY))):
        return run(*step.command.split())


def observe(folder, content, steps, *, name="data.csv"):
    """Return all that can be seen of some steps over a file of some bytes, in a folder made ready.

    The folder is the working directory; below it are also what HOME and TMPDIR name.
    """
    data = folder / name
    data.write_bytes(content)
    os.utime(data, (LONG_AGO, LONG_AGO))
    with recorded(folder) as calls:
        done = tuple(carry_out(step) for step in steps)
    data.unlink()
    files = {
        name: (stat.S_IMODE((folder / name).lstat().st_mode), content)
        for name, content in contents(folder).items()
    }
    stray = tuple(name for name in files if (folder / name).lstat().st_mtime == LONG_AGO)
    return Seen(done, files, tuple(calls), stray)


# A hook cannot be taken away again: there is one, and it does nothing but within `recorded`.
_listeners = []
sys.addaudithook(lambda event, given: [listen(event, given) for listen in _listeners] and None)


@contextmanager
def recorded(folder):
    """Yield the list that all calls go into which open a file of a folder or change any."""
    calls = []

    def listen(event, given):
        if event == "open" and isinstance(given[0], (str, bytes, os.PathLike)):
            path = os.fsdecode(given[0])
            inside = Path(os.path.abspath(path)).is_relative_to(folder)
            written = bool(given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if inside or written:
                calls.append((event, path, str(written)))
        elif event in CHANGING:
            calls.append((event, *map(str, given)))

    _listeners.append(listen)
    try:
        yield calls
    finally:
        _listeners.remove(listen)


def planned(folder, spec, settings=None, *, rap=False):
    """Plan a town once, with RAP in its plan if wanted."""
    plan_town(folder, spec)
    (folder / "more.yaml").write_text(MORE)
    if rap:
        rehearse(folder / "dpquery.plan", **({} if settings is None else {"settings": settings}))


AT_ONCE = RapSettings(rounds=1, selected=0, relaxed_rows=20, seed=0)
TOWNS = {
    "rows": lambda folder: planned(folder, SPEC),
    "replaced": lambda folder: planned(folder, GAUSSIAN_SPEC),
    "persons": lambda folder: planned(folder, PERSON_SPEC),
    "weights": lambda folder: planned(folder, WEIGHTED_SPEC),
    "replicates": lambda folder: planned(folder, REPLICATE_SPEC),
    "RAP": lambda folder: planned(folder, MIXED_SPEC, rap=True),
    "RAP, persons": lambda folder: planned(folder, RAP_PERSON_SPEC, rap=True),
    "RAP, replaced": lambda folder: planned(folder, REPLACE_SPEC, rap=True),
    "RAP, all at once": lambda folder: planned(folder, MIXED_SPEC, AT_ONCE, rap=True),
}


def planned_once(folder):
    """Return the function from the name of a town to the folder where it is planned, once."""
    kinds = set()

    def of(name):
        if name not in kinds:
            TOWNS[name](folder / name)
            kinds.add(name)
        return folder / name

    return of


# Commands in processes of their own, without the second that importing takes each of them.
#
# A server process imports everything once and forks for every job: a fork is a process like any
# other, with its own files, locks and end. It runs with failing_calls.c preloaded where there is a
# C compiler, so that the n-th call which changes the disk can be made to fail, or to be the last.


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
        environment["PYTHONPATH"] = PYTHON_PATH
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

    def ended(self, *arguments, code=""):
        """Run a command in a process of its own here; `code` is Python to run there before it."""
        job = {"folder": Path.cwd(), "arguments": [*map(str, arguments)], "before": code}
        (done,) = self.run(job | {"environment": dict(os.environ)})
        return done

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
    from town import command_line

    from dpquery.cli.app import main

    scope = {}
    exec(job.get("before", ""), scope)  # noqa: S102 - text of a test
    sys.argv = command_line(job.get("arguments", []))
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
    from town import quickly

    library = sys.argv[1]
    with quickly():
        exec(WARM, {})  # noqa: S102 - text of this file
        serve(library)
