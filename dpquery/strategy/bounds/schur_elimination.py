"""A large block of coordinates, diagonal in its eigenvectors, eliminated by Schur complement.

One term w kron_i S_i reaches the block of all its attributes. In eigenvectors of every S_i beside e
the block is diag(w kron lambda_i), and its coupling to the block of a smaller set a has the entries
w prod_{i in a} lambda_i prod_{i not in a} rho_i, rho_i that of S_i with e: all sums over the block
are products of small arrays. Square roots are replaced by
sums over poles (algebra.root_nodes), each of which needs one inverse.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dpquery.arrays import Floats
from dpquery.operators.tensors import outer_product
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
