"""Least-squares estimates from noisy values, shape by shape and table by table.

Products and marginals have closed forms on small tensors: a table over attributes S is built from
the measured subsets alone, and the count vector of the whole domain never exists unless the
strategy itself spans it. A union of products is solved as one where its joint inverse fits in
memory, and part by part beyond that, as the expected errors assume.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Protocol, overload

import numpy as np
from scipy.linalg import solve_triangular

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block, broadcast_sum, kron_apply, marginal, runs_alike
from dpquery.reconstruction.intervals import half_widths
from dpquery.spec.spec import Table
from dpquery.strategy.algebra.query_powers import QueryPairs
from dpquery.strategy.algebra.subsets import Subset, subsets_of
from dpquery.strategy.shapes.cells import CellClassesStrategy, OrbitsStrategy
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.informed import InformedStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import CoarserStrategy, UnionStrategy
from dpquery.strategy.shapes.splits import CenteredCore, SplitStrategy
from dpquery.strategy.strategy import Strategy, wide_attributes

MAX_KEPT_NUMBERS = 1 << 16  # numbers of a component that is kept to serve other tables
ROOM = 1 << 24  # numbers of all components that are kept
WIDE = 8  # attributes of a measured table whose subsets are not all read
SHAPES_KEPT = 1 << 10  # of measured tables whose contractions are kept


class Estimates(Protocol):
    """Unbiased answers to any block that the measurements support."""

    def answer(self, block: Block, position: int | None) -> Floats:
        """Return the answers of a block, of shape block.row_shape.

        The position is its place in the workload; None for one that the workload does not hold.
        """


def reconstruct(strategy: Strategy, answers: Sequence[Floats]) -> Estimates:
    """Return estimates from the noisy answers of each of a strategy's measurements, as floats.

    Args:
        strategy: what was measured.
        answers: (m_k,) noisy answers of measurement k, in units of the integer strategy.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.
    """
    return ESTIMATES[type(strategy)](strategy, answers)


class _CellEstimates:
    """Estimated cells of the measured attributes, of one measurement: worked out when asked for."""

    def __init__(
        self, strategy: ProductStrategy | OrbitsStrategy, answers: Sequence[Floats]
    ) -> None:
        self.strategy, self.answers = strategy, answers

    @cached_property
    def cells(self) -> Floats:
        (rows,) = self.strategy.measurements
        return self.strategy.cells(self.answers[0] / rows.weight)

    def answer(self, block: Block, position: int | None) -> Floats:
        # attributes of one class have no axis in the cells
        attributes = self.strategy.attributes
        beyond = tuple(k for k, i in enumerate(attributes) if i not in block.attributes)
        return block.apply(self.cells.sum(axis=beyond).reshape(block.table_shape))


class _SplitEstimates(ABC):
    """Tables as sums over b below S of a component over b, spread over the other attributes."""

    def __init__(self, strategy: SplitStrategy, answers: Sequence[Floats]) -> None:
        self.strategy, self.shape, self.answers = strategy, strategy.shape, answers
        self.measurements = strategy.measurements
        self.places = {rows.block.attributes: k for k, rows in enumerate(self.measurements)}
        self._kept: dict[Subset, Floats] = {}
        self._spreads: dict[int, Floats] = {}
        self._room = ROOM

    @abstractmethod
    def _component(self, b: Subset) -> Floats:
        """Return what the measurements say of b beyond its subsets, as a tensor over b."""

    def answer(self, block: Block, position: int | None) -> Floats:
        return next(self.in_order([block]))

    def in_order(self, blocks: Sequence[Block]) -> Iterator[Floats]:
        """Yield the answers of each block in order, of neighbours over like attributes at once."""
        for alike in runs_alike(blocks, self._likeness, lambda block: math.prod(block.table_shape)):
            tables = self._tables([block.attributes for block in alike])
            yield from (block.apply(table) for block, table in zip(alike, tables, strict=True))

    def _likeness(self, block: Block) -> Hashable:
        """Return what is equal for blocks over attributes that are split alike.

        Sums along a single axis of several codes may round otherwise beside others.
        """
        splits, several = self.strategy.splits, wide_attributes(block)
        return tuple([splits[i] for i in block.attributes]) if len(several) > 1 else block

    def _tables(self, sets: Sequence[Subset]) -> Floats:
        """Return the tables over sets of attributes that are split alike, along a first axis."""
        S = sets[0]
        several = tuple(k for k, i in enumerate(S) if self.shape[i] > 1)
        parts = {}
        for axes in subsets_of(several):
            of = [tuple([b[k] for k in axes]) for b in sets]
            found = self._components(of) if axes == several else np.stack([*map(self._part, of)])
            sizes = [self.shape[i] if k in axes else 1 for k, i in enumerate(S)]
            parts[0, *(k + 1 for k in axes)] = found.reshape(len(sets), *sizes)
        return broadcast_sum(
            parts, [1, *(self._spread(i, len(S) - 1 - k) for k, i in enumerate(S))]
        )

    def _components(self, sets: Sequence[Subset]) -> Floats:
        """Return the components of sets that are split alike, writable, along a first axis."""
        found = [np.ascontiguousarray(self._component(b)) for b in sets]
        return found[0][None] if len(found) == 1 else np.stack(found)

    def _part(self, b: Subset) -> Floats:
        """Return a component of smaller sets; small ones are kept, as most tables share."""
        if b in self._kept:
            return self._kept[b]
        component = self._component(b)
        if component.size <= min(MAX_KEPT_NUMBERS, self._room):
            self._room -= component.size
            self._kept[b] = component
        return component

    def _spread(self, i: int, later: int) -> Floats:
        """Return z of an attribute along an axis before some others, or one number for all."""
        if i not in self._spreads:
            split = self.strategy.splits[i]
            self._spreads[i] = np.ones(1) if split is None else split.spread(np.ones((1, 1)))
        return self._spreads[i].reshape(-1, *[1] * later)

    def _noisy(self, a: Subset) -> Floats:
        place = self.places[a]
        return self.answers[place].reshape(self.measurements[place].block.row_shape)


class _MarginalEstimates(_SplitEstimates):
    """Components from every measured subset a that holds b, weighted by the algebra."""

    strategy: MarginalsStrategy

    def _component(self, b: Subset) -> Floats:
        """Return sum_{a >= b} kron_{i in b} H_i A_i' kron_{i in a - b} z_i'A_i' y_a / lambda_b."""
        share = self.strategy.component_variance(b)
        splits, weights = [self.strategy.splits[i] for i in b], self.strategy.weights
        large = math.prod(split.factor.shape[0] for split in splits) > MAX_KEPT_NUMBERS
        total = np.zeros(()) if large else self._readings.get(b, np.zeros(()))
        for a in self._large if large else self._wide:
            if set(b) < set(a):
                total = total + self._read(weights[a] * self._noisy(a), a, b)
        if b in weights:
            total = total + weights[b] * self._noisy(b)
        recovered = kron_apply([split.recover for split in splits], total)
        return np.multiply(recovered, share, out=recovered if b else None)

    @cached_property
    def _large(self) -> list[Subset]:
        """The measured sets of so many answers that a component below them may be large."""
        return [
            rows.block.attributes
            for rows in self.measurements
            if rows.block.queries > MAX_KEPT_NUMBERS
        ]

    @cached_property
    def _wide(self) -> list[Subset]:
        """The measured sets that have too many subsets to read them all."""
        return [a for a in self.places if len(a) > WIDE]

    @cached_property
    def _readings(self) -> dict[Subset, Floats]:
        """Sums over all other measured a > b of what they say of b, for every b of few answers.

        Every a is read once: each smaller set from the smallest reading of one more attribute.
        """
        readings: dict[Subset, Floats] = {}
        for a, weight in self.strategy.weights.items():
            if len(a) > WIDE:
                continue
            noisy = weight * self._noisy(a)
            read = {tuple(range(len(a))): noisy}
            for axes, parent, axis in _contractions(noisy.shape):
                reading = self.strategy.splits[a[parent[axis]]].reading
                read[axes] = _contracted(read[parent], axis, reading)
                if read[axes].size <= MAX_KEPT_NUMBERS:
                    b = tuple([a[k] for k in axes])
                    readings[b] = readings[b] + read[axes] if b in readings else read[axes]
        return readings

    def _read(self, noisy: Floats, a: Subset, b: Subset) -> Floats:
        """Contract the attributes of a that are not in b with their readings, last ones first."""
        for axis in reversed(range(len(a))):
            if a[axis] not in b:
                noisy = _contracted(noisy, axis, self.strategy.splits[a[axis]].reading)
        return noisy


