"""Strategies and queries as dense matrices, written anew.

Read from the JSON of release.plan alone and apart from operators/, strategy/ and measurement/, so
that what they compute can be compared with it.
"""

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import product
from types import MappingProxyType

import numpy as np

from dpquery.arrays import Numbers
from dpquery.spec.predicates import (
    AllRangesSet,
    GroupSet,
    IdentitySet,
    IntervalSet,
    PredicateSet,
    PrefixSet,
    StackedSet,
    TotalSet,
    WidthSet,
)
from dpquery.spec.spec import Spec, Table
from dpquery.strategy.strategy import Noise
from dpquery.untrusted.json_values import Json, JsonValue, list_of, mapping


def members(predicates: PredicateSet) -> list[frozenset[int]]:
    """Return the codes that meet each query of a set."""
    match predicates:
        case IdentitySet():
            return [frozenset([code]) for code in predicates.codes]
        case TotalSet(size=size):
            return [frozenset(range(size))]
        case PrefixSet(length=length):
            return [frozenset(range(last + 1)) for last in range(length)]
        case AllRangesSet(length=length):
            pairs = ((i, j) for i in range(length) for j in range(i, length))
            return [frozenset(range(i, j + 1)) for i, j in pairs]
        case WidthSet(length=length, width=width):
            return [frozenset(range(i, i + width)) for i in range(length - width + 1)]
        case IntervalSet(bounds=bounds):
            return [frozenset(range(first, last + 1)) for first, last in bounds]
        case GroupSet(groups=groups):
            return [frozenset(codes) for _, codes in groups]
        case StackedSet(parts=parts):
            return [codes for part in parts for codes in members(part)]
        case _:
            raise TypeError(type(predicates))


def classes_of(spec: Spec) -> list[list[int]]:
    """Return the class of every code of every attribute, numbered by first appearance.

    Two codes are of one class where every query of the spec has both or neither, and every sum
    the same value for both.
    """
    query_sets: list[dict[frozenset[int], None]] = [{} for _ in spec.domain.attributes]
    for item in spec.items:
        for table in item.tables:
            for i, predicates in (*table.axes, *table.where):
                query_sets[i].update(dict.fromkeys(members(predicates)))
            if table.summed is not None:
                values, equal = table.summed.values, query_sets[table.summed.attribute]
                for value in dict.fromkeys(values):
                    equal[frozenset(k for k, other in enumerate(values) if other == value)] = None
    classes = []
    for size, sets in zip(spec.domain.shape, query_sets, strict=True):
        known: dict[tuple[bool, ...], int] = {}
        signatures = [tuple(code in codes for codes in sets) for code in range(size)]
        classes.append([known.setdefault(signature, len(known)) for signature in signatures])
    return classes


def predicate_matrices(
    table: Table, classes: Sequence[Sequence[int]]
) -> list[tuple[int, bool, Numbers]]:
    """Return (attribute, whether it is an axis, matrix of queries over classes), in order.

    Entries are 0 or 1, and on the attribute whose values are added up 0 or the value.
    """
    axes, summed = {i for i, _ in table.axes}, table.summed
    sets_of = {i: members(predicates) for i, predicates in (*table.axes, *table.where)}
    if summed is not None:
        sets_of.setdefault(summed.attribute, [frozenset(range(len(summed.values)))])
    matrices = []
    for i, sets in sorted(sets_of.items()):
        matrix = np.zeros((len(sets), max(classes[i]) + 1), dtype=object)
        for row, codes in enumerate(sets):
            for code in codes:
                adds = 1 if summed is None or summed.attribute != i else summed.values[code]
                matrix[row, classes[i][code]] = adds
        matrices.append((i, i in axes, matrix))
    return matrices


Cell = tuple[int, ...]

_ENTRY_BITS = 25  # of the entries on the grid; wider ones are measured in steps of 2^shift
_LEAST_BITS = 17  # that a product's largest entry is lifted to


