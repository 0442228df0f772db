"""The projection of RAP as the seed has it, for comparison: Adam on logits under sparsemax [RAP].

The product fits by projection.project instead; bench_rap.py measures what either is worth.
"""

from collections.abc import Sequence

import numpy as np

from dpquery.arrays import Floats
from dpquery.reconstruction.relaxed.descent import FitTarget


def sparsemax(logits: Floats, spans: Sequence[slice]) -> Floats:
    """Return the distributions closest to the logits of each span: (g, n') [MA16].

    max(z - tau, 0) with tau found by Newton's method on sum max(z - tau, 0) = 1: it is convex and
    piecewise linear, so from below tau is reached exactly in a few steps, without sorting.
    """
    masses = np.empty_like(logits)
    for span in spans:
        part = logits[span]
        tau = part.max(axis=0) - 1
        for _ in range(len(part)):
            above = np.maximum(part - tau, 0)
            rise = (above.sum(axis=0) - 1) / (above > 0).sum(axis=0)
            if rise.max() <= 1e-7:
                break
            tau += np.maximum(rise, 0)
        masses[span] = np.maximum(part - tau, 0)
    return masses


def sparsemax_product(masses: Floats, gradient: Floats, spans: Sequence[slice]) -> Floats:
    """Return the Jacobian of sparsemax times a gradient: less its mean over what is not zero."""
    product = np.where(masses > 0, gradient, 0)
    for span in spans:
        support = masses[span] > 0
        product[span] -= support * (product[span].sum(axis=0) / support.sum(axis=0))
    return product


def adam(
    target: FitTarget, masses: Floats, *, spans: Sequence[slice], rate: float, most: int
) -> tuple[Floats, int]:
    """Lower the error by Adam; return the masses and the steps taken."""
    logits, first, second = masses.copy(), np.zeros_like(masses), np.zeros_like(masses)
    for step in range(1, most + 1):
        masses = sparsemax(logits, spans)
        misfit = target.misfit(masses)
        if misfit.error <= target.noise:
            return masses, step
        slope = sparsemax_product(masses, misfit.gradient, spans)
        first += 0.1 * (slope - first)
        second += 0.001 * (slope**2 - second)
        scale = np.sqrt(second / (1 - 0.999**step)) + 1e-8
        logits -= rate * (first / (1 - 0.9**step)) / scale
    return masses, most
