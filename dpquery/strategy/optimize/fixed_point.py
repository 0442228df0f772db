"""THE fixed point, once: one loop finds convex optima, and proves how near to them it is.

min tr(X^-1 V) over the X in which no change m of a record is longer than 1: m'Xm <= 1. At weights
v >= 0 of the changes, of sum 1, and S = sum_m v_m m m', no strategy has a smaller loss than
    tr((S^(1/2) V S^(1/2))^(1/2))^2,
and the primal point X = S^(-1/2) (S^(1/2) V S^(1/2))^(1/2) S^(-1/2) over its longest change has
that at the optimum. A step of the fixed point is v <- v q, q the lengths m'Xm, or their squares
where that is quicker ([MATH] 1, 13.3, 21); steps are extrapolated [VR08]. What the loop is given:

- a record enters, m = e_j: the blocks that a Gram falls apart into, of codes, of orbits of
  interchangeable codes or of classes of cells; or V^-1 where it is tridiagonal, at O(n) a round;
- a record moves, m = e_i - e_j, and m = e_i too where it may lie outside of the domain;
- a record moves, and what is measured stands but for the weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import numpy as np
from scipy.linalg import lapack
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_DENSE_CLASSES
from dpquery.operators.factors import Dense
from dpquery.operators.gram import Matrix, Mixture, array_of, classes
from dpquery.progress import reporting, time_left
from dpquery.strategy.algebra.orbits import (
    LEAST_IN_ORBITS,
    ORBIT_CODES,
    Orbits,
    above_rounding,
    eigh,
    orbits_of,
)
from dpquery.strategy.algebra.roots import TridiagonalInverse, TridiagonalRoot
from dpquery.strategy.optimize.descents import FactorSelection
from dpquery.strategy.strategy import RecordChange

SHORTEST_STEP, LONGEST_STEP = 1.0, 30.0  # an extrapolated step, in steps of the fixed point
MOST_EXTRAPOLATED = 12.0  # that the logarithm of a weight is extrapolated
LEAST_WEIGHT = 1e-6  # of a change, relative to the mean: rounding is felt next to zero
Primal = TypeVar("Primal")


@dataclass(frozen=True, eq=False)
class Point:
    """What the problem and its dual are at some weights."""

    weights: Floats  # v, (n,), of sum 1
    lengths: Floats  # q, of every change from X, up to a common factor: (n,)
    loss: float  # of the primal point
    bound: float  # the dual value; no strategy has a smaller loss

    @property
    def next_weights(self) -> Floats:
        """One step of the fixed point."""
        return _shares(self.weights * self.lengths**2)


class Climb(Generic[Primal]):
    """The best point so far, and the best bound.

    Attributes:
        best: the point of the smallest loss.
        primal: what its strategy is written out from.
        bound: the largest dual value seen.
    """

    best: Point
    primal: Primal

    def __init__(
        self,
        at: Callable[[Floats], tuple[Point, Primal]],
        name: str,
        *,
        gap: float,
        rounds: int,
        enough: float = 0.0,
    ) -> None:
        """Begin.

        Args:
            at: what is known at weights of sum 1: the point, and what is kept of the best one.
            name: of what is at work.
            gap: the proven optimality gap at which the climb ends.
            rounds: the most points that are looked at; the first one always is.
            enough: a lower bound on the loss of any strategy at which the climb ends; 0 for none.
        """
        self.at, self.name, self.gap, self.rounds, self.enough = at, name, gap, rounds, enough
        self.seen, self.bound, self.is_late = 0, 0.0, False

    def climb(self, start: Floats) -> Self:
        """Climb from some weights, and hand over the best point when time is over."""
        point = self._look(_shares(start))
        while not self._is_over():
            first = self._look(point.next_weights)
            if self._is_over():
                break
            point = self._look(_beyond(point, first))
            if point.bound < first.bound and not self._is_over():
                point = self._look(first.next_weights)
        return self

    @property
    def longest(self) -> float:
        """The largest length at the best point: what X is over."""
        return float(self.best.lengths.max())

    @property
    def is_solved(self) -> bool:
        """Whether the best point is within the gap of the bound."""
        return self.best.loss <= self.bound * (1 + self.gap)

    @property
    def is_hopeless(self) -> bool:
        """Whether no strategy has a loss below `enough`, and none was sought further."""
        return self.bound >= self.enough > 0 and not self.is_solved

    def _look(self, weights: Floats) -> Point:
        """Return the point of some weights, and keep it where it is the best."""
        point, primal = self.at(weights)
        self.seen, self.bound = self.seen + 1, max(self.bound, point.bound)
        if self.seen == 1 or point.loss < self.best.loss:
            self.best, self.primal = point, primal
        figures = f"loss {self.best.loss:.6g}, at least {self.bound:.6g}"
        self.is_late = not time_left(f"{self.name} round {self.seen}: {figures}")
        return point

    def _is_over(self) -> bool:
        return self.is_late or self.is_solved or self.is_hopeless or self.seen >= self.rounds


def _beyond(point: Point, first: Point) -> Floats:
    """Return weights two steps of the fixed point from a point, or beyond."""
    logs = [np.log(v) for v in (point.weights, first.weights, first.next_weights)]
    step, bend = logs[1] - logs[0], logs[2] - 2 * logs[1] + logs[0]
    scale = np.sqrt(point.weights)
    ratio = _norm(scale * step) / max(_norm(scale * bend), 1e-300)
    ratio = min(max(ratio, SHORTEST_STEP), LONGEST_STEP)
    beyond = logs[0] + 2 * ratio * step + ratio**2 * bend
    beyond = np.clip(beyond, logs[2] - MOST_EXTRAPOLATED, logs[2] + MOST_EXTRAPOLATED)
    return _shares(np.exp(beyond - beyond.max()))


def _norm(x: Floats) -> float:
    return float(np.sqrt(x @ x))


def _shares(weights: Floats) -> Floats:
    """Return weights of sum 1, none of which is next to zero."""
    weights = np.maximum(weights, LEAST_WEIGHT * float(weights.mean()))
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True, eq=False)
class Optimum:
    """A strategy, and a lower bound on the loss of any."""

    rows: Floats  # (m, n) with X = rows'rows: no change of a record is longer than 1
    loss: float  # tr(X^-1 V), or slightly more, before the total is beside it
    bound: float  # the largest dual value seen


CELLS_GAP = 1e-4  # the proven optimality gap at which the climb stops
CELLS_ROUNDS = 400
FILLED_DIAGONAL = 5e-5  # added to the diagonal of X, which has rank r, so that it is invertible
SMALL_RANK = 0.6  # of the size of a block: up to it the root is decomposed, not the block


@dataclass(frozen=True, eq=False)
class GramBlock:
    """A part of a Gram that is by itself."""

    cells: Ints  # the classes that it is over: (m,)
    matrix: Floats  # V, (m, m); or R with R'R = V, (r, m), where it is much smaller
    is_root: bool  # which of both
    multiplicity: float = 1.0  # how often it stands in the Gram

    @classmethod
    def of(cls, cells: Ints, V: Floats, multiplicity: float = 1.0) -> "GramBlock | None":
        """Return the block of a matrix; None where that is zero."""
        if lapack.dpstrf(V)[2] > SMALL_RANK * len(V):  # its rank, at a tenth of eigenvectors
            return cls(cells, V, False, multiplicity)
        w, U = eigh(V)
        kept = above_rounding(w) > 0
        root = np.sqrt(w[kept])[:, None] * U[:, kept].T
        return cls(cells, root, True, multiplicity) if len(root) else None

    def decomposed(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return roots of eigenvalues of D V D, D = diag(v)^(1/2), and B with X = B'B.

        They are those of M = R diag(v) R', which is smaller where the rank is: X = R' M^(-1/2) R.
        """
        if self.is_root:
            w, U = np.linalg.eigh((self.matrix * weights) @ self.matrix.T)
            least = len(w) * np.finfo(float).eps * float(w[-1])
            roots = np.sqrt(np.maximum(w, max(least, np.finfo(float).tiny)))
            return np.sqrt(above_rounding(w)), (U / np.sqrt(roots)).T @ self.matrix
        d = np.sqrt(weights)
        w, U = eigh(self.matrix * d[:, None] * d)
        roots = np.sqrt(above_rounding(w))
        return roots, np.sqrt(roots)[:, None] * U.T / d


