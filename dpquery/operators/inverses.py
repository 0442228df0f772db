"""One attribute's factor solved: its least squares, and the inverse of its Gram for variances.

The inverse is an array, a diagonal less a few rows, or goes by ranges of codes. That of a
p-Identity is diag(d)^-2 less a matrix of rank p (Woodbury), so its traces and quadratic forms with
n classes need p rows of n numbers and no (n, n) array.
"""

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lapack, solve_triangular

from dpquery.arrays import Floats, Numbers
from dpquery.operators.factors import Dense, Factor, Groups, Ones, Stacked
from dpquery.operators.gram import Matrix, Mixture, Structured, diagonal, times, trace_with
from dpquery.operators.p_identity import BlockInverse, BlockPIdentity, PIdentity
from dpquery.operators.ranges import OrderedInverse
from dpquery.operators.trees import Hierarchy, Tree, TreeInverse

INVERSE_RESIDUAL = 1e-3  # of a Gram times its inverse, off the identity, on a few vectors


@dataclass(frozen=True, eq=False)
class DiagonalLessRows:
    """The symmetric matrix diag(diagonal) - rows' rows. diagonal: (n,), rows: (p, n)."""

    diagonal: Floats
    rows: Floats

    def matmat(self, X: Numbers) -> Floats:
        """Return its product with X: (n, k). O(p n k)."""
        return np.asarray(self.diagonal[:, None] * X - self.rows.T @ (self.rows @ X))

    def array(self) -> Floats:
        """Return it written out: (n, n)."""
        return np.asarray(np.diag(self.diagonal) - self.rows.T @ self.rows)


Inverse = Floats | DiagonalLessRows | OrderedInverse


def inverse_array(M: Inverse) -> Floats:
    """Return M written out: (n, n)."""
    return M.array() if isinstance(M, DiagonalLessRows | OrderedInverse) else M


def inverse_times(M: Inverse, X: Numbers) -> Floats:
    """Return M X. X: (n, k)."""
    return M.matmat(X) if isinstance(M, DiagonalLessRows | OrderedInverse) else np.asarray(M @ X)


def positive_inverse(M: Floats) -> Floats:
    """Return the inverse of a positive definite matrix, exactly symmetric. M: (n, n).

    Raises:
        LinAlgError: it is not positive definite.
    """
    root, failed = lapack.dpotrf(M, lower=True)
    lower, failed_too = lapack.dpotri(root, lower=True, overwrite_c=True)
    if failed or failed_too:
        raise np.linalg.LinAlgError("a matrix is not positive definite")
    inverse = np.asarray(lower + lower.T)  # above the diagonal `lower` is zero
    np.fill_diagonal(inverse, np.diagonal(lower))
    return inverse


def p_identity_inverse(factor: PIdentity) -> DiagonalLessRows:
    """Return (A'A)^-1 of a p-Identity by Woodbury's formula. O(p^2 n)."""
    d = factor.diagonal.astype(np.float64)
    C = factor.rows / d
    root = np.linalg.cholesky(np.eye(len(C)) + C @ C.T)
    return DiagonalLessRows(d**-2.0, np.linalg.solve(root, C) / d)


def least_squares(factor: Factor) -> Callable[[Floats], Floats]:
    """Return what solves a factor of full column rank: answers (m, k) -> counts A^+ y (n, k).

    No Gram is formed, and counts that fit the answers exactly come back as they are. For a
    p-Identity [diag(d); B], with C = B diag(d)^-1, they are w / d with
        w = y_1 + C' (I + C C')^-1 (y_2 - C y_1).
    """
    if isinstance(factor, Hierarchy | Tree | BlockPIdentity):
        return factor.recover
    if isinstance(factor, PIdentity):
        n, d = factor.shape[1], factor.diagonal.astype(np.float64)
        C = factor.rows / d
        root = cho_factor(np.eye(len(C)) + C @ C.T)

        def recover(answers: Floats) -> Floats:
            above, below = answers[:n], answers[n:]
            return np.asarray((above + C.T @ cho_solve(root, below - C @ above)) / d[:, None])

        return recover
    scale, (Q, R) = float(factor.max_abs), _orthogonal(factor)
    if Q is None:
        return lambda answers: np.asarray(solve_triangular(R, answers) / scale)
    return lambda answers: np.asarray(solve_triangular(R, Q.T @ answers) / scale)


