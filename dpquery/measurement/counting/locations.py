"""From what a command is given to sources: paths, globs, folders and tables, as one table.

Which files that are is seen from names alone, and they are taken in the order given, those of a
glob or folder by name. A file that is named twice, be it by a link, would count its records twice:
it is refused.
"""

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import parse_qs

from dpquery.exceptions import DataError
from dpquery.measurement.counting.arrow_files import ARROW_SUFFIXES, PARQUET_SUFFIX, ArrowFile
from dpquery.measurement.counting.databases import DuckdbTable, SqliteTable
from dpquery.measurement.counting.sources import Source
from dpquery.measurement.counting.spark_tables import PREFIX as SPARK
from dpquery.measurement.counting.text_files import CODECS, TextFile
from dpquery.spec.model import FileFormat

Data = Path | Sequence[Path | str]
"""Where records lie: paths, globs, folders, `sqlite:FILE?table=NAME`, `duckdb:FILE?table=NAME`.

`spark:PATH` and `spark:table=NAME` are texts: `s3a://` is no path of this machine.
"""
_DATABASES: dict[str, type[SqliteTable | DuckdbTable]] = {
    "sqlite": SqliteTable,
    "duckdb": DuckdbTable,
}


def sources_of(data: Data, file: FileFormat) -> list[Source]:
    """Return the sources that a location names, or several.

    Args:
        data: the locations.
        file: how the spec says that text is written.

    Raises:
        DataError: no file is there, a folder holds folders, or a source is named twice; or it is
            on Spark.
    """
    if spark_locations(data):
        raise DataError("rows on Spark are counted by a release alone; name files for all else")
    given = [data] if isinstance(data, Path) else [Path(location) for location in data]
    sources = [source for location in given for source in _sources_at(location, file)]
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


def _sources_at(location: Path, file: FileFormat) -> Iterator[Source]:
    kind, separator, rest = str(location).partition(":")
    if separator and kind in _DATABASES:
        yield _table(kind, rest, file)
        return
    for path in _files_at(location):
        yield _source(path, file)


def _files_at(location: Path) -> list[Path]:
    """Return the files that a path, a folder or a glob stands for."""
    if location.is_dir():
        inside = _listed(location)
        for path in inside:
            if path.is_dir():
                raise DataError(f"{location} holds the folder {path.name}; name files by a glob")
        if not inside:
            raise DataError(f"{location} is a folder without files; give the path of a data file")
        return inside
    if not location.exists() and glob.has_magic(str(location)):
        matches = sorted(glob.glob(str(location)))
        if not matches:
            raise DataError(f"{location} matches no file; put quotes around it, and check its path")
        return [path for match in matches for path in _files_at(Path(match))]
    return [location]


def _listed(folder: Path) -> list[Path]:
    """Return what is in a folder, by name, but for what is hidden or a writer's mark."""
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


def _table(kind: str, rest: str, file: FileFormat) -> Source:
    path, separator, query = rest.rpartition("?")
    named = parse_qs(query)
    if not (separator and path and named.keys() == {"table"} and len(named["table"]) == 1):
        raise DataError(
            f"{kind}:{rest} does not name a table; write {kind}:FILE?table=NAME, in quotes"
        )
    return _DATABASES[kind](Path(path), named["table"][0], file.decimal)


def _check_distinct(sources: Sequence[Source]) -> None:
    """Refuse a source that is named twice; links to one file are that file."""
    names: dict[tuple[int, int, str], str] = {}
    for source in sources:
        path, table = source.place
        try:
            status = path.stat()
        except (OSError, ValueError):
            continue  # refused where it is opened
        inode = (status.st_dev, status.st_ino, table)
        if inode in names:
            raise DataError(
                f"{source.name} is named twice, first as {names[inode]}, so that its records would "
                "count twice; name each file once"
            )
        names[inode] = source.name
