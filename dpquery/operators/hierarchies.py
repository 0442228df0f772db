"""Hierarchical strategies of one ordered attribute: sums of blocks of codes, level by level.

Level l holds the blocks of size_l codes that follow one another, each size a multiple of the one
before and the finest 1; where the size does not divide n the last block is cut off. A code is in
one block of each level, so all columns have one norm. The Haar wavelet has the Gram of such a
hierarchy too (Haar.tree). (A'A)^-1 goes up the tree by Sherman and Morrison's formula: exact
for cut-off blocks, O(n) a level, and no (n, n) array.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy.sparse as sp

from dpquery.operators.factors import Array, Factor, Groups, Identity, Ones, Stacked
from dpquery.operators.ranges import Columns, ListedRanges, Ranges


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

    def matmat(self, X: Array) -> Array:
        levels = zip(self.weights, _block_sums(X, self.sizes), strict=True)
        return np.concatenate([weight * sums for weight, sums in levels])

    def rmatmat(self, Y: Array) -> Array:
        n = self.shape[1]
        pieces = np.split(Y, np.cumsum(self.counts)[:-1])
        total = np.zeros((n, Y.shape[1]), dtype=np.result_type(Y, np.int64))
        for size, weight, piece in zip(self.sizes, self.weights, pieces, strict=True):
            total += weight * np.repeat(piece, min(size, n), axis=0)[:n]
        return total

    def gram(self) -> Array:
        return self.rmatmat(self.dense().astype(np.float64))  # squares of weights may pass int64

    def column_norms(self, power: int) -> Array:
        return np.full(self.shape[1], sum(own**power for own in self.weights), dtype=np.int64)

    def column_counts(self) -> Array:
        return np.full(self.shape[1], len(self.sizes))

    def max_abs(self) -> int:
        return max(self.weights)

    @cached_property
    def row_squares(self) -> Array:
        weights = np.repeat(np.array(self.weights), self.counts)
        return np.asarray(weights * self.row_sums)

    @cached_property
    def tree(self) -> "TreeInverse":
        """The inverse of its Gram."""
        return TreeInverse(self.shape[1], self.sizes, [float(own) ** 2 for own in self.weights])


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

    def matmat(self, X: Array) -> Array:
        rows = []
        for sums in _block_sums(X, self.sizes[:-1]):
            even = np.concatenate([sums, np.zeros_like(sums[:1])]) if len(sums) % 2 else sums
            rows.append(even[::2] - even[1::2])
        return np.concatenate([X.sum(axis=0, keepdims=True), *rows])

    def rmatmat(self, Y: Array) -> Array:
        n = self.shape[1]
        total = np.repeat(Y[:1], n, axis=0)
        pieces = np.split(Y[1:], np.cumsum(self.counts)[:-1])
        for size, piece in zip(self.sizes[:-1], pieces, strict=False):
            sides = np.stack([piece, -piece], axis=1).reshape(-1, Y.shape[1])
            total = total + np.repeat(sides, size, axis=0)[:n]
        return total

    def column_norms(self, power: int) -> Array:
        return np.full(self.shape[1], len(self.sizes), dtype=np.int64)

    def column_counts(self) -> Array:
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
    def row_squares(self) -> Array:
        n = self.shape[1]
        starts = [np.arange(0, n, size) for size in self.sizes[1:]]
        held = [np.minimum(n - own, size) for own, size in zip(starts, self.sizes[1:], strict=True)]
        return np.concatenate([[n], *held])


class TreeInverse:
    """The inverse of G = sum_l square_l B_l'B_l, B_l the 0/1 matrix of the blocks of level l.

    G = blockdiag(G_c) + square 11' over the children c of a block, so
        G^-1 = blockdiag(G_c^-1) - alpha g g',  g = blockdiag(G_c^-1) 1,
        alpha = square / (1 + square 1'g),
    and G^-1 1 = g alpha / square. Level by level G^-1 is a multiple of I less outer products of one
    vector g_l, cut into the level's blocks, times their alphas.
    """

    def __init__(self, n: int, sizes: Sequence[int], squares: Sequence[float]) -> None:
        _check_sizes(n, tuple(sizes))
        self.n, self.sizes = n, tuple(sizes[1:])
        self.diagonal = 1 / squares[0]
        self.vectors: list[Array] = []
        self.alphas: list[Array] = []
        g = np.full(n, self.diagonal)
        for size, square in zip(self.sizes, squares[1:], strict=True):
            alpha = square / (1 + square * np.add.reduceat(g, np.arange(0, n, size)))
            self.vectors.append(g)
            self.alphas.append(alpha)
            g = g * np.repeat(alpha / square, min(size, n))[:n]

    def matmat(self, X: Array) -> Array:
        """Return its product with X: (n, k). O(n k) a level."""
        total = self.diagonal * X
        for size, g, alpha in self._levels():
            inside = np.add.reduceat(g[:, None] * X, np.arange(0, self.n, size), axis=0)
            total = (
                total
                - g[:, None]
                * np.repeat(alpha[:, None] * inside, min(size, self.n), axis=0)[: self.n]
            )
        return np.asarray(total)

    def array(self) -> Array:
        """Return it written out: (n, n)."""
        return self.matmat(np.eye(self.n))

    def trace_with(self, V: Array) -> float:
        """Return tr(G^-1 V). V: (n, n)."""
        total = self.diagonal * float(np.trace(V))
        for size, g, alpha in self._levels():
            starts = np.arange(0, self.n, size)
            within = np.add.reduceat(np.add.reduceat(V * g[:, None] * g, starts), starts, axis=1)
            total -= float(alpha @ np.diagonal(within))
        return total

    def quadratic(self, queries: Factor) -> Array:
        """Return diag(Q G^-1 Q') of a query matrix: (m,)."""
        match queries:
            case Stacked(parts=parts):
                return np.concatenate([self.quadratic(part) for part in parts])
            case Ranges(bounds=bounds):
                return self._of_ranges(*bounds)
            case Identity():
                return self._of_ranges(np.arange(self.n), np.arange(self.n))
            case Ones(shape=(m, n)):
                return np.full(m, self._of_ranges(np.zeros(1, int), np.array([n - 1]))[0])
            case Groups(matrix=matrix):
                return self._of_rows(matrix)
            case Columns():
                return queries.quadratic(self.array())
            case _:
                return self._of_rows(sp.csr_array(queries.dense().astype(np.float64)))

    def _of_rows(self, rows: "sp.csr_array") -> Array:
        total = self.diagonal * np.asarray(rows.multiply(rows).sum(axis=1))
        codes = np.arange(self.n)
        for size, g, alpha in self._levels():
            inside = rows @ sp.csr_array((g, (codes, codes // size)), shape=(self.n, len(alpha)))
            total = total - np.asarray(inside.multiply(inside) @ alpha)
        return np.asarray(total)

    def _of_ranges(self, first: Array, last: Array) -> Array:
        """Add up, level by level, the squares of the blocks inside a range and of its two ends."""
        total = self.diagonal * (last - first + 1)
        for size, g, alpha in self._levels():
            below = np.concatenate([[0.0], np.cumsum(g)])
            whole = alpha * np.add.reduceat(g, np.arange(0, self.n, size)) ** 2
            before = np.concatenate([[0.0], np.cumsum(whole)])
            left, right = first // size, last // size
            alone = left == right
            inner = before[right] - before[np.minimum(left + 1, right)]
            end = np.where(alone, last + 1, np.minimum((left + 1) * size, self.n))
            head = alpha[left] * (below[end] - below[first]) ** 2
            tail = alpha[right] * (below[last + 1] - below[right * size]) ** 2
            total = total - head - np.where(alone, 0.0, inner + tail)
        return np.asarray(total)

    def _levels(self) -> Iterator[tuple[int, Array, Array]]:
        return zip(self.sizes, self.vectors, self.alphas, strict=True)


def equal_blocks(n: int, size: int) -> Factor:
    """Return the 0/1 matrix of the blocks of `size` codes that follow one another."""
    if size == 1:
        return Identity(n)
    return ListedRanges(n, [(first, min(first + size, n) - 1) for first in range(0, n, size)])


def _block_sums(X: Array, sizes: Sequence[int]) -> Iterator[Array]:
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
