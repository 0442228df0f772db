"""One run of any mechanism on a public population, or a part of one, with a seeded chance.

The loop is the curator's own (run_rounds in measurement), at the guarantee that is planned, with a
seeded chance in place of the curator's: the same plan comes out the same every time. The seeded
generator gives NO privacy: whoever knows the seed takes the noise off. The curator makes its own
generator, and takes none as an argument.

A rehearsal of all pairs of a hundred attributes takes minutes, and one of all pairs of some of them
seconds. The tables of a part are drawn, not chosen: they err as all do, but for chance. Of a
strategy of cores and totals what they are answered by is kept, with its noise. Adaptive measurement
has their share of the budget: all pairs of 100 attributes of 10 values, 50,000 made-up records and
epsilon 1, err by 92, 89 and 66 counts on the three populations, the pairs of 24 of them by 127, 89
and 87; with the share of the attributes, which makes rounds cost the same, they err far less.

The error of estimates is known exactly. That of the columns that give up being unbiased depends on
the data, as RAP's does, so that they are simulated on the same populations.

The error of a share, a mean or a median depends on the counts that it is made of, and plan knows
none. So it is tried on a public or made-up population of the declared rows: its exact counts stand
for the truth, the noise is drawn from a public seed, and the statistic is worked out as a release
works it out. Differences and rates are linear: their errors are those of their answers, exactly.

The draws are of unit noise, the same at every guarantee: errors at several are compared on the same
chances. Least squares is linear, so that the noise of an answer is the answer to the noise.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, partial
from itertools import accumulate, pairwise
from statistics import fmean, stdev
from time import process_time
from typing import TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Bools, Floats, Ints
from dpquery.exceptions import OutOfTimeError
from dpquery.limits import MAX_RAP_MEASURED
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.rounds.queries import rap_rounds
from dpquery.measurement.rounds.run import PublicFit, Rounds, TrueAnswers, run_rounds
from dpquery.measurement.rounds.tables import table_rounds
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.planning.rehearsal.populations import Proxy, populations_in_words
from dpquery.progress import report_progress
from dpquery.public_chance import PublicGenerator, public_generator
from dpquery.reconstruction.adaptive_fits import AdaptiveFit
from dpquery.reconstruction.agreeing_tables import REHEARSED_STEPS
from dpquery.reconstruction.columns import ExtraColumn, ExtraColumns, extra_columns
from dpquery.reconstruction.derived import (
    JointAnswers,
    answers_by_draw,
    estimates_of,
    merging_at,
    pairs_of,
)
from dpquery.reconstruction.intervals import expected_largest, standard_errors
from dpquery.reconstruction.least_squares import Estimates, Measured, reconstruct, table_answers
from dpquery.reconstruction.merging import Merging
from dpquery.reconstruction.relaxed.fits import RapProjection
from dpquery.spec.columns import Domain
from dpquery.spec.spec import (
    Difference,
    MergedRows,
    Privacy,
    Quantiles,
    Quotient,
    Rate,
    Rows,
    Spec,
    Statistic,
    Table,
)
from dpquery.strategy.algebra.query_powers import total_of
from dpquery.strategy.expected_error import weighted_queries
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.strategy import Noise, Objective, Strategy

PART_ATTRIBUTES = (24, 8)
"""Of a part, and of one where that is not finished in time: all pairs of 24 attributes are 276
tables, and a run of adaptive measurement takes 4 seconds."""
FIRST_TRY = 0.75  # of the time, where there is a smaller part to try
QUICK_ATTRIBUTES, QUICK_QUERIES = (16, 8, 6, 4, 3), 50_000
PART_SEED = 2028

Finished = TypeVar("Finished")


@dataclass(frozen=True)
class Errors:
    """Errors of one run over all queries, in counts: weighted RMSE, the largest; its rounds."""

    rmse: float
    largest: float
    rounds: int = 0


@dataclass(frozen=True, eq=False)
class WorkloadPart:
    """Some tables of a workload: all that ask nothing but of some attributes."""

    whole: Workload  # the workload
    positions: tuple[int, ...]  # of the tables, ascending

    @cached_property
    def attributes(self) -> frozenset[int]:
        """The attributes of its tables."""
        return frozenset(i for k in self.positions for i in self.whole.blocks[k].attributes)

    @property
    def is_whole(self) -> bool:
        """Whether all tables are in it."""
        return len(self.positions) == len(self.whole.blocks)

    @property
    def words(self) -> str:
        """Which part it is, to go on with; empty of the whole."""
        if self.is_whole:
            return ""
        return f", with {len(self.attributes)} of the {len(self.whole.attributes)} attributes"

    @property
    def share(self) -> Fraction:
        """The share of the tables: adaptive measurement has so much of the budget for them."""
        return Fraction(len(self.positions), len(self.whole.blocks))

    @property
    def times_as_wide(self) -> float:
        """How many times as many attributes, and rounds of measurement, all tables have."""
        return len(self.whole.attributes) / max(1, len(self.attributes))

    @cached_property
    def workload(self) -> Workload:
        """Its tables, over the whole domain."""
        return self.whole if self.is_whole else self.whole.select(self.positions)

    @cached_property
    def narrow(self) -> Workload:
        """Its tables, over a domain in which other attributes have one class."""
        if self.is_whole:
            return self.whole
        shape = tuple(
            n if i in self.attributes else 1 for i, n in enumerate(self.whole.shape_of_domain)
        )
        blocks = tuple(replace(block, shape_of_domain=shape) for block in self.workload.blocks)
        return replace(self.workload, shape_of_domain=shape, blocks=blocks)

    def of_spec(self, spec: Spec, compiled: CompiledSpec) -> tuple[Spec, CompiledSpec]:
        """Return what is asked, and its operators, with these tables alone."""
        if self.is_whole:
            return spec, compiled
        kept, items = set(self.positions), []
        for item, places in zip(spec.items, compiled.items, strict=True):
            tables = tuple(table for table, k in zip(item.tables, places, strict=True) if k in kept)
            if tables:
                items.append(replace(item, tables=tables))
        ends = [0, *accumulate(len(item.tables) for item in items)]
        ranges = tuple(range(*pair) for pair in pairwise(ends))
        narrowed = CompiledSpec(self.workload, compiled.classes, ranges)
        return replace(spec, items=tuple(items)), narrowed

    def of_strategy(self, strategy: Strategy) -> Strategy:
        """Return what these tables are answered by, where that is a part of a strategy."""
        if self.is_whole or not isinstance(strategy, ResidualStrategy):
            return strategy
        weights = {b: w for b, w in strategy.weights.items() if self.attributes.issuperset(b)}
        cores = {b: each for b, each in strategy.block_cores.items() if b in weights}
        return replace(strategy, weights=weights, block_cores=cores)

    def scaled(
        self, runs: Sequence[Errors], strategy: Strategy, *, noise_std: float, estimates: Errors
    ) -> list[Errors]:
        """Return errors on these tables as errors on all: as those of estimates are to each other.

        `estimates` are the expected errors of the estimates of all tables.
        """
        if self.is_whole or not isinstance(strategy, ResidualStrategy):
            return list(runs)
        weighted = zip(self.workload.weights, self.workload.blocks, strict=True)
        variance = sum(
            w * total_of(strategy.variances(block, position=None), block) for w, block in weighted
        )
        rmse = estimates.rmse / noise_std * math.sqrt(self.workload.weighted_queries / variance)
        here = expected_largest(strategy, self.workload, noise_std=noise_std)
        largest = estimates.largest / here
        return [replace(run, rmse=run.rmse * rmse, largest=run.largest * largest) for run in runs]


def whole_of(workload: Workload) -> WorkloadPart:
    """Return all of a workload."""
    return WorkloadPart(workload, tuple(range(len(workload.blocks))))


def parts_of(workload: Workload) -> tuple[WorkloadPart, ...]:
    """Return the parts of a workload to try, one after another, until one is finished in time."""
    first, *smaller = (_part(workload, most) for most in PART_ATTRIBUTES)
    return (first, *(part for part in smaller if not part.is_whole))


def quick_part(workload: Workload, queries: int = QUICK_QUERIES) -> WorkloadPart | None:
    """Return a part of few queries, to try a column on quickly; None where there is none."""
    parts = (_part(workload, most) for most in QUICK_ATTRIBUTES)
    return next((part for part in parts if part.workload.shape[0] <= queries), None)


def finished_in_time(
    parts: Sequence[WorkloadPart],
    time_limit: float,
    rehearsal: Callable[[WorkloadPart, float], Finished],
) -> tuple[WorkloadPart, Finished]:
    """Return the first part that a rehearsal finishes within CPU seconds, and what it returns.

    Raises:
        OutOfTimeError: it finishes none.
    """
    begun = process_time()
    for part in parts[:-1]:
        with suppress(OutOfTimeError):
            return part, rehearsal(part, begun + FIRST_TRY * time_limit)
    return parts[-1], rehearsal(parts[-1], begun + time_limit)


def _part(workload: Workload, most: int) -> WorkloadPart:
    """Return a part of so many attributes at most; the whole where it has no more, or no smaller.

    Tables are drawn one after another, and what they ask of is taken while there is room.
    """
    everything = whole_of(workload)
    if len(everything.attributes) <= most:
        return everything
    taken: set[int] = set()
    for place in public_generator(PART_SEED).permutation(len(workload.blocks)).tolist():
        wider = taken.union(workload.blocks[place].attributes)
        taken = wider if len(wider) <= most else taken
    inside = (k for k, b in enumerate(workload.blocks) if taken.issuperset(b.attributes))
    return WorkloadPart(workload, tuple(inside)) if taken else everything


class SeededChance:
    """The selection and the noise of RAP's loop in floats, from a seed: not private."""

    def __init__(self, seed: int) -> None:
        self._rng = public_generator(seed)

    def level(self, scores: Sequence[int], members: Sequence[int], rate: Fraction) -> int:
        """Return i with probability proportional to members[i] exp(rate scores[i])."""
        with np.errstate(divide="ignore"):  # a level without members has probability 0
            weights = np.log(np.array(members, dtype=np.float64))
        weights += float(rate) * np.array(scores, dtype=np.float64)
        return int(np.argmax(weights + self._rng.gumbel(size=weights.size)))

    def below(self, bound: int) -> int:
        """Return a uniform whole number from 0 to below the bound."""
        return int(self._rng.integers(bound))

    def add_noise(self, answers: Ints, *, budget: object, sensitivity: int, scale: float) -> Ints:
        """Return answers with rounded normal noise of a scale; the budget is not used."""
        noise = self._rng.normal(scale=scale, size=answers.shape)
        return answers + np.rint(noise).astype(np.int64)


