"""The `domain` section of a spec: attributes, their columns and the values that these may hold."""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from dpquery.exceptions import SpecError
from dpquery.limits import MAX_CODES
from dpquery.spec.calendar import DateFormat
from dpquery.spec.columns import (
    Attribute,
    Bins,
    Boolean,
    Categorical,
    Column,
    ColumnKind,
    Dates,
    Integers,
    Other,
)
from dpquery.spec.numbers import NumberFormat, number
from dpquery.spec.parsing.fields import (
    EDGE,
    EDGES,
    AttributeFields,
    ColumnFields,
    DateFields,
    MergedFields,
    ValuesFileFields,
)
from dpquery.spec.parsing.forms import ByName, TextForm, described, ref
from dpquery.spec.parsing.hierarchies import hierarchical, level_lists
from dpquery.spec.parsing.listed_values import (
    FileLine,
    categorical,
    file_lines,
    read_lines,
    read_values,
)
from dpquery.spec.parsing.predicate_sets import column_taken
from dpquery.spec.parsing.yaml_nodes import MapNode, Node, TextNode
from dpquery.spec.problems import Place, UnreadableError, listed, meant_by, quoted

RELEASE_COLUMNS = frozenset(
    {"table", "query", "estimate", "std_error", "ci_low", "ci_high", "rel_error", "flag"}
    | {"nonnegative", "consistent", "thresholded", "integer", "graphical", "shrunk", "averaged"}
)


def read_domain(
    entries: Iterable[tuple[TextNode, Node]],
    read_file: Callable[[str], str],
    decimal: str = ".",
    *,
    other: Other,
) -> dict[str, Attribute | None]:
    """Return the declared attributes in file order; None for one whose mistakes are reported.

    Args:
        entries: name and declaration of each.
        read_file: returns the text of a value list; SpecError if it cannot.
        decimal: the decimal mark of the data.
        other: what other texts do in a column that does not say.
    """
    reader = _DomainReader(read_file, decimal, other)
    declared: dict[str, Attribute | None] = {}
    for key, value in entries:
        declared[key.text] = None
        with key.problems.collected():
            _check_name(key, declared)
            attribute = reader.attribute(key, value)
            for end, what, has in _ADDED:
                shorter, named = declared.get(key.text.removesuffix(end)), f"{key.text}{end}"
                before = key.text.endswith(end) and shorter is not None and has(shorter)
                if before or (has(attribute) and named in declared):
                    clash = key.text if before else named
                    raise key.mistake(
                        f"{quoted(clash)} is the column in which the release shows the {what} of "
                        f"{quoted(clash.removesuffix(end))}; name one of the attributes otherwise "
                        "and give its header under `column`"
                    )
            declared[key.text] = attribute
    return declared


def _check_name(key: TextNode, declared: Mapping[str, object]) -> None:
    """Refuse names that cannot head a column of the release, or would head two of them."""
    name = key.text
    if not name or name != name.strip() or len(name) > 100 or not name.isprintable():
        raise key.mistake(
            f"{quoted(name)} cannot name an attribute; write 1 to 100 characters on one line, "
            "with no space at either end"
        )
    ends = [name.removesuffix(end) for end in ("_from", "_to") if name.endswith(end)]
    ends += [other for other in declared if other in (f"{name}_from", f"{name}_to")]
    if name in RELEASE_COLUMNS or any(other != name and other in declared for other in ends):
        raise key.mistake(column_taken(name))


def _is_binned(attribute: Attribute) -> bool:
    return not attribute.merged and isinstance(attribute.columns[0].kind, Bins)


_ADDED: tuple[tuple[str, str, Callable[[Attribute], object]], ...] = (
    ("_code", "codes", lambda attribute: attribute.codes),
    ("_level", "levels", lambda attribute: attribute.levels),
    ("_below", "upper edges", _is_binned),
)
"""Ends of the columns beside some attributes, what these show, and whether an attribute has one."""


