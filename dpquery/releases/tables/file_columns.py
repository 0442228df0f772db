"""The columns that files of a release have whatever is asked: name, type, meaning, unit.

Each is described once. The schema of what is written, the metadata in the files and the pages and
metadata of a package are made from it, so that they cannot disagree. The columns of attributes are
in `labels`.
"""

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

NO_UNIT, SHARE = "", "ratio"
"""The unit of what has none; of a ratio."""
AMOUNT = "{unit}"
"""Stands for the unit of the item: what is counted, or what is summed."""
LABEL = pa.dictionary(pa.int32(), pa.string())
TEXT, INTEGER, LONG = pa.string(), pa.int32(), pa.int64()
NUMBER, DAY = pa.float64(), pa.date32()


class FileColumn(NamedTuple):
    """One column; in its meaning and unit, words in braces stand for those of the item."""

    name: str
    type: pa.DataType
    meaning: str
    unit: str = NO_UNIT
    nullable: bool = False

    @property
    def field(self) -> pa.Field:
        """The column as Arrow has it."""
        return pa.field(self.name, self.type, nullable=self.nullable)


def schema_of(columns: Iterable[FileColumn]) -> pa.Schema:
    """Return the schema of a file of some columns."""
    return pa.schema([column.field for column in columns])


def by_name(
    *columns: tuple[str, pa.DataType, str] | tuple[str, pa.DataType, str, str],
) -> dict[str, FileColumn]:
    """Return columns by their names, in order; a question mark behind a name: it may be empty."""
    made = [FileColumn(name.rstrip("?"), *rest) for name, *rest in columns]
    pairs = zip(columns, made, strict=True)
    return {m.name: m._replace(nullable=column[0].endswith("?")) for column, m in pairs}


ANSWER_COLUMNS = by_name(
    ("table", LABEL, "The attributes of the row's table; `total` where there are none"),
    ("query", LABEL, "How many of the row's conditions a record must meet"),
    ("cell", LONG, "Number of the row in its table, from 0"),
    (
        "estimate",
        NUMBER,
        "The {amount}, plus noise of mean zero: may be negative, or not whole",
        AMOUNT,
    ),
    (
        "std_error",
        NUMBER,
        "Standard error of that noise; it does not depend on the records",
        AMOUNT,
    ),
    ("half_width", NUMBER, "Half the width of the noise interval around the estimate", AMOUNT),
    ("ci_low", NUMBER, "Lower end of the {level} noise interval", AMOUNT),
    ("ci_high", NUMBER, "Upper end of the {level} noise interval", AMOUNT),
    (
        "rel_error?",
        NUMBER,
        "std_error over the size of the estimate; empty where that is zero",
        SHARE,
    ),
    ("flag", LABEL, "`noisy` from a rel_error of 30 % on, `very noisy` from 50 % on; else empty"),
    (
        "published?",
        NUMBER,
        "The estimate by the rules of publication; empty where they omit it",
        AMOUNT,
    ),
    ("suppressed", LABEL, "The rule that left `published` empty; else empty"),
)
"""The columns of items' files that are no attributes."""

ERRORS = by_name(
    ("item", TEXT, "Name of the item"),
    ("queries", LONG, "Number of its answers", "answers"),
    ("rmse", NUMBER, "Root mean square of their standard errors", AMOUNT),
    ("median_std_error", NUMBER, "Median of their standard errors", AMOUNT),
    ("max_std_error", NUMBER, "Largest of their standard errors", AMOUNT),
    ("median_rel_error?", NUMBER, "Median relative error; empty where it is unbounded", SHARE),
    ("worst_rel_error?", NUMBER, "Largest relative error; empty where an estimate is zero", SHARE),
    ("flagged_share", NUMBER, "Share of the answers that have a flag", SHARE),
    ("weight", NUMBER, "Weight of the item in the spec"),
)
"""The columns of errors.parquet: one row an item."""

MEASUREMENTS = by_name(
    ("measurement", INTEGER, "Which measurement of the strategy the value belongs to, from 0"),
    ("attributes", LABEL, "The attributes that it counts over; empty for the total"),
    ("weight", LABEL, "The whole number that its rows were multiplied by, in digits"),
    ("value", LONG, "The noisy value, in steps of the grid", "steps"),
)
"""The columns of measurements.parquet."""

AXES = by_name(
    ("table", INTEGER, "Number of the table, as in the item's file"),
    ("name", LABEL, "Its attributes; `total` where there are none"),
    ("query", LABEL, ANSWER_COLUMNS["query"].meaning),
    ("first", LONG, "Rows of the item's file before those of the table", "rows"),
    ("attribute?", LABEL, "One of its attributes"),
    ("labels?", INTEGER, "Number of its list of labels"),
    ("size", LONG, "Labels in that list; a row has the `cell` // `stride` % `size`-th"),
    ("stride", LONG, "Rows of the table from one label to the next", "rows"),
)
"""The columns of `<item>.tables.parquet`: one row for each attribute of each table."""

LABELS = by_name(
    ("labels", INTEGER, "Number of the list of labels"),
    ("place", LONG, "Where the label stands in it, from 0"),
    ("label", TEXT, "The label"),
    ("code?", TEXT, "The value as it stands in the records, where that is not the label"),
    ("from_number?", NUMBER, "First number of the range, included"),
    ("to_number?", NUMBER, "Last number of the range, included"),
    ("below_number?", NUMBER, "The edge that a range of bins stays below"),
    ("from_date?", DAY, "First day of the range, included"),
    ("to_date?", DAY, "Last day of the range, included"),
    ("level?", TEXT, "Its level of the hierarchy, where it has one"),
)
"""The columns of `<item>.labels.parquet`: one row for each query that is asked of an attribute.

`below_number` is not in releases from plans of before there was one, `level` only where an
attribute of the item has a hierarchy.
"""
