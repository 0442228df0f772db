"""Releases by RAP and by adaptive measurement: what is asked, answered and said of them.

Carry out relaxed adaptive projection (RAP): relaxed rows, and answers without error bars.

Carry out adaptive measurement: whole tables chosen and measured in rounds, and relaxed rows.

What releases of relaxed rows have in common: answers without error bars, and their manifest.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import SpecError
from dpquery.measurement import accounting
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.ledger.ledger import StoredMeasurement
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.query import Query
from dpquery.measurement.rounds.budget import GRID_BITS, adaptive_budget, rap_budget
from dpquery.measurement.rounds.queries import RapMeasurement, RapQuery, rounds_of
from dpquery.measurement.rounds.tables import AdaptiveMeasurement, AdaptiveQuery, measured_tables
from dpquery.mechanisms.content import (
    ReleaseContent,
    ReleaseRequest,
    cumulative_words,
    digest_of,
    ledger_facts,
)
from dpquery.mechanisms.derived import NO_DERIVED
from dpquery.operators.blocks import Block
from dpquery.operators.compile import CompiledSpec, compile_spec
from dpquery.plan_file.plan import Plan
from dpquery.plan_file.rehearsals import PlannedAdaptive, PlannedFit, PlannedRap, encode_settings
from dpquery.progress import report_progress
from dpquery.reconstruction.adaptive_fits import (
    AdaptiveFit,
    UnbiasedAnswers,
    final_model,
    tables_of_run,
)
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.reconstruction.relaxed.fits import RapProjection, replay
from dpquery.reconstruction.relaxed.rows import RelaxedRows
from dpquery.releases.folder.noisy_files import (
    MeasurementLabel,
    relaxed_table,
    rows_digest,
    values_digest,
)
from dpquery.releases.manifest import ColumnFacts, EmptyFacts, Manifest, StrategyFacts, manifest_of
from dpquery.releases.manifest_facts import AdaptiveFacts, RapFacts, SimulatedFacts
from dpquery.spec.spec import Item, Spec
from dpquery.strategy.algebra.subsets import Subset

NO_COLUMNS = (
    "the answers of {} have no columns beside them: they are not negative and agree with each "
    "other as they are; leave --also out"
)
NO_LEVEL = "the answers of {} have no noise intervals: leave --confidence out"
UNBIASED_COLUMNS = {
    "unbiased": "the count from the measured tables alone, plus noise of mean zero",
    "unbiased_std_error": "the standard error of `unbiased`",
}
"""Meaning of the columns beside answers that some measured tables hold."""
NOT_MEASURED = "no measured table holds their attributes"


@dataclass(frozen=True, eq=False)
class RelaxedAnswers:
    """Reads the answers of an item from relaxed rows, one table at a time.

    Attributes:
        spec: what is asked.
        compiled: the same.
        rows: the relaxed rows.
        total: the number of records.
        unbiased: what the measured tables say by themselves, where whole tables were measured.
        refined: attributes of which the questions distinguish more values than these tables.
    """

    spec: Spec
    compiled: CompiledSpec
    rows: RelaxedRows
    total: float
    unbiased: UnbiasedAnswers | None = None
    refined: frozenset[int] = frozenset()

    def __call__(self, item: Item) -> Iterator[TableAnswers]:
        """Yield the answers of an item's tables, in order."""
        for table, block in zip(item.tables, self._blocks(item), strict=True):
            estimates = self.total * self.rows.answer(block).ravel().astype(np.float64)
            yield TableAnswers(table, estimates, None, None, self._beside(block))

    def described(self, manifest: Manifest) -> Manifest:
        """Return the manifest of these answers with what there is to say of unbiased ones."""
        if self.unbiased is None or manifest.adaptive is None:
            return manifest
        answers, squares = 0, 0.0
        empty = []
        for item in self.spec.items:
            blocks = self._blocks(item)
            measured = [block for block in blocks if self._is_measured(block)]
            answers += sum(block.queries for block in measured)
            squares += math.fsum(map(self.unbiased.squared_errors, measured))
            empty += [EmptyFacts(item.name, NOT_MEASURED)] * (len(measured) < len(blocks))
        rmse = math.sqrt(squares / answers) if answers else None
        return replace(
            manifest,
            adaptive=replace(manifest.adaptive, unbiased=answers, unbiased_rmse=rmse),
            extra=tuple(
                ColumnFacts(name, name, meaning, tuple(empty))
                for name, meaning in UNBIASED_COLUMNS.items()
            ),
        )

    def _beside(self, block: Block) -> tuple[Floats | None, ...]:
        """Return the unbiased answers of a block and their standard errors, where it has some."""
        if self.unbiased is None:
            return ()
        return self.unbiased.answer(block) if self._is_measured(block) else (None, None)

    def _is_measured(self, block: Block) -> bool:
        refined = not self.refined.isdisjoint(block.attributes)
        return self.unbiased is not None and not refined and self.unbiased.holds(block)

    def _blocks(self, item: Item) -> list[Block]:
        places = self.compiled.items[self.spec.items.index(item)]
        return [self.compiled.workload.blocks[position] for position in places]


