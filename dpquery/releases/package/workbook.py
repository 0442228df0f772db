"""tables.xlsx: the tables of a release as sheets of one workbook, by the extra package XlsxWriter.

Every cell is written by its type, so that no text is taken for a formula, a number or an address.
The same release gives the same bytes: the workbook is dated to the beginning of time.
"""

from collections.abc import Callable, Sequence
from datetime import date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpquery.exceptions import SpecError
from dpquery.releases.formatting import without_controls
from dpquery.releases.package.packaged_tables import PackagedTable
from dpquery.releases.package.pages import TextTable

if TYPE_CHECKING:
    from xlsxwriter import Workbook
    from xlsxwriter.format import Format
    from xlsxwriter.worksheet import Worksheet

CellWriter = Callable[[int, int, Any], object]

SHEET_ROWS, SHEET_NAME, CELL_TEXT = 1_048_576, 31, 32_767
"""What a sheet, its name and a cell hold at most."""
_NEVER = datetime(1980, 1, 1)
_FIRST_DAY = date(1900, 3, 1)  # from which Excel counts days as the calendar does
_TAKEN = ("about", "columns", "history")  # sheets of our own, and a name that Excel keeps


def check_workbook() -> None:
    """Refuse a workbook where what writes it is missing.

    Raises:
        SpecError: XlsxWriter is not installed.
    """
    if find_spec("xlsxwriter") is None:
        raise SpecError(
            "--also xlsx needs the package XlsxWriter, which is not installed; install it with "
            "`pip install 'dpquery[xlsx]'`, or leave xlsx out"
        )


def fits_a_sheet(table: PackagedTable) -> bool:
    """Return whether a sheet has room for a table and its header."""
    return table.rows < SHEET_ROWS


def write_workbook(
    tables: Sequence[PackagedTable], path: Path, *, title: str, about: TextTable
) -> None:
    """Write the tables that fit a sheet; the others are named on the first sheet.

    Args:
        tables: of the release.
        path: of the workbook.
        title: of the release.
        about: what is said of it on the first sheet.
    """
    from xlsxwriter import Workbook

    options = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
    with Workbook(str(path), options) as book:
        book.set_properties({"title": without_controls(title), "created": _NEVER})
        bold = book.add_format({"bold": True})
        names = _sheet_names(tables)
        lines = [("Title", title), *about.rows, ("", "")]
        lines += [("Sheet", "Table"), *_contents(tables, names)]
        _write_lines(book.add_worksheet("About"), lines, bold, widths=(24, 100))
        head = ("sheet", "column", "type", "unit", "holds")
        columns = [
            (names[table.name], field.name, field.kind, field.unit, field.meaning)
            for table in tables
            if fits_a_sheet(table)
            for field in table.fields
        ]
        sheet = book.add_worksheet("Columns")
        _write_lines(sheet, [head, *columns], bold, widths=(24, 24, 10, 12, 90))
        for table in tables:
            if fits_a_sheet(table):
                _write_table(book, names[table.name], table, bold)


def _contents(tables: Sequence[PackagedTable], names: dict[str, str]) -> list[tuple[str, str]]:
    return [
        (names[table.name], table.description)
        if fits_a_sheet(table)
        else ("(left out)", f"{table.name}: {table.rows:,} rows, more than a sheet has room for")
        for table in tables
    ]


def _sheet_names(tables: Sequence[PackagedTable]) -> dict[str, str]:
    """Return a name of at most 31 characters for each table, no two the same."""
    names: dict[str, str] = {}
    for table in tables:
        taken = {*_TAKEN, *(name.lower() for name in names.values())}
        name, number = table.name[:SHEET_NAME], 1
        while name.lower() in taken:
            number += 1
            name = f"{table.name[: SHEET_NAME - 1 - len(str(number))]}~{number}"
        names[table.name] = name
    return names


def _write_lines(
    sheet: "Worksheet", lines: Sequence[Sequence[str]], bold: "Format", *, widths: Sequence[int]
) -> None:
    for place, width in enumerate(widths):
        sheet.set_column(place, place, width)
    for row, line in enumerate(lines):
        for place, text in enumerate(line):
            sheet.write_string(row, place, _cell_text(text), bold if row == 0 else None)


def _write_table(book: "Workbook", name: str, table: PackagedTable, bold: "Format") -> None:
    sheet = book.add_worksheet(name)
    sheet.freeze_panes(1, 0)
    days = book.add_format({"num_format": "yyyy-mm-dd"})
    for place, field in enumerate(table.fields):
        sheet.set_column(place, place, max(12, min(40, len(field.name) + 2)))
        sheet.write_string(0, place, _cell_text(field.name), bold)
    writers = [_writer(sheet, field.kind, days) for field in table.fields]
    row = 0
    for batch in table.batches():
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            row += 1
            for place, (write, value) in enumerate(zip(writers, values, strict=True)):
                if value is not None:
                    write(row, place, value)


def _writer(sheet: "Worksheet", kind: str, days: "Format") -> CellWriter:
    def write_day(row: int, place: int, day: date) -> object:
        if day < _FIRST_DAY:
            return sheet.write_string(row, place, day.isoformat())
        return sheet.write_datetime(row, place, day, days)

    def write_text(row: int, place: int, text: str) -> object:
        return sheet.write_string(row, place, _cell_text(text))

    writers: dict[str, CellWriter] = {
        "integer": sheet.write_number,
        "number": sheet.write_number,
        "boolean": sheet.write_boolean,
        "date": write_day,
    }
    return writers.get(kind, write_text)


def _cell_text(text: str) -> str:
    return without_controls(text)[:CELL_TEXT]
