"""The strategies of other papers, to compare with.

Baselines over tables: the strategies that others publish for marginals and data cubes.

The names are those of [YCPS13] with and without its optimal budgets (+): I every cell (Identity), Q
the questions (Workload), F Fourier coefficients, C a greedy selection of marginals [DWHL11]. All
are answered by least squares over everything measured, which is its consistency step.

Baselines for ranges: products of the hierarchies and wavelets that others publish.

Each takes its own matrix on every attribute with queries of ranges or groups, the identity on those
with queries of single values alone, and the total on those that no table looks at.
"""

import math
from collections.abc import Callable

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_DENSE_CLASSES, MAX_RESIDUAL_ATTRIBUTES, MAX_TABLE_CELLS
from dpquery.operators.blocks import Block, threshold_sum
from dpquery.operators.factors import Factor, Identity, total
from dpquery.operators.trees import Haar, Hierarchy
from dpquery.strategy.algebra.subsets import Subset, subsets_of
from dpquery.strategy.optimize.opt_hierarchy import (
    Levels,
    best_branching,
    best_level_weights,
    opt_hierarchy,
    ordered_attributes,
    traces_of_all,
    tree_sizes,
)
from dpquery.strategy.optimize.opt_residual import best_weights, split_budget
from dpquery.strategy.search.candidates import Problem, Proposal, check_cells
from dpquery.strategy.sensitivity import sensitivity
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.quad_tree import Level, QuadTreeStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.splits import CenteredCore, Core, DenseCore
from dpquery.strategy.strategy import BITS, WeightedBlock, resolution, significant

MAX_BASELINE_TABLES = 4096  # of a workload: beyond, OPT_M and OPT_R do the same and better
MAX_GREEDY = 512  # marginals that the greedy selection chooses among


def identity(problem: Problem) -> Proposal:
    """Measure every cell of the domain."""
    shape = problem.workload.shape_of_domain
    check_cells(shape)
    factors = tuple(Identity(n) for n in shape)
    return Proposal(ProductStrategy("Identity", problem.noise, factors))


def plain_mechanism(problem: Problem) -> Proposal:
    """Measure the workload's own queries: the plain Laplace or Gaussian mechanism."""
    _check_queries(problem)
    workload = problem.workload
    weights = (resolution(1),) * len(workload.blocks)
    return Proposal(DirectStrategy("Workload", problem.noise, workload, weights))


def budgeted_mechanism(problem: Problem) -> Proposal:
    """Measure the workload's own queries with the best share of the budget for every table."""
    _check_queries(problem)
    workload = problem.workload
    if len(workload.blocks) == 1:
        raise UnsupportedWorkloadError("one table takes the whole budget")
    errors = [
        weight * float(block.shape[0])
        for weight, block in zip(workload.weights, workload.blocks, strict=True)
    ]
    costs = [
        float(sensitivity([WeightedBlock(1, block)], problem.noise)) for block in workload.blocks
    ]
    weights = split_budget(np.array(errors), np.array(costs), noise=problem.noise)
    return Proposal(DirectStrategy("Workload+", problem.noise, workload, tuple(weights)))


def marginals(problem: Problem) -> Proposal:
    """Measure the cells of every table of the workload, with equal noise."""
    tables = _measurable_sets(problem)
    return _marginals("Marginals", problem, {a: a for a in tables}, optimal=False)


def budgeted_marginals(problem: Problem) -> Proposal:
    """Measure the cells of every table of the workload, with the best shares of the budget."""
    tables = _measurable_sets(problem)
    return _marginals("Marginals+", problem, {a: a for a in tables}, optimal=True)


def data_cube(problem: Problem) -> Proposal:
    """Measure a greedy selection of the workload's tables, with equal noise."""
    return _marginals("DataCube", problem, _greedy(problem), optimal=False)


def budgeted_data_cube(problem: Problem) -> Proposal:
    """Measure a greedy selection of the workload's tables, with the best shares."""
    return _marginals("DataCube+", problem, _greedy(problem), optimal=True)


