"""Hierarchies: levels of values, in the spec or in files.

In a file a value stands on a line, and the first line names the columns. Of a level that the spec
names, `county` say, the column of that name has the codes and `county_label`, if there is one, the
labels. Other columns do not count. The values are those of the lowest level. Each list of levels is
a hierarchy: every group of a level lies in one group of the level before it.

Questions by the levels of a hierarchy: every county, the counties of one state, one state.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from dpquery.limits import MAX_LEVELS
from dpquery.spec.columns import Attribute, Categorical, HierarchyLevel
from dpquery.spec.numbers import ExactNumber, number
from dpquery.spec.parsing.fields import LEVEL_LIST, AttributeFields
from dpquery.spec.parsing.forms import ListOf, TextForm, described, ref
from dpquery.spec.parsing.item_fields import SET_WORDS, ConditionFields
from dpquery.spec.parsing.listed_values import FileLine, ListedValue, categorical, even
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode
from dpquery.spec.predicates import GroupSet, IdentitySet
from dpquery.spec.problems import listed, nearest, quoted, suggestion

LevelNodes = Mapping[str, Node]
"""The levels of one hierarchy, the highest first, and where the spec names each."""

_TAKEN = frozenset((*SET_WORDS, *ConditionFields.kinds, "other", "any"))
_LABEL_END = "_label"


def level_lists(given: AttributeFields) -> list[LevelNodes]:
    """Return the hierarchies of an attribute: all end with one level, the lowest."""
    node = given.node("levels")
    items = node.items if isinstance(node, ListNode) else ()
    several = any(isinstance(item, ListNode) for item in items)
    lists = node.problems.each(items if several else (node,), _level_nodes)
    lowest, names = _lowest(lists), {name for levels in lists for name in levels}
    if len(names) > MAX_LEVELS:
        raise node.mistake(
            f"{len(names)} levels are named, more than the limit of {MAX_LEVELS}; leave out those "
            "that no item asks for"
        )
    for levels in lists:
        *_, (last, place) = levels.items()
        if last != lowest:
            raise place.mistake(
                f"{quoted(last)} is the last level of this list and {quoted(lowest)} of the first; "
                "end every list with the lowest level, whose codes the data have"
            )
    try:
        TopologicalSorter(_above(lists)).prepare()
    except CycleError as error:
        cycle = " above ".join(map(quoted, error.args[1]))
        raise node.mistake(f"these lists put {cycle}; write levels in one order") from None
    return lists


def check_levels_named(entries: Iterable[tuple[TextNode, Node]]) -> None:
    """Refuse levels that no question of a spec without mistakes names, but for the lowest."""
    for key, declaration in entries:
        fields = declaration.entries if isinstance(declaration, MapNode) else ()
        for lists in (node for field, node in fields if field.text == "levels"):
            nested = list(_texts(lists))
            for node in nested:
                named = (key.text, node.text.strip()) in node.problems.levels_named
                if not named and node.text.strip() != nested[-1].text.strip():
                    node.note(
                        f"no item names the level {quoted(node.text)} of {quoted(key.text)}; ask "
                        "for it, or leave it out here"
                    )


def _texts(node: Node) -> Iterator[TextNode]:
    """Yield the texts of a list and of the lists in it."""
    for item in node.items if isinstance(node, ListNode) else ():
        yield from [item] if isinstance(item, TextNode) else _texts(item)


def _level_nodes(node: Node) -> LevelNodes:
    LEVEL_LIST.read(node)
    levels: dict[str, Node] = {}

    def read_level(item: Node) -> None:
        name = TextForm("the name of a level").read(item)
        if name in levels:
            raise item.mistake(
                f"the level {quoted(name)} is named twice, so that it would lie in itself; name "
                "each once, the highest first"
            )
        if name in _TAKEN:
            raise item.mistake(
                f"{quoted(name)} means something else where questions name a level; rename the "
                "column of the file"
            )
        levels[name] = item

    node.problems.each(node.items if isinstance(node, ListNode) else (), read_level)
    return levels


def _lowest(lists: Sequence[LevelNodes]) -> str:
    return list(lists[0])[-1]


def _above(lists: Sequence[LevelNodes]) -> dict[str, list[str]]:
    """Return the levels right above each level."""
    above: dict[str, list[str]] = {}
    for levels in lists:
        for name, parent in zip(levels, [None, *levels], strict=False):
            above.setdefault(name, []).extend([] if parent is None else [parent])
    return above


def hierarchical(
    lines: Sequence[FileLine], lists: Sequence[LevelNodes], decimal: str, *, column: str
) -> Categorical:
    """Return the kind of column whose values are the lowest level of a file's hierarchies.

    Args:
        lines: of the file.
        lists: the levels that count, the lowest last in each.
        decimal: the decimal mark of the data.
        column: what the column is called.
    """
    header, problems = lines[0], lines[0].problems
    if len(lines) < 2:
        raise header.mistake(
            "this file has one line, which names the columns; write a value a line below it"
        )
    nodes = {level: node for levels in lists for level, node in levels.items()}
    places = _places(header, nodes)
    body = even(lines)
    order = TopologicalSorter(_above(lists)).static_order()
    columns = dict(
        problems.each(order, lambda level: (level, _Column(level, body, *places[level])))
    )
    first: dict[tuple[str, ...], str] = {}
    for level, of_level in columns.items():
        other = first.setdefault(tuple(of_level.codes), level)
        if other != level:
            nodes[level].note(
                f"the columns {quoted(other)} and {quoted(level)} are the same in every line, so "
                "that they are one level; leave one of them out"
            )
    for child, parents in _above(lists).items():
        for parent in dict.fromkeys(parents):
            with problems.collected():
                _check_nested(columns[child], columns[parent])
    values = columns.pop(_lowest(lists))
    kind = categorical(values.listed(), decimal, column=column, one_label_each=False)
    lowest = HierarchyLevel(values.name, kind.values, kind.labels, tuple(range(len(kind.values))))
    levels = (*(groups.level() for groups in columns.values()), lowest)
    return Categorical(kind.values, kind.labels, kind.also, levels)


def _places(header: FileLine, nodes: LevelNodes) -> dict[str, tuple[int, int | None]]:
    """Return the columns of each level's codes and labels, None where it has no labels."""
    heads = header.cells

    def read_level(name: str) -> tuple[str, tuple[int, int | None]]:
        label = f"{name}{_LABEL_END}"
        if name not in heads:
            near = nearest(name, heads)
            hint = "" if near is None else f"; did you mean {quoted(near)}?"
            raise nodes[name].mistake(
                f"{quoted(name)} is no column of {quoted(header.place.file)}{hint}"
            )
        for head in (name, label):
            if heads.count(head) > 1:
                raise header.mistake(f"two columns are called {quoted(head)}; rename one of them")
        return name, (heads.index(name), heads.index(label) if label in heads else None)

    return dict(header.problems.each(nodes, read_level))


