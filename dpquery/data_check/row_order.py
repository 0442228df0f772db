"""Whether the rows of persons come in the order of a column, as in a file sorted by year."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from dpquery.arrays import Ints
from dpquery.data_check.tallies import MAX_PERSONS
from dpquery.measurement.counting.column_codes import ColumnCodes
from dpquery.measurement.counting.person_keys import person_names
from dpquery.measurement.counting.sources import StoredValues
from dpquery.spec.domain import Column

_STEPS = 8  # in one direction and none in the other: 1 chance in 128 where order means nothing


class RowOrder:
    """Steps up and down, from each row of a person to the next, in each column's own order.

    The first so many persons are followed, which says as much as all of them would.
    """

    def __init__(
        self, person: str, columns: Sequence[Column], decimal: str, most: int = MAX_PERSONS
    ) -> None:
        """Begin before the first row."""
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
