"""Public facts that leave nothing to measure, or contradict one another: refused, with their place.

Nothing here looks at data: what is held against each other is what the spec and its files say.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.linalg import solve_triangular

from dpquery.arrays import Floats
from dpquery.exceptions import SpecError
from dpquery.limits import MAX_FACT_ROWS
from dpquery.operators.blocks import Block, marginal
from dpquery.operators.compile import CompiledSpec
from dpquery.operators.public_facts import IMPOSSIBLE, KnownAnswers, PublicFacts
from dpquery.operators.valued import Valued
from dpquery.spec.model import Item, Spec
from dpquery.spec.problems import quoted
from dpquery.strategy.algebra.query_pairs import QueryRows
from dpquery.strategy.shapes.informed import (
    DEPENDENT,
    Equalities,
    inner_products,
    with_independent,
)

OFF = 1e-6  # of the largest total: what rounding may make of a sum of them


def check_facts(spec: Spec, compiled: CompiledSpec) -> None:
    """Refuse public facts that leave nothing to measure, or cannot all be true.

    Raises:
        SpecError: a line for every item that is at fault.
    """
    facts = compiled.facts
    if facts is None:
        return
    mistakes = [*_empty_items(spec, compiled, facts), *_totals_of_none(spec, compiled, facts)]
    mistakes = mistakes or [*_sums_at_odds(spec, compiled, facts)]
    mistakes = mistakes or [*_parts_above_wholes(spec, compiled, facts)]
    if mistakes:
        raise SpecError("\n".join(mistakes))


def _empty_items(spec: Spec, compiled: CompiledSpec, facts: PublicFacts) -> Iterator[str]:
    blocks = compiled.workload.blocks
    for item, places in zip(spec.items, compiled.items, strict=True):
        if item.known is None and all(facts.zeros(blocks[place]).all() for place in places):
            yield (
                f"{item.place}: by `impossible` no record can be in any row of the item "
                f"{quoted(item.name)}, so that all its answers are 0; leave the item out, or "
                "correct `impossible`"
            )
    if all(item.known is not None for item in spec.items):
        yield f"{spec.items[0].place}: all items are known: nothing is left to measure; add another"


def _totals_of_none(spec: Spec, compiled: CompiledSpec, facts: PublicFacts) -> Iterator[str]:
    for item, known, block in _known_items(spec, compiled, facts):
        wrong = np.flatnonzero(facts.zeros(block) & (known.values != 0))
        if len(wrong):
            yield (
                f"{_line(item, int(wrong[0]))} says {known.values[wrong[0]]:,.0f}, and by "
                "`impossible` there can be none; correct one of them"
            )


def _sums_at_odds(spec: Spec, compiled: CompiledSpec, facts: PublicFacts) -> Iterator[str]:
    """Yield totals that follow from others, and are said to be something else."""
    basis: list[Equalities] = []
    if facts.impossible is not None:
        named = set(facts.impossible.attributes)
        named |= {i for *_, block in _known_items(spec, compiled, facts) for i in block.attributes}
        shape, attributes = compiled.workload.shape_of_domain, tuple(sorted(named))
        if facts.impossible.count(shape, attributes) <= MAX_FACT_ROWS and facts.known:
            cells = marginal(shape, attributes)
            places = np.flatnonzero(facts.zeros(cells))
            if len(places):
                none = np.zeros(len(places))
                basis = [Equalities(IMPOSSIBLE, QueryRows(cells, places), none)]
    for item, known, block in _known_items(spec, compiled, facts):
        if len(known.values) > MAX_FACT_ROWS:
            continue
        rows = QueryRows(block, np.arange(len(known.values)), known.position)
        basis = with_independent(basis, Equalities(item.name, rows, known.values))
        implied, follows = _implied(basis, rows)
        off = np.abs(implied - known.values) > OFF * max(1.0, float(np.abs(known.values).max()))
        wrong = np.flatnonzero(follows & off)
        if len(wrong):
            at = int(wrong[0])
            yield (
                f"{_line(item, at)} says {known.values[at]:,.0f}, and it follows from what else is "
                f"known that it is {implied[at]:,.0f}; correct one of them"
            )
            return


def _implied(basis: Sequence[Equalities], rows: QueryRows) -> tuple[Floats, "np.ndarray"]:
    """Return what follows from equalities for some queries, and for which all of it does."""
    whole = np.block([[inner_products(a.rows, b.rows) for b in basis] for a in basis])
    cross = np.concatenate([inner_products(each.rows, rows) for each in basis])
    root, values = np.linalg.cholesky(whole), np.concatenate([each.values for each in basis])
    solved = solve_triangular(root, cross, lower=True)
    squares = np.diag(inner_products(rows, rows))
    follows = squares - np.einsum("nr,nr->r", solved, solved) <= 10 * DEPENDENT * squares.max()
    return solved.T @ solve_triangular(root, values, lower=True), follows


def _parts_above_wholes(spec: Spec, compiled: CompiledSpec, facts: PublicFacts) -> Iterator[str]:
    """Yield totals of records that are above one that counts all of these and others."""
    counts = [
        (item, known, QueryRows(block, np.arange(len(known.values)), known.position))
        for item, known, block in _known_items(spec, compiled, facts)
        if len(known.values) <= MAX_FACT_ROWS
        and not any(isinstance(factor, Valued) for factor in block.factors)
    ]
    for item, known, rows in counts:
        sizes = np.diag(inner_products(rows, rows))
        for other, above, wider in counts:
            within = inner_products(rows, wider) >= sizes[:, None] * (1 - DEPENDENT)
            wrong = np.argwhere(within & (known.values[:, None] > above.values))
            if len(wrong):
                part, whole = map(int, wrong[0])
                yield (
                    f"{_line(item, part)} says {known.values[part]:,.0f}, and "
                    f"{_line(other, whole)}, which counts these records too, says "
                    f"{above.values[whole]:,.0f}; correct one of them"
                )
                return


def _known_items(
    spec: Spec, compiled: CompiledSpec, facts: PublicFacts
) -> Iterator[tuple[Item, KnownAnswers, Block]]:
    by_name = {item.name: item for item in spec.items}
    for known in facts.known:
        yield by_name[known.source], known, compiled.workload.blocks[known.position]


def _line(item: Item, row: int) -> str:
    if item.known is None:
        raise ValueError("an item that is not known")
    return f"{item.known.place}: {item.known.file}:{item.known.lines[row]}"
