"""A Spark of two cores on this machine, for tests; and whether there can be one."""

import itertools
import os
import shutil
from contextlib import contextmanager
from importlib.util import find_spec
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dpquery.measurement.counting.engines import spark

_MISSING = "the extra spark is missing" if find_spec("pyspark") is None else ""
if not _MISSING and not (shutil.which("java") or os.environ.get("JAVA_HOME")):
    _MISSING = "there is no Java"
SPARK = pytest.mark.skipif(bool(_MISSING), reason=_MISSING or "there is Spark")
LOCAL = {
    "spark.master": "local[2]",
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
    return SparkSession(SparkContext(conf=conf, gateway=spark._gateway()))


@contextmanager
def running(folder):
    """Yield such a session; what it shuffles can be read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(spark._OF_THE_MACHINES, "spark.io.encryption.enabled", "false")
        session = started(folder)
        session.folder = folder
        yield session
        session.stop()


class Partitions:
    """A table in partitions, with the few methods of Spark's data frames that are called.

    A task is called for each partition by itself, and tried twice where `again` says so: the first
    result is thrown away, as Spark does with that of a machine that is lost.
    """

    def __init__(self, parts, *, again=()):
        self.parts, self.again = parts, again
        self.schema = SimpleNamespace(names=parts[0].schema.names)
        self.rdd = SimpleNamespace(getNumPartitions=lambda: len(parts))
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))

    def __getitem__(self, quoted):
        name = quoted.strip("`")
        return SimpleNamespace(alias=lambda alias: (name, alias))

    def select(self, *columns):
        names = [alias for _, alias in columns]
        parts = [pa.table([part[name] for name, _ in columns], names=names) for part in self.parts]
        return Partitions(parts, again=self.again)

    def mapInArrow(self, task, fields):
        schema = pa.schema([(field.split()[0], pa.int64()) for field in fields.split(", ")])

        def done(part):
            return pa.Table.from_batches(task(iter(part.to_batches(max_chunksize=3))), schema)

        for k in self.again:
            done(self.parts[k % len(self.parts)])
        return Partitions([*map(done, self.parts)], again=self.again)

    def unionAll(self, other):
        return Partitions(self.parts + other.parts, again=self.again)

    def repartition(self, number, *columns):
        rows = pa.concat_tables(self.parts)
        keys = zip(*(rows[name].to_pylist() for name in columns), strict=True)
        to = [hash(key) % number for key in keys] if columns else range(rows.num_rows)
        of = [[i for i, k in enumerate(to) if k % number == own] for own in range(number)]
        parts = [rows.take(pa.array(places, pa.int64())) for places in of]
        return Partitions(parts, again=self.again)

    def toArrow(self):
        return pa.concat_tables(self.parts)


def simulated(monkeypatch, tables):
    """Have tables in partitions take the place of what Spark reads."""
    place = "dpquery.measurement.counting.engines.spark."
    monkeypatch.setattr(f"{place}spark_session", lambda: None)
    monkeypatch.setattr(f"{place}stop_if_ours", lambda session: None)
    monkeypatch.setattr(f"{place}spark_errors", lambda: (OSError,))
    monkeypatch.setattr(f"{place}_tables", lambda *_: tables)


def cut(table, cuts):
    """Return the slices of a table between some places."""
    places = [0, *sorted(min(own, table.num_rows) for own in cuts), table.num_rows]
    return [table.slice(low, high - low) for low, high in itertools.pairwise(places)]
