"""Our figures against the published ones and the proven bound: `make bench-strategies`.

Root mean square error (or largest standard error) per query in counts at epsilon = 1, and
delta = 1e-6 by the analytic Gaussian mechanism, as published; CPU seconds of the whole search, one
thread. Prints a row as it is measured, and writes all rows to tests/reference/strategies.json, from
which the table of docs/benchmarks.md is taken. With words as arguments only the rows whose name
holds one are measured, and nothing is written.
"""

import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from baselines import BASELINES
from dense import analytic_gaussian_sigma

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Factor
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges, Columns, Prefix, WidthRanges
from dpquery.spec.parsing.read import load_spec
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.search.candidates import Problem
from dpquery.strategy.search.select import Objective, select
from dpquery.strategy.strategy import Noise

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "reference" / "strategies.json"
PUBLISHED = json.loads((ROOT / "tests" / "reference" / "published.json").read_text())
STD = {"laplace": math.sqrt(2), "gaussian": analytic_gaussian_sigma(1.0, 1e-6)}
SIZES = (64, 256, 1024, 4096)
LARGE = (("all-range", 8192), ("prefix", 8192), ("prefix", 65536))  # beyond the published tables
NOISES: tuple[Noise, ...] = ("laplace", "gaussian")
FILES = {
    "SF1": "sf1",
    "SF1+": "sf1plus",
    "CPS all marginals": "cps",
    "CPS all prefix-marginals": "cps_prefix",
    "Adult <=3D marginals": "adult_marginals",
    "Adult 2D prefix-marginals": "adult_prefix",
    "Loans small marginals": "loans_small",
    "Loans small prefix-marginals": "loans_small_prefix",
}


@dataclass(frozen=True, eq=False)
class Case:
    """One row: a workload, what is minimised, and the best figure of any public tool."""

    name: str
    noise: Noise
    workload: Workload
    objective: Objective = "rmse"
    published: float | None = None


@dataclass(frozen=True)
class Row:
    """What was measured; `candidates` holds the figure of each that applies, others' too."""

    workload: str
    noise: str
    objective: str
    strategy: str
    ours: float
    published: float | None
    bound: float | None
    cpu_seconds: float
    candidates: dict[str, float]


def factor(kind: str, n: int) -> Factor:
    """Return a workload of Tables 4 and 5."""
    match kind:
        case "all-range":
            return AllRanges(n)
        case "prefix":
            return Prefix(n)
        case "width32":
            return WidthRanges(n, 32)
        case _:
            return Columns(AllRanges(n), np.random.default_rng(0).permutation(n))


def one_attribute(kind: str, n: int) -> Workload:
    """Return a workload of one attribute."""
    return Workload((n,), (product((n,), {0: factor(kind, n)}),), (1.0,))


def marginals_up_to(shape: tuple[int, ...], ways: int) -> Workload:
    """Return all marginals of at most so many attributes."""
    subsets = [b for k in range(ways + 1) for b in combinations(range(len(shape)), k)]
    return Workload(shape, tuple(marginal(shape, b) for b in subsets), (1.0,) * len(subsets))


def cases() -> Iterator[Case]:
    """Yield every row."""
    tables = {"laplace": "hdmm_table4_laplace_1d", "gaussian": "hdmm_table5_gaussian_1d"}
    for noise in NOISES:
        for kind, rows in PUBLISHED[tables[noise]].items():
            for n in SIZES:
                published = rows[str(n)]
                yield Case(f"{kind} {n}", noise, one_attribute(kind, n), published=published)
        for kind, n in LARGE:
            yield Case(f"{kind} {n}", noise, one_attribute(kind, n))
    for noise in NOISES:
        for name, file in FILES.items():
            workload = compile_spec(load_spec(ROOT / "workloads" / f"{file}.yaml")).workload
            yield Case(name, noise, workload, published=best_published(name, noise))
    for name, published in PUBLISHED["residualplanner_max_std_error_gaussian"].items():
        workload = compile_spec(load_spec(ROOT / "workloads" / f"{FILES[name]}.yaml")).workload
        yield Case(name, "gaussian", workload, "max", published)
    for noise in NOISES:
        yield Case("15 attributes, <=3D", noise, marginals_up_to((2, 3, 4, 5, 10) * 3, 3))
    yield Case("100 attributes, <=3D", "gaussian", marginals_up_to((10,) * 100, 3))


def best_published(name: str, noise: Noise) -> float:
    """Return the least RMSE that any public tool is known to reach."""
    tables = ["hdmm_table6_laplace"]
    if noise == "gaussian":
        tables = ["hdmm_table7_gaussian", "residualplanner_plus_gaussian"]
    return min(PUBLISHED[table][name] for table in tables if name in PUBLISHED[table])


def measured(case: Case) -> Row:
    """Select a strategy and return one row of the table."""
    start = time.process_time()
    selection = select(case.workload, noises=[case.noise], objective=case.objective)[case.noise]
    end = time.process_time()
    unit = STD[case.noise]
    field = "rmse" if case.objective == "rmse" else "max_std_error"
    bound = selection.score_bound
    candidates = {
        candidate.name: unit * getattr(candidate.error, field)
        for candidate in selection.candidates
        if candidate.error is not None
    }
    candidates |= published_by_others(case, unit, field)
    return Row(
        case.name,
        case.noise,
        case.objective,
        selection.best.name,
        candidates[selection.best.name],
        case.published,
        None if bound is None else unit * math.sqrt(bound.loss),
        end - start,
        candidates,
    )


def published_by_others(case: Case, unit: float, field: str) -> dict[str, float]:
    """Return the figures of the strategies of other papers that apply."""
    problem, figures = Problem(case.workload, gram(case.workload), case.noise, seed=0), {}
    for name, build in BASELINES.items():
        with suppress(UnsupportedWorkloadError):
            error = expected_error(build(problem).strategy, case.workload)
            figures[name] = unit * getattr(error, field)
    return figures


def line(row: Row) -> str:
    """Return a row as docs/benchmarks.md has it."""
    figures = (row.ours, row.published, row.bound)
    shown = ["" if figure is None else f"{figure:.2f}" for figure in figures]
    name = row.workload if row.objective == "rmse" else f"{row.workload}, largest"
    cells = (name, row.noise.capitalize(), row.strategy, *shown, f"{row.cpu_seconds:.1f}")
    return "| " + " | ".join(cells) + " |"


HEAD = "| workload | noise | strategy | ours | published | bound | CPU s |\n" + "|---" * 7 + "|"


def main() -> None:
    """Print the table, row by row as it is measured, and write it."""
    words = sys.argv[1:]
    print(HEAD)
    rows = []
    for case in cases():
        if not words or any(word in case.name for word in words):
            rows.append(measured(case))
            print(line(rows[-1]), flush=True)
    if not words:
        RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