def fourier(problem: Problem) -> Proposal:
    """Measure the Fourier coefficients of every table of the workload, with equal noise.

    Over attributes of two classes they are products of [1, -1]. An attribute of more classes has
    the deviations from its mean in their place, I - 11'/n.
    """
    shape, cores = problem.workload.shape_of_domain, _cores(problem)
    subsets = dict.fromkeys(b for a in _measurable_sets(problem) for b in subsets_of(a))
    unit = {b: math.prod(shape[i] for i in b if shape[i] > 2) for b in subsets}
    least = resolution(1) * max(unit.values())
    weights = {b: significant(least / entry, 2 * BITS) for b, entry in unit.items()}
    return Proposal(ResidualStrategy("Fourier", problem.noise, cores, weights))


def budgeted_fourier(problem: Problem) -> Proposal:
    """Measure the same with the best share of the budget for every attribute subset."""
    cores = _cores(problem)
    weights = best_weights(cores, problem.gram, noise=problem.noise)
    return Proposal(ResidualStrategy("Fourier+", problem.noise, cores, weights))


def _cores(problem: Problem) -> tuple[Core | None, ...]:
    if max(len(a) for a in _measurable_sets(problem)) > MAX_RESIDUAL_ATTRIBUTES:
        raise UnsupportedWorkloadError(
            f"a table looks at more than {MAX_RESIDUAL_ATTRIBUTES} attributes"
        )
    return tuple(_core(n) for n in problem.workload.shape_of_domain)


def _core(n: int) -> Core | None:
    """Return the core of deviations from the mean; [1, -1] for two classes."""
    if n == 2:
        return DenseCore(np.array([[1, -1]]))
    return CenteredCore(n) if n > 1 else None


def _check_queries(problem: Problem) -> None:
    workload = problem.workload
    for block in workload.blocks:
        check_cells(block.table_shape)
    if workload.shape[0] > MAX_TABLE_CELLS:
        raise UnsupportedWorkloadError(f"{workload.shape[0]:,} queries to measure")


def _measurable_sets(problem: Problem) -> list[Subset]:
    """Return the distinct attribute sets of the workload's tables; refuse those too large."""
    workload = problem.workload
    if len(workload.blocks) > MAX_BASELINE_TABLES:
        raise UnsupportedWorkloadError(f"{len(workload.blocks):,} tables")
    tables = list(dict.fromkeys(_set_of(block) for block in workload.blocks))
    for a in tables:
        check_cells([workload.shape_of_domain[i] for i in a])
    return tables


def _set_of(block: Block) -> Subset:
    return tuple(i for i in block.attributes if block.shape_of_domain[i] > 1)


def _marginals(
    name: str, problem: Problem, sources: dict[Subset, Subset], *, optimal: bool
) -> Proposal:
    """Measure the marginals that serve as sources, with equal or with the best shares.

    The best shares are those for tables each answered from its own source alone: least squares
    over all of them only lowers the error further.
    """
    workload, measured = problem.workload, list(dict.fromkeys(sources.values()))
    if not optimal:
        weights = dict.fromkeys(measured, resolution(1))
        return Proposal(MarginalsStrategy(name, problem.noise, workload.shape_of_domain, weights))
    errors = dict.fromkeys(measured, 0.0)
    for weight, block in zip(workload.weights, workload.blocks, strict=True):
        attributes = _set_of(block)
        beyond = (workload.shape_of_domain[i] for i in sources[attributes] if i not in attributes)
        errors[sources[attributes]] += weight * _squared_norm(block) * math.prod(beyond)
    shares = split_budget(
        np.array(list(errors.values())), np.ones(len(errors)), noise=problem.noise
    )
    weights = dict(zip(measured, shares, strict=True))
    return Proposal(MarginalsStrategy(name, problem.noise, workload.shape_of_domain, weights))


