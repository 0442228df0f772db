"""The tables of a release as CSV: UTF-8, commas, a header, and CSV on the Web metadata beside.

A cell that a spreadsheet would take for a formula has an apostrophe before it: a text that begins
with = + - @, a tab or a carriage return, and is no number. Empty cells are missing values, except
in columns of texts that are never missing, where they are empty texts.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from dpquery.releases.manifest import ERRORS_FILE, Manifest, saying_damage
from dpquery.releases.manifest_facts import DerivedFacts, ItemFacts
from dpquery.releases.tables.file_columns import ANSWER_COLUMNS, AXES, ERRORS, LABELS, FileColumn
from dpquery.releases.tables.file_fields import (
    Category,
    FileField,
    derived_item_fields,
    item_fields,
    other_fields,
)
from dpquery.releases.tables.item_table import BATCH_ROWS
from dpquery.releases.words import csv_text
from dpquery.spec.columns import Attribute, Domain
from dpquery.spec.spec import About
from dpquery.untrusted.parquet import opened

MAX_CATEGORIES = 1000
"""Values of a column that are listed; of more, their number is said, and they stand in the file."""
MAX_KEY_ROWS = 5_000_000
"""Rows of a file in which a key is looked for; of more, none is stated."""


Rewritten = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True)
class PackagedTable:
    """One table of a release."""

    name: str  # the file's, without its ending
    path: Path  # of its Parquet file
    description: str  # what it shows, in the words of the spec if it has any
    rows: int  # how many it has
    fields: tuple[FileField, ...]  # its columns, in order
    # whether the fields that say what a row is are not the same in any two rows
    unique: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the columns that distinguish the rows; none where some rows are asked twice."""
        return tuple(field.name for field in self.fields if field.key) if self.unique else ()

    def batches(self, written: Rewritten = lambda batch: batch) -> Iterator[pa.RecordBatch]:
        """Yield the rows, as they are to be written.

        Raises:
            SpecError: the file is damaged.
        """
        with (
            saying_damage(self.path.parent, self.path.name),
            opened(self.path, rows=self.rows) as file,
        ):
            yield from map(written, file.iter_batches(BATCH_ROWS))


def packaged_tables(
    directory: Path, manifest: Manifest, domain: Domain | None
) -> tuple[PackagedTable, ...]:
    """Return the tables of a release: its items in order, what is derived, and the errors of all.

    Raises:
        SpecError: a file is missing or damaged.
    """
    tables = []
    for facts in manifest.items:
        with saying_damage(directory, facts.file):
            tables.append(_table_of_rows(directory / facts.file, facts, manifest, domain))
        if facts.numbered:
            lists = ((facts.tables_file, AXES), (facts.labels_file, LABELS))
            words = ("the attributes of its tables", "the labels of its rows")
            for (name, columns), word in zip(lists, words, strict=True):
                description = f"{facts.name}: {word}"
                with saying_damage(directory, name):
                    tables.append(_other_table(directory / name, description, columns, manifest))
    for derived in manifest.derived:
        with saying_damage(directory, derived.file):
            tables.append(_table_of_rows(directory / derived.file, derived, manifest, domain))
    with saying_damage(directory, ERRORS_FILE):
        title = "What the answers of each item are worth, in short"
        tables.append(_other_table(directory / ERRORS_FILE, title, ERRORS, manifest))
    return tuple(tables)


def _table_of_rows(
    path: Path, facts: ItemFacts | DerivedFacts, manifest: Manifest, domain: Domain | None
) -> PackagedTable:
    rows = facts.queries if isinstance(facts, ItemFacts) else facts.rows
    with opened(path, rows=rows) as file:
        if isinstance(facts, ItemFacts):
            fields = item_fields(file.schema_arrow, facts, manifest, domain)
        else:
            fields = derived_item_fields(file.schema_arrow, facts, manifest, domain)
        attributes = {} if domain is None else {a.name: a for a in domain.attributes}
        names = [field.name for field in file.schema_arrow if pa.types.is_dictionary(field.type)]
        values: dict[str, dict[str, None]] = {name: {} for name in names}  # in order
        for batch in file.iter_batches(BATCH_ROWS, columns=names) if names else ():
            for name in names:
                values[name].update(dict.fromkeys(batch[name].dictionary.to_pylist()))
        fields = tuple(
            _listed(field, [*values[field.name]], attributes) if field.name in values else field
            for field in fields
        )
        unique = _is_unique(file, [field.name for field in fields if field.key])
    shows = _shows(facts, fields, [*values.get("query", ())])
    return PackagedTable(facts.name, path, shows, rows, fields, unique)


