"""Minimax: the largest error and targets, by weights of queries and of budgets.

A goal is a list of limits, each on the largest standard error or on the RMSE of some blocks. Its
score is the largest ratio of a figure to its target, so that the least score is the least noise,
and the least budget, that meets every target. The maximum standard error of a whole workload is the
goal of one limit, with target one.

With fixed cores ([MATH] 6) the variance of query q is f_q = sum_b s_b^2 a_qb, and the budget is
sum_b p_b / s_b^2. In x_b = log (s_b^2 / p_b) the logarithms of both are convex, so that
    log sum_b exp(-x_b) + (1/t) log sum_q f_q^t
is smooth and convex; as t grows it goes to the square of the score. Its gradient vanishes where
lambda_q = f_q^(t-1) are the weights for which s is the best budget, and
    (sum_b sqrt(p_b v_b))^2 / sum_q lambda_q,   v_b = sum_q lambda_q a_qb,
is a lower bound on the square of the score of any budget: score over bound is the certificate.

The least score of a goal is a minimax over queries, and so, by duality, the largest least weighted
squared error over all weights of queries that add to one. Within a block weights are held as an
outer product of one vector an axis: then a weighted block stays a Kronecker product, and nothing is
lost for marginals, whose queries are all alike, nor for a single product, whose optimal weights
have that form.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_EXPANDED_ROWS, MAX_MINIMAX_COEFFICIENTS
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.factors import Factor, weighted
from dpquery.progress import report_progress
from dpquery.strategy.algebra.query_powers import RowSums, expand, total_of
from dpquery.strategy.algebra.subsets import Subset, subsets_of
from dpquery.strategy.expected_error import ExpectedError, largest_of, squared_sensitivity
from dpquery.strategy.shapes.splits import Core, side_of, split_terms
from dpquery.strategy.strategy import Figure, RecordChange, Strategy


@dataclass(frozen=True)
class Limit:
    """One figure of error and its target."""

    figure: Figure  # "sd", the largest standard error of any query, or "rmse"
    blocks: tuple[int, ...]  # the positions of the blocks whose queries it is about
    target: float = 1.0  # what one unit of the figure is, in counts or any other measure


Goal = tuple[Limit, ...]


def largest_standard_error(workload: Workload) -> Goal:
    """Return the goal whose score is the largest standard error of a whole workload, in units."""
    places: dict[int, list[int]] = {}
    for k, unit in enumerate(workload.units):
        places.setdefault(unit, []).append(k)
    return tuple(Limit("sd", tuple(blocks), float(unit)) for unit, blocks in places.items())


def reached_figure(limit: Limit, error: ExpectedError, workload: Workload) -> float:
    """Return the figure of a limit in the units of the error."""
    blocks = [error.blocks[k] for k in limit.blocks]
    if limit.figure == "sd":
        return max(block.max_std_error for block in blocks)
    return math.sqrt(sum(block.total_squared for block in blocks) / queries(limit, workload))


def score(goal: Sequence[Limit], error: ExpectedError, workload: Workload) -> float:
    """Return the largest ratio of a figure to its target."""
    return max(reached_figure(limit, error, workload) / limit.target for limit in goal)


def queries(limit: Limit, workload: Workload) -> int:
    """Return the number of queries that a limit is about."""
    return sum(workload.blocks[k].queries for k in limit.blocks)


REST = 1e-4  # of all weight, for the blocks that a goal says nothing of: about 1 % of the budget
WEIGHT_FLOOR = 1e-3  # of a limit's weight, spread evenly: no query goes unsupported


@dataclass(frozen=True, eq=False)
class Share:
    """The weight of a block's queries within one limit."""

    limit: int  # the position of the limit in the goal
    block: int  # the position of the block in the workload
    mass: float  # all weight of its queries together; the masses of all shares add to one
    # for each axis of the block the weights of its predicates, (m_k,), adding to one
    rows: tuple[Floats, ...]


