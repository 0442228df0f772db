"""The running counts of records of a spec: from the texts of a batch to cells of its tables.

Confidential, as the records are. One tally counts what is read on one machine; on Spark each task
has one, and what they counted is added up.
"""

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial

import numpy as np

from dpquery.arrays import Bits, Bools, Floats, Ints
from dpquery.limits import MAX_STATE_BYTES
from dpquery.measurement.counting.column_codes import ColumnCodes, numbers_in
from dpquery.measurement.counting.persons import ExpandedSecret, KeptRows, PersonKeys
from dpquery.measurement.counting.sources import Piece, StoredValues
from dpquery.measurement.counting.tables import PackedCodes, TableCounts
from dpquery.spec.columns import Attribute, Column
from dpquery.spec.spec import RecordWeight, Spec
from dpquery.strategy.algebra.subsets import Subset

Counts = Callable[[], None]
"""Counts the records of a batch that was coded."""


class RecordTally:
    """Running counts of the marginals over all subsets, chunk by chunk; confidential."""

    def __init__(
        self,
        spec: Spec,
        subsets: Sequence[Subset],
        classes: Sequence[Ints],
        *,
        memory: int = MAX_STATE_BYTES,
        secret: bytes | None = None,
        part: bytes = b"",
    ) -> None:
        """Choose the tensors to count and the columns that they need, from the spec alone.

        Tallies of one secret, which the operating system gave, have the same key for a person;
        those of one part draw the same priorities (see `persons`).
        """
        self.spec = spec
        self._shape = tuple(int(class_of.max()) + 1 for class_of in classes)
        self._classes, self._attributes = tuple(classes), spec.domain.attributes
        self._weight = None if spec.privacy.weight is None else len(self._shape)
        self._differences = range(0)
        for subset in subsets:
            if list(subset) != sorted(set(subset)) or not set(subset) <= set(
                range(len(self._shape))
            ):
                raise ValueError(f"{subset} is not an increasing tuple of attribute indices")
        used = {i for subset in subsets for i in subset}
        if spec.privacy.weight is not None:
            used |= self._add_weight(spec.privacy.weight)
        self._counts = TableCounts(
            subsets,
            self._shape,
            weight=self._weight,
            squares=spec.privacy.measures_squares,
            differences=self._differences,
        )
        self._needed = [
            i
            for i, attribute in enumerate(self._attributes)
            if i not in self._differences
            if attribute.in_data
            and (i in used or any(column.drops for column in attribute.columns))
        ]
        declared = [c for i in self._needed for c in self._attributes[i].columns]
        self._codes_of = {c.name: ColumnCodes(c, spec.file.decimal) for c in declared}
        self._numbered = [i for i in used if not self._attributes[i].in_data]
        declared += [self._attributes[i].columns[0] for i in self._differences]
        # Where no column decides anything, one is read all the same: its records are counted.
        self.names = [c.name for c in declared] or [spec.domain.attributes[0].columns[0].name]
        if spec.privacy.person is not None:
            self.names.append(spec.privacy.person)
            self._packed = PackedCodes(sorted(used.difference(self._numbered)), self._shape)
            of_keys = of_rows = os.urandom
            if secret is not None:
                of_keys = ExpandedSecret(secret, b"keys")
                of_rows = ExpandedSecret(secret, b"rows" + part)
            self._keys = PersonKeys(random_bytes=of_keys)
            self._kept = KeptRows(
                max_rows=spec.privacy.max_rows,
                words=self._packed.words,
                keep=spec.privacy.keep,
                numbered=bool(self._numbered),
                limit=memory,
                random_bytes=of_rows,
            )
        self._closed = any(column.drops for column in spec.domain.columns)

    def _add_weight(self, weight: RecordWeight) -> set[int]:
        """Take a weight for one attribute more, and differences of replicates for others; which.

        They are read, held and left out alike. What a record adds is the class of its code; of
        differences less the middle one, which a malformed line has: that is the last of `_classes`.
        """
        steps = weight.steps
        self._attributes += (Attribute(weight.name, (weight.column,)),)
        self._classes += (np.append(np.arange(1, steps + 1), 0),)
        self._shape += (steps + 1,)
        columns = () if weight.replicates is None else weight.replicates.columns
        middle, first = weight.difference_steps, len(self._shape)
        self._differences = range(first, first + len(columns))
        self._attributes += tuple(Attribute(column.name, (column,)) for column in columns)
        self._classes += (np.array([middle]),) * len(columns)
        self._shape += (2 * middle + 1,) * len(columns)
        return {first - 1, *self._differences}

    def add(self, texts: Sequence[StoredValues], malformed: int) -> None:
        """Count the records of one chunk; `texts` in the order of `names`."""
        self._coded(texts, malformed)()

    def coded(self, piece: Piece) -> Counts:
        """Parse a piece and code its records, in any thread; return what counts them, in one."""
        return self._coded(*piece.parse())

    def _coded(self, texts: Sequence[StoredValues], malformed: int) -> Counts:
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
        keys, named = self._keys.of_records(texts[-1], self.spec.file.decimal)
        inside &= named
        return np.concatenate([keys[:, inside], self._packed.pack(codes, inside)])

    def add_rows_of_persons(self, rows: Bits) -> None:
        """Take rows of persons, in the order of the data."""
        self._kept.add(rows[:2], rows[2:])

    @property
    def size(self) -> int:
        """Number of cells of all tensors."""
        return self._counts.size

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
        codes = {i: self._attribute_codes(i, by_name, inside) for i in self._needed}
        if self._weight is not None and self._differences:
            codes |= self._codes_of_differences(by_name, inside & (codes[self._weight] > 0))
        return codes, inside

    def _codes_of_differences(
        self, texts: Mapping[str, StoredValues], weighed: Bools
    ) -> dict[int, Ints]:
        """Return the codes of differences of replicate weights, those of 0 where not weighed."""
        if (weight := self.spec.privacy.weight) is None:
            raise ValueError("records without weights")
        columns = [weight.name, *(self._attributes[i].name for i in self._differences)]
        decimal = self.spec.file.decimal
        numbers = np.array([numbers_in(texts[name], decimal) for name in columns])[:, weighed]
        codes = np.full((len(self._differences), len(weighed)), weight.difference_steps)
        codes[:, weighed] += difference_steps(numbers[0], numbers[1:], weight)
        return dict(zip(self._differences, codes, strict=True))

    def _attribute_codes(self, i: int, texts: Mapping[str, StoredValues], inside: Bools) -> Ints:
        """Return the classes of an attribute's codes; clear records without a code in `inside`."""
        codes = np.zeros(inside.size, np.int64)
        for column in self._attributes[i].columns:
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


