"""What releases of relaxed rows have in common: answers without error bars, and their manifest."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import SpecError
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.ledger.ledger import StoredMeasurement
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.query import Query
from dpquery.mechanisms.derived import NO_DERIVED
from dpquery.mechanisms.release_content import (
    ReleaseRequest,
    cumulative_words,
    digest_of,
    ledger_facts,
)
from dpquery.operators.blocks import Block
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.plan import Plan
from dpquery.plan_file.rap_settings import PlannedFit
from dpquery.reconstruction.adaptive.unbiased_answers import UnbiasedAnswers
from dpquery.reconstruction.rap.relaxed_rows import RelaxedRows
from dpquery.reconstruction.table_answers import TableAnswers
from dpquery.releases.folder.measurements_file import values_digest
from dpquery.releases.manifest.rap_facts import AdaptiveFacts, RapFacts, SimulatedFacts
from dpquery.releases.manifest.release_json import (
    ColumnFacts,
    EmptyFacts,
    Manifest,
    StrategyFacts,
    manifest_of,
)
from dpquery.spec.model import Item, Spec

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
            f"{name} takes Gaussian noise; leave --noise out, or give --mechanism linear"
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
