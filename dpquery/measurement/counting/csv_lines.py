"""Parsing of delimited text into fields.

The parser is part of the sensitivity proof.

**One line a record** (the default). A record is what lies between two line feeds, and what a line
becomes depends on that line alone. So one line more, of whatever bytes, is one record more at most.

**Line feeds in quotes** (`newlines_in_quotes`). A record ends at a line feed before which the file
has an even number of quotes. In a file that a CSV writer wrote every record has an even number of
them, whatever its text, since it doubles those within; so a record begins where the one before it
ends, and one record more is one record more and changes no other. For arbitrary bytes no reader can
promise that: the same bytes are three records or, with a quote before and one behind them, a part
of a single one, so a lone quote moves all records that follow. A file that no writer wrote (a quote
within an unquoted field, text behind a closing quote, an end within quotes) is therefore an error,
which says that and nothing else.

A record is malformed if it is longer than a mebibyte, has another number of fields than the header,
holds a NUL, or a carriage return before its end and out of quotes, has unbalanced quotes, or quotes
and a field of more than 128 KiB. Empty lines are no records.

pyarrow reads whole pieces where it provably does the same; every other piece goes through `fields`.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from dpquery.arrays import Bools, Ints
from dpquery.limits import MAX_LINE
from dpquery.measurement.counting.sources import StoredRecords, StoredValues, UnfitTextError

_PIECE = 2**20  # bytes that pyarrow parses at once: they stay in a core's cache
_LONGEST_QUOTED = 2**17  # of a field, by Python's reader, where the line has quotes
_BOM = b"\xef\xbb\xbf"
_LINE_FEED, _CARRIAGE_RETURN = b"\n\r"
_TOO_LONG = b"x" * (MAX_LINE + 1) + b"\n"


@dataclass(frozen=True)
class Dialect:
    """How records are written: the bytes between and around fields, and what ends a record."""

    delimiter: bytes = b","
    quote: bytes = b'"'
    newlines_in_quotes: bool = False


DEFAULT = Dialect()


def chunks(file: BinaryIO, size: int, dialect: Dialect = DEFAULT) -> Iterator[bytes]:
    """Yield the rest of a file in pieces of whole records, of about `size` bytes.

    A line that is too long is cut to a length that is still too long, so memory stays bounded.

    Raises:
        UnfitTextError: line feeds in quotes are declared, and the quotes do not pair up.
    """
    if dialect.newlines_in_quotes:
        yield from _quoted_chunks(file, size, dialect)
        return
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


def _quoted_chunks(file: BinaryIO, size: int, dialect: Dialect) -> Iterator[bytes]:
    """Yield whole records that may hold line feeds; one that is too long as one line as long."""
    pairs = _QuotePairs(dialect)
    rest, too_long = b"", False
    while block := file.read(size):
        ends = pairs.record_ends(block)
        if not ends.size:
            rest += block
        elif too_long:
            first, last = int(ends[0]) + 1, int(ends[-1]) + 1
            yield _TOO_LONG + block[first:last]
            rest, too_long = block[last:], False
        else:
            last = int(ends[-1]) + 1
            yield rest + block[:last]
            rest = block[last:]
        if len(rest) > MAX_LINE:
            rest, too_long = b"", True
    pairs.check_end()
    if too_long:
        yield _TOO_LONG
    elif rest:
        yield rest


class _QuotePairs:
    """Follows the quotes through a text, block by block."""

    def __init__(self, dialect: Dialect) -> None:
        """Begin where a record begins."""
        self._quote = dialect.quote[0]
        self._before = np.zeros(256, np.bool_)  # what may stand before an opening quote
        self._before[[self._quote, dialect.delimiter[0], _LINE_FEED]] = True
        self._after = self._before.copy()  # and after a closing one
        self._after[_CARRIAGE_RETURN] = True
        self._inside, self._last = False, _LINE_FEED

    def record_ends(self, block: bytes) -> Ints:
        """Return the places of the line feeds out of quotes; UnfitTextError if no writer's."""
        text = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(text == self._quote)
        opening, closing = quotes[self._inside :: 2], quotes[not self._inside :: 2]
        before = np.where(opening > 0, text[opening - 1], self._last)
        after = text[closing[closing < len(text) - 1] + 1]
        closed_before = not self._inside and self._last == self._quote
        if not (
            self._before[before].all()
            and self._after[after].all()
            and (not closed_before or self._after[text[0]])
        ):
            raise _unpaired()
        feeds = np.flatnonzero(text == _LINE_FEED)
        out: Bools = (np.searchsorted(quotes, feeds) + self._inside) % 2 == 0
        self._inside ^= bool(len(quotes) % 2)
        self._last = block[-1]
        return feeds[out]

    def check_end(self) -> None:
        """Refuse a text that ends within quotes."""
        if self._inside:
            raise _unpaired()


def _unpaired() -> UnfitTextError:
    return UnfitTextError(
        "does not pair its quotes as a CSV writer does, so that no record can be told from the "
        "next; write the file again with a CSV writer, or leave `newlines_in_quotes` out"
    )


def fields(line: bytes, width: int, dialect: Dialect = DEFAULT) -> list[bytes] | None:
    """Return the fields of a record without its line feed, or None if it is malformed.

    >>> fields(b'1,"a,b"', 2)
    [b'1', b'a,b']
    """
    if len(line) > MAX_LINE:
        return None
    line = line.removesuffix(b"\r")
    quoted = dialect.quote != b"" and dialect.quote in line
    free = quoted and dialect.newlines_in_quotes and not line.endswith(b"\r")
    if b"\0" in line or (b"\r" in line and not free):
        return None
    if quoted:
        try:
            # Latin-1 maps bytes to characters one to one: no line is undecodable.
            (row,) = csv.reader(
                [line.decode("latin-1")],
                strict=True,
                delimiter=dialect.delimiter.decode(),
                quotechar=dialect.quote.decode(),
            )
        except csv.Error:
            return None
        values = [field.encode("latin-1") for field in row]
    else:
        values = line.split(dialect.delimiter)
    return values if len(values) == width else None


