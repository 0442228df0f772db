"""Parquet files of a release, read back; they may be damaged, or made to fill the memory.

A few bytes of Parquet can stand for numbers without end: runs of one value, pages packed a thousand
to one, counts that are simply claimed. What a release writes cannot: noisy values hold at least two
bits each, since noise has a scale of one grid step or more, and all other numbers are written out
and packed by snappy, at most 21 to one. So a file has a byte for every eight rows, and what is read
of it takes at most a hundred times its size.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dpquery.limits import MAX_PARQUET_CHUNKS
from dpquery.untrusted.files import open_outside

_OWN: tuple[type[Exception], ...] = (OSError, ValueError, TypeError, LookupError, MemoryError)
UNREADABLE = (*_OWN, OverflowError, RecursionError, pa.ArrowException)
"""What reading a damaged file may raise."""
_ROWS_A_BYTE = 8
_CODECS = {"SNAPPY", "UNCOMPRESSED"}


@contextmanager
def opened(path: Path, *, rows: int | None, coded: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Yield an open Parquet file whose columns take at most a hundred times its size in memory.

    Texts of coded columns are read as dictionaries, so that none is repeated.

    Raises:
        UNREADABLE: it is damaged, or not of the kind that a release writes.
    """
    with os.fdopen(open_outside(path), "rb") as source:
        size = os.fstat(source.fileno()).st_size
        with pq.ParquetFile(source, read_dictionary=list(coded)) as file:
            _check_sizes(file.metadata, file.metadata.num_rows if rows is None else rows, size)
            yield file


def _check_sizes(metadata: pq.FileMetaData, rows: int, size: int) -> None:
    if metadata.num_rows != rows or rows > _ROWS_A_BYTE * size:
        raise ValueError("rows")
    if metadata.num_row_groups * metadata.num_columns > MAX_PARQUET_CHUNKS:
        raise ValueError("chunks")
    rows_in_groups = 0
    for k in range(metadata.num_row_groups):
        group = metadata.row_group(k)
        rows_in_groups += group.num_rows
        chunks = [group.column(j) for j in range(group.num_columns)]
        if group.num_rows < 0 or any(chunk.num_values != group.num_rows for chunk in chunks):
            raise ValueError("values")
        if any(chunk.compression not in _CODECS for chunk in chunks):
            raise ValueError("codec")
    if rows_in_groups != rows:
        raise ValueError("rows")