MAX_SEARCHED = 64  # rounds that a search tries at most: each fits all relaxed rows again
SEARCH_SEED = 1 << 32
"""Of all runs of a search: none that settings are judged by afterwards, which count from 0."""


@dataclass(frozen=True)
class Rehearsed:
    """Errors of the repetitions that were finished; `stopped` if time ran out before the last.

    The settings are RAP's; adaptive measurement has none.
    """

    settings: RapSettings | None
    runs: tuple[Errors, ...]
    stopped: bool

    def error(self, objective: Objective) -> float:
        """Return what the objective minimises: its mean over the repetitions."""
        return fmean(run.rmse if objective == "rmse" else run.largest for run in self.runs)


@dataclass(frozen=True, eq=False)
class Stage:
    """What a rehearsal needs, all of it public."""

    part: WorkloadPart  # of the queries; RAP is rehearsed on all of them
    proxies: tuple[Proxy, ...]  # each stands in for the data, in one run after the other
    privacy: Privacy  # whom the release protects
    guarantee: Guarantee  # the rho that is planned
    rows: Rows  # the declared number of records
    end: float = math.inf  # CPU seconds of this process at which a rehearsal is broken off

    @property
    def workload(self) -> Workload:
        """All queries."""
        return self.part.whole

    @property
    def words(self) -> str:
        """What the proxies are, and which part of the workload they are asked for."""
        return populations_in_words(self.proxies) + self.part.words


