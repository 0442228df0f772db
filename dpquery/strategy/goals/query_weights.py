"""Weights of single queries: how a goal turns into a weighted workload, and back.

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

from dpquery.arrays import Floats, Ints
from dpquery.limits import MAX_EXPANDED_ROWS
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.factors import Factor
from dpquery.operators.weighted_rows import weighted
from dpquery.strategy.algebra.row_sums import RowSums, expand, total_of
from dpquery.strategy.errors.expected_error import largest_of, squared_sensitivity
from dpquery.strategy.goals.goals import Goal, queries
from dpquery.strategy.record_changes import RecordChange
from dpquery.strategy.shapes.strategies import Strategy

REST = 1e-4  # of all weight, for the blocks that a goal says nothing of: about 1 % of the budget
WEIGHT_FLOOR = 1e-3  # of a limit's weight, spread evenly: no query goes unsupported


@dataclass(frozen=True, eq=False)
class Share:
    """The weight of a block's queries within one limit.

    Attributes:
        limit: the position of the limit in the goal.
        block: the position of the block in the workload.
        mass: all weight of its queries together; the masses of all shares add to one.
        rows: for each axis of the block the weights of its predicates, (m_k,), adding to one.
    """

    limit: int
    block: int
    mass: float
    rows: tuple[Floats, ...]


@dataclass(frozen=True, eq=False)
class RowClasses:
    """Classes of a block's queries that no term of a sum of outer products distinguishes.

    Attributes:
        members: for each axis the class of every predicate, (m_k,).
        terms: the terms over classes instead of predicates.
    """

    members: tuple[Ints, ...]
    terms: RowSums

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

    Args:
        shares: the old weights.
        goal: the targets of the figures.
        workload: the queries.
        strategy: what was selected for the old weights.
        power: of a query's squared figure, by which its weight grows.
        change: what one record does between neighbours.

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
    """Return a block with queries scaled by the roots of their weights, and the block's weight."""
    factors: list[Factor] = []
    for factor, vector in zip(block.factors, rows, strict=True):
        if not block.is_product or np.ptp(vector) <= 1e-12 * vector.max():
            weight /= factor.shape[0]
            factors.append(factor)
        else:
            factors.append(weighted(factor, vector))
    return replace(block, factors=tuple(factors)), weight
