"""What the table of fields gives: the JSON Schema, the starter and the reference page.

The JSON Schema (draft 7) of a spec: what an editor completes, checks and shows on hover.

It refuses nothing that the parser takes, and as much of the rest as one can say without looking at
two places at once: names, ranges against the domain and repeated attributes are the parser's.

The specs that `dpquery init` writes: a short one, and one with every key, commented.

starter.yaml holds its lines. Where one ends in `#: mapping.key`, the table of fields has the
comment; `#: mapping` alone stands for the list of all its fields.
"""

import json
import re
import textwrap
from pathlib import Path

from dpquery.spec.parsing.fields import DEFINITIONS, MAPPINGS, WORDS, SpecFields
from dpquery.spec.parsing.forms import Schema, limits
from dpquery.spec.parsing.mappings import Field


def schema_text() -> str:
    """Return the schema as JSON text."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> Schema:
    """Return the schema."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "dpquery workload",
        **SpecFields.schema(),
        "definitions": {name: form.schema() for name, form in DEFINITIONS.items()},
    }


_HEAD = """\
# The spec: every key

This page is made from the table of fields that `dpquery` reads a spec with (`make docs`).
`dpquery init --full` writes a commented spec with every key, and `workload.schema.json` beside it,
with which editors complete and check. Everything in a spec is declared: nothing is read from the
data.

A text may stand in quotes or without. `yes`, `010`, `1:30` and `1e-9` mean what the place they
stand in makes of them. Tags, merge keys (`<<`) and second documents are refused; anchors are not.

How the texts of the data are read is one rule for all kinds of columns, and for ids of persons:
an id that is `1` in one file and `1.0` in another is one person's. White space around a text
is stripped. A number is a number: `1`, `1.0`, `01`, `+1` and `1e0` are one value, compared exactly;
with separators of thousands or a sign of percent (but where the column's `number` declares them),
with more than 64 characters, or as `nan` it is none. What is no number is compared letter by
letter, yes and no without case. A value may have several texts:
`values: {1: North, 2: {label: South, texts: [S]}, no answer: ["", iap, NA]}`; a label is no text
unless it is listed.

A file of values has a value a line, or a value, a comma and its label; it may begin with a header
that has `code` (or `value`) and perhaps `label` among its names. A line that only looks like one is
refused, and so are lines that another mark than a comma seems to separate: that is declared, as in
`values_file: {name: counties.csv, delimiter: ';'}`.

A file of a hierarchy has a header and a value a line, with the groups that the value lies in: see
[guide.md](guide.md#areas-within-areas).

Questions about dates name periods: `2013-01-31`, `2013-W05`, `2013-01`, `2013-Q1` or `2013`, each
whole: where days are counted `2013-01` is 31 of them, and where months are counted `2013-01-15` is
refused. Of a period that `from` or `to` cuts, the days between them are counted. `from` and `to`
too name periods, and do not say how the data write a date: that is its `format`, and unless given
`2013-01-31`. Years alone are read as `format: "%Y"`, by year, or as numbers, `range: [1980, 2000]`,
to which `1980.0` is one. A time behind a date is cut off as it is written, whatever its zone:
a typed time with a zone counts on the day there, the zone being that of its column. Times that have
a day only in a session's zone, as a database's `timestamptz` and Spark's `TIMESTAMP`, are refused.
"""


def reference() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for name, mapping in MAPPINGS.items():
        about = (mapping.__doc__ or "").split("\n")[0]
        rows = [_row(field) for field in mapping.fields.values()]
        parts.append(f"## {name}\n\n{about}\n\n{_table('Key', 'Value', '', 'Meaning', 'Example')}")
        parts[-1] += "".join(rows)
        if name in WORDS:
            words = "".join(f"| `{word}` | {meaning} |\n" for word, meaning in WORDS[name].items())
            parts.append(f"Or one of the words\n\n{_table('Word', 'Queries')}{words}")
    parts.append(f"## Forms\n\nWhat the tables name.\n\n{_table('Form', 'Written', 'Meaning')}")
    for name, form in DEFINITIONS.items():
        known = form.schema()
        cells = (name.replace("_", " "), _words(known), str(known.get("description", "")))
        parts[-1] += f"| {' | '.join(cells)} |\n"
    return "\n".join(parts)


def _table(*heads: str) -> str:
    return f"| {' | '.join(heads)} |\n{'| --- ' * len(heads)}|\n"


