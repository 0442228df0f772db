"""Predicate sets and conditions of a spec, from the attribute's own values to its codes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dpquery.spec.domain import Attribute, Bins, Boolean, Categorical, Column, Integers
from dpquery.spec.predicates import (
    AllRangesSet,
    GroupSet,
    IdentitySet,
    IntervalSet,
    PredicateSet,
    PrefixSet,
    StackedSet,
    TotalSet,
    WidthSet,
)
from dpquery.spec.problems import Problems, UnreadableError, listed, quoted, suggestion
from dpquery.spec.reading import (
    choice,
    described,
    entries,
    fields,
    items,
    only_one,
    pair,
    real,
    text,
    whole,
)
from dpquery.spec.source import ListNode, MapNode, Node, TextNode

SET_WORDS = ("identity", "total", "prefix", "all-ranges", "identity+total")
CONDITIONS = ("is", "in", "between")
SET_KINDS = ("width", "ranges", "groups", *CONDITIONS)

_WORDS_OF_BOOLEAN = {"no": 0, "false": 0, "yes": 1, "true": 1}

_RANGES = "write a range as {between: [first, last]}, or several under `ranges`"

# A label and the codes that it stands for, sorted.
_Entry = tuple[str, tuple[int, ...]]


def read_set(node: Node, attribute: Attribute, *, problems: Problems) -> PredicateSet:
    """Return the predicate set that a node asks of an attribute; a list stacks several."""
    if not isinstance(node, ListNode):
        return _one_set(node, attribute, problems)
    parts: list[PredicateSet] = []
    found = items(node, "predicate sets to stack")
    read = 0
    for own in found:
        with problems.collected():
            part = _one_set(own, attribute, problems)
            parts += part.parts if isinstance(part, StackedSet) else (part,)
            read += 1
    if read < len(found):
        raise UnreadableError(None)
    return parts[0] if len(parts) == 1 else StackedSet(attribute.size, tuple(parts))


def read_condition(node: Node, attribute: Attribute, *, problems: Problems) -> PredicateSet:
    """Return a set of one query: a bare value, {is: v}, {in: [v, ...]} or {between: [a, b]}."""
    what = f"a condition on {quoted(attribute.name)}"
    if isinstance(node, TextNode):
        return _condition("is", node, attribute, problems)
    if isinstance(node, ListNode):
        raise UnreadableError(
            node.place, f"expected {what}, found {described(node)}; write {{in: [...]}}"
        )
    given = fields(node, what, problems=problems, optional=CONDITIONS)
    return _condition(*only_one(given, node, what, kinds=CONDITIONS), attribute, problems)


def read_ranges(node: Node, attribute: Attribute, *, problems: Problems) -> PredicateSet:
    """Return a set of ranges: all, prefix, {width: n} or a list of ranges [first, last]."""
    what = f"ranges of {quoted(attribute.name)}"
    _demand_order(node, attribute, "a range")
    if isinstance(node, ListNode):
        return _ranges(node, attribute, problems)
    if isinstance(node, MapNode):
        given = fields(node, what, problems=problems, required=("width",))
        return _widths(only_one(given, node, what, kinds=("width",))[1], attribute)
    if choice(node, what, ("all", "prefix")) == "all":
        return AllRangesSet(attribute.size, attribute.length)
    return PrefixSet(attribute.size, attribute.length)


def _one_set(node: Node, attribute: Attribute, problems: Problems) -> PredicateSet:
    what = f"a predicate set of {quoted(attribute.name)}"
    if isinstance(node, MapNode):
        given = fields(node, what, problems=problems, optional=SET_KINDS)
        kind, own = only_one(given, node, what, kinds=SET_KINDS)
        if kind in CONDITIONS:
            return _condition(kind, own, attribute, problems)
        if kind == "groups":
            return _groups(own, attribute, problems)
        _demand_order(node, attribute, kind)
        return _widths(own, attribute) if kind == "width" else _ranges(own, attribute, problems)
    word = text(node, f"{what}: {listed((*SET_WORDS, *SET_KINDS))}")
    size, length = attribute.size, attribute.length
    match word:
        case "identity":
            return IdentitySet(size)
        case "total":
            return TotalSet(size)
        case "identity+total":
            return StackedSet(size, (IdentitySet(size), TotalSet(size)))
        case "prefix":
            _demand_order(node, attribute, word)
            return PrefixSet(size, length)
        case "all-ranges":
            _demand_order(node, attribute, word)
            return AllRangesSet(size, length)
        case _:
            hint = suggestion(word, (*SET_WORDS, "{is: value}"))
            raise UnreadableError(node.place, f"{quoted(word)} is not {what}{hint}")


def _demand_order(node: Node, attribute: Attribute, kind: str) -> None:
    if attribute.merged:
        raise UnreadableError(
            node.place,
            f"the merged attribute {quoted(attribute.name)} has no order, which {kind} needs; use "
            "identity or groups",
        )


def _widths(node: Node, attribute: Attribute) -> WidthSet:
    width = whole(node, "the width")
    if not 1 <= width <= attribute.length:
        raise UnreadableError(
            node.place,
            f"the width {width} does not fit {quoted(attribute.name)}; expected 1 to "
            f"{attribute.length}, its number of ordered values",
        )
    return WidthSet(attribute.size, attribute.length, width)


def _ranges(node: Node, attribute: Attribute, problems: Problems) -> IntervalSet:
    found = items(node, "ranges [first, last]")
    bounds = []
    for own in found:
        with problems.collected():
            bounds.append(_pair(own, _only_column(attribute)))
    if len(bounds) < len(found):
        raise UnreadableError(None)
    return IntervalSet(attribute.size, tuple(bounds))


def _groups(node: Node, attribute: Attribute, problems: Problems) -> GroupSet:
    found = entries(node, "groups, labels with their values")
    if not found:
        raise UnreadableError(node.place, "no group is given; write {groups: {label: [values]}}")
    groups: list[_Entry] = []
    for key, values in found:
        with problems.collected():
            if not key.text.strip():
                raise UnreadableError(key.place, "a group needs a label; write one")
            codes = _union(_entries(values, attribute, problems))
            groups.append((key.text, codes))
    if len(groups) < len(found):
        raise UnreadableError(None)
    return GroupSet(attribute.size, tuple(groups))


def _condition(
    kind: str, node: Node, attribute: Attribute, problems: Problems
) -> GroupSet | IntervalSet:
    match kind:
        case "between":
            _demand_order(node, attribute, kind)
            return IntervalSet(attribute.size, (_pair(node, _only_column(attribute)),))
        case "is":
            if isinstance(node, ListNode):
                raise UnreadableError(
                    node.place, "`is` takes one value; write {in: [...]} or {between: [...]}"
                )
            return GroupSet(attribute.size, (_entry(node, attribute, problems),))
        case _:
            found = _entries(node, attribute, problems)
            label = ", ".join(own for own, _ in found)
            return GroupSet(attribute.size, ((label, _union(found)),))


def _entries(node: Node, attribute: Attribute, problems: Problems) -> list[_Entry]:
    """Return the entries of a list; whatever can be said about each of them is reported."""
    found = items(node, f"values of {quoted(attribute.name)}")
    read = []
    for own in found:
        with problems.collected():
            read.append(_entry(own, attribute, problems))
    if len(read) < len(found):
        raise UnreadableError(None)
    return read


def _union(found: Sequence[_Entry]) -> tuple[int, ...]:
    if len(found) == 1:
        return found[0][1]
    return tuple(sorted({code for _, codes in found for code in codes}))


def _entry(node: Node, attribute: Attribute, problems: Problems) -> _Entry:
    """Return a value, a range of values, or a condition on the columns of a merged attribute."""
    if not attribute.merged:
        return _column_entry(node, _only_column(attribute), problems)
    return _merged_entry(node, attribute, problems)


def _merged_entry(node: Node, attribute: Attribute, problems: Problems) -> _Entry:
    found = entries(
        node, f"conditions on the columns of {quoted(attribute.name)} such as {{column: value}}"
    )
    joint = " and "
    if len(found) == 1 and found[0][0].text == "any" and isinstance(found[0][1], MapNode):
        found, joint = found[0][1].entries, " or "
    if not found:
        raise UnreadableError(node.place, "no column is named; name at least one")
    columns = {column.name: column for column in attribute.columns}
    read: dict[str, _Entry] = {}
    for key, value in found:
        with problems.collected():
            if key.text not in columns:
                raise UnreadableError(
                    key.place,
                    f"{quoted(attribute.name)} has no column {quoted(key.text)}"
                    f"{suggestion(key.text, columns)}",
                )
            read[key.text] = _column_entry(value, columns[key.text], problems)
    if len(read) < len(found):
        raise UnreadableError(None)
    label = joint.join(f"{name}={own}" for name, (own, _) in read.items())
    parts = [read] if joint == " and " else [{name: own} for name, own in read.items()]
    held = sum(_combinations(attribute.columns, own) for own in parts)
    problems.count_codes(held, label, node.place, remedy="ask for fewer groups, or identity")
    if joint == " and ":
        return label, _combined(attribute.columns, read)
    return label, tuple(sorted(set().union(*(_combined(attribute.columns, own) for own in parts))))


def _only_column(attribute: Attribute) -> Column:
    """Return the one column of an attribute, under the name that the spec's author knows it by."""
    return replace(attribute.columns[0], name=attribute.name)


