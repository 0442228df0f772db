"""Dense twins: strategies, trees and laws of noise, written out as matrices and sums."""

import math
from fractions import Fraction
from functools import reduce
from itertools import combinations, product

import numpy as np
import scipy.sparse as sp
from scipy.stats import chi2, norm

from dpquery.measurement import gdp
from dpquery.measurement.accounting import Guarantee
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.blocks import product as block_product
from dpquery.operators.cells import (
    BETWEEN,
    CellClassBlock,
    OrbitAxis,
    OrbitRows,
    QueryBasis,
    block_over_codes,
    cell_classes,
    queries_of_classes,
)
from dpquery.operators.factors import Dense, Groups, Identity, Ones, Stacked, Valued, total
from dpquery.operators.gram import Mixture, Structured
from dpquery.operators.p_identity import BlockPIdentity, PIdentity
from dpquery.operators.ranges import AllRanges, ListedRanges, Prefix, WidthRanges
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.optimize.fixed_point import independent
from dpquery.strategy.shapes.cells import CellClassesStrategy, OrbitsStrategy
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import CoarserStrategy, UnionStrategy
from dpquery.strategy.shapes.splits import CenteredCore, DenseCore

# Slow dense twins and small random cases, shared by the tests of operators and strategy.

_SHAPE = (5, 4, 3)
MIXED = Workload(
    _SHAPE,
    (
        block_product(_SHAPE, {0: Prefix(5), 1: Identity(4)}),
        block_product(_SHAPE, {1: Prefix(4), 2: Identity(3)}),
        block_product(_SHAPE, {0: AllRanges(5)}),
    ),
    (1.0, 2.0, 0.5),
)
"""Overlapping tables with prefixes and ranges: what neither products nor cells serve best."""


def indicator_rows(n, sets):
    """The 0/1 matrix of listed sets of codes, one loop a row."""
    return np.array([[int(code in members) for code in range(n)] for members in sets]).reshape(
        -1, n
    )


def interval_rows(n, bounds):
    return indicator_rows(n, [range(first, last + 1) for first, last in bounds])


def dense_block(block):
    """The matrix of a block from its definition, in numbers of numpy."""
    return np.array(exact_block(block).tolist()).reshape(block.shape)


def exact_block(block):
    """The same as Python ints: count the predicates that each cell satisfies."""
    if isinstance(block, CellClassBlock):
        return exact_block(block.inner)[:, classes_of_cells(block.classes)]
    matrices = [factor.dense().astype(object) for factor in block.factors]  # Python ints: no wrap
    rows = []
    for row in product(*(range(m) for m in block.row_shape)):
        cells = []
        for cell in product(*(range(n) for n in block.shape_of_domain)):
            hits = [M[j, cell[i]] for M, j, i in zip(matrices, row, block.attributes, strict=True)]
            if block.is_product:
                cells.append(math.prod(hits))
            else:
                pairs = list(zip(hits, block.counted, strict=True))
                enough = sum(hit for hit, counted in pairs if counted) >= block.at_least
                cells.append(int(enough and all(hit for hit, counted in pairs if not counted)))
        rows.append(cells)
    return np.array(rows, dtype=object).reshape(-1, math.prod(block.shape_of_domain))


def classes_of_cells(classes):
    """The class of every cell of the domain, one loop a cell."""
    shape, attributes = classes.shape_of_domain, classes.attributes
    codes = []
    for cell in product(*(range(n) for n in shape)):
        place = 0
        for i in attributes:
            place = place * shape[i] + cell[i]
        codes.append(int(classes.codes[place]))
    return codes


def dense_workload(workload):
    """(W, w): all rows and the weight of each."""
    W = np.vstack([dense_block(block) for block in workload.blocks])
    sizes = [block.shape[0] for block in workload.blocks]
    return W, np.repeat(workload.weights, sizes)


def dense_gram(workload):
    W, w = dense_workload(workload)
    return W.T @ (w[:, None] * W)


def kron(matrices):
    return reduce(np.kron, matrices, np.eye(1))


