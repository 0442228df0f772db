"""A Spark of two cores on this machine, for tests; and whether there can be one."""

import os
import shutil
import subprocess
from importlib.util import find_spec

import pytest

from dpquery.measurement.counting import spark_session

MISSING = "the extra spark is missing" if find_spec("pyspark") is None else ""
if not MISSING and not (shutil.which("java") or os.environ.get("JAVA_HOME")):
    MISSING = "no Java is here"
SPARK = pytest.mark.skipif(bool(MISSING), reason=MISSING)
SETTINGS = {
    **spark_session._OF_THE_MACHINES,
    "spark.master": "local[2]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.worker.reuse": "true",
}


def start(folder, **settings):
    """Return a session that the product finds running, and so does not stop."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf().setAll([*SETTINGS.items(), *settings.items()])
    conf.setAppName("tests").set("spark.local.dir", str(folder / "local"))
    conf.set("spark.sql.warehouse.dir", str(folder / "warehouse"))
    return SparkSession(SparkContext(conf=conf, gateway=spark_session._gateway()))
