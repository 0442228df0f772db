"""One descent within plan's time; Grams by parameters; what one attribute was given.

A selector that optimises what is measured of an attribute sees it through M = G^-1, G = A'A with
columns of norm one, and through two numbers for each Gram matrix V of the workload:
    level g'Vg / mu^2  and  rest tr(M V) - g'Vg / mu,  g = M 1, mu = 1'g  ([MATH] 6 and 7).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize

from dpquery.arrays import Floats
from dpquery.operators.factors import Factor
from dpquery.operators.inverses import Inverse
from dpquery.progress import time_left

Descended = Callable[[Floats], tuple[float, Floats]]
"""A value and its gradient."""
Limits = Sequence[tuple[float | None, float | None]]


RIVALS = 2  # descents ahead of one that is left


class Race:
    """Descents of one objective from several starts, of which those that cannot win are left.

    Of 123 such races over p-Identities the best end was lost in two, by 1e-4 of its error, where
    descents were left from their 100th iteration on.
    """

    def __init__(self, after: int, most: int = 0, enough: float = math.inf) -> None:
        """Leave none before so many iterations of at most so many; `enough` is to be reached."""
        self.after, self.most, self.enough = after, most, enough
        self.courses: list[list[float]] = []

    def is_lost(self, course: Sequence[float]) -> bool:
        """Return whether a descent is behind RIVALS others, or too slow.

        Those are others that were lower after as many iterations, or at their end. Too slow is one
        that would not come to be enough if it went on as in the second half of its course.
        """
        if len(course) < self.after:
            return False
        others = (other[: len(course)] for other in self.courses)
        gain, steps = course[len(course) // 2] - course[-1], (len(course) - 1) // 2
        at_end = course[-1] - gain / max(1, steps) * (self.most - len(course))
        return sum(other[-1] < course[-1] for other in others) >= RIVALS or at_end > self.enough


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
    race: Race | None = None,
) -> OptimizeResult:
    """Return what L-BFGS-B reaches from a start; where time is over, what it has reached by then.

    One iteration is always made, so that a candidate which is out of time has something.

    Limits are of every entry; words say what is being done, from the value reached. The others are
    options of scipy: maxiter, maxfun, ftol, gtol and maxcor.
    """
    race, course = race or Race(max_iterations), list[float]()

    def callback(intermediate_result: OptimizeResult) -> None:
        course.append(float(intermediate_result["fun"]))
        if not time_left(words(course[-1])) or race.is_lost(course):
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
    race.courses.append([*course, float(result.fun)])
    return result


@dataclass(frozen=True, eq=False)
class FactorSelection:
    """A strategy for one attribute, and its loss."""

    factor: Factor  # the (m, n) strategy, full column rank, sensitivity 1
    inverse: Inverse  # inverse of its Gram
    loss: float  # its loss on the Gram it was selected for
    bound: float  # a proven lower bound on the loss of any strategy, or 0 where none is known
    state: Floats | None  # what a warm start continues from; None to start afresh
    converged: bool  # whether the optimiser met its tolerance


RIDGE = 1e-6  # of the identity mixed into every G: it stays invertible where the best is not
GRAM_ROUNDING = 1e-12


class UnitRoot:
    """G = B'B, ridged, with B the normalised columns of C: columns of L2 norm one. C: (n, n)."""

    def __init__(self, C: Floats) -> None:
        self.norms = np.sqrt((C**2).sum(axis=0))
        self.B = C / self.norms
        self.inverse = np.linalg.inv(ridged(self.B))

    def gradient(self, by_inverse: Floats) -> Floats:
        """Return the gradient with respect to C, given the symmetric one by M."""
        by_B = -2 * (1 - RIDGE) * self.B @ (self.inverse @ by_inverse @ self.inverse)
        return np.asarray((by_B - self.B * (self.B * by_B).sum(axis=0)) / self.norms)


def ridged(B: Floats) -> Floats:
    """Return (1 - RIDGE) B'B + RIDGE I: unit diagonal where the columns of B have norm one."""
    G = np.asarray(B.T @ B)
    G *= 1 - RIDGE
    G.flat[:: len(G) + 1] += RIDGE
    return G


class Moments:
    """mu, levels and rests of an attribute's Gram matrices, (u, n, n), at M."""

    def __init__(self, inverse: NDArray[np.floating], grams: Floats) -> None:
        g = inverse.sum(axis=0)
        self.grams, self.mu = grams, float(g.sum())
        self.Vg = grams @ g
        self.a = self.Vg @ g
        traces = np.einsum("uij,ij->u", grams, inverse)
        rests = traces - self.a / self.mu
        self.levels = self.a / self.mu**2
        self.rests = np.where(np.abs(rests) > GRAM_ROUNDING * np.abs(traces), rests, 0.0)

    def gradient(self, by_levels: Floats, by_rests: Floats, by_mu: float) -> Floats:
        """Return the gradient with respect to M, given those by levels, rests and mu."""
        mu, a = self.mu, self.a
        by_a = by_levels / mu**2 - by_rests / mu
        by_mu += float(by_rests @ a / mu**2 - 2 * by_levels @ a / mu**3)
        h = by_a @ self.Vg
        by_inverse = np.add.outer(h, h)
        by_inverse += np.tensordot(by_rests, self.grams, axes=1)
        by_inverse += by_mu
        return np.asarray(by_inverse)
