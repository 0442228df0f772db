"""What every strategy can do: the base of all shapes.

A strategy is a list of measurements, integer weight times integer block, whose answers get
independent noise of one scale. A query q is answered by c'y with c = A (A'A)^-1 q, whose variance
under unit noise is the sum of squares of c; under Laplace noise its law goes with sums of higher
powers. For Kronecker strategies all are sums of outer products of per-attribute vectors, since
powers of a Kronecker product are Kronecker products of powers ([MATH] 9).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from dpquery.arrays import Floats
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.factors import Factor
from dpquery.operators.sent import Sent
from dpquery.strategy.algebra.query_pairs import QueryPairs
from dpquery.strategy.algebra.row_sums import RowSums
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.weighted_block import WeightedBlock
from dpquery.untrusted.json_values import Json, JsonValue

PowerPair = tuple[RowSums, RowSums]


@dataclass(frozen=True, eq=False)
class Strategy(Sent, ABC):
    """Integer queries that are measured together, with the variances of what they answer.

    A shape is one subclass in a file of its own, registered in `registry.SHAPES`.

    Attributes:
        kind: what a plan calls the shape.
        may_be_part: whether another shape may be made of it.
        name: of the candidate.
        noise: what is added.
        shape: sizes of the domain's attributes.
    """

    kind: ClassVar[str]
    may_be_part: ClassVar[bool] = True

    name: str
    noise: Noise
    shape: tuple[int, ...] = field(init=False)

    @property
    @abstractmethod
    def measurements(self) -> tuple[WeightedBlock, ...]:
        """What is measured. Sensitivity, exact answers and charges follow from it."""

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

    def uniform_variances(self, blocks: Iterable[Block]) -> dict[int, float]:
        """Return the variance under unit noise of blocks, by position, where it is one number.

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

        Args:
            encoded: the values.
            name: of the candidate.
            noise: what is added.
            workload: that the strategy is to answer.

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
