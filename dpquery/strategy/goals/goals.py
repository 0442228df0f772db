"""Goals beside the weighted RMSE: figures of error to keep below targets.

A goal is a list of limits, each on the largest standard error or on the RMSE of some blocks. Its
score is the largest ratio of a figure to its target, so that the least score is the least noise,
and the least budget, that meets every target. The maximum standard error of a whole workload is the
goal of one limit, with target one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpquery.operators.blocks import Workload
from dpquery.strategy.errors.expected_error import ExpectedError
from dpquery.strategy.objectives import Figure


@dataclass(frozen=True)
class Limit:
    """One figure of error and its target.

    Attributes:
        figure: "sd", the largest standard error of any query, or "rmse".
        blocks: the positions of the blocks whose queries it is about.
        target: what one unit of the figure is, in counts or any other measure.
    """

    figure: Figure
    blocks: tuple[int, ...]
    target: float = 1.0


Goal = tuple[Limit, ...]


def largest_standard_error(workload: Workload) -> Goal:
    """Return the goal whose score is the largest standard error of a whole workload, in units."""
    places: dict[int, list[int]] = {}
    for k, unit in enumerate(workload.units):
        places.setdefault(unit, []).append(k)
    return tuple(Limit("sd", tuple(blocks), float(unit)) for unit, blocks in places.items())


def reached_figure(limit: Limit, error: ExpectedError, workload: Workload) -> float:
    """Return the figure of a limit in the units of the error."""
    blocks = [error.blocks[k] for k in limit.blocks]
    if limit.figure == "sd":
        return max(block.max_std_error for block in blocks)
    return math.sqrt(sum(block.total_squared for block in blocks) / queries(limit, workload))


def score(goal: Sequence[Limit], error: ExpectedError, workload: Workload) -> float:
    """Return the largest ratio of a figure to its target."""
    return max(reached_figure(limit, error, workload) / limit.target for limit in goal)


def queries(limit: Limit, workload: Workload) -> int:
    """Return the number of queries that a limit is about."""
    return sum(workload.blocks[k].queries for k in limit.blocks)
