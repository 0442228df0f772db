"""From what a command is given to sources: paths, globs, folders and tables, as one table.

Which files that are is seen from names alone, and they are taken in the order given, those of a
glob or folder by name. A file that is named twice, be it by a link, would count its records twice:
it is refused.
"""

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import parse_qs

from dpquery.exceptions import DataError
from dpquery.measurement.counting.arrow_files import ARROW_SUFFIXES, PARQUET_SUFFIX, ArrowFile
from dpquery.measurement.counting.databases import AdbcTable, DuckdbTable, SqliteTable
from dpquery.measurement.counting.engines.spark import PREFIX as SPARK
from dpquery.measurement.counting.sources import Source, check_no_log
from dpquery.measurement.counting.text_files import CODECS, TextFile
from dpquery.spec.spec import FileFormat

Data = Path | Sequence[Path | str]
"""Where records lie: paths, globs and folders, or a table of a database, as `SYNTAX` says.

`spark:PATH` and `spark:table=NAME` are texts: `s3a://` is no path of this machine.
"""
SYNTAX = {
    "sqlite": "sqlite:FILE?table=NAME",
    "duckdb": "duckdb:FILE?table=NAME",
    "adbc": "adbc:VARIABLE?table=NAME",
    "ibis": "ibis:duckdb:FILE?table=NAME or ibis:postgres:VARIABLE?table=NAME",
}
"""How a table is named, by what stands before the first colon."""
_OPTIONS = {"adbc": {"schema", "timeout"}, "duckdb": {"schema"}, "ibis": {"schema", "spill"}}
_FORMER = "ibis"
_IN_MEMORY = "/proc/"  # what came on stdin, and is held in memory


def sources_of(data: Data, file: FileFormat) -> list[Source]:
    """Return the sources that a location names, or several.

    Raises:
        DataError: no file is there, a folder holds folders, or a source is named twice; or it is
            on Spark.
    """
    if spark_locations(data):
        raise DataError("rows on Spark are counted by a release alone; name files for all else")
    sources: list[Source] = []
    for location in _given(data):
        if kind := _kind(location):
            sources.append(_table(kind, location, file))
        else:
            sources += [_source(path, file) for path in _files_at(location)]
    if not sources:
        raise DataError("no data is named; give the path of a file")
    _check_distinct(sources)
    return sources


def spark_locations(data: Data) -> list[str]:
    """Return the locations where they are on Spark; none where they are not.

    Raises:
        DataError: some are on Spark and some are not.
    """
    given = [str(location) for location in ([data] if isinstance(data, Path) else data)]
    on_spark = [location for location in given if location.startswith(SPARK)]
    if on_spark and len(on_spark) < len(given):
        raise DataError(
            f"{on_spark[0]} is on Spark, and other data is not; one release reads either"
        )
    return on_spark


def stale_place(data: Data, time: int) -> tuple[str, str] | None:
    """Return the first place of data that is "missing", or was "changed" after a time; or None.

    Seen from names and times of the file system alone: nothing is opened. Of connections and of
    tables on Spark nothing is known.

    The time is in nanoseconds of the epoch.
    """
    for location in _given(data):
        try:
            for path in _files_behind(location):
                # Where the name is a link, it may be the link that is new.
                if max(path.stat().st_mtime_ns, path.lstat().st_mtime_ns) > time:
                    return str(path), "changed"
        except (OSError, ValueError, DataError):
            return str(location), "missing"
    return None


def _files_behind(location: Path) -> Iterable[Path]:
    """Return the files that hold what a location names, as far as it is known; or raise."""
    kind, place = _kind(location), str(location).partition(":")[2]
    if kind == _FORMER:
        kind, _, place = place.partition(":")
    if kind in ("sqlite", "duckdb"):
        database = Path(place.rpartition("?")[0])
        logs = [database.with_name(database.name + ending) for ending in ("-wal", ".wal")]
        return [database, *(log for log in logs if log.exists() and log.stat().st_size)]
    if kind or str(location).startswith((SPARK, _IN_MEMORY)):
        return []
    # A folder changes where a file is put in or taken away, however old that file is.
    return [*_files_at(location), *([location] if location.is_dir() else [])]


def _given(data: Data) -> list[Path]:
    return [data] if isinstance(data, Path) else [Path(location) for location in data]


