"""Releases by a strategy: what is asked, answered and said of them.

Answers are by least squares, each with an exact standard error. Public facts are tested, relied on
or not, and put into words.
"""

import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.measurement import accounting
from dpquery.measurement.curator import LinearQuery, Query
from dpquery.measurement.ledger.caps import declared_funds
from dpquery.measurement.ledger.ledger import Ledger, StoredMeasurement
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.mechanisms.content import (
    KnownTables,
    ReleaseRequest,
    derived_answers,
    digest_of,
    manifest_for,
    tables_of_derived,
)
from dpquery.operators.blocks import product
from dpquery.operators.compile import IMPOSSIBLE, CompiledSpec, compile_spec
from dpquery.plan_file.plan import Plan
from dpquery.planning.figures import (
    BudgetShares,
    SelectionAtBudget,
    allowed_prices,
    check_figures,
    error_curve,
)
from dpquery.reconstruction.checks import FactTest, flaw_of, tested_facts
from dpquery.reconstruction.columns import (
    BEST_GUESS,
    FAR_LESS,
    OF_ESTIMATES,
    SHRUNK,
    ColumnName,
    ExtraColumn,
    ExtraColumns,
    below_zero,
    check_columns,
    extra_columns,
    query_structure,
)
from dpquery.reconstruction.derived import BEYOND_NOISE
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import (
    MAX_KEPT_NUMBERS,
    Measured,
    TableAnswers,
    noisy_values,
    table_answers,
)
from dpquery.reconstruction.replicate_errors import ReplicateErrors
from dpquery.reconstruction.sampling import SampleDesign, SamplingErrors, SquareErrors
from dpquery.releases.extra_columns import FittedFacts, with_extra, with_sampling
from dpquery.releases.folder.noisy_files import MeasurementLabel, measurement_labels
from dpquery.releases.folder.write import ReleaseContent
from dpquery.releases.manifest import Manifest, StrategyFacts
from dpquery.releases.manifest_facts import PublicFactUse
from dpquery.spec.columns import Domain
from dpquery.spec.spec import FAR_OFF, Impossible, Item, MergedRows, Spec, Table
from dpquery.strategy.algebra.query_powers import total_of
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.shapes.informed import InformedStrategy, informed
from dpquery.strategy.strategy import Strategy


def measured_values(strategy: Strategy, noise: CalibratedNoise, values: Ints) -> list[Measured]:
    """Return what noisy values say, those of squared weights behind where they are measured."""
    return [
        Measured(
            strategy,
            noisy_values(part, strategy.sizes, shift=one.shift, step=one.step),
            one.noise_std,
        )
        for one, part in zip(noise.all, np.split(values, len(noise.all)), strict=True)
    ]


def given_facts(
    measured: Measured, compiled: CompiledSpec
) -> tuple[Measured, tuple[FactTest, ...]]:
    """Return how what was measured answers given those public facts that nothing contradicts.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.

    Returns:
        That, and the tests of all facts: none where the spec has none.
    """
    answering = informed(measured.strategy, compiled.facts, compiled.workload)
    if not isinstance(answering, InformedStrategy):
        return measured, ()
    answering, tests = tested_facts(answering, measured)
    return replace(measured, strategy=answering), tests


def sampling_errors(
    spec: Spec, classes: Sequence[Ints], measured: Sequence[Measured], level: float
) -> SamplingErrors | None:
    """Return what is measured beside the sums of weights says of the sample, where anything is.

    Where weights are inverse chances to be drawn, their squares are taken less the weights
    themselves. The classes are those of the codes that were counted.
    """
    weight = spec.privacy.weight
    weights, *beside = measured
    if weight is not None and weight.replicates is not None and beside:
        of = weight.replicates
        return ReplicateErrors(weights, level, tuple(beside), float(of.factor), of.degrees)
    if weight is None or weight.design_effect is None or not beside:
        return None
    (squares,) = beside
    if weight.inclusion:
        std = math.hypot(squares.noise_std, weights.noise_std)
        less = [*map(np.subtract, squares.noisy, weights.noisy)]
        squares = Measured(weights.strategy, less, std)
    public = (weight.ratio_of_squares, float(weight.design_effect))
    design = SampleDesign.of(spec, classes)
    return SquareErrors(weights, level, squares, *public, design, weight.inclusion)


