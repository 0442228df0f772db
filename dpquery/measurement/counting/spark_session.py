"""Sessions of Apache Spark that tell nothing of the data.

The master, the memory and the catalogue are those of Spark's own configuration (SPARK_CONF_DIR,
PYSPARK_SUBMIT_ARGS); without one Spark runs on this machine alone. Set here is what a release rests
on: the programs that Spark starts have no output, it shows no page, writes no event log and
encrypts what it puts on disks; partitions stay as they are asked for, names are compared letter by
letter, times are in UTC, and a file that is damaged or gone is an error and never left out.
"""

import os
import subprocess
import sys
import warnings
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from dpquery.exceptions import DataError
from dpquery.measurement.counting.arrow_files import ROWS_OF_A_PIECE

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark.sql import SparkSession

_NAME = "dpquery"
_OF_THE_MACHINES = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",
    "spark.io.encryption.enabled": "true",
}
"""Settings that hold for all of Spark, and that a session must have if it runs already."""
_OF_THE_PROGRAM = {
    "spark.app.name": _NAME,
    "spark.driver.defaultJavaOptions": "-XX:-UsePerfData -XX:ErrorFile=/dev/null",
}
_OF_THE_QUERY = {
    "spark.sql.adaptive.enabled": "false",  # partitions stay as they are asked for
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.mergeSchema": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",  # no date is an error
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_OF_A_PIECE),
}
COUNTER_ERRORS: tuple[type[Exception], ...] = (OSError, MemoryError, ValueError, TypeError)
COUNTER_ERRORS += (LookupError, OverflowError, RuntimeError, pa.ArrowException)
"""What the counter may raise on data of any kind."""


def spark_session() -> "SparkSession":
    """Return a session with our settings: within the Spark that runs in this process, or a new one.

    The master is that of Spark's own configuration, as all that is not set here.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        raise DataError(
            "spark-submit has started Spark, whose log tells of the data; run dpquery without it, "
            "and set in PYSPARK_SUBMIT_ARGS what spark-submit was given"
        )
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        session_type = None
    else:
        session_type = SparkSession
    if session_type is None:
        raise DataError(
            "reading by Spark takes the extra `spark`; install it with pip install 'dpquery[spark]'"
        )
    session: SparkSession | None = None
    unlike: list[str] = []
    try:
        running = session_type.getActiveSession() or _started()
        given = dict(running.sparkContext.getConf().getAll())
        unlike = [f"{k}={v}" for k, v in _OF_THE_MACHINES.items() if given.get(k) != v]
        session = running.newSession()
        for key, value in _OF_THE_QUERY.items():
            session.conf.set(key, value)
    except spark_errors():
        pass
    if session is None:
        raise DataError(
            "Spark could not be started; it takes Java 17 or later (JAVA_HOME) and reads its own "
            "configuration (SPARK_CONF_DIR, PYSPARK_SUBMIT_ARGS): check them with `pyspark`"
        )
    if unlike:
        raise DataError(
            "a Spark session runs in this process already, and tells or keeps more than a release "
            f"may; stop it, or start it with {', '.join(unlike)}"
        )
    return session


def _started() -> "SparkSession":
    """Return a new session of our own, whose programs print nothing."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf().setAll([*_OF_THE_MACHINES.items(), *_OF_THE_PROGRAM.items()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SparkSession(SparkContext(conf=conf, gateway=_gateway()))


@cache
def _gateway() -> "JavaGateway":
    """Return the connection to a Java machine, the one of this process."""
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf(loadDefaults=False).setAll(
        [*_OF_THE_MACHINES.items(), *_OF_THE_PROGRAM.items()]
    )
    return launch_gateway(conf, {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL})


def spark_errors() -> tuple[type[Exception], ...]:
    """Return what Spark raises."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError, *COUNTER_ERRORS)


def stop_if_ours(session: "SparkSession") -> None:
    """Stop the Spark that a session runs in, and have its files removed, unless others use it."""
    if session.sparkContext.appName == _NAME:
        session.stop()
