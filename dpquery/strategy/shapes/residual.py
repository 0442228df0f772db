"""Cores and totals of attribute subsets (OPT_R): nothing is measured twice."""

from dataclasses import dataclass
from functools import cached_property

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import product
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.cores import Core
from dpquery.strategy.shapes.weighted_block import WeightedBlock


@dataclass(frozen=True, eq=False)
class ResidualStrategy:
    """kron_{i in b} F_i on the marginal over b, times an integer weight, for subsets b.

    With every b it holds every subset of b, so that nothing is measured twice and all is in closed
    form ([MATH] 6). Attributes of one class have no core.
    """

    name: str
    noise: Noise
    cores: tuple[Core | None, ...]
    weights: dict[tuple[int, ...], int]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the domain's attributes."""
        return tuple(1 if core is None else core.factor.shape[1] for core in self.cores)

    def core(self, i: int) -> Core:
        """Return the core of an attribute with more than one class."""
        core = self.cores[i]
        if core is None:
            raise ValueError(f"attribute {i} has one class and no core")
        return core

    def variance_of(self, b: tuple[int, ...]) -> float:
        """Return the variance of a subset's block under unit noise; an error where unmeasured."""
        if b not in self.weights:
            raise UnsupportedWorkloadError(f"no measurement holds the attributes {b}")
        return float(self.weights[b]) ** -2

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        """One product of cores a subset."""
        return tuple(
            WeightedBlock(weight, product(self.shape, {i: self.core(i).factor for i in b}))
            for b, weight in self.weights.items()
        )
