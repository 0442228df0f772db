"""What tests from outside stand on: a spec and data in, the numbers of the published files out."""

from itertools import count

import pandas as pd
from cli_support import run

import dpquery

NEAR_EXACT = 1000
"""An epsilon at which a rounded answer is the count."""
_NUMBERS = count(1)


def spec_text(domain, workload, *, unit="row", more=""):
    """Return a spec whose budget has room for many releases at NEAR_EXACT."""
    lines = [
        "dataset: {id: outside}",
        f"privacy: {{unit: {unit}}}",
        "budget: {epsilon: 1000000}",
        more,
        "domain:",
        *(f"  {name}: {declared}" for name, declared in domain.items()),
        "workload:",
        *(f"  - {item}" for item in workload),
    ]
    return "\n".join(lines) + "\n"


def planned(folder, text, **options):
    """Write a spec and plan it in a folder with a ledger of its own."""
    (folder / "s.yaml").write_text(text, encoding="utf-8")
    places = {"plan_path": folder / "p", "ledger_path": folder / "l.db"}
    dpquery.plan(folder / "s.yaml", **places, **options)


def released(folder, data, *, epsilon=NEAR_EXACT, **options):
    """Return the table of each item of another release in a planned folder."""
    number = next(_NUMBERS)
    out = folder / f"release{number}"
    dpquery.release(
        data,
        epsilon=epsilon,
        plan_path=folder / "p",
        ledger_path=folder / "l.db",
        out=out,
        release_number=number,
        **options,
    )
    tables = {
        path.stem: pd.read_parquet(path)
        for path in out.glob("*.parquet")
        if path.stem not in {"errors", "measurements"}
    }
    assert tables
    return tables


def counts(table):
    """Return the answers of a table as whole numbers."""
    return [round(estimate) for estimate in table["estimate"]]


def checked(folder, *data):
    """Return the exit code of `dpquery check`, and all that it prints."""
    done = run("check", "--to-pipe", *data, folder / "s.yaml")
    return done.code, done.out + done.err
