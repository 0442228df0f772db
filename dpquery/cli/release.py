"""`dpquery release`: a plan carried out on data."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpquery.cli.options import (
    Also,
    AsJson,
    AsPlanned,
    Confidence,
    Delta,
    Exact,
    LedgerPath,
    NoiseOption,
    Number,
    ReleaseMechanismOption,
    Replace,
    Same,
    ledger_path,
)
from dpquery.cli.output.screen import print_json, say, show, shown_progress
from dpquery.commands.defaults import (
    MECHANISM_CHOICE,
    NOISE_CHOICE,
    PLAN_PATH,
    RELEASE_NUMBER,
    RELEASE_PATH,
)
from dpquery.exceptions import BudgetExceededError

if TYPE_CHECKING:
    from dpquery.commands.release import ReleaseReport


def release_command(
    data: Annotated[
        list[str],
        typer.Argument(
            help="The data: text with a header, Parquet or Arrow files, a folder or quoted glob of "
            "them, sqlite:FILE?table=NAME, duckdb:FILE?table=NAME, spark:PATH or spark:table=NAME; "
            "several are one table. Also adbc:VARIABLE?table=NAME and odbc:VARIABLE?table=NAME; "
            "ibis:duckdb:FILE?table=NAME counts in place."
        ),
    ],
    epsilon: Annotated[str, typer.Option(help="What this release may spend.")],
    delta: Delta = None,
    plan: Annotated[Path, typer.Option(help="The plan to carry out.")] = Path(PLAN_PATH),
    out: Annotated[Path, typer.Option(help="The release directory.")] = Path(RELEASE_PATH),
    mechanism: ReleaseMechanismOption = MECHANISM_CHOICE,
    noise: NoiseOption = NOISE_CHOICE,
    also: Also = None,
    confidence: Confidence = None,
    release_number: Number = RELEASE_NUMBER,
    replace: Replace = False,
    memory: Annotated[
        str | None,
        typer.Option(
            help="For rows of persons held at a time, such as 4GB; default: 1GiB. Less takes more "
            "passes over the data."
        ),
    ] = None,
    as_planned: AsPlanned = False,
    same: Same = False,
    ledger: LedgerPath = None,
    exact: Exact = False,
    as_json: AsJson = False,
) -> None:
    """Carry out a plan: charge, measure, and write every answer.

    By RAP, answers have no error bars and relaxed rows lie beside them: see `dpquery synthetic`.
    The same release again is free: it comes from the ledger and the data is not opened.
    """
    from dpquery.cli.no_dumps import forbid_dumps
    from dpquery.commands.release import release

    forbid_dumps()
    with shown_progress(), _exact_refusals(exact=exact):
        done = release(
            data,
            plan_path=plan,
            ledger_path=ledger_path(ledger),
            out=out,
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            noise=noise,
            also=also or (),
            confidence=confidence,
            release_number=release_number,
            replace=replace,
            memory=memory,
            as_planned=as_planned,
            same=same,
        )
    _show_release(done, data, exact=exact, as_json=as_json)
    say(f"ledger: {ledger_path(ledger)}")


@contextmanager
def _exact_refusals(*, exact: bool) -> Iterator[None]:
    """With `exact`, add to a refusal of a charge what it was refused by, to the last digit."""
    try:
        yield
    except BudgetExceededError as refusal:
        if not (exact and refusal.exactly):
            raise
        raise BudgetExceededError(f"{refusal}; exactly: {refusal.exactly}") from None


def _show_release(done: "ReleaseReport", data: list[str], *, exact: bool, as_json: bool) -> None:
    from dpquery.cli.output import release as summary

    if done.stale is not None:
        say(f"warning: {done.stale}")
    if as_json:
        print_json(summary.release_json(done))
    else:
        show(summary.release_text(done, exact=exact))
    if done.remark:
        say(done.remark)
    if done.changed is not None:
        say(
            f"{done.changed.name} has changed since it was planned: this is the release of the "
            "plan; `dpquery plan` takes up what is new"
        )
    if done.free:
        unopened = data[0] if len(data) == 1 else f"{data[0]} and {len(data) - 1} more"
        say(f"nothing was charged: the ledger holds this release, and {unopened} was not opened")
