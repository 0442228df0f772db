"""One table of records written in every way that a release reads, and slow readings of each."""

import bz2
import gzip
import io
import os
import sqlite3
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tabulate_support import slow_counts

from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.counting.text_files import Dialect
from dpquery.spec.spec import FileFormat

NAMES = ("sex", "age", "income", "w", "b", "extra")
UNPACKED = {"": bytes, ".gz": lambda own: gzip.compress(own, mtime=0), ".bz2": bz2.compress}
UNPACKED[".zst"] = lambda own: pa.compress(own, codec="zstd", asbytes=True)


def packed_in_members(content, suffix):
    """Compress the halves of a file apart, and put them behind each other."""
    half = len(content) // 2
    return UNPACKED[suffix](content[:half]) + UNPACKED[suffix](content[half:])


def dialect_of(file):
    return Dialect(file.delimiter.encode(), file.quote.encode(), file.newlines_in_quotes)


def written(rows, file, *, names=NAMES, line_end="\n"):
    """Write rows of texts as a CSV writer does: quotes where a field needs them, doubled inside."""

    def field(text):
        special = (file.delimiter, file.quote, "\n", "\r") if file.quote else ()
        if any(mark and mark in text for mark in special):
            return file.quote + text.replace(file.quote, file.quote * 2) + file.quote
        return text

    lines = [file.delimiter.join(map(field, row)) for row in (names, *rows)]
    return "".join(line + line_end for line in lines)


def typed_table(rows, kinds):
    """Return rows of Python values as an Arrow table of the kinds given by name."""
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    return pa.table(
        {
            name: pa.array(column, kind)
            for (name, kind), column in zip(kinds.items(), columns, strict=True)
        }
    )


def write_parquet(table, path):
    pq.write_table(table, path, row_group_size=3)
    return path


def write_arrow(table, path):
    with pa.ipc.new_file(path, table.schema) as writer:
        for start in range(0, table.num_rows, 4):
            writer.write_table(table.slice(start, 4))
    return path


def write_stream(table, path):
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    return path


def write_sqlite(table, path):
    path.unlink(missing_ok=True)
    names = [name.replace('"', '""') for name in table.schema.names]
    listed = ", ".join(f'"{name}"' for name in names)
    marks = ", ".join("?" * table.num_columns)
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE persons ({listed})")
        rows = [tuple(row.values()) for row in table.to_pylist()]
        connection.executemany(f"INSERT INTO persons VALUES ({marks})", rows)  # noqa: S608
    connection.close()
    return Path(f"sqlite:{path}?table=persons")


def write_duckdb(table, path):
    import duckdb

    path.unlink(missing_ok=True)
    with duckdb.connect(path) as connection:
        connection.register("rows", table)
        connection.execute("CREATE TABLE persons AS SELECT * FROM rows")
    return Path(f"duckdb:{path}?table=persons")


def write_adbc(table, path):
    """Write a DuckDB database that is read by ADBC; an environment variable says where it is."""
    write_duckdb(table, path)
    os.environ[ADBC] = f"duckdb:{path}"
    return Path(f"adbc:{ADBC}?table=persons")


def write_in_place(table, path):
    write_duckdb(table, path)
    return Path(f"ibis:duckdb:{path}?table=persons")


ADBC = "DPQUERY_TEST_ADBC"
IN_PLACE = {"rows.place": write_in_place}
TYPED = {
    "rows.parquet": write_parquet,
    "rows.arrow": write_arrow,
    "stream.arrow": write_stream,
    "rows.db": write_sqlite,
    "rows.duckdb": write_duckdb,
    "rows.adbc": write_adbc,
}


def needs(*libraries):
    """Skip a test where a library of an extra is missing."""
    missing = [name for name in libraries if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


DUCKDB = needs("duckdb")
TAKES = {
    "rows.duckdb": DUCKDB,
    "rows.adbc": needs("duckdb", "adbc_driver_manager"),
    "rows.place": needs("duckdb", "ibis"),
}


def cases(names, *, slow=()):
    """Return names of sources as parameters, those of extras only where they are installed.

    Args:
        names: the sources.
        slow: those of them that are not tried every day.
    """

    def marks(name):
        needed = [TAKES[name]] if name in TAKES else []
        return [*needed, pytest.mark.slow] if name in slow else needed

    return [pytest.param(name, marks=marks(name)) for name in names]


def counted(location, spec, subsets):
    return tabulate(location, spec=spec, subsets=subsets)


def as_csv(rows):
    """Write rows of texts as plain CSV bytes: what every other source must count like."""
    return written(rows, FileFormat()).encode("utf-8", "surrogatepass")


def expected(rows, spec, subsets):
    header, _, body = as_csv(rows).partition(b"\n")
    return slow_counts(body, spec=spec, header=header, subsets=subsets)


def moved(one, other):
    return {int(np.abs(one[subset] - other[subset]).sum()) for subset in one}


def in_memory(content):
    return io.BytesIO(content)
