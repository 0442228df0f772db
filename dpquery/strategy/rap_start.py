"""Where relaxed rows start: near the uniform distribution, each a little off, from a public seed.

Rows that are all alike would stay so, since every row has the same gradient, and be one product of
distributions. How far apart they start matters little for what is measured, but for what is not:
rows far apart explain an answer by few rows that hold it for sure, so that the attributes of a
query come out dependent where nothing has said so. Largest errors of 2-of-4 thresholds on Adult
(T = 4, K = 16, epsilon 1, fractions of n): 0.40 for Gamma(3), 0.25 for Gamma(10), 0.28 for
Gamma(30); marginals hardly tell them apart.
"""

import numpy as np
from numpy.typing import NDArray

from dpquery.plan_file.rap_settings import RapSettings

EVENNESS = 10.0  # the shape of the Gamma weights: their spread is 0.3 of their mean


def start_rows(settings: RapSettings, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the distributions that the rows start with, one row a class: (sum of shape, n')."""
    rng = np.random.default_rng(settings.seed)
    size = (sum(shape), settings.relaxed_rows)
    rows = rng.standard_gamma(EVENNESS, size, dtype=np.float32)
    sums = np.add.reduceat(rows, np.cumsum([0, *shape[:-1]]), axis=0)
    rows /= np.repeat(sums, shape, axis=0)
    return rows
