"""The workload's own queries (the plain Laplace or Gaussian mechanism)."""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block, Workload
from dpquery.strategy.algebra.query_pairs import QueryPairs, QueryRows
from dpquery.strategy.algebra.row_sums import RowTerms
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.row_space import BlockRows, Combination, combination
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.strategy.shapes.weighted_block import WeightedBlock
from dpquery.untrusted.json_values import Json, JsonValue, list_of, scaled_integer


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
