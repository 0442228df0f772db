"""p-Identities: a diagonal above a few rows, written out or, for long attributes, within blocks."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.factors import ROW_CHUNK, Factor
from dpquery.operators.gram import Matrix, array_of, restricted, times
from dpquery.operators.ranges import OrderedInverse


class PIdentity(Factor):
    """A diagonal on top of a few dense rows: [diag(d); B], the shape of a p-Identity strategy.

    A p-Identity ([HDMM18] Def. 9) is [I; Theta] D with D = diag(1 + 1'Theta)^-1, so d = diag(D) and
    B = Theta D. Products with d and B cost O(p n) a column, the inverse Gram O(p n^2).
    """

    held = ("diagonal", "rows")

    def __init__(self, diagonal: Numbers, rows: Numbers) -> None:
        if rows.shape[1] != diagonal.shape[0]:
            raise ValueError(f"{rows.shape[1]} columns below a diagonal of {diagonal.shape[0]}")
        self.diagonal, self.rows = np.asarray(diagonal), np.ascontiguousarray(rows)
        self.dtype = np.result_type(self.diagonal, self.rows)
        self.shape = (len(diagonal) + len(rows), len(diagonal))

    def matmat(self, X: Numbers) -> Numbers:
        return np.concatenate([self.diagonal[:, None] * X, self.rows @ X])

    def rmatmat(self, Y: Numbers) -> Numbers:
        n = self.shape[1]
        return np.asarray(self.diagonal[:, None] * Y[:n] + self.rows.T @ Y[n:])

    def gram(self) -> Floats:
        B = self.rows.astype(np.float64)
        return np.diag(self.diagonal.astype(np.float64) ** 2) + B.T @ B

    @cached_property
    def max_abs(self) -> int:
        peak = max(np.abs(self.diagonal).max(), np.abs(self.rows).max(initial=0))
        return int(np.ceil(peak))

    def column_norms(self, power: int) -> Numbers:
        below = (np.abs(self.rows) ** power).sum(axis=0)
        return np.asarray(np.abs(self.diagonal) ** power + below)

    def column_counts(self) -> Ints:
        return np.asarray((self.diagonal != 0) + (self.rows != 0).sum(axis=0))

    def row_powers(self, power: int) -> Floats:
        if power == 0:
            return super().row_powers(power)
        above = self.diagonal.astype(np.float64) ** power
        return np.concatenate([above, (self.rows.astype(np.float64) ** power).sum(axis=1)])

    @cached_property
    def row_squares(self) -> Numbers:
        return np.concatenate([self.diagonal**2, (self.rows**2).sum(axis=1)])


class BlockPIdentity(Factor):
    """[diag(d); the inner rows of every block; the outer rows]; the last block may be cut off.

    A p-Identity of n codes needs some n / 16 rows, most of which look at a few neighbours. Here
    `inner` rows stay within one block of `size` codes that follow one another, `outer` ones are
    constant on every block: O(n) numbers where the rows written out are O(n^2). The inverse of its
    Gram is of the same kind ([MATH] 2).
    """

    held = ("size", "diagonal", "inner", "outer")

    def __init__(self, diagonal: Numbers, inner: Numbers, outer: Numbers, size: int) -> None:
        """Hold its parts. diagonal: (n,); inner: (p, n); outer: (q, blocks); size: of a block."""
        n = len(diagonal)
        self.size, self.starts = size, np.arange(0, n, max(1, size))
        if size < 1 or inner.shape[1] != n or outer.shape[1] != len(self.starts):
            raise ValueError(
                f"rows of {inner.shape[1]} codes and {outer.shape[1]} blocks of {size} "
                f"below a diagonal of {n}"
            )
        self.diagonal = np.asarray(diagonal)
        self.inner, self.outer = np.ascontiguousarray(inner), np.ascontiguousarray(outer)
        self.dtype = np.result_type(self.diagonal, self.inner, self.outer)
        self.shape = (n + len(inner) * len(self.starts) + len(outer), n)

    def matmat(self, X: Numbers) -> Numbers:
        sums = [np.add.reduceat(row[:, None] * X, self.starts, axis=0) for row in self.inner]
        over = self.outer @ np.add.reduceat(X, self.starts, axis=0)
        return np.concatenate([self.diagonal[:, None] * X, *sums, over])

    def rmatmat(self, Y: Numbers) -> Numbers:
        n, blocks = self.shape[1], len(self.starts)
        above, *within, over = np.split(Y, [n + r * blocks for r in range(len(self.inner) + 1)])
        total = self.diagonal[:, None] * above + self._spread(self.outer.T @ over)
        for row, answers in zip(self.inner, within, strict=True):
            total = total + row[:, None] * self._spread(answers)
        return np.asarray(total)

    def column_norms(self, power: int) -> Numbers:
        below = (np.abs(self.inner) ** power).sum(axis=0)
        over = (np.abs(self.outer) ** power).sum(axis=0)
        return np.asarray(np.abs(self.diagonal) ** power + below + self._spread(over))

    def column_counts(self) -> Ints:
        over = self._spread((self.outer != 0).sum(axis=0))
        return np.asarray((self.diagonal != 0) + (self.inner != 0).sum(axis=0) + over)

    @cached_property
    def max_abs(self) -> int:
        parts = (self.diagonal, self.inner, self.outer)
        return int(np.ceil(max(np.abs(part).max(initial=0) for part in parts)))

    def row_powers(self, power: int) -> Floats:
        if power == 0:
            return super().row_powers(power)
        return self._sums_of(*(p.astype(np.float64) ** power for p in self._parts))

    @cached_property
    def row_squares(self) -> Numbers:
        return self._sums_of(*(part**2 for part in self._parts))

    @property
    def _parts(self) -> tuple[Numbers, Numbers, Numbers]:
        return self.diagonal, self.inner, self.outer

    def _sums_of(self, diagonal: Numbers, inner: Numbers, outer: Numbers) -> Numbers:
        codes = np.diff(np.append(self.starts, self.shape[1]))
        sums = [np.add.reduceat(row, self.starts) for row in inner]
        return np.concatenate([diagonal, *sums, outer @ codes])

    def _spread(self, values: Numbers) -> Numbers:
        """Return for every code what stands at its block."""
        return np.repeat(values, self.size, axis=0)[: self.shape[1]]

    @cached_property
    def inverse(self) -> "BlockInverse":
        """The inverse of its Gram. O((p^2 + q) n)."""
        return BlockInverse(self)

    def recover(self, answers: Floats) -> Floats:
        """Return the least squares counts from answers to all rows. answers: (m, k) -> (n, k).

        First every block is solved by itself; then the outer rows correct what they see of it:
            x + M S'C' (I + C diag(mass) C')^-1 (y - C S x),
        M the inverse within blocks and S the sums of blocks. Counts that fit are never moved.
        """
        n, blocks, p = self.shape[1], len(self.starts), len(self.inner)
        above, below, over = np.split(answers, [n, n + p * blocks])
        counts = np.empty_like(above, dtype=np.float64)
        below = below.reshape(p, blocks, -1)
        for b, codes in enumerate(self.spans()):
            d = self.diagonal[codes].astype(np.float64)
            C = self.inner[:, codes] / d
            root = cho_factor(np.eye(p) + C @ C.T)
            w = above[codes] + C.T @ cho_solve(root, below[:, b] - C @ above[codes])
            counts[codes] = w / d[:, None]
        inverse, outer = self.inverse, self.outer.astype(np.float64)
        missing = over - outer @ np.add.reduceat(counts, self.starts, axis=0)
        gain = inverse.outer.T @ solve_triangular(inverse.outer_root, missing, lower=True)
        return np.asarray(counts + inverse.shares[:, None] * self._spread(gain))

    def spans(self) -> Iterator[slice]:
        """Yield the codes of every block."""
        for start in self.starts.tolist():
            yield slice(start, min(start + self.size, self.shape[1]))


class BlockInverse(OrderedInverse):
    """diag(squares) - K'K within every block, less H'H with H_rj = outer[r, block of j] shares[j].

    Attributes:
        squares: (n,).
        inner: K, (p, n).
        outer: (q, blocks).
        shares: (n,) row sums of the inverse within blocks.
        outer_root: (q, q) root of I + C diag(mass) C'.
    """

    def __init__(self, factor: BlockPIdentity) -> None:
        self.n, self.size, self.starts = factor.shape[1], factor.size, factor.starts
        self.spans, p = list(factor.spans()), len(factor.inner)
        d, C = factor.diagonal.astype(np.float64), factor.outer.astype(np.float64)
        self.squares, self.inner = d**-2.0, factor.inner / d
        for codes in self.spans:
            rows = self.inner[:, codes]
            root = np.linalg.cholesky(np.eye(p) + rows @ rows.T)
            self.inner[:, codes] = solve_triangular(root, rows, lower=True) / d[codes]
        self.inner_sums = np.add.reduceat(self.inner, self.starts, axis=1)
        self.shares = self.squares - np.sum(self.inner * self._spread(self.inner_sums), axis=0)
        self.masses = np.add.reduceat(self.shares, self.starts)
        self.outer_root = np.linalg.cholesky(np.eye(len(C)) + (C * self.masses) @ C.T)
        self.outer = np.asarray(solve_triangular(self.outer_root, C, lower=True))

    def matmat(self, X: Numbers) -> Floats:
        """Return its product with X: (n, k). O((p + q) n k)."""
        total = self.squares[:, None] * X
        for row in self.inner:
            sums = np.add.reduceat(row[:, None] * X, self.starts, axis=0)
            total -= row[:, None] * np.repeat(sums, self.size, axis=0)[: self.n]
        over = self.outer @ np.add.reduceat(self.shares[:, None] * X, self.starts, axis=0)
        spread = np.repeat(self.outer.T @ over, self.size, axis=0)[: self.n]
        return np.asarray(total - self.shares[:, None] * spread)

    def trace_with(self, V: Matrix) -> float:
        """Return tr(M V). O(size n) beside the products of V with the outer rows."""
        total = 0.0
        for codes in self.spans:
            local = array_of(restricted(V, np.arange(codes.start, codes.stop)))
            K = self.inner[:, codes]
            total += float(self.squares[codes] @ np.diagonal(local) - np.sum((K @ local) * K))
        rows = self._spread(self.outer) * self.shares
        return total - float(np.sum(rows.T * times(V, rows.T)))

    def _of_rows(self, rows: "sp.csr_array") -> Floats:
        step = max(1, ROW_CHUNK // self.n)
        chunks = [rows[k : k + step] for k in range(0, rows.shape[0], step)]
        return np.concatenate([self._of_dense(chunk.toarray().astype(float)) for chunk in chunks])

    def _of_dense(self, Q: Floats) -> Floats:
        """Return diag(Q M Q'). Q: (m, n)."""
        total = Q**2 @ self.squares
        for row in self.inner:
            total -= (np.add.reduceat(row * Q, self.starts, axis=1) ** 2).sum(axis=1)
        over = np.add.reduceat(self.shares * Q, self.starts, axis=1) @ self.outer.T
        return np.asarray(total - (over**2).sum(axis=1))

    def _of_some_ranges(self, first: Ints, last: Ints) -> Floats:
        """Add up the blocks that hold the two ends of a range, and those between in one step."""
        left, right = first // self.size, last // self.size
        between = left + 1, np.maximum(left + 1, right)
        ends = np.minimum(last + 1, np.minimum((left + 1) * self.size, self.n))
        tails = np.where(left == right, last + 1, right * self.size)  # nothing where it is one
        squares, inner, shares = self._within
        whole, outer = self._between
        total = squares[last + 1] - squares[first] - (whole[between[1]] - whole[between[0]])
        over = outer[:, between[1]] - outer[:, between[0]]
        for block, start, stop in ((left, first, ends), (right, tails, last + 1)):
            total -= ((inner[:, stop] - inner[:, start]) ** 2).sum(axis=0)
            over += self.outer[:, block] * (shares[stop] - shares[start])
        return np.asarray(total - (over**2).sum(axis=0))

    @cached_property
    def _within(self) -> tuple[Floats, Floats, Floats]:
        """Sums of squares, inner rows and shares up to every code."""
        return _up_to(self.squares), _up_to(self.inner), _up_to(self.shares)

    @cached_property
    def _between(self) -> tuple[Floats, Floats]:
        """Sums over whole blocks up to every block, of what inner and outer rows take."""
        return _up_to((self.inner_sums**2).sum(axis=0)), _up_to(self.outer * self.masses)

    def _spread(self, values: Floats) -> Floats:
        return np.repeat(values, self.size, axis=-1)[..., : self.n]


def _up_to(values: Floats) -> Floats:
    """Return the sums of the entries before every place, along the last axis."""
    zeros = np.zeros((*values.shape[:-1], 1))
    return np.concatenate([zeros, np.cumsum(values, axis=-1)], axis=-1)
