"""Is the column that plan picks the one that errs least? Columns on made-up and on real records.

For each epsilon the columns of the best strategy and of its sparse variant are rehearsed on the
made-up populations, as plan does, and on the data themselves, which the product never does.

    python tests/bench_closest.py [SPEC.yaml DATA.csv ...]

without arguments all pairs and all triples of Adult (../shared/data).
"""

import sys
import time
from fractions import Fraction
from pathlib import Path

from dpquery.measurement.ledger.registered_caps import declared_funds
from dpquery.operators.compile import compile_spec
from dpquery.planning.closest import ColumnRehearsal
from dpquery.planning.figures import BudgetShares, planned, prices
from dpquery.planning.rehearsal.proxy import proxies_for
from dpquery.spec.parsing.spec import load_spec, parse
from dpquery.strategy.search.select import select, unchecked

SHARED = Path(__file__).parents[2] / "shared"
EPSILONS = ("0.01", "0.1", "1", "10")
DELTA = Fraction(1, 10**9)


def adult(ways: int):
    """Return the spec of all tables of so many attributes of Adult, and its file."""
    import json

    sizes = json.loads((SHARED / "data" / "adult-domain.json").read_text())
    domain = "\n".join(f"  {json.dumps(n)}: {{range: [0, {s - 1}]}}" for n, s in sizes.items())
    text = (
        "dataset: {id: adult, rows: about 48842}\nprivacy: {unit: row, delta: 1e-9}\n"
        "budget: {epsilon: 20, delta: 1e-9}\nother: drop\nprefer: closest\n"
        f"domain:\n{domain}\nworkload:\n  - {{name: tables, marginals: {{ways: {ways}}}}}\n"
    )
    return parse(text, name=f"adult, {ways} ways", files={}), SHARED / "data" / "adult.csv"


def cells(name, spec, data):
    """Print a line for every epsilon."""

    from dpquery.plan_file.plan import Plan

    compiled = compile_spec(spec)
    selection = select(compiled.workload, noises=("gaussian",), items=compiled.items)["gaussian"]
    plan = Plan("", "", "", {}, "rmse", (), 0, (planned(selection, spec, compiled),))
    shares = BudgetShares(spec, compiled.workload, DELTA, declared_funds(spec))
    rows = spec.dataset.rows.count
    made_up = proxies_for(None, spec, compiled, rows=rows)
    real = proxies_for(data, spec, compiled, rows=rows)
    for epsilon in EPSILONS:
        priced = prices(plan, shares, epsilon=Fraction(epsilon))[0]
        begun = time.process_time()
        seen = []
        for proxies in (made_up, real):
            rehearsal = ColumnRehearsal(spec, compiled, proxies, "rmse", unchecked, 1e9)
            strategies = [selection.best.proposal.strategy]
            strategies += [c.proposal.strategy for c in rehearsal._sparse(selection)]
            seen.append(
                [c for s in strategies for c in rehearsal._contenders(s, priced, float("inf"))]
            )
        seconds = time.process_time() - begun
        picked = min(range(len(seen[0])), key=lambda k: seen[0][k].rmse)
        best = min(range(len(seen[1])), key=lambda k: seen[1][k].rmse)
        lines = " ".join(f"{a.rmse:.3g}/{b.rmse:.3g}" for a, b in zip(*seen, strict=True))
        pick, true = seen[1][picked], seen[1][best]
        print(
            f"{name} eps {epsilon}: made-up/real of {[(c.strategy, c.column) for c in seen[0]]}: "
            f"{lines}; picked {pick.strategy} {pick.column}, best {true.strategy} {true.column}, "
            f"{pick.rmse / true.rmse:.3f} times it, {seconds:.1f} CPU s",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    arguments = sys.argv[1:]
    if arguments:
        for spec, data in zip(arguments[::2], arguments[1::2], strict=True):
            cells(spec, load_spec(Path(spec)), Path(data))
        return
    for ways in (2, 3):
        spec, data = adult(ways)
        cells(f"Adult {ways}-way", spec, data)


if __name__ == "__main__":
    main()
