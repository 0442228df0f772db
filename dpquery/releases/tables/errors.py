"""The errors beside each answer, relative and flagged, and their summary over an item.

Flags follow the convention of health statistics, MEPS's among them: an estimate whose relative
standard error is 30 % or more is marked, from 50 % on strongly. Everything here is computed from
noisy estimates and public standard errors, so it reveals nothing beyond them; near zero a flag says
that noise swamps the answer, not that the count is small.

Answers whose error depends on the data, as those of relaxed adaptive projection, have no figures
here at all: every one is null, and their flag says so.
"""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy import float64, int32, int64
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints
from dpquery.releases.tables.file_columns import ERRORS, schema_of
from dpquery.spec.spec import Item

NOISY, VERY_NOISY = 0.3, 0.5
FLAGS = ("", "noisy", "very noisy")
FACT_FLAGS = ("impossible", "known")
"""The flags of answers that public facts state, so that they have no noise."""
NO_ERROR_BARS = "no error bars"
"""The flag of an answer whose error is not known."""

# A positive float's leading bits order it: sign, exponent and eight bits of mantissa make bins that
# are 0.4 % wide, so that a median over any number of rows takes a few megabytes.
_DROPPED_BITS = 52 - 8
_BINS = (int(np.array(np.inf).view(int64)) >> _DROPPED_BITS) + 1

ERRORS_SCHEMA = schema_of(ERRORS.values())
UNKNOWN_SCHEMA = pa.schema([field.with_nullable(True) for field in ERRORS_SCHEMA])
"""The same where errors are not known: everything but `item`, `queries` and `weight` is null."""


def relative_errors(estimate: Floats, std_error: Floats) -> Floats:
    """Return std_error / |estimate|: infinite at an estimate of zero, zero without noise. (m,)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.abs(estimate)
        np.divide(std_error, relative, out=relative)
    relative[std_error == 0] = 0.0
    return relative


def flags(relative: Floats) -> NDArray[int32]:
    """Return for each relative error its place in FLAGS. (m,)."""
    return np.add(relative >= NOISY, relative >= VERY_NOISY, dtype=int32)


def fact_flags(relative: Floats, stated: Ints) -> NDArray[int32]:
    """Return for each answer its place in FLAGS and FACT_FLAGS, one after the other. (m,).

    Args:
        relative: (m,) relative errors.
        stated: (m,) 0 for what was measured, else the place in FACT_FLAGS from 1.
    """
    return np.where(stated > 0, len(FLAGS) - 1 + stated, flags(relative)).astype(int32)


def lower_median(values: Floats) -> float:
    """Return the least of some numbers that half of them do not exceed, as `Tally` does.

    >>> lower_median(np.array([0.1, 0.2, 0.4, 9.0]))
    0.2
    """
    return float(np.quantile(values, 0.5, method="inverted_cdf"))


class Tally:
    """A running summary of one item's errors, in memory that does not grow with its rows."""

    def __init__(self) -> None:
        self.rows = self.flagged = 0
        self.squares: list[float] = []
        self.std_error, self.relative = _Median(), _Median()

    def add(self, std_error: Floats, relative: Floats) -> None:
        """Add rows: (m,) standard errors and (m,) relative errors."""
        self.rows += len(std_error)
        self.flagged += int((relative >= NOISY).sum())
        self.squares.append(float(np.square(std_error).sum()))
        self.std_error.add(std_error)
        self.relative.add(relative)

    def row(self, item: Item) -> dict[str, str | int | float | None]:
        """Return the item's row of errors.parquet; an infinite relative error is null."""
        rows = max(self.rows, 1)
        return {
            "item": item.name,
            "queries": self.rows,
            "rmse": math.sqrt(math.fsum(self.squares) / rows),
            "median_std_error": self.std_error.median,
            "max_std_error": self.std_error.high,
            "median_rel_error": _finite(self.relative.median),
            "worst_rel_error": _finite(self.relative.high),
            "flagged_share": self.flagged / rows,
            "weight": item.weight,
        }


def unknown_row(item: Item) -> dict[str, str | int | float | None]:
    """Return the row of an item whose errors are not known."""
    return dict.fromkeys(ERRORS_SCHEMA.names) | {
        "item": item.name,
        "queries": item.size,
        "weight": item.weight,
    }


def errors_table(
    rows: Sequence[dict[str, str | int | float | None]], *, known: bool = True
) -> pa.Table:
    """Return the content of errors.parquet: one row an item, in spec order."""
    return pa.Table.from_pylist(list(rows), schema=ERRORS_SCHEMA if known else UNKNOWN_SCHEMA)


class _Median:
    """The median of non-negative numbers, to 0.4 % where they crowd, and their exact maximum."""

    def __init__(self) -> None:
        self.counts, self.sums = np.zeros(_BINS, dtype=int64), np.zeros(_BINS)
        self.high = 0.0

    def add(self, values: Floats) -> None:
        if not len(values):
            return
        if values.strides == (0,):  # one number for all rows
            self._add(values[:1], len(values))
            return
        self._add(np.ascontiguousarray(values, dtype=float64), 1)

    def _add(self, values: Floats, times: int) -> None:
        bins = values.view(int64) >> _DROPPED_BITS
        low = int(bins.min())
        bins -= low
        counts = np.bincount(bins)
        bins_added = slice(low, low + len(counts))
        self.counts[bins_added] += times * counts
        self.sums[bins_added] += times * np.bincount(bins, weights=values)
        self.high = max(self.high, float(values.max()))

    @property
    def median(self) -> float:
        """The mean of the bin that holds the lower median; 0 if there are no numbers."""
        reached = np.cumsum(self.counts)
        bin_of_median = int(np.searchsorted(reached, (reached[-1] + 1) // 2))
        return min(float(self.sums[bin_of_median] / max(self.counts[bin_of_median], 1)), self.high)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
