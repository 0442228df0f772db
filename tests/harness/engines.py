"""One table in every place from which it is counted; an engine that is built later adds its line.

An engine is a function that writes an Arrow table, and returns the location that a release is
given, or skips the test where it takes what is not installed.
"""

import datetime
import gzip
import os
from pathlib import Path

import pyarrow as pa
import pytest
from source_support import (
    TAKES,
    needs,
    write_adbc,
    write_arrow,
    write_duckdb,
    write_in_place,
    write_parquet,
    write_sqlite,
    written,
)
from spark_support import SPARK
from tabulate_support import single

from dpquery.measurement.counting.arrow_files import batch_of
from dpquery.measurement.counting.column_codes import texts_of as texts_of_values
from dpquery.spec.calendar import DateFormat
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Column, Dates, Integers
from dpquery.spec.spec import FileFormat

DAYS = Dates(datetime.date(2023, 11, 30), datetime.date(2024, 6, 30), "week", DateFormat())
LEVELS = Categorical(("1", "2", ""), ("low", "high", "none"), (("i",), ("II", "zwei"), ("NA",)))
KINDS = {
    "sex": pa.string(),
    "age": pa.int32(),
    "income": pa.float64(),
    "employed": pa.bool_(),
    "member": pa.string(),
    "level": pa.string(),
    "grade": pa.int64(),
    "score": pa.string(),
    "moved": pa.date32(),
    "seen": pa.timestamp("us"),
    "born": pa.string(),
    "id": pa.string(),
}


def attributes(*, other="count"):
    """One attribute of every kind, over columns of numbers, texts, dates and times."""
    return (
        single("sex", Categorical(("M", "F"), ("Male", "Female")), other=other),
        single("age", Integers(-1, 90), other=other),
        single("income", Bins((0.0, 0.1, 1.5, 10.0)), other=other),
        Attribute(
            "active",
            (
                Column("employed", Boolean(), other),
                Column("member", Boolean(("yes", "1", "Ä"), ("no", "0")), other),
            ),
        ),
        single("level", LEVELS, other=other),
        single("grade", LEVELS, other=other),
        single("score", Bins((-1.5, 0.0, 0.3, 1.0, 2.0)), other=other),
        single("moved", DAYS, other=other),
        single("seen", DAYS, other=other),
        single("born", DAYS, other=other),
    )


CHOICES = {
    "sex": ["M", "F", " F ", "m", "x", None],
    "age": [-1, 0, 34, 90, 91, None],
    "income": [0.0, -0.0, 0.1, 0.09999999999999999, 1.5, 12345678.0, 1e300, None],
    "employed": [True, False, None],
    "member": ["YES", "ye\u017f", "1.0", "0", "ä", "maybe", "", None],
    "level": ["1", "01", "1e0", "ZWEI", "zwei", "2.0", "NA", "0x1", "1d", "3.7", "", None],
    "grade": [1, 2, 3, None],
    "score": ["0.3", ".3", "0.29999999999999999999", "-1.5", "-1,5", "1e0", "2", "nan", "x", None],
    "moved": [datetime.date(2024, 2, 29), datetime.date(2023, 11, 29), None],
    "seen": [datetime.datetime(2024, 1, 1, 0, 0), datetime.datetime(2024, 6, 30, 23, 59, 59), None],
    "born": ["2024-02-29", "2023-02-29", " 2023-12-31 12:30", "2024-1-1", "NULL", None],
}


