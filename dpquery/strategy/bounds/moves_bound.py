"""Lower bounds on the loss of every strategy where records move between cells.

For weights v_m >= 0 of the moves m of a record and S = sum_m v_m m m', no strategy's loss is below
    tr((S^(1/2) V S^(1/2))^(1/2))^2 / sum(v),
the loss with the largest m'A'Am as squared sensitivity ([MATH] 13.3). L1 lengths are never below L2
lengths, so that it holds for Laplace noise too.
"""

import math

import numpy as np

from dpquery.arrays import Floats
from dpquery.limits import MAX_ALGEBRA_ATTRIBUTES
from dpquery.operators.gram import Gram, is_mixture
from dpquery.progress import reporting
from dpquery.strategy.algebra.eigenvalues import above_rounding, eigvalsh
from dpquery.strategy.algebra.marginal_algebra import workload_eigenvalues
from dpquery.strategy.algebra.move_budgets import move_budgets
from dpquery.strategy.algebra.subsets import Subset, member_products
from dpquery.strategy.optimize.opt_0_moves import MOST_MOVED, moves_optimum
from dpquery.strategy.record_changes import RecordChange

MAX_PATTERNS = 1 << 22  # sets of attributes that a move changes, times subsets
MAX_DECOMPOSED_CELLS = 1200  # cells of a domain whose Gram is decomposed outright
SAFETY = 1e-9  # relative; for the rounding of sums


def moves_bound(gram: Gram, change: RecordChange) -> float | None:
    """Return a lower bound on the loss where a record moves; None where none is known."""
    widest = int(np.count_nonzero(gram.index, axis=1).max())
    if in_marginal_algebra(gram) and widest <= MAX_ALGEBRA_ATTRIBUTES:
        return _algebra_bound(gram, change)
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


def _algebra_bound(gram: Gram, change: RecordChange) -> float:
    """Return the bound at weights that are equal for moves that change the same attributes.

    By symmetry none are better. On the eigenspace of a, S is then a multiple of the identity.
    """
    eigenvalues = workload_eigenvalues(gram)
    subsets = list(eigenvalues)
    beyond = np.array(gram.shape_of_domain, dtype=np.float64) - 1
    values = np.array(list(eigenvalues.values())) * member_products(subsets, beyond)
    lengths = _lengths(subsets, gram.shape_of_domain)
    if change == "moves":
        lengths = np.concatenate([lengths, np.ones((1, len(subsets)))])
    return move_budgets(values, lengths).bound


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
