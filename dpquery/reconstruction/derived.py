"""Shares, means, differences, rates and quantiles of noisy answers.

With noisy counts P_j up to value j and T of all, the p-quantile is where P_j - p T passes from
below to above zero. Its interval is the set of all values at which that could be so, tested with
the joint covariance of the counts: of whole values it holds at least its level, and where values
are interpolated within bins it holds it exactly but for gaps in the set, which are filled.
The estimate is where the rising counts nearest to the noisy ones (weighted least squares) pass
p T ([MATH] 24).

With answers n and d of true values v and w, Fieller's interval [F54] of v / w is the set of all t
for which n - t d could be noise alone: |n - t d| <= q(t) sd(n - t d). Under Gaussian noise q is one
number. Under Laplace noise it depends on t, by how much each measured row has to do with n - t d.

A row is printed only where d passes a threshold, and among those that do d is too large by chance:
Fieller's interval does not hold among them. So it is given only where d is SURE times as large;
of the others no more is said than what is known of v / w beforehand ([MATH] 24).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import assert_never

import numpy as np
from scipy.special import ndtri

from dpquery.arrays import Bools, Floats, Ints
from dpquery.operators.blocks import Block
from dpquery.operators.factors import ROW_CHUNK
from dpquery.reconstruction.intervals import laplace_quantile, laplace_quantiles, largest_quantile
from dpquery.reconstruction.least_squares import Estimates, Measured, reconstruct
from dpquery.reconstruction.merging import Merging, merging_of, rows_along
from dpquery.reconstruction.nearest import onto_rising
from dpquery.reconstruction.sampling import SampleVariances, SamplingColumns, SamplingErrors
from dpquery.spec.columns import Bins, Domain, Integers
from dpquery.spec.predicates import IntervalSet
from dpquery.spec.spec import Difference, MergedRows, Quantiles, Quotient, Rate, Statistic, Table
from dpquery.strategy.algebra.query_powers import QueryPairs, QueryRows

MAX_UNITS = 1 << 12  # measured rows whose part in every answer is worked out one by one
MAX_COEFFICIENTS = 1 << 25  # of all answers on them: 256 MB


@dataclass(frozen=True, eq=False)
class JointAnswers:
    """The answers of some tables of one release, and how their noise varies together."""

    # of each table, and its position in the plan's workload if it has one there
    blocks: Mapping[Table, tuple[Block, int | None]]
    measured: Measured  # by them, and how they are answered
    step: float = 1.0  # of which true answers are multiples: 1, or that of the records' weights
    # what is added up to merged rows, and variances: worked out when first asked for
    merged: dict[MergedRows, Merging] = field(default_factory=dict, init=False)
    _variances: dict[Table, Floats] = field(default_factory=dict, init=False)

    def estimate(self, table: Table) -> Floats:
        """Return the answers of a table in row order: (m,)."""
        block, position = self.blocks[table]
        return self.measured.estimates.answer(block, position).ravel()

    def variances(self, table: Table) -> Floats:
        """Return the variances of a table's answers in row order: (m,)."""
        if table not in self._variances:
            rows = np.arange(table.size)
            self._variances[table] = self.covariance(table, rows, table, rows)
        return self._variances[table]

    def covariance(self, table: Table, rows: Ints, other: Table, other_rows: Ints) -> Floats:
        """Return covariances of rows of two tables; their numbers are broadcast."""
        (block, position), (against, place) = self.blocks[table], self.blocks[other]
        pairs = QueryPairs(QueryRows(block, rows, position), QueryRows(against, other_rows, place))
        return self.measured.covariances(pairs)

    @property
    def has_coefficients(self) -> bool:
        """Whether they are needed, since the noise is not normal, and are not too many."""
        strategy, answered = self.measured.strategy, sum(b.queries for b, _ in self.blocks.values())
        rows = sum(strategy.sizes)
        few = rows <= MAX_UNITS and rows * answered <= MAX_COEFFICIENTS
        return strategy.noise == "laplace" and few

    @cached_property
    def coefficients(self) -> dict[Table, Floats]:
        """What each answer makes of the measured rows: (m, rows) for every table."""
        strategy = self.measured.strategy
        sizes = strategy.sizes
        ends = np.cumsum(sizes)[:-1]
        columns: dict[Table, list[Floats]] = {table: [] for table in self.blocks}
        nothing = reconstruct(strategy, np.split(np.zeros(sum(sizes)), ends))
        for unit in np.eye(sum(sizes)):
            solved = reconstruct(strategy, np.split(unit, ends))
            for table, (block, position) in self.blocks.items():
                moved = solved.answer(block, position) - nothing.answer(block, position)
                columns[table].append(moved.ravel())  # public facts add what no row does
        return {table: np.array(of_units).T for table, of_units in columns.items()}


