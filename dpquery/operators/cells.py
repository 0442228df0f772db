"""Codes and cells that no query tells apart, and rows that treat codes alike.

The column of a cell says which queries count it. A record is in one cell, so in one class: the
counts of the classes are sums over the table of all attributes that are asked for, and a query
matrix over classes is one over cells, each column once for every cell of its class ([MATH] 21).

The codes of every attribute fall into orbits. A vector over the codes is its sums over orbits and
what it is beside them: within each orbit the codes against their mean. A component says for each
attribute which of both it looks at: the sums of all orbits (BETWEEN), or the codes within one orbit
([MATH] 22). Of each component some combinations of the sums are measured.

Factors over classes of codes that they do not tell apart: coarser ones, and back again.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Bits, Floats, Ints, Numbers, numbered_by_first
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_CLASS_ENTRIES, MAX_CLASS_WORK, MAX_CLASSED_CELLS
from dpquery.operators.blocks import Block, Workload, kron_apply, product
from dpquery.operators.factors import (
    Dense,
    Factor,
    Groups,
    Identity,
    IdentityRows,
    Ones,
    Sent,
    Stacked,
)
from dpquery.operators.ranges import Columns
from dpquery.public_chance import PublicChance, public_generator

KEPT_ENTRIES = 1 << 24  # of all blocks over classes that are kept to be used again
SAMPLED_CELLS = 1 << 14  # looked at before all cells are


@dataclass(frozen=True, eq=False)
class CellClasses(Sent):
    """A partition of the cells of some attributes into classes."""

    shape_of_domain: tuple[int, ...]  # sizes of all attributes
    attributes: tuple[int, ...]  # sorted indices of the attributes that tell cells apart
    # the class of every cell, last attribute fastest: (cells,). Classes are numbered in the order
    # of their first cells
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
        held = sum(math.prod(each.factors[0].shape) for each in self._kept.values())
        if held + matrix.size <= KEPT_ENTRIES:
            self._kept[block] = over_classes
        return over_classes

    @cached_property
    def _kept(self) -> WeakKeyDictionary[Block, Block]:
        """Blocks over classes, by the block over cells, for as long as that is in use."""
        return WeakKeyDictionary()

    def _same_within(self, block: Block) -> bool:
        signatures = _signatures(block, self.attributes, salt=0)
        if signatures is None:
            return False
        every = np.broadcast_to(signatures, self.table_shape).reshape(-1)
        return bool(np.array_equal(every, every[self.first_cells][self.codes]))

    def _columns(self, block: Block) -> Ints:
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
    """Queries over classes of cells, as a block that is measured on the table of their cells."""

    classes: CellClasses  # of the cells
    inner: Block  # the queries, over one attribute whose codes are the classes

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


HELD_ROWS = 1024  # of queries over classes, multiplied at once


def gram_of_classes(workload: Workload, classes: CellClasses) -> Floats:
    """Return the Gram of a workload over classes of cells: (classes, classes).

    Raises:
        UnsupportedWorkloadError: its queries are too many for that.
    """
    if workload.shape[0] * classes.count**2 > MAX_CLASS_WORK:
        raise UnsupportedWorkloadError(
            f"{workload.shape[0]:,} queries over {classes.count:,} classes of cells"
        )
    V, held = np.zeros((classes.count, classes.count)), list[Floats]()
    for place, (weight, block) in enumerate(zip(workload.weights, workload.blocks, strict=True), 1):
        held.append(classes.by_class(block).factors[0].dense() * math.sqrt(weight))
        if sum(map(len, held)) >= HELD_ROWS or place == len(workload.blocks):
            rows = np.concatenate(held)
            V += rows.T @ rows
            held = []
    return V


def queries_of_classes(workload: Workload, classes: CellClasses) -> Ints:
    """Return all queries of a workload over classes of cells, and the total: (q + 1, classes).

    Raises:
        UnsupportedWorkloadError: they are too many to be written out.
    """
    if workload.shape[0] * classes.count > MAX_CLASS_ENTRIES:
        raise UnsupportedWorkloadError(
            f"{workload.shape[0]:,} queries over {classes.count:,} classes of cells"
        )
    rows = [classes.by_class(block).factors[0].dense() for block in workload.blocks]
    return np.concatenate([*rows, np.ones((1, classes.count), dtype=np.int64)])


@dataclass(frozen=True, eq=False)
class QueryBasis(Sent):
    """Independent queries over classes of cells: others are combinations of their answers."""

    numbers: tuple[int, ...]  # among the workload's queries, after which comes the total
    rows: Ints  # (r, classes) these queries

    @cached_property
    def inverse(self) -> Floats:
        """What gives a query's coefficients: rows^+, (classes, r)."""
        return np.asarray(np.linalg.pinv(self.rows.astype(np.float64)))

    def combined(self, queries: Block) -> Block:
        """Return queries over classes as combinations of the basis, the codes of one attribute.

        Raises:
            UnsupportedWorkloadError: they are no combinations.
        """
        if queries not in self._kept:
            matrix = queries.factors[0].dense()
            shares = matrix @ self.inverse
            near = np.rint(shares)
            shares = np.where(np.abs(shares - near) <= COMBINED, near, shares)
            if float(np.abs(shares @ self.rows - matrix).max()) > COMBINED:
                raise UnsupportedWorkloadError("it asks for what is not measured")
            self._kept[queries] = product((len(self.rows),), {0: Dense(shares)})
        return self._kept[queries]

    @cached_property
    def _kept(self) -> WeakKeyDictionary[Block, Block]:
        """Combinations, by the queries over classes, for as long as these are in use."""
        return WeakKeyDictionary()


