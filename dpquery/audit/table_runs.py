"""Adaptive runs over whole tables, and the checks of them.

Runs of adaptive measurement on made-up towns, and their law, recomputed from public facts.

Nothing of the law is taken from the code that is audited: tables are counted one record after
another, rho is split in fractions, and levels, scores and the probability of every draw are worked
out again. The bulk of the runs are the curator's query on tables that the curator's counting made
of a CSV file, with a public side that has no fit in it; a release goes the whole way.

The checks of adaptive measurement: its charge and its figures, and the law of all it draws.
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.special import gammainc, gammaincc, ndtri

from dpquery.arrays import Floats, Ints
from dpquery.audit.cases import Size
from dpquery.audit.measurements import Watched, spent
from dpquery.audit.rap_checks import likely_strength
from dpquery.audit.rap_runs import (
    DELTA,
    EPSILON,
    KINDS,
    TOWNS,
    RunDraws,
    Town,
    TownRow,
    UnstoredParts,
    csv_of,
)
from dpquery.audit.statistics import ALPHA, Finding, chi_square, combined, pooled
from dpquery.commands import plan as plan_command
from dpquery.commands import release as release_command
from dpquery.measurement.accounting import UNIT, guarantee
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.rounds.query import RoundsQuery
from dpquery.measurement.rounds.run import MeasuredRun, PublicFit, Round, RoundBudget
from dpquery.measurement.rounds.tables import TableRounds, table_rounds
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import read_plan, write_plan
from dpquery.plan_file.rehearsals import PlannedAdaptive
from dpquery.releases.manifest import read_manifest
from dpquery.releases.manifest_facts import AdaptiveFacts
from dpquery.spec.parsing.read import parse
from dpquery.strategy.algebra.subsets import Subset

SETS: tuple[Subset, ...] = ((0,), (1,), (0, 1))
"""Age, sex, and both: all tables of a town."""
WEIGHTS = (512, 512, 1024)
"""Two blocks share one attribute each with the first two, and two each with the last."""
GRID_STEPS = 1024
_UNKNOWN = RoundBudget(Fraction(0), Fraction(0), Fraction(0), last=False)  # no fit looks at it
_OFF = (6, -9, 1)  # how much less the public side has in the first cell of each table


@dataclass(frozen=True, eq=False)
class TableRun:
    """The transcript of one run.

    Attributes:
        first: noisy counts of the tables of one attribute, (6,), in grid steps.
        numbers: of the table of each round.
        levels: of each round.
        counts: of each round, in grid steps.
    """

    first: Ints
    numbers: tuple[int, ...]
    levels: tuple[int, ...]
    counts: tuple[Ints, ...]

    @classmethod
    def read(cls, values: Ints) -> "TableRun":
        """Read a committed vector: rounds follow each other to its end."""
        sizes, end = (4, 2, 8), 6
        numbers, levels, counts = [], [], []
        while end < len(values):
            number, level = (int(value) for value in values[end : end + 2])
            numbers.append(number)
            levels.append(level)
            counts.append(values[end + 2 : end + 2 + sizes[number]])
            end += 2 + sizes[number]
        return cls(values[:6], tuple(numbers), tuple(levels), tuple(counts))


class ShiftedTables:
    """A public side without a fit: what was measured shifts all tables by the same amount."""

    def __init__(self, start: Sequence[Ints]) -> None:
        """Begin with some tables, in the order of SETS."""
        self._start, self._moves = start, np.zeros(0)

    def answers(self, number: int) -> Floats:
        """Return a table, (cells,)."""
        moved = self._moves.mean() / 2 if self._moves.size else 0.0
        return np.asarray(self._start[number] + moved)

    def add(self, measured: Round) -> None:
        """Take in a noisy table."""
        moves = measured.noisy - self._start[measured.chosen[0]]
        self._moves = np.append(self._moves, moves)


@dataclass(frozen=True)
class TableLaw:
    """Where the rho of a run goes, and the law of what it draws."""

    rho: Fraction
    town: Town

    @property
    def unit(self) -> Fraction:
        """The rho of a round at level 0: sixteen rounds for each of two attributes."""
        return self.rho / 32

    @property
    def move(self) -> int:
        """The squared length of the largest move of a table between neighbours."""
        return self.town.limit**2 * (2 if self.town.replace else 1)

    @property
    def first_std(self) -> float:
        """Of the noise on the tables of one attribute, in counts."""
        return self.std(Fraction(9, 10) * self.unit)

    def std(self, rho: Fraction) -> float:
        """Return the standard deviation of noise on a table that costs rho, in counts."""
        return math.sqrt(self.move / (2 * rho))

    def costs(self, levels: Sequence[int]) -> list[Fraction]:
        """Return the rho of rounds at some levels; what they leave is not their sum, if damaged."""
        left, costs = self.rho - 2 * Fraction(9, 10) * self.unit, []
        for level in levels:
            cost = 4**level * self.unit
            costs.append(left if left - cost < cost else cost)
            left -= costs[-1]
        return costs

    def rate(self, rho: Fraction) -> float:
        """Return eta of a draw in a round that costs rho: (eta span)^2 / 8 is a tenth of it."""
        moved = self.town.limit * (2 if self.town.replace else 1)
        return math.sqrt(8 * rho / 10) / (2 * moved * max(WEIGHTS))


@dataclass(frozen=True, eq=False)
class TableDraws:
    """What was drawn in some runs, and its law where the true tables are some.

    Attributes:
        residuals: noise over its scale, (k,).
        drawn: the tables, with eta times their scores.
        levels: whether every level follows from what was measured before.
        log_likelihoods: of each run, up to what no data changes.
    """

    residuals: Floats
    drawn: RunDraws
    levels: bool
    log_likelihoods: Floats


def draws_of_tables(
    runs: Sequence[TableRun], start: Sequence[Ints], true: Sequence[Ints], law: TableLaw
) -> TableDraws:
    """Return all draws of some runs, where the public side starts so and the true tables are so."""
    residuals, levels, likelihoods = [], True, []
    scores, chances, outcomes = [], [], []
    for run in runs:
        noise = (run.first - GRID_STEPS * np.concatenate(true[:2])) / (GRID_STEPS * law.first_std)
        residuals.append(noise)
        log_likelihood, level, public = -float((noise**2).sum()) / 2, 0, ShiftedTables(start)
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
            noise = (counts - GRID_STEPS * true[number]) / (GRID_STEPS * std)
            residuals.append(noise)
            log_likelihood += math.log(chance[number]) - float((noise**2).sum()) / 2
            before = public.answers(number)
            public.add(Round(np.array([number]), given, counts / GRID_STEPS, std, _UNKNOWN))
            moved = float(np.abs(public.answers(number) - before).sum())
            level = given + (moved <= math.sqrt(2 / math.pi) * std * len(counts))
        likelihoods.append(log_likelihood)
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


@dataclass(frozen=True, eq=False)
class TableBench:
    """A town in a folder: its query, with a public side that has no fit in it."""

    town: Town
    folder: Path
    query: RoundsQuery[TableRounds]

    @classmethod
    def of(cls, town: Town, folder: Path) -> "TableBench":
        """Set a town up in a folder: its spec and the files of its two neighbours."""
        folder.mkdir(parents=True)
        town = replace(town, declared=False)  # which gives every column a class more
        (folder / "workload.yaml").write_text(town.spec)
        (folder / "data.csv").write_text(csv_of(town.rows))
        (folder / "neighbour.csv").write_text(csv_of(town.neighbour))
        spec = parse(town.spec, name="workload.yaml", files={})
        compiled = compile_spec(spec)
        rounds = table_rounds(
            compiled.workload,
            privacy=spec.privacy,
            guarantee=guarantee("gaussian", epsilon=EPSILON, delta=DELTA),
            rows=spec.dataset.rows,
        )
        begin = start_of(town)

        def start(_: MeasuredRun) -> PublicFit:
            return ShiftedTables(begin)

        return cls(town, folder, RoundsQuery(spec, compiled, rounds, 1, start))

    @cached_property
    def law(self) -> TableLaw:
        """The law of its runs, at what the query is charged."""
        return TableLaw(self.query.guarantee.amount, self.town)

    def runs(self, file: str, number: int) -> list[TableRun]:
        """Return so many runs on a file."""
        query = self.query
        tables = tabulate(
            self.folder / file,
            spec=query.spec,
            subsets=query.subsets,
            classes=query.compiled.classes,
        )
        return [
            TableRun.read(query.noisy(dict(tables), draft=UnstoredParts())) for _ in range(number)
        ]


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


@dataclass(frozen=True, eq=False)
class ReleasedTables:
    """A release as anybody can read it, and what was on record while it read the data.

    Attributes:
        facts: of the run, from its manifest.
        run: its transcript.
        charged: rho, by the ledger when all was done.
        before: the least rho on record whenever the data was opened to be read.
        whole: whether the ledger verifies and the release is in it.
    """

    facts: AdaptiveFacts
    run: TableRun
    charged: Fraction
    before: Fraction
    whole: bool


def released_tables(bench: TableBench) -> ReleasedTables:
    """Plan and release a town, the whole way."""
    folder, ledger_path = bench.folder, bench.folder / "state" / "ledger.db"
    plan_path, out = folder / "dpquery.plan", folder / "release"
    plan_command.plan(
        folder / "workload.yaml",
        plan_path=plan_path,
        ledger_path=ledger_path,
        mechanism="linear",
        time_limit=math.inf,
    )
    planned = PlannedAdaptive(
        epsilon=EPSILON,
        delta=DELTA,
        proxy="nothing: this is an audit",
        repetitions=1,
        rmse=1.0,
        rmse_spread=0.0,
        max_error=1.0,
        max_error_spread=0.0,
        linear_rmse=1.0,
        linear_max_error=1.0,
        margin=1.0,
        preferred=True,
        tables=3,
        rounds=1,
    )
    plan_path.write_bytes(write_plan(replace(read_plan(plan_path.read_bytes()), adaptive=planned)))
    data, earlier = Watched.of(folder / "data.csv", ledger_path), spent(ledger_path)
    report = release_command.release(
        data, plan_path=plan_path, ledger_path=ledger_path, out=out, epsilon=EPSILON
    )
    with Ledger.open(ledger_path, create=False) as ledger:
        whole = ledger.verify([out]) == ledger.history()[-1].head
    facts = read_manifest(out).adaptive
    if facts is None:
        raise ValueError("the release of an audited town is not of adaptive measurement")
    charged = spent(ledger_path) - earlier
    before = min(data.seen[1:], default=earlier) - earlier
    run = TableRun.read(report.measured.values)
    return ReleasedTables(facts, run, Fraction(charged, UNIT), Fraction(before, UNIT), whole)


TABLES_SPENT = (
    "the parts of an adaptive run are what was charged for it, once, before the data was read"
)
TABLES_PUBLISHED = (
    "the noise that a release by adaptive measurement names is what its charge pays for"
)
LAW_OF_TABLES = "adaptive runs draw tables, levels and noise by the laws worked out apart"

_SHARE = 20
_CELLS = 16
_ROUNDING = 1e-9
_EXACT = Fraction(1, 10**12)  # published figures are floats


def adaptive(size: Size) -> Iterator[Finding]:
    """Test adaptive runs on made-up towns against their law, for every kind of neighbour."""
    draws = []
    with tempfile.TemporaryDirectory() as folder:
        for number, town in enumerate(TOWNS):
            bench = TableBench.of(town, Path(folder) / str(number))
            released = released_tables(bench)
            law = TableLaw(released.charged, town)
            yield tables_charge(town, released, law)
            yield tables_figures(town, released, law)
            draws += drawn_by(bench, law, size.replicates // _SHARE)
    yield law_of_draws(draws)


def drawn_by(bench: TableBench, law: TableLaw, runs: int) -> list[TableDraws]:
    """Return what runs on the two neighbours drew, each against its own true tables."""
    town = bench.town
    return [
        draws_of_tables(bench.runs(file, runs), start_of(town), true_tables(town, rows), law)
        for file, rows in (("data.csv", town.rows), ("neighbour.csv", town.neighbour))
    ]


def tables_charge(town: Town, released: ReleasedTables, law: TableLaw) -> Finding:
    """Compare the rho of a run's parts with what was charged, and when."""
    costs, facts = law.costs(released.run.levels), released.facts
    whole = 2 * Fraction(9, 10) * law.unit + sum(costs) == law.rho
    measured = [law.move / (2 * Fraction(std) ** 2) for std in facts.noise_std]
    first = 2 * law.move / (2 * Fraction(facts.one_way_std) ** 2)
    total = first + sum(measured) / Fraction(9, 10)
    fair = whole and min(costs) >= law.unit and total <= law.rho * (1 + _EXACT)
    early = released.before == released.charged and released.whole
    return Finding(
        "adaptive",
        town.name,
        TABLES_SPENT,
        fair and early,
        f"{len(costs)} rounds cost {float(total):.9g} of {float(law.rho):.9g} charged; "
        f"{'on record' if early else 'NOT on record'} at the first read",
    )


