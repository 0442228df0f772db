"""What a strategy is, what it is made for, and how large it may be.

A candidate past a limit never wins, so that a plan made here can always be carried out.

A strategy is a list of measurements, integer weight times integer block, whose answers get
independent noise of one scale. A query q is answered by c'y with c = A (A'A)^-1 q, whose variance
under unit noise is the sum of squares of c; under Laplace noise its law goes with sums of higher
powers. For Kronecker strategies all are sums of outer products of per-attribute vectors, since
powers of a Kronecker product are Kronecker products of powers ([MATH] 9).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, TypeVar, cast, get_args

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_MATRICES_BYTES, MAX_MATRIX_BYTES, MAX_STRATEGY_CELLS
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.cells import CellClassBlock
from dpquery.operators.factors import Dense, Factor, Identity, Ones, Sent
from dpquery.operators.p_identity import BlockPIdentity, PIdentity
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.strategy.algebra.query_powers import QueryPairs, RowSums
from dpquery.strategy.algebra.subsets import Subset
from dpquery.untrusted.json_values import Json, JsonValue

Result = TypeVar("Result")
Noise = Literal["laplace", "gaussian"]
NoiseChoice = Literal["auto", "laplace", "gaussian"]
CHOICES: tuple[NoiseChoice, ...] = get_args(NoiseChoice)


def chosen(choice: NoiseChoice) -> Noise | None:
    """Return the noise asked for, or None where the plan may choose."""
    return None if choice == "auto" else choice


Objective = Literal["rmse", "max"]
"""What is minimised: the weighted RMSE, or the largest standard error."""
Figure = Literal["sd", "rmse"]
"""What a target is about: the largest standard error of some queries, or their RMSE."""


RecordChange = Literal["enters", "moves", "moves within"]
"""A record enters or leaves the domain; it moves to another cell, or enters or leaves; or it moves
to another cell and is always inside."""


BITS = 16  # of an integerised real factor: rounding moves the loss by about 2^-BITS
RESOLUTION = 16  # least bits of a strategy's largest entry: keeps the noise fine-grained


@dataclass(frozen=True, eq=False)
class WeightedBlock:
    """The integer queries weight * block, answered from the marginal over block.attributes."""

    weight: int
    block: Block | CellClassBlock


@dataclass(frozen=True, eq=False)
class WeightedColumns:
    """The integer queries weight * block, as a matrix over codes of attributes."""

    weight: int
    block: Block


Measurement = TypeVar("Measurement", WeightedBlock, WeightedColumns)


def form_of(measurement: WeightedBlock | WeightedColumns) -> Hashable:
    """Return what is equal only for measurements that differ in nothing but their attributes."""
    block = measurement.block
    if isinstance(block, CellClassBlock):
        return block
    return measurement.weight, block.factors, block.counted, block.at_least


def by_form(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    """Return measurements, those of one form together, by their first ones."""
    of_form: dict[Hashable, list[Measurement]] = {}
    for one in measurements:
        of_form.setdefault(form_of(one), []).append(one)
    return list(of_form.values())


def column_matrices(measurements: Sequence[WeightedBlock]) -> tuple[WeightedColumns, ...]:
    """Return measurements as matrices with the same columns, each column once or more often.

    A record that enters, leaves or moves changes the answers by the same columns in both: those of
    classes of cells are the columns of the cells.

    Raises:
        ValueError: they are not over the same classes of cells, so that no column is one of both.
    """
    classed = [rows.block for rows in measurements if isinstance(rows.block, CellClassBlock)]
    if not classed:
        return cast("tuple[WeightedColumns, ...]", tuple(measurements))
    if len(classed) < len(measurements) or len({id(block.classes) for block in classed}) > 1:
        raise ValueError("measurements over different classes of cells")
    weights = (rows.weight for rows in measurements)
    pairs = zip(weights, classed, strict=True)
    return tuple(WeightedColumns(weight, block.inner) for weight, block in pairs)


def resolution(entry: int) -> int:
    """Return the power of two that lifts a largest entry to RESOLUTION bits."""
    return 1 << max(0, RESOLUTION + 1 - entry.bit_length())


def significant(weight: float, bits: int = BITS) -> int:
    """Round a positive weight to so many significant bits: an integer, times a power of two.

    >>> significant(3.0e9), significant(0.2)
    (3000008704, 1)
    """
    spare = max(0, math.frexp(weight)[1] - bits - 1)
    return max(1, round(math.ldexp(weight, -spare))) << spare


def integer_factor(factor: Factor, *, noise: Noise, bits: int = BITS) -> Factor:
    """Round a real factor to a grid of 2^-bits and return it times 2^bits, in integers.

    Under Laplace noise the diagonal of a p-Identity takes up the rounding of its rows, so every
    column keeps L1 norm 2^bits and the sensitivity does not grow (by more than p / 2^bits where
    the diagonal all but vanishes).
    """
    if np.issubdtype(factor.dtype, np.integer):
        return factor
    if isinstance(factor, PIdentity) and noise == "laplace":
        rows = np.rint(factor.rows * (1 << bits)).astype(np.int64)
        diagonal = np.maximum((1 << bits) - rows.sum(axis=0), 1)  # 0 would lose a column
        return PIdentity(diagonal, rows)
    if isinstance(factor, Tree):
        return _integer_tree(factor, noise, bits)
    if isinstance(factor, BlockPIdentity) and noise == "laplace":
        inner, outer = (
            np.rint(part * (1 << bits)).astype(np.int64) for part in (factor.inner, factor.outer)
        )
        below = BlockPIdentity(np.zeros_like(inner[0]), inner, outer, factor.size)
        diagonal = np.maximum((1 << bits) - below.column_norms(1), 1)
        return BlockPIdentity(diagonal, inner, outer, factor.size)
    return Dense(np.rint(factor.dense() * (1 << bits)).astype(np.int64))


def _integer_tree(factor: Tree, noise: Noise, bits: int) -> Tree:
    """Round the weights of blocks; those of codes take up the rounding on their paths."""
    levels = [np.rint(level * (1 << bits)).astype(np.int64) for level in factor.weights]
    power = 1 if noise == "laplace" else 2
    levels[0] = np.ones_like(levels[0])
    left = (1 << bits * power) - (Tree(factor.parents, levels).column_norms(power) - 1)
    if noise == "gaussian":
        left = np.floor(np.sqrt(np.maximum(left, 1))).astype(np.int64)
    levels[0] = np.maximum(left, 1)
    return Tree(factor.parents, levels)


PowerPair = tuple[RowSums, RowSums]


@dataclass(frozen=True, eq=False)
class Strategy(Sent, ABC):
    """Integer queries that are measured together, with the variances of what they answer.

    A shape is one subclass in a file of its own, registered in `registry.SHAPES`.
    """

    kind: ClassVar[str]  # what a plan calls the shape
    may_be_part: ClassVar[bool] = True  # whether another shape may be made of it

    name: str  # of the candidate
    noise: Noise  # what is added
    shape: tuple[int, ...] = field(init=False)  # sizes of the domain's attributes

    @cached_property
    def _worked_out(self) -> dict[Hashable, Any]:
        return {}

    def once(self, name: Hashable, work: Callable[[], Result]) -> Result:
        """Return what is worked out of this strategy the first time that it is asked for."""
        if name not in self._worked_out:
            self._worked_out[name] = work()
        known: Result = self._worked_out[name]
        return known

    @property
    @abstractmethod
    def measurements(self) -> tuple[WeightedBlock, ...]:
        """What is measured. Sensitivity, exact answers and charges follow from it."""

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each measurement."""
        return [measured.block.queries for measured in self.measurements]

    @property
    def spans_its_sets(self) -> bool:
        """Whether measuring a set of attributes answers every query on that set."""
        return True

    @abstractmethod
    def supports(self, block: Block) -> bool:
        """Return whether every query of a block is a combination of the measured rows.

        A measured factor has full column rank, so that a part which measures the attributes A
        spans every function of A, and no more. A query that depends on all of a set S is in the
        span of such parts where one of them measures all of S, and nowhere else: its part beyond
        the subsets of S is orthogonal to every function of fewer attributes.
        """

    def serves(self, workload: Workload) -> bool:
        """Return whether every block of the workload that it was made for has its answers."""
        return all(self.supports(block) for block in workload.blocks)

    @abstractmethod
    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowSums | None:
        """Return sum_r c_r^order for every query of a block.

        Args:
            block: a block that the strategy supports.
            position: its place in the workload; None for a question that it does not ask.
            order: 2 for the variance under unit noise on every measured row; 4 and 6 for its law.

        Returns:
            A sum of outer products, a tensor, or None where an order above 2 has no closed form.

        Raises:
            UnsupportedWorkloadError: the block asks for what is not measured.
        """

    def variances(self, block: Block, *, position: int | None) -> RowSums:
        """Return the variance of every query of a block under unit noise on every measured row."""
        sums = self.power_sums(block, position=position, order=2)
        if sums is None:
            raise ValueError("every strategy has closed-form variances")
        return sums

    @abstractmethod
    def covariances(self, pairs: QueryPairs) -> Floats:
        """Return the covariance of the answers of every pair of queries, of shape pairs.shape.

        It is that under unit noise on every measured row, of answers as `reconstruct` gives them.

        Raises:
            UnsupportedWorkloadError: a block asks for what is not measured.
        """

    def likeness(self, block: Block) -> Hashable:
        """Return a value equal for blocks of the same variances, row by row; None if unknown."""
        return None

    def uniform_variances(
        self, blocks: Sequence[Block], positions: Sequence[int | None]
    ) -> dict[int, float]:
        """Return the variance under unit noise of blocks, by their number, where it is one.

        Positions are as in `power_sums`.

        Raises:
            UnsupportedWorkloadError: such a block asks for what is not measured.
        """
        return {}

    def fourth_and_sixth(self, block: Block, *, position: int | None) -> PowerPair | None:
        """Return sum_r c_r^4 and sum_r c_r^6 as `power_sums` does; None where that is too much."""
        fourth = self.power_sums(block, position=position, order=4)
        if fourth is None:
            return self.coefficient_sums(block)
        sixth = self.power_sums(block, position=position, order=6)
        return None if sixth is None else (fourth, sixth)

    def coefficient_sums(self, block: Block) -> PowerPair | None:
        """Return both from coefficients written out; None above MAX_COEFFICIENT_WORK operations."""
        return None

    @property
    def written_factors(self) -> Sequence[Factor]:
        """The factors whose matrices a plan may contain."""
        return ()

    @property
    def listings(self) -> dict[str, tuple[int, int]]:
        """What else a plan lists: how many there are, and how many there may be."""
        return {}

    def encode(self) -> dict[str, JsonValue]:
        """Return the strategy as JSON values."""
        return {"name": self.name, "shape": self.kind} | self.encode_parameters()

    @abstractmethod
    def encode_parameters(self) -> dict[str, JsonValue]:
        """Return all but the name and the kind as JSON values."""

    @classmethod
    @abstractmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        """Return the strategy that JSON values of `encode` describe; they may be hostile.

        Raises:
            LookupError, TypeError, ValueError, ArithmeticError: it is no such strategy for the
                workload's domain, or one whose factors are singular.
        """


