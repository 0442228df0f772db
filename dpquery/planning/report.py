"""What a plan comes to at a budget: the report that commands print."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_ATTRIBUTE_QUERIES, MAX_TABLE_CELLS
from dpquery.measurement.ledger.funds import Funds, Room
from dpquery.operators.blocks import Block, product
from dpquery.operators.compile import CompiledSpec, compile_spec
from dpquery.plan_file.plan import Plan, PlannedSelection
from dpquery.plan_file.rehearsals import AnswerColumn
from dpquery.planning.figures import BudgetShares, Exchange, SelectionAtBudget, exchanges, prices
from dpquery.planning.search import check_facts, facts_words
from dpquery.planning.targets import (
    DerivedReached,
    DerivedTargets,
    LeastEpsilon,
    Reached,
    Sweep,
    epsilon_of_noise,
    least_epsilons,
    reached_targets,
    swept,
)
from dpquery.planning.worth import JudgedOn, PlanWorth, worth_of
from dpquery.reconstruction.columns import FAR_LESS
from dpquery.releases.words import count, figure, html_table
from dpquery.spec.numbers import power
from dpquery.spec.spec import Spec
from dpquery.strategy.algebra.query_powers import total_of
from dpquery.strategy.expected_error import squared_sensitivity
from dpquery.strategy.strategy import Noise, Objective, Strategy

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class PlanReport:
    """A plan priced at one guarantee: the better noise first."""

    spec: Spec  # what was planned
    plan: Plan  # the plan
    epsilon: Fraction  # of the guarantee; where there are targets, the least that meets them
    delta: Fraction  # of the guarantee
    priced: tuple[SelectionAtBudget, ...]  # the selections there
    # for each noise the least epsilon that meets the targets, if there are any
    least: tuple[LeastEpsilon, ...]
    reached: tuple[Reached, ...]  # the targets with what the better noise reaches
    sweep: tuple[Sweep, ...]  # the selections at each requested epsilon
    # for each noise that can be drawn what the budget has room for, at this time
    rooms: Mapping[Noise, Room]
    # the better noise at the largest epsilon that the budget has room for, where that is more than
    # this one
    single: SelectionAtBudget | None
    # for each other noise what it and the better one buy with each other's share
    exchanges: Mapping[Noise, Exchange]
    # what each item is worth under the better noise, and what would make it better
    worth: PlanWorth
    counted: str = ""  # what losses are added up as and why, where the spec leaves it open
    # the targets on derived items with what the better noise is expected to reach
    derived: tuple[DerivedReached, ...] = ()
    derived_words: tuple[str, ...] = ()  # how that is known
    # what public facts do to the errors, in words; none where there are none
    facts: tuple[str, ...] = ()
    # the expected error of the number of all records, where no item asks for it and those without a
    # declared value are in it; None otherwise, and where it has no answer
    total: float | None = None
    # what rehearsals left unfinished, or why there are none; see plan.relaxed and plan.closest
    remark: str = ""
    # about the error of the best guess, simulated, where estimates are asked for and it is far less
    # than theirs
    nearer: float | None = None
    new: tuple[str, ...] = ()  # what was put on record for the first time: the dataset, its parent

    def remarked(self, remark: str) -> "PlanReport":
        """Return the report with one more remark, if that is one."""
        remarks = [words for words in (self.remark, remark) if words]
        return replace(self, remark="; ".join(remarks))

    @property
    def records(self) -> int | None:
        """About how many records there are, where somebody said."""
        if self.spec.privacy.weight is None:
            return self.worth.items[0].records
        return None if self.spec.dataset.rows is None else self.spec.dataset.rows.count

    @property
    def spent_delta(self) -> Fraction:
        """The delta of a release as planned: none of Laplace noise."""
        pure = self.priced[0].selection.noise == "laplace" and not self.plan.preferred
        return Fraction(0) if pure else self.delta

    @property
    def target_epsilon(self) -> float:
        """About the epsilon at which the noise of this plan meets the target that is proposed."""
        best, worth = self.priced[0], self.worth
        std = best.std * worth.target / worth.weakest.rmse
        return epsilon_of_noise(best.selection, self.spec, delta=self.delta, std=std)

    @property
    def targets_beyond_budget(self) -> bool:
        """Whether no kind of noise meets the targets within the whole budget."""
        return bool(self.least) and all(needed.share > 1 for needed in self.least)

    @property
    def closest_column(self) -> AnswerColumn:
        """Which column of a linear release errs least, of those that were compared."""
        closest = self.plan.closest
        return "estimate" if closest is None else closest.best.column

    @property
    def guesses(self) -> bool:
        """Whether what is read has no error bars: a fit, or a column that errs far less."""
        closest, estimates = self.plan.closest, self.priced[0].weighted_rmse
        far_less = closest is not None and closest.best.rmse < FAR_LESS * estimates
        return self.plan.preferred is not None or far_less

    @property
    def may_be_nearer(self) -> bool:
        """Whether estimates are asked for, and what else is asked allows the closest answers."""
        plan, free = self.plan, self.spec.may_prefer_closest and not self.spec.states_facts
        bounded = plan.targets or self.derived or plan.objective == "max"
        return free and not bounded and plan.preferred is None

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
                *(None if value is None else priced.std * value for value in unit_noise),
                figures.name == selection.best,
            )
            for priced in self.priced
            for selection in [priced.selection]
            for figures in selection.candidates
            for unit_noise in [(figures.rmse, figures.weighted_rmse, figures.max_std_error)]
        ]
        columns = ["noise", "strategy", "rmse", "weighted_rmse", "max_std_error", "chosen"]
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        """Return what was planned and what was chosen, in one line."""
        return f"<PlanReport: {self._title}; {self._choice}>"

    def _repr_html_(self) -> str:
        """Return the expected error of every item, for notebooks."""
        rows = [
            (item.name, f"{item.queries:,}", figure(item.rmse), figure(item.max_std_error))
            for item in self.priced[0].items
        ]
        notes = [self._choice, self.remark] if self.remark else [self._choice]
        return html_table(self._title, ("item", "queries", "RMSE", "max std error"), rows, notes)

    @property
    def _title(self) -> str:
        delta = f", delta = {power(float(self.delta))}" if self.delta else ""
        return (
            f"{self.spec.dataset.id}: {count(self.spec.queries, 'query')} in "
            f"{count(len(self.spec.items), 'item')}, epsilon = {float(self.epsilon):g}{delta}"
        )

    @property
    def _choice(self) -> str:
        best = self.priced[0]
        noise = best.selection.noise.capitalize()
        return f"{best.selection.best} with {noise} noise, expected RMSE {figure(best.rmse)}"


@dataclass(frozen=True)
class Terms:
    """What a report is asked for."""

    # of the guarantee; None for 1, or for the least that meets the plan's targets
    epsilon: Fraction | None
    delta: Fraction  # of the guarantee
    sweep: Sequence[Fraction]  # other epsilons at which errors are wanted
    judged_on: JudgedOn  # the records that items are judged on
    derived: DerivedTargets | None = None  # targets on derived items; None without any


def report_of(
    plan: Plan, spec: Spec, compiled: CompiledSpec, funds: Funds, terms: Terms, counted: str
) -> PlanReport:
    """Price a plan; `counted` is what to say of how its losses are added up."""
    delta, derived = terms.delta, terms.derived
    shares = BudgetShares(spec, compiled.workload, delta, funds)
    least = least_epsilons(plan, shares) if plan.targets else ()
    epsilon = terms.epsilon or (least[0].epsilon if least else Fraction(1))
    priced = prices(plan, shares, epsilon=epsilon)
    best = priced[0]
    strategy = shares.calibrated(best.selection)[0]
    rooms = {
        one.selection.noise: funds.room_for(shares.pricing(one.selection), epsilon=epsilon)
        for one in priced
        if one.share < math.inf
    }
    room = rooms.get(best.selection.noise)
    largest = None if room is None else room.largest
    return PlanReport(
        spec,
        plan,
        epsilon,
        delta,
        priced,
        least,
        reached_targets(best, plan.targets),
        swept(plan, shares, terms.sweep),
        rooms,
        prices(plan, shares, epsilon=largest)[0] if largest and largest > epsilon else None,
        exchanges(priced, shares),
        worth_of(plan, best, spec, compiled, delta=delta, judged_on=terms.judged_on),
        counted,
        () if derived is None else derived.reached(best.selection.noise, best.std),
        () if derived is None else derived.words,
        facts_words(spec, compiled, strategy),
        _total_error(spec, compiled, strategy, best),
    )


def _total_error(
    spec: Spec, compiled: CompiledSpec, strategy: Strategy, priced: SelectionAtBudget
) -> float | None:
    """Return the standard error of the number of all records, see `PlanReport.total`."""
    total = product(compiled.workload.shape_of_domain, {})
    columns = (column for attribute in spec.domain.attributes for column in attribute.columns)
    asked = any(not block.attributes for block in compiled.workload.blocks)
    if asked or all(column.other != "count" for column in columns) or not strategy.supports(total):
        return None
    variance = total_of(strategy.variances(total, position=None), total)
    square = squared_sensitivity(strategy, priced.selection.record_change)
    return priced.std * math.sqrt(variance * square)


MUCH_LESS, LITTLE_MORE = 0.7, 0.5
"""Another objective is pointed to for 30 % less of its figure, at 50 % more of this one at most."""


@dataclass(frozen=True)
class Trade:
    """A compared strategy that another objective prefers, at unit noise."""

    name: str  # of the strategy
    figure: float  # what the other objective minimises
    in_place_of: float  # the same of the chosen strategy
    costs: float  # how much larger what the plan minimised is, as a share


def trade_of(selection: PlannedSelection, objective: Objective) -> Trade | None:
    """Return the candidate that the other objective prefers, if it gains more than it costs.

    It was compared for this plan, so that its figures are known; the other objective may find
    better ones.
    """
    chosen = selection.figures
    if not (chosen.score and chosen.rmse and chosen.max_std_error):
        return None
    trades = []
    for other in selection.candidates:
        if not (other.score and other.rmse and other.max_std_error):
            continue
        pair = (other.max_std_error, chosen.max_std_error)
        if objective == "max":
            pair = (other.rmse, chosen.rmse)
        trades.append(Trade(other.name, *pair, other.score / chosen.score - 1))
    best = min(trades, key=lambda trade: trade.figure)
    worth_it = best.figure <= MUCH_LESS * best.in_place_of and best.costs <= LITTLE_MORE
    return best if worth_it else None


_COARSER = "ask it of fewer attributes, or of coarser sets of their values"


def compile_countable(spec: Spec) -> CompiledSpec:
    """Build the operators of a spec of whose tables none has more than MAX_TABLE_CELLS cells.

    Every query of a table depends on all of its cells, so each strategy, and RAP, counts them.

    Raises:
        UnsupportedWorkloadError: a line for every item with a wider table, or with too many queries
            of one attribute, with its place.
        SpecError: public facts leave an item nothing to measure.
    """
    compiled = compile_spec(spec)
    too_wide = []
    for item, places in zip(spec.items, compiled.items, strict=True):
        blocks = [compiled.workload.blocks[k] for k in places]
        asked = (pair for b in blocks for pair in zip(b.factors, b.attributes, strict=True))
        most, i = max(((factor.shape[0], i) for factor, i in asked), default=(0, 0))
        if most > max(MAX_ATTRIBUTE_QUERIES, compiled.workload.shape_of_domain[i]):
            too_wide.append(
                f"{item.place}: item {item.name!r} asks {most:,} queries of "
                f"{spec.domain.attributes[i].name}, and the limit is {MAX_ATTRIBUTE_QUERIES:,}; "
                "ask for `prefix`, of which every range is the difference of two, or put its "
                "values in coarser groups"
            )
        widest = max(blocks, key=_cells, default=None)
        if widest is not None and _cells(widest) > MAX_TABLE_CELLS:
            names = " x ".join(spec.domain.attributes[i].name for i in widest.attributes)
            remedy = _COARSER
            declared = [_declared(compiled, spec, i) for i in widest.attributes]
            if math.prod(declared) <= MAX_TABLE_CELLS:
                remedy = f"with `other: drop` it has {math.prod(declared):,}; or {remedy}"
            too_wide.append(
                f"{item.place}: item {item.name!r} has a table over {names} of {_cells(widest):,} "
                f"cells to measure, and the limit is {MAX_TABLE_CELLS:,}; {remedy}"
            )
    if too_wide:
        raise UnsupportedWorkloadError("\n".join(too_wide))
    check_facts(spec, compiled)
    return compiled


def _declared(compiled: CompiledSpec, spec: Spec, i: int) -> int:
    """Return the number of classes of an attribute's codes, less those of other texts alone."""
    attribute, classes = spec.domain.attributes[i], compiled.classes[i]
    if attribute.merged or not attribute.in_data:
        return int(classes.max()) + 1
    return len(np.unique(classes[: attribute.length]))


def _cells(block: Block) -> int:
    return math.prod(block.table_shape)
