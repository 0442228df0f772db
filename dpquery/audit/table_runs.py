"""Adaptive runs over whole tables, and the checks of them.

Nothing of the law is taken from the code that is audited: tables are counted one record after
another, rho is split in fractions, and levels, scores and the probability of every draw are worked
out again. The bulk of the runs are the curator's query on tables that the curator's counting made
of a CSV file, with a public side that has no fit in it; a release goes the whole way.
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from scipy.special import ndtri

from dpquery.arrays import Floats, Ints
from dpquery.audit.cases import Size
from dpquery.audit.rap_checks import (
    UNSPENT,
    RunDraws,
    charge_finding,
    figures_finding,
    likely_strength,
)
from dpquery.audit.statistics import ALPHA, Finding, chi_square, combined, pooled, width_of
from dpquery.audit.towns import (
    DECLARED,
    KINDS,
    STEPS_IN_A_COUNT,
    TOWNS,
    Bench,
    ReleasedRun,
    ShiftedFit,
    Town,
    TownRow,
    released_run,
)
from dpquery.measurement.rounds.run import Round
from dpquery.releases.manifest_facts import AdaptiveFacts
from dpquery.strategy.algebra.subsets import Subset

SETS: tuple[Subset, ...] = ((0,), (1,), (0, 1))
"""Age, sex, and both: all tables of a town."""
WEIGHTS = (512, 512, 1024)
"""Two blocks share one attribute each with the first two, and two each with the last."""
MEASURED_ITEMS = 2
"""Both items ask for both attributes: the distance of the last table is measured for either."""
_OFF = (6, -9, 1)  # how much less the public side has in the first cell of each table


@dataclass(frozen=True, eq=False)
class TableRun:
    """The transcript of one run."""

    first: Ints  # noisy counts of the tables of one attribute, (6,), in grid steps
    numbers: tuple[int, ...]  # of the table of each round
    levels: tuple[int, ...]  # of each round
    counts: tuple[Ints, ...]  # of each round, in grid steps
    errors: Ints  # noisy, of each item the distance and the largest error, in grid steps

    @classmethod
    def read(cls, values: Ints) -> "TableRun":
        """Read a committed vector: rounds follow each other to its closing part."""
        sizes, end = (4, 2, 8), 6
        numbers, levels, counts = [], [], []
        values, errors = values[: -1 - 2 * MEASURED_ITEMS], values[-2 * MEASURED_ITEMS :]
        while end < len(values):
            number, level = (int(value) for value in values[end : end + 2])
            numbers.append(number)
            levels.append(level)
            counts.append(values[end + 2 : end + 2 + sizes[number]])
            end += 2 + sizes[number]
        return cls(values[:6], tuple(numbers), tuple(levels), tuple(counts), errors)


@dataclass(frozen=True)
class TableLaw:
    """Where the rho of a run goes, and the law of what it draws."""

    rho: Fraction
    town: Town

    @property
    def closing(self) -> Fraction:
        """The rho of the distances of all items."""
        return self.rho / 50

    @property
    def unit(self) -> Fraction:
        """The rho of a round at level 0: sixteen rounds for each of two attributes."""
        return (self.rho - self.closing) / 32

    @property
    def distance_move(self) -> int:
        """How much neighbours move a distance: every record by a count, replaced ones by two."""
        return self.town.limit * (2 if self.town.replace else 1)

    @property
    def error_moves(self) -> tuple[int, int]:
        """How much they move a distance, and the largest error: no cell moves by two."""
        return self.distance_move, self.town.limit

    @property
    def error_stds(self) -> tuple[float, ...]:
        """Of the noise on each distance and each largest error, in counts."""
        each = self.closing / (2 * MEASURED_ITEMS)
        return tuple(move / math.sqrt(2 * each) for move in self.error_moves)

    @property
    def move(self) -> int:
        """The squared length of the largest move of a table between neighbours."""
        return self.town.limit**2 * (2 if self.town.replace else 1)

    @property
    def first(self) -> Fraction:
        """The rho of each table of one attribute: so many rounds, by the noise on half of rho."""
        off = self.std((self.rho - self.closing) / 2) / (0.008 * DECLARED)
        rounds = math.floor(160 / 9 * off / (1 + off))
        return Fraction(9, 10) * self.unit * max(1, min(16, rounds))

    @property
    def first_std(self) -> float:
        """Of the noise on the tables of one attribute, in counts."""
        return self.std(self.first)

    def std(self, rho: Fraction) -> float:
        """Return the standard deviation of noise on a table that costs rho, in counts."""
        return math.sqrt(self.move / (2 * rho))

    def costs(self, levels: Sequence[int]) -> list[Fraction]:
        """Return the rho of rounds at some levels; what they leave is not their sum, if damaged."""
        left, costs = self.rho - self.closing - 2 * self.first, []
        for level in levels:
            cost = 4**level * self.unit
            costs.append(left if 0 < left < 2 * cost else cost)
            left -= costs[-1]
        return costs

    def rate(self, rho: Fraction) -> float:
        """Return eta of a draw in a round that costs rho: (eta span)^2 / 8 is a tenth of it."""
        return math.sqrt(8 * rho / 10) / (2 * self.distance_move * max(WEIGHTS))


@dataclass(frozen=True, eq=False)
class TableDraws:
    """What was drawn in some runs, and its law where the true tables are some."""

    residuals: Floats  # noise over its scale, (k,)
    drawn: RunDraws  # the tables, with eta times their scores
    levels: bool  # whether every level follows from what was measured before
    log_likelihoods: Floats  # of each run, up to what no data changes


def draws_of_tables(
    runs: Sequence[TableRun], start: Sequence[Ints], true: Sequence[Ints], law: TableLaw
) -> TableDraws:
    """Return all draws of some runs, where the public side starts so and the true tables are so."""
    residuals, levels, likelihoods = [], True, []
    scores, chances, outcomes = [], [], []
    for run in runs:
        noise = (run.first - STEPS_IN_A_COUNT * np.concatenate(true[:2])) / (
            STEPS_IN_A_COUNT * law.first_std
        )
        residuals.append(noise)
        log_likelihood, level, public = -float((noise**2).sum()) / 2, 0, ShiftedFit(start)
        costs = law.costs(run.levels)
        for number, given, counts, cost in zip(
            run.numbers, run.levels, run.counts, costs, strict=True
        ):
            std, levels = law.std(cost * Fraction(9, 10)), levels and given == level
            exponents = np.array(
                [
                    law.rate(cost) * weight * _distance(true[k], public.answers(k), std)
                    for k, weight in enumerate(WEIGHTS)
                ]
            )
            chance = np.exp(exponents - exponents.max())
            chance /= chance.sum()
            scores.append(exponents)
            chances.append(chance)
            outcomes.append(number)
            noise = (counts - STEPS_IN_A_COUNT * true[number]) / (STEPS_IN_A_COUNT * std)
            residuals.append(noise)
            log_likelihood += math.log(chance[number]) - float((noise**2).sum()) / 2
            before = public.answers(number)
            public.add(Round(np.array([number]), given, counts / STEPS_IN_A_COUNT, std, UNSPENT))
            moved = float(np.abs(public.answers(number) - before).sum())
            level = given + (moved <= math.sqrt(2 / math.pi) * std * len(counts))
        released = np.rint(STEPS_IN_A_COUNT * public.answers(2)).astype(np.int64)
        apart = np.abs(STEPS_IN_A_COUNT * true[2] - released)
        off = run.errors.reshape(-1, 2) - [apart.sum(), apart.max()]
        noise = (off / (STEPS_IN_A_COUNT * np.array(law.error_stds))).ravel()
        residuals.append(noise)
        likelihoods.append(log_likelihood - float((noise**2).sum()) / 2)
    return TableDraws(
        np.concatenate(residuals),
        RunDraws(np.array(scores), np.array(chances), np.array(outcomes)),
        levels,
        np.array(likelihoods),
    )


def _distance(table: Ints, model: Floats, std: float) -> int:
    """Return how far a table is from the model beyond its noise, in whole counts."""
    off = int(np.abs(table - np.rint(model)).sum())
    return off - round(math.sqrt(2 / math.pi) * std * len(table))


def bench_of(town: Town, folder: Path) -> Bench:
    """Set a town up in a folder, for adaptive measurement."""
    town = replace(town, declared=False)  # which gives every column a class more
    return Bench.of(town, folder, start=start_of(town))


def table_runs(bench: Bench, file: str, number: int) -> list[TableRun]:
    """Return so many adaptive runs on a file."""
    return [TableRun.read(values) for values in bench.vectors(file, number)]


def true_tables(town: Town, rows: Sequence[TownRow]) -> tuple[Ints, ...]:
    """Return the true tables in the order of SETS, counted one record after another."""
    counted = town.counted(rows)
    cells = np.array([counted[kind] for kind in KINDS]).reshape(4, 2)
    return cells.sum(axis=1), cells.sum(axis=0), cells.ravel()


def start_of(town: Town) -> tuple[Ints, ...]:
    """Return what the public side has before the first round: off by a few counts in one cell."""
    tables = []
    for table, off in zip(true_tables(town, town.rows), _OFF, strict=True):
        less = np.zeros_like(table)
        less[0] = off * town.limit * (2 if town.replace else 1)
        tables.append(table - less)
    return tuple(tables)


TABLES_SPENT = (
    "the parts of an adaptive run are what was charged for it, once, before the data was read"
)
TABLES_PUBLISHED = (
    "the noise that a release by adaptive measurement names is what its charge pays for"
)
LAW_OF_TABLES = "adaptive runs draw tables, levels and noise by the laws worked out apart"

_SHARE = 20
_CELLS = 16


def adaptive(size: Size) -> Iterator[Finding]:
    """Test adaptive runs on made-up towns against their law, for every kind of neighbour."""
    draws = []
    with tempfile.TemporaryDirectory() as folder:
        for number, town in enumerate(TOWNS):
            bench = bench_of(town, Path(folder) / str(number))
            released = released_run(bench, 1)
            law = TableLaw(released.charged, town)
            yield tables_charge(town, released, law)
            yield tables_figures(town, released, law)
            draws += drawn_by(bench, law, size.replicates // _SHARE)
    yield law_of_draws(draws)


def drawn_by(bench: Bench, law: TableLaw, runs: int) -> list[TableDraws]:
    """Return what runs on the two neighbours drew, each against its own true tables."""
    town = bench.town
    return [
        draws_of_tables(table_runs(bench, file, runs), start_of(town), true_tables(town, rows), law)
        for file, rows in (("data.csv", town.rows), ("neighbour.csv", town.neighbour))
    ]


def tables_charge(town: Town, released: ReleasedRun, law: TableLaw) -> Finding:
    """Compare the rho of a run's parts with what was charged, and when."""
    costs, facts = law.costs(TableRun.read(released.values).levels), facts_of_tables(released)
    parts = 2 * law.first + sum(costs) + law.closing
    whole = parts == law.rho and min(costs) >= law.unit
    measured = [law.move / (2 * Fraction(std) ** 2) for std in facts.noise_std]
    first = 2 * law.move / (2 * Fraction(facts.one_way_std) ** 2)
    closing = sum(
        move**2 / (2 * Fraction(std) ** 2)
        for each in facts.distances
        for move, std in zip(law.error_moves, (each.std, each.largest_std or 0), strict=True)
    )
    total = first + sum(measured) / Fraction(9, 10) + closing
    finding = charge_finding(TABLES_SPENT, town, [released], [total])
    return replace(finding, passed=finding.passed and whole)


