"""From unit noise to counts: the errors of planned strategies under a guarantee.

Strategies are compared at unit noise for sensitivity one, which needs no epsilon. A guarantee and
a privacy unit price that unit: figures times `unit_std` are standard errors in counts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.measurement import accounting
from dpquery.measurement.noise.calibration import record_change, steps
from dpquery.operators.blocks import Workload
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.plan import CandidateFigures, ItemFigures, Plan, PlannedSelection
from dpquery.reconstruction.solution_check import flaw_of
from dpquery.spec.model import Spec
from dpquery.strategy.errors.expected_error import (
    ExpectedError,
    expected_error,
    squared_sensitivity,
    weighted_queries,
)
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.record_changes import RecordChange
from dpquery.strategy.shapes.strategies import Strategy

if TYPE_CHECKING:
    from dpquery.strategy.search.select import Candidate, Selection

_ROUNDING = 1e-3  # of figures that another processor worked out
CURVE = tuple(Fraction(n, 100) for n in (10, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000))
"""Epsilons of the error-against-epsilon curve."""


@dataclass(frozen=True, eq=False)
class SelectionAtBudget:
    """A planned selection under a guarantee.

    Attributes:
        selection: its figures times `std` are in counts.
        std: see `unit_std`.
        share: what one such release takes of the whole budget that the spec declares.
    """

    selection: PlannedSelection
    std: float
    share: float

    @property
    def rmse(self) -> float:
        """Expected root mean square error of the chosen strategy, every query counted once."""
        return self.std * (self.selection.figures.rmse or math.inf)

    @property
    def weighted_rmse(self) -> float:
        """The same, as the workload weighs its queries: comparable with the bound."""
        return self.std * (self.selection.figures.weighted_rmse or math.inf)

    @property
    def max_std_error(self) -> float:
        """Largest standard error of any query."""
        return self.std * (self.selection.figures.max_std_error or math.inf)

    @property
    def score(self) -> float:
        """What the plan minimised, in counts, or as a share of the targets."""
        return self.std * (self.selection.score or math.inf)

    @property
    def bound_rmse(self) -> float | None:
        """Proven lower bound on the weighted RMSE of any strategy, where one is known."""
        bound = self.selection.bound_rmse
        return None if bound is None else self.std * bound


def unit_std(
    noise: Noise, spec: Spec, *, epsilon: Fraction, delta: Fraction, change: RecordChange
) -> float:
    """Return the noise on a query of sensitivity one, for the spec's unit and neighbours.

    A sensitivity is that of one record, which changes as `change` says.
    """
    variance = accounting.unit_variance(noise, epsilon=epsilon, delta=delta)
    return steps(spec.privacy, change) * math.sqrt(variance)


def selection_std(
    selection: PlannedSelection, spec: Spec, *, epsilon: Fraction, delta: Fraction
) -> float:
    """Return the `unit_std` by which a planned selection's figures are in counts."""
    change = selection.change
    return unit_std(selection.noise, spec, epsilon=epsilon, delta=delta, change=change)


@dataclass(frozen=True, eq=False)
class SolutionCheck:
    """Finds flaws in the answers that a strategy would give to a spec's workload at a guarantee.

    Attributes:
        compiled: the workload.
        units: for each kind of noise see `unit_std`.
        change: what a record does between neighbours.
    """

    compiled: CompiledSpec
    units: Mapping[Noise, float]
    change: RecordChange

    def __call__(self, strategy: Strategy) -> str:
        """Return what is wrong, in words; nothing where the strategy is sound."""
        square = squared_sensitivity(strategy, self.change)
        std = self.units[strategy.noise] * math.sqrt(square)
        workload, items = self.compiled.workload, self.compiled.items
        return flaw_of(strategy, workload, items=items, noise_std=std)


def solution_check(
    spec: Spec,
    compiled: CompiledSpec,
    noises: Sequence[Noise],
    *,
    epsilon: Fraction,
    delta: Fraction,
) -> SolutionCheck:
    """Return the check of strategies for a spec, under a guarantee."""
    change = record_change(spec)
    units = {
        noise: unit_std(noise, spec, epsilon=epsilon, delta=delta, change=change)
        for noise in noises
    }
    return SolutionCheck(compiled, units, change)


def prices(
    plan: Plan, spec: Spec, *, epsilon: Fraction, delta: Fraction
) -> tuple[SelectionAtBudget, ...]:
    """Return the plan's selections that a guarantee allows, the better one first.

    A selection that the declared budget could never pay for comes after those that it could. Of
    those that meet all targets, where the plan has targets, the cheaper one is the better one. What
    is spent already plays no part: the same release asked for again must come out the same.
    """
    priced = [
        SelectionAtBudget(
            selection,
            selection_std(selection, spec, epsilon=epsilon, delta=delta),
            share_of_budget(selection.noise, spec, epsilon=epsilon, delta=delta),
        )
        for selection in plan.selections
        if selection.noise == "laplace" or delta > 0
    ]

    def order(priced: SelectionAtBudget) -> tuple[bool, bool, float]:
        if plan.targets:
            return priced.share > 1, priced.score > 1, priced.share
        return priced.share > 1, False, priced.score

    return tuple(sorted(priced, key=order))