def check_request(request: ReleaseRequest, spec: Spec, name: str) -> None:
    """Refuse what answers without error bars cannot have; SpecError with the remedy."""
    if request.noise == "laplace":
        raise SpecError(
            f"{name} needs Gaussian noise; leave --noise out, or give --mechanism linear"
        )
    refused = ((request.columns, NO_COLUMNS), (request.level, NO_LEVEL), (spec.derived, NO_DERIVED))
    for option, words in refused:
        if option:
            raise SpecError(f"{words.format(name)}, or give --mechanism linear")


def simulated_at(planned: PlannedFit, guarantee: Guarantee, spec: Spec) -> SimulatedFacts | None:
    """Return simulated errors at a guarantee; None where the plan rehearsed another."""
    if not planned.covers(guarantee.epsilon, guarantee.delta):
        return None
    return SimulatedFacts(
        proxy=planned.proxy,
        repetitions=planned.repetitions,
        rmse=planned.rmse,
        rmse_spread=planned.rmse_spread,
        max_error=planned.max_error,
        max_error_spread=planned.max_error_spread,
        weighted=spec.weighted,
    )


def relaxed_manifest(
    plan: Plan,
    query: Query,
    measured: StoredMeasurement,
    noise: CalibratedNoise,
    *,
    level: float,
    name: str,
    settings: object,
    rap: RapFacts | None = None,
    adaptive: AdaptiveFacts | None = None,
) -> Manifest:
    """Return the manifest of a release of relaxed rows.

    Args:
        plan: that was carried out.
        query: what was measured.
        measured: its noisy values.
        noise: the widest of all that was added.
        level: that no interval has.
        name: of the mechanism, as a strategy.
        settings: of the run, as JSON values.
        rap: the run, if it was RAP's.
        adaptive: the run, if it was one of adaptive measurement.
    """
    strategy = StrategyFacts(
        name=name,
        kind="relaxed",
        rmse=None,
        max_std_error=None,
        lower_bound=None,
        bound_kind="",
        ratio=None,
        sha256=digest_of(settings),
    )
    return manifest_of(
        query.spec,
        mechanism=noise,
        noise_source=measured.source,
        strategy=strategy,
        plan=plan.digest,
        key=query.key,
        ledger=ledger_facts(measured),
        cumulative=cumulative_words(measured, plan),
        level=level,
        measurements=values_digest(measured.values),
        rap=rap,
        adaptive=adaptive,
        labelled_tables=plan.labelled_tables,
        tables=plan.tables,
    )


