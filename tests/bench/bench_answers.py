"""CPU seconds of releases with very many answers, by stage: `python tests/bench/bench_answers.py`.

Plans and releases the Adult extract of ../shared for 64 four-way thresholds (125.9 million
answers, at least r of 4) and for all marginals over up to three attributes (21 million), each in a
process of its own, so that its peak memory is its own. Give names to run only some of the jobs.
"""

import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from fractions import Fraction
from functools import wraps
from pathlib import Path
from threading import local
from typing import Any

from dpquery.commands import plan as plan_command
from dpquery.commands import release as release_command
from dpquery.measurement import curator
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.mechanisms import linear as linear_mechanism
from dpquery.reconstruction import least_squares
from dpquery.releases.folder import write
from dpquery.releases.tables import item_table

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
JOBS = ("thresholds-2", "thresholds-4", "marginals")
HEAD = """\
dataset: {id: adult, version: 1}
privacy: {unit: row, neighbours: add-remove, delta: 1e-9}
budget: {epsilon: 8, delta: 1e-9}
other: drop
domain:
"""
WATCHED: list[tuple[Any, str, str]] = [
    (curator, "tabulate", "tabulate"),
    (curator, "answers_alike", "exact answers"),
    (curator, "draw", "noise"),
    (Ledger, "commit", "ledger"),
    (Ledger, "lookup", "ledger"),
    (linear_mechanism, "values_digest", "write: noisy values"),
    (write, "write_measurements", "write: noisy values"),
    (least_squares, "reconstruct", "reconstruct"),
    (least_squares._SplitEstimates, "answer", "reconstruct"),
    (linear_mechanism, "standard_errors", "standard errors"),
    (least_squares, "half_widths", "half widths"),
    (write, "write_release", "write: the rest"),
    (item_table, "_attribute_arrays", "write: columns"),
    (item_table, "_answer_column", "write: columns"),
    (write.Tally, "add", "write: summary"),
    (write.pq.ParquetWriter, "write_batch", "write: Parquet"),
    (write, "sync_path", "write: to disk"),
    (write, "_put_in_place", "write: into place"),
]


class Stages:
    """CPU seconds by stage, each without the stages inside it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._inside = local()

    def watch(self, place: Any, name: str, stage: str) -> None:
        """Time a function or method from now on."""
        function = getattr(place, name)

        @wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            above = getattr(self._inside, "seconds", 0.0)
            self._inside.seconds = 0.0
            began = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                passed = time.thread_time() - began
                self.seconds[stage] += passed - self._inside.seconds
                self._inside.seconds = above + passed

        setattr(place, name, timed)


def thresholds(r: int) -> str:
    """Return the spec of "at least r of 4" for the published 64 attribute tuples."""
    given = json.loads((SHARED / "anchors" / "rap_workload_k4_seed0.json").read_text())
    names = given["attributes"]
    domain = (
        f"  {name}: {{range: [0, {size - 1}]}}\n"
        for name, size in zip(names, given["domain_sizes"], strict=True)
    )
    items = (
        f"      - threshold: {{r: {r}, of: [{', '.join(names[i] for i in three)}], targets: all}}\n"
        for three in given["tuples_index"]
    )
    head = HEAD + "".join(domain)
    return f"{head}workload:\n  - name: thresholds\n    union:\n{''.join(items)}"


def spec_of(job: str) -> str:
    """Return the text of a job's spec."""
    if job == "marginals":
        return (ROOT / "workloads" / "adult_marginals.yaml").read_text()
    return thresholds(int(job.removeprefix("thresholds-")))


def run(job: str, folder: Path) -> None:
    """Plan and release one job in a folder, and print what each stage took."""
    stages = Stages()
    for place, name, stage in WATCHED:
        stages.watch(place, name, stage)
    spec, plan, ledger = folder / "spec.yaml", folder / "x.plan", folder / "ledger.db"
    spec.write_text(spec_of(job))
    began = time.process_time()
    plan_command.plan(
        spec, plan_path=plan, ledger_path=ledger, mechanism="linear", time_limit=math.inf
    )
    planned = time.process_time() - began
    print(f"\n{job}: plan {planned:.1f} CPU s, memory {memory():.2f} GB")

    def release() -> tuple[float, float, int]:
        stages.seconds.clear()
        began, wall = time.process_time(), time.monotonic()
        out = release_command.release(
            SHARED / "data" / "adult.csv",
            plan_path=plan,
            ledger_path=ledger,
            out=folder / "release",
            epsilon=Fraction(1),
        )
        return time.process_time() - began, time.monotonic() - wall, out.spec.queries

    for title in ("release", "the same again, free"):
        spent, wall, queries = release()
        print(f"{title}: {spent:.1f} CPU s, {wall:.1f} s, memory {memory():.2f} GB")
        print(f"  {queries:,} answers: {queries / spent / 1e6:.2f} million a CPU second")
        rest = spent - sum(stages.seconds.values())
        for stage, seconds in [*stages.seconds.most_common(), ("all else", rest)]:
            print(f"  {stage:18} {seconds:7.2f}")
    size = sum(path.stat().st_size for path in (folder / "release").iterdir())
    print(f"  {size / 1e9:.2f} GB written, {size / queries:.2f} bytes an answer")


def memory() -> float:
    """Return the most memory this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main(names: list[str]) -> None:
    """Run the named jobs, by default all, each in its own process."""
    if len(names) == 2 and names[0] == "--one":
        with tempfile.TemporaryDirectory() as folder:
            run(names[1], Path(folder))
        return
    if unknown := [name for name in names if name not in JOBS]:
        sys.exit(f"{unknown[0]!r} is not known; name some of {', '.join(JOBS)}, or nothing")
    for job in names or JOBS:
        subprocess.run([sys.executable, __file__, "--one", job], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
