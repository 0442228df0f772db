"""Thresholds: records that meet at least r targets, over listed attributes or over random sets."""

import math
from collections.abc import Mapping, Sized
from fractions import Fraction

from dpquery.spec import sampling
from dpquery.spec.domain import Attribute
from dpquery.spec.model import Table
from dpquery.spec.predicates import IdentitySet, PredicateSet
from dpquery.spec.problems import UnreadableError, quoted
from dpquery.spec.reading import (
    choice,
    decimal,
    entries,
    fields,
    items,
    only_one,
    whole,
)
from dpquery.spec.scope import Scope, Sets
from dpquery.spec.source import MapNode, Node, TextNode
from dpquery.spec.tables import over, table

THRESHOLD_KINDS = ("of", "sample")
DISTRIBUTIONS = ("uniform", "zipf", "geometric")
SAMPLED = ("k", "seed", "over", "distribution", "max_cells")  # what goes with `sample`
DEFAULT_P = Fraction(1, 4)  # of `geometric`, as [RAP] has it


def read_threshold(node: Node, scope: Scope, where: Sets) -> list[Table]:
    """Return the table of a threshold over listed attributes, or those of a random sample."""
    optional = (*THRESHOLD_KINDS, "targets", *SAMPLED)
    given = fields(node, "a threshold", problems=scope.problems, required=("r",), optional=optional)
    kind, _ = only_one(given, node, "a threshold", kinds=THRESHOLD_KINDS)
    foreign = ("targets",) if kind == "sample" else SAMPLED
    for key in foreign:
        if key in given:
            other = "a sample has all targets" if kind == "sample" else "`of` is not a sample"
            scope.problems.add(given[key].place, f"{other}; leave out {quoted(key)}")
    if "r" not in given:
        raise UnreadableError(None)
    return (
        _sampled(node, given, scope, where) if kind == "sample" else [_listed(given, scope, where)]
    )


def _listed(given: Mapping[str, Node], scope: Scope, where: Sets) -> Table:
    of = items(given["of"], "the attributes to count over")
    r = 1
    with scope.problems.collected():
        r = _r(given["r"], len(of), "the number of attributes")
    attributes = scope.attributes(given["of"], "the attributes to count over", fixed=where)
    axes: Sets = {i: IdentitySet(own.size) for i, own in attributes.items()}
    targets = given.get("targets")
    if targets is not None and not (isinstance(targets, TextNode) and targets.text == "all"):
        axes = _targets(targets, scope, attributes)
    return table(given["of"], axes, where, at_least=r)


def _r(node: Node, k: int, what: str) -> int:
    r = whole(node, "how many of the attributes must meet their target")
    if not 1 <= r <= k:
        raise UnreadableError(node.place, f"r is {r}; expected 1 to {k}, {what}")
    return r


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


def _sampled(node: Node, given: Mapping[str, Node], scope: Scope, where: Sets) -> list[Table]:
    """Return the tables of random sets of attributes, in the order drawn."""
    missing = [name for name in ("k", "seed") if name not in given]
    for name in missing:
        scope.problems.add(node.place, f"a sample needs the key {quoted(name)}; add it")
    attributes = over(given, scope, where)
    if missing or any(own is None for _, own in scope.declared.values()):
        raise UnreadableError(None)
    k = whole(given["k"], "the number of attributes to count over")
    if not 1 <= k <= len(attributes):
        raise UnreadableError(
            given["k"].place,
            f"k is {k}; expected 1 to {len(attributes)}, the number of attributes to draw from",
        )
    r = _r(given["r"], k, "the number of attributes of each")
    _check_effort(node, given, attributes)
    seed, count = whole(given["seed"], "the seed"), whole(given["sample"], "how many sets to draw")
    weights, cells = _weights(given, len(attributes), scope), _max_cells(given)
    sizes = [own.size for own in attributes.values()]
    try:
        sets = sampling.WeightedSets(sizes, weights, k, cells)
    except sampling.TooManySetsError:
        raise UnreadableError(
            given["k"].place, f"too many sets of {k} to count; name fewer attributes in `over`"
        ) from None
    fitting = "" if cells is None else f" with at most {cells:,} cells"
    if not sets.count:
        least = f"the smallest has {math.prod(sorted(sizes)[:k]):,}"
        words = f"no set of {k} attributes has so few cells: {least}; allow more"
        raise UnreadableError(given["max_cells"].place, words)
    if not 1 <= count <= sets.count:
        raise UnreadableError(
            given["sample"].place,
            f"sample is {count}; expected 1 to {sets.count:,}, the number of sets of {k} of "
            f"{len(attributes)} attributes{fitting}",
        )
    axes = [(i, IdentitySet(own.size)) for i, own in attributes.items()]
    return [
        table(given["sample"], dict(axes[j] for j in chosen), where, at_least=r)
        for chosen in sampling.drawn(sets, count, seed)
    ]


def _check_effort(node: Node, given: Mapping[str, Node], attributes: Sized) -> None:
    """Refuse samples that would take minutes to draw."""
    if len(attributes) > sampling.MAX_DRAWN_FROM:
        raise UnreadableError(
            node.place,
            f"there are {len(attributes):,} attributes to draw from, and the limit is "
            f"{sampling.MAX_DRAWN_FROM:,}; name fewer in `over`",
        )
    count = whole(given["sample"], "how many sets to draw")
    if count > sampling.MAX_DRAWN:
        raise UnreadableError(
            given["sample"].place,
            f"sample is {count:,}, and the limit is {sampling.MAX_DRAWN:,} sets; draw fewer",
        )


def _max_cells(given: Mapping[str, Node]) -> int | None:
    if "max_cells" not in given:
        return None
    cells = whole(given["max_cells"], "the most cells of a table")
    if cells < 1:
        raise UnreadableError(given["max_cells"].place, f"max_cells is {cells}; expected 1 or more")
    return cells


def _weights(given: Mapping[str, Node], count: int, scope: Scope) -> list[int]:
    """Return the weights of the attributes, the first named the heaviest."""
    node = given.get("distribution")
    if node is None:
        return sampling.uniform(count)
    p = DEFAULT_P
    if isinstance(node, MapNode):
        what = "a distribution with a parameter"
        own = fields(node, what, problems=scope.problems, required=("geometric",))
        if "geometric" not in own:
            raise UnreadableError(None)
        p = decimal(own["geometric"], "the p of a geometric distribution")
        if not 0 < p < 1:
            raise UnreadableError(own["geometric"].place, f"p is {float(p):g}; expected 0 < p < 1")
        word = "geometric"
    else:
        word = choice(node, "a distribution over attributes", DISTRIBUTIONS)
    match word:
        case "zipf":
            return sampling.zipf(count)
        case "geometric":
            return sampling.geometric(count, p)
        case _:
            return sampling.uniform(count)
