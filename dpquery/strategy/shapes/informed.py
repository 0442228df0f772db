"""A strategy whose answers are conditioned on public facts: linear equalities that hold exactly.

Let y be unbiased answers with the covariance C, and F y = v what is known of some of them. Then
y - C F'(F C F')^-1 (F y - v) is unbiased, has the covariance C - C F'(F C F')^-1 F C, and errs
least among all y + L (F y - v). Of answers by least squares it is the solution of least squares
under the equalities ([MATH] 25). What is measured stays what it was, and so do sensitivity, noise
and charge.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_FACT_ROWS, MAX_FACT_WORK
from dpquery.operators.blocks import Block, Workload, marginal
from dpquery.operators.compile import IMPOSSIBLE, KnownAnswers, PublicFacts
from dpquery.operators.factors import ROW_CHUNK
from dpquery.strategy.algebra.query_powers import (
    Contract,
    QueryPairs,
    QueryRows,
    RowSums,
    SymmetricForm,
    expand,
)
from dpquery.strategy.strategy import Noise, Strategy, WeightedBlock, wide_attributes
from dpquery.untrusted.json_values import Json, JsonValue

UNSOLVABLE = "what is publicly known cannot be solved for in floating-point numbers"
DEPENDENT = 1e-9  # of the largest: what is left of a query that others determine
_SETTLED = 1e-10  # of its variance: what is left to an answer that facts determine


@dataclass(frozen=True, eq=False)
class Equalities:
    """Answers that are known."""

    source: str  # of the fact
    rows: QueryRows  # which
    values: Floats  # (n,) what they are


@dataclass(frozen=True, eq=False)
class InformedStrategy(Strategy):
    """The answers of a strategy, conditioned on public facts.

    A plan holds the strategy alone: the facts are the spec's.
    """

    kind: ClassVar[str] = "informed"
    may_be_part: ClassVar[bool] = False

    inner: Strategy  # what is measured, and how it answers
    facts: PublicFacts  # what is known
    workload: Workload  # the plan's
    left_out: frozenset[str] = frozenset()  # sources that are not relied on

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", self.inner.shape)

    @property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        return self.inner.measurements

    @property
    def spans_its_sets(self) -> bool:
        return self.inner.spans_its_sets

    def supports(self, block: Block) -> bool:
        return self.inner.supports(block)

    def serves(self, workload: Workload) -> bool:
        return self.inner.serves(workload)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of what is known, in order, those that are not relied on too."""
        return self.facts.sources

    def without(self, source: str) -> Self:
        """Return the strategy that does not rely on a source."""
        return replace(self, left_out=self.left_out | {source})

    @cached_property
    def equalities(self) -> tuple[Equalities, ...]:
        """The equalities that answers are conditioned on: none follows from the others."""
        collected: list[Equalities] = []
        for each in self._collected():
            collected = with_independent(collected, each)
        return tuple(collected)

    @property
    def conditioned(self) -> bool:
        """Whether other answers use what is known; else it stands beside them."""
        return bool(self.equalities)

    def relied_on(self, source: str) -> bool:
        """Return whether other answers use what a source says."""
        return any(each.source == source for each in self.equalities)

    @property
    def has_impossible_cells(self) -> bool:
        """Whether some table that is answered has cells that no record is in."""
        return any(
            self._count(block, position) for blocks in self._tables() for block, position in blocks
        )

    @cached_property
    def root(self) -> Floats:
        """The Cholesky factor of the covariance of what is known, under unit noise: (n, n).

        Raises:
            UnsupportedWorkloadError: it is too near to singular for floats.
        """
        sizes = [len(each.values) for each in self.equalities]
        ends, covariance = np.cumsum([0, *sizes]), np.empty((sum(sizes), sum(sizes)))
        for place, each in enumerate(self.equalities):
            part = slice(ends[place], ends[place + 1])
            covariance[:, part] = self._with_equalities(each.rows)
        try:
            root = np.asarray(np.linalg.cholesky((covariance + covariance.T) / 2))
        except np.linalg.LinAlgError:
            raise UnsupportedWorkloadError(UNSOLVABLE) from None
        if np.any(np.diag(root) ** 2 <= _SETTLED * np.diag(covariance)):
            raise UnsupportedWorkloadError(UNSOLVABLE)
        return root

    def explained(self, rows: QueryRows) -> Floats:
        """Return R^-1 Cov(known, rows), R the root: (n, rows), under unit noise."""
        if not self.conditioned:
            return np.zeros((0, len(rows.places)))
        return np.asarray(
            solve_triangular(self.root, self._with_equalities(rows), lower=True, check_finite=False)
        )

    def stated(self, block: Block, position: int | None) -> Ints:
        """Return what is relied on of the queries of a block: (m,).

        That is 1 for those that can count no record, 2 for those that are known otherwise, and 0
        for those that are measured.
        """
        if self._known(position) is not None:
            return np.full(block.queries, 2)
        if IMPOSSIBLE in self.left_out:
            return np.zeros(block.queries, dtype=np.int64)
        return self.facts.zeros(block).astype(np.int64)

    def state(self, answers: Floats, block: Block, position: int | None) -> None:
        """Set the answers of a block that facts state to what they are. answers: (m,)."""
        known = self._known(position)
        if known is not None:
            answers[:] = known.values
        else:
            answers[self.stated(block, position) > 0] = 0.0

    def _known(self, position: int | None) -> KnownAnswers | None:
        known = self.facts.at(position)
        return None if known is None or known.source in self.left_out else known

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowSums | None:
        """Return the variances; None of orders above 2, which have no closed form."""
        if order > 2:
            return None
        before = expand(self.inner.variances(block, position=position), block.row_shape).ravel()
        after = before.copy()
        for rows in self.chunks(block, position):
            explained = self.explained(rows)
            after[rows.places] -= np.einsum("nr,nr->r", explained, explained)
        after[(after <= _SETTLED * before) | (self.stated(block, position) > 0)] = 0.0
        return after.reshape(block.row_shape)

    def covariances(self, pairs: QueryPairs) -> Floats:
        def reduction(lefts: Ints, rights: Ints, contract: Contract) -> Floats:
            return contract(
                self.explained(replace(pairs.left, places=lefts)).T,
                self.explained(replace(pairs.right, places=rights)).T,
            )

        width = max(1, sum(len(each.values) for each in self.equalities))
        out = self.inner.covariances(pairs) - pairs.crossed(width, reduction)
        for rows in (pairs.left, pairs.right):
            out = np.where(self.stated(rows.block, rows.position)[rows.places] > 0, 0.0, out)
        return np.asarray(out)

    def chunks(self, block: Block, position: int | None) -> Iterator[QueryRows]:
        """Yield the rows of a block, so many at a time as take little memory."""
        step = max(1, ROW_CHUNK // max(1, sum(len(each.values) for each in self.equalities)))
        for start in range(0, block.queries, step):
            yield QueryRows(block, np.arange(start, min(start + step, block.queries)), position)

    def encode(self) -> dict[str, JsonValue]:
        """Return the strategy that is measured: facts are not part of it."""
        return self.inner.encode()

    def encode_parameters(self) -> dict[str, JsonValue]:
        return self.inner.encode_parameters()

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        raise ValueError("facts are the spec's")

    def _with_equalities(self, rows: QueryRows) -> Floats:
        """Return the covariance of what is known with some answers: (n, rows)."""
        return np.concatenate(
            [
                self.inner.covariances(
                    QueryPairs(replace(each.rows, places=each.rows.places[:, None]), rows)
                )
                for each in self.equalities
            ]
        )

    def _collected(self) -> list[Equalities]:
        """Return what is known of answers that the strategy gives; none where that is too much."""
        known = [
            self._equalities_of(each)
            for each in self.facts.known
            if each.source not in self.left_out
        ]
        totals = sum(len(each.values) for each in known)
        for blocks in [*self._tables(), []]:
            count = totals + sum(self._count(block, position) for block, position in blocks)
            if count <= MAX_FACT_ROWS and count**2 * self.workload.shape[0] <= MAX_FACT_WORK:
                return [*self._impossible(blocks), *known]
        return []

    def _equalities_of(self, known: KnownAnswers) -> Equalities:
        block, places = self.workload.blocks[known.position], np.arange(len(known.values))
        return Equalities(known.source, QueryRows(block, places, known.position), known.values)

    def _tables(self) -> Iterator[list[tuple[Block, int | None]]]:
        """Yield blocks that hold all impossible cells: those of what is measured, or asked."""
        for sets in (
            [rows.block.attributes for rows in self.inner.measurements],
            [block.attributes for block in self.workload.blocks],
        ):
            distinct = list(dict.fromkeys(sets))
            maximal = [s for s in distinct if not any(set(s) < set(other) for other in distinct)]
            tables = [marginal(self.shape, attributes) for attributes in maximal]
            answered = [table for table in tables if self.inner.supports(table)]
            others = [
                (block, position)
                for position, block in enumerate(self.workload.blocks)
                if not any(
                    set(wide_attributes(block)) <= set(table.attributes) for table in answered
                )
            ]
            yield [*((table, None) for table in answered), *others]

    def _count(self, block: Block, position: int | None) -> int:
        if self.facts.impossible is None or IMPOSSIBLE in self.left_out:
            return 0
        if position is None:
            return self.facts.impossible.count(self.shape, block.attributes)
        return int(self.facts.zeros(block).sum())

    def _impossible(self, blocks: Sequence[tuple[Block, int | None]]) -> Iterator[Equalities]:
        """Yield that the impossible queries of some blocks count no record."""
        if IMPOSSIBLE in self.left_out:
            return
        for block, position in blocks:
            places = np.flatnonzero(self.facts.zeros(block))
            if len(places):
                rows = QueryRows(block, places, position)
                yield Equalities(IMPOSSIBLE, rows, np.zeros(len(places)))


def informed(strategy: Strategy, facts: PublicFacts | None, workload: Workload) -> Strategy:
    """Return a strategy whose answers are conditioned on what is known, if anything is."""
    if facts is None:
        return strategy
    return InformedStrategy(strategy.name, strategy.noise, strategy, facts, workload)


def with_independent(before: list[Equalities], new: Equalities) -> list[Equalities]:
    """Return equalities with those of the new ones that do not follow from them."""
    cross = [inner_products(each.rows, new.rows) for each in before]
    left = inner_products(new.rows, new.rows)
    least = DEPENDENT * float(np.diag(left).max())
    if before:
        whole = np.block([[inner_products(a.rows, b.rows) for b in before] for a in before])
        solved = solve_triangular(np.linalg.cholesky(whole), np.concatenate(cross), lower=True)
        left = left - solved.T @ solved
    if np.diag(left).max() <= least:  # dpstrf takes the first pivot whatever it is
        return before
    _, pivots, rank, _ = dpstrf(left, tol=least, lower=1)
    kept = np.sort(pivots[:rank] - 1)
    rows = replace(new.rows, places=new.rows.places[kept])
    return [*before, Equalities(new.source, rows, new.values[kept])]


def inner_products(left: QueryRows, right: QueryRows) -> Floats:
    """Return q r' of each of some queries with each of others, over the cells of the domain.

    Attributes that neither looks at multiply all by their sizes, and are left out.
    """
    across = replace(left, places=left.places[:, None])
    ones = SymmetricForm(lambda X: X, lambda F: np.asarray(F.row_squares, dtype=np.float64))
    shape = left.block.shape_of_domain

    def of_products(pairs: QueryPairs) -> Floats:
        return pairs.product_of(dict.fromkeys(range(len(shape)), ones))

    products = QueryPairs(across, right).over_products(of_products)
    return np.asarray(products / math.prod(map(float, shape)))
