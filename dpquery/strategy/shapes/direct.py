r"""The workload's own queries (the plain Laplace or Gaussian mechanism).

Where a strategy is the workload's own queries, a question is answered from the rows of one of its
blocks: by the same rows where the block has them, else by the shortest combination of its rows,
C F = Q for each attribute. With t F = 1 for the total, an r-of-k block is then
    sum_u coef_u  kron_{i in u} C_i  kron_{i in S \ u} 1 t_i  kron_{i not in S} t_i.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Self

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block, Workload, kron_apply
from dpquery.operators.factors import Factor
from dpquery.strategy.algebra.query_powers import QueryPairs, QueryRows, RowTerms, mixed_powers
from dpquery.strategy.strategy import Noise, Strategy, WeightedBlock
from dpquery.untrusted.json_values import Json, JsonValue, list_of, scaled_integer

MAX_FACTOR_ENTRIES = 1 << 22  # entries of a factor that is written out
_TOLERANCE = 1e-7  # of the combination of rows that is to give a row, over its largest entry
_MOST_TOLERANCE = 1e-2  # whole numbers that differ are told apart, however large the others are


@dataclass(frozen=True, eq=False)
class BlockRows:
    """Some of the rows of a measured block."""

    weight: int  # of the measurement
    place: int  # of the measurement in the strategy
    rows: tuple[Ints, ...]  # which predicates of each attribute, in the block's order

    def answer(self, noisy: Floats, block: Block) -> Floats:
        """Answer a block from the rows of the measurement. noisy: its row shape."""
        if not self.rows:
            return noisy.reshape(block.row_shape) / self.weight
        return np.asarray(noisy[np.ix_(*self.rows)] / self.weight)

    def measured(self, queries: QueryRows) -> dict[int, Ints]:
        """Return for each attribute which measured predicate every row of queries is."""
        chosen = queries.predicates.items()
        if not self.rows:
            return {i: rows for i, (_, rows) in chosen}
        return {i: of[rows] for (i, (_, rows)), of in zip(chosen, self.rows, strict=True)}

    def matrices(
        self, queries: QueryRows, sizes: Mapping[int, int]
    ) -> Iterator[tuple[float, dict[int, Floats]]]:
        """Yield the rows of queries over the measured rows of each attribute: (..., size)."""
        rows = self.measured(queries)
        yield 1.0, {i: np.eye(size)[rows[i]] for i, size in sizes.items()}

    def power_sums(self, block: Block, order: int) -> RowTerms:
        """Return the sum of powers of the coefficients of every row."""
        return [(self.weight ** -float(order), [np.ones(1)] * len(block.factors))]


@dataclass(frozen=True, eq=False)
class Combination:
    """Combinations of the rows of a measured product."""

    weight: int  # of the measurement
    place: int  # of the measurement in the strategy
    attributes: tuple[int, ...]  # of the measured product and of the block, sorted
    totals: Mapping[int, Floats]  # for each the combination t of the measured rows: (rows,)
    queries: Mapping[int, Floats]  # for those of the block C: (queries, rows)

    def answer(self, noisy: Floats, block: Block) -> Floats:
        """Answer a block from the rows of the measurement. noisy: its row shape."""
        noisy = noisy.reshape([len(self.totals[i]) for i in self.attributes])
        total = np.zeros(block.row_shape)
        for coef, mask in block.terms:
            inside = dict(zip(block.attributes, mask, strict=True))
            matrices = [self._matrix(i, inside.get(i, False)) for i in self.attributes]
            term = kron_apply([matrix.__matmul__ for matrix in matrices], noisy)
            total += coef * term.reshape(block.row_shape)
        return np.asarray(total / self.weight)

    def matrices(
        self, queries: QueryRows, sizes: Mapping[int, int]
    ) -> Iterator[tuple[float, dict[int, Floats]]]:
        """Yield products of C, or of t, of each attribute that add up to rows of queries."""
        chosen = queries.predicates
        every = np.zeros((), dtype=np.int64)
        for coef, mask in queries.block.terms:
            inside = dict(zip(queries.block.attributes, mask, strict=True))
            yield (
                float(coef),
                {
                    i: self._matrix(i, inside.get(i, False))[chosen[i][1] if i in chosen else every]
                    for i in self.attributes
                },
            )

    def _matrix(self, i: int, queried: bool) -> Floats:
        if queried:
            return self.queries[i]
        rows = len(self.queries[i]) if i in self.queries else 1
        return np.broadcast_to(self.totals[i], (rows, len(self.totals[i])))

    def power_sums(self, block: Block, order: int) -> RowTerms:
        """Return the sum of powers of the coefficients of every row."""
        outside = self.weight ** -float(order)
        outside *= math.prod(
            float((self.totals[i] ** order).sum()) for i in self.attributes if i not in self.queries
        )
        forms = [
            {c: ((C**c) * self.totals[i] ** (order - c)).sum(axis=1) for c in range(order + 1)}
            for i, C in sorted(self.queries.items())
        ]
        return [(outside * coef, vectors) for coef, vectors in mixed_powers(block, forms, order)]


@lru_cache(maxsize=64)
def combination(
    workload: Workload, weights: tuple[int, ...], block: Block
) -> BlockRows | Combination | None:
    """Return the rows, or combinations of rows, of a measured block that give a block least noise.

    Measured are the blocks of a workload, each times its weight. A question that the workload asks
    keeps its answer: rows that are among the measured ones come before combinations of them. None
    where there is neither.
    """
    options: list[tuple[float, BlockRows | Combination]] = []
    for place, measured in enumerate(workload.blocks):
        rows = _among(measured, block)
        if rows is not None:
            weight = weights[place]
            options.append((float(weight) ** -2, BlockRows(weight, place, rows)))
    if not options:
        for place, measured in enumerate(workload.blocks):
            combined = _combined(measured, block, weights[place], place)
            if combined is not None:
                terms = combined.power_sums(block, 2)
                means = (c * math.prod(float(v.mean()) for v in vectors) for c, vectors in terms)
                options.append((sum(means), combined))
    return min(options, key=lambda option: option[0])[1] if options else None


def _among(measured_block: Block, block: Block) -> tuple[Ints, ...] | None:
    """Return the positions of a block's predicates in a measured block; None if one is missing."""
    alike = (measured_block.counted, measured_block.at_least) == (block.counted, block.at_least)
    products = measured_block.is_product and block.is_product
    if measured_block.attributes != block.attributes or not (alike or products):
        return None
    rows = []
    for measured, wanted in zip(measured_block.factors, block.factors, strict=True):
        if measured.key == wanted.key:
            rows.append(np.arange(wanted.shape[0]))
            continue
        if not _is_small(measured, wanted):
            return None
        known = {row.tobytes(): place for place, row in reversed(list(enumerate(_dense(measured))))}
        places = [known.get(row.tobytes(), -1) for row in _dense(wanted)]
        if -1 in places:
            return None
        rows.append(np.array(places, dtype=np.int64))
    return tuple(rows)


