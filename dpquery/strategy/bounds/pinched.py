"""A lower bound on tr(S^(1/2)) where S is too large to decompose, for terms without signs.

S = W'W, and cutting W into blocks with rows and columns of their own never adds to its singular
values. Columns are cut by the set b of attributes that are not at e (root_trace.py). The rows of a
term are cut attribute by attribute, in one direction u that goes with e and all others. With
[[alpha, r'], [r, R]] for S_i on e and beside it, sigma = alpha - r' R^+ r, a = share / sqrt(alpha):
u'We = a (alpha - sigma) + sqrt(sigma (1 - a^2 (alpha - sigma))), and R - a^2 r r' is left beside e,
from share 0 (e keeps what R cannot reach) to 1 (e keeps all). Terms with the same matrices on b add
up, of others the best are kept; so is the best share.
"""

import math
from collections.abc import Mapping

import numpy as np

from dpquery.operators.factors import Array
from dpquery.strategy.algebra.subsets import Subset, subsets_of

LEAST_KEPT_EIGENVALUE = 1e-9  # relative eigenvalue of R below which a direction is left out
PINCHED_ROUNDING = 1e-6  # relative; sums of c^2 / lambda are better than that
SHARES = (0.0, 0.3, 0.5, 0.7, 0.85, 1.0)

Row = tuple[tuple[int, int], ...]
Cut = tuple[float, float]
"""What a matrix keeps at e, and the trace of the root of what it keeps beside e."""


def pinched_root_trace(
    terms: Mapping[Row, float], local: Mapping[tuple[int, int], Array]
) -> float | None:
    """Return a lower bound on tr(S^(1/2)); None where a term may not be positive semidefinite.

    Args:
        terms: weight of each term by its (attribute, matrix) pairs.
        local: matrix of each pair, e first.
    """
    symmetric = all(
        np.abs(M - M.T).max() <= LEAST_KEPT_EIGENVALUE * np.abs(M).max() for M in local.values()
    )
    if not symmetric or min(terms.values()) < 0:
        return None  # symmetric matrices of a Gram are positive semidefinite, others come in signs
    cuts = [{pair: _cut(own, share) for pair, own in local.items()} for share in SHARES]
    return max(_sum_of_blocks(terms, own) for own in cuts)


def _sum_of_blocks(terms: Mapping[Row, float], cuts: Mapping[tuple[int, int], Cut]) -> float:
    sums: dict[Row, float] = {}
    for row, weight in terms.items():
        for within in _selections(row):
            outside = (cuts[pair][0] for pair in row if pair not in within)
            sums[within] = sums.get(within, 0.0) + weight * math.prod(outside)
    best: dict[Subset, float] = {}
    for within, total in sums.items():
        value = math.sqrt(total) * math.prod(cuts[pair][1] for pair in within)
        b = tuple(i for i, _ in within)
        best[b] = max(best.get(b, 0.0), value)
    return sum(best.values())


def _selections(row: Row) -> list[Row]:
    """Return all selections from the pairs of a term."""
    return [tuple(row[k] for k in chosen) for chosen in subsets_of(tuple(range(len(row))))]


def _cut(own: Array, share: float) -> Cut:
    alpha = float(own[0, 0])
    w, U = np.linalg.eigh((own[1:, 1:] + own[1:, 1:].T) / 2)
    kept = w > LEAST_KEPT_EIGENVALUE * float(w.max(initial=0.0))
    w, coupling = w[kept], U[:, kept].T @ own[1:, 0]
    sigma = max(alpha * (1 - PINCHED_ROUNDING) - float((coupling**2 / w).sum()), 0.0)
    a = share / math.sqrt(alpha) if alpha > 0 else 0.0
    at_e = a * (alpha - sigma) + math.sqrt(sigma * max(1 - a**2 * (alpha - sigma), 0.0))
    left = np.linalg.eigvalsh(np.diag(w) - a**2 * np.outer(coupling, coupling))
    least = LEAST_KEPT_EIGENVALUE * float(w.max(initial=0.0))
    beside = float(np.sqrt(left[left > least]).sum())
    return at_e**2 * (1 - 2 * PINCHED_ROUNDING), beside * (1 - PINCHED_ROUNDING)
