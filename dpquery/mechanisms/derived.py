"""Derived items of a release or of later questions: refused early, then worked out as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dpquery.arrays import Ints
from dpquery.exceptions import SpecError
from dpquery.operators.blocks import Block
from dpquery.operators.compile import compile_questions, merged_codes
from dpquery.reconstruction.derived import JointAnswers, derived_rows, with_sample
from dpquery.reconstruction.least_squares import Estimates, positions_of
from dpquery.reconstruction.sampling import SamplingErrors
from dpquery.releases.tables.labels import release_rules
from dpquery.releases.tables.long_table import DerivedTable, derived_table
from dpquery.spec.columns import Domain
from dpquery.spec.problems import quoted
from dpquery.spec.spec import DerivedItem, Item, Spec, Table
from dpquery.strategy.strategy import Strategy

KnownTables = dict[Table, tuple[Block, int | None]]
"""The block of each table, and its position in the plan's workload if it has one there."""
NO_DERIVED = (
    "derived items need error bars, which the answers of RAP do not have; leave `derived` out"
)


def tables_of_derived(
    spec: Spec, classes: tuple[Ints, ...], planned: Sequence[Block], strategy: Strategy
) -> KnownTables:
    """Return the operators of all tables that derived items are made of.

    Args:
        spec: with the derived items.
        classes: what the release counts as one, for each attribute the class of every code.
        planned: the blocks of the plan's workload.
        strategy: what is measured.

    Raises:
        SpecError: a derived item is made of what the release does not hold: says what to ask for.
    """
    check_told_apart(spec, classes)
    tables = list(dict.fromkeys(t for item in spec.derived for t in item.statistic.tables))
    if not tables:
        return {}
    asked = replace(spec, items=(Item("derived", tuple(tables)),))
    blocks = compile_questions(asked, classes).workload.blocks
    known = dict(zip(tables, zip(blocks, positions_of(blocks, planned), strict=True), strict=True))
    for item in spec.derived:
        for table in item.statistic.tables:
            block, position = known[table]
            if position is None and not strategy.supports(block):
                raise SpecError(
                    f"{item.place}: {quoted(item.name)} is made of "
                    f"{_in_words(table, spec.domain)}, which the measurements do not hold; "
                    f"{_asked_for(item, table, spec.domain)}"
                )
    return known


def derived_answers(
    spec: Spec,
    tables: KnownTables,
    strategy: Strategy,
    estimates: Estimates,
    *,
    noise_std: float,
    level: float,
    others: Mapping[str, JointAnswers] | None = None,
    sampling: SamplingErrors | None = None,
) -> tuple[DerivedTable, ...]:
    """Return the table of every derived item, in order.

    Args:
        spec: with the derived items.
        tables: what `tables_of_derived` returns.
        strategy: what was measured.
        estimates: the least-squares solution.
        noise_std: standard deviation of the noise on each measured row.
        level: of the intervals.
        others: answers of other releases, by their folders, for differences from them.
        sampling: what squared weights say of the sample, where they are measured.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.
    """
    joint = JointAnswers(tables, strategy, estimates, noise_std, float(spec.privacy.step))
    rules, tables_made = release_rules(spec.items, spec.domain), []
    for item in spec.derived:
        other = others[item.release] if others and item.release else None
        rows = derived_rows(item.statistic, joint, spec.domain, level=level, other=other)
        if sampling is not None:
            rows = with_sample(rows, item.statistic, joint, sampling)
        tables_made.append(derived_table(item, rows, spec.domain, rules))
    return tuple(tables_made)


def check_told_apart(spec: Spec, classes: tuple[Ints, ...]) -> None:
    """Refuse derived items that tell values apart which the release counts as one.

    No strategy changes that, so that it can be said before one is looked for.

    Raises:
        SpecError: a line an item, with its place and what to ask for.
    """
    mistakes: dict[str, str] = {}
    for item in spec.derived:
        for table in item.statistic.tables:
            for i, code, other in merged_codes(table, classes):
                attribute = spec.domain.attributes[i]
                line = (
                    f"{item.place}: {quoted(item.name)} tells {quoted(attribute.label(code))} from "
                    f"{quoted(attribute.label(other))} of {quoted(attribute.name)}, which no item "
                    f"of the plan's workload does; {_asked_for(item, table, spec.domain)}"
                )
                mistakes.setdefault(item.name, line)
    if mistakes:
        raise SpecError("\n".join(mistakes.values()))


def _asked_for(item: DerivedItem, table: Table, domain: Domain) -> str:
    """Return how to have a table measured; of a mean, also how to count all records instead."""
    all_of = "; or name the item that counts its records with `count:`, if all are to be counted"
    return (
        f"add `- {{name: {item.name}_of, {_as_item(table, domain)}}}` to the workload and plan "
        f"again{all_of if item.statistic.kind == 'mean' else ''}"
    )


def _in_words(table: Table, domain: Domain) -> str:
    what = "counts" if table.summed is None else "sums"
    names = [domain.attributes[i].name for i in table.attributes]
    return f"{what} by {' x '.join(names)}" if names else f"{what} of all records"


def _as_item(table: Table, domain: Domain) -> str:
    """Return the item to ask for, but for its conditions, which are written as they were."""
    sets = ", ".join(f"{domain.attributes[i].name}: identity" for i in table.attributes)
    if table.summed is None:
        return f"product: {{{sets}}}"
    return f"sum: {{of: {domain.attributes[table.summed.attribute].name}, by: {{{sets}}}}}"
