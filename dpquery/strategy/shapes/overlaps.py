"""Overlaps of the columns of integer factors, exactly or bounded from below.

The overlap of columns x and y is sum_r x_r y_r for power 2. For power 1 it is the sum of
min(|x_r|, |y_r|) over the rows r where both have one sign. Either way the distance of two columns
is the norm of both less twice their overlap ([MATH] 11).
"""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.block_p_identity import BlockPIdentity
from dpquery.operators.factors import ROW_CHUNK, Centered, Factor, Identity, Ones, PIdentity
from dpquery.operators.hierarchies import Hierarchy
from dpquery.operators.merged import Spread
from dpquery.operators.trees import Tree
from dpquery.strategy.shapes.factor_norms import factor_norms

LISTED_CODES = 2048  # codes of a factor whose overlaps are all worked out
OVERLAP_WORK = 1 << 28  # comparisons of entries for them, or a hundredth of the multiplications
_DIGIT = 20  # bits of a digit: sums of 2^13 products of two are exact in floats
_DIGIT_ROWS = 1 << 13


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Overlaps of the columns of a factor.

    Attributes:
        least: the least overlap of two columns, or less.
        even: the overlap of any two different columns, where it is one number.
        matrix: the overlap of every two columns, (n, n); None where it is even or takes too long.
    """

    least: int
    even: int | None = None
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
        matrix = _of_levels(factor, power, np.arange(n) if listed else np.array([0, n - 1]))
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
    """Return overlaps of the columns of classes; codes of one class have equal columns."""
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
    """Return whether the overlaps of a matrix do not take too long."""
    rows, n = entries.shape
    if power == 1:
        return bool(n * n * rows <= OVERLAP_WORK)
    digits = -(-int(np.abs(entries).max(initial=1)).bit_length() // _DIGIT)
    return bool(n * n * rows * digits**2 <= 100 * OVERLAP_WORK)


def _of_levels(factor: Hierarchy, power: int, codes: Ints) -> Numbers:
    """Return overlaps of some codes: the weights of the levels where they share a block."""
    total: Numbers = np.zeros((len(codes), len(codes)), dtype=object)
    for size, weight in zip(factor.sizes, factor.weights, strict=True):
        place = codes // size
        total = total + (place[:, None] == place).astype(object) * int(weight) ** power
    return total


def _of_tree(factor: Tree, power: int, *, listed: bool) -> Overlaps:
    """Return the overlaps of codes: the weights of the blocks that hold both."""
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
    """Return the overlaps of the columns of a matrix, exactly: (n, n) Python integers."""
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
    """Return the sum over rows of the smaller absolute entry where both have one sign."""
    total: Numbers = np.zeros((entries.shape[1],) * 2, dtype=object)
    for side in (np.maximum(entries, 0), np.maximum(-entries, 0)):
        smaller = np.minimum(side[:, :, None], side[:, None, :])
        low, high = smaller & ((1 << 31) - 1), smaller >> 31  # sums of 2^31 rows fit
        total = total + low.sum(axis=0).astype(object)
        total = total + high.sum(axis=0).astype(object) * (1 << 31)
    return total