class _DomainReader:
    """Reads attributes one by one, and remembers which columns are taken."""

    def __init__(self, read_file: Callable[[str], str], decimal: str, other: Other) -> None:
        self._other: Other = other
        self._read_file = read_file
        self._decimal = decimal
        self._taken: dict[str, Place] = {}

    def attribute(self, key: TextNode, node: Node) -> Attribute:
        """Return one attribute: a column, or several merged."""
        if isinstance(node, MapNode) and any(
            entry_key.text == "merge" for entry_key, _ in node.entries
        ):
            attribute = Attribute(key.text, self._merged(key, node))
        else:
            attribute = Attribute(key.text, (self._column(key, node, AttributeFields),))
        if attribute.size > MAX_CODES:
            remedy = "declare bins or fewer values"
            declared = math.prod(column.length for column in attribute.columns)
            if attribute.merged and declared <= MAX_CODES:
                remedy = (
                    f"with `other: drop` its columns have no code for other texts, and it has "
                    f"{declared:,}; or declare them as attributes of their own"
                )
            raise node.mistake(
                f"attribute {quoted(key.text)} has {attribute.size:,} values, more than the "
                f"{MAX_CODES:,} that one may have; {remedy}"
            )
        return attribute

    def _merged(self, key: TextNode, node: Node) -> tuple[Column, ...]:
        what = f"the merged attribute {quoted(key.text)}"
        given = MergedFields.read(node, what=what)
        parts = ByName(f"the columns of {what}", ref("column")).read(given.merge)
        if len(parts) < 2:
            raise given.merge.mistake(f"{what} needs at least two columns")
        # A merged column goes by its header in conditions and labels: it has no second name.
        return tuple(key.problems.each(parts, lambda part: self._column(*part, ColumnFields)))

    def _column(self, key: TextNode, node: Node, fields: type[ColumnFields]) -> Column:
        if isinstance(node, TextNode) and node.text == "boolean":
            return Column(self._header(key), Boolean(), self._other)
        if not isinstance(node, MapNode):
            near = meant_by(node.text, ("boolean",)) if isinstance(node, TextNode) else None
            instead = "write it as in {values: [a, b]} or {range: [0, 99]}"
            raise node.mistake(
                f"expected what {quoted(key.text)} may hold, `boolean` or a mapping with "
                f"{listed((*fields.kinds, 'merge'))}, found {described(node)}; "
                f"{'did you mean boolean?' if near else instead}"
            )
        what = f"attribute {quoted(key.text)}"
        given = fields.read(node, what=what)
        if "levels" in given and "hierarchy" not in given:
            message = f"{what} has levels and no hierarchy; name its file under `hierarchy`"
            given.node("levels").note(message)
        header = given.node("column") if "column" in given else key
        name = node.problems.attempt(lambda: self._header(header))
        kind = self._kind(given, column=name or key.text)
        other = node.problems.attempt(lambda: given.other) or self._other
        if other == "show" and isinstance(kind, Categorical) and "other" in kind.labels:
            message = f"{what} has a value of its own that is shown as 'other'; label it otherwise"
            (given.node("other") if "other" in given else node).note(message)
        written = node.problems.attempt(lambda: self._number(given, kind))
        if name is None:
            raise UnreadableError(None)
        return Column(name, kind, other, written)

    def _number(self, given: ColumnFields, kind: ColumnKind) -> NumberFormat | None:
        """Return how the texts of a column write numbers, where that is said."""
        if given.number is None:
            return None
        if not isinstance(kind, Integers | Bins):
            raise given.node("number").mistake(
                "number says how the texts of a range or of bins are written; leave it out"
            )
        thousands, sign = given.number.thousands or "", given.number.sign or ""
        decimal = given.number.decimal or self._decimal
        if thousands == decimal:
            raise given.number.node("thousands").mistake(
                f"{quoted(decimal)} stands before decimals too; give `decimal` another mark"
            )
        if sign != sign.strip() or any(letter.isdigit() or letter in "+-" for letter in sign):
            raise given.number.node("sign").mistake(
                f"{quoted(sign)} cannot be told from numbers; write a sign without digits, plus, "
                "minus and spaces around it"
            )
        return NumberFormat(thousands, decimal, sign)

    def _header(self, node: Node) -> str:
        name = TextForm("a column's header").read(node)
        if name in self._taken:
            raise node.mistake(
                f"column {quoted(name)} is used twice, first in line {self._taken[name].line}; "
                "a column belongs to one attribute"
            )
        self._taken[name] = node.place
        return name

    def _kind(self, given: ColumnFields, *, column: str) -> ColumnKind:
        match given.chosen:
            case "range":
                return _integers(given)
            case "bins":
                return _bins(given.bins)
            case "boolean":
                true, false = given.boolean.true, given.boolean.false
                taken = {key for word in true for key in (word.casefold(), number(word))} - {None}
                both = [word for word in false if word.casefold() in taken or number(word) in taken]
                if both:
                    raise given.boolean.node().mistake(
                        f"{quoted(both[0])} would be both true and false; case does not count"
                    )
                return Boolean(true, false)
            case "values":
                return categorical(read_values(given.values), self._decimal, column=column)
            case "date":
                return _dates(given.date)
            case "hierarchy" if isinstance(given, AttributeFields):
                lists = level_lists(given)
                lines, _ = self._file(given.hierarchy, given.node("hierarchy"), "hierarchy")
                return hierarchical(lines, lists, self._decimal, column=column)
            case _:
                found_by = f" (`dpquery discover DATA --column {shlex.quote(column)}` can write it)"
                node = given.node("values_file")
                lines, mark = self._file(given.values_file, node, "values_file", found_by)
                values = read_lines(lines, column=column, delimiter=mark)
                return categorical(values, self._decimal, column=column)

    def _file(
        self, file: str | ValuesFileFields, node: Node, key: str, found_by: str = ""
    ) -> tuple[Sequence[FileLine], str]:
        """Return the lines of a file that is named under a key, and what separates its fields."""
        name, delimiter = (file, "") if isinstance(file, str) else (file.name, file.delimiter)
        if not isinstance(file, str):
            node = file.node("name")
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
            raise node.mistake(
                f"{quoted(name)} leads out of the spec's folder; put the file beside the spec, "
                "with / between folders"
            )
        lines = file_lines(node, name, self._read_file, delimiter, key, found_by)
        return lines, delimiter or ","


