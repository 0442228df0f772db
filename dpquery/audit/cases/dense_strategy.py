"""A plan's strategy written out in Python integers, and the noise that it takes, by brute force.

Read from the JSON of release.plan alone and apart from strategy/ and measurement/, so that what
they compute can be held against it.
"""

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import product

import numpy as np

from dpquery.audit.cases.query_classes import classes_of, predicate_matrices
from dpquery.operators.factors import Array
from dpquery.spec.model import Spec
from dpquery.strategy.noise_kinds import Noise
from dpquery.untrusted.json_values import Json, JsonValue, list_of, mapping

Cell = tuple[int, ...]

_ENTRY_BITS = 25  # of the entries on the grid; wider ones are measured in steps of 2^shift
_LEAST_BITS = 17  # that a product's largest entry is lifted to


@dataclass(frozen=True, eq=False)
class DenseRows:
    """Rows that are measured together.

    Attributes:
        weight: of all of them.
        attributes: that they look at.
        matrices: one a looked-at attribute, of Python integers: (rows, classes).
        counted: for each whether its predicates are counted; the others must all hold.
        at_least: how many of the counted ones must hold; None for a Kronecker product.
    """

    weight: int
    attributes: tuple[int, ...]
    matrices: tuple[Array, ...]
    counted: tuple[bool, ...] = ()
    at_least: int | None = None

    @property
    def length(self) -> int:
        """Their number."""
        return math.prod(len(own) for own in self.matrices)

    def column(self, cell: Cell) -> Array:
        """Return what one record in a cell adds to every row, as Python integers: (rows,)."""
        own = [M[:, cell[i]] for i, M in zip(self.attributes, self.matrices, strict=True)]
        if self.at_least is None:
            return np.asarray(self.weight * _outer(own))
        marks = list(zip(own, self.counted, strict=True))
        must = _outer([v if not counted else 0 * v + 1 for v, counted in marks])
        hits = sum(_spread(own, k) for k, (_, counted) in enumerate(marks) if counted)
        return np.asarray(self.weight * must * (np.asarray(hits) >= self.at_least).astype(object))

    def column_norm(self, cell: Cell, power: int) -> int:
        """Return the sum over the rows of |entry|^power; for power 0 the nonzero entries."""
        if self.at_least is not None:
            return _norm(self.column(cell), power)
        norms = zip(self.attributes, _norms(self, power), strict=True)
        return int(math.prod(own[cell[i]] for i, own in norms) * self.weight**power)

    def largest_entry(self) -> int:
        """Return the largest absolute entry of the matrices' product, times the weight."""
        return int(self.weight * math.prod(max(1, int(np.abs(M).max())) for M in self.matrices))


@dataclass(frozen=True, eq=False)
class WrittenOut:
    """A strategy as lists of integers.

    Attributes:
        noise: what is added.
        shape: classes of every attribute.
        classes: the class of every code of every attribute.
        rows: what is measured, in order.
    """

    noise: Noise
    shape: tuple[int, ...]
    classes: list[list[int]]
    rows: tuple[DenseRows, ...]

    @property
    def length(self) -> int:
        """Number of measured rows."""
        return sum(own.length for own in self.rows)

    @property
    def cells(self) -> list[Cell]:
        """All cells of the domain of classes."""
        return list(product(*(range(n) for n in self.shape)))

    @property
    def shift(self) -> int:
        """Answers are kept in steps of 2^shift."""
        return max(0, max(own.largest_entry() for own in self.rows).bit_length() - _ENTRY_BITS)

    def column(self, cell: Cell) -> Array:
        """Return what one record in a cell adds to every row: (length,) Python integers."""
        return np.concatenate([own.column(cell) for own in self.rows])

    def answers(self, counts: Mapping[Cell, int]) -> Array:
        """Return the exact answers in steps of the grid: (length,) Python integers."""
        total = np.zeros(self.length, dtype=object)
        for cell, count in counts.items():
            total = total + count * self.column(cell)
        return total >> self.shift


def written_out(spec: Spec, plan: Json, noise: Noise) -> WrittenOut:
    """Return the strategy that a plan's JSON holds for a kind of noise."""
    selections = [mapping(own) for own in list_of(plan["selections"])]
    (encoded,) = (mapping(own["strategy"]) for own in selections if own["noise"] == noise)
    classes = classes_of(spec)
    shape = tuple(max(own) + 1 for own in classes)
    if encoded["shape"] == "workload":
        rows = _workload_rows(encoded, spec, classes)
    else:
        rows = _strategy_rows(encoded, shape)
    return WrittenOut(noise, shape, classes, tuple(rows))


