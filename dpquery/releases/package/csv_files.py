"""The tables of a release as CSV: UTF-8, commas, a header, and CSV on the Web metadata beside.

A cell that a spreadsheet would take for a formula has an apostrophe before it: a text that begins
with = + - @, a tab or a carriage return, and is no number. Empty cells are missing values, except
in columns of texts that are never missing, where they are empty texts.
"""

import json
import re
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.csv

from dpquery.releases.package.packaged_tables import PackagedTable
from dpquery.releases.tables.file_fields import FileField
from dpquery.spec.model import About

CSVW_SUFFIX = "csv-metadata.json"
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATATYPES = {
    "text": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "date": "date",
}


def csv_text(text: str) -> str:
    """Return a text as a cell has it: no spreadsheet takes it for a formula.

    >>> csv_text("=1+1"), csv_text("-5"), csv_text("-5 to -1"), csv_text("North")
    ("'=1+1", '-5', "'-5 to -1", 'North')
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def write_csv_file(table: PackagedTable, path: Path) -> None:
    """Write a table as CSV; the same table gives the same bytes."""
    schema = pa.schema([(csv_text(f.name), _cell_type(f)) for f in table.fields])
    options = pyarrow.csv.WriteOptions(quoting_style="needed")
    with pyarrow.csv.CSVWriter(path, schema, write_options=options) as writer:
        for batch in table.batches():
            columns = [_cells(column) for column in batch.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def csvw_metadata(table: PackagedTable, about: About, *, url: str) -> str:
    """Return the CSV on the Web metadata of a table's CSV file, as JSON.

    Args:
        table: the table.
        about: what the spec says of the publication.
        url: name of the CSV file, beside this one.
    """
    content: dict[str, object] = {
        "@context": ["http://www.w3.org/ns/csvw", {"@language": "en"}],
        "url": url,
        "dc:title": table.name,
    }
    if table.description:
        content["dc:description"] = table.description
    if about.licence is not None:
        content["dc:license"] = about.licence
    schema: dict[str, object] = {"columns": [_csvw_column(field) for field in table.fields]}
    if table.key:
        schema["primaryKey"] = [_csvw_name(name) for name in table.key]
    content["tableSchema"] = schema
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _csvw_column(field: FileField) -> dict[str, object]:
    datatype: str | dict[str, object] = _DATATYPES[field.kind]
    limits = {"minimum": field.low, "maximum": field.high}
    stated = {name: limit for name, limit in limits.items() if limit is not None}
    if stated:
        datatype = {"base": datatype, **stated}
    column: dict[str, object] = {
        "name": _csvw_name(field.name),
        "titles": csv_text(field.name),
        "datatype": datatype,
        "dc:description": field.meaning,
    }
    if field.unit:
        column["schema:unitText"] = field.unit
    if not field.nullable and not may_be_blank(field):
        column["required"] = True
    return column


def may_be_blank(field: FileField) -> bool:
    """Return whether an empty text is among the values of a column of texts, as far as known."""
    known = [category.value for category in field.categories]
    return field.kind == "text" and (not known or "" in known)


def _csvw_name(name: str) -> str:
    """Return a column's name as a variable of a URI template, which has few characters."""
    encoded = quote(name, safe="").replace("-", "%2D").replace("~", "%7E")
    return f"%5F{encoded[1:]}" if encoded.startswith("_") else encoded


def _cell_type(field: FileField) -> pa.DataType:
    kinds = {"text": pa.string(), "boolean": pa.bool_(), "date": pa.date32()}
    return kinds.get(field.kind, pa.int64() if field.kind == "integer" else pa.float64())


def _cells(column: pa.Array) -> pa.Array:
    """Return a column as it is written: texts made safe, whole numbers of one width."""
    if pa.types.is_dictionary(column.type):
        texts = pa.array([csv_text(text) for text in column.dictionary.to_pylist()], pa.string())
        return texts.take(column.indices)
    if pa.types.is_string(column.type):
        texts = [None if text is None else csv_text(text) for text in column.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.float64()) if pa.types.is_floating(column.type) else column
