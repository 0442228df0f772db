"""What a release cannot answer, said at the place where it is asked: all of it at once.

There are two kinds. Codes that no question of the release's spec told apart were counted as one,
and no later question can split them. And what was measured spans some tables and not others.
"""

from collections.abc import Iterable, Sequence

from dpquery.operators.compile import CompiledSpec, merged_codes
from dpquery.operators.factors import Array
from dpquery.spec.domain import Domain
from dpquery.spec.parse_questions import Questions
from dpquery.spec.problems import quoted
from dpquery.strategy.lattice import Subset
from dpquery.strategy.strategies import DirectStrategy, Strategy
from dpquery.strategy.support import measured_sets, supports, wide_attributes

SHOWN = 4  # tables of one item, and measured sets, that a message names


def refuse_merged(asked: Questions, classes: Sequence[Array]) -> None:
    """Refuse questions that tell codes apart which the release counts as one.

    Raises:
        SpecError: a line for each item and attribute, at the item's place.
    """
    attributes = asked.spec.domain.attributes
    for item, place in zip(asked.spec.items, asked.places, strict=True):
        for table in item.tables:
            for i, code, other in merged_codes(table, classes):
                own = attributes[i]
                asked.problems.add(
                    place,
                    f"{quoted(item.name)} tells {quoted(own.label(code))} from "
                    f"{quoted(own.label(other))} of {quoted(own.name)}, and the release counts "
                    "them as one: no question of its spec told them apart; plan again with this "
                    "question in the spec",
                )
    asked.problems.raise_if_any()


def refuse_unmeasured(asked: Questions, compiled: CompiledSpec, strategy: Strategy) -> None:
    """Refuse questions that the measurements of a strategy do not span.

    Raises:
        SpecError: a line for each missing set of attributes, at the item's place.
    """
    held: tuple[Subset, ...] | None = None
    for item, place, places in zip(asked.spec.items, asked.places, compiled.items, strict=True):
        blocks = [compiled.workload.blocks[position] for position in places]
        missing = {wide_attributes(own): None for own in blocks if not supports(strategy, own)}
        if missing and held is None:
            held = measured_sets(strategy)
        for S in list(missing)[:SHOWN]:
            message = _message(S, held or (), asked.spec.domain, strategy)
            asked.problems.add(place, f"{quoted(item.name)}: {message}")
        if len(missing) > SHOWN:
            asked.problems.add(
                place, f"{quoted(item.name)}: and {len(missing) - SHOWN} tables more are not held"
            )
    asked.problems.raise_if_any()


def _message(S: Subset, held: Sequence[Subset], domain: Domain, strategy: Strategy) -> str:
    names = [attribute.name for attribute in domain.attributes]
    together, listed = _crossed(S, names), ", ".join(names[i] for i in S)
    remedy = f"plan again with `marginals: {{sets: [[{listed}]]}}`"
    if isinstance(strategy, DirectStrategy) and any(set(S) <= set(own) for own in held):
        return (
            f"the release measured its own questions as they stand, and these of {together} are "
            f"no combination of the rows of one of them; {remedy}"
        )
    nearest = sorted(held, key=lambda own: (-len(set(own) & set(S)), len(own), own))
    shown = [_crossed(own, names) for own in nearest[:SHOWN]]
    more = f" and {len(held) - SHOWN} more" if len(held) > SHOWN else ""
    return (
        f"no measured table holds {together} together; measured: {', '.join(shown)}{more}; {remedy}"
    )


def _crossed(subset: Iterable[int], names: Sequence[str]) -> str:
    return " x ".join(names[i] for i in subset) or "the total"
