"""The fit of a run of tables, and unbiased answers.

The public side of an adaptive run: relaxed rows fitted closely after every table, and afresh at the
end. It sees what was measured and never the data; the same measurements give the same rows.

What all measured tables say of a component is their mean, weighed by precision, and components are
independent: together they are a measurement of the kind of OPT_R, whose answers and their errors
are in closed form ([MATH] 6, 10.9). It holds the tables that were measured and all their margins.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpquery.arrays import Floats
from dpquery.measurement.rounds.run import MeasuredRun, Round
from dpquery.measurement.rounds.tables import TableRounds
from dpquery.operators.blocks import Block
from dpquery.reconstruction.components import Sizes, StackedSets, residual
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.reconstruction.relaxed.fits import FittedRows
from dpquery.reconstruction.relaxed.misfit import MeasuredTable, merged_tables
from dpquery.reconstruction.relaxed.rows import RelaxedRows, rows_digest
from dpquery.strategy.algebra.query_powers import total_of
from dpquery.strategy.algebra.subsets import subsets_of
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.splits import CenteredCore
from dpquery.strategy.strategy import BITS


class AdaptiveFit:
    """A close fit to all noisy tables so far, by which the next table is selected.

    Attributes:
        model: as it was fitted last.

    Privacy:
        Post-processing: a function of noisy tables, and of public inputs.
    """

    def __init__(self, rounds: TableRounds, run: MeasuredRun) -> None:
        """Fit the tables of one attribute; rounds are added one by one."""
        self._rounds, self._total, self._run = rounds, run.total, replace(run, rounds=())
        self._class_counts = rounds.workload.shape_of_domain
        self._measured = tables_of_run(rounds, self._run)
        self._released: RelaxedRows | None = None
        self.model = FittedRows(self._class_counts, self._measured, self._total, closer=True)

    @property
    def rounds(self) -> int:
        """How many rounds it was given."""
        return len(self._measured) - self._rounds.candidates.one_way

    def answers(self, number: int) -> Floats:
        """Return the model's table of the candidate of a number, (cells,) counts."""
        return self.model.table(self._rounds.candidates.subsets[number]).ravel()

    def add(self, measured: Round) -> None:
        """Take in a measured table, and fit again."""
        self._released = None
        self._measured += tables_of_run(
            self._rounds, replace(self._run, first=(), rounds=(measured,))
        )
        self.model = FittedRows(
            self._class_counts, self._measured, self._total, self.model, closer=True
        )

    def released(self) -> RelaxedRows:
        """Return the rows that are released, of all tables so far: one fit and another.

        Rows fitted afresh stop as soon as noise explains what is left, and the last ones, by which
        tables were selected, go on. They err in different places, so that their mean errs less
        than either: it is that of the rows of both ([MATH] 10.8).
        """
        if self._released is None:
            afresh = FittedRows(self._class_counts, self._measured, self._total)
            values = np.concatenate([afresh.rows.values, self.model.rows.values])
            self._released = RelaxedRows(self._class_counts, values)
        return self._released

    def released_table(self, number: int) -> Floats:
        """Return what is released for the candidate of a number, (cells,) counts."""
        block = self._rounds.blocks[number]
        return self._total * self.released().answer(block).ravel().astype(np.float64)

    def digest(self) -> int:
        """Return 63 bits of a hash of the rows that are released."""
        return first_bits(rows_digest(self.released().values))


def first_bits(digest: str) -> int:
    """Return the first 63 bits of a hash in hexadecimal digits, as a run commits them."""
    return int(digest[:16], 16) >> 1


def released_rows(rounds: TableRounds, run: MeasuredRun, seen: AdaptiveFit | None) -> RelaxedRows:
    """Return the rows that are released of a run.

    `seen` is the fit of all rounds, or of all but the last; it is made again where it is not there.
    """
    if rounds.edition == 1:
        shape = rounds.workload.shape_of_domain
        return FittedRows(shape, tables_of_run(rounds, run), run.total).rows
    fit = seen
    if fit is None or fit.rounds < len(run.rounds) - 1:
        fit = AdaptiveFit(rounds, run)
    for measured in run.rounds[fit.rounds :]:
        fit.add(measured)
    return fit.released()


