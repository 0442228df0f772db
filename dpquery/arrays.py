"""The types of arrays, by what their entries are; shapes stand in the docstrings."""

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
