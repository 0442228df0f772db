"""Whole tables that were measured, one by one, with noise of different sizes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats
from dpquery.strategy.algebra.subsets import Subset


@dataclass(frozen=True, eq=False)
class MeasuredTable:
    """A table over some attributes with independent noise on every cell.

    Attributes:
        attributes: ascending numbers of attributes; none for the total.
        values: noisy counts, one axis an attribute, of its classes.
        variance: of the noise on a cell, in counts squared.
    """

    attributes: Subset
    values: Floats
    variance: float

    def __post_init__(self) -> None:
        if list(self.attributes) != sorted(set(self.attributes)):
            raise ValueError(f"attributes {self.attributes} are not ascending")
        if self.values.ndim != len(self.attributes):
            raise ValueError(f"{self.values.ndim} axes for {len(self.attributes)} attributes")
        if not 0 < self.variance < math.inf:
            raise ValueError("the variance is positive and finite")

    def margin(self, attributes: Subset) -> "MeasuredTable":
        """Return its sums over all but some of its attributes."""
        axes = tuple(k for k, i in enumerate(self.attributes) if i not in attributes)
        summed = math.prod(self.values.shape[k] for k in axes)
        return MeasuredTable(attributes, self.values.sum(axis=axes), self.variance * summed)


def merged_tables(measured: Iterable[MeasuredTable]) -> tuple[MeasuredTable, ...]:
    """Return one table a set of attributes: the mean of its measurements, weighed by precision.

    That mean has the least variance, one over the sum of the precisions, and under Gaussian noise
    says all that the measurements say. In the order in which the sets were first measured.
    """
    of_set: dict[Subset, list[MeasuredTable]] = {}
    for table in measured:
        of_set.setdefault(table.attributes, []).append(table)
    merged = []
    for attributes, tables in of_set.items():
        precision = math.fsum(1 / table.variance for table in tables)
        values = np.sum([table.values / table.variance for table in tables], axis=0) / precision
        merged.append(MeasuredTable(attributes, np.asarray(values), 1 / precision))
    return tuple(merged)
