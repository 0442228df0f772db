"""The algebra of marginals: every Gram in it is diagonal in one common set of eigenspaces.

There is one eigenspace for each attribute subset a, with projector
    P_a = kron_{i in a} (I - J/n_i)  kron_{i not in a} J/n_i,
of dimension mult(a) = prod_{i in a} (n_i - 1). A strategy of marginals b with weights theta_b has
eigenvalue kappa(a) = sum_{b >= a} theta_b^2 prod_{i not in b} n_i there ([MATH] 3), so its inverse,
its error and every query's variance are sums over subsets. All eigenvalues here are divided by the
number of cells N: kappa(a) / N = sum_{b >= a} theta_b^2 / prod_{i in b} n_i, since N itself leaves
the range of floats at some hundred attributes. Marginals of factors A_i are diagonal in the same
way, with mu_i = 1'(A_i'A_i)^-1 1 for n_i ([MATH] 7).
"""

import numpy as np

from dpquery.arrays import Floats
from dpquery.limits import MAX_ALGEBRA_ATTRIBUTES
from dpquery.operators.gram import Gram, total_sum, trace
from dpquery.strategy.algebra.subset_sums import BlockSums
from dpquery.strategy.algebra.subsets import Subset

CANCELLATION = 1e-12  # relative to what cancelled


def workload_eigenvalues(gram: Gram) -> dict[Subset, float]:
    """Return tr(P_a V) / N for every subset a on which it is not zero.

    A Kronecker term contributes prod_i tr(P_{a_i} V_i) / n_i, with tr(P_0 V) = 1'V1/n, tr(P_1 V)
    the rest of the trace; 11' contributes to subsets without i alone, and one to them.

    Raises:
        UnsupportedWorkloadError: a term looks at more than MAX_ALGEBRA_ATTRIBUTES attributes.
    """
    blocks = BlockSums(gram, most=MAX_ALGEBRA_ATTRIBUTES)
    c = np.ones(blocks.size)
    for i, (n, grams_of_attribute) in enumerate(
        zip(gram.shape_of_domain, gram.matrices, strict=True)
    ):
        zero = np.array([total_sum(V) / n**2 for V in grams_of_attribute])
        whole = np.array([trace(V) / n for V in grams_of_attribute])
        start, stop = int(blocks.offsets[i]), int(blocks.offsets[i + 1])
        c[start:stop:2], c[start + 1 : stop : 2] = zero, _difference(whole, zero)
    sums = blocks.sums(c)
    kept = np.flatnonzero(sums > CANCELLATION * blocks.magnitudes(c))
    return {blocks.subsets[k]: float(sums[k]) for k in kept}


def _difference(x: Floats, y: Floats) -> Floats:
    """Return x - y, and zero where that is rounding alone."""
    return np.where(np.abs(x - y) > CANCELLATION * np.abs(x), x - y, 0.0)


def distinct_or_all(vector: Floats) -> Floats:
    """Return one entry where all are equal but for rounding: constant axes then cost nothing."""
    if len(vector) and np.ptp(vector) <= CANCELLATION * np.abs(vector).max():
        return vector[:1]
    return vector


def polynomial_power(g: Floats, order: int) -> Floats:
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
