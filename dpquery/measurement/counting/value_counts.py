"""How many persons have each value of a column that nobody has listed, or so many rows.

All of it is confidential.

A value is the text of a field without the white space around it, and a number is one value however
it is written: `1`, `1.0` and `01` are, as they are where a spec lists values. No value are blanks,
texts of more than MAX_VALUE_BYTES, bytes that are no UTF-8, and texts with characters that cannot
be printed: a list of values could not hold them.

Where the unit is a person, at most so many values of each person count, whichever rows they are in,
and each once. Every pair of a person and a value has a priority, a function of the two and of bits
that the operating system gives each count; of each person the values of the lowest priorities stay.

**One person more moves nothing of the others.** Whatever the bits, which values of a person count
depends on the person's own values alone. So the numbers of persons of two files that differ by one
person differ by 1 at most, and for `max_values` values at most. Two persons are taken for one, and
two values of a person for equally prior, with the chance that `persons` has for two ids.

**Numbers** count by public classes: of a person at most `max_values` classes by three leading
digits, and once each class by fewer digits that these lie in. So one person more moves, by any
number of digits, at most `max_values` numbers of persons, each by 1. **Rows of a person** put the
person into one class, that of their number by one digit: one person more moves one number by 1.

All distinct values and the pairs that stay are held in memory.
"""

import os
from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Literal, NamedTuple

import numpy as np

from dpquery.arrays import Bits, Ints
from dpquery.measurement.counting.column_codes import texts_of
from dpquery.measurement.counting.persons import PersonKeys, name_of
from dpquery.measurement.counting.sources import Piece, StoredValues
from dpquery.measurement.counting.tally import Counts
from dpquery.spec.numbers import (
    CLASS_DIGITS,
    ROW_DIGITS,
    class_of,
    classes_by,
    decimal_text,
    number,
    of_float,
)
from dpquery.spec.spec import Spec

MAX_VALUE_BYTES = 200
_REMEMBERED = 2**16
_LEAST = 2**16  # pairs that are worth sorting
_HIGH, _LOW, _PRIORITY, _VALUE = range(4)  # rows of the array of pairs
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


Sought = Literal["values", "numbers", "rows"]
"""Values of a column, its numbers by public classes, or persons by how many rows they have."""


class ValueCounts(NamedTuple):
    """Values, and how many persons have each (or rows, where the unit is a row).

    Of public classes the values are not named: there is a number for each, 0 too, in their order.
    """

    values: list[str]
    counts: Ints


@lru_cache(_REMEMBERED)
def value_of(field: bytes, decimal: str) -> str | None:
    r"""Return the value that a field holds, in one spelling; None where it holds none.

    >>> [value_of(field, ".") for field in (b" baker ", b"01.0", b" ", b"a\tb")]
    ['baker', '1', None, None]
    """
    try:
        text = field.decode().strip()
    except UnicodeDecodeError:
        return None
    if not text or len(field) > MAX_VALUE_BYTES or not text.replace("\u00a0", "").isprintable():
        return None
    exact = number(text, decimal) or number(text)
    return text if exact is None else name_of(decimal_text(exact).encode(), ".").decode()


def number_class(field: bytes, decimal: str) -> str | None:
    """Return the class of the number that a field holds; None where it holds none."""
    text = value_of(field, decimal)
    exact = None if text is None else number(text)
    return None if exact is None else str(class_of(exact))


