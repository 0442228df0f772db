"""Nearest points: on a simplex, on chains, in whole numbers.

The nearest counts without negative ones, of a given total, by accelerated projected gradients.

The minimum of x'Hx / 2 - b'x over x >= 0 with sum x = n: a step along the gradient, the nearest
point of the simplex, and momentum that starts anew when it points uphill ([BT09], [OC15]; [MATH]
16). H is never formed, and each step multiplies by it once.

Distances are Euclidean, every coordinate measured in its own standard deviation. A row of an array
is a problem of its own: rows do not see each other.

Cells in whole numbers that keep sums: rounded from the total down, along cumulative sums.

The shortest axis is split first, the longest last. Along a line of cells the cumulative sums are
rounded, so that every run of neighbours, prefixes and ranges among them, keeps its sum to less than
one; codes stand in the order of their hierarchy, so that its groups are runs too. Lines are rounded
at points that are spread evenly over them, so that sums across many lines stay near as well: with
one point for all, cells of 0.4 in a thousand lines would be a thousand zeros.

Where ranges, prefixes or groups are asked of an attribute, its noise is small just for these. The
covariance of its single values, less that of their mean, says how noise lies along its codes; that
of a component over several attributes is the product of theirs, times one variance ([MATH] 16:
exactly so where the strategy splits, else as the single attributes show it).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.blocks import marginal
from dpquery.operators.factors import Factor, Groups, Identity, IdentityRows, Ones, Stacked
from dpquery.strategy.algebra.query_powers import QueryPairs, QueryRows
from dpquery.strategy.strategy import Strategy

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

    y and the positive variances are (c, m), the totals (c,) and not negative.

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

    With bounds that are the same for all, these are the rising values, cut at them.

    y and the positive variances are (c, m), the totals (c,) and not negative.

    >>> onto_chain(np.array([[2.0, -1.0, 5.0, 4.0]]), np.ones((1, 4)), np.array([4.0]))
    array([[0.5, 0.5, 4. , 4. ]])
    """
    rising = onto_rising(y[:, :-1], variance[:, :-1])
    return np.column_stack([np.clip(rising, 0, total[:, None]), total])


def onto_rising(y: Floats, variance: Floats) -> Floats:
    """Return the x_1 <= ... <= x_m nearest to y along the last axis: isotonic regression.

    Neighbours that fall are merged into their mean, all at once, until there are none.

    y is (..., m), and the positive variances broadcast to that.

    >>> onto_rising(np.array([3.0, 1.0, 5.0]), np.ones(3))
    array([2., 2., 5.])
    """
    starts, means = np.arange(y.size), y.ravel()
    weights = np.broadcast_to(1 / variance, y.shape).ravel()
    while (falling := (np.diff(means) < 0) & (starts[1:] % y.shape[-1] > 0)).any():
        firsts = np.flatnonzero(np.append(True, ~falling))
        sums = np.add.reduceat(weights * means, firsts)
        starts, weights = starts[firsts], np.add.reduceat(weights, firsts)
        means = sums / weights
    return np.repeat(means, np.diff(starts, append=y.size)).reshape(y.shape)


def to_whole(x: Floats, total: Numbers) -> Ints:
    """Round every row up or down to whole numbers of the given total: largest remainders go up.

    x is (c, m), not negative; the totals are (c,) whole numbers, each the sum of its row rounded up
    or down.

    >>> to_whole(np.array([[0.4, 2.4, 1.2]]), np.array([4]))
    array([[1, 2, 1]])
    """
    low = np.floor(x + _SLACK)
    missing = np.rint(total - low.sum(axis=1)).astype(np.int64)
    order = np.argsort(low - x, axis=1, kind="stable")
    raised = np.empty(x.shape, dtype=np.int64)
    np.put_along_axis(raised, order, np.arange(x.shape[1])[None, :] < missing[:, None], axis=1)
    return np.asarray(low.astype(np.int64) + raised)


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
    point = ahead = onto_total(start, total)
    product = product_ahead = gram(point)
    last = _value(point, product, target)
    momentum = 1.0
    for step in range(1, MOST_GRADIENTS + 1):
        moved = onto_total(ahead - (product_ahead - target) / steepest, total)
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


def onto_total(values: Floats, total: float) -> Floats:
    """Return the nearest numbers of any shape, none negative, that add up to a total."""
    flat = values.reshape(1, -1)
    return onto_simplex(flat, np.ones_like(flat), np.array([total])).reshape(values.shape)


GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread as evenly as can be


