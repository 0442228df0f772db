"""The workload's own queries (the plain Laplace or Gaussian mechanism)."""

from dataclasses import dataclass
from functools import cached_property

from dpquery.operators.blocks import Workload
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.weighted_block import WeightedBlock


@dataclass(frozen=True, eq=False)
class DirectStrategy:
    """The workload's own queries, block j times the integer weights[j]."""

    name: str
    noise: Noise
    workload: Workload
    weights: tuple[int, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the domain's attributes."""
        return self.workload.shape_of_domain

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        """One measurement a workload block."""
        pairs = zip(self.weights, self.workload.blocks, strict=True)
        return tuple(WeightedBlock(weight, block) for weight, block in pairs)
