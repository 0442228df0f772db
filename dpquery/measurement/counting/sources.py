"""What a source is, and the kinds of files that are read.

What the counter asks of a place where records lie: columns of texts, batch by batch.

A kind of source is one file beside this one: text (`text_files`), databases (`databases`), and a
line in `locations`; Parquet and Arrow (Feather) files are here. All of them end in the same texts,
so that there is one counter, and what a value means does not depend on where it was stored. Each
says in its docstring why one record more is one record more for the counter, and changes no other.
Tables on Spark (`engines`) are no source: the counter runs beside them.

Of an Arrow file a record is a row. What its value becomes depends on that value and on the column's
type alone, not on pages, dictionaries, row groups or batches: so one row more is one record more,
and changes no other, while the types stay. Types are part of the schema, which is seen before the
charge and taken for public. Where a writer makes them up from the rows (one blank more and a column
of whole numbers is one of floats), every number's text gains a `.0`; numbers are read alike with it
and without.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpquery.exceptions import DataError
from dpquery.spec.columns import Bins, Column, Integers
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


ARROW_SUFFIXES = (".arrow", ".feather", ".ipc")
PARQUET_SUFFIX = ".parquet"
ROWS_OF_A_PIECE = 2**15  # of more, memory grows and time does not shrink
_IPC_MAGIC = b"ARROW1"
_Is = pa.types
_Kinds = tuple[Callable[[pa.DataType], bool], ...]
_TEXTUAL: _Kinds = (
    *(_Is.is_string, _Is.is_large_string, _Is.is_string_view, _Is.is_fixed_size_binary),
    *(_Is.is_binary, _Is.is_large_binary, _Is.is_binary_view),
)
# Types that are coded faster than their distinct values are found.
_MANY: _Kinds = (_Is.is_integer, _Is.is_floating, _Is.is_decimal, _Is.is_timestamp)
_PLAIN: _Kinds = (*_TEXTUAL, *_MANY, _Is.is_null, _Is.is_boolean, _Is.is_date, _Is.is_time)

_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
"""Types that are checked as those in which every value is sound."""
_DAY_OF_DATE64 = 86_400_000
_NO_DAY = 10**8  # days from 1970, or back, that no calendar has
_WIDEST = 76  # digits of a decimal

_DATE = "declare it as `date: {from: ..., to: ...}`"
_NO_NUMBERS: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (_Is.is_timestamp, _DATE),
    (_Is.is_date, _DATE),
    (_Is.is_time, "declare its `values`"),
    (_Is.is_boolean, "declare it as `boolean`"),
)


def check_types(
    schema: pa.Schema, declared: Sequence[str], *, where: str, zones: bool = False
) -> None:
    """Check that declared columns hold values that have a text; DataError names column and type.

    With zones a time zone is the column's own. In databases columns hold moments, which each
    session shows in a zone of its own.
    """
    for name in declared:
        kind = schema.field(_names(schema).index(name)).type
        plain = kind.value_type if _Is.is_dictionary(kind) else kind
        if not any(is_one(plain) for is_one in _PLAIN):
            raise DataError(
                f"{where}: the column {name} has the type {kind}, which no text stands for; write "
                "it as columns of numbers, texts, dates or booleans"
            )
        if _Is.is_timestamp(plain) and plain.tz is not None:
            _check_zone(plain, zones, f"{where}: the column {name} has the type {kind}")


def _check_zone(kind: pa.DataType, zones: bool, subject: str) -> None:
    """Check that the days of moments are known."""
    if not zones:
        raise DataError(
            f"{subject}: moments, whose days differ from session to session; make it a date, or a "
            "time without a zone, of the place that is meant"
        )
    with suppress(pa.ArrowInvalid):
        pc.local_timestamp(pa.array([0], kind))
        return
    raise DataError(
        f"{subject}, a zone that this machine does not know; install the time zones (tzdata), or "
        "write its times without a zone"
    )


def check_kinds(
    types: Mapping[str, pa.DataType] | None, columns: Iterable[Column], *, where: str
) -> None:
    """Check that columns that are declared as numbers have no type whose values never are.

    Types are None where each value has its own.

    Raises:
        DataError: one has; the message names column and type, and how to declare it.
    """
    for column in columns:
        if types is None and column.number is not None:
            raise DataError(
                f"{where}: the column {column.name} declares how its texts write numbers, and here "
                "texts and numbers are not told apart; leave `number` out, or write it as CSV"
            )
        kind = (types or {}).get(column.name, pa.null())
        plain = kind.value_type if _Is.is_dictionary(kind) else kind
        for is_one, remedy in _NO_NUMBERS:
            if isinstance(column.kind, Integers | Bins) and is_one(plain):
                raise DataError(
                    f"{where}: the column {column.name} has the type {kind} and is declared as "
                    f"numbers, which none of its values is; {remedy}, or write it as numbers"
                )


def batch_of(columns: Sequence[pa.Array]) -> StoredRecords:
    """Return some rows as values, texts as bytes."""
    return StoredRecords([[_block(column)] for column in columns])


def _block(column: pa.Array) -> tuple[pa.Array, NDArray[np.int32]]:
    """Return values of a column, texts as bytes, and the place of each row's among them."""
    kind = column.type
    if _Is.is_null(kind):
        return pa.array([b""], pa.binary()), np.zeros(len(column), np.int32)
    if _Is.is_dictionary(kind) and len(column.dictionary) > len(column):
        values = column.dictionary  # of a slice most of the values are in other rows
        if _Is.is_string_view(values.type) or _Is.is_binary_view(values.type):
            values = values.cast(pa.large_binary())  # of views Arrow takes no rows
        column = values.take(column.indices)
    if _Is.is_dictionary(column.type):
        values = _sound(column.dictionary)
    else:
        column = _sound(column)
        if any(is_one(column.type) for is_one in _MANY):
            return column, np.arange(len(column), dtype=np.int32)
        column = column.dictionary_encode()
        values = column.dictionary
    places = column.indices.cast(pa.int32())
    if any(is_one(values.type) for is_one in _TEXTUAL):
        values = values.cast(pa.large_binary())
    if places.null_count:
        places = places.fill_null(len(values))
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return values, places.to_numpy()


