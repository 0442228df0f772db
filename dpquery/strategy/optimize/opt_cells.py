"""OPT_C and OPT_S: the fixed point over classes of cells and over orbits.

The best Gaussian strategy for classes of cells, and a proof of how near to the optimum it is.

min tr(X^-1 V) over diag(X) <= 1 for a Gram V = R'R of rank r. At weights v >= 0 of the classes with
M = R diag(v) R', an (r, r) matrix, the dual is tr(M^(1/2))^2 / sum(v), and the primal point is
X = R' M^(-1/2) R over its largest diagonal entry q ([MATH] 21). The fixed point is v <- v q; its
steps are extrapolated [VR08]. Few questions have small r however many classes there are, and where
V falls apart into blocks, so do R and M.

The best Gaussian strategy for codes that are interchangeable, attribute by attribute (OPT_S).

The problem of opt_cells is convex, so that its optimum may be taken unmoved by swaps of such codes.
V and X then fall apart into components: each attribute is at the sums of its orbits, or at zero-sum
vectors within one orbit of n codes, of which there are n - 1. On a component V is a matrix over the
combinations of orbits of the attributes at their sums, as often as there are zero-sum vectors. v
has one entry for every combination of orbits ([MATH] 22).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_ORBIT_COMPONENTS
from dpquery.operators.cells import BETWEEN, Component
from dpquery.operators.gram import Gram
from dpquery.progress import report_progress
from dpquery.strategy.algebra.orbits import Orbits, above_rounding

CELLS_GAP = 1e-4  # the proven optimality gap at which the fixed point stops
CELLS_ROUNDS = 400
FILLED_DIAGONAL = 5e-5  # added to the diagonal of X, which has rank r, so that it is invertible
SHORTEST_STEP, LONGEST_STEP = 1.0, 30.0  # an extrapolated step, in steps of the fixed point
MOST_EXTRAPOLATED = 12.0  # that the logarithm of a weight is extrapolated
LEAST_CLASS_WEIGHT = 1e-30  # of a class that is extrapolated


@dataclass(frozen=True, eq=False)
class CellsOptimum:
    """A strategy for classes of cells.

    Attributes:
        rows: (n, n) with columns of L2 norm 1 at most.
        loss: tr((rows'rows)^-1 V), or slightly more.
        bound: the largest dual value seen; no strategy has a smaller loss.
    """

    rows: Floats
    loss: float
    bound: float


@dataclass(frozen=True, eq=False)
class _Point:
    """What the dual is at some weights of the classes.

    Attributes:
        weights: v, (n,), of sum 1.
        lengths: diag(R' M^(-1/2) R), (n,).
        trace: tr(M^(1/2)).
    """

    weights: Floats
    lengths: Floats
    trace: float

    @property
    def bound(self) -> float:
        return self.trace**2

    @property
    def loss(self) -> float:
        return float(self.lengths.max()) * self.trace

    @property
    def next_weights(self) -> Floats:
        """One step of the fixed point."""
        return _shares(self.weights * self.lengths)


def cells_optimum(V: Floats, *, enough: float = 0.0) -> CellsOptimum | float:
    """Return the best strategy for a Gram; only a lower bound where that is enough.

    Args:
        V: (n, n), symmetric, positive semidefinite and not zero.
        enough: a lower bound on the loss of any strategy at which the search ends.
    """
    search = FixedPoint.of(V)
    if not search.solve(np.sqrt(np.diagonal(V)), enough=enough):
        return search.bound
    X = np.zeros_like(V)
    for block, of_block in zip(search.blocks, search.primal(), strict=True):
        X[np.ix_(block.cells, block.cells)] = of_block
    X[np.diag_indices(len(X))] += FILLED_DIAGONAL
    rows = np.asarray(np.linalg.cholesky(X / (1 + FILLED_DIAGONAL)).T, dtype=np.float64)
    return CellsOptimum(rows, search.best.loss * (1 + FILLED_DIAGONAL), search.bound)


@dataclass(frozen=True, eq=False)
class GramBlock:
    """A part of a Gram that is by itself, with its root.

    Attributes:
        cells: the classes that it is over: (m,).
        root: R with R'R = V there: (r, m).
        multiplicity: how often it stands in the Gram.
    """

    cells: Ints
    root: Floats
    multiplicity: float = 1.0


def _blocks(V: Floats) -> list[GramBlock]:
    """Return the blocks that a Gram falls apart into."""
    blocks = []
    count, block_of = connected_components(csr_array(V), directed=False)
    for k in range(count):
        cells = np.flatnonzero(block_of == k)
        root = gram_root(V[np.ix_(cells, cells)])
        if len(root):
            blocks.append(GramBlock(cells, root))
    return blocks


class FixedPoint:
    """The blocks of a Gram over some classes, the best point so far, and the best bound."""

    def __init__(self, size: int, blocks: Sequence[GramBlock], name: str = "OPT_C") -> None:
        self.size, self.blocks, self.name = size, blocks, name
        self.rounds, self.bound = 0, 0.0
        self.best = _Point(np.ones(size), np.full(size, np.inf), np.inf)

    @classmethod
    def of(cls, V: Floats) -> "FixedPoint":
        """Return the search for a Gram, by the blocks that it falls apart into."""
        return cls(len(V), _blocks(V))

    def solve(self, start: Floats, *, enough: float) -> bool:
        """Climb from some weights; False once no strategy has a loss below `enough`."""
        point = self.at(_shares(start))
        while self.rounds < CELLS_ROUNDS and not self.is_solved:
            if self.bound >= enough > 0:
                return False
            point = self.extrapolated(point)
        return True

    @property
    def is_solved(self) -> bool:
        """Whether the best point is within CELLS_GAP of the bound."""
        return self.best.loss <= self.bound * (1 + CELLS_GAP)

    def at(self, weights: Floats) -> _Point:
        """Return the point of some weights, and keep it where it is the best."""
        lengths, trace = np.zeros(self.size), 0.0
        for block in self.blocks:
            values, turned = _decomposed(block.root, weights[block.cells])
            entries = (turned * turned / _roots(values)[:, None]).sum(axis=0)
            lengths[block.cells] += block.multiplicity * entries
            trace += block.multiplicity * float(np.sqrt(above_rounding(values)).sum())
        point = _Point(weights, lengths, trace)
        self.rounds, self.bound = self.rounds + 1, max(self.bound, point.bound)
        self.best = point if point.loss < self.best.loss else self.best
        report_progress(
            f"{self.name} round {self.rounds}: loss {self.best.loss:.6g}, at least {self.bound:.6g}"
        )
        return point

    def extrapolated(self, point: _Point) -> _Point:
        """Return a point after two steps of the fixed point, or beyond where that is better."""
        first = self.at(point.next_weights)
        if self.is_solved:
            return first
        logs = [
            np.log(np.maximum(weights, LEAST_CLASS_WEIGHT))
            for weights in (point.weights, first.weights, first.next_weights)
        ]
        step, bend = logs[1] - logs[0], logs[2] - 2 * logs[1] + logs[0]
        scale = np.sqrt(point.weights)
        ratio = _norm(scale * step) / max(_norm(scale * bend), 1e-300)
        ratio = min(max(ratio, SHORTEST_STEP), LONGEST_STEP)
        beyond = logs[0] + 2 * ratio * step + ratio**2 * bend
        beyond = np.clip(beyond, logs[2] - MOST_EXTRAPOLATED, logs[2] + MOST_EXTRAPOLATED)
        reached = self.at(_shares(np.exp(beyond - beyond.max())))
        return reached if reached.trace >= first.trace else self.at(first.next_weights)

    def primal(self) -> list[Floats]:
        """Return X of every block at the best point, over the largest diagonal entry."""
        of_blocks = []
        for block in self.blocks:
            values, turned = _decomposed(block.root, self.best.weights[block.cells])
            X = (turned / _roots(values)[:, None]).T @ turned
            of_blocks.append(np.asarray(X / self.best.lengths.max()))
        return of_blocks


def _decomposed(R: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return the eigenvalues of M, ascending, and R in the basis of its eigenvectors."""
    w, U = np.linalg.eigh((R * weights) @ R.T)
    return w, U.T @ R


def _roots(values: Floats) -> Floats:
    """Return square roots that can be divided by."""
    least = len(values) * np.finfo(float).eps * float(values[-1])
    return np.sqrt(np.maximum(values, max(least, np.finfo(float).tiny)))


def gram_root(V: Floats) -> Floats:
    """Return R with R'R = V, of as many rows as V has rank: (r, n)."""
    w, U = np.linalg.eigh(V)
    w = above_rounding(w)
    return np.asarray(np.sqrt(w[w > 0])[:, None] * U[:, w > 0].T)


def _norm(x: Floats) -> float:
    return float(np.sqrt(x @ x))


def _shares(weights: Floats) -> Floats:
    return np.asarray(weights / weights.sum())


MOST_COMBINATIONS = 1024  # of orbits: a round decomposes a matrix of so many


@dataclass(frozen=True, eq=False)
class OrbitsOptimum:
    """A strategy for interchangeable codes.

    Attributes:
        cores: by component rows (m, m) over sums of orbits, to be measured for every combination of
            codes within orbits, each against the mean of its orbit.
        loss: of the strategy, or slightly more.
        bound: the largest dual value seen; no strategy has a smaller loss.
    """

    cores: dict[Component, Floats]
    loss: float
    bound: float


def orbits_optimum(
    gram: Gram, orbits: Sequence[Orbits], *, enough: float = 0.0
) -> OrbitsOptimum | float:
    """Return the best strategy; only a lower bound where that is enough.

    Args:
        gram: of the workload.
        orbits: of each attribute, those of its matrices.
        enough: a lower bound on the loss of any strategy at which the search ends.

    Raises:
        UnsupportedWorkloadError: combinations of orbits, or components, are too many.
    """
    counts = [len(axis.sizes) for axis in orbits]
    combinations = math.prod(counts)
    if combinations > MOST_COMBINATIONS:
        raise UnsupportedWorkloadError(
            f"{combinations:,} combinations of interchangeable codes; "
            f"the limit is {MOST_COMBINATIONS:,}"
        )
    sizes = _outer([axis.sizes.astype(np.float64) for axis in orbits])
    kept: list[tuple[Component, GramBlock]] = []
    diagonal = np.zeros(combinations)
    for b in components(gram, orbits):
        cells = _cells(counts, b)
        V = component_gram(gram, orbits, b) / np.sqrt(np.outer(sizes[cells], sizes[cells]))
        root = gram_root(V)
        if not len(root):
            continue
        block = GramBlock(cells, root, _multiplicity(orbits, b))
        diagonal[cells] += block.multiplicity * np.diagonal(V)
        kept.append((b, block))
    search = FixedPoint(combinations, [block for _, block in kept], "OPT_S")
    if not search.solve(np.sqrt(diagonal * sizes), enough=enough):
        return search.bound
    cores = {}
    for (b, block), X in zip(kept, search.primal(), strict=True):
        filled = X * np.sqrt(np.outer(sizes[block.cells], sizes[block.cells]))
        filled[np.diag_indices(len(filled))] += FILLED_DIAGONAL
        rows = np.linalg.cholesky(filled / (1 + FILLED_DIAGONAL)).T
        cores[b] = np.asarray(rows / _lengths(orbits, b))
    return OrbitsOptimum(cores, search.best.loss * (1 + FILLED_DIAGONAL), search.bound)


def components(gram: Gram, orbits: Sequence[Orbits]) -> list[Component]:
    """Return the components on which some term of a Gram is not zero.

    Raises:
        UnsupportedWorkloadError: they are too many.
    """
    known: set[Component] = set()
    for index in gram.index:
        choices = [
            [BETWEEN, *np.flatnonzero(axis.inside[u]).tolist()]
            for axis, u in zip(orbits, index, strict=True)
        ]
        if math.prod(map(len, choices)) > MAX_ORBIT_COMPONENTS:
            raise UnsupportedWorkloadError(
                f"more than {MAX_ORBIT_COMPONENTS:,} components of interchangeable codes"
            )
        known.update(product(*choices))
    if len(known) > MAX_ORBIT_COMPONENTS:
        raise UnsupportedWorkloadError(f"{len(known):,} components of interchangeable codes")
    return sorted(known)


def component_gram(gram: Gram, orbits: Sequence[Orbits], b: Component) -> Floats:
    """Return V on a component, on normalised indicators of orbits: (m, m)."""
    size = math.prod(
        len(axis.sizes) for axis, orbit in zip(orbits, b, strict=True) if orbit == BETWEEN
    )
    total = np.zeros((size, size))
    for weight, index in zip(gram.weights, gram.index, strict=True):
        scale, term = float(weight), np.ones((1, 1))
        for axis, u, orbit in zip(orbits, index, b, strict=True):
            if orbit == BETWEEN:
                term = np.kron(term, axis.levels[u])
            else:
                scale *= float(axis.inside[u, orbit])
        if scale:
            total += scale * term
    return (total + total.T) / 2


def _multiplicity(orbits: Sequence[Orbits], b: Component) -> float:
    pairs = zip(orbits, b, strict=True)
    return math.prod(float(axis.sizes[orbit]) - 1 for axis, orbit in pairs if orbit != BETWEEN)


def _cells(counts: Sequence[int], b: Component) -> Ints:
    """Return the combinations of orbits that a component is over: (m,)."""
    numbers = np.arange(math.prod(counts)).reshape(counts)
    part = tuple(slice(None) if orbit == BETWEEN else orbit for orbit in b)
    return np.asarray(numbers[part].ravel())


def _lengths(orbits: Sequence[Orbits], b: Component) -> Floats:
    """Return what a core's columns are divided by where sums and n I - 11' are measured: (m,)."""
    sums = [
        np.sqrt(axis.sizes) if orbit == BETWEEN else axis.sizes[orbit : orbit + 1].astype(float)
        for axis, orbit in zip(orbits, b, strict=True)
    ]
    return _outer(sums)


def _outer(vectors: Sequence[Floats]) -> Floats:
    total = np.ones(1)
    for vector in vectors:
        total = np.multiply.outer(total, vector).ravel()
    return total