@dataclass(frozen=True, eq=False)
class RowClasses:
    """Classes of a block's queries that no term of a sum of outer products distinguishes."""

    members: tuple[Ints, ...]  # for each axis the class of every predicate, (m_k,)
    terms: RowSums  # the terms over classes instead of predicates

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of classes on each axis."""
        return tuple(int(classes.max(initial=0)) + 1 for classes in self.members)

    @property
    def counts(self) -> tuple[Ints, ...]:
        """Number of predicates in each class, axis by axis."""
        return tuple(np.bincount(classes) for classes in self.members)


def row_classes(block: Block, terms: RowSums) -> RowClasses:
    """Return the classes of each axis of a block under the terms; in a tensor all rows differ."""
    if isinstance(terms, np.ndarray):
        every = tuple(np.arange(m) for m in block.row_shape)
        return RowClasses(every, terms.reshape(block.row_shape))
    members, axes = [], []
    for k, m in enumerate(block.row_shape):
        axis_vectors = [vectors[k] for _, vectors in terms]
        if all(len(v) == 1 for v in axis_vectors):
            values, classes = np.array(axis_vectors), np.zeros(m, dtype=np.int64)
        else:
            stacked = np.stack([np.broadcast_to(v, (m,)) for v in axis_vectors])
            values, classes = np.unique(stacked, axis=1, return_inverse=True)
        members.append(classes.reshape(m))
        axes.append(values)
    short = [(coef, [axis[j] for axis in axes]) for j, (coef, _) in enumerate(terms)]
    return RowClasses(tuple(members), short)


def even_shares(goal: Goal, workload: Workload) -> list[Share]:
    """Return shares of equal weight for all limits, and for all blocks of a limit on an error."""
    shares = []
    for place, limit in enumerate(goal):
        whole = queries(limit, workload)
        for k in limit.blocks:
            block = workload.blocks[k]
            part = block.queries / whole if limit.figure == "rmse" else 1 / len(limit.blocks)
            shares.append(Share(place, k, part / len(goal), even_rows(block)))
    return shares


def share_of(limit: int, position: int, block: Block, classes: RowClasses, mass: Floats) -> Share:
    """Return the share with the marginals of a tensor of weights, one entry a class of queries."""
    total = float(mass.sum())
    if total <= 0 or not block.is_product:
        return Share(limit, position, total, even_rows(block))
    rows = []
    for k, (members, counts) in enumerate(zip(classes.members, classes.counts, strict=True)):
        beside = tuple(j for j in range(mass.ndim) if j != k)
        rows.append((mass.sum(axis=beside) / counts)[members] / total)
    return Share(limit, position, total, tuple(rows))


def mixed(old: Sequence[Share], new: Sequence[Share], step: float) -> list[Share]:
    """Return the shares between the old ones and the new ones: a part `step` is the new ones'."""
    out = []
    for earlier, later in zip(old, new, strict=True):
        mass = (1 - step) * earlier.mass + step * later.mass
        part = step * later.mass / mass if mass > 0 else 0.0
        pairs = zip(earlier.rows, later.rows, strict=True)
        rows = tuple((1 - part) * u + part * v for u, v in pairs)
        out.append(Share(earlier.limit, earlier.block, mass, rows))
    return out


def bounding_workload(workload: Workload, goal: Goal, shares: Sequence[Share]) -> Workload:
    """Return a workload whose least loss is at most the square of any strategy's score.

    A weighted mean of squared figures over squared targets, whatever the weights, is at most the
    largest of them.
    """
    pairs = []
    for share in shares:
        if share.mass > 0:
            weight = share.mass / goal[share.limit].target ** 2
            pairs.append(_weighted(workload.blocks[share.block], weight, share.rows))
    blocks, weights = zip(*pairs, strict=True)
    return Workload(workload.shape_of_domain, blocks, weights)


