"""Public counts and public noise on which a strategy is tried before it is chosen.

They are drawn from a generator whose seed goes with the strategy, so that the same plan is tried
the same way every time. Nothing here is private, and none of it protects anything.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.blocks import Block
from dpquery.operators.cell_classes import CellClassBlock
from dpquery.public_chance import public_generator, public_seed
from dpquery.reconstruction.measured_values import MeasuredValues
from dpquery.strategy.shapes.strategies import Strategy

PROBED_CELLS = 512  # of the domain that hold records
MOST_RECORDS = 1 << 22  # in each of them: some 10^9 records in all
ON_DEMAND = 1 << 23  # measured rows above which noise is drawn for those that are looked at
KEPT_VALUES = 1 << 24  # numbers of all measurements that are kept
_PLACE_BITS = 64  # of a seed that goes with a measurement


class OnDemand(MeasuredValues):
    """The values of every measurement, each worked out when it is looked at.

    Of a strategy of very many tables some are tried, and what is measured of the others is not
    looked at, or once. Values are kept as far as there is room; later ones are worked out again.
    """

    def __init__(self, count: int, values: Callable[[int], Floats]) -> None:
        """Take the number of measurements, and what gives those of one by its place, every time."""
        self._count, self._give, self._room = count, values, KEPT_VALUES
        self._kept: dict[int, Floats] = {}

    def __len__(self) -> int:
        return self._count

    def values_of(self, place: int) -> Floats:
        """Return the values of one measurement."""
        if place in self._kept:
            return self._kept[place]
        values = self._give(place)
        if values.size <= self._room:
            self._room -= values.size
            self._kept[place] = values
        return values


class Probes:
    """Records in some cells of a strategy's domain, and noise for its measured rows."""

    def __init__(self, strategy: Strategy) -> None:
        weights = [rows.weight for rows in strategy.measurements]
        self._rng = public_generator(public_seed((strategy.shape, weights)))
        self._rows = [rows.block.queries for rows in strategy.measurements]
        self.shape = strategy.shape
        self.codes = np.stack(
            [self._rng.integers(n, size=PROBED_CELLS) for n in self.shape], axis=1
        )
        self.counts = self._rng.integers(MOST_RECORDS, size=PROBED_CELLS)

    def table(self, block: Block | CellClassBlock) -> Numbers:
        """Return the counts over the attributes of a block."""
        cells = np.zeros(PROBED_CELLS, dtype=np.int64)
        for i in block.attributes:
            cells = cells * self.shape[i] + self.codes[:, i]
        sizes = block.table_shape
        return np.bincount(cells, self.counts, minlength=math.prod(sizes)).reshape(sizes)

    def noise(self, std: float) -> Sequence[Floats]:
        """Return independent normal noise for the rows of every measurement.

        Where there is much of it, that of each measurement has its own seed, to be drawn again.
        """
        if sum(self._rows) <= ON_DEMAND:
            return [std * self._rng.normal(size=size) for size in self._rows]
        seed = int(self._rng.integers(1 << 63)) << _PLACE_BITS
        return OnDemand(
            len(self._rows),
            lambda k: std * public_generator(seed + k).normal(size=self._rows[k]),
        )

    def sample(self, blocks: Sequence[tuple[int, Block]], *, answers: int, most: int) -> list[int]:
        """Return some of the numbers of blocks, one at least, of about so many answers in all."""
        chosen: list[int] = []
        total = 0
        for place in self._rng.permutation(len(blocks)).tolist():
            number, block = blocks[place]
            chosen.append(number)
            total += block.queries
            if total >= answers or len(chosen) >= most:
                break
        return chosen

    def places(self, count: int, most: int) -> Ints:
        """Return the places of some of so many answers, in order; of all where these are few."""
        if count <= most:
            return np.arange(count)
        return np.unique(self._rng.integers(count, size=most))
