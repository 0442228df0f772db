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

import math

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Array
from dpquery.operators.gram import Gram, total_sum, trace
from dpquery.strategy.block_sums import BlockSums
from dpquery.strategy.lattice import Subset, subsets_of
from dpquery.strategy.polynomials import polynomial_power
from dpquery.strategy.strategies import MarginalsStrategy

ROUNDING = 1e-12  # relative to what cancelled
MAX_ATTRIBUTES = 20  # of one table: its subsets are all listed
MAX_WIDE = 7  # of one table whose sixth powers are listed: 8^7 terms
RowTerms = list[tuple[float, list[Array]]]
"""sum_t coef_t kron_i vector_ti over the rows of a block; vectors have length m_i or 1."""


def workload_eigenvalues(gram: Gram) -> dict[Subset, float]:
    """Return tr(P_a V) / N for every subset a on which it is not zero.

    A Kronecker term contributes prod_i tr(P_{a_i} V_i) / n_i, with tr(P_0 V) = 1'V1/n, tr(P_1 V)
    the rest of the trace; 11' contributes to subsets without i alone, and one to them.

    Raises:
        UnsupportedWorkloadError: a term looks at more than MAX_ATTRIBUTES attributes.
    """
    blocks = BlockSums(gram, most=MAX_ATTRIBUTES)
    c = np.ones(blocks.size)
    for i, (n, own) in enumerate(zip(gram.shape_of_domain, gram.matrices, strict=True)):
        zero = np.array([total_sum(V) / n**2 for V in own])
        whole = np.array([trace(V) / n for V in own])
        start, stop = int(blocks.offsets[i]), int(blocks.offsets[i + 1])
        c[start:stop:2], c[start + 1 : stop : 2] = zero, _difference(whole, zero)
    found = blocks.sums(c)
    kept = np.flatnonzero(found > ROUNDING * blocks.magnitudes(c))
    return {blocks.subsets[k]: float(found[k]) for k in kept}


def _difference(x: Array, y: Array) -> Array:
    """Return x - y, and zero where that is rounding alone."""
    return np.where(np.abs(x - y) > ROUNDING * np.abs(x), x - y, 0.0)


def inverse_eigenvalue(strategy: MarginalsStrategy, a: Subset) -> float:
    """Return 1 / lambda_a, lambda = squares_above; an error where a is not measured."""
    if a not in strategy.squares_above:
        raise UnsupportedWorkloadError(f"no measured marginal holds the attributes {a}")
    return 1.0 / strategy.squares_above[a]


def even_powers(strategy: MarginalsStrategy, block: Block, order: int) -> Array | None:
    r"""Return sum_r c_r^order of every query of a block; None if it is signed or very wide.

    The order is even; the tensor has one axis an attribute, of length 1 where all rows are alike.

    On the answers of a measured subset b the coefficients of a query over S are
        theta_b prod_{i in S \ b} q_i z_i  kron_{i in b \ S} A_i z_i
            sum_{a <= t} (1 / lambda_a) kron_{i in a} A_i H_i q_i kron_{i in t \ a} A_i z_i q_i z_i,
    a polynomial with one variable an attribute of t = b & S; its power is taken once for each t and
    summed over the b that meet S in t. All t share one array of coefficients, with a last entry on
    the axis of an attribute outside t.
    """
    S = tuple(i for i in block.attributes if strategy.shape[i] > 1)
    if not block.is_product or len(S) > MAX_WIDE:
        return None
    coefficients = np.zeros((order + 2,) * len(S))
    for t, scale in beyond_parts(strategy, S, order).items():
        g = np.zeros((2,) * len(t))
        for a in subsets_of(t):
            g[tuple(int(i in a) for i in t)] = inverse_eigenvalue(strategy, a)
        place = tuple(slice(order + 1) if i in t else order + 1 for i in S)
        coefficients[place] = scale * polynomial_power(g, order)
    total = coefficients
    for i, factor in zip(block.attributes, block.factors, strict=True):
        levels = strategy.splits[i].levels(factor).astype(np.float64) ** order
        if i in S:
            table = np.concatenate([strategy.splits[i].moments(factor, order), levels[None]])
            total = np.tensordot(total, _alike_as_one(table), axes=(0, 0))
        else:
            total = np.multiply.outer(total, distinct_or_all(levels))
    return np.asarray(np.maximum(total, 0.0))


def _alike_as_one(table: Array) -> Array:
    """Return the first column where all are equal but for rounding, else all. (c, m)."""
    spread = np.ptp(table, axis=1) <= ROUNDING * np.abs(table).max(axis=1)
    return table[:, :1] if spread.all() else table


def beyond_parts(strategy: MarginalsStrategy, S: Subset, order: int) -> dict[Subset, float]:
    r"""Return, for each t <= S, what the b with b & S = t contribute beyond t.

    That is the sum of theta_b^order prod_{i in b \ S} sum_r (A_i z_i)_r^order.
    By inclusion-exclusion over the sets u between t and S, of which every b above u is held; over
    all measured b where those are fewer.
    """
    exactly: dict[Subset, float] = {}
    if len(strategy.weights) < 3 ** len(S):
        for b, weight in strategy.weights.items():
            t = tuple(i for i in b if i in S)
            rest = (strategy.reading_power(i, order) for i in b if i not in S)
            exactly[t] = exactly.get(t, 0.0) + float(weight) ** order * math.prod(rest)
        return exactly
    above = strategy.powers_above(order)
    for t in subsets_of(S):
        left = tuple(i for i in S if i not in t)
        whole = sum(
            (-1) ** len(more) * above.get(tuple(sorted((*t, *more))), 0.0)
            for more in subsets_of(left)
        )
        if whole > ROUNDING * above.get(t, 0.0):
            exactly[t] = whole / math.prod(strategy.reading_power(i, order) for i in t)
    return exactly


def distinct_or_all(vector: Array) -> Array:
    """Return one entry where all are equal but for rounding: constant axes then cost nothing."""
    if len(vector) and np.ptp(vector) <= ROUNDING * np.abs(vector).max():
        return vector[:1]
    return vector
