"""Weighted marginals, of cells (OPT_M) or of factors (OPT_F): all is a sum over subsets."""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block, product
from dpquery.operators.factors import Array, Factor, Identity
from dpquery.strategy.algebra.marginal_algebra import (
    CANCELLATION,
    distinct_or_all,
    polynomial_power,
)
from dpquery.strategy.algebra.subsets import Subset, subsets_of
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.splits import FactorSplit, split_by
from dpquery.strategy.shapes.weighted_block import WeightedBlock

MAX_WIDE = 7  # of one table whose sixth powers are listed: 8^7 terms


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
        """The split of every attribute's queries by its factor."""
        factors = (self.factors.get(i, Identity(n)) for i, n in enumerate(self.shape))
        return tuple(split_by(factor) for factor in factors)

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        """One product of factors a subset."""
        return tuple(
            WeightedBlock(weight, product(self.shape, {i: self.splits[i].factor for i in b}))
            for b, weight in self.weights.items()
        )

    @cached_property
    def squares_above(self) -> dict[tuple[int, ...], float]:
        """sum_{b >= a} weight_b^2 / prod_{i in b} mu_i: A'A's eigenvalues, scaled ([MATH] 7)."""
        return self._sums_above(2, [1 / split.mu for split in self.splits])

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
        sums: dict[tuple[int, ...], float] = {}
        for b, weight in self.weights.items():
            share = float(weight) ** power * math.prod(shares[i] for i in b)
            for a in subsets_of(b):
                sums[a] = sums.get(a, 0.0) + share
        return sums


def inverse_eigenvalue(strategy: MarginalsStrategy, a: Subset) -> float:
    """Return 1 / lambda_a, lambda = squares_above; an error where a is not measured."""
    if a not in strategy.squares_above:
        raise UnsupportedWorkloadError(f"no measured marginal holds the attributes {a}")
    return 1.0 / strategy.squares_above[a]


def even_powers(strategy: MarginalsStrategy, block: Block, order: int) -> Array | None:
    r"""Return sum_r c_r^order of every query of a block; None if it is signed or very wide.

    The order is even; the tensor has one axis an attribute, of length 1 where all rows are equal.

    On the answers of a measured subset b the coefficients of a query over S are
        theta_b prod_{i in S \ b} q_i z_i  kron_{i in b \ S} A_i z_i
            sum_{a <= t} (1 / lambda_a) kron_{i in a} A_i H_i q_i kron_{i in t \ a} A_i z_i q_i z_i,
    a polynomial with one variable an attribute of t = b & S; its power is taken once for each t and
    summed over the b that meet S in t. All t share one array of coefficients, with a last entry on
    the axis of an attribute outside t.
    """
    S = tuple(i for i in block.attributes if strategy.shape[i] > 1)
    if not block.is_product or len(S) > MAX_WIDE:
        return None
    coefficients = np.zeros((order + 2,) * len(S))
    for t, scale in beyond_parts(strategy, S, order).items():
        g = np.zeros((2,) * len(t))
        for a in subsets_of(t):
            g[tuple(int(i in a) for i in t)] = inverse_eigenvalue(strategy, a)
        place = tuple(slice(order + 1) if i in t else order + 1 for i in S)
        coefficients[place] = scale * polynomial_power(g, order)
    total = coefficients
    for i, factor in zip(block.attributes, block.factors, strict=True):
        levels = strategy.splits[i].levels(factor).astype(np.float64) ** order
        if i in S:
            table = np.concatenate([strategy.splits[i].moments(factor, order), levels[None]])
            total = np.tensordot(total, _alike_as_one(table), axes=(0, 0))
        else:
            total = np.multiply.outer(total, distinct_or_all(levels))
    return np.asarray(np.maximum(total, 0.0))


def _alike_as_one(table: Array) -> Array:
    """Return the first column where all are equal but for rounding, else all. (c, m)."""
    spread = np.ptp(table, axis=1) <= CANCELLATION * np.abs(table).max(axis=1)
    return table[:, :1] if spread.all() else table


def beyond_parts(strategy: MarginalsStrategy, S: Subset, order: int) -> dict[Subset, float]:
    r"""Return, for each t <= S, what the b with b & S = t contribute beyond t.

    That is the sum of theta_b^order prod_{i in b \ S} sum_r (A_i z_i)_r^order.
    By inclusion-exclusion over the sets u between t and S, of which every b above u is held; over
    all measured b where those are fewer.
    """
    exactly: dict[Subset, float] = {}
    if len(strategy.weights) < 3 ** len(S):
        for b, weight in strategy.weights.items():
            t = tuple(i for i in b if i in S)
            rest = (strategy.reading_power(i, order) for i in b if i not in S)
            exactly[t] = exactly.get(t, 0.0) + float(weight) ** order * math.prod(rest)
        return exactly
    above = strategy.powers_above(order)
    for t in subsets_of(S):
        left = tuple(i for i in S if i not in t)
        whole = sum(
            (-1) ** len(more) * above.get(tuple(sorted((*t, *more))), 0.0)
            for more in subsets_of(left)
        )
        if whole > CANCELLATION * above.get(t, 0.0):
            exactly[t] = whole / math.prod(strategy.reading_power(i, order) for i in t)
    return exactly
