"""Releases by RAP and by adaptive measurement: what is asked, answered and said of them.

Both choose and measure in rounds, and fit relaxed rows to what was measured: no error bars.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypedDict, TypeVar

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import SpecError
from dpquery.measurement import accounting
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.ledger.ledger import Ledger, StoredMeasurement
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.rounds.queries import RapRounds, rap_rounds
from dpquery.measurement.rounds.query import RoundsQuery, SomeRounds
from dpquery.measurement.rounds.run import GRID_BITS, STEPS, MeasuredRun, PublicFit, Rounds
from dpquery.measurement.rounds.tables import TableRounds, table_rounds
from dpquery.mechanisms.content import ReleaseRequest, digest_of, manifest_for
from dpquery.operators.blocks import Block
from dpquery.operators.compile import CompiledSpec, compile_spec
from dpquery.plan_file.plan import Plan
from dpquery.plan_file.rehearsals import NO_DERIVED, PlannedAdaptive, PlannedRap
from dpquery.progress import report_progress
from dpquery.reconstruction.adaptive_fits import (
    AdaptiveFit,
    UnbiasedAnswers,
    first_bits,
    released_rows,
    tables_of_run,
)
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.reconstruction.relaxed.fits import RapProjection, replay
from dpquery.reconstruction.relaxed.rows import RelaxedRows, rows_digest
from dpquery.releases.folder.noisy_files import MeasurementLabel, relaxed_table
from dpquery.releases.folder.write import ReleaseContent
from dpquery.releases.manifest import ColumnFacts, EmptyFacts, Manifest, StrategyFacts
from dpquery.releases.manifest_facts import AdaptiveFacts, DistanceFacts, RapFacts, SimulatedFacts
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
NOT_MEASURED = "some ask for attributes that no measured table holds together"


@dataclass(frozen=True, eq=False)
class RelaxedAnswers:
    """Reads the answers of an item from relaxed rows, one table at a time."""

    spec: Spec  # what is asked
    compiled: CompiledSpec  # the same
    rows: RelaxedRows  # the relaxed rows
    total: float  # the number of records
    # what the measured tables say by themselves, where whole tables were measured
    unbiased: UnbiasedAnswers | None = None
    # attributes of which the questions distinguish more values than these tables
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


class _SharedFacts(TypedDict):
    noise_std: tuple[float, ...]
    relaxed_rows: int
    total: float
    total_std: float | None
    simulated: SimulatedFacts | None
    declared: int | None
    rows_sha256: str


SomePlanned = TypeVar("SomePlanned", PlannedRap, PlannedAdaptive)


@dataclass(frozen=True, eq=False)
class FittedMechanism(ABC, Generic[SomePlanned, SomeRounds]):
    """Choose and measure in rounds and fit relaxed rows to what was measured: no error bars."""

    plan: Plan  # the plan that is carried out
    planned: SomePlanned  # the mechanism as the plan rehearsed it
    query: RoundsQuery[SomeRounds]  # the whole run: what is chosen and measured on the data

    @abstractmethod
    def labels(self, values: Ints) -> tuple[MeasurementLabel, ...]:
        """Return the labels of the noisy values, in their order."""

    @abstractmethod
    def _rows(self, run: MeasuredRun) -> RelaxedRows:
        """Return the relaxed rows, fitted anew."""

    @abstractmethod
    def _noise(self, run: MeasuredRun) -> tuple[int, float]:
        """Return the sensitivity and the scale of the widest noise, in grid steps."""

    @abstractmethod
    def _settings(self) -> object:
        """Return what the run is made of, as JSON values."""

    @abstractmethod
    def _facts(self, run: MeasuredRun, shared: _SharedFacts) -> RapFacts | AdaptiveFacts:
        """Return what the manifest says of the run."""

    def unbiased(self, values: Ints) -> UnbiasedAnswers | None:
        """Return what was measured says by itself: nothing but of whole tables."""
        return None

    def distances(self, run: MeasuredRun) -> tuple[DistanceFacts, ...]:
        """Return how far the released tables are from the true ones, as far as it was measured."""
        return ()

    @cached_property
    def simulated(self) -> SimulatedFacts | None:
        """Simulated errors at this guarantee; None where the plan rehearsed another."""
        planned, guarantee = self.planned, self.query.guarantee
        if not planned.covers(guarantee.epsilon, guarantee.delta):
            return None
        return SimulatedFacts(
            proxy=planned.proxy,
            repetitions=planned.repetitions,
            rmse=planned.rmse,
            rmse_spread=planned.rmse_spread,
            max_error=planned.max_error,
            max_error_spread=planned.max_error_spread,
            weighted=self.query.spec.weighted,
        )

    def make(self, measured: StoredMeasurement, *, level: float) -> ReleaseContent:
        """Return answers without intervals, their manifest, and the relaxed rows.

        The rows are fitted anew from the noisy values. On one machine they come out the same to
        the last bit; another linear algebra library may round otherwise.
        """
        query, rounds = self.query, self.query.rounds
        run = rounds.measured(measured.values)
        report_progress("fitting relaxed rows to what was measured")
        rows = self._rows(run)
        declared = None if rounds.total is not None or rounds.rows is None else rounds.rows.count
        facts = self._facts(
            run,
            _SharedFacts(
                noise_std=tuple(each.std for each in run.rounds),
                relaxed_rows=len(rows.values),
                total=run.total,
                total_std=run.total_std if rounds.total is None else None,
                simulated=self.simulated,
                declared=declared,
                rows_sha256=rows_digest(rows.values),
            ),
        )
        name, digest = self.planned.name, digest_of(self._settings())
        strategy = StrategyFacts(name, "relaxed", None, None, None, "", None, digest)
        widest = CalibratedNoise(query.guarantee, -GRID_BITS, *self._noise(run))
        manifest = manifest_for(
            self.plan, query, measured, widest, strategy, level=level, fitted=facts
        )
        unbiased = self.unbiased(measured.values)
        answers = RelaxedAnswers(query.spec, query.compiled, rows, run.total, unbiased)
        table = relaxed_table(rows, query.spec.domain, query.compiled.classes)
        return ReleaseContent(answers, answers.described(manifest), table)


class RapMechanism(FittedMechanism[PlannedRap, RapRounds]):
    """Single queries are chosen, and relaxed rows fitted round by round."""

    def labels(self, values: Ints) -> tuple[MeasurementLabel, ...]:
        """Return the labels of the noisy values, in their order."""
        rounds, total = self.query.rounds, MeasurementLabel("number of records", 1, 1)
        settings = rounds.settings
        if not settings.adaptive:
            return total, MeasurementLabel("all queries", 1, rounds.workload.shape[0])
        labels = [
            MeasurementLabel(f"round {number + 1}: {what}", 1, settings.selected)
            for number in range(settings.rounds)
            for what in ("queries chosen", "their counts")
        ]
        return total, *labels

    def _rows(self, run: MeasuredRun) -> RelaxedRows:
        rounds = self.query.rounds
        return replay(rounds.workload, rounds.settings, run).rows

    def _noise(self, run: MeasuredRun) -> tuple[int, float]:
        """Of the round with the largest standard deviation."""
        rounds, most = self.query.rounds, max(run.rounds, key=lambda measured: measured.std)
        sensitivity = rounds.sensitivity(most.chosen)
        return sensitivity, rounds.scale(rounds.measurement_rho, sensitivity)

    def _settings(self) -> object:
        return vars(self.query.rounds.settings)

    def _facts(self, run: MeasuredRun, shared: _SharedFacts) -> RapFacts:
        rounds, settings = self.query.rounds, self.query.rounds.settings
        return RapFacts(
            **shared,
            rounds=settings.rounds,
            selected=settings.selected,
            selection_scale=float(1 / rounds.rate) if settings.adaptive else None,
        )


@dataclass(frozen=True, eq=False)
class AdaptiveMechanism(FittedMechanism[PlannedAdaptive, TableRounds]):
    """Whole tables are chosen, and relaxed rows fitted to all of them in the end."""

    fits: list[AdaptiveFit]  # those that the run was made by, where it was made just now: public

    def labels(self, values: Ints) -> tuple[MeasurementLabel, ...]:
        """Return the labels of the noisy values, in their order."""
        return self.labels_of(self._names(self.query.rounds.measured(values)))

    def labels_of(self, rounds: Sequence[str]) -> tuple[MeasurementLabel, ...]:
        """Return the labels where the rounds measured the tables of these names; or KeyError."""
        candidates = self.query.rounds.candidates
        sizes = dict(zip(map(self._name, candidates.subsets), candidates.sizes, strict=True))
        labels = [
            MeasurementLabel(name, 1, size)
            for name, size in list(sizes.items())[: candidates.one_way]
        ]
        for number, name in enumerate(rounds):
            labels.append(MeasurementLabel(f"round {number + 1}: table and level", 1, 2))
            labels.append(MeasurementLabel(f"round {number + 1}: {name}", 1, sizes[name]))
        if length := self.query.rounds.closing_length:
            labels.append(MeasurementLabel("number of the released rows", 1, 1))
            labels.append(MeasurementLabel("errors of tables, summed and largest", 1, length - 1))
        return tuple(labels)

    def distances(self, run: MeasuredRun) -> tuple[DistanceFacts, ...]:
        """Return how far the released tables are from the true ones, by item, with noise."""
        rounds, names = self.query.rounds, [item.name for item in self.query.spec.items]
        asked = rounds.candidates.asked
        named = names if len(asked) == len(names) > 1 else [""] * len(asked)
        measured = [
            (name, len(tables)) for name, tables in zip(named, asked, strict=True) if tables
        ]
        errors = [] if run.closing is None else run.closing[1:].reshape(len(measured), -1).tolist()
        return tuple(
            DistanceFacts(
                name,
                tables,
                summed / (STEPS * tables),
                rounds.distance_scale(tables) / (STEPS * tables),
                *(each / STEPS for largest in most for each in (largest, rounds.largest_scale)),
            )
            for (name, tables), (summed, *most) in zip(measured, errors, strict=bool(errors))
        )

    def unbiased(self, values: Ints) -> UnbiasedAnswers:
        """Return what the tables that were measured say by themselves; ValueError for no run."""
        rounds = self.query.rounds
        tables = tables_of_run(rounds, rounds.measured(values))
        return UnbiasedAnswers(rounds.workload.shape_of_domain, tables, rounds.total)

    def _rows(self, run: MeasuredRun) -> RelaxedRows:
        return released_rows(self.query.rounds, run, self.fits.pop() if self.fits else None)

    def _noise(self, run: MeasuredRun) -> tuple[int, float]:
        """Of the tables of one attribute."""
        rounds = self.query.rounds
        return rounds.first_sensitivity, rounds.first_scale

    def _settings(self) -> object:
        return [list(subset) for subset in self.query.rounds.candidates.subsets]

    def _facts(self, run: MeasuredRun, shared: _SharedFacts) -> AdaptiveFacts:
        candidates = self.query.rounds.candidates
        return AdaptiveFacts(
            **shared,
            candidates=len(candidates.subsets),
            one_way=candidates.one_way,
            one_way_std=run.first_std,
            rounds=tuple(self._names(run)),
            distances=self.distances(run),
            refitted=run.closing is not None
            and int(run.closing[0]) != first_bits(shared["rows_sha256"]),
        )

    def _names(self, run: MeasuredRun) -> list[str]:
        subsets = self.query.rounds.candidates.subsets
        return [self._name(subsets[each.chosen[0]]) for each in run.rounds]

    def _name(self, subset: Subset) -> str:
        names = self.query.spec.domain.attributes
        return " x ".join(names[i].name for i in subset)


def rap_mechanism(plan: Plan, spec: Spec, request: ReleaseRequest) -> RapMechanism:
    """Return the mechanism for a request.

    Raises:
        SpecError: the plan holds no RAP, or the request does not fit it.
    """
    asked, planned = _guarantee(request, spec, RapRounds.name), plan.relaxed
    if planned is None:
        raise _not_planned(RapRounds, spec)
    settings, compiled = planned.settings, compile_spec(spec)
    rounds = rap_rounds(
        compiled.workload, settings, privacy=spec.privacy, guarantee=asked, rows=spec.dataset.rows
    )

    def start(run: MeasuredRun) -> PublicFit:
        return RapProjection(compiled.workload, settings, run.total)

    query = RoundsQuery(spec, compiled, rounds, request.release, start)
    return RapMechanism(plan, planned, query)


def adaptive_mechanism(
    plan: Plan,
    spec: Spec,
    request: ReleaseRequest,
    *,
    ledger: Ledger | None = None,
    edition: int = TableRounds.edition,
) -> AdaptiveMechanism:
    """Return the mechanism for a request; of an older edition where the ledger has such a run.

    Raises:
        SpecError: the plan holds no adaptive measurement, or the request does not fit them.
    """
    asked, planned = _guarantee(request, spec, TableRounds.name), plan.adaptive
    if planned is None:
        raise _not_planned(TableRounds, spec)
    compiled = compile_spec(spec)
    rounds = table_rounds(
        compiled.workload,
        privacy=spec.privacy,
        guarantee=asked,
        rows=spec.dataset.rows,
        items=compiled.items,
    )

    fits: list[AdaptiveFit] = []

    def start(run: MeasuredRun) -> PublicFit:
        fits.append(AdaptiveFit(rounds, run))
        return fits[-1]

    rounds = replace(rounds, edition=edition)
    query = RoundsQuery(spec, compiled, rounds, request.release, start)
    older = [replace(query, rounds=replace(rounds, edition=k)) for k in range(1, edition)]
    if ledger is not None:
        query = next((q for q in older if ledger.first_charged([q.key]) is not None), query)
    return AdaptiveMechanism(plan, planned, query, fits)


def _not_planned(rounds: type[Rounds], spec: Spec) -> SpecError:
    """Return the refusal of what a plan does not hold, with what would make it hold that."""
    missing = [
        *["`dataset: {rows: about 50000}`"] * (spec.dataset.rows is None),
        *["a delta under `privacy`"] * (not spec.privacy.delta),
        *["a delta in the budget"] * (spec.budget.counted == "pure"),
    ]
    first = f"declare {', '.join(missing)}, then " if missing else ""
    return SpecError(
        f"the plan holds no {rounds.name}; {first}run `dpquery plan SPEC --mechanism {rounds.key}`"
    )


def _guarantee(request: ReleaseRequest, spec: Spec, name: str) -> Guarantee:
    """Return what a request asks; SpecError with a line for each thing that it cannot have."""
    linear = "or give --mechanism linear"
    refused = {
        f"{name} needs Gaussian noise; leave --noise out, {linear}": request.noise == "laplace",
        f"{name} counts each record as one, and the spec declares weights; give --mechanism "
        "linear": spec.privacy.weight is not None,
        f"{NO_COLUMNS.format(name)}, {linear}": request.columns,
        f"{NO_LEVEL.format(name)}, {linear}": request.level,
        f"{NO_DERIVED.format(name)}, {linear}": spec.derived,
    }
    if any(refused.values()):
        raise SpecError("\n".join(words for words, asked in refused.items() if asked))
    return accounting.guarantee("gaussian", epsilon=request.epsilon, delta=request.delta)
