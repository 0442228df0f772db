"""The mechanisms by which a plan is carried out, and the choice between them.

A mechanism says what is put to the data, and what a release is made of once noisy values are there:
least squares with a standard error on every answer, or relaxed rows, whose answers have none.
"""

from typing import TYPE_CHECKING

from dpquery.exceptions import SpecError
from dpquery.mechanisms.linear import LinearMechanism, linear_mechanism
from dpquery.mechanisms.release_content import ReleaseRequest
from dpquery.plan_file.plan import Plan
from dpquery.plan_file.rap_settings import MechanismChoice, PlannedRap
from dpquery.spec.model import Spec

if TYPE_CHECKING:
    from dpquery.mechanisms.rap import RapMechanism

    ReleaseMechanism = LinearMechanism | RapMechanism


def chosen_mechanism(
    plan: Plan, spec: Spec, terms: ReleaseRequest, *, mechanism: MechanismChoice
) -> "ReleaseMechanism":
    """Return the mechanism that was asked for; "auto" leaves it to the plan.

    A kind of noise is one of linear strategies: who asks for it leaves nothing to the plan.

    Raises:
        SpecError: the plan has no such mechanism, or was not made for these terms.
    """
    relaxed = plan.relaxed
    if mechanism == "auto" and relaxed is not None and relaxed.preferred and terms.noise is None:
        _check_rehearsed(relaxed, terms)
        mechanism = "rap"
    if mechanism == "rap":
        from dpquery.mechanisms.rap import rap_mechanism  # not loaded by releases without it

        return rap_mechanism(plan, spec, terms)
    return linear_mechanism(plan, spec, terms)


def remark_on(plan: Plan, terms: ReleaseRequest, *, mechanism: MechanismChoice) -> str:
    """Return what to say of a linear strategy that a plan prefers: seen at its own guarantee only.

    Nothing where it was asked for, by name or by a kind of noise, or where RAP was not compared.
    """
    relaxed = plan.relaxed
    if mechanism != "auto" or terms.noise is not None or relaxed is None or relaxed.preferred:
        return ""
    if _is_rehearsed(relaxed, terms):
        return ""
    delta = "" if relaxed.delta == terms.delta else f" and delta {float(relaxed.delta):g}"
    return f"RAP was compared at epsilon {float(relaxed.epsilon):g}{delta} only"


def _is_rehearsed(relaxed: PlannedRap, terms: ReleaseRequest) -> bool:
    return (relaxed.epsilon, relaxed.delta) == (terms.epsilon, terms.delta)


def _check_rehearsed(relaxed: PlannedRap, terms: ReleaseRequest) -> None:
    """Refuse a guarantee at which nobody has seen that RAP is the better choice."""
    if not _is_rehearsed(relaxed, terms):
        raise SpecError(
            f"the plan prefers RAP, which it simulated at epsilon {float(relaxed.epsilon):g} and "
            f"delta {float(relaxed.delta):g}; plan again with --epsilon {float(terms.epsilon):g} "
            f"--delta {float(terms.delta):g}, or give --mechanism rap or --mechanism linear"
        )
