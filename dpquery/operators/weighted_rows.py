"""Factors whose rows have weights: the Grams of reweighted queries."""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

from collections.abc import Hashable
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Numbers
from dpquery.operators.factors import Factor, Stacked


class Weighted(Factor):
    """A factor whose rows are scaled by the roots of their weights."""

    def __init__(self, factor: Factor, weights: Floats) -> None:
        self.factor, self.weights = factor, weights
        self.dtype = np.result_type(np.float64)
        self.shape = factor.shape
        self.roots = np.sqrt(weights)

    @cached_property
    def key(self) -> Hashable:
        return ("weighted", self.factor.key, self.weights.tobytes())

    def matmat(self, X: Numbers) -> Numbers:
        return np.asarray(self.roots[:, None] * self.factor.matmat(X))

    def rmatmat(self, Y: Numbers) -> Numbers:
        return self.factor.rmatmat(self.roots[:, None] * Y)

    def gram(self) -> Floats:
        return self.factor.weighted_gram(self.weights)


def weighted(factor: Factor, weights: Floats) -> Factor:
    """Return diag(weights)^(1/2) F, with the parts of stacked factors weighted one by one."""
    if not isinstance(factor, Stacked):
        return Weighted(factor, weights)
    ends = np.cumsum([part.shape[0] for part in factor.parts])[:-1]
    pieces = np.split(weights, ends)
    return Stacked(tuple(weighted(p, w) for p, w in zip(factor.parts, pieces, strict=True)))
