"""`dpquery audit`: the self-test of the installed versions."""

from pathlib import Path
from typing import Annotated

import typer

from dpquery.cli.options import AsJson
from dpquery.cli.output.screen import print_grids, print_json, shown_progress
from dpquery.commands.defaults import AUDIT_EPSILON


def audit_command(
    quick: Annotated[
        bool, typer.Option("--quick", help="Draw less: 20 seconds; larger mistakes are seen.")
    ] = False,
    part: Annotated[
        list[str] | None, typer.Option("--part", help="Run this part alone; can be repeated.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Test a plan of your own, on made-up data alone.")
    ] = None,
    epsilon: Annotated[str, typer.Option(help="Of the releases of that plan.")] = AUDIT_EPSILON,
    as_json: AsJson = False,
) -> None:
    """Test the installed versions through the real release path, on made-up data.

    Takes about two minutes. Nobody's data is opened and no ledger of yours. Exit code 1 where a
    check fails.
    """
    from dpquery.audit import run
    from dpquery.audit.cases import planned_cases
    from dpquery.cli.output import audit as summary_audit
    from dpquery.measurement.accounting import parse_epsilon

    cases = () if plan is None else planned_cases.cases_of(plan, epsilon=parse_epsilon(epsilon))
    with shown_progress():
        findings = run.audit(part or (), quick=quick, cases=cases)
    if as_json:
        print_json(summary_audit.audit_json(findings, quick=quick, own_plan=bool(cases)))
    else:
        print_grids(summary_audit.audit_grids(findings))
        typer.echo(summary_audit.audit_closing(findings, quick=quick, own_plan=bool(cases)))
    if not all(finding.passed for finding in findings):
        raise typer.Exit(1)
