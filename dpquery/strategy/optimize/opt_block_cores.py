"""OPT_R with a core of its own for each block of attributes ([MATH] 6).

Blocks are independent as long as all cores of an attribute have the same null vector z. Given z, a
block over b has the cost times variance
    S_b = sum_j w_j prod_{i in b} tr(H_i V_ij) prod_{i not in b} z_i'V_ij z_i
at cores with columns of L2 norm at most one: linear in the traces of each attribute, so that the
best core of one attribute of one block, the others as they are, is the problem of OPT_0 beside z.
Its fixed point is taken attribute by attribute. Blocks know nothing of each other.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.gram import Gram, array_of, is_mixture, total_sum, trace
from dpquery.progress import time_left
from dpquery.strategy.algebra.eigenvalues import above_rounding
from dpquery.strategy.algebra.subset_sums import BlockSums
from dpquery.strategy.algebra.subsets import Subset

SPREAD_UNITS = 256  # of the largest entry of a null vector in whole numbers
CORE_BITS = (
    22  # of a core's largest entry: whole multiples of its null vector's entries are rounded
)
CORE_GAP = 5e-4  # the proven gap at which a core is settled
CORE_ROUNDS, SWEEPS = 40, 3
CORE_FLOOR = 1e-4  # of the mean eigenvalue: cores keep their rank
LEAST_BLOCK = 1e-4  # of the root sum of all blocks, below which a block keeps the common cores
CORE_GAIN = 1e-4  # of a block's S_b for which it has cores of its own
MAX_BLOCK_CORE = 256  # classes of an attribute
MAX_CORE_SETS = 20_000  # subsets and terms together: each core needs all sums again


@dataclass(frozen=True, eq=False)
class BlockCores:
    """Cores in whole numbers with common null vectors.

    Attributes:
        spreads: attribute -> its null vector, not scaled: (n,).
        cores: attribute -> the core that all blocks have but those with their own: (n - 1, n).
        of_blocks: subset -> attribute -> the block's own core: (n - 1, n).
        loss: sensitivity^2 times error.
    """

    spreads: dict[int, Ints]
    cores: dict[int, Ints]
    of_blocks: dict[Subset, dict[int, Ints]]
    loss: float


def block_cores(gram: Gram, cores: Sequence[Floats | None]) -> BlockCores | None:
    """Return cores for single blocks, given common ones; None where there is nothing to choose.

    Args:
        gram: of the workload.
        cores: real ones of all attributes, (n - 1, n), or None for the centered one.
    """
    axes = {
        i: _Axis.of(core, [array_of(V) for V in matrices])
        for i, (core, matrices) in enumerate(zip(cores, gram.matrices, strict=True))
        if core is not None
        and core.shape[1] <= MAX_BLOCK_CORE
        and sum(not is_mixture(V) for V in matrices) > 0
        and len(matrices) > 2
    }
    if not axes:
        return None
    sums = BlockSums(gram)
    if len(sums.subsets) + len(gram.weights) > MAX_CORE_SETS:
        return None
    search = _Search(gram, sums, axes, cores)
    of_blocks = dict(search.chosen())
    used = {i for by_attribute in of_blocks.values() for i in by_attribute}
    if not used:
        return None
    return BlockCores(
        {i: axes[i].spread for i in used},
        {i: axes[i].whole(axes[i].start) for i in used},
        {
            b: {i: axes[i].whole(C) for i, C in by_attribute.items()}
            for b, by_attribute in of_blocks.items()
        },
        float(search.roots.sum()) ** 2,
    )


@dataclass(frozen=True, eq=False)
class _Axis:
    """An attribute at its null vector: z, a basis B of what sums to zero, and what reads it off.

    A core is known by C, of which X = reader' C reader is the Gram, with diagonal at most one; then
    H = B C^-1 B'.

    Attributes:
        spread: z in whole numbers: (n,).
        reader: E with E B = I and E z = 0: (n - 1, n).
        inside: B'VB of every matrix V of the workload: (k, n - 1, n - 1).
        levels: z'Vz / (1'z)^2: (k,).
        start: C of the common core.
    """

    spread: Ints
    reader: Floats
    inside: Floats
    levels: Floats
    start: Floats

    @classmethod
    def of(cls, core: Floats, matrices: Sequence[Floats]) -> "_Axis":
        """Return an attribute with the null vector of a core, in whole numbers of either sign."""
        n = core.shape[1]
        z = np.linalg.svd(core)[2][-1]
        z = z / z[np.argmax(np.abs(z))] * SPREAD_UNITS
        spread = np.where(z < 0, -1, 1) * np.maximum(np.rint(np.abs(z)), 1).astype(np.int64)
        z = spread / spread.sum()
        B = np.linalg.svd(np.ones((1, n)))[2][1:].T
        reader = B.T - np.outer(B.T @ z, np.ones(n))
        inside = np.stack([B.T @ ((V + V.T) / 2) @ B for V in matrices])
        levels = np.array([z @ V @ z for V in matrices])
        C = B.T @ core.T @ core @ B
        return cls(spread, reader, inside, levels, C / _largest(reader, C))

    def traces(self, C: Floats) -> Floats:
        """Return tr(H V) for every matrix of the workload: (k,)."""
        inverse = np.linalg.inv(C)
        return np.asarray(np.maximum(np.einsum("kij,ij->k", self.inside, inverse), 0.0))

    def best(self, weights: Floats) -> Floats:
        """Return C of the best core for a weighted sum of the matrices."""
        V = np.tensordot(weights, self.inside, axes=1)
        v = np.full(len(self.spread), 1 / len(self.spread))
        least, best = math.inf, self.start
        for _ in range(CORE_ROUNDS):
            root = np.linalg.cholesky((self.reader * v) @ self.reader.T)
            w, U = np.linalg.eigh(root.T @ V @ root)
            values = np.sqrt(above_rounding(w))
            dual = float(values.sum())
            values = np.maximum(values, CORE_FLOOR * float(values.mean()))
            half = np.linalg.solve(root.T, U) * np.sqrt(values)
            lengths = np.asarray(((self.reader.T @ half) ** 2).sum(axis=1))
            loss = float(lengths.max()) * float((above_rounding(w) / values).sum())
            if loss < least:
                least, best = loss, half @ half.T / lengths.max()
            if loss <= dual**2 * (1 + CORE_GAP):
                break
            v = np.maximum(v * lengths, 1e-12)
            v /= v.sum()
        return np.asarray(best)

    def whole(self, C: Floats) -> Ints:
        """Return a core in whole numbers whose null vector is the spread, exactly: (n - 1, n).

        Its rows are combinations of z_(k+1) e_k - z_k e_(k+1).
        """
        core = np.linalg.cholesky(C).T @ self.reader
        core *= (1 << CORE_BITS) / np.abs(core).max()
        z = self.spread.astype(np.float64)
        sums = np.cumsum(core * z, axis=1)[:, :-1] / (z[:-1] * z[1:])
        K = np.rint(sums).astype(np.int64)
        whole = np.zeros(core.shape, dtype=np.int64)
        whole[:, :-1] = K * self.spread[1:]
        whole[:, 1:] -= K * self.spread[:-1]
        return whole


def _largest(reader: Floats, C: Floats) -> float:
    return float((reader * (C @ reader)).sum(axis=0).max())


class _Search:
    """The blocks that gain from cores of their own.

    Attributes:
        roots: of S_b of every subset, so far.
    """

    def __init__(
        self,
        gram: Gram,
        sums: BlockSums,
        axes: Mapping[int, _Axis],
        cores: Sequence[Floats | None],
    ) -> None:
        self.sums, self.axes = sums, axes
        self.slots = {
            i: np.array([sums.slot(i, u, True) for u in range(len(matrices))])
            for i, matrices in enumerate(gram.matrices)
        }
        self.c = np.ones(sums.size)
        for i, (core, matrices) in enumerate(zip(cores, gram.matrices, strict=True)):
            n = gram.shape_of_domain[i]
            if i in axes:
                self.c[self.slots[i] - 1] = axes[i].levels
                self.c[self.slots[i]] = axes[i].traces(axes[i].start)
            elif core is None or n == 1:
                levels = np.array([total_sum(V) for V in matrices]) / n**2
                rests = np.array([trace(V) for V in matrices]) - n * levels
                self.c[self.slots[i] - 1], self.c[self.slots[i]] = levels, (1 - 1 / n) * rests
            else:
                axis = _Axis.of(core, [array_of(V) for V in matrices])
                self.c[self.slots[i] - 1] = axis.levels
                self.c[self.slots[i]] = axis.traces(axis.start)
        self.roots = np.sqrt(np.maximum(sums.sums(self.c), 0.0))

    def chosen(self) -> Iterator[tuple[Subset, dict[int, Floats]]]:
        """Yield blocks with C of the cores of their own, those of most error first."""
        whole = float(self.roots.sum())
        for place in np.argsort(-self.roots).tolist():
            b = self.sums.subsets[place]
            several = [i for i in b if i in self.axes]
            if self.roots[place] < LEAST_BLOCK * whole or not time_left("OPT_R, cores of blocks"):
                return
            if several and (cores := self._of_block(place, several)):
                yield b, cores

    def _of_block(self, place: int, several: Sequence[int]) -> dict[int, Floats]:
        """Return C of the cores of a block, where they gain; and take note of what they reach."""
        unit = np.zeros(len(self.roots))
        unit[place] = 1.0
        c, cores, before = self.c.copy(), {}, float(self.roots[place]) ** 2
        reached = before
        for _ in range(SWEEPS if len(self.sums.subsets[place]) > 1 else 1):
            swept = reached
            for i in several:
                weights = self.sums.gradient(c, unit)[self.slots[i]]
                C = self.axes[i].best(weights)
                traces = self.axes[i].traces(C)
                if float(weights @ traces) < reached * (1 - CORE_GAIN):
                    reached, cores[i] = float(weights @ traces), C
                    c[self.slots[i]] = traces
            if reached > swept * (1 - CORE_GAIN):
                break
        self.roots[place] = math.sqrt(max(reached, 0.0))
        return cores
