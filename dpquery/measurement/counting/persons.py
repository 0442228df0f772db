"""Which rows of a person are counted: at most max_rows, each of the person's rows as likely.

Every row inside the domain draws a priority, 64 bits from the operating system. Of each person the
max_rows rows of the lowest priorities stay; of equal ones the first in the file.

**One person more moves nothing of the others.** A row's priority is drawn from nothing but chance,
and which rows of a person stay depends on their priorities alone: on no other person's rows, on no
place in the file. So let a file with one person more give each row of the others the priority that
it has without that person, which changes the law of neither. Then the same rows of the others
stay, and the tables differ by the cells of the rows that stay of that person: at most max_rows of
them, one in each table. A mechanism that hides so many rows, whichever they are, hides the person:
the output's law is the mean, over the priorities, of laws that the neighbours' guarantee bounds
one by one. Two files that differ in all rows of one person differ by twice that.

**Equal chance.** Priorities are independent and uniform, so each set of max_rows of a person's
rows is as likely as any other, but for equal ones, of a chance of 2^-64 a pair. A person with no
more rows than max_rows is counted whole.

**Memory is bounded.** Rows are held in buckets by the first bits of the person's key. A bucket
whose new rows outnumber those that it kept is sorted by person and priority and cut down to
max_rows a person: n rows cost n log n. Where all buckets together pass the limit, those persons
are left out whose key is in the upper half of the pass's range. They are counted in another pass
over the same data, so nothing is written anywhere. A person has one key, so all of a person's rows
are treated in one pass, with priorities of their own; ranges part persons by keys and by how many
rows stay of whom, never by a priority. So what stays of each person has the law of a single pass,
independent of all others. One person alone is never parted: the limit is the one that is set, or
what max_rows rows take where that is more.

With `keep: first` the priority of a row is its number in the data: the same proof, without chance.

**How many rows a person has** is counted on request. The row of the lowest priority of each person
comes with the number of that person's rows, of those cut off too, and the others come with 0: like
their priorities, a function of that person's rows alone. So one person more brings at most max_rows
rows all the same, each with one number, and changes no number of the others.
"""

import os
from collections.abc import Iterator

import numpy as np

from dpquery.arrays import Bits
from dpquery.limits import MAX_STATE_BYTES
from dpquery.measurement.counting.person_keys import RandomBytes
from dpquery.spec.model import Keep

_BUCKETS = 256  # their numbers are bytes, which sort in one step; each is sorted in the cache
_LEAST = 2**11  # new rows of a bucket that are worth sorting
_HIGH, _LOW, _PRIORITY, _CONTENT = 0, 1, 2, 3  # rows of a bucket's array; the content is the rest
_TAIL = np.uint64(24)  # bits of a sorting word that are the priority's; the others are the key's


