"""The noise of every single answer, in closed form and without data.

A query q is answered by c'y with c = A (A'A)^-1 q. With independent noise of one scale on y its
variance is the sum of squares of c; under Laplace noise its law goes with sums of higher powers.
For Kronecker strategies all are sums of outer products of per-attribute vectors, since powers of
a Kronecker product are Kronecker products of powers ([MATH] 9).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import assert_never

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Array, Factor, Identity
from dpquery.operators.inverses import inverse_times, quadratic
from dpquery.strategy.algebra.marginal_algebra import RowTerms, distinct_or_all
from dpquery.strategy.algebra.subsets import Subset, subsets_of
from dpquery.strategy.algebra.threshold_powers import SplitPowers, counts, mixed_powers
from dpquery.strategy.shapes.cores import Core
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, even_powers, inverse_eigenvalue
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.quad_tree import QuadTreeStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.row_space import BlockRows, Combination, combination
from dpquery.strategy.shapes.splits import Split
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.strategy.shapes.union import UnionStrategy

FOURTH_LIMIT = 1 << 34  # queries times measured rows of one attribute
RowSums = RowTerms | Array
"""A figure for every row of a block: outer products, or the tensor that they would add up to."""


def power_sums(
    strategy: Strategy, block: Block, *, position: int | None, order: int
) -> RowSums | None:
    """Return sum_r c_r^order for every query of a block.

    Args:
        strategy: an integer strategy that supports the block.
        block: a block.
        position: its place in the workload; None for a question that the workload does not ask.
        order: 2 for the variance under unit noise on every measured row; 4 and 6 for its law.

    Returns:
        A sum of outer products, a tensor, or None where no closed form is at hand: orders above 2
        of a signed or very wide block under marginals, of parts that are solved together, of a
        quad-tree, and of an attribute so large that every query would be looked at on every
        measured row.
    """
    match strategy:
        case ProductStrategy():
            if _is_large(strategy, block, order):
                return None
            return _product_power_sums(strategy, block, order)
        case MarginalsStrategy():
            if order > 2:
                return even_powers(strategy, block, order)
            share = partial(inverse_eigenvalue, strategy)
            rests = [own.variances for own in strategy.splits]
            return _split_terms(strategy.splits, rests, share, block, order=2)
        case ResidualStrategy(cores=cores):
            return _split_terms(
                cores,
                [None if own is None else _rest(own, order) for own in cores],
                lambda b: strategy.variance_of(b) ** (order / 2),
                block,
                order=order,
            )
        case UnionStrategy():
            joint = strategy.joint_for(block)
            if joint is not None:
                return joint.variances(block) if order == 2 else None
            part = serving_part(strategy, block, position)
            if _is_large(strategy.parts[part], block, order):
                return None
            terms = _product_power_sums(strategy.parts[part], block, order)
            return [(coef / strategy.weights[part] ** order, vs) for coef, vs in terms]
        case QuadTreeStrategy():
            return _quad_tree_variance(strategy, block) if order == 2 else None
        case DirectStrategy():
            if position is None:
                return _combined(strategy, block).power_sums(block, order)
            unit = np.ones(1)
            return [(strategy.weights[position] ** -float(order), [unit] * len(block.factors))]
    assert_never(strategy)


def serving_part(strategy: UnionStrategy, block: Block, position: int | None) -> int:
    """Return the part that answers a block alone; of those that can, the one with least noise."""
    if position is not None:
        return strategy.part_of(position)
    totals = {
        k: total_of(_product_power_sums(part, block, 2), block) / float(weight) ** 2
        for k, (part, weight) in enumerate(zip(strategy.parts, strategy.weights, strict=True))
        if part.supports(block)
    }
    if not totals:
        raise UnsupportedWorkloadError("no part measures all attributes that are asked for")
    return min(totals, key=lambda k: totals[k])


def _combined(strategy: DirectStrategy, block: Block) -> BlockRows | Combination:
    found = combination(strategy, block)
    if found is None:
        raise UnsupportedWorkloadError("no measured question has the rows that are asked for")
    return found


def variances(strategy: Strategy, block: Block, *, position: int | None) -> RowSums:
    """Return the variance of every query of a block under unit noise on every measured row."""
    sums = power_sums(strategy, block, position=position, order=2)
    if sums is None:
        raise ValueError("every strategy has closed-form variances")
    return sums


def total_of(terms: RowSums, block: Block) -> float:
    """Return the sum over all rows of the block."""
    if isinstance(terms, np.ndarray):
        return float(terms.sum()) * (block.queries // terms.size)  # axes of length 1 stand for all
    total = 0.0
    for coef, vectors in terms:
        sums = [
            float(v.sum()) * (m // len(v)) for v, m in zip(vectors, block.row_shape, strict=True)
        ]
        total += coef * math.prod(sums)
    return total


def expand(terms: RowSums, row_shape: Sequence[int] | None = None) -> Array:
    """Return the outer products as a tensor; without a row shape axes of length 1 stay so."""
    total: Array = np.zeros(())
    if isinstance(terms, np.ndarray):
        total = terms
    else:
        for coef, vectors in terms:
            outer = np.array(coef)
            for vector in vectors:
                outer = np.multiply.outer(outer, vector)
            total = total + outer
    return total if row_shape is None else np.broadcast_to(total, tuple(row_shape))


def _split_terms(
    splits: Sequence[Split | None],
    rests: Sequence[Callable[[Factor], Array] | None],
    share: Callable[[Subset], float],
    block: Block,
    *,
    order: int,
) -> RowTerms:
    """Return sum_{b <= S} share(b) prod_{i in b} rest_i prod_{i not in b} (q z)^order."""
    terms: RowTerms = []
    for b, own in split_terms(splits, rests, block, order=order):
        if own:
            scale = share(b)
            terms += [(coef * scale, vectors) for coef, vectors in own]
    return terms


def split_terms(
    splits: Sequence[Split | None],
    rests: Sequence[Callable[[Factor], Array] | None],
    block: Block,
    *,
    order: int,
) -> Iterator[tuple[Subset, RowTerms]]:
    """Yield every b <= S with prod_{i in b} rest_i prod_{i not in b} (q z)^order of every query.

    The rest is q H q', or the sum of higher powers of q R. Where an r-of-k block takes all ones
    instead of the predicate, q z is 1 and the rest is 0.
    """
    levels, inside = [], {}
    for i, factor in zip(block.attributes, block.factors, strict=True):
        own, rest = splits[i], rests[i]
        if own is None or rest is None or factor.shape[1] == 1:
            levels.append(distinct_or_all(factor.row_sums.astype(np.float64)))
        else:
            levels.append(distinct_or_all(own.levels(factor)))
            inside[i] = distinct_or_all(rest(factor))
    powers = SplitPowers(block, levels, inside, order=order)
    for b in subsets_of(tuple(inside)):
        yield b, powers.terms(b)


def _rest(core: Core, order: int) -> Callable[[Factor], Array]:
    return core.variances if order == 2 else partial(core.power_sums, order=order)


def _quad_tree_variance(strategy: QuadTreeStrategy, block: Block) -> RowTerms:
    """Return sum_l shares[l] prod_i q Q_il q', Q_il the mean over the blocks of level l."""
    if any(strategy.shape[i] > 1 and i not in strategy.pair for i in block.attributes):
        raise UnsupportedWorkloadError("the strategy sums over an attribute that is asked for")
    terms: RowTerms = []
    for share, level in zip(strategy.shares, strategy.levels, strict=True):
        sizes = dict(zip(strategy.pair, level.sizes, strict=True))
        outside = math.prod(strategy.shape[i] for i in strategy.pair if i not in block.attributes)
        forms = [
            _block_forms(factor, sizes.get(i, 1))
            for i, factor in zip(block.attributes, block.factors, strict=True)
        ]
        for coef, vectors in mixed_powers(block, forms, 2):
            terms.append((coef * share * outside, vectors))
    return terms


