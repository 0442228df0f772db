"""The `workload` section of a spec: named items, each expanded to its tables."""

import itertools
import math
import re
from collections.abc import Mapping

from dpquery.spec.domain import Attribute
from dpquery.spec.model import Item, Table
from dpquery.spec.parse_predicates import read_ranges
from dpquery.spec.parse_threshold import read_threshold
from dpquery.spec.predicates import IdentitySet, PredicateSet, TotalSet
from dpquery.spec.problems import UnreadableError, quoted
from dpquery.spec.reading import described, entries, fields, items, only_one, real, text, whole
from dpquery.spec.scope import Scope, Sets
from dpquery.spec.source import Node
from dpquery.spec.tables import limit_tables, over, table

ITEM_KINDS = ("product", "marginals", "ranges", "union", "any_of", "threshold")
MARGINAL_KINDS = ("ways", "up_to", "sets", "max_cells")
NAME = r"[a-z0-9_][a-z0-9_-]{0,99}"  # becomes a file name

_MAX_DESCRIPTIONS = 100_000  # characters in all: anchors repeat them
_RESERVED = ("errors", "measurements", "relaxed_rows")  # a release has files of these names


def read_workload(node: Node, scope: Scope) -> tuple[Item, ...]:
    """Return the items of a workload, in file order."""
    taken: dict[str, int] = {}
    read: list[Item] = []
    tables = words = 0
    for own in items(node, "the workload, a list of items"):
        with scope.problems.collected():
            item = _item(own, scope, taken)
            tables += len(item.tables)
            limit_tables(tables, own)
            words += len(item.description)
            if words > _MAX_DESCRIPTIONS:
                raise UnreadableError(
                    own.place,
                    f"the descriptions up to here have over {_MAX_DESCRIPTIONS:,} characters in "
                    "all; shorten them",
                )
            read.append(item)
    return tuple(read)


def _item(node: Node, scope: Scope, taken: dict[str, int]) -> Item:
    optional = ("description", "weight", "where", *ITEM_KINDS)
    given = fields(
        node, "a workload item", problems=scope.problems, required=("name",), optional=optional
    )
    name, description, weight = "", "", 1.0
    tables: tuple[Table, ...] = ()
    with scope.problems.collected():
        if "name" in given:
            name = _name(given["name"], taken)
    with scope.problems.collected():
        if "description" in given:
            description = text(given["description"], "a description")
    with scope.problems.collected():
        if "weight" in given:
            weight = _weight(given["weight"])
    with scope.problems.collected():
        tables = tuple(_tables(node, given, scope, {}))
    return Item(name, tables, weight, description, str(node.place))


def _name(node: Node, taken: dict[str, int]) -> str:
    name = text(node, "the name of the item")
    if not re.fullmatch(NAME, name) or name in _RESERVED:
        raise UnreadableError(
            node.place,
            f"{quoted(name)} cannot name an item, which becomes a file; use a-z, 0-9, _ and -"
            + (f", and not {name!r}" if name in _RESERVED else ""),
        )
    if name in taken:
        raise UnreadableError(
            node.place,
            f"the item {quoted(name)} is there twice, first in line {taken[name]}; rename one",
        )
    taken[name] = node.place.line
    return name


def _weight(node: Node) -> float:
    weight = real(node, "a weight")
    if weight <= 0:
        raise UnreadableError(
            node.place,
            f"the weight {described(node)} is not above 0; leave out what weighs nothing",
        )
    return weight


def _tables(node: Node, given: Mapping[str, Node], scope: Scope, outer: Sets) -> list[Table]:
    """Return the tables of an item, or of a part of a union, under the conditions around it."""
    where = dict(outer)
    if "where" in given:
        where |= scope.sets(
            given["where"], "conditions on attributes", fixed=outer, read=scope.read_condition
        )
    kind, own = only_one(given, node, "an item", kinds=ITEM_KINDS)
    match kind:
        case "product":
            return [_product(own, scope, where)]
        case "marginals":
            return _marginals(own, scope, where)
        case "ranges":
            return [_ranges(own, scope, where)]
        case "union":
            return _union(own, scope, where)
        case "any_of":
            return [_any_of(own, scope, where)]
        case _:
            return read_threshold(own, scope, where)


def _product(node: Node, scope: Scope, where: Sets) -> Table:
    axes = scope.sets(
        node, "the product, attributes with predicate sets", fixed=where, read=scope.read_set
    )
    asked: Sets = {i: own for i, own in axes.items() if not isinstance(own, TotalSet)}
    return table(node, asked, where)


def _ranges(node: Node, scope: Scope, where: Sets) -> Table:
    def read(own: Node, attribute: Attribute) -> PredicateSet:
        return read_ranges(own, attribute, problems=scope.problems)

    what = "the ranges, attributes with all, prefix, {width: n} or [[first, last], ...]"
    axes = scope.sets(node, what, fixed=where, read=read)
    if not entries(node, what):
        raise UnreadableError(node.place, "no attribute is named; name at least one")
    return table(node, axes, where)


