"""The records of a file as the curator sees them, and what is tried on them.

Sources that hold the same records under two names; made of the records, so private as well.
"""

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dpquery.arrays import Ints
from dpquery.data_check.findings import MAX_PERSONS, FileGuess, Header, UndeclaredValues
from dpquery.exceptions import DataError, SpecError
from dpquery.measurement.counting.arrow_files import check_kinds
from dpquery.measurement.counting.column_codes import ColumnCodes, code_of, texts_of
from dpquery.measurement.counting.locations import Data, sources_of
from dpquery.measurement.counting.persons import person_names, texts_of_ids
from dpquery.measurement.counting.sources import (
    ColumnsError,
    Source,
    StoredFile,
    StoredValues,
    UnfitTextError,
    open_regular,
)
from dpquery.measurement.counting.text_files import TextFile
from dpquery.progress import Work
from dpquery.spec.columns import (
    Attribute,
    Boolean,
    Categorical,
    Column,
    ColumnKind,
    Dates,
    Integers,
)
from dpquery.spec.parsing.read import parse
from dpquery.spec.spec import Spec

_STEPS = 8  # in one direction and none in the other: 1 chance in 128 where order means nothing


class RowOrder:
    """Steps up and down, from each row of a person to the next, in each column's own order.

    The first so many persons are followed, which says as much as all of them would.
    """

    def __init__(
        self, person: str, columns: Sequence[Column], decimal: str, most: int = MAX_PERSONS
    ) -> None:
        self._person, self._columns, self._most = person, columns, most
        self._decimal = decimal
        self._coders = [ColumnCodes(column, decimal).of for column in columns]
        self._numbers: dict[bytes, int] = {}
        self._last = np.full((len(columns), 0), -1, np.int64)
        self._steps = np.zeros((len(columns), 2), np.int64)

    def add(self, texts: Mapping[str, StoredValues]) -> None:
        """Take the next rows, by the names of their columns."""
        persons = _joined(texts[self._person], self._person_numbers)
        more = len(self._numbers) - self._last.shape[1]
        self._last = np.pad(self._last, ((0, 0), (0, more)), constant_values=-1)
        for k, column in enumerate(self._columns):
            codes = _joined(texts[column.name], self._coders[k])
            known = np.flatnonzero((persons >= 0) & (codes >= 0) & (codes < column.length))
            order = known[np.argsort(persons[known], kind="stable")]
            self._compare(k, persons[order], codes[order])

    def _compare(self, k: int, persons: Ints, codes: Ints) -> None:
        """Count the steps of rows sorted by person, and remember the last of each."""
        if not persons.size:
            return
        before = np.roll(codes, 1)
        first = np.flatnonzero(np.diff(persons, prepend=-1))
        before[first] = self._last[k, persons[first]]
        step = np.where(before < 0, 0, np.sign(codes - before))
        self._steps[k] += ((step > 0).sum(), (step < 0).sum())
        self._last[k, persons] = codes  # of equal numbers the last one stays

    def _person_numbers(self, texts: pa.Array) -> Ints:
        """Return the number of each person; -1 without an id, and of those not followed."""
        numbers = []
        for name in person_names(texts, self._decimal).to_pylist():
            if name and name not in self._numbers and len(self._numbers) < self._most:
                self._numbers[name] = len(self._numbers)
            numbers.append(self._numbers.get(name, -1))
        return np.array(numbers, np.int64)

    def result(self) -> tuple[str, ...]:
        """Return the columns that the rows of persons are sorted by."""
        return tuple(
            column.name
            for column, (up, down) in zip(self._columns, self._steps.tolist(), strict=True)
            if min(up, down) == 0 and max(up, down) >= _STEPS
        )


def _joined(texts: StoredValues, number_of: Callable[[pa.Array], Ints]) -> Ints:
    parts = [number_of(distinct)[index] for distinct, index in texts]
    return np.concatenate([np.zeros(0, np.int64), *parts])


_FACTOR, _FOLD = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)  # odd; spreads bits as splitmix does


