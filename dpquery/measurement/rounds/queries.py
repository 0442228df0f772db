"""RAP's rounds: single queries, chosen by how far off they are answered, and measured together.

The budget. The total is measured first, as all answers are multiples of it: it takes as much as
one more query would, and at least a twentieth. Where a dataset declares its exact number of rows
under "replace", that number is the total, public and free. What is left goes to T rounds alike, and
is halved between choosing and measuring, as the seed does.

The choice. A query is off by d = true count - rounded synthetic count, a whole number. Its score is
max(d, 0) among those answered too low ("under"), max(-d, 0) among those answered too high ("over"),
or |d| ("either"). Neighbours move every count by at most D: D is 1 for rows, and the most rows of a
person for persons; replacing records moves a count by no more than that, since the records taken
out and those put in pull it in opposite directions. So the moves of two scores are apart by at most
    2 D   for "either", where scores move up and down;
    D     for "under" and "over" where records are added or removed: all counts that move at all
          move the same way then, hence all scores.
One-sided draws are twice as sharp at the same cost: three quarters of the queries are drawn among
those answered too low and a quarter among those answered too high. Relaxed rows start spread out,
so the large errors are mostly counts too low. Scores are counted block by block, so memory is that
of one block's answers.

The sensitivity of selected queries, by families of which a record answers one at most. Two queries
are disjoint where no record satisfies both. Let the selected queries be split into families of
pairwise disjoint ones. A record added or removed moves at most one count of a family, by 1: the
squared length of the move of all counts is at most the number of families. Replacing a record moves
at most two counts of a family, one down and one up, and none of them by more than 1: that is at
most the sum over families of min(size, 2). A person's c records are c such moves one after another,
whose lengths add up, so c^2 times that bounds the squared length. No split is ever worse than
counting every query, which is the family of each alone; any split is sound, so it is made in the
simplest way: a query joins the first family that it is disjoint with as a whole.

Which queries are disjoint is read off their predicates. Let two queries have h attributes on which
both have a predicate and these share no code. A record that satisfied both would fail one of the
two predicates on each of those attributes: h in all. But a query that asks at least r of its k
counted predicates, and all the others, lets k - r of them fail and no more. So they are disjoint if
h is greater than what the two let fail together, or if one of the h predicate pairs has both sides
uncounted. For cells of one marginal, k = r, and h = 1 is enough.

The selected queries are public by the time they are measured, and so is all of this.

What is committed: the total, noisy or as declared; then for each round the numbers of its K
queries, counted through all blocks in order, in the order drawn, and after them their K noisy
counts. Where all queries are measured at once there are no numbers, and the counts are in the
workload's order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import ClassVar, Literal

import numpy as np

from dpquery.arrays import Bools, Ints
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_RAP_AT_ONCE, MAX_RAP_FIT_NUMBERS
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.rounds.chance import Chance, differences_of, sharpest_rate
from dpquery.measurement.rounds.run import (
    GRID_BITS,
    STEPS,
    PublicFit,
    Round,
    RoundBudget,
    Rounds,
    TrueAnswers,
    check_answers,
    check_counts,
    declared_total,
)
from dpquery.operators.blocks import Block, Workload, marginal
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.spec.spec import Privacy, Rows
from dpquery.strategy.sensitivity import sensitivity
from dpquery.strategy.strategy import WeightedBlock

OVER = 4
"""One in so many queries is drawn among those answered too high."""
_LEAST_TOTAL = Fraction(1, 20)

ErrorSide = Literal["under", "over", "either"]


@dataclass(frozen=True, eq=False)
class RapRounds(Rounds):
    """T rounds that choose and measure K queries each, or one that measures all."""

    settings: RapSettings  # T, K, and what the fit is made of
    total_rho: Fraction  # what measuring the total costs
    selection_rho: Fraction  # what choosing the queries of one round costs
    measurement_rho: Fraction  # what measuring them costs
    rate: Fraction  # eta: a query is drawn with probability proportional to exp(eta score)
    whole: int | None  # squared sensitivity of all queries together; None where they are selected

    name: ClassVar[str] = "RAP"
    key: ClassVar[str] = "rap"
    layout: ClassVar[str] = "rap/1"
    """Named in the key of every run, beside the settings and all numbers of its budget.

    Raise it with any change to what the same settings and the same budget ask or commit: the grid,
    the split of a round between the sides, the law of a selection, how synthetic counts are
    rounded, the sensitivity of selected queries, the layout of a committed vector. A run begun, or
    committed, by an earlier version is then another question, and is never continued or read by the
    new rules. What is made of a committed vector, such as `weighed_total` or the fit, is not part
    of it: a public function of what was committed, of which every later round may be one too.
    """
    kept: ClassVar[bool] = False

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.workload.blocks

    @property
    def first_blocks(self) -> tuple[Block, ...]:
        """The number of records, where it is not declared."""
        total = marginal(self.workload.shape_of_domain, ())
        return (total,) if self.total is None else ()

    @property
    def first_rho(self) -> Fraction:
        return self.total_rho

    @property
    def first_sensitivity(self) -> int:
        """Squared, in grid steps: records replaced may leave the domain, or enter it."""
        return self.records**2 << 2 * GRID_BITS

    @property
    def rounds_rho(self) -> Fraction:
        return self.settings.rounds * (self.selection_rho + self.measurement_rho)

    def first(self, exact: TrueAnswers, chance: Chance) -> Ints:
        """Return the number of records in grid steps, (1,): as declared, or counted with noise."""
        if self.total is not None:
            return np.array([self.total << GRID_BITS])
        return super().first(exact, chance)

    def round(self, level: int, left: Fraction) -> RoundBudget:
        rho = self.selection_rho + self.measurement_rho
        return RoundBudget(rho, self.selection_rho, self.rate, last=left < 2 * rho)

    def choose(
        self,
        exact: TrueAnswers,
        fit: PublicFit,
        spent: RoundBudget,
        done: Sequence[Round],
        chance: Chance,
    ) -> Ints:
        if not self.settings.adaptive:
            return all_places(self.workload)
        return select_queries(
            lambda k: differences_of(exact(self.blocks[k]), fit.answers(k)),
            blocks=len(self.blocks),
            taken=_chosen(done),
            sides=self.sides(len(done)),
            rate=spent.rate,
            chance=chance,
        )

    def sides(self, number: int) -> tuple[tuple[ErrorSide, int], ...]:
        """Return how many queries to draw on which side in a round, rounds counted from 0."""
        size = self.settings.selected
        if self.replace:
            return (("either", size),)
        over = (number + 1) * size // OVER - number * size // OVER
        return ("under", size - over), ("over", over)

    def answers(self, exact: TrueAnswers, chosen: Ints) -> Ints:
        """Return the exact answers at some places, (k,), computing every block once."""
        answers = np.empty(len(chosen), dtype=np.int64)
        order = np.argsort(chosen[:, 0], kind="stable")
        blocks, starts = np.unique(chosen[order, 0], return_index=True)
        for position, here in zip(blocks.tolist(), np.split(order, starts[1:]), strict=True):
            answers[here] = exact(self.blocks[position])[chosen[here, 1]]
        return answers

    def sensitivity(self, chosen: Ints) -> int:
        return self._move(family_sizes(self.workload, chosen) if self.whole is None else [])

    def _move(self, families: list[int]) -> int:
        """Return the squared move of one round's counts between neighbours, in grid steps."""
        move = squared_move(families, replace=self.replace, records=self.records)
        return (move if self.whole is None else self.whole) << 2 * GRID_BITS

    @property
    def std_bounds(self) -> tuple[float, float]:
        """The least and the largest standard deviation, in counts, that a round can turn out at.

        It depends on how many of the selected queries one record can answer.
        """
        size, rho = self.settings.selected, self.measurement_rho
        least, largest = (self.scale(rho, self._move(each)) for each in ([size], [1] * size))
        return least / STEPS, largest / STEPS

    def head(self, measured: Round) -> Ints:
        """Return the numbers of the queries of a round; none where all are measured."""
        places = measured.chosen if self.settings.adaptive else measured.chosen[:0]
        return offsets(self.workload)[places[:, 0]] + places[:, 1]

    def read(self, values: Ints, done: Sequence[Round]) -> tuple[Ints, int, Ints]:
        """Return a round of queries of the workload, none of them twice; or ValueError."""
        if not self.settings.adaptive:
            return all_places(self.workload), 0, values
        starts, (numbers, counts) = offsets(self.workload), np.split(values, 2)
        positions = np.searchsorted(starts, numbers, side="right") - 1
        chosen = np.stack([positions, numbers - starts[positions]], axis=1)
        before = _chosen(done)
        named = np.concatenate([starts[before[:, 0]] + before[:, 1], numbers])
        known = numbers.min() >= 0 and numbers.max() < starts[-1]
        if not known or len(np.unique(named)) < len(named):
            raise ValueError("queries that no round chooses")
        return chosen, 0, counts

    def length(self, values: Ints) -> int:
        return 2 * self.settings.selected or self.workload.shape[0]

    def at(self, guarantee: Guarantee, privacy: Privacy) -> "RapRounds":
        rows = self.rows
        return rap_rounds(
            self.workload, self.settings, privacy=privacy, guarantee=guarantee, rows=rows
        )

    @property
    def number(self) -> int | None:
        return self.settings.rounds

    @property
    def selects(self) -> bool:
        return self.settings.adaptive

    @property
    def sizes(self) -> Sequence[int]:
        if self.selects:
            return [self.settings.selected]
        return [self.workload.shape[0], *(block.queries for block in self.first_blocks)]


