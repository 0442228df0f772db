r"""Strategies that split every attribute into a level and a remainder.

A count vector x of n classes is the spread z 1'x of its total, 1'z = 1, and what is left of it. A
query q has the level q z on the total, and its remainder has variance q H q' with H 1 = 0. In
marginals of factors A ([MATH] 7) that is, with g = (A'A)^-1 1 and mu = 1'g,
    z = g / mu,  H = ((A'A)^-1 - g g' / mu) / mu,
which for the cells themselves (A = I, mu = n) is z = 1/n, H = (I - 11'/n) / n.

The marginals of a workload are such tables, by the hundred thousand. Under marginals and under
cores the variance of a query over attributes S is sum_{b <= S} share_b prod_{i in b} v_i
prod_{i in S \ b} u_i^2 ([MATH] 6, 7): where u_i and v_i are one number for all predicates of an
attribute, it is a number for the whole table. In an r-of-k block the u_i^2 of what is counted give
way to the squared difference of the threshold in b.

A core F has n - 1 independent rows (or more of that rank) and one null vector z, scaled to
1'z = 1. With Q = I - z 1', R = Q F^+ and H = R R' a count vector is x = z 1'x + R F x, so a query q
is answered by its level q z on the total and by q R on F x, with variance q H q' under unit noise
([MATH] 6). Nothing is measured twice: the total says nothing of F x, nor F x of the total.
"""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block, differences
from dpquery.operators.factors import ROW_CHUNK, Centered, Dense, Factor, Identity, counts_records
from dpquery.operators.gram import Matrix, total_sum, trace, trace_with
from dpquery.operators.inverses import inverse_array, inverse_gram, least_squares
from dpquery.strategy.algebra.query_powers import (
    QueryPairs,
    RowTerms,
    SplitPowers,
    SymmetricForm,
    sums_of_pairs,
)
from dpquery.strategy.algebra.subsets import (
    Below,
    Subset,
    distinct_or_all,
    outer_products,
    subsets_of,
)
from dpquery.strategy.strategy import Strategy

REFINED = 2  # steps in which (A'A)^-1 1 is refined


class Split(Protocol):
    """Level and remainder of the queries on one attribute."""

    def levels(self, queries: Factor) -> Floats:
        """Return q z of every query: (m,)."""

    def variances(self, queries: Factor) -> Floats:
        """Return q H q' of every query: (m,)."""

    def spread(self, totals: Floats) -> Floats:
        """Return z times a row of totals: (1, k) -> (n, k), or one row where all n are equal."""

    def remainder_times(self, X: Floats) -> Floats:
        """Return H X. X: (n, k)."""


class UniformSplit:
    """z = 1/n and H = (I - 11'/n) times a scale: where all classes are treated alike."""

    def __init__(self, n: int, scale: float) -> None:
        self.n, self.scale = n, scale

    def levels(self, queries: Factor) -> Floats:
        return np.asarray(queries.row_sums / self.n)

    def variances(self, queries: Factor) -> Floats:
        return np.asarray((queries.row_squares - queries.row_sums**2 / self.n) * self.scale)

    def spread(self, totals: Floats) -> Floats:
        return totals / self.n

    def remainder_times(self, X: Floats) -> Floats:
        return np.asarray((X - X.mean(axis=0, keepdims=True)) * self.scale)


class DenseSplit(ABC):
    """z and H as arrays."""

    @property
    @abstractmethod
    def z(self) -> Floats:
        """Spread of the total, 1'z = 1: (n,)."""

    @property
    @abstractmethod
    def remainder(self) -> Floats:
        """H: (n, n)."""

    def levels(self, queries: Factor) -> Floats:
        return queries.matvec(self.z)

    def variances(self, queries: Factor) -> Floats:
        """A predicate that always holds is its level: rounding may leave it no remainder."""
        always = queries.row_sums == queries.shape[1] if queries.zero_one else False
        return np.where(always, 0.0, np.maximum(queries.quadratic(self.remainder), 0.0))

    def spread(self, totals: Floats) -> Floats:
        return np.outer(self.z, totals[0])

    def remainder_times(self, X: Floats) -> Floats:
        return np.asarray(self.remainder @ X)


