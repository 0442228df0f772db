"""Carry out adaptive measurement: whole tables chosen and measured in rounds, and relaxed rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dpquery.arrays import Ints
from dpquery.exceptions import SpecError
from dpquery.measurement import accounting
from dpquery.measurement.adaptive.budget import adaptive_budget
from dpquery.measurement.adaptive.table_rounds import (
    AdaptiveMeasurement,
    AdaptiveQuery,
    measured_tables,
)
from dpquery.measurement.ledger.ledger import StoredMeasurement
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.rap.budget import GRID_BITS
from dpquery.mechanisms.relaxed_release import (
    RelaxedAnswers,
    check_request,
    relaxed_manifest,
    simulated_at,
)
from dpquery.mechanisms.release_content import ReleaseContent, ReleaseRequest
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import Plan
from dpquery.plan_file.rap_settings import PlannedAdaptive
from dpquery.progress import report_progress
from dpquery.reconstruction.adaptive.run_fit import AdaptiveFit, final_model, tables_of_run
from dpquery.reconstruction.adaptive.unbiased_answers import UnbiasedAnswers
from dpquery.reconstruction.rap.relaxed_rows import RelaxedRows
from dpquery.releases.folder.measurements_file import MeasurementLabel
from dpquery.releases.folder.relaxed_rows_file import relaxed_table, rows_digest
from dpquery.releases.manifest.rap_facts import AdaptiveFacts, SimulatedFacts
from dpquery.spec.model import Spec
from dpquery.strategy.algebra.subsets import Subset


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