def rap_rounds(
    workload: Workload,
    settings: RapSettings,
    *,
    privacy: Privacy,
    guarantee: Guarantee,
    rows: Rows | None,
) -> RapRounds:
    """Return the rounds of a run of RAP under a guarantee.

    Queries have entries of 0 or 1, and their weights do not matter to RAP. The declared number of
    rows counts only where it is exact and records are replaced.

    Privacy:
        The parts add up to guarantee.amount or less, all of them exact fractions.

    Raises:
        SpecError: more queries are to be selected than there are, or the noise could not be drawn.
        UnsupportedWorkloadError: too many queries to measure all at once, or others than counts.
    """
    check_counts(workload, guarantee, RapRounds.name)
    replace, records = privacy.neighbours == "replace", privacy.max_rows
    declared = declared_total(privacy, rows)
    joint = 0 if settings.adaptive else _joint(workload, replace=replace)
    parts = joint or 2 * settings.rounds * settings.selected
    share = Fraction(0) if declared is not None else max(_LEAST_TOTAL, Fraction(1, parts + 1))
    round_rho = guarantee.amount * (1 - share) / settings.rounds
    selection_rho = round_rho / 2 if settings.adaptive else Fraction(0)
    span = records * (2 if replace else 1)
    rounds = RapRounds(
        workload=workload,
        guarantee=guarantee,
        records=records,
        replace=replace,
        total=declared,
        rows=rows,
        settings=settings,
        total_rho=guarantee.amount * share,
        selection_rho=selection_rho,
        measurement_rho=round_rho - selection_rho,
        rate=sharpest_rate(selection_rho, settings.selected, span)
        if settings.adaptive
        else Fraction(0),
        whole=joint * records**2 or None,
    )
    _check_size(workload, settings)
    scales = [std * STEPS for std in rounds.std_bounds]
    scales += [rounds.first_scale] if declared is None else []
    rounds.check_noise(scales, rounds.rate if settings.adaptive else Fraction(1))
    return rounds


