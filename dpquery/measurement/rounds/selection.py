"""The exact exponential mechanism, what it selects from, and how far a record moves that.

Selection of the worst answered queries: exact exponential mechanisms without replacement.

A query is off by d = true count - rounded synthetic count, a whole number. Its score is max(d, 0)
among those answered too low ("under"), max(-d, 0) among those answered too high ("over"), or |d|
("either"). A round draws queries one after another and none twice, each with probability
proportional to exp(eta score) among those that are left. That is the law of the largest
score + Gumbel(1 / eta), in their order [DR19]; no Gumbel noise is drawn, for the law does not
distinguish queries of one score: a score is drawn first, with probability proportional to
(queries left at it) exp(eta score), and then one of its queries, each as likely. The scores are
counted block by block, so memory is that of one block's answers.

Privacy: let neighbours move every count by at most D: D is 1 for rows, and the most rows of a
person for persons; replacing records moves a count by no more than that, since the records taken
out and those put in pull it in opposite directions. The synthetic counts are public. One draw has
log ratio eta (s'_q - s_q) - ln(Z' / Z) at query q, and over all q the first term spans at most
    2 eta D   for "either", where scores move up and down, by D at most;
    eta D     for "under" and "over" where records are added or removed: all counts that move at
              all move the same way then, hence all scores, and by D at most.
A mechanism whose log ratio spans at most r is r-bounded-range, hence (r^2 / 8)-zCDP [CR21]. Given
the queries drawn before it, which are public by then, every draw is such a mechanism on those left,
so that K draws cost rho = K (eta D)^2 / 2, or a quarter of that on one side: one-sided draws are
twice as sharp at the same cost, and those of one round may be split between the two sides.

Exactness: with the scores from the largest down, a uniform real U in [0, 1) chooses the first score
whose cumulative weight passes U times the total. Weights are held between whole numbers of 2^-B,
and U between two of its leading bits; where these leave two answers, both are made finer. No float
decides. All bits are os.urandom's. The running time depends on the scores: it is not protected.

The draw of the table that the model is furthest from: an exact exponential mechanism.

The score of a table t is a whole number,

    s_t = w_t (|| M_t - rounded table of the model ||_1 - penalty_t),

with M_t its true counts, w_t its weight, and penalty_t the L1 norm that the noise of measuring it
is expected to have, rounded: what would be learnt beyond the noise [McKenna22]. Table t is drawn
with probability proportional to exp(eta s_t).

Privacy: weights and penalties are public, and so is the model, a function of noisy values. Let
neighbours move every true table by at most S in L1: S = D where D records are added or removed, and
2 D where they are replaced. Then s_t moves by at most w_t S, up or down. The log ratio of a draw is
eta (s'_t - s_t) - ln(Z' / Z) at table t, and over all tables the first term spans at most
2 eta S max_t w_t. A mechanism whose log ratio spans at most r is r-bounded-range, hence
(r^2 / 8)-zCDP [CR21]: AdaptiveBudget.round takes the sharpest eta with which that is the share of
the draw. [MATH] 10.8.

Exactness: scores are integers, and the law is drawn by ExactChance; see rap.selection.

The tables that an adaptive run may measure: all below what the questions ask, and their weights.

A candidate is a set of attributes that some block of the workload holds, over the classes that the
workload is counted in, so that one rule serves marginals, groups, ranges, thresholds and unions. A
candidate weighs what the workload has in common with it: the sum over all blocks of the weight of
the block times the number of attributes that both hold, as in AIM [McKenna22]. Only ratios matter
to a draw, so weights are whole numbers, of which the largest is LARGEST_WEIGHT.

The sensitivity of selected queries, by families of which a record answers one at most.

Two queries are disjoint where no record satisfies both. Let the selected queries be split into
families of pairwise disjoint ones. A record added or removed moves at most one count of a family,
by 1: the squared length of the move of all counts is at most the number of families. Replacing a
record moves at most two counts of a family, one down and one up, and none of them by more than 1:
that is at most the sum over families of min(size, 2). A person's c records are c such moves one
after another, whose lengths add up, so c^2 times that bounds the squared length. No split is ever
worse than counting every query, which is the family of each alone; any split is sound, so it is
made in the simplest way: a query joins the first family that it is disjoint with as a whole.

Which queries are disjoint is read off their predicates. Let two queries have h attributes on which
both have a predicate and these share no code. A record that satisfied both would fail one of the
two predicates on each of those attributes: h in all. But a query that asks at least r of its k
counted predicates, and all the others, lets k - r of them fail and no more. So they are disjoint if
h is greater than what the two let fail together, or if one of the h predicate pairs has both sides
uncounted. For cells of one marginal, k = r, and h = 1 is enough.

The selected queries are public by the time they are measured, and so is all of this.
"""

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Bools, Ints, Singles
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_ADAPTIVE_CELLS, MAX_ADAPTIVE_TABLES
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.noise.bulk_noise import Entropy, SlowSampler
from dpquery.measurement.noise.exact_noise import draw
from dpquery.operators.blocks import Block, Workload
from dpquery.progress import reporting
from dpquery.strategy.algebra.subsets import Subset

