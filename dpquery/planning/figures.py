"""From unit noise to counts: the errors of planned strategies under a guarantee.

Strategies are compared at unit noise for sensitivity one, which needs no epsilon. A guarantee and
a privacy unit price that unit: figures times `unit_std` are standard errors in counts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from dpquery.exceptions import BudgetExceededError, SpecError, UnsupportedWorkloadError
from dpquery.measurement import accounting
from dpquery.measurement.ledger.funds import Funds, PriceAt, largest_epsilon, price_against
from dpquery.measurement.noise.calibration import (
    Calibration,
    calibration,
    largest_move,
    record_change,
    share_of_counts,
    sound_change,
)
from dpquery.operators.blocks import Workload
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.plan import CandidateFigures, ItemFigures, Plan, PlannedSelection
from dpquery.reconstruction.checks import flaw_of
from dpquery.spec.spec import Spec
from dpquery.strategy.expected_error import expected_error, squared_sensitivity, weighted_queries
from dpquery.strategy.strategy import Noise, RecordChange, Strategy

if TYPE_CHECKING:
    from dpquery.strategy.search.select import Candidate, Selection


_ROUNDING = 1e-3  # of figures that another processor worked out
CURVE = tuple(Fraction(n, 100) for n in (10, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000))
"""Epsilons of the error-against-epsilon curve."""


@dataclass(frozen=True)
class AtShare:
    """What a kind of noise buys with a share of the budget: an epsilon, and its unit noise."""

    epsilon: Fraction
    std: float


@dataclass(frozen=True, eq=False)
class SelectionAtBudget:
    """A planned selection under a guarantee."""

    selection: PlannedSelection  # its figures times `std` are in counts
    std: float  # see `unit_std`
    # what one such release takes of the whole budget; infinite where its noise cannot be drawn, or
    # not be charged to it
    share: float
    epsilon: Fraction  # of the guarantee
    # what it buys with the share that the cheapest selection takes; None where no epsilon costs
    # that little
    equal: AtShare | None

    @property
    def equal_score(self) -> float:
        """What the plan minimised, at an equal share of the budget."""
        std = math.inf if self.equal is None else self.equal.std
        return std * (self.selection.score or math.inf)

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
    def items(self) -> tuple[ItemFigures, ...]:
        """The expected errors of the items, in counts or the unit of their sums."""
        return tuple(item.times(self.std) for item in self.selection.items)

    @property
    def score(self) -> float:
        """What the plan minimised, in counts, or as a share of the targets."""
        return self.std * (self.selection.score or math.inf)

    @property
    def bound_rmse(self) -> float | None:
        """Proven lower bound on the weighted RMSE of any strategy, where one is known."""
        bound = self.selection.bound
        return None if bound is None else self.std * bound

    def noise_std(self, strategy: Strategy) -> float:
        """Return the standard deviation of the noise on each row of a strategy, in counts."""
        return self.std * math.sqrt(squared_sensitivity(strategy, self.selection.record_change))


def unit_std(
    noise: Noise, spec: Spec, *, epsilon: Fraction, delta: Fraction, change: RecordChange
) -> float:
    """Return the noise on a query of sensitivity one, for the spec's unit and neighbours.

    A sensitivity is that of one record, which changes as `change` says.
    """
    counted = spec.budget.counted
    variance = accounting.unit_variance(
        noise, epsilon=epsilon, delta=delta, accounting=counted, share=share_of_counts(spec.privacy)
    )
    return largest_move(spec.privacy, change) * math.sqrt(variance)


def selection_std(
    selection: PlannedSelection, spec: Spec, *, epsilon: Fraction, delta: Fraction
) -> float:
    """Return the `unit_std` by which a planned selection's figures are in counts."""
    change = sound_change(selection.record_change, spec)
    return unit_std(selection.noise, spec, epsilon=epsilon, delta=delta, change=change)


def solution_check(
    spec: Spec,
    compiled: CompiledSpec,
    noises: Sequence[Noise],
    *,
    epsilon: Fraction,
    delta: Fraction,
) -> Callable[[Strategy], str]:
    """Return what says of a strategy how its answers would be flawed, see `flaw_of`."""
    change = record_change(spec)
    units = {
        noise: unit_std(noise, spec, epsilon=epsilon, delta=delta, change=change)
        for noise in noises
    }
    return partial(_flaw_at, compiled, units, change)


def _flaw_at(
    compiled: CompiledSpec, units: Mapping[Noise, float], change: RecordChange, strategy: Strategy
) -> str:
    std = units[strategy.noise] * math.sqrt(squared_sensitivity(strategy, change))
    return flaw_of(strategy, compiled.workload, items=compiled.items, noise_std=std)