@dataclass(frozen=True, eq=False)
class Patterns:
    """Coefficients of distinct queries on the distinct rows of a measured factor A."""

    kinds: Ints  # which distinct query each row of the queries is: (m,)
    levels: Floats  # q z of every distinct query: (k,)
    remainders: Floats  # A H q of every distinct query on every distinct row: (k, r)
    reading: Floats  # A z on the same rows: (r,)
    numbers: Floats  # how many rows of A each of them stands for: (k, r), or (1, r) for all queries


class FactorSplit(Split, Protocol):
    """The split by a factor A that is measured in marginals."""

    factor: Factor  # A, of full column rank
    mu: float  # 1'(A'A)^-1 1
    reading: Floats  # A z, which reads the total off the factor's answers: (rows,)

    def recover(self, answers: Floats) -> Floats:
        """Return H A' times the factor's answers. answers: (rows, k) -> (n, k)."""

    def moments(self, queries: Factor, order: int) -> Floats:
        """Return sum_r (A H q)_r^c (A z q z)_r^(order - c), c = 0..order: (order + 1, m)."""

    def patterns(self, queries: Factor) -> "Patterns":
        """Return A H q and A z for distinct queries, equal rows as one with their number."""


class CellSplit(UniformSplit):
    """Every class counted: A = I."""

    def __init__(self, n: int) -> None:
        super().__init__(n, 1 / n)
        self.factor: Factor = Identity(n)
        self.mu, self.reading = float(n), np.full(n, 1 / n)

    def recover(self, answers: Floats) -> Floats:
        return np.asarray((answers - answers.mean(axis=0, keepdims=True)) / self.n)

    def moments(self, queries: Factor, order: int) -> Floats:
        """The same, in closed form for queries that are 0 or 1."""
        if not counts_records(queries):
            return self._moments_of_any(queries, order)
        s, n = queries.row_sums.astype(np.float64), self.n
        mean = s / n
        sums = [
            (s * (1 - mean) ** c + (n - s) * (-mean) ** c) * mean ** (order - c)
            for c in range(order + 1)
        ]
        return np.array(sums) / float(n) ** order

    def patterns(self, queries: Factor) -> "Patterns":
        """Counts of one size are one kind; a class is in such a query or it is not."""
        if not counts_records(queries):
            levels = self.levels(queries)
            remainders = (queries.dense() - levels[:, None]) / self.n
            return _each_a_pattern(levels, remainders, self.reading)
        sizes, kinds = np.unique(queries.row_sums, return_inverse=True)
        means = sizes / self.n
        return Patterns(
            kinds=kinds.ravel(),
            levels=means,
            remainders=np.stack([1 - means, -means], axis=1) / self.n,
            reading=np.full(2, 1 / self.n),
            numbers=np.stack([sizes, self.n - sizes], axis=1).astype(np.float64),
        )

    def _moments_of_any(self, queries: Factor, order: int) -> Floats:
        """Return the moments of queries with any entries, some rows or columns at a time."""
        levels, (m, n) = self.levels(queries), queries.shape
        total, step = np.zeros((order + 1, m)), max(1, ROW_CHUNK // max(m, n))
        for start in range(0, min(m, n), step):
            width = min(step, min(m, n) - start)
            if m <= n:
                rows = slice(start, start + width)
                entries = queries.rmatmat(np.eye(m, width, -start)).T
            else:
                rows = slice(0, m)
                entries = queries.matmat(np.eye(n, width, -start))
            centred = entries - levels[rows, None]
            for c in range(order + 1):
                total[c, rows] += (centred**c).sum(axis=1)
        return total * levels ** np.arange(order, -1, -1)[:, None] / float(n) ** order


class DenseFactorSplit(DenseSplit):
    """An optimised factor: an integer matrix of full column rank."""

    def __init__(self, factor: Factor) -> None:
        self.factor, self._inverse = factor, inverse_array(inverse_gram(factor))
        ones = np.ones(factor.shape[1])
        g = self._inverse.sum(axis=0)
        for _ in range(REFINED):  # rows of the inverse nearly cancel where A hardly sees some codes
            g = g + self._inverse @ (ones - factor.rmatvec(factor.matvec(g)))
        self.mu = float(g.sum())
        self._z: Floats = g / self.mu
        self.reading = factor.matvec(self.z)

    @property
    def z(self) -> Floats:
        return self._z

    @cached_property
    def remainder(self) -> Floats:
        return np.asarray(self._inverse / self.mu - np.outer(self.z, self.z))

    @cached_property
    def _recovery(self) -> Floats:
        return np.asarray(self.factor.matmat(self.remainder).T)

    def recover(self, answers: Floats) -> Floats:
        counts = self._solver(answers)
        return np.asarray((counts - np.outer(self.z, counts.sum(axis=0))) / self.mu)

    @cached_property
    def _solver(self) -> Callable[[Floats], Floats]:
        return least_squares(self.factor)

    def moments(self, queries: Factor, order: int) -> Floats:
        m, rows = queries.shape[0], self.factor.shape[0]
        total, step = np.zeros((order + 1, m)), max(1, ROW_CHUNK // max(m, 1))
        for start in range(0, rows, step):
            remainders = queries.matmat(self._recovery[:, start : start + step])
            reading = self.reading[start : start + step]
            power = np.ones_like(remainders)
            for c in range(order + 1):
                total[c] += power @ reading ** (order - c)
                power *= remainders
        return total * self.levels(queries) ** np.arange(order, -1, -1)[:, None]

    def patterns(self, queries: Factor) -> "Patterns":
        remainders = queries.matmat(self._recovery)
        return _each_a_pattern(self.levels(queries), remainders, self.reading)


def _each_a_pattern(levels: Floats, remainders: Floats, reading: Floats) -> Patterns:
    """Return every query as a pattern of its own, over every row of the measured factor."""
    return Patterns(
        kinds=np.arange(len(remainders)),
        levels=levels,
        remainders=remainders,
        reading=reading,
        numbers=np.ones((1, len(reading))),
    )


def split_by(factor: Factor) -> FactorSplit:
    """Return the split of a factor of full column rank."""
    if isinstance(factor, Identity):
        return CellSplit(factor.shape[1])
    return DenseFactorSplit(factor)


Pair = tuple[float, float]


def uniform_variances(
    splits: Sequence[Split | None], share: Callable[[Subset], float], blocks: Iterable[Block]
) -> dict[int, float]:
    """Return the variance under unit noise of every block, by position, where it is one number.

    Splits are None for attributes of one class. A share is the variance of what is measured of a
    set beyond its subsets.
    """
    pairs_of = _Pairs(splits)
    tables_of = {position: pairs_of.of(block) for position, block in enumerate(blocks)}
    uniform = {position: table for position, table in tables_of.items() if table is not None}
    tables = list(uniform.values())
    below, variances = Below([table.attributes for table in tables]), np.zeros(len(tables))
    shares = np.array([share(b) for b in below.subsets])
    for group in below.groups:
        alike = [tables[place] for place in group.positions.tolist()]
        pairs = np.array([table.pairs for table in alike]).reshape(*group.members.shape, 2)
        scales = [t.scale if isinstance(t.scale, float) else 1.0 for t in alike]
        products = outer_products(list(pairs.transpose(1, 0, 2)), np.array(scales))
        for row, table in zip(products, alike, strict=True):
            if not isinstance(table.scale, float):
                row *= table.scale
        variances[group.positions] = (products * shares[group.below]).sum(axis=1)
    return dict(zip(uniform, variances.tolist(), strict=True))


@dataclass(frozen=True)
class _Table:
    """A block's attributes of several classes, (u_i^2, v_i) of each, and a scale of their products.

    The scale is one number, or one for every subset in the order of an outer product; u_i is one
    for what is counted, since the scale holds the differences of the threshold.
    """

    attributes: Subset
    pairs: list[Pair]
    scale: float | Floats


class _Pairs:
    """u and v of each factor, computed once; None where a table has no single variance."""

    def __init__(self, splits: Sequence[Split | None]) -> None:
        self.splits = splits
        self.known: dict[tuple[int, Hashable], Pair | None] = {}

    def of(self, block: Block) -> _Table | None:
        inside, values, scale = [], [], 1.0
        single_levels: list[float] = []  # of what is counted on attributes of one class
        split_levels: list[float | None] = []  # of what is counted; None for what must hold
        for i, factor, counted in zip(block.attributes, block.factors, block.counted, strict=True):
            pair, varies = self._pair(i, factor), counted and not block.is_product
            if pair is None:
                return None
            level, variance = pair
            if self.splits[i] is not None:
                inside.append(i)
                split_levels.append(level if varies else None)
                values.append((1.0 if varies else level**2, variance))
            elif varies:
                single_levels.append(level)
            else:
                scale *= level**2
        if block.is_product:
            return _Table(tuple(inside), values, scale)
        spread = _differences(single_levels, split_levels, block.at_least) ** 2
        return _Table(tuple(inside), values, scale * spread)

    def _pair(self, i: int, factor: Factor) -> Pair | None:
        key = (i, factor.key)
        if key not in self.known:
            split, vectors = self.splits[i], (factor.row_sums, np.zeros(1))
            if split is not None:
                vectors = split.levels(factor), split.variances(factor)
            level, variance = map(distinct_or_all, vectors)
            single = len(level) == len(variance) == 1
            self.known[key] = (float(level[0]), float(variance[0])) if single else None
        return self.known[key]


def _differences(
    single_levels: Sequence[float], split_levels: Sequence[float | None], r: int
) -> Floats:
    """Return the differences of a threshold in all subsets of the attributes with a level.

    Returns:
        One number for every subset of the attributes of the second list: (2^w,).
    """
    levels = [level for level in split_levels if level is not None]
    values = differences([*single_levels, *levels], r)[: 1 << len(levels), 0]
    values = values.reshape([1 if level is None else 2 for level in split_levels])
    return np.broadcast_to(values, (2,) * len(split_levels)).ravel()


Rest = Callable[[Factor], Floats]
"""q H q' of every query on one attribute, or the sum of higher powers of q R."""


@dataclass(frozen=True, eq=False)
class Side:
    """Queries on one attribute: one entry where all are alike."""

    levels: Floats  # q z
    rest: Floats  # 0 where the attribute has one class
    one_class: bool  # whether it has

    @property
    def key(self) -> Hashable:
        """A value equal for sides that are equal number by number."""
        return self.levels.tobytes(), self.rest.tobytes(), self.one_class


def side_of(split: Split | None, factor: Factor, rest: Rest | None = None) -> Side:
    """Return a factor's side; its rest is q H q' unless it is another."""
    if split is None or factor.shape[1] == 1:
        return Side(distinct_or_all(factor.row_sums.astype(np.float64)), np.zeros(1), True)
    rest = rest or split.variances
    return Side(distinct_or_all(split.levels(factor)), distinct_or_all(rest(factor)), False)


class SplitStrategy(Strategy):
    """Estimates are sums of components, one for each set of attributes, which are independent."""

    @property
    @abstractmethod
    def splits(self) -> Sequence[Split | None]:
        """The split of every attribute's queries; there may be none for one class."""

    @abstractmethod
    def component_variance(self, b: Subset) -> float:
        """Return the variance of what is measured of b beyond its subsets, under unit noise.

        Raises:
            UnsupportedWorkloadError: no measurement holds all attributes of b.
        """

    def uniform_variances(
        self, blocks: Sequence[Block], positions: Sequence[int | None]
    ) -> dict[int, float]:
        splits = [
            None if n == 1 else split for n, split in zip(self.shape, self.splits, strict=True)
        ]
        return uniform_variances(splits, self.component_variance, blocks)

    def covariances(self, pairs: QueryPairs) -> Floats:
        if not (self.supports(pairs.left.block) and self.supports(pairs.right.block)):
            raise UnsupportedWorkloadError("no measurement holds the attributes that are asked for")
        return pairs.over_products(self._covariances)

    def _covariances(self, pairs: QueryPairs) -> Floats:
        """Return the sum over the b that both queries look at of what they share in b.

        That is share_b prod_{i in b} q_i H_i r_i' times the levels of all other predicates.
        """
        apart: Floats = np.ones(())
        shared: list[tuple[int, Floats]] = []
        insides: dict[tuple[int, int], Floats] = {}
        blocks = pairs.left.block, pairs.right.block
        for i in sorted({i for block in blocks for i in block.attributes}):
            (F, rows), (G, others) = sides = pairs.sides(i)
            split = self.splits[i]
            if split is None or self.shape[i] == 1:
                apart = apart * sums_of_pairs(*sides)
                continue
            level = split.levels(F)[rows] * split.levels(G)[others]
            if all(i in block.attributes for block in blocks):
                shared.append((i, level))
            else:
                apart = apart * level
        values = np.zeros(pairs.shape)
        for b in subsets_of(tuple(i for i, _ in shared)):
            term = self.component_variance(b) * apart
            for i, level in shared:
                if i not in b:
                    term = term * level
                    continue
                split = self.split_in(b, i)
                if (i, id(split)) not in insides:
                    form = SymmetricForm(split.remainder_times, split.variances)
                    insides[i, id(split)] = form.of_pairs(*pairs.sides(i))
                term = term * insides[i, id(split)]
            values += term
        return values

    def split_in(self, b: Subset, i: int) -> Split:
        """Return the split of an attribute of more than one class within component b."""
        split = self.splits[i]
        if split is None:
            raise ValueError(f"attribute {i} has one class and no split")
        return split

    def rest_in(self, b: Subset, i: int, order: int) -> Rest:
        """Return an attribute's rest within component b; that of marginals is for order 2."""
        return self.split_in(b, i).variances

    @cached_property
    def _known(self) -> dict[tuple[int, Hashable, int], Side]:
        return {}

    @cached_property
    def _distinct(self) -> dict[Hashable, Side]:
        return {}

    def _side(self, b: Subset, i: int, factor: Factor, order: int) -> Side:
        """Return a factor's side within b, one object for all that are equal number by number."""
        split = None if self.splits[i] is None else self.split_in(b, i)
        key = (id(split), factor.key, order)
        if key not in self._known:
            side = side_of(split, factor, None if split is None else self.rest_in(b, i, order))
            self._known[key] = self._distinct.setdefault(side.key, side)
        return self._known[key]

    def _sides(self, block: Block, order: int) -> list[Side]:
        pairs = zip(block.attributes, block.factors, strict=True)
        return [self._side((), i, factor, order) for i, factor in pairs]

    def likeness(self, block: Block) -> Hashable:
        sides = self._sides(block, 2)
        pairs = zip(block.attributes, sides, strict=True)
        below = subsets_of(tuple(i for i, side in pairs if not side.one_class))
        shares = tuple(map(self.component_variance, below))
        return *sides, block.row_shape, block.counted, block.at_least, shares

    def split_power_sums(self, block: Block, order: int) -> RowTerms:
        """Return the sum over b <= S of component b's share of every query's power sum."""
        factors = dict(zip(block.attributes, block.factors, strict=True))

        def rests_in(b: Subset) -> dict[int, Floats]:
            return {i: self._side(b, i, factors[i], order).rest for i in b}

        terms: RowTerms = []
        sides = self._sides(block, order)
        for b, powers in split_terms(block, sides, order=order, rests_in=rests_in):
            if powers:
                share = self.component_variance(b) ** (order / 2)
                terms += [(coef * share, vectors) for coef, vectors in powers]
        return terms


def split_terms(
    block: Block,
    sides: Sequence[Side],
    *,
    order: int,
    rests_in: Callable[[Subset], Mapping[int, Floats]] | None = None,
) -> Iterator[tuple[Subset, RowTerms]]:
    """Yield every b <= S with prod_{i in b} rest_i prod_{i not in b} (q z)^order of every query.

    Where an r-of-k block takes all ones instead of the predicate, q z is 1 and the rest is 0.

    Args:
        block: whose queries.
        sides: of its factors.
        order: of the powers.
        rests_in: the rests of b's attributes within b; by default those of the sides.
    """
    pairs = zip(block.attributes, sides, strict=True)
    inside = {i: side.rest for i, side in pairs if not side.one_class}
    powers = SplitPowers(block, [side.levels for side in sides], inside, order=order)
    for b in subsets_of(tuple(inside)):
        yield b, powers.terms(b, rests_in(b) if rests_in else inside)


class Core(Split, Protocol):
    """The measured rows of one attribute, their variances and their recovery."""

    factor: Factor

    def power_sums(self, queries: Factor, order: int) -> Floats:
        """Return the sum of even powers of q R of every query: (m,)."""

    def traces(self, V: Matrix) -> tuple[float, float]:
        """Return (z'Vz, tr(H V)) for the Gram V of a workload's matrix."""

    def recover(self, answers: Floats) -> Floats:
        """Return R times the core's answers. answers: (rows, k) -> (n, k)."""


class CenteredCore(UniformSplit):
    """n I - 11': optimal where the workload treats all codes alike ([MATH] 4)."""

    def __init__(self, n: int) -> None:
        super().__init__(n, 1 / n**2)
        self.factor: Factor = Centered(n)

    def power_sums(self, queries: Factor, order: int) -> Floats:
        mean = queries.row_sums / self.n
        sums = [
            math.comb(order, k) * (-mean) ** k * queries.row_powers(order - k)
            for k in range(order + 1)
        ]
        return np.asarray(np.maximum(np.sum(sums, axis=0), 0.0) / float(self.n) ** order)

    def traces(self, V: Matrix) -> tuple[float, float]:
        level = total_sum(V) / self.n**2
        return level, (trace(V) - self.n * level) / self.n**2

    def recover(self, answers: Floats) -> Floats:
        return np.asarray((answers - answers.mean(axis=0, keepdims=True)) / self.n)


class DenseCore(DenseSplit):
    """An optimised core: an integer matrix of n - 1 rows and full row rank."""

    def __init__(self, matrix: Ints) -> None:
        if matrix.shape[0] != matrix.shape[1] - 1:
            raise ValueError(f"a core of {matrix.shape[1]} classes has {matrix.shape[0]} rows")
        self.factor: Factor = Dense(matrix)

    def is_null(self, spread: Ints) -> bool:
        """Return whether a vector of integers is the null vector: exactly, in whole numbers."""
        if len(spread) != self.factor.shape[1]:
            return False
        rows, entries = self.factor.dense().tolist(), spread.tolist()
        return all(sum(map(operator.mul, row, entries)) == 0 for row in rows)

    @cached_property
    def _parts(self) -> tuple[Floats, Floats]:
        F = self.factor.dense().astype(np.float64)
        U, s, Vt = np.linalg.svd(F / np.abs(F).max(), full_matrices=True)
        z, plus = Vt[-1], (Vt[:-1].T / s) @ U.T / np.abs(F).max()
        if s[-1] < 1e-8 * s[0] or abs(z.sum()) < 1e-8:
            raise ValueError("the rows of a core must be independent, of the total too")
        z = z / z.sum()
        return z, plus - np.outer(z, plus.sum(axis=0))

    @cached_property
    def z(self) -> Floats:
        return self._parts[0]

    @cached_property
    def remainder(self) -> Floats:
        R = self._parts[1]
        return np.asarray(R @ R.T)

    def power_sums(self, queries: Factor, order: int) -> Floats:
        return queries.row_power_sums(self._parts[1], order)

    def traces(self, V: Matrix) -> tuple[float, float]:
        return trace_with(np.outer(self.z, self.z), V), trace_with(self.remainder, V)

    def recover(self, answers: Floats) -> Floats:
        return np.asarray(self._parts[1] @ answers)
