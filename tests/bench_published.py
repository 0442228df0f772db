"""Our figures against the published ones: `make bench`.

Prints ours, published, the proven lower bound and CPU seconds for the tables of [HDMM18], RMSE per
query at epsilon = 1 (and delta = 1e-6 by the analytic Gaussian mechanism, as published). With a
path as argument the rows are written there as JSON too.
"""

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dpquery.measurement.accounting import analytic_gaussian_sigma
from dpquery.operators.blocks import Workload, product
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Dense, Factor
from dpquery.operators.ranges import AllRanges, Prefix, WidthRanges
from dpquery.spec.parse import load
from dpquery.strategy.select import select

ROOT = Path(__file__).parents[1]
PUBLISHED = json.loads((ROOT / "tests" / "reference" / "published.json").read_text())
STD = {"laplace": math.sqrt(2), "gaussian": analytic_gaussian_sigma(1.0, 1e-6)}
SIZES = (64, 256, 1024)
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


def one_dimensional(kind: str, n: int) -> Factor:
    """Return a workload of Tables 4 and 5."""
    match kind:
        case "all-range":
            return AllRanges(n)
        case "prefix":
            return Prefix(n)
        case "width32":
            return WidthRanges(n, 32)
        case _:
            order = np.random.default_rng(0).permutation(n)
            return Dense(AllRanges(n).dense()[:, order])


def cases() -> Iterator[tuple[str, str, Workload, float]]:
    """Yield (name, noise, workload, published RMSE)."""
    for noise, key in (
        ("laplace", "hdmm_table4_laplace_1d"),
        ("gaussian", "hdmm_table5_gaussian_1d"),
    ):
        for kind, rows in PUBLISHED[key].items():
            for n in SIZES if kind != "permuted" else SIZES[:2]:
                workload = Workload((n,), (product((n,), {0: one_dimensional(kind, n)}),), (1.0,))
                yield f"{kind} {n}", noise, workload, rows[str(n)]
    for noise, key in (("laplace", "hdmm_table6_laplace"), ("gaussian", "hdmm_table7_gaussian")):
        for name, rmse in PUBLISHED[key].items():
            spec = load(ROOT / "workloads" / f"{FILES[name]}.yaml")
            yield name, noise, compile_spec(spec).workload, rmse


def measured(name: str, noise: str, workload: Workload, published: float) -> dict[str, object]:
    """Select a strategy and return one row of the table."""
    start = time.process_time()
    selection = select(workload, noises=(noise,))[noise]
    seconds = time.process_time() - start
    bound = selection.bound
    ours = STD[noise] * selection.best.error.rmse
    return {
        "workload": name,
        "noise": noise,
        "strategy": selection.best.name,
        "ours": ours,
        "published": published,
        "ours/published": ours / published,
        "bound": None if bound is None else STD[noise] * math.sqrt(bound.loss / workload.shape[0]),
        "cpu_seconds": seconds,
    }


def main() -> None:
    """Print the table, row by row as it is measured."""
    rows = []
    print(
        f"{'workload':30}{'noise':10}{'strategy':10}{'ours':>9}{'published':>11}{'ratio':>8}"
        f"{'bound':>9}{'CPU s':>8}"
    )
    for case in cases():
        row = measured(*case)
        rows.append(row)
        bound = "" if row["bound"] is None else f"{row['bound']:.3f}"
        print(
            f"{row['workload']:30}{row['noise']:10}{row['strategy']:10}{row['ours']:9.3f}"
            f"{row['published']:11.2f}{row['ours/published']:8.3f}{bound:>9}"
            f"{row['cpu_seconds']:8.2f}",
            flush=True,
        )
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
