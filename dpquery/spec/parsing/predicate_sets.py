"""From a question on one attribute to a predicate set.

What the items of a workload may refer to: the declared attributes, by name and once each.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from dpquery.limits import MAX_TABLE_QUERIES, MAX_TABLES
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Column, Dates, Integers
from dpquery.spec.numbers import number
from dpquery.spec.parsing.forms import (
    ByName,
    ListOf,
    PairOf,
    Period,
    Real,
    TextForm,
    Whole,
    Word,
    described,
    ref,
)
from dpquery.spec.parsing.hierarchies import (
    is_by_level,
    level_of,
    naming_levels,
    read_group,
    read_level,
)
from dpquery.spec.parsing.item_fields import (
    RANGE_WORDS,
    SET_WORDS,
    SPANS,
    ConditionFields,
    RangeFields,
    SetFields,
)
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode
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
from dpquery.spec.problems import UnreadableError, listed, quoted, suggestion
from dpquery.spec.spec import SummedValues, Table

_WORDS_OF_BOOLEAN = {"no": 0, "false": 0, "yes": 1, "true": 1}

_RANGES = "write a range as {between: [first, last]}, or several under `ranges`"

# A label and the codes that it stands for, sorted.
_Entry = tuple[str, tuple[int, ...]]


def read_set(node: Node, attribute: Attribute) -> PredicateSet:
    """Return the predicate set that a node asks of an attribute; a list stacks several."""
    if not isinstance(node, ListNode):
        return _one_set(node, attribute)
    listed_sets = ListOf("predicate sets to stack", ref("one_set")).read(node)
    parts: list[PredicateSet] = []
    for part in node.problems.each(listed_sets, lambda set_node: _one_set(set_node, attribute)):
        parts += part.parts if isinstance(part, StackedSet) else (part,)
    return parts[0] if len(parts) == 1 else StackedSet(attribute.size, tuple(parts))


def column_taken(name: str) -> str:
    """Return the message on an attribute that is called as a column which the release adds."""
    return (
        f"{quoted(name)} is the name of a column that the release adds; name the attribute "
        f"otherwise and give its header as {{column: {name}}}"
    )


def read_choosing(node: Node, attribute: Attribute) -> PredicateSet:
    """Return a predicate set other than the total alone."""
    predicates = read_set(node, attribute)
    if isinstance(predicates, TotalSet):
        raise node.mistake(
            f"every record has the total of {quoted(attribute.name)}, so it asks nothing "
            "here; leave the attribute out"
        )
    return predicates


def read_condition(node: Node, attribute: Attribute) -> PredicateSet:
    """Return a set of one query: a bare value, {is: v}, {in: [v, ...]} or {between: [a, b]}."""
    what = f"a condition on {quoted(attribute.name)}"
    if is_by_level(node, attribute):
        return read_group(node, attribute)
    if isinstance(node, TextNode):
        return GroupSet(attribute.size, (_entry(node, attribute),))
    if isinstance(node, ListNode):
        raise node.mistake(f"expected {what}, found {described(node)}; write {{in: [...]}}")
    return _condition(ConditionFields.read(node, what=what), attribute)


def read_ranges(node: Node, attribute: Attribute) -> PredicateSet:
    """Return a set of ranges: all, prefix, {width: n} or a list of ranges [first, last]."""
    what = f"ranges of {quoted(attribute.name)}"
    _demand_order(node, attribute, "a range")
    if isinstance(node, ListNode):
        return _ranges(SPANS.read(node), attribute)
    if isinstance(node, MapNode):
        given = RangeFields.read(node, what=what)
        return _widths(given.width, given.node("width"), attribute)
    if Word(what, tuple(RANGE_WORDS)).read(node) == "all":
        return AllRangesSet(attribute.size, attribute.length)
    return PrefixSet(attribute.size, attribute.length)


_BY_VALUE = ("{is: value}", "{groups: {label: [values]}}")


def _one_set(node: Node, attribute: Attribute) -> PredicateSet:
    what = f"a predicate set of {quoted(attribute.name)}"
    if isinstance(node, MapNode):
        if is_by_level(node, attribute):
            return read_group(node, attribute)
        given = SetFields.read(node, what=what)
        if "within" in given and given.chosen != "level":
            message = "`within` goes with `level`; to name a group itself, write {level: code}"
            raise given.node("within").mistake(message)
        match given.chosen:
            case "groups":
                return _groups(given.groups, attribute)
            case "level":
                return read_level(given.node("level"), given.within, attribute)
            case "width":
                _demand_order(node, attribute, "width")
                return _widths(given.width, given.node("width"), attribute)
            case "ranges":
                _demand_order(node, attribute, "ranges")
                return _ranges(given.ranges, attribute)
            case _:
                return _condition(given, attribute)
    if isinstance(node, TextNode) and node.empty:
        raise node.mistake(f"{what} is missing; write one, as in `{attribute.name}: identity`")
    word = TextForm(f"{what}: {listed((*SET_WORDS, *SetFields.kinds))}").read(node)
    if level_of(word, attribute) is not None:
        return read_level(node, None, attribute)
    if word in ("prefix", "all-ranges"):
        _demand_order(node, attribute, word)
    size, length = attribute.size, attribute.length
    match word:
        case "identity":
            return IdentitySet.of(attribute)
        case "total":
            return TotalSet(size)
        case "identity+total":
            return StackedSet(size, (IdentitySet.of(attribute), TotalSet(size)))
        case "prefix":
            return PrefixSet(size, length)
        case "all-ranges":
            return AllRangesSet(size, length)
        case _:
            levels = [level.name for level in attribute.levels]
            turned = "+".join(word.split("+")[::-1])
            near = turned if turned in SET_WORDS else word
            hint = suggestion(near, (*SET_WORDS, *levels, *_BY_VALUE))
            if _is_value(node, attribute):
                hint = f", but one of its values; write {{is: {word}}}"
            raise node.mistake(f"{quoted(word)} is not {what}{hint}")


def _is_value(node: Node, attribute: Attribute) -> bool:
    if attribute.merged:
        return False
    try:
        _codes(node, _only_column(attribute))
    except UnreadableError:
        return False
    return True


def _demand_order(node: Node, attribute: Attribute, kind: str) -> None:
    if attribute.merged:
        raise node.mistake(
            f"the merged attribute {quoted(attribute.name)} has no order, which {kind} needs; use "
            "identity or groups"
        )


def _widths(width: int, node: Node, attribute: Attribute) -> WidthSet:
    if width > attribute.length:
        raise node.mistake(
            f"the width {width} does not fit {quoted(attribute.name)}; expected 1 to "
            f"{attribute.length}, its number of ordered values"
        )
    return WidthSet(attribute.size, attribute.length, width)


def _ranges(spans: Sequence[Node], attribute: Attribute) -> IntervalSet:
    column = _only_column(attribute)
    bounds = spans[0].problems.each(spans, lambda span: _pair(span, column))
    return IntervalSet(attribute.size, tuple(bounds))


def _groups(given: Sequence[tuple[TextNode, Node]], attribute: Attribute) -> GroupSet:
    def read_group(entry: tuple[TextNode, Node]) -> _Entry:
        key, values = entry
        if not key.text.strip():
            raise key.mistake("a group needs a label; write one")
        return key.text, _union(_entries(values, attribute))

    return GroupSet(attribute.size, tuple(given[0][0].problems.each(given, read_group)))


def _condition(given: ConditionFields, attribute: Attribute) -> GroupSet | IntervalSet:
    match given.chosen:
        case "between":
            _demand_order(given.node("between"), attribute, "between")
            bounds = _pair(given.between, _only_column(attribute))
            return IntervalSet(attribute.size, (bounds,))
        case "is":
            if isinstance(given.is_, ListNode):
                raise given.is_.mistake(
                    "`is` takes one value; write {in: [...]} or {between: [...]}"
                )
            if is_by_level(given.is_, attribute):
                return read_group(given.is_, attribute)
            return GroupSet(attribute.size, (_entry(given.is_, attribute),))
        case _:
            entries = _entries(given.in_, attribute)
            label = ", ".join(name for name, _ in entries)
            return GroupSet(attribute.size, ((label, _union(entries)),))


def _entries(node: Node, attribute: Attribute) -> list[_Entry]:
    """Return the entries of a list; whatever can be said about each of them is reported."""
    nodes = ListOf(f"values of {quoted(attribute.name)}", ref("entry")).read(node)
    return node.problems.each(nodes, lambda item: _entry(item, attribute))


def _union(entries: Sequence[_Entry]) -> tuple[int, ...]:
    if len(entries) == 1:
        return entries[0][1]
    return tuple(sorted({code for _, codes in entries for code in codes}))


def _entry(node: Node, attribute: Attribute) -> _Entry:
    """Return a value, a range of values, or a condition on the columns of a merged attribute."""
    if is_by_level(node, attribute):
        return read_group(node, attribute).groups[0]
    if not attribute.merged:
        return _column_entry(node, _only_column(attribute))
    return _merged_entry(node, attribute)


def _merged_entry(node: Node, attribute: Attribute) -> _Entry:
    what = f"conditions on the columns of {quoted(attribute.name)} such as {{column: value}}"
    entries = ByName(what, ref("entry")).read(node)
    joint = " and "
    if len(entries) == 1 and entries[0][0].text == "any" and isinstance(entries[0][1], MapNode):
        entries, joint = entries[0][1].entries, " or "
    if not entries:
        raise node.mistake("no column is named; name at least one")
    columns = {column.name: column for column in attribute.columns}

    def read_column(entry: tuple[TextNode, Node]) -> tuple[str, _Entry]:
        key, value = entry
        if key.text not in columns:
            raise key.mistake(
                f"{quoted(attribute.name)} has no column {quoted(key.text)}"
                f"{suggestion(key.text, columns)}"
            )
        return key.text, _column_entry(value, columns[key.text])

    demanded = dict(node.problems.each(entries, read_column))
    label = joint.join(f"{name}={value_label}" for name, (value_label, _) in demanded.items())
    parts = [demanded] if joint == " and " else [{name: entry} for name, entry in demanded.items()]
    count = sum(
        math.prod(len(asked[c.name][1]) if c.name in asked else c.size for c in attribute.columns)
        for asked in parts
    )
    node.problems.count_codes(count, label, node.place, remedy="ask for fewer groups, or identity")
    if joint == " and ":
        return label, _combined(attribute.columns, demanded)
    return label, tuple(
        sorted(set().union(*(_combined(attribute.columns, conditions) for conditions in parts)))
    )


def _only_column(attribute: Attribute) -> Column:
    """Return the one column of an attribute, under the name that the spec's author knows it by."""
    return replace(attribute.columns[0], name=attribute.name)


