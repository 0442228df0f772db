"""Calibrated noise of a linear strategy: its grid, exact sensitivity and scale.

All of it follows from public inputs: the integer strategy, the privacy unit and the guarantee.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dpquery.exceptions import SpecError
from dpquery.measurement.accounting import Guarantee, noise_scale
from dpquery.measurement.counting.exact_answers import check_width, grid_shift
from dpquery.measurement.noise.exact_noise import LARGEST_SCALE
from dpquery.measurement.noise.laplace_cost import Moves, laplace_rho, laplace_squared_mu
from dpquery.spec.model import Privacy, Spec
from dpquery.strategy.noise_kinds import Law
from dpquery.strategy.record_changes import RecordChange
from dpquery.strategy.shapes.sensitivity import block_norms, column_support, sensitivity
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.strategy.shapes.weighted_block import WeightedBlock


@dataclass(frozen=True)
class CalibratedNoise:
    """Independent integer noise of one scale on every measured row.

    Attributes:
        guarantee: the privacy guarantee of all rows together, with what it costs otherwise.
        shift: measured answers are integer strategy answers over 2^shift, floored.
        sensitivity: exact on that grid and for the declared unit: D1, or D2 squared.
        scale: of the noise in grid steps.
        change: what a record does between neighbours, which the sensitivity is for.
    """

    guarantee: Guarantee
    shift: int
    sensitivity: int
    scale: float
    change: RecordChange = "enters"

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on a row of the integer strategy."""
        return standard_deviation(self.guarantee.law, scale=self.scale, shift=self.shift)


def record_change(spec: Spec) -> RecordChange:
    """Return what a record of the protected unit does between neighbours.

    Privacy:
        A replaced row stays inside the domain where no column drops records: what is not declared
        is then a class of its own. A person may have fewer rows than the one in whose place they
        are, or none, so that rows enter and leave.
    """
    if spec.privacy.neighbours == "add-remove":
        return "enters"
    columns = (column for attribute in spec.domain.attributes for column in attribute.columns)
    if spec.privacy.person is not None or any(column.drops for column in columns):
        return "moves"
    return "moves within"


def sound_change(planned: RecordChange, spec: Spec) -> RecordChange:
    """Return what a plan takes a record to do, if the spec's neighbours do no more than that.

    Plans that say nothing take a replacement for a removal and an addition, which is more.

    Raises:
        SpecError: they do.
    """
    if planned not in ("enters", record_change(spec)):
        raise SpecError(
            "the plan's figures are for other neighbours than those of its spec: it was changed "
            "by hand; run `dpquery plan` again"
        )
    return planned


def calibrated_noise(
    strategy: Strategy,
    *,
    privacy: Privacy,
    guarantee: Guarantee,
    change: RecordChange | None = None,
) -> CalibratedNoise:
    """Return the noise that meets a guarantee for a strategy.

    Args:
        strategy: its blocks and integer weights.
        privacy: the protected unit and its neighbours.
        guarantee: to meet; of the strategy's kind of noise.
        change: what a record does between neighbours, of `sound_change`; default: the most that
            the unit allows.

    Privacy:
        Neighbours differ in at most `max_rows` records of one person, added or removed; or, under
        "replace", in one person's records for other ones. These are `max_rows` moves at most, each
        of a record to another cell, into the domain or out of it ([MATH] 11); with the change
        "enters" they are counted as removals and additions.

    Raises:
        SpecError: the noise would be too fine or too coarse for the grid, or the integers of the
            strategy too wide for it.
    """
    measurements = strategy.measurements
    check_width(measurements)
    shift = grid_shift(measurements)
    if change is None:
        change = "enters" if privacy.neighbours == "add-remove" else "moves"
    records = steps(privacy, change)
    exact = sensitivity(measurements, strategy.noise, change)
    if shift:
        support = column_support(measurements, change)
        exact = _on_grid(exact, support, shift, strategy.noise == "laplace")
    exact *= records if strategy.noise == "laplace" else records**2
    scale = noise_scale(guarantee, exact)
    if not 1 <= scale < LARGEST_SCALE:
        # Refused here, from public inputs, and not by the draw, which comes after the charge.
        raise SpecError(
            f"epsilon {float(guarantee.epsilon):g} asks for noise of {scale:.3g} steps of the "
            f"grid, and 1 to {LARGEST_SCALE:.3g} can be drawn; "
            f"ask for a {'smaller' if scale < 1 else 'larger'} epsilon"
        )
    if guarantee.kind == "pure":
        rho = strategy_rho(measurements, shift=shift, steps=records, scale=scale, change=change)
        squared = _norm_squared(measurements, shift=shift, change=change) * records**2
        guarantee = replace(
            guarantee,
            rho=min(rho, guarantee.amount**2 / 2),
            squared_mu=laplace_squared_mu(squared, scale=scale),
        )
    return CalibratedNoise(guarantee, shift, exact, scale, change)


