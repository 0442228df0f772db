"""The public side of Relaxed Adaptive Projection (RAP): relaxed rows fitted to noisy answers.

It sees what was measured and never the data; the same measurements give the same rows.
"""

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints, Singles
from dpquery.measurement.rap.rounds import RapMeasurement
from dpquery.operators.blocks import Workload
from dpquery.plan_file.rap_settings import RapSettings
from dpquery.public_chance import public_generator
from dpquery.reconstruction.rap.measured_queries import MeasuredQueries
from dpquery.reconstruction.rap.mirror_descent import Fit, FitTarget, project
from dpquery.reconstruction.rap.partition import Partition
from dpquery.reconstruction.rap.relaxed_rows import RelaxedRows
from dpquery.reconstruction.rap.whole_tables import WholeTables

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

    def add(self, places: Ints, noisy: Floats, std: float) -> None:
        """Take in the noisy answers of a round, and fit again.

        Args:
            places: (k, 2) int64: position of a workload block, number of a row in it.
            noisy: (k,) noisy counts.
            std: the standard deviation of their noise, in counts.
        """
        if not self.settings.adaptive:
            self._fit_to_all(noisy, std)
            return
        for (position, row), answer in zip(places.tolist(), noisy.tolist(), strict=True):
            block = self.workload.blocks[position]
            self._measured.add(block, row, noisy=answer / self.total, std=std / self.total)
        if self._measured.predicates:
            finer = self._partition.refine(self._measured.predicates)
            rows = self.settings.relaxed_rows
            self._project(finer, self._measured.query_answers(finer, rows=rows).target)

    def _fit_to_all(self, noisy: Floats, std: float) -> None:
        """Fit to the answers of all queries, in the order of the blocks and of their rows."""
        ends = np.cumsum([block.queries for block in self.workload.blocks])
        if len(noisy) != ends[-1]:
            raise ValueError(f"{len(noisy)} answers for {ends[-1]} queries")
        fractions = np.asarray(noisy / self.total, dtype=np.float32)
        pieces = tuple(np.split(fractions, ends[:-1]))
        tables = WholeTables(self.workload, pieces, (std / self.total,) * len(pieces))
        self._project(tables.partition, tables.target)

    def _project(self, finer: Partition, target: FitTarget) -> None:
        masses = self._partition.split(self._fit.masses, finer, self._start)
        start = finer.members @ self._start
        self._fit = project(target, masses, start=start, spans=finer.spans, last=self._fit)
        self._partition, self._rows = finer, finer.rows(self._fit.masses)


def replay(workload: Workload, settings: RapSettings, measurement: RapMeasurement) -> RapProjection:
    """Return the relaxed rows that a run ended with, from what it measured."""
    projection = RapProjection(workload, settings, measurement.total)
    for measured in measurement.rounds:
        projection.add(measured.places, measured.noisy, measured.std)
    return projection
