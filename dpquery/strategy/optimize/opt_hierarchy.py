"""Hierarchies for ranges: blocks of codes at several sizes, one weight a level.

With blocks of equal size the Grams of all levels commute: their common eigenspaces are what is
constant on the blocks of level l but not on those of level l + 1. There a Gram V has the trace
D_l = T_l - T_{l+1}, T_l the sum over blocks of 1'V1 over their size, and the strategy of weights w
the eigenvalue kappa_l = sum_{k <= l} w_k^2 size_k. The loss on one attribute is
    ||w||^2 sum_l D_l / kappa_l,
a problem of as many unknowns as there are levels; on a union of products it is solved for one
attribute at a time. Where the end of the domain cuts a block off, all blocks of its level are taken
to have the mean size: the weights are then not quite the best. What they give is exact, and decides
between the best few block sizes while the attribute has at most EXACT_LIMIT classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Floats, Numbers
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.factors import Factor
from dpquery.operators.gram import (
    Gram,
    Matrix,
    Mixture,
    Structured,
    array_of,
    classes,
    diagonal,
    is_of_values,
    restricted,
)
from dpquery.operators.ranges import Ranges
from dpquery.operators.trees import tree_of_blocks
from dpquery.progress import report_progress
from dpquery.strategy.optimize.opt_tree import sets_of
from dpquery.strategy.strategy import Noise

HIERARCHY_SWEEPS = 6
HIERARCHY_TOLERANCE = 1e-4  # relative gain of a sweep below which descent has converged
EXACT_LIMIT = 1024
MAX_DENSE_TREE_CLASSES = 4096  # classes of an attribute whose Gram is written out
MAX_TRACED = 1 << 28  # numbers of all Grams of an attribute, whose traces every chain of levels has
TRACED_AT_ONCE = 1 << 22  # of these numbers
SPAN_CODES, SAMPLES = 128, 4  # codes of a span, and spans looked at closely, of a larger one
LISTED_RANGES = 4  # times the classes: so many are looked at one by one, and no more
FINALISTS = 3  # block sizes beside the binary ones between which exact losses decide
LARGEST_STRIDE = 5  # of the levels that a start weighs, under Laplace noise
LEVEL_TOLERANCE = 1e-8  # relative gain of a step below which level weights are the best
FAINT = 0.05  # weight of the other levels at a start
FAINTEST = 1e-20  # square of a weight, of the largest: such a level is not measured


@dataclass(frozen=True)
class Levels:
    """Block sizes of one attribute, finest first, and the weight of each level."""

    sizes: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class HierarchySelection:
    """Levels for each attribute with more queries than its cells, and their loss if known."""

    levels: dict[int, Levels]
    loss: float


def ordered_attributes(gram: Gram) -> list[int]:
    """Return the attributes with other queries than their cells and the total."""
    return [
        i
        for i, (n, matrices) in enumerate(zip(gram.shape_of_domain, gram.matrices, strict=True))
        if n > 1 and not all(is_of_values(V) for V in matrices)
    ]


def tree_sizes(n: int, branching: int) -> tuple[int, ...]:
    """Return the block sizes 1, b, b^2, ... up to the first that holds all n codes.

    >>> tree_sizes(9, 2)
    (1, 2, 4, 8, 16)
    """
    sizes = [1]
    while sizes[-1] < n:
        sizes.append(sizes[-1] * branching)
    return tuple(sizes)


def branchings(n: int) -> list[int]:
    """Return the branchings worth trying: the smallest, and those near a root of n.

    Under Laplace noise few levels are best, and they share the domain evenly. Of more than
    MAX_DENSE_TREE_CLASSES classes only binary trees are tried: they hold those of 4, 8, 16, ...
    """
    if n > MAX_DENSE_TREE_CLASSES:
        return [2]
    roots = [round(n ** (1 / h)) + more for h in (2, 3, 4) for more in (-2, -1, 0, 1, 2, 3)]
    roots += [round(n**0.5 * factor) for factor in (0.25, 0.5, 0.7, 1.4, 2.0)]
    small = range(2, min(n, 12) + 1)
    return sorted({*small, *(b for b in roots if 2 <= b <= n)}) or [2]


def traces_of_all(
    matrices: Sequence[Matrix], chains: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], Floats]:
    """Return the `level_traces` of some matrices of one attribute by chain: (matrices, levels).

    Raises:
        UnsupportedWorkloadError: written out, they would fill the memory.
    """
    n = classes(matrices[0])
    if n <= EXACT_LIMIT and len(matrices) * n**2 > MAX_TRACED:
        raise UnsupportedWorkloadError(
            f"{len(matrices):,} kinds of questions about an attribute of {n:,} classes"
        )
    if n > EXACT_LIMIT:
        return {sizes: np.stack([level_traces(V, sizes) for V in matrices]) for sizes in chains}
    step, traces = max(1, TRACED_AT_ONCE // n**2), list[list[Floats]]()
    for start in range(0, len(matrices), step):
        arrays = np.stack([array_of(V) for V in matrices[start : start + step]])
        traces.append(_block_traces(arrays, chains))
    of_chains = map(np.concatenate, zip(*traces, strict=True))
    return dict(zip(chains, of_chains, strict=True))


def level_traces(V: Matrix, sizes: tuple[int, ...]) -> Floats:
    """Return T_l, the sum over the blocks of each level of 1'V1 over their number of codes.

    Of an attribute of more than MAX_DENSE_TREE_CLASSES classes, whose sizes are powers of two, V is
    known by its products: levels of small blocks are then estimated from a few spans of codes.
    """
    if isinstance(V, Mixture):
        return np.array([V.a * -(-V.n // size) + V.b * V.n for size in sizes])
    if isinstance(V, Structured) and V.n > EXACT_LIMIT:
        matrices = [sets_of(factor) for _, factor in V.terms]
        known = [matrix for matrix in matrices if matrix is not None]
        if len(known) == len(matrices):
            weights = [weight for weight, _ in V.terms]
            return level_traces(V.mixture, sizes) + _set_traces(weights, known, sizes)
    if classes(V) <= MAX_DENSE_TREE_CLASSES:
        return _block_traces(array_of(V), [sizes])[0]
    n, small = classes(V), [size for size in sizes if size < SPAN_CODES]
    spans = tuple(size // SPAN_CODES for size in sizes[len(small) :])
    (coarse,) = _block_traces(_span_sums(V), [spans], n / SPAN_CODES)
    fine = np.zeros(len(small))
    for start in np.linspace(0, n // SPAN_CODES - 1, SAMPLES).astype(int) * SPAN_CODES:
        codes = np.arange(start, start + SPAN_CODES)
        fine += _block_traces(array_of(restricted(V, codes)), [tuple(small)])[0]
    scale = float(diagonal(V).sum()) / fine[0]  # the first level has single codes
    return np.concatenate([fine * scale, coarse / SPAN_CODES])


def _set_traces(
    weights: Sequence[float], sets: Sequence["sp.csr_array"], sizes: tuple[int, ...]
) -> Floats:
    traces = np.zeros(len(sizes))
    for weight, matrix in zip(weights, sets, strict=True):
        m, n = matrix.shape
        rows = np.repeat(np.arange(m), np.diff(matrix.indptr))
        for level, size in enumerate(sizes):
            blocks = -(-n // size)
            place, count = np.unique(rows * blocks + matrix.indices // size, return_counts=True)
            lengths = np.minimum(n - place % blocks * size, size)
            traces[level] += weight * float(np.sum(count**2 / lengths))
    return traces


def _span_sums(V: Matrix) -> Floats:
    """Return 1'V1 between all pairs of spans of SPAN_CODES codes."""
    n = classes(V)
    starts = np.arange(0, n, SPAN_CODES)
    if isinstance(V, Structured):
        return sum((w * _factor_spans(factor) for w, factor in V.terms), _span_sums(V.mixture))
    if isinstance(V, Mixture):
        codes = np.diff(np.append(starts, n)).astype(np.float64)
        return V.a * np.diag(codes) + V.b * np.outer(codes, codes)
    return np.asarray(np.add.reduceat(np.add.reduceat(V, starts, axis=0), starts, axis=1))


