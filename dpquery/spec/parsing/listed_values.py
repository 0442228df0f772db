"""The values of a column that are listed one by one, in the spec or in a file beside it."""

import csv
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dpquery.spec.columns import Categorical
from dpquery.spec.numbers import ExactNumber, number
from dpquery.spec.parsing.fields import CodeFields
from dpquery.spec.parsing.forms import ListOf, TextForm, described
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode
from dpquery.spec.problems import Place, Problems, UnreadableError, quoted

_CODE_HEADS = ("code", "value")
_LABEL_HEAD = "label"
_SEPARATED = {";": "semicolons", "\t": "tabs", "|": "pipes"}
_SEVERAL_TEXTS = "list both as texts of one value, {label: [text, text]}"
_OTHERWISE = "write the other in letters, here and in the data"
_NOT_A_HEADER = "; if it is a value, put it in another line"


class ListedValue(NamedTuple):
    """A value: where it stands, what the release shows for it, and the texts that mean it."""

    place: Place
    label: str
    texts: tuple[tuple[Place, str], ...]


class FileLine(NamedTuple):
    """A line of a file of values: its text, and the cells in it."""

    place: Place
    text: str
    cells: list[str]


def categorical(
    values: Iterable[ListedValue],
    problems: Problems,
    decimal: str,
    *,
    column: str,
    one_label_each: bool = True,
) -> Categorical:
    """Return the kind of column that holds some values; no two may have a text or label in common.

    Args:
        values: in the order of their codes.
        problems: takes every mistake in them.
        decimal: the decimal mark of the data.
        column: its name.
        one_label_each: whether two may not have one label: then it would name both.
    """
    taken: dict[str, Place] = {}
    numbers: dict[ExactNumber, tuple[int, str, Place]] = {}
    labels: dict[str, Place] = {}
    kept: list[ListedValue] = []
    twice: dict[str, list[tuple[Place, str, Place]]] = {"value": [], "label": []}
    for value in values:
        before = len(taken)
        for place, text in value.texts:
            exact = number(text, decimal) or number(text)
            same = numbers.setdefault(exact, (len(kept), text, place)) if exact else None
            if text in taken:
                twice["value"].append((place, text, taken[text]))
            elif same is not None and same[0] != len(kept):
                either = _SEVERAL_TEXTS if one_label_each else _OTHERWISE
                given, other = problems.shown(text, place), problems.shown(same[1], same[2])
                problems.add(
                    place,
                    f"the value{given} is the same number as{other or ' the one'} in line "
                    f"{same[2].line}, and data may hold it in either form; keep one, or {either}",
                )
            else:
                taken[text] = place
        if one_label_each and value.label in labels and len(taken) > before:
            twice["label"].append((value.place, value.label, labels[value.label]))
        labels.setdefault(value.label, value.place)
        kept.append(value)
    for what, repeated in twice.items():
        if repeated:
            (place, text, first), *rest = repeated
            more = f", and {len(rest):,} more like it" * bool(rest)
            problems.add(
                place,
                f"the {what}{problems.shown(text, place)} of column {quoted(column)} is given "
                f"twice, first at {first.line}:{first.column}{more}; keep one",
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


def read_values(node: Node, problems: Problems) -> list[ListedValue]:
    """Return the values under `values`: texts, or codes with labels, or labels with their texts."""
    if described(node) in ("an empty list", "an empty mapping"):
        raise node.mistake("no value is listed; list at least one")
    values: list[ListedValue] = []
    if isinstance(node, MapNode):
        for key, entry in node.entries:
            with problems.collected():
                values.append(_named_value(key, entry, problems))
    elif isinstance(node, ListNode):
        form = TextForm("a value (an empty text is written '')")
        for item in node.items:
            with problems.collected():
                text = form.read(item, problems)
                values.append(ListedValue(item.place, text, ((item.place, text),)))
    else:
        raise node.mistake(f"expected a list of values, or value: label, found {described(node)}")
    return values


def _named_value(key: TextNode, entry: Node, problems: Problems) -> ListedValue:
    """Return the value of an entry `code: label`, `label: [texts]` or `code: {label, texts}`."""
    form = TextForm(f"a text of {quoted(key.text)} (an empty text is written '')")
    if isinstance(entry, ListNode):
        items = ListOf(f"the texts of {quoted(key.text)}", form).read(entry, problems)
        texts = tuple(zip((node.place for node in entry.items), items, strict=True))
        return ListedValue(key.place, TextForm("a label").read(key, problems), texts)
    code = TextForm("a value").read(key, problems)
    if not isinstance(entry, MapNode):
        label = TextForm(f"the label of {quoted(key.text)}").read(entry, problems)
        return ListedValue(key.place, label, ((key.place, code),))
    given = CodeFields.read(entry, problems, what=f"the value {quoted(key.text)}")
    more = problems.each(given.texts, lambda text: (text.place, form.read(text, problems)))
    also = tuple((place, text) for place, text in more if text != code)
    label = code if given.label is None else given.label
    return ListedValue(key.place, label, ((key.place, code), *also))


def read_lines(
    name: str, content: str, problems: Problems, *, column: str, delimiter: str = ""
) -> list[ListedValue]:
    """Return the values in a file: one a line, alone or followed by a comma and its label.

    Where the first line is a header, with a cell `code` or `value` and perhaps one `label`, the
    columns of these names count, and no others. A file whose lines another mark than a comma seems
    to separate is refused, unless a delimiter is declared.

    Args:
        name: of the file.
        content: its text.
        problems: takes every mistake in it.
        column: what the column is called that holds the values.
        delimiter: between code and label; a comma, if it is empty.
    """
    lines = file_lines(name, content, problems, delimiter=delimiter)
    columns = _header(lines, column, delimiter or ",")
    if columns is not None and len(lines) == 1:
        raise UnreadableError(lines[0].place, "no value follows the header; list at least one")
    values = []
    for line in lines if columns is None else lines[1:]:
        with problems.collected():
            values.append(_line_value(line, lines[0].cells, columns))
    return values


def file_lines(
    name: str, content: str, problems: Problems, *, delimiter: str = "", key: str = "values_file"
) -> list[FileLine]:
    """Return the lines of a file that are not blank, split into their cells.

    Args:
        name: of the file.
        content: its text.
        problems: takes every line that cannot be split.
        delimiter: between cells; a comma, if it is empty, and then no other mark may seem to be.
        key: under which the spec names the file.
    """
    numbered = enumerate(content.removeprefix("\ufeff").split("\n"), start=1)
    lines = []
    for place, text in ((Place(name, row, 1), line) for row, line in numbered):
        with problems.collected():
            if text.strip():
                lines.append(_line(text, place, delimiter or ","))
    if not delimiter:
        _check_separated_by_commas(lines, key)
    return lines


def _line(text: str, place: Place, delimiter: str) -> FileLine:
    blanks = " \r" if delimiter == "\t" else None  # before a tab there may be an empty code
    try:
        row = next(csv.reader([text.strip(blanks)], strict=True, delimiter=delimiter))
    except csv.Error:
        raise UnreadableError(place, "the quotes do not pair up; double a quote inside") from None
    return FileLine(place, text, [cell.strip() for cell in row])


def _check_separated_by_commas(lines: Sequence[FileLine], key: str) -> None:
    """Refuse lines that another mark splits into equally many cells, and commas do not."""
    if not lines or all(len(line.cells) > 1 for line in lines):
        return
    place = lines[0].place
    for mark, word in _SEPARATED.items():
        try:
            widths = {len(_line(line.text, line.place, mark).cells) for line in lines}
        except UnreadableError:
            continue
        if len(widths) == 1 and widths != {1}:
            shown = "tab" if mark == "\t" else f"'{mark}'"
            raise UnreadableError(
                place,
                f"{word} seem to separate the fields; write "
                f"`{key}: {{name: {place.file}, delimiter: {shown}}}` in the spec, or "
                "`delimiter: ','` where they are part of the values",
            )


def _line_value(
    line: FileLine, header: Sequence[str], columns: tuple[int, int] | None
) -> ListedValue:
    """Return the value of a line; after a header, code and label stand in these columns."""
    place, _, cells = line
    if columns is None:
        if len(cells) > 2:
            raise UnreadableError(
                place,
                f"expected a value, or a value and its label, found {len(cells)} fields; put text "
                "with delimiters in double quotes, or name the columns code and label in a first "
                "line",
            )
        return ListedValue(place, cells[-1], ((place, cells[0]),))
    if len(cells) != len(header):
        message = f"expected {len(header)} fields, as the header has, found {len(cells)}"
        raise UnreadableError(place, f"{message}; put text with delimiters in double quotes")
    code, label = columns
    return ListedValue(place, cells[label], ((place, cells[code]),))


def _header(lines: Sequence[FileLine], column: str, delimiter: str) -> tuple[int, int] | None:
    """Return the places of code and label if the first line is a header, None if it is a value.

    UnreadableError if it looks like a header, and it is not clear what it says.
    """
    if not lines:
        return None
    place, _, cells = lines[0]
    heads = [cell.casefold() for cell in cells]
    codes = [k for k, head in enumerate(heads) if head in _CODE_HEADS]
    labels = [k for k, head in enumerate(heads) if head == _LABEL_HEAD]
    if len(codes) == 1 and len(labels) == 1:
        return codes[0], labels[0]
    if codes and len(heads) == 1:
        return 0, 0
    if codes or labels:
        raise UnreadableError(
            place,
            "this line looks like a header, and one is `code`, or has one column `code` "
            f"and one `label`; rename its columns{_NOT_A_HEADER}",
        )
    others = [line.cells[0] for line in lines[1:]]
    reason = ""
    if others and heads[0] == column.casefold():
        reason = "the column is called so"
    elif cells[0] and len(others) > 1 and number(cells[0]) is None and all(map(number, others)):
        reason = "every other value is a number"
    if reason:
        raise UnreadableError(
            place,
            f"this line looks like a header, as {reason}; write "
            f"code{delimiter}label in its place, or remove the line{_NOT_A_HEADER}",
        )
    return None
