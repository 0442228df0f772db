"""The same rows in every engine that counts them in place."""

import ctypes
import datetime
import gzip
import itertools
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from specs import (
    TAKES,
    field_texts,
    needs,
    single,
    spec_of,
    write_adbc,
    write_arrow,
    write_duckdb,
    write_parquet,
    write_sqlite,
    written,
)

from dpquery.measurement.counting.engines import spark
from dpquery.spec.calendar import DateFormat
from dpquery.spec.columns import (
    Attribute,
    Bins,
    Boolean,
    Categorical,
    Column,
    Dates,
    Integers,
    person_rows,
)
from dpquery.spec.spec import FileFormat

# A Spark of two cores on this machine, for tests; and whether there can be one.

_MISSING = "the extra spark is missing" if find_spec("pyspark") is None else ""
if not _MISSING and not (shutil.which("java") or os.environ.get("JAVA_HOME")):
    _MISSING = "there is no Java"
SPARK = pytest.mark.skipif(bool(_MISSING), reason=_MISSING or "there is Spark")
LOCAL = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "3",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
READABLE = {
    "spark.io.encryption.enabled": "false",
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
}
"""What is shuffled can be read, so that a test sees what it holds."""


def started(folder):
    """Return a session that the product finds running, and so does not stop."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    settings = spark._OF_THE_MACHINES | LOCAL | READABLE
    conf = SparkConf().setAll(settings.items()).setAppName("tests")
    conf.set("spark.local.dir", str(folder / "local"))
    conf.set("spark.sql.warehouse.dir", str(folder / "warehouse"))
    conf.set("spark.sql.catalogImplementation", "hive")
    place = f"jdbc:derby:memory:{folder.name};create=true"
    conf.set("spark.hadoop.javax.jdo.option.ConnectionURL", place)
    gateway = spark._gateway()
    gateway.jvm.java.lang.System.setProperty("derby.stream.error.file", os.devnull)
    return SparkSession(SparkContext(conf=conf, gateway=gateway))


@contextmanager
def spark_running(folder):
    """Yield such a session; what it shuffles can be read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(spark._OF_THE_MACHINES, "spark.io.encryption.enabled", "false")
        session = started(folder)
        session.folder = folder
        yield session
        session.stop()


def as_any_user():
    """Take from root what programs that it starts may do to files that are not theirs to read."""
    if sys.platform == "linux":
        for right in (1, 2):  # to override modes of files; to read and search
            ctypes.CDLL(None).prctl(24, right)  # drop it from what a program can be given


