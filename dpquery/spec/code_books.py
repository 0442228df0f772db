"""The domain of a spec out of a code book: what a file's documentation declares of its columns.

Read are Frictionless table schemas (or a data package with one), CSVW metadata, and the labels of
an SPSS or Stata file through pyreadstat, which is told to read the metadata and no rows. What a
code book leaves open stands in the spec as a comment, for its writer to fill in.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpquery.exceptions import SpecError
from dpquery.limits import MAX_SPEC_BYTES
from dpquery.spec.problems import not_read
from dpquery.untrusted.files import read_outside

LABELLED = (".sav", ".zsav", ".por", ".dta")
WHOLE = ("integer", "int", "long", "short", "byte", "nonNegativeInteger", "positiveInteger")
DECIMAL = ("number", "decimal", "double", "float")
_PLAIN = re.compile(r"[A-Za-z_][\w ./-]*", re.ASCII)
NO_TEXTS = {"yes", "no", "true", "false", "on", "off", "null", "y", "n"}


@dataclass(frozen=True)
class Described:
    """A column as a code book has it; None is what it does not say."""

    name: str  # in the header
    kind: str = ""  # of its values, in the code book's own word
    values: Mapping[str, str] | None = None  # all that it may hold, with labels, which may be empty
    least: str | None = None  # the least value, as text
    most: str | None = None  # the largest

    @property
    def line(self) -> str:
        """Its line in the domain."""
        name, ends = flow(self.name), (self.least, self.most)
        if self.kind == "boolean":
            return f"  {name}: boolean"
        if self.values:
            labelled = any(self.values.values())
            entries = [
                f"{flow(value)}: {flow(label or value)}" if labelled else flow(value)
                for value, label in self.values.items()
            ]
            listed = f"{{{', '.join(entries)}}}" if labelled else f"[{', '.join(entries)}]"
            return f"  {name}: {{values: {listed}}}"
        if None not in ends and self.kind in WHOLE:
            return f"  {name}: {{range: [{self.least}, {self.most}]}}"
        if None not in ends and self.kind in DECIMAL:
            return f"  {name}: {{bins: [{self.least}, {self.most}]}}  # add edges between"
        if None not in ends and self.kind == "date":
            return f"  {name}: {{date: {{from: {self.least}, to: {self.most}, by: month}}}}"
        said = self.kind or "nothing is said of its values"
        return f"  # {name}: {{values: []}}  # {' '.join(said.split())}: list them, or a range"


def starter_of(path: Path) -> str:
    """Return a spec to go on from, with the columns of a code book.

    Raises:
        SpecError: the file cannot be read, or is no code book of a known kind.
    """
    columns = _labels(path) if path.suffix.lower() in LABELLED else _json_columns(path)
    if not columns:
        raise SpecError(f"{path} describes no column; name a table schema, CSVW or label file")
    first = next((one for one in columns if not one.line.lstrip().startswith("#")), None)
    asked = "product: {}" if first is None else f"product: {{{flow(first.name)}: identity}}"
    return (
        "# yaml-language-server: $schema=workload.schema.json\n"
        f"# The columns are those of {' '.join(path.name.split())}; delete what no table needs.\n"
        "dataset: {id: my-survey, version: 1}\n"
        "privacy: {unit: row, neighbours: add-remove, delta: 1e-9}\n"
        "budget: {epsilon: 4, delta: 1e-9}\n\n"
        "domain:\n"
        + "".join(f"{column.line}\n" for column in columns)
        + "  first_column: {values: [a]}  # a domain has one at least\n" * (first is None)
        + f"\nworkload:\n  - name: first_table\n    {asked}\n"
    )


def flow(text: str) -> str:
    """Return a text as it stands in a flow mapping of YAML: quoted where it would be another.

    >>> flow("sex"), flow("no"), flow("a, b"), flow("lists/a-b.csv")
    ('sex', '"no"', '"a, b"', 'lists/a-b.csv')
    """
    if _PLAIN.fullmatch(text) and text == text.strip() and text.lower() not in NO_TEXTS:
        return text
    return text if text.isascii() and text.isdigit() else json.dumps(text, ensure_ascii=False)


def _json_columns(path: Path) -> list[Described]:
    try:
        content = json.loads(read_outside(path, most=MAX_SPEC_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise not_read(path, error, "check the path") from None
    except (ValueError, RecursionError):
        raise SpecError(
            f"{path} is no JSON; a code book is a Frictionless table schema, CSVW, or a file of "
            f"SPSS or Stata ({', '.join(LABELLED)})"
        ) from None
    return [
        column
        for described in _tables(content)
        if isinstance(described, dict) and (column := _described(described)) is not None
    ]


def _tables(content: object) -> Sequence[object]:
    """Return the columns of the first table of a schema, a data package or CSVW metadata."""
    match content:
        case {"fields": list(fields)} | {"columns": list(fields)}:
            return fields
        case {"schema": dict(inner)} | {"tableSchema": dict(inner)}:
            return _tables(inner)
        case {"resources": [first, *_]} | {"tables": [first, *_]}:
            return _tables(first)
        case _:
            return []


def _described(field: Mapping[str, object]) -> Described | None:
    """Return a field of Frictionless, or a column of CSVW, whose datatype holds its limits."""
    titles, kind = field.get("titles"), field.get("datatype", field.get("type", ""))
    title = titles[0] if isinstance(titles, list) and titles else titles
    name = field.get("name") or title
    if not isinstance(name, str) or field.get("virtual"):
        return None
    limits = kind if isinstance(kind, dict) else field.get("constraints")
    limits = limits if isinstance(limits, dict) else {}
    base = kind.get("base", "string") if isinstance(kind, dict) else kind
    return Described(
        name,
        str(base),
        _values(limits.get("enum", field.get("categories"))),
        *(None if limits.get(end) is None else _end(limits[end]) for end in ("minimum", "maximum")),
    )


def _end(limit: object) -> str:
    """Return a least or largest value as it is written: 1e6 is 1000000."""
    return f"{limit:.12g}" if isinstance(limit, float) else flow(str(limit))


def _values(listed: object) -> dict[str, str] | None:
    """Return listed values with their labels: categories may have such."""
    if not isinstance(listed, list):
        return None
    pairs = [
        (one.get("value"), one.get("label", "")) if isinstance(one, dict) else (one, "")
        for one in listed
    ]
    return {str(value): str(label) for value, label in pairs}


def _labels(path: Path) -> list[Described]:
    try:
        import pyreadstat
    except ImportError:
        raise SpecError(
            f"the labels of {path} are read by pyreadstat; `pip install 'dpquery[labels]'`"
        ) from None
    readers = {".dta": "read_dta", ".por": "read_por"}
    read = getattr(pyreadstat, readers.get(path.suffix.lower(), "read_sav"))
    try:
        _, metadata = read(str(path), metadataonly=True)
    except (pyreadstat.ReadstatError, pyreadstat.PyreadstatError, OSError, ValueError):
        raise SpecError(f"{path} cannot be read as a file of {path.suffix}; check it") from None
    labels = metadata.variable_value_labels
    return [
        Described(name, "", {_code(value): label for value, label in labels.get(name, {}).items()})
        for name in metadata.column_names
    ]


def _code(value: object) -> str:
    """Return a labelled code as it is in a file of text: 1.0 is 1."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
