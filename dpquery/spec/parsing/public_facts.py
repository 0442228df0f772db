"""Public facts: the section `impossible` of a spec, and `known` of its items."""

import re
from collections.abc import Callable, Iterable, Sequence

from dpquery.spec.model import Table
from dpquery.spec.parsing.fields import COMBINATION
from dpquery.spec.parsing.public_populations import read_row_values
from dpquery.spec.parsing.publication_fields import KnownFields
from dpquery.spec.parsing.scope import Scope
from dpquery.spec.parsing.yaml_nodes import Node
from dpquery.spec.predicates import selected_codes
from dpquery.spec.public_facts import Impossible, KnownTotals

TOTAL = "value"
"""The column of a file of totals that holds them."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")


def read_impossible(nodes: Iterable[Node], scope: Scope) -> tuple[Impossible, ...]:
    """Return the combinations that no record has, in file order."""
    combinations: list[Impossible] = []
    for node in nodes:
        with scope.problems.collected():
            combination = _combination(node, scope)
            if combination in combinations:
                raise node.mistake("this combination is there twice; leave one out")
            combinations.append(combination)
    return tuple(combinations)


def _combination(node: Node, scope: Scope) -> Impossible:
    entries = COMBINATION.read(node, scope.problems)
    where = scope.sets(entries, fixed=(), read=scope.read_condition)
    if len(where) < len(entries):
        return Impossible((), str(node.place))  # what is wrong was noted
    sizes = {i: attribute.size for i, attribute in scope.declared.values() if attribute}
    if all(set(selected_codes(asked)) == set(range(sizes[i])) for i, asked in where.items()):
        raise node.mistake(
            "every record meets these conditions, so that none could exist; name the values that "
            "do not go together"
        )
    return Impossible(tuple(sorted(where.items())), str(node.place))


def read_known(
    given: KnownFields | None,
    tables: Sequence[Table],
    scope: Scope,
    read_file: Callable[[str], str] | None,
) -> KnownTotals | None:
    """Return the answers of an item that are published anyway; None where it has none.

    Args:
        given: the section of the item.
        tables: of the item.
        scope: what it may refer to.
        read_file: returns the text of a file that is named; None where no plan is to be made.
    """
    if given is None:
        return None
    node = given.node("file")
    if read_file is None:
        raise given.node().mistake(
            "what is known belongs to the spec of a release, which was planned and measured with "
            "it; leave `known` out here"
        )
    if len(tables) != 1 or tables[0].threshold < len(tables[0].axes):
        raise given.node().mistake(
            "only an item of one table, `product: {...}` or `sum: {...}`, can be known; write the "
            "table that is known as an item of its own"
        )
    if not given.why.strip():
        raise given.node("why").mistake("say why everyone may know these totals")
    (table,) = tables
    attributes = {i: a for i, a in scope.declared.values() if a is not None}

    def number(text: str, place: str, node: Node) -> float:
        if not _WHOLE.fullmatch(text):
            raise node.mistake(f"{place}: this is no total; expected a whole number")
        if int(text) < 0 and table.summed is None:
            raise node.mistake(f"{place}: this is no total of records; expected 0 or more")
        return int(text)

    values, lines = read_row_values(
        read_file(given.file), given.file, node, table, attributes, TOTAL, number
    )
    whole = tuple(int(value) for value in values)
    return KnownTotals(whole, given.file, given.why, tuple(lines.tolist()), str(node.place))
