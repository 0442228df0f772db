"""A Spark of two cores on this machine, for tests; and whether there can be one."""

import os
import shutil
from importlib.util import find_spec

import pytest

from dpquery.measurement.counting import spark_session

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

    settings = spark_session._OF_THE_MACHINES | LOCAL | READABLE
    conf = SparkConf().setAll(settings.items()).setAppName("tests")
    conf.set("spark.local.dir", str(folder / "local"))
    conf.set("spark.sql.warehouse.dir", str(folder / "warehouse"))
    return SparkSession(SparkContext(conf=conf, gateway=spark_session._gateway()))
