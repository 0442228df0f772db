r"""Sums of fourth and sixth powers of every answer's coefficients: what its law depends on.

A query is answered by c'y. Where powers of c have no closed form (`row_errors.power_sums`) the
coefficients are written out, for distinct queries and some of them at a time, while that takes few
multiplications.
"""

import math
from collections.abc import Sequence

import numpy as np

from dpquery.operators.blocks import Block
from dpquery.operators.factors import ROW_CHUNK, Array
from dpquery.operators.thresholds import node_weights, threshold_nodes
from dpquery.strategy.algebra.joint_coefficients import (
    POWER_COST,
    joint_power_sums,
    joint_power_work,
)
from dpquery.strategy.algebra.subsets import outer_products, subsets_of
from dpquery.strategy.errors.query_variances import RowSums, power_sums
from dpquery.strategy.shapes.marginals import MarginalsStrategy, beyond_parts, inverse_eigenvalue
from dpquery.strategy.shapes.quad_tree import QuadTreeStrategy
from dpquery.strategy.shapes.splits import Patterns
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.strategy.shapes.union import UnionStrategy

COEFFICIENT_LIMIT = 1 << 34  # multiplications for a block: about a minute
ORDERS = (4, 6)
PowerPair = tuple[RowSums, RowSums]


def fourth_and_sixth(strategy: Strategy, block: Block, *, position: int | None) -> PowerPair | None:
    """Return sum_r c_r^4 and sum_r c_r^6 of every query of a block; None where that is too much.

    Args:
        strategy: an integer strategy that supports the block.
        block: a block.
        position: its place in the workload; None for a question that the workload does not ask.
    """
    fourth = power_sums(strategy, block, position=position, order=4)
    if fourth is not None:
        sixth = power_sums(strategy, block, position=position, order=6)
        return None if sixth is None else (fourth, sixth)
    match strategy:
        case MarginalsStrategy():
            return _marginals(strategy, block)
        case QuadTreeStrategy():
            return _quad_tree(strategy, block)
        case UnionStrategy():
            joint = strategy.joint_for(block)
            if joint is None or joint_power_work(joint, block) > COEFFICIENT_LIMIT:
                return None
            return joint_power_sums(joint, block)
        case _:
            return None