COMBINED = 1e-9  # how far a combination of a basis may be off
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

    @cached_property
    def max_abs(self) -> int:
        return max(
            int(np.abs(core).max(initial=0)) * math.prod(n - 1 for n in self.within(b))
            for b, core in self.cores.items()
        )


PROBED_ROWS = 1 << 22  # of a factor: one with more is taken to tell all codes apart
_PROBES = 2  # random sums of rows by which columns are compared, of 64 bits each


class Spread(Factor):
    """A factor over classes, spread over their codes: column j is column classes[j] of `inner`."""

    held = ("inner", "classes")

    def __init__(self, inner: Factor, classes: Ints) -> None:
        self.inner, self.classes = inner, np.asarray(classes, dtype=np.int64)
        n = len(self.classes)
        if n == 0 or self.classes.min() < 0 or self.classes.max() >= inner.shape[1]:
            raise ValueError("a code of no class")
        self.shape = (inner.shape[0], n)
        # Groups do not say that they are 0/1: the grids of earlier releases hang on it.
        self.zero_one = inner.zero_one or isinstance(inner, Groups)
        self.dtype = inner.dtype

    @cached_property
    def _members(self) -> "sp.csr_array[np.int64, tuple[int, int]]":
        """The 0/1 matrix of which code is in which class: (classes, n)."""
        n = len(self.classes)
        ones = np.ones(n, dtype=np.int64)
        return sp.csr_array((ones, (self.classes, np.arange(n))), shape=(self.inner.shape[1], n))

    def _summed(self, X: Numbers) -> Numbers:
        return np.asarray(self._members @ X)

    def matmat(self, X: Numbers) -> Numbers:
        return self.inner.matmat(self._summed(X))

    def rmatmat(self, Y: Numbers) -> Numbers:
        return np.asarray(self.inner.rmatmat(Y)[self.classes])

    def gram(self) -> Numbers:
        return np.asarray(self.inner.gram()[np.ix_(self.classes, self.classes)])

    def column_norms(self, power: int) -> Numbers:
        return np.asarray(self.inner.column_norms(power)[self.classes])

    def column_counts(self) -> Ints:
        return np.asarray(self.inner.column_counts()[self.classes])

    @cached_property
    def max_abs(self) -> int:
        return self.inner.max_abs

    def row_power_sums(self, M: Numbers, power: int) -> Numbers:
        return self.inner.row_power_sums(self._summed(M), power)

    def quadratic(self, M: Floats) -> Floats:
        return self.inner.quadratic(self._summed(self._summed(M).T))


