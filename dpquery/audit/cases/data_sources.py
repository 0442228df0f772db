"""Records in every kind of source that this machine can write, and what each must count as."""

import csv
import datetime
import math
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpquery.arrays import Ints

SOURCE_SPEC = """\
dataset: {id: made-up}
privacy: {unit: row}
budget: {epsilon: 1}
domain:
  age: {range: [0, 3]}
  pay: {bins: [0, 0.1, 1.5]}
  works: boolean
  sex: {values: [M, F]}
  since: {date: {from: 2013-01-01, to: 2014-12-31, by: year}}
workload: [{name: all, product: {}}]
"""
TYPES = {
    "age": pa.int64(),
    "pay": pa.float64(),
    "works": pa.bool_(),
    "sex": pa.string(),
    "since": pa.date32(),
    "remark": pa.string(),
}
VALUES: dict[str, tuple[tuple[object, int], ...]] = {
    "age": ((0, 0), (1, 1), (2, 2), (3, 3), (-1, 4), (None, 4)),
    "pay": ((0.05, 0), (0.1, 1), (1.25, 1), (math.nan, 2), (math.inf, 2), (1e300, 2), (None, 2)),
    "works": ((False, 0), (True, 1), (None, 2)),
    "sex": (("M", 0), (" F ", 1), ('M"', 2), ("", 2), ("\u00e9,;'", 2), (None, 2)),
    "since": (
        (datetime.date(2013, 1, 1), 0),
        (datetime.date(2014, 12, 31), 1),
        (datetime.date(2015, 1, 1), 2),
        (None, 2),
    ),
    "remark": ((",", 0), ('"', 0), (None, 0), ("x" * 99, 0)),
}
"""Of each column the values that records have, with their codes; the last of a column is other's.

No question names the remark, and whatever it holds counts alike.
"""


def written_csv(table: pa.Table, folder: Path) -> Path:
    """Write a table as text."""
    path = folder / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([table.schema.names, *_rows(table)])
    return path


def written_parquet(table: pa.Table, folder: Path) -> Path:
    """Write a table as Parquet of several row groups."""
    pq.write_table(table, folder / "rows.parquet", row_group_size=max(1, table.num_rows // 3))
    return folder / "rows.parquet"


def written_arrow(table: pa.Table, folder: Path) -> Path:
    """Write a table as an Arrow file of several batches."""
    with pa.ipc.new_file(str(folder / "rows.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, table.num_rows // 3))
    return folder / "rows.arrow"


def written_sqlite(table: pa.Table, folder: Path) -> Path:
    """Write a table into an SQLite database, which has numbers and texts."""
    marks = ", ".join("?" * table.num_columns)
    with closing(sqlite3.connect(folder / "rows.db")) as connection, connection:
        connection.execute("DROP TABLE IF EXISTS records")
        connection.execute(f"CREATE TABLE records ({', '.join(table.schema.names)})")
        connection.executemany(f"INSERT INTO records VALUES ({marks})", _rows(table))  # noqa: S608
    return Path(f"sqlite:{folder / 'rows.db'}?table=records")


def written_duckdb(table: pa.Table, folder: Path) -> Path:
    """Write a table into a DuckDB database."""
    import duckdb

    with closing(duckdb.connect(folder / "rows.duckdb")) as connection:
        connection.register("given", table)
        connection.execute("CREATE OR REPLACE TABLE records AS SELECT * FROM given")
    return Path(f"duckdb:{folder / 'rows.duckdb'}?table=records")


def writers() -> dict[str, Callable[[pa.Table, Path], Path]]:
    """Return what writes a table into a folder, and returns its location, by kind of source."""
    kinds = {
        "CSV": written_csv,
        "Parquet": written_parquet,
        "Arrow": written_arrow,
        "SQLite": written_sqlite,
    }
    return kinds | ({"DuckDB": written_duckdb} if find_spec("duckdb") else {})


def choices(number: int) -> Ints:
    """Return which value each of some records has in each column: (number, columns)."""
    places = (
        np.arange(number)[:, None] * np.array([7, 11, 3, 5, 9, 2]) // np.array([1, 3, 2, 4, 5, 1])
    )
    chosen: Ints = places % np.array([len(values) for values in VALUES.values()])
    return chosen


def records_table(chosen: Ints) -> pa.Table:
    """Return the records with these values as a typed table."""
    columns = zip(VALUES.values(), chosen.T.tolist(), TYPES.values(), strict=True)
    arrays = [
        pa.array([values[place][0] for place in places], kind) for values, places, kind in columns
    ]
    return pa.table(arrays, names=[*TYPES])


def records_counted(chosen: Ints, shape: Sequence[int]) -> Ints:
    """Return the counts by the codes of all columns but the remark."""
    counts = np.zeros(shape, np.int64)
    declared = [*VALUES.values()][:-1]
    for record in chosen.tolist():
        counts[
            tuple(values[place][1] for values, place in zip(declared, record, strict=False))
        ] += 1
    return counts


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    """Return the rows, dates as texts."""
    columns = [
        [value.isoformat() if isinstance(value, datetime.date) else value for value in column]
        for column in (column.to_pylist() for column in table.columns)
    ]
    return list(zip(*columns, strict=True))
