"""What is printed of rehearsals, of comparisons, of budgets and of who is counted."""

import math

from dpquery.cli.screen import Grid
from dpquery.commands.others import PlanAtEpsilon, PlanComparison
from dpquery.measurement.ledger.funds import epsilon_text
from dpquery.plan_file.rehearsals import (
    ON_DATA,
    PlannedAdaptive,
    PlannedClosest,
    PlannedFit,
    PlannedRap,
)
from dpquery.planning.figures import AtShare, SelectionAtBudget
from dpquery.planning.report import PlanReport, trade_of
from dpquery.planning.worth import NEAR
from dpquery.releases.budget_words import counted_words, room_words, spent_share
from dpquery.releases.statement import simulated_words, sure_words
from dpquery.releases.words import count, figure, percent
from dpquery.spec.columns import Dates, Other
from dpquery.spec.numbers import power
from dpquery.spec.spec import Spec

WEIGHTED = "weighted RMSE"


def rmse_text(report: PlanReport) -> str:
    """Name the RMSE that is minimised: as the workload weighs its items."""
    return WEIGHTED if report.spec.weighted else "RMSE"


def guarantee_text(report: PlanReport) -> str:
    """Return the epsilon of a report, and its delta if it has one."""
    delta = f", delta = {power(float(report.delta))}" if report.delta else ""
    return f"epsilon = {float(report.epsilon):g}{delta}"


def worst_words(report: PlanReport) -> list[str]:
    """Say in words how far answers of the worst item are off, and what would change it."""
    spec, worst = report.spec, report.worth.worst
    name = f"{worst.name} has the largest error: " if len(spec.items) > 1 else ""
    lines = [f"{name}a typical estimate is off by {figure(worst.rmse)}"]
    if worst.average is not None and worst.rmse > worst.average and spec.may_prefer_closest:
        lines.append(
            f"that is more than the {figure(worst.average)} records that its average answer counts:"
            " `prefer: closest` in the spec compares guesses, which are biased and nearer there"
        )
    fixed = any(item.share for item in spec.items)
    if worst.alone < NEAR * worst.rmse and not report.plan.targets and not fixed:
        lines.append(
            f"asked alone it would have {figure(worst.alone)}: a larger `weight` brings it nearer "
            "to that, and the others further away"
        )
    at = f"epsilon = {float(2 * report.epsilon):g}"
    lines.append(f"at {at} all errors are {worst.doubled:.2f} times as large")
    return lines


def share_words(spec: Spec) -> list[str]:
    """Say which items have fixed shares of the budget; nothing where none has one."""
    shares = {item.name: item.share for item in spec.items if item.share is not None}
    if not shares:
        return []
    words = [f"{name} {percent(float(share))}" for name, share in shares.items()]
    left = 1 - sum(shares.values())
    words += [f"all others {percent(float(left))}"] if left else []
    return [f"shares of the budget, as the spec has them: {', '.join(words)}"]


def cost(report: PlanReport) -> str:
    """Say what a release takes of the budget, what for, and how many fit."""
    best, fitted, room = report.priced[0], report.plan.preferred, report.room
    if room is None:
        noise = f"{_noise(best)} noise cannot be drawn at {guarantee_text(report)}"
        return f"{noise}, which makes next to none: name a smaller --epsilon"
    account = room.funds.tighter
    whose = f" of {account.dataset}" if account is room.funds.parent else ""
    spent = f", of which {spent_share(account)} is spent" if account.spent else ""
    verb = "uses" if room.share <= 1 else "would use"
    return (
        f"a release {f'by {fitted.name}' if fitted else f'with {_noise(best)} noise'} "
        f"{verb} {percent(room.share)} of the budget{whose} "
        f"({counted_words(account, room.price)}){spent}; "
        f"{room_words(room, 'of them', report.spent_delta)}"
    )