def tables_figures(town: Town, released: ReleasedTables, law: TableLaw) -> Finding:
    """Compare published figures with those that follow from the rho charged."""
    facts, costs = released.facts, law.costs(released.run.levels)
    pairs = [(facts.one_way_std, law.first_std)]
    stds = [law.std(cost * Fraction(9, 10)) for cost in costs]
    pairs += list(zip(facts.noise_std, stds, strict=True))
    worst = max(abs(given / worked_out - 1) for given, worked_out in pairs)
    return Finding(
        "adaptive",
        town.name,
        TABLES_PUBLISHED,
        worst <= _ROUNDING and facts.candidates == 3,
        f"{len(pairs)} figures, the largest difference {worst:.1g} of one",
    )


def law_of_draws(draws: Sequence[TableDraws]) -> Finding:
    """Test all noise and all draws of tables, of every town, as one."""
    z = np.concatenate([each.residuals for each in draws])
    squares = float((z**2).sum()) / 2
    width = 2 * min(gammainc(z.size / 2, squares), gammaincc(z.size / 2, squares))
    edges = ndtri(np.arange(1, _CELLS) / _CELLS)  # the grid is far finer than a cell
    counted = np.bincount(np.searchsorted(edges, z), minlength=_CELLS)
    tests: list[float] = [float(width), *_held_against(counted, np.full(_CELLS, z.size / _CELLS))]
    for each in draws:
        outcomes = np.bincount(each.drawn.outcome, minlength=3)
        tests += _held_against(outcomes, each.drawn.chances.sum(axis=0))
    strength, sharp = likely_strength([each.drawn for each in draws], 1.0)
    tests.append(sharp)
    possible = all(each.levels for each in draws)
    p = combined(tests) if possible else 0.0
    drawn = sum(len(each.drawn.outcome) for each in draws)
    return Finding(
        "adaptive",
        "all towns",
        LAW_OF_TABLES,
        p > ALPHA,
        f"{z.size:,} values, {math.sqrt(2 * squares / z.size):.4f} of the scale; {drawn:,} tables "
        f"drawn, {strength:.3f} times as sharply; levels "
        f"{'follow' if possible else 'do NOT follow'}; p = {p:.2g}",
        draws=z.size,
        tests=1,
    )


def _held_against(counted: Ints, expected: Floats) -> list[float]:
    """Return the p-value of counts against a law; none where there are too few of them."""
    counted, expected = pooled(counted, expected)
    return [chi_square(counted, expected)] if expected.size > 1 else []
