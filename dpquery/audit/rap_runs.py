"""Runs of RAP on made-up towns, and their exact law.

Made-up towns for the audit of RAP: small enough for every probability to be worked out.

All is public and written out by hand, the queries a second time as plain conditions on a record, so
that nothing here follows from how the product reads a spec, counts records or answers queries.

Runs of RAP on made-up towns, through the real code from the CSV file to the committed vector.

A release goes the whole way: plan, ledger, curator, relaxed rows, files. The bulk of the runs are
the curator's query on tables that the curator's counting made of a CSV file, with a public side
that has no fit in it: the audit may choose what it answers.

The distribution of a run of RAP, recomputed from public facts: split, scales, probabilities.

Nothing here is taken from the code that is audited: rho is split in fractions as RAP's mechanism
says, how far a record moves the selected counts is found by trying every kind of record, and the
probability of a selection is that of one exponential mechanism after another on what is left.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.audit.measurements import Watched, spent
from dpquery.commands import plan as plan_command
from dpquery.commands import release as release_command
from dpquery.measurement.accounting import UNIT, Price, guarantee, unit_of
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.ledger.events import Event
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import PartialMeasurement
from dpquery.measurement.rounds.queries import RapRounds, rap_rounds
from dpquery.measurement.rounds.query import RoundsQuery
from dpquery.measurement.rounds.run import MeasuredRun, PublicFit, Round, RoundBudget
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import read_plan, write_plan
from dpquery.plan_file.rehearsals import PlannedRap, RapSettings
from dpquery.reconstruction.relaxed.fits import RapProjection
from dpquery.releases.manifest import read_manifest
from dpquery.releases.manifest_facts import RapFacts
from dpquery.spec.parsing.read import parse

AgeAndSex = tuple[int, str]
"""age and sex of a record inside the domain."""
TownRow = tuple[str, str, str]
"""age, sex, id: as the CSV file has them."""

SPEC = """\
dataset: {{id: made-up-town, version: 1, rows: {rows}}}
privacy: {{unit: {unit}, neighbours: {neighbours}, delta: 1e-6}}
budget: {{rho: 1000}}
other: {other}
domain:
  age: {{range: [0, 3]}}
  sex: {{values: [F, M]}}
workload:
  - name: either
    any_of: {{age: prefix, sex: {{is: F}}}}
  - name: cells
    product: {{age: identity, sex: identity}}
