"""Parquet and Arrow (Feather) files as sources; `value_texts` has the text of a typed value.

A record is a row. What its value becomes depends on that value and on the column's type alone, not
on pages, dictionaries, row groups or batches: so one row more is one record more, and changes no
other, while the types stay. Types are part of the schema, which is seen before the charge and taken
for public. Where a writer makes them up from the rows (one blank more and a column of whole numbers
is one of floats), every number's text gains a `.0`; numbers are read alike with it and without.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpquery.exceptions import DataError
from dpquery.measurement.counting.file_kinds import kind_of_file, remedy_for
from dpquery.measurement.counting.sources import (
    Piece,
    StoredFile,
    StoredRecords,
    open_regular,
    places_of,
)
from dpquery.spec.domain import Bins, Column, Integers

ARROW_SUFFIXES = (".arrow", ".feather", ".ipc")
PARQUET_SUFFIX = ".parquet"
ROWS_OF_A_PIECE = 2**17  # of a piece
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

_DATE = "declare it as `date: {from: ..., to: ...}`"
_NO_NUMBERS: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (_Is.is_timestamp, _DATE),
    (_Is.is_date, _DATE),
    (_Is.is_time, "declare its `values`"),
    (_Is.is_boolean, "declare it as `boolean`"),
)


def check_types(schema: pa.Schema, declared: Sequence[str], *, where: str) -> None:
    """Check that declared columns hold values that have a text; DataError names column and type."""
    for name in declared:
        kind = schema.field(_names(schema).index(name)).type
        plain = kind.value_type if _Is.is_dictionary(kind) else kind
        if not any(is_one(plain) for is_one in _PLAIN):
            raise DataError(
                f"{where}: the column {name} has the type {kind}, which no text stands for; write "
                "it as columns of numbers, texts, dates or booleans"
            )


def check_kinds(types: Mapping[str, pa.DataType], columns: Iterable[Column], *, where: str) -> None:
    """Check that columns that are declared as numbers have no type whose values never are.

    Raises:
        DataError: one has; the message names column and type, and how to declare it.
    """
    for column in columns:
        kind = types.get(column.name, pa.null())
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
        column = column.dictionary_decode()  # a slice: most of the values are in other rows
    if _Is.is_decimal32(kind) or _Is.is_decimal64(kind):
        column = column.cast(pa.decimal128(kind.precision, kind.scale))
    if any(is_one(column.type) for is_one in _MANY):
        return column, np.arange(len(column), dtype=np.int32)
    if not _Is.is_dictionary(column.type):
        column = column.dictionary_encode()
    values, places = column.dictionary, column.indices.cast(pa.int32())
    if any(is_one(values.type) for is_one in _TEXTUAL):
        values = values.cast(pa.large_binary())
    if places.null_count:
        places = places.fill_null(len(values))
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return values, places.to_numpy()


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
        """Return the schema and the place of each declared column."""
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
        check_types(schema, declared, where=str(self.path))
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
        """Return a reader of the file or of the stream format."""
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
            batch.validate(full=True)  # offsets of a damaged file would be followed anywhere
            for start in range(0, batch.num_rows, ROWS_OF_A_PIECE):
                rows = batch.slice(start, ROWS_OF_A_PIECE)
                yield [rows.column(i) for i in places], min(1.0, file.tell() / length)


def _is_text(kind: pa.DataType) -> bool:
    return bool(_Is.is_string(kind) or _Is.is_binary(kind))