class ValueTally:
    """Running numbers of persons by value, chunk by chunk; confidential."""

    _name: Callable[[bytes, str], str | None] = staticmethod(value_of)

    def __init__(self, spec: Spec, max_values: int) -> None:
        """Begin with none; the spec's only column is looked at."""
        self.spec, self._most = spec, max_values
        person = [] if spec.privacy.person is None else [spec.privacy.person]
        self.names = [spec.domain.columns[0].name, *person]
        self._keys, self._secret = PersonKeys(), os.urandom(32)
        self._numbers: dict[str, int] = {}  # of the values, in the order in which they came
        self._hashes = np.zeros((2, 1024), np.uint64)  # of each of them
        self._counts = np.zeros(1024, np.int64)  # rows of each, where the unit is a row
        self._pairs: list[Bits] = [np.empty((4, 0), np.uint64)]  # those cut down, then new ones

    def coded(self, piece: Piece) -> Counts:
        """Parse a piece, in any thread; return what counts it, in one. A malformed line is none."""
        columns, _ = piece.parse()
        values, places = self._values(columns[0])
        if self.spec.privacy.person is None:
            return partial(self._add_rows, values, places[places >= 0])
        keys, named = self._keys.of_records(columns[1], self.spec.file.decimal)
        named &= places >= 0
        return partial(self._add_persons, values, places[named], keys[:, named])

    def share(self, of_pass: float) -> float:
        """Return the share of all reading that is done: there is one pass."""
        return of_pass

    def end_pass(self) -> bool:
        """Return that no other pass is needed."""
        return False

    def result(self) -> ValueCounts:
        """Return the values that somebody has, and how many persons have each."""
        size = len(self._numbers)
        if self.spec.privacy.person is None:
            return ValueCounts([*self._numbers], self._counts[:size].copy())
        self._cut_down()
        counts = np.bincount(self._pairs[0][_VALUE].astype(np.int64), minlength=size)
        some = np.flatnonzero(counts)
        names = [*self._numbers]
        return ValueCounts([names[i] for i in some], counts[some].astype(np.int64))

    def _values(self, stored: StoredValues) -> tuple[list[str], Ints]:
        """Return the distinct values of a chunk, and for each record which is its; -1 for none."""
        local: dict[str, int] = {}
        parts = [np.zeros(0, np.int64)]
        decimal = self.spec.file.decimal
        for texts, places in stored:
            named = (self._name(text, decimal) for text in texts_of(texts, decimal).to_pylist())
            codes = [-1 if name is None else local.setdefault(name, len(local)) for name in named]
            parts.append(np.array([*codes, -1], np.int64)[places])
        return [*local], np.concatenate(parts)

    def _numbered(self, values: list[str]) -> Ints:
        """Return the number of each value; new ones get the next."""
        for value in values:
            place = self._numbers.setdefault(value, len(self._numbers))
            if place == self._counts.size:
                self._counts = np.append(self._counts, np.zeros_like(self._counts))
                self._hashes = np.append(self._hashes, np.zeros_like(self._hashes), axis=1)
            if not self._hashes[0, place]:
                digest = blake2b(value.encode(), key=self._secret, digest_size=16).digest()
                self._hashes[:, place] = np.frombuffer(digest, np.uint64)
        return np.array([self._numbers[value] for value in values], np.int64)

    def _add_rows(self, values: list[str], places: Ints) -> None:
        numbers = self._numbered(values)
        self._counts[numbers] += np.bincount(places, minlength=len(values))

    def _add_persons(self, values: list[str], places: Ints, keys: Bits) -> None:
        pairs = np.empty((4, places.size), np.uint64)
        pairs[:_PRIORITY] = keys
        pairs[_VALUE] = self._numbered(values)[places]
        # One to one in the value's hash for each person: other values have other priorities.
        mixed = (self._hashes[0, pairs[_VALUE]] ^ keys[_LOW]) * _SPREAD
        pairs[_PRIORITY] = (mixed ^ mixed >> np.uint64(32)) * _SPREAD
        self._add_pairs(pairs)

    def _add_pairs(self, pairs: Bits) -> None:
        self._pairs.append(pairs)
        if sum(part.shape[1] for part in self._pairs[1:]) > max(_LEAST, self._pairs[0].shape[1]):
            self._cut_down()

    def _cut_down(self) -> None:
        """Keep each pair once, and of each person the most values that count."""
        pairs = np.concatenate(self._pairs, axis=1)
        tied = self._hashes[1, pairs[_VALUE]]
        order = np.lexsort((tied, pairs[_PRIORITY], pairs[_LOW], pairs[_HIGH]))
        pairs = pairs[:, order]
        differs = np.ones(pairs.shape, np.bool_)
        np.not_equal(pairs[:, 1:], pairs[:, :-1], out=differs[:, 1:])
        another = differs[_HIGH] | differs[_LOW]
        once = another | differs[_VALUE]
        pairs, first = pairs[:, once], np.flatnonzero(another[once])
        rank = np.arange(pairs.shape[1]) - np.repeat(first, np.diff(first, append=pairs.shape[1]))
        self._pairs = [pairs[:, rank < self._most]]


