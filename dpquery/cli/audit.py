"""`dpquery audit`: the self-test of the installed versions."""

from typing import Annotated

import typer

from dpquery.cli.options import AsJson
from dpquery.cli.screen import print_grids, print_json, shown_progress


def audit(
    quick: Annotated[
        bool, typer.Option("--quick", help="Draw less: 20 seconds; larger mistakes are seen.")
    ] = False,
    part: Annotated[
        list[str] | None, typer.Option("--part", help="Run this part alone; can be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Test the installed versions through the real release path, on made-up data.

    Exit code 1 where a check fails.
    """
    from dpquery.audit import run
    from dpquery.cli import summary_audit

    with shown_progress() as progress:
        findings = run.audit(part or (), quick=quick, progress=progress)
    if as_json:
        print_json(summary_audit.audit_json(findings))
    else:
        print_grids(summary_audit.audit_grids(findings))
        typer.echo(summary_audit.audit_closing(findings))
    if not all(own.passed for own in findings):
        raise typer.Exit(1)
