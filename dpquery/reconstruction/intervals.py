"""Standard errors, quantiles of Laplace sums, and the largest of many errors.

An interval is null for answers of RAP and adaptive runs (`mechanisms/fitted`) and for derived rows
that are lost in noise (`reconstruction/derived`); that of sample and noise also where squared
weights are not measured, or are hidden by noise (`reconstruction/sampling`).

Under Gaussian noise an answer's noise is normal. Under Laplace noise it is a weighted sum of
Laplace variables, c'y: neither Laplace nor normal. Its quantile is looked up by the sums of fourth
and of sixth powers of c (laplace_quantile): from level 0.5 to 0.9999 the interval is never narrower
than that of the exact law, and at most 1.2 % wider. Where these sums take too many multiplications
(MAX_COEFFICIENT_WORK) the largest quantile of any such sum stands for all rows of the table: never
narrower, and up to 38 % wider at level 0.5, 9 % at 0.95, 27 % at 0.99.

With shares a_r = c_r^2 / sum c^2 of the variance, the sum at unit variance has
    E exp(s X) = prod_r 1 / (1 - a_r s^2 / 2),
a law set by the power sums of a. Of all laws with the same S2 = sum a^2 and S3 = sum a^3 the one
tabulated is that of k equal shares and a normal rest,
    k = S2^3 / S3^2,   share = S3 / S2,   rest = 1 - S2^2 / S3,
which is there for every (S2, S3), with k >= 1 any real number and rest >= 0, and is exact for equal
shares, and for one share beside many small ones. Other shares have quantiles up to 0.33 % above its
and up to 0.75 % below, levels 0.5 to 0.9999; a safety is added where S2 and S3 leave room for them.

The standard error of every answer is exact. How errors go together is not looked at: they are taken
as independent,
    E max_j |e_j| = integral over t > 0 of 1 - prod_j (1 - P(|e_j| > t)).
For Gaussian noise that is never too small, whatever the correlations (Sidak's inequality bounds the
probability that all errors are below t by the product), and it is too large where many answers
share their noise: measured, by a few percent on tables and on the r-of-4 thresholds of Adult, by up
to 1.6 times on all ranges of one small attribute. Under Laplace noise an error is taken to have the
law of a sum of equal Laplace variables with the variance and fourth cumulant of the answer; where
no closed form gives that cumulant, many terms are assumed, which is the normal law.
"""

import math
from collections import Counter
from functools import cache

import numpy as np
from scipy.special import erfc, gammainccinv, gammaincinv, gammaln, ndtri

from dpquery.arrays import Floats
from dpquery.limits import MAX_EXPANDED_ROWS
from dpquery.operators.blocks import Block, Workload
from dpquery.strategy.algebra.query_powers import RowSums, expand
from dpquery.strategy.expected_error import largest_of
from dpquery.strategy.strategy import Strategy

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
    from scipy.ndimage import map_coordinates  # which takes a tenth of a second: not at every start

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


def standard_errors(
    strategy: Strategy, block: Block, *, position: int | None, noise_std: float
) -> Floats:
    """Return the standard error of every query of a block, in counts. (m,): see `_over_rows`."""
    terms = strategy.variances(block, position=position)
    return _over_rows(noise_std * np.sqrt(expand(terms)), block)


def half_widths(
    strategy: Strategy, block: Block, std_errors: Floats, *, position: int | None, level: float
) -> Floats:
    """Return the half width of the noise interval of every query at a confidence level. (m,)."""
    if strategy.noise == "gaussian":
        return _times(std_errors, float(ndtri((1 + level) / 2)))
    factor = laplace_quantiles(strategy, block, position=position, level=level)
    if factor is None:
        return _times(std_errors, largest_quantile(level))
    if factor.strides == (0,):
        return _times(std_errors, float(factor[0]))
    return np.asarray(std_errors * factor)


def laplace_quantiles(
    strategy: Strategy, block: Block, *, position: int | None, level: float
) -> Floats | None:
    """Return the quantile of every query's Laplace noise in its standard deviations. (m,).

    None where the laws of the queries take too many multiplications.
    """
    powers = strategy.fourth_and_sixth(block, position=position)
    if powers is None:
        return None
    squares = expand(strategy.variances(block, position=position))
    squares = np.where(squares > 0, squares, 1.0)  # a query that is always 0 has no noise
    fourth, sixth = map(expand, powers)
    second, third = fourth / squares**2, sixth / (squares * squares**2)
    return _over_rows(laplace_quantile(second, third, level), block)


def _over_rows(values: Floats, block: Block) -> Floats:
    """Return values that broadcast to the row shape for every row; a view where all are one."""
    if values.size == 1:
        return np.broadcast_to(values.ravel()[0], (block.queries,))
    return np.ravel(np.broadcast_to(values, block.row_shape))


