"""What says what all tables are, from some that were measured: one interface for every fit."""

from collections.abc import Sequence
from typing import Literal, Protocol

from dpquery.arrays import Floats
from dpquery.operators.blocks import Block
from dpquery.reconstruction.adaptive.fitted_rows import FittedRows
from dpquery.reconstruction.adaptive.measured_tables import MeasuredTable, merged_tables
from dpquery.reconstruction.adaptive.shrunk_model import ShrunkModel
from dpquery.reconstruction.rap.relaxed_rows import RelaxedRows
from dpquery.strategy.algebra.subsets import Subset

FitName = Literal["rows", "shrinkage"]


class TableModel(Protocol):
    """A guess at every table of a domain, of so many records."""

    total: float

    @property
    def rows(self) -> RelaxedRows:
        """Relaxed rows, of which synthetic records are drawn."""

    def table(self, attributes: Subset) -> Floats:
        """Return a table over ascending attributes: counts, none negative, of that total."""

    def answer(self, block: Block) -> Floats:
        """Return the answers of a block, in counts: block.row_shape."""


def fit_tables(
    class_counts: tuple[int, ...],
    measured: Sequence[MeasuredTable],
    total: float,
    start: TableModel | None = None,
    *,
    fit: FitName = "rows",
    closer: bool = False,
) -> TableModel:
    """Fit a model to measured tables; the same arguments give the same model.

    Args:
        class_counts: classes of each attribute.
        measured: tables, a set of attributes as often as it was measured.
        total: the number of records, positive.
        start: the model of the tables measured before, to go on from; shrinkage needs none.
        fit: relaxed rows, or shrunk tables.
        closer: whether rows go on beyond what noise explains, to select the next table by.

    Raises:
        ValueError: a table has other classes than the domain, or there are no records.

    Privacy:
        Post-processing: a function of noisy tables and public inputs.
    """
    if not total > 0:
        raise ValueError("a model of no records")
    for table in measured:
        if table.values.shape != tuple(class_counts[i] for i in table.attributes):
            raise ValueError(f"a table of {table.values.shape} over attributes {table.attributes}")
    merged, total = merged_tables(measured), float(total)  # a float of numpy would widen the rows
    if fit == "shrinkage":
        return ShrunkModel(class_counts, merged, total)
    before = start if isinstance(start, FittedRows) else None
    return FittedRows(class_counts, merged, total, before, closer=closer)
