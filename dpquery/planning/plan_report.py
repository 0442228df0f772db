"""A plan with its figures in counts, at one guarantee: what the commands print of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpquery.plan_file.plan import Plan
from dpquery.planning.figures import SelectionAtBudget, prices
from dpquery.planning.targets import (
    LeastEpsilon,
    Reached,
    Sweep,
    least_epsilons,
    reached_targets,
    swept,
)
from dpquery.spec.model import Spec


@dataclass(frozen=True, eq=False)
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
        remark: what a rehearsal of RAP left unfinished, or why there is none; see plan.relaxed.
    """

    spec: Spec
    plan: Plan
    epsilon: Fraction
    delta: Fraction
    priced: tuple[SelectionAtBudget, ...]
    least: tuple[LeastEpsilon, ...]
    reached: tuple[Reached, ...]
    sweep: tuple[Sweep, ...]
    remark: str = ""


def report_of(
    plan: Plan, spec: Spec, *, epsilon: Fraction | None, delta: Fraction, sweep: Sequence[Fraction]
) -> PlanReport:
    """Price a plan at an epsilon; by default at 1, or at the least that meets its targets."""
    least = least_epsilons(plan, spec, delta=delta) if plan.targets else ()
    if epsilon is None:
        epsilon = least[0].epsilon if least else Fraction(1)
    priced = prices(plan, spec, epsilon=epsilon, delta=delta)
    met = reached_targets(priced[0], plan.targets)
    return PlanReport(
        spec, plan, epsilon, delta, priced, least, met, swept(plan, spec, sweep, delta=delta)
    )