def gram_blocks(V: Floats) -> list[GramBlock]:
    """Return the blocks that a Gram falls apart into."""
    parts = [np.arange(len(V))]
    if not V.all():
        count, block_of = connected_components(csr_array(V != 0), directed=False)
        parts = [np.flatnonzero(block_of == k) for k in range(count)]
    blocks = [GramBlock.of(cells, V[np.ix_(cells, cells)]) for cells in parts]
    return [block for block in blocks if block is not None]


def of_blocks(blocks: Sequence[GramBlock]) -> Callable[[Floats], tuple[Point, list[Floats]]]:
    """Return what is known at weights of a Gram's classes; of the best point B of every block."""

    def at(weights: Floats) -> tuple[Point, list[Floats]]:
        lengths, trace, halves = np.zeros(len(weights)), 0.0, []
        for block in blocks:
            roots, half = block.decomposed(weights[block.cells])
            lengths[block.cells] += block.multiplicity * np.einsum("rc,rc->c", half, half)
            trace += block.multiplicity * float(roots.sum())
            halves.append(half)
        return Point(weights, lengths, float(lengths.max()) * trace, trace**2), halves

    return at


def cells_optimum(V: Floats, *, enough: float = 0.0) -> Optimum | float:
    """Return the best strategy for a Gram; only a lower bound where that is enough.

    Args:
        V: (n, n), symmetric, positive semidefinite and not zero.
        enough: a lower bound on the loss of any strategy at which the search ends.
    """
    blocks = gram_blocks(V)
    found = Climb(of_blocks(blocks), "OPT_C", gap=CELLS_GAP, rounds=CELLS_ROUNDS, enough=enough)
    found.climb(np.sqrt(np.diagonal(V)))
    if found.is_hopeless:
        return found.bound
    X = np.zeros_like(V)
    for block, half in zip(blocks, found.primal, strict=True):
        X[np.ix_(block.cells, block.cells)] = half.T @ half / found.longest
    X[np.diag_indices(len(X))] += FILLED_DIAGONAL
    share = total_share(X, np.ones(len(X)), np.diagonal(V))
    X = (1 - share) * X + share
    rows = np.asarray(np.linalg.cholesky(X / (1 + FILLED_DIAGONAL)).T, dtype=np.float64)
    return Optimum(rows, found.best.loss * (1 + FILLED_DIAGONAL), found.bound)


