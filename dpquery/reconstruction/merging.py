"""Rows of a table added up over neighbours or siblings until each is precise enough to print.

Which rows are added up follows from public numbers alone: the standard errors, which are known
before the data, and how many records each row is expected to have. So every merged row is one
fixed sum of answers, unbiased, and its interval is as exact as those of the rows ([MATH] 24).

Of an ordered attribute neighbours are merged, of a hierarchy siblings, into their group. Of all
ways that bring every sum to the target the one with most rows is taken, and of neighbours the one
whose squared relative errors then add up to least. Where all together miss the target there is no
such way, as the standard error of a sum is no more than those of its parts add up to: the way is
taken in which most rows reach it, and of these the one with fewest records in rows that do not,
then with fewest such rows. Nobody is left out.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Bools, Floats, Ints
from dpquery.spec.columns import Attribute
from dpquery.spec.predicates import GroupSet, IntervalSet, PredicateSet, StackedSet
from dpquery.spec.spec import MergedRows, Table

MergedCodes = tuple[int, ...]
"""Places of rows of one group of the table along the merged attribute, rising."""


@dataclass(frozen=True, eq=False)
class Merging:
    """Which rows of a table are added up to which."""

    rows: Table  # a table that has every merged row among its own
    places: Ints  # (m,) which of its rows they are, group by group
    of: tuple[Ints, ...]  # of each the rows of the table that it is the sum of
    variances: Floats  # (m,) of their noise
    missed: Bools  # (m,) whether it is less precise than asked; that of other texts may be

    def sums(self, values: Floats) -> Floats:
        """Add up rows of (n, ...) to (m, ...)."""
        return np.array([values[rows].sum(axis=0) for rows in self.of])


def merging_of(
    statistic: MergedRows, covariances: Iterable[Floats], attribute: Attribute
) -> Merging:
    """Return which rows of a table are added up.

    Covariances are (n, n) of the rows along the merged attribute, for one group of rows after
    another, in the order of `rows_along`.
    """
    sizes, listed = np.array(statistic.sizes), attribute.length
    cut, others = _siblings if attribute.levels else _neighbours, range(listed, attribute.shown)
    along = rows_along(statistic.rows, statistic.attribute)
    chosen: dict[tuple[int, MergedCodes], Ints] = {}
    variances, missed = list[float](), list[bool]()
    for group, (rows, covariance) in enumerate(zip(along, covariances, strict=True)):
        target = _Target(sizes[rows], covariance, statistic.rel_error)
        for cells in (*cut(target, attribute), *((code,) for code in others)):
            chosen[group, cells] = rows[list(cells)]
            variances.append(target.variance(cells))
            missed.append(cells[0] < listed and not target.is_met(cells))
    predicates, kinds = _predicates({cells for _, cells in chosen}, attribute)
    axes = [(i, predicates if i == statistic.attribute else p) for i, p in statistic.rows.axes]
    table = Table(tuple(axes), statistic.rows.where)
    numbers = rows_along(table, statistic.attribute)
    places = [numbers[group, kinds[cells]] for group, cells in chosen]
    added = tuple(chosen.values())
    return Merging(table, np.array(places), added, np.array(variances), np.array(missed))


def rows_along(table: Table, attribute: int) -> Ints:
    """Return the rows of a table, those along one of its attributes side by side: (groups, n)."""
    axis = [i for i, _ in table.axes].index(attribute)
    places = np.arange(table.size).reshape(table.shape)
    return np.moveaxis(places, axis, -1).reshape(-1, table.shape[axis])


PER_RECORD = 1000  # whole numbers that sizes are compared in: their sums are exact


@dataclass(frozen=True, eq=False)
class _Target:
    sizes: Floats  # (n,) how many records each is expected to have
    covariance: Floats  # (n, n) of them
    rel_error: float  # the most that a standard error may be of its sum

    def variance(self, codes: Sequence[int]) -> float:
        """Return the variance of the sum of some rows."""
        return max(float(self.covariance[np.ix_(codes, codes)].sum()), 0.0)

    def is_met(self, codes: Sequence[int]) -> bool:
        """Whether the sum of some rows is precise enough."""
        std = math.sqrt(self.variance(codes))
        return std <= self.rel_error * float(self.sizes[list(codes)].sum())


def _neighbours(target: _Target, attribute: Attribute) -> list[MergedCodes]:
    """Return the runs of neighbours that are added up: the least cost, end after end."""
    n = attribute.length
    upto = np.concatenate([[0.0], np.cumsum(target.sizes[:n])])
    square, parts = np.zeros((n + 1, n + 1)), np.rint(PER_RECORD * upto)
    square[1:, 1:] = target.covariance[:n, :n].cumsum(axis=0).cumsum(axis=1)
    own = square.diagonal()
    miss = math.inf if math.sqrt(max(own[n], 0.0)) <= target.rel_error * upto[n] else 0.0
    cost, start = np.zeros((n + 1, 4)), np.zeros(n + 1, dtype=np.int64)
    for j in range(1, n + 1):
        sizes = upto[j] - upto[:j]
        variance = np.maximum(own[j] + own[:j] - square[j, :j] - square[:j, j], 0.0)
        met: Bools = np.sqrt(variance) <= target.rel_error * sizes
        uneven = np.divide(variance, sizes**2, out=np.zeros(j), where=met & (variance > 0))
        last = (np.where(met, -1.0, miss), ~met * (parts[j] - parts[:j]), ~met, uneven)
        costs = cost[:j] + np.column_stack(last)
        start[j] = np.lexsort(costs.T[::-1])[0]
        cost[j] = costs[start[j]]
    runs, end = list[MergedCodes](), n
    while end:
        runs.append(tuple(range(start[end], end)))
        end = int(start[end])
    return runs[::-1]


def _siblings(target: _Target, attribute: Attribute) -> list[MergedCodes]:
    """Return the groups of a hierarchy that are added up: the least cost, group after group."""
    every = tuple(range(attribute.length))
    miss = math.inf if target.is_met(every) else 0.0

    def cost(groups: Sequence[MergedCodes]) -> tuple[float, float, int]:
        missed = [codes for codes in groups if not target.is_met(codes)]
        parts = sum(
            float(np.rint(PER_RECORD * target.sizes[list(codes)].sum())) for codes in missed
        )
        return (miss if missed else 0.0) - (len(groups) - len(missed)), parts, len(missed)

    def cut(codes: MergedCodes, depth: int) -> list[MergedCodes]:
        if len(codes) == 1 or depth == len(attribute.levels):
            return [codes]
        inside = set(codes)
        members = attribute.levels[depth].members
        parts = [part for part in members if part and inside.issuperset(part)]
        return min([each for part in parts for each in cut(part, depth + 1)], [codes], key=cost)

    return cut(every, 0)


def group_names(attribute: Attribute) -> dict[MergedCodes, tuple[str, tuple[str, str]]]:
    """Return label, level and code of every group of an attribute's hierarchy, by its values."""
    return {
        members: (level.labels[k], (level.name, level.codes[k]))
        for level in attribute.levels
        for k, members in enumerate(level.members)
    }


def _predicates(
    merged: Iterable[MergedCodes], attribute: Attribute
) -> tuple[PredicateSet, dict[MergedCodes, int]]:
    """Return a predicate set with one query for each set of codes, and the place of each."""
    names = group_names(attribute)
    spans, groups, rest = list[MergedCodes](), list[MergedCodes](), list[MergedCodes]()
    for cells in sorted(merged):
        is_span = not attribute.levels and cells[-1] < attribute.length
        (spans if is_span else groups if cells in names else rest).append(cells)
    size, parts = attribute.size, list[PredicateSet]()
    if spans:
        parts.append(IntervalSet(size, tuple((cells[0], cells[-1]) for cells in spans)))
    if groups:
        named = [names[cells] for cells in groups]
        labelled = tuple((label, cells) for (label, _), cells in zip(named, groups, strict=True))
        parts.append(GroupSet(size, labelled, tuple(group for _, group in named)))
    for cells in rest:
        label = "all listed" if cells[-1] < attribute.length else attribute.label(cells[0])
        parts.append(GroupSet(size, ((label, cells),)))
    kinds = {cells: place for place, cells in enumerate((*spans, *groups, *rest))}
    return parts[0] if len(parts) == 1 else StackedSet(size, tuple(parts)), kinds
