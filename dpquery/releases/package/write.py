"""The folder of a package, written whole.

All of it follows from the release's folder, so it is free, at any time, and the same release gives
the same bytes. A package is a release too: `answer` and `error-report` read it.

tables.xlsx: the tables of a release as sheets of one workbook, by the extra package XlsxWriter.

Every cell is written by its type, so that no text is taken for a formula, a number or an address.
The same release gives the same bytes: the workbook is dated to the beginning of time.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import pyarrow as pa
from pyarrow import csv, parquet

from dpquery.exceptions import DpqueryError, PlanConflictError, SpecError
from dpquery.measurement.ledger.store import sync_path
from dpquery.progress import report_progress, stage
from dpquery.releases.folder.write import NEW, check_apart, move_in, refuse_foreign, workshop_beside
from dpquery.releases.manifest import RELEASE_AGAIN, Manifest, read_manifest
from dpquery.releases.package.metadata import code_book, data_package, registry_entry, release_title
from dpquery.releases.package.pages import TextTable, html_page, markdown_page, quality
from dpquery.releases.package.tables import (
    CSVW_SUFFIX,
    NOISE_SUFFIX,
    PackagedTable,
    csvw_metadata,
    packaged_tables,
    safe_cells,
    write_csv_file,
)
from dpquery.releases.words import without_controls
from dpquery.spec.columns import Domain
from dpquery.spec.problems import quoted, several_texts, suggestion
from dpquery.spec.spec import About
from dpquery.untrusted.files import check_named, disk_words

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


def fits_a_sheet(table: PackagedTable) -> bool:
    """Return whether a sheet has room for a table and its header."""
    return table.rows < SHEET_ROWS


def write_workbook(
    tables: Sequence[PackagedTable], path: Path, *, title: str, about: TextTable
) -> None:
    """Write the tables that fit a sheet; the others are named on the first sheet."""
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


DATA_PACKAGE_FILE = "datapackage.json"
WORKBOOK_FILE = "tables.xlsx"
DESCRIPTIONS = ("codebook.md", "codebook.html", "quality.md", "registry.yaml", DATA_PACKAGE_FILE)
"""The files that every package has beside those of the release, the last one written last."""
TableFormat = Literal["csv", "xlsx", "replicates"]


@dataclass(frozen=True)
class PackageContent:
    """What a package is made of."""

    release: Path  # the folder of the release
    manifest: Manifest  # of the release
    about: About  # what its spec says of the publication
    domain: Domain | None  # of its spec; None where that is not at hand
    formats: tuple[TableFormat, ...]  # what is written beside the tables
    drawn: Mapping[str, pa.Table]  # by item its estimates beside draws of their noise, if asked for


def parse_formats(texts: str | Sequence[str]) -> dict[TableFormat, int]:
    """Read the formats asked for, in their own order, with the number of "replicates:400", or 0.

    >>> parse_formats(["replicates:400,csv"])
    {'csv': 0, 'replicates': 400}

    Raises:
        SpecError: a format is not known, or what writes it is missing.
    """
    known = get_args(TableFormat)
    given = dict[str, int]()
    for name in [name for text in several_texts("also", texts) for name in text.split(",")]:
        number = re.fullmatch("replicates:([1-9][0-9]{0,8})", name)
        given["replicates" if number else name] = int(number[1]) if number else 0
        if not number and name not in known:
            hint = suggestion(name, known)
            if name.startswith("replicates:"):
                hint = "; give a number of draws from 2 to 10,000, as in replicates:100"
            raise SpecError(
                f"--also {quoted(name)} is not known{hint}; a package has its tables as csv and "
                "xlsx beside Parquet, and replicates of their noise"
            )
    if "xlsx" in given and find_spec("xlsxwriter") is None:
        raise SpecError(
            "--also xlsx needs the package XlsxWriter, which is not installed; install it with "
            "`pip install 'dpquery[xlsx]'`, or leave xlsx out"
        )
    return {cast(TableFormat, name): given[name] for name in known if name in given}


def write_package(
    content: PackageContent, directory: Path, *, replace: bool
) -> tuple[PackagedTable, ...]:
    """Write a package, whole or not at all; return its tables.

    Privacy:
        Post-processing: a function of the release's folder, all of which is public.

    Raises:
        SpecError: the release is damaged.
        PlanConflictError: something else is in the way.
        DpqueryError: the files cannot be written; an earlier package is as it was.
    """
    directory = Path(os.path.abspath(directory))
    check_named(directory)
    check_apart(directory, content.release, noun="package")
    tables = packaged_tables(content.release, content.manifest, content.domain)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with workshop_beside(directory) as workshop:
            _refuse_other_folders(directory, content.manifest, replace=replace)
            folder = workshop / NEW
            folder.mkdir()
            report_progress("copying the release", 0.0)
            for name in content.manifest.files:
                _copy(content.release / name, folder / name)
            with stage("", 0.1, 0.9):
                _write_tables(folder, tables, content)
            report_progress("writing the code book and the metadata", 0.9)
            _write_descriptions(folder, tables, content)
            for path in folder.iterdir():
                sync_path(path)
            sync_path(folder)
            move_in(workshop, directory)
    except OSError as problem:
        raise DpqueryError(
            f"cannot write the package {directory}: {disk_words(problem)}; an earlier one is as "
            "it was. Mend that and run again"
        ) from None
    return tables


def _copy(source: Path, target: Path) -> None:
    if source.is_symlink() or not source.is_file():  # a link may lead to what is not public
        raise SpecError(f"{source} is missing, or no file of its own; {RELEASE_AGAIN}")
    shutil.copyfile(source, target)


def _write_tables(folder: Path, tables: Sequence[PackagedTable], content: PackageContent) -> None:
    if "csv" in content.formats:
        for number, table in enumerate(tables):
            report_progress(f"writing {table.name}.csv", number / len(tables))
            write_csv_file(table, folder / f"{table.name}.csv")
            metadata = csvw_metadata(table, content.about, url=f"{table.name}.csv")
            path = folder / f"{table.name}.{CSVW_SUFFIX}"
            path.write_text(metadata, encoding="utf-8")
    for name, drawn in content.drawn.items():
        parquet.write_table(drawn, folder / f"{name}{NOISE_SUFFIX}.parquet")
        if "csv" in content.formats:
            csv.write_csv(safe_cells(drawn), folder / f"{name}{NOISE_SUFFIX}.csv")
    if "xlsx" in content.formats:
        first = code_book(tables, content.manifest, content.about, ())
        write_workbook(
            tables,
            folder / WORKBOOK_FILE,
            title=release_title(content.manifest, content.about),
            about=next(part for part in first if isinstance(part, TextTable)),
        )


def _write_descriptions(
    folder: Path, tables: Sequence[PackagedTable], content: PackageContent
) -> None:
    manifest, about = content.manifest, content.about
    title, as_csv = release_title(manifest, about), "csv" in content.formats
    book = code_book(
        tables, manifest, about, [*(path.name for path in folder.iterdir()), *DESCRIPTIONS]
    )
    texts = {
        "codebook.md": markdown_page(title, book),
        "codebook.html": html_page(title, book),
        "quality.md": markdown_page(f"{title}: quality", quality(tables, manifest, about)),
        "registry.yaml": registry_entry(manifest, about, content.domain),
        DATA_PACKAGE_FILE: data_package(tables, manifest, about, folder=folder, csv=as_csv),
    }
    for name in DESCRIPTIONS:
        (folder / name).write_text(texts[name], encoding="utf-8")


def _refuse_other_folders(directory: Path, manifest: Manifest, *, replace: bool) -> None:
    """Refuse a target that is no package, or one of another release that is not to be replaced."""
    if not os.path.lexists(directory):
        return
    if directory.is_symlink() or not directory.is_dir():
        raise PlanConflictError(f"{directory} is not a folder; name another one for the package")
    names = {path.name for path in directory.iterdir()}
    if not names:
        return
    try:
        earlier = read_manifest(directory) if DATA_PACKAGE_FILE in names else None
    except SpecError:
        earlier = None
    if earlier is None:
        raise PlanConflictError(
            f"{directory} is not empty and no package; name another folder, or move it away"
        )
    if earlier.key != manifest.key and not replace:
        raise PlanConflictError(
            f"{directory} holds the package of another release; add --replace, or name another "
            "folder"
        )
    refuse_foreign(directory, _possible_files(earlier), noun="package")


def _possible_files(manifest: Manifest) -> set[str]:
    """Return the names of all files that a package of a release may have."""
    stems = [n.removesuffix(".parquet") for n in manifest.files if n.endswith(".parquet")]
    ends = ("csv", CSVW_SUFFIX, *(f"{NOISE_SUFFIX[1:]}.{end}" for end in ("parquet", "csv")))
    tables = {f"{stem}.{end}" for stem in stems for end in ends}
    return {*manifest.files, *tables, *DESCRIPTIONS, WORKBOOK_FILE}


def left_out(tables: Sequence[PackagedTable], formats: Sequence[TableFormat]) -> tuple[str, ...]:
    """Return the names of tables that no sheet of the workbook has room for."""
    if "xlsx" not in formats:
        return ()
    return tuple(table.name for table in tables if not fits_a_sheet(table))