def _sound(values: pa.Array) -> pa.Array:
    kind = values.type
    if _Is.is_date64(kind):
        # A moment off midnight is no day: one beyond every calendar, as is one too far away.
        moments = values.cast(pa.int64()).fill_null(0).to_numpy()
        days = np.clip(moments // _DAY_OF_DATE64, -_NO_DAY, _NO_DAY)
        days[moments % _DAY_OF_DATE64 != 0] = _NO_DAY
        missing = values.is_null().to_numpy(zero_copy_only=False)
        return pa.array(days.astype(np.int32), pa.int32(), mask=missing).cast(pa.date32())
    if not _Is.is_decimal(kind):
        return values
    with suppress(pa.ArrowInvalid):
        values.validate(full=True)
        narrow = _Is.is_decimal32(kind) or _Is.is_decimal64(kind)
        return values.cast(pa.decimal128(kind.precision, kind.scale)) if narrow else values
    wide = pa.decimal256(_WIDEST, kind.scale)
    most, huge = (
        pa.scalar(Decimal((0, (9,) * digits, -kind.scale)), wide)
        for digits in (kind.precision, _WIDEST)
    )
    values = values.cast(wide, safe=False)
    return pc.if_else(pc.greater(pc.abs(values), most), huge, values)


def _check_damage(column: pa.Array) -> None:
    """Check that a column can be read: ArrowInvalid for what no writer writes, for no value."""
    kind = column.type
    if _Is.is_dictionary(kind):
        _check_damage(column.dictionary)
        numbers = pa.nulls(len(column.dictionary))
        column = pa.DictionaryArray.from_arrays(column.indices, numbers, safe=False)
    elif _Is.is_decimal(kind) or _Is.is_time(kind) or _Is.is_date64(kind):
        column = column.view(pa.binary(kind.bit_width // 8))
    else:
        column = column.view(_BYTES.get(kind, kind))
    column.validate(full=True)


def _names(schema: pa.Schema) -> list[str]:
    return [name.strip() for name in schema.names]


@dataclass(frozen=True)
class ArrowFile(StoredFile):
    """A Parquet file, or one of Arrow's IPC formats (Feather is one): by its suffix."""

    @property
    def remedy(self) -> str:
        """What to do where the file cannot be read to its end."""
        return "check the file with the program that wrote it, the disk and the memory"

    def check(self, declared: Sequence[str]) -> Mapping[str, pa.DataType]:
        """Check the schema."""
        with open_regular(self.path) as file:
            schema, places = self._located(file, declared)
        return {name: schema.field(place).type for name, place in places.items()}

    def pieces(
        self, declared: Sequence[str], wanted: Sequence[str], *, size: int
    ) -> Iterator[Piece]:
        """Yield the rows in their order, of the wanted columns alone."""
        with open_regular(self.path) as file:
            schema, places = self._located(file, declared)
            file.seek(0)
            kept = [places[column] for column in wanted]
            batches = self._parquet if self._is_parquet else self._ipc
            for columns, share in batches(file, schema, kept):
                yield Piece(partial(batch_of, columns), share)

    @property
    def _is_parquet(self) -> bool:
        return self.path.suffix.lower() == PARQUET_SUFFIX

    def _located(self, file: BinaryIO, declared: Sequence[str]) -> tuple[pa.Schema, dict[str, int]]:
        schema = self._schema(file)
        if schema is None:
            what = "a Parquet file" if self._is_parquet else "an Arrow or Feather (version 2) file"
            kind = kind_of_file(self.path)
            if kind == ("Parquet" if self._is_parquet else "Arrow"):
                raise DataError(
                    f"{self.path} begins as {what} and cannot be read as one: it is incomplete or "
                    "damaged; copy it again, or write it again"
                )
            remedy = remedy_for(kind, self.path) or "give it the suffix of what it is"
            raise DataError(f"{self.path} is not {what}; {remedy}")
        places = places_of(declared, _names(schema), where=f"{self.path}: the schema")
        check_types(schema, declared, where=str(self.path), zones=True)
        return schema, places

    def _schema(self, file: BinaryIO) -> pa.Schema | None:
        try:
            if self._is_parquet:
                return pq.read_schema(file)
            return self._reader(file, None).schema
        except (pa.ArrowException, OSError, ValueError):
            return None

    def _reader(
        self, file: BinaryIO, kept: Sequence[int] | None
    ) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
        options = pa.ipc.IpcReadOptions(included_fields=kept)
        is_file = file.read(len(_IPC_MAGIC)) == _IPC_MAGIC
        file.seek(0)
        return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(file, options=options)

    def _parquet(
        self, file: BinaryIO, schema: pa.Schema, kept: Sequence[int]
    ) -> Iterator[tuple[list[pa.Array], float]]:
        texts = [schema.names[i] for i in kept if _is_text(schema.field(i).type)]
        with pq.ParquetFile(file, read_dictionary=texts, pre_buffer=False) as parquet:
            rows, done = max(1, parquet.metadata.num_rows), 0
            names = [schema.names[i] for i in kept]
            for batch in parquet.iter_batches(ROWS_OF_A_PIECE, columns=names, use_threads=False):
                done += batch.num_rows
                places = [batch.schema.names.index(name) for name in names]
                yield [batch.column(i) for i in places], min(1.0, done / rows)

    def _ipc(
        self, file: BinaryIO, schema: pa.Schema, kept: Sequence[int]
    ) -> Iterator[tuple[list[pa.Array], float]]:
        length = max(1, self.size)
        reader = self._reader(file, sorted(kept))
        places = [sorted(kept).index(i) for i in kept]
        whole = isinstance(reader, pa.ipc.RecordBatchFileReader)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if whole else reader
        for batch in batches:
            for column in batch.columns:  # offsets of a damaged file would be followed anywhere
                _check_damage(column)
            for start in range(0, batch.num_rows, ROWS_OF_A_PIECE):
                rows = batch.slice(start, ROWS_OF_A_PIECE)
                yield [rows.column(i) for i in places], min(1.0, file.tell() / length)


def _is_text(kind: pa.DataType) -> bool:
    if _Is.is_dictionary(
        kind
    ):  # which Arrow reads with errors for what is no UTF-8, unless told to
        kind = kind.value_type
    return any(is_one(kind) for is_one in (_Is.is_string, _Is.is_large_string, _Is.is_binary))
