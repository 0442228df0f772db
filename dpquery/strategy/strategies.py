"""Strategies as measured: integer query matrices whose answers get independent noise of one scale.

Six shapes, each with its own closed forms for error and reconstruction:
  ProductStrategy    kron_i A_i over the attributes with more than one class (OPT_x, Identity)
  MarginalsStrategy  weighted marginals, of cells (OPT_M) or of factors (OPT_F)
  ResidualStrategy   cores and totals of attribute subsets (OPT_R)
  UnionStrategy      several products, each for a part of the workload (OPT_+)
  QuadTreeStrategy   blocks of two attributes at several sizes
  DirectStrategy     the workload's own queries (the plain Laplace or Gaussian mechanism)
A strategy is a list of measurements, integer weight times integer block; its sensitivity is exact.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block, Workload, product
from dpquery.operators.factors import Array, Dense, Factor, Identity, Ones, PIdentity
from dpquery.operators.hierarchies import equal_blocks
from dpquery.operators.inverses import Inverse, array_of, inverse_gram, inverse_times
from dpquery.strategy.cores import Core
from dpquery.strategy.joint import JointSystem, joint_system
from dpquery.strategy.lattice import subsets_of
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.splits import FactorSplit, split_by

BITS = 16  # of an integerised real factor: rounding moves the loss by about 2^-BITS
RESOLUTION = 16  # least bits of a strategy's largest entry: keeps the noise fine-grained


@dataclass(frozen=True, eq=False)
class Measurement:
    """The integer queries weight * block, answered from the marginal over block.attributes."""

    weight: int
    block: Block


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
    def measurements(self) -> tuple[Measurement, ...]:
        """The one product, scaled up where its entries are small."""
        factors = {i: self.factors[i] for i in self.attributes}
        entry = math.prod(factor.max_abs() for factor in factors.values())
        return (Measurement(resolution(entry), product(self.shape, factors)),)

    @cached_property
    def inverses(self) -> dict[int, Inverse]:
        """(A_i'A_i)^-1 of every measured attribute whose factor is not the identity."""
        return {
            i: inverse_gram(self.factors[i])
            for i in self.attributes
            if not isinstance(self.factors[i], Identity)
        }

    def recover(self, i: int, answers: Array) -> Array:
        """Return A_i^+ = (A_i'A_i)^-1 A_i' times answers. answers: (m_i, k) -> (n_i, k)."""
        if i not in self.inverses:
            return answers
        return inverse_times(self.inverses[i], self.factors[i].rmatmat(answers))

    @cached_property
    def pseudo_inverses(self) -> dict[int, Array]:
        """A_i^+ of the same attributes, written out: (n_i, m_i)."""
        return {i: self.factors[i].matmat(array_of(M)).T for i, M in self.inverses.items()}

    def supports(self, block: Block) -> bool:
        """Return whether the block looks at measured attributes and single classes alone."""
        return all(i in self.attributes or self.shape[i] == 1 for i in block.attributes)


@dataclass(frozen=True, eq=False)
class MarginalsStrategy:
    """kron_{i in b} A_i on the marginal over b, times a positive integer weight, for subsets b.

    Attributes:
        name: of the candidate.
        noise: what is added.
        shape: sizes of the domain's attributes.
        weights: subset b -> weight.
        factors: the integer factors A_i, of full column rank; attributes without one are measured
            cell by cell, A_i = I, which gives the plain marginals.
    """

    name: str
    noise: Noise
    shape: tuple[int, ...]
    weights: dict[tuple[int, ...], int]
    factors: dict[int, Factor] = field(default_factory=dict)

    @cached_property
    def splits(self) -> tuple[FactorSplit, ...]:
        """What the factor of every attribute makes of its queries."""
        own = (self.factors.get(i, Identity(n)) for i, n in enumerate(self.shape))
        return tuple(split_by(factor) for factor in own)

    @cached_property
    def measurements(self) -> tuple[Measurement, ...]:
        """One product of factors a subset."""
        return tuple(
            Measurement(weight, product(self.shape, {i: self.splits[i].factor for i in b}))
            for b, weight in self.weights.items()
        )

    @cached_property
    def squares_above(self) -> dict[tuple[int, ...], float]:
        """sum_{b >= a} weight_b^2 / prod_{i in b} mu_i: A'A's eigenvalues, scaled ([MATH] 7)."""
        return self._sums_above(2, [1 / own.mu for own in self.splits])

    def powers_above(self, order: int) -> dict[tuple[int, ...], float]:
        """Return sum_{b >= a} weight_b^order prod_{i in b} sum_r (A_i z_i)_r^order for every a."""
        if order not in self._powers_above:
            shares = [self.reading_power(i, order) for i in range(len(self.shape))]
            self._powers_above[order] = self._sums_above(order, shares)
        return self._powers_above[order]

    @cached_property
    def _powers_above(self) -> dict[int, dict[tuple[int, ...], float]]:
        return {}

    def reading_power(self, i: int, order: int) -> float:
        """Return sum_r (A_i z_i)_r^order of an attribute."""
        return float((self.splits[i].reading ** order).sum())

    def _sums_above(self, power: int, shares: list[float]) -> dict[tuple[int, ...], float]:
        """Sum over the measured b above every a that lies below one. O(sum_b 2^|b|)."""
        found: dict[tuple[int, ...], float] = {}
        for b, weight in self.weights.items():
            share = float(weight) ** power * math.prod(shares[i] for i in b)
            for a in subsets_of(b):
                found[a] = found.get(a, 0.0) + share
        return found


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
    def measurements(self) -> tuple[Measurement, ...]:
        """One product of cores a subset."""
        return tuple(
            Measurement(weight, product(self.shape, {i: self.core(i).factor for i in b}))
            for b, weight in self.weights.items()
        )


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
    def measurements(self) -> tuple[Measurement, ...]:
        """One product a part."""
        return tuple(
            Measurement(weight * part.measurements[0].weight, part.measurements[0].block)
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
        """Return what answers a block from all parts together; None: its own part answers it."""
        return self.joint if self.joint and self.joint.can_answer(block) else None


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
        tops = (*(own.sizes for own in self.levels), (self.shape[first], self.shape[second]))
        for below, above in pairwise(tops):
            if any(size % part for part, size in zip(below, above, strict=True)):
                raise ValueError(f"blocks of {above} codes are not made of blocks of {below}")

    @cached_property
    def measurements(self) -> tuple[Measurement, ...]:
        """One product of two sets of blocks a level."""
        found = []
        for own in self.levels:
            pairs = zip(self.pair, own.sizes, strict=True)
            blocks = {i: equal_blocks(self.shape[i], size) for i, size in pairs}
            found.append(Measurement(own.weight, product(self.shape, blocks)))
        return tuple(found)

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """1 / kappa_l - 1 / kappa_{l-1}, kappa_l = sum_{k <= l} weight_k^2 S_k."""
        squares = [float(own.weight) ** 2 * math.prod(own.sizes) for own in self.levels]
        inverses = [1 / kappa for kappa in accumulate(squares)]
        return (inverses[0], *(above - below for below, above in pairwise(inverses)))


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
    def measurements(self) -> tuple[Measurement, ...]:
        """One measurement a workload block."""
        pairs = zip(self.weights, self.workload.blocks, strict=True)
        return tuple(Measurement(weight, block) for weight, block in pairs)


Strategy = (
    ProductStrategy
    | MarginalsStrategy
    | ResidualStrategy
    | UnionStrategy
    | QuadTreeStrategy
    | DirectStrategy
)


def resolution(entry: int) -> int:
    """Return the power of two that lifts a largest entry to RESOLUTION bits."""
    return 1 << max(0, RESOLUTION + 1 - entry.bit_length())


def significant(weight: float, bits: int = BITS) -> int:
    """Round a positive weight to so many significant bits: an integer, times a power of two.

    >>> significant(3.0e9), significant(0.2)
    (3000008704, 1)
    """
    spare = max(0, math.frexp(weight)[1] - bits - 1)
    return max(1, round(math.ldexp(weight, -spare))) << spare


def integer_factor(factor: Factor, *, noise: Noise, bits: int = BITS) -> Factor:
    """Round a real factor to a grid of 2^-bits and return it times 2^bits, in integers.

    Under Laplace noise the diagonal of a p-Identity takes up the rounding of its rows, so every
    column keeps L1 norm 2^bits and the sensitivity does not grow (by more than p / 2^bits where
    the diagonal all but vanishes).
    """
    if np.issubdtype(factor.dtype, np.integer):
        return factor
    if isinstance(factor, PIdentity) and noise == "laplace":
        rows = np.rint(factor.rows * (1 << bits)).astype(np.int64)
        diagonal = np.maximum((1 << bits) - rows.sum(axis=0), 1)  # 0 would lose a column
        return PIdentity(diagonal, rows)
    return Dense(np.rint(factor.dense() * (1 << bits)).astype(np.int64))
