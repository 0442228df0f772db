"""Tables that Apache Spark reads, counted by our own counter on the machines where they are read.

Spark brings Arrow batches of the wanted columns to a Python process beside the data, which counts
them as a release on one machine does. Spark itself is asked for no condition, no order of the data,
no conversion and no sum of values, so that it has no say in what a value means. Grouped by Spark
and counted by the driver, a billion rows would come to one machine wherever most of them differ,
and ids would lie in the files that are shuffled; so the counter goes to the rows.

The partial tables of all partitions are added up on the machines too: cells of one block of places
meet in one task, and the driver gets each cell once, one partition at a time. A record is a row.

Where the unit is a person, each row is coded where it is read. What is shuffled is the key of its
person and its codes, so that neither an id nor any other text of a row lies in a shuffle file. All
machines make keys by one function, whose 256 secret bits are drawn for each count and kept in
memory. Rows go to the partition that a hash of the key names, so that all rows of a person meet in
one task, which keeps max_rows of them as everywhere else. There they are sorted, and their
priorities are bits of the same secret and of the lowest key, which no other partition has: so a
task that is tried again draws what it drew before, and all tables are those of the same rows.

All is asked of data frames, so that a Spark that is reached by Spark Connect (SPARK_REMOTE) serves
as well as one in this process. The master, the memory and the catalogue are those of Spark's own
configuration (SPARK_CONF_DIR, PYSPARK_SUBMIT_ARGS, spark-submit); without one Spark runs on this
machine alone. Set or checked here is what a release rests on: what runs beside a release logs
nothing (the machines' own logs are their administrator's, and have sizes of tasks), Spark shows no
page, writes no event log and encrypts what it puts on disks; partitions stay as they are
asked for, names are compared letter by letter, times are in UTC, and a file that is damaged or gone
is an error and never left out.
"""

import os
import re
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa

from dpquery.arrays import Ints
from dpquery.exceptions import DataError
from dpquery.measurement.counting.arrow_files import ROWS_OF_A_PIECE, batch_of, check_types
from dpquery.measurement.counting.sources import check_no_log, places_of
from dpquery.measurement.counting.tally import RecordTally
from dpquery.version import __version__

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark.sql import DataFrame, SparkSession


