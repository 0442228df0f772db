"""What a derived item is, worked out from noisy answers and their joint covariance."""

from dataclasses import replace
from functools import partial
from typing import assert_never

import numpy as np
from scipy.special import ndtri

from dpquery.arrays import Floats, Ints
from dpquery.operators.factors import ROW_CHUNK
from dpquery.reconstruction.derived.joint_answers import JointAnswers, rows_in
from dpquery.reconstruction.derived.quantiles import NoisyDistributions, quantile_rows
from dpquery.reconstruction.derived.quotients import (
    Critical,
    DerivedRows,
    KnownRange,
    NoisyPairs,
    difference_rows,
    quotient_rows,
)
from dpquery.reconstruction.laplace_sums import laplace_quantile, largest_quantile
from dpquery.spec.domain import Bins, Domain, Integers
from dpquery.spec.model import Difference, Quantiles, Quotient, Rate, Statistic, Table
from dpquery.spec.predicates import IntervalSet


def derived_rows(
    statistic: Statistic,
    joint: JointAnswers,
    domain: Domain,
    *,
    level: float,
    other: JointAnswers | None = None,
) -> DerivedRows:
    """Return the figures of a statistic, one a row.

    Args:
        statistic: of which tables it is made.
        joint: their answers.
        other: those of another release, for a difference from it.
        domain: of the spec.
        level: of the intervals.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.
    """
    match statistic:
        case Quotient(numerator=above, denominator=below):
            pairs = _pairs(joint, above, below, rows_in(above, below))
            critical, alone = _critical(joint, above, below, rows_in(above, below), level)
            return quotient_rows(pairs, critical, alone, limits_of(statistic))
        case Difference(first=first, second=second):
            if other is not None:
                return _between_releases(first, joint, other, level)
            same = np.arange(first.size)
            critical, _ = _critical(joint, first, second, same, level)
            return difference_rows(_pairs(joint, first, second, same), critical)
        case Rate(rows=table, per=per, population=population):
            scale = per / np.array(population)
            rows, nothing = np.arange(table.size), np.zeros(table.size)
            variance = joint.covariance(table, rows, table, rows) * scale**2
            noisy = NoisyPairs(joint.estimate(table) * scale, nothing, variance, nothing, nothing)
            critical, _ = _critical(joint, table, table, rows, level)
            return difference_rows(noisy, lambda t: critical(np.zeros_like(t)))
        case Quantiles():
            return _quantiles(statistic, joint, domain, level)
    assert_never(statistic)


def limits_of(statistic: Quotient) -> KnownRange:
    """Return what is known of a quotient of any data: a share is not above 1."""
    above, below = statistic.numerator, statistic.denominator
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


def _pairs(joint: JointAnswers, above: Table, below: Table, of_rows: Ints) -> NoisyPairs:
    """Return every row of a table beside its row of another."""
    rows, others = np.arange(above.size), np.arange(below.size)
    return NoisyPairs(
        joint.estimate(above),
        joint.estimate(below)[of_rows],
        joint.covariance(above, rows, above, rows),
        joint.covariance(below, others, below, others)[of_rows],
        joint.covariance(above, rows, below, of_rows),
    )


def _between_releases(
    table: Table, joint: JointAnswers, other: JointAnswers, level: float
) -> DerivedRows:
    """Return a table of one release less that of another, whose noise is independent."""
    rows = np.arange(table.size)
    first, second = (one.covariance(table, rows, table, rows) for one in (joint, other))
    estimates, apart = (joint.estimate(table), other.estimate(table)), np.zeros(len(rows))
    pairs = NoisyPairs(*estimates, first, second, apart)
    q = max(widest_quantile(one, level) for one in (joint, other))
    return difference_rows(pairs, lambda t: np.full(t.shape, q))


def _critical(
    joint: JointAnswers, above: Table, below: Table, of_rows: Ints, level: float
) -> tuple[Critical, float | Floats]:
    """Return quantiles of the noise of above - t below, and that of below alone.

    Where Laplace noise is that of too many rows, the largest of any sum of it stands for all.
    """
    if joint.coefficients is None:
        q = widest_quantile(joint, level)
        return lambda t: np.full(t.shape, q), q
    first, second = joint.coefficients[above], joint.coefficients[below]
    of_mixture = partial(_laplace_critical, first, second, of_rows, level)
    return of_mixture, variation_alone(joint, below, level)[of_rows]


def variation_alone(joint: JointAnswers, table: Table, level: float) -> Floats:
    """Return quantiles of a table's noise in its standard deviations: (m,).

    A denominator below its own is lost in noise.
    """
    if joint.coefficients is None:
        return np.full(table.size, widest_quantile(joint, level))
    rows = joint.coefficients[table]
    return _laplace_critical(rows, rows, np.arange(len(rows)), level, np.zeros(len(rows)))


def widest_quantile(joint: JointAnswers, level: float) -> float:
    """Return a quantile that holds for all sums of the noise."""
    if joint.strategy.noise == "gaussian":
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
    table, places = statistic.cumulative, rows_by_group(statistic)
    noisy = NoisyDistributions(
        joint.estimate(table)[places],
        joint.covariance(table, places, table, places),
        joint.covariance(table, places[:, :-1], table, places[:, 1:]),
        joint.covariance(table, places, table, np.broadcast_to(places[:, -1:], places.shape)),
    )
    ends, bins = quantile_ends(statistic, domain)
    q = widest_quantile(joint, level)
    return quantile_rows(noisy, statistic.probabilities, q, ends=ends, interpolated=bins)


def rows_by_group(statistic: Quantiles) -> Ints:
    """Return the rows of the cumulative counts, group by group: (groups, n)."""
    table = statistic.cumulative
    axis = [i for i, _ in table.axes].index(statistic.attribute)
    places = np.arange(table.size).reshape(table.shape)
    return np.moveaxis(places, axis, -1).reshape(-1, table.shape[axis])


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
