"""Square roots of Grams in O(n), and as sums over poles.

V^-1 of both holds 2 between two -1 along the diagonal, up to scale and one corner. With
D = diag(v)^(1/2) then (D V D)^(1/2) = K^(-1/2) for the tridiagonal K = D^-1 V^-1 D^-1, and the
quadrature of Hale, Higham and Trefethen (SIAM J. Numer. Anal. 46, 2008) writes that as a sum of a
few inverses (K + s I)^-1 with positive weights. Its error falls like
exp(-pi^2 poles / log(condition)). Relative, and the same in every direction, it is that of one
scalar function: it is measured and carried along.

Rational functions below the square root: sums of a few inverses instead of a decomposition.

    r(x) = sum_k c_k x / (x + tau_k) <= sqrt(x)
is the trapezoid rule for (2/pi) integral_0^oo x / (x + u^2) du in log u.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.linalg import lapack

from dpquery.arrays import Floats
from dpquery.operators.gram import Matrix, Structured, times
from dpquery.operators.ranges import AllRanges, Prefix

QUADRATURE_TOLERANCE = 1e-9  # of the quadrature
MAX_POLES = 100
BATCH_COLUMNS = 64  # written out at a time


@dataclass(frozen=True, eq=False)
class TridiagonalInverse:
    """A Gram V with tridiagonal V^-1 over its first m codes; it is zero on the others."""

    V: Structured  # the Gram
    diagonal: Floats  # (m,) of V^-1
    beside: Floats  # (m - 1,) next to it: none is positive

    @classmethod
    def of(cls, V: Matrix) -> Self | None:
        """Find the structure; None where there is none."""
        if not isinstance(V, Structured) or len(V.terms) != 1 or V.mixture.a or V.mixture.b:
            return None
        weight, factor = V.terms[0]
        if weight <= 0 or not isinstance(factor, Prefix | AllRanges):
            return None
        m = factor.shape[0] if isinstance(factor, Prefix) else factor.length
        if m < 2:
            return None
        main, beside = np.full(m, 2.0), np.full(m - 1, -1.0)
        if isinstance(factor, Prefix):
            main[0] = 1.0
        else:
            weight *= m + 1
        return cls(V, main / weight, beside / weight)

    def root(self, v: Floats) -> "TridiagonalRoot":
        """Return (D V D)^(1/2) over the first m codes, D = diag(v)^(1/2). v: (m,), positive."""
        d = np.sqrt(v)
        main, beside = self.diagonal / v, self.beside / (d[:-1] * d[1:])
        spread = np.zeros((self.V.n, 1))
        spread[: len(d), 0] = d
        # No eigenvalue is above the largest row sum of absolute values, of K and of its inverse.
        least = 1 / float(np.max(d * times(self.V, spread)[: len(d), 0]))
        most = main.copy()
        most[1:] -= beside
        most[:-1] -= beside
        return TridiagonalRoot(main, beside, *quadrature(least, float(np.max(most))))


@dataclass(frozen=True, eq=False)
class TridiagonalRoot:
    """sum_k weights[k] (K + shifts[k])^-1, within a relative error of K^(-1/2)."""

    main: Floats  # (m,) diagonal of K
    beside: Floats  # (m - 1,) next to it
    weights: Floats  # (k,) positive
    shifts: Floats  # (k,) positive
    error: float  # the sum lies between (1 - error) and (1 + error) times K^(-1/2), as matrices do

    def diagonal(self) -> Floats:
        """Return the diagonal of the sum. (m,). O(m) a pole."""
        total = np.zeros(len(self.main))
        for weight, shift in zip(self.weights, self.shifts, strict=True):
            down, up = self._pivots(shift)
            total += weight / (down + up - self.main - shift)
        return total

    def times(self, X: Floats) -> Floats:
        """Return K X. X: (m, k)."""
        out = self.main[:, None] * X
        out[1:] += self.beside[:, None] * X[:-1]
        out[:-1] += self.beside[:, None] * X[1:]
        return np.asarray(out)

    def array(self) -> Floats:
        """Return the sum written out: (m, m). O(m^2) a pole.

        Behind the diagonal the entries of a row of one inverse fall by known ratios. All poles of
        a column are kept, so that columns further on are one product of matrices.
        """
        m = len(self.main)
        S, column = np.empty((m, m)), np.empty((m, len(self.shifts)))
        ratios, corners = self._ratios()
        for start in range(0, m, BATCH_COLUMNS):
            stop = min(start + BATCH_COLUMNS, m)
            falls = np.cumprod(ratios[start:stop], axis=0)
            S[:start, start:stop] = column[:start] @ falls.T
            column[:start] *= falls[-1]
            column[:start][column[:start] < 1e-200] = 0.0  # far below rounding, and slow to carry
            for j in range(start, stop):
                column[start:j] *= ratios[j]
                column[j] = corners[j]
                S[start : j + 1, j] = column[start : j + 1].sum(axis=1)
        upper = np.triu(S)
        upper += np.triu(S, 1).T
        return upper

    def _ratios(self) -> tuple[Floats, Floats]:
        """Return, for every pole, what entry (i, j) is of (i, j - 1), and the weighted diagonal."""
        ratios, corners = (np.zeros((len(self.main), len(self.shifts))) for _ in range(2))
        for k, (weight, shift) in enumerate(zip(self.weights, self.shifts, strict=True)):
            down, up = self._pivots(shift)
            ratios[1:, k] = -self.beside / up[1:]
            corners[:, k] = weight / (down + up - self.main - shift)
        return ratios, corners

    def _pivots(self, shift: float) -> tuple[Floats, Floats]:
        """Return the pivots of K + shift, eliminated downwards and upwards."""
        main = self.main + shift
        down, _, failed_down = lapack.dpttrf(main, self.beside)
        up, _, failed_up = lapack.dpttrf(main[::-1], self.beside[::-1])
        if failed_down or failed_up:
            raise np.linalg.LinAlgError("a tridiagonal matrix is not positive definite")
        return down, up[::-1]


def quadrature(least: float, most: float) -> tuple[Floats, Floats, float]:
    """Return weights, shifts and error of sum_k w_k / (x + s_k) = x^(-1/2) on [least, most].

    The error is relative, twice the largest that is seen on a fine grid.
    """
    grid = np.geomspace(least, most, 2000)
    poles = 8
    while True:
        quarter, sn, cn, dn = _elliptic((np.arange(poles) + 0.5) / poles, least / most)
        weights = 2 * quarter * np.sqrt(least) / (np.pi * poles) * dn / cn**2
        shifts = least * (sn / cn) ** 2
        values = np.sqrt(grid) * (weights / (grid[:, None] + shifts)).sum(axis=1)
        error = 2 * float(np.abs(values - 1).max()) + 1e-12
        if error < QUADRATURE_TOLERANCE or poles >= MAX_POLES:
            return weights, shifts, error
        poles += poles // 2


def _elliptic(shares: Floats, complement: float) -> tuple[float, Floats, Floats, Floats]:
    """Return the quarter period K and sn, cn, dn at those shares of it, for m = 1 - complement.

    By arithmetic-geometric means from the complement itself: 1 - m loses it where it is small.
    """
    a, b, ratios = 1.0, complement**0.5, []
    while a - b > 1e-15 * a:
        a, b, c = (a + b) / 2, (a * b) ** 0.5, (a - b) / 2
        ratios.append(c / a)
    phi = 2.0 ** len(ratios) * np.pi / 2 * shares
    for ratio in reversed(ratios):
        phi = (np.arcsin(ratio * np.sin(phi)) + phi) / 2
    sn, cn = np.sin(phi), np.cos(phi)
    return np.pi / (2 * a), sn, cn, np.sqrt(cn**2 + complement * sn**2)


NODE_STEP = 1.0  # of log u; the rule is then right to 2 exp(-pi^2)
POLE_SPAN = 1e-11  # least pole over the largest eigenvalue: rounding stays far below it
LAST_NODE = 2.0  # of log u: the last at seven times sqrt(whole)
POLES = math.ceil((LAST_NODE - 0.5 * math.log(POLE_SPAN)) / NODE_STEP) + 1


def root_nodes(whole: float, step: float = NODE_STEP) -> tuple[Floats, Floats, float]:
    """Return (c, tau, slope) with sum_k c_k x / (x + tau_k) + slope x <= sqrt(x) for x <= whole.

    The sum over all nodes is sqrt(x) within a factor 1 +- 2 sum_m sech(pi^2 m / step), which c is
    divided by. Nodes below the first are counted at the first, those above the last as if x were
    `whole`: both only make the sum smaller.
    """
    poles = math.ceil((LAST_NODE - 0.5 * math.log(POLE_SPAN)) / step) + 1
    more = math.ceil(60 / step)
    u = np.exp(0.5 * math.log(POLE_SPAN * whole) + step * np.arange(poles + more))
    excess = 1 + 2 * sum(1 / math.cosh(math.pi**2 * m / step) for m in range(1, 9))
    c = (2 / math.pi) * step * u / excess
    c[0] /= 1 - math.exp(-step)
    slope = float((c[poles:] / (whole + u[poles:] ** 2)).sum())
    return c[:poles], u[:poles] ** 2, slope
