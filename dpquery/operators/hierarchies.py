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

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.factors import Factor, Identity
from dpquery.operators.ranges import ListedRanges
from dpquery.operators.tree_inverse import TreeInverse


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
    def tree(self) -> TreeInverse:
        """The inverse of its Gram."""
        return tree_of_blocks(
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
    def tree(self) -> TreeInverse:
        """The inverse of its Gram: that of the halves of the blocks, but for the whole.

        The square of left less right is twice the squares of both halves less that of the block.
        """
        halves = self.sizes[:-1]
        if not halves:
            return tree_of_blocks(1, (1,), (1.0,))
        return tree_of_blocks(self.shape[1], halves, (2.0, *(1.0 for _ in halves[1:])))

    @cached_property
    def row_squares(self) -> Ints:
        n = self.shape[1]
        starts = [np.arange(0, n, size) for size in self.sizes[1:]]
        lengths = [
            np.minimum(n - start, size) for start, size in zip(starts, self.sizes[1:], strict=True)
        ]
        return np.concatenate([[n], *lengths])


def tree_of_blocks(n: int, sizes: Sequence[int], squares: Sequence[float]) -> TreeInverse:
    """Return the inverse of the Gram of blocks of equal sizes, finest first, one weight a level."""
    _check_sizes(n, tuple(sizes))
    counts = [-(-n // size) for size in sizes]
    parents = [
        np.arange(count) // (above // size)
        for count, (size, above) in zip(counts, pairwise(sizes), strict=False)
    ]
    return TreeInverse(parents, [np.full(*pair) for pair in zip(counts, squares, strict=True)])


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
