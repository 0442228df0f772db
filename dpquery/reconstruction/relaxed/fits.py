"""Relaxed rows fitted to noisy queries (RAP) and to whole tables.

A fit sees what was measured and never the data; the same measurements give the same rows.

The start decides all that was not measured. Rows that start near uniform have to be moved to the
one-way tables first, and what no table says stays near uniform; these start at independent
attributes of the measured one-way tables ([MATH] 10.7), each row a little apart from the others so
that they can move apart.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Singles
from dpquery.measurement.rounds.run import MeasuredRun, Round
from dpquery.operators.blocks import Block, Workload, marginal
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.public_chance import public_generator
from dpquery.reconstruction.nearest import onto_simplex
from dpquery.reconstruction.relaxed.misfit import (
    MOST_STEPS,
    Fit,
    FitTarget,
    MarginalTables,
    MeasuredQueries,
    MeasuredTable,
    WholeTables,
    merged_tables,
    project,
)
from dpquery.reconstruction.relaxed.rows import Partition, RelaxedRows
from dpquery.strategy.algebra.subsets import Subset

EVENNESS = 10.0  # the shape of the Gamma weights: their spread is 0.3 of their mean


def start_rows(settings: RapSettings, shape: tuple[int, ...]) -> Singles:
    """Return the distributions that the rows start with, one row a class: (sum of shape, n')."""
    rng = public_generator(settings.seed)
    size = (sum(shape), settings.relaxed_rows)
    rows = rng.standard_gamma(EVENNESS, size, dtype=np.float32)
    sums = np.add.reduceat(rows, np.cumsum([0, *shape[:-1]]), axis=0)
    rows /= np.repeat(sums, shape, axis=0)
    return rows


class RapProjection:
    """Relaxed rows that are fitted, round by round, to all noisy answers so far.

    Attributes:
        workload: the queries.
        settings: of the run.
        total: the number of records, as it was measured or declared.

    Privacy:
        Post-processing: a function of noisy answers, the settings and the workload.
    """

    def __init__(self, workload: Workload, settings: RapSettings, total: float) -> None:
        self.workload, self.settings, self.total = workload, settings, total
        self._start = start_rows(settings, workload.shape_of_domain)
        self._measured = MeasuredQueries()
        self._partition = Partition.whole(workload.shape_of_domain)
        self._fit = Fit(self._partition.members @ self._start, None, 0)
        self._rows = self._partition.rows(self._fit.masses)

    @property
    def rows(self) -> RelaxedRows:
        """The relaxed rows."""
        return self._rows

    @property
    def steps(self) -> int:
        """Steps of all projections so far."""
        return self._fit.steps

    def answers(self, position: int) -> NDArray[np.floating]:
        """Return the synthetic answers of the workload block at a position: (m,) counts."""
        answers = self._rows.answer(self.workload.blocks[position]).ravel()
        return answers * np.float32(self.total)

    def add(self, measured: Round) -> None:
        """Take in the noisy answers of a round, and fit again."""
        if not self.settings.adaptive:
            # fit to the answers of all queries, in the order of the blocks and of their rows
            ends = np.cumsum([block.queries for block in self.workload.blocks])
            if len(measured.noisy) != ends[-1]:
                raise ValueError(f"{len(measured.noisy)} answers for {ends[-1]} queries")
            fractions = np.asarray(measured.noisy / self.total, dtype=np.float32)
            pieces = tuple(np.split(fractions, ends[:-1]))
            tables = WholeTables(self.workload, pieces, (measured.std / self.total,) * len(pieces))
            self._project(tables.partition, tables.target)
            return
        std = measured.std / self.total
        for (position, row), answer in zip(
            measured.chosen.tolist(), measured.noisy.tolist(), strict=True
        ):
            block = self.workload.blocks[position]
            self._measured.add(block, row, noisy=answer / self.total, std=std)
        if self._measured.predicates:
            finer = self._partition.refine(self._measured.predicates)
            rows = self.settings.relaxed_rows
            self._project(finer, self._measured.query_answers(finer, rows=rows).target)

    def _project(self, finer: Partition, target: FitTarget) -> None:
        masses = self._partition.split(self._fit.masses, finer, self._start)
        start = finer.members @ self._start
        self._fit = project(target, masses, start=start, spans=finer.spans, last=self._fit)
        self._partition, self._rows = finer, finer.rows(self._fit.masses)


def replay(workload: Workload, settings: RapSettings, run: MeasuredRun) -> RapProjection:
    """Return the relaxed rows that a run ended with, from what it measured."""
    projection = RapProjection(workload, settings, run.total)
    for measured in run.rounds:
        projection.add(measured)
    return projection


FITTED_ROWS = 300
MOST_PAIRED = 1 << 12  # classes of all attributes whose pairs are worked out together
CLOSER, CLOSER_STEPS = 0.2, 60  # part of the noise that a run's own model stops at; its steps
"""With fewer steps the pull would go up from round to round: RETURN * EASE**60 is below 1."""
LEAST_CLASS = 0.1  # of the noise on a class: what was measured as none may still be a few


class FittedRows:
    """Relaxed rows that fit measured tables as well as their noise explains, or closer.

    The guess at all tables is best where the fit stops as soon as noise explains what is left. To
    select the next table it serves badly: it hardly moves for a table that the noise explains
    already, so that the noise of rounds is halved too early and few tables are measured.

    Attributes:
        class_counts: classes of each attribute.
        total: the number of records.
        rows: the relaxed rows.
        steps: of the projection, and of those that it went on from.
        explained: whether noise explains how far the rows are from the tables.

    Privacy:
        Post-processing: a function of noisy tables and public inputs.
    """

    def __init__(
        self,
        class_counts: tuple[int, ...],
        measured: Sequence[MeasuredTable],
        total: float,
        start: "FittedRows | None" = None,
        *,
        closer: bool = False,
    ) -> None:
        """Fit the rows, from where others ended if given; the same arguments give the same ones.

        A closer fit goes on beyond what noise explains, to select the next table by.

        Raises:
            ValueError: a table has other classes than the domain, or there are no records.
        """
        if not total > 0:
            raise ValueError("a model of no records")
        for table in measured:
            if table.values.shape != tuple(class_counts[i] for i in table.attributes):
                given = f"a table of {table.values.shape} over attributes {table.attributes}"
                raise ValueError(given)
        measured, total = merged_tables(measured), float(total)  # numpy's would widen the rows
        self.class_counts, self.total = class_counts, total
        self._anchor: Singles = (
            _independent_rows(class_counts, measured, total) if start is None else start._anchor
        )
        self._fit: Fit = Fit(self._anchor, None, 0) if start is None else start._fit
        tables = [table for table in measured if table.attributes]
        if tables:
            blocks = tuple(marginal(class_counts, table.attributes) for table in tables)
            whole = MarginalTables(
                Workload(class_counts, blocks, (1.0,) * len(blocks)),
                tuple(np.asarray(table.values / total, dtype=np.float32) for table in tables),
                tuple(math.sqrt(table.variance) / total for table in tables),
            )
            target = whole.target
            if closer:
                target = replace(target, noise=CLOSER * target.noise)
            self._fit = project(
                target,
                self._fit.masses,
                start=self._anchor,
                spans=whole.partition.spans,
                last=self._fit,
                most_steps=CLOSER_STEPS if closer else MOST_STEPS,
            )
        self.steps, self.explained = self._fit.steps, self._fit.met

    @cached_property
    def rows(self) -> RelaxedRows:
        """The relaxed rows, of which synthetic records are drawn."""
        return RelaxedRows(self.class_counts, np.ascontiguousarray(self._fit.masses.T))

    def table(self, attributes: Subset) -> Floats:
        """Return the table over some attributes: counts, none negative, that sum to the total."""
        sizes = [self.class_counts[i] for i in attributes]
        if len(attributes) == 2 and self._pairs is not None:
            first, second = (self._spans[i] for i in attributes)
            answers = self._pairs[first, second]
        else:
            answers = self.rows.answer(marginal(self.class_counts, attributes))
        shares = np.asarray(answers, dtype=np.float64)
        return np.asarray(shares * (self.total / shares.sum())).reshape(sizes)

    @cached_property
    def _pairs(self) -> Singles | None:
        """The tables of all pairs side by side, (classes, classes): a round reads most of them.

        None where they are too many numbers.
        """
        masses = self._fit.masses
        return masses @ masses.T if len(masses) <= MOST_PAIRED else None

    @cached_property
    def _spans(self) -> tuple[slice, ...]:
        ends = np.cumsum([0, *self.class_counts])
        return tuple(slice(*pair) for pair in pairwise(ends.tolist()))

    def answer(self, block: Block) -> Floats:
        """Return the answers of any block, in counts: block.row_shape."""
        return np.asarray(self.rows.answer(block), dtype=np.float64) * self.total


def _independent_rows(
    class_counts: tuple[int, ...], measured: Sequence[MeasuredTable], total: float
) -> Singles:
    """Return rows that are one-way shares times random numbers of mean one. (sum of classes, n).

    Shares are from the margin with the least noise of all measured tables, moved to the nearest
    ones that are positive; even where nothing was measured.
    """
    spread = start_rows(RapSettings(1, 0, FITTED_ROWS, 0), class_counts)
    shares = []
    for attribute, count in enumerate(class_counts):
        margins = [
            table.margin((attribute,)) for table in measured if attribute in table.attributes
        ]
        if not margins:
            shares.append(np.full(count, 1 / count))
            continue
        best = min(margins, key=lambda table: table.variance)
        nearest = onto_simplex(best.values[None] / total, np.ones((1, count)), np.ones(1))[0]
        least = min(LEAST_CLASS * math.sqrt(best.variance) / total, 0.1 / count)
        raised = np.maximum(nearest, least)
        shares.append(raised / raised.sum())
    rows = spread * np.concatenate(shares).astype(np.float32)[:, None]
    starts = np.cumsum([0, *class_counts[:-1]])
    return np.asarray(rows / np.repeat(np.add.reduceat(rows, starts, axis=0), class_counts, axis=0))
