"""A Kronecker product of one integer factor for each attribute (OPT_x, Identity)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from dpquery.operators.blocks import Block, product
from dpquery.operators.factors import Array, Factor, Identity, Ones
from dpquery.operators.inverses import Inverse, inverse_array, inverse_gram, least_squares
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.weighted_block import WeightedBlock, resolution


@dataclass(frozen=True, eq=False)
class ProductStrategy:
    """kron_i A_i, one integer factor for each attribute: of full column rank, or the total."""

    name: str
    noise: Noise
    factors: tuple[Factor, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the domain's attributes."""
        return tuple(factor.shape[1] for factor in self.factors)

    @cached_property
    def attributes(self) -> tuple[int, ...]:
        """Attributes that are measured; the others have one class or are summed over."""
        return tuple(
            i
            for i, factor in enumerate(self.factors)
            if factor.shape[1] > 1 and not isinstance(factor, Ones)
        )

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        """The one product, scaled up where its entries are small."""
        factors = {i: self.factors[i] for i in self.attributes}
        entry = math.prod(factor.max_abs() for factor in factors.values())
        return (WeightedBlock(resolution(entry), product(self.shape, factors)),)

    @cached_property
    def inverses(self) -> dict[int, Inverse]:
        """(A_i'A_i)^-1 of every measured attribute whose factor is not the identity."""
        return {
            i: inverse_gram(self.factors[i])
            for i in self.attributes
            if not isinstance(self.factors[i], Identity)
        }

    def recover(self, i: int, answers: Array) -> Array:
        """Return A_i^+ times answers. answers: (m_i, k) -> (n_i, k)."""
        if i not in self.inverses:
            return answers
        return self._solvers[i](answers)

    @cached_property
    def _solvers(self) -> dict[int, Callable[[Array], Array]]:
        return {i: least_squares(self.factors[i]) for i in self.inverses}

    @cached_property
    def pseudo_inverses(self) -> dict[int, Array]:
        """A_i^+ of the same attributes, written out: (n_i, m_i)."""
        return {i: self.factors[i].matmat(inverse_array(M)).T for i, M in self.inverses.items()}

    def supports(self, block: Block) -> bool:
        """Return whether the block looks at measured attributes and single classes alone."""
        return all(i in self.attributes or self.shape[i] == 1 for i in block.attributes)