def _combinations(columns: Sequence[Column], demanded: Mapping[str, _Entry]) -> int:
    """Return how many codes `_combined` returns."""
    return math.prod(
        len(demanded[own.name][1]) if own.name in demanded else own.size for own in columns
    )


def _combined(columns: Sequence[Column], demanded: Mapping[str, _Entry]) -> tuple[int, ...]:
    """Return the merged codes whose columns are as demanded, any where nothing is."""
    codes = [0]
    for column in columns:
        _, own = demanded.get(column.name, ("", tuple(range(column.size))))
        codes = [code * column.size + part for code in codes for part in own]
    return tuple(codes)


def _column_entry(node: Node, column: Column, problems: Problems) -> _Entry:
    if isinstance(node, ListNode):
        first, last = _pair(node, column)
        label = column.range_label(first, last)
        problems.count_codes(last - first + 1, label, node.place, remedy=_RANGES)
        return label, tuple(range(first, last + 1))
    code = _code(node, column)
    label = column.label(code)
    problems.count_codes(1, label, node.place, remedy=_RANGES)
    return label, (code,)


def _pair(node: Node, column: Column) -> tuple[int, int]:
    """Return the first and last code of a range [first, last] of a column's own values."""
    low, high = pair(node, f"a range of {quoted(column.name)}, [first, last]")
    first, last = _end(low, column), _end(high, column)
    if isinstance(column.kind, Bins):
        last -= 1  # the range ends below its upper edge
    if last < first:
        raise UnreadableError(
            node.place,
            f"the range from {described(low)} to {described(high)} is empty; put the lower end "
            "first",
        )
    return first, last