def columns(
    chunk: bytes, *, width: int, wanted: Sequence[int], dialect: Dialect = DEFAULT
) -> StoredRecords:
    """Return the wanted columns of a chunk of whole records, and how many are malformed.

    Args:
        chunk: whole records, as `chunks` yields them.
        width: number of fields of a record.
        wanted: places of the columns to return; at least one.
        dialect: how the records are written.
    """
    texts: list[StoredValues] = [[] for _ in wanted]
    malformed = 0
    for piece in _pieces(chunk, dialect):
        batch = _piece_columns(piece, width=width, wanted=wanted, dialect=dialect)
        malformed += batch.malformed
        for column, blocks in zip(texts, batch.columns, strict=True):
            column += blocks
    return StoredRecords(texts, malformed)


def _pieces(chunk: bytes, dialect: Dialect) -> Iterator[bytes]:
    """Yield a chunk in pieces of whole records of about _PIECE bytes."""
    ends = None
    if dialect.newlines_in_quotes and dialect.quote in chunk:
        ends = _QuotePairs(dialect).record_ends(chunk) + 1
    start = 0
    while start < len(chunk):
        if ends is None:
            stop = chunk.find(b"\n", start + _PIECE - 1) + 1 or len(chunk)
        else:
            later = ends[np.searchsorted(ends, start + _PIECE) :]
            stop = int(later[0]) if later.size else len(chunk)
        yield chunk[start:stop]
        start = stop


def _piece_columns(
    piece: bytes, *, width: int, wanted: Sequence[int], dialect: Dialect
) -> StoredRecords:
    if _is_clean(piece, dialect):
        try:
            return StoredRecords(_read_whole(piece, width=width, wanted=wanted, dialect=dialect))
        except pa.ArrowInvalid:
            pass  # a ragged line; pyarrow's own handler of those prints what it cannot decode
    return _read_by_line(piece, width=width, wanted=wanted, dialect=dialect)


def _is_clean(piece: bytes, dialect: Dialect = DEFAULT) -> bool:
    """Return whether pyarrow is sure to read every record as `fields` does."""
    quoted = dialect.quote != b"" and dialect.quote in piece
    return not (
        b"\0" in piece
        or piece.count(b"\r") != piece.count(b"\r\n")
        or piece.startswith(_BOM)  # pyarrow would drop it from the first field
        or (_has_long_line(piece) if not quoted else not _has_clean_quotes(piece, dialect))
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


def _has_clean_quotes(piece: bytes, dialect: Dialect) -> bool:
    """Return whether all quotes stand as a CSV writer puts them, in records of a bounded length.

    Without line feeds in quotes, none may be open at the end of a line either.
    """
    pairs = _QuotePairs(dialect)
    try:
        ends = pairs.record_ends(piece)
        pairs.check_end()
    except UnfitTextError:
        return False
    longest = np.diff(ends, prepend=-1, append=len(piece)).max() - 1
    whole = dialect.newlines_in_quotes or len(ends) == piece.count(b"\n")
    return bool(whole and longest <= _LONGEST_QUOTED)


def _read_whole(
    piece: bytes, *, width: int, wanted: Sequence[int], dialect: Dialect
) -> list[StoredValues]:
    """Return the wanted columns of a clean piece, read by pyarrow."""
    names = [str(i) for i in range(width)]
    text = pa.dictionary(pa.int32(), pa.binary())
    if not piece.strip(b"\r\n"):
        return [[] for _ in wanted]  # pyarrow calls a piece without records an error
    table = arrow_csv.read_csv(
        pa.py_buffer(piece),
        # One block: it is longer than a piece with the line that ends it.
        read_options=arrow_csv.ReadOptions(
            column_names=names, block_size=_PIECE + 2 * MAX_LINE, use_threads=False
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=dialect.delimiter.decode(),
            quote_char=dialect.quote.decode() or False,
            newlines_in_values=dialect.newlines_in_quotes and dialect.quote in piece,
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types={names[i]: text for i in wanted},
            include_columns=[names[i] for i in wanted],
        ),
    )
    return [
        [(part.dictionary, part.indices.to_numpy()) for part in column.chunks]
        for column in table.columns
    ]


def _read_by_line(
    piece: bytes, *, width: int, wanted: Sequence[int], dialect: Dialect
) -> StoredRecords:
    """Return the wanted columns of any piece, read record by record, and the malformed ones."""
    malformed = 0
    distinct: list[dict[bytes, int]] = [{} for _ in wanted]
    indices: list[list[int]] = [[] for _ in wanted]
    for line in _records(piece, dialect):
        if line in {b"", b"\r"}:
            continue
        record = fields(line, width, dialect)
        if record is None:
            malformed += 1
            continue
        for column, texts, index in zip(wanted, distinct, indices, strict=True):
            index.append(texts.setdefault(record[column], len(texts)))
    return StoredRecords(
        [
            [(pa.array([*texts], pa.binary()), np.array(index, np.int32))]
            for texts, index in zip(distinct, indices, strict=True)
        ],
        malformed,
    )


def _records(piece: bytes, dialect: Dialect) -> Iterator[bytes]:
    """Yield the records of a piece, each without its line feed."""
    if not (dialect.newlines_in_quotes and dialect.quote in piece):
        yield from piece.split(b"\n")
        return
    start = 0
    for end in _QuotePairs(dialect).record_ends(piece).tolist():
        yield piece[start:end]
        start = end + 1
    yield piece[start:]
