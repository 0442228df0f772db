"""`dpquery synthetic`: records to work with, made of a RAP release."""

from pathlib import Path
from typing import Annotated

import typer

from dpquery.cli.options import AsJson
from dpquery.cli.output.screen import print_json, say, show, shown_progress
from dpquery.commands.defaults import DEFAULT_SEED, LARGEST_NUMBER, RELEASE_PATH, SYNTHETIC_PATH


def synthetic_command(
    release: Annotated[Path, typer.Argument(help="A release directory, made by RAP.")] = Path(
        RELEASE_PATH
    ),
    rows: Annotated[
        int | None,
        typer.Option(
            min=1, max=LARGEST_NUMBER, help="How many records; default: the released total."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the records go; replaces no file.")] = Path(
        SYNTHETIC_PATH
    ),
    seed: Annotated[int, typer.Option(min=0, help="Public seed of the rounding.")] = DEFAULT_SEED,
    as_json: AsJson = False,
) -> None:
    """Write synthetic records of a RAP release as CSV, free of budget.

    The columns are those that the spec declares. Nobody in the file exists; what it says of many
    is as biased as the release is, and has no error bars.
    """
    from dpquery.commands.synthesize import synthesize
    from dpquery.releases.formatting import count

    with shown_progress():
        done = synthesize(release, out=out, records=rows, seed=seed)
    if as_json:
        print_json({"file": str(done.file), "records": done.records})
    else:
        show(f"{done.file}: {count(done.records, 'synthetic record')}")
    say("nothing was charged: neither the data nor the ledger was opened")