def answers_by_draw(
    blocks: Mapping[Table, tuple[Block, int | None]], draws: Iterable[Estimates]
) -> dict[Table, Floats]:
    """Return the answers of tables in row order by each of several draws: (draws, m)."""
    answers: dict[Table, list[Floats]] = {table: [] for table in blocks}
    for estimates in draws:
        for table, known in blocks.items():
            answers[table].append(estimates.answer(*known).ravel())
    return {table: np.array(of_draws) for table, of_draws in answers.items()}


def rows_in(table: Table, margin: Table) -> Ints:
    """Return for every row of a table that row of a margin, which has some of its axes: (m,)."""
    sizes = {i: len(predicates) for i, predicates in table.axes}
    places = np.unravel_index(np.arange(table.size), table.shape) if sizes else ()
    chosen = dict(zip(sizes, places, strict=True))
    kept: Sequence[Ints] = [np.asarray(chosen[i]) for i, _ in margin.axes]
    if not kept:
        return np.zeros(table.size, dtype=np.int64)
    return np.asarray(np.ravel_multi_index(tuple(kept), margin.shape), dtype=np.int64)


REFINEMENTS = 4  # of the quantile at either end of an interval
SURE = 2.2  # thresholds from which a denominator is large by more than chance; 2 misses by 0.2 %
CERTAIN = 1e-9  # of an estimate: a standard error that is rounding
CANCELLED = 1e-4  # of the noise above: what rounding leaves of it where the noise below is the same
BEYOND_NOISE = 10  # standard errors
SAME, LEAST_SAME = 0.1, 5  # standard errors that sizes are off all answers, of so many, if the same
Critical = Callable[[Floats], Floats]
"""The quantile of |noise of n - t d| in its standard deviations, given t for every row."""


@dataclass(frozen=True, eq=False)
class DerivedRows:
    """Figures of a statistic, one a row."""

    estimate: Floats  # (m,), NaN where there is none
    std_error: Floats  # (m,), NaN where there is none
    low: Floats  # (m,) lower ends of intervals, NaN where there is none
    high: Floats  # (m,) upper ends
    lost: Bools  # (m,) where the reason holds that there is no estimate
    reason: str = ""  # why
    unsure: Bools | None = None  # (m,) where an interval is all that is known of any data, if any
    merging: Merging | None = None  # what the rows are, where some of the statistic's are added up
    # the error of the sample and that of both, where squared weights are measured
    sample: SamplingColumns | None = None

    @property
    def certain(self) -> Bools:
        """Of a row over itself nothing is uncertain, but its last digits: (m,)."""
        return np.asarray(self.std_error <= CERTAIN * np.abs(self.estimate))


@dataclass(frozen=True)
class KnownRange:
    """What is known of a quotient beforehand."""

    low: float = -np.inf  # it is no smaller
    high: float = np.inf  # it is no larger
    positive: bool = True  # whether its denominator is not below 0, so that only noise is
    step: float = 1.0  # of which the denominator is a multiple

    def lost(self, below: Floats, least: Floats) -> Bools:
        """Return which noisy denominators are not above what noise alone may be: (..., m)."""
        return np.asarray((below if self.positive else np.abs(below)) <= least)


@dataclass(frozen=True, eq=False)
class NoisyPairs:
    """Pairs of noisy answers with their variances and covariance, (m,) each."""

    above: Floats
    below: Floats
    above_variance: Floats
    below_variance: Floats
    covariance: Floats

    def deviation(self, t: Floats | float = 1.0) -> Floats:
        """Return the standard deviation of above - t below: (m,)."""
        mixed = self.above_variance - 2 * t * self.covariance + t**2 * self.below_variance
        return np.sqrt(np.maximum(mixed, 0.0))


