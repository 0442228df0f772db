"""What a release is made of, whichever mechanism made it: answers, derived items, facts."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from dpquery.arrays import Ints
from dpquery.exceptions import SpecError
from dpquery.measurement.ledger.ledger import StoredMeasurement
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.operators.blocks import Block
from dpquery.operators.compile import CompiledSpec, compile_questions, merged_codes
from dpquery.plan_file.plan import Plan
from dpquery.reconstruction.columns import ExtraColumn
from dpquery.reconstruction.derived import JointAnswers, derived_rows, has_own_sizes, with_sample
from dpquery.reconstruction.least_squares import Measured, positions_of
from dpquery.reconstruction.sampling import SamplingErrors
from dpquery.releases.budget_words import DISCOVERED, RECORDED, exact_words, taken_words
from dpquery.releases.folder.noisy_files import values_digest
from dpquery.releases.manifest import LedgerFacts, Manifest, StrategyFacts, manifest_of
from dpquery.releases.manifest_facts import AdaptiveFacts, RapFacts
from dpquery.releases.tables.labels import release_rules
from dpquery.releases.tables.long_table import DerivedTable, derived_table
from dpquery.spec.columns import Domain
from dpquery.spec.problems import quoted
from dpquery.spec.spec import DerivedItem, Item, MergedRows, Spec, Table
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.strategy import Noise, Strategy

if TYPE_CHECKING:
    from dpquery.measurement.curator import Query


@dataclass(frozen=True)
class ReleaseRequest:
    """Guarantee, noise and options of a release, which its plan leaves open."""

    epsilon: Fraction  # of the guarantee
    delta: Fraction  # of the guarantee
    noise: Noise | None  # of a linear strategy; None for the better one by the plan
    columns: tuple[ExtraColumn, ...]  # extra ones beside the estimates
    release: int  # number of the release
    level: float | None = None  # of the noise intervals; None for the default


def manifest_for(
    plan: Plan,
    query: "Query",
    measured: StoredMeasurement,
    mechanism: CalibratedNoise,
    strategy: StrategyFacts,
    *,
    level: float,
    error_by_epsilon: Sequence[tuple[float, float]] = (),
    fitted: RapFacts | AdaptiveFacts | None = None,
) -> Manifest:
    """Return the manifest of what a query measured; `fitted` is what there is to say of its fit."""
    parent = None if measured.parent is None else measured.parent.dataset
    return manifest_of(
        query.spec,
        mechanism=mechanism,
        noise_source=measured.source,
        strategy=strategy,
        plan=plan.digest,
        key=query.key,
        ledger=LedgerFacts(measured.head.seq, measured.head.hash, parent),
        cumulative=_cumulative_words(measured, plan),
        level=level,
        error_by_epsilon=error_by_epsilon,
        measurements=values_digest(measured.values),
        rap=fitted if isinstance(fitted, RapFacts) else None,
        adaptive=fitted if isinstance(fitted, AdaptiveFacts) else None,
        labelled_tables=plan.labelled_tables,
        tables=plan.tables,
    )


def digest_of(content: object) -> str:
    """Return the sha256 of JSON values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _cumulative_words(measured: StoredMeasurement, plan: Plan) -> str:
    """Return what the dataset had spent with a release; older plans keep the words they had."""
    account, parent = measured.account, measured.parent
    if plan.exact_words:
        words = exact_words(account, parent=parent, of_sums=False, form=RECORDED)
    else:
        charged, pure = measured.charged, measured.pure
        words = taken_words(charged, account, pure=pure, parent=parent, form=RECORDED)
    found = f"{DISCOVERED}: of {', '.join(account.discovered)}"
    return f"{words}; {found}" if account.discovered else words


KnownTables = dict[Table, tuple[Block, int | None]]
"""The block of each table, and its position in the plan's workload if it has one there."""


