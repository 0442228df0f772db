"""One table has the same counts wherever it lies, and one refused is refused without its data."""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from engines import (
    DAYS,
    ENGINES,
    IN_POSTGRES,
    NEEDED,
    PG,
    SERVER,
    SPARK,
    as_csv,
    as_parts_on_spark,
    attributes,
    connect_server,
    engines,
    in_postgres,
    postgres,
    postgres_running,
    rows_by,
    spark_running,
    spec_by,
    table_of,
)
from specs import ADBC, assert_equal, single, spec_of, write_adbc, write_duckdb
from town import SPEC as TOWN
from town import kinds, ok, plan_town, run, spent

from dpquery.exceptions import DataError
from dpquery.measurement import curator
from dpquery.measurement.counting import databases
from dpquery.measurement.counting.databases import AdbcTable
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.spec.columns import Bins, Boolean, Categorical, Integers, person_rows

SUBSETS = [(), *((i,) for i in range(11)), (0, 1), (2, 3), (4, 7), (0, 3, 5), (6, 8, 9)]
NUMBERED = "numbers of rows"
SPECS = {
    "rows": spec_of(*attributes()),
    "rows, some left out": spec_of(*attributes(other="drop")[:5], *attributes(other="show")[5:]),
    "persons": spec_of(*attributes(), person="id", max_rows=2),
    "one row a person": spec_of(*attributes(other="show")[:2], person="id", max_rows=1),
    NUMBERED: spec_of(*attributes(), person_rows(1), person="id", max_rows=1),
}
CERTAIN = {"one row a person": [()], NUMBERED: [(), (11,)]}
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


