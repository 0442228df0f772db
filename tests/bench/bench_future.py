"""Questions that nobody had asked: how well a release answers them, and from how much history.

The partial-knowledge study of [RAP] section 5 (Table 5, Figures 10 to 15) on Adult: 1-of-3
thresholds at epsilon = 0.1, delta = 1 / n^2. A historical workload is drawn as a spec draws it, by
a distribution over attributes (a set of three in proportion to the product of its attributes'
weights), planned and released; `dpquery answer` is then asked future thresholds, drawn from the
same distribution or from one that has drifted by gamma. Future error is the mean over future
thresholds of the largest error of one, as a share of the records. A linear release refuses what it
did not measure: its share of answerable questions is a result of its own, and where it refuses, 0
is the answer in its line.

    python tests/bench/bench_future.py [figures.json [chart.html]]
"""

import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from dpquery.commands import answer as answer_command
from dpquery.commands import plan as plan_command
from dpquery.commands import release as release_command
from dpquery.measurement import accounting
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import read_plan, write_plan
from dpquery.plan_file.rehearsals import PlannedRap, default_settings
from dpquery.releases.report.marks import Line, LineAxis, line_picture
from dpquery.releases.report.page import STYLE
from dpquery.spec.parsing.read import parse
from dpquery.spec.parsing.thresholds import geometric, uniform, zipf

ROOT = Path(__file__).parents[2]
ADULT = ROOT.parent / "shared" / "data" / "adult.csv"
DOMAIN = (ROOT / "workloads" / "adult_basic.yaml").read_text()
DOMAIN = DOMAIN[DOMAIN.index("domain:") : DOMAIN.index("workload:")]
RECORDS = 48_842
EPSILON, DELTA = Fraction(1, 10), Fraction(1, RECORDS**2)
R, K = 1, 3
SIZES = (1, 4, 16, 64)
DRIFTS, DRIFTED_SIZE = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0), 4
FUTURE, REPETITIONS = 24, 4
RHO = float(accounting.guarantee("gaussian", epsilon=EPSILON, delta=DELTA).amount)
DISTRIBUTIONS = {
    "uniform": uniform,
    "zipf": zipf,
    "geometric": lambda count: geometric(count, Fraction(1, 2)),
}
WORDS = {"uniform": "uniform", "zipf": "zipf", "geometric": "{geometric: 0.5}"}

Triple = tuple[int, ...]


class Adult:
    """The records, and the true answers of a threshold."""

    def __init__(self) -> None:
        self.data = pd.read_csv(ADULT)
        self.names = list(self.data.columns)
        self.sizes = [int(line) for line in domain_sizes()]

    def truth(self, triple: Triple) -> np.ndarray:
        """Return the answers of all rows of the 1-of-3 threshold over some attributes."""
        block = compiled([triple], self.names).workload.blocks[0]
        codes = [self.data[self.names[i]].to_numpy() for i in block.attributes]
        cells = np.ravel_multi_index(codes, block.table_shape)
        table = np.bincount(cells, minlength=math.prod(block.table_shape))
        return block.apply(table.reshape(block.table_shape)).ravel()


def domain_sizes() -> list[int]:
    """Return the sizes of the attributes."""
    spec = parse(spec_text(workload_text([(0,)], ["age"])), name="", files={})
    return list(spec.domain.shape)


def workload_text(triples: list[Triple], names: list[str]) -> str:
    """Return a workload of thresholds."""
    items = []
    for triple in sorted(set(triples)):
        of = ", ".join(names[i] for i in triple)
        items.append(f"  - {{name: {item_name(triple)}, threshold: {{r: {R}, of: [{of}]}}}}\n")
    return "workload:\n" + "".join(items)


def history_text(name: str, size: int, seed: int) -> str:
    """Return a workload of thresholds drawn by a distribution."""
    drawn_by = f"sample: {size}, seed: {seed}, distribution: {WORDS[name]}"
    return f"workload:\n  - {{name: history, threshold: {{r: {R}, k: {K}, {drawn_by}}}}}\n"


def item_name(triple: Triple) -> str:
    """Return the name of a threshold's item."""
    return "t" + "_".join(map(str, triple))


def spec_text(workload: str) -> str:
    """Return a spec over Adult."""
    delta = f"{float(DELTA):.20f}".rstrip("0")
    return (
        f"dataset: {{id: adult, rows: about 50000}}\nprivacy: {{unit: row, delta: {delta}}}\n"
        f"budget: {{epsilon: 100, delta: {delta}}}\n{DOMAIN}{workload}"
    )


def compiled(triples: list[Triple], names: list[str]):
    """Return the operators of some thresholds over Adult."""
    return compile_spec(parse(spec_text(workload_text(triples, names)), name="", files={}))


