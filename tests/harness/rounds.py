"""Runs of RAP and of adaptive measurement whose public side learns nothing, and rehearsals."""

import dataclasses
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
from town import SEARCHED, ok
from town import SPEC as TOWN

from dpquery.measurement import accounting, curator
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.rounds.queries import rap_rounds
from dpquery.measurement.rounds.query import RoundsQuery
from dpquery.measurement.rounds.tables import table_rounds
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import read_plan, write_plan
from dpquery.plan_file.rehearsals import PlannedAdaptive, PlannedRap, RapSettings, Rehearsal
from dpquery.releases.folder.noisy_files import read_relaxed
from dpquery.releases.manifest import read_manifest
from dpquery.spec.parsing.read import parse

# A small dataset, a ledger and a public side with no fit in it, for the tests of RAP's privacy.

SPEC = """\
dataset: {id: town, version: 1}
privacy: {unit: row, neighbours: add-remove, delta: 1e-6}
budget: {epsilon: 10, delta: 1e-6}
other: drop
domain:
  age: {range: [0, 5]}
  sex: {values: [F, M]}
  job: {values: [a, b, c]}
workload:
  - name: products
    marginals: {ways: 2}
  - name: thresholds
    threshold: {r: 2, of: [age, sex, job]}
"""
REPLACE = SPEC.replace("add-remove", "replace")
DECLARED = REPLACE.replace("version: 1}", "version: 1, rows: 48}").replace("drop", "count")
PERSON = SPEC.replace("unit: row", "unit: {person: id, max_rows: 3}")
ROWS = [(age, sex, job) for age in (0, 0, 1, 5) for sex in "FMM" for job in "aaac"]
TWO = RapSettings(rounds=2, selected=3, relaxed_rows=10, seed=0)
AT_ONCE = RapSettings(rounds=1, selected=0, relaxed_rows=10, seed=0)


class Frozen:
    """A projection that learns nothing: it answers a fixed share of the total."""

    def __init__(self, total, workload):
        self.total, self.workload, self.heard = total, workload, []

    def answers(self, position):
        queries = self.workload.blocks[position].queries
        return np.linspace(0, self.total / 3, queries)

    def add(self, measured):
        self.heard.append((measured.chosen.tolist(), measured.noisy.tolist(), measured.std))


def write_csv(path, rows=ROWS, header="age,sex,job"):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows), ""]))
    return path


def ask(settings=TWO, *, spec=SPEC, epsilon=1, delta="1e-6", release=1, project=None, rows=None):
    """A question with a frozen projection, which is kept in `question.seen`."""
    parsed = parse(spec, name="town.yaml", files={})
    compiled = compile_spec(parsed)
    guarantee = accounting.guarantee("gaussian", epsilon=Fraction(epsilon), delta=Fraction(delta))
    rounds = rap_rounds(
        compiled.workload,
        settings,
        privacy=parsed.privacy,
        guarantee=guarantee,
        rows=rows or parsed.dataset.rows,
    )
    make = project or (lambda total: Frozen(total, compiled.workload))
    return RoundsQuery(parsed, compiled, rounds, release, lambda run: make(run.total))


def open_ledger(folder, question):
    """A ledger with the question's dataset on record."""
    cap = accounting.budget_cap(question.spec.budget, question.spec.privacy)
    with Ledger.open(folder / "state" / "ledger.db", create=True) as ledger:
        ledger.register(question.spec.dataset.id, cap)
    return folder / "state" / "ledger.db"


def measured(data, question, path=None):
    """Answer a question as the curator does."""
    path = path or open_ledger(data.parent, question)
    with Ledger.open(path, create=False) as ledger:
        return curator.measure(data, question, ledger=ledger)


def spent_on(path):
    """What the ledger says was spent, and the kinds of its events."""
    with Ledger.open(path, create=False) as ledger:
        return ledger.status()[0].account.spent, [event.kind for event in ledger.history()]


# Adaptive runs with a public side that has no fit in it, for the tests of their privacy.


class Guess:
    """A model that learns nothing of what it is told: even tables, that move when it is told to.

    With `restless` a table is moved by as much whenever it was measured, and the level stays.
    """

    def __init__(self, rounds, run, restless=0.0):
        self.sizes, self.total, self.restless = rounds.candidates.sizes, run.total, restless
        self.heard = [(table.tolist(), run.first_std) for table in run.first]
        self.moves = {}

    def answers(self, number):
        even = np.full(self.sizes[number], self.total / self.sizes[number])
        return even + self.moves.get(number, 0) * self.restless

    def add(self, measured):
        number = int(measured.chosen[0])
        self.heard.append((number, measured.noisy.tolist(), measured.std))
        self.moves[number] = 1 - self.moves.get(number, 0)

    def released_table(self, number):
        return self.answers(number) + 2

    def digest(self):
        return 7


def ask_tables(
    spec=SPEC, *, epsilon=1, delta="1e-6", release=1, restless=0.0, start=None, rows=None
):
    """A question of adaptive measurement, with a model that learns nothing."""
    parsed = parse(spec, name="town.yaml", files={})
    compiled = compile_spec(parsed)
    rounds = table_rounds(
        compiled.workload,
        privacy=parsed.privacy,
        guarantee=accounting.guarantee(
            "gaussian", epsilon=Fraction(epsilon), delta=Fraction(delta)
        ),
        rows=rows or parsed.dataset.rows,
    )
    make = start or (lambda run: Guess(rounds, run, restless))
    return RoundsQuery(parsed, compiled, rounds, release, make)


