"""How a file is laid out: its header, its columns, its malformed lines.

A release never guesses: this is what a person may declare after a look at the file.
"""

import codecs
import csv
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from dpquery.data_check.findings import FileGuess
from dpquery.limits import MAX_LINE
from dpquery.measurement.counting.sources import SUFFIX_OF_CODEC, Source, open_regular, remedy_for
from dpquery.measurement.counting.text_files import Dialect, TextFile, fields
from dpquery.untrusted.files import kind_of

_LOOKED_AT = 1000  # malformed lines: the first ones say what is wrong with most
_PIECE = 2**22


def malformed_lines(
    sources: Iterable[Source], number: int
) -> tuple[tuple[tuple[str, int, str], ...], int]:
    """Return (what is wrong, how many, place of the first) of the first malformed lines.

    Args:
        sources: of those, files of text have lines.
        number: how many malformed lines there are.

    Returns:
        The reasons, commonest first, and of how many lines they are.
    """
    reasons: dict[str, tuple[int, str]] = {}
    looked_at = 0
    wanted = min(number, _LOOKED_AT)
    for source in sources:
        if not isinstance(source, TextFile) or source.dialect.newlines_in_quotes:
            continue  # of a record that goes over lines no number says where it stands
        for line, reason in _reasons(source) if looked_at < wanted else ():
            so_far, first = reasons.get(reason, (0, f"line {line:,} of {source.path.name}"))
            reasons[reason] = so_far + 1, first
            looked_at += 1
            if looked_at == wanted:
                break
    ordered = sorted(reasons.items(), key=lambda item: -item[1][0])
    return tuple((reason, so_far, first) for reason, (so_far, first) in ordered), looked_at


def _reasons(file: TextFile) -> Iterator[tuple[int, str]]:
    """Yield the number of each malformed line of a file, and what is wrong with it."""
    width = len(file.header() or ())
    before = 2  # the first line below the header
    for chunk in file.chunks(_PIECE):
        for place, line in enumerate(chunk.split(b"\n")):
            if line not in {b"", b"\r"} and fields(line, width, file.dialect) is None:
                yield before + place, _reason(line, width, file.dialect)
        before += chunk.count(b"\n")


def _reason(line: bytes, width: int, dialect: Dialect) -> str:
    if len(line) > MAX_LINE:
        return "longer than a mebibyte"
    line = line.removesuffix(b"\r")
    if b"\0" in line or b"\r" in line:
        return "a NUL or a carriage return within the line"
    quotes = line.count(dialect.quote) if dialect.quote else 0
    if quotes % 2:
        return "quotes that do not pair up within the line"
    if quotes:
        return f"quotes within a field, or other than {width} fields"
    number = line.count(dialect.delimiter) + 1
    return f"has {number} field{'s' * (number > 1)}, the header {width}"


_HEAD = 2**20
_LINES = 1000  # that delimiters are tried on
_TITLES = 50  # lines that the header may stand below
_DELIMITERS = (",", ";", "\t", "|")
_NUMBER = re.compile(r"[+-]?\d+([.,]\d*)?([eE][+-]?\d+)?")
_POINT, _COMMA = re.compile(r"[+-]?\d*\.\d+"), re.compile(r"[+-]?\d+,\d+")
_NO_END = "the last line has no end, as where a file is cut off: see that it is whole"
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def guessed_layout(path: Path, declared: Collection[str]) -> FileGuess:
    """Return how a file of text seems to be laid out.

    Args:
        path: the file.
        declared: names of the columns that the spec declares; they tell delimiters apart.
    """
    head, container = _beginning(path)
    cut = "" if container or _ended(path) else _NO_END
    remarks = [*filter(None, [remedy_for(container, path), cut])]
    encoding, text = ("", "") if head is None else _decoded(head)
    if head is None or "\0" in text:
        return FileGuess(path.name, container, is_text=False, remarks=tuple(remarks))
    ends = "\r" if "\r" in text and "\n" not in text else "\n"
    whole = text.split(ends) if len(head) < _HEAD else text.split(ends)[:-1]
    above = _above_header(whole, declared)
    lines = [line.rstrip("\r") for line in whole[above:] if line.strip("\r")][:_LINES]
    lines = lines or [text[:_HEAD]]
    quote = _quote(lines)
    found = []
    for delimiter in _DELIMITERS:
        rows = _rows(lines, delimiter, quote)
        names = tuple(name.strip() for name in rows[0]) if rows else ()
        # First of all, how many declared columns it shows.
        merit = len({*names} & {*declared}), len(names) > 1, _steady(rows), len(names)
        found.append((merit, delimiter, rows, names))
    _, delimiter, rows, names = max(found, key=lambda one: one[0])
    return FileGuess(
        path.name,
        container,
        is_text=True,
        encoding=encoding,
        delimiter=delimiter if len(names) > 1 else "",
        quote=quote,
        decimal=_decimal(rows[1:], delimiter),
        newlines_in_quotes=_goes_over_lines(text, lines, delimiter, quote),
        names=names,
        steady=_steady(rows),
        remarks=(*remarks, *_remarks(ends, names, declared, above)),
    )


