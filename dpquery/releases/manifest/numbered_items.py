"""The words on items whose rows are numbered: how to read their columns, and what their files are.

The columns are those of releases.tables.long_table.
"""

from dpquery.releases.manifest.release_json import Manifest

NUMBERED_WORDS = """\
In {items}, which {have} very many tables, rows have numbers and few columns: `table` and `cell`, \
`estimate`, `std_error`, and `half_width`, half of the width of the noise interval: `ci_low` is \
`estimate` - `half_width`, `ci_high` is `estimate` + `half_width`. `rel_error` and `flag` are left \
to the reader. The files of tables and labels say what the numbers mean: an attribute's query in \
a row is number `cell` // `stride` % `size` in its list of `labels`."""

NUMBERED_WITHOUT_ERRORS = """\
In {items}, which {have} very many tables, rows have numbers and few columns: `table` and `cell`, \
`estimate`, and `std_error` and `half_width`, empty in every row. The files of tables and labels \
say what the numbers mean: an attribute's query in a row is number `cell` // `stride` % `size` in \
its list of `labels`."""


def numbered_lines(manifest: Manifest) -> list[str]:
    """Return the lines of the statement on numbered rows; none where there are none."""
    names = [f"`{item.file}`" for item in manifest.items if item.numbered]
    if not names:
        return []
    words = NUMBERED_WORDS if manifest.error_bars else NUMBERED_WITHOUT_ERRORS
    have = "has" if len(names) == 1 else "have"
    return ["", words.format(items=", ".join(names), have=have)]


def numbered_file_lines(manifest: Manifest) -> list[str]:
    """Return the lines on the files that say what the numbers of rows mean."""
    return [
        f"- `{item.tables_file}`, `{item.labels_file}`: what the numbers in `{item.file}` mean"
        for item in manifest.items
        if item.numbered
    ]