def rows_by(generator, count):
    """Return rows of chance; each person, by ids written in several ways, has two at most."""
    ids = [" p{}", "p{}", "p{}\t", "P{}", "{}", " 0{}.0", "{}\u00a0"]
    return [
        (
            *(own[generator.integers(len(own))] for own in CHOICES.values()),
            None if k % 11 == 0 else ids[generator.integers(7)].format(k // 2),
        )
        for k in range(count)
    ]


def table_of(rows):
    columns = zip(*rows, strict=True)
    return pa.table(
        {
            name: pa.array(own, kind)
            for (name, kind), own in zip(KINDS.items(), columns, strict=True)
        }
    )


def texts_of(table):
    """Return a table's columns as a CSV file would hold them."""
    columns = []
    for column in table.combine_chunks().columns:
        ((values, places),) = batch_of([column.combine_chunks()]).columns[0]
        texts = texts_of_values(values, ".").to_pylist()
        columns.append([(texts[place] or b"").decode() for place in places.tolist()])
    return list(zip(*columns, strict=True))


def as_csv(table, folder):
    path = folder / "rows.csv"
    path.write_text(written(texts_of(table), FileFormat(), names=table.schema.names))
    return path


def as_gzip(table, folder):
    path = folder / "rows.csv.gz"
    path.write_bytes(gzip.compress(as_csv(table, folder).read_bytes()))
    return path


def as_parts_on_spark(table, folder):
    """Three Parquet files of several row groups, so that Spark reads partitions of them."""
    (folder / "parts").mkdir()
    for k in range(3):
        write_parquet(table.slice(k * 100, 100), folder / "parts" / f"{k}.parquet")
    return [f"spark:{folder}/parts/*.parquet"]


def as_sqlite(table, folder):
    """SQLite has whole numbers, doubles and texts."""
    columns = {}
    for name, column in zip(table.schema.names, table.columns, strict=True):
        kind = column.type
        plain = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        written_texts = texts_of(table.select([name]))
        columns[name] = column if plain else pa.array([text or None for (text,) in written_texts])
    return write_sqlite(pa.table(columns), folder / "rows.db")


def in_postgres(table, server):
    """Write the table `persons` into a server, anew."""
    psycopg = pytest.importorskip("psycopg")
    kinds = {pa.string(): "text", pa.int32(): "integer", pa.int64(): "bigint"}
    kinds |= {pa.float64(): "double precision", pa.bool_(): "boolean", pa.date32(): "date"}
    kinds[pa.timestamp("us")] = "timestamp"
    listed = ", ".join(f'"{own.name}" {kinds[own.type]}' for own in table.schema)
    os.environ["DPQUERY_TEST_PG"] = server
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS persons CASCADE")
        connection.execute(f"CREATE TABLE persons ({listed})")
        marks = ", ".join(["%s"] * table.num_columns)
        with connection.cursor() as cursor:
            rows = [tuple(row.values()) for row in table.to_pylist()]
            cursor.executemany(f"INSERT INTO persons VALUES ({marks})", rows)  # noqa: S608


ENGINES = {
    "CSV": as_csv,
    "gzip": as_gzip,
    "Parquet": lambda table, folder: write_parquet(table, folder / "rows.parquet"),
    "Arrow": lambda table, folder: write_arrow(table, folder / "rows.arrow"),
    "SQLite": as_sqlite,
    "DuckDB": lambda table, folder: write_duckdb(table, folder / "rows.duckdb"),
    "ADBC": lambda table, folder: write_adbc(table, folder / "rows.adbc"),
    "in place, DuckDB": lambda table, folder: write_in_place(table, folder / "rows.place"),
    "Spark": as_parts_on_spark,
}
MARKS = {
    "DuckDB": TAKES["rows.duckdb"],
    "ADBC": TAKES["rows.adbc"],
    "in place, DuckDB": TAKES["rows.place"],
    "Spark": (SPARK, pytest.mark.slow),
}
IN_POSTGRES = {
    "ADBC": lambda _: Path("adbc:DPQUERY_TEST_PG?table=persons"),
    "in place": lambda _: Path("ibis:postgres:DPQUERY_TEST_PG?table=persons"),
}
SERVER_MARKS = {
    "ADBC": needs("adbc_driver_manager", "adbc_driver_postgresql"),
    "in place": needs("ibis", "psycopg"),
}


def engines():
    """Return the names of ENGINES as parameters."""
    return [pytest.param(name, marks=MARKS.get(name, ())) for name in ENGINES]
