"""Tables that are counted where they lie, by one query that Ibis writes.

Rows do not leave the warehouse. What comes back is, of each table that is counted, the cells that
hold records, and how many: true counts, confidential as rows are, and seen by the counter alone.
Why one row more is one record more stands in `pushed_query`, beside the query.

**A backend is tried first.** Before the charge the same query runs over rows that are written into
it, none from the table (`probe`): every count must be the one that our own coder gives, or
the backend is refused.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import DataError
from dpquery.measurement.counting.databases import variable
from dpquery.measurement.counting.engines.probe import case_rows, expected_counts
from dpquery.measurement.counting.engines.pushed_codes import CodeWriter, UnpushableError
from dpquery.measurement.counting.engines.pushed_query import CountedTables, counting_query
from dpquery.measurement.counting.sources import check_kind, open_regular, places_of
from dpquery.spec.columns import Attribute, Domain
from dpquery.spec.spec import Spec

if TYPE_CHECKING:
    from ibis import Table, Value
    from ibis.backends.sql import SQLBackend
    from ibis.expr.datatypes import DataType


_KINDS = {
    "duckdb": "SELECT table_type FROM information_schema.tables "
    "WHERE table_schema = ? AND table_name = ?",
    "postgres": "SELECT table_type FROM information_schema.tables "
    "WHERE table_schema = %s AND table_name = %s",
}
_PATIENCE = 60  # seconds for a query over rows of our own, where a server can be told to stop
_COPIES = 3  # rows of each person that a backend is tried on
_ANSWERED = 2**17  # cells of an answer that are taken at a time


@dataclass(frozen=True)
class InPlaceTable:
    """A base table of a DuckDB file or of a PostgreSQL server.

    Attributes:
        backend: "duckdb" or "postgres".
        at: the path of the file, or the environment variable that holds the connection's URI.
        table: the table's name.
        schema: of the database.
        decimal: the mark of decimals in texts.
        spill: the folder where DuckDB may put what does not fit the memory; none if empty.
    """

    backend: str
    at: str
    table: str
    schema: str
    decimal: str
    spill: str = ""

    @property
    def name(self) -> str:
        """Where the table lies, and its name."""
        return f"{self.at}, table {self.table}"

    @property
    def remedy(self) -> str:
        """What to do where it cannot be counted to its end."""
        if self.backend == "duckdb" and not self.spill:
            return (
                "check that the database is whole, and its memory; &spill=FOLDER names a folder "
                "where it may put rows, ids among them, as plain text until it is done"
            )
        return "check the database, its disk and its memory"

    @property
    def notice(self) -> str:
        """What an operator is told while it is counted."""
        if not self.spill:
            return ""
        return f"; rows that do not fit the memory lie in {self.spill} as plain text"

    def check(self, spec: Spec, classes: Sequence[Ints] | None = None) -> None:
        """Check table, columns and types, and try the backend on rows of our own.

        Args:
            spec: declares the columns and the unit.
            classes: of each attribute the class of every code; each code is its own if None.

        Raises:
            DataError: it cannot be opened, is no base table, lacks a column, holds one that is not
                coded alike in place, or its backend codes one otherwise than our coder.
        """
        if spec.privacy.person is not None and spec.privacy.keep == "first":
            raise DataError(
                f"{self.name}: which rows of a person are the first is not known in place; set "
                "`keep: random`"
            )
        if classes is None:
            classes = [np.arange(size) for size in spec.domain.shape]
        ibis = _ibis(self.backend)
        patience = f", or needs over {_PATIENCE} s" if self.backend == "postgres" else ""
        problem = f"its columns are of types that its engine cannot code{patience}"
        with self._connected(ibis) as connection:
            try:
                if patience:
                    connection.con.execute(f"SET statement_timeout = {round(1000 * _PATIENCE)}")
                rows, names = self._located(connection, spec)
                self._count_none(connection, ibis, rows, names, spec, classes)
                for attribute, classes_of in zip(spec.domain.attributes, classes, strict=True):
                    problem = f"its engine fails over values of {attribute.name}{patience}"
                    kinds = [rows[names[column.name]].type() for column in attribute.columns]
                    if not self._codes_alike(connection, ibis, attribute, spec, classes_of, kinds):
                        problem = f"its engine codes values of {attribute.name} otherwise"
                        break
                    problem = ""
            except UnpushableError as error:
                problem = str(error)
            except _errors(ibis, self.backend):
                pass
        if problem:
            raise DataError(f"{self.name}: {problem}; or let rows be read, by duckdb: or adbc:")

    def counts(self, counted: CountedTables) -> Iterator[Ints]:
        """Yield (2, n): numbers of cells through all tables, and their records; confidential.

        Raises:
            OSError: the engine stopped before its end.
        """
        ibis = _ibis(self.backend)
        failed = False
        with self._connected(ibis) as connection:
            try:
                rows, names = self._located(connection, counted.spec)
                writer, salt = _writer(ibis, self), os.urandom(16)
                query = counting_query(writer, rows, names, counted, salt=salt)
                for answer in _ANSWERS[self.backend](connection, query):
                    yield np.array(answer)
            except _errors(ibis, self.backend):
                failed = True
        if failed:
            raise OSError("the engine")

    @contextmanager
    def _connected(self, ibis: ModuleType) -> "Iterator[SQLBackend]":
        """Yield a connection that cannot change the database."""
        connection = None
        try:
            connection = _CONNECT[self.backend](ibis, self)
        except _errors(ibis, self.backend):
            pass
        if connection is None:
            raise DataError(
                f"{self.at} names no {self.backend} database that can be opened; check what it "
                "holds, and that the database can be reached"
            )
        try:
            yield connection
        finally:
            connection.disconnect()

    def _located(self, connection: "SQLBackend", spec: Spec) -> "tuple[Table, dict[str, str]]":
        """Return the table, and the column of it that each declared one is."""
        listed = connection.con.execute(_KINDS[self.backend], [self.schema, self.table])
        kinds = [kind for (kind,) in listed.fetchall()]
        check_kind(["table" if k == "BASE TABLE" else k for k in kinds], where=self.name)
        with warnings.catch_warnings():
            # Ibis 12 asks DuckDB 2 for a schema by a method that is on its way out.
            warnings.simplefilter("ignore", DeprecationWarning)
            rows = connection.table(self.table, database=self.schema)
        columns = list(rows.columns)
        person = [] if spec.privacy.person is None else [spec.privacy.person]
        declared = [c.name for a in spec.domain.attributes for c in a.columns] + person
        places = places_of(declared, [name.strip() for name in columns], where=self.name)
        return rows, {column: columns[place] for column, place in places.items()}

    def _count_none(
        self,
        connection: "SQLBackend",
        ibis: ModuleType,
        rows: "Table",
        names: Mapping[str, str],
        spec: Spec,
        classes: Sequence[Ints],
    ) -> None:
        """Run the query over none of the rows: an engine sees types that Ibis calls texts."""
        every = range(len(classes))
        counted = CountedTables(spec, every, classes, [(i,) for i in every])
        none = rows.filter(ibis.literal(False))
        query = counting_query(_writer(ibis, self), none, names, counted, salt=b"")
        if any(places.size for places, _ in _ANSWERS[self.backend](connection, query)):
            raise UnpushableError("its engine finds records where there are none")

    def _codes_alike(
        self,
        connection: "SQLBackend",
        ibis: ModuleType,
        attribute: Attribute,
        spec: Spec,
        classes: Ints,
        kinds: "Sequence[DataType]",
    ) -> bool:
        """Count rows of our own by one attribute; return whether the answer is our coder's."""
        rows = case_rows(attribute, kinds)
        names = {column.name: f"v{k}" for k, column in enumerate(attribute.columns)}
        if spec.privacy.person is not None:
            rows = rows.of_persons(copies=_COPIES)
            names[spec.privacy.person] = "person"
        one = replace(spec, domain=Domain((attribute,)), items=())
        counted = CountedTables(one, (0,), (classes,), ((0,),))
        writer = _writer(ibis, self)
        query = counting_query(writer, rows.written(ibis), names, counted, salt=os.urandom(16))
        answer: dict[int, int] = {}
        for places, records in _ANSWERS[self.backend](connection, query):
            answer.update(zip(places.tolist(), records.tolist(), strict=True))
        expected = expected_counts(rows, attribute, classes, spec.privacy, self.decimal)
        return answer == {cell: count for cell, count in enumerate(expected.tolist()) if count}


