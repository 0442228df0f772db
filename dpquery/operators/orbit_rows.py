"""Rows that treat interchangeable codes alike, over all cells of several attributes at once.

The codes of every attribute fall into orbits. A vector over the codes is its sums over orbits and
what it is beside them: within each orbit the codes against their mean. A component says for each
attribute which of both it looks at: the sums of all orbits (BETWEEN), or the codes within one orbit
([MATH] 22). Of each component some combinations of the sums are measured.
"""

# ruff: noqa: D102 (a method of a base class is described there)

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property

import numpy as np

from dpquery.arrays import Ints, Numbers
from dpquery.operators.factors import Factor
from dpquery.operators.tensors import kron_apply

BETWEEN = -1
Component = tuple[int, ...]
"""For every attribute BETWEEN, or the orbit within which codes are compared."""


class OrbitAxis:
    """The orbits of one attribute.

    Attributes:
        place: the orbit of every code: (n,).
        sizes: codes of every orbit: (k,).
    """

    def __init__(self, place: Ints) -> None:
        self.place = np.asarray(place, dtype=np.int64)
        self.sizes = np.bincount(self.place)
        self.count = len(self.sizes)
        if self.sizes.min() < 1:
            raise ValueError("an orbit without codes")
        self.order = np.argsort(self.place, kind="stable")
        self.starts = np.cumsum(self.sizes) - self.sizes

    def split(self, X: Numbers) -> Numbers:
        """Return sums over orbits, above n_o times each code less them. (n, c) -> (k + n, c)."""
        sorted_codes = X[self.order]
        sums = np.add.reduceat(sorted_codes, self.starts, axis=0)
        places = self.place[self.order]
        beside = self.sizes[places][:, None] * sorted_codes - sums[places]
        return np.concatenate([sums, beside])

    def joined(self, Y: Numbers) -> Numbers:
        """Return the transpose's product. (k + n, c) -> (n, c)."""
        above, beside = Y[: self.count], Y[self.count :]
        places = self.place[self.order]
        sums = np.add.reduceat(beside, self.starts, axis=0)
        sorted_codes = (above - sums)[places] + self.sizes[places][:, None] * beside
        X = np.empty_like(sorted_codes)
        X[self.order] = sorted_codes
        return X

    def part(self, orbit: int) -> slice:
        """Return where BETWEEN, or the codes of an orbit, stand among the k + n rows."""
        if orbit == BETWEEN:
            return slice(0, self.count)
        start = self.count + int(self.starts[orbit])
        return slice(start, start + int(self.sizes[orbit]))

    def length(self, orbit: int) -> int:
        """Return how many of the rows that is."""
        return self.count if orbit == BETWEEN else int(self.sizes[orbit])


