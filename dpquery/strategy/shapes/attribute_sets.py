"""The sets of attributes that a block looks at, and those that a strategy measures together."""

from collections.abc import Iterable

from dpquery.operators.blocks import Block
from dpquery.operators.cell_classes import CellClassBlock
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.shapes.strategies import Strategy


def wide_attributes(block: Block | CellClassBlock) -> Subset:
    """Return the attributes of more than one class that a block looks at."""
    return tuple(i for i in block.attributes if block.shape_of_domain[i] > 1)


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
