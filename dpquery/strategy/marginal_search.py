"""Which marginals to measure under Laplace noise: a local search over supports.

The loss of weights theta with sum one is E(theta) = sum_a t_a / kappa_a, kappa_a = sum_{b >= a}
theta_b^2 / cells(b) ([MATH] 3): not convex, and every support has a local minimum of its own. By
Jensen's inequality E(theta') <= sum_b c_b / theta'_b^2 with equality at theta,
    c_b = theta_b^4 / cells(b) sum_{a <= b} t_a / kappa_a^2,
which is least where theta'_b goes with c_b^(1/3). Steps that way, and longer ones, let what is not
needed die out faster than geometrically. A hop drops a few marginals, puts a little weight on
others near by, descends, and is kept where the loss is lower.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.optimize import minimize

from dpquery.operators.factors import Array
from dpquery.strategy.lattice import Lattice

STEP = 0.5  # of the logarithm of a weight; Jensen's bound gives 1/3
ROUNDS = (4, 6, 6)  # descent steps before each pruning of a hop
VANISHED = 1e-6  # of the largest weight
PROMISING = 1.003  # times the best loss: worth a descent to the end
DROPPED = 3  # marginals that a hop drops at most
ADDED = 0.02  # of the median weight: where a hop starts the new ones


@dataclass(frozen=True, eq=False)
class Support:
    """Weights of some subsets of a family, with sum one, and their loss."""

    subsets: Array
    theta: Array
    loss: float


class MarginalSearch:
    """The loss of Laplace weights, on the subsets that a workload needs and any columns."""

    def __init__(self, lattice: Lattice, cells: Array, target: Array, allowed: Array) -> None:
        self.lattice, self.cells, self.allowed = lattice, cells, allowed
        self.needed = np.flatnonzero(target > 0)
        self.target = target[self.needed]
        self.asked = self.needed[allowed[self.needed]]

    def thinned(self, subsets: Array, theta: Array) -> tuple[Array, Array]:
        """Leave out what has vanished, unless a subset that is needed would not be measured."""
        kept = theta > VANISHED * theta.max()
        if not self.lattice.inclusions(self.needed, subsets[kept]).any(axis=1).all():
            kept = theta > 0
        return subsets[kept], theta[kept]

    def descend(self, subsets: Array, theta: Array, *, below: float) -> Support | None:
        """Descend from positive weights; None where that does not come near a loss of `below`."""
        for rounds in ROUNDS:
            inside = self.lattice.inclusions(self.needed, subsets)
            if not inside.any(axis=1).all():
                return None
            theta, loss = self._steps(inside, 1 / self.cells[subsets], theta, rounds)
            kept = theta > VANISHED * theta.max()
            subsets, theta = subsets[kept], theta[kept]
        return self.finish(subsets, theta) if loss < PROMISING * below else None

    def _steps(self, inside: Array, rate: Array, theta: Array, rounds: int) -> tuple[Array, float]:
        loss = math.inf
        for _ in range(rounds):
            theta = theta / theta.sum()
            kappa = inside @ (theta**2 * rate)
            ratio = self.target / kappa
            loss = float(ratio.sum())
            theta = theta * (theta * rate * ((ratio / kappa) @ inside) / loss) ** STEP
        return theta / theta.sum(), loss

    def finish(self, subsets: Array, theta: Array) -> Support:
        """Minimise over the weights of a support to the end."""
        inside = self.lattice.inclusions(self.needed, subsets)
        rate = 1 / self.cells[subsets]

        def fun(theta: Array) -> tuple[float, Array]:
            kappa = inside @ (theta**2 * rate)
            if not kappa.all():
                return 700.0, np.zeros_like(theta)
            ratio, norm = self.target / kappa, float(theta.sum())
            error = float(ratio.sum())
            slope = 2 / norm - 2 * theta * rate * ((ratio / kappa) @ inside) / error
            return 2 * math.log(norm) + math.log(error), slope

        bounds: list[tuple[float, float | None]] = [(0.0, None)] * len(theta)
        found = minimize(
            fun,
            theta,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 500, "ftol": 1e-11, "gtol": 1e-9},
        )
        kept = found.x > 0
        theta = found.x[kept] / found.x[kept].sum()
        return Support(subsets[kept], theta, math.exp(found.fun))

    def hop(self, best: Support, rng: Generator) -> Support | None:
        """Try other marginals in the place of a few; None where that is no better."""
        count = len(best.subsets)
        kept = np.ones(count, dtype=bool)
        kept[rng.integers(count, size=rng.integers(1, DROPPED + 1))] = False
        toggled = self.lattice.toggled(
            rng.choice(best.subsets, count), rng.integers(self.lattice.d, size=count)
        )
        added = np.union1d(toggled[self.allowed[toggled]], self.asked)
        added = np.setdiff1d(added, best.subsets, assume_unique=True)
        start = ADDED * float(np.median(best.theta)) * (rng.random(len(added)) + 0.01)
        found = self.descend(
            np.concatenate([best.subsets[kept], added]),
            np.concatenate([best.theta[kept], start]),
            below=best.loss,
        )
        return found if found is not None and found.loss < best.loss * (1 - 1e-9) else None

    def improve(
        self, best: Support, hops: int, rng: Generator, progress: Callable[[str], None]
    ) -> Support:
        """Take the best of so many hops, each from the best so far."""
        for number in range(hops if self.lattice.d else 0):
            better = self.hop(best, rng)
            best = better or best
            if number % 50 == 49:
                progress(f"OPT_M search {number + 1}: loss {best.loss:.6g}")
        return best
