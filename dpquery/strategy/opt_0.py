"""OPT_0: the best strategy for the Gram of one attribute.

Laplace: p-Identity strategies [HDMM18] Def. 9, local optimum by L-BFGS-B with an analytic gradient.
Gaussian: min tr(X^-1 V) over diag(X) <= 1 is convex; a fixed point on its dual reaches it and the
dual value proves how near. The dual at v > 0, D = diag(v)^(1/2), is tr((D V D)^(1/2))^2 / sum(v);
v = 1 gives the SVD bound [LM13].

loss = sensitivity^2 tr((A'A)^-1 V) throughout; strategies returned here have sensitivity 1.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from dpquery.operators.factors import Dense, Factor, PIdentity
from dpquery.strategy.eigenvalues import above_rounding
from dpquery.strategy.noise_kinds import Noise

Matrix = NDArray[np.float64]

FLOOR = 1e-4  # least eigenvalue relative to the mean: keeps X invertible where V is not
THETA_LIMIT = 1e3  # beyond, the loss is lost in rounding and its minima are not real
GAP = 1e-3  # the proven optimality gap at which the Gaussian fixed point stops


@dataclass(frozen=True, eq=False)
class FactorSelection:
    """A strategy for one attribute.

    Attributes:
        factor: the (m, n) strategy, full column rank, sensitivity 1.
        inverse: (n, n) inverse of its Gram.
        loss: its loss on the Gram it was selected for.
        bound: a proven lower bound on the loss of any strategy, or 0 where none is known.
        state: what a warm start continues from; None to start afresh.
        converged: whether the optimiser met its tolerance.
    """

    factor: Factor
    inverse: Matrix
    loss: float
    bound: float
    state: Matrix | None
    converged: bool


def opt_0(
    V: Matrix,
    *,
    noise: Noise,
    rng: Generator,
    p: int | None = None,
    start: Matrix | None = None,
    max_iterations: int = 300,
) -> FactorSelection:
    """Select a strategy for the Gram of one attribute. V: (n, n), symmetric.

    Args:
        V: Gram of the workload.
        noise: "laplace" normalises columns to L1 norm 1, "gaussian" to L2 norm at most 1.
        rng: source of the starting point; the optimiser's alone, never the noise's.
        p: rows below the diagonal of a p-Identity; default n / 16, and 1 at least.
        start: `state` of an earlier selection to continue from.
        max_iterations: of L-BFGS-B (Laplace) or of the fixed point (Gaussian).
    """
    if noise == "gaussian":
        return _fixed_point(V, start, max_iterations)
    if start is None:
        n = V.shape[0]
        start = rng.random((max(1, n // 16) if p is None else p, n))
    return _p_identity(V, start, max_iterations)


def p_identity(Theta: Matrix) -> PIdentity:
    """Return [I; Theta] D with D = diag(1 + 1'Theta)^-1: columns of L1 norm 1. Theta: (p, n)."""
    d = 1 / (1 + Theta.sum(axis=0))
    return PIdentity(d, Theta * d)


def p_identity_loss(Theta: Matrix, V: Matrix) -> tuple[float, Matrix]:
    """Return the loss of p_identity(Theta) on V and its gradient. O(p n^2).

    With s = 1 + 1'Theta, B = Theta diag(s), R = (I + Theta Theta')^-1 (Woodbury):
    loss = sum_j s_j^2 V_jj - tr(R B V B').
    """
    s = 1 + Theta.sum(axis=0)
    BV = (Theta * s) @ V
    G = BV @ (Theta * s).T
    core = cho_factor(np.eye(len(Theta)) + Theta @ Theta.T)
    RTheta, RG = cho_solve(core, Theta), cho_solve(core, G)
    diagonal = np.diagonal(V)
    loss = float(s**2 @ diagonal - np.trace(RG))
    by_s = 2 * s * diagonal - 2 * (RTheta * BV).sum(axis=0)
    gradient = 2 * RG @ RTheta - 2 * cho_solve(core, BV * s) + by_s
    return loss, gradient


def _p_identity(V: Matrix, start: Matrix, max_iterations: int) -> FactorSelection:
    shape, scale = start.shape, max(float(np.trace(V)), np.finfo(float).tiny)

    def fun(flat: Matrix) -> tuple[float, Matrix]:
        loss, gradient = p_identity_loss(flat.reshape(shape), V / scale)
        return loss, gradient.ravel()

    result = minimize(
        fun,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, THETA_LIMIT)] * start.size,
        options={"maxiter": max_iterations, "maxcor": 20, "ftol": 1e-9, "gtol": 1e-9},
    )
    Theta = result.x.reshape(shape)
    if scale * result.fun > np.trace(V):
        Theta = np.zeros(shape)  # a local minimum worse than identity
    s = 1 + Theta.sum(axis=0)
    core = cho_factor(np.eye(len(Theta)) + Theta @ Theta.T)
    inverse = (np.eye(shape[1]) - Theta.T @ cho_solve(core, Theta)) * s[:, None] * s
    return FactorSelection(
        factor=p_identity(Theta),
        inverse=inverse,
        loss=float(np.sum(inverse * V)),
        bound=0.0,
        state=Theta if Theta.any() else None,
        converged=bool(result.success),
    )


def _fixed_point(V: Matrix, start: Matrix | None, max_iterations: int) -> FactorSelection:
    """Iterate v <- diag((D V D)^(1/2)); keep the best primal and the best dual point seen.

    The primal point is X = D^-1 S D^-1 over its largest diagonal entry, S = (D V D)^(1/2) with its
    eigenvalues floored so that X stays invertible where V is not. One eigendecomposition a round.
    """
    v = np.ones(len(V)) if start is None else start
    loss, bound, iterations = np.inf, 0.0, 0
    while loss > bound * (1 + GAP) and iterations < max_iterations:
        iterations += 1
        w, U = np.linalg.eigh(V * np.sqrt(v)[:, None] * np.sqrt(v))
        w = above_rounding(w)
        roots = np.sqrt(w)
        floored = np.maximum(roots, FLOOR * roots.mean())
        diagonal = (U**2) @ floored
        peak = float(np.max(diagonal / v))
        value = peak * float(np.sum(w / floored))
        bound = max(bound, float(roots.sum() ** 2 / v.sum()))
        if value < loss:
            loss, point = value, (v, U, floored, peak)
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
        converged=loss <= bound * (1 + GAP),
    )