def quotient_rows(
    pairs: NoisyPairs,
    critical: Critical,
    denominator: float | Floats,
    limits: KnownRange | None = None,
) -> DerivedRows:
    """Return quotients with their intervals.

    Quantiles are in standard deviations, at the level of the intervals; that of the denominator is
    of its own noise. Unless limits say otherwise denominators are not below 0.
    """
    limits = limits or KnownRange()
    # Where public facts leave no noise, a variance is 0 but for its last digits.
    of_above, of_below = (
        np.sqrt(np.maximum(each, 0.0)) for each in (pairs.above_variance, pairs.below_variance)
    )
    least = denominator * of_below
    lost = limits.lost(pairs.below, least)
    # A denominator other than 0 is one step or more.
    most = (np.abs(pairs.above) + BEYOND_NOISE * of_above) / limits.step
    with np.errstate(all="ignore"):
        estimate = np.where(lost, np.nan, pairs.above / pairs.below)
        std_error = pairs.deviation(estimate) / np.abs(pairs.below)
        ends = []
        for sign in (-1.0, 1.0):
            end = estimate
            for _ in range(REFINEMENTS):
                end = _end(pairs, critical(np.where(np.isnan(end), 0.0, end)), sign)
            ends.append(end)
    unsure = (np.abs(pairs.below) <= SURE * least) | np.isnan(ends).any(axis=0)
    low = np.where(unsure, np.fmin(np.maximum(limits.low, -most), estimate), ends[0])
    high = np.where(unsure, np.fmax(np.minimum(limits.high, most), estimate), ends[1])
    # Of a row over itself nothing is uncertain, but its last digits.
    certain = std_error <= CERTAIN * np.abs(estimate)
    certain |= pairs.deviation(estimate) <= CANCELLED * of_above
    estimate = np.where(certain, np.round(estimate, 9), estimate)
    std_error = np.where(certain, 0.0, std_error)
    low, high = (np.where(certain, estimate, ends) for ends in (low, high))
    estimate, std_error, low, high = (
        np.where(lost, np.nan, values) for values in (estimate, std_error, low, high)
    )
    reason = "the denominator is lost in noise"
    return DerivedRows(estimate, std_error, low, high, lost, reason, unsure & ~certain)


def difference_rows(pairs: NoisyPairs, critical: Critical) -> DerivedRows:
    """Return differences, above less below, with their intervals."""
    estimate, std_error = pairs.above - pairs.below, pairs.deviation()
    half = critical(np.ones_like(estimate)) * std_error
    never = np.zeros(len(estimate), dtype=np.bool_)
    return DerivedRows(estimate, std_error, estimate - half, estimate + half, never)


def _end(pairs: NoisyPairs, q: Floats, sign: float) -> Floats:
    """Return one root of (n - t d)^2 = q^2 var(n - t d), where the set between them is bounded."""
    square = pairs.below**2 - q**2 * pairs.below_variance
    mixed = pairs.above * pairs.below - q**2 * pairs.covariance
    # mixed^2 - square (above^2 - q^2 above_variance), without the squares that cancel in it.
    spread = (pairs.below * pairs.deviation(pairs.above / pairs.below)) ** 2
    both = pairs.above_variance * pairs.below_variance - pairs.covariance**2
    root = q * np.sqrt(np.maximum(spread - q**2 * both, 0.0))
    return np.where(square > 0, (mixed + sign * root) / square, np.nan)


@dataclass(frozen=True, eq=False)
class NoisyDistributions:
    """Noisy counts up to each value, of several groups, with covariances as quantiles need them."""

    counts: Floats  # (g, n) up to each value; the last are those of all
    variances: Floats  # (g, n) of them
    with_next: Floats  # (g, n - 1) covariance of each with the next
    with_all: Floats  # (g, n) covariance of each with the last

    @property
    def lost(self) -> Floats:
        """The number of records of each group in standard deviations of its noise: (g,)."""
        return self.counts[:, -1] / np.sqrt(np.maximum(self.variances[:, -1], 1e-300))


