"""Delimited text as a source: lines, fields and quotes.

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

Compression is undone first and as a stream, so that one record more in the text is what the counter
sees, however many compressed bytes that changes; nothing grows with what a file unpacks to.

UTF-8, latin-1 and cp1252 write delimiters, quotes and ends of lines as single bytes that are part
of no other letter. So lines are parsed as bytes, and a text that is no UTF-8 is merely no declared
value; of the other two every byte is a letter, and texts become UTF-8 after parsing.

UTF-16 is turned into UTF-8 before. Its letters are units of two bytes, and a line feed is a unit of
its own that is never half of a pair: so in a file of whole units each record becomes what it says
alone. A lone half of a pair becomes bytes that are no UTF-8, in its own record. What no reader can
mend is an odd number of bytes within a record, which shifts all that follow; such a file is not
UTF-16 text, and one of an odd length in all is an error that says so.
"""

import codecs
import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from dpquery.arrays import Bools, Ints
from dpquery.exceptions import DataError
from dpquery.limits import MAX_LINE
from dpquery.measurement.counting.sources import (
    SUFFIX_OF_CODEC,
    Piece,
    StoredFile,
    StoredRecords,
    StoredValues,
    UnfitTextError,
    kind_of_file,
    open_regular,
    places_of,
    remedy_for,
)
from dpquery.spec.spec import FileFormat
from dpquery.untrusted.files import kind_of

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

    One column at least is wanted.
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
    if not (dialect.newlines_in_quotes and dialect.quote in piece):
        yield from piece.split(b"\n")
        return
    start = 0
    for end in _QuotePairs(dialect).record_ends(piece).tolist():
        yield piece[start:end]
        start = end + 1
    yield piece[start:]


CODECS = {suffix: codec for codec, suffix in SUFFIX_OF_CODEC.items()}
_DECODED = 2**20  # bytes of UTF-16 that are decoded at once
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_NO_HEADER = (
    "write one there, or name another file, or set its encoding in the spec, such as "
    "`file: {encoding: latin-1}`"
)
_SEPARATED = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}


