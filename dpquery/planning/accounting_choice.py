"""Which way of adding up losses a dataset is given, and which noise is far from being taken.

What losses are added up as is said once, by the first plan, and stays: a sum that bounds the loss
is of one kind from the first charge to the last. Gaussian noise of linear strategies is cheapest in
GDP, and Laplace noise in zCDP, which is also what RAP is charged in. So the mechanism that the plan
chose decides.

A release takes the kind of noise that errs less at an equal share of the budget (accounting.md).
So a kind of noise is far from being taken where it errs more at the guarantee that the plan is
asked for, by more than searches may still gain, and more at every smaller share of the budget; and
where no guarantee is named, at every larger one too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from dpquery.measurement.accounting import CURRENCIES, Currency
from dpquery.measurement.ledger.funds import Funds
from dpquery.operators.blocks import Workload
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.plan import Plan, PlannedSelection
from dpquery.plan_file.rehearsals import MechanismChoice
from dpquery.planning.figures import AtShare, BudgetShares, planned
from dpquery.planning.report import Terms
from dpquery.planning.targets import least_epsilon
from dpquery.spec.spec import Accounting, Spec
from dpquery.strategy.strategy import Noise

if TYPE_CHECKING:
    from dpquery.strategy.search.candidates import Proposal
    from dpquery.strategy.search.select import Selection


CHEAPEST: dict[Noise, Accounting] = {"laplace": "zcdp", "gaussian": "gdp"}
"""In what each kind of noise takes the least of a budget with a delta."""
SUMS: dict[Accounting, str] = {"zcdp": "rho of zCDP", "gdp": "mu^2 of GDP"}
"""What losses are added up as where a plan is free to choose, in words."""


@dataclass(frozen=True)
class Counted:
    """What losses are added up as."""

    accounting: Accounting  # in one word
    reason: str = ""  # why; empty where the spec says so
    # whether the spec, the record or the user said so, and not the choice of a plan
    settled: bool = True

    @property
    def words(self) -> str:
        """What to say of it; nothing where the spec says it."""
        if not self.reason:
            return ""
        barred = ", which RAP and adaptive measurement cannot be charged to"
        sums = SUMS[self.accounting] + barred * (self.accounting == "gdp")
        return f"losses are added up as {sums}: {self.reason}"

    def noted(self, plan: Plan) -> Plan:
        """Return a plan that keeps it, where its spec does not say it."""
        return replace(plan, accounting=self.accounting) if self.reason else plan

    def given_up_for(self, plan: Plan) -> "Counted | None":
        """Return what RAP is charged in, where a plan prefers it and this is not settled."""
        if self.settled or plan.preferred is None:
            return None
        return Counted("zcdp", f"the plan prefers {plan.preferred.name}, which is charged in it")


def settled_accounting(
    spec: Spec, currencies: Mapping[str, Currency], mechanism: MechanismChoice
) -> Counted | None:
    """Return what losses are added up as before a plan is made; None where its choice decides.

    A dataset's own record comes before its parent's. A record in epsilon says nothing: a budget
    with a delta is then another one, which registration refuses or changes.
    """
    if spec.accounting is not None:
        return Counted(spec.accounting)
    parent = spec.dataset.parent
    kinds: dict[Currency, Accounting] = {CURRENCIES[kind]: kind for kind in SUMS}
    for name in [spec.dataset.id, *([] if parent is None else [parent.id])]:
        if name in currencies and (kind := kinds.get(currencies[name])) is not None:
            return Counted(kind, f"{name} is on record so")
    if mechanism == "rap":
        return Counted("zcdp", "RAP is charged in it")
    if mechanism == "adaptive":
        return Counted("zcdp", "adaptive measurement is charged in it")
    return None


@dataclass(frozen=True, eq=False)
class _Offer:
    """A selection in what its losses are added up as, and the epsilon that it is asked for at."""

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
            bought: AtShare | None = self.shares.at(self.selection, self.epsilon)
            if share != self.asked:
                bought = self.shares.bought(self.selection, share, near=self.epsilon)
            std = math.inf if bought is None else bought.std
            self._scores[share] = std * (self.selection.score or math.inf)
        return self._scores[share]


def by_noise(
    plan: Plan, spec: Spec, workload: Workload, funds: Mapping[Accounting, Funds], terms: Terms
) -> Counted:
    """Return what losses are best added up as for a plan's linear strategies.

    Each kind of noise is priced in its own accounting. The one that errs less at an equal share of
    the budget decides, or where the plan has targets the one that meets them with the smaller.
    """
    to_meet = bool(plan.targets) and terms.epsilon is None
    offers = []
    for selection in plan.selections:
        if selection.noise == "laplace" or terms.delta > 0:
            kind, epsilon = CHEAPEST[selection.noise], terms.epsilon or Fraction(1)
            counted = spec.counted_in(kind)
            if to_meet:
                epsilon = least_epsilon(selection, counted, delta=terms.delta)
            shares = BudgetShares(counted, workload, terms.delta, funds[kind])
            offers.append(_Offer(selection, shares, epsilon))
    least = min(offer.asked for offer in offers)

    def order(offer: _Offer) -> tuple[bool, float]:
        return offer.asked > 1, offer.asked if to_meet else offer.score_at(least)

    noise = min(offers, key=order).selection.noise
    reason = f"the plan prefers {noise.capitalize()} noise, which costs least in it"
    return Counted(CHEAPEST[noise], reason, settled=False)


LEAST_RATIO = 1e-9  # of scores, where the other one is infinite
SHARES = (0.01, 0.1, 1.0)  # of the budget at which kinds of noise are compared, beside that asked


@dataclass(frozen=True, eq=False)
class Rivals:
    """Compares two kinds of noise at equal shares of the budgets that a plan may be charged to."""

    spec: Spec  # declares the unit
    compiled: CompiledSpec  # its workload
    # the accounts that a release is charged to, by what losses are added up as: by one thing, or
    # where the plan decides by that in which each kind of noise is cheapest
    funds: Mapping[Accounting, Funds]
    epsilon: Fraction  # that the plan is asked for
    delta: Fraction  # of the guarantee
    # whether nobody named them: a release may then well take more of the budget
    any_share: bool = True
    _offers: dict["Proposal | None", _Offer] = field(default_factory=dict, init=False)

    def __call__(self, selection: "Selection", rival: "Selection", lead: float) -> float:
        """Return the share of its score below which a selection may be taken; 1 where it may be."""
        one, other = self._offer(selection), self._offer(rival)
        asked = min(1.0, one.asked, other.asked)
        compared = (at for at in SHARES if at < asked or self.any_share)
        ratios = [_ratio(one.score_at(at), other.score_at(at)) for at in (asked, *compared)]
        return min(1.0, max(lead / ratios[0], 1 / min(ratios)))

    def _offer(self, selection: "Selection") -> _Offer:
        """Return a selection in the accounting that it would be charged in, worked out once."""
        proposal = selection.best.proposal
        if proposal not in self._offers:
            kind = CHEAPEST[selection.noise] if len(self.funds) > 1 else next(iter(self.funds))
            spec, workload = self.spec.counted_in(kind), self.compiled.workload
            shares = BudgetShares(spec, workload, self.delta, self.funds[kind])
            taken = planned(selection, spec, self.compiled)
            self._offers[proposal] = _Offer(taken, shares, self.epsilon)
        return self._offers[proposal]


def _ratio(score: float, other: float) -> float:
    """Return a score over another one; next to nothing where the other is infinite."""
    return score / other if other < math.inf else LEAST_RATIO