def sensitivity_of(A, noise):
    return np.abs(A).sum(axis=0).max() if noise == "laplace" else np.linalg.norm(A, axis=0).max()


def rng(seed=0):
    return np.random.default_rng(seed)


def dense_strategy(measurements):
    """The measured queries as an object array of exact Python ints."""
    return np.vstack([m.weight * exact_block(m.block) for m in measurements])


def is_of_parts(strategy):
    """Whether each part of a union answers alone."""
    return isinstance(strategy, UnionStrategy) and strategy.joint is None


def coefficients(strategy, W, position=None, part=None):
    """C with answers C y by least squares: W (A'A)^+ A'; by one part where parts answer alone."""
    measurements = strategy.measurements
    if is_of_parts(strategy):
        k = strategy.served[position][0] if part is None else part
        start = sum(len(before.measurements) for before in strategy.parts[:k])
        measurements = measurements[start : start + len(strategy.parts[k].measurements)]
    A = dense_strategy(measurements).astype(float)
    return W @ np.linalg.pinv(A / np.abs(A).max(), rcond=1e-10) / np.abs(A).max()


def weights_of_noise(strategy, block, position=None):
    """C of the answers C y, one unit vector of noise at a time."""
    sizes = [measurement.block.shape[0] for measurement in strategy.measurements]
    columns = []
    for unit in np.eye(sum(sizes)):
        noisy = np.split(unit, np.cumsum(sizes)[:-1])
        columns.append(reconstruct(strategy, noisy).answer(block, position).ravel())
    return np.array(columns).T


def random_factor(rng, n):
    """One of every kind of factor that a spec can ask for."""
    first = int(rng.integers(n))
    last = int(rng.integers(first, n))
    kinds = [
        Identity(n),
        total(n),
        Prefix(n),
        AllRanges(n),
        WidthRanges(n, int(rng.integers(1, n + 1))),
        ListedRanges(n, [(first, last)]),
        Groups.of(((first,), tuple(range(0, n, 2))), n),
        Stacked((Identity(n), total(n))),
    ]
    return kinds[rng.integers(len(kinds))]


def random_block(rng, shape, *, most=3):
    count = int(rng.integers(0, min(most, len(shape)) + 1))
    attributes = tuple(sorted(rng.choice(len(shape), count, replace=False).tolist()))
    counted = [bool(v) for v in rng.integers(2, size=count)]
    r = int(rng.integers(1, sum(counted) + 1)) if any(counted) else 0
    factors = tuple(random_factor(rng, shape[i]) for i in attributes)
    if count and r == sum(counted) and rng.random() < 0.25:  # a sum
        values = np.concatenate(
            [[int(rng.integers(1, 30))], rng.integers(-9, 30, factors[0].shape[1] - 1)]
        )
        factors = (Valued(factors[0], values), *factors[1:])
    return Block(shape, attributes, factors, tuple(counted), r)


def random_workload(rng, *, attributes=4, size=4, blocks=4):
    shape = tuple(rng.integers(1, size + 1, int(rng.integers(1, attributes + 1))).tolist())
    drawn = tuple(random_block(rng, shape) for _ in range(int(rng.integers(1, blocks + 1))))
    weights = tuple(float(v) for v in rng.choice([0.01, 1.0, 1.0, 30.0], len(drawn)))
    return Workload(shape, drawn, weights)


def random_measured_factor(rng, n):
    """An integer factor of full column rank, of every kind that a strategy may hold."""
    rows = rng.integers(0, 300, (2, n))
    triangle = np.triu(rng.integers(-90, 90, (n, n)), 1) + 100 * np.eye(n, dtype=np.int64)
    weights = rng.integers(1, 90, 3).tolist()
    kinds = [
        Identity(n),
        PIdentity(rng.integers(1, 400, n), rows[:n]),  # a plan holds no more rows than classes
        Dense(triangle),
        random_block_p_identity(rng, n),
        Hierarchy(n, (1, 2, 4)[: 1 + (n > 1) + (n > 2)], weights[: 1 + (n > 1) + (n > 2)]),
        Tree([rng.permutation(n) % 2 if n > 1 else [0]], [weights[0] + np.arange(n), [4, 0][:n]]),
    ]
    return kinds[rng.integers(len(kinds))]


