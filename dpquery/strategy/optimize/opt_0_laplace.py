"""OPT_0 for Laplace noise: p-Identity strategies [HDMM18] Def. 9, by L-BFGS-B.

The loss sees V through products with p rows alone, so a round costs O(p^2 n) and what V takes for
p vectors ([MATH] 2). It has many local minima. A Gram of up to BASE classes is started from several
random points; a larger one from the strategy for half of its codes, laid out twice: ranges within
each half are served from the first round on, and what is left to find is how the halves share.

Where codes are interchangeable and orbits of them few, rows are constant on orbits: Theta has one
column for each, and V is summed over them.
"""

import math
from collections.abc import Callable

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.gram import (
    Matrix,
    Mixture,
    array_of,
    classes,
    diagonal,
    restricted,
    times,
    total_sum,
    trace,
)
from dpquery.operators.inverses import (
    DiagonalLessRows,
    inverse_trace,
    p_identity_inverse,
    positive_inverse,
)
from dpquery.operators.p_identity import PIdentity
from dpquery.progress import time_left
from dpquery.public_chance import PublicGenerator
from dpquery.strategy.algebra.orbits import (
    LEAST_IN_ORBITS,
    ORBIT_CODES,
    MergedGram,
    Orbits,
    few_orbits,
)
from dpquery.strategy.optimize.descents import FactorSelection, Race, descend

THETA_LIMIT = 1e3  # beyond, the loss is lost in rounding and its minima are not real
BASE = 256  # classes up to which starts are random
STARTS = 4  # random ones at least; more for up to 1024 / STARTS classes, where they cost little
LEAST_HALVED_CLASSES = 32  # classes from which on halves are worth a start
FIRST = 300  # iterations on the smallest part of a larger problem
LARGER_PART_ITERATIONS = (
    300  # iterations on each larger part: a later descent seldom makes up for fewer
)
WORK = 450 << 20  # iterations times entries of Theta, at most: 450 for 4096 classes
RACED = 100  # iterations before which no start is left
CORRECTIONS = 8  # pairs of steps and gradients that L-BFGS-B remembers
ORBIT_STARTS = 2  # random ones over orbits
SeenGram = Matrix | MergedGram
Halving = Callable[[int], Ints]
"""From a number of codes to half of them."""


def p_identity(Theta: Floats) -> PIdentity:
    """Return [I; Theta] D with D = diag(1 + 1'Theta)^-1: columns of L1 norm 1. Theta: (p, n)."""
    d = 1 / (1 + Theta.sum(axis=0))
    return PIdentity(d, Theta * d)


def p_identity_loss(
    Theta: Floats, V: SeenGram, costs: Floats | float = 1.0, beside: Floats | float = 0.0
) -> tuple[float, Floats]:
    """Return the loss of p_identity(Theta) on V and its gradient. O(p^2 n) beside V itself.

    With s = 1 + 1'Theta, B = Theta diag(s), R = (I + Theta Theta')^-1 (Woodbury):
    loss = sum_j s_j^2 V_jj - tr(R B V B').

    Args:
        Theta: (p, n). A column is that of all codes of an orbit where V is summed over orbits.
        V: (n, n).
        costs: what the rows of Theta add to s, times their entries: one number or (n,).
        beside: what is added to V_jj in the first sum, (n,) or one number.
    """
    s = 1 + costs * Theta.sum(axis=0)
    B = Theta * s
    BV = _times(V, B.T).T
    G = BV @ B.T
    columns = Theta * V.sizes if isinstance(V, MergedGram) else Theta
    R = positive_inverse(np.eye(len(Theta)) + columns @ Theta.T)
    RTheta, entries = R @ Theta, _diagonal(V) + beside
    loss = float(s**2 @ entries - np.sum(R * G))
    by_s = 2 * s * entries - 2 * np.einsum("ij,ij->j", RTheta, BV)
    gradient = R @ (G @ (R @ columns) - BV * s)
    gradient *= 2
    gradient += costs * by_s
    return loss, gradient


