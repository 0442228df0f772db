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

V = sum_c weight_c 1_c 1_c' for sets c of which no two cross: single codes, groups of them, groups
of groups and the total, as there are tracts, counties, states and the nation.
The tree of such sets has a level for each set that lies in another. What has no set at a level is
passed on by a block without a weight.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.factors import Factor, Groups, IdentityRows
from dpquery.operators.gram import Matrix, Structured
from dpquery.operators.ranges import Columns, ListedRanges
from dpquery.operators.trees import Tree
from dpquery.public_chance import public_generator
from dpquery.strategy.algebra.roots import root_nodes
from dpquery.strategy.optimize.descents import FactorSelection, descend
from dpquery.strategy.optimize.fixed_point import Climb, Point
from dpquery.strategy.strategy import Noise

MOST_ENTRIES = 1 << 28  # codes of all sets together


@dataclass(frozen=True, eq=False)
class NestedSets:
    """A tree of sets of codes with weights."""

    # for each level but the highest, finest first, the set above that each lies in. The lowest
    # level has the codes in their order; the others never fall
    parents: tuple[Ints, ...]
    weights: tuple[Floats, ...]  # of the sets of each level; 0 for those that are only passed on

    @classmethod
    def of(cls, V: Matrix) -> Self | None:
        """Find the sets of a Gram; None where they cross, are codes, or one has no such form."""
        if not isinstance(V, Structured) or V.mixture.a < 0 or V.mixture.b < 0:
            return None
        codes, pairs = np.full(V.n, V.mixture.a), []
        for weight, factor in V.terms:
            if weight < 0:
                return None
            if weight == 0:
                continue
            matrix = sets_of(factor)
            if matrix is None:
                return None
            single = np.diff(matrix.indptr) == 1
            np.add.at(codes, matrix[single].indices, weight)
            pairs.append((weight, matrix[~single]))
        if sum(matrix.nnz for _, matrix in pairs) > MOST_ENTRIES:
            return None
        family = _family(pairs, V.n, V.mixture.b)
        if family is None:
            return None
        owner, parent, weights = family
        return cls._of_family(codes, owner, parent, weights) if weights.any() else None

    @classmethod
    def _of_family(cls, codes: Floats, owner: Ints, parent: Ints, set_weights: Floats) -> Self:
        """Return the tree of sets that are given by their parents, the highest first."""
        height = np.ones(len(parent), dtype=np.int64)
        for number in range(len(parent) - 1, 0, -1):
            height[parent[number]] = max(height[parent[number]], height[number] + 1)
        parents, weights, above = [], [codes], owner
        for level in range(1, int(height[0]) + 1):
            blocks, place = np.unique(above, return_inverse=True)
            reached = height[blocks] == level
            parents.append(place)
            weights.append(np.where(reached, set_weights[blocks], 0.0))
            above = np.where(reached, parent[blocks], blocks)
        for level in range(len(parents) - 1, 0, -1):  # blocks in the order of their parents
            order = np.argsort(parents[level], kind="stable")
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            parents[level], weights[level] = parents[level][order], weights[level][order]
            parents[level - 1] = place[parents[level - 1]]
        return cls(tuple(parents), tuple(weights))


def sets_of(factor: Factor) -> "sp.csr_array | None":
    """Return the sets of codes that a factor counts, one a row; None where it is another kind."""
    match factor:
        case Groups(matrix=matrix):
            return sp.csr_array(matrix)
        case IdentityRows(codes=codes):
            ones, ends = np.ones(len(codes)), np.arange(len(codes) + 1)
            return sp.csr_array((ones, codes, ends), shape=factor.shape)
        case ListedRanges(bounds=(first, last)):
            sizes = last - first + 1
            if sizes.sum() > MOST_ENTRIES:
                return None
            ends = np.concatenate([[0], np.cumsum(sizes)])
            codes = np.arange(ends[-1]) + np.repeat(first - ends[:-1], sizes)
            return sp.csr_array((np.ones(len(codes)), codes, ends), shape=factor.shape)
        case Columns(inner=inner, codes=codes):
            inside = sets_of(inner)
            return None if inside is None else sp.csr_array(inside[:, codes])
        case _:
            return None


