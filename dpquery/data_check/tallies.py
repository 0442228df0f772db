"""Counts over the records of a file, chunk by chunk, in bounded memory; all of them are private."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np

from dpquery.arrays import Bools
from dpquery.data_check.alike_ids import alike_ids
from dpquery.data_check.findings import RowsPerPerson, UndeclaredValues
from dpquery.measurement.counting.column_codes import ColumnCodes
from dpquery.measurement.counting.person_keys import person_names
from dpquery.measurement.counting.sources import StoredValues
from dpquery.spec.domain import Attribute, Categorical, Column

MAX_TEXTS = 10_000
"""Undeclared texts of a column that are counted at once."""
MAX_PERSONS = 2**21
"""Persons that are counted at once; of more, a random half, a quarter and so on is followed."""
_LONGEST = 64  # bytes of a text or an id that are kept
_EXACT_FLOAT = 2**53  # up to which every whole number is a float


class TextCounts:
    """Records of each text; where there are too many texts the rarer half is forgotten.

    A text that is common anywhere in the file, at its end too, is found all the same.
    """

    def __init__(self, most: int = MAX_TEXTS) -> None:
        self._most = most
        self._counts: Counter[bytes] = Counter()
        self.complete = True

    def add(self, text: bytes, records: int) -> None:
        """Count a text in some more records."""
        self._counts[text[:_LONGEST]] += records
        if len(self._counts) > self._most:
            commonest = heapq.nlargest(
                self._most // 2, self._counts.items(), key=lambda item: item[1]
            )
            self._counts = Counter(dict(commonest))
            self.complete = False

    def commonest(self) -> tuple[tuple[str, int], ...]:
        """Return all texts that are known, commonest first."""
        return tuple((readable(text), records) for text, records in self._counts.most_common())


class ColumnTally:
    """Undeclared values of one column."""

    def __init__(self, attribute: Attribute, column: Column, decimal: str = ".") -> None:
        self.column = column
        self._attribute = attribute
        self._codes = ColumnCodes(column, decimal)
        self._texts = TextCounts()
        self._seen = np.zeros(column.length, np.bool_)
        self._records = self._declared = self._alone = 0

    def add(self, texts: StoredValues) -> Bools:
        """Count one chunk; return for every record whether its value is undeclared."""
        parts = [np.zeros(0, np.bool_)]
        for distinct, index in texts:
            codes = self._codes.of(distinct)
            undeclared = (codes < 0) | (codes >= self.column.length)
            records = np.bincount(index, minlength=len(distinct))
            self._seen[codes[~undeclared & (records > 0)]] = True
            for place in np.flatnonzero(undeclared & (records > 0)).tolist():
                self._texts.add(distinct[place].as_py().strip(), int(records[place]))
            parts.append(undeclared[index])
        undeclared = np.concatenate(parts)
        self._records += int(undeclared.sum())
        self._declared += int((~undeclared).sum())
        return undeclared

    def add_alone(self, records: int) -> None:
        """Count records that are left out for this column alone."""
        self._alone += records

    def result(self) -> UndeclaredValues:
        """Return what was found."""
        absent: tuple[str, ...] = ()
        if isinstance(self.column.kind, Categorical):
            absent = tuple(self.column.label(int(code)) for code in np.flatnonzero(~self._seen))
        return UndeclaredValues(
            self._attribute.name,
            self.column,
            self._records,
            self._declared,
            self._alone,
            self._texts.commonest(),
            self._texts.complete,
            absent,
        )


class PersonTally:
    """Rows of each person, of those rows that nothing else leaves out.

    Beyond so many persons a random part of them is followed, chosen by a hash that differs from
    run to run, with all rows of each: memory stays bounded and the picture true.
    """

    def __init__(self, decimal: str = ".", most: int = MAX_PERSONS) -> None:
        self._decimal, self._most = decimal, most
        self._rows: dict[bytes, int] = {}
        self._spelled: dict[bytes, tuple[bytes, int]] = {}  # other than by the name, in how many
        self._respelled: set[bytes] = set()
        self._mask = 0
        self.blank = self._blank_alone = 0

    def blanks(self, texts: StoredValues) -> Bools:
        """Return for every record of a chunk whether it has no id."""
        parts = [np.zeros(0, np.bool_)]
        for distinct, index in texts:
            names = person_names(distinct, self._decimal).to_pylist()
            parts.append(np.array([not name for name in names], np.bool_)[index])
        blank = np.concatenate(parts)
        self.blank += int(blank.sum())
        return blank

    def add(self, texts: StoredValues, inside: Bools) -> None:
        """Count the rows of one chunk that are inside."""
        start = 0
        for distinct, index in texts:
            kept = index[inside[start : start + index.size]]
            start += index.size
            rows = np.bincount(kept, minlength=len(distinct))
            names = person_names(distinct, self._decimal).to_pylist()
            for text, name, count in zip(distinct.to_pylist(), names, rows.tolist(), strict=True):
                if count:
                    self._add(_identity(name), text.strip(), count)

    def add_alone(self, records: int) -> None:
        """Count records that are left out for want of an id alone."""
        self._blank_alone += records

    def _add(self, person: bytes, text: bytes, rows: int) -> None:
        if hash(person) & self._mask:
            return
        self._rows[person] = self._rows.get(person, 0) + rows
        if text != person and len(text) <= _LONGEST:
            first, before = self._spelled.get(person, (text, 0))
            self._spelled[person] = first, before + rows
            if text != first:
                self._respelled.add(person)
        if len(self._rows) > self._most:
            self._mask = 2 * self._mask + 1
            gone = {person for person in self._rows if hash(person) & self._mask}
            for person in gone:
                del self._rows[person]
                self._spelled.pop(person, None)
            self._respelled -= gone

    def result(self, sorted_by: tuple[str, ...] = ()) -> RowsPerPerson:
        """Return what was found, here and of the order of rows."""
        scale = self._mask + 1
        numbers = sorted(Counter(self._rows.values()).items())
        busiest = heapq.nlargest(3, self._rows.items(), key=lambda item: item[1])
        # One who has rows by the name itself too.
        self._respelled.update(p for p, (_, n) in self._spelled.items() if n < self._rows[p])
        return RowsPerPerson(
            tuple((rows, scale * number) for rows, number in numbers),
            1 / scale,
            self.blank,
            self._blank_alone,
            tuple((readable(person), rows) for person, rows in busiest),
            sorted_by,
            len(self._respelled),
            sum(_is_rounded(person, text) for person, (text, _) in self._spelled.items()),
            alike_ids(self._rows, self._decimal),
        )


def _identity(person: bytes) -> bytes:
    """Return what a person is counted by: the name, cut where it is long."""
    if len(person) <= _LONGEST:
        return person
    return b"%b %d" % (person[:_LONGEST], hash(person))


def _is_rounded(name: bytes, text: bytes) -> bool:
    """Return whether an id is a whole number that a float may have rounded."""
    return name.isdigit() and int(name) > _EXACT_FLOAT and not text.isdigit()


def readable(text: bytes) -> str:
    """Return the text of a field; bytes that are no UTF-8 stand as half characters."""
    return text.decode("utf-8", "surrogateescape")


def columns_of(
    attributes: Iterable[Attribute], present: Collection[str], decimal: str
) -> list[ColumnTally]:
    """Return a tally for each declared column that can be read."""
    return [
        ColumnTally(attribute, column, decimal)
        for attribute in attributes
        for column in attribute.columns
        if column.name in present
    ]
