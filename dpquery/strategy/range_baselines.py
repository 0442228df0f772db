"""Baselines for ranges: products of the hierarchies and wavelets that others publish.

Each takes its own matrix on every attribute that is asked for ranges or groups, the identity on
those asked for their values alone, and the total on those that no table looks at.
"""

from collections.abc import Callable

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.factors import Factor, Identity, total
from dpquery.operators.hierarchies import Haar, Hierarchy
from dpquery.strategy.opt_hierarchy import (
    Levels,
    best_branching,
    opt_hierarchy,
    ordered_attributes,
    tree_sizes,
)
from dpquery.strategy.problem import Found, Problem, check_cells
from dpquery.strategy.strategies import BITS, ProductStrategy


def h2(problem: Problem) -> Found:
    """Binary trees with equal noise on all nodes (H2 of [HRMS10])."""
    return _product("H2", problem, lambda _, n: hierarchy(n, tree_sizes(n, 2)))


def hb(problem: Problem) -> Found:
    """Trees of the best branching without their root, with equal noise (HB of [QYL13])."""
    return _product("HB", problem, lambda _, n: hierarchy(n, tree_sizes(n, best_branching(n))[:-1]))


def haar(problem: Problem) -> Found:
    """The Haar wavelet (Privelet of [XWG10])."""
    return _product("Haar", problem, lambda _, n: Haar(n))


def greedy_h(problem: Problem) -> Found:
    """Binary trees with a weight for each level (GreedyH of [LHM14]).

    Theirs weighs single nodes, by a greedy search; here a level has one weight, and the best one.
    """
    return _optimised("GreedyH", problem, binary=True)


def opt_h(problem: Problem) -> Found:
    """OPT_H: trees of the best branching with a weight for each level."""
    return _optimised("OPT_H", problem, binary=False)


def hierarchy(n: int, sizes: tuple[int, ...]) -> Factor:
    """Return the tree of these block sizes with equal weights; one level is the identity."""
    return Hierarchy(n, sizes, (1,) * len(sizes)) if len(sizes) > 1 else Identity(n)


def integer_hierarchy(n: int, levels: Levels) -> Factor:
    """Round level weights to BITS bits and leave out the levels that vanish, but for the cells."""
    peak = max(levels.weights)
    weights = [round(own / peak * (1 << BITS)) for own in levels.weights]
    weights[0] = max(1, weights[0])
    kept = [(size, own) for size, own in zip(levels.sizes, weights, strict=True) if own]
    if len(kept) == 1:
        return Identity(n)
    return Hierarchy(n, [size for size, _ in kept], [own for _, own in kept])


def _optimised(name: str, problem: Problem, *, binary: bool) -> Found:
    _check(problem)
    found = opt_hierarchy(
        problem.gram, noise=problem.noise, binary=binary, progress=problem.progress
    )
    return _product(name, problem, lambda i, n: integer_hierarchy(n, found.levels[i]))


def _product(name: str, problem: Problem, build: Callable[[int, int], Factor]) -> Found:
    ordered, factors = _check(problem), []
    asked = np.any(problem.gram.index, axis=0)
    for i, n in enumerate(problem.workload.shape_of_domain):
        if i in ordered:
            factors.append(build(i, n))
        else:
            factors.append(Identity(n) if asked[i] or n == 1 else total(n))
    return Found(ProductStrategy(name, problem.noise, tuple(factors)))


def _check(problem: Problem) -> list[int]:
    """Return the attributes that take a hierarchy."""
    shape = problem.workload.shape_of_domain
    asked = np.any(problem.gram.index, axis=0)
    check_cells([n for n, own in zip(shape, asked, strict=True) if own])
    ordered = ordered_attributes(problem.gram)
    if not ordered:
        raise UnsupportedWorkloadError("no attribute is asked for ranges")
    return ordered