"""
EPSILON, DELTA = Fraction(10), Fraction(1, 10**6)
KINDS = tuple(product(range(4), "FM"))
"""All records there can be."""
_EITHER = [[age <= last or sex == "F" for age, sex in KINDS] for last in range(4)]
_CELLS = [[kind == queried for kind in KINDS] for queried in KINDS]
ANSWERED = np.array([*_EITHER, *_CELLS], dtype=np.int64)
"""Whether each query holds of each kind of record, (m, 8): in the order of the spec."""
BLOCKS = (len(_EITHER), len(_CELLS))
_COUNTS = dict(zip(KINDS, (7, 5, 9, 4, 6, 8, 3, 5), strict=True))
DECLARED = sum(_COUNTS.values())
"""The number of records that a spec declares; it is public, and the total, if they are replaced and
none is dropped."""
_OUTSIDE: list[TownRow] = [("7", "F", "o1"), ("1", "X", "o2"), ("", "", "o3"), ("9", "M", "p0")]


@dataclass(frozen=True)
class Town:
    """A spec, two neighbouring files of records, and the settings of a run.

    Attributes:
        name: what is protected, in words.
        settings: of RAP.
        off: how far each query is answered too low before the first round, in steps of `span`.
        worst: the record that the neighbour has more.
        instead: the record that it has for it; None where records are added or removed.
        person: whether the unit is a person, whose rows beyond `limit` do not count.
        limit: D, the most rows of a person; 1 for rows.
        declared: whether the number of rows is, exactly, where they are replaced: none is dropped.
    """

    name: str
    settings: RapSettings
    off: tuple[int, ...]
    worst: AgeAndSex
    instead: AgeAndSex | None = None
    person: bool = False
    limit: int = 1
    declared: bool = True

    @property
    def replace(self) -> bool:
        """Whether neighbours have a record replaced."""
        return self.instead is not None

    @property
    def spec(self) -> str:
        """The text of the spec."""
        unit = f"{{person: id, max_rows: {self.limit}}}" if self.person else "row"
        neighbours = "replace" if self.replace else "add-remove"
        exact = self.replace and self.declared
        rows, other = (DECLARED, "count") if exact else (f"about {DECLARED}", "drop")
        return SPEC.format(unit=unit, neighbours=neighbours, rows=rows, other=other)

    @property
    def span(self) -> int:
        """How far apart the moves of two scores between neighbours can be."""
        return 2 * self.limit if self.replace else self.limit

    @property
    def rows(self) -> list[TownRow]:
        """The records of the town: some that are dropped, some persons with too many."""
        inside = [kind for kind, count in _COUNTS.items() for _ in range(count)]
        rows = [(str(age), sex, f"p{k}") for k, (age, sex) in enumerate(inside)]
        # All rows of a person are alike, so that it is no matter of chance which of them count.
        whose = [row for row in rows if row[:2] == ("1", "M")][:2]
        greedy = [whose[k % 2] for k in range(2 * self.limit + 3)]
        nobody: list[TownRow] = [("2", "F", "")] if self.person else []
        outside = [] if self.replace and self.declared else _OUTSIDE
        return [*outside, *rows, *(greedy if self.person else []), *nobody]

    @property
    def neighbour(self) -> list[TownRow]:
        """The same with one more unit of the worst kind of record, or a record replaced by it.

        The new person has two rows more than count.
        """
        (age, sex), changed = self.worst, self.rows
        new = (str(age), sex, "new")
        if self.instead is None:
            return [*changed, *[new] * (self.limit + 2 * self.person)]
        place = [row[:2] for row in changed].index((str(self.instead[0]), self.instead[1]))
        return [*changed[:place], new, *changed[place + 1 :]]

    @property
    def start(self) -> Ints:
        """What the public side answers before the first round, (m,)."""
        return np.asarray(answers_of(self.counted(self.rows)) - self.span * np.array(self.off))

    def counted(self, rows: Iterable[TownRow]) -> Counter[AgeAndSex]:
        """Count the records that count, of each kind, one by one."""
        rows_of: Counter[str] = Counter()
        counts: Counter[AgeAndSex] = Counter()
        for age, sex, name in rows:
            if age not in {"0", "1", "2", "3"} or sex not in {"F", "M"}:
                continue
            if self.person and (not name or rows_of[name] == self.limit):
                continue
            rows_of[name] += 1
            counts[int(age), sex] += 1
        return counts


def answers_of(counted: Counter[AgeAndSex]) -> Ints:
    """Return the true answers of all queries, (m,)."""
    return np.asarray(ANSWERED @ np.array([counted[kind] for kind in KINDS]))


def csv_of(rows: Sequence[TownRow]) -> str:
    """Return the text of a CSV file."""
    return "\n".join(["age,sex,id", *(",".join(row) for row in rows), ""])


TWO_ROUNDS = RapSettings(rounds=2, selected=2, relaxed_rows=16, seed=0)
AT_ONCE = RapSettings(rounds=1, selected=0, relaxed_rows=16, seed=0)
# Found by a search: what is drawn and counted then distinguishes the neighbours about as well as
# the budget allows. The record (1, F) answers the first four queries and the seventh.
_MANY = (0, 3, 2, 2, 0, 1, -2, 0, 1, 2, 1, 2)
_SWAPPED = (3, -2, -2, 1, 3, 1, 0, -1, 0, 1, 0, -2)
TOWNS = (
    Town("rows added or removed", TWO_ROUNDS, _MANY, (1, "F")),
    Town("rows replaced", TWO_ROUNDS, _SWAPPED, (3, "M"), instead=(0, "F")),
    Town("persons of 3 rows", TWO_ROUNDS, _MANY, (1, "F"), person=True, limit=3),
)
ALL_QUERIES_AT_ONCE = Town("rows, all queries at once", AT_ONCE, _MANY, (1, "F"))


STEPS_IN_A_COUNT = 1024
"""Steps of the noise's grid in one count."""
_UNKNOWN = RoundBudget(Fraction(0), Fraction(0), Fraction(0), last=False)  # no fit looks at it
_NEVER = 1e-300  # stands in the logarithm for what cannot happen whatever the data
_OVER = 4  # one query in so many is drawn among those answered too high, where a side is taken