def _factor_spans(factor: Factor) -> Floats:
    """Return 1'F'F1 between all pairs of spans: of ranges and sets from those, or by products."""
    m, n = factor.shape
    starts, spans, sums = np.arange(0, n, SPAN_CODES), np.arange(n) // SPAN_CODES, []
    if isinstance(factor, Ranges) and m <= LISTED_RANGES * n:
        return factor.gram_of_spans(SPAN_CODES)
    if (sets := sets_of(factor)) is not None:
        held = sets @ sp.csr_array((np.ones(n), (np.arange(n), spans)), shape=(n, len(starts)))
        return np.asarray((held.T @ held).toarray(), dtype=np.float64)
    for first in range(0, len(starts), SPAN_CODES):
        report_progress(f"OPT_H spans from {first} of {len(starts)}")
        inside = (spans >= first) & (spans < first + SPAN_CODES)
        columns = np.zeros((n, min(SPAN_CODES, len(starts) - first)))
        columns[inside, spans[inside] - first] = 1.0
        sums.append(np.add.reduceat(factor.gram_matmat(columns), starts, axis=0))
    return np.concatenate(sums, axis=1)


def _block_traces(
    V: Floats, chains: Sequence[tuple[int, ...]], n: float | None = None
) -> list[Floats]:
    """Return the `level_traces` of matrices, (..., m, m), by chain; V of n codes is of m spans."""
    m = V.shape[-1]
    upto = np.zeros((*V.shape[:-1], m + 1))  # row by row, sums of all columns before one
    np.cumsum(V, axis=-1, out=upto[..., 1:])
    rows, of_chains = np.arange(m), []
    for sizes in chains:
        traces = []
        for size in sizes:
            first = rows // size * size
            within = upto[..., rows, np.minimum(first + size, m)] - upto[..., rows, first]
            codes = np.minimum((m if n is None else n) - first, size)
            traces.append(np.sum(within / codes, axis=-1))
        of_chains.append(np.stack(traces, axis=-1))
    return of_chains