def told_apart(factors: Sequence[Factor], n: int) -> Ints:
    """Return a class for each of n codes: codes of one class have equal columns in all factors.

    Classes are numbered by their first codes. Columns are compared by random sums of their rows,
    which differ but for a chance of 2^-128 a pair where columns do.
    """
    rng, columns = public_generator(0), []
    for factor in factors:
        if factor.shape[0] > PROBED_ROWS:
            return np.arange(n)
        probes = rng.integers(-(1 << 62), 1 << 62, size=(factor.shape[0], _PROBES))
        columns.append(factor.rmatmat(probes))
    if not columns:
        return np.zeros(n, dtype=np.int64)
    return numbered_by_first(np.concatenate(columns, axis=1))


def over_classes(factor: Factor, classes: Ints) -> Factor:
    """Return a factor over classes of codes that it does not tell apart."""
    _, first = np.unique(classes, return_index=True)
    k = len(first)
    if k == len(classes):
        return factor
    match factor:
        case Ones():
            return Ones(factor.shape[0], k)
        case IdentityRows():
            return IdentityRows(k, classes[factor.codes])
        case Groups():
            # groups of classes; where each is one class of its own, those classes
            matrix = factor.matrix[:, first]
            m, k = matrix.shape
            sizes = np.diff(matrix.indptr)
            if np.all(sizes == 1) and len(np.unique(matrix.indices)) == m:
                codes = matrix.indices.astype(np.int64)
                return (
                    Identity(k) if np.array_equal(codes, np.arange(k)) else IdentityRows(k, codes)
                )
            return Groups(matrix)
        case Stacked():
            return Stacked(tuple(over_classes(part, classes) for part in factor.parts))
        case _:
            return Columns(factor, first)


def block_over_classes(block: Block, classes: Sequence[Ints]) -> Block:
    """Return a block over classes of the codes of every attribute."""
    shape = tuple(int(codes.max()) + 1 for codes in classes)
    return _with_factors(block, shape, lambda i, factor: over_classes(factor, classes[i]))


def block_over_codes(block: Block, classes: Sequence[Ints]) -> Block:
    """Return the block over codes that asks the same as one over their classes."""
    shape = tuple(len(codes) for codes in classes)
    return _with_factors(block, shape, lambda i, factor: _over_codes(factor, classes[i]))


def _with_factors(
    block: Block, shape: tuple[int, ...], factor_of: Callable[[int, Factor], Factor]
) -> Block:
    pairs = zip(block.attributes, block.factors, strict=True)
    factors = tuple(factor_of(i, factor) for i, factor in pairs)
    return replace(block, shape_of_domain=shape, factors=factors)


def _over_codes(factor: Factor, classes: Ints) -> Factor:
    if isinstance(factor, Ones):
        return Ones(factor.shape[0], len(classes))
    if factor.shape[1] == len(classes) and not isinstance(factor, Groups):
        return factor
    return Spread(factor, classes)


def coarsest_classes(workload: Workload) -> tuple[Ints, ...]:
    """Return the classes of the codes of every attribute that no block tells apart."""
    factors: list[dict[Hashable, Factor]] = [{} for _ in workload.shape_of_domain]
    for block in workload.blocks:
        for i, factor in zip(block.attributes, block.factors, strict=True):
            factors[i][factor.key] = factor
    return tuple(
        told_apart(list(by_key.values()), n)
        for n, by_key in zip(workload.shape_of_domain, factors, strict=True)
    )


def workload_over_classes(workload: Workload, classes: Sequence[Ints]) -> Workload:
    """Return the workload over classes of codes that no block tells apart."""
    known: dict[tuple[int, Hashable], Factor] = {}
    shape = tuple(int(codes.max()) + 1 for codes in classes)

    def coarse(i: int, factor: Factor) -> Factor:
        key = (i, factor.key)
        if key not in known:
            known[key] = over_classes(factor, classes[i])
        return known[key]

    blocks = tuple(_with_factors(block, shape, coarse) for block in workload.blocks)
    return Workload(shape, blocks, workload.weights, workload.units)
