"""The contracts under which a plan is carried out, and the choice between them.

A contract says what is put to the data, and what a release is made of once noisy values are there:
least squares with a standard error on every answer, or relaxed rows, whose answers have none.
"""

from dpquery.exceptions import SpecError
from dpquery.mechanisms.linear import LinearContract, linear_contract
from dpquery.mechanisms.rap import RapContract, rap_contract
from dpquery.mechanisms.release_content import Terms
from dpquery.plan_file.plan import Plan
from dpquery.plan_file.rap_settings import PlannedRap
from dpquery.planning.comparison import Mechanism
from dpquery.spec.model import Spec

Contract = LinearContract | RapContract


def chosen_contract(plan: Plan, spec: Spec, terms: Terms, *, mechanism: Mechanism) -> Contract:
    """Return the contract that was asked for; "auto" leaves it to the plan.

    A kind of noise is one of linear strategies: who asks for it leaves nothing to the plan.

    Raises:
        SpecError: the plan has no such contract, or was not made for these terms.
    """
    relaxed = plan.relaxed
    if mechanism == "auto" and relaxed is not None and relaxed.preferred and terms.noise is None:
        _check_rehearsed(relaxed, terms)
        mechanism = "rap"
    own = rap_contract if mechanism == "rap" else linear_contract
    return own(plan, spec, terms)


def remark_on(plan: Plan, terms: Terms, *, mechanism: Mechanism) -> str:
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


def _is_rehearsed(relaxed: PlannedRap, terms: Terms) -> bool:
    return (relaxed.epsilon, relaxed.delta) == (terms.epsilon, terms.delta)


def _check_rehearsed(relaxed: PlannedRap, terms: Terms) -> None:
    """Refuse a guarantee at which nobody has seen that RAP is the better choice."""
    if not _is_rehearsed(relaxed, terms):
        raise SpecError(
            f"the plan prefers RAP, which it simulated at epsilon {float(relaxed.epsilon):g} and "
            f"delta {float(relaxed.delta):g}; plan again with --epsilon {float(terms.epsilon):g} "
            f"--delta {float(terms.delta):g}, or give --mechanism rap or --mechanism linear"
        )
