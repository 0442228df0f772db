"""The trace of the square root of a sum of Kronecker products, or a little less.

S = sum_t w_t kron_i S_i(t), where an attribute that a term does not name has e e', e a unit vector.
With e and a basis of its complement for each attribute, S lives on one block of coordinates for
each set b of attributes below some term: those outside b are at e. That space is small where the
terms name few attributes, however many cells there are. Where it is not, the large blocks that one
term alone reaches are eliminated by Schur complements, below.

One term w kron_i S_i reaches the block of all its attributes. In eigenvectors of every S_i beside e
the block is diag(w kron lambda_i), and its coupling to the block of a smaller set a has the entries
w prod_{i in a} lambda_i prod_{i not in a} rho_i, rho_i that of S_i with e: all sums over the block
are products of small arrays. Square roots are replaced by
sums over poles (algebra.roots), each of which needs one inverse.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import outer_product
from dpquery.operators.inverses import positive_inverse
from dpquery.strategy.algebra.orbits import WeightedOrbits
from dpquery.strategy.algebra.roots import POLES, root_nodes
from dpquery.strategy.algebra.subsets import Subset, subsets_of

LEAST_EIGENVALUE = 1e-11  # relative eigenvalue below which a direction is left out


class Eliminated:
    """One block; `add` gathers r(S) on it, pole by pole, and `add_trace` only its trace.

    Attributes:
        attributes: those of its term.
        values: its diagonal as a tensor, one axis an attribute.
        trace: of r(S) on the block so far.
    """

    def __init__(
        self,
        row: Sequence[tuple[int, int]],
        weight: float,
        local: Mapping[tuple[int, int], Floats],
        bases: Mapping[Subset, Floats],
        places: Mapping[Subset, slice],
    ) -> None:
        self.attributes = tuple(i for i, _ in row)
        self.places, self.trace = places, 0.0
        self.orders: dict[str, list[Any]] = {}
        self.vectors, eigenvalues, couplings = [], [], []
        for pair in row:
            w, U = np.linalg.eigh(local[pair][1:, 1:])
            positive = w > LEAST_EIGENVALUE * float(w.max(initial=0.0))
            self.vectors.append(U[:, positive])
            eigenvalues.append(w[positive])
            couplings.append(U[:, positive].T @ local[pair][1:, 0])
        self.below = [a for a in subsets_of(self.attributes) if a != self.attributes]
        self.values = weight * outer_product(eigenvalues)
        self.coupling, self.turn = {}, {}
        for a in self.below:
            inside = [i in a for i in self.attributes]
            axes = zip(inside, eigenvalues, couplings, strict=True)
            self.coupling[a] = weight * outer_product([x if here else y for here, x, y in axes])
            turn = np.ones((1, 1))
            for here, U in zip(inside, self.vectors, strict=True):
                turn = np.kron(turn, U) if here else turn
            self.turn[a] = bases[a].T @ turn
        sizes = [len(w) for w in eigenvalues]
        self.within = [np.zeros((r, r)) for r in sizes]
        self.beside = [np.zeros(r) for r in sizes]

    def subtract(self, core: Floats, tau: float) -> None:
        """Subtract its Schur complement at a pole from the other blocks, in place."""
        for a, b, block in self._sums(1 / (self.values + tau)):
            core[self.places[a], self.places[b]] -= block
            if a != b:
                core[self.places[b], self.places[a]] -= block.T

    def _sums(self, scale: Floats) -> Iterator[tuple[Subset, Subset, Floats]]:
        """Yield coupling' diag(scale) coupling, block by block of one half: it is symmetric."""
        for k, a in enumerate(self.below):
            for b in self.below[k:]:
                fill = self._fill(self.coupling[a] * scale * self.coupling[b], a, b)
                yield a, b, self.turn[a] @ fill @ self.turn[b].T

    def _fill(self, products: Floats, a: Subset, b: Subset) -> Floats:
        """Sum over the block: entry (x, y) has all coordinates x of a and y of b, where they agree.

        What a and b share is on the diagonal.
        """
        letters = self._letters()
        rows, columns = [letters[i] for i in a], [letters[i] for i in b]
        union = rows + [letter for letter in columns if letter not in rows]
        axes = dict(zip(letters.values(), self.values.shape, strict=True))
        fill = np.zeros([1, *(axes[letter] for letter in rows + columns)])
        everything = "".join(letters.values())
        diagonal = np.einsum(f"z{''.join(rows + columns)}->z{''.join(union)}", fill)
        diagonal[...] = np.einsum(f"{everything}->{''.join(union)}", products)
        return fill.reshape(math.prod(axes[x] for x in rows), -1)

    def _letters(self) -> dict[int, str]:
        return {i: chr(ord("a") + k) for k, i in enumerate(self.attributes)}

    def add_trace(self, weight: float, tau: float, core_inverse: Floats) -> None:
        """Add to the trace alone what `add` does: a small part of the work."""
        inverse = 1 / (self.values + tau)
        trace = float((self.values * inverse).sum())
        for a, b, block in self._sums(inverse**2):
            times = tau if a == b else 2 * tau
            trace -= times * float(np.vdot(block, core_inverse[self.places[a], self.places[b]]))
        self.trace += weight * trace

    def add(self, weight: float, tau: float, core_inverse: Floats) -> None:
        """Add the pole c x / (x + tau) of r(S), given (S + tau)^-1 on the other blocks."""
        inverse = 1 / (self.values + tau)
        letters = self._letters()
        X = {a: self.coupling[a] * inverse for a in self.below}
        H = self._turned(core_inverse)
        everything = "".join(letters.values())
        for k, (i, letter) in enumerate(letters.items()):
            primed = {j: x.upper() if j == i else x for j, x in letters.items()}
            diagonal = np.einsum(f"{everything}->{letter}", self.values * inverse)
            within = np.diag(diagonal)
            beside = np.zeros(len(diagonal))
            rest = tuple(j for j in self.attributes if j != i)
            other = "".join(primed.values())
            for place, b in enumerate(self.below):
                second = "".join(primed[j] for j in b)
                for a in self.below[: place + 1]:
                    first = "".join(letters[j] for j in a)
                    sums = f"{everything},{first}{second},{other}->{letter}{letter.upper()}"
                    part = tau * self._contracted(sums, X[a], H[a, b], X[b])
                    within -= part if a == b else part + part.T
                first = "".join(letters[j] for j in rest)
                sums = f"{first}{second},{other}->{letter.upper()}"
                beside += tau * self._contracted(sums, H[rest, b], X[b])
            self.within[k] += weight * within
            self.beside[k] += weight * beside
            self.trace += weight * float(np.trace(within)) if k == 0 else 0.0

    def _contracted(self, sums: str, *arrays: Floats) -> Floats:
        """Return an einsum in an order of contractions that is looked for at the first pole."""
        if sums not in self.orders:
            self.orders[sums] = np.einsum_path(sums, *arrays, optimize="greedy")[0]
        return np.asarray(np.einsum(sums, *arrays, optimize=self.orders[sums]))

    def _turned(self, core_inverse: Floats) -> dict[tuple[Subset, Subset], Floats]:
        sizes = dict(zip(self.attributes, self.values.shape, strict=True))
        blocks = {}
        for a in self.below:
            left = self.turn[a].T @ core_inverse[self.places[a]]
            for b in self.below:
                block = left[:, self.places[b]] @ self.turn[b]
                blocks[a, b] = block.reshape([sizes[i] for i in (*a, *b)])
        return blocks

    def partial(self) -> dict[int, Floats]:
        """Return, for each attribute, the partial trace of r(S) that involves the block."""
        traces = {}
        for i, U, within, beside in zip(
            self.attributes, self.vectors, self.within, self.beside, strict=True
        ):
            T = np.zeros((1 + len(U), 1 + len(U)))
            T[1:, 1:] = U @ within @ U.T
            T[0, 1:] = T[1:, 0] = U @ beside
            traces[i] = T
        return traces


