"""What the other commands print, as plain rows and JSON values: no terminal, colours or data."""

from typing import TYPE_CHECKING

from dpquery.cli.output.budget import room_json
from dpquery.cli.output.text_table import Grid
from dpquery.commands.release import ReleaseReport
from dpquery.measurement.accounting import units_text
from dpquery.measurement.ledger.events import Account
from dpquery.mechanisms.linear import LinearMechanism
from dpquery.releases.budget_words import exact_words, room_words, taken_words
from dpquery.releases.formatting import count, figure, level_text
from dpquery.releases.manifest.public_facts import facts_notes
from dpquery.releases.manifest.rap_statement import rmse_name

if TYPE_CHECKING:
    from dpquery.commands.answer import AnswerReport
    from dpquery.mechanisms.adaptive import AdaptiveMechanism
    from dpquery.mechanisms.rap import RapMechanism
    from dpquery.releases.report.error_report import Report


def release_text(done: ReleaseReport, *, exact: bool) -> str:
    """Return the lines that `release` prints; with `exact` the budget to the last digit."""
    mechanism, guarantee = done.mechanism, done.mechanism.query.guarantee
    delta = f", delta = {float(guarantee.delta):g}" if guarantee.delta else ""
    if isinstance(mechanism, LinearMechanism):
        worth = _linear_text(mechanism)
    else:
        worth = _relaxed_text(mechanism)
    account, parent = done.account, done.parent
    if exact:
        budget = exact_words(account, parent=parent)
    else:
        measured = done.measured
        budget = taken_words(measured.charged, account, pure=measured.pure, parent=parent)
    when = "now" if done.free else "after it"
    facts = "".join(note + "\n" for note in facts_notes(done.facts))
    return (
        f"{done.directory}: {count(done.spec.queries, 'answer')} in "
        f"{count(len(done.spec.items), 'item')}, "
        f"epsilon = {float(guarantee.epsilon):g}{delta}\n"
        f"{worth}\n"
        f"{facts}"
        f"budget: {budget}\n"
        f"{when}: {room_words(done.room, 'more like it')}"
    )


def _linear_text(mechanism: LinearMechanism) -> str:
    priced, selection = mechanism.priced, mechanism.priced.selection
    return (
        f"{selection.best} with {selection.noise.capitalize()} noise: expected RMSE "
        f"{figure(priced.rmse)}, largest standard error {figure(priced.max_std_error)}"
    )


def _relaxed_text(mechanism: "RapMechanism | AdaptiveMechanism") -> str:
    simulated, name = mechanism.simulated, mechanism.planned.name
    if simulated is None:
        return f"{name}: no error bars, and the plan simulated no errors at this epsilon and delta"
    return (
        f"{name}: no error bars; simulated on {simulated.proxy}: {rmse_name(simulated)} "
        f"{figure(simulated.rmse)}, largest error {figure(simulated.max_error)}"
    )


def release_json(done: ReleaseReport) -> dict[str, object]:
    """Return what `release --json` prints; budget amounts are exact decimal text.

    Of RAP and adaptive measurement nobody knows the errors: `rmse` and `max_std_error` are null,
    and what the plan simulated is under `simulated`.
    """
    mechanism, guarantee = done.mechanism, done.mechanism.query.guarantee
    return {
        "directory": str(done.directory),
        "queries": done.spec.queries,
        "mechanism": "linear" if isinstance(mechanism, LinearMechanism) else mechanism.planned.key,
        "epsilon": float(guarantee.epsilon),
        "delta": float(guarantee.delta),
        **(
            _linear_json(mechanism)
            if isinstance(mechanism, LinearMechanism)
            else _relaxed_json(mechanism)
        ),
        "free": done.free,
        **({"facts": [vars(fact) for fact in done.facts]} if done.facts else {}),
        "budget": room_json(done.room),
        "currency": done.account.cap.currency,
        **_account_json(done.account),
        "parent": done.parent and {"dataset": done.parent.dataset, **_account_json(done.parent)},
    }


def _account_json(account: Account) -> dict[str, str]:
    return {"spent": units_text(account.spent), "cap": units_text(account.cap.units)}


def _linear_json(mechanism: LinearMechanism) -> dict[str, object]:
    return {
        "strategy": mechanism.priced.selection.best,
        "noise": mechanism.priced.selection.noise,
        "rmse": mechanism.priced.rmse,
        "max_std_error": mechanism.priced.max_std_error,
    }


def _relaxed_json(mechanism: "RapMechanism | AdaptiveMechanism") -> dict[str, object]:
    simulated = None if mechanism.simulated is None else vars(mechanism.simulated)
    facts = {
        "strategy": mechanism.planned.name,
        "noise": "gaussian",
        "rmse": None,
        "max_std_error": None,
    }
    return facts | {"simulated": simulated}


def answer_text(done: "AnswerReport") -> str:
    """Return the lines that `answer` prints."""
    head = f"{done.directory}: {count(done.queries, 'answer')} in {count(len(done.items), 'item')}"
    if done.rmse is None or done.max_std_error is None:
        errors = "no error bars: the release is of relaxed rows"
        if done.guessed:
            names = ", ".join(done.guessed)
            errors += f"\na guess: values of {names} that it does not tell apart are taken as equal"
    else:
        largest = figure(done.max_std_error)
        errors = f"RMSE {figure(done.rmse)}, largest standard error {largest}"
    return f"{head}, from {done.release}\n{errors}"


def answer_json(done: "AnswerReport") -> dict[str, object]:
    """Return what `answer --json` prints."""
    paths = {"directory": str(done.directory), "release": str(done.release)}
    figures = {"rmse": done.rmse, "max_std_error": done.max_std_error, "charged": "0"}
    sizes = {"queries": done.queries, "items": len(done.items), "guessed": list(done.guessed)}
    return {**paths, **sizes, **figures}


def report_grids(report: "Report") -> list[Grid]:
    """Return what `error-report` prints: a line an item, the guarantee, a line a derived item."""
    from dpquery.releases.report.derived_report import INTERVAL_COLUMNS
    from dpquery.releases.report.error_report import headline, to_rows

    title, *notes = headline(report)
    pairs = zip(to_rows(report), report.items, strict=True)
    rows = tuple((*row[:-1], item.grade) for row, item in pairs)  # the page has room for sentences
    grids = [Grid(title, report.columns, rows, tuple(notes))]
    if report.derived:
        level = level_text(report.manifest.level)
        derived = f"derived from the answers: half of the {level} interval, in its unit"
        grids.append(
            Grid(derived, INTERVAL_COLUMNS, tuple(item.summary for item in report.derived))
        )
    return grids