@dataclass(frozen=True, eq=False)
class RapMechanism:
    """Choose and measure queries in rounds and fit relaxed rows to them: no error bars.

    Attributes:
        plan: the plan that is carried out.
        planned: RAP as the plan rehearsed it.
        query: the whole run: what is selected and measured on the data.
    """

    plan: Plan
    planned: PlannedRap
    query: RapQuery

    def labels(self, values: Ints) -> tuple[MeasurementLabel, ...]:
        """Return the labels of the noisy values, in their order."""
        settings, total = self.query.settings, MeasurementLabel("number of records", 1, 1)
        if not settings.adaptive:
            return total, MeasurementLabel("all queries", 1, self.query.compiled.workload.shape[0])
        rounds = [
            MeasurementLabel(f"round {number + 1}: {what}", 1, settings.selected)
            for number in range(settings.rounds)
            for what in ("queries chosen", "their counts")
        ]
        return total, *rounds

    @cached_property
    def simulated(self) -> SimulatedFacts | None:
        """Simulated errors at this guarantee; None where the plan rehearsed another."""
        return simulated_at(self.planned, self.query.guarantee, self.query.spec)

    def make(self, measured: StoredMeasurement, *, level: float) -> ReleaseContent:
        """Return answers without intervals, their manifest, and the relaxed rows.

        The rows are fitted anew from the noisy values. On one machine they come out the same to
        the last bit; another linear algebra library may round otherwise.
        """
        query = self.query
        run = rounds_of(query, measured.values)
        report_progress("fitting relaxed rows to what was measured")
        rows = replay(query.compiled.workload, query.settings, run).rows
        answers = RelaxedAnswers(query.spec, query.compiled, rows, run.total)
        table = relaxed_table(rows, query.spec.domain, query.compiled.classes)
        facts = self._facts(run, rows)
        manifest = relaxed_manifest(
            self.plan,
            query,
            measured,
            self._noise(run),
            level=level,
            name=self.planned.name,
            settings=encode_settings(query.settings),
            rap=facts,
        )
        return ReleaseContent(answers, manifest, table)

    def _noise(self, run: RapMeasurement) -> CalibratedNoise:
        """Return the noise of the round with the largest standard deviation."""
        budget, workload = self.query.mechanism, self.query.compiled.workload
        most = max(run.rounds, key=lambda measured: measured.std)
        sensitivity = budget.sensitivity(workload, most.places)
        scale = budget.scale(budget.measurement_rho, sensitivity)
        return CalibratedNoise(budget.guarantee, -GRID_BITS, sensitivity, scale)

    def _facts(self, run: RapMeasurement, rows: RelaxedRows) -> RapFacts:
        budget, settings = self.query.mechanism, self.query.settings
        known = self.query.spec.dataset.rows if budget.total is None else None
        return RapFacts(
            rounds=settings.rounds,
            selected=settings.selected,
            relaxed_rows=settings.relaxed_rows,
            total=run.total,
            total_std=run.total_std if budget.total is None else None,
            selection_scale=float(1 / budget.rate) if settings.adaptive else None,
            noise_std=tuple(measured.std for measured in run.rounds),
            simulated=self.simulated,
            declared=None if known is None else known.count,
            rows_sha256=rows_digest(rows.values),
        )


def rap_mechanism(plan: Plan, spec: Spec, request: ReleaseRequest) -> RapMechanism:
    """Return the mechanism for a request.

    Raises:
        SpecError: the plan holds no RAP, or the request does not fit it.
    """
    relaxed, compiled = plan.relaxed, compile_spec(spec)
    if relaxed is None:
        raise SpecError(
            "the plan holds no RAP; declare `dataset: {rows: about 50000}`, a delta under "
            "`privacy` and a budget with one, and run `dpquery plan --mechanism rap`"
        )
    check_request(request, spec, relaxed.name)
    settings = relaxed.settings
    mechanism = rap_budget(
        compiled.workload,
        settings,
        privacy=spec.privacy,
        guarantee=accounting.guarantee("gaussian", epsilon=request.epsilon, delta=request.delta),
        rows=spec.dataset.rows,
    )

    def project(total: float) -> RapProjection:
        return RapProjection(compiled.workload, settings, total)

    query = RapQuery(spec, compiled, settings, mechanism, request.release, project)
    return RapMechanism(plan, relaxed, query)


