"""What commands print: results to stdout, progress and messages to stderr; and what comes on stdin.

A table to print, as plain text cells: built by rooms, rendered by the command line.

Keep the records in this process's memory from reaching a disk or another process.
"""

import codecs
import ctypes
import json
import os
import resource
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Literal, TextIO

import typer

from dpquery.exceptions import DpqueryError, LargeDeltaWarning, SpecError
from dpquery.progress import WHOLE_COMMAND, LineWithShare, reporting
from dpquery.releases.words import OBEYED

_SHOWN = {c: f"\\x{c:02x}" if c < 0x100 else f"\\u{c:04x}" for c in OBEYED}
_IN_JSON = {c: f"\\u{c:04x}" for c in OBEYED}
_LONG_NAME = 30  # of a row: one up to that is not broken where a terminal is narrow
PIPE = 4_000  # characters of a line that no terminal folds
_WORDS = {"\N{GREEK SMALL LETTER EPSILON}": "epsilon", "\N{GREEK SMALL LETTER DELTA}": "delta"}
_WORDS |= {"\N{GREEK SMALL LETTER MU}": "mu", "\N{GREEK SMALL LETTER RHO}": "rho"}
_WORDS |= {"\N{PLUS-MINUS SIGN}": "+-"}
_HALVES = ("utf-8", "backslashreplace")  # of what stands for bytes in the name of a file


_QUIET = ContextVar("quiet", default=False)


@contextmanager
def shown_progress() -> Iterator[None]:
    """Show what is being done within, and the time left; nothing where stderr is no terminal."""
    if _QUIET.get() or not sys.stderr.isatty() or os.environ.get("NO_COLOR"):
        yield
        return
    from rich import progress as parts
    from rich.console import Console

    bar = parts.Progress(
        parts.SpinnerColumn(),
        parts.TextColumn("{task.description}", markup=False),
        parts.BarColumn(),
        parts.TaskProgressColumn("{task.percentage:>3.0f} %"),  # nothing where no share is known
        parts.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("starting", total=None)
    measured = ""  # the work whose share is shown

    def report(line: str) -> None:
        nonlocal measured
        work = line.work if isinstance(line, LineWithShare) else ""
        if work != measured:
            measured = work
            bar.reset(task, total=1.0 if work else None)
        words, done = (line.words, line.done) if isinstance(line, LineWithShare) else (line, 0.0)
        words = words.partition(": ")[0] if work == WHOLE_COMMAND else words  # the stage alone
        bar.update(task, description=printable(words), completed=done)

    with bar, reporting(report):
        yield


def printable(text: str) -> str:
    r"""Return a text with the characters that a terminal would obey written out.

    >>> printable("a\x1b[31m b")
    'a\\x1b[31m b'
    """
    return text.encode(*_HALVES).decode().translate(_SHOWN)


def show(text: str = "", *, nl: bool = True) -> None:
    """Write a result to stdout, in the terminal's own encoding: echo alone would force UTF-8."""
    typer.echo(printable(text), file=sys.stdout, nl=nl)


def say(message: str) -> None:
    """Write a message to stderr, unless quiet is asked for."""
    if not _QUIET.get():
        complain(message)


def complain(message: str) -> None:
    """Write an error to stderr."""
    typer.echo(printable(message), file=sys.stderr)


@contextmanager
def shown_warnings() -> Iterator[None]:
    """Write our own warnings to stderr in plain words; those of libraries as Python does."""
    as_python_does = warnings.showwarning

    def shown(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, LargeDeltaWarning):
            as_python_does(message, category, filename, lineno, file, line)
        elif "--json" in sys.argv:
            complain(json.dumps({"warning": str(message).removeprefix("warning: ")}))
        else:
            complain(f"dpquery: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", LargeDeltaWarning)
        warnings.showwarning = shown
        yield


def write_words() -> None:
    """Where a terminal has no sign for a character, write a Greek letter's name, else its code."""
    codecs.register_error("words", _word_for)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="words")