def whole_cells(cells: Floats, orders: Sequence[Ints | None]) -> Ints:
    """Round the cells of a table, each up or down, to the rounded sum of all.

    No cell is negative. An order is that in which neighbours keep their sums; None is that of the
    codes.

    >>> whole_cells(np.array([[0.1, 0.9], [1.2, 0.8]]), (None, None))
    array([[0, 1],
           [1, 1]])
    """
    axes = sorted(range(cells.ndim), key=lambda axis: cells.shape[axis])
    for axis, order in enumerate(orders):
        if order is not None:
            cells = np.take(cells, order, axis=axis)
    turned = cells.transpose(axes)
    rounded = np.rint(cells.sum()).astype(np.int64).reshape(1)
    for axis in range(turned.ndim):
        sums = turned.sum(axis=tuple(range(axis + 1, turned.ndim)))
        rounded = _split(sums.reshape(len(rounded), -1), rounded).reshape(-1)
    back = rounded.reshape(turned.shape).transpose(np.argsort(axes))
    for axis, order in enumerate(orders):
        if order is not None:
            back = np.take(back, np.argsort(order), axis=axis)
    return np.ascontiguousarray(back)


def _split(sums: Floats, totals: Ints) -> Ints:
    """Round every line up or down to whole numbers of its total. (lines, n)."""
    ends = np.cumsum(sums, axis=1)
    low = np.floor(ends[:, -1] + _SLACK)
    above = np.clip(ends[:, -1] - low, 0.0, 1.0)
    point = (0.5 + GOLDEN * np.arange(len(sums))) % 1
    shift = np.where(totals > low, 1 - above * (1 - point), (1 - above) * point)
    counts = np.floor(ends + shift[:, None] + _SLACK).astype(np.int64)
    counts = np.minimum(counts, totals[:, None])
    counts[:, -1] = totals
    return np.diff(counts, axis=1, prepend=0)


def order_of_codes(factors: Iterable[Factor], codes: int) -> Ints | None:
    """Return the order that makes runs of the groups that are asked for, large ones outermost.

    Returns:
        (codes,) or None where the codes' order is to stay, as ranges are asked for.
    """
    groupings: list[Ints] = []
    for factor in _parts(factors):
        if isinstance(factor, Identity | IdentityRows | Ones):
            continue
        if not isinstance(factor, Groups):
            return None
        groups = factor.matrix
        if int(groups.sum(axis=0).max(initial=0)) > 1:
            continue
        label = np.full(codes, groups.shape[0], dtype=np.int64)
        label[groups.indices] = np.repeat(np.arange(groups.shape[0]), np.diff(groups.indptr))
        groupings.append(label)
    if not groupings:
        return None
    groupings.sort(key=lambda label: len(np.unique(label)))
    return np.lexsort((np.arange(codes), *reversed(groupings)))


def _parts(factors: Iterable[Factor]) -> Iterable[Factor]:
    for factor in factors:
        if isinstance(factor, Stacked):
            yield from _parts(factor.parts)
        else:
            yield factor


SHAPED = 1024  # classes of an attribute whose noise is decomposed: it takes O(n^3)
LEAST_VARIANCE = 1e-9  # of the mean one of an attribute's contrasts
PRECISE = 1e-6  # squared counts


@dataclass(frozen=True, eq=False)
class NoiseShape:
    """The noise along one attribute of n codes, in a basis where it is independent."""

    basis: Floats  # (n, n) orthonormal columns, the first of which is the mean's
    precision: Floats  # (n,) of each of them but the mean, in units of one over their mean variance
    variance: float  # that mean, under unit noise on every measured row

    def nearest(self, counts: Floats, total: float) -> Floats:
        """Return the counts of the codes nearest to estimates, none negative and of a total."""

        def gram(values: Floats) -> Floats:
            return np.asarray(self.basis @ (self.precision * (values @ self.basis)))

        return nearest_counts(gram, gram(counts), counts, total=total, tolerance=PRECISE)


def noise_shape(strategy: Strategy, attribute: int) -> NoiseShape:
    """Return the shape of the noise along one attribute, whose single values are supported."""
    n = strategy.shape[attribute]
    codes, block = np.arange(n), marginal(strategy.shape, (attribute,))
    pairs = QueryPairs(QueryRows(block, codes[:, None]), QueryRows(block, codes[None, :]))
    covariance = np.asarray(strategy.covariances(pairs), dtype=np.float64)
    centred = covariance - covariance.mean(axis=0) - covariance.mean(axis=1, keepdims=True)
    centred += covariance.mean()
    # The mean is an eigenvector for 0: moved below all others, it comes first.
    scale = float(np.trace(centred)) / (n - 1)
    shifted = (centred + centred.T) / (2 * scale) - np.full((n, n), 1 / n)
    variance, basis = np.linalg.eigh(shifted)
    variance[0] = 1.0
    return NoiseShape(basis, 1 / np.maximum(variance, LEAST_VARIANCE), scale)
