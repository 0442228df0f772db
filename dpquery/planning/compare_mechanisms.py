"""Linear columns, RAP and adaptive measurement rehearsed alike, and which is preferred.

A linear strategy's error is known exactly before any data are seen; RAP's depends on the data, so
that it is rehearsed on a public proxy. Looking at the private data to choose is not an option: the
choice itself would depend on them.

What is simulated on one population is no more than likely on another, and these answers carry no
error bars. So RAP and adaptive measurement are preferred only where they beat the linear figure,
that of its best column, by a margin: on data adaptive measurement has 1.15 times the error that it
has on made-up populations. On the four data sets that it was set on picks err 1.04 times the best
with 0.9 and 1.07 times with 1; 0.9 was judged on six others (tests/bench/bench_choice.py). RAP's
0.7 is from 24 earlier choices between RAP and linear strategies, on thresholds of Adult.

The answers that err least, biased or not: columns of linear strategies, rehearsed and compared.

Estimates are unbiased and their error is known. `consistent` and `shrunk` give that up: on tables
of small counts they err far less, by how much depends on the data, and so they are simulated on
public populations. A strategy that spends more on small tables (`sparse_variant`) is compared too.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from statistics import fmean
from time import process_time

import numpy as np

from dpquery.exceptions import OutOfTimeError, SpecError, UnsupportedWorkloadError
from dpquery.measurement import accounting
from dpquery.measurement.rounds.tables import table_rounds
from dpquery.operators.blocks import Workload
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.plan import Plan, Target
from dpquery.plan_file.rehearsals import (
    NO_DERIVED,
    BiasedColumn,
    Contender,
    MechanismChoice,
    PlannedAdaptive,
    PlannedClosest,
    PlannedFit,
    PlannedRap,
    Rehearsal,
    default_settings,
)
from dpquery.planning.figures import SelectionAtBudget, planned
from dpquery.planning.rehearsal.populations import Proxy, populations_in_words, proxies_for
from dpquery.planning.rehearsal.runs import (
    Errors,
    LinearStage,
    Rehearsed,
    Stage,
    WorkloadPart,
    check_time,
    errors_of,
    finished_in_time,
    means_and_spreads,
    parts_of,
    quick_part,
    rehearse,
    rehearse_columns,
    search,
    whole_of,
)
from dpquery.planning.report import PlanReport
from dpquery.reconstruction.agreeing_tables import not_shrunk
from dpquery.reconstruction.columns import BEST_GUESS, FAR_LESS, ExtraColumn, check_columns
from dpquery.reconstruction.components import fittable_tables
from dpquery.reconstruction.intervals import expected_largest
from dpquery.releases.words import figure
from dpquery.spec.spec import Spec
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.search.candidates import Proposal
from dpquery.strategy.search.select import Candidate, Flaw, Selection
from dpquery.strategy.shapes.residual import ResidualStrategy, sparse_variant
from dpquery.strategy.strategy import Noise, Objective, Strategy

REPETITIONS = 3
PRIOR_MARGINS, PROXY_MARGIN = {"rap": 0.7, "adaptive": 0.9}, 0.9
"""A simulated error must be below so many times the linear one: made-up and named proxies."""
ADAPTIVE_SEEDS = (2, 0, 1)
"""Of its runs, each on the population of that number: the last is mostly the quickest, and the one
on which it errs least."""
BEYOND_WINNING = 1.0
"""Times the linear error in the first runs of these: in 39 cells of ten data sets the mean of all
was at least 0.96 times the first, and above the linear error wherever runs end so."""


@dataclass(frozen=True)
class MechanismRequest:
    """The mechanisms to compare, and the proxy to rehearse RAP on."""

    # "linear" rehearses nothing; "rap" prefers RAP whatever it reaches, and "adaptive" adaptive
    # measurement, which alone is rehearsed otherwise
    mechanism: MechanismChoice = "auto"
    proxy: Path | None = None  # a public CSV file or an earlier release; None for the default prior
    search: bool = False  # whether RAP's settings are searched on the proxy, and RAP is compared

    @property
    def named(self) -> bool:
        """Whether a mechanism that is rehearsed was asked for by its name."""
        return self.mechanism in FIT_NAMES

    @property
    def compared(self) -> tuple[str, ...]:
        """What is rehearsed: RAP takes long, errs more, and is for those who ask for it."""
        if self.mechanism == "rap":
            return ("rap",)
        return ("adaptive", "rap") if self.search else ("adaptive",)

    @property
    def name(self) -> str:
        """What is rehearsed, in words."""
        return FIT_NAMES.get(self.mechanism, PlannedAdaptive.name)


FIT_NAMES: dict[MechanismChoice, str] = {fit.key: fit.name for fit in (PlannedAdaptive, PlannedRap)}


def stages_for(
    spec: Spec,
    compiled: CompiledSpec,
    request: MechanismRequest,
    *,
    epsilon: Fraction | None,
    delta: Fraction,
    targets: tuple[tuple[Target, ...], tuple[Target, ...]],
) -> tuple[tuple[Proxy, ...], Stage | str]:
    """Return what is rehearsed, at epsilon 1 unless said.

    First the public populations to compare columns of answers on, none where estimates are wanted;
    then what the rehearsal of RAP needs, or why there is none, empty for no remark. With targets on
    derived items, the second ones, a proxy is for those.

    Raises:
        SpecError: RAP, or a proxy to rehearse on, was asked for and cannot be had.
    """
    if targets[1]:
        request = replace(request, proxy=None)
    bounded, closest, rows = any(targets), spec.prefer == "closest", spec.dataset.rows
    linear = request.mechanism == "linear" or (request.mechanism == "auto" and not closest)
    _check_request(spec, request, bounded=bounded, linear=linear)
    proxies: tuple[Proxy, ...] = ()
    if rows is not None and (closest or request.named):
        proxies = proxies_for(request.proxy, spec, compiled, rows=rows.count)
    compared = proxies if closest else ()
    reason = "" if linear else _missing(spec, delta, request.name, targets=bounded)
    if linear or rows is None or reason:
        if linear or request == MechanismRequest():
            return compared, reason if rows is not None else ""
        raise SpecError(f"{request.name} cannot be rehearsed: {reason}")
    guarantee = accounting.guarantee("gaussian", epsilon=epsilon or Fraction(1), delta=delta)
    whole = whole_of(compiled.workload)
    return compared, Stage(whole, proxies, spec.privacy, guarantee, rows)


def _check_request(spec: Spec, request: MechanismRequest, *, bounded: bool, linear: bool) -> None:
    """Refuse what cannot be had together; `bounded` where there are targets."""
    closest = spec.prefer == "closest"
    if closest and spec.states_facts:
        raise SpecError(
            "guesses that may be biased know no public facts; leave `impossible` and `known` out, "
            "or `prefer: closest`"
        )
    if closest and bounded:
        raise SpecError(
            "targets bound standard errors, and the closest answers have none; leave --target "
            "out, or `prefer: closest`"
        )
    if linear and request.search:
        raise SpecError(
            "--rap-search is for answers that may be biased; write `prefer: closest` in the "
            "spec, or give --mechanism rap or adaptive"
        )
    if linear and request.proxy and spec.dataset.rows is None:
        raise SpecError(
            "--proxy is scaled to the number of records, which the spec does not say; declare "
            "`dataset: {rows: about 50000}`, from public knowledge"
        )


def with_fits(
    report: PlanReport, stage: Stage | str, *, request: MechanismRequest, time_limit: float
) -> PlanReport:
    """Rehearse what has no error bars beside the better linear strategy, and say what is preferred.

    Each has so many CPU seconds, half of them for the search of settings where one is wanted.

    Raises:
        SpecError: what was asked for cannot answer this workload, or not in time.
    """
    if isinstance(stage, str):
        return report.remarked(f"{request.name} was not compared: {stage}" if stage else "")
    for of, rehearsed in ((PlannedAdaptive, _of_tables), (PlannedRap, _of_rap)):
        if of.key not in request.compared:
            continue
        try:
            fit, remark = rehearsed(report, stage, request, time_limit)
            report = replace(report.remarked(remark), plan=report.plan.with_fit(fit))
        except (OutOfTimeError, SpecError) as reason:
            if request.mechanism == of.key:
                raise SpecError(f"{of.name} cannot be rehearsed: {reason}") from None
            report = report.remarked(f"{of.name} was not compared: {reason}")
    return _preferring(report.remarked(_beside_zero(report, stage)), request)


def _preferring(report: PlanReport, request: MechanismRequest) -> PlanReport:
    """Prefer what was asked for; else what errs least, margins and all, if any beats linear."""
    plan = report.plan
    best = min(
        (each for each in plan.fits if request.mechanism in ("auto", each.key)),
        key=lambda each: each.weighed(plan.objective),
        default=None,
    )
    if best is None or (request.mechanism == "auto" and best.weighed(plan.objective) >= 1):
        return report
    return replace(report, plan=plan.with_fit(replace(best, preferred=True)))


def _beside_zero(report: PlanReport, stage: Stage) -> str:
    """Return the remark that nothing errs less than zero everywhere; empty where something does."""
    part = parts_of(stage.workload)[0].workload
    zero = fmean(
        errors_of(part, lambda _: np.zeros(1), proxy, rounds=0).rmse for proxy in stage.proxies
    )
    least = min([_linear_errors(report, stage.workload).rmse, *(f.rmse for f in report.plan.fits)])
    if least < zero:
        return ""
    measure = f"{'weighted ' * report.spec.weighted}RMSE"
    return (
        "nothing that was compared has a smaller error than answering zero everywhere, which has "
        f"{figure(zero)} ({measure}, on {stage.words}); ask for less, or give more epsilon"
    )


def _of_tables(
    report: PlanReport, stage: Stage, request: MechanismRequest, time_limit: float
) -> tuple[PlannedFit, str]:
    """Rehearse adaptive measurement; once at least where it was asked for by its name."""
    whole = table_rounds(
        stage.workload, privacy=stage.privacy, guarantee=stage.guarantee, rows=stage.rows
    )
    always = request.mechanism == "adaptive"
    compared = not always and report.plan.objective == "rmse"
    linear = _linear_errors(report, stage.workload).rmse if compared else math.inf

    def rehearsal(part: WorkloadPart, end: float) -> Rehearsed:
        limited = replace(stage, part=part, end=end)
        lost = BEYOND_WINNING * linear if part.is_whole else math.inf
        return rehearse(limited, None, seeds=ADAPTIVE_SEEDS, first_always=always, lost=lost)

    part, done = finished_in_time(parts_of(stage.workload), time_limit, rehearsal)
    if not part.is_whole:
        strategy, noise_std = _measured(report.priced[0], stage.workload)
        estimates = _expected(report.priced[0], stage.workload)
        runs = part.scaled(done.runs, strategy, noise_std=noise_std, estimates=estimates)
        done = replace(done, runs=tuple(runs))
    stage = replace(stage, part=part)
    fit = PlannedAdaptive(
        **vars(_rehearsal(done, stage, report, request, PlannedAdaptive.key)),
        tables=len(whole.candidates.subsets),
        rounds=round(fmean(run.rounds for run in done.runs) * part.times_as_wide),
    )
    words = f"{len(done.runs)} of {REPETITIONS} rehearsals of adaptive measurement were finished"
    return fit, f"{words}; give --time-limit more seconds" * done.stopped


def _of_rap(
    report: PlanReport, stage: Stage, request: MechanismRequest, time_limit: float
) -> tuple[PlannedFit, str]:
    """Rehearse RAP, with the settings of the rule or with those that are found."""
    objective = report.plan.objective
    start = process_time()
    rule = default_settings(
        rho=float(stage.guarantee.amount), rows=stage.rows.count, queries=stage.workload.shape[0]
    )
    settings, remarks, seeds = rule, [], range(REPETITIONS)
    if request.search:
        half = replace(stage, end=start + time_limit / 2)
        settings, finished = search(half, rule, objective=objective)
        remarks += [] if finished else ["the search for RAP's settings was not finished"]
    whole = replace(stage, end=start + time_limit)
    done = rehearse(whole, rule, seeds=seeds)
    if settings != rule:  # best in one run each: is it better than the rule's in other runs too?
        try:
            other = rehearse(whole, settings, seeds=seeds)
            done = min(done, other, key=lambda rehearsed: rehearsed.error(objective))
        except OutOfTimeError:
            remarks.append("what the search for RAP's settings found was not rehearsed")
    if done.stopped:
        remarks.append(f"{len(done.runs)} of {REPETITIONS} rehearsals of RAP were finished")
    if done.settings is None:
        raise ValueError("RAP has settings")
    rehearsed = _rehearsal(done, stage, report, request, PlannedRap.key)
    fit = PlannedRap(**vars(rehearsed), settings=done.settings)
    return fit, "; ".join(remarks) + "; give --time-limit more seconds" * bool(remarks)


def _rehearsal(
    done: Rehearsed, stage: Stage, report: PlanReport, request: MechanismRequest, key: str
) -> Rehearsal:
    linear = _linear_errors(report, stage.workload)
    rmse, rmse_spread, largest, largest_spread = means_and_spreads(done.runs)
    return Rehearsal(
        epsilon=stage.guarantee.epsilon,
        delta=stage.guarantee.delta,
        proxy=stage.words,
        repetitions=len(done.runs),
        rmse=rmse,
        rmse_spread=rmse_spread,
        max_error=largest,
        max_error_spread=largest_spread,
        linear_rmse=linear.rmse,
        linear_max_error=linear.largest,
        margin=PRIOR_MARGINS[key] if request.proxy is None else PROXY_MARGIN,
        preferred=False,
    )


def beside_fits(report: PlanReport, workload: Workload) -> PlanReport:
    """Return the report of a plan that prefers what was rehearsed, with linear errors of now.

    What they are charged in may be another accounting than that in which they were compared, and
    linear strategies take more noise there.
    """
    plan = report.plan
    if plan.preferred is None:
        raise ValueError("the plan prefers a linear strategy")
    now = _linear_errors(report, workload)
    for fit in plan.fits:
        plan = plan.with_fit(replace(fit, linear_rmse=now.rmse, linear_max_error=now.largest))
    return replace(report, plan=plan)


def _linear_errors(report: PlanReport, workload: Workload) -> Errors:
    """Return the errors of a linear selection, to set beside RAP's.

    They are those of its best column where columns were compared. RAP takes what Gaussian noise
    does. A linear strategy that takes more is set beside it at an equal share of the budget, which
    is then that of Gaussian noise, the cheapest selection.
    """
    closest, best = report.plan.closest, report.priced[0]
    if closest is not None:
        return Errors(closest.best.rmse, closest.best.max_error)
    if best.selection.noise != "gaussian" and best.equal is not None:
        best = replace(best, std=best.equal.std)
    return _expected(best, workload)


def _expected(best: SelectionAtBudget, workload: Workload) -> Errors:
    strategy, noise_std = _measured(best, workload)
    return Errors(best.weighted_rmse, expected_largest(strategy, workload, noise_std=noise_std))


def _measured(best: SelectionAtBudget, workload: Workload) -> tuple[Strategy, float]:
    """Return what a selection measures, and the standard deviation of the noise on each row."""
    strategy = best.selection.decoded(workload)
    return strategy, best.noise_std(strategy)


def _missing(spec: Spec, delta: Fraction, name: str, *, targets: bool) -> str:
    """Return why a rehearsal is impossible, with the remedy; empty where it is possible."""
    if targets:
        return f"targets bound standard errors, and answers of {name} have none; leave --target out"
    if spec.budget.counted == "gdp":
        return (
            f"the dataset's losses are added up as mu^2 of GDP, and {name}'s as rho of zCDP; "
            "declare `accounting: zcdp` in the budget of a dataset that was not charged yet"
        )
    sums = [item.name for item in spec.items if item.summed is not None]
    if sums:
        return f"{name} answers counts, and the item {sums[0]!r} is a sum; leave its sums out"
    if spec.privacy.weight is not None:
        return f"{name} counts each record as one; leave `weight` out"
    if spec.derived:
        return f"{spec.derived[0].place}: {NO_DERIVED.format(name)}"
    if spec.states_facts:
        return f"{name} knows no public facts; leave `impossible` and `known` out"
    if any(item.share for item in spec.items):
        return f"{name} splits its budget by itself; leave `share` out"
    if delta == 0 or spec.budget.counted == "pure":
        return "it needs a delta: declare `delta` under `privacy`, and a budget with one or in rho"
    if spec.dataset.rows is None:
        return (
            "the spec does not say how many rows the dataset holds; declare "
            "`dataset: {rows: about 50000}`, from public knowledge"
        )
    return ""


COLUMN_RUNS = 3
FITTED_QUERIES = 10_000  # of the tables that rows are fitted to in such a run: a second


@dataclass(frozen=True, eq=False)
class ColumnRehearsal:
    """Compares the columns of a plan's strategies on public populations."""

    spec: Spec  # what is asked
    compiled: CompiledSpec  # the same
    # the populations, one for each run in turn; without any nothing is compared
    proxies: tuple[Proxy, ...]
    objective: Objective  # what is minimised
    flaw_of: Flaw  # see `select`
    time_limit: float  # CPU seconds for all runs

    def compared(
        self,
        plan: Plan,
        selections: Mapping[Noise, Selection],
        reported: Callable[[Plan], PlanReport],
    ) -> PlanReport:
        """Return the report of the plan with the strategy and the column that err least."""
        report = reported(plan)
        if not self.proxies:
            return report
        try:
            return reported(self._plan(report, selections))
        except (OutOfTimeError, UnsupportedWorkloadError) as reason:
            return report.remarked(f"no columns were compared: {reason}")

    def _plan(self, report: PlanReport, selections: Mapping[Noise, Selection]) -> Plan:
        priced = report.priced[0]
        selection = selections[priced.selection.noise]
        sparse = self._sparse(selection)
        compared = [selection.best, *sparse]
        strategies = [each.proposal.strategy for each in compared if each.proposal is not None]

        def rehearsal(part: WorkloadPart, end: float) -> list[Contender]:
            each = (self._contenders(strategy, priced, part, end) for strategy in strategies)
            return list(chain.from_iterable(each))

        parts = parts_of(self.compiled.workload)
        if not all(isinstance(strategy, ResidualStrategy) for strategy in strategies):
            parts = (whole_of(self.compiled.workload),)
        part, contenders = finished_in_time(parts, self.time_limit, rehearsal)
        chosen = min(range(len(contenders)), key=lambda k: contenders[k].error(self.objective))
        closest = PlannedClosest(
            report.epsilon,
            report.delta,
            populations_in_words(self.proxies) + part.words,
            COLUMN_RUNS,
            tuple(contenders),
            chosen,
        )
        best = next(c for c in compared if c.name == closest.best.strategy)
        wider = replace(selection, best=best, candidates=(*selection.candidates, *sparse))
        taken = planned(wider, self.spec, self.compiled)
        return replace(
            report.plan,
            closest=closest,
            selections=tuple(
                taken if one.noise == taken.noise else one for one in report.plan.selections
            ),
        )

    def _sparse(self, selection: Selection) -> tuple[Candidate, ...]:
        """Return the sparse variant of the best OPT_R of a selection, if there is a sound one."""
        residual = [
            (candidate.score, candidate.proposal.strategy)
            for candidate in selection.candidates
            if candidate.proposal is not None
            and isinstance(candidate.proposal.strategy, ResidualStrategy)
        ]
        if not residual or selection.noise != "gaussian":
            return ()
        strategy = sparse_variant(min(residual, key=lambda pair: pair[0])[1])
        if self.flaw_of(strategy):
            return ()
        error = expected_error(strategy, self.compiled.workload, selection.change)
        score = error.weighted_rmse if self.objective == "rmse" else error.max_std_error
        return (Candidate(strategy.name, Proposal(strategy), error, score=score, sound=True),)

    def _contenders(
        self, strategy: Strategy, priced: SelectionAtBudget, part: WorkloadPart, end: float
    ) -> list[Contender]:
        workload, change = self.compiled.workload, priced.selection.record_change
        noise, noise_std = priced.selection.noise, priced.noise_std(strategy)
        estimates = Errors(
            priced.std * expected_error(strategy, workload, change).weighted_rmse,
            expected_largest(strategy, workload, noise_std=noise_std),
        )
        stage = LinearStage(self.spec, self.compiled, strategy, noise, noise_std)
        columns = self._columns(strategy)
        runs = [
            part.scaled(errors, strategy, noise_std=noise_std, estimates=estimates)
            for errors in self._runs(stage.on(part), columns, end)
        ]
        simulated = [
            Contender(strategy.name, name, *means_and_spreads(of_column))
            for name, of_column in zip(columns, zip(*runs, strict=True), strict=True)
        ]
        unbiased = Contender(strategy.name, "estimate", estimates.rmse, 0.0, estimates.largest, 0.0)
        return [unbiased, *simulated, *self._averaged(stage, simulated[-1], end)]

    def _runs(
        self, stage: LinearStage, names: Sequence[BiasedColumn], end: float
    ) -> Iterator[list[Errors]]:
        """Yield the errors of columns in every run, on one population after the other."""
        columns = [ExtraColumn(name) for name in names]
        for seed in range(COLUMN_RUNS):
            check_time(end)
            proxy = self.proxies[seed % len(self.proxies)]
            yield rehearse_columns(stage, columns, proxy, seed=seed)

    def _averaged(self, stage: LinearStage, shrunk: Contender, end: float) -> list[Contender]:
        """Return the mean of shrunk answers and fitted rows: tried beside the former on few tables.

        A fit takes long: it is left out where time is over, or some tables cannot be had alone.
        """
        workload, strategy = self.compiled.workload, stage.strategy
        part = quick_part(workload, FITTED_QUERIES)
        if part is None or not (part.is_whole or isinstance(strategy, ResidualStrategy)):
            return []
        try:
            check_columns([BEST_GUESS, ExtraColumn("averaged")], strategy, workload.blocks)
            runs = list(self._runs(stage.on(part), ["shrunk", "averaged"], end))
        except (OutOfTimeError, UnsupportedWorkloadError):
            return []
        if not all(guess.rmse for guess, _ in runs):
            return []
        narrower = fmean(mean.rmse / guess.rmse for guess, mean in runs)
        lower = fmean(mean.largest / guess.largest for guess, mean in runs)
        averaged = replace(
            shrunk,
            column="averaged",
            rmse=narrower * shrunk.rmse,
            rmse_spread=narrower * shrunk.rmse_spread,
            max_error=lower * shrunk.max_error,
            max_error_spread=lower * shrunk.max_error_spread,
        )
        return [averaged]

    def _columns(self, strategy: Strategy) -> list[BiasedColumn]:
        """Return the columns that could err least.

        Agreeing tables take ten times as long as shrunk ones. Where all tables can be shrunk, their
        RMSE was 1.2 to 2.9 times theirs on the made-up populations of 40 cells of ten data sets.
        """
        scope = fittable_tables(strategy, self.compiled.workload.blocks, not_shrunk)
        if self.objective == "rmse" and not any(scope.reasons):
            return ["shrunk"]
        return ["consistent", "shrunk"] if scope.sets else ["consistent"]


