"""Matrices of one attribute that swaps of interchangeable codes leave as they are, reduced.

Such a matrix is one on the m normalised indicators of orbits, and one number on all zero-sum
vectors within an orbit ([MATH] 22). Both stand in one matrix of m + z coordinates, z the orbits of
more than one code: a trace over codes is one over coordinates, each as often as it is `times`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpquery.arrays import Bools, Floats, Ints
from dpquery.strategy.algebra.interchangeable_codes import ORBIT_CODES, Orbits, orbits_of


@dataclass(frozen=True, eq=False)
class ReducedAxis:
    """The coordinates of an attribute: indicators of orbits, then zero-sum vectors within them.

    Attributes:
        sizes: (m,) codes of each orbit.
        place: (n,) the orbit of every code.
    """

    sizes: Ints
    place: Ints

    @classmethod
    def of_codes(cls, n: int) -> "ReducedAxis":
        """Return the codes themselves: none is interchangeable with another."""
        return cls(np.ones(n, dtype=np.int64), np.arange(n))

    @cached_property
    def within(self) -> Ints:
        """The orbits of more than one code: (z,)."""
        return np.flatnonzero(self.sizes > 1)

    @cached_property
    def orbit(self) -> Ints:
        """The orbit of each coordinate: (m + z,)."""
        return np.concatenate([np.arange(len(self.sizes)), self.within])

    @cached_property
    def times(self) -> Floats:
        """The dimensions that each coordinate stands for: (m + z,)."""
        return np.concatenate([np.ones(len(self.sizes)), self.sizes[self.within] - 1.0])

    @cached_property
    def free(self) -> Bools:
        """Whether an entry of a reduced matrix may differ from zero: (m + z, m + z)."""
        m, r = len(self.sizes), len(self.orbit)
        free = np.eye(r, dtype=bool)
        free[:m, :m] = True
        return free

    def counted(self, orbits: Orbits) -> Floats:
        """Return matrices reduced, with zero-sum entries as often as they stand for: (k, r, r)."""
        inside = orbits.inside[:, self.within] * self.times[len(self.sizes) :]
        return np.stack([self._joined(*pair) for pair in zip(orbits.levels, inside, strict=True)])

    def averaged(self, X: Floats) -> Floats:
        """Return the mean of a matrix over all swaps within orbits, reduced: (r, r)."""
        m, order = len(self.sizes), np.argsort(self.place, kind="stable")
        starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        summed = np.add.reduceat(np.add.reduceat(X[order], starts)[:, order], starts, axis=1)
        level = summed / np.sqrt(np.outer(self.sizes, self.sizes))
        traces = np.bincount(self.place, np.diagonal(X), minlength=m)
        zero_sum = (traces - np.diagonal(level))[self.within] / self.times[m:]
        return self._joined((level + level.T) / 2, zero_sum)

    def expanded(self, reduced: Floats) -> Floats:
        """Return a reduced matrix over the codes: (n, n). Entries alike are equal to the bit."""
        m = len(self.sizes)
        roots = np.sqrt(self.sizes)
        level, inside = reduced[:m, :m] / np.outer(roots, roots), np.zeros(m)
        inside[self.within] = np.diagonal(reduced)[m:]
        level[np.diag_indices(m)] -= inside / self.sizes
        X = level[self.place[:, None], self.place]
        X[np.diag_indices(len(X))] += inside[self.place]
        return np.asarray(X)

    def indicators(self, level: Floats) -> Floats:
        """Return vectors over the codes, given on normalised indicators of orbits: (n, k)."""
        return np.asarray((level / np.sqrt(self.sizes)[:, None])[self.place])

    def zero_sums(self) -> tuple[Floats, Ints]:
        """Return an orthonormal basis of the zero-sum vectors, and the orbit of each: (n, n - m).

        Helmert's: a code against the mean of those before it in its orbit.
        """
        n, m = len(self.place), len(self.sizes)
        vectors, orbit = np.zeros((n, n - m)), np.repeat(np.arange(m), self.sizes - 1)
        first = 0
        for o in self.within:
            codes, size = np.flatnonzero(self.place == o), int(self.sizes[o])
            before = np.arange(1, size)
            block = np.triu(np.ones((size, size - 1)))
            block[before, before - 1] = -before
            vectors[codes, first : first + size - 1] = block / np.sqrt(before * (before + 1.0))
            first += size - 1
        return vectors, orbit

    def _joined(self, level: Floats, inside: Floats) -> Floats:
        m, r = len(self.sizes), len(self.orbit)
        joined = np.zeros((r, r))
        joined[:m, :m] = level
        joined[np.arange(m, r), np.arange(m, r)] = inside
        return joined


def reduced_axis(arrays: Sequence[Floats]) -> tuple[ReducedAxis, Orbits] | None:
    """Return the coordinates that matrices of an attribute share, and these in orbits.

    None where orbits have fewer than ORBIT_CODES codes on average.
    """
    orbits = orbits_of(arrays)
    if len(orbits.sizes) * ORBIT_CODES > len(orbits.place):
        return None
    return ReducedAxis(orbits.sizes, orbits.place), orbits