ErrorSide = Literal["under", "over", "either"]

LARGEST_COUNT = 2**40  # synthetic counts beyond it count as that: every true count is below 2^36
_TAKEN = -(2**63)


class Chance(Protocol):
    """The interface of random decisions in RAP; the curator's are exact and without a seed."""

    def level(self, scores: Sequence[int], members: Sequence[int], rate: Fraction) -> int:
        """Return i with probability proportional to members[i] exp(rate scores[i]).

        Args:
            scores: increasing.
            members: not negative, and not all 0.
            rate: eta, positive.
        """
        ...

    def below(self, bound: int) -> int:
        """Return a whole number from 0 to below the bound, each as likely."""
        ...

    def add_noise(
        self, answers: Ints, *, budget: Guarantee, sensitivity: int, scale: float
    ) -> Ints:
        """Return the answers, each with discrete Gaussian noise of a scale; see noise.draw."""
        ...


@dataclass(frozen=True)
class ExactChance:
    """The curator's random decisions: exact laws, the operating system's randomness, no seed.

    Attributes:
        entropy: returns so many independent fair bytes. The product never gives another than the
            operating system's; tests do, to make what is rare happen.
    """

    entropy: Entropy = os.urandom

    def level(self, scores: Sequence[int], members: Sequence[int], rate: Fraction) -> int:
        """Return i with probability proportional to members[i] exp(rate scores[i])."""
        random, u, bits = SlowSampler(self.entropy), 0, 0
        while True:
            u, bits = u << 64 | random.bits(64), bits + 64
            level = _decided(u, bits, scores, members, rate)
            if level is not None:
                return level

    def below(self, bound: int) -> int:
        """Return a whole number from 0 to below the bound, each as likely."""
        random, bits = SlowSampler(self.entropy), (bound - 1).bit_length()
        while (drawn := random.bits(bits)) >= bound:
            pass
        return drawn

    def add_noise(
        self, answers: Ints, *, budget: Guarantee, sensitivity: int, scale: float
    ) -> Ints:
        """Return the answers, each with discrete Gaussian noise of a scale; see noise.draw."""
        with reporting(None):  # the rounds are reported, not their few draws
            return draw(answers, budget=budget, sensitivity=sensitivity, scale=scale)


