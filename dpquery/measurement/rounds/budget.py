"""What a round costs, of queries (RAP) and of whole tables.

The budget of a run of RAP: for the total, for selecting queries and for measuring them.

The whole run is one mechanism of rho-zCDP, fixed before the data is opened: its rounds are, and so
is what each may spend. rho is added up over adaptively chosen parts [BS16], here

    rho = rho of the total + T (rho of a selection + rho of a measurement).

The total takes as much as one more query would, and at least a twentieth: all answers are multiples
of it. Where a dataset declares its exact number of rows under "replace", that number is the total,
public and free. What is left is halved between choosing and measuring, as the seed does.

Where records are added or removed, three quarters of the queries are drawn among those answered too
low and a quarter among those answered too high: twice as sharp as drawing by |error| at the same
cost (see selection). Relaxed rows start spread out, so the large errors are mostly counts too low.

The budget of an adaptive run: for the tables of one attribute, and for rounds that get dearer.

The whole run is one mechanism of rho-zCDP that spends exactly rho: its parts are chosen adaptively
and add up [BS16]. Let u = rho / T, with T sixteen times the number of attributes. A round at level
l costs 4^l u; a tenth of that selects a table, and nine tenths measure it. First all tables of one
attribute are measured, for 0.9 u each. Rounds begin at level 0, and the level rises by one where
the last table moved the model by no more than its noise (see rounds). A round that would leave less
than another like it costs takes all that is left, and is the last: so that the parts are rho to
the last fraction, whatever the levels were. This is the annealing of AIM [McKenna22]: which round
costs what is decided by noisy values alone, and every round's cost is fixed before it is drawn.
[MATH] 10.8.

With D records of a person, neighbours move a table by D in L1 and by D in L2 where records are
added or removed, all the same way; where they are replaced, by 2 D in L1 and by sqrt(2) D in L2,
when all leave one cell for one other.
"""

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction

from dpquery.arrays import Ints
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import (
    MAX_ADAPTIVE_CLASSES,
    MAX_RAP_AT_ONCE,
    MAX_RAP_FIT_NUMBERS,
    MAX_RAP_PREDICATES,
    MAX_RAP_TABLE_QUERIES,
)
from dpquery.measurement.accounting import Guarantee, noise_scale
from dpquery.measurement.noise.exact_noise import LARGEST_SCALE
from dpquery.measurement.rounds.selection import (
    CandidateTables,
    ErrorSide,
    candidate_tables,
    family_sizes,
    squared_move,
)
from dpquery.operators.blocks import Workload
from dpquery.operators.factors import counts_records
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.spec.spec import Privacy, Rows
from dpquery.strategy.sensitivity import sensitivity
from dpquery.strategy.strategy import WeightedBlock

GRID_BITS = 10
"""Noise is drawn in steps of 2^-10 counts: far below its scale at any epsilon that makes sense."""
STEPS = 1 << GRID_BITS
OVER = 4
"""One in so many queries is drawn among those answered too high."""
_LEAST_TOTAL = Fraction(1, 20)
_RATE_BITS = 64


@dataclass(frozen=True)
class RapBudget:
    """The budget and noise of a run of RAP; they follow from public inputs.

    Attributes:
        guarantee: the privacy guarantee of the whole run.
        settings: its rounds.
        records: D, how many records of one person are added, removed or replaced at most.
        replace: whether they are replaced.
        total: the declared number of rows, or None where it is measured.
        total_rho: what measuring the total costs.
        selection_rho: what choosing the queries of one round costs.
        measurement_rho: what measuring them costs.
        rate: eta: a query is drawn with probability proportional to exp(eta score).
        whole: squared sensitivity of all queries together; None where they are selected.
    """

    guarantee: Guarantee
    settings: RapSettings
    records: int
    replace: bool
    total: int | None
    total_rho: Fraction
    selection_rho: Fraction
    measurement_rho: Fraction
    rate: Fraction
    whole: int | None

    def sides(self, number: int) -> tuple[tuple[ErrorSide, int], ...]:
        """Return how many queries to draw on which side in a round, rounds counted from 0."""
        size = self.settings.selected
        if self.replace:
            return (("either", size),)
        over = (number + 1) * size // OVER - number * size // OVER
        return ("under", size - over), ("over", over)

    @property
    def total_sensitivity(self) -> int:
        """Squared, in grid steps: records replaced may leave the domain, or enter it."""
        return self.records**2 << 2 * GRID_BITS

    @property
    def total_scale(self) -> float:
        """Scale of the total's noise in grid steps; 0 where the total is declared."""
        return self.scale(self.total_rho, self.total_sensitivity) if self.total is None else 0.0

    @property
    def total_std(self) -> float:
        """Standard deviation of the total's noise, in counts."""
        return self.total_scale / STEPS

    @property
    def std_bounds(self) -> tuple[float, float]:
        """The least and the largest standard deviation, in counts, that a round can turn out at.

        It depends on how many of the selected queries one record can answer.
        """
        size = self.settings.selected
        moves = [self._move(families) for families in ([size], [1] * size)]
        least, largest = (
            self.scale(self.measurement_rho, move << 2 * GRID_BITS) / STEPS for move in moves
        )
        return least, largest

    def budget(self, rho: Fraction) -> Guarantee:
        """Return the guarantee of one part of the run."""
        return dataclasses.replace(self.guarantee, amount=rho)

    def scale(self, rho: Fraction, sensitivity: int) -> float:
        """Return the scale of noise that costs rho, in the unit of the root of the sensitivity."""
        return noise_scale(self.budget(rho), sensitivity)

    def sensitivity(self, workload: Workload, places: Ints) -> int:
        """Return the squared L2 sensitivity of selected queries together, in grid steps."""
        sizes = family_sizes(workload, places) if self.whole is None else []
        return self._move(sizes) << 2 * GRID_BITS

    def _move(self, sizes: list[int]) -> int:
        """Return the squared move of one round's counts between neighbours."""
        if self.whole is not None:
            return self.whole
        return squared_move(sizes, replace=self.replace, records=self.records)


