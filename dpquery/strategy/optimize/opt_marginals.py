"""OPT_M: the best weighted set of marginals ([HDMM18] Problem 4).

In the marginal algebra the loss of weights theta is
    ||theta||_K^2 sum_a tr(P_a V) / kappa_{theta^2}(a),
K = 1 for Laplace and 2 for Gaussian, kappa_u(a) = sum_{b >= a} u(b) prod_{i not in b} n_i: superset
sums for the loss and subset sums for its gradient ([MATH] 3). Both eigenvalues are kept over N.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.optimize import minimize

from dpquery.arrays import Bools, Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.gram import Gram
from dpquery.progress import time_left
from dpquery.public_chance import PublicGenerator
from dpquery.strategy.algebra.subsets import (
    FULL_LIMIT,
    Below,
    Lattice,
    Subset,
    workload_eigenvalues,
)
from dpquery.strategy.optimize.descents import Limits, descend
from dpquery.strategy.strategy import Noise

LARGEST_FULL = 20  # attributes up to which all subsets are kept where many are asked for
MAX_UNITED = 256  # largest sets asked for whose unions in pairs may be measured too
WIDEST = 8  # attributes of such a union
VERY_MANY = 1 << 16  # sets above which there are no random starts: each takes seconds
SEARCHED = 2048  # subsets asked for, up to which supports are searched
THINNING = 40  # steps from a start before what has vanished is left out
HOPS = 600  # of the local search
AGAIN = 4  # part of those hops from what was found for other weights


@dataclass(frozen=True, eq=False)
class MarginalsSelection:
    """Real weights of marginals, normalised to sensitivity 1."""

    weights: dict[Subset, float]  # subset -> theta > 0
    loss: float  # on the Gram it was selected for
    converged: bool  # whether L-BFGS-B met its tolerance on the best start


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

    def loss(self, theta: Floats) -> tuple[float, Floats]:
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

    def step(self, theta: Floats) -> Floats:
        """Return weights of lower or equal Laplace loss, with sum one ([MATH] 3)."""
        needed = self.target > 0
        ratio, spread = np.zeros_like(theta), np.zeros_like(theta)
        kappa = self.lattice.superset_sums(theta**2 / self.cells)[needed]
        ratio[needed] = self.target[needed] / kappa
        spread[needed] = ratio[needed] / kappa
        slope = theta / self.cells * self.lattice.subset_sums(spread) / float(ratio.sum())
        moved = theta * np.cbrt(slope)
        return np.asarray(moved / moved.sum())

    @property
    def searched(self) -> bool:
        """Whether there are few enough subsets for a local search."""
        return int(np.count_nonzero(self.target)) <= SEARCHED

    def spread(self, weights: Mapping[Subset, float]) -> Floats:
        """Return weights by subset of the domain's attributes over the family."""
        place = {i: k for k, i in enumerate(self.attributes)}
        compact = {tuple(place[i] for i in a): float(v) for a, v in weights.items()}
        theta = self.lattice.spread(compact)
        return np.asarray(theta / theta.sum())

    def named(self, weights: Iterable[tuple[int, float]]) -> dict[Subset, float]:
        """Return weights by place as weights by subset of the domain's attributes."""
        return {
            tuple(self.attributes[i] for i in self.lattice.subset(k)): value for k, value in weights
        }


