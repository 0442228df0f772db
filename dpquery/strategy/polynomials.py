"""Powers of multilinear polynomials, (sum_u coef_u prod_i z_i^{u_i})^order.

They have one term for each vector of counts, how many of the `order` copies took variable i.
"""

import numpy as np

from dpquery.operators.factors import Array


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
