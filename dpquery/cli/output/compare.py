"""What `compare` prints: the expected errors of two plans side by side."""

import math

from dpquery.cli.output.text_table import Grid
from dpquery.commands.compare import PlanAtEpsilon, PlanComparison
from dpquery.plan_file.rap_settings import PlannedRap
from dpquery.releases.formatting import count, figure, percent

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
    best, delta = one.best, f", delta = {float(one.delta):g}" if one.delta else ""
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
