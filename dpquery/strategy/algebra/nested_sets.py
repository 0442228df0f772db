"""Grams of nested sets of codes: V = sum_c weight_c 1_c 1_c', and no two sets cross.

Single codes, groups of them, groups of groups and the total: tracts, counties, states, the nation.
The tree of such sets has a level for each set that lies in another. What has no set at a level is
passed on by a block without a weight.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.factors import Factor, Groups, IdentityRows
from dpquery.operators.gram import Matrix, Structured
from dpquery.operators.ranges import Columns, ListedRanges
from dpquery.public_chance import public_generator

MOST_ENTRIES = 1 << 28  # codes of all sets together


@dataclass(frozen=True, eq=False)
class NestedSets:
    """A tree of sets of codes with weights.

    Attributes:
        parents: for each level but the highest, finest first, the set above that each lies in. The
            lowest level has the codes in their order; the others never fall.
        weights: of the sets of each level; 0 for those that are only passed on.
    """

    parents: tuple[Ints, ...]
    weights: tuple[Floats, ...]

    @classmethod
    def of(cls, V: Matrix) -> Self | None:
        """Find the sets of a Gram; None where they cross, are codes, or one has no such form."""
        if not isinstance(V, Structured) or V.mixture.a < 0 or V.mixture.b < 0:
            return None
        codes, pairs = np.full(V.n, V.mixture.a), []
        for weight, factor in V.terms:
            if weight < 0:
                return None
            if weight == 0:
                continue
            matrix = sets_of(factor)
            if matrix is None:
                return None
            single = np.diff(matrix.indptr) == 1
            np.add.at(codes, matrix[single].indices, weight)
            pairs.append((weight, matrix[~single]))
        if sum(matrix.nnz for _, matrix in pairs) > MOST_ENTRIES:
            return None
        family = _family(pairs, V.n, V.mixture.b)
        if family is None:
            return None
        owner, parent, weights = family
        return cls._of_family(codes, owner, parent, weights) if weights.any() else None

    @classmethod
    def _of_family(cls, codes: Floats, owner: Ints, parent: Ints, set_weights: Floats) -> Self:
        """Return the tree of sets that are given by their parents, the highest first."""
        height = np.ones(len(parent), dtype=np.int64)
        for number in range(len(parent) - 1, 0, -1):
            height[parent[number]] = max(height[parent[number]], height[number] + 1)
        parents, weights, above = [], [codes], owner
        for level in range(1, int(height[0]) + 1):
            blocks, place = np.unique(above, return_inverse=True)
            reached = height[blocks] == level
            parents.append(place)
            weights.append(np.where(reached, set_weights[blocks], 0.0))
            above = np.where(reached, parent[blocks], blocks)
        for level in range(len(parents) - 1, 0, -1):  # blocks in the order of their parents
            order = np.argsort(parents[level], kind="stable")
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            parents[level], weights[level] = parents[level][order], weights[level][order]
            parents[level - 1] = place[parents[level - 1]]
        return cls(tuple(parents), tuple(weights))


def sets_of(factor: Factor) -> "sp.csr_array | None":
    """Return the sets of codes that a factor counts, one a row; None where it is another kind."""
    match factor:
        case Groups(matrix=matrix):
            return sp.csr_array(matrix)
        case IdentityRows(codes=codes):
            ones, ends = np.ones(len(codes)), np.arange(len(codes) + 1)
            return sp.csr_array((ones, codes, ends), shape=factor.shape)
        case ListedRanges(bounds=(first, last)):
            sizes = last - first + 1
            if sizes.sum() > MOST_ENTRIES:
                return None
            ends = np.concatenate([[0], np.cumsum(sizes)])
            codes = np.arange(ends[-1]) + np.repeat(first - ends[:-1], sizes)
            return sp.csr_array((np.ones(len(codes)), codes, ends), shape=factor.shape)
        case Columns(inner=inner, codes=codes):
            inside = sets_of(inner)
            return None if inside is None else sp.csr_array(inside[:, codes])
        case _:
            return None


def _family(
    pairs: Iterable[tuple[float, "sp.csr_array"]], n: int, total: float
) -> tuple[Ints, Ints, Floats] | None:
    """Return the smallest set of every code, and every set's parent and weight, larger sets first.

    The first set has all codes. None where two sets share some of the codes of both.
    """
    rows = sorted(_rows(pairs), key=lambda row: -len(row[1]))
    owner, sizes = np.zeros(n, dtype=np.int64), [n]
    parent, weights = [0], [total]
    for weight, codes in rows:
        above = owner[codes]
        place = int(above[0])
        if np.any(above != place):
            return None
        if sizes[place] == len(codes):
            weights[place] += weight
            continue
        owner[codes] = len(sizes)
        sizes.append(len(codes))
        parent.append(place)
        weights.append(weight)
    return owner, np.array(parent), np.array(weights)


def _rows(pairs: Iterable[tuple[float, "sp.csr_array"]]) -> Iterator[tuple[float, Ints]]:
    for weight, matrix in pairs:
        for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
            if stop > start:
                yield weight, np.asarray(matrix.indices[start:stop], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class AlikeSets:
    """Nested sets, those of one parent counted once where what is in them is the same.

    Attributes:
        parents: of the kinds of each level but the highest: never falling.
        weights: of each kind.
        copies: for the same levels, how many sets of a kind one of its parent's kind holds.
        kinds: for each level the kind of every set.
    """

    parents: tuple[Ints, ...]
    weights: tuple[Floats, ...]
    copies: tuple[Floats, ...]
    kinds: tuple[Ints, ...]

    @classmethod
    def of(cls, sets: NestedSets) -> Self:
        """Compare sets by random sums of what is in them, of 64 bits."""
        forms = [_numbers(sets.weights[0].view(np.int64))]
        for above, weights in zip(sets.parents, sets.weights[1:], strict=True):
            inside = np.zeros(len(weights), dtype=np.int64)
            np.add.at(inside, above, _mixed(forms[-1], len(forms)))
            forms.append(_paired(_numbers(inside), _numbers(weights.view(np.int64))))
        kinds = [np.zeros(len(forms[-1]), dtype=np.int64)]
        parents, copies = [], []
        for level in range(len(sets.parents) - 1, -1, -1):
            above = kinds[-1][sets.parents[level]]
            kind = _paired(above, forms[level])
            parents.append(_firsts(kind, above))
            copies.append(np.bincount(kind) / np.bincount(kinds[-1])[parents[-1]])
            kinds.append(kind)
        kinds.reverse()
        pairs = zip(kinds, sets.weights, strict=True)
        firsts = tuple(_firsts(kind, level) for kind, level in pairs)
        return cls(tuple(parents[::-1]), firsts, tuple(copies[::-1]), tuple(kinds))


def _numbers(values: Ints) -> Ints:
    """Return the number of every value, in their order."""
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def _paired(first: Ints, second: Ints) -> Ints:
    """Return the number of every pair of numbers, in the order of the first."""
    return _numbers(first * (int(second.max()) + 1) + second)


def _mixed(numbers: Ints, level: int) -> Ints:
    """Return a random integer for each number; sums of them modulo 2^64 tell multisets apart."""
    table = public_generator(level).integers(-(1 << 62), 1 << 62, size=int(numbers.max()) + 1)
    return np.asarray(table[numbers])


def _firsts(kind: Ints, values: Numbers) -> Numbers:
    """Return the value of the first set of each kind."""
    return np.asarray(values[np.unique(kind, return_index=True)[1]])
