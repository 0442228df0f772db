"""Lines of YAML that would declare what a check found; made of the records, so private as well."""

import json
import math
import re
from collections.abc import Iterable, Sequence

from dpquery.data_check.findings import FileGuess, Records, UndeclaredValues, drops
from dpquery.spec.domain import Attribute, Bins, Boolean, Categorical, Column, Integers
from dpquery.spec.model import FileFormat, Spec

_HALF = re.compile(r"[\ud800-\udfff]")  # for bytes that are no text in this encoding
_NO_ANSWER = {
    *("", ".", "..", "-", "--", "?", "na", "n/a", "n.a.", "#n/a", "nan", "null", "none", "nil"),
    *("missing", "unknown", "refused", "no answer", "not answered", "not applicable", "iap", "dk"),
    *("don't know", "dont know", "not asked", "not available", "not stated", "(blank)"),
}
_YES = {"yes", "y", "true", "t", "1", "on", "ja", "oui", "si", "sí", "sim", "tak", "x", "да"}
_NO = {"no", "n", "false", "f", "0", "off", "nein", "non", "nej", "não", "nie", "нет"}
_PLAIN = re.compile(r"[A-Za-z0-9]([\w %+/.-]*[\w%+.])?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,15}(\.0*)?")
_REAL = re.compile(r"[+-]?(\d{1,15}(\.\d*)?|\.\d+)")
_MISSING_CODE = re.compile(r"-\d+(\.0*)?|([789])\2*(\.0*)?")
_LISTED = 12  # new values of one column that are written out
_WRITTEN = 40  # declared values that are written again


def remedies(spec: Spec, layout: FileGuess | None, records: Records | None) -> tuple[str, ...]:
    """Return lines of YAML, comments among them, that would declare what was found."""
    lines = [] if layout is None else _file_lines(layout.mended(spec.file), spec.file)
    if records is not None:
        by_column = {own.column.name: own for own in records.columns if own.records}
        domain = []
        for attribute in spec.domain.attributes:
            if any(column.name in by_column for column in attribute.columns):
                domain += _attribute_lines(attribute, by_column)
        lines += _person_lines(spec, records)
        if domain:
            lines += ["domain:", *(f"  {line}" for line in domain)]
    return tuple(lines)


def _file_lines(mended: FileFormat, declared: FileFormat) -> list[str]:
    """Return how to declare the layout of a file, where it is another than the declared one."""
    if mended == declared:
        return []
    words = {"\t": "tab", True: "true", "": "none"}
    usual = vars(FileFormat())
    given = [
        f"{key}: {words[own] if own in words else scalar(own)}"
        for key, own in vars(mended).items()
        if own != usual[key]
    ]
    return [f"file: {{{', '.join(given)}}}"]


def _person_lines(spec: Spec, records: Records) -> list[str]:
    """Return as a comment the least max_rows that leaves out next to nothing, where one does."""
    persons, limit = records.persons, spec.privacy.max_rows
    if persons is None or not persons.beyond(limit):
        return []
    rows = sum(number * of for number, of in persons.persons)
    enough = next(n for n, _ in persons.persons if 100 * persons.beyond(n) <= rows)
    if enough <= limit:
        return []
    unit = f"{{person: {scalar(spec.privacy.person or '')}, max_rows: {enough}}}"
    return [
        f"# privacy: unit: {unit} would leave out "
        f"{persons.beyond(enough):,} rows, not {persons.beyond(limit):,};",
        f"# noise grows in proportion: {enough / limit:.3g} times that of max_rows: {limit}",
    ]


def _attribute_lines(attribute: Attribute, found: dict[str, UndeclaredValues]) -> list[str]:
    """Return an attribute as it might be declared, below comments on what becomes of records."""
    comments, columns = [], []
    for column in attribute.columns:
        own = found.get(column.name)
        fields, added = (_fields(column), "") if own is None else _mended(column, own)
        if own is not None:
            fate = "they leave every table" if drops(column) else "they are counted as `other`"
            comments.append(
                f"# {own.records:,} records of `{column.name}` hold what is not declared: as "
                f"declared now {fate}"
            )
            comments += [added] if added else []
        if not attribute.merged and column.name != attribute.name:
            fields = [f"column: {scalar(column.name)}", *fields]
        columns.append((column.name, f"{{{', '.join(fields)}}}"))
    if not attribute.merged:
        return [*comments, f"{scalar(attribute.name)}: {columns[0][1]}"]
    parts = ", ".join(f"{scalar(name)}: {declared}" for name, declared in columns)
    return [*comments, f"{scalar(attribute.name)}: {{merge: {{{parts}}}}}"]