FAINT_ANSWERS = 0.1  # of the average answer: with less error nothing is to be gained by a guess


def with_nearer(report: PlanReport, compiled: CompiledSpec) -> PlanReport:
    """Return a report of unbiased answers with the error of the best guess, where that is far less.

    It is tried once on every made-up population, on a few tables, by the strategy that is planned.
    """
    spec, priced, items = report.spec, report.priced[0], report.worth.items
    records = items[0].records
    if not report.may_be_nearer or records is None:
        return report
    if all((item.relative or 0.0) < FAINT_ANSWERS for item in items):
        return report
    workload, part = compiled.workload, quick_part(compiled.workload)
    strategy, noise_std = _measured(priced, workload)
    if part is None or not (part.is_whole or isinstance(strategy, ResidualStrategy)):
        return report
    try:
        check_columns([BEST_GUESS], strategy, workload.blocks)
        proxies = proxies_for(None, spec, compiled, rows=records)
    except UnsupportedWorkloadError:
        return report
    stage = LinearStage(spec, compiled, strategy, priced.selection.noise, noise_std).on(part)
    runs = [rehearse_columns(stage, [BEST_GUESS], each, seed=0)[0] for each in proxies]
    estimates = Errors(priced.weighted_rmse, 1.0)
    scaled = part.scaled(runs, strategy, noise_std=noise_std, estimates=estimates)
    error = fmean(run.rmse for run in scaled)
    if error >= FAR_LESS * priced.weighted_rmse:
        return report
    return replace(report, nearer=error)
