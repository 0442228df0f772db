"""Count the records of a CSV file: exact marginals over the attribute subsets a strategy measures.

The file is streamed in chunks, so memory does not grow with its rows (but for one entry a person
where the unit is a person). A record is inside the domain or outside of it as a whole: one value
that is outside a column that drops such values takes the record out of every marginal, so that all
marginals are those of one and the same table.
"""

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpquery.exceptions import DataError, UnsupportedWorkloadError
from dpquery.limits import MAX_COUNTED_CELLS, MAX_LINE
from dpquery.measurement.counting.csv_lines import Texts, chunks, columns
from dpquery.measurement.counting.value_codes import coder
from dpquery.progress import report_progress
from dpquery.spec.domain import Column
from dpquery.spec.model import Spec
from dpquery.strategy.algebra.subsets import Subset

_CHUNK = 2**24
_SMALL = 2**17  # counts that stay in the cache of a core
_RECENT = 32  # tables that one more is tried to be merged with
_LISTED = 12  # attributes of a table whose subsets are all looked up


def check_header(path: Path, spec: Spec) -> None:
    """Check, from the header line alone, that the file has every declared column once.

    Raises:
        DataError: the file cannot be opened, or its header lacks or repeats a declared column;
            the message names declared columns only.
    """
    with _open(path) as file:
        _locate(file, path, spec)


def check_table_sizes(subsets: Sequence[Subset], shape: Sequence[int]) -> None:
    """Check that the tables of some subsets can be counted; UnsupportedWorkloadError if not."""
    _homes(subsets, shape)


def tabulate(
    path: Path,
    *,
    spec: Spec,
    subsets: Sequence[Subset],
    classes: Sequence[NDArray[np.int64]] | None = None,
) -> dict[Subset, NDArray[np.int64]]:
    """Return the exact counts of each subset of attributes, as a tensor of one axis an attribute.

    Args:
        path: a CSV file: commas, a header line, UTF-8 or ASCII, quotes within a line only.
        spec: declares the columns, the domain and the protected unit.
        subsets: attribute indices, each strictly increasing; () is the total.
        classes: for each attribute the class of every code; tensors then count classes.

    Privacy: one row more or less moves every tensor by at most 1 in L1, and one person by at most
    `spec.privacy.max_rows` where the unit is a person. The result itself is NOT private.

    Raises:
        DataError: the file cannot be read; the message holds nothing that was read from it.
        UnsupportedWorkloadError: the tensors together pass 2^28 cells.
    """
    if classes is None:
        classes = [np.arange(n) for n in spec.domain.shape]
    tally = _Tally(spec, subsets, classes)
    return _tabulate(path, tally, chunk_bytes=_CHUNK)


def _tabulate(
    path: Path,
    tally: "_Tally",
    *,
    chunk_bytes: int,
) -> dict[Subset, NDArray[np.int64]]:
    """Return the marginals of a tally after the whole file, read in chunks of so many bytes."""
    with _open(path) as file:
        width, places = _locate(file, path, tally.spec)
        wanted = [places[name] for name in tally.names]
        try:
            length = max(1, os.fstat(file.fileno()).st_size)
            for chunk in chunks(file, chunk_bytes):
                tally.add(*columns(chunk, width=width, wanted=wanted))
                report_progress("reading the data", min(1.0, file.tell() / length))
            return tally.marginals()
        except (OSError, MemoryError, ValueError, TypeError, LookupError, pa.ArrowException):
            pass
    # Raised outside the handler: the cause's text may hold a line of the file.
    raise DataError(f"{path} could not be read to its end; check the disk and the memory")


