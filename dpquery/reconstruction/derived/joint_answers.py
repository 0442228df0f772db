"""Answers of several tables, and how their noise varies together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block
from dpquery.reconstruction.least_squares import Estimates, reconstruct
from dpquery.spec.model import Table
from dpquery.strategy.algebra.query_pairs import QueryPairs, QueryRows
from dpquery.strategy.shapes.strategies import Strategy

MAX_UNITS = 1 << 12  # measured rows whose part in every answer is worked out one by one
MAX_COEFFICIENTS = 1 << 25  # of all answers on them: 256 MB


@dataclass(frozen=True, eq=False)
class JointAnswers:
    """The answers of some tables of one release, and how their noise varies together.

    Attributes:
        blocks: of each table, and its position in the plan's workload if it has one there.
        strategy: what was measured.
        estimates: the result of `reconstruct` on the measurements.
        noise_std: standard deviation of the noise on each measured row.
    """

    blocks: Mapping[Table, tuple[Block, int | None]]
    strategy: Strategy
    estimates: Estimates
    noise_std: float

    def estimate(self, table: Table) -> Floats:
        """Return the answers of a table in row order: (m,)."""
        block, position = self.blocks[table]
        return self.estimates.answer(block, position).ravel()

    def covariance(self, table: Table, rows: Ints, other: Table, other_rows: Ints) -> Floats:
        """Return covariances of rows of two tables; their numbers are broadcast."""
        (block, position), (against, place) = self.blocks[table], self.blocks[other]
        pairs = QueryPairs(QueryRows(block, rows, position), QueryRows(against, other_rows, place))
        return np.asarray(self.strategy.covariances(pairs) * self.noise_std**2)

    @cached_property
    def coefficients(self) -> dict[Table, Floats] | None:
        """What each answer makes of the measured rows: (m, rows) for every table.

        None where they are not needed, since the noise is normal, and where they are too many.
        """
        if self.strategy.noise == "gaussian":
            return None
        sizes = [rows.block.queries for rows in self.strategy.measurements]
        answered = sum(block.queries for block, _ in self.blocks.values())
        if sum(sizes) > MAX_UNITS or sum(sizes) * answered > MAX_COEFFICIENTS:
            return None
        ends = np.cumsum(sizes)[:-1]
        columns: dict[Table, list[Floats]] = {table: [] for table in self.blocks}
        nothing = reconstruct(self.strategy, np.split(np.zeros(sum(sizes)), ends))
        for unit in np.eye(sum(sizes)):
            solved = reconstruct(self.strategy, np.split(unit, ends))
            for table, (block, position) in self.blocks.items():
                moved = solved.answer(block, position) - nothing.answer(block, position)
                columns[table].append(moved.ravel())  # public facts add what no row does
        return {table: np.array(of_units).T for table, of_units in columns.items()}


def rows_in(table: Table, margin: Table) -> Ints:
    """Return for every row of a table that row of a margin, which has some of its axes: (m,)."""
    sizes = {i: len(predicates) for i, predicates in table.axes}
    places = np.unravel_index(np.arange(table.size), table.shape) if sizes else ()
    chosen = dict(zip(sizes, places, strict=True))
    kept: Sequence[Ints] = [np.asarray(chosen[i]) for i, _ in margin.axes]
    if not kept:
        return np.zeros(table.size, dtype=np.int64)
    return np.asarray(np.ravel_multi_index(tuple(kept), margin.shape), dtype=np.int64)
