"""Relaxed rows: synthetic records as weights, and what they answer.

A relaxed row x has one distribution x_i over the classes of each attribute [RAP]. It answers a
query by the expected answer of a record drawn from these distributions independently: with
p_i = f_i . x_i for the predicate f_i on attribute i, a product answers prod_i p_i, and "at least r
of the counted predicates, and all others" the tail of a Poisson-binomial times the others. Where
the rows are records, every p_i 0 or 1, these are the exact answers. n' rows answer their mean.

All queries of a block at once, [MATH] 10: the table mean over rows of prod_i p_i[j_i] is one matrix
product of two half-tables, and a threshold is the signed sum of such tables over the sets of
counted predicates, each spread along the axes that it leaves out. Predicates that agree on every
row, such as classes that nothing measured distinguishes, are worked out once.

Groups of classes that no measured query distinguishes: relaxed rows are fitted on these alone.

A measured predicate sees of a row the mass of a group, not how the row spreads it over classes. So
a fit that moves mass between groups costs what was measured, not what the domain holds, and what
nothing was measured about stays spread evenly.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Floats, Ints, Singles
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_FINER_NUMBERS
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Factor, Identity, IdentityRows

ROWS_AT_ONCE = 1024  # relaxed rows whose half-tables are in memory together: more leave the cache


@dataclass(frozen=True, eq=False)
class PredicateProbabilities:
    """The probability of every predicate of one attribute in every relaxed row."""

    distinct: Singles  # (u, n') the probabilities in each row, of the predicates that differ
    places: Ints  # (m,) which of these each predicate is

    @classmethod
    def of(cls, values: Singles) -> "PredicateProbabilities":
        """Return probabilities without repeating predicates that agree on all rows. (m, n')."""
        seen: dict[bytes, int] = {}
        places = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in values])
        _, first = np.unique(places, return_index=True)
        return cls(values[first], places)


