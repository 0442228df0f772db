"""Files of public numbers, such as populations: one for every row of a table."""

import csv
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from dpquery.arrays import Floats, Ints
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
    values, _ = read_row_values(text, name, node, table, attributes, POPULATION, _number)
    return tuple(map(float, values.tolist()))


def read_row_values(
    text: str,
    name: str,
    node: Node,
    table: Table,
    attributes: Mapping[int, Attribute],
    column: str,
    read: Callable[[str, str, Node], float],
) -> tuple[Floats, Ints]:
    """Return a number for every row of a table, in row order, and its line: (m,) each.

    Args:
        text: of the file: a header with the attributes of the table's rows and a column of numbers,
            then a line for each row, by labels or codes.
        name: of the file.
        node: where it is named.
        table: whose rows have numbers.
        attributes: by index.
        column: of the numbers.
        read: returns the number of a text, given its place.
    """
    lines = list(csv.reader(text.splitlines()))
    header = [cell.strip() for cell in lines[0]] if lines else []
    named = [attributes[i].name for i, _ in table.axes]
    for needed in (*named, column):
        if header.count(needed) != 1:
            raise node.mistake(
                f"{name}:1: expected one column {quoted(needed)} in the header; write "
                f"{','.join([*named, column])}"
            )
    columns = [header.index(each) for each in named]
    codes = [_numbers(attributes[i], asked, node) for i, asked in table.axes]
    numbers, line_of = np.zeros(table.shape), np.zeros(table.shape, dtype=np.int64)
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        if len(line) != len(header):
            raise node.mistake(f"{name}:{number}: expected {len(header)} fields, found {len(line)}")
        value = read(line[header.index(column)].strip(), f"{name}:{number}", node)
        cell = [known.get(line[k].strip()) for k, known in zip(columns, codes, strict=True)]
        if None in cell:
            continue  # of a value that the item does not ask for
        place = tuple(part for part in cell if part is not None)
        if line_of[place]:
            raise node.mistake(f"{name}:{number}: this row is there twice; keep one")
        numbers[place], line_of[place] = value, number
    missing = np.argwhere(line_of == 0)
    if len(missing):
        row = [
            next(label for label, k in known.items() if k == place)
            for known, place in zip(codes, missing[0].tolist(), strict=True)
        ]
        raise node.mistake(
            f"{name} has no {column} for {', '.join(row) or 'the one row'}, and "
            f"{len(missing) - 1:,} rows more; add a line for each"
        )
    return numbers.ravel(), line_of.ravel()


def _number(text: str, place: str, node: Node) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e18:
        raise node.mistake(
            f"{place}: this population cannot be divided by; expected a number above 0"
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
                "numbers cannot name; ask for identity or groups"
            )
