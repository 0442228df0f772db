"""A plan with its figures in counts, at one guarantee: what the commands print of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from dpquery.measurement.ledger.funds import Funds, Room
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.plan import CandidateFigures, Plan
from dpquery.planning.derived_targets import DerivedReached, DerivedTargets
from dpquery.planning.figures import (
    BudgetShares,
    Exchange,
    SelectionAtBudget,
    exchanges,
    prices,
)
from dpquery.planning.informed import facts_words
from dpquery.planning.targets import (
    LeastEpsilon,
    Reached,
    Sweep,
    least_epsilons,
    reached_targets,
    rounded_up,
    swept,
)
from dpquery.planning.worst_item import WorstItem, worst_item
from dpquery.releases.formatting import count, figure, html_table
from dpquery.spec.model import Spec
from dpquery.strategy.noise_kinds import Noise

if TYPE_CHECKING:
    import pandas as pd

EPSILON_STEPS = 20  # of epsilon, between what either kind of noise needs


@dataclass(frozen=True, eq=False, repr=False)
class PlanReport:
    """A plan priced at one guarantee: the better noise first.

    Attributes:
        spec: what was planned.
        plan: the plan.
        epsilon: of the guarantee; where there are targets, the least that meets them.
        delta: of the guarantee.
        priced: the selections there.
        least: for each noise the least epsilon that meets the targets, if there are any.
        reached: the targets with what the better noise reaches.
        sweep: the selections at each requested epsilon.
        rooms: for each noise that can be drawn what the budget has room for, at this time.
        exchanges: for each other noise what it and the better one buy with each other's share.
        worst: the item that errs most under the better noise.
        counted: what losses are added up as and why, where the spec leaves it open.
        derived: the targets on derived items with what the better noise is expected to reach.
        derived_words: how that is known.
        facts: what public facts do to the errors, in words; none where there are none.
        remark: what rehearsals left unfinished, or why there are none; see plan.relaxed and
            plan.closest.
        new: what was put on record for the first time: the dataset, its parent.
    """

    spec: Spec
    plan: Plan
    epsilon: Fraction
    delta: Fraction
    priced: tuple[SelectionAtBudget, ...]
    least: tuple[LeastEpsilon, ...]
    reached: tuple[Reached, ...]
    sweep: tuple[Sweep, ...]
    rooms: Mapping[Noise, Room]
    exchanges: Mapping[Noise, Exchange]
    worst: WorstItem
    counted: str = ""
    derived: tuple[DerivedReached, ...] = ()
    derived_words: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    remark: str = ""
    new: tuple[str, ...] = ()

    def remarked(self, remark: str) -> "PlanReport":
        """Return the report with one more remark, if that is one."""
        remarks = [words for words in (self.remark, remark) if words]
        return replace(self, remark="; ".join(remarks))

    @property
    def targets_beyond_budget(self) -> bool:
        """Whether no kind of noise meets the targets within the whole budget."""
        return bool(self.least) and all(needed.share > 1 for needed in self.least)

    @property
    def room(self) -> Room | None:
        """What the budget has room for, by the preferred mechanism; RAP is priced as Gaussian."""
        noise = "gaussian" if self.plan.preferred else self.priced[0].selection.noise
        return self.rooms.get(noise)

    @property
    def errors(self) -> "pd.DataFrame":
        """Expected errors, one row an item, under the better kind of noise.

        In counts; those of sums in the unit of what is added up.
        """
        import pandas as pd

        items = self.priced[0].items
        rows = [(item.name, item.queries, item.rmse, item.max_std_error) for item in items]
        return pd.DataFrame(rows, columns=["item", "queries", "rmse", "max_std_error"])

    @property
    def candidates(self) -> "pd.DataFrame":
        """The compared strategies with their errors in counts; missing where not applicable."""
        import pandas as pd

        rows = [
            (
                selection.noise,
                figures.name,
                *_errors_in_counts(priced, figures),
                figures.name == selection.best,
            )
            for priced in self.priced
            for selection in [priced.selection]
            for figures in selection.candidates
        ]
        columns = ["noise", "strategy", "rmse", "weighted_rmse", "max_std_error", "chosen"]
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        """Return what was planned and what was chosen, in one line."""
        return f"<PlanReport: {self._title}; {self._choice}>"

    def _repr_html_(self) -> str:
        """Return the expected error of every item, for notebooks."""
        rows = [
            (
                item.name,
                f"{item.queries:,}",
                figure(item.rmse),
                figure(item.max_std_error),
            )
            for item in self.priced[0].items
        ]
        notes = [self._choice, self.remark] if self.remark else [self._choice]
        return html_table(self._title, ("item", "queries", "RMSE", "max std error"), rows, notes)

    @property
    def _title(self) -> str:
        delta = f", delta = {float(self.delta):g}" if self.delta else ""
        return (
            f"{self.spec.dataset.id}: {count(self.spec.queries, 'query')} in "
            f"{count(len(self.spec.items), 'item')}, epsilon = {float(self.epsilon):g}{delta}"
        )

    @property
    def _choice(self) -> str:
        best = self.priced[0]
        noise = best.selection.noise.capitalize()
        return f"{best.selection.best} with {noise} noise, expected RMSE {figure(best.rmse)}"


def _errors_in_counts(priced: SelectionAtBudget, figures: CandidateFigures) -> list[float | None]:
    """Return the RMSE, the weighted RMSE and the largest standard error in counts."""
    unit_noise = (figures.rmse, figures.weighted_rmse, figures.max_std_error)
    return [None if value is None else priced.std * value for value in unit_noise]


@dataclass(frozen=True)
class Terms:
    """What a report is asked for.

    Attributes:
        epsilon: of the guarantee; None for 1, or for the least that meets the plan's targets.
        delta: of the guarantee.
        sweep: other epsilons at which errors are wanted.
        derived: targets on derived items; None without any.
    """

    epsilon: Fraction | None
    delta: Fraction
    sweep: Sequence[Fraction]
    derived: DerivedTargets | None = None


def report_of(
    plan: Plan, spec: Spec, compiled: CompiledSpec, funds: Funds, terms: Terms, counted: str
) -> PlanReport:
    """Price a plan; `counted` is what to say of how its losses are added up."""
    delta, derived = terms.delta, terms.derived
    shares = BudgetShares(spec, compiled.workload, delta, funds)
    least = least_epsilons(plan, shares, derived) if plan.targets or derived else ()
    epsilon = terms.epsilon or (least[0].epsilon if least else Fraction(1))
    if terms.epsilon is None and derived is not None:
        epsilon = _meeting_all(least, plan, shares)
    priced = prices(plan, shares, epsilon=epsilon)
    best = priced[0]
    return PlanReport(
        spec,
        plan,
        epsilon,
        delta,
        priced,
        least,
        reached_targets(best, plan.targets),
        swept(plan, shares, terms.sweep),
        {
            one.selection.noise: funds.room_for(shares.pricing(one.selection), epsilon=epsilon)
            for one in priced
            if one.share < math.inf
        },
        exchanges(priced, shares),
        worst_item(best, spec, compiled, delta=delta),
        counted,
        () if derived is None else derived.reached(best.selection.noise, best.std),
        () if derived is None else derived.words,
        facts_words(spec, compiled, shares.calibrated(best.selection)[0]),
    )


def _meeting_all(least: Sequence[LeastEpsilon], plan: Plan, shares: BudgetShares) -> Fraction:
    """Return about the least epsilon at which the noise that a release takes meets all targets.

    A release takes the noise that errs less on the items, which need not be the one that needs
    least for the derived ones, and may be another one at another epsilon.
    """
    of_noise = {needed.noise: needed.epsilon for needed in least}
    low, high = min(of_noise.values()), max(of_noise.values())
    steps = [float(low) * float(high / low) ** (k / EPSILON_STEPS) for k in range(EPSILON_STEPS)]
    for epsilon in [low, *(rounded_up(step) for step in steps[1:])]:
        if epsilon >= of_noise[prices(plan, shares, epsilon=epsilon)[0].selection.noise]:
            return epsilon
    return high
