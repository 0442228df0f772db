"""Columns beside the estimates: refused early where they cannot be had, then filled.

Every column is a function of one table's estimates and standard errors, but for two that come from
all measurements: `graphical` (graphical_model), `shrunk` (agreeing_tables) and its mean with fitted
rows, `averaged` ([MATH] 16); and `consistent` and `integer` where queries of a table overlap
(agreeing_tables). What a column gains on
sparse tables it pays for with bias: sums of many of its cells can be far worse than the same sums
of estimates, and the noise intervals are those of the estimates.

A table is consistent if some table of counts, none negative, gives all its answers. For each set of
predicates on an attribute that means:
  disjoint   (identity, total, groups and ranges that do not overlap) no answer is negative
  prefix     no answer is negative, and none is larger than the next
  all ranges the same for the ranges from the first code on; any other is a difference of two
  + total    (disjoint ones that miss no code, and the total) no answer is negative, and the total
             is the sum of the others; where the disjoint ones miss a code, at least that sum
One attribute of a table may have one of the last three; the others are disjoint. Then the nearest
such answers have a closed form. Where queries overlap in any other way (r of k, overlapping groups
or ranges, prefixes of two attributes), or other tables share attributes, they come from
agreeing_tables.

The size of a table, the number of records that some query counts, is an estimate too. Kept at that
estimate it stays unbiased (unless negative), while cells move: that is what keeps projection from
inventing people.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, assert_never, get_args

import numpy as np

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_AVERAGED_CELLS
from dpquery.operators.blocks import Block, marginal
from dpquery.progress import report_progress
from dpquery.public_chance import public_generator, public_seed
from dpquery.reconstruction.agreeing_tables import (
    AGREEING_STEPS,
    AgreeingTables,
    ShrunkTables,
    not_shrunk,
)
from dpquery.reconstruction.components import fittable_tables, noise_of_tables
from dpquery.reconstruction.graphical_model import GraphicalModel, check_graphical, fit_graphical
from dpquery.reconstruction.least_squares import Measured, TableAnswers, reconstruct
from dpquery.reconstruction.nearest import onto_chain, onto_simplex, relative_variances, to_whole
from dpquery.reconstruction.relaxed.fits import FittedRows
from dpquery.reconstruction.relaxed.misfit import MeasuredTable
from dpquery.spec.predicates import QueryKind
from dpquery.spec.problems import quoted, several_texts, suggestion
from dpquery.spec.spec import Table
from dpquery.strategy.algebra.query_powers import total_of
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.shapes.informed import InformedStrategy
from dpquery.strategy.strategy import Strategy


@dataclass(frozen=True)
class QueryStructure:
    """How the queries of a table overlap, which decides what its consistent answers are."""

    kind: QueryKind  # of the one axis that is not disjoint; "disjoint" where there is none
    axis: int = 0  # its place among the table's axes; 0 where there is none
    whole: int = 0  # which query of that axis is the sum of the disjoint ones among them
    reason: str = ""  # why there are no consistent answers; empty where there are


def query_structure(table: Table) -> QueryStructure:
    """Return how the queries of a table overlap."""
    if table.summed is not None:
        return QueryStructure("overlapping", reason="its queries are sums, not counts")
    if table.threshold < len(table.axes):
        return QueryStructure(
            "overlapping", reason="a record can be counted by several of its queries"
        )
    kinds = [predicates.kind for _, predicates in table.axes]
    special = [place for place, kind in enumerate(kinds) if kind != "disjoint"]
    if not special:
        return QueryStructure("disjoint")
    if any(kinds[place] == "overlapping" for place in special):
        return QueryStructure(
            "overlapping", reason="the predicates of one of its attributes overlap"
        )
    if len(special) > 1:
        return QueryStructure(
            "overlapping", reason="several of its attributes have prefixes, ranges or totals"
        )
    (axis,) = special
    return QueryStructure(kinds[axis], axis, table.axes[axis][1].whole)


def below_zero(table: Table) -> str:
    """Return why true answers may be negative; nothing where none can be."""
    if table.summed is None or min(table.summed.values) >= 0:
        return ""
    return "its sums may be negative"


ColumnName = Literal[
    "nonnegative", "consistent", "thresholded", "integer", "graphical", "shrunk", "averaged"
]
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
    "averaged": "the mean of the shrunk answers and of those of synthetic records that were fitted "
    "to the estimates: the two err in different places",
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


SHRUNK: tuple[ColumnName, ...] = ("shrunk", "averaged")
BEST_GUESS = ExtraColumn("shrunk")
FAR_LESS = 0.7  # of the error of estimates: from which on the best guess is worth a word


def parse_columns(texts: str | Sequence[str]) -> tuple[ExtraColumn, ...]:
    """Read the columns asked for, in order; a text may name several, with commas between.

    >>> parse_columns(["consistent,thresholded:2"])
    (ExtraColumn(name='consistent', z=None), ExtraColumn(name='thresholded', z=2.0))

    Raises:
        SpecError: a name is not known or repeated, or a threshold is not a positive number.
    """
    columns = tuple(
        _parse(name) for text in several_texts("also", texts) for name in text.split(",")
    )
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"--also {name} is given twice; a release has one column of a name")
    return columns


def _parse(text: str) -> ExtraColumn:
    given, colon, option = text.partition(":")
    name = next((known for known in COLUMN_NAMES if known == given), None)
    if given in ("csv", "xlsx", "replicates"):
        draws = " (replicates:2 to replicates:10000)" * (given == "replicates")
        raise SpecError(
            f"--also {quoted(text)} is no column; `dpquery package --also {given}`{draws} writes "
            "it beside the release, which is free"
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

    Fitted are the answers, (m,), of columns that all measurements make; None where this table has
    none.
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
        case "graphical" | "shrunk" | "averaged":
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
        if self.structure.kind == "disjoint":
            return values.reshape(-1, 1)
        moved = np.moveaxis(values.reshape(self.shape), self.structure.axis, -1)
        return np.ascontiguousarray(moved).reshape(-1, moved.shape[-1])

    def join(self, fibres: Numbers) -> Numbers:
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


OF_ESTIMATES: tuple[ColumnName, ...] = ("nonnegative", "thresholded")
"""Columns that each estimate alone decides."""

PROBE_STEP = 0.01  # of the noise: small enough that cells seldom pass zero on the way
PROBED = 10_000  # answers that are followed at least
FEWEST_PROBES, MOST_PROBES = 4, 8  # every two of them say how far the told error errs itself
FEWEST_THAT_TELL = 50  # answers: of fewer, the estimate errs by more than the guesses gain
MOST_THAT_TELL = 1 << 26  # answers: all probes of more take two gigabytes
MOST_REFITTED = 100_000  # answers: rows fitted to more again, for each probe, take minutes
HALF_WIDTH = 1.96  # standard deviations: 95 %


@dataclass(frozen=True)
class ToldError:
    """The root mean square error of guesses, in counts, as the noisy values tell it."""

    rmse: float | None  # None where the interval reaches zero: noise hides it
    low: float  # the ends of an interval of 95 %
    high: float


@dataclass(frozen=True, eq=False)
class ExtraColumns:
    """Adds columns to the answers of one table at a time."""

    columns: tuple[ExtraColumn, ...]  # in order
    model: GraphicalModel | None  # the graphical model, where a column asks for it
    shrunk: ShrunkTables | None  # the shrunk tables, where a column asks for them
    rows: FittedRows | None  # rows fitted to the estimates, where a column asks for them
    # the consistent cells of all tables, where a column asks for them
    agreeing: AgreeingTables | None

    def added_to(self, answers: TableAnswers, block: Block) -> TableAnswers:
        """Return a table's answers with the columns; `block` is the table's in the workload."""
        fitted: dict[ColumnName, Floats | Ints | None] = {}
        if self.model is not None:
            fitted["graphical"] = self.model.answer(block).ravel()
        fitted["shrunk"], fitted["averaged"] = self.fitted(block)
        closed = not query_structure(answers.table).reason  # fitted as it is, if it is alone
        if self.agreeing is not None and not (closed and self.agreeing.alone(block)):
            making = {"consistent": self.agreeing.answer, "integer": self.agreeing.whole_numbers}
            for name in {column.name for column in self.columns} & making.keys():
                values = making[name](block)
                fitted[name] = None if values is None else values.ravel()
        return with_columns(answers, self.columns, fitted=fitted)

    def fitted(self, block: Block) -> tuple[Floats | None, Floats | None]:
        """Return the shrunk answers of a block, (m,), and their mean with those of the rows."""
        values = None if self.shrunk is None else self.shrunk.answer(block)
        if values is None:
            return None, None
        shrunk = values.ravel()
        rows = shrunk if self.rows is None else self.rows.answer(block).ravel()
        return shrunk, (shrunk + rows) / 2

    def guessed(self, block: Block) -> Floats:
        """Return both of a block that has them, (2, m)."""
        return np.stack([values for values in self.fitted(block) if values is not None])

    def told_errors(self, counted: Sequence[int]) -> dict[ColumnName, ToldError]:
        """Return how far the best guesses err over the answers of some blocks, by their places.

        Left out are columns of which noise says nothing, and those of too few answers or too many.

        Privacy:
            Post-processing: a function of noisy answers and public inputs.
        """
        if (shrunk := self.shrunk) is None:
            return {}
        blocks = [shrunk.blocks[k] for k in counted if shrunk.scope.subsets[k] is not None]
        queries = sum(block.queries for block in blocks)
        names = [
            name
            for name in SHRUNK
            if _among(self.columns, name) and (name == "shrunk" or queries <= MOST_REFITTED)
        ]
        if not (names and FEWEST_THAT_TELL <= queries <= MOST_THAT_TELL):
            return {}
        told = self if "averaged" in names else replace(self, rows=None)
        count = min(MOST_PROBES, max(FEWEST_PROBES, math.ceil(PROBED / queries)))
        errors = zip(SHRUNK, _stein_errors(told, shrunk.measured, blocks, count), strict=True)
        return {name: error for name, error in errors if name in names and error is not None}

    def refitted(self, measured: Measured) -> "ExtraColumns":
        """Return the best guesses by other noisy values of the same measurements."""
        if (shrunk := self.shrunk) is None:
            return self
        rows = None if self.rows is None else _fitted_rows(measured, shrunk.scope.sets)
        return replace(self, shrunk=shrunk.refitted(measured), rows=rows)


def _stein_errors(
    guesses: ExtraColumns, measured: Measured, blocks: Sequence[Block], count: int
) -> list[ToldError | None]:
    """Return the told errors of shrunk answers and of averaged ones, by so many public probes.

    A probe is noise with a random sign for each measured row: traces then err by less than with
    normal noise.
    """
    strategy, std = measured.strategy, measured.noise_std
    chance = public_generator(public_seed(("shrunk", strategy.shape, len(blocks))))
    noises, moved = [], []
    for _ in range(count):
        probe = [std * chance.choice([-1.0, 1.0], each.shape) for each in measured.noisy]
        noises.append(reconstruct(strategy, probe))
        pairs = zip(measured.noisy, probe, strict=True)
        noisy = [each + PROBE_STEP * noise for each, noise in pairs]
        moved.append(guesses.refitted(replace(measured, noisy=noisy)))
    variance, gram = 0.0, np.zeros((count, count))
    distance, away, cross = np.zeros(2), np.zeros((2, count)), np.zeros((2, count, count))
    for block in blocks:
        noise = np.stack([each.answer(block, None).ravel() for each in noises])  # (count, m)
        guess = guesses.guessed(block)  # (2, m)
        changes = np.stack([each.guessed(block) for each in moved], axis=1) - guess[:, None]
        off = guess - measured.estimates.answer(block, None).ravel()
        variance += std**2 * total_of(strategy.variances(block, position=None), block)
        gram += noise @ noise.T
        cross += noise @ changes.transpose(0, 2, 1) / PROBE_STEP
        away += off @ noise.T
        distance += np.sum(off**2, axis=1)
    queries = sum(block.queries for block in blocks)
    return [
        told_error(distance[k], gram, cross[k], away[k], variance, queries)
        for k in range(len(SHRUNK))
    ]


def told_error(
    distance: float, gram: Floats, cross: Floats, away: Floats, variance: float, queries: int
) -> ToldError | None:
    """Return the error of guesses f at noisy answers y [Stein81], and its interval [BZ21].

    It depends on the data, and so do its parts: the squared distance, and how much of the noise the
    guesses follow, from probes of noise [RBU08]. See [MATH] 16.

    Args:
        distance: `|f - y|^2`.
        gram: `d_i'd_j`, (count, count), of the noise `d` that probes make in the answers.
        cross: `d_i'u_j`, likewise, of the part `u` of it that guesses follow.
        away: `d_i'(f - y)`, (count,).
        variance: of all answers, added up.
        queries: the number of answers.

    Returns:
        None where even the upper end is below zero.
    """
    count, own, followed = len(away), np.diag(gram), np.diag(cross)
    share = followed.sum() / own.sum()  # so that chance in the size of the probes cancels
    squares = distance + (2 * share - 1) * variance
    by_chance = count / (count - 1) * np.sum((followed - share * own) ** 2) / own.sum() ** 2
    others = ~np.eye(count, dtype=bool)
    left = max(np.mean(away**2), np.mean((gram - cross)[others] ** 2))
    spread = 4 * left - np.mean((2 * gram**2 - 4 * cross * cross.T)[others])
    half = HALF_WIDTH * math.sqrt(max(spread, 0.0) + 4 * variance**2 * by_chance)
    if squares + half <= 0:
        return None
    low, rmse, high = (
        math.sqrt(max(each, 0.0) / queries) for each in (squares - half, squares, squares + half)
    )
    return ToldError(rmse if low else None, low, high)


def check_columns(
    columns: Sequence[ExtraColumn], strategy: Strategy, blocks: Sequence[Block]
) -> None:
    """Refuse, before anything is charged, columns that could not be made from a strategy."""
    uninformed = [column.text for column in columns if column.name not in OF_ESTIMATES]
    if isinstance(strategy, InformedStrategy) and uninformed:
        raise UnsupportedWorkloadError(
            f"--also {uninformed[0]} knows no public facts, which the spec has; leave the column "
            "out"
        )
    if _among(columns, "graphical"):
        check_graphical(strategy)
    for name in (column.name for column in columns if column.name in SHRUNK):
        scope = fittable_tables(strategy, blocks, not_shrunk)
        if not scope.sets:
            raise UnsupportedWorkloadError(
                f"--also {name}: no table can be shrunk: {scope.reasons[0]}; leave the column out"
            )
        cells = sum(math.prod(strategy.shape[i] for i in subset) for subset in scope.sets)
        if name == "averaged" and cells + sum(strategy.shape) > MAX_AVERAGED_CELLS:
            raise UnsupportedWorkloadError(
                f"--also averaged: records are fitted to tables of {MAX_AVERAGED_CELLS:,} cells "
                f"and classes at most, and these have {cells:,}; take --also shrunk"
            )


def extra_columns(
    columns: tuple[ExtraColumn, ...],
    measured: Measured,
    blocks: Sequence[Block],
    *,
    steps: int = AGREEING_STEPS,
) -> ExtraColumns:
    """Return the extra columns of all tables; what is fitted to all measurements is fitted here.

    The columns have passed check_columns. Tables agree with all of the blocks.
    """
    model = shrunk = rows = agreeing = None
    if _among(columns, "graphical"):
        report_progress("fitting the graphical model")
        model = fit_graphical(measured)
    if any(column.name in SHRUNK for column in columns):
        report_progress("shrinking the tables")
        shrunk = ShrunkTables(measured, blocks)
    if shrunk is not None and _among(columns, "averaged"):
        report_progress("fitting synthetic records")
        fitted = _fitted_rows(measured, shrunk.scope.sets)
        rows = fitted if fitted.explained else None  # else they hold less than was measured
    if _among(columns, "consistent") or _among(columns, "integer"):
        agreeing = AgreeingTables(measured, blocks, steps)
    return ExtraColumns(columns, model, shrunk, rows, agreeing)


def _fitted_rows(measured: Measured, sets: Sequence[Subset]) -> FittedRows:
    """Return rows that fit the unbiased tables over some sets, as far as noise explains."""
    shape, noise_of = measured.strategy.shape, noise_of_tables(measured)
    tables = []
    for subset in sets:
        block = marginal(shape, subset)
        cells = measured.estimates.answer(block, None).reshape(block.table_shape)
        tables.append(MeasuredTable(subset, cells, noise_of(subset) / cells.size))
    return FittedRows(shape, tables, max(1.0, measured.total))


def _among(columns: Sequence[ExtraColumn], name: ColumnName) -> bool:
    return any(column.name == name for column in columns)
