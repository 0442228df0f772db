"""Declarations of columns as a spec writes them, on one line of YAML."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dpquery.data_check.letters import written_out
from dpquery.spec.domain import Bins, Boolean, Categorical, ColumnKind, Dates, Integers
from dpquery.spec.numbers import NumberFormat

WRITTEN = 40
"""Values of a list up to which it is written again."""
_PLAIN = re.compile(r"[A-Za-z0-9]([\w %+/.-]*[\w%+.])?", re.ASCII)


class Value(NamedTuple):
    """A value of a list: its label, and the texts that stand for it, its code first."""

    label: str
    texts: tuple[str, ...]


def listed_values_of(kind: Categorical) -> list[Value]:
    """Return the values of a list in the order of their codes."""
    return [Value(*pair) for pair in zip(kind.labels, kind.texts, strict=True)]


def scalar(text: str) -> str:
    r"""Return a text as YAML writes it, in double quotes where that is safer.

    >>> print(scalar("no answer"), scalar(""), scalar("a: b"), scalar("\t"))
    no answer "" "a: b" "\t"
    """
    return text if _PLAIN.fullmatch(text) else written_out(json.dumps(text, ensure_ascii=False))


def flow_list(texts: Iterable[str]) -> str:
    """Return texts as a list, each once."""
    return f"[{', '.join(map(scalar, dict.fromkeys(texts)))}]"


def flow_values(values: Sequence[Value]) -> str:
    """Return the field `values`; a plain list where every value is its own label."""
    if all(value.texts == (value.label,) for value in values):
        return f"values: {flow_list(value.label for value in values)}"
    entries = [
        f"{scalar(value.texts[0])}: {scalar(value.label)}"
        if len(value.texts) == 1
        else f"{scalar(value.label)}: {flow_list(value.texts)}"
        for value in values
    ]
    return f"values: {{{', '.join(entries)}}}"


def flow_edges(edges: Iterable[float]) -> str:
    """Return the field `bins`."""
    shortest = (f"{edge:.15g}" if float(f"{edge:.15g}") == edge else repr(edge) for edge in edges)
    return f"bins: [{', '.join(shortest)}]"


def flow_boolean(true: Iterable[str], false: Iterable[str]) -> str:
    """Return the field `boolean`."""
    return f"boolean: {{true: {flow_list(true)}, false: {flow_list(false)}}}"


def flow_dates(dates: Dates) -> str:
    """Return the field `date`."""
    fields = [f"from: {dates.first}, to: {dates.last}, by: {dates.by}"]
    fields += [f"format: {json.dumps(dates.format.text)}"] * bool(dates.format.text)
    return f"date: {{{', '.join(fields)}}}"


def flow_number(written: NumberFormat) -> str:
    """Return the field `number`."""
    fields = {"thousands": written.thousands, "decimal": written.decimal, "sign": written.sign}
    return (
        f"number: {{{', '.join(f'{key}: {scalar(text)}' for key, text in fields.items() if text)}}}"
    )


def flow_kind(kind: ColumnKind) -> str:
    """Return the field that says what a column holds."""
    match kind:
        case Categorical(values=values) if len(values) > WRITTEN:
            return "values: ..."
        case Categorical():
            return flow_values(listed_values_of(kind))
        case Integers(low=low, high=high):
            return f"range: [{low}, {high}]"
        case Bins(edges=edges):
            return flow_edges(edges)
        case Boolean(true=true, false=false):
            return flow_boolean(true, false)
        case Dates():
            return flow_dates(kind)
