"""A small town of about 2,000 records, and a dense public side: multiplicative weights on cells."""

import json

import numpy as np
from cli_support import ok

from dpquery.operators.compile import compile_spec
from dpquery.spec.parsing.read import parse

SPEC = """\
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


SPEC_READ = parse(SPEC, name="w.yaml", files={})
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

    def add(self, places, noisy, std):
        self.heard += zip(places.tolist(), noisy.tolist(), strict=True)
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


def write_csv(path, rows, header="age,job,region,sex"):
    path.write_text("\n".join([header, *(",".join(row) for row in rows), ""]))
    return path


def plan(*arguments):
    """Plan the spec in the working directory; what `--json` prints."""
    return json.loads(ok("plan", "workload.yaml", "--json", *arguments).out)
