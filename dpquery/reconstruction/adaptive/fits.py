"""What all tables are, from some that were measured: relaxed rows fitted to them."""

from collections.abc import Sequence

from dpquery.reconstruction.adaptive.fitted_rows import FittedRows
from dpquery.reconstruction.adaptive.measured_tables import MeasuredTable, merged_tables


def fit_tables(
    class_counts: tuple[int, ...],
    measured: Sequence[MeasuredTable],
    total: float,
    start: FittedRows | None = None,
    *,
    closer: bool = False,
) -> FittedRows:
    """Fit a model to measured tables; the same arguments give the same model.

    Args:
        class_counts: classes of each attribute.
        measured: tables, a set of attributes as often as it was measured.
        total: the number of records, positive.
        start: the model of the tables measured before, to go on from.
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
    return FittedRows(class_counts, merged, total, start, closer=closer)