def _block_forms(factor: Factor, size: int) -> dict[int, Array]:
    """Return 1 Q 1', 1 Q q' and q Q q' of every query, Q the mean over blocks of a size."""
    n = factor.shape[1]
    if size == 1:
        squares = factor.row_squares
    else:
        means = np.repeat(np.eye(n // size), size, axis=0) / math.sqrt(size)
        squares = factor.row_power_sums(means, 2)
    sums = factor.row_sums.astype(np.float64)
    forms = (np.full(1, float(n)), sums, squares.astype(np.float64))
    return {c: distinct_or_all(own) for c, own in enumerate(forms)}


def _product_power_sums(strategy: ProductStrategy, block: Block, order: int) -> RowTerms:
    if not strategy.supports(block):
        raise UnsupportedWorkloadError("the strategy sums over an attribute that is asked for")
    outside = 1.0
    for i in strategy.attributes:
        if i not in block.attributes:
            outside *= _total_form(strategy, i, order)
    outside /= float(strategy.measurements[0].weight) ** order
    forms = [
        _forms(strategy, i, factor, order, needed)
        for i, factor, needed in zip(
            block.attributes, block.factors, counts(block, order), strict=True
        )
    ]
    return [(outside * coef, vectors) for coef, vectors in mixed_powers(block, forms, order)]


def _is_large(strategy: ProductStrategy, block: Block, order: int) -> bool:
    """Return whether powers above squares take more than they are worth."""
    return order > 2 and any(
        factor.shape[0] * strategy.factors[i].shape[0] > FOURTH_LIMIT
        for i, factor in zip(block.attributes, block.factors, strict=True)
        if i in strategy.inverses
    )


def _total_form(strategy: ProductStrategy, i: int, order: int) -> float:
    """Return sum_r c_r^order for the total query of one attribute."""
    if isinstance(strategy.factors[i], Identity):
        return float(strategy.shape[i])
    return float((_of_total(strategy, i) ** order).sum())


def _of_total(strategy: ProductStrategy, i: int) -> Array:
    """Return the coefficients A_i (A_i'A_i)^-1 1 of the total query of one attribute."""
    ones = np.ones((strategy.shape[i], 1))
    return strategy.factors[i].matmat(inverse_times(strategy.inverses[i], ones))[:, 0]


def _forms(
    strategy: ProductStrategy, i: int, factor: Factor, order: int, counts: list[int]
) -> dict[int, Array]:
    """Return, for each count c, sum_r f_r^c t_r^(order - c) of every row.

    f is the coefficient vector of the row's predicate and t that of the total: the two that an
    r-of-k block mixes. An attribute of one class is not measured; its coefficients are row sums.
    """
    found = _all_forms(strategy, i, factor, order, counts)
    return {c: distinct_or_all(own) for c, own in found.items()}


def _all_forms(
    strategy: ProductStrategy, i: int, factor: Factor, order: int, counts: list[int]
) -> dict[int, Array]:
    if i not in strategy.attributes:
        sums = factor.row_sums.astype(np.float64)
        return {c: sums**c for c in counts}
    if isinstance(strategy.factors[i], Identity):
        return {c: factor.row_powers(c) for c in counts}
    if counts == [2] and order == 2:
        return {2: quadratic(factor, strategy.inverses[i])}
    plus = strategy.pseudo_inverses[i]
    if counts == [order]:
        return {order: factor.row_power_sums(plus, order)}
    f, t = factor.matmat(plus), _of_total(strategy, i)
    return {c: ((f**c) * t ** (order - c)).sum(axis=1) for c in counts}