def tables_of_run(rounds: TableRounds, run: MeasuredRun) -> list[MeasuredTable]:
    """Return all tables that a run measured, in order: those of one attribute, then by round."""
    measured = [(number, noisy, run.first_std) for number, noisy in enumerate(run.first)]
    measured += [(int(each.chosen[0]), each.noisy, each.std) for each in run.rounds]
    blocks = rounds.blocks
    return [
        MeasuredTable(blocks[number].attributes, noisy.reshape(blocks[number].row_shape), std**2)
        for number, noisy, std in measured
    ]


DECLARED_PRECISION = 1e12
"""Of a number of records that is public, over what was measured: it has no noise."""


class UnbiasedAnswers:
    """Least squares on measured tables alone: unbiased answers, each with its standard error.

    Privacy:
        Post-processing: a function of noisy tables and public inputs.
    """

    def __init__(
        self, class_counts: tuple[int, ...], measured: Sequence[MeasuredTable], total: int | None
    ) -> None:
        """Take the tables, and the number of records where that is public.

        Sets of attributes may be there more than once.
        """
        tables = merged_tables(measured)
        if total is not None:
            variance = min(table.variance for table in tables) / DECLARED_PRECISION
            tables = (*tables, MeasuredTable((), np.asarray(float(total)), variance))
        sets = StackedSets(class_counts, [(), *(table.attributes for table in tables)])
        components, noise = merged_components(sets, tables)
        # A component of noise s^2 a degree of freedom is a core of weight 1 / (s prod n).
        weights = {
            subset: 1 / (math.sqrt(noise[sizes][place]) * math.prod(sizes))
            for sizes, group in sets.groups.items()
            for place, subset in enumerate(group)
        }
        self._noise_std = float(1 << 2 * BITS) / min(weights.values())
        whole = {subset: round(weight * self._noise_std) for subset, weight in weights.items()}
        cores = tuple(CenteredCore(n) if n > 1 else None for n in class_counts)
        self._strategy = ResidualStrategy("measured tables", "gaussian", cores, whole)
        answers = [
            weight * math.prod(sets.sizes_of(subset)) * components[sizes][sets.places[subset]]
            for subset, weight in whole.items()
            for sizes in [sets.sizes_of(subset)]
        ]
        self._estimates = reconstruct(self._strategy, [each.ravel() for each in answers])

    def holds(self, block: Block) -> bool:
        """Return whether a measured table has all attributes of a block."""
        return self._strategy.supports(block)

    def answer(self, block: Block) -> tuple[Floats, Floats]:
        """Return the answers of a block that is held, and their standard errors: (m,) counts."""
        std = standard_errors(self._strategy, block, position=None, noise_std=self._noise_std)
        return self._estimates.answer(block, None).ravel(), std

    def squared_errors(self, block: Block) -> float:
        """Return the sum of the variances of the answers of a block, in counts squared."""
        terms = self._strategy.variances(block, position=None)
        return total_of(terms, block) * self._noise_std**2


def merged_components(
    sets: StackedSets, measured: Sequence[MeasuredTable]
) -> tuple[dict[Sizes, Floats], dict[Sizes, Floats]]:
    """Return what all measured tables say of every component, and the variance of its noise.

    A table of cell variance v says of the component of a subset: that of its margin, whose cells
    have v times as much noise as cells were added up. Components of different subsets have
    independent noise, so that nothing is lost by taking each by itself.

    Returns:
        values: (count, *sizes) for each sizes, as StackedSets stacks them.
        noise: (count,) the variance a degree of freedom.
    """
    sums = {sizes: np.zeros((len(group), *sizes)) for sizes, group in sets.groups.items()}
    precision = {sizes: np.zeros(len(group)) for sizes, group in sets.groups.items()}
    for table in measured:
        for subset in subsets_of(table.attributes):
            sizes, place = sets.sizes_of(subset), sets.places[subset]
            margin = table.margin(subset)
            sums[sizes][place] += residual(margin.values[None])[0] / margin.variance
            precision[sizes][place] += 1 / margin.variance
    tiny = np.finfo(float).tiny
    for sizes, each in precision.items():
        np.maximum(each, tiny, out=each)
        sums[sizes] /= each.reshape(-1, *[1] * len(sizes))
    return sums, {sizes: 1 / each for sizes, each in precision.items()}
