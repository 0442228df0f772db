"""Exact sensitivity of integer strategies, as a Python int: how far one record moves the answers.

Adding one record to class j of the domain moves the answers by column j, and replacing it by one of
class i by the difference of two columns (replacement.py). For a union of Kronecker
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
from dpquery.operators.blocks import threshold_sum
from dpquery.strategy.replacement import Distances, FactorNorms
from dpquery.strategy.strategy import (
    Noise,
    RecordChange,
    WeightedBlock,
    WeightedColumns,
    column_matrices,
)

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
        if not (self.fixed or self.counted):
            return self.scale
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
    constant, varying, norms = 0, [], FactorNorms()
    for measurement in measurements:
        columns = _columns(measurement, _power(noise), norms)
        if columns.vectors:
            varying.append(columns)
        else:
            constant += columns.largest()
    if len(varying) == 1:
        return constant + varying[0].largest()
    return constant + _largest(varying)


def block_norms(
    measurements: Sequence[WeightedBlock], noise: Noise, change: RecordChange = "enters"
) -> list[int]:
    """Return how far one record moves each measurement by itself, or a bound on it; 0 where not."""
    norms, power, columns = FactorNorms(), _power(noise), column_matrices(measurements)
    largest = [_columns(measurement, power, norms).largest() for measurement in columns]
    if change == "enters":
        return largest
    distances = Distances(power).bounds(columns, largest)
    return distances if change == "moves within" else list(map(max, distances, largest))


def column_support(measurements: Sequence[WeightedBlock], change: RecordChange = "enters") -> int:
    """Return an upper bound on the number of rows that a record moves: those of its columns."""
    total, known = 0, dict[Hashable, int]()
    for measurement in column_matrices(measurements):
        block = measurement.block
        if not block.is_product:
            total += math.prod(block.row_shape)
            continue
        for factor in block.factors:
            if factor.key not in known:
                known[factor.key] = int(factor.column_counts().max())
        total += math.prod(known[factor.key] for factor in block.factors)
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
    distinct, combinations = {}, 1
    for i in attributes:
        distinct[i] = _distinct_columns(varying, i)
        combinations *= len(next(iter(distinct[i].values())))
        if combinations > SEARCH_LIMIT:
            return sum(block.largest() for block in blocks)
    total: Numbers = np.zeros((), dtype=object)
    for j, block in enumerate(blocks):
        codes = {}
        for axis, i in enumerate(attributes):
            if i in varying[j]:
                entries = np.array(distinct[i][j], dtype=object)
                codes[i] = entries.reshape([-1, *[1] * (len(attributes) - axis - 1)])
        total = total + block.at(codes)
    return int(np.max(total))


def _distinct_columns(varying: Sequence[dict[int, list[int]]], i: int) -> dict[int, list[int]]:
    """Return what the distinct codes of attribute i contribute to each block that has it."""
    present = {j: vectors[i] for j, vectors in enumerate(varying) if i in vectors}
    distinct = dict.fromkeys(zip(*present.values(), strict=True))
    return {j: [column[k] for column in distinct] for k, j in enumerate(present)}
