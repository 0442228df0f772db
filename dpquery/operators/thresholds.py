r"""At least r of k: how predicates are counted, without a term for each of 2^k sets of them.

With hits s the threshold is the function [s >= r]. Its mean over independent predicates that hold
with p_i, and its differences in some of them, take one pass over the attributes, O(k r) each. Where
the p_i differ from row to row the function is written as a sum of k + 1 products instead,
    [s >= r] = sum_j alpha_j x_j^s    (s = 0..k, any k + 1 distinct nodes x_j),
since x^s = prod_i x^{h_i}: as an operator prod_i (1 1' + (x - 1) F_i), a Kronecker product.
"""

import math
from collections.abc import Sequence

import numpy as np

from dpquery.arrays import Floats, Numbers
from dpquery.operators.tensors import Product, kron_apply, sum_along

THRESHOLD_ROUNDING = 1e-13  # relative to what cancelled


def threshold_sum(pairs: Sequence[tuple[Numbers | int, Numbers | int]], r: int) -> Numbers:
    """Return the sum over all ways to hit at least r of the pairs (miss, hit), of the products.

    Entries broadcast against each other; Python ints and arrays of them stay exact.

    >>> int(threshold_sum([(1, 2), (3, 4), (5, 6)], 2))  # 1*4*6 + 2*3*6 + 2*4*5 + 2*4*6
    148
    """
    below: list[Numbers] = [np.asarray(1 if j == 0 else 0, dtype=object) for j in range(r)]
    reached = np.asarray(int(r == 0), dtype=object)
    for miss, hit in pairs:
        reached = reached * (miss + hit) + (below[-1] * hit if r else 0)
        below = [count * miss + (below[j - 1] * hit if j else 0) for j, count in enumerate(below)]
    return np.asarray(reached)


def threshold_apply(
    products: Sequence[tuple[int, Product | None]], tensor: Numbers, r: int
) -> Numbers:
    """Multiply a tensor by "at least r of these predicates hold", one axis after the other.

    At least r of k hold where not at most r - 1 do, and where at most k - r do not: the shorter
    count is taken. A tensor for each count is split, axis by axis, into what meets the predicates
    there, F T, and what does not, 11' T - F T. So there are (k + 1) / 2 tensors at most, none of
    them larger than codes and predicates make it, and whole numbers stay exact.

    Args:
        products: of each counted axis its place and its matrix's product, or None for the identity.
        tensor: any shape.
        r: how many must hold, from 1 to k.
    """
    k = len(products)
    by_hits = r - 1 <= k - r
    most = r - 1 if by_hits else k - r
    whole, by_count = tensor, [tensor]
    for axis, product in products:
        after: list[Numbers] = []
        for count, table in enumerate(by_count):
            met = kron_apply([*[None] * axis, product], table)
            missed = sum_along(table, axis) - met
            one_more, as_many = (met, missed) if by_hits else (missed, met)
            if count:
                after[count] = after[count] + as_many
            else:
                after.append(as_many)
            if count < most:
                after.append(one_more)
        by_count = after
        whole = sum_along(whole, axis)
    at_most = sum(by_count[1:], by_count[0])
    return whole - at_most if by_hits else at_most


def jointly_met(states: Sequence[tuple[Numbers, Numbers, Numbers, Numbers]], r: int) -> Numbers:
    """Return the number of ways in which each of two codes hits at least r.

    Args:
        states: for each counted attribute how many predicates neither code meets, the first alone,
            the second alone, and both; they broadcast, and Python ints stay exact.
        r: how many must hold.

    >>> int(jointly_met([(1, 0, 0, 1), (0, 1, 1, 0)], 1))  # both meet the first predicate set
    2
    """
    zero, one = (np.asarray(number, dtype=object) for number in (0, 1))
    ways = {(0, 0): one}
    for states_of_attribute in states:
        after: dict[tuple[int, int], Numbers] = {}
        for (a, b), count in ways.items():
            steps = ((a, b), (a + 1, b), (a, b + 1), (a + 1, b + 1))
            for (x, y), number in zip(steps, states_of_attribute, strict=True):
                place = min(x, r), min(y, r)
                after[place] = after.get(place, zero) + count * number
        ways = after
    return ways.get((r, r), zero)


def differences(levels: Sequence[float], r: int, *, beside: int = 0) -> Floats:
    r"""Return the differences of [s >= r] in every set of predicates, with s more that hold.

    Entry (a, s) is sum_{u >= a} coef_u prod_{i in u \ a} p_i of the signed terms of a threshold
    ([MATH] 5): how much of the predicates in a alone is in it, the others at their levels p_i.

    Args:
        levels: p_i of every predicate.
        r: how many must hold.
        beside: number of further predicates.

    Returns:
        (2^k, beside + 1): sets as an outer product of k pairs (not a member, a member) lists them.

    >>> differences([0.5, 0.5], 1)[:, 0].tolist()  # of any-of: 1 - 1/4, 1/2, 1/2, -1
    [0.75, 0.5, 0.5, -1.0]
    """
    k = len(levels)
    masses, sizes = np.zeros((1, k + 1)), np.zeros(1, dtype=np.int64)
    masses[0, 0] = 1.0
    for p in levels:
        outside = masses * (1 - p)
        outside[:, 1:] += masses[:, :-1] * p
        masses = np.stack([outside, masses], axis=1).reshape(-1, k + 1)
        sizes = np.stack([sizes, sizes + 1], axis=1).ravel()
    steps = np.array([_steps(k, w, r, beside) for w in range(k + 1)])[sizes]
    sums = np.einsum("ax,axs->as", masses, steps)
    magnitudes = np.einsum("ax,axs->as", np.abs(masses), np.abs(steps))
    return np.where(np.abs(sums) > THRESHOLD_ROUNDING * magnitudes, sums, 0.0)


def _steps(k: int, w: int, r: int, beside: int) -> Floats:
    """Return the w-th difference of [x + s >= r]: (k + 1, beside + 1)."""
    out = np.zeros((k + 1, beside + 1))
    for x in range(k + 1):
        for s in range(beside + 1):
            j = r - 1 - s - x
            if w == 0:
                out[x, s] = j < 0
            elif 0 <= j < w:
                out[x, s] = (-1) ** (w - 1 - j) * math.comb(w - 1, j)
    return out


def threshold_nodes(k: int) -> Floats:
    """Return k + 1 nodes, the first of them 1, in which sums of powers are well conditioned."""
    return np.cos(np.pi * np.arange(k + 1) / max(k, 1))


def node_weights(values: Floats) -> Floats:
    """Return alpha with sum_j alpha_j x_j^s = values[..., s]. values: (..., k + 1)."""
    k = values.shape[-1] - 1
    powers = threshold_nodes(k)[None, :] ** np.arange(k + 1)[:, None]
    return np.asarray(np.linalg.solve(powers, values[..., None])[..., 0])
