"""Trees over the codes of an attribute, nested or of equal blocks, and their inverse.

A code lies in one block of each level. Products go up or down the tree, level by level: O(n) a
level, and no array of more than one number a block and column.

The inverse of its Gram goes up the tree by contrasts within blocks, in O(n) a level and without an
(n, n) array. Blocks may have any number of children and any weight; above the codes it may be 0.

Level l holds the blocks of size_l codes that follow one another, each size a multiple of the one
before and the finest 1; where the size does not divide n the last block is cut off. A code is in
one block of each level, so all columns have one norm. (A'A)^-1 goes up the tree by contrasts within
blocks (TreeInverse): exact for cut-off blocks, O(n) a level, and no (n, n) array.
"""

from collections.abc import Sequence
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
from dpquery.operators.ranges import Columns, OrderedInverse, Ranges

INVERSE_CODES = 4096  # codes up to which the inverse is written out for columns of other factors


class TreeInverse(OrderedInverse):
    """The inverse of G = sum_c square_c 1_c 1_c', over the blocks c of all levels of a tree.

    Every block c has a mass mu_c = 1'G_c^-1 1 and a mean of its codes; that of a block is the mean
    of its children's by their masses. With t_c the mean of q over c and p its parent,
        q G^-1 q' = sum_c mu_c (t_c - t_p)^2 + sum_top mu t^2,
        mu_p = M / (1 + square_p M),  M = the masses of its children added up.
    All terms are positive: nothing cancels however far apart the weights of the blocks are.
    """

    def __init__(
        self, parents: Sequence[Ints], squares: Sequence[Floats], order: Ints | None = None
    ) -> None:
        """Work out the masses.

        Args:
            parents: for each level but the highest, finest first, the number of the block above
                that each block lies in: never falling, and no block without one below.
            squares: squared weights of the blocks of each level; positive at the finest.
            order: the codes in the order of the blocks of the finest level; as they are if None.
        """
        self.parents, self.order = tuple(parents), order
        self.n = len(squares[0])
        self.starts = [np.flatnonzero(np.diff(above, prepend=-1)) for above in self.parents]
        self.masses: list[Floats] = [1 / squares[0]]
        self.added: list[Floats] = []
        for starts, square in zip(self.starts, squares[1:], strict=True):
            added = np.add.reduceat(self.masses[-1], starts)
            self.added.append(added)
            self.masses.append(added / (1 + square * added))

    def matmat(self, X: Numbers) -> Floats:
        """Return its product with X: (n, k). O(n k) a level."""
        contrasts: list[Floats] = []
        mean = np.asarray(X if self.order is None else X[self.order], dtype=np.float64)
        for level, added in enumerate(self.added):
            mass = self.masses[level][:, None]
            above = np.add.reduceat(mass * mean, self.starts[level]) / added[:, None]
            contrasts.append(mass * (mean - above[self.parents[level]]))
            mean = above
        total = self.masses[-1][:, None] * mean
        for level in reversed(range(len(self.added))):
            share = self.masses[level] / self.added[level][self.parents[level]]
            total = share[:, None] * total[self.parents[level]] + contrasts[level]
        return self._by_code(total)

    def fitted(self, totals: Sequence[Floats]) -> Floats:
        """Return the counts that fit noisy totals of the blocks of every level best: (n, k).

        Args:
            totals: of every level, finest first, with variance 1 / square: (blocks, k) each. Those
                of a block with the square 0 say nothing.
        """
        best, sums = [totals[0]], []
        for level, added in enumerate(self.added):
            sums.append(np.add.reduceat(best[level], self.starts[level]))
            gain = (1 - self.masses[level + 1] / added)[:, None]
            best.append(sums[level] + gain * (totals[level + 1] - sums[level]))
        counts = best[-1]
        for level in reversed(range(len(self.added))):
            share = self.masses[level] / self.added[level][self.parents[level]]
            counts = best[level] + share[:, None] * (counts - sums[level])[self.parents[level]]
        return self._by_code(counts)

    def _by_code(self, values: Floats) -> Floats:
        """Return the rows of an array over the finest blocks in the order of the codes."""
        return np.asarray(values if self.order is None else values[self.position])

    @cached_property
    def position(self) -> Ints:
        """The finest block of every code: (n,)."""
        if self.order is None:
            return np.arange(self.n)
        position = np.empty(self.n, dtype=np.int64)
        position[self.order] = np.arange(self.n)
        return position

    @cached_property
    def variances(self) -> list[Floats]:
        """1_c'G^-1 1_c of the blocks of every level, finest first: down the tree.

        A block's is mu_c (1 - share) + share^2 times that of its parent, share = mu_c / M.
        """
        variances = [self.masses[-1]]
        for level in reversed(range(len(self.added))):
            share = self.masses[level] / self.added[level][self.parents[level]]
            apart = self.masses[level] * (1 - share)
            variances.append(apart + share**2 * variances[-1][self.parents[level]])
        return variances[::-1]

    def trace_with(self, V: Floats) -> float:
        """Return tr(G^-1 V). V: (n, n)."""
        total, means = 0.0, np.asarray(V, dtype=np.float64)
        if self.order is not None:
            means = means[np.ix_(self.order, self.order)]
        for level, added in enumerate(self.added):
            mass, starts = self.masses[level], self.starts[level]
            total += float(mass @ np.diagonal(means))
            rows = np.add.reduceat(mass[:, None] * means, starts) / added[:, None]
            means = np.add.reduceat(rows * mass, starts, axis=1) / added
            total -= float(added @ np.diagonal(means))
        return total + float(self.masses[-1] @ np.diagonal(means))

    def quadratic(self, queries: Factor) -> Floats:
        """Return diag(Q G^-1 Q') of a query matrix: (m,)."""
        match queries:
            case Identity():
                return self._by_code(self.variances[0])
            case IdentityRows(codes=codes):
                return np.asarray(self.variances[0][self.position[codes]])
            case Ranges(bounds=bounds) if self.order is not None:
                return self._of_spans(*bounds)
            case Stacked() | Ones() | Ranges() | Groups():
                return super().quadratic(queries)
            case Columns() if self.n <= INVERSE_CODES:
                return super().quadratic(queries)
            case _:
                # the forms of a factor that is known by its products, some rows at a time
                m, step = queries.shape[0], max(1, ROW_CHUNK // self.n)
                pieces = []
                for start in range(0, m, step):
                    size = min(step, m - start)
                    units = np.zeros((m, size))
                    units[np.arange(start, start + size), np.arange(size)] = 1.0
                    pieces.append(self._of_rows(sp.csr_array(queries.rmatmat(units).T)))
                return np.concatenate(pieces)

    def _of_spans(self, first: Ints, last: Ints) -> Floats:
        """Return the forms of ranges of codes that are not in the order of the blocks."""
        lengths = last - first + 1
        step = max(1, ROW_CHUNK // int(lengths.max()))
        pieces = []
        for k in range(0, len(first), step):
            sizes = lengths[k : k + step]
            ends = np.concatenate([[0], np.cumsum(sizes)])
            codes = np.arange(ends[-1]) + np.repeat(first[k : k + step] - ends[:-1], sizes)
            shape = (len(sizes), self.n)
            pieces.append(self._of_rows(sp.csr_array((np.ones(len(codes)), codes, ends), shape)))
        return np.concatenate(pieces)

    def _of_rows(self, rows: "sp.csr_array") -> Floats:
        """Return the forms of sparse rows: O(entries) a level.

        Of a block's children only those with a mean other than 0 are looked at. Those beside them
        have what they leave of its mass: none at all where there are no others.
        """
        entries = sp.csr_array(rows[:, self.order] if self.order is not None else rows)
        entries.sort_indices()
        m = entries.shape[0]
        row = np.repeat(np.arange(m), np.diff(entries.indptr))
        block, mean = entries.indices.astype(np.int64), entries.data.astype(np.float64)
        total = np.zeros(m)
        for level, added in enumerate(self.added):
            mass, above = self.masses[level][block], self.parents[level][block]
            change = (np.diff(row, prepend=-1) != 0) | (np.diff(above, prepend=-1) != 0)
            firsts = np.flatnonzero(change)
            if len(firsts) == 0:
                return total
            group, parent = np.cumsum(change) - 1, above[firsts]
            means = np.add.reduceat(mass * mean, firsts) / added[parent]
            total += np.bincount(row, mass * (mean - means[group]) ** 2, minlength=m)
            number = np.diff(firsts, append=len(block))
            beside = np.maximum(added[parent] - np.add.reduceat(mass, firsts), 0.0)
            beside[number == self.children[level][parent]] = 0.0
            row, block, mean = row[firsts], parent, means
            total += np.bincount(row, beside * mean**2, minlength=m)
        return np.asarray(total + np.bincount(row, self.masses[-1][block] * mean**2, minlength=m))

    @cached_property
    def children(self) -> list[Ints]:
        """How many blocks lie in each block above each level."""
        return [np.bincount(above) for above in self.parents]

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
            mass, starts = self.masses[level], self.starts[level]
            before = np.concatenate([[0.0], np.cumsum(mass)])
            up, down = self.parents[level][left], self.parents[level][right]
            stops = np.append(starts[1:], len(mass))[np.stack([up, down])]
            alone, together = left == right, up == down
            last_mass = np.where(alone, 0.0, mass[right])
            # in the block that holds the first end, and the last one too where they are together
            inner = before[np.where(together, right, stops[0])] - before[left + 1]
            inner = np.where(alone, 0.0, inner)
            after = np.where(together, before[stops[0]] - before[right + 1], 0.0)
            outer = before[left] - before[starts[up]] + after
            beside = np.where(together, last_mass, 0.0)
            above = (mass[left] * head + inner + beside * tail) / added[up]
            total += mass[left] * (head - above) ** 2 + beside * (tail - above) ** 2
            total += inner * (1 - above) ** 2 + outer * above**2
            # in the block that holds the last end alone
            inner, outer = (
                before[right] - before[starts[down]],
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


class Tree(Factor):
    """The sums of nested blocks times their weights, the codes first; a weight of 0 has no row.

    Attributes:
        parents: for each level but the highest, finest first, the block above that each block lies
            in. Those of the codes stand in any order; all others never fall.
        weights: of the blocks of each level, the codes first; those of codes are positive.
    """

    held = ("parents", "weights")

    def __init__(self, parents: Sequence[Ints], weights: Sequence[Numbers]) -> None:
        self.parents = tuple(np.asarray(above, dtype=np.int64) for above in parents)
        self.weights = tuple(np.asarray(level) for level in weights)
        _check(self.parents, self.weights)
        self.dtype = np.result_type(*self.weights)
        self.measured = [np.flatnonzero(level) for level in self.weights]
        self.shape = (sum(map(len, self.measured)), len(self.weights[0]))

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

    @cached_property
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


class Hierarchy(Factor):
    """All blocks of every level, finest level first, times the integer weight of their level."""

    held = ("sizes", "weights")

    def __init__(self, n: int, sizes: Sequence[int], weights: Sequence[int]) -> None:
        self.sizes, self.weights = tuple(sizes), tuple(weights)
        _check_sizes(n, self.sizes)
        if len(self.weights) != len(self.sizes) or min(self.weights) < 1:
            raise ValueError("a level of a hierarchy has a weight of at least 1")
        self.counts = [-(-n // size) for size in self.sizes]
        self.shape = (sum(self.counts), n)

    def matmat(self, X: Numbers) -> Numbers:
        sums, before, levels = X, 1, []
        for weight, size in zip(self.weights, self.sizes, strict=True):
            sums = np.add.reduceat(sums, np.arange(0, len(sums), size // before), axis=0)
            before = size
            levels.append(weight * sums)
        return np.concatenate(levels)

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

    @cached_property
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


def tree_of_blocks(n: int, sizes: Sequence[int], squares: Sequence[float]) -> TreeInverse:
    """Return the inverse of the Gram of blocks of equal sizes, finest first, one weight a level."""
    _check_sizes(n, tuple(sizes))
    counts = [-(-n // size) for size in sizes]
    parents = [
        np.arange(count) // (above // size)
        for count, (size, above) in zip(counts, pairwise(sizes), strict=False)
    ]
    return TreeInverse(parents, [np.full(*pair) for pair in zip(counts, squares, strict=True)])


def _check_sizes(n: int, sizes: tuple[int, ...]) -> None:
    if not sizes or sizes[0] != 1 or sizes[-2:-1] >= (n,):
        raise ValueError("the levels of a hierarchy go from single codes to all codes at most")
    for below, size in pairwise(sizes):
        if size <= below or size % below:
            raise ValueError(f"blocks of {size} codes are not made of blocks of {below}")
