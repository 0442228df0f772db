"""Pairs of queries, and what bilinear forms of one attribute make of their predicates.

The covariance of two answers is q C r' with C that of the cells. Where C is a sum of Kronecker
products of symmetric matrices, it is a sum of products over attributes of q_i M_i r_i', and each is
worked out for distinct predicates alone: no matrix of the size of an attribute squared is formed
([MATH] 24).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block, product
from dpquery.operators.factors import ROW_CHUNK, Dense, Factor, total

MAX_CROSSED = 1 << 24  # pairs of distinct queries whose values are held at once
Contract = Callable[[Floats, Floats], Floats]
"""Inner products of rows: each with each, or row by row."""


@dataclass(frozen=True, eq=False)
class QueryRows:
    """Some rows of a block.

    Attributes:
        block: of queries.
        places: of the rows in the block, in C order, in an array of any shape.
        position: of the block in the workload that its strategy was made for; None for one that
            the workload does not hold.
    """

    block: Block
    places: Ints
    position: int | None = None

    @cached_property
    def predicates(self) -> dict[int, tuple[Factor, Ints]]:
        """For each attribute of the block its predicates, and which of them every row has."""
        if not self.block.attributes:
            return {}
        chosen = np.unravel_index(self.places, self.block.row_shape)
        named = zip(self.block.attributes, self.block.factors, chosen, strict=True)
        return {i: (factor, np.asarray(rows)) for i, factor, rows in named}

    def products(self) -> Iterator[tuple[float, "QueryRows"]]:
        """Yield the rows as a sum of Kronecker products, each with its coefficient."""
        if self.block.is_product:
            yield 1.0, self
            return
        for coef, sides in self.block.summands:
            named = zip(self.block.attributes, self.block.factors, sides, strict=True)
            factors: dict[int, Factor] = {i: Dense(a + b * F.dense()) for i, F, (a, b) in named}
            whole = product(self.block.shape_of_domain, factors)
            yield coef, QueryRows(whole, self.places)


@dataclass(frozen=True, eq=False)
class QueryPairs:
    """Pairs of queries: their places are broadcast against each other."""

    left: QueryRows
    right: QueryRows

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of a figure for every pair."""
        return np.broadcast_shapes(self.left.places.shape, self.right.places.shape)

    def sides(self, i: int) -> tuple[tuple[Factor, Ints], tuple[Factor, Ints]]:
        """Return the predicates on an attribute on both sides; of a block without it the total."""
        every = (total(self.left.block.shape_of_domain[i]), np.zeros((), dtype=np.int64))
        return self.left.predicates.get(i, every), self.right.predicates.get(i, every)

    def over_products(self, covariances: Callable[["QueryPairs"], Floats]) -> Floats:
        """Return the covariances of all pairs, given those of rows of Kronecker products."""
        values = np.zeros(self.shape)
        for before, left in self.left.products():
            for after, right in self.right.products():
                values += before * after * covariances(replace(self, left=left, right=right))
        return values

    def product_of(self, forms: Mapping[int, "SymmetricForm"]) -> Floats:
        """Return the product over attributes of q M r', each with its own form.

        An attribute of one class may have none: predicates on it are what they add.
        """
        values: Floats = np.ones(())
        for i in sorted({*forms, *self.left.block.attributes, *self.right.block.attributes}):
            sides = self.sides(i)
            values = values * (forms[i].of_pairs(*sides) if i in forms else sums_of_pairs(*sides))
        return np.broadcast_to(values, self.shape)

    def crossed(self, width: int, values: Callable[[Ints, Ints, Contract], Floats]) -> Floats:
        """Return a figure of every pair, worked out for distinct queries or for some at a time.

        Args:
            width: numbers that are written out for a query.
            values: of the places of left and of right queries and how rows of theirs are
                contracted: each with each, (l, r), or as pairs, (c,).
        """
        lefts, left_of = np.unique(self.left.places, return_inverse=True)
        rights, right_of = np.unique(self.right.places, return_inverse=True)
        few = (len(lefts) + len(rights)) * width <= ROW_CHUNK
        if few and len(lefts) * len(rights) <= MAX_CROSSED:
            table = values(lefts, rights, lambda a, b: a @ b.T)
            left_of = left_of.reshape(self.left.places.shape)
            right_of = right_of.reshape(self.right.places.shape)
            return np.broadcast_to(table[left_of, right_of], self.shape)
        places = np.broadcast_arrays(self.left.places, self.right.places)
        left, right = (np.ravel(side) for side in places)
        out, step = np.empty(len(left)), max(1, ROW_CHUNK // (2 * width))
        for start in range(0, len(left), step):
            part = slice(start, start + step)
            out[part] = values(left[part], right[part], _row_by_row)
        return out.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class SymmetricForm:
    """q M r' for the predicates of one attribute.

    Attributes:
        times: M X for X of shape (n, k).
        quadratic: q M q' of every row of a factor.
    """

    times: Callable[[Floats], Floats]
    quadratic: Callable[[Factor], Floats]

    def of_pairs(self, left: tuple[Factor, Ints], right: tuple[Factor, Ints]) -> Floats:
        """Return q M r' of pairs of rows of two factors, whose numbers are broadcast."""
        (F, rows), (G, others) = left, right
        if F.key == G.key and (rows is others or np.array_equal(rows, others)):
            return np.asarray(self.quadratic(F)[rows], dtype=np.float64)
        lefts, left_of = np.unique(rows, return_inverse=True)
        rights, right_of = np.unique(others, return_inverse=True)
        left_of, right_of = left_of.reshape(rows.shape), right_of.reshape(others.shape)
        if len(lefts) < len(rights):
            return self._crossed(G, rights, F, lefts, right_of, left_of)
        return self._crossed(F, lefts, G, rights, left_of, right_of)

    def _crossed(
        self, F: Factor, rows: Ints, G: Factor, others: Ints, row_of: Ints, other_of: Ints
    ) -> Floats:
        """Work out F M G' for the fewer rows of G; for the pairs that are there where it is large.

        Args:
            F: predicates.
            rows: of F that occur.
            G: predicates, of which no more occur.
            others: those of G.
            row_of: for each pair the place in `rows`.
            other_of: for each pair the place in `others`.
        """
        n = F.shape[1]
        if len(rows) * len(others) <= MAX_CROSSED:
            table = np.empty((len(rows), len(others)))
            step = max(1, ROW_CHUNK // max(n, F.shape[0], G.shape[0]))
            for start in range(0, len(others), step):
                some = others[start : start + step]
                table[:, start : start + step] = F.matmat(self.times(rows_of(G, some)))[rows]
            return np.asarray(table[row_of, other_of])
        shape = np.broadcast_shapes(row_of.shape, other_of.shape)
        pairs = np.ravel(row_of * len(others) + other_of)
        distinct, pair_of = np.unique(pairs, return_inverse=True)
        values = np.empty(len(distinct))
        step = max(1, ROW_CHUNK // max(n, F.shape[0], G.shape[0]))
        for start in range(0, len(distinct), step):
            row, other = np.divmod(distinct[start : start + step], len(others))
            seen = self.times(rows_of(G, others[other]))
            values[start : start + step] = (rows_of(F, rows[row]) * seen).sum(axis=0)
        return values[pair_of].reshape(shape)


def rows_of(factor: Factor, rows: Ints) -> Floats:
    """Return some rows of a factor as columns: (n, k)."""
    units = np.zeros((factor.shape[0], len(rows)), dtype=np.int64)
    units[rows, np.arange(len(rows))] = 1
    return np.asarray(factor.rmatmat(units), dtype=np.float64)


def sums_of_pairs(left: tuple[Factor, Ints], right: tuple[Factor, Ints]) -> Floats:
    """Return the product of the row sums of pairs: what predicates on one class are."""
    (F, rows), (G, others) = left, right
    return np.asarray(F.row_sums[rows] * G.row_sums[others], dtype=np.float64)


def _row_by_row(left: Floats, right: Floats) -> Floats:
    return np.asarray(np.einsum("cj,cj->c", left, right))