def exact_tables(question, rows):
    """The true tables of records in codes, by the block of the candidate."""
    shape = question.compiled.workload.shape_of_domain
    records = np.array(rows).reshape(-1, len(shape))

    def table(block):
        subset = block.attributes
        counts = np.zeros([shape[i] for i in subset], dtype=np.int64)
        np.add.at(counts, tuple(records[:, i] for i in subset), 1)
        return counts.ravel()

    return table


# Towns whose plans hold RAP, made by hand: what plan would have simulated is invented.

MIXED = """\
  - name: upto
    product: {age: prefix, sex: identity, region: {is: North}}
  - name: any
    any_of: {sex: {is: F}, region: {is: South}, income: {between: [0, 10]}}
  - name: two
    threshold: {r: 2, of: [age, sex, region]}
"""
ROW_SPEC = TOWN.replace("neighbours: add-remove", "neighbours: add-remove, delta: 1e-6").replace(
    "{epsilon: 4}",
    "{epsilon: 4, delta: 1e-6, accounting: zcdp}",  # as a plan that prefers RAP says
)
MIXED_SPEC = ROW_SPEC + MIXED
PERSON_SPEC = MIXED_SPEC.replace("unit: row", "unit: {person: name, max_rows: 2}")
REPLACE_SPEC = MIXED_SPEC.replace("add-remove", "replace").replace(
    "version: 1}", "version: 1, rows: 6}"
)
REPLACE_SPEC = REPLACE_SPEC.replace("other: drop\n", "other: show\n")  # all 6 are in the domain
REPLACE_SPEC += "  - {name: whole, product: {}}\n"
REHEARSED = PlannedRap(
    settings=RapSettings(rounds=2, selected=3, relaxed_rows=20, seed=0),
    epsilon=Fraction(1),
    delta=Fraction(1, 10**6),
    proxy="the default prior",
    repetitions=3,
    rmse=4.5,
    rmse_spread=0.25,
    max_error=17.0,
    max_error_spread=2.0,
    linear_rmse=11.0,
    linear_max_error=60.5,
    margin=0.7,
    preferred=True,
)


def rehearse(plan=Path("dpquery.plan"), **changes):
    """Put RAP into a plan, as it was rehearsed but for some changes."""
    linear = dataclasses.replace(read_plan(plan.read_bytes()), relaxed=None)
    relaxed = dataclasses.replace(REHEARSED, **changes)
    plan.write_bytes(write_plan(dataclasses.replace(linear, relaxed=relaxed)))


SHARED = {field.name: getattr(REHEARSED, field.name) for field in dataclasses.fields(Rehearsal)}
REHEARSED_TABLES = PlannedAdaptive(**SHARED, tables=15, rounds=4)


def rehearse_tables(plan=Path("dpquery.plan"), **changes):
    """Put adaptive measurement into a plan, as they were rehearsed but for some changes."""
    linear = dataclasses.replace(read_plan(plan.read_bytes()), relaxed=None)
    planned = dataclasses.replace(REHEARSED_TABLES, **changes)
    plan.write_bytes(write_plan(dataclasses.replace(linear, adaptive=planned)))


def relaxed_of(release, compiled):
    """The relaxed rows of a release that was made for a workload."""
    return read_relaxed(release, compiled, digest=read_manifest(release).rap.rows_sha256)


# A small town of about 2,000 records, and a dense public side: multiplicative weights on cells.

REHEARSAL_SPEC = """\
dataset: {id: town, version: 1, rows: about 2000}
privacy: {unit: row, neighbours: add-remove, delta: 1e-9}
budget: {epsilon: 20, delta: 1e-9}
prefer: closest
other: drop
domain:
  age: {range: [0, 5]}
  job: {values: [a, b, c, d, e]}
  region: {values: [n, e, s, w]}
  sex: {values: [F, M]}
workload:
  - name: pairs
    marginals: {ways: 2}
"""


SPEC_READ = parse(REHEARSAL_SPEC, name="w.yaml", files={})
COMPILED = compile_spec(SPEC_READ)


class Learner:
    """The twin of a projection, by the histogram of the whole domain."""

    def __init__(self, workload, settings, total):
        self.workload, self.total = workload, total
        cells = workload.shape[1]
        self.rows = [np.stack([b.matvec(e) for e in np.eye(cells)], 1) for b in workload.blocks]
        self.x, self.heard = np.full(cells, total / cells), []

    def answers(self, position):
        return self.rows[position] @ self.x

    def add(self, measured):
        self.heard += zip(measured.chosen.tolist(), measured.noisy.tolist(), strict=True)
        for _ in range(20):
            for (position, row), value in self.heard:
                query = self.rows[position][row]
                self.x *= np.exp(query * (value - query @ self.x) / (2 * self.total))
                self.x *= self.total / self.x.sum()


def records(count, seed=0):
    """Rows of a CSV file whose attributes hang together."""
    rng = np.random.default_rng(seed)
    age = np.minimum(rng.geometric(0.35, count) - 1, 5)
    job = (age + rng.geometric(0.6, count) - 1) % 5
    region = rng.choice(4, count, p=[0.6, 0.2, 0.15, 0.05])
    sex = (rng.random(count) < np.where(job < 2, 0.2, 0.7)).astype(int)
    return [
        (str(a), "abcde"[j], "nesw"[r], "FM"[s])
        for a, j, r, s in zip(age, job, region, sex, strict=True)
    ]


def write_records(path, rows, header="age,job,region,sex"):
    path.write_text("\n".join([header, *(",".join(row) for row in rows), ""]))
    return path


def plan(*arguments):
    """Plan the spec in the working directory; what `--json` prints."""
    return json.loads(ok("plan", "workload.yaml", "--json", *SEARCHED, *arguments).out)
