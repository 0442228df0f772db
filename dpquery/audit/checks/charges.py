"""What noise is charged in zCDP and in GDP, against its law, added up directly; no draws.

A trade-off curve says how much of an event's probability on one data set can be told from its
probability on a neighbouring one. Of mu-GDP, Phi^-1(power) - Phi^-1(level) is at most mu at each
corner of the curve. The curve is convex between its corners, so they are all there is to look at.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from scipy.special import ndtri

from dpquery.audit.cases.expected_noise import mu_of
from dpquery.audit.cases.specs_and_records import Size
from dpquery.audit.checks.both_sums import both_sums
from dpquery.audit.findings import Finding
from dpquery.audit.statistics import NoiseDistribution
from dpquery.measurement.accounting import (
    UNIT,
    Guarantee,
    charge_units,
    guarantee,
    noise_scale,
)
from dpquery.measurement.noise.laplace_cost import Moves, laplace_rho, laplace_squared_mu

_SCALES = (1.0, 2.0, 3.3, 64.7, 1000.3)  # every value between two centres is added up
_ORDERS = (1.01, 1.2, 2.0, 4.0, 16.0, 256.0)
_MOVES = ((1,), (3,), (8,), (1, 1, 1, 1), (1, 5), (2, 3, 9))
"""Of the rows of a vector, in tenths of a scale, rounded up: small ones and whole scales."""
_MOST_WASTED = 1.3  # times the divergence at order one, where moves are unlike
_MOST_WASTED_IN_MU = 3  # times the squared mu, which epsilon alone does not tell at large moves
_PROMISES = tuple((Fraction(e), Fraction(d)) for e in ("0.1", "1", "4") for d in ("1e-6", "1e-9"))
_SHIFTS = (1, 7, 1_000_003)  # of an answer: noise of a few steps and of millions
_LEAST_REACHED = 0.99  # of delta, by noise of _FINE steps: coarser steps hide some
_FINE = 1000
_ROUNDING = 1e-9


def charges(_: Size) -> Iterator[Finding]:
    """Compare charges with what noise and releases disclose; no draws."""
    for scale in _SCALES:
        for tenths in (1, 10, 40):
            yield _in_rho(scale, tenths)
    for scale in _SCALES:
        yield _in_squared_mu(scale)
    for shift in _SHIFTS:
        yield _at_the_curve(shift)
    yield from both_sums()


def _moves(scale: float, tenths: int) -> Iterator[list[int]]:
    """Yield vectors of moves, a move of 1 being so many tenths of the scale."""
    for units in _MOVES:
        yield [math.ceil(unit * tenths * scale / 10) for unit in units]


def _in_rho(scale: float, tenths: int) -> Finding:
    """Test all vectors of moves of one size at one scale of Laplace noise."""
    shares = []
    for moves in _moves(scale, tenths):
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


def _in_squared_mu(scale: float) -> Finding:
    """Test all vectors of moves at one scale of Laplace noise."""
    law, shares = NoiseDistribution("laplace", Fraction(scale)), []
    for tenths in (1, 10, 40):
        for moves in _moves(scale, tenths):
            epsilon = sum(moves) / Fraction(scale)
            cost = laplace_squared_mu(sum(move * move for move in moves), scale=scale)
            spent = Guarantee("pure", epsilon, epsilon, Fraction(0), squared_mu=cost)
            charged = charge_units(spent, "mu^2") / UNIT
            shares.append(math.fsum(_least_mu(law, move) ** 2 for move in moves) / charged)
    return Finding(
        "charges",
        f"Laplace noise of scale {scale:,g}, charged in mu^2",
        "the mu^2 charged is at least that of every event, added up over independent rows",
        max(shares) <= 1 + _ROUNDING and min(shares) >= 1 / _MOST_WASTED_IN_MU,
        f"the squared mu of the law is {min(shares):.2f} to {max(shares):.6f} of the charge, "
        f"over {len(shares)} vectors",
    )


def _least_mu(law: NoiseDistribution, move: int) -> float:
    """Return the mu of Laplace noise whose answer moves: at the events "y is k or less".

    Beyond both centres the likelihood ratio is constant, so that the corners are 0 <= k < move.
    """
    k = np.arange(move)
    return float(np.max(ndtri(law.below(k)) - ndtri(law.below(k - move))))


def _at_the_curve(shift: int) -> Finding:
    """Test the scale and charge of rounded noise by the delta of its law, where an answer moves."""
    reached, off, fine = [], 0.0, True
    for epsilon, delta in _PROMISES:
        spent = guarantee("gaussian", epsilon=epsilon, delta=delta, accounting="gdp")
        scale = noise_scale(spent, shift**2)
        law = NoiseDistribution("rounded", Fraction(scale))
        share = _delta(law, shift, float(epsilon)) / float(delta)
        fine = fine and (scale < _FINE or share >= _LEAST_REACHED)
        charged = charge_units(spent, "mu^2") / UNIT
        off = max(off, 1 - charged / (shift / scale) ** 2)
        off = max(off, abs(charged / mu_of(float(epsilon), float(delta)) ** 2 - 1))
        reached.append(share)
    return Finding(
        "charges",
        f"rounded Gaussian noise, moves of {shift:,}",
        "the scale keeps (epsilon, delta), and no more noise is drawn; mu^2 is that of the curve",
        max(reached) <= 1 + _ROUNDING * 1000 and fine and off <= _ROUNDING,
        f"delta is {min(reached):.4f} to {max(reached):.6f} of what was promised, "
        f"at {len(reached)} promises",
    )


def _delta(law: NoiseDistribution, shift: int, epsilon: float) -> float:
    """Return the delta of rounded noise at an epsilon, over the events "y is k or less".

    Its likelihood ratio is monotone, so that these are the best events.
    """
    scale = float(law.scale)
    turn = shift / 2 - epsilon * scale * scale / shift  # where the ratio of densities is epsilon's
    k = math.floor(turn) + np.arange(-2, 3)
    return float(np.max(law.below(k) - math.exp(epsilon) * law.below(k - shift)))


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