def otherwise(report: PlanReport) -> list[str]:
    """Say what the share buys with other noise, and what the other takes at the same epsilon."""
    best, lines = report.priced[0], []
    for other in report.priced[1:]:
        exchange = report.exchanges[other.selection.noise]
        if exchange.other is not None:
            lines.append(f"the same share gives {_bought(report, other, exchange.other)}")
        noise = f"{_noise(other)} noise at epsilon = {float(other.epsilon):g}"
        if other.share < math.inf:
            verb = "uses" if other.share <= 1 else "would use"
            error = _what(report, other.score)
            line = f"{noise} {verb} {percent(other.share)} of the budget, for {error}"
            if exchange.better is not None:
                line += f"; that share gives {_bought(report, best, exchange.better)}"
            lines.append(line)
        else:
            lines.append(f"{noise} cannot be drawn")
    return lines


def _bought(report: PlanReport, priced: SelectionAtBudget, at_share: AtShare) -> str:
    error = _what(report, at_share.std * (priced.selection.score or math.inf))
    return f"{error} with {_noise(priced)} noise, at epsilon = {epsilon_text(at_share.epsilon)}"


def _what(report: PlanReport, score: float) -> str:
    if report.plan.targets:
        return f"{score:.3f} x the targets"
    name = (
        "a largest standard error" if report.plan.objective == "max" else f"an {rmse_text(report)}"
    )
    return f"{name.replace('an weighted', 'a weighted')} of {figure(score)}"


def other_objective(report: PlanReport) -> list[str]:
    """Name a compared strategy that is much better by the other objective and hardly worse."""
    best = report.priced[0]
    other = None if report.plan.targets else trade_of(best.selection, report.plan.objective)
    if other is None:
        return []
    largest = "largest standard error"
    names = (largest, rmse_text(report)) if report.plan.objective == "rmse" else ("RMSE", largest)
    objective = "max" if report.plan.objective == "rmse" else "rmse"
    return [
        f"{other.name} has a {names[0]} of {figure(best.std * other.figure)} in place of "
        f"{figure(best.std * other.in_place_of)}, for {percent(other.costs)} more {names[1]}: "
        f"--objective {objective} looks for the least"
    ]


def risk(report: PlanReport) -> str:
    """Say what the guarantee bounds, in the words of the statement."""
    delta = report.spent_delta
    aside = f", an extra probability of {power(float(delta))} aside" if delta else ""
    return f"risk: {sure_words(float(report.epsilon), aside)}".replace("Somebody", "somebody")


def _noise(priced: SelectionAtBudget) -> str:
    return priced.selection.noise.capitalize()


COLUMN_REMARKS = {
    "estimate": "unbiased, with standard errors (expected)",
    "consistent": "no negative counts, tables that add up (simulated)",
    "shrunk": "the best guess (simulated)",
    "averaged": "its mean with fitted records (simulated)",
}


def closest_grids(report: PlanReport) -> list[Grid]:
    """Return the columns that were compared for readers who want what errs least."""
    closest = report.plan.closest
    if closest is None:
        return []
    rows = tuple(
        (
            contender.strategy,
            contender.column,
            figure(contender.rmse),
            _spread(runs, contender.rmse_spread),
            figure(contender.max_error),
            _spread(runs, contender.max_error_spread),
            COLUMN_REMARKS[contender.column],
        )
        for contender in closest.contenders
        for runs in [1 if contender.column == "estimate" else closest.repetitions]
    )
    title = (
        f"answers with the smallest error, {guarantee_text(report)}: simulated "
        f"{closest.repetitions} times on {closest.proxy}"
    )
    columns = ("strategy", "column", rmse_text(report), "", "largest error", "", "remark")
    return [Grid(title, columns, rows, _closest_notes(closest, report), closest.chosen)]


def closest_notes(report: PlanReport) -> list[tuple[str, str]]:
    """Return what is closest and by how much it errs, under the word that the line begins with."""
    fitted = report.plan.preferred
    if fitted is not None:
        word = "errors" if report.spec.prefer == "unbiased" else "closest"
        return [(word, _fitted_words(report, fitted))]
    if report.nearer is not None:
        estimates = figure(report.priced[0].weighted_rmse)
        words = f"would have an error of about {figure(report.nearer)} instead of {estimates}"
        return [("closest", f"`prefer: closest` {words}")]
    if report.spec.prefer == "unbiased":
        return []
    return [("closest", _column_words(report, report.plan.closest))]


