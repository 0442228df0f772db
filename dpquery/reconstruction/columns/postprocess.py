"""Post-processed columns, beside the unbiased estimates and never in their place.

Every column is a function of one table's estimates and standard errors, but for two that come from
all measurements: `graphical` (graphical_model) and `shrunk` (shrunk_tables); and `consistent` and
`integer` where queries of a table overlap (agreeing_tables). What a column gains on
sparse tables it pays for with bias: sums of many of its cells can be far worse than the same sums
of estimates, and the noise intervals are those of the estimates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, assert_never, get_args

import numpy as np

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.exceptions import SpecError
from dpquery.reconstruction.columns.consistency import QueryStructure, below_zero, query_structure
from dpquery.reconstruction.columns.simplex import (
    onto_chain,
    onto_simplex,
    relative_variances,
    to_whole,
)
from dpquery.reconstruction.table_answers import TableAnswers
from dpquery.spec.problems import quoted, suggestion

ColumnName = Literal["nonnegative", "consistent", "thresholded", "integer", "graphical", "shrunk"]
COLUMN_NAMES: tuple[ColumnName, ...] = get_args(ColumnName)
COLUMN_MEANINGS: dict[ColumnName, str] = {
    "nonnegative": "the estimate, or zero where it is negative",
    "consistent": "the nearest answers, in standard errors, that a table of counts without "
    "negative cells could have, totals before what they are made of; all records together stay as "
    "many as estimated, or none if that is negative",
    "thresholded": "the estimate, or zero where it is below {z}",
    "integer": "the consistent answers rounded up or down to whole numbers that add up",
    "graphical": "the answers of the graphical model (Private-PGM) that fits all measurements best",
    "shrunk": "the best guess: what the measurements say beyond smaller tables, as far as it "
    "stands out of its noise, and no cell below zero",
}


@dataclass(frozen=True)
class ExtraColumn:
    """An extra column; `z` is its threshold in standard errors, None for the universal one."""

    name: ColumnName
    z: float | None = None

    @property
    def text(self) -> str:
        """The column as it is asked for."""
        return self.name if self.z is None else f"{self.name}:{self.z:g}"

    @property
    def meaning(self) -> str:
        """What the column holds, in words."""
        z = "sqrt(2 ln m)" if self.z is None else f"{self.z:g}"
        rows = ", m being the rows of its table" if self.z is None else ""
        return COLUMN_MEANINGS[self.name].format(z=f"{z} standard errors{rows}")


def parse_columns(texts: Sequence[str]) -> tuple[ExtraColumn, ...]:
    """Read the columns asked for, in order.

    >>> parse_columns(["consistent", "thresholded:2"])
    (ExtraColumn(name='consistent', z=None), ExtraColumn(name='thresholded', z=2.0))

    Raises:
        SpecError: a name is not known or repeated, or a threshold is not a positive number.
    """
    columns = tuple(_parse(text) for text in texts)
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"--also {name} is given twice; a release has one column of a name")
    return columns


def _parse(text: str) -> ExtraColumn:
    given, colon, option = text.partition(":")
    name = next((known for known in COLUMN_NAMES if known == given), None)
    if given in ("csv", "xlsx"):
        raise SpecError(
            f"--also {given} is no column; a release is written as {given} too by "
            f"`dpquery package --also {given}`, which is free"
        )
    if name is None:
        raise SpecError(f"--also {quoted(given)} is not known{suggestion(given, COLUMN_NAMES)}")
    if not colon:
        return ExtraColumn(name)
    if name != "thresholded":
        raise SpecError(f"--also {name} takes no number; leave {quoted(colon + option)} out")
    try:
        z = float(option)
    except ValueError:
        z = math.nan
    if not 0 < z < math.inf:
        raise SpecError(
            f"--also {quoted(text)}: expected a positive number of standard errors after the "
            "colon, such as thresholded:2"
        )
    return ExtraColumn(name, z)


def with_columns(
    answers: TableAnswers,
    columns: Sequence[ExtraColumn],
    *,
    fitted: Mapping[ColumnName, Floats | Ints | None] = MappingProxyType({}),
) -> TableAnswers:
    """Return a table's answers with the columns asked for; the estimates are as they were.

    Args:
        answers: of one table.
        columns: in order.
        fitted: (m,) the answers of the columns that are fitted to all measurements; None where
            this table has none.
    """
    extra = tuple(_values(answers, column, fitted) for column in columns)
    return replace(answers, extra=extra)


def _values(
    answers: TableAnswers, column: ExtraColumn, fitted: Mapping[ColumnName, Floats | Ints | None]
) -> Floats | Ints | None:
    match column.name:
        case "nonnegative" | "thresholded" if below_zero(answers.table):
            return None
        case "nonnegative":
            return np.maximum(answers.estimate, 0.0)
        case "consistent":
            values = fitted.get("consistent")
            return consistent(answers) if values is None else values
        case "thresholded":
            return thresholded(answers, column.z)
        case "integer":
            whole = fitted.get("integer")
            return whole_numbers(answers) if whole is None else whole
        case "graphical" | "shrunk":
            return fitted[column.name]
    assert_never(column.name)


def thresholded(answers: TableAnswers, z: float | None) -> Floats:
    """Return the estimates, and zero for those below z standard errors. (m,).

    Args:
        answers: of one table, with standard errors.
        z: None for sqrt(2 ln m): the largest of m normal errors rarely passes it, so that a table
            of zeros stays one (Donoho and Johnstone 1994: the universal threshold).
    """
    if answers.std_error is None:
        raise ValueError("answers without standard errors have no threshold")
    limit = math.sqrt(2 * math.log(max(len(answers.estimate), 1))) if z is None else z
    noise = (answers.estimate < limit * answers.std_error) | (answers.estimate < 0)
    return np.where(noise, 0.0, answers.estimate)


def consistent(answers: TableAnswers) -> Floats | None:
    """Return the consistent answers of a table; None where its queries overlap too much. (m,).

    A table of disjoint queries is projected onto the simplex of its size. Where one axis has
    prefixes, ranges or a total, the queries that count all of that axis are projected so first,
    and then, for each of them, the others given their whole.
    """
    structure = query_structure(answers.table)
    return None if structure.reason else _consistent(answers, structure)


def _consistent(answers: TableAnswers, structure: QueryStructure) -> Floats:
    fibres = _Fibres(answers.table.shape, structure)
    y = fibres.split(answers.estimate)
    v = fibres.split(relative_variances(answers.std_error, answers.estimate.shape))
    wholes, spread = y[:, structure.whole], v[:, structure.whole]
    size = np.maximum(wholes.sum(keepdims=True), 0.0)
    total = onto_simplex(wholes[None, :], spread[None, :], size)[0]
    match structure.kind:
        case "summed":
            cells = fibres.cells(y.shape[1])
            solved = onto_simplex(y[:, cells], v[:, cells], total)
        case "bounded":
            cells = fibres.cells(y.shape[1])
            solved = np.maximum(y[:, cells], 0.0)
            over = solved.sum(axis=1) > total
            solved[over] = onto_simplex(y[over][:, cells], v[over][:, cells], total[over])
        case "prefix" | "ranges":
            first = slice(structure.whole + 1)
            solved = onto_chain(y[:, first], v[:, first], total)
        case _:
            solved = total[:, None]
    return fibres.join(fibres.complete(solved, total))


def whole_numbers(answers: TableAnswers) -> Ints | None:
    """Return the consistent answers as whole numbers that are consistent again. (m,) int64."""
    structure = query_structure(answers.table)
    if structure.reason:
        return None
    fibres = _Fibres(answers.table.shape, structure)
    x = fibres.split(_consistent(answers, structure))
    wholes = x[:, structure.whole]
    total = to_whole(wholes[None, :], np.rint(wholes.sum(keepdims=True)))[0]
    match structure.kind:
        case "summed":
            solved = to_whole(x[:, fibres.cells(x.shape[1])], total)
        case "bounded":
            cells = x[:, fibres.cells(x.shape[1])]
            rest = np.maximum(wholes - cells.sum(axis=1), 0.0)
            solved = to_whole(np.column_stack([cells, rest]), total)[:, :-1]
        case "prefix" | "ranges":
            first = slice(structure.whole + 1)
            solved = np.minimum(np.rint(x[:, first]).astype(np.int64), total[:, None])
            solved[:, -1] = total
        case _:
            solved = total[:, None]
    return fibres.join(fibres.complete(solved, total))


@dataclass(frozen=True)
class _Fibres:
    """Fibres of a table along its one axis that is not disjoint; without one, its cells."""

    shape: tuple[int, ...]
    structure: QueryStructure

    def split(self, values: Floats) -> Floats:
        """Return (fibres, queries of the axis)."""
        if self.structure.kind == "disjoint":
            return values.reshape(-1, 1)
        moved = np.moveaxis(values.reshape(self.shape), self.structure.axis, -1)
        return np.ascontiguousarray(moved).reshape(-1, moved.shape[-1])

    def join(self, fibres: Numbers) -> Numbers:
        """Undo split."""
        if self.structure.kind == "disjoint":
            return fibres.ravel()
        axis = self.structure.axis
        others = self.shape[:axis] + self.shape[axis + 1 :]
        moved = np.moveaxis(fibres.reshape(*others, fibres.shape[1]), -1, axis)
        return np.asarray(np.ascontiguousarray(moved).ravel())

    def cells(self, queries: int) -> Ints:
        """Return the places of the queries that the whole is the sum of."""
        return np.delete(np.arange(queries), self.structure.whole)

    def complete(self, solved: Numbers, total: Numbers) -> Numbers:
        """Return all queries of each fibre from those solved for."""
        match self.structure.kind:
            case "summed" | "bounded":
                place = 0 if self.structure.whole == 0 else solved.shape[1]
                return np.insert(solved, place, total, axis=1)
            case "ranges":
                first, last = np.triu_indices(solved.shape[1])
                below = np.concatenate([np.zeros_like(solved[:, :1]), solved], axis=1)
                return np.asarray(solved[:, last] - below[:, first])
            case _:
                return solved
