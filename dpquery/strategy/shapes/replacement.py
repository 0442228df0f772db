"""How far a replaced record moves integer answers: the largest distance between two columns.

A record that goes from cell i to cell j moves the answers by column j less column i, of the length
norm(i) + norm(j) - 2 overlap(i, j). Norms of a Kronecker product are products of norms. So are its
overlaps for L2; for L1 too where all entries of a row that are not 0 are equal and positive, and
otherwise the product is at most the overlap: the distance is bounded from above ([MATH] 11).

Pairs of codes of an attribute differ in no more than the norms of both and their overlap in every
factor: those that agree in that are one kind. All combinations of kinds are searched, one an
attribute, up to SEARCHED_PAIRS; beyond, each block takes its own bound.
"""

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from dpquery.arrays import Floats, Numbers
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Factor
from dpquery.operators.thresholds import jointly_met, threshold_sum
from dpquery.strategy.shapes.factor_norms import FactorNorms
from dpquery.strategy.shapes.overlaps import FactorOverlaps
from dpquery.strategy.shapes.weighted_block import WeightedColumns

SEARCHED_PAIRS = 1 << 22  # combinations of kinds of pairs, times blocks, that are searched
PAIRED_CODES = 256  # codes of an attribute whose pairs are sorted into kinds

Kinds = Mapping[Hashable, Numbers]
"""Factor -> (3, kinds): norms of the first and second code, and overlap, as Python integers."""
Triple = tuple[Numbers, Numbers, Numbers]
"""The same three, along the axis of an attribute."""
_ONE: Numbers = np.array(1, dtype=object)


