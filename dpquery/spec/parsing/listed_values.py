"""The values of a column that are listed one by one, in the spec or in a file beside it."""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dpquery.exceptions import SpecError
from dpquery.spec.columns import Categorical
from dpquery.spec.numbers import ExactNumber, number
from dpquery.spec.parsing.fields import CodeFields
from dpquery.spec.parsing.forms import ListOf, TextForm, described
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode
from dpquery.spec.problems import Place, Placed, Problems, UnreadableError, quoted

_CODE_HEADS = ("code", "value")
_LABEL_HEAD = "label"
_SEPARATED = {";": "semicolons", "\t": "tabs", "|": "pipes"}
_SEVERAL_TEXTS = "list both as texts of one value, {label: [text, text]}"
_OTHERWISE = "write the other in letters, here and in the data"
_NOT_A_HEADER = "; if it is a value, put it in another line"


class ListedValue(NamedTuple):
    """A value: where it stands, what the release shows for it, and the texts that mean it."""

    at: Placed
    label: str
    texts: tuple[tuple[Placed, str], ...]


@dataclass(frozen=True, eq=False, slots=True)
class FileLine(Placed):
    """A line of a file beside the spec: its text, and the cells in it."""

    place: Place
    problems: Problems
    text: str
    cells: list[str]


def categorical(
    values: Iterable[ListedValue], decimal: str, *, column: str, one_label_each: bool = True
) -> Categorical:
    """Return the kind of column that holds some values; no two may have a text or label in common.

    Args:
        values: in the order of their codes.
        decimal: the decimal mark of the data.
        column: its name.
        one_label_each: whether two may not have one label: then it would name both.
    """
    taken: dict[str, Placed] = {}
    numbers: dict[ExactNumber, tuple[int, str, Placed]] = {}
    labels: dict[str, Placed] = {}
    kept: list[ListedValue] = []
    twice: dict[str, list[tuple[Placed, str, Placed]]] = {"value": [], "label": []}
    for value in values:
        before = len(taken)
        for at, text in value.texts:
            exact = number(text, decimal) or number(text)
            same = numbers.setdefault(exact, (len(kept), text, at)) if exact else None
            if text in taken:
                twice["value"].append((at, text, taken[text]))
            elif same is not None and same[0] != len(kept):
                either = _SEVERAL_TEXTS if one_label_each else _OTHERWISE
                given, other = _shown(text, at), _shown(same[1], same[2])
                at.note(
                    f"the value{given} is the same number as{other or ' the one'} in line "
                    f"{same[2].place.line}, and data may hold it in either form; keep one, or "
                    f"{either}"
                )
            else:
                taken[text] = at
        if one_label_each and value.label in labels and len(taken) > before:
            twice["label"].append((value.at, value.label, labels[value.label]))
        labels.setdefault(value.label, value.at)
        kept.append(value)
    for what, repeated in twice.items():
        if repeated:
            (at, text, first), *rest = repeated
            more = f", and {len(rest):,} more like it" * bool(rest)
            at.note(
                f"the {what}{_shown(text, at)} of column {quoted(column)} is given twice, first at "
                f"{first.place.line}:{first.place.column}{more}; keep one"
            )
    if not kept:
        raise UnreadableError(None)
    texts = [[text for _, text in value.texts] for value in kept]
    also = tuple(tuple(others) for _, *others in texts)
    return Categorical(
        tuple(code for code, *_ in texts),
        tuple(value.label for value in kept),
        also if any(also) else (),
    )


def _shown(text: str, at: Placed) -> str:
    """Return a text as a message shows it: that of a file beside the spec is not repeated.

    It may be a file of records that the spec names by mistake.
    """
    return "" if isinstance(at, FileLine) else f" {quoted(text)}"


def read_values(node: Node) -> list[ListedValue]:
    """Return the values under `values`: texts, or codes with labels, or labels with their texts."""
    if described(node) in ("an empty list", "an empty mapping"):
        raise node.mistake("no value is listed; list at least one")
    values: list[ListedValue] = []
    if isinstance(node, MapNode):
        for key, entry in node.entries:
            with node.problems.collected():
                values.append(_named_value(key, entry))
    elif isinstance(node, ListNode):
        form = TextForm("a value (an empty text is written '')")
        for item in node.items:
            with item.problems.collected():
                text = form.read(item)
                values.append(ListedValue(item, text, ((item, text),)))
    else:
        raise node.mistake(f"expected a list of values, or value: label, found {described(node)}")
    return values


def _named_value(key: TextNode, entry: Node) -> ListedValue:
    """Return the value of an entry `code: label`, `label: [texts]` or `code: {label, texts}`."""
    form = TextForm(f"a text of {quoted(key.text)} (an empty text is written '')")
    if isinstance(entry, ListNode):
        items = ListOf(f"the texts of {quoted(key.text)}", form).read(entry)
        texts = tuple(zip(entry.items, items, strict=True))
        return ListedValue(key, TextForm("a label").read(key), texts)
    code = TextForm("a value").read(key)
    if not isinstance(entry, MapNode):
        label = TextForm(f"the label of {quoted(key.text)}").read(entry)
        return ListedValue(key, label, ((key, code),))
    given = CodeFields.read(entry, what=f"the value {quoted(key.text)}")
    more = key.problems.each(given.texts, lambda text: (text, form.read(text)))
    also = tuple((at, text) for at, text in more if text != code)
    label = code if given.label is None else given.label
    return ListedValue(key, label, ((key, code), *also))


