"""A seeded generator for rehearsals on public data: the same plan comes out the same every time.

It gives NO privacy: whoever knows the seed takes the noise off. The curator makes its own
generator, and takes none as an argument.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from dpquery.arrays import Ints
from dpquery.public_chance import public_generator


class SeededChance:
    """The selection and the noise of RAP's loop in floats, from a seed: not private."""

    def __init__(self, seed: int) -> None:
        """Start the stream of a seed."""
        self._rng = public_generator(seed)

    def level(self, scores: Sequence[int], members: Sequence[int], rate: Fraction) -> int:
        """Return i with probability proportional to members[i] exp(rate scores[i])."""
        with np.errstate(divide="ignore"):  # a level without members has probability 0
            weights = np.log(np.array(members, dtype=np.float64))
        weights += float(rate) * np.array(scores, dtype=np.float64)
        return int(np.argmax(weights + self._rng.gumbel(size=weights.size)))

    def below(self, bound: int) -> int:
        """Return a uniform whole number from 0 to below the bound."""
        return int(self._rng.integers(bound))

    def add_noise(self, answers: Ints, *, budget: object, sensitivity: int, scale: float) -> Ints:
        """Return answers with rounded normal noise of a scale; the budget is not used."""
        noise = self._rng.normal(scale=scale, size=answers.shape)
        return answers + np.rint(noise).astype(np.int64)
