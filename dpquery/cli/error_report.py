"""`dpquery error-report`: what each number of a release is worth."""

from pathlib import Path
from typing import Annotated

import typer

from dpquery.cli.options import (
    AsJson,
)
from dpquery.cli.output.screen import print_grids, print_json, say


def error_report(
    directory: Annotated[Path, typer.Argument(help="A release directory.")] = Path("release"),
    html: Annotated[Path, typer.Option(help="Where the page with plots goes.")] = Path(
        "report.html"
    ),
    as_json: AsJson = False,
) -> None:
    """Say what each number of a release is worth.

    Prints a table, and writes a page with plots.
    """
    from dpquery.cli.output import release as summary
    from dpquery.releases.report import html as page
    from dpquery.releases.report import report
    from dpquery.untrusted.atomic_write import check_place

    check_place(html, mark=page.REPORT_MARK)
    loaded = report.load_report(directory)
    page.write_html(loaded, html)
    if as_json:
        print_json(report.to_json(loaded))
    else:
        print_grids([summary.report_grid(loaded)])
    say(f"wrote {html}")