class KeptRows:
    """The rows that stay of each person, pass by pass; confidential.

    A pass is `add` for all rows of the data, then `kept`. While `begin_pass` says that one is due,
    there are persons who have not been counted.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        words: int,
        keep: Keep = "random",
        numbered: bool = False,
        limit: int = MAX_STATE_BYTES,
        entropy: RandomBytes = os.urandom,
    ) -> None:
        """Begin the first pass.

        Args:
            max_rows: the most rows of a person that stay.
            words: 64-bit words of content that come with each row.
            keep: which rows stay: any, each as likely, or the first of the data.
            numbered: whether how many rows each person has is counted.
            limit: bytes of rows that may be held at a time.
            entropy: the source of random bytes; another one is for tests.
        """
        self._max_rows, self._keep, self._entropy = max_rows, keep, entropy
        self._words, self._numbered = words, numbered
        self._height = _CONTENT + words + numbered  # the number is the last
        self._most = limit // (8 * self._height)
        self._low, self._width = 0, 1 << 64  # of the pass's range of first words of keys
        self._begin()

    def _begin(self) -> None:
        """Empty the buckets, which part the range of this pass evenly."""
        empty = np.empty((self._height, 0), np.uint64)
        self._kept = [empty] * _BUCKETS
        self._new: list[list[Bits]] = [[] for _ in range(_BUCKETS)]
        self._waiting = np.zeros(_BUCKETS, np.int64)  # new rows of each bucket
        self._shift = np.uint64(max(0, self._width.bit_length() - 1 - 8))
        self._seen = 0

    def begin_pass(self) -> bool:
        """Begin the pass over the next persons; False where all have been counted."""
        self._low += self._width
        if self._low >> 64:
            return False
        # Wider again, so that one narrow range does not make all that follow as narrow.
        self._width = min(2 * self._width, self._low & -self._low)
        self._begin()
        return True

    @property
    def share(self) -> tuple[float, float]:
        """The share of all persons, about, counted in passes before this one, and in this one."""
        return self._low / 2.0**64, self._width / 2.0**64

    def add(self, keys: Bits, content: Bits) -> None:
        """Take rows in the order of the data: keys (2, n) of their persons, content (words, n)."""
        seen, self._seen = self._seen, self._seen + keys.shape[1]
        numbers = np.arange(seen, self._seen, dtype=np.uint64)
        if self._width < 1 << 64:
            ours = keys[_HIGH] - np.uint64(self._low) < np.uint64(self._width)
            keys, content, numbers = keys[:, ours], content[:, ours], numbers[ours]
        if self._keep == "first":
            priorities = numbers << np.uint64(28)  # of at most 2^36 rows
        else:
            priorities = np.frombuffer(self._entropy(8 * numbers.size), np.uint64)
        bucket = ((keys[_HIGH] - np.uint64(self._low)) >> self._shift).astype(np.uint8)
        order = np.argsort(bucket, kind="stable")
        sizes = np.bincount(bucket, minlength=_BUCKETS)
        rows = np.empty((self._height, order.size), np.uint64)
        columns = (*keys, priorities, *content)
        for row, column in zip(rows[: _CONTENT + self._words], columns, strict=True):
            np.take(column, order, out=row)
        rows[_CONTENT + self._words :] = 1  # as yet, each row is the only one of its person
        ends = np.cumsum(sizes)
        for i in np.flatnonzero(sizes).tolist():
            self._new[i].append(rows[:, ends[i] - sizes[i] : ends[i]].copy())
        self._waiting += sizes
        for i in np.flatnonzero(self._waiting >= _LEAST).tolist():
            if self._waiting[i] >= self._kept[i].shape[1]:
                self._cut_down(i)
        if self._rows() > self._most:
            self._make_room()

    def kept(self) -> Iterator[Bits]:
        """Yield the content of all rows that stay, (words, n) at a time, freeing their memory.

        Where rows are numbered there is one word more: for one row of each person the number of
        that person's rows, and 0 for the others.
        """
        for i in range(_BUCKETS):
            self._cut_down(i)
            content, self._kept[i] = self._kept[i][_CONTENT:], self._kept[i][:, :0].copy()
            if content.size:
                yield content

    def _rows(self) -> int:
        return int(self._waiting.sum()) + sum(kept.shape[1] for kept in self._kept)

    def _make_room(self) -> None:
        """Cut all buckets down; leave out the upper half of the range while that is too little."""
        for i in range(_BUCKETS):
            self._cut_down(i)
        # New rows take as much again.
        while self._rows() > self._most // 2 and self._width > 1:
            self._width //= 2
            for i, kept in enumerate(self._kept):
                ours = kept[_HIGH] - np.uint64(self._low) < np.uint64(self._width)
                if not ours.all():
                    self._kept[i] = kept[:, ours]

    def _cut_down(self, i: int) -> None:
        """Sort the rows of a bucket by person and priority, and keep max_rows of each person."""
        if not self._new[i]:
            return
        rows = _sorted(np.concatenate([self._kept[i], *self._new[i]], axis=1))
        first = np.flatnonzero(_begins(rows[_HIGH]) | _begins(rows[_LOW]))
        sizes = np.diff(first, append=rows.shape[1])
        if self._numbered:
            numbers, rows[-1] = np.add.reduceat(rows[-1], first), 0
            rows[-1, first] = numbers
        rank = np.arange(rows.shape[1]) - np.repeat(first, sizes)
        self._kept[i] = rows[:, rank < self._max_rows]
        self._new[i], self._waiting[i] = [], 0


def _begins(words: Bits) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return where a word is another than the one before it; the first is."""
    differs = np.ones(words.size, np.bool_)
    np.not_equal(words[1:], words[:-1], out=differs[1:])
    return differs


def _sorted(rows: Bits) -> Bits:
    """Return rows sorted by key, then priority, then place.

    They are sorted by one word, most of it the key's first bits and the rest the priority's, which
    takes a third of the time of sorting by all. Where those bits of the keys are equal, and either
    the keys differ or those bits of the priorities are equal too, that word does not decide: such
    runs, a handful of rows, are sorted again by all.
    """
    tail = (np.uint64(1) << _TAIL) - np.uint64(1)
    words = (rows[_HIGH] & ~tail) | (rows[_PRIORITY] >> np.uint64(64) - _TAIL)
    order = np.argsort(words)
    words, rows = words[order], rows[:, order]
    another = _begins(words & ~tail)
    undecided = ~another & (_begins(rows[_HIGH]) | _begins(rows[_LOW]) | ~_begins(words))
    if undecided.any():
        run = np.cumsum(another) - 1
        again = np.flatnonzero(np.bincount(run, undecided)[run])
        part = rows[:, again]
        by_all = np.lexsort((order[again], part[_PRIORITY], part[_LOW], part[_HIGH]))
        rows[:, again] = part[:, by_all]
    return rows
