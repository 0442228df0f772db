"""Does plan choose rightly between linear strategies and RAP? Adult, 64 r-of-4 thresholds.

For r = 1..4, epsilon in 0.01, 0.1, 1 and both objectives, RAP is rehearsed on a proxy and on the
data themselves, which the product never does, with the settings that plan takes by its rule. A
choice is plan's, margin and all, and right where RAP on the data stands on its side of the linear
figure. Two proxies:
  prior   the default prior, against all of Adult
  half    a half of Adult standing for last year's data, against the other half
Linear figures are exact (RMSE) or expected (largest error), so that one linear plan an objective
serves all epsilons. The attribute tuples are those of ../shared/anchors/rap_workload_*.json.

    python tests/bench_choice.py [--repetitions 1] [--tables 64]

adds what is missing to tests/reference/choice.json, run by run, and prints the table.
"""

import argparse
import json
import math
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import numpy as np

from dpquery.measurement import accounting
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.rap_settings import default_settings
from dpquery.planning.comparison import PRIOR_MARGIN, PROXY_MARGIN, prefers_rap
from dpquery.planning.rehearsal.proxy import proxies_for
from dpquery.planning.rehearsal.simulated_runs import Stage, rehearse
from dpquery.reconstruction.expected_largest import expected_largest
from dpquery.spec.model import Rows
from dpquery.spec.parsing.spec import parse
from dpquery.strategy.errors.expected_error import squared_sensitivity
from dpquery.strategy.search.select import select

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
RESULTS = ROOT / "tests" / "reference" / "choice.json"
ROWS, HALF = 48_842, 24_421
DELTA = Fraction(1, ROWS**2)
EPSILONS = ("0.01", "0.1", "1")
OBJECTIVES = {"rmse": "rmse", "max": "largest"}
PAIRS = {"prior": ("prior", "adult"), "half": ("first half", "second half")}
MARGINS = {"prior": PRIOR_MARGIN, "half": PROXY_MARGIN}
TIME_LIMIT = 60.0
WHAT = (
    "python tests/bench_choice.py: linear figures at unit noise, RAP's errors in counts, on the "
    "attribute tuples of k4_lim1e6_seed0, delta = 1/48842^2"
)


def spec_text(r: int, tables: int) -> str:
    """Return the spec of the thresholds over the anchors' attribute tuples."""
    anchor = json.loads((SHARED / "anchors" / "rap_workload_k4_lim1e6_seed0.json").read_text())
    names = anchor["attributes"]
    domain = [
        f"  {json.dumps(name)}: {{range: [0, {size - 1}]}}"
        for name, size in zip(names, anchor["domain_sizes"], strict=True)
    ]
    items = [
        f"  - {{name: t{k}, threshold: {{r: {r}, of: {json.dumps([names[i] for i in triple])}}}}}"
        for k, triple in enumerate(anchor["tuples_index"][:tables])
    ]
    return "\n".join(
        [
            "dataset: {id: adult, rows: about 48842}",
            "privacy: {unit: row, delta: 1e-9}",
            "budget: {epsilon: 10, delta: 1e-9}",
            "other: drop",
            "domain:",
            *domain,
            "workload:",
            *items,
            "",
        ]
    )


def halves() -> dict[str, Path | None]:
    """Return the files to rehearse on; the halves are drawn by a fixed seed."""
    adult = SHARED / "data" / "adult.csv"
    header, *lines = adult.read_text().splitlines()
    order = np.random.default_rng(0).permutation(len(lines))
    proxies: dict[str, Path | None] = {"prior": None, "adult": adult}
    folder = Path(tempfile.gettempdir()) / "dpquery-bench-choice"
    folder.mkdir(exist_ok=True)
    for name, half in (("first half", order[:HALF]), ("second half", order[HALF:])):
        proxies[name] = folder / f"{name.replace(' ', '-')}.csv"
        proxies[name].write_text("\n".join([header, *(lines[i] for i in half), ""]))
    return proxies


def linear(compiled) -> dict[str, dict[str, float]]:
    """Return RMSE and largest error of the best linear strategy an objective, at unit noise."""
    figures = {}
    for objective in OBJECTIVES:
        selection = select(
            compiled.workload,
            noises=("gaussian",),
            objective=objective,
            time_limit=TIME_LIMIT,
        )["gaussian"]
        strategy, error = selection.best.proposal.strategy, selection.best.error
        std = math.sqrt(squared_sensitivity(strategy))
        largest = expected_largest(strategy, compiled.workload, noise_std=std)
        figures[objective] = {
            "strategy": selection.best.name,
            "rmse": error.weighted_rmse,
            "largest": largest,
        }
    return figures