def inverse_gram(factor: Factor) -> Inverse:
    """Return (A'A)^-1 of a factor of full column rank. (n, n).

    Raises:
        LinAlgError: it has not that rank, or is too ill-conditioned for floats.
    """
    if isinstance(factor, Hierarchy | Tree):
        return factor.tree  # sums of positive numbers: nothing cancels
    M: Inverse
    match factor:
        case PIdentity():
            M = p_identity_inverse(factor)
        case BlockPIdentity():
            M = factor.inverse
        case _:
            # R^-1 R'^-1 with A = Q R: the Gram itself is never formed
            root, singular = lapack.dtrtri(_orthogonal(factor)[1])
            if singular:
                raise np.linalg.LinAlgError("a factor without full column rank")
            M = np.asarray(root @ root.T / float(factor.max_abs) ** 2)
    probes = np.cos(np.outer(np.arange(factor.shape[1]) + 1.0, (1.0, 2.0, 3.0)))
    back = factor.rmatmat(factor.matmat(inverse_times(M, probes)))
    if not float(np.abs(back - probes).max()) <= INVERSE_RESIDUAL:
        raise np.linalg.LinAlgError("a factor too ill-conditioned for floating-point numbers")
    return M


def _orthogonal(factor: Factor) -> tuple[Floats | None, Floats]:
    """Return Q and R of a factor over its largest entry; no Q where that is triangular itself.

    They are held as long as the factor is: its inverse and its least squares both need them.
    """
    if factor not in _ORTHOGONAL:
        A = factor.dense() / float(factor.max_abs)
        square = A.shape[0] == A.shape[1]
        triangular = square and not np.any(np.tril(A, -1))
        _ORTHOGONAL[factor] = (None, A) if triangular else np.linalg.qr(A)
    return _ORTHOGONAL[factor]


_ORTHOGONAL: WeakKeyDictionary[Factor, tuple[Floats | None, Floats]] = WeakKeyDictionary()


def inverse_trace(M: Inverse, V: Matrix) -> float:
    """Return tr(M V)."""
    if isinstance(M, TreeInverse):
        if not isinstance(V, Mixture | Structured):
            return M.trace_with(V)
        mixture, terms = (V, ()) if isinstance(V, Mixture) else (V.mixture, V.terms)
        total = mixture.a * float(M.variances[0].sum())
        if mixture.b:
            total += mixture.b * float(M.quadratic(Ones(1, M.n))[0])
        return total + sum(weight * float(M.quadratic(factor).sum()) for weight, factor in terms)
    if isinstance(M, BlockInverse):
        return M.trace_with(V)
    if not isinstance(M, DiagonalLessRows):
        return trace_with(inverse_array(M), V)
    return float(M.diagonal @ diagonal(V) - np.sum(M.rows.T * times(V, M.rows.T)))


def quadratic(factor: Factor, M: Inverse) -> Floats:
    """Return diag(F M F') of a query matrix F: (m,)."""
    if isinstance(M, OrderedInverse):
        return M.quadratic(factor)
    if not isinstance(M, DiagonalLessRows):
        return factor.quadratic(M)
    m, n = factor.shape
    if m * len(M.rows) > n * n:  # more work than a cumulative sum of the whole matrix
        return factor.quadratic(M.array())
    if isinstance(factor, Stacked):
        return np.concatenate([quadratic(part, M) for part in factor.parts])
    zero_one = factor.zero_one or isinstance(factor, Groups)
    squares = factor if zero_one else Dense(factor.dense().astype(np.float64) ** 2)
    return np.asarray(squares.matvec(M.diagonal) - factor.row_power_sums(M.rows.T, 2))
