"""The extra columns of a release by least squares: refused early, then filled table by table."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block, marginal
from dpquery.progress import report_progress
from dpquery.reconstruction.columns.agreeing_tables import AgreeingTables
from dpquery.reconstruction.columns.consistency import query_structure
from dpquery.reconstruction.columns.fittable_tables import fittable_tables
from dpquery.reconstruction.columns.graphical_model import (
    GraphicalModel,
    check_graphical,
    fit_graphical,
)
from dpquery.reconstruction.columns.joint_counts import Measured
from dpquery.reconstruction.columns.postprocess import ColumnName, ExtraColumn, with_columns
from dpquery.reconstruction.columns.shrunk_tables import ShrunkTables, not_shrunk
from dpquery.reconstruction.least_squares import Estimates
from dpquery.reconstruction.table_answers import TableAnswers
from dpquery.strategy.shapes.informed import InformedStrategy
from dpquery.strategy.shapes.strategies import Strategy

OF_ESTIMATES: tuple[ColumnName, ...] = ("nonnegative", "thresholded")
"""Columns that each estimate alone decides."""


@dataclass(frozen=True, eq=False)
class ExtraColumns:
    """Adds columns to the answers of one table at a time.

    Attributes:
        columns: in order.
        model: the graphical model, where a column asks for it.
        shrunk: the shrunk tables, where a column asks for them.
        agreeing: the consistent cells of all tables, where a column asks for them.
    """

    columns: tuple[ExtraColumn, ...]
    model: GraphicalModel | None
    shrunk: ShrunkTables | None
    agreeing: AgreeingTables | None

    def added_to(self, answers: TableAnswers, block: Block) -> TableAnswers:
        """Return a table's answers with the columns; `block` is the table's in the workload."""
        fitted: dict[ColumnName, Floats | Ints | None] = {}
        if self.model is not None:
            fitted["graphical"] = self.model.answer(block).ravel()
        if self.shrunk is not None:
            values = self.shrunk.answer(block)
            fitted["shrunk"] = None if values is None else values.ravel()
        if self.agreeing is not None and not self._by_itself(answers, block):
            values, whole = self.agreeing.answer(block), self.agreeing.whole_numbers(block)
            fitted["consistent"] = None if values is None else values.ravel()
            fitted["integer"] = None if whole is None else whole.ravel()
        return with_columns(answers, self.columns, fitted=fitted)

    def _by_itself(self, answers: TableAnswers, block: Block) -> bool:
        """Return whether a table is fitted in closed form, as it has none to agree with."""
        alone = self.agreeing is not None and self.agreeing.alone(block)
        return alone and not query_structure(answers.table).reason


def check_columns(
    columns: Sequence[ExtraColumn], strategy: Strategy, blocks: Sequence[Block]
) -> None:
    """Refuse, before anything is charged, columns that could not be made from a strategy.

    Args:
        columns: in order.
        strategy: what is or was measured.
        blocks: what is asked of it.
    """
    uninformed = [column.text for column in columns if column.name not in OF_ESTIMATES]
    if isinstance(strategy, InformedStrategy) and uninformed:
        raise UnsupportedWorkloadError(
            f"--also {uninformed[0]} knows no public facts, which the spec has; leave the column "
            "out"
        )
    if _among(columns, "graphical"):
        check_graphical(strategy)
    if _among(columns, "shrunk"):
        scope = fittable_tables(strategy, blocks, not_shrunk)
        if not scope.sets:
            raise UnsupportedWorkloadError(
                f"--also shrunk: no table can be shrunk: {scope.reasons[0]}; leave the column out"
            )


def extra_columns(
    columns: tuple[ExtraColumn, ...],
    strategy: Strategy,
    noisy: Sequence[Floats],
    estimates: Estimates,
    blocks: Sequence[Block],
    *,
    noise_std: float,
) -> ExtraColumns:
    """Return the extra columns of all tables; what is fitted to all measurements is fitted here.

    Args:
        columns: in order; checked by check_columns.
        strategy: what was measured.
        noisy: the answers of its measurements, as reconstruct takes them.
        estimates: the least-squares solution, which gives the number of records.
        blocks: what is asked, and what else its tables are to agree with.
        noise_std: standard deviation of the noise on each of them.
    """
    model = shrunk = agreeing = None
    if _among(columns, "graphical"):
        report_progress("fitting the graphical model")
        total = float(estimates.answer(marginal(strategy.shape, ()), 0))
        model = fit_graphical(strategy, noisy, noise_std=noise_std, total=total)
    if _among(columns, "shrunk"):
        report_progress("shrinking the tables")
        shrunk = ShrunkTables(strategy, noisy, blocks, noise_std=noise_std)
    if _among(columns, "consistent") or _among(columns, "integer"):
        agreeing = AgreeingTables(Measured(strategy, noisy, estimates, noise_std), blocks)
    return ExtraColumns(columns, model, shrunk, agreeing)


def _among(columns: Sequence[ExtraColumn], name: ColumnName) -> bool:
    return any(column.name == name for column in columns)
