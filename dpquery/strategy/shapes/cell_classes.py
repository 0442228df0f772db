"""Classes of cells that no query tells apart, measured as the codes of one attribute (OPT_C)."""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_CELL_CLASSES
from dpquery.operators.blocks import Block, Workload, marginal
from dpquery.operators.cell_classes import CellClassBlock, CellClasses, cell_classes
from dpquery.operators.factors import Factor
from dpquery.strategy.algebra.query_pairs import QueryPairs, QueryRows
from dpquery.strategy.algebra.row_sums import RowSums, expand
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.strategies import PowerPair, Strategy
from dpquery.strategy.shapes.weighted_block import WeightedBlock, column_matrices
from dpquery.untrusted.json_values import Json, JsonValue, mapping, text_of


@dataclass(frozen=True, eq=False)
class CellClassesStrategy(Strategy):
    """A strategy of one attribute whose codes are classes of cells ([MATH] 21).

    A record is in one cell and so in one class: columns, sensitivity and least squares are those of
    the inner strategy. The classes are not in a plan: they follow from the workload.

    Attributes:
        classes: of cells.
        inner: what is measured of their counts.
    """

    kind: ClassVar[str] = "cell-classes"
    may_be_part: ClassVar[bool] = False  # its columns are of its classes, those of others of codes

    classes: CellClasses
    inner: ProductStrategy | ResidualStrategy

    def __post_init__(self) -> None:
        if self.inner.shape != (self.classes.count,):
            raise ValueError("a strategy of other classes of cells")
        object.__setattr__(self, "shape", self.classes.shape_of_domain)

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        return tuple(
            WeightedBlock(rows.weight, CellClassBlock(self.classes, rows.block))
            for rows in column_matrices(self.inner.measurements)
        )

    @property
    def spans_its_sets(self) -> bool:
        return False

    def supports(self, block: Block) -> bool:
        try:
            return self.inner.supports(self.classes.by_class(block))
        except UnsupportedWorkloadError:
            return False

    def serves(self, workload: Workload) -> bool:
        """Return whether the inner strategy tells all classes apart, which the workload made."""
        return self.inner.serves(_counts_of(self.classes))

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowSums | None:
        sums = self.inner.power_sums(self.classes.by_class(block), position=None, order=order)
        return None if sums is None else self._by_query(sums, block)

    def covariances(self, pairs: QueryPairs) -> Floats:
        left, right = (
            QueryRows(self.classes.by_class(rows.block), rows.places)
            for rows in (pairs.left, pairs.right)
        )
        return self.inner.covariances(QueryPairs(left, right))

    def coefficient_sums(self, block: Block) -> PowerPair | None:
        pair = self.inner.coefficient_sums(self.classes.by_class(block))
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
        return {"inner": self.inner.encode()}

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        """Return the strategy over the classes of a workload that JSON values hold."""
        try:
            classes = cell_classes(workload, most=MAX_CELL_CLASSES)
        except UnsupportedWorkloadError:
            raise ValueError("classes of cells") from None
        raw = mapping(encoded["inner"])
        inner = SHAPES_OF_CLASSES[text_of(raw["shape"])]
        strategy = inner.decode(raw, text_of(raw["name"]), noise, _counts_of(classes))
        return cls(name, noise, classes, strategy)


def _counts_of(classes: CellClasses) -> Workload:
    """Return the workload of one attribute that asks for the count of every class."""
    shape = (classes.count,)
    return Workload(shape, (marginal(shape, (0,)),), (1.0,))


SHAPES_OF_CLASSES: Mapping[str, type[ProductStrategy] | type[ResidualStrategy]] = {
    shape.kind: shape for shape in (ProductStrategy, ResidualStrategy)
}
"""The shapes that a strategy of classes may have."""
