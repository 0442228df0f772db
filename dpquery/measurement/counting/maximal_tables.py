"""Which tables are counted, and the sums of them that are asked for."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_COUNTED_CELLS
from dpquery.strategy.algebra.subsets import Subset

_SMALL = 2**17  # counts that stay in the cache of a core
_RECENT = 32  # tables that one more is tried to be merged with
_FEW = 64  # numbers that are summed at once: with fewer, most of the time goes into beginning
_LISTED = 12  # attributes of a table whose subsets are all looked up


def homes_of(subsets: Sequence[Subset], shape: Sequence[int]) -> dict[Subset, Subset]:
    """Return, for every subset, the superset whose tensor it is summed from.

    Counting rows costs most, so subsets are merged while their tensor fits a cache; not,
    though, where the merged tensors would be too large in all. What was found last is kept: a
    release checks sizes before it is charged, and counts afterwards.

    Raises:
        UnsupportedWorkloadError: the tensors are too large in all.
    """
    return _homes_of(tuple(subsets), tuple(shape), _SMALL, MAX_COUNTED_CELLS)


@lru_cache(maxsize=1)
def _homes_of(
    subsets: tuple[Subset, ...], shape: tuple[int, ...], small: int, most: int
) -> dict[Subset, Subset]:
    homes = _merged(subsets, shape, small, most) or _merged(subsets, shape, 0, most)
    if homes is None:
        total = sum(count_of_cells(subset, shape) for subset in set(subsets))
        raise UnsupportedWorkloadError(
            f"the strategy measures tables of {total:,} cells in all, and the limit is "
            f"{most:,}; ask for marginals over fewer attributes or declare wider bins"
        )
    return homes


def _merged(
    subsets: Sequence[Subset], shape: Sequence[int], small: int, most: int
) -> dict[Subset, Subset] | None:
    """Return the same with tensors of up to `small` cells merged; None where all are too large."""
    groups: list[set[int]] = []
    cells: list[int] = []  # of each group's tensor
    place = dict.fromkeys(subsets, -1)
    of_subset = {subset: count_of_cells(subset, shape) for subset in place}
    total = 0
    for subset in sorted(place, key=lambda subset: (-of_subset[subset], subset)):
        if place[subset] >= 0:
            continue
        # Unless tables are to be merged, only those are looked at whose subsets are not listed.
        last = range(max(0, len(groups) - _RECENT), len(groups))
        for k in (k for k in last if small or len(groups[k]) > _LISTED):
            added = [i for i in subset if i not in groups[k]]
            times = count_of_cells(added, shape)
            if not added or cells[k] * times <= small:
                total += cells[k] * (times - 1)
                groups[k].update(added)
                cells[k] *= times
                place[subset] = k
                break
        else:
            if len(subset) <= _LISTED:
                smaller = (u for size in range(len(subset)) for u in combinations(subset, size))
                place.update((u, len(groups)) for u in smaller if place.get(u) == -1)
            place[subset] = len(groups)
            groups.append(set(subset))
            cells.append(of_subset[subset])
            total += of_subset[subset]
        if total > most:
            return None
    tensors = [tuple(sorted(group)) for group in groups]
    return {subset: tensors[k] for subset, k in place.items()}


def marginal_sums(
    tensor: NDArray[np.integer], group: Subset, subsets: Sequence[Subset]
) -> Iterator[tuple[Subset, Ints]]:
    """Yield the marginals of a tensor over some subsets of its attributes, each with its subset.

    Attributes are summed over one by one, those of most codes first, and subsets share the sums
    that they have in common; no more than two tensors of the size of the first are alive.
    """

    def summed(
        tensor: NDArray[np.integer], left: Subset, undecided: Subset, wanted: Sequence[Subset]
    ) -> Iterator[tuple[Subset, Ints]]:
        if not undecided:
            yield left, np.asarray(tensor, np.int64)
            return
        i, later = undecided[0], undecided[1:]
        if keeping := [subset for subset in wanted if i in subset]:
            yield from summed(tensor, left, later, keeping)
        if dropping := [subset for subset in wanted if i not in subset]:
            axis = left.index(i)
            rest = left[:axis] + left[axis + 1 :]
            yield from summed(_summed_over(tensor, axis), rest, later, dropping)

    sizes = dict(zip(group, tensor.shape, strict=True))
    order = tuple(sorted(group, key=lambda i: -sizes[i]))
    return summed(tensor, group, order, subsets) if subsets else iter(())


def _summed_over(tensor: NDArray[np.integer], axis: int) -> Ints:
    """Return the sum along an axis; einsum is faster than sum where that is followed by few."""
    n, inner = tensor.shape[axis], math.prod(tensor.shape[axis + 1 :])
    if inner >= _FEW or tensor.dtype != np.int64:
        return np.asarray(tensor.sum(axis=axis, dtype=np.int64))
    flat = tensor.reshape(-1, n, inner)
    summed = np.einsum("aib->ab", flat) if inner > 1 else np.einsum("ai->a", flat[:, :, 0])
    return np.asarray(summed.reshape(tensor.shape[:axis] + tensor.shape[axis + 1 :]))


def counted_together(
    tables: Sequence[Subset], shape: Sequence[int]
) -> list[tuple[Subset, list[Subset]]]:
    """Return tables to count rows in, each with those of the given tables that are summed from it.

    One counts rows into a table of _SMALL cells as fast as into a smaller one. From a table that is
    not covered yet, and as long as there is room, the attribute is added that covers the most
    others of as many attributes; each given table is in one list.
    """
    left = dict.fromkeys(sorted(tables))
    faces = _Faces(left, len(shape))
    together = []
    for seed in list(left):
        if seed not in left:
            continue
        group, cells, size = seed, count_of_cells(seed, shape), len(seed)
        gains = faces.gains(combinations(seed, size - 1)) if size else faces.gains(())
        while len(group) < _LISTED:
            fits = np.array([cells * n <= _SMALL for n in shape])
            fits[list(group)] = False
            best = int(np.argmax(np.where(fits, gains, 0)))
            if not fits[best] or gains[best] == 0:
                break
            beside = combinations(group, size - 2) if size > 1 else ()
            gains = gains + faces.gains(tuple(sorted((*face, best))) for face in beside)
            group, cells = tuple(sorted((*group, best))), cells * shape[best]
        covered = [seed] if group == seed else _inside(group, left)
        for table in covered:
            del left[table]
            faces.remove(table)
        together.append((group, covered))
    return sorted(together)


def _inside(group: Subset, left: Mapping[Subset, None]) -> list[Subset]:
    """Return the tables below a group."""
    sizes = range(len(group) + 1)
    return [table for size in sizes for table in combinations(group, size) if table in left]


class _Faces:
    """Which attributes complete a set to a table: by how many tables an attribute covers more."""

    def __init__(self, tables: Iterable[Subset], attributes: int) -> None:
        self._none = np.zeros(attributes, np.int64)
        self._rows: dict[Subset, NDArray[np.bool_]] = {}
        for table in tables:
            if len(table) <= _LISTED:
                for face, i in self._faces(table):
                    self._rows.setdefault(face, np.zeros(attributes, np.bool_))[i] = True

    def gains(self, faces: Iterable[Subset]) -> Ints:
        """Return for each attribute the number of faces that it completes to a table."""
        rows = [self._rows[face] for face in faces if face in self._rows]
        return np.asarray(np.sum(rows, axis=0, dtype=np.int64)) if rows else self._none

    def remove(self, table: Subset) -> None:
        """Take a table out: it is covered."""
        for face, i in self._faces(table):
            if face in self._rows:
                self._rows[face][i] = False

    @staticmethod
    def _faces(table: Subset) -> Iterator[tuple[Subset, int]]:
        for k, i in enumerate(table):
            yield table[:k] + table[k + 1 :], i


def count_of_cells(attributes: Iterable[int], shape: Sequence[int]) -> int:
    """Return the number of cells of a table over some attributes."""
    return math.prod(shape[i] for i in attributes)