_Read = TypeVar("_Read")
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
    "spark.log.level": "OFF",  # here, spark-submit or not; machines have logs of their own
    "spark.driver.defaultJavaOptions": "-XX:-UsePerfData -XX:ErrorFile=/dev/null",
}
_OF_THE_QUERY = {
    "spark.sql.adaptive.enabled": "false",  # partitions stay as they are asked for
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.hive.convertMetastoreParquet": "true",  # Hive's tables are read as their files are
    "spark.sql.hive.convertMetastoreOrc": "true",
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
    from pyspark.sql import is_remote

    session: SparkSession | None = None
    unlike: list[str] = []
    asked = "SPARK_REMOTE" in os.environ
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            running = session_type.getActiveSession()
            if running is None and asked:
                _knock(os.environ["SPARK_REMOTE"])
                session = session_type.builder.create()
            else:
                session = (running or _started()).newSession()
        if is_remote():
            _make_hasty(session)
        unlike = [f"{k}={v}" for k, v in _OF_THE_MACHINES.items() if session.conf.get(k, "") != v]
        for key, value in _OF_THE_QUERY.items():
            session.conf.set(key, value)
    except spark_errors():
        session = None
    if session is None:
        raise DataError(
            "Spark cannot be reached: check SPARK_REMOTE, and that its server has this version"
            if asked
            else "Spark could not be started; it needs Java 17 or later (JAVA_HOME) and reads its "
            "own configuration (SPARK_CONF_DIR, PYSPARK_SUBMIT_ARGS): check them with `pyspark`"
        )
    if unlike:
        raise DataError(
            "a Spark that runs already, here or as a Connect server, tells or keeps more than a "
            f"release may; stop it, or start it with {', '.join(unlike)}"
        )
    return session


def _knock(address: str) -> None:
    """Raise OSError where nobody listens at a Connect server's address; Spark tries for minutes."""
    place = urlsplit(address)
    if place.scheme == "sc":
        with socket.create_connection((place.hostname or "", place.port or _CONNECT_PORT), _SOON):
            pass


def _make_hasty(session: "SparkSession") -> None:
    """Have each request of a Connect session try for 8 s to reach its server, not for 10 minutes.

    What it asks when it is stopped is one more.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=6, max_backoff=2000)])
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")


def _started() -> "SparkSession":
    """Return a new session of our own, whose programs print nothing of it."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf().setAll([*_OF_THE_MACHINES.items(), *_OF_THE_PROGRAM.items()])
    context = SparkContext(conf=conf, gateway=_gateway())
    context._accumulatorServer.handle_error = lambda *_: None  # it prints that Java has ended
    return SparkSession(context)


@cache
def _gateway() -> "JavaGateway":
    """Return the connection to a Java machine, the one of this process or of spark-submit."""
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf(loadDefaults=False).setAll(
        [*_OF_THE_MACHINES.items(), *_OF_THE_PROGRAM.items()]
    )
    return launch_gateway(conf, {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL})


def spark_errors() -> tuple[type[Exception], ...]:
    """Return what Spark raises; Java's are not there where Spark is elsewhere."""
    from pyspark.errors import PySparkException

    java: list[type[Exception]] = []
    with suppress(ImportError):
        from py4j.protocol import Py4JError

        java = [Py4JError]
    return (PySparkException, *java, *COUNTER_ERRORS, EOFError)


def _told(error: Exception) -> str:
    """Return the kind and text of an error, for which a Java that has ended is asked in vain."""
    try:
        return f"{type(error).__name__} {error}"
    except spark_errors() as ended:
        return type(ended).__name__


def leave(session: "SparkSession", *, stop: bool) -> None:
    """Have a Connect server drop a session; stop a Spark that we started, if no more is asked."""
    from pyspark.sql import is_remote

    with suppress(*spark_errors()):  # it may be gone
        if is_remote() or (stop and session.conf.get("spark.app.name") == _NAME):
            session.stop()


_CONNECT_PORT, _SOON = 15002, 10.0  # of a Connect server unless said; seconds
PREFIX = "spark:"
_TABLE = "table="
_OF_LOGS = {"delta", "iceberg"}
_PROVIDERS = {"parquet", "orc", *_OF_LOGS}  # of rows; text has records that depend on more
_OF_HIVE = {
    "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
    "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat",
}
_BLOCK = 2**16  # places of cells that go to one task
_OF_A_TASK = 2**22  # cells that one task adds up, about
_SENT = 2**20  # cells that are handed over at once


MakesTally = Callable[..., RecordTally]
"""Makes a tally of nothing; it is carried to the machines, with the secret of persons' keys.

`part=` names the persons whose rows it takes, as the secret and this name draw them.
"""


def check_spark(locations: Sequence[str], declared: Sequence[str]) -> None:
    """Check, from schemas alone, that all tables have every declared column once.

    Raises:
        DataError: Spark cannot be had or says too much; a location is no table; a table or file
            lacks or repeats a declared column, or has one of a type that is no text; the machines
            have another version of dpquery.
    """
    session = spark_session()
    versions: list[str] = []
    try:
        _tables(session, locations, declared)
        one = session.range(0, 1, 1, 1)  # of one partition: each starts a Python
        versions = _mapped(one, _version, "version string").toArrow().column(0).to_pylist()
    except spark_errors():
        pass
    finally:
        leave(session, stop=False)
    if versions != [__version__]:
        raise DataError(
            f"the machines of Spark do not run dpquery {__version__}; install the same version "
            "there, and name its Python in PYSPARK_PYTHON"
        )


def count_on_spark(
    locations: Sequence[str], declared: Sequence[str], *, counter: MakesTally, persons: bool
) -> Iterator[Ints]:
    """Yield the tables of all rows of some tables; Spark is stopped then, if it is ours.

    Locations are each `spark:PATH` or `spark:table=NAME`. Declared columns are checked once more.

    Yields:
        Cells that are not 0 and their counts, (2, n); each cell once.

    Raises:
        DataError: a table could not be read to its end; the message holds nothing of it.
    """
    session, failed, cause = spark_session(), False, _CHECK
    try:
        rows = _tables(session, locations, declared)
        cells = _united((_of_persons if persons else _of_rows)(rows, counter))
        for packed, *_ in _added_up(cells, counter).toLocalIterator():
            yield np.frombuffer(packed, np.int64).reshape(2, -1)
    except spark_errors() as error:
        text, failed = _told(error), True
        cause = next((cause for words, cause in _CAUSES.items() if re.search(words, text)), _CHECK)
    finally:
        leave(session, stop=True)
    if failed:
        # Raised outside the handler: the cause's text may hold what a row holds.
        raise DataError(f"{' '.join(locations)} could not be read to the end{cause}")


_CHECK = (
    "; check the tables, the machines of Spark and their memory (spark.executor.memory, "
    "spark.driver.maxResultSize)"
)
_NO_RIGHT = "PERMISSION|Permission denied|AccessDenied|AccessControl"
_ENDED = (
    "EOFError|Connection(Refused|Reset)Error|Py4JNetworkError|in the JVM|UNAVAILABLE|"
    "SparkContext was shut down|stopped SparkContext"
)
_CAUSES = {
    _NO_RIGHT: ": Spark's user has no right to read it",
    "OutOfMemoryError": ": Spark has too little memory (spark.executor.memory, "
    "spark.driver.memory)",
    "FILE_NOT_EXIST": ": a file is gone since the check; put it back",
    "FAILED_READ_FILE": ": a file is damaged, or not as it was; write it again",
    "CANCEL": ": the job was cancelled",
    "Python worker exited": ": a Python process beside the rows was ended, as for want of memory "
    "(spark.executor.memoryOverhead)",
    _ENDED: ": Spark ended, as for want of memory (spark.driver.memory); see that it runs",
}
"""Why a count ends, by the first pattern in Spark's text; of the text itself nothing is shown.

A file may not be opened, or not fit, and be called missing or damaged for that.
"""


def _of_rows(tables: Sequence["DataFrame"], counter: MakesTally) -> "list[DataFrame]":
    """Return the partial tables of all rows."""

    def partial_tables(batches: Iterator[pa.RecordBatch]) -> Iterator[Ints]:
        tally = counter()
        for batch in batches:
            tally.add(*batch_of(batch.columns))
        yield from map(_in_blocks, tally.partial_tables())

    names = counter().names
    return [
        _mapped(_wanted(table, names), _numbers(partial_tables), _fields(3)) for table in tables
    ]


def _of_persons(tables: Sequence["DataFrame"], counter: MakesTally) -> "list[DataFrame]":
    names = counter().names
    nobody = batch_of([pa.nulls(0)] * len(names))
    words = len(counter().rows_of_persons(nobody.columns))

    def coded(batches: Iterator[pa.RecordBatch]) -> Iterator[Ints]:
        tally = counter()
        for batch in batches:
            texts = batch_of(batch.columns)
            yield tally.rows_of_persons(texts.columns).view(np.int64)

    def partial_tables(batches: Iterator[pa.RecordBatch]) -> Iterator[Ints]:
        tally: RecordTally | None = None
        for rows in map(_words, batches):
            if rows.size:
                tally = tally or counter(part=rows[:2, 0].tobytes())
                tally.add_rows_of_persons(rows.view(np.uint64))
        if tally is not None:
            tally.end_pass()
            yield from map(_in_blocks, tally.partial_tables())

    task, fields = _numbers(coded), _fields(words)
    rows = _united([_mapped(_wanted(table, names), task, fields) for table in tables])
    by_person = rows.repartition("word0", "word1")
    in_order = by_person.sortWithinPartitions(*(f"word{i}" for i in range(words)))
    return [_mapped(in_order, _numbers(partial_tables), _fields(3))]


def _added_up(cells: "DataFrame", counter: MakesTally) -> "DataFrame":
    """Return the sums of cells as bytes of (2, n)."""

    def added_up(batches: Iterator[pa.RecordBatch]) -> Iterator[Ints]:
        tally = counter()
        for words in map(_words, batches):
            tally.add_partial_tables(words[1:])
        yield from tally.partial_tables()

    by_block = cells.repartition(1 + counter().size // _OF_A_TASK, "word0")
    return _mapped(by_block, _numbers(added_up, packed=True), "cells binary")


def _in_blocks(cells: Ints) -> Ints:
    """Put the number of its block before each cell."""
    return np.array([cells[0] // _BLOCK, *cells])


def _words(batch: pa.RecordBatch) -> Ints:
    return np.array([column.to_numpy() for column in batch.columns])


_OfBatches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _numbers(
    words_of: Callable[[Iterator[pa.RecordBatch]], Iterator[Ints]], *, packed: bool = False
) -> _OfBatches:
    """Return a task that yields batches of numbers, or a value that holds the bytes of many.

    Its failure says nothing of the data.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for words in words_of(batches):
                for start in range(0, words.shape[1], _SENT):
                    some = words[:, start : start + _SENT]
                    columns = [pa.array([some.tobytes()])] if packed else [*map(pa.array, some)]
                    names = ["cells"] if packed else [f"word{i}" for i in range(len(some))]
                    yield pa.RecordBatch.from_arrays(columns, names=names)
        except COUNTER_ERRORS:
            pass
        else:
            return
        raise RuntimeError("the rows could not be counted")

    return task


def _fields(number: int) -> str:
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
            table, files = _catalogued(session, place.removeprefix(_TABLE), declared)
            found, files = [table], [place, *files]
        else:
            files = _files(session, place)
            by_types: dict[str, list[str]] = {}
            for file in files:
                types = _checked(_of_parquet(session, [file]), declared, file)
                by_types.setdefault(types, []).append(file)
            found = [_of_parquet(session, of_one_type) for of_one_type in by_types.values()]
        for file in map(_identity, files):
            if file in named:
                raise DataError(
                    f"{location} names a table or file twice, first as {named[file]}, so that its "
                    "records would count twice; name each once"
                )
            named[file] = location
        tables += found
    return tables


def _read(what: Callable[[], _Read], where: str) -> _Read | None:
    text = ""
    try:
        return what()
    except spark_errors() as error:
        text = _told(error)
    for cause in (_NO_RIGHT, _ENDED):
        if re.search(cause, text):
            raise DataError(f"{where} cannot be read{_CAUSES[cause]}")
    return None


def _files(session: "SparkSession", place: str) -> list[str]:
    def found() -> list[str]:
        # With any schema, so that no file is opened yet: their names are wanted.
        reader = session.read.option("recursiveFileLookup", "true").schema("name string")
        return list(reader.parquet(place).inputFiles())

    names = _read(found, f"{PREFIX}{place}") or []
    files = sorted(map(unquote, names))
    if not files:
        raise DataError(
            f"{PREFIX}{place} is no file, folder or glob of files that Spark can read, and "
            f"{PREFIX}{_TABLE}NAME is a table of its catalogue; give one or the other, in quotes"
        )
    _check_no_log(session, [f"{place}/", *map(_as_pattern, files)])
    return files


def _check_no_log(session: "SparkSession", files: Sequence[str]) -> None:
    """Refuse patterns of files that belong to a table whose log says which rows it has."""

    def has(folder: str, log: str) -> bool:
        with suppress(*spark_errors()):  # where nothing is there
            reader = session.read.schema("name string").option("recursiveFileLookup", "true")
            return bool(reader.parquet(f"{folder}/{log}").inputFiles())
        return False

    check_no_log(files, has)


def _as_pattern(name: str) -> str:
    """Return the pattern of this name alone."""
    return re.sub(r"([][{}*?\\])", r"\\\1", name)


def _of_parquet(session: "SparkSession", files: Sequence[str]) -> "DataFrame":
    patterns = map(_as_pattern, files)
    table = _read(lambda: _looked_at(session.read.parquet(*patterns)), files[0])
    if table is not None and table.columns:
        return table
    raise DataError(
        f"{files[0]} is not a Parquet file, or has a column of a type that Spark cannot read; "
        "times in nanoseconds are one: write them in microseconds"
    )


def _looked_at(table: "DataFrame") -> "DataFrame":
    """Return a table that is there: Spark Connect looks where its schema is first asked for."""
    _ = table.schema
    return table


def _identity(file: str) -> str:
    """Return one text for a file of this machine by whatever link it is named."""
    try:
        status = os.stat(file.removeprefix("file://").removeprefix("file:"))
    except (OSError, ValueError):
        return file
    return f"{status.st_dev} {status.st_ino}"


def _catalogued(
    session: "SparkSession", name: str, declared: Sequence[str]
) -> "tuple[DataFrame, list[str]]":
    """Return a table of the catalogue, and its files."""
    where = f"{PREFIX}{_TABLE}{name}"
    quoted = ".".join(map(_quoted, name.split(".")))

    def of_rows() -> "tuple[DataFrame, list[str], dict[str, str]]":
        # Behind all columns, which may have such names too.
        about = session.sql(f"DESCRIBE TABLE EXTENDED {quoted}").collect()
        table = _looked_at(session.table(name))
        files = [unquote(file) for file in table.inputFiles()]
        return table, files, {word: value for word, value, _ in about}

    kind = _read(lambda: session.catalog.getTable(name).tableType, where)
    is_one = kind in {"MANAGED", "EXTERNAL"}
    found = _read(of_rows, where) if is_one else None
    if found is None:
        what = (
            "is a view, in which one row may come to be many"
            if kind and not is_one
            else "does not exist, or Spark cannot read it"
        )
        raise DataError(
            f"{where} {what}; name a table of a catalogue (Hive, Iceberg, Delta) that Spark's "
            "configuration names, as catalogue.schema.table"
        )
    table, files, described = found
    provider = described.get("Provider", "").lower()
    of_hive = provider == "hive" and described.get("InputFormat") in _OF_HIVE
    if provider not in _PROVIDERS and not of_hive:
        raise DataError(
            f"{where} is not stored as rows of {', '.join(sorted(_PROVIDERS))}; Spark's readers of "
            "other kinds may take one record for many: write it as one of these"
        )
    if provider not in _OF_LOGS:
        _check_no_log(session, [*map(_as_pattern, files)])
    _checked(table, declared, where)
    return table, files


def _checked(table: "DataFrame", declared: Sequence[str], where: str) -> str:
    """Check the columns of a table; return the types of the declared ones."""
    from pyspark.sql.pandas.types import to_arrow_type

    places = places_of(declared, _names(table), where=f"{where}: the schema")
    types: list[pa.DataType] = []
    try:
        for name in declared:
            kind = table.schema.fields[places[name]].dataType
            types.append(to_arrow_type(kind, timezone="UTC"))
    except spark_errors():
        pass
    if len(types) < len(declared):
        raise DataError(
            f"{where}: the column {declared[len(types)]} has a type that Arrow lacks, "
            f"{kind.simpleString()}; write it as text"
        )
    check_types(pa.schema(list(zip(declared, types, strict=True))), declared, where=where)
    return str(types)


def _names(table: "DataFrame") -> list[str]:
    return [name.strip() for name in table.schema.names]


def _wanted(table: "DataFrame", names: Sequence[str]) -> "DataFrame":
    real = [table.schema.names[_names(table).index(name)] for name in names]
    return table.select(*(table[_quoted(name)].alias(f"c{i}") for i, name in enumerate(real)))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
