"""Count the records of files and tables: exact marginals over the subsets a strategy measures.

The sources are streamed in chunks, so memory does not grow with their rows. Where the unit is a
person, the rows that stay of each are held, and all sources are read again where they do not fit
(`persons`). A record is inside the domain or outside of it as a whole: one value that is outside a
column that drops such values takes the record out of every marginal, so that all marginals are
those of one and the same table.
"""

import os
import sqlite3
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np
import pyarrow as pa

from dpquery.arrays import Bits, Bools, Ints
from dpquery.exceptions import DataError
from dpquery.limits import MAX_STATE_BYTES
from dpquery.measurement.counting.arrow_files import check_kinds
from dpquery.measurement.counting.column_codes import ColumnCodes
from dpquery.measurement.counting.engines.spark import check_spark, count_on_spark
from dpquery.measurement.counting.locations import Data, sources_of, spark_locations
from dpquery.measurement.counting.persons import ExpandedSecret, KeptRows, PersonKeys, person_names
from dpquery.measurement.counting.sources import Piece, Source, StoredValues, UnfitTextError
from dpquery.measurement.counting.tables import PackedCodes, TableCounts, homes_of
from dpquery.progress import Work, report_progress
from dpquery.spec.columns import Column
from dpquery.spec.spec import Spec
from dpquery.strategy.algebra.subsets import Subset

_CHUNK = 2**23
_PARSERS, _AHEAD = 2, 3  # threads that parse and code; pieces that they have, or wait to be counted
_Count = Callable[[], None]
_UNREADABLE: tuple[type[Exception], ...] = (OSError, MemoryError, ValueError, TypeError)
_UNREADABLE += (LookupError, OverflowError, pa.ArrowException, sqlite3.Error)


def check_header(data: Data, spec: Spec) -> None:
    """Check, from headers and schemas alone, that all sources have every declared column once.

    Args:
        data: see `locations`.
        spec: declares the columns.

    Raises:
        DataError: a source cannot be opened, lacks or repeats a declared column, has one of a type
            whose values are never what is declared, or is named twice; the message names declared
            columns and types only. Or tables on Spark have no first rows.
    """
    if locations := spark_locations(data):
        if spec.privacy.person is not None and spec.privacy.keep == "first":
            raise DataError(
                "rows on Spark have no order, and `keep: first` takes the first of each person; "
                "set `keep: random` in the spec, or name a file"
            )
        check_spark(locations, _declared(spec))
        return
    for source in sources_of(data, spec.file):
        check_kinds(source.check(_declared(spec)), spec.domain.columns, where=source.name)


def check_table_sizes(subsets: Sequence[Subset], shape: Sequence[int]) -> None:
    """Check that the tables of some subsets can be counted; UnsupportedWorkloadError if not."""
    homes_of(subsets, shape)


def tabulate(
    data: Data,
    *,
    spec: Spec,
    subsets: Sequence[Subset],
    classes: Sequence[Ints] | None = None,
    memory: int = MAX_STATE_BYTES,
) -> MutableMapping[Subset, Ints]:
    """Return the exact counts of each subset of attributes, as a tensor of one axis an attribute.

    Args:
        data: files and tables of databases, counted as one table; see `locations`.
        spec: declares the columns, the domain, the protected unit and how text is written.
        subsets: attribute indices, each strictly increasing; () is the total.
        classes: for each attribute the class of every code; tensors then count classes.
        memory: bytes of rows held at a time where the unit is a person; less takes more passes over
            the data, and counts the same.

    Privacy: one row more or less moves every tensor by at most 1 in L1, and one person by at most
    `spec.privacy.max_rows` where the unit is a person. The result itself is NOT private.

    Raises:
        DataError: a source cannot be read; the message holds nothing that was read from it.
        UnsupportedWorkloadError: the tensors together pass 2^28 cells.
    """
    if classes is None:
        classes = [np.arange(n) for n in spec.domain.shape]
    if locations := spark_locations(data):
        # On each machine the rows of the persons of one partition are held, as many as there are.
        counter = partial(_Tally, spec, subsets, classes, memory=sys.maxsize, secret=os.urandom(32))
        total = counter()
        report_progress("counting on Spark")
        cells = count_on_spark(
            locations,
            _declared(spec),
            counter=counter,
            persons=spec.privacy.person is not None,
        )
        for part in cells:
            total.add_partial_tables(part)
        return total.marginals()
    tally = _Tally(spec, subsets, classes, memory=memory)
    return _tabulate(data, tally, chunk_bytes=_CHUNK)


