"""RAP and adaptive measurement rehearsed on a public proxy: what their errors are likely to be.

The loops are the curator's own (run_rounds and run_tables in measurement), at the guarantee that
is planned, with a seeded chance in place of the curator's: the same plan comes out the same every
time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import fmean, stdev
from time import process_time

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import OutOfTimeError
from dpquery.limits import MAX_RAP_MEASURED
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.adaptive.budget import adaptive_budget
from dpquery.measurement.adaptive.table_rounds import (
    TableFit,
    decoded_run,
    noisy_one_way,
    run_tables,
)
from dpquery.measurement.rap.budget import rap_budget
from dpquery.measurement.rap.rounds import Projection, noisy_total, run_rounds, scaled_total
from dpquery.operators.blocks import Workload, marginal
from dpquery.plan_file.rap_settings import RapSettings
from dpquery.planning.rehearsal.proxy import Proxy, populations_in_words
from dpquery.planning.rehearsal.seeded_chance import SeededChance
from dpquery.progress import report_progress
from dpquery.reconstruction.adaptive.run_fit import AdaptiveFit
from dpquery.reconstruction.rap.fit import RapProjection
from dpquery.spec.model import Privacy, Rows
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.errors.expected_error import weighted_queries
from dpquery.strategy.objectives import Objective

MAX_SEARCHED = 64  # rounds that a search tries at most: each fits all relaxed rows again
SEARCH_SEED = 1 << 32
"""Of all runs of a search: none that settings are judged by afterwards, which count from 0."""


@dataclass(frozen=True)
class Errors:
    """Errors of one run over all queries, in counts: weighted RMSE, the largest; its rounds."""

    rmse: float
    largest: float
    rounds: int = 0


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
        return (self.rmse if objective == "rmse" else self.largest)[0]

    @property
    def rmse(self) -> tuple[float, float]:
        """Mean and standard deviation of the weighted RMSE over the repetitions."""
        return mean_and_spread([run.rmse for run in self.runs])

    @property
    def largest(self) -> tuple[float, float]:
        """Mean and standard deviation of the largest absolute error over the repetitions."""
        return mean_and_spread([run.largest for run in self.runs])


@dataclass(frozen=True, eq=False)
class Stage:
    """What a rehearsal needs, all of it public.

    Attributes:
        workload: the queries.
        proxies: each stands in for the data, in one run after the other.
        privacy: whom the release protects.
        guarantee: the rho that is planned.
        rows: the declared number of records.
        end: CPU seconds of this process at which a rehearsal is broken off.
    """

    workload: Workload
    proxies: tuple[Proxy, ...]
    privacy: Privacy
    guarantee: Guarantee
    rows: Rows
    end: float = math.inf

    @property
    def words(self) -> str:
        """What the proxies are."""
        return populations_in_words(self.proxies)

    def proxy_of(self, seed: int) -> Proxy:
        """Return what stands in for the data in the run of a seed."""
        return self.proxies[seed % len(self.proxies)]


def rehearse(
    stage: Stage,
    settings: RapSettings | None,
    *,
    seeds: Sequence[int],
    first_always: bool = False,
) -> Rehearsed:
    """Run RAP, or adaptive measurement, on the proxy once for every seed, with noise of its own.

    Args:
        stage: what it needs.
        settings: of RAP; None for adaptive measurement.
        seeds: of the runs.
        first_always: whether the first run is finished however long it takes.

    Raises:
        OutOfTimeError: not even one repetition was finished in time.
        UnsupportedWorkloadError, SpecError: it cannot be carried out so.
    """
    runs: list[Errors] = []
    for seed in seeds:
        limited = replace(stage, end=math.inf) if first_always and not runs else stage
        try:
            runs.append(_run(limited, settings, seed) if settings else _table_run(limited, seed))
        except OutOfTimeError:
            if not runs:
                raise
            return Rehearsed(settings, tuple(runs), stopped=True)
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


def _run(stage: Stage, settings: RapSettings, seed: int) -> Errors:
    workload, proxy = stage.workload, stage.proxy_of(seed)
    mechanism = rap_budget(
        workload, settings, privacy=stage.privacy, guarantee=stage.guarantee, rows=stage.rows
    )
    chance = SeededChance(seed)
    (steps,) = noisy_total(stage.rows.count, mechanism, chance)
    total = scaled_total(int(steps), mechanism, stage.rows)
    projection = _Timed(RapProjection(workload, settings, total), stage.end)
    rounds = run_rounds(
        lambda position: proxy.answers(workload.blocks[position]),
        workload=workload,
        mechanism=mechanism,
        projection=projection,
        chance=chance,
    )
    T, K = settings.rounds, settings.selected
    for number, _ in enumerate(rounds):
        report_progress(f"rehearsing RAP: T = {T}, K = {K}, round {number + 1}")
    return errors_of(workload, projection.answers, proxy, rounds=T)


def _table_run(stage: Stage, seed: int) -> Errors:
    """Run adaptive measurement once."""
    workload, proxy = stage.workload, stage.proxy_of(seed)
    shape, chance = workload.shape_of_domain, SeededChance(seed)
    budget = adaptive_budget(
        workload, privacy=stage.privacy, guarantee=stage.guarantee, rows=stage.rows
    )
    candidates = budget.candidates
    tables = [proxy.answers(marginal(shape, subset)) for subset in candidates.subsets]
    first = noisy_one_way(tables.__getitem__, budget, chance)
    fit = AdaptiveFit(shape, candidates, decoded_run([first], budget, stage.rows))
    rounds = run_tables(
        tables.__getitem__, budget=budget, fit=_TimedFit(fit, stage.end), chance=chance
    )
    number = 0
    for _ in rounds:
        number += 1
        report_progress(f"rehearsing adaptive measurement: round {number}")

    model = fit.final()

    def answers(position: int) -> NDArray[np.floating]:
        return model.answer(workload.blocks[position])

    return errors_of(workload, answers, proxy, rounds=number)


def errors_of(
    workload: Workload,
    answers: Callable[[int], NDArray[np.floating]],
    proxy: Proxy,
    *,
    rounds: int,
) -> Errors:
    """Return the errors of answers, a block at a time, against those of the proxy."""
    squares, largest = 0.0, 0.0
    for position, (block, weight) in enumerate(zip(workload.blocks, workload.weights, strict=True)):
        error = answers(position).ravel() - proxy.answers(block)
        squares += weight * float(np.square(error).sum())
        largest = max(largest, float(np.abs(error).max()))
    return Errors(math.sqrt(squares / weighted_queries(workload)), largest, rounds)


@dataclass(frozen=True, eq=False)
class _Timed:
    """A projection that gives up when time is up: between rounds, and between tables."""

    projection: Projection
    end: float

    def answers(self, position: int) -> NDArray[np.floating]:
        """Return the projection's answers, if there is time left."""
        self._check()
        return self.projection.answers(position)

    def add(self, places: Ints, noisy: Floats, std: float) -> None:
        """Pass a round on, if there is time left."""
        self._check()
        self.projection.add(places, noisy, std)

    def _check(self) -> None:
        check_time(self.end)


@dataclass(frozen=True, eq=False)
class _TimedFit:
    """A fit of tables that gives up when time is up, likewise."""

    fit: TableFit
    end: float

    def table(self, attributes: Subset) -> Floats:
        """Return the fit's table, if there is time left."""
        check_time(self.end)
        return self.fit.table(attributes)

    def add(self, attributes: Subset, noisy: Floats, std: float) -> None:
        """Pass a table on, if there is time left."""
        check_time(self.end)
        self.fit.add(attributes, noisy, std)


def check_time(end: float) -> None:
    """Refuse to go on past so many CPU seconds of this process."""
    if process_time() > end:
        raise OutOfTimeError("not finished within the CPU seconds of --time-limit; give more")


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of some values and their standard deviation, 0 of one value."""
    return fmean(values), stdev(values) if len(values) > 1 else 0.0
