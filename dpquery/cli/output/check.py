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
from dpquery.releases.formatting import count, percent
from dpquery.spec.domain import Bins, Boolean, Categorical, Column, Integers

_COMMONEST = 6  # undeclared texts of a column that are shown
_NAMES = 20  # columns that are named
_LONGEST = 40  # characters of a text that are shown
_MARKS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}


def left_out_grid(found: DataCheck, name: str) -> Grid:
    """Return what matters most: how many records are in no table, and why."""
    records = found.records
    if records is None:
        title = f"{name}: `dpquery release` would refuse this file, or count nothing in it"
        return Grid(title, ("",), (), tuple(_header_lines(found)))
    refused = "" if found.header.fits else "`dpquery release` would refuse this file; "
    if not records.left_out:
        title = f"{name}: {refused}every record is counted, all {records.total:,} of them"
        return Grid(title, ("",), (), tuple(_header_lines(found)))
    share = percent(records.left_out / records.total)
    title = (
        f"{name}: {refused}{_about(records)}{records.left_out:,} of "
        f"{count(records.total, 'record')} ({share}) would be left out of every table"
    )
    columns = ("because of", "records", "for this alone")
    return Grid(title, columns, tuple(_reasons(found, records)), tuple(_header_lines(found)))


def _about(records: Records) -> str:
    return "about " if records.persons is not None and records.persons.share < 1 else ""


def _reasons(found: DataCheck, records: Records) -> Iterator[tuple[str, str, str]]:
    """Yield why records are left out, the most first."""
    rows = [
        (f"undeclared values in `{own.column.name}`", own.records, own.alone)
        for own in records.columns
        if own.records and not own.column.other
    ]
    if records.malformed.records and records.malformed.dropped:
        lines = records.malformed.records
        rows.append(("lines that cannot be split into fields", lines, lines))
    persons = records.persons
    if persons is not None:
        if persons.blank:
            rows.append(
                (f"no id in `{found.spec.privacy.person}`", persons.blank, persons.blank_alone)
            )
        limit = found.spec.privacy.max_rows
        if beyond := persons.beyond(limit):
            rows.append((f"max_rows: {limit}, as declared", beyond, beyond))
    for reason, number, alone in sorted(rows, key=lambda row: -row[1]):
        yield reason, f"{number:,}", f"{alone:,}"


def _header_lines(found: DataCheck) -> Iterator[str]:
    """Yield what is wrong with the header."""
    header = found.header
    if header.names is None:
        yield "the first line is not a header of column names as the spec declares the file"
    if header.missing:
        yield f"declared and not in the header: {_named(header.missing)}"
    if header.repeated:
        yield f"more than once in the header: {_named(header.repeated)}"


def check_grids(found: DataCheck) -> list[Grid]:
    """Return a table a concern."""
    grids = []
    records = found.records
    if records is not None:
        undeclared = [own for own in records.columns if own.records]
        if undeclared:
            grids.append(_values_grid(undeclared, records.total))
        if records.malformed.records:
            grids.append(_malformed_grid(records.malformed))
        if records.persons is not None:
            grids.append(_persons_grid(records.persons, found.spec.privacy.max_rows))
    grids.append(_layout_grid(found.layout, found.header))
    return grids


def _values_grid(columns: Sequence[UndeclaredValues], total: int) -> Grid:
    rows = tuple(
        (own.column.name, _declared(own.column), f"{own.records:,}", _fate(own), _commonest(own))
        for own in columns
    )
    notes = [
        f"`{own.column.name}`: declared and in no record: {_named(own.absent)}"
        for own in columns
        if own.absent
    ]
    if any(not own.complete for own in columns):
        notes.append("+: at least so many; there are too many different texts to count them all")
    notes += [
        f"`{own.column.name}`: no record holds a declared value"
        for own in columns
        if own.records >= total
    ]
    names = ("column", "declared", "records", "which are", "undeclared values, commonest first")
    return Grid("undeclared values", names, rows, tuple(notes))


def _fate(own: UndeclaredValues) -> str:
    return "other" if own.column.other else "left out"


def _commonest(own: UndeclaredValues) -> str:
    sign = "" if own.complete else "+"
    shown = [f"{_shown(text)} ({records:,}{sign})" for text, records in own.commonest[:_COMMONEST]]
    rest = len(own.commonest) - len(shown)
    return ", ".join(shown) + (f" and {rest:,}{sign} more" if rest else "")


def _shown(text: str) -> str:
    """Return a text in quotes, cut where it is long."""
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


def _malformed_grid(malformed: Malformed) -> Grid:
    what = "left out of every table" if malformed.dropped else "counted as `other` in every column"
    rows = tuple((reason, f"{n:,}", f"{line:,}") for reason, n, line in malformed.reasons)
    notes: tuple[str, ...] = ()
    if malformed.looked_at < malformed.records:
        notes = (f"of the first {malformed.looked_at:,} such lines",)
    title = f"{count(malformed.records, 'line')} cannot be split into fields: {what}"
    return Grid(title, ("what is wrong", "lines", "first in line"), rows, notes)


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
    notes = [f"most rows: {', '.join(f'{_shown(own)} ({n:,})' for own, n in persons.busiest)}"]
    if persons.blank:
        notes.append(f"{count(persons.blank, 'record')} without an id, which are nobody's")
    if persons.share < 1:
        notes.append(f"from all rows of one person in {round(1 / persons.share):,}, at random")
    title = f"rows per person: {about}{count(persons.number, 'person')}, {about}{total:,} rows"
    columns = ("max_rows", "persons with more", "rows left out", "share", "")
    return Grid(title, columns, tuple(rows), tuple(notes) if persons.busiest else (), strong)


def _layout_grid(layout: FileGuess, header: Header) -> Grid:
    """Return a guess at how the file is laid out."""
    if not layout.is_text:
        holder = layout.container or "something else than text"
        return Grid("the file", ("", ""), (("seems to be", holder),))
    rows = [("held in", layout.container)] if layout.container else []
    rows += [
        ("encoding", layout.encoding),
        ("delimiter", _MARKS[layout.delimiter]),
        ("quotes", "single" if layout.quote == "'" else "double"),
        ("decimal mark", "comma" if layout.decimal == "," else "point"),
        ("quotes over line ends", "yes" if layout.newlines_in_quotes else "no"),
        ("fields in the first line", f"{len(layout.names):,}"),
        ("lines with as many fields", percent(layout.steady)),
    ]
    notes = ["a guess from the first mebibyte; a release takes the spec's word and never guesses"]
    notes += layout.remarks
    if header.undeclared:
        notes.append(f"columns that the spec does not use: {_named(header.undeclared)}")
    return Grid("the file, as it seems", ("", ""), tuple(rows), tuple(notes))


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(
        name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…" for name in names[:_NAMES]
    )
    return shown + (f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else "")


def to_paste(found: DataCheck, spec: str) -> list[str]:
    """Return the YAML that would declare what was found, with a warning above it."""
    if not found.remedies:
        return []
    return [
        f"# To paste into {spec}, where the code book says so too:",
        "# a spec is published, and one that was written from the",
        "# records tells what it was written from.",
        *found.remedies,
    ]
