"""Made-up towns for the audit of runs in rounds: small enough to work every probability out.

All is public and written out by hand, the queries a second time as plain conditions on a record, so
that nothing here follows from how the product reads a spec, counts records or answers queries. A
town is asked in either layout of rounds: RAP's single queries, or whole tables.

Runs on them go through the real code from the CSV file to the committed vector. A release goes the
whole way: plan, ledger, curator, fit, files. The bulk of the runs are the curator's query on tables
that the curator's counting made of a CSV file, with a public side that has no fit in it: the audit
may choose what it answers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.audit.cases import OUTSIDE, Codes, Record, counted, write_csv
from dpquery.audit.measurements import UnstoredParts, WatchedRelease, tables_in
from dpquery.audit.planned_cases import planned_in
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.rounds.queries import RapRounds, rap_rounds
from dpquery.measurement.rounds.query import RoundsQuery
from dpquery.measurement.rounds.run import Round
from dpquery.measurement.rounds.tables import TableRounds, table_rounds
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import read_plan, write_plan
from dpquery.plan_file.rehearsals import (
    PlannedAdaptive,
    PlannedFit,
    PlannedRap,
    RapSettings,
    Rehearsal,
)
from dpquery.spec.parsing.read import parse
from dpquery.spec.spec import Spec

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
F, M = 0, 1
KINDS = tuple(product(range(4), (F, M)))
"""The codes of age and sex of all records there can be."""
_CELLS = np.array([[kind == queried for kind in KINDS] for queried in KINDS], np.int64)
BLOCKS = (
    np.array([[age <= k or sex == F for age, sex in KINDS] for k in range(4)], np.int64),
    _CELLS,
)
"""Whether each query holds of each kind of record, (m, 8): a matrix for each item of the spec."""
ANSWERED = np.concatenate(BLOCKS)
TOWN_TABLES = (
    np.array([[age == asked for age, _ in KINDS] for asked in range(4)], np.int64),
    np.array([[sex == asked for _, sex in KINDS] for asked in (F, M)], np.int64),
    _CELLS,
)
"""The same of the cells of the tables of age, sex, and both."""
_TABLES_OFF = (6, 0, 0, 0, -9, 0, 1, *[0] * 7)
_COUNTS = dict(zip(KINDS, (7, 5, 9, 4, 6, 8, 3, 5), strict=True))
DECLARED = sum(_COUNTS.values())
"""The number of records that a spec declares; it is public, and the total, if they are replaced and
none is dropped."""
_OUTSIDE = [(OUTSIDE, F), (1, OUTSIDE), (OUTSIDE, OUTSIDE), (OUTSIDE, M)]


@dataclass(frozen=True)
class Town:
    """A spec, two neighbouring files of records, and the settings of a run."""

    name: str  # what is protected, in words
    settings: RapSettings  # of RAP
    # how far RAP answers each query too low before the first round, in steps of `span`
    off: tuple[int, ...]
    worst: Codes  # the record that the neighbour has more
    # the record that it has for it; None where records are added or removed
    instead: Codes | None = None
    person: bool = False  # whether the unit is a person, whose rows beyond `limit` do not count
    limit: int = 1  # D, the most rows of a person; 1 for rows
    tables: bool = False  # whether whole tables are measured, and not RAP's single queries

    @property
    def replace(self) -> bool:
        """Whether neighbours have a record replaced."""
        return self.instead is not None

    @property
    def declared(self) -> bool:
        """Whether the number of rows is declared, exactly: none is dropped.

        That gives every column a class more, which tables are not asked with.
        """
        return self.replace and not self.tables

    @cached_property
    def spec(self) -> Spec:
        """The spec; `text` is what it is read from."""
        return parse(self.text, name="workload.yaml", files={})

    @property
    def text(self) -> str:
        """The text of the spec."""
        unit = f"{{person: id, max_rows: {self.limit}}}" if self.person else "row"
        neighbours = "replace" if self.replace else "add-remove"
        rows, other = (DECLARED, "count") if self.declared else (f"about {DECLARED}", "drop")
        return SPEC.format(unit=unit, neighbours=neighbours, rows=rows, other=other)

    @property
    def span(self) -> int:
        """How far apart the moves of two scores between neighbours can be."""
        return 2 * self.limit if self.replace else self.limit

    @property
    def rows(self) -> list[Record]:
        """The records of the town: some that are dropped, some persons with too many."""
        inside = [kind for kind, count in _COUNTS.items() for _ in range(count)]
        rows = [Record(f"p{k}", codes) for k, codes in enumerate(inside)]
        outside = [] if self.declared else [Record("p0", codes) for codes in _OUTSIDE]
        if not self.person:
            return [*outside, *rows]
        # All rows of a person are alike, so that it is no matter of chance which of them count.
        whose = [row for row in rows if row.codes == (1, M)][:2]
        greedy = [whose[k % 2] for k in range(2 * self.limit + 3)]
        return [*outside, *rows, *greedy, Record("", (2, F))]

    @property
    def neighbour(self) -> list[Record]:
        """The same with one more unit of the worst kind of record, or a record replaced by it.

        The new person has two rows more than count.
        """
        new, changed = Record("new", self.worst), self.rows
        if self.instead is None:
            return [*changed, *[new] * (self.limit + 2 * self.person)]
        place = [row.codes for row in changed].index(self.instead)
        return [*changed[:place], new, *changed[place + 1 :]]

    def truth(self, rows: Iterable[Record]) -> list[Ints]:
        """Return the true answers of all blocks, or tables, counted one record after another."""
        by_codes = counted(rows, self.spec)
        counts = np.array([by_codes[kind] for kind in KINDS])
        return [holds @ counts for holds in (TOWN_TABLES if self.tables else BLOCKS)]

    @property
    def start(self) -> list[Ints]:
        """What the public side answers before the first round, by block or table."""
        truth, off = self.truth(self.rows), np.array(_TABLES_OFF if self.tables else self.off)
        ends = np.cumsum([len(answers) for answers in truth])[:-1]
        return [
            answers - self.span * less
            for answers, less in zip(truth, np.split(off, ends), strict=True)
        ]


TWO_ROUNDS = RapSettings(rounds=2, selected=2, relaxed_rows=16, seed=0)
AT_ONCE = RapSettings(rounds=1, selected=0, relaxed_rows=16, seed=0)
# Found by a search: what is drawn and counted then distinguishes the neighbours about as well as
# the budget allows. The record (1, F) answers the first four queries and the seventh.
_MANY = (0, 3, 2, 2, 0, 1, -2, 0, 1, 2, 1, 2)
_SWAPPED = (3, -2, -2, 1, 3, 1, 0, -1, 0, 1, 0, -2)
TOWNS = (
    Town("rows added or removed", TWO_ROUNDS, _MANY, (1, F)),
    Town("rows replaced", TWO_ROUNDS, _SWAPPED, (3, M), instead=(0, F)),
    Town("persons of 3 rows", TWO_ROUNDS, _MANY, (1, F), person=True, limit=3),
)
ALL_QUERIES_AT_ONCE = Town("rows, all queries at once", AT_ONCE, _MANY, (1, F))
STEPS_IN_A_COUNT = 1024
"""Steps of the noise's grid in one count."""


