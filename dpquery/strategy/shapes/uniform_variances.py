r"""Variances of tables whose queries all have the same one: one number a table, all at once.

The marginals of a workload are such tables, by the hundred thousand. Under marginals and under
cores the variance of a query over attributes S is sum_{b <= S} share_b prod_{i in b} v_i
prod_{i in S \ b} u_i^2 ([MATH] 6, 7): where u_i and v_i are one number for all predicates of an
attribute, it is a number for the whole table. In an r-of-k block the u_i^2 of what is counted give
way to the squared difference of the threshold in b.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Factor
from dpquery.operators.thresholds import differences
from dpquery.strategy.algebra.marginal_algebra import distinct_or_all
from dpquery.strategy.algebra.subsets import Below, Subset, outer_products
from dpquery.strategy.shapes.splits import Split

Pair = tuple[float, float]


def uniform_variances(
    splits: Sequence[Split | None], share: Callable[[Subset], float], blocks: Iterable[Block]
) -> dict[int, float]:
    """Return the variance under unit noise of every block, by position, where it is one number.

    Args:
        splits: of each attribute; None for those of one class.
        share: the variance of what is measured of a set of attributes beyond its subsets.
        blocks: which may ask for what is measured alone.
    """
    pairs_of = _Pairs(splits)
    tables_of = {position: pairs_of.of(block) for position, block in enumerate(blocks)}
    uniform = {position: table for position, table in tables_of.items() if table is not None}
    tables = list(uniform.values())
    below, variances = Below([table.attributes for table in tables]), np.zeros(len(tables))
    shares = np.array([share(b) for b in below.subsets])
    for group in below.groups:
        alike = [tables[place] for place in group.positions.tolist()]
        pairs = np.array([table.pairs for table in alike]).reshape(*group.members.shape, 2)
        scales = [t.scale if isinstance(t.scale, float) else 1.0 for t in alike]
        products = outer_products(list(pairs.transpose(1, 0, 2)), np.array(scales))
        for row, table in zip(products, alike, strict=True):
            if not isinstance(table.scale, float):
                row *= table.scale
        variances[group.positions] = (products * shares[group.below]).sum(axis=1)
    return dict(zip(uniform, variances.tolist(), strict=True))


@dataclass(frozen=True)
class _Table:
    """A block's attributes of several classes, (u_i^2, v_i) of each, and a scale of their products.

    The scale is one number, or one for every subset in the order of an outer product; u_i is one
    for what is counted, since the scale holds the differences of the threshold.
    """

    attributes: Subset
    pairs: list[Pair]
    scale: float | Floats


class _Pairs:
    """u and v of each factor, computed once; None where a table has no single variance."""

    def __init__(self, splits: Sequence[Split | None]) -> None:
        self.splits = splits
        self.known: dict[tuple[int, Hashable], Pair | None] = {}

    def of(self, block: Block) -> _Table | None:
        """Return the numbers of a block."""
        inside, values, scale = [], [], 1.0
        single_levels: list[float] = []  # of what is counted on attributes of one class
        split_levels: list[float | None] = []  # of what is counted; None for what must hold
        for i, factor, counted in zip(block.attributes, block.factors, block.counted, strict=True):
            pair, varies = self._pair(i, factor), counted and not block.is_product
            if pair is None:
                return None
            level, variance = pair
            if self.splits[i] is not None:
                inside.append(i)
                split_levels.append(level if varies else None)
                values.append((1.0 if varies else level**2, variance))
            elif varies:
                single_levels.append(level)
            else:
                scale *= level**2
        if block.is_product:
            return _Table(tuple(inside), values, scale)
        spread = _differences(single_levels, split_levels, block.at_least) ** 2
        return _Table(tuple(inside), values, scale * spread)

    def _pair(self, i: int, factor: Factor) -> Pair | None:
        key = (i, factor.key)
        if key not in self.known:
            level, variance = map(distinct_or_all, self._vectors(i, factor))
            single = len(level) == len(variance) == 1
            self.known[key] = (float(level[0]), float(variance[0])) if single else None
        return self.known[key]

    def _vectors(self, i: int, factor: Factor) -> tuple[Floats, Floats]:
        """Return (u, v) of every predicate."""
        split = self.splits[i]
        if split is None:
            return factor.row_sums, np.zeros(1)
        return split.levels(factor), split.variances(factor)


def _differences(
    single_levels: Sequence[float], split_levels: Sequence[float | None], r: int
) -> Floats:
    """Return the differences of a threshold in all subsets of the attributes with a level.

    Returns:
        One number for every subset of the attributes of the second list: (2^w,).
    """
    levels = [level for level in split_levels if level is not None]
    values = differences([*single_levels, *levels], r)[: 1 << len(levels), 0]
    values = values.reshape([1 if level is None else 2 for level in split_levels])
    return np.broadcast_to(values, (2,) * len(split_levels)).ravel()
