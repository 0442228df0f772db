"""OPT_x: the best Kronecker product of one-attribute strategies ([HDMM18] Problem 3).

The loss of kron_i A_i on a union of products is sum_j w_j prod_i tr(X_i^-1 V_ij). With all factors
but one fixed it is the OPT_0 loss of a surrogate Gram, so block descent calls OPT_0 in turn, warm
started, and keeps the best sweep.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpquery.operators.factors import Factor, Identity, total
from dpquery.operators.gram import Gram, Matrix, classes, is_mixture, weighted_sum
from dpquery.operators.inverses import inverse_trace
from dpquery.progress import time_left
from dpquery.public_chance import PublicGenerator
from dpquery.strategy.optimize.descents import FactorSelection
from dpquery.strategy.optimize.opt_0 import opt_0
from dpquery.strategy.strategy import Noise

PRODUCT_SWEEPS = 12
PRODUCT_TOLERANCE = 1e-4  # relative gain of a sweep below which descent has converged


@dataclass(frozen=True, eq=False)
class ProductSelection:
    """A product strategy with real factors of sensitivity 1.

    Attributes:
        factors: one for each attribute; the total for those that no query looks at.
        loss: sum_j w_j prod_i tr(X_i^-1 V_ij).
        bound: a proven lower bound on the loss of any strategy, under Gaussian noise for a single
            product, or products that differ on one attribute alone, which are one ([MATH] 1: duals
            multiply over Kronecker factors); else 0.
        converged: whether the last sweep gained less than PRODUCT_TOLERANCE.
    """

    factors: tuple[Factor, ...]
    loss: float
    bound: float
    converged: bool


def opt_product(
    gram: Gram,
    *,
    noise: Noise,
    rng: PublicGenerator,
    divisor: int = 16,
    start: Sequence[FactorSelection | None] = (),
) -> ProductSelection:
    """Select a Kronecker product strategy by block descent.

    Args:
        gram: Gram of the workload.
        noise: which sensitivity the factors are normalised to.
        rng: for the starting points.
        divisor: an attribute of n classes gets n // divisor p-Identity rows below the diagonal;
            one row is used wherever its surrogate Gram is a mixture of identity and total.
        start: a factor for each attribute to start from; None, and none at all, is the identity.
    """
    descent = _Descent(gram, noise, rng, divisor, start)
    best = descent.selection()
    for sweep in range(1, PRODUCT_SWEEPS + 1):
        descent.sweep()
        current = descent.selection()
        gain = 1 - current.loss / best.loss
        done = gain < PRODUCT_TOLERANCE or len(descent.active) == 1
        if current.loss < best.loss:
            best = current
        if not time_left(f"OPT_x sweep {sweep}: loss {current.loss:.6g}"):
            return best
        if done:
            return replace(best, converged=True)
    return best


class _Descent:
    """State of the block descent: one selection and its traces for each active attribute."""

    def __init__(
        self,
        gram: Gram,
        noise: Noise,
        rng: PublicGenerator,
        divisor: int,
        start: Sequence[FactorSelection | None],
    ) -> None:
        self.gram, self.noise, self.rng, self.divisor = gram, noise, rng, divisor
        self.active = [
            i for i, n in enumerate(gram.shape_of_domain) if n > 1 and gram.index[:, i].any()
        ]
        self.selected: list[FactorSelection | None] = [None] * len(gram.matrices)
        self.traces = gram.traces()
        for i, n in enumerate(gram.shape_of_domain):
            if n > 1 and i not in self.active:
                # The total answers itself, tr((11')^+ 11') = 1, and nothing else is asked.
                self.traces[i] = np.ones(len(gram.matrices[i]))
        for i, chosen in enumerate(start):
            if chosen is not None and i in self.active:
                self._keep(i, replace(chosen, bound=0.0))  # its bound is for another Gram

    def sweep(self) -> None:
        for i in self.active:
            V = self.surrogate(i)
            previous = self.selected[i]
            selected = opt_0(
                V,
                noise=self.noise,
                rng=self.rng,
                p=1 if is_mixture(V) else max(1, classes(V) // self.divisor),
                start=None if previous is None else previous.state,
            )
            if previous is None or selected.loss <= inverse_trace(previous.inverse, V):
                self._keep(i, selected)

    def _keep(self, i: int, selected: FactorSelection) -> None:
        self.selected[i] = selected
        inverse = selected.inverse
        self.traces[i] = np.array([inverse_trace(inverse, M) for M in self.gram.matrices[i]])

    def surrogate(self, i: int) -> Matrix:
        """Return sum_j w_j prod_{i' != i} tr(X_i'^-1 V_i'j) V_ij, symmetrised."""
        factors = self.gram.term_traces(self.traces)
        factors[:, i] = 1.0
        weights = self.gram.weights * factors.prod(axis=1)
        index = self.gram.index[:, i]
        matrix_weights = np.bincount(index, weights, minlength=len(self.gram.matrices[i]))
        return weighted_sum(matrix_weights, self.gram.matrices[i])

    def selection(self) -> ProductSelection:
        loss = float(self.gram.weights @ self.gram.term_traces(self.traces).prod(axis=1))
        pairs = zip(self.gram.shape_of_domain, self.selected, strict=True)
        factors = tuple(
            (Identity(n) if i in self.active else total(n)) if selected is None else selected.factor
            for i, (n, selected) in enumerate(pairs)
        )
        return ProductSelection(factors, loss, self._bound(loss), converged=False)

    def _bound(self, loss: float) -> float:
        """Multiply the duals of the factors where all terms but for one attribute are alike."""
        index = self.gram.index
        if np.count_nonzero(np.any(index != index[0], axis=0)) > 1 or min(self.gram.weights) < 0:
            return 0.0
        chosen = [self.selected[i] for i in self.active]
        return loss * math.prod(
            0.0 if selected is None else selected.bound / selected.loss for selected in chosen
        )