Row = tuple[tuple[int, int], ...]
"""The (attribute, matrix) pairs of a term, by attribute."""
KroneckerSum = dict[Row, float]

DENSE = 1500  # coordinates up to which all are decomposed at once
MAX_ASSEMBLED = 3500  # coordinates of the array that is assembled before it is trimmed
MOST_SUMMED = 1 << 24  # numbers of terms that are added up at once
TINY = float(np.finfo(float).tiny)
LEAST_SINGULAR_VALUE = 1e-13  # relative singular value below which a direction is left out
ROOT_TRACE_SAFETY = 1e-6  # relative; rounding in the elimination is well below
DECOMPOSITION, POLE, SUM = 10.0, 4.0, 5e5  # operations: times n^3, times n^3, of a sum
ROOT_TRACE_OVERHEAD = 2e7  # of the many small steps, in the same unit


@dataclass(frozen=True, eq=False)
class RootTrace:
    """tr(S^(1/2)), and for each attribute named how it divides over the orbits."""

    value: float  # at most the trace
    # attribute -> (m_i,) diagonal of the partial trace of S^(1/2); None where it was to cost no
    # more than the trace
    masses: dict[int, Floats] | None
    cost: float  # floating point operations, roughly


def root_trace(
    terms: KroneckerSum,
    attributes: Sequence[WeightedOrbits],
    budget: float,
    *,
    mass_budget: float = math.inf,
) -> RootTrace | None:
    """Return tr(S^(1/2)) or a little less; None where it costs more than the budget.

    S must be positive semidefinite; its terms need not be. Leaving coordinates out only makes the
    trace smaller. Where it costs more than the budget for masses, they are left out.
    """
    if set(terms) == {()}:
        return RootTrace(math.sqrt(max(terms[()], 0.0)), {}, 0.0)
    common = set.intersection(*(set(row) for row in terms))
    rest: KroneckerSum = {}
    for row, weight in terms.items():
        remaining = tuple(pair for pair in row if pair not in common)
        rest[remaining] = rest.get(remaining, 0.0) + weight
    parts = ((i, *_roots(attributes[i].matrices[u])) for i, u in sorted(common))
    shared = {i: np.asarray(U**2 @ roots) for i, roots, U in parts}
    trace = _Coordinates(rest, attributes).root_trace(budget, mass_budget)
    if trace is None:
        return None
    scale = math.prod(float(diagonal.sum()) for diagonal in shared.values())
    cost = trace.cost + DECOMPOSITION * sum(len(diagonal) ** 3 for diagonal in shared.values())
    if trace.masses is None:
        return RootTrace(scale * trace.value, None, cost)
    masses = {i: diagonal * scale for i, diagonal in trace.masses.items()}
    for i, diagonal in shared.items():
        masses[i] = diagonal * (scale / max(float(diagonal.sum()), TINY) * trace.value)
    return RootTrace(scale * trace.value, masses, cost)


