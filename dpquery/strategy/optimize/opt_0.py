"""OPT_0: the best strategy for the Gram of one attribute; OPT_x: the best product of them.

Nested sets of many codes have trees of their own rows, under either noise (opt_tree); and else:
Laplace: p-Identity strategies, a local optimum (opt_0_laplace). Gaussian: the optimum of a convex
problem, with a proof of how near it is (fixed_point).

Laplace noise on long ordered attributes, by p-Identities of two scales: blocks of codes that follow
one another are each measured by the same small one, and rows over the blocks stand below, found by
the same descent on the Gram between blocks ([MATH] 2). Each scale has some hundred classes and is
solved in turn for what the other one leaves to it; a p-Identity of all codes has n^2 / 16 unknowns.

loss = sensitivity^2 tr((A'A)^-1 V) throughout; strategies returned here have sensitivity 1.

The loss of kron_i A_i on a union of products is sum_j w_j prod_i tr(X_i^-1 V_ij). With all factors
but one fixed it is the OPT_0 loss of a surrogate Gram, so block descent calls OPT_0 in turn, warm
started, and keeps the best sweep.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.factors import Dense, Factor, Identity, total
from dpquery.operators.gram import (
    Gram,
    Matrix,
    Mixture,
    Structured,
    array_of,
    classes,
    is_mixture,
    natural_order,
    restricted,
    times,
    weighted_sum,
)
from dpquery.operators.inverses import (
    DiagonalLessRows,
    Inverse,
    inverse_array,
    inverse_trace,
    p_identity_inverse,
)
from dpquery.operators.p_identity import BlockPIdentity, PIdentity
from dpquery.operators.ranges import Columns, Ranges
from dpquery.progress import time_left
from dpquery.public_chance import PublicGenerator
from dpquery.strategy.optimize.descents import FactorSelection
from dpquery.strategy.optimize.fixed_point import fixed_point
from dpquery.strategy.optimize.opt_0_laplace import (
    BASE,
    best_p_identity,
    descend_rows,
    even_p_identity,
    first_rows,
    p_identity,
    p_identity_from,
    p_identity_loss,
)
from dpquery.strategy.optimize.opt_tree import NestedSets, opt_tree
from dpquery.strategy.strategy import Noise

LEAST_CODES = 1024  # from which on blocks are worth it
SCALE_ROUNDS = 3  # of both scales in turn: the third gains less than 1e-3
INNER_CODES, OUTER_BLOCKS = 16, 4  # to a row of either scale
INNER_ITERATIONS, OUTER_ITERATIONS = 500, 300
COLUMNS_AT_ONCE = 64  # of the Gram, multiplied by the shares of a block's codes


@dataclass(frozen=True, eq=False)
class TwoScaleRows:
    """A p-Identity of two scales before its columns are scaled."""

    inner: Floats  # (p, size) rows of every block, below an identity, all over their column sums
    outer: Floats  # (q, blocks) rows over the blocks
    n: int  # number of codes
    loss: float  # of the strategy

    def factor(self) -> BlockPIdentity:
        """Return the strategy: columns of L1 norm 1."""
        size = self.inner.shape[1]
        small = p_identity(self.inner)
        blocks = self.outer.shape[1]
        scale = np.repeat(1 / (1 + self.outer.sum(axis=0)), size)[: self.n]
        diagonal = np.tile(small.diagonal, blocks)[: self.n] * scale
        inner = np.tile(small.rows, blocks)[:, : self.n] * scale
        outer = self.outer / (1 + self.outer.sum(axis=0))
        return BlockPIdentity(diagonal, inner, outer, size)

    @property
    def entries(self) -> int:
        """Number of entries of its rows written out."""
        blocks: int = self.outer.shape[1]
        return (len(self.inner) * blocks + len(self.outer)) * self.n

    def selection(self, V: Matrix) -> FactorSelection:
        """Return the strategy for V, with its inverse and its loss."""
        factor = self.factor()
        return FactorSelection(
            factor=factor,
            inverse=factor.inverse,
            loss=factor.inverse.trace_with(V),
            bound=0.0,
            state=None,
            converged=True,
        )

    def written_out(self) -> Floats:
        """Return its rows as those of a p-Identity of all codes: (p blocks + q, n)."""
        (p, size), blocks, codes = self.inner.shape, self.outer.shape[1], np.arange(self.n)
        Theta = np.zeros((p, blocks, self.n))
        Theta[:, codes // size, codes] = self.inner[:, codes % size]
        small = p_identity(self.inner)
        over = np.repeat(self.outer, size, axis=1)[:, : self.n] / small.diagonal[codes % size]
        return np.concatenate([Theta.reshape(-1, self.n), over])


def is_long_and_ordered(V: Matrix) -> bool:
    """Return whether V is of ranges of many codes, in their order."""
    if not isinstance(V, Structured) or V.n < LEAST_CODES:
        return False
    return all(_is_ordered(factor) for _, factor in V.terms)


def _is_ordered(factor: Factor) -> bool:
    if isinstance(factor, Columns):
        return isinstance(factor.inner, Ranges) and bool(np.all(np.diff(factor.codes) > 0))
    return isinstance(factor, Ranges)


def block_size(n: int) -> int:
    """Return the power of two at or below the root of n: as many blocks as codes in each.

    >>> block_size(1024), block_size(8192), block_size(65536)
    (32, 64, 256)
    """
    return 1 << (n.bit_length() - 1) // 2


def two_scale_rows(V: Matrix, rng: PublicGenerator, size: int | None = None) -> TwoScaleRows:
    """Return the best p-Identity of blocks of a size, that of block_size unless given.

    With G the Gram of the inner strategy, mass = 1'G^-1 1 and E = (I / mass + Theta'Theta)^-1, the
    loss is sum_b s_b^2 tr((G^-1 - G^-1 11'G^-1 / mass) V_bb) + tr(E diag(s) V_t diag(s)): V_t the
    Gram of the blocks by the shares of their codes, s = 1 + 1'Theta.
    """
    size = block_size(classes(V)) if size is None else size
    search = _Scales(V, size, rng)
    best = search.round()
    for number in range(2, SCALE_ROUNDS + 1):
        if not time_left(f"OPT_0 by blocks of {size}, round {number}: loss {best.loss:.6g}"):
            break
        rows = search.round()
        best = min(best, rows, key=lambda rows: rows.loss)
    return best


class _Scales:
    """The rows of both scales, and what either leaves to the other."""

    def __init__(self, V: Matrix, size: int, rng: PublicGenerator) -> None:
        self.V, self.size, self.rng, n = V, size, rng, classes(V)
        self.starts = np.arange(0, n, size)
        self.inner: Floats | None = None
        self.outer: Floats | None = None
        self.within = self._sum_of_blocks(np.ones(len(self.starts)))
        self.by_mass = float(np.trace(self.within)) / size**2

    def round(self) -> TwoScaleRows:
        # the best inner rows: (p, size)
        size = self.size
        center = np.eye(size) - 1 / size
        V = center @ self.within @ center + self.by_mass
        if self.inner is None:
            rows = max(1, size // INNER_CODES)
            selection = best_p_identity(V, rows, self.rng, INNER_ITERATIONS)
        else:
            selection = p_identity_from(V, self.inner, INNER_ITERATIONS)
        inner = np.zeros((1, size)) if selection.state is None else selection.state
        self.inner = inner
        inverse = p_identity_inverse(p_identity(inner)).array()
        blocks, n = len(self.starts), classes(self.V)
        masses, beside, shares = np.empty(blocks), np.empty(blocks), np.empty(n)
        for b in range(blocks):
            codes = self._codes(b)
            M = inverse[: len(codes), : len(codes)]
            if len(codes) < self.size:  # the last block: the inverse of the Gram of its codes alone
                M = np.linalg.inv(np.linalg.inv(inverse)[: len(codes), : len(codes)])
            sums = M.sum(axis=0)
            masses[b], shares[codes] = sums.sum(), sums / sums.sum()
            V_bb = array_of(restricted(self.V, codes))
            beside[b] = float(np.sum(M * V_bb) - sums @ V_bb @ sums / masses[b])
        root = np.sqrt(masses)
        between = self._between(shares) * np.outer(root, root)
        # the best outer rows, for a Gram in units of the blocks' root masses
        if self.outer is None:
            start = first_rows(between, max(1, len(between) // OUTER_BLOCKS), self.rng)
        else:
            start = self.outer * root
        best, _ = descend_rows(between, start, OUTER_ITERATIONS, 1 / root, beside)
        loss = p_identity_loss(best, between, 1 / root, beside)[0]
        outer = self.outer = best / root
        scale = 1 + outer.sum(axis=0)
        self.within = self._sum_of_blocks(scale**2)
        E = np.linalg.inv(np.eye(blocks) + (outer * root).T @ (outer * root))
        self.by_mass = float(np.sum((E @ (between * np.outer(scale, scale))) * E.T) / masses[0])
        return TwoScaleRows(inner, outer, n, loss)

    def _codes(self, b: int) -> Ints:
        return np.arange(self.starts[b], min(self.starts[b] + self.size, classes(self.V)))

    def _sum_of_blocks(self, weights: Floats) -> Floats:
        total = np.zeros((self.size, self.size))
        for b, weight in enumerate(weights.tolist()):
            local = array_of(restricted(self.V, self._codes(b)))
            total[: len(local), : len(local)] += weight * local
        return total

    def _between(self, shares: Floats) -> Floats:
        """Return U'VU, U the shares of the codes of every block: (blocks, blocks)."""
        n, blocks = classes(self.V), len(self.starts)
        place, columns = np.arange(n) // self.size, []
        for start in range(0, blocks, COLUMNS_AT_ONCE):
            U = np.zeros((n, min(COLUMNS_AT_ONCE, blocks - start)))
            codes = np.flatnonzero((place >= start) & (place < start + U.shape[1]))
            U[codes, place[codes] - start] = shares[codes]
            product = shares[:, None] * times(self.V, U)
            columns.append(np.add.reduceat(product, self.starts, axis=0))
        return np.concatenate(columns, axis=1)


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
    enough: float = math.inf,
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
        enough: a loss that rows are searched for to reach: of no use is what is above.

    Raises:
        UnsupportedWorkloadError: if a Gaussian strategy, which is an (n, n) array, is too large.
    """
    sets = NestedSets.of(V)
    if sets is not None and (noise == "laplace" or classes(V) > TREE_CODES):
        tree = opt_tree(sets, noise)
        if classes(V) > TREE_CODES:
            return tree
        rows = _opt_rows(V, noise, rng, p, start, max_iterations, enough)
        return min(tree, rows, key=lambda selection: selection.loss)
    return _opt_rows(V, noise, rng, p, start, max_iterations, enough)


def _opt_rows(
    V: Matrix,
    noise: Noise,
    rng: PublicGenerator,
    p: int | None,
    start: Floats | None,
    max_iterations: int | None,
    enough: float,
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
        selection = _p_identity(V, rng, rows, start, max_iterations, enough, in_order=in_order)
    # the selection with the columns of its strategy in another order
    codes = np.argsort(order)
    if np.array_equal(codes, np.arange(len(codes))):
        return selection
    return replace(
        selection,
        factor=_columns(selection.factor, codes),
        inverse=_both_sides(selection.inverse, codes),
        state=None if selection.state is None else selection.state[..., codes],
    )


def _p_identity(
    V: Matrix,
    rng: PublicGenerator,
    p: int,
    start: Floats | None,
    max_iterations: int | None,
    enough: float,
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
        rows = min(p, max(1, MAX_P_IDENTITY_ENTRIES // n))
        return best_p_identity(V, rows, rng, most, enough)
    return p_identity_from(V, start, most, enough)


def _columns(factor: Factor, codes: Ints) -> Factor:
    if isinstance(factor, PIdentity):
        return PIdentity(factor.diagonal[codes], factor.rows[:, codes])
    return Dense(factor.dense()[:, codes])


def _both_sides(inverse: Inverse, codes: Ints) -> Inverse:
    if isinstance(inverse, DiagonalLessRows):
        return DiagonalLessRows(inverse.diagonal[codes], inverse.rows[:, codes])
    return np.asarray(inverse_array(inverse)[np.ix_(codes, codes)])


PRODUCT_SWEEPS = 12
PRODUCT_TOLERANCE = 1e-4  # relative gain of a sweep below which descent has converged


@dataclass(frozen=True, eq=False)
class ProductSelection:
    """A product strategy with real factors of sensitivity 1.

    Attributes:
        factors: one for each attribute; the total for those that no query looks at.
        loss: sum_j w_j prod_i tr(X_i^-1 V_ij).
        bound: a proven lower bound on the loss of any strategy, under Gaussian noise for a single
            product, or products that differ on one attribute alone, which are one ([MATH] 1: duals
            multiply over Kronecker factors); else 0.
        converged: whether the last sweep gained less than PRODUCT_TOLERANCE.
    """

    factors: tuple[Factor, ...]
    loss: float
    bound: float
    converged: bool


def opt_product(
    gram: Gram,
    *,
    noise: Noise,
    rng: PublicGenerator,
    divisor: int = 16,
    start: Sequence[FactorSelection | None] = (),
) -> ProductSelection:
    """Select a Kronecker product strategy by block descent.

    Args:
        gram: Gram of the workload.
        noise: which sensitivity the factors are normalised to.
        rng: for the starting points.
        divisor: an attribute of n classes gets n // divisor p-Identity rows below the diagonal;
            one row is used wherever its surrogate Gram is a mixture of identity and total.
        start: a factor for each attribute to start from; None, and none at all, is the identity.
    """
    descent = _Descent(gram, noise, rng, divisor, start)
    best = descent.selection()
    for sweep in range(1, PRODUCT_SWEEPS + 1):
        descent.sweep()
        current = descent.selection()
        gain = 1 - current.loss / best.loss
        done = gain < PRODUCT_TOLERANCE or len(descent.active) == 1
        if current.loss < best.loss:
            best = current
        if not time_left(f"OPT_x sweep {sweep}: loss {current.loss:.6g}"):
            return best
        if done:
            return replace(best, converged=True)
    return best


class _Descent:
    """State of the block descent: one selection and its traces for each active attribute."""

    def __init__(
        self,
        gram: Gram,
        noise: Noise,
        rng: PublicGenerator,
        divisor: int,
        start: Sequence[FactorSelection | None],
    ) -> None:
        self.gram, self.noise, self.rng, self.divisor = gram, noise, rng, divisor
        self.active = [
            i for i, n in enumerate(gram.shape_of_domain) if n > 1 and gram.index[:, i].any()
        ]
        self.selected: list[FactorSelection | None] = [None] * len(gram.matrices)
        self.traces = gram.traces()
        for i, n in enumerate(gram.shape_of_domain):
            if n > 1 and i not in self.active:
                # The total answers itself, tr((11')^+ 11') = 1, and nothing else is asked.
                self.traces[i] = np.ones(len(gram.matrices[i]))
        for i, chosen in enumerate(start):
            if chosen is not None and i in self.active:
                self._keep(i, replace(chosen, bound=0.0))  # its bound is for another Gram

    def sweep(self) -> None:
        for i in self.active:
            V = self.surrogate(i)
            previous = self.selected[i]
            selected = opt_0(
                V,
                noise=self.noise,
                rng=self.rng,
                p=1 if is_mixture(V) else max(1, classes(V) // self.divisor),
                start=None if previous is None else previous.state,
            )
            if previous is None or selected.loss <= inverse_trace(previous.inverse, V):
                self._keep(i, selected)

    def _keep(self, i: int, selected: FactorSelection) -> None:
        self.selected[i] = selected
        inverse = selected.inverse
        self.traces[i] = np.array([inverse_trace(inverse, M) for M in self.gram.matrices[i]])

    def surrogate(self, i: int) -> Matrix:
        """Return sum_j w_j prod_{i' != i} tr(X_i'^-1 V_i'j) V_ij, symmetrised."""
        factors = self.gram.term_traces(self.traces)
        factors[:, i] = 1.0
        weights = self.gram.weights * factors.prod(axis=1)
        index = self.gram.index[:, i]
        matrix_weights = np.bincount(index, weights, minlength=len(self.gram.matrices[i]))
        return weighted_sum(matrix_weights, self.gram.matrices[i])

    def selection(self) -> ProductSelection:
        loss = float(self.gram.weights @ self.gram.term_traces(self.traces).prod(axis=1))
        pairs = zip(self.gram.shape_of_domain, self.selected, strict=True)
        factors = tuple(
            (Identity(n) if i in self.active else total(n)) if selected is None else selected.factor
            for i, (n, selected) in enumerate(pairs)
        )
        return ProductSelection(factors, loss, self._bound(loss), converged=False)

    def _bound(self, loss: float) -> float:
        """Multiply the duals of the factors where all terms but for one attribute are alike."""
        index = self.gram.index
        if np.count_nonzero(np.any(index != index[0], axis=0)) > 1 or min(self.gram.weights) < 0:
            return 0.0
        chosen = [self.selected[i] for i in self.active]
        return loss * math.prod(
            0.0 if selected is None else selected.bound / selected.loss for selected in chosen
        )