def best_level_weights(
    T: Floats, sizes: Floats, noise: Noise, previous: Floats | None = None
) -> tuple[Floats, float]:
    """Return the weights that minimise ||w||^2 sum_l D_l / kappa_l, and that loss.

    T are the traces of all levels and sizes their mean block sizes, (levels,). Previous weights are
    continued from, instead of several starts.

    1 / kappa_l is at most the mean of kappa_l / (w_k^2 size_k), k <= l, with the weights that the
    levels have in it now; what minimises that bound lowers the loss, and is a power of
        w_k^4 size_k sum_{l >= k} D_l / kappa_l^2.
    Under Gaussian noise the problem is convex in w^2; under Laplace noise the best of several local
    minima is taken, among them that of equal weights.
    """
    D = np.maximum(T - np.append(T[1:], 0.0), 0.0)
    starts = _starts(len(sizes), noise) if previous is None else previous[None]
    squared, power = starts**2, 1 / 2 if noise == "gaussian" else 2 / 3
    if not D.any():
        return starts[0], 0.0
    least = math.inf
    while True:
        squared = np.maximum(squared / squared.max(axis=1, keepdims=True), FAINTEST)
        kappa = np.cumsum(squared * sizes, axis=1)
        norms = squared.sum(axis=1) if noise == "gaussian" else np.sqrt(squared).sum(axis=1) ** 2
        losses = norms * (D / kappa).sum(axis=1)
        best = int(np.argmin(losses))
        if losses[best] >= least * (1 - LEVEL_TOLERANCE):
            return np.sqrt(squared[best]), float(losses[best])
        least = losses[best]
        after = np.cumsum((D / kappa**2)[:, ::-1], axis=1)[:, ::-1]
        squared = (squared**2 * sizes * after) ** power


def _starts(count: int, noise: Noise) -> Floats:
    """Return weights, a row a start: all levels; under Laplace noise few levels are best.

    There these are also the finest with one or two others, and every second, third, ... level.
    """
    kept: list[Sequence[int]] = [range(count)]
    if noise == "laplace":
        kept += [range(0, count, stride) for stride in range(2, min(LARGEST_STRIDE, count) + 1)]
        kept += [(0, *others) for k in (1, 2) for others in combinations(range(1, count), k)]
    starts = np.full((len(kept), count), FAINT)
    for start, levels in zip(starts, kept, strict=True):
        start[[*levels]] = 1.0
    return starts


