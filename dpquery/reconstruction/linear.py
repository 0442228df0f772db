"""The answers of one table by least squares, with the error of each."""

import math
from collections.abc import Sequence

import numpy as np

from dpquery.operators.blocks import Block
from dpquery.operators.factors import Array
from dpquery.reconstruction.answers import TableAnswers
from dpquery.reconstruction.grid import OffTheGrid
from dpquery.reconstruction.intervals import half_widths, standard_errors
from dpquery.reconstruction.least_squares import Estimates
from dpquery.spec.model import Table
from dpquery.strategy.shapes.strategies import Strategy


def off_the_grid(strategy: Strategy, values: Array, *, shift: int) -> OffTheGrid:
    """Split noisy values by measurement, in units of the integer strategy.

    Args:
        strategy: what was measured.
        values: (m,) noisy values in steps of the grid, 2^shift.
        shift: of the grid.
    """
    sizes = [own.block.queries for own in strategy.measurements]
    return OffTheGrid(values, sizes, shift=shift)


def table_answers(
    table: Table,
    block: Block,
    estimates: Estimates,
    *,
    strategy: Strategy,
    position: int | None,
    noise_std: float,
    level: float,
    variance: float | None = None,
) -> TableAnswers:
    """Return the answers of a table with their standard errors and noise intervals.

    Args:
        table: of the spec.
        block: the same, compiled.
        estimates: what reconstruct made of the measurements.
        strategy: what was measured.
        position: of the block in the workload; None where it is not of the workload.
        noise_std: standard deviation of the noise on each measured row.
        level: of the noise intervals.
        variance: of every query of the block under unit noise, where it is known to be one number.
    """
    if variance is None:
        std = standard_errors(strategy, block, position=position, noise_std=noise_std)
    else:
        std = np.broadcast_to(noise_std * math.sqrt(variance), (block.queries,))
    half = half_widths(strategy, block, std, position=position, level=level)
    return TableAnswers(table, estimates.answer(block, position).ravel(), std, half)


def positions_of(asked: Sequence[Block], blocks: Sequence[Block]) -> tuple[int | None, ...]:
    """Return for each block the position of one with the same queries; None where there is none."""
    known = {_identity(own): place for place, own in reversed(list(enumerate(blocks)))}
    return tuple(known.get(_identity(own)) for own in asked)


def _identity(block: Block) -> tuple[object, ...]:
    keys = tuple(factor.key for factor in block.factors)
    return block.attributes, block.counted, block.at_least, keys
