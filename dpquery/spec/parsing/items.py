"""The `workload` section of a spec: named items, each expanded to its tables."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

from dpquery.limits import MAX_DESCRIPTIONS
from dpquery.spec.domain import Attribute
from dpquery.spec.model import Item, PublicationRules, Table
from dpquery.spec.parsing.derived_fields import NAME_LIST
from dpquery.spec.parsing.fields import ItemFields, MarginalFields, PartFields
from dpquery.spec.parsing.predicate_sets import read_ranges
from dpquery.spec.parsing.public_facts import read_known
from dpquery.spec.parsing.rows_per_person import row_number_sets
from dpquery.spec.parsing.scope import Scope, Sets
from dpquery.spec.parsing.sections import publication_rules
from dpquery.spec.parsing.sums import read_sum
from dpquery.spec.parsing.table_limits import limit_tables, table
from dpquery.spec.parsing.thresholds import read_threshold
from dpquery.spec.parsing.yaml_nodes import Node
from dpquery.spec.predicates import IdentitySet, PredicateSet
from dpquery.spec.problems import UnreadableError, quoted


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
        with scope.problems.collected():
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
        with scope.problems.collected():
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
    given = ItemFields.read(node, scope.problems)
    with scope.problems.collected():
        _take_name(given, taken)
    tables = scope.problems.attempt(lambda: _tables(given, scope, {})) or ()
    rules = scope.problems.attempt(lambda: publication_rules(given.publish, scope.declared))
    known = None
    if tables:
        known = scope.problems.attempt(lambda: read_known(given.known, tables, scope, read_file))
    words = (given.weight, given.description, str(node.place))
    if read_file is None and given.share is not None:
        raise given.node("share").mistake(
            "the budget was split when the release was planned; leave `share` out here"
        )
    if known is not None and given.share is not None:
        raise given.node("share").mistake(
            "an item that is known takes no budget; leave `share` out, or `known`"
        )
    return Item(given.name, tuple(tables), *words, rules, known, given.share)


def _take_name(given: ItemFields, taken: dict[str, int]) -> None:
    place = given.node("name").place
    if given.name in taken:
        raise UnreadableError(
            place,
            f"the item {quoted(given.name)} is there twice, first in line {taken[given.name]}; "
            "rename one",
        )
    taken[given.name] = place.line


def _tables(given: PartFields, scope: Scope, outer: Sets) -> list[Table]:
    """Return the tables of an item, or of a part of a union, under the conditions around it."""
    where = outer | scope.sets(given.where, fixed=outer, read=scope.read_condition)
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
            axes = scope.sets(given.any_of, fixed=where, read=scope.read_choosing)
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
    def read(set_node: Node, attribute: Attribute) -> PredicateSet:
        return read_ranges(set_node, attribute, problems=scope.problems)

    axes = scope.sets(given.ranges, fixed=where, read=read)
    return table(given.node("ranges"), axes, where)


def _union(parts: Iterable[Node], scope: Scope, where: Sets) -> list[Table]:
    tables: list[Table] = []
    for part in parts:
        with scope.problems.collected():
            more = _tables(PartFields.read(part, scope.problems), scope, where)
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
        return scope.read_choosing(set_node, attribute)

    return scope.sets(given.predicates or (), fixed=(), read=read)


def _subsets(
    given: MarginalFields, scope: Scope, over: Mapping[int, Attribute], where: Sets
) -> list[tuple[int, ...]]:
    """Return the attribute sets of marginals: fewest attributes first, then in domain order."""
    kind = given.chosen
    node = given.node(kind)
    if kind == "sets":
        return _listed_sets(given, scope, where)
    if kind == "max_cells":
        return _small_subsets(
            {i: attribute.shown for i, attribute in over.items()}, given.max_cells, node
        )
    ways = given.ways if kind == "ways" else given.up_to
    if not scope.complete:
        raise UnreadableError(None)
    if not 0 <= ways <= len(over):
        raise node.mistake(
            f"{kind} is {ways}; expected 0 to {len(over)}, the number of attributes to combine"
        )
    counts = range(ways if kind == "ways" else 0, ways + 1)
    limit_tables(sum(math.comb(len(over), k) for k in counts), node)
    return list(itertools.chain.from_iterable(itertools.combinations(over, k) for k in counts))


def _listed_sets(given: MarginalFields, scope: Scope, where: Sets) -> list[tuple[int, ...]]:
    subsets = []
    for node in given.sets:
        with scope.problems.collected():
            names = NAME_LIST.read(node, scope.problems)
            subsets.append(tuple(scope.attributes(names, fixed=where)))
    return subsets


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