def opt_hierarchy(gram: Gram, *, noise: Noise) -> HierarchySelection:
    """Select the branching and the level weights of every ordered attribute by block descent."""
    descent = _Descent(gram, noise)
    loss = math.inf
    for sweep in range(1, HIERARCHY_SWEEPS + 1):
        descent.sweep()
        current = descent.loss()
        report_progress(f"OPT_H sweep {sweep}: loss {current:.6g}")
        if current >= loss * (1 - HIERARCHY_TOLERANCE) or len(descent.tables) == 1:
            break
        loss = current
    return HierarchySelection(descent.levels, descent.loss())


class _Descent:
    """The levels of every ordered attribute, and the traces that they give."""

    def __init__(self, gram: Gram, noise: Noise) -> None:
        self.gram, self.noise = gram, noise
        self.tables: dict[int, dict[tuple[int, ...], Floats]] = {}
        self.traces = gram.traces()
        for i in ordered_attributes(gram):
            n = gram.shape_of_domain[i]
            report_progress(f"OPT_H levels of attribute {i}")
            chains = [tree_sizes(n, b) for b in branchings(n)]
            self.tables[i] = traces_of_all(gram.matrices[i], chains)
        for i, n in enumerate(gram.shape_of_domain):
            if n > 1 and not gram.index[:, i].any():
                self.traces[i] = np.ones(1)  # the total answers itself
        self.levels: dict[int, Levels] = {}
        self.known: dict[tuple[int, tuple[int, ...]], Floats] = {}

    def sweep(self) -> None:
        for i, table in self.tables.items():
            share = self._share(i)
            chains = []
            for sizes, traces in table.items():
                report_progress(f"attribute {i}, blocks of {sizes[1:2]}")
                means = _mean_sizes(self.gram.shape_of_domain[i], sizes)
                weights, loss = best_level_weights(
                    share @ traces, means, self.noise, self.known.get((i, sizes))
                )
                self.known[i, sizes] = weights
                chains.append((loss, sizes, weights))
            binary = chains[:1]  # so that no other search among binary trees is better
            finalists = binary + sorted(chains[1:], key=lambda chain: chain[0])[:FINALISTS]
            tried = [Levels(sizes, tuple(weights.tolist())) for _, sizes, weights in finalists]
            results = [self._traces_of(i, levels) for levels in tried]
            best = int(np.argmin([float(share @ result) for result in results]))
            self.levels[i], self.traces[i] = tried[best], results[best]

    def _share(self, i: int) -> Numbers:
        """Return the weight of every matrix of an attribute, given the traces of the others."""
        factors = self.gram.term_traces(self.traces)
        factors[:, i] = 1.0
        weights = self.gram.weights * factors.prod(axis=1)
        return np.bincount(self.gram.index[:, i], weights, minlength=len(self.gram.matrices[i]))

    def _traces_of(self, i: int, levels: Levels) -> Floats:
        w, n = np.array(levels.weights), self.gram.shape_of_domain[i]
        squared = float(w.sum()) ** 2 if self.noise == "laplace" else float(w @ w)
        if n <= EXACT_LIMIT:
            tree = tree_of_blocks(n, levels.sizes, (w**2).tolist())
            traces = [tree.trace_with(array_of(V)) for V in self.gram.matrices[i]]
            return squared * np.array(traces)
        T = self.tables[i][levels.sizes]
        kappa = np.cumsum(w**2 * _mean_sizes(n, levels.sizes))
        D = T - np.append(T[:, 1:], np.zeros((len(T), 1)), axis=1)
        return np.asarray(squared * (D / kappa).sum(axis=1))

    def loss(self) -> float:
        return float(self.gram.weights @ self.gram.term_traces(self.traces).prod(axis=1))


def _mean_sizes(n: int, sizes: tuple[int, ...]) -> Floats:
    return np.array([n / -(-n // size) for size in sizes])
