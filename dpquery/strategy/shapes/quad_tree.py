"""Blocks of the cells of two attributes at several sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import ClassVar, Self

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_COEFFICIENT_WORK, MAX_QUADTREE_LEVELS
from dpquery.operators.blocks import Block, Workload, product
from dpquery.operators.factors import ROW_CHUNK, Factor
from dpquery.operators.trees import equal_blocks
from dpquery.strategy.algebra.joint_covariances import POWER_COST
from dpquery.strategy.algebra.query_powers import QueryPairs, RowTerms, SymmetricForm, mixed_powers
from dpquery.strategy.algebra.subsets import distinct_or_all
from dpquery.strategy.strategy import Noise, PowerPair, Strategy, WeightedBlock, wide_attributes
from dpquery.untrusted.json_values import Json, JsonValue, integer, list_of

# ruff: noqa: D102 (a method of a base class or protocol is described there)


@dataclass(frozen=True)
class Level:
    """One level of a quad-tree: the sizes of its blocks on both attributes, and its weight."""

    sizes: tuple[int, int]
    weight: int


@dataclass(frozen=True, eq=False)
class QuadTreeStrategy(Strategy):
    """Blocks of the cells of two attributes, level by level from single cells to larger blocks.

    All blocks of a level have one size, a multiple of that below, so that the projectors C_l onto
    what is constant on the blocks of level l are nested, and with S_l the cells of a block
        A'A = sum_l weight_l^2 S_l C_l,  (A'A)^-1 = sum_l shares[l] C_l.

    Attributes:
        shape: sizes of the domain's attributes.
        pair: the two attributes; all others have one class or are summed over.
        levels: the levels, finest first.
    """

    kind: ClassVar[str] = "quad-tree"

    shape: tuple[int, ...]
    pair: tuple[int, int]
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        first, second = self.pair
        if not 0 <= first < second < len(self.shape):
            raise ValueError(f"not two attributes: {self.pair}")
        if not self.levels or self.levels[0].sizes != (1, 1):
            raise ValueError("the finest level of a quad-tree holds single cells")
        tops = (*(level.sizes for level in self.levels), (self.shape[first], self.shape[second]))
        for below, above in pairwise(tops):
            if any(size % part for part, size in zip(below, above, strict=True)):
                raise ValueError(f"blocks of {above} codes are not made of blocks of {below}")

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        measurements = []
        for level in self.levels:
            pairs = zip(self.pair, level.sizes, strict=True)
            blocks = {i: equal_blocks(self.shape[i], size) for i, size in pairs}
            measurements.append(WeightedBlock(level.weight, product(self.shape, blocks)))
        return tuple(measurements)

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """1 / kappa_l - 1 / kappa_{l-1}, kappa_l = sum_{k <= l} weight_k^2 S_k."""
        squares = [float(level.weight) ** 2 * math.prod(level.sizes) for level in self.levels]
        inverses = [1 / kappa for kappa in accumulate(squares)]
        return (inverses[0], *(above - below for below, above in pairwise(inverses)))

    @property
    def listings(self) -> dict[str, tuple[int, int]]:
        return {"levels": (len(self.levels), MAX_QUADTREE_LEVELS)}

    def supports(self, block: Block) -> bool:
        return set(wide_attributes(block)) <= set(self.pair)

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowTerms | None:
        """Return sum_l shares[l] prod_i q Q_il q', Q_il the mean over the blocks of level l.

        That is the variance; None for orders above 2.
        """
        if order > 2:
            return None
        if not self.supports(block):
            raise UnsupportedWorkloadError("the strategy sums over an attribute that is asked for")
        terms: RowTerms = []
        outside = math.prod(self.shape[i] for i in self.pair if i not in block.attributes)
        for share, level in zip(self.shares, self.levels, strict=True):
            sizes = dict(zip(self.pair, level.sizes, strict=True))
            forms = [
                _block_forms(factor, sizes.get(i, 1))
                for i, factor in zip(block.attributes, block.factors, strict=True)
            ]
            for coef, vectors in mixed_powers(block, forms, 2):
                terms.append((coef * share * outside, vectors))
        return terms

    def covariances(self, pairs: QueryPairs) -> Floats:
        if not (self.supports(pairs.left.block) and self.supports(pairs.right.block)):
            raise UnsupportedWorkloadError("the strategy sums over an attribute that is asked for")
        return pairs.over_products(self._covariances)

    def _covariances(self, pairs: QueryPairs) -> Floats:
        """Return sum_l shares[l] prod_i q Q_il r' of pairs of rows of products."""
        values = np.zeros(pairs.shape)
        for share, level in zip(self.shares, self.levels, strict=True):
            sizes = zip(self.pair, level.sizes, strict=True)
            values += share * pairs.product_of({i: _means_of_blocks(size) for i, size in sizes})
        return values

    def coefficient_sums(self, block: Block) -> PowerPair | None:
        """Return both sums from the coefficients on the blocks of every level.

        With means m_j of the query over the blocks of level j, its coefficients on level l are
            weight_l S_l (sum_{j <= l} shares[j] m_l + sum_{j > l} shares[j] m_j),
        S_l the cells of a block; means of a product of predicates are products of theirs.
        """
        places = [block.attributes.index(i) if i in block.attributes else None for i in self.pair]
        others = [k for k in range(len(block.factors)) if k not in places]  # of one class
        counts = [1 if k is None else block.row_shape[k] for k in places]
        lone = math.prod(block.row_shape[k] for k in others)
        cells, depth = math.prod(self.shape[i] for i in self.pair), len(self.levels)
        blocks = [cells // math.prod(level.sizes) for level in self.levels]
        terms = sum(count * (depth - number) for number, count in enumerate(blocks)) * len(
            block.summands
        )
        if lone * math.prod(counts) * (POWER_COST * sum(blocks) + terms) > MAX_COEFFICIENT_WORK:
            return None
        sums = np.zeros((2, lone, *counts))
        coefs = _lone_levels(block, others)
        for number, level in enumerate(self.levels):
            first, second = (_means(self, block, axis, k, number) for axis, k in enumerate(places))
            shares = [sum(self.shares[: number + 1]), *self.shares[number + 1 :]]
            scales = np.multiply.outer(coefs, shares) * level.weight * math.prod(level.sizes)
            width = max(1, ROW_CHUNK // (counts[1] * blocks[number]))
            for row in range(lone):
                weighted = first * scales[:, row].ravel()
                for start in range(0, counts[0], width):
                    part = slice(start, start + width)
                    C = np.tensordot(weighted[part], second, axes=(2, 2))
                    squares = C * C
                    fourths = squares * squares
                    sums[0, row, part] += fourths.sum(axis=(1, 3))
                    sums[1, row, part] += (fourths * squares).sum(axis=(1, 3))
        order = [*others, *(k for k in places if k is not None)]
        shape = [block.row_shape[k] for k in order]
        fourth, sixth = (total.reshape(shape).transpose(np.argsort(order)) for total in sums)
        return fourth, sixth

    def encode_parameters(self) -> dict[str, JsonValue]:
        levels: list[JsonValue] = [[*level.sizes, level.weight] for level in self.levels]
        return {"pair": list(self.pair), "levels": levels}

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        first, second = (integer(position, 0) for position in list_of(encoded["pair"]))
        levels = []
        for raw in list_of(encoded["levels"]):
            rows, columns, weight = (integer(number, 1) for number in list_of(raw))
            levels.append(Level((rows, columns), weight))
        return cls(name, noise, workload.shape_of_domain, (first, second), tuple(levels))


def _means_of_blocks(size: int) -> SymmetricForm:
    """Return q Q r' of pairs, Q the mean over blocks of a size."""

    def times(X: Floats) -> Floats:
        means = X.reshape(len(X) // size, size, -1).mean(axis=1)
        return np.asarray(np.repeat(means, size, axis=0))

    def of_each(queries: Factor) -> Floats:
        squares = _block_forms(queries, size)[2]
        return np.broadcast_to(squares, (queries.shape[0],))

    return SymmetricForm(times, of_each)


def _block_forms(factor: Factor, size: int) -> dict[int, Floats]:
    """Return 1 Q 1', 1 Q q' and q Q q' of every query, Q the mean over blocks of a size."""
    n = factor.shape[1]
    if size == 1:
        squares = factor.row_squares
    else:
        means = np.repeat(np.eye(n // size), size, axis=0) / math.sqrt(size)
        squares = factor.row_power_sums(means, 2)
    sums = factor.row_sums.astype(np.float64)
    forms = (np.full(1, float(n)), sums, squares.astype(np.float64))
    return {c: distinct_or_all(form) for c, form in enumerate(forms)}


def _lone_levels(block: Block, others: Sequence[int]) -> Floats:
    """Return coef times what the predicates on attributes of one class are: (summands, rows)."""
    rows = []
    for coef, sides in block.summands:
        row = np.full(1, coef)
        for k in others:
            a, b = sides[k]
            row = np.multiply.outer(row, a + b * block.factors[k].row_sums).ravel()
        rows.append(row)
    return np.array(rows)


def _means(
    strategy: QuadTreeStrategy, block: Block, axis: int, place: int | None, number: int
) -> Floats:
    """Return means of one attribute's predicates over the blocks of a level and of those above.

    Args:
        strategy: with its levels.
        block: whose predicates.
        axis: the attribute, as the first or second of the pair.
        place: of the attribute in the block; None where it is summed over.
        number: of the level, on whose blocks all means are written out.

    Returns:
        (predicates, blocks of the level, summands of the block times levels).
    """
    n, size = strategy.shape[strategy.pair[axis]], strategy.levels[number].sizes[axis]
    tables = []
    for _, sides in block.summands:
        for level in strategy.levels[number:]:
            wide = level.sizes[axis]
            if place is None:
                tables.append(np.ones((1, n // size)))
                continue
            (a, b), factor = sides[place], block.factors[place]
            means = factor.matmat(np.repeat(np.eye(n // wide), wide, axis=0)) / wide
            tables.append(a + b * np.repeat(means, wide // size, axis=1))
    return np.stack(tables, axis=-1)