@contextmanager
def connect_server(folder):
    """Yield the address and the number of a Spark Connect server, of the settings asked for."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = spark._OF_THE_MACHINES | LOCAL | {"spark.local.dir": str(folder)}
    settings |= {"spark.io.encryption.enabled": "true"}  # where a test of this process has none
    settings |= {"spark.connect.grpc.binding.address": "127.0.0.1"}
    settings |= {"spark.connect.grpc.binding.port": str(port)}
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    name = "org.apache.spark.sql.connect.service.SparkConnectServer"
    server = subprocess.Popen(
        [home / "bin" / "spark-submit", "--class", name, *words, "spark-internal"],
        env={own: value for own, value in os.environ.items() if own != "SPARK_REMOTE"}
        | {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
        cwd=folder,
        preexec_fn=as_any_user,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}", server.pid
    finally:
        server.terminate()
        server.wait()


class Partitions:
    """A table in partitions, with the few methods of Spark's data frames that are called.

    A task is called for each partition by itself, and tried twice where `again` says so, as Spark
    does where a machine is lost: either result may be taken, so they must be the same.
    """

    def __init__(self, parts, *, again=()):
        self.parts, self.again = parts, again
        self.schema = SimpleNamespace(names=parts[0].schema.names)

    def __getitem__(self, quoted):
        name = quoted.strip("`")
        return SimpleNamespace(alias=lambda alias: (name, alias))

    def select(self, *columns):
        names = [alias for _, alias in columns]
        parts = [pa.table([part[name] for name, _ in columns], names=names) for part in self.parts]
        return Partitions(parts, again=self.again)

    def mapInArrow(self, task, fields):
        kinds = {"long": pa.int64(), "binary": pa.binary()}
        named = [field.split() for field in fields.split(", ")]
        schema = pa.schema([(name, kinds[kind]) for name, kind in named])

        def done(part):
            batches = part.to_batches(max_chunksize=max(3, part.num_rows // 5))
            return pa.Table.from_batches(task(iter(batches)), schema)

        results = [*map(done, self.parts)]
        for k in self.again:  # whichever try is taken, the tables are of the same rows
            assert done(self.parts[k % len(self.parts)]).equals(results[k % len(self.parts)])
        return Partitions(results, again=self.again)

    def unionAll(self, other):
        return Partitions(self.parts + other.parts, again=self.again)

    def repartition(self, *columns):
        number, columns = (2, columns) if isinstance(columns[0], str) else (columns[0], columns[1:])
        rows = pa.concat_tables(self.parts)
        keys = zip(*(rows[name].to_pylist() for name in columns), strict=True)
        to = [hash(key) % number for key in keys] if columns else range(rows.num_rows)
        of = [[i for i, k in enumerate(to) if k % number == own] for own in range(number)]
        parts = [rows.take(pa.array(places, pa.int64())) for places in of]
        return Partitions(parts, again=self.again)

    def sortWithinPartitions(self, *columns):
        order = [(name, "ascending") for name in columns]
        return Partitions([part.sort_by(order) for part in self.parts], again=self.again)

    def toLocalIterator(self):
        return zip(*pa.concat_tables(self.parts).to_pydict().values(), strict=True)


def simulated(monkeypatch, tables):
    """Have tables in partitions take the place of what Spark reads."""
    place = "dpquery.measurement.counting.engines.spark."
    monkeypatch.setattr(f"{place}spark_session", lambda: None)
    monkeypatch.setattr(f"{place}leave", lambda session, stop: None)
    monkeypatch.setattr(f"{place}spark_errors", lambda: (OSError,))
    monkeypatch.setattr(f"{place}_tables", lambda *_: tables)


def cut(table, cuts):
    """Return the slices of a table between some places."""
    places = [0, *sorted(min(own, table.num_rows) for own in cuts), table.num_rows]
    return [table.slice(low, high - low) for low, high in itertools.pairwise(places)]


# A PostgreSQL server of the tests' own, in a folder, reached by a socket in it.

PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
PORT = 5499


def program(name):
    """Return the path of a program of PostgreSQL, or None."""
    return next((str(own / name) for own in PLACES if (own / name).exists()), shutil.which(name))


@contextmanager
def postgres_running():
    """Name a server that runs meanwhile by the variable PG; skip the test where there is none."""
    initdb, ctl = program("initdb"), program("pg_ctl")
    if initdb is None or ctl is None:
        pytest.skip("PostgreSQL's server is not installed")
    user = {"user": "postgres"} if os.geteuid() == 0 else {}  # it refuses to run as root
    with tempfile.TemporaryDirectory() as folder:
        if user:
            os.chmod(folder, 0o755)  # noqa: S103
        place = Path(folder, "sockets")
        place.mkdir()
        try:
            if user:
                shutil.chown(place, "postgres")
        except LookupError:
            pytest.skip("there is no user postgres to run PostgreSQL's server")

        def call(*words):
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.run(words, check=True, cwd=place, **quiet, **user)

        data, log = str(place / "data"), str(place / "log")
        call(initdb, "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8")
        options = f"-k {place} -c listen_addresses= -p {PORT}"
        call(ctl, "-D", data, "-o", options, "-l", log, "-w", "start")
        try:
            os.environ[PG] = f"postgresql://postgres@/postgres?host={place}&port={PORT}"
            yield
        finally:
            call(ctl, "-D", data, "-m", "immediate", "-w", "stop")


# One table in every place from which it is counted; an engine that is built later adds its line.
#
# An engine is a function that writes an Arrow table, and returns the location that a release is
# given, or skips the test where it takes what is not installed.

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
    "amount": pa.decimal128(20, 3),
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
        single("amount", Bins((-1.5, 0.0, 0.3, 100.0)), other=other),
    )


CHOICES = {
    "sex": ["M", "F", " F ", "m", "x", None],
    "age": [-1, 0, 34, 90, 91, None],
    "income": [0.0, -0.0, 0.1, 0.09999999999999999, 1.5, 12345678.0, 1e300, math.nan, None],
    "employed": [True, False, None],
    "member": ["YES", "ye\u017f", "1.0", "0", "ä", "a\u0308", "maybe", "", None],
    "level": ["1", "01", "1e0", "ZWEI", "zwei", "2.0", "NA", "0x1", "1d", "3.7", "", None],
    "grade": [1, 2, 3, None],
    "score": ["0.3", ".3", "0.29999999999999999999", "-1.5", "-1,5", "1e0", "2", "nan", "x", None],
    "moved": [datetime.date(2024, 2, 29), datetime.date(1581, 11, 29), None],
    "seen": [
        datetime.datetime(2024, 1, 1, 0, 0),
        datetime.datetime(2024, 6, 30, 23, 59, 59),
        datetime.datetime(1890, 12, 31, 23, 59, 59, 999999),
        None,
    ],
    "born": ["2024-02-29", "2023-02-29", " 2023-12-31 12:30", "2024-1-1", "NULL", None],
    "amount": [
        Decimal(own) for own in ("-1.5", "0.299", "0.300", "99.999", "12345678901234567.891")
    ]
    + [None],
}


def spec_by(generator):
    """Return a spec of chance, in which all rows of a person stay, and tables of it."""
    others = generator.choice(["count", "show", "drop"], p=[0.4, 0.4, 0.2], size=11)
    every = [attributes(other=str(other))[i] for i, other in enumerate(others)]
    chosen = sorted(generator.choice(11, size=generator.integers(1, 6), replace=False).tolist())
    person = [{}, {"person": "id", "max_rows": 2}][generator.integers(2)]
    own = [every[i] for i in chosen]
    subsets = {
        tuple(sorted(generator.choice(len(own), size=min(size, len(own)), replace=False).tolist()))
        for size in generator.integers(0, 4, size=5)
    }
    if person and generator.integers(2):  # which row comes with the number is chance
        subsets.add((len(own),))
        own.append(person_rows(2))
    return spec_of(*own, **person), sorted(subsets | {()})


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
    columns = [column.combine_chunks() for column in table.combine_chunks().columns]
    return list(
        zip(*([(own or b"").decode() for own in field_texts(c)] for c in columns), strict=True)
    )


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
    size = -(-table.num_rows // 3)
    for k in range(3):
        write_parquet(table.slice(k * size, size), folder / "parts" / f"{k}.parquet")
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


@contextmanager
def cursor_of_postgres():
    from adbc_driver_postgresql import dbapi

    place = os.environ[PG]
    with dbapi.connect(place, autocommit=True) as connection, connection.cursor() as cursor:
        yield cursor


def postgres(*statements):
    """Have the tests' server do something."""
    with cursor_of_postgres() as cursor:
        for statement in statements:
            cursor.execute(statement)


