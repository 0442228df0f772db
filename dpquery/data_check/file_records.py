"""The records of files and tables, parsed by the very functions that a release parses them with."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dpquery.data_check.findings import Header
from dpquery.exceptions import DataError
from dpquery.measurement.counting.arrow_files import check_kinds
from dpquery.measurement.counting.person_keys import texts_of_ids
from dpquery.measurement.counting.sources import (
    Source,
    StoredFile,
    StoredValues,
    UnfitTextError,
    open_regular,
)
from dpquery.measurement.counting.text_files import TextFile
from dpquery.measurement.counting.value_texts import texts_of
from dpquery.progress import Work
from dpquery.spec.domain import Column, Dates
from dpquery.spec.model import Spec

_PIECE = 2**23  # bytes of text that are parsed at once
_UNREADABLE: tuple[type[Exception], ...] = (OSError, MemoryError, ValueError, TypeError)
_UNREADABLE += (LookupError, OverflowError, pa.ArrowException, sqlite3.Error)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some records of a source.

    Attributes:
        source: its name.
        texts: the declared columns by name.
        records: how many of them could be split into fields.
        malformed: how many could not.
    """

    source: str
    texts: dict[str, StoredValues]
    records: int
    malformed: int


class FileRecords:
    """Sources held against a spec: their headers, and the records below them.

    Attributes:
        declared: the columns that the spec declares, that of persons included.
        columns: those that each source with a header has once.
        header: what is wrong with the headers.
        readable: sources with a header.
        failures: where a source broke in its midst, after `chunks`.
    """

    def __init__(self, sources: Sequence[Source], spec: Spec) -> None:
        """Read the headers.

        Raises:
            DataError: a file cannot be opened.
        """
        for source in sources:
            if isinstance(source, StoredFile):
                with open_regular(source.path):
                    pass
        declared = [column.name for column in spec.domain.columns]
        self.declared = tuple(dict.fromkeys([*declared, *filter(None, [spec.privacy.person])]))
        self.readable = [source for source in sources if _refusal(source, ()) is None]
        wrong = {
            name
            for source in self.readable
            for name in self.declared
            if _refusal(source, (name,)) is not None
        }
        self.columns = [name for name in self.declared if name not in wrong]
        self.header = _header(sources, self.readable, self.declared, wrong, spec.domain.columns)
        self.failures: list[str] = []
        self._person, self._decimal = spec.privacy.person, spec.file.decimal
        self._marks = {c.name: c.number.decimal for c in spec.domain.columns if c.number}

    def chunks(self) -> Iterator[Chunk]:
        """Yield all records, in order. Where a source breaks in its midst the next one follows."""
        total = max(1, sum(source.size for source in self.readable))
        done, reading = 0, Work("reading the data")
        for source in self.readable:
            try:
                for piece in source.pieces(self.columns, self.columns, size=_PIECE):
                    texts, malformed = piece.parse()
                    records = sum(index.size for _, index in texts[0])
                    by_name = {
                        name: self._distinct_texts(name, column)
                        for name, column in zip(self.columns, texts, strict=True)
                    }
                    yield Chunk(source.name, by_name, records, malformed)
                    reading.report((done + piece.share * source.size) / total)
            except UnfitTextError as error:
                self.failures.append(f"{source.name} {error}")
            except _UNREADABLE:
                self.failures.append(f"{source.name} could not be read to its end; {source.remedy}")
            done += source.size
        reading.report(1.0)

    def _distinct_texts(self, name: str, column: StoredValues) -> StoredValues:
        """Return a column whose typed values are written as texts, each distinct one once."""
        text_of = texts_of_ids if name == self._person else texts_of
        written: StoredValues = []
        for values, places in column:
            distinct = values.dictionary_encode("encode")
            texts = text_of(distinct.dictionary, self._marks.get(name, self._decimal))
            written.append((texts, distinct.indices.to_numpy()[places]))
        return written


def _header(
    sources: Sequence[Source],
    readable: Sequence[Source],
    declared: Sequence[str],
    wrong: set[str],
    columns: Sequence[Column],
) -> Header:
    """Return what is wrong with the headers of some sources."""
    refusals = [_refusal(source, ()) or _refusal(source, declared, columns) for source in sources]
    files = [source for source in readable if isinstance(source, TextFile)]
    headers = [header for header in (file.header() for file in files) if header is not None]
    repeated = {name for header in headers for name in wrong if header.count(name) > 1}
    undeclared = (name for header in headers for name in header if name not in declared)
    return Header(
        tuple(filter(None, refusals)),
        missing=tuple(name for name in declared if name in wrong - repeated),
        repeated=tuple(name for name in declared if name in repeated),
        undeclared=tuple(dict.fromkeys(undeclared)),
        zones=_zones(readable, [c for c in columns if c.name not in wrong]),
    )


def _zones(sources: Sequence[Source], columns: Sequence[Column]) -> tuple[tuple[str, str], ...]:
    """Return the columns of dates whose type has a time zone, with each zone."""
    dates = [column.name for column in columns if isinstance(column.kind, Dates)]
    types = [source.check(dates) for source in sources]
    kinds = ((name, of[name]) for of in types if of for name in dates if name in of)
    found = ((name, getattr(kind, "tz", None)) for name, kind in kinds)
    return tuple(dict.fromkeys((name, zone) for name, zone in found if zone))


def _refusal(source: Source, names: Sequence[str], columns: Iterable[Column] = ()) -> str | None:
    """Return the words in which a release would refuse a source for some columns, if it would."""
    try:
        check_kinds(source.check(names), columns, where=source.name)
    except DataError as error:
        return str(error)
    return None