def facts_of_tables(released: ReleasedRun) -> AdaptiveFacts:
    """Return what the manifest says of an adaptive run."""
    if released.manifest.adaptive is None:
        raise ValueError("the release of an audited town is not of adaptive measurement")
    return released.manifest.adaptive


def tables_figures(town: Town, released: ReleasedRun, law: TableLaw) -> Finding:
    """Compare published figures with those that follow from the rho charged."""
    facts, costs = facts_of_tables(released), law.costs(TableRun.read(released.values).levels)
    stds = [law.std(cost * Fraction(9, 10)) for cost in costs]
    pairs = [(facts.one_way_std, law.first_std), (facts.candidates, 3)]
    pairs += list(zip(facts.noise_std, stds, strict=True))
    for each in facts.distances:
        pairs += zip((each.std, each.largest_std or 0.0), law.error_stds, strict=True)
    return figures_finding(TABLES_PUBLISHED, town, pairs)


def law_of_draws(draws: Sequence[TableDraws]) -> Finding:
    """Test all noise and all draws of tables, of every town, as one."""
    z = np.concatenate([each.residuals for each in draws])
    width, spread = width_of(z)
    edges = ndtri(np.arange(1, _CELLS) / _CELLS)  # the grid is far finer than a cell
    counted = np.bincount(np.searchsorted(edges, z), minlength=_CELLS)
    tests: list[float] = [width, *_held_against(counted, np.full(_CELLS, z.size / _CELLS))]
    for each in draws:
        outcomes = np.bincount(each.drawn.outcome, minlength=3)
        tests += _held_against(outcomes, each.drawn.chances.sum(axis=0))
    strength, sharp = likely_strength([each.drawn for each in draws], 1.0)
    tests.append(sharp)
    possible = all(each.levels for each in draws)
    p = combined(tests) if possible else 0.0
    drawn = sum(len(each.drawn.outcome) for each in draws)
    return Finding(
        "all towns",
        LAW_OF_TABLES,
        p > ALPHA,
        f"{z.size:,} values, {spread:.4f} of the scale; {drawn:,} tables "
        f"drawn, {strength:.3f} times as sharply; levels "
        f"{'follow' if possible else 'do NOT follow'}; p = {p:.2g}",
        draws=z.size,
        tests=1,
    )


def _held_against(counted: Ints, expected: Floats) -> list[float]:
    """Return the p-value of counts against a law; none where there are too few of them."""
    counted, expected = pooled(counted, expected)
    return [chi_square(counted, expected)] if expected.size > 1 else []
