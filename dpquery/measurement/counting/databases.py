"""Tables of SQLite and DuckDB databases as sources.

A record is a row of a table, and one row more is one record more: a view is refused, since one row
below it may make or change many of its rows. Databases are opened to be read only, columns are
named one by one, and nothing but them is asked for: no order, no condition, no conversion, so that
an engine has no say in what a value means. What a value becomes is the rule of `arrow_files`; an
SQLite value has a type of its own, and its text follows from that.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dpquery.exceptions import DataError
from dpquery.measurement.counting.arrow_files import ROWS_OF_A_PIECE, batch_of, check_types
from dpquery.measurement.counting.sources import (
    Piece,
    StoredFile,
    StoredRecords,
    StoredValues,
    check_kind,
    open_regular,
    places_of,
    sql_name,
)

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class _DatabaseTable(StoredFile):
    """A table of a database that is one file."""

    table: str

    @property
    def name(self) -> str:
        """Path and table."""
        return f"{self.path}, table {self.table}"

    @property
    def place(self) -> tuple[Path, str]:
        """The file and the table."""
        return self.path, self.table

    @property
    def remedy(self) -> str:
        """What to do where the table cannot be read to its end."""
        return "check that the database is whole and that no other program changes it, and the disk"

    def check(self, declared: Sequence[str]) -> Mapping[str, pa.DataType] | None:
        """Check the table, its columns and, where they have some, their types."""
        return self._located(declared)[1]

    def _located(
        self, declared: Sequence[str]
    ) -> tuple[dict[str, str], dict[str, pa.DataType] | None]:
        """Return the column that each declared one is, and its type if it has one."""
        raise NotImplementedError


@dataclass(frozen=True)
class SqliteTable(_DatabaseTable):
    """A table of an SQLite database."""

    decimal: str

    def pieces(
        self, declared: Sequence[str], wanted: Sequence[str], *, size: int
    ) -> Iterator[Piece]:
        """Yield the rows in the order of the table, of the wanted columns alone."""
        names, _ = self._located(declared)
        listed = ", ".join(sql_name(names[column]) for column in wanted)
        # An index would put the rows in another order.
        query = f"SELECT {listed} FROM main.{sql_name(self.table)} NOT INDEXED"  # noqa: S608
        with closing(self._connect()) as connection:
            cursor = connection.execute(query)
            while rows := cursor.fetchmany(ROWS_OF_A_PIECE):
                yield Piece(partial(_batch_of_rows, rows, decimal=self.decimal), 0.0)

    def _connect(self) -> sqlite3.Connection:
        with open_regular(self.path):
            pass
        connection = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)
        connection.text_factory = bytes  # a text that is no UTF-8 is a text like any other
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection

    def _located(self, declared: Sequence[str]) -> tuple[dict[str, str], None]:
        """Return the column that each declared one is; types are those of values."""
        kinds: list[tuple[bytes]] = []
        columns: list[str] | None = None
        try:
            with closing(self._connect()) as connection:
                kinds = connection.execute(
                    "SELECT type FROM main.sqlite_master WHERE name = ?", [self.table]
                ).fetchall()
                described = connection.execute(f"PRAGMA main.table_xinfo({sql_name(self.table)})")
                columns = [row[1].decode("utf-8", "replace") for row in described]
        except sqlite3.Error:
            pass
        if columns is None:
            raise DataError(
                f"{self.path} is not an SQLite database that can be read; give the path of one"
            )
        check_kind([kind.decode() for (kind,) in kinds], where=self.name)
        names = [column.strip() for column in columns]
        places = places_of(declared, names, where=self.name)
        return {column: columns[place] for column, place in places.items()}, None


def _batch_of_rows(rows: Sequence[tuple[object, ...]], *, decimal: str) -> StoredRecords:
    """Return rows of an SQLite table as texts."""
    batch: list[StoredValues] = []
    for column in zip(*rows, strict=True):
        texts: dict[bytes, int] = {}
        index = [texts.setdefault(_text(value, decimal), len(texts)) for value in column]
        batch.append([(pa.array([*texts], pa.large_binary()), np.array(index, np.int32))])
    return StoredRecords(batch)


def _text(value: object, decimal: str) -> bytes:
    """Return the text of an SQLite value."""
    match value:
        case bytes():
            return value
        case None:
            return b""
        case float():
            return repr(value + 0.0).replace(".", decimal).encode()
        case _:
            return str(value).encode()


class DuckdbTable(_DatabaseTable):
    """A table of a DuckDB database, which comes as Arrow batches."""

    def pieces(
        self, declared: Sequence[str], wanted: Sequence[str], *, size: int
    ) -> Iterator[Piece]:
        """Yield the rows in the order of the table, of the wanted columns alone."""
        names, _ = self._located(declared)
        query = self._select([names[column] for column in wanted])
        failed = False
        with closing(self._connect()) as connection:
            try:
                for rows in connection.sql(query).to_arrow_reader(ROWS_OF_A_PIECE):
                    yield Piece(partial(batch_of, rows.columns), 0.0)
            except _duckdb_error():
                failed = True
        if failed:
            raise OSError("the database")

    def _select(self, columns: Sequence[str]) -> str:
        listed = ", ".join(map(sql_name, columns))
        return f"SELECT {listed} FROM main.{sql_name(self.table)}"  # noqa: S608

    def _connect(self) -> "duckdb.DuckDBPyConnection":
        with open_regular(self.path):
            pass
        # No spill files, no other files, no downloads, and one order of rows.
        settings: dict[str, str | bool | int | float | list[str]] = {
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "preserve_insertion_order": True,
        }
        connection: duckdb.DuckDBPyConnection = _duckdb().connect(
            self.path, read_only=True, config=settings
        )
        connection.execute("SET enable_external_access = false")
        return connection

    def _located(self, declared: Sequence[str]) -> tuple[dict[str, str], dict[str, pa.DataType]]:
        """Return the column that each declared one is, and its type if it has one."""
        schema: pa.Schema | None = None
        kinds: list[tuple[str]] | None = None
        try:
            with closing(self._connect()) as connection:
                kinds = connection.execute(
                    "SELECT table_type FROM information_schema.tables "
                    "WHERE table_schema = 'main' AND table_name = ?",
                    [self.table],
                ).fetchall()
                if kinds:
                    none = f"SELECT * FROM main.{sql_name(self.table)} LIMIT 0"  # noqa: S608
                    schema = connection.sql(none).to_arrow_table().schema
        except _duckdb_error():
            pass
        if kinds is None:
            raise DataError(
                f"{self.path} is not a DuckDB database that this version can read; give the path "
                "of one, or write the table to Parquet"
            )
        check_kind(
            ["table" if kind == "BASE TABLE" else kind for (kind,) in kinds], where=self.name
        )
        if schema is None:
            raise DataError(f"{self.name}: its columns cannot be read; write it to Parquet")
        places = places_of(declared, [name.strip() for name in schema.names], where=self.name)
        check_types(schema, declared, where=self.name)
        columns = {column: schema.names[place] for column, place in places.items()}
        return columns, {column: schema.types[place] for column, place in places.items()}


def _duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError:
        pass
    else:
        module: ModuleType = duckdb
        return module
    raise DataError(
        "reading a DuckDB database takes the extra `duckdb`; install it with "
        "pip install 'dpquery[duckdb]'"
    )


def _duckdb_error() -> type[Exception]:
    error: type[Exception] = _duckdb().Error
    return error
