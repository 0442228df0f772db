"""The strategy that an optimiser selected for one attribute."""

from dataclasses import dataclass

from dpquery.arrays import Floats
from dpquery.operators.factors import Factor
from dpquery.operators.inverses import Inverse


@dataclass(frozen=True, eq=False)
class FactorSelection:
    """A strategy for one attribute, and its loss.

    Attributes:
        factor: the (m, n) strategy, full column rank, sensitivity 1.
        inverse: inverse of its Gram.
        loss: its loss on the Gram it was selected for.
        bound: a proven lower bound on the loss of any strategy, or 0 where none is known.
        state: what a warm start continues from; None to start afresh.
        converged: whether the optimiser met its tolerance.
    """

    factor: Factor
    inverse: Inverse
    loss: float
    bound: float
    state: Floats | None
    converged: bool
