"""Sums over supersets and subsets of a family of attribute sets.

The full family of d attributes uses fast zeta transforms, O(d 2^d). Any other family uses a sparse
incidence matrix, so a hundred attributes cost only the sets that a workload needs.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import scipy.sparse as sp

from dpquery.operators.factors import Array

Subset = tuple[int, ...]
FULL_LIMIT = 16  # attributes up to which all 2^d subsets are kept


def subsets_of(attributes: Subset) -> Iterable[Subset]:
    """Yield all subsets of a sorted tuple, smaller ones first."""
    for size in range(len(attributes) + 1):
        yield from combinations(attributes, size)


class Lattice:
    """A family of subsets of 0..d-1, with sums along inclusion."""

    def __init__(self, d: int, family: Sequence[Subset] | None = None) -> None:
        """Keep all subsets of d attributes, in mask order, or the listed family alone."""
        self.d = d
        self.full = family is None
        if family is None:
            self.subsets: list[Subset] = [
                tuple(i for i in range(d) if mask >> i & 1) for mask in range(1 << d)
            ]
        else:
            self.subsets = list(family)
            self.incidence = _incidence(self.subsets)

    def __len__(self) -> int:
        return len(self.subsets)

    def superset_sums(self, values: Array) -> Array:
        """Return sum_{b >= a} values(b) for every a."""
        if not self.full:
            return np.asarray(self.incidence @ values)
        return self._transform(values, source=1, target=0)

    def subset_sums(self, values: Array) -> Array:
        """Return sum_{a <= b} values(a) for every b."""
        if not self.full:
            return np.asarray(self.incidence.T @ values)
        return self._transform(values, source=0, target=1)

    def _transform(self, values: Array, *, source: int, target: int) -> Array:
        cube = values.reshape((2,) * self.d).copy()
        for axis in range(self.d):
            place: list[slice | int] = [slice(None)] * self.d
            place[axis] = target
            cube[tuple(place)] += np.take(cube, source, axis=axis)
        return cube.ravel()

    def products(self, inside: Sequence[float], outside: Sequence[float]) -> Array:
        """Return prod_{i in a} inside[i] prod_{i not in a} outside[i] for every a."""
        member = np.zeros((len(self), self.d), dtype=bool)
        for row, subset in enumerate(self.subsets):
            member[row, list(subset)] = True
        factors = np.where(member, np.asarray(inside), np.asarray(outside))
        return np.asarray(factors.prod(axis=1))


def _incidence(family: list[Subset]) -> "sp.csr_array":
    """Return the 0/1 matrix with a 1 at (a, b) where a <= b. O(sum_b 2^|b|)."""
    place = {subset: k for k, subset in enumerate(family)}
    rows, columns = [], []
    for k, b in enumerate(family):
        for a in subsets_of(b):
            if a in place:
                rows.append(place[a])
                columns.append(k)
    ones = np.ones(len(rows))
    return sp.csr_array((ones, (rows, columns)), shape=(len(family), len(family)))
