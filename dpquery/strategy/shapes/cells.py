"""Strategies over classes of cells (OPT_C) and over orbits of codes (OPT_S)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product as combinations
from typing import ClassVar, Self

import numpy as np

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import (
    MAX_CELL_CLASSES,
    MAX_CLASSED_CELLS,
    MAX_ORBIT_COMPONENTS,
    MAX_QUERIED_CLASSES,
)
from dpquery.operators.blocks import Block, Workload, kron_apply, marginal, product
from dpquery.operators.cells import (
    BETWEEN,
    CellClassBlock,
    CellClasses,
    Component,
    OrbitAxis,
    OrbitRows,
    QueryBasis,
    cell_classes,
    queries_of_classes,
)
from dpquery.operators.factors import Dense, Factor
from dpquery.strategy.algebra.query_powers import Contract, QueryPairs, QueryRows, RowSums, expand
from dpquery.strategy.algebra.subsets import outer_products
from dpquery.strategy.factor_json import pack, unpack
from dpquery.strategy.shapes.marginals import ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.strategy import Noise, PowerPair, Strategy, WeightedBlock, column_matrices
from dpquery.untrusted.json_values import Json, JsonValue, integer, list_of, mapping, text_of


@dataclass(frozen=True, eq=False)
class CellClassesStrategy(Strategy):
    """A strategy of one attribute whose codes are classes of cells ([MATH] 21).

    A record is in one cell and so in one class: columns, sensitivity and least squares are those of
    the inner strategy. The classes are not in a plan: they follow from the workload. Where classes
    are many and queries few, the inner strategy mixes the answers of a basis of the queries.
    """

    kind: ClassVar[str] = "cell-classes"
    may_be_part: ClassVar[bool] = False  # its columns are of its classes, those of others of codes

    classes: CellClasses  # of cells
    inner: ProductStrategy | ResidualStrategy  # what is measured of their counts
    basis: QueryBasis | None = None  # or of the answers of these queries

    def __post_init__(self) -> None:
        if self.inner.shape != _counts_of(self.classes, self.basis).shape_of_domain:
            raise ValueError("a strategy of other classes of cells")
        object.__setattr__(self, "shape", self.classes.shape_of_domain)

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        return tuple(
            WeightedBlock(rows.weight, CellClassBlock(self.classes, self._over_classes(rows.block)))
            for rows in column_matrices(self.inner.measurements)
        )

    def _over_classes(self, block: Block) -> Block:
        if self.basis is None:
            return block
        rows = self.basis.rows
        mixed = [factor.dense() @ rows for factor in block.factors] or [rows.sum(axis=0)[None]]
        return product((self.classes.count,), {0: Dense(mixed[0])})

    def over(self, block: Block) -> Block:
        """Return queries over cells as ones over what the inner strategy measures.

        Raises:
            UnsupportedWorkloadError: they ask for what is not measured.
        """
        queries = self.classes.by_class(block)
        return queries if self.basis is None else self.basis.combined(queries)

    @property
    def spans_its_sets(self) -> bool:
        return False

    def supports(self, block: Block) -> bool:
        try:
            return self.inner.supports(self.over(block))
        except UnsupportedWorkloadError:
            return False

    def serves(self, workload: Workload) -> bool:
        """Return whether the inner strategy tells all classes apart, which the workload made."""
        if self.basis is not None:
            return super().serves(workload)
        return self.inner.serves(_counts_of(self.classes))

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowSums | None:
        sums = self.inner.power_sums(self.over(block), position=None, order=order)
        return None if sums is None else self._by_query(sums, block)

    def covariances(self, pairs: QueryPairs) -> Floats:
        left, right = (
            QueryRows(self.over(rows.block), rows.places) for rows in (pairs.left, pairs.right)
        )
        return self.inner.covariances(QueryPairs(left, right))

    def coefficient_sums(self, block: Block) -> PowerPair | None:
        pair = self.inner.coefficient_sums(self.over(block))
        if pair is None:
            return None
        fourth, sixth = (self._by_query(sums, block) for sums in pair)
        return fourth, sixth

    def _by_query(self, sums: RowSums, block: Block) -> RowSums:
        """Return a figure of every query over classes with an axis for each attribute again."""
        return np.ascontiguousarray(expand(sums, (block.queries,))).reshape(block.row_shape)

    @property
    def written_factors(self) -> Sequence[Factor]:
        return self.inner.written_factors

    def encode_parameters(self) -> dict[str, JsonValue]:
        parameters: dict[str, JsonValue] = {"inner": self.inner.encode()}
        if self.basis is not None:
            parameters["queries"] = list(self.basis.numbers)
        return parameters

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        """Return the strategy over the classes of a workload that JSON values hold."""
        try:
            most = MAX_QUERIED_CLASSES if "queries" in encoded else MAX_CELL_CLASSES
            classes, basis = cell_classes(workload, most=most), None
            if "queries" in encoded:
                queries = queries_of_classes(workload, classes)
                numbers = tuple(integer(number, 0) for number in list_of(encoded["queries"], 1))
                basis = QueryBasis(numbers, queries[list(numbers)])
        except UnsupportedWorkloadError:
            raise ValueError("classes of cells") from None
        raw = mapping(encoded["inner"])
        shape, counts = SHAPES_OF_CLASSES[text_of(raw["shape"])], _counts_of(classes, basis)
        inner = shape.decode(raw, text_of(raw["name"]), noise, counts)
        return cls(name, noise, classes, inner, basis)


def _counts_of(classes: CellClasses, basis: QueryBasis | None = None) -> Workload:
    """Return as a workload what the inner strategy is over."""
    shape = (classes.count if basis is None else len(basis.rows),)
    return Workload(shape, (marginal(shape, (0,)),), (1.0,))


SHAPES_OF_CLASSES: Mapping[str, type[ProductStrategy] | type[ResidualStrategy]] = {
    shape.kind: shape for shape in (ProductStrategy, ResidualStrategy)
}
"""The shapes that a strategy of classes may have."""


ILL_CONDITIONED = 1e-6  # of a core times its inverse, off the identity


@dataclass(frozen=True, eq=False)
class OrbitsStrategy(Strategy):
    """For every component a square core, times the codes within orbits against their mean.

    Components say nothing of each other, so that all is in closed form ([MATH] 22).
    """

    kind: ClassVar[str] = "orbits"
    may_be_part: ClassVar[bool] = False  # its columns are of its cells, those of others of codes

    whole: tuple[int, ...]  # sizes of the domain's attributes
    attributes: tuple[int, ...]  # those that are measured
    rows: OrbitRows  # what is measured of their cells

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", self.whole)

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        cells = self.rows.shape[1]
        each = CellClasses(self.shape, self.attributes, np.arange(cells))
        return (WeightedBlock(1, CellClassBlock(each, product((cells,), {0: self.rows}))),)

    @property
    def spans_its_sets(self) -> bool:
        return False

    def supports(self, block: Block) -> bool:
        if not block.is_product:
            parts = QueryRows(block, np.zeros(0, dtype=np.int64)).products()
            return all(self.supports(part.block) for _, part in parts)
        if not {i for i in block.attributes if self.shape[i] > 1} <= set(self.attributes):
            return False
        asked = []
        for axis, queries in zip(self.rows.axes, self._queries(block), strict=True):
            within = np.any(_within(axis, queries, 2) > 0, axis=0)
            asked.append([BETWEEN, *np.flatnonzero(within).tolist()])
        return math.prod(map(len, asked)) <= MAX_ORBIT_COMPONENTS and all(
            b in self.rows.cores for b in combinations(*asked)
        )

    def _queries(self, block: Block) -> list[Floats]:
        factors = dict(zip(block.attributes, block.factors, strict=True))
        return [
            np.asarray(factors[i].dense(), dtype=np.float64)
            if i in factors
            else np.ones((1, self.shape[i]))
            for i in self.attributes
        ]

    @cached_property
    def inverses(self) -> dict[Component, Floats]:
        """The inverse of every core.

        Raises:
            ValueError: a core is singular, or too ill-conditioned for floats.
        """
        inverses = {}
        for b, core in self.rows.cores.items():
            inverse = np.linalg.inv(core.astype(np.float64))
            if not float(np.abs(core @ inverse - np.eye(len(core))).max()) <= ILL_CONDITIONED:
                raise ValueError("an ill-conditioned core")
            inverses[b] = inverse
        return inverses

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowSums | None:
        """Return sum_r c_r^order; powers of Kronecker products are products of powers.

        Of thresholds, which are sums of such, the squares are known as covariances.
        """
        if not self.supports(block):
            raise UnsupportedWorkloadError("it asks for what is not measured")
        if not block.is_product:
            rows = QueryRows(block, np.arange(block.queries).reshape(block.row_shape))
            return self.covariances(QueryPairs(rows, rows)) if order == 2 else None
        levels, insides, kinds = [], [], []
        for axis, Q in zip(self.rows.axes, self._queries(block), strict=True):
            level, inside = _levels(axis, Q), _within(axis, Q, order)
            both = np.concatenate([level, inside], axis=1)
            _, first, which = np.unique(both, axis=0, return_index=True, return_inverse=True)
            levels.append(level[first])
            insides.append(inside[first])
            kinds.append(which.ravel())
        shape = [len(level) for level in levels]
        total = np.zeros(shape)
        for b, inverse in self.inverses.items():
            beside = {k: insides[k][:, o] for k, o in enumerate(b) if o != BETWEEN}
            if not all(map(np.any, beside.values())):
                continue
            products = [partial(np.matmul, levels[k]) for k in range(len(b)) if k not in beside]
            tensor = kron_apply(products, inverse.reshape(*self.rows.between(b), -1))
            sums = (tensor**order).sum(axis=-1)
            sums = sums.reshape([1 if k in beside else n for k, n in enumerate(shape)])
            for k, inside in beside.items():
                sums = sums * inside.reshape([-1 if axis == k else 1 for axis in range(len(b))])
            total += sums
        by_row = total[np.ix_(*kinds)]
        sizes = dict(zip(self.attributes, by_row.shape, strict=True))
        by_row = np.ascontiguousarray(by_row).reshape([sizes.get(i, 1) for i in block.attributes])
        for place, (i, factor) in enumerate(zip(block.attributes, block.factors, strict=True)):
            if i not in self.attributes:  # one class, times what a sum adds for it
                shape = [-1 if k == place else 1 for k in range(by_row.ndim)]
                by_row = by_row * (factor.dense()[:, 0].astype(float) ** order).reshape(shape)
        return by_row

    def covariances(self, pairs: QueryPairs) -> Floats:
        if not (self.supports(pairs.left.block) and self.supports(pairs.right.block)):
            raise UnsupportedWorkloadError("it asks for what is not measured")
        return pairs.over_products(self._of_products)

    def _of_products(self, pairs: QueryPairs) -> Floats:
        def values(left: Ints, right: Ints, contract: Contract) -> Floats:
            axes, sides = self.rows.axes, []
            for rows, at in ((pairs.left, left), (pairs.right, right)):
                asked = list(zip(axes, self._entries(rows.block, at), strict=True))
                levels, beside = ([of(*each) for each in asked] for of in (_levels, _beside))
                sides.append((levels, beside, self._lone(rows.block, at)))
            # what two queries share within every orbit, and the sum over components of the rest
            within = {
                (k, o): contract(*(beside[k][:, axes[k].place == o] for _, beside, _ in sides))
                for k, o in {pair for b in self.inverses for pair in enumerate(b)}
                if o != BETWEEN
            }
            written: dict[tuple[int, ...], list[Floats]] = {}
            values: Floats = np.zeros(())
            for b, inverse in self.inverses.items():
                inside = [within[each] for each in enumerate(b) if each[1] != BETWEEN]
                if not all(map(np.any, inside)):
                    continue
                between = tuple(k for k, orbit in enumerate(b) if orbit == BETWEEN)
                if between not in written:
                    written[between] = [
                        outer_products([levels[k] for k in between], np.ones(len(lone)))
                        for levels, _, lone in sides
                    ]
                shared = contract(*(rows @ inverse for rows in written[between]))
                values = values + math.prod(inside, start=shared)
            return values * contract(*(lone for _, _, lone in sides))

        codes = [len(axis.place) for axis in self.rows.axes]
        between = max(len(core) for core in self.rows.cores.values())
        return pairs.crossed(sum(codes) + between, values)

    def _entries(self, block: Block, places: Ints) -> list[Floats]:
        chosen = QueryRows(block, places).predicates
        return [
            table[chosen[i][1]] if i in chosen else np.repeat(table, len(places), axis=0)
            for i, table in zip(self.attributes, self._queries(block), strict=True)
        ]

    def _lone(self, block: Block, places: Ints) -> Floats:
        """Return what the predicates on attributes that are not measured add: (rows, 1)."""
        added = np.ones(len(places))
        for i, (factor, rows) in QueryRows(block, places).predicates.items():
            if i not in self.attributes:
                added *= factor.row_sums[rows]
        return added[:, None]

    def cells(self, noisy: Numbers) -> Floats:
        """Return the estimated count of every cell of the measured attributes."""
        rows = self.rows
        tensor = np.zeros((*rows.split_sizes, 1))
        for b, answers in rows.by_component(noisy.reshape(-1, 1)).items():
            solved = np.tensordot(self.inverses[b], answers, axes=1)
            rows.put(tensor, b, solved)
        # Orbits of one code each, numbered by their codes, have nothing beside their sums.
        alone = [axis.count == len(axis.place) for axis in rows.axes]
        pairs = list(zip(rows.axes, alone, strict=True))
        tensor = tensor[tuple(slice(axis.count if single else None) for axis, single in pairs)]
        steps = [None if single else partial(_recovered, axis) for axis, single in pairs]
        return np.asarray(kron_apply(steps, tensor).reshape(rows.sizes))

    @property
    def written_factors(self) -> tuple[Factor, ...]:
        return tuple(Dense(core) for core in self.rows.cores.values())

    @property
    def listings(self) -> dict[str, tuple[int, int]]:
        return {
            "components": (len(self.rows.cores), MAX_ORBIT_COMPONENTS),
            "cells": (self.rows.shape[1], MAX_CLASSED_CELLS),
        }

    def encode_parameters(self) -> dict[str, JsonValue]:
        return {
            "attributes": list(self.attributes),
            "places": [list(axis.place.tolist()) for axis in self.rows.axes],
            "cores": [[list(b), pack(core)] for b, core in self.rows.cores.items()],
        }

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        """Return the strategy that JSON values hold; orbits are numbered by their first codes."""
        whole = workload.shape_of_domain
        attributes = tuple(integer(i, 0) for i in list_of(encoded["attributes"], 1))
        if list(attributes) != sorted(set(attributes)) or attributes[-1] >= len(whole):
            raise ValueError("attributes")
        if math.prod(whole[i] for i in attributes) > MAX_CLASSED_CELLS:
            raise ValueError("cells")
        pairs = zip(attributes, list_of(encoded["places"]), strict=True)
        axes = [_decode_axis(raw, whole[i]) for i, raw in pairs]
        cores: dict[Component, Numbers] = {}
        for pair in list_of(encoded["cores"], 1):
            orbits, matrix = list_of(pair)
            b = tuple(integer(orbit, BETWEEN) for orbit in list_of(orbits))
            for axis, orbit in zip(axes, b, strict=True):
                if orbit >= axis.count or (orbit != BETWEEN and axis.sizes[orbit] < 2):
                    raise ValueError("component")
            size = math.prod(
                axis.count for axis, orbit in zip(axes, b, strict=True) if orbit == BETWEEN
            )
            core = unpack(matrix, size)
            if len(core) != size or b in cores:
                raise ValueError("core")
            cores[b] = core
        strategy = cls(name, noise, whole, attributes, OrbitRows(axes, cores))
        _ = strategy.inverses  # refuses cores that are singular
        return strategy


def _decode_axis(raw: JsonValue, n: int) -> OrbitAxis:
    """Return the orbits of an attribute of n classes, numbered by their first codes."""
    place = np.array([integer(orbit, 0) for orbit in list_of(raw)], dtype=np.int64)
    known, first = np.unique(place, return_index=True)
    if len(place) != n or known[-1] + 1 != len(known) or np.any(np.diff(first) < 0):
        raise ValueError("orbits")
    return OrbitAxis(place)


def _levels(axis: OrbitAxis, queries: Floats) -> Floats:
    """Return the mean of every query over each orbit: (m, k)."""
    sums = np.add.reduceat(queries[:, axis.order], axis.starts, axis=1)
    return np.asarray(sums / axis.sizes)


def _beside(axis: OrbitAxis, queries: Floats) -> Floats:
    means = _levels(axis, queries)[:, axis.place]
    entries = (queries - means) / axis.sizes[axis.place]
    entries[np.abs(queries - means) < 1e-12] = 0.0  # a mean of equal entries may be rounded
    return np.asarray(entries)


def _within(axis: OrbitAxis, queries: Floats, order: int) -> Floats:
    entries = _beside(axis, queries)
    return np.asarray(np.add.reduceat(entries[:, axis.order] ** order, axis.starts, axis=1))


def _recovered(axis: OrbitAxis, Y: Floats) -> Floats:
    """Return counts from sums of orbits and what is beside them: (k + n, c) -> (n, c)."""
    sums, beside, sizes = Y[: axis.count], Y[axis.count :], axis.sizes[:, None]
    means = np.add.reduceat(beside, axis.starts, axis=0) / sizes
    X = beside[np.argsort(axis.order)]
    X /= sizes[axis.place]
    X += ((sums - means) / sizes)[axis.place]
    return X
