"""CPU seconds of `plan` for the shipped specs: until its choice was at hand, and in all.

`make bench-plans` prints a row of the table of docs/benchmarks.md as each spec is planned, at
epsilon = 1, in one process and with the default time limit. With words as arguments only the specs
whose name holds one are planned.
"""

import sys
import tempfile
import time
from pathlib import Path

import dpquery.strategy.search.select as module
from dpquery.commands.plan import plan
from dpquery.planning.report import PlanReport

ROOT = Path(__file__).parents[2]


def planned(path: Path) -> tuple[PlanReport, float, float]:
    """Return the plan of a spec, the CPU seconds until its choice was at hand, and in all."""
    compared, at_hand = module._try, {}

    def timed(name, build, problem, goal):
        candidate = compared(name, build, problem, goal)
        at_hand[problem.noise, candidate.name] = time.process_time()
        return candidate

    module._try = timed
    try:
        with tempfile.TemporaryDirectory() as folder:
            files = {"plan_path": Path(folder, "x.plan"), "ledger_path": Path(folder, "x.db")}
            start = time.process_time()
            report = plan(path, **files)
            end = time.process_time()
    finally:
        module._try = compared
    selection = report.priced[0].selection
    return report, at_hand[selection.noise, selection.best] - start, end - start


def main() -> None:
    print("| spec | chosen | noise | x bound | at hand after | in all |")
    print("|---|---|---|---|---|---|", flush=True)
    for path in sorted((ROOT / "workloads").glob("*.yaml")):
        if sys.argv[1:] and not any(word in path.stem for word in sys.argv[1:]):
            continue
        report, at_hand, whole = planned(path)
        best = report.priced[0]
        bound = f"{best.weighted_rmse / best.bound_rmse:.3f}" if best.bound_rmse else ""
        cells = (path.stem, best.selection.best, best.selection.noise, bound)
        print("|", " | ".join((*cells, f"{at_hand:.1f}", f"{whole:.1f}")), "|", flush=True)


if __name__ == "__main__":
    main()
