"""What `check` prints, as plain rows; made of the records: private, as they are."""

from collections.abc import Iterator, Sequence

from dpquery.cli.output.text_table import Grid
from dpquery.data_check.findings import (
    DataCheck,
    FileGuess,
    Header,
    Malformed,
    Records,
    RowsPerPerson,
    UndeclaredValues,
)
from dpquery.data_check.letters import written_out
from dpquery.releases.formatting import count, percent
from dpquery.spec.domain import Bins, Boolean, Categorical, Column, Dates, Integers
from dpquery.spec.model import FileFormat
from dpquery.spec.problems import nearest

_COMMONEST = 6  # undeclared texts of a column that are shown
_NAMES = 20  # columns that are named
_LONGEST = 40  # characters of a text that are shown
_SOURCES = 5  # refusals of a release that are shown
_MARKS = {
    **{",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe", ".": "point"},
    **{'"': "double quotes", "'": "single quotes", "": "any"},
}
_LAYOUT = {
    "encoding": "encoding",
    "delimiter": "delimiter",
    "quotes": "quote",
    "decimal mark": "decimal",
    "quotes over line ends": "newlines_in_quotes",
}


def left_out_grid(checked: DataCheck, name: str) -> Grid:
    """Return what matters most: whether a release would read the data, and whom it leaves out."""
    records = checked.records
    notes = tuple(_problems(checked))
    if records is None:
        return Grid(f"{name}: `dpquery release` would refuse this", (), (), notes)
    refused = "`dpquery release` would refuse this; of the rest " if notes else ""
    if not records.total:
        return Grid(f"{name}: {refused}there is no record", (), (), notes)
    if not records.left_out:
        all_of = f", all {records.total:,} of them" if records.total > 1 else ""
        title = f"{name}: {refused}every record is counted{all_of}"
        return Grid(title, (), (), (*_remarks(checked, records), *notes))
    share = percent(records.left_out / records.total)
    title = (
        f"{name}: {refused}{_about(records)}{records.left_out:,} of "
        f"{count(records.total, 'record')} ({share}) would be left out of every table"
    )
    columns = ("because of", "records", "for this alone")
    remarks = (*_remarks(checked, records), *notes)
    return Grid(title, columns, tuple(_reasons(checked, records)), remarks)


def _remarks(checked: DataCheck, records: Records) -> Iterator[str]:
    """Yield what is odd in records that are read, and how days are told."""
    yield from _repeated(records)
    yield from _in_no_value(records)
    for name, zone in checked.header.zones:
        yield f"`{name}` holds times with a zone: days are those of {zone}"


def _repeated(records: Records) -> Iterator[str]:
    """Yield which sources hold the same records as another."""
    for name, first, number in records.repeated[:_SOURCES]:
        yield (
            f"{name} holds the same {count(number, 'record')} as {first}, in all declared columns "
            "and in the same order: a release would count them twice"
        )


def _in_no_value(records: Records) -> Iterator[str]:
    """Yield how many records are counted, and not under every attribute's declared values."""
    odd = [values for values in records.columns if values.records and not values.column.drops]
    if odd:
        hold = "holds" if records.undeclared == 1 else "hold"
        yield (
            f"{records.undeclared:,} of {count(records.total, 'record')} "
            f"({percent(records.undeclared / records.total)}) {hold} an undeclared value somewhere"
        )


def _problems(checked: DataCheck) -> Iterator[str]:
    """Yield what keeps a release from reading the data, and what of it is in the headers."""
    yield from checked.header.refusals[:_SOURCES]
    if len(checked.header.refusals) > _SOURCES:
        yield f"and so {len(checked.header.refusals) - _SOURCES:,} more"
    if checked.header.refusals and checked.header.missing and checked.records is not None:
        yield f"not looked at, for want of a column: {_named(checked.header.missing)}"
    if checked.header.repeated:
        yield f"not looked at, for more than one column: {_named(checked.header.repeated)}"
    for name in checked.header.missing:
        if near := nearest(name, checked.header.undeclared):
            yield f"`{name}` is not there; is it `{written_out(near)[:_LONGEST]}`?"
    yield from checked.failures


