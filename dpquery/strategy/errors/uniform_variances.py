r"""Variances of tables whose queries all have the same one: one number a table, all at once.

The marginals of a workload are such tables, by the hundred thousand. Under marginals and under
cores the variance of a query over attributes S is sum_{b <= S} share_b prod_{i in b} v_i
prod_{i in S \ b} u_i^2 ([MATH] 6, 7): where u_i and v_i are one number for all predicates of an
attribute, it is a number for the whole table. In an r-of-k block the u_i^2 of what is counted give
way to the squared difference of the threshold in b.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.operators.blocks import Block
from dpquery.operators.factors import Array, Factor
from dpquery.operators.thresholds import differences
from dpquery.strategy.algebra.marginal_algebra import distinct_or_all
from dpquery.strategy.algebra.subsets import Below, Subset, outer_products
from dpquery.strategy.shapes.marginals import MarginalsStrategy, inverse_eigenvalue
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.splits import Split
from dpquery.strategy.shapes.strategies import Strategy

Pair = tuple[float, float]


def uniform_variances(strategy: Strategy, blocks: Iterable[Block]) -> dict[int, float]:
    """Return the variance under unit noise of every block, by position, where it is one number.

    Raises:
        UnsupportedWorkloadError: such a block asks for what is not measured.
    """
    if not isinstance(strategy, MarginalsStrategy | ResidualStrategy):
        return {}
    known = _Pairs(strategy)
    tables_of = {position: known.of(block) for position, block in enumerate(blocks)}
    found = {position: own for position, own in tables_of.items() if own is not None}
    sets = [own.attributes for own in found.values()]
    below, out = Below(sets), np.zeros(len(sets))
    shares = np.array([_share(strategy, b) for b in below.subsets])
    tables = list(found.values())
    for group in below.groups:
        own = [tables[place] for place in group.positions.tolist()]
        pairs = np.array([table.pairs for table in own]).reshape(*group.members.shape, 2)
        scales = [t.scale if isinstance(t.scale, float) else 1.0 for t in own]
        products = outer_products(list(pairs.transpose(1, 0, 2)), np.array(scales))
        for row, table in zip(products, own, strict=True):
            if not isinstance(table.scale, float):
                row *= table.scale
        out[group.positions] = (products * shares[group.below]).sum(axis=1)
    return dict(zip(found, out.tolist(), strict=True))


def _share(strategy: MarginalsStrategy | ResidualStrategy, b: Subset) -> float:
    if isinstance(strategy, ResidualStrategy):
        return strategy.variance_of(b)
    return inverse_eigenvalue(strategy, b)


@dataclass(frozen=True)
class _Table:
    """A block's attributes of several classes, (u_i^2, v_i) of each, and a scale of their products.

    The scale is one number, or one for every subset in the order of an outer product; u_i is one
    for what is counted, since the scale holds the differences of the threshold.
    """

    attributes: Subset
    pairs: list[Pair]
    scale: float | Array


class _Pairs:
    """u and v of each factor, computed once; None where a table has no single variance."""

    def __init__(self, strategy: MarginalsStrategy | ResidualStrategy) -> None:
        own: Sequence[Split | None]
        own = strategy.cores if isinstance(strategy, ResidualStrategy) else strategy.splits
        self.splits = [None if n == 1 else one for n, one in zip(strategy.shape, own, strict=True)]
        self.known: dict[tuple[int, Hashable], Pair | None] = {}

    def of(self, block: Block) -> _Table | None:
        """Return the numbers of a block."""
        inside, values, scale = [], [], 1.0
        alone: list[float] = []  # levels of what is counted on attributes of one class
        held: list[float | None] = []  # levels of what is counted; None for what must hold
        for i, factor, own in zip(block.attributes, block.factors, block.counted, strict=True):
            pair, counted = self._pair(i, factor), own and not block.is_product
            if pair is None:
                return None
            level, variance = pair
            if self.splits[i] is not None:
                inside.append(i)
                held.append(level if counted else None)
                values.append((1.0 if counted else level**2, variance))
            elif counted:
                alone.append(level)
            else:
                scale *= level**2
        spread = 1.0 if block.is_product else _differences(alone, held, block.at_least) ** 2
        return _Table(tuple(inside), values, scale * spread)

    def _pair(self, i: int, factor: Factor) -> Pair | None:
        key = (i, factor.key)
        if key not in self.known:
            level, variance = map(distinct_or_all, self._vectors(i, factor))
            single = len(level) == len(variance) == 1
            self.known[key] = (float(level[0]), float(variance[0])) if single else None
        return self.known[key]

    def _vectors(self, i: int, factor: Factor) -> tuple[Array, Array]:
        """Return (u, v) of every predicate."""
        own = self.splits[i]
        if own is None:
            return factor.row_sums, np.zeros(1)
        return own.levels(factor), own.variances(factor)


def _differences(alone: list[float], held: Sequence[float | None], r: int) -> Array:
    """Return the differences of a threshold in all subsets of the attributes with a level.

    Returns:
        One number for every subset of all attributes held: (2^w,).
    """
    levels = [own for own in held if own is not None]
    values = differences([*alone, *levels], r)[: 1 << len(levels), 0]
    values = values.reshape([1 if own is None else 2 for own in held])
    return np.broadcast_to(values, (2,) * len(held)).ravel()
