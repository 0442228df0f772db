"""From noisy measurements to answers, by least squares; nothing here can reach the data.

Products and marginals have closed forms on small tensors: a table over attributes S is built from
the measured subsets alone, and the count vector of the whole domain never exists unless the
strategy itself spans it. A union of products is solved globally by LSMR while its domain fits in
memory, and part by part beyond that.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Protocol, assert_never

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsmr

from dpquery.exceptions import ConvergenceError
from dpquery.operators.blocks import Block, kron_apply
from dpquery.operators.factors import Array, Dense, Identity
from dpquery.strategy.lattice import Subset, subsets_of
from dpquery.strategy.marginal_algebra import inverse_eigenvalue
from dpquery.strategy.splits import Split
from dpquery.strategy.strategies import (
    DirectStrategy,
    MarginalsStrategy,
    Measurement,
    ProductStrategy,
    ResidualStrategy,
    Strategy,
    UnionStrategy,
)

GLOBAL_LIMIT = 1 << 24  # cells of a domain on which a union is solved as one
TOLERANCE = 1e-12
MAX_ITERATIONS = 5000


class Estimates(Protocol):
    """Unbiased answers to any block that the measurements support."""

    def answer(self, block: Block, position: int) -> Array:
        """Return the answers of the workload block at a position, of shape block.row_shape."""


def reconstruct(strategy: Strategy, answers: Sequence[Array]) -> Estimates:
    """Return estimates from the noisy answers of each of a strategy's measurements, as floats.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.
    """
    match strategy:
        case ProductStrategy():
            return _ProductEstimates(strategy, answers[0])
        case MarginalsStrategy():
            return _MarginalEstimates(strategy, answers)
        case ResidualStrategy():
            return _ResidualEstimates(strategy, answers)
        case DirectStrategy():
            return _DirectEstimates(strategy, answers)
        case UnionStrategy() if math.prod(strategy.shape) <= GLOBAL_LIMIT:
            try:
                return _GlobalEstimates(strategy, _solved(strategy, answers))
            except ConvergenceError:
                # What is paid for must be had: these are the answers that the errors describe.
                return _LocalEstimates(strategy, answers)
        case UnionStrategy():
            return _LocalEstimates(strategy, answers)
    assert_never(strategy)


class _ProductEstimates:
    """x = kron_i (A_i'A_i)^-1 A_i' y over the measured attributes."""

    def __init__(
        self, strategy: ProductStrategy, answers: Array, weight: int | None = None
    ) -> None:
        self.strategy = strategy
        self.weight = strategy.measurements[0].weight if weight is None else weight
        self.noisy = answers.reshape(strategy.measurements[0].block.row_shape)

    @cached_property
    def cells(self) -> Array:
        inverses = self.strategy.pseudo_inverses
        products = [
            Dense(inverses[i]).matmat if i in inverses else Identity(self.strategy.shape[i]).matmat
            for i in self.strategy.attributes
        ]
        return kron_apply(products, self.noisy / self.weight)

    def answer(self, block: Block, position: int) -> Array:
        return _answer_from(self.cells, self.strategy.attributes, block)


class _SplitEstimates(ABC):
    """Tables as sums over b below S of a component over b, spread over the other attributes."""

    def __init__(
        self,
        strategy: MarginalsStrategy | ResidualStrategy,
        splits: Sequence[Split | None],
        answers: Sequence[Array],
    ) -> None:
        self.splits, self.shape = splits, strategy.shape
        self.noisy = {
            own.block.attributes: (own.weight, noisy.reshape(own.block.row_shape))
            for own, noisy in zip(strategy.measurements, answers, strict=True)
        }
        self.component = cache(self._component)

    @abstractmethod
    def _component(self, b: Subset) -> Array:
        """Return what the measurements say of b beyond its subsets, as a tensor over b."""

    def answer(self, block: Block, position: int) -> Array:
        shape, S = self.shape, block.attributes
        table = np.zeros(block.table_shape)
        for b in subsets_of(tuple(i for i in S if shape[i] > 1)):
            own = self.component(b).reshape([shape[i] if i in b else 1 for i in S])
            table += kron_apply([_same if i in b else self._spread(i) for i in S], own)
        return block.apply(table)

    def _spread(self, i: int) -> Callable[[Array], Array]:
        own = self.splits[i]
        return _same if own is None or self.shape[i] == 1 else own.spread


class _MarginalEstimates(_SplitEstimates):
    """Components from every measured subset a that holds b, weighted by the algebra."""

    def __init__(self, strategy: MarginalsStrategy, answers: Sequence[Array]) -> None:
        super().__init__(strategy, strategy.splits, answers)
        self.strategy = strategy

    def _component(self, b: Subset) -> Array:
        """Return sum_{a >= b} kron_{i in b} H_i A_i' kron_{i in a - b} z_i'A_i' y_a / lambda_b."""
        own = [self.strategy.splits[i] for i in b]
        total = np.zeros([split.factor.shape[0] for split in own])
        for a, (weight, noisy) in self.noisy.items():
            if set(b) <= set(a):
                total += weight * self._read(noisy, a, b)
        recovered = kron_apply([split.recover for split in own], total)
        return recovered * inverse_eigenvalue(self.strategy, b)

    def _read(self, noisy: Array, a: Subset, b: Subset) -> Array:
        """Contract the attributes of a that are not in b with their readings, last ones first."""
        for axis in reversed(range(len(a))):
            if a[axis] not in b:
                reading, shape = self.strategy.splits[a[axis]].reading, noisy.shape
                flat = noisy.reshape(math.prod(shape[:axis]), len(reading), -1)
                noisy = (reading @ flat).reshape(shape[:axis] + shape[axis + 1 :])
        return noisy


class _ResidualEstimates(_SplitEstimates):
    """Components kron_{i in b} R_i y_b: nothing is measured twice."""

    def __init__(self, strategy: ResidualStrategy, answers: Sequence[Array]) -> None:
        super().__init__(strategy, strategy.cores, answers)
        self.strategy = strategy

    def _component(self, b: Subset) -> Array:
        weight, noisy = self.noisy[b]
        return kron_apply([self.strategy.core(i).recover for i in b], noisy / weight)


def _same(X: Array) -> Array:
    return X


class _DirectEstimates:
    """The noisy answers themselves."""

    def __init__(self, strategy: DirectStrategy, answers: Sequence[Array]) -> None:
        self.strategy, self.noisy = strategy, answers

    def answer(self, block: Block, position: int) -> Array:
        return (self.noisy[position] / self.strategy.weights[position]).reshape(block.row_shape)


class _LocalEstimates:
    """Each block from its own part: what the upper bounds of a union describe."""

    def __init__(self, strategy: UnionStrategy, answers: Sequence[Array]) -> None:
        self.strategy = strategy
        self.parts = [
            _ProductEstimates(part, noisy, own.weight)
            for part, noisy, own in zip(strategy.parts, answers, strategy.measurements, strict=True)
        ]

    def answer(self, block: Block, position: int) -> Array:
        return self.parts[self.strategy.part_of(position)].answer(block, position)


class _GlobalEstimates:
    """One count vector that fits all parts best: consistent, never worse than part by part."""

    def __init__(self, strategy: UnionStrategy, cells: Array) -> None:
        self.strategy, self.cells = strategy, cells

    def answer(self, block: Block, position: int) -> Array:
        return _answer_from(self.cells, tuple(range(self.cells.ndim)), block)


def _solved(strategy: UnionStrategy, answers: Sequence[Array]) -> Array:
    """Solve for the count vector; ConvergenceError where LSMR does not get there."""
    solution, stop, *_ = lsmr(
        _stacked(strategy.measurements, math.prod(strategy.shape)),
        np.concatenate([noisy.ravel() for noisy in answers]),
        atol=TOLERANCE,
        btol=TOLERANCE,
        conlim=0,
        maxiter=MAX_ITERATIONS,
    )
    if stop not in (0, 1, 2, 4, 5):
        raise ConvergenceError(f"least squares stopped after {MAX_ITERATIONS} iterations")
    return np.asarray(solution).reshape(strategy.shape)


def _stacked(measurements: Sequence[Measurement], cells: int) -> LinearOperator:
    """Return the strategy as one operator over the whole domain, scaled to entries near one."""
    ends = np.cumsum([own.block.shape[0] for own in measurements])

    def matvec(x: Array) -> Array:
        return np.concatenate([own.weight * own.block.matvec(x.ravel()) for own in measurements])

    def rmatvec(y: Array) -> Array:
        pieces = np.split(y.ravel(), ends[:-1])
        pairs = zip(measurements, pieces, strict=True)
        return np.asarray(sum(own.weight * own.block.rmatvec(piece) for own, piece in pairs))

    return LinearOperator((int(ends[-1]), cells), matvec=matvec, rmatvec=rmatvec, dtype=np.float64)


def _answer_from(cells: Array, attributes: Subset, block: Block) -> Array:
    """Answer a block from the table over more attributes; those of one class have no axis there."""
    beyond = tuple(k for k, i in enumerate(attributes) if i not in block.attributes)
    return block.apply(cells.sum(axis=beyond).reshape(block.table_shape))