def _combined(columns: Sequence[Column], demanded: Mapping[str, _Entry]) -> tuple[int, ...]:
    """Return the merged codes whose columns are as demanded, any where nothing is."""
    codes = [0]
    for column in columns:
        _, column_codes = demanded.get(column.name, ("", tuple(range(column.size))))
        codes = [code * column.size + part for code in codes for part in column_codes]
    return tuple(codes)


def _column_entry(node: Node, column: Column) -> _Entry:
    if isinstance(node, ListNode):
        first, last = _pair(node, column)
        label = column.range_label(first, last)
    else:
        first, last = _codes(node, column)
        label = column.label(first) if first == last else described(node).strip("'")
    node.problems.count_codes(last - first + 1, label, node.place, remedy=_RANGES)
    return label, tuple(range(first, last + 1))


def _pair(node: Node, column: Column) -> tuple[int, int]:
    form = PairOf(f"a range of {quoted(column.name)}, [first, last]", ref("value"), ref("value"))
    low, high = form.read(node)
    first, last = node.problems.each(
        ((low, False), (high, True)), lambda end: _end(end[0], column, upper=end[1])
    )
    if last < first:
        raise node.mistake(
            f"the range from {described(low)} to {described(high)} is empty; put the lower end "
            "first"
        )
    return first, last


