"""Kronecker products measured side by side, solved as one least squares problem.

With parts k of weight w_k the measured rows are A = stack_k w_k kron_i A_ki. Written A = Q R with
orthonormal columns Q, a query q = t R that A supports is answered by t Q'y, with variance |t|^2
under unit noise ([MATH] 8). Q and R come from orthogonal transformations of the rows: A'A, whose
condition number is that of A squared, is never formed.

Each attribute gets a basis V in which what every part measures of it has orthogonal columns,
A_k V = F_k diag(s_k). That is so while the attribute has at most two kinds of factors, the total
included. A then falls apart into a few rows for each place on these axes. Attributes with more
kinds stay dense: the rows at each place hold their cells, and are brought to triangular form place
by place. A direction that no part sees has a column of zeros and is left out: no supported query
has a share in it.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, qr, solve_triangular, svd

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.limits import (
    MAX_JOINT_CELLS,
    MAX_JOINT_CLASSES,
    MAX_JOINT_MEASURED,
    MAX_JOINT_ROWS,
    MAX_JOINT_STACK,
    MAX_JOINT_WORK,
)
from dpquery.operators.blocks import Block, SplitFactor, kron_apply, outer_product
from dpquery.operators.factors import ROW_CHUNK, Factor
from dpquery.strategy.algebra.orbits import LEAST_IN_ORBITS, reduced_axis

EXACT = 2.0**53  # below which sums of integers are exact in floats
SHORTEST_LENGTH = 1e-14  # of the lengths of a basis, in proportion to the greatest


@dataclass(frozen=True, eq=False)
class AxisBasis:
    """One attribute in the basis V of what its parts measure."""

    basis: Floats  # V, (n, n)
    total: Floats  # 1'V, (n,)
    # F of each part, with orthonormal columns: (m, n). None where it sums over the axis
    rows: tuple[Floats | None, ...]
    # S of each part with A V = F S: (n,) a diagonal, or where dense (n, n) a triangle; of a part
    # that sums over the axis 1'V, where dense as one row
    scales: tuple[Floats, ...]
    dense: bool  # whether the parts have no common basis

    @property
    def n(self) -> int:
        """The number of classes."""
        return len(self.total)


def axis_basis(n: int, factors: Sequence[Factor | None]) -> AxisBasis:
    """Return the basis of one attribute, given the factor of each part. None sums over it."""
    keys: list[Hashable] = [None if factor is None else factor.key for factor in factors]
    distinct = {factor.key: factor for factor in factors if factor is not None}
    tops = {key: float(factor.max_abs) for key, factor in distinct.items()}
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


MAX_KEPT_COEFFICIENTS = 1 << 20  # numbers of a block whose coefficients are kept: 8 MB
MAX_KEPT_BLOCKS = 32
NARROW = 32  # columns of stacks that are solved for all places at once
SOLVED_RESIDUAL = 1e-9  # of the coefficients of a query, in proportion to the query


@dataclass(frozen=True, eq=False)
class _Stack:
    """The rows at all places where the same parts see something, as Q R."""

    places: Ints  # (p,) places on the diagonal axes
    active: tuple[int, ...]  # the parts that see something there
    columns: Ints  # (r,) the cells of the dense axes that some of them sees
    Q: Floats  # (p, rows, r), with orthonormal columns
    R: Floats  # (p, r, r), upper triangular


@dataclass(frozen=True, eq=False)
class JointSystem:
    """The measured rows of products side by side as A = Q R, over the attributes they measure."""

    axes: Mapping[int, AxisBasis]  # the attributes that some part measures, and their bases
    # for each part the factors of the attributes that it measures
    parts: tuple[Mapping[int, Factor], ...]
    stacks: tuple[_Stack, ...]  # Q and R wherever some part sees something

    @cached_property
    def diagonal(self) -> tuple[int, ...]:
        """The attributes in whose basis all parts have orthogonal columns."""
        return tuple(i for i in sorted(self.axes) if not self.axes[i].dense)

    @cached_property
    def dense(self) -> tuple[int, ...]:
        """The other attributes that some part measures."""
        return tuple(i for i in sorted(self.axes) if self.axes[i].dense)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The lengths of the diagonal axes."""
        return tuple(self.axes[i].n for i in self.diagonal)

    def can_answer(self, block: Block) -> bool:
        """Return whether the answers of a block, and the work that they take, are few enough."""
        squares = sum(len(stack.R) * stack.R.shape[1] ** 2 for stack in self.stacks)
        work = squares * self.layout(block)[0] if self.dense else 0
        return block.queries <= MAX_JOINT_ROWS and work <= MAX_JOINT_WORK

    def project(self, answers: Sequence[Floats]) -> tuple[Floats, ...]:
        """Return Q'y of the noisy answers of every part, stack by stack: (p, r) each.

        Args:
            answers: for each part a tensor with one axis an attribute that it measures.
        """
        parts = [self._in_basis(k, noisy) for k, noisy in enumerate(answers)]
        return tuple(
            np.einsum(
                "erc,er->ec",
                stack.Q,
                np.concatenate([parts[k][stack.places] for k in stack.active], axis=1),
            )
            for stack in self.stacks
        )

    def _in_basis(self, k: int, noisy: Floats) -> Floats:
        """Return kron_i F_i'y of a part: (places, its cells on the dense axes)."""
        measured = sorted(self.parts[k])

        def adjoint(i: int) -> Callable[[Floats], Floats]:
            F = self.axes[i].rows[k]
            return lambda Y: Y if F is None else F.T @ Y

        tensor = kron_apply([adjoint(i) for i in measured], np.asarray(noisy, dtype=np.float64))
        order = [i for i in (*self.diagonal, *self.dense) if i in self.parts[k]]
        tensor = tensor.transpose([measured.index(i) for i in order])
        lengths = [self.axes[i].n if i in self.parts[k] else 1 for i in self.diagonal]
        cells = math.prod(self.axes[i].n for i in self.dense if i in self.parts[k])
        wide = np.broadcast_to(tensor.reshape(*lengths, cells), (*self.places, cells))
        return wide.reshape(math.prod(self.places), cells)

    def answer(self, block: Block, projected: Sequence[Floats]) -> Floats:
        """Return the least squares answers of a block, of shape row_shape."""
        total = np.zeros(self.layout(block))
        for coef, sides in block.summands:
            for rows, coefficients in self.coefficients(block, sides):
                inner = (
                    np.einsum("ejc,ec->je", t, y)
                    for t, y in zip(coefficients, projected, strict=True)
                )
                total[rows] += coef * self._summed(block, self._at_places(inner), (sides,))
        return self.arranged(total, block)

    def variances(self, block: Block) -> Floats:
        """Return the variance of every query of a block under unit noise, of shape row_shape.

        An r-of-k block sums t t' over all pairs of the products that it consists of.
        """
        total = np.zeros(self.layout(block))
        coefs, sides = zip(*block.summands, strict=True)
        for pieces in zip(*(self.coefficients(block, side) for side in sides), strict=True):
            rows = pieces[0][0]
            for j, (_, left) in enumerate(pieces):
                for k, (_, right) in enumerate(pieces[: j + 1]):
                    inner = (
                        np.einsum("ejc,ejc->je", a, b) for a, b in zip(left, right, strict=True)
                    )
                    pair = (sides[j], sides[k])
                    coef = coefs[j] * coefs[k] * (1 if j == k else 2)
                    total[rows] += coef * self._summed(block, self._at_places(inner), pair)
        return np.asarray(np.maximum(self.arranged(total, block), 0.0))

    def coefficients(
        self, block: Block, sides: Sequence[SplitFactor]
    ) -> Iterator[tuple[slice, list[Floats]]]:
        """Yield t of the predicates on the dense axes, some rows at a time: (p, rows, r) a stack.

        What is small is kept: it serves variances, answers and every draw of the solution check.

        Raises:
            LinAlgError: rounding has spoilt them.
        """
        if not self.dense:
            yield from self._solve(block, sides)
            return
        key = (block.attributes, tuple(factor.key for factor in block.factors), tuple(sides))
        if key in self._kept_coefficients:
            yield from self._kept_coefficients[key]
            return
        pieces, numbers = [], 0
        for rows, coefficients in self._solve(block, sides):
            numbers += sum(t.size for t in coefficients)
            if numbers <= MAX_KEPT_COEFFICIENTS:
                pieces.append((rows, coefficients))
            yield rows, coefficients
        few = len(self._kept_coefficients) < MAX_KEPT_BLOCKS
        if few and numbers <= MAX_KEPT_COEFFICIENTS:
            self._kept_coefficients[key] = pieces

    @cached_property
    def _kept_coefficients(self) -> dict[Hashable, list[tuple[slice, list[Floats]]]]:
        return {}

    def _solve(
        self, block: Block, sides: Sequence[SplitFactor]
    ) -> Iterator[tuple[slice, list[Floats]]]:
        tables = [self.predicates(block, sides, i, slice(None)) for i in self.dense]
        counts = tuple(len(table) for table in tables)
        rows, numbers = math.prod(counts), sum(s.R.shape[0] * s.R.shape[1] for s in self.stacks)
        width = max(1, ROW_CHUNK // numbers)
        for start in range(0, rows, width):
            stop = min(start + width, rows)
            chosen = np.unravel_index(np.arange(start, stop), counts) if counts else ()
            q = np.ones((stop - start, 1))
            for table, place in zip(tables, chosen, strict=True):
                q = (q[:, :, None] * table[place][:, None, :]).reshape(len(q), -1)
            solved = [solved_rows(stack.R, q[:, stack.columns]) for stack in self.stacks]
            yield slice(start, stop), solved

    def predicates(
        self, block: Block, sides: Sequence[SplitFactor], i: int, columns: slice
    ) -> Floats:
        """Return q V for every predicate q of a block on one attribute: (m, columns)."""
        axis, total = self.axes[i], self.axes[i].total[None, columns]
        if i not in block.attributes:
            return total
        k = block.attributes.index(i)
        (a, b), factor = sides[k], block.factors[k]
        if b == 0:
            return a * np.repeat(total, factor.shape[0], axis=0)
        rows = np.asarray(factor.matmat(axis.basis[:, columns]))
        return rows if (a, b) == (0, 1) else np.asarray(a * total + b * rows)

    def _at_places(self, values: Iterator[Floats]) -> Floats:
        pairs = list(zip(self.stacks, values, strict=True))
        out = np.zeros((len(pairs[0][1]), math.prod(self.places)))
        for stack, at in pairs:
            out[:, stack.places] = at
        return out.reshape(-1, *self.places)

    def _summed(
        self, block: Block, tensor: Floats, sides: Sequence[Sequence[SplitFactor]]
    ) -> Floats:
        """Sum over the diagonal axes, times the predicates of one side or of two multiplied.

        Returns:
            (rows, *predicates of the diagonal axes, *predicates of the axes of one class).
        """
        counts = self.layout(block)
        for k in sorted(range(len(self.diagonal)), key=lambda k: counts[k + 1] / self.places[k]):
            moved, m = np.moveaxis(tensor, k + 1, 0), counts[k + 1]
            flat = np.ascontiguousarray(moved).reshape(len(moved), -1)
            summed, width = np.zeros((m, flat.shape[1])), max(1, ROW_CHUNK // m)
            for start in range(0, len(flat), width):
                columns = slice(start, start + width)
                rows = (self.predicates(block, s, self.diagonal[k], columns) for s in sides)
                summed += reduce(np.multiply, rows) @ flat[columns]
            tensor = np.moveaxis(summed.reshape(-1, *moved.shape[1:]), 0, k + 1)
        for k in self.single(block):
            sums = block.factors[k].row_sums.astype(np.float64)
            levels = reduce(np.multiply, (s[k][0] + s[k][1] * sums for s in sides))
            tensor = np.multiply.outer(tensor, levels)
        return tensor

    def single(self, block: Block) -> list[int]:
        """The places in a block of attributes of one class, of which predicates are row sums."""
        return [k for k, i in enumerate(block.attributes) if i not in self.axes]

    def layout(self, block: Block) -> tuple[int, ...]:
        """Predicates on the dense axes together, on each diagonal one, and of one class each."""
        counts = dict(zip(block.attributes, block.row_shape, strict=True))
        dense = math.prod(counts.get(i, 1) for i in self.dense)
        single = (block.row_shape[k] for k in self.single(block))
        return (dense, *(counts.get(i, 1) for i in self.diagonal), *single)

    def arranged(self, values: Floats, block: Block) -> Floats:
        """Return values laid out by `layout` with one axis an attribute of the block, in order."""
        single = [block.attributes[k] for k in self.single(block)]
        order = (*self.dense, *self.diagonal, *single)
        counts = dict(zip(block.attributes, block.row_shape, strict=True))
        tensor = values.reshape([counts.get(i, 1) for i in order])
        outside = [k for k, i in enumerate(order) if i not in counts]
        moved = tensor.transpose([*(order.index(i) for i in block.attributes), *outside])
        return moved.reshape(block.row_shape)


def solved_rows(R: Floats, q: Floats) -> Floats:
    """Return t with t R = q at every place. R: (p, r, r) upper triangular, q: (rows, r).

    Raises:
        LinAlgError: some t R is not q.
    """
    places, r, _ = R.shape
    t = np.empty((places, len(q), r))
    if r <= NARROW:
        for j in range(r):
            rest = np.einsum("ejc,ec->ej", t[:, :, :j], R[:, :j, j]) if j else 0.0
            t[:, :, j] = (q[:, j] - rest) / R[:, j, j, None]
    else:
        for e in range(places):
            t[e] = solve_triangular(R[e], q.T, trans="T", check_finite=False).T
    if r > 1:
        _check_residual(np.matmul(t, R), np.broadcast_to(q, t.shape), "the rows of a union")
    return t


def _check_residual(product: Floats, expected: Floats, what: str) -> None:
    """Raise LinAlgError where a product is not what it should be, or not a number."""
    scale = float(np.abs(expected).max(initial=0.0))
    if not float(np.abs(product - expected).max(initial=0.0)) <= SOLVED_RESIDUAL * scale:
        raise LinAlgError(f"{what} are too ill-conditioned to be solved")


def joint_system(
    shape: tuple[int, ...], parts: Sequence[Mapping[int, Factor]], weights: Sequence[int]
) -> JointSystem | None:
    """Return products side by side as one system, or None where that is too large.

    Parts are the factors, of full column rank, of the attributes that each measures.
    """
    measured = sorted({i for part in parts for i in part})
    kinds = {i: {part[i].key if i in part else None for part in parts} for i in measured}
    many = {i for i in measured if len(kinds[i]) > 2}
    dense, cells = math.prod(shape[i] for i in many), math.prod(shape[i] for i in measured)
    if cells > MAX_JOINT_MEASURED or (many and cells * max(dense, len(parts)) > MAX_JOINT_CELLS):
        return None
    rows = sum(math.prod(shape[i] for i in part if i in many) for part in parts)
    if (many and cells * rows > MAX_JOINT_STACK) or any(
        shape[i] > MAX_JOINT_CLASSES for i in measured
    ):
        return None
    try:
        axes = {i: axis_basis(shape[i], [part.get(i) for part in parts]) for i in measured}
        stacks = tuple(_stacks([axes[i] for i in measured], [float(w) for w in weights]))
    except LinAlgError:
        return None
    return JointSystem(axes, tuple(parts), stacks)


def _stacks(axes: Sequence[AxisBasis], weights: Sequence[float]) -> Iterator[_Stack]:
    """Yield Q R of what the parts measure at every place on the diagonal axes."""
    diagonal = [axis for axis in axes if not axis.dense]
    crossed = [axis for axis in axes if axis.dense]
    values = [
        weight * outer_product([axis.scales[k] for axis in diagonal]).ravel()
        for k, weight in enumerate(weights)
    ]
    one: Numbers = np.ones((1, 1))
    tables = [
        reduce(np.kron, (axis.scales[k] for axis in crossed), one) for k in range(len(weights))
    ]
    for places, active in _alike(values):
        active.sort(key=lambda k: -float(np.abs(values[k][places]).max()))  # large rows come first
        columns = np.nonzero(np.any([tables[k].any(axis=0) for k in active], axis=0))[0]
        pieces = [values[k][places, None, None] * tables[k][:, columns] for k in active]
        S = np.concatenate(pieces, axis=1)
        if len(columns) == 1:
            lengths = np.linalg.norm(S, axis=1, keepdims=True)
            yield _Stack(places, tuple(active), columns, S / lengths, lengths)
        else:
            Q, R = np.linalg.qr(S)
            yield _Stack(places, tuple(active), columns, Q, R)


def _alike(values: Sequence[Floats]) -> Iterator[tuple[Ints, list[int]]]:
    """Yield the places at which the same parts see something, and those parts."""
    marks: Ints = np.zeros(len(values[0]), dtype=np.int64)
    for value in values:  # renumbered after every part: few patterns however many parts
        marks = np.unique(2 * marks + (value != 0), return_inverse=True)[1].ravel()
    for mark in range(int(marks.max()) + 1):
        places = np.nonzero(marks == mark)[0]
        active = [k for k, value in enumerate(values) if value[places[0]] != 0]
        if active:
            yield places, active