def _writer(ibis: ModuleType, table: InPlaceTable) -> CodeWriter:
    """Return what writes codes for a backend."""

    def function(name: str, result: str, *given: str) -> "Callable[..., Value]":
        bodies = (lambda _: None, lambda _, encoding: None)
        made: Callable[..., Value] = ibis.udf.scalar.builtin(
            bodies[len(given) - 1], name=name, signature=(given, result)
        )
        return made

    digest = function("md5", "string", "string")
    if table.backend == "duckdb":
        encode = function("encode", "binary", "string")
        decode = function("decode", "string", "binary")
        return CodeWriter(ibis, lambda text: decode(encode(text)), digest, table.decimal)
    convert_to = function("convert_to", "binary", "string", "string")
    convert_from = function("convert_from", "string", "binary", "string")
    return CodeWriter(
        ibis,
        lambda text: convert_from(convert_to(text, "UTF8"), "UTF8"),
        digest,
        table.decimal,
    )


def _open_duckdb(ibis: ModuleType, table: InPlaceTable) -> "SQLBackend":
    with open_regular(Path(table.at)):
        pass
    connection: SQLBackend = ibis.duckdb.connect(
        Path(table.at),
        read_only=True,
        temp_directory=table.spill,
        autoinstall_known_extensions=False,
        autoload_known_extensions=False,
    )
    connection.raw_sql("SET enable_external_access = false")
    return connection


