"""Tables that Apache Spark reads and counts.

Sessions of Apache Spark that tell nothing of the data.

The master, the memory and the catalogue are those of Spark's own configuration (SPARK_CONF_DIR,
PYSPARK_SUBMIT_ARGS); without one Spark runs on this machine alone. Set here is what a release rests
on: the programs that Spark starts have no output, it shows no page, writes no event log and
encrypts what it puts on disks; partitions stay as they are asked for, names are compared letter by
letter, times are in UTC, and a file that is damaged or gone is an error and never left out.

Tables that Apache Spark reads, counted by our own counter on the machines where they are read.

Spark brings Arrow batches of the wanted columns to a Python process beside the data, which counts
them as a release on one machine does and sends back partial tables; the driver adds them up. Spark
itself is asked for no condition, no order, no conversion and no sum of values, so that it has no
say in what a value means. A record is a row, and a partition's tables are a result of its task,
which Spark takes once, however often a task is tried. (An accumulator may be added to twice.)

Where the unit is a person, each row is coded where it is read. What is shuffled is the key of its
person and its codes, so that neither an id nor any other text of a row lies in a shuffle file. All
machines make keys by one function, whose 256 secret bits are drawn for each count and kept in
memory. Rows go to the partition that a hash of the key names, so that all rows of a person meet in
one task, whichever task is tried again, and that task keeps max_rows of them as everywhere else.

What Spark could say of the data it says to nobody: the programs that it starts have no output, it
shows no page, writes no event log, and encrypts what it puts on disks.
"""

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from dpquery.arrays import Bits, Ints
from dpquery.exceptions import DataError
from dpquery.measurement.counting.arrow_files import ROWS_OF_A_PIECE, batch_of, check_types
from dpquery.measurement.counting.sources import StoredValues, places_of
from dpquery.version import __version__

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark.sql import DataFrame, SparkSession


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
            "reading by Spark needs the extra `spark`; install it with pip install 'dpquery[spark]'"
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
            "Spark could not be started; it needs Java 17 or later (JAVA_HOME) and reads its own "
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


PREFIX = "spark:"
_TABLE = "table="
_PROVIDERS = {"parquet", "orc", "delta", "iceberg"}  # of rows; text has records that depend on more


class Counter(Protocol):
    """What counts records; made anew in every process."""

    names: list[str]

    def add(self, texts: Sequence[StoredValues], malformed: int) -> None:
        """Count some records."""

    def rows_of_persons(self, texts: Sequence[StoredValues]) -> Bits:
        """Return the rows that are inside as (words, n): the key of the person, then the codes."""

    def add_rows_of_persons(self, rows: Bits) -> None:
        """Take such rows."""

    def end_pass(self) -> bool:
        """Count the rows that stay."""

    def partial_tables(self) -> Iterator[Ints]:
        """Yield (2, n): cells that are not 0, and their counts."""


def check_spark(locations: Sequence[str], declared: Sequence[str]) -> None:
    """Check, from schemas alone, that all tables have every declared column once.

    Raises:
        DataError: Spark cannot be had or says too much; a location is no table; a table or file
            lacks or repeats a declared column, or has one of a type that is no text; the machines
            have another version of dpquery.
    """
    session = spark_session()
    _tables(session, locations, declared)
    versions: list[str] = []
    try:
        answer = _mapped(session.range(1), _version, "version string").toArrow()
        versions = answer.column(0).to_pylist()
    except spark_errors():
        pass
    if versions != [__version__]:
        raise DataError(
            f"the machines of Spark do not run dpquery {__version__}; install the same version "
            "there, and name its Python in PYSPARK_PYTHON"
        )


def count_on_spark(
    locations: Sequence[str],
    declared: Sequence[str],
    *,
    counter: Callable[[], Counter],
    persons: bool,
) -> Iterator[Ints]:
    """Yield the partial tables of all rows of some tables; Spark is stopped then, if it is ours.

    Args:
        locations: each `spark:PATH` or `spark:table=NAME`.
        declared: columns that each must have, checked once more.
        counter: makes a counter; it is carried to the machines, with the secret of its keys.
        persons: whether the unit is a person.

    Yields:
        Cells that are not 0 and their counts, (2, n).

    Raises:
        DataError: a table could not be read to its end; the message holds nothing of it.
    """
    tables: pa.Table | None = None
    session = spark_session()
    try:
        rows = _tables(session, locations, declared)
        tables = (_of_persons if persons else _of_rows)(rows, counter)
    except spark_errors():
        pass
    finally:
        stop_if_ours(session)
    if tables is None:
        # Raised outside the handler: the cause's text may hold what a row holds.
        raise DataError(
            f"{' '.join(locations)} could not be read to the end; check the tables, the machines "
            "of Spark and their memory (spark.executor.memory, spark.driver.maxResultSize)"
        )
    for batch in tables.to_batches():
        yield np.array([column.to_numpy() for column in batch.columns])


