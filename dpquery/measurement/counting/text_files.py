"""Delimited text as a source: encodings, compression and the header line.

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

import pyarrow as pa

from dpquery.exceptions import DataError
from dpquery.limits import MAX_LINE
from dpquery.measurement.counting.csv_lines import Dialect, chunks, columns
from dpquery.measurement.counting.file_kinds import (
    SUFFIX_OF_CODEC,
    kind_of_file,
    remedy_for,
)
from dpquery.measurement.counting.sources import (
    Piece,
    StoredFile,
    StoredRecords,
    StoredValues,
    UnfitTextError,
    open_regular,
    places_of,
)
from dpquery.spec.model import FileFormat
from dpquery.untrusted.file_kinds import kind_of

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
            return self.remedy if self._codec else ""
        if line[:2] in _MARKS:
            return "it begins as UTF-16 does: set `file: {encoding: utf-16}` in the spec"
        for delimiter, word in _SEPARATED.items() if declared else ():
            names = self._names(line, delimiter) or []
            if delimiter != self.format.delimiter and all(names.count(n) == 1 for n in declared):
                shown = "tab" if delimiter == "\t" else f'"{delimiter}"'
                return f"{word}s separate them: set `file: {{delimiter: {shown}}}` in the spec"
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
