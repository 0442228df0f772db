"""CPU seconds of `plan` for the shipped specs: until its choice was at hand, in all, by candidate.

`make bench-plans` prints a row of the table of docs/benchmarks.md as each spec is planned, at
`--epsilon 1`, in one process and with the default time limit, with the candidates that took a tenth
of a second. With words as arguments only the specs whose name holds one are planned.
"""

import gc
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import dpquery.strategy.search.select as module
from dpquery.cli.app import OLD_COLLECTIONS
from dpquery.commands.plan import plan
from dpquery.planning.report import PlanReport

ROOT = Path(__file__).parents[2]


def planned(path: Path) -> tuple[PlanReport, float, float, Counter]:
    """Return a spec's plan, CPU seconds until its choice was at hand, in all, and by candidate."""
    compared, at_hand, taken = module._try, {}, Counter()

    def timed(name, build, problem, goal):
        begun = time.process_time()
        candidate = compared(name, build, problem, goal)
        at_hand.setdefault((problem.noise, candidate.name), time.process_time())
        taken[f"{name} {problem.noise[0].upper()}"] += time.process_time() - begun
        return candidate

    module._try = timed
    try:
        with tempfile.TemporaryDirectory() as folder:
            files = {"plan_path": Path(folder, "x.plan"), "ledger_path": Path(folder, "x.db")}
            start = time.process_time()
            report = plan(path, epsilon=1, **files)
            end = time.process_time()
    finally:
        module._try = compared
    selection = report.priced[0].selection
    return report, at_hand[selection.noise, selection.best] - start, end - start, taken


def main() -> None:
    gc.set_threshold(*gc.get_threshold()[:2], OLD_COLLECTIONS)  # as the command has it
    print("| spec | chosen | noise | x bound | at hand after | in all | by candidate |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for path in sorted((ROOT / "workloads").glob("*.yaml")):
        if sys.argv[1:] and not any(word in path.stem for word in sys.argv[1:]):
            continue
        report, at_hand, whole, taken = planned(path)
        best = report.priced[0]
        bound = f"{best.weighted_rmse / best.bound_rmse:.3f}" if best.bound_rmse else ""
        cells = (path.stem, best.selection.best, best.selection.noise, bound)
        long = ", ".join(f"{name} {s:.1f}" for name, s in taken.most_common() if s >= 0.1)
        print("|", " | ".join((*cells, f"{at_hand:.1f}", f"{whole:.1f}", long)), "|", flush=True)


if __name__ == "__main__":
    main()