class ShiftedFit:
    """A public side without a fit: what was measured shifts all answers by the same amount."""

    def __init__(self, start: Sequence[Ints]) -> None:
        self._start, self._moves = start, np.zeros(0)

    def answers(self, number: int) -> Floats:
        """Return what it has for a block, (m,)."""
        moved = self._moves.mean() / 2 if self._moves.size else 0.0
        return np.asarray(self._start[number] + moved)

    def add(self, measured: Round) -> None:
        """Take in the noisy answers of a round: of some queries, or of a table."""
        chosen, start = measured.chosen, self._start
        table = start[chosen[0]] if chosen.ndim == 1 else [start[k][row] for k, row in chosen]
        self._moves = np.append(self._moves, measured.noisy - table)

    def released_table(self, number: int) -> Floats:
        """Return what would be released for a table, (m,): what it has in the end."""
        return self.answers(number)

    def digest(self) -> int:
        """Return a number that goes with it: there is nothing to tell apart."""
        return 0


REHEARSED = Rehearsal(
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


@dataclass(frozen=True, eq=False)
class Bench:
    """A town in a folder: its query, with a public side that has no fit in it."""

    town: Town
    folder: Path
    query: RoundsQuery[RapRounds] | RoundsQuery[TableRounds]

    @classmethod
    def of(cls, town: Town, folder: Path) -> "Bench":
        """Set a town up in a folder: its spec and the files of its two neighbours."""
        folder.mkdir(parents=True)
        spec = town.spec
        write_csv(folder / "data.csv", town.rows, spec)
        write_csv(folder / "neighbour.csv", town.neighbour, spec)
        compiled, rows = compile_spec(spec), spec.dataset.rows
        workload, privacy = compiled.workload, spec.privacy
        promised = guarantee("gaussian", epsilon=EPSILON, delta=DELTA)

        start = town.start

        def begin(_: object) -> ShiftedFit:
            return ShiftedFit(start)

        if town.tables:
            tables = table_rounds(
                workload, privacy=privacy, guarantee=promised, rows=rows, items=compiled.items
            )
            return cls(town, folder, RoundsQuery(spec, compiled, tables, 1, begin))
        rap = rap_rounds(workload, town.settings, privacy=privacy, guarantee=promised, rows=rows)
        return cls(town, folder, RoundsQuery(spec, compiled, rap, 1, begin))

    def vectors(self, file: str, number: int) -> list[Ints]:
        """Return what so many runs on a file commit."""
        tables = tables_in(self.folder / file, self.query)
        return [self.query.noisy(dict(tables), draft=UnstoredParts()) for _ in range(number)]

    def release(self, number: int) -> WatchedRelease:
        """Plan if that is still to be done, and make the release of a number."""
        if not (self.folder / "dpquery.plan").exists():
            # put the mechanism into the plan as if it had been rehearsed
            content = planned_in(self.folder, self.town.text)
            planned: PlannedFit = PlannedRap(**vars(REHEARSED), settings=self.town.settings)
            if self.town.tables:
                planned = PlannedAdaptive(**vars(REHEARSED), tables=3, rounds=1)
            plan = read_plan(content).with_fit(planned)
            (self.folder / "dpquery.plan").write_bytes(write_plan(plan))
        key = self.query.rounds.key
        return WatchedRelease.made(self.folder, number, epsilon=EPSILON, mechanism=key)
