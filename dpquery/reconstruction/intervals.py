"""Standard errors and noise intervals of every answer, from the strategy alone.

Under Gaussian noise an answer's noise is normal. Under Laplace noise it is a weighted sum of
Laplace variables, c'y: neither Laplace nor normal. Its law is replaced by the sum of one Laplace
and one normal variable with the same variance and the same fourth cumulant, exact when one
measurement carries the answer and in the limit of many. The fourth cumulant is set by the ratio
    concentration = sum c^4 / (sum c^2)^2  in (0, 1].
"""

import math
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from dpquery.operators.blocks import Block
from dpquery.operators.factors import Array
from dpquery.strategy.row_errors import expand, power_sums
from dpquery.strategy.strategies import Strategy

GRID = 257  # concentrations at which the quantile is solved; linear between them


def standard_errors(
    strategy: Strategy, block: Block, *, position: int, noise_std: float
) -> Array:
    """Return the standard error of every query of a block, in counts. (m,).

    Args:
        strategy: the strategy measured.
        block: a block of the workload, at `position`.
        position: its place.
        noise_std: standard deviation of the noise on each measured row.
    """
    terms = power_sums(strategy, block, position=position, order=2) or []
    return noise_std * np.sqrt(expand(terms, block.row_shape)).ravel()


def half_widths(
    strategy: Strategy, block: Block, std_errors: Array, *, position: int, level: float
) -> Array:
    """Return the half width of the noise interval of every query at a confidence level. (m,).

    Where no closed form gives the concentration (r-of-k blocks under marginals with Laplace
    noise) the widest law, a single Laplace, is taken: such intervals cover too much, never too
    little.
    """
    if strategy.noise == "gaussian":
        return std_errors * float(ndtri((1 + level) / 2))
    fourth = power_sums(strategy, block, position=position, order=4)
    if fourth is None:
        return std_errors * laplace_quantile(np.ones(1), level)
    second = power_sums(strategy, block, position=position, order=2) or []
    ratio = expand(fourth) / expand(second) ** 2
    factor = laplace_quantile(np.clip(ratio, 0, 1), level)
    return np.asarray(std_errors * np.broadcast_to(factor, block.row_shape).ravel())


def laplace_quantile(concentration: Array, level: float) -> Array:
    """Return the two-sided quantile, in standard deviations, for each concentration.

    >>> laplace_quantile(np.array([0.0, 1.0]), 0.95).round(4)
    array([1.96  , 2.1183])
    """
    knots, values = _quantile_grid(level)
    return np.interp(np.sqrt(concentration), knots, values)


@cache
def _quantile_grid(level: float) -> tuple[Array, Array]:
    knots = np.linspace(0, 1, GRID)
    values = [_mixed_quantile(float(share), level) for share in knots]
    return knots, np.array(values)


def _mixed_quantile(share: float, level: float) -> float:
    """Solve P(|X| > q) = 1 - level for unit variance, `share` of it from one Laplace variable."""
    if share <= 0:
        return float(ndtri((1 + level) / 2))
    scale = math.sqrt(share / 2)
    if share >= 1:
        return -scale * math.log(1 - level)
    spread = math.sqrt(1 - share)
    upper = 40.0 + -2 * math.log(1 - level)
    return float(brentq(lambda q: 2 * _upper_tail(q, scale, spread) - (1 - level), 0.0, upper))


def _upper_tail(x: float, scale: float, spread: float) -> float:
    """Return P(L + Z > x), L Laplace of a scale, Z normal of a standard deviation.

    Integrating the normal tail against the Laplace density gives
    Phi(-x/s) + (e^{s^2/2b^2}/2) [e^{-x/b} Phi(x/s - s/b) - e^{x/b} Phi(-x/s - s/b)].
    """
    u, v = x / spread, spread / scale
    falling = math.exp(v * v / 2 - x / scale + float(log_ndtr(u - v)))
    rising = math.exp(v * v / 2 + x / scale + float(log_ndtr(-u - v)))
    return float(ndtr(-u)) + (falling - rising) / 2
