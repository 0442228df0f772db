"""The loop of a run in rounds: choose, measure, make durable, give to the fit, and again.

What may be chosen is for the run to say: RAP's single queries (see queries), or whole tables (see
tables). The whole run is one mechanism of rho-zCDP, fixed before the data is opened. Its parts are
chosen adaptively, and their rho adds up [BS16]:

    rho = rho of the first part + the sum over rounds of (rho of the choice + rho of measuring it)
          + rho of the closing part, where there is one.

A run is committed as one vector of int64, all counts in steps of 2^-10: the first part, then each
round: what was chosen, and its noisy counts; then the closing part. The fit, the public side, is
given noisy values alone and is never stored: it follows from this, as does the total that answers
are scaled to.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_RAP_PREDICATES, MAX_RAP_TABLE_QUERIES
from dpquery.measurement.accounting import Guarantee, noise_scale
from dpquery.measurement.noise.exact_noise import LARGEST_SCALE
from dpquery.measurement.rounds.chance import Chance
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.factors import counts_records
from dpquery.spec.spec import Privacy, Rows
from dpquery.strategy.algebra.subsets import Subset

GRID_BITS = 10
"""Noise is drawn in steps of 2^-10 counts: far below its scale at any epsilon that makes sense."""
STEPS = 1 << GRID_BITS

TrueAnswers = Callable[[Block], Ints]
"""Gives the true answers of a block, (m,): confidential."""


@dataclass(frozen=True)
class RoundBudget:
    """What one round spends."""

    rho: Fraction  # of the whole round
    selection_rho: Fraction  # of the choice
    rate: Fraction  # eta: what is chosen is drawn with probability proportional to exp(eta score)
    last: bool  # whether it takes all that is left

    @property
    def measurement_rho(self) -> Fraction:
        """What measuring what was chosen costs."""
        return self.rho - self.selection_rho


@dataclass(frozen=True, eq=False)
class Round:
    """The noisy answers of one round; public."""

    # of RAP (k, 2): position of a workload block, number of a row in it, for each query; of whole
    # tables (1,): the number of the table
    chosen: Ints
    level: int  # which says what it cost, where rounds get dearer
    noisy: Floats  # counts of what was chosen, (k,) or (cells,), multiples of 2^-10
    std: float  # standard deviation of their noise, in counts
    spent: RoundBudget  # its budget


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """The noisy values of a run, which may have rounds to come; public, and the fit follows."""

    total: float  # the number of records that answers are scaled to, at least 1
    # standard deviation of the noise of their noisy number; 0 where it was declared
    total_std: float
    first: tuple[Floats, ...]  # noisy counts of the blocks that are measured before all rounds
    first_std: float  # standard deviation of their noise, in counts
    rounds: tuple[Round, ...] = ()  # in order
    closing: Ints | None = None  # what it ends with; None where it has no such part, or not yet
    finished: bool = False  # whether all of it is there


class PublicFit(Protocol):
    """The interface of the fit, the public side of a run, between two rounds.

    Privacy: it is given noisy values only, so all it does is post-processing.
    """

    def answers(self, number: int) -> NDArray[np.floating]:
        """Return what it has for the block of a number, (m,) counts."""
        ...

    def add(self, measured: Round) -> None:
        """Add the noisy answers of a round to what is fitted, and fit again."""
        ...


@runtime_checkable
class ReleasedFit(PublicFit, Protocol):
    """A fit of which what will be released is known when the last round is done."""

    def released_table(self, number: int) -> Floats:
        """Return what is released for the block of a number, (m,) counts."""
        ...

    def digest(self) -> int:
        """Return a number of 63 bits that goes with all that is released."""
        ...


@dataclass(frozen=True, eq=False)
class Rounds(ABC):
    """The rounds of a run: what they may choose, and what each costs; known before the data."""

    workload: Workload  # the queries
    guarantee: Guarantee  # the privacy guarantee of the whole run
    records: int  # D, how many records of one person are added, removed or replaced at most
    replace: bool  # whether they are replaced
    total: int | None  # the declared number of rows, where it is public; None where it is measured
    rows: Rows | None  # the number of rows as it is declared, if it is

    name: ClassVar[str]
    key: ClassVar[str]
    kept: ClassVar[bool]
    """What a run is called; the option of a release that asks for one; whether all exact answers
    are held together, as every round reads them, or worked out block by block."""

    @property
    @abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """All that may be chosen from, numbered from 0."""

    @property
    @abstractmethod
    def first_blocks(self) -> tuple[Block, ...]:
        """What is measured before all rounds."""

    @property
    @abstractmethod
    def first_rho(self) -> Fraction:
        """What measuring them costs."""

    @property
    @abstractmethod
    def first_sensitivity(self) -> int:
        """Their squared L2 sensitivity, in grid steps."""

    @property
    @abstractmethod
    def rounds_rho(self) -> Fraction:
        """What all rounds together spend."""

    @abstractmethod
    def round(self, level: int, left: Fraction) -> RoundBudget:
        """Return what a round spends of what the rounds before it left of `rounds_rho`."""

    @abstractmethod
    def choose(
        self,
        exact: TrueAnswers,
        fit: PublicFit,
        spent: RoundBudget,
        done: Sequence[Round],
        chance: Chance,
    ) -> Ints:
        """Return what a round chooses, after those done, by what the fit is off."""

    @abstractmethod
    def answers(self, exact: TrueAnswers, chosen: Ints) -> Ints:
        """Return the exact answers of what was chosen."""

    @abstractmethod
    def sensitivity(self, chosen: Ints) -> int:
        """Return the squared L2 sensitivity of what was chosen, in grid steps."""

    @abstractmethod
    def head(self, measured: Round) -> Ints:
        """Return what a committed vector says of a round before its counts."""

    @abstractmethod
    def read(self, values: Ints, done: Sequence[Round]) -> tuple[Ints, int, Ints]:
        """Return what a round of these values chose, its level and its counts in grid steps.

        Raises:
            ValueError: none does after the rounds that were done.
        """

    @abstractmethod
    def length(self, values: Ints) -> int:
        """Return how many values the round takes that they begin with; ValueError for no round."""

    @abstractmethod
    def at(self, guarantee: Guarantee, privacy: Privacy) -> "Rounds":
        """Return the rounds of the same run under another guarantee; SpecError if there are none.

        Privacy: of the same protected unit.
        """

    @property
    @abstractmethod
    def sizes(self) -> Sequence[int]:
        """How many numbers a draw of noise takes, for each that there can be."""

    @property
    def selects(self) -> bool:
        """Whether anything is chosen at all."""
        return True

    @property
    def number(self) -> int | None:
        """How many there are; None where that is not known beforehand."""
        return None

    @property
    def closing_rho(self) -> Fraction:
        """What the closing part costs."""
        return Fraction(0)

    @property
    def closing_length(self) -> int:
        """How many values the closing part has; 0 where there is none."""
        return 0

    def closing(self, exact: TrueAnswers, fit: PublicFit, chance: Chance) -> Ints:
        """Return the closing part, after the fit was given the last round."""
        return np.zeros(0, dtype=np.int64)

    def told(self, fit: PublicFit, measured: Round) -> int:
        """Give a round to the fit, and return the level of the next one."""
        fit.add(measured)
        return 0

    def first(self, exact: TrueAnswers, chance: Chance) -> Ints:
        """Return the first part of a run: noisy counts in grid steps."""
        counted = np.concatenate([exact(block) for block in self.first_blocks])
        return self.noisy(counted << GRID_BITS, self.first_rho, self.first_sensitivity, chance)

    def noisy(self, steps: Ints, rho: Fraction, sensitivity: int, chance: Chance) -> Ints:
        """Return numbers in grid steps, of a squared L2 sensitivity, with noise that costs rho."""
        return chance.add_noise(
            steps,
            budget=self.part(rho),
            sensitivity=sensitivity,
            scale=self.scale(rho, sensitivity),
        )

    @property
    def first_scale(self) -> float:
        """Scale of the noise on the first part, in grid steps; 0 where it costs nothing."""
        return self.scale(self.first_rho, self.first_sensitivity) if self.first_rho else 0.0

    @property
    def first_std(self) -> float:
        """Standard deviation of that noise, in counts."""
        return self.first_scale / STEPS

    @cached_property
    def subsets(self) -> list[Subset]:
        """The attribute subsets whose tables are counted."""
        blocks = (*self.blocks, *self.first_blocks)
        return list(dict.fromkeys(block.attributes for block in blocks))

    def part(self, rho: Fraction) -> Guarantee:
        """Return the guarantee of one part of the run."""
        return dataclasses.replace(self.guarantee, amount=rho)

    def scale(self, rho: Fraction, sensitivity: int) -> float:
        """Return the scale of noise that costs rho, in the unit of the root of the sensitivity."""
        return noise_scale(self.part(rho), sensitivity)

    def written(self, measured: Round) -> Ints:
        """Return the part of a committed vector that holds a round."""
        steps = np.asarray(np.rint(measured.noisy * STEPS), dtype=np.int64)
        return np.concatenate([self.head(measured), steps])

    def decoded(self, parts: Sequence[Ints]) -> MeasuredRun:
        """Return what the parts of a run hold, which may have rounds to come.

        Raises:
            ValueError: no run of these rounds has such parts.
        """
        pending = iter(parts)
        first, sizes = next(pending), [block.queries for block in self.first_blocks] or [1]
        if len(first) != sum(sizes):
            raise ValueError("a first part that is none")
        rounds: list[Round] = []
        left = self.rounds_rho
        for values in pending:
            if not len(values) or len(values) != self.length(values):
                raise ValueError("a round that is none")
            chosen, level, steps = self.read(values, rounds)
            spent = self.round(level, left)
            std = self.scale(spent.measurement_rho, self.sensitivity(chosen)) / STEPS
            rounds.append(Round(chosen, level, steps / STEPS, std, spent))
            left -= spent.rho
            if left == 0:
                break
        closing, more = next(pending, None), next(pending, None)
        if more is not None or (closing is not None and len(closing) != self.closing_length):
            raise ValueError("a part after the last")
        tables = tuple(np.split(first / STEPS, list(accumulate(sizes))[:-1]))
        finished = left == 0 and (closing is not None or not self.closing_length)
        total, std = self._total(tables)
        return MeasuredRun(total, std, tables, self.first_std, tuple(rounds), closing, finished)

    def measured(self, values: Ints) -> MeasuredRun:
        """Return what a committed vector holds.

        Raises:
            ValueError: it is not of this layout, or does not spend its rho exactly.
        """
        ends = [sum(block.queries for block in self.first_blocks) or 1]
        while ends[-1] < len(values) - self.closing_length:
            ends.append(ends[-1] + self.length(values[ends[-1] :]))
        if not self.closing_length:
            ends.pop()
        measured = self.decoded(np.split(values, ends))
        if not measured.finished:
            raise ValueError("these are not the values of this run: they do not spend its charge")
        return measured

    def _total(self, first: Sequence[Floats]) -> tuple[float, float]:
        """Return the number of records, and the standard deviation of the noise of its count.

        Every table of the first part has a noisy sum, whose variance grows with its cells; their
        mean, weighed by precision, is weighed again with what was declared.

        Privacy:
            Post-processing: of committed values and of public ones.
        """
        if self.total is not None:
            return float(max(1, self.total)), 0.0
        precisions = [1 / len(noisy) for noisy in first]
        counted = float(np.average([noisy.sum() for noisy in first], weights=precisions))
        std = self.first_std / sum(precisions) ** 0.5
        return weighed_total(counted, std, self.rows), std

    def check_noise(self, scales: Sequence[float], rate: Fraction) -> None:
        """Refuse, from public inputs, noise that the draw would refuse after the charge."""
        if min(scales) < 1 or max(scales) >= LARGEST_SCALE or rate == 0:
            raise SpecError(
                f"epsilon {float(self.guarantee.epsilon):g} asks {self.name} for noise that cannot "
                f"be drawn; ask for a {'smaller' if min(scales) < 1 else 'larger'} epsilon"
            )


def run_rounds(
    rounds: Rounds,
    exact: TrueAnswers,
    *,
    fit: PublicFit,
    chance: Chance,
    done: Sequence[Round] = (),
) -> Iterator[Round]:
    """Yield every round as it is measured, before the fit is given it.

    It is a generator: nothing happens but by iterating over it, and the fit is given the last round
    when the iteration ends.

    The fit is given the rounds `done` of an earlier run that was cut short: they are neither drawn
    again nor yielded.

    Privacy:
        All rounds together are rounds_rho-zCDP, for neighbours as the rounds have them: each is a
        choice and a measurement whose parameters follow from earlier rounds. The fit decides what
        is asked next, and adaptive composition allows for any rule that sees earlier outputs alone.
        An iterator that makes every round durable before it takes the next sees to it that the
        fit, whatever becomes of it, cannot have a round drawn again.
    """
    measured: list[Round] = []
    left, level = rounds.rounds_rho, 0
    while True:
        if len(measured) < len(done):
            this_round = done[len(measured)]
        else:
            spent = rounds.round(level, left)
            this_round = _measured(rounds, exact, spent, level, fit, measured, chance)
            yield this_round
        measured.append(this_round)
        level = rounds.told(fit, this_round)
        left -= this_round.spent.rho
        if this_round.spent.last:
            return


def _measured(
    rounds: Rounds,
    exact: TrueAnswers,
    spent: RoundBudget,
    level: int,
    fit: PublicFit,
    done: Sequence[Round],
    chance: Chance,
) -> Round:
    """Return one round: chosen and measured; holds true values on the way."""
    chosen = rounds.choose(exact, fit, spent, done, chance)
    rho, sensitivity = spent.measurement_rho, rounds.sensitivity(chosen)
    noisy = rounds.noisy(rounds.answers(exact, chosen) << GRID_BITS, rho, sensitivity, chance)
    return Round(chosen, level, noisy / STEPS, rounds.scale(rho, sensitivity) / STEPS, spent)


def weighed_total(counted: float, std: float, rows: Rows | None) -> float:
    """Return a noisy number of records weighed with the declared one, if there is one; at least 1.

    All answers follow it, and at low signal a noisy count alone could be anything. So it is weighed
    with the declared number, which is believed to half of itself, by their inverse variances: that
    moves a clear count by far less than its noise, and says what was declared where nothing is.
    """
    if rows is None:
        return max(1.0, counted)
    noise, doubt = std**2, (rows.count / 2) ** 2
    return max(1.0, (rows.count / doubt + counted / noise) / (1 / doubt + 1 / noise))


def declared_total(privacy: Privacy, rows: Rows | None) -> int | None:
    """Return the number of records where it is public: declared exactly, and never changed."""
    exact = rows is not None and rows.exact and privacy.neighbours == "replace"
    return rows.count if rows is not None and exact else None


def check_counts(workload: Workload, guarantee: Guarantee, name: str) -> None:
    """Refuse queries that are no counts: a record must add 0 or 1 to every answer."""
    if guarantee.kind != "zcdp":
        raise ValueError(f"{name} is accounted for in zCDP: give the guarantee of Gaussian noise")
    if not all(counts_records(factor) for block in workload.blocks for factor in block.factors):
        raise UnsupportedWorkloadError(
            f"{name} answers counts, and a query of this workload has an entry other than 0 "
            f"and 1; ask for counts, or leave {name} out"
        )


def check_answers(workload: Workload, *, relaxed_rows: int, tabled: bool) -> None:
    """Refuse queries, or predicates, too many to evaluate on all relaxed rows.

    Tabled is whether a product of more predicates than values is worked out from a table of these.
    """
    largest = max(block.queries for block in workload.blocks)
    if largest > MAX_RAP_TABLE_QUERIES:
        raise UnsupportedWorkloadError(
            f"one table asks {largest:,} queries, and relaxed rows answer up to "
            f"{MAX_RAP_TABLE_QUERIES:,} at a time; name fewer attributes or coarser sets"
        )
    predicates = max(
        (
            factor.shape[0]
            for block in workload.blocks
            for factor in block.factors
            if not (tabled and block.is_product and factor.shape[0] > factor.shape[1])
        ),
        default=0,
    )
    evaluated = relaxed_rows * predicates
    if evaluated > MAX_RAP_PREDICATES:
        raise UnsupportedWorkloadError(
            f"{predicates:,} predicates on one attribute take {evaluated:,} numbers for "
            f"{relaxed_rows:,} relaxed rows, and the limit is {MAX_RAP_PREDICATES:,}; "
            "name fewer ranges, or take fewer relaxed rows"
        )
