"""Sample data and areas are made again byte for byte, and the specs that are shipped fit them."""

import csv
import hashlib
import importlib.util
import json
import math
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from town import ok

from dpquery.operators.compile import compile_spec
from dpquery.spec.parsing.read import load_spec
from dpquery.spec.predicates import GroupSet, IdentitySet

ROOT = Path(__file__).parents[2]
SAMPLES, WORKLOADS = ROOT / "sample_data", ROOT / "workloads"
SHOWCASES = ("redistricting", "earnings", "births", "broadband")
RACES = ("white", "black", "american_indian", "asian", "pacific_islander", "other_race")


def script(name):
    where = importlib.util.spec_from_file_location(name, SAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def showcases():
    return script("make_showcases")


@pytest.fixture(scope="module")
def spec():
    return load_spec(WORKLOADS / "sample_persons.yaml")


def test_persons_csv_is_what_make_persons_writes():
    persons = (SAMPLES / "persons.csv").read_bytes()
    assert persons == script("make_persons").render().encode()


@pytest.mark.parametrize(("name", "lines"), [("nhanes2.csv", 10_338), ("persons.csv", 50_001)])
def test_the_survey_of_the_tutorial_is_the_file_that_the_readme_names(name, lines):
    """So are the made-up persons: what a nation's look like was seen on this file."""
    content = (SAMPLES / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() in (SAMPLES / "README.md").read_text()
    assert len(content.splitlines()) == lines
    assert len(content) < 5_000_000


def test_the_made_up_geography_is_numbers_of_areas_and_states_in_order():
    head, *lines = (WORKLOADS / "geography.csv").read_text(encoding="utf-8").splitlines()
    assert head == "area,state"
    areas, states = zip(*(line.split(",") for line in lines), strict=True)
    assert [*areas] == [str(number) for number in range(1, 2025)]
    assert [*dict.fromkeys(states)] == [f"S{number:02}" for number in range(1, 52)]
    assert [*states] == sorted(states)


def test_the_workload_is_of_a_size_that_plans_in_seconds(spec):
    assert 10_000 < spec.queries < 60_000
    shape = compile_spec(spec).workload.shape_of_domain
    assert spec.domain.size > 10**9, "small enough for a strategy over the whole domain"
    for item in spec.items:
        for table in item.tables:
            assert math.prod(shape[i] for i in table.attributes) <= 20_000, item.name


def test_the_workload_reads_the_columns_of_the_file_and_shows_every_kind_of_item(spec):
    with (SAMPLES / "persons.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = {column.name for attribute in spec.domain.attributes for column in attribute.columns}
    assert columns == set(rows[0])
    state = spec.domain.attributes[spec.domain.index("state")].columns[0].kind
    assert {row["state"] for row in rows} == set(state.values)
    kinds = ("product", "marginals", "ranges", "union", "any_of", "threshold")
    settings = ("where", "weight", "prefix", "groups", "width", "merge", "other: show")
    assert [word for word in (*kinds, *settings) if word not in spec.text] == []
    tables = [table for item in spec.items for table in item.tables]
    assert {table.at_least for table in tables} == {None, 1, 2, 3}


def test_the_main_race_groups_share_out_everyone_with_a_race(spec):
    (item,) = (item for item in spec.items if item.name == "race_by_state")
    (groups,) = (axis for _, axis in item.tables[0].axes if isinstance(axis, GroupSet))
    race = spec.domain.attributes[spec.domain.index("race")]
    main = [codes for label, codes in groups.groups if "combined" not in label]
    declared = set(IdentitySet.of(race).codes)
    assert [len(declared.intersection(codes)) for codes in main] == [1, 1, 1, 1, 1, 1, 57]
    left_out = declared.difference(*main)
    assert [race.label(code) for code in left_out] == [", ".join(f"{name}=no" for name in RACES)]


@pytest.mark.parametrize("name", ["tracts", "postcodes"])
def test_the_areas_are_what_make_showcases_writes(showcases, name):
    with (WORKLOADS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        assert [tuple(line) for line in csv.reader(file)] == getattr(showcases, name)()


def test_every_showcase_has_records_a_spec_a_make_target_and_a_row_of_the_page(showcases):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    page = (ROOT / "dpquery" / "docs" / "showcases.md").read_text(encoding="utf-8")
    assert tuple(showcases.RECORDS) == SHOWCASES
    for name in SHOWCASES:
        spec = load_spec(WORKLOADS / f"{name}.yaml")
        epsilon = re.search(rf"^showcase-{name}: EPSILON := (\S+)$", makefile, re.MULTILINE)[1]
        row = next(line for line in page.splitlines() if f"`showcase-{name}`" in line)
        _, _, records, answers, at_epsilon, _ = (cell.strip() for cell in row.split("|")[1:-1])
        assert int(answers.replace(",", "")) == spec.queries
        assert at_epsilon == epsilon
        assert int(records.replace(",", "")) == pytest.approx(spec.dataset.rows.count, rel=0.01)
        assert spec.derived
        assert spec.about.title.endswith("(made-up data)")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWCASES)
def test_a_showcase_runs_from_its_records_to_the_package(showcases, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    showcases.RECORDS[name]().to_csv("records.csv", index=False)
    file = WORKLOADS / f"{name}.yaml"
    spec = load_spec(file)
    epsilon = float(spec.budget.epsilon)
    ok("plan", file, "--epsilon", epsilon, "--mechanism", "linear", "--time-limit", "5")
    ok("release", "records.csv", "--epsilon", epsilon)
    assert ok("error-report", "release").out
    ok("package", "release", "--also", "csv")
    manifest = json.loads(Path("release/release.json").read_text(encoding="utf-8"))
    assert manifest["guarantee"]["epsilon"] == pytest.approx(epsilon)
    for item in spec.derived:
        table = pq.read_table(f"release/{item.name}.parquet").to_pandas()
        given = table[table.estimate.notna()]
        assert len(given) >= 0.9 * len(table)
        assert ((given.ci_low <= given.estimate) & (given.estimate <= given.ci_high)).all()
        assert Path(f"package/{item.name}.csv").exists()
