"""Which of two kinds of noise is far from being taken for a release, by what both have so far.

A release takes the kind of noise that errs less at an equal share of the budget (accounting.md).
So a kind of noise is far from being taken where it errs more at every share of the budget, and
`LEAD` times as much at the guarantee that the plan is asked for: more than long searches gain.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from dpquery.measurement.ledger.funds import Funds
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.plan import PlannedSelection
from dpquery.planning.counted import CHEAPEST
from dpquery.planning.figures import BudgetShares, planned
from dpquery.spec.model import Accounting, Spec

if TYPE_CHECKING:
    from dpquery.strategy.search.select import Selection

LEAD = 2.0  # long searches lowered the error of quick candidates 1.5 times at most where measured
LEAST_RATIO = 1e-9  # of scores, where the other one is infinite
SHARES = (0.01, 0.1, 1.0)  # of the budget at which kinds of noise are compared, beside that asked


@dataclass(frozen=True, eq=False)
class Rivals:
    """Compares two kinds of noise at equal shares of the budgets that a plan may be charged to.

    Attributes:
        spec: declares the unit.
        compiled: its workload.
        funds: the accounts that a release is charged to, by what losses are added up as: by one
            thing, or where the plan decides by that in which each kind of noise is cheapest.
        epsilon: that the plan is asked for.
        delta: of the guarantee.
    """

    spec: Spec
    compiled: CompiledSpec
    funds: Mapping[Accounting, Funds]
    epsilon: Fraction
    delta: Fraction
    _offers: dict["Selection", "_Offer"] = field(default_factory=dict, init=False)

    def __call__(self, selection: "Selection", rival: "Selection") -> float:
        """Return the share of its score below which a selection may be taken; 1 where it may be."""
        one, other = self._offer(selection), self._offer(rival)
        asked = min(1.0, one.asked, other.asked)
        ratios = [_ratio(one.score_at(at), other.score_at(at)) for at in (asked, *SHARES)]
        return min(1.0, max(LEAD / ratios[0], 1 / min(ratios)))

    def _offer(self, selection: "Selection") -> "_Offer":
        """Return a selection in the accounting that it would be charged in, worked out once."""
        if selection not in self._offers:
            self._offers[selection] = self._priced(selection)
        return self._offers[selection]

    def _priced(self, selection: "Selection") -> "_Offer":
        kind = CHEAPEST[selection.noise] if len(self.funds) > 1 else next(iter(self.funds))
        spec, workload = self.spec.counted_in(kind), self.compiled.workload
        shares = BudgetShares(spec, workload, self.delta, self.funds[kind])
        return _Offer(planned(selection, spec, self.compiled), shares, self.epsilon)


@dataclass(frozen=True, eq=False)
class _Offer:
    """A selection, what prices it, and the epsilon that it is asked for at."""

    selection: PlannedSelection
    shares: BudgetShares
    epsilon: Fraction
    _scores: dict[float, float] = field(default_factory=dict, init=False)

    @cached_property
    def asked(self) -> float:
        """The share of the budget that it takes there; infinite where it cannot be drawn."""
        return self.shares.share_at(self.selection, self.epsilon)

    def score_at(self, share: float) -> float:
        """Return its score where so much of the budget is spent; infinite where nothing is."""
        if share not in self._scores:
            bought = self.shares.bought(self.selection, share, near=self.epsilon)
            std = math.inf if bought is None else bought.std
            self._scores[share] = std * (self.selection.score or math.inf)
        return self._scores[share]


def _ratio(score: float, other: float) -> float:
    """Return a score over another one; next to nothing where the other is infinite."""
    return score / other if other < math.inf else LEAST_RATIO
