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

from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.quad_tree import QuadTreeStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.union import UnionStrategy

Strategy = (
    ProductStrategy
    | MarginalsStrategy
    | ResidualStrategy
    | UnionStrategy
    | QuadTreeStrategy
    | DirectStrategy
)
