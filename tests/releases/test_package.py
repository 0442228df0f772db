"""A package says of every file what it holds: CSV, workbook, metadata and code book agree."""

import csv
import json
import re
import zipfile
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from release_parts import ABOUT, BOTH, REGISTRY, SPEC, make_town, packed_once
from rounds import MIXED_SPEC, rehearse
from town import contents, ok, refused

from dpquery import package, release
from dpquery.exceptions import SpecError
from dpquery.plan_file.plan import read_plan
from dpquery.releases.manifest import read_manifest
from dpquery.releases.package import write
from dpquery.releases.package.pages import CONCEPTS, OPEN
from dpquery.releases.package.tables import csv_text
from dpquery.releases.package.write import left_out, parse_formats
from dpquery.releases.report.published import PublishedTables
from dpquery.releases.tables.file_fields import item_fields

FORMULA = re.compile(r"[=+\-@\t\r]")
NUMBER = re.compile(r"-?[0-9.]+(e[+-]?[0-9]+)?")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return packed_once(tmp_path_factory.getbasetemp())


@pytest.fixture
def town(template, move_in):
    return move_in(template)


@pytest.fixture
def described(template):
    """The tables of datapackage.json that are CSV files."""
    resources = json.loads((template / "package" / "datapackage.json").read_text())["resources"]
    return [resource for resource in resources if resource["format"] == "csv"]