def _about(records: Records) -> str:
    return "about " if records.persons is not None and records.persons.share < 1 else ""


def _reasons(checked: DataCheck, records: Records) -> Iterator[tuple[str, str, str]]:
    """Yield why records are left out, the most first."""
    rows = [
        (f"undeclared values in `{values.column.name}`", values.records, values.alone)
        for values in records.columns
        if values.records and values.column.drops
    ]
    if records.malformed.records and records.malformed.dropped:
        lines = records.malformed.records
        rows.append(("lines that cannot be split into fields", lines, lines))
    persons = records.persons
    if persons is not None:
        if persons.blank:
            rows.append(
                (f"no id in `{checked.spec.privacy.person}`", persons.blank, persons.blank_alone)
            )
        limit = checked.spec.privacy.max_rows
        if beyond := persons.beyond(limit):
            rows.append((f"max_rows: {limit}, as declared", beyond, beyond))
    for reason, number, alone in sorted(rows, key=lambda row: -row[1]):
        yield reason, f"{number:,}", f"{alone:,}"


def check_grids(checked: DataCheck) -> list[Grid]:
    """Return a table a concern."""
    grids = []
    records = checked.records
    if records is not None:
        undeclared = [values for values in records.columns if values.records]
        if undeclared:
            grids.append(_values_grid(undeclared, records.total))
        if records.malformed.records:
            grids.append(_malformed_grid(records.malformed))
        if records.persons is not None:
            grids.append(_persons_grid(records.persons, checked.spec.privacy.max_rows))
    if checked.layout is not None:
        grids.append(_layout_grid(checked.layout, checked.spec.file, checked.header))
    return grids


def _values_grid(columns: Sequence[UndeclaredValues], total: int) -> Grid:
    rows = tuple(
        (
            values.column.name,
            _declared(values.column),
            f"{values.records:,}",
            _fate(values),
            _commonest(values),
        )
        for values in columns
    )
    notes = [
        f"`{values.column.name}`: declared and in no record: {_named(values.absent)}"
        for values in columns
        if values.absent
    ]
    if any(not values.complete for values in columns):
        notes.append("+: at least so many; there are too many different texts to count them all")
    notes += [
        f"`{values.column.name}`: no record holds a declared value"
        for values in columns
        if values.records >= total
    ]
    names = ("column", "declared", "records", "which are", "undeclared values, commonest first")
    return Grid("undeclared values", names, rows, tuple(notes))


def _fate(values: UndeclaredValues) -> str:
    return {"count": "in totals alone", "show": "other", "drop": "left out"}[values.column.other]


def _commonest(values: UndeclaredValues) -> str:
    sign = "" if values.complete else "+"
    shown = [
        f"{_shown(text)} ({records:,}{sign})" for text, records in values.commonest[:_COMMONEST]
    ]
    rest = len(values.commonest) - len(shown)
    return ", ".join(shown) + (f" and {rest:,}{sign} more" if rest else "")


