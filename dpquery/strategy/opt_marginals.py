"""OPT_M: the best weighted set of marginals ([HDMM18] Problem 4).

In the marginal algebra the loss of weights theta is
    ||theta||_K^2 sum_a tr(P_a V) / kappa_{theta^2}(a),
K = 1 for Laplace and 2 for Gaussian, kappa_u(a) = sum_{b >= a} u(b) prod_{i not in b} n_i: superset
sums for the loss and subset sums for its gradient ([MATH] 3). Both eigenvalues are kept over N.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.optimize import minimize

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.factors import Array
from dpquery.operators.gram import Gram
from dpquery.strategy.lattice import FULL_LIMIT, Below, Lattice, Subset
from dpquery.strategy.marginal_algebra import workload_eigenvalues
from dpquery.strategy.noise_kinds import Noise


@dataclass(frozen=True, eq=False)
class MarginalsSelection:
    """Real weights of marginals, normalised to sensitivity 1.

    Attributes:
        weights: subset -> theta > 0.
        loss: on the Gram it was selected for.
        converged: whether L-BFGS-B met its tolerance on the best start.
    """

    weights: dict[Subset, float]
    loss: float
    converged: bool


class MarginalsProblem:
    """The loss of marginal weights on one Gram, over one family of subsets."""

    def __init__(self, gram: Gram, *, noise: Noise, max_cells: float) -> None:
        shape = gram.shape_of_domain
        eigenvalues = workload_eigenvalues(gram)
        self.noise: Noise = noise
        self.attributes = tuple(i for i, n in enumerate(shape) if n > 1)
        self.lattice = _lattice(self.attributes, eigenvalues)
        sizes = [shape[i] for i in self.attributes]
        place = {i: k for k, i in enumerate(self.attributes)}
        compact = {tuple(place[i] for i in a): v for a, v in eigenvalues.items()}
        self.target = self.lattice.spread(compact)
        ones = [1.0] * len(sizes)
        self.cells = self.lattice.products([float(n) for n in sizes], ones)
        self.allowed = self.cells <= max_cells
        covered = self.lattice.superset_sums(self.allowed.astype(float)) > 0
        if not covered[self.target > 0].all():
            raise UnsupportedWorkloadError(f"a marginal has more than {max_cells:.0e} cells")

    def loss(self, theta: Array) -> tuple[float, Array]:
        """Return the loss, infinite where unsupported, and its gradient. theta >= 0: (subsets,)."""
        kappa = self.lattice.superset_sums(theta**2 / self.cells)
        needed = self.target > 0
        if np.any(kappa[needed] <= 0):
            return math.inf, np.zeros_like(theta)
        ratio = np.zeros_like(kappa)
        ratio[needed] = self.target[needed] / kappa[needed]
        spread = np.zeros_like(kappa)
        spread[needed] = ratio[needed] / kappa[needed]
        error = float(ratio.sum())
        slope = -2 * theta / self.cells * self.lattice.subset_sums(spread)
        if self.noise == "laplace":
            norm = float(theta.sum())
            return norm**2 * error, 2 * norm * error + norm**2 * slope
        squared = float(theta @ theta)
        return squared * error, 2 * theta * error + squared * slope


def opt_marginals(
    gram: Gram,
    *,
    noise: Noise,
    rng: Generator,
    restarts: int | None = None,
    max_cells: float = 1e8,
    progress: Callable[[str], None] = lambda _: None,
) -> MarginalsSelection:
    """Select weights for marginals of at most `max_cells` cells.

    Starts from equal weights on the sets the workload asks for and from random weights; the
    problem is convex in theta^2 for Gaussian noise, where one start does. Under Laplace noise it
    has many local minima and `restarts` (default: 32 on small families, 6 on large) matter.
    """
    problem = MarginalsProblem(gram, noise=noise, max_cells=max_cells)
    if restarts is None:
        restarts = 32 if len(problem.lattice) <= 1024 else 6
    best: MarginalsSelection | None = None
    for number, start in enumerate(_starts(problem, rng, restarts if noise == "laplace" else 1)):
        found = _descend(problem, start)
        progress(f"OPT_M start {number + 1}: loss {found.loss:.6g}")
        if best is None or found.loss < best.loss:
            best = found
    if best is None:
        raise ValueError("at least one start is needed")
    return best


def _descend(problem: MarginalsProblem, start: Array) -> MarginalsSelection:
    """Minimise log loss: the same minima, whatever the scale of the workload."""

    def fun(theta: Array) -> tuple[float, Array]:
        loss, gradient = problem.loss(theta)
        return (math.log(loss), gradient / loss) if loss < math.inf else (700.0, gradient)

    upper = [(0.0, None if allowed else 0.0) for allowed in problem.allowed]
    result = minimize(
        fun,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=upper,
        options={"maxiter": 2000, "maxfun": 4000, "ftol": 1e-12, "gtol": 1e-10},
    )
    theta = result.x / (result.x.sum() if problem.noise == "laplace" else math.hypot(*result.x))
    weights = {
        tuple(problem.attributes[i] for i in problem.lattice.subset(int(k))): float(theta[k])
        for k in np.flatnonzero(theta)
    }
    return MarginalsSelection(weights, math.exp(result.fun), bool(result.success))


def _starts(problem: MarginalsProblem, rng: Generator, count: int) -> list[Array]:
    asked = (problem.target > 0) & problem.allowed
    starts = [np.where(asked, 1.0, np.where(problem.allowed, share, 0.0)) for share in (0.01, 0.0)]
    starts += [np.where(problem.allowed, rng.random(len(asked)), 0.0) for _ in range(count - 2)]
    return starts[:count]


def _lattice(attributes: Subset, eigenvalues: dict[Subset, float]) -> Lattice:
    if len(attributes) <= FULL_LIMIT:
        return Lattice(len(attributes))
    place = {i: k for k, i in enumerate(attributes)}
    asked = [tuple(place[i] for i in a) for a in eigenvalues]
    return Lattice(len(attributes), Below(asked).subsets)
