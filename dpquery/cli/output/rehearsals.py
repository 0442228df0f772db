"""What `plan` prints of rehearsals on public populations: columns beside estimates, RAP, tables."""

from dpquery.cli.output.plan_notes import guarantee_text, rmse_text
from dpquery.cli.output.text_table import Grid
from dpquery.plan_file.closest import Contender, PlannedClosest
from dpquery.plan_file.rap_settings import PlannedAdaptive, PlannedFit
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
    closest, fitted = report.plan.closest, report.plan.preferred
    if closest is None or (fitted is None and closest.best.column == "estimate"):
        return []
    best = closest.best
    if fitted is not None:
        return [
            f"closest answers: those of {fitted.name} err by about {figure(fitted.rmse)} "
            f"(simulated on {fitted.proxy})"
        ]
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
        return ("of these the estimates err least",)
    writes = "a release writes" if report.plan.preferred is None else "a linear release would write"
    notes = [
        f"{writes} the column `{best.column}` beside the estimates: it is the closest of these "
        "guesses, biased and without error bars"
    ]
    if best.strategy != first.strategy:
        estimates = next(c for c in closest.contenders if c.strategy == best.strategy)
        lost = estimates.error(objective) / first.error(objective) - 1
        notes.append(
            f"{best.strategy} spends more on tables of few attributes: the estimates err "
            f"{lost:.1%} more than by {first.strategy}"
        )
    return tuple(notes)


def fit_grids(report: PlanReport) -> list[Grid]:
    """Return the comparison with RAP and adaptive measurement, if there was one."""
    best, closest, fits = report.priced[0], report.plan.closest, report.plan.fits
    if not fits:
        return []
    column = "estimate" if closest is None else closest.best.column
    linear = (
        f"{best.selection.best}, {best.selection.noise.capitalize()}"
        + (" (expected)" if column == "estimate" else f", {column} (simulated)"),
        figure(fits[0].linear_rmse),
        "",
        figure(fits[0].linear_max_error),
        "",
        "every answer with its error" if column == "estimate" else "beside estimates with errors",
    )
    simulated = tuple(
        (
            f"{fit.name} (simulated)",
            figure(fit.rmse),
            _spread(fit.repetitions, fit.rmse_spread),
            figure(fit.max_error),
            _spread(fit.repetitions, fit.max_error_spread),
            f"{_how(fit)}; answers without error bars",
        )
        for fit in fits
    )
    names = [fit.name for fit in fits]
    rehearsed = ", ".join(
        f"{fit.name} rehearsed {'once' if fit.repetitions == 1 else f'{fit.repetitions} times'}"
        for fit in fits
    )
    title = (
        f"{', '.join(['linear', *names[:-1]])} or {names[-1]}, {guarantee_text(report)}: "
        f"{rehearsed} on {fits[0].proxy}"
    )
    columns = ("mechanism", rmse_text(report), "", "largest error", "", "remark")
    chosen = next((place for place, fit in enumerate(fits, 1) if fit.preferred), 0)
    return [Grid(title, columns, (linear, *simulated), _preference(report), chosen)]


def _how(fit: PlannedFit) -> str:
    """Return what a rehearsal chose and measured."""
    if isinstance(fit, PlannedAdaptive):
        return f"some {fit.rounds} rounds among {fit.tables:,} tables"
    T, K = fit.settings.rounds, fit.settings.selected
    return f"T = {T}, K = {K}" if fit.settings.adaptive else "all queries measured at once"


def _preference(report: PlanReport) -> tuple[str, ...]:
    """Say which is preferred, by what rule, and how clearly."""
    plan, preferred = report.plan, report.plan.preferred
    objective = plan.objective
    best = min(plan.fits, key=lambda fit: fit.weighed(objective))
    if preferred is not None and (preferred is not best or best.weighed(objective) >= 1):
        error, _, linear = preferred.error(objective)
        closer = "; the linear strategy errs less" if error >= linear else ""
        return (f"preferred: {preferred.name}, as it was asked for{closer}",)
    what = rmse_text(report) if objective == "rmse" else "largest error"
    first, *others = (
        f"{fit.name} {{}}below {fit.margin:g} times the linear one" for fit in plan.fits
    )
    rules = [first.format("is where it is "), *(rule.format("") for rule in others)]
    winner = "the linear strategy" if preferred is None else preferred.name
    notes = [f"preferred by {what}: {winner} ({', '.join(rules)})"]
    error, spread, linear = best.error(objective)
    if abs(error - best.margin * linear) < spread:
        notes.append("the choice is within the spread of the rehearsals")
    return tuple(notes)


def _spread(runs: int, spread: float) -> str:
    return f"spread {figure(spread)}" if runs > 1 else ""  # one run says nothing of it


def rehearsals_json(report: PlanReport) -> dict[str, object]:
    """Return what was rehearsed, in counts: nothing where nothing was."""
    rehearsed: dict[str, object] = {}
    closest, rap, adaptive = report.plan.closest, report.plan.relaxed, report.plan.adaptive
    if closest is not None:
        lines = [vars(contender) for contender in closest.contenders]
        rehearsed["closest"] = vars(closest) | _guarantee(closest) | {"contenders": lines}
    if rap is not None:
        settings = {"settings": vars(rap.settings)}
        rehearsed["rap"] = vars(rap) | _guarantee(rap) | settings
    if adaptive is not None:
        rehearsed["adaptive"] = vars(adaptive) | _guarantee(adaptive)
    return rehearsed


def _guarantee(rehearsed: PlannedClosest | PlannedFit) -> dict[str, object]:
    return {"epsilon": float(rehearsed.epsilon), "delta": float(rehearsed.delta)}