@lru_cache(maxsize=SHAPES_KEPT)
def _contractions(shape: tuple[int, ...]) -> list[tuple[Subset, Subset, int]]:
    """Return how every smaller set of a tensor's axes is reached by contracting one axis.

    Returns:
        Larger sets first: the axes that are left, those of the smallest tensor of one axis more,
        and the place among these of the one to contract.
    """
    every = tuple(range(len(shape)))
    steps = []
    for axes in sorted(subsets_of(every), key=len, reverse=True)[1:]:
        gone = min((k for k in every if k not in axes), key=lambda k: shape[k])
        parent = tuple(sorted((*axes, gone)))
        steps.append((axes, parent, parent.index(gone)))
    return steps


def _contracted(tensor: Floats, axis: int, reading: Floats) -> Floats:
    shape = tensor.shape
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    flat = tensor.reshape(outer, len(reading), inner)
    contracted = flat[:, :, 0] @ reading if inner == 1 else reading @ flat
    return contracted.reshape(shape[:axis] + shape[axis + 1 :])


class _ResidualEstimates(_SplitEstimates):
    """Components kron_{i in b} R_i y_b: nothing is measured twice."""

    strategy: ResidualStrategy

    def _component(self, b: Subset) -> Floats:
        scale = 1 / self.strategy.weights[b]
        recovered = kron_apply([self.strategy.split_in(b, i).recover for i in b], self._noisy(b))
        return np.multiply(recovered, scale, out=recovered if b else None)

    def _components(self, sets: Sequence[Subset]) -> Floats:
        cores = [self.strategy.split_in(sets[0], i) for i in sets[0]]
        if len(sets) == 1 or not all(isinstance(core, CenteredCore) for core in cores):
            return super()._components(sets)  # products round otherwise beside others
        # a centred core is that of all blocks: no block has one of its own in its place
        noisy = np.stack([self._noisy(b) for b in sets])
        recovered = kron_apply([None, *(core.recover for core in cores)], noisy)
        scales = [1 / self.strategy.weights[b] for b in sets]
        recovered *= np.reshape(scales, (-1, *[1] * len(cores)))
        return recovered


