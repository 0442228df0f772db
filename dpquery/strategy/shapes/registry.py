"""The shapes of strategies, by the name that a plan calls them.

- product: kron_i A_i over the attributes with more than one class (OPT_x, Identity)
- marginals: weighted marginals, of cells (OPT_M) or of factors (OPT_F)
- residual: cores and totals of attribute subsets (OPT_R)
- union: several products, each for a part of the workload (OPT_+)
- quad-tree: blocks of two attributes at several sizes
- workload: the workload's own queries (the plain Laplace or Gaussian mechanism)
"""

from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy
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
    )
}
