"""Carry out relaxed adaptive projection (RAP): relaxed rows, and answers without error bars."""

from dataclasses import dataclass
from functools import cached_property

from dpquery.arrays import Ints
from dpquery.exceptions import SpecError
from dpquery.measurement import accounting
from dpquery.measurement.ledger.ledger import StoredMeasurement
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.rap.budget import GRID_BITS
from dpquery.measurement.rap.rounds import RapMeasurement, RapQuery, rap_budget, rounds_of
from dpquery.mechanisms.relaxed_release import (
    RelaxedAnswers,
    check_request,
    relaxed_manifest,
    simulated_at,
)
from dpquery.mechanisms.release_content import (
    ReleaseContent,
    ReleaseRequest,
)
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import Plan
from dpquery.plan_file.rap_settings import PlannedRap, encode_settings
from dpquery.progress import report_progress
from dpquery.reconstruction.rap.fit import RapProjection, replay
from dpquery.reconstruction.rap.relaxed_rows import RelaxedRows
from dpquery.releases.folder.measurements_file import MeasurementLabel
from dpquery.releases.folder.relaxed_rows_file import relaxed_table, rows_digest
from dpquery.releases.manifest.rap_facts import RapFacts, SimulatedFacts
from dpquery.spec.model import Spec


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
