r"""Queries over several attributes: blocks, signed sums of Kronecker products, and their unions.

A block over attributes S with one factor each is the r-of-k query set: the predicates of a row that
must hold, at least r of them. It is the signed sum
    sum_u coef_u  kron_{i in u} F_i  kron_{i in S \ u} 1 1'
over attribute sets u ([MATH] 5: inclusion-exclusion); r = k leaves the one term u = S, the ordinary
Kronecker product. Attributes outside S are summed over. Who needs whole Kronecker products takes
k + 1 of them (summands), not 2^k; a tensor is multiplied attribute by attribute where the sums over
all sets would be far larger than it is.
"""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from dpquery.arrays import Numbers
from dpquery.operators.factors import Factor, Identity
from dpquery.operators.tensors import Product, broadcast_sum, kron_apply, sum_along
from dpquery.operators.thresholds import (
    node_weights,
    threshold_apply,
    threshold_nodes,
    threshold_sum,
)

SplitFactor = tuple[float, float]
"""(a, b) stands for the matrix a 11' + b F of a factor F."""
SignedTerms = tuple[tuple[int, tuple[bool, ...]], ...]
MAX_SET_SUMS = 16  # times a table's cells: what a threshold's sums over all sets may hold


@dataclass(frozen=True, eq=False)
class Block:
    """A query matrix over a domain, as sum_u coef_u of Kronecker products.

    Attributes:
        shape_of_domain: sizes of all attributes of the domain.
        attributes: the sorted indices S of the attributes with a factor.
        factors: one factor for each, (m_i, n_i).
        counted: for each factor whether its predicates are counted; all others must hold.
        at_least: r, how many of a row's counted predicates must hold.
    """

    shape_of_domain: tuple[int, ...]
    attributes: tuple[int, ...]
    factors: tuple[Factor, ...]
    counted: tuple[bool, ...]
    at_least: int

    def __post_init__(self) -> None:
        if not len(self.attributes) == len(self.factors) == len(self.counted):
            raise ValueError("one factor and one mark for each attribute")
        if not min(1, sum(self.counted)) <= self.at_least <= sum(self.counted):
            raise ValueError(f"{self.at_least} of {sum(self.counted)} predicates")

    @property
    def is_product(self) -> bool:
        """Whether all predicates must hold: then the block is one Kronecker product."""
        return self.at_least == sum(self.counted)

    @cached_property
    def terms(self) -> SignedTerms:
        """(coef, mask): mask[i] says whether factor i stands in the term, or all ones do."""
        return threshold_terms(self.counted, self.at_least)

    @cached_property
    def summands(self) -> tuple[tuple[float, tuple[SplitFactor, ...]], ...]:
        """The block as a sum of k + 1 Kronecker products for k counted factors; one for r = k."""
        if self.is_product:
            return ((1.0, ((0.0, 1.0),) * len(self.factors)),)
        k = sum(self.counted)
        weights = node_weights((np.arange(k + 1) >= self.at_least).astype(np.float64))
        return tuple(
            (
                float(alpha),
                tuple((1.0, x - 1.0) if counted else (0.0, 1.0) for counted in self.counted),
            )
            for alpha, x in zip(weights.tolist(), threshold_nodes(k).tolist(), strict=True)
        )

    @cached_property
    def row_shape(self) -> tuple[int, ...]:
        """Number of predicates on each of the block's attributes."""
        return tuple(factor.shape[0] for factor in self.factors)

    @cached_property
    def table_shape(self) -> tuple[int, ...]:
        """Sizes of the block's attributes."""
        return tuple(factor.shape[1] for factor in self.factors)

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
            return self._sum_over_sets(tensor, steps)
        plain = [None if on else step for on, step in zip(self.counted, steps, strict=True)]
        counted = [(axis, step) for axis, step in enumerate(steps) if self.counted[axis]]
        return threshold_apply(counted, kron_apply(plain, tensor), self.at_least)

    def _sum_over_sets(self, tensor: Numbers, steps: Sequence[Product | None]) -> Numbers:
        """Return sum_u coef_u of the products of the factors in u with the sums over the others.

        Sums over more axes are taken from those over fewer, and are broadcast only at the end.
        """
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


@dataclass(frozen=True, eq=False)
class Workload:
    """A weighted union of blocks.

    Attributes:
        shape_of_domain: sizes of all attributes.
        blocks: of queries.
        weights: what scales the squared error of each block's queries.
        units: for each block what figures over several blocks measure its errors in, 1 for counts;
            all are 1 where none are given.
    """

    shape_of_domain: tuple[int, ...]
    blocks: tuple[Block, ...]
    weights: tuple[float, ...]
    units: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", self.units or (1,) * len(self.blocks))
        if not self.blocks:
            raise ValueError("a workload without blocks")
        if not all(0 < weight < math.inf for weight in self.weights):
            raise ValueError("weights must be positive and finite")

    @property
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
    chosen, every = tuple(factors[i] for i in attributes), tuple(True for _ in attributes)
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
