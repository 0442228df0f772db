"""The mechanisms by which a plan is carried out, and the choice between them.

A mechanism says what is measured on the data, and what a release is made of from the noisy values:
least squares with a standard error on every answer, or relaxed rows, whose answers have none, of
RAP or of adaptive measurement.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from dpquery.exceptions import SpecError
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.mechanisms.content import ReleaseRequest
from dpquery.mechanisms.linear import LinearMechanism, linear_mechanism
from dpquery.plan_file.plan import Plan
from dpquery.plan_file.rehearsals import MechanismChoice
from dpquery.reconstruction.columns import ExtraColumn
from dpquery.spec.numbers import power
from dpquery.spec.spec import Spec

if TYPE_CHECKING:
    from dpquery.mechanisms.fitted import AdaptiveMechanism, RapMechanism

    ReleaseMechanism = LinearMechanism | RapMechanism | AdaptiveMechanism


def chosen_mechanism(
    plan: Plan, spec: Spec, request: ReleaseRequest, *, mechanism: MechanismChoice, ledger: Ledger
) -> "ReleaseMechanism":
    """Return the mechanism that was asked for; "auto" leaves it to the plan.

    Only linear strategies have a kind of noise: a request that names one overrides the plan. In
    one that names none the ledger has a say: see `linear_mechanism`.

    Raises:
        LedgerError: the dataset is not registered.
        SpecError: the plan has no such mechanism, or was not made for this request.
    """
    preferred = plan.preferred
    if mechanism == "auto" and preferred is not None and request.noise is None:
        if not preferred.covers(request.epsilon, request.delta):
            raise SpecError(
                f"the plan prefers {preferred.name}, which it simulated at epsilon "
                f"{float(preferred.epsilon):g} and delta {power(float(preferred.delta))}; plan "
                f"again with --epsilon {float(request.epsilon):g} --delta "
                f"{power(float(request.delta))}, or give --mechanism {preferred.key} or "
                "--mechanism linear"
            )
        mechanism = preferred.key
    if mechanism in {"rap", "adaptive"}:
        from dpquery.mechanisms import fitted  # not loaded by releases without it

        if mechanism == "rap":
            return fitted.rap_mechanism(plan, spec, request)
        return fitted.adaptive_mechanism(plan, spec, request, ledger=ledger)
    return linear_mechanism(plan, spec, with_closest(plan, request), ledger=ledger)


def with_closest(plan: Plan, request: ReleaseRequest) -> ReleaseRequest:
    """Return a request with the column of a plan's closest answers, where it has not that one."""
    column = None if plan.closest is None else plan.closest.best.column
    known = [extra.name for extra in request.columns]
    if column is None or column == "estimate" or column in known:
        return request
    return replace(request, columns=(*request.columns, ExtraColumn(column)))


def remark_on(plan: Plan, request: ReleaseRequest, *, mechanism: MechanismChoice) -> str:
    """Return the remark that the plan compared with its linear strategy at another guarantee.

    Empty where linear was asked for, by name or by a kind of noise, or nothing was compared.
    """
    if mechanism != "auto" or request.noise is not None or plan.preferred is not None:
        return ""
    remarks = []
    for planned in plan.fits:
        if not planned.covers(request.epsilon, request.delta):
            same = planned.delta == request.delta
            delta = "" if same else f" and delta {power(float(planned.delta))}"
            remarks.append(
                f"{planned.name} was compared at epsilon {float(planned.epsilon):g}{delta} only"
            )
    return "; ".join(remarks)
