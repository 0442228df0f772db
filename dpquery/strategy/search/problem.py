"""The input of every candidate and its result."""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_TABLE_CELLS
from dpquery.operators.blocks import Workload
from dpquery.operators.gram import Gram
from dpquery.public_chance import public_generator
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.optimize.opt_marginals import MarginalsSelection, opt_marginals
from dpquery.strategy.optimize.opt_product import ProductSelection, opt_product
from dpquery.strategy.record_changes import RecordChange
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.shapes.strategies import Strategy


@dataclass(frozen=True, eq=False)
class Proposal:
    """A strategy, whether its optimiser converged, and a lower bound on any loss (or 0)."""

    strategy: Strategy
    converged: bool = True
    bound: float = 0.0


class NoGainError(UnsupportedWorkloadError):
    """A candidate has found that no strategy is better than the best one so far by much.

    Attributes:
        bound: the lower bound on any loss that says so.
    """

    def __init__(self, reason: str, *, bound: float) -> None:
        super().__init__(reason)
        self.bound = bound


@dataclass(frozen=True, eq=False)
class Problem:
    """The input of every candidate; selections that several start from are computed once.

    Attributes:
        workload: the queries.
        gram: its Gram.
        noise: the kind of noise that will be added.
        seed: of the starting points; every optimiser starts its own generator from it.
        least_score: the least score of a goal that a candidate has reached so far.
        least_loss: the least weighted loss that a candidate has reached so far.
        before: what was selected for other weights of the same questions, to start from.
        change: what one record does between neighbours.
        items: the places of the blocks of every item; none where each block is one.
    """

    workload: Workload
    gram: Gram
    noise: Noise
    seed: int
    least_score: float = math.inf
    least_loss: float = math.inf
    before: Strategy | None = None
    change: RecordChange = "enters"
    items: tuple[Sequence[int], ...] = ()

    def knowing(self, least_loss: float) -> "Problem":
        """Return the same problem at another least loss, with the selections that are known."""
        problem = copy(self)
        object.__setattr__(problem, "least_loss", least_loss)
        return problem

    @cached_property
    def product(self) -> ProductSelection:
        """The best product strategy: the better of two numbers of p-Identity rows."""
        shape = self.workload.shape_of_domain
        rng, selections = public_generator(self.seed), []
        for divisor in (16, 8) if self.noise == "laplace" and max(shape) <= 128 else (16,):
            selections.append(opt_product(self.gram, noise=self.noise, rng=rng, divisor=divisor))
        return min(selections, key=lambda selection: selection.loss)

    @cached_property
    def marginals(self) -> MarginalsSelection:
        """The best weighted marginals."""
        return opt_marginals(
            self.gram,
            noise=self.noise,
            rng=public_generator(self.seed),
            start=self.before.weights if isinstance(self.before, MarginalsStrategy) else None,
            max_cells=MAX_TABLE_CELLS,
        )


def check_cells(shape: Sequence[int]) -> None:
    """Refuse a table that has more cells than can be tabulated and measured."""
    cells = math.prod(shape)
    if cells > MAX_TABLE_CELLS:
        raise UnsupportedWorkloadError(f"a table of {float(cells):.1e} cells to measure")