def _word_for(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeEncodeError):
        word = _WORDS.get(error.object[error.start])
        if word is not None:
            return word, error.start + 1
    return codecs.backslashreplace_errors(error)


def be_quiet(given: bool) -> None:
    """Print results and errors alone from now on; or all, where not."""
    _QUIET.set(given)


def print_json(value: object) -> None:
    """Print a result as indented JSON."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = json.dumps(value, indent=2, ensure_ascii=not encoding.lower().startswith("utf"))
    typer.echo(text.encode(*_HALVES).decode().translate(_IN_JSON), file=sys.stdout)


def print_grids(grids: Sequence["Grid"]) -> None:
    """Render tables; a pipe gets the full width of their text, no colours and no padding."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    def plain(text: str) -> str:
        return escape(printable(text))

    console = Console(
        width=None if sys.stdout.isatty() else PIPE,
        highlight=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
    for grid in grids:
        table = Table(box=None, pad_edge=False)
        for k, (name, right) in enumerate(zip(grid.columns, grid.numeric(), strict=True)):
            whole = k == 0 and all(len(row[0]) <= _LONG_NAME for row in grid.rows)
            justify: Literal["left", "right"] = "right" if right else "left"
            table.add_column(plain(name), justify=justify, overflow="fold", no_wrap=whole)
        for place, row in enumerate(grid.rows):
            style = "bold" if place == grid.strong else None
            table.add_row(*map(plain, row), style=style)
        with console.capture() as rendered:
            tables = [table] if grid.columns else []
            console.print(plain(grid.title), *tables, *map(plain, grid.notes), sep="\n")
        for line in rendered.get().splitlines():
            typer.echo(line.rstrip(), file=sys.stdout)
        show()


@dataclass(frozen=True)
class Grid:
    """A titled table with notes below it."""

    title: str  # above the table
    columns: tuple[str, ...]  # their names
    rows: tuple[tuple[str, ...], ...]  # cells as text
    notes: tuple[str, ...] = ()  # lines below the table
    strong: int | None = None  # index of the row to stress

    def numeric(self) -> list[bool]:
        """Return which columns hold numbers alone."""
        return [
            any(row[k] for row in self.rows)
            and all(not row[k] or row[k][0] in "0123456789-." for row in self.rows)
            for k in range(len(self.columns))
        ]


@dataclass(frozen=True)
class PlanFiles:
    """Files that a plan's screen names; `plan` is None where none was written."""

    spec: Path
    plan: Path | None
    ledger: Path


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


@contextmanager
def announced_if_new(ledger: Path) -> Iterator[None]:
    """Say that a new ledger was made: whoever has spent something has another one somewhere."""
    from dpquery.measurement.ledger.store import risks

    is_new = not os.path.lexists(ledger)
    yield
    if is_new:
        say(f"{ledger} is a new ledger, in which nothing has been spent")
        for risk in risks(ledger):
            say(f"warning: {risk}")


def say_new(datasets: Iterable[str]) -> None:
    """Say of datasets, and parents, that the ledger did not know them."""
    for name in datasets:
        say(
            f"{name} is new in this ledger, with a budget of its own: if people are in another "
            "dataset too, give both one id or one `parent:`"
        )


@contextmanager
def data_at(data: list[str]) -> Iterator[list[str]]:
    """Yield where the data lie: what comes on stdin is held in memory, and reaches no disk."""
    if data != ["-"]:
        yield data
        return
    if not hasattr(os, "memfd_create"):
        raise SpecError("data on stdin needs Linux; write it to a file first")
    with os.fdopen(os.memfd_create("stdin"), "wb") as held:
        shutil.copyfileobj(sys.stdin.buffer, held)
        held.flush()
        os.utime(held.fileno(), (0, 0))  # when it was changed last nobody knows
        place = f"/proc/{os.getpid()}/fd/{held.fileno()}"
        try:
            yield [place]
        except DpqueryError as error:
            error.args = (str(error).replace(place, "what came on stdin"),)
            raise
