"""The item of a plan that errs most, and how little it would err if nothing else were asked."""

import math
from dataclasses import dataclass
from fractions import Fraction

from dpquery.operators.compile import CompiledSpec
from dpquery.planning.figures import SelectionAtBudget, selection_std
from dpquery.spec.model import Spec
from dpquery.strategy.search.select import select


@dataclass(frozen=True)
class WorstItem:
    """What there is to know of the item with the largest RMSE, of sums over their unit.

    Attributes:
        name: of the item.
        rmse: its expected root mean square error, in counts or in the unit of its sums.
        alone: that of a quick strategy for this item alone, or `rmse` where that is less.
        doubled: what all errors of the plan are multiplied by at twice the epsilon.
        average: the mean of its answers where the declared records are spread evenly over all
            values; None where their number is not declared, and of sums and thresholds.
    """

    name: str
    rmse: float
    alone: float
    doubled: float
    average: float | None


def worst_item(
    priced: SelectionAtBudget, spec: Spec, compiled: CompiledSpec, *, delta: Fraction
) -> WorstItem:
    """Return the item that errs most under a selection; the first of several."""
    selection = priced.selection
    units = [1 if item.summed is None else item.summed.largest for item in spec.items]
    items = priced.items
    place = max(range(len(items)), key=lambda k: items[k].rmse / units[k])
    item = items[place]
    alone = item.rmse
    if len(spec.items) > 1:
        asked = compiled.workload.select(compiled.items[place])
        noise, change = selection.noise, selection.change
        only = select(asked, noises=[noise], time_limit=0, change=change, proving=False)
        quick = only[noise].best.error
        alone = alone if quick is None else min(alone, priced.std * units[place] * quick.rmse)
    std = selection_std(selection, spec, epsilon=2 * priced.epsilon, delta=delta)
    average = _average(spec, compiled, place)
    return WorstItem(item.name, item.rmse, alone, std / priced.std, average)


def _average(spec: Spec, compiled: CompiledSpec, place: int) -> float | None:
    """Return the mean answer of an item; marginals have it whatever the records are."""
    blocks = [compiled.workload.blocks[position] for position in compiled.items[place]]
    rows, summed = spec.dataset.rows, spec.items[place].summed
    if rows is None or summed is not None or not all(block.is_product for block in blocks):
        return None
    shares = (
        math.prod(float(f.row_sums.sum()) / f.shape[1] for f in block.factors) for block in blocks
    )
    return rows.count * math.fsum(shares) / sum(block.queries for block in blocks)