def _row(field: Field[object]) -> str:
    keys = ", ".join(f"`{key}`" for key in field.together)
    beside = f"with {keys}" if keys else ""
    apart = f"not with `{field.apart}`" if field.apart and not beside else ""
    if field.required or field.one_of:
        need = "required" if field.required else "one of these"
    elif field.default in (None, "", ()):
        need = "" if beside else "optional"
    else:
        words = field.default if isinstance(field.default, tuple) else (field.default,)
        need = f"default `{', '.join(map(_default, words))}`"
    needed = ", ".join(filter(None, (need, beside, apart)))
    cells = (f"`{field.name}`", _words(field.form.schema()), needed, field.about)
    return f"| {' | '.join(cells)} | `{field.example}` |\n"


def _default(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(schema: object) -> str:
    names = {str(mapping.schema()): name for name, mapping in MAPPINGS.items()}
    match schema:
        case {"$ref": str(path)}:
            return path.rpartition("/")[2].replace("_", " ")
        case {"anyOf": list(forms)}:
            return " or ".join(map(_words, forms))
        case {"enum": list(words)}:
            shown = (str(word).replace("|", "\\|") for word in words if str(word).strip())
            return " or ".join(f"`{word}`" for word in shown)
        case {"items": item, "maxItems": _}:
            return f"[{_words(item)}, {_words(item)}]"
        case {"items": item}:
            return f"list of {_words(item)}"
        case {"additionalProperties": item, "title": str(key)}:
            return f"mapping of {key}: {_words(item)}"
        case {"properties": dict(keys)}:
            name = names.get(str(schema))
            return f"[{name}](#{name})" if name else f"mapping with `{'`, `'.join(keys)}`"
        case {"type": "boolean"}:
            return "`true` or `false`"
        case {"type": ["string", *_], "pattern": str(pattern)}:
            return f"text of the form `{pattern[1:-1]}`"
        case {"type": ["integer", *_], **known}:
            return f"whole number{limits(known)}"
        case {"type": ["number", *_], **known}:
            return f"number{limits(known)}"
        case _:
            return "text"


_WIDTH = 100
_MARGIN, _LIST = 29, 36  # the columns of comments beside something, and of what a list says
_LONG = 48  # a comment stands above what is longer
_MARK = re.compile(r"^(.*?) *#: ([a-z_]+)(?:\.([a-z_]+))?$", re.MULTILINE)


def _wrapped(about: str, first: str, more: str = "") -> str:
    return textwrap.fill(about, _WIDTH, initial_indent=first, subsequent_indent=more or first)


def _comment(mark: re.Match[str]) -> str:
    """Return the line of a mark with the comment that it asks for."""
    before, mapping, key = mark.groups()
    fields, indent = MAPPINGS[mapping].fields, before[: len(before) - len(before.lstrip())]
    if key is None:
        entries = {word: f"{about.capitalize()}." for word, about in WORDS.get(mapping, {}).items()}
        entries |= {f"{name}: {field.example}": field.about for name, field in fields.items()}
        return "\n".join(_entry(entry, about) for entry, about in entries.items())
    about = fields[key].about
    if not before:
        return _wrapped(f"{key}: {about}", "  # ")
    if len(before) > _LONG:
        return f"{_wrapped(about, f'{indent}# ')}\n{before}"
    column = max(_MARGIN, len(before) + 2)
    return _wrapped(about, f"{before:{column}}# ", f"{'':{column}}# ")


def _entry(entry: str, about: str) -> str:
    start, blank = f"  #   {entry}", f"{'  #':{_LIST}}"
    if len(start) > _LIST - 2:
        return f"{start}\n{_wrapped(about, blank)}"
    return _wrapped(about, f"{start:{_LIST}}", blank)


_LINES = Path(__file__).with_name("starter.yaml").read_text(encoding="utf-8")
STARTER = _MARK.sub(_comment, _LINES)

SHORT_STARTER = """\
# yaml-language-server: $schema=workload.schema.json
# What may be published of a file: declared from its documentation, never from its records.
dataset: {id: my-survey, version: 1}  # and `rows: about N`, if N is public knowledge
privacy:
  unit: row                          # or {person: person_id, max_rows: 3}
  neighbours: add-remove
  delta: 1e-9                        # far below one in the number of records
budget: {epsilon: 4, delta: 1e-9}    # the cap on all releases together

domain:                              # the columns that a table needs, with all their values
  age: {range: [0, 114]}
  sex: {values: [Female, Male]}
  region: {values: {1: North, 2: East, 3: South, 4: West}, other: show}
  income: {bins: [0, 10000, 20000, 50000, 100000, 1000000]}
  employed: boolean

workload:                            # a table each; `dpquery init --full` shows every kind
  - name: people
    product: {}
  - name: age_by_sex
    product: {age: identity, sex: identity+total}
  - name: income_by_region
    product: {income: identity, region: identity}
    where: {employed: "yes"}
"""