@dataclass(frozen=True, eq=False)
class RapRuns:
    """The transcripts of n runs of T rounds of K queries, and what the public side said in them.

    Attributes:
        totals: (n,) in grid steps.
        numbers: (n, T, K) queries that were measured, in the order drawn.
        counts: (n, T, K) their noisy counts, in grid steps.
        synthetic: (n, T, m) rounded synthetic counts before each round.
    """

    totals: Ints
    numbers: Ints
    counts: Ints
    synthetic: Ints

    @classmethod
    def joined(cls, runs: Sequence["RapRuns"]) -> "RapRuns":
        """Return the runs of several as one."""
        names = ("totals", "numbers", "counts", "synthetic")
        return cls(*(np.concatenate([getattr(run, name) for run in runs]) for name in names))

    def some(self, which: slice) -> "RapRuns":
        """Return some of the runs."""
        arrays = (self.totals, self.numbers, self.counts, self.synthetic)
        return RapRuns(*(values[which] for values in arrays))


@dataclass(frozen=True)
class RhoSplit:
    """Where the rho of a run goes, and the strength eta of its selections."""

    rho: Fraction
    town: Town

    @property
    def selected(self) -> int:
        """K; all queries where none are selected."""
        return self.town.settings.selected or len(ANSWERED)

    @cached_property
    def total(self) -> Fraction:
        """The rho of the total: as much as one more query would cost, and a twentieth at least.

        Where records are replaced, it is the number declared, and free.
        """
        if self.town.replace:
            return Fraction(0)
        settings = self.town.settings
        parts = 2 * settings.rounds * settings.selected or worst_move(
            range(len(ANSWERED)), replace=self.town.replace
        )
        return self.rho * max(Fraction(1, 20), Fraction(1, parts + 1))

    @property
    def measurement(self) -> Fraction:
        """The rho of measuring the queries of a round."""
        rho = (self.rho - self.total) / self.town.settings.rounds
        return rho / 2 if self.town.settings.adaptive else rho

    @property
    def selection(self) -> Fraction:
        """The rho of selecting the queries of a round."""
        return self.measurement if self.town.settings.adaptive else Fraction(0)

    @property
    def rate(self) -> float:
        """Eta: K draws whose log ratio spans eta (span) cost K (eta span)^2 / 8."""
        return math.sqrt(8 * self.selection / (self.selected * self.town.span**2))

    @property
    def total_scale(self) -> float:
        """Scale of the total's noise, in grid steps; 0 where there is none."""
        if not self.total:
            return 0.0
        return STEPS_IN_A_COUNT * math.sqrt(self.town.limit**2 / (2 * self.total))

    def scaled_to(self, noisy: float) -> float:
        """Return the total that answers are multiples of, from the count that was committed.

        A town that declares about so many is believed as a count would be whose noise has a
        standard deviation of half as many.
        """
        if not self.total:
            return noisy
        counts = np.array([noisy, DECLARED])
        stds = np.array([self.total_scale / STEPS_IN_A_COUNT, DECLARED / 2])
        return max(1.0, float(np.average(counts, weights=stds**-2)))

    def scale(self, numbers: Sequence[int]) -> float:
        """Return the scale of the noise on the counts of some queries, in grid steps."""
        town = self.town
        if town.settings.adaptive:
            move = families_move(numbers, replace=town.replace)
        else:
            move = worst_move(numbers, replace=town.replace)
        return STEPS_IN_A_COUNT * math.sqrt(move * town.limit**2 / (2 * self.measurement))

    def scales(self, runs: RapRuns) -> Floats:
        """Return the scale of the noise in every round, in grid steps: (n, T)."""
        known: dict[tuple[int, ...], float] = {}
        rounds = runs.numbers.reshape(-1, self.selected).tolist()
        for numbers in {tuple(sorted(numbers)) for numbers in rounds}:
            known[numbers] = self.scale(numbers)
        return np.array(
            [[known[tuple(sorted(numbers))] for numbers in run] for run in runs.numbers.tolist()]
        )

    def sides(self, number: int) -> list[int]:
        """Return for each draw of a round whether it is among counts too low, 1, high, -1, or 0."""
        size = self.selected
        if self.town.replace:
            return [0] * size
        over = (number + 1) * size // _OVER - number * size // _OVER
        return [1] * (size - over) + [-1] * over


