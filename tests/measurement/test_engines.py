"""One table has the same counts wherever it lies, and one refused is refused without its data."""

import re
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from data import ADBC, assert_equal, single, spec_of, write_adbc
from engines import (
    DAYS,
    ENGINES,
    IN_POSTGRES,
    SERVER_MARKS,
    as_csv,
    attributes,
    engines,
    in_postgres,
    postgres_running,
    rows_by,
    spark_running,
    table_of,
)
from town import SPEC as TOWN
from town import kinds, ok, plan_town, run, spent

from dpquery.exceptions import DataError
from dpquery.measurement.counting import databases
from dpquery.measurement.counting.engines import warehouses
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.spec.columns import (
    Attribute,
    Bins,
    Boolean,
    Categorical,
    Column,
    Integers,
    person_rows,
)

SUBSETS = [(), *((i,) for i in range(10)), (0, 1), (2, 3), (4, 7), (0, 3, 5), (6, 8, 9)]
NUMBERED = "numbers of rows"
SPECS = {
    "rows": spec_of(*attributes()),
    "rows, some left out": spec_of(*attributes(other="drop")[:5], *attributes(other="show")[5:]),
    "persons": spec_of(*attributes(), person="id", max_rows=2),
    "one row a person": spec_of(*attributes(other="show")[:2], person="id", max_rows=1),
    NUMBERED: spec_of(*attributes(), person_rows(1), person="id", max_rows=1),
}
CERTAIN = {"one row a person": [()], NUMBERED: [(), (10,)]}
"""What does not depend on which row of a person stays, where only one does."""


@lru_cache
def made():
    return table_of(rows_by(np.random.default_rng(11), 300))


