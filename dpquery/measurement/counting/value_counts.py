"""How many persons have each value of a column that nobody has listed; confidential.

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

All distinct values and the pairs that stay are held in memory.
"""

import os
from functools import lru_cache, partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from dpquery.arrays import Bits, Ints
from dpquery.measurement.counting.column_codes import texts_of
from dpquery.measurement.counting.persons import PersonKeys, name_of
from dpquery.measurement.counting.sources import Piece, StoredValues
from dpquery.measurement.counting.tally import Counts
from dpquery.spec.numbers import decimal_text, number
from dpquery.spec.spec import Spec

MAX_VALUE_BYTES = 200
_REMEMBERED = 2**16
_LEAST = 2**16  # pairs that are worth sorting
_HIGH, _LOW, _PRIORITY, _VALUE = range(4)  # rows of the array of pairs
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class ValueCounts(NamedTuple):
    """Values, and how many persons have each (or rows, where the unit is a row)."""

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


class ValueTally:
    """Running numbers of persons by value, chunk by chunk; confidential."""

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
            named = (value_of(text, decimal) for text in texts_of(texts, decimal).to_pylist())
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
