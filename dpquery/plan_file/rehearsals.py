"""What was rehearsed, as a plan keeps it: columns, RAP and adaptive measurement.

Relaxed Adaptive Projection (RAP) has settings: how many rounds, how many queries in each. Adaptive
tables have none. All of it is public and fixed in advance, and what is read of it may be hostile.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

from dpquery.limits import (
    LARGEST_INTEGER,
    MAX_RAP_MEASURED,
    MAX_RAP_ROUNDS,
    MAX_RAP_SELECTED,
    MAX_RELAXED_ROWS,
)
from dpquery.strategy.strategy import Objective
from dpquery.untrusted.json_values import Count, NotNegative, Within

MechanismChoice = Literal["auto", "linear", "rap", "adaptive"]
"""What carries a plan out; "auto" is what the plan prefers."""
ON_DATA = {
    "adaptive": (0.9, 1.5),
    "averaged": (0.8, 1.4),
    "shrunk": (0.8, 1.3),
    "consistent": (0.6, 1.1),
}
"""What eight in ten errors on data were of those simulated on made-up populations, by what was
released: 40 cells of ten data sets (tests/reference/choice.jsonl)."""
RELAXED_ROWS = 1_000
SELECTED, LEAST_ROUNDS, MOST_ROUNDS = 4, 2, 64


@dataclass(frozen=True)
class RapSettings:
    """T rounds that select and measure K queries each."""

    rounds: int  # T
    selected: int  # K; 0 with T = 1 is the non-adaptive case, in which all queries are measured
    relaxed_rows: int  # n', the rows of the synthetic dataset
    seed: int  # of the relaxed rows' start; public, and no noise depends on it

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= MAX_RAP_ROUNDS:
            raise ValueError(f"RAP takes 1 to {MAX_RAP_ROUNDS} rounds")
        if not (self.selected >= 1 or (self.selected == 0 and self.rounds == 1)):
            raise ValueError("a round selects at least one query; 0 stands for all, in one round")
        if self.selected > MAX_RAP_SELECTED or self.rounds * self.selected > MAX_RAP_MEASURED:
            raise ValueError(
                f"RAP selects at most {MAX_RAP_SELECTED} queries a round "
                f"and {MAX_RAP_MEASURED} in all"
            )
        if not 1 <= self.relaxed_rows <= MAX_RELAXED_ROWS:
            raise ValueError(f"RAP takes 1 to {MAX_RELAXED_ROWS} relaxed rows")
        if not 0 <= self.seed <= LARGEST_INTEGER:
            raise ValueError(f"a seed is a whole number from 0 to {LARGEST_INTEGER}")

    @property
    def adaptive(self) -> bool:
        """Whether queries are selected; if not, all are measured at once."""
        return self.selected > 0


def default_settings(*, rho: float, rows: int, queries: int) -> RapSettings:
    """Return the settings of the rule of thumb: from the budget, the rows and the workload alone.

    RAP's error depends on T K, the number of queries measured, before all else [RAP, 3.4.2]: too
    few miss much of the data, too many leave each little budget. The best T K rises with the
    signal, n sqrt(rho): the rows over the noise of one query that takes the whole budget. Along
    the ridge many rounds of few queries are better than few rounds of many, the more so the more
    queries overlap, at the price of a fit for every round.

    Measured on Adult, r-of-4 thresholds, K = 4, largest error as a share of n: at epsilon 1 (signal
    5,000) T = 8, 18, 36 gives 0.15, 0.063, 0.031 for r = 2 and 0.046, 0.023, 0.017 for r = 4; at
    epsilon 0.1 T = 4, 8, 16 gives 0.67, 0.20, 0.08 and 0.091, 0.064, 0.073.

    rho is the budget of the whole run; the n rows are declared, or on a proxy; m are the queries.
    """
    signal = rows * math.sqrt(rho)
    rounds = round(min(max(math.sqrt(signal) / 2, LEAST_ROUNDS), MOST_ROUNDS))
    if queries <= rounds * SELECTED:
        return RapSettings(1, 0, RELAXED_ROWS, 0)
    return RapSettings(rounds, SELECTED, RELAXED_ROWS, 0)


_Epsilon = Annotated[Fraction, Within(Fraction(1, 10**6), 10**6)]
_Delta = Annotated[Fraction, Within(0, Fraction(10**100 - 1, 10**100))]
_DeltaAboveZero = Annotated[Fraction, Within(Fraction(1, 10**100), Fraction(10**100 - 1, 10**100))]


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A mechanism without error bars as it was rehearsed; errors in counts."""

    epsilon: _Epsilon  # of the guarantee that was rehearsed
    delta: _DeltaAboveZero  # of the same
    proxy: str  # in words, what stood in for the data
    repetitions: Count  # how often it was rehearsed
    # root mean square error over all queries, weighted as the workload weighs them: the mean over
    # the repetitions
    rmse: NotNegative
    rmse_spread: NotNegative  # its standard deviation over the repetitions; 0 where there was one
    # the largest absolute error over all queries: the mean over the repetitions
    max_error: NotNegative
    max_error_spread: NotNegative  # as of the RMSE
    linear_rmse: NotNegative  # what the better linear strategy is expected to reach: weighted RMSE
    linear_max_error: NotNegative  # the same: largest absolute error over all queries
    # it is the better one where its error is below so many times the linear one
    margin: NotNegative
    preferred: bool  # whether a release takes it

    def covers(self, epsilon: Fraction, delta: Fraction) -> bool:
        """Whether a guarantee is the one that was rehearsed."""
        return (self.epsilon, self.delta) == (epsilon, delta)

    def error(self, objective: Objective) -> tuple[float, float, float]:
        """Return what the objective minimises: its mean, its spread, and the linear one's."""
        if objective == "rmse":
            return self.rmse, self.rmse_spread, self.linear_rmse
        return self.max_error, self.max_error_spread, self.linear_max_error

    def weighed(self, objective: Objective) -> float:
        """Return the error over what it has to stay below to be preferred: below 1 it may be."""
        error, _, linear = self.error(objective)
        return error / (self.margin * linear) if self.margin * linear > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class PlannedRap(Rehearsal):
    """RAP as it was rehearsed."""

    settings: RapSettings  # what was rehearsed, and what a release carries out

    key: ClassVar[Literal["rap"]] = "rap"  # the option that asks for it
    name: ClassVar[str] = "RAP"


