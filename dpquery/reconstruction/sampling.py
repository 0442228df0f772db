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

Sums of squares are measured over the same tables as the weights, with noise of their own. Whether
one is told is not for that noise to decide, since those that it makes large would be told, and be
too large: what is expected of a sum of squares is the same sum of weights, times the ratio of both
that public numbers say, and it is told where that is LEAST times its standard error. Below 0
nothing is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from dpquery.arrays import Bools, Floats, Ints
from dpquery.operators.blocks import Block, product
from dpquery.operators.factors import Factor, Identity, Valued
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


def _sum_of(measured: Measured, parts: Sequence[Taken]) -> Floats:
    """Return what the parts add up to, by what was measured: (m,)."""
    return np.asarray(sum(_part_of(measured, part) for part in parts))


def _std_of(measured: Measured, parts: Sequence[Taken]) -> Floats:
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
class SampledStrata:
    """The classes of an attribute from which fixed numbers of records were drawn."""

    place: int  # of the attribute in the domain
    drawn: Floats  # (n,) records from each class; 0 where it is not one stratum

    @classmethod
    def of(cls, spec: Spec, classes: Sequence[Ints]) -> "SampledStrata | None":
        """Return those of a spec whose codes are counted in classes; None where it has none."""
        weight = spec.privacy.weight
        if weight is None or weight.strata is None:
            return None
        place, rows = weight.strata.attribute, np.array(weight.strata.rows, dtype=np.float64)
        own = np.bincount(classes[place]) == 1
        drawn = np.where(own, np.bincount(classes[place], rows), 0.0)
        return cls(place, drawn)

    def told_by(self, strategy: Strategy, blocks: Sequence[Block]) -> bool:
        """Return whether a strategy holds the answers of blocks by stratum too."""
        queries = max(block.queries for block in blocks)
        return (
            bool(self.drawn.any())
            and all(block.is_product for block in blocks)
            and queries * len(self.drawn) <= MOST_BY_STRATUM
            and all(strategy.supports(self.by_stratum(block)) for block in blocks)
        )

    def by_stratum(self, block: Block) -> Block:
        """Return a product with one query a stratum in place of its predicates on them."""
        factors: dict[int, Factor] = dict(zip(block.attributes, block.factors, strict=True))
        factors[self.place] = Identity(len(self.drawn))
        return product(block.shape_of_domain, factors)

    def times(self, part: Taken) -> Floats:
        """Return how many times every stratum is in the answers of a part: (m, n)."""
        if self.place not in part.rows.block.attributes:
            return np.tile(part.times[:, None], len(self.drawn))
        factor, chosen = part.rows.predicates[self.place]
        return part.times[:, None] * rows_of(factor, np.arange(factor.shape[0])).T[chosen]

    def within(self, part: Taken, row: Ints, stratum: Ints) -> Taken:
        """Return what some strata add to some rows of a part, pair by pair."""
        block, predicates = self.by_stratum(part.rows.block), part.rows.predicates
        chosen = {i: numbers[row] for i, (_, numbers) in predicates.items()} | {self.place: stratum}
        places = np.ravel_multi_index([chosen[i] for i in block.attributes], block.row_shape)
        return Taken(QueryRows(block, np.asarray(places)), self.times(part)[row, stratum])