def rehearse(
    stage: Stage,
    settings: RapSettings | None,
    *,
    seeds: Sequence[int],
    first_always: bool = False,
    lost: float = math.inf,
) -> Rehearsed:
    """Run RAP, or adaptive measurement, on the proxy once for every seed, with noise of its own.

    Without settings of RAP it is adaptive measurement. Where the first run always counts, it is
    finished however long it takes. None is made once the mean RMSE is above what counts as lost.

    Raises:
        OutOfTimeError: not even one repetition was finished in time.
        UnsupportedWorkloadError, SpecError: it cannot be carried out so.
    """
    runs: list[Errors] = []
    for seed in seeds:
        limited = replace(stage, end=math.inf) if first_always and not runs else stage
        try:
            runs.append(_run(limited, settings, seed))
        except OutOfTimeError:
            if not runs:
                raise
            return Rehearsed(settings, tuple(runs), stopped=True)
        if fmean(run.rmse for run in runs) > lost:
            break
    return Rehearsed(settings, tuple(runs), stopped=False)


def search(stage: Stage, start: RapSettings, *, objective: Objective) -> tuple[RapSettings, bool]:
    """Search the number of rounds T and of queries in each K, one run for each pair tried.

    The error depends on T K before all else, and has one valley along it [RAP, 3.4.2]: K goes up or
    down fourfold while that helps, and then T and K change against each other, twofold. The pair
    that comes out was lucky in its run too: it is to be judged by runs of other seeds.

    Returns:
        The best settings found, and whether the search came to its end.

    Raises:
        OutOfTimeError: not even the first pair was finished in time.
    """

    def score(settings: RapSettings) -> float:
        return rehearse(stage, settings, seeds=[SEARCH_SEED]).error(objective)

    best, least = start, score(start)
    try:
        for moves in (((1, 4), (1, Fraction(1, 4))), ((2, Fraction(1, 2)), (Fraction(1, 2), 2))):
            for more_rounds, more_selected in moves:
                before = best
                while (tried := _moved(best, more_rounds, more_selected, stage)) is not None:
                    error = score(tried)
                    if error >= least:
                        break
                    best, least = tried, error
                if best != before:
                    break  # one valley: what helped one way does not help the other
    except OutOfTimeError:
        return best, False
    return best, True


