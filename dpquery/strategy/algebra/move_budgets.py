"""Budgets of independent measurements where a record moves them by different lengths.

Measurement b at weight^2 w_b errs by S_b / w_b, and a move m of a record moves it by a squared
length of w_b Q_mb. The least sum of S_b / w_b with sum_b w_b Q_mb <= 1 for all moves has the dual

    (sum_b sqrt(S_b (u'Q)_b))^2   over weights u >= 0 of the moves that add to one,

at w_b = sqrt(S_b / (u'Q)_b), scaled. u climbs by u_m <- u_m (Q w)_m ([MATH] 13.3).
"""

from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats

ROUNDS = 500
GAP = 1e-5  # relative gap at which the climb stops
LEAST_ERROR = 1e-12  # of the largest: a measurement of no error is still measured


@dataclass(frozen=True, eq=False)
class MoveBudgets:
    """The best squared weights that were found.

    Attributes:
        weights: w_b, (blocks,): no move is longer than 1. What no move changes has weight 0 here.
        loss: the sum of S_b / w_b over what moves change.
        bound: no weights have a smaller one.
    """

    weights: Floats
    loss: float
    bound: float


def move_budgets(errors: Floats, lengths: Floats) -> MoveBudgets:
    """Return the best budgets. errors: S, (blocks,), at least 0. lengths: Q, (moves, blocks)."""
    moved = lengths.max(axis=0) > 0
    S, Q = np.maximum(errors[moved], 0.0), lengths[:, moved]
    u = np.full(len(Q), 1 / len(Q))
    weights = np.zeros(len(errors))
    if not S.any():
        weights[moved] = 1 / np.maximum(Q.sum(axis=1).max(), 1e-300)
        return MoveBudgets(weights, 0.0, 0.0)
    S_floored = np.maximum(S, LEAST_ERROR * float(S.max()))
    loss, bound, best = np.inf, 0.0, np.zeros(len(S))
    for _ in range(ROUNDS):
        costs = np.maximum(u @ Q, 1e-300)
        bound = max(bound, float(np.sqrt(S * (u @ Q)).sum()) ** 2 * (1 - 1e-9))
        w = np.sqrt(S_floored / costs)
        reached = Q @ w
        longest = float(reached.max())
        value = longest * float((S / w).sum())
        if value < loss:
            loss, best = value, w / longest
        if loss <= bound * (1 + GAP):
            break
        u = u * (reached / longest) ** 2
        u = u / u.sum()
    weights[moved] = best
    return MoveBudgets(weights, loss, bound)
