"""Tables fitted to measured tables by shrinkage: component by component, in closed form.

Every measured table says something of the components of all its subsets; what all of them say of
one is their mean, weighed by precision ([MATH] 10.7). From there it is what `shrunk` does to a
linear release: each component shrunk towards what smaller ones say, then the nearest tables that
agree and have no negative cell. A table that no measured one holds is the table of largest entropy
with the margins that are known, which cannot see what two attributes have in common with a third.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations

import numpy as np

from dpquery.arrays import Floats
from dpquery.operators.blocks import Block
from dpquery.reconstruction.adaptive.fitted_rows import FittedRows
from dpquery.reconstruction.adaptive.measured_tables import MeasuredTable
from dpquery.reconstruction.columns.fittable_tables import varying
from dpquery.reconstruction.columns.nonnegative_tables import NonnegativeTables
from dpquery.reconstruction.columns.shrinkage import shrunk_components
from dpquery.reconstruction.columns.stacked_tables import Sizes, StackedSets, residual
from dpquery.reconstruction.rap.relaxed_rows import RelaxedRows
from dpquery.strategy.algebra.subsets import Subset, subsets_of

FITTING_ROUNDS = 10  # of proportional fitting of a table to the margins that are known
ROWS_NOISE = 0.01  # standard deviation, as a share of a cell's mean: rows meet the tables closely


class ShrunkModel:
    """Shrunk tables over the measured sets, and tables of largest entropy over all others.

    Attributes:
        class_counts: classes of each attribute.
        total: the number of records.

    Privacy:
        Post-processing: a function of noisy tables and public inputs.
    """

    def __init__(
        self, class_counts: tuple[int, ...], measured: Sequence[MeasuredTable], total: float
    ) -> None:
        """Fit the tables: see fit_tables."""
        self.class_counts, self.total = class_counts, total
        self._measured = [table for table in measured if table.attributes]
        self._sets = StackedSets(class_counts, [(), *(table.attributes for table in measured)])
        components, noise = merged_components(self._sets, self._measured)
        components[()] = np.full(1, total)
        given = shrunk_components(
            self._sets,
            lambda subset: components[self._sets.sizes_of(subset)][self._sets.places[subset]],
            noise,
        )
        self._tables = NonnegativeTables(given)
        self._tables.improve()

    @cached_property
    def rows(self) -> RelaxedRows:
        """Relaxed rows that meet the shrunk tables of the measured sets, to draw records from."""
        tables = []
        for each in self._measured:
            values = self.table(each.attributes)
            std = ROWS_NOISE * self.total / values.size
            tables.append(MeasuredTable(each.attributes, values, std**2))
        return FittedRows(self.class_counts, tables, self.total).rows

    def table(self, attributes: Subset) -> Floats:
        """Return the table over some attributes: counts, none negative, that sum to the total."""
        table = self._known(attributes)
        if table is None:
            table = self._most_even(attributes)
        return np.asarray(table * (self.total / table.sum()))

    def answer(self, block: Block) -> Floats:
        """Return the answers of any block, in counts: block.row_shape.

        Memory: the table over the attributes of the block.
        """
        return block.apply(self.table(varying(block)).reshape(block.table_shape))

    def _known(self, attributes: Subset) -> Floats | None:
        """Return the table over a measured set or a subset of one; None over others."""
        if attributes not in self._sets.places:
            return None
        table = self._tables.table(attributes)
        return table if table.sum() > 0 else np.full(table.shape, self.total / table.size)

    def _most_even(self, attributes: Subset) -> Floats:
        """Return the table of largest entropy with the widest known margins, nearly."""
        sizes = [self.class_counts[i] for i in attributes]
        table = np.full(sizes, self.total / math.prod(sizes))
        margins: list[Subset] = []
        for order in range(len(attributes) - 1, 0, -1):
            for subset in combinations(attributes, order):
                inside = any(set(subset) <= set(wide) for wide in margins)
                if subset in self._sets.places and not inside:
                    margins.append(subset)
        wanted = []
        for subset in margins:
            known = self.table(subset)
            axes = tuple(k for k, i in enumerate(attributes) if i not in subset)
            wanted.append((axes, np.expand_dims(known, axes)))
        overlap = sum(map(len, margins)) > len(set().union(*margins)) if margins else False
        for _ in range(FITTING_ROUNDS if overlap else 1):
            for axes, known in wanted:
                sums = table.sum(axis=axes, keepdims=True)
                table = table * np.divide(known, sums, out=np.zeros_like(sums), where=sums > 0)
        return table if table.sum() > 0 else np.full(sizes, 1.0)


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