def drifted(masses: np.ndarray, gamma: float, rng: np.random.Generator) -> np.ndarray:
    """Return the masses put in another order: [RAP] Definition 5.2. masses: (d,), falling."""
    d = len(masses)
    order = (d - np.arange(1, d + 1)) / (d - 1)
    keys = (1 - 2 * gamma) * order + (1 - abs(1 - 2 * gamma)) * rng.random(d)
    codes = np.empty(d)
    codes[np.argsort(-keys, kind="stable")] = masses
    return codes


def drawn(masses: np.ndarray, count: int, rng: np.random.Generator) -> list[Triple]:
    """Draw sets of attributes in proportion to the products of their masses."""
    sets = list(combinations(range(len(masses)), K))
    weights = np.array([math.prod(masses[i] for i in members) for members in sets])
    return [sets[k] for k in rng.choice(len(sets), count, p=weights / weights.sum())]


def planned(home: Path, text: str) -> tuple[Path, list[Triple]]:
    """Plan a historical workload, and let the plan hold RAP at the guarantee of the study.

    Returns:
        The plan, and the attributes of each historical threshold.
    """
    spec, path = home / "workload.yaml", home / "dpquery.plan"
    spec.write_text(text)
    report = plan_command.plan(
        spec,
        plan_path=path,
        ledger_path=home / "ledger" / "ledger.db",
        objective="max",
        epsilon=EPSILON,
        delta=DELTA,
        mechanism="linear",
        time_limit=5.0,
    )
    plan = read_plan(path.read_bytes())
    settings = default_settings(rho=RHO, rows=RECORDS, queries=report.spec.queries)
    rap = PlannedRap(settings, EPSILON, DELTA, "none", 1, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, False)
    path.write_bytes(write_plan(replace(plan, relaxed=rap)))
    return path, [table.attributes for item in report.spec.items for table in item.tables]


def released(home: Path, plan: Path, mechanism: str) -> Path:
    """Release by one mechanism."""
    out = home / mechanism
    release_command.release(
        ADULT,
        plan_path=plan,
        ledger_path=home / "ledger" / "ledger.db",
        out=out,
        epsilon=EPSILON,
        delta=DELTA,
        mechanism=mechanism,
    )
    return out


def errors(
    home: Path, release: Path, future: list[Triple], truths: dict[Triple, np.ndarray], names
) -> dict[Triple, float]:
    """Ask a release thresholds; return the largest error of each, as a share of the records."""
    if not future:
        return {}
    questions, out = home / "more.yaml", home / "answers"
    questions.write_text(workload_text(future, names))
    answer_command.answer(release, questions, out=out, replace=True)
    errors_of = {}
    for triple in set(future):
        estimate = pq.read_table(out / f"{item_name(triple)}.parquet")["estimate"].to_numpy()
        errors_of[triple] = float(np.abs(estimate - truths[triple]).max()) / RECORDS
    return errors_of


class Study:
    """Runs of the study; every true answer is worked out once."""

    def __init__(self) -> None:
        self.adult = Adult()
        self.truths: dict[Triple, np.ndarray] = {}

    def know(self, triples: list[Triple]) -> None:
        """Work out the true answers of thresholds."""
        for triple in set(triples) - self.truths.keys():
            self.truths[triple] = self.adult.truth(triple)

    def run(self, name: str, size: int, repetition: int, drifts) -> list[dict[str, object]]:
        """Return a line of figures for each drift, from one historical workload."""
        rng = np.random.default_rng([size, repetition, list(DISTRIBUTIONS).index(name)])
        names = self.adult.names
        masses = np.array(DISTRIBUTIONS[name](len(names)), dtype=np.float64)
        with tempfile.TemporaryDirectory() as folder:
            home, start = Path(folder), time.process_time()
            plan, history = planned(home, spec_text(history_text(name, size, repetition)))
            linear, rap = (released(home, plan, mechanism) for mechanism in ("linear", "rap"))
            made_after = time.process_time() - start
            rows = []
            for gamma in drifts:
                future = drawn(drifted(masses, gamma, rng), FUTURE, rng)
                rows.append(self.line(home, linear, rap, history, future))
                head = {"distribution": name, "size": size, "repetition": repetition}
                rows[-1] = head | {"gamma": gamma, "cpu_seconds": made_after} | rows[-1]
        return rows

    def line(self, home, linear, rap, history, future) -> dict[str, float]:
        """Return the errors of one set of future thresholds."""
        names = self.adult.names
        self.know(history + future)
        zero = {
            members: float(self.truths[members].max()) / RECORDS for members in {*future, *history}
        }
        repeated = [members for members in future if members in set(history)]
        exact = errors(home, linear, repeated, self.truths, names)
        relaxed = errors(home, rap, future, self.truths, names)
        present = errors(home, rap, history, self.truths, names)
        unseen = [members for members in future if members not in set(history)]
        return {
            "rap": mean([relaxed[members] for members in future]),
            "rap_unseen": mean([relaxed[members] for members in unseen]),
            "rap_present": mean([present[members] for members in history]),
            "linear_answerable": len(repeated) / len(future),
            "linear_answered": mean([exact[members] for members in repeated]),
            "linear_or_zero": mean([exact.get(members, zero[members]) for members in future]),
            "all_0": mean([zero[members] for members in future]),
        }


