"""Parsing of CSV lines into fields, one physical line a record.

The parser is part of the sensitivity proof: a record is what lies between two line feeds, and what
a line becomes depends on that line alone. So one line more, of whatever bytes, is one record more
at most. A line is malformed if it is longer than a mebibyte, has another number of fields than the
header, holds a NUL or a carriage return before its end, or has unbalanced quotes. Empty lines are
no records.

pyarrow reads whole chunks where it provably does the same; every other chunk goes through `fields`.
"""

import csv
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray

from dpquery.limits import MAX_LINE

_BLOCK = 2**22  # bytes parsed by one thread; longer than any line of a clean chunk
_BOM = b"\xef\xbb\xbf"

Texts = list[tuple[list[bytes], NDArray[np.int32]]]
"""One column of a chunk: blocks of (distinct texts, the place of each record's text among them)."""


def chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the rest of a file in pieces of whole lines, of about `size` bytes.

    A line that is too long is cut to a length that is still too long, so memory stays bounded.
    """
    rest = b""
    while block := file.read(size):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest = (rest + block)[: MAX_LINE + 1]
    if rest:
        yield rest


def fields(line: bytes, width: int) -> list[bytes] | None:
    """Return the fields of a line without its line feed, or None if it is malformed.

    >>> fields(b'1,"a,b"', 2)
    [b'1', b'a,b']
    """
    if len(line) > MAX_LINE:
        return None
    line = line.removesuffix(b"\r")
    if b"\r" in line or b"\0" in line:
        return None
    if b'"' in line:
        try:
            # Latin-1 maps bytes to characters one to one: no line is undecodable.
            (row,) = csv.reader([line.decode("latin-1")], strict=True)
        except csv.Error:
            return None
        values = [field.encode("latin-1") for field in row]
    else:
        values = line.split(b",")
    return values if len(values) == width else None


def columns(chunk: bytes, *, width: int, wanted: Sequence[int]) -> tuple[list[Texts], int]:
    """Return the wanted columns of a chunk of whole lines, and its number of malformed lines.

    Args:
        chunk: whole lines, as `chunks` yields them.
        width: number of fields of a record.
        wanted: places of the columns to return; at least one.
    """
    if _is_clean(chunk):
        try:
            return _read_whole(chunk, width=width, wanted=wanted), 0
        except pa.ArrowInvalid:
            pass  # a ragged line; pyarrow's own handler of those prints what it cannot decode
    return _read_by_line(chunk, width=width, wanted=wanted)


def _is_clean(chunk: bytes) -> bool:
    """Return whether pyarrow is sure to read every line as `fields` does."""
    return not (
        b'"' in chunk
        or b"\0" in chunk
        or chunk.count(b"\r") != chunk.count(b"\r\n")
        or chunk.startswith(_BOM)  # pyarrow would drop it from the first field
        or _has_long_line(chunk)
    )


def _has_long_line(chunk: bytes) -> bool:
    """Return whether a line is longer than MAX_LINE, in O(len(chunk) / MAX_LINE) steps."""
    start = 0
    while len(chunk) - start > MAX_LINE:
        end = chunk.rfind(b"\n", start, start + MAX_LINE + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def _read_whole(chunk: bytes, *, width: int, wanted: Sequence[int]) -> list[Texts]:
    """Return the wanted columns of a clean chunk, read by pyarrow."""
    names = [str(i) for i in range(width)]
    text = pa.dictionary(pa.int32(), pa.binary())
    if not chunk.strip(b"\r\n"):
        return [[] for _ in wanted]  # pyarrow calls a chunk without records an error
    table = arrow_csv.read_csv(
        pa.py_buffer(chunk),
        read_options=arrow_csv.ReadOptions(column_names=names, block_size=_BLOCK),
        parse_options=arrow_csv.ParseOptions(quote_char=False, newlines_in_values=False),
        convert_options=arrow_csv.ConvertOptions(
            column_types={names[i]: text for i in wanted},
            include_columns=[names[i] for i in wanted],
        ),
    )
    return [
        [(part.dictionary.to_pylist(), part.indices.to_numpy()) for part in column.chunks]
        for column in table.columns
    ]


def _read_by_line(chunk: bytes, *, width: int, wanted: Sequence[int]) -> tuple[list[Texts], int]:
    """Return the wanted columns of any chunk, read line by line, and the malformed lines."""
    malformed = 0
    distinct: list[dict[bytes, int]] = [{} for _ in wanted]
    indices: list[list[int]] = [[] for _ in wanted]
    for line in chunk.split(b"\n"):
        if line in {b"", b"\r"}:
            continue
        record = fields(line, width)
        if record is None:
            malformed += 1
            continue
        for column, texts, index in zip(wanted, distinct, indices, strict=True):
            index.append(texts.setdefault(record[column], len(texts)))
    return [
        [(list(texts), np.array(index, np.int32))]
        for texts, index in zip(distinct, indices, strict=True)
    ], malformed
