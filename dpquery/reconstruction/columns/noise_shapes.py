"""The shape of noise along one attribute: which contrasts of its codes are measured well.

Where ranges, prefixes or groups are asked of an attribute, its noise is small just for these. The
covariance of its single values, less that of their mean, says how noise lies along its codes; that
of a component over several attributes is the product of theirs, times one variance ([MATH] 16:
exactly so where the strategy splits, else as the single attributes show it).
"""

from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats
from dpquery.operators.blocks import marginal
from dpquery.reconstruction.columns.nearest_counts import nearest_counts
from dpquery.strategy.algebra.query_pairs import QueryPairs, QueryRows
from dpquery.strategy.shapes.strategies import Strategy

SHAPED = 1024  # classes of an attribute whose noise is decomposed: it takes O(n^3)
LEAST_VARIANCE = 1e-9  # of the mean one of an attribute's contrasts
PRECISE = 1e-6  # squared counts


@dataclass(frozen=True, eq=False)
class NoiseShape:
    """The noise along one attribute of n codes, in a basis where it is independent.

    Attributes:
        basis: (n, n) orthonormal columns, the first of which is the mean's.
        precision: (n,) of each of them but the mean, in units of one over their mean variance.
        variance: that mean, under unit noise on every measured row.
    """

    basis: Floats
    precision: Floats
    variance: float

    def nearest(self, counts: Floats, total: float) -> Floats:
        """Return the counts of the codes nearest to estimates, none negative and of a total."""

        def gram(values: Floats) -> Floats:
            return np.asarray(self.basis @ (self.precision * (values @ self.basis)))

        return nearest_counts(gram, gram(counts), counts, total=total, tolerance=PRECISE)


def noise_shape(strategy: Strategy, attribute: int) -> NoiseShape:
    """Return the shape of the noise along one attribute, whose single values are supported."""
    n = strategy.shape[attribute]
    codes, block = np.arange(n), marginal(strategy.shape, (attribute,))
    pairs = QueryPairs(QueryRows(block, codes[:, None]), QueryRows(block, codes[None, :]))
    covariance = np.asarray(strategy.covariances(pairs), dtype=np.float64)
    centred = covariance - covariance.mean(axis=0) - covariance.mean(axis=1, keepdims=True)
    centred += covariance.mean()
    # The mean is an eigenvector for 0: moved below all others, it comes first.
    scale = float(np.trace(centred)) / (n - 1)
    shifted = (centred + centred.T) / (2 * scale) - np.full((n, n), 1 / n)
    variance, basis = np.linalg.eigh(shifted)
    variance[0] = 1.0
    return NoiseShape(basis, 1 / np.maximum(variance, LEAST_VARIANCE), scale)
