"""OPT_R: cores and totals, for Gaussian noise and any union of products ([MATH] 6).

For every attribute subset b below a table of the workload, kron_{i in b} F_i is measured on the
marginal over b, with noise of its own size. Errors are closed sums over b, and so are the best
budgets: with S_b = p_b v_b, cost times variance of block b, the loss is (sum_b sqrt(S_b))^2. A core
enters through G = F'F + 11'/mu of unit diagonal, mu = 1'G^-1 1, by two numbers a matrix V:
    c_0 = g'Vg / mu^2,  c_1 = (1 - 1/mu) (tr(G^-1 V) - g'Vg / mu),  g = G^-1 1,
and S_b = sum_j w_j prod_{i in b} c_1 prod_{i not in b} c_0. G = I gives the optimum for marginals
(the SVD bound); measuring b = all attributes alone would be OPT_x.

Each block of attributes may have a core of its own. Blocks are independent as long as all cores of
an attribute have the same null vector z. Given z, a block over b has the cost times variance
    S_b = sum_j w_j prod_{i in b} tr(H_i V_ij) prod_{i not in b} z_i'V_ij z_i
at cores with columns of L2 norm at most one: linear in the traces of each attribute, so that the
best core of one attribute of one block, the others as they are, is the problem of OPT_0 beside z,
taken attribute by attribute. Blocks know nothing of each other.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import product
from dpquery.operators.gram import Gram, Matrix, array_of, classes, is_mixture, total_sum, trace
from dpquery.progress import reporting, time_left
from dpquery.public_chance import public_generator
from dpquery.strategy.algebra.orbits import above_rounding
from dpquery.strategy.algebra.subsets import BlockSums, Subset, member_products
from dpquery.strategy.optimize.descents import RIDGE, Moments, UnitRoot, descend, ridged
from dpquery.strategy.optimize.fixed_point import Climb, Point, move_budgets
from dpquery.strategy.optimize.opt_0 import opt_0
from dpquery.strategy.sensitivity import Distances, block_norms
from dpquery.strategy.shapes.splits import Core
from dpquery.strategy.strategy import (
    BITS,
    Noise,
    RecordChange,
    WeightedBlock,
    column_matrices,
    significant,
)

MAX_CORE = 512  # classes of an attribute whose core is optimised; G = I beyond
RESIDUAL_ITERATIONS, STRAIGHT_ITERATIONS = 400, 24
OF_IDENTITY = 0.1  # of the identity, in a start


@dataclass(frozen=True, eq=False)
class ResidualSelection:
    """Real cores, and the loss that they and the best budgets reach."""

    # (n - 1, n) matrix of an optimised core, or None for the centered one
    cores: tuple[Floats | None, ...]
    subsets: tuple[Subset, ...]  # what is measured
    loss: float  # sensitivity^2 times error
    converged: bool  # whether L-BFGS met its tolerance


class ResidualProblem:
    """log of the loss as a function of all cores that are worth optimising."""

    def __init__(self, gram: Gram, *, total_free: bool = False) -> None:
        self.blocks = BlockSums(gram)
        self.paid = np.array([bool(b) or not total_free for b in self.blocks.subsets])
        self.shape = gram.shape_of_domain
        self.base = np.ones(self.blocks.size)
        self.active: list[int] = []
        self.grams: dict[int, Floats] = {}
        for i, (n, matrices) in enumerate(zip(self.shape, gram.matrices, strict=True)):
            if 1 < n <= MAX_CORE and not all(is_mixture(V) for V in matrices):
                stacked = np.stack([array_of(V) for V in matrices])
                self.grams[i] = (stacked + stacked.transpose(0, 2, 1)) / 2
                self.active.append(i)
            outside, inside = self.blocks.places(i)
            self.base[outside], self.base[inside] = _centred(matrices)

    def loss(self, flat: Floats) -> tuple[float, Floats]:
        """Return log loss and its gradient. flat: the square roots C_i of all active cores."""
        roots = {i: UnitRoot(C) for i, C in self.unpack(flat).items()}
        moments = {i: Moments(root.inverse, self.grams[i]) for i, root in roots.items()}
        c = self.base.copy()
        for i, moments_i in moments.items():
            outside, inside = self.blocks.places(i)
            c[outside], c[inside] = moments_i.levels, (1 - 1 / moments_i.mu) * moments_i.rests
        S = np.maximum(self.blocks.sums(c), 0.0) * self.paid
        root = np.sqrt(S)
        total = float(root.sum())
        if total <= 0:
            raise UnsupportedWorkloadError("nothing but the total is asked for, and it is free")
        by_sums = np.divide(1.0, root * total, out=np.zeros_like(root), where=root > 0)
        by_c = self.blocks.gradient(c, by_sums)
        pieces = []
        for i, moments_i in moments.items():
            outside, inside = self.blocks.places(i)
            by_levels, by_residuals = by_c[outside], by_c[inside]
            by_mu = float(by_residuals @ moments_i.rests) / moments_i.mu**2
            by_inverse = moments_i.gradient(by_levels, by_residuals * (1 - 1 / moments_i.mu), by_mu)
            pieces.append(roots[i].gradient(by_inverse).ravel())
        return 2 * math.log(total), np.concatenate(pieces) if pieces else np.zeros(0)

    def unpack(self, flat: Floats) -> dict[int, Floats]:
        """Return the (n_i, n_i) root of each active core."""
        roots, start = {}, 0
        for i in self.active:
            n = self.shape[i]
            roots[i] = flat[start : start + n * n].reshape(n, n)
            start += n * n
        return roots

    def start(self, roots: dict[int, Floats]) -> Floats:
        """Flatten one root an active attribute."""
        return np.concatenate([roots[i].ravel() for i in self.active])


def _centred(matrices: Sequence[Matrix]) -> tuple[Floats, Floats]:
    """Return c_0 and c_1 of every matrix of an attribute under the centered core, G = I."""
    n = classes(matrices[0])
    levels = np.array([total_sum(V) for V in matrices]) / n**2
    return levels, (1 - 1 / n) * (np.array([trace(V) for V in matrices]) - n * levels)


def opt_residual(gram: Gram, *, total_free: bool = False) -> ResidualSelection:
    """Select cores by L-BFGS, from OPT_0's strategies and beside them; keep the better.

    The total is free where records never leave the domain.

    Raises:
        UnsupportedWorkloadError: a table looks at more than MAX_RESIDUAL_ATTRIBUTES attributes.
    """
    problem = ResidualProblem(gram, total_free=total_free)
    value, flat = problem.loss(np.zeros(0))[0] if not problem.active else math.inf, np.zeros(0)
    converged = not problem.active
    for name, start, iterations in _starts(problem):
        result = descend(
            problem.loss, start, words=partial(_words, name), max_iterations=iterations, ftol=1e-7
        )
        if result.fun < value:
            value, flat, converged = float(result.fun), result.x, bool(result.success)
        if not time_left(_words(name, float(result.fun))):
            break
    roots = problem.unpack(flat)
    cores = tuple(
        real_core(roots[i]) if i in roots else None for i in range(len(gram.shape_of_domain))
    )
    return ResidualSelection(cores, problem.blocks.subsets, math.exp(value), converged)


def _words(name: str, value: float) -> str:
    return f"OPT_R from {name}: loss {math.exp(value):.6g}"


def _starts(problem: ResidualProblem) -> Iterator[tuple[str, Floats, int]]:
    """Yield names, starts and how many iterations each is worth.

    OPT_0 is soon at its end or lies in a long valley; a little of the identity lies outside of it.
    """
    if not problem.active:
        return
    rng = public_generator(0)  # OPT_0 under Gaussian noise draws nothing from it
    roots = {
        i: opt_0(problem.grams[i][1:].sum(axis=0), noise="gaussian", rng=rng).factor.dense()
        for i in problem.active
    }
    yield "OPT_0", problem.start(roots), STRAIGHT_ITERATIONS
    beside = {i: C.T @ C + OF_IDENTITY * np.eye(len(C)) for i, C in roots.items()}
    roots = {i: np.linalg.cholesky(G).T for i, G in beside.items()}
    yield "beside OPT_0", problem.start(roots), RESIDUAL_ITERATIONS


def real_core(C: Floats) -> Floats:
    """Return F with F'F = G - 11'/mu and n - 1 rows, from the root of G. (n - 1, n).

    The rows are built in the complement of G^-1 1, so that it is their null vector whatever the
    smaller eigenvalues do.
    """
    G = ridged(C / np.sqrt((C**2).sum(axis=0)))
    g = np.linalg.solve(G, np.ones(len(G)))
    beside = np.linalg.svd(g[None, :])[2][1:]
    w, U = np.linalg.eigh(beside @ (G - 1 / g.sum()) @ beside.T)
    return np.asarray(np.sqrt(np.maximum(w, RIDGE * w.mean()))[:, None] * (U.T @ beside))


def best_weights(
    cores: tuple[Core | None, ...],
    gram: Gram,
    *,
    noise: Noise,
    change: RecordChange = "enters",
    block_cores: Mapping[Subset, Mapping[int, Core]] = MappingProxyType({}),
) -> dict[Subset, int]:
    """Return the integer weight of every subset's block, for integer cores.

    Under Gaussian noise a block of cost p_b and variance v_b takes weight^2 in proportion to
    sqrt(v_b / p_b): then the loss is (sum_b sqrt(p_b v_b))^2, the least there is. Where records
    move under Gaussian noise, `move_budgets` finds the weights. `block_cores` are those that one
    block alone has, for records that enter or leave.
    """
    blocks, power = BlockSums(gram), 1 if noise == "laplace" else 2
    c, costs = np.ones(blocks.size), np.ones(len(cores))
    for i, (core, matrices) in enumerate(zip(cores, gram.matrices, strict=True)):
        if core is not None:
            costs[i] = float(core.factor.column_norms(power).max())
        outside, inside = blocks.places(i)
        of_core = [(total_sum(V), 0.0) if core is None else core.traces(V) for V in matrices]
        c[outside], c[inside] = np.array(of_core).T
    price = member_products(blocks.subsets, costs)
    errors = np.maximum(blocks.sums(c), 0.0)
    places = {b: place for place, b in enumerate(blocks.subsets)}
    for b, of_block in block_cores.items():
        within, norms = c.copy(), costs.copy()
        for i, core in of_block.items():
            norms[i] = float(core.factor.column_norms(power).max())
            within[blocks.places(i)[1]] = [core.traces(V)[1] for V in gram.matrices[i]]
        errors[places[b]] = max(float(blocks.sums(within)[places[b]]), 0.0)
        price[places[b]] = math.prod(float(norms[i]) for i in b)
    if change != "enters" and noise == "gaussian":
        weights = _moved_weights(cores, blocks.subsets, errors, price, change)
    else:
        weights = split_budget(errors, price, noise=noise)
    return dict(zip(blocks.subsets, weights, strict=True))


TOTAL_ERROR = 1e-4  # of all error, left to a total that costs nothing


def _moved_weights(
    cores: tuple[Core | None, ...],
    subsets: Sequence[Subset],
    errors: Floats,
    prices: Floats,
    change: RecordChange,
) -> list[int]:
    """Return the integer weights where records move; the total is free where they never leave."""
    shape = tuple(1 if core is None else core.factor.shape[1] for core in cores)
    factors = [None if core is None else core.factor for core in cores]
    blocks = [
        WeightedBlock(1, product(shape, {i: F for i in b if (F := factors[i]) is not None}))
        for b in subsets
    ]
    norms, distances = block_norms(blocks, "gaussian"), Distances(2)
    leaves = change == "moves"
    columns = column_matrices(blocks)
    lengths = distances.lengths(columns, norms, leaves=leaves)
    if lengths is None:
        bounds = distances.bounds(columns, norms)
        ratios = [bound / norm for bound, norm in zip(bounds, norms, strict=True)]
        lengths = np.maximum(np.array([ratios]), 1.0 if leaves else 0.0)
    budgets = move_budgets(errors * prices, lengths)
    squares = np.where(budgets.weights > 0, budgets.weights / prices, np.inf)
    free = np.isinf(squares)
    least = errors[free].max(initial=0.0) / max(TOTAL_ERROR * budgets.loss, 1e-300)
    paid = squares[~free]
    squares[free] = max(least, float(paid.min(initial=1.0))) if paid.size else 1.0
    weights = np.sqrt(squares)
    scale = float(1 << BITS) / float(weights.min())
    return [significant(float(weight) * scale) for weight in weights]


LEAST_SHARE = 1e-12  # of the largest share: a measurement of next to no weight is still measured


def split_budget(errors: Floats, costs: Floats, *, noise: Noise) -> list[int]:
    """Return the integer weights that minimise sum errors / weight^2 at a fixed total cost.

    Errors are sums of squares at unit noise and weight. Costs are sensitivities under Laplace
    noise, and their squares under Gaussian noise.
    """
    power = 1 if noise == "laplace" else 2
    shares = np.asarray(errors, dtype=np.float64) * costs ** (2 / power)
    shares = np.maximum(shares, LEAST_SHARE * float(shares.max()))
    weights = shares ** (1 / (2 + power)) / costs ** (1 / power)
    scale = float(1 << BITS) / float(weights.min())
    return [significant(float(weight) * scale) for weight in weights]


SPREAD_UNITS = 256  # of the largest entry of a null vector in whole numbers
CORE_BITS = (
    22  # of a core's largest entry: whole multiples of its null vector's entries are rounded
)
CORE_GAP = 2e-4  # the proven gap at which a core is settled
CORE_ROUNDS, SWEEPS = 40, 3
CORE_FLOOR = 1e-4  # of the mean eigenvalue: cores keep their rank
LEAST_BLOCK = 1e-4  # of the root sum of all blocks, below which a block keeps the common cores
CORE_GAIN = 1e-4  # of a block's S_b for which it has cores of its own
MAX_BLOCK_CORE = 256  # classes of an attribute
MAX_CORE_SETS = 20_000  # subsets and terms together: each core needs all sums again


@dataclass(frozen=True, eq=False)
class BlockCores:
    """Cores in whole numbers with common null vectors."""

    spreads: dict[int, Ints]  # attribute -> its null vector, not scaled: (n,)
    # attribute -> the core that all blocks have but those with their own: (n - 1, n)
    cores: dict[int, Ints]
    # subset -> attribute -> the block's own core: (n - 1, n)
    of_blocks: dict[Subset, dict[int, Ints]]
    loss: float  # sensitivity^2 times error


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
    """

    spread: Ints  # z in whole numbers: (n,)
    reader: Floats  # E with E B = I and E z = 0: (n - 1, n)
    inside: Floats  # B'VB of every matrix V of the workload: (k, n - 1, n - 1)
    levels: Floats  # z'Vz / (1'z)^2: (k,)
    start: Floats  # C of the common core

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

    def best(self, weights: Floats, start: Floats, enough: float) -> tuple[Floats, Floats]:
        """Return C of the best core for a weighted sum of the matrices, and its dual weights.

        Args:
            weights: of the matrices.
            start: dual weights to start from.
            enough: a loss below which it is to be; where none can be, the search ends.
        """
        V = np.tensordot(weights, self.inside, axes=1)

        def at(v: Floats) -> tuple[Point, Floats]:
            root = np.linalg.cholesky((self.reader * v) @ self.reader.T)
            w, U = np.linalg.eigh(root.T @ V @ root)
            w = above_rounding(w)
            values = np.maximum(np.sqrt(w), CORE_FLOOR * float(np.sqrt(w).mean()))
            half = np.linalg.solve(root.T, U) * np.sqrt(values)
            lengths = np.asarray(((self.reader.T @ half) ** 2).sum(axis=1))
            loss = float(lengths.max()) * float((w / values).sum())
            bound = float(np.sqrt(w).sum()) ** 2
            return Point(v, lengths, loss, bound), half @ half.T / lengths.max()

        climb = Climb(at, "a core", gap=CORE_GAP, rounds=CORE_ROUNDS, enough=enough)
        with reporting(None):  # one of many: the clock is asked between blocks
            climb.climb(start)
        return climb.primal, climb.best.weights

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
        self, gram: Gram, sums: BlockSums, axes: Mapping[int, _Axis], cores: Sequence[Floats | None]
    ) -> None:
        self.sums, self.axes = sums, axes
        self.duals = {i: np.ones(len(axis.spread)) for i, axis in axes.items()}
        self.c = np.ones(sums.size)
        for i, (core, matrices) in enumerate(zip(cores, gram.matrices, strict=True)):
            outside, inside = sums.places(i)
            if core is None or gram.shape_of_domain[i] == 1:
                self.c[outside], self.c[inside] = _centred(matrices)
                continue
            axis = axes.get(i) or _Axis.of(core, [array_of(V) for V in matrices])
            self.c[outside], self.c[inside] = axis.levels, axis.traces(axis.start)
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
                weights = self.sums.gradient(c, unit)[self.sums.places(i)[1]]
                enough = reached * (1 - CORE_GAIN)
                C, self.duals[i] = self.axes[i].best(weights, self.duals[i], enough)
                traces = self.axes[i].traces(C)
                if float(weights @ traces) < enough:
                    reached, cores[i] = float(weights @ traces), C
                    c[self.sums.places(i)[1]] = traces
            if reached > swept * (1 - CORE_GAIN):
                break
        self.roots[place] = math.sqrt(max(reached, 0.0))
        return cores
