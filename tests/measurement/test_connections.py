"""Tables behind ADBC: what is refused before the charge, and no password in a message."""

import sqlite3
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from data import ADBC, single, spec_of, write_adbc, write_duckdb
from town import SPEC as TOWN
from town import kinds, ok, plan_town, run, spent

from dpquery.exceptions import DataError
from dpquery.measurement.counting import databases
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.spec.columns import Boolean, Integers

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
    assert "exactly once: name" in refusal(place, spec_of(single("name", Boolean())))
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
def test_a_connection_that_breaks_costs_once_and_goes_on_free(tmp_path, monkeypatch):
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    monkeypatch.setenv(ADBC, "unset by the writer")
    plan_town(tmp_path, TOWN)
    monkeypatch.chdir(tmp_path)
    names = ("age", "sex", "region", "income")
    table = pa.table({name: pa.array(["1", "2"]) for name in names})
    place = write_adbc(table, tmp_path / "rows.adbc")
    with monkeypatch.context() as patch:
        patch.setattr(databases.AdbcTable, "_batches", stopping)
        done = run("release", place, "--epsilon", "1")
    assert (done.code, done.out) == (DataError.exit_code, "")
    assert "could not be read to its end" in done.err
    assert "The charge stands" in done.err
    assert "CANARY" not in done.err
    assert (spent(), kinds()) == ("1", ["register", "reserve"])
    ok("release", place, "--epsilon", "1")
    assert spent() == "1"


@pytest.mark.nightly
def test_an_engine_that_stops_in_place_costs_once_and_goes_on_free(tmp_path, monkeypatch):
    pytest.importorskip("ibis")
    from dpquery.measurement.counting.engines import warehouses

    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    plan_town(tmp_path, TOWN)
    monkeypatch.chdir(tmp_path)
    names = ("age", "sex", "region", "income")
    write_duckdb(pa.table({name: pa.array(["1", "2"]) for name in names}), tmp_path / "rows")
    place, real = "ibis:duckdb:rows?table=persons", warehouses.InPlaceTable.counts

    def half_way(self, counted):
        yield from real(self, counted)
        raise OSError("CANARY")

    with monkeypatch.context() as patch:
        patch.setattr(warehouses.InPlaceTable, "counts", half_way)
        done = run("release", place, "--epsilon", "1")
    assert (done.code, done.out) == (DataError.exit_code, "")
    assert "could not be counted to its end" in done.err
    assert "The charge stands" in done.err
    assert "CANARY" not in done.err
    assert (spent(), kinds()) == ("1", ["register", "reserve"])
    ok("release", place, "--epsilon", "1")
    assert spent() == "1"
    assert "shows no rows" in run("check", place, "workload.yaml", "--to-pipe").err
