"""Eigenvalues of Grams, cleaned of rounding."""

import numpy as np

from dpquery.operators.factors import Array


def above_rounding(eigenvalues: Array) -> Array:
    """Set to zero what may be rounding alone: the root of 1e-16 would add 1e-8 to a lower bound."""
    least = len(eigenvalues) * np.finfo(float).eps * np.max(eigenvalues, initial=0.0)
    return np.where(eigenvalues > least, eigenvalues, 0.0)
