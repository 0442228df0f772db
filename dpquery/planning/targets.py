"""Targets for errors, the least epsilon that meets them, and errors against epsilon.

A plan for targets keeps the largest ratio of a figure to its target down (strategy/goals). That
ratio does not depend on the guarantee: the least epsilon is where the unit noise is its inverse.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpquery.exceptions import SpecError
from dpquery.measurement import accounting
from dpquery.measurement.noise.calibration import sound_change, steps
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.plan import Plan, PlannedSelection, Target
from dpquery.planning.derived_targets import DerivedTargets
from dpquery.planning.figures import BudgetShares, SelectionAtBudget, prices, selection_std
from dpquery.spec.model import Spec
from dpquery.spec.problems import quoted, suggestion
from dpquery.strategy.goals.goals import Goal, Limit
from dpquery.strategy.objectives import Figure, Objective

DIGITS = 4  # of a least epsilon, rounded up
_FORM = re.compile(r"\s*(.+?)\s*:\s*(sd|rmse)\s*<=\s*([0-9.eE+-]+)\s*", re.DOTALL)
_FIGURES: dict[str, Figure] = {"sd": "sd", "rmse": "rmse"}


@dataclass(frozen=True)
class Reached:
    """A target and the figure that the plan reaches at its guarantee, in counts."""

    target: Target
    figure: float

    @property
    def met(self) -> bool:
        """Whether the figure is at or below the target."""
        return self.figure <= self.target.at_most


@dataclass(frozen=True)
class LeastEpsilon:
    """The least epsilon at which one kind of noise meets all targets.

    Attributes:
        noise: the kind of noise.
        epsilon: rounded up to DIGITS digits.
        share: what a release at it takes of the whole budget.
    """

    noise: str
    epsilon: Fraction
    share: float


@dataclass(frozen=True)
class Sweep:
    """One epsilon of a sweep, with the plan's selections priced there, the better one first."""

    epsilon: Fraction
    priced: tuple[SelectionAtBudget, ...]


def parse_targets(
    texts: Sequence[str], spec: Spec, objective: Objective = "rmse"
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
    for text in texts:
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
            mistakes.append(
                f"target {quoted(text)}: there is no item {quoted(item)}{suggestion(item, named)}"
            )
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
        return tuple(accounting.parse_epsilon(number) for number in text.split(","))
    except SpecError as error:
        raise SpecError(f"sweep: {error}, with commas between: 0.1,0.5,1,2") from None


def goal_of(targets: Sequence[Target], spec: Spec, compiled: CompiledSpec) -> Goal:
    """Return the goal that targets of a spec's items make."""
    places = {
        item.name: tuple(blocks) for item, blocks in zip(spec.items, compiled.items, strict=True)
    }
    return tuple(Limit(target.figure, places[target.item], target.at_most) for target in targets)


def least_epsilons(
    plan: Plan, shares: BudgetShares, derived: DerivedTargets | None = None
) -> tuple[LeastEpsilon, ...]:
    """Return what each kind of noise needs to meet all targets, the cheaper one first."""
    least = []
    for selection in plan.selections:
        if selection.noise == "laplace" or shares.delta > 0:
            score = targets_score(plan, selection, derived)
            epsilon = least_epsilon(selection, shares.spec, delta=shares.delta, score=score)
            share = shares.share_at(selection, epsilon)
            least.append(LeastEpsilon(selection.noise, epsilon, share))
    return tuple(sorted(least, key=lambda needed: needed.share))


def targets_score(plan: Plan, selection: PlannedSelection, derived: DerivedTargets | None) -> float:
    """Return the inverse of the largest unit noise at which a selection meets all targets."""
    score = (selection.score or math.inf) if plan.targets else 0.0
    return score if derived is None else max(score, derived.score(selection.noise))


def least_epsilon(
    selection: PlannedSelection, spec: Spec, *, delta: Fraction, score: float
) -> Fraction:
    """Solve selection_std(epsilon) score = 1 for epsilon, and round up."""
    change = sound_change(selection.change, spec)
    needed = steps(spec.privacy, change) * score
    if selection.noise == "laplace":
        exact = math.sqrt(2) * needed
    else:
        exact = accounting.epsilon_of_mu(needed, delta, spec.budget.counted)
    low, high = accounting.EPSILONS
    if exact > high:
        raise SpecError(
            f"these targets need an epsilon of {exact:.3g} with "
            f"{selection.noise.capitalize()} noise, "
            f"and the largest is {float(high):g}; ask for less"
        )
    epsilon = max(low, rounded_up(max(exact, float(low))))
    while selection_std(selection, spec, epsilon=epsilon, delta=delta) * score > 1:
        epsilon = rounded_up(float(epsilon) * (1 + 10.0**-DIGITS))
    return epsilon


def rounded_up(value: float) -> Fraction:
    """Return an epsilon of DIGITS digits that is no less."""
    step = Fraction(10) ** (math.floor(math.log10(value)) + 1 - DIGITS)
    return math.ceil(Fraction(value) / step) * step


def reached_targets(priced: SelectionAtBudget, targets: Sequence[Target]) -> tuple[Reached, ...]:
    """Return each target with its figure under a selection, in counts."""
    items = {item.name: item for item in priced.selection.items}
    figures = [
        items[target.item].max_std_error if target.figure == "sd" else items[target.item].rmse
        for target in targets
    ]
    return tuple(Reached(t, priced.std * f) for t, f in zip(targets, figures, strict=True))


def swept(plan: Plan, shares: BudgetShares, epsilons: Sequence[Fraction]) -> tuple[Sweep, ...]:
    """Price a plan at several epsilons: the strategies stay, and the better noise may change."""
    return tuple(Sweep(epsilon, prices(plan, shares, epsilon=epsilon)) for epsilon in epsilons)
