"""Sums over the terms of a Gram, one for every attribute subset below a term.

With two numbers c(i, V, 0) and c(i, V, 1) for every matrix V of attribute i,
    S_b = sum_j w_j prod_{i in b} c(i, V_ij, 1) prod_{i not in b} c(i, V_ij, 0)
over the terms j that look at all of b. Traces against the eigenprojectors of marginals and the
variances of cores and totals are sums of this kind ([MATH] 3, 6). A term of w attributes takes an
outer product of w pairs, O(2^w).
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_RESIDUAL_ATTRIBUTES
from dpquery.operators.gram import Gram
from dpquery.strategy.algebra.subsets import Below, Subset, outer_products


class BlockSums:
    """S_b = sum_j w_j prod_i c(i, matrix of j, i in b) over all subsets b, and its gradient.

    Attributes of one class stand in no subset; their c(i, V, 0) is a factor of the weight.
    """

    def __init__(self, gram: Gram, *, most: int = MAX_RESIDUAL_ATTRIBUTES) -> None:
        """Number the subsets; UnsupportedWorkloadError where a term has over `most` attributes."""
        self.offsets = np.cumsum([0, *(2 * len(matrix) for matrix in gram.matrices)])
        self.size = int(self.offsets[-1]) + 1  # the last slot is always one
        self.weights = gram.weights
        single = np.array(gram.shape_of_domain) == 1
        inside = _used(np.where(single, 0, gram.index))
        widest = max(map(len, inside), default=0)
        if widest > most:
            raise UnsupportedWorkloadError(f"a table looks at {widest} attributes")
        self.below = Below(inside)
        self.subsets = self.below.subsets
        self.slots = [
            self.offsets[group.members] + 2 * gram.index[group.positions[:, None], group.members]
            for group in self.below.groups
        ]
        self.alone = self._alone(gram, np.flatnonzero(single))

    def slot(self, i: int, matrix: int, inside: bool) -> int:
        """Return where c(i, matrix, inside) stands in the flat vector."""
        return int(self.offsets[i]) + 2 * int(matrix) + int(inside)

    def sums(self, c: Floats) -> Floats:
        """Return S_b for every subset. c: (size,) with a one at its end."""
        return self._sums(c, self.weights)

    def magnitudes(self, c: Floats) -> Floats:
        """Return the same sums of absolute values: what rounding is relative to."""
        return self._sums(np.abs(c), np.abs(self.weights))

    def _sums(self, c: Floats, weights: Floats) -> Floats:
        scaled, out = weights * c[self.alone].prod(axis=1), np.zeros(len(self.subsets))
        for group, slots in zip(self.below.groups, self.slots, strict=True):
            products = outer_products(_pairs(c, slots), scaled[group.positions])
            out += np.bincount(group.below.ravel(), products.ravel(), minlength=len(out))
        return out

    def gradient(self, c: Floats, by_sums: Floats) -> Floats:
        """Return the gradient with respect to c, given that with respect to S."""
        lone = c[self.alone]
        scaled, out = self.weights * lone.prod(axis=1), np.zeros(self.size)
        by_scale = np.zeros(len(scaled))
        for group, slots in zip(self.below.groups, self.slots, strict=True):
            pairs, left = _pairs(c, slots), by_sums[group.below]
            for j in range(len(pairs) - 1, -1, -1):
                before = outer_products(pairs[:j], scaled[group.positions])
                left = left.reshape(len(left), before.shape[1], 2)
                slopes = (before[:, :, None] * left).sum(axis=1)
                np.add.at(out, slots[:, j, None] + np.arange(2), slopes)
                left = (left * pairs[j][:, None, :]).sum(axis=2)
            by_scale[group.positions] = left[:, 0]
        for k in range(lone.shape[1]):
            others = np.delete(lone, k, axis=1).prod(axis=1)
            np.add.at(out, self.alone[:, k], self.weights * others * by_scale)
        return out

    def _alone(self, gram: Gram, single: Ints) -> Ints:
        """Return the slots of each term on attributes of one class, the last slot where none."""
        index = gram.index[:, single]
        slots = self.offsets[single] + 2 * index
        kept = np.where(index > 0, slots, self.size - 1)
        return np.asarray(kept[:, (index > 0).any(axis=0)])


def _pairs(c: Floats, slots: NDArray[np.integer]) -> list[Floats]:
    """Return (k, 2) values outside and inside the subset, for each attribute of sets in a row."""
    return [c[slot[:, None] + np.arange(2)] for slot in slots.T]


def _used(index: NDArray[np.int32]) -> list[Subset]:
    """Return the attributes where each row of a Gram's index is not zero."""
    rows, attributes = np.nonzero(index)
    ends = np.cumsum(np.bincount(rows, minlength=len(index)))
    flat = attributes.tolist()
    return [tuple(flat[a:b]) for a, b in pairwise([0, *ends.tolist()])]
