"""Blocks of the cells of two attributes at several sizes."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from dpquery.operators.blocks import product
from dpquery.operators.hierarchies import equal_blocks
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.weighted_block import WeightedBlock


@dataclass(frozen=True)
class Level:
    """One level of a quad-tree: the sizes of its blocks on both attributes, and its weight."""

    sizes: tuple[int, int]
    weight: int


@dataclass(frozen=True, eq=False)
class QuadTreeStrategy:
    """Blocks of the cells of two attributes, level by level from single cells to larger blocks.

    All blocks of a level have one size, a multiple of that below, so that the projectors C_l onto
    what is constant on the blocks of level l are nested, and with S_l the cells of a block
        A'A = sum_l weight_l^2 S_l C_l,  (A'A)^-1 = sum_l shares[l] C_l.

    Attributes:
        name: of the candidate.
        noise: what is added.
        shape: sizes of the domain's attributes.
        pair: the two attributes; all others have one class or are summed over.
        levels: the levels, finest first.
    """

    name: str
    noise: Noise
    shape: tuple[int, ...]
    pair: tuple[int, int]
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        first, second = self.pair
        if not 0 <= first < second < len(self.shape):
            raise ValueError(f"not two attributes: {self.pair}")
        if not self.levels or self.levels[0].sizes != (1, 1):
            raise ValueError("the finest level of a quad-tree holds single cells")
        tops = (*(level.sizes for level in self.levels), (self.shape[first], self.shape[second]))
        for below, above in pairwise(tops):
            if any(size % part for part, size in zip(below, above, strict=True)):
                raise ValueError(f"blocks of {above} codes are not made of blocks of {below}")

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        """One product of two sets of blocks a level."""
        measurements = []
        for level in self.levels:
            pairs = zip(self.pair, level.sizes, strict=True)
            blocks = {i: equal_blocks(self.shape[i], size) for i, size in pairs}
            measurements.append(WeightedBlock(level.weight, product(self.shape, blocks)))
        return tuple(measurements)

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """1 / kappa_l - 1 / kappa_{l-1}, kappa_l = sum_{k <= l} weight_k^2 S_k."""
        squares = [float(level.weight) ** 2 * math.prod(level.sizes) for level in self.levels]
        inverses = [1 / kappa for kappa in accumulate(squares)]
        return (inverses[0], *(above - below for below, above in pairwise(inverses)))