def _combined(measured_block: Block, block: Block, weight: int, place: int) -> Combination | None:
    beyond = [i for i in block.attributes if i not in measured_block.attributes]
    if not measured_block.is_product or any(block.shape_of_domain[i] > 1 for i in beyond):
        return None
    measured = dict(zip(measured_block.attributes, measured_block.factors, strict=True))
    wanted = dict(zip(block.attributes, block.factors, strict=True))
    attributes = tuple(sorted({*measured, *wanted}))
    totals, queries = {}, {}
    for i in attributes:
        if i not in measured:  # of one class
            totals[i], queries[i] = np.ones(1), wanted[i].dense().astype(np.float64)
            continue
        needs_total = i not in wanted or not block.is_product
        coefficients = _shortest(measured[i], wanted.get(i), needs_total=needs_total)
        if coefficients is None:
            return None
        totals[i] = coefficients[-1]
        if i in wanted:
            queries[i] = coefficients[:-1]
    return Combination(weight, place, attributes, totals, queries)


def _shortest(measured: Factor, wanted: Factor | None, *, needs_total: bool) -> Floats | None:
    if not _is_small(measured, *(() if wanted is None else (wanted,))):
        return None
    n = measured.shape[1]
    total = np.ones((1, n))
    Q = total if wanted is None else np.concatenate([wanted.dense().astype(np.float64), total])
    C = Q @ _plus(measured)
    largest = np.maximum(np.abs(Q).max(axis=1, initial=0.0), 1.0)
    tolerance = np.minimum(_TOLERANCE * largest, _MOST_TOLERANCE)
    wrong = np.abs(C @ measured.dense() - Q).max(axis=1, initial=0.0) > tolerance
    return None if wrong[:-1].any() or (needs_total and wrong[-1]) else np.asarray(C)


