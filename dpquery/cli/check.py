"""`dpquery check`: a file held against its spec, for those who may see the records."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dpquery.cli.output.screen import print_grids, show, shown_progress
from dpquery.exceptions import SpecError

PRIVATE = """\
PRIVATE: made of the records, without noise, for those who
may see them. Do not publish, send or store it. No file is
written here, and no ledger is opened.
"""


def check_command(
    data: Annotated[
        list[Path],
        typer.Argument(help="The data, as `release` takes them: files, globs, folders, tables."),
    ],
    spec: Annotated[Path, typer.Argument(help="The workload: a YAML file.")],
    to_pipe: Annotated[
        bool,
        typer.Option(
            "--to-pipe", help="Print although stdout is no terminal: to a pipe or a file."
        ),
    ] = False,
) -> None:
    """Say, to those who may see the records, what a release would leave out.

    Undeclared values, malformed records, rows of a person beyond max_rows, and the YAML to mend
    it. Private: it prints to a terminal alone, writes no file and opens no ledger. Exit code 1
    where something is left out that the spec does not say.
    """
    from dpquery.cli.no_dumps import forbid_dumps

    if not (sys.stdout.isatty() or to_pipe):
        raise SpecError(
            "what `dpquery check` shows is private and stdout is no terminal; run it in one, or "
            "say --to-pipe where nobody else can read what it goes to"
        )
    forbid_dumps()
    show(PRIVATE)
    as_declared = _print_check(data, spec)
    if not as_declared:
        raise typer.Exit(1)


def _print_check(data: list[Path], spec: Path) -> bool:
    """Print what was found; return whether all is as declared."""
    from dpquery.cli.output.check import check_grids, left_out_grid, to_paste
    from dpquery.data_check.check import check

    with shown_progress():
        checked = check(data, spec)
    print_grids([left_out_grid(checked, _name(data)), *check_grids(checked)])
    lines = to_paste(checked, str(spec))
    if lines:
        show("\n".join(lines))
    return checked.as_declared


def _name(data: list[Path]) -> str:
    """Return what the data are called."""
    return str(data[0]) + (f" and {len(data) - 1} more" if len(data) > 1 else "")