def _tabulate(
    data: Data,
    tally: "_Tally",
    *,
    chunk_bytes: int,
) -> MutableMapping[Subset, Ints]:
    """Return the marginals of a tally after all sources, read in chunks of so many bytes."""
    problem, again = "no source could be read", True
    reading = Work("reading the data")
    try:
        while again:
            for source, count, share in _counts(data, tally, chunk_bytes):
                problem = f"{source.name} could not be read to its end; {source.remedy}"
                if count is not None:
                    count()
                reading.report(tally.share(share))
            again = tally.end_pass()
        return tally.marginals()
    except UnfitTextError as error:
        problem = f"{source.name} {error}"
    except _UNREADABLE:
        pass
    # Raised outside the handler: the cause's text may hold a line of the file.
    raise DataError(problem)


def _counts(
    data: Data, tally: "_Tally", chunk_bytes: int
) -> Iterator[tuple[Source, _Count | None, float]]:
    """Yield each source with none, before it is read, then what counts its batches; the share."""
    sources = sources_of(data, tally.spec.file)
    sizes = [source.size for source in sources]
    done, total = 0, max(1, sum(sizes))
    declared = _declared(tally.spec)
    with ThreadPoolExecutor(_PARSERS) as pool:
        for source, size in zip(sources, sizes, strict=True):
            yield source, None, done / total
            pieces = source.pieces(declared, tally.names, size=chunk_bytes)
            for count, share in _coded(pieces, tally, pool):
                yield source, count, (done + share * size) / total
            done += size
    yield source, None, 1.0


def _coded(
    pieces: Iterable[Piece], tally: "_Tally", pool: ThreadPoolExecutor
) -> Iterator[tuple[_Count, float]]:
    """Yield what counts a batch, in the order of the pieces, while the next ones are coded."""
    waiting: deque[tuple[Future[_Count], float]] = deque()
    for piece in pieces:
        waiting.append((pool.submit(tally.coded, piece), piece.share))
        if len(waiting) == _AHEAD:
            count, share = waiting.popleft()
            yield count.result(), share
    while waiting:
        count, share = waiting.popleft()
        yield count.result(), share


