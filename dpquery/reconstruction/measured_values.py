"""The noisy values of every measurement, worked out one measurement at a time."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import overload

from dpquery.arrays import Floats


class MeasuredValues(Sequence[Floats], ABC):
    """The values of each measurement, known by its place."""

    @abstractmethod
    def values_of(self, place: int) -> Floats:
        """Return the values of one measurement; `place` is from 0 on."""

    @overload
    def __getitem__(self, place: int) -> Floats: ...
    @overload
    def __getitem__(self, place: slice) -> list[Floats]: ...
    def __getitem__(self, place: int | slice) -> Floats | list[Floats]:
        """Return the values of one measurement, or of several."""
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        return self.values_of(range(len(self))[place])