def independent(queries: Floats) -> Ints:
    """Return the numbers of queries, (q, n), of which all others are combinations, ascending."""
    _, order, rank, _ = lapack.dpstrf(queries @ queries.T, tol=LEAST_DISTANCE)
    return np.sort(order[:rank] - 1).astype(np.int64)


LEAST_DISTANCE = 1e-6  # squared distance of a query of zeros and ones to all combinations of others


def basis_optimum(basis: Floats, V: Floats, *, enough: float) -> Optimum | float:
    """Return the best strategy of answers to a basis; only a lower bound where that is enough.

    Its rows, (r, r), are combinations of the basis.

    Args:
        basis: independent queries Q, (r, n).
        V: (r, r) with Q' V Q the Gram, of rank r.
        enough: a lower bound on the loss of any strategy at which the search ends.
    """
    root = np.linalg.cholesky(V).T @ basis
    block = GramBlock(np.arange(basis.shape[1]), root, True)
    found = Climb(of_blocks([block]), "OPT_C", gap=CELLS_GAP, rounds=CELLS_ROUNDS, enough=enough)
    found.climb(np.sqrt(np.einsum("rc,rc->c", root, root)))
    if found.is_hopeless:
        return found.bound
    (half,) = found.primal
    mixed = half @ np.linalg.pinv(basis)
    rows = np.asarray(np.linalg.cholesky(mixed.T @ mixed / found.longest).T, dtype=np.float64)
    return Optimum(rows, found.best.loss, found.bound)


TOTAL_SHARE = 0.0195  # of squared lengths: with it, other errors grow by less than 1 %
UNCOUNTED = 1e-9  # of the largest entry of a Gram's diagonal: that of a class no query counts


def total_share(X: Floats, total: Floats, asked: Floats) -> float:
    """Return the share of a strategy that is to measure the total beside it, or 0.

    It is worth one where some class is counted by no query (records without a declared value) and
    the total errs more from the strategy than it would from that share alone.

    Args:
        X: the strategy, (n, n), invertible.
        total: the query for the total over its classes: (n,).
        asked: the diagonal of the Gram: (n,).
    """
    if asked.min() > UNCOUNTED * asked.max():
        return 0.0
    return TOTAL_SHARE if float(total @ np.linalg.solve(X, total)) > 1 / TOTAL_SHARE else 0.0


