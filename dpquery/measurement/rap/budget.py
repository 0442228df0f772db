"""The budget of a run of RAP: for the total, for selecting queries and for measuring them.

The whole run is one mechanism of rho-zCDP, fixed before the data is opened: its rounds are, and so
is what each may spend. rho is added up over adaptively chosen parts [BS16], here

    rho = rho of the total + T (rho of a selection + rho of a measurement).

The total takes as much as one more query would, and at least a twentieth: all answers are multiples
of it. Where a dataset declares its exact number of rows under "replace", that number is the total,
public and free. What is left is halved between choosing and measuring, as the seed does.

Where records are added or removed, three quarters of the queries are drawn among those answered too
low and a quarter among those answered too high: twice as sharp as drawing by |error| at the same
cost (see selection). Relaxed rows start spread out, so the large errors are mostly counts too low.
"""

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction

from dpquery.arrays import Ints
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import (
    MAX_RAP_AT_ONCE,
    MAX_RAP_FIT_NUMBERS,
    MAX_RAP_PREDICATES,
    MAX_RAP_TABLE_QUERIES,
)
from dpquery.measurement.accounting import Guarantee, noise_scale
from dpquery.measurement.noise.exact_noise import LARGEST_SCALE
from dpquery.measurement.rap.selection import ErrorSide
from dpquery.measurement.rap.sensitivity import family_sizes, squared_move
from dpquery.operators.blocks import Workload
from dpquery.operators.valued import counts_records
from dpquery.plan_file.rap_settings import RapSettings
from dpquery.spec.model import Privacy, Rows
from dpquery.strategy.shapes.sensitivity import sensitivity
from dpquery.strategy.shapes.weighted_block import WeightedBlock

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
    _check_noise(mechanism)
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


def _check_noise(mechanism: RapBudget) -> None:
    """Refuse, from public inputs, noise that the draw would refuse after the charge."""
    scales = [std * STEPS for std in mechanism.std_bounds]
    scales += [mechanism.total_scale] if mechanism.total is None else []
    drawable = min(scales) >= 1 and max(scales) < LARGEST_SCALE
    if not drawable or (mechanism.settings.adaptive and mechanism.rate == 0):
        raise SpecError(
            f"epsilon {float(mechanism.guarantee.epsilon):g} asks RAP for noise that cannot be "
            f"drawn; ask for a {'smaller' if min(scales) < 1 else 'larger'} epsilon"
        )