@lru_cache(maxsize=64)
def _plus(measured: Factor) -> Floats:
    return np.linalg.pinv(measured.dense().astype(np.float64))


def _is_small(*factors: Factor) -> bool:
    return all(math.prod(factor.shape) <= MAX_FACTOR_ENTRIES for factor in factors)


def _dense(factor: Factor) -> Ints:
    return np.ascontiguousarray(factor.dense(), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class DirectStrategy(Strategy):
    """The workload's own queries, block j times the integer weights[j]."""

    kind: ClassVar[str] = "workload"

    workload: Workload
    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", self.workload.shape_of_domain)

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        pairs = zip(self.weights, self.workload.blocks, strict=True)
        return tuple(WeightedBlock(weight, block) for weight, block in pairs)

    @property
    def spans_its_sets(self) -> bool:
        return False

    def supports(self, block: Block) -> bool:
        return combination(self.workload, self.weights, block) is not None

    def serves(self, workload: Workload) -> bool:
        return True

    def combined(self, block: Block) -> BlockRows | Combination:
        """Return the rows of a measured block, or combinations of them, that answer a block.

        Raises:
            UnsupportedWorkloadError: there are none.
        """
        rows = combination(self.workload, self.weights, block)
        if rows is None:
            raise UnsupportedWorkloadError("no measured question has the rows that are asked for")
        return rows

    def uniform_variances(
        self, blocks: Sequence[Block], positions: Sequence[int | None]
    ) -> dict[int, float]:
        own = ((k, position) for k, position in enumerate(positions) if position is not None)
        return {k: float(self.weights[position]) ** -2 for k, position in own}

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowTerms:
        if position is None:
            return self.combined(block).power_sums(block, order)
        unit = np.ones(1)
        return [(self.weights[position] ** -float(order), [unit] * len(block.factors))]

    def covariances(self, pairs: QueryPairs) -> Floats:
        """Return them by the measured rows that both answers are made of."""
        left, right = (self._combined(rows) for rows in (pairs.left, pairs.right))
        if left.place != right.place:
            return np.zeros(pairs.shape)
        if isinstance(left, BlockRows) and isinstance(right, BlockRows):
            same = np.ones(pairs.shape, dtype=np.bool_)
            first, second = left.measured(pairs.left), right.measured(pairs.right)
            for i in first:
                same &= first[i] == second[i]
            return same / float(left.weight) ** 2
        measured = self.workload.blocks[left.place]
        sizes = dict(zip(measured.attributes, measured.row_shape, strict=True))
        values = np.zeros(pairs.shape)
        for before, matrices in left.matrices(pairs.left, sizes):
            for after, others in right.matrices(pairs.right, sizes):
                term: Floats = np.ones(())
                for i in sizes.keys() | matrices.keys() | others.keys():
                    first_rows, second_rows = (
                        side.get(i, np.ones((1, 1))) for side in (matrices, others)
                    )
                    term = term * np.sum(first_rows * second_rows, axis=-1)
                values += before * after * term
        return values / float(left.weight) ** 2

    def _combined(self, rows: QueryRows) -> BlockRows | Combination:
        if rows.position is None:
            return self.combined(rows.block)
        return BlockRows(self.weights[rows.position], rows.position, ())

    def encode_parameters(self) -> dict[str, JsonValue]:
        return {"weights": list(self.weights)}

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        weights = tuple(scaled_integer(weight) for weight in list_of(encoded["weights"]))
        if len(weights) != len(workload.blocks):
            raise ValueError("weights")
        return cls(name, noise, workload, weights)