EIGENVALUE_FLOOR = 1e-4  # least eigenvalue relative to the mean: keeps X invertible where V is not
OPTIMALITY_GAP = 2e-4  # the proven optimality gap at which the fixed point stops
FINE_GAP = 1e-5  # where a round costs next to nothing


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
    # the primal point as a matrix; codes that no query asks for are measured one by one
    found = optimum(inverse, v, max_iterations)
    root, v, n = found.primal, found.best.weights, inverse.V.n
    S, d, peak, m = root.array(), np.sqrt(v), found.longest, len(v)
    state, X, X_inverse = np.ones(n), np.eye(n), np.eye(n)
    state[:m] = v * m
    X[:m, :m] = S / d[:, None] / d / peak
    X_inverse[:m, :m] = root.times(S) * d[:, None] * d * peak
    return FactorSelection(
        factor=Dense(np.linalg.cholesky(X).T),
        inverse=X_inverse,
        loss=found.best.loss,
        bound=found.bound,
        state=state,
        converged=found.best.loss <= found.bound * (1 + OPTIMALITY_GAP),
    )


def optimum(
    inverse: TridiagonalInverse, v: Floats, rounds: int, gap: float = FINE_GAP
) -> Climb[TridiagonalRoot]:
    """Return the climb from v; O(n) a round. Rounding counts against both figures."""

    def at(v: Floats) -> tuple[Point, TridiagonalRoot]:
        root = inverse.root(v)
        diagonal = root.diagonal()
        trace, lengths = float(diagonal.sum()), diagonal / v
        loss = float(lengths.max()) * trace / (1 - root.error) ** 2
        return Point(v, lengths, loss, (trace * (1 - root.error)) ** 2), root

    return Climb(at, "OPT_0", gap=gap, rounds=rounds).climb(v)


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
    A = array_of(V)
    n = len(A)
    orbits = orbits_of([A]) if n >= LEAST_IN_ORBITS else None
    if orbits is None or len(orbits.sizes) > n // ORBIT_CODES:
        orbits = Orbits(np.ones(n, dtype=np.int64), A[None], np.zeros((1, n)), np.arange(n))
    place, sizes = orbits.place, orbits.sizes.astype(np.float64)
    between = gram_blocks(orbits.levels[0] / np.sqrt(np.outer(sizes, sizes)))
    inside = np.flatnonzero(orbits.inside[0] > 0)  # zero-sum vectors, for every orbit one number
    numbers = (orbits.inside[0] / sizes)[inside, None, None]
    alone = [
        GramBlock(inside[k : k + 1], number, False, sizes[inside[k]] - 1)
        for k, number in enumerate(numbers)
    ]
    at = of_blocks([*between, *alone])
    found = Climb(at, "OPT_0", gap=OPTIMALITY_GAP, rounds=max_iterations)
    found.climb(np.bincount(place, np.ones(n) if start is None else start).astype(np.float64))
    X, beside, peak = np.zeros((len(sizes), len(sizes))), np.zeros(len(sizes)), found.longest
    for block, half in zip(between, found.primal, strict=False):
        X[np.ix_(block.cells, block.cells)] = half.T @ half / peak
    beside[inside] = [half.item() ** 2 / peak for half in found.primal[len(between) :]]
    X[np.diag_indices(len(X))] -= beside
    X = X[np.ix_(place, place)]
    X[np.diag_indices(n)] += (sizes * beside)[place] + FILLED_DIAGONAL
    root = np.linalg.cholesky(X / (1 + FILLED_DIAGONAL)).T
    inverse = np.triu(lapack.dpotri(root)[0])
    inverse += np.triu(inverse, 1).T
    loss = float(np.sum(inverse * A))
    return FactorSelection(
        factor=Dense(root),
        inverse=inverse,
        loss=loss,
        bound=found.bound,
        state=(found.best.weights / sizes)[place] * n,
        converged=loss <= found.bound * (1 + OPTIMALITY_GAP),
    )


MOVES_ROUNDS = 150
MOVES_GAP = 8e-4  # the proven optimality gap at which the climb stops
MOST_MOVED = 128  # classes: weights of 8,128 moves, and two decompositions a round
MOVES_FLOOR = 1e-4  # least eigenvalue relative to the mean: keeps X invertible where V is not