def rap_budget(
    workload: Workload,
    settings: RapSettings,
    *,
    privacy: Privacy,
    guarantee: Guarantee,
    rows: Rows | None,
) -> RapBudget:
    """Return the budget of a run of RAP under a guarantee.

    Args:
        workload: the queries; their entries are 0 or 1. Its weights do not matter to RAP.
        settings: rounds and queries.
        privacy: the protected unit.
        guarantee: of Gaussian noise, from `accounting.guarantee`.
        rows: the declared number of rows, if there is one; it counts only where it is exact and
            records are replaced.

    Privacy:
        The parts add up to guarantee.amount or less, all of them exact fractions.

    Raises:
        SpecError: more queries are to be selected than there are, or the noise could not be drawn.
        UnsupportedWorkloadError: too many queries to measure all at once, or others than counts.
    """
    if guarantee.kind != "zcdp":
        raise ValueError("RAP is accounted for in zCDP: give the guarantee of Gaussian noise")
    check_counts(workload, "RAP")
    replace, records = privacy.neighbours == "replace", privacy.max_rows
    declared = declared_total(privacy, rows)
    joint = 0 if settings.adaptive else _joint(workload, replace=replace)
    parts = joint or 2 * settings.rounds * settings.selected
    share = Fraction(0) if declared is not None else max(_LEAST_TOTAL, Fraction(1, parts + 1))
    round_rho = guarantee.amount * (1 - share) / settings.rounds
    selection_rho = round_rho / 2 if settings.adaptive else Fraction(0)
    span = records * (2 if replace else 1)
    mechanism = RapBudget(
        guarantee=guarantee,
        settings=settings,
        records=records,
        replace=replace,
        total=declared,
        total_rho=guarantee.amount * share,
        selection_rho=selection_rho,
        measurement_rho=round_rho - selection_rho,
        rate=sharpest_rate(selection_rho, settings.selected, span)
        if settings.adaptive
        else Fraction(0),
        whole=joint * records**2 or None,
    )
    _check_size(workload, settings)
    _check_noise_of_queries(mechanism)
    return mechanism


def _joint(workload: Workload, *, replace: bool) -> int:
    """Return the squared sensitivity of all queries to one record.

    A record replaced moves at most the queries that one of the two answers, each by 1.
    """
    answered = sensitivity([WeightedBlock(1, block) for block in workload.blocks], "gaussian")
    return min(2 * answered, workload.shape[0]) if replace else answered


def sharpest_rate(rho: Fraction, draws: int, span: int) -> Fraction:
    """Return the largest eta, to 64 bits after the point, with K (eta span)^2 / 8 <= rho.

    Args:
        rho: of the selection.
        draws: K.
        span: how far apart the moves of two scores can be.
    """
    square = 8 * rho / (draws * span**2) * (1 << 2 * _RATE_BITS)
    return Fraction(math.isqrt(math.floor(square)), 1 << _RATE_BITS)


def check_counts(workload: Workload, mechanism: str) -> None:
    """Refuse queries that are no counts: a record must add 0 or 1 to every answer."""
    if not all(counts_records(factor) for block in workload.blocks for factor in block.factors):
        raise UnsupportedWorkloadError(
            f"{mechanism} answers counts, and a query of this workload has an entry other than 0 "
            f"and 1; ask for counts, or leave {mechanism} out"
        )


