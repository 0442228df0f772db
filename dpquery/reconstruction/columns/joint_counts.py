"""The joint counts of attributes whose tables are to agree: none negative, nearest to all measured.

Attributes belong together where a table, or a measurement, looks at both. Every measured row has
noise of one scale, so that the counts nearest to the noisy answers, row by row, are nearest by the
true covariances of all estimates, whatever the strategy ([MATH] 16). All answers are read off the
one table: totals, levels, prefixes and overlapping groups agree because they count the same cells.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.limits import MAX_JOINT_COUNT_WORK, MAX_JOINT_COUNTS
from dpquery.operators.blocks import Block, marginal
from dpquery.operators.factors import Factor
from dpquery.operators.tensors import outer_product
from dpquery.reconstruction.columns.measured_margins import MeasuredMargins, NoisyRows
from dpquery.reconstruction.columns.nearest_counts import nearest_counts
from dpquery.reconstruction.columns.noise_shapes import SHAPED, noise_shape
from dpquery.reconstruction.columns.whole_cells import order_of_codes, whole_cells
from dpquery.reconstruction.least_squares import Estimates
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.shapes.strategies import Strategy

TOLERANCE = 1e-4  # of the squared noise of a measured row: far less than what noise leaves open
FIRM = 10.0  # times their precision: counts of single attributes come before those of cells
WHOLE_JOINTLY = 32  # times the cells of its largest table: larger ones are not rounded as wholes


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured, and what it was made of.

    Attributes:
        strategy: the measurements.
        noisy: (m_k,) the noisy answers of each, in units of the integer strategy.
        estimates: the least-squares solution.
        noise_std: standard deviation of the noise on each measured row.
    """

    strategy: Strategy
    noisy: Sequence[Floats]
    estimates: Estimates
    noise_std: float

    @cached_property
    def total(self) -> float:
        """The number of records as it is estimated; zero if that is negative."""
        everything = marginal(self.strategy.shape, ())
        return max(float(self.estimates.answer(everything, None)), 0.0)