class _Column:
    """The groups of one level, as the lines of the file have them."""

    def __init__(
        self, name: str, lines: Sequence[FileLine], place: int, labels: int | None
    ) -> None:
        self.name, self.lines = name, lines
        self.codes = lines[0].problems.each(lines, lambda line: self._code(line, line.cells[place]))
        self.labels = [line.cells[labels] if labels is not None else "" for line in lines]

    def _code(self, line: FileLine, code: str) -> str:
        if not code:
            raise line.mistake(
                f"this line has no {quoted(self.name)}; write its code, or one of your own, such "
                "as none, for all that lie in none"
            )
        return code

    def listed(self) -> Iterator[ListedValue]:
        """Yield a value for every line."""
        for line, code, label in zip(self.lines, self.codes, self.labels, strict=True):
            yield ListedValue(line, label or code, ((line, code),))

    def level(self) -> HierarchyLevel:
        """Return the level, of a group for every code."""
        first: dict[str, int] = {}
        group_of, numbers = [], dict[ExactNumber, str]()
        for row, code in enumerate(self.codes):
            if code not in first:
                with self.lines[row].problems.collected():
                    self._check_number(row, code, numbers)
            first.setdefault(code, row)
            if self.labels[row] != self.labels[first[code]]:
                self.lines[row].note(
                    f"this {self.name} has another label in line {self._line(first[code])}; keep "
                    "one label"
                )
        place_of = {code: place for place, code in enumerate(first)}
        group_of = [place_of[code] for code in self.codes]
        labels = tuple(self.labels[row] or code for code, row in first.items())
        return HierarchyLevel(self.name, tuple(first), labels, tuple(group_of))

    def _check_number(self, row: int, code: str, numbers: dict[ExactNumber, str]) -> None:
        """Refuse a code that is another one's number: a spec may write it in either form."""
        exact = number(code)
        if exact is not None and numbers.setdefault(exact, code) != code:
            raise self.lines[row].mistake(
                f"this {self.name} is the same number as one further up, written otherwise; write "
                "one code for one group"
            )

    def _line(self, row: int) -> int:
        return self.lines[row].place.line


