"""Rounds of whole tables: drawn by how far the fit is from them, and measured, ever dearer.

The budget. Let u = rho / T, with T sixteen times the number of attributes. A round at level l costs
4^l u; a tenth of that selects a table, and nine tenths measure it. First all tables of one
attribute are measured, for 0.9 k u each: k is 1 where the signal is clear, and up to 16 where noise
hides even them, when a round would say nothing of larger ones (`TableRounds.one_way_rounds`).
Rounds begin at level 0, and the level rises by one where the last table moved the fit by no more
than its noise. A round that would leave less than another like it costs takes all that is left, and
is the last: so that the parts are rho to the last fraction, whatever the levels were. This is the
annealing of AIM [McKenna22]: which round costs what is decided by noisy values alone, and every
round's cost is fixed before it is drawn. [MATH] 10.8.

The tables that may be measured: all below what the questions ask, and their weights. A candidate is
a set of attributes that some block of the workload holds, over the classes that the workload is
counted in, so that one rule serves marginals, groups, ranges, thresholds and unions. It weighs what
the workload has in common with it: the sum over all blocks of the weight of the block times the
number of attributes that both hold, as in AIM. Only ratios matter to a draw, so weights are whole
numbers, of which the largest is LARGEST_WEIGHT.

The choice. The score of a table t is a whole number,

    s_t = w_t (|| M_t - rounded table of the fit ||_1 - penalty_t),

with M_t its true counts, w_t its weight, and penalty_t the L1 norm that the noise of measuring it
is expected to have, rounded: what would be learnt beyond the noise [McKenna22].

Privacy: weights and penalties are public, and so is the fit, a function of noisy values. With D
records of a person, neighbours move a table by D in L1 and by D in L2 where records are added or
removed, all the same way; where they are replaced, by S = 2 D in L1 and by sqrt(2) D in L2, when
all leave one cell for one other. So s_t moves by at most w_t S, up or down, and the moves of two
scores are apart by at most 2 S max_t w_t: `TableRounds.round` takes the sharpest eta with which the
draw costs its share.

The closing part says how far what is released is off. With R_t the released table of t, fixed by
then and public, r_t the same in whole grid steps, and A the tables that an item asks for, it is

    S = sum over t in A of || 2^10 M_t - r_t ||_1, with noise.

A record that comes or goes adds to one cell of each M_t, or takes from it: by the triangle
inequality no norm moves by more than 2^10, and S by no more than 2^10 |A|, whatever was released; a
replaced one moves it by twice that, and D records of a person by D times as much. So the mean over
tables of the distance moves by at most D, or 2 D, however many tables there are ([MATH] 10.8). The
largest of all |2^10 M_t - r_t| in one cell is measured too: no cell moves by more than 2^10 D,
whether records come, go or are replaced, and so does the largest. Both are cut off at 2^62 before
their noise, which moves none further apart.

What is committed: the noisy tables of one attribute, in the order of the candidates; then for each
round the number of its table, its level, and the noisy counts of the table, cell by cell in order;
then 63 bits of the hash of what is released, by which a fit that is made again is known to be the
one that was measured, and S and the largest error in a cell of each item.
What a round cost follows from the levels of all rounds up to it, which are committed for that: a
fit made anew on another machine may differ in its last bits, and what was spent must not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_ADAPTIVE_CELLS, MAX_ADAPTIVE_CLASSES, MAX_ADAPTIVE_TABLES
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.rounds.chance import Chance, differences_of, sharpest_rate
from dpquery.measurement.rounds.run import (
    GRID_BITS,
    STEPS,
    PublicFit,
    ReleasedFit,
    Round,
    RoundBudget,
    Rounds,
    TrueAnswers,
    check_answers,
    check_counts,
    declared_total,
)
from dpquery.operators.blocks import Block, Workload, marginal
from dpquery.spec.spec import Privacy, Rows
from dpquery.strategy.algebra.subsets import Subset

ROUNDS_PER_ATTRIBUTE = 16
MEASURED_SHARE = Fraction(9, 10)
DEARER = 4
"""What a round costs at one level, in rounds of the level below: its noise is half as wide."""
MOST_FITTED_ROWS = 512  # relaxed rows that a fit holds at most
MOST_CANDIDATE_CELLS = 10_000
"""Cells of a candidate of several attributes at most: larger ones say little in any round."""
LARGEST_WEIGHT = 1 << 10
MOST_ONE_WAY_ROUNDS = 16
HALVING_NOISE = Fraction(8, 1000)
"""Of the records: with so much noise on tables of one attribute, had they all of the budget, they
have half of it. Of Adult and three data sets of R, pairs and triples, at epsilon 0.1 (noise of 0.4
to 1 %) a half errs least, at 0.01 (4 to 10 %) three quarters and more, at 1 a sixteenth."""
CLOSING_SHARE = Fraction(1, 50)
"""Of the budget: what measuring the distance of the released tables from the true ones costs."""
MOST_MEASURED_ITEMS = 8
"""Of more items the distance is measured together: each alone would have much of the noise."""
LARGEST_DISTANCE = 1 << 62  # in grid steps
LARGEST_RELEASED = 1 << 34  # count of a cell that is told apart from larger ones


@dataclass(frozen=True)
class CandidateTables:
    """The tables that may be measured, numbered from 0; public."""

    subsets: tuple[Subset, ...]  # attributes of each, ascending; those of one attribute come first
    sizes: tuple[int, ...]  # cells of each
    weights: tuple[int, ...]  # of each in a draw, at least 1
    # the numbers of those that each item asks for, or that all do together; empty for one that asks
    # for none that may be measured
    asked: tuple[tuple[int, ...], ...] = ()

    @property
    def one_way(self) -> int:
        """Number of tables of one attribute, which are measured first."""
        return sum(len(subset) == 1 for subset in self.subsets)


@dataclass(frozen=True, eq=False)
class TableRounds(Rounds):
    """Rounds that measure one whole table each, until the budget is spent."""

    candidates: CandidateTables  # the tables that may be measured
    # 5 measures the largest error in a cell too, from 4 on tables of one attribute are measured by
    # the signal, from 3 on it is measured how far off tables are, from 2 on the mean of the last
    # fit and of one made afresh is released, by 1 the latter
    edition: int = 5

    name: ClassVar[str] = "adaptive measurement"
    key: ClassVar[str] = "adaptive"
    kept: ClassVar[bool] = True

    @property
    def layout(self) -> str:
        """Named in the key of every run, beside all numbers of its budget.

        Raise it with any change to what the same budget asks or commits: the grid, what a round
        costs, when the level rises, the score of a table and the law of its draw, how the fit is
        rounded, the layout of a committed vector; see RapRounds.layout. Here also with what is
        released of it, so that a release that is made again stays what it was.
        """
        return f"adaptive/{self.edition}"

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        shape = self.workload.shape_of_domain
        return tuple(marginal(shape, subset) for subset in self.candidates.subsets)

    @property
    def first_blocks(self) -> tuple[Block, ...]:
        return self.blocks[: self.candidates.one_way]

    @property
    def unit(self) -> Fraction:
        """u: the rho of a round at level 0."""
        left = self.guarantee.amount - self.closing_rho
        return left / (ROUNDS_PER_ATTRIBUTE * self.candidates.one_way)

    @cached_property
    def one_way_rounds(self) -> int:
        """k: what measuring a table of one attribute costs, in rounds at level 0.

        With s the noise on them had they all of the budget, and h HALVING_NOISE of the declared
        records, they have s / (s + h) of it, rounded down to whole rounds.
        """
        if self.edition < 4 or self.rows is None:
            return 1
        moved = Fraction(self.first_sensitivity, 1 << 2 * GRID_BITS)
        variance = moved / (2 * (self.guarantee.amount - self.closing_rho))
        halving, all_of_it = HALVING_NOISE * self.rows.count, ROUNDS_PER_ATTRIBUTE / MEASURED_SHARE
        rounds = range(2, MOST_ONE_WAY_ROUNDS + 1)  # k h / (all_of_it - k) <= s, without roots
        fits = [k for k in rounds if (k * halving) ** 2 <= variance * (all_of_it - k) ** 2]
        return max(fits, default=1)

    @property
    def first_rho(self) -> Fraction:
        """What all tables of one attribute cost together."""
        return self.one_way_rounds * self.candidates.one_way * MEASURED_SHARE * self.unit

    @property
    def first_sensitivity(self) -> int:
        """The squared L2 sensitivity of all tables of one attribute together, in grid steps."""
        return self.candidates.one_way * self.table_sensitivity

    @property
    def table_sensitivity(self) -> int:
        """The squared L2 sensitivity of one table, in grid steps."""
        return self.records**2 * (2 if self.replace else 1) << 2 * GRID_BITS

    @property
    def score_span(self) -> int:
        """How far apart the moves of two scores can be between neighbours."""
        moved = self.records * (2 if self.replace else 1)
        return 2 * moved * max(self.candidates.weights)

    @property
    def rounds_rho(self) -> Fraction:
        return self.guarantee.amount - self.first_rho - self.closing_rho

    @property
    def measured_items(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the tables whose distance is measured together, item by item."""
        return tuple(filter(None, self.candidates.asked)) if self.edition > 2 else ()

    @property
    def closing_rho(self) -> Fraction:
        return CLOSING_SHARE * self.guarantee.amount if self.measured_items else Fraction(0)

    @property
    def item_errors(self) -> int:
        """How many numbers say how far off an item is: the distance, and the largest error."""
        return 1 + (self.edition > 4)

    @property
    def closing_length(self) -> int:
        """A number that goes with what is released, and those of each item."""
        return 1 + self.item_errors * len(self.measured_items) if self.measured_items else 0

    @property
    def distance_rho(self) -> Fraction:
        """What each of these numbers costs: they share alike."""
        return self.closing_rho / (self.item_errors * len(self.measured_items))

    def distance_sensitivity(self, tables: int) -> int:
        """Return the squared sensitivity of the summed distance of so many tables, in grid steps.

        It is one number, so that its L1 and L2 sensitivity are the same.
        """
        return (tables * self.records * (2 if self.replace else 1)) ** 2 << 2 * GRID_BITS

    @property
    def largest_sensitivity(self) -> int:
        """The squared sensitivity of the largest error in a cell, in grid steps."""
        return self.records**2 << 2 * GRID_BITS

    def distance_scale(self, tables: int) -> float:
        """Return the scale of the noise on the summed distance, in grid steps."""
        return self.scale(self.distance_rho, self.distance_sensitivity(tables))

    @property
    def largest_scale(self) -> float:
        """The scale of the noise on the largest error, in grid steps."""
        return self.scale(self.distance_rho, self.largest_sensitivity)

    def closing(self, exact: TrueAnswers, fit: PublicFit, chance: Chance) -> Ints:
        """Return a number that goes with what is released, and how far off it is, with noise."""
        if not isinstance(fit, ReleasedFit):
            raise TypeError("a fit that does not say what is released")
        values = [np.array([fit.digest()], dtype=np.int64)]
        for numbers in self.measured_items:
            apart = [
                steps_apart(exact(self.blocks[number]), fit.released_table(number))
                for number in numbers
            ]
            off = sum(int(steps.sum()) for steps in apart), max(int(s.max()) for s in apart)
            sensitivities = self.distance_sensitivity(len(numbers)), self.largest_sensitivity
            for each, sensitivity in list(zip(off, sensitivities, strict=True))[: self.item_errors]:
                steps = np.array([min(each, LARGEST_DISTANCE)], dtype=np.int64)
                values.append(self.noisy(steps, self.distance_rho, sensitivity, chance))
        return np.concatenate(values)

    def round(self, level: int, left: Fraction) -> RoundBudget:
        """Return what a round at a level spends, the last one all that is left."""
        rho = self.unit * DEARER**level
        last = left < 2 * rho
        rho = left if last else rho
        selection = rho * (1 - MEASURED_SHARE)
        return RoundBudget(rho, selection, sharpest_rate(selection, 1, self.score_span), last)

    def std(self, spent: RoundBudget) -> float:
        """Return the standard deviation of the noise of a round's table, in counts."""
        return self.scale(spent.measurement_rho, self.table_sensitivity) / STEPS

    def choose(
        self,
        exact: TrueAnswers,
        fit: PublicFit,
        spent: RoundBudget,
        done: Sequence[Round],
        chance: Chance,
    ) -> Ints:
        """Return the number of a table, (1,), drawn by how far the fit is from it."""
        number = draw_table(
            lambda each: exact(self.blocks[each]),
            fit.answers,
            candidates=self.candidates,
            std=self.std(spent),
            rate=spent.rate,
            chance=chance,
        )
        return np.array([number])

    def answers(self, exact: TrueAnswers, chosen: Ints) -> Ints:
        return exact(self.blocks[chosen[0]])

    def sensitivity(self, chosen: Ints) -> int:
        return self.table_sensitivity

    def told(self, fit: PublicFit, measured: Round) -> int:
        """Give a round to the fit; the level rises where that moves it by no more than noise."""
        number = int(measured.chosen[0])
        before = fit.answers(number)
        fit.add(measured)
        moved = float(np.abs(fit.answers(number) - before).sum())
        return measured.level + (moved <= noise_norm(measured.std, self.candidates.sizes[number]))

    def head(self, measured: Round) -> Ints:
        return np.array([measured.chosen[0], measured.level], dtype=np.int64)

    def read(self, values: Ints, done: Sequence[Round]) -> tuple[Ints, int, Ints]:
        """Return a round of a candidate, at a level that follows the last; or ValueError."""
        number, level = (int(value) for value in values[:2])
        if level not in ((done[-1].level, done[-1].level + 1) if done else (0,)):
            raise ValueError("a level that no round after the one before has")
        return np.array([number]), level, values[2:]

    def length(self, values: Ints) -> int:
        number = int(values[0])
        if not 0 <= number < len(self.candidates.sizes):
            raise ValueError("a table that is no candidate")
        return 2 + self.candidates.sizes[number]

    def at(self, guarantee: Guarantee, privacy: Privacy) -> "TableRounds":
        return replace(self, guarantee=guarantee).checked()

    def checked(self) -> "TableRounds":
        """Return these rounds; SpecError where noise of theirs could not be drawn."""
        left = self.rounds_rho
        cheapest, all_left = self.round(0, left), self.round(left // self.unit, left)
        stds = [self.first_std, self.std(cheapest), self.std(all_left)]
        closing = [
            scale
            for numbers in self.measured_items
            for scale in (self.distance_scale(len(numbers)), self.largest_scale)
        ]
        self.check_noise([*(std * STEPS for std in stds), *closing], cheapest.rate)
        return self

    @property
    def sizes(self) -> Sequence[int]:
        """How many numbers a draw of noise takes, ascending."""
        candidates, closing = self.candidates, [1] * bool(self.measured_items)
        return sorted({sum(candidates.sizes[: candidates.one_way]), *candidates.sizes, *closing})


def table_rounds(
    workload: Workload,
    *,
    privacy: Privacy,
    guarantee: Guarantee,
    rows: Rows | None,
    items: Sequence[Sequence[int]] = (),
) -> TableRounds:
    """Return the rounds of an adaptive run under a guarantee.

    Queries have entries of 0 or 1; weights of items weigh their tables. The declared number of rows
    is the total only where it is exact and records are replaced. The distance from the true tables
    is measured for each of the items, or for all together where they are not given, or are many.

    Privacy:
        The parts of every run add up to guarantee.amount, all of them exact fractions.

    Raises:
        SpecError: the noise could not be drawn.
        UnsupportedWorkloadError: one table only, too many of them, or others than counts.
    """
    check_counts(workload, guarantee, TableRounds.name)
    check_answers(workload, relaxed_rows=MOST_FITTED_ROWS, tabled=True)
    classes = sum(workload.shape_of_domain)
    if classes > MAX_ADAPTIVE_CLASSES:
        raise UnsupportedWorkloadError(
            f"the questions distinguish {classes:,} values of all attributes, and the limit of "
            f"adaptive measurement is {MAX_ADAPTIVE_CLASSES:,}; ask for coarser sets"
        )
    return TableRounds(
        workload=workload,
        guarantee=guarantee,
        records=privacy.max_rows,
        replace=privacy.neighbours == "replace",
        total=declared_total(privacy, rows),
        rows=rows,
        candidates=candidate_tables(workload, items),
    ).checked()


def candidate_tables(workload: Workload, items: Sequence[Sequence[int]] = ()) -> CandidateTables:
    """Return the tables that may be measured for a workload of these items.

    Raises:
        UnsupportedWorkloadError: the questions ask for one table only, or for too many.
    """
    shape = workload.shape_of_domain
    asked: dict[Subset, Fraction] = {}
    of_blocks = [tuple(i for i in b.attributes if shape[i] > 1) for b in workload.blocks]
    for attributes, weight in zip(of_blocks, workload.weights, strict=True):
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
    numbers = {subset: number for number, subset in enumerate(subsets)}
    largest = max(shared)
    return CandidateTables(
        subsets,
        tuple(math.prod(shape[i] for i in subset) for subset in subsets),
        tuple(max(1, round(LARGEST_WEIGHT * each / largest)) for each in shared),
        tuple(
            tuple(sorted(numbers[s] for s in {of_blocks[k] for k in places} & numbers.keys()))
            for places in (
                items if 0 < len(items) <= MOST_MEASURED_ITEMS else [range(len(of_blocks))]
            )
        ),
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
    """Return the number of a table, drawn by how far the fit is from it.

    True counts, confidential, and those of the fit are of the candidate of a number, (cells,). The
    noise, in counts, is that which the table is to be measured with.
    """
    penalties = penalties_of(candidates, std)
    moves = distances(tables, model, candidates.sizes)
    scores = [
        weight * (moved - penalty)
        for weight, moved, penalty in zip(candidates.weights, moves, penalties, strict=True)
    ]
    of_score: dict[int, list[int]] = {}
    for number, score in enumerate(scores):
        of_score.setdefault(score, []).append(number)
    levels = sorted(of_score)
    level = chance.level(levels, [len(of_score[score]) for score in levels], rate)
    drawn = of_score[levels[level]]
    return drawn[chance.below(len(drawn))]


def distances(
    tables: Callable[[int], Ints],
    model: Callable[[int], NDArray[np.floating]],
    sizes: Sequence[int],
) -> list[int]:
    """Return for each table the L1 distance of true counts from rounded ones of a fit.

    They are whole numbers. Small tables are compared many at a time.

    Args:
        tables: true counts of the table of a number, (cells,); confidential.
        model: what the fit has for it, (cells,); public.
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


def steps_apart(exact: Ints, released: Floats) -> Ints:
    """Return how far true counts are from released ones, in grid steps: confidential.

    Released counts are rounded to the grid; they may be any number, and are cut off so that no sum
    is past 64 bits.
    """
    largest = LARGEST_RELEASED * STEPS
    return np.abs(differences_of(exact << GRID_BITS, released * STEPS, largest=largest))


def penalties_of(candidates: CandidateTables, std: float) -> list[int]:
    """Return the L1 norm that noise on each table is expected to have, rounded; public."""
    return [round(noise_norm(std, cells)) for cells in candidates.sizes]


def noise_norm(std: float, cells: int) -> float:
    """Return the expected L1 norm of normal noise on so many cells."""
    return math.sqrt(2 / math.pi) * std * cells
