"""Descents that hand over what they have reached when plan's time is over."""

from collections.abc import Callable, Sequence

from scipy.optimize import OptimizeResult, minimize

from dpquery.arrays import Floats
from dpquery.progress import time_left

Descended = Callable[[Floats], tuple[float, Floats]]
"""A value and its gradient."""
Limits = Sequence[tuple[float | None, float | None]]


def descend(
    objective: Descended,
    start: Floats,
    *,
    words: Callable[[float], str],
    max_iterations: int,
    max_evaluations: int = 15_000,
    ftol: float = 2.220446049250313e-09,
    gtol: float = 1e-5,
    corrections: int = 10,
    limits: Limits | None = None,
) -> OptimizeResult:
    """Return what L-BFGS-B reaches from a start; where time is over, what it has reached by then.

    One iteration is always made, so that a candidate which is out of time has something.

    Args:
        objective: what to minimise.
        start: where.
        words: says what is being done, from the value reached.
        max_iterations: at most so many.
        max_evaluations: of the objective, at most.
        ftol: relative gain of an iteration below which it has converged.
        gtol: largest entry of a gradient at which it has.
        corrections: pairs of steps and gradients that L-BFGS-B remembers.
        limits: of every entry.
    """

    def callback(intermediate_result: OptimizeResult) -> None:
        if not time_left(words(float(intermediate_result["fun"]))):
            raise StopIteration

    result: OptimizeResult = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=limits,
        callback=callback,
        options={
            "maxiter": max_iterations,
            "maxfun": max_evaluations,
            "ftol": ftol,
            "gtol": gtol,
            "maxcor": corrections,
        },
    )
    return result