def _mended(column: Column, found: UndeclaredValues) -> tuple[list[str], str]:
    """Return the fields of a column that take in what was found, and a comment if there is one."""
    texts = [text for text, _ in found.commonest if not _HALF.search(text)]
    complete = found.complete and len(texts) == len(found.commonest)
    match column.kind:
        case Categorical():
            return _with_values(column, texts, complete=complete)
        case Integers(low=low, high=high):
            whole = [int(float(text)) for text in texts if _WHOLE.fullmatch(text)]
            numbers = _believable(whole, low, high)
            limits = [*numbers, low, high]
            first = low if min(limits) == low else outwards(min(limits), low)
            last = high if max(limits) == high else outwards(max(limits), high)
            rest = len(numbers) < len(texts) or not complete
            return [f"range: [{first}, {last}]", *_shown(column, needed=rest)], ""
        case Bins(edges=edges):
            real = [float(text) for text in texts if _REAL.fullmatch(text)]
            numbers = _believable(real, edges[0], edges[-1])
            below = [own for own in numbers if own < edges[0]]
            above = [math.floor(own) + 1 for own in numbers if own >= edges[-1]]
            more = [float(outwards(min(below), edges[0]))] if below else []
            end = [float(outwards(max(above), edges[-1]))] if above else []
            rest = len(numbers) < len(texts) or not complete
            return [_edges([*more, *edges, *end]), *_shown(column, needed=rest)], ""
        case Boolean(true=true, false=false):
            yes = [text for text in texts if text.casefold() in _YES]
            no = [text for text in texts if text.casefold() in _NO]
            rest = len(yes) + len(no) < len(texts) or not complete
            words = f"boolean: {{true: {_list([*true, *yes])}, false: {_list([*false, *no])}}}"
            return [words if yes or no else _fields(column)[0], *_shown(column, needed=rest)], ""


def _with_values(column: Column, texts: list[str], *, complete: bool) -> tuple[list[str], str]:
    """Return a list of values with more of them."""
    blank = [text for text in texts if text.casefold() in _NO_ANSWER]
    rest = [text for text in texts if text not in blank]
    known = [] if len(rest) > _LISTED else rest
    kind = column.kind
    if not isinstance(kind, Categorical) or len(kind.values) > _WRITTEN:
        added = ", ".join(scalar(text) for text in [*blank, *known])
        return [*_fields(column), *_shown(column, needed=True)], f"# or add to its list: {added}"
    pairs = [*zip(kind.values, kind.labels, strict=True)]
    pairs += [(text, _label(text, kind.labels)) for text in [*blank, *known]]
    needed = len(known) < len(rest) or not complete
    return [_values(pairs), *_shown(column, needed=needed)], ""


def _label(text: str, taken: Iterable[str]) -> str:
    return text if text and text not in taken else "no answer"


def _values(pairs: Sequence[tuple[str, str]]) -> str:
    """Return texts with their labels; as a list where each is its own label."""
    if all(text == label for text, label in pairs):
        return f"values: {_list(text for text, _ in pairs)}"
    return f"values: {{{', '.join(f'{scalar(text)}: {scalar(label)}' for text, label in pairs)}}}"


def _believable(numbers: list[int] | list[float], low: float, high: float) -> list[float]:
    """Return the numbers that a range may well be widened to: no codes for a missing answer."""
    reach = 3 * (high - low) + 1
    return [
        own
        for own in numbers
        if low - reach <= own <= high + reach
        and not (_MISSING_CODE.fullmatch(f"{own:g}") and (own < 0 <= low or own > 1.2 * high))
    ]


def outwards(number: float, limit: float) -> int:
    """Return a wider limit that takes a number in, rounded as far as it moves: no record's own.

    >>> outwards(1137, 300), outwards(-43, -30), outwards(1988, 1987)
    (1200, -50, 1988)
    """
    size = int(10 ** (len(str(math.floor(abs(number - limit)))) - 1))
    return (math.ceil if number > limit else math.floor)(number / size) * size


def _shown(column: Column, *, needed: bool) -> list[str]:
    return ["other: bin"] if needed or column.other else []


def _fields(column: Column) -> list[str]:
    """Return the fields of a column as it is declared."""
    match column.kind:
        case Categorical(values=values, labels=labels) if len(values) <= _WRITTEN:
            fields = [_values([*zip(values, labels, strict=True)])]
        case Categorical():
            fields = ["values: ... # as now"]
        case Integers(low=low, high=high):
            fields = [f"range: [{low}, {high}]"]
        case Bins(edges=edges):
            fields = [_edges(edges)]
        case Boolean(true=true, false=false):
            fields = [f"boolean: {{true: {_list(true)}, false: {_list(false)}}}"]
    return fields


def _edges(edges: Iterable[float]) -> str:
    return f"bins: [{', '.join(f'{edge:.15g}' for edge in edges)}]"


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(scalar, dict.fromkeys(texts)))}]"


def scalar(text: str) -> str:
    r"""Return a text as YAML writes it, in double quotes where that is safer.

    >>> print(scalar("no answer"), scalar(""), scalar("a: b"), scalar("\t"))
    no answer "" "a: b" "\t"
    """
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
