"""Items as tables: products, marginals, ranges, sums, rows of persons.

Sums: a whole number of every record, of one attribute, added up over what is asked of others.

Items that ask how many rows persons have, and the attribute beside the domain that they need.

A spec has one such attribute, of as many numbers as the item that tells most apart; the others ask
for groups of its codes.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import compress

from dpquery.limits import MAX_DESCRIPTIONS, MAX_SUMMED_VALUE
from dpquery.spec.columns import PERSON_ROWS, Attribute, Categorical, Column, Integers, person_rows
from dpquery.spec.parsing.item_fields import (
    NAME_LIST,
    SUMMED_BY_NAME,
    SUMMED_LIST,
    ItemFields,
    MarginalFields,
    PartFields,
    PersonRowsFields,
    SumFields,
)
from dpquery.spec.parsing.predicate_sets import (
    Scope,
    Sets,
    column_taken,
    declared_codes,
    limit_tables,
    read_choosing,
    read_condition,
    read_ranges,
    table,
)
from dpquery.spec.parsing.sections import publication_rules, read_known
from dpquery.spec.parsing.thresholds import read_threshold
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode
from dpquery.spec.predicates import GroupSet, IdentitySet, PredicateSet
from dpquery.spec.problems import UnreadableError, quoted
from dpquery.spec.spec import Item, Privacy, PublicationRules, SummedValues, Table

_OTHER = "other"


def read_sum(given: SumFields, scope: Scope, where: Sets) -> Table:
    """Return the table of a sum.

    What is summed may have predicates as well, under `by` or `where`: a record that does not meet
    them adds nothing.
    """
    axes = scope.varied(given.by, fixed=where)
    index, attribute = scope.attribute(given.of)
    values = _values(given, attribute)
    if not any(values):
        raise given.node("value" if "value" in given else "of").mistake(
            f"every value of {quoted(attribute.name)} is 0, and so is any sum of them; give one "
            "that records add"
        )
    predicates = {**dict(where), **dict(axes)}.get(index)
    if predicates is not None and not any(compress(values, predicates.asked)):
        raise given.node("of").mistake(
            f"this sum is 0 whatever the records are: every value of {quoted(attribute.name)} that "
            "it counts is 0; count values that add something"
        )
    return table(given.node(), axes, where, summed=SummedValues(index, values))


def _values(given: SumFields, attribute: Attribute) -> tuple[int, ...]:
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
        numbers |= enumerate(_listed(node, column, name))
    else:
        numbers |= _named(node, attribute)
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


def _listed(node: ListNode, column: Column, name: str) -> tuple[int, ...]:
    listed = SUMMED_LIST.read(node)
    if len(node.items) != column.length:
        raise node.mistake(
            f"{len(node.items)} numbers are listed; expected {column.length}, one for each value "
            f"of {name} in order"
        )
    return listed


def _named(node: Node, attribute: Attribute) -> dict[int, int]:
    """Return the number of every code that a mapping names."""
    named: dict[int, int] = {}

    def read(entry: tuple[TextNode, int]) -> None:
        key, number = entry
        first, last = _codes(key, attribute)
        if any(code in named for code in range(first, last + 1)):
            raise key.mistake(f"{quoted(key.text)} has a number already; give one")
        named.update(dict.fromkeys(range(first, last + 1), number))

    node.problems.each(SUMMED_BY_NAME.read(node), read)
    return named


def _codes(key: TextNode, attribute: Attribute) -> tuple[int, int]:
    column = attribute.columns[0]
    declared = isinstance(column.kind, Categorical) and _OTHER in column.kind.codes
    if key.text.strip() != _OTHER or declared:
        return declared_codes(key, attribute)
    if column.drops:
        raise key.mistake(
            f"{quoted(attribute.name)} drops what is not declared, so that it adds nothing; leave "
            "`other` out, or give the attribute `other: count`"
        )
    return column.length, column.length


_COLUMNS = (PERSON_ROWS, f"{PERSON_ROWS}_from", f"{PERSON_ROWS}_to")


def read_person_rows(
    workload: Iterable[Node], domain: Iterable[tuple[TextNode, Node]], privacy: Privacy | None
) -> Attribute | None:
    """Return the attribute that the items of a workload need; None where none asks for it.

    Args:
        workload: the items; mistakes in them are noted where they are read.
        domain: names of the declared attributes, with their declarations.
        privacy: the protected unit; None where it could not be read.
    """
    items = [node for item in workload for node in _items_of(item)]
    for node in items:
        if privacy is not None and privacy.person is None:
            node.note(
                "the unit is row, so that it is not known which rows are one person's; set "
                "`privacy: {unit: {person: column, max_rows: n}}`, or leave this item out"
            )
        elif privacy is not None and privacy.weight is not None:
            node.note(
                "with a weight this would add up weights, and max_rows is chosen by numbers of "
                "persons; ask in a spec without `weight`, or leave this item out"
            )
    for key, _ in domain:
        if items and key.text in _COLUMNS:
            key.note(column_taken(key.text))
    numbers = []
    for node in items:
        with node.problems.collected():
            numbers.append(PersonRowsFields.read(node).up_to)
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


def read_workload(
    nodes: Iterable[Node],
    scope: Scope,
    publish: PublicationRules | None = None,
    read_file: Callable[[str], str] | None = None,
) -> tuple[Item, ...]:
    """Return the items of a workload, in file order.

    Args:
        nodes: of the items.
        scope: what they may refer to.
        publish: the rules of those that have none of their own.
        read_file: returns the text of a file that is named; None of questions asked later.
    """
    taken: dict[str, int] = {}
    read: list[Item] = []
    tables = words = 0
    with_shares: Node | None = None
    for node in nodes:
        with node.problems.collected():
            item = _item(node, scope, taken, read_file)
            item = replace(item, publish=item.publish or publish)
            tables += len(item.tables)
            limit_tables(tables, node)
            words += len(item.description)
            if words > MAX_DESCRIPTIONS:
                raise node.mistake(
                    f"the descriptions up to here have over {MAX_DESCRIPTIONS:,} characters in "
                    "all; shorten them"
                )
            read.append(item)
            with_shares = with_shares or (node if item.share is not None else None)
    if with_shares is not None:
        with with_shares.problems.collected():
            _check_shares(read, with_shares)
    return tuple(read)


def _check_shares(items: Iterable[Item], first: Node) -> None:
    """Refuse shares that are more than the budget, or leave some of it to nobody.

    Args:
        items: of the workload.
        first: the item that has the first share.
    """
    shares = [item.share for item in items]
    total = sum((share for share in shares if share is not None), Fraction(0))
    if total > 1:
        raise first.mistake(
            f"the shares of all items add up to {float(total):g}, more than the budget; give less"
        )
    if total == 1 and None in shares:
        raise first.mistake(
            "the shares of all items add up to 1, so that items without one have no budget; give "
            "less, or leave these items out"
        )
    if total < 1 and None not in shares:
        raise first.mistake(
            f"the shares of all items add up to {float(total):g}, and nothing has the rest; give "
            "more, or leave one of them out"
        )


def _item(
    node: Node, scope: Scope, taken: dict[str, int], read_file: Callable[[str], str] | None
) -> Item:
    given = ItemFields.read(node)
    with node.problems.collected():
        place = given.node("name").place
        if given.name in taken:
            first = taken[given.name]
            message = f"the item {quoted(given.name)} is there twice, first in line {first}"
            raise UnreadableError(place, f"{message}; rename one")
        taken[given.name] = place.line
    tables = node.problems.attempt(lambda: _tables(given, scope, {})) or ()
    rules = node.problems.attempt(lambda: publication_rules(given.publish, scope.declared))
    known = None
    if tables:
        known = node.problems.attempt(lambda: read_known(given.known, tables, scope, read_file))
    words = (given.weight, given.description, str(node.place))
    if read_file is None and given.share is not None:
        raise given.node("share").mistake(
            "the budget was split when the release was planned; leave `share` out here"
        )
    if known is not None and given.share is not None:
        raise given.node("share").mistake(
            "an item that is known needs no budget; leave `share` out, or `known`"
        )
    return Item(given.name, tuple(tables), *words, rules, known, given.share)


def _tables(given: PartFields, scope: Scope, outer: Sets) -> list[Table]:
    """Return the tables of an item, or of a part of a union, under the conditions around it."""
    where = outer | scope.sets(given.where, fixed=outer, read=read_condition)
    match given.chosen:
        case "product":
            return [_product(given, scope, where)]
        case "marginals":
            return _marginals(given.marginals, scope, where)
        case "ranges":
            return [_ranges(given, scope, where)]
        case "union":
            return _union(given.union, scope, where)
        case "any_of":
            axes = scope.sets(given.any_of, fixed=where, read=read_choosing)
            return [table(given.node("any_of"), axes, where, at_least=1)]
        case "sum":
            return [read_sum(given.sum_, scope, where)]
        case "rows_per_person":
            return [table(given.node(), row_number_sets(given, scope), where)]
        case _:
            return read_threshold(given.threshold, scope, where)


def _product(given: PartFields, scope: Scope, where: Sets) -> Table:
    return table(given.node("product"), scope.varied(given.product, fixed=where), where)


def _ranges(given: PartFields, scope: Scope, where: Sets) -> Table:
    axes = scope.sets(given.ranges, fixed=where, read=read_ranges)
    return table(given.node("ranges"), axes, where)


def _union(parts: Iterable[Node], scope: Scope, where: Sets) -> list[Table]:
    tables: list[Table] = []
    for part in parts:
        with part.problems.collected():
            more = _tables(PartFields.read(part), scope, where)
            limit_tables(len(tables) + len(more), part)
            if tables and more and more[0].summed != tables[0].summed:
                raise part.mistake(
                    "an item has one unit: its parts all count records, or all add up the same "
                    "values; write this part as an item of its own"
                )
            tables += more
    return tables


def _marginals(given: MarginalFields, scope: Scope, where: Sets) -> list[Table]:
    over = dict(sorted(scope.over(given.over, fixed=where).items()))
    sets: Sets = {i: IdentitySet.of(attribute) for i, attribute in over.items()}
    sets |= _replaced(given, scope, over)
    subsets = _subsets(given, scope, over, where)
    limit_tables(len(subsets), given.node(given.chosen))
    return [table(given.node(), {i: sets[i] for i in subset}, where) for subset in subsets]


def _replaced(given: MarginalFields, scope: Scope, over: Mapping[int, Attribute]) -> Sets:
    """Return the predicate sets that replace identity on some attributes."""
    names = {attribute.name for attribute in over.values()}

    def read(set_node: Node, attribute: Attribute) -> PredicateSet:
        if attribute.name not in names:
            raise set_node.mistake(
                f"{quoted(attribute.name)} is in none of these marginals; leave it out here"
            )
        return read_choosing(set_node, attribute)

    return scope.sets(given.predicates or (), fixed=(), read=read)


def _subsets(
    given: MarginalFields, scope: Scope, over: Mapping[int, Attribute], where: Sets
) -> list[tuple[int, ...]]:
    """Return the attribute sets of marginals: fewest attributes first, then in domain order."""
    kind = given.chosen
    node = given.node(kind)
    if kind == "sets":
        subsets = []
        for listed in given.sets:
            with listed.problems.collected():
                names = NAME_LIST.read(listed)
                subsets.append(tuple(scope.attributes(names, fixed=where)))
        return subsets
    if kind == "max_cells":
        return _small_subsets(
            {i: attribute.shown for i, attribute in over.items()}, given.max_cells, node
        )
    ways = given.ways if kind == "ways" else given.up_to
    if not scope.complete:
        raise UnreadableError(None)
    if ways > len(over):
        raise node.mistake(
            f"{kind} is {ways}; expected 0 to {len(over)}, the number of attributes to combine"
        )
    counts = range(ways if kind == "ways" else 0, ways + 1)
    limit_tables(sum(math.comb(len(over), k) for k in counts), node)
    return list(itertools.chain.from_iterable(itertools.combinations(over, k) for k in counts))


def _small_subsets(sizes: Mapping[int, int], cells: int, node: Node) -> list[tuple[int, ...]]:
    """Return the subsets whose sizes multiply to at most `cells`, by growing small ones."""
    rising = sorted(sizes, key=lambda i: sizes[i])
    small: list[tuple[int, ...]] = []
    todo: list[tuple[tuple[int, ...], int, int]] = [((), 1, 0)]
    while todo:
        subset, product, start = todo.pop()
        small.append(tuple(sorted(subset)))
        limit_tables(len(small) + len(todo), node)
        for position in range(start, len(rising)):
            i = rising[position]
            if product * sizes[i] > cells:
                break
            todo.append(((*subset, i), product * sizes[i], position + 1))
    return sorted(small, key=lambda subset: (len(subset), subset))
