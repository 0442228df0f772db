r"""Questions over several attributes: blocks, workloads, thresholds.

A block over attributes S with one factor each is the r-of-k query set: the predicates of a row that
must hold, at least r of them. It is the signed sum
    sum_u coef_u  kron_{i in u} F_i  kron_{i in S \ u} 1 1'
over attribute sets u ([MATH] 5: inclusion-exclusion); r = k leaves the one term u = S, the ordinary
Kronecker product. Attributes outside S are summed over. Who needs whole Kronecker products takes
k + 1 of them (summands), not 2^k; a tensor is multiplied attribute by attribute where the sums over
all sets would be far larger than it is.

At least r of k: how predicates are counted, without a term for each of 2^k sets of them.

With hits s the threshold is the function [s >= r]. Its mean over independent predicates that hold
with p_i, and its differences in some of them, take one pass over the attributes, O(k r) each. Where
the p_i differ from row to row the function is written as a sum of k + 1 products instead,
    [s >= r] = sum_j alpha_j x_j^s    (s = 0..k, any k + 1 distinct nodes x_j),
since x^s = prod_i x^{h_i}: as an operator prod_i (1 1' + (x - 1) F_i), a Kronecker product.

Tensors with one axis an attribute: products along the axes, and sums of tensors that lack some.

Tables here have up to 10^8 cells, so each function passes over memory as rarely as it can: a
product works through pieces that stay in a core's cache, and tensors that lack an axis are added to
one another while they are small.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, groupby
from typing import TypeVar

import numpy as np

from dpquery.arrays import Floats, Numbers
from dpquery.operators.factors import Factor, Identity

PIECE = 1 << 16  # numbers: with what a product makes of them they fit a core's cache
SHORT = 16  # along the last axis: numpy's loops over so few numbers cost more than their work
_Each = TypeVar("_Each")
Axes = tuple[int, ...]
Product = Callable[[Numbers], Numbers]
"""Of one matrix with (n, k) numbers."""


def runs_alike(
    items: Iterable[_Each], likeness: Callable[[_Each], Hashable], size: Callable[[_Each], int]
) -> Iterator[list[_Each]]:
    """Yield items in order: neighbours of one likeness together, up to PIECE numbers in all."""
    for _, alike in groupby(items, likeness):
        several = list(alike)
        most = max(1, PIECE // max(1, size(several[0])))
        yield from (several[k : k + most] for k in range(0, len(several), most))


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


SplitFactor = tuple[float, float]
"""(a, b) stands for the matrix a 11' + b F of a factor F."""
SignedTerms = tuple[tuple[int, tuple[bool, ...]], ...]
MAX_SET_SUMS = 16  # times a table's cells: what a threshold's sums over all sets may hold


