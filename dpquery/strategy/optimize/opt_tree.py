"""OPT_0 for nested sets of codes: the best tree of blocks, and how near the optimum it is.

Queries of nested sets are measured as they are, each with a weight of its own. The loss of the
squared weights y goes up the tree by three numbers a block ([MATH] 12): its mass mu = 1'G^-1 1,
q = 1'G^-1 V G^-1 1 and E = tr(G^-1 V), all of them sums over the blocks inside, and then
    D = 1 + y mu,  mu <- mu / D,  q <- (q + a mu^2) / D^2,  E <- E + (a mu - y q) / D
for the block itself, of the weight a in V. The gradient comes down it again. Under Gaussian noise
the loss is convex in y, the squared weights on the path from the highest block to any code adding
to 1; under Laplace noise the weights do, and several starts are made. A block takes a share of what
is left to it on its path, and the code the rest. Equal sets of one parent have equal weights.

The bound is the dual one of every strategy, at the v that belongs to the tree ([MATH] 1), its
square root by rational functions: each pole is one tree again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats
from dpquery.operators.trees import Tree
from dpquery.strategy.algebra.nested_sets import AlikeSets, NestedSets
from dpquery.strategy.algebra.root_nodes import root_nodes
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.optimize.descents import descend
from dpquery.strategy.optimize.factor_selection import FactorSelection

TREE_ITERATIONS = 500  # of L-BFGS-B
STEEP = 25.0  # bound of the logit of a share: beyond it a block or what is below has no weight
POLE_STEP = 0.5  # of the rational functions: right to 1e-8
TREE_DUAL_ROUNDS = 6  # of the bound's fixed point
TREE_GAP = 2e-4  # relative gap of loss and bound at which it stops
SUM_ROUNDING = 1e-9  # relative; for the rounding of the bound's sums
FAINTEST = 1e-12  # of the largest of the numbers that the fixed point works on
FAINTER = (0.0, -3.0)  # added to the logits of the shares at the starts, under Laplace noise


@dataclass(frozen=True, eq=False)
class _Passed:
    """What goes up a tree: the masses and q of what is inside of the blocks of every level."""

    mass: list[Floats]
    form: list[Floats]
    loss: float


class TreeLoss:
    """The loss of squared weights on the kinds of sets of a tree, and its gradient."""

    def __init__(self, kinds: AlikeSets) -> None:
        self.kinds = kinds
        self.starts = [np.flatnonzero(np.diff(above, prepend=-1)) for above in kinds.parents]
        totals = [np.ones(1)]
        for above, copies in zip(kinds.parents[::-1], kinds.copies[::-1], strict=True):
            totals.append(copies * totals[-1][above])
        self.totals = totals[::-1]  # sets of each kind in the whole tree

    def __call__(self, squares: Sequence[Floats]) -> tuple[float, list[Floats]]:
        """Return tr(G^-1 V) and its gradient in the square of all sets of each kind."""
        passed = self._up(squares)
        return passed.loss, self._down(squares, passed)

    def _up(self, squares: Sequence[Floats]) -> _Passed:
        a, y = self.kinds.weights[0], squares[0]
        mu, q = 1 / y, a / y**2
        loss = float(self.totals[0] @ (a * mu))
        masses, forms = [mu], [q]
        for level, starts in enumerate(self.starts):
            copies = self.kinds.copies[level]
            a, y = self.kinds.weights[level + 1], squares[level + 1]
            M, Q = np.add.reduceat(copies * mu, starts), np.add.reduceat(copies * q, starts)
            D = 1 + y * M
            loss += float(self.totals[level + 1] @ ((a * M - y * Q) / D))
            mu, q = M / D, (Q + a * M**2) / D**2
            masses.append(M)
            forms.append(Q)
        return _Passed(masses, forms, loss)

    def _down(self, squares: Sequence[Floats], passed: _Passed) -> list[Floats]:
        gradient: list[Floats] = []
        by_mu, by_q = np.zeros(1), np.zeros(1)  # of one set of each kind, and of all its copies
        for level in range(len(squares) - 1, 0, -1):
            a, y, count = self.kinds.weights[level], squares[level], self.totals[level]
            M, Q = passed.mass[level], passed.form[level]
            D, R = 1 + y * M, Q + a * M**2
            gradient.append(-(by_mu * M**2 + count * R) / D**2 - 2 * by_q * M * R / D**3)
            by_M = (by_mu + 2 * a * M * by_q + count * (a + y**2 * Q)) / D**2
            by_M -= 2 * y * R * by_q / D**3
            by_Q = by_q / D**2 - count * y / D
            copies, above = self.kinds.copies[level - 1], self.kinds.parents[level - 1]
            by_mu, by_q = copies * by_M[above], copies * by_Q[above]
        a, y = self.kinds.weights[0], squares[0]
        gradient.append(-(by_mu + self.totals[0] * a) / y**2 - 2 * by_q * a / y**3)
        return gradient[::-1]


class _Shares:
    """Weights by shares: each kind of set takes one of what is left on its path, codes the rest."""

    def __init__(self, kinds: AlikeSets) -> None:
        self.kinds = kinds
        self.free = [np.flatnonzero(weights) for weights in kinds.weights[1:]]
        self.ends = np.cumsum([0, *map(len, self.free)])

    def weights(self, x: Floats) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """Return the weights of every level, the codes first, what was left, and the shares."""
        left, taken, all_left, shares = np.ones(1), [], [], []
        for level in range(len(self.free) - 1, -1, -1):
            share = np.zeros(len(left))
            logits = x[self.ends[level] : self.ends[level + 1]]
            share[self.free[level]] = 1 / (1 + np.exp(-logits))
            taken.append(share * left)
            all_left.append(left)
            shares.append(share)
            left = ((1 - share) * left)[self.kinds.parents[level]]
        return [left, *taken[::-1]], all_left[::-1], shares[::-1]

    def gradient(
        self, by_weight: Sequence[Floats], left: Sequence[Floats], shares: Sequence[Floats]
    ) -> Floats:
        """Return the gradient in the logits of one in the weights."""
        by_left, pieces = by_weight[0], []
        for level, free in enumerate(self.free):
            inside = np.bincount(self.kinds.parents[level], by_left, minlength=len(left[level]))
            share, by_own = shares[level], by_weight[level + 1]
            slope = share * (1 - share) * left[level] * (by_own - inside)
            pieces.append(slope[free])
            by_left = share * by_own + (1 - share) * inside
        return np.concatenate(pieces)

    def logits(self, weights: Sequence[Floats]) -> Floats:
        """Return the logits at which the shares go with given weights, the codes first."""
        inside, pieces = weights[0], []
        for level, free in enumerate(self.free):
            above, copies = self.kinds.parents[level], self.kinds.copies[level]
            sums = np.bincount(above, copies * inside) / np.bincount(above, copies)
            taken = np.maximum(weights[level + 1], 1e-6 * sums)
            pieces.append(np.log(taken / sums)[free])
            inside = sums + taken
        return np.concatenate(pieces)


def opt_tree(sets: NestedSets, noise: Noise) -> FactorSelection:
    """Select the weights of a tree of sets. Its rows have the sensitivity 1.

    Args:
        sets: the queries.
        noise: "laplace" lets the weights on every path add to 1, "gaussian" their squares.
    """
    kinds = AlikeSets.of(sets)
    loss_of, shares = TreeLoss(kinds), _Shares(kinds)
    start = shares.logits(level_weights(kinds, noise))

    def fun(x: Floats) -> tuple[float, Floats]:
        weights, left, taken = shares.weights(x)
        squares = weights if noise == "gaussian" else [w**2 for w in weights]
        loss, by_square = loss_of(squares)
        slopes = by_square if noise == "gaussian" else map(_times_twice, by_square, weights)
        return math.log(loss), shares.gradient(list(slopes), left, taken) / loss

    starts = [start] if noise == "gaussian" else [start + more for more in FAINTER]
    results = [
        descend(
            fun,
            point,
            words=lambda value: f"OPT_0 tree: loss {math.exp(value):.6g}",
            max_iterations=TREE_ITERATIONS,
            ftol=1e-12,
            gtol=1e-9,
            limits=[(-STEEP, STEEP)] * len(start),
        )
        for point in starts
    ]
    best = min(results, key=lambda result: float(result.fun))
    weights, _, _ = shares.weights(best.x)
    squares = weights if noise == "gaussian" else [w**2 for w in weights]
    loss, by_square = loss_of(squares)
    bound = 0.0
    if noise == "gaussian":
        bound = _dual_bound(kinds, -by_square[0] / loss_of.totals[0], loss)
    real = [np.sqrt(level)[kind] for level, kind in zip(squares, kinds.kinds, strict=True)]
    tree = Tree(sets.parents, real)
    return FactorSelection(tree, tree.tree, loss, bound, None, converged=bool(best.success))


def _times_twice(slope: Floats, weight: Floats) -> Floats:
    """Return the slope in a weight of one in its square."""
    return np.asarray(2 * slope * weight)


def level_weights(kinds: AlikeSets, noise: Noise) -> list[Floats]:
    """Return weights of all levels that are the best where all sets of a level are alike.

    The contrasts at a level have the eigenvalue lambda = sum of the weights times sizes of a set
    and those below it, the strategy its square root: y = (root - root below) / size.
    """
    values, sizes = kinds.weights[0], np.ones(len(kinds.weights[0]))
    levels = [np.sqrt(np.maximum(values, 1e-6 * values.max(initial=1e-300)))]
    for above, copies, weights in zip(kinds.parents, kinds.copies, kinds.weights[1:], strict=True):
        count = np.bincount(above, copies)
        root = np.bincount(above, copies * np.sqrt(values)) / count
        values = np.bincount(above, copies * values) / count
        sizes = np.asarray(np.bincount(above, copies * sizes), dtype=np.float64)
        values = values + weights * sizes
        levels.append(np.maximum(np.sqrt(values) - root, 0.0) / sizes)
    return levels if noise == "gaussian" else [np.sqrt(level) for level in levels]


def _dual_bound(kinds: AlikeSets, v: Floats, loss: float) -> float:
    """Return the best dual bound on the way of the fixed point from v, one number a kind of code.

    Args:
        kinds: of the sets.
        v: positive: where to start.
        loss: that has been reached: close to it the climb ends.
    """
    totals, a = TreeLoss(kinds).totals, list(kinds.weights)
    on_path = a[-1]
    for above, weights in zip(kinds.parents[::-1], a[-2::-1], strict=True):
        on_path = weights + on_path[above]
    count, best = totals[0], 0.0
    for _ in range(TREE_DUAL_ROUNDS):
        v = np.maximum(v, FAINTEST * v.max())  # codes that no query holds have a root of 0
        diagonal = v * on_path
        c, taus, slope = root_nodes(float(count @ diagonal), POLE_STEP)
        root = slope * diagonal
        for weight, tau in zip(c, taus, strict=True):
            inverse = _code_variances(kinds, [a[0] + tau / v, *a[1:]])
            root += weight * np.maximum(1 - tau / v * inverse, 0.0)
        best = max(best, float(count @ root) ** 2 / float(count @ v))
        if loss <= best * (1 + TREE_GAP):
            break
        v = root / float(count @ root)
    return best * (1 - SUM_ROUNDING)


def _code_variances(kinds: AlikeSets, squares: Sequence[Floats]) -> Floats:
    """Return (G^-1)_jj for every kind of code: those of TreeInverse.variances."""
    masses, added = [1 / squares[0]], []
    for above, copies, square in zip(kinds.parents, kinds.copies, squares[1:], strict=True):
        added.append(np.bincount(above, copies * masses[-1]))
        masses.append(added[-1] / (1 + square * added[-1]))
    variances = masses[-1]
    for above, mass, total in zip(kinds.parents[::-1], masses[-2::-1], added[::-1], strict=True):
        share = mass / total[above]
        variances = mass * (1 - share) + share**2 * variances[above]
    return variances
