r"""Variances of tables whose queries all have the same one: one number a table, all at once.

The marginals of a workload are such tables, by the hundred thousand. Under marginals and under
cores the variance of a query over attributes S is sum_{b <= S} share_b prod_{i in b} v_i
prod_{i in S \ b} u_i^2 ([MATH] 6, 7): where u_i and v_i are one number for all predicates of an
attribute, it is a number for the whole table.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.operators.blocks import Block
from dpquery.operators.factors import Array, Factor
from dpquery.strategy.lattice import Below, Subset, outer_products
from dpquery.strategy.marginal_algebra import distinct_or_all, inverse_eigenvalue
from dpquery.strategy.splits import Split
from dpquery.strategy.strategies import MarginalsStrategy, ResidualStrategy, Strategy

Pair = tuple[float, float]


def uniform_variances(strategy: Strategy, blocks: Iterable[Block]) -> dict[int, float]:
    """Return the variance under unit noise of every block, by position, where it is one number.

    Raises:
        UnsupportedWorkloadError: such a block asks for what is not measured.
    """
    if not isinstance(strategy, MarginalsStrategy | ResidualStrategy):
        return {}
    known = _Pairs(strategy)
    numbers = {position: known.of(block) for position, block in enumerate(blocks)}
    found = {position: own for position, own in numbers.items() if own is not None}
    sets = [own.attributes for own in found.values()]
    below, out = Below(sets), np.zeros(len(sets))
    shares = np.array([_share(strategy, b) for b in below.subsets])
    tables = list(found.values())
    for group in below.groups:
        own = [tables[place] for place in group.positions.tolist()]
        pairs = np.array([table.pairs for table in own]).reshape(*group.members.shape, 2)
        scales = np.array([table.scale for table in own])
        products = outer_products(list(pairs.transpose(1, 0, 2)), scales)
        out[group.positions] = (products * shares[group.below]).sum(axis=1)
    return dict(zip(found, out.tolist(), strict=True))


def _share(strategy: MarginalsStrategy | ResidualStrategy, b: Subset) -> float:
    if isinstance(strategy, ResidualStrategy):
        return strategy.variance_of(b)
    return inverse_eigenvalue(strategy, b)


@dataclass(frozen=True)
class _Table:
    """A block's attributes of several classes, (u_i^2, v_i) of each, and what the others scale."""

    attributes: Subset
    pairs: list[Pair]
    scale: float


class _Pairs:
    """The two numbers of each factor, computed once; None where a table has no single variance."""

    def __init__(self, strategy: MarginalsStrategy | ResidualStrategy) -> None:
        own: Sequence[Split | None]
        own = strategy.cores if isinstance(strategy, ResidualStrategy) else strategy.splits
        self.splits = [None if n == 1 else one for n, one in zip(strategy.shape, own, strict=True)]
        self.known: dict[tuple[int, Hashable], Pair | None] = {}

    def of(self, block: Block) -> _Table | None:
        """Return the numbers of a block."""
        if not block.is_product:
            return None
        inside, values, scale = [], [], 1.0
        for i, factor in zip(block.attributes, block.factors, strict=True):
            pair = self._pair(i, factor)
            if pair is None:
                return None
            if self.splits[i] is not None:
                inside.append(i)
                values.append(pair)
            else:
                scale *= pair[0]
        return _Table(tuple(inside), values, scale)

    def _pair(self, i: int, factor: Factor) -> Pair | None:
        key = (i, factor.key)
        if key not in self.known:
            level, variance = map(distinct_or_all, self._vectors(i, factor))
            single = len(level) == len(variance) == 1
            self.known[key] = (float(level[0]) ** 2, float(variance[0])) if single else None
        return self.known[key]

    def _vectors(self, i: int, factor: Factor) -> tuple[Array, Array]:
        """Return (u, v) of every predicate."""
        own = self.splits[i]
        if own is None:
            return factor.row_sums, np.zeros(1)
        return own.levels(factor), own.variances(factor)
