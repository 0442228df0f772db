"""What another objective would buy: a compared strategy that it prefers, and the price of it."""

from dataclasses import dataclass

from dpquery.plan_file.plan import PlannedSelection
from dpquery.strategy.objectives import Objective

MUCH_LESS, LITTLE_MORE = 0.7, 0.5
"""Another objective is pointed to for 30 % less of its figure, at 50 % more of this one at most."""


@dataclass(frozen=True)
class Trade:
    """A compared strategy that another objective prefers, at unit noise.

    Attributes:
        name: of the strategy.
        figure: what the other objective minimises.
        in_place_of: the same of the chosen strategy.
        costs: how much larger what the plan minimised is, as a share.
    """

    name: str
    figure: float
    in_place_of: float
    costs: float


def trade_of(selection: PlannedSelection, objective: Objective) -> Trade | None:
    """Return the candidate that the other objective prefers, if it gains more than it costs.

    It was compared for this plan, so that its figures are known; the other objective may find
    better ones.
    """
    chosen = selection.figures
    if not (chosen.score and chosen.rmse and chosen.max_std_error):
        return None
    trades = []
    for other in selection.candidates:
        if not (other.score and other.rmse and other.max_std_error):
            continue
        pair = (other.max_std_error, chosen.max_std_error)
        if objective == "max":
            pair = (other.rmse, chosen.rmse)
        trades.append(Trade(other.name, *pair, other.score / chosen.score - 1))
    best = min(trades, key=lambda trade: trade.figure)
    worth_it = best.figure <= MUCH_LESS * best.in_place_of and best.costs <= LITTLE_MORE
    return best if worth_it else None