@dataclass(frozen=True, eq=False)
class AdaptiveMechanism:
    """Choose and measure whole tables in rounds and fit relaxed rows to them: no error bars.

    Attributes:
        plan: the plan that is carried out.
        planned: adaptive measurement as the plan rehearsed them.
        query: the whole run: what is chosen and measured on the data.
    """

    plan: Plan
    planned: PlannedAdaptive
    query: AdaptiveQuery

    def labels(self, values: Ints) -> tuple[MeasurementLabel, ...]:
        """Return the labels of the noisy values, in their order."""
        subsets = self.query.budget.candidates.subsets
        rounds = measured_tables(self.query, values).rounds
        return self.labels_of([self._name(subsets[each.number]) for each in rounds])

    def labels_of(self, rounds: Sequence[str]) -> tuple[MeasurementLabel, ...]:
        """Return the labels where the rounds measured the tables of these names; or KeyError."""
        candidates = self.query.budget.candidates
        sizes = dict(zip(map(self._name, candidates.subsets), candidates.sizes, strict=True))
        labels = [
            MeasurementLabel(self._name(subset), 1, size)
            for subset, size in zip(candidates.subsets, candidates.sizes, strict=True)
        ][: candidates.one_way]
        for number, name in enumerate(rounds):
            labels.append(MeasurementLabel(f"round {number + 1}: table and level", 1, 2))
            labels.append(MeasurementLabel(f"round {number + 1}: {name}", 1, sizes[name]))
        return tuple(labels)

    def unbiased(self, values: Ints) -> UnbiasedAnswers:
        """Return what the tables that were measured say by themselves; ValueError for no run."""
        budget, shape = self.query.budget, self.query.compiled.workload.shape_of_domain
        tables = tables_of_run(shape, budget.candidates, measured_tables(self.query, values))
        return UnbiasedAnswers(shape, tables, budget.total)

    @cached_property
    def simulated(self) -> SimulatedFacts | None:
        """Simulated errors at this guarantee; None where the plan rehearsed another."""
        return simulated_at(self.planned, self.query.guarantee, self.query.spec)

    def make(self, measured: StoredMeasurement, *, level: float) -> ReleaseContent:
        """Return answers without intervals, their manifest, and the relaxed rows.

        The rows are fitted anew from the noisy values. On one machine they come out the same to
        the last bit; another linear algebra library may round otherwise.
        """
        query, budget = self.query, self.query.budget
        run = measured_tables(query, measured.values)
        report_progress("fitting relaxed rows to what was measured")
        shape = query.compiled.workload.shape_of_domain
        rows = final_model(shape, budget.candidates, run).rows
        widest = CalibratedNoise(
            budget.guarantee,
            -GRID_BITS,
            budget.squared_sensitivity(budget.candidates.one_way),
            budget.one_way_scale,
        )
        manifest = relaxed_manifest(
            self.plan,
            query,
            measured,
            widest,
            level=level,
            name=self.planned.name,
            settings=[list(subset) for subset in budget.candidates.subsets],
            adaptive=self._facts(run, rows),
        )
        table = relaxed_table(rows, query.spec.domain, query.compiled.classes)
        unbiased = self.unbiased(measured.values)
        answers = RelaxedAnswers(query.spec, query.compiled, rows, run.total, unbiased)
        return ReleaseContent(answers, answers.described(manifest), table)

    def _name(self, subset: Subset) -> str:
        names = self.query.spec.domain.attributes
        return " x ".join(names[i].name for i in subset)

    def _facts(self, run: AdaptiveMeasurement, rows: RelaxedRows) -> AdaptiveFacts:
        budget = self.query.budget
        known = self.query.spec.dataset.rows if budget.total is None else None
        return AdaptiveFacts(
            candidates=len(budget.candidates.subsets),
            one_way=budget.candidates.one_way,
            one_way_std=budget.one_way_std,
            rounds=tuple(self._name(budget.candidates.subsets[each.number]) for each in run.rounds),
            noise_std=tuple(each.budget.std for each in run.rounds),
            relaxed_rows=len(rows.values),
            total=run.total,
            total_std=run.total_std if budget.total is None else None,
            simulated=self.simulated,
            declared=None if known is None else known.count,
            rows_sha256=rows_digest(rows.values),
        )


def adaptive_mechanism(plan: Plan, spec: Spec, request: ReleaseRequest) -> AdaptiveMechanism:
    """Return the mechanism for a request.

    Raises:
        SpecError: the plan holds no adaptive measurement, or the request does not fit them.
    """
    planned, compiled = plan.adaptive, compile_spec(spec)
    if planned is None:
        raise SpecError(
            "the plan holds no adaptive measurement; declare `dataset: {rows: about 50000}`, a "
            "delta under `privacy` and a budget with one, and run `dpquery plan --mechanism "
            "adaptive`"
        )
    check_request(request, spec, planned.name)
    workload = compiled.workload
    budget = adaptive_budget(
        workload,
        privacy=spec.privacy,
        guarantee=accounting.guarantee("gaussian", epsilon=request.epsilon, delta=request.delta),
        rows=spec.dataset.rows,
    )

    def start(measurement: AdaptiveMeasurement) -> AdaptiveFit:
        return AdaptiveFit(workload.shape_of_domain, budget.candidates, measurement)

    query = AdaptiveQuery(spec, compiled, budget, request.release, start)
    return AdaptiveMechanism(plan, planned, query)
