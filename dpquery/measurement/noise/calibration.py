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
from dpquery.spec.model import Privacy
from dpquery.strategy.noise_kinds import Law
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
    """

    guarantee: Guarantee
    shift: int
    sensitivity: int
    scale: float

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on a row of the integer strategy."""
        return standard_deviation(self.guarantee.law, scale=self.scale, shift=self.shift)


def calibrated_noise(
    strategy: Strategy, *, privacy: Privacy, guarantee: Guarantee
) -> CalibratedNoise:
    """Return the noise that meets a guarantee for a strategy.

    Args:
        strategy: its blocks and integer weights.
        privacy: the protected unit and its neighbours.
        guarantee: to meet; of the strategy's kind of noise.

    Privacy:
        Neighbours differ in at most `max_rows` records of one person, added or removed; or, under
        "replace", in one person's records for other ones, which is a removal and an addition.

    Raises:
        SpecError: the noise would be too fine or too coarse for the grid, or the integers of the
            strategy too wide for it.
    """
    measurements = strategy.measurements
    check_width(measurements)
    shift = grid_shift(measurements)
    exact = sensitivity(measurements, strategy.noise)
    if shift:
        exact = _on_grid(exact, column_support(measurements), shift, strategy.noise == "laplace")
    exact *= steps(privacy) if strategy.noise == "laplace" else steps(privacy) ** 2
    scale = noise_scale(guarantee, exact)
    if not 1 <= scale < LARGEST_SCALE:
        # Refused here, from public inputs, and not by the draw, which comes after the charge.
        raise SpecError(
            f"epsilon {float(guarantee.epsilon):g} asks for noise of {scale:.3g} steps of the "
            f"grid, and 1 to {LARGEST_SCALE:.3g} can be drawn; "
            f"ask for a {'smaller' if scale < 1 else 'larger'} epsilon"
        )
    if guarantee.kind == "pure":
        rho = strategy_rho(measurements, shift=shift, steps=steps(privacy), scale=scale)
        squared = _norm_squared(measurements, shift=shift) * steps(privacy) ** 2
        guarantee = replace(
            guarantee,
            rho=min(rho, guarantee.amount**2 / 2),
            squared_mu=laplace_squared_mu(squared, scale=scale),
        )
    return CalibratedNoise(guarantee, shift, exact, scale)


def strategy_rho(
    measurements: Sequence[WeightedBlock], *, shift: int, steps: int, scale: float
) -> Fraction:
    """Return the rho that Laplace noise of a scale costs a strategy, rounded up.

    Args:
        measurements: blocks and their integer weights.
        shift: their answers are measured over 2^shift, floored.
        steps: single records that are added or removed between neighbours.
        scale: of the noise in grid steps.

    Privacy: the smaller of two bounds on the costliest column: the sum over blocks, each at its
    own largest norms, and all blocks together at theirs. `steps` records cost most where they all
    belong to one class, since the cost is convex in the moves.
    """
    totals = block_norms(measurements, "laplace")
    squares = block_norms(measurements, "gaussian")
    supports = [column_support([measurement]) for measurement in measurements]
    totals.append(sensitivity(measurements, "laplace"))
    squares.append(sensitivity(measurements, "gaussian"))
    supports.append(column_support(measurements))
    *apart, together = (
        Moves(
            steps * (_on_grid(total, support, shift, True) if shift else total),
            steps**2 * (_on_grid(squared, support, shift, False) if shift else squared),
        )
        for total, squared, support in zip(totals, squares, supports, strict=True)
        if total  # rows of zeros never move
    )
    return min(laplace_rho(apart, scale=scale), laplace_rho([together], scale=scale))


def _norm_squared(measurements: Sequence[WeightedBlock], *, shift: int) -> int:
    """Return the largest squared L2 norm of a column on the grid of 2^shift."""
    exact = sensitivity(measurements, "gaussian")
    return _on_grid(exact, column_support(measurements), shift, False) if shift else exact


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


def steps(privacy: Privacy) -> int:
    """Return how many single records are added or removed between neighbours."""
    return privacy.max_rows * (2 if privacy.neighbours == "replace" else 1)


def _on_grid(exact: int, support: int, shift: int, laplace: bool) -> int:
    """Return the sensitivity after flooring to 2^shift.

    A row whose answer moves by a moves by at most |a| / 2^shift + 1 on the grid, and only the
    `support` rows with a nonzero entry move: D1 grows by their number, D2 by its root (Minkowski).
    """
    if laplace:
        return -(-exact >> shift) + support
    length = math.isqrt(exact - 1) + 1
    return (-(-length >> shift) + math.isqrt(support) + 1) ** 2
