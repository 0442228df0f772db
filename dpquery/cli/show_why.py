"""What `plan --why` prints of what is behind a choice, `--candidates`, and `plan --json`."""

import math
from collections.abc import Sequence

from dpquery.cli.screen import Grid
from dpquery.cli.show_comparison import (
    WEIGHTED,
    closest_grids,
    closest_notes,
    cost,
    domain_grid,
    domain_json,
    fit_grids,
    guarantee_text,
    other_objective,
    otherwise,
    rehearsals_json,
    risk,
    rmse_text,
    share_words,
    worst_words,
)
from dpquery.cli.show_plan import (
    BEYOND_BUDGET,
    asked_grids,
    expected_grid,
    least_words,
    ratio_to_bound,
    sample_notes,
    worth_json,
)
from dpquery.cli.show_release import room_json
from dpquery.plan_file.plan import CandidateFigures
from dpquery.planning.figures import SelectionAtBudget
from dpquery.planning.report import PlanReport
from dpquery.planning.targets import Reached
from dpquery.releases.budget_words import delta_words
from dpquery.releases.manifest_facts import SummedFacts, summed_facts
from dpquery.releases.words import count, figure, rows_counted
from dpquery.spec.spec import Spec
from dpquery.strategy.search.select import CLOSED_FORMS, LEFT_OUT

PUBLISHED = {name for name, _ in CLOSED_FORMS}
TARGETS = "x targets"
_IN_COUNTS = ("rmse", "weighted_rmse", "max_std_error", "score")  # figures of a candidate
OPTIMAL = 1.001  # ratio to a proven lower bound up to which a strategy is called optimal


def why_grids(report: PlanReport, *, candidates: bool = False) -> list[Grid]:
    """Return all that is known of a plan: what it is worth, why it was chosen, who is counted."""
    spec, best = report.spec, report.priced[0]
    compared = sum(len(priced.selection.candidates) for priced in report.priced)
    notes = [
        *([BEYOND_BUDGET] if report.targets_beyond_budget else []),
        *(f"{word}: {text}" for word, text in closest_notes(report)),
        *worst_words(report),
        *_total_words(report),
        *report.facts,
        *share_words(spec),
        _chosen(report),
        *([] if candidates else [f"--candidates shows the {compared} strategies compared"]),
        cost(report),
        *otherwise(report),
        *other_objective(report),
        *least_words(report),
        risk(report),
    ]
    notes += _unfinished(report)
    notes += _rows_of_persons(spec)
    notes += [words for _, words in sample_notes(report)]
    if spec.dataset.parent is not None:
        notes.append(f"every release is charged to {spec.dataset.parent.id} as well")
    notes += [words for words in (_counted(report), report.remark) if words]
    notes += delta_words(report.delta, spec.budget, report.records)
    notes += spec.remarks
    if report.epsilon == 1:
        notes.append("figures are counts at epsilon = 1; those of Laplace noise go with 1/epsilon")
    title = (
        f"{spec.dataset.id}: {count(spec.queries, 'query')} in "
        f"{count(len(spec.items), 'item')}, "
        f"{guarantee_text(report)}: expected error"
    )
    grids = [_item_grid(best, spec, title, notes), expected_grid(report)]
    grids += asked_grids(report)
    grids += [candidates_grid(report)] * candidates
    return [*grids, *closest_grids(report), *fit_grids(report), domain_grid(spec)]


def _counted(report: PlanReport) -> str:
    """Say what losses are added up as, and that pure ones are held to the smaller of two sums."""
    two = report.room is not None and len(report.room.funds.tighter.sums) > 1
    also = "; while every release is pure their epsilons are added up too, and the smaller counts"
    return report.counted + also if two and report.counted else report.counted


def _total_words(report: PlanReport) -> list[str]:
    """Say how well the number of all records is known, where that is worse than any answer."""
    if report.total is None or report.total <= report.priced[0].max_std_error:
        return []
    return [
        "no item asks for the number of all records, which counts those with other values too: it "
        f"is typically off by {figure(report.total)}; an item `product: {{}}` makes it better"
    ]


def _unfinished(report: PlanReport) -> list[str]:
    names = [
        f"{candidate.name} ({priced.selection.noise})"
        for priced in report.priced
        for candidate in priced.selection.candidates
        if candidate.stopped
    ]
    if not names:
        return []
    return [f"not finished: {', '.join(names)}; may be better: give --time-limit more seconds"]