def _moved(
    settings: RapSettings, rounds: Fraction | int, selected: Fraction | int, stage: Stage
) -> RapSettings | None:
    """Return the settings with T and K multiplied; None where that is no setting."""
    T, K = settings.rounds * rounds, settings.selected * selected
    allowed = int(T) == T and int(K) == K and K >= 1 and stage.workload.shape[0] >= T * K
    if not allowed or T > MAX_SEARCHED or T * K > MAX_RAP_MEASURED:
        return None
    return replace(settings, rounds=int(T), selected=int(K))


def _run(stage: Stage, settings: RapSettings | None, seed: int) -> Errors:
    """Run RAP once, or adaptive measurement on a part with its share of the budget."""
    workload, guarantee, rows = stage.workload, stage.guarantee, stage.rows
    proxy, chance = stage.proxies[seed % len(stage.proxies)], SeededChance(seed)
    if settings is not None:
        said = f"RAP: T = {settings.rounds}, K = {settings.selected}"
        rap = rap_rounds(workload, settings, privacy=stage.privacy, guarantee=guarantee, rows=rows)
        total = rap.decoded([rap.first(proxy.answers, chance)]).total
        fit = RapProjection(workload, settings, total)
        number = _rounds(rap, proxy.answers, fit, chance, said=said, end=stage.end)
        return errors_of(workload, fit.answers, proxy, rounds=number)
    workload, share = stage.part.narrow, guarantee.amount * stage.part.share
    guarantee = replace(guarantee, amount=share)
    tables = table_rounds(workload, privacy=stage.privacy, guarantee=guarantee, rows=rows)
    exact = cache(proxy.answers)  # every round reads all of them
    adaptive = AdaptiveFit(tables, tables.decoded([tables.first(exact, chance)]))
    number = _rounds(tables, exact, adaptive, chance, said=tables.name, end=stage.end)
    released, total = adaptive.released(), adaptive.model.total

    def answers(position: int) -> NDArray[np.floating]:
        return released.answer(workload.blocks[position]).astype(np.float64) * total

    return errors_of(workload, answers, proxy, rounds=number)


