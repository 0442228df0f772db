"""Thresholds: records that meet at least r targets, over listed attributes or over random sets."""

import math
from collections.abc import Mapping, Sized
from fractions import Fraction

from dpquery.limits import MAX_DRAWN_FROM, MAX_DRAWN_SETS
from dpquery.spec.domain import Attribute
from dpquery.spec.model import Table
from dpquery.spec.parsing import random_subsets
from dpquery.spec.parsing.fields import TARGET_OF_EACH, ThresholdFields
from dpquery.spec.parsing.scope import Scope, Sets
from dpquery.spec.parsing.table_limits import table
from dpquery.spec.parsing.yaml_nodes import Node, TextNode
from dpquery.spec.predicates import IdentitySet, PredicateSet
from dpquery.spec.problems import UnreadableError, quoted

DEFAULT_P = Fraction(1, 4)  # of `geometric`, as [RAP] has it


def read_threshold(given: ThresholdFields, scope: Scope, where: Sets) -> list[Table]:
    """Return the table of a threshold over listed attributes, or those of a random sample."""
    if given.chosen == "sample":
        return _sampled(given, scope, where)
    scope.problems.attempt(lambda: _check_r(given, len(given.of), "the number of attributes"))
    attributes = scope.attributes(given.of, fixed=where)
    axes: Sets = {i: IdentitySet.of(attribute) for i, attribute in attributes.items()}
    targets = given.targets
    if targets is not None and not (isinstance(targets, TextNode) and targets.text == "all"):
        axes = _targets(targets, scope, attributes)
    return [table(given.node("of"), axes, where, at_least=given.r)]


def _check_r(given: ThresholdFields, k: int, what: str) -> None:
    if not 1 <= given.r <= k:
        message = f"r is {given.r}; expected 1 to {k}, {what}"
        raise given.node("r").mistake(message)


def _targets(node: Node, scope: Scope, attributes: Mapping[int, Attribute]) -> Sets:
    names = [attribute.name for attribute in attributes.values()]

    def read(target: Node, attribute: Attribute) -> PredicateSet:
        if attribute.name not in names:
            raise target.mistake(
                f"{quoted(attribute.name)} has a target but is not in `of`; add it there"
            )
        return scope.read_condition(target, attribute)

    entries = TARGET_OF_EACH.read(node, scope.problems)
    targets = scope.sets(entries, fixed=(), read=read)
    named = {key.text for key, _ in entries}
    missing = [name for name in names if name not in named]
    if missing:
        raise node.mistake(f"no target for {quoted(missing[0])}, which is in `of`; give each one")
    return targets


def _sampled(given: ThresholdFields, scope: Scope, where: Sets) -> list[Table]:
    """Return the tables of random sets of attributes, in the order drawn."""
    attributes = scope.over(given.over, fixed=where)
    k, seed, count, cells = given.k, given.seed, given.sample, given.max_cells
    if k is None or seed is None or not scope.complete:
        raise UnreadableError(None)
    if not 1 <= k <= len(attributes):
        raise given.node("k").mistake(
            f"k is {k}; expected 1 to {len(attributes)}, the number of attributes to draw from"
        )
    _check_r(given, k, "the number of attributes of each")
    _check_effort(given, attributes)
    sizes = [attribute.shown for attribute in attributes.values()]
    try:
        sets = random_subsets.WeightedSets(sizes, _weights(given, len(sizes)), k, cells)
    except random_subsets.TooManySetsError:
        raise given.node("k").mistake(
            f"too many sets of {k} to count; name fewer attributes in `over`"
        ) from None
    fitting = "" if cells is None else f" with at most {cells:,} cells"
    if not sets.count:
        least = f"the smallest has {math.prod(sorted(sizes)[:k]):,}"
        words = f"no set of {k} attributes has so few cells: {least}; allow more"
        raise given.node("max_cells").mistake(words)
    node = given.node("sample")
    if not 1 <= count <= sets.count:
        raise node.mistake(
            f"sample is {count}; expected 1 to {sets.count:,}, the number of sets of {k} of "
            f"{len(attributes)} attributes{fitting}"
        )
    axes = [(i, IdentitySet.of(attribute)) for i, attribute in attributes.items()]
    return [
        table(node, dict(axes[j] for j in chosen), where, at_least=given.r)
        for chosen in random_subsets.draw_sets(sets, count, seed)
    ]


def _check_effort(given: ThresholdFields, attributes: Sized) -> None:
    """Refuse samples that would take minutes to draw."""
    if len(attributes) > MAX_DRAWN_FROM:
        raise given.node().mistake(
            f"there are {len(attributes):,} attributes to draw from, and the limit is "
            f"{MAX_DRAWN_FROM:,}; name fewer in `over`"
        )
    if given.sample > MAX_DRAWN_SETS:
        raise given.node("sample").mistake(
            f"sample is {given.sample:,}, and the limit is {MAX_DRAWN_SETS:,} sets; draw fewer"
        )


def _weights(given: ThresholdFields, count: int) -> list[int]:
    """Return the weights of the attributes, the first named the heaviest."""
    match given.distribution:
        case "uniform":
            return random_subsets.uniform(count)
        case "zipf":
            return random_subsets.zipf(count)
        case "geometric":
            return random_subsets.geometric(count, DEFAULT_P)
        case parametrised:
            return random_subsets.geometric(count, parametrised.geometric)