def _chosen(rounds: Sequence[Round]) -> Ints:
    """Return the places of all queries that some rounds chose, (k, 2)."""
    return np.concatenate([np.zeros((0, 2), dtype=np.int64), *(each.chosen for each in rounds)])


def _joint(workload: Workload, *, replace: bool) -> int:
    """Return the squared sensitivity of all queries to one record.

    A record replaced moves at most the queries that one of the two answers, each by 1.
    """
    answered = sensitivity([WeightedBlock(1, block) for block in workload.blocks], "gaussian")
    return min(2 * answered, workload.shape[0]) if replace else answered


def _check_size(workload: Workload, settings: RapSettings) -> None:
    """Refuse, from public inputs, what could otherwise exhaust the memory after the charge."""
    queries, measured = workload.shape[0], settings.rounds * settings.selected
    if measured > queries:
        raise SpecError(
            f"RAP is to select {measured:,} queries in all and the workload has {queries:,}; "
            "take fewer rounds, or fewer queries a round"
        )
    if not settings.adaptive and queries > MAX_RAP_AT_ONCE:
        raise UnsupportedWorkloadError(
            f"RAP without selection measures all {queries:,} queries, and the limit is "
            f"{MAX_RAP_AT_ONCE:,}; let it select some in rounds"
        )
    masses = settings.relaxed_rows * sum(workload.shape_of_domain)
    if masses > MAX_RAP_FIT_NUMBERS:
        raise UnsupportedWorkloadError(
            f"{settings.relaxed_rows:,} relaxed rows over this domain hold {masses:,} numbers, and "
            f"the limit is {MAX_RAP_FIT_NUMBERS:,}; take fewer relaxed rows"
        )
    compared = settings.selected * max(workload.shape_of_domain, default=0)
    if compared > MAX_RAP_FIT_NUMBERS:
        raise UnsupportedWorkloadError(
            f"to compare the predicates of {settings.selected:,} queries takes {compared:,} "
            f"numbers, and the limit is {MAX_RAP_FIT_NUMBERS:,}; select fewer queries a round"
        )
    check_answers(workload, relaxed_rows=settings.relaxed_rows, tabled=settings.adaptive)