def random_block_p_identity(rng, n):
    """With a block for all codes, one for each, or a last one that is cut off."""
    size = int(rng.integers(1, n + 1))
    inner = rng.integers(0, 300, (min(2, size), n))
    outer = rng.integers(0, 300, (1, -(-n // size)))
    return BlockPIdentity(rng.integers(1, 400, n), inner, outer, size)


def random_core(rng, n):
    """None for one class, else the centered core or any rows independent of the total."""
    if n == 1:
        return None
    if rng.random() < 0.4:
        return CenteredCore(n)
    while True:
        matrix = rng.integers(-4, 5, (n - 1, n))
        if np.linalg.cond(np.vstack([matrix, np.ones(n)])) < 50:
            return DenseCore(matrix)


def random_strategies(rng, shape, noise):
    """One strategy of each shape with the blocks it supports: (strategy, workload) pairs."""
    d = len(shape)
    everything = tuple(random_measured_factor(rng, n) for n in shape)
    blocks = tuple(random_block(rng, shape) for _ in range(4))
    workload = Workload(shape, blocks, (1.0, 2.0, 0.5, 1.0))
    subsets = [b for k in range(d + 1) for b in combinations(range(d), k)]
    marginal_weights = {b: int(rng.integers(1, 90)) for b in subsets if rng.random() < 0.6}
    marginal_weights[subsets[-1]] = 3
    halves = [
        tuple(
            choices if i in kept else Ones(1, n)
            for i, (choices, n) in enumerate(zip(everything, shape, strict=True))
        )
        for kept in (range(d), {i for block in blocks[2:] for i in block.attributes})
    ]
    cores = tuple(random_core(rng, n) for n in shape)
    wide = tuple(i for i, n in enumerate(shape) if n > 1)
    below = [b for k in range(len(wide) + 1) for b in combinations(wide, k)]
    core_weights = {b: int(rng.integers(1, 90)) for b in below}
    parts = tuple(ProductStrategy("part", noise, factors) for factors in halves)
    optimised = {i: everything[i] for i in wide if rng.random() < 0.8}
    classes = cell_classes(workload, most=1 << 20)
    of_classes = random_measured_factor(rng, classes.count)
    counted = ProductStrategy("product", noise, (of_classes,))
    core = random_core(rng, classes.count)
    cored = ResidualStrategy(
        "residual", noise, (core,), {(): 300} if core is None else {(): 300, (0,): 500}
    )
    return [
        (ProductStrategy("product", noise, everything), workload),
        (MarginalsStrategy("marginals", noise, shape, marginal_weights), workload),
        (UnionStrategy("union", noise, parts, (7, 5), ((0, 1), (2, 3))), workload),
        (DirectStrategy("direct", noise, workload, (3, 1, 4, 2)), workload),
        (ResidualStrategy("residual", noise, cores, core_weights), workload),
        (MarginalsStrategy("factors", noise, shape, marginal_weights, optimised), workload),
        (CellClassesStrategy("cells", noise, classes, counted), workload),
        (CellClassesStrategy("cores", noise, classes, cored), workload),
        *_coarser(rng, shape, noise),
        _over_orbits(rng, shape, noise),
        (with_block_cores(rng, shape, noise), workload),
        (over_a_basis(rng, noise, workload, classes), workload),
    ]


def over_a_basis(rng, noise, workload, classes):
    """A mix of the answers to independent queries, and of the total where it is one more."""
    queries = queries_of_classes(workload, classes)
    numbers = independent(queries.astype(float))
    mixed = np.triu(rng.integers(-9, 9, (len(numbers),) * 2), 1) + 40 * np.eye(len(numbers))
    inner = ProductStrategy("mixed", noise, (Dense(mixed.astype(np.int64)),))
    basis = QueryBasis(tuple(numbers.tolist()), queries[numbers])
    return CellClassesStrategy("basis", noise, classes, inner, basis)


def with_block_cores(rng, shape, noise):
    """Cores and totals, where most blocks have cores of their own beside the same null vectors."""
    spreads = {i: random_spread(rng, n) for i, n in enumerate(shape) if n > 1}
    cores = tuple(core_beside(rng, spreads[i]) if i in spreads else None for i in range(len(shape)))
    below = [b for k in range(len(spreads) + 1) for b in combinations(sorted(spreads), k)]
    own = {
        b: {i: core_beside(rng, spreads[i]) for i in b if rng.random() < 0.7}
        for b in below
        if b and rng.random() < 0.8
    }
    weights = {b: int(rng.integers(1, 90)) for b in below}
    name = "block cores" if own else "residual"
    return ResidualStrategy(name, noise, cores, weights, spreads, own)


def random_spread(rng, n):
    """Whole numbers other than zero, whose sum is not zero either."""
    while True:
        spread = rng.integers(1, 6, n) * np.where(rng.random(n) < 0.2, -1, 1)
        if abs(spread.sum()) > n / 2:
            return spread


def core_beside(rng, spread):
    """A core with a given null vector."""
    n = len(spread)
    differences = np.zeros((n - 1, n), dtype=np.int64)
    differences[:, :-1] = np.diag(spread[1:])
    differences[:, 1:] -= np.diag(spread[:-1])
    while True:
        matrix = rng.integers(-3, 4, (n - 1, n - 1)) @ differences
        if np.linalg.cond(np.vstack([matrix, np.abs(matrix).max() * np.ones(n)])) < 300:
            return DenseCore(matrix)


def _over_orbits(rng, shape, noise):
    """Random cores for all components of random orbits, and products of predicates."""
    wide = tuple(i for i, n in enumerate(shape) if n > 1) or (0,)
    axes = [random_axis(rng, shape[i]) for i in wide]
    cores = {}
    within = [[BETWEEN, *np.flatnonzero(axis.sizes > 1).tolist()] for axis in axes]
    for b in product(*within):
        m = math.prod(axis.count for axis, orbit in zip(axes, b, strict=True) if orbit == BETWEEN)
        cores[b] = rng.integers(-9, 10, (m, m)) + 40 * np.eye(m, dtype=np.int64)
    drawn = [random_block(rng, shape) for _ in range(3)]
    blocks = tuple(
        block_product(shape, dict(zip(block.attributes, block.factors, strict=True)))
        for block in drawn
    )
    strategy = OrbitsStrategy("orbits", noise, shape, wide, OrbitRows(axes, cores))
    return strategy, Workload(shape, blocks, (1.0, 2.0, 0.5))


def random_axis(rng, n):
    """Random orbits of n codes, numbered by their first codes."""
    drawn = rng.integers(0, max(1, n // 2), n).tolist()
    return OrbitAxis(np.array([list(dict.fromkeys(drawn)).index(v) for v in drawn]))


def dense_orbit_rows(rows):
    """The matrix of orbit rows from its definition, one loop an entry."""
    places = [axis.place.tolist() for axis in rows.axes]
    out = []
    for b, core in rows.cores.items():
        between = list(
            product(*(range(max(p) + 1) for p, o in zip(places, b, strict=True) if o == BETWEEN))
        )
        inside = [[j for j, own in enumerate(p) if own == o]
                  for p, o in zip(places, b, strict=True) if o != BETWEEN]  # fmt: skip
        for weights in core.tolist():
            for codes in product(*inside):
                row = []
                for cell in product(*(range(len(p)) for p in places)):
                    compared, at, entry = iter(codes), [], 1
                    for j, p, o in zip(cell, places, b, strict=True):
                        if o == BETWEEN:
                            at.append(p[j])
                        else:
                            same = int(next(compared) == j)
                            entry *= p.count(o) * same - 1 if p[j] == o else 0
                    row.append(entry * weights[between.index(tuple(at))])
                out.append(row)
    return np.array(out)


def _coarser(rng, shape, noise):
    """Products over classes of codes, alone and beside cells in a union."""
    drawn = [rng.integers(0, max(1, n - 1), n) for n in shape]
    codes = [[list(dict.fromkeys(row.tolist())).index(v) for v in row] for row in drawn]
    classes = tuple(np.array(row) for row in codes)
    sizes = tuple(max(row) + 1 for row in codes)
    inner = ProductStrategy("i", noise, tuple(random_measured_factor(rng, n) for n in sizes))
    coarser = CoarserStrategy("coarser", noise, classes, inner)
    blocks = tuple(block_over_codes(random_block(rng, sizes), classes) for _ in range(2))
    beside = tuple(random_block(rng, shape) for _ in range(2))
    cells = ProductStrategy("cells", noise, tuple(Identity(n) for n in shape))
    parts = UnionStrategy("parts", noise, (cells, coarser), (2, 3), ((1, 2), (3, 0)))
    mixed = (blocks[1], *beside, blocks[0])
    return [
        (coarser, Workload(shape, blocks, (1.0, 0.5))),
        (parts, Workload(shape, mixed, (1.0, 2.0, 0.5, 1.0))),
    ]


# Trees of nested groups of uneven sizes, and their rows written out.


def groups_of(place):
    """The groups of the codes that have one place."""
    n = len(place)
    return Groups(sp.csr_array((np.ones(n, dtype=np.int64), (place, np.arange(n)))))


def nested(rng, fan_outs, weights, *, shuffled=False):
    """The Gram of all codes, the groups of each level and the total, and the groups."""
    above, blocks = [], 1
    for least, most in fan_outs:
        counts = rng.integers(least, most + 1, blocks)
        above.append(np.repeat(np.arange(blocks), counts))
        blocks = int(counts.sum())
    place, factors = np.arange(blocks), []
    order = rng.permutation(blocks) if shuffled else np.arange(blocks)
    for parents in above[:0:-1]:
        place = parents[place]
        factors.append(groups_of(place[order]))
    mixture = Mixture(blocks, float(weights[0]), float(weights[-1]))
    terms = tuple(zip(map(float, weights[1:-1]), factors, strict=True))
    return Structured(mixture, terms), factors


def random_tree(rng, most=4):
    """A tree of blocks of any number of children, the codes in any order, some without a row."""
    fan_outs = [(1, 4)] * int(rng.integers(0, most))
    above, blocks = [], int(rng.integers(1, 3))
    weights = [rng.integers(0, 9, blocks)]
    for least, largest in fan_outs:
        counts = rng.integers(least, largest + 1, blocks)
        above.append(np.repeat(np.arange(blocks), counts))
        blocks = int(counts.sum())
        weights.append(rng.integers(0, 9, blocks))
    weights[-1] = rng.integers(1, 90, blocks)
    if above:
        above[-1] = rng.permutation(above[-1])
    return Tree(above[::-1], weights[::-1])


def rows_of(tree):
    """The rows of a tree, written out block by block."""
    n = tree.shape[1]
    place, rows = list(range(n)), []
    for level, weights in enumerate(tree.weights):
        if level:
            place = [int(tree.parents[level - 1][block]) for block in place]
        for block, weight in enumerate(weights.tolist()):
            if weight:
                rows.append([weight if place[code] == block else 0 for code in range(n)])
    return np.array(rows)


# The law of c'y under Laplace noise, slowly: what noise intervals are held against.

LEVELS = (0.5, 0.6, 0.8, 0.9, 0.95, 0.99, 0.999)
NARROW = 1e-4  # numerical


def exact_tails(C, widths):
    """P(|c'y| > width) for every row c of C and its width, y of unit variance.

    P(X > q) is an integral of E exp(s X) exp(-s q) / s along a hyperbola around the poles.
    """
    squares = C**2
    scale = np.sqrt(squares.sum(axis=1, keepdims=True))
    shares, q = squares / scale**2, np.asarray(widths)[:, None] / scale
    pole = np.sqrt(2 / shares.max(axis=1, keepdims=True))
    saddle = pole * np.minimum(0.6, 0.6 * (q + 1 / (q + 0.5)) / pole)
    size = np.minimum(saddle, pole - 0.6 * saddle)
    end = np.arccosh(1 + 45 / (q * size))
    u = (np.arange(200) + 0.5) / 200 * end
    s = saddle + size * (np.cosh(u) - 1) + 1.7j * size * np.sinh(u)
    steps = size * (np.sinh(u) + 1.7j * np.cosh(u)) * end / 200
    logs = -s * q
    for column in shares.T:
        logs -= np.log(1 - column[:, None] * s**2 / 2)
    return 2 / np.pi * (np.exp(logs) * steps / s).imag.sum(axis=1)


def check_half_widths(C, half, *, level, most=1.02, what=""):
    """Half widths are at least those of the exact law of C y, and at most 2 % wider."""
    used = np.any(C != 0, axis=1)
    C, half = C[used], np.asarray(half)[used]
    narrow = exact_tails(C, half * (1 + NARROW)) / (1 - level)
    wide = exact_tails(C, half / most) / (1 - level)
    assert narrow.max(initial=0.0) <= 1 + 1e-9, what
    assert wide.min(initial=2.0) >= 1 - 1e-9, what


# The laws of the noise in floats, and how a sample is held against them.

KINDS = {"laplace": "pure", "gaussian": "zcdp", "rounded": "gdp"}
"""The guarantee for which each law is drawn."""


def budget_for(noise, scale):
    """A guarantee that a sensitivity of 1 meets at this scale, with a hair to spare."""
    hair = 1 + Fraction(1, 10**9)
    ratio = hair / Fraction(scale)
    amount = {"laplace": ratio, "gaussian": ratio**2 / 2, "rounded": ratio**2}[noise]
    return Guarantee(KINDS[noise], amount, amount, Fraction(0))


def cdf(noise, scale, k):
    """P(X <= k), exact but for float rounding."""
    if noise == "rounded":
        return norm.cdf((k + 0.5) / scale)
    if noise == "laplace":
        q = math.exp(-1 / scale)
        above = 1 - np.exp(-(np.maximum(k, 0) + 1.0) / scale) / (1 + q)
        return np.where(k >= 0, above, np.exp(-np.maximum(-k, 0.0) / scale) / (1 + q))
    if scale > 1000:  # by Poisson summation the two laws differ by exp(-2 pi^2 scale^2)
        return norm.cdf((k + 0.5) / scale)
    support = np.arange(-math.ceil(12 * scale), math.ceil(12 * scale) + 1)
    mass = np.exp(-(support**2) / (2 * scale**2))
    return np.interp(k, support, np.cumsum(mass) / mass.sum())


def cells(scale):
    """Where cells of about equal mass end."""
    return np.unique(np.rint(np.tan(np.linspace(-1.35, 1.35, 41)) * scale)).astype(np.int64)


def counts(edges, sample):
    """Draws in each cell; a cell ends with its edge, the last one never."""
    return np.bincount(np.searchsorted(edges, sample), minlength=edges.size + 1)


def p_value(noise, scale, sample):
    """Chi-square of a sample against the law, in cells of about equal mass."""
    edges = cells(scale)
    return p_of_counts(noise, scale, edges, counts(edges, sample))


def p_of_counts(noise, scale, edges, seen):
    """The same, of draws that were counted in cells."""
    expected = np.diff(np.concatenate([[0.0], cdf(noise, scale, edges), [1.0]])) * seen.sum()
    return chi_square(seen, expected)


def chi_square(observed, expected):
    """Chi-square of counts against their expectations, rare cells taken together."""
    keep = expected >= 5
    rest, rest_seen = expected[~keep].sum(), observed[~keep].sum()
    statistic = np.sum((observed[keep] - expected[keep]) ** 2 / expected[keep])
    statistic += (rest_seen - rest) ** 2 / rest if rest > 0 else 0.0
    return chi2.sf(statistic, keep.sum() + (rest > 0) - 1)


def analytic_gaussian_sigma(epsilon, delta):
    """The sigma of the analytic Gaussian mechanism [BW18] for sensitivity 1."""
    return 1 / math.sqrt(gdp.squared_mu_of(Fraction(epsilon), Fraction(delta)))