def _rounds(
    rounds: Rounds,
    exact: TrueAnswers,
    fit: PublicFit,
    chance: SeededChance,
    *,
    said: str,
    end: float,
) -> int:
    """Run all rounds, and return their number; OutOfTimeError before a round past the end."""
    number = 0
    check_time(end)
    for _ in run_rounds(rounds, exact, fit=fit, chance=chance):
        check_time(end)
        number += 1
        report_progress(f"rehearsing {said}: round {number}")
    return number


def errors_of(
    workload: Workload, answers: Callable[[int], NDArray[np.floating]], proxy: Proxy, *, rounds: int
) -> Errors:
    """Return the errors of answers, a block at a time, against those of the proxy."""
    squares, largest = 0.0, 0.0
    for position, (block, weight) in enumerate(zip(workload.blocks, workload.weights, strict=True)):
        error = answers(position).ravel() - proxy.answers(block)
        squares += weight * float(np.square(error).sum())
        largest = max(largest, float(np.abs(error).max()))
    return Errors(math.sqrt(squares / weighted_queries(workload)), largest, rounds)


def check_time(end: float) -> None:
    """Refuse to go on past so many CPU seconds of this process."""
    if process_time() > end:
        raise OutOfTimeError("not finished within the CPU seconds of --time-limit; give more")


def means_and_spreads(runs: Sequence[Errors]) -> tuple[float, float, float, float]:
    """Return mean and standard deviation, 0 of one run, of the RMSE and of the largest error."""
    values = [run.rmse for run in runs], [run.largest for run in runs]
    rmse, largest = ((fmean(each), stdev(each) if len(runs) > 1 else 0.0) for each in values)
    return (*rmse, *largest)


@dataclass(frozen=True, eq=False)
class LinearStage:
    """What the rehearsal of a linear strategy needs, all of it public."""

    spec: Spec  # what is asked
    compiled: CompiledSpec  # the same
    strategy: Strategy  # what is measured
    noise: Noise  # the law of its noise
    noise_std: float  # standard deviation of the noise on each measured row

    def on(self, part: WorkloadPart) -> "LinearStage":
        """Return the same with the tables of a part alone."""
        spec, compiled = part.of_spec(self.spec, self.compiled)
        strategy = part.of_strategy(self.strategy)
        return replace(self, spec=spec, compiled=compiled, strategy=strategy)

    @property
    def tables(self) -> Iterator[tuple[Table, int]]:
        """Every table with the place of its block."""
        for item, places in zip(self.spec.items, self.compiled.items, strict=True):
            yield from zip(item.tables, places, strict=True)


def rehearse_columns(
    stage: LinearStage, columns: Sequence[ExtraColumn], proxy: Proxy, *, seed: int
) -> list[Errors]:
    """Release once on a public population and return the errors of each column.

    Where a table has no value in a column, its reader takes the estimate, and so does this.

    The seed of the noise is public: it protects nothing.
    """
    rng, strategy = public_generator(seed), stage.strategy
    noisy = [
        float(rows.weight) * proxy.measured(rows.block)
        + _noise(rng, stage.noise, stage.noise_std, rows.block.queries)
        for rows in strategy.measurements
    ]
    measured = Measured(strategy, noisy, stage.noise_std)
    blocks, weights = stage.compiled.workload.blocks, stage.compiled.workload.weights
    report_progress("rehearsing columns beside the estimates")
    extra: ExtraColumns = extra_columns(tuple(columns), measured, blocks, steps=REHEARSED_STEPS)
    squares, largest = np.zeros(len(columns)), np.zeros(len(columns))
    places = [place for _, place in stage.tables]
    estimates = measured.answers([blocks[place] for place in places], places)
    for (table, place), estimate in zip(stage.tables, estimates, strict=True):
        block = blocks[place]
        errors = standard_errors(strategy, block, position=place, noise_std=stage.noise_std)
        answers = table_answers(
            table, block, strategy, estimate, position=place, std_errors=errors, level=0.95
        )
        truth = proxy.answers(block).ravel()
        for k, values in enumerate(extra.added_to(answers, block).extra):
            error = (answers.estimate if values is None else values) - truth
            squares[k] += weights[place] * float(np.square(error).sum())
            largest[k] = max(largest[k], float(np.abs(error).max()))
    queries = weighted_queries(stage.compiled.workload)
    return [
        Errors(math.sqrt(square / queries), float(most))
        for square, most in zip(squares, largest, strict=True)
    ]


