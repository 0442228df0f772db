"""Cells of the domain that no query tells apart, merged into classes over the joint domain.

The column of a cell says which queries count it. A record is in one cell, so in one class: the
counts of the classes are sums over the table of all attributes that are asked for, and a query
matrix over classes is one over cells, each column once for every cell of its class ([MATH] 21).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from dpquery.arrays import Bits, Floats, Ints, Numbers
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_CLASS_ENTRIES, MAX_CLASS_WORK, MAX_CLASSED_CELLS
from dpquery.operators.blocks import Block, Workload, product
from dpquery.operators.factors import Dense
from dpquery.operators.sent import Sent
from dpquery.public_chance import PublicChance

KEPT_ENTRIES = 1 << 16  # of a block over classes that is kept to be used again
SAMPLED_CELLS = 1 << 14  # looked at before all cells are


@dataclass(frozen=True, eq=False)
class CellClasses(Sent):
    """A partition of the cells of some attributes into classes.

    Attributes:
        shape_of_domain: sizes of all attributes.
        attributes: sorted indices of the attributes that tell cells apart.
        codes: the class of every cell, last attribute fastest: (cells,). Classes are numbered in
            the order of their first cells.
    """

    shape_of_domain: tuple[int, ...]
    attributes: tuple[int, ...]
    codes: Ints

    @cached_property
    def table_shape(self) -> tuple[int, ...]:
        """Sizes of the attributes."""
        return tuple(self.shape_of_domain[i] for i in self.attributes)

    @cached_property
    def first_cells(self) -> Ints:
        """The first cell of every class, ascending: (classes,)."""
        return np.unique(self.codes, return_index=True)[1].astype(np.int64)

    @cached_property
    def _codes_of_first_cells(self) -> tuple[Ints, ...]:
        """The codes of the first cell of every class on each attribute."""
        if not self.attributes:
            return ()
        codes = np.unravel_index(self.first_cells, self.table_shape)
        return tuple(np.asarray(of_attribute, dtype=np.int64) for of_attribute in codes)

    @cached_property
    def count(self) -> int:
        """Number of classes."""
        return len(self.first_cells)

    @cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        """The cells class by class, and where each class begins."""
        order = np.argsort(self.codes, kind="stable")
        sizes = np.bincount(self.codes, minlength=self.count)
        return order, np.cumsum(sizes) - sizes

    def totals(self, table: Numbers) -> Numbers:
        """Return the sum of a table over the cells of every class: (classes,), exact in integers.

        Privacy: one record more or less moves one of them by one.
        """
        order, starts = self._sorted
        return np.add.reduceat(table.reshape(-1)[order], starts)

    def spread(self, values: Numbers) -> Numbers:
        """Return the value of every cell's class, as a table: the transpose of `totals`."""
        return values[self.codes].reshape(self.table_shape)

    def by_class(self, block: Block) -> Block:
        """Return the queries of a block over the classes, the codes of one attribute.

        Raises:
            UnsupportedWorkloadError: the block tells cells of a class apart, or is too large.
        """
        if block in self._kept:
            return self._kept[block]
        matrix = self._columns(block)
        if not self._same_within(block):
            raise UnsupportedWorkloadError("it tells apart what no measured question does")
        over_classes = product((self.count,), {0: Dense(matrix)})
        if matrix.size <= KEPT_ENTRIES:
            self._kept[block] = over_classes
        return over_classes

    @cached_property
    def _kept(self) -> WeakKeyDictionary[Block, Block]:
        """Small blocks over classes, by the block over cells, for as long as that is in use."""
        return WeakKeyDictionary()

    def _same_within(self, block: Block) -> bool:
        """Return whether all cells of a class have one column in a block."""
        signatures = _signatures(block, self.attributes, salt=0)
        if signatures is None:
            return False
        every = np.broadcast_to(signatures, self.table_shape).reshape(-1)
        return bool(np.array_equal(every, every[self.first_cells][self.codes]))

    def _columns(self, block: Block) -> Ints:
        """Return the columns of the first cells of the classes: (queries, classes)."""
        work = [block.queries * self.count, *(math.prod(f.shape) for f in block.factors)]
        if max(work) > MAX_CLASS_ENTRIES:
            raise UnsupportedWorkloadError(
                f"{block.queries:,} queries of one table over {self.count:,} classes of cells; "
                f"{MAX_CLASS_ENTRIES:,} numbers are held"
            )
        codes = dict(zip(self.attributes, self._codes_of_first_cells, strict=True))
        must = np.ones((1, self.count), dtype=np.int64)
        hits = np.zeros((1, self.count), dtype=np.int64)
        for i, factor, counted in zip(block.attributes, block.factors, block.counted, strict=True):
            columns = np.asarray(factor.dense(), dtype=np.int64)
            columns = columns[:, codes[i]] if i in codes else columns[:, [0] * self.count]
            ones = np.ones_like(columns)
            is_counted = counted and not block.is_product
            must = _outer(must, ones if is_counted else columns, np.multiply)
            hits = _outer(hits, columns if is_counted else 0 * ones, np.add)
        enough = block.at_least if not block.is_product else 0
        return np.asarray(must * (hits >= enough))


