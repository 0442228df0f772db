"""Lower bounds on the loss of any strategy: the SVD bound, and for records that move.

The SVD bound [LM13] is (sum of singular values of W)^2 / N; it holds for L2 sensitivity and so for
L1 too, which is never smaller. It factors over a single product, has a closed form in the marginal
algebra ([MATH] 3, 4), and is computed outright while N is small.

Where records move between cells, with weights v_m >= 0 of the moves m of a record and
S = sum_m v_m m m', no strategy's loss is below
    tr((S^(1/2) V S^(1/2))^(1/2))^2 / sum(v),
the loss with the largest m'A'Am as squared sensitivity ([MATH] 13.3). L1 lengths are never below L2
lengths, so that it holds for Laplace noise too.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats
from dpquery.limits import MAX_ALGEBRA_ATTRIBUTES, MAX_DENSE_CLASSES
from dpquery.operators.gram import (
    Gram,
    Matrix,
    Mixture,
    array_of,
    classes,
    diagonal,
    is_mixture,
    natural_order,
    restricted,
)
from dpquery.progress import reporting
from dpquery.strategy.algebra.orbits import above_rounding, eigvalsh
from dpquery.strategy.algebra.roots import TridiagonalInverse
from dpquery.strategy.algebra.subsets import Subset, member_products, workload_eigenvalues
from dpquery.strategy.dual_bound import dual_bound
from dpquery.strategy.optimize.fixed_point import (
    MOST_MOVED,
    OPTIMALITY_GAP,
    move_budgets,
    moves_optimum,
    optimum,
)
from dpquery.strategy.strategy import RecordChange

MAX_PATTERNS = 1 << 22  # sets of attributes that a move changes, times subsets
MAX_DECOMPOSED_CELLS = 1200  # cells of a domain whose Gram is decomposed outright
SAFETY = 1e-9  # relative; for the rounding of sums


def moves_bound(gram: Gram, change: RecordChange) -> float | None:
    """Return a lower bound on the loss where a record moves; None where none is known."""
    widest = int(np.count_nonzero(gram.index, axis=1).max())
    if in_marginal_algebra(gram) and widest <= MAX_ALGEBRA_ATTRIBUTES:
        # At weights that are equal for moves that change the same attributes: by symmetry none are
        # better. On the eigenspace of a, S is then a multiple of the identity.
        eigenvalues = workload_eigenvalues(gram)
        subsets = list(eigenvalues)
        beyond = np.array(gram.shape_of_domain, dtype=np.float64) - 1
        values = np.array(list(eigenvalues.values())) * member_products(subsets, beyond)
        lengths = _lengths(subsets, gram.shape_of_domain)
        if change == "moves":
            lengths = np.concatenate([lengths, np.ones((1, len(subsets)))])
        return move_budgets(values, lengths).bound
    cells = math.prod(gram.shape_of_domain)
    if cells > MAX_DECOMPOSED_CELLS:
        return None
    V = gram.dense()
    V = (V + V.T) / 2
    if cells <= MOST_MOVED:
        with reporting(None):  # no candidate is at work, and no clock is asked
            return moves_optimum(V, change).bound
    # All pairs alike: S is a multiple of the projector beside the total.
    centred = V - V.mean(axis=0) - V.mean(axis=1)[:, None] + V.mean()
    trace = float(np.sqrt(above_rounding(eigvalsh(centred))).sum())
    return 2 / (cells - 1) * trace**2 * (1 - SAFETY)


def in_marginal_algebra(gram: Gram) -> bool:
    """Return whether every matrix is a mixture of identity and ones."""
    return all(is_mixture(V) for matrices in gram.matrices for V in matrices)


def _lengths(subsets: list[Subset], shape: tuple[int, ...]) -> Floats:
    """Return squared lengths of moves in the parts P_a x, times N / mult(a): (moves, subsets).

    A move that changes the attributes D has 2 (1 - prod_{i in a & D} -1 / (n_i - 1)) in that of a.
    All sets D are listed where there are few; else the set of all attributes alone.
    """
    wide = sorted({i for a in subsets for i in a})
    if not wide:
        return np.zeros((1, len(subsets)))
    signs = {i: -1 / (shape[i] - 1) for i in wide}
    if len(subsets) << len(wide) > MAX_PATTERNS:
        return np.array([[2 * (1 - math.prod(signs[i] for i in a)) for a in subsets]])
    products, sets = np.ones((1 << len(wide), len(subsets))), np.arange(1 << len(wide))
    for bit, i in enumerate(wide):
        inside = np.array([i in a for a in subsets])
        changed = (sets >> bit & 1).astype(bool)
        products[np.ix_(changed, inside)] *= signs[i]
    return np.asarray(2 * (1 - products[1:]))


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
        # the SVD bound: the value of a has multiplicity prod_{i in a} (n_i - 1)
        eigenvalues = workload_eigenvalues(gram)
        beyond = np.array(gram.shape_of_domain, dtype=np.float64) - 1
        multiplicities = member_products(list(eigenvalues), beyond)
        of_cores = np.sqrt(np.array(list(eigenvalues.values())) * multiplicities)
        return Bound(float(of_cores.sum()) ** 2, "SVD bound")
    if math.prod(gram.shape_of_domain) <= MAX_DECOMPOSED_CELLS:
        V = gram.dense()
        return Bound(_root_trace((V + V.T) / 2) ** 2 / len(V), "SVD bound")
    return None


def _tridiagonal(V: Matrix) -> TridiagonalInverse | None:
    return TridiagonalInverse.of(restricted(V, natural_order(V)))


def _has_eigenvalues(V: Matrix) -> bool:
    if isinstance(V, Mixture) or classes(V) <= MAX_DENSE_CLASSES:
        return True
    return _tridiagonal(V) is not None


def _root_trace(V: Matrix) -> float:
    if isinstance(V, Mixture):
        return (V.n - 1) * math.sqrt(V.a) + math.sqrt(V.a + V.n * V.b)
    inverse = _tridiagonal(V)
    if inverse is not None:
        root = inverse.root(np.ones(len(inverse.diagonal)))
        return float(root.diagonal().sum()) * (1 - root.error)
    return float(np.sqrt(above_rounding(eigvalsh(array_of(V)))).sum())