def _squared_norm(block: Block) -> float:
    """Return the sum of squares of a block's entries over its own table.

    Those of an r-of-k block are 0 or 1, so that it is a count of entries.
    """
    if block.is_product:
        return math.prod(float(factor.row_squares.sum()) for factor in block.factors)
    scale, pairs = 1, []
    for factor, counted in zip(block.factors, block.counted, strict=True):
        hits = int(factor.row_sums.sum())
        if counted:
            pairs.append((math.prod(factor.shape) - hits, hits))
        else:
            scale *= hits
    return float(scale * int(threshold_sum(pairs, block.at_least)))


def _greedy(problem: Problem) -> dict[Subset, Subset]:
    """Return which measured table answers each table of the workload, chosen greedily [DWHL11].

    Starts from the tables that no other holds and adds one after the other while the total squared
    error falls, each table answered from one measured table alone: count^2 times the measured
    cells that are added up for it.
    """
    tables, shape = _measurable_sets(problem), problem.workload.shape_of_domain
    if len(tables) > MAX_GREEDY:
        raise UnsupportedWorkloadError(f"{len(tables):,} marginals to choose among")
    cells = [float(math.prod(shape[i] for i in a)) for a in tables]
    summed = np.array(
        [
            [count if set(a) <= set(b) else math.inf for a in tables]
            for b, count in zip(tables, cells, strict=True)
        ]
    )
    chosen = [k for k, a in enumerate(tables) if not any(set(a) < set(b) for b in tables)]
    nearest = summed[chosen].min(axis=0)
    score = len(chosen) ** 2 * float(nearest.sum())
    while len(chosen) < len(tables):
        totals = np.minimum(summed, nearest).sum(axis=1)
        k = int(np.argmin(totals))
        if (len(chosen) + 1) ** 2 * float(totals[k]) >= score:
            break
        chosen.append(k)
        nearest = np.minimum(nearest, summed[k])
        score = len(chosen) ** 2 * float(nearest.sum())
    order: Ints = np.argmin(summed[chosen], axis=0)
    return {a: tables[chosen[int(k)]] for a, k in zip(tables, order, strict=True)}


def h2(problem: Problem) -> Proposal:
    """Binary trees with equal noise on all nodes (H2 of [HRMS10])."""
    return _product("H2", problem, lambda _, n: hierarchy(n, tree_sizes(n, 2)))


def hb(problem: Problem) -> Proposal:
    """Trees of the best branching without their root, with equal noise (HB of [QYL13])."""
    return _product("HB", problem, lambda _, n: hierarchy(n, tree_sizes(n, best_branching(n))[:-1]))


def haar(problem: Problem) -> Proposal:
    """The Haar wavelet (Privelet of [XWG10])."""
    return _product("Haar", problem, lambda _, n: Haar(n))


def greedy_h(problem: Problem) -> Proposal:
    """Binary trees with a weight for each level (GreedyH of [LHM14]).

    Theirs weighs single nodes, by a greedy search; here a level has one weight, and the best one.
    """
    return _optimised("GreedyH", problem, binary=True)


def opt_h(problem: Problem) -> Proposal:
    """OPT_H: trees of the best branching with a weight for each level."""
    return _optimised("OPT_H", problem, binary=False)


def quad_tree(problem: Problem) -> Proposal:
    """Blocks of two attributes that are halved together, with equal noise [CPSSY12]."""
    return _quad_tree("Quad-tree", problem, optimal=False)


def budgeted_quad_tree(problem: Problem) -> Proposal:
    """Blocks of two attributes that are halved together, with the best weight for each level."""
    return _quad_tree("Quad-tree+", problem, optimal=True)