def quantile_places(
    counts: Floats, variances: Floats, probabilities: Sequence[float], *, interpolated: bool
) -> Floats:
    """Return where quantiles stand, in places of values or of edges of bins: (..., probabilities).

    Counts up to each value are (..., n), of several groups or draws at once, and so are variances
    but for axes that broadcast. Values that are interpolated are bins.
    """
    least = 1e-12 * variances.max(axis=-1, keepdims=True) + 1e-300
    rising = onto_rising(counts, np.maximum(variances, least))
    wanted = rising[..., -1:] * np.array(probabilities)
    passed = np.argmax(rising[..., None, :] >= wanted[..., None], axis=-1)
    if not interpolated:
        return np.asarray(passed, dtype=np.float64)
    before = np.take_along_axis(np.insert(rising, 0, 0.0, axis=-1), passed, axis=-1)
    step = np.take_along_axis(rising, passed, axis=-1) - before
    with np.errstate(all="ignore"):
        share = np.where(step > 0, np.clip((wanted - before) / step, 0, 1), 0.5)
    return np.asarray(passed + share)


@dataclass(frozen=True, eq=False)
class _Crossing:
    """P_j - p T of every group for j = -1, 0, .., n - 1, where P_-1 is 0: (g, n + 1)."""

    level: Floats
    variance: Floats
    with_next: Floats

    @classmethod
    def of(cls, noisy: NoisyDistributions, p: float) -> "_Crossing":
        of_groups = (noisy.counts, noisy.variances, noisy.with_all, noisy.with_next)
        counts, variances, with_all, with_next = (np.pad(a, ((0, 0), (1, 0))) for a in of_groups)
        every = p**2 * variances[:, -1:]
        return cls(
            counts - p * counts[:, -1:],
            np.maximum(variances - 2 * p * with_all + every, 0.0),
            with_next - p * (with_all[:, :-1] + with_all[:, 1:]) + every,
        )

    def whole_values(self, q: float) -> tuple[Floats, Floats]:
        """Return the first and last value that P_j - p T could first reach zero at: (g,) each."""
        margin = q * np.sqrt(self.variance)
        above, below = self.level + margin >= 0, self.level - margin < 0
        possible = above[:, 1:] & below[:, :-1]
        places = np.arange(possible.shape[1])
        first, last = np.where(possible, places, np.inf), np.where(possible, places, -np.inf)
        return first.min(axis=1), last.max(axis=1)

    def within_bins(self, q: float) -> tuple[Floats, Floats]:
        """Return the first and last place, in bins, at which P - p T could be zero: (g,) each.

        Within a bin it is a + b w, with a variance that is quadratic in w in [0, 1].
        """
        a, b = self.level[:, :-1], np.diff(self.level)
        v, u, c = self.variance[:, :-1], self.variance[:, 1:], self.with_next
        square = b**2 - q**2 * (v + u - 2 * c)
        mixed = a * b - q**2 * (c - v)
        plain = a**2 - q**2 * v
        start, stop = plain <= 0, square + 2 * mixed + plain <= 0
        with np.errstate(all="ignore"):
            root = np.sqrt(np.maximum(mixed**2 - square * plain, 0.0))
            roots = np.stack([(-mixed - root) / square, (-mixed + root) / square])
        exists = (mixed**2 >= square * plain) & np.isfinite(roots) & (roots >= 0) & (roots <= 1)
        first = np.where(start, 0.0, np.where(exists, roots, np.inf).min(axis=0))
        last = np.where(stop, 1.0, np.where(exists, roots, -np.inf).max(axis=0))
        places = np.arange(a.shape[1])
        return (places + first).min(axis=1), (places + last).max(axis=1)


