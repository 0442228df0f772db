"""What `plan` says of the budget, of other noise and of the risk, in a line each."""

import math

from dpquery.measurement.ledger.funds import epsilon_text
from dpquery.planning.figures import AtShare, SelectionAtBudget
from dpquery.planning.plan_report import PlanReport
from dpquery.planning.trades import trade_of
from dpquery.releases.budget_words import counted_words, room_words, spent_share
from dpquery.releases.formatting import figure, percent, power
from dpquery.releases.manifest.statement import sure_words
from dpquery.spec.model import Spec

WEIGHTED = "weighted RMSE"
NEAR = 0.9  # of its error: what an item could err alone is then worth no word


def rmse_text(report: PlanReport) -> str:
    """Name the RMSE that is minimised: as the workload weighs its items."""
    return WEIGHTED if report.spec.weighted else "RMSE"


def guarantee_text(report: PlanReport) -> str:
    """Return the epsilon of a report, and its delta if it has one."""
    delta = f", delta = {float(report.delta):g}" if report.delta else ""
    return f"epsilon = {float(report.epsilon):g}{delta}"


def worst_words(report: PlanReport) -> list[str]:
    """Say in words how far answers of the worst item are off, and what would change it."""
    spec, worst = report.spec, report.worst
    name = f"{worst.name} errs most: " if len(spec.items) > 1 else ""
    lines = [
        f"{name}a typical answer is off by {figure(worst.rmse)}, and 19 of 20 by less than about "
        f"{figure(2 * worst.rmse)}"
    ]
    if worst.average is not None and worst.rmse > worst.average and spec.prefer == "unbiased":
        lines.append(
            f"that is more than the {figure(worst.average)} records that its average answer counts:"
            " `prefer: closest` in the spec compares guesses, which are biased and err less there"
        )
    fixed = any(item.share for item in spec.items)
    if worst.alone < NEAR * worst.rmse and not report.plan.targets and not fixed:
        lines.append(
            f"asked alone it would err by {figure(worst.alone)}: a larger `weight` takes it nearer "
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
        return f"{_noise(best)} noise cannot be drawn at {guarantee_text(report)}"
    account = room.funds.tighter
    whose = f" of {account.dataset}" if account is room.funds.parent else ""
    spent = f", of which {spent_share(account)} is spent" if account.spent else ""
    verb = "takes" if room.share <= 1 else "would take"
    return (
        f"a release {f'by {fitted.name}' if fitted else f'with {_noise(best)} noise'} "
        f"{verb} {percent(room.share)} of the budget{whose} "
        f"({counted_words(account, room.price)}){spent}; {room_words(room, 'of them')}"
    )


def otherwise(report: PlanReport) -> list[str]:
    """Say what the share buys with other noise, and what the other takes at the same epsilon."""
    best, lines = report.priced[0], []
    for other in report.priced[1:]:
        exchange = report.exchanges[other.selection.noise]
        if exchange.other is not None:
            lines.append(f"the same share buys {_bought(report, other, exchange.other)}")
        noise = f"{_noise(other)} noise at epsilon = {float(other.epsilon):g}"
        if other.share < math.inf:
            verb = "takes" if other.share <= 1 else "would take"
            error = _what(report, other.score)
            line = f"{noise} {verb} {percent(other.share)} of the budget, for {error}"
            if exchange.better is not None:
                line += f"; that buys {_bought(report, best, exchange.better)}"
            lines.append(line)
        else:
            lines.append(f"{noise} cannot be drawn")
    return lines


def _bought(report: PlanReport, priced: SelectionAtBudget, at_share: AtShare) -> str:
    error = _what(report, at_share.std * (priced.selection.score or math.inf))
    return f"{error} with {_noise(priced)} noise, at epsilon = {epsilon_text(at_share.epsilon)}"


def _what(report: PlanReport, score: float) -> str:
    """Name a figure that was minimised."""
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
    pure = report.priced[0].selection.noise == "laplace" and not report.plan.preferred
    aside = "" if pure else f", an extra probability of {power(float(report.delta))} aside"
    return f"risk: {sure_words(float(report.epsilon), aside)}".replace("Somebody", "somebody")


def _noise(priced: SelectionAtBudget) -> str:
    return priced.selection.noise.capitalize()
