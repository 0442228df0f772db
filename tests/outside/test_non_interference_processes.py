"""Processes of their own: what they leave, however they end, and whatever they are told to say.

Between two system calls that change the disk nothing on it changes. So a process that is killed
before every such call in turn has been killed at every moment there is.
"""

import os
import pty
import re
import struct
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from damage import CANARY, FILES, HEADER, PLAIN
from forked_commands import COUNT, KILL, failing_calls
from interference_support import planned_once
from town import CSV, FAST, contents, renew

needs_a_compiler = pytest.mark.skipif(failing_calls() is None, reason="needs cc, on Linux")
FIX = "import interference_support\ninterference_support.fix_all_chance()\n"
# So many records that are alike, that their number is nowhere by chance.
MANY = 7_654_321 // 99
ALIKE = HEADER + f"1,F,1,5,{CANARY}\n".encode() * MANY
PERSONS_ALIKE = HEADER + b"".join(f"1,F,1,5,{CANARY}{k}\n".encode() for k in range(MANY))
COMMANDS = {
    "rows": ("release data.csv --epsilon 1 --json", "error-report", "ledger export"),
    "persons": ("release data.csv --epsilon 1",),
    "RAP": ("release data.csv --epsilon 1", "synthetic --rows 40"),
}


TOWN = pytest.mark.parametrize(
    "town", ["rows", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("persons", "RAP"))]
)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Return the function from the name of a town to the folder where it is planned, once."""
    return planned_once(tmp_path_factory.mktemp("processes"))


@pytest.fixture
def place():
    """A folder of one's own, in memory if there is one."""
    with TemporaryDirectory(dir=FAST) as name:
        yield Path(name) / "town"


def make_ready(place, town, content):
    """Fill the folder, with a HOME and a TMPDIR in it; return the environment."""
    renew(place, town)
    (place / "data.csv").write_bytes(content)
    for name in ("tmp", "home"):
        (place / name).mkdir()
    return {
        "DPQUERY_LEDGER": str(place / "state" / "ledger.db"),
        "TMPDIR": str(place / "tmp"),
        "HOME": str(place / "home"),
        "XDG_STATE_HOME": str(place / "home"),
    }


def job(place, command, environment, **more):
    return {
        "folder": place,
        "arguments": command.split(),
        "environment": environment,
        **({"arm": (COUNT, 0, 0)} if failing_calls() else {}),
    } | more


def left_behind(place):
    """Every file but the data themselves."""
    return {name: content for name, content in contents(place).items() if name != "data.csv"}


def holding(files, *secrets):
    """Name the files that match one of some secrets, or are named after one."""
    pattern = re.compile(b"|".join([CANARY.encode(), *secrets]))
    return [name for name, file in files.items() if pattern.search(file + name.encode())]


def counts_of(number):
    """What a true count looks like: as text, and as an int64 of any grid, in memory's order."""
    text = rb"(?<![\w.])(%d|%s)(?!\w)" % (number, f"{number:,}".encode())
    return [text, *(re.escape(struct.pack("<q", number << bits)) for bits in range(44))]


@TOWN
def test_whatever_the_data_a_process_makes_the_same_calls_and_leaves_the_same_bytes(
    template, place, forks, town, record_property
):
    results = {}
    names = ["canaries", "empty", "quotes", "many rows"]
    for name, content in {"plain": PLAIN, **{key: FILES[key] for key in names}}.items():
        environment = make_ready(place, template(town), content)
        jobs = [job(place, command, environment, before=FIX) for command in COMMANDS[town]]
        results[name] = forks.run(*jobs), left_behind(place)
        assert not holding(results[name][1]), name
    assert [ended.code for ended in results["plain"][0]] == [0] * len(COMMANDS[town])
    assert [name for name in names if results[name] != results["plain"]] == []
    record_property("neighbours", len(names))