@dataclass(frozen=True, eq=False)
class SamplingErrors:
    """The estimated sums of squared weights of all tables, and what they say of a sample."""

    weights: Measured  # the sums of weights, with noise
    squares: Measured  # those of their squares, or of w (w - 1)
    ratio: float  # of these to the weights, as public numbers have it
    design_effect: float  # how many times the variance of Poisson sampling there is
    level: float  # of the intervals
    strata: SampledStrata | None = None
    inclusion: bool = False  # whether squares are less the weights, which are inverse chances

    def variances(self, block: Block, position: int | None) -> Floats:
        """Return the variance of each answer of a block that the sample makes, (m,)."""
        known, noise = self._of_squares(block, position)
        if self.strata is None:
            return known
        squared, every = of_squared_values(block), np.arange(block.queries)
        places = (position, position if squared is block else None)
        rows = map(QueryRows, (block, squared), (every, every), places)
        values, squares = ([Taken(each, np.ones(len(every)))] for each in rows)
        return self._less_strata(known, noise, values, squares)

    def by_strata(self, block: Block, position: int | None) -> Bools:
        """Return of which answers of a block strata take something off: (m,)."""
        known, variances = self._of_squares(block, position)[0], self.variances(block, position)
        return np.asarray(variances < known, dtype=np.bool_)

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
    ) -> Floats:
        """Return the variance that the sample makes of each answer above less R times one below.

        That of a quotient R is this over the square of its denominator (Taylor linearisation). A
        record that adds y to the one and x to the other adds w (y - R x) to both. Where x is 1 of
        all with y, that takes sums of w^2 y^2, w^2 y and w^2 x; elsewhere nothing is said.

        The answers above and below are a block with its position in the plan's workload; quotients
        are (m,), and `of_rows` is which answer below each is over.
        """
        if not _holds(below[0], above[0]):
            return np.full(above[0].queries, np.nan)
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
    ) -> Floats:
        """Return the variance that the sample makes of answers of a block less those of another.

        No record is in both; elsewhere nothing is said.
        """
        if _overlap(first[0], second[0]):
            return np.full(first[0].queries, np.nan)
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
    ) -> Floats:
        """Return the variances that sums of squares make together.

        Values are what they are squares of; `over` is the denominator of a quotient.
        """
        if not all(self._supports(one.rows.block, one.rows.position) for one in squares):
            return np.full(len(squares[0].times), np.nan)
        both = (self.squares, self.weights)
        parts = np.array([[_part_of(each, one) for each in both] for one in squares])
        total = parts.sum(axis=0)
        certain = np.abs(total) <= 1e-9 * np.abs(parts).sum(axis=0)  # of a row over itself
        noise = _std_of(self.squares, squares)
        known = self._less_strata(self.known(total, noise), noise, values, squares, over=over)
        return np.where(certain[0], 0.0, known)

    def _less_strata(
        self,
        known: Floats,
        noise: Floats,
        values: Sequence[Taken],
        squares: Sequence[Taken],
        *,
        over: Taken | None = None,
    ) -> Floats:
        """Return variances less what strata take off, where that is measured and not hidden.

        What is left is told as it is where it is expected to be LEAST times the noise in it; where
        it is not, no less is told than so much above it.

        Args:
            known: variances of Poisson sampling, (m,), nan where they are hidden.
            noise: in their sums of squares, (m,).
            values: what is added up.
            squares: the sums of its squares.
            over: the denominator of a quotient, whose noise is in all strata.
        """
        strata, blocks = self.strata, [part.rows.block for part in (*values, *squares)]
        if strata is None or not strata.told_by(self.squares.strategy, blocks):
            return known
        here = np.any([strata.times(part) != 0 for part in values], axis=0) & (strata.drawn > 0)
        row, stratum = np.nonzero(here)
        inside, of_squares = (
            [strata.within(part, row, stratum) for part in parts] for parts in (values, squares)
        )
        drawn, rest = strata.drawn[stratum], np.ones(len(row))
        mean, ratio = (of_strata[stratum] for of_strata in self._weights_of_strata)
        if self.inclusion:
            rest = 1 - 1 / np.maximum(mean, 1.0)
        if over is not None:
            share = _sum_of(self.weights, [strata.within(over, row, stratum)])
            with np.errstate(all="ignore"):
                share = share / _sum_of(self.weights, [over])[row]
            inside += [_some(part, row, -share) for part in values]  # which add up to 0
        z, std = _sum_of(self.weights, inside), _std_of(self.weights, inside)
        sums = [_sum_of(each, of_squares) for each in (self.squares, self.weights)]
        taken = rest * (z**2 - std**2)
        doubt = _std_of(self.squares, of_squares) + rest * std * np.sqrt(4 * z**2 + 5 * std**2)
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
        strata = self.strata
        if strata is None:
            raise ValueError("a sample without strata")
        every = strata.by_stratum(product(self.weights.strategy.shape, {}))
        weights = np.maximum(self.weights.estimates.answer(every, None).ravel(), 0.0)
        mean = np.where(strata.drawn > 0, weights / np.maximum(strata.drawn, 1.0), 0.0)
        alike = (mean**2 * strata.drawn).sum() / max((mean * strata.drawn).sum(), 1e-300)
        varied = max(1.0, (self.ratio + self.inclusion) / max(alike, 1e-300))
        return mean, varied * mean - self.inclusion

    def missing(self, block: Block, position: int | None) -> str:
        """Return why nothing is known of the sample in any answer of a block, if that is so."""
        squared = of_squared_values(block)
        if not self._supports(squared, position if squared is block else None):
            return SQUARES_NOT_MEASURED
        return HIDDEN_BY_NOISE if np.isnan(self._of_squares(block, position)[0]).all() else ""

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

    def columns(self, answers: TableAnswers, block: Block, position: int | None) -> SamplingColumns:
        """Return the columns beside the answers of a block, (m,) each; nan where noise hides it."""
        if answers.std_error is None or answers.half_width is None:
            raise ValueError("answers without standard errors have no intervals")
        variances = self.variances(block, position)
        if answers.stated is not None:  # what public facts state is no estimate from a sample
            variances = np.where(answers.stated > 0, np.nan, variances)
        ends = (answers.estimate - answers.half_width, answers.estimate + answers.half_width)
        return self.together(variances, answers.estimate, answers.std_error, ends)

    def together(
        self, variances: Floats, estimate: Floats, std_error: Floats, ends: tuple[Floats, Floats]
    ) -> SamplingColumns:
        """Return the columns of estimates, given what the sample varies and noise intervals.

        An end is as far off as the noise's and the sample's are as sides of a right angle.
        """
        sampling, (low, high) = np.sqrt(variances), ends
        beyond = float(ndtri((1 + self.level) / 2)) * sampling
        return SamplingColumns(
            sampling,
            np.hypot(std_error, sampling),
            estimate - np.hypot(estimate - low, beyond),
            estimate + np.hypot(high - estimate, beyond),
        )


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
