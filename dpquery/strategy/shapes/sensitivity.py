"""Exact sensitivity of integer strategies: the largest column norm, as a Python int.

Adding one record to class j of the domain moves the answers by column j. For a union of Kronecker
products the squared (or absolute) column norms are a sum of Kronecker products of per-attribute
vectors; classes of codes with equal vectors are merged before the maximum is searched. The entries
of an r-of-k block are 0 or 1, so that its columns are counted: the rows of which at least r of the
predicates hold, a number that only grows with how many hold on each attribute.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Ints, Numbers
from dpquery.operators.factors import ROW_CHUNK, Factor, PIdentity
from dpquery.operators.hierarchies import Hierarchy
from dpquery.operators.thresholds import threshold_sum
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.weighted_block import WeightedBlock

_HALF_BITS = 31
_HALF = (1 << _HALF_BITS) - 1
SEARCH_LIMIT = 200_000  # column classes searched exactly; beyond, a sum of maxima bounds it


@dataclass(frozen=True)
class ColumnNorms:
    """The column norms of one measured block, as functions of one code an attribute.

    Attributes:
        scale: power of the weight, and the norms that are the same for every code.
        fixed: for each attribute whose predicate must hold, the norm of every column.
        counted: for each attribute whose predicates are counted, how many each code meets.
        rows: how many predicates each counted attribute has.
        at_least: how many must hold.
    """

    scale: int
    fixed: dict[int, list[int]]
    counted: dict[int, list[int]]
    rows: dict[int, int]
    at_least: int

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
        return norms * threshold_sum([(self.rows[i] - hit, hit) for i, hit in hits], self.at_least)

    def largest(self) -> int:
        """Return the largest norm: that of the largest entry of every vector."""
        vectors = self.vectors
        most = {i: np.array(max(vector), dtype=object) for i, vector in vectors.items()}
        return int(self.at(most))


def sensitivity(measurements: Sequence[WeightedBlock], noise: Noise) -> int:
    """Return the largest L1 column norm ("laplace") or squared L2 column norm ("gaussian").

    Exact for one product and wherever the distinct columns can be searched; else an upper bound,
    the sum over measurements of each one's own maximum.

    Privacy:
        Holds for adding or removing one record. [HDMM18] Thm 3 for a single product.
    """
    power = 1 if noise == "laplace" else 2
    constant, varying, norms = 0, [], _Norms()
    for measurement in measurements:
        columns = _columns(measurement, power, norms)
        if columns.vectors:
            varying.append(columns)
        else:
            constant += columns.largest()
    if len(varying) == 1:
        return constant + varying[0].largest()
    return constant + _largest(varying)


def block_norms(measurements: Sequence[WeightedBlock], noise: Noise) -> list[int]:
    """Return the `sensitivity` of each measurement by itself."""
    norms = _Norms()
    power = 1 if noise == "laplace" else 2
    return [_columns(measurement, power, norms).largest() for measurement in measurements]


def column_support(measurements: Sequence[WeightedBlock]) -> int:
    """Return an upper bound on the number of nonzero entries of any column."""
    total, known = 0, dict[Hashable, int]()
    for measurement in measurements:
        block = measurement.block
        if not block.is_product:
            total += math.prod(block.row_shape)
            continue
        for factor in block.factors:
            if factor.key not in known:
                known[factor.key] = int(factor.column_counts().max())
        total += math.prod(known[factor.key] for factor in block.factors)
    return total


def _columns(measurement: WeightedBlock, power: int, norms: "_Norms") -> ColumnNorms:
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


class _Norms:
    """The column norms of factors, computed once for equal ones: marginals share theirs."""

    def __init__(self) -> None:
        self.known: dict[Hashable, list[int]] = {}

    def of(self, factor: Factor, power: int) -> list[int]:
        """Return sum_i |F_ij|^power for every column, or once where all columns have the same."""
        key = (factor.key, power)
        if key not in self.known:
            norms = _norms(factor, power)
            self.known[key] = norms if min(norms) < max(norms) else norms[:1]
        return self.known[key]


def _norms(factor: Factor, power: int) -> list[int]:
    """Return sum_i |F_ij|^power in Python ints, exact where int64 would wrap.

    For every column; once for a hierarchy, all of whose columns have the same.
    """
    if factor.max_abs() ** power * factor.shape[0] < 1 << 63:
        return [int(v) for v in factor.column_norms(power)]
    if isinstance(factor, Hierarchy):
        return [sum(weight**power for weight in factor.weights)]
    if isinstance(factor, PIdentity):
        below = _wide_norms(factor.rows, power)
        return [int(d) ** power + norm for d, norm in zip(factor.diagonal, below, strict=True)]
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


def _largest(blocks: Sequence[ColumnNorms]) -> int:
    varying = [block.vectors for block in blocks]
    attributes = sorted({i for vectors in varying for i in vectors})
    distinct = {i: _distinct_columns(varying, i) for i in attributes}
    if math.prod(len(columns) for columns in distinct.values()) > SEARCH_LIMIT:
        return sum(block.largest() for block in blocks)
    total: Numbers = np.zeros((), dtype=object)
    for j, block in enumerate(blocks):
        codes = {}
        for axis, i in enumerate(attributes):
            if i in varying[j]:
                entries = np.array([column[j] for column in distinct[i]], dtype=object)
                codes[i] = entries.reshape([-1, *[1] * (len(attributes) - axis - 1)])
        total = total + block.at(codes)
    return int(np.max(total))


def _distinct_columns(varying: Sequence[dict[int, list[int]]], i: int) -> list[tuple[int, ...]]:
    """Return the distinct tuples, one entry a block, that the codes of attribute i contribute."""
    present = [vectors.get(i) for vectors in varying]
    n = next(len(vector) for vector in present if vector is not None)
    filled = [[1] * n if vector is None else vector for vector in present]
    return list(dict.fromkeys(zip(*filled, strict=True)))
