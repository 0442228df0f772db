"""The declared domain as `plan` prints it: every attribute, its values, and what others do."""

from dpquery.cli.output.text_table import Grid
from dpquery.spec.domain import Dates, Other, values_text
from dpquery.spec.model import Spec

OTHER_WORDS: dict[Other, str] = {
    "count": "counted in totals alone",
    "show": "shown as other",
    "drop": "the record is dropped",
}
LISTED_COLUMNS = 50  # lines


def domain_grid(spec: Spec) -> Grid:
    """Return a line for every column of the domain, and whose records are in no table."""
    rows = []
    for attribute in spec.domain.in_data:
        for column in attribute.columns:
            name = f"{attribute.name} ({column.name})" if attribute.merged else attribute.name
            rows.append((name, values_text(column), OTHER_WORDS[column.other]))
    dropping = [name for name, _, other in rows if other == OTHER_WORDS["drop"]]
    notes = []
    if len(rows) > LISTED_COLUMNS:
        notes.append(f"and {len(rows) - LISTED_COLUMNS} more")
    if dropping:
        named = ", ".join(dropping[:LISTED_COLUMNS]) + ", ..." * (len(dropping) > LISTED_COLUMNS)
        notes.append(
            f"left out of every table, of the total too: records with another value of {named}"
        )
    else:
        notes.append("no record is left out because of its values")
    for column in spec.domain.columns:
        if column.number is not None:
            notes.append(f"numbers of {column.name} are read as {column.number.example}")
        if isinstance(column.kind, Dates):
            example = column.kind.format.example
            notes.append(f"dates of {column.name} are read as {example}; `format` says so")
            if not column.kind.format.text:
                notes.append(f"times of {column.name} with a zone count on the day of that zone")
    if spec.privacy.person is not None:
        are = "is" if spec.privacy.max_rows == 1 else "are"
        notes.append(f"at most {spec.privacy.max_rows} of a person's rows {are} counted")
    for attribute in spec.domain.attributes:
        if not attribute.in_data:
            most = attribute.label(attribute.length - 2)
            noun = "row" if most == "1" else "rows"
            notes.append(f"{attribute.name} tells up to {most} {noun} of a person apart, and more")
    columns = ("attribute", "values", "any other value")
    return Grid("who is counted", columns, tuple(rows[:LISTED_COLUMNS]), tuple(notes))


def domain_json(spec: Spec) -> list[dict[str, object]]:
    """Return the same as JSON values, one for each column."""
    return [
        {
            "attribute": attribute.name,
            "column": column.name,
            "values": values_text(column),
            "count": column.length,
            "other": column.other,
        }
        for attribute in spec.domain.in_data
        for column in attribute.columns
    ]
