"""A spec's queries as plain lists of codes, and the classes of codes that no query distinguishes.

Written apart from operators/, the slow way, so that the two can be compared.
"""

from collections.abc import Sequence
from typing import assert_never

import numpy as np

from dpquery.arrays import Numbers
from dpquery.spec.model import Spec, Table
from dpquery.spec.predicates import (
    AllRangesSet,
    GroupSet,
    IdentitySet,
    IntervalSet,
    PredicateSet,
    PrefixSet,
    StackedSet,
    TotalSet,
    WidthSet,
)


def members(predicates: PredicateSet) -> list[frozenset[int]]:
    """Return the codes that meet each query of a set."""
    match predicates:
        case IdentitySet():
            return [frozenset([code]) for code in predicates.codes]
        case TotalSet(size=size):
            return [frozenset(range(size))]
        case PrefixSet(length=length):
            return [frozenset(range(last + 1)) for last in range(length)]
        case AllRangesSet(length=length):
            pairs = ((i, j) for i in range(length) for j in range(i, length))
            return [frozenset(range(i, j + 1)) for i, j in pairs]
        case WidthSet(length=length, width=width):
            return [frozenset(range(i, i + width)) for i in range(length - width + 1)]
        case IntervalSet(bounds=bounds):
            return [frozenset(range(first, last + 1)) for first, last in bounds]
        case GroupSet(groups=groups):
            return [frozenset(codes) for _, codes in groups]
        case StackedSet(parts=parts):
            return [codes for part in parts for codes in members(part)]
    assert_never(predicates)


def classes_of(spec: Spec) -> list[list[int]]:
    """Return the class of every code of every attribute, numbered by first appearance.

    Two codes are of one class where every query of the spec has both or neither, and every sum
    the same value for both.
    """
    query_sets: list[dict[frozenset[int], None]] = [{} for _ in spec.domain.attributes]
    for item in spec.items:
        for table in item.tables:
            for i, predicates in (*table.axes, *table.where):
                query_sets[i].update(dict.fromkeys(members(predicates)))
            if table.summed is not None:
                equal: dict[int, set[int]] = {}
                for code, value in enumerate(table.summed.values):
                    equal.setdefault(value, set()).add(code)
                query_sets[table.summed.attribute].update(
                    dict.fromkeys(map(frozenset, equal.values()))
                )
    classes = []
    for size, sets in zip(spec.domain.shape, query_sets, strict=True):
        known: dict[tuple[bool, ...], int] = {}
        signatures = [tuple(code in codes for codes in sets) for code in range(size)]
        classes.append([known.setdefault(signature, len(known)) for signature in signatures])
    return classes


def predicate_matrices(
    table: Table, classes: Sequence[Sequence[int]]
) -> list[tuple[int, bool, Numbers]]:
    """Return (attribute, whether it is an axis, matrix of queries over classes), in order.

    Entries are 0 or 1, and on the attribute whose values are added up 0 or the value.
    """
    axes, summed = {i for i, _ in table.axes}, table.summed
    sets_of = {i: members(predicates) for i, predicates in (*table.axes, *table.where)}
    if summed is not None:
        sets_of.setdefault(summed.attribute, [frozenset(range(len(summed.values)))])
    matrices = []
    for i, sets in sorted(sets_of.items()):
        matrix = np.zeros((len(sets), max(classes[i]) + 1), dtype=object)
        for row, codes in enumerate(sets):
            for code in codes:
                adds = 1 if summed is None or summed.attribute != i else summed.values[code]
                matrix[row, classes[i][code]] = adds
        matrices.append((i, i in axes, matrix))
    return matrices
