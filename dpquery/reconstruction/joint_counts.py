"""Tables of counts that hold all measured margins at once.

Attributes belong together where a table, or a measurement, looks at both. Every measured row has
noise of one scale, so that the counts nearest to the noisy answers, row by row, are nearest by the
true covariances of all estimates, whatever the strategy ([MATH] 16). All answers are read off the
one table: totals, levels, prefixes and overlapping groups agree because they count the same cells.

Every measurement is answered from a margin of the joint table. Margins are summed from one another,
the narrow from the least wide, and gradients go back the same way.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.limits import MAX_JOINT_COUNT_WORK, MAX_JOINT_COUNTS
from dpquery.operators.blocks import Block, Product, kron_apply, marginal, outer_product
from dpquery.operators.cells import CellClassBlock
from dpquery.operators.factors import Dense, Factor, Identity
from dpquery.reconstruction.least_squares import Measured
from dpquery.reconstruction.nearest import (
    SHAPED,
    nearest_counts,
    noise_shape,
    order_of_codes,
    whole_cells,
)
from dpquery.strategy.algebra.subsets import Subset


@dataclass(frozen=True, eq=False)
class NoisyRows:
    """Queries, and what noise made of their answers."""

    block: Block | CellClassBlock  # the queries
    weight: float  # what each is multiplied by, so that all rows have noise of one scale
    answers: Floats  # (m,) the noisy answers to the weighted queries

    def gram(self, table: Floats) -> Numbers:
        """Return B'B times a table of the block's attributes, B its unweighted queries."""
        if self._grams is None:
            return self.block.adjoint(self.block.apply(table))
        return kron_apply(self._grams, table)

    @cached_property
    def _grams(self) -> list[Product | None] | None:
        """For each attribute the product with the Gram of its factor; None for no product."""
        if not isinstance(self.block, Block) or not self.block.is_product:
            return None
        return [
            None if isinstance(factor, Identity) else _gram_product(factor)
            for factor in self.block.factors
        ]


@dataclass(frozen=True)
class _Margin:
    attributes: Subset  # that it keeps
    # the place of the margin that it is summed from; None of the joint table itself
    wider: int | None
    axes: tuple[int, ...]  # of that one which are summed over


class MeasuredMargins:
    """Measurements over the joint cells of some attributes, and their noisy answers."""

    def __init__(self, shape: Sequence[int], attributes: Subset, rows: Iterable[NoisyRows]) -> None:
        self.attributes = attributes
        self.cells_shape = tuple(shape[i] for i in attributes)
        self._measured: dict[Subset, list[NoisyRows]] = {}
        for each in rows:
            kept = tuple(i for i in each.block.attributes if shape[i] > 1)
            self._measured.setdefault(kept, []).append(each)
        self._margins = _margins(shape, attributes, self._measured)

    @property
    def rows(self) -> int:
        """Number of measured rows."""
        return sum(rows.block.queries for each in self._measured.values() for rows in each)

    def target(self) -> Floats:
        """Return A'y over the joint cells, A the measured rows and y their noisy answers."""
        parts = [
            sum((rows.weight * _over_table(rows) for rows in self._of(margin)), start=np.zeros(()))
            for margin in self._margins
        ]
        return self._back(parts)

    def gram(self, cells: Floats) -> Floats:
        """Return A'A times a vector of joint cells."""
        tables: list[Floats] = []
        parts: list[Floats] = []
        for margin in self._margins:
            wider = cells if margin.wider is None else tables[margin.wider]
            table = wider.sum(axis=margin.axes) if margin.axes else wider
            tables.append(table)
            part: Floats = np.zeros(())
            for rows in self._of(margin):
                product = rows.gram(table.reshape(rows.block.table_shape))
                part = part + (rows.weight**2 * product).reshape(table.shape)
            parts.append(part)
        return self._back(parts)

    def _of(self, margin: _Margin) -> list[NoisyRows]:
        return self._measured.get(margin.attributes, [])

    def _back(self, parts: list[Floats]) -> Floats:
        """Return the sum of what stands on each margin, spread over the joint cells."""
        sizes = dict(zip(self.attributes, self.cells_shape, strict=True))
        for place in reversed(range(1, len(parts))):
            margin = self._margins[place]
            if margin.wider is None:
                raise ValueError("a margin that is summed from none")
            part = parts[place].reshape([sizes[i] for i in margin.attributes])
            spread = np.expand_dims(part, margin.axes)
            parts[margin.wider] = parts[margin.wider] + spread
        return np.asarray(np.broadcast_to(parts[0], self.cells_shape))