def _family(
    pairs: Iterable[tuple[float, "sp.csr_array"]], n: int, total: float
) -> tuple[Ints, Ints, Floats] | None:
    """Return the smallest set of every code, and every set's parent and weight, larger sets first.

    The first set has all codes. None where two sets share some of the codes of both.
    """
    rows = sorted(_rows(pairs), key=lambda row: -len(row[1]))
    owner, sizes = np.zeros(n, dtype=np.int64), [n]
    parent, weights = [0], [total]
    for weight, codes in rows:
        above = owner[codes]
        place = int(above[0])
        if np.any(above != place):
            return None
        if sizes[place] == len(codes):
            weights[place] += weight
            continue
        owner[codes] = len(sizes)
        sizes.append(len(codes))
        parent.append(place)
        weights.append(weight)
    return owner, np.array(parent), np.array(weights)


def _rows(pairs: Iterable[tuple[float, "sp.csr_array"]]) -> Iterator[tuple[float, Ints]]:
    for weight, matrix in pairs:
        for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
            if stop > start:
                yield weight, np.asarray(matrix.indices[start:stop], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class AlikeSets:
    """Nested sets, those of one parent counted once where what is in them is the same."""

    parents: tuple[Ints, ...]  # of the kinds of each level but the highest: never falling
    weights: tuple[Floats, ...]  # of each kind
    # for the same levels, how many sets of a kind one of its parent's kind holds
    copies: tuple[Floats, ...]
    kinds: tuple[Ints, ...]  # for each level the kind of every set

    @classmethod
    def of(cls, sets: NestedSets) -> Self:
        """Compare sets by random sums of what is in them, of 64 bits."""
        forms = [_numbers(sets.weights[0].view(np.int64))]
        for above, weights in zip(sets.parents, sets.weights[1:], strict=True):
            inside = np.zeros(len(weights), dtype=np.int64)
            numbers = forms[-1]
            table = public_generator(len(forms)).integers(
                -(1 << 62), 1 << 62, size=int(numbers.max()) + 1
            )
            np.add.at(inside, above, np.asarray(table[numbers]))
            forms.append(_paired(_numbers(inside), _numbers(weights.view(np.int64))))
        kinds = [np.zeros(len(forms[-1]), dtype=np.int64)]
        parents, copies = [], []
        for level in range(len(sets.parents) - 1, -1, -1):
            above = kinds[-1][sets.parents[level]]
            kind = _paired(above, forms[level])
            parents.append(_firsts(kind, above))
            copies.append(np.bincount(kind) / np.bincount(kinds[-1])[parents[-1]])
            kinds.append(kind)
        kinds.reverse()
        pairs = zip(kinds, sets.weights, strict=True)
        firsts = tuple(_firsts(kind, level) for kind, level in pairs)
        return cls(tuple(parents[::-1]), firsts, tuple(copies[::-1]), tuple(kinds))


def _numbers(values: Ints) -> Ints:
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def _paired(first: Ints, second: Ints) -> Ints:
    """Return the number of every pair of numbers, in the order of the first."""
    return _numbers(first * (int(second.max()) + 1) + second)


def _firsts(kind: Ints, values: Numbers) -> Numbers:
    return np.asarray(values[np.unique(kind, return_index=True)[1]])


TREE_ITERATIONS = 500  # of L-BFGS-B
STEEP = 25.0  # bound of the logit of a share: beyond it a block or what is below has no weight
POLE_STEP = 0.5  # of the rational functions: right to 1e-8
TREE_DUAL_ROUNDS = 6  # of the bound's fixed point
TREE_GAP = 2e-4  # relative gap of loss and bound at which it stops
SUM_ROUNDING = 1e-9  # relative; for the rounding of the bound's sums
FAINTER = (0.0, -3.0)  # added to the logits of the shares at the starts, under Laplace noise


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
        a, y = self.kinds.weights[0], squares[0]
        mu, q = 1 / y, a / y**2
        loss = float(self.totals[0] @ (a * mu))
        masses, forms = [mu], [q]  # of what is inside of the blocks of every level
        for level, starts in enumerate(self.starts):
            copies = self.kinds.copies[level]
            a, y = self.kinds.weights[level + 1], squares[level + 1]
            M, Q = np.add.reduceat(copies * mu, starts), np.add.reduceat(copies * q, starts)
            D = 1 + y * M
            loss += float(self.totals[level + 1] @ ((a * M - y * Q) / D))
            mu, q = M / D, (Q + a * M**2) / D**2
            masses.append(M)
            forms.append(Q)
        gradient: list[Floats] = []
        by_mu, by_q = np.zeros(1), np.zeros(1)  # of one set of each kind, and of all its copies
        for level in range(len(squares) - 1, 0, -1):
            a, y, count = self.kinds.weights[level], squares[level], self.totals[level]
            M, Q = masses[level], forms[level]
            D, R = 1 + y * M, Q + a * M**2
            gradient.append(-(by_mu * M**2 + count * R) / D**2 - 2 * by_q * M * R / D**3)
            by_M = (by_mu + 2 * a * M * by_q + count * (a + y**2 * Q)) / D**2
            by_M -= 2 * y * R * by_q / D**3
            by_Q = by_q / D**2 - count * y / D
            copies, above = self.kinds.copies[level - 1], self.kinds.parents[level - 1]
            by_mu, by_q = copies * by_M[above], copies * by_Q[above]
        a, y = self.kinds.weights[0], squares[0]
        gradient.append(-(by_mu + self.totals[0] * a) / y**2 - 2 * by_q * a / y**3)
        return loss, gradient[::-1]


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

    "laplace" lets the weights on every path add to 1, "gaussian" their squares.
    """
    kinds = AlikeSets.of(sets)
    loss_of, shares = TreeLoss(kinds), _Shares(kinds)
    start = shares.logits(level_weights(kinds, noise))

    def fun(x: Floats) -> tuple[float, Floats]:
        weights, left, taken = shares.weights(x)
        squares = weights if noise == "gaussian" else [w**2 for w in weights]
        loss, by_square = loss_of(squares)
        if noise == "laplace":
            by_square = [2 * slope * w for slope, w in zip(by_square, weights, strict=True)]
        return math.log(loss), shares.gradient(by_square, left, taken) / loss

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

    Close to the loss that has been reached the climb ends.
    """
    totals, a = TreeLoss(kinds).totals, list(kinds.weights)
    on_path = a[-1]
    for above, weights in zip(kinds.parents[::-1], a[-2::-1], strict=True):
        on_path = weights + on_path[above]
    count = totals[0]

    def at(weights: Floats) -> tuple[Point, None]:
        v = weights / count
        diagonal = v * on_path
        c, taus, slope = root_nodes(float(count @ diagonal), POLE_STEP)
        root = slope * diagonal
        for weight, tau in zip(c, taus, strict=True):
            # (G^-1)_jj for every kind of code: those of TreeInverse.variances
            squares = [a[0] + tau / v, *a[1:]]
            masses, added = [1 / squares[0]], []
            for above, copies, square in zip(kinds.parents, kinds.copies, squares[1:], strict=True):
                added.append(np.bincount(above, copies * masses[-1]))
                masses.append(added[-1] / (1 + square * added[-1]))
            inverse, steps = masses[-1], zip(kinds.parents, masses[:-1], added, strict=True)
            for above, mass, total in reversed(list(steps)):
                share = mass / total[above]
                inverse = mass * (1 - share) + share**2 * inverse[above]
            root += weight * np.maximum(1 - tau / v * inverse, 0.0)
        return Point(weights, root / v, loss, float(count @ root) ** 2 * (1 - SUM_ROUNDING)), None

    climb = Climb(at, "OPT_0 tree's bound", gap=TREE_GAP, rounds=TREE_DUAL_ROUNDS)
    return climb.climb(count * v).bound
