"""Running counts of many tables over rows of codes: confidential.

Counting rows costs most where there are very many tables: a table of five attributes is counted
once, and gives its ten tables of three. Rows are held until there are many of them, so that each
such sum is taken over many rows, and counts are added up in as few bytes as hold them.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Ints
from dpquery.measurement.counting.maximal_tables import (
    count_of_cells,
    counted_together,
    homes_of,
    marginal_sums,
)
from dpquery.strategy.algebra.subsets import Subset

HELD = 2**24  # bytes of rows that are held before they are counted
WIDE_CELLS = 2**24  # of all tables: from so many on they are counted in 32 bits, 64 MB or more
_MOST = 2**32 - 1  # of a count in 32 bits
_Codes = NDArray[np.int32]


class TableCounts:
    """The counts of the tables over some subsets of attributes.

    Attributes:
        homes: the tables that are counted, each a subset of attributes.
    """

    def __init__(self, subsets: Sequence[Subset], shape: Sequence[int]) -> None:
        """Choose the tables to count.

        Args:
            subsets: of attributes, whose tables are wanted.
            shape: number of codes of every attribute.

        Raises:
            UnsupportedWorkloadError: they are too large together.
        """
        self._subsets, self._shape = tuple(subsets), tuple(shape)
        self._home_of = homes_of(subsets, shape)
        self.homes = sorted(set(self._home_of.values()))
        sizes = [count_of_cells(home, shape) for home in self.homes]
        ends = np.cumsum(sizes).tolist()
        self._slices = {
            home: slice(end - size, end)
            for home, size, end in zip(self.homes, sizes, ends, strict=True)
        }
        dtype = np.uint32 if sum(sizes) >= WIDE_CELLS else np.int64
        self._cells: NDArray[np.integer] = np.zeros(sum(sizes), dtype)
        self._groups = counted_together(self.homes, shape)
        used = sorted({i for home in self.homes for i in home})
        self._dtypes = {i: np.min_scalar_type(max(0, shape[i] - 1)) for i in used}
        self._held: list[dict[int, NDArray[np.integer]]] = []
        self._rows_held = self._rows = 0

    def add(self, codes: Mapping[int, Ints], rows: int) -> None:
        """Count rows: (rows,) codes of every attribute that some table has."""
        self._held.append({i: codes[i].astype(dtype) for i, dtype in self._dtypes.items()})
        self._rows_held += rows
        if self._rows_held * sum(dtype.itemsize for dtype in self._dtypes.values()) >= HELD:
            self._count_held()

    def cells(self) -> Iterator[Ints]:
        """Yield the cells that are not 0 as (2, n): numbers through all tables, and counts."""
        self._count_held()
        for home in self.homes:
            place = self._slices[home]
            counts = self._cells[place]
            filled = np.flatnonzero(counts)
            yield np.array([place.start + filled, counts[filled]], dtype=np.int64)

    def add_cells(self, cells: Ints) -> None:
        """Add cells of the same tables that were counted elsewhere, as `cells` has them.

        Raises:
            IndexError: there is no such cell.
        """
        numbers, counts = cells
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self._cells.size:
            raise IndexError("a cell")
        self._widen()
        np.add.at(self._cells, numbers, counts)

    def marginals(self) -> MutableMapping[Subset, Ints]:
        """Return the table of each subset, summed from that which it was counted in."""
        self._count_held()
        below: dict[Subset, list[Subset]] = {}
        for subset in set(self._subsets):
            below.setdefault(self._home_of[subset], []).append(subset)
        tensors: dict[Subset, NDArray[np.integer]] = {}
        for home, subsets in below.items():
            tensor = self._cells[self._slices[home]].reshape([self._shape[i] for i in home])
            smaller = [subset for subset in subsets if subset != home]
            tensors.update(marginal_sums(tensor, home, smaller))
            if len(smaller) < len(subsets):
                tensors[home] = tensor
        return WidenedTables({subset: tensors[subset] for subset in self._subsets})

    def _count_held(self) -> None:
        """Count the rows that are held, and forget them."""
        rows, held, used = self._rows_held, self._held, list(self._dtypes)
        self._held, self._rows_held = [], 0
        if not rows:
            return
        codes = {i: np.concatenate([part.pop(i) for part in held]).astype(np.int32) for i in used}
        self._rows += rows
        if self._rows > _MOST:
            self._widen()
        counter = _CellNumbers(codes, self._shape, rows)
        for group, homes in self._groups:
            size = count_of_cells(group, self._shape)
            if homes == [group]:
                self._add(group, counter.of(group), size)
                continue
            tensor = np.bincount(counter.of(group), minlength=size)
            sums = marginal_sums(tensor.reshape([self._shape[i] for i in group]), group, homes)
            for home, table in sums:
                counts = self._cells[self._slices[home]]
                np.add(counts, table.ravel(), out=counts, casting="unsafe")

    def _add(self, home: Subset, numbers: _Codes, size: int) -> None:
        """Add one to the count of each cell; O(rows) where the table is far larger."""
        counts = self._cells[self._slices[home]]
        if size > 4 * numbers.size:
            np.add.at(counts, numbers, 1)
        else:
            np.add(counts, np.bincount(numbers, minlength=size), out=counts, casting="unsafe")

    def _widen(self) -> None:
        """Go on counting in 64 bits."""
        self._cells = self._cells.astype(np.int64, copy=False)


class WidenedTables(MutableMapping[Subset, Ints]):
    """Tables by subset, of 64 bits each once it is looked up: few are in use at a time."""

    def __init__(self, tables: dict[Subset, NDArray[np.integer]]) -> None:
        """Take tables of any whole numbers."""
        self._tables = tables

    def __getitem__(self, subset: Subset) -> Ints:
        return self._tables[subset].astype(np.int64, copy=False)

    def __setitem__(self, subset: Subset, table: Ints) -> None:
        self._tables[subset] = table

    def __delitem__(self, subset: Subset) -> None:
        del self._tables[subset]

    def __iter__(self) -> Iterator[Subset]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


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
