"""The `domain` section of a spec: attributes, their columns and the values that these may hold."""

import csv
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath

from dpquery.exceptions import SpecError
from dpquery.limits import MAX_CODES
from dpquery.spec.domain import Attribute, Bins, Boolean, Categorical, Column, ColumnKind, Integers
from dpquery.spec.parsing.fields import (
    EDGE,
    EDGES,
    AttributeFields,
    BooleanFields,
    ColumnFields,
    MergedFields,
)
from dpquery.spec.parsing.forms import ByName, TextForm, described, ref
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode
from dpquery.spec.problems import Place, Problems, UnreadableError, listed, quoted

RELEASE_COLUMNS = frozenset(
    {"table", "query", "estimate", "std_error", "ci_low", "ci_high", "rel_error", "flag"}
    | {"nonnegative", "consistent", "thresholded", "integer", "graphical"}
)

# What a value means, where it stands and what the release shows for it.
_Value = tuple[Place, str, str]


def read_domain(
    entries: Iterable[tuple[TextNode, Node]],
    problems: Problems,
    read_file: Callable[[str], str],
) -> dict[str, Attribute | None]:
    """Return the declared attributes in file order; None for one whose mistakes are reported.

    Args:
        entries: name and declaration of each.
        problems: takes every mistake in them.
        read_file: returns the text of a value list; SpecError if it cannot.
    """
    reader = _DomainReader(problems, read_file)
    declared: dict[str, Attribute | None] = {}
    for key, value in entries:
        declared[key.text] = None
        with problems.collected():
            _check_name(key, declared)
            declared[key.text] = reader.attribute(key, value)
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
        raise key.mistake(
            f"{quoted(name)} is the name of a column that the release adds; name the attribute "
            f"otherwise and give its header as {{column: {name}}}"
        )


class _DomainReader:
    """Reads attributes one by one, and remembers which columns are taken."""

    def __init__(self, problems: Problems, read_file: Callable[[str], str]) -> None:
        self._problems = problems
        self._read_file = read_file
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
            raise node.mistake(
                f"attribute {quoted(key.text)} has {attribute.size:,} values, more than the "
                f"{MAX_CODES:,} that one may have; declare bins or fewer values"
            )
        return attribute

    def _merged(self, key: TextNode, node: Node) -> tuple[Column, ...]:
        what = f"the merged attribute {quoted(key.text)}"
        given = MergedFields.read(node, self._problems, what=what)
        parts = ByName(f"the columns of {what}", ref("column")).read(given.merge, self._problems)
        if len(parts) < 2:
            raise given.merge.mistake(f"{what} needs at least two columns")
        # A merged column goes by its header in conditions and labels: it has no second name.
        return tuple(self._problems.each(parts, lambda part: self._column(*part, ColumnFields)))

    def _column(self, key: TextNode, node: Node, fields: type[ColumnFields]) -> Column:
        if isinstance(node, TextNode) and node.text == "boolean":
            return Column(self._header(key), Boolean())
        if not isinstance(node, MapNode):
            raise node.mistake(
                f"expected what {quoted(key.text)} may hold, `boolean` or a mapping with "
                f"{listed((*fields.kinds, 'merge'))}, found {described(node)}"
            )
        what = f"attribute {quoted(key.text)}"
        given = fields.read(node, self._problems, what=what)
        header = given.node("column") if "column" in given else key
        name = self._problems.attempt(lambda: self._header(header))
        kind = self._kind(given)
        other = given.other == "bin"
        if other and isinstance(kind, Categorical) and "other" in kind.labels:
            message = f"{what} has a value of its own that is shown as 'other'; label it otherwise"
            self._problems.add(given.node("other").place, message)
        if name is None:
            raise UnreadableError(None)
        return Column(name, kind, other)

    def _header(self, node: Node) -> str:
        """Return the header of a column and take it."""
        name = TextForm("a column's header").read(node, self._problems)
        if name in self._taken:
            raise node.mistake(
                f"column {quoted(name)} is used twice, first in line {self._taken[name].line}; "
                "a column belongs to one attribute"
            )
        self._taken[name] = node.place
        return name

    def _kind(self, given: ColumnFields) -> ColumnKind:
        match given.chosen:
            case "range":
                return _integers(given)
            case "bins":
                return _bins(given.bins, self._problems)
            case "boolean":
                return _boolean(given.boolean)
            case "values":
                return self._categorical(_listed_values(given.values, self._problems))
            case _:
                return self._categorical(self._filed_values(given))

    def _filed_values(self, given: ColumnFields) -> list[_Value]:
        """Return the values in a file: one a line, alone or followed by a comma and its label."""
        name, node = given.values_file, given.node("values_file")
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
            raise node.mistake(
                f"{quoted(name)} leads out of the spec's folder; put the file beside the spec, "
                "with / between folders"
            )
        try:
            content = self._read_file(name)
        except SpecError as error:
            raise node.mistake(str(error)) from None
        lines = enumerate(content.removeprefix("\ufeff").split("\n"), start=1)
        written = [(number, line.strip()) for number, line in lines if line.strip()]
        if not written:
            raise node.mistake(f"the file {quoted(name)} lists no value")
        values = []
        for number, line in written:
            with self._problems.collected():
                values.append(_line_value(line, Place(name, number, 1)))
        return values

    def _categorical(self, values: Iterable[_Value]) -> Categorical:
        texts: dict[str, Place] = {}
        labels: dict[str, Place] = {}
        for place, value, label in values:
            if value in texts:
                self._problems.add(place, _twice("value", value, texts[value]))
            elif label in labels:
                self._problems.add(place, _twice("label", label, labels[label]))
            else:
                texts[value] = labels[label] = place
        if not texts:
            raise UnreadableError(None)
        return Categorical(tuple(texts), tuple(labels))