def with_sample(
    rows: DerivedRows, statistic: Statistic, joint: JointAnswers, sampling: SamplingErrors
) -> DerivedRows:
    """Return figures with the error of the sample beside, but for quantiles.

    Nothing is said of differences between releases either, whose samples may share records.
    """
    variances = SampleVariances.poisson(np.full(len(rows.estimate), np.nan))
    match statistic:
        case Quotient():
            above, below = statistic.tables
            of_rows = rows_in(above, below)
            variances = sampling.quotient_variances(
                joint.blocks[above], joint.blocks[below], of_rows, rows.estimate
            )
            square = joint.estimate(below)[of_rows] ** 2
            variances = variances._replace(variance=variances.variance / square)
        case Difference(release=""):
            variances = sampling.difference_variances(
                joint.blocks[statistic.first], joint.blocks[statistic.second]
            )
        case Rate():
            scale = statistic.per / np.array(statistic.population)
            variances = sampling.variances(*joint.blocks[statistic.rows]).times(scale**2)
        case MergedRows() if rows.merging is not None:
            std = np.sqrt(rows.merging.variances)
            place = joint.blocks[statistic.rows]
            variances = sampling.merged_variances(*place, rows.merging.sums, std)
    ends = (rows.low, rows.high)
    return replace(rows, sample=sampling.together(variances, rows.estimate, rows.std_error, ends))


def derived_rows(
    statistic: Statistic,
    joint: JointAnswers,
    domain: Domain,
    *,
    level: float,
    other: JointAnswers | None = None,
) -> DerivedRows:
    """Return the figures of a statistic, one a row.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.
    """
    match statistic:
        case Quotient():
            critical = _critical(joint, statistic, level)
            alone = variation_alone(joint, statistic.denominator, level)[rows_in(*statistic.tables)]
            pairs = pairs_of(statistic, joint)
            return quotient_rows(
                pairs, critical, alone, replace(limits_of(statistic), step=joint.step)
            )
        case Difference():
            critical = _critical(joint, statistic, level)
            if other is not None:
                q = max(widest_quantile(one, level) for one in (joint, other))
                critical = partial(np.full_like, fill_value=q)
            return difference_rows(pairs_of(statistic, joint, other), critical)
        case Rate(rows=table):
            of_rows = variation_alone(joint, table, level)
            return difference_rows(pairs_of(statistic, joint), lambda t: of_rows)
        case Quantiles():
            return _quantiles(statistic, joint, domain, level)
        case MergedRows():
            return _merged(statistic, joint, domain, level)
    assert_never(statistic)


def estimates_of(
    statistic: Statistic,
    joint: JointAnswers,
    domain: Domain,
    answers: Mapping[Table, Floats],
    *,
    level: float,
    times: float = 1.0,
) -> Floats:
    """Return what a statistic is of several draws of noisy answers: (draws, rows).

    NaN where a denominator or a total is lost in noise.

    Args:
        statistic: of answers of one release.
        joint: how their noise varies.
        domain: of the release.
        answers: of its tables, (draws, m).
        level: of what counts as lost.
        times: how many times the noise that it is in `joint`; 0 of true answers.
    """
    match statistic:
        case Quotient():
            (above, below), of_rows = statistic.tables, rows_in(*statistic.tables)
            stds = np.sqrt(np.maximum(joint.variances(below), 0.0))
            least = times * (variation_alone(joint, below, level) * stds)[of_rows]
            under = answers[below][:, of_rows]
            with np.errstate(all="ignore"):
                quotients = answers[above] / under
            return np.where(limits_of(statistic).lost(under, least), np.nan, quotients)
        case Quantiles(cumulative=table):
            places = rows_along(table, statistic.attribute)  # group by group: (groups, n)
            counts, variances = answers[table][:, places], joint.variances(table)[places]
            ends, bins = quantile_ends(statistic, domain)
            passed = quantile_places(counts, variances, statistic.probabilities, interpolated=bins)
            least = times * widest_quantile(joint, level) * np.sqrt(variances[:, -1])
            values = np.interp(passed, np.arange(len(ends)), ends)
            lost = counts[..., -1] <= least
            return np.where(lost[..., None], np.nan, values).reshape(len(counts), -1)
        case Difference():
            return answers[statistic.first] - answers[statistic.second]
        case Rate(rows=table):
            return answers[table] * (statistic.per / np.array(statistic.population))
        case MergedRows():
            return _merging(statistic, joint, domain).sums(answers[statistic.rows].T).T
    assert_never(statistic)