def _above_header(lines: Sequence[str], declared: Collection[str]) -> int:
    """Return how many lines stand above the one that names the declared columns, if one does."""

    def shown(line: str) -> int:
        most = 0
        for mark in _DELIMITERS:
            names = {name.strip().strip("\"'") for name in line.split(mark)}
            most = max(most, len(names & {*declared}))
        return most

    found = [shown(line.rstrip("\r")) for line in lines[:_TITLES]]
    best = max(found, default=0)
    return found.index(best) if best > max(found[:1], default=0) and 2 * best > len(declared) else 0


def _remarks(
    ends: str, names: Collection[str], declared: Collection[str], above: int
) -> Iterator[str]:
    """Yield what is odd about the beginning of a file."""
    if above:
        first = "the first line" if above == 1 else f"the first {above:,} lines"
        yield (
            f"the header is line {above + 1:,}: delete {first}, since a release takes the first "
            "line for the header"
        )
    if ends == "\r":
        yield "lines end in carriage returns alone: write the file again with line feeds"
    if not {*names} & {*declared} and any(map(_NUMBER.fullmatch, names)):
        yield "the first line looks like a record: a header of column names is needed"


def _ended(path: Path) -> bool:
    """Return whether the last line of a file has an end, or there is none."""
    with open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2))
        tail = file.read()
    return not tail or tail.strip(b"\0")[-1:] in {b"\n", b"\r"}  # of UTF-16 too


def _beginning(path: Path) -> tuple[bytes | None, str]:
    with open_regular(path) as file:
        head = file.read(_HEAD)
    container = kind_of(head)
    if not container:
        return head, ""
    if container not in SUFFIX_OF_CODEC:
        return None, container
    try:
        with pa.input_stream(str(path), compression=container) as stream:
            return stream.read(_HEAD), container
    except (OSError, pa.ArrowException):
        return None, f"{container}, damaged"


def _decoded(head: bytes) -> tuple[str, str]:
    for mark, name in _MARKS:
        if head.startswith(mark):
            codec = "utf-8-sig" if name == "utf-8" else name
            return name, head.decode(codec, "ignore")
    zeros = head[:1000].count(0)
    if 3 * zeros > len(head[:1000]):  # every other byte, in plain text
        name = "utf-16-be" if head[:1] == b"\0" else "utf-16-le"
        return name, head.decode(name, "ignore")
    try:
        # A character may be cut in two at the end.
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
        return "" if text.isascii() else "utf-8", text
    except UnicodeDecodeError:
        pass
    try:
        if any(0x80 <= byte < 0xA0 for byte in head):
            return "cp1252", head.decode("cp1252")
    except UnicodeDecodeError:
        pass
    return "latin-1", head.decode("latin-1")


def _rows(lines: Sequence[str], delimiter: str, quote: str) -> list[list[str]]:
    """Return the fields of each line, for itself; a line with open quotes is one field."""
    rows: list[list[str]] = []
    for line in lines:
        try:
            rows += csv.reader([line], delimiter=delimiter, quotechar=quote or '"', strict=True)
        except csv.Error:
            rows.append([line])
    return rows


def _steady(rows: Sequence[Sequence[str]]) -> float:
    """Return the share of records with as many fields as the first line; 1 where there is none."""
    records = rows[1:]
    return sum(len(row) == len(rows[0]) for row in records) / len(records) if records else 1.0


def _quote(lines: Sequence[str]) -> str:
    """Return the quotes that stand around fields; empty where there are none."""

    def around(mark: str) -> int:
        field = re.compile(rf"(^|[,;\t|]){mark}[^{mark}]*{mark}($|[,;\t|])")
        return sum(bool(field.search(line)) for line in lines)

    single, double = around("'"), around('"')
    return "" if single == double == 0 else "'" if single > double else '"'


def _decimal(rows: Sequence[Sequence[str]], delimiter: str) -> str:
    """Return the decimal mark of the numbers; empty where none has decimals."""
    fields = [field.strip() for row in rows for field in row]
    points = sum(bool(_POINT.fullmatch(field)) for field in fields)
    commas = 0 if delimiter == "," else sum(bool(_COMMA.fullmatch(field)) for field in fields)
    return "" if points == commas == 0 else "," if commas > points else "."


def _goes_over_lines(text: str, lines: Sequence[str], delimiter: str, quote: str) -> bool:
    """Return whether fewer records are malformed where quotes may go over line ends."""
    quote = quote or '"'
    if quote not in text:
        return False
    alone = _rows(lines, delimiter, quote)
    width = len(alone[0])
    ragged = sum(len(row) != width for row in alone[:-1])  # the last may be cut off, as below
    try:
        ended = (f"{line}\n" for line in text.split("\n"))
        reader = csv.reader(ended, delimiter=delimiter, quotechar=quote)
        together = [row for _, row in zip(range(_LINES), reader, strict=False) if row]
    except csv.Error:  # a field that is too long: a quote is never closed
        return False
    return ragged > sum(len(row) != width for row in together[:-1])
