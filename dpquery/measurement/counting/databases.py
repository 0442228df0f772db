"""Tables of SQLite and DuckDB databases, and behind connections by ADBC, as sources.

A record is a row of a base table, and one row more is one record more: a view is refused, since one
row below it may make or change many of its rows, and so is what a connection cannot say the kind
of. Nothing is opened to be written, columns are named one by one, and nothing but them is asked
for: no order, no condition, no conversion, so that an engine has no say in what a value means. What
a value becomes is the rule of `arrow_files`, by the column's type: a double is the same value
whichever engine prints it. An SQLite value has a type of its own, and its text follows from that.

Types must follow from the table's declaration. They are read before the charge, from the query
without its rows, and those that come with the rows must be the same. Drivers of SQLite make types
up from the first rows, by which one row more turned the whole numbers of all others into doubles:
SQLite is refused behind ADBC, and read as a file.

A connection is named by the environment variable that holds its URI or connection string, so that
no password stands on a command line, in a message or in a file.
"""

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dpquery.exceptions import DataError
from dpquery.measurement.counting.arrow_files import ROWS_OF_A_PIECE, batch_of, check_types
from dpquery.measurement.counting.sources import (
    Piece,
    StoppedError,
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
    from adbc_driver_manager.dbapi import Connection


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
    batch: list[StoredValues] = []
    for column in zip(*rows, strict=True):
        texts: dict[bytes, int] = {}
        index = [texts.setdefault(_text(value, decimal), len(texts)) for value in column]
        batch.append([(pa.array([*texts], pa.large_binary()), np.array(index, np.int32))])
    return StoredRecords(batch)


def _text(value: object, decimal: str) -> bytes:
    match value:
        case bytes():
            return value
        case None:
            return b""
        case float():
            return repr(value + 0.0).replace(".", decimal).encode()
        case _:
            return str(value).encode()


@dataclass(frozen=True)
class DuckdbTable(_DatabaseTable):
    """A table of a DuckDB database, which comes as Arrow batches."""

    schema: str = "main"

    @property
    def place(self) -> tuple[Path, str]:
        """The file and the table."""
        return self.path, f"{self.schema}.{self.table}"

    def pieces(
        self, declared: Sequence[str], wanted: Sequence[str], *, size: int
    ) -> Iterator[Piece]:
        """Yield the rows in the order of the table, of the wanted columns alone."""
        names, _ = self._located(declared)
        query = self._select([names[column] for column in wanted])
        failed, cause = False, ""
        with closing(self._connect()) as connection:
            try:
                for rows in connection.sql(query).to_arrow_reader(ROWS_OF_A_PIECE):
                    yield Piece(partial(batch_of, rows.columns), 0.0)
            except _duckdb().OutOfMemoryException:
                cause = "its texts are too long for DuckDB's memory here; write it to Parquet"
            except _duckdb_error():
                failed = True
        if cause:
            raise StoppedError(cause)
        if failed:
            raise OSError("the database")

    def _select(self, columns: Sequence[str]) -> str:
        return _query(columns, self.schema, self.table)

    def _connect(self) -> "duckdb.DuckDBPyConnection":
        with open_regular(self.path):
            pass
        # No spill files, no other files, no downloads, one order of rows, and few pages held.
        settings: dict[str, str | bool | int | float | list[str]] = {
            **_OF_DUCKDB,
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
                    "WHERE table_schema = ? AND table_name = ?",
                    [self.schema, self.table],
                ).fetchall()
                if kinds:
                    none = f"{_query([], self.schema, self.table)} LIMIT 0"
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


_OF_DUCKDB = {"memory_limit": "256MB", "threads": "2"}
"""What its pages may take, 80 % of the machine's memory by itself; texts of 20 kB need half."""


def _query(columns: Sequence[str], schema: str, table: str) -> str:
    """Return the query of all rows, of these columns or of all."""
    place = f"{sql_name(schema)}." if schema else ""
    return f"SELECT {', '.join(map(sql_name, columns)) or '*'} FROM {place}{sql_name(table)}"  # noqa: S608


def _duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError:
        pass
    else:
        module: ModuleType = duckdb
        return module
    raise DataError(
        "reading a DuckDB database needs the extra `duckdb`; install it with "
        "pip install 'dpquery[duckdb]'"
    )


def _duckdb_error() -> type[Exception]:
    error: type[Exception] = _duckdb().Error
    return error


_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_TABLES = {"table", "base table", "partitioned table"}


def variable(name: str) -> str:
    """Return what an environment variable holds; DataError, which does not show it, if nothing."""
    if not _VARIABLE.fullmatch(name):
        raise DataError(
            "a connection is named by the environment variable that holds its URI: "
            "write adbc:VARIABLE?table=NAME, and no URI on a command line"
        )
    if not os.environ.get(name):
        raise DataError(
            f"the environment variable {name} is not set; let it hold the connection's URI"
        )
    return os.environ[name]


@dataclass(frozen=True)
class AdbcTable:
    """A base table behind a driver of Arrow Database Connectivity."""

    at: str  # the environment variable that says how to connect
    table: str  # the table's name
    schema: str  # of the database; the only one that has the table if empty
    driver: str = ""  # whose connection it is; that which the URI begins with if empty
    seconds: int = 0  # that a query may take; what the server itself allows if 0

    @property
    def name(self) -> str:
        """Variable and table."""
        return f"{self.at}, table {self.table}"

    @property
    def place(self) -> tuple[Path, str]:
        """What the variable holds, which no message shows, and the table."""
        return Path(variable(self.at)), f"{self.schema}.{self.table}"

    @property
    def remedy(self) -> str:
        """What to do where the table cannot be read to its end."""
        return "check the connection, and in the server's log what ended the query"

    @property
    def size(self) -> int:
        """Not known."""
        return 0

    def check(self, declared: Sequence[str]) -> Mapping[str, pa.DataType]:
        """Check the kind of the table, its columns and their types."""
        cause = ""
        try:
            return self._typed(declared)[1]
        except self._errors() as error:
            cause = _cause(error)
        if cause:
            raise DataError(f"{self.name} cannot be read: {cause}")
        raise DataError(
            f"{self.at} holds no connection that can be opened and asked for its tables; check "
            "it, and that the database can be reached"
        )

    def pieces(
        self, declared: Sequence[str], wanted: Sequence[str], *, size: int
    ) -> Iterator[Piece]:
        """Yield all rows, of the wanted columns alone."""
        failed, cause = False, ""
        try:
            columns, types = self._typed(declared)
            query = self._select([columns[column] for column in wanted])
            with self._batches(query) as (schema, batches):
                failed = schema.types != [types[column] for column in wanted]
                for batch in () if failed else _of_a_size(batches):
                    rows = [*map(_plain, batch.columns)]
                    yield Piece(partial(batch_of, rows), 0.0)
        except self._errors() as error:
            failed, cause = True, _cause(error)
        if cause:
            raise StoppedError(cause)
        if failed:
            raise OSError("the connection")

    def _typed(self, declared: Sequence[str]) -> tuple[dict[str, str], dict[str, pa.DataType]]:
        """Return the column that each declared one is, and its type."""
        names = self._columns()
        places = places_of(declared, [name.strip() for name in names], where=self.name)
        columns = {column: names[place] for column, place in places.items()}
        if not columns:  # a query names one at least
            return {}, {}
        none = f"{self._select([columns[column] for column in declared])} WHERE 1 = 0"
        with self._batches(none) as (schema, _):
            types = schema.types
        plain = [kind.storage_type if _is_decimal_text(kind) else kind for kind in types]
        renamed = pa.schema(list(zip(declared, plain, strict=True)))
        check_types(renamed, declared, where=self.name)
        return columns, dict(zip(declared, types, strict=True))

    def _select(self, columns: Sequence[str]) -> str:
        return _query(columns, self.schema, self.table)

    def _columns(self) -> list[str]:
        with self._connected() as connection:
            if connection.adbc_get_info().get("vendor_name") == "SQLite":
                raise DataError(
                    f"{self.name}: drivers of SQLite make up a column's type from its first rows; "
                    "name the file, as sqlite:FILE?table=NAME"
                )
            catalogs = connection.adbc_get_objects(
                depth="tables",
                catalog_filter=connection.adbc_current_catalog,
                db_schema_filter=self.schema or None,
            )
            kinds = [
                (schema["db_schema_name"], table["table_type"].lower())
                for catalog in catalogs.read_all().to_pylist()
                for schema in catalog["catalog_db_schemas"] or ()
                for table in schema["db_schema_tables"] or ()
                if table["table_name"] == self.table
                and self.schema in ("", schema["db_schema_name"])
            ]
            if len(kinds) > 1:
                raise DataError(f"{self.name} is in several schemas; add &schema=NAME")
            check_kind(["table" if k in _TABLES else k for _, k in kinds], where=self.name)
            schema = connection.adbc_get_table_schema(
                self.table, db_schema_filter=kinds[0][0] or None
            )
            return list(schema.names)

    @contextmanager
    def _batches(self, query: str) -> Iterator[tuple[pa.Schema, Iterable[pa.RecordBatch]]]:
        with self._connected() as connection, connection.cursor() as cursor:
            if self._scheme() == "postgresql":
                # What the driver holds beside the batches that wait to be counted; 16 MB by itself.
                hint = {"adbc.postgresql.batch_size_hint_bytes": "1000000"}
                cursor.adbc_statement.set_options(**hint)
            cursor.execute(query)
            with cursor.fetch_record_batch() as reader:
                yield reader.schema, reader

    @contextmanager
    def _connected(self) -> "Iterator[Connection]":
        uri = variable(self.at)
        dbapi = _adbc()
        settings, entrypoint = {"uri": uri}, None
        scheme, path = self._scheme(), uri.partition(":")[2]
        if scheme == "sqlite":
            settings = {"uri": path}
        if scheme == "duckdb":
            settings = {"path": path, "access_mode": "read_only"}
            entrypoint = "duckdb_adbc_init"
        with dbapi.connect(
            _driver(scheme), entrypoint=entrypoint, db_kwargs=settings, autocommit=True
        ) as connection:
            with connection.cursor() as cursor:
                for setting in _SETTINGS.get(scheme, ()):
                    cursor.execute(setting)
                if self.seconds:
                    if scheme != "postgresql":
                        raise DataError(
                            f"{self.name}: timeout= is known for PostgreSQL alone; leave it out, "
                            "or bound queries in the database's own settings"
                        )
                    cursor.execute(f"SET statement_timeout = '{self.seconds}s'")
            yield connection

    def _scheme(self) -> str:
        scheme = variable(self.at).partition(":")[0]
        return self.driver or _SCHEMES.get(scheme, scheme)

    def _errors(self) -> tuple[type[Exception], ...]:
        return (_adbc().Error, pa.ArrowException, OSError)


_CAUSES = {
    "08": "the connection was lost; check the server and the network",
    "22": "the server fails over a value; write the table to one of plain columns",
    "42501": "its user has no right to; grant SELECT on the table",
    "42": "it, or a column, is not there or not as it was; put it back",
    "53": "the server lacks memory, disk or connections; free some",
    "57014": "the query was cancelled, or took longer than the server or timeout= allows; give it "
    "more time (timeout=SECONDS)",
    "57": "the server ended the session; check that it runs",
}
"""Why a query ends, by what its SQLSTATE begins with; the words of the server are not shown."""
_WORDS = {
    "canceling statement": "57014",
    "terminating connection": "57",
    "server closed the connection": "57",
    "out of memory": "53",
}


def _cause(error: Exception) -> str:
    state = getattr(error, "sqlstate", None) or ""
    if not state:  # as in the middle of the rows: known by PostgreSQL's English words, if by any
        text = str(error)
        state = next((state for words, state in _WORDS.items() if words in text), "")
    return next((cause for begins, cause in _CAUSES.items() if state.startswith(begins)), "")


def _of_a_size(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of ROWS_OF_A_PIECE: some drivers hand over 2,048 at a time."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_OF_A_PIECE):
            waiting.append(batch.slice(start, ROWS_OF_A_PIECE))
            rows += waiting[-1].num_rows
            if rows >= ROWS_OF_A_PIECE:
                yield pa.concat_batches(waiting)
                waiting, rows = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def _is_decimal_text(kind: pa.DataType) -> bool:
    """Return whether values are exact decimals that a driver hands over as texts."""
    return isinstance(kind, pa.OpaqueType) and (
        kind.type_name == "numeric" and kind.storage_type == pa.string()
    )


def _plain(column: pa.Array) -> pa.Array:
    return column.storage if _is_decimal_text(column.type) else column


def _driver(scheme: str) -> str | None:
    """Return the library of the driver that a Python package brings; else what finds another."""
    if scheme == "duckdb":
        library = find_spec("_duckdb")
        return None if library is None else library.origin
    package = find_spec(f"adbc_driver_{scheme}")
    for folder in () if package is None else package.submodule_search_locations or ():
        for path in sorted(Path(folder).glob("libadbc_driver_*")):
            return str(path)
    return None


_SCHEMES = {"postgres": "postgresql"}
_SETTINGS = {
    "postgresql": ("SET default_transaction_read_only = on",),
    "duckdb": tuple(f"SET {name} = '{value}'" for name, value in _OF_DUCKDB.items()),
}
"""What a session is told, so that it changes nothing, whoever it belongs to, and takes little."""


def _adbc() -> ModuleType:
    try:
        from adbc_driver_manager import dbapi
    except ImportError:
        pass
    else:
        module: ModuleType = dbapi
        return module
    raise DataError(
        "reading by ADBC needs the extra `adbc` and the database's driver; install them with "
        "pip install 'dpquery[adbc]' adbc-driver-postgresql, say"
    )