def counted(location, name):
    spec = SPECS[name]
    check_header(location, spec)
    return tabulate(location, spec=spec, subsets=CERTAIN.get(name, SUBSETS))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The counts of the CSV file, whose reader has an oracle of its own."""
    csv = as_csv(made(), tmp_path_factory.mktemp("csv"))
    tables = {name: counted(csv, name) for name in SPECS}
    assert all(int(own[()]) > 0 for own in tables.values())
    return tables


def check_alike(location, expected, *, in_place=False):
    for name, tables in expected.items():
        if in_place and name == NUMBERED:
            with pytest.raises(DataError, match="rows_per_person is not counted in place"):
                check_header(location, SPECS[name])
        else:
            assert_equal(counted(location, name), tables)


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with spark_running(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.mark.nightly(daily="in place, DuckDB")
@pytest.mark.parametrize("name", engines())
def test_one_table_has_the_same_counts_in_every_place(name, expected, tmp_path, request):
    if name == "Spark":
        request.getfixturevalue("spark")
    location = ENGINES[name](made(), tmp_path)
    check_alike(location, expected, in_place=name.startswith("in place"))


# ------------------------------------------------------------------------------------ a server


@pytest.fixture(scope="module")
def server():
    with postgres_running() as uri:
        in_postgres(made(), uri)
        yield uri


every_way = pytest.mark.parametrize(
    "name", [pytest.param(own, marks=SERVER_MARKS.get(own, ())) for own in IN_POSTGRES]
)


@every_way
def test_a_table_of_a_server_has_the_same_counts_by_every_way(name, expected, server):
    check_alike(IN_POSTGRES[name](server), expected, in_place=name == "in place")


@every_way
def test_a_view_of_a_server_or_a_table_of_two_schemas_is_refused(name, server):
    import psycopg

    location = str(IN_POSTGRES[name](server)).removesuffix("persons")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE OR REPLACE VIEW twice AS SELECT * FROM persons")
        connection.execute("CREATE SCHEMA IF NOT EXISTS other")
        connection.execute("CREATE TABLE IF NOT EXISTS other.doubled (id text)")
        connection.execute("CREATE TABLE IF NOT EXISTS doubled (id text)")
    spec = SPECS["rows"]

    def refusal(rest):
        with pytest.raises(DataError) as caught:
            check_header(Path(location + rest), spec)
        return str(caught.value)

    assert "is a view" in refusal("twice")
    assert "does not exist" in refusal("nobody")
    assert "more than once" in refusal("doubled&schema=other")
    if name != "in place":  # which has the schema public
        assert "several schemas" in refusal("doubled")


def test_dates_without_end_and_types_that_only_the_server_knows(server):
    psycopg = pytest.importorskip("psycopg")
    pytest.importorskip("ibis")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS odd; DROP TYPE IF EXISTS mood")
        connection.execute("CREATE TYPE mood AS ENUM ('M', 'F')")
        connection.execute("CREATE TABLE odd (d date, t timestamp, m mood, c char(4))")
        rows = "('infinity', '-infinity', 'M', 'M'), ('2024-02-29', '2024-02-29 23:59', 'F', 'F')"
        connection.execute(f"INSERT INTO odd VALUES {rows}")  # noqa: S608
    place = Path("ibis:postgres:DPQUERY_TEST_PG?table=odd")
    sexes = Categorical(("M", "F"), ("M", "F"))
    for name, kind in (("d", DAYS), ("t", DAYS), ("c", sexes)):
        spec = spec_of(single(name, kind, other="show"))
        check_header(place, spec)
        found = tabulate(place, spec=spec, subsets=[(0,)])[0,]
        assert sorted(found.tolist())[-2:] == [1, 1]
        assert found[-1] == (kind is DAYS)
    with pytest.raises(DataError, match=r"types that its engine cannot code|has the type"):
        check_header(place, spec_of(single("m", sexes)))


def test_decimals_of_a_server_are_numbers_however_many_digits_they_have(server):
    pytest.importorskip("adbc_driver_postgresql")
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS amounts")
        connection.execute("CREATE TABLE amounts (free numeric, cents numeric(9, 2))")
        connection.execute(
            "INSERT INTO amounts VALUES (0.29999999999999999999, 0.30), (0.3, 0.29), ('NaN', NULL)"
        )
    for column in ("free", "cents"):
        spec = spec_of(single(column, Bins((0.0, 0.3, 1.0)), other="show"))
        tables = []
        for kind in ("adbc", "ibis:postgres"):
            location = Path(f"{kind}:DPQUERY_TEST_PG?table=amounts")
            check_header(location, spec)
            tables.append(tabulate(location, spec=spec, subsets=[(0,)])[0,].tolist())
        assert tables == [[1, 1, 1]] * 2


def test_a_trial_of_the_server_takes_little_of_its_memory_and_ends(server, monkeypatch):
    """Six merged columns of yes and no: put together, the steps of the query took 1.2 GB."""
    psycopg = pytest.importorskip("psycopg")
    pytest.importorskip("ibis")
    monkeypatch.setenv("DPQUERY_TEST_PG", server)
    merged = Attribute("race", tuple(Column(name, Boolean(), "count") for name in "abcdef"))
    place = Path("ibis:postgres:DPQUERY_TEST_PG?table=merged")
    with psycopg.connect(server, autocommit=True) as connection, ThreadPoolExecutor(1) as pool:
        columns = ", ".join(f"{name} text" for name in "abcdef")
        connection.execute(f"CREATE TABLE merged ({columns})")
        trial, most = pool.submit(check_header, place, spec_of(merged)), 0
        while not trial.done():
            others = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            for (pid,) in connection.execute(others).fetchall():
                with suppress(OSError):
                    held = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
                    most = max(most, int(held[1]) if held else 0)
        trial.result()
    assert 0 < most < 200_000
    monkeypatch.setattr(warehouses, "_PATIENCE", 0.001)
    with pytest.raises(DataError, match=r"needs over 0.001 s; or let rows be read, by .* adbc:"):
        check_header(place, spec_of(merged))


duckdb = pytest.importorskip("duckdb")
pytest.importorskip("adbc_driver_manager")
AGE = spec_of(single("age", Integers(0, 9), other="show"))
HERE = f"adbc:{ADBC}?table="


def refusal(location, spec=AGE):
    with pytest.raises(DataError) as caught:
        check_header(Path(location), spec)
    assert "PASSWORD" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def database(tmp_path, monkeypatch):
    """The path of a database with the table `persons`, which a variable names."""
    monkeypatch.setenv(ADBC, "unset by the writer")
    path = tmp_path / "rows.adbc"
    write_adbc(pa.table({"age": [1, 2, None], "sex": ["M", "F", "F"]}), path)
    return path


def test_a_location_names_a_variable_and_no_message_shows_what_it_holds(monkeypatch):
    shown = refusal("adbc:postgresql://me:PASSWORD@host/base?table=persons")
    assert "no URI on a command line" in shown
    assert "does not name a table" in refusal("adbc:postgresql://me:PASSWORD@host/base")
    monkeypatch.delenv("DPQUERY_TEST_NONE", raising=False)
    assert "NONE is not set" in refusal("adbc:DPQUERY_TEST_NONE?table=persons")
    monkeypatch.setenv("DPQUERY_TEST_BAD", "postgresql://me:PASSWORD@127.0.0.1:1/base")
    assert "BAD holds no connection" in refusal("adbc:DPQUERY_TEST_BAD?table=persons")
    monkeypatch.setenv("DPQUERY_TEST_BAD", "nosuchdriver://me:PASSWORD@host/base")
    assert "BAD holds no connection" in refusal("adbc:DPQUERY_TEST_BAD?table=persons")


def test_odbc_is_refused_with_what_to_use_instead():
    assert "adbc:VARIABLE?table=NAME" in refusal("odbc:SURVEY?table=persons")


def test_what_is_no_base_table_of_the_declared_columns_is_refused(database):
    with duckdb.connect(database) as connection:
        connection.execute("CREATE VIEW twice AS SELECT * FROM persons")
        connection.execute("CREATE SCHEMA other")
        connection.execute("CREATE TABLE other.persons (age INTEGER[])")
    assert "is a view" in refusal(f"{HERE}twice&schema=main")
    assert "does not exist" in refusal(f"{HERE}nobody")
    assert "does not exist" in refusal(f"{HERE}person_")  # no pattern
    assert "in several schemas" in refusal(f"{HERE}persons")
    assert "the column age has the type list" in refusal(f"{HERE}persons&schema=other")
    place = Path(f"{HERE}persons&schema=main")
    assert "the declared column name" in refusal(place, spec_of(single("name", Boolean())))
    check_header(place, AGE)
    assert tabulate(place, spec=AGE, subsets=[()])[()] == 3
    with pytest.raises(DataError, match="named twice"):
        check_header([place, place], AGE)


def test_sqlite_behind_adbc_is_refused_since_its_types_come_from_the_first_rows(
    tmp_path, monkeypatch
):
    driver = pytest.importorskip("adbc_driver_sqlite.dbapi")
    path = tmp_path / "rows.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE persons (age INTEGER)")
        database.executemany("INSERT INTO persons VALUES (?)", [(2**53 + 1,), (1,)])
        database.commit()
        read = []
        for _ in range(2):
            with driver.connect(str(path)) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT age FROM persons ORDER BY rowid")
                read.append(cursor.fetch_arrow_table()["age"][0].as_py())
            database.execute("INSERT INTO persons VALUES (0.5)")
            database.commit()
    assert read == [2**53 + 1, 2.0**53]  # one row more, and another one is not what it was
    monkeypatch.setenv("DPQUERY_TEST_SQLITE", f"sqlite:{path}")
    assert "sqlite:FILE?table=NAME" in refusal("adbc:DPQUERY_TEST_SQLITE?table=persons")


def test_without_the_extras_a_connection_is_refused_before_the_charge(database, monkeypatch):
    monkeypatch.setitem(sys.modules, "adbc_driver_manager", None)
    assert "pip install 'dpquery[adbc]'" in refusal(f"{HERE}persons")


def test_a_column_whose_type_changes_after_the_check_is_not_read(database, monkeypatch):
    place = Path(f"{HERE}persons")
    real = databases.AdbcTable._typed

    def as_it_was(self, declared):
        columns, types = real(self, declared)
        return columns, dict.fromkeys(types, pa.int8())

    monkeypatch.setattr(databases.AdbcTable, "_typed", as_it_was)
    with pytest.raises(DataError, match="could not be read to its end"):
        tabulate(place, spec=AGE, subsets=[()])


@contextmanager
def stopping(self, query, *given):
    """Hand over some rows, and then fail with a text that holds one of them."""
    schema = pa.schema([(name, pa.string()) for name in ("age", "sex", "region", "income")])

    def batches():
        yield pa.record_batch([pa.array(["CANARY"])] * 4, schema=schema)
        raise OSError("CANARY")

    yield schema, () if "1 = 0" in query else batches()


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["ADBC", "in place, DuckDB"])
def test_an_engine_that_stops_half_way_costs_once_and_goes_on_free(tmp_path, monkeypatch, place):
    pytest.importorskip("ibis")
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    monkeypatch.setenv(ADBC, "unset by the writer")
    plan_town(tmp_path, TOWN)
    monkeypatch.chdir(tmp_path)
    names = ("age", "sex", "region", "income")
    location = ENGINES[place](pa.table({name: pa.array(["1", "2"]) for name in names}), tmp_path)
    real = warehouses.InPlaceTable.counts

    def half_way(self, counted):
        yield from real(self, counted)
        raise OSError("CANARY")

    with monkeypatch.context() as patch:
        patch.setattr(databases.AdbcTable, "_batches", stopping)
        patch.setattr(warehouses.InPlaceTable, "counts", half_way)
        done = run("release", location, "--epsilon", "1")
    assert (done.code, done.out) == (DataError.exit_code, "")
    assert re.search("could not be (read|counted) to its end", done.err)
    assert "The charge stands" in done.err
    assert "CANARY" not in done.err
    assert (spent(), kinds()) == ("1", ["register", "reserve"])
    ok("release", location, "--epsilon", "1")
    assert spent() == "1"
    if place == "in place, DuckDB":
        assert "shows no rows" in run("check", location, "workload.yaml", "--to-pipe").err
