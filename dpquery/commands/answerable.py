"""Questions that a release cannot answer, each reported at its place, all of them at once.

Of a release by least squares there are two kinds. Codes that no question of its spec distinguished
were counted as one, and no later question can split them. And what was measured spans some tables
and not others. A release by RAP has a guess at everything, as long as it fits into memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dpquery.arrays import Ints
from dpquery.limits import MAX_RAP_PREDICATES, MAX_RAP_TABLE_QUERIES
from dpquery.operators.compile import CompiledSpec, compile_questions, merged_codes
from dpquery.spec.domain import Domain
from dpquery.spec.model import Item
from dpquery.spec.parsing.later_queries import Questions
from dpquery.spec.problems import Place, quoted
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.shapes.attribute_sets import measured_sets, wide_attributes
from dpquery.strategy.shapes.strategies import Strategy

MAX_NAMED = 4  # tables of one item, and measured sets, that a message names


def check_answerable(
    questions: Questions, classes: tuple[Ints, ...], strategy: Strategy
) -> CompiledSpec:
    """Return the operators of questions that a release by least squares can answer.

    Args:
        questions: what is to be answered.
        classes: what the release counts as one, for each attribute the class of every code.
        strategy: what it measured.

    Raises:
        SpecError: a line for each item and attribute whose codes are not distinguished, and for
            each set of attributes that is not measured together, at the item's place.
    """
    pairs = zip(questions.spec.items, questions.places, strict=True)
    distinguished = [
        (item, place) for item, place in pairs if not _merges(item, place, questions, classes)
    ]
    if not distinguished:
        questions.problems.raise_if_any()
    compiled = compile_questions(
        replace(questions.spec, items=tuple(item for item, _ in distinguished)), classes
    )
    measured: tuple[Subset, ...] | None = None
    for (item, place), places in zip(distinguished, compiled.items, strict=True):
        blocks = [compiled.workload.blocks[position] for position in places]
        missing = {wide_attributes(block): None for block in blocks if not strategy.supports(block)}
        if missing and measured is None:
            measured = measured_sets(strategy)
        for S in list(missing)[:MAX_NAMED]:
            message = _message(S, measured or (), questions.spec.domain, strategy)
            questions.problems.add(place, f"{quoted(item.name)}: {message}")
        if len(missing) > MAX_NAMED:
            questions.problems.add(
                place,
                f"{quoted(item.name)}: and {len(missing) - MAX_NAMED} tables more are not held",
            )
    questions.problems.raise_if_any()
    return compiled


def check_answers_size(questions: Questions, compiled: CompiledSpec, *, relaxed_rows: int) -> None:
    """Refuse questions whose tables are larger than what RAP holds when it makes a release.

    Raises:
        SpecError: a line for each such item, at its place.
    """
    for item, place, places in zip(
        questions.spec.items, questions.places, compiled.items, strict=True
    ):
        blocks = [compiled.workload.blocks[position] for position in places]
        queries = max(block.queries for block in blocks)
        # Those of a product are no more than its queries, and none is held for every relaxed row.
        thresholds = (
            factor for block in blocks if not block.is_product for factor in block.factors
        )
        predicates = max((factor.shape[0] for factor in thresholds), default=0)
        if queries > MAX_RAP_TABLE_QUERIES:
            questions.problems.add(
                place,
                f"{quoted(item.name)} has a table of {queries:,} queries, and the limit of a "
                f"release by RAP is {MAX_RAP_TABLE_QUERIES:,}; name fewer attributes or coarser "
                "sets",
            )
        elif relaxed_rows * predicates > MAX_RAP_PREDICATES:
            questions.problems.add(
                place,
                f"{quoted(item.name)} has {predicates:,} predicates on one attribute, and the "
                f"limit with {relaxed_rows:,} relaxed rows is "
                f"{MAX_RAP_PREDICATES // relaxed_rows:,}; name fewer ranges",
            )
    questions.problems.raise_if_any()


def _merges(item: Item, place: Place, questions: Questions, classes: tuple[Ints, ...]) -> bool:
    """Report the codes that an item distinguishes and a release does not; return if any."""
    merged: dict[int, tuple[int, int]] = {}
    for table in item.tables:
        for i, code, other in merged_codes(table, classes):
            merged.setdefault(i, (code, other))
    for i, (code, other) in merged.items():
        attribute = questions.spec.domain.attributes[i]
        questions.problems.add(
            place,
            f"{quoted(item.name)} tells {quoted(attribute.label(code))} from "
            f"{quoted(attribute.label(other))} of {quoted(attribute.name)}, and the release counts "
            "them as one: no question of its spec told them apart; plan again with this question "
            "in the spec",
        )
    return bool(merged)


def _message(S: Subset, measured: Sequence[Subset], domain: Domain, strategy: Strategy) -> str:
    names = [attribute.name for attribute in domain.attributes]
    together, listed = _crossed(S, names), ", ".join(names[i] for i in S)
    remedy = f"plan again with `marginals: {{sets: [[{listed}]]}}`"
    if not all(domain.attributes[i].in_data for i in S):
        remedy = "plan again with this question in the spec"
    if not strategy.spans_its_sets and any(set(S) <= set(T) for T in measured):
        return (
            f"the release measured what its own questions ask, and these of {together} are "
            f"no combination of the rows of one measurement; {remedy}"
        )
    nearest = sorted(measured, key=lambda T: (-len(set(T) & set(S)), len(T), T))
    shown = [_crossed(T, names) for T in nearest[:MAX_NAMED]]
    more = f" and {len(measured) - MAX_NAMED} more" if len(measured) > MAX_NAMED else ""
    return (
        f"no measured table holds {together} together; measured: {', '.join(shown)}{more}; {remedy}"
    )


def _crossed(subset: Iterable[int], names: Sequence[str]) -> str:
    return " x ".join(names[i] for i in subset) or "the total"
