"""Files of public populations: a number above 0 for every row of a table."""

import csv
from collections.abc import Iterator, Mapping

import numpy as np

from dpquery.spec.domain import Attribute
from dpquery.spec.model import Table
from dpquery.spec.parsing.yaml_nodes import Node
from dpquery.spec.predicates import GroupSet, IdentitySet, PredicateSet, StackedSet, TotalSet
from dpquery.spec.problems import quoted

POPULATION = "population"
"""The column of a file of populations that holds them."""


def read_population(
    text: str, name: str, node: Node, table: Table, attributes: Mapping[int, Attribute]
) -> tuple[float, ...]:
    """Return the population of every row of a table, in row order.

    Args:
        text: of the file: a header with the attributes of the table's rows and `population`, then a
            line for each row, by labels or codes.
        name: of the file.
        node: where it is named.
        table: whose rows have populations.
        attributes: by index.
    """
    lines = [line for line in csv.reader(text.splitlines()) if line]
    header = [cell.strip() for cell in lines[0]] if lines else []
    named = [attributes[i].name for i, _ in table.axes]
    for column in (*named, POPULATION):
        if header.count(column) != 1:
            raise node.mistake(
                f"{name}:1: expected one column {quoted(column)} in the header; write "
                f"{','.join([*named, POPULATION])}"
            )
    columns = [header.index(column) for column in named]
    codes = [_numbers(attributes[i], asked, node) for i, asked in table.axes]
    population = np.zeros(table.shape)
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(header):
            raise node.mistake(f"{name}:{number}: expected {len(header)} fields, found {len(line)}")
        value = _number(line[header.index(POPULATION)].strip(), f"{name}:{number}", node)
        cell = [known.get(line[k].strip()) for k, known in zip(columns, codes, strict=True)]
        if None in cell:
            continue  # of a value that the item does not ask for
        place = tuple(part for part in cell if part is not None)
        if population[place]:
            raise node.mistake(f"{name}:{number}: this row is there twice; keep one")
        population[place] = value
    missing = np.argwhere(population == 0)
    if len(missing):
        row = [
            next(label for label, k in known.items() if k == place)
            for known, place in zip(codes, missing[0].tolist(), strict=True)
        ]
        raise node.mistake(
            f"{name} has no population for {', '.join(row) or 'the one row'}, and "
            f"{len(missing) - 1:,} rows more; add a line for each"
        )
    return tuple(population.ravel().tolist())


def _number(text: str, place: str, node: Node) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e18:
        raise node.mistake(
            f"{place}: a population of {quoted(text)} cannot be divided by; expected a number "
            "above 0"
        )
    return value


def _numbers(attribute: Attribute, asked: PredicateSet, node: Node) -> dict[str, int]:
    """Return the number of each query of an attribute by its label, and by its code."""
    numbers: dict[str, int] = {}
    for number, names in enumerate(_names(attribute, asked, node)):
        for name in names:
            numbers.setdefault(name, number)
    return numbers


def _names(attribute: Attribute, asked: PredicateSet, node: Node) -> Iterator[tuple[str, ...]]:
    match asked:
        case IdentitySet():
            codes = attribute.codes
            for code in asked.codes:
                named = (codes[code],) if code < len(codes) else ()
                yield (attribute.label(code), *named)
        case GroupSet(groups=groups):
            for label, _ in groups:
                yield (label,)
        case TotalSet():
            yield ("all",)
        case StackedSet(parts=parts):
            for part in parts:
                yield from _names(attribute, part, node)
        case _:
            raise node.mistake(
                f"the item asks of {quoted(attribute.name)} for ranges, which a file of "
                "populations cannot name; ask for identity or groups"
            )