def _end(node: Node, column: Column, *, upper: bool) -> int:
    match column.kind:
        case Bins(edges=edges):
            return _edge(node, column, edges) - upper  # it ends below its upper edge
        case Dates() if not _is_other(node, column):
            return _date_code(node, column.name, column.kind, upper=upper)
    code, _ = _codes(node, column)
    if code == column.length:
        raise node.mistake("`other` lies in no range; add it as a value")
    return code


def _edge(node: Node, column: Column, edges: Sequence[float]) -> int:
    edge = Real(f"an edge of {quoted(column.name)}").read(node)
    if edge not in edges:
        label = column.range_label(0, column.length - 1)
        near = min(edges, key=lambda candidate: abs(candidate - edge))
        raise node.mistake(
            f"{described(node)} is not an edge of {quoted(column.name)}, whose bins cover {label}; "
            f"the nearest edge is {near:.12g}"
        )
    return edges.index(edge)


def _date_code(node: Node, name: str, dates: Dates, *, upper: bool) -> int:
    """Return the code whose period begins, or ends, as the period does that a node names."""
    period = Period(f"a value of {quoted(name)}").read(node)
    first, last = max(period.first, dates.first), min(period.last, dates.last)
    if last < first:
        raise node.mistake(
            f"{described(node)} is outside {quoted(name)}, which holds {dates.first} to "
            f"{dates.last}"
        )
    code = dates.code(last if upper else first)
    start, end = max(dates.start(code), dates.first), min(dates.end(code), dates.last)
    if (last != end) if upper else (first != start):
        raise node.mistake(
            f"{described(node)} is part of the {dates.by} {dates.label(code)}, which "
            f"{quoted(name)} counts as one; write {dates.label(code)}"
        )
    return code


