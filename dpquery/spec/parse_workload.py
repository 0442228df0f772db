"""The `workload` section of a spec: named items, each expanded to its tables."""

import itertools
import math
import re
from collections.abc import Mapping

from dpquery.spec.domain import Attribute
from dpquery.spec.model import Item, Table
from dpquery.spec.parse_predicates import read_ranges
from dpquery.spec.predicates import IdentitySet, PredicateSet, TotalSet
from dpquery.spec.problems import UnreadableError, quoted
from dpquery.spec.reading import described, entries, fields, items, only_one, real, text, whole
from dpquery.spec.scope import Scope, Sets
from dpquery.spec.source import Node, TextNode

ITEM_KINDS = ("product", "marginals", "ranges", "union", "any_of", "threshold")
MARGINAL_KINDS = ("ways", "up_to", "sets", "max_cells")
NAME = r"[a-z0-9_][a-z0-9_-]{0,99}"  # becomes a file name

MAX_TABLES = 1_000_000
MAX_QUERIES = 2**40  # of one table

_RESERVED = ("errors", "measurements", "relaxed_rows")  # a release has files of these names


def read_workload(node: Node, scope: Scope) -> tuple[Item, ...]:
    """Return the items of a workload, in file order."""
    taken: dict[str, int] = {}
    read: list[Item] = []
    tables = 0
    for own in items(node, "the workload, a list of items"):
        with scope.problems.collected():
            item = _item(own, scope, taken)
            tables += len(item.tables)
            _limit_tables(tables, own)
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
    return Item(name, tables, weight, description)


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
            return [_threshold(own, scope, where)]


def _table(node: Node, axes: Sets, where: Sets, at_least: int | None = None) -> Table:
    table = Table(tuple(sorted(axes.items())), tuple(sorted(where.items())), at_least)
    if table.size > MAX_QUERIES:
        raise UnreadableError(
            node.place,
            f"one table asks {table.size:,} queries, more than the limit of {MAX_QUERIES:,}; "
            "name fewer attributes or coarser sets",
        )
    return table


def _product(node: Node, scope: Scope, where: Sets) -> Table:
    axes = scope.sets(
        node, "the product, attributes with predicate sets", fixed=where, read=scope.read_set
    )
    asked: Sets = {i: own for i, own in axes.items() if not isinstance(own, TotalSet)}
    return _table(node, asked, where)


def _ranges(node: Node, scope: Scope, where: Sets) -> Table:
    def read(own: Node, attribute: Attribute) -> PredicateSet:
        return read_ranges(own, attribute, problems=scope.problems)

    what = "the ranges, attributes with all, prefix, {width: n} or [[first, last], ...]"
    axes = scope.sets(node, what, fixed=where, read=read)
    if not entries(node, what):
        raise UnreadableError(node.place, "no attribute is named; name at least one")
    return _table(node, axes, where)


def _any_of(node: Node, scope: Scope, where: Sets) -> Table:
    what = "the alternatives, attributes with predicate sets"
    axes = scope.sets(node, what, fixed=where, read=scope.read_choosing)
    if not entries(node, what):
        raise UnreadableError(node.place, "no alternative is given; name at least one attribute")
    return _table(node, axes, where, at_least=1)


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
            _limit_tables(len(tables) + len(own), part)
            tables += own
    return tables


def _limit_tables(count: int, node: Node) -> None:
    if count > MAX_TABLES:
        raise UnreadableError(
            node.place,
            f"this makes {count:,} tables or more, past the limit of {MAX_TABLES:,}; ask for fewer "
            "ways, or for fewer attributes with `over`",
        )


def _threshold(node: Node, scope: Scope, where: Sets) -> Table:
    given = fields(
        node,
        "a threshold",
        problems=scope.problems,
        required=("r", "of"),
        optional=("targets",),
    )
    if not {"r", "of"} <= given.keys():
        raise UnreadableError(None)
    of = items(given["of"], "the attributes to count over")
    r = 1
    with scope.problems.collected():
        r = whole(given["r"], "how many of the attributes must meet their target")
        if not 1 <= r <= len(of):
            raise UnreadableError(
                given["r"].place, f"r is {r}; expected 1 to {len(of)}, the number of attributes"
            )
    attributes = scope.attributes(given["of"], "the attributes to count over", fixed=where)
    axes: Sets = {i: IdentitySet(own.size) for i, own in attributes.items()}
    targets = given.get("targets")
    if targets is not None and not (isinstance(targets, TextNode) and targets.text == "all"):
        axes = _targets(targets, scope, attributes)
    return _table(node, axes, where, at_least=r)


def _targets(node: Node, scope: Scope, attributes: Mapping[int, Attribute]) -> Sets:
    names = [own.name for own in attributes.values()]

    def read(own: Node, attribute: Attribute) -> PredicateSet:
        if attribute.name not in names:
            raise UnreadableError(
                own.place, f"{quoted(attribute.name)} has a target but is not in `of`; add it there"
            )
        return scope.read_condition(own, attribute)

    what = "`all`, or a target for each attribute in `of`"
    targets = scope.sets(node, what, fixed=(), read=read)
    named = {key.text for key, _ in entries(node, what)}
    missing = [name for name in names if name not in named]
    if missing:
        raise UnreadableError(
            node.place, f"no target for {quoted(missing[0])}, which is in `of`; give each one"
        )
    return targets


def _marginals(node: Node, scope: Scope, where: Sets) -> list[Table]:
    optional = (*MARGINAL_KINDS, "over", "predicates")
    given = fields(node, "marginals", problems=scope.problems, optional=optional)
    over = _over(given, scope, where)
    sets: Sets = {i: IdentitySet(own.size) for i, own in over.items()}
    sets |= _replaced(given, scope, over)
    kind, own = only_one(given, node, "marginals", kinds=MARGINAL_KINDS)
    subsets = _subsets(kind, own, scope, over, where)
    _limit_tables(len(subsets), own)
    return [_table(node, {i: sets[i] for i in subset}, where) for subset in subsets]


def _over(given: Mapping[str, Node], scope: Scope, where: Sets) -> dict[int, Attribute]:
    """Return the attributes that marginals are made of: all that are not fixed, unless said."""
    if "over" not in given:
        declared = scope.declared.values()
        return {i: own for i, own in declared if own is not None and i not in where}
    if "sets" in given:
        raise UnreadableError(
            given["over"].place, "`sets` names its attributes itself; leave out `over`"
        )
    over = scope.attributes(given["over"], "the attributes to combine", fixed=where)
    return dict(sorted(over.items()))


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
    _limit_tables(sum(math.comb(len(over), k) for k in counts), node)
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
        _limit_tables(len(found) + len(todo), node)
        for position in range(start, len(rising)):
            i = rising[position]
            if held * sizes[i] > cells:
                break
            todo.append(((*subset, i), held * sizes[i], position + 1))
    return sorted(found, key=lambda own: (len(own), own))
