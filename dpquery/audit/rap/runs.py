"""Runs of RAP on made-up towns, through the real code from the CSV file to the committed vector.

A release goes the whole way: plan, ledger, curator, relaxed rows, files. The bulk of the runs are
the curator's query on tables that the curator's counting made of a CSV file, with a public side
that has no fit in it: the audit may choose what it answers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.audit.checks.repeated_releases import Watched, spent
from dpquery.audit.rap.cases import ANSWERED, BLOCKS, DELTA, EPSILON, Town, csv_of
from dpquery.audit.rap.distribution import RapRuns, RhoSplit
from dpquery.commands import plan as plan_command
from dpquery.commands import release as release_command
from dpquery.measurement.accounting import UNIT, Price, guarantee, unit_of
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.ledger.events import Event
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.partial_measurement import PartialMeasurement
from dpquery.measurement.rap.rounds import Projection, RapQuery, rap_budget
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import read_plan, write_plan
from dpquery.plan_file.rap_settings import PlannedRap
from dpquery.reconstruction.rap.fit import RapProjection
from dpquery.releases.manifest.manifest_input import read_manifest
from dpquery.releases.manifest.rap_facts import RapFacts
from dpquery.spec.parsing.spec import parse


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

    def add(self, places: Ints, noisy: Floats, std: float) -> None:
        """Take in the noisy answers of a round."""
        moves = noisy - self._start[self._ends[places[:, 0]] + places[:, 1]]
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
    query: RapQuery

    @classmethod
    def of(cls, town: Town, folder: Path) -> "Bench":
        """Set a town up in a folder: its spec and the files of its two neighbours."""
        folder.mkdir(parents=True)
        (folder / "workload.yaml").write_text(town.spec)
        (folder / "data.csv").write_text(csv_of(town.rows))
        (folder / "neighbour.csv").write_text(csv_of(town.neighbour))
        spec = parse(town.spec, name="workload.yaml", files={})
        compiled = compile_spec(spec)
        mechanism = rap_budget(
            compiled.workload,
            town.settings,
            privacy=spec.privacy,
            guarantee=guarantee("gaussian", epsilon=EPSILON, delta=DELTA),
            rows=spec.dataset.rows,
        )
        start = town.start

        def project(_: float) -> Projection:
            return ShiftedProjection(start)

        return cls(town, folder, RapQuery(spec, compiled, town.settings, mechanism, 1, project))

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

    def fitted(counted: float) -> Projection:
        return RapProjection(workload, town.settings, split.scaled_to(counted))

    run = runs_of(values[None], town, fitted)
    facts = read_manifest(out).rap
    if facts is None:
        raise ValueError("the release of an audited town is not by RAP")
    before = min(data.seen[1:], default=spent_before) - spent_before
    return ReleasedRun(facts, run, charged, Fraction(before, UNIT), len(units), whole)


def runs_of(values: Ints, town: Town, project: Callable[[float], Projection]) -> RapRuns:
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


def _played(public: Projection, numbers: Ints, noisy: Floats) -> Ints:
    """Return the rounded answers that a public side has before each round, (T, m)."""
    starts, synthetic = np.cumsum((0, *BLOCKS)), []
    for chosen, counts in zip(numbers, noisy, strict=True):
        answers = np.concatenate([public.answers(position) for position in range(len(BLOCKS))])
        synthetic.append(np.rint(answers).astype(np.int64))
        blocks = np.searchsorted(starts, chosen, side="right") - 1
        public.add(np.stack([blocks, chosen - starts[blocks]], axis=1), counts, 1.0)
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