def _open_postgres(ibis: ModuleType, table: InPlaceTable) -> "SQLBackend":
    import psycopg

    options = "-c default_transaction_read_only=on -c timezone=UTC -c client_encoding=UTF8"
    session = psycopg.connect(variable(table.at), options=options, autocommit=True)
    connection: SQLBackend = ibis.postgres.from_connection(session)
    return connection


_CONNECT: dict[str, "Callable[[ModuleType, InPlaceTable], SQLBackend]"] = {
    "duckdb": _open_duckdb,
    "postgres": _open_postgres,
}


def _sql(connection: "SQLBackend", query: "Table") -> str:
    """Return a query as SQL: a subquery a step, since steps put together repeat their parts.

    PostgreSQL puts them together again, and takes gigabytes for what it repeats, unless a step has
    an offset.
    """
    import sqlglot

    options = _ibis(connection.name).options.sql
    fusing, options.fuse_selects = options.fuse_selects, False
    try:
        whole = connection.compiler.to_sqlglot(query)
    finally:
        options.fuse_selects = fusing
    for step in whole.find_all(sqlglot.exp.Select):
        if connection.name == "postgres" and step is not whole:
            step.set("offset", sqlglot.exp.Offset(expression=sqlglot.exp.Literal.number(0)))
    raising = sqlglot.ErrorLevel.RAISE
    text: str = whole.sql(connection.dialect, copy=False, unsupported_level=raising)
    return text


def _duckdb_answers(connection: "SQLBackend", query: "Table") -> Iterator[tuple[Ints, Ints]]:
    """Yield the columns of an answer; Ibis's own reader calls what DuckDB 2 has no more."""
    for batch in connection.con.sql(_sql(connection, query)).to_arrow_reader(_ANSWERED):
        place, records = (batch.column(name).to_numpy() for name in ("place", "records"))
        yield place.astype(np.int64), records.astype(np.int64)


def _postgres_answers(connection: "SQLBackend", query: "Table") -> Iterator[tuple[Ints, Ints]]:
    with connection.con.cursor() as cursor:
        for rows in _fetched(cursor.stream(_sql(connection, query))):
            yield rows[:, 0], rows[:, 1]


def _fetched(rows: Iterable[tuple[int, int]]) -> Iterator[Ints]:
    """Yield rows as arrays, (n, 2), some at a time."""
    rows = iter(rows)
    while some := list(islice(rows, _ANSWERED)):
        yield np.array(some, np.int64)


_ANSWERS = {"duckdb": _duckdb_answers, "postgres": _postgres_answers}
BACKENDS = tuple(_CONNECT)
"""The backends that tests run every kind of column on."""


def _ibis(backend: str) -> ModuleType:
    try:
        import ibis

        if backend == "duckdb":
            import duckdb  # noqa: F401
        else:
            import psycopg  # noqa: F401
    except ImportError:
        pass
    else:
        module: ModuleType = ibis
        return module
    extra = "ibis" if backend == "duckdb" else f"ibis-{backend}"
    raise DataError(
        f"counting in a {backend} database needs the extra `{extra}`; install it with "
        f"pip install 'dpquery[{extra}]'"
    )


def _errors(ibis: ModuleType, backend: str) -> tuple[type[Exception], ...]:
    """Return what a backend raises."""
    own: type[Exception]
    if backend == "duckdb":
        import duckdb

        own = duckdb.Error
    else:
        import psycopg

        own = psycopg.Error
    from sqlglot.errors import SqlglotError

    return own, ibis.common.exceptions.IbisError, SqlglotError
