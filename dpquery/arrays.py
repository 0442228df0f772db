"""The types of arrays, by what their entries are, and numbers for equal ones."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
Bits = NDArray[np.unsignedinteger]
Bools = NDArray[np.bool_]
Numbers = NDArray[Any]
"""Floats or integers, Python's among them: of what serves all, and gives back what it was given."""


def numbered_by_first(values: Numbers) -> Ints:
    """Return the number of every value, or row of values: equal ones alike, by first appearance.

    >>> numbered_by_first(np.array([7, 7, 3, 7, 5])).tolist()
    [0, 0, 1, 0, 2]
    """
    _, first, inverse = np.unique(values, axis=0, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return np.asarray(order[inverse.ravel()])