def _strategy_rows(encoded: Json, shape: Sequence[int]) -> list[DenseRows]:
    match encoded["shape"]:
        case "product":
            return [_product_rows(encoded, shape)]
        case "union":
            parts = [_product_rows(mapping(own), shape) for own in list_of(encoded["parts"])]
            pairs = zip(_integers(encoded["weights"]), parts, strict=True)
            return [DenseRows(w * own.weight, own.attributes, own.matrices) for w, own in pairs]
        case "marginals":
            own = {i: _matrix({"kind": "identity", "n": n}) for i, n in enumerate(shape)}
            held = (list_of(pair) for pair in list_of(encoded["factors"]))
            own |= {int(str(i)): _matrix(mapping(raw)) for i, raw in held}
            return _weighted(encoded, own)
        case "residual":
            cores = enumerate(list_of(encoded["cores"]))
            return _weighted(encoded, {i: _matrix(mapping(raw)) for i, raw in cores if raw})
        case "quad-tree":
            pair = _integers(encoded["pair"])
            levels = [_integers(own) for own in list_of(encoded["levels"])]
            return [
                DenseRows(w, tuple(pair), (_blocks(shape[pair[0]], a), _blocks(shape[pair[1]], b)))
                for a, b, w in levels
            ]
        case other:
            raise ValueError(f"no strategy has the shape {other}")


def _product_rows(encoded: Json, shape: Sequence[int]) -> DenseRows:
    raws = [mapping(own) for own in list_of(encoded["factors"])]
    kept = [i for i, raw in enumerate(raws) if raw["kind"] != "total" and shape[i] > 1]
    matrices = tuple(_matrix(raws[i]) for i in kept)
    entry = math.prod(int(np.abs(own).max()) for own in matrices)
    return DenseRows(1 << max(0, _LEAST_BITS - entry.bit_length()), tuple(kept), matrices)


def _weighted(encoded: Json, matrices: Mapping[int, Array]) -> list[DenseRows]:
    found = []
    for pair in list_of(encoded["weights"]):
        subset, weight = list_of(pair)
        b = tuple(_integers(subset))
        found.append(DenseRows(int(str(weight)), b, tuple(matrices[i] for i in b)))
    return found


def _workload_rows(encoded: Json, spec: Spec, classes: list[list[int]]) -> list[DenseRows]:
    tables = (table for item in spec.items for table in item.tables)
    found = []
    for weight, table in zip(_integers(encoded["weights"]), tables, strict=True):
        own = predicate_matrices(table, classes)
        attributes, counted = tuple(i for i, _, _ in own), tuple(axis for _, axis, _ in own)
        at_least = None if table.threshold == len(table.axes) else table.threshold
        matrices = tuple(matrix for _, _, matrix in own)
        found.append(DenseRows(weight, attributes, matrices, counted, at_least))
    return found


def _matrix(raw: Json) -> Array:
    """Return the integer matrix of a factor or a core, entry by entry."""
    if "matrix" in raw:
        return _unpacked(raw["matrix"])
    if raw["kind"] == "p-identity":
        (diagonal,) = _unpacked(raw["diagonal"])
        return np.concatenate([np.diag(diagonal), _unpacked(raw["rows"])])
    n = int(str(raw["n"]))
    match raw["kind"]:
        case "identity":
            return _blocks(n, 1)
        case "centered":
            return n * _blocks(n, 1) - 1
        case "hierarchy":
            levels = [_integers(own) for own in list_of(raw["levels"])]
            return np.concatenate([weight * _blocks(n, size) for size, weight in levels])
        case "haar":
            return _haar(n)
        case other:
            raise ValueError(f"no factor is of kind {other}")


def _blocks(n: int, size: int) -> Array:
    """Return the 0/1 matrix of blocks of codes that follow one another."""
    starts = range(0, n, size)
    return np.array([[int(a <= j < a + size) for j in range(n)] for a in starts], dtype=object)


def _haar(n: int) -> Array:
    rows = [[1] * n]
    half = 1
    while half < n:
        for start in range(0, n, 2 * half):
            sign = [(start <= j < start + half) - (start + half <= j < start + 2 * half)
                    for j in range(n)]  # fmt: skip
            rows.append([int(own) for own in sign])
        half *= 2
    return np.array(rows, dtype=object)


def _unpacked(raw: JsonValue) -> Array:
    packed = mapping(raw)
    content = zlib.decompress(base64.b64decode(str(packed["data"])))
    return np.frombuffer(content, dtype="<i8").reshape(_integers(packed["shape"])).astype(object)


def _integers(raw: JsonValue) -> list[int]:
    return [int(str(own)) for own in list_of(raw)]


@lru_cache(maxsize=256)
def _norms(rows: DenseRows, power: int) -> list[list[int]]:
    """Return the norm of every column of every matrix of a Kronecker product."""
    return [[_norm(column, power) for column in M.T] for M in rows.matrices]


def _norm(column: Array, power: int) -> int:
    return sum(abs(int(entry)) ** power for entry in column if entry)


def _outer(vectors: Sequence[Array]) -> Array:
    """Return the Kronecker product of vectors."""
    one = np.ones(1, dtype=object)
    return reduce(lambda held, own: np.multiply.outer(held, own).ravel(), vectors, one)


def _spread(vectors: Sequence[Array], k: int) -> Array:
    """Return vector k, each entry where it stands in the Kronecker product of all of them."""
    return _outer([own if place == k else 0 * own + 1 for place, own in enumerate(vectors)])