def facts_used(
    spec: Spec, compiled: CompiledSpec, tests: Sequence[FactTest]
) -> tuple[PublicFactUse, ...]:
    """Return what became of every source of public facts, for the manifest."""
    if compiled.facts is None:
        return ()
    answers = compiled.facts.stated(compiled.workload)
    words = {IMPOSSIBLE: "; or ".join(_combination(each, spec.domain) for each in spec.impossible)}
    files = {item.name: item.known for item in spec.items if item.known is not None}
    used = []
    for test in tests:
        known = files.get(test.source)
        text = "" if known is None else spec.files[known.file]
        used.append(
            PublicFactUse(
                test.source,
                words[test.source] if known is None else known.why,
                answers[test.source],
                test.degrees,
                test.statistic,
                test.chance,
                not test.contradicted,
                "" if known is None else known.file,
                "" if known is None else hashlib.sha256(text.encode()).hexdigest(),
            )
        )
    return tuple(used)


def _combination(impossible: Impossible, domain: Domain) -> str:
    conditions = []
    for i, asked in impossible.where:
        attribute = domain.attributes[i]
        (label,) = asked.query_labels(attribute).labels
        conditions.append(f"{attribute.name} {label}")
    return " with ".join(conditions)


MOST_TRIED_QUERIES = 100_000  # two seconds


def _about(error: float) -> float:
    """Return an error with four digits, which are the same on all machines."""
    return float(f"{error:.4g}")


