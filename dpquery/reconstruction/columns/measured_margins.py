"""What was measured, as rows over the joint cells of some attributes; the rows are never written.

Every measurement is answered from a margin of the joint table. Margins are summed from one another,
the narrow from the least wide, and gradients go back the same way.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Numbers
from dpquery.operators.blocks import Block
from dpquery.operators.cell_classes import CellClassBlock
from dpquery.operators.factors import Dense, Factor, Identity
from dpquery.operators.tensors import Product, kron_apply
from dpquery.strategy.algebra.subsets import Subset


@dataclass(frozen=True, eq=False)
class NoisyRows:
    """Queries, and what noise made of their answers.

    Attributes:
        block: the queries.
        weight: what each is multiplied by, so that all rows have noise of one scale.
        answers: (m,) the noisy answers to the weighted queries.
    """

    block: Block | CellClassBlock
    weight: float
    answers: Floats

    def gram(self, table: Floats) -> Numbers:
        """Return B'B times a table of the block's attributes, B its unweighted queries."""
        if self._grams is None:
            return self.block.adjoint(self.block.apply(table))
        return kron_apply(self._grams, table)

    @cached_property
    def _grams(self) -> list[Product | None] | None:
        """For each attribute the product with the Gram of its factor; None for no product."""
        if not isinstance(self.block, Block) or not self.block.is_product:
            return None
        return [
            None if isinstance(factor, Identity) else _gram_product(factor)
            for factor in self.block.factors
        ]


@dataclass(frozen=True)
class _Margin:
    """A margin of the joint table.

    Attributes:
        attributes: that it keeps.
        wider: the place of the margin that it is summed from; None of the joint table itself.
        axes: of that one which are summed over.
    """

    attributes: Subset
    wider: int | None
    axes: tuple[int, ...]


class MeasuredMargins:
    """Measurements over the joint cells of some attributes, and their noisy answers."""

    def __init__(self, shape: Sequence[int], attributes: Subset, rows: Iterable[NoisyRows]) -> None:
        """Take the measurements.

        Args:
            shape: sizes of all attributes of the domain.
            attributes: of the joint table: all that measurements tell apart.
            rows: all that was measured of them.
        """
        self.attributes = attributes
        self.cells_shape = tuple(shape[i] for i in attributes)
        self._measured: dict[Subset, list[NoisyRows]] = {}
        for each in rows:
            kept = tuple(i for i in each.block.attributes if shape[i] > 1)
            self._measured.setdefault(kept, []).append(each)
        self._margins = _margins(shape, attributes, self._measured)

    @property
    def rows(self) -> int:
        """Number of measured rows."""
        return sum(rows.block.queries for each in self._measured.values() for rows in each)

    def target(self) -> Floats:
        """Return A'y over the joint cells, A the measured rows and y their noisy answers."""
        parts = [
            sum(
                (rows.weight * _over_table(rows) for rows in self._of(margin)),
                start=np.zeros(()),
            )
            for margin in self._margins
        ]
        return self._back(parts)

    def gram(self, cells: Floats) -> Floats:
        """Return A'A times a vector of joint cells."""
        tables: list[Floats] = []
        parts: list[Floats] = []
        for margin in self._margins:
            wider = cells if margin.wider is None else tables[margin.wider]
            table = wider.sum(axis=margin.axes) if margin.axes else wider
            tables.append(table)
            part: Floats = np.zeros(())
            for rows in self._of(margin):
                product = rows.gram(table.reshape(rows.block.table_shape))
                part = part + (rows.weight**2 * product).reshape(table.shape)
            parts.append(part)
        return self._back(parts)

    def _of(self, margin: _Margin) -> list[NoisyRows]:
        return self._measured.get(margin.attributes, [])

    def _back(self, parts: list[Floats]) -> Floats:
        """Return the sum of what stands on each margin, spread over the joint cells."""
        sizes = dict(zip(self.attributes, self.cells_shape, strict=True))
        for place in reversed(range(1, len(parts))):
            margin = self._margins[place]
            if margin.wider is None:
                raise ValueError("a margin that is summed from none")
            part = parts[place].reshape([sizes[i] for i in margin.attributes])
            spread = np.expand_dims(part, margin.axes)
            parts[margin.wider] = parts[margin.wider] + spread
        return np.asarray(np.broadcast_to(parts[0], self.cells_shape))


def _gram_product(factor: Factor) -> Product:
    """Return the product with a factor's Gram, which is formed where the factor is dense."""
    if isinstance(factor, Dense):
        gram = np.asarray(factor.gram(), dtype=np.float64)
        return gram.__matmul__
    return factor.gram_matmat


def _over_table(rows: NoisyRows) -> Floats:
    block = rows.block
    table = block.adjoint(rows.answers.reshape(block.row_shape))
    return np.asarray(table).reshape([size for size in block.table_shape if size > 1])


def _margins(
    shape: Sequence[int], attributes: Subset, measured: Iterable[Subset]
) -> tuple[_Margin, ...]:
    """Return the margins, wide ones first, each with the smallest that it can be summed from."""
    margins = [_Margin(attributes, None, ())]
    widths = {attributes: math.prod(shape[i] for i in attributes)}
    for kept in sorted(set(measured) - {attributes}, key=lambda each: (-len(each), each)):
        wide = min(
            (place for place, each in enumerate(margins) if set(kept) < set(each.attributes)),
            key=lambda place: widths[margins[place].attributes],
        )
        wider = margins[wide].attributes
        axes = tuple(axis for axis, i in enumerate(wider) if i not in kept)
        margins.append(_Margin(kept, wide, axes))
        widths[kept] = math.prod(shape[i] for i in kept)
    return tuple(margins)