class _DirectEstimates:
    def __init__(self, strategy: DirectStrategy, answers: Sequence[Floats]) -> None:
        self.strategy, self.noisy = strategy, answers

    def answer(self, block: Block, position: int | None) -> Floats:
        if position is not None:
            return (self.noisy[position] / self.strategy.weights[position]).reshape(block.row_shape)
        combined = self.strategy.combined(block)
        measured = self.strategy.workload.blocks[combined.place]
        return combined.answer(self.noisy[combined.place].reshape(measured.row_shape), block)


class _UnionEstimates:
    """All parts together where they can be solved as one, else each block from one part."""

    def __init__(self, strategy: UnionStrategy, answers: Sequence[Floats]) -> None:
        self.strategy, self.answers = strategy, answers
        ends = np.cumsum([len(part.measurements) for part in strategy.parts]).tolist()
        self.parts = [
            reconstruct(part, [noisy / weight for noisy in answers[start:end]])
            for part, weight, start, end in zip(
                strategy.parts, strategy.weights, [0, *ends[:-1]], ends, strict=True
            )
        ]

    @cached_property
    def projected(self) -> tuple[Floats, ...]:
        """The noisy answers of all parts on the orthonormal rows of the joint system."""
        if self.strategy.joint is None:
            raise ValueError("the parts are too large to be solved together")
        pairs = zip(self.answers, self.strategy.measurements, strict=True)
        shaped = [noisy.reshape(rows.block.row_shape) for noisy, rows in pairs]
        return self.strategy.joint.project(shaped)

    def answer(self, block: Block, position: int | None) -> Floats:
        joint = self.strategy.joint_for(block)
        if joint is None:
            part, place = self.strategy.serving_part(block, position)
            return self.parts[part].answer(block, place)
        return joint.answer(block, self.projected)