def _integers(given: ColumnFields) -> Integers:
    low, high = given.range
    if high < low:
        raise given.node("range").mistake(
            f"the range [{low}, {high}] is empty; put the lowest value first"
        )
    return Integers(low, high)


def _bins(node: Node) -> Bins:
    edges: list[float] = []

    def read_edge(node_of_edge: Node) -> None:
        edge = EDGE.read(node_of_edge)
        if edges and edge <= edges[-1]:
            raise node_of_edge.mistake(
                f"the edge {described(node_of_edge)} does not lie above the one before it, so that "
                "bins would overlap; edges increase strictly"
            )
        edges.append(edge)

    node.problems.each(EDGES.read(node), read_edge)
    if len(edges) < 2:
        raise node.mistake("one edge makes no bin; give at least two")
    return Bins(tuple(edges))


def _dates(given: DateFields) -> Dates:
    first, last = given.from_.first, given.to.last
    if last < first:
        raise given.node("to").mistake(f"{last} is before {first}; put the first day under `from`")
    by, text = given.by, given.format
    try:
        date_format = DateFormat("" if text is None else text)
    except SpecError as error:
        raise given.node("format").mistake(f"{error}; correct it") from None
    dates = Dates(first, last, by, date_format)
    needed = ["year", *["month"] * (by != "year"), *["day"] * (by in ("day", "week"))]
    missing = [part for part in ("year", "month", "day") if not date_format.has(part)]
    if lacking := [part for part in needed if part in missing]:
        raise given.node("format").mistake(
            f"the format does not say the {lacking[0]}, without which no {by} is known; add it"
        )
    if missing and first != dates.start(0):
        raise given.node("from").mistake(
            f"the format does not say the {missing[0]}, so that the first {by} cannot be cut; "
            f"begin with {dates.start(0)}"
        )
    for name, day in (("from", dates.start(0)), ("to", last)):
        read = date_format.read(date_format.write(day))
        if read is None or read.year != day.year:
            raise given.node(name).mistake(
                f"the format cannot say the year {day.year}: %y is 1969 to 2068; write %Y"
            )
    return dates
