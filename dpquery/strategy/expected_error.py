"""What a strategy is worth on a workload, in closed form, before any data is seen.

error  is under unit noise on every measured row: sum of c'c over queries.
loss   is sensitivity^2 times error.
Figures here are for noise of unit variance at sensitivity one; times the standard deviation that a
guarantee buys (measurement.accounting.unit_variance) they are in counts.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpquery.operators.blocks import Block, Workload
from dpquery.strategy.marginal_algebra import RowTerms
from dpquery.strategy.row_errors import expand, power_sums, total_of
from dpquery.strategy.sensitivity import sensitivity
from dpquery.strategy.strategies import Strategy, UnionStrategy

EXPAND_LIMIT = 50_000_000  # distinct row values looked at for an exact maximum


@dataclass(frozen=True)
class ExpectedError:
    """Standard errors of a strategy at unit noise for sensitivity one.

    Attributes:
        rmse: root mean square over all queries, each counted once.
        weighted_rmse: the same with each query's weight: what selection minimises.
        max_std_error: largest standard error of any query.
        exact: False where the figures are upper bounds (OPT_+ answered by global least squares).
    """

    rmse: float
    weighted_rmse: float
    max_std_error: float
    exact: bool


def squared_sensitivity(strategy: Strategy) -> float:
    """Return the square of the sensitivity that the noise is scaled to."""
    exact = sensitivity(strategy.measurements, strategy.noise)
    return float(exact**2) if strategy.noise == "laplace" else float(exact)


def expected_error(strategy: Strategy, workload: Workload) -> ExpectedError:
    """Return the expected error of a strategy on every query of a workload."""
    scale = squared_sensitivity(strategy)
    total = weighted = weights = largest = 0.0
    for position, (weight, block) in enumerate(
        zip(workload.weights, workload.blocks, strict=True)
    ):
        terms = power_sums(strategy, block, position=position, order=2)
        if terms is None:
            raise ValueError("every strategy has closed-form variances")
        error = total_of(terms, block)
        total += error
        weighted += weight * error
        weights += weight * block.shape[0]
        largest = max(largest, largest_of(terms))
    return ExpectedError(
        rmse=math.sqrt(scale * total / workload.shape[0]),
        weighted_rmse=math.sqrt(scale * weighted / weights),
        max_std_error=math.sqrt(scale * largest),
        exact=not isinstance(strategy, UnionStrategy),
    )


def block_rmse(strategy: Strategy, block: Block, position: int) -> float:
    """Return the root mean square standard error of one block's queries."""
    terms = power_sums(strategy, block, position=position, order=2) or []
    return math.sqrt(squared_sensitivity(strategy) * total_of(terms, block) / block.shape[0])


def largest_of(terms: RowTerms) -> float:
    """Return the largest entry of a sum of outer products; a bound where it is too large to list."""
    peaks = [coef * math.prod(float(np.max(v)) for v in vectors) for coef, vectors in terms]
    rows = math.prod(max(len(own) for own in axis) for axis in zip(*(v for _, v in terms), strict=True))
    if len(terms) == 1 or rows > EXPAND_LIMIT:
        return sum(peak for peak in peaks if peak > 0)
    return float(np.max(expand(terms)))