def _any_of(node: Node, scope: Scope, where: Sets) -> Table:
    what = "the alternatives, attributes with predicate sets"
    axes = scope.sets(node, what, fixed=where, read=scope.read_choosing)
    if not entries(node, what):
        raise UnreadableError(node.place, "no alternative is given; name at least one attribute")
    return table(node, axes, where, at_least=1)


def _union(node: Node, scope: Scope, where: Sets) -> list[Table]:
    tables: list[Table] = []
    for part in items(node, "the parts of a union, a list of items without names"):
        with scope.problems.collected():
            given = fields(
                part,
                "a part of a union",
                problems=scope.problems,
                optional=("where", *ITEM_KINDS),
            )
            own = _tables(part, given, scope, where)
            limit_tables(len(tables) + len(own), part)
            tables += own
    return tables


def _marginals(node: Node, scope: Scope, where: Sets) -> list[Table]:
    optional = (*MARGINAL_KINDS, "over", "predicates")
    given = fields(node, "marginals", problems=scope.problems, optional=optional)
    combined = _over(given, scope, where)
    sets: Sets = {i: IdentitySet(own.size) for i, own in combined.items()}
    sets |= _replaced(given, scope, combined)
    kind, own = only_one(given, node, "marginals", kinds=MARGINAL_KINDS)
    subsets = _subsets(kind, own, scope, combined, where)
    limit_tables(len(subsets), own)
    return [table(node, {i: sets[i] for i in subset}, where) for subset in subsets]


def _over(given: Mapping[str, Node], scope: Scope, where: Sets) -> dict[int, Attribute]:
    """Return the attributes that marginals are made of, in domain order."""
    if "over" in given and "sets" in given:
        raise UnreadableError(
            given["over"].place, "`sets` names its attributes itself; leave out `over`"
        )
    return dict(sorted(over(given, scope, where).items()))


def _replaced(given: Mapping[str, Node], scope: Scope, over: Mapping[int, Attribute]) -> Sets:
    """Return the predicate sets that stand in for identity."""
    if "predicates" not in given:
        return {}
    names = {own.name for own in over.values()}

    def read(own: Node, attribute: Attribute) -> PredicateSet:
        if attribute.name not in names:
            raise UnreadableError(
                own.place,
                f"{quoted(attribute.name)} is in none of these marginals; leave it out here",
            )
        return scope.read_choosing(own, attribute)

    return scope.sets(given["predicates"], "attributes with predicate sets", fixed=(), read=read)


def _subsets(
    kind: str, node: Node, scope: Scope, over: Mapping[int, Attribute], where: Sets
) -> list[tuple[int, ...]]:
    """Return the attribute sets of marginals: fewest attributes first, then in domain order."""
    if kind == "sets":
        return _listed_sets(node, scope, where)
    if kind == "max_cells":
        cells = whole(node, "the most cells of a marginal")
        if cells < 1:
            raise UnreadableError(
                node.place, f"max_cells is {cells}; expected 1 or more, the cells of the total"
            )
        return _small_subsets({i: own.size for i, own in over.items()}, cells, node)
    ways = whole(node, "the number of attributes in a marginal")
    if any(own is None for _, own in scope.declared.values()):
        raise UnreadableError(None)  # how many attributes there are is not known yet
    if not 0 <= ways <= len(over):
        raise UnreadableError(
            node.place,
            f"{kind} is {ways}; expected 0 to {len(over)}, the number of attributes to combine",
        )
    counts = range(ways if kind == "ways" else 0, ways + 1)
    limit_tables(sum(math.comb(len(over), k) for k in counts), node)
    return list(itertools.chain.from_iterable(itertools.combinations(over, k) for k in counts))


def _listed_sets(node: Node, scope: Scope, where: Sets) -> list[tuple[int, ...]]:
    subsets = []
    for own in items(node, "lists of attributes"):
        with scope.problems.collected():
            subsets.append(tuple(scope.attributes(own, "names of attributes", fixed=where)))
    return subsets


def _small_subsets(sizes: Mapping[int, int], cells: int, node: Node) -> list[tuple[int, ...]]:
    """Return the subsets whose sizes multiply to at most `cells`, by growing small ones."""
    rising = sorted(sizes, key=lambda i: sizes[i])
    found: list[tuple[int, ...]] = []
    todo: list[tuple[tuple[int, ...], int, int]] = [((), 1, 0)]
    while todo:
        subset, held, start = todo.pop()
        found.append(tuple(sorted(subset)))
        limit_tables(len(found) + len(todo), node)
        for position in range(start, len(rising)):
            i = rising[position]
            if held * sizes[i] > cells:
                break
            todo.append(((*subset, i), held * sizes[i], position + 1))
    return sorted(found, key=lambda own: (len(own), own))