def _quad_tree(name: str, problem: Problem, *, optimal: bool) -> Proposal:
    shape = problem.workload.shape_of_domain
    wide = [i for i, n in enumerate(shape) if n > 1]
    if len(wide) != 2:
        raise UnsupportedWorkloadError(f"for two attributes, not {len(wide)}")
    first, second = wide
    if max(shape) > MAX_DENSE_CLASSES:
        raise UnsupportedWorkloadError(f"an attribute has {max(shape):,} classes")
    check_cells([shape[first], shape[second]])
    chains = halvings(shape[first]), halvings(shape[second])
    depth = max(len(chain) for chain in chains)
    rows, columns = (chain + chain[-1:] * (depth - len(chain)) for chain in chains)
    if optimal:
        weights = _quad_tree_weights(problem, {first: rows, second: columns})
    else:
        weights = [resolution(1)] * depth
    levels = tuple(
        Level(sizes, weight)
        for sizes, weight in zip(zip(rows, columns, strict=True), weights, strict=True)
        if weight
    )
    return Proposal(QuadTreeStrategy(name, problem.noise, shape, (first, second), levels))


def _quad_tree_weights(problem: Problem, chains: dict[int, tuple[int, ...]]) -> list[int]:
    """Return the best weights of all levels; those that vanish are 0, but for the cells."""
    gram = problem.gram
    none: list[Floats | None] = [None] * len(gram.matrices)
    whole = gram.traces(none)
    chain_traces = {i: traces_of_all(gram.matrices[i], sizes) for i, sizes in chains.items()}
    cells = np.array(list(chains.values()), dtype=np.float64).prod(axis=0)
    traces = []
    for level in range(len(cells)):
        attribute_traces = [
            chain_traces[i][:, level] if i in chain_traces else whole[i] for i in range(len(whole))
        ]
        traces.append(float(gram.weights @ gram.term_traces(attribute_traces).prod(axis=1)))
    real, _ = best_level_weights(np.array(traces), cells, problem.noise)
    weights = [round(float(w) * (1 << BITS)) for w in real]
    return [max(1, weights[0]), *weights[1:]]


def halvings(n: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... while they divide n, and n itself.

    >>> halvings(12)
    (1, 2, 4, 12)
    """
    sizes = [1]
    while n % (2 * sizes[-1]) == 0:
        sizes.append(2 * sizes[-1])
    return tuple(sizes) if sizes[-1] == n else (*sizes, n)


def hierarchy(n: int, sizes: tuple[int, ...]) -> Factor:
    """Return the tree of these block sizes with equal weights; one level is the identity."""
    return Hierarchy(n, sizes, (1,) * len(sizes)) if len(sizes) > 1 else Identity(n)


def integer_hierarchy(n: int, levels: Levels) -> Factor:
    """Round level weights to BITS bits and leave out the levels that vanish, but for the cells."""
    peak = max(levels.weights)
    weights = [round(weight / peak * (1 << BITS)) for weight in levels.weights]
    weights[0] = max(1, weights[0])
    remaining = [
        (size, weight) for size, weight in zip(levels.sizes, weights, strict=True) if weight
    ]
    if len(remaining) == 1:
        return Identity(n)
    return Hierarchy(n, [size for size, _ in remaining], [weight for _, weight in remaining])


def _optimised(name: str, problem: Problem, *, binary: bool) -> Proposal:
    _check(problem)
    selection = opt_hierarchy(problem.gram, noise=problem.noise, binary=binary)
    return _product(name, problem, lambda i, n: integer_hierarchy(n, selection.levels[i]))


def _product(name: str, problem: Problem, build: Callable[[int, int], Factor]) -> Proposal:
    ordered, factors = _check(problem), []
    looked_at = np.any(problem.gram.index, axis=0)
    for i, n in enumerate(problem.workload.shape_of_domain):
        if i in ordered:
            factors.append(build(i, n))
        else:
            factors.append(Identity(n) if looked_at[i] or n == 1 else total(n))
    return Proposal(ProductStrategy(name, problem.noise, tuple(factors)))


def _check(problem: Problem) -> list[int]:
    """Return the attributes that take a hierarchy."""
    shape = problem.workload.shape_of_domain
    looked_at = np.any(problem.gram.index, axis=0)
    check_cells([n for n, needed in zip(shape, looked_at, strict=True) if needed])
    ordered = ordered_attributes(problem.gram)
    if not ordered:
        raise UnsupportedWorkloadError("no attribute is asked for ranges")
    return ordered