def declared_codes(node: TextNode, attribute: Attribute) -> tuple[int, int]:
    """Return the first and the last code of one declared value; bins are named by lower edge."""
    column = _only_column(attribute)
    if not isinstance(column.kind, Bins):
        return _codes(node, column)
    code = _edge(node, column, column.kind.edges[:-1])
    return code, code


def _is_other(node: Node, column: Column) -> bool:
    """Return whether a node names what is not declared; a mistake where that has no value."""
    if not isinstance(node, TextNode) or node.text.strip() != "other":
        return False
    if isinstance(column.kind, Categorical) and "other" in column.kind.codes:
        return False
    if column.other != "show":
        does = "only counts in totals" if column.other == "count" else "drops"
        raise node.mistake(
            f"{quoted(column.name)} {does} what is not declared, and has no value 'other'; give it "
            "`other: show` to ask for that"
        )
    return True


def _codes(node: Node, column: Column) -> tuple[int, int]:
    """Return the first and the last code of one value of a column; a month has many days."""
    if _is_other(node, column):
        return column.length, column.length
    if isinstance(column.kind, Dates):
        ends = (False, True)
        first, last = (_date_code(node, column.name, column.kind, upper=u) for u in ends)
        return first, last
    code = _code(node, column)
    return code, code


def _code(node: Node, column: Column) -> int:
    """Return the code of one declared value of a column that is not of dates."""
    name = quoted(column.name)
    word = TextForm(f"a value of {name}").read(node)
    match column.kind:
        case Integers(low=low, high=high):
            if word.startswith(("<", ">", "=")):
                raise node.mistake(
                    f"{quoted(word)} is no value of {name}; write a range, as in "
                    f"{{between: [{low}, {high}]}}"
                )
            value = Whole(f"a value of {name}").read(node)
            if not low <= value <= high:
                raise node.mistake(f"{value} is outside {name}, which holds {low} to {high}")
            return value - low
        case Bins():
            raise node.mistake(f"{name} holds bins; give a range of edges, [from, below]")
        case Categorical(codes=codes, numbers=numbers, levels=levels):
            if len(codes.get(word, ())) > 1 and levels:
                raise node.mistake(
                    f"{quoted(word)} stands for several values of {name}; write the code of one"
                )
            if len(codes.get(word, ())) > 1:
                raise node.mistake(
                    f"{quoted(word)} is a value of {name} and the label of another one; change "
                    "that label"
                )
            if word in codes:
                return codes[word][0]
            exact = number(word)
            if exact in numbers:
                return numbers[exact]
            hint = naming_levels(word, levels) or suggestion(word, codes)
            raise node.mistake(f"{quoted(word)} is not a value of {name}{hint}")
        case Boolean(true=true, false=false):
            known = _WORDS_OF_BOOLEAN | {text.casefold(): 0 for text in false}
            known |= {text.casefold(): 1 for text in true}
            if word.casefold() in known:
                return known[word.casefold()]
            raise node.mistake(f"{quoted(word)} is not a value of {name}; expected yes or no")
        case Dates():
            raise TypeError("a value of dates is a period")
        case _:
            assert_never(column.kind)


# Predicate sets by the position of their attribute.
Sets = dict[int, PredicateSet]
_ReadSet = Callable[[Node, Attribute], PredicateSet]