def _fitted_words(report: PlanReport, fitted: PlannedFit) -> str:
    column = report.closest_column
    measures = "; a release measures how far off its tables are" * (fitted.key == "adaptive")
    simulated = simulated_words(fitted, weighted=report.spec.weighted)
    bars = "with error bars" if column == "estimate" else f"in its column `{column}`"
    linear = f"; the linear strategy has {figure(fitted.linear_rmse)} {bars}"
    return f"{simulated}{_on_data(fitted.key, fitted.proxy)}{linear}{measures}"


def _column_words(report: PlanReport, closest: PlannedClosest | None) -> str:
    estimates = figure(report.priced[0].weighted_rmse)
    if closest is None:
        return "nothing nearer was compared: a release gives the unbiased estimates (see note)"
    column, error = closest.best.column, closest.best.rmse
    if column == "estimate":
        return f"the estimates, with an error of {estimates}"
    near = "".join(
        f"; {fit.name}, with {figure(fit.rmse)}, is not clearly closer"
        for fit in report.plan.fits
        if fit.rmse < error
    )
    return (
        f"the column `{column}`, with an error of about {figure(error)} (simulated on "
        f"{closest.proxy}{_on_data(column, closest.proxy)}); the estimates have {estimates}{near}"
    )


def _on_data(what: str, proxy: str) -> str:
    """Say how far off such figures were, where they come from made-up populations."""
    if what not in ON_DATA or "made-up" not in proxy:
        return ""
    low, high = ON_DATA[what]
    return f"; on ten data sets mostly {low:g} to {high:g} times as much"


def _closest_notes(closest: PlannedClosest, report: PlanReport) -> tuple[str, ...]:
    """Say which column readers are to take, and what the estimates beside it lose by that."""
    best, first = closest.best, closest.contenders[0]
    objective = report.plan.objective
    if best.column == "estimate":
        return ("of these the estimates have the smallest error",)
    writes = "a release writes" if report.plan.preferred is None else "a linear release would write"
    notes = [
        f"{writes} the column `{best.column}` beside the estimates: it is the closest of these "
        "guesses, biased and without error bars"
    ]
    if best.strategy != first.strategy:
        estimates = next(c for c in closest.contenders if c.strategy == best.strategy)
        lost = estimates.error(objective) / first.error(objective) - 1
        notes.append(
            f"{best.strategy} spends more on tables of few attributes: the estimates have "
            f"{lost:.1%} more error than with {first.strategy}"
        )
    return tuple(notes)


def fit_grids(report: PlanReport) -> list[Grid]:
    """Return the comparison with RAP and adaptive measurement, if there was one."""
    best, fits, column = report.priced[0], report.plan.fits, report.closest_column
    if not fits:
        return []
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
        closer = "; the linear strategy has the smaller error" if error >= linear else ""
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
    plan, rehearsed = report.plan, dict[str, object]()
    for key, one in (("closest", plan.closest), ("rap", plan.relaxed), ("adaptive", plan.adaptive)):
        if one is not None:
            figures = vars(one) | {"epsilon": float(one.epsilon), "delta": float(one.delta)}
            if isinstance(one, PlannedClosest):
                figures["contenders"] = [vars(contender) for contender in one.contenders]
            elif isinstance(one, PlannedRap):
                figures["settings"] = vars(one.settings)
            rehearsed[key] = figures
    return rehearsed


_NONE = (0, math.nan, math.nan)  # queries and errors of an item that a plan does not have
COLUMNS = ("item", "queries", "RMSE, first", "second", "ratio", "max std error, first", "second")


def compare_grid(compared: PlanComparison) -> Grid:
    """Return a line an item of either plan, in the order of the first, then of the second."""
    first, second = compared.first.errors(), compared.second.errors()
    rows = []
    for item in dict.fromkeys([*first, *second]):
        queries, rmse, largest = zip(
            *(one.get(item, _NONE) for one in (first, second)), strict=True
        )
        sizes = dict.fromkeys(f"{size:,}" for size in queries if size)
        both = all(queries)
        rows.append(
            (
                item,
                " and ".join(sizes),
                *map(_figure, rmse),
                f"{rmse[1] / rmse[0]:.3f}" if both and rmse[0] > 0 else "",
                *map(_figure, largest),
            )
        )
    notes = [
        line
        for place, one in (("first", compared.first), ("second", compared.second))
        for line in _words(place, one)
    ]
    title = f"expected errors in counts at epsilon = {float(compared.epsilon):g}"
    return Grid(title, COLUMNS, tuple(rows), tuple(notes))


