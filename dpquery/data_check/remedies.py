"""What to declare instead: lines to paste.

Lines of YAML that would declare what a check found; made of the records, so private as well.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import count
from typing import NamedTuple

from dpquery.data_check.findings import (
    FileGuess,
    Records,
    RowsPerPerson,
    UndeclaredValues,
    seen,
    written_out,
)
from dpquery.data_check.records import declares_more
from dpquery.measurement.counting.column_codes import number_of
from dpquery.spec.calendar import PERIOD_KINDS, DateFormat
from dpquery.spec.columns import (
    Attribute,
    Bins,
    Boolean,
    Categorical,
    Column,
    ColumnKind,
    Dates,
    Integers,
)
from dpquery.spec.numbers import THOUSANDS, NumberFormat, nearest_float, number, whole
from dpquery.spec.spec import FileFormat, Spec

WRITTEN = 40
"""Values of a list up to which it is written again."""
_PLAIN = re.compile(r"[A-Za-z0-9]([\w %+/.-]*[\w%+.])?", re.ASCII)


class Value(NamedTuple):
    """A value of a list: its label, and the texts that stand for it, its code first."""

    label: str
    texts: tuple[str, ...]


def listed_values_of(kind: Categorical) -> list[Value]:
    """Return the values of a list in the order of their codes."""
    return [Value(*pair) for pair in zip(kind.labels, kind.texts, strict=True)]


def scalar(text: str) -> str:
    r"""Return a text as YAML writes it, in double quotes where that is safer.

    >>> print(scalar("no answer"), scalar(""), scalar("a: b"), scalar("\t"))
    no answer "" "a: b" "\t"
    """
    return text if _PLAIN.fullmatch(text) else written_out(json.dumps(text, ensure_ascii=False))


def flow_list(texts: Iterable[str]) -> str:
    """Return texts as a list, each once."""
    return f"[{', '.join(map(scalar, dict.fromkeys(texts)))}]"


def flow_values(values: Sequence[Value]) -> str:
    """Return the field `values`; a plain list where every value is its own label."""
    if all(value.texts == (value.label,) for value in values):
        return f"values: {flow_list(value.label for value in values)}"
    entries = [
        f"{scalar(value.texts[0])}: {scalar(value.label)}"
        if len(value.texts) == 1
        else f"{scalar(value.label)}: {flow_list(value.texts)}"
        for value in values
    ]
    return f"values: {{{', '.join(entries)}}}"


def flow_edges(edges: Iterable[float]) -> str:
    """Return the field `bins`."""
    shortest = (f"{edge:.15g}" if float(f"{edge:.15g}") == edge else repr(edge) for edge in edges)
    return f"bins: [{', '.join(shortest)}]"


def flow_boolean(true: Iterable[str], false: Iterable[str]) -> str:
    """Return the field `boolean`."""
    return f'boolean: {{"true": {flow_list(true)}, "false": {flow_list(false)}}}'


def flow_dates(dates: Dates) -> str:
    """Return the field `date`."""
    fields = [f"from: {dates.first}, to: {dates.last}, by: {dates.by}"]
    fields += [f"format: {json.dumps(dates.format.text)}"] * bool(dates.format.text)
    return f"date: {{{', '.join(fields)}}}"


def flow_kind(kind: ColumnKind) -> str:
    """Return the field that says what a column holds."""
    match kind:
        case Categorical(values=values) if len(values) > WRITTEN:
            return "values: ..."
        case Categorical():
            return flow_values(listed_values_of(kind))
        case Integers(low=low, high=high):
            return f"range: [{low}, {high}]"
        case Bins(edges=edges):
            return flow_edges(edges)
        case Boolean(true=true, false=false):
            return flow_boolean(true, false)
        case Dates():
            return flow_dates(kind)


NO_ANSWER = {
    *("", ".", "..", "-", "--", "?", "na", "n/a", "n.a.", "#n/a", "nan", "null", "none", "nil"),
    *("missing", "unknown", "refused", "no answer", "not answered", "not applicable", "iap", "dk"),
    *("don't know", "dont know", "not asked", "not available", "not stated", "(blank)"),
}
_YES = {"yes", "y", "true", "t", "1", "on", "ja", "oui", "si", "sí", "sim", "tak", "x", "да"}
_NO = {"no", "n", "false", "f", "0", "off", "nein", "non", "nej", "não", "nie", "нет"}
_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%Y%m%d", "%d %b %Y", "%d-%b-%Y")
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", "T%H:%M:%S")
_FORMATS = ("", *(day + time for time in _TIMES for day in _DAYS), "%Y-%m", "%Y")
_BY_HAND = "# no line to paste suggests itself: declare by hand what is to be told apart"
_NOTHING_NEW = "# all of them seem to be missing answers: nothing need be declared"
_FATES = {
    "count": "counted in totals alone; with other: drop left out of every table",
    "show": "shown as `other`; with other: drop left out of every table",
    "drop": "left out of every table",
}
_HALF = re.compile(r"[\ud800-\udfff]")  # for bytes that are no text in this encoding
_MISSING_CODE = re.compile(r"-\d+|([789])\1*")
_LONG_CODE = re.compile(r"([789])\1+")  # of two digits at least: 9 may well be a number
_SIGN = "([%‰$€£¥₹₽₺₩₪₫₱₴¢]|[A-Z]{3})"
_SIGNED = re.compile(rf"[+-]?\s*(?:{_SIGN}\s*[+-]?[0-9].*|[0-9].*?\s*{_SIGN})")
_YEARS = 150  # beyond those declared, that dates are believed in
_FARTHEST = 1e22  # number that bins are widened to; no larger power of ten is a float
_LISTED = 12  # new values of one column that are written out
_BINS = 20  # of a range that holds decimals, at most, but for one at the end


def remedies(spec: Spec, layout: FileGuess | None, records: Records | None) -> tuple[str, ...]:
    """Return lines of YAML, comments among them, that would declare what was found."""
    lines = [] if layout is None else _file_lines(layout.mended(spec.file), spec.file)
    if records is None:
        return tuple(lines)
    odd = {column.column.name: column for column in records.columns if column.records}
    lines += _person_lines(spec, records)
    domain: list[str] = []
    for attribute in spec.domain.in_data:
        if any(column.name in odd for column in attribute.columns):
            domain += _attribute_lines(attribute, odd, spec)
    domain = [*_fate_lines(odd.values()), *domain] if domain else []
    if any(not line.startswith("#") for line in domain):
        domain = ["domain:", *(f"  {line}" for line in domain)]
    lines += domain
    return tuple(lines)


def _fate_lines(odd: Iterable[UndeclaredValues]) -> Iterator[str]:
    """Yield what becomes of the records that hold what is not declared, as comments, once each."""
    for other, fate in _FATES.items():
        names = [f"`{each.column.name}`" for each in odd if each.column.other == other]
        if names:
            more = f" and {len(names) - _LISTED:,} more" * (len(names) > _LISTED)
            yield f"# other values of {', '.join(names[:_LISTED])}{more}: as declared, {fate}"


def _file_lines(mended: FileFormat, declared: FileFormat) -> list[str]:
    """Return how to declare the layout of a file, where it is another than the declared one."""
    if mended == declared:
        return []
    words = {"\t": "tab", True: "true", "": "none"}
    usual = vars(FileFormat())
    given = [
        f"{key}: {words[value] if value in words else scalar(value)}"
        for key, value in vars(mended).items()
        if value != usual[key]
    ]
    return [f"file: {{{', '.join(given)}}}"]


def _person_lines(spec: Spec, records: Records) -> list[str]:
    """Return as comments what limits would leave out a hundredth and a tenth of all rows."""
    persons, limit = records.persons, spec.privacy.max_rows
    if persons is None or not persons.beyond(limit):
        return []
    rows = sum(number_of_rows * of for number_of_rows, of in persons.persons)
    lines = []
    for most in dict.fromkeys((_enough(persons, rows // 10), _enough(persons, rows // 100))):
        if most > limit:
            unit = f"{{person: {scalar(spec.privacy.person or '')}, max_rows: {most}}}"
            beyond = persons.beyond(most)
            cut = sum(of for number_of_rows, of in persons.persons if number_of_rows > most)
            lines.append(
                f"# privacy: unit: {unit} would leave out {beyond:,} of {rows:,} rows, those of "
                f"{_things(cut, 'person')} beyond it; noise: {most / limit:.3g} times"
            )
    if lines:
        beyond_now = _things(persons.beyond(limit), "row")
        now = f"# max_rows: {limit}, as declared, leaves out {beyond_now}; noise"
        lines.append(f"{now} grows with max_rows in proportion")
    return lines


def _things(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _enough(persons: RowsPerPerson, rows: int) -> int:
    """Return the least limit of one digit and zeros that leaves out no more than so many rows."""
    limits = (int(f"{digit}{'0' * zeros}") for zeros in count() for digit in range(1, 10))
    return next(limit for limit in limits if persons.beyond(limit) <= rows)


def _attribute_lines(
    attribute: Attribute, odd: Mapping[str, UndeclaredValues], spec: Spec
) -> list[str]:
    """Return an attribute as it might be declared, below comments on what becomes of records."""
    says_other = re.search(r"^other\s*:", spec.text, re.MULTILINE) is not None
    comments, columns, changed, remarked = [], [], False, False
    for column in attribute.columns:
        if column.name in odd:
            column, in_signs = _with_number(odd[column.name], spec.file.decimal)
            of_column = replace(odd[column.name], column=column)
            fields, remark, rest = _mended(of_column, spec.file.decimal)
            head = f"# `{of_column.column.name}`, in {_things(of_column.records, 'record')}:"
            comments += [head, *filter(None, [in_signs, remark])]
            changed, remarked = changed or bool(in_signs), remarked or bool(in_signs or remark)
        else:
            fields, rest = [flow_kind(column.kind)], False
        # Where all that was found is declared below, `show` would show an empty value for ever.
        empty = not rest and column.name in odd and column.other == "show"
        other = "count" if empty or (rest and column.drops) else column.other
        changed |= other != column.other or fields != [flow_kind(column.kind)]
        if (written := column.number) is not None:
            signs = {
                "thousands": written.thousands,
                "decimal": written.decimal,
                "sign": written.sign,
            }
            said = ", ".join(f"{key}: {scalar(text)}" for key, text in signs.items() if text)
            fields.append(f"number: {{{said}}}")
        fields += [f"other: {other}"] * (other != "count" or says_other)
        if not attribute.merged and column.name != attribute.name:
            fields = [f"column: {scalar(column.name)}", *fields]
        columns.append((column.name, f"{{{', '.join(fields)}}}"))
    if attribute.levels:
        return [*comments, _for_its_file(odd[attribute.columns[0].name])]
    if any("..." in declared for _, declared in columns):
        return [*comments, _BY_HAND]
    if not changed:
        undeclared = [odd[column.name] for column in attribute.columns if column.name in odd]
        return [*comments, _NOTHING_NEW if all(map(_unanswered, undeclared)) else _BY_HAND]
    declared = columns[0][1]
    if attribute.merged:
        parts = ", ".join(f"{scalar(name)}: {of_column}" for name, of_column in columns)
        declared = f"{{merge: {{{parts}}}}}"
    line = f"{scalar(attribute.name)}: {declared}"
    if not declares_more(line, attribute, odd, spec):
        return [*comments, _BY_HAND]
    return [*comments, line] if remarked else [line]


def _for_its_file(odd: UndeclaredValues) -> str:
    """Return a comment on what the file of a hierarchy lacks."""
    texts = [scalar(text) for text, _ in odd.commonest if text.casefold() not in NO_ANSWER]
    if not texts:
        return _NOTHING_NEW
    more = "" if len(texts) <= _LISTED else ", ..."
    return (
        "# add to the file of its hierarchy a line for each, with what it lies in: "
        f"{', '.join(texts[:_LISTED])}{more}"
    )


def _unanswered(odd: UndeclaredValues) -> bool:
    """Return whether all that is undeclared seems to say that there is no answer."""
    return odd.complete and all(text.casefold() in NO_ANSWER for text, _ in odd.commonest)


def _mended(odd: UndeclaredValues, decimal: str) -> tuple[list[str], str, bool]:
    """Return what a column might hold, a comment if there is one, and whether texts are left."""
    column, remark = odd.column, ""
    others = tuple(pair for pair in odd.commonest if pair[0] != column.name)
    if len(others) < len(odd.commonest):
        fields, remark, left = _mended(replace(odd, commonest=others), decimal)
        return fields, f"{remark or '#'} a record repeats the header: take that line out", left
    texts = [text for text, _ in odd.commonest if not _HALF.search(text)]
    all_known = odd.complete and len(texts) == len(odd.commonest)
    match column.kind:
        case Categorical():
            return _with_values(column, texts, decimal, all_known=all_known)
        case Integers() if 2 * odd.decimals(decimal) > sum(_number_counts(odd, decimal)):
            field, taken = _in_bins(odd, decimal)
            remark = "# its numbers have decimals, and a range holds whole ones: bins take both"
            remark += _beyond(odd, decimal, taken) + _or_thousands(odd, decimal)
            return [field], remark, taken < len(texts) or not all_known
        case Integers(low=low, high=high):
            exact = map(number_of(column, decimal), texts)
            numbers = [whole(value) for value in exact if value is not None]
            new = _believable([value for value in numbers if value is not None], low, high)
            first = outwards(min(new), low) if new and min(new) < low else low
            last = outwards(max(new), high) if new and max(new) > high else high
            field, taken = f"range: [{first}, {last}]", len(new)
            if codes := [f"{value:g}" for value in new if _LONG_CODE.fullmatch(f"{value:g}")]:
                remark = (
                    f"# {', '.join(codes)}: a code for no answer in many files; leave it out if so"
                )
        case Bins(edges=edges):
            exact = map(number_of(column, decimal), texts)
            values = [nearest_float(value) for value in exact if value is not None]
            new = _believable(values, edges[0], edges[-1], reach=_FARTHEST)
            field, taken = flow_edges(_reaching(edges, new)), len(new)
            if beyond := _beyond(odd, decimal, taken):
                remark = f"# bins take its numbers{beyond}"
        case Boolean(true=true, false=false):
            yes = [text for text in texts if seen(text).casefold() in _YES]
            no = [text for text in texts if seen(text).casefold() in _NO]
            field, taken = flow_boolean([*true, *yes], [*false, *no]), len(yes) + len(no)
            field = field if taken else flow_kind(column.kind)
        case Dates():
            dates, remark, left = _wider(column.kind, odd)
            return [flow_dates(dates)], remark, left or not all_known
    return [field], remark, taken < len(texts) or not all_known


def _beyond(odd: UndeclaredValues, decimal: str, taken: int) -> str:
    """Return what a comment says of numbers that bins do not take."""
    left = len(_number_counts(odd, decimal)) - taken
    return f", without {left:,}: codes of missing answers, or too far away" * bool(left)


def _or_thousands(odd: UndeclaredValues, decimal: str) -> str:
    """Return what a comment says of decimals that may be thousands, as 1.234 may be 1234."""
    mark = "," if decimal == "." else "."
    other = replace(odd, column=replace(odd.column, number=NumberFormat(decimal, mark, "")))
    if odd.column.number or _number_counts(other, decimal) != _number_counts(odd, decimal):
        return ""
    written = f'number: {{thousands: "{decimal}", decimal: "{mark}"}}'
    return f"; if 1{decimal}234 is 1234, the range with {written}"


def _with_number(odd: UndeclaredValues, decimal: str) -> tuple[Column, str]:
    """Return a column that reads most of its texts as numbers, and a comment if that is new."""
    column = odd.column
    if not isinstance(column.kind, Integers | Bins):
        return column, ""
    marks = (decimal, "," if decimal == "." else ".")
    found = (match for text, _ in odd.commonest if (match := _SIGNED.fullmatch(text)))
    signs = list(dict.fromkeys(match[1] or match[2] for match in found))[:_LISTED]
    formats = [
        NumberFormat(thousands, mark, sign)
        for mark in marks
        for thousands in ("", *THOUSANDS)
        if thousands != mark
        for sign in ("", *signs)
    ]
    columns = [column, *(replace(column, number=of) for of in formats if column.number != of)]
    best = max(columns, key=lambda one: sum(_number_counts(replace(odd, column=one), decimal)))
    if best is column:
        return column, ""
    example = "" if best.number is None else best.number.thousands
    example = f"; 1{' ' if example == 'space' else example}234 is 1234 then" * bool(example)
    return (
        best,
        f"# its texts write numbers in a way of their own{example}: see what the code book says",
    )


def _number_counts(odd: UndeclaredValues, decimal: str) -> list[int]:
    read = number_of(odd.column, decimal)
    return [n for text, n in odd.commonest if read(text) is not None]


def _in_bins(odd: UndeclaredValues, decimal: str) -> tuple[str, int]:
    """Return bins of equal width for a range that decimals lie in, and how many texts they take."""
    kind = odd.column.kind
    if not isinstance(kind, Integers):
        raise TypeError("only a range is told apart from decimals")
    exact = map(number_of(odd.column, decimal), (text for text, _ in odd.commonest))
    numbers = [nearest_float(value) for value in exact if value is not None]
    near = _believable(numbers, kind.low, kind.high)
    low, high = min([kind.low, *near]), max([kind.high, *near])
    widths = (digit * 10**power for power in count() for digit in (1, 2, 5))
    step = next(width for width in widths if width * _BINS >= high - low)
    steps = range(math.floor(low / step), math.floor(high / step) + 2)
    new = _believable(numbers, kind.low, kind.high, reach=_FARTHEST)
    return flow_edges(_reaching([float(step * k) for k in steps], new)), len(new)


def _reaching(edges: Sequence[float], values: Collection[float]) -> list[float]:
    """Return edges that go on until all values are in a bin, to round ends."""
    below = [value for value in values if value < edges[0]]
    above = [math.floor(value) + 1 for value in values if value >= edges[-1]]
    low_end = float(outwards(min(below), edges[0])) if below else edges[0]
    high_end = float(outwards(max(above), edges[-1])) if above else edges[-1]
    return _wider_edges(edges, low_end, high_end)


def _with_values(
    column: Column, texts: list[str], decimal: str, *, all_known: bool
) -> tuple[list[str], str, bool]:
    """Return a list of values with more of them, or with more texts of those that it has."""
    blank = [text for text in texts if text.casefold() in NO_ANSWER]
    rest = [text for text in texts if text not in blank]
    kind = column.kind
    if not isinstance(kind, Categorical) or len(kind.values) > WRITTEN:
        added = ", ".join(scalar(text) for text in [*blank, *rest[:_LISTED]])
        return [flow_kind(kind)], f"# add to its list: {added}", True
    values = {value.label: list(value.texts) for value in listed_values_of(kind)}
    spelled = {_spelled(text): label for label, texts in values.items() for text in (label, *texts)}
    unlike = [text for text in rest if _spelled(text) not in spelled]
    for text in rest:
        if text not in unlike:
            values[spelled[_spelled(text)]].append(text)
    for text in _distinct(unlike, decimal) if len(unlike) <= _LISTED else ():
        values.setdefault(spelled.setdefault(_spelled(text), seen(text)), []).append(text)
    if blank:
        missing = (
            label
            for label, of in values.items()
            if any(text.casefold() in NO_ANSWER for text in (label, *of))
        )
        values.setdefault(next(missing, "no answer"), []).extend(_distinct(blank, decimal))
    field = flow_values([Value(label, tuple(texts)) for label, texts in values.items()])
    return [field], "", len(unlike) > _LISTED or not all_known


def _spelled(text: str) -> str:
    """Return a text without what is often written in two ways: case, blanks, what is not seen."""
    return "".join(seen(text).split()).casefold()


def _distinct(texts: Iterable[str], decimal: str) -> list[str]:
    """Return texts without those that are a number of another one: `1` and `1.0` are one value."""
    taken: dict[object, str] = {}
    for text in texts:
        taken.setdefault(number(text, decimal) or text, text)
    return list(taken.values())


def _wider(dates: Dates, odd: UndeclaredValues) -> tuple[Dates, str, bool]:
    """Return periods that take in most dates, a comment, and whether some records are left.

    A column has one format: that of the most records, those of declared dates among them.
    """
    records = dict(odd.commonest)
    formats = list(dict.fromkeys([dates.format, *map(DateFormat, _FORMATS)]))
    days = {style: _days(style, records, dates) for style in formats}

    def fitting(style: DateFormat, texts: Iterable[str]) -> int:
        declared = odd.declared if style == dates.format else 0
        return declared + sum(records[text] for text in texts if text in days[style])

    style = max(formats, key=lambda style: fitting(style, records))
    answered = sum(n for text, n in records.items() if text.casefold() not in NO_ANSWER)
    if 2 * fitting(style, records) < odd.declared + answered:
        style = dates.format
    left = [text for text in records if text not in days[style]]
    second = max(formats, key=lambda other: fitting(other, left) if other != style else -1)
    remark = ""
    if others := fitting(second, left):
        remark = (
            f"# written as {style.example}: {fitting(style, records):,} records, as "
            f"{second.example}: {others:,}; a column has one format"
        )
    wider = _with_format(dates, style, list(days[style].values()))
    return wider, remark, bool(left or (odd.declared and style != dates.format))


def _days(style: DateFormat, texts: Iterable[str], dates: Dates) -> dict[str, date]:
    """Return the texts that are dates of a format, and not far from those declared."""
    read = {text: day for text in texts if (day := style.read(text)) is not None}
    years = [day.year for day in read.values()]
    near = {*_believable(years, dates.first.year, dates.last.year, reach=_YEARS)}
    return {text: day for text, day in read.items() if day.year in near}


def _with_format(dates: Dates, style: DateFormat, days: Collection[date]) -> Dates:
    """Return periods of another format, with some days; no finer than the format tells apart."""
    # Whole years more: the first and last day of the file are of its records.
    if days and min(days) < dates.first:
        dates = replace(dates, first=date(min(days).year, 1, 1))
    if days and max(days) > dates.last:
        dates = replace(dates, last=date(max(days).year, 12, 31))
    if style.has("day"):
        return replace(dates, format=style)
    finest = PERIOD_KINDS.index("month" if style.has("month") else "year")
    by = PERIOD_KINDS[max(finest, PERIOD_KINDS.index(dates.by))]
    dates = replace(dates, by=by, format=style)
    return replace(dates, first=dates.start(0))


def _wider_edges(edges: Sequence[float], first: float, last: float) -> list[float]:
    """Return edges that go on to new ends: in powers of ten where an end is far away.

    >>> _wider_edges((0.0, 10.0, 50.0), 0.0, 60.0), _wider_edges((0.0, 10.0, 50.0), -20.0, 3e4)
    ([0.0, 10.0, 50.0, 60.0], [-20.0, 0.0, 10.0, 50.0, 100.0, 1000.0, 10000.0, 30000.0])
    """
    low, high = edges[0], edges[-1]
    reach = _reach(low, high)
    powers = [10.0**k for k in range(23)]
    up = [power for power in powers if high < power < last and last > high + reach]
    down = [-power for power in powers if first < -power < low and first < low - reach]
    return sorted({first, *down, *edges, *up, last})


def _reach(low: float, high: float) -> float:
    """Return how far from a range its values may well be."""
    return 3 * (high - low) + 1


def _believable(
    numbers: Collection[float], low: float, high: float, *, reach: float | None = None
) -> list[float]:
    """Return the numbers that a range may well be widened to: no codes for a missing answer."""
    reach = _reach(low, high) if reach is None else reach
    next_to = {high, *numbers}

    def is_code(value: float) -> bool:
        apart = value < 0 <= low or (value > high and value - 1 not in next_to)
        return apart and _MISSING_CODE.fullmatch(f"{value:g}") is not None

    return [v for v in numbers if low - reach <= v <= high + reach and not is_code(v)]


def outwards(value: float, limit: float) -> int:
    """Return a wider limit that takes a number in, rounded as far as it moves: no record's own.

    >>> outwards(1137, 300), outwards(-43, -30), outwards(1988, 1987)
    (1200, -50, 1988)
    """
    size = int(10 ** (len(str(math.floor(abs(value - limit)))) - 1))
    # In whole numbers: beyond 2^53 the quotient of floats would round back.
    return (
        -(-math.ceil(value) // size) * size if value > limit else math.floor(value) // size * size
    )
