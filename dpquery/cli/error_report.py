"""`dpquery error-report`: what each number of a release is worth."""

from pathlib import Path
from typing import Annotated

import typer

from dpquery.cli.options import AsJson
from dpquery.cli.output.screen import print_grids, print_json, say
from dpquery.commands.defaults import RELEASE_PATH, REPORT_PATH


def error_report_command(
    directory: Annotated[Path, typer.Argument(help="A release directory.")] = Path(RELEASE_PATH),
    html: Annotated[Path, typer.Option(help="Where the page with plots goes.")] = Path(REPORT_PATH),
    as_json: AsJson = False,
) -> None:
    """Say what each number of a release is worth.

    Prints a table, and writes a page with plots.
    """
    from dpquery.cli.output import release as summary
    from dpquery.commands.error_report import error_report
    from dpquery.releases.report.error_report import to_json

    report = error_report(directory, html=html)
    if as_json:
        print_json(to_json(report))
    else:
        print_grids(summary.report_grids(report))
    say(f"wrote {html}")
