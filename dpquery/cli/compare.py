"""`dpquery compare`: the expected errors of two plans, or specs, side by side."""

import os
from pathlib import Path
from typing import Annotated

import typer

from dpquery.cli.options import AsJson, Delta, Jobs, TimeLimit
from dpquery.cli.output.screen import print_grids, print_json, shown_progress
from dpquery.commands.defaults import SHELL_JOBS, TIME_LIMIT


def compare_command(
    first: Annotated[Path, typer.Argument(help="A plan, or a spec.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    epsilon: Annotated[
        str | None, typer.Option(help="Compare at this epsilon; default: 1.")
    ] = None,
    delta: Delta = None,
    time_limit: TimeLimit = TIME_LIMIT,
    jobs: Jobs = SHELL_JOBS,
    as_json: AsJson = False,
) -> None:
    """Show the expected errors of two plans, item by item.

    Specs are planned for it. Nothing is written, and the ledger is not opened.
    """
    from dpquery.cli.output.compare import compare_grid, compare_json
    from dpquery.commands.compare import compare

    with shown_progress():
        compared = compare(
            first,
            second,
            epsilon=epsilon,
            delta=delta,
            time_limit=time_limit,
            jobs=min(jobs, os.cpu_count() or 1),
        )
    if as_json:
        print_json(compare_json(compared))
    else:
        print_grids([compare_grid(compared)])
