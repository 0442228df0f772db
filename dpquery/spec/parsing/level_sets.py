"""Questions by the levels of a hierarchy: every county, the counties of one state, one state."""

from collections.abc import Iterable, Sequence

from dpquery.spec.domain import Attribute, HierarchyLevel
from dpquery.spec.numbers import number
from dpquery.spec.parsing.forms import ListOf, TextForm, described, ref
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode
from dpquery.spec.predicates import GroupSet, IdentitySet
from dpquery.spec.problems import Problems, listed, quoted, suggestion

_FEWER = "ask for fewer levels, or for part of them with `within`"


def level_of(name: str, attribute: Attribute) -> HierarchyLevel | None:
    """Return the level of an attribute's hierarchy that has a name; None where none has."""
    return next((level for level in attribute.levels if level.name == name), None)


def read_level(
    node: Node,
    within: Sequence[tuple[TextNode, Node]] | None,
    attribute: Attribute,
    problems: Problems,
) -> GroupSet | IdentitySet:
    """Return the set that asks for every group of a level.

    Args:
        node: the level's name.
        within: levels, each with one or several of its groups: only what lies in one of them, of
            every level, is asked for. None: everything.
        attribute: whose hierarchy it is.
        problems: takes every mistake.
    """
    name = TextForm("the name of a level").read(node, problems)
    level = _known_level(node, name, attribute, problems)
    if within is None and level is attribute.levels[-1]:
        return IdentitySet.of(attribute)
    groups: Sequence[int] = range(len(level.codes))
    for key, value in within or ():
        with problems.collected():
            groups = _lying_in(groups, level, key, value, attribute, problems)
    if not groups:
        raise node.mistake(
            f"no {level.name} of {quoted(attribute.name)} lies in all that `within` names; name "
            "fewer levels there"
        )
    return _group_set(groups, level, attribute, node, problems)


def is_by_level(node: Node, attribute: Attribute) -> bool:
    """Return whether a node names a value by level, as {state: 48} does, or tries to."""
    return isinstance(node, MapNode) and any(
        level_of(key.text, attribute) for key, _ in node.entries
    )


def read_group(node: Node, attribute: Attribute, problems: Problems) -> GroupSet:
    """Return the set that asks for one group, {state: 48}."""
    if not isinstance(node, MapNode) or len(node.entries) != 1:
        raise node.mistake(
            f"expected one group of {quoted(attribute.name)} such as {{{attribute.levels[0].name}: "
            f"code}}, found {described(node)}; name others as further values"
        )
    key, value = node.entries[0]
    level = _known_level(key, key.text, attribute, problems)
    group = _named_group(value, level, attribute, problems)
    return _group_set([group], level, attribute, node, problems)


def naming_levels(word: str, levels: Iterable[HierarchyLevel]) -> str:
    """Return how to name a group that has a code or label; nothing where no level has such."""
    for level in levels:
        if _find(word, level):
            return f"; as a {level.name}, write {{{level.name}: {word}}}"
    return ""


def _known_level(node: Node, name: str, attribute: Attribute, problems: Problems) -> HierarchyLevel:
    level = level_of(name, attribute)
    if level is None:
        names = [known.name for known in attribute.levels]
        hint = suggestion(name, names) or "; declare its `hierarchy` and `levels` in the domain"
        raise node.mistake(f"{quoted(name)} is no level of {quoted(attribute.name)}{hint}")
    problems.levels_named.add((attribute.name, level.name))
    return level


def _group_set(
    groups: Sequence[int],
    level: HierarchyLevel,
    attribute: Attribute,
    node: Node,
    problems: Problems,
) -> GroupSet:
    problems.count_codes(len(groups), level.name, node.place, remedy=_FEWER)
    return GroupSet(
        attribute.size,
        tuple((level.labels[group], level.members[group]) for group in groups),
        tuple((level.name, level.codes[group]) for group in groups),
    )


def _lying_in(
    groups: Sequence[int],
    level: HierarchyLevel,
    key: TextNode,
    value: Node,
    attribute: Attribute,
    problems: Problems,
) -> list[int]:
    """Return those of a level's groups that lie in one of the groups named of another level."""
    outer = _known_level(key, key.text, attribute, problems)
    outer_of: dict[int, int] = {}
    for group, other in zip(level.group_of, outer.group_of, strict=True):
        if outer_of.setdefault(group, other) != other:
            raise key.mistake(
                f"the {level.name} {quoted(level.codes[group])} lies in more than one "
                f"{outer.name}; name a level that holds every {level.name} whole"
            )
    nodes: Sequence[Node] = (value,)
    if isinstance(value, ListNode):
        nodes = ListOf(f"groups of {outer.name}", ref("value")).read(value, problems)
    named = problems.each(nodes, lambda item: _named_group(item, outer, attribute, problems))
    return [group for group in groups if outer_of[group] in named]


def _named_group(
    node: Node, level: HierarchyLevel, attribute: Attribute, problems: Problems
) -> int:
    """Return the one group of a level that a node names."""
    word = TextForm(f"the code or label of a {level.name}").read(node, problems)
    groups = _find(word, level)
    if not groups:
        raise node.mistake(
            f"{quoted(word)} is no {level.name} of {quoted(attribute.name)}"
            f"{suggestion(word, level.positions)}"
        )
    if len(groups) > 1:
        codes = listed([level.codes[group] for group in groups])
        raise node.mistake(
            f"{quoted(word)} is the label of {len(groups)} groups of {level.name}; write the code "
            f"of one: {codes}"
        )
    return groups[0]


def _find(word: str, level: HierarchyLevel) -> tuple[int, ...]:
    """Return the groups that a code, a label, or a number that is a code stands for."""
    if word in level.positions:
        return level.positions[word]
    exact = number(word)
    return (level.numbers[exact],) if exact in level.numbers else ()
