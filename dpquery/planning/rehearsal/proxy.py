"""Public stand-ins for the data, on which plan rehearses mechanisms whose error depends on it.

Nothing here is private, and nothing of it may come from the data that is to be protected: a public
CSV file in the declared schema, an earlier release of dpquery, or the made-up populations of
planning/rehearsal/prior.py. A proxy's counts are scaled to the declared number of rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import DataError, SpecError
from dpquery.measurement.counting.tabulate import check_table_sizes, tabulate
from dpquery.operators.blocks import Block
from dpquery.operators.cell_classes import CellClassBlock
from dpquery.operators.compile import CompiledSpec
from dpquery.planning.rehearsal.earlier_release import draw_records
from dpquery.planning.rehearsal.prior import POPULATIONS, sample_prior
from dpquery.progress import reporting
from dpquery.releases.formatting import without_controls
from dpquery.spec.model import Privacy, Spec
from dpquery.strategy.algebra.subsets import Subset

MAX_SAMPLED_RECORDS = (
    200_000  # records at most that are drawn from a distribution; more rows are scaled to
)


@dataclass(frozen=True, eq=False)
class Proxy:
    """Public records to rehearse on.

    Attributes:
        words: what the records are, for the report.
        records: how many of them the tables count.
        rows: how many records the dataset is declared to hold: answers are scaled to it.
        table: returns the counts of a set of attributes, over classes of codes.
    """

    words: str
    records: int
    rows: int
    table: Callable[[Subset], Ints]

    def answers(self, block: Block | CellClassBlock) -> Ints:
        """Return the answers of a block, (m,), scaled to the declared rows and rounded."""
        counts = block.apply(self.table(block.attributes)).ravel()
        if self.records == self.rows:
            return counts.astype(np.int64, copy=False)
        return np.rint(counts * (self.rows / self.records)).astype(np.int64)


def proxies_for(
    path: Path | None,
    spec: Spec,
    compiled: CompiledSpec,
    *,
    rows: int,
) -> tuple[Proxy, ...]:
    """Return the proxy that a path names; the made-up populations where there is none.

    Args:
        path: a CSV file or the folder of a release, both public.
        spec: the schema.
        compiled: the same with its workload.
        rows: how many records the dataset is declared to hold.

    Raises:
        SpecError: the file or release does not have the declared schema, or holds no records.
        UnsupportedWorkloadError: the tables that the workload asks for are too large to be counted.
    """
    counted = sorted({block.attributes for block in compiled.workload.blocks})
    check_table_sizes(counted, compiled.workload.shape_of_domain)
    if path is None:
        most = min(rows, MAX_SAMPLED_RECORDS)
        drawn = (sample_prior(spec.domain.shape, records=most, population=p) for p in POPULATIONS)
        words = "a made-up population"
        return tuple(_of_records(words, codes, compiled, rows=rows) for codes in drawn)
    if path.is_dir():
        codes, made_up = draw_records(path, spec, records=min(rows, MAX_SAMPLED_RECORDS))
        words = f"the release in {_printable(path)}/"
        if made_up:
            words += f", with the default prior for {', '.join(made_up)}"
        return (_of_records(words, codes, compiled, rows=rows),)
    return (_of_csv(path, spec, compiled, counted, rows=rows),)


def _of_csv(
    path: Path, spec: Spec, compiled: CompiledSpec, subsets: list[Subset], *, rows: int
) -> Proxy:
    """Count a PUBLIC file: it has the schema of the data, so that the same reader serves.

    The privacy unit is left out: a public file needs no column of persons.
    """
    tables = _PublicTables(path, replace(spec, privacy=Privacy()), compiled.classes)
    tables.count([*subsets, ()])
    records = int(tables(()))
    if records == 0:
        raise SpecError(f"the proxy {path} has no record inside the declared domain; name another")
    return Proxy(f"the public file {_printable(path)}", records, rows, tables)


def populations_in_words(proxies: Sequence[Proxy]) -> str:
    """Return in words what several proxies are."""
    return proxies[0].words if len(proxies) == 1 else f"{len(proxies)} made-up populations"


class _PublicTables:
    """The tables of a PUBLIC file, counted when they are first asked for."""

    def __init__(self, path: Path, spec: Spec, classes: Sequence[Ints]) -> None:
        self._path, self._spec, self._classes = path, spec, classes
        self._tables: dict[Subset, Ints] = {}

    def count(self, subsets: Sequence[Subset]) -> None:
        """Read the file once for some sets of attributes."""
        try:
            with reporting(None):  # "the data" is not this file
                tables = tabulate(
                    self._path, spec=self._spec, subsets=subsets, classes=self._classes
                )
        except DataError as error:
            raise SpecError(f"the proxy {error}") from None
        self._tables |= {subset: tables[subset] for subset in subsets}

    def __call__(self, subset: Subset) -> Ints:
        """Return the counts of a set of attributes: sums of a table that holds them, if any."""
        if subset not in self._tables:
            wider = [each for each in self._tables if set(subset) <= set(each)]
            if not wider:
                self.count([subset])
                return self._tables[subset]
            least = min(wider, key=lambda each: self._tables[each].size)
            others = tuple(axis for axis, i in enumerate(least) if i not in subset)
            self._tables[subset] = self._tables[least].sum(axis=others)
        return self._tables[subset]


def _of_records(words: str, codes: Ints, compiled: CompiledSpec, *, rows: int) -> Proxy:
    """Count records in codes, (records, d), table by table on request; no table is stored."""
    classes = [class_of[codes[:, i]] for i, class_of in enumerate(compiled.classes)]
    shape = compiled.workload.shape_of_domain

    def table(subset: Subset) -> Ints:
        sizes = [shape[i] for i in subset]
        if not subset:
            return np.array(len(codes))
        cells = np.ravel_multi_index([classes[i] for i in subset], sizes)
        return np.bincount(cells, minlength=math.prod(sizes)).reshape(sizes)

    return Proxy(words, len(codes), rows, table)


def _printable(path: Path) -> str:
    """Return a file's name as text of one line that can be written: names may hold any bytes."""
    name = path.resolve().name.encode("utf-8", "replace").decode()
    return " ".join(without_controls(name).split())
