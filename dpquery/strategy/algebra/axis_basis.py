"""The basis of one attribute in which what several parts measure of it has orthogonal columns.

There is one while the attribute has at most two kinds of factors, the total included. Where it has
more, the basis is that of all of them together, and every part keeps a triangle in it ([MATH] 8).
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, qr, solve_triangular, svd

from dpquery.arrays import Floats
from dpquery.operators.factors import Factor
from dpquery.strategy.algebra.interchangeable_codes import LEAST_IN_ORBITS
from dpquery.strategy.algebra.reduced_axis import reduced_axis

EXACT = 2.0**53  # below which sums of integers are exact in floats
SHORTEST_LENGTH = 1e-14  # of the lengths of a basis, in proportion to the greatest


@dataclass(frozen=True, eq=False)
class AxisBasis:
    """One attribute in the basis V of what its parts measure.

    Attributes:
        basis: V, (n, n).
        total: 1'V, (n,).
        rows: F of each part, with orthonormal columns: (m, n). None where it sums over the axis.
        scales: S of each part with A V = F S: (n,) a diagonal, or where dense (n, n) a triangle;
            of a part that sums over the axis 1'V, where dense as one row.
        dense: whether the parts have no common basis.
    """

    basis: Floats
    total: Floats
    rows: tuple[Floats | None, ...]
    scales: tuple[Floats, ...]
    dense: bool

    @property
    def n(self) -> int:
        """The number of classes."""
        return len(self.total)


def axis_basis(n: int, factors: Sequence[Factor | None]) -> AxisBasis:
    """Return the basis of one attribute, given the factor of each part. None sums over it."""
    keys: list[Hashable] = [None if factor is None else factor.key for factor in factors]
    distinct = {factor.key: factor for factor in factors if factor is not None}
    tops = {key: float(factor.max_abs()) for key, factor in distinct.items()}
    rows = {key: factor.dense() / tops[key] for key, factor in distinct.items()}
    if len(set(keys)) <= 2:
        merged = _merged_basis(n, rows, tops, keys)
        if merged is not None:
            return merged
    split: dict[Hashable, tuple[Floats | None, Floats]] = {}
    if len(distinct) == 2 and None not in keys:
        basis, pair = _common_basis(*rows.values())
        for key, (F, lengths) in zip(rows, pair, strict=True):
            split[key] = (F, tops[key] * lengths)
        return _of_parts(basis, basis.sum(axis=0), [split[key] for key in keys], dense=False)
    Q, R = qr(np.vstack(list(rows.values())), mode="economic")
    _check_positive(np.abs(np.diagonal(R)))
    basis, total, H = total_first(R)
    split[None] = (None, total if len(distinct) == 1 else total[None, :])
    if len(distinct) == 1:
        split |= {key: (Q @ H, np.full(n, top)) for key, top in tops.items()}
    else:
        ends = np.cumsum([len(table) for table in rows.values()])[:-1]
        for key, table in zip(rows, np.split(Q @ H, ends), strict=True):
            F, S = np.linalg.qr(table)
            split[key] = (F, tops[key] * S)
    return _of_parts(basis, total, [split[key] for key in keys], dense=len(distinct) > 1)


def _merged_basis(
    n: int,
    rows: Mapping[Hashable, Floats],
    tops: Mapping[Hashable, float],
    keys: Sequence[Hashable],
) -> AxisBasis | None:
    """Return the basis where swaps of interchangeable codes leave all Grams as they are, or None.

    Such rows have one length on all zero-sum vectors of an orbit, orthogonal to what they say of
    sums: what takes decompositions in O(n^3) is done on the indicators alone.
    """
    if n < LEAST_IN_ORBITS:
        return None
    # integers again, whose Grams are exact: their entries are compared
    whole = [np.round(tops[key] * table, 6) for key, table in rows.items()]
    if any(len(A) * float(np.abs(A).max()) ** 2 > EXACT or np.any(A % 1) for A in whole):
        return None
    reduced = reduced_axis([A.T @ A for A in whole])
    if reduced is None:
        return None
    axis, orbits = reduced
    vectors, orbit = axis.zero_sums()
    scales = np.sqrt(
        np.array(
            [one[orbit] / tops[key] ** 2 for key, one in zip(rows, orbits.inside, strict=True)]
        )
    )
    lengths = np.sqrt((scales**2).sum(axis=0))
    _check_positive(scales.ravel())
    ones = np.sqrt(axis.sizes)
    summed = [qr(A @ axis.indicators(np.eye(len(ones))), mode="economic") for A in rows.values()]
    for _, R in summed:
        _check_positive(np.abs(np.diagonal(R)))
    if len(rows) == 1:
        level, total, H = total_first(summed[0][1], ones)
        parts = [(H, np.ones(len(ones)))]
    else:
        level, parts = _common_basis(*(np.asarray(R, dtype=np.float64) for _, R in summed))
        total = ones @ level
    total = np.concatenate([total, np.zeros(n - len(ones))])
    basis = np.hstack([axis.indicators(level), vectors / lengths])
    split: dict[Hashable, tuple[Floats | None, Floats]] = {None: (None, total)}
    for (key, A), (Q, _), (F, S), inside in zip(rows.items(), summed, parts, scales, strict=True):
        columns = np.hstack([Q @ F, A @ vectors / inside])
        split[key] = (columns, tops[key] * np.concatenate([S, inside / lengths]))
    return _of_parts(basis, total, [split[key] for key in keys], dense=False)


def _of_parts(
    basis: Floats, total: Floats, parts: Sequence[tuple[Floats | None, Floats]], *, dense: bool
) -> AxisBasis:
    rows, scales = zip(*parts, strict=True)
    return AxisBasis(basis, total, rows, scales, dense)


def _common_basis(A: Floats, B: Floats) -> tuple[Floats, list[tuple[Floats, Floats]]]:
    """Return V for which A V and B V have orthogonal columns: each as columns times lengths.

    With [A; B] = Q R and W the singular vectors of the upper part of Q, V = R^-1 W: both parts of
    Q W have orthogonal columns, since their Grams add up to the identity. Where the upper part is
    the longer one the vectors are taken from the lower part, whose lengths it hardly shows.
    """
    Q, R = qr(np.vstack([A, B]), mode="economic")
    upper, lower = Q[: len(A)], Q[len(A) :]
    columns, cosines, Wt = svd(upper, full_matrices=False)
    W, long = Wt.T, cosines > math.sqrt(0.5)
    below = lower @ W
    sines = np.linalg.norm(below, axis=0)
    below /= np.where(sines > 0, sines, 1.0)
    if long.any():
        below[:, long], sines[long], turn = svd(lower @ W[:, long], full_matrices=False)
        W[:, long] = W[:, long] @ turn.T
        above = upper @ W[:, long]
        cosines[long] = np.linalg.norm(above, axis=0)
        columns[:, long] = above / cosines[long]
    _check_positive(np.concatenate([cosines, sines, np.abs(np.diagonal(R))]))
    return solve_triangular(R, W), [(columns, cosines), (below, sines)]


def total_first(
    R: NDArray[np.floating], ones: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """Return V = R^-1 H, the total 1'V, which is zero but for its first entry, and H.

    H is the reflection of R'^-1 1 onto the first axis, so that A V = Q H has orthonormal columns
    for A = Q R. R: (n, n), upper triangular. ones: what takes the place of 1 in another basis.
    """
    n = len(R)
    u = solve_triangular(R, np.ones(n) if ones is None else ones, trans="T")
    mirror = u / float(np.linalg.norm(u))
    mirror[0] += math.copysign(1.0, mirror[0])
    H = np.eye(n) - 2 * np.outer(mirror, mirror) / (mirror @ mirror)
    total = np.zeros(n)
    total[0] = float(H[0] @ u)
    return solve_triangular(R, H), total, H


def _check_positive(lengths: Floats) -> None:
    if not float(lengths.min()) > SHORTEST_LENGTH * float(lengths.max()):
        raise LinAlgError("a factor without full column rank, in floats")
