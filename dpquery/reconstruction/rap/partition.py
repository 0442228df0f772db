"""Groups of classes that no measured query distinguishes: relaxed rows are fitted on these alone.

A measured predicate sees of a row the mass of a group, not how the row spreads it over classes. So
a fit that moves mass between groups costs what was measured, not what the domain holds, and what
nothing was measured about stays spread evenly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Floats, Ints, Singles
from dpquery.reconstruction.rap.relaxed_rows import RelaxedRows

Sparse: TypeAlias = "sp.csr_array[np.float32, tuple[int, int]]"


@dataclass(frozen=True, eq=False)
class Partition:
    """A partition of the classes of every attribute into groups.

    Masses of groups are arrays of (g, n'), the groups of one attribute below those of the last.

    Attributes:
        shape: classes of each attribute.
        places: (sum of shape,) the group of every class, numbered through all attributes.
    """

    shape: tuple[int, ...]
    places: Ints

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> "Partition":
        """Put all classes of an attribute in one group."""
        return cls(shape, np.repeat(np.arange(len(shape)), shape))

    def refine(self, predicates: Sequence[tuple[int, Floats]]) -> "Partition":
        """Split groups until every predicate, (attribute, (n_i,)), is constant on each."""
        predicates_of: list[list[Floats]] = [[] for _ in self.shape]
        for attribute, predicate in predicates:
            predicates_of[attribute].append(predicate)
        refined, count = [], 0
        for places, rows in zip(self._by_attribute(self.places), predicates_of, strict=True):
            groups, numbers = np.unique(np.stack([places, *rows]), axis=1, return_inverse=True)
            refined.append(numbers.reshape(-1) + count)
            count += groups.shape[1]
        return Partition(self.shape, np.concatenate(refined))

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """The groups of each attribute."""
        firsts = [int(groups.min()) for groups in self._by_attribute(self.places)]
        return tuple(slice(*ends) for ends in pairwise([*firsts, self.count]))

    @cached_property
    def count(self) -> int:
        """Number of groups."""
        return int(self.places.max()) + 1

    @cached_property
    def members(self) -> Sparse:
        """(g, sum of shape): 1 where a class belongs to a group."""
        ones = np.ones(len(self.places), dtype=np.float32)
        where = (self.places, np.arange(len(self.places)))
        return sp.csr_array((ones, where), shape=(self.count, len(self.places)))

    def over_groups(self, predicates: Sequence[tuple[int, Floats]]) -> Sparse:
        """Return predicates that are constant on groups as a matrix over these: (p, g)."""
        first = np.unique(self.places, return_index=True)[1]
        starts = np.cumsum([0, *self.shape])
        rows, columns, values = [], [], []
        for number, (attribute, predicate) in enumerate(predicates):
            span = self.spans[attribute]
            on_groups = predicate[first[span] - starts[attribute]]
            nonzero = np.flatnonzero(on_groups)
            rows.append(np.full(len(nonzero), number))
            columns.append(nonzero + span.start)
            values.append(on_groups[nonzero])
        entries = np.concatenate(values).astype(np.float32)
        where = (np.concatenate(rows), np.concatenate(columns))
        return sp.csr_array((entries, where), shape=(len(predicates), self.count))

    def split(self, masses: Singles, finer: "Partition", start: Singles) -> Singles:
        """Return the masses of a finer partition's groups: their shares of the old ones.

        Args:
            masses: (g, n') of this partition's groups.
            finer: its refinement.
            start: (sum of shape, n') distributions that say what each class has of its group.
        """
        parents = np.empty(finer.count, dtype=np.int64)
        parents[finer.places] = self.places
        return masses[parents] * (finer.members @ start) / (self.members @ start)[parents]

    def rows(self, masses: Singles) -> RelaxedRows:
        """Spread the mass of every group evenly over its classes. masses: (g, n')."""
        sizes = np.bincount(self.places).astype(np.float32)
        values = (masses / sizes[:, None])[self.places]
        return RelaxedRows(self.shape, np.ascontiguousarray(values.T))

    def _by_attribute(self, values: Ints) -> list[Ints]:
        return np.split(values, np.cumsum(self.shape)[:-1])