def shape_of_part(kind: str) -> type[Strategy]:
    """Return the shape that a plan calls so, for a shape that is made of others.

    Raises:
        KeyError: no shape that may be part of another is called so; `registry` loads all.
    """
    remaining = [Strategy]
    while remaining:
        shape = remaining.pop()
        if vars(shape).get("kind") == kind and shape.may_be_part:
            return shape
        remaining += shape.__subclasses__()
    raise KeyError(kind)


def wide_attributes(block: Block | CellClassBlock) -> Subset:
    """Return the attributes of more than one class that a block looks at."""
    return tuple(i for i in block.attributes if block.shape_of_domain[i] > 1)


def measured_sets(strategy: Strategy) -> tuple[Subset, ...]:
    """Return the sets of attributes that are measured together, none within another."""
    sets = {wide_attributes(measurement.block) for measurement in strategy.measurements}
    return tuple(sorted(_largest(sets), key=lambda attributes: (len(attributes), attributes)))


def _largest(sets: Iterable[Subset]) -> list[Subset]:
    largest: list[Subset] = []
    above: dict[int, list[set[int]]] = {}
    for attributes in sorted(sets, key=len, reverse=True):
        larger = above.get(attributes[0], []) if attributes else list(map(set, largest[:1]))
        if not any(set(attributes) <= other for other in larger):
            largest.append(attributes)
            for i in attributes:
                above.setdefault(i, []).append(set(attributes))
    return largest


