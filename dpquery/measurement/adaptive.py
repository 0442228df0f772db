"""RAP's loop: in every round select queries, measure them, and let the public side fit again.

What the loop asks of its two partners is stated here: of the projection, which is public and sees
noisy values alone, and of chance (see selection), which decides on true values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np

from dpquery.measurement.rap_mechanism import GRID_BITS, STEPS, RapMechanism
from dpquery.measurement.rap_mechanism import design_rap as design_rap
from dpquery.measurement.selection import Chance as Chance
from dpquery.measurement.selection import Integers, scores_of, select
from dpquery.operators.blocks import Workload
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


@dataclass(frozen=True, eq=False)
class Round:
    """What one round made public.

    Attributes:
        places: (k, 2) int64: position of a workload block, number of a row in it.
        noisy: (k,) noisy counts, multiples of 2^-10.
        std: standard deviation of their noise, in counts.
    """

    places: Array
    noisy: Array
    std: float


@dataclass(frozen=True, eq=False)
class AdaptiveMeasurement:
    """All that a run of RAP made public; the synthetic rows follow from it.

    Attributes:
        total: the number of records: noisy and at least 1, or as it was declared.
        total_std: standard deviation of its noise, 0 where it was declared.
        rounds: in order.
    """

    total: float
    total_std: float
    rounds: tuple[Round, ...]


def run_rounds(
    answers: Callable[[int], Integers],
    *,
    workload: Workload,
    mechanism: RapMechanism,
    projection: Projection,
    chance: Chance,
    done: Sequence[Round] = (),
) -> Iterator[Round]:
    """Yield every round as it is measured, before the projection is told of it.

    It is a generator: nothing happens but by iterating over it, and the projection takes in the
    last round when the iteration ends.

    Args:
        answers: exact answers, (m,), of the workload block at a position; a block at a time.
        workload: what is asked.
        mechanism: rounds, scales and shares, from `design_rap` for this workload.
        projection: the public side.
        chance: decides by chance.
        done: rounds of an earlier run that was cut short; they are told to the projection, and
            neither drawn again nor yielded.

    Privacy:
        All rounds together are (rho - total_rho)-zCDP, for neighbours as the mechanism has them:
        each is a selection and a measurement whose parameters follow from earlier rounds. The
        projection's answers decide what is asked next, and adaptive composition allows for any
        rule that sees earlier outputs alone. An iterator that makes every round durable before it
        takes the next sees to it that the projection, whatever becomes of it, cannot have a round
        drawn again.
    """
    taken = np.zeros((0, 2), dtype=np.int64)
    for number in range(mechanism.settings.rounds):
        if number < len(done):
            own = done[number]
        else:
            own = _measured(answers, workload, mechanism, projection, chance, taken)
            yield own
        projection.add(own.places, own.noisy, own.std)
        taken = np.concatenate([taken, own.places])


def all_places(workload: Workload) -> Integers:
    """Return the places of all queries, (m, 2), in order."""
    sizes = [block.queries for block in workload.blocks]
    positions = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.arange(len(positions)) - np.repeat(offsets(workload)[:-1], sizes)
    return np.stack([positions, rows], axis=1)


def offsets(workload: Workload) -> Integers:
    """Return the number of queries before each block, and of all."""
    return np.array([0, *accumulate(block.queries for block in workload.blocks)], dtype=np.int64)


def _measured(
    answers: Callable[[int], Integers],
    workload: Workload,
    mechanism: RapMechanism,
    projection: Projection,
    chance: Chance,
    taken: Integers,
) -> Round:
    """Select queries, or take all, and measure them: these lines hold true values."""
    if mechanism.settings.adaptive:
        places = select(
            lambda position: scores_of(answers(position), projection.answers(position).ravel()),
            blocks=len(workload.blocks),
            taken=taken,
            size=mechanism.settings.selected,
            rate=mechanism.rate,
            chance=chance,
        )
    else:
        places = all_places(workload)
    exact = _answered(answers, places)
    move = mechanism.sensitivity(workload, places)
    scale = mechanism.scale(mechanism.measurement_rho, move)
    budget = mechanism.budget(mechanism.measurement_rho)
    noisy = chance.add_noise(exact << GRID_BITS, budget=budget, sensitivity=move, scale=scale)
    return Round(places, noisy / STEPS, scale / STEPS)


def _answered(answers: Callable[[int], Integers], places: Integers) -> Integers:
    """Return the exact answers at some places, (k,), asking for every block once."""
    exact = np.empty(len(places), dtype=np.int64)
    order = np.argsort(places[:, 0], kind="stable")
    blocks, starts = np.unique(places[order, 0], return_index=True)
    for position, here in zip(blocks.tolist(), np.split(order, starts[1:]), strict=True):
        exact[here] = answers(position)[places[here, 1]]
    return exact