@needs_a_compiler
@pytest.mark.parametrize(
    ("town", "times"),
    [
        ("rows", 5),
        *(pytest.param(command, 25, marks=pytest.mark.slow) for command in COMMANDS),
    ],
)
def test_a_release_killed_before_any_call_leaves_nothing_of_the_data(
    template, place, forks, town, times, record_property
):
    content = PERSONS_ALIKE if town == "persons" else ALIKE
    environment = make_ready(place, template(town), content)
    request = job(place, COMMANDS[town][0], environment, before=FIX)
    (done,) = forks.run(request)
    assert done.code == 0, done
    moments = range(len(done.names), 0, -max(1, len(done.names) // times))
    for moment in moments:
        make_ready(place, template(town), content)
        (killed,) = forks.run(request | {"arm": (KILL, moment, 0)})
        assert killed.code == -9, moment
        assert (killed.out, killed.err) == ("", "")
        assert not holding(left_behind(place), *counts_of(MANY)), done.names[moment - 1]
    record_property("crashes", len(moments))


def test_a_trace_that_a_killed_process_left_would_be_found(template, place, forks):
    environment = make_ready(place, template("rows"), ALIKE)
    spills = """
import numpy
import dpquery.measurement.curator as curator
def spill(answers, **_):
    numpy.save("tmp/spilt.npy", answers)
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
curator.draw = spill
"""
    (killed,) = forks.run(job(place, COMMANDS["rows"][0], environment, before=spills))
    assert killed.code == -9
    assert holding(left_behind(place), *counts_of(MANY)) == ["tmp/spilt.npy"]


# ------------------------------------------------------------------------- what Python is told

PLACES = [Path(folder) for folder in ("/tmp", "/var/tmp", "/dev/shm") if Path(folder).is_dir()]  # noqa: S108
LOUD = {"PYTHONWARNINGS": "always", "PYTHONFAULTHANDLER": "1", "PYTHONDEVMODE": "1"}
ENVIRONMENTS = {
    "everything at once": LOUD | {"COLUMNS": "20", "HOME": "/proc", "TERM": "dumb"},
    "a narrow terminal": {"COLUMNS": "20", "LINES": "5", "FORCE_COLOR": "1"},
    "no English": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:replace"},
    "home cannot be written to": {"HOME": "/proc", "XDG_STATE_HOME": "/proc"},
}


def spoken(place, command, environment, **streams):
    """Start a command in a process of its own, with noise and choice fixed."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parent), str(here)])
    variables = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    variables |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", f"{FIX}from dpquery.cli.app import main\nmain()", *command.split()],
        cwd=place,
        env=variables | environment,
        **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams),
    )


def new_files(before):
    """Files in the folders for everybody's temporary files that were not there before."""
    files = {}
    for path in (entry for folder in PLACES for entry in set(folder.iterdir()) - before):
        try:
            files[str(path)] = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue  # another process's, and gone or closed to us
    return files


@pytest.mark.slow
@pytest.mark.parametrize("settings", ENVIRONMENTS)
def test_whatever_python_is_told_it_says_nothing_of_the_data(
    template, place, settings, record_property
):
    before = {path for folder in PLACES for path in folder.iterdir()}
    results = {}
    for name in ("plain", "canaries"):
        ready = make_ready(place, template("rows"), FILES[name])
        del ready["TMPDIR"]
        process = spoken(place, COMMANDS["rows"][0], ready | ENVIRONMENTS[settings])
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        results[name] = out, err, left_behind(place)
        assert CANARY.encode() not in out + err
        assert not holding(results[name][2])
    assert [name for name, result in results.items() if result != results["plain"]] == []
    assert not holding(new_files(before))
    record_property("neighbours", len(results) - 1)


# ------------------------------------------------------------------------- the terminal

SLOW = """
import time
import dpquery.measurement.curator as curator
real = curator.tabulate
def slow(*given, **settings):
    tables = real(*given, **settings)
    time.sleep(0.5)
    return tables
curator.tabulate = slow
"""


def read_all(descriptor, into):
    """Read a terminal to its end, which is an error on Linux."""
    try:
        while piece := os.read(descriptor, 4096):
            into.append(piece)
    except OSError:
        pass


@pytest.mark.slow
def test_progress_is_for_a_terminal_alone(template, place, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "FIX", FIX + SLOW)
    environment = make_ready(place, template("rows"), CSV) | {"TERM": "xterm", "COLUMNS": "80"}
    command = COMMANDS["rows"][0]
    piped = spoken(place, command, environment)
    out, err = piped.communicate(timeout=60)
    assert err.decode().splitlines() == [f"ledger: {environment['DPQUERY_LEDGER']}"]
    make_ready(place, template("rows"), CSV)
    master, slave = pty.openpty()
    seen = []
    reader = threading.Thread(target=read_all, args=(master, seen))
    reader.start()
    shown = spoken(place, command, environment, stderr=slave)
    os.close(slave)
    assert shown.communicate(timeout=60)[0] == out
    reader.join()
    os.close(master)
    assert b"reading the data: 100%" in b"".join(seen)
    assert b"ledger: " in b"".join(seen)
