"""Commands on a small town, in this process or in one of its own, and what they leave."""

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from itertools import count
from pathlib import Path
from unittest import mock

import pandas as pd
import typer.main

import dpquery
from dpquery.cli.app import main
from dpquery.spec.parsing.yaml_nodes import read_yaml

# A small town, planned once, and the command line as the tests run it.

SPEC = """\
dataset: {id: town, version: 1}
privacy: {unit: row, neighbours: add-remove}
budget: {epsilon: 4}
other: drop
domain:
  age: {range: [0, 4]}
  sex: {values: [F, M]}
  region:
    values: {1: North, 2: South}
    other: show
  income: {bins: [0, 10, 20.5, 50]}
workload:
  - name: age_by_sex
    description: Every year of age by sex
    product: {age: identity, sex: identity+total}
    weight: 2
  - name: pairs
    marginals: {ways: 2, over: [sex, region, income]}
  - name: ages
    ranges: {age: all}
"""
GAUSSIAN_SPEC = SPEC.replace("neighbours: add-remove", "neighbours: replace, delta: 1e-6").replace(
    "{epsilon: 4}", "{epsilon: 4, delta: 1e-6}"
)
PERSON_SPEC = SPEC.replace("unit: row", "unit: {person: name, max_rows: 2}")
SEARCHED = ("--time-limit", "60")
"""Options of plan where the strategy matters: without them none is searched for."""
CSV = b"age,sex,region,income\n0,F,1,5\n2,M,2,15\n4,F,9,45.5\n3,M,1,20.5\n9,F,1,5\n1,M,,0\n"

_MEMORY = Path("/dev/shm")  # noqa: S108 - folders of our own are made in it
FAST = _MEMORY if os.access(_MEMORY, os.W_OK) else None
"""Where to make folders that no disk should slow down: in memory, if that can be."""


_COMMAND = cache(typer.main.get_command)
_NODES = {}  # by the text and the name of a spec: its root, and what takes mistakes in it


def _read_yaml(text, *, file, problems):
    """Read a text once that has no mistakes."""
    if (text, file) in _NODES:
        read, first = _NODES[text, file]
        first.__dict__ = problems.__dict__  # mistakes in the nodes are noted in either from now on
        return read
    read = read_yaml(text, file=file, problems=problems)
    if problems.none:
        _NODES[text, file] = read, problems
    return read


@dataclass(frozen=True)
class Done:
    """What a command left behind for its user."""

    code: int
    out: str
    err: str


class Terminal(StringIO):
    """Where a command prints to that asks whether somebody sits there."""

    def isatty(self):
        return True


@contextmanager
def quickly():
    """Commands leave out most of what takes long and changes no plan and no released number.

    A solution is held against fewer draws of noise, as where it is a large one, no other weights
    are tried for what `plan` prints, and no best guess for what a release says beside estimates.
    Tests of either do without. The options of all commands are read off once, and each spec's YAML.
    """
    with (
        mock.patch("typer.main.get_command", _COMMAND),
        mock.patch("dpquery.spec.parsing.read.read_yaml", _read_yaml),
        mock.patch("dpquery.reconstruction.checks.MOST_DRAWS", 4),
        mock.patch("dpquery.planning.worth.FACTORS", ()),
        mock.patch("dpquery.planning.rehearsal.runs.MOST_TRIALS", 40),
        mock.patch("dpquery.mechanisms.linear.MOST_TRIED_QUERIES", 0),
    ):
        yield


def command_line(arguments):
    """Return the words of a command; `plan` searches nothing unless it is told how long."""
    words = ["dpquery", *map(str, arguments)]
    told = words[1:2] != ["plan"] or any(word.startswith("--time-limit") for word in words)
    return words if told else [*words, "--time-limit", "0", "--jobs", "1"]