def select_queries(
    differences: Callable[[int], Ints],
    *,
    blocks: int,
    taken: Ints,
    sides: Sequence[tuple[ErrorSide, int]],
    rate: Fraction,
    chance: Chance,
) -> Ints:
    """Return the places of queries drawn one after another, (k, 2) in that order.

    Args:
        differences: d of the queries of the block at a position, (m,); called once for every block,
            and once more for those that hold a query drawn.
        blocks: their number.
        taken: (k, 2) places, of a block and a row in it, that were drawn in earlier rounds.
        sides: how many to draw on which side; at least so many queries are left in all.
        rate: eta.
        chance: draws scores and queries.
    """
    histograms = [_histogram(_left(differences(block), block, taken)) for block in range(blocks)]
    block_of = np.repeat(np.arange(blocks), [len(distinct) for distinct, _ in histograms])
    levels = np.concatenate([distinct for distinct, _ in histograms])
    urn = _Urn(np.concatenate([counts for _, counts in histograms]))
    picked = []
    for side, size in sides:
        distinct_scores, group = np.unique(scores_of(levels, side), return_inverse=True)
        scores, members = distinct_scores.tolist(), urn.counts(group).tolist()
        for _ in range(size):
            level = chance.level(scores, members, rate)
            entry, rank = urn.take(np.flatnonzero(group == level), chance.below(members[level]))
            members[level] -= 1
            picked.append((int(block_of[entry]), int(levels[entry]), rank))
    return _rows(picked, differences, taken)


class _Urn:
    """The number of queries left at each entry: a block and a difference in it."""

    def __init__(self, left: Ints) -> None:
        """Start with so many queries at each entry."""
        self._left = left
        self._ranks_taken: dict[int, list[int]] = {}

    def counts(self, group: Ints) -> Ints:
        """Return how many queries are left in each group of entries."""
        counts = np.zeros(int(group.max()) + 1, dtype=np.int64)
        np.add.at(counts, group, self._left)
        return counts

    def take(self, entries: Ints, rank: int) -> tuple[int, int]:
        """Remove the query of a rank among those left at some entries.

        Returns:
            Its entry, and its rank among all that were ever at the entry.
        """
        ends = np.cumsum(self._left[entries])
        place = int(np.searchsorted(ends, rank, side="right"))
        entry = int(entries[place])
        rank -= int(ends[place] - self._left[entry])
        self._left[entry] -= 1
        earlier = self._ranks_taken.setdefault(entry, [])
        for other in sorted(earlier):
            rank += rank >= other
        earlier.append(rank)
        return entry, rank


def differences_of(exact: Ints, synthetic: NDArray[np.floating]) -> Ints:
    """Return true counts less rounded synthetic ones: whole, whatever the public side says.

    Args:
        exact: (m,) true counts.
        synthetic: (m,) synthetic counts; what is not a number counts as 0.
    """
    limit = float(LARGEST_COUNT)
    rounded = np.rint(np.nan_to_num(synthetic, nan=0.0, posinf=limit, neginf=-limit))
    return np.asarray(exact - np.clip(rounded, -limit, limit).astype(np.int64))


def scores_of(differences: Ints, side: ErrorSide) -> Ints:
    """Return the scores of queries with these differences."""
    if side == "either":
        return np.abs(differences)
    return np.maximum(differences if side == "under" else -differences, 0)


def _left(differences: Ints, block: int, taken: Ints) -> Ints:
    """Return a block's differences, those of queries already drawn marked as _TAKEN."""
    struck = differences.copy()
    struck[taken[taken[:, 0] == block, 1]] = _TAKEN
    return struck


def _histogram(differences: Ints) -> tuple[Ints, Ints]:
    """Return the distinct differences, increasing, and the number of queries at each."""
    left = differences[differences != _TAKEN]
    if not left.size:
        return left, left
    least = int(left.min())
    if int(left.max()) - least < 4 * left.size + 2**16:
        counts = np.bincount(left - least)
        levels = np.flatnonzero(counts)
        return levels + least, counts[levels]
    return np.unique(left, return_counts=True)


def _rows(
    picked: list[tuple[int, int, int]], differences: Callable[[int], Ints], taken: Ints
) -> Ints:
    """Return the places of queries given as (block, difference, rank among those with it)."""
    places = np.empty((len(picked), 2), dtype=np.int64)
    for block in sorted({block for block, _, _ in picked}):
        left = _left(differences(block), block, taken)
        for k, (position, difference, rank) in enumerate(picked):
            if position == block:
                places[k] = block, np.flatnonzero(left == difference)[rank]
    return places