def pairs_of(
    statistic: Quotient | Difference | Rate, joint: JointAnswers, other: JointAnswers | None = None
) -> NoisyPairs:
    """Return what is divided or subtracted, row by row; of a rate nothing is subtracted."""
    if isinstance(statistic, Rate):
        table, scale = statistic.rows, statistic.per / np.array(statistic.population)
        variance, nothing = joint.variances(table) * scale**2, np.zeros(table.size)
        return NoisyPairs(joint.estimate(table) * scale, nothing, variance, nothing, nothing)
    (above, below), of_rows = statistic.tables, rows_in(*statistic.tables)
    beside = other or joint
    return NoisyPairs(
        joint.estimate(above),
        beside.estimate(below)[of_rows],
        joint.variances(above),
        beside.variances(below)[of_rows],
        np.zeros(above.size)  # the noise of two releases is independent
        if other is not None
        else joint.covariance(above, np.arange(above.size), below, of_rows),
    )


def merging_at(
    statistic: MergedRows, joint: JointAnswers, domain: Domain, noise_std: float
) -> Merging:
    """Return what is added up where measured rows have noise of this size; `joint` may differ."""
    table, scale = statistic.rows, (noise_std / joint.measured.noise_std) ** 2
    covariances = (
        scale * joint.covariance(table, rows[:, None], table, rows[None, :])
        for rows in rows_along(table, statistic.attribute)
    )
    return merging_of(statistic, covariances, domain.attributes[statistic.attribute])


def _merging(statistic: MergedRows, joint: JointAnswers, domain: Domain) -> Merging:
    if statistic not in joint.merged:
        joint.merged[statistic] = merging_at(statistic, joint, domain, joint.measured.noise_std)
    return joint.merged[statistic]


def _merged(
    statistic: MergedRows, joint: JointAnswers, domain: Domain, level: float
) -> DerivedRows:
    merging = _merging(statistic, joint, domain)
    estimate = merging.sums(joint.estimate(statistic.rows))
    nothing = np.zeros(len(estimate))
    if not joint.has_coefficients:
        q: Floats = np.full(len(estimate), widest_quantile(joint, level))
    else:
        rows = merging.sums(joint.coefficients[statistic.rows])
        q = _laplace_critical(rows, rows, np.arange(len(rows)), level, nothing)
    pairs = NoisyPairs(estimate, nothing, merging.variances, nothing, nothing)
    return replace(difference_rows(pairs, lambda t: q), merging=merging)


def has_own_sizes(statistic: MergedRows, joint: JointAnswers) -> bool:
    """Return whether the sizes to expect are the answers themselves, by whose noise rows merge."""
    sizes, answers = np.array(statistic.sizes), joint.estimate(statistic.rows)
    close = np.abs(answers - sizes) <= SAME * np.sqrt(joint.variances(statistic.rows))
    return bool((sizes > 0).sum() >= LEAST_SAME and close[sizes > 0].all())


def limits_of(statistic: Quotient) -> KnownRange:
    """Return what is known of a quotient of any data: a share is not above 1."""
    above, below = statistic.tables
    values, others = ((0, 1) if t.summed is None else t.summed.values for t in (above, below))
    positive = min(others) >= 0
    low = 0.0 if positive and min(values) >= 0 else -np.inf
    if statistic.kind == "share" and low == 0:
        return KnownRange(0.0, 1.0)
    if statistic.kind == "mean" and _counts_what_is_summed(above, below):
        return KnownRange(min(values), max(values))
    return KnownRange(low, positive=positive)


def _counts_what_is_summed(total: Table, count: Table) -> bool:
    """Return whether a table counts the records of a sum, but for those that may add nothing."""
    if total.summed is None or replace(count, where=total.where) != replace(total, summed=None):
        return False
    if not set(total.where) <= set(count.where):
        return False
    for i, kept in set(count.where) - set(total.where):
        if i != total.summed.attribute or not isinstance(kept, IntervalSet):
            return False
        counted = {code for first, last in kept.bounds for code in range(first, last + 1)}
        if any(value for k, value in enumerate(total.summed.values) if k not in counted):
            return False
    return True


