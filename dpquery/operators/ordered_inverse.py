"""Inverses of Grams whose quadratic forms go by ranges of codes, without an (n, n) array."""

from abc import ABC, abstractmethod

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.factors import (
    Factor,
    Groups,
    Identity,
    IdentityRows,
    Ones,
    Stacked,
)
from dpquery.operators.ranges import Columns, Ranges

RANGES_AT_ONCE = 1 << 14  # so many numbers stay in a core's cache


class OrderedInverse(ABC):
    """A symmetric (n, n) matrix M over ordered codes, known by its products and its ranges."""

    n: int

    @abstractmethod
    def matmat(self, X: Numbers) -> Floats:
        """Return M X. X: (n, k)."""

    @abstractmethod
    def _of_some_ranges(self, first: Ints, last: Ints) -> Floats:
        """Return q M q' of the ranges first..last, at most RANGES_AT_ONCE: (m,)."""

    @abstractmethod
    def _of_rows(self, rows: "sp.csr_array") -> Floats:
        """Return diag(Q M Q') of sparse rows. Q: (m, n)."""

    def array(self) -> Floats:
        """Return it written out: (n, n)."""
        return self.matmat(np.eye(self.n))

    def quadratic(self, queries: Factor) -> Floats:
        """Return diag(Q M Q') of a query matrix: (m,)."""
        match queries:
            case Stacked(parts=parts):
                return np.concatenate([self.quadratic(part) for part in parts])
            case Ranges(bounds=bounds):
                return self._of_ranges(*bounds)
            case Identity():
                return self._of_ranges(np.arange(self.n), np.arange(self.n))
            case IdentityRows(codes=codes):
                return self._of_ranges(codes, codes)
            case Ones(shape=(m, n)):
                return np.full(m, self._of_ranges(np.zeros(1, int), np.array([n - 1]))[0])
            case Groups(matrix=matrix):
                return self._of_rows(matrix)
            case Columns():
                return queries.quadratic(self.array())
            case _:
                return self._of_rows(sp.csr_array(queries.dense().astype(np.float64)))

    def _of_ranges(self, first: Ints, last: Ints) -> Floats:
        pieces = range(0, len(first), RANGES_AT_ONCE)
        spans = [slice(start, start + RANGES_AT_ONCE) for start in pieces]
        return np.concatenate([self._of_some_ranges(first[span], last[span]) for span in spans])