class OrbitRows(Factor):
    """For every component its core, times n_o I - 11' within orbits, over cells.

    Attributes:
        axes: the orbits of every attribute.
        cores: integer matrices (r, m) by component, m the number of combinations of orbits of the
            attributes that are BETWEEN; in the order of the rows.
    """

    def __init__(self, axes: Sequence[OrbitAxis], cores: Mapping[Component, Ints]) -> None:
        self.axes, self.cores = tuple(axes), dict(sorted(cores.items()))
        self.sizes = tuple(len(axis.place) for axis in self.axes)
        rows = sum(len(core) * self.inside(b) for b, core in self.cores.items())
        self.shape = (rows, math.prod(self.sizes))
        for b, core in self.cores.items():
            if core.shape[1] != math.prod(self.between(b)):
                raise ValueError("a core of other orbits")

    @cached_property
    def key(self) -> Hashable:
        places = tuple(axis.place.tobytes() for axis in self.axes)
        return ("orbits", places, tuple((b, M.shape, M.tobytes()) for b, M in self.cores.items()))

    def between(self, b: Component) -> tuple[int, ...]:
        """Return the numbers of orbits of the attributes that are BETWEEN."""
        pairs = zip(self.axes, b, strict=True)
        return tuple(axis.count for axis, orbit in pairs if orbit == BETWEEN)

    def within(self, b: Component) -> tuple[int, ...]:
        """Return the sizes of the orbits within which codes are compared."""
        pairs = zip(self.axes, b, strict=True)
        return tuple(int(axis.sizes[orbit]) for axis, orbit in pairs if orbit != BETWEEN)

    def inside(self, b: Component) -> int:
        """Return for how many combinations of codes the core of a component is measured."""
        return math.prod(self.within(b))

    def taken(self, tensor: Numbers, b: Component) -> Numbers:
        """Return a component of a split tensor, BETWEEN first: (m, codes, columns)."""
        parts = tuple(axis.part(orbit) for axis, orbit in zip(self.axes, b, strict=True))
        columns = tensor.shape[-1]
        moved = np.moveaxis(tensor[parts], self._first(b), range(len(self.between(b))))
        return moved.reshape(math.prod(self.between(b)), self.inside(b), columns)

    def put(self, tensor: Numbers, b: Component, numbers: Numbers) -> None:
        """Write a component into a split tensor: the inverse of `taken`."""
        parts = tuple(axis.part(orbit) for axis, orbit in zip(self.axes, b, strict=True))
        shaped = numbers.reshape(*self.between(b), *self.within(b), tensor.shape[-1])
        tensor[parts] = np.moveaxis(shaped, range(len(self.between(b))), self._first(b))

    def _first(self, b: Component) -> list[int]:
        return [axis for axis, orbit in enumerate(b) if orbit == BETWEEN]

    @property
    def split_sizes(self) -> tuple[int, ...]:
        """The sizes of a split tensor, without its columns."""
        return tuple(axis.count + len(axis.place) for axis in self.axes)

    def matmat(self, X: Numbers) -> Numbers:
        columns = X.shape[1]
        tensor = kron_apply([axis.split for axis in self.axes], X.reshape(*self.sizes, columns))
        rows = [
            np.tensordot(core, self.taken(tensor, b), axes=1).reshape(-1, columns)
            for b, core in self.cores.items()
        ]
        return np.concatenate(rows)

    def rmatmat(self, Y: Numbers) -> Numbers:
        columns = Y.shape[1]
        tensor = np.zeros((*self.split_sizes, columns), dtype=np.result_type(Y, np.int64))
        for b, numbers in self.by_component(Y).items():
            self.put(tensor, b, np.tensordot(self.cores[b].T, numbers, axes=1))
        return kron_apply([axis.joined for axis in self.axes], tensor).reshape(-1, columns)

    def by_component(self, Y: Numbers) -> dict[Component, Numbers]:
        """Return the rows of every component: (rows of the core, codes, columns)."""
        out, start = {}, 0
        for b, core in self.cores.items():
            end = start + len(core) * self.inside(b)
            out[b] = Y[start:end].reshape(len(core), self.inside(b), Y.shape[1])
            start = end
        return out

    def exact_norms(self, power: int) -> list[int]:
        """Return the sum of |entry|^power of every column, as Python integers; 0 counts them."""
        norms: Numbers = np.zeros([axis.count for axis in self.axes], dtype=object)
        for b, core in self.cores.items():
            of_core = (np.abs(core).astype(object) ** power * (core != 0)).sum(axis=0)
            inside = [int(n) for n in self.within(b)]
            scale = math.prod((n - 1) ** power + n - 1 if n > 1 else 0 for n in inside)
            part = tuple(slice(None) if orbit == BETWEEN else orbit for orbit in b)
            norms[part] += of_core.reshape(self.between(b)) * scale
        by_cell = norms[np.ix_(*(axis.place for axis in self.axes))]
        return [int(norm) for norm in by_cell.ravel()]

    def column_norms(self, power: int) -> Numbers:
        return np.array(self.exact_norms(power))

    def column_counts(self) -> Ints:
        return np.array(self.exact_norms(0))

    def max_abs(self) -> int:
        return max(
            int(np.abs(core).max(initial=0)) * math.prod(n - 1 for n in self.within(b))
            for b, core in self.cores.items()
        )
