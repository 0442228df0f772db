"""Thresholds on Adult against the paper on RAP and plain Gaussian noise: run by hand.

Needs ../shared beside the repository: the published workload of 64 random r-of-4 thresholds and the
census extract it is asked of. For each r and objective: CPU seconds of the selection and of the
whole `dpquery plan`, both noises; then several releases through the real path (exact counts, exact
noise, least squares), and what all their answers err by, as fractions of the rows. Writes nothing.

    python tests/bench/bench_thresholds.py [r ...]
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import numpy as np

from dpquery.arrays import Floats
from dpquery.measurement.accounting import guarantee, unit_variance
from dpquery.measurement.counting.exact_answers import exact_answers
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.noise.calibration import calibrated_noise
from dpquery.measurement.noise.exact_noise import draw
from dpquery.operators.compile import CompiledSpec, compile_spec
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.spec.parsing.read import parse
from dpquery.spec.spec import Spec
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.search.select import Objective, select
from dpquery.strategy.strategy import Strategy

SHARED = Path(__file__).parents[3] / "shared"
ANCHOR = SHARED / "anchors" / "rap_workload_k4_lim1e6_seed0.json"
DATA = SHARED / "data" / "adult.csv"
ROWS = 48_842
EPSILON, DELTA = Fraction(1), Fraction(1, ROWS**2)
RUNS = 3
OBJECTIVES: tuple[Objective, ...] = ("rmse", "max")
# Plain Gaussian noise on sub-marginals (r < 4) or tables, and RAP at T = 4, K = 16.
PLAIN = {1: 0.052, 2: 0.073, 3: 0.039, 4: 0.0058}
RAP = {1: 0.72, 2: 0.32, 3: 0.28, 4: 0.073}
LEAST_HITS = tuple(map(str, PLAIN))  # the r that can be asked for


def spec_text(r: int) -> str:
    """Return the published workload as a spec."""
    anchor = json.loads(ANCHOR.read_text(encoding="utf-8"))
    sizes = zip(anchor["attributes"], anchor["domain_sizes"], strict=True)
    lines = [
        "dataset: {id: adult}",
        f"privacy: {{unit: row, delta: {float(DELTA):.17g}}}",
        f"budget: {{epsilon: 1, delta: {float(DELTA):.17g}}}",
        "other: drop",
        "domain:",
        *(f"  {name}: {{range: [0, {n - 1}]}}" for name, n in sizes),
        "workload:",
        "  - name: thresholds",
        "    union:",
        *(f"      - threshold: {{r: {r}, of: [{', '.join(names)}]}}" for names in anchor["tuples"]),
    ]
    return "\n".join(lines) + "\n"


def plan_seconds(text: str, objective: Objective) -> float:
    """Return the CPU seconds of the whole command, its processes included."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "thresholds.yaml"
        spec.write_text(text, encoding="utf-8")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        out = str(Path(folder) / "release.plan")
        command = [sys.executable, "-m", "dpquery", "plan", str(spec), "--out", out]
        subprocess.run(
            [*command, "--objective", objective, "--epsilon", "1"],
            check=True,
            capture_output=True,
            env=os.environ | {"XDG_STATE_HOME": folder},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tables(spec: Spec, compiled: CompiledSpec, strategies: list[Strategy]) -> dict[Subset, Floats]:
    """Return the true tables that strategies measure and questions ask for."""
    sets = [block.attributes for block in compiled.workload.blocks]
    measured = [
        measurement.block.attributes for each in strategies for measurement in each.measurements
    ]
    subsets = list(dict.fromkeys([*sets, *measured]))
    return tabulate(DATA, spec=spec, subsets=subsets, classes=compiled.classes)


def errors(spec: Spec, compiled: CompiledSpec, strategy: Strategy, true: dict[Subset, Floats]):
    """Yield the largest and the root mean square error of each run, in rows."""
    mechanism = calibrated_noise(
        strategy,
        privacy=spec.privacy,
        guarantee=guarantee("gaussian", epsilon=EPSILON, delta=DELTA, accounting="gdp"),
    )
    exact = [
        exact_answers(measurement, true[measurement.block.attributes], shift=mechanism.shift)
        for measurement in strategy.measurements
    ]
    ends = np.cumsum([len(answers) for answers in exact])[:-1]
    for _ in range(RUNS):
        noisy = draw(
            np.concatenate(exact),
            budget=mechanism.guarantee,
            sensitivity=mechanism.sensitivity,
            scale=mechanism.scale,
        )
        estimates = reconstruct(strategy, np.split(noisy * 2.0**mechanism.shift, ends))
        largest, squares = 0.0, 0.0
        for position, block in enumerate(compiled.workload.blocks):
            error = estimates.answer(block, position) - block.apply(true[block.attributes])
            largest = max(largest, float(np.abs(error).max()))
            squares += float((error**2).sum())
        yield largest, (squares / compiled.workload.shape[0]) ** 0.5


def main(sizes: list[int]) -> None:
    unit = unit_variance("gaussian", epsilon=EPSILON, delta=DELTA, accounting="gdp") ** 0.5
    print(" r objective strategy        select   plan  predicted RMSE  max std | RMSE    largest")
    for r in sizes:
        text = spec_text(r)
        spec = parse(text, name="thresholds.yaml", files={})
        compiled = compile_spec(spec)
        for objective in OBJECTIVES:
            start = time.process_time()
            selection = select(
                compiled.workload, noises=["laplace", "gaussian"], objective=objective
            )["gaussian"]
            seconds = time.process_time() - start
            whole = plan_seconds(text, objective)
            best, scale = selection.best, unit / ROWS
            true = tables(spec, compiled, [best.proposal.strategy])
            runs = np.array(list(errors(spec, compiled, best.proposal.strategy, true))) / ROWS
            gap = best.score / selection.score_bound.loss**0.5 - 1
            print(
                f"{r:2} {objective:9} {best.name:14} {seconds:6.1f} s {whole:5.1f} s  "
                f"{best.error.rmse * scale:12.5f} {best.error.max_std_error * scale:9.5f}"
                f" | {runs[:, 1].mean():.5f} {runs[:, 0].mean():.4f} (up to {runs[:, 0].max():.4f};"
                f" plain {PLAIN[r]}, RAP {RAP[r]}; {gap:.3%} above the bound)",
                flush=True,
            )


if __name__ == "__main__":
    if unknown := [text for text in sys.argv[1:] if text not in LEAST_HITS]:
        sys.exit(f"{unknown[0]!r} is not known; name some of {', '.join(LEAST_HITS)}, or nothing")
    main([int(text) for text in sys.argv[1:] or LEAST_HITS])
