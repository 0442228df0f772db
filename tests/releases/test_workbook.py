"""The workbook of a package: cells have types, and the same release gives the same bytes."""

import re
import zipfile
from xml.etree import ElementTree

import pytest
from release_parts import packed_once

from dpquery import package
from dpquery.releases.package import write
from dpquery.releases.package.write import left_out

pytest.importorskip("xlsxwriter", reason="the extra xlsx is not installed")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return packed_once(tmp_path_factory.getbasetemp())


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
