"""The columns of a release's files: name, type, unit, meaning, values.

This is the one table of them. The metadata of Parquet files, datapackage.json, the metadata of CSV
files and the code book are written from it, so that they cannot disagree. It is driven by the
columns that a file has: a column that is not known here says in the metadata of its Arrow field,
under `description` and `unit`, what it holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from dpquery.releases.extra_columns import SAMPLING
from dpquery.releases.manifest import Manifest
from dpquery.releases.manifest_facts import (
    DerivedFacts,
    ItemFacts,
    SummedFacts,
    amount_words,
    units_counted,
)
from dpquery.releases.tables.file_columns import AMOUNT, ANSWER_COLUMNS, NO_UNIT, SHARE, FileColumn
from dpquery.releases.tables.item_table import ERROR_NAMES
from dpquery.releases.tables.labels import is_binned
from dpquery.spec.columns import PERSON_ROWS, Attribute, Bins, Dates, Domain, Integers

FieldKind = Literal["text", "integer", "number", "boolean", "date"]


@dataclass(frozen=True)
class Category:
    """A value that a column of texts may hold, and what it is called."""

    value: str
    label: str


@dataclass(frozen=True)
class FileField:
    """One column of a file."""

    name: str  # the column's
    kind: FieldKind  # what its values are
    meaning: str  # what it holds, in a sentence without its full stop
    unit: str = NO_UNIT  # of its values; empty where there is none
    nullable: bool = False  # whether it may be empty
    # all values that a column of texts may hold, in order; empty where they are not known or too
    # many to list
    categories: tuple[Category, ...] = ()
    ordered: bool = False  # whether these are in the order of an ordered attribute
    low: int | None = None  # the least value that it may hold, if there is one
    high: int | None = None  # the largest, if there is one
    key: bool = False  # whether it is one of those that say what a row is


FACT_FLAG = (
    "`impossible` or `known` where a public fact states the answer; `noisy` from a rel_error of 30 "
    "% on, `very noisy` from 50 % on; else empty",
    NO_UNIT,
)
"""The same of the flag, where there are public facts."""
SAMPLED = {name: (f"{w[0].upper()}{w[1:]}", NO_UNIT) for name, w in SAMPLING.items()}
"""Meaning and unit of what takes in the sample, beside derived items."""
NO_SAMPLED = dict.fromkeys(SAMPLED, ("Empty: not worked out for quantiles", NO_UNIT))
"""The same of quantiles."""
DERIVED_FIELDS: dict[str, tuple[str, str]] = {
    "quantile": ("Which share lies below the estimate: {definition}", SHARE),
    "estimate": (
        "The {statistic}, from noisy answers{beyond}; empty where it is lost in noise",
        NO_UNIT,
    ),
    "std_error": ("{std_error}", NO_UNIT),
    "ci_low": ("Lower end of the {level} interval, which takes in the noise of all", NO_UNIT),
    "ci_high": ("Upper end of the {level} interval", NO_UNIT),
    **SAMPLED,
    "rel_error": (ANSWER_COLUMNS["rel_error"].meaning, SHARE),
    "flag": ("`noisy`, `very noisy` or `lost in noise`; else empty", NO_UNIT),
    "reason": ("Why there is no estimate, where there is none", NO_UNIT),
    "cells": ("How many rows of the item are added up in this one", "rows"),
    "merged": ("Which values are added up, by its name in the map", NO_UNIT),
}
"""Meaning and unit of the columns of a derived item's file that are no attributes."""
FITTED_FIELDS = {
    "estimate": ("The {amount}, as the relaxed rows have it; biased", AMOUNT),
    "flag": ("`no error bars` in every row", NO_UNIT),
} | dict.fromkeys(ERROR_NAMES, ("Empty: the error of an estimate depends on the records", NO_UNIT))
"""The same where errors are not known."""
_NOT_NEGATIVE = {"std_error", "half_width", "rel_error", "cell", "place", "size", "stride", "first"}


def item_fields(
    schema: pa.Schema, facts: ItemFacts, manifest: Manifest, domain: Domain | None
) -> tuple[FileField, ...]:
    """Return the columns of an item's file."""
    known = {name: (column.meaning, column.unit) for name, column in ANSWER_COLUMNS.items()}
    known |= {} if manifest.error_bars else FITTED_FIELDS
    known |= {"flag": FACT_FLAG} if manifest.facts else {}
    known |= {column.name: (column.meaning, AMOUNT) for column in manifest.extra}
    return _row_fields(schema, known, _words(facts.summed, manifest, schema.names), domain)


def derived_item_fields(
    schema: pa.Schema, facts: DerivedFacts, manifest: Manifest, domain: Domain | None
) -> tuple[FileField, ...]:
    """Return the columns of the file of a derived item."""
    words = _words(None, manifest, schema.names) | {"statistic": facts.kind, "beyond": ""}
    words["definition"] = facts.definition
    known, words["std_error"] = DERIVED_FIELDS, "Standard error of its noise"
    if facts.kind in ("share", "ratio", "mean"):
        words["beyond"] = ": like its interval, it may pass what is possible"
        words["std_error"] += " by first derivatives"
    if facts.kind == "quantiles":
        words["std_error"], known = "Empty: quantiles have an interval alone", known | NO_SAMPLED
    if facts.kind == "merged":  # sums of answers, of which nothing is lost
        counts = {name: (column.meaning, column.unit) for name, column in ANSWER_COLUMNS.items()}
        known = known | counts | {name: (words, AMOUNT) for name, (words, _) in SAMPLED.items()}
    return _row_fields(schema, known, words, domain)


