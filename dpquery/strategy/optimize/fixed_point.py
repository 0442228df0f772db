"""THE fixed point, once: codes, tridiagonal, orbits, cells, moves, trees are oracles of one loop.

OPT_0 for Gaussian noise: the optimum, and a proof of how near it is.

min tr(X^-1 V) over diag(X) <= 1 is convex. Its dual at v > 0, D = diag(v)^(1/2), is
tr(S)^2 / sum(v) with S = (D V D)^(1/2); v = 1 gives the SVD bound [LM13]. The fixed point
v <- diag(S) reaches it ([MATH] 1). The primal point is X = D^-1 S D^-1 over its largest diagonal
entry, and its loss max_j(S_jj / v_j) tr(S).

Where V^-1 is tridiagonal a round costs O(n) and the optimum is known for any n; else one
eigendecomposition, by halves where V is the same from both ends, and over orbits where codes are
interchangeable: the optimum is the same for all codes of an orbit.

OPT_0 for Gaussian noise where records move: the optimum, and a proof of how near it is.

min tr(X^-1 V) over X with m'Xm <= 1 for every move m of a record: e_i - e_j, and e_i where a record
may lie outside of the domain. For weights v_m >= 0 and S = sum_m v_m m m',
    tr(X^-1 V) >= tr((S^(1/2) V S^(1/2))^(1/2))^2 / sum(v),
with equality at X = S^(-1/2) (S^(1/2) V S^(1/2))^(1/2) S^(-1/2) where v lives on the moves with
m'Xm = 1; the weights climb by v_m <- v_m (m'Xm)^2 ([MATH] 13.3). Where records never leave, the
total is the same for all neighbours: all is in the space of sum zero, and the total is free.

Budgets of independent measurements where a record moves them by different lengths.

Measurement b at weight^2 w_b errs by S_b / w_b, and a move m of a record moves it by a squared
length of w_b Q_mb. The least sum of S_b / w_b with sum_b w_b Q_mb <= 1 for all moves has the dual

    (sum_b sqrt(S_b (u'Q)_b))^2   over weights u >= 0 of the moves that add to one,

at w_b = sqrt(S_b / (u'Q)_b), scaled. u climbs by u_m <- u_m (Q w)_m ([MATH] 13.3).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_DENSE_CLASSES
from dpquery.operators.factors import Dense
from dpquery.operators.gram import Matrix, Mixture, array_of, classes
from dpquery.progress import time_left
from dpquery.strategy.algebra.orbits import (
    LEAST_IN_ORBITS,
    ORBIT_CODES,
    Orbits,
    above_rounding,
    eigh,
    orbits_of,
)
from dpquery.strategy.algebra.roots import TridiagonalInverse
from dpquery.strategy.optimize.descents import FactorSelection
from dpquery.strategy.strategy import RecordChange

EIGENVALUE_FLOOR = 1e-4  # least eigenvalue relative to the mean: keeps X invertible where V is not
OPTIMALITY_GAP = 2e-4  # the proven optimality gap at which the fixed point stops
FINE_GAP = 1e-5  # where a round costs next to nothing


@dataclass(frozen=True, eq=False)
class DualPoint:
    """The best dual point on the codes that some query counts, and the bound that it proves.

    Attributes:
        v: (m,) positive.
        peak: largest diagonal entry of D^-1 S D^-1, by which it is divided.
        loss: of the primal point that belongs to v.
        bound: the largest dual value seen.
    """

    v: Floats
    peak: float
    loss: float
    bound: float


def fixed_point(V: Matrix, start: Floats | None, max_iterations: int) -> FactorSelection:
    """Return the Gaussian strategy of a Gram of at most MAX_DENSE_CLASSES classes."""
    if classes(V) > MAX_DENSE_CLASSES:
        raise UnsupportedWorkloadError(
            f"a strategy of {classes(V):,} classes by as many rows; "
            f"the limit is {MAX_DENSE_CLASSES:,}"
        )
    if isinstance(V, Mixture):
        return even_root(V)
    inverse = TridiagonalInverse.of(V)
    if inverse is None:
        return _dense(V, start, max_iterations)
    v = np.ones(classes(V)) if start is None else start
    v = v[: len(inverse.diagonal)]
    return _written_out(inverse, optimum(inverse, v, max_iterations))


def optimum(
    inverse: TridiagonalInverse,
    v: Floats,
    max_iterations: int,
    gap: float = FINE_GAP,
) -> DualPoint:
    """Return the best dual point from v; O(n) a round. Rounding counts against both figures."""
    best, bound = DualPoint(v, 1.0, np.inf, 0.0), 0.0
    for iteration in range(max_iterations):
        root = inverse.root(v)
        diagonal = root.diagonal()
        total, peak = float(diagonal.sum()), float(np.max(diagonal / v))
        bound = max(bound, (total * (1 - root.error)) ** 2 / float(v.sum()))
        loss = peak * total / (1 - root.error) ** 2
        best = DualPoint(v, peak, loss, bound) if loss < best.loss else best
        words = f"OPT_0 round {iteration + 1}: loss {best.loss:.6g}, at least {bound:.6g}"
        if best.loss <= bound * (1 + gap) or not time_left(words):
            break
        v = diagonal / diagonal.mean()
    return DualPoint(best.v, best.peak, best.loss, bound)


def _written_out(inverse: TridiagonalInverse, point: DualPoint) -> FactorSelection:
    """Return the primal point as a matrix; codes that no query asks for are measured one by one.

    S^-1 = K S, as K is S^-2, so that neither is found by elimination.
    """
    root, d, n = inverse.root(point.v), np.sqrt(point.v), inverse.V.n
    S, m = root.array(), len(d)
    v, X, X_inverse = np.ones(n), np.eye(n), np.eye(n)
    v[:m] = point.v
    X[:m, :m] = S / d[:, None] / d / point.peak
    X_inverse[:m, :m] = root.times(S) * d[:, None] * d * point.peak
    return FactorSelection(
        factor=Dense(np.linalg.cholesky(X).T),
        inverse=X_inverse,
        loss=point.loss,
        bound=point.bound,
        state=v,
        converged=point.loss <= point.bound * (1 + OPTIMALITY_GAP),
    )


def even_root(V: Mixture) -> FactorSelection:
    """Return the optimum for a I + b 11': its root, scaled, which has one diagonal entry.

    The strategy is the symmetric root of that, so that all codes stay alike when it is rounded.
    """
    n = V.n
    values = np.maximum([V.a, V.a + V.b * n], 0.0)  # n - 1 times, and once on the total
    times = np.array([n - 1.0, 1.0])
    roots = np.sqrt(values)
    floored = np.maximum(roots, EIGENVALUE_FLOOR * float(times @ roots) / n)
    peak = float(times @ floored) / n
    loss = peak * float(times @ (values / floored))

    def written(alone: float, total: float) -> Floats:
        return np.eye(n) * alone + (total - alone) / n

    return FactorSelection(
        factor=Dense(written(*np.sqrt(floored / peak))),
        inverse=written(*(peak / floored)),
        loss=loss,
        bound=float(times @ roots) ** 2 / n,
        state=np.ones(n),
        converged=True,
    )


def _dense(V: Matrix, start: Floats | None, max_iterations: int) -> FactorSelection:
    """Return the strategy from the root of D V D, over orbits of codes where they are few.

    The eigenvalues of the root are floored, so that X is invertible where V is not.
    """
    A = array_of(V)
    n = len(A)
    v = np.ones(n) if start is None else start
    orbits = orbits_of([A]) if n >= LEAST_IN_ORBITS else None
    few = orbits is not None and len(orbits.sizes) <= n // ORBIT_CODES
    roots = _OrbitRoots(orbits) if orbits is not None and few else _CodeRoots(A)
    v = roots.reduced(v)
    best: tuple[float, float, Floats] | None = None
    bound, iterations = 0.0, 0
    while iterations < max_iterations:
        iterations += 1
        root = roots.at(v)
        diagonal = root.diagonal
        peak = float(np.max(diagonal / v))
        value = peak * root.error
        bound = max(bound, float(root.trace**2 / roots.total(v)))
        if best is None or value < best[0]:
            best, chosen = (value, peak, v), root
        words = f"OPT_0 round {iterations}: loss {best[0]:.6g}, at least {bound:.6g}"
        if best[0] <= bound * (1 + OPTIMALITY_GAP) or not time_left(words):
            break
        v = diagonal / (roots.total(diagonal) / n)
    if best is None:
        raise ValueError("at least one round")
    loss, peak, v = best
    codes = roots.spread(v)
    X = chosen.array() / np.sqrt(codes[:, None] * codes) / peak
    return FactorSelection(
        factor=Dense(np.linalg.cholesky(X).T),
        inverse=chosen.inverse(np.sqrt(codes * peak)),
        loss=loss,
        bound=bound,
        state=codes,
        converged=loss <= bound * (1 + OPTIMALITY_GAP),
    )


class _Root(Protocol):
    """S = (D V D)^(1/2), with its eigenvalues floored.

    Attributes:
        diagonal: of the floored root, one entry a code or an orbit.
        trace: of the root itself.
        error: the trace of the floored root's inverse times D V D.
    """

    diagonal: Floats
    trace: float
    error: float

    def array(self) -> Floats:
        """Return the floored root, written out: (n, n)."""

    def inverse(self, lengths: Floats) -> Floats:
        """Return its inverse with rows and columns times lengths: (n, n)."""


class _CodeRoot:
    """The root by its eigenvalues."""

    def __init__(self, M: Floats) -> None:
        w, self.U = eigh(M)
        w = above_rounding(w)
        roots = np.sqrt(w)
        self.floored = np.maximum(roots, EIGENVALUE_FLOOR * roots.mean())
        self.diagonal = np.asarray((self.U**2) @ self.floored)
        self.trace, self.error = float(roots.sum()), float(np.sum(w / self.floored))

    def array(self) -> Floats:
        return np.asarray((self.U * self.floored) @ self.U.T)

    def inverse(self, lengths: Floats) -> Floats:
        half = self.U / np.sqrt(self.floored) * lengths[:, None]
        return np.asarray(half @ half.T)


class _CodeRoots:
    """Roots where every code is by itself."""

    def __init__(self, A: Floats) -> None:
        self.A = A

    def total(self, v: Floats) -> float:
        return float(v.sum())

    def reduced(self, v: Floats) -> Floats:
        return v

    def spread(self, v: Floats) -> Floats:
        return v

    def at(self, v: Floats) -> _CodeRoot:
        return _CodeRoot(self.A * np.sqrt(v)[:, None] * np.sqrt(v))


class _OrbitRoot:
    """The root on normalised indicators of orbits, and one number on what is beside each."""

    def __init__(self, orbits: Orbits, v: Floats) -> None:
        self.orbits, root = orbits, np.sqrt(v)
        w, self.U = eigh(orbits.levels[0] * np.outer(root, root))
        w, inside = above_rounding(w), np.maximum(orbits.inside[0] * v, 0.0)
        beside, n = orbits.sizes - 1.0, float(orbits.sizes.sum())
        roots, alone = np.sqrt(w), np.sqrt(inside)
        self.trace = float(roots.sum() + beside @ alone)
        floor = EIGENVALUE_FLOOR * self.trace / n
        self.floored, self.alone = np.maximum(roots, floor), np.maximum(alone, floor)
        self.diagonal = (self.U**2 @ self.floored + beside * self.alone) / orbits.sizes
        self.error = float(np.sum(w / self.floored) + beside @ (inside / self.alone))

    def array(self) -> Floats:
        return self._power(1.0)

    def inverse(self, lengths: Floats) -> Floats:
        return self._power(-1.0) * np.outer(lengths, lengths)

    def _power(self, power: float) -> Floats:
        sizes, place = self.orbits.sizes, self.orbits.place
        half, alone = self.U * self.floored ** (power / 2), self.alone**power
        between = half @ half.T - np.diag(alone)
        written = (between / np.sqrt(np.outer(sizes, sizes)))[np.ix_(place, place)]
        written[np.diag_indices(len(place))] += alone[place]
        return np.asarray(written)


class _OrbitRoots:
    """Roots where interchangeable codes have one entry of v."""

    def __init__(self, orbits: Orbits) -> None:
        self.orbits = orbits

    def total(self, v: Floats) -> float:
        return float(self.orbits.sizes @ v)

    def reduced(self, v: Floats) -> Floats:
        return np.asarray(np.bincount(self.orbits.place, v) / self.orbits.sizes)

    def spread(self, v: Floats) -> Floats:
        return np.asarray(v[self.orbits.place])

    def at(self, v: Floats) -> _OrbitRoot:
        return _OrbitRoot(self.orbits, v)


SINGULAR = 1e-12  # least eigenvalue of S, relative: below it rounding could lift the bound
MOVES_ROUNDS = 150
MOVES_GAP = 8e-4  # the proven optimality gap at which the climb stops
MOST_MOVED = 128  # classes: weights of 8,128 moves, and two decompositions a round
MOVES_FLOOR = 1e-4  # least eigenvalue relative to the mean: keeps X invertible where V is not


@dataclass(frozen=True, eq=False)
class MovesOptimum:
    """A strategy of one attribute for records that move, and a lower bound on the loss of any.

    Attributes:
        rows: (m, n) with X = rows' rows; every move has a length of at most 1. Of rank n, or n - 1
            with the null vector 1 where records never leave.
        loss: tr(X^-1 V), in the space of sum zero where records never leave.
        bound: the largest dual value seen.
    """

    rows: Floats
    loss: float
    bound: float


def moves_optimum(V: Floats, change: RecordChange, *, rounds: int = MOVES_ROUNDS) -> MovesOptimum:
    """Return the best strategy that was found for the Gram of an attribute, n classes."""
    n = len(V)
    leaves = change == "moves"
    E = np.eye(n) if leaves else np.linalg.svd(np.ones((1, n)))[2][1:].T
    U = E.T @ ((V + V.T) / 2) @ E
    between, outside = 1 - np.eye(n), np.full(n, float(leaves))
    best: MovesOptimum | None = None
    bound = 0.0
    for number in range(rounds):
        whole = float(between.sum()) / 2 + float(outside.sum())
        between, outside = between / whole, outside / whole
        s, Q = eigh(E.T @ (np.diag(between.sum(axis=1) + outside) - between) @ E)
        if float(s.min()) <= SINGULAR * float(s.max()):
            break
        root = (Q * np.sqrt(s)) @ Q.T
        inverse_root = (Q / np.sqrt(s)) @ Q.T
        w, P = eigh(root @ U @ root)
        w = above_rounding(w)
        bound = max(bound, float(np.sqrt(w).sum()) ** 2 * (1 - 1e-9))
        values = np.maximum(np.sqrt(w), MOVES_FLOOR * float(np.sqrt(w).mean()))
        half = np.sqrt(values)[:, None] * (P.T @ inverse_root @ E.T)  # X = half'half
        X = half.T @ half
        diagonal = np.diagonal(X)
        distances = diagonal[:, None] + diagonal - 2 * X
        longest = float(max(distances.max(), diagonal.max() if leaves else 0.0))
        loss = longest * float((w / values).sum())
        if best is None or loss < best.loss:
            best = MovesOptimum(half / np.sqrt(longest), loss, bound)
        words = f"moves, round {number + 1}: loss {best.loss:.6g}, at least {bound:.6g}"
        if best.loss <= bound * (1 + MOVES_GAP) or not time_left(words):
            break
        between, outside = between * distances**2, outside * diagonal**2
    if best is None:
        raise ValueError("at least one round")
    return MovesOptimum(best.rows, best.loss, bound)


ROUNDS = 500
GAP = 1e-5  # relative gap at which the climb stops
LEAST_ERROR = 1e-12  # of the largest: a measurement of no error is still measured


@dataclass(frozen=True, eq=False)
class MoveBudgets:
    """The best squared weights that were found.

    Attributes:
        weights: w_b, (blocks,): no move is longer than 1. What no move changes has weight 0 here.
        loss: the sum of S_b / w_b over what moves change.
        bound: no weights have a smaller one.
    """

    weights: Floats
    loss: float
    bound: float


def move_budgets(errors: Floats, lengths: Floats) -> MoveBudgets:
    """Return the best budgets. errors: S, (blocks,), at least 0. lengths: Q, (moves, blocks)."""
    moved = lengths.max(axis=0) > 0
    S, Q = np.maximum(errors[moved], 0.0), lengths[:, moved]
    u = np.full(len(Q), 1 / len(Q))
    weights = np.zeros(len(errors))
    if not S.any():
        weights[moved] = 1 / np.maximum(Q.sum(axis=1).max(), 1e-300)
        return MoveBudgets(weights, 0.0, 0.0)
    S_floored = np.maximum(S, LEAST_ERROR * float(S.max()))
    loss, bound, best = np.inf, 0.0, np.zeros(len(S))
    for _ in range(ROUNDS):
        costs = np.maximum(u @ Q, 1e-300)
        bound = max(bound, float(np.sqrt(S * (u @ Q)).sum()) ** 2 * (1 - 1e-9))
        w = np.sqrt(S_floored / costs)
        reached = Q @ w
        longest = float(reached.max())
        value = longest * float((S / w).sum())
        if value < loss:
            loss, best = value, w / longest
        if loss <= bound * (1 + GAP):
            break
        u = u * (reached / longest) ** 2
        u = u / u.sum()
    weights[moved] = best
    return MoveBudgets(weights, loss, bound)
