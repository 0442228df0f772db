"""Parquet and Arrow (Feather) files as sources; `column_codes` has the text of a typed value.

A record is a row. What its value becomes depends on that value and on the column's type alone, not
on pages, dictionaries, row groups or batches: so one row more is one record more, and changes no
other, while the types stay. Types are part of the schema, which is seen before the charge and taken
for public. Where a writer makes them up from the rows (one blank more and a column of whole numbers
is one of floats), every number's text gains a `.0`; numbers are read alike with it and without.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpquery.exceptions import DataError
from dpquery.measurement.counting.sources import (
    Piece,
    StoredFile,
    StoredRecords,
    kind_of_file,
    open_regular,
    places_of,
    remedy_for,
)
from dpquery.spec.columns import Bins, Column, Integers

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
