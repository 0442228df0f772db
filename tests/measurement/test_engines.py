"""One table has the same counts, bit for bit, wherever it lies and whoever counts it."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from data import assert_equal, single, spec_of
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
    table_of,
)
from engines import postgres_running as running_spark

from dpquery.exceptions import DataError
from dpquery.measurement.counting.engines import warehouses
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Column, person_rows

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
    with running_spark(tmp_path_factory.mktemp("spark")) as session:
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


@pytest.mark.parametrize(
    "name", [pytest.param(own, marks=SERVER_MARKS.get(own, ())) for own in IN_POSTGRES]
)
def test_a_table_of_a_server_has_the_same_counts_by_every_way(name, expected, server):
    check_alike(IN_POSTGRES[name](server), expected, in_place=name == "in place")


@pytest.mark.parametrize(
    "name", [pytest.param(own, marks=SERVER_MARKS.get(own, ())) for own in IN_POSTGRES]
)
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
    assert "exactly once" in refusal("doubled&schema=other")
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