class RepeatedSources:
    """A number for each source: the same for the same declared texts in the same order.

    It is the sum over all records of a hash of record and place, so that a packed file, or one in
    other pieces, has the number of the plain one. Python's hash of bytes differs from run to run.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def add(self, source: str, columns: list[StoredValues]) -> None:
        """Take the next records of a source, the texts of each column."""
        total, before = self._seen.get(source, (0, 0))
        number = sum(index.size for _, index in columns[0])
        hashes = np.arange(before, before + number, dtype=np.uint64)
        for texts in columns:
            parts = [np.zeros(0, np.int64)]
            for distinct, index in texts:
                codes = np.fromiter((hash(text) for text in distinct), np.int64, len(distinct))
                parts.append(codes[index])
            words = hashes ^ np.concatenate(parts).view(np.uint64)
            words = words * _FACTOR
            hashes = (words ^ (words >> _FOLD)) * _FACTOR
        self._seen[source] = (total + int(hashes.sum())) % 2**64, before + number

    def result(self) -> tuple[tuple[str, str, int], ...]:
        """Return (source, an earlier source of the same records, their number)."""
        first: dict[tuple[int, int], str] = {}
        repeated = []
        for source, number in self._seen.items():
            if number in first and number[1]:
                repeated.append((source, first[number], number[1]))
            first.setdefault(number, source)
        return tuple(repeated)


_PIECE = 2**23  # bytes of text that are parsed at once
_UNREADABLE: tuple[type[Exception], ...] = (OSError, MemoryError, ValueError, TypeError)
_UNREADABLE += (LookupError, OverflowError, pa.ArrowException, sqlite3.Error)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some records of a source."""

    source: str  # its name
    texts: dict[str, StoredValues]  # the declared columns by name
    records: int  # how many of them could be split into fields
    malformed: int  # how many could not


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
        columns = spec.columns
        declared = [column.name for column in columns]
        self.declared = tuple(dict.fromkeys([*declared, *filter(None, [spec.privacy.person])]))
        self.readable = [source for source in sources if _refusal(source, ()) is None]
        wrong = {
            name
            for source in self.readable
            for name in self.declared
            if _refusal(source, (name,)) is not None
        }
        self.columns = [name for name in self.declared if name not in wrong]
        # what is wrong with the headers of some sources
        refusals = [
            _refusal(source, ()) or _refusal(source, self.declared, columns, spec.privacy.person)
            for source in sources
        ]
        files = [source for source in self.readable if isinstance(source, TextFile)]
        headers = [header for header in (file.header() for file in files) if header is not None]
        repeated = {name for header in headers for name in wrong if header.count(name) > 1}
        undeclared = (name for header in headers for name in header if name not in self.declared)
        dates = [c.name for c in columns if isinstance(c.kind, Dates) and c.name not in wrong]
        types = [source.check(dates) for source in self.readable]
        kinds = ((name, of[name]) for of in types if of for name in dates if name in of)
        found = ((name, getattr(kind, "tz", None)) for name, kind in kinds)
        self.header = Header(
            tuple(filter(None, refusals)),
            missing=tuple(name for name in self.declared if name in wrong - repeated),
            repeated=tuple(name for name in self.declared if name in repeated),
            undeclared=tuple(dict.fromkeys(undeclared)),
            zones=tuple(dict.fromkeys((name, zone) for name, zone in found if zone)),
        )
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


def _refusal(
    source: Source, names: Sequence[str], columns: Iterable[Column] = (), person: str | None = None
) -> str | None:
    """Return the words in which a release would refuse a source for some columns, if it would."""
    try:
        check_kinds(source.check(names), columns, where=source.name)
    except ColumnsError as error:
        return error.told(person=person)
    except DataError as error:
        return str(error)
    return None


_TRIAL = """\
dataset: {{id: trial}}
privacy: {{unit: row}}
budget: {{epsilon: 1}}
{other}
domain:
  {line}
workload:
  - {{name: all, product: {{}}}}
"""


def declares_more(
    line: str, attribute: Attribute, odd: Mapping[str, UndeclaredValues], spec: Spec
) -> bool:
    """Return whether a line of YAML declares what an attribute does, and some of the rest."""
    other = re.search(r"^other\s*:.*", spec.text, re.MULTILINE)
    text = _TRIAL.format(other=other[0] if other else "", line=line)
    try:
        (offered,) = parse(text, name="trial", files={}).domain.attributes
    except SpecError:
        return False
    columns = {column.name: column for column in offered.columns}
    known = all(
        _has(columns[column.name], text, spec.file.decimal)
        for column in attribute.columns
        for text in _texts_of(column.kind)
    )
    return known and any(
        _has(column, text, spec.file.decimal) or column.other != odd[column.name].column.other
        for column in offered.columns
        if column.name in odd
        for text, _ in odd[column.name].commonest
    )


def _has(column: Column, text: str, decimal: str) -> bool:
    code = code_of(column, decimal)(text.encode("utf-8", "surrogateescape"))
    return 0 <= code < column.length


def _texts_of(kind: ColumnKind) -> list[str]:
    """Return texts that a column declares: all listed ones, or the ends."""
    match kind:
        case Categorical(texts=texts):
            return [text for listed in texts for text in listed]
        case Boolean(true=true, false=false):
            return [*true, *false]
        case Integers(low=low, high=high):
            return [str(low), str(high)]
        case _:
            return []


def tried_layout(layout: FileGuess, data: Data, spec: Spec) -> FileGuess:
    """Return a guess without what would make more lines malformed, or end a release."""
    if layout.mended(spec.file) == spec.file:
        return layout
    before = _faults(data, spec)
    if _faults(data, _with(spec, layout)) <= before:
        return layout
    one_line = replace(layout, newlines_in_quotes=False)
    if layout.newlines_in_quotes and _faults(data, _with(spec, one_line)) <= before:
        remark = (
            "its quotes do not pair up: write the file again with quotes doubled within fields, or "
            "declare `file: {quote: none}` where they are letters like others"
        )
        return replace(one_line, remarks=(*layout.remarks, remark))
    return FileGuess(layout.name, layout.container, is_text=True, names=layout.names)


def _with(spec: Spec, layout: FileGuess) -> Spec:
    return replace(spec, file=layout.mended(spec.file))


def _faults(data: Data, spec: Spec) -> tuple[int, int, int]:
    try:
        file = FileRecords(sources_of(data, spec.file), spec)
        malformed = sum(chunk.malformed for chunk in file.chunks()) if file.columns else 0
    except DataError:
        return 2**30, 0, 0
    return len(file.header.refusals), len(file.failures), malformed