def _shown(text: str) -> str:
    """Return a text in quotes, cut where it is long, with bytes that are no text written out."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    text = written_out(text)
    return f'"{text[:_LONGEST]}…"' if len(text) > _LONGEST else f'"{text}"'


def _declared(column: Column) -> str:
    match column.kind:
        case Categorical(values=values):
            return count(len(values), "value")
        case Integers(low=low, high=high):
            return f"{low} to {high}"
        case Bins(edges=edges):
            return f"{edges[0]:g} up to {edges[-1]:g}"
        case Boolean():
            return "boolean"
        case Dates(first=first, last=last):
            return f"{first} to {last}"


def _malformed_grid(malformed: Malformed) -> Grid:
    what = "left out of every table" if malformed.dropped else "counted in totals alone"
    rows = tuple((reason, f"{n:,}", first) for reason, n, first in malformed.reasons)
    notes: tuple[str, ...] = ()
    if malformed.looked_at < malformed.records:
        notes = (f"of the first {malformed.looked_at:,} such lines",)
    title = f"{count(malformed.records, 'line')} cannot be split into fields: {what}"
    return Grid(title, ("what is wrong", "lines", "first in"), rows, notes)


def _persons_grid(persons: RowsPerPerson, max_rows: int) -> Grid:
    """Return how many rows persons have, and what each limit would leave out."""
    about = "about " if persons.share < 1 else ""
    limits = sorted({1, 2, 3, 5, 10, 20, 50, max_rows, *(rows for rows, _ in persons.persons[-1:])})
    number = dict(persons.persons)
    top = max(number, default=0)
    rows: list[tuple[str, ...]] = []
    strong = None
    total = sum(n * of for n, of in persons.persons)
    for limit in limits:
        if limit > max(top, max_rows):
            break
        strong = len(rows) if limit == max_rows else strong
        beyond = persons.beyond(limit)
        rows.append(
            (
                f"{limit:,}",
                f"{sum(of for n, of in persons.persons if n > limit):,}",
                f"{beyond:,}",
                percent(beyond / total) if total else "",
                "as declared" if limit == max_rows else "",
            )
        )
    notes = [
        f"most rows: {', '.join(f'{_shown(person)} ({n:,})' for person, n in persons.busiest)}"
    ]
    if persons.blank:
        notes.append(f"{count(persons.blank, 'record')} without an id, which are nobody's")
    if persons.respelled:
        notes.append(
            f"{count(persons.respelled, 'person')} by several spellings of one number, as 1 and 1.0"
        )
    if persons.rounded:
        notes.append(
            f"{count(persons.rounded, 'id')} beyond 2^53 written as floats, which round: several "
            "persons may have one; write ids as whole numbers or texts"
        )
    notes += [
        f"{ids:,} ids differ in {what} alone, and would be {count(of, 'person')} without: if each "
        "is one, write their ids alike, since a release counts them as several"
        for what, ids, of in persons.alike
    ]
    if persons.share < 1:
        notes.append(f"of about one person in {round(1 / persons.share):,}, chosen at random")
    if persons.sorted_by and persons.beyond(max_rows):
        notes.append(
            f"`keep: first`, and rows of a person are sorted by {_named(persons.sorted_by)}: those "
            "that are left out are always the last of it; `keep: random` takes any"
        )
    title = (
        f"rows per person: {about}{count(persons.number, 'person')}, {about}{count(total, 'row')}"
    )
    columns = ("max_rows", "persons with more", "rows left out", "share", "")
    return Grid(title, columns, tuple(rows), tuple(notes) if persons.busiest else (), strong)


def _layout_grid(layout: FileGuess, declared: FileFormat, header: Header) -> Grid:
    """Return a guess at how a file is laid out beside what is declared."""
    notes = [*layout.remarks]
    if not layout.is_text:
        holder = layout.container or "something else than text"
        return Grid(f"{layout.name} seems to be {holder}", (), (), tuple(notes))
    mended = layout.mended(declared)
    rows = []
    for what, key in _LAYOUT.items():
        now, seems, to_be = (getattr(of, key) for of in (declared, layout, mended))
        rows.append((what, _word(seems), _word(now), "" if now == to_be else "differs"))
    if layout.container:
        rows.append(("packed by", layout.container, "", ""))
    if layout.steady < 1:
        share = percent(1 - layout.steady)
        notes.append(f"{share} of its lines have other than {count(len(layout.names), 'field')}")
    if header.undeclared and layout.delimiter in {"", declared.delimiter}:
        notes.append(f"columns that the spec does not use: {_named(header.undeclared)}")
    notes.append("a guess from the first mebibyte: a release takes the spec's word")
    columns = (layout.name, "seems to be", "declared", "")
    return Grid("the file", columns, tuple(rows), tuple(notes))


def _word(value: str | bool) -> str:
    """Return a part of a layout in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _MARKS.get(value, value)


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(
        name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
        for name in map(written_out, names[:_NAMES])
    )
    return shown + (f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else "")


def to_paste(checked: DataCheck, spec: str) -> list[str]:
    """Return the YAML that would declare what was found, with a warning above it."""
    if not checked.remedies:
        return []
    return [
        f"# To paste into {spec}, where the code book says so too:",
        "# a spec is published, and one that was written from the",
        "# records tells what it was written from.",
        *checked.remedies,
    ]
