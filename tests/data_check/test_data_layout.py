"""How a file seems to be laid out, from its beginning."""

import gzip

import pytest

from dpquery.data_check.layout import guessed_layout

TEXT = "name;eur\nZoë;1,5\n€;2,25\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (TEXT.encode(), {"encoding": "utf-8", "delimiter": ";", "decimal": ","}),
        (TEXT.encode("cp1252"), {"encoding": "cp1252"}),
        (TEXT.replace("€", "ä").encode("latin-1"), {"encoding": "latin-1"}),
        (TEXT.encode("utf-16"), {"encoding": "utf-16", "delimiter": ";"}),
        (TEXT.encode("utf-16-be"), {"encoding": "utf-16-be", "delimiter": ";"}),
        (TEXT.replace(";", "\t").encode(), {"delimiter": "\t"}),
        (TEXT.replace(";", "|").encode(), {"delimiter": "|"}),
        (b"name,eur\n'a,b',1\n'c',2\n", {"quote": "'", "steady": 1.0}),
        (b'name,eur\n"a\nb",1\n"c",2\n', {"newlines_in_quotes": True}),
        (b'name,eur\n"a",1\n"c",2\n', {"newlines_in_quotes": False}),
        (TEXT.replace("\n", "\r").encode(), {"delimiter": ";", "names": ("name", "eur")}),
        (b"name,eur\nx\x0by,1\nx\xe2\x80\xa8y,2\n", {"steady": 1.0}),
        (gzip.compress(TEXT.encode(), mtime=0), {"container": "gzip", "delimiter": ";"}),
        (
            gzip.compress(TEXT.encode(), mtime=0)[:20],
            {"is_text": False, "container": "gzip, damaged"},
        ),
        (b"PAR1\0\0", {"container": "Parquet", "is_text": False}),
        (b"SQLite format 3\0", {"container": "SQLite"}),
        (b"\0" * 99, {"is_text": False}),
        (b"", {"is_text": True, "names": ()}),
        (b"\n\n", {"is_text": True}),
        (b'"' * 2**21, {"is_text": True}),
    ],
)
def test_the_layout_is_guessed(tmp_path, content, expected):
    (tmp_path / "d").write_bytes(content)
    result = guessed_layout(tmp_path / "d", ("name", "eur"))
    assert {key: getattr(result, key) for key in expected} == expected


def test_a_first_record_in_place_of_a_header_and_odd_ends_of_lines_are_remarked(tmp_path):
    for content, word in (
        (b"1,2.5\n3,4.5\n", "looks like a record"),
        (b"name,eur\ra,1\r", "carriage"),
    ):
        (tmp_path / "d").write_bytes(content)
        (remark,) = guessed_layout(tmp_path / "d", ("name", "eur")).remarks
        assert word in remark


def test_declared_columns_tell_delimiters_apart(tmp_path):
    (tmp_path / "d").write_text("a;b,c,d,e\n1;2,3,4,5\n")
    assert guessed_layout(tmp_path / "d", ("a",)).delimiter == ";"
    assert guessed_layout(tmp_path / "d", ()).delimiter == ","