class _CellClassesEstimates:
    """The inner estimates, asked for the queries over classes of cells."""

    def __init__(self, strategy: CellClassesStrategy, answers: Sequence[Floats]) -> None:
        self.strategy, self.inner = strategy, reconstruct(strategy.inner, answers)

    def answer(self, block: Block, position: int | None) -> Floats:
        return self.inner.answer(self.strategy.over(block), None).reshape(block.row_shape)


class _CoarserEstimates:
    """What the strategy over classes makes of the same answers."""

    def __init__(self, strategy: CoarserStrategy, answers: Sequence[Floats]) -> None:
        self.strategy, self.inner = strategy, reconstruct(strategy.inner, answers)

    def answer(self, block: Block, position: int | None) -> Floats:
        return self.inner.answer(self.strategy.known(block), position)


class _InformedEstimates:
    """The inner estimates, moved by what they are off from public facts."""

    def __init__(self, strategy: InformedStrategy, answers: Sequence[Floats]) -> None:
        self.strategy, self.inner = strategy, reconstruct(strategy.inner, answers)

    @cached_property
    def surprise(self) -> Floats:
        """R^-1 of known answers less estimated ones, R the root of their covariance: (n,)."""
        return discrepancies(self.strategy, self.inner)

    def answer(self, block: Block, position: int | None) -> Floats:
        answers = np.array(self.inner.answer(block, position), dtype=np.float64).ravel()
        for rows in self.strategy.chunks(block, position):
            answers[rows.places] += self.surprise @ self.strategy.explained(rows)
        self.strategy.state(answers, block, position)
        return answers.reshape(block.row_shape)


def discrepancies(strategy: InformedStrategy, estimates: Estimates) -> Floats:
    """Return known answers less estimated ones, decorrelated: (n,) of variance noise_std^2 each."""
    if not strategy.conditioned:
        return np.zeros(0)
    off = [
        each.values
        - estimates.answer(each.rows.block, each.rows.position).ravel()[each.rows.places]
        for each in strategy.equalities
    ]
    return np.asarray(solve_triangular(strategy.root, np.concatenate(off), lower=True))


ESTIMATES: Mapping[type[Strategy], Callable[..., Estimates]] = {
    ProductStrategy: _CellEstimates,
    MarginalsStrategy: _MarginalEstimates,
    ResidualStrategy: _ResidualEstimates,
    UnionStrategy: _UnionEstimates,
    DirectStrategy: _DirectEstimates,
    CellClassesStrategy: _CellClassesEstimates,
    CoarserStrategy: _CoarserEstimates,
    OrbitsStrategy: _CellEstimates,
    InformedStrategy: _InformedEstimates,
}
"""What makes estimates of the noisy answers of each shape."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured, with noise, and what least squares makes of it."""

    strategy: Strategy  # the measurements, with what they are answered by
    noisy: Sequence[Floats]  # (m_k,) the noisy answers of each, in units of the integer strategy
    noise_std: float  # standard deviation of the noise on each measured row

    @cached_property
    def estimates(self) -> Estimates:
        """The least-squares solution."""
        return reconstruct(self.strategy, self.noisy)

    @cached_property
    def total(self) -> float:
        """The number of records as it is estimated; zero if that is negative."""
        everything = marginal(self.strategy.shape, ())
        return max(float(self.estimates.answer(everything, None)), 0.0)

    def answers(self, blocks: Sequence[Block], positions: Sequence[int | None]) -> Iterator[Floats]:
        """Yield the estimates of each block in order, as `Estimates.answer` has them."""
        if isinstance(self.estimates, _SplitEstimates):
            return self.estimates.in_order(blocks)
        return map(self.estimates.answer, blocks, positions)

    def covariances(self, pairs: QueryPairs) -> Floats:
        """Return the covariances of estimates, in counts squared."""
        return np.asarray(self.strategy.covariances(pairs) * self.noise_std**2)


