"""The code book: every file of a package, its columns, and what their values are called."""

from collections.abc import Sequence

from dpquery.releases.formatting import count
from dpquery.releases.manifest.release_json import Manifest
from dpquery.releases.manifest.statement import guarantee_line, neighbour_words, unit_words
from dpquery.releases.package.packaged_tables import PackagedTable
from dpquery.releases.package.pages import Content, Heading, Paragraph, TextTable
from dpquery.releases.tables.file_fields import FileField
from dpquery.spec.model import About

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


def release_title(manifest: Manifest, about: About) -> str:
    """Return what a release is called: its title, or its dataset."""
    return about.title or f"{manifest.dataset.id}, version {manifest.dataset.version}"


def code_book(
    tables: Sequence[PackagedTable], manifest: Manifest, about: About, files: Sequence[str]
) -> list[Content]:
    """Return the content of the code book.

    Args:
        tables: of the release.
        manifest: of the release.
        about: what the spec says of the publication.
        files: names of the files of the package.
    """
    content: list[Content] = []
    if about.description:
        content.append(Paragraph(about.description))
    facts = [(word, getattr(about, name)) for name, word in ABOUT_WORDS.items()]
    rows = [(word, text) for word, text in facts if text]
    dataset = f"{manifest.dataset.id}, version {manifest.dataset.version}"
    rows += [("Dataset", dataset), ("Privacy", guarantee_line(manifest.guarantee))]
    rows += [("Protected", unit_words(manifest.privacy))]
    rows += [("Compared", neighbour_words(manifest.privacy))]
    content.append(TextTable(("About", ""), tuple(rows)))
    content.append(Paragraph(_reading(manifest)))
    content += [Heading("Files"), TextTable(("File", "Rows", "Shows"), _file_rows(tables, files))]
    for table in tables:
        content += _table_content(table)
    return content


def _reading(manifest: Manifest) -> str:
    errors = (
        "Every number has its standard error and an interval beside it: they are of the noise alone"
        if manifest.error_bars
        else "The numbers have no error bars: how far they are off depends on the records"
    )
    return (
        "The numbers are noisy on purpose, to protect whom they count. "
        f"{errors}. `statement.md` says what is promised and `quality.md` how they were made. An "
        "empty cell is a missing value, or an empty text in a column that is never missing. In CSV "
        "files, a text that a spreadsheet would take for a formula has an apostrophe before it."
    )


def _file_rows(
    tables: Sequence[PackagedTable], files: Sequence[str]
) -> tuple[tuple[str, str, str], ...]:
    rows = []
    for table in tables:
        names = [n for n in (table.path.name, f"{table.name}.csv") if n in files]
        rows.append((", ".join(f"`{n}`" for n in names), f"{table.rows:,}", table.description))
    rows += [(f"`{name}`", "", shows) for name, shows in FILE_WORDS.items() if name in files]
    return tuple(rows)


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
