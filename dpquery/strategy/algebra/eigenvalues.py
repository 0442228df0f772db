"""Eigenvalues of Grams: cleaned of rounding, and by halves where a Gram allows it."""

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats


def above_rounding(eigenvalues: NDArray[np.floating]) -> Floats:
    """Set to zero what may be rounding alone: the root of 1e-16 would add 1e-8 to a lower bound."""
    least = len(eigenvalues) * np.finfo(float).eps * np.max(eigenvalues, initial=0.0)
    return np.where(eigenvalues > least, eigenvalues, 0.0)


def eigvalsh(A: Floats) -> NDArray[np.floating]:
    """Return the eigenvalues of a symmetric A, in no order. (n,)."""
    halves = _halves(A)
    if halves is None:
        return np.linalg.eigvalsh(A)
    return np.concatenate([np.linalg.eigvalsh(half) for half in halves])


def eigh(A: Floats) -> tuple[Floats, Floats]:
    """Return eigenvalues, in no order, and eigenvectors of a symmetric A. (n,), (n, n)."""
    halves = _halves(A)
    if halves is None:
        return np.linalg.eigh(A)
    (w_even, even), (w_odd, odd) = (np.linalg.eigh(half) for half in halves)
    n, h = len(A), len(w_odd)
    U = np.zeros((n, n))
    U[:h, : n - h], U[:h, n - h :] = even[:h], odd
    U[n - h :] = U[:h][::-1]
    U[n - h :, n - h :] *= -1
    U /= np.sqrt(2)
    U[h : n - h, : n - h] = even[h:]
    return np.concatenate([w_even, w_odd]), U


def _halves(A: Floats) -> tuple[Floats, Floats] | None:
    """Return what A is on even and on odd vectors, if it is the same from both ends.

    Each has half the size, so that both together take a quarter of the work.
    """
    n = len(A)
    if n < 2 or not np.allclose(A, A[::-1, ::-1], rtol=1e-13, atol=0):
        return None
    h, turned = n // 2, A[:, ::-1]
    even = A[: n - h, : n - h] + turned[: n - h, : n - h]
    even[h:, :] /= np.sqrt(2)
    even[:, h:] /= np.sqrt(2)
    return even, A[:h, :h] - turned[:h, :h]
