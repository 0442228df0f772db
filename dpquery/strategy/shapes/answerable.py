"""Which queries the measurements of a strategy can answer: those in the span of its rows.

A measured factor has full column rank, so that a part which measures the attributes A spans every
function of A, and no more. A query that depends on each attribute of a set S together is in the
span of several such parts where one of them measures all of S, and nowhere else: what it holds
beyond the subsets of S is orthogonal to every function of fewer attributes.
"""

from collections.abc import Iterable
from typing import assert_never

from dpquery.operators.blocks import Block
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.quad_tree import QuadTreeStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.row_space import combination
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.strategy.shapes.union import UnionStrategy


def wide_attributes(block: Block) -> Subset:
    """Return the attributes of more than one class that a block looks at."""
    return tuple(i for i in block.attributes if block.shape_of_domain[i] > 1)


def supports(strategy: Strategy, block: Block) -> bool:
    """Return whether every query of a block is a combination of the measured rows.

    For the workload's own queries: of the rows of one of its blocks.
    """
    S = wide_attributes(block)
    match strategy:
        case ProductStrategy():
            return strategy.supports(block)
        case UnionStrategy():
            return any(part.supports(block) for part in strategy.parts)
        case MarginalsStrategy(squares_above=squares):
            return S in squares
        case ResidualStrategy(weights=measured):
            return S in measured
        case QuadTreeStrategy(pair=pair):
            return set(S) <= set(pair)
        case DirectStrategy():
            return combination(strategy, block) is not None
    assert_never(strategy)


def measured_sets(strategy: Strategy) -> tuple[Subset, ...]:
    """Return the sets of attributes that are measured together, none within another."""
    sets = {wide_attributes(measurement.block) for measurement in strategy.measurements}
    return tuple(sorted(_largest(sets), key=lambda attributes: (len(attributes), attributes)))


def _largest(sets: Iterable[Subset]) -> list[Subset]:
    largest: list[Subset] = []
    above: dict[int, list[set[int]]] = {}
    for attributes in sorted(sets, key=len, reverse=True):
        larger = above.get(attributes[0], []) if attributes else list(map(set, largest[:1]))
        if not any(set(attributes) <= other for other in larger):
            largest.append(attributes)
            for i in attributes:
                above.setdefault(i, []).append(set(attributes))
    return largest