@dataclass(frozen=True, kw_only=True)
class PlannedAdaptive(Rehearsal):
    """Adaptive measurement as it was rehearsed: what it may measure follows from the workload."""

    tables: Count  # how many tables may be measured
    rounds: Count  # how many rounds a rehearsal had: their mean, rounded

    key: ClassVar[Literal["adaptive"]] = "adaptive"  # the option that asks for it
    name: ClassVar[str] = "adaptive measurement"


PlannedFit = PlannedRap | PlannedAdaptive
"""A mechanism that fits a model to what it measured, whose answers have no error bars."""
NO_DERIVED = (
    "derived items need error bars, which the answers of {} do not have; leave `derived` out"
)


BiasedColumn = Literal["consistent", "shrunk", "averaged"]
AnswerColumn = Literal["estimate", BiasedColumn]
"""The columns that are compared; the first is the unbiased one."""


@dataclass(frozen=True)
class Contender:
    """One column of the answers from one strategy; errors in counts."""

    strategy: str  # the name of what is measured
    column: AnswerColumn  # which of the answers
    # weighted root mean square error over all queries: known for estimates, simulated for the
    # others: the mean over the runs
    rmse: NotNegative
    rmse_spread: NotNegative  # its standard deviation over the runs; 0 for estimates
    max_error: NotNegative  # the largest absolute error, expected or simulated in the same way
    max_error_spread: NotNegative  # as of the RMSE

    def error(self, objective: Objective) -> float:
        """Return what the objective minimises."""
        return self.rmse if objective == "rmse" else self.max_error


@dataclass(frozen=True)
class PlannedClosest:
    """What was compared at a guarantee, and what a release gives its readers."""

    epsilon: _Epsilon  # of the guarantee
    delta: _Delta  # of the same
    proxy: str  # in words, what stood in for the data
    repetitions: Count  # how many runs were simulated
    contenders: tuple[Contender, ...]  # what was compared
    chosen: Annotated[int, Within(0, LARGEST_INTEGER)]  # the place of the one that errs least

    def __post_init__(self) -> None:
        if self.chosen >= len(self.contenders):
            raise ValueError("chosen")

    @property
    def best(self) -> Contender:
        """The contender that errs least."""
        return self.contenders[self.chosen]
