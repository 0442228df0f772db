"""What `plan` prints of rehearsals on public populations: columns beside estimates, and RAP."""

from dpquery.cli.output.plan_notes import guarantee_text, rmse_text
from dpquery.cli.output.text_table import Grid
from dpquery.plan_file.closest import Contender, PlannedClosest
from dpquery.plan_file.rap_settings import PlannedRap
from dpquery.planning.plan_report import PlanReport
from dpquery.releases.formatting import figure

COLUMN_REMARKS = {
    "estimate": "unbiased, with standard errors (expected)",
    "consistent": "no negative counts, tables that add up (simulated)",
    "shrunk": "the best guess (simulated)",
}


def closest_grids(report: PlanReport) -> list[Grid]:
    """Return the columns that were compared for readers who want what errs least."""
    closest = report.plan.closest
    if closest is None:
        return []
    rows = tuple(_contender_row(contender, closest) for contender in closest.contenders)
    title = (
        f"answers that err least, {guarantee_text(report)}: simulated "
        f"{closest.repetitions} times on {closest.proxy}"
    )
    columns = ("strategy", "column", rmse_text(report), "", "largest error", "", "remark")
    return [Grid(title, columns, rows, _closest_notes(closest, report), closest.chosen)]


def closest_words(report: PlanReport) -> list[str]:
    """Return what the closest answers are expected to err by, for who reads nothing else."""
    closest = report.plan.closest
    if closest is None or closest.best.column == "estimate":
        return []
    best = closest.best
    return [
        f"closest answers: the column `{best.column}` errs by about {figure(best.rmse)} "
        f"(simulated on {closest.proxy})"
    ]


def _contender_row(contender: Contender, closest: PlannedClosest) -> tuple[str, ...]:
    known = contender.column == "estimate"
    runs = 1 if known else closest.repetitions
    return (
        contender.strategy,
        contender.column,
        figure(contender.rmse),
        _spread(runs, contender.rmse_spread),
        figure(contender.max_error),
        _spread(runs, contender.max_error_spread),
        COLUMN_REMARKS[contender.column],
    )


def _closest_notes(closest: PlannedClosest, report: PlanReport) -> tuple[str, ...]:
    """Say which column readers are to take, and what the estimates beside it lose by that."""
    best, first = closest.best, closest.contenders[0]
    objective = report.plan.objective
    if best.column == "estimate":
        return ("the estimates err least; a release has no other column",)
    notes = [
        f"a release writes the column `{best.column}` beside the estimates: it is the closest "
        "guess, biased and without error bars"
    ]
    if best.strategy != first.strategy:
        estimates = next(c for c in closest.contenders if c.strategy == best.strategy)
        lost = estimates.error(objective) / first.error(objective) - 1
        notes.append(
            f"{best.strategy} spends more on tables of few attributes: the estimates err "
            f"{lost:.1%} more than by {first.strategy}"
        )
    return tuple(notes)


def rap_grids(report: PlanReport) -> list[Grid]:
    """Return the comparison with RAP, if there was one: expected against simulated errors."""
    rap, best = report.plan.relaxed, report.priced[0]
    if rap is None:
        return []
    T, K = rap.settings.rounds, rap.settings.selected
    how = f"T = {T}, K = {K}" if rap.settings.adaptive else "all queries measured at once"
    closest = report.plan.closest
    column = "estimate" if closest is None else closest.best.column
    linear = (
        f"{best.selection.best}, {best.selection.noise.capitalize()}"
        + (" (expected)" if column == "estimate" else f", {column} (simulated)"),
        figure(rap.linear_rmse),
        "",
        figure(rap.linear_max_error),
        "",
        "every answer with its error" if column == "estimate" else "beside estimates with errors",
    )
    simulated = (
        "RAP (simulated)",
        figure(rap.rmse),
        _spread(rap.repetitions, rap.rmse_spread),
        figure(rap.max_error),
        _spread(rap.repetitions, rap.max_error_spread),
        f"{how}; answers without error bars",
    )
    runs = "once" if rap.repetitions == 1 else f"{rap.repetitions} times"
    title = f"linear or RAP, {guarantee_text(report)}: RAP rehearsed {runs} on {rap.proxy}"
    columns = ("mechanism", rmse_text(report), "", "largest error", "", "remark")
    return [Grid(title, columns, (linear, simulated), _preference(rap, report), int(rap.preferred))]


def _preference(rap: PlannedRap, report: PlanReport) -> tuple[str, ...]:
    """Say which is preferred, by what rule, and how clearly."""
    error, spread, other = (
        (rap.rmse, rap.rmse_spread, rap.linear_rmse)
        if report.plan.objective == "rmse"
        else (rap.max_error, rap.max_error_spread, rap.linear_max_error)
    )
    if rap.preferred and error >= rap.margin * other:
        return ("preferred: RAP, as it was asked for",)
    what = rmse_text(report) if report.plan.objective == "rmse" else "largest error"
    notes = [
        f"preferred by {what}: {'RAP' if rap.preferred else 'the linear strategy'} "
        f"(RAP is where it is below {rap.margin:g} times the linear one)"
    ]
    if abs(error - rap.margin * other) < spread:
        notes.append("the choice is within the spread of the rehearsals")
    return tuple(notes)


def _spread(runs: int, spread: float) -> str:
    return f"± {figure(spread)}" if runs > 1 else ""  # one run says nothing of it


def rehearsals_json(report: PlanReport) -> dict[str, object]:
    """Return what was rehearsed, in counts: nothing where nothing was."""
    rehearsed: dict[str, object] = {}
    closest, rap = report.plan.closest, report.plan.relaxed
    if closest is not None:
        lines = [vars(contender) for contender in closest.contenders]
        rehearsed["closest"] = vars(closest) | _guarantee(closest) | {"contenders": lines}
    if rap is not None:
        settings = {"settings": vars(rap.settings)}
        rehearsed["rap"] = vars(rap) | _guarantee(rap) | settings
    return rehearsed


def _guarantee(rehearsed: PlannedClosest | PlannedRap) -> dict[str, object]:
    return {"epsilon": float(rehearsed.epsilon), "delta": float(rehearsed.delta)}
