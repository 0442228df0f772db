"""Hierarchical strategies of one ordered attribute: sums of blocks of codes, level by level.

Level l holds the blocks of size_l codes that follow one another, each size a multiple of the one
before and the finest 1; where the size does not divide n the last block is cut off. A code is in
one block of each level, so all columns have one norm. The Haar wavelet has the Gram of such a
hierarchy too (Haar.tree). (A'A)^-1 goes up the tree by contrasts within blocks (TreeInverse): exact
for cut-off blocks, O(n) a level, and no (n, n) array.
"""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.factors import (
    ROW_CHUNK,
    Factor,
    Groups,
    Identity,
    IdentityRows,
    Ones,
    Stacked,
)
from dpquery.operators.ranges import Columns, ListedRanges, Ranges

RANGES_AT_ONCE = 1 << 14  # so many numbers stay in a core's cache


class Hierarchy(Factor):
    """All blocks of every level, finest level first, times the integer weight of their level."""

    def __init__(self, n: int, sizes: Sequence[int], weights: Sequence[int]) -> None:
        self.sizes, self.weights = tuple(sizes), tuple(weights)
        _check_sizes(n, self.sizes)
        if len(self.weights) != len(self.sizes) or min(self.weights) < 1:
            raise ValueError("a level of a hierarchy has a weight of at least 1")
        self.counts = [-(-n // size) for size in self.sizes]
        self.shape = (sum(self.counts), n)

    @property
    def key(self) -> Hashable:
        return ("hierarchy", self.shape, self.sizes, self.weights)

    def matmat(self, X: Numbers) -> Numbers:
        levels = zip(self.weights, _block_sums(X, self.sizes), strict=True)
        return np.concatenate([weight * sums for weight, sums in levels])

    def rmatmat(self, Y: Numbers) -> Numbers:
        n = self.shape[1]
        pieces = np.split(Y, np.cumsum(self.counts)[:-1])
        total = np.zeros((n, Y.shape[1]), dtype=np.result_type(Y, np.int64))
        for size, weight, piece in zip(self.sizes, self.weights, pieces, strict=True):
            total += weight * np.repeat(piece, min(size, n), axis=0)[:n]
        return total

    def gram(self) -> Floats:
        return self.rmatmat(self.dense().astype(np.float64))  # squares of weights may pass int64

    def column_norms(self, power: int) -> Ints:
        return np.full(self.shape[1], sum(weight**power for weight in self.weights), dtype=np.int64)

    def column_counts(self) -> Ints:
        return np.full(self.shape[1], len(self.sizes))

    def max_abs(self) -> int:
        return max(self.weights)

    def recover(self, answers: Numbers) -> Floats:
        """Return the least squares counts from answers to all blocks. answers: (m, k) -> (n, k).

        Up the tree every block's total is averaged with its children's by their variances, and down
        it what a block gained is shared out among them: counts that fit are never moved.
        """
        pieces = np.split(np.asarray(answers, dtype=np.float64), np.cumsum(self.counts)[:-1])
        scaled = [piece / weight for piece, weight in zip(pieces, self.weights, strict=True)]
        return self.tree.fitted(scaled)

    @cached_property
    def row_squares(self) -> Ints:
        weights = np.repeat(np.array(self.weights), self.counts)
        return np.asarray(weights * self.row_sums)

    @cached_property
    def tree(self) -> "TreeInverse":
        """The inverse of its Gram."""
        return TreeInverse(
            self.shape[1], self.sizes, [float(weight) ** 2 for weight in self.weights]
        )


class Haar(Factor):
    """The Haar wavelet in integers: the total, and left half less right half of every block.

    Codes are thought of as the first n of the next power of two; rows of none of them are left out.
    """

    def __init__(self, n: int) -> None:
        self.sizes = tuple(1 << k for k in range((n - 1).bit_length() + 1))
        self.counts = [-(-n // size) for size in self.sizes[1:]]
        self.shape = (1 + sum(self.counts), n)

    @property
    def key(self) -> Hashable:
        return ("haar", *self.shape)

    def matmat(self, X: Numbers) -> Numbers:
        rows = []
        for sums in _block_sums(X, self.sizes[:-1]):
            even = np.concatenate([sums, np.zeros_like(sums[:1])]) if len(sums) % 2 else sums
            rows.append(even[::2] - even[1::2])
        return np.concatenate([X.sum(axis=0, keepdims=True), *rows])

    def rmatmat(self, Y: Numbers) -> Numbers:
        n = self.shape[1]
        total = np.repeat(Y[:1], n, axis=0)
        pieces = np.split(Y[1:], np.cumsum(self.counts)[:-1])
        for size, piece in zip(self.sizes[:-1], pieces, strict=False):
            sides = np.stack([piece, -piece], axis=1).reshape(-1, Y.shape[1])
            total = total + np.repeat(sides, size, axis=0)[:n]
        return total

    def column_norms(self, power: int) -> Ints:
        return np.full(self.shape[1], len(self.sizes), dtype=np.int64)

    def column_counts(self) -> Ints:
        return self.column_norms(1)

    def max_abs(self) -> int:
        return 1

    @cached_property
    def tree(self) -> "TreeInverse":
        """The inverse of its Gram: that of the halves of the blocks, but for the whole.

        The square of left less right is twice the squares of both halves less that of the block.
        """
        halves = self.sizes[:-1]
        if not halves:
            return TreeInverse(1, (1,), (1.0,))
        return TreeInverse(self.shape[1], halves, (2.0, *(1.0 for _ in halves[1:])))

    @cached_property
    def row_squares(self) -> Ints:
        n = self.shape[1]
        starts = [np.arange(0, n, size) for size in self.sizes[1:]]
        lengths = [
            np.minimum(n - start, size) for start, size in zip(starts, self.sizes[1:], strict=True)
        ]
        return np.concatenate([[n], *lengths])


class TreeInverse:
    """The inverse of G = sum_l square_l B_l'B_l, B_l the 0/1 matrix of the blocks of level l.

    Every block c has a mass mu_c = 1'G_c^-1 1 and a mean of its codes; that of a block is the mean
    of its children's by their masses. With t_c the mean of q over c and p its parent,
        q G^-1 q' = sum_c mu_c (t_c - t_p)^2 + sum_top mu t^2,
        mu_p = M / (1 + square M),  M = the masses of its children added up.
    All terms are positive: nothing cancels however far apart the weights of the levels are.
    """

    def __init__(self, n: int, sizes: Sequence[int], squares: Sequence[float]) -> None:
        _check_sizes(n, tuple(sizes))
        self.n, self.sizes = n, tuple(sizes)
        self.masses: list[Floats] = [np.full(n, 1 / squares[0])]
        self.added: list[Floats] = []
        for level, square in enumerate(squares[1:]):
            added = np.add.reduceat(self.masses[-1], self._starts(level))
            self.added.append(added)
            self.masses.append(added / (1 + square * added))

    def matmat(self, X: Numbers) -> Floats:
        """Return its product with X: (n, k). O(n k) a level."""
        contrasts: list[Floats] = []
        mean = np.asarray(X, dtype=np.float64)
        for level, added in enumerate(self.added):
            mass = self.masses[level][:, None]
            above = np.add.reduceat(mass * mean, self._starts(level)) / added[:, None]
            contrasts.append(mass * (mean - self._below(above, level)))
            mean = above
        total = self.masses[-1][:, None] * mean
        for level in reversed(range(len(self.added))):
            share = self.masses[level] / self._below(self.added[level], level)
            total = share[:, None] * self._below(total, level) + contrasts[level]
        return np.asarray(total)

    def fitted(self, totals: Sequence[Floats]) -> Floats:
        """Return the counts that fit noisy totals of the blocks of every level best: (n, k).

        Args:
            totals: of every level, finest first, with variance 1 / square: (blocks, k) each.
        """
        best, sums = [totals[0]], []
        for level, added in enumerate(self.added):
            sums.append(np.add.reduceat(best[level], self._starts(level)))
            gain = (1 - self.masses[level + 1] / added)[:, None]
            best.append(sums[level] + gain * (totals[level + 1] - sums[level]))
        counts = best[-1]
        for level in reversed(range(len(self.added))):
            share = self.masses[level] / self._below(self.added[level], level)
            counts = best[level] + share[:, None] * self._below(counts - sums[level], level)
        return np.asarray(counts)

    def array(self) -> Floats:
        """Return it written out: (n, n)."""
        return self.matmat(np.eye(self.n))

    def trace_with(self, V: Floats) -> float:
        """Return tr(G^-1 V). V: (n, n)."""
        total, means = 0.0, np.asarray(V, dtype=np.float64)
        for level, added in enumerate(self.added):
            mass, starts = self.masses[level], self._starts(level)
            total += float(mass @ np.diagonal(means))
            rows = np.add.reduceat(mass[:, None] * means, starts) / added[:, None]
            means = np.add.reduceat(rows * mass, starts, axis=1) / added
            total -= float(added @ np.diagonal(means))
        return total + float(self.masses[-1] @ np.diagonal(means))

    def quadratic(self, queries: Factor) -> Floats:
        """Return diag(Q G^-1 Q') of a query matrix: (m,)."""
        match queries:
            case Stacked(parts=parts):
                return np.concatenate([self.quadratic(part) for part in parts])
            case Ranges(bounds=bounds):
                return self._of_ranges(*bounds)
            case Identity():
                return self._of_ranges(np.arange(self.n), np.arange(self.n))
            case IdentityRows(codes=codes):
                return self._of_ranges(codes, codes)
            case Ones(shape=(m, n)):
                return np.full(m, self._of_ranges(np.zeros(1, int), np.array([n - 1]))[0])
            case Groups(matrix=matrix):
                return self._of_rows(matrix)
            case Columns():
                return queries.quadratic(self.array())
            case _:
                return self._of_rows(sp.csr_array(queries.dense().astype(np.float64)))

    def _of_rows(self, rows: "sp.csr_array") -> Floats:
        step = max(1, ROW_CHUNK // self.n)
        pieces = [self._of_dense(rows[k : k + step]) for k in range(0, rows.shape[0], step)]
        return np.concatenate(pieces)

    def _of_dense(self, rows: "sp.csr_array") -> Floats:
        mean = rows.toarray().astype(np.float64).T
        total = np.zeros(mean.shape[1])
        for level, added in enumerate(self.added):
            mass = self.masses[level]
            above = np.add.reduceat(mass[:, None] * mean, self._starts(level)) / added[:, None]
            total += mass @ (mean - self._below(above, level)) ** 2
            mean = above
        return np.asarray(total + self.masses[-1] @ mean**2)

    def _of_ranges(self, first: Ints, last: Ints) -> Floats:
        pieces = range(0, len(first), RANGES_AT_ONCE)
        spans = [slice(start, start + RANGES_AT_ONCE) for start in pieces]
        return np.concatenate([self._of_some_ranges(first[span], last[span]) for span in spans])

    def _of_some_ranges(self, first: Ints, last: Ints) -> Floats:
        """Add up, level by level, the contrasts in the blocks that hold the two ends of a range.

        All other blocks are wholly inside or wholly outside, without contrast. `head` and `tail`
        are the means over the blocks `left` and `right` that hold the ends; the same where they
        are `alone` in one block.
        """
        total = np.zeros(len(first))
        head, tail = np.ones(len(first)), np.ones(len(first))
        left, right = np.asarray(first), np.asarray(last)
        for level, added in enumerate(self.added):
            mass, width = self.masses[level], self.sizes[level + 1] // self.sizes[level]
            before = np.concatenate([[0.0], np.cumsum(mass)])
            up, down = left // width, right // width
            stops = np.minimum((np.stack([up, down]) + 1) * width, len(mass))
            alone, together = left == right, up == down
            last_mass = np.where(alone, 0.0, mass[right])
            # in the block that holds the first end, and the last one too where they are together
            inner = before[np.where(together, right, stops[0])] - before[left + 1]
            inner = np.where(alone, 0.0, inner)
            after = np.where(together, before[stops[0]] - before[right + 1], 0.0)
            outer = before[left] - before[up * width] + after
            beside = np.where(together, last_mass, 0.0)
            above = (mass[left] * head + inner + beside * tail) / added[up]
            total += mass[left] * (head - above) ** 2 + beside * (tail - above) ** 2
            total += inner * (1 - above) ** 2 + outer * above**2
            # in the block that holds the last end alone
            inner, outer = (
                before[right] - before[down * width],
                before[stops[1]] - before[right + 1],
            )
            other = (inner + last_mass * tail) / added[down]
            apart = last_mass * (tail - other) ** 2 + inner * (1 - other) ** 2 + outer * other**2
            total += np.where(together, 0.0, apart)
            head, tail = above, np.where(together, above, other)
            left, right = up, down
        mass = self.masses[-1]
        before = np.concatenate([[0.0], np.cumsum(mass)])
        inner = np.where(left == right, 0.0, before[right] - before[left + 1])
        total += mass[left] * head**2 + inner
        return np.asarray(total + np.where(left == right, 0.0, mass[right] * tail**2))

    def _starts(self, level: int) -> Ints:
        """The first child of every block above a level."""
        return np.arange(0, len(self.masses[level]), self.sizes[level + 1] // self.sizes[level])

    def _below(self, above: Floats, level: int) -> Floats:
        """Return what stands at the blocks above a level for each of their children."""
        width = self.sizes[level + 1] // self.sizes[level]
        children = len(self.masses[level])
        return np.repeat(above, min(width, children), axis=0)[:children]


def equal_blocks(n: int, size: int) -> Factor:
    """Return the 0/1 matrix of the blocks of `size` codes that follow one another."""
    if size == 1:
        return Identity(n)
    return ListedRanges(n, [(first, min(first + size, n) - 1) for first in range(0, n, size)])


def _block_sums(X: Numbers, sizes: Sequence[int]) -> Iterator[Numbers]:
    """Yield the sums of X over the blocks of every level, finest first."""
    sums, before = X, 1
    for size in sizes:
        sums = np.add.reduceat(sums, np.arange(0, len(sums), size // before), axis=0)
        before = size
        yield sums


def _check_sizes(n: int, sizes: tuple[int, ...]) -> None:
    if not sizes or sizes[0] != 1 or sizes[-2:-1] >= (n,):
        raise ValueError("the levels of a hierarchy go from single codes to all codes at most")
    for below, size in pairwise(sizes):
        if size <= below or size % below:
            raise ValueError(f"blocks of {size} codes are not made of blocks of {below}")
