"""Lower bounds on the loss of every strategy: the SVD bound and the dual bound.

The SVD bound [LM13] is (sum of singular values of W)^2 / N; it holds for L2 sensitivity and so for
L1 too, which is never smaller. It factors over a single product, has a closed form in the marginal
algebra ([MATH] 3, 4), and is computed outright while N is small.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpquery.limits import MAX_ALGEBRA_ATTRIBUTES, MAX_DENSE_CLASSES
from dpquery.operators.gram import (
    Gram,
    Matrix,
    Mixture,
    array_of,
    classes,
    diagonal,
    natural_order,
    restricted,
)
from dpquery.progress import reporting
from dpquery.strategy.algebra.eigenvalues import above_rounding, eigvalsh
from dpquery.strategy.algebra.marginal_algebra import workload_eigenvalues
from dpquery.strategy.algebra.subsets import member_products
from dpquery.strategy.algebra.tridiagonal import TridiagonalInverse
from dpquery.strategy.bounds.dual_bound import dual_bound
from dpquery.strategy.bounds.moves_bound import (
    MAX_DECOMPOSED_CELLS,
    SAFETY,
    in_marginal_algebra,
    moves_bound,
)
from dpquery.strategy.optimize.opt_0_gaussian import OPTIMALITY_GAP, optimum
from dpquery.strategy.record_changes import RecordChange

FIXED_POINT_ROUNDS = 300  # of the fixed point


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on sensitivity^2 tr((A'A)^-1 V), and what proves it."""

    loss: float
    kind: str


def lower_bound(
    gram: Gram, change: RecordChange = "enters", *, proving: bool = True
) -> Bound | None:
    """Return the best bound on the loss of every strategy; None where none is known.

    Args:
        gram: of the workload.
        change: what one record does between neighbours: the loss has its sensitivity. One that may
            leave, and move besides, is bound by what holds for one that leaves.
        proving: whether dual bounds are worked out, which may take seconds; or the SVD bound alone.
    """
    entering = _entering_bound(gram) if proving else svd_bound(gram)
    if change == "enters":
        return entering
    moving = moves_bound(gram, change) if proving else None
    known = [None if moving is None else Bound(moving, "dual bound")]
    if entering is not None:
        known.append(moved_bound(entering, gram))
    if change == "moves":
        known.append(entering)
    return max((bound for bound in known if bound), key=lambda b: b.loss, default=None)


def moved_bound(entering: Bound, gram: Gram) -> Bound | None:
    """Return a bound where a record moves, from one where it enters; None if it says nothing.

    That is 2 (root of the loss - root of the largest diagonal entry)^2 ([MATH] 13.3).
    """
    largest = 0.0
    for weight, places in zip(gram.weights, gram.index, strict=True):
        named = (matrices[j] for matrices, j in zip(gram.matrices, places, strict=True))
        largest += float(weight) * math.prod(float(diagonal(V).max()) for V in named)
    length = math.sqrt(entering.loss) * (1 - SAFETY) - math.sqrt(largest) * (1 + SAFETY)
    return Bound(2 * length**2, "dual bound") if length > 0 else None


def _entering_bound(gram: Gram) -> Bound | None:
    """Return the better of the SVD bound and the dual bound, where one is known."""
    svd = svd_bound(gram)
    if in_marginal_algebra(gram):
        return svd  # [MATH] 4: a strategy attains it
    loss = solved_dual_bound(gram) or dual_bound(gram)
    if loss is None or (svd is not None and svd.loss >= loss):
        return svd
    return Bound(loss, "dual bound")


def solved_dual_bound(gram: Gram) -> float | None:
    """Return the largest dual bound of a single product of prefix sums, all ranges and mixtures.

    Duals multiply over the attributes ([MATH] 1). Those of prefix sums and all ranges are solved
    for any number of classes; mixtures a I + b 11' have theirs at v = 1. None for other Grams.
    """
    if len(gram.weights) > 1:
        return None
    bound = float(gram.weights[0])
    for matrices, j in zip(gram.matrices, gram.index[0], strict=True):
        inverse = _tridiagonal(matrices[j])
        if inverse is not None:
            v = np.ones(len(inverse.diagonal))
            with reporting(None):  # no candidate is at work, and no clock is asked
                bound *= optimum(inverse, v, FIXED_POINT_ROUNDS, OPTIMALITY_GAP).bound
        elif isinstance(matrices[j], Mixture):
            bound *= _root_trace(matrices[j]) ** 2 / classes(matrices[j])
        else:
            return None
    return bound


def svd_bound(gram: Gram) -> Bound | None:
    """Return the SVD bound where it can be computed, else None."""
    if len(gram.weights) == 1:
        named = [matrices[j] for matrices, j in zip(gram.matrices, gram.index[0], strict=True)]
        if all(map(_has_eigenvalues, named)):
            roots = [_root_trace(V) ** 2 / classes(V) for V in named]
            return Bound(float(gram.weights[0]) * math.prod(roots), "SVD bound")
    widest = int(np.count_nonzero(gram.index, axis=1).max())
    if widest <= MAX_ALGEBRA_ATTRIBUTES and in_marginal_algebra(gram):
        return Bound(_marginal_bound(gram), "SVD bound")
    if math.prod(gram.shape_of_domain) <= MAX_DECOMPOSED_CELLS:
        V = gram.dense()
        return Bound(_root_trace((V + V.T) / 2) ** 2 / len(V), "SVD bound")
    return None


def _marginal_bound(gram: Gram) -> float:
    """Return the SVD bound: the value of a has multiplicity prod_{i in a} (n_i - 1)."""
    eigenvalues = workload_eigenvalues(gram)
    beyond = np.array(gram.shape_of_domain, dtype=np.float64) - 1
    multiplicities = member_products(list(eigenvalues), beyond)
    return float(np.sqrt(np.array(list(eigenvalues.values())) * multiplicities).sum()) ** 2


def _tridiagonal(V: Matrix) -> TridiagonalInverse | None:
    return TridiagonalInverse.of(restricted(V, natural_order(V)))


def _has_eigenvalues(V: Matrix) -> bool:
    """Return whether the eigenvalues of a matrix can be computed."""
    if isinstance(V, Mixture) or classes(V) <= MAX_DENSE_CLASSES:
        return True
    return _tridiagonal(V) is not None


def _root_trace(V: Matrix) -> float:
    """Return the sum of square roots of the eigenvalues, which rounding never makes larger."""
    if isinstance(V, Mixture):
        return (V.n - 1) * math.sqrt(V.a) + math.sqrt(V.a + V.n * V.b)
    inverse = _tridiagonal(V)
    if inverse is not None:
        root = inverse.root(np.ones(len(inverse.diagonal)))
        return float(root.diagonal().sum()) * (1 - root.error)
    return float(np.sqrt(above_rounding(eigvalsh(array_of(V)))).sum())
