"""RAP's loop: in every round select queries, measure them, and let the public side fit again.

What the loop asks of its two partners is stated here: of the projection, which is public and sees
noisy values alone, and of chance, which decides on true values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpquery.measurement.accounting import Guarantee
from dpquery.operators.factors import Array


class Projection(Protocol):
    """What the curator asks of the public side between two rounds.

    Privacy: it is told noisy values only, so all it does is post-processing.
    """

    def answers(self, position: int) -> Array:
        """Return the synthetic answers of the workload block at a position, (m,) counts, float."""
        ...

    def add(self, places: Array, noisy: Array, std: float) -> None:
        """Take in the noisy answers of a round, and fit again.

        Args:
            places: (k, 2) int64: position of a workload block, number of a row in it.
            noisy: (k,) noisy counts.
            std: the standard deviation of their noise, in counts.
        """
        ...


class Chance(Protocol):
    """Who decides by chance: exactly and without a seed at the curator's."""

    def level(self, scores: Sequence[int], members: Sequence[int], rate: Fraction) -> int:
        """Return i with probability proportional to members[i] exp(rate scores[i])."""
        ...

    def below(self, bound: int) -> int:
        """Return a whole number from 0 to below the bound, each as likely."""
        ...

    def add_noise(
        self, answers: NDArray[np.int64], *, budget: Guarantee, sensitivity: int, scale: float
    ) -> NDArray[np.int64]:
        """Return answers with discrete Gaussian noise of a scale; see noise.draw."""
        ...


@dataclass(frozen=True, eq=False)
class Round:
    """What one round made public.

    Attributes:
        places: (k, 2) int64: position of a workload block, number of a row in it.
        noisy: (k,) noisy counts.
        std: standard deviation of their noise, in counts.
    """

    places: Array
    noisy: Array
    std: float


@dataclass(frozen=True, eq=False)
class AdaptiveMeasurement:
    """All that a run of RAP made public; the synthetic rows follow from it.

    Attributes:
        total: the number of records: noisy, or as it was declared.
        total_std: standard deviation of its noise, 0 where it was declared.
        rounds: in order.
    """

    total: float
    total_std: float
    rounds: tuple[Round, ...]
