"""A package says of every file what it holds: CSV, workbook, metadata and code book agree."""

import csv
import json
import re
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest
import yaml
from release_parts import BOTH, REGISTRY, packed_once
from town import contents, ok, renew

from dpquery import package
from dpquery.releases.package.pages import CONCEPTS, OPEN
from dpquery.releases.package.tables import csv_text

FORMULA = re.compile(r"[=+\-@\t\r]")
NUMBER = re.compile(r"-?[0-9.]+(e[+-]?[0-9]+)?")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return packed_once(tmp_path_factory.getbasetemp())


@pytest.fixture
def town(template, tmp_path, monkeypatch):
    renew(tmp_path / "town", template)
    monkeypatch.chdir(tmp_path / "town")
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "town" / "state" / "ledger.db"))
    return tmp_path / "town"


@pytest.fixture
def described(template):
    """The tables of datapackage.json that are CSV files."""
    resources = json.loads((template / "package" / "datapackage.json").read_text())["resources"]
    return [resource for resource in resources if resource["format"] == "csv"]


def cells(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


# ------------------------------------------------------------------------------------- the files


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


# ---------------------------------------------------------------------------------- the metadata


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


# ------------------------------------------------------------------------------------- the pages


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