class MeasuredValues(Sequence[Floats]):
    """The values of each measurement, worked out when they are looked at.

    Of a strategy of very many tables some are tried, and what is measured of the others is not
    looked at, or once. Values are kept as far as there is room; later ones are worked out again.
    """

    def __init__(self, count: int, values: Callable[[int], Floats], *, room: int = 0) -> None:
        """Take the number of measurements, and what gives those of one by its place, every time.

        At most so many numbers are kept as there is room for.
        """
        self._count, self._values, self._room = count, values, room
        self._kept: dict[int, Floats] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Floats: ...
    @overload
    def __getitem__(self, place: slice) -> list[Floats]: ...
    def __getitem__(self, place: int | slice) -> Floats | list[Floats]:
        """Return the values of one measurement, or of several."""
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        number = range(self._count)[place]
        if number in self._kept:
            return self._kept[number]
        values = self._values(number)
        if values.size <= self._room:
            self._room -= values.size
            self._kept[number] = values
        return values


def noisy_values(
    values: Ints, sizes: Sequence[int], *, shift: int, step: Fraction = Fraction(1)
) -> MeasuredValues:
    """Return noisy answers in units of the integer strategy, as floats.

    A release may have measured 10^8 values: the only copy of them all is the integers.

    Args:
        values: (m,) in steps of 2^shift.
        sizes: how many belong to each measurement.
        shift: see there.
        step: what 1 in the tables that were measured is worth in answers.
    """
    ends, unit = [0, *accumulate(sizes)], 2.0**shift * float(step)
    if ends[-1] != len(values):
        raise ValueError(f"{len(values)} values for measurements of {ends[-1]}")
    return MeasuredValues(
        len(sizes), lambda place: np.asarray(values[ends[place] : ends[place + 1]] * unit)
    )


@dataclass(frozen=True, eq=False)
class TableAnswers:
    """Answers of one table in row order."""

    table: Table  # the table of the spec that these answer
    estimate: Floats  # (m,) estimates, in counts; unbiased where there is a standard error
    # (m,) standard errors of the noise, in counts; None where the answers have none, as those from
    # relaxed rows: their error depends on the data
    std_error: Floats | None
    # (m,) half widths of the noise interval at the release's confidence level; None where there is
    # no standard error
    half_width: Floats | None
    # (m,) values of each extra column asked for, in order; None where the table has none
    extra: tuple[Floats | Ints | None, ...] = ()
    # (m,) 0 for what was measured, 1 for what is impossible by a public fact, 2 for what is known
    # by one; None where there are no facts
    stated: Ints | None = None


def table_answers(
    table: Table,
    block: Block,
    strategy: Strategy,
    estimate: Floats,
    *,
    position: int | None,
    std_errors: Floats,
    level: float,
) -> TableAnswers:
    """Return the estimates of a table with their standard errors and noise intervals.

    Standard errors are not copied: the same memory may serve other tables.
    """
    half = half_widths(strategy, block, std_errors, position=position, level=level)
    return TableAnswers(table, estimate.ravel(), std_errors, half)


def positions_of(queried: Sequence[Block], blocks: Sequence[Block]) -> tuple[int | None, ...]:
    """Return for each block the position of one with the same queries; None where there is none."""
    known = {_identity(block): place for place, block in reversed(list(enumerate(blocks)))}
    return tuple(known.get(_identity(block)) for block in queried)


def _identity(block: Block) -> tuple[object, ...]:
    keys = tuple(factor.key for factor in block.factors)
    return block.attributes, block.counted, block.at_least, keys