@dataclass(frozen=True, eq=False)
class BudgetShares:
    """Prices a plan's selections in the budget that they are charged to.

    How much of it is spent plays no part, only whether all of that is pure: once a release is not,
    Laplace noise is charged in the currency alone.
    """

    spec: Spec  # declares the unit
    workload: Workload  # what the strategies answer
    delta: Fraction  # of the guarantees
    funds: Funds  # the accounts that a release is charged to
    _calibrated: dict[PlannedSelection, tuple[Strategy, Calibration]] = field(
        default_factory=dict, init=False
    )

    @property
    def cap(self) -> accounting.Cap:
        """The dataset's cap or its parent's, whichever is smaller: a release is charged to both."""
        return min((payer.cap for payer in self.funds.payers), key=lambda cap: cap.units)

    def calibrated(self, selection: PlannedSelection) -> tuple[Strategy, Calibration]:
        """Return a selection's strategy and what its noise is calibrated to, worked out once.

        Raises:
            SpecError: the strategy cannot be read.
        """
        if selection not in self._calibrated:
            strategy = selection.decoded(self.workload)
            change = sound_change(selection.record_change, self.spec)
            calibrated = strategy, calibration(strategy, privacy=self.spec.privacy, change=change)
            self._calibrated[selection] = calibrated
        return self._calibrated[selection]

    def pricing(self, selection: PlannedSelection) -> PriceAt:
        """Return the function that gives the exact price of a selection at an epsilon.

        Raises:
            SpecError: its strategy cannot be read; only Laplace noise has a price that depends on
                the strategy, where it is charged in another currency than its own.
        """
        noise, calibrated = selection.noise, None
        if noise == "laplace" and self.cap.currency != "epsilon":
            _, calibrated = self.calibrated(selection)

        def price_at(epsilon: Fraction) -> accounting.Price:
            guarantee = accounting.guarantee(
                noise, epsilon=epsilon, delta=self.delta, accounting=self.spec.budget.counted
            )
            if calibrated is not None:
                guarantee = calibrated.noise_for(guarantee).guarantee
            return price_against(guarantee, self.cap)

        return price_at

    def share(self, price: accounting.Price) -> float:
        """Return what a price is of the whole budget, by the sum of which it takes less.

        Of two accounts, it is the one that it takes more of.
        """
        shares = [payer.share(price.units, price.pure) for payer in self.funds.payers]
        return float(max(shares))

    def share_at(self, selection: PlannedSelection, epsilon: Fraction) -> float:
        """Return what a release takes of the whole budget; infinite where it cannot be drawn."""
        price = _price_or_none(self.pricing(selection), epsilon)
        return math.inf if price is None else self.share(price)

    def bought(
        self, selection: PlannedSelection, share: float, *, near: Fraction
    ) -> AtShare | None:
        """Return what a share of the budget buys: the largest epsilon of three digits within it."""
        price_at = self.pricing(selection)
        epsilon = largest_epsilon(lambda at: self.share(price_at(at)) <= share, near=near)
        return None if epsilon is None else self.at(selection, epsilon)

    def at(self, selection: PlannedSelection, epsilon: Fraction) -> AtShare:
        """Return an epsilon with the unit noise there."""
        std = selection_std(selection, self.spec, epsilon=epsilon, delta=self.delta)
        return AtShare(epsilon, std)


def prices(plan: Plan, shares: BudgetShares, *, epsilon: Fraction) -> tuple[SelectionAtBudget, ...]:
    """Return the plan's selections that a guarantee allows, the better one first.

    A selection that the whole budget could never pay for comes after those that it could. Of
    those that meet all targets, where the plan has targets, the cheaper one is the better one. Else
    it is the one that errs less at an equal share of the budget: at that which the cheapest takes,
    where all of them keep the promise, the others at the largest epsilon of three digits that costs
    no more. Older plans are compared as they were: at an equal epsilon, and by the price of Laplace
    noise of any strategy.
    """
    selections = [one for one in plan.selections if one.noise == "laplace" or shares.delta > 0]
    priced = [_price_or_none(shares.pricing(selection), epsilon) for selection in selections]
    least = min((shares.share(price) for price in priced if price is not None), default=0.0)

    def at_budget(selection: PlannedSelection, price: accounting.Price | None) -> SelectionAtBudget:
        asked, share = shares.at(selection, epsilon), math.inf
        if price is not None:
            share = shares.share(price)
        equal = asked if share == least else shares.bought(selection, least, near=epsilon)
        return SelectionAtBudget(selection, asked.std, share, epsilon, equal)

    def order(one: SelectionAtBudget) -> tuple[bool, bool, float]:
        share, score = one.share, one.equal_score
        if not plan.equal_shares:
            noise, delta = one.selection.noise, shares.delta
            guarantee = accounting.guarantee(noise, epsilon=epsilon, delta=delta)
            units = price_against(guarantee, shares.cap).units
            share, score = units / max(1, shares.cap.units), one.score
        if plan.targets and (one.score <= 1 or not plan.equal_shares):
            return share > 1, one.score > 1, share
        return share > 1, bool(plan.targets), score

    selected = zip(selections, priced, strict=True)
    return tuple(sorted((at_budget(*one) for one in selected), key=order))


