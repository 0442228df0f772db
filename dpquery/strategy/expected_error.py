"""What a strategy is worth on a workload, in closed form, before any data is seen.

error  is under unit noise on every measured row: sum of c'c over queries.
loss   is sensitivity^2 times error.
Figures here are for noise of unit variance at sensitivity one; times the noise that a guarantee
buys (figures.unit_std) they are in counts.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from dpquery.limits import MAX_EXPANDED_ROWS
from dpquery.operators.blocks import Workload
from dpquery.strategy.algebra.query_powers import RowSums, expand, total_of
from dpquery.strategy.sensitivity import sensitivity
from dpquery.strategy.strategy import RecordChange, Strategy


@dataclass(frozen=True)
class BlockError:
    """Error of one block at unit noise for sensitivity one."""

    total_squared: float  # sum of the squared errors of its queries
    max_std_error: float  # the largest, or a bound on it where it has too many distinct rows
    max_between: tuple[float, float]  # two numbers that it lies between, whichever of both it is


@dataclass(frozen=True)
class ExpectedError:
    """Standard errors of a strategy at unit noise for sensitivity one.

    Figures over all queries take the errors of sums over their unit, which is the largest value
    that a record adds; those of blocks are as they are.
    """

    rmse: float  # root mean square over all queries, each counted once
    weighted_rmse: float  # the same with each query's weight: what selection minimises
    max_std_error: float  # largest standard error of any query
    max_between: tuple[float, float]  # two numbers that it lies between, on any machine
    blocks: tuple[BlockError, ...]  # the errors of the workload's blocks, in its order


def squared_sensitivity(strategy: Strategy, change: RecordChange = "enters") -> float:
    """Return the square of the sensitivity that the noise is scaled to, for one record."""
    measurements, noise = strategy.measurements, strategy.noise
    exact = strategy.once(change, lambda: sensitivity(measurements, noise, change))
    return float(exact**2) if strategy.noise == "laplace" else float(exact)


def block_errors(
    strategy: Strategy, workload: Workload, change: RecordChange = "enters"
) -> list[BlockError]:
    """Return the error of every block of a workload."""
    scale, errors = squared_sensitivity(strategy, change), []
    uniform = strategy.uniform_variances(workload.blocks, range(len(workload.blocks)))
    known: dict[Hashable, BlockError] = {}
    for position, block in enumerate(workload.blocks):
        if position in uniform:
            variance = scale * uniform[position]
            std = math.sqrt(variance)
            errors.append(BlockError(variance * block.queries, std, (std, std)))
            continue
        like = strategy.likeness(block)
        if like is None or like not in known:
            terms = strategy.variances(block, position=position)
            largest = math.sqrt(scale * largest_of(terms))
            total, between = scale * total_of(terms, block), (largest, largest)
            if block.queries > MAX_EXPANDED_ROWS:
                low = largest if _is_exact(terms) else math.sqrt(total / block.queries)
                between = low, math.sqrt(scale * _bound_of(terms))
            known[like] = BlockError(total, largest, between)
        errors.append(known[like])
    return errors


def expected_error(
    strategy: Strategy, workload: Workload, change: RecordChange = "enters"
) -> ExpectedError:
    """Return the expected error of a strategy on every query of a workload."""
    errors = block_errors(strategy, workload, change)
    measured_in = list(zip(errors, workload.units, strict=True))
    total = sum(error.total_squared / unit**2 for error, unit in measured_in)
    pairs = list(zip(workload.weights, errors, strict=True))
    weighted = sum(weight * error.total_squared for weight, error in pairs)
    return ExpectedError(
        rmse=math.sqrt(total / workload.shape[0]),
        weighted_rmse=math.sqrt(weighted / weighted_queries(workload)),
        max_std_error=max(error.max_std_error / unit for error, unit in measured_in),
        max_between=(
            max(error.max_between[0] / unit for error, unit in measured_in),
            max(error.max_between[1] / unit for error, unit in measured_in),
        ),
        blocks=tuple(errors),
    )


def weighted_queries(workload: Workload) -> float:
    """Return the sum of the weights of all queries, in units of the errors that they weigh."""
    return workload.weighted_queries


def largest_of(terms: RowSums) -> float:
    """Return the largest entry of a sum of outer products; a bound where that is too large."""
    if isinstance(terms, np.ndarray) or len(terms) == 1 or not _is_exact(terms):
        return _bound_of(terms)
    return float(np.max(expand(terms)))


def _is_exact(terms: RowSums) -> bool:
    """Return whether `largest_of` is the largest entry itself.

    Distinct rows are distinguished in floats, which may come out otherwise on another machine.
    """
    if isinstance(terms, np.ndarray) or len(terms) == 1:
        return True
    axes = zip(*(vectors for _, vectors in terms), strict=True)
    return math.prod(max(len(vector) for vector in axis) for axis in axes) <= MAX_EXPANDED_ROWS


def _bound_of(terms: RowSums) -> float:
    """Return the sum of the largest entries: the largest entry itself where there is one term."""
    if isinstance(terms, np.ndarray):
        return float(terms.max())
    peaks = [coef * math.prod(float(np.max(v)) for v in vectors) for coef, vectors in terms]
    return sum(peak for peak in peaks if peak > 0)