def tuning_workload(workload: Workload, goal: Goal, shares: Sequence[Share]) -> Workload:
    """Return the workload, block by block, with the weights that strategies are selected for.

    Every query keeps a little weight, those of no limit too, so that a strategy supports it. Where
    several limits meet in a block, their weights are added and held as one outer product.
    """
    even = even_shares(goal, workload)
    totals = [0.0] * len(workload.blocks)
    rows: list[list[Floats]] = [[np.zeros(m) for m in block.row_shape] for block in workload.blocks]
    for share in mixed(shares, even, WEIGHT_FLOOR):
        mass = share.mass / goal[share.limit].target ** 2
        totals[share.block] += mass
        for axis_rows, vector in zip(rows[share.block], share.rows, strict=True):
            axis_rows += mass * vector
    whole, size = sum(totals), len(totals)
    pairs = []
    for block, total, vectors in zip(workload.blocks, totals, rows, strict=True):
        if total > 0:
            pairs.append(_weighted(block, total, tuple(v / total for v in vectors)))
        else:
            pairs.append(_weighted(block, REST * whole / size, even_rows(block)))
    blocks, weights = zip(*pairs, strict=True)
    return Workload(workload.shape_of_domain, blocks, weights)


def raised(
    shares: Sequence[Share],
    goal: Goal,
    workload: Workload,
    strategy: Strategy,
    *,
    power: float,
    change: RecordChange = "enters",
) -> tuple[list[Share], float]:
    """Return shares with more weight on badly answered queries: a multiplicative update.

    Returns:
        The new shares, and the weighted mean of the squared figures over squared targets under the
        old ones: at the optimum it is the square of the score.
    """
    scale = squared_sensitivity(strategy, change)
    terms = {
        k: strategy.variances(workload.blocks[k], position=k)
        for k in sorted({share.block for share in shares})
    }
    new, mean = [], 0.0
    for place, limit in enumerate(goal):
        limit_shares = [share for share in shares if share.limit == place]
        unit = scale / limit.target**2
        if limit.figure == "rmse":
            total = sum(total_of(terms[k], workload.blocks[k]) for k in limit.blocks)
            excess = total * unit / queries(limit, workload)
            mean += excess * sum(share.mass for share in limit_shares)
            new += [
                Share(place, share.block, share.mass * excess**power, share.rows)
                for share in limit_shares
            ]
            continue
        for share in limit_shares:
            block = workload.blocks[share.block]
            classes = row_classes(block, terms[share.block])
            raised_share, part = _raised(share, block, classes, unit, power)
            new.append(raised_share)
            mean += part
    whole = sum(share.mass for share in new)
    return [Share(share.limit, share.block, share.mass / whole, share.rows) for share in new], mean


def _raised(
    share: Share, block: Block, classes: RowClasses, unit: float, power: float
) -> tuple[Share, float]:
    if math.prod(classes.shape) > MAX_EXPANDED_ROWS:
        peak = unit * largest_of(classes.terms)
        grown_mass = share.mass * peak**power
        return Share(share.limit, share.block, grown_mass, share.rows), share.mass * peak
    squares = np.broadcast_to(np.maximum(expand(classes.terms) * unit, 0.0), classes.shape)
    weights = np.array(share.mass)
    for members, rows in zip(classes.members, share.rows, strict=True):
        weights = np.multiply.outer(weights, np.bincount(members, rows))
    grown = weights * squares**power
    total = float(grown.sum())
    mean = float((weights * squares).sum())
    if total <= 0 or not block.is_product:
        return Share(share.limit, share.block, total, share.rows), mean
    rows_of = []
    for k, (members, rows) in enumerate(zip(classes.members, share.rows, strict=True)):
        beside = tuple(j for j in range(grown.ndim) if j != k)
        before, after = weights.sum(axis=beside), grown.sum(axis=beside)
        ratio = np.divide(after, before, out=np.zeros_like(before), where=before > 0)
        vector = rows * ratio[members]
        rows_of.append(vector / vector.sum())
    return Share(share.limit, share.block, total, tuple(rows_of)), mean


def even_rows(block: Block) -> tuple[Floats, ...]:
    """Return equal weights of all predicates on each axis."""
    return tuple(np.full(m, 1 / m) for m in block.row_shape)