@dataclass(frozen=True)
class Exchange:
    """What two kinds of noise buy with each other's share of the budget."""

    other: AtShare | None  # what the other noise buys with the share that the better one takes
    # what the better noise buys with the share that the other one takes; None as well where that is
    # more than the whole budget
    better: AtShare | None


def exchanges(priced: Sequence[SelectionAtBudget], shares: BudgetShares) -> dict[Noise, Exchange]:
    """Return for each other kind of noise what it and the better one buy for each other's share."""
    best = priced[0]

    def bought(buyer: SelectionAtBudget, payer: SelectionAtBudget) -> AtShare | None:
        if payer.share > 1:
            return None
        return shares.bought(buyer.selection, payer.share, near=payer.epsilon)

    return {
        other.selection.noise: Exchange(bought(other, best), bought(best, other))
        for other in priced[1:]
    }


def _price_or_none(price_at: PriceAt, epsilon: Fraction) -> accounting.Price | None:
    """Return a price; None where there is no such release: releases say why, plans go on."""
    try:
        return price_at(epsilon)
    except (BudgetExceededError, SpecError):
        return None


def allowed_prices(
    plan: Plan, shares: BudgetShares, noise: Noise | None, *, epsilon: Fraction
) -> tuple[SelectionAtBudget, ...]:
    """Return `prices` of the selections of a kind of noise, or of all: at least one.

    Raises:
        SpecError: the plan has no such selection, or its figures are those of another spec.
    """
    items_of_spec = [(item.name, item.size) for item in shares.spec.items]
    if any(
        [(item.name, item.queries) for item in selection.items] != items_of_spec
        for selection in plan.selections
    ):
        raise SpecError("the plan's figures do not fit its spec; run `dpquery plan` again")
    planned = [selection.noise for selection in plan.selections]
    if noise is not None and noise not in planned:
        raise SpecError(
            f"the plan has no strategy for {noise} noise: that needs `delta` under `privacy`, and "
            "a budget with a delta or in rho; change the spec and plan again"
        )
    wanted = tuple(one for one in plan.selections if noise in (None, one.noise))
    priced = prices(replace(plan, selections=wanted), shares, epsilon=epsilon)
    if not priced:
        raise SpecError("gaussian noise needs a delta above 0; give --delta, or use laplace")
    return priced


def check_figures(selection: PlannedSelection, strategy: Strategy, workload: Workload) -> None:
    """Refuse a plan whose figures are not those of its strategy: the release would repeat them.

    The largest error may be a bound where it was worked out, and exact here, or the reverse.

    Raises:
        SpecError: they are not, or the strategy cannot answer its workload with finite errors.
    """
    figures = selection.figures
    try:
        expected = expected_error(strategy, workload, selection.record_change)
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
    bound = selection.bound or 0.0
    if not same or not bound <= (figures.weighted_rmse or 0.0) * (1 + _ROUNDING):
        raise SpecError(
            "the plan's figures are not those of its strategy: it was changed by hand, or another "
            "version made it; plan it again with `dpquery plan SPEC --out PLAN`. What was released "
            "by this plan can be had again for free only by the version that made it: a release by "
            "a new plan is charged"
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
    queries, items = weighted_queries(compiled.workload), []
    for item, places in zip(spec.items, compiled.items, strict=True):
        blocks = [error.blocks[place] for place in places]
        rmse = math.sqrt(sum(block.total_squared for block in blocks) / item.size)
        largest = max(block.max_std_error for block in blocks)
        items.append(ItemFigures(item.name, item.size, rmse, largest))
    return PlannedSelection(
        noise=selection.noise,
        best=selection.best.name,
        strategy=proposal.strategy.once("encoded", proposal.strategy.encode),
        candidates=tuple(_candidate_figures(candidate) for candidate in selection.candidates),
        items=tuple(items),
        bound=None if bound is None else math.sqrt(bound.loss / queries),
        bound_kind="" if bound is None else bound.kind,
        bound_score=None if of_score is None else math.sqrt(of_score.loss),
        bound_score_kind="" if of_score is None else of_score.kind,
        record_change=selection.change,
        found=proposal.strategy,
    )


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
