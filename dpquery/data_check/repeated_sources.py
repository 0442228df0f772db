"""Sources that hold the same records under two names; made of the records, so private as well."""

import numpy as np

from dpquery.arrays import Bits
from dpquery.measurement.counting.sources import StoredValues

_FACTOR, _FOLD = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)  # odd; spreads bits as splitmix does


class RepeatedSources:
    """A number for each source: the same for the same declared texts in the same order.

    It is the sum over all records of a hash of record and place, so that a packed file, or one in
    other pieces, has the number of the plain one. Python's hash of bytes differs from run to run.
    """

    def __init__(self) -> None:
        """Begin before the first source."""
        self._seen: dict[str, tuple[int, int]] = {}

    def add(self, source: str, columns: list[StoredValues]) -> None:
        """Take the next records of a source, the texts of each column."""
        total, before = self._seen.get(source, (0, 0))
        number = sum(index.size for _, index in columns[0])
        hashes = np.arange(before, before + number, dtype=np.uint64)
        for texts in columns:
            parts = [np.zeros(0, np.int64)]
            for distinct, index in texts:
                codes = np.fromiter((hash(text) for text in distinct), np.int64, len(distinct))
                parts.append(codes[index])
            hashes = _mixed(hashes ^ np.concatenate(parts).view(np.uint64))
        self._seen[source] = (total + int(hashes.sum())) % 2**64, before + number

    def result(self) -> tuple[tuple[str, str, int], ...]:
        """Return (source, an earlier source of the same records, their number)."""
        first: dict[tuple[int, int], str] = {}
        repeated = []
        for source, number in self._seen.items():
            if number in first and number[1]:
                repeated.append((source, first[number], number[1]))
            first.setdefault(number, source)
        return tuple(repeated)


def _mixed(words: Bits) -> Bits:
    """Return a function of each word that leaves no two alike and spreads their bits."""
    words = words * _FACTOR
    return (words ^ (words >> _FOLD)) * _FACTOR