def candidates_grid(report: PlanReport) -> Grid:
    """Return the compared strategies, the better noise and the better strategy first."""
    best = report.priced[0]
    rows: list[tuple[str, ...]] = []
    strong = 0
    columns = _columns(report)
    for priced in report.priced:
        for candidate in sorted(priced.selection.candidates, key=lambda c: c.score or float("inf")):
            if candidate.rmse is None and candidate.name in PUBLISHED and not _says_all(candidate):
                continue  # the baselines are many, and their reasons are in the JSON
            if priced is best and candidate.name == best.selection.best:
                strong = len(rows)
            rows.append(_candidate_row(priced, candidate, columns))
        if priced.selection.bound_score is not None:
            rows.append(_bound_row(priced, report, columns))
    return Grid("strategies compared", columns, tuple(rows), (), strong)


def _rows_of_persons(spec: Spec) -> list[str]:
    """Return how many rows of a person count, and what the first of them may be."""
    privacy = spec.privacy
    if privacy.person is None:
        return []
    counted = rows_counted(privacy.max_rows, keep=privacy.keep)
    notes = [counted[0].lower() + counted[1:]]
    if privacy.keep == "first":
        notes.append(
            "warning: a file that is sorted loses what stands last of each person; "
            "without `keep: first` any of them count"
        )
    return notes


def _columns(report: PlanReport) -> tuple[str, ...]:
    """Return the columns of the comparison: what plays no part is left out."""
    weighted = (WEIGHTED,) if report.spec.weighted else ()
    targets = (TARGETS,) if report.plan.targets else ()
    return ("noise", "strategy", "RMSE", *weighted, "max std error", *targets, "x bound", "remark")


def _item_grid(best: SelectionAtBudget, spec: Spec, title: str, notes: Sequence[str]) -> Grid:
    columns: tuple[str, ...] = ("item", "queries", "RMSE", "max std error")
    items: list[tuple[str, ...]] = [
        (item.name, f"{item.queries:,}", figure(item.rmse), figure(item.max_std_error))
        for item in best.items
    ]
    sums = _sums(spec)
    if any(sums):
        columns = (*columns, "in")
        units = ("counts" if summed is None else f"sums of {summed.of}" for summed in sums)
        items = [(*row, unit) for row, unit in zip(items, units, strict=True)]
        notes = (
            *(summed.words for summed in dict.fromkeys(sums) if summed is not None),
            "in figures over several items, each error of a sum is divided by the most that one "
            "record can add to it",
            *notes,
        )
    return Grid(title, columns, tuple(items), tuple(notes))


def plan_json(report: PlanReport) -> dict[str, object]:
    """Return the plan's figures, in counts at the report's epsilon and delta."""
    return {
        "dataset": report.spec.dataset.id,
        "new_on_record": list(report.new),
        "queries": report.spec.queries,
        "domain": domain_json(report.spec),
        "epsilon": float(report.epsilon),
        "delta": float(report.delta),
        "chosen": {
            "noise": report.priced[0].selection.noise,
            "strategy": report.priced[0].selection.best,
        },
        "budget": None if report.room is None else room_json(report.room),
        "risk": risk(report).removeprefix("risk: "),
        "objective": "targets" if report.plan.targets else report.plan.objective,
        **({} if report.total is None else {"total": {"std_error": report.total}}),
        "selections": [_priced_json(priced, report) for priced in report.priced],
        "targets": [_target_json(reached) for reached in (*report.reached, *report.derived)],
        **({"derived_targets": list(report.derived_words)} if report.derived else {}),
        "least_epsilons": [
            {"noise": needed.noise, "epsilon": float(needed.epsilon), "budget_share": needed.share}
            for needed in report.least
        ],
        "sweep": [
            {
                "epsilon": float(point.epsilon),
                "noises": [
                    {
                        "noise": priced.selection.noise,
                        "strategy": priced.selection.best,
                        "rmse": priced.rmse,
                        "weighted_rmse": priced.weighted_rmse,
                        "max_std_error": priced.max_std_error,
                        "budget_share": priced.share,
                    }
                    for priced in point.priced
                ],
            }
            for point in report.sweep
        ],
        "worth": worth_json(report),
        **rehearsals_json(report),
        **({} if report.nearer is None else {"nearer": {"rmse": report.nearer}}),
        **({"remark": report.remark} if report.remark else {}),
    }


