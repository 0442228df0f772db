"""Quantiles of weighted sums of independent Laplace variables, from two power sums of the weights.

With shares a_r = c_r^2 / sum c^2 of the variance, the sum at unit variance has
    E exp(s X) = prod_r 1 / (1 - a_r s^2 / 2),
a law set by the power sums of a. Of all laws with the same S2 = sum a^2 and S3 = sum a^3 the one
tabulated is that of k equal shares and a normal rest,
    k = S2^3 / S3^2,   share = S3 / S2,   rest = 1 - S2^2 / S3,
which is there for every (S2, S3), with k >= 1 any real number and rest >= 0, and is exact for equal
shares, and for one share beside many small ones. Other shares have quantiles up to 0.33 % above its
and up to 0.75 % below, levels 0.5 to 0.9999; a safety is added where S2 and S3 leave room for them.
"""

from functools import cache

import numpy as np
from scipy.ndimage import map_coordinates
from scipy.special import ndtri

from dpquery.arrays import Floats

ROOTS, RESTS = 97, 33  # points of the table: of sqrt(S2), and of the rest in units of the largest
LAW_SAFETY = 0.004  # added at most; measured, other shares have quantiles up to 0.0033 above
SAFETY_OF_S2, SAFETY_BETWEEN = 0.008, 0.03  # none is needed at S2 = 0 nor at either end of the rest
INTERPOLATED = 3e-5  # added for what lies between points of the table; measured, 2.3e-5 is missing
NODES = 128  # of the inversion integral: errors of 1e-12
HALVINGS = 60
NEWTON_STEPS = 80  # of Newton's method, which takes about six
LOOKUP_CHUNK = 1 << 14  # rows looked up at once


def laplace_quantile(second: Floats, third: Floats, level: float) -> Floats:
    """Return a two-sided quantile in standard deviations, never below that of any such shares.

    Args:
        second: sums of squares of the shares of the variance, in [0, 1].
        third: sums of their cubes, between second^2 and second^1.5.
        level: probability that the quantile holds; in [0.5, 0.9999] at most 1.2 % too wide.

    >>> laplace_quantile(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 0.95).round(3)
    array([1.96 , 2.118])
    """
    table = _table(level)
    second, third = np.broadcast_arrays(second, third)
    out = np.empty(second.shape)
    flat, squares, cubes = out.reshape(-1), second.ravel(), third.ravel()
    for start in range(0, flat.size, LOOKUP_CHUNK):
        part = slice(start, start + LOOKUP_CHUNK)
        clipped = np.clip(squares[part], 0, 1)
        places = np.empty((2, len(clipped)))
        roots, rests = np.sqrt(clipped, out=places[0]), places[1]
        with np.errstate(divide="ignore", invalid="ignore"):
            np.divide(1 - clipped * clipped / cubes[part], 1 - roots, out=rests)
        np.nan_to_num(rests, copy=False)
        np.clip(rests, 0, 1, out=rests)
        roots *= ROOTS - 1
        rests *= RESTS - 1
        flat[part] = map_coordinates(table, places, order=1, mode="nearest")
    return out


def largest_quantile(level: float) -> float:
    """Return a quantile that no sum of Laplace variables exceeds, in standard deviations."""
    return float(_table(level).max())


@cache
def _table(level: float) -> Floats:
    """Return the quantile, with its safety, for every root of S2 and every rest: (ROOTS, RESTS)."""
    root = np.linspace(0, 1, ROOTS)[:, None]
    place = np.linspace(0, 1, RESTS)[None, :]
    rest = place * (1 - root)
    safety = np.minimum(SAFETY_OF_S2 * root**2, SAFETY_BETWEEN * place * (1 - place))
    values = np.full((ROOTS, RESTS), float(ndtri((1 + level) / 2)))
    share = root[1:] ** 2 / (1 - rest[1:])  # S3 / S2
    values[1:] = _quantile(share.ravel(), rest[1:].ravel(), level).reshape(ROOTS - 1, RESTS)
    return values * (1 + INTERPOLATED + np.minimum(safety, LAW_SAFETY))


def _quantile(share: Floats, rest: Floats, level: float) -> Floats:
    """Solve P(|X| > q) = 1 - level by Newton's method on the log of the tail. share, rest: (k,).

    The log of the tail of a law with log-concave density is concave: from the left of the root
    every later step comes from its right, and falls towards it.
    """
    q = np.full(len(share), 0.3)
    for _ in range(NEWTON_STEPS):
        tail, density = _tail(share, rest, q)
        step = np.log(tail / (1 - level)) * tail / density
        q = np.clip(q + step, q / 4, q + 2)
        if float(np.abs(step).max()) < 1e-12:
            break
    return q


def _tail(share: Floats, rest: Floats, q: Floats) -> tuple[Floats, Floats]:
    """Return P(|X| > q) and the density of |X| at q for (1 - rest) / share equal shares.

    P(X > q) is 1 / (2 pi i) times the integral of E exp(s X) exp(-s q) / s over a line to the right
    of 0 and left of the first pole sqrt(2 / share). It is bent into a hyperbola around the poles,
    through the saddle point, where the integrand falls off fast and the midpoint rule is exact but
    for rounding.
    """
    count, pole = (1 - rest) / share, np.sqrt(2 / share)
    low, high = np.zeros_like(q), pole.copy()
    for _ in range(HALVINGS):
        s = (low + high) / 2
        slope = count * share * s / (1 - share * s**2 / 2) + rest * s - 1 / s - q
        low, high = np.where(slope < 0, s, low), np.where(slope < 0, high, s)
    saddle = ((low + high) / 2)[:, None]
    size = np.minimum(saddle, pole[:, None] - 0.4 * saddle)
    end = np.arccosh(1 + 45 / (q[:, None] * size))
    u = (np.arange(NODES) + 0.5) / NODES * end
    s = saddle + size * (np.cosh(u) - 1) + 1.7j * size * np.sinh(u)
    steps = size * (np.sinh(u) + 1.7j * np.cosh(u)) * end / NODES
    logs = rest[:, None] * s**2 / 2 - count[:, None] * np.log(1 - share[:, None] * s**2 / 2)
    density = np.exp(logs - s * q[:, None]) * steps
    return 2 / np.pi * (density / s).imag.sum(axis=1), 2 / np.pi * density.imag.sum(axis=1)
