"""Noisy values on their grid, taken off it one measurement at a time."""

from collections.abc import Sequence
from itertools import accumulate
from typing import overload

import numpy as np
from numpy import int64
from numpy.typing import NDArray

from dpquery.operators.factors import Array


class OffTheGrid(Sequence[Array]):
    """The noisy answers of each measurement, in units of the integer strategy, as floats.

    A release may have measured 10^8 values: the only copy of them all is the integers.
    """

    def __init__(self, values: NDArray[int64], sizes: Sequence[int], *, shift: int) -> None:
        """Take (m,) values in steps of 2^shift, and how many belong to each measurement."""
        self._values, self._step = values, 2.0**shift
        self._ends = [0, *accumulate(sizes)]
        if self._ends[-1] != len(values):
            raise ValueError(f"{len(values)} values for measurements of {self._ends[-1]}")

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> Array: ...
    @overload
    def __getitem__(self, place: slice) -> list[Array]: ...
    def __getitem__(self, place: int | slice) -> Array | list[Array]:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        k = range(len(self))[place]
        return np.asarray(self._values[self._ends[k] : self._ends[k + 1]] * self._step)