def strategy_rho(
    measurements: Sequence[WeightedBlock],
    *,
    shift: int,
    steps: int,
    scale: float,
    change: RecordChange = "enters",
) -> Fraction:
    """Return the rho that Laplace noise of a scale costs a strategy, rounded up.

    Args:
        measurements: blocks and their integer weights.
        shift: their answers are measured over 2^shift, floored.
        steps: single records that change between neighbours.
        scale: of the noise in grid steps.
        change: what each of them does.

    Privacy: the smaller of two bounds on the costliest column, or difference of two columns: the
    sum over blocks, each at its own largest norms, and all blocks together at theirs. `steps`
    records cost most where they all do the same, since the cost is convex in the moves.
    """
    totals = block_norms(measurements, "laplace", change)
    squares = block_norms(measurements, "gaussian", change)
    supports = [column_support([measurement], change) for measurement in measurements]
    totals.append(sensitivity(measurements, "laplace", change))
    squares.append(sensitivity(measurements, "gaussian", change))
    supports.append(column_support(measurements, change))
    *apart, together = (
        Moves(
            steps * (_on_grid(total, support, shift, True) if shift else total),
            steps**2 * (_on_grid(squared, support, shift, False) if shift else squared),
        )
        for total, squared, support in zip(totals, squares, supports, strict=True)
        if total  # rows of zeros never move
    )
    return min(laplace_rho(apart or [together], scale=scale), laplace_rho([together], scale=scale))


def _norm_squared(
    measurements: Sequence[WeightedBlock], *, shift: int, change: RecordChange
) -> int:
    """Return the largest squared L2 norm of what a record changes on the grid of 2^shift."""
    exact = sensitivity(measurements, "gaussian", change)
    return _on_grid(exact, column_support(measurements, change), shift, False) if shift else exact


def standard_deviation(law: Law, *, scale: float, shift: int) -> float:
    """Return the standard deviation of noise of a scale in steps of 2^shift, per integer row.

    That of rounded noise of variance scale^2 + 1/12, to 2e-8 of it at a scale of 1 and to 1e-15
    from 2 on; that of the continuous laws for discrete noise: exact to 1e-7 of it for Gaussian
    noise, and for Laplace noise too large by 1 / (24 scale^2) of it, 4 % at a scale of 1.
    """
    match law:
        case "laplace":
            return math.sqrt(2) * scale * 2.0**shift
        case "gaussian":
            return scale * 2.0**shift
        case "rounded":
            return math.hypot(scale, math.sqrt(1 / 12)) * 2.0**shift


def steps(privacy: Privacy, change: RecordChange) -> int:
    """Return how many single records change between neighbours, each as `change` says."""
    replaced = privacy.neighbours == "replace"
    if change != "enters" and not replaced:
        raise ValueError("records that are added or removed enter or leave the domain")
    return privacy.max_rows * (2 if replaced and change == "enters" else 1)


def _on_grid(exact: int, support: int, shift: int, laplace: bool) -> int:
    """Return the sensitivity after flooring to 2^shift.

    A row whose answer moves by a moves by at most |a| / 2^shift + 1 on the grid, and only the
    `support` rows with a nonzero entry move: D1 grows by their number, D2 by its root (Minkowski).
    """
    if laplace:
        return -(-exact >> shift) + support
    length = math.isqrt(exact - 1) + 1
    return (-(-length >> shift) + math.isqrt(support) + 1) ** 2
