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
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from dpquery.arrays import Ints
from dpquery.exceptions import DataError
from dpquery.limits import MAX_STATE_BYTES
from dpquery.measurement.counting.arrow_files import check_kinds
from dpquery.measurement.counting.engines.spark import check_spark, count_on_spark
from dpquery.measurement.counting.locations import Data, sources_of, spark_locations
from dpquery.measurement.counting.sources import Piece, Source, StoppedError, UnfitTextError
from dpquery.measurement.counting.tables import homes_of
from dpquery.measurement.counting.tally import Counts, RecordTally
from dpquery.measurement.counting.value_counts import TALLIES, Sought, ValueCounts, ValueTally
from dpquery.progress import Work, report_progress
from dpquery.spec.spec import Spec
from dpquery.strategy.algebra.subsets import Subset

_Result = TypeVar("_Result")
_CHUNK = 2**23
_PARSERS, _AHEAD = 2, 3  # threads that parse and code; pieces that they have, or wait to be counted
_UNREADABLE: tuple[type[Exception], ...] = (OSError, MemoryError, ValueError, TypeError)
_UNREADABLE += (LookupError, OverflowError, pa.ArrowException, sqlite3.Error)


def check_header(data: Data, spec: Spec) -> None:
    """Check, from headers and schemas alone, that all sources have every declared column once.

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
        check_kinds(source.check(_declared(spec)), spec.columns, where=source.name)


def check_table_sizes(subsets: Sequence[Subset], shape: Sequence[int], copies: int = 1) -> None:
    """Check that so many tables of each subset can be counted; UnsupportedWorkloadError if not."""
    homes_of(subsets, shape, copies=copies)


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

    Privacy: one row more or less moves every tensor by at most `spec.privacy.steps` in L1, which is
    1 where records have no weight, and one person by at most `max_rows` times that where the unit
    is a person. The result itself is NOT private.

    Raises:
        DataError: a source cannot be read; the message holds nothing that was read from it.
        UnsupportedWorkloadError: the tensors together pass 2^28 cells.
    """
    if classes is None:
        classes = [np.arange(n) for n in spec.domain.shape]
    if locations := spark_locations(data):
        # On each machine the rows of the persons of one partition are held, as many as there are.
        counter = partial(
            RecordTally, spec, subsets, classes, memory=sys.maxsize, secret=os.urandom(32)
        )
        total, persons = counter(), spec.privacy.person is not None
        report_progress("counting on Spark")
        for cells in count_on_spark(locations, _declared(spec), counter=counter, persons=persons):
            total.add_partial_tables(cells)
        return total.marginals()
    tally = RecordTally(spec, subsets, classes, memory=memory)
    return _counted(data, tally, tally.marginals, chunk_bytes=_CHUNK)


def count_values(
    data: Data, *, spec: Spec, max_values: int, sought: Sought = "values"
) -> ValueCounts:
    """Return how many persons have each value of the spec's only column; see `value_counts`.

    Privacy: one person more or less moves at most `max_values` counts, each by 1; one row, where
    that is the unit, one count; of numbers so many by each number of digits. The result itself is
    NOT private.

    Raises:
        DataError: as `tabulate`.
    """
    tally = TALLIES[sought](spec, max_values)
    return _counted(data, tally, tally.result, chunk_bytes=_CHUNK)


def _counted(
    data: Data, tally: RecordTally | ValueTally, result: Callable[[], _Result], *, chunk_bytes: int
) -> _Result:
    """Return the result of a tally after all sources, read in chunks of so many bytes."""
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
        return result()
    except UnfitTextError as error:
        problem = f"{source.name} {error}"
    except StoppedError as error:
        problem = f"{source.name} could not be read to its end: {error}"
    except _UNREADABLE:
        pass
    # Raised outside the handler: the cause's text may hold a line of the file.
    raise DataError(problem)


def _counts(
    data: Data, tally: RecordTally | ValueTally, chunk_bytes: int
) -> Iterator[tuple[Source, Counts | None, float]]:
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
    pieces: Iterable[Piece], tally: RecordTally | ValueTally, pool: ThreadPoolExecutor
) -> Iterator[tuple[Counts, float]]:
    """Yield what counts a batch, in the order of the pieces, while the next ones are coded."""
    waiting: deque[tuple[Future[Counts], float]] = deque()
    for piece in pieces:
        waiting.append((pool.submit(tally.coded, piece), piece.share))
        if len(waiting) == _AHEAD:
            count, share = waiting.popleft()
            yield count.result(), share
    while waiting:
        count, share = waiting.popleft()
        yield count.result(), share


def _declared(spec: Spec) -> list[str]:
    person = [] if spec.privacy.person is None else [spec.privacy.person]
    return [*dict.fromkeys([*(column.name for column in spec.columns), *person])]
