"""`dpquery package`: a release made ready to hand over."""

from pathlib import Path
from typing import Annotated

import typer

from dpquery.cli.options import AsJson
from dpquery.cli.output.screen import print_json, say, show, shown_progress
from dpquery.commands.defaults import PACKAGE_PATH, RELEASE_PATH


def package_command(
    directory: Annotated[Path, typer.Argument(help="A release directory.")] = Path(RELEASE_PATH),
    out: Annotated[Path, typer.Option(help="Where the package goes.")] = Path(PACKAGE_PATH),
    also: Annotated[
        list[str] | None,
        typer.Option(help="Formats of the tables beside Parquet: csv, xlsx, or csv,xlsx."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the package of another release in --out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put a release together to hand over.

    The same files, with a code book, quality and methodology, a data package and a registry entry
    beside them. Needs the release's folder alone: neither the data nor the ledger is opened.
    """
    from dpquery.commands.package import package

    with shown_progress():
        done = package(directory, out=out, also=also or (), replace=replace)
    if as_json:
        print_json(
            {
                "directory": str(done.directory),
                "files": list(done.files),
                "left_out": list(done.left_out),
            }
        )
    else:
        show("\n".join(done.files))
    for name in done.left_out:
        say(f"{name} has more rows than a sheet: tables.xlsx leaves it out")
    if not done.about:
        say("the spec says nothing under `about`: title, contact, licence and the rest are empty")
    say(f"wrote {done.directory}")
    say("nothing was charged: neither the data nor the ledger was opened")
