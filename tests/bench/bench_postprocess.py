"""What the extra columns gain on Adult, against the true answers: `make bench-postprocess`.

A real release of each workload and guarantee, through the ledger and from the file; its columns are
then held against the true counts, which the product never does. In counts: root mean square, mean
absolute and largest error of all answers, and the root mean square error of every table's one-way
sums, which is what bias does to whoever adds cells up. Noise has no seed: figures differ from run
to run, by some percent for the means and by more for the largest error. CPU seconds are those of
writing the release from the ledger with this one column.

Prints a row as it is measured, and writes all rows to tests/reference/postprocess.json. The column
`graphical` is left out where its model cannot be held or the extra mbi is missing.
"""

import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from dpquery.audit.planned_cases import planned_in
from dpquery.commands import release as release_command
from dpquery.exceptions import SpecError
from dpquery.spec.parsing.read import load_spec
from dpquery.spec.spec import Spec, Table
from dpquery.strategy.strategy import Noise

ROOT = Path(__file__).parents[2]
ADULT = ROOT.parent / "shared" / "data" / "adult.csv"
RESULTS = ROOT / "tests" / "reference" / "postprocess.json"
DELTA = "1e-9"
COLUMNS = ("nonnegative", "consistent", "thresholded", "integer", "graphical", "shrunk")
SIZES = {"fnlwgt": 100, "capital-gain": 100, "capital-loss": 100, "hours-per-week": 99, "age": 85}
SIZES |= {"native-country": 42, "education-num": 16, "occupation": 15, "workclass": 9}
SIZES |= {"marital-status": 7, "relationship": 6, "race": 5, "sex": 2, "income>50K": 2}
HANDFUL = ("hours-per-week", "education-num", "occupation", "race", "sex")
WORKLOADS = {
    "all pairs of 14 attributes": (tuple(SIZES), "{ways: 2}"),
    "all triples of 5 attributes": (HANDFUL, "{ways: 3}"),
}
SETTINGS: tuple[tuple[Noise, str], ...] = (("gaussian", "0.1"), ("gaussian", "1"), ("laplace", "1"))
HEAD = "| workload | noise | epsilon | column | RMSE | mean | largest | sums | CPU s |"


@dataclass(frozen=True)
class Row:
    """The errors of one column of one release, in counts."""

    workload: str
    noise: str
    epsilon: str
    column: str
    rmse: float
    mean: float
    largest: float
    sums: float
    cpu_seconds: float

    def line(self) -> str:
        """Return the row as it is printed."""
        figures = (f"{figure:.2f}" for figure in (self.rmse, self.mean))
        rest = (f"{self.largest:.0f}", f"{self.sums:.1f}", f"{self.cpu_seconds:.1f}")
        cells = (self.workload, self.noise, self.epsilon, self.column, *figures, *rest)
        return f"| {' | '.join(cells)} |"


def spec_text(attributes: tuple[str, ...], marginals: str) -> str:
    """Return the spec of all marginals of some kind over some attributes."""
    domain = "".join(f"  {name}: {{range: [0, {SIZES[name] - 1}]}}\n" for name in attributes)
    return (
        "dataset: {id: adult, version: 1}\n"
        f"privacy: {{unit: row, neighbours: add-remove, delta: {DELTA}}}\n"
        f"budget: {{epsilon: 100, delta: {DELTA}}}\n"
        f"other: drop\ndomain:\n{domain}workload:\n  - {{name: tables, marginals: {marginals}}}\n"
    )


def true_counts(spec: Spec, table: Table, data: pd.DataFrame) -> np.ndarray:
    """Count one table with pandas alone."""
    names = [spec.domain.attributes[i].name for i, _ in table.axes]
    cells = np.ravel_multi_index([data[name].to_numpy() for name in names], table.shape)
    return np.bincount(cells, minlength=table.size).reshape(table.shape).astype(float)


def errors(spec: Spec, values: np.ndarray, data: pd.DataFrame) -> tuple[float, ...]:
    """Return root mean square, mean, largest error, and that of one-way sums."""
    cells, sums = [], []
    ends = np.cumsum([table.size for table in spec.items[0].tables])[:-1]
    for table, part in zip(spec.items[0].tables, np.split(values, ends), strict=True):
        error = part.reshape(table.shape) - true_counts(spec, table, data)
        cells.append(error.ravel())
        for axis in range(error.ndim):
            others = tuple(k for k in range(error.ndim) if k != axis)
            sums.append(error.sum(axis=others))
    every, added = np.concatenate(cells), np.concatenate(sums)
    return (
        math.sqrt(np.mean(every**2)),
        float(np.mean(np.abs(every))),
        float(np.max(np.abs(every))),
        math.sqrt(np.mean(added**2)),
    )


def measured(name: str, noise: Noise, epsilon: str, home: Path) -> Iterator[Row]:
    """Release, then write each column from the ledger, and yield its errors."""
    spec, data = load_spec(home / "workload.yaml"), pd.read_csv(ADULT)
    for column in (None, *COLUMNS):
        start = time.process_time()
        try:
            release_command.release(
                ADULT,
                plan_path=home / "dpquery.plan",
                ledger_path=home / "state" / "ledger.db",
                out=home / "release",
                epsilon=Fraction(epsilon),
                noise=noise,
                also=() if column is None else (column,),
                replace=True,
            )
        except SpecError as refused:
            print(f"{name}: {refused}", file=sys.stderr)
            continue
        end = time.process_time()
        shown = column or "estimate"
        values = pq.read_table(home / "release" / "tables.parquet", columns=[shown])[shown]
        yield Row(name, noise, epsilon, shown, *errors(spec, values.to_numpy(), data), end - start)


def main() -> None:
    """Print the table, row by row as it is measured, and write it."""
    print(f"{HEAD}\n{'|---' * 9}|")
    rows = []
    for name, (attributes, marginals) in WORKLOADS.items():
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            planned_in(home, spec_text(attributes, marginals))
            for noise, epsilon in SETTINGS:
                for row in measured(name, noise, epsilon, home):
                    rows.append(row)
                    print(row.line(), flush=True)
    RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