class _Tally:
    """Running counts of the marginals over all subsets, chunk by chunk; confidential."""

    def __init__(
        self, spec: Spec, subsets: Sequence[Subset], classes: Sequence[NDArray[np.int64]]
    ) -> None:
        """Choose the tensors to count and the columns that they need, from the spec alone."""
        self.spec = spec
        self._classes = classes
        self._shape = tuple(int(class_of.max()) + 1 for class_of in classes)
        for subset in subsets:
            if list(subset) != sorted(set(subset)) or not set(subset) <= set(
                range(len(self._shape))
            ):
                raise ValueError(f"{subset} is not an increasing tuple of attribute indices")
        self._subsets = tuple(subsets)
        self._homes = _homes(subsets, self._shape)
        groups = sorted(set(self._homes.values()))
        used = {i for subset in subsets for i in subset}
        self._needed = [
            i
            for i, attribute in enumerate(spec.domain.attributes)
            if i in used or any(column.drops for column in attribute.columns)
        ]
        declared = [c for i in self._needed for c in spec.domain.attributes[i].columns]
        self._coders = {column.name: coder(column) for column in declared}
        self._rows_of: dict[bytes, int] = {}  # rows counted so far of each person
        # Where no column decides anything, one is read all the same: its records are counted.
        self.names = [c.name for c in declared] or [spec.domain.attributes[0].columns[0].name]
        if spec.privacy.person is not None:
            self.names.append(spec.privacy.person)
        self._counts = {group: np.zeros(_cells(group, self._shape), np.int64) for group in groups}
        self._closed = any(column.drops for column in _domain_columns(spec))

    def add(self, texts: Sequence[Texts], malformed: int) -> None:
        """Count the records of one chunk; `texts` in the order of `names`."""
        by_name = dict(zip(self.names, texts, strict=True))
        rows = sum(index.size for _, index in texts[0])
        inside = np.ones(rows, np.bool_)
        codes = {i: self._attribute_codes(i, by_name, inside) for i in self._needed}
        person = self.spec.privacy.person
        if person is not None:
            self._keep_first_rows(by_name[person], inside)
        elif not self._closed:
            # Every field of a malformed line is outside: the last code of each attribute.
            inside = np.append(inside, np.ones(malformed, np.bool_))
            codes = {
                i: np.append(attribute_codes, np.full(malformed, self._classes[i][-1]))
                for i, attribute_codes in codes.items()
            }
        if not inside.all():
            codes = {i: attribute_codes[inside] for i, attribute_codes in codes.items()}
        for group, counts in self._counts.items():
            cell = np.zeros(int(inside.sum()), np.int64)
            for i in group:
                cell = cell * self._shape[i] + codes[i]
            _count(counts, cell)

    def marginals(self) -> dict[Subset, NDArray[np.int64]]:
        """Return the tensor of each subset, summed from that of the group it was counted in."""
        return {subset: self._marginal(subset) for subset in self._subsets}

    def _marginal(self, subset: Subset) -> NDArray[np.int64]:
        group = self._homes[subset]
        tensor = self._counts[group].reshape([self._shape[i] for i in group])
        axes = tuple(axis for axis, i in enumerate(group) if i not in subset)
        return np.asarray(tensor.sum(axis=axes, dtype=np.int64)) if axes else tensor

    def _attribute_codes(
        self, i: int, texts: Mapping[str, Texts], inside: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return the classes of an attribute's codes; clear records without a code in `inside`."""
        codes = np.zeros(inside.size, np.int64)
        for column in self.spec.domain.attributes[i].columns:
            column_codes = self._column_codes(column, texts[column.name])
            inside &= column_codes >= 0
            codes = codes * column.size + column_codes
        return self._classes[i][np.where(inside, codes, 0)]

    def _column_codes(self, column: Column, texts: Texts) -> NDArray[np.int64]:
        """Return the code of every record in a column, -1 where it has none."""
        code = self._coders[column.name]
        parts = [code(distinct)[index] for distinct, index in texts]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _keep_first_rows(self, texts: Texts, inside: NDArray[np.bool_]) -> None:
        """Clear in `inside` all rows of a person but the first max_rows inside the domain.

        Which rows stay depends on that person's rows only. A row without an id is cleared.
        """
        people = (person for distinct, index in texts for person in _decode(distinct, index))
        limit = self.spec.privacy.max_rows
        for row, person in enumerate(people):
            if inside[row]:
                earlier = self._rows_of.get(person, 0)
                inside[row] = keep = bool(person) and earlier < limit
                if keep:
                    self._rows_of[person] = earlier + 1


def _homes(subsets: Sequence[Subset], shape: Sequence[int]) -> dict[Subset, Subset]:
    """Return, for every subset, the superset whose tensor it is summed from.

    Counting rows costs most, so subsets are merged while their tensor fits a cache; not,
    though, where the merged tensors would be too large in all.
    """
    homes = _merged(subsets, shape, _SMALL) or _merged(subsets, shape, 0)
    if homes is None:
        total = sum(_cells(subset, shape) for subset in set(subsets))
        raise UnsupportedWorkloadError(
            f"the strategy measures tables of {total:,} cells in all, and the limit is "
            f"{MAX_COUNTED_CELLS:,}; ask for marginals over fewer attributes or declare wider bins"
        )
    return homes


def _merged(
    subsets: Sequence[Subset], shape: Sequence[int], small: int
) -> dict[Subset, Subset] | None:
    """Return the same with tensors of up to `small` cells merged; None where all are too large."""
    groups: list[set[int]] = []
    place = dict.fromkeys(subsets, -1)
    total = 0
    for subset in sorted(place, key=lambda subset: (-_cells(subset, shape), subset)):
        if place[subset] >= 0:
            continue
        for k in range(max(0, len(groups) - _RECENT), len(groups)):
            union = groups[k].union(subset)
            if len(union) == len(groups[k]) or _cells(union, shape) <= small:
                total += _cells(union, shape) - _cells(groups[k], shape)
                groups[k], place[subset] = union, k
                break
        else:
            if len(subset) <= _LISTED:
                smaller = (u for size in range(len(subset)) for u in combinations(subset, size))
                place.update((u, len(groups)) for u in smaller if place.get(u) == -1)
            place[subset] = len(groups)
            groups.append(set(subset))
            total += _cells(subset, shape)
        if total > MAX_COUNTED_CELLS:
            return None
    tensors = [tuple(sorted(group)) for group in groups]
    return {subset: tensors[k] for subset, k in place.items()}


def _cells(attributes: Iterable[int], shape: Sequence[int]) -> int:
    return math.prod(shape[i] for i in attributes)


def _count(counts: NDArray[np.int64], cells: NDArray[np.int64]) -> None:
    """Add one to the count of each cell index; O(rows) where the table is far larger."""
    if counts.size > 4 * cells.size:
        np.add.at(counts, cells, 1)
    else:
        counts += np.bincount(cells, minlength=counts.size)


def _decode(distinct: list[bytes], index: NDArray[np.int32]) -> list[bytes]:
    """Return the text of every record, stripped."""
    stripped = [text.strip() for text in distinct]
    return [stripped[i] for i in index.tolist()]


def _domain_columns(spec: Spec) -> list[Column]:
    return [column for attribute in spec.domain.attributes for column in attribute.columns]


def _open(path: Path) -> BinaryIO:
    """Return a regular file, open; anything else could not be read twice."""
    if path.is_file():
        try:
            return path.open("rb")
        except OSError:
            pass
    raise DataError(f"{path} is not a file that can be read; give the path of a CSV file")


def _locate(file: BinaryIO, path: Path, spec: Spec) -> tuple[int, dict[str, int]]:
    """Return the header's number of fields and the place of each declared column."""
    names = _header(file, path)
    declared = [column.name for column in _domain_columns(spec)]
    if spec.privacy.person is not None:
        declared.append(spec.privacy.person)
    wrong = [name for name in declared if names.count(name) != 1]
    if wrong:
        raise DataError(
            f"{path}: the header does not have each of these declared columns exactly once: "
            f"{', '.join(wrong)}; rename them in the file, or set `column:` in the spec"
        )
    return len(names), {name: names.index(name) for name in declared}


def _header(file: BinaryIO, path: Path) -> list[str]:
    """Return the column names of the first line."""
    try:
        line = file.readline(MAX_LINE + 1)
        if len(line) <= MAX_LINE:
            text = line.decode("utf-8-sig").rstrip("\r\n")
            rows = list(csv.reader([text], strict=True))
            if text and len(rows) == 1:
                return [name.strip() for name in rows[0]]
    except (OSError, UnicodeDecodeError, csv.Error):
        pass
    raise DataError(
        f"{path}: the first line is not a header of comma-separated column names in UTF-8; "
        "write one there, or name another file"
    )