def check_alike(location, expected):
    for name, tables in expected.items():
        assert_equal(counted(location, name), tables)


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with spark_running(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.mark.nightly(daily="DuckDB")
@pytest.mark.parametrize("name", engines())
def test_one_table_has_the_same_counts_in_every_place(name, expected, tmp_path, request):
    if name in NEEDED:
        request.getfixturevalue(NEEDED[name])
    location = ENGINES[name](made(), tmp_path)
    check_alike(location, expected)


def check_many(location, csv, count=60):
    """Count tables of specs of chance in one place and in the CSV file of the same rows."""
    for seed in range(count):
        spec, subsets = spec_by(np.random.default_rng([36, seed]))
        check_header(location, spec)
        found = tabulate(location, spec=spec, subsets=subsets)
        assert_equal(found, tabulate(csv, spec=spec, subsets=subsets))


@pytest.mark.nightly(daily="9-DuckDB")
@pytest.mark.parametrize("name", engines())
@pytest.mark.parametrize("count", [9, 60])
def test_specs_of_chance_are_counted_alike_in_every_place(name, count, tmp_path, request):
    if name in NEEDED:
        request.getfixturevalue(NEEDED[name])
    check_many(ENGINES[name](made(), tmp_path), as_csv(made(), tmp_path), count)


@SPARK
@pytest.mark.nightly
@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_by_spark_connect_specs_of_chance_are_counted_alike(tmp_path, count):
    """In a process of its own: one has either a Spark in it or one elsewhere.

    Each spec is some 8 CPU s: a server starts Python anew for each session, of which there are two.
    """
    pytest.importorskip("grpc")
    places = as_parts_on_spark(made(), tmp_path), str(as_csv(made(), tmp_path))
    program = f"import sys; sys.path[:0] = {sys.path!r}; import test_engines as own; "
    program += (
        f"from pathlib import Path; own.check_many({places[0]!r}, Path({places[1]!r}), {count})"
    )
    with connect_server(tmp_path) as (address, _):
        variables = os.environ | {"SPARK_REMOTE": address}
        done = subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def server():
    with postgres_running():
        in_postgres(made())
        yield


every_way = pytest.mark.parametrize("place", IN_POSTGRES)


@pytest.mark.nightly(daily="adbc")
@SERVER
@every_way
def test_a_table_of_a_server_has_the_same_counts_by_every_way(place, expected, server):
    check_alike(Path(f"{place}persons"), expected)


@SERVER
@every_way
def test_a_view_of_a_server_or_a_table_of_two_schemas_is_refused(place, server):
    postgres(
        "CREATE OR REPLACE VIEW twice AS SELECT * FROM persons",
        "CREATE SCHEMA IF NOT EXISTS other",
        "CREATE TABLE IF NOT EXISTS other.doubled (id text)",
        "CREATE TABLE IF NOT EXISTS doubled (id text)",
    )
    spec = SPECS["rows"]
    assert "is a view" in refusal(f"{place}twice", spec)
    assert "does not exist" in refusal(f"{place}nobody", spec)
    assert "lacks the declared columns" in refusal(f"{place}doubled&schema=other", spec)
    if place.startswith("adbc"):  # the other has the schema public
        assert "several schemas" in refusal(f"{place}doubled", spec)


@pytest.mark.nightly
@SERVER
def test_dates_without_end_and_types_that_only_the_server_knows(server):
    postgres(
        "CREATE TYPE mood AS ENUM ('M', 'F')",
        "CREATE TABLE odd (d date, t timestamp, m mood, c char(4), p point, z timestamptz)",
        "INSERT INTO odd VALUES ('infinity', '-infinity', 'M', 'M'), "
        "('0044-03-15 BC', '20000-01-01', NULL, NULL), "
        "('2024-02-29', '2024-02-29 23:59', 'F', 'F')",
    )
    place = Path(f"{IN_POSTGRES[0]}odd")
    sexes = Categorical(("M", "F"), ("M", "F"))
    for name, kind in (("d", DAYS), ("t", DAYS), ("c", sexes), ("m", sexes)):
        spec = spec_of(single(name, kind, other="show"))
        check_header(place, spec)
        found = tabulate(place, spec=spec, subsets=[(0,)])[0,]
        assert found.sum() == 3
        assert found[-1] == (2 if kind is DAYS else 1)
    for name in "pz":
        assert f"the column {name} has the type" in refusal(place, spec_of(single(name, sexes)))


@SERVER
def test_decimals_of_a_server_are_numbers_however_many_digits_they_have(server):
    postgres(
        "CREATE TABLE amounts (free numeric, cents numeric(9, 2))",
        "INSERT INTO amounts VALUES (0.29999999999999999999, 0.30), (0.3, 0.29), ('NaN', NULL)",
    )
    place = Path(f"{IN_POSTGRES[0]}amounts")
    for column in ("free", "cents"):
        spec = spec_of(single(column, Bins((0.0, 0.3, 1.0)), other="show"))
        check_header(place, spec)
        assert tabulate(place, spec=spec, subsets=[(0,)])[0,].tolist() == [1, 1, 1]


# What may befall a table of a server: when, by which statement, and what is said of it.
MIDWAY, BEFORE = "after the first rows", "between the header and the rows"
OF_READER = "(pid) FROM pg_stat_activity WHERE usename = 'reader'"
POLICY = "CREATE POLICY another ON people AS RESTRICTIVE TO reader USING ({} > 0)"
FAULTS = {
    "cancelled": (MIDWAY, f"SELECT pg_cancel_backend{OF_READER}", "was cancelled"),
    "ended": (MIDWAY, f"SELECT pg_terminate_backend{OF_READER}", "the server ended the session"),
    "killed": (
        MIDWAY,
        "DO $$ BEGIN EXECUTE format($x$COPY (SELECT 1) TO PROGRAM 'kill -9 %s'$x$, (SELECT max"
        f"{OF_READER})); END $$",
        "the server ended the session",
    ),
    "revoked": (BEFORE, "REVOKE SELECT ON people FROM reader", "no right to"),
    "lost column": (BEFORE, "ALTER TABLE people DROP COLUMN age", "lacks the declared column age"),
    "type": (BEFORE, "ALTER TABLE people ALTER age TYPE point USING NULL", "age has the type"),
    "gone": (BEFORE, "ALTER TABLE people RENAME TO others", "does not exist"),
    "one row": (
        BEFORE,
        POLICY.format("CASE age WHEN 9 THEN region::int ELSE 1 END"),
        "in the server's log what",
    ),
    "memory": (
        BEFORE,
        "DO $$ BEGIN CREATE OR REPLACE FUNCTION lacks() RETURNS int LANGUAGE plpgsql AS $x$BEGIN "
        f"RAISE 'out of memory' USING ERRCODE = '53200'; END$x$; {POLICY.format('lacks()')}; "
        "END $$",
        "the server lacks memory",
    ),
    "slow": (BEFORE, POLICY.format("(SELECT 1 FROM pg_sleep(9))"), "took longer than"),
}


@pytest.fixture
def people(server, tmp_path, monkeypatch):
    """A planned town that is the working directory, its rows in a table of which one can read."""
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    plan_town(tmp_path, TOWN)
    monkeypatch.chdir(tmp_path)
    superuser = os.environ[PG]
    monkeypatch.setenv("DPQUERY_TEST_READER", superuser.replace("//postgres@", "//reader@"))

    def restored():
        for _ in range(100):
            with suppress(Exception):  # while a server whose process was killed starts again
                postgres("SELECT 1")
                break
            time.sleep(0.1)
        postgres(
            "DROP TABLE IF EXISTS people, others",
            "CREATE TABLE people AS SELECT k % 5 AS age, 'F' AS sex, CASE k WHEN 9 THEN 'CANARY' "
            "ELSE '1' END AS region, 5 AS income FROM generate_series(0, 99999) AS k",
            "INSERT INTO people VALUES (9, 'CANARY', 'CANARY', 5)",
            "DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN END $$",
            "GRANT SELECT ON people TO reader",
            "ALTER TABLE people ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY everyone ON people TO reader USING (true)",
        )

    restored()
    yield restored
    postgres("DROP TABLE IF EXISTS people, others")


@SERVER
@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS)
def test_what_befalls_a_table_is_named_costs_once_and_goes_on_free(fault, people, monkeypatch):
    when, statement, said = FAULTS[fault]
    location = "adbc:DPQUERY_TEST_READER?table=people"
    location += "&timeout=2" if fault == "slow" else ""
    with monkeypatch.context() as patch:
        if when == BEFORE:
            real = curator.tabulate
            patch.setattr(curator, "tabulate", lambda *a, **k: postgres(statement) or real(*a, **k))
        else:
            pieces = databases._of_a_size

            def stopped(batches):
                for batch in batches:
                    yield from pieces([batch])
                    with suppress(Exception):  # one that is killed takes all sessions with it
                        postgres(statement)

            patch.setattr(databases, "_of_a_size", stopped)
        done = run("release", location, "--epsilon", "1")
    assert (done.code, done.out) == (DataError.exit_code, ""), done
    assert said in done.err
    assert "The charge stands" in done.err
    assert "CANARY" not in done.err
    assert (spent(), kinds()) == ("1", ["register", "reserve"])
    people()
    ok("release", "adbc:DPQUERY_TEST_READER?table=people", "--epsilon", "1")
    assert spent() == "1"


