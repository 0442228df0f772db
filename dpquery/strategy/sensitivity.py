"""Exact sensitivity of integer strategies: how far a record, new, replaced or moved, moves answers.

A record that goes from cell i to cell j moves the answers by column j less column i, of the length
norm(i) + norm(j) - 2 overlap(i, j). Norms of a Kronecker product are products of norms. So are its
overlaps for L2; for L1 too where all entries of a row that are not 0 are equal and positive, and
otherwise the product is at most the overlap: the distance is bounded from above ([MATH] 11).

Pairs of codes of an attribute differ in no more than the norms of both and their overlap in every
factor: those that agree in that are one kind. All combinations of kinds are searched, one an
attribute, up to SEARCHED_PAIRS; beyond, each block takes its own bound.

The overlap of columns x and y is sum_r x_r y_r for power 2. For power 1 it is the sum of
min(|x_r|, |y_r|) over the rows r where both have one sign. Either way the distance of two columns
is the norm of both less twice their overlap ([MATH] 11).

Adding one record to class j of the domain moves the answers by column j, and replacing it by one of
class i by the difference of two columns. For a union of Kronecker products the squared (or
absolute) column norms are a sum of Kronecker products of per-attribute vectors; classes of codes
with equal vectors are merged before the maximum is searched. The entries of an r-of-k block are 0
or 1, so that its columns are counted: the rows of which at least r of the predicates hold, a number
that only grows with how many hold on each attribute.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.blocks import Block, jointly_met, threshold_sum
from dpquery.operators.cells import OrbitRows, Spread
from dpquery.operators.factors import ROW_CHUNK, Centered, Factor, Identity, Ones, Valued
from dpquery.operators.p_identity import BlockPIdentity, PIdentity
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.strategy.strategy import (
    Noise,
    RecordChange,
    WeightedBlock,
    WeightedColumns,
    by_form,
    column_matrices,
)

_HALF_BITS = 31
_HALF = (1 << _HALF_BITS) - 1


class FactorNorms:
    """The column norms of factors, computed once for equal ones: marginals share theirs."""

    def __init__(self) -> None:
        self.known: dict[Hashable, list[int]] = {}
        self.peaks: dict[tuple[Factor, int], tuple[int, list[int]]] = {}

    def of(self, factor: Factor, power: int) -> list[int]:
        """Return sum_i |F_ij|^power for every column, or once where all columns have the same."""
        key = (factor.key, power)
        if key not in self.known:
            norms = factor_norms(factor, power)
            self.known[key] = norms if min(norms) < max(norms) else norms[:1]
        return self.known[key]

    def peak(self, factor: Factor, power: int) -> tuple[int, list[int]]:
        """Return the largest of them, and them."""
        if (factor, power) not in self.peaks:
            norms = self.of(factor, power)
            self.peaks[factor, power] = max(norms), norms
        return self.peaks[factor, power]

    def largest(self, measurement: WeightedColumns, power: int) -> int:
        """Return the largest column norm of a measurement, to the power."""
        if not measurement.block.is_product:
            return _columns(measurement, power, self).largest()
        norm = int(measurement.weight**power)
        for factor in measurement.block.factors:
            norm *= self.peak(factor, power)[0]
        return norm

    def varying(self, measurement: WeightedColumns, power: int) -> dict[int, list[int]]:
        """Return the norms of a measurement's factors, for the attributes where they differ."""
        block = measurement.block
        pairs = zip(block.attributes, block.factors, strict=True)
        norms = ((i, self.peak(factor, power)[1]) for i, factor in pairs)
        return {i: vector for i, vector in norms if len(vector) > 1}


