"""Figures of every row of a block, as sums of outer products: their total, and written out."""

import math
from collections.abc import Sequence

import numpy as np

from dpquery.arrays import Floats
from dpquery.operators.blocks import Block

RowTerms = list[tuple[float, list[Floats]]]
"""sum_t coef_t kron_i vector_ti over the rows of a block; vectors have length m_i or 1."""
RowSums = RowTerms | Floats
"""A figure for every row of a block: outer products, or the tensor that they would add up to."""


def scaled(sums: RowSums, factor: float) -> RowSums:
    """Return the figures times a factor."""
    if isinstance(sums, np.ndarray):
        return np.asarray(sums * factor)
    return [(coef * factor, vectors) for coef, vectors in sums]


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


def expand(terms: RowSums, row_shape: Sequence[int] | None = None) -> Floats:
    """Return the outer products as a tensor; without a row shape axes of length 1 stay so."""
    total: Floats = np.zeros(())
    if isinstance(terms, np.ndarray):
        total = terms
    else:
        for coef, vectors in terms:
            outer = np.array(coef)
            for vector in vectors:
                outer = np.multiply.outer(outer, vector)
            total = total + outer
    return total if row_shape is None else np.broadcast_to(total, tuple(row_shape))