def _kind(location: Path) -> str:
    """Return what says how a table is named, or "" for files."""
    kind, separator, _ = str(location).partition(":")
    if separator and kind == "odbc":
        raise DataError(
            "tables are no longer read by ODBC: name the table by ADBC (adbc:VARIABLE?table=NAME), "
            "or write it to Parquet; a release that was paid for stays free"
        )
    if separator and kind in ("http", "https", "ftp", "s3", "gs"):
        raise DataError(
            f"data are not read from {kind}:// addresses; download the file, and name that"
        )
    return kind if separator and kind in SYNTAX else ""


def _files_at(location: Path) -> list[Path]:
    is_folder = os.path.isdir(location)  # unlike is_dir, whatever the name is
    whole = os.path.abspath(location)
    check_no_log(
        [f"{whole}/" if is_folder else whole],
        # unlike Path's, it takes a name that no file can have
        lambda own, log: bool(glob.glob(os.path.join(glob.escape(own), log))),
    )
    if is_folder:
        inside = _listed(location)
        if location / "release.json" in inside:
            raise DataError(f"{location} is a release, by its release.json; name the records")
        for path in inside:
            if path.is_dir():
                raise DataError(
                    f"{location} holds the folder {path.name}; name the files themselves, as in "
                    f"'{location / '*.csv'}' (with the quotes)"
                )
        if not inside:
            raise DataError(f"{location} is a folder without files; give the path of a data file")
        return inside
    if not os.path.exists(location) and glob.has_magic(str(location)):
        matches = sorted(glob.glob(str(location)))
        if not matches:
            raise DataError(f"{location} matches no file; check its folder and the pattern")
        return [path for match in matches for path in _files_at(Path(match))]
    return [location]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name[0] not in "._")
    except OSError:
        pass
    raise DataError(f"{folder} is not a folder that can be read; give the path of a data file")


def _source(path: Path, file: FileFormat) -> Source:
    """Return the source that a file is, by its suffix."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    typed = (PARQUET_SUFFIX, *ARROW_SUFFIXES)
    if suffixes[-1:] and suffixes[-1] in typed:
        return ArrowFile(path)
    if len(suffixes) > 1 and suffixes[-1] in CODECS and suffixes[-2] in typed:
        raise DataError(f"{path} is compressed as a whole; unpack it, {suffixes[-2]} is compact")
    return TextFile(path, file)


def _table(kind: str, location: Path, file: FileFormat) -> Source:
    at, options = _table_options(kind, location)
    table, schema = options["table"], options.get("schema", "")
    if kind == _FORMER:  # of tables that engines counted by themselves, and that are read now
        backend, _, at = at.partition(":")
        if backend == "postgres" and at and "spill" not in options:
            return AdbcTable(at, table, schema or "public", driver="postgresql")
        if backend != "duckdb" or not at:
            raise DataError(f"ibis: stands before duckdb and postgres; write {SYNTAX[kind]}")
        kind = backend  # of which nothing is spilled
    match kind:
        case "sqlite":
            return SqliteTable(Path(at), table, file.decimal)
        case "duckdb":
            return DuckdbTable(Path(at), table, schema or "main")
        case _:
            seconds = options.get("timeout", "0")
            if not re.fullmatch("[0-9]{1,6}", seconds):
                raise DataError(
                    "timeout= is whole seconds, such as adbc:VARIABLE?table=NAME&timeout=600"
                )
            return AdbcTable(at, table, schema, seconds=int(seconds))


def _table_options(kind: str, location: Path) -> tuple[str, dict[str, str]]:
    """Return where a table lies, and what is said of it behind the question mark."""
    at, separator, query = str(location).partition(":")[2].rpartition("?")
    options = parse_qs(query)
    names = {"table"} | _OPTIONS.get(kind, set())
    if not (
        separator
        and at
        and "table" in options
        and options.keys() <= names
        and all(len(values) == 1 for values in options.values())
    ):
        # Not shown: it may be a URI with a password.
        raise DataError(
            f"what begins with {kind}: does not name a table; write {SYNTAX[kind]}, in quotes"
        )
    return at, {name: values[0] for name, values in options.items()}


def _check_distinct(sources: Sequence[Source]) -> None:
    """Refuse a source that is named twice; links to one file are that file."""
    names: dict[tuple[object, ...], str] = {}
    for source in sources:
        path, table = source.place
        try:
            status = path.stat()
        except (OSError, ValueError):  # a connection; or a file that is refused where it is opened
            place: tuple[object, ...] = (path, table)
        else:
            place = (status.st_dev, status.st_ino, table)
        if place in names:
            first = "" if names[place] == source.name else f", first as {names[place]}"
            raise DataError(
                f"{source.name} is named twice{first}, so that its records would count twice; name "
                "each file once"
            )
        names[place] = source.name
