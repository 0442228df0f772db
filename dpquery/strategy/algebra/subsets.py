"""Families of attribute sets, and sums along inclusion.

The full family of d attributes uses fast zeta transforms, O(d 2^d). Any other family lists the
subsets below each of its sets once, as integers, so a hundred attributes cost only the sets that a
workload needs.

Sums over the terms of a Gram, one for every attribute subset below a term.

With two numbers c(i, V, 0) and c(i, V, 1) for every matrix V of attribute i,
    S_b = sum_j w_j prod_{i in b} c(i, V_ij, 1) prod_{i not in b} c(i, V_ij, 0)
over the terms j that look at all of b. Traces against the eigenprojectors of marginals and the
variances of cores and totals are sums of this kind ([MATH] 3, 6). A term of w attributes takes an
outer product of w pairs, O(2^w).

The algebra of marginals: every Gram in it is diagonal in one common set of eigenspaces.

There is one eigenspace for each attribute subset a, with projector
    P_a = kron_{i in a} (I - J/n_i)  kron_{i not in a} J/n_i,
of dimension mult(a) = prod_{i in a} (n_i - 1). A strategy of marginals b with weights theta_b has
eigenvalue kappa(a) = sum_{b >= a} theta_b^2 prod_{i not in b} n_i there ([MATH] 3), so its inverse,
its error and every query's variance are sums over subsets. All eigenvalues here are divided by the
number of cells N: kappa(a) / N = sum_{b >= a} theta_b^2 / prod_{i in b} n_i, since N itself leaves
the range of floats at some hundred attributes. Marginals of factors A_i are diagonal in the same
way, with mu_i = 1'(A_i'A_i)^-1 1 for n_i ([MATH] 7).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import chain, combinations, pairwise

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpquery.arrays import Bools, Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_ALGEBRA_ATTRIBUTES, MAX_RESIDUAL_ATTRIBUTES
from dpquery.operators.gram import Gram, total_sum, trace

Subset = tuple[int, ...]
FULL_LIMIT = 16  # attributes up to which all 2^d subsets are kept
LOW_BITS = 4  # attributes that a fast zeta transform does at once


def subsets_of(attributes: Subset) -> Iterable[Subset]:
    """Yield all subsets of a sorted tuple, smaller ones first."""
    for size in range(len(attributes) + 1):
        yield from combinations(attributes, size)


def by_size(sets: Sequence[Subset]) -> Iterator[tuple[Ints, Ints]]:
    """Yield the sets of each size: their positions (k,) and their members (k, size)."""
    sizes = np.fromiter(map(len, sets), np.int64, len(sets))
    for size in np.unique(sizes):
        positions = np.flatnonzero(sizes == size)
        members = np.array([sets[k] for k in positions.tolist()], dtype=np.int64)
        yield positions, members.reshape(len(positions), size)


def member_products(sets: Sequence[Subset], values: Floats) -> Floats:
    """Return prod_{i in a} values[i] for every set a. values: (d,)."""
    out = np.ones(len(sets))
    for positions, members in by_size(sets):
        out[positions] = values[members].prod(axis=1)
    return out


def outer_products(factors: Sequence[Floats], scale: Floats) -> Floats:
    """Return scale_r kron_j factors[j][r] for every row r: (k, m_j) each -> (k, prod_j m_j)."""
    return reduce(_outer, factors, scale[:, None])


def _outer(left: Floats, right: Floats) -> Floats:
    width = left.shape[1] * right.shape[1]
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), width)


@dataclass(frozen=True, eq=False)
class SizedSets:
    """Sets of one size w, with the numbers of all their subsets."""

    positions: Ints  # (k,) places in the list that they come from
    members: Ints  # (k, w) their attributes
    # (k, 2^w) numbers of their subsets, in the order of an outer product of w pairs (not a member,
    # a member)
    below: Ints


class Below:
    """All subsets below each set of a list, every distinct one numbered once."""

    def __init__(self, sets: Sequence[Subset]) -> None:
        sized = list(by_size(sets))
        self.groups = [
            SizedSets(positions, members, np.empty((len(members), 1 << members.shape[1]), np.int64))
            for positions, members in sized
        ]
        self.subsets: tuple[Subset, ...] = ()
        for size in range(max((group.members.shape[1] for group in self.groups), default=-1) + 1):
            self._number(size)

    def _number(self, size: int) -> None:
        """Number the subsets of one size after all smaller ones."""
        rows, places = [], []
        for group in self.groups:
            width = group.members.shape[1]
            chosen = np.array(list(combinations(range(width), size)), dtype=np.int64)
            chosen = chosen.reshape(math.comb(width, size), size)
            rows.append(group.members[:, chosen].reshape(len(group.members) * len(chosen), size))
            places.append((1 << (width - 1 - chosen)).sum(axis=1))
        distinct, numbers = distinct_rows(np.concatenate(rows))
        numbers += len(self.subsets)
        self.subsets += tuple(map(tuple, distinct.tolist()))
        ends = np.cumsum([len(row) for row in rows])[:-1]
        for group, positions, columns in zip(
            self.groups, np.split(numbers, ends), places, strict=True
        ):
            group.below[:, columns] = positions.reshape(len(group.members), len(columns))

    @cached_property
    def incidence(self) -> "sp.csr_array":
        """The 0/1 matrix with a one at (a, b) where subset a is below set b of the list."""
        pairs = [
            (group.below.ravel(), np.repeat(group.positions, group.below.shape[1]))
            for group in self.groups
        ]
        rows, columns = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        count = sum(len(group.positions) for group in self.groups)
        return sp.csr_array((np.ones(len(rows)), (rows, columns)), (len(self.subsets), count))


def distinct_rows(rows: Ints) -> tuple[Ints, Ints]:
    """Return the distinct rows of an array of indices, in lexical order, and the number of each.

    rows: (k, w) -> (m, w), (k,). Rows are read as numbers to a base; where those would pass 63
    bits, equal beginnings are numbered first.
    """
    base = int(rows.max(initial=0)) + 1
    keys, bound = np.zeros(len(rows), dtype=np.int64), 1
    for column in rows.T:
        if bound * base >= 1 << 63:
            distinct, keys = np.unique(keys, return_inverse=True)
            bound = len(distinct)
        keys, bound = keys * base + column, bound * base
    _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first], numbers


class Lattice:
    """A family of subsets of 0..d-1, with sums along inclusion."""

    def __init__(self, d: int, family: Sequence[Subset] | None = None) -> None:
        """Keep all subsets of d attributes, in mask order, or the listed family alone."""
        self.d = d
        self.full = family is None
        self._family: tuple[Subset, ...] = () if family is None else tuple(family)

    def __len__(self) -> int:
        return 1 << self.d if self.full else len(self._family)

    def subset(self, number: int) -> Subset:
        """Return the subset at a place."""
        if not self.full:
            return self._family[number]
        return tuple(i for i in range(self.d) if number >> i & 1)

    @cached_property
    def subsets(self) -> list[Subset]:
        """All of them, in order."""
        return [self.subset(number) for number in range(len(self))]

    def spread(self, values: Mapping[Subset, float]) -> Floats:
        """Return values by subset as an array over the family, zero where none is given."""
        out = np.zeros(len(self))
        if self.full:
            for subset, value in values.items():
                out[sum(1 << i for i in subset)] = value
        else:
            out[:] = [values.get(subset, 0.0) for subset in self._family]
        return out

    def inclusions(self, low: Ints, high: Ints) -> Floats:
        """Return 1 where subset low[j] is in subset high[k], else 0: (j, k) for places in order."""
        if not self.full:
            return np.asarray(self._incidence[low][:, high].toarray())
        return np.asarray((low[:, None] & high) == low[:, None], dtype=np.float64)

    def toggled(self, numbers: Ints, attributes: Ints) -> Ints:
        """Return the places, if any, of subsets with one attribute more or less each."""
        if self.full:
            return np.asarray(numbers ^ (1 << attributes))
        pairs = zip(numbers.tolist(), attributes.tolist(), strict=True)
        neighbours = (tuple(sorted({i} ^ set(self._family[number]))) for number, i in pairs)
        return np.array([self._place[a] for a in neighbours if a in self._place], dtype=np.int64)

    @cached_property
    def _place(self) -> dict[Subset, int]:
        return {subset: number for number, subset in enumerate(self._family)}

    def superset_sums(self, values: Floats) -> Floats:
        """Return sum_{b >= a} values(b) for every a."""
        if not self.full:
            return np.asarray(self._incidence @ values)
        return self._transform(values, source=1)

    def subset_sums(self, values: Floats) -> Floats:
        """Return sum_{a <= b} values(a) for every b."""
        if not self.full:
            return np.asarray(self._containment @ values)
        return self._transform(values, source=0)

    def _transform(self, values: Floats, *, source: int) -> Floats:
        """Add along one attribute after the other; the first few take one matrix product."""
        low = min(self.d, LOW_BITS)
        out = (values.reshape(-1, 1 << low) @ _sums_along(low, source)).ravel()
        for axis in range(low, self.d):
            pairs = out.reshape(-1, 2, 1 << axis)
            pairs[:, 1 - source] += pairs[:, source]
        return out

    def products(self, inside: Sequence[float], outside: Sequence[float]) -> Floats:
        """Return prod_{i in a} inside[i] prod_{i not in a} outside[i] for every a."""
        out = np.ones(len(self))
        for i, (within, other) in enumerate(zip(inside, outside, strict=True)):
            out *= np.where(self._members(i), within, other)
        return out

    def _members(self, i: int) -> Bools:
        if self.full:
            return (np.arange(len(self)) >> i & 1).astype(bool)
        inside = np.zeros(len(self), bool)
        inside[self._holding[i]] = True
        return inside

    @cached_property
    def _holding(self) -> list[Ints]:
        """The places of the subsets of the family that hold each attribute."""
        members = np.fromiter(chain.from_iterable(self._family), np.int64)
        places = np.repeat(np.arange(len(self)), [len(subset) for subset in self._family])
        order = np.argsort(members, kind="stable")
        ends = np.cumsum(np.bincount(members, minlength=self.d))[:-1]
        return np.split(places[order], ends)

    @cached_property
    def _incidence(self) -> "sp.csr_array":
        """The 0/1 matrix with a 1 at (a, b) where a <= b. O(sum_b 2^|b|)."""
        below = Below(self._family)
        place = {subset: k for k, subset in enumerate(below.subsets)}
        return below.incidence[[place[subset] for subset in self._family]]

    @cached_property
    def _containment(self) -> "sp.csc_array":
        """The same with a 1 where b <= a: a search asks for it thousands of times."""
        return self._incidence.T


@lru_cache
def _sums_along(d: int, source: int) -> Floats:
    """Return the 0/1 matrix that adds values over all supersets (1) or subsets (0) of d attributes.

    (2^d, 2^d); values stand to its left.
    """
    step = np.array([[1.0, 1.0 - source], [float(source), 1.0]])
    matrix = np.ones((1, 1))
    for _ in range(d):
        matrix = np.kron(matrix, step)
    return matrix


class BlockSums:
    """S_b = sum_j w_j prod_i c(i, matrix of j, i in b) over all subsets b, and its gradient.

    Attributes of one class stand in no subset; their c(i, V, 0) is a factor of the weight.
    """

    def __init__(self, gram: Gram, *, most: int = MAX_RESIDUAL_ATTRIBUTES) -> None:
        """Number the subsets; UnsupportedWorkloadError where a term has over `most` attributes."""
        self.offsets = np.cumsum([0, *(2 * len(matrix) for matrix in gram.matrices)])
        self.size = int(self.offsets[-1]) + 1  # the last slot is always one
        self.weights = gram.weights
        single = np.array(gram.shape_of_domain) == 1
        index = np.where(single, 0, gram.index)
        rows, attributes = np.nonzero(index)
        ends = np.cumsum(np.bincount(rows, minlength=len(index)))
        flat = attributes.tolist()
        inside = [tuple(flat[a:b]) for a, b in pairwise([0, *ends.tolist()])]
        widest = max(map(len, inside), default=0)
        if widest > most:
            raise UnsupportedWorkloadError(f"a table looks at {widest} attributes")
        self.below = Below(inside)
        self.subsets = self.below.subsets
        self.slots = [
            self.offsets[group.members] + 2 * gram.index[group.positions[:, None], group.members]
            for group in self.below.groups
        ]
        # the slots of each term on attributes of one class, the last slot where none
        alone = np.flatnonzero(single)
        index = gram.index[:, alone]
        kept = np.where(index > 0, self.offsets[alone] + 2 * index, self.size - 1)
        self.alone = np.asarray(kept[:, (index > 0).any(axis=0)])

    def places(self, i: int) -> tuple[slice, slice]:
        """Return where c(i, V, 0) and c(i, V, 1) of all matrices stand in the flat vector."""
        start, stop = int(self.offsets[i]), int(self.offsets[i + 1])
        return slice(start, stop, 2), slice(start + 1, stop, 2)

    def sums(self, c: Floats) -> Floats:
        """Return S_b for every subset. c: (size,) with a one at its end."""
        return self._sums(c, self.weights)

    def magnitudes(self, c: Floats) -> Floats:
        """Return the same sums of absolute values: what rounding is relative to."""
        return self._sums(np.abs(c), np.abs(self.weights))

    def _sums(self, c: Floats, weights: Floats) -> Floats:
        scaled, out = weights * c[self.alone].prod(axis=1), np.zeros(len(self.subsets))
        for group, slots in zip(self.below.groups, self.slots, strict=True):
            products = outer_products(_pairs(c, slots), scaled[group.positions])
            out += np.bincount(group.below.ravel(), products.ravel(), minlength=len(out))
        return out

    def gradient(self, c: Floats, by_sums: Floats) -> Floats:
        """Return the gradient with respect to c, given that with respect to S."""
        lone = c[self.alone]
        scaled = self.weights * lone.prod(axis=1)
        by_scale, slots_of, slopes = np.zeros(len(scaled)), [np.zeros(0, np.int64)], [np.zeros(0)]
        for group, slots in zip(self.below.groups, self.slots, strict=True):
            left = by_sums[group.below.T]  # terms last: what is done for each is one loop
            terms = np.flatnonzero(left.any(axis=0))
            left, positions, slots = left[:, terms], group.positions[terms], slots[terms].T
            both = slots[:, None, :] + np.arange(2)[:, None]
            before = [scaled[None, positions]]
            for j, pair in enumerate(c[both][:-1]):
                before.append((before[j][:, None] * pair).reshape(2 << j, len(terms)))
            for j in reversed(range(len(both))):
                left = left.reshape(1 << j, 2, len(terms))
                slots_of.append(both[j])
                slopes.append((before[j][:, None] * left).sum(axis=0))
                outside, inside = c[both[j]]
                left = left[:, 0] * outside + left[:, 1] * inside
            by_scale[positions] = left[0]
        for k in range(lone.shape[1]):
            slots_of.append(self.alone[:, k])
            slopes.append(self.weights * np.delete(lone, k, axis=1).prod(axis=1) * by_scale)
        flat, values = (np.concatenate([*map(np.ravel, each)]) for each in (slots_of, slopes))
        return np.asarray(np.bincount(flat, values, minlength=self.size), dtype=np.float64)


def _pairs(c: Floats, slots: NDArray[np.integer]) -> list[Floats]:
    """Return (k, 2) values outside and inside the subset, for each attribute of sets in a row."""
    return list(c[slots.T[:, :, None] + np.arange(2)])


CANCELLATION = 1e-12  # relative to what cancelled


def workload_eigenvalues(gram: Gram) -> dict[Subset, float]:
    """Return tr(P_a V) / N for every subset a on which it is not zero.

    A Kronecker term contributes prod_i tr(P_{a_i} V_i) / n_i, with tr(P_0 V) = 1'V1/n, tr(P_1 V)
    the rest of the trace; 11' contributes to subsets without i alone, and one to them.

    Raises:
        UnsupportedWorkloadError: a term looks at more than MAX_ALGEBRA_ATTRIBUTES attributes.
    """
    blocks = BlockSums(gram, most=MAX_ALGEBRA_ATTRIBUTES)
    c = np.ones(blocks.size)
    for i, (n, grams_of_attribute) in enumerate(
        zip(gram.shape_of_domain, gram.matrices, strict=True)
    ):
        zero = np.array([total_sum(V) / n**2 for V in grams_of_attribute])
        whole = np.array([trace(V) / n for V in grams_of_attribute])
        (outside, inside), rest = blocks.places(i), whole - zero
        c[outside] = zero
        c[inside] = np.where(np.abs(rest) > CANCELLATION * np.abs(whole), rest, 0.0)
    sums = blocks.sums(c)
    kept = np.flatnonzero(sums > CANCELLATION * blocks.magnitudes(c))
    return {blocks.subsets[k]: float(sums[k]) for k in kept}


def distinct_or_all(vector: Floats) -> Floats:
    """Return one entry where all are equal but for rounding: constant axes then cost nothing."""
    if len(vector) and np.ptp(vector) <= CANCELLATION * np.abs(vector).max():
        return vector[:1]
    return vector


def polynomial_power(g: Floats, order: int) -> Floats:
    """Return the coefficients of a power of g. g: (2,)*k -> (order + 1,)*k.

    >>> polynomial_power(np.array([1.0, 1.0]), 4)
    array([1., 4., 6., 4., 1.])
    """
    power = g
    for _ in range(order - 1):
        longer = np.zeros(tuple(n + 1 for n in power.shape))
        for shift in np.ndindex(g.shape):
            if g[shift]:
                place = tuple(slice(s, s + n) for s, n in zip(shift, power.shape, strict=True))
                longer[place] += g[shift] * power
        power = longer
    return power