_FAR = 2.0**40  # steps, beyond which a difference is not told from a larger one
_ABOVE_ONE = 1 + 1e-12  # the rounding of floats is less than what is above


def difference_steps(full: Floats, replicates: Floats, weight: RecordWeight) -> Ints:
    """Return the differences of replicate weights of records in whole steps, (k, n).

    A replicate weight that is no number is 0, as it is of records that a replicate leaves out. The
    differences of a weight that is cut off are taken of what is left of it. They are rounded to the
    nearest step. Where that makes them longer together than the cap, they are scaled down to it and
    rounded towards 0; a hair less where floats leave them too long.

    Args:
        full: weights above 0, (n,).
        replicates: the replicate weights, (k, n); nan where there is no number.
        weight: says the grid and the caps.

    Privacy: the squares of what a record adds add up to the cap's at most, whatever its numbers
    are: that is checked on whole numbers, which floats hold exactly up to there.
    """
    most, exact = weight.difference_steps, exact_differences(full, replicates, weight)
    scaled = exact * (most / np.maximum(np.sqrt((exact**2).sum(axis=0)), most))
    steps = np.zeros_like(exact)
    for tried in (np.trunc(scaled / _ABOVE_ONE), np.trunc(scaled * _ABOVE_ONE), np.rint(exact)):
        steps = np.where((tried**2).sum(axis=0) <= most**2, tried, steps)
    return steps.astype(np.int64)


def exact_differences(full: Floats, replicates: Floats, weight: RecordWeight) -> Floats:
    """Return the same before they are rounded or scaled down, (k, n)."""
    left = np.minimum(1.0, float(weight.at_most) / full) / float(weight.step)
    with np.errstate(over="ignore"):  # of numbers near the largest float
        return np.clip((np.nan_to_num(replicates) - full) * left, -_FAR, _FAR)