def _decided(
    u: int, bits: int, scores: Sequence[int], members: Sequence[int], rate: Fraction
) -> int | None:
    """Return the level that every U in [u, u + 1) / 2^bits chooses, or None if there are several.

    Weights are counted in units of 2^-B of the largest score's. A score more than `reach` below it
    has a weight below one unit, as rate (reach + 1) > B ln 2.
    """
    last = max(i for i, queries in enumerate(members) if queries)
    total = sum(members)
    fineness = bits + 64 + total.bit_length()
    reach = int(fineness * Fraction(6932, 10000) / rate)
    first = bisect_left(scores, scores[last] - reach)
    order = [i for i in range(last, first - 1, -1) if members[i]]
    low = [_weight(scores[last] - scores[i], rate, fineness) for i in order]
    lows = list(accumulate(members[i] * weight for i, weight in zip(order, low, strict=True)))
    below = list(accumulate(members[i] for i in order))
    highs = [weight + 3 * queries for weight, queries in zip(lows, below, strict=True)]
    tail = total - below[-1]
    most = highs[-1] + tail
    chosen = bisect_left(lows, -(-(u + 1) * most >> bits))
    if chosen == len(order):
        if tail:
            return None
        chosen -= 1
    if chosen and highs[chosen - 1] << bits > u * lows[-1]:
        return None
    return order[chosen]


