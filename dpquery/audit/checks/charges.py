"""What Laplace noise is charged in zCDP, against the divergences of its law, added up directly."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from scipy.special import expit, ndtri

from dpquery.audit.cases.specs_and_records import Size
from dpquery.audit.findings import Finding
from dpquery.measurement.noise.laplace_cost import Moves, laplace_rho

_SCALES = (1.0, 2.0, 3.3, 64.7, 1000.3)  # every value between two centres is added up
_ORDERS = (1.01, 1.2, 2.0, 4.0, 16.0, 256.0)
_MOVES = ((1,), (3,), (8,), (1, 1, 1, 1), (1, 5), (2, 3, 9))
"""Of the rows of a vector, in tenths of a scale, rounded up: small ones and whole scales."""
_MOST_WASTED = 1.3  # times the divergence at order one, where moves are unlike
_ROUNDING = 1e-9


def charges(_: Size) -> Iterator[Finding]:
    """Compare the charge of moves of one row and of several with their divergence; no draws."""
    for scale in _SCALES:
        for tenths in (1, 10, 40):
            yield _checked(scale, tenths)


def _checked(scale: float, tenths: int) -> Finding:
    """Test all vectors of moves at one scale, a move of 1 being so many tenths of the scale."""
    shares = []
    for units in _MOVES:
        moves = [math.ceil(unit * tenths * scale / 10) for unit in units]
        squared = sum(move * move for move in moves)
        charged = float(laplace_rho([Moves(sum(moves), squared)], scale=scale))
        at_orders = [sum(divergence(move, scale, a) for move in moves) / a for a in _ORDERS]
        shares.append((max(at_orders) / charged, laplace_limit(moves, scale) / charged))
    most, least = max(max(pair) for pair in shares), min(limit for _, limit in shares)
    return Finding(
        "charges",
        f"Laplace noise of scale {scale:,g}, moves of {tenths / 10:g} scales and more",
        "the rho charged is at least the divergence over the order, at all orders",
        most <= 1 + _ROUNDING and least >= 1 / _MOST_WASTED,
        f"the divergence is up to {most:.6f} of the charge and at order one at least {least:.2f}, "
        f"over {len(_MOVES)} vectors and {len(_ORDERS)} orders",
    )


def divergence(move: int, scale: float, order: float) -> float:
    """Return the Renyi divergence of the law from the law moved, summed over the law.

    Outside of both centres both laws fall by one factor, so that the rest is a geometric series.
    """
    y = np.arange(move + 1, dtype=np.float64)
    exponents = (order * -y + (order - 1) * (move - y)) / scale
    tail = -1 / scale - math.log(-math.expm1(-1 / scale))
    log_sum = float(
        np.logaddexp.reduce([*exponents[[0, -1]] + tail, np.logaddexp.reduce(exponents)])
    )
    return (log_sum + math.log(math.tanh(1 / (2 * scale)))) / (order - 1)


def laplace_limit(moves: Sequence[int], scale: float) -> float:
    """Return the divergence at order one of moves of independent rows, in floats.

    It is E |Y - s| - E |Y| over the scale, summed over the rows.
    """
    spread = 1 / (scale * math.sinh(1 / scale))
    return math.fsum(move / scale + math.expm1(-move / scale) * spread for move in moves)


def least_rho(moves: Sequence[int], *, shift: int, scale: Fraction) -> float:
    """Return what moves of the answers cost at least where these are floored to 2^shift."""
    return laplace_limit([abs(move) >> shift for move in moves], float(scale))


def least_squared_mu(moves: Sequence[int], *, shift: int, scale: Fraction) -> float:
    """Return the squared mu of GDP that Laplace noise is charged for such moves at least.

    That is (pi / 2) sum (move / scale)^2; each row has at most the privacy loss of that mu.
    """
    steps = (abs(move) >> shift for move in moves)
    return math.pi / 2 * math.fsum((step / float(scale)) ** 2 for step in steps)


def pure_squared_mu(epsilon: float) -> float:
    """Return the squared mu of GDP that epsilon-DP implies: two laws as far apart as it allows."""
    return (2 * float(ndtri(expit(-epsilon)))) ** 2