def rehearsed(spec, compiled, path, epsilon, rows, repetitions) -> dict[str, object]:
    """Rehearse RAP on a file by plan's rule; errors in counts."""
    guarantee = accounting.guarantee("gaussian", epsilon=Fraction(epsilon), delta=DELTA)
    settings = default_settings(
        rho=float(guarantee.amount), rows=rows, queries=compiled.workload.shape[0]
    )
    stage = Stage(
        compiled.workload,
        proxies_for(path, spec, compiled, rows=rows),
        spec.privacy,
        guarantee,
        Rows(rows, exact=False),
    )
    start = time.process_time()
    done = rehearse(stage, settings, seeds=range(repetitions))
    return {
        "T": settings.rounds,
        "K": settings.selected,
        "rmse": [run.rmse for run in done.runs],
        "largest": [run.largest for run in done.runs],
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def measure(results: dict, *, tables: int, repetitions: int) -> None:
    """Add what is missing, and save after every run."""
    files = halves()
    for r in (1, 2, 3, 4):
        spec = parse(spec_text(r, tables), name="adult.yaml", files={})
        compiled = compile_spec(spec)
        if str(r) not in results["linear"]:
            results["linear"][str(r)] = linear(compiled)
            save(results)
        for epsilon in EPSILONS:
            for name, path in files.items():
                key = f"r={r} epsilon={epsilon} {name}"
                rows = HALF if "half" in name else ROWS
                if len(results["rap"].get(key, {}).get("rmse", ())) < repetitions:
                    figures_of = rehearsed(spec, compiled, path, epsilon, rows, repetitions)
                    results["rap"][key] = figures_of
                    print(key, figures_of, flush=True)
                    save(results)


def save(results: dict) -> None:
    """Write the figures down."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def cells(results: dict) -> list[dict[str, object]]:
    """Return a line for every choice: figures in counts, what was chosen and what is right."""
    lines = []
    for pair, (proxy, truth) in PAIRS.items():
        for r in (1, 2, 3, 4):
            for epsilon in EPSILONS:
                keys = [f"r={r} epsilon={epsilon} {name}" for name in (proxy, truth)]
                if not all(key in results["rap"] for key in keys):
                    continue
                variance = accounting.unit_variance(
                    "gaussian", epsilon=Fraction(epsilon), delta=DELTA
                )
                for objective, figure in OBJECTIVES.items():
                    expected = results["linear"][str(r)][objective][figure] * math.sqrt(variance)
                    seen, true = (float(np.mean(results["rap"][key][figure])) for key in keys)
                    rap = prefers_rap(seen, expected, margin=MARGINS[pair])
                    lines.append(
                        {
                            "pair": pair,
                            "r": r,
                            "epsilon": epsilon,
                            "objective": objective,
                            "linear": expected,
                            "proxy": seen,
                            "true": true,
                            "chosen": "RAP" if rap else "linear",
                            "right": rap == (true < expected),
                        }
                    )
    return lines


def main() -> None:
    """Measure what is missing and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--tables", type=int, default=64)
    given = parser.parse_args()
    fresh = {"what": WHAT, "tables": given.tables, "linear": {}, "rap": {}}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else fresh
    if results["tables"] != given.tables:
        raise SystemExit(f"{RESULTS} is of {results['tables']} tables; move it away first")
    measure(results, tables=given.tables, repetitions=given.repetitions)
    print(
        f"{'proxy':6}{'r':>2}{'epsilon':>8} {'by':5}{'linear':>10}{'proxy':>10}{'true':>10}  chosen"
    )
    for cell in (lines := cells(results)):
        print(
            f"{cell['pair']:6}{cell['r']:>2}{cell['epsilon']:>8} {cell['objective']:5}"
            f"{cell['linear']:10.1f}{cell['proxy']:10.1f}{cell['true']:10.1f}  {cell['chosen']}"
            f"{'' if cell['right'] else '  WRONG'}"
        )
    for pair in PAIRS:
        right = [line["right"] for line in lines if line["pair"] == pair]
        print(f"{pair}: {sum(right)} of {len(right)} right")


if __name__ == "__main__":
    main()
