"""The JSON Schema (draft 7) of a spec: what an editor completes, checks and shows on hover.

It refuses nothing that the parser takes, and as much of the rest as one can say without looking at
two places at once: names, ranges against the domain and repeated attributes are the parser's.
"""

import json
from collections.abc import Mapping, Sequence

from dpquery.spec.parse import IDENTIFIER, NEIGHBOURS, ROWS, SECTIONS
from dpquery.spec.parse_domain import COLUMN_KINDS
from dpquery.spec.parse_predicates import CONDITIONS, SET_KINDS, SET_WORDS
from dpquery.spec.parse_threshold import DISTRIBUTIONS, SAMPLED, THRESHOLD_KINDS
from dpquery.spec.parse_workload import ITEM_KINDS, MARGINAL_KINDS, NAME

Schema = dict[str, object]


def schema_text() -> str:
    """Return the schema as JSON text."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> Schema:
    """Return the schema."""
    sections = {
        "dataset": _dataset(),
        "privacy": _privacy(),
        "budget": _budget("The cap on all releases of the dataset together."),
        "domain": _domain(),
        "workload": _list(
            _ref("item"),
            "The tables to publish. Attributes that an item does not name are summed over.",
        ),
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "dpquery workload",
        **_mapping(sections, "What dpquery may publish about a dataset.", required=SECTIONS),
        "definitions": {
            "text": {"type": ["string", "number", "boolean"]},
            "names": {"type": "array", "items": _ref("text"), "uniqueItems": True},
            **_column_definitions(),
            **_predicate_definitions(),
            **_item_definitions(),
        },
    }


def _ref(name: str, description: str = "") -> Schema:
    # Draft 7 ignores whatever stands beside $ref, so that a description needs the detour.
    own: Schema = {"$ref": f"#/definitions/{name}"}
    return {"allOf": [own], "description": description} if description else own


def _mapping(
    properties: Mapping[str, Schema],
    description: str,
    *,
    required: Sequence[str] = (),
    one_of: Sequence[str] = (),
) -> Schema:
    """Return the schema of a mapping with fixed keys, exactly one of them among `one_of`."""
    found: Schema = {
        "type": "object",
        "description": description,
        "properties": dict(properties),
        "additionalProperties": False,
    }
    if required:
        found["required"] = list(required)
    if one_of:
        found["oneOf"] = [{"required": [name]} for name in one_of]
    return found


def _list(items: Schema, description: str, *, least: int = 1) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "description": description}


def _pair(items: Schema, description: str) -> Schema:
    return _list(items, description, least=2) | {"maxItems": 2}


def _by_attribute(values: Schema, description: str, *, least: int = 0) -> Schema:
    found: Schema = {"type": "object", "additionalProperties": values, "description": description}
    return found | {"minProperties": least} if least else found


def _number(description: str, **limits: float) -> Schema:
    """Return the schema of a number; tools of YAML 1.1 take 1e-9 for a text."""
    pattern = r"^\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
    return {"type": ["number", "string"], "pattern": pattern, **limits, "description": description}


def _whole(description: str, **limits: int) -> Schema:
    pattern = r"^\s*[+-]?[0-9]+\s*$"
    return {"type": ["integer", "string"], "pattern": pattern, **limits, "description": description}


def _delta(description: str) -> Schema:
    return _number(description, minimum=0, exclusiveMaximum=1)


def _dataset() -> Schema:
    name: Schema = {"type": ["string", "number"], "pattern": f"^{IDENTIFIER}$"}
    properties = {
        "id": name | {"description": "The population whose budget is spent; the ledger's key."},
        "version": name | {"description": "Which file of it; all versions share one budget."},
    }
    rows: Schema = {
        "type": ["integer", "string"],
        "pattern": f"^{ROWS}$",
        "description": "How many records it holds: about 50000, from public knowledge. An exact "
        "number only with neighbours: replace, which leave it public.",
    }
    parent = {
        "id": name | {"description": "The people's own name: what these datasets share."},
        "budget": _budget("The cap on all releases of all datasets that name this parent."),
    }
    words = "Where its people are in other datasets too: releases are charged to this cap as well."
    more = {"rows": rows, "parent": _mapping(parent, words, required=tuple(parent))}
    return _mapping(properties | more, "The dataset, by declared name.", required=("id",))


def _privacy() -> Schema:
    person = {
        "person": _ref("text", "The column whose value tells persons apart; in no table."),
        "max_rows": _whole("At most this many rows of a person are counted.", minimum=1),
    }
    unit: Schema = {
        "description": "What the guarantee protects: one row, or all rows of one person.",
        "anyOf": [
            {"const": "row"},
            _mapping(person, "All rows of one person.", required=tuple(person)),
        ],
    }
    properties: dict[str, Schema] = {
        "unit": unit,
        "neighbours": {
            "enum": list(NEIGHBOURS),
            "description": "Whether hiding a unit means adding or removing it, or replacing it.",
        },
        "delta": _delta("Chance that the guarantee fails; 0 (the default) allows Laplace only."),
    }
    return _mapping(properties, "Whom the release protects, and how.", required=("unit",))


def _budget(description: str) -> Schema:
    properties = {
        "epsilon": _number("The most that all releases may spend.", minimum=1e-6, maximum=1e6),
        "delta": _delta("The delta that goes with epsilon; with it Gaussian noise can be paid."),
        "rho": _number("The same in zero-concentrated DP.", minimum=1e-6, maximum=1e6),
    }
    found = _mapping(
        properties,
        description,
        one_of=("epsilon", "rho"),
    )
    return found | {"dependencies": {"delta": ["epsilon"]}}


def _domain() -> Schema:
    return _by_attribute(
        _ref("attribute"),
        "The attributes and all values that they may hold; public knowledge, never read from the "
        "data.",
        least=1,
    )


def _kinds() -> dict[str, Schema]:
    """Return what a column may hold, by key."""
    texts = _list(_ref("text"), "Texts in the CSV file; case does not count.")
    value: Schema = {"type": ["string", "number", "boolean", "null"]}
    return {
        "range": _pair(_whole("A limit, included."), "Whole numbers from lowest to highest."),
        "values": {
            "description": "The texts in the file: a list, or text: label.",
            "anyOf": [
                _list(value, "Texts in the CSV file, shown as they are.") | {"uniqueItems": True},
                _by_attribute(_ref("text"), "Text in the CSV file: label shown.", least=1),
            ],
        },
        "values_file": {
            "type": "string",
            "description": "A file beside the spec with one value a line, or value,label.",
        },
        "bins": _list(
            _number("An edge."), "Edges, strictly rising; a bin holds its lower edge.", least=2
        ),
        "boolean": _mapping(
            {"true": texts, "false": texts}, "Yes or no, with the texts that mean them."
        ),
    }


def _column_definitions() -> dict[str, Schema]:
    other: Schema = {
        "enum": ["bin", "drop"],
        "description": "What any other text does: fill a bin of its own, or drop the row "
        "(the default).",
    }
    column = _kinds() | {"other": other}
    named = column | {"column": _ref("text", "The header, where it is not the attribute's name.")}
    merge = _by_attribute(_ref("column"), "Header and values of each column.", least=2)
    boolean = {"const": "boolean", "description": "Yes or no."}
    whole = {"merge": merge}
    return {
        "column": {
            "anyOf": [boolean, _mapping(column, "One column.", one_of=COLUMN_KINDS)],
        },
        "attribute": {
            "anyOf": [
                boolean,
                _mapping(named, "What one column may hold.", one_of=COLUMN_KINDS),
                _mapping(whole, "Several columns as one attribute.", required=tuple(whole)),
            ],
        },
    }


def _span() -> Schema:
    return _pair(_ref("text"), "First and last value, both included; edges where it is bins.")


def _conditions() -> dict[str, Schema]:
    """Return what makes one query, by key."""
    return {
        "is": {
            "description": "One value.",
            "anyOf": [_ref("text"), {"type": "object", "minProperties": 1}],
        },
        "in": _list(_ref("entry"), "Any of these."),
        "between": _span(),
    }


def _predicate_definitions() -> dict[str, Schema]:
    spans = _list(_span(), "Ranges, one query each; they may overlap.")
    width = _whole("Every window of this many values.", minimum=1)
    listed = _list(_ref("entry"), "The values of one group.")
    groups = _by_attribute(listed, "Label: values, one query each.", least=1)
    sets = _conditions() | {"width": width, "ranges": spans, "groups": groups}
    return {
        "entry": {
            "description": "A value, a range [first, last], or conditions on merged columns.",
            "anyOf": [_ref("text"), _span(), {"type": "object", "minProperties": 1}],
        },
        "condition": {
            "description": "A value, or {is: value}, {in: [...]}, {between: [first, last]}.",
            "anyOf": [
                _ref("text"),
                _mapping(_conditions(), "What a record must meet.", one_of=CONDITIONS),
            ],
        },
        "one_set": {
            "description": "identity: every value. total: all values together. prefix: up to each "
            "value. all-ranges: from any value to any other. identity+total: both.",
            "anyOf": [{"enum": list(SET_WORDS)}, _mapping(sets, "Queries.", one_of=SET_KINDS)],
        },
        "set": {"anyOf": [_ref("one_set"), _list(_ref("one_set"), "Sets, one after another.")]},
        "windows": {
            "description": "all: every range. prefix: up to each value. {width: n}: every window.",
            "anyOf": [
                {"enum": ["all", "prefix"]},
                _mapping({"width": width}, "Windows.", required=("width",)),
                spans,
            ],
        },
    }


def _item_definitions() -> dict[str, Schema]:
    kinds: dict[str, Schema] = {
        "product": _by_attribute(_ref("set"), "A table with a query for every combination."),
        "marginals": _marginals(),
        "ranges": _by_attribute(_ref("windows"), "Ranges in one or more dimensions.", least=1),
        "union": _list(_ref("part"), "Several items without names as one."),
        "any_of": _by_attribute(
            _ref("set"), "Records that meet at least one of the predicates.", least=1
        ),
        "threshold": _threshold(),
    }
    where = _by_attribute(_ref("condition"), "What every record counted must meet as well.")
    part = kinds | {"where": where}
    named: dict[str, Schema] = {
        "name": {
            "type": ["string", "integer"],
            "pattern": f"^{NAME}$",
            "not": {"const": "errors"},
            "description": "Unique; the name of the file in the release.",
        },
        "description": _ref("text", "What the table shows, for its readers."),
        "weight": _number("How much its squared error counts; 1 unless said.", exclusiveMinimum=0),
    }
    return {
        "part": _mapping(part, "A table or several.", one_of=ITEM_KINDS),
        "item": _mapping(
            named | part, "A named item of the workload.", required=("name",), one_of=ITEM_KINDS
        ),
    }


def _marginals() -> Schema:
    properties = {
        "ways": _whole("All tables over exactly this many attributes.", minimum=0),
        "up_to": _whole("All tables over at most this many attributes.", minimum=0),
        "sets": _list(_ref("names"), "Lists of attributes, one table each; [] is the total."),
        "max_cells": _whole("All tables with at most this many cells.", minimum=1),
        "over": _ref("names", "The attributes to combine; all unless said."),
        "predicates": _by_attribute(
            _ref("set"), "What stands in for identity on an attribute, such as {age: prefix}."
        ),
    }
    found = _mapping(properties, "Tables over subsets of attributes.", one_of=MARGINAL_KINDS)
    return found | {"dependencies": {"sets": {"not": {"required": ["over"]}}}}


def _threshold() -> Schema:
    properties: dict[str, Schema] = {
        "r": _whole("How many of the attributes must meet their target.", minimum=1),
        "of": _ref("names", "The attributes to count over.") | {"minItems": 1},
        "targets": {
            "description": "all: every combination of values. Or a target for each attribute: a "
            "value, or a group of values such as {in: [1, 2]} or {between: [5, 9]}.",
            "anyOf": [{"const": "all"}, _by_attribute(_ref("condition"), "Attribute: target.")],
        },
        "sample": _whole("So many random sets of attributes, one table each.", minimum=1),
        "k": _whole("The number of attributes of each random set.", minimum=1),
        "seed": _whole("Another seed draws other sets; it is public, and no noise has one."),
        "over": _ref("names", "The attributes to draw from; all unless said."),
        "distribution": _distribution(),
        "max_cells": _whole("Sets whose table has more cells are not drawn.", minimum=1),
    }
    found = _mapping(
        properties, "Records that meet at least r targets.", required=("r",), one_of=THRESHOLD_KINDS
    )
    drawn: Schema = {"required": ["k", "seed"], "not": {"required": ["targets"]}}
    return found | {"dependencies": {"sample": drawn} | {own: ["sample"] for own in SAMPLED}}


def _distribution() -> Schema:
    p = _number("p, 1/4 unless said.", exclusiveMinimum=0, exclusiveMaximum=1)
    return {
        "description": "How a set's chance goes with its attributes, the first named the likeliest:"
        " the product of 1 for each, of 1/rank, or of (1 - p)^rank.",
        "anyOf": [
            {"enum": list(DISTRIBUTIONS)},
            _mapping({"geometric": p}, "Geometric.", required=("geometric",)),
        ],
    }
