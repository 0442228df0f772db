"""The shapes of strategies, by the name that a plan calls them."""

from dpquery.strategy.shapes.cell_classes import CellClassesStrategy
from dpquery.strategy.shapes.coarser import CoarserStrategy
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.shapes.orbits import OrbitsStrategy
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.quad_tree import QuadTreeStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.strategy.shapes.union import UnionStrategy

SHAPES: dict[str, type[Strategy]] = {
    shape.kind: shape
    for shape in (
        ProductStrategy,
        MarginalsStrategy,
        ResidualStrategy,
        UnionStrategy,
        QuadTreeStrategy,
        DirectStrategy,
        CellClassesStrategy,
        CoarserStrategy,
        OrbitsStrategy,
    )
}
