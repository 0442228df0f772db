"""The error of a sample beside that of its noise, from private sums of squared weights.

Records of a population that were drawn each by itself, with chances of one over their weights w
(Poisson sampling), give a sum of w y the variance that the sum of w (w - 1) y^2 over those drawn
estimates without bias ([SSW92], 3.5). Weights that are no inverse chances, but scaled, say nothing
of how many were not drawn: of them it is the sum of w^2 y^2. Times the declared design effect it is
what clusters and strata make of it.

Where a fixed number n of records was drawn from each stratum, and what is summed is measured by
stratum too, the variance is the sum over strata of n / (n - 1) times S - T^2 / n ([SSW92], 3.7): S
and T are the sums of w^2 y^2 and w y over its records. Under inverse chances, which are n / N to
all of a stratum of N, it is 1 - n / N times that: S is then the sum of w (w - 1) y^2, and T^2 is
taken 1 - n / N times, where N is what all weights of the stratum add up to. The square of an
estimate of T is T^2 on average and the variance of its noise more, which is taken off. So what is
told is without bias. Where noise may hide it, LEAST times its standard error is added, up to the
figure of Poisson sampling, which stays where no measured table has the strata: that is too large
rather than too small.

Where n clusters were drawn from each stratum, few of many, the variance is the sum over strata of
n / (n - 1) times that of the squares of what the totals of clusters differ from their mean by
([SSW92], 4), wherever that is measured by stratum and cluster. The variance of the noise in these
differences is taken off the squares, so that this is without bias too. It is told where it is LEAST
times its standard error by noise, elsewhere what the design effect makes of Poisson's figure:
where that is no less than the truth, noise has this decide for the larger of both. Intervals are by
Student's t, with one degree of freedom less than clusters a stratum, and fewer for noise: twice
the square of a variance over the variance of its estimate (Satterthwaite).

Sums of squares are measured over the same tables as the weights, with noise of their own. Whether
one is told is not for that noise to decide, since those that it makes large would be told, and be
too large: what is expected of a sum of squares is the same sum of weights, times the ratio of both
that public numbers say, and it is told where that is LEAST times its standard error. Below 0
nothing is said.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from dpquery.arrays import Bools, Floats, Ints
from dpquery.operators.blocks import Block, product
from dpquery.operators.factors import Factor, Groups, Identity, Valued
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import Measured, TableAnswers
from dpquery.spec.spec import Spec
from dpquery.strategy.algebra.query_powers import QueryPairs, QueryRows, rows_of
from dpquery.strategy.strategy import Strategy

MOST_BY_STRATUM = 1 << 20  # answers times strata, of which what strata take off is worked out
LEAST = 3.0  # standard errors that a sum of squares is expected to have where it is used
SQUARES_NOT_MEASURED = (
    "squares of what it adds up are not measured; ask for a table by that column as well"
)
HIDDEN_BY_NOISE = "noise may hide the sums of squared weights that it takes"


class SamplingColumns(NamedTuple):
    """The errors of the sample, and of sample and noise together, (m,) each."""

    sampling_std: Floats
    total_std: Floats
    total_low: Floats
    total_high: Floats


class Taken(NamedTuple):
    """Answers of a release, each taken so many times."""

    rows: QueryRows  # of shape (m,)
    times: Floats  # (m,)


def sum_of(measured: Measured, parts: Sequence[Taken]) -> Floats:
    """Return what the parts add up to, by what was measured: (m,)."""
    return np.asarray(sum(_part_of(measured, part) for part in parts))


def std_of(measured: Measured, parts: Sequence[Taken]) -> Floats:
    """Return the standard error that noise gives to what the parts add up to: (m,)."""
    variances = sum(
        one.times * other.times * measured.covariances(QueryPairs(one.rows, other.rows))
        for one in parts
        for other in parts
    )
    return np.sqrt(np.maximum(variances, 0.0))


def _part_of(measured: Measured, part: Taken) -> Floats:
    block, places, position = part.rows.block, part.rows.places, part.rows.position
    return part.times * measured.estimates.answer(block, position).ravel()[places]


@dataclass(frozen=True, eq=False)
class SampleDesign:
    """The classes from each of which fixed numbers of records, or of clusters, were drawn."""

    stratum: int | None  # the attribute whose classes are strata; None where all is one stratum
    drawn: Floats  # (n,) records, or clusters, from each class; 0 where it is not one stratum
    # the attribute that tells clusters apart, and its class of each; None where records were drawn
    cluster: int | None = None
    clusters: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def of(cls, spec: Spec, classes: Sequence[Ints]) -> "SampleDesign | None":
        """Return that of a spec whose codes are counted in classes; None where it has none."""
        weight = spec.privacy.weight
        if weight is None or weight.drawn is None:
            return None
        given = weight.drawn
        rows, whole = np.array(given.rows, dtype=np.float64), True
        clusters = np.zeros(0, dtype=np.int64)
        if given.cluster is not None:
            clusters = classes[given.cluster][: spec.domain.attributes[given.cluster].length]
            whole = bool((np.bincount(classes[given.cluster])[clusters] == 1).all())
        if given.stratum is not None:
            of_codes = classes[given.stratum]
            rows = np.where(np.bincount(of_codes) == 1, np.bincount(of_codes, rows), 0.0)
        return cls(given.stratum, rows * whole, given.cluster, clusters)

    @property
    def strata(self) -> Ints:
        """The classes that are strata, in order."""
        return np.flatnonzero(self.drawn)

    def told_by(self, strategy: Strategy, blocks: Sequence[Block]) -> bool:
        """Return whether a strategy holds the answers of blocks by what was drawn too."""
        cells = len(self.drawn) * max(1, len(self.clusters))
        return (
            bool(self.drawn.any())
            and all(block.is_product for block in blocks)
            and max(block.queries for block in blocks) * cells <= MOST_BY_STRATUM
            and not any(self.cluster in block.attributes for block in blocks)
            and all(strategy.supports(self.by_units(block)) for block in blocks)
        )

    def by_units(self, block: Block, *, summed: bool = False) -> Block:
        """Return a product with one query a stratum, and a cluster, in place of its predicates.

        Only those that were drawn from: others need not be measured. Summed, it has one for all
        clusters of a stratum.
        """
        factors: dict[int, Factor] = dict(zip(block.attributes, block.factors, strict=True))
        if self.stratum is not None:
            factors[self.stratum] = _each(self.strata, len(self.drawn))
        if self.cluster is not None:
            size, every = block.shape_of_domain[self.cluster], tuple(self.clusters.tolist())
            of_clusters = Groups.of((every,), size) if summed else _each(self.clusters, size)
            factors[self.cluster] = of_clusters
        return product(block.shape_of_domain, factors)

    def times(self, part: Taken) -> Floats:
        """Return how many times every stratum is in the answers of a part: (m, n)."""
        if self.stratum is None or self.stratum not in part.rows.block.attributes:
            return np.tile(part.times[:, None], len(self.drawn))
        factor, chosen = part.rows.predicates[self.stratum]
        return part.times[:, None] * rows_of(factor, np.arange(factor.shape[0])).T[chosen]

    def met_by(self, values: Sequence[Taken]) -> Bools:
        """Return which strata are in values: (m, n)."""
        found = np.any([self.times(part) != 0 for part in values], axis=0)
        return np.asarray(found & (self.drawn > 0))

    def within(self, part: Taken, row: Ints, stratum: Ints, cluster: Ints | None = None) -> Taken:
        """Return what some strata, or clusters of theirs, add to rows of a part, pair by pair."""
        block = self.by_units(part.rows.block, summed=cluster is None)
        chosen = {i: numbers[row] for i, (_, numbers) in part.rows.predicates.items()}
        if self.stratum is not None:
            chosen[self.stratum] = np.searchsorted(self.strata, stratum)
        if self.cluster is not None:
            chosen[self.cluster] = np.zeros_like(row) if cluster is None else cluster
        picked = [chosen[i] for i in block.attributes]
        places = np.ravel_multi_index(picked, block.row_shape) if picked else np.zeros_like(row)
        return Taken(QueryRows(block, np.asarray(places)), self.times(part)[row, stratum])


class SampleVariances(NamedTuple):
    """The variances that a sample makes of answers, (m,) each; nan where nothing is said."""

    variance: Floats
    by_design: Bools  # whether it is less than that of Poisson sampling, or made by clusters
    # of freedom, that it was estimated with; infinite but for clusters, which are few
    degrees: Floats

    @classmethod
    def poisson(cls, variance: Floats) -> "SampleVariances":
        """Return variances to which the design has nothing to say."""
        return cls(variance, np.zeros(len(variance), bool), np.full(len(variance), np.inf))

    def times(self, factor: float | Floats) -> "SampleVariances":
        """Return those of answers whose squares are a factor times as large."""
        return self._replace(variance=self.variance * factor)


@dataclass(frozen=True, eq=False)
class SamplingErrors(ABC):
    """What was measured for the error of a sample, and what it says of it."""

    weights: Measured  # the sums of weights, with noise
    level: float  # of the intervals
    # the variances of blocks that were asked for, by position in the plan's workload
    _known: dict[int, SampleVariances] = field(init=False, default_factory=dict)

    def variances(self, block: Block, position: int | None) -> SampleVariances:
        """Return the variance of each answer of a block that the sample makes."""
        if position is None:
            return self.of_block(block, position)
        if position not in self._known:
            self._known[position] = self.of_block(block, position)
        return self._known[position]

    @abstractmethod
    def of_block(self, block: Block, position: int | None) -> SampleVariances:
        """Work out the same."""

    @abstractmethod
    def quotient_variances(
        self,
        above: tuple[Block, int | None],
        below: tuple[Block, int | None],
        of_rows: Ints,
        quotients: Floats,
    ) -> SampleVariances:
        """Return the variance that the sample makes of each answer above less R times one below.

        That of a quotient R is this over the square of its denominator (Taylor linearisation).

        The answers above and below are a block with its position in the plan's workload; quotients
        are (m,), and `of_rows` is which answer below each is over.
        """

    @abstractmethod
    def difference_variances(
        self, first: tuple[Block, int | None], second: tuple[Block, int | None]
    ) -> SampleVariances:
        """Return the variance that the sample makes of answers of a block less those of another."""

    @abstractmethod
    def merged_variances(
        self, block: Block, position: int | None, merged: Callable[[Floats], Floats], std: Floats
    ) -> SampleVariances:
        """Return those of sums of answers of a block, whose noise has the standard errors given."""

    @abstractmethod
    def missing(self, block: Block, position: int | None) -> str:
        """Return why nothing is known of the sample in any answer of a block, if that is so."""

    def columns(self, answers: TableAnswers, block: Block, position: int | None) -> SamplingColumns:
        """Return the columns beside the answers of a block, (m,) each; nan where noise hides it."""
        if answers.std_error is None or answers.half_width is None:
            raise ValueError("answers without standard errors have no intervals")
        variances = self.variances(block, position)
        if answers.stated is not None:  # what public facts state is no estimate from a sample
            variances = variances.times(np.where(answers.stated > 0, np.nan, 1.0))
        ends = (answers.estimate - answers.half_width, answers.estimate + answers.half_width)
        return self.together(variances, answers.estimate, answers.std_error, ends)

    def together(
        self,
        variances: SampleVariances,
        estimate: Floats,
        std_error: Floats,
        ends: tuple[Floats, Floats],
    ) -> SamplingColumns:
        """Return the columns of estimates, given what the sample varies and noise intervals.

        An end is as far off as the noise's and the sample's are as sides of a right angle.
        """
        sampling, (low, high) = np.sqrt(variances.variance), ends
        beyond = stdtrit(variances.degrees, (1 + self.level) / 2) * sampling
        return SamplingColumns(
            sampling,
            np.hypot(std_error, sampling),
            estimate - np.hypot(estimate - low, beyond),
            estimate + np.hypot(high - estimate, beyond),
        )


@dataclass(frozen=True, eq=False)
class SquareErrors(SamplingErrors):
    """The estimated sums of squared weights of all tables, and what they say of a sample."""

    squares: Measured  # those of their squares, or of w (w - 1)
    ratio: float  # of these to the weights, as public numbers have it
    design_effect: float  # how many times the variance of Poisson sampling there is
    design: SampleDesign | None = None
    inclusion: bool = False  # whether squares are less the weights, which are inverse chances

    def of_block(self, block: Block, position: int | None) -> SampleVariances:
        """Return the variance of each answer of a block that the sample makes."""
        known, noise = self._of_squares(block, position)
        squared, every = of_squared_values(block), np.arange(block.queries)
        places = (position, position if squared is block else None)
        rows = map(QueryRows, (block, squared), (every, every), places)
        values, squares = ([Taken(each, np.ones(len(every)))] for each in rows)
        return self._by_design(known, noise, values, squares)

    def merged_variances(
        self, block: Block, position: int | None, merged: Callable[[Floats], Floats], std: Floats
    ) -> SampleVariances:
        """Return those of sums of answers of a block, to which the design has nothing to say."""
        noise = self.squares.noise_std / self.weights.noise_std * std
        sums = np.array([*map(merged, self.sums(block, position))])
        return SampleVariances.poisson(self.known(sums, noise))

    def _of_squares(self, block: Block, position: int | None) -> tuple[Floats, Floats]:
        """Return the variances of Poisson sampling, and the noise in the sums of squares."""
        squared = of_squared_values(block)
        position = position if squared is block else None
        if not self._supports(squared, position):
            return np.full(block.queries, np.nan), np.full(block.queries, np.nan)
        strategy, std = self.squares.strategy, self.squares.noise_std
        noise = standard_errors(strategy, squared, position=position, noise_std=std)
        return self.known(self.sums(squared, position), noise), noise

    def quotient_variances(
        self,
        above: tuple[Block, int | None],
        below: tuple[Block, int | None],
        of_rows: Ints,
        quotients: Floats,
    ) -> SampleVariances:
        """Return the variance that the sample makes of each answer above less R times one below.

        A record that adds y to the one and x to the other adds w (y - R x) to both. Where x is 1 of
        all with y, that takes sums of w^2 y^2, w^2 y and w^2 x; elsewhere nothing is said.
        """
        if not _holds(below[0], above[0]):
            return SampleVariances.poisson(np.full(above[0].queries, np.nan))
        squared, every = of_squared_values(above[0]), np.arange(above[0].queries)
        counts = squared is above[0]  # whose y is its own square
        rows = [QueryRows(above[0], every, above[1]), QueryRows(below[0], of_rows, below[1])]
        squares = [*map(Taken, rows, [counts - 2 * quotients, quotients**2])]
        if not counts:
            squares.append(Taken(QueryRows(squared, every, None), np.ones(len(every))))
        values = [*map(Taken, rows, [np.ones(len(every)), -quotients])]
        return self._combined(squares, values, over=Taken(rows[1], np.ones(len(every))))

    def difference_variances(
        self, first: tuple[Block, int | None], second: tuple[Block, int | None]
    ) -> SampleVariances:
        """Return the variance that the sample makes of answers of a block less those of another.

        No record is in both; elsewhere nothing is said.
        """
        if _overlap(first[0], second[0]):
            return SampleVariances.poisson(np.full(first[0].queries, np.nan))
        every, one = np.arange(first[0].queries), np.ones(first[0].queries)
        squares, values = list[Taken](), list[Taken]()
        for sign, (block, position) in zip((1, -1), (first, second), strict=True):
            squared = of_squared_values(block)
            place = position if squared is block else None
            squares.append(Taken(QueryRows(squared, every, place), one))
            values.append(Taken(QueryRows(block, every, position), sign * one))
        return self._combined(squares, values)

    def _combined(
        self, squares: Sequence[Taken], values: Sequence[Taken], *, over: Taken | None = None
    ) -> SampleVariances:
        """Return the variances that sums of squares make together.

        Values are what they are squares of; `over` is the denominator of a quotient.
        """
        if not all(self._supports(one.rows.block, one.rows.position) for one in squares):
            return SampleVariances.poisson(np.full(len(squares[0].times), np.nan))
        both = (self.squares, self.weights)
        parts = np.array([[_part_of(each, one) for each in both] for one in squares])
        total = parts.sum(axis=0)
        certain = np.abs(total) <= 1e-9 * np.abs(parts).sum(axis=0)  # of a row over itself
        noise = std_of(self.squares, squares)
        found = self._by_design(self.known(total, noise), noise, values, squares, over=over)
        return found._replace(variance=np.where(certain[0], 0.0, found.variance))

    def _by_design(
        self,
        known: Floats,
        noise: Floats,
        values: Sequence[Taken],
        squares: Sequence[Taken],
        *,
        over: Taken | None = None,
    ) -> SampleVariances:
        """Return variances by the declared design where what was measured holds it.

        Args:
            known: variances of Poisson sampling, (m,), nan where they are hidden.
            noise: in their sums of squares, (m,).
            values: what is added up.
            squares: the sums of its squares.
            over: the denominator of a quotient, whose noise is in all strata.
        """
        design, found = self.design, SampleVariances.poisson(known)
        blocks = [part.rows.block for part in (*values, *squares)]
        if design is None or not design.told_by(self.squares.strategy, blocks):
            return found
        with np.errstate(all="ignore"):  # shares of nothing, of which nothing is told
            if design.cluster is not None:
                return self._of_clusters(found, design, values, over)
            left = self._less_strata(known, noise, design, values, squares, over)
        return found._replace(variance=left, by_design=np.asarray(left < known))

    def _of_clusters(
        self,
        found: SampleVariances,
        design: SampleDesign,
        values: Sequence[Taken],
        over: Taken | None,
    ) -> SampleVariances:
        """Return the variances that totals of clusters make, where noise does not hide them."""
        row, stratum = np.nonzero(design.met_by(values))
        clusters = np.arange(len(design.clusters))
        pair, cluster = np.repeat(np.arange(len(row)), len(clusters)), np.tile(clusters, len(row))
        z, std = self._parts(design, values, over, row[pair], stratum[pair], cluster)
        every, its_std = self._parts(design, values, over, row, stratum, None)
        n = design.drawn[stratum]
        spread = np.bincount(pair, z**2 - std**2, len(row)) - (every**2 - its_std**2) / n
        largest, fourth = np.zeros(len(row)), np.bincount(pair, std**4, len(row))
        np.fmax.at(largest, pair, std**2)
        most = np.zeros(len(found.variance))
        np.fmax.at(most, row, largest * n / (n - 1))

        def by_row(of_pairs: Floats) -> Floats:
            return np.bincount(row, of_pairs, len(most)).astype(np.float64)

        variance = by_row(spread * n / (n - 1))
        doubt = np.sqrt(4 * most * np.abs(variance) + 2 * by_row(fourth * (n / (n - 1)) ** 2))
        told = (variance >= LEAST * doubt) & (variance > 0)
        degrees = 1 / (1 / by_row(n - 1) + (doubt / variance) ** 2 / 2)
        variance = np.where(told, variance, found.variance)
        return SampleVariances(variance, told, np.where(told, degrees, np.inf))

    def _parts(
        self,
        design: SampleDesign,
        values: Sequence[Taken],
        over: Taken | None,
        row: Ints,
        stratum: Ints,
        cluster: Ints | None,
    ) -> tuple[Floats, Floats]:
        """Return what strata or clusters add to values, pair by pair, and the noise in that.

        Less their share of all values over a denominator: these add up to 0, but for their noise.
        """
        inside = [design.within(part, row, stratum, cluster) for part in values]
        if over is not None:
            share = sum_of(self.weights, [design.within(over, row, stratum, cluster)])
            share = share / sum_of(self.weights, [over])[row]
            inside += [_some(part, row, -share) for part in values]
        return sum_of(self.weights, inside), std_of(self.weights, inside)

    def _less_strata(
        self,
        known: Floats,
        noise: Floats,
        design: SampleDesign,
        values: Sequence[Taken],
        squares: Sequence[Taken],
        over: Taken | None,
    ) -> Floats:
        """Return variances less what strata take off, as far as noise does not hide it.

        What is left is told as it is where it is expected to be LEAST times the noise in it; where
        it is not, no less is told than so much above it.
        """
        row, stratum = np.nonzero(design.met_by(values))
        of_squares = [design.within(part, row, stratum) for part in squares]
        drawn, rest = design.drawn[stratum], np.ones(len(row))
        mean, ratio = (of_strata[stratum] for of_strata in self._weights_of_strata)
        if self.inclusion:
            rest = 1 - 1 / np.maximum(mean, 1.0)
        z, std = self._parts(design, values, over, row, stratum, None)
        sums = [sum_of(each, of_squares) for each in (self.squares, self.weights)]
        taken = rest * (z**2 - std**2)
        doubt = std_of(self.squares, of_squares) + rest * std * np.sqrt(4 * z**2 + 5 * std**2)
        expected = drawn * ratio * sums[1] - taken

        def by_row(of_pairs: Floats) -> Floats:
            return np.bincount(row, of_pairs / (drawn - 1), len(known)).astype(np.float64)

        effect = self.design_effect
        left = known - effect * by_row(taken - sums[0])
        most = LEAST * (noise + by_row(doubt))
        told = (by_row(expected) >= most) & (left > 0)
        return np.where(told, left, np.minimum(known, np.maximum(left, 0.0) + effect * most))

    @cached_property
    def _weights_of_strata(self) -> tuple[Floats, Floats]:
        """The mean weight in each class of strata, and the ratio of squares expected there: (n,).

        Weights vary within strata as much as public numbers have it beside what these differ in.
        """
        design = self.design
        if design is None:
            raise ValueError("a sample without strata")
        every = design.by_units(product(self.weights.strategy.shape, {}))
        weights, mean = self.weights.estimates.answer(every, None), np.zeros(len(design.drawn))
        mean[design.strata] = np.maximum(weights.ravel(), 0.0) / design.drawn[design.strata]
        alike = (mean**2 * design.drawn).sum() / max((mean * design.drawn).sum(), 1e-300)
        varied = max(1.0, (self.ratio + self.inclusion) / max(alike, 1e-300))
        return mean, varied * mean - self.inclusion

    def missing(self, block: Block, position: int | None) -> str:
        """Return why nothing is known of the sample in any answer of a block, if that is so."""
        squared = of_squared_values(block)
        if not self._supports(squared, position if squared is block else None):
            return SQUARES_NOT_MEASURED
        return HIDDEN_BY_NOISE if np.isnan(self.variances(block, position).variance).all() else ""

    def _supports(self, block: Block, position: int | None) -> bool:
        return position is not None or self.squares.strategy.supports(block)

    def sums(self, block: Block, position: int | None) -> Floats:
        """Return what is estimated of the squares, and of the weights, of a block: (2, m)."""
        both = (self.squares, self.weights)
        return np.array([each.estimates.answer(block, position).ravel() for each in both])

    def known(self, sums: Floats, noise: Floats) -> Floats:
        """Return the variances that sums make; nan where noise may hide them.

        Sums are (2, m), of squares and of weights; noise is the standard error of the first, (m,).
        """
        squares, weights = sums
        told = (self.ratio * weights >= LEAST * noise) & (squares > 0)
        return np.where(told, self.design_effect * squares, np.nan)


def _each(classes: Ints, size: int) -> Factor:
    """Return one query for each of some classes."""
    whole = len(classes) == size
    return Identity(size) if whole else Groups.of(tuple((k,) for k in classes.tolist()), size)


def _some(part: Taken, row: Ints, times: Floats) -> Taken:
    """Return some rows of a part, each so many times more."""
    rows = part.rows
    return Taken(QueryRows(rows.block, rows.places[row], rows.position), part.times[row] * times)


def _overlap(first: Block, second: Block) -> bool:
    """Return whether a record may count in one row of both; thresholds are taken to."""
    factors = dict(zip(second.attributes, second.factors, strict=True))
    both = first.is_product and second.is_product
    return not both or all(
        (factor.column_counts() * factors[i].column_counts()).any()
        for i, factor in zip(first.attributes, first.factors, strict=True)
        if i in factors
    )


def _holds(below: Block, above: Block) -> bool:
    """Return whether a record that adds anything to an answer above counts in the one below it.

    The axes below are among those above, so that this is for conditions to decide.
    """
    factors = dict(zip(above.attributes, above.factors, strict=True))
    if not (below.is_product and above.is_product):
        return False
    for i, factor in zip(below.attributes, below.factors, strict=True):
        if i in factors and factor.key == factors[i].key:
            continue
        outside = np.flatnonzero(factor.column_counts() == 0)
        met = factors[i].column_counts() if i in factors else np.ones(factor.shape[1])
        if factor.shape[0] > 1 or met[outside].any():
            return False
    return True


def of_squared_values(block: Block) -> Block:
    """Return the block that adds up the squares of what a block adds up; itself for counts."""
    if not any(isinstance(factor, Valued) for factor in block.factors):
        return block
    factors = (
        Valued(factor.inner, factor.values**2) if isinstance(factor, Valued) else factor
        for factor in block.factors
    )
    return replace(block, factors=tuple(factors))