def all_places(workload: Workload) -> Ints:
    """Return the places of all queries, (m, 2), in order."""
    sizes = [block.queries for block in workload.blocks]
    positions = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.arange(len(positions)) - np.repeat(offsets(workload)[:-1], sizes)
    return np.stack([positions, rows], axis=1)


def offsets(workload: Workload) -> Ints:
    """Return the number of queries before each block, and of all."""
    return np.array([0, *accumulate(block.queries for block in workload.blocks)], dtype=np.int64)


_TAKEN = -(2**63)


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
    left = np.concatenate([counts for _, counts in histograms])
    picked = []
    for side, size in sides:
        distinct_scores, group = np.unique(scores_of(levels, side), return_inverse=True)
        scores = distinct_scores.tolist()
        members = np.zeros(len(scores), dtype=np.int64)
        np.add.at(members, group, left)
        for _ in range(size):
            level = chance.level(scores, members.tolist(), rate)
            rank = chance.below(int(members[level]))
            entries = np.flatnonzero(group == level)
            ends = np.cumsum(left[entries])
            place = int(np.searchsorted(ends, rank, side="right"))
            entry = entries[place]
            rank -= int(ends[place] - left[entry])  # among those left of its block and difference
            picked.append((int(block_of[entry]), int(levels[entry]), rank))
            members[level] -= 1
            left[entry] -= 1
    return _rows(picked, differences, taken)


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
    """Return the places of queries given as (block, difference, rank among those left with it)."""
    places = np.empty((len(picked), 2), dtype=np.int64)
    for block in sorted({block for block, _, _ in picked}):
        left = _left(differences(block), block, taken)
        for k, (position, difference, rank) in enumerate(picked):
            if position == block:
                places[k] = block, np.flatnonzero(left == difference)[rank]
                left[places[k, 1]] = _TAKEN
    return places


def family_sizes(workload: Workload, places: Ints) -> list[int]:
    """Return the sizes of families of pairwise disjoint queries that hold each of these once.

    Queries are 0/1; places are (k, 2): position of a block, number of a row in it. O(k^2).
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

    Sizes are of families of pairwise disjoint queries, and a person has c records at most.
    """
    return records**2 * sum(min(size, 2 if replace else 1) for size in sizes)


def _slack(block: Block) -> int:
    return sum(block.counted) - block.at_least


def _clashes(workload: Workload, places: Ints) -> tuple[Ints, Bools]:
    """Return h for all pairs of queries, and whether a pair has two uncounted sides: (k, k)."""
    clashes = np.zeros((len(places), len(places)), dtype=np.int64)
    barred = np.zeros((len(places), len(places)), dtype=np.bool_)
    for i in workload.attributes:
        # The predicates on it are 0/1 in floats, which hold the number of shared codes exactly.
        rows = np.ones((len(places), workload.shape_of_domain[i]), dtype=np.float32)
        restricted, counted = np.zeros((2, len(places)), dtype=np.bool_)
        for k, (position, row) in enumerate(places.tolist()):
            block = workload.blocks[position]
            if i in block.attributes:
                axis = block.attributes.index(i)
                place = int(np.unravel_index(row, block.row_shape)[axis])
                rows[k] = block.factors[axis].row(place)
                restricted[k], counted[k] = True, block.counted[axis]
        clash = (rows @ rows.T == 0) & restricted[:, None] & restricted
        clashes += clash
        barred |= clash & ~counted[:, None] & ~counted
    return clashes, barred
