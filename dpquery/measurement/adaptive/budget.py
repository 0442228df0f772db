"""The budget of an adaptive run: for the tables of one attribute, and for rounds that get dearer.

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
from dataclasses import dataclass
from fractions import Fraction

from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_ADAPTIVE_CLASSES
from dpquery.measurement.accounting import Guarantee, noise_scale
from dpquery.measurement.adaptive.candidates import CandidateTables, candidate_tables
from dpquery.measurement.noise.exact_noise import LARGEST_SCALE
from dpquery.measurement.rap.budget import (
    GRID_BITS,
    STEPS,
    check_answers,
    check_counts,
    declared_total,
    sharpest_rate,
)
from dpquery.operators.blocks import Workload
from dpquery.spec.model import Privacy, Rows

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
    _check_noise(budget)
    return budget


def _check_noise(budget: AdaptiveBudget) -> None:
    """Refuse, from public inputs, noise that the draw would refuse after the charge."""
    cheapest = budget.round(0, budget.rounds_rho)
    dearest = budget.round(budget.rounds_rho // budget.unit, budget.rounds_rho)  # takes all
    largest = max(cheapest.scale, budget.one_way_scale)
    if dearest.scale < 1 or largest >= LARGEST_SCALE or cheapest.rate == 0:
        raise SpecError(
            f"epsilon {float(budget.guarantee.epsilon):g} asks an adaptive run for noise that "
            f"cannot be drawn; ask for a {'smaller' if dearest.scale < 1 else 'larger'} epsilon"
        )
