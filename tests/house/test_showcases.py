"""The showcases: areas are made again, specs are of the shape they say, each runs whole."""

import csv
import importlib.util
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cli_support import ok

from dpquery.spec.parsing.read import load_spec

ROOT = Path(__file__).parents[2]
NAMES = ("redistricting", "earnings", "births", "broadband")


@pytest.fixture(scope="module")
def maker():
    path = ROOT / "sample_data" / "make_showcases.py"
    where = importlib.util.spec_from_file_location("make_showcases", path)
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["tracts", "postcodes"])
def test_the_areas_are_what_make_showcases_writes(maker, name):
    with (ROOT / "workloads" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        assert [tuple(line) for line in csv.reader(file)] == getattr(maker, name)()


def test_every_showcase_has_records_a_spec_a_make_target_and_a_row_of_the_page(maker):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    page = (ROOT / "dpquery" / "docs" / "showcases.md").read_text(encoding="utf-8")
    assert tuple(maker.RECORDS) == NAMES
    for name in NAMES:
        spec = load_spec(ROOT / "workloads" / f"{name}.yaml")
        epsilon = re.search(rf"^showcase-{name}: EPSILON := (\S+)$", makefile, re.MULTILINE)[1]
        row = next(line for line in page.splitlines() if f"`showcase-{name}`" in line)
        _, _, records, answers, at_epsilon, _ = (cell.strip() for cell in row.split("|")[1:-1])
        assert int(answers.replace(",", "")) == spec.queries
        assert at_epsilon == epsilon
        declared = spec.dataset.rows.count
        assert int(records.replace(",", "")) == pytest.approx(declared, rel=0.01)
        assert spec.derived
        assert spec.about.title.endswith("(made-up data)")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_showcase_runs_from_its_records_to_the_package(maker, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    maker.RECORDS[name]().to_csv("records.csv", index=False)
    spec = load_spec(ROOT / "workloads" / f"{name}.yaml")
    epsilon = spec.budget.epsilon
    ok(
        *("plan", ROOT / "workloads" / f"{name}.yaml", "--epsilon", float(epsilon)),
        *("--mechanism", "linear", "--time-limit", "5"),
    )
    ok("release", "records.csv", "--epsilon", float(epsilon))
    assert ok("error-report", "release").out
    ok("package", "release", "--also", "csv")
    rows = json.loads(Path("release/release.json").read_text(encoding="utf-8"))
    assert rows["guarantee"]["epsilon"] == pytest.approx(float(epsilon))
    for item in spec.derived:
        table = pq.read_table(f"release/{item.name}.parquet").to_pandas()
        given = table[table.estimate.notna()]
        assert len(given) >= 0.9 * len(table)
        assert ((given.ci_low <= given.estimate) & (given.estimate <= given.ci_high)).all()
        assert Path(f"package/{item.name}.csv").exists()
