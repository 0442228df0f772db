"""The nearest counts without negative ones, of a given total, by accelerated projected gradients.

The minimum of x'Hx / 2 - b'x over x >= 0 with sum x = n: a step along the gradient, the nearest
point of the simplex, and momentum that starts anew when it points uphill ([BT09], [OC15]; [MATH]
16). H is never formed, and each step multiplies by it once.
"""

import math
from collections.abc import Callable

import numpy as np

from dpquery.arrays import Floats
from dpquery.reconstruction.columns.simplex import onto_simplex

MOST_GRADIENTS = 1000
CHECKED = 10  # steps, over which the gain is compared with the tolerance
POWERS = 8  # of H, for a first bound of its largest eigenvalue
STEEPER = 1.5  # times that bound, where a step shows it to be too low


def nearest_counts(
    gram: Callable[[Floats], Floats],
    target: Floats,
    start: Floats,
    *,
    total: float,
    tolerance: float,
) -> Floats:
    """Return the counts, of the shape of the target; all are zero if the total is not positive.

    Args:
        gram: multiplies by H, positive semidefinite.
        target: b.
        start: of the same shape; the nearest point of the simplex is where it starts.
        total: n, which all counts add up to.
        tolerance: it ends when CHECKED steps gain less than this.
    """
    if total <= 0:
        return np.zeros(target.shape)
    steepest = _steepest(gram, target.shape)
    point = ahead = _onto(start, total)
    product = product_ahead = gram(point)
    last = _value(point, product, target)
    momentum = 1.0
    for step in range(1, MOST_GRADIENTS + 1):
        moved = _onto(ahead - (product_ahead - target) / steepest, total)
        product_moved = gram(moved)
        change = moved - ahead
        if np.vdot(change, product_moved - product_ahead) > steepest * np.vdot(change, change):
            steepest *= STEEPER
        elif np.vdot(ahead - moved, moved - point) > 0:
            momentum, ahead, product_ahead = 1.0, moved, product_moved
            point, product = moved, product_moved
        else:
            following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            share = (momentum - 1) / following
            ahead = moved + share * (moved - point)
            product_ahead = product_moved + share * (product_moved - product)
            momentum, point, product = following, moved, product_moved
        if step % CHECKED == 0:
            value = _value(point, product, target)
            if last - value < tolerance:
                break
            last = value
    return point


def _steepest(gram: Callable[[Floats], Floats], shape: tuple[int, ...]) -> float:
    """Return about the largest eigenvalue of H, from below; positive."""
    vector, size = np.full(shape, 1 / math.sqrt(math.prod(shape))), 0.0
    vector.flat[0] *= 2
    for _ in range(POWERS):
        vector = gram(vector / np.linalg.norm(vector))
        size = max(size, float(np.linalg.norm(vector)))
        if not size:
            return 1.0
    return size


def _value(point: Floats, product: Floats, target: Floats) -> float:
    return float(np.vdot(point, product / 2 - target))


def _onto(values: Floats, total: float) -> Floats:
    flat = values.reshape(1, -1)
    return onto_simplex(flat, np.ones_like(flat), np.array([total])).reshape(values.shape)
