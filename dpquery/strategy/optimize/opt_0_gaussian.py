"""OPT_0 for Gaussian noise: the optimum, and a proof of how near it is.

min tr(X^-1 V) over diag(X) <= 1 is convex. Its dual at v > 0, D = diag(v)^(1/2), is
tr(S)^2 / sum(v) with S = (D V D)^(1/2); v = 1 gives the SVD bound [LM13]. The fixed point
v <- diag(S) reaches it ([MATH] 1). The primal point is X = D^-1 S D^-1 over its largest diagonal
entry, and its loss max_j(S_jj / v_j) tr(S).

Where V^-1 is tridiagonal a round costs O(n) and the optimum is known for any n; else one
eigendecomposition, by halves where V is the same from both ends.
"""

from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_DENSE_CLASSES
from dpquery.operators.factors import Dense
from dpquery.operators.gram import Matrix, Mixture, array_of, classes
from dpquery.progress import time_left
from dpquery.strategy.algebra.eigenvalues import above_rounding, eigh
from dpquery.strategy.algebra.tridiagonal import TridiagonalInverse
from dpquery.strategy.optimize.factor_selection import FactorSelection

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
    """Return the strategy from eigenvalues of S, floored so that X is invertible where V is not."""
    v = np.ones(classes(V)) if start is None else start
    A = array_of(V)
    loss, bound, iterations = np.inf, 0.0, 0
    while loss > bound * (1 + OPTIMALITY_GAP) and iterations < max_iterations:
        iterations += 1
        w, U = eigh(A * np.sqrt(v)[:, None] * np.sqrt(v))
        w = above_rounding(w)
        roots = np.sqrt(w)
        floored = np.maximum(roots, EIGENVALUE_FLOOR * roots.mean())
        diagonal = (U**2) @ floored
        peak = float(np.max(diagonal / v))
        value = peak * float(np.sum(w / floored))
        bound = max(bound, float(roots.sum() ** 2 / v.sum()))
        if value < loss:
            loss, point = value, (v, U, floored, peak)
        if not time_left(f"OPT_0 round {iterations}: loss {loss:.6g}, at least {bound:.6g}"):
            break
        v = diagonal / diagonal.mean()
    v, U, floored, peak = point
    X = (U * floored) @ U.T / np.sqrt(v[:, None] * v) / peak
    half = U / np.sqrt(floored) * np.sqrt(v * peak)[:, None]
    return FactorSelection(
        factor=Dense(np.linalg.cholesky(X).T),
        inverse=half @ half.T,
        loss=loss,
        bound=bound,
        state=v,
        converged=loss <= bound * (1 + OPTIMALITY_GAP),
    )