def worst_move(numbers: Sequence[int], *, replace: bool) -> int:
    """Return the largest squared move of some counts over all pairs of neighbouring records."""
    kinds = ANSWERED[list(numbers)].T
    if not replace:
        return int((kinds**2).sum(axis=1).max())
    kinds = np.concatenate([kinds, np.zeros_like(kinds[:1])])  # a record outside the domain
    return int(((kinds[:, None] - kinds) ** 2).sum(axis=2).max())


def families_move(numbers: Sequence[int], *, replace: bool) -> int:
    """Return the squared move that RAP allows for: over families of disjoint queries."""
    families: list[list[int]] = []
    for number in sorted(numbers):
        for family in families:
            if not (ANSWERED[family] @ ANSWERED[number]).any():
                family.append(number)
                break
        else:
            families.append([number])
    return sum(min(len(family), 2 if replace else 1) for family in families)


@dataclass(frozen=True, eq=False)
class RunDraws:
    """One draw of every run, and its law where the true answers are some.

    Attributes:
        scores: (n, m); of another strength in each draw where they are multiplied by it.
        chances: (n, m): 0 for queries that are not left.
        outcome: (n,) the query drawn.
    """

    scores: Ints | Floats
    chances: Floats
    outcome: Ints

    @property
    def chance(self) -> Floats:
        """The probability of what was drawn, (n,)."""
        return np.asarray(self.chances[np.arange(len(self.outcome)), self.outcome])


