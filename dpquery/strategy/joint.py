"""Kronecker products measured side by side, inverted together.

With parts k of weight w_k the normal matrix is A'A = sum_k w_k^2 kron_i X_ki. Two Grams of one
attribute, one of them positive definite, are made diagonal by one congruence: V_i' X V_i = diag(x).
So while no attribute has more than two, that of the total 11' included,
    (A'A)^- = V diag(1 / sum_k w_k^2 kron_i x_ki) V',  V = kron_i V_i,
with zeros where all x vanish: directions that no part sees, and no supported query has. Attributes
with more Grams are kept dense: one matrix over them for each place on the other axes. Every
generalised inverse gives supported queries the same answers and variances ([MATH] 8).
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigh, solve_triangular

from dpquery.operators.blocks import Block, Side
from dpquery.operators.factors import ROW_CHUNK, Array, Dense, Factor
from dpquery.operators.tensors import kron_apply

CELLS_LIMIT = 1 << 24  # over the attributes measured
DENSE_LIMIT = 1 << 22  # those cells, times the cells of the dense attributes, or the parts
ROWS_LIMIT = 1 << 24  # of a block: its variances are one tensor
MAX_CLASSES = 2048  # of an attribute that is measured: its basis takes O(n^3)


@dataclass(frozen=True, eq=False)
class _Axis:
    """One attribute in the basis V that its Grams share.

    Attributes:
        basis: V, (n, n).
        total: 1'V, (n,).
        grams: V'XV for the Gram of each part: its diagonal (n,), or all of it (n, n) where dense.
        dense: whether the Grams have no common basis; then 1'V is zero but for its first entry.
    """

    basis: Array
    total: Array
    grams: tuple[Array, ...]
    dense: bool

    @property
    def n(self) -> int:
        return len(self.total)


@dataclass(frozen=True, eq=False)
class JointInverse:
    """(A'A)^- of products side by side, over the attributes that some part measures.

    Attributes:
        axes: the attributes measured, and their bases.
        parts: for each part the factors of the attributes that it measures.
        weights: what each part is multiplied by.
        inverse: (cells of the other axes, M, M), M the cells of the dense axes.
    """

    axes: Mapping[int, _Axis]
    parts: tuple[Mapping[int, Factor], ...]
    weights: tuple[float, ...]
    inverse: Array

    @cached_property
    def attributes(self) -> tuple[int, ...]:
        """The attributes that some part measures, in order."""
        return tuple(sorted(self.axes))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The attributes with those of the dense axes last: the axes of `inverse`."""
        return tuple(sorted(self.axes, key=lambda i: (self.axes[i].dense, i)))

    @cached_property
    def paired(self) -> Array:
        """The inverse with one axis an attribute, in order: n long, or n^2 (pairs) where dense."""
        diagonal = [self.axes[i].n for i in self.order if not self.axes[i].dense]
        dense = [self.axes[i].n for i in self.order if self.axes[i].dense]
        d, k = len(diagonal), len(dense)
        split = self.inverse.reshape([*diagonal, *dense, *dense])
        beside = [axis for j in range(k) for axis in (d + j, d + k + j)]
        tensor = split.transpose([*range(d), *beside])
        tensor = tensor.reshape([*diagonal, *(n * n for n in dense)])
        return tensor.transpose([self.order.index(i) for i in self.attributes])

    def solve(self, answers: Sequence[Array]) -> Array:
        """Return the least squares counts from the noisy answers of every part.

        Args:
            answers: for each part a tensor with one axis an attribute that it measures.

        Returns:
            A tensor with one axis for each of `attributes`.
        """
        right = np.zeros([self.axes[i].n for i in self.attributes])
        for weight, part, noisy in zip(self.weights, self.parts, answers, strict=True):
            right += weight * self._normal(part, noisy)
        moved = right.transpose([self.attributes.index(i) for i in self.order])
        solved = self.inverse @ moved.reshape(*self.inverse.shape[:2], 1)
        back = [self.order.index(i) for i in self.attributes]
        bases = [Dense(self.axes[i].basis).matmat for i in self.attributes]
        return kron_apply(bases, solved.reshape(moved.shape).transpose(back))

    def _normal(self, part: Mapping[int, Factor], noisy: Array) -> Array:
        """Return V' kron_i A_i' y, with V'1 for the attributes that the part sums over."""

        def adjoint(i: int) -> Callable[[Array], Array]:
            return lambda Y: self.axes[i].basis.T @ part[i].rmatmat(Y)

        own = kron_apply([adjoint(i) for i in self.attributes if i in part], noisy)
        tensor = own.reshape([self.axes[i].n if i in part else 1 for i in self.attributes])
        for k, i in enumerate(self.attributes):
            if i not in part:
                tensor = tensor * _on_axis(self.axes[i].total, k, tensor.ndim)
        return tensor

    def variances(self, block: Block) -> Array:
        """Return the variance of every query of a block under unit noise, of shape row_shape.

        An r-of-k block sums q (A'A)^- r' over all pairs of the products that it consists of.
        """
        total = np.zeros(block.row_shape)
        for j, (left_coef, left) in enumerate(block.summands):
            for right_coef, right in block.summands[: j + 1]:
                coef = left_coef * right_coef * (1 if right is left else 2)
                total += coef * self._bilinear(block, left, right)
        return np.asarray(np.maximum(total, 0.0))

    def _bilinear(self, block: Block, left: Sequence[Side], right: Sequence[Side]) -> Array:
        """Return q (A'A)^- r' for all rows; an axis has length 1 where both take the total."""
        place = {i: k for k, i in enumerate(block.attributes)}
        products: list[Callable[[Array], Array]] = []
        sizes = []
        for i in self.attributes:
            k = place.get(i)
            sides = [(1.0, 0.0), (1.0, 0.0)] if k is None else [left[k], right[k]]
            factor = None if k is None or not any(b for _, b in sides) else block.factors[k]
            products.append(_quadratic(self.axes[i], factor, sides))
            sizes.append(1 if factor is None else factor.shape[0])
        tensor = self.paired
        for k in sorted(range(len(sizes)), key=lambda k: sizes[k] / tensor.shape[k]):
            tensor = _along(products[k], tensor, k)
        inside = [k for k, i in enumerate(self.attributes) if i in place]
        rows = tensor.reshape([tensor.shape[k] for k in inside])
        for k, i in enumerate(block.attributes):
            if i not in self.axes:  # one class, whose predicates are their row sums
                sums = block.factors[k].row_sums.astype(np.float64)
                (a, b), (c, d) = left[k], right[k]
                rows = np.expand_dims(rows, k)
                rows = rows * _on_axis((a + b * sums) * (c + d * sums), k, rows.ndim)
        return rows


def _quadratic(
    axis: _Axis, factor: Factor | None, sides: Sequence[Side]
) -> Callable[[Array], Array]:
    """Return what maps an axis of the inverse to q V [.] V'r' for all rows; None is the total."""
    left, right = sides

    def rows(side: Side, columns: slice) -> Array:
        a, b = side
        total = a * axis.total[None, columns]
        return total if factor is None else total + b * factor.matmat(axis.basis[:, columns])

    def diagonal(X: Array) -> Array:
        m = 1 if factor is None else factor.shape[0]
        return sum_of((rows(left, c) * rows(right, c)) @ X[c] for c in _chunks(axis.n, m))

    def dense(X: Array) -> Array:
        pairs = X.reshape(axis.n, axis.n, -1)
        whole = rows(right, slice(None))
        return sum_of(rows(left, slice(a, a + 1)) * (whole @ pairs[a]) for a in range(axis.n))

    def sum_of(pieces: Iterator[Array]) -> Array:
        total = next(pieces)
        for piece in pieces:
            total = total + piece
        return total

    return dense if axis.dense else diagonal


def _chunks(n: int, m: int) -> list[slice]:
    width = max(1, ROW_CHUNK // m)
    return [slice(start, start + width) for start in range(0, n, width)]


def _along(product: Callable[[Array], Array], tensor: Array, axis: int) -> Array:
    moved = np.moveaxis(tensor, axis, 0)
    flat = product(np.ascontiguousarray(moved).reshape(len(moved), -1))
    return np.moveaxis(flat.reshape(-1, *moved.shape[1:]), 0, axis)


def _on_axis(vector: Array, axis: int, ndim: int) -> Array:
    return vector.reshape([-1 if k == axis else 1 for k in range(ndim)])


def joint_inverse(
    shape: tuple[int, ...], parts: Sequence[Mapping[int, Factor]], weights: Sequence[int]
) -> JointInverse | None:
    """Invert products side by side, or return None where that is too large or too ill-conditioned.

    Args:
        shape: sizes of the domain's attributes.
        parts: for each part the factors, of full column rank, of the attributes it measures.
        weights: what each part is multiplied by.
    """
    measured = sorted({i for part in parts for i in part})
    kinds = {i: {None if i not in own else own[i].key for own in parts} for i in measured}
    dense = math.prod(shape[i] for i in measured if len(kinds[i]) > 2)
    cells = math.prod(shape[i] for i in measured)
    if cells > CELLS_LIMIT or (dense > 1 and cells * max(dense, len(parts)) > DENSE_LIMIT):
        return None
    if any(shape[i] > MAX_CLASSES for i in measured):
        return None
    try:
        axes = {i: _axis(shape[i], [own.get(i) for own in parts]) for i in measured}
        inverse = _inverse([axes[i] for i in measured], parts, [float(w) for w in weights])
    except LinAlgError:
        return None
    return JointInverse(axes, tuple(parts), tuple(float(w) for w in weights), inverse)


def _axis(n: int, factors: Sequence[Factor | None]) -> _Axis:
    """Find the basis of the Grams of one attribute. None: the part sums over it."""
    grams: dict[Hashable, Array] = {own.key: own.gram() for own in factors if own is not None}
    keys = [None if own is None else own.key for own in factors]
    if len(grams) == 2 and None not in keys:
        first, second = grams
        x, V = eigh(grams[first], grams[second])
        diagonals = {first: x, second: np.ones(n)}
        return _Axis(V, V.sum(axis=0), tuple(diagonals[key] for key in keys), dense=False)
    V, total = total_first(np.sum(list(grams.values()), axis=0))
    if len(grams) == 1:
        own = tuple(total**2 if key is None else np.ones(n) for key in keys)
        return _Axis(V, total, own, dense=False)
    moved = {key: V.T @ X @ V for key, X in grams.items()}
    outer = np.outer(total, total)
    return _Axis(V, total, tuple(outer if k is None else moved[k] for k in keys), dense=True)


def total_first(G: Array) -> tuple[Array, Array]:
    """Return V with V'GV = I, and 1'V, zero but for its first entry. G: (n, n), definite.

    V = L'^-1 H with G = L L' and H the reflection of L^-1 1 onto the first axis.
    """
    n = len(G)
    L = cholesky(G, lower=True)
    u = solve_triangular(L, np.ones(n), lower=True)
    length = float(np.linalg.norm(u))
    mirror = u / length
    mirror[0] += math.copysign(1.0, mirror[0])
    H = np.eye(n) - 2 * np.outer(mirror, mirror) / (mirror @ mirror)
    total = np.zeros(n)
    total[0] = float(H[0] @ u)
    return solve_triangular(L, H, lower=True, trans="T"), total


def _inverse(
    axes: Sequence[_Axis], parts: Sequence[Mapping[int, Factor]], weights: Sequence[float]
) -> Array:
    """Return the generalised inverse of A'A in the shared bases: (cells of diagonal axes, M, M)."""
    diagonal = [axis for axis in axes if not axis.dense]
    crossed = [axis for axis in axes if axis.dense]
    if any(float(own.min()) < 0 for axis in diagonal for own in axis.grams):
        raise LinAlgError("a Gram that is not positive in floats")

    def value(k: int) -> Array:
        return weights[k] ** 2 * _outer([axis.grams[k] for axis in diagonal]).ravel()

    if not crossed:
        total = value(0)
        for k in range(1, len(weights)):
            total += value(k)
        return np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)[:, None, None]
    values = [value(k) for k in range(len(weights))]
    blocks = [_kron([axis.grams[k] for axis in crossed]) for k in range(len(weights))]
    seen = [np.diagonal(block) != 0 for block in blocks]
    out = np.zeros((len(values[0]), *blocks[0].shape))
    for places, active in _alike(values):
        columns = np.nonzero(np.any([seen[k] for k in active], axis=0))[0]
        own = sum(
            values[k][places, None, None] * blocks[k][np.ix_(columns, columns)] for k in active
        )
        out[np.ix_(places, columns, columns)] = _inverted(np.asarray(own))
    return out


def _alike(values: Sequence[Array]) -> Iterator[tuple[Array, list[int]]]:
    """Yield the places at which the same parts see something, and those parts."""
    marks: Array = np.zeros(len(values[0]), dtype=np.int64)
    for own in values:  # renumbered after every part: few patterns however many parts
        marks = np.unique(2 * marks + (own > 0), return_inverse=True)[1].ravel()
    for mark in range(int(marks.max()) + 1):
        places = np.nonzero(marks == mark)[0]
        active = [k for k, own in enumerate(values) if own[places[0]] > 0]
        if active:
            yield places, active


def _inverted(stack: Array) -> Array:
    """Return the inverses of positive definite matrices, scaled to unit diagonals meanwhile."""
    scale = 1 / np.sqrt(np.diagonal(stack, axis1=1, axis2=2))
    sides = scale[:, :, None] * scale[:, None, :]
    unit = stack * sides
    np.linalg.cholesky(unit)  # raises where rounding has made a matrix indefinite
    inverse = np.linalg.inv(unit) * sides
    return np.asarray((inverse + inverse.transpose(0, 2, 1)) / 2)


def _outer(vectors: Sequence[Array]) -> Array:
    total: Array = np.ones(())
    for vector in vectors:
        total = np.multiply.outer(total, vector)
    return total


def _kron(matrices: Sequence[Array]) -> Array:
    total: Array = np.ones((1, 1))
    for matrix in matrices:
        total = np.kron(total, matrix)
    return total