def _critical(joint: JointAnswers, statistic: Quotient | Difference, level: float) -> Critical:
    """Return quantiles of the noise of above - t below.

    Where Laplace noise is that of too many rows, the largest of any sum of it stands for all.
    """
    if not joint.has_coefficients:
        return partial(np.full_like, fill_value=widest_quantile(joint, level))
    first, second = (joint.coefficients[table] for table in statistic.tables)
    return partial(_laplace_critical, first, second, rows_in(*statistic.tables), level)


def variation_alone(joint: JointAnswers, table: Table, level: float) -> Floats:
    """Return quantiles of a table's noise in its standard deviations: (m,).

    A denominator below its own is lost in noise.
    """
    if not joint.has_coefficients:
        return np.full(table.size, widest_quantile(joint, level))
    block, position = joint.blocks[table]
    known = laplace_quantiles(joint.measured.strategy, block, position=position, level=level)
    if known is not None:
        return known
    rows = joint.coefficients[table]
    return _laplace_critical(rows, rows, np.arange(len(rows)), level, np.zeros(len(rows)))


def widest_quantile(joint: JointAnswers, level: float) -> float:
    """Return a quantile that holds for all sums of the noise."""
    if joint.measured.strategy.noise == "gaussian":
        return float(ndtri((1 + level) / 2))
    return largest_quantile(level)


def _laplace_critical(
    first: Floats, second: Floats, of_rows: Ints, level: float, t: Floats
) -> Floats:
    """Return the quantile of first - t second times unit Laplace noise, in standard deviations."""
    out = np.empty(len(t))
    step = max(1, ROW_CHUNK // max(1, first.shape[1]))
    for start in range(0, len(t), step):
        rows = slice(start, start + step)
        squares = (first[rows] - t[rows, None] * second[of_rows[rows]]) ** 2
        total = squares.sum(axis=1)
        shares = squares / np.where(total > 0, total, 1.0)[:, None]
        powers = (shares**2).sum(axis=1), (shares**3).sum(axis=1)
        out[rows] = laplace_quantile(*powers, level)
    return out


def _quantiles(
    statistic: Quantiles, joint: JointAnswers, domain: Domain, level: float
) -> DerivedRows:
    table = statistic.cumulative
    places = rows_along(table, statistic.attribute)
    noisy = NoisyDistributions(
        joint.estimate(table)[places],
        joint.covariance(table, places, table, places),
        joint.covariance(table, places[:, :-1], table, places[:, 1:]),
        joint.covariance(table, places, table, np.broadcast_to(places[:, -1:], places.shape)),
    )
    ends, bins = quantile_ends(statistic, domain)
    q = widest_quantile(joint, level)
    passed = quantile_places(
        noisy.counts, noisy.variances, statistic.probabilities, interpolated=bins
    )
    low, high = passed.copy(), passed.copy()
    for k, p in enumerate(statistic.probabilities):
        one = _Crossing.of(noisy, p)
        first, last = one.within_bins(q) if bins else one.whole_values(q)
        low[:, k], high[:, k] = np.minimum(first, low[:, k]), np.maximum(last, high[:, k])
    lost = np.broadcast_to((noisy.lost <= q)[:, None], passed.shape).ravel()
    estimate, low, high = (  # group by group: (g * probabilities,)
        np.where(lost, np.nan, np.interp(places.ravel(), np.arange(len(ends)), ends))
        for places in (passed, low, high)
    )
    unknown, reason = np.full(len(lost), np.nan), "the total is lost in noise"
    return DerivedRows(estimate, unknown, low, high, lost, reason)


def quantile_ends(statistic: Quantiles, domain: Domain) -> tuple[Floats, bool]:
    """Return what the values are called, and whether they are bins: (n,), or (n + 1,) edges."""
    kind = domain.attributes[statistic.attribute].columns[0].kind
    codes = domain.shape[statistic.attribute]
    match kind:
        case Bins(edges=edges):
            return np.array(edges), True
        case Integers(low=low):
            return low + np.arange(float(codes)), False
        case _:
            return np.arange(float(codes)), False  # places of periods