@lru_cache(maxsize=1 << 17)
def _weight(gap: int, rate: Fraction, fineness: int) -> int:
    """Return w with w <= 2^B exp(-rate gap) <= w + 3, w >= 0; the exponent is at most B.

    With D digits the exponent, being at most B, errs by at most B 10^-D, and its exponential,
    which is rounded correctly, and the product by a relative 10^(1-D) each: together by less than
    (B + 30) 10^-D 2^B, which is less than 1 for the D chosen.
    """
    with localcontext(prec=fineness * 302 // 1000 + len(str(fineness)) + 5):
        exponent = Decimal(rate.numerator * gap) / Decimal(rate.denominator)
        scaled = (-exponent).exp() * Decimal(1 << fineness)
    return max(0, int(scaled) - 1)


MOST_CANDIDATE_CELLS = 10_000
"""Cells of a candidate of several attributes at most: larger ones say little in any round."""
LARGEST_WEIGHT = 1 << 10


@dataclass(frozen=True)
class CandidateTables:
    """The tables that may be measured, numbered from 0; public.

    Attributes:
        subsets: attributes of each, ascending; those of one attribute come first.
        sizes: cells of each.
        weights: of each in a draw, at least 1.
    """

    subsets: tuple[Subset, ...]
    sizes: tuple[int, ...]
    weights: tuple[int, ...]

    @property
    def one_way(self) -> int:
        """Number of tables of one attribute, which are measured first."""
        return sum(len(subset) == 1 for subset in self.subsets)


def candidate_tables(workload: Workload) -> CandidateTables:
    """Return the tables that may be measured for a workload.

    Raises:
        UnsupportedWorkloadError: the questions ask for one table only, or for too many.
    """
    shape = workload.shape_of_domain
    asked: dict[Subset, Fraction] = {}
    for block, weight in zip(workload.blocks, workload.weights, strict=True):
        attributes = tuple(i for i in block.attributes if shape[i] > 1)
        asked[attributes] = asked.get(attributes, Fraction(0)) + Fraction(weight)
    asked.pop((), None)
    products = all(block.is_product for block in workload.blocks)
    if not asked or (len(asked) == 1 and products):
        raise UnsupportedWorkloadError(
            "adaptive measurement chooses among tables, and the questions ask for one table only: "
            "there is nothing to adapt to; take --mechanism linear"
        )
    subsets = _closure(asked, shape)
    of_attribute = [Fraction(0)] * len(shape)  # what all blocks that hold it weigh
    for attributes, summed in asked.items():
        for i in attributes:
            of_attribute[i] += summed
    shared = [sum(of_attribute[i] for i in subset) for subset in subsets]
    largest = max(shared)
    return CandidateTables(
        subsets,
        tuple(math.prod(shape[i] for i in subset) for subset in subsets),
        tuple(max(1, round(LARGEST_WEIGHT * each / largest)) for each in shared),
    )


def _closure(asked: dict[Subset, Fraction], shape: tuple[int, ...]) -> tuple[Subset, ...]:
    """Return all sets below those asked that are small enough: smaller ones first, in order."""
    closure: set[Subset] = set()
    cells = 0
    for attributes in sorted(asked):
        level: set[Subset] = {(i,) for i in attributes}
        while level:
            new = level - closure
            closure |= new
            cells += sum(math.prod(shape[i] for i in subset) for subset in new)
            if len(closure) > MAX_ADAPTIVE_TABLES or cells > MAX_ADAPTIVE_CELLS:
                raise UnsupportedWorkloadError(
                    "adaptive measurement looks at all tables below those that are asked for, at "
                    f"most {MAX_ADAPTIVE_TABLES:,} of {MAX_ADAPTIVE_CELLS:,} cells in all, and "
                    "this workload has more; ask for fewer tables or coarser sets, or take "
                    "--mechanism linear"
                )
            level = {
                (*subset, i)
                for subset in level
                for i in attributes
                if i > subset[-1]
                and math.prod(shape[j] for j in subset) * shape[i] <= MOST_CANDIDATE_CELLS
            }
    return tuple(sorted(closure, key=lambda subset: (len(subset), subset)))


CELLS_AT_ONCE = 1 << 16


def draw_table(
    tables: Callable[[int], Ints],
    model: Callable[[int], NDArray[np.floating]],
    *,
    candidates: CandidateTables,
    std: float,
    rate: Fraction,
    chance: Chance,
) -> int:
    """Return the number of a table, drawn by how far the model is from it.

    Args:
        tables: true counts of the candidate of a number, (cells,); confidential.
        model: what the model has for it, (cells,); public.
        candidates: the tables that may be drawn.
        std: of the noise that the table is to be measured with, in counts.
        rate: eta.
        chance: draws.
    """
    penalties = penalties_of(candidates, std)
    moves = distances(tables, model, candidates.sizes)
    scores = [
        weight * (moved - penalty)
        for weight, moved, penalty in zip(candidates.weights, moves, penalties, strict=True)
    ]
    levels = sorted(set(scores))
    of_level: list[list[int]] = [[] for _ in levels]
    place = {score: level for level, score in enumerate(levels)}
    for number, score in enumerate(scores):
        of_level[place[score]].append(number)
    drawn = of_level[chance.level(levels, [len(equal) for equal in of_level], rate)]
    return drawn[chance.below(len(drawn))]


def distances(
    tables: Callable[[int], Ints],
    model: Callable[[int], NDArray[np.floating]],
    sizes: Sequence[int],
) -> list[int]:
    """Return for each table the L1 distance of true counts from rounded ones of a model.

    They are whole numbers. Small tables are compared many at a time.

    Args:
        tables: true counts of the table of a number, (cells,); confidential.
        model: what the model has for it, (cells,); public.
        sizes: cells of each.
    """
    apart: list[int] = []
    while len(apart) < len(sizes):
        first, ends = len(apart), [sizes[len(apart)]]
        while first + len(ends) < len(sizes) and ends[-1] < CELLS_AT_ONCE:
            ends.append(ends[-1] + sizes[first + len(ends)])
        numbers = range(first, first + len(ends))
        exact = np.concatenate([tables(number) for number in numbers])
        synthetic = np.concatenate([model(number) for number in numbers])
        differences = np.abs(differences_of(exact, synthetic))
        apart += np.add.reduceat(differences, [0, *ends[:-1]]).tolist()
    return apart


def penalties_of(candidates: CandidateTables, std: float) -> list[int]:
    """Return the L1 norm that noise on each table is expected to have, rounded; public."""
    return [round(noise_norm(std, cells)) for cells in candidates.sizes]


def noise_norm(std: float, cells: int) -> float:
    """Return the expected L1 norm of normal noise on so many cells."""
    return math.sqrt(2 / math.pi) * std * cells


_NONE = -1


def family_sizes(workload: Workload, places: Ints) -> list[int]:
    """Return the sizes of families of pairwise disjoint queries that hold each of these once.

    Args:
        workload: blocks of 0/1 queries.
        places: (k, 2): position of a block, number of a row in it. O(k^2) for k of them.
    """
    ordered = places[np.lexsort((places[:, 1], places[:, 0]))]
    clashes, barred = _clashes(workload, ordered)
    slack = np.array([_slack(workload.blocks[position]) for position, _ in ordered])
    family = np.zeros(len(ordered), dtype=np.int64)
    sizes: list[int] = []
    for k in range(len(ordered)):
        disjoint = (clashes[k, :k] > slack[k] + slack[:k]) | barred[k, :k]
        disjoint_members = np.bincount(family[:k], weights=disjoint, minlength=len(sizes))
        fitting = np.flatnonzero(disjoint_members == np.array(sizes))
        family[k] = fitting[0] if fitting.size else len(sizes)
        if fitting.size:
            sizes[family[k]] += 1
        else:
            sizes.append(1)
    return sizes


def squared_move(sizes: list[int], *, replace: bool, records: int) -> int:
    """Return a bound on the squared L2 move of the counts between neighbours.

    Args:
        sizes: of families of pairwise disjoint queries.
        replace: whether neighbours have records replaced, or added or removed.
        records: c, the most records of a person.
    """
    return records**2 * sum(min(size, 2 if replace else 1) for size in sizes)


def _slack(block: Block) -> int:
    """Return how many of a row's predicates may fail."""
    return sum(block.counted) - block.at_least


def _clashes(workload: Workload, places: Ints) -> tuple[Ints, Bools]:
    """Return h for all pairs of queries, and whether a pair has two uncounted sides: (k, k)."""
    clashes = np.zeros((len(places), len(places)), dtype=np.int64)
    barred = np.zeros((len(places), len(places)), dtype=np.bool_)
    for i in workload.attributes:
        numbers, matrix = _predicates(workload, places, i)
        apart = matrix @ matrix.T == 0
        restricted = numbers != _NONE
        clash = apart[np.ix_(numbers, numbers)] & restricted[:, None] & restricted
        counted = np.array([_counted(workload.blocks[position], i) for position, _ in places])
        clashes += clash
        barred |= clash & ~counted[:, None] & ~counted
    return clashes, barred


def _counted(block: Block, i: int) -> bool:
    """Return whether a block counts its predicates on attribute i."""
    return i in block.attributes and block.counted[block.attributes.index(i)]


def _predicates(workload: Workload, places: Ints, i: int) -> tuple[Ints, Singles]:
    """Return which predicate each query has on attribute i, or -1, and the distinct ones as rows.

    The rows are 0/1 over the codes, in floats, which hold the number of shared codes exactly.
    """
    row_of: dict[Hashable, int] = {}
    numbers = np.full(len(places), _NONE)
    rows = [np.zeros(workload.shape_of_domain[i], dtype=np.float32)]
    for k, (position, row) in enumerate(places.tolist()):
        block = workload.blocks[position]
        if i not in block.attributes:
            continue
        axis = block.attributes.index(i)
        factor = block.factors[axis]
        index = int(np.unravel_index(row, block.row_shape)[axis])
        if (factor.key, index) not in row_of:
            row_of[factor.key, index] = len(rows)
            rows.append(factor.row(index).astype(np.float32))
        numbers[k] = row_of[factor.key, index]
    return numbers, np.stack(rows)
