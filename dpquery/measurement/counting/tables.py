"""Tables that are counted while records stream by, and which of them need to be.

All of it is confidential.

Counting rows costs most where there are very many tables: a table of five attributes is counted
once, and gives its ten tables of three. Rows are held until there are many of them, so that each
such sum is taken over many rows, and counts are added up in as few bytes as hold them.
"""

import math
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Bits, Bools, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_COUNTED_CELLS
from dpquery.strategy.algebra.subsets import Subset, subsets_of

_SMALL = 2**17  # counts that stay in the cache of a core
_RECENT = 32  # wide tables that one more is looked for in
_FEW = 64  # numbers that are summed at once: with fewer, most of the time goes into beginning
_LISTED = 12  # attributes of a table whose subsets are all looked up


def homes_of(
    subsets: Sequence[Subset], shape: Sequence[int], *, copies: int = 1
) -> dict[Subset, Subset]:
    """Return, for every subset, the largest of them around it, whose table it is summed from.

    Copies are how many such tables there are of each.

    What was found last is kept: a release checks sizes before it is charged, and counts afterwards.

    Raises:
        UnsupportedWorkloadError: these tables are too large in all.
    """
    return _homes_of(tuple(subsets), tuple(shape), MAX_COUNTED_CELLS // copies)


@lru_cache(maxsize=1)
def _homes_of(
    subsets: tuple[Subset, ...], shape: tuple[int, ...], most: int
) -> dict[Subset, Subset]:
    cells = {subset: count_of_cells(subset, shape) for subset in subsets}
    homes: dict[Subset, Subset] = {}
    wide: list[Subset] = []  # homes whose subsets are not listed
    total = 0
    for subset in sorted(cells, key=lambda subset: (-cells[subset], subset)):
        if subset in homes:
            continue
        around = (home for home in wide[-_RECENT:] if set(subset) <= set(home))
        homes[subset] = next(around, subset)
        if homes[subset] != subset:
            continue
        total += cells[subset]
        if len(subset) > _LISTED:
            wide.append(subset)
            continue
        below = (u for size in range(len(subset)) for u in combinations(subset, size))
        homes.update((u, subset) for u in below if u in cells and u not in homes)
    if total > most:
        raise UnsupportedWorkloadError(
            f"the strategy measures tables of {sum(cells.values()):,} cells in all, and the limit "
            f"is {most:,}; ask for marginals over fewer attributes or declare wider bins"
        )
    return homes


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
        covered = [seed] if group == seed else [each for each in subsets_of(group) if each in left]
        for table in covered:
            del left[table]
            faces.remove(table)
        together.append((group, covered))
    return sorted(together)


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


HELD = 2**24  # bytes of rows that are held before they are counted
WIDE_CELLS = 2**24  # of all tables: from so many on they are counted in 32 bits, 64 MB or more
_MOST = 2**32 - 1  # of a count in 32 bits
_Codes = NDArray[np.int32]


class TableCounts:
    """The counts of the tables over some subsets of attributes, or the sums of weights in them.

    Where the sums of their squares are wanted too, these are a second part of all cells, and so
    are those of each difference of a replicate weight.

    Attributes:
        homes: the tables that are counted, each a subset of attributes.
    """

    def __init__(
        self,
        subsets: Sequence[Subset],
        shape: Sequence[int],
        *,
        weight: int | None = None,
        squares: bool = False,
        differences: Sequence[int] = (),
    ) -> None:
        """Choose the tables to count.

        Rows add to their cells what the codes of the attribute `weight` say, or 1 each if that is
        None. The middle code of an attribute of differences says that a row adds none of it.

        Raises:
            UnsupportedWorkloadError: they are too large together.
        """
        self._subsets, self._shape = tuple(subsets), tuple(shape)
        parts = 1 + squares + len(differences)
        self._home_of = homes_of(subsets, shape, copies=parts if differences else 1)
        self.homes = sorted(set(self._home_of.values()))
        sizes = [count_of_cells(home, shape) for home in self.homes]
        ends = np.cumsum(sizes).tolist()
        self._slices = {
            home: slice(end - size, end)
            for home, size, end in zip(self.homes, sizes, ends, strict=True)
        }
        self._powers = (1, 2) if squares else (1,)
        dtype = np.uint32 if sum(sizes) >= WIDE_CELLS and parts == 1 else np.int64
        self._cells: NDArray[np.integer] = np.zeros((parts, sum(sizes)), dtype)
        self._groups = counted_together(self.homes, shape)
        self._weight, self._differences = weight, tuple(differences)
        weights = self._differences if weight is None else (weight, *differences)
        used = sorted({i for home in (*self.homes, weights) for i in home})
        self._dtypes = {i: np.min_scalar_type(max(0, shape[i] - 1)) for i in used}
        self._held: list[dict[int, NDArray[np.integer]]] = []
        self._rows_held = self._counted = 0

    def add(self, codes: Mapping[int, Ints], rows: int) -> None:
        """Count rows: (rows,) codes of every attribute that some table has."""
        self._held.append({i: codes[i].astype(dtype) for i, dtype in self._dtypes.items()})
        self._rows_held += rows
        if self._rows_held * sum(dtype.itemsize for dtype in self._dtypes.values()) >= HELD:
            self._count_held()

    @property
    def size(self) -> int:
        """Number of cells of all tables."""
        return self._cells.size

    def cells(self) -> Iterator[Ints]:
        """Yield the cells that are not 0 as (2, n): numbers through all tables, and counts."""
        self._count_held()
        for part, cells in enumerate(self._cells):
            for home in self.homes:
                place = self._slices[home]
                filled = place.start + np.flatnonzero(cells[place])
                yield np.array([part * cells.size + filled, cells[filled]], dtype=np.int64)

    def add_cells(self, cells: Ints) -> None:
        """Add cells of the same tables that were counted elsewhere, as `cells` has them.

        Raises:
            IndexError: there is no such cell.
        """
        numbers, counts = cells
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self._cells.size:
            raise IndexError("a cell")
        self._widen()
        np.add.at(self._cells.ravel(), numbers, counts)

    def marginals(self) -> MutableMapping[Subset, Ints]:
        """Return the table of each subset, summed from that which it was counted in.

        With more parts a first axis has a code for each: the weights, and then what is beside.
        """
        self._count_held()
        below: dict[Subset, list[Subset]] = {}
        for subset in set(self._subsets):
            below.setdefault(self._home_of[subset], []).append(subset)
        tensors: dict[Subset, NDArray[np.integer]] = {}
        for home, subsets in below.items():
            cells = self._cells[:, self._slices[home]]
            tensor = cells.reshape(len(cells), *(self._shape[i] for i in home))
            smaller = [subset for subset in subsets if subset != home]
            sums = [dict(marginal_sums(part, home, smaller)) for part in tensor]
            tensors.update({subset: _joined([of[subset] for of in sums]) for subset in smaller})
            if len(smaller) < len(subsets):
                tensors[home] = _joined(tensor)
        return WidenedTables({subset: tensors[subset] for subset in self._subsets})

    def _count_held(self) -> None:
        rows, held, used = self._rows_held, self._held, list(self._dtypes)
        self._held, self._rows_held = [], 0
        if not rows:
            return
        codes = {i: np.concatenate([part.pop(i) for part in held]).astype(np.int32) for i in used}
        weights = None if self._weight is None else codes.pop(self._weight).astype(np.int64)
        self._counted += rows if weights is None else int(weights.sum())
        if self._counted > _MOST:
            self._widen()
        counter = _CellNumbers(codes, self._shape, rows)
        added = [None if weights is None else weights**power for power in self._powers]
        added += [codes.pop(i).astype(np.int64) - self._shape[i] // 2 for i in self._differences]
        for group, homes in self._groups:
            places = counter.of(group)
            for cells, of_rows in zip(self._cells, added, strict=True):
                self._add(cells, group, homes, places, of_rows)

    def _add(
        self,
        cells: NDArray[np.integer],
        group: Subset,
        homes: Sequence[Subset],
        places: _Codes,
        added: Ints | None,
    ) -> None:
        """Add what rows add, or 1 each, to the tables that are summed from that of a group."""
        if homes == [group]:
            counts = cells[self._slices[group]]
            of_type = counts.dtype.type(1) if added is None else added.astype(counts.dtype)
            np.add.at(counts, places, of_type)  # slow with another type
            return
        size = count_of_cells(group, self._shape)
        if added is None:
            tensor = np.bincount(places, minlength=size)
        else:  # bincount adds up as floats
            tensor = np.zeros(size, np.int64)
            np.add.at(tensor, places, added)
        sums = marginal_sums(tensor.reshape([self._shape[i] for i in group]), group, homes)
        for home, table in sums:
            counts = cells[self._slices[home]]
            np.add(counts, table.ravel(), out=counts, casting="unsafe")

    def _widen(self) -> None:
        """Go on counting in 64 bits."""
        self._cells = self._cells.astype(np.int64, copy=False)


def _joined(parts: Sequence[NDArray[np.integer]] | NDArray[np.integer]) -> NDArray[np.integer]:
    """Return the only part, or all along a first axis."""
    return np.asarray(parts[0] if len(parts) == 1 else parts)


class WidenedTables(UserDict[Subset, Any]):
    """Tables by subset, of 64 bits each once it is looked up: few are in use at a time."""

    def __getitem__(self, subset: Subset) -> Ints:
        return np.asarray(self.data[subset], np.int64)


class _CellNumbers:
    """The number of the cell that each row is in, in 32 bits: MAX_COUNTED_CELLS is below 2^31.

    Tables in order share the numbers over the first attributes that they have in common.
    """

    def __init__(self, codes: Mapping[int, _Codes], shape: Sequence[int], rows: int) -> None:
        self._codes, self._shape = codes, shape
        self._path: list[tuple[int, _Codes]] = []
        self._none = np.zeros(rows, np.int32)

    def of(self, table: Subset) -> _Codes:
        """Return the cell of each row, (rows,)."""
        shared = 0
        while shared < min(len(self._path), len(table)) and self._path[shared][0] == table[shared]:
            shared += 1
        del self._path[shared:]
        for i in table[shared:]:
            numbers = self._codes[i]
            if self._path:
                numbers = self._path[-1][1] * np.int32(self._shape[i])
                numbers += self._codes[i]
            self._path.append((i, numbers))
        return self._path[-1][1] if self._path else self._none


_ROOM = 2**63  # codes are int64


class PackedCodes:
    """How codes of attributes are packed: each word is a number of mixed radix."""

    def __init__(self, attributes: Iterable[int], shape: Sequence[int]) -> None:
        """Choose the attributes of each word; of attribute i there are shape[i] codes."""
        self._shape = tuple(shape)
        self._words: list[list[int]] = [[]]
        room = _ROOM
        for i in attributes:
            if room < shape[i]:
                self._words.append([])
                room = _ROOM
            self._words[-1].append(i)
            room //= shape[i]

    @property
    def words(self) -> int:
        """Number of words of a row."""
        return len(self._words)

    def pack(self, codes: Mapping[int, Ints], rows: Bools) -> Bits:
        """Return the codes of some rows, given by attribute, as (words, n)."""
        packed = np.zeros((self.words, int(rows.sum())), np.int64)
        for word, attributes in zip(packed, self._words, strict=True):
            for i in attributes:
                word *= self._shape[i]
                word += codes[i][rows]
        return packed.view(np.uint64)

    def unpack(self, packed: Bits) -> dict[int, Ints]:
        """Return the codes of rows by attribute."""
        codes = {}
        for word, attributes in zip(packed.view(np.int64), self._words, strict=True):
            for i in reversed(attributes):
                word, codes[i] = np.divmod(word, self._shape[i])
        return codes