def _end(node: Node, column: Column) -> int:
    """Return the code of one end of a range; for bins, the position of the edge."""
    if not isinstance(column.kind, Bins):
        code = _code(node, column)
        if code == column.length:
            raise UnreadableError(node.place, "`other` lies in no range; add it as a value")
        return code
    edges = column.kind.edges
    edge = real(node, f"an edge of {quoted(column.name)}")
    if edge not in edges:
        label = column.range_label(0, column.length - 1)
        near = min(edges, key=lambda own: abs(own - edge))
        raise UnreadableError(
            node.place,
            f"{described(node)} is not an edge of {quoted(column.name)}, whose bins cover {label}; "
            f"the nearest edge is {near:.12g}",
        )
    return edges.index(edge)


def _code(node: Node, column: Column) -> int:
    """Return the code of one value of a column."""
    name = quoted(column.name)
    word = text(node, f"a value of {name}")
    if column.other and word == "other":
        return column.length
    match column.kind:
        case Integers(low=low, high=high):
            value = whole(node, f"a value of {name}")
            if not low <= value <= high:
                raise UnreadableError(
                    node.place, f"{value} is outside {name}, which holds {low} to {high}"
                )
            return value - low
        case Bins():
            raise UnreadableError(
                node.place, f"{name} holds bins; give a range of edges, [from, below]"
            )
        case Categorical(codes=codes):
            if len(codes.get(word, ())) > 1:
                raise UnreadableError(
                    node.place,
                    f"{quoted(word)} is a value of {name} and the label of another one; change "
                    "that label",
                )
            if word in codes:
                return codes[word][0]
            raise UnreadableError(
                node.place, f"{quoted(word)} is not a value of {name}{suggestion(word, codes)}"
            )
        case Boolean(true=true, false=false):
            known = _WORDS_OF_BOOLEAN | {own.casefold(): 0 for own in false}
            known |= {own.casefold(): 1 for own in true}
            if word.casefold() in known:
                return known[word.casefold()]
            raise UnreadableError(
                node.place, f"{quoted(word)} is not a value of {name}; expected yes or no"
            )