@dataclass(frozen=True, eq=False)
class LinearMechanism:
    """Measure a linear strategy and solve least squares: every answer has a standard error."""

    plan: Plan  # the plan that is carried out
    priced: SelectionAtBudget  # its selection for the noise, under the guarantee
    query: LinearQuery  # what is measured on the data
    columns: tuple[ExtraColumn, ...]  # extra ones beside the estimates

    def labels(self, values: Ints) -> tuple[MeasurementLabel, ...]:
        """Return the labels of the noisy values, in their order."""
        return measurement_labels(self.query.spec, self.query.strategy)

    def make(self, measured: StoredMeasurement, *, level: float) -> ReleaseContent:
        """Return answers with intervals of a level, and their manifest."""
        query = self.query
        noisy = measured_values(query.strategy, query.mechanism, measured.values)
        answering, tests = given_facts(noisy[0], query.compiled)
        facts = facts_used(query.spec, query.compiled, tests)
        answers = self._answers(answering, noisy, level)
        manifest = self._restated(self._manifest(measured, level), answering.strategy, facts)
        tables, sampling = _tables_of_derived(query), answers.sampling
        derived = derived_answers(query.spec, tables, answering, level=level, sampling=sampling)
        manifest = self._weighed(answers.described(manifest), answering)
        manifest = replace(manifest, nearer=self._nearer(noisy[0]))
        return ReleaseContent(answers, manifest, derived=derived)

    def _nearer(self, measured: Measured) -> tuple[float, float] | None:
        """Return the errors of the best guess and of estimates where the first is far less.

        Over the counts that are guessed at, estimated from the noisy values alone; None as well
        where the guess is among the columns, is not to be had, or would take long.
        """
        query, workload = self.query, self.query.compiled.workload
        known = any(column.name in SHRUNK for column in self.columns)
        if known or query.spec.states_facts or workload.shape[0] > MOST_TRIED_QUERIES:
            return None
        try:
            check_columns([BEST_GUESS], query.strategy, workload.blocks)
        except UnsupportedWorkloadError:
            return None
        std, blocks = measured.noise_std, workload.blocks
        extra = extra_columns((BEST_GUESS,), measured, blocks)
        asked = zip(query.spec.items, query.compiled.items, strict=True)
        counts = [k for item, places in asked if item.summed is None for k in places]
        told = extra.told_errors(counts).get(BEST_GUESS.name)
        if told is None or extra.shrunk is None:
            return None
        error = told.high if told.rmse is None else told.rmse
        guessed = [k for k in counts if extra.shrunk.scope.subsets[k] is not None]
        variances = (query.strategy.variances(blocks[k], position=None) for k in guessed)
        total = sum(total_of(v, blocks[k]) for v, k in zip(variances, guessed, strict=True))
        unbiased = std * math.sqrt(total / sum(blocks[k].queries for k in guessed))
        return (_about(error), _about(unbiased)) if error < FAR_LESS * unbiased else None

    def _weighed(self, manifest: Manifest, measured: Measured) -> Manifest:
        """Return the manifest, with what weights add up to if the noisy answers contradict that.

        Privacy:
            Post-processing: a function of noisy answers and public inputs.
        """
        query, weight, facts = self.query, self.query.spec.privacy.weight, manifest.privacy.weight
        every, strategy = product(query.compiled.workload.shape_of_domain, {}), measured.strategy
        if not (weight and facts and weight.total and strategy.supports(every)):
            return manifest
        found = float(measured.estimates.answer(every, None).sum())
        (std,) = standard_errors(strategy, every, position=None, noise_std=measured.noise_std)
        if abs(found - weight.total) <= FAR_OFF * weight.total + BEYOND_NOISE * std:
            return manifest
        facts = replace(facts, total=weight.total, noisy_total=found)
        return replace(manifest, privacy=replace(manifest.privacy, weight=facts))

    def _restated(
        self, manifest: Manifest, answering: Strategy, facts: tuple[PublicFactUse, ...]
    ) -> Manifest:
        """Return the manifest with the public facts; with other errors where one is left out."""
        if all(fact.relied_on for fact in facts):
            return replace(manifest, facts=facts)
        query, change = self.query, self.priced.selection.record_change
        error = expected_error(answering, query.compiled.workload, change)
        std = self.priced.std
        strategy = replace(
            manifest.strategy, rmse=std * error.rmse, max_std_error=std * error.max_std_error
        )
        return replace(manifest, facts=facts, strategy=strategy)

    def answers(self, values: Ints, *, level: float) -> "LinearAnswers":
        """Return what computes the answers from noisy values, without any public facts."""
        noisy = measured_values(self.query.strategy, self.query.mechanism, values)
        return self._answers(noisy[0], noisy, level)

    def _answers(
        self, measured: Measured, noisy: Sequence[Measured], level: float
    ) -> "LinearAnswers":
        spec, compiled = self.query.spec, self.query.compiled
        blocks = compiled.workload.blocks
        extra, sampling = (
            extra_columns(self.columns, measured, blocks),
            sampling_errors(spec, compiled.classes, noisy, level),
        )
        places = tuple(range(len(blocks)))
        return LinearAnswers(spec, compiled, measured, places, level, extra, sampling)

    def _manifest(self, measured: StoredMeasurement, level: float) -> Manifest:
        selection, bound = self.priced.selection, self.priced.bound_rmse
        strategy = StrategyFacts(
            name=selection.best,
            kind=str(selection.strategy["shape"]),
            rmse=self.priced.rmse,
            max_std_error=self.priced.max_std_error,
            lower_bound=bound,
            bound_kind=selection.bound_kind,
            ratio=None if bound is None else self.priced.weighted_rmse / bound,
            sha256=digest_of(selection.strategy),
        )
        query, mechanism = self.query, self.query.mechanism
        curve = error_curve(self.priced, query.spec, delta=mechanism.guarantee.delta)
        return manifest_for(
            self.plan, query, measured, mechanism, strategy, level=level, error_by_epsilon=curve
        )


KEPT_ERRORS = 64  # small blocks whose standard errors are kept for those that are like them