def tables_of_derived(
    spec: Spec, classes: tuple[Ints, ...], planned: Sequence[Block], strategy: Strategy
) -> KnownTables:
    """Return the operators of all tables that derived items are made of.

    Raises:
        SpecError: derived items are made of what the strategy does not hold: says what to ask for.
    """

    def alike(table: Table) -> str:
        for i, code, other in merged_codes(table, classes):
            attribute = spec.domain.attributes[i]
            value, another = quoted(attribute.label(code)), quoted(attribute.label(other))
            of = f"{another} of {quoted(attribute.name)}"
            return f"tells {value} from {of}, which no item of the plan's workload does"
        return ""

    def not_measured(table: Table) -> str:
        block, position = known[table]
        if position is not None or strategy.supports(block):
            return ""
        return f"is made of {_in_words(table, spec.domain)}, which nothing that is measured tells"

    _refuse(spec, alike)  # no strategy changes that, so that it is said before one is looked for
    tables = list(dict.fromkeys(t for item in spec.derived for t in item.statistic.tables))
    if not tables:
        return {}
    asked = replace(spec, items=(Item("derived", tuple(tables)),))
    blocks = compile_questions(asked, classes).workload.blocks
    known = dict(zip(tables, zip(blocks, positions_of(blocks, planned), strict=True), strict=True))
    _refuse(spec, not_measured)
    return known


def check_derived(spec: Spec, compiled: CompiledSpec) -> None:
    """Refuse derived items of what no item tells, before a strategy is looked for.

    Some strategies would hold it all the same, with any error and at the items' cost.
    """
    workload = compiled.workload
    asked = DirectStrategy("Workload", "gaussian", workload, (1,) * len(workload.blocks))
    tables_of_derived(spec, compiled.classes, workload.blocks, asked)


def derived_answers(
    spec: Spec,
    tables: KnownTables,
    measured: Measured,
    *,
    level: float,
    others: Mapping[str, JointAnswers] | None = None,
    sampling: SamplingErrors | None = None,
) -> tuple[DerivedTable, ...]:
    """Return the table of every derived item, in order.

    Others are the answers of other releases, by their folders, for differences from them.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.
    """
    joint = JointAnswers(tables, measured, float(spec.privacy.step))
    rules, tables_made = release_rules(spec.items, spec.domain), []
    for item in spec.derived:
        other = others[item.release] if others and item.release else None
        rows = derived_rows(item.statistic, joint, spec.domain, level=level, other=other)
        if sampling is not None:
            rows = with_sample(rows, item.statistic, joint, sampling)
        table = derived_table(item, rows, spec.domain, rules)
        if isinstance(item.statistic, MergedRows):
            table = table._replace(own_sizes=has_own_sizes(item.statistic, joint))
        tables_made.append(table)
    return tuple(tables_made)


def _refuse(spec: Spec, reason: Callable[[Table], str]) -> None:
    """Refuse derived items with a table that has a reason: a line an item, and what to ask for."""
    mistakes: dict[str, str] = {}
    for item in spec.derived:
        for table in item.statistic.tables:
            if why := reason(table):
                line = f"{quoted(item.name)} {why}; {_asked_for(item, table, spec.domain)}"
                mistakes.setdefault(item.name, f"{item.place}: {line}")
    if mistakes:
        raise SpecError("\n".join(mistakes.values()))


def _asked_for(item: DerivedItem, table: Table, domain: Domain) -> str:
    """Return how to have a table measured; of a mean, also what else makes it known."""
    words = [f"add {_added(item, table, domain)} to the workload and plan again"]
    summed = item.statistic.tables[0].summed
    if item.statistic.kind == "mean" and summed is not None:
        attribute = domain.attributes[summed.attribute]
        named = quoted(attribute.name)
        counted = f"count records without a value of {named} too, which add 0 to the sum, by naming"
        words += [f"{counted} the item that counts its records with `count:`"]
        if not attribute.columns[0].drops:
            without = "which leaves records without a value of it out of every table"
            words += [f"give {named} `other: drop`, {without}"]
    return "; or ".join(words)


def _in_words(table: Table, domain: Domain) -> str:
    what = "counts" if table.summed is None else "sums"
    names = [domain.attributes[i].name for i in table.attributes]
    return f"{what} by {' x '.join(names)}" if names else f"{what} of all records"


def _added(item: DerivedItem, table: Table, domain: Domain) -> str:
    """Return the item to ask for, but for its conditions, which are written as they were."""
    totals = {i for i, asked in table.axes if asked.kind in {"summed", "bounded"}}
    sets = ", ".join(
        f"{domain.attributes[i].name}: identity{'+total' * (i in totals)}" for i in table.attributes
    )
    product = f"product: {{{sets}}}"
    if table.summed is not None:
        product = f"sum: {{of: {domain.attributes[table.summed.attribute].name}, by: {{{sets}}}}}"
    return f"`- {{name: {item.name}_of, {product}}}`"