@dataclass(frozen=True, eq=False)
class DenseRows:
    """A block of measured rows: a weighted Kronecker product, or predicates at least r of k."""

    weight: int  # of all of them
    attributes: tuple[int, ...]  # that the rows depend on
    # one for each of these attributes, of Python integers: (rows, classes)
    matrices: tuple[Numbers, ...]
    # for each of these whether its predicates are counted; the others must all hold
    counted: tuple[bool, ...] = ()
    # how many of the counted ones must hold; None for a Kronecker product
    at_least: int | None = None
    # where the rows depend on classes of cells, the class of every cell of the domain, as a cell of
    # the one attribute 0
    class_of: Mapping[Cell, Cell] | None = None

    @property
    def length(self) -> int:
        """Number of rows."""
        return math.prod(len(matrix) for matrix in self.matrices)

    def column(self, cell: Cell) -> Numbers:
        """Return what one record in a cell adds to every row, as Python integers: (rows,)."""
        place = self._place(cell)
        columns = [M[:, place[i]] for i, M in zip(self.attributes, self.matrices, strict=True)]
        if self.at_least is None:
            return np.asarray(self.weight * _outer(columns))
        marks = list(zip(columns, self.counted, strict=True))
        must = _outer([v if not counted else 0 * v + 1 for v, counted in marks])
        hits = reduce(np.add.outer, [v if counted else 0 * v for v, counted in marks]).ravel()
        return np.asarray(self.weight * must * (hits >= self.at_least).astype(object))

    def column_norm(self, cell: Cell, power: int) -> int:
        """Return the sum over the rows of |entry|^power; for power 0 the nonzero entries."""
        if self.at_least is not None:
            return _norm(self.column(cell), power)
        by_attribute = zip(self.attributes, _norms(self, power), strict=True)
        place = self._place(cell)
        product_norm = math.prod(norms[place[i]] for i, norms in by_attribute)
        return int(product_norm * self.weight**power)

    def _place(self, cell: Cell) -> Cell:
        return cell if self.class_of is None else self.class_of[cell]

    def largest_entry(self) -> int:
        """Return the largest absolute entry of the matrices' product, times the weight."""
        return int(self.weight * math.prod(max(1, int(np.abs(M).max())) for M in self.matrices))


@dataclass(frozen=True, eq=False)
class DenseStrategy:
    """A strategy as dense blocks of Python integers."""

    noise: Noise  # what is added
    shape: tuple[int, ...]  # classes of every attribute
    classes: list[list[int]]  # the class of every code of every attribute
    rows: tuple[DenseRows, ...]  # what is measured, in order
    coarser: int = 0  # more bits of the grid, for answers that may be larger
    # of parts that answer alone, how many of the rows' blocks each has and the places of the
    # queries that it answers; none where all rows answer together
    apart: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def length(self) -> int:
        """Number of measured rows."""
        return sum(block.length for block in self.rows)

    @property
    def cells(self) -> list[Cell]:
        """All cells of the domain of classes."""
        return list(product(*(range(n) for n in self.shape)))

    @property
    def shift(self) -> int:
        """Answers are measured in steps of 2^shift."""
        entries = max(block.largest_entry() for block in self.rows)
        return max(0, entries.bit_length() - _ENTRY_BITS) + self.coarser

    def column(self, cell: Cell) -> Numbers:
        """Return what one record in a cell adds to every row: (length,) Python integers."""
        return np.concatenate([block.column(cell) for block in self.rows])

    def answers(self, counts: Mapping[Cell, int]) -> Numbers:
        """Return the exact answers in steps of the grid: (length,) Python integers."""
        total = np.zeros(self.length, dtype=object)
        for cell, count in counts.items():
            total = total + count * self.column(cell)
        return total >> self.shift


def dense_strategy(spec: Spec, plan: Json, noise: Noise) -> DenseStrategy:
    """Return the strategy that a plan's JSON has for a kind of noise."""
    selections = [mapping(raw) for raw in list_of(plan["selections"])]
    (selection,) = (selection for selection in selections if selection["noise"] == noise)
    encoded = mapping(selection["strategy"])
    classes = classes_of(spec)
    shape = tuple(max(codes) + 1 for codes in classes)
    queries = queries_of(spec, classes)
    if encoded["shape"] != "union":
        return DenseStrategy(noise, shape, classes, (*_strategy_rows(encoded, shape, queries),))
    parts = _rows_of_parts(encoded, shape, queries)
    rows = tuple(block for _, blocks in parts for block in blocks)
    kinds = {mapping(part)["shape"] for part in list_of(encoded["parts"])}
    apart = tuple((len(blocks), group) for group, blocks in parts)  # products are solved together
    return DenseStrategy(noise, shape, classes, rows, apart=() if kinds == {"product"} else apart)


def _rows_of_parts(
    encoded: Json, shape: Sequence[int], queries: Sequence[DenseRows]
) -> list[tuple[tuple[int, ...], list[DenseRows]]]:
    """Return for every part the places of the queries that it serves, and what it measures."""
    parts = []
    listed = (list_of(encoded[key]) for key in ("weights", "parts", "groups"))
    for weight, raw, group in zip(*listed, strict=True):
        places = tuple(_integers(group))
        measured = _strategy_rows(mapping(raw), shape, [queries[place] for place in places])
        weighed = [replace(rows, weight=int(str(weight)) * rows.weight) for rows in measured]
        parts.append((places, weighed))
    return parts


