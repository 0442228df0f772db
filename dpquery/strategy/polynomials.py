"""Powers of multilinear polynomials: how signed sums of Kronecker products are squared.

(sum_u coef_u kron_i z_i^{u_i})^order has one term for each vector of counts, how many of the
`order` copies took predicate i; the counts are all that its value depends on.
"""

from collections.abc import Iterator

import numpy as np

from dpquery.operators.blocks import Block
from dpquery.operators.factors import Array


def block_polynomial(block: Block) -> Array:
    """Return a block's coefficients as an array of shape (2,)*k, indexed by its masks."""
    g = np.zeros((2,) * len(block.factors))
    for coef, mask in block.terms:
        g[tuple(int(inside) for inside in mask)] = coef
    return g


def polynomial_power(g: Array, order: int) -> Array:
    """Return the coefficients of a power of g. g: (2,)*k -> (order + 1,)*k.

    >>> polynomial_power(np.array([1.0, 1.0]), 4)
    array([1., 4., 6., 4., 1.])
    """
    power = g
    for _ in range(order - 1):
        longer = np.zeros(tuple(n + 1 for n in power.shape))
        for shift in np.ndindex(g.shape):
            if g[shift]:
                place = tuple(slice(s, s + n) for s, n in zip(shift, power.shape, strict=True))
                longer[place] += g[shift] * power
        power = longer
    return power


def nonzero_places(coefficients: Array) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield (counts, coefficient) of the nonzero terms."""
    for place in np.ndindex(coefficients.shape):
        if coefficients[place]:
            yield place, float(coefficients[place])
