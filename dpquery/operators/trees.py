"""Trees over the codes of one attribute: nested blocks of any sizes, each with a weight.

A code lies in one block of each level. Products go up or down the tree, level by level: O(n) a
level, and no array of more than one number a block and column.
"""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

from collections.abc import Hashable, Sequence
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.factors import Factor
from dpquery.operators.tree_inverse import TreeInverse


class Tree(Factor):
    """The sums of nested blocks times their weights, the codes first; a weight of 0 has no row.

    Attributes:
        parents: for each level but the highest, finest first, the block above that each block lies
            in. Those of the codes stand in any order; all others never fall.
        weights: of the blocks of each level, the codes first; those of codes are positive.
    """

    def __init__(self, parents: Sequence[Ints], weights: Sequence[Numbers]) -> None:
        self.parents = tuple(np.asarray(above, dtype=np.int64) for above in parents)
        self.weights = tuple(np.asarray(level) for level in weights)
        _check(self.parents, self.weights)
        self.dtype = np.result_type(*self.weights)
        self.measured = [np.flatnonzero(level) for level in self.weights]
        self.shape = (sum(map(len, self.measured)), len(self.weights[0]))

    @cached_property
    def key(self) -> Hashable:
        arrays = (*self.parents, *self.weights)
        return ("tree", self.shape, self.dtype.str, *(array.tobytes() for array in arrays))

    @cached_property
    def order(self) -> Ints | None:
        """The codes in the order of the blocks above them; None where that is theirs."""
        if not self.parents or np.all(np.diff(self.parents[0]) >= 0):
            return None
        return np.argsort(self.parents[0], kind="stable")

    @cached_property
    def _starts(self) -> list[Ints]:
        """The first child of every block above each level, the codes in their order."""
        sorted_parents = [np.sort(above) for above in self.parents[:1]] + list(self.parents[1:])
        return [np.flatnonzero(np.diff(above, prepend=-1)) for above in sorted_parents]

    def matmat(self, X: Numbers) -> Numbers:
        sums, rows = X, []
        for level, (weights, measured) in enumerate(zip(self.weights, self.measured, strict=True)):
            if level:
                below = sums if level > 1 or self.order is None else sums[self.order]
                sums = np.add.reduceat(below, self._starts[level - 1], axis=0)
            rows.append(weights[measured, None] * sums[measured])
        return np.concatenate(rows)

    def rmatmat(self, Y: Numbers) -> Numbers:
        return self._down([self._spread(piece, k) for k, piece in enumerate(self._pieces(Y))])

    def _pieces(self, Y: Numbers) -> list[Numbers]:
        """Return rows by level."""
        return np.split(Y, np.cumsum([len(measured) for measured in self.measured])[:-1])

    def _spread(self, piece: Numbers, level: int) -> Numbers:
        """Return the rows of a level times its weights, for all of its blocks."""
        weights, measured = self.weights[level], self.measured[level]
        values = weights[measured, None] * piece
        if len(measured) == len(weights):
            return np.asarray(values)
        whole = np.zeros((len(weights), piece.shape[1]), dtype=values.dtype)
        whole[measured] = values
        return whole

    def _down(self, levels: Sequence[Numbers]) -> Numbers:
        """Return for every code the sum over the blocks that it lies in. levels: one array each."""
        total = levels[-1]
        for above, values in zip(self.parents[::-1], levels[-2::-1], strict=True):
            total = values + total[above]
        return np.asarray(total)

    def gram(self) -> Floats:
        return self.rmatmat(self.dense().astype(np.float64))  # squares of weights may pass int64

    def column_norms(self, power: int) -> Numbers:
        return self._down([np.abs(weights) ** power for weights in self.weights])

    def exact_norms(self, power: int) -> list[int]:
        """Return the same in Python integers."""
        levels = [weights.astype(object) ** power for weights in self.weights]
        return [int(norm) for norm in self._down(levels)]

    def column_counts(self) -> Ints:
        return self._down([(weights != 0).astype(np.int64) for weights in self.weights])

    def max_abs(self) -> int:
        return int(np.ceil(max(float(weights.max()) for weights in self.weights)))

    def row_powers(self, power: int) -> Floats:
        if power == 0:
            return super().row_powers(power)
        return np.asarray(self._row_weights.astype(np.float64) ** power * self._row_sizes)

    @cached_property
    def row_squares(self) -> Numbers:
        return np.asarray(self._row_weights**2 * self._row_sizes)

    @cached_property
    def _row_weights(self) -> Numbers:
        levels = zip(self.weights, self.measured, strict=True)
        return np.concatenate([weights[measured] for weights, measured in levels])

    @cached_property
    def _row_sizes(self) -> Ints:
        """The number of codes in each block that has a row."""
        sizes, rows = np.ones(self.shape[1], dtype=np.int64), []
        for level, measured in enumerate(self.measured):
            if level:
                sizes = np.bincount(self.parents[level - 1], sizes).astype(np.int64)
            rows.append(sizes[measured])
        return np.concatenate(rows)

    def recover(self, answers: Numbers) -> Floats:
        """Return the least squares counts from answers to all blocks. answers: (m, k) -> (n, k).

        Up the tree and down again; counts that fit are never moved.
        """
        totals = []
        for level, piece in enumerate(self._pieces(np.asarray(answers, dtype=np.float64))):
            weights, measured = self.weights[level], self.measured[level]
            whole = np.zeros((len(weights), piece.shape[1]))
            whole[measured] = piece / weights[measured, None]
            totals.append(whole)
        if self.order is not None:
            totals[0] = totals[0][self.order]
        return self.tree.fitted(totals)

    @cached_property
    def tree(self) -> TreeInverse:
        """The inverse of its Gram."""
        squares = [weights.astype(np.float64) ** 2 for weights in self.weights]
        parents = list(self.parents)
        if self.order is not None:
            squares[0], parents[0] = squares[0][self.order], parents[0][self.order]
        return TreeInverse(parents, squares, self.order)


def _check(parents: Sequence[Ints], weights: Sequence[Numbers]) -> None:
    """Refuse what is no tree, or does not say everything about its codes."""
    if not weights or len(parents) != len(weights) - 1:
        raise ValueError("a tree has parents for all levels but the highest")
    for level, above in enumerate(parents):
        if above.shape != weights[level].shape or above.ndim != 1:
            raise ValueError("every block of a level but the highest has a parent")
        numbers = np.sort(above)
        if not np.array_equal(np.unique(numbers), np.arange(len(weights[level + 1]))):
            raise ValueError("every block of a tree holds a block of the level below")
        if level and np.any(np.diff(above) < 0):
            raise ValueError("blocks stand in the order of their parents")
    if weights[0].size == 0 or weights[0].min() <= 0:
        raise ValueError("a code without a weight is not told from its neighbours")
    if any(level.min() < 0 for level in weights):
        raise ValueError("a negative weight of a block")