def _gram_product(factor: Factor) -> Product:
    """Return the product with a factor's Gram, which is formed where the factor is dense."""
    if isinstance(factor, Dense):
        gram = np.asarray(factor.gram(), dtype=np.float64)
        return gram.__matmul__
    return factor.gram_matmat


def _over_table(rows: NoisyRows) -> Floats:
    block = rows.block
    table = block.adjoint(rows.answers.reshape(block.row_shape))
    return np.asarray(table).reshape([size for size in block.table_shape if size > 1])


def _margins(
    shape: Sequence[int], attributes: Subset, measured: Iterable[Subset]
) -> tuple[_Margin, ...]:
    """Return the margins, wide ones first, each with the smallest that it can be summed from."""
    margins = [_Margin(attributes, None, ())]
    widths = {attributes: math.prod(shape[i] for i in attributes)}
    for kept in sorted(set(measured) - {attributes}, key=lambda each: (-len(each), each)):
        wide = min(
            (place for place, each in enumerate(margins) if set(kept) < set(each.attributes)),
            key=lambda place: widths[margins[place].attributes],
        )
        wider = margins[wide].attributes
        axes = tuple(axis for axis, i in enumerate(wider) if i not in kept)
        margins.append(_Margin(kept, wide, axes))
        widths[kept] = math.prod(shape[i] for i in kept)
    return tuple(margins)


TOLERANCE = 1e-4  # of the squared noise of a measured row: far less than what noise leaves open
FIRM = 10.0  # times their precision: counts of single attributes come before those of cells
WHOLE_JOINTLY = 32  # times the cells of its largest table: larger ones are not rounded as wholes


class JointCounts:
    """The joint counts of some attributes that belong together; fitted when first asked for."""

    def __init__(self, measured: Measured, attributes: Subset, blocks: Sequence[Block]) -> None:
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
        beyond = tuple(axis for axis, i in enumerate(self.attributes) if i not in block.attributes)
        return block.apply(self._counts.sum(axis=beyond).reshape(block.table_shape))

    def whole_numbers(self, block: Block) -> Ints:
        """Return answers in whole numbers that some table of whole numbers has; int64.

        All blocks' are of one table, unless it is far larger than any of theirs: then each table is
        rounded by itself, as sums of many small cells would be off by more than their rounding.
        """
        largest = max((math.prod(block.table_shape) for block in self._blocks), default=1)
        kept = self.attributes
        if math.prod(self.shape) > WHOLE_JOINTLY * largest:
            kept = tuple(i for i in block.attributes if i in self.attributes)
        if kept not in self._whole:
            beyond = tuple(axis for axis, i in enumerate(self.attributes) if i not in kept)
            self._whole[kept] = whole_cells(self._counts.sum(axis=beyond), self._orders(kept))
        summed = tuple(axis for axis, i in enumerate(kept) if i not in block.attributes)
        counted = self._whole[kept].sum(axis=summed).reshape(block.table_shape)
        return np.asarray(np.rint(block.apply(counted)), dtype=np.int64)

    def _orders(self, attributes: Subset) -> list[Ints | None]:
        sizes, asked = self._measured.strategy.shape, dict[int, list[Factor]]()
        for block in self._blocks:
            for i, factor in zip(block.attributes, block.factors, strict=True):
                asked.setdefault(i, []).append(factor)
        return [order_of_codes(asked.get(i, []), sizes[i]) for i in attributes]

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


def attributes_together(shape: Sequence[int], sets: Iterable[Sequence[int]]) -> list[Subset]:
    """Return the attributes of more than one class, those together that some set links.

    >>> attributes_together((3, 2, 4, 5), [(0, 1), (1, 2), (3,)])
    [(0, 1, 2), (3,)]
    """
    sets = [[i for i in each if shape[i] > 1] for each in sets]
    links = [(wide[0], i) for wide in sets for i in wide]
    first, second = np.array(links, dtype=np.int64).reshape(-1, 2).T
    graph = sp.coo_array((np.ones(len(links)), (first, second)), shape=(len(shape), len(shape)))
    _, label = connected_components(graph, directed=False)
    groups: dict[int, list[int]] = {}
    for i in sorted({i for wide in sets for i in wide}):
        groups.setdefault(int(label[i]), []).append(i)
    return sorted(tuple(group) for group in groups.values())
