"""Where a package may go, what it may be made of, and what does not depend on what it says."""

import csv
import json
from pathlib import Path

import jsonschema
import pyarrow as pa
import pytest
import yaml
from release_parts import ABOUT, BOTH, REGISTRY, SPEC, make_town, packed_once
from rounds import MIXED_SPEC, rehearse
from town import ok, refused, renew

from dpquery import package, release
from dpquery.exceptions import SpecError
from dpquery.plan_file.plan import read_plan
from dpquery.releases.manifest import read_manifest
from dpquery.releases.package import write
from dpquery.releases.package.write import parse_formats
from dpquery.releases.report.published import PublishedTables
from dpquery.releases.tables.file_fields import item_fields


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return packed_once(tmp_path_factory.getbasetemp())


@pytest.fixture
def town(template, tmp_path, monkeypatch):
    renew(tmp_path / "town", template)
    monkeypatch.chdir(tmp_path / "town")
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "town" / "state" / "ledger.db"))
    return tmp_path / "town"


# ------------------------------------------------------------------------------- what is refused


def test_what_is_in_the_way_is_kept(town):
    Path("full").mkdir()
    Path("full", "note.txt").write_text("mine")
    assert "no package" in refused("package", "--out", "full", code=5)
    assert "is not changed" in refused("package", "--out", "release", code=5)
    assert "is not changed" in refused("package", "--out", "release/inside", code=5)
    assert "not a folder" in refused("package", "--out", "data.csv", code=5)
    Path("package", "note.txt").write_text("mine")
    assert "note.txt" in refused("package", code=5)


def test_a_package_of_another_release_is_replaced_only_on_demand(town):
    ledger = ("--out", "second", "--release-number", "2")
    ok("release", "data.csv", "--epsilon", "1", *ledger)
    assert "another release" in refused("package", "second", code=5)
    ok("package", "second", "--replace")
    names = {path.name for path in Path("package").iterdir()}
    assert not names & {"tables.xlsx", "pairs.csv"}
    assert (
        json.loads(Path("package", "datapackage.json").read_text())["id"]
        == json.loads(Path("second", "release.json").read_text())["key"]
    )


def test_formats_that_are_not_there_are_refused(town, monkeypatch):
    assert "csv and xlsx" in refused("package", "--also", "ods", code=2)
    monkeypatch.setattr(write, "find_spec", lambda name: None)
    message = refused("package", "--also", "csv,xlsx", code=2)
    assert "pip install 'dpquery[xlsx]'" in message
    assert parse_formats(["csv", "csv"]) == ("csv",)


@pytest.mark.parametrize("name", ["measurements.parquet", "statement.md"])
def test_a_link_in_a_release_is_not_handed_over(town, name):
    Path("release", name).unlink()
    Path("release", name).symlink_to(Path("data.csv").absolute())
    assert "no file of its own" in refused("package", "--out", "other", code=2)


@pytest.mark.parametrize("name", ["pairs.parquet", "errors.parquet", "release.plan"])
def test_a_damaged_release_is_no_package(town, name):
    path = Path("release", name)
    path.write_bytes(path.read_bytes()[:-20])
    assert "free" in refused("package", "--out", "other", code=2)
    path.unlink()
    assert "free" in refused("package", "--out", "other", code=2)


# ------------------------------------------------------------------------------ what depends on it


def test_about_changes_no_plan_no_number_and_no_key(template, tmp_path):
    make_town(tmp_path / "bare", SPEC)
    one, other = (
        read_plan((f / "dpquery.plan").read_bytes()) for f in (template, tmp_path / "bare")
    )
    assert [s.strategy for s in one.selections] == [s.strategy for s in other.selections]
    manifests = [
        json.loads((f / "release" / "release.json").read_text())
        for f in (template, tmp_path / "bare")
    ]
    assert manifests[0]["key"] == manifests[1]["key"]
    (tmp_path / "bare" / "workload.yaml").write_text(ABOUT + SPEC)
    ledger = tmp_path / "bare" / "state" / "ledger.db"
    plan = tmp_path / "bare" / "later.plan"
    ok(
        "plan",
        tmp_path / "bare" / "workload.yaml",
        "--out",
        plan,
        "--time-limit",
        "0",
        "--ledger",
        ledger,
    )
    done = release(
        tmp_path / "bare" / "data.csv",
        epsilon=1,
        plan_path=plan,
        ledger_path=ledger,
        out=tmp_path / "r",
    )
    assert done.free


def test_a_release_without_error_bars_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("workload.yaml").write_text(MIXED_SPEC)
    Path("data.csv").write_text("age,sex,region,income\n0,F,1,5\n2,M,2,15\n")
    ledger = ("--ledger", tmp_path / "ledger.db")
    ok("plan", "workload.yaml", "--time-limit", "0", *ledger)
    rehearse(Path("dpquery.plan"))
    ok("release", "data.csv", "--epsilon", "1", *ledger)
    package("release", also=["csv"])
    entry = yaml.safe_load(Path("package", "registry.yaml").read_text())
    jsonschema.validate(entry, REGISTRY)
    assert entry["deployment"]["dp_variant"]["variant_name"] == "Zero-concentrated DP"
    assert "no error bars" in Path("package", "codebook.md").read_text()
    with pytest.raises(SpecError, match="not a release"):
        package("nowhere")


def test_numbered_rows_come_with_the_lists_that_say_what_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpquery.plan_file.plan.MAX_LABELLED_TABLES", 2)
    make_town(tmp_path / "town", SPEC)
    done = package(tmp_path / "town" / "release", also=BOTH[1:])
    assert {"pairs.csv", "pairs.tables.csv", "pairs.labels.csv"} <= set(done.files)
    with Path("package", "pairs.labels.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["label"] == "[10, 20.5)"]
    ends = {(line["from_number"], line["to_number"], line["below_number"]) for line in lines}
    assert ends == {("10", "", "20.5")}
    resources = json.loads(Path("package", "datapackage.json").read_text())["resources"]
    schemas = {resource["path"]: resource["schema"] for resource in resources}
    assert schemas["pairs.csv"]["primaryKey"] == ["table", "cell"]
    table = PublishedTables()
    table.directory = Path("package")
    rows = table.table("pairs", "sex, income")
    assert {"income_from", "income_below"} <= {*rows.columns}
    assert "income_to" not in rows.columns


def test_a_format_of_tables_is_no_column_of_a_release(town):
    message = refused("release", "data.csv", "--epsilon", "1", "--also", "csv", code=2)
    assert "`dpquery package --also csv`" in message


def test_a_column_that_is_not_known_says_itself_what_it_holds(template):
    manifest = read_manifest(template / "release")
    said = {"description": "Estimate over the total", "unit": "percent"}
    columns = [pa.field("share", pa.float64(), metadata=said), pa.field("what", pa.int64())]
    share, what = item_fields(pa.schema(columns), manifest.items[0], manifest, None)
    assert (share.kind, share.meaning, share.unit) == ("number", *said.values())
    assert (what.kind, what.meaning, what.unit) == ("integer", "A value of the row", "")