@dataclass(frozen=True, eq=False)
class LinearAnswers:
    """Computes the answers of an item, one table at a time."""

    spec: Spec  # what is asked: by the plan, or later
    compiled: CompiledSpec  # the same, over the classes that were counted
    measured: Measured  # what they are made of
    # of each block, or of an equal one, in the plan's workload; None without one
    positions: tuple[int | None, ...]
    level: float  # of the noise intervals
    extra: ExtraColumns  # columns beside the estimates
    sampling: SamplingErrors | None = None  # of a sample for whose error more is measured

    @cached_property
    def variances(self) -> dict[int, float]:
        """Variance of a block's queries, by its place, where all of its queries have the same."""
        blocks = self.compiled.workload.blocks
        return self.measured.strategy.uniform_variances(blocks, self.positions)

    @cached_property
    def _known_errors(self) -> dict[Hashable, Floats]:
        """Standard errors of the last small blocks, by likeness."""
        return {}

    def _std_errors(self, place: int) -> Floats:
        """Return the standard errors of a block; of many that are alike they are kept."""
        block, known = self.compiled.workload.blocks[place], self._known_errors
        strategy, std = self.measured.strategy, self.measured.noise_std
        if place in self.variances:
            return np.broadcast_to(std * math.sqrt(self.variances[place]), (block.queries,))
        small = block.queries <= MAX_KEPT_NUMBERS
        like = strategy.likeness(block) if small else None
        if like is not None and like in known:
            return known[like]
        position = self.positions[place]
        errors = standard_errors(strategy, block, position=position, noise_std=std)
        if like is not None:
            if len(known) == KEPT_ERRORS:
                known.clear()
            known[like] = errors
        return errors

    @cached_property
    def fitted_facts(self) -> FittedFacts:
        """What the manifest says of extra columns beside what they mean."""
        shrunk, agreeing = self.extra.shrunk, self.extra.agreeing
        negative = self._reasons(lambda table, _: below_zero(table))
        reasons: dict[ColumnName, dict[str, str]] = dict.fromkeys(OF_ESTIMATES, negative)
        if shrunk is not None:
            of_shrunk = self._reasons(lambda _, place: shrunk.scope.reasons[place])
            reasons["shrunk"] = reasons["averaged"] = of_shrunk
        if agreeing is not None:

            def overlapping(table: Table, place: int) -> str:
                return agreeing.reasons[place] and query_structure(table).reason

            reasons["consistent"] = reasons["integer"] = self._reasons(overlapping)
        counts = [place for _, table, place in self._tables() if table.summed is None]
        return FittedFacts(reasons, self.extra.told_errors(counts))

    def described(self, manifest: Manifest) -> Manifest:
        """Return the manifest with what there is to say of the columns beside the estimates."""
        sampling, blocks = self.sampling, self.compiled.workload.blocks

        def missing(_: Table, place: int) -> str:
            at = self.positions[place]
            return "" if sampling is None else sampling.missing(blocks[place], at)

        manifest = with_extra(manifest, self.extra.columns, self.fitted_facts)
        reasons = self._reasons(missing)
        for derived in self.spec.derived:
            of_items = (reasons.get(name, "") for name in derived.items)
            reasons[derived.name] = next(filter(None, of_items), "")
        return with_sampling(manifest, reasons, self._without_design())

    def _without_design(self) -> list[str]:
        """Return the items to whose error of the sample the declared design has nothing to say."""
        sampling, blocks = self.sampling, self.compiled.workload.blocks
        if not isinstance(sampling, SquareErrors) or sampling.design is None:
            return []
        told = {
            item.name
            for item, _, place in self._tables()
            if sampling.variances(blocks[place], self.positions[place]).by_design.any()
        }
        merged = (d.name for d in self.spec.derived if isinstance(d.statistic, MergedRows))
        return [*(item.name for item in self.spec.items if item.name not in told), *merged]

    def _reasons(self, reason_of: Callable[[Table, int], str]) -> dict[str, str]:
        """Return for each item why some of its tables have no values; empty where all have."""
        reasons: dict[str, str] = {}
        for item, table, place in self._tables():
            reasons[item.name] = reasons.get(item.name) or reason_of(table, place)
        return reasons

    def _tables(self) -> Iterator[tuple[Item, Table, int]]:
        for item, places in zip(self.spec.items, self.compiled.items, strict=True):
            for table, place in zip(item.tables, places, strict=True):
                yield item, table, place

    def __call__(self, item: Item) -> Iterator[TableAnswers]:
        """Yield the answers of an item's tables, in order."""
        places, strategy = self.compiled.items[self.spec.items.index(item)], self.measured.strategy
        blocks = [self.compiled.workload.blocks[place] for place in places]
        positions = [self.positions[place] for place in places]
        estimates = self.measured.answers(blocks, positions)
        known = zip(item.tables, places, blocks, positions, estimates, strict=True)
        for table, place, block, at, estimate in known:
            errors = self._std_errors(place)
            answers = table_answers(
                table, block, strategy, estimate, position=at, level=self.level, std_errors=errors
            )
            if isinstance(strategy, InformedStrategy):
                answers = replace(answers, stated=strategy.stated(block, at))
            answers = self.extra.added_to(answers, block)
            if self.sampling is not None:
                beside = self.sampling.columns(answers, block, at)
                answers = replace(answers, extra=(*answers.extra, *beside))
            yield answers


