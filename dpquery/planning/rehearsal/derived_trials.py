"""Errors of derived statistics on a public population: trials with simulated noise, no data.

The error of a share, a mean or a median depends on the counts that it is made of, and plan knows
none. So it is tried on a public or made-up population of the declared rows: its exact counts stand
for the truth, the noise is drawn from a public seed, and the statistic is worked out as a release
works it out. Differences and rates are linear: their errors are those of their answers, exactly.

The draws are of unit noise, the same at every guarantee: errors at several are compared on the same
chances. Least squares is linear, so that the noise of an answer is the answer to the noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from dpquery.arrays import Bools, Floats
from dpquery.operators.blocks import Block
from dpquery.planning.rehearsal.proxy import Proxy
from dpquery.progress import report_progress
from dpquery.public_chance import PublicGenerator, public_generator
from dpquery.reconstruction.derived.joint_answers import JointAnswers, rows_in
from dpquery.reconstruction.derived.quantiles import quantile_places
from dpquery.reconstruction.derived.statistics import (
    limits_of,
    quantile_ends,
    rows_by_group,
    variation_alone,
    widest_quantile,
)
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.spec.domain import Domain
from dpquery.spec.model import Difference, Quantiles, Quotient, Rate, Statistic, Table
from dpquery.strategy.shapes.strategies import Strategy

TRIALS_SEED = 2027
MOST_TRIALS, LEAST_TRIALS = 400, 40
TRIED_NUMBERS = 4_000_000  # measured and derived numbers of all trials together, about
USUAL_LEVEL = 0.95  # of the intervals of a release that says nothing else: what is lost in noise
SELDOM = 0.05  # share of trials without an estimate from which a row counts as lost


@dataclass(frozen=True, eq=False)
class RowErrors:
    """Errors of a derived item's rows, in its own unit.

    Attributes:
        std: (m,) root mean square of estimate less truth; NaN where the population has no truth.
        lost: (m,) whether more than SELDOM of the trials have no estimate, being lost in noise.
    """

    std: Floats
    lost: Bools


class DerivedTrials:
    """Derived statistics of one strategy on one population, under noise of any size."""

    def __init__(
        self,
        statistics: Sequence[Statistic],
        tables: Mapping[Table, tuple[Block, int | None]],
        strategy: Strategy,
        population: Proxy,
        domain: Domain,
    ) -> None:
        """Draw the noise.

        Args:
            statistics: that are tried.
            tables: the block of each of their tables, and its position in the plan's workload.
            strategy: what would be measured.
            population: public records, scaled to the declared rows.
            domain: of the spec.
        """
        sizes = [rows.block.queries for rows in strategy.measurements]
        numbers = sum(sizes) + sum(block.queries for block, _ in tables.values())
        self.trials = max(LEAST_TRIALS, min(MOST_TRIALS, TRIED_NUMBERS // numbers))
        self.domain, self.strategy = domain, strategy
        self.truth = {
            table: np.asarray(population.answers(block), dtype=np.float64).ravel()
            for table, (block, _) in tables.items()
        }
        chance = public_generator(TRIALS_SEED)
        noise: dict[Table, list[Floats]] = {table: [] for table in tables}
        for trial in range(self.trials if any(map(_is_simulated, statistics)) else 1):
            report_progress("trying derived statistics on made-up noise", trial / self.trials)
            estimates = reconstruct(strategy, [_unit_noise(chance, strategy, n) for n in sizes])
            for table, answers in noise.items():
                answers.append(estimates.answer(*tables[table]).ravel())
        self.noise = {table: np.array(answers) for table, answers in noise.items()}
        self._joint = JointAnswers(tables, strategy, estimates, noise_std=1.0)
        self._variances: dict[Table, Floats] = {}

    def errors(self, statistic: Statistic, noise_std: float) -> RowErrors:
        """Return the errors of a statistic's rows where measured rows have noise of this size."""
        match statistic:
            case Difference(first=first, second=second):
                same = np.arange(first.size)
                variance = self._variance(first) + self._variance(second)
                variance = variance - 2 * self._joint.covariance(first, same, second, same)
                return _exact(noise_std * np.sqrt(np.maximum(variance, 0.0)))
            case Rate(rows=table, per=per, population=population):
                scale = per / np.array(population)
                return _exact(noise_std * np.sqrt(self._variance(table)) * scale)
            case Quotient():
                return self._of_quotients(statistic, noise_std)
            case Quantiles():
                return self._of_quantiles(statistic, noise_std)
        assert_never(statistic)

    def _of_quotients(self, statistic: Quotient, noise_std: float) -> RowErrors:
        above, below = statistic.numerator, statistic.denominator
        of_rows = rows_in(above, below)
        with np.errstate(all="ignore"):
            truth = self.truth[above] / self.truth[below][of_rows]
        alone = variation_alone(self._joint, below, USUAL_LEVEL) * np.sqrt(self._variance(below))
        under = (self.truth[below] + noise_std * self.noise[below])[:, of_rows]
        over = self.truth[above] + noise_std * self.noise[above]
        lost = limits_of(statistic).lost(under, noise_std * alone[of_rows])
        with np.errstate(all="ignore"):
            estimates = np.where(lost, np.nan, over / under)
        return _spread(estimates, truth)

    def _of_quantiles(self, statistic: Quantiles, noise_std: float) -> RowErrors:
        table, places = statistic.cumulative, rows_by_group(statistic)
        variances = self._variance(table)[places]
        ends, bins = quantile_ends(statistic, self.domain)
        least = widest_quantile(self._joint, USUAL_LEVEL) * noise_std * np.sqrt(variances[:, -1])

        def of(counts: Floats, group: int, lost: bool) -> Floats:
            if lost:
                return np.full(len(statistic.probabilities), np.nan)
            passed = quantile_places(
                counts, variances[group], statistic.probabilities, interpolated=bins
            )
            return np.interp(passed, np.arange(len(ends)), ends)

        exact = self.truth[table][places]
        truth = [of(counts, g, counts[-1] <= 0) for g, counts in enumerate(exact)]
        estimates = []
        for noise in self.noise[table]:
            noisy = exact + noise_std * noise[places]
            lost = noisy[:, -1] <= least
            estimates.append([of(counts, g, lost[g]) for g, counts in enumerate(noisy)])
        flat = np.array(estimates).reshape(self.trials, -1)
        return _spread(flat, np.array(truth).ravel())

    def _variance(self, table: Table) -> Floats:
        """Return the variances of a table's answers under unit noise: (m,)."""
        if table not in self._variances:
            rows = np.arange(table.size)
            self._variances[table] = self._joint.covariance(table, rows, table, rows)
        return self._variances[table]


def _is_simulated(statistic: Statistic) -> bool:
    """Whether errors depend on the counts."""
    return isinstance(statistic, Quotient | Quantiles)


def _unit_noise(chance: PublicGenerator, strategy: Strategy, size: int) -> Floats:
    """Return noise of variance one on so many measured rows."""
    if strategy.noise == "laplace":
        return chance.laplace(scale=1 / np.sqrt(2), size=size)
    return chance.normal(size=size)


def _exact(std: Floats) -> RowErrors:
    return RowErrors(std, np.zeros(len(std), dtype=np.bool_))


def _spread(estimates: Floats, truth: Floats) -> RowErrors:
    """Return errors of trials, (trials, m), about the truth, (m,); missing ones are left out."""
    known = np.isfinite(truth)
    given = np.isfinite(estimates)
    squared = np.where(given, (estimates - np.where(known, truth, 0.0)) ** 2, 0.0)
    with np.errstate(all="ignore"):
        std = np.sqrt(squared.sum(axis=0) / given.sum(axis=0))
    lost = known & (1 - given.mean(axis=0) > SELDOM)
    return RowErrors(np.where(known, std, np.nan), lost)
