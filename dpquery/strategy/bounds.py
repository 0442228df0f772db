"""Lower bounds on the loss of every strategy, whatever optimiser found it.

The SVD bound [LM13] is (sum of singular values of W)^2 / N; it holds for L2 sensitivity and so for
L1 too, which is never smaller. It factors over a single product, has a closed form in the marginal
algebra ([MATH] 3, 4), and is computed outright while N is small.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpquery.operators.gram import Gram, Matrix, Mixture, is_mixture
from dpquery.strategy.dual_bounds import dual_bound
from dpquery.strategy.eigenvalues import above_rounding
from dpquery.strategy.lattice import member_products
from dpquery.strategy.marginal_algebra import MAX_ATTRIBUTES, workload_eigenvalues

DENSE_LIMIT = 1200  # cells of a domain whose Gram is decomposed outright


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on sensitivity^2 tr((A'A)^-1 V), and what proves it."""

    loss: float
    kind: str


def lower_bound(gram: Gram) -> Bound | None:
    """Return the better of the SVD bound and the dual bound, where one is known."""
    svd = svd_bound(gram)
    if _in_marginal_algebra(gram):
        return svd  # [MATH] 4: a strategy attains it
    loss = dual_bound(gram)
    if loss is None or (svd is not None and svd.loss >= loss):
        return svd
    return Bound(loss, "dual bound")


def svd_bound(gram: Gram) -> Bound | None:
    """Return the SVD bound where it can be computed, else None."""
    if len(gram.weights) == 1:
        roots = [
            _root_trace(own[j]) ** 2 / n
            for n, own, j in zip(gram.shape_of_domain, gram.matrices, gram.index[0], strict=True)
        ]
        return Bound(float(gram.weights[0]) * math.prod(roots), "SVD bound")
    widest = int(np.count_nonzero(gram.index, axis=1).max())
    if widest <= MAX_ATTRIBUTES and _in_marginal_algebra(gram):
        return Bound(_marginal_bound(gram), "SVD bound")
    if math.prod(gram.shape_of_domain) <= DENSE_LIMIT:
        V = gram.dense()
        return Bound(_root_trace((V + V.T) / 2) ** 2 / len(V), "SVD bound")
    return None


def _marginal_bound(gram: Gram) -> float:
    """Square the sum of singular values over sqrt(N): mult(a) = prod (n_i - 1) share each value."""
    found = workload_eigenvalues(gram)
    beyond = np.array(gram.shape_of_domain, dtype=np.float64) - 1
    multiplicities = member_products(list(found), beyond)
    return float(np.sqrt(np.array(list(found.values())) * multiplicities).sum()) ** 2


def _in_marginal_algebra(gram: Gram) -> bool:
    """Return whether every matrix is a mixture of identity and ones."""
    return all(is_mixture(V) for own in gram.matrices for V in own)


def _root_trace(V: Matrix) -> float:
    """Return the sum of square roots of the eigenvalues, which rounding never makes larger."""
    if isinstance(V, Mixture):
        return (V.n - 1) * math.sqrt(V.a) + math.sqrt(V.a + V.n * V.b)
    return float(np.sqrt(above_rounding(np.linalg.eigvalsh(V))).sum())
