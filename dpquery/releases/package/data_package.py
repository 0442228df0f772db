"""datapackage.json: a release by the Data Package standard, version 2.0.

Of every table its fields with types, constraints, categories and missing values; of the whole its
licence, contact and source. What the standard has no key for, units and the guarantee, stands
under keys of its own, which it allows.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpquery.releases.manifest.release_json import Manifest
from dpquery.releases.package.csv_files import csv_text, may_be_blank
from dpquery.releases.package.packaged_tables import PackagedTable
from dpquery.releases.tables.file_fields import FileField
from dpquery.spec.model import About

PROFILE = "https://datapackage.org/profiles/2.0/datapackage.json"
_TABLE_PROFILE = "https://datapackage.org/profiles/2.0/tableschema.json"
_KINDS = {"text": "string"}
_MAIL = re.compile(r"[^\s<>,;()\"]+@[^\s<>,;()\"]+\.[A-Za-z]{2,}")
_LICENCE = re.compile(r"[-A-Za-z0-9._]+")

JsonObject = dict[str, object]


def data_package(
    tables: Sequence[PackagedTable],
    manifest: Manifest,
    about: About,
    *,
    folder: Path,
    csv: bool,
) -> str:
    """Return the text of datapackage.json.

    Args:
        tables: of the release.
        manifest: of the release.
        about: what the spec says of the publication.
        folder: where the CSV files lie: their sizes and digests are stated.
        csv: whether each table is there as CSV too.
    """
    dataset, guarantee = manifest.dataset, manifest.guarantee
    resources = [_resource(t, f"{t.name}.csv", folder) for t in tables] if csv else []
    resources += [_resource(t, t.path.name, folder) for t in tables]
    content: JsonObject = {
        "$schema": PROFILE,
        "name": re.sub(r"[^a-z0-9._-]", "-", f"{dataset.id}-{dataset.version}".lower()),
        "id": manifest.key,
        "title": about.title or f"{dataset.id}, version {dataset.version}",
        "version": dataset.version,
    }
    if about.description:
        content["description"] = about.description
    if about.licence:
        content["licenses"] = [_licence(about.licence)]
    if about.contact:
        content["contributors"] = [_contributor(about.contact)]
    content["sources"] = [{"title": f"Records of {dataset.id}, version {dataset.version}"}]
    for name in ("period", "area", "next_update", "notes"):
        if text := getattr(about, name):
            content[name] = text
    content["privacy"] = {
        "mechanism": guarantee.mechanism,
        "accounting": guarantee.kind,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "unit": manifest.privacy.unit,
        "neighbours": manifest.privacy.neighbours,
        "statement": "statement.md",
    }
    content["resources"] = resources
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _resource(table: PackagedTable, name: str, folder: Path) -> JsonObject:
    is_csv = name.endswith(".csv")
    resource: JsonObject = {
        "name": table.name if is_csv else name,
        "type": "table",
        "path": name,
        "format": "csv" if is_csv else "parquet",
        "mediatype": "text/csv" if is_csv else "application/vnd.apache.parquet",
    }
    if is_csv:
        resource |= {"encoding": "utf-8", **_digest(folder / name)}
    if table.description:
        resource["description"] = table.description
    schema: JsonObject = {
        "$schema": _TABLE_PROFILE,
        "fields": [_field(field, is_csv=is_csv) for field in table.fields],
        "missingValues": [""],
    }
    blank = {field.name for field in table.fields if may_be_blank(field)}
    if table.key and not blank & {*table.key}:
        schema["primaryKey"] = [_written(name, is_csv) for name in table.key]
    resource["schema"] = schema
    return resource


def _digest(path: Path) -> JsonObject:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "hash": f"sha256:{digest}"}


def _field(field: FileField, *, is_csv: bool) -> JsonObject:
    """Return a field of a Table Schema; in a CSV file texts are as its cells have them."""
    described: JsonObject = {
        "name": _written(field.name, is_csv),
        "type": _KINDS.get(field.kind, field.kind),
        "description": field.meaning,
    }
    if field.unit:
        described["unit"] = field.unit
    if field.categories:
        described["categories"] = [
            {"value": _written(c.value, is_csv), "label": c.label or "(none)"}
            for c in field.categories
        ]
        if field.ordered:
            described["categoriesOrdered"] = True
    constraints: JsonObject = {}
    if not field.nullable:
        constraints["required"] = True
        if may_be_blank(field):
            described["missingValues"] = []  # an empty cell is an empty text
    # Validators read what is null in a Parquet file as NaN, for which no limit holds.
    if is_csv or not field.nullable:
        limits = (("minimum", field.low), ("maximum", field.high))
        constraints |= {name: limit for name, limit in limits if limit is not None}
    if constraints:
        described["constraints"] = constraints
    return described


def _written(text: str, is_csv: bool) -> str:
    return csv_text(text) if is_csv else text


def _licence(text: str) -> Mapping[str, str]:
    """Return a licence by name, or by path where it is an address."""
    if text.startswith(("http://", "https://")):
        return {"path": text}
    if _LICENCE.fullmatch(text):
        return {"name": text}
    return {"name": re.sub(r"[^-A-Za-z0-9._]+", "-", text).strip("-"), "title": text}


def _contributor(contact: str) -> Mapping[str, object]:
    mail = _MAIL.search(contact)
    contributor: JsonObject = {"title": contact, "roles": ["contact"]}
    return contributor | ({"email": mail[0]} if mail else {})