def rows_digest(values: Singles) -> str:
    """Return the sha256 of relaxed rows, as little-endian 32-bit floats. values: (rows, k)."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f4").data).hexdigest()


@dataclass(frozen=True, eq=False)
class RelaxedRows:
    """Relaxed rows, each with one distribution an attribute."""

    shape: tuple[int, ...]  # classes of each attribute of the domain
    values: Singles  # (n', sum of shape) float32, the distributions of a row side by side

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != sum(self.shape):
            raise ValueError(f"relaxed rows of {self.values.shape} for the domain {self.shape}")
        if self.values.dtype != np.float32 or len(self.values) == 0:
            raise ValueError("relaxed rows are of float32, and one at least")

    def answer(self, block: Block) -> Singles:
        """Return the answers of a block as fractions of one: row_shape.

        Memory: the table, one more of its size, and n' numbers for every distinct predicate.
        """
        if not block.attributes:
            return np.ones((), dtype=np.float32)
        # Where predicates outnumber classes, a product is answered over classes first: fewer cells.
        late = [block.is_product and factor.shape[0] > factor.shape[1] for factor in block.factors]
        probabilities = [
            self._classes[i] if after else self._probabilities(i, factor)
            for i, factor, after in zip(block.attributes, block.factors, late, strict=True)
        ]
        table = at_least(
            [one_axis.distinct for one_axis in probabilities], block.counted, block.at_least
        )
        for axis, one_axis in reversed(list(enumerate(probabilities))):
            if not np.array_equal(one_axis.places, np.arange(len(one_axis.distinct))):
                table = table.take(one_axis.places, axis)
        for axis, factor in enumerate(block.factors):
            if late[axis]:
                table = along(factor, table, axis)
        return table

    def distribution(self, attribute: int) -> Singles:
        """Return the distributions of one attribute: (n', n_i)."""
        start = sum(self.shape[:attribute])
        return self.values[:, start : start + self.shape[attribute]]

    def _probabilities(self, attribute: int, factor: Factor) -> PredicateProbabilities:
        classes = self._classes[attribute]
        if isinstance(factor, Identity):
            return classes
        if isinstance(factor, IdentityRows):
            return PredicateProbabilities(classes.distinct, classes.places[factor.codes])
        return PredicateProbabilities.of(
            np.asarray(factor.matmat(classes.distinct[classes.places]), dtype=np.float32)
        )

    @cached_property
    def _classes(self) -> tuple[PredicateProbabilities, ...]:
        distributions = (
            np.ascontiguousarray(self.distribution(i).T) for i in range(len(self.shape))
        )
        return tuple(PredicateProbabilities.of(values) for values in distributions)


def spread_evenly(rows: RelaxedRows, classes: Sequence[Ints], finer: Sequence[Ints]) -> RelaxedRows:
    """Return relaxed rows over finer classes: codes of one class share its probability evenly.

    Nothing that was measured says how the codes of a class differ, so this is a guess, and the one
    that favours none.

    No class of the finer ones is of codes from two of the others.

    Returns:
        Relaxed rows over `finer`; the very same ones where that is no finer.

    Raises:
        UnsupportedWorkloadError: they would be too many numbers to hold.
    """
    parts, shape = [], tuple(int(codes.max()) + 1 for codes in finer)
    if shape == rows.shape:
        return rows
    numbers = len(rows.values) * sum(shape)
    if numbers > MAX_FINER_NUMBERS:
        raise UnsupportedWorkloadError(
            f"the questions tell {sum(shape):,} values apart, which takes relaxed rows of "
            f"{numbers:,} numbers, and the limit is {MAX_FINER_NUMBERS:,}; ask for wider ranges"
        )
    for i, (before, after) in enumerate(zip(classes, finer, strict=True)):
        _, first = np.unique(after, return_index=True)
        parent = before[first]
        share = np.bincount(after) / np.bincount(before)[parent]
        parts.append(rows.distribution(i)[:, parent] * share.astype(np.float32))
    return RelaxedRows(shape, np.ascontiguousarray(np.concatenate(parts, axis=1)))


def at_least(
    probabilities: Sequence[Singles],
    counted: Sequence[bool],
    r: int,
    *,
    in_term: Sequence[bool] = (),
) -> Singles:
    """Return the mean probability that at least r of the counted predicates hold, and all others.

    The signed sum of [MATH] 5, where every table is first added to the next larger one that holds
    its predicates: only k tables are ever spread over the whole.

    Args:
        probabilities: for each axis (m_i, n') the probability of every predicate in every row.
        counted: which axes are counted.
        r: how many of these are to hold.
        in_term: for each axis whether its predicates are in the term to start from; by default all.

    Returns:
        (m_1, ..., m_k), of size 1 along the axes that are not in the term.
    """
    in_term = in_term or [True] * len(probabilities)
    t = sum(among and also for among, also in zip(in_term, counted, strict=True))
    ones = np.ones_like(probabilities[0][:1])
    table = mean_product(
        [p if among else ones for p, among in zip(probabilities, in_term, strict=True)]
    )
    if t > r:
        table *= (-1) ** (t - r) * math.comb(t - 1, t - r)
        missing = next((i for i, among in enumerate(in_term) if not among), len(in_term))
        for i in (i for i in range(missing) if counted[i]):
            fewer = [among and j != i for j, among in enumerate(in_term)]
            table += at_least(probabilities, counted, r, in_term=fewer)
    return table


def mean_product(probabilities: Sequence[Singles]) -> Singles:
    """Return the mean over rows of prod_i p_i[j_i] for all j: (m_1, ..., m_k).

    Probabilities are (m_i, n') for each axis.
    """
    rows = probabilities[0].shape[1]
    total: Singles | None = None
    for start in range(0, rows, ROWS_AT_ONCE):
        left, right = halves([p[:, start : start + ROWS_AT_ONCE] for p in probabilities])
        product = half_table(left) @ half_table(right).T
        total = product if total is None else np.add(total, product, out=total)
    if total is None:
        raise ValueError("no rows")
    total /= rows
    return total.reshape([len(p) for p in probabilities])


def halves(probabilities: Sequence[Singles]) -> tuple[Sequence[Singles], Sequence[Singles]]:
    """Split axes into two groups with as few products of each as can be; one axis has all ones."""
    both = (
        [*probabilities, np.ones_like(probabilities[0][:1])]
        if len(probabilities) == 1
        else probabilities
    )
    cut = _cut(tuple(map(len, both)))
    return both[:cut], both[cut:]


@cache
def _cut(sizes: tuple[int, ...]) -> int:
    return min(range(1, len(sizes)), key=lambda i: math.prod(sizes[:i]) + math.prod(sizes[i:]))


def half_table(probabilities: Sequence[Singles]) -> Singles:
    """Return the products of several axes in every row: (prod m_i, n')."""
    table = probabilities[0]
    for p in probabilities[1:]:
        table = (table[:, None] * p).reshape(-1, p.shape[1])
    return table


def along(factor: Factor, table: Singles, axis: int) -> Singles:
    """Apply a factor along one axis of a table."""
    moved = np.moveaxis(table, axis, 0)
    flat = np.asarray(
        factor.matmat(np.ascontiguousarray(moved).reshape(len(moved), -1)), np.float32
    )
    return np.moveaxis(flat.reshape(-1, *moved.shape[1:]), 0, axis)


Sparse: TypeAlias = "sp.csr_array[np.float32, tuple[int, int]]"


@dataclass(frozen=True, eq=False)
class Partition:
    """A partition of the classes of every attribute into groups.

    Masses of groups are arrays of (g, n'), the groups of one attribute below those of the last.
    """

    shape: tuple[int, ...]  # classes of each attribute
    places: Ints  # (sum of shape,) the group of every class, numbered through all attributes

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> "Partition":
        """Put all classes of an attribute in one group."""
        return cls(shape, np.repeat(np.arange(len(shape)), shape))

    def refine(self, predicates: Sequence[tuple[int, Floats]]) -> "Partition":
        """Split groups until every predicate, (attribute, (n_i,)), is constant on each."""
        predicates_of: list[list[Floats]] = [[] for _ in self.shape]
        for attribute, predicate in predicates:
            predicates_of[attribute].append(predicate)
        refined, count = [], 0
        for places, rows in zip(self._by_attribute(self.places), predicates_of, strict=True):
            groups, numbers = np.unique(np.stack([places, *rows]), axis=1, return_inverse=True)
            refined.append(numbers.reshape(-1) + count)
            count += groups.shape[1]
        return Partition(self.shape, np.concatenate(refined))

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """The groups of each attribute."""
        firsts = [int(groups.min()) for groups in self._by_attribute(self.places)]
        return tuple(slice(*ends) for ends in pairwise([*firsts, self.count]))

    @cached_property
    def count(self) -> int:
        """Number of groups."""
        return int(self.places.max()) + 1

    @cached_property
    def members(self) -> Sparse:
        """(g, sum of shape): 1 where a class belongs to a group."""
        ones = np.ones(len(self.places), dtype=np.float32)
        where = (self.places, np.arange(len(self.places)))
        return sp.csr_array((ones, where), shape=(self.count, len(self.places)))

    def over_groups(self, predicates: Sequence[tuple[int, Floats]]) -> Sparse:
        """Return predicates that are constant on groups as a matrix over these: (p, g)."""
        first = np.unique(self.places, return_index=True)[1]
        starts = np.cumsum([0, *self.shape])
        rows, columns, values = [], [], []
        for number, (attribute, predicate) in enumerate(predicates):
            span = self.spans[attribute]
            on_groups = predicate[first[span] - starts[attribute]]
            nonzero = np.flatnonzero(on_groups)
            rows.append(np.full(len(nonzero), number))
            columns.append(nonzero + span.start)
            values.append(on_groups[nonzero])
        entries = np.concatenate(values).astype(np.float32)
        where = (np.concatenate(rows), np.concatenate(columns))
        return sp.csr_array((entries, where), shape=(len(predicates), self.count))

    def split(self, masses: Singles, finer: "Partition", start: Singles) -> Singles:
        """Return the masses of a finer partition's groups: their shares of the old ones.

        Args:
            masses: (g, n') of this partition's groups.
            finer: its refinement.
            start: (sum of shape, n') distributions that say what each class has of its group.
        """
        parents = np.empty(finer.count, dtype=np.int64)
        parents[finer.places] = self.places
        return masses[parents] * (finer.members @ start) / (self.members @ start)[parents]

    def rows(self, masses: Singles) -> RelaxedRows:
        """Spread the mass of every group evenly over its classes. masses: (g, n')."""
        sizes = np.bincount(self.places).astype(np.float32)
        values = (masses / sizes[:, None])[self.places]
        return RelaxedRows(self.shape, np.ascontiguousarray(values.T))

    def _by_attribute(self, values: Ints) -> list[Ints]:
        return np.split(values, np.cumsum(self.shape)[:-1])