@dataclass(frozen=True, eq=False)
class Block:
    """A query matrix over a domain, as sum_u coef_u of Kronecker products."""

    shape_of_domain: tuple[int, ...]  # sizes of all attributes of the domain
    attributes: tuple[int, ...]  # the sorted indices S of the attributes with a factor
    factors: tuple[Factor, ...]  # one factor for each, (m_i, n_i)
    # for each factor whether its predicates are counted; all others must hold
    counted: tuple[bool, ...]
    at_least: int  # r, how many of a row's counted predicates must hold

    def __post_init__(self) -> None:
        if not len(self.attributes) == len(self.factors) == len(self.counted):
            raise ValueError("one factor and one mark for each attribute")
        if not min(1, sum(self.counted)) <= self.at_least <= sum(self.counted):
            raise ValueError(f"{self.at_least} of {sum(self.counted)} predicates")

    @cached_property
    def is_product(self) -> bool:
        """Whether all predicates must hold: then the block is one Kronecker product."""
        return self.at_least == sum(self.counted)

    @cached_property
    def terms(self) -> SignedTerms:
        """(coef, mask): mask[i] says whether factor i stands in the term, or all ones do."""
        return threshold_terms(self.counted, self.at_least)

    @cached_property
    def summands(self) -> tuple[tuple[float, tuple[SplitFactor, ...]], ...]:
        """The block as a sum of Kronecker products: one for r = k, two for r = 1, else k + 1."""
        if self.is_product:
            return ((1.0, ((0.0, 1.0),) * len(self.factors)),)
        pairs = [(1.0, 1.0), (-1.0, 0.0)]  # 1 - [none holds]
        if self.at_least > 1:
            k = sum(self.counted)
            weights = node_weights((np.arange(k + 1) >= self.at_least).astype(np.float64))
            pairs = [*zip(weights.tolist(), threshold_nodes(k).tolist(), strict=True)]
        return tuple(
            (alpha, tuple((1.0, x - 1.0) if counted else (0.0, 1.0) for counted in self.counted))
            for alpha, x in pairs
        )

    @cached_property
    def row_shape(self) -> tuple[int, ...]:
        """Number of predicates on each of the block's attributes."""
        return tuple([factor.shape[0] for factor in self.factors])

    @cached_property
    def table_shape(self) -> tuple[int, ...]:
        """Sizes of the block's attributes."""
        return tuple([factor.shape[1] for factor in self.factors])

    @property
    def queries(self) -> int:
        """Number of rows."""
        return math.prod(self.row_shape)

    @property
    def shape(self) -> tuple[int, int]:
        """(queries, cells of the domain) as exact ints."""
        return self.queries, math.prod(self.shape_of_domain)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return np.result_type(np.int64, *(factor.dtype for factor in self.factors))

    def apply(self, table: Numbers) -> Numbers:
        """Answer from the marginal over S, which may be the answer. table_shape -> row_shape."""
        return self._sum(table, lambda factor: factor.matmat)

    def adjoint(self, rows: Numbers) -> Numbers:
        """Return the transpose's product. rows: row_shape -> table_shape."""
        return self._sum(rows, lambda factor: factor.rmatmat)

    def _sum(
        self, tensor: Numbers, product: Callable[[Factor], Callable[[Numbers], Numbers]]
    ) -> Numbers:
        """Return the product of the block, or of its transpose, with a tensor.

        Args:
            tensor: one axis for each factor.
            product: of one factor, or of its transpose, with (n, k) numbers.
        """
        steps = [
            None if isinstance(factor, Identity) else product(factor) for factor in self.factors
        ]
        if self.is_product:
            return kron_apply(steps, tensor)
        shape = [n for n, counted in zip(tensor.shape, self.counted, strict=True) if counted]
        of_all_sets = int(threshold_sum([(1, n) for n in shape], self.at_least))
        if of_all_sets <= MAX_SET_SUMS * math.prod(shape):
            every = tuple(range(len(self.factors)))
            sums, parts = {every: tensor}, {}
            for coef, mask in reversed(self.terms):  # larger sets first
                u = tuple(i for i in every if mask[i])
                if u not in sums:
                    i = min((i for i in every if i not in u), key=lambda i: tensor.shape[i])
                    sums[u] = sum_along(sums[tuple(sorted((*u, i)))], i)
                part = kron_apply([steps[i] if i in u else None for i in every], sums[u])
                parts[u] = coef * part
            return broadcast_sum(parts, [1] * len(every))
        plain = [None if on else step for on, step in zip(self.counted, steps, strict=True)]
        counted = [(axis, step) for axis, step in enumerate(steps) if self.counted[axis]]
        return threshold_apply(counted, kron_apply(plain, tensor), self.at_least)

    def repeated(self, times: int) -> "Block":
        """Return the same queries on each of so many tables, which lie along a first axis."""
        shape, factors = (times, *self.table_shape), (Identity(times), *self.factors)
        every = tuple(range(len(shape)))
        return Block(shape, every, factors, (False, *self.counted), self.at_least)

    def matvec(self, x: Numbers) -> Numbers:
        """Answer from the count vector. x: (N,) -> (m,)."""
        outside = tuple(i for i in range(len(self.shape_of_domain)) if i not in self.attributes)
        return self.apply(x.reshape(self.shape_of_domain).sum(axis=outside)).ravel()

    def rmatvec(self, y: Numbers) -> Numbers:
        """Return W'y. y: (m,) -> (N,)."""
        table = self.adjoint(y.reshape(self.row_shape))
        where = [slice(None) if i in self.attributes else None for i in self._axes]
        return np.broadcast_to(table[tuple(where)], self.shape_of_domain).ravel()

    @property
    def _axes(self) -> range:
        return range(len(self.shape_of_domain))


