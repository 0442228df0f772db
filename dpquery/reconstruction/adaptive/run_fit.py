"""The public side of an adaptive run: a model fitted closely after every table, and one at the end.

It sees what was measured and never the data; the same measurements give the same model.
"""

from dpquery.arrays import Floats
from dpquery.measurement.adaptive.candidates import CandidateTables
from dpquery.measurement.adaptive.table_rounds import AdaptiveMeasurement
from dpquery.reconstruction.adaptive.fits import fit_tables
from dpquery.reconstruction.adaptive.fitted_rows import FittedRows
from dpquery.reconstruction.adaptive.measured_tables import MeasuredTable
from dpquery.strategy.algebra.subsets import Subset


class AdaptiveFit:
    """A close fit to all noisy tables so far, by which the next table is selected.

    Attributes:
        model: as it was fitted last.

    Privacy:
        Post-processing: a function of noisy tables, and of public inputs.
    """

    def __init__(
        self,
        class_counts: tuple[int, ...],
        candidates: CandidateTables,
        measurement: AdaptiveMeasurement,
    ) -> None:
        """Fit the tables of one attribute; rounds are added one by one."""
        self._class_counts, self._total = class_counts, measurement.total
        self._measured: list[MeasuredTable] = []
        self._measured += _one_way_tables(class_counts, candidates, measurement)
        self.model = fit_tables(class_counts, self._measured, self._total, closer=True)

    def table(self, attributes: Subset) -> Floats:
        """Return the model's table over ascending attributes, in counts."""
        return self.model.table(attributes)

    def add(self, attributes: Subset, noisy: Floats, std: float) -> None:
        """Take in a measured table, (cells,) counts with noise of a standard deviation; fit."""
        self._measured.append(_table(self._class_counts, attributes, noisy, std))
        self.model = fit_tables(
            self._class_counts, self._measured, self._total, self.model, closer=True
        )

    def final(self) -> FittedRows:
        """Return the model of all tables so far as it is released: fitted afresh."""
        return fit_tables(self._class_counts, self._measured, self._total)


def final_model(
    class_counts: tuple[int, ...], candidates: CandidateTables, measurement: AdaptiveMeasurement
) -> FittedRows:
    """Return the model of all tables that a run measured, fitted afresh."""
    tables = tables_of_run(class_counts, candidates, measurement)
    return fit_tables(class_counts, tables, measurement.total)


def tables_of_run(
    class_counts: tuple[int, ...], candidates: CandidateTables, measurement: AdaptiveMeasurement
) -> list[MeasuredTable]:
    """Return all tables that a run measured, in order: those of one attribute, then by round."""
    return _one_way_tables(class_counts, candidates, measurement) + [
        _table(class_counts, candidates.subsets[each.number], each.noisy, each.budget.std)
        for each in measurement.rounds
    ]


def _one_way_tables(
    class_counts: tuple[int, ...], candidates: CandidateTables, measurement: AdaptiveMeasurement
) -> list[MeasuredTable]:
    pairs = zip(candidates.subsets, measurement.one_way, strict=False)
    return [_table(class_counts, each, noisy, measurement.one_way_std) for each, noisy in pairs]


def _table(
    class_counts: tuple[int, ...], attributes: Subset, noisy: Floats, std: float
) -> MeasuredTable:
    return MeasuredTable(attributes, noisy.reshape([class_counts[i] for i in attributes]), std**2)
