"""Code book, datapackage.json and the draft for the registry.

datapackage.json is by the Data Package standard, version 2.0: of every table its fields with types,
constraints, categories and missing values; of the whole its licence, contact and source. What the
standard has no key for, units and the guarantee, stands under keys of its own, which it allows.

registry.yaml is for the Differential Privacy Deployments Registry (registry.opendp.org). Keys are
those of the registry's records of September 2026, whose schema is `schemas/deployments-schema.yaml`
of github.com/opendp/deployments-registry-data. What only the office knows is marked in the file.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from dpquery.releases.manifest import Manifest
from dpquery.releases.package.pages import Content, Heading, Paragraph, TextTable
from dpquery.releases.package.tables import NOISE_SUFFIX, PackagedTable, may_be_blank
from dpquery.releases.statement import guarantee_line, neighbour_words, unit_words
from dpquery.releases.tables.file_fields import FileField
from dpquery.releases.words import count, csv_text, sentence, spaced
from dpquery.spec.columns import Domain
from dpquery.spec.spec import About

ABOUT_WORDS = {
    "contact": "Contact",
    "licence": "Licence",
    "period": "Period",
    "area": "Area",
    "next_update": "Next update",
    "notes": "Notes",
}


FILE_WORDS = {
    "tables.xlsx": "All tables as sheets",
    "statement.md": "What is promised, in plain words",
    "quality.md": "Quality and methodology, by the concepts of SIMS",
    "codebook.html": "The code book as a page",
    "codebook.md": "The code book",
    "datapackage.json": "The tables for machines, by the Data Package standard",
    "registry.yaml": "A draft for the registry of deployments",
    "measurements.parquet": "The noisy values from which all answers are computed",
    "relaxed_rows.parquet": "The synthetic data as weights",
    "release.plan": "The plan that was carried out, with the spec",
    "release.json": "The facts of the release, for machines",
}
"""What the files of a package hold that are no tables."""
OF_DRAWS = "Estimates of `{}` with draws of their noise"
BESIDE_TABLES = {
    f"{NOISE_SUFFIX}.parquet": OF_DRAWS,
    f"{NOISE_SUFFIX}.csv": OF_DRAWS,
    ".map.csv": "Which values the rows of `{0}` add up: join on `merged`, and on the columns of "
    "other attributes, if any. Without such it is a hierarchy that a spec can take; with them the "
    "lines of each of their values are one, and not the whole",
}
"""What files hold that are of a table and have no schema, by the ends of their names."""
NOISE_WORDS = (
    "Files of `.noise` have draws of noise like that of the estimates, one a column. The standard "
    "error that noise gives any statistic, such as a sum or a difference: work it out from "
    "`estimate`, and again from `estimate` plus each draw, and take the root mean square of the "
    "changes. A row has no draws (`nan`) where it would be lost in noise with that of any of them."
)
WITHOUT_SAMPLE = " The error of the sample, which `total_std` takes in, is not in it."


def release_title(manifest: Manifest, about: About) -> str:
    """Return what a release is called: its title, or its dataset."""
    return about.title or f"{manifest.dataset.id}, version {manifest.dataset.version}"


def code_book(
    tables: Sequence[PackagedTable], manifest: Manifest, about: About, files: Sequence[str]
) -> list[Content]:
    """Return the content of the code book."""
    content: list[Content] = []
    if about.description:
        content.append(Paragraph(about.description))
    facts = [(word, getattr(about, name)) for name, word in ABOUT_WORDS.items()]
    rows = [(word, text) for word, text in facts if text]
    dataset = f"{manifest.dataset.id}, version {manifest.dataset.version}"
    rows += [("Dataset", dataset), ("Privacy", guarantee_line(manifest.guarantee))]
    rows += [("Protected", unit_words(manifest.privacy))]
    rows += [("Compared", neighbour_words(manifest.privacy))]
    if (weight := manifest.privacy.weight) is not None:
        rows.append(("Weights", f"{weight.words}."))
    content.append(TextTable(("About", ""), tuple(rows)))
    content.append(Paragraph(_reading(manifest)))
    rows_of_files = []
    for table in tables:
        names = [n for n in (f"{table.name}.{end}" for end in ("parquet", "csv")) if n in files]
        shown = ", ".join(f"`{n}`" for n in names)
        rows_of_files.append((shown, f"{table.rows:,}", table.description))
        if (mapped := f"{table.name}.map.csv") in files:
            rows_of_files.append((f"`{mapped}`", "", BESIDE_TABLES[".map.csv"].format(table.name)))
        stem = f"{table.name}{NOISE_SUFFIX}"
        drawn = [f"`{n}`" for n in (f"{stem}.parquet", f"{stem}.csv") if n in files]
        if drawn:
            words = f"{OF_DRAWS.format(table.name)}, as said below"
            rows_of_files.append((", ".join(drawn), f"{table.rows:,}", words))
    rows_of_files += [(f"`{n}`", "", shows) for n, shows in FILE_WORDS.items() if n in files]
    content += [Heading("Files"), TextTable(("File", "Rows", "Shows"), tuple(rows_of_files))]
    if any(NOISE_SUFFIX in name for name in files):
        words = f"{NOISE_WORDS}{WITHOUT_SAMPLE if manifest.tells_sample else ''}"
        content.append(Paragraph(words))
    for table in tables:
        content += _table_content(table)
    return content


def _reading(manifest: Manifest) -> str:
    errors = "The numbers have no error bars: how far they are off depends on the records"
    if manifest.error_bars:
        errors = "Numbers have a standard error and an interval beside them, of the noise alone"
    if manifest.tells_sample:
        errors += "; `total_std`, `total_low` and `total_high` take in the sample, where filled in"
    return (
        "The numbers are noisy on purpose, to protect whom they count. "
        f"{errors}. `statement.md` says what is promised and `quality.md` how they were made. An "
        "empty cell is a missing value, or an empty text in a column that is never missing. In CSV "
        "files, a text that a spreadsheet would take for a formula has an apostrophe before it."
    )


def _table_content(table: PackagedTable) -> list[Content]:
    about = [Paragraph(table.description)] if table.description else []
    key = ", ".join(f"`{name}`" for name in table.key)
    same = f" No two have the same {key}." if key else ""
    columns = tuple(
        (f"`{f.name}`", f"{f.kind}{', may be empty' if f.nullable else ''}", f.unit, f.meaning)
        for f in table.fields
    )
    lists = [part for field in table.fields for part in _values(field)]
    return [
        Heading(table.name),
        *about,
        Paragraph(f"{count(table.rows, 'row')}.{same}"),
        TextTable(("Column", "Type", "Unit", "Holds"), columns),
        *lists,
    ]


def _values(field: FileField) -> list[Content]:
    if not field.categories:
        return []
    heading = Heading(f"Values of `{field.name}`", 3)
    if all(category.value == category.label for category in field.categories):
        texts = (f"`{c.value}`" if c.value else "(empty text)" for c in field.categories)
        return [heading, Paragraph(", ".join(texts))]
    rows = tuple((c.value or "(empty text)", c.label) for c in field.categories)
    return [heading, TextTable(("Value", "Label"), rows)]


PROFILE = "https://datapackage.org/profiles/2.0/datapackage.json"
_TABLE_PROFILE = "https://datapackage.org/profiles/2.0/tableschema.json"
_KINDS = {"text": "string"}
_MAIL = re.compile(r"[^\s<>,;()\"]+@[^\s<>,;()\"]+\.[A-Za-z]{2,}")
_LICENCE = re.compile(r"[-A-Za-z0-9._]+")

JsonObject = dict[str, object]


def data_package(
    tables: Sequence[PackagedTable], manifest: Manifest, about: About, *, folder: Path, csv: bool
) -> str:
    """Return the text of datapackage.json.

    CSV files, where there are any, lie in the folder: their sizes and digests are stated.
    """
    dataset, guarantee = manifest.dataset, manifest.guarantee
    resources = [_resource(t, f"{t.name}.csv", folder) for t in tables] if csv else []
    resources += [_resource(t, t.path.name, folder) for t in tables]
    resources += [
        {**_file(path), "description": words.format(table.name)}
        for table in tables
        for end, words in BESIDE_TABLES.items()
        if (path := folder / f"{table.name}{end}").is_file()
    ]
    content: JsonObject = {
        "$schema": PROFILE,
        "name": re.sub(r"[^a-z0-9._-]", "-", f"{dataset.id}-{dataset.version}".lower()),
        "id": manifest.key,
        "title": release_title(manifest, about),
        "version": dataset.version,
    }
    if about.description:
        content["description"] = about.description
    if about.licence:
        content["licenses"] = [_licence(about.licence)]
    if about.contact:
        mail = _MAIL.search(about.contact)
        contributor: JsonObject = {"title": about.contact, "roles": ["contact"]}
        content["contributors"] = [contributor | ({"email": mail[0]} if mail else {})]
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
    resource = _file(folder / name) | {"type": "table"}
    if is_csv:
        resource["name"] = table.name
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


def _file(path: Path) -> JsonObject:
    named: JsonObject = {"name": path.name, "path": path.name}
    if path.suffix != ".csv":
        return named | {"format": "parquet", "mediatype": "application/vnd.apache.parquet"}
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    named |= {"format": "csv", "mediatype": "text/csv", "encoding": "utf-8"}
    return named | {"bytes": path.stat().st_size, "hash": f"sha256:{digest}"}


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
    if text.startswith(("http://", "https://")):
        return {"path": text}
    if _LICENCE.fullmatch(text):
        return {"name": text}
    return {"name": re.sub(r"[^-A-Za-z0-9._]+", "-", text).strip("-"), "title": text}


FILL_IN = "To be filled in"
"""Stands, with what is asked, where the release knows nothing; dates and words of a list that
the registry wants have a comment instead."""

_HEAD = f"""\
# A draft of an entry for the Differential Privacy Deployments Registry, registry.opendp.org.
# To send it in: look for "{FILL_IN}", set publication_date, data_curator_type and
# data_product_sector, and open a pull request at github.com/opendp/deployments-registry-data.
"""

_Tree = dict[str, object]


def registry_entry(manifest: Manifest, about: About, domain: Domain | None) -> str:
    """Return the entry as YAML."""
    title, budget = release_title(manifest, about), sentence(spaced(manifest.guarantee.cumulative))
    entry: _Tree = {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", f"{title}-{manifest.key[:8]}".lower()).strip("-"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": _basic(manifest, about, title),
            "dp_variant": {
                "variant_name": _VARIANTS.get(manifest.guarantee.kind, "Approximate DP"),
                "data_domain": _domain_words(domain),
                "unprotected_quantities": "The declared values of every column, the questions "
                "and the strategy; none of it was derived from the records."
                + " The number of records is not protected: neighbours have as many."
                * (manifest.privacy.neighbours == "replace"),
            },
            "privacy_loss": _privacy_loss(manifest),
            "deployment_model": {
                "model_name": "Central",
                "actors": f"{FILL_IN}: who holds the records and who is trusted with them.",
                "release_type": "One release",
                "release_type_details": budget,
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": f"Post-processing: {manifest.processing}.",
                "composition": f"{budget} Losses of all releases of the "
                "dataset are added up in a ledger, which refuses what would pass its cap.",
            },
            "implementation": _implementation(manifest),
            "administrative": {
                "sources": f"{FILL_IN}: where the release is published.",
                "registry_authors": [about.contact or FILL_IN],
            },
        },
    }
    text = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=100)
    return _HEAD + text


def _basic(manifest: Manifest, about: About, title: str) -> _Tree:
    names = ", ".join(item.name for item in manifest.items)
    sums = any(item.summed is not None for item in manifest.items)
    of = "weighted " * (manifest.privacy.weight is not None)
    of += "counts and sums" if sums else "counts"
    return {
        "name": spaced(title),
        "data_curators": [
            {
                "data_curator_name": spaced(about.contact or FILL_IN),
                "data_curator_type": "Government",
            }
        ],
        "intended_use": f"{FILL_IN}: what the tables are for.",
        "data_product_type": "Summary statistics",
        "data_product_region": spaced(about.area or FILL_IN),
        "description": spaced(about.description or f"Tables of {of}: {names}."),
        "publication_date": "1900-01-01",
        "data_product_sector": "Government",
    }


_VARIANTS = {"pure": "Pure DP", "zcdp": "Zero-concentrated DP"}
"""The registry has no Gaussian DP, and promises its approximate DP."""


def _domain_words(domain: Domain | None) -> str:
    if domain is None:
        return "All tables with the declared columns."
    columns: Sequence[str] = [f"{c.name} ({c.kind.words})" for c in domain.columns]
    return spaced(f"All tables with the declared columns: {', '.join(columns)}.")


def _privacy_loss(manifest: Manifest) -> _Tree:
    guarantee, privacy = manifest.guarantee, manifest.privacy
    parameters: _Tree = {"epsilon": guarantee.epsilon}
    if guarantee.delta:
        parameters["delta"] = guarantee.delta
    if guarantee.rho is not None:
        parameters["rho"] = guarantee.rho
    loss: _Tree = {
        "privacy_unit": "Person-level" if privacy.unit == "person" else "Record-level",
        "privacy_unit_details": f"Protected: {unit_words(privacy)} Adjacent: "
        f"{neighbour_words(privacy)}",
        "privacy_parameters": parameters,
    }
    if guarantee.mu is not None:
        loss["privacy_parameters_details"] = (
            f"Losses are counted in Gaussian differential privacy, mu = {guarantee.mu:.6g}."
        )
    return loss


def _implementation(manifest: Manifest) -> _Tree:
    weight = manifest.privacy.weight
    taken = "None on the records" if weight is None else f"{weight.words}. Nothing else is done"
    libraries = ", ".join(f"{name} {version}" for name, version in manifest.libraries)
    return {
        "preprocessing_and_hyperparameter_tuning": f"{taken}: the domain is "
        "declared and the strategy is chosen from the declared questions alone, before the records "
        "are opened.",
        "mechanisms": f"{manifest.guarantee.mechanism}, over the measurements of the strategy "
        f"`{manifest.strategy.name}`. Noise is drawn on whole numbers by {manifest.noise.source}, "
        f"so that no floating point touches it. Made by dpquery {manifest.tool} ({libraries}). "
        "Running time is not protected.",
        "justification": f"{FILL_IN}: why these parameters.",
    }