def read_lines(lines: Sequence[FileLine], *, column: str, delimiter: str) -> list[ListedValue]:
    """Return the values in a file: one a line, alone or followed by a comma and its label.

    Where the first line is a header, with a cell `code` or `value` and perhaps one `label`, the
    columns of these names count, and no others.

    Args:
        lines: of the file.
        column: what the column is called that holds the values.
        delimiter: between code and label.
    """
    columns = _header(lines, column, delimiter)
    if columns is not None and len(lines) == 1:
        raise lines[0].mistake("no value follows the header; list at least one")
    values = []
    for line in lines if columns is None else lines[1:]:
        with line.problems.collected():
            values.append(_line_value(line, lines[0], columns))
    return values


def file_lines(
    node: Node,
    name: str,
    read_file: Callable[[str], str],
    delimiter: str = ",",
    key: str = "",
    found_by: str = "",
) -> list[FileLine]:
    """Return the lines of a file that are not blank, one at least, split into their cells.

    Args:
        node: that names the file.
        name: of the file.
        read_file: returns its text; SpecError if it cannot.
        delimiter: between cells; a comma, if it is empty, and then no other mark may seem to be.
        key: under which the spec names the file.
        found_by: how to make one that is missing.
    """
    try:
        content = read_file(name).removeprefix("\ufeff")
    except SpecError as error:
        missing = isinstance(error.__context__, FileNotFoundError)
        raise node.mistake(f"{error}{found_by if missing else ''}") from None
    if not content.strip():
        raise node.mistake(f"the file {quoted(name)} lists no value; write one a line")
    lines = []
    for row, text in enumerate(content.split("\n"), start=1):
        line = FileLine(Place(name, row, 1), node.problems, text, [])
        with line.problems.collected():
            if text.strip():
                lines.append(_split(line, delimiter or ","))
    if not lines:
        raise UnreadableError(None)
    if not delimiter:
        _check_separated_by_commas(lines, key)
    return lines


def even(lines: Sequence[FileLine]) -> Sequence[FileLine]:
    """Return the lines below a header; all have as many cells as it has."""
    header, *below = lines
    return header.problems.each(below, lambda line: as_wide(line, header))


def as_wide(line: FileLine, header: FileLine) -> FileLine:
    """Return a line that has as many cells as the header."""
    if len(line.cells) == len(header.cells):
        return line
    raise line.mistake(
        f"expected {len(header.cells)} fields, as the header has, found {len(line.cells)}; put "
        "text with delimiters in double quotes"
    )


def _split(line: FileLine, delimiter: str) -> FileLine:
    blanks = " \r" if delimiter == "\t" else None  # before a tab there may be an empty code
    try:
        row = next(csv.reader([line.text.strip(blanks)], strict=True, delimiter=delimiter))
    except csv.Error:
        raise line.mistake("the quotes do not pair up; double a quote inside") from None
    return replace(line, cells=[cell.strip() for cell in row])


def _check_separated_by_commas(lines: Sequence[FileLine], key: str) -> None:
    """Refuse lines that another mark splits into equally many cells, and commas do not."""
    if all(len(line.cells) > 1 for line in lines):
        return
    for mark, word in _SEPARATED.items():
        try:
            widths = {len(_split(line, mark).cells) for line in lines}
        except UnreadableError:
            continue
        if len(widths) == 1 and widths != {1}:
            shown = "tab" if mark == "\t" else f"'{mark}'"
            raise lines[0].mistake(
                f"{word} seem to separate the fields; write "
                f"`{key}: {{name: {lines[0].place.file}, delimiter: {shown}}}` in the spec, or "
                "`delimiter: ','` where they are part of the values"
            )


def _line_value(line: FileLine, header: FileLine, columns: tuple[int, int] | None) -> ListedValue:
    """Return the value of a line; after a header, code and label stand in these columns."""
    cells = line.cells
    if columns is None:
        if len(cells) > 2:
            raise line.mistake(
                f"expected a value, or a value and its label, found {len(cells)} fields; put text "
                "with delimiters in double quotes, or name the columns code and label in a first "
                "line"
            )
        return ListedValue(line, cells[-1], ((line, cells[0]),))
    code, label = columns
    return ListedValue(as_wide(line, header), cells[label], ((line, cells[code]),))


def _header(lines: Sequence[FileLine], column: str, delimiter: str) -> tuple[int, int] | None:
    """Return the places of code and label if the first line is a header, None if it is a value.

    UnreadableError if it looks like a header, and it is not clear what it says.
    """
    first, cells = lines[0], lines[0].cells
    heads = [cell.casefold() for cell in cells]
    codes = [k for k, head in enumerate(heads) if head in _CODE_HEADS]
    labels = [k for k, head in enumerate(heads) if head == _LABEL_HEAD]
    if len(codes) == 1 and len(labels) == 1:
        return codes[0], labels[0]
    if codes and len(heads) == 1:
        return 0, 0
    if codes or labels:
        raise first.mistake(
            "this line looks like a header, and one is `code`, or has one column `code` "
            f"and one `label`; rename its columns{_NOT_A_HEADER}"
        )
    others = [line.cells[0] for line in lines[1:]]
    reason = ""
    if others and heads[0] == column.casefold():
        reason = "the column is called so"
    elif cells[0] and len(others) > 1 and number(cells[0]) is None and all(map(number, others)):
        reason = "every other value is a number"
    if reason:
        raise first.mistake(
            f"this line looks like a header, as {reason}; write "
            f"code{delimiter}label in its place, or remove the line{_NOT_A_HEADER}"
        )
    return None