def run(*arguments, terminal=False):
    """Run a command inside this process, as the console script would."""
    out, err = Terminal() if terminal else StringIO(), StringIO()
    with (
        quickly(),
        mock.patch.object(sys, "argv", command_line(arguments)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Done(code, out.getvalue(), err.getvalue())


def ok(*arguments):
    """Run a command that is expected to succeed."""
    done = run(*arguments)
    assert done.code == 0, done
    return done


def refused(*arguments, code):
    """Run a command that must fail and leave every file as it is; return its message as one line.

    SQLite may make and remove its working files beside the ledger; they count as no change.
    """
    root = Path(__file__).parents[2]
    assert Path.cwd() != root, "a test has a folder of its own: others change this one meanwhile"
    before = _files()
    done = run(*arguments)
    assert done.code == code, done
    assert done.out == ""
    assert "Traceback" not in done.err
    assert _files() == before
    return " ".join(done.err.split())


def _files():
    files = contents(".")
    return {name: files[name] for name in files if not re.search(r"-(shm|wal)$|\.locks/", name)}


def start(*arguments, code=None):
    """Start a command in a process of its own; `code` is Python to run there before it."""
    way = (
        ["-m", "dpquery"]
        if code is None
        else ["-c", f"{code}\nfrom dpquery.cli.app import main\nmain()"]
    )
    return subprocess.Popen(
        [sys.executable, *way, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process, seconds=600):
    """Wait for a command started, long, since the machine may be busy."""
    out, err = process.communicate(timeout=seconds)
    return Done(process.returncode, out, err)


def plan_town(folder, spec=SPEC, *options):
    """Fill a folder with a spec, its plan, a ledger and data: what was planned once is copied."""
    shutil.copytree(_planned_town(spec, *options), folder, dirs_exist_ok=True)


@cache
def _planned_town(spec, *options):
    room = tempfile.TemporaryDirectory(prefix="town", dir=FAST)
    atexit.register(room.cleanup)
    folder = Path(room.name)
    (folder / "workload.yaml").write_text(spec)
    (folder / "data.csv").write_bytes(CSV)
    ledger = ("--ledger", folder / "state" / "ledger.db")
    ok("plan", folder / "workload.yaml", "--out", folder / "dpquery.plan", *ledger, *options)
    return folder


def renew(folder, template):
    """Make a folder the same as the template."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)


def contents(folder) -> Mapping[str, bytes]:
    """Every file below a folder, by its path from there; folders are names that end in /."""
    folder = Path(folder)
    files = {f"{path.relative_to(folder)}/": b"" for path in folder.rglob("*") if path.is_dir()}
    return files | {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def spent():
    """What the town has spent, as the ledger prints it."""
    (account,) = json.loads(ok("ledger", "status", "--json").out)
    return account["spent"]


def kinds():
    """The kinds of all events in the ledger, oldest first."""
    return [event["kind"] for event in json.loads(ok("ledger", "history", "--json").out)]


# What tests from outside stand on: a spec and data in, the numbers of the published files out.

NEAR_EXACT = 1000
"""An epsilon at which a rounded answer is the count."""
_NUMBERS = count(1)


def spec_text(domain, workload, *, unit="row", more=""):
    """Return a spec whose budget has room for many releases at NEAR_EXACT."""
    lines = [
        "dataset: {id: outside}",
        f"privacy: {{unit: {unit}}}",
        "budget: {epsilon: 1000000}",
        more,
        "domain:",
        *(f"  {name}: {declared}" for name, declared in domain.items()),
        "workload:",
        *(f"  - {item}" for item in workload),
    ]
    return "\n".join(lines) + "\n"


def planned(folder, text, *, time_limit=0, **options):
    """Write a spec and plan it, quickly if nothing else is said, with a ledger of its own."""
    (folder / "s.yaml").write_text(text, encoding="utf-8")
    places = {"plan_path": folder / "p", "ledger_path": folder / "l.db"}
    with quickly():
        dpquery.plan(folder / "s.yaml", time_limit=time_limit, **places, **options)


def released(folder, data, *, epsilon=NEAR_EXACT, **options):
    """Return the table of each item of another release in a planned folder."""
    number = next(_NUMBERS)
    out = folder / f"release{number}"
    places = {"plan_path": folder / "p", "ledger_path": folder / "l.db", "out": out}
    with quickly():
        dpquery.release(data, epsilon=epsilon, release_number=number, **places, **options)
    tables = {
        path.stem: pd.read_parquet(path)
        for path in out.glob("*.parquet")
        if path.stem not in {"errors", "measurements"}
    }
    assert tables
    return tables


def counts(table):
    """Return the answers of a table as whole numbers."""
    return [round(estimate) for estimate in table["estimate"]]


def checked(folder, *data):
    """Return the exit code of `dpquery check`, and all that it prints."""
    done = run("check", "--to-pipe", *data, folder / "s.yaml")
    return done.code, done.out + done.err