def _figure(value: float) -> str:
    return "" if math.isnan(value) else figure(value)


def _words(place: str, one: PlanAtEpsilon) -> list[str]:
    """Return what a plan is, its error over all queries and its price, and what is not shown."""
    best, delta = one.best, f", delta = {power(float(one.delta))}" if one.delta else ""
    price = (
        "more than the whole budget" if best.share > 1 else f"{percent(best.share)} of the budget"
    )
    words = (
        f"{place}: {one.name}, {best.selection.best} with {best.selection.noise.capitalize()} "
        f"noise{delta}; RMSE {figure(best.rmse)} over {count(one.spec.queries, 'query')}; {price}"
    )
    if (preferred := one.plan.preferred) is None:
        return [words]
    return [
        words,
        f"{place}: prefers {preferred.name}, whose errors depend on the records; shown is its "
        "linear strategy",
    ]


def compare_json(compared: PlanComparison) -> dict[str, object]:
    """Return what `compare --json` prints."""
    return {
        "epsilon": float(compared.epsilon),
        **{
            place: {
                "name": one.name,
                "noise": one.best.selection.noise,
                "strategy": one.best.selection.best,
                "delta": float(one.delta),
                "rmse": one.best.rmse,
                "max_std_error": one.best.max_std_error,
                "budget_share": one.best.share if math.isfinite(one.best.share) else None,
                "prefers_rap": isinstance(one.plan.preferred, PlannedRap),
                "prefers": one.plan.preferred.key if one.plan.preferred else "linear",
                "items": [
                    {"name": item, "queries": queries, "rmse": rmse, "max_std_error": largest}
                    for item, (queries, rmse, largest) in one.errors().items()
                ],
            }
            for place, one in (("first", compared.first), ("second", compared.second))
        },
    }


OTHER_WORDS: dict[Other, str] = {
    "count": "counted in totals alone",
    "show": "shown as other",
    "drop": "the record is dropped",
}
LISTED_COLUMNS = 50  # lines


def domain_grid(spec: Spec) -> Grid:
    """Return a line for every column of the domain, and whose records are in no table."""
    rows = []
    for attribute in spec.domain.in_data:
        for column in attribute.columns:
            name = f"{attribute.name} ({column.name})" if attribute.merged else attribute.name
            rows.append((name, column.kind.words, OTHER_WORDS[column.other]))
    dropping = [name for name, _, other in rows if other == OTHER_WORDS["drop"]]
    notes = []
    if len(rows) > LISTED_COLUMNS:
        notes.append(f"and {len(rows) - LISTED_COLUMNS} more")
    if dropping:
        named = ", ".join(dropping[:LISTED_COLUMNS]) + ", ..." * (len(dropping) > LISTED_COLUMNS)
        notes.append(
            f"left out of every table, of the total too: records with another value of {named}"
        )
    else:
        notes.append("no record is left out because of its values")
    for column in spec.domain.columns:
        if column.number is not None:
            notes.append(f"numbers of {column.name} are read as {column.number.example}")
        if isinstance(column.kind, Dates):
            example = column.kind.format.example
            notes.append(f"dates of {column.name} are read as {example}; `format` says so")
            if not column.kind.format.text:
                notes.append(f"times of {column.name} with a zone count on the day of that zone")
    for attribute in spec.domain.attributes:
        if not attribute.in_data:
            most = attribute.label(attribute.length - 2)
            noun = "row" if most == "1" else "rows"
            notes.append(f"{attribute.name} tells up to {most} {noun} of a person apart, and more")
    columns = ("attribute", "values", "any other value")
    return Grid("who is counted", columns, tuple(rows[:LISTED_COLUMNS]), tuple(notes))


def domain_json(spec: Spec) -> list[dict[str, object]]:
    """Return the same as JSON values, one for each column."""
    return [
        {
            "attribute": attribute.name,
            "column": column.name,
            "values": column.kind.words,
            "count": column.length,
            "other": column.other,
        }
        for attribute in spec.domain.in_data
        for column in attribute.columns
    ]