def _strategy_rows(
    encoded: Json, shape: Sequence[int], queries: Sequence[DenseRows]
) -> list[DenseRows]:
    """Return what is measured for queries over classes of codes; shapes may hold others."""
    match encoded["shape"]:
        case "product":
            return [_product_rows(encoded, shape)]
        case "workload":
            pairs = zip(_integers(encoded["weights"]), queries, strict=True)
            return [replace(rows, weight=weight) for weight, rows in pairs]
        case "cell-classes":
            # the rows over the classes of cells that every query has all of or none of
            class_of: dict[Cell, Cell] = {}
            known: dict[tuple[int, ...], int] = {}
            for cell in product(*(range(n) for n in shape)):
                column = tuple(entry for rows in queries for entry in rows.column(cell).tolist())
                class_of[cell] = (known.setdefault(column, len(known)),)
            columns = np.array([[*column, 1] for column in known])  # beside all queries, the total
            raw, chosen = mapping(encoded["inner"]), encoded.get("queries")
            if chosen is None:
                inner = _strategy_rows(raw, (len(known),), ())
            else:
                mixed = columns.T[_integers(chosen)]
                inner = _strategy_rows(raw, (len(mixed),), ())
                inner = [replace(rows, matrices=(rows.matrices[0] @ mixed,)) for rows in inner]
            return [replace(rows, class_of=class_of) for rows in inner]
        case "orbits":
            return [_rows_of_orbits(encoded, shape)]
        case "coarser":
            return _rows_over_codes(encoded, shape, queries)
        case "union":
            parts = _rows_of_parts(encoded, shape, queries)
            return [rows for _, of_part in parts for rows in of_part]
        case "marginals":
            matrices = {i: _matrix({"kind": "identity", "n": n}) for i, n in enumerate(shape)}
            raw_factors = (list_of(pair) for pair in list_of(encoded["factors"]))
            matrices |= {int(str(i)): _matrix(mapping(raw)) for i, raw in raw_factors}
            return _weighted(encoded, matrices)
        case "residual":
            cores = enumerate(list_of(encoded["cores"]))
            matrices = {i: _matrix(mapping(raw)) for i, raw in cores if raw}
            within: dict[tuple[tuple[int, ...], int], Numbers] = {}
            for triple in map(list_of, list_of(encoded.get("block_cores", []))):
                within[tuple(_integers(triple[0])), int(str(triple[1]))] = _unpacked(triple[2])
            return _weighted(encoded, matrices, within)
        case other:
            raise ValueError(f"no strategy has the shape {other}")


def _product_rows(encoded: Json, shape: Sequence[int]) -> DenseRows:
    raws = [mapping(raw) for raw in list_of(encoded["factors"])]
    attributes = [i for i, raw in enumerate(raws) if raw["kind"] != "total" and shape[i] > 1]
    matrices = tuple(_matrix(raws[i]) for i in attributes)
    entry = math.prod(int(np.abs(matrix).max()) for matrix in matrices)
    return DenseRows(1 << max(0, _LEAST_BITS - entry.bit_length()), tuple(attributes), matrices)


def _weighted(
    encoded: Json,
    matrices: Mapping[int, Numbers],
    within: Mapping[tuple[tuple[int, ...], int], Numbers] = MappingProxyType({}),
) -> list[DenseRows]:
    """Return the blocks of subsets; `within` has the matrices that one subset alone has."""
    blocks = []
    for pair in list_of(encoded["weights"]):
        subset, weight = list_of(pair)
        b = tuple(_integers(subset))
        blocks.append(
            DenseRows(int(str(weight)), b, tuple(within.get((b, i), matrices[i]) for i in b))
        )
    return blocks


def _rows_over_codes(
    encoded: Json, shape: Sequence[int], queries: Sequence[DenseRows]
) -> list[DenseRows]:
    """Return rows over classes of codes with the column of its class for every code."""
    pairs = zip(list_of(encoded["classes"]), shape, strict=True)
    classes = [list(range(n)) if raw is None else _integers(raw) for raw, n in pairs]
    first = [[codes.index(k) for k in range(max(codes) + 1)] for codes in classes]
    coarse = [_with_columns(rows, first) for rows in queries]
    inner = _strategy_rows(mapping(encoded["inner"]), [len(codes) for codes in first], coarse)
    return [_with_columns(rows, classes) for rows in inner]


def _with_columns(rows: DenseRows, columns: Sequence[Sequence[int]]) -> DenseRows:
    pairs = zip(rows.attributes, rows.matrices, strict=True)
    return replace(rows, matrices=tuple(M[:, columns[i]] for i, M in pairs))


