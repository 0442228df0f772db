"""What a source is, and the kinds of files that are read.

What the counter asks of a place where records lie: columns of texts, batch by batch.

A kind of source is one file beside this one: text (`text_files`), Arrow (`arrow_files`), databases
(`databases`), and a line in `locations`. All of them end in the same texts, so that there is one
counter, and what a value means does not depend on where it was stored. Each says in its docstring
why one record more is one record more for the counter, and changes no other. Tables on Spark
(`engines`) are no source: the counter runs beside them.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpquery.exceptions import DataError
from dpquery.spec.problems import near_in_folder, quoted
from dpquery.untrusted.files import kind_of

StoredValues = list[tuple[pa.Array, NDArray[np.int32]]]
"""One column of a batch: blocks of (values, the place of each record's value among them).

Values are texts, as bytes, or typed ones, each of which stands for its text (`column_codes`).
"""


class StoredRecords(NamedTuple):
    """Some records: the texts of the wanted columns, and how many more are malformed."""

    columns: list[StoredValues]
    malformed: int = 0


class Piece(NamedTuple):
    """A batch that is still to be parsed, by any thread, and the share of the source behind it."""

    parse: Callable[[], StoredRecords]
    share: float


class Source(Protocol):
    """One file, or one table of a database."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def place(self) -> tuple[Path, str]:
        """Its file, and its table if the file is a database."""

    @property
    def remedy(self) -> str:
        """What to do where it cannot be read to its end."""

    @property
    def size(self) -> int:
        """Its bytes, for the share of all sources that is done."""

    def check(self, declared: Sequence[str]) -> Mapping[str, pa.DataType] | None:
        """Check, from the header or schema alone, that it has every declared column once.

        Returns:
            The types of the declared columns; nothing of a source of texts, and None where each
            value has a type of its own.

        Raises:
            DataError: it cannot be opened, lacks or repeats a declared column, or has one of a
                type that is no text; the message names declared columns and types only.
        """

    def pieces(
        self, declared: Sequence[str], wanted: Sequence[str], *, size: int
    ) -> Iterator[Piece]:
        """Yield all records in their order.

        Args:
            declared: columns that it must have, checked once more: it may have changed.
            wanted: the columns to read, among the declared ones.
            size: bytes of text in a piece, about; others have pieces of as many rows.
        """


@dataclass(frozen=True)
class StoredFile:
    """A source that is a file, or lies in one."""

    path: Path

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def place(self) -> tuple[Path, str]:
        """The file."""
        return self.path, ""

    @property
    def size(self) -> int:
        """Bytes on disk; 0 where the file is gone, which opening it reports."""
        try:
            return self.path.stat().st_size
        except (OSError, ValueError):
            return 0


class UnfitTextError(ValueError):
    """A source breaks a promise that its spec makes; says what to do, and nothing of its text."""


class StoppedError(OSError):
    """A source could not be read to its end; says why and what to do, and nothing of its text."""


def open_regular(path: Path) -> BinaryIO:
    """Return a regular file, open; anything else could not be read twice."""
    if os.path.isfile(path):  # unlike is_file, whatever the name is
        try:
            return path.open("rb")
        except OSError:
            pass
    if not os.path.lexists(path):
        near = near_in_folder(path)
        instead = (
            "give the path of a data file" if near is None else f"did you mean {quoted(near)}?"
        )
        raise DataError(f"there is no file {path}; {instead}")
    if os.path.isfile(path):
        raise DataError(f"{path} may not be read by you; check its permissions with `ls -l`")
    raise DataError(f"{path} is not a file that can be read; give the path of a data file")


class ColumnsError(DataError):
    """Declared columns are missing, or stand more than once; says which, and what to do.

    Attributes:
        columns: those columns.
    """

    def __init__(
        self, missing: Sequence[str], repeated: Sequence[str], *, where: str, hint: str
    ) -> None:
        self.columns, self._missing, self._repeated = (*missing, *repeated), missing, repeated
        self._sentences = [
            f"{says} the declared column{'s' if names[1:] else ''} {', '.join(names)}{more}"
            for says, names, more in (
                (f"{where} lacks", missing, ""),
                ("has" if missing else f"{where} has", repeated, " more than once"),
            )
            if names
        ]
        self._hint = hint
        super().__init__(self.told(person=None))

    def told(self, *, person: str | None, option: str = "") -> str:
        """Return the message, where a column may be a person's id, or named as `--column NAME`."""
        remedies, said = [], ", and ".join(self._sentences)
        option, _, named = option.partition(" ")
        if named in self._missing and named != person:
            said = said.replace("the declared column", "the column", 1)
            remedies.append(
                f"give {option} the name that stands in the header for {named}, which no "
                "message shows, since a file's first line may be a record"
            )
        if person is not None and person in self.columns:
            remedies.append(
                f"`privacy: unit: person` names {quoted(person)}: change it there, or in the file"
            )
        if any(name not in (person, named) for name in self._missing):
            remedies.append("rename columns in the file, or set `column:` in the spec")
        elif self._repeated:
            remedies.append(
                "give each column of the file a name of its own, or take out all but the right one"
            )
        if self._hint.startswith("if "):
            remedies[0] = f"{self._hint}; else {remedies[0]}"
        elif self._hint:
            remedies = [self._hint]
        return "; ".join([said, *remedies])


def places_of(
    declared: Sequence[str], names: Sequence[str], *, where: str, hint: str = ""
) -> dict[str, int]:
    """Return the place of each declared column among the names of a header or schema.

    Names are of all columns, in their order; a hint says what else to do where columns are missing.
    """
    missing = [name for name in declared if name not in names]
    repeated = [name for name in declared if names.count(name) > 1]
    if missing or repeated:
        raise ColumnsError(missing, repeated, where=where, hint=hint)
    return {name: names.index(name) for name in declared}


def check_kind(kinds: Sequence[str], *, where: str) -> None:
    """Refuse what is no table."""
    if "table" not in kinds:
        what = "is a view, in which one row may come to be many" if kinds else "does not exist"
        raise DataError(f"{where} {what}; name a table of the database")


def check_no_log(files: Iterable[str], has: Callable[[str, str], bool]) -> None:
    """Refuse files of a Delta or Iceberg table, known by the log beside or above them.

    Paths of folders end in a slash; `has` says whether a folder has what a pattern names.
    """
    folders: set[str] = set()
    for file in files:
        folder = os.path.dirname(file)
        while "=" in os.path.basename(folder):  # a partition
            folder = os.path.dirname(folder)
        folders.add(folder)
        if os.path.basename(folder) == "data":  # of Iceberg
            folders.add(os.path.dirname(folder))
    for folder in sorted(folders):
        if any(has(folder, log) for log in ("_delta_log", "metadata/*.metadata.json")):
            raise DataError(
                f"{folder} is a table of Delta or Iceberg, whose files hold removed rows too; read "
                "it by its table name in Spark (spark:table=NAME), or export it to Parquet"
            )


def sql_name(name: str) -> str:
    """Return a name as SQL writes it where it may be any."""
    return '"' + name.replace('"', '""') + '"'


SUFFIX_OF_CODEC = {"gzip": ".gz", "zstd": ".zst", "bz2": ".bz2"}
_SUFFIXES = {**SUFFIX_OF_CODEC, "Parquet": ".parquet", "Arrow": ".arrow"}
_REMEDIES = {
    "zip": "it is a zip archive, as .xlsx files are: unpack it, or write the table as CSV",
    "SQLite": "it is an SQLite database: name a table, 'sqlite:FILE?table=NAME'",
    "DuckDB": "it is a DuckDB database: name a table, 'duckdb:FILE?table=NAME'",
    "Office": "it is an old Office file, as .xls files are: write the table as CSV",
    "Stata": "it is a Stata file: write the table as CSV",
    "SPSS": "it is an SPSS file: write the table as CSV",
    "PNG": "it is a PNG file: name the file of the records",
    "JPEG": "it is a JPEG file: name the file of the records",
    "PDF": "it is a PDF file: name the file of the records",
}
_LONGEST = 16  # first bytes that tell kinds apart


def kind_of_file(path: Path) -> str:
    """Return what a file is by its first bytes; DataError if it cannot be read."""
    with open_regular(path) as file:
        try:
            return kind_of(file.read(_LONGEST))
        except OSError:
            return ""


def remedy_for(kind: str, path: Path) -> str:
    """Return what to do about a file of a kind; an empty text where it has the suffix of its kind.

    >>> remedy_for("gzip", Path("data.csv"))
    'it is gzip: give it the suffix .gz'
    """
    suffix = _SUFFIXES.get(kind)
    if suffix is None:
        return _REMEDIES.get(kind, "")
    return "" if path.suffix.lower() == suffix else f"it is {kind}: give it the suffix {suffix}"