def _shows(
    facts: ItemFacts | DerivedFacts, fields: tuple[FileField, ...], queries: list[str]
) -> str:
    """Return what a table shows, in words of the spec first; what it counts cannot be left out."""
    said = [facts.description.rstrip(".")] if facts.description else []
    if isinstance(facts, DerivedFacts):
        return ". ".join([*said, f"Worked out as: {facts.words}"])
    by = ", ".join(f.name for f in fields if f.key and f.name not in ANSWER_COLUMNS)
    if len(queries) == 1:
        (of,) = queries
        meet = f"{of} the conditions" if of.endswith("of") else f"at least {of} conditions"
        said.append(f"Records that meet {meet}, on {by}")
    elif facts.numbered:
        said = said or [f"Rows by number: see {facts.name}.tables and {facts.name}.labels"]
    else:
        said = said or [f"By {by}" if by else "One number"]
    if facts.summed:
        said.append(f"{facts.summed.words[:1].upper()}{facts.summed.words[1:]}")
    return ". ".join(said)


def _other_table(
    path: Path, description: str, columns: Mapping[str, FileColumn], manifest: Manifest
) -> PackagedTable:
    with opened(path, rows=None) as file:
        fields = other_fields(file.schema_arrow, columns, manifest)
        rows = file.metadata.num_rows
    return PackagedTable(path.name.removesuffix(".parquet"), path, description, rows, fields)


def _listed(field: FileField, values: list[str], attributes: dict[str, Attribute]) -> FileField:
    """Return a field with its categories, or with their number in its meaning."""
    if len(values) > MAX_CATEGORIES:
        return replace(field, meaning=f"{field.meaning}; {len(values):,} different texts")
    coded = attributes.get(field.name.removesuffix("_code"))
    labels: dict[str, str] = {}
    if field.name not in attributes and coded is not None:
        labels = {code: coded.label(place) for place, code in enumerate(coded.codes)}
    categories = tuple(Category(value, labels.get(value, value)) for value in values)
    return replace(field, categories=categories)


def _is_unique(file: pq.ParquetFile, names: list[str]) -> bool:
    if not names or file.metadata.num_rows > MAX_KEY_ROWS:
        return False
    keys = file.read(columns=names)
    texts = pa.table(
        [
            column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            for column in keys.columns
        ],
        names,
    )
    return bool(texts.group_by(names).aggregate([]).num_rows == keys.num_rows)


NOISE_SUFFIX = ".noise"  # behind the name of an item whose draws a file holds
CSVW_SUFFIX = "csv-metadata.json"
_CELL_TYPES = {
    "text": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
}


def write_csv_file(table: PackagedTable, path: Path) -> None:
    """Write a table as CSV; the same table gives the same bytes."""
    schema = pa.schema([(csv_text(f.name), _CELL_TYPES[f.kind]) for f in table.fields])
    options = pyarrow.csv.WriteOptions(quoting_style="needed")

    def cells(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([*map(csv_cells, batch.columns)], schema=schema)

    with pyarrow.csv.CSVWriter(path, schema, write_options=options) as writer:
        for batch in table.batches(cells):
            writer.write_batch(batch)


def csvw_metadata(table: PackagedTable, about: About, *, url: str) -> str:
    """Return the CSV on the Web metadata of a table's CSV file, as JSON."""
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
    datatype: str | dict[str, object] = "string" if field.kind == "text" else field.kind
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


def safe_cells(table: pa.Table) -> pa.Table:
    """Return a table as CSV has it, draws of noise at their own width."""
    names = [csv_text(name) for name in table.column_names]
    columns = (column.combine_chunks() for column in table.columns)
    return pa.table([c if c.type == pa.float32() else csv_cells(c) for c in columns], names)


def csv_cells(column: pa.Array) -> pa.Array:
    """Return a column as it is written: texts made safe, numbers of one width."""
    if pa.types.is_dictionary(column.type):
        texts = pa.array([csv_text(text) for text in column.dictionary.to_pylist()], pa.string())
        return texts.take(column.indices)
    if pa.types.is_string(column.type):
        texts = [None if text is None else csv_text(text) for text in column.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.float64()) if pa.types.is_floating(column.type) else column