def _target_json(reached: Reached) -> dict[str, object]:
    figure = None if math.isinf(reached.figure) else reached.figure
    of_rows = {name: n for name, n in vars(reached).items() if name not in ("target", "figure")}
    return vars(reached.target) | {"reached": figure, "met": reached.met} | of_rows


def _says_all(candidate: CandidateFigures) -> bool:
    """Return whether the reason needs no words before it: not finished, or left out."""
    return candidate.stopped or candidate.reason.startswith(LEFT_OUT)


def _candidate_row(
    priced: SelectionAtBudget, candidate: CandidateFigures, columns: Sequence[str]
) -> tuple[str, ...]:
    cells = {"noise": priced.selection.noise, "strategy": candidate.name}
    if candidate.score is None:
        cells["remark"] = (
            candidate.reason if _says_all(candidate) else f"not applicable: {candidate.reason}"
        )
    else:
        ratio = ratio_to_bound(priced, candidate)
        cells |= {
            "RMSE": figure(priced.std * (candidate.rmse or 0.0)),
            WEIGHTED: figure(priced.std * (candidate.weighted_rmse or 0.0)),
            "max std error": figure(priced.std * (candidate.max_std_error or 0.0)),
            TARGETS: f"{priced.std * candidate.score:.3f}",
            "x bound": "" if ratio is None else f"{ratio:.3f}",
            "remark": "" if candidate.converged else "optimiser stopped early",
        }
    return tuple(cells.get(name, "") for name in columns)


def _bound_row(
    priced: SelectionAtBudget, report: PlanReport, columns: Sequence[str]
) -> tuple[str, ...]:
    bound = priced.std * (priced.selection.bound_score or 0.0)
    minimised = "max std error" if report.plan.objective == "max" else rmse_text(report)
    cells = {
        "noise": priced.selection.noise,
        "strategy": "(bound)",
        minimised: figure(bound),
        "x bound": "1.000",
        "remark": "no strategy is better: proven",
    }
    if report.plan.targets:
        del cells[minimised]
        cells[TARGETS] = f"{bound:.3f}"
    return tuple(cells.get(name, "") for name in columns)


def _chosen(report: PlanReport) -> str:
    best = report.priced[0]
    candidate = best.selection.figures
    chosen = "best linear strategy" if report.plan.preferred else "chosen"
    text = f"{chosen}: {candidate.name} with {best.selection.noise.capitalize()} noise"
    ratio = ratio_to_bound(best, candidate)
    what = rmse_text(report) if report.plan.objective == "rmse" else "maximum standard error"
    what = "what the targets take" if report.plan.targets else what
    if ratio is None:
        return f"{text}; no lower bound is known for this workload"
    if ratio <= OPTIMAL:
        return f"{text}; proven optimal in {what} within {ratio - 1:.2%}"
    return f"{text}; at most {ratio:.3f} times the least error that any strategy can have"


def _priced_json(priced: SelectionAtBudget, report: PlanReport) -> dict[str, object]:
    selection, std = priced.selection, priced.std
    exchange = report.exchanges.get(selection.noise)
    bought = None if exchange is None else exchange.other
    return {
        "noise": selection.noise,
        "best": selection.best,
        "budget_share": priced.share,
        "same_share": None
        if bought is None
        else {
            "epsilon": float(bought.epsilon),
            "rmse": bought.std * (selection.figures.rmse or math.inf),
            "max_std_error": bought.std * (selection.figures.max_std_error or math.inf),
        },
        "bound_rmse": _times(selection.bound, std),
        "bound_kind": selection.bound_kind,
        "bound_score": _times(selection.bound_score, std),
        "bound_score_kind": selection.bound_score_kind,
        "candidates": [
            vars(candidate) | {name: _times(getattr(candidate, name), std) for name in _IN_COUNTS}
            for candidate in selection.candidates
        ],
        "items": [
            vars(item) | ({} if summed is None else {"summed": vars(summed)})
            for item, summed in zip(priced.items, _sums(report.spec), strict=True)
        ],
    }


def _sums(spec: Spec) -> list[SummedFacts | None]:
    return [summed_facts(item, spec) for item in spec.items]


def _times(figure: float | None, std: float) -> float | None:
    return None if figure is None else figure * std
