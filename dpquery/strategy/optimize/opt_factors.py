"""OPT_F: overlapping marginals of factor strategies, for Laplace noise ([MATH] 7).

For every subset a the factors kron_{i in a} A_i are measured on the marginal over a, theta_a times.
With G_i = A_i'A_i and mu_i = 1'G_i^-1 1 all such Grams are diagonal together: the loss is
    ||theta||_1^2 sum_b S_b / kappa_b,  kappa_b = sum_{a >= b} theta_a^2 / prod_{i in a} mu_i,
    S_b = sum_j w_j prod_{i in b} rest / mu prod_{i not in b} level
where level = g'Vg / mu^2, rest = tr(G^-1 V) - g'Vg / mu and g = G^-1 1 of a matrix V of the
workload. A_i = I for all i is OPT_M; theta on one set alone is OPT_x. Both are starts, beside
random ones: the problem is far from convex. Under Gaussian noise OPT_R contains all this.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy.sparse as sp
from scipy.linalg.lapack import dpotrf, dpotrs

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.factors import Dense, Ones
from dpquery.operators.gram import Gram, array_of, is_of_values, total_sum, trace
from dpquery.operators.p_identity import PIdentity
from dpquery.operators.trees import Tree
from dpquery.progress import time_left
from dpquery.public_chance import PublicGenerator
from dpquery.strategy.algebra.subsets import (
    FULL_LIMIT,
    Below,
    BlockSums,
    Lattice,
    Subset,
    member_products,
    workload_eigenvalues,
)
from dpquery.strategy.optimize.descents import Limits, Moments, Race, descend
from dpquery.strategy.optimize.opt_0 import ProductSelection
from dpquery.strategy.optimize.opt_0_laplace import THETA_LIMIT, p_identity
from dpquery.strategy.optimize.opt_marginals import MarginalsSelection

MAX_FACTOR = 512  # classes of an attribute whose factor is optimised; A = I beyond
EFFORT = ((20_000, 12, 2), (200_000, 3, 2), (math.inf, 1, 1))
"""Up to how many subsets and entries of Grams: random restarts, and starts that are finished."""
DIVISORS = (16, 8)  # an attribute of n classes gets n // 16 or n // 8 p-Identity rows
LISTED = 10  # attributes of the widest set up to which the subsets are listed
SCOUTING, LONGER_DESCENT, POLISHING = 60, 200, 1500  # iterations
WORST = 700.0  # log loss of weights that do not support the workload
Roots = dict[int, Floats]
"""Theta of a p-Identity, (p, n), for the attributes with a factor."""


@dataclass(frozen=True, eq=False)
class FactorsSelection:
    """Marginals of real factors whose columns have norm one, normalised to sensitivity 1."""

    weights: dict[Subset, float]  # subset -> theta > 0
    factors: dict[int, PIdentity]  # of the attributes that are not measured cell by cell
    loss: float  # on the Gram they were selected for
    converged: bool  # whether L-BFGS-B met its tolerance on the best start


@dataclass(frozen=True, eq=False)
class FactorsPoint:
    """Weights and roots, the log loss they reach, and from what kind of start."""

    kind: str
    theta: Floats
    roots: Roots
    value: float = math.inf
    converged: bool = False


class PIdentityRoot:
    """A = [I; Theta] D with D = diag(1 + 1'Theta)^-1: columns of L1 norm one. Theta: (p, n).

    With s the inverse of D's diagonal and R = (I + Theta Theta')^-1 Theta,
    M = diag(s) (I - Theta'R) diag(s).
    """

    def __init__(self, Theta: Floats) -> None:
        self.Theta, self.s = Theta, 1 + Theta.sum(axis=0)
        core, _ = dpotrf(np.eye(len(Theta)) + Theta @ Theta.T)
        self.R, _ = dpotrs(core, Theta)
        inverse = np.eye(Theta.shape[1]) - Theta.T @ self.R
        inverse *= self.s[:, None]
        inverse *= self.s
        self.inverse = inverse

    def gradient(self, by_inverse: Floats) -> Floats:
        """Return the gradient with respect to Theta, given the symmetric one by M."""
        P = by_inverse * self.s[:, None]
        P *= self.s
        RP = self.R @ P
        diagonal = np.diagonal(P) - (self.Theta * RP).sum(axis=0)
        return np.asarray(2 * diagonal / self.s - 2 * (RP - (RP @ self.Theta.T) @ self.R))


class FactorsProblem:
    """log of the loss as a function of the weights of all subsets and the roots of some factors."""

    def __init__(self, gram: Gram, *, max_cells: float, sets: Iterable[Subset] = ()) -> None:
        """Keep the subsets below a table of the workload and those below the given sets."""
        self.gram, self.blocks = gram, BlockSums(gram)
        self.attributes = tuple(i for i, n in enumerate(gram.shape_of_domain) if n > 1)
        self.lattice = _lattice(self.attributes, [*self.blocks.subsets, *sets])
        self.place = {
            tuple(self.attributes[k] for k in subset): row
            for row, subset in enumerate(self.lattice.subsets)
        }
        self.rows = np.array([self.place[b] for b in self.blocks.subsets])
        # the 0/1 matrix of which attribute is in which subset
        subsets = self.lattice.subsets
        rows = np.repeat(np.arange(len(subsets)), [len(a) for a in subsets])
        columns = np.array([i for a in subsets for i in a], dtype=np.int64)
        self.member = sp.csr_array(
            (np.ones(len(rows)), (rows, columns)), shape=(len(subsets), len(self.attributes))
        )
        self.holding = self.member.T
        self.sizes = np.array([float(gram.shape_of_domain[i]) for i in self.attributes])
        self.allowed = member_products(self.lattice.subsets, self.sizes) <= max_cells
        self.needed = np.zeros(len(self.lattice), dtype=bool)
        self.needed[[self.place[b] for b in workload_eigenvalues(gram)]] = True
        if not (self.lattice.superset_sums(self.allowed.astype(float)) > 0)[self.needed].all():
            raise UnsupportedWorkloadError(f"a marginal has more than {max_cells:.0e} cells")
        self.base = np.ones(self.blocks.size)
        for i, (n, matrices) in enumerate(zip(gram.shape_of_domain, gram.matrices, strict=True)):
            levels = np.array([total_sum(V) / n**2 for V in matrices])
            traces = np.array([trace(V) / n for V in matrices])
            rests = np.where(traces - levels > 1e-12 * traces, traces - levels, 0.0)
            outside, inside = self.blocks.places(i)
            self.base[outside], self.base[inside] = levels, rests
        self.grams = cache(self._grams)

    def _grams(self, i: int) -> Floats:
        stacked = np.stack([array_of(V) for V in self.gram.matrices[i]])
        return np.asarray((stacked + stacked.transpose(0, 2, 1)) / 2)

    def loss(self, theta: Floats, roots: Roots) -> tuple[float, Floats, Roots]:
        """Return log loss (infinite where unsupported) and its gradients by theta and by roots."""
        points = {i: PIdentityRoot(root) for i, root in roots.items()}
        moments = {i: Moments(point.inverse, self.grams(i)) for i, point in points.items()}
        c, mu = self.base.copy(), self.sizes.copy()
        for i, moments_i in moments.items():
            outside, inside = self.blocks.places(i)
            c[outside], c[inside] = moments_i.levels, moments_i.rests / moments_i.mu
            mu[self.attributes.index(i)] = moments_i.mu
        share = np.exp(-(self.member @ np.log(mu)))
        kappa = self.lattice.superset_sums(theta**2 * share)
        if np.any(kappa[self.needed] <= 0):
            return math.inf, np.zeros_like(theta), {i: 0 * root for i, root in roots.items()}
        inverse = np.divide(1.0, kappa, out=np.zeros_like(kappa), where=self.needed)
        S = np.zeros_like(kappa)
        S[self.rows] = np.maximum(self.blocks.sums(c), 0.0)
        error = float(S @ inverse)
        spread = self.lattice.subset_sums(S * inverse**2) * share / error
        norm = float(theta.sum())
        by_mu = self.holding @ (theta**2 * spread) / mu
        by_c = self.blocks.gradient(c, inverse[self.rows] / error)
        by_roots = {}
        for i, moments_i in moments.items():
            outside, inside = self.blocks.places(i)
            by_rests = by_c[inside] / moments_i.mu
            by_rest_of_mu = float(by_rests @ moments_i.rests) / moments_i.mu
            by_this_mu = float(by_mu[self.attributes.index(i)]) - by_rest_of_mu
            by_inverse = moments_i.gradient(by_c[outside], by_rests, by_this_mu)
            by_roots[i] = points[i].gradient(by_inverse)
        by_theta = 2 / norm - 2 * theta * spread
        return 2 * math.log(norm) + math.log(error), by_theta, by_roots

    def weights(self, real: dict[Subset, float]) -> Floats:
        """Return weights of subsets as a vector; those that are not allowed as zeros."""
        theta = np.zeros(len(self.lattice))
        for b, weight in real.items():
            theta[self.place[b]] = weight
        return np.where(self.allowed, theta, 0.0)

    def descend(
        self, start: FactorsPoint, iterations: int, race: Race | None = None
    ) -> FactorsPoint:
        """Return the point that L-BFGS-B reaches from a start."""
        if start.converged or not (start.value == math.inf or time_left("OPT_F")):
            return start
        order = list(start.roots)
        ends = np.cumsum([len(start.theta), *(start.roots[i].size for i in order)])

        def split(flat: Floats) -> tuple[Floats, Roots]:
            theta, *pieces = np.split(flat, ends[:-1])
            pairs = zip(order, pieces, strict=True)
            return theta, {i: piece.reshape(start.roots[i].shape) for i, piece in pairs}

        def fun(flat: Floats) -> tuple[float, Floats]:
            value, by_theta, by_roots = self.loss(*split(flat))
            gradient = np.concatenate([by_theta, *(by_roots[i].ravel() for i in order)])
            return (value if value < math.inf else WORST), gradient

        limits: Limits = [(0.0, None if allowed else 0.0) for allowed in self.allowed]
        limits = [*limits, *[(0.0, THETA_LIMIT)] * int(ends[-1] - ends[0])]
        result = descend(
            fun,
            np.concatenate([start.theta, *(start.roots[i].ravel() for i in order)]),
            words=lambda value: f"OPT_F from {start.kind}: loss {math.exp(value):.6g}",
            limits=limits,
            max_iterations=iterations,
            max_evaluations=2 * iterations,
            ftol=1e-9,
            gtol=1e-9,
            race=race,
        )
        theta, roots = split(result.x)
        return FactorsPoint(start.kind, theta, roots, float(result.fun), bool(result.success))


def _lattice(attributes: Subset, sets: list[Subset]) -> Lattice:
    """Return the subsets below the sets, or all of them where the sets are wide."""
    place, d = {i: k for k, i in enumerate(attributes)}, len(attributes)
    if max(map(len, sets)) > LISTED and d <= FULL_LIMIT:
        return Lattice(d)
    return Lattice(d, Below([tuple(place[i] for i in b) for b in sets]).subsets)


def check_optimisable(gram: Gram) -> None:
    """Refuse workloads for which OPT_F is the same as OPT_0, as OPT_M or as the better of two.

    Of one product it was the better of OPT_M and OPT_x in 45 of 45, and 16 s went by on one of
    112 codes.
    """
    shape = gram.shape_of_domain
    if sum(n > 1 for n in shape) == 1:
        raise UnsupportedWorkloadError("the same as OPT_0 for one attribute")
    if all(is_of_values(V) for matrices in gram.matrices for V in matrices):
        raise UnsupportedWorkloadError("the same as OPT_M where all codes are treated alike")
    if len(gram.weights) == 1:
        raise UnsupportedWorkloadError("the same as OPT_M or OPT_x where all ask for one product")


def opt_factors(
    gram: Gram,
    *,
    rng: PublicGenerator,
    max_cells: float,
    marginals: MarginalsSelection,
    product: ProductSelection | None,
) -> FactorsSelection:
    """Select weights of subsets and a factor for every attribute of at most MAX_FACTOR classes.

    L-BFGS-B runs SCOUTING iterations at most from every start, more from the best of each kind, and
    to the end from the best of all. The loss is never above that of `marginals`, nor above that of
    `product` where its factors can be optimised.

    Raises:
        UnsupportedWorkloadError: a table is too wide, or has more than max_cells cells.
    """
    whole = [] if product is None else [_measured(product)]
    sets = [*marginals.weights, *whole]
    problem = FactorsProblem(gram, max_cells=max_cells, sets=sets)

    points, race = list[FactorsPoint](), Race(SCOUTING // 2)
    for start in _starts(problem, rng, marginals, product):
        if points and not time_left(f"OPT_F from {start.kind}"):
            break
        points.append(problem.descend(start, SCOUTING, race))
    points = [problem.descend(point, LONGER_DESCENT) for point in _best(points, per_kind=2)]
    promising = _best(points)[: _effort(problem)[1]]
    finished = [problem.descend(point, POLISHING) for point in promising]
    best = _best(finished)[0]
    theta = best.theta / best.theta.sum()
    weights = {b: float(theta[row]) for b, row in problem.place.items()}
    return FactorsSelection(
        {b: weight for b, weight in weights.items() if weight > 0},
        {i: p_identity(root) for i, root in best.roots.items()},
        math.exp(best.value),
        best.converged,
    )


def _effort(problem: FactorsProblem) -> tuple[int, int]:
    """Return how many random restarts there are, and how many starts are finished."""
    sizes = [n for n in problem.gram.shape_of_domain if n <= MAX_FACTOR]
    size = len(problem.lattice) + sum(n * n for n in sizes)
    return next((restarts, finished) for most, restarts, finished in EFFORT if size <= most)


def _best(points: list[FactorsPoint], *, per_kind: int | None = None) -> list[FactorsPoint]:
    """Return the points by their loss, at most so many of each kind."""
    best: list[FactorsPoint] = []
    for point in sorted(points, key=lambda point: point.value):
        if per_kind is None or sum(other.kind == point.kind for other in best) < per_kind:
            best.append(point)
    return best


def _starts(
    problem: FactorsProblem,
    rng: PublicGenerator,
    marginals: MarginalsSelection,
    product: ProductSelection | None,
) -> Iterator[FactorsPoint]:
    """Yield OPT_M, OPT_x and random factors on the sets of OPT_M and on those of the workload."""
    all_sets = problem.weights(dict.fromkeys(problem.blocks.subsets, 1.0))
    cells = problem.weights(marginals.weights)
    shapes = {
        i: problem.gram.shape_of_domain[i]
        for i in problem.attributes
        if problem.gram.shape_of_domain[i] <= MAX_FACTOR
        and not all(is_of_values(V) for V in problem.gram.matrices[i])
    }
    yield FactorsPoint("OPT_M", cells, {})
    if product is not None:
        yield from _product_starts(problem, product, all_sets)
    widest = max(shapes.values(), default=0)
    for divisor in DIVISORS if widest >= min(DIVISORS) else DIVISORS[:1]:
        for _ in range(min(_effort(problem)[0], widest // 8 + 2)):
            roots = {i: rng.random((max(1, n // divisor), n)) for i, n in shapes.items()}
            yield FactorsPoint(f"random factors, 1/{divisor}, on OPT_M's sets", cells, roots)
            yield FactorsPoint(f"random factors, 1/{divisor}, on all sets", all_sets, roots)


def _product_starts(
    problem: FactorsProblem, product: ProductSelection, all_sets: Floats
) -> Iterator[FactorsPoint]:
    """Yield OPT_x, alone and with a little of all sets, if it can be optimised here."""
    roots = {}
    for i in problem.attributes:
        factor = product.factors[i]
        if isinstance(factor, PIdentity):
            roots[i] = factor.rows / factor.diagonal
        elif isinstance(factor, Tree):
            if factor.shape[1] > MAX_FACTOR:
                return
            A, n = factor.dense(), factor.shape[1]
            roots[i] = A[n:] / np.diagonal(A)
        elif isinstance(factor, Dense):
            roots[i] = factor.dense()
    alone = problem.weights({_measured(product): 1.0})
    if alone.any() and all(root.shape[1] <= MAX_FACTOR for root in roots.values()):
        yield FactorsPoint("OPT_x", alone, roots)
        yield FactorsPoint("OPT_x and all sets", alone + 0.01 * all_sets, roots)


def _measured(product: ProductSelection) -> Subset:
    pairs = enumerate(product.factors)
    return tuple(i for i, factor in pairs if factor.shape[1] > 1 and not isinstance(factor, Ones))
