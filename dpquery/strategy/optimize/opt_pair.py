"""Two products solved together, their factors optimised for just that: OPT_+ for Gaussian noise.

With X_i and Y_i the Grams of the two parts, of unit diagonal, the loss is
    tr((a^2 kron X_i + b^2 kron Y_i)^-1 V),  a^2 + b^2 = 1,
where V = sum_j w_j kron V_ij. In the basis that both Grams of an attribute share, W_i'X_iW_i = x_i
and W_i'Y_iW_i = y_i, it is sum_e D_e T_e: D = 1 / (a^2 kron x_i + b^2 kron y_i) and T the diagonal
of W'VW. The gradient with respect to X_i is -a^2 W_i H W_i' with
    H[e, f] = sum_j w_j (W_i'V_ijW_i)[e, f] sum_r D[e, r] D[f, r] prod_{i' != i} x_i'[r] T_i'j[r].
An attribute of which all blocks ask the same is left out: one factor serves both parts best, since
the duals of [MATH] 1 multiply. Interchangeable codes of a large attribute are merged into orbits:
convexity lets X and Y be unmoved by their swaps, so that sums of orbits and one number within each
say all, and T counts that number as often as there are zero-sum vectors.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, eigh

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import outer_product
from dpquery.operators.factors import Dense, Factor, Ones
from dpquery.operators.gram import Gram, array_of
from dpquery.strategy.algebra.joint_system import total_first
from dpquery.strategy.algebra.orbits import LEAST_IN_ORBITS, ReducedAxis, reduced_axis
from dpquery.strategy.optimize.descents import descend

MAX_WORK = 2e9  # multiplications of one evaluation
ALL_WORK = 3e10  # and of all of them
PAIR_ITERATIONS = 200
PAIR_RIDGE = 1e-6  # of the identity mixed into every Gram

Factors = tuple[Factor, ...]


@dataclass(frozen=True, eq=False)
class PairSelection:
    """Two products with real factors of sensitivity 1, and the loss when they are solved together.

    Attributes:
        factors: one for each attribute, of each part.
        shares: a and b.
        loss: sensitivity^2 times error.
        converged: whether L-BFGS met its tolerance.
    """

    factors: tuple[Factors, Factors]
    shares: tuple[float, float]
    loss: float
    converged: bool


def opt_pair(
    gram: Gram,
    factors: tuple[Factors, Factors],
    shares: tuple[float, float],
) -> PairSelection | None:
    """Improve two products by L-BFGS; None where an evaluation takes too long.

    Args:
        gram: Gram of the workload.
        factors: where to start; totals stay totals.
        shares: of the budget, with squares that add to one.
    """
    problem = PairProblem(gram, factors)
    if problem.work > MAX_WORK:
        return None

    def words(value: float) -> str:
        loss = math.exp(value) * problem.aside
        return f"OPT_+ solves two products together: loss {loss:.6g}"

    result = descend(
        problem.loss,
        problem.start(shares),
        words=words,
        max_iterations=int(min(PAIR_ITERATIONS, max(1, ALL_WORK // problem.work))),
    )
    improved, angle = problem.factors_at(result.x), float(result.x[0])
    loss = math.exp(float(result.fun)) * problem.aside
    return PairSelection(improved, (math.cos(angle), math.sin(angle)), loss, bool(result.success))


class PairProblem:
    """log of the loss as a function of the angle of the shares and the roots of all free Grams."""

    def __init__(self, gram: Gram, factors: tuple[Factors, Factors]) -> None:
        self.first, self.shape = factors, gram.shape_of_domain
        self.weights = gram.weights
        self.index: dict[int, Ints] = {}
        self.grams: dict[int, Floats] = {}
        self.axes: dict[int, ReducedAxis] = {}
        self.alike: dict[int, Factor] = {}
        self.aside = 1.0
        for i, n in enumerate(self.shape):
            used, index = np.unique(gram.index[:, i], return_inverse=True)
            matrices = np.stack([array_of(gram.matrices[i][u]) for u in used])
            if len(used) > 1:
                self.index[i] = index.ravel()
                self.axes[i], self.grams[i] = _coordinates(matrices)
            elif n == 1:
                self.aside *= float(matrices[0, 0, 0])
            elif used[0] > 0:
                self.alike[i] = factors[0][i]
                inverse = np.linalg.inv(self.alike[i].gram())
                self.aside *= float(np.sum(inverse * matrices[0]))
        self.free = [
            (k, i) for k in range(2) for i in self.grams if not isinstance(factors[k][i], Ones)
        ]
        cells = math.prod(self._coordinates_of(list(self.grams)))
        self.work = cells * sum(len(grams) * grams.shape[1] for grams in self.grams.values()) + 1

    def start(self, shares: tuple[float, float]) -> Floats:
        """Flatten the shares and the roots of the factors that the search starts from."""
        roots = [
            np.linalg.cholesky(_ridged(self.axes[i].averaged(self.first[k][i].gram()))).T[
                self.axes[i].free
            ]
            for k, i in self.free
        ]
        return np.concatenate([[math.atan2(shares[1], shares[0])], *roots])

    def _roots(self, flat: Floats) -> dict[tuple[int, int], Floats]:
        roots, begin = {}, 1
        for k, i in self.free:
            free = self.axes[i].free
            end = begin + int(free.sum())
            roots[k, i] = np.zeros(free.shape)
            roots[k, i][free] = flat[begin:end]
            begin = end
        return roots

    def _coordinates_of(self, attributes: Sequence[int]) -> list[int]:
        return [len(self.axes[i].orbit) for i in attributes]

    def factors_at(self, flat: Floats) -> tuple[Factors, Factors]:
        """Return the factors of both parts at a point."""
        roots = self._roots(flat)

        def factor(k: int, i: int) -> Factor:
            if (k, i) in roots:
                return Dense(_factor(self.axes[i], _ridged_root(_unit(roots[k, i], self.axes[i]))))
            return self.alike.get(i, self.first[k][i])

        first, second = (tuple(factor(k, i) for i in range(len(self.shape))) for k in range(2))
        return first, second

    def loss(self, flat: Floats) -> tuple[float, Floats]:
        """Return log loss, without the attributes left out, and its gradient."""
        roots, angle = self._roots(flat), float(flat[0])
        units = {(k, i): _unit(C, self.axes[i]) for (k, i), C in roots.items()}
        squares = (math.cos(angle) ** 2, math.sin(angle) ** 2)
        axes = {i: self._axis(i, units) for i in self.grams}
        x = [outer_product([axes[i].values[k] for i in self.grams]) for k in range(2)]
        seen = squares[0] * x[0] + squares[1] * x[1]
        D = np.divide(1.0, seen, out=np.zeros_like(seen), where=seen > 0)
        T = self._diagonal(axes, np.arange(len(self.weights)), list(self.grams))
        total = float((D * T).sum())
        by_square = [-float((D**2 * T * values).sum()) / total for values in x]
        pieces = [np.array([(by_square[1] - by_square[0]) * math.sin(2 * angle)])]
        grams = {i: self._by_grams(i, axes, D) for i in self.grams}
        for k, i in self.free:
            by_X = -squares[k] / total * grams[i][k]
            by_C = _by_root(roots[k, i], units[k, i], by_X, self.axes[i])
            pieces.append(by_C[self.axes[i].free])
        return math.log(total), np.concatenate(pieces)

    def _axis(self, i: int, units: Mapping[tuple[int, int], Floats]) -> "_Axis":
        X, Y = (_ridged_root(units[k, i]) if (k, i) in units else None for k in range(2))
        basis, values = _shared(X, Y, self.axes[i])
        moved = basis.T @ self.grams[i] @ basis
        return _Axis(basis, values, moved, np.einsum("uee->ue", moved))

    def _diagonal(self, axes: Mapping[int, "_Axis"], terms: Ints, over: Sequence[int]) -> Floats:
        """Return sum_j w_j kron_i diag(W_i'V_ijW_i) over some terms and attributes."""
        half = len(over) // 2
        left, right = (
            _rowwise(len(terms), [axes[i].diagonals[self.index[i][terms]] for i in attributes])
            for attributes in (over[:half], over[half:])
        )
        shape = self._coordinates_of(over)
        return np.asarray((left * self.weights[terms, None]).T @ right).reshape(shape)

    def _by_grams(self, i: int, axes: Mapping[int, "_Axis"], D: Floats) -> list[Floats]:
        """Return W_i H W_i' of both parts."""
        n, place = len(self.axes[i].orbit), list(self.grams).index(i)
        others = [other for other in self.grams if other != i]
        rows = np.moveaxis(D, place, 0).reshape(n, -1)
        beside = [
            outer_product([axes[other].values[k] for other in others]).ravel() for k in range(2)
        ]
        H = [np.zeros((n, n)), np.zeros((n, n))]
        for u, moved in enumerate(axes[i].moved):
            terms = np.nonzero(self.index[i] == u)[0]
            T = self._diagonal(axes, terms, others).ravel()
            for k in range(2):
                H[k] += moved * ((rows * (T * beside[k])) @ rows.T)
        return [axes[i].basis @ inner @ axes[i].basis.T for inner in H]


@dataclass(frozen=True, eq=False)
class _Axis:
    """One attribute in the basis of both Grams: their diagonals, and the workload's Grams."""

    basis: Floats
    values: tuple[Floats, ...]
    moved: Floats
    diagonals: Floats


def _coordinates(matrices: Floats) -> tuple[ReducedAxis, Floats]:
    """Return the coordinates of an attribute and the workload's Grams in them. (k, n, n)."""
    symmetric = (matrices + matrices.transpose(0, 2, 1)) / 2
    n = symmetric.shape[1]
    reduced = reduced_axis(list(symmetric)) if n >= LEAST_IN_ORBITS else None
    if reduced is None:
        return ReducedAxis.of_codes(n), symmetric
    axis, orbits = reduced
    return axis, axis.counted(orbits)


def _factor(axis: ReducedAxis, X: Floats) -> Floats:
    """Return a root of a reduced Gram over the codes: (n, n), where codes are merged symmetric.

    Its entries are then the same for interchangeable codes, and remain so when they are rounded.
    """
    if len(axis.sizes) == len(axis.place):
        return np.asarray(np.linalg.cholesky(X).T)
    values, vectors = np.linalg.eigh(X)
    return axis.expanded((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


def _shared(
    X: Floats | None, Y: Floats | None, axis: ReducedAxis
) -> tuple[Floats, tuple[Floats, Floats]]:
    """Return W and the diagonals of W'XW and W'YW; None is the Gram of the total."""
    r = len(axis.orbit)
    if X is not None and Y is not None:
        # an eigenvector of both blocks of coordinates would mix dimensions that occur as often as
        # others: each block has its own
        m = len(axis.sizes)
        W, x = np.zeros((r, r)), np.empty(r)
        x[:m], W[:m, :m] = eigh(X[:m, :m], Y[:m, :m])
        x[m:] = np.diagonal(X)[m:] / np.diagonal(Y)[m:]
        W[np.arange(m, r), np.arange(m, r)] = 1 / np.sqrt(np.diagonal(Y)[m:])
        return W, (np.maximum(x, 0.0), np.ones(r))
    G = X if X is not None else Y
    m = len(axis.sizes)
    R = np.eye(r) if G is None else cholesky(G)
    W, total = np.zeros((r, r)), np.zeros(r)
    W[:m, :m], total[:m], _ = total_first(R[:m, :m], np.sqrt(axis.sizes))
    W[np.arange(m, r), np.arange(m, r)] = 1 / np.diagonal(R)[m:]
    squares = (np.ones(r), total**2)
    return W, squares if X is not None else (squares[1], squares[0])


def _unit(C: Floats, axis: ReducedAxis) -> Floats:
    """Return C scaled by orbits so that the Gram over the codes has a unit diagonal."""
    lengths = _by_orbit((C**2).sum(axis=0), axis)
    return np.asarray(C / np.sqrt(lengths))


def _by_orbit(values: Floats, axis: ReducedAxis) -> Floats:
    """Return the mean over an orbit's codes of what its coordinates stand for, at each: (r,)."""
    summed = np.bincount(axis.orbit, values * axis.times, minlength=len(axis.sizes))
    return np.asarray((summed / axis.sizes)[axis.orbit])


def _ridged(X: Floats) -> Floats:
    return np.asarray((1 - PAIR_RIDGE) * X + PAIR_RIDGE * np.eye(len(X)))


def _ridged_root(B: Floats) -> Floats:
    return _ridged(B.T @ B)


def _by_root(C: Floats, B: Floats, by_X: Floats, axis: ReducedAxis) -> Floats:
    """Return the gradient with respect to C, of B'B ridged, B the columns of C at unit length."""
    by_B = (1 - PAIR_RIDGE) * B @ (by_X + by_X.T)
    along = np.bincount(axis.orbit, (B * by_B).sum(axis=0), minlength=len(axis.sizes))
    inward = B * (axis.times * (along / axis.sizes)[axis.orbit])
    return np.asarray((by_B - inward) / np.sqrt(_by_orbit((C**2).sum(axis=0), axis)))


def _rowwise(rows: int, factors: Sequence[Floats]) -> Floats:
    """Return the Kronecker product of each row of the factors. (rows, n_i) each -> (rows, N)."""
    total = np.ones((rows, 1))
    for factor in factors:
        total = (total[:, :, None] * factor[:, None, :]).reshape(rows, -1)
    return total
