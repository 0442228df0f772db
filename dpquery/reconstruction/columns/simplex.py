"""Nearest points of simplices and of bounded chains, and their whole-number neighbours.

Distances are Euclidean, every coordinate measured in its own standard deviation. A row of an array
is a problem of its own: rows do not see each other.
"""

import numpy as np

from dpquery.arrays import Floats, Ints, Numbers

# A value this close below a whole number is that number: sums of floats are no better.
_SLACK = 1e-6
_LEAST = 1e-12  # of the largest variance: what is known exactly hardly moves


def relative_variances(std_error: Floats | None, shape: tuple[int, ...]) -> Floats:
    """Return positive variances of a table's answers; equal ones where none are known."""
    if std_error is None or not np.any(std_error):
        return np.ones(shape)
    variance = np.square(std_error.reshape(shape) / std_error.max())
    return np.asarray(np.maximum(variance, _LEAST))


def onto_simplex(y: Floats, variance: Floats, total: Floats) -> Floats:
    """Return for each row the x >= 0 of the given total that is nearest to y.

    The minimum of sum_i (x_i - y_i)^2 / v_i is x_i = max(0, y_i - tau v_i), with the one tau that
    makes the sum right. Starting with all coordinates, tau is solved for and the coordinates that
    it makes negative are dropped, until none is: tau only grows, so none comes back (Michelot 1986,
    here with variances). O(m) a pass, and a handful of passes in practice.

    Args:
        y: (c, m).
        variance: (c, m), positive.
        total: (c,), not negative.

    >>> onto_simplex(np.array([[3.0, 1.0, -2.0]]), np.ones((1, 3)), np.array([2.0]))
    array([[2., 0., 0.]])
    """
    positive = np.broadcast_to(total[:, None] > 0, y.shape)
    while True:
        excess = np.sum(y, axis=1, where=positive) - total
        weight = np.sum(variance, axis=1, where=positive)
        tau = np.divide(excess, weight, out=np.zeros_like(total), where=weight > 0)
        point = y - tau[:, None] * variance
        still_positive = positive & (point > 0)
        if np.array_equal(still_positive, positive):
            return np.where(positive, point, 0.0)
        positive = still_positive


def onto_chain(y: Floats, variance: Floats, total: Floats) -> Floats:
    """Return for each row the 0 <= x_1 <= ... <= x_m = total that is nearest to y.

    With bounds that are the same for all, this is isotonic regression cut at them.

    Args:
        y: (c, m).
        variance: (c, m), positive.
        total: (c,), not negative.

    >>> onto_chain(np.array([[2.0, -1.0, 5.0, 4.0]]), np.ones((1, 4)), np.array([4.0]))
    array([[0.5, 0.5, 4. , 4. ]])
    """
    from scipy.optimize import isotonic_regression  # slow to import; few releases need it

    point = np.array(y, dtype=np.float64)
    point[:, -1] = total
    if y.shape[1] > 1:
        for row, weights, most in zip(point, 1 / variance, total, strict=True):
            row[:-1] = np.clip(isotonic_regression(row[:-1], weights=weights[:-1]).x, 0, most)
    return point


def to_whole(x: Floats, total: Numbers) -> Ints:
    """Round every row up or down to whole numbers of the given total: largest remainders go up.

    Args:
        x: (c, m), not negative.
        total: (c,) whole numbers; each is its row's sum rounded up or down.

    >>> to_whole(np.array([[0.4, 2.4, 1.2]]), np.array([4]))
    array([[1, 2, 1]])
    """
    low = np.floor(x + _SLACK)
    missing = np.rint(total - low.sum(axis=1)).astype(np.int64)
    order = np.argsort(low - x, axis=1, kind="stable")
    raised = np.empty(x.shape, dtype=np.int64)
    np.put_along_axis(raised, order, np.arange(x.shape[1])[None, :] < missing[:, None], axis=1)
    return np.asarray(low.astype(np.int64) + raised)
