"""Targets on items and on derived items: the least epsilon that meets them.

A plan for targets keeps the largest ratio of a figure to its target down (strategy/minimax). That
ratio does not depend on the guarantee: the least epsilon is where the unit noise is its inverse.

The strategy is chosen for the items and their targets; those of derived items say how much noise it
may have.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpquery.exceptions import SpecError
from dpquery.measurement import accounting
from dpquery.measurement.counting.tabulate import check_table_sizes
from dpquery.measurement.noise.calibration import largest_move, share_of_counts, sound_change
from dpquery.operators.blocks import Block
from dpquery.operators.compile import CompiledSpec, compile_questions
from dpquery.plan_file.plan import ItemFigures, Plan, PlannedSelection, Target
from dpquery.planning.figures import BudgetShares, SelectionAtBudget, planned, prices, selection_std
from dpquery.planning.rehearsal.populations import POPULATIONS, Population, public_records
from dpquery.planning.rehearsal.runs import DerivedTrials, RowErrors, is_tried
from dpquery.reconstruction.least_squares import positions_of
from dpquery.spec.numbers import power
from dpquery.spec.problems import quoted, several_texts, suggestion
from dpquery.spec.spec import DerivedItem, Item, MergedRows, Spec
from dpquery.strategy.expected_error import squared_sensitivity
from dpquery.strategy.minimax import Goal, Limit
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.strategy import Figure, Noise, Objective, Strategy, resolution

if TYPE_CHECKING:
    from dpquery.strategy.search.select import Selection

Search = Callable[[Sequence[Target]], Mapping[Noise, "Selection"]]
FACTOR_OF_NOISE = 4.0  # between sizes of noise that are tried first
NOISE_HALVINGS = 9  # of the last step: within 0.3 %
LEAST_TRIED_NOISE, MOST_TRIED_NOISE = 1e-6, 1e12  # unit noise that is tried at all


@dataclass(frozen=True)
class Reached:
    """A target and the figure that the plan reaches at its guarantee, in counts."""

    target: Target  # what was asked for
    figure: float

    @property
    def met(self) -> bool:
        """Whether the figure is at or below the target."""
        return self.figure <= self.target.at_most


@dataclass(frozen=True)
class DerivedReached(Reached):
    """The same of a derived item, in its own unit; infinite where rows are lost in noise."""

    rows: int  # of the item
    lost: int  # how many of them are lost in noise
    unknown: int  # how many have no value in the population, and are left out


class DerivedErrors:
    """Derived items of a spec, and the population that their errors are tried on."""

    def __init__(
        self,
        items: Sequence[DerivedItem],
        spec: Spec,
        compiled: CompiledSpec,
        *,
        rows: int,
        proxy: Path | None,
        population: Population = POPULATIONS[0],
    ) -> None:
        """Read the population: of a public file or an earlier release, or the made-up one.

        Raises:
            SpecError: the proxy cannot be read.
            UnsupportedWorkloadError: the items are made of tables too large to be counted.
        """
        self._spec, self._compiled = spec, compiled
        self.made_up = proxy is None
        self.items = {item.name: item for item in items}
        self._tables = tuple(dict.fromkeys(t for item in items for t in item.statistic.tables))
        made_of = replace(spec, items=(Item("derived", self._tables),))
        self._made_of = compile_questions(made_of, compiled.classes)
        workload = self._made_of.workload
        counted = sorted({block.attributes for block in workload.blocks})
        check_table_sizes(counted, workload.shape_of_domain)
        self._population = public_records(
            proxy, spec, self._made_of, rows=rows, population=population
        )
        # by noise, with the squared sensitivity of what is measured
        self._tried: dict[Noise, tuple[DerivedTrials, float]] = {}

    def try_with(self, selections: Sequence[PlannedSelection]) -> None:
        """Try with these strategies from now on, one a kind of noise."""
        self._tried, workload = {}, self._compiled.workload
        for selection in selections:
            strategy = selection.decoded(workload)
            change = sound_change(selection.record_change, self._spec)
            square = squared_sensitivity(strategy, change)
            self._tried[selection.noise] = self._trials_with(strategy, workload.blocks), square

    def errors(self, name: str, noise: Noise, std: float) -> RowErrors:
        """Return the errors of an item's rows where a query of sensitivity one has this noise."""
        trials, square = self._tried[noise]
        return trials.errors(self.items[name].statistic, std * math.sqrt(square))

    def _trials_with(
        self, strategy: Strategy, planned: Sequence[Block] | None = None
    ) -> DerivedTrials:
        """Return trials of a strategy for a workload of these blocks; for the tables' unless."""
        blocks = self._made_of.workload.blocks
        known = zip(blocks, positions_of(blocks, planned or blocks), strict=True)
        return DerivedTrials(
            [item.statistic for item in self.items.values()],
            dict(zip(self._tables, known, strict=True)),
            strategy,
            self._population,
            self._spec.domain,
        )