@dataclass(frozen=True, eq=False)
class Scope:
    """What the items of a workload may refer to."""

    # position and attribute by name; None where its declaration is at fault. Empty where the whole
    # domain is: then no name can be judged
    declared: Mapping[str, tuple[int, Attribute | None]]
    # position of `person_rows` and the attribute itself; None where the domain is a release's that
    # does not have it
    rows: tuple[int, Attribute] | None = None

    def person_rows(self, node: Node) -> tuple[int, Attribute]:
        """Return the position and the attribute of the rows of persons, asked for at a node."""
        if self.rows is None:
            raise node.mistake(
                "the release has not counted the rows of persons; ask for them in the spec of a "
                "release"
            )
        return self.rows

    def attribute(self, node: Node, among: Collection[str] = ()) -> tuple[int, Attribute]:
        """Return the position and the attribute that a node names; `among` are those to suggest."""
        name = TextForm("the name of an attribute").read(node)
        if not self.declared:
            raise UnreadableError(None)
        if name not in self.declared:
            hint = suggestion(name, among or self.declared)
            if name in SET_WORDS:
                hint = "; two sets of one attribute are joined by a plus: identity+total"
            raise node.mistake(f"unknown attribute {quoted(name)}{hint}")
        index, attribute = self.declared[name]
        if attribute is None:
            raise UnreadableError(None)
        return index, attribute

    def attributes(self, nodes: Iterable[Node], *, fixed: Collection[int]) -> dict[int, Attribute]:
        """Return the attributes of a list; none twice and none of `fixed`."""
        named: dict[int, Attribute] = {}

        nodes = list(nodes)
        for node in nodes:
            with node.problems.collected():
                index, attribute = self._free(node, taken=named, fixed=fixed)
                named[index] = attribute
        if len(named) < len(nodes):
            raise UnreadableError(None)
        return named

    def sets(
        self, entries: Iterable[tuple[TextNode, Node]], *, fixed: Collection[int], read: _ReadSet
    ) -> Sets:
        """Return a predicate set for every attribute that a mapping names."""
        sets: Sets = {}
        for key, value in entries:
            with key.problems.collected():
                index, attribute = self._free(key, taken=sets, fixed=fixed)
                sets[index] = read(value, attribute)
        return sets

    def varied(self, entries: Iterable[tuple[TextNode, Node]], *, fixed: Collection[int]) -> Sets:
        """Return the predicate sets of a mapping but for totals, which ask nothing of records."""
        sets = self.sets(entries, fixed=fixed, read=read_set)
        return {i: asked for i, asked in sets.items() if not isinstance(asked, TotalSet)}

    def _free(
        self, node: Node, *, taken: Collection[int], fixed: Collection[int]
    ) -> tuple[int, Attribute]:
        """Return the position and the attribute that a node names for the first time."""
        index, attribute = self.attribute(node)
        if index in taken or index in fixed:
            why = "`where` has it already" if index in fixed else "it is named already"
            raise node.mistake(
                f"attribute {quoted(attribute.name)} is repeated: {why}; name it once"
            )
        return index, attribute

    def over(self, nodes: Iterable[Node] | None, *, fixed: Collection[int]) -> dict[int, Attribute]:
        """Return the attributes to combine in the order named; all that are not fixed for None."""
        if nodes is not None:
            return self.attributes(nodes, fixed=fixed)
        declared = self.declared.values()
        return {
            i: attribute for i, attribute in declared if attribute is not None and i not in fixed
        }

    @property
    def complete(self) -> bool:
        """Whether every declared attribute is known: until then, how many there are is not."""
        return all(attribute is not None for _, attribute in self.declared.values())


def table(
    node: Node,
    axes: Sets,
    where: Sets,
    at_least: int | None = None,
    summed: SummedValues | None = None,
) -> Table:
    """Return a table, of at most MAX_TABLE_QUERIES queries."""
    new_table = Table(tuple(sorted(axes.items())), tuple(sorted(where.items())), at_least, summed)
    if new_table.size > MAX_TABLE_QUERIES:
        raise node.mistake(
            f"one table asks {new_table.size:,} queries, more than the limit of "
            f"{MAX_TABLE_QUERIES:,}; name fewer attributes or coarser sets"
        )
    return new_table


def limit_tables(count: int, node: Node) -> None:
    """Refuse more than MAX_TABLES tables."""
    if count > MAX_TABLES:
        raise node.mistake(
            f"this makes {count:,} tables or more, past the limit of {MAX_TABLES:,}; ask for fewer "
            "ways, or for fewer attributes with `over`"
        )
