"""What a dataset's losses are added up as, where its spec leaves that open.

It is said once, by the first plan, and stays: a sum that bounds the loss is of one kind from the
first charge to the last. Gaussian noise of linear strategies is cheapest in GDP, and Laplace noise
in zCDP, which is also what RAP is charged in. So the mechanism that the plan chose decides.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from dpquery.measurement.accounting import CURRENCIES, Currency
from dpquery.measurement.ledger.funds import Funds
from dpquery.operators.blocks import Workload
from dpquery.plan_file.plan import Plan, PlannedSelection
from dpquery.plan_file.rap_settings import MechanismChoice
from dpquery.planning.figures import AtShare, BudgetShares
from dpquery.planning.plan_report import Terms
from dpquery.planning.targets import least_epsilon, targets_score
from dpquery.spec.model import Accounting, Spec
from dpquery.strategy.noise_kinds import Noise

CHEAPEST: dict[Noise, Accounting] = {"laplace": "zcdp", "gaussian": "gdp"}
"""In what each kind of noise takes the least of a budget with a delta."""
SUMS: dict[Accounting, str] = {"zcdp": "rho of zCDP", "gdp": "mu^2 of GDP"}
"""What losses are added up as where a plan is free to choose, in words."""


@dataclass(frozen=True)
class Counted:
    """What losses are added up as.

    Attributes:
        accounting: in one word.
        reason: why; empty where the spec says so.
        settled: whether the spec, the record or the user said so, and not the choice of a plan.
    """

    accounting: Accounting
    reason: str = ""
    settled: bool = True

    @property
    def words(self) -> str:
        """What to say of it; nothing where the spec says it."""
        if not self.reason:
            return ""
        return f"losses are added up as {SUMS[self.accounting]}: {self.reason}"

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

    Args:
        spec: declares the dataset and its parent.
        currencies: of all datasets on record.
        mechanism: that was asked for.
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


@dataclass(frozen=True)
class _Offer:
    """A selection in the accounting that suits its noise.

    Attributes:
        selection: the strategy.
        shares: prices it.
        asked: the guarantee's epsilon, and the unit noise there.
        share: what it takes of the whole budget there; infinite where its noise cannot be drawn.
    """

    selection: PlannedSelection
    shares: BudgetShares
    asked: AtShare
    share: float

    def score_at(self, share: float) -> float:
        """Return what the plan minimises where so much of the budget is spent."""
        bought: AtShare | None = self.asked
        if share < self.share:
            bought = self.shares.bought(self.selection, share, near=self.asked.epsilon)
        score = self.selection.score
        return math.inf if bought is None or score is None else bought.std * score


def by_noise(
    plan: Plan,
    spec: Spec,
    workload: Workload,
    funds: Mapping[Accounting, Funds],
    terms: Terms,
) -> Counted:
    """Return what losses are best added up as for a plan's linear strategies.

    Each kind of noise is priced in its own accounting. The one that errs less at an equal share of
    the budget decides, or where the plan has targets the one that meets them with the smaller.

    Args:
        plan: the selections.
        spec: leaves open what losses are added up as.
        workload: what the strategies answer.
        funds: the accounts that are charged, by what losses are added up as.
        terms: the guarantee.
    """

    def offer(selection: PlannedSelection) -> _Offer:
        kind = CHEAPEST[selection.noise]
        shares = BudgetShares(spec.counted_in(kind), workload, terms.delta, funds[kind])
        return _offer(plan, selection, shares, terms)

    offers = [
        offer(selection)
        for selection in plan.selections
        if selection.noise == "laplace" or terms.delta > 0
    ]
    least = min(offer.share for offer in offers)
    if (plan.targets or terms.derived) and terms.epsilon is None:
        best = min(offers, key=lambda offer: (offer.share > 1, offer.share))
    else:
        best = min(offers, key=lambda offer: (offer.share > 1, offer.score_at(least)))
    noise = best.selection.noise
    reason = f"the plan prefers {noise.capitalize()} noise, which takes least in it"
    return Counted(CHEAPEST[noise], reason, settled=False)


def _offer(plan: Plan, selection: PlannedSelection, shares: BudgetShares, terms: Terms) -> _Offer:
    epsilon = terms.epsilon
    if epsilon is None and (plan.targets or terms.derived):
        score = targets_score(plan, selection, terms.derived)
        epsilon = least_epsilon(selection, shares.spec, delta=terms.delta, score=score)
    epsilon = epsilon or Fraction(1)
    share = shares.share_at(selection, epsilon)
    return _Offer(selection, shares, shares.at(selection, epsilon), share)