@SERVER
@every_way
def test_without_a_right_to_a_table_the_header_says_so(place, server, monkeypatch):
    postgres(
        "DROP TABLE IF EXISTS secret",
        "CREATE TABLE secret (age int)",
        "DO $$ BEGIN CREATE ROLE nobody LOGIN; EXCEPTION WHEN duplicate_object THEN END $$",
    )
    monkeypatch.setenv(PG, os.environ[PG].replace("//postgres@", "//nobody@"))
    assert "no right to" in refusal(f"{place}secret", AGE)


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


PRIVATE = "postgresql://me:PASSWORD@"
LOCATIONS = {
    f"adbc:{PRIVATE}host/base?table=persons": "no URI on a command line",
    f"adbc:{PRIVATE}host/base": "does not name a table",
    "adbc:DPQUERY_TEST_NONE?table=persons": "NONE is not set",
    "adbc:DPQUERY_TEST_BAD?table=persons": "BAD holds no connection",
    "adbc:DPQUERY_TEST_WORSE?table=persons": "WORSE holds no connection",
    "odbc:SURVEY?table=persons": "adbc:VARIABLE?table=NAME",
    f"{HERE}persons&schema=main&timeout=1h": "timeout= is whole seconds",
    f"{HERE}persons&schema=main&timeout=60": "for PostgreSQL alone",
    **dict.fromkeys(("ibis:", "ibis:duckdb:d", "ibis:duckdb:d?table="), "does not name a table"),
    "ibis:duckdb:d?table=a&x=1": "does not name a table",
    "ibis:snowflake:X?table=t": "before duckdb and postgres",
    "ibis:d?table=t": "before duckdb and postgres",
    "ibis:postgres:X?table=t&spill=/tmp": "before duckdb and postgres",
}