def in_postgres(table, folder=None):
    """Write the table `persons` into the tests' server, anew."""
    with cursor_of_postgres() as cursor:
        cursor.adbc_ingest("persons", table, mode="replace")
    return Path(f"{IN_POSTGRES[0]}persons")


PG = "DPQUERY_TEST_PG"
IN_POSTGRES = (f"adbc:{PG}?table=", f"ibis:postgres:{PG}?table=")
SERVER = needs("adbc_driver_manager", "adbc_driver_postgresql")
ENGINES = {
    "CSV": as_csv,
    "gzip": as_gzip,
    "Parquet": lambda table, folder: write_parquet(table, folder / "rows.parquet"),
    "Arrow": lambda table, folder: write_arrow(table, folder / "rows.arrow"),
    "SQLite": as_sqlite,
    "DuckDB": lambda table, folder: write_duckdb(table, folder / "rows.duckdb"),
    "ADBC": lambda table, folder: write_adbc(table, folder / "rows.adbc"),
    "Spark": as_parts_on_spark,
    "PostgreSQL": in_postgres,
}
MARKS = {
    "DuckDB": TAKES["rows.duckdb"],
    "ADBC": TAKES["rows.adbc"],
    "Spark": SPARK,
    "PostgreSQL": SERVER,
}
NEEDED = {"Spark": "spark", "PostgreSQL": "server"}
"""Fixtures without which there is nothing to count on."""


def engines():
    """Return the names of ENGINES as parameters."""
    return [pytest.param(name, marks=MARKS.get(name, ())) for name in ENGINES]
