"""A part of a large workload: on which what errs least is judged within a plan's time.

A rehearsal of all pairs of a hundred attributes takes minutes, and one of all pairs of some of them
seconds. The tables of a part are drawn, not chosen: they err as all do, but for chance. Of a
strategy of cores and totals what they are answered by is kept, with its noise. Adaptive measurement
has their share of the budget: all pairs of 100 attributes of 10 values, 50,000 made-up records and
epsilon 1, err by 92, 89 and 66 counts on the three populations, the pairs of 24 of them by 127, 89
and 87; with the share of the attributes, which makes rounds cost the same, they err far less.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from time import process_time
from typing import TypeVar

from dpquery.exceptions import OutOfTimeError
from dpquery.operators.blocks import Workload
from dpquery.operators.compile import CompiledSpec
from dpquery.public_chance import public_generator
from dpquery.reconstruction.intervals import expected_largest
from dpquery.spec.spec import Spec
from dpquery.strategy.algebra.query_powers import total_of
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.strategy import Strategy

PART_ATTRIBUTES = (24, 8)
"""Of a part, and of one where that is not finished in time: all pairs of 24 attributes are 276
tables, and a run of adaptive measurement takes 4 seconds."""
FIRST_TRY = 0.75  # of the time, where there is a smaller part to try
QUICK_ATTRIBUTES, QUICK_QUERIES = (16, 8, 6, 4, 3), 50_000
PART_SEED = 2028

Finished = TypeVar("Finished")


@dataclass(frozen=True)
class Errors:
    """Errors of one run over all queries, in counts: weighted RMSE, the largest; its rounds."""

    rmse: float
    largest: float
    rounds: int = 0


@dataclass(frozen=True, eq=False)
class WorkloadPart:
    """Some tables of a workload: all that ask nothing but of some attributes."""

    whole: Workload  # the workload
    positions: tuple[int, ...]  # of the tables, ascending

    @cached_property
    def attributes(self) -> frozenset[int]:
        """The attributes of its tables."""
        return frozenset(i for k in self.positions for i in self.whole.blocks[k].attributes)

    @property
    def is_whole(self) -> bool:
        """Whether all tables are in it."""
        return len(self.positions) == len(self.whole.blocks)

    @property
    def words(self) -> str:
        """Which part it is, to go on with; empty of the whole."""
        if self.is_whole:
            return ""
        return f", with {len(self.attributes)} of the {len(self.whole.attributes)} attributes"

    @property
    def share(self) -> Fraction:
        """The share of the tables: adaptive measurement has so much of the budget for them."""
        return Fraction(len(self.positions), len(self.whole.blocks))

    @property
    def times_as_wide(self) -> float:
        """How many times as many attributes, and rounds of measurement, all tables have."""
        return len(self.whole.attributes) / max(1, len(self.attributes))

    @cached_property
    def workload(self) -> Workload:
        """Its tables, over the whole domain."""
        return self.whole if self.is_whole else self.whole.select(self.positions)

    @cached_property
    def narrow(self) -> Workload:
        """Its tables, over a domain in which other attributes have one class."""
        if self.is_whole:
            return self.whole
        shape = tuple(
            n if i in self.attributes else 1 for i, n in enumerate(self.whole.shape_of_domain)
        )
        blocks = tuple(replace(block, shape_of_domain=shape) for block in self.workload.blocks)
        return replace(self.workload, shape_of_domain=shape, blocks=blocks)

    def of_spec(self, spec: Spec, compiled: CompiledSpec) -> tuple[Spec, CompiledSpec]:
        """Return what is asked, and its operators, with these tables alone."""
        if self.is_whole:
            return spec, compiled
        kept, items = set(self.positions), []
        for item, places in zip(spec.items, compiled.items, strict=True):
            tables = tuple(table for table, k in zip(item.tables, places, strict=True) if k in kept)
            if tables:
                items.append(replace(item, tables=tables))
        ends = [0, *accumulate(len(item.tables) for item in items)]
        ranges = tuple(range(*pair) for pair in pairwise(ends))
        narrowed = CompiledSpec(self.workload, compiled.classes, ranges)
        return replace(spec, items=tuple(items)), narrowed

    def of_strategy(self, strategy: Strategy) -> Strategy:
        """Return what these tables are answered by, where that is a part of a strategy."""
        if self.is_whole or not isinstance(strategy, ResidualStrategy):
            return strategy
        weights = {b: w for b, w in strategy.weights.items() if self.attributes.issuperset(b)}
        cores = {b: each for b, each in strategy.block_cores.items() if b in weights}
        return replace(strategy, weights=weights, block_cores=cores)

    def scaled(
        self, runs: Sequence[Errors], strategy: Strategy, *, noise_std: float, estimates: Errors
    ) -> list[Errors]:
        """Return errors on these tables as errors on all: as those of estimates are to each other.

        `estimates` are the expected errors of the estimates of all tables.
        """
        if self.is_whole or not isinstance(strategy, ResidualStrategy):
            return list(runs)
        weighted = zip(self.workload.weights, self.workload.blocks, strict=True)
        variance = sum(
            w * total_of(strategy.variances(block, position=None), block) for w, block in weighted
        )
        rmse = estimates.rmse / noise_std * math.sqrt(self.workload.weighted_queries / variance)
        here = expected_largest(strategy, self.workload, noise_std=noise_std)
        largest = estimates.largest / here
        return [replace(run, rmse=run.rmse * rmse, largest=run.largest * largest) for run in runs]


def whole_of(workload: Workload) -> WorkloadPart:
    """Return all of a workload."""
    return WorkloadPart(workload, tuple(range(len(workload.blocks))))


def parts_of(workload: Workload) -> tuple[WorkloadPart, ...]:
    """Return the parts of a workload to try, one after another, until one is finished in time."""
    first, *smaller = (_part(workload, most) for most in PART_ATTRIBUTES)
    return (first, *(part for part in smaller if not part.is_whole))


def quick_part(workload: Workload, queries: int = QUICK_QUERIES) -> WorkloadPart | None:
    """Return a part of few queries, to try a column on quickly; None where there is none."""
    parts = (_part(workload, most) for most in QUICK_ATTRIBUTES)
    return next((part for part in parts if part.workload.shape[0] <= queries), None)


def finished_in_time(
    parts: Sequence[WorkloadPart],
    time_limit: float,
    rehearsal: Callable[[WorkloadPart, float], Finished],
) -> Finished:
    """Return what a rehearsal returns of the first part that it finishes within CPU seconds.

    Raises:
        OutOfTimeError: it finishes none.
    """
    begun = process_time()
    for part in parts[:-1]:
        with suppress(OutOfTimeError):
            return rehearsal(part, begun + FIRST_TRY * time_limit)
    return rehearsal(parts[-1], begun + time_limit)


def _part(workload: Workload, most: int) -> WorkloadPart:
    """Return a part of so many attributes at most; the whole where it has no more, or no smaller.

    Tables are drawn one after another, and what they ask of is taken while there is room.
    """
    everything = whole_of(workload)
    if len(everything.attributes) <= most:
        return everything
    taken: set[int] = set()
    for place in public_generator(PART_SEED).permutation(len(workload.blocks)).tolist():
        wider = taken.union(workload.blocks[place].attributes)
        taken = wider if len(wider) <= most else taken
    inside = (k for k, b in enumerate(workload.blocks) if taken.issuperset(b.attributes))
    return WorkloadPart(workload, tuple(inside)) if taken else everything