def opt_marginals(
    gram: Gram,
    *,
    noise: Noise,
    rng: PublicGenerator,
    restarts: int | None = None,
    hops: int = HOPS,
    max_cells: float = 1e8,
    start: Mapping[Subset, float] | None = None,
) -> MarginalsSelection:
    """Select weights for marginals of at most `max_cells` cells.

    Starts from equal weights on the sets the workload asks for and from random weights. For
    Gaussian noise the problem is convex in theta^2 and one start does. Under Laplace noise it has
    many local minima: the best of `restarts` (default: 32 on small families, 8 on larger ones, and
    the 2 from equal weights on those of more than VERY_MANY sets) is improved by `hops` of a local
    search, where the family is small enough for one; from weights that are near already, `start`,
    a part of them does.
    """
    problem = MarginalsProblem(gram, noise=noise, max_cells=max_cells)
    if start is not None and noise == "laplace" and problem.searched:
        return _search(problem, [problem.spread(start)], hops // AGAIN, rng)
    if restarts is None:
        size = len(problem.lattice)
        restarts = 32 if size <= 1024 else 8 if size <= VERY_MANY else 2
    count = restarts if noise == "laplace" else 1
    needed = (problem.target > 0) & problem.allowed
    starts = [np.where(needed, 1.0, np.where(problem.allowed, share, 0.0)) for share in (0.01, 0.0)]
    for power in (0.2, 0.5) * (count // 2):
        random = np.exp(rng.normal(size=len(needed))) if power == 0.5 else rng.random(len(needed))
        starts.append(np.where(problem.allowed, random / problem.cells**power, 0.0))
    starts = starts[:count]
    if noise == "laplace" and problem.searched:
        return _search(problem, starts, hops, rng)
    selections = []
    for number, theta in enumerate(starts):
        selections.append(_descend(problem, theta))
        if not time_left(f"OPT_M start {number + 1}: loss {selections[-1].loss:.6g}"):
            break
    return min(selections, key=lambda selection: selection.loss)


def _search(
    problem: MarginalsProblem, starts: list[Floats], hops: int, rng: PublicGenerator
) -> MarginalsSelection:
    search = MarginalSearch(problem.lattice, problem.cells, problem.target, problem.allowed)
    supports = []
    for number, start in enumerate(starts):
        theta = start
        for _ in range(THINNING):
            theta = problem.step(theta)
        supports.append(search.finish(*search.thinned(np.arange(len(theta)), theta)))
        if not time_left(f"OPT_M start {number + 1}: loss {supports[-1].loss:.6g}"):
            break
    best = search.improve(min(supports, key=lambda support: support.loss), hops, rng)
    return MarginalsSelection(
        problem.named(zip(best.subsets.tolist(), best.theta.tolist(), strict=True)), best.loss, True
    )


def _descend(problem: MarginalsProblem, start: Floats) -> MarginalsSelection:
    def fun(theta: Floats) -> tuple[float, Floats]:
        loss, gradient = problem.loss(theta)
        return (math.log(loss), gradient / loss) if loss < math.inf else (700.0, gradient)

    upper: Limits = [(0.0, None if allowed else 0.0) for allowed in problem.allowed]
    result = descend(
        fun,
        start,
        words=lambda value: f"OPT_M: loss {math.exp(value):.6g}",
        limits=upper,
        max_iterations=2000,
        max_evaluations=4000,
        ftol=1e-12,
        gtol=1e-10,
    )
    theta = result.x / (result.x.sum() if problem.noise == "laplace" else math.hypot(*result.x))
    weights = problem.named((k, float(theta[k])) for k in np.flatnonzero(theta).tolist())
    return MarginalsSelection(weights, math.exp(result.fun), bool(result.success))


def _lattice(attributes: Subset, eigenvalues: dict[Subset, float]) -> Lattice:
    """Return all subsets where they are few; else those below the workload's tables, and unions.

    Under Laplace noise a table over the attributes of two can pay for both.
    """
    d = len(attributes)
    if d <= FULL_LIMIT:
        return Lattice(d)
    if d <= LARGEST_FULL and len(eigenvalues) > 1 << d - 2:
        return Lattice(d)
    place = {i: k for k, i in enumerate(attributes)}
    tables = [tuple(place[i] for i in a) for a in eigenvalues]
    smaller = {a[:k] + a[k + 1 :] for a in tables for k in range(len(a))}
    tops = [a for a in tables if a not in smaller]
    family = dict.fromkeys(Below(tops).subsets)
    if len(tops) <= MAX_UNITED:
        unions = (tuple(sorted({*a, *b})) for a, b in combinations(tops, 2))
        family |= dict.fromkeys(union for union in unions if len(union) <= WIDEST)
    return Lattice(d, sorted(family, key=lambda a: (len(a), a)))


LOG_WEIGHT_STEP = 0.5  # of the logarithm of a weight; Jensen's bound gives 1/3
PRUNING_ROUNDS = (4, 6, 6)  # descent steps before each pruning of a hop
VANISHED = 1e-6  # of the largest weight
PROMISING = 1.003  # times the best loss: worth a descent to the end
DROPPED = 3  # marginals that a hop drops at most
ADDED = 0.02  # of the median weight: where a hop starts the new ones


@dataclass(frozen=True, eq=False)
class Support:
    """Weights of some subsets of a family, with sum one, and their loss."""

    subsets: Ints
    theta: Floats
    loss: float


class MarginalSearch:
    """The loss of Laplace weights, on the subsets that a workload needs and any columns."""

    def __init__(self, lattice: Lattice, cells: Floats, target: Floats, allowed: Bools) -> None:
        self.lattice, self.cells, self.allowed = lattice, cells, allowed
        self.needed = np.flatnonzero(target > 0)
        self.target = target[self.needed]
        self.measurable = self.needed[allowed[self.needed]]

    def thinned(self, subsets: Ints, theta: Floats) -> tuple[Ints, Floats]:
        """Return the weights that have not vanished, or all that are positive if one is needed."""
        remaining = theta > VANISHED * theta.max()
        if not self.lattice.inclusions(self.needed, subsets[remaining]).any(axis=1).all():
            remaining = theta > 0
        return subsets[remaining], theta[remaining]

    def descend(self, subsets: Ints, theta: Floats, *, below: float) -> Support | None:
        """Return the support reached from some weights; None if its loss is not near `below`."""
        for rounds in PRUNING_ROUNDS:
            inside = self.lattice.inclusions(self.needed, subsets)
            if not inside.any(axis=1).all():
                return None
            theta, loss = self._steps(inside, 1 / self.cells[subsets], theta, rounds)
            remaining = theta > VANISHED * theta.max()
            subsets, theta = subsets[remaining], theta[remaining]
        return self.finish(subsets, theta) if loss < PROMISING * below else None

    def _steps(
        self, inside: Floats, rate: Floats, theta: Floats, rounds: int
    ) -> tuple[Floats, float]:
        loss = math.inf
        for _ in range(rounds):
            theta = theta / theta.sum()
            kappa = inside @ (theta**2 * rate)
            ratio = self.target / kappa
            loss = float(ratio.sum())
            theta = theta * (theta * rate * ((ratio / kappa) @ inside) / loss) ** LOG_WEIGHT_STEP
        return theta / theta.sum(), loss

    def finish(self, subsets: Ints, theta: Floats) -> Support:
        """Minimise over the weights of a support to the end."""
        inside = self.lattice.inclusions(self.needed, subsets)
        rate = 1 / self.cells[subsets]

        def fun(theta: Floats) -> tuple[float, Floats]:
            kappa = inside @ (theta**2 * rate)
            if not kappa.all():
                return 700.0, np.zeros_like(theta)
            ratio, norm = self.target / kappa, float(theta.sum())
            error = float(ratio.sum())
            slope = 2 / norm - 2 * theta * rate * ((ratio / kappa) @ inside) / error
            return 2 * math.log(norm) + math.log(error), slope

        bounds: list[tuple[float, float | None]] = [(0.0, None)] * len(theta)
        result = minimize(
            fun,
            theta,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 500, "ftol": 1e-11, "gtol": 1e-9},
        )
        positive = result.x > 0
        theta = result.x[positive] / result.x[positive].sum()
        return Support(subsets[positive], theta, math.exp(result.fun))

    def hop(self, best: Support, rng: PublicGenerator) -> Support | None:
        """Return a support with a few marginals exchanged; None where its loss is not lower."""
        count = len(best.subsets)
        remaining = np.ones(count, dtype=bool)
        remaining[rng.integers(count, size=rng.integers(1, DROPPED + 1))] = False
        toggled = self.lattice.toggled(
            rng.choice(best.subsets, count), rng.integers(self.lattice.d, size=count)
        )
        new = np.zeros(len(self.allowed), dtype=bool)
        new[toggled] = self.allowed[toggled]
        new[self.measurable], new[best.subsets] = True, False
        added = np.flatnonzero(new)
        start = ADDED * float(np.median(best.theta)) * (rng.random(len(added)) + 0.01)
        support = self.descend(
            np.concatenate([best.subsets[remaining], added]),
            np.concatenate([best.theta[remaining], start]),
            below=best.loss,
        )
        return support if support is not None and support.loss < best.loss * (1 - 1e-9) else None

    def improve(self, best: Support, hops: int, rng: PublicGenerator) -> Support:
        """Return the best of `hops` hops, each from the best so far."""
        for number in range(min(hops, len(self.lattice) ** 2) if self.lattice.d else 0):
            better = self.hop(best, rng)
            best = better or best
            words = f"OPT_M search {number + 1}: loss {best.loss:.6g}"
            if number % 50 == 49 and not time_left(words):
                break
        return best
