"""Sums: a whole number of every record, of one attribute, added up over what is asked of others."""

from dpquery.limits import MAX_SUMMED_VALUE
from dpquery.spec.domain import Attribute, Categorical, Column, Integers
from dpquery.spec.model import SummedValues, Table
from dpquery.spec.parsing.fields import SUMMED_BY_NAME, SUMMED_LIST, SumFields
from dpquery.spec.parsing.predicate_sets import declared_codes
from dpquery.spec.parsing.scope import Scope, Sets
from dpquery.spec.parsing.table_limits import table
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode
from dpquery.spec.predicates import selected_codes
from dpquery.spec.problems import Problems, UnreadableError, quoted

_OTHER = "other"


def read_sum(given: SumFields, scope: Scope, where: Sets) -> Table:
    """Return the table of a sum.

    What is summed may have predicates as well, under `by` or `where`: a record that does not meet
    them adds nothing.
    """
    axes = scope.varied(given.by, fixed=where)
    index, attribute = scope.attribute(given.of)
    values = _values(given, attribute, scope.problems)
    if not any(values):
        raise given.node("value" if "value" in given else "of").mistake(
            f"every value of {quoted(attribute.name)} is 0, and so is any sum of them; give one "
            "that records add"
        )
    predicates = {**dict(where), **dict(axes)}.get(index)
    if predicates is not None and not any(values[code] for code in selected_codes(predicates)):
        raise given.node("of").mistake(
            f"this sum is 0 whatever the records are: every value of {quoted(attribute.name)} that "
            "it counts is 0; count values that add something"
        )
    return table(given.node(), axes, where, summed=SummedValues(index, values))


def _values(given: SumFields, attribute: Attribute, problems: Problems) -> tuple[int, ...]:
    """Return what each code adds."""
    name, column = quoted(attribute.name), attribute.columns[0]
    if attribute.merged:
        raise given.of.mistake(
            f"{name} merges several columns, and a sum is of one; declare the column that is to be "
            "added up as an attribute of its own"
        )
    node = given.value
    numbers: dict[int, int] = {}
    if isinstance(column.kind, Integers):
        numbers = dict(enumerate(range(column.kind.low, column.kind.high + 1)))
    if node is None:
        _check_range(given.of, column, name)
    elif isinstance(node, ListNode):
        numbers |= enumerate(_listed(node, column, name, problems))
    else:
        numbers |= _named(node, attribute, problems)
    missing = [code for code in range(column.length) if code not in numbers]
    if missing:
        raise given.node("value").mistake(
            f"{name} has the value {quoted(column.label(missing[0]))} too, which no number is "
            "given for; write 0 where records add nothing"
        )
    return tuple(numbers.get(code, 0) for code in range(column.size))


def _check_range(node: Node, column: Column, name: str) -> None:
    """Refuse values that are no numbers, or are too large."""
    if not isinstance(column.kind, Integers):
        raise node.mistake(
            f"the values of {name} are no whole numbers to add up; say under `value` what each "
            "adds, as in `value: [5, 10]` or `value: {label: 5}`"
        )
    largest = max(column.kind.low, column.kind.high, key=abs)
    if abs(largest) > MAX_SUMMED_VALUE:
        raise node.mistake(
            f"{name} goes to {largest}, which is too large to add up exactly; the limit is "
            f"{MAX_SUMMED_VALUE:,} either way: declare it in a larger unit, such as thousands"
        )


def _listed(node: ListNode, column: Column, name: str, problems: Problems) -> tuple[int, ...]:
    for item in node.items:
        _check_whole(item)
    listed = SUMMED_LIST.read(node, problems)
    if len(node.items) != column.length:
        raise node.mistake(
            f"{len(node.items)} numbers are listed; expected {column.length}, one for each value "
            f"of {name} in order"
        )
    if len(listed) < len(node.items):
        raise UnreadableError(None)
    return listed


def _named(node: Node, attribute: Attribute, problems: Problems) -> dict[int, int]:
    """Return the number of every code that a mapping names."""
    entries = node.entries if isinstance(node, MapNode) else ()
    for _, item in entries:
        _check_whole(item)
    named: dict[int, int] = {}
    understood = 0
    for key, number in SUMMED_BY_NAME.read(node, problems):
        with problems.collected():
            first, last = _codes(key, attribute, problems)
            if any(code in named for code in range(first, last + 1)):
                raise key.mistake(f"{quoted(key.text)} has a number already; give one")
            named |= dict.fromkeys(range(first, last + 1), number)
            understood += 1
    if understood < len(entries):
        raise UnreadableError(None)  # what is missing cannot be said
    return named


def _codes(key: TextNode, attribute: Attribute, problems: Problems) -> tuple[int, int]:
    """Return the first and the last code that a key names; `other` is any text not declared."""
    column = attribute.columns[0]
    declared = isinstance(column.kind, Categorical) and _OTHER in column.kind.codes
    if key.text.strip() != _OTHER or declared:
        return declared_codes(key, attribute, problems)
    if column.drops:
        raise key.mistake(
            f"{quoted(attribute.name)} drops what is not declared, so that it adds nothing; leave "
            "`other` out, or give the attribute `other: count`"
        )
    return column.length, column.length


def _check_whole(node: Node) -> None:
    """Refuse decimals with what can be done about them."""
    if isinstance(node, TextNode) and "." in node.text:
        raise node.mistake(
            f"{quoted(node.text)} is no whole number; write all values in a smaller unit, such as "
            "cents"
        )