def _of_rows(tables: Sequence["DataFrame"], counter: Callable[[], Counter]) -> pa.Table:
    """Return the partial tables of all rows."""

    def partial_tables(batches: Iterator[pa.RecordBatch]) -> Iterator[Ints]:
        tally = counter()
        for batch in batches:
            tally.add(*batch_of(batch.columns))
        yield from tally.partial_tables()

    task, names = _numbers(partial_tables), counter().names
    return _united([_mapped(_wanted(table, names), task, _fields(2)) for table in tables]).toArrow()


def _of_persons(tables: Sequence["DataFrame"], counter: Callable[[], Counter]) -> pa.Table:
    """Return the partial tables of the rows that stay of each person."""
    names = counter().names
    nobody = batch_of([pa.nulls(0)] * len(names))
    words = len(counter().rows_of_persons(nobody.columns))

    def coded(batches: Iterator[pa.RecordBatch]) -> Iterator[Ints]:
        tally = counter()
        for batch in batches:
            texts = batch_of(batch.columns)
            yield tally.rows_of_persons(texts.columns).view(np.int64)

    def partial_tables(batches: Iterator[pa.RecordBatch]) -> Iterator[Ints]:
        tally = counter()
        for batch in batches:
            rows = np.array([column.to_numpy() for column in batch.columns])
            tally.add_rows_of_persons(rows.view(np.uint64))
        tally.end_pass()
        yield from tally.partial_tables()

    task, fields = _numbers(coded), _fields(words)
    rows = _united([_mapped(_wanted(table, names), task, fields) for table in tables])
    # As many partitions as the tables are read in, and enough for all cores.
    number = max(rows.rdd.getNumPartitions(), rows.sparkSession.sparkContext.defaultParallelism)
    by_person = rows.repartition(number, "word0", "word1")
    return _mapped(by_person, _numbers(partial_tables), _fields(2)).toArrow()


_OfBatches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _numbers(words_of: Callable[[Iterator[pa.RecordBatch]], Iterator[Ints]]) -> _OfBatches:
    """Return a task that yields batches of numbers, and whose failure says nothing of the data."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for words in words_of(batches):
                names = [f"word{i}" for i in range(len(words))]
                yield pa.RecordBatch.from_arrays([*map(pa.array, words)], names=names)
        except COUNTER_ERRORS:
            pass
        else:
            return
        raise RuntimeError("the rows could not be counted")

    return task


def _fields(number: int) -> str:
    """Return the schema of batches of numbers."""
    return ", ".join(f"word{i} long" for i in range(number))


def _version(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the version that a machine has."""
    from dpquery.version import __version__ as version_there

    for batch in batches:
        texts = pa.array([version_there] * batch.num_rows, pa.string())
        yield pa.RecordBatch.from_arrays([texts], names=["version"])


def _mapped(table: "DataFrame", task: _OfBatches, fields: str) -> "DataFrame":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of versions of pandas, which nothing here uses
        return table.mapInArrow(task, fields)


def _united(tables: Sequence["DataFrame"]) -> "DataFrame":
    first, *others = tables
    for other in others:
        first = first.unionAll(other)
    return first


# --- tables -------------------------------------------------------------------------------------


def _tables(
    session: "SparkSession", locations: Sequence[str], declared: Sequence[str]
) -> list["DataFrame"]:
    """Return the tables at some locations, checked; files of different types are tables apart."""
    tables: list[DataFrame] = []
    named: dict[str, str] = {}
    for location in locations:
        place = location.removeprefix(PREFIX)
        if place.startswith(_TABLE):
            found = [_catalogued(session, place.removeprefix(_TABLE), declared)]
            files = [place, *map(unquote, found[0].inputFiles())]
        else:
            files = _files(session, place)
            found = _of_files(session, files, declared)
        for file in map(_identity, files):
            if file in named:
                raise DataError(
                    f"{location} names a table or file twice, first as {named[file]}, so that its "
                    "records would count twice; name each once"
                )
            named[file] = location
        tables += found
    return tables