def _roots(S: Floats) -> tuple[Floats, Floats]:
    """Return square roots of the eigenvalues, less what rounding may have added, and vectors."""
    w, U = np.linalg.eigh((S + S.T) / 2)
    least = len(w) * np.finfo(float).eps * float(w.max(initial=0.0))
    return np.sqrt(np.maximum(w - least, 0.0)), U


class _Coordinates:
    """The blocks of coordinates below the terms, and S on them."""

    def __init__(self, terms: KroneckerSum, attributes: Sequence[WeightedOrbits]) -> None:
        self.terms, self.attributes = terms, attributes
        # [e, P] for each attribute named, P a basis of what its matrices reach beside e
        used: dict[int, set[int]] = {}
        for row in terms:
            for i, u in row:
                used.setdefault(i, set()).add(u)
        bases = {}
        for i, numbers in sorted(used.items()):
            Q, stack = attributes[i].complement, attributes[i].matrices[sorted(numbers)]
            reach = Q.T @ np.concatenate([*stack, *stack.transpose(0, 2, 1)], axis=1)
            U, w, _ = np.linalg.svd(reach, full_matrices=False)
            bases[i] = np.column_stack(
                [attributes[i].e, Q @ U[:, w > LEAST_SINGULAR_VALUE * float(w.max(initial=0))]]
            )
        self.bases = bases
        self.ranks = {i: basis.shape[1] - 1 for i, basis in self.bases.items()}
        pairs = {pair for row in terms for pair in row}
        self.local = {
            (i, u): self.bases[i].T @ attributes[i].matrices[u] @ self.bases[i] for i, u in pairs
        }
        below = {b for row in terms for b in subsets_of(tuple(i for i, _ in row))}
        self.sizes = {b: math.prod(self.ranks[i] for i in b) for b in below}
        self.eliminated = self._choose()
        gone = {tuple(i for i, _ in row) for row in self.eliminated}
        self.blocks = sorted(below - gone)
        self.places = _places([self.sizes[b] for b in self.blocks], self.blocks)
        self.size = sum(self.sizes[b] for b in self.blocks)

    def _choose(self) -> list[Row]:
        """Choose large blocks that one term alone reaches, until the others are few enough.

        Such a term is symmetric: its transpose, which S holds too, reaches the same block.
        """
        named = Counter(frozenset(i for i, _ in row) for row in self.terms)
        left, chosen = sum(self.sizes.values()), []
        order = sorted(self.terms, key=lambda row: -self.sizes[tuple(i for i, _ in row)])
        for row in order if left > DENSE else ():
            b = tuple(i for i, _ in row)
            alone = sum(terms for other, terms in named.items() if other.issuperset(b)) == 1
            if left > DENSE and alone and self.sizes[b] > 1 and self.terms[row] > 0:
                chosen.append(row)
                left -= self.sizes[b]
        return chosen

    def root_trace(self, budget: float, mass_budget: float) -> RootTrace | None:
        """Return the trace and its masses over these attributes; None where it is too large."""
        trimming = DECOMPOSITION * sum(float(self.sizes[b]) ** 3 for b in self.blocks)
        if self.size > MAX_ASSEMBLED or trimming > budget:
            return None
        S = self._assemble()
        trimmed = _Trimmed(S, self.blocks, self.places)
        cost = self._cost(trimmed.size)
        if cost > budget:
            return None
        small = trimmed.array(S)
        if self.eliminated and cost > mass_budget:
            return RootTrace(self._eliminated_trace(small, trimmed), None, cost)
        masses = {i: np.zeros(len(basis)) for i, basis in self.bases.items()}
        if self.eliminated:
            # the trace by rational functions, and the root of S on the other blocks
            tops, (weights, taus, slope), whole = self._tops(small, trimmed)
            root, eye = np.zeros_like(small), np.eye(len(small))
            for weight, tau in zip(weights, taus, strict=True):
                inverse = _core_inverse(small, tops, tau)
                root += weight * (eye - tau * inverse)
                for top in tops:
                    top.add(weight, tau, inverse)
            value = float(np.trace(root)) + slope * whole
            for top in tops:
                value += top.trace
                partial = top.partial()
                for i, basis in self.bases.items():
                    if i in partial:
                        masses[i] += np.einsum("op,pq,oq->o", basis, partial[i], basis)
                    else:
                        masses[i] += top.trace * basis[:, 0] ** 2
            value *= 1 - ROOT_TRACE_SAFETY
        else:
            roots, U = _roots(small)
            value, root = float(roots.sum()), (U * roots) @ U.T
        self._add_masses(lambda a, b: trimmed.block(root, a, b), masses)
        return RootTrace(value, masses, cost)

    def _cost(self, n: float) -> float:
        """Return about how many operations it takes, with n coordinates left."""
        if not self.eliminated:
            return DECOMPOSITION * n**3 + ROOT_TRACE_OVERHEAD
        sums = sum(len(row) * 4.0 ** len(row) for row in self.eliminated)
        return POLES * (POLE * n**3 + SUM * sums)

    def _assemble(self) -> Floats:
        S = np.zeros((self.size, self.size))
        whole: dict[Subset, list[Row]] = {}
        for row, weight in self.terms.items():
            named = tuple(i for i, _ in row)
            if row not in self.eliminated:
                whole.setdefault(named, []).append(row)
                continue
            below = [b for b in subsets_of(named) if b != named]
            for a in below:
                for b in below:
                    S[self.places[a], self.places[b]] += self._block(row, weight, a, b)
        for named, rows in whole.items():
            at = self._numbers(named)
            step = max(1, MOST_SUMMED // at.size**2)
            chunks = (rows[k : k + step] for k in range(0, len(rows), step))
            S[at[:, None], at] += sum(map(self._summed, chunks))
        return (S + S.T) / 2

    def _numbers(self, named: Subset) -> Ints:
        """Return where each entry of a term over these attributes stands, in Kronecker order."""
        at = np.zeros([1 + self.ranks[i] for i in named], dtype=np.int64)
        for b in subsets_of(named):
            inside = tuple(slice(1, None) if i in b else slice(0, 1) for i in named)
            place = self.places[b]
            at[inside] = np.arange(place.start, place.stop).reshape(at[inside].shape)
        return at.ravel()

    def _summed(self, rows: Sequence[Row]) -> Floats:
        """Return the sum of terms over the same attributes, in Kronecker order."""
        operands: list[Any] = [np.array([self.terms[row] for row in rows]), [0]]
        for k, pairs in enumerate(zip(*rows, strict=True)):
            operands += [np.array([self.local[pair] for pair in pairs]), [0, 2 * k + 1, 2 * k + 2]]
        ends = 2 * len(rows[0]) + 1
        axes = [*range(1, ends, 2), *range(2, ends, 2)]
        total = np.asarray(np.einsum(*operands, axes, optimize=True))
        return total.reshape(math.isqrt(total.size), -1)

    def _block(self, row: Row, weight: float, a: Subset, b: Subset) -> Floats:
        block = np.full((1, 1), weight)
        for i, u in row:
            rows = slice(1, None) if i in a else slice(0, 1)
            columns = slice(1, None) if i in b else slice(0, 1)
            block = np.kron(block, self.local[i, u][rows, columns])
        return block

    def _tops(
        self, small: Floats, trimmed: "_Trimmed"
    ) -> tuple[list[Eliminated], tuple[Floats, Floats, float], float]:
        """Return the blocks to eliminate, the poles (`root_nodes`) and the trace of S."""
        tops = [
            Eliminated(row, self.terms[row], self.local, trimmed.bases, trimmed.places)
            for row in self.eliminated
        ]
        whole = float(np.trace(small)) + sum(float(top.values.sum()) for top in tops)
        return tops, root_nodes(whole), whole

    def _eliminated_trace(self, small: Floats, trimmed: "_Trimmed") -> float:
        """Return the trace by rational functions, without its masses."""
        tops, (weights, taus, slope), whole = self._tops(small, trimmed)
        value = slope * whole
        for weight, tau in zip(weights, taus, strict=True):
            inverse = _core_inverse(small, tops, tau)
            value += weight * (len(small) - tau * float(np.trace(inverse)))
            for top in tops:
                top.add_trace(weight, tau, inverse)
        return (value + sum(top.trace for top in tops)) * (1 - ROOT_TRACE_SAFETY)

    def _add_masses(
        self, block: Callable[[Subset, Subset], Floats], masses: dict[int, Floats]
    ) -> None:
        for i, basis in self.bases.items():
            r = self.ranks[i]
            T = np.zeros((1 + r, 1 + r))
            for b in self.blocks:
                diagonal_block = block(b, b)
                if i not in b:
                    T[0, 0] += np.trace(diagonal_block)
                    continue
                k = b.index(i)
                before = math.prod(self.ranks[j] for j in b[:k])
                after = math.prod(self.ranks[j] for j in b[k + 1 :])
                shape = (before, r, after)
                T[1:, 1:] += np.einsum("apbaqb->pq", diagonal_block.reshape(*shape, *shape))
                beside = block(b[:k] + b[k + 1 :], b).reshape(before, after, *shape)
                T[0, 1:] += np.einsum("abapb->p", beside)
            T[1:, 0] = T[0, 1:]
            masses[i] += np.einsum("op,pq,oq->o", basis, T, basis)


class _Trimmed:
    """A basis of the range of each diagonal block of S: S is zero beside it."""

    def __init__(self, S: Floats, blocks: list[Subset], places: dict[Subset, slice]) -> None:
        least = len(S) * np.finfo(float).eps * float(np.max(np.diagonal(S), initial=0.0))
        self.blocks, self.whole = blocks, places
        self.bases: dict[Subset, Floats] = {}
        for b in blocks:
            w, U = np.linalg.eigh(S[places[b], places[b]])
            self.bases[b] = U[:, w > least]
        self.places = _places([self.bases[b].shape[1] for b in blocks], blocks)
        self.size = sum(basis.shape[1] for basis in self.bases.values())

    def array(self, S: Floats) -> Floats:
        small = np.zeros((self.size, self.size))
        for a in self.blocks:
            left = self.bases[a].T @ S[self.whole[a]]
            for b in self.blocks:
                small[self.places[a], self.places[b]] = left[:, self.whole[b]] @ self.bases[b]
        return small

    def block(self, small: Floats, a: Subset, b: Subset) -> Floats:
        return self.bases[a] @ small[self.places[a], self.places[b]] @ self.bases[b].T


def _core_inverse(small: Floats, tops: Sequence[Eliminated], tau: float) -> Floats:
    core = small + tau * np.eye(len(small))
    for top in tops:
        top.subtract(core, tau)
    try:
        return positive_inverse(core)
    except np.linalg.LinAlgError:  # by rounding: S is positive semidefinite
        return np.asarray(np.linalg.inv(core))


def _places(sizes: list[int], blocks: list[Subset]) -> dict[Subset, slice]:
    ends = np.cumsum([0, *sizes]).tolist()
    return {b: slice(*ends[k : k + 2]) for k, b in enumerate(blocks)}