def _noise(rng: PublicGenerator, noise: Noise, std: float, size: int) -> Floats:
    if noise == "laplace":
        return rng.laplace(scale=std / math.sqrt(2), size=size)
    return rng.normal(scale=std, size=size)


TRIALS_SEED = 2027
MOST_TRIALS, LEAST_TRIALS = 400, 40
TRIED_NUMBERS = 4_000_000  # measured and derived numbers of all trials together, about
USUAL_LEVEL = 0.95  # of the intervals of a release that says nothing else: what is lost in noise
SELDOM = 0.05  # share of trials without an estimate from which a row counts as lost


@dataclass(frozen=True, eq=False)
class RowErrors:
    """Errors of a derived item's rows, in its own unit."""

    # (m,) root mean square of estimate less truth; NaN where the population has no truth
    std: Floats
    # (m,) whether more than SELDOM of the trials have no estimate, being lost in noise; of merged
    # rows whether they miss what they are merged for
    lost: Bools
    merging: Merging | None = None  # what merged rows add up


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
        """Draw the noise."""
        sizes = strategy.sizes
        numbers = sum(sizes) + sum(block.queries for block, _ in tables.values())
        self.trials = max(LEAST_TRIALS, min(MOST_TRIALS, TRIED_NUMBERS // numbers))
        self.domain, self.strategy = domain, strategy
        self.truth = {
            table: np.asarray(population.answers(block), dtype=np.float64).reshape(1, -1)
            for table, (block, _) in tables.items()
        }
        self.noise = (
            answers_by_draw(tables, self._drawn()) if any(map(is_tried, statistics)) else {}
        )
        nothing = [np.zeros(size) for size in sizes]
        self._joint = JointAnswers(tables, Measured(strategy, nothing, 1.0))
        self._std: dict[Statistic, Floats] = {}  # of differences and rates, under unit noise

    def _drawn(self) -> Iterator[Estimates]:
        chance = public_generator(TRIALS_SEED)
        for trial in range(self.trials):
            report_progress("trying derived statistics on made-up noise", trial / self.trials)
            noise = [_noise(chance, self.strategy.noise, 1.0, n) for n in self.strategy.sizes]
            yield reconstruct(self.strategy, noise)

    def errors(self, statistic: Statistic, noise_std: float) -> RowErrors:
        """Return the errors of a statistic's rows where measured rows have noise of this size."""
        match statistic:
            case Difference() | Rate():
                if statistic not in self._std:
                    self._std[statistic] = pairs_of(statistic, self._joint).deviation()
                std = noise_std * self._std[statistic]
                return RowErrors(std, np.zeros(len(std), dtype=np.bool_))
            case Quotient() | Quantiles():
                of = partial(estimates_of, statistic, self._joint, self.domain, level=USUAL_LEVEL)
                noisy = {t: self.truth[t] + noise_std * self.noise[t] for t in statistic.tables}
                exact = of(self.truth, times=0.0)[0]
                return _spread(of(noisy, times=noise_std), exact)
            case MergedRows():
                merging = merging_at(statistic, self._joint, self.domain, noise_std)
                return RowErrors(np.sqrt(merging.variances), merging.missed, merging)
        assert_never(statistic)


def is_tried(statistic: Statistic) -> bool:
    """Whether its errors depend on the counts."""
    return isinstance(statistic, Quotient | Quantiles)


def _spread(estimates: Floats, truth: Floats) -> RowErrors:
    """Return errors of trials, (trials, m), about the truth, (m,); missing ones are left out."""
    known = np.isfinite(truth)
    given = np.isfinite(estimates)
    squared = np.where(given, (estimates - np.where(known, truth, 0.0)) ** 2, 0.0)
    with np.errstate(all="ignore"):
        std = np.sqrt(squared.sum(axis=0) / given.sum(axis=0))
    lost = known & (1 - given.mean(axis=0) > SELDOM)
    return RowErrors(np.where(known, std, np.nan), lost)