def test_a_location_names_a_variable_and_no_message_shows_what_it_holds(database, monkeypatch):
    monkeypatch.delenv("DPQUERY_TEST_NONE", raising=False)
    monkeypatch.setenv("DPQUERY_TEST_BAD", f"{PRIVATE}127.0.0.1:1/base")
    monkeypatch.setenv("DPQUERY_TEST_WORSE", "nosuchdriver://me:PASSWORD@host/base")
    for location, words in LOCATIONS.items():
        assert words in refusal(location)


def test_a_table_of_several_schemas_names_its_own(database):
    with duckdb.connect(database) as connection:
        connection.execute("CREATE SCHEMA other")
        connection.execute("CREATE TABLE other.persons (age INTEGER[])")
    assert "in several schemas" in refusal(f"{HERE}persons")
    assert "the column age has the type list" in refusal(f"{HERE}persons&schema=other")
    place = Path(f"{HERE}persons&schema=main")
    assert "the declared column name" in refusal(place, spec_of(single("name", Boolean())))
    check_header(place, AGE)
    assert tabulate(place, spec=AGE, subsets=[()])[()] == 3
    with pytest.raises(DataError, match="named twice"):
        check_header([place, place], AGE)


def test_a_file_of_duckdb_is_read_in_bounded_memory_and_spills_nowhere(tmp_path, monkeypatch):
    path, connect, seen = tmp_path / "p.duckdb", duckdb.connect, []
    with connect(path) as connection:
        connection.execute("CREATE TABLE persons AS SELECT 1 AS age")

    def remembering(*given, **options):
        opened = connect(*given, **options)
        names = ("memory_limit", "temp_directory", "autoload_known_extensions")
        seen.append([opened.execute(f"SELECT current_setting('{n}')").fetchone()[0] for n in names])
        return opened

    monkeypatch.setattr(duckdb, "connect", remembering)
    place = Path(f"duckdb:{path}?table=persons")
    assert tabulate(place, spec=AGE, subsets=[()])[()] == 1
    assert seen
    assert all(settings == ["244.1 MiB", "", False] for settings in seen)  # 256 MB
    monkeypatch.setenv(ADBC, f"duckdb:{path}")
    assert setting(ADBC, "memory_limit") == "244.1 MiB"


def setting(variable, name):
    """What a session behind ADBC was told."""
    session = AdbcTable(variable, "persons", "")._connected()
    with session as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT current_setting('{name}')")
        return cursor.fetchone()[0]


@SERVER
def test_a_session_of_a_server_may_only_read(server):
    assert setting(PG, "default_transaction_read_only") == "on"


def test_texts_that_do_not_fit_in_the_memory_of_duckdb_are_the_cause_that_is_named(
    tmp_path, monkeypatch
):
    letters = np.random.default_rng(1).integers(0, 256, (40, 50_000), np.uint8)
    texts = pa.table({"age": [f"CANARY{own.tobytes().hex()}" for own in letters]})
    monkeypatch.setitem(databases._OF_DUCKDB, "memory_limit", "1MB")
    with pytest.raises(DataError, match="too long for DuckDB's memory") as caught:
        tabulate(write_duckdb(texts, tmp_path / "p.duckdb"), spec=AGE, subsets=[()])
    assert "CANARY" not in str(caught.value)


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


def test_the_names_of_tables_that_engines_once_counted_are_read_as_tables(tmp_path):
    path = tmp_path / "rows.duckdb"
    write_duckdb(made(), path)
    with duckdb.connect(path) as connection:
        connection.execute("CREATE SCHEMA other")
        connection.execute("CREATE TABLE other.persons AS FROM main.persons LIMIT 7")
    for rest, records in (("", 300), ("&schema=other", 7), (f"&spill={tmp_path}/spill", 300)):
        for kind in ("ibis:duckdb:", *(["duckdb:"] if "spill" not in rest else [])):
            place = Path(f"{kind}{path}?table=persons{rest}")
            check_header(place, SPECS["rows"])
            assert tabulate(place, spec=SPECS["rows"], subsets=[()])[()] == records
    assert not (tmp_path / "spill").exists()
