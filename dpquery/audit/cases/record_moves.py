"""How far a replaced record moves the answers, from dense matrices, in Python integers.

Two cells matter only through the columns of each attribute: their norms and their overlap in every
block. Pairs of codes that agree in all of these are tried once.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from dpquery.arrays import Numbers
from dpquery.audit.cases.dense_strategy import Cell, DenseRows, DenseStrategy

_TRIED = 1 << 22  # combinations of pairs of codes, times blocks
_CODES = 256  # of an attribute, unless two different codes always look the same
CodePair = tuple[int, int]


def furthest_move(strategy: DenseStrategy, power: int) -> tuple[int, tuple[Cell, Cell]]:
    """Return the largest distance of two columns, to the power, and two cells that have it.

    Where there are too many pairs it is the sum of every block's own largest distance, and the
    cells are two of the domain's corners.
    """
    class_of = strategy.rows[0].class_of
    if class_of is not None:
        some_cells = {place: cell for cell, place in class_of.items()}
        rows_of_classes = tuple(replace(rows, class_of=None) for rows in strategy.rows)
        over_classes = replace(strategy, shape=(len(some_cells),), rows=rows_of_classes)
        longest, (first, second) = furthest_move(over_classes, power)
        return longest, (some_cells[first], some_cells[second])
    shared = [_overlaps(rows, power) for rows in strategy.rows]
    pairs: list[list[CodePair]] = []
    number = len(strategy.rows)
    for i, n in enumerate(strategy.shape):
        tables = [of_block[i] for of_block in shared if i in of_block]
        kinds: dict[tuple[tuple[int, int, int], ...], CodePair] = {}
        for a, b in product(range(n), repeat=2):
            kinds.setdefault(
                tuple((int(T[a, a]), int(T[b, b]), int(T[a, b])) for T in tables), (a, b)
            )
        if n > _CODES and len(kinds) > 2:
            number = _TRIED + 1
        pairs.append(list(kinds.values()))
        number *= len(kinds)
    if number > _TRIED:
        corners = tuple(0 for _ in strategy.shape), tuple(n - 1 for n in strategy.shape)
        alone = zip(strategy.rows, shared, strict=True)
        return sum(_bound(rows, tables, power) for rows, tables in alone), corners
    best, cells = -1, ((0,) * len(pairs), (0,) * len(pairs))
    for codes in product(*pairs):
        length = sum(
            _distance(rows, tables, codes, power)
            for rows, tables in zip(strategy.rows, shared, strict=True)
        )
        if length > best:
            best = length
            cells = tuple(a for a, _ in codes), tuple(b for _, b in codes)
    return best, cells


def _overlaps(rows: DenseRows, power: int) -> dict[int, Numbers]:
    """Return for each attribute the overlaps of its columns; a column's with itself is its norm."""
    tables = {}
    for i, M in zip(rows.attributes, rows.matrices, strict=True):
        if power == 2:
            tables[i] = M.T.dot(M)
        else:
            columns, n = M.T, M.shape[1]
            T = np.zeros((n, n), dtype=object)
            for a, b in product(range(n), repeat=2):
                both = zip(columns[a], columns[b], strict=True)
                T[a, b] = sum(min(abs(x), abs(y)) for x, y in both if x * y > 0)
            tables[i] = T
    return tables


def _distance(
    rows: DenseRows, tables: dict[int, Numbers], codes: Sequence[CodePair], power: int
) -> int:
    if rows.at_least is not None:
        columns = [rows.column(tuple(pair[side] for pair in codes)) for side in (0, 1)]
        return int((abs(columns[0] - columns[1]) ** power).sum())
    first, second, both = (
        math.prod(int(T[codes[i][x], codes[i][y]]) for i, T in tables.items())
        for x, y in ((0, 0), (1, 1), (0, 1))
    )
    return int(rows.weight**power * (first + second - 2 * both))


def _bound(rows: DenseRows, tables: dict[int, Numbers], power: int) -> int:
    """Return the largest distance in one block, from its largest norm and least overlap."""
    norm = math.prod(int(T.diagonal().max()) for T in tables.values())
    if rows.at_least is not None:
        cells = product(*(range(len(T)) for T in tables.values()))
        return 2 * max(_norm_at(rows, tables, cell, power) for cell in cells)
    wide = [T for T in tables.values() if len(T) > 1]
    if not wide:
        return 0
    if len(wide) == 1:
        (T,) = wide
        farthest = int((T.diagonal()[:, None] + T.diagonal() - 2 * T).max())
        return int(rows.weight**power * farthest * norm // int(T.diagonal().max()))
    ends = [1]
    for T in tables.values():
        ends = [end * int(side) for end in ends for side in (T.min(), T.max())]
    return int(rows.weight**power * 2 * (norm - min(ends)))


def _norm_at(rows: DenseRows, tables: dict[int, Numbers], codes: Cell, power: int) -> int:
    places = dict(zip(tables, codes, strict=True))
    cell = tuple(places.get(i, 0) for i in range(max(tables) + 1))
    return rows.column_norm(cell, power)
