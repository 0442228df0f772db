"""`dpquery plan`: the best strategy for a workload, without data."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpquery.cli.options import (
    AsJson,
    ChangeCap,
    Delta,
    Jobs,
    LedgerPath,
    NewDataset,
    ObjectiveOption,
    PlanMechanismOption,
    ProxyPath,
    RapSearch,
    SearchBoth,
    Seed,
    Shown,
    SweepList,
    Targets,
    TimeLimit,
    ledger_path,
)
from dpquery.cli.output.screen import print_grids, print_json, say, shown_progress
from dpquery.commands.defaults import (
    DEFAULT_SEED,
    MECHANISM_CHOICE,
    OBJECTIVE,
    PLAN_PATH,
    SHELL_JOBS,
    TIME_LIMIT,
)

if TYPE_CHECKING:
    from dpquery.planning.plan_report import PlanReport


def plan_command(
    spec: Annotated[Path, typer.Argument(help="The workload: a YAML file.")],
    epsilon: Shown = None,
    delta: Delta = None,
    objective: ObjectiveOption = OBJECTIVE,
    target: Targets = None,
    sweep: SweepList = None,
    mechanism: PlanMechanismOption = MECHANISM_CHOICE,
    proxy: ProxyPath = None,
    rap_search: RapSearch = False,
    search_both: SearchBoth = False,
    out: Annotated[Path, typer.Option(help="Where the plan goes.")] = Path(PLAN_PATH),
    seed: Seed = DEFAULT_SEED,
    time_limit: TimeLimit = TIME_LIMIT,
    jobs: Jobs = SHELL_JOBS,
    change_cap: ChangeCap = False,
    new_dataset: NewDataset = False,
    ledger: LedgerPath = None,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="Show every strategy that was compared.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Choose the best strategy for a workload, without data.

    Shows the expected error of every item, writes the plan, and puts the dataset and its cap on
    record in the ledger. Ends with exit code 1 where targets cost more than the whole budget.
    """
    from dpquery.commands.plan import plan

    with _announced_if_new(ledger_path(ledger)), shown_progress():
        report = plan(
            spec,
            plan_path=out,
            ledger_path=ledger_path(ledger),
            objective=objective,
            targets=target or (),
            sweep=sweep,
            seed=seed,
            time_limit=time_limit,
            jobs=min(jobs, os.cpu_count() or 1),
            change_cap=change_cap,
            new_dataset=new_dataset,
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            proxy=proxy,
            rap_search=rap_search,
            search_both=search_both,
        )
    _show_plan(report, out, ledger_path(ledger), candidates=candidates, as_json=as_json)


def _show_plan(
    report: "PlanReport", out: Path, ledger: Path, *, candidates: bool, as_json: bool
) -> None:
    from dpquery.cli.output.plan import BEYOND_BUDGET, plan_grids, plan_json

    if as_json:
        print_json(plan_json(report))
    else:
        print_grids(plan_grids(report, candidates=candidates))
    for name in report.new:
        say(f"{name} is new in this ledger, with a budget of its own")
    say(f"wrote {out}; ledger: {ledger}")
    if report.targets_beyond_budget:
        say(f"dpquery: {BEYOND_BUDGET}")
        raise typer.Exit(1)


@contextmanager
def _announced_if_new(ledger: Path) -> Iterator[None]:
    """Say that a new ledger was made: whoever has spent something has another one somewhere."""
    from dpquery.measurement.ledger.files import risks

    is_new = not os.path.lexists(ledger)
    yield
    if is_new:
        say(f"{ledger} is a new ledger, in which nothing has been spent")
        for risk in risks(ledger):
            say(f"warning: {risk}")