def share_of_budget(noise: Noise, spec: Spec, *, epsilon: Fraction, delta: Fraction) -> float:
    """Return what one release takes of the whole budget that the spec declares.

    Where it declares a parent's too, a release is charged to both, and the smaller one decides.
    """
    parent = spec.dataset.parent
    budgets = [spec.budget] if parent is None else [spec.budget, parent.budget]
    caps = [accounting.budget_cap(budget, spec.privacy) for budget in budgets]
    guarantee = accounting.guarantee(noise, epsilon=epsilon, delta=delta)
    units = accounting.charge_units(guarantee, caps[0].currency)
    return units / min(cap.units for cap in caps)


def chosen_price(
    plan: Plan, spec: Spec, noise: Noise | None, *, epsilon: Fraction, delta: Fraction
) -> SelectionAtBudget:
    """Return the better selection by the plan's figures, or the one of the noise asked for.

    Raises:
        SpecError: the plan has no such selection, or its figures are those of another spec.
    """
    items_of_spec = [(item.name, item.size) for item in spec.items]
    if any(
        [(item.name, item.queries) for item in selection.items] != items_of_spec
        for selection in plan.selections
    ):
        raise SpecError("the plan's figures do not fit its spec; run `dpquery plan` again")
    planned = [selection.noise for selection in plan.selections]
    if noise is not None and noise not in planned:
        raise SpecError(
            f"the plan has no strategy for {noise} noise: that takes `delta` under `privacy`, and "
            "a budget with a delta or in rho; change the spec and plan again"
        )
    priced = prices(plan, spec, epsilon=epsilon, delta=delta)
    allowed = [candidate for candidate in priced if noise in (None, candidate.selection.noise)]
    if not allowed:
        raise SpecError("gaussian noise needs a delta above 0; give --delta, or use laplace")
    return allowed[0]


def check_figures(selection: PlannedSelection, strategy: Strategy, workload: Workload) -> None:
    """Refuse a plan whose figures are not those of its strategy: the release would repeat them.

    The largest error may be a bound where it was worked out, and exact here, or the reverse.

    Raises:
        SpecError: they are not, or the strategy cannot answer its workload with finite errors.
    """
    figures = selection.figures
    try:
        expected = expected_error(strategy, workload, selection.change)
        means, (low, high) = (expected.rmse, expected.weighted_rmse), expected.max_between
    except (ArithmeticError, ValueError, UnsupportedWorkloadError):
        means, (low, high) = (math.nan, math.nan), (math.nan, math.nan)
    spans = [*((mean, mean) for mean in means), (low, high)]
    stated = [
        value or 0.0 for value in (figures.rmse, figures.weighted_rmse, figures.max_std_error)
    ]
    same = all(
        least - _ROUNDING * claimed <= claimed <= most + _ROUNDING * claimed
        for (least, most), claimed in zip(spans, stated, strict=True)
    )
    bound = selection.bound_rmse or 0.0
    if not same or not bound <= (figures.weighted_rmse or 0.0) * (1 + _ROUNDING):
        raise SpecError(
            "the plan's figures are not those of its strategy: it was changed by hand, or another "
            "version made it; run `dpquery plan` again. What was released by this plan can be had "
            "again for free only by the version that made it: a release by a new plan is charged"
        )


def error_curve(
    priced: SelectionAtBudget, spec: Spec, *, delta: Fraction
) -> list[tuple[float, float]]:
    """Return (epsilon, rmse) of the same strategy and noise at other epsilons."""
    selection = priced.selection
    rmse = selection.figures.rmse or math.inf
    return [
        (float(epsilon), rmse * selection_std(selection, spec, epsilon=epsilon, delta=delta))
        for epsilon in CURVE
    ]


def planned(selection: "Selection", spec: Spec, compiled: CompiledSpec) -> PlannedSelection:
    """Return a selection as the plan keeps it."""
    proposal, error, bound = selection.best.proposal, selection.best.error, selection.bound
    of_score = selection.score_bound
    if proposal is None or error is None:
        raise ValueError("the best candidate has a strategy and its error")
    queries = weighted_queries(compiled.workload)
    return PlannedSelection(
        noise=selection.noise,
        best=selection.best.name,
        strategy=proposal.strategy.encode(),
        candidates=tuple(_candidate_figures(candidate) for candidate in selection.candidates),
        items=_item_figures(error, compiled, spec),
        bound_rmse=None if bound is None else math.sqrt(bound.loss / queries),
        bound_kind="" if bound is None else bound.kind,
        bound_score=None if of_score is None else math.sqrt(of_score.loss),
        bound_score_kind="" if of_score is None else of_score.kind,
        change=selection.change,
    )


def _item_figures(
    error: ExpectedError, compiled: CompiledSpec, spec: Spec
) -> tuple[ItemFigures, ...]:
    figures = []
    for item, places in zip(spec.items, compiled.items, strict=True):
        blocks = [error.blocks[place] for place in places]
        rmse = math.sqrt(sum(block.total_squared for block in blocks) / item.size)
        largest = max(block.max_std_error for block in blocks)
        figures.append(ItemFigures(item.name, item.size, rmse, largest))
    return tuple(figures)


def _candidate_figures(candidate: "Candidate") -> CandidateFigures:
    error, proposal = candidate.error, candidate.proposal
    return CandidateFigures(
        name=candidate.name,
        rmse=None if error is None else error.rmse,
        weighted_rmse=None if error is None else error.weighted_rmse,
        max_std_error=None if error is None else error.max_std_error,
        score=candidate.score if error is not None else None,
        converged=proposal is None or proposal.converged,
        reason=candidate.reason,
        stopped=candidate.stopped,
    )