def moves_optimum(V: Floats, change: RecordChange, *, rounds: int = MOVES_ROUNDS) -> Optimum:
    """Return the best strategy that was found for the Gram of an attribute, n classes.

    Where records never leave, the total is the same for all neighbours: all is in the space of sum
    zero, where the rows have rank n - 1, and the total is free.
    """
    n, leaves = len(V), change == "moves"
    E = np.eye(n) if leaves else np.linalg.svd(np.ones((1, n)))[2][1:].T
    U = E.T @ ((V + V.T) / 2) @ E
    pairs = np.triu_indices(n, 1)
    count = len(pairs[0])

    def at(weights: Floats) -> tuple[Point, Floats]:
        S = np.zeros((n, n))
        S[pairs] = -weights[:count]
        S += S.T
        S[np.diag_indices(n)] = (weights[count:] if leaves else 0.0) - S.sum(axis=1)
        s, Q = eigh(E.T @ S @ E)
        root, inverse_root = (Q * np.sqrt(s)) @ Q.T, (Q / np.sqrt(s)) @ Q.T
        w, P = eigh(root @ U @ root)
        w = above_rounding(w)
        values = np.maximum(np.sqrt(w), MOVES_FLOOR * float(np.sqrt(w).mean()))
        half = np.sqrt(values)[:, None] * (P.T @ inverse_root @ E.T)  # X = half'half
        X = half.T @ half
        lengths = np.diagonal(X)[pairs[0]] + np.diagonal(X)[pairs[1]] - 2 * X[pairs]
        if leaves:
            lengths = np.concatenate([lengths, np.diagonal(X)])
        longest, bound = float(lengths.max()), float(np.sqrt(w).sum()) ** 2 * (1 - 1e-9)
        loss = longest * float((w / values).sum())
        return Point(weights, lengths, loss, bound), half / np.sqrt(longest)

    found = Climb(at, "moves", gap=MOVES_GAP, rounds=rounds)
    found.climb(np.ones(count + n * leaves))
    return Optimum(found.primal, found.best.loss, found.bound)


BUDGETS_ROUNDS = 500
BUDGETS_GAP = 1e-5  # relative gap at which the climb stops
LEAST_ERROR = 1e-12  # of the largest: a measurement of no error is still measured


@dataclass(frozen=True, eq=False)
class MoveBudgets:
    """The best squared weights that were found."""

    # w_b, (blocks,): no move is longer than 1. What no move changes has weight 0 here
    weights: Floats
    loss: float  # the sum of S_b / w_b over what moves change
    bound: float  # no weights have a smaller one


def move_budgets(errors: Floats, lengths: Floats) -> MoveBudgets:
    """Return the best budgets. errors: S, (blocks,), at least 0. lengths: Q, (moves, blocks).

    Measurement b at weight^2 w_b errs by S_b / w_b, and a move m of a record moves it by a squared
    length of w_b Q_mb. The least sum of S_b / w_b with sum_b w_b Q_mb <= 1 for all moves has the
    dual (sum_b sqrt(S_b (u'Q)_b))^2 over weights u of the moves, at w_b = sqrt(S_b / (u'Q)_b),
    scaled ([MATH] 13.3).
    """
    moved = lengths.max(axis=0) > 0
    S, Q = np.maximum(errors[moved], 0.0), lengths[:, moved]
    weights = np.zeros(len(errors))
    if not S.any():
        weights[moved] = 1 / np.maximum(Q.sum(axis=1).max(), 1e-300)
        return MoveBudgets(weights, 0.0, 0.0)
    S_floored = np.maximum(S, LEAST_ERROR * float(S.max()))

    def at(u: Floats) -> tuple[Point, Floats]:
        costs = u @ Q
        w = np.sqrt(S_floored / np.maximum(costs, 1e-300))
        reached = Q @ w
        longest = float(reached.max())
        bound = float(np.sqrt(S * costs).sum()) ** 2 * (1 - 1e-9)
        loss = longest * float((S / w).sum())
        return Point(u, reached / longest, loss, bound), w / longest

    found = Climb(at, "budgets", gap=BUDGETS_GAP, rounds=BUDGETS_ROUNDS)
    with reporting(None):  # a round costs next to nothing, and no clock is asked
        found.climb(np.ones(len(Q)))
    weights[moved] = found.primal
    return MoveBudgets(weights, found.best.loss, found.bound)