class _Tally:
    """Running counts of the marginals over all subsets, chunk by chunk; confidential."""

    def __init__(
        self,
        spec: Spec,
        subsets: Sequence[Subset],
        classes: Sequence[Ints],
        *,
        memory: int = MAX_STATE_BYTES,
        secret: bytes | None = None,
    ) -> None:
        """Choose the tensors to count and the columns that they need, from the spec alone.

        Tallies of one secret give a person the same key.
        """
        self.spec = spec
        self._classes = classes
        self._shape = tuple(int(class_of.max()) + 1 for class_of in classes)
        for subset in subsets:
            if list(subset) != sorted(set(subset)) or not set(subset) <= set(
                range(len(self._shape))
            ):
                raise ValueError(f"{subset} is not an increasing tuple of attribute indices")
        self._counts = TableCounts(subsets, self._shape)
        used = {i for subset in subsets for i in subset}
        self._needed = [
            i
            for i, attribute in enumerate(spec.domain.in_data)
            if i in used or any(column.drops for column in attribute.columns)
        ]
        declared = [c for i in self._needed for c in spec.domain.attributes[i].columns]
        self._codes_of = {c.name: ColumnCodes(c, spec.file.decimal) for c in declared}
        self._numbered = [i for i in used if not spec.domain.attributes[i].in_data]
        # Where no column decides anything, one is read all the same: its records are counted.
        self.names = [c.name for c in declared] or [spec.domain.attributes[0].columns[0].name]
        if spec.privacy.person is not None:
            self.names.append(spec.privacy.person)
            self._packed = PackedCodes(sorted(used.difference(self._numbered)), self._shape)
            self._keys = PersonKeys() if secret is None else PersonKeys(ExpandedSecret(secret))
            self._kept = KeptRows(
                max_rows=spec.privacy.max_rows,
                words=self._packed.words,
                keep=spec.privacy.keep,
                numbered=bool(self._numbered),
                limit=memory,
            )
        self._closed = any(column.drops for column in spec.domain.columns)

    def add(self, texts: Sequence[StoredValues], malformed: int) -> None:
        """Count the records of one chunk; `texts` in the order of `names`."""
        self._coded(texts, malformed)()

    def coded(self, piece: Piece) -> _Count:
        """Parse a piece and code its records, in any thread; return what counts them, in one."""
        return self._coded(*piece.parse())

    def _coded(self, texts: Sequence[StoredValues], malformed: int) -> _Count:
        if self.spec.privacy.person is not None:
            return partial(self.add_rows_of_persons, self.rows_of_persons(texts))
        codes, inside = self._codes(texts)
        if not inside.all():
            codes = {i: attribute_codes[inside] for i, attribute_codes in codes.items()}
        rows = int(inside.sum())
        if not self._closed:
            # Every field of a malformed line is outside: the last code of each attribute.
            rows += malformed
            codes = {
                i: np.append(attribute_codes, np.full(malformed, self._classes[i][-1]))
                for i, attribute_codes in codes.items()
            }
        numbers = self._numbers(np.ones(rows, np.uint64))
        return partial(self._counts.add, codes | numbers, rows)

    def rows_of_persons(self, texts: Sequence[StoredValues]) -> Bits:
        """Return the rows inside the domain as (words, n): the person's key, the packed codes."""
        codes, inside = self._codes(texts)
        keys, named = self._person_keys(texts[-1])
        inside &= named
        return np.concatenate([keys[:, inside], self._packed.pack(codes, inside)])

    def add_rows_of_persons(self, rows: Bits) -> None:
        """Take rows of persons, in the order of the data."""
        self._kept.add(rows[:2], rows[2:])

    def partial_tables(self) -> Iterator[Ints]:
        """Yield the cells that are not 0 as (2, n): numbers through all tensors, and counts."""
        return self._counts.cells()

    def add_partial_tables(self, cells: Ints) -> None:
        """Add cells of the same tensors that were counted elsewhere, as `partial_tables` has them.

        Raises:
            IndexError: there is no such cell.
        """
        self._counts.add_cells(cells)

    def end_pass(self) -> bool:
        """Count the rows that stay of persons; return whether the file must be read again."""
        if self.spec.privacy.person is None:
            return False
        for content in self._kept.kept():
            codes = self._packed.unpack(content[: self._packed.words])
            self._counts.add(codes | self._numbers(content[-1]), content.shape[1])
        return self._kept.begin_pass()

    def share(self, of_pass: float) -> float:
        """Return the share of all reading that is done, about, after that of this pass."""
        if self.spec.privacy.person is None:
            return of_pass
        before, now = self._kept.share
        return before + now * of_pass

    def marginals(self) -> MutableMapping[Subset, Ints]:
        """Return the tensor of each subset, summed from that of the table it was counted in."""
        return self._counts.marginals()

    def _codes(self, texts: Sequence[StoredValues]) -> tuple[dict[int, Ints], Bools]:
        """Return the classes of the needed attributes, and which records are inside all of them."""
        by_name = dict(zip(self.names, texts, strict=True))
        inside = np.ones(sum(index.size for _, index in texts[0]), np.bool_)
        return {i: self._attribute_codes(i, by_name, inside) for i in self._needed}, inside

    def _attribute_codes(self, i: int, texts: Mapping[str, StoredValues], inside: Bools) -> Ints:
        """Return the classes of an attribute's codes; clear records without a code in `inside`."""
        codes = np.zeros(inside.size, np.int64)
        for column in self.spec.domain.attributes[i].columns:
            column_codes = self._column_codes(column, texts[column.name])
            inside &= column_codes >= 0
            codes = codes * column.size + column_codes
        return self._classes[i][np.where(inside, codes, 0)]

    def _numbers(self, numbers: Bits) -> dict[int, Ints]:
        """Return the classes of `person_rows`, if it is counted, given each row's number or 0.

        Where the unit is a row, as in a public file, every row is a person's only one.
        """
        codes = {}
        for i in self._numbered:
            other = self.spec.domain.attributes[i].length
            known = np.minimum(numbers, np.uint64(other)).astype(np.int64)
            codes[i] = self._classes[i][np.where(known > 0, known - 1, other)]
        return codes

    def _column_codes(self, column: Column, texts: StoredValues) -> Ints:
        """Return the code of every record in a column, -1 where it has none."""
        codes = self._codes_of[column.name]
        parts = [codes.of(values)[places] for values, places in texts]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _person_keys(self, texts: StoredValues) -> tuple[Bits, Bools]:
        """Return the key of every record's person, (2, n), and where there is one, (n,)."""
        decimal = self.spec.file.decimal
        parts = [(*self._keys.of(person_names(ids, decimal)), index) for ids, index in texts]
        return (
            np.concatenate([np.zeros((2, 0), np.uint64), *(keys[:, i] for keys, _, i in parts)], 1),
            np.concatenate([np.zeros(0, np.bool_), *(named[i] for _, named, i in parts)]),
        )


def _declared(spec: Spec) -> list[str]:
    """Return the columns that every source must have once."""
    person = [] if spec.privacy.person is None else [spec.privacy.person]
    return [column.name for column in spec.domain.columns] + person