def check_strategy_size(strategy: Strategy) -> None:
    """Refuse strategies that are too large to be stored, read back, tabulated or answered.

    Raises:
        UnsupportedWorkloadError: its matrices, sets, levels, tables or noisy answers are too many.
    """
    for what, (number, most) in strategy.listings.items():
        _limit(what, number, most)
    matrices = [_matrix_bytes(factor) for factor in strategy.written_factors]
    _limit(
        "bytes in one matrix", max((max(sizes) for sizes in matrices), default=0), MAX_MATRIX_BYTES
    )
    _limit("bytes in matrices", sum(map(sum, matrices)), MAX_MATRICES_BYTES)
    blocks = [(alike[0].block, len(alike)) for alike in by_form(strategy.measurements)]
    cells = sum(times * math.prod(block.table_shape) for block, times in blocks)
    rows = sum(times * block.queries for block, times in blocks)
    if max(cells, rows) > MAX_STRATEGY_CELLS:
        raise UnsupportedWorkloadError(
            f"tables of {float(max(cells, rows)):.1e} cells in all; "
            f"a release holds {float(MAX_STRATEGY_CELLS):.1e}"
        )


def _limit(what: str, number: int, most: int) -> None:
    if number > most:
        raise UnsupportedWorkloadError(f"its {what} are more than the {most:,} that a plan holds")


def _matrix_bytes(factor: Factor) -> tuple[int, ...]:
    rows, columns = factor.shape
    if isinstance(factor, Identity | Ones | Hierarchy):
        return (0,)
    if isinstance(factor, Tree):
        return tuple(8 * len(level) for level in (*factor.parents, *factor.weights))
    if isinstance(factor, PIdentity):
        return 8 * columns, 8 * len(factor.rows) * columns
    if isinstance(factor, BlockPIdentity):
        return 8 * columns, 8 * factor.inner.size, 8 * factor.outer.size
    return (8 * rows * columns,)
