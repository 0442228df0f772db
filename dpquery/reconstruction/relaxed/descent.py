"""RAP's projection: of all relaxed rows that fit the noisy answers, those closest to the start.

The seed lowers the squared error by thousands of Adam steps on logits that sparsemax maps to
distributions [RAP]; many rows do so, and which of them the steps end at decides what the rows say
about all that was not measured. Here it is said: minimise error + pull * D(rows || start), D the
relative entropy, and let the pull go down until the error is what noise explains. The descent is by
mirror steps with momentum: a step adds minus the gradient by the distributions to the logits of a
softmax, so no class at 0 or 1 is stuck. tests/bench/bench_rap.py measures both.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Numbers, Singles

MOST_STEPS = 1000
WINDOW, PROGRESS = 100, 0.01  # so many steps have to lower the excess by this part of it
FIRST_MOVE = 0.1  # of a logit in the first step, at most
MOMENTUM = 0.9
GROWTH, CUT = 1.1, 0.5  # of the step after one that helped, and after one that did not
FIRST_PULL = 0.2  # of the first round, as a part of the excess at the start
EASE, RETURN = 0.98, 3.0  # of the pull after every step, and for another round
SPENT = 1e-3  # a pull of this part of the excess has no effect: distances are a few nats
OBJECTIVE_ROUNDING = 1e-6  # of the objective in float32: a step that is worse by less is no worse
LEAST_LOG = -25.0  # of a mass: what is at exp(-25) can come back


@dataclass(frozen=True, eq=False)
class Misfit:
    """The error of relaxed rows against noisy answers, and its gradient."""

    error: float  # the weighted squared error
    worst: float  # the largest difference, in standard deviations of its answer's noise
    gradient: Singles  # n' times the gradient of the error by the masses, (g, n')


@dataclass(frozen=True, eq=False)
class FitTarget:
    """The noisy answers that relaxed rows are fitted to; the error that their noise explains."""

    misfit: Callable[[Singles], Misfit]  # from masses, (g, n')
    noise: float  # the error that the noise alone makes on average
    answers: int  # how many there are

    def is_met(self, misfit: Misfit) -> bool:
        """Whether noise explains the error as a whole, and the worst answer too.

        The largest of m normal deviates is below sqrt(2 ln 2m), more often than not. Of millions of
        answers a few that are clearly wrong do not show in the sum.
        """
        largest_deviate = math.sqrt(2 * math.log(2 * self.answers))
        return misfit.error <= self.noise and misfit.worst <= largest_deviate

    def excess(self, misfit: Misfit) -> float:
        """Return how much of the error noise does not explain, or the worst answer's error."""
        return max(misfit.error - self.noise, misfit.worst**2 * self.noise / self.answers)


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of a projection."""

    masses: Singles  # (g, n') distributions along each span
    pull: float | None  # towards the start, when it ended; None before the first projection
    steps: int  # that it tried, and all before it
    met: bool = True  # whether noise explains what is left


@dataclass(frozen=True, eq=False)
class _Point:
    logs: Singles
    masses: Singles
    misfit: Misfit
    distance: float

    def objective(self, pull: float) -> float:
        return self.misfit.error + pull * self.distance


def project(
    target: FitTarget,
    masses: Singles,
    *,
    start: Singles,
    spans: Sequence[slice],
    last: Fit,
    most_steps: int = MOST_STEPS,
) -> Fit:
    """Move relaxed rows towards noisy answers until noise explains how far they are from them.

    Args:
        target: the noisy answers; it also stops when `WINDOW` steps gain less than `PROGRESS`
            though the pull is no matter any more, and after `most_steps`.
        masses: (g, n') to go on from, distributions along each span.
        start: (g, n') to stay close to.
        spans: the groups of each attribute.
        last: where the last projection ended.
        most_steps: after which it ends.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.
    """
    anchor: Singles = np.log(start)
    point = _point(target, np.log(np.maximum(masses, np.float32(1e-30))), anchor, spans)
    pull = FIRST_PULL * target.excess(point.misfit) if last.pull is None else RETURN * last.pull
    velocity: Numbers = np.zeros_like(anchor)
    step, excess_before, tried = 0.0, math.inf, 0
    while not target.is_met(point.misfit) and tried < most_steps:
        if tried % WINDOW == 0:
            excess = target.excess(point.misfit)
            if excess > (1 - PROGRESS) * excess_before and pull < SPENT * excess:
                break
            excess_before = excess
        tried += 1
        slope = point.misfit.gradient + pull * (point.logs - anchor)
        step = step or FIRST_MOVE / max(float(np.abs(slope).max()), 1e-30)
        velocity = MOMENTUM * velocity - step * slope
        trial = _point(target, point.logs + velocity, anchor, spans)
        if trial.objective(pull) <= point.objective(pull) * (1 + OBJECTIVE_ROUNDING):
            point, step = trial, step * GROWTH
        else:
            velocity, step = np.zeros_like(velocity), step * CUT
        pull *= EASE
    return Fit(point.masses, pull, last.steps + tried, target.is_met(point.misfit))


def _point(target: FitTarget, logits: Numbers, anchor: Singles, spans: Sequence[slice]) -> _Point:
    logs, masses = softmax(logits, spans)
    misfit = target.misfit(masses)
    for span in spans:
        if span.stop - span.start == 1:
            misfit.gradient[span] = 0
    divergence = masses * (logs - anchor)
    # Summed by numpy: with BLAS the last bits depend on the number of threads.
    distance = float(divergence.sum()) / masses.shape[1]
    return _Point(logs, masses, misfit, distance)


def softmax(logits: Singles, spans: Sequence[slice]) -> tuple[Singles, Singles]:
    """Return distributions along each span: their logarithms, bounded, and the masses. (g, n')."""
    logs, masses = np.zeros_like(logits), np.ones_like(logits)
    for span in (span for span in spans if span.stop - span.start > 1):
        shifted = logits[span] - logits[span].max(axis=0)
        np.exp(shifted, out=masses[span])
        sums = masses[span].sum(axis=0)
        masses[span] /= sums
        np.maximum(shifted - np.log(sums), LEAST_LOG, out=logs[span])
    return logs, masses