def best_p_identity(
    V: Matrix, p: int, rng: PublicGenerator, max_iterations: int, enough: float = math.inf
) -> FactorSelection:
    """Return the best p-Identity of all starts. V: (n, n).

    Starts whose loss would not come to be `enough` are left.
    """
    orbits = _orbits(V)
    if orbits is not None:
        return _best_over_orbits(orbits, p, rng, _race(V, max_iterations, enough))
    n = classes(V)
    V = array_of(V) if n <= BASE else V
    count = min(4 * STARTS, 1024 // n) if n > LEAST_HALVED_CLASSES else STARTS
    starts = [rng.random((p, n)) for _ in range(count if n <= BASE else 0)]
    if n > BASE or (p > 1 and n > LEAST_HALVED_CLASSES):
        starts.append(first_rows(V, p, rng))
    race = _race(V, max_iterations, enough)
    selections: list[FactorSelection] = []
    for start in starts:
        if not selections or time_left(f"OPT_0 from start {len(selections) + 1}"):
            Theta, converged = descend_rows(V, start, max_iterations, race=race)
            selections.append(_selection(Theta, V, converged=converged))
    return min(selections, key=lambda selection: selection.loss)


def first_rows(V: Matrix, p: int, rng: PublicGenerator) -> Floats:
    """Return rows to start from: those for halves of the codes, or random ones. (p, n)."""
    if p > 1 and classes(V) > LEAST_HALVED_CLASSES:
        return _laid_out_twice(V, p, halving_of(V), rng)
    return rng.random((p, classes(V)))


def _race(V: Matrix, max_iterations: int, enough: float) -> Race:
    """Return a race of rows for V, the losses of which are told as shares of the identity's."""
    share = enough / max(trace(V), np.finfo(float).tiny)
    return Race(min(RACED, max_iterations // 2), max_iterations, share)


def p_identity_from(
    V: Matrix, start: Floats, max_iterations: int, enough: float = math.inf
) -> FactorSelection:
    """Return the p-Identity that L-BFGS-B reaches from a start, never worse than the identity.

    It is left where its loss would not come to be `enough`.
    """
    orbits, race = _orbits(V), _race(V, max_iterations, enough)
    if orbits is None:
        Theta, converged = descend_rows(V, start, max_iterations, race=race)
        return _selection(Theta, V, converged=converged)
    means = np.stack([np.bincount(orbits.place, row) for row in start]) / orbits.sizes
    merged = MergedGram.of(orbits)
    return _written_out(orbits, merged, *descend_rows(merged, means, race.most, race=race))


def _orbits(V: Matrix) -> Orbits | None:
    n = classes(V)
    return few_orbits(V, n // ORBIT_CODES) if n >= LEAST_IN_ORBITS else None


def _best_over_orbits(orbits: Orbits, p: int, rng: PublicGenerator, race: Race) -> FactorSelection:
    """Return the best p-Identity of rows that are constant on orbits, at most one an orbit.

    Entries start at the size that is best for the total of their orbit alone: past it, a descent
    soon ends at the identity. One start has a row for each of the largest orbits, one besides the
    total, the others are random.
    """
    merged, m = MergedGram.of(orbits), len(orbits.sizes)
    rows = min(p, m)
    figures = zip(merged.diagonal, np.diagonal(merged.between), merged.sizes, strict=True)
    entries = np.array([_even_row(*of_orbit) or 1 / of_orbit[2] for of_orbit in figures])
    largest = np.argsort(-orbits.sizes, kind="stable")[:rows]
    totals, beside = np.zeros((rows, m)), np.zeros((rows, m))
    totals[np.arange(rows), largest] = entries[largest]
    beside[1:] = totals[:-1]
    beside[0] = _even_row(merged.diagonal.sum(), merged.between.sum(), merged.sizes.sum())
    starts = [totals, beside, *(entries * rng.random((rows, m)) for _ in range(ORBIT_STARTS))]
    reached: list[tuple[Floats, bool]] = []
    for start in starts:
        if not reached or time_left(f"OPT_0 from start {len(reached) + 1}"):
            reached.append(descend_rows(merged, start, race.most, race=race))
    best = min(reached, key=lambda end: p_identity_loss(end[0], merged)[0])
    return _written_out(orbits, merged, *best)


def _written_out(
    orbits: Orbits, merged: MergedGram, Theta: Floats, converged: bool
) -> FactorSelection:
    place, s = orbits.place, 1 + Theta.sum(axis=0)
    root = np.linalg.cholesky(np.eye(len(Theta)) + Theta * merged.sizes @ Theta.T)
    return FactorSelection(
        factor=PIdentity((1 / s)[place], (Theta / s)[:, place]),
        inverse=DiagonalLessRows((s**2)[place], (np.linalg.solve(root, Theta) * s)[:, place]),
        loss=p_identity_loss(Theta, merged)[0],
        bound=0.0,
        state=Theta[:, place] if Theta.any() else None,
        converged=converged,
    )


def even_p_identity(V: Mixture) -> FactorSelection:
    """Return the best p-Identity for a I + b 11': the total beside the identity, or not.

    With one even row theta, t = tr V and S = 1'V1 the loss is (1 + theta)^2 (t - theta^2 S / (1 +
    n theta^2)), of which the derivative is a quartic over a square. No start of L-BFGS-B ends lower
    on any such Gram that was tried.
    """
    theta = _even_row(trace(V), total_sum(V), V.n)
    return _selection(np.full((1, V.n), theta), V, converged=True)


def _even_row(t: float, S: float, n: float) -> float:
    """Return the entry of the best even row for a Gram of n classes, trace t and sum S."""
    quartic = [n * (t * n - S), 0.0, 2 * (t * n - S), -S, t]
    real = [float(x.real) for x in np.roots(quartic) if abs(x.imag) <= 1e-9 * abs(x)]
    tried = [0.0, *(x for x in real if 0 < x < THETA_LIMIT), THETA_LIMIT]
    return min(tried, key=lambda x: (1 + x) ** 2 * (t - x**2 * S / (1 + n * x**2)))


def _selection(Theta: Floats, V: Matrix, *, converged: bool) -> FactorSelection:
    factor = p_identity(Theta)
    inverse = p_identity_inverse(factor)
    return FactorSelection(
        factor=factor,
        inverse=inverse,
        loss=inverse_trace(inverse, V),
        bound=0.0,
        state=Theta if Theta.any() else None,
        converged=converged,
    )


def _times(V: SeenGram, X: Floats) -> Floats:
    return V.between @ X if isinstance(V, MergedGram) else times(V, X)


def _diagonal(V: SeenGram) -> Floats:
    return V.diagonal if isinstance(V, MergedGram) else diagonal(V)


def descend_rows(
    V: SeenGram,
    start: Floats,
    max_iterations: int,
    costs: Floats | float = 1.0,
    beside: Floats | float = 0.0,
    race: Race | None = None,
) -> tuple[Floats, bool]:
    """Return the Theta that L-BFGS-B reaches, or zeros where that is worse; and if it converged.

    `costs` and `beside` are those of p_identity_loss.
    """
    shape, identity = start.shape, float(np.sum(_diagonal(V) + beside))
    most = min(max_iterations, max(1, WORK // start.size))
    scale = max(identity, np.finfo(float).tiny)

    def fun(flat: Floats) -> tuple[float, Floats]:
        loss, gradient = p_identity_loss(flat.reshape(shape), V, costs, beside)
        return loss / scale, (gradient / scale).ravel()

    words = f"OPT_0 with {shape[0]} rows over {shape[1]:,} classes"
    result = descend(
        fun,
        start.ravel(),
        words=lambda value: f"{words}: loss {scale * value:.6g}",
        limits=[(0.0, THETA_LIMIT)] * start.size,
        max_iterations=most,
        corrections=CORRECTIONS,
        ftol=1e-9,
        gtol=1e-9,
        race=race,
    )
    if scale * result.fun > identity:
        return np.zeros(shape), bool(result.success)  # a local minimum worse than identity
    return result.x.reshape(shape), bool(result.success)


def _laid_out_twice(V: Matrix, p: int, halve: Halving, rng: PublicGenerator) -> Floats:
    n = classes(V)
    m, rows = (n + 1) // 2, p // 2
    half = _rough(restricted(V, halve(n)), rows, halve, rng)
    Theta = np.zeros((p, n))
    Theta[:rows, :m] = half
    Theta[rows : 2 * rows, n - m :] += half
    Theta[2 * rows :] = rng.random((p - 2 * rows, n)) / n
    return Theta


def _rough(V: Matrix, p: int, halve: Halving, rng: PublicGenerator) -> Floats:
    n = classes(V)
    if n > BASE and p > 1:
        return descend_rows(V, _laid_out_twice(V, p, halve, rng), LARGER_PART_ITERATIONS)[0]
    V = array_of(V) if n <= BASE else V
    descents = [descend_rows(V, rng.random((p, n)), FIRST) for _ in range(STARTS // 2)]
    return min((Theta for Theta, _ in descents), key=lambda Theta: p_identity_loss(Theta, V)[0])


def halving_of(V: Matrix) -> Halving:
    """Return which half of the codes has a Gram most like those of the halves of V.

    That is the middle half; or every other code, where most queries that look at one end of the
    middle half look at the other too: prefixes then stay prefixes.
    """
    n = classes(V)
    ends = _middle(n)[[0, -1]]
    columns = np.zeros((n, 2))
    columns[ends, [0, 1]] = 1.0
    (left, across), (_, right) = times(V, columns)[ends]
    return _every_other if across > 0.5 * math.sqrt(left * right) else _middle


def _middle(n: int) -> Ints:
    m = (n + 1) // 2
    return (n - m) // 2 + np.arange(m)


def _every_other(n: int) -> Ints:
    return np.arange(0, n, 2)
