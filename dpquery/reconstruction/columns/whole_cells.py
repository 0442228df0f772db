"""Cells in whole numbers that keep sums: rounded from the total down, along cumulative sums.

The shortest axis is split first, the longest last. Along a line of cells the cumulative sums are
rounded, so that every run of neighbours, prefixes and ranges among them, keeps its sum to less than
one; codes stand in the order of their hierarchy, so that its groups are runs too. Lines are rounded
at points that are spread evenly over them, so that sums across many lines stay near as well: with
one point for all, cells of 0.4 in a thousand lines would be a thousand zeros.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.factors import Factor, Groups, Identity, IdentityRows, Ones, Stacked

GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread as evenly as can be
SLACK = 1e-6  # a value this close below a whole number is that number: sums of floats are no better


def whole_cells(cells: Floats, orders: Sequence[Ints | None]) -> Ints:
    """Round the cells of a table, each up or down, to the rounded sum of all.

    Args:
        cells: none negative.
        orders: for each axis the order in which neighbours keep their sums; None for that of the
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
    low = np.floor(ends[:, -1] + SLACK)
    above = np.clip(ends[:, -1] - low, 0.0, 1.0)
    point = (0.5 + GOLDEN * np.arange(len(sums))) % 1
    shift = np.where(totals > low, 1 - above * (1 - point), (1 - above) * point)
    counts = np.floor(ends + shift[:, None] + SLACK).astype(np.int64)
    counts = np.minimum(counts, totals[:, None])
    counts[:, -1] = totals
    return np.diff(counts, axis=1, prepend=0)


def order_of_codes(factors: Iterable[Factor], codes: int) -> Ints | None:
    """Return the order that makes runs of the groups that are asked for, large ones outermost.

    Args:
        factors: what is asked of one attribute.
        codes: how many it has.

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