class DerivedTargets(DerivedErrors):
    """Targets on derived items of a spec, tried on a population."""

    def __init__(
        self, targets: Sequence[Target], spec: Spec, compiled: CompiledSpec, proxy: Path | None
    ) -> None:
        """Read the population for targets on derived items, one at least.

        Raises:
            SpecError: the spec does not say how many records there are; the proxy cannot be read;
                or a target is on a difference from another release.
        """
        items = {item.name: item for item in spec.derived}
        for target in targets:  # that no plan sets: another release's noise, rows merged by theirs
            item, on = items[target.item], f"target on {quoted(target.item)}"
            if isinstance(item.statistic, MergedRows):
                raise SpecError(
                    f"{on}: its rows are merged until they are precise enough; set a target on "
                    f"{quoted(item.items[0])}, which it is of, or change its rel_error"
                )
            if item.release:
                raise SpecError(
                    f"{on}: it is a difference from another release, whose noise this plan does "
                    "not set; set a target on the item that it is of"
                )
        named = [items[name] for name in dict.fromkeys(target.item for target in targets)]
        total, weighted = spec.expected_total, spec.privacy.weight is not None
        if total is None:
            what = "what the weights add up to" if weighted else "how many records there are"
            remedy = "`weight: {total: 38000000}`" if weighted else "`dataset: {rows: about 50000}`"
            raise SpecError(
                f"the error of {quoted(named[0].name)} depends on {what}, and the spec does not "
                f"say; declare {remedy}, from public knowledge"
            )
        super().__init__(named, spec, compiled, rows=total, proxy=proxy)
        self.targets = tuple(targets)

    def noted(self, plan: Plan) -> Plan:
        """Return a plan that has these targets as well, and its scores by trials of them.

        Raises:
            SpecError: no noise that can be drawn meets them.
        """
        self.try_with(plan.selections)
        selections = []
        for selection in plan.selections:
            items = {item.name: item for item in selection.items}
            ratios = [_figure(items[of.item], of) / of.at_most for of in plan.targets]
            tried = max([1 / self._most_noise(selection.noise), *ratios])
            selections.append(replace(selection, tried=tried))
        targets = (*plan.targets, *self.targets)
        return replace(plan, targets=targets, selections=tuple(selections))

    def on_items(self, beside: Sequence[Target], quick: Search) -> tuple[Target, ...]:
        """Return targets on items that let their derived ones be met, about.

        They steer the choice of a strategy, no more: what it reaches is tried with its own errors.
        Where there are others, they are as lax as these derived targets are for a quick strategy.
        """
        limits = self._apart()
        if not beside or not limits:
            return tuple(limits)
        found = [planned(each, self._spec, self._compiled) for each in quick(limits).values()]
        self.try_with(found)
        lax = min(self._most_noise(each.noise) * (each.score or math.inf) for each in found)
        return tuple(replace(limit, at_most=lax * limit.at_most) for limit in limits)

    def _apart(self) -> list[Target]:
        """Return the targets on items with which derived ones are met if all answers err apart.

        So much noise as a derived target bears where every answer has noise of its own, in
        proportion to the most that one record adds to it.
        """
        limits: list[Target] = []
        workload, (places,) = self._made_of.workload, self._made_of.items
        units = {place: table.unit for table, place in zip(self._tables, places, strict=True)}
        whole = resolution(1) * max(units.values())
        weights = tuple(whole // units[place] for place in range(len(workload.blocks)))
        apart = self._trials_with(DirectStrategy("Workload", "gaussian", workload, weights))
        for target in self.targets:
            item = self.items[target.item]

            def met(std: float, target: Target = target, item: DerivedItem = item) -> bool:
                errors = apart.errors(item.statistic, std * whole)
                return _reached(target, errors).met

            std = most_noise(met)
            limits += [
                Target(of.name, "sd", std * max(table.unit for table in of.tables))
                for of in self._spec.items
                if std and of.name in item.items
            ]
        return limits

    @property
    def words(self) -> tuple[str, ...]:
        """What to say of how these errors are known."""
        simulated = [item.name for item in self.items.values() if is_tried(item.statistic)]
        exact = [item.name for item in self.items.values() if not is_tried(item.statistic)]
        lines = []
        if simulated:
            trials = next(iter(self._tried.values()))[0].trials
            population = self._population
            aside = " (not like your records)" if self.made_up else ""
            remedy = "; --proxy names public records that are more like them" * self.made_up
            lines.append(
                f"{', '.join(simulated)}: errors in {trials} trials on {population.words}{aside}, "
                f"scaled to {population.rows:,} records; nothing comes from the data, where errors "
                f"may be others{remedy}"
            )
        if exact:
            lines.append(f"{', '.join(exact)}: errors are exact, and the same for all data")
        return tuple(lines)

    def reached(self, noise: Noise, std: float) -> tuple[DerivedReached, ...]:
        """Return what is reached where the noise on a query of sensitivity one is so large."""
        return tuple(_reached(of, self.errors(of.item, noise, std)) for of in self.targets)

    def _most_noise(self, noise: Noise) -> float:
        most = most_noise(lambda std: all(each.met for each in self.reached(noise, std)))
        if most is None:
            raise SpecError(self._refusal(noise, LEAST_TRIED_NOISE))
        return most

    def _refusal(self, noise: Noise, std: float) -> str:
        missed = next(reached for reached in self.reached(noise, std) if not reached.met)
        why = f"its {missed.target.figure} is {missed.figure:.3g} with hardly any noise"
        if missed.unknown == missed.rows:
            why = "no row of it has a value there; name public records with --proxy"
        elif missed.lost:
            why = f"{missed.lost} of its {missed.rows} rows have hardly a record there"
        return (
            f"no epsilon meets the target on {quoted(missed.target.item)}, tried on "
            f"{self._population.words}: {why}"
        )


def most_noise(met: Callable[[float], bool]) -> float | None:
    """Return the most unit noise at which something is met, nearly; None where none that is."""
    std = 1.0
    while std < MOST_TRIED_NOISE and met(std):
        std *= FACTOR_OF_NOISE
    while not met(std):
        std /= FACTOR_OF_NOISE
        if std < LEAST_TRIED_NOISE:
            return None
    low, high = math.log(std), math.log(std * FACTOR_OF_NOISE)
    for _ in range(NOISE_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if met(math.exp(middle)) else (low, middle)
    return math.exp(low)


def _reached(target: Target, errors: RowErrors) -> DerivedReached:
    known = np.isfinite(errors.std) | errors.lost
    lost, figure = int(errors.lost.sum()), math.inf
    if known.any() and not lost:
        stds = errors.std[known]
        figure = float(stds.max() if target.figure == "sd" else math.sqrt((stds**2).mean()))
    return DerivedReached(target, figure, len(known), lost, int((~known).sum()))


DIGITS = 4  # of a least epsilon, rounded up
_FORM = re.compile(r"\s*(.+?)\s*:\s*(sd|rmse)\s*<=\s*([0-9.eE+-]+)\s*", re.DOTALL)
_FIGURES: dict[str, Figure] = {"sd": "sd", "rmse": "rmse"}


@dataclass(frozen=True)
class LeastEpsilon:
    """The least epsilon at which one kind of noise meets all targets."""

    noise: str  # the kind of noise
    epsilon: Fraction  # rounded up to DIGITS digits
    share: float  # what a release at it takes of the whole budget


@dataclass(frozen=True)
class Sweep:
    """One epsilon of a sweep, with the plan's selections priced there, the better one first."""

    epsilon: Fraction
    priced: tuple[SelectionAtBudget, ...]


def parse_targets(
    texts: str | Sequence[str], spec: Spec, objective: Objective = "rmse"
) -> tuple[Target, ...]:
    """Read targets such as "P12: sd <= 50"; the item * stands for every item of the workload.

    Those on derived items are among them; see `split_targets`.

    Raises:
        SpecError: targets have another form, an unknown item, or a figure that is not above 0, all
            of them at once; or another objective is given beside targets.
    """
    if texts and objective != "rmse":
        raise SpecError("targets are an objective of their own; leave --objective out")
    names = [item.name for item in spec.items]
    named = [*names, *(item.name for item in spec.derived)]
    targets, mistakes = [], []
    for text in several_texts("targets", texts):
        matched = _FORM.fullmatch(text)
        most = _number(matched[3]) if matched else None
        item = matched[1] if matched else ""
        if matched is None or most is None:
            mistakes.append(
                f"target {quoted(text)} is not of the form 'ITEM: sd <= 50' or 'ITEM: rmse <= 50', "
                "with a number above 0, of counts or in the unit of a derived item; ITEM may be * "
                "for every item"
            )
        elif item != "*" and item not in named:
            hint = "; give --target once for each" if "," in item else suggestion(item, named)
            mistakes.append(f"target {quoted(text)}: there is no item {quoted(item)}{hint}")
        else:
            items = names if item == "*" else [item]
            targets += [Target(name, _FIGURES[matched[2]], most) for name in items]
    if mistakes:
        raise SpecError("\n".join(mistakes))
    return tuple(dict.fromkeys(targets))


def split_targets(
    targets: Sequence[Target], spec: Spec
) -> tuple[tuple[Target, ...], tuple[Target, ...]]:
    """Return the targets on items of the workload, and those on derived items."""
    derived = {item.name for item in spec.derived}
    on_items = tuple(target for target in targets if target.item not in derived)
    return on_items, tuple(target for target in targets if target.item in derived)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 1e-9 <= value <= 1e18 else None


def parse_sweep(text: str | None) -> tuple[Fraction, ...]:
    """Read a list of epsilons such as "0.1,0.5,1,2", or none; SpecError if it is not one."""
    if text is None:
        return ()
    try:
        return tuple(
            accounting.parse_epsilon(number)
            for one in several_texts("sweep", text)
            for number in one.split(",")
        )
    except SpecError as error:
        raise SpecError(f"sweep: {error}, with commas between: 0.1,0.5,1,2") from None


def goal_of(targets: Sequence[Target], spec: Spec, compiled: CompiledSpec) -> Goal:
    """Return the goal that targets of a spec's items make."""
    places = {
        item.name: tuple(blocks) for item, blocks in zip(spec.items, compiled.items, strict=True)
    }
    return tuple(Limit(target.figure, places[target.item], target.at_most) for target in targets)


def least_epsilons(plan: Plan, shares: BudgetShares) -> tuple[LeastEpsilon, ...]:
    """Return what each kind of noise needs to meet all targets, the cheaper one first."""
    least = []
    for selection in plan.selections:
        if selection.noise == "laplace" or shares.delta > 0:
            epsilon = least_epsilon(selection, shares.spec, delta=shares.delta)
            share = shares.share_at(selection, epsilon)
            least.append(LeastEpsilon(selection.noise, epsilon, share))
    return tuple(sorted(least, key=lambda needed: needed.share))


def least_epsilon(selection: PlannedSelection, spec: Spec, *, delta: Fraction) -> Fraction:
    """Return the epsilon at which the selection's score is 1 in counts, rounded up."""
    score = selection.score or math.inf
    exact = epsilon_of_noise(selection, spec, delta=delta, std=1 / score)
    low, high = accounting.EPSILONS
    if exact > high:
        whole = min(spec.budget.epsilon or high, high)
        times = selection_std(selection, spec, epsilon=whole, delta=delta) * score
        raise SpecError(
            f"these targets cannot be reached: they need an epsilon of {power(_short(exact))} with "
            f"{selection.noise.capitalize()} noise, and the largest is {power(float(high))}; at "
            f"epsilon {power(float(whole))} errors are {_short(times):,g} times the targets: ask "
            "for no less than that"
        )
    epsilon = max(low, rounded_up(max(exact, float(low))))
    while selection_std(selection, spec, epsilon=epsilon, delta=delta) * score > 1:
        epsilon = rounded_up(float(epsilon) * (1 + 10.0**-DIGITS))
    return epsilon


def epsilon_of_noise(
    selection: PlannedSelection, spec: Spec, *, delta: Fraction, std: float
) -> float:
    """Return about the epsilon at which `selection_std` is this."""
    change, share = (
        sound_change(selection.record_change, spec),
        float(share_of_counts(spec.privacy)),
    )
    move = largest_move(spec.privacy, change) / std
    if selection.noise == "laplace":
        return math.sqrt(2) * move / share
    return accounting.epsilon_of_mu(move / math.sqrt(share), delta, spec.budget.counted)


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def rounded_up(value: float) -> Fraction:
    """Return an epsilon of DIGITS digits that is no less."""
    step = Fraction(10) ** (math.floor(math.log10(value)) + 1 - DIGITS)
    return math.ceil(Fraction(value) / step) * step


def reached_targets(priced: SelectionAtBudget, targets: Sequence[Target]) -> tuple[Reached, ...]:
    """Return each target on an item of the workload with its figure, in counts."""
    items = {item.name: item for item in priced.items}
    return tuple(Reached(t, _figure(items[t.item], t)) for t in targets if t.item in items)


def _figure(item: ItemFigures, target: Target) -> float:
    return item.max_std_error if target.figure == "sd" else item.rmse


def swept(plan: Plan, shares: BudgetShares, epsilons: Sequence[Fraction]) -> tuple[Sweep, ...]:
    """Price a plan at several epsilons: the strategies stay, and the better noise may change."""
    return tuple(Sweep(epsilon, prices(plan, shares, epsilon=epsilon)) for epsilon in epsilons)