class JointCounts:
    """The joint counts of some attributes that belong together; fitted when first asked for."""

    def __init__(self, measured: Measured, attributes: Subset, blocks: Sequence[Block]) -> None:
        """Take what was measured.

        Args:
            measured: of these attributes and of others.
            attributes: those that belong together, of more than one class.
            blocks: all that is asked of them.
        """
        self._measured, self.attributes = measured, attributes
        self._blocks = tuple(blocks)
        self.shape = tuple(measured.strategy.shape[i] for i in attributes)
        self._whole: dict[Subset, Ints] = {}

    @property
    def fits(self) -> bool:
        """Whether the joint table is small enough to be fitted."""
        cells = math.prod(self.shape)
        return cells <= MAX_JOINT_COUNTS and cells * self._margins <= MAX_JOINT_COUNT_WORK

    @property
    def _margins(self) -> int:
        every = {rows.block.attributes for rows in self._measured.strategy.measurements}
        return sum(not set(self.attributes).isdisjoint(kept) for kept in every)

    def answer(self, block: Block) -> Floats:
        """Return the answers of a block over some of the attributes, of its row_shape."""
        return block.apply(self._margin(self._counts, block))

    def whole_numbers(self, block: Block) -> Ints:
        """Return answers in whole numbers that some table of whole numbers has; int64.

        All blocks' are of one table, unless it is far larger than any of theirs: then each table is
        rounded by itself, as sums of many small cells would be off by more than their rounding.
        """
        if self._rounded_jointly:
            counted: Numbers = self._margin(self._whole_counts, block)
        else:
            kept = tuple(i for i in block.attributes if i in self.attributes)
            if kept not in self._whole:
                cells = self._margin(self._counts, block)
                shape = [self._measured.strategy.shape[i] for i in kept]
                self._whole[kept] = whole_cells(cells.reshape(shape), self._orders(kept))
            counted = self._whole[kept].reshape(block.table_shape)
        return np.asarray(np.rint(block.apply(counted)), dtype=np.int64)

    @property
    def _rounded_jointly(self) -> bool:
        largest = max((math.prod(block.table_shape) for block in self._blocks), default=1)
        return math.prod(self.shape) <= WHOLE_JOINTLY * largest

    @cached_property
    def _whole_counts(self) -> Ints:
        return whole_cells(self._counts, self._orders(self.attributes))

    def _orders(self, attributes: Subset) -> list[Ints | None]:
        sizes = self._measured.strategy.shape
        return [order_of_codes(factors_of(self._blocks, i), sizes[i]) for i in attributes]

    def _margin(self, counts: Numbers, block: Block) -> Numbers:
        beyond = tuple(axis for axis, i in enumerate(self.attributes) if i not in block.attributes)
        return np.asarray(counts.sum(axis=beyond)).reshape(block.table_shape)

    @cached_property
    def _counts(self) -> Floats:
        measured, strategy = self._measured, self._measured.strategy
        rows = [
            NoisyRows(rows.block, rows.weight, answers)
            for rows, answers in zip(strategy.measurements, measured.noisy, strict=True)
            if not set(rows.block.attributes).isdisjoint(self.attributes)
        ]
        single = self._single_counts()
        firm = [
            NoisyRows(marginal(strategy.shape, (i,)), weight, weight * counts)
            for i, (weight, counts) in single.items()
        ]
        margins = MeasuredMargins(strategy.shape, self.attributes, [*rows, *firm])
        return nearest_counts(
            margins.gram,
            margins.target(),
            self._start({i: counts for i, (_, counts) in single.items()}),
            total=measured.total,
            tolerance=TOLERANCE * margins.rows * measured.noise_std**2,
        )

    def _single_counts(self) -> dict[int, tuple[float, Floats]]:
        """Return the counts of single attributes, fitted first, with the weight of their rows."""
        measured, strategy = self._measured, self._measured.strategy
        single: dict[int, tuple[float, Floats]] = {}
        for i in self.attributes if len(self.attributes) > 1 else ():
            block = marginal(strategy.shape, (i,))
            if strategy.shape[i] <= SHAPED and strategy.supports(block):
                shape = noise_shape(strategy, i)
                counts = measured.estimates.answer(block, None)
                weight = math.sqrt(FIRM / shape.variance)
                single[i] = (weight, shape.nearest(counts, measured.total))
        return single

    def _start(self, single: Mapping[int, Floats]) -> Floats:
        """Return the estimated cells, or those of independent attributes where there are none."""
        strategy, total = self._measured.strategy, max(self._measured.total, 1.0)
        every = marginal(strategy.shape, self.attributes)
        if strategy.supports(every):
            return self._measured.estimates.answer(every, None).reshape(self.shape)
        sizes = zip(self.attributes, self.shape, strict=True)
        return total * outer_product(
            [single[i] / total if i in single else np.full(n, 1 / n) for i, n in sizes]
        )


def factors_of(blocks: Iterable[Block], attribute: int) -> list[Factor]:
    """Return what blocks ask of one attribute."""
    return [
        factor
        for block in blocks
        for i, factor in zip(block.attributes, block.factors, strict=True)
        if i == attribute
    ]


def attributes_together(shape: Sequence[int], sets: Iterable[Sequence[int]]) -> list[Subset]:
    """Return the attributes of more than one class, those together that some set links.

    >>> attributes_together((3, 2, 4, 5), [(0, 1), (1, 2), (3,)])
    [(0, 1, 2), (3,)]
    """
    leader = list(range(len(shape)))

    def leading(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    used: set[int] = set()
    for each in sets:
        wide = [i for i in each if shape[i] > 1]
        used |= set(wide)
        for i in wide[1:]:
            leader[leading(i)] = leading(wide[0])
    groups: dict[int, list[int]] = {}
    for i in sorted(used):
        groups.setdefault(leading(i), []).append(i)
    return sorted(tuple(group) for group in groups.values())
