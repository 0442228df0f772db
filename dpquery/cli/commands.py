"""The commands of a release, in the order they are typed: init, plan, release, error-report.

Heavy modules are imported inside commands, so that --help is quick.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from dpquery.cli.options import (
    Also,
    AsJson,
    ChangeCap,
    Confidence,
    Delta,
    Jobs,
    LedgerPath,
    Noise,
    Number,
    Objective,
    PlanMechanism,
    ProxyPath,
    RapSearch,
    ReleaseMechanism,
    Replace,
    Seed,
    Shown,
    SweepList,
    Targets,
    TimeLimit,
    ledger_path,
)
from dpquery.cli.screen import print_grids, print_json, say, show, shown_progress
from dpquery.exceptions import PlanConflictError, SpecError
from dpquery.spec.problems import one_of

if TYPE_CHECKING:
    from dpquery.planning.comparison import Wanted
    from dpquery.planning.plan_report import PlanReport

if TYPE_CHECKING:
    from dpquery.commands.release import ReleaseReport


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("workload.yaml"),
) -> None:
    """Write a commented spec to start from.

    Its JSON Schema goes beside it, as workload.schema.json: editors complete and check with it.
    """
    from dpquery.spec.documents.json_schema import schema_text
    from dpquery.spec.documents.starter import STARTER
    from dpquery.untrusted.atomic_write import check_place

    check_place(path)
    beside = path.with_name("workload.schema.json")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(STARTER)
        if not beside.exists():
            beside.write_text(schema_text(), encoding="utf-8")
    except FileExistsError:
        raise PlanConflictError(f"{path} exists; name another file, or remove it first") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}; check the path") from None
    say(f"wrote {path}; edit it, then run `dpquery plan {path}`")


def schema() -> None:
    """Print the JSON Schema (draft 7) of the spec."""
    from dpquery.spec.documents.json_schema import schema_text

    typer.echo(schema_text(), nl=False)


def plan(
    spec: Annotated[Path, typer.Argument(help="The workload: a YAML file.")],
    epsilon: Shown = None,
    delta: Delta = None,
    objective: Objective = "rmse",
    target: Targets = None,
    sweep: SweepList = None,
    mechanism: PlanMechanism = "auto",
    proxy: ProxyPath = None,
    rap_search: RapSearch = False,
    out: Annotated[Path, typer.Option(help="Where the plan goes.")] = Path("dpquery.plan"),
    seed: Seed = 0,
    time_limit: TimeLimit = 60.0,
    jobs: Jobs = 2,
    change_cap: ChangeCap = False,
    ledger: LedgerPath = None,
    as_json: AsJson = False,
) -> None:
    """Choose the best strategy for a workload, without data.

    Shows what each candidate is worth, writes the plan, and puts the dataset and its cap on record
    in the ledger.
    """
    from dpquery.commands import plan as plan_command
    from dpquery.measurement.accounting import parse_delta, parse_epsilon
    from dpquery.strategy.search import select

    with _told_if_new(ledger_path(ledger)), shown_progress() as progress:
        report = plan_command.plan(
            spec,
            plan_path=out,
            ledger_path=ledger_path(ledger),
            objective=one_of("objective", objective, get_args(select.Objective)),
            targets=target or (),
            sweep=sweep,
            seed=seed,
            time_limit=time_limit,
            jobs=min(jobs, os.cpu_count() or 1),
            change_cap=change_cap,
            epsilon=None if epsilon is None else parse_epsilon(epsilon),
            delta=None if delta is None else parse_delta(delta),
            compare=_wanted(mechanism, proxy, rap_search),
            progress=progress,
        )
    _show_plan(report, out, ledger_path(ledger), as_json=as_json)


def _wanted(mechanism: str, proxy: Path | None, search: bool) -> "Wanted":
    from dpquery.planning.comparison import Mechanism, Wanted

    return Wanted(one_of("mechanism", mechanism, get_args(Mechanism)), proxy, search)


def _show_plan(report: "PlanReport", out: Path, ledger: Path, *, as_json: bool) -> None:
    from dpquery.cli.summary_plan import plan_grids, plan_json

    if as_json:
        print_json(plan_json(report))
    else:
        print_grids(plan_grids(report))
    say(f"wrote {out}; ledger: {ledger}")


@contextmanager
def _told_if_new(ledger: Path) -> Iterator[None]:
    """Say that a new ledger was made: whoever has spent something has another one somewhere."""
    from dpquery.measurement.ledger.files import risks

    is_new = not os.path.lexists(ledger)
    yield
    if is_new:
        say(f"{ledger} is a new ledger, in which nothing has been spent")
        for risk in risks(ledger):
            say(f"warning: {risk}")


def release(
    data: Annotated[Path, typer.Argument(help="The data: a CSV file with a header.")],
    epsilon: Annotated[str, typer.Option(help="What this release may spend.")],
    delta: Delta = None,
    plan: Annotated[Path, typer.Option(help="The plan to carry out.")] = Path("dpquery.plan"),
    out: Annotated[Path, typer.Option(help="The release directory.")] = Path("release"),
    mechanism: ReleaseMechanism = "auto",
    noise: Noise = "auto",
    also: Also = None,
    confidence: Confidence = None,
    release_number: Number = 1,
    replace: Replace = False,
    ledger: LedgerPath = None,
    as_json: AsJson = False,
) -> None:
    """Carry out a plan: charge, measure, and write every answer.

    By RAP, answers have no error bars and relaxed rows lie beside them: see `dpquery synthetic`.
    The same release again is free: it comes from the ledger and the data is not opened.
    """
    from dpquery.cli.no_dumps import forbid_dumps
    from dpquery.commands import release as release_command
    from dpquery.measurement.accounting import parse_delta, parse_epsilon
    from dpquery.planning.comparison import Mechanism
    from dpquery.strategy import noise_kinds

    forbid_dumps()
    with shown_progress() as progress:
        done = release_command.release(
            data,
            plan_path=plan,
            ledger_path=ledger_path(ledger),
            out=out,
            epsilon=parse_epsilon(epsilon),
            delta=None if delta is None else parse_delta(delta),
            mechanism=one_of("mechanism", mechanism, get_args(Mechanism)),
            noise=noise_kinds.chosen(one_of("noise", noise, noise_kinds.CHOICES)),
            also=also or (),
            confidence=confidence,
            release_number=release_number,
            replace=replace,
            progress=progress,
        )
    _show_release(done, as_json=as_json)
    say(f"ledger: {ledger_path(ledger)}")


def _show_release(done: "ReleaseReport", *, as_json: bool) -> None:
    from dpquery.cli import summary

    if as_json:
        print_json(summary.release_json(done))
    else:
        show(summary.release_text(done))
    if done.remark:
        say(done.remark)
    if done.free:
        say("nothing was charged: the ledger holds this release, and the data was not opened")


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
    from dpquery.cli import summary
    from dpquery.release.report import html as page
    from dpquery.release.report import report
    from dpquery.untrusted.atomic_write import check_place

    check_place(html, mark=page.MARK)
    loaded = report.load(directory)
    page.write_html(loaded, html)
    if as_json:
        print_json(report.to_json(loaded))
    else:
        print_grids([summary.report_grid(loaded)])
    say(f"wrote {html}")
