"""The answers of one table by least squares, with the error of each."""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block
from dpquery.reconstruction.intervals import half_widths, standard_errors
from dpquery.reconstruction.least_squares import Estimates
from dpquery.reconstruction.measured_values import MeasuredValues
from dpquery.reconstruction.table_answers import TableAnswers
from dpquery.spec.model import Table
from dpquery.strategy.shapes.strategies import Strategy


class NoisyValues(MeasuredValues):
    """The noisy answers of each measurement, in units of the integer strategy, as floats.

    A release may have measured 10^8 values: the only copy of them all is the integers.
    """

    def __init__(self, values: Ints, sizes: Sequence[int], *, shift: int) -> None:
        """Take (m,) values in steps of 2^shift, and how many belong to each measurement."""
        self._values, self._step = values, 2.0**shift
        self._ends = [0, *accumulate(sizes)]
        if self._ends[-1] != len(values):
            raise ValueError(f"{len(values)} values for measurements of {self._ends[-1]}")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def values_of(self, place: int) -> Floats:
        """Return the values of one measurement."""
        return np.asarray(self._values[self._ends[place] : self._ends[place + 1]] * self._step)


def noisy_values(strategy: Strategy, values: Ints, *, shift: int) -> NoisyValues:
    """Split noisy values by measurement, in units of the integer strategy.

    Args:
        strategy: what was measured.
        values: (m,) noisy values in steps of the grid, 2^shift.
        shift: of the grid.
    """
    sizes = [measurement.block.queries for measurement in strategy.measurements]
    return NoisyValues(values, sizes, shift=shift)


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
        estimates: the result of `reconstruct` on the measurements.
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


def positions_of(queried: Sequence[Block], blocks: Sequence[Block]) -> tuple[int | None, ...]:
    """Return for each block the position of one with the same queries; None where there is none."""
    known = {_identity(block): place for place, block in reversed(list(enumerate(blocks)))}
    return tuple(known.get(_identity(block)) for block in queried)


def _identity(block: Block) -> tuple[object, ...]:
    keys = tuple(factor.key for factor in block.factors)
    return block.attributes, block.counted, block.at_least, keys
