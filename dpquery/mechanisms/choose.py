"""The mechanisms by which a plan is carried out, and the choice between them.

A mechanism says what is measured on the data, and what a release is made of from the noisy values:
least squares with a standard error on every answer, or relaxed rows, whose answers have none.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from dpquery.exceptions import SpecError
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.mechanisms.linear import LinearMechanism, linear_mechanism
from dpquery.mechanisms.release_content import ReleaseRequest
from dpquery.plan_file.plan import Plan
from dpquery.plan_file.rap_settings import MechanismChoice, PlannedRap
from dpquery.reconstruction.columns.postprocess import ExtraColumn
from dpquery.spec.model import Spec

if TYPE_CHECKING:
    from dpquery.mechanisms.rap import RapMechanism

    ReleaseMechanism = LinearMechanism | RapMechanism


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
    relaxed = plan.relaxed
    if mechanism == "auto" and relaxed is not None and relaxed.preferred and request.noise is None:
        _check_rehearsed(relaxed, request)
        mechanism = "rap"
    if mechanism == "rap":
        from dpquery.mechanisms.rap import rap_mechanism  # not loaded by releases without it

        return rap_mechanism(plan, spec, request)
    return linear_mechanism(plan, spec, with_closest(plan, request), ledger=ledger)


def with_closest(plan: Plan, request: ReleaseRequest) -> ReleaseRequest:
    """Return a request with the column of a plan's closest answers, where it has not that one."""
    column = None if plan.closest is None else plan.closest.best.column
    known = [extra.name for extra in request.columns]
    if column is None or column == "estimate" or column in known:
        return request
    return replace(request, columns=(*request.columns, ExtraColumn(column)))


def remark_on(plan: Plan, request: ReleaseRequest, *, mechanism: MechanismChoice) -> str:
    """Return the remark that the plan compared RAP with its linear strategy at another guarantee.

    Empty where linear was asked for, by name or by a kind of noise, or RAP was not compared.
    """
    relaxed = plan.relaxed
    if mechanism != "auto" or request.noise is not None or relaxed is None or relaxed.preferred:
        return ""
    if _is_rehearsed(relaxed, request):
        return ""
    delta = "" if relaxed.delta == request.delta else f" and delta {float(relaxed.delta):g}"
    return f"RAP was compared at epsilon {float(relaxed.epsilon):g}{delta} only"


def _is_rehearsed(relaxed: PlannedRap, request: ReleaseRequest) -> bool:
    return (relaxed.epsilon, relaxed.delta) == (request.epsilon, request.delta)


def _check_rehearsed(relaxed: PlannedRap, request: ReleaseRequest) -> None:
    """Refuse a guarantee at which RAP was not rehearsed, where the plan prefers RAP."""
    if not _is_rehearsed(relaxed, request):
        raise SpecError(
            f"the plan prefers RAP, which it simulated at epsilon {float(relaxed.epsilon):g} and "
            f"delta {float(relaxed.delta):g}; plan again with --epsilon {float(request.epsilon):g} "
            f"--delta {float(request.delta):g}, or give --mechanism rap or --mechanism linear"
        )
