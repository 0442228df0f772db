r"""The Gram of one block as Kronecker products: few of them for thresholds too.

A predicate set of which every class of an attribute meets equally many, as its values do, is split
into its mean over rows p 11' and the rest D = F - p 11', with 1'D = 0. Then the Gram of an r-of-k
block is diagonal in the sets a of attributes that take D:
    W'W = sum_a (prod_{i not in a} m_i) lambda_a^2 kron_{i in a} D_i'D_i kron_{i not in a} 11',
with lambda_a the difference of the threshold in a ([MATH] 5): 2^k terms, no pairs of terms, nothing
that cancels. Predicates that classes meet unequally often, such as one target, enter by all pairs
of sets of them while those are few, by pairs of the nodes of operators.thresholds beyond.
"""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

from dpquery.arrays import Floats
from dpquery.operators.blocks import Block, SplitFactor
from dpquery.operators.factors import Factor, Identity
from dpquery.operators.thresholds import differences, node_weights, threshold_nodes

Sides = tuple[SplitFactor, SplitFactor]
"""Of L'R with L = a 11' + b F: ((a, b) of L, (a, b) of R)."""
GRAM = ((0.0, 1.0), (0.0, 1.0))
MAX_PAIRED = 3  # predicates of which all sets are paired; Grams of ranges keep their structure so


def gram_terms(block: Block) -> Iterator[tuple[float, tuple[Sides | None, ...]]]:
    """Yield (coef, sides of every factor) of W'W = sum coef kron L'R; None stands for 11'."""
    if block.is_product:
        yield 1.0, (GRAM,) * len(block.factors)
        return
    sums = {
        k: column_sums(factor)
        for k, (factor, counted) in enumerate(zip(block.factors, block.counted, strict=True))
        if counted
    }
    even = [k for k, column_sum in sums.items() if is_even(column_sum)]
    uneven = [k for k in sums if k not in even]
    rows = block.row_shape
    levels = [float(sums[k][0]) for k in even]
    means = [level / rows[k] for k, level in zip(even, levels, strict=True)]
    values = differences(means, block.at_least, beside=len(uneven))
    fixed: list[Sides | None] = [None if counted else GRAM for counted in block.counted]
    pairs = list(_pairs(values, len(uneven)))
    for row, chosen in enumerate(product((False, True), repeat=len(even))):
        sides, scale = list(fixed), 1.0
        for k, level, inside in zip(even, levels, chosen, strict=True):
            m = float(rows[k])
            sides[k] = ((-level, m), (-level, m)) if inside else None  # m D: whole numbers
            scale *= m**-2 if inside else m
        for coefs, choice in pairs:
            if coefs[row]:
                coef = scale * float(coefs[row])
                yield _with_uneven(coef, sides, dict(zip(uneven, choice, strict=True)), rows)


def _with_uneven(
    coef: float, sides: list[Sides | None], uneven: dict[int, Sides], rows: tuple[int, ...]
) -> tuple[float, tuple[Sides | None, ...]]:
    """Put the sides of the uneven factors in place; 11' on both sides is m 11'."""
    placed = list(sides)
    for k, both in uneven.items():
        if all(side == (1.0, 0.0) for side in both):
            coef *= rows[k]
        else:
            placed[k] = both
    return coef, tuple(placed)


def _pairs(values: Floats, beside: int) -> Iterator[tuple[Floats, tuple[Sides, ...]]]:
    """Yield what each pair of Kronecker products of the uneven factors weighs: (sets of even,)."""
    if beside <= MAX_PAIRED:
        sets = list(product((False, True), repeat=beside))
        weights = {u: _difference(values, sum(u)) for u in sets}
        sides = {u: tuple((0.0, 1.0) if inside else (1.0, 0.0) for inside in u) for u in sets}
        halves = [(weights[u], sides[u]) for u in sets]
    else:
        points, alphas = threshold_nodes(beside).tolist(), node_weights(values)
        halves = [(alphas[:, j], ((1.0, x - 1.0),) * beside) for j, x in enumerate(points)]
    for left, on_left in halves:
        for right, on_right in halves:
            yield left * right, tuple(zip(on_left, on_right, strict=True))


def _difference(values: Floats, order: int) -> Floats:
    """Return the differences in so many of the predicates beside, the others missed."""
    signs = [(-1) ** (order - s) * math.comb(order, s) for s in range(order + 1)]
    return np.asarray(values[:, : order + 1] @ np.array(signs, dtype=np.float64))


def column_sums(factor: Factor) -> Floats:
    """Return how many predicates each class meets: (n,), or one number for them all."""
    if isinstance(factor, Identity):
        return np.ones(1)
    return factor.rmatvec(np.ones(factor.shape[0], dtype=factor.dtype)).astype(np.float64)


def is_even(columns: Floats) -> bool:
    """Return whether every class meets equally many predicates."""
    return bool(np.all(columns == columns[0]))
