"""Tensors with one axis an attribute: products along the axes, and sums of tensors that lack some.

Tables here have up to 10^8 cells, so each function passes over memory as rarely as it can: a
product works through pieces that stay in a core's cache, and tensors that lack an axis are added to
one another while they are small.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dpquery.arrays import Numbers

PIECE = 1 << 16  # numbers: with what a product makes of them they fit a core's cache
SHORT = 16  # along the last axis: numpy's loops over so few numbers cost more than their work
Axes = tuple[int, ...]
Product = Callable[[Numbers], Numbers]
"""Of one matrix with (n, k) numbers."""


def kron_apply(products: Sequence[Product | None], tensor: Numbers) -> Numbers:
    """Apply one matrix product along each axis of a tensor; None leaves an axis as it is.

    A product takes (n, k) to (m, k), column by column: it is given some columns at a time. Only
    the first one needs new memory, where all are square.
    """
    given = tensor
    for axis, apply in enumerate(products):
        if apply is not None:
            tensor = _along(axis, apply, tensor, reuse=tensor is not given)
    return tensor


def _along(axis: int, apply: Product, tensor: Numbers, *, reuse: bool) -> Numbers:
    """Apply a product along one axis; the result may take the tensor's own memory if it fits."""
    before, (n, *after) = tensor.shape[:axis], tensor.shape[axis:]
    flat = np.ascontiguousarray(tensor).reshape(math.prod(before), n, math.prod(after))
    outer, _, inner = flat.shape
    columns, out = max(1, PIECE // n), None
    for start in range(0, outer, rows := max(1, columns // inner)):
        for left in range(0, inner, columns):
            piece = flat[start : start + rows, :, left : left + columns].transpose(1, 0, 2)
            applied = apply(np.ascontiguousarray(piece).reshape(n, piece.shape[1] * piece.shape[2]))
            m = applied.shape[0]
            if out is None:
                fits = reuse and m == n and applied.dtype == flat.dtype
                out = flat if fits else np.empty((outer, m, inner), applied.dtype)
            back = applied.reshape(m, *piece.shape[1:]).transpose(1, 0, 2)
            out[start : start + rows, :, left : left + columns] = back
    if out is None:
        raise ValueError("an axis without codes")
    return out.reshape(*before, out.shape[1], *after)


def broadcast_sum(parts: Mapping[Axes, Numbers], spreads: Sequence[Numbers | int]) -> Numbers:
    """Return sum_b parts[b] kron_{i not in b} spreads[i] as one tensor, using up the parts.

    Args:
        parts: for sets b of axes a tensor of length 1 along all other axes, C-contiguous. With b
            there is some b + {i}, up to the set of all axes, whose tensor becomes the sum.
        spreads: for each axis a number, or as many as the axis has along it and 1 along the others.

    Small tensors are added to larger ones, so that the largest takes one addition an axis.
    """
    *smaller, whole = sorted(parts, key=len)
    shape = parts[whole].shape
    for b in smaller:
        beyond = (i for i in whole if i not in b)
        nexts = [(shape[i], tuple(sorted((*b, i))), i) for i in beyond]
        _, above, i = min(step for step in nexts if step[1] in parts)
        part, spread, total = parts[b], spreads[i], parts[above]
        total += part if isinstance(spread, int) and spread == 1 else part * spread
    return parts[whole]


def outer_product(vectors: Sequence[Numbers]) -> Numbers:
    """Return the outer product of vectors, one axis each; 1 of none."""
    product: Numbers = np.ones(())
    for vector in vectors:
        product = np.multiply.outer(product, vector)
    return product


def sum_along(tensor: Numbers, axis: int) -> Numbers:
    """Return the sums along one axis, which stays with length 1."""
    if tensor.shape[axis] >= SHORT:
        return np.asarray(tensor.sum(axis=axis, keepdims=True))
    first, *rest = np.split(tensor, tensor.shape[axis], axis=axis)
    total = first.copy()
    for part in rest:
        total += part
    return total
