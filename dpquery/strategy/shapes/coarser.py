"""A strategy over classes of codes: for a part of a workload that does not tell all codes apart."""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.cell_classes import CellClassBlock
from dpquery.operators.factors import Factor
from dpquery.operators.merged import (
    block_over_classes,
    block_over_codes,
    told_apart,
    workload_over_classes,
)
from dpquery.strategy.algebra.query_pairs import QueryPairs, QueryRows
from dpquery.strategy.algebra.row_sums import RowSums
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.strategies import PowerPair, Strategy, shape_of_part
from dpquery.strategy.shapes.weighted_block import WeightedBlock
from dpquery.untrusted.json_values import Json, JsonValue, integer, list_of, mapping, text_of


@dataclass(frozen=True, eq=False)
class CoarserStrategy(Strategy):
    """The rows of a strategy over classes, spread over the codes of each class.

    Attributes:
        classes: for each attribute the class of every code, numbered by their first codes.
        inner: the strategy over the classes.
    """

    kind: ClassVar[str] = "coarser"

    classes: tuple[Ints, ...]
    inner: Strategy

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(len(codes) for codes in self.classes))

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        return tuple(
            WeightedBlock(rows.weight, block_over_codes(_of_codes(rows.block), self.classes))
            for rows in self.inner.measurements
        )

    @property
    def spans_its_sets(self) -> bool:
        return False

    def supports(self, block: Block) -> bool:
        coarse = self.over_classes(block)
        return coarse is not None and self.inner.supports(coarse)

    def over_classes(self, block: Block) -> Block | None:
        """Return a block over the classes; None where it tells codes of one apart."""
        for i, factor in zip(block.attributes, block.factors, strict=True):
            codes = self.classes[i]
            apart = told_apart([factor], len(codes))
            _, first = np.unique(codes, return_index=True)
            if not np.array_equal(apart[first][codes], apart):
                return None
        return block_over_classes(block, self.classes)

    def known(self, block: Block) -> Block:
        """Return a block over the classes.

        Raises:
            UnsupportedWorkloadError: it tells codes of one apart.
        """
        coarse = self.over_classes(block)
        if coarse is None:
            raise UnsupportedWorkloadError("codes are told apart that were measured together")
        return coarse

    def serves(self, workload: Workload) -> bool:
        coarse = [self.over_classes(block) for block in workload.blocks]
        blocks = tuple(block for block in coarse if block is not None)
        if len(blocks) < len(coarse):
            return False
        return self.inner.serves(Workload(self.inner.shape, blocks, workload.weights))

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowSums | None:
        return self.inner.power_sums(self.known(block), position=position, order=order)

    def covariances(self, pairs: QueryPairs) -> Floats:
        left, right = (
            QueryRows(self.known(rows.block), rows.places, rows.position)
            for rows in (pairs.left, pairs.right)
        )
        return self.inner.covariances(QueryPairs(left, right))

    def fourth_and_sixth(self, block: Block, *, position: int | None) -> PowerPair | None:
        return self.inner.fourth_and_sixth(self.known(block), position=position)

    @property
    def written_factors(self) -> tuple[Factor, ...]:
        return tuple(self.inner.written_factors)

    @property
    def listings(self) -> dict[str, tuple[int, int]]:
        return self.inner.listings

    def encode_parameters(self) -> dict[str, JsonValue]:
        classes: list[JsonValue] = [
            None if _apart(codes) else list(codes.tolist()) for codes in self.classes
        ]
        return {"classes": classes, "inner": self.inner.encode()}

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        """Return the strategy that JSON values hold; classes are numbered by their first codes."""
        classes = []
        pairs = zip(list_of(encoded["classes"]), workload.shape_of_domain, strict=True)
        for listed, n in pairs:
            if listed is None:
                classes.append(np.arange(n))
                continue
            codes = np.array([integer(code, 0) for code in list_of(listed, 1)], dtype=np.int64)
            known, first = np.unique(codes, return_index=True)
            if len(codes) != n or known[-1] + 1 != len(known) or np.any(np.diff(first) < 0):
                raise ValueError("classes")
            classes.append(codes)
        inner = mapping(encoded["inner"])
        shape = shape_of_part(text_of(inner["shape"]))
        if shape is cls:
            raise ValueError("classes of classes")
        coarse = workload_over_classes(workload, classes)
        return cls(
            name, noise, tuple(classes), shape.decode(inner, text_of(inner["name"]), noise, coarse)
        )


def _of_codes(block: Block | CellClassBlock) -> Block:
    if isinstance(block, CellClassBlock):
        raise TypeError("classes of codes over classes of cells")
    return block


def _apart(codes: Ints) -> bool:
    return bool(np.array_equal(codes, np.arange(len(codes))))
