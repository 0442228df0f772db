"""OPT_0: the best strategy for the Gram of one attribute.

Nested sets of many codes have trees of their own rows, under either noise (opt_tree); and else:
Laplace: p-Identity strategies, a local optimum (opt_0_laplace). Gaussian: the optimum of a convex
problem, with a proof of how near it is (opt_0_gaussian).

loss = sensitivity^2 tr((A'A)^-1 V) throughout; strategies returned here have sensitivity 1.
"""

from dataclasses import replace

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.factors import Dense, Factor, PIdentity
from dpquery.operators.gram import Matrix, Mixture, classes, natural_order, restricted
from dpquery.operators.inverses import DiagonalLessRows, Inverse, inverse_array
from dpquery.public_chance import PublicGenerator
from dpquery.strategy.algebra.nested_sets import NestedSets
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.optimize.factor_selection import FactorSelection
from dpquery.strategy.optimize.opt_0_blocks import is_long_and_ordered, two_scale_rows
from dpquery.strategy.optimize.opt_0_gaussian import fixed_point
from dpquery.strategy.optimize.opt_0_laplace import (
    BASE,
    best_p_identity,
    even_p_identity,
    p_identity_from,
)
from dpquery.strategy.optimize.opt_tree import opt_tree

OPT_0_ITERATIONS = 450
TREE_CODES = 128  # up to which nested sets are searched for other rows than their own, too
MAX_P_IDENTITY_ENTRIES = 1 << 23  # of a p-Identity: L-BFGS-B holds twenty times as many numbers


def opt_0(
    V: Matrix,
    *,
    noise: Noise,
    rng: PublicGenerator,
    p: int | None = None,
    start: Floats | None = None,
    max_iterations: int | None = None,
) -> FactorSelection:
    """Select a strategy for the Gram of one attribute. V: (n, n), symmetric.

    Args:
        V: Gram of the workload.
        noise: "laplace" normalises columns to L1 norm 1, "gaussian" to L2 norm at most 1.
        rng: source of the starting point; the optimiser's alone, never the noise's.
        p: rows below the diagonal of a p-Identity; default n / 16, and 1 at least; fewer
            where there would be more than MAX_P_IDENTITY_ENTRIES entries. Of ranges over many
            codes the rows are those of blocks.
        start: `state` of an earlier selection to continue from.
        max_iterations: of L-BFGS-B (Laplace) or of the fixed point (Gaussian);
            default 450, and 1000 of L-BFGS-B for up to BASE classes.

    Raises:
        UnsupportedWorkloadError: if a Gaussian strategy, which is an (n, n) array, is too large.
    """
    sets = NestedSets.of(V)
    if sets is not None and (noise == "laplace" or classes(V) > TREE_CODES):
        tree = opt_tree(sets, noise)
        if classes(V) > TREE_CODES:
            return tree
        rows = _opt_rows(V, noise, rng, p, start, max_iterations)
        return min(tree, rows, key=lambda selection: selection.loss)
    return _opt_rows(V, noise, rng, p, start, max_iterations)


def _opt_rows(
    V: Matrix,
    noise: Noise,
    rng: PublicGenerator,
    p: int | None,
    start: Floats | None,
    max_iterations: int | None,
) -> FactorSelection:
    """Return the rows that are searched for, whatever the queries are."""
    order = natural_order(V)
    V = restricted(V, order)
    start = None if start is None else start[..., order]
    if noise == "gaussian":
        selection = fixed_point(V, start, max_iterations or OPT_0_ITERATIONS)
    elif isinstance(V, Mixture):
        selection = even_p_identity(V)
    else:
        rows, in_order = p or max(1, classes(V) // 16), bool(np.all(np.diff(order) > 0))
        selection = _p_identity(V, rng, rows, start, max_iterations, in_order=in_order)
    return _reordered(selection, np.argsort(order))


def _p_identity(
    V: Matrix,
    rng: PublicGenerator,
    p: int,
    start: Floats | None,
    max_iterations: int | None,
    *,
    in_order: bool,
) -> FactorSelection:
    """Return a p-Identity; of ranges over many codes one of blocks, or one that starts from that.

    Its rows are written out while they have at most MAX_P_IDENTITY_ENTRIES entries; blocks
    that are not need the codes `in_order`.
    """
    n = classes(V)
    most = max_iterations or (1000 if n <= BASE else OPT_0_ITERATIONS)
    if start is None and p >= n // 16 and is_long_and_ordered(V):
        blocks = two_scale_rows(V, rng)
        if blocks.entries <= MAX_P_IDENTITY_ENTRIES:
            start = blocks.written_out()
        elif in_order:
            return blocks.selection(V)
    if start is None:
        return best_p_identity(V, min(p, max(1, MAX_P_IDENTITY_ENTRIES // n)), rng, most)
    return p_identity_from(V, start, most)


def _reordered(selection: FactorSelection, codes: Ints) -> FactorSelection:
    """Return the selection with the columns of its strategy in another order."""
    if np.array_equal(codes, np.arange(len(codes))):
        return selection
    return replace(
        selection,
        factor=_columns(selection.factor, codes),
        inverse=_both_sides(selection.inverse, codes),
        state=None if selection.state is None else selection.state[..., codes],
    )


def _columns(factor: Factor, codes: Ints) -> Factor:
    if isinstance(factor, PIdentity):
        return PIdentity(factor.diagonal[codes], factor.rows[:, codes])
    return Dense(factor.dense()[:, codes])


def _both_sides(inverse: Inverse, codes: Ints) -> Inverse:
    if isinstance(inverse, DiagonalLessRows):
        return DiagonalLessRows(inverse.diagonal[codes], inverse.rows[:, codes])
    return np.asarray(inverse_array(inverse)[np.ix_(codes, codes)])