def _twice(what: str, name: str, first: Place) -> str:
    return f"the {what} {quoted(name)} is given twice, first in line {first.line}; keep one"


def _line_value(line: str, place: Place) -> _Value:
    try:
        row = next(csv.reader([line], strict=True))
    except csv.Error:
        raise UnreadableError(place, "the quotes do not pair up; double a quote inside") from None
    if len(row) > 2:
        raise UnreadableError(
            place,
            f"expected a value, or a value, a comma and its label, found {len(row)} fields; put "
            "text with commas in double quotes",
        )
    return place, row[0].strip(), row[-1].strip()


def _listed_values(node: Node, problems: Problems) -> list[_Value]:
    if described(node) in ("an empty list", "an empty mapping"):
        raise node.mistake("no value is listed; list at least one")
    values: list[_Value] = []
    if isinstance(node, MapNode):
        for key, label in node.entries:
            with problems.collected():
                shown = TextForm(f"the label of {quoted(key.text)}").read(label, problems)
                values.append((key.place, TextForm("a value").read(key, problems), shown))
    elif isinstance(node, ListNode):
        form = TextForm("a value (an empty text is written '')")
        for item in node.items:
            with problems.collected():
                value = form.read(item, problems)
                values.append((item.place, value, value))
    else:
        raise node.mistake(f"expected a list of values, or value: label, found {described(node)}")
    return values


def _integers(given: ColumnFields) -> Integers:
    low, high = given.range
    if high < low:
        raise given.node("range").mistake(
            f"the range [{low}, {high}] is empty; put the lowest value first"
        )
    return Integers(low, high)


def _bins(node: Node, problems: Problems) -> Bins:
    edges: list[float] = []

    def read_edge(node_of_edge: Node) -> None:
        edge = EDGE.read(node_of_edge, problems)
        if edges and edge <= edges[-1]:
            raise node_of_edge.mistake(
                f"the edge {described(node_of_edge)} does not lie above the one before it, so that "
                "bins would overlap; edges increase strictly"
            )
        edges.append(edge)

    problems.each(EDGES.read(node, problems), read_edge)
    if len(edges) < 2:
        raise node.mistake("one edge makes no bin; give at least two")
    return Bins(tuple(edges))


def _boolean(given: BooleanFields) -> Boolean:
    folded = {word.casefold() for word in given.true}
    both = [word for word in given.false if word.casefold() in folded]
    if both:
        raise given.node().mistake(
            f"{quoted(both[0])} would be both true and false; case does not count"
        )
    return Boolean(given.true, given.false)
