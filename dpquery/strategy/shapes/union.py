"""Several products side by side, each for a part of the workload (OPT_+)."""

from dataclasses import dataclass
from functools import cached_property

from dpquery.operators.blocks import Block
from dpquery.strategy.algebra.joint_system import JointSystem, joint_system
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.weighted_block import WeightedBlock


@dataclass(frozen=True, eq=False)
class UnionStrategy:
    """Product strategies side by side; part k times weights[k] serves the blocks in groups[k]."""

    name: str
    noise: Noise
    parts: tuple[ProductStrategy, ...]
    weights: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the domain's attributes."""
        return self.parts[0].shape

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        """One product a part."""
        return tuple(
            WeightedBlock(weight * part.measurements[0].weight, part.measurements[0].block)
            for weight, part in zip(self.weights, self.parts, strict=True)
        )

    def part_of(self, position: int) -> int:
        """Return which part serves the workload block at a position."""
        return next(k for k, group in enumerate(self.groups) if position in group)

    @cached_property
    def joint(self) -> JointSystem | None:
        """All parts as one system, where it can be held."""
        factors = [{i: part.factors[i] for i in part.attributes} for part in self.parts]
        return joint_system(self.shape, factors, [rows.weight for rows in self.measurements])

    def joint_for(self, block: Block) -> JointSystem | None:
        """Return the system that answers a block from all parts; None where its part alone does."""
        return self.joint if self.joint and self.joint.can_answer(block) else None
