"""Codes of several attributes in as few 64-bit words as hold them, and back."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dpquery.arrays import Bits, Bools, Ints

_ROOM = 2**63  # codes are int64


class PackedCodes:
    """How codes of attributes are packed: each word is a number of mixed radix."""

    def __init__(self, attributes: Iterable[int], shape: Sequence[int]) -> None:
        """Choose the attributes of each word.

        Args:
            attributes: whose codes are packed.
            shape: number of codes of every attribute.
        """
        self._shape = tuple(shape)
        self._words: list[list[int]] = [[]]
        room = _ROOM
        for i in attributes:
            if room < shape[i]:
                self._words.append([])
                room = _ROOM
            self._words[-1].append(i)
            room //= shape[i]

    @property
    def words(self) -> int:
        """Number of words of a row."""
        return len(self._words)

    def pack(self, codes: Mapping[int, Ints], rows: Bools) -> Bits:
        """Return the codes of some rows, given by attribute, as (words, n)."""
        packed = np.zeros((self.words, int(rows.sum())), np.int64)
        for word, attributes in zip(packed, self._words, strict=True):
            for i in attributes:
                word *= self._shape[i]
                word += codes[i][rows]
        return packed.view(np.uint64)

    def unpack(self, packed: Bits) -> dict[int, Ints]:
        """Return the codes of rows by attribute."""
        codes = {}
        for word, attributes in zip(packed.view(np.int64), self._words, strict=True):
            for i in reversed(attributes):
                word, codes[i] = np.divmod(word, self._shape[i])
        return codes