def _of_files(
    session: "SparkSession", files: Sequence[str], declared: Sequence[str]
) -> list["DataFrame"]:
    """Return a table of the files of each type."""
    by_types: dict[str, list[str]] = {}
    for file in files:
        by_types.setdefault(_checked(_of_parquet(session, [file]), declared, file), []).append(file)
    return [_of_parquet(session, of_one_type) for of_one_type in by_types.values()]


def _files(session: "SparkSession", place: str) -> list[str]:
    """Return the files that a path, a folder or a glob stands for."""
    files: list[str] = []
    try:
        # With any schema, so that no file is opened yet: their names are wanted.
        reader = session.read.option("recursiveFileLookup", "true").schema("name string")
        files = sorted(map(unquote, reader.parquet(place).inputFiles()))
    except spark_errors():
        pass
    if not files:
        raise DataError(
            f"{PREFIX}{place} is no file, folder or glob of files that Spark can read, and "
            f"{PREFIX}{_TABLE}NAME is a table of its catalogue; give one or the other, in quotes"
        )
    return files


def _of_parquet(session: "SparkSession", files: Sequence[str]) -> "DataFrame":
    try:
        # A name is no pattern.
        return session.read.parquet(*(re.sub(r"([][{}*?\\])", r"\\\1", file) for file in files))
    except spark_errors():
        pass
    raise DataError(
        f"{files[0]} is not a Parquet file, or has a column of a type that Spark cannot read; "
        "times in nanoseconds are one: write them in microseconds"
    )


def _identity(file: str) -> str:
    """Return one text for a file of this machine by whatever link it is named."""
    try:
        status = os.stat(file.removeprefix("file://").removeprefix("file:"))
    except (OSError, ValueError):
        return file
    return f"{status.st_dev} {status.st_ino}"


def _catalogued(session: "SparkSession", name: str, declared: Sequence[str]) -> "DataFrame":
    """Return a table of the catalogue."""
    where, kind, provider, table = f"{PREFIX}{_TABLE}{name}", "", "", None
    quoted = ".".join(map(_quoted, name.split(".")))
    try:
        kind = session.catalog.getTable(name).tableType
        for column, value, _ in session.sql(f"DESCRIBE TABLE EXTENDED {quoted}").collect():
            provider = value.lower() if column == "Provider" else provider  # behind all columns
        table = session.table(name)
    except spark_errors():
        pass
    if table is None or kind not in {"MANAGED", "EXTERNAL"}:
        what = "is a view, in which one row may come to be many" if kind else "does not exist"
        raise DataError(f"{where} {what}; name a table of the catalogue of Spark")
    if provider not in _PROVIDERS:
        raise DataError(
            f"{where} is not stored as rows of {', '.join(sorted(_PROVIDERS))}; Spark's readers of "
            "other kinds may take one record for many: write it as one of these"
        )
    _checked(table, declared, where)
    return table


def _checked(table: "DataFrame", declared: Sequence[str], where: str) -> str:
    """Check the columns of a table; return the types of the declared ones."""
    from pyspark.sql.pandas.types import to_arrow_type

    places = places_of(declared, _names(table), where=f"{where}: the schema")
    fields = [table.schema.fields[places[name]] for name in declared]
    types: list[pa.DataType] = []
    try:
        types = [to_arrow_type(field.dataType, timezone="UTC") for field in fields]
    except spark_errors():
        pass
    if len(types) < len(fields):
        raise DataError(f"{where}: a declared column has a type that Arrow lacks; write it as text")
    check_types(pa.schema(list(zip(declared, types, strict=True))), declared, where=where)
    return str(types)


def _names(table: "DataFrame") -> list[str]:
    return [name.strip() for name in table.schema.names]


def _wanted(table: "DataFrame", names: Sequence[str]) -> "DataFrame":
    """Return columns of a table, in this order."""
    real = [table.schema.names[_names(table).index(name)] for name in names]
    return table.select(*(table[_quoted(name)].alias(f"c{i}") for i, name in enumerate(real)))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