def draws_of(runs: RapRuns, answers: Ints, split: RhoSplit) -> list[list[RunDraws]]:
    """Return all draws, of each round in order, as they are where the true answers are these."""
    if not split.town.settings.adaptive:
        return []
    left = np.ones((len(runs.totals), len(answers)), dtype=np.bool_)
    everyone = np.arange(len(left))
    rounds: list[list[RunDraws]] = []
    for number in range(runs.numbers.shape[1]):
        off = answers - runs.synthetic[:, number]
        rounds.append([])
        for draw, side in enumerate(split.sides(number)):
            scores = np.maximum(side * off, 0) if side else np.abs(off)
            weights = np.where(left, split.rate * scores, -np.inf)
            chances = np.exp(weights - weights.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            outcome = runs.numbers[:, number, draw]
            rounds[-1].append(RunDraws(scores, chances, outcome))
            left[everyone, outcome] = False
    return rounds


def residuals_of(runs: RapRuns, total: int, answers: Ints) -> tuple[Ints, Ints]:
    """Return the noise that was added, where the true answers are these: (n,) and (n, T, K)."""
    return runs.totals - STEPS_IN_A_COUNT * total, runs.counts - STEPS_IN_A_COUNT * answers[
        runs.numbers
    ]


def log_likelihood(runs: RapRuns, total: int, answers: Ints, split: RhoSplit) -> Floats:
    """Return the log probability of every transcript, (n,), up to what no data changes."""
    of_total, of_counts = residuals_of(runs, total, answers)
    scales = split.scales(runs)[:, :, None]
    noise = ((of_counts / scales) ** 2).sum(axis=(1, 2))
    if split.total:
        noise += (of_total / split.total_scale) ** 2
    chances = [draw.chance for draws in draws_of(runs, answers, split) for draw in draws]
    chosen = [np.log(np.maximum(chance, _NEVER)) for chance in chances]
    return np.asarray(sum(chosen, -noise / 2))


class ShiftedProjection:
    """A public side without a fit: what was measured shifts all answers by the same amount."""

    def __init__(self, start: Ints) -> None:
        """Begin with some counts, (m,)."""
        self._start, self._moves = start, np.zeros(0)
        self._ends = np.cumsum((0, *BLOCKS))

    def answers(self, position: int) -> Floats:
        """Return the synthetic answers of a block."""
        moved = self._start + (self._moves.mean() / 2 if self._moves.size else 0.0)
        return np.asarray(moved[self._ends[position] : self._ends[position + 1]])

    def add(self, measured: Round) -> None:
        """Take in the noisy answers of a round."""
        places = measured.chosen
        moves = measured.noisy - self._start[self._ends[places[:, 0]] + places[:, 1]]
        self._moves = np.concatenate([self._moves, moves])


class UnstoredParts(PartialMeasurement):
    """A draft that stores nothing: runs of the audit are never continued."""

    def __init__(self) -> None:
        """Take no folder: there are no files."""

    def parts(self) -> list[Ints]:
        """Return none."""
        return []

    def append(self, values: Ints) -> None:
        """Store nothing."""


@dataclass(frozen=True, eq=False)
class Bench:
    """A town in a folder: its query, with a public side that has no fit in it."""

    town: Town
    folder: Path
    query: RoundsQuery[RapRounds]

    @classmethod
    def of(cls, town: Town, folder: Path) -> "Bench":
        """Set a town up in a folder: its spec and the files of its two neighbours."""
        folder.mkdir(parents=True)
        (folder / "workload.yaml").write_text(town.spec)
        (folder / "data.csv").write_text(csv_of(town.rows))
        (folder / "neighbour.csv").write_text(csv_of(town.neighbour))
        spec = parse(town.spec, name="workload.yaml", files={})
        compiled = compile_spec(spec)
        rounds = rap_rounds(
            compiled.workload,
            town.settings,
            privacy=spec.privacy,
            guarantee=guarantee("gaussian", epsilon=EPSILON, delta=DELTA),
            rows=spec.dataset.rows,
        )
        start = town.start

        def begin(_: MeasuredRun) -> PublicFit:
            return ShiftedProjection(start)

        return cls(town, folder, RoundsQuery(spec, compiled, rounds, 1, begin))

    def runs(self, file: str, number: int) -> RapRuns:
        """Return so many runs on a file."""
        query = self.query
        tables = tabulate(
            self.folder / file,
            spec=query.spec,
            subsets=query.subsets,
            classes=query.compiled.classes,
        )
        vectors = [query.noisy(dict(tables), draft=UnstoredParts()) for _ in range(number)]
        start = self.town.start
        return runs_of(np.stack(vectors), self.town, lambda _: ShiftedProjection(start))


@dataclass(frozen=True, eq=False)
class ReleasedRun:
    """A release as anybody can read it, and what was on record while it read the data.

    Attributes:
        facts: of RAP, from its manifest.
        run: its one transcript.
        charged: rho, by the ledger when all was done.
        before: the least rho on record whenever the data was opened to be read.
        charges: number of charges in the end.
        whole: whether the ledger verifies and the release is in it.
    """

    facts: RapFacts
    run: RapRuns
    charged: Fraction
    before: Fraction
    charges: int
    whole: bool


def released_run(bench: Bench, number: int) -> ReleasedRun:
    """Plan if that is still to be done, and release a town under a release number."""
    folder, ledger_path = bench.folder, bench.folder / "state" / "ledger.db"
    plan_path, out = folder / "dpquery.plan", folder / f"release-{number}"
    if not plan_path.exists():
        _plan(bench, plan_path, ledger_path)
    earlier, data = _history(ledger_path), Watched.of(folder / "data.csv", ledger_path)
    spent_before = spent(ledger_path)
    report = release_command.release(
        data,
        plan_path=plan_path,
        ledger_path=ledger_path,
        out=out,
        epsilon=EPSILON,
        mechanism="rap",
        release_number=number,
    )
    with Ledger.open(ledger_path, create=False) as ledger:
        key = report.mechanism.query.key
        events, name = ledger.history(), report.spec.dataset.id
        units = _charges(events[len(earlier) :], key)
        unit = unit_of(report.spec.privacy)
        price = Price(units[0], ledger.currency(name, unit=unit), unit)
        stored = ledger.lookup(name, key=key, price=price)
        whole = stored is not None and ledger.verify([out]) == events[-1].head
    town, workload = bench.town, bench.query.compiled.workload
    values = np.zeros(0, np.int64) if stored is None else stored.values
    charged = Fraction(sum(units), UNIT)
    split = RhoSplit(charged, town)

    def fitted(counted: float) -> PublicFit:
        return RapProjection(workload, town.settings, split.scaled_to(counted))

    run = runs_of(values[None], town, fitted)
    facts = read_manifest(out).rap
    if facts is None:
        raise ValueError("the release of an audited town is not by RAP")
    before = min(data.seen[1:], default=spent_before) - spent_before
    return ReleasedRun(facts, run, charged, Fraction(before, UNIT), len(units), whole)


def runs_of(values: Ints, town: Town, project: Callable[[float], PublicFit]) -> RapRuns:
    """Read committed vectors as RAP's mechanism lays them out, and play the public side again.

    Args:
        values: (n, 1 + 2 T K), or (n, 1 + m) where all queries were measured at once.
        town: its settings.
        project: makes the public side, given the total as it was committed.
    """
    settings, m = town.settings, len(ANSWERED)
    totals, rest = values[:, 0], values[:, 1:]
    if not settings.adaptive:
        numbers = np.broadcast_to(np.arange(m), (len(values), 1, m))
        return RapRuns(totals, numbers, rest[:, None], np.zeros((len(values), 1, m), np.int64))
    rounds = rest.reshape(len(values), settings.rounds, 2, settings.selected)
    numbers, counts = rounds[:, :, 0], rounds[:, :, 1]
    synthetic = np.empty((*numbers.shape[:2], m), dtype=np.int64)
    for run in range(len(values)):
        public = project(float(totals[run] / 1024))
        synthetic[run] = _played(public, numbers[run], counts[run] / 1024)
    return RapRuns(totals, numbers, counts, synthetic)


def _played(public: PublicFit, numbers: Ints, noisy: Floats) -> Ints:
    """Return the rounded answers that a public side has before each round, (T, m)."""
    starts, synthetic = np.cumsum((0, *BLOCKS)), []
    for chosen, counts in zip(numbers, noisy, strict=True):
        answers = np.concatenate([public.answers(position) for position in range(len(BLOCKS))])
        synthetic.append(np.rint(answers).astype(np.int64))
        blocks = np.searchsorted(starts, chosen, side="right") - 1
        places = np.stack([blocks, chosen - starts[blocks]], axis=1)
        public.add(Round(places, 0, counts, 1.0, _UNKNOWN))
    return np.stack(synthetic)


def _plan(bench: Bench, plan_path: Path, ledger_path: Path) -> None:
    """Plan, and put RAP's settings into the plan as if it had been rehearsed."""
    plan_command.plan(
        bench.folder / "workload.yaml",
        plan_path=plan_path,
        ledger_path=ledger_path,
        mechanism="linear",
        time_limit=math.inf,
    )
    planned = PlannedRap(
        settings=bench.town.settings,
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
    )
    plan_path.write_bytes(write_plan(replace(read_plan(plan_path.read_bytes()), relaxed=planned)))


def _history(ledger_path: Path) -> list[Event]:
    """Return what is durable in the ledger, by a new connection."""
    if not ledger_path.exists():
        return []
    with Ledger.open(ledger_path, create=False) as ledger:
        return ledger.history()


def _charges(events: Sequence[Event], key: str) -> list[int]:
    """Return the units that some events charge for a key."""
    return [
        int(str(event.fields["units"]))
        for event in events
        if event.kind == "reserve" and event.fields["key"] == key
    ]