def mean(values) -> float | None:
    """Return the mean; None of nothing."""
    return float(np.mean(values)) if len(values) else None


FIGURES = (
    "rap",
    "rap_unseen",
    "rap_present",
    "linear_answerable",
    "linear_answered",
    "linear_or_zero",
    "all_0",
)


def summarised(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return mean and standard deviation over the repetitions."""
    summaries = []
    for key in dict.fromkeys((r["distribution"], r["size"], r["gamma"]) for r in rows):
        chosen = [r for r in rows if (r["distribution"], r["size"], r["gamma"]) == key]
        line: dict[str, object] = dict(zip(("distribution", "size", "gamma"), key, strict=True))
        for name in FIGURES:
            values = [r[name] for r in chosen if r[name] is not None]
            line[name] = round(float(np.mean(values)), 4) if values else None
            line[f"{name}_spread"] = round(float(np.std(values)), 4) if values else None
        summaries.append(line)
    return summaries


def chart(figures: list[dict[str, object]]) -> str:
    """Draw RAP's future error against the size of the history, and against drift, one below."""
    growing = [
        line(name, [(log4(o["size"]), o) for o in figures if still(o, name)])
        for name in DISTRIBUTIONS
    ]
    moving = [o for o in figures if o["size"] == DRIFTED_SIZE and o["distribution"] == "geometric"]
    drifting = [line("geometric", [(float(o["gamma"]), o) for o in moving])]
    error = "largest error of a future threshold, % of the records"
    sizes = LineAxis("log4 of the number of historical thresholds", "numbers", error)
    drift = LineAxis("drift", "numbers", f"{error}, after {DRIFTED_SIZE} historical ones")
    plots = (
        line_picture(growing, sizes, title="growing"),
        line_picture(drifting, drift, title="drift"),
    )
    head = f"<!doctype html>\n<meta charset=utf-8><style>{STYLE}</style>"
    return f"{head}<main>{''.join(plots)}</main>\n"


def log4(size: object) -> float:
    """Return the place of a size on the axis."""
    return math.log(int(str(size)), 4)


def still(line: dict[str, object], name: str) -> bool:
    """Return whether a line is of a distribution without drift."""
    return line["distribution"] == name and line["gamma"] == 0.0


def line(name: str, places: Sequence[tuple[float, dict[str, object]]]) -> Line:
    """Return the mean errors of RAP with their spreads, in percent, at their places on an axis."""
    middle = np.array([100 * float(one["rap"]) for _, one in places])
    spread = np.array([100 * float(one["rap_spread"]) for _, one in places])
    at = np.array([place for place, _ in places])
    texts = [f"{value:.3g}" for value in middle]
    return Line(name, at, middle, middle - spread, middle + spread, texts)


def main() -> None:
    """Run the study; print a line for each cell, and write the files that were named."""
    study, rows = Study(), []
    for name in DISTRIBUTIONS:
        for size in SIZES:
            drifts = DRIFTS if (name, size) == ("geometric", DRIFTED_SIZE) else (0.0,)
            for repetition in range(REPETITIONS):
                rows += study.run(name, size, repetition, drifts)
            for summary in summarised(rows)[-len(drifts) :]:
                print(json.dumps(summary), flush=True)
    about = {
        "data": "Adult, 48,842 records",
        "thresholds": f"{R} of {K}",
        "epsilon": float(EPSILON),
        "delta": float(DELTA),
        "rap": "T and K by the rule of thumb of `dpquery plan`",
        "future_thresholds": FUTURE,
        "repetitions": REPETITIONS,
        "error": "mean over thresholds of the largest error, as a share of the records",
        "cpu_seconds": round(time.process_time(), 1),
    }
    figures, picture = (*sys.argv[1:], None, None)[:2]
    if figures:
        content = {"about": about, "figures": summarised(rows)}
        Path(figures).write_text(json.dumps(content, indent=1) + "\n")
    if picture:
        Path(picture).write_text(chart(summarised(rows)))


if __name__ == "__main__":
    main()
