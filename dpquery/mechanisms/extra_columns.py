"""The extra columns of a release by least squares: refused early, then filled table by table."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpquery.arrays import Floats
from dpquery.operators.blocks import Block, marginal
from dpquery.progress import report_progress
from dpquery.reconstruction.columns.graphical_model import (
    GraphicalModel,
    check_graphical,
    fit_graphical,
)
from dpquery.reconstruction.columns.postprocess import ExtraColumn, with_columns
from dpquery.reconstruction.least_squares import Estimates
from dpquery.reconstruction.table_answers import TableAnswers
from dpquery.strategy.shapes.strategies import Strategy


@dataclass(frozen=True, eq=False)
class ExtraColumns:
    """Adds columns to the answers of one table at a time.

    Attributes:
        columns: in order.
        model: the graphical model, where a column asks for it.
    """

    columns: tuple[ExtraColumn, ...]
    model: GraphicalModel | None

    def added_to(self, answers: TableAnswers, block: Block) -> TableAnswers:
        """Return a table's answers with the columns; `block` is the table's in the workload."""
        modelled = None if self.model is None else self.model.answer(block).ravel()
        return with_columns(answers, self.columns, model=modelled)


def check_columns(columns: Sequence[ExtraColumn], strategy: Strategy) -> None:
    """Refuse, before anything is charged, columns that could not be made from a strategy."""
    if _graphical(columns):
        check_graphical(strategy)


def extra_columns(
    columns: tuple[ExtraColumn, ...],
    strategy: Strategy,
    noisy: Sequence[Floats],
    estimates: Estimates,
    *,
    noise_std: float,
) -> ExtraColumns:
    """Return the extra columns of all tables; the graphical model, if requested, is fitted here.

    Args:
        columns: in order; checked by check_columns.
        strategy: what was measured.
        noisy: the answers of its measurements, as reconstruct takes them.
        estimates: the least-squares solution, which gives the number of records.
        noise_std: standard deviation of the noise on each of them.
    """
    if not _graphical(columns):
        return ExtraColumns(columns, None)
    report_progress("fitting the graphical model")
    total = float(estimates.answer(marginal(strategy.shape, ()), 0))
    return ExtraColumns(columns, fit_graphical(strategy, noisy, noise_std=noise_std, total=total))


def _graphical(columns: Sequence[ExtraColumn]) -> bool:
    return any(column.name == "graphical" for column in columns)
