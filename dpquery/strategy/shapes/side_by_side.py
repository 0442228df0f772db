"""Several strategies side by side, each for a part of the workload (OPT_+, and Parts).

Products are solved together where that is small enough. Parts of any other shape answer their own
blocks alone, from what they measured themselves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Self

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_COEFFICIENT_WORK
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.cells import (
    CellClassBlock,
    block_over_classes,
    block_over_codes,
    told_apart,
    workload_over_classes,
)
from dpquery.operators.factors import Factor
from dpquery.strategy.algebra.joint_system import JointSystem, joint_system
from dpquery.strategy.algebra.query_powers import (
    QueryPairs,
    QueryRows,
    RowSums,
    joint_covariances,
    joint_power_sums,
    joint_power_work,
    scaled,
    total_of,
)
from dpquery.strategy.sensitivity import sensitivity
from dpquery.strategy.shapes.marginals import ProductStrategy
from dpquery.strategy.strategy import (
    BITS,
    Noise,
    PowerPair,
    RecordChange,
    Strategy,
    WeightedBlock,
    shape_of_part,
    significant,
)
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
    """Strategies side by side; part k times weights[k] serves the blocks in groups[k].

    A part is a strategy for its own blocks alone, in the order of its group.
    """

    kind: ClassVar[str] = "union"

    parts: tuple[Strategy, ...]
    weights: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", self.parts[0].shape)

    @classmethod
    def of_shares(
        cls,
        name: str,
        parts: Sequence[Strategy],
        shares: Sequence[float],
        groups: tuple[tuple[int, ...], ...],
        change: RecordChange = "enters",
    ) -> Self:
        """Return parts with integer weights that give each its share of the sensitivity."""
        noise = parts[0].noise
        norms = [sensitivity(part.measurements, noise, change) for part in parts]
        lengths = [float(v) if noise == "laplace" else math.sqrt(v) for v in norms]
        weights = tuple(
            significant(share * (1 << BITS) * (max(lengths) / length))
            for share, length in zip(shares, lengths, strict=True)
        )
        return cls(name, noise, tuple(parts), weights, groups)

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        return tuple(
            WeightedBlock(weight * rows.weight, rows.block)
            for weight, part in zip(self.weights, self.parts, strict=True)
            for rows in part.measurements
        )

    @property
    def spans_its_sets(self) -> bool:
        return all(part.spans_its_sets for part in self.parts)

    @cached_property
    def served(self) -> dict[int, tuple[int, int]]:
        """Which part serves the workload block at a position, and its place among that part's."""
        return {
            position: (k, place)
            for k, group in enumerate(self.groups)
            for place, position in enumerate(group)
        }

    @cached_property
    def joint(self) -> JointSystem | None:
        """All parts as one system; None where it is too large, or parts are not all products."""
        products = [part for part in self.parts if isinstance(part, ProductStrategy)]
        if len(products) < len(self.parts):
            return None
        factors = [{i: part.factors[i] for i in part.attributes} for part in products]
        return joint_system(self.shape, factors, [rows.weight for rows in self.measurements])

    def joint_for(self, block: Block) -> JointSystem | None:
        """Return the system that answers a block from all parts; None where its part alone does."""
        return self.joint if self.joint and self.joint.can_answer(block) else None

    @property
    def written_factors(self) -> tuple[Factor, ...]:
        return tuple(factor for part in self.parts for factor in part.written_factors)

    @property
    def listings(self) -> dict[str, tuple[int, int]]:
        total: dict[str, tuple[int, int]] = {}
        for part in self.parts:
            for what, (number, most) in part.listings.items():
                total[what] = (total.get(what, (0, most))[0] + number, most)
        return total

    def supports(self, block: Block) -> bool:
        return any(part.supports(block) for part in self.parts)

    def serves(self, workload: Workload) -> bool:
        """Return whether every part has the answers to the blocks that it is to serve."""
        return all(
            part.serves(workload.select(group))
            for part, group in zip(self.parts, self.groups, strict=True)
        )

    def serving_part(self, block: Block, position: int | None) -> tuple[int, int | None]:
        """Return the part that answers a block alone, and the block's place among that part's.

        A block without a position takes the part with the least noise of those that can.
        """
        if position is not None:
            return self.served[position]
        totals = {
            k: total_of(part.variances(block, position=None), block) / float(weight) ** 2
            for k, (part, weight) in enumerate(zip(self.parts, self.weights, strict=True))
            if part.supports(block)
        }
        if not totals:
            raise UnsupportedWorkloadError("no part measures all attributes that are asked for")
        return min(totals, key=lambda k: totals[k]), None

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowSums | None:
        """Return sums of powers of coefficients on the part that serves the block, or on all.

        None for orders above 2 of parts that are solved together.
        """
        joint = self.joint_for(block)
        if joint is not None:
            return joint.variances(block) if order == 2 else None
        k, place = self.serving_part(block, position)
        sums = self.parts[k].power_sums(block, position=place, order=order)
        return None if sums is None else scaled(sums, 1 / self.weights[k] ** order)

    def covariances(self, pairs: QueryPairs) -> Floats:
        """Return them by the parts that answer; those of two parts say nothing of each other.

        An answer from all parts has with that of any one the covariance that it has with the
        answer from all: no other combination of the measurements varies less.
        """
        joint = self.joint_for(pairs.left.block) or self.joint_for(pairs.right.block)
        if joint is not None:
            return pairs.over_products(partial(joint_covariances, joint))
        k, place = self.serving_part(pairs.left.block, pairs.left.position)
        other, other_place = self.serving_part(pairs.right.block, pairs.right.position)
        if k != other:
            return np.zeros(pairs.shape)
        left = QueryRows(pairs.left.block, pairs.left.places, place)
        right = QueryRows(pairs.right.block, pairs.right.places, other_place)
        return self.parts[k].covariances(QueryPairs(left, right)) / float(self.weights[k]) ** 2

    def fourth_and_sixth(self, block: Block, *, position: int | None) -> PowerPair | None:
        joint = self.joint_for(block)
        if joint is not None:
            if joint_power_work(joint, block) > MAX_COEFFICIENT_WORK:
                return None
            return joint_power_sums(joint, block)
        k, place = self.serving_part(block, position)
        pair = self.parts[k].fourth_and_sixth(block, position=place)
        if pair is None:
            return None
        weight = float(self.weights[k])
        return scaled(pair[0], weight**-4), scaled(pair[1], weight**-6)

    def encode_parameters(self) -> dict[str, JsonValue]:
        return {
            "parts": [part.encode() for part in self.parts],
            "weights": list(self.weights),
            "groups": [list(group) for group in self.groups],
        }

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        """Return the union that JSON values hold: each block is served by one of its parts."""
        weights = tuple(scaled_integer(weight) for weight in list_of(encoded["weights"]))
        groups = tuple(
            tuple(integer(position, 0) for position in list_of(group, 1))
            for group in list_of(encoded["groups"])
        )
        listed = list(map(mapping, list_of(encoded["parts"])))
        if not len(listed) == len(weights) == len(groups) > 0:
            raise ValueError("parts")
        positions = sorted(position for group in groups for position in group)
        if positions != list(range(len(workload.blocks))):
            raise ValueError("groups")
        parts = tuple(
            shape_of_part(text_of(part["shape"])).decode(
                part, text_of(part["name"]), noise, workload.select(group)
            )
            for part, group in zip(listed, groups, strict=True)
        )
        inner = [part.parts for part in parts if isinstance(part, UnionStrategy)]
        if any(isinstance(part, UnionStrategy) for parts_of in inner for part in parts_of):
            raise ValueError("a union in a union in a union")
        return cls(name, noise, parts, weights, groups)


@dataclass(frozen=True, eq=False)
class CoarserStrategy(Strategy):
    """The rows of a strategy over classes, spread over the codes of each class."""

    kind: ClassVar[str] = "coarser"

    # for each attribute the class of every code, numbered by their first codes
    classes: tuple[Ints, ...]
    inner: Strategy  # the strategy over the classes

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
        pairs = zip(block.attributes, block.factors, strict=True)
        if all(self._serves(i, factor) for i, factor in pairs):
            return block_over_classes(block, self.classes)
        return None

    def _serves(self, i: int, factor: Factor) -> bool:
        """Return whether a factor tells no codes of one class apart; the same one is asked for."""
        if (i, factor) not in self._served:
            codes = self.classes[i]
            apart = told_apart([factor], len(codes))
            _, first = np.unique(codes, return_index=True)
            self._served[i, factor] = np.array_equal(apart[first][codes], apart)
        return self._served[i, factor]

    @cached_property
    def _served(self) -> dict[tuple[int, Factor], bool]:
        return {}

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
            None if bool(np.array_equal(codes, np.arange(len(codes)))) else list(codes.tolist())
            for codes in self.classes
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