def declared_total(privacy: Privacy, rows: Rows | None) -> int | None:
    """Return the number of records where it is public: declared exactly, and never changed."""
    exact = rows is not None and rows.exact and privacy.neighbours == "replace"
    return rows.count if rows is not None and exact else None


def _check_size(workload: Workload, settings: RapSettings) -> None:
    """Refuse, from public inputs, what could otherwise exhaust the memory after the charge."""
    queries, measured = workload.shape[0], settings.rounds * settings.selected
    if measured > queries:
        raise SpecError(
            f"RAP is to select {measured:,} queries in all and the workload has {queries:,}; "
            "take fewer rounds, or fewer queries a round"
        )
    if not settings.adaptive and queries > MAX_RAP_AT_ONCE:
        raise UnsupportedWorkloadError(
            f"RAP without selection measures all {queries:,} queries, and the limit is "
            f"{MAX_RAP_AT_ONCE:,}; let it select some in rounds"
        )
    masses = settings.relaxed_rows * sum(workload.shape_of_domain)
    if masses > MAX_RAP_FIT_NUMBERS:
        raise UnsupportedWorkloadError(
            f"{settings.relaxed_rows:,} relaxed rows over this domain hold {masses:,} numbers, and "
            f"the limit is {MAX_RAP_FIT_NUMBERS:,}; take fewer relaxed rows"
        )
    compared = settings.selected * max(workload.shape_of_domain, default=0)
    if compared > MAX_RAP_FIT_NUMBERS:
        raise UnsupportedWorkloadError(
            f"to compare the predicates of {settings.selected:,} queries takes {compared:,} "
            f"numbers, and the limit is {MAX_RAP_FIT_NUMBERS:,}; select fewer queries a round"
        )
    check_answers(workload, relaxed_rows=settings.relaxed_rows, tabled=settings.adaptive)


