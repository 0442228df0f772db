"""Powers of a query's coefficients, and covariances of pairs of queries.

Under marginals and cores the part of a query in a set b of attributes is one difference of the
threshold in b, taken at the levels of the other predicates: squared or to the fourth power it stays
one number wherever those levels are one number a table. Attributes whose predicates have several
levels, and strategies that mix a query with the total, take powers of a sum of k + 1 products, with
one term for each choice of `order` of them.

The covariance of two answers is q C r' with C that of the cells. Where C is a sum of Kronecker
products of symmetric matrices, it is a sum of products over attributes of q_i M_i r_i', and each is
worked out for distinct predicates alone: no matrix of the size of an attribute squared is formed
([MATH] 24).

A query q = t R is answered by t Q'y, so its coefficients are c = Q t. They are written out part by
part, for some queries at a time: on the dense axes once for each row of t, then one diagonal axis
after the other, where a query is a product of predicates.
The covariance of two answers is t t' of both.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import combinations_with_replacement

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import (
    Block,
    SplitFactor,
    differences,
    node_weights,
    product,
    threshold_nodes,
)
from dpquery.operators.factors import ROW_CHUNK, Dense, Factor, total
from dpquery.strategy.algebra.joint_system import JointSystem, solved_rows
from dpquery.strategy.algebra.subsets import Subset

RowTerms = list[tuple[float, list[Floats]]]
"""sum_t coef_t kron_i vector_ti over the rows of a block; vectors have length m_i or 1."""
RowSums = RowTerms | Floats
"""A figure for every row of a block: outer products, or the tensor that they would add up to."""


def scaled(sums: RowSums, factor: float) -> RowSums:
    """Return the figures times a factor."""
    if isinstance(sums, np.ndarray):
        return np.asarray(sums * factor)
    return [(coef * factor, vectors) for coef, vectors in sums]


def total_of(terms: RowSums, block: Block) -> float:
    """Return the sum over all rows of the block."""
    if isinstance(terms, np.ndarray):
        return float(terms.sum()) * (block.queries // terms.size)  # axes of length 1 stand for all
    total = 0.0
    for coef, vectors in terms:
        sums = [
            float(v.sum()) * (m // len(v)) for v, m in zip(vectors, block.row_shape, strict=True)
        ]
        total += coef * math.prod(sums)
    return total


def expand(terms: RowSums, row_shape: Sequence[int] | None = None) -> Floats:
    """Return the outer products as a tensor; without a row shape axes of length 1 stay so."""
    total: Floats = np.zeros(())
    if isinstance(terms, np.ndarray):
        total = terms
    else:
        for coef, vectors in terms:
            outer = np.array(coef)
            for vector in vectors:
                outer = np.multiply.outer(outer, vector)
            total = total + outer
    return total if row_shape is None else np.broadcast_to(total, tuple(row_shape))


class SplitPowers:
    """Powers of the parts of a block's queries, by the set of attributes that a part lies in.

    Where a row takes predicate i its value is `inside` on a part that lies in i and its level on
    one that does not; where it takes all ones instead, 0 and 1.
    """

    def __init__(
        self, block: Block, levels: Sequence[Floats], inside: Container[int], *, order: int
    ) -> None:
        """Take the levels of all predicates, (m_k,) or one number, and whose have a rest."""
        self.block, self.levels, self.order = block, levels, order
        counted = [
            k for k, is_counted in enumerate(block.counted) if is_counted and not block.is_product
        ]
        even = [k for k in counted if len(levels[k]) == 1]
        even.sort(key=lambda k: block.attributes[k] in inside)  # what no part lies in comes first
        self.even, self.uneven = even, [k for k in counted if k not in even]
        level = [float(levels[k][0]) for k in even]
        self.values = np.ones((1, 1))
        if counted:
            self.values = differences(level, block.at_least, beside=len(self.uneven))
        self.outside = [np.ones(1) if k in even else v**order for k, v in enumerate(levels)]

    def terms(self, b: Subset, rests: Mapping[int, Floats]) -> RowTerms:
        """Return the order-th power of the part of every query in b; none where there is none.

        `rests` has the powers of the predicates' rests, (m_k,) or one number.
        """
        S, (row, values) = self.block.attributes, (0, self.values)
        for k in self.even:
            row = 2 * row + (S[k] in b)
        values = values[row]
        for k in self.uneven:
            values = np.diff(values) if S[k] in b else values
        left = [k for k in self.uneven if S[k] not in b]
        if not values.any():
            return []
        fixed = [rests[i] if i in b else self.outside[k] for k, i in enumerate(S)]
        if len(values) == 1:  # one level: every product, and most thresholds
            return [(math.prod([float(values[0])] * self.order), fixed)]
        terms: RowTerms = []
        for coef, points in _powers(node_weights(values), threshold_nodes(len(left)), self.order):
            vectors = list(fixed)
            for k in left:
                factors = (1 + (x - 1) * self.levels[k] for x in points)
                vectors[k] = math.prod(factors, start=np.ones(1))
            terms.append((coef, vectors))
        return terms


def _powers(
    alphas: Floats, points: Floats, order: int
) -> Iterator[tuple[float, tuple[float, ...]]]:
    """Yield the terms of (sum_j alpha_j kron(x_j))^order: their coefficient and its points."""
    for chosen in combinations_with_replacement(range(len(points)), order):
        times = math.factorial(order)
        for count in Counter(chosen).values():
            times //= math.factorial(count)
        coef = times * math.prod(float(alphas[j]) for j in chosen)
        if coef:
            yield coef, tuple(float(points[j]) for j in chosen)


def mixed_powers(block: Block, forms: Sequence[Mapping[int, Floats]], order: int) -> RowTerms:
    """Return the order-th power of every query, given those of predicates mixed with the total.

    Args:
        block: whose queries.
        forms: for each factor and each count c of `counts`, the sum of products of c copies of a
            predicate's coefficients and order - c of the total's: (m,), or one number.
        order: how many copies are multiplied.
    """
    if block.is_product:
        return [(1.0, [form[order] for form in forms])]
    k = sum(block.counted)
    alphas = node_weights((np.arange(k + 1) >= block.at_least).astype(np.float64))
    terms: RowTerms = []
    lone = 0.0
    for coef, points in _powers(alphas, threshold_nodes(k), order):
        shares = _expanded([x - 1 for x in points])
        vectors = [
            _mixed(form, shares) if counted else form[order]
            for form, counted in zip(forms, block.counted, strict=True)
        ]
        if all(len(v) == 1 for v in vectors):
            lone += coef * math.prod(float(v[0]) for v in vectors)
        else:
            terms.append((coef, vectors))
    return [*terms, (lone, [np.ones(1)] * len(forms))] if lone else terms


def _mixed(form: Mapping[int, Floats], shares: Sequence[float]) -> Floats:
    total: Floats = np.zeros(1)
    for c, share in enumerate(shares):
        if share:
            total = total + share * form[c]
    return total


def _expanded(points: Sequence[float]) -> list[float]:
    """Return the coefficients of prod_x (1 + x t), constant first."""
    coefs = [1.0]
    for x in points:
        coefs = [a + x * b for a, b in zip([*coefs, 0.0], [0.0, *coefs], strict=True)]
    return coefs


def counts(block: Block, order: int) -> list[list[int]]:
    """Return, for each factor, of how many copies of its predicate `mixed_powers` asks."""
    every = list(range(order + 1))
    return [every if counted and not block.is_product else [order] for counted in block.counted]


MAX_CROSSED = 1 << 24  # pairs of distinct queries whose values are held at once
UNASKED = 8  # of which so many are worked out for one that is asked for
Contract = Callable[[Floats, Floats], Floats]
"""Inner products of rows: each with each, or row by row."""


@dataclass(frozen=True, eq=False)
class QueryRows:
    """Some rows of a block."""

    block: Block  # of queries
    places: Ints  # of the rows in the block, in C order, in an array of any shape
    # of the block in the workload that its strategy was made for; None for one that the workload
    # does not hold
    position: int | None = None

    @cached_property
    def predicates(self) -> dict[int, tuple[Factor, Ints]]:
        """For each attribute of the block its predicates, and which of them every row has."""
        if not self.block.attributes:
            return {}
        chosen = np.unravel_index(self.places, self.block.row_shape)
        named = zip(self.block.attributes, self.block.factors, chosen, strict=True)
        return {i: (factor, np.asarray(rows)) for i, factor, rows in named}

    def products(self) -> Iterator[tuple[float, "QueryRows"]]:
        """Yield the rows as a sum of Kronecker products, each with its coefficient."""
        if self.block.is_product:
            yield 1.0, self
            return
        for coef, sides in self.block.summands:
            named = zip(self.block.attributes, self.block.factors, sides, strict=True)
            factors: dict[int, Factor] = {i: Dense(a + b * F.dense()) for i, F, (a, b) in named}
            whole = product(self.block.shape_of_domain, factors)
            yield coef, QueryRows(whole, self.places)


@dataclass(frozen=True, eq=False)
class QueryPairs:
    """Pairs of queries: their places are broadcast against each other."""

    left: QueryRows
    right: QueryRows

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of a figure for every pair."""
        return np.broadcast_shapes(self.left.places.shape, self.right.places.shape)

    def sides(self, i: int) -> tuple[tuple[Factor, Ints], tuple[Factor, Ints]]:
        """Return the predicates on an attribute on both sides; of a block without it the total."""
        every = (total(self.left.block.shape_of_domain[i]), np.zeros((), dtype=np.int64))
        return self.left.predicates.get(i, every), self.right.predicates.get(i, every)

    def over_products(self, covariances: Callable[["QueryPairs"], Floats]) -> Floats:
        """Return the covariances of all pairs, given those of rows of Kronecker products."""
        values, rights = np.zeros(self.shape), [*self.right.products()]
        for before, left in self.left.products():
            for after, right in rights:
                values += before * after * covariances(replace(self, left=left, right=right))
        return values

    def product_of(self, forms: Mapping[int, "SymmetricForm"]) -> Floats:
        """Return the product over attributes of q M r', each with its own form.

        An attribute of one class may have none: predicates on it are what they add.
        """
        values: Floats = np.ones(())
        for i in sorted({*forms, *self.left.block.attributes, *self.right.block.attributes}):
            sides = self.sides(i)
            values = values * (forms[i].of_pairs(*sides) if i in forms else sums_of_pairs(*sides))
        return np.broadcast_to(values, self.shape)

    def crossed(self, width: int, values: Callable[[Ints, Ints, Contract], Floats]) -> Floats:
        """Return a figure of every pair, worked out for distinct queries or for some at a time.

        Args:
            width: numbers that are written out for a query.
            values: of the places of left and of right queries and how rows of theirs are
                contracted: each with each, (l, r), or as pairs, (c,).
        """
        lefts, left_of = np.unique(self.left.places, return_inverse=True)
        rights, right_of = np.unique(self.right.places, return_inverse=True)
        few = (len(lefts) + len(rights)) * width <= ROW_CHUNK
        most = min(MAX_CROSSED, UNASKED * math.prod(self.shape))
        if few and len(lefts) * len(rights) <= most:
            table = values(lefts, rights, lambda a, b: a @ b.T)
            left_of = left_of.reshape(self.left.places.shape)
            right_of = right_of.reshape(self.right.places.shape)
            return np.broadcast_to(table[left_of, right_of], self.shape)
        places = np.broadcast_arrays(self.left.places, self.right.places)
        left, right = (np.ravel(side) for side in places)
        out, step = np.empty(len(left)), max(1, ROW_CHUNK // (2 * width))
        for start in range(0, len(left), step):
            part = slice(start, start + step)
            out[part] = values(left[part], right[part], partial(np.einsum, "cj,cj->c"))
        return out.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class SymmetricForm:
    """q M r' for the predicates of one attribute."""

    times: Callable[[Floats], Floats]  # M X for X of shape (n, k)
    quadratic: Callable[[Factor], Floats]  # q M q' of every row of a factor

    def of_pairs(self, left: tuple[Factor, Ints], right: tuple[Factor, Ints]) -> Floats:
        """Return q M r' of pairs of rows of two factors, whose numbers are broadcast."""
        (F, rows), (G, others) = left, right
        if F.key == G.key and (rows is others or np.array_equal(rows, others)):
            return np.asarray(self.quadratic(F)[rows], dtype=np.float64)
        lefts, left_of = np.unique(rows, return_inverse=True)
        rights, right_of = np.unique(others, return_inverse=True)
        left_of, right_of = left_of.reshape(rows.shape), right_of.reshape(others.shape)
        if len(lefts) < len(rights):
            return self._crossed(G, rights, F, lefts, right_of, left_of)
        return self._crossed(F, lefts, G, rights, left_of, right_of)

    def _crossed(
        self, F: Factor, rows: Ints, G: Factor, others: Ints, row_of: Ints, other_of: Ints
    ) -> Floats:
        """Work out F M G' for the fewer rows of G; for the pairs that are there where it is large.

        Args:
            F: predicates.
            rows: of F that occur.
            G: predicates, of which no more occur.
            others: those of G.
            row_of: for each pair the place in `rows`.
            other_of: for each pair the place in `others`.
        """
        n = F.shape[1]
        if len(rows) * len(others) <= MAX_CROSSED:
            table = np.empty((len(rows), len(others)))
            step = max(1, ROW_CHUNK // max(n, F.shape[0], G.shape[0]))
            for start in range(0, len(others), step):
                some = others[start : start + step]
                table[:, start : start + step] = F.matmat(self.times(rows_of(G, some)))[rows]
            return np.asarray(table[row_of, other_of])
        shape = np.broadcast_shapes(row_of.shape, other_of.shape)
        pairs = np.ravel(row_of * len(others) + other_of)
        distinct, pair_of = np.unique(pairs, return_inverse=True)
        values = np.empty(len(distinct))
        step = max(1, ROW_CHUNK // max(n, F.shape[0], G.shape[0]))
        for start in range(0, len(distinct), step):
            row, other = np.divmod(distinct[start : start + step], len(others))
            seen = self.times(rows_of(G, others[other]))
            values[start : start + step] = (rows_of(F, rows[row]) * seen).sum(axis=0)
        return values[pair_of].reshape(shape)


def rows_of(factor: Factor, rows: Ints) -> Floats:
    """Return some rows of a factor as columns: (n, k)."""
    if isinstance(factor, Dense):
        return np.ascontiguousarray(factor.dense()[rows].T, dtype=np.float64)
    units = np.zeros((factor.shape[0], len(rows)), dtype=np.int64)
    units[rows, np.arange(len(rows))] = 1
    return np.asarray(factor.rmatmat(units), dtype=np.float64)


def sums_of_pairs(left: tuple[Factor, Ints], right: tuple[Factor, Ints]) -> Floats:
    """Return the product of the row sums of pairs: what predicates on one class are."""
    (F, rows), (G, others) = left, right
    return np.asarray(F.row_sums[rows] * G.row_sums[others], dtype=np.float64)


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
        for tensor, solved in zip(tensors, steps, strict=True):
            q, F = solved[axis]
            wide = np.moveaxis(tensor, 1, -1)[..., None, :] * q[part]
            after.append(wide.sum(axis=-1, keepdims=True) if F is None else wide @ F.T)
        yield from _next_axis(after, steps, coefs, widths, (*places, part))


def joint_covariances(system: JointSystem, pairs: QueryPairs) -> Floats:
    """Return the covariance of every pair under unit noise.

    Raises:
        LinAlgError: rounding has spoilt the coefficients.
    """
    if not system.dense:
        return _by_axes(system, pairs)

    def values(left: Ints, right: Ints, contract: Contract) -> Floats:
        first = _coefficients(system, pairs.left.block, left)
        second = _coefficients(system, pairs.right.block, right)
        return contract(first, second) * contract(
            _single(system, pairs.left.block, left), _single(system, pairs.right.block, right)
        )

    width = sum(stack.R.shape[0] * stack.R.shape[1] for stack in system.stacks)
    return pairs.crossed(width, values)


def _by_axes(system: JointSystem, pairs: QueryPairs) -> Floats:
    """Return the covariances where no axis is dense, and R is one number at a place.

    The axes are summed over one after the other, those of few predicates first: pairs that had the
    same ones so far share what is left.
    """
    broadcast = np.broadcast_arrays(pairs.left.places, pairs.right.places)
    blocks, places = (pairs.left.block, pairs.right.block), [np.ravel(side) for side in broadcast]
    left, right = map(partial(_single, system), blocks, places)
    tensor, axes = np.zeros(math.prod(system.places)), []
    for stack in system.stacks:
        tensor[stack.places] = 1 / stack.R[:, 0, 0] ** 2
    for k, i in enumerate(system.diagonal):
        (F, rows), (G, others) = map(partial(_predicates, system, i), blocks, places)
        both, of_pair = np.unique(rows * len(G) + others, return_inverse=True)
        axes.append((k, F[both // len(G)] * G[both % len(G)], of_pair))
    axes.sort(key=lambda axis: len(axis[1]) / axis[1].shape[1])
    whole = tensor.reshape(system.places).transpose([k for k, *_ in axes]).reshape(1, -1)
    values, step, most, size = (left * right)[:, 0], len(left), 1, whole.size
    for _, vectors, _ in axes:
        most, size = most * len(vectors), size // vectors.shape[1]
        if most * size > ROW_CHUNK:
            step = min(step, max(1, ROW_CHUNK // size))
    for start in range(0, len(values), step):
        parts, group = whole, np.zeros(1, dtype=np.int64)
        for _, vectors, of_pair in axes:
            of_part = of_pair[start : start + step]
            kept, group = np.unique(group * len(vectors) + of_part, return_inverse=True)
            ends = np.searchsorted(kept, len(vectors) * np.arange(1, len(parts)))
            wide = parts.reshape(len(parts), vectors.shape[1], -1)
            chosen = np.split(vectors[kept % len(vectors)], ends)
            parts = np.concatenate([q @ part for q, part in zip(chosen, wide, strict=True)])
        values[start : start + step] *= parts[group, 0]
    return values.reshape(pairs.shape)


def _predicates(system: JointSystem, i: int, block: Block, places: Ints) -> tuple[Floats, Ints]:
    """Return the predicates of a product on an attribute, (m, n), and which ones rows have."""
    chosen = QueryRows(block, places).predicates
    rows = chosen[i][1] if i in chosen else np.zeros(len(places), dtype=np.int64)
    return system.predicates(block, block.summands[0][1], i, slice(None)), rows


def _coefficients(system: JointSystem, block: Block, places: Ints) -> Floats:
    """Return t of rows of a product on the orthonormal rows of the system: (rows, columns)."""

    def predicates(i: int) -> Floats:
        table, rows = _predicates(system, i, block, places)
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
