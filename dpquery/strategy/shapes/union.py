"""Several products side by side, each for a part of the workload (OPT_+)."""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_COEFFICIENT_WORK
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.factors import Factor
from dpquery.strategy.algebra.joint_coefficients import joint_power_sums, joint_power_work
from dpquery.strategy.algebra.joint_system import JointSystem, joint_system
from dpquery.strategy.algebra.row_sums import RowSums, total_of
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.strategies import PowerPair, Strategy
from dpquery.strategy.shapes.weighted_block import WeightedBlock
from dpquery.untrusted.json_values import (
    Json,
    JsonValue,
    integer,
    list_of,
    mapping,
    scaled_integer,
    text_of,
)


@dataclass(frozen=True, eq=False)
class UnionStrategy(Strategy):
    """Product strategies side by side; part k times weights[k] serves the blocks in groups[k]."""

    kind: ClassVar[str] = "union"

    parts: tuple[ProductStrategy, ...]
    weights: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", self.parts[0].shape)

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        return tuple(
            WeightedBlock(weight * part.measurements[0].weight, part.measurements[0].block)
            for weight, part in zip(self.weights, self.parts, strict=True)
        )

    def part_of(self, position: int) -> int:
        """Return which part serves the workload block at a position."""
        return next(k for k, group in enumerate(self.groups) if position in group)

    @cached_property
    def joint(self) -> JointSystem | None:
        """All parts as one system; None where it is too large."""
        factors = [{i: part.factors[i] for i in part.attributes} for part in self.parts]
        return joint_system(self.shape, factors, [rows.weight for rows in self.measurements])

    def joint_for(self, block: Block) -> JointSystem | None:
        """Return the system that answers a block from all parts; None where its part alone does."""
        return self.joint if self.joint and self.joint.can_answer(block) else None

    @property
    def written_factors(self) -> tuple[Factor, ...]:
        return tuple(factor for part in self.parts for factor in part.factors)

    def supports(self, block: Block) -> bool:
        return any(part.supports(block) for part in self.parts)

    def serves(self, workload: Workload) -> bool:
        """Return whether every block is supported by the part that is to serve it."""
        return all(
            self.parts[self.part_of(position)].supports(block)
            for position, block in enumerate(workload.blocks)
        )

    def serving_part(self, block: Block, position: int | None) -> int:
        """Return the part that answers a block alone: of those that can, with the least noise."""
        if position is not None:
            return self.part_of(position)
        totals = {
            k: total_of(part.variances(block, position=None), block) / float(weight) ** 2
            for k, (part, weight) in enumerate(zip(self.parts, self.weights, strict=True))
            if part.supports(block)
        }
        if not totals:
            raise UnsupportedWorkloadError("no part measures all attributes that are asked for")
        return min(totals, key=lambda k: totals[k])

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowSums | None:
        """Return sums of powers of coefficients on the part that serves the block, or on all.

        None for orders above 2 of parts that are solved together.
        """
        joint = self.joint_for(block)
        if joint is not None:
            return joint.variances(block) if order == 2 else None
        k = self.serving_part(block, position)
        terms = self.parts[k].power_sums(block, position=None, order=order)
        if terms is None:
            return None
        return [(coef / self.weights[k] ** order, vectors) for coef, vectors in terms]

    def coefficient_sums(self, block: Block) -> PowerPair | None:
        joint = self.joint_for(block)
        if joint is None or joint_power_work(joint, block) > MAX_COEFFICIENT_WORK:
            return None
        return joint_power_sums(joint, block)

    def encode_parameters(self) -> dict[str, JsonValue]:
        return {
            "parts": [part.encode() for part in self.parts],
            "weights": list(self.weights),
            "groups": [list(group) for group in self.groups],
        }

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        """Return the union that JSON values hold: each block is served by one of its products."""
        parts = []
        for part in map(mapping, list_of(encoded["parts"])):
            if part["shape"] != ProductStrategy.kind:
                raise ValueError("parts")
            parts.append(ProductStrategy.decode(part, text_of(part["name"]), noise, workload))
        weights = tuple(scaled_integer(weight) for weight in list_of(encoded["weights"]))
        groups = tuple(
            tuple(integer(position, 0) for position in list_of(group, 1))
            for group in list_of(encoded["groups"])
        )
        if not len(parts) == len(weights) == len(groups) > 0:
            raise ValueError("parts")
        positions = sorted(position for group in groups for position in group)
        if positions != list(range(len(workload.blocks))):
            raise ValueError("groups")
        return cls(name, noise, tuple(parts), weights, groups)
