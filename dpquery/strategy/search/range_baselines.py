"""Baselines for ranges: products of the hierarchies and wavelets that others publish.

Each takes its own matrix on every attribute with queries of ranges or groups, the identity on those
with queries of single values alone, and the total on those that no table looks at.
"""

from collections.abc import Callable

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_DENSE_CLASSES
from dpquery.operators.factors import Factor, Identity, total
from dpquery.operators.hierarchies import Haar, Hierarchy
from dpquery.strategy.optimize.opt_hierarchy import (
    Levels,
    best_branching,
    best_level_weights,
    opt_hierarchy,
    ordered_attributes,
    traces_of_all,
    tree_sizes,
)
from dpquery.strategy.search.problem import Problem, Proposal, check_cells
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.quad_tree import Level, QuadTreeStrategy
from dpquery.strategy.shapes.weighted_block import BITS, resolution


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
