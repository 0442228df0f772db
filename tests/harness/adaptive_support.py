"""A small dataset, a ledger and a public side with no fit in it, for the tests of RAP's privacy."""

from fractions import Fraction

import numpy as np

from dpquery.measurement import accounting, curator
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.rounds.budget import rap_budget
from dpquery.measurement.rounds.queries import RapQuery
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.spec.parsing.read import parse

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

    def add(self, places, noisy, std):
        self.heard.append((places.tolist(), noisy.tolist(), std))


def write_csv(path, rows=ROWS, header="age,sex,job"):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows), ""]))
    return path


def ask(settings=TWO, *, spec=SPEC, epsilon=1, delta="1e-6", release=1, project=None, rows=None):
    """A question with a frozen projection, which is kept in `question.seen`."""
    parsed = parse(spec, name="town.yaml", files={})
    compiled = compile_spec(parsed)
    guarantee = accounting.guarantee("gaussian", epsilon=Fraction(epsilon), delta=Fraction(delta))
    mechanism = rap_budget(
        compiled.workload,
        settings,
        privacy=parsed.privacy,
        guarantee=guarantee,
        rows=rows or parsed.dataset.rows,
    )
    make = project or (lambda total: Frozen(total, compiled.workload))
    return RapQuery(parsed, compiled, settings, mechanism, release, make)


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
