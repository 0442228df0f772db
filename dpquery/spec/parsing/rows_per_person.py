"""Items that ask how many rows persons have, and the attribute beside the domain that they need.

A spec has one such attribute, of as many numbers as the item that tells most apart; the others ask
for groups of its codes.
"""

from collections.abc import Iterable, Iterator

from dpquery.spec.domain import PERSON_ROWS, Attribute, person_rows
from dpquery.spec.model import Privacy
from dpquery.spec.parsing.fields import PartFields, PersonRowsFields
from dpquery.spec.parsing.scope import Scope, Sets
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode
from dpquery.spec.predicates import GroupSet, IdentitySet
from dpquery.spec.problems import Problems, quoted

_COLUMNS = (PERSON_ROWS, f"{PERSON_ROWS}_from", f"{PERSON_ROWS}_to")


def read_person_rows(
    workload: Iterable[Node],
    domain: Iterable[tuple[TextNode, Node]],
    privacy: Privacy | None,
    problems: Problems,
) -> Attribute | None:
    """Return the attribute that the items of a workload need; None where none asks for it.

    Args:
        workload: the items; mistakes in them are noted where they are read.
        domain: names of the declared attributes, with their declarations.
        privacy: the protected unit; None where it could not be read.
        problems: takes what forbids such an item: rows as units, or a name that is taken.
    """
    items = [node for item in workload for node in _items_of(item)]
    for node in items:
        if privacy is not None and privacy.person is None:
            problems.add(
                node.place,
                "the unit is row, so that it is not known which rows are one person's; set "
                "`privacy: {unit: {person: column, max_rows: n}}`, or leave this item out",
            )
    for key, _ in domain:
        if items and key.text in _COLUMNS:
            problems.add(
                key.place,
                f"{quoted(key.text)} is the name of a column that the release adds for "
                f"{PERSON_ROWS}; name the attribute otherwise and give its header as "
                f"{{column: {key.text}}}",
            )
    noted_later = Problems("")
    numbers = []
    for node in items:
        with noted_later.collected():
            numbers.append(PersonRowsFields.read(node, noted_later).up_to)
    return person_rows(max(numbers)) if numbers else None


def _items_of(item: Node) -> Iterator[Node]:
    """Yield what an item, or the parts of a union, say under `rows_per_person`."""
    for key, value in item.entries if isinstance(item, MapNode) else ():
        if key.text == PERSON_ROWS:
            yield value
        elif key.text == "union" and isinstance(value, ListNode):
            for part in value.items:
                yield from _items_of(part)


def row_number_sets(given: PartFields, scope: Scope) -> Sets:
    """Return the queries for 1, ..., up_to and more rows, by the position of their attribute."""
    up_to, node = given.rows_per_person.up_to, given.rows_per_person.node("up_to")
    index, attribute = scope.person_rows(given.node(PERSON_ROWS))
    most = attribute.length - 1
    if up_to > most:
        rows = "1 row" if most == 1 else f"{most:,} rows"
        raise node.mistake(
            f"the release tells up to {rows} of a person apart, not {up_to:,}; ask for at "
            f"most {most:,}"
        )
    if up_to == most:
        return {index: IdentitySet.of(attribute)}
    single = tuple((attribute.label(code), (code,)) for code in range(up_to))
    more = (attribute.label(most), tuple(range(up_to, most + 1)))
    return {index: GroupSet(attribute.size, (*single, more))}
