"""Variances and covariances of products that were solved together.

A query q = t R is answered by t Q'y, so its coefficients are c = Q t. They are written out part by
part, for some queries at a time: on the dense axes once for each row of t, then one diagonal axis
after the other, where a query is a product of predicates.
The covariance of two answers is t t' of both.
"""

import math
from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block, SplitFactor
from dpquery.operators.factors import ROW_CHUNK
from dpquery.strategy.algebra.joint_system import JointSystem, solved_rows
from dpquery.strategy.algebra.query_powers import Contract, QueryPairs, QueryRows

POWER_COST = 8  # multiplications that a coefficient takes once it is there, about
_Step = tuple[Floats, Floats | None]
"""Predicates of an axis in its basis, (m, n), and F of a part, (rows, n): None sums over it."""


def joint_power_work(system: JointSystem, block: Block) -> int:
    """Return how many multiplications `joint_power_sums` takes, about."""
    work, layout = 0, system.layout(block)
    for k, part in enumerate(system.parts):
        measured = [part[i].shape[0] if i in part else 1 for i in system.diagonal]
        size = layout[0] * math.prod(system.places) * _dense_rows(system, k)
        work += size * math.prod(system.axes[i].n for i in system.dense)
        for n, m, r in zip(system.places, layout[1:], measured, strict=False):
            work += size * m * r
            size = size // n * m * r
        work += POWER_COST * size * (block.queries // math.prod(layout[: len(measured) + 1]))
    return work * len(block.summands)


def joint_power_sums(system: JointSystem, block: Block) -> tuple[Floats, Floats]:
    """Return the sums of fourth and of sixth powers of every query's coefficients, on all parts.

    Returns:
        Two tensors of shape row_shape.

    Raises:
        LinAlgError: rounding has spoilt the coefficients.
    """
    total = np.zeros((2, *system.layout(block)))
    coefs, sides = zip(*block.summands, strict=True)
    for pieces in zip(*(system.coefficients(block, side) for side in sides), strict=True):
        rows = pieces[0][0]
        for k in range(len(system.parts)):
            starts = [_on_part(system, block, k, t) for _, t in pieces]
            steps = [_steps(system, block, k, side) for side in sides]
            for places, C in _written_out(starts, steps, coefs):
                squares = C * C
                fourths, summed = squares * squares, tuple(range(1, C.ndim, 2))
                total[(0, rows, *places)] += fourths.sum(axis=summed)
                total[(1, rows, *places)] += (fourths * squares).sum(axis=summed)
    return system.arranged(total[0], block), system.arranged(total[1], block)


def _dense_rows(system: JointSystem, k: int) -> int:
    """Return how many rows a part measures on the dense axes."""
    part = system.parts[k]
    return math.prod(part[i].shape[0] for i in system.dense if i in part)


def _on_part(system: JointSystem, block: Block, k: int, coefficients: Sequence[Floats]) -> Floats:
    """Return Q t on the rows of a part, F applied on the dense axes alone.

    Returns:
        (rows of t, *diagonal axes, one for each attribute of one class, rows that the part
        measures on the dense axes).
    """
    cells = [
        math.prod(system.axes[i].n for i in system.dense if i in part) for part in system.parts
    ]
    rows = coefficients[0].shape[1]
    out = np.zeros((math.prod(system.places), rows, cells[k]))
    for stack, t in zip(system.stacks, coefficients, strict=True):
        if k in stack.active:
            start = sum(cells[other] for other in stack.active[: stack.active.index(k)])
            Q = stack.Q[:, start : start + cells[k]]
            out[stack.places] = np.matmul(t, Q.transpose(0, 2, 1))
    for i in system.dense:
        F, n = system.axes[i].rows[k], system.axes[i].n
        if F is not None:  # the first axis left goes to the end
            moved = np.moveaxis(out.reshape(*out.shape[:2], n, -1), 2, -1)
            out = (moved @ F.T).reshape(*out.shape[:2], -1)
    single = (1,) * len(system.single(block))
    shape = (rows, *system.places, *single, _dense_rows(system, k))
    return np.moveaxis(out, 1, 0).reshape(shape)


def _steps(system: JointSystem, block: Block, k: int, sides: Sequence[SplitFactor]) -> list[_Step]:
    """Return what is done to the diagonal axes, and to those of attributes of one class."""
    steps: list[_Step] = [
        (system.predicates(block, sides, i, slice(None)), system.axes[i].rows[k])
        for i in system.diagonal
    ]
    for place in system.single(block):
        a, b = sides[place]
        steps.append((a + b * block.factors[place].row_sums.astype(np.float64)[:, None], None))
    return steps


def _written_out(
    starts: Sequence[Floats], steps: Sequence[Sequence[_Step]], coefs: Sequence[float]
) -> Iterator[tuple[tuple[slice, ...], Floats]]:
    """Yield the coefficients of all queries of a block on the rows of a part, some at a time.

    Args:
        starts: what `_on_part` returns for each product that the block consists of.
        steps: for each of them what is done to every axis.
        coefs: of each of them in the block.

    Yields:
        Which predicates on every axis, and (rows of t, dense rows, predicates, rows, ...).
    """
    measured = [1 if F is None else len(F) for _, F in steps[0]]
    room = max(1, ROW_CHUNK // (starts[0].shape[0] * starts[0].shape[-1] * math.prod(measured)))
    widths = []
    for q, _ in reversed(steps[0]):
        widths.append(min(len(q), room))
        room = max(1, room // widths[-1])
    yield from _next_axis(starts, steps, coefs, widths[::-1], ())


def _next_axis(
    tensors: Sequence[Floats],
    steps: Sequence[Sequence[_Step]],
    coefs: Sequence[float],
    widths: Sequence[int],
    places: tuple[slice, ...],
) -> Iterator[tuple[tuple[slice, ...], Floats]]:
    """Take the predicates of one axis after the other; a tensor's second axis is the next one."""
    axis = len(places)
    if axis == len(widths):
        yield places, np.sum([a * C for a, C in zip(coefs, tensors, strict=True)], axis=0)
        return
    count = len(steps[0][axis][0])
    for start in range(0, count, widths[axis]):
        part = slice(start, min(start + widths[axis], count))
        after = []
        for tensor, product in zip(tensors, steps, strict=True):
            q, F = product[axis]
            wide = np.moveaxis(tensor, 1, -1)[..., None, :] * q[part]
            after.append(wide.sum(axis=-1, keepdims=True) if F is None else wide @ F.T)
        yield from _next_axis(after, steps, coefs, widths, (*places, part))


def joint_covariances(system: JointSystem, pairs: QueryPairs) -> Floats:
    """Return the covariance of every pair under unit noise.

    Raises:
        LinAlgError: rounding has spoilt the coefficients.
    """

    def values(left: Ints, right: Ints, contract: Contract) -> Floats:
        first = _coefficients(system, pairs.left.block, left)
        second = _coefficients(system, pairs.right.block, right)
        return contract(first, second) * contract(
            _single(system, pairs.left.block, left), _single(system, pairs.right.block, right)
        )

    width = sum(stack.R.shape[0] * stack.R.shape[1] for stack in system.stacks)
    return pairs.crossed(width, values)


def _coefficients(system: JointSystem, block: Block, places: Ints) -> Floats:
    """Return t of rows of a product on the orthonormal rows of the system: (rows, columns)."""
    (_, sides), chosen = block.summands[0], QueryRows(block, places).predicates

    def predicates(i: int) -> Floats:
        table = system.predicates(block, sides, i, slice(None))
        rows = chosen[i][1] if i in chosen else np.zeros(len(places), dtype=np.int64)
        return table[rows]

    dense = reduce(_crossed, (predicates(i) for i in system.dense), np.ones((len(places), 1)))
    diagonal = reduce(_crossed, (predicates(i) for i in system.diagonal), np.ones((len(places), 1)))
    pieces = []
    for stack in system.stacks:
        solved = solved_rows(stack.R, dense[:, stack.columns])  # (places, rows, r)
        weighted = solved.transpose(1, 0, 2) * diagonal[:, stack.places, None]
        pieces.append(weighted.reshape(len(places), math.prod(weighted.shape[1:])))
    return np.concatenate(pieces, axis=1)


def _single(system: JointSystem, block: Block, places: Ints) -> Floats:
    """Return what the predicates on attributes of one class are: (rows, 1)."""
    chosen, out = QueryRows(block, places).predicates, np.ones(len(places))
    for place in system.single(block):
        factor, rows = chosen[block.attributes[place]]
        out *= factor.row_sums[rows]
    return out[:, None]


def _crossed(left: Floats, right: Floats) -> Floats:
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)
