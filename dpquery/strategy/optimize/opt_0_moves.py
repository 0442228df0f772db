"""OPT_0 for Gaussian noise where records move: the optimum, and a proof of how near it is.

min tr(X^-1 V) over X with m'Xm <= 1 for every move m of a record: e_i - e_j, and e_i where a record
may lie outside of the domain. For weights v_m >= 0 and S = sum_m v_m m m',
    tr(X^-1 V) >= tr((S^(1/2) V S^(1/2))^(1/2))^2 / sum(v),
with equality at X = S^(-1/2) (S^(1/2) V S^(1/2))^(1/2) S^(-1/2) where v lives on the moves with
m'Xm = 1; the weights climb by v_m <- v_m (m'Xm)^2 ([MATH] 13.3). Where records never leave, the
total is the same for all neighbours: all is in the space of sum zero, and the total is free.
"""

from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats
from dpquery.progress import time_left
from dpquery.strategy.algebra.eigenvalues import above_rounding, eigh
from dpquery.strategy.record_changes import RecordChange

SINGULAR = 1e-12  # least eigenvalue of S, relative: below it rounding could lift the bound
MOVES_ROUNDS = 150
MOVES_GAP = 8e-4  # the proven optimality gap at which the climb stops
MOST_MOVED = 128  # classes: weights of 8,128 moves, and two decompositions a round
MOVES_FLOOR = 1e-4  # least eigenvalue relative to the mean: keeps X invertible where V is not


@dataclass(frozen=True, eq=False)
class MovesOptimum:
    """A strategy of one attribute for records that move, and a lower bound on the loss of any.

    Attributes:
        rows: (m, n) with X = rows' rows; every move has a length of at most 1. Of rank n, or n - 1
            with the null vector 1 where records never leave.
        loss: tr(X^-1 V), in the space of sum zero where records never leave.
        bound: the largest dual value seen.
    """

    rows: Floats
    loss: float
    bound: float


def moves_optimum(V: Floats, change: RecordChange, *, rounds: int = MOVES_ROUNDS) -> MovesOptimum:
    """Return the best strategy that was found for the Gram of an attribute, n classes."""
    n = len(V)
    leaves = change == "moves"
    E = np.eye(n) if leaves else np.linalg.svd(np.ones((1, n)))[2][1:].T
    U = E.T @ ((V + V.T) / 2) @ E
    between, outside = 1 - np.eye(n), np.full(n, float(leaves))
    best: MovesOptimum | None = None
    bound = 0.0
    for number in range(rounds):
        whole = float(between.sum()) / 2 + float(outside.sum())
        between, outside = between / whole, outside / whole
        s, Q = eigh(E.T @ (np.diag(between.sum(axis=1) + outside) - between) @ E)
        if float(s.min()) <= SINGULAR * float(s.max()):
            break
        root = (Q * np.sqrt(s)) @ Q.T
        inverse_root = (Q / np.sqrt(s)) @ Q.T
        w, P = eigh(root @ U @ root)
        w = above_rounding(w)
        bound = max(bound, float(np.sqrt(w).sum()) ** 2 * (1 - 1e-9))
        values = np.maximum(np.sqrt(w), MOVES_FLOOR * float(np.sqrt(w).mean()))
        half = np.sqrt(values)[:, None] * (P.T @ inverse_root @ E.T)  # X = half'half
        X = half.T @ half
        diagonal = np.diagonal(X)
        distances = diagonal[:, None] + diagonal - 2 * X
        longest = float(max(distances.max(), diagonal.max() if leaves else 0.0))
        loss = longest * float((w / values).sum())
        if best is None or loss < best.loss:
            best = MovesOptimum(half / np.sqrt(longest), loss, bound)
        words = f"moves, round {number + 1}: loss {best.loss:.6g}, at least {bound:.6g}"
        if best.loss <= bound * (1 + MOVES_GAP) or not time_left(words):
            break
        between, outside = between * distances**2, outside * diagonal**2
    if best is None:
        raise ValueError("at least one round")
    return MovesOptimum(best.rows, best.loss, bound)
