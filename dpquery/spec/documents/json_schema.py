"""The JSON Schema (draft 7) of a spec: what an editor completes, checks and shows on hover.

It refuses nothing that the parser takes, and as much of the rest as one can say without looking at
two places at once: names, ranges against the domain and repeated attributes are the parser's.
"""

import json

from dpquery.spec.parsing.fields import DEFINITIONS, SpecFields
from dpquery.spec.parsing.forms import Schema


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