def check_answers(workload: Workload, *, relaxed_rows: int, tabled: bool) -> None:
    """Refuse queries, or predicates, too many to evaluate on all relaxed rows.

    Args:
        workload: the queries.
        relaxed_rows: their number.
        tabled: whether a product of more predicates than values is worked out from a table of the
            values.
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


def _check_noise_of_queries(mechanism: RapBudget) -> None:
    """Refuse, from public inputs, noise that the draw would refuse after the charge."""
    scales = [std * STEPS for std in mechanism.std_bounds]
    scales += [mechanism.total_scale] if mechanism.total is None else []
    drawable = min(scales) >= 1 and max(scales) < LARGEST_SCALE
    if not drawable or (mechanism.settings.adaptive and mechanism.rate == 0):
        raise SpecError(
            f"epsilon {float(mechanism.guarantee.epsilon):g} asks RAP for noise that cannot be "
            f"drawn; ask for a {'smaller' if min(scales) < 1 else 'larger'} epsilon"
        )


ROUNDS_PER_ATTRIBUTE = 16
MEASURED_SHARE = Fraction(9, 10)
DEARER = 4
"""What a round costs at one level, in rounds of the level below: its noise is half as wide."""
MOST_FITTED_ROWS = 512  # relaxed rows that a fit holds at most


@dataclass(frozen=True)
class RoundBudget:
    """What one round spends, and how.

    Attributes:
        rho: of the whole round.
        selection_rho: of the choice of its table.
        rate: eta: a table is drawn with probability proportional to exp(eta score).
        scale: of the noise on its counts, in grid steps.
        last: whether it takes all that is left.
    """

    rho: Fraction
    selection_rho: Fraction
    rate: Fraction
    scale: float
    last: bool

    @property
    def measurement_rho(self) -> Fraction:
        """What measuring the table costs."""
        return self.rho - self.selection_rho

    @property
    def std(self) -> float:
        """Standard deviation of the noise, in counts."""
        return self.scale / STEPS


@dataclass(frozen=True)
class AdaptiveBudget:
    """The budget and noise of an adaptive run; they follow from public inputs.

    Attributes:
        guarantee: the privacy guarantee of the whole run.
        records: D, how many records of one person are added, removed or replaced at most.
        replace: whether they are replaced.
        total: the declared number of rows; None where it is estimated from noisy tables.
        candidates: the tables that may be measured.
    """

    guarantee: Guarantee
    records: int
    replace: bool
    total: int | None
    candidates: CandidateTables

    @property
    def unit(self) -> Fraction:
        """u: the rho of a round at level 0."""
        return self.guarantee.amount / (ROUNDS_PER_ATTRIBUTE * self.candidates.one_way)

    @property
    def one_way_rho(self) -> Fraction:
        """What all tables of one attribute cost together."""
        return self.candidates.one_way * MEASURED_SHARE * self.unit

    @property
    def one_way_scale(self) -> float:
        """Scale of the noise on the tables of one attribute, in grid steps."""
        return self._scale(self.one_way_rho, tables=self.candidates.one_way)

    @property
    def one_way_std(self) -> float:
        """Standard deviation of that noise, in counts."""
        return self.one_way_scale / STEPS

    @property
    def rounds_rho(self) -> Fraction:
        """What all rounds together spend."""
        return self.guarantee.amount - self.one_way_rho

    @property
    def most_rounds(self) -> int:
        """More rounds than this no run has: none costs less than u, but for the last."""
        return ROUNDS_PER_ATTRIBUTE * self.candidates.one_way

    def round(self, level: int, left: Fraction) -> RoundBudget:
        """Return what a round spends.

        Args:
            level: of the round.
            left: what the rounds before it left of `rounds_rho`.
        """
        rho = self.unit * DEARER**level
        last = left < 2 * rho
        rho = left if last else rho
        selection = rho * (1 - MEASURED_SHARE)
        return RoundBudget(
            rho=rho,
            selection_rho=selection,
            rate=sharpest_rate(selection, 1, self.score_span),
            scale=self._scale(rho - selection, tables=1),
            last=last,
        )

    @property
    def score_span(self) -> int:
        """How far apart the moves of two scores can be between neighbours."""
        moved = self.records * (2 if self.replace else 1)
        return 2 * moved * max(self.candidates.weights)

    def squared_sensitivity(self, tables: int) -> int:
        """Return the squared L2 sensitivity of so many tables together, in grid steps."""
        moved = self.records**2 * (2 if self.replace else 1)
        return tables * moved << 2 * GRID_BITS

    def part(self, rho: Fraction) -> Guarantee:
        """Return the guarantee of one part of the run."""
        return dataclasses.replace(self.guarantee, amount=rho)

    def _scale(self, rho: Fraction, *, tables: int) -> float:
        return noise_scale(self.part(rho), self.squared_sensitivity(tables))


def adaptive_budget(
    workload: Workload, *, privacy: Privacy, guarantee: Guarantee, rows: Rows | None
) -> AdaptiveBudget:
    """Return the budget of an adaptive run under a guarantee.

    Args:
        workload: the queries; their entries are 0 or 1. Weights of items weigh their tables.
        privacy: the protected unit.
        guarantee: of Gaussian noise, from `accounting.guarantee`.
        rows: the declared number of rows, if there is one; it is the total only where it is exact
            and records are replaced.

    Privacy:
        The parts of every run add up to guarantee.amount, all of them exact fractions.

    Raises:
        SpecError: the noise could not be drawn.
        UnsupportedWorkloadError: one table only, too many of them, or others than counts.
    """
    if guarantee.kind != "zcdp":
        raise ValueError("an adaptive run is accounted for in zCDP: give that of Gaussian noise")
    check_counts(workload, "adaptive measurement")
    check_answers(workload, relaxed_rows=MOST_FITTED_ROWS, tabled=True)
    classes = sum(workload.shape_of_domain)
    if classes > MAX_ADAPTIVE_CLASSES:
        raise UnsupportedWorkloadError(
            f"the questions distinguish {classes:,} values of all attributes, and the limit of "
            f"adaptive measurement is {MAX_ADAPTIVE_CLASSES:,}; ask for coarser sets"
        )
    budget = AdaptiveBudget(
        guarantee=guarantee,
        records=privacy.max_rows,
        replace=privacy.neighbours == "replace",
        total=declared_total(privacy, rows),
        candidates=candidate_tables(workload),
    )
    _check_noise_of_tables(budget)
    return budget


def _check_noise_of_tables(budget: AdaptiveBudget) -> None:
    """Refuse, from public inputs, noise that the draw would refuse after the charge."""
    cheapest = budget.round(0, budget.rounds_rho)
    dearest = budget.round(budget.rounds_rho // budget.unit, budget.rounds_rho)  # takes all
    largest = max(cheapest.scale, budget.one_way_scale)
    if dearest.scale < 1 or largest >= LARGEST_SCALE or cheapest.rate == 0:
        raise SpecError(
            f"epsilon {float(budget.guarantee.epsilon):g} asks an adaptive run for noise that "
            f"cannot be drawn; ask for a {'smaller' if dearest.scale < 1 else 'larger'} epsilon"
        )