def linear_mechanism(
    plan: Plan, spec: Spec, request: ReleaseRequest, *, ledger: Ledger | None = None
) -> LinearMechanism:
    """Return the mechanism for a request, with the better noise by the plan if it names none.

    Where one of the plan's strategies was charged for this request already, it is that one, of
    several the first: asked again, the same release comes out, and is free.

    Without a ledger nothing is charged yet.

    Raises:
        LedgerError: the dataset is not registered.
        SpecError: the plan has no strategy for that noise or guarantee, its figures are not those
            of the strategy, or the extra columns cannot be made from it.
    """
    compiled, epsilon = compile_spec(spec), request.epsilon
    funds = declared_funds(spec) if ledger is None else ledger.funds(spec.dataset.id)
    shares = BudgetShares(spec, compiled.workload, request.delta, funds)
    query_of = cache(partial(_query, shares=shares, compiled=compiled, request=request))
    priced = allowed_prices(plan, shares, request.noise, epsilon=epsilon)
    chosen = priced[0]
    if ledger is not None and len(priced) > 1:
        chosen = _charged(priced, query_of, ledger) or chosen
    query = query_of(chosen)
    answering = informed(query.strategy, compiled.facts, compiled.workload)
    check_figures(chosen.selection, answering, compiled.workload)
    remedy = f"run `dpquery plan` again with --epsilon {float(epsilon):g}, which leaves it out"
    check_solution(query.strategy, compiled, noise_std=query.mechanism.noise_std, remedy=remedy)
    check_columns(request.columns, answering, compiled.workload.blocks)
    _tables_of_derived(query)
    return LinearMechanism(plan, chosen, query, request.columns)


def _query(
    priced: SelectionAtBudget,
    *,
    shares: BudgetShares,
    compiled: CompiledSpec,
    request: ReleaseRequest,
) -> LinearQuery:
    spec, epsilon, delta = shares.spec, request.epsilon, request.delta
    guarantee = accounting.guarantee(
        priced.selection.noise, epsilon=epsilon, delta=delta, accounting=spec.budget.counted
    )
    strategy, calibrated = shares.calibrated(priced.selection)
    mechanism = calibrated.noise_for(guarantee)
    return LinearQuery(spec, compiled, strategy, mechanism, request.release)


def _tables_of_derived(query: LinearQuery) -> KnownTables:
    """Return what the spec's derived items are made of; SpecError if it is not measured."""
    compiled = query.compiled
    return tables_of_derived(query.spec, compiled.classes, compiled.workload.blocks, query.strategy)


def _charged(
    priced: Sequence[SelectionAtBudget],
    query_of: Callable[[SelectionAtBudget], LinearQuery],
    ledger: Ledger,
) -> SelectionAtBudget | None:
    """Return the selection whose query was charged first; None where none was."""
    by_key = {}
    for one in priced:
        with suppress(SpecError):  # what cannot be drawn was never charged
            by_key[query_of(one).key] = one
    key = ledger.first_charged(list(by_key))
    return None if key is None else by_key[key]


def linear_queries(
    plan: Plan, spec: Spec, request: ReleaseRequest, *, other_than: Query
) -> Iterator[LinearQuery]:
    """Yield what the plan's linear strategies would measure for a request, with either noise.

    What has the option of the query that is left out, or cannot be drawn, is left out too.
    """
    for selection in plan.selections:
        try:
            wanted = replace(request, noise=selection.noise, columns=())
            query = linear_mechanism(plan, spec, wanted).query
        except SpecError:
            continue
        if query.option != other_than.option:
            yield query


def check_solution(
    strategy: Strategy,
    compiled: CompiledSpec,
    *,
    noise_std: float,
    remedy: str,
    positions: Sequence[int | None] | None = None,
) -> None:
    """Refuse a strategy whose answers would not be what their standard errors say.

    Positions are of the blocks in the plan's workload; by default their own.

    Raises:
        SpecError: they would not; nothing was charged or written.
    """
    flaw = flaw_of(
        strategy, compiled.workload, items=compiled.items, noise_std=noise_std, positions=positions
    )
    if flaw:
        raise SpecError(
            f"the plan's strategy {strategy.name} does not give the answers that it promises: "
            f"{flaw}; {remedy}"
        )