@dataclass(frozen=True)
class TextFile(StoredFile):
    """A file of delimited text with a header line, compressed if its suffix says so."""

    format: FileFormat

    @property
    def remedy(self) -> str:
        """What to do where the file cannot be read to its end."""
        codec = self._codec
        damaged = f"that it unpacks without an error ({codec}), and " if codec else ""
        return f"check {damaged}the disk and the memory"

    def header(self) -> list[str] | None:
        """Return the names of all columns; None where the first line is no header."""
        with open_regular(self.path) as file:
            return self._names(self._header_line(self._text_of(file)), self.format.delimiter)

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield the text below the header in whole records, unpacked, of about `size` bytes."""
        with open_regular(self.path) as file:
            text = self._text_of(file)
            self._header_line(text)
            yield from chunks(text, size, self.dialect)

    def check(self, declared: Sequence[str]) -> Mapping[str, pa.DataType]:
        """Check the header line."""
        with open_regular(self.path) as file:
            self._located(self._text_of(file), declared)
        return {}

    def pieces(
        self, declared: Sequence[str], wanted: Sequence[str], *, size: int
    ) -> Iterator[Piece]:
        """Yield whole records of about `size` bytes at a time."""
        length = max(1, self.size)
        with open_regular(self.path) as file:
            text = self._text_of(file)
            width, places = self._located(text, declared)
            parse = partial(self._batch, width=width, wanted=[places[column] for column in wanted])
            for chunk in chunks(text, size, self.dialect):
                yield Piece(partial(parse, chunk), min(1.0, file.tell() / length))

    @property
    def _codec(self) -> str | None:
        return CODECS.get(self.path.suffix.lower())

    @property
    def dialect(self) -> Dialect:
        """How its records are written."""
        written = self.format
        quote = written.quote.encode()
        return Dialect(written.delimiter.encode(), quote, written.newlines_in_quotes)

    def _batch(self, chunk: bytes, *, width: int, wanted: Sequence[int]) -> StoredRecords:
        batch = columns(chunk, width=width, wanted=wanted, dialect=self.dialect)
        to_utf8 = _BYTE_LETTERS.get(self.format.encoding)
        if to_utf8 is None:
            return batch
        recoded: list[StoredValues] = [
            [
                (pa.array(map(to_utf8, distinct.to_pylist()), pa.binary()), index)
                for distinct, index in column
            ]
            for column in batch.columns
        ]
        return StoredRecords(recoded, batch.malformed)

    def _text_of(self, file: BinaryIO) -> BinaryIO:
        """Return the text of an open file, unpacked, with line feeds and delimiters of one byte."""
        codec, encoding = self._codec, self.format.encoding
        if codec is not None:
            unpacked = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)
            file = io.BufferedReader(unpacked, _DECODED)
        if not encoding.startswith("utf-16"):
            return file
        if encoding == "utf-16":
            mark = self._read(file, 2)
            if mark not in _MARKS:
                raise DataError(
                    f"{self.path} has no byte order mark; set `file: {{encoding: utf-16-le}}` or "
                    "utf-16-be in the spec, or the encoding that it has"
                )
            encoding = _MARKS[mark]
        return io.BufferedReader(_Utf16AsUtf8(file, encoding), _DECODED)

    def _read(self, file: BinaryIO, size: int) -> bytes:
        try:
            return file.read(size)
        except OSError:
            return b""

    def _located(self, text: BinaryIO, declared: Sequence[str]) -> tuple[int, dict[str, int]]:
        """Return the header's number of fields and the place of each declared column."""
        line = self._header_line(text)
        if line == b"" and not self._read(text, 1):
            raise DataError(f"{self.path} is empty: no header and no record; name another file")
        names = self._names(line, self.format.delimiter)
        whole = names is not None and all(names.count(name) == 1 for name in declared)
        hint = "" if whole else self._hint(line, declared)
        if line is None and self._codec and not hint:
            raise DataError(
                f"{self.path} cannot be unpacked: it is damaged or cut off ({self._codec}); get it "
                "whole, and try it with a program that unpacks it"
            )
        if names is None:
            separated, letters = _SEPARATED[self.format.delimiter], self.format.encoding
            if letters.startswith("utf"):
                letters = letters.upper()
            raise DataError(
                f"{self.path}: the first line is not a header of {separated}-separated column "
                f"names in {letters}; {hint or _NO_HEADER}"
            )
        places = places_of(declared, names, where=f"{self.path}: the header", hint=hint)
        return len(names), places

    def _header_line(self, text: BinaryIO) -> bytes | None:
        """Return the first record, empty if it is too long; None if it cannot be read."""
        line, quote = b"", self.format.quote.encode()
        try:
            while more := text.readline(MAX_LINE + 1 - len(line)):
                line += more
                if not (self.format.newlines_in_quotes and line.count(quote) % 2):
                    break
        except (OSError, ValueError):
            return None
        return line if len(line) <= MAX_LINE else b""

    def _names(self, line: bytes | None, delimiter: str) -> list[str] | None:
        """Return the column names of a header; None where it is none."""
        if line is None:
            return None
        to_utf8 = _BYTE_LETTERS.get(self.format.encoding)
        quote = self.format.quote
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
        try:
            text = (to_utf8(line) if to_utf8 else line).decode("utf-8-sig").rstrip("\r\n")
            rows = list(
                csv.reader(
                    [text],
                    strict=True,
                    delimiter=delimiter,
                    quotechar=quote or None,
                    quoting=quoting,
                )
            )
        except (UnicodeDecodeError, csv.Error):
            return None
        return [name.strip() for name in rows[0]] if text and len(rows) == 1 else None

    def _hint(self, line: bytes | None, declared: Sequence[str]) -> str:
        """Return what to do if the first bytes or the header show that; for messages alone.

        It names no column of the file but declared ones, and nothing is read by it.
        """
        if remedy := self._other_kind(line or b""):
            return remedy
        if line is None:
            return ""
        if line[:2] in _MARKS:
            return "it begins as UTF-16 does: set `file: {encoding: utf-16}` in the spec"
        for delimiter, word in _SEPARATED.items() if declared else ():
            names = self._names(line, delimiter) or []
            if delimiter != self.format.delimiter and all(names.count(n) == 1 for n in declared):
                shown = "tab" if delimiter == "\t" else f'"{delimiter}"'
                return f"{word}s separate them: set `file: {{delimiter: {shown}}}` in the spec"
        if line and not line.strip():  # nothing at all stands for one that is too long
            return "it is empty: delete the empty lines above the column names"
        if line.lstrip()[:1] in (b"{", b"["):
            return "it seems to be JSON, as plans are: name the records, as CSV or Parquet"
        if b"\0" in line:
            return "it holds NUL characters, as no text does: name another file"
        names = self._names(line, self.format.delimiter) or []
        missing = set(declared) - set(names)
        if missing and set(map(str.casefold, missing)) <= set(map(str.casefold, names)):
            return (
                "it has them in other capitals or small letters: write them alike in the file and "
                "the spec, or set `column:` in the spec"
            )
        if names and missing and missing == set(declared):
            return "if the first line is a record or a title, put one with the column names there"
        return ""

    def _other_kind(self, line: bytes) -> str:
        """Return what to do about a file that is no text, or not packed as its suffix says."""
        kind, codec = kind_of_file(self.path), self._codec
        if codec is None:
            return remedy_for(kind, self.path)
        if kind != codec:
            is_what = remedy_for(kind, self.path) or "give it the suffix of what it is"
            return f"it is not {codec}, as its suffix says; {is_what}"
        inside = kind_of(line)
        return f"what is packed in it is {inside}; unpack it" if inside else ""


class _Utf16AsUtf8(io.RawIOBase):
    """The text of a UTF-16 file as UTF-8, in blocks; unpaired halves as the bytes of their code."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        """Begin behind the mark."""
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        self._left = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer with the next bytes; 0 at the end."""
        while not self._left and not self._ended:
            block = self._file.read(_DECODED)
            self._ended = not block
            try:
                text = self._decoder.decode(block, final=self._ended)
            except UnicodeDecodeError:
                text = None
            if text is None:
                raise UnfitTextError(
                    "does not have an even number of bytes, and so is not UTF-16; write the file "
                    "again, or set the `encoding` that it has"
                )
            self._left = memoryview(text.encode("utf-8", "surrogatepass"))
        into = memoryview(buffer).cast("B")
        size = min(len(into), len(self._left))
        into[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


def _letters_of(encoding: str) -> Callable[[bytes], bytes]:
    """Return the function from texts of one byte a letter to UTF-8; two texts never become one."""
    # The five bytes that cp1252 does not assign are the controls that they are in latin-1.
    letters = {byte: bytes([byte]).decode(encoding, "ignore") or chr(byte) for byte in range(256)}

    def to_utf8(text: bytes) -> bytes:
        return text if text.isascii() else text.decode("latin-1").translate(letters).encode()

    return to_utf8


_BYTE_LETTERS = {encoding: _letters_of(encoding) for encoding in ("latin-1", "cp1252")}
