"""docs/outputs.md names every file, column, type and fact that a release has, and no others."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from release_parts import ITEMS
from town import ok

from dpquery.limits import MAX_LABELLED_TABLES
from dpquery.releases.tables.long_table import AXES_SCHEMA, EDGES_SCHEMA, long_layout

PAGE = (Path(__file__).parents[2] / "dpquery" / "docs" / "outputs.md").read_text(encoding="utf-8")
TYPES = {"int64", "int32", "float64", "float32", "string", "label", "bool", "date32"}


def section(title):
    """The text below a heading."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match, title
    return match[1]


def table(title):
    """The first cell's names of each row of a section's table, with the row's other cells."""
    lines = re.findall(r"^\| (`.+?) \|(.*)\|$", section(title), re.MULTILINE)
    cells = [(names, re.split(r"(?<!\\)\|", rest)) for names, rest in lines]
    return {name: rest for names, rest in cells for name in re.findall(r"`([^`]+)`", names)}


def shown(field):
    """A column's type as the page has it."""
    kind = str(field.type)
    names = {"double": "float64", "float": "float32", "date32[day]": "date32"}
    return "label" if kind.startswith("dictionary<values=string") else names.get(kind, kind)


@pytest.fixture
def released(town):
    also = ("nonnegative", "consistent", "thresholded", "integer")
    ok("release", "data.csv", "--epsilon", "1", *(f"--also={name}" for name in also))
    return Path("release")


@pytest.mark.parametrize("name", ["errors.parquet", "measurements.parquet"])
def test_columns_and_types_of_a_file_are_those_of_the_page(name, released):
    documented = {key: rest[0].split(",")[0].strip() for key, rest in table(f"`{name}`").items()}
    assert {field.name: shown(field) for field in pq.read_schema(released / name)} == documented


def test_columns_and_types_of_the_items_are_those_of_the_page(released):
    documented = table("`<item>.parquet`")
    kinds = {name: set(re.findall(r"\w+", rest[0])) & TYPES for name, rest in documented.items()}
    for file in ("age_by_sex", "pairs", "ages"):
        for field in pq.read_schema(released / f"{file}.parquet"):
            name = re.sub(
                r"^(age|sex|region|income)(?=_from$|_to$|_below$|_code$|$)",
                "<attribute>",
                field.name,
            )
            assert shown(field) in kinds[name], (file, field.name)
            if not field.nullable or name in ("table", "query", "<attribute>"):
                assert not field.nullable
                assert "may be null" not in documented[name][0]


def test_files_of_a_release_are_those_of_the_page(released):
    files = set(table("The folder of a release"))
    here = {path.name for path in released.iterdir()} - {"age_by_sex.parquet", "pairs.parquet"}
    others = {"relaxed_rows.parquet", "<item>.parquet"}
    others |= {"<item>.tables.parquet", "<item>.labels.parquet", "<derived item>.parquet"}
    assert here - {"ages.parquet"} | others == files


def test_columns_and_types_of_numbered_items_are_those_of_the_page():
    documented = section("Items of very many tables")
    for head, schema in (
        ("numbered column", long_layout(ITEMS[0]).schema),
        ("column of tables", AXES_SCHEMA),
        ("column of labels", EDGES_SCHEMA),
    ):
        lines = documented.partition(f"| {head} | type |")[2].partition("\n\n")[0]
        rows = re.findall(r"^\| (`.+?) \| (.+?) \|", lines, re.MULTILINE)
        kinds = {name: kind for names, kind in rows for name in re.findall(r"`([^`]+)`", names)}
        assert {name: kind.split(",")[0] for name, kind in kinds.items()} == {
            field.name: shown(field) for field in schema
        }
        assert {name for name, kind in kinds.items() if "may be null" in kind} == {
            field.name for field in schema if field.nullable
        }
    assert f"more than {MAX_LABELLED_TABLES:,} tables" in documented


def test_every_fact_of_the_manifest_is_on_the_page(released):
    manifest = json.loads((released / "release.json").read_text(encoding="utf-8"))
    documented = table("`release.json`")
    optional = {"rap", "adaptive", "answered", "derived", "facts", "nearer"}
    assert set(manifest) | optional == set(documented)
    for name, value in manifest.items():
        facts = value[0] if isinstance(value, list) and name in ("items", "extra") else value
        if isinstance(facts, dict) and name != "libraries":
            text = f"`{name}`, " + "|".join(documented[name])
            missing = [key for key in facts if f"`{key}`" not in text and key != "person"]
            assert missing == [], name


def test_every_kind_of_event_is_on_the_page(released):
    kinds = {event["kind"] for event in json.loads(ok("ledger", "history", "--json").out)}
    assert kinds <= set(re.findall(r"^\| `(\S+)` \|", section("The ledger"), re.MULTILINE))