def _times(values: Floats, factor: float) -> Floats:
    """Return the product; one number for all rows stays so."""
    if values.strides == (0,) and len(values):
        return np.broadcast_to(values[0] * factor, values.shape)
    return np.asarray(values * factor)


LOG_ERROR_STEP = 0.005  # of the logarithm of standard errors that are counted as one
SMALLEST = math.exp(-5)  # share of the largest standard error below which all count as that
CONCENTRATIONS = 33  # roots of concentration that are distinguished
FARTHEST, POINTS = 40.0, 1600  # standard deviations at which tails are tabulated
GAMMA_INTEGRAL_NODES = 257  # of the integral over the gamma law
BEYOND = 1e-25  # probability of the gamma law that is left out on either side


def expected_largest(strategy: Strategy, workload: Workload, *, noise_std: float) -> float:
    """Return the expected largest absolute error over all queries of a workload, in counts."""
    spreads = [strategy.variances(block, position=k) for k, block in enumerate(workload.blocks)]
    peak = math.sqrt(max(largest_of(spread) for spread in spreads))
    laws: Counter[tuple[int, int]] = Counter()
    for position, (block, spread) in enumerate(zip(workload.blocks, spreads, strict=True)):
        laws += _count(strategy, block, spread, position=position, peak=peak)
    return noise_std * peak * _largest(laws)


def _count(
    strategy: Strategy, block: Block, spread: RowSums, *, position: int, peak: float
) -> Counter[tuple[int, int]]:
    """Count a block's queries by standard error, in steps below the peak, and by law."""
    if not isinstance(spread, np.ndarray):
        rows = math.prod(
            max(len(vector) for vector in axis)
            for axis in zip(*(v for _, v in spread), strict=True)
        )
        if rows > MAX_EXPANDED_ROWS:
            std = math.sqrt(largest_of(spread))
            return Counter({(_steps(np.full(1, std), peak)[0], 0): block.queries})
    second = expand(spread)
    fourth = None
    if strategy.noise == "laplace":
        fourth = strategy.power_sums(block, position=position, order=4)
    ratio = np.zeros(1) if fourth is None else np.clip(expand(fourth) / second**2, 0, 1)
    laws = np.rint(np.sqrt(ratio) * (CONCENTRATIONS - 1)).astype(np.int64)
    steps, laws = np.broadcast_arrays(_steps(np.sqrt(second), peak), laws)
    codes, each = np.unique(steps.astype(np.int64) * CONCENTRATIONS + laws, return_counts=True)
    times = block.queries // max(1, steps.size)
    pairs = zip(codes.tolist(), each.tolist(), strict=True)
    return Counter({divmod(code, CONCENTRATIONS): count * times for code, count in pairs})


def _steps(std: Floats, peak: float) -> Floats:
    """Return how many steps below the peak standard errors lie, rounded towards it."""
    share = np.clip(std / peak, SMALLEST, 1.0)
    return np.asarray(np.floor(-np.log(share) / LOG_ERROR_STEP + 1e-9).astype(np.int64))


def _largest(laws: Counter[tuple[int, int]]) -> float:
    """Integrate the probability that some error passes t; in units of the peak's deviation."""
    t, tails = _tails()
    none = np.zeros_like(t)  # log of the probability that no error passes t
    for (step, law), queries in laws.items():
        logs = np.interp(t * math.exp(step * LOG_ERROR_STEP), t, tails[law], right=-math.inf)
        none += queries * np.log1p(-np.minimum(np.exp(logs), 1 - 1e-12))
    return float(np.trapezoid(-np.expm1(none), t))


@cache
def _tails() -> tuple[Floats, Floats]:
    """Return points, and the log of P(|X| > point) of each law at unit variance."""
    t = np.linspace(0, FARTHEST, POINTS + 1)
    roots = np.arange(CONCENTRATIONS) / (CONCENTRATIONS - 1)
    return t, np.array([_log_tail(t, float(root) ** 2) for root in roots])


def _log_tail(t: Floats, concentration: float) -> Floats:
    """Return log P(|X| > t) for X = sqrt(G) Z, G gamma of mean one and shape 1 / concentration."""
    with np.errstate(divide="ignore"):
        if concentration == 0:
            return np.log(erfc(t / math.sqrt(2)))
        k = 1 / concentration
        low, high = gammaincinv(k, BEYOND) / k, gammainccinv(k, BEYOND) / k
        u = np.linspace(math.log(low), math.log(high), GAMMA_INTEGRAL_NODES)
        density = np.exp(k * math.log(k) - gammaln(k) + k * (u - np.exp(u)))  # of log G
        tail = np.trapezoid(density * erfc(t[:, None] / np.sqrt(2 * np.exp(u))), u, axis=1)
        return np.asarray(np.log(np.minimum(tail, 1.0)))