@dataclass(frozen=True, eq=False)
class CellClassBlock:
    """Queries over classes of cells, as a block that is measured on the table of their cells.

    Attributes:
        classes: of the cells.
        inner: the queries, over one attribute whose codes are the classes.
    """

    classes: CellClasses
    inner: Block

    @property
    def shape_of_domain(self) -> tuple[int, ...]:
        """Sizes of all attributes."""
        return self.classes.shape_of_domain

    @property
    def attributes(self) -> tuple[int, ...]:
        """The attributes whose table is counted."""
        return self.classes.attributes

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of its answers."""
        return self.inner.row_shape

    @property
    def table_shape(self) -> tuple[int, ...]:
        """Sizes of the attributes."""
        return self.classes.table_shape

    @property
    def queries(self) -> int:
        """Number of rows."""
        return self.inner.queries

    @property
    def shape(self) -> tuple[int, int]:
        """(queries, cells of the domain) as exact ints."""
        return self.queries, math.prod(self.shape_of_domain)

    def class_table(self, table: Numbers) -> Numbers:
        """Return what the inner block is answered from: the classes' counts, or their total."""
        totals = self.classes.totals(table)
        return totals if self.inner.attributes else np.asarray(totals.sum())

    def apply(self, table: Numbers) -> Numbers:
        """Answer from the table of the classes' cells. table_shape -> row_shape."""
        return self.inner.apply(self.class_table(table))

    def adjoint(self, rows: Numbers) -> Numbers:
        """Return the transpose's product. row_shape -> table_shape."""
        columns = self.inner.adjoint(rows)
        return self.classes.spread(np.broadcast_to(columns, (self.classes.count,)))


def cell_classes(workload: Workload, *, most: int) -> CellClasses:
    """Return the classes of cells that no query of a workload tells apart.

    Cells are sorted by a signature: their columns, times public 64-bit numbers, one a query, modulo
    2^64. Two columns that differ agree in it with a chance of 2^-64, over the choice of the numbers
    ([MATH] 21); a strategy of classes that are too coarse fails the check of its answers.

    Args:
        workload: the queries.
        most: classes.

    Raises:
        UnsupportedWorkloadError: the cells, or their classes, are too many.
    """
    shape = workload.shape_of_domain
    attributes = tuple(i for i in workload.attributes if shape[i] > 1)
    sizes = [shape[i] for i in attributes]
    cells, rows = math.prod(sizes), max(block.queries for block in workload.blocks)
    if cells > MAX_CLASSED_CELLS or rows > MAX_CLASS_ENTRIES:
        raise UnsupportedWorkloadError(
            f"{float(max(cells, rows)):.1e} cells to sort by what counts them; "
            f"the limit is {float(MAX_CLASSED_CELLS):.1e}"
        )
    total: Bits = np.zeros([1] * len(sizes), dtype=np.uint64)
    for place, block in enumerate(workload.blocks):
        signatures = _signatures(block, attributes, salt=place)
        if signatures is not None:
            _check_classes(signatures, most)
            total = total + signatures
    signatures = np.broadcast_to(total, sizes).reshape(-1)
    _check_classes(signatures[:: max(1, cells // SAMPLED_CELLS)], most)
    _, first, which = np.unique(signatures, return_index=True, return_inverse=True)
    _check_classes(first, most)
    rank = np.argsort(np.argsort(first))
    return CellClasses(shape, attributes, rank[which.reshape(-1)].astype(np.int64))


def _check_classes(signatures: Numbers, most: int) -> None:
    if signatures.size > most and len(np.unique(signatures)) > most:
        raise UnsupportedWorkloadError(f"more than {most:,} classes of cells")


def _signatures(block: Block, attributes: Sequence[int], *, salt: int) -> Bits | None:
    """Return the signature of every cell's column, with an axis for each of the attributes.

    Axes of attributes that the block does not look at have length 1. None where it tells codes of
    another attribute apart.
    """
    if any(i not in attributes and block.shape_of_domain[i] > 1 for i in block.attributes):
        return None
    drawn = PublicChance(salt, 0).bits("cell classes", block.queries).view(np.int64)
    table = block.adjoint(drawn.reshape(block.row_shape))  # modulo 2^64, as int64 wraps
    if table.dtype != np.int64:
        raise TypeError("signatures of queries that are not integers")
    sizes = dict(zip(block.attributes, block.table_shape, strict=True))
    return table.reshape([sizes.get(i, 1) for i in attributes]).view(np.uint64)


def _outer(rows: Ints, columns: Ints, combine: np.ufunc) -> Ints:
    """Return every pair of rows combined: (m, classes), (k, classes) -> (m k, classes)."""
    return np.asarray(combine(rows[:, None, :], columns[None, :, :])).reshape(-1, rows.shape[1])


def gram_of_classes(workload: Workload, classes: CellClasses) -> Floats:
    """Return the Gram of a workload over classes of cells: (classes, classes).

    Raises:
        UnsupportedWorkloadError: its queries are too many for that.
    """
    if workload.shape[0] * classes.count**2 > MAX_CLASS_WORK:
        raise UnsupportedWorkloadError(
            f"{workload.shape[0]:,} queries over {classes.count:,} classes of cells"
        )
    V = np.zeros((classes.count, classes.count))
    for weight, block in zip(workload.weights, workload.blocks, strict=True):
        rows = classes.by_class(block).factors[0].dense().astype(np.float64)
        V += weight * (rows.T @ rows)
    return V