def _marginals(strategy: MarginalsStrategy, block: Block) -> PowerPair | None:
    r"""Return both sums from coefficients on the measured sets that meet the block's attributes.

    On the answers of a measured subset b the coefficients of a query over S are, with t = b & S,
        theta_b kron_{i in b \ S} A_i z_i
            sum_{a <= t} (D_a / lambda_a) kron_{i in a} A_i H_i q_i kron_{i in t \ a} A_i z_i,
    D_a the difference of the query in a at the levels of its other predicates. What is outside S is
    a factor of its own; equal predicates and equal rows are written out once.
    """
    splits = [strategy.splits[i] for i in block.attributes]
    patterns = [own.patterns(factor) for own, factor in zip(splits, block.factors, strict=True)]
    counts = [len(own.levels) for own in patterns]
    wide = [k for k, i in enumerate(block.attributes) if strategy.shape[i] > 1]
    rows = math.prod(1 + len(patterns[k].reading) for k in wide)
    if POWER_COST * math.prod(counts) * rows > COEFFICIENT_LIMIT:
        return None
    S = tuple(block.attributes[k] for k in wide)
    beyond = [beyond_parts(strategy, S, order) for order in ORDERS]
    sums = np.zeros((len(ORDERS), math.prod(counts)))
    width = max(1, ROW_CHUNK // rows)
    for start in range(0, sums.shape[1], width):
        part = slice(start, min(start + width, sums.shape[1]))
        chosen = np.unravel_index(np.arange(part.start, part.stop), counts) if counts else ()
        D = _differences(block, [own.levels[j] for own, j in zip(patterns, chosen, strict=True)])
        for t in {t: None for own in beyond for t in own}:
            places = [k for k, i in enumerate(block.attributes) if i in t]
            C, numbers = _on_part(strategy, t, D, places, patterns, chosen)
            squares = C * C
            fourths = squares * squares
            for total, own, powers in zip(sums, beyond, (fourths, fourths * squares), strict=True):
                total[part] += own.get(t, 0.0) * np.einsum("jr,jr->j", powers, numbers)
    kinds = [own.kinds if len(own.levels) > 1 else np.zeros(1, dtype=np.int64) for own in patterns]
    fourth, sixth = (total.reshape(counts)[np.ix_(*kinds)] for total in sums)
    return fourth, sixth  # axes of length 1 where all predicates are alike


def _differences(block: Block, levels: Sequence[Array]) -> Array:
    """Return D_a of some queries, given their levels: (queries, 2, ..., 2), an axis a predicate."""
    if not levels:
        return np.ones(1)
    queries, k = len(levels[0]), sum(block.counted)
    if block.is_product:
        terms = [(1.0, [np.stack([p, np.ones(queries)], axis=1) for p in levels])]
    else:
        weights = node_weights((np.arange(k + 1) >= block.at_least).astype(np.float64))
        terms = []
        for alpha, x in zip(weights.tolist(), threshold_nodes(k).tolist(), strict=True):
            pairs = [
                np.stack([1 + (x - 1) * p, np.full(queries, x - 1)], axis=1)
                if counted
                else np.stack([p, np.ones(queries)], axis=1)
                for p, counted in zip(levels, block.counted, strict=True)
            ]
            terms.append((alpha, pairs))
    D = sum(outer_products(pairs, np.full(queries, alpha)) for alpha, pairs in terms)
    return np.asarray(D).reshape((queries,) + (2,) * len(levels))


def _on_part(
    strategy: MarginalsStrategy,
    t: tuple[int, ...],
    D: Array,
    places: Sequence[int],
    patterns: Sequence[Patterns],
    chosen: Sequence[Array],
) -> tuple[Array, Array]:
    """Return the coefficients on distinct rows over t, and how many rows each is: (queries, r)."""
    inside = tuple(slice(None) if k in places else 0 for k in range(len(patterns)))
    shares = np.zeros((2,) * len(t))
    for a in subsets_of(t):
        shares[tuple(int(i in a) for i in t)] = inverse_eigenvalue(strategy, a)
    C = D[(slice(None), *inside)] * shares
    queries = len(C)
    C, numbers = C.reshape(queries, -1), np.ones((1, 1))
    for k in places:
        own = patterns[k]
        pairs = C.reshape(queries, 2, -1)
        remainders = own.remainders[chosen[k]]
        C = pairs[:, 0, :, None] * own.reading + pairs[:, 1, :, None] * remainders[:, None, :]
        C = C.reshape(queries, -1)
        each = own.numbers[chosen[k]] if len(own.numbers) > 1 else own.numbers
        numbers = (numbers[:, :, None] * each[:, None, :]).reshape(max(len(numbers), len(each)), -1)
    return C, np.broadcast_to(numbers, C.shape)


def _quad_tree(strategy: QuadTreeStrategy, block: Block) -> PowerPair | None:
    """Return both sums from the coefficients on the blocks of every level.

    With means m_j of the query over the blocks of level j, its coefficients on level l are
        weight_l S_l (sum_{j <= l} shares[j] m_l + sum_{j > l} shares[j] m_j),
    S_l the cells of a block; means of a product of predicates are products of theirs.
    """
    places = [block.attributes.index(i) if i in block.attributes else None for i in strategy.pair]
    others = [k for k in range(len(block.factors)) if k not in places]  # of one class
    counts = [1 if k is None else block.row_shape[k] for k in places]
    lone = math.prod(block.row_shape[k] for k in others)
    cells, depth = math.prod(strategy.shape[i] for i in strategy.pair), len(strategy.levels)
    blocks = [cells // math.prod(level.sizes) for level in strategy.levels]
    terms = sum(own * (depth - number) for number, own in enumerate(blocks)) * len(block.summands)
    if lone * math.prod(counts) * (POWER_COST * sum(blocks) + terms) > COEFFICIENT_LIMIT:
        return None
    sums = np.zeros((len(ORDERS), lone, *counts))
    coefs = _lone_levels(block, others)
    for number, level in enumerate(strategy.levels):
        first, second = (_means(strategy, block, axis, k, number) for axis, k in enumerate(places))
        shares = [sum(strategy.shares[: number + 1]), *strategy.shares[number + 1 :]]
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
    fourth, sixth = (own.reshape(shape).transpose(np.argsort(order)) for own in sums)
    return fourth, sixth


def _lone_levels(block: Block, others: Sequence[int]) -> Array:
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
) -> Array:
    """Return means of one attribute's predicates over the blocks of a level and of those above.

    Args:
        strategy: with its levels.
        block: what is asked.
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
