"""Rows of a table added up over neighbours or siblings until each is precise enough to print.

Which rows are added up follows from public numbers alone: the standard errors, which are known
before the data, and how many records each row is expected to have. So every merged row is one
fixed sum of answers, unbiased, and its interval is as exact as those of the rows ([MATH] 24).

Of an ordered attribute neighbours are merged. Of all ways that bring every sum to the target the
one with most rows is taken, and then the one whose squared relative errors add up to least.

Of a hierarchy a value that reaches the target is a row of its own, and the others of a group are
one row. Where these miss the target the least of the group's rows that suffices joins them, or
they go up to the group above if that leaves more rows.

Where all together miss the target there is no such way, as the standard error of a sum is no more
than those of its parts add up to: the way is taken in which most rows reach it, and of these the
one with fewest records in rows that do not, then with fewest such rows. Nobody is left out.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Bools, Floats, Ints
from dpquery.spec.columns import Attribute, Boolean, Domain
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
    missed: Bools  # (m,) whether it is less precise than asked, as far as sizes are known

    def sums(self, values: Floats) -> Floats:
        """Add up rows of (n, ...) to (m, ...)."""
        return np.array([values[rows].sum(axis=0) for rows in self.of])

    def sums_in_words(self, domain: Domain) -> tuple[str, ...]:
        """Return what the rows that are sums are called, each with how many rows it adds up."""
        texts = []
        for i, predicates in self.rows.axes:
            attribute = domain.attributes[i]
            is_flag = isinstance(attribute.columns[0].kind, Boolean) and not attribute.merged
            named = f"{attribute.name} " * is_flag  # yes and no are of what?
            texts.append([named + label for label in predicates.query_labels(attribute).labels])
        places = np.transpose(np.unravel_index(self.places, self.rows.shape))
        return tuple(
            f"{', '.join(of_axis[k] for of_axis, k in zip(texts, at, strict=True))} ({len(rows)})"
            for at, rows in zip(places.tolist(), self.of, strict=True)
            if len(rows) > 1
        )


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
            known = cells[0] < listed or not statistic.presumed
            missed.append(known and not target.is_met(cells))
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


MEMBERS_NAMED = 3  # values that the name of a numbered set has
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

    def joined(self, codes: MergedCodes, others: Sequence[MergedCodes]) -> tuple[Floats, Floats]:
        """Return standard errors and sizes of rows, each with some others: (k,) each."""
        across = 2 * self.covariance[list(codes)].sum(axis=0)
        variances = [self.variance(row) + float(across[list(row)].sum()) for row in others]
        sizes = [float(self.sizes[[*codes, *row]].sum()) for row in others]
        own = self.variance(codes)
        return np.sqrt(np.maximum(own + np.array(variances), 0.0)), np.array(sizes)


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
        last = (np.where(met, -1.0, miss), ~met * np.maximum(parts[j] - parts[:j], 0), ~met, uneven)
        costs = cost[:j] + np.column_stack(last)
        start[j] = np.lexsort(costs.T[::-1])[0]
        cost[j] = costs[start[j]]
    runs, end = list[MergedCodes](), n
    while end:
        runs.append(tuple(range(start[end], end)))
        end = int(start[end])
    return runs[::-1]


@dataclass(frozen=True)
class _Way:
    """A way to cut a group: its rows that reach the target, and who is in none of them."""

    rows: tuple[MergedCodes, ...]
    left: MergedCodes = ()

    def cost(self, target: _Target) -> tuple[int, float, bool]:
        """Return what is least of the best way."""
        records = np.rint(PER_RECORD * target.sizes[list(self.left)].sum())
        return -len(self.rows), max(0.0, float(records)), bool(self.left)


def _siblings(target: _Target, attribute: Attribute) -> list[MergedCodes]:
    """Return which values of a hierarchy are added up, from its leaves up."""
    every = tuple(range(attribute.length))
    reachable = target.is_met(every)

    def cut(codes: MergedCodes, depth: int) -> tuple[_Way, _Way]:
        """Return a way that hands small rows up, and the best that completes them if it can."""
        if len(codes) == 1:
            way = _Way((codes,)) if target.is_met(codes) else _Way((), codes)
            return way, way
        inside = set(codes)
        members = attribute.levels[depth].members
        parts = [cut(each, depth + 1) for each in members if each and inside.issuperset(each)]
        up, within = (
            _Way(
                tuple(row for way in ways for row in way.rows),
                tuple(sorted(code for way in ways for code in way.left)),
            )
            for ways in zip(*parts, strict=True)
        )
        most = len(codes) if not depth and reachable else 1
        ways = (_completed(way, target, most) for way in (within, up))
        best = min(ways, key=lambda way: way.cost(target))  # of equal ones that of siblings
        return _completed(up, target, 0), best

    way = cut(every, 0)[1]
    return sorted(row for row in (*way.rows, way.left) if row)


def _completed(way: _Way, target: _Target, most: int) -> _Way:
    """Return a way whose rest is a row, with up to so many of the other rows if it needs them.

    These are the ones that help most, until one more suffices: of such it is the smallest.
    """
    if not way.left or target.is_met(way.left):
        return _Way((*way.rows, *([way.left] if way.left else [])))
    rows, left = list(way.rows), way.left
    for _ in range(min(most, len(rows))):
        stds, sizes = target.joined(left, rows)
        met = stds <= target.rel_error * sizes
        taken = int(np.argmin(np.where(met, sizes, np.inf) if met.any() else -sizes / stds))
        left = tuple(sorted((*left, *rows.pop(taken))))
        if met.any():
            return _Way((*rows, left))
    return way


def _named(cells: MergedCodes, attribute: Attribute) -> tuple[str, tuple[str, str]]:
    """Return label, level and code of values of a hierarchy: a group, or others of the smallest."""
    for level in reversed(attribute.levels):
        group = level.group_of[cells[0]]
        if set(level.members[group]).issuperset(cells):
            label, code = level.labels[group], level.codes[group]
            if len(cells) == len(level.members[group]):
                return label, (level.name, code)
            which = f"{level.name} {code}" if label == code else label
            return f"other of {which}", (f"other of {level.name}", code)
    which = "all" if len(cells) == attribute.length else "other"
    return f"{which} listed", (which, "listed")


def _predicates(
    merged: Iterable[MergedCodes], attribute: Attribute
) -> tuple[PredicateSet, dict[MergedCodes, int]]:
    """Return a predicate set with one query for each set of codes, and the place of each.

    Sets that have one name are numbered, so that whatever is called alike holds the same, and
    readers are told the first of each.
    """
    listed, rest = list[MergedCodes](), list[MergedCodes]()
    for cells in sorted(merged):
        (listed if cells[-1] < attribute.length else rest).append(cells)
    size, parts = attribute.size, list[PredicateSet]()
    if attribute.levels:
        names, labels, groups = [_named(cells, attribute) for cells in listed], [], []
        often, given = Counter(group for _, group in names), Counter[tuple[str, str]]()
        for (label, (level, code)), cells in zip(names, listed, strict=True):
            given[level, code] += 1
            number = f", set {given[level, code]}" * (often[level, code] > 1)
            first = ", ".join(attribute.label(each) for each in cells[:MEMBERS_NAMED])
            more = f" and {len(cells) - MEMBERS_NAMED:,} more" * (len(cells) > MEMBERS_NAMED)
            labels.append(label + number + f" ({first}{more})" * bool(number))
            groups.append((level, code + number))
        parts.append(GroupSet(size, tuple(zip(labels, listed, strict=True)), tuple(groups)))
    else:
        parts.append(IntervalSet(size, tuple((cells[0], cells[-1]) for cells in listed)))
    parts += (GroupSet(size, ((attribute.label(cells[0]), cells),)) for cells in rest)
    kinds = {cells: place for place, cells in enumerate((*listed, *rest))}
    return parts[0] if len(parts) == 1 else StackedSet(size, tuple(parts)), kinds