def _check_nested(child: _Column, parent: _Column) -> None:
    """Refuse a group of a level that lies in two groups of the level above; the first of them."""
    first: dict[str, int] = {}
    crossing: dict[str, int] = {}
    for row, code in enumerate(child.codes):
        before = first.setdefault(code, row)
        if parent.codes[before] != parent.codes[row]:
            crossing.setdefault(code, row)
    if not crossing:
        return
    code, row = next(iter(crossing.items()))
    others = f", and {len(crossing) - 1:,} more like it" if len(crossing) > 1 else ""
    raise child.lines[row].mistake(
        f"this {child.name} lies in another {parent.name} in line "
        f"{child.lines[first[code]].place.line}{others}; correct the line, give every {child.name} "
        "a code of its own, such as 48001 for 001 of 48, or list levels that do not nest apart, "
        "as in `levels: [[state, tract], [metro, tract]]`"
    )


_FEWER = "ask for fewer levels, or for part of them with `within`"


def level_of(name: str, attribute: Attribute) -> HierarchyLevel | None:
    """Return the level of an attribute's hierarchy that has a name; None where none has."""
    return next((level for level in attribute.levels if level.name == name), None)


def read_level(
    node: Node, within: Sequence[tuple[TextNode, Node]] | None, attribute: Attribute
) -> GroupSet | IdentitySet:
    """Return the set that asks for every group of a level.

    Args:
        node: the level's name.
        within: levels, each with one or several of its groups: only what lies in one of them, of
            every level, is asked for. None: everything.
        attribute: whose hierarchy it is.
    """
    name = TextForm("the name of a level").read(node)
    level = _known_level(node, name, attribute)
    if within is None and level is attribute.levels[-1]:
        return IdentitySet.of(attribute)
    groups: Sequence[int] = range(len(level.codes))
    for key, value in within or ():
        with key.problems.collected():
            groups = _lying_in(groups, level, key, value, attribute)
    if not groups:
        raise node.mistake(
            f"no {level.name} of {quoted(attribute.name)} lies in all that `within` names; name "
            "fewer levels there"
        )
    return _group_set(groups, level, attribute, node)


def is_by_level(node: Node, attribute: Attribute) -> bool:
    """Return whether a node names a value by level, as {state: 48} does, or tries to."""
    return isinstance(node, MapNode) and any(
        level_of(key.text, attribute) for key, _ in node.entries
    )


def read_group(node: Node, attribute: Attribute) -> GroupSet:
    """Return the set that asks for one group, {state: 48}."""
    if not isinstance(node, MapNode) or len(node.entries) != 1:
        raise node.mistake(
            f"expected one group of {quoted(attribute.name)} such as {{{attribute.levels[0].name}: "
            f"code}}, found {described(node)}; name others as further values"
        )
    key, value = node.entries[0]
    level = _known_level(key, key.text, attribute)
    group = _named_group(value, level, attribute)
    return _group_set([group], level, attribute, node)


def naming_levels(word: str, levels: Iterable[HierarchyLevel]) -> str:
    """Return how to name a group that has a code or label; nothing where no level has such."""
    for level in levels:
        if _find(word, level):
            return f"; as a {level.name}, write {{{level.name}: {word}}}"
    return ""


def _known_level(node: Node, name: str, attribute: Attribute) -> HierarchyLevel:
    level = level_of(name, attribute)
    if level is None:
        names = [known.name for known in attribute.levels]
        hint = suggestion(name, names) or "; declare its `hierarchy` and `levels` in the domain"
        raise node.mistake(f"{quoted(name)} is no level of {quoted(attribute.name)}{hint}")
    node.problems.levels_named.add((attribute.name, level.name))
    return level


def _group_set(
    groups: Sequence[int], level: HierarchyLevel, attribute: Attribute, node: Node
) -> GroupSet:
    node.problems.count_codes(len(groups), level.name, node.place, remedy=_FEWER)
    return GroupSet(
        attribute.size,
        tuple((level.labels[group], level.members[group]) for group in groups),
        tuple((level.name, level.codes[group]) for group in groups),
    )


def _lying_in(
    groups: Sequence[int], level: HierarchyLevel, key: TextNode, value: Node, attribute: Attribute
) -> list[int]:
    """Return those of a level's groups that lie in one of the groups named of another level."""
    outer = _known_level(key, key.text, attribute)
    outer_of: dict[int, int] = {}
    for group, other in zip(level.group_of, outer.group_of, strict=True):
        if outer_of.setdefault(group, other) != other:
            raise key.mistake(
                f"the {level.name} {quoted(level.codes[group])} lies in more than one "
                f"{outer.name}; name a level that holds every {level.name} whole"
            )
    nodes: Sequence[Node] = (value,)
    if isinstance(value, ListNode):
        nodes = ListOf(f"groups of {outer.name}", ref("value")).read(value)
    named = value.problems.each(nodes, lambda item: _named_group(item, outer, attribute))
    return [group for group in groups if outer_of[group] in named]


def _named_group(node: Node, level: HierarchyLevel, attribute: Attribute) -> int:
    """Return the one group of a level that a node names."""
    word = TextForm(f"the code or label of a {level.name}").read(node)
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
