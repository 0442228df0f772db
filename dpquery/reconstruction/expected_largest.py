"""The expected largest error over all answers of a linear release.

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
from scipy.special import erfc, gammainccinv, gammaincinv, gammaln

from dpquery.arrays import Floats
from dpquery.limits import MAX_EXPANDED_ROWS
from dpquery.operators.blocks import Block, Workload
from dpquery.strategy.algebra.row_sums import RowSums, expand
from dpquery.strategy.errors.expected_error import largest_of
from dpquery.strategy.shapes.strategies import Strategy

LOG_ERROR_STEP = 0.005  # of the logarithm of standard errors that are counted as one
SMALLEST = math.exp(-5)  # share of the largest standard error below which all count as that
LAWS = 33  # roots of concentration that are distinguished
FARTHEST, POINTS = 40.0, 1600  # standard deviations at which tails are tabulated
GAMMA_INTEGRAL_NODES = 257  # of the integral over the gamma law
BEYOND = 1e-25  # probability of the gamma law that is left out on either side


def expected_largest(strategy: Strategy, workload: Workload, *, noise_std: float) -> float:
    """Return the expected largest absolute error over all queries of a workload, in counts.

    Args:
        strategy: the strategy measured.
        workload: its queries.
        noise_std: standard deviation of the noise on each measured row.
    """
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
    laws = np.rint(np.sqrt(ratio) * (LAWS - 1)).astype(np.int64)
    steps, laws = np.broadcast_arrays(_steps(np.sqrt(second), peak), laws)
    codes, each = np.unique(steps.astype(np.int64) * LAWS + laws, return_counts=True)
    times = block.queries // max(1, steps.size)
    pairs = zip(codes.tolist(), each.tolist(), strict=True)
    return Counter({divmod(code, LAWS): count * times for code, count in pairs})


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
    roots = np.arange(LAWS) / (LAWS - 1)
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
