"""Runs of the product with all noise and choice fixed, and all that can be seen of them.

What is fixed depends on sizes alone, which are public, so a difference between two runs over two
files has come from the data by another way than through the noise.
"""

import os
import stat
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest import mock

import numpy as np
from damage import CANARY
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
    "neighbours", "weight: {column: income, at_most: 30, step: 0.5}, neighbours"
)
WEIGHTED_SPEC = WEIGHTED_SPEC.replace("[sex, region, income]", "[sex, region]")

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
