"""How far relaxed rows are from measured queries, blocks and tables, and the descent to them.

The seed lowers the squared error by thousands of Adam steps on logits that sparsemax maps to
distributions [RAP]; many rows do so, and which of them the steps end at decides what the rows say
about all that was not measured. Here it is said: minimise error + pull * D(rows || start), D the
relative entropy, and let the pull go down until the error is what noise explains. The descent is by
mirror steps with momentum: a step adds minus the gradient by the distributions to the logits of a
softmax, so no class at 0 or 1 is stuck. tests/bench/bench_rap.py measures both.

A relaxed row answers a query by the probability that its predicates hold, drawn independently: the
product of the plain ones' probabilities, times the probability that at least r of the counted ones
hold. That tail is linear in each p_i: a programme over "a of the first i hold" gives it, and its
derivative by p_i is the probability that exactly r - 1 of the others hold ([MATH] 10). Only queries
that were measured are stored, a few numbers each.

Where all queries of some blocks were measured no query is stored by itself: the answers of a block
are matrix products of half-tables (see `rows`), and so is the gradient, of the table of residuals
with either half.

A run over many attributes measures hundreds of small tables, and a fit compares with all of them in
every step: tables of equal sizes are one product of stacked matrices.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Floats, Ints, Numbers, Singles
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.factors import Factor
from dpquery.reconstruction.relaxed.rows import (
    ROWS_AT_ONCE,
    Partition,
    Sparse,
    at_least,
    half_table,
    halves,
)
from dpquery.strategy.algebra.subsets import Subset

MOST_STEPS = 1000
WINDOW, PROGRESS = 100, 0.01  # so many steps have to lower the excess by this part of it
FIRST_MOVE = 0.1  # of a logit in the first step, at most
MOMENTUM = 0.9
GROWTH, CUT = 1.1, 0.5  # of the step after one that helped, and after one that did not
FIRST_PULL = 0.2  # of the first round, as a part of the excess at the start
EASE, RETURN = 0.98, 3.0  # of the pull after every step, and for another round
SPENT = 1e-3  # a pull of this part of the excess has no effect: distances are a few nats
OBJECTIVE_ROUNDING = 1e-6  # of the objective in float32: a step that is worse by less is no worse
LEAST_LOG = -25.0  # of a mass: what is at exp(-25) can come back


@dataclass(frozen=True, eq=False)
class Misfit:
    """The error of relaxed rows against noisy answers, and its gradient."""

    error: float  # the weighted squared error
    worst: float  # the largest difference, in standard deviations of its answer's noise
    gradient: Singles  # n' times the gradient of the error by the masses, (g, n')


@dataclass(frozen=True, eq=False)
class FitTarget:
    """The noisy answers that relaxed rows are fitted to; the error that their noise explains."""

    misfit: Callable[[Singles], Misfit]  # from masses, (g, n')
    noise: float  # the error that the noise alone makes on average
    answers: int  # how many there are

    def is_met(self, misfit: Misfit) -> bool:
        """Whether noise explains the error as a whole, and the worst answer too.

        The largest of m normal deviates is below sqrt(2 ln 2m), more often than not. Of millions of
        answers a few that are clearly wrong do not show in the sum.
        """
        largest_deviate = math.sqrt(2 * math.log(2 * self.answers))
        return misfit.error <= self.noise and misfit.worst <= largest_deviate

    def excess(self, misfit: Misfit) -> float:
        """Return how much of the error noise does not explain, or the worst answer's error."""
        return max(misfit.error - self.noise, misfit.worst**2 * self.noise / self.answers)


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of a projection."""

    masses: Singles  # (g, n') distributions along each span
    pull: float | None  # towards the start, when it ended; None before the first projection
    steps: int  # that it tried, and all before it
    met: bool = True  # whether noise explains what is left


@dataclass(frozen=True, eq=False)
class _Point:
    logs: Singles
    masses: Singles
    misfit: Misfit
    distance: float

    def objective(self, pull: float) -> float:
        return self.misfit.error + pull * self.distance


def project(
    target: FitTarget,
    masses: Singles,
    *,
    start: Singles,
    spans: Sequence[slice],
    last: Fit,
    most_steps: int = MOST_STEPS,
) -> Fit:
    """Move relaxed rows towards noisy answers until noise explains how far they are from them.

    Args:
        target: the noisy answers; it also stops when `WINDOW` steps gain less than `PROGRESS`
            though the pull is no matter any more, and after `most_steps`.
        masses: (g, n') to go on from, distributions along each span.
        start: (g, n') to stay close to.
        spans: the groups of each attribute.
        last: where the last projection ended.
        most_steps: after which it ends.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.
    """
    anchor: Singles = np.log(start)
    point = _point(target, np.log(np.maximum(masses, np.float32(1e-30))), anchor, spans)
    pull = FIRST_PULL * target.excess(point.misfit) if last.pull is None else RETURN * last.pull
    velocity: Numbers = np.zeros_like(anchor)
    step, excess_before, tried = 0.0, math.inf, 0
    while not target.is_met(point.misfit) and tried < most_steps:
        if tried % WINDOW == 0:
            excess = target.excess(point.misfit)
            if excess > (1 - PROGRESS) * excess_before and pull < SPENT * excess:
                break
            excess_before = excess
        tried += 1
        slope = point.misfit.gradient + pull * (point.logs - anchor)
        step = step or FIRST_MOVE / max(float(np.abs(slope).max()), 1e-30)
        velocity = MOMENTUM * velocity - step * slope
        trial = _point(target, point.logs + velocity, anchor, spans)
        if trial.objective(pull) <= point.objective(pull) * (1 + OBJECTIVE_ROUNDING):
            point, step = trial, step * GROWTH
        else:
            velocity, step = np.zeros_like(velocity), step * CUT
        pull *= EASE
    return Fit(point.masses, pull, last.steps + tried, target.is_met(point.misfit))


def _point(target: FitTarget, logits: Numbers, anchor: Singles, spans: Sequence[slice]) -> _Point:
    logs, masses = softmax(logits, spans)
    misfit = target.misfit(masses)
    for span in spans:
        if span.stop - span.start == 1:
            misfit.gradient[span] = 0
    divergence = masses * (logs - anchor)
    # Summed by numpy: with BLAS the last bits depend on the number of threads.
    distance = float(divergence.sum()) / masses.shape[1]
    return _Point(logs, masses, misfit, distance)


def softmax(logits: Singles, spans: Sequence[slice]) -> tuple[Singles, Singles]:
    """Return distributions along each span: their logarithms, bounded, and the masses. (g, n')."""
    logs, masses = np.zeros_like(logits), np.ones_like(logits)
    for span in (span for span in spans if span.stop - span.start > 1):
        shifted = logits[span] - logits[span].max(axis=0)
        np.exp(shifted, out=masses[span])
        sums = masses[span].sum(axis=0)
        masses[span] /= sums
        np.maximum(shifted - np.log(sums), LEAST_LOG, out=logs[span])
    return logs, masses


# Of an array over queries and rows: the few that the programme needs at once stay in cache.
CACHED_ENTRIES = 1 << 15


@dataclass(frozen=True, eq=False)
class QueryForm:
    """Measured queries of one form, with as many plain and as many counted predicates each."""

    plain: Ints  # (k, q) the predicates that must hold, as numbers of distinct predicates
    counted: Ints  # (k', q) the predicates of which `r` must hold at least
    r: int  # how many: all of them, and none are plain, where all must hold
    noisy: Floats  # (q,) measured answers, as fractions of one
    std: Floats  # (q,) standard deviations of their noise

    def pieces(self, size: int) -> Iterator["QueryForm"]:
        """Split into pieces of at most so many queries."""
        for start in range(0, len(self.noisy), size):
            queries = np.s_[start : start + size]
            plain, counted = self.plain[:, queries], self.counted[:, queries]
            yield QueryForm(plain, counted, self.r, self.noisy[queries], self.std[queries])

    @cached_property
    def uses(self) -> tuple[Ints, Ints, Ints]:
        """The predicates used; their uses in (k + k', q), one predicate's after another's; ends."""
        used = np.concatenate([self.plain, self.counted]).ravel()
        predicates, counts = np.unique(used, return_counts=True)
        return predicates, np.argsort(used, kind="stable"), np.cumsum([0, *counts])


@dataclass(frozen=True, eq=False)
class QueryAnswers:
    """The error of relaxed rows against the noisy answers of single queries, and its gradient."""

    rows: int  # n'
    # (p, g) the distinct predicates, over the groups of classes they distinguish
    predicates: Sparse
    # the measured queries, by form. They weigh by the inverse variance of their noise
    queries: tuple[QueryForm, ...]

    @property
    def target(self) -> FitTarget:
        """The answers with their noise, for the projection."""
        count = sum(len(form.noisy) for form in self.queries)
        return FitTarget(self.misfit, count * self._variance, count)

    def misfit(self, masses: Singles) -> Misfit:
        """Compare with the answers; squared errors weigh 1 on average. masses: (g, n').

        O((p + k r q) n') time and O((p + g) n') memory.
        """
        probabilities = self.predicates @ masses
        total, worst, gradient = 0.0, 0.0, np.zeros_like(probabilities)
        for form in self._pieces:
            values, slopes = _values(form, probabilities)
            residuals = values.mean(axis=1) - form.noisy
            weighted = residuals * (self._variance / form.std**2)
            total += float(weighted @ residuals)
            worst = max(worst, float(np.abs(residuals / form.std).max()))
            predicates, order, ends = form.uses
            coefs = (2 * weighted).astype(masses.dtype)[order % len(residuals)]
            by_use = (coefs, order, ends)
            gradient[predicates] += sp.csr_array(by_use, (len(predicates), len(order))) @ slopes
        return Misfit(total, worst, self.predicates.T @ gradient)

    @cached_property
    def _variance(self) -> float:
        """The harmonic mean of the variances: weights over it are 1 on average."""
        return float(1 / np.mean(np.concatenate([form.std**-2.0 for form in self.queries])))

    @cached_property
    def _pieces(self) -> tuple[QueryForm, ...]:
        size = max(1, CACHED_ENTRIES // self.rows)
        return tuple(piece for form in self.queries for piece in form.pieces(size))


def threshold_probability(p: Singles, r: int) -> tuple[Singles, Singles]:
    """Return the probability that at least r of k independent predicates hold, with its gradient.

    Args:
        p: (k, ...) their probabilities.
        r: from 1 to k.

    Returns:
        (...) the probability; (k, ...) its derivative by every probability.
    """
    k = len(p)
    before, after = _exactly(p, r), _exactly(p[::-1], r)
    slopes = np.empty_like(p)
    for i in range(k):
        ways = [state * after[k - 1 - i][r - 1 - a] for a, state in before[i].items()]
        slopes[i] = sum(ways[1:], start=ways[0])
    last = [before[i][r - 1] * p[i] for i in range(r - 1, k)]  # the r-th to hold is the i-th
    return np.asarray(sum(last[1:], start=last[0])), slopes


def _exactly(p: Singles, r: int) -> list[dict[int, Singles]]:
    """Return for i < k the probability that a of the first i hold, for a that lead to r - 1."""
    k = len(p)
    states: list[dict[int, Singles]] = [{0: np.ones((1,) * (p.ndim - 1), dtype=p.dtype)}]
    for i in range(k - 1):
        last, states_of = states[-1], {}
        for a in range(max(0, r - k + i + 1), min(i + 1, r - 1) + 1):
            ways = [last[a] * (1 - p[i])] if a in last else []
            ways += [last[a - 1] * p[i]] if a - 1 in last else []
            states_of[a] = sum(ways[1:], start=ways[0])
        states.append(states_of)
    return states


def _values(form: QueryForm, probabilities: Singles) -> tuple[Singles, Singles]:
    """Return (q, n') values, and (k q, n') derivatives by the plain and the counted predicates."""
    plain, counted = probabilities[form.plain], probabilities[form.counted]
    rows = probabilities.shape[1]
    values, slopes = threshold_probability(counted, form.r)
    if not len(plain):
        return values, slopes.reshape(-1, rows)
    others, by_plain = threshold_probability(plain, len(plain))
    both = np.concatenate([by_plain * values, slopes * others])
    return values * others, both.reshape(-1, rows)


class MeasuredQueries:
    """All queries measured so far: a few numbers for each, and a vector for each new predicate."""

    def __init__(self) -> None:
        self.predicates: list[tuple[int, Floats]] = []
        self._numbers: dict[tuple[int, bytes], int] = {}
        # by form, of each query the predicates, the plain ones first, its answer and its noise
        self._forms: dict[tuple[int, int, int], list[tuple[list[int], float, float]]] = {}

    def add(self, block: Block, row: int, *, noisy: float, std: float) -> None:
        """Take in one query: row `row` of a block, with its answer as a fraction of one.

        The total, of a block without attributes, is one whatever the rows hold.
        """
        if not block.attributes:
            return
        places = np.unravel_index(row, block.row_shape)
        numbers = [
            self._number(attribute, factor, int(place))
            for attribute, factor, place in zip(
                block.attributes, block.factors, places, strict=True
            )
        ]
        all_of_them = block.is_product  # which is at least as many as there are
        is_counted = [all_of_them or counted for counted in block.counted]
        plain = [number for number, chosen in zip(numbers, is_counted, strict=True) if not chosen]
        counted = [number for number, chosen in zip(numbers, is_counted, strict=True) if chosen]
        form = len(plain), len(counted), len(counted) if all_of_them else block.at_least
        self._forms.setdefault(form, []).append(([*plain, *counted], noisy, std))

    def query_answers(self, partition: Partition, *, rows: int) -> QueryAnswers:
        """Return the error of so many relaxed rows against these queries, by groups of classes."""
        forms = []
        for (k, _, r), queries in self._forms.items():
            chosen, noisy, std = zip(*queries, strict=True)
            numbers = np.array(chosen, dtype=np.int64).T  # of a total there is none
            measured = np.array(noisy), np.array(std)
            forms.append(QueryForm(numbers[:k], numbers[k:], r, *measured))
        return QueryAnswers(rows, partition.over_groups(self.predicates), tuple(forms))

    def _number(self, attribute: int, factor: Factor, row: int) -> int:
        predicate = np.asarray(factor.row(row), dtype=np.float64)
        number = self._numbers.setdefault((attribute, predicate.tobytes()), len(self.predicates))
        if number == len(self.predicates):
            self.predicates.append((attribute, predicate))
        return number


@dataclass(frozen=True, eq=False)
class WholeTables:
    """How far relaxed rows are from the noisy answers of all queries of a workload."""

    workload: Workload  # the blocks that were measured
    noisy: tuple[Singles, ...]  # for each the measured answers, as fractions of one
    std: tuple[float, ...]  # for each the standard deviation of their noise

    @property
    def target(self) -> FitTarget:
        """The answers with their noise, for the projection.

        Errors are weighed against those of the most precise block: the noise of every answer then
        adds as much to their sum.
        """
        count = self.workload.shape[0]
        return FitTarget(self.misfit, count * min(self.std) ** 2, count)

    @cached_property
    def partition(self) -> Partition:
        """Every class in a group by itself: the queries distinguish all of them."""
        shape = self.workload.shape_of_domain
        return Partition(shape, np.arange(sum(shape)))

    def misfit(self, masses: Singles) -> Misfit:
        """Compare with the answers. masses: (sum of shape, n')."""
        gradient = np.zeros_like(masses)
        total, worst, spans, least = 0.0, 0.0, self.partition.spans, min(self.std)
        for block, noisy, std in zip(self.workload.blocks, self.noisy, self.std, strict=True):
            if not block.attributes:
                continue
            spans_of_block = [spans[i] for i in block.attributes]
            factors = list(zip(block.factors, spans_of_block, strict=True))
            probabilities = [
                np.asarray(f.matmat(masses[s]), dtype=masses.dtype) for f, s in factors
            ]
            answers = at_least(probabilities, block.counted, block.at_least)
            residuals = answers - noisy.reshape(block.row_shape)
            weight = (least / std) ** 2
            total += weight * float(np.vdot(residuals, residuals))
            worst = max(worst, float(np.abs(residuals).max()) / std)
            slope_of_error = 2 * weight * residuals
            slopes = at_least_slopes(probabilities, block.counted, block.at_least, slope_of_error)
            for (factor, span), slope in zip(factors, slopes, strict=True):
                gradient[span] += factor.rmatmat(slope)
        return Misfit(total, worst, gradient)


def at_least_slopes(
    probabilities: Sequence[Singles],
    counted: Sequence[bool],
    r: int,
    table: Singles,
    *,
    in_term: Sequence[bool] = (),
) -> list[Singles]:
    """Return n' times the gradient of <table, at_least(probabilities, ...)> by the probabilities.

    Args:
        probabilities: for each axis (m_i, n') the probability of every predicate in every row.
        counted: which axes are counted.
        r: how many of these are to hold.
        table: (m_1, ..., m_k), of size 1 along the axes that are not in the term.
        in_term: for each axis whether its predicates are in the term to start from; by default all.

    Returns:
        For each axis (m_i, n'); zeros for the axes that are not in the term.
    """
    in_term = in_term or [True] * len(probabilities)
    t = sum(among and also for among, also in zip(in_term, counted, strict=True))
    coef = (-1) ** (t - r) * math.comb(t - 1, t - r) if t > r else 1
    inside = [i for i, among in enumerate(in_term) if among]
    slopes: list[Singles] = [np.zeros_like(p) for p in probabilities]
    flat = table.reshape([len(probabilities[i]) for i in inside])
    if inside:
        of_term = _slopes([probabilities[i] for i in inside], flat)
        for i, slope in zip(inside, of_term, strict=True):
            slopes[i] += coef * slope
    missing = next((i for i, among in enumerate(in_term) if not among), len(in_term))
    for i in (i for i in range(missing if t > r else 0) if counted[i]):
        fewer = [among and j != i for j, among in enumerate(in_term)]
        summed = table.sum(axis=i, keepdims=True)
        of_fewer = at_least_slopes(probabilities, counted, r, summed, in_term=fewer)
        for slope, term in zip(slopes, of_fewer, strict=True):
            slope += term
    return slopes


def _slopes(probabilities: Sequence[Singles], table: Singles) -> list[Singles]:
    """Return n' times the gradient of <table, mean_product(probabilities)> by the probabilities."""
    slopes: list[list[Singles]] = [[] for _ in probabilities]
    for start in range(0, probabilities[0].shape[1], ROWS_AT_ONCE):
        left, right = halves([p[:, start : start + ROWS_AT_ONCE] for p in probabilities])
        matrix = table.reshape(-1, math.prod(map(len, right)))
        by_half = [*_within(left, matrix @ half_table(right))]
        by_half += _within(right, matrix.T @ half_table(left))
        for slopes_of_axis, slope in zip(slopes, by_half, strict=False):
            slopes_of_axis.append(slope)
    return [np.concatenate(slopes_of_axis, axis=1) for slopes_of_axis in slopes]


def _within(probabilities: Sequence[Singles], table: Singles) -> list[Singles]:
    """Return the gradient of sum_rows <table, prod_i p_i> by each p_i. table: (prod m_i, n')."""
    slopes = []
    for i in range(len(probabilities)):
        slope = table.reshape(*map(len, probabilities), -1)
        for j in reversed(range(len(probabilities))):
            if j != i:
                along_j = (1,) * j + (len(probabilities[j]),) + (1,) * (slope.ndim - j - 2) + (-1,)
                slope = (slope * probabilities[j].reshape(along_j)).sum(axis=j)
        slopes.append(slope)
    return slopes


STACKED_ORDER = 2  # attributes of a table at most
FEWEST = 3  # tables of equal sizes that are worth stacking


@dataclass(frozen=True, eq=False)
class Stack:
    """Tables of equal sizes."""

    # (count, n) for each axis the rows of the masses that hold its classes
    classes: tuple[Ints, ...]
    noisy: Singles  # (count, *sizes) the measured answers, as fractions of one
    std: Floats  # (count,) the standard deviation of their noise


class MarginalTables(WholeTables):
    """How far relaxed rows are from the noisy cells of marginals: see WholeTables."""

    def misfit(self, masses: Singles) -> Misfit:
        """Compare with the answers. masses: (sum of shape, n')."""
        gradient = np.zeros_like(masses)
        # A step compares with every table once, and most are small: what is done for each counts.
        sides = [masses[span] for span in self.partition.spans]
        slopes = [gradient[span] for span in self.partition.spans]
        total, worst, least, rows = 0.0, 0.0, min(self.std), np.float32(masses.shape[1])
        for place in self._single:
            attributes, std = self.workload.blocks[place].attributes, self.std[place]
            if not attributes:
                continue
            left, right = halves([sides[i] for i in attributes])
            by_left, by_right = half_table(left), half_table(right)
            residuals: Singles = by_left @ by_right.T
            residuals /= rows
            residuals -= self.noisy[place].reshape(residuals.shape)
            weight = (least / std) ** 2
            total += weight * float(np.vdot(residuals, residuals))
            worst = max(worst, float(np.abs(residuals).max()) / std)
            residuals *= 2 * weight
            added = [*_within(left, residuals @ by_right), *_within(right, residuals.T @ by_left)]
            for i, slope in zip(attributes, added, strict=False):
                slopes[i] += slope
        for stack in self._stacks:
            error, furthest = self._add_stack(stack, masses, gradient)
            total, worst = total + error, max(worst, furthest)
        return Misfit(total, worst, gradient)

    @cached_property
    def _places(self) -> dict[tuple[int, ...], list[int]]:
        """The places of tables by their sizes; () stands for those that are not stacked."""
        places: dict[tuple[int, ...], list[int]] = {}
        for place, block in enumerate(self.workload.blocks):
            sizes = block.row_shape if 0 < len(block.attributes) <= STACKED_ORDER else ()
            places.setdefault(sizes, []).append(place)
        return places

    @cached_property
    def _single(self) -> list[int]:
        groups = self._places.items()
        return [k for sizes, places in groups if not sizes or len(places) < FEWEST for k in places]

    @cached_property
    def _stacks(self) -> list[Stack]:
        stacks, blocks, spans = [], self.workload.blocks, self.partition.spans
        for sizes, places in self._places.items():
            if not sizes or len(places) < FEWEST:
                continue
            axes = zip(*(blocks[k].attributes for k in places), strict=True)
            classes = tuple(
                np.array([np.arange(spans[i].start, spans[i].stop) for i in axis]) for axis in axes
            )
            noisy = np.stack([self.noisy[k].reshape(sizes) for k in places])
            stacks.append(Stack(classes, noisy, np.array([self.std[k] for k in places])))
        return stacks

    def _add_stack(self, stack: Stack, masses: Singles, gradient: Singles) -> tuple[float, float]:
        """Add the gradient of a stack's errors, and return their sum and the worst error."""
        sides = [masses[classes] for classes in stack.classes]  # (count, n, n') each
        if len(sides) == 1:
            answers = sides[0].mean(axis=2)
        else:
            answers = sides[0] @ sides[1].transpose(0, 2, 1) / np.float32(masses.shape[1])
        residuals = answers - stack.noisy
        others = tuple(range(1, residuals.ndim))
        weights = (min(self.std) / stack.std) ** 2
        total = float((weights * np.square(residuals).sum(axis=others)).sum())
        worst = float((np.abs(residuals).max(axis=others) / stack.std).max())
        slope = np.asarray(residuals.T * (2 * weights)).T.astype(masses.dtype)
        if len(sides) == 1:
            slopes = [np.broadcast_to(slope[:, :, None], sides[0].shape)]
        else:
            slopes = [slope @ sides[1], slope.transpose(0, 2, 1) @ sides[0]]
        for classes, slopes_of_axis in zip(stack.classes, slopes, strict=True):
            for rows, added in zip(classes, slopes_of_axis, strict=True):
                gradient[rows[0] : rows[-1] + 1] += added
        return total, worst


@dataclass(frozen=True, eq=False)
class MeasuredTable:
    """A table over some attributes with independent noise on every cell."""

    attributes: Subset  # ascending numbers of attributes; none for the total
    values: Floats  # noisy counts, one axis an attribute, of its classes
    variance: float  # of the noise on a cell, in counts squared

    def __post_init__(self) -> None:
        if list(self.attributes) != sorted(set(self.attributes)):
            raise ValueError(f"attributes {self.attributes} are not ascending")
        if self.values.ndim != len(self.attributes):
            raise ValueError(f"{self.values.ndim} axes for {len(self.attributes)} attributes")
        if not 0 < self.variance < math.inf:
            raise ValueError("the variance is positive and finite")

    def margin(self, attributes: Subset) -> "MeasuredTable":
        """Return its sums over all but some of its attributes."""
        axes = tuple(k for k, i in enumerate(self.attributes) if i not in attributes)
        summed = math.prod(self.values.shape[k] for k in axes)
        return MeasuredTable(attributes, self.values.sum(axis=axes), self.variance * summed)


def merged_tables(measured: Iterable[MeasuredTable]) -> tuple[MeasuredTable, ...]:
    """Return one table a set of attributes: the mean of its measurements, weighed by precision.

    That mean has the least variance, one over the sum of the precisions, and under Gaussian noise
    says all that the measurements say. In the order in which the sets were first measured.
    """
    of_set: dict[Subset, list[MeasuredTable]] = {}
    for table in measured:
        of_set.setdefault(table.attributes, []).append(table)
    merged = []
    for attributes, tables in of_set.items():
        precision = math.fsum(1 / table.variance for table in tables)
        values = np.sum([table.values / table.variance for table in tables], axis=0) / precision
        merged.append(MeasuredTable(attributes, np.asarray(values), 1 / precision))
    return tuple(merged)
