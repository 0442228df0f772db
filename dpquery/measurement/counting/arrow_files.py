"""Parquet and Arrow (Feather) files as sources, and the text of typed values.

A record is a row. What its value becomes depends on that value and on the column's type alone, not
on pages, dictionaries, row groups or batches: so one row more is one record more, and changes no
other, while the types stay. Types are part of the schema, which is seen before the charge and taken
for public. Where a writer makes them up from the rows (one blank more and a column of whole numbers
is one of floats), every number's text gains a `.0`; numbers are read alike with it and without.

The text of a value is that which a CSV file of the column would hold: `12`, `1.5` by the shortest
digits of the column's own precision, exact decimals, `true`, `2024-02-29`, `2024-02-29 13:30:00`
(with a Z where the column has a time zone: in UTC), an empty text for null, `nan` and `inf`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    RecordTexts,
    StoredFile,
    open_regular,
    places_of,
)

ARROW_SUFFIXES = (".arrow", ".feather", ".ipc")
PARQUET_SUFFIX = ".parquet"
ROWS_OF_A_PIECE = 2**17  # of a piece
_IPC_MAGIC = b"ARROW1"
_Is = pa.types
_PLAIN: tuple[Callable[[pa.DataType], bool], ...] = (
    *(_Is.is_null, _Is.is_boolean, _Is.is_integer, _Is.is_floating, _Is.is_decimal, _Is.is_date),
    *(_Is.is_time, _Is.is_timestamp, _Is.is_string, _Is.is_large_string, _Is.is_string_view),
    *(_Is.is_binary, _Is.is_large_binary, _Is.is_binary_view, _Is.is_fixed_size_binary),
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


def batch_of(columns: Sequence[pa.Array], *, decimal: str) -> RecordTexts:
    """Return some rows as texts; `decimal` is the mark that the spec declares for numbers."""
    return RecordTexts([[_texts_of(column, decimal)] for column in columns])


def _texts_of(column: pa.Array, decimal: str) -> tuple[list[bytes], NDArray[np.int32]]:
    """Return the texts of a column and the place of each row's among them."""
    if _Is.is_null(column.type):
        return [b""], np.zeros(len(column), np.int32)
    if _Is.is_dictionary(column.type) and len(column.dictionary) > len(column):
        column = column.dictionary_decode()  # a slice: most of the values are in other rows
    if _Is.is_decimal32(column.type) or _Is.is_decimal64(column.type):
        column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    if not _Is.is_dictionary(column.type):
        column = column.dictionary_encode()
    # What stands for no row, and null, is the empty text.
    texts = [
        text.encode() if isinstance(text, str) else text or b""
        for text in _texts(column.dictionary, decimal)
    ]
    places = column.indices.cast(pa.int32()).fill_null(len(texts))
    return [*texts, b""], places.to_numpy()


def _texts(values: pa.Array, decimal: str) -> Iterable[str | bytes | None]:
    """Return the text of each value, as the module says; None for null. No value is refused."""
    kind = values.type
    if _Is.is_boolean(kind):
        return (None if value is None else str(value).lower() for value in values.to_pylist())
    if _Is.is_integer(kind):
        return (None if value is None else str(value) for value in values.to_pylist())
    if _Is.is_floating(kind):
        missing = values.is_null().to_pylist()
        # 0.0 is added so that -0.0, which a dictionary may take for 0.0, has the same text.
        numbers = values.to_numpy(zero_copy_only=False) + kind.to_pandas_dtype()(0)
        # Narrow ones by their own shortest digits, as a double's: 0.1 is 0.1 in all of them.
        doubles = numbers if numbers.dtype == np.float64 else numbers.astype("U32").astype(float)
        return (
            None if is_missing else repr(number).replace(".", decimal)
            for number, is_missing in zip(doubles.tolist(), missing, strict=True)
        )
    if _Is.is_decimal(kind):
        exact = values.to_pylist()
        return (None if v is None else f"{v:f}".replace(".", decimal) for v in exact)
    if _Is.is_timestamp(kind):
        zone = "" if kind.tz is None else "Z"
        times = values.cast(pa.timestamp(kind.unit)).cast(pa.string()).to_pylist()
        return (None if time is None else _without_zeros(time) + zone for time in times)
    if _Is.is_date(kind) or _Is.is_time(kind):
        written = values.cast(pa.string()).to_pylist()
        return (None if text is None else _without_zeros(text) for text in written)
    return values.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]


def _without_zeros(time: str) -> str:
    """Return a time without zeros behind its decimal point."""
    return time.rstrip("0").rstrip(".") if "." in time else time


def _names(schema: pa.Schema) -> list[str]:
    return [name.strip() for name in schema.names]


@dataclass(frozen=True)
class ArrowFile(StoredFile):
    """A Parquet file, or one of Arrow's IPC formats (Feather is one): by its suffix."""

    decimal: str

    @property
    def remedy(self) -> str:
        """What to do where the file cannot be read to its end."""
        return "check the file with the program that wrote it, the disk and the memory"

    def check(self, declared: Sequence[str]) -> None:
        """Check the schema."""
        with open_regular(self.path) as file:
            self._located(file, declared)

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
                yield Piece(partial(batch_of, columns, decimal=self.decimal), share)

    @property
    def _is_parquet(self) -> bool:
        return self.path.suffix.lower() == PARQUET_SUFFIX

    def _located(self, file: BinaryIO, declared: Sequence[str]) -> tuple[pa.Schema, dict[str, int]]:
        """Return the schema and the place of each declared column."""
        schema = self._schema(file)
        if schema is None:
            kind = "a Parquet file" if self._is_parquet else "an Arrow or Feather (version 2) file"
            remedy = remedy_for(kind_of_file(self.path), self.path)
            raise DataError(
                f"{self.path} is not {kind}; {remedy or 'give it the suffix of what it is'}"
            )
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