def factor_norms(factor: Factor, power: int) -> list[int]:
    """Return sum_i |F_ij|^power in Python ints, exact where int64 would wrap.

    For every column; once for a hierarchy, all of whose columns have the same.
    """
    if isinstance(factor, OrbitRows):
        return factor.exact_norms(power)
    if factor.max_abs**power * factor.shape[0] < 1 << 63:
        return [int(v) for v in factor.column_norms(power)]
    if isinstance(factor, Spread):
        norms = factor_norms(factor.inner, power)
        return norms if len(norms) == 1 else [norms[code] for code in factor.classes.tolist()]
    if isinstance(factor, Valued):
        norms = factor_norms(factor.inner, power)
        return [abs(v) ** power * n for v, n in zip(factor.values.tolist(), norms, strict=True)]
    if isinstance(factor, Hierarchy):
        return [sum(weight**power for weight in factor.weights)]
    if isinstance(factor, Tree):
        return factor.exact_norms(power)
    if isinstance(factor, PIdentity):
        below = _wide_norms(factor.rows, power)
        return [int(d) ** power + norm for d, norm in zip(factor.diagonal, below, strict=True)]
    if isinstance(factor, BlockPIdentity):
        below = _wide_norms(factor.inner, power)
        outer = _wide_norms(factor.outer, power)
        parts = zip(factor.diagonal.tolist(), below, strict=True)
        return [d**power + x + outer[j // factor.size] for j, (d, x) in enumerate(parts)]
    return _wide_norms(factor.dense(), power)


def _wide_norms(matrix: Numbers, power: int) -> list[int]:
    """Return sum_i |F_ij|^power of entries below 2^62, power 1 or 2, for every column.

    In digits of 31 bits, the squares of which are added up by their halves: sums of 2^31 rows fit.
    """
    rows, columns = matrix.shape
    total: Numbers = np.zeros(columns, dtype=object)
    step = max(1, ROW_CHUNK // columns)
    for start in range(0, rows, step):
        part = np.abs(matrix[start : start + step])
        low, high = part & _HALF, part >> _HALF_BITS
        if power == 1:
            digits = {0: low, _HALF_BITS: high}
        else:
            digits = {0: low * low, _HALF_BITS + 1: low * high, 2 * _HALF_BITS: high * high}
        for place, digit in digits.items():
            for half, shift in ((digit & _HALF, place), (digit >> _HALF_BITS, place + _HALF_BITS)):
                total = total + half.sum(axis=0).astype(object) * (1 << shift)
    return [int(norm) for norm in total]


LISTED_CODES = 2048  # codes of a factor whose overlaps are all worked out
OVERLAP_WORK = 1 << 28  # comparisons of entries for them, or a hundredth of the multiplications
_DIGIT = 20  # bits of a digit: sums of 2^13 products of two are exact in floats
_DIGIT_ROWS = 1 << 13


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Overlaps of the columns of a factor."""

    least: int  # the least overlap of two columns, or less
    even: int | None = None  # the overlap of any two different columns, where it is one number
    # the overlap of every two columns, (n, n); None where it is even or takes too long
    matrix: Numbers | None = None


class FactorOverlaps:
    """The overlaps of factors, computed once for equal ones."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Overlaps] = {}

    def of(self, factor: Factor, power: int) -> Overlaps:
        """Return the overlaps of a factor of more than one column."""
        key = (factor.key, power)
        if key not in self.known:
            self.known[key] = _overlaps(factor, power)
        return self.known[key]


def _overlaps(factor: Factor, power: int) -> Overlaps:
    rows, n = factor.shape
    match factor:
        case Identity():
            return Overlaps(0, even=0)
        case Ones():
            return Overlaps(rows, even=rows)
        case Centered():  # n - 2 rows hold -1 twice, two hold n - 1 and -1
            even = -n if power == 2 else n - 2
            return Overlaps(even, even=even)
        case _:
            pass
    listed = n <= LISTED_CODES
    if isinstance(factor, Spread):
        return _of_classes(factor, power, listed=listed)
    if isinstance(factor, Hierarchy):
        codes = np.arange(n) if listed else np.array([0, n - 1])
        matrix: Numbers = np.zeros((len(codes), len(codes)), dtype=object)
        for size, weight in zip(factor.sizes, factor.weights, strict=True):
            place = codes // size
            matrix = matrix + (place[:, None] == place).astype(object) * int(weight) ** power
        return Overlaps(int(matrix.min()), matrix=matrix if listed else None)
    if isinstance(factor, Tree):
        return _of_tree(factor, power, listed=listed)
    if listed and factor.zero_one:
        return _of_matrix(np.rint(factor.gram()).astype(np.int64))
    if listed and isinstance(factor, PIdentity) and _fits(factor.rows, power):
        matrix = _of_rows(factor.rows, power).astype(object)
        matrix[np.diag_indices(n)] += np.array([int(d) ** power for d in factor.diagonal], object)
        return _of_matrix(matrix)
    if listed and not isinstance(factor, PIdentity) and rows <= 4 * LISTED_CODES:
        dense = factor.dense()
        if _fits(dense, power):
            return _of_matrix(_of_rows(dense, power))
    match factor:
        case PIdentity(rows=entries):
            positive = bool((entries >= 0).all())
        case BlockPIdentity(inner=inner, outer=outer):
            positive = bool((inner >= 0).all() and (outer >= 0).all())
        case _:
            positive = False
    if power == 1 or factor.zero_one or positive:
        return Overlaps(0)
    return Overlaps(-max(factor_norms(factor, power)))  # by Cauchy and Schwarz


def _of_classes(factor: Spread, power: int, *, listed: bool) -> Overlaps:
    m, norms = factor.inner.shape[1], factor_norms(factor.inner, power)
    if m == 1:
        return Overlaps(norms[0], even=norms[0])
    inner = _overlaps(factor.inner, power)
    least = min(inner.least, *norms)
    matrix = inner.matrix
    if matrix is None and inner.even is not None:
        matrix = np.full((m, m), inner.even, dtype=object)
        matrix[np.diag_indices(m)] = np.broadcast_to(np.array(norms, dtype=object), m)
    if matrix is None or not listed:
        return Overlaps(least)
    return Overlaps(least, matrix=matrix[np.ix_(factor.classes, factor.classes)])


def _of_matrix(matrix: Numbers) -> Overlaps:
    return Overlaps(int(matrix.min()), matrix=matrix)


def _fits(entries: Numbers, power: int) -> bool:
    rows, n = entries.shape
    if power == 1:
        return bool(n * n * rows <= OVERLAP_WORK)
    digits = -(-int(np.abs(entries).max(initial=1)).bit_length() // _DIGIT)
    return bool(n * n * rows * digits**2 <= 100 * OVERLAP_WORK)


def _of_tree(factor: Tree, power: int, *, listed: bool) -> Overlaps:
    n, top = factor.shape[1], factor.weights[-1]
    if not listed:
        return Overlaps(int(top[0]) ** power if len(top) == 1 else 0)
    total: Numbers = np.zeros((n, n), dtype=object)
    place = np.arange(n)
    for level, weights in enumerate(factor.weights):
        place = factor.parents[level - 1][place] if level else place
        values = weights.astype(object) ** power
        total = total + (place[:, None] == place).astype(object) * values[place]
    return _of_matrix(total)


def _of_rows(entries: Numbers, power: int) -> Numbers:
    rows, n = entries.shape
    total: Numbers = np.zeros((n, n), dtype=object)
    step = _DIGIT_ROWS if power == 2 else max(1, ROW_CHUNK // (n * n))
    for start in range(0, rows, step):
        part = entries[start : start + step]
        total = total + (_products(part) if power == 2 else _least_entries(part))
    return total


def _products(entries: Numbers) -> Numbers:
    """Return F'F of at most 2^13 rows, by signed digits of 20 bits in floats, which are exact."""
    signs, rest = np.sign(entries), np.abs(entries)
    digits: list[Floats] = []
    while not digits or rest.any():
        digits.append((signs * (rest & ((1 << _DIGIT) - 1))).astype(np.float64))
        rest = rest >> _DIGIT
    total: Numbers = np.zeros((entries.shape[1],) * 2, dtype=object)
    for a, first in enumerate(digits):
        for b, second in enumerate(digits):
            whole = (first.T @ second).astype(np.int64).astype(object)
            total = total + whole * (1 << _DIGIT * (a + b))
    return total


def _least_entries(entries: Numbers) -> Numbers:
    total: Numbers = np.zeros((entries.shape[1],) * 2, dtype=object)
    for side in (np.maximum(entries, 0), np.maximum(-entries, 0)):
        smaller = np.minimum(side[:, :, None], side[:, None, :])
        low, high = smaller & ((1 << 31) - 1), smaller >> 31  # sums of 2^31 rows fit
        total = total + low.sum(axis=0).astype(object)
        total = total + high.sum(axis=0).astype(object) * (1 << 31)
    return total


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
        n = next(iter(factors.values())).shape[1]
        rows = []
        even = n == 1 or all(
            self._overlaps.of(factor, self.power).even is not None for factor in factors.values()
        )
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

    def _matrix(self, factor: Factor, norms: Numbers) -> Numbers:
        overlaps, n = self._overlaps.of(factor, self.power), factor.shape[1]
        if overlaps.matrix is not None:
            return overlaps.matrix.astype(object)
        between = overlaps.least if overlaps.even is None else overlaps.even
        matrix = np.full((n, n), between, dtype=object)
        matrix[np.diag_indices(n)] = np.broadcast_to(norms, n)
        return matrix

    def _searched(self, measurements: Sequence[WeightedColumns], kinds: Mapping[int, Kinds]) -> int:
        total: Numbers = np.zeros((1,) * len(kinds), dtype=object)
        for measurement in measurements:
            columns = _moved_columns(measurement.block, kinds)
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
            of_block = _moved_columns(measurement.block, kinds)
            scale = measurement.weight**self.power
            moves = [scale * _distance(measurement.block, of_block)]
            if leaves:
                moves.append(scale * math.prod((first for first, _, _ in of_block), start=_ONE))
            parts = [np.broadcast_to(np.asarray(part / norm, float), shape) for part in moves]
            columns.append(np.concatenate([part.ravel() for part in parts]))
        return np.unique(np.stack(columns, axis=1), axis=0)


def _moved_columns(block: Block, kinds: Mapping[int, Kinds]) -> list[Triple]:
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


SEARCH_LIMIT = 200_000  # column classes searched exactly; beyond, a sum of maxima bounds it


@dataclass(frozen=True)
class ColumnNorms:
    """The column norms of one measured block, as functions of one code an attribute."""

    scale: int  # power of the weight, and the norms that are the same for every code
    # for each attribute whose predicate must hold, the norm of every column
    fixed: dict[int, list[int]]
    # for each attribute whose predicates are counted, how many each code meets
    counted: dict[int, list[int]]
    rows: dict[int, int]  # how many predicates each counted attribute has
    at_least: int  # how many must hold

    @property
    def vectors(self) -> dict[int, list[int]]:
        """All vectors that distinguish codes."""
        varying = {i: counts for i, counts in self.counted.items() if len(counts) > 1}
        return self.fixed | varying

    def at(self, codes: Mapping[int, Ints]) -> Numbers:
        """Return the norms where each attribute takes the entries given, as objects."""
        norms: Numbers = np.array(self.scale, dtype=object)
        for i in self.fixed:
            norms = norms * codes[i]
        if not self.counted:
            return norms
        hits = ((i, codes[i] if i in codes else counts[0]) for i, counts in self.counted.items())
        rows = threshold_sum([(self.rows[i] - hit, hit) for i, hit in hits], self.at_least)
        counts = np.asarray(rows, dtype=object)  # times a weight that may have more than 64 bits
        return np.asarray(norms * counts, dtype=object)

    def largest(self) -> int:
        """Return the largest norm: that of the largest entry of every vector."""
        vectors = self.vectors
        most = {i: np.array(max(vector), dtype=object) for i, vector in vectors.items()}
        return int(self.at(most))


def sensitivity(
    measurements: Sequence[WeightedBlock], noise: Noise, change: RecordChange = "enters"
) -> int:
    """Return how far one record moves the answers: L1 ("laplace"), or squared L2 ("gaussian").

    Never 0: where a record that moves within the domain changes no answer, that of one that leaves.

    Args:
        measurements: blocks and their integer weights.
        noise: chooses the norm.
        change: what the record does. "enters" is the largest column norm, "moves within" the
            largest distance of two columns, "moves" the larger of both: a record outside of the
            domain is a column of zeros.

    Privacy:
        Holds for one record that changes so ([MATH] 11). [HDMM18] Thm 3 for a single product.
    """
    columns = column_matrices(measurements)
    if change == "enters":
        return _largest_norm(columns, noise)
    norms = block_norms(measurements, noise)
    distance = Distances(_power(noise)).largest(columns, norms)
    if change == "moves within" and distance:
        return distance
    return max(distance, _largest_norm(columns, noise))


def _power(noise: Noise) -> int:
    return 1 if noise == "laplace" else 2


def _largest_norm(measurements: Sequence[WeightedColumns], noise: Noise) -> int:
    """Return the largest column norm, to the power.

    Exact for one product and wherever the distinct columns can be searched; else an upper bound,
    the sum over measurements of each one's own maximum.
    """
    power, norms, total, varying = _power(noise), FactorNorms(), 0, []
    vectors: dict[int, dict[int, list[int]]] = {}
    for alike in by_form(measurements):
        largest = norms.largest(alike[0], power)
        total += len(alike) * largest
        for measurement in alike:
            if not (several := norms.varying(measurement, power)):
                break  # nor are there any of the others
            varying.append((measurement, largest))
            for i, vector in several.items():
                vectors.setdefault(i, {})[id(vector)] = vector
    distinct = (len(set(zip(*each.values(), strict=True))) for each in vectors.values())
    if len(varying) < 2 or math.prod(distinct) > SEARCH_LIMIT:
        return total
    columns = [_columns(measurement, power, norms) for measurement, _ in varying]
    even = total - sum(largest for _, largest in varying)
    return even + _largest(columns)


def block_norms(
    measurements: Sequence[WeightedBlock], noise: Noise, change: RecordChange = "enters"
) -> list[int]:
    """Return how far one record moves each measurement by itself, or a bound on it; 0 where not."""
    norms, power, columns = FactorNorms(), _power(noise), column_matrices(measurements)
    largest = [norms.largest(measurement, power) for measurement in columns]
    if change == "enters":
        return largest
    distances = Distances(power).bounds(columns, largest)
    return distances if change == "moves within" else list(map(max, distances, largest))


def column_support(measurements: Sequence[WeightedBlock], change: RecordChange = "enters") -> int:
    """Return an upper bound on the number of rows that a record moves: those of its columns."""
    total, known = 0, dict[Hashable, int]()
    for alike in by_form(column_matrices(measurements)):
        block, times = alike[0].block, len(alike)
        if not block.is_product:
            total += times * math.prod(block.row_shape)
            continue
        for factor in block.factors:
            if factor.key not in known:
                known[factor.key] = int(factor.column_counts().max())
        total += times * math.prod(known[factor.key] for factor in block.factors)
    if change == "enters":
        return total
    return min(2 * total, sum(math.prod(rows.block.row_shape) for rows in measurements))


def _columns(measurement: WeightedColumns, power: int, norms: FactorNorms) -> ColumnNorms:
    """Return the column norms of a measurement, with those that are one number in the scale."""
    block, scale = measurement.block, measurement.weight**power
    fixed, counted, rows = {}, {}, {}
    for i, factor, is_counted in zip(block.attributes, block.factors, block.counted, strict=True):
        if is_counted and not block.is_product:
            counted[i], rows[i] = norms.of(factor, 1), factor.shape[0]
            continue
        columns = norms.of(factor, power)
        if len(columns) == 1:
            scale *= columns[0]
        else:
            fixed[i] = columns
    return ColumnNorms(scale, fixed, counted, rows, block.at_least if counted else 0)


def _largest(blocks: Sequence[ColumnNorms]) -> int:
    varying = [block.vectors for block in blocks]
    attributes = sorted({i for vectors in varying for i in vectors})
    distinct = {}
    for i in attributes:
        present = {j: vectors[i] for j, vectors in enumerate(varying) if i in vectors}
        columns = dict.fromkeys(zip(*present.values(), strict=True))
        distinct[i] = {j: [column[k] for column in columns] for k, j in enumerate(present)}
    total: Numbers = np.zeros((), dtype=object)
    for j, block in enumerate(blocks):
        codes = {}
        for axis, i in enumerate(attributes):
            if i in varying[j]:
                entries = np.array(distinct[i][j], dtype=object)
                codes[i] = entries.reshape([-1, *[1] * (len(attributes) - axis - 1)])
        total = total + block.at(codes)
    return int(np.max(total))