def _weighted(block: Block, weight: float, rows: Sequence[Floats]) -> tuple[Block, float]:
    factors: list[Factor] = []
    for factor, vector in zip(block.factors, rows, strict=True):
        if not block.is_product or np.ptp(vector) <= 1e-12 * vector.max():
            weight /= factor.shape[0]
            factors.append(factor)
        else:
            factors.append(weighted(factor, vector))
    return replace(block, factors=tuple(factors)), weight


MINIMAX_ITERATIONS = 400  # at each sharpness
SHARPNESSES = tuple(4.0**k for k in range(1, 9))  # the t of the smoothed maximum
SCORE_GAP = 1e-4  # relative gap of score and bound at which the solver is content
REST_BUDGET = 0.01  # of the budget, for the tables that a goal says nothing of
SPARE = 1e-6  # of the budget, for blocks of cores that no answer depends on


@dataclass(frozen=True, eq=False)
class Budgets:
    """The best noise of every block of cores."""

    noise: dict[Subset, float]  # the standard deviation s_b of each block, for a budget of one
    score: float  # of the goal, at sensitivity one
    bound: float  # a lower bound on the score of any budget on the same cores
    shares: list[Share]  # the weights of queries that prove it


class BudgetProblem:
    """The variances of a goal's queries, for an equal part of the budget on each block of cores.

    Attributes:
        subsets: the blocks of cores that the queries depend on.
        matrix: (queries or classes of queries, subsets); an RMSE is one row.
    """

    def __init__(self, workload: Workload, goal: Goal, cores: tuple[Core | None, ...]) -> None:
        self.workload, self.goal, self.cores = workload, goal, cores
        self.classes: dict[int, RowClasses] = {}
        below: dict[int, list[Subset]] = {}
        for k in sorted({k for limit in goal for k in limit.blocks}):
            block = workload.blocks[k]
            pairs = zip(block.attributes, block.factors, strict=True)
            sides = [side_of(cores[i], factor) for i, factor in pairs]
            by_subset = list(split_terms(block, sides, order=2))
            below[k] = [b for b, terms in by_subset for _ in terms]
            terms = [term for _, subset_terms in by_subset for term in subset_terms]
            self.classes[k] = row_classes(workload.blocks[k], terms)
        size = sum(
            math.prod(classes.shape) * len(classes.terms) for classes in self.classes.values()
        )
        if size > MAX_MINIMAX_COEFFICIENTS:
            raise UnsupportedWorkloadError(f"{float(size):.1e} variances to weigh")
        every = dict.fromkeys(b for block_subsets in below.values() for b in block_subsets)
        place = {b: j for j, b in enumerate(every)}
        self.pieces: list[tuple[int, int, slice]] = []  # limit, block, where its rows stand
        rows, columns, values, size = [], [], [], 0
        for number, limit in enumerate(self.goal):
            for k in limit.blocks:
                tables = self._tables(number, k)
                span = slice(size, size + tables.shape[1])
                self.pieces.append((number, k, span))
                rows.append(np.tile(np.arange(span.start, span.stop), len(tables)))
                columns.append(np.repeat([place[b] for b in below[k]], tables.shape[1]))
                values.append(tables.ravel())
                size = span.stop if limit.figure == "sd" else size
            size += limit.figure == "rmse"
        index = (np.concatenate(rows), np.concatenate(columns))
        whole = sp.csr_array((np.concatenate(values), index), shape=(size, len(place)))
        whole = whole @ sp.diags_array([self.cost(b) for b in place])
        used = np.asarray(whole.max(axis=0).todense()).ravel() > 0
        subsets = [b for b, is_used in zip(place, used, strict=True) if is_used]
        self.subsets, self.matrix = subsets, sp.csr_array(whole[:, np.nonzero(used)[0]])

    def cost(self, b: Subset) -> float:
        """Return p_b, the squared sensitivity of a block of cores."""
        norms = [core.factor.column_norms(2).max() for core in (self.cores[i] for i in b) if core]
        return math.prod(map(float, norms), start=1.0)

    def _tables(self, number: int, k: int) -> Numbers:
        """Return the contribution of each term of a block to every class, or to the RMSE."""
        limit, classes = self.goal[number], self.classes[k]
        if limit.figure == "sd":
            tables = [
                np.broadcast_to(expand([term]), classes.shape).ravel() for term in classes.terms
            ]
            return np.array(tables) / limit.target**2
        counts, whole = classes.counts, queries(limit, self.workload)
        sums = [
            [coef * math.prod(float(v @ n) for v, n in zip(vs, counts, strict=True)) / whole]
            for coef, vs in classes.terms
        ]
        return np.array(sums) / limit.target**2

    def solve(self) -> Budgets:
        """Return the best budgets; ever sharper maxima are minimised, each from the last."""
        x = -np.log(self.matrix.T @ np.ones(self.matrix.shape[0])) / 2
        value, noise = math.inf, x
        bound, weights = 0.0, np.ones(self.matrix.shape[0])
        for t in SHARPNESSES:
            x = self._sharpened(x, t)
            f = self.matrix @ np.exp(x)
            reached = float(f.max()) * float(np.exp(-x).sum())
            if reached < value:
                value, noise = reached, x
            lambdas = (f / f.max()) ** (t - 1)
            proven = float(np.sqrt(self.matrix.T @ lambdas).sum()) ** 2 / float(lambdas.sum())
            if proven > bound:
                bound, weights = proven, lambdas / lambdas.sum()
            if value <= bound * (1 + SCORE_GAP):
                break
        shares = []
        for number, k, span in self.pieces:
            block, classes, mass = self.workload.blocks[k], self.classes[k], weights[span]
            limit = self.goal[number]
            if limit.figure == "rmse":
                part = block.queries / queries(limit, self.workload)
                shares.append(Share(number, k, float(mass[0]) * part, even_rows(block)))
            else:
                shares.append(share_of(number, k, block, classes, mass.reshape(classes.shape)))
        return Budgets(self._noise(noise), math.sqrt(value), math.sqrt(bound), shares)

    def _sharpened(self, x: Floats, t: float) -> Floats:
        def fun(point: Floats) -> tuple[float, Floats]:
            report_progress(f"budgets: sharpness {t:g}")
            return self.smoothed(point, t)

        result = minimize(
            fun,
            x,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": MINIMAX_ITERATIONS, "ftol": 1e-10, "gtol": 1e-8},
        )
        return np.asarray(result.x)

    def smoothed(self, x: Floats, t: float) -> tuple[float, Floats]:
        """Return the smoothed log of the squared score, and its gradient. x: (subsets,)."""
        e = np.exp(x)
        f = self.matrix @ e
        top, cost = float(f.max()), float((1 / e).sum())
        w = (f / top) ** t
        total = float(w.sum())
        slope = e * (self.matrix.T @ (w / f)) / total - 1 / e / cost
        return math.log(cost) + math.log(top) + math.log(total) / t, slope

    def _noise(self, x: Floats) -> dict[Subset, float]:
        """Return s_b of every subset below a table: sqrt(p_b exp(x_b)), for a budget of one.

        What the goal says nothing of takes equal parts of REST of the budget, or of SPARE where
        only blocks are left that no answer depends on.
        """
        ratios = np.exp(x).tolist()  # s_b^2 / p_b
        budget = {b: 1 / ratio for b, ratio in zip(self.subsets, ratios, strict=True)}
        limited = {k for limit in self.goal for k in limit.blocks}
        shape, whole = self.workload.shape_of_domain, sum(budget.values())
        other: dict[Subset, None] = {}
        for block in self.workload.blocks:
            wide = tuple(i for i in block.attributes if shape[i] > 1)
            other.update(dict.fromkeys(b for b in subsets_of(wide) if b not in budget))
        part = REST_BUDGET if len(limited) < len(self.workload.blocks) else SPARE
        budget |= dict.fromkeys(other, part * whole / max(len(other), 1))
        whole = sum(budget.values())
        return {b: math.sqrt(self.cost(b) * whole / share) for b, share in budget.items()}