class Distances:
    """The distances of columns, for one norm.

    Attributes:
        power: 1 for L1 distances, 2 for squared L2 distances.
    """

    def __init__(self, power: int) -> None:
        self.power = power
        self._norms, self._overlaps = FactorNorms(), FactorOverlaps()

    def largest(self, measurements: Sequence[WeightedColumns], norms: Sequence[int]) -> int:
        """Return the largest distance of two columns, 0 where all columns are equal.

        Exact for L2 where the kinds of pairs can be searched; an upper bound otherwise.

        Args:
            measurements: blocks and their integer weights.
            norms: the largest column norm of each, to the power.

        Privacy:
            Holds for replacing one record of the domain by another one of the domain.
        """
        apart = sum(self.bounds(measurements, norms))
        kinds = self._kinds_by_attribute(measurements)
        return apart if kinds is None else min(apart, self._searched(measurements, kinds))

    def bounds(self, measurements: Sequence[WeightedColumns], norms: Sequence[int]) -> list[int]:
        """Return a bound on the distance in each block; exact where it looks at one attribute."""
        return [self._bound(*pair) for pair in zip(measurements, norms, strict=True)]

    def _bound(self, measurement: WeightedColumns, norm: int) -> int:
        """Return twice the largest norm less the least overlap."""
        block, scale = measurement.block, measurement.weight**self.power
        wide = [factor for factor in block.factors if factor.shape[1] > 1]
        if not wide:
            return 0
        if not block.is_product:
            return 2 * norm  # entries are 0 or 1: no overlap is below 0
        if len(wide) == 1:
            farthest, alone = self._farthest(wide[0])
            return farthest * (norm // alone) if farthest else 0
        least, most = scale, scale
        for factor in block.factors:
            high = max(self._norms.of(factor, self.power))
            low = self._overlaps.of(factor, self.power).least if factor.shape[1] > 1 else high
            ends = (low * least, low * most, high * least, high * most)
            least, most = min(ends), max(ends)
        return int(2 * (norm - least))

    def _farthest(self, factor: Factor) -> tuple[int, int]:
        """Return the largest distance of two columns of a factor, and its largest norm."""
        norms, overlaps = (
            self._norms.of(factor, self.power),
            self._overlaps.of(factor, self.power),
        )
        if overlaps.matrix is None:
            return 2 * (max(norms) - overlaps.least), max(norms)
        column = np.array(norms, dtype=object)
        distances = column[:, None] + column - 2 * overlaps.matrix
        return int(np.max(distances)), max(norms)

    def _kinds_by_attribute(
        self, measurements: Sequence[WeightedColumns]
    ) -> dict[int, Kinds] | None:
        """Return the kinds of pairs of every attribute; None where there are too many."""
        factors: dict[int, dict[Hashable, Factor]] = {}
        for measurement in measurements:
            block = measurement.block
            for i, factor in zip(block.attributes, block.factors, strict=True):
                factors.setdefault(i, {})[factor.key] = factor
        kinds: dict[int, Kinds] = {}
        room = SEARCHED_PAIRS // max(1, len(measurements))
        for i, distinct in sorted(factors.items()):
            of_part = self._kinds(distinct) if room else None
            if of_part is None:
                return None
            kinds[i] = of_part
            room //= next(iter(of_part.values())).shape[1]
        return kinds if room else None

    def _kinds(self, factors: Mapping[Hashable, Factor]) -> Kinds | None:
        """Return the kinds of pairs of codes that some factors of one attribute tell apart."""
        n = next(iter(factors.values())).shape[1]
        rows = []
        even = all(self._is_even(factor) for factor in factors.values())
        if not even and n > PAIRED_CODES:
            return None
        for factor in factors.values():
            norms = np.array(self._norms.of(factor, self.power), dtype=object)
            if even:  # a code and itself, and two codes
                between = [] if n == 1 else [self._overlaps.of(factor, self.power).even]
                rows += [norms.repeat(min(n, 2))] * 2
                rows.append(np.array([int(norms[0]), *between], dtype=object))
                continue
            square = np.broadcast_to(norms, (n, n)) if len(norms) == n else norms.repeat(n)[:, None]
            square = np.broadcast_to(square, (n, n))
            rows += [square.T.ravel(), square.ravel(), self._matrix(factor, norms).ravel()]
        distinct = list(dict.fromkeys(zip(*rows, strict=True)))
        columns = np.array(distinct, dtype=object).T
        return {key: columns[3 * k : 3 * k + 3] for k, key in enumerate(factors)}

    def _is_even(self, factor: Factor) -> bool:
        if factor.shape[1] == 1:
            return True
        return self._overlaps.of(factor, self.power).even is not None

    def _matrix(self, factor: Factor, norms: Numbers) -> Numbers:
        """Return the overlap of every two codes, or the least one where that is all there is."""
        overlaps, n = self._overlaps.of(factor, self.power), factor.shape[1]
        if overlaps.matrix is not None:
            return overlaps.matrix.astype(object)
        between = overlaps.least if overlaps.even is None else overlaps.even
        matrix = np.full((n, n), between, dtype=object)
        matrix[np.diag_indices(n)] = np.broadcast_to(norms, n)
        return matrix

    def _searched(self, measurements: Sequence[WeightedColumns], kinds: Mapping[int, Kinds]) -> int:
        """Return the largest sum of the blocks' distances over all combinations of kinds."""
        total: Numbers = np.zeros((1,) * len(kinds), dtype=object)
        for measurement in measurements:
            columns = _columns(measurement.block, kinds)
            scale = measurement.weight**self.power
            total = total + scale * _distance(measurement.block, columns)
        return int(np.max(total))

    def lengths(
        self, measurements: Sequence[WeightedColumns], norms: Sequence[int], *, leaves: bool
    ) -> Floats | None:
        """Return how far moves change each product, relative to its norm: (moves, measurements).

        Args:
            measurements: Kronecker products.
            norms: the largest column norm of each, to the power.
            leaves: whether records may also enter and leave the domain.

        Returns:
            None where there are too many kinds of moves.
        """
        kinds = self._kinds_by_attribute(measurements)
        if kinds is None:
            return None
        shape = tuple(next(iter(by_factor.values())).shape[1] for by_factor in kinds.values())
        columns = []
        for measurement, norm in zip(measurements, norms, strict=True):
            of_block = _columns(measurement.block, kinds)
            scale = measurement.weight**self.power
            moves = [scale * _distance(measurement.block, of_block)]
            if leaves:
                moves.append(scale * math.prod((first for first, _, _ in of_block), start=_ONE))
            parts = [np.broadcast_to(np.asarray(part / norm, float), shape) for part in moves]
            columns.append(np.concatenate([part.ravel() for part in parts]))
        return np.unique(np.stack(columns, axis=1), axis=0)


def _columns(block: Block, kinds: Mapping[int, Kinds]) -> list[Triple]:
    """Return the kinds of pairs of a block's attributes, each along an axis of its own."""
    axes = {i: axis for axis, i in enumerate(kinds)}
    columns = []
    for i, factor in zip(block.attributes, block.factors, strict=True):
        shape = [-1 if axis == axes[i] else 1 for axis in range(len(axes))]
        first, second, overlap = (row.reshape(shape) for row in kinds[i][factor.key])
        columns.append((first, second, overlap))
    return columns


def _distance(block: Block, columns: Sequence[Triple]) -> Numbers:
    """Return norm + norm - 2 overlap of a block, for a kind of pairs of each of its attributes."""
    counted = block.counted if not block.is_product else (False,) * len(columns)
    marks = list(zip(columns, block.factors, counted, strict=True))
    fixed = [column for column, _, is_counted in marks if not is_counted]
    first, second, overlap = (
        (math.prod(side, start=_ONE) for side in zip(*fixed, strict=True))
        if (fixed)
        else (_ONE, _ONE, _ONE)
    )
    if block.is_product:
        return np.asarray(first + second - 2 * overlap, dtype=object)
    hits = [(*column, factor.shape[0]) for column, factor, is_counted in marks if is_counted]
    r = block.at_least
    first = first * threshold_sum([(rows - a, a) for a, _, _, rows in hits], r)
    second = second * threshold_sum([(rows - b, b) for _, b, _, rows in hits], r)
    both = jointly_met([(rows - a - b + c, a - c, b - c, c) for a, b, c, rows in hits], r)
    return np.asarray(first + second - 2 * overlap * both, dtype=object)
