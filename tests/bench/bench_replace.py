"""Replace-one neighbours on the shipped workloads: noise now over what was drawn before.

Before, a replaced record counted as one that leaves and one that enters: twice the errors of
add-remove. For every workload under Gaussian noise, at any epsilon and delta: the RMSE of the
strategy of before with the noise that it needs, and of the one chosen now, over the RMSE of
before; for records that may leave the domain and for records that never do; and how far it is from
the proven bound. Writes nothing.

    python tests/bench/bench_replace.py [workload ...]
"""

import sys
import time
from pathlib import Path

from dpquery.operators.compile import compile_spec
from dpquery.spec.parsing.read import load_spec
from dpquery.strategy.expected_error import expected_error, weighted_queries
from dpquery.strategy.search.select import select
from dpquery.strategy.strategy import Noise, RecordChange

WORKLOADS = Path(__file__).parents[2] / "workloads"
NAMES = (
    "starter",
    "sample_persons",
    "adult_basic",
    "adult_marginals",
    "thresholds",
    "cps",
    "sf1",
    "sf1plus",
    "loans_small",
    "cps_prefix",
    "loans_small_prefix",
    "adult_prefix",
)
CHANGES: tuple[RecordChange, ...] = ("moves", "moves within")
HEAD = "| workload | records | strategy of before | chosen now | over the bound | CPU s |"


def rows(name: str, noise: Noise) -> list[str]:
    """Return the lines of a workload for a kind of noise: ratios of RMSEs."""
    workload = compile_spec(load_spec(WORKLOADS / f"{name}.yaml")).workload
    before = select(workload, noises=[noise])[noise].best
    assert before.proposal is not None
    queries, lines = weighted_queries(workload), []
    for change in CHANGES:
        start = time.process_time()
        selection = select(workload, noises=[noise], change=change)[noise]
        seconds = time.process_time() - start
        mended = expected_error(before.proposal.strategy, workload, change).weighted_rmse
        ratios = [rmse / (2 * before.score) for rmse in (mended, selection.best.score)]
        bound = selection.bound
        over = "none known"
        if bound is not None:
            over = f"{selection.best.score / (bound.loss / queries) ** 0.5:.4f}"
        leaving = "may leave" if change == "moves" else "stay"
        lines.append(
            f"| {name} | {leaving} | {before.name} {ratios[0]:.4f} "
            f"| {selection.best.name} {ratios[1]:.4f} | {over} | {seconds:.0f} |"
        )
    return lines


def main(names: list[str]) -> None:
    """Print a table, a workload at a time."""
    print(HEAD, "|---|---|---|---|---|---|", sep="\n", flush=True)
    for name in names:
        print(*rows(name, "gaussian"), sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(NAMES))
