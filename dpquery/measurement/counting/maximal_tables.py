"""Which tables are counted, and the sums of them that are asked for."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_COUNTED_CELLS
from dpquery.strategy.algebra.subsets import Subset

_SMALL = 2**17  # counts that stay in the cache of a core
_RECENT = 32  # tables that one more is tried to be merged with
_LISTED = 12  # attributes of a table whose subsets are all looked up


def homes_of(subsets: Sequence[Subset], shape: Sequence[int]) -> dict[Subset, Subset]:
    """Return, for every subset, the superset whose tensor it is summed from.

    Counting rows costs most, so subsets are merged while their tensor fits a cache; not,
    though, where the merged tensors would be too large in all.
    """
    homes = _merged(subsets, shape, _SMALL) or _merged(subsets, shape, 0)
    if homes is None:
        total = sum(count_of_cells(subset, shape) for subset in set(subsets))
        raise UnsupportedWorkloadError(
            f"the strategy measures tables of {total:,} cells in all, and the limit is "
            f"{MAX_COUNTED_CELLS:,}; ask for marginals over fewer attributes or declare wider bins"
        )
    return homes


def _merged(
    subsets: Sequence[Subset], shape: Sequence[int], small: int
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
        for k in range(max(0, len(groups) - _RECENT), len(groups)):
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
        if total > MAX_COUNTED_CELLS:
            return None
    tensors = [tuple(sorted(group)) for group in groups]
    return {subset: tensors[k] for subset, k in place.items()}


def marginal_sums(
    tensor: Ints, group: Subset, subsets: Sequence[Subset]
) -> Iterator[tuple[Subset, Ints]]:
    """Yield the marginals of a tensor over some subsets of its attributes, each with its subset.

    Attributes are summed over one by one, those of most codes first, and subsets share the sums
    that they have in common; no more than two tensors of the size of the first are alive.
    """

    def summed(
        tensor: Ints, left: Subset, undecided: Subset, wanted: Sequence[Subset]
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
            yield from summed(tensor.sum(axis=axis, dtype=np.int64), rest, later, dropping)

    sizes = dict(zip(group, tensor.shape, strict=True))
    order = tuple(sorted(group, key=lambda i: -sizes[i]))
    return summed(tensor, group, order, subsets) if subsets else iter(())


def count_of_cells(attributes: Iterable[int], shape: Sequence[int]) -> int:
    """Return the number of cells of a table over some attributes."""
    return math.prod(shape[i] for i in attributes)
