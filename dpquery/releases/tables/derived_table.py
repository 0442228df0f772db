"""The file of one derived item: labels as in the files of items, then figures of the statistic."""

import numpy as np
import pyarrow as pa

from dpquery.arrays import Floats
from dpquery.reconstruction.derived.quotients import DerivedRows
from dpquery.releases.tables.errors import FLAGS, flags, relative_errors
from dpquery.releases.tables.item_rows import Segment
from dpquery.releases.tables.item_table import layout
from dpquery.releases.tables.label_columns import encoded, masked
from dpquery.releases.tables.labels import LABEL, ColumnRules
from dpquery.spec.domain import Dates, Domain
from dpquery.spec.model import DerivedItem, Item, Quantiles

LOST = "lost in noise"
"""The flag of a row without an estimate, of which the column `reason` says why."""
_FIGURES = ("estimate", "std_error", "ci_low", "ci_high")


def derived_table(
    item: DerivedItem, figures: DerivedRows, domain: Domain, rules: ColumnRules
) -> pa.Table:
    """Return the rows of a derived item: labels, `quantile` of quantiles, figures, flag, reason.

    Args:
        item: the derived item.
        figures: one for each row; of quantiles those of a group one after another.
        domain: of the spec.
        rules: by which columns of attributes have one type in all files.
    """
    statistic = item.statistic
    rows, dates = statistic.rows, None
    labelled = layout(Item(item.name, (rows,)), domain, error_bars=True, rules=rules)
    arrays = labelled.row_columns(rows.size)([Segment(0, 0, rows.size)])
    fields = [labelled.schema.field(k) for k in range(len(arrays))]
    if isinstance(statistic, Quantiles):
        several = len(statistic.probabilities)
        of_group = pa.array(np.repeat(np.arange(rows.size), several))
        arrays = [array.take(of_group) for array in arrays]
        arrays.append(pa.array(np.tile(statistic.probabilities, rows.size)))
        fields.append(pa.field("quantile", pa.float64(), nullable=False))
        kind = domain.attributes[statistic.attribute].columns[0].kind
        dates = kind if isinstance(kind, Dates) else None
    values = (figures.estimate, figures.std_error, figures.low, figures.high)
    for name, column in zip(_FIGURES, values, strict=True):
        as_days = dates if name != "std_error" else None
        arrays.append(_figures(column, as_days))
        fields.append(pa.field(name, arrays[-1].type))
    arrays += [_flags(figures), _reasons(figures)]
    fields += [pa.field("flag", LABEL, nullable=False), pa.field("reason", LABEL)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _figures(values: Floats, dates: Dates | None) -> pa.Array:
    """Return a column with nulls for what is not known; places of periods by their first days."""
    missing = np.isnan(values)
    if dates is None:
        return masked(values, missing)
    days = [None if np.isnan(place) else dates.start(int(place)) for place in values.tolist()]
    return pa.array(days, pa.date32())


def _flags(figures: DerivedRows) -> pa.Array:
    known = ~np.isnan(figures.std_error)
    estimate = np.where(known, figures.estimate, 1.0)
    relative = relative_errors(estimate, np.where(known, figures.std_error, 0.0))
    places = np.where(figures.lost, len(FLAGS), flags(relative)).astype(np.int32)
    return encoded(places, pa.array([*FLAGS, LOST]))


def _reasons(figures: DerivedRows) -> pa.Array:
    places = masked(np.zeros(len(figures.lost), dtype=np.int32), ~figures.lost)
    return pa.DictionaryArray.from_arrays(places, pa.array([figures.reason]))