def _by(digits: int, classes: Ints) -> Ints:
    """Return the classes by fewer digits that classes by three lie in."""
    places: Ints = (abs(classes) - 1) // 10 ** (CLASS_DIGITS[-1] - digits) + 1
    return np.sign(classes) * places


def _in_classes(digits: int, classes: Ints, persons: Ints) -> Ints:
    """Return how many persons are in each class by so many digits, given those in some of them."""
    counts = np.zeros(2 * classes_by(digits) + 1, np.int64)
    np.add.at(counts, classes + classes_by(digits), persons)
    return counts


class NumberTally(ValueTally):
    """Running numbers of persons by class of their numbers; confidential."""

    _name = staticmethod(number_class)

    def result(self) -> ValueCounts:
        """Return how many persons have a number in each class, by one digit, two and three."""
        classes = np.array([*self._numbers], np.int64)
        if self.spec.privacy.person is not None:
            self._cut_down()
            classes = classes[self._pairs[0][_VALUE].astype(np.int64)]
        parts = []
        for digits in CLASS_DIGITS:
            coarse, persons = _by(digits, classes), self._counts[: classes.size]
            if self.spec.privacy.person is not None:
                keys = self._pairs[0][:_PRIORITY]
                once = np.unique([*keys, coarse.astype(np.uint64)], axis=1)
                coarse = once[-1].astype(np.int64)
                persons = np.ones_like(coarse)
            parts.append(_in_classes(digits, coarse, persons))
        return ValueCounts([], np.concatenate(parts))


class RowTally(ValueTally):
    """Running numbers of rows of each person; confidential."""

    def coded(self, piece: Piece) -> Counts:
        """Parse a piece, in any thread; return what counts it, in one. Every row has its person."""
        columns, _ = piece.parse()
        keys, named = self._keys.of_records(columns[-1], self.spec.file.decimal)
        pairs = np.ones((4, np.count_nonzero(named)), np.uint64)
        pairs[:_PRIORITY] = keys[:, named]
        return partial(self._add_pairs, pairs)

    def result(self) -> ValueCounts:
        """Return how many persons have a number of rows in each class, by one digit and two."""
        self._cut_down()
        rows, persons = np.unique(self._pairs[0][_VALUE], return_counts=True)
        classes = np.array([class_of(of_float(float(n))) for n in rows], np.int64)
        parts = [_in_classes(digits, _by(digits, classes), persons) for digits in ROW_DIGITS]
        return ValueCounts([], np.concatenate(parts))

    def _cut_down(self) -> None:
        """Add up the rows of each person."""
        pairs = np.concatenate(self._pairs, axis=1)
        pairs = pairs[:, np.lexsort(pairs[[_LOW, _HIGH]])]
        another = np.ones(pairs.shape[1], np.bool_)
        another[1:] = (pairs[:_PRIORITY, 1:] != pairs[:_PRIORITY, :-1]).any(axis=0)
        first = np.flatnonzero(another)
        rows = np.add.reduceat(pairs[_VALUE], first) if first.size else pairs[_VALUE]
        self._pairs = [pairs[:, first]]
        self._pairs[0][_VALUE] = rows


TALLIES: dict[Sought, type[ValueTally]] = {
    "values": ValueTally,
    "numbers": NumberTally,
    "rows": RowTally,
}
