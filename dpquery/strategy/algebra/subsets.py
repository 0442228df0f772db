"""Families of attribute sets, and sums along inclusion.

The full family of d attributes uses fast zeta transforms, O(d 2^d). Any other family lists the
subsets below each of its sets once, as integers, so a hundred attributes cost only the sets that a
workload needs.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, combinations

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Bools, Floats, Ints

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
    out = scale[:, None]
    for factor in factors:
        out = (out[:, :, None] * factor[:, None, :]).reshape(
            len(out), out.shape[1] * factor.shape[1]
        )
    return out


@dataclass(frozen=True, eq=False)
class SizedSets:
    """Sets of one size w, with the numbers of all their subsets.

    Attributes:
        positions: (k,) places in the list that they come from.
        members: (k, w) their attributes.
        below: (k, 2^w) numbers of their subsets, in the order of an outer product of w pairs
            (not a member, a member).
    """

    positions: Ints
    members: Ints
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
            return np.asarray(self._incidence.T @ values)
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
        """Return which subsets hold an attribute."""
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