def _rows_of_orbits(encoded: Json, shape: Sequence[int]) -> DenseRows:
    """Return the rows of all components over the cells of the measured attributes, one by one."""
    attributes = _integers(encoded["attributes"])
    places = [_integers(place) for place in list_of(encoded["places"])]
    cores = [
        (_integers(orbits), _unpacked(core))
        for orbits, core in map(list_of, list_of(encoded["cores"]))
    ]
    blocks = [
        _component_rows(places, orbits, core)
        for orbits, core in sorted(cores, key=lambda pair: pair[0])
    ]
    cells = product(*(range(len(place)) for place in places))
    number = {cell: (k,) for k, cell in enumerate(cells)}
    class_of = {
        cell: number[tuple(cell[i] for i in attributes)]
        for cell in product(*(range(n) for n in shape))
    }
    return DenseRows(1, (0,), (np.concatenate(blocks),), class_of=class_of)


def _component_rows(
    places: Sequence[Sequence[int]], orbits: Sequence[int], core: Numbers
) -> Numbers:
    """Return the rows of a component: its core by orbits, times codes against their orbit's sum."""
    between, inside = np.ones((1, 1), dtype=object), np.ones((1, 1), dtype=object)
    for place, orbit in zip(places, orbits, strict=True):
        own = np.array(place)
        anything = np.ones((1, len(place)), dtype=object)
        by_orbit = (own == np.arange(own.max() + 1)[:, None]).astype(object)
        against = own == orbit
        codes = np.flatnonzero(against)
        compared = len(codes) * (np.arange(len(place)) == codes[:, None]) - against
        between = np.kron(between, by_orbit if orbit < 0 else anything)
        inside = np.kron(inside, anything if orbit < 0 else compared.astype(object))
    return np.concatenate([row * inside for row in core.dot(between)])


def queries_of(spec: Spec, classes: list[list[int]]) -> list[DenseRows]:
    """Return the rows of every table that a spec asks for."""
    blocks = []
    for table in (table for item in spec.items for table in item.tables):
        factors = predicate_matrices(table, classes)
        attributes = tuple(i for i, _, _ in factors)
        counted = tuple(is_axis for _, is_axis, _ in factors)
        at_least = None if table.threshold == len(table.axes) else table.threshold
        matrices = tuple(matrix for _, _, matrix in factors)
        blocks.append(DenseRows(1, attributes, matrices, counted, at_least))
    return blocks


def _matrix(raw: Json) -> Numbers:
    if "matrix" in raw:
        return _unpacked(raw["matrix"])
    if raw["kind"] == "p-identity":
        (diagonal,) = _unpacked(raw["diagonal"])
        return np.concatenate([np.diag(diagonal), _unpacked(raw["rows"])])
    if raw["kind"] == "tree":
        parents, weights = (
            [_unpacked(level)[0].tolist() for level in list_of(raw[name])]
            for name in ("parents", "weights")
        )
        # Which nested blocks hold a code is found by going up from it.
        lies_in, rows = list(range(len(weights[0]))), []
        for level, of_blocks in enumerate(weights):
            if level:
                lies_in = [parents[level - 1][block] for block in lies_in]
            for block, weight in enumerate(of_blocks):
                if weight:
                    rows.append([weight * (block == holder) for holder in lies_in])
        return np.array(rows, dtype=object)
    n = int(str(raw["n"]))
    match raw["kind"]:
        case "identity":
            return _blocks(n, 1)
        case "centered":
            return n * _blocks(n, 1) - 1
        case "hierarchy":
            levels = [_integers(level) for level in list_of(raw["levels"])]
            return np.concatenate([weight * _blocks(n, size) for size, weight in levels])
        case other:
            raise ValueError(f"no factor is of kind {other}")


def _blocks(n: int, size: int) -> Numbers:
    starts = range(0, n, size)
    return np.array([[int(a <= j < a + size) for j in range(n)] for a in starts], dtype=object)


def _unpacked(raw: JsonValue) -> Numbers:
    packed = mapping(raw)
    content = zlib.decompress(base64.b64decode(str(packed["data"])))
    return np.frombuffer(content, dtype="<i8").reshape(_integers(packed["shape"])).astype(object)


def _integers(raw: JsonValue) -> list[int]:
    return [int(str(number)) for number in list_of(raw)]


@lru_cache(maxsize=256)
def _norms(rows: DenseRows, power: int) -> list[list[int]]:
    return [[_norm(column, power) for column in M.T] for M in rows.matrices]


def _norm(column: Numbers, power: int) -> int:
    return sum(abs(int(entry)) ** power for entry in column if entry)


def _outer(vectors: Sequence[Numbers]) -> Numbers:
    one = np.ones(1, dtype=object)
    return reduce(lambda outer, vector: np.multiply.outer(outer, vector).ravel(), vectors, one)
