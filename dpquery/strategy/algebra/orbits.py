"""Interchangeable codes, and eigenvalues of matrices over them.

Swapping two interchangeable codes of an attribute leaves every matrix as it is. A class of them is
an orbit. A matrix acts on the vectors that are constant on orbits, and as one number on those that
live on a single orbit and sum to zero there ([MATH] 22): an attribute of identity and of groups of
codes counts for as many dimensions as it has orbits. Orbits are proposed by hashing, then checked
exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Bits, Floats, Ints, numbered_by_first
from dpquery.operators.cells import told_apart
from dpquery.operators.factors import IdentityRows
from dpquery.operators.gram import (
    Matrix,
    Mixture,
    Structured,
    array_of,
    classes,
    diagonal,
    inner_type,
    is_mixture,
    restricted,
)
from dpquery.public_chance import public_generator

LEAST_IN_ORBITS, ORBIT_CODES = 192, 4
"""Classes from which on OPT_0 looks for interchangeable ones, and codes that an orbit must have."""
LARGEST_COMPARED = 1 << 24  # entries of an attribute's matrices in which orbits are looked for
MAX_COMPARED_CLASSES = 2048  # of a matrix whose entries are compared, in O(n^2)
MIXER = np.uint64(0x9E3779B97F4A7C15)  # odd, so that integers stay apart; half of its bits are set


@dataclass(frozen=True, eq=False)
class Orbits:
    """The matrices of an attribute with k matrices and m orbits."""

    sizes: Ints  # (m,) codes of each orbit
    levels: Floats  # (k, m, m) the matrices on normalised orbit indicators
    inside: Floats  # (k, m) the number by which they scale zero-sum vectors of an orbit
    place: Ints  # (n,) the orbit of every code


@dataclass(frozen=True, eq=False)
class MergedGram:
    """A matrix summed over orbits: all that vectors which are constant on them see of it."""

    sizes: Floats  # (m,) codes of each orbit
    diagonal: Floats  # (m,) sums of the diagonal
    between: Floats  # (m, m) sums of the entries between orbits, and within each

    @classmethod
    def of(cls, orbits: Orbits) -> "MergedGram":
        """Return the one matrix of some orbits, summed."""
        sizes, level = orbits.sizes.astype(np.float64), orbits.levels[0]
        summed = np.diagonal(level) + (sizes - 1) * orbits.inside[0]
        return cls(sizes, summed, level * np.sqrt(np.outer(sizes, sizes)))

    def restricted(self, orbits: Ints) -> "MergedGram":
        """Return the sums of some orbits."""
        between = self.between[np.ix_(orbits, orbits)]
        return MergedGram(self.sizes[orbits], self.diagonal[orbits], between)


def orbits_of(matrices: Sequence[Matrix]) -> Orbits:
    """Return the orbits of codes that all matrices of an attribute share. O(k n^2)."""
    mixtures = [_mixture(V) for V in matrices if is_mixture(V)]
    if len(mixtures) == len(matrices):
        a, b = np.array([(mixture.a, mixture.b) for mixture in mixtures]).T
        n = mixtures[0].n
        inside = a if n > 1 else np.zeros_like(a)
        place = np.zeros(n, dtype=np.int64)
        return Orbits(np.array([n]), (a + n * b)[:, None, None], inside[:, None], place)
    arrays = np.stack([array_of(V) for V in matrices])
    place = _candidates(arrays)
    reduced = _reduced(arrays, place)
    return reduced or Orbits(
        np.ones(len(place), dtype=np.int64),
        arrays,
        np.zeros((len(arrays), len(place))),
        np.arange(len(place)),
    )


def few_orbits(V: Matrix, most: int) -> Orbits | None:
    """Return the orbits of a matrix; None where more than `most` are found.

    Codes of a structured one that all of its query matrices count alike, but for those of single
    codes, are interchangeable: they are found in O(n). Others are looked for by its entries where
    it is small.
    """
    if isinstance(V, Structured):
        orbits = _counted_alike(V, most)
        if orbits is not None:
            return orbits
    if classes(V) > MAX_COMPARED_CLASSES or len(np.unique(diagonal(V))) > most:
        return None
    orbits = orbits_of([V])
    return orbits if len(orbits.sizes) <= most else None


def _counted_alike(V: Structured, most: int) -> Orbits | None:
    """Return orbits of codes that differ in the diagonal part of a structured matrix alone."""
    alone = np.full(V.n, V.mixture.a)
    together = []
    for weight, factor in V.terms:
        if inner_type(factor) is IdentityRows and np.all(factor.column_norms(1) <= 1):
            alone += weight * factor.column_norms(2)
        else:
            together.append((weight, factor))
    place = numbered_by_first(
        np.stack([told_apart([F for _, F in together], V.n), numbered_by_first(alone)], axis=1)
    )
    sizes, first = np.bincount(place), np.unique(place, return_index=True)[1]
    if len(sizes) > most:
        return None
    rest = Structured(Mixture(V.n, 0.0, V.mixture.b), tuple(together))
    beside = alone[first]
    scales = np.sqrt(np.outer(sizes, sizes))
    levels = array_of(restricted(rest, first)) * scales + np.diag(beside)
    return Orbits(sizes, levels[None], np.where(sizes > 1, beside, 0.0)[None], place)


def _mixture(V: Matrix) -> Mixture:
    if isinstance(V, Mixture):
        return V
    A = array_of(V)
    b = float(A[0, -1]) if len(A) > 1 else 0.0
    return Mixture(len(A), float(A[0, 0]) - b, b)


def _candidates(arrays: Floats) -> Ints:
    """Return an orbit number for each code: the hash of V is unmoved by swaps inside an orbit.

    Each entry counts as an integer made of its bits, modulo 2^64: sums of the entries themselves
    would differ by rounding. Such sums over a row, which no swap of others changes, leave few codes
    to compare with each other.
    """
    n = arrays.shape[1]
    ones_and_x = np.ones((n, 2), dtype=np.uint64)
    ones_and_x[:, 1] = public_generator(0).integers(1, 1 << 62, n).astype(np.uint64)
    hashed = [
        M for V in map(_as_integers, arrays) for M in ((V,) if np.array_equal(V, V.T) else (V, V.T))
    ]
    sums = [M @ ones_and_x for M in hashed]
    pairs = zip(hashed, sums, strict=True)
    alike = np.stack([v for M, s in pairs for v in (M.diagonal(), s[:, 0])])
    first = np.arange(n)
    numbers = numbered_by_first(alike.T)
    order, sizes = np.argsort(numbers, kind="stable"), np.bincount(numbers)
    groups = np.split(order, np.cumsum(sizes)[:-1])
    for codes in [codes for codes, size in zip(groups, sizes, strict=True) if size > 1]:
        x, same = ones_and_x[codes, 1], np.ones((len(codes), len(codes)), dtype=bool)
        for M, by_code in zip(hashed, sums, strict=True):
            inside, s = M[np.ix_(codes, codes)], by_code[codes, 1]
            moved = (inside.diagonal()[:, None] - inside) * np.subtract.outer(x, x)
            same &= (inside == inside.T) & (np.subtract.outer(s, s) == moved)
        np.fill_diagonal(same, val=True)
        first[codes] = codes[same.argmax(axis=1)]
    return np.unique(first, return_inverse=True)[1]


def _as_integers(V: Floats) -> Bits:
    """Return an integer for every entry, the same for equal ones, that all its bits count in."""
    bits = (V + 0.0).view(np.uint64)  # without -0.0, which has other bits than 0.0
    for _ in range(2):  # few bits of a small integer's float are set, and all of them high ones
        bits = (bits ^ (bits >> np.uint64(32))) * MIXER
    return np.asarray(bits ^ (bits >> np.uint64(32)))


def _reduced(arrays: Floats, place: Ints) -> Orbits | None:
    """Return the matrices on the orbits; None where codes of an orbit are not interchangeable."""
    n, m = len(place), int(place.max()) + 1
    sizes = np.bincount(place)
    first, last = np.zeros(m, dtype=np.int64), np.zeros(m, dtype=np.int64)
    last[place], first[place[::-1]] = np.arange(n), np.arange(n)[::-1]
    between = arrays[:, first[:, None], first]
    diagonal, beside = arrays[:, first, first], arrays[:, first, last]
    orbits, codes = np.arange(m), np.arange(n)
    between[:, orbits, orbits] = beside
    again = between[:, place[:, None], place]
    again[:, codes, codes] = diagonal[:, place]
    if not np.array_equal(again, arrays):
        return None
    levels = between * np.sqrt(np.outer(sizes, sizes))
    levels[:, orbits, orbits] = diagonal + (sizes - 1) * beside
    return Orbits(sizes, levels, np.where(sizes > 1, diagonal - beside, 0.0), place)


@dataclass(frozen=True, eq=False)
class OrbitKind:
    """Zero-sum vectors of all orbits on which the matrices are equal up to a scale."""

    scalars: Floats  # (k,) what the matrices are on them, the largest 1 in size
    roots: Floats  # (m,) for each orbit its dimensions times the root of its scale


class WeightedOrbits:
    """The matrices D V D of an attribute, D = diag(v)^(1/2), v constant on orbits, of sum one.

    Attributes:
        e: (m,) the unit vector D 1; the matrix of all ones becomes e e'.
        matrices: (k, m, m) on normalised orbit indicators.
        complement: (m, m - 1) an orthonormal basis beside e.
        kinds: the zero-sum vectors.
    """

    def __init__(self, orbits: Orbits, v: Floats) -> None:
        v = v / float(orbits.sizes @ v)
        self.sizes = orbits.sizes
        self.e = np.sqrt(orbits.sizes * v)
        root = np.sqrt(v)
        self.matrices = orbits.levels * np.outer(root, root)
        self.complement = np.linalg.svd(self.e[None, :])[2][1:].T
        self.kinds = _kinds(orbits, v)


def _kinds(orbits: Orbits, v: Floats) -> list[OrbitKind]:
    kinds: dict[tuple[float, ...], OrbitKind] = {}
    for o, scalars in enumerate(orbits.inside.T):
        scale = float(np.abs(scalars).max())
        if scale == 0.0:
            continue
        kind = kinds.setdefault(
            tuple(scalars / scale), OrbitKind(scalars / scale, np.zeros(len(v)))
        )
        kind.roots[o] = (orbits.sizes[o] - 1) * np.sqrt(scale * v[o])
    return list(kinds.values())


@dataclass(frozen=True, eq=False)
class ReducedAxis:
    """The coordinates of an attribute: indicators of orbits, then zero-sum vectors within them."""

    sizes: Ints  # (m,) codes of each orbit
    place: Ints  # (n,) the orbit of every code

    def indicators(self, level: Floats) -> Floats:
        """Return vectors over the codes, given on normalised indicators of orbits: (n, k)."""
        return np.asarray((level / np.sqrt(self.sizes)[:, None])[self.place])

    def zero_sums(self) -> tuple[Floats, Ints]:
        """Return an orthonormal basis of the zero-sum vectors, and the orbit of each: (n, n - m).

        Helmert's: a code against the mean of those before it in its orbit.
        """
        n, m = len(self.place), len(self.sizes)
        vectors, orbit = np.zeros((n, n - m)), np.repeat(np.arange(m), self.sizes - 1)
        first = 0
        for o in np.flatnonzero(self.sizes > 1):
            codes, size = np.flatnonzero(self.place == o), int(self.sizes[o])
            before = np.arange(1, size)
            block = np.triu(np.ones((size, size - 1)))
            block[before, before - 1] = -before
            vectors[codes, first : first + size - 1] = block / np.sqrt(before * (before + 1.0))
            first += size - 1
        return vectors, orbit


def reduced_axis(arrays: Sequence[Floats]) -> tuple[ReducedAxis, Orbits] | None:
    """Return the coordinates that matrices of an attribute share, and these in orbits.

    None where orbits have fewer than ORBIT_CODES codes on average.
    """
    orbits = orbits_of(arrays)
    if len(orbits.sizes) * ORBIT_CODES > len(orbits.place):
        return None
    return ReducedAxis(orbits.sizes, orbits.place), orbits


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
    h, turned = n // 2, A[:, ::-1]
    if n < 2 or not (np.abs(A - turned[::-1]) <= 1e-13 * np.abs(A)).all():
        return None
    even = A[: n - h, : n - h] + turned[: n - h, : n - h]
    even[h:, :] /= np.sqrt(2)
    even[:, h:] /= np.sqrt(2)
    return even, A[:h, :h] - turned[:h, :h]
