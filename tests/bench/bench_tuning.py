"""What a weight on a part of a workload does to its error, and to that of the rest.

The tuning study of the HDMM slides: SF1 with a weight on the redistricting tables PL94, which are
its items p8 to p11 (288 queries: race, and Hispanic or not by race, of all and of 18 years and
over). RMSE per query at epsilon = 1, Laplace noise, against the weight of the PL94 queries' squared
errors; the last row is PL94 selected for alone. With a path as argument the rows go there as JSON.
"""

import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

from dpquery.operators.compile import compile_spec
from dpquery.spec.parsing.read import load_spec
from dpquery.strategy.search.select import select

ROOT = Path(__file__).parents[2]
PUBLISHED = json.loads((ROOT / "tests" / "reference" / "published.json").read_text())
PL94 = ("p8", "p9", "p10", "p11")
WEIGHTS = (1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
TIME_LIMIT = 60.0


def rmse(errors, blocks) -> float:
    """Return the RMSE in counts over all queries of some blocks."""
    total = sum(error.total_squared for error in errors)
    return math.sqrt(2 * total / sum(block.queries for block in blocks))


def main() -> None:
    """Print a row for each weight."""
    spec = load_spec(ROOT / "workloads" / "sf1.yaml")
    compiled = compile_spec(spec)
    places = {
        item.name: positions for item, positions in zip(spec.items, compiled.items, strict=True)
    }
    inside = [k for name in PL94 for k in places[name]]
    everything = compiled.workload
    rest = [k for k in range(len(everything.blocks)) if k not in inside]
    print(f"{'weight of PL94':16}{'strategy':14}{'SF1':>8}{'PL94':>8}{'rest':>8}{'CPU s':>8}")
    rows = []
    for weight in (*WEIGHTS, None):
        start = time.process_time()
        if weight is None:
            workload, groups = everything.select(inside), {"PL94": range(len(inside))}
        else:
            weights = tuple(weight if k in inside else 1.0 for k in range(len(everything.blocks)))
            workload = replace(everything, weights=weights)
            groups = {"SF1": range(len(weights)), "PL94": inside, "rest": rest}
        best = select(workload, noises=("laplace",), time_limit=TIME_LIMIT)["laplace"].best
        rmses = {
            name: rmse(
                [best.error.blocks[k] for k in members], [workload.blocks[k] for k in members]
            )
            for name, members in groups.items()
        }
        seconds = time.process_time() - start
        rows.append({"weight": weight, "strategy": best.name, **rmses, "cpu_seconds": seconds})
        figures = "".join(
            f"{rmses[name]:8.2f}" if name in rmses else " " * 8 for name in ("SF1", "PL94", "rest")
        )
        shown = "PL94 alone" if weight is None else f"{weight:g}"
        print(f"{shown:16}{best.name:14}{figures}{seconds:8.1f}", flush=True)
    published = PUBLISHED.get("slides_tuning", {})
    for name, figures in published.items():
        print(f"published, {name}: {figures}")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