@dataclass(frozen=True)
class Workload:
    """A weighted union of blocks; equal to one of the same blocks and weights."""

    shape_of_domain: tuple[int, ...]  # sizes of all attributes
    blocks: tuple[Block, ...]  # of queries
    weights: tuple[float, ...]  # what scales the squared error of each block's queries
    # for each block what figures over several blocks measure its errors in, 1 for counts; all are 1
    # where none are given
    units: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", self.units or (1,) * len(self.blocks))
        if not self.blocks:
            raise ValueError("a workload without blocks")
        if not all(0 < weight < math.inf for weight in self.weights):
            raise ValueError("weights must be positive and finite")

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(queries, cells of the domain) as exact ints."""
        return sum(block.queries for block in self.blocks), math.prod(self.shape_of_domain)

    @cached_property
    def weighted_queries(self) -> float:
        """The sum of the weights of all queries, in units of the errors that they weigh."""
        triples = zip(self.weights, self.blocks, self.units, strict=True)
        return sum(weight * block.queries * unit**2 for weight, block, unit in triples)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return np.result_type(*(block.dtype for block in self.blocks))

    def matvec(self, x: Numbers) -> Numbers:
        """Answer all queries, unweighted. x: (N,) -> (m,)."""
        return np.concatenate([block.matvec(x) for block in self.blocks])

    def rmatvec(self, y: Numbers) -> Numbers:
        """Return W'y, unweighted. y: (m,) -> (N,)."""
        ends = np.cumsum([block.shape[0] for block in self.blocks])[:-1]
        pieces = np.split(y, ends)
        return np.asarray(sum(b.rmatvec(p) for b, p in zip(self.blocks, pieces, strict=True)))

    def select(self, positions: Sequence[int]) -> "Workload":
        """Return the union of some of the blocks."""
        return Workload(
            self.shape_of_domain,
            tuple(self.blocks[i] for i in positions),
            tuple(self.weights[i] for i in positions),
            tuple(self.units[i] for i in positions),
        )

    @cached_property
    def attributes(self) -> tuple[int, ...]:
        """Attributes that some block looks at."""
        return tuple(sorted({i for block in self.blocks for i in block.attributes}))


def product(shape_of_domain: tuple[int, ...], factors: dict[int, Factor]) -> Block:
    """Return the Kronecker product of the factors; attributes not named are summed over."""
    attributes = tuple(sorted(factors))
    chosen, every = tuple(map(factors.__getitem__, attributes)), (True,) * len(attributes)
    return Block(shape_of_domain, attributes, chosen, every, len(attributes))


def marginal(shape_of_domain: tuple[int, ...], attributes: Sequence[int]) -> Block:
    """Return the marginal over some attributes."""
    return product(shape_of_domain, {i: Identity(shape_of_domain[i]) for i in attributes})


def threshold_terms(counted: Sequence[bool], r: int) -> SignedTerms:
    """Return the signed terms of "at least r of the counted predicates, and all the others".

    Inclusion-exclusion: coef(u) = (-1)^(t-r) C(t-1, t-r) for the t = |u| >= r counted ones in u.
    """
    places = [i for i, inside in enumerate(counted) if inside]
    if len(places) == r:
        return ((1, tuple(True for _ in counted)),)
    terms = []
    for t in range(r, len(places) + 1):
        coef = (-1) ** (t - r) * math.comb(t - 1, t - r)
        for chosen in combinations(places, t):
            mask = tuple(i in chosen or not inside for i, inside in enumerate(counted))
            terms.append((coef, mask))
    return tuple(terms)