def _row_fields(
    schema: pa.Schema,
    known: Mapping[str, tuple[str, str]],
    words: Mapping[str, str],
    domain: Domain | None,
) -> tuple[FileField, ...]:
    """Return the columns of a file whose first ones, up to `estimate`, say what a row is."""
    attributes = {} if domain is None else {a.name: a for a in domain.attributes}
    last_key = schema.names.index("estimate") if "estimate" in schema.names else 0
    fields = []
    for place, column in enumerate(schema):
        if column.name in known:
            made = _known(column, *known[column.name], words)
        else:
            made = _attribute_field(column, attributes, schema.names)
        says_again = made.name not in attributes and made.name not in known
        is_key = place < last_key and not (says_again and domain is not None)
        fields.append(replace(made, key=is_key and not made.nullable))
    return tuple(fields)


def other_fields(
    schema: pa.Schema, columns: Mapping[str, FileColumn], manifest: Manifest
) -> tuple[FileField, ...]:
    """Return the columns of a file that is not an item's."""
    described = [columns[field.name] for field in schema]
    of_persons = manifest.counted is not None and manifest.counted.rows > 0
    words = _words(None, manifest, (PERSON_ROWS, "table") if of_persons else ())
    if any(item.summed for item in manifest.items):
        words["unit"] += ", or of what the item sums"
    pairs = zip(schema, described, strict=True)
    return tuple(_known(field, column.meaning, column.unit, words) for field, column in pairs)


def field_kind(kind: pa.DataType) -> FieldKind:
    """Return what values of an Arrow type are."""
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "number"
    if pa.types.is_boolean(kind):
        return "boolean"
    return "date" if pa.types.is_date(kind) else "text"


def _words(
    summed: SummedFacts | None, manifest: Manifest, columns: Sequence[str]
) -> dict[str, str]:
    weight = manifest.privacy.weight
    amount = amount_words(summed, weighted=weight is not None, columns=columns)
    units = [] if weight is None else [weight.column]
    units += [] if summed is None else [summed.of]
    unit = " x ".join(units) or units_counted(columns)
    return {"amount": amount, "level": f"{100 * manifest.level:g} %", "unit": unit}


def _known(column: pa.Field, meaning: str, unit: str, words: Mapping[str, str]) -> FileField:
    for name, word in words.items():
        meaning, unit = (text.replace(f"{{{name}}}", word) for text in (meaning, unit))
    return FileField(
        column.name,
        field_kind(column.type),
        meaning,
        unit,
        column.nullable,
        low=0 if column.name in _NOT_NEGATIVE else None,
    )


def _attribute_field(
    column: pa.Field, attributes: Mapping[str, Attribute], names: Sequence[str]
) -> FileField:
    """Return a column of an attribute: its values, or what says the same in codes or ends."""
    kind = field_kind(column.type)
    base, _, end = column.name.rpartition("_")
    if column.name not in attributes and end in _ENDS and base in names:
        if end == "to" and base in attributes and is_binned(attributes[base]):
            end = "below"  # of releases from plans that call the upper edge so
        of_sums = _OF_SUMS.get(end, "") * ({"cells", "merged"} <= {*names})
        holds = _ENDS[end].format(name=base) + of_sums
        return FileField(column.name, kind, holds, nullable=column.nullable)
    said = column.metadata or {}
    meaning = said.get(b"description", b"A value of the row").decode()
    described = meaning, said.get(b"unit", b"").decode()
    if column.name not in attributes:
        return FileField(column.name, kind, *described, nullable=column.nullable)
    attribute = attributes[column.name]
    low, high = _limits(attribute, kind)
    kinds = (Integers, Bins, Dates)
    return FileField(
        column.name,
        kind,
        _declared(attribute, typed=kind != "text"),
        nullable=column.nullable,
        ordered=(
            not attribute.merged
            and (not attribute.in_data or isinstance(attribute.columns[0].kind, kinds))
        ),
        low=low,
        high=high,
    )


_ENDS = {
    "code": "The value of `{name}` as the records have it, or the code of a group as its hierarchy "
    "has it; empty where the row is neither",
    "level": "The level of the hierarchy of `{name}` that the row counts; empty where it is none",
    "from": "Where the range of `{name}` begins, included; empty where the row is no range",
    "to": "Where the range of `{name}` ends, included; empty where the row is no range",
    "below": "The edge that the range of `{name}` stays below; empty where the row is no range",
}
"""What the columns beside an attribute's hold, by the ends of their names."""
_OF_SUMS = {
    "code": "; of values added up the code of the group that they lie in, `listed` where there are "
    "several, with a number where other values are called so",
    "level": "; of values added up `other of` its level where it has more of them, `other` where "
    "they lie in several groups, `all` where they are all that are declared",
}
"""What to add of merged rows."""


def _declared(attribute: Attribute, *, typed: bool) -> str:
    if not attribute.in_data:
        return "How many rows a person has"
    columns = " and ".join(f"`{column.name}`" for column in attribute.columns)
    values = "; ".join(column.kind.words for column in attribute.columns)
    groups = "" if typed else "; ranges, groups and totals of these where the item asks for them"
    return f"Column {columns} of the records, declared as {values}{groups}"


def _limits(attribute: Attribute, kind: FieldKind) -> tuple[int | None, int | None]:
    column = attribute.columns[0].kind
    if kind == "integer" and isinstance(column, Integers):
        return column.low, column.high
    return None, None