def cells(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_the_same_release_gives_the_same_bytes_and_is_left_as_it_is(town):
    before, first = contents("release"), contents("package")
    ok("package", "--out", "again", *BOTH)
    assert contents("again") == first
    ok("package", *BOTH)
    assert (contents("package"), contents("release")) == (first, before)
    assert before.items() <= first.items(), "a package is a release too"


def test_a_package_is_read_as_a_release(town):
    ok("error-report", "package")
    Path("more.yaml").write_text("workload:\n  - {name: sexes, product: {sex: identity}}\n")
    ok("answer", "package", "more.yaml")
    done = package("answers", out="packed", also=["csv"])
    assert {"sexes.csv", "sexes.parquet", "codebook.md", "datapackage.json"} <= set(done.files)
    assert not done.about


def test_a_package_without_formats_has_the_tables_as_parquet_alone(town):
    done = package("release", out="plain")
    assert not [name for name in done.files if name.endswith((".csv", ".xlsx"))]
    resources = json.loads(Path("plain", "datapackage.json").read_text())["resources"]
    assert [resource["path"] for resource in resources][:2] == [
        "age_by_sex.parquet",
        "pairs.parquet",
    ]


def test_cells_of_csv_files_are_those_of_parquet(template):
    for path in (template / "package").glob("*.csv"):
        table = pq.read_table(path.with_suffix(".parquet"))
        header, *rows = cells(path)
        assert header == [csv_text(name) for name in table.column_names]
        assert len(rows) == table.num_rows
        for row, expected in zip(rows, table.to_pylist(), strict=True):
            for cell, value in zip(row, expected.values(), strict=True):
                assert cell == written(value) or float(cell) == value, path


def written(value):
    """A value as a cell has it, worked out apart from the product."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value):
        return "'" + value
    return value if isinstance(value, str) else str(value)


def test_no_cell_is_a_formula(template):
    paths = [*(template / "package").glob("*.csv")]
    texts = [cell for path in paths for row in cells(path) for cell in row]
    assert [text for text in texts if FORMULA.match(text) and not NUMBER.fullmatch(text)] == []
    assert {"'=1+1", "'@SUM(A1)", "'+49 30", "'-x", "'-2 to -1", "'=odd name", "-2"} <= {*texts}


def test_every_cell_is_as_the_data_package_says(template, described):
    for resource in described:
        header, *rows = cells(template / "package" / resource["path"])
        fields = resource["schema"]["fields"]
        assert [field["name"] for field in fields] == header
        for row in rows:
            for field, cell in zip(fields, row, strict=True):
                check_cell(field, cell, resource["schema"]["missingValues"])
        if key := resource["schema"].get("primaryKey"):
            places = [header.index(name) for name in key]
            assert len({tuple(row[place] for place in places) for row in rows}) == len(rows)
    keys = {resource["name"]: resource["schema"].get("primaryKey") for resource in described}
    assert keys["age_by_sex"] == ["age", "sex"]  # and none of what says them again
    assert keys["either"] == ["table", "query", "age", "sex"]
    assert keys["errors"] is None


def check_cell(field, cell, missing):
    rules = field.get("constraints", {})
    if cell in field.get("missingValues", missing):
        assert not rules.get("required"), field
        return
    match field["type"]:
        case "integer":
            assert rules.get("minimum", -1e9) <= int(cell) <= rules.get("maximum", 1e9)
        case "number":
            assert rules.get("minimum", float("-inf")) <= float(cell)
        case "boolean":
            assert cell in ("true", "false")
        case "date":
            date.fromisoformat(cell)
        case "string":
            listed = [category["value"] for category in field.get("categories", [])]
            assert not listed or cell in listed, field


def test_the_data_package_says_whose_it_is(template):
    content = json.loads((template / "package" / "datapackage.json").read_text())
    assert content["$schema"] == "https://datapackage.org/profiles/2.0/datapackage.json"
    assert content["licenses"] == [{"name": "CC-BY-4.0"}]
    assert content["contributors"][0]["email"] == "info@stats.example"
    assert (content["period"], content["area"], content["version"]) == ("2024", "Town", "1")
    assert content["sources"]
    assert content["privacy"]["epsilon"] == 1
    names = [resource["name"] for resource in content["resources"]]
    assert len({*names}) == len(names)
    for resource in content["resources"]:
        path = template / "package" / resource["path"]
        assert path.stat().st_size == resource.get("bytes", path.stat().st_size)


def test_codes_have_their_labels_and_ordered_columns_say_so(described):
    fields = {field["name"]: field for field in described[1]["schema"]["fields"]}
    codes = {c["value"]: c["label"] for c in fields["region_code"]["categories"]}
    assert codes == {"1": "+49 30", "2": "-x", "": "no answer"}
    assert [c["value"] for c in fields["sex"]["categories"]] == ["all", "'=1+1", "'@SUM(A1)"]
    assert fields["income"]["categoriesOrdered"]
    assert "categoriesOrdered" not in fields["sex"]


def test_the_metadata_of_csv_files_is_theirs(template):
    for path in (template / "package").glob("*.csv"):
        content = json.loads(path.with_name(f"{path.name}-metadata.json").read_text())
        assert content["@context"] == ["http://www.w3.org/ns/csvw", {"@language": "en"}]
        assert content["url"] == path.name
        columns = content["tableSchema"]["columns"]
        header, *rows = cells(path)
        assert [column["titles"] for column in columns] == header
        names = [column["name"] for column in columns]
        assert len({*names}) == len(names)
        assert all(
            re.fullmatch(r"([A-Za-z0-9]|%[0-9A-F]{2})([A-Za-z0-9_.]|%[0-9A-F]{2})*", n)
            for n in names
        )
        assert {*content["tableSchema"].get("primaryKey", [])} <= {*names}
        for place, column in enumerate(columns):
            assert not column.get("required") or all(row[place] for row in rows)


def test_parquet_data_package_csvw_and_code_book_say_the_same(template, described):
    book = (template / "package" / "codebook.md").read_text()
    assert "\nCounts | of persons\n" in book
    for resource in described:
        path = template / "package" / resource["path"]
        metadata = pq.read_schema(path.with_suffix(".parquet")).metadata[b"dpquery"]
        columns = json.loads(metadata)["columns"]
        web = json.loads(path.with_name(f"{path.name}-metadata.json").read_text())
        pairs = zip(resource["schema"]["fields"], web["tableSchema"]["columns"], strict=True)
        for (name, said), (field, column) in zip(in_file_order(path, columns), pairs, strict=True):
            assert field["name"] == column["titles"] == csv_text(name)
            assert field["description"] == column["dc:description"] == said["meaning"]
            assert field.get("unit", "") == column.get("schema:unitText", "") == said["unit"]
            assert f"| `{name}` |" in book
            assert said["meaning"].replace("<", "&lt;") in book


def in_file_order(path, columns):
    names = pq.read_schema(path.with_suffix(".parquet")).names
    assert {*names} == {*columns}
    return [(name, columns[name]) for name in names]


def test_a_lone_parquet_file_says_what_it_is(template):
    said = json.loads(
        pq.read_schema(template / "release" / "age_by_sex.parquet").metadata[b"dpquery"]
    )
    values = json.loads(
        pq.read_schema(template / "release" / "measurements.parquet").metadata[b"dpquery"]
    )
    assert values["columns"]["value"]["unit"] == "steps"
    assert (said["description"], said["currency"]) == ("Every year of age by sex", "pure")
    assert said["columns"]["estimate"]["unit"] == "records"
    said = json.loads(pq.read_schema(template / "release" / "history.parquet").metadata[b"dpquery"])
    assert said["columns"]["estimate"] == {
        "meaning": "The sum of age, plus noise of mean zero: may be negative, or not whole",
        "unit": "age",
    }


def test_a_column_has_one_type_in_all_files(template):
    types = {}
    for path in (template / "release").glob("*.parquet"):
        if path.name not in ("errors.parquet", "measurements.parquet"):
            for field in pq.read_schema(path):
                types.setdefault(field.name, set()).add(str(field.type))
    assert {name: kinds for name, kinds in types.items() if len(kinds) > 1} == {}
    assert types["age"] == {"dictionary<values=string, indices=int32, ordered=0>"}
    assert types["day"] == {"date32[day]"}, "typed where every item asks for it value by value"


def test_to_is_included_and_below_is_not(template):
    rows = pq.read_table(template / "release" / "pairs.parquet").to_pylist()
    edges = {(row["income"], row["income_from"], row["income_below"]) for row in rows}
    assert ("[10, 20.5)", 10, 20.5) in edges
    ages = pq.read_table(template / "release" / "ages.parquet").to_pylist()
    assert ("-2 to 0", -2, 0) in {(row["age"], row["age_from"], row["age_to"]) for row in ages}
    names = {
        name
        for path in (template / "release").glob("*.parquet")
        for name in pq.read_schema(path).names
    }
    assert "income_to" not in names


class Tags(HTMLParser):
    """Counts what a page opens and closes, and what it would load or run."""

    def __init__(self):
        super().__init__()
        self.open, self.outside = [], []

    def handle_starttag(self, tag, attributes):
        self.outside += [tag] * (tag in ("script", "link", "img", "iframe", "a"))
        self.outside += [
            name for name, _ in attributes if name in ("src", "href") or name[:2] == "on"
        ]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_code_book_is_a_whole_page_that_needs_nothing(template):
    page = (template / "package" / "codebook.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert (tags.open, tags.outside) == ([], [])
    assert "Persons of &lt;town&gt; &amp; around" in page
    assert "<town>" not in page


def test_quality_names_every_concept_once_and_says_what_is_open(template):
    text = (template / "package" / "quality.md").read_text()
    numbers = re.findall(r"^#+ (S\.[0-9.]+) ", text, re.MULTILINE)
    assert numbers == [number for number, _ in CONCEPTS]
    assert len(numbers) == 69
    assert {f"S.{k}" for k in range(1, 20)} <= {*numbers}
    assert OPEN in text
    confidentiality = text.split("### S.7.2")[1].split("\n#")[0]
    assert "ε = 1 (pure differential privacy" in confidentiality
    assert "info@stats.example" in text.split("## S.1 ")[1].split("\n#")[0]


def test_the_registry_entry_is_one(template):
    entry = yaml.safe_load((template / "package" / "registry.yaml").read_text())
    jsonschema.validate(entry, REGISTRY)
    loss = entry["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": 1.0}
    assert entry["deployment"]["dp_variant"]["variant_name"] == "Pure DP"
    facts = json.loads((template / "release" / "release.json").read_text())["guarantee"]
    words = entry["deployment"]["deployment_model"]["release_type_details"]
    assert (words[0].isupper(), words.lower()) == (True, facts["cumulative"].lower() + ".")


# Where a package may go, what it may be made of, and what does not depend on what it says.


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
    assert list(parse_formats(["csv", "csv"])) == ["csv"]


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


def test_columns_of_lists_are_no_package(town):
    path = Path("release", "pairs.parquet")
    table = pq.read_table(path)
    lists = table.set_column(0, table.schema.field(0).name, pa.array([[1.0]] * len(table)))
    pq.write_table(lists, path, compression="snappy")
    assert "is damaged" in refused("package", "--out", "other", "--also", "csv", code=2)


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_a_release_without_error_bars_says_so(own_folder):
    Path("workload.yaml").write_text(MIXED_SPEC)
    Path("data.csv").write_text("age,sex,region,income\n0,F,1,5\n2,M,2,15\n")
    ledger = ("--ledger", own_folder / "ledger.db")
    ok("plan", "workload.yaml", "--time-limit", "0", *ledger)
    rehearse(Path("dpquery.plan"))
    ok("release", "data.csv", "--epsilon", "1", *ledger)
    package("release", also=["csv"])
    entry = yaml.safe_load(Path("package", "registry.yaml").read_text())
    jsonschema.validate(entry, REGISTRY)
    assert entry["deployment"]["dp_variant"]["variant_name"] == "Zero-concentrated DP"
    assert "no error bars" in Path("package", "codebook.md").read_text()
    with pytest.raises(SpecError, match="there is no folder"):
        package("nowhere")


def test_numbered_rows_come_with_the_lists_that_say_what_they_are(own_folder, monkeypatch):
    monkeypatch.setattr("dpquery.plan_file.plan.MAX_LABELLED_TABLES", 2)
    make_town(own_folder / "town", SPEC)
    done = package(own_folder / "town" / "release", also=BOTH[1:])
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


# The workbook of a package: cells have types, and the same release gives the same bytes.


pytest.importorskip("xlsxwriter", reason="the extra xlsx is not installed")


def test_no_cell_of_a_sheet_is_a_formula(template):
    with zipfile.ZipFile(template / "package" / "tables.xlsx") as book:
        sheets = [name for name in book.namelist() if name.startswith("xl/worksheets/")]
        assert len(sheets) > 8
        assert not [name for name in sheets if re.search(rb"<f[ >]", book.read(name))]


def test_the_workbook_has_every_table_and_no_time(template):
    with zipfile.ZipFile(template / "package" / "tables.xlsx") as book:
        root = ElementTree.fromstring(book.read("xl/workbook.xml"))  # noqa: S314 - our own
        sheets = [node.get("name") for node in root.iter() if node.tag.endswith("}sheet")]
        assert {entry.date_time[0] for entry in book.infolist()} == {1980}
        times = re.findall(rb"W3CDTF\">([^<]*)<", book.read("docProps/core.xml"))
        assert set(times) == {b"1980-01-01T00:00:00Z"}
        first = book.read("xl/worksheets/sheet3.xml").decode()
        assert len(re.findall("<row ", first)) == 1 + 7 * 3
    assert sheets[:4] == ["About", "Columns", "age_by_sex", "pairs"]
    assert "history~2" in sheets, "Excel keeps the name history"
    assert "a-very-long-name-of-more-than-t" in sheets


def test_a_table_that_no_sheet_holds_is_named(template, monkeypatch, tmp_path):
    monkeypatch.setattr(write, "SHEET_ROWS", 20)
    done = package(template / "release", out=tmp_path / "packed", also=["xlsx"])
    assert {"age_by_sex", "ages", "pairs"} <= {*done.left_out}
    assert "days" not in done.left_out
    assert left_out((), ("xlsx",)) == ()
