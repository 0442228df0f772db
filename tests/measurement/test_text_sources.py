"""Text in every dialect, encoding and compression: one record more is one record, and no other.

The oracles are Python's csv module and the same rows written plainly.
"""

import csv
import io
import itertools
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from specs import (
    ALL_SUBSETS,
    FUZZ,
    UNPACKED,
    assert_equal,
    attributes,
    counted,
    dialect_of,
    expected,
    moved,
    single,
    spec_of,
    written,
)
from specs import packed_in_members as in_members

from dpquery.exceptions import DataError
from dpquery.limits import MAX_LINE
from dpquery.measurement.counting import text_files
from dpquery.measurement.counting.sources import UnfitTextError
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.progress import reporting
from dpquery.spec.columns import Bins, Boolean, Categorical, Integers
from dpquery.spec.spec import FileFormat

DIALECTS = [
    FileFormat(delimiter=delimiter, quote=quote)
    for delimiter, quote in itertools.product([",", ";", "\t", "|"], ['"', "'", ""])
]
MARKS = [b'"', b'"', b"'", b"'", b",", b";", b"\t", b"|", b"\n", b"\n", b"\r", b"\0", b"a", b"b "]
MESSY = st.lists(st.sampled_from([*MARKS, b"\xef\xbb\xbf", b"\xff", b'""', b'"\n']), max_size=30)
MESSY = MESSY.map(b"".join)


def records_of(batch):
    """The records of a batch in their order, as tuples of bytes."""
    columns = [
        [texts[i].as_py() for texts, index in column for i in index.tolist()]
        for column in batch.columns
    ]
    return list(zip(*columns, strict=True))


def spec_with(file, *, other="show"):
    return replaced(spec_of(*attributes(other=other)), file)


def replaced(spec, file):
    return replace(spec, file=file)


@FUZZ
@given(
    body=MESSY, file=st.sampled_from(DIALECTS), width=st.integers(1, 3), piece=st.integers(1, 60)
)
def test_every_dialect_is_read_line_by_line_whatever_stands_around(body, file, width, piece):
    dialect, whole = dialect_of(file), text_files._PIECE
    lines = [line for line in body.split(b"\n") if line not in (b"", b"\r")]
    alone = [text_files.fields(line, width, dialect) for line in lines]
    try:
        for text_files._PIECE in (piece, whole):
            batch = text_files.columns(body, width=width, wanted=range(width), dialect=dialect)
            assert records_of(batch) == [tuple(own) for own in alone if own is not None]
            assert batch.malformed == alone.count(None)
    finally:
        text_files._PIECE = whole


def test_lines_with_quotes_are_read_whole_where_a_writer_put_them(monkeypatch):
    slow = []
    monkeypatch.setattr(text_files, "_read_by_line", lambda *_, **__: slow.append(1))
    chunk = b'"a,b",1\r\n"c""d","2"\n,""\n'
    batch = text_files.columns(chunk, width=2, wanted=[0, 1])
    assert records_of(batch) == [(b"a,b", b"1"), (b'c"d', b"2"), (b"", b"")]
    assert not slow


@pytest.mark.parametrize("length", [2**17 - 2, 2**17 - 1, 2**17, 2**17 + 1])
def test_a_long_quoted_field_is_read_alike_among_any_lines(length):
    long = b'"' + b"x" * length + b'",1\n'
    for around in (b'"y",2\n', b'"y"z,2\n', b"y\0,2\n"):
        batch = text_files.columns(around + long + around, width=2, wanted=[0, 1])
        alone = text_files.columns(long, width=2, wanted=[0, 1])
        assert (long[1:-4], b"1") in records_of(batch) or not records_of(alone)
        assert len(records_of(alone)) == (text_files.fields(long[:-1], 2) is not None)


@pytest.mark.parametrize("file", DIALECTS, ids=str)
def test_the_same_rows_are_counted_alike_in_every_dialect(tmp_path, file):
    rows = [("M", "1", "1.5", "yes", "n", "x"), ("F", "-1", "0", "no", "Ä", ""), ("?",) * 6] * 3
    path = tmp_path / "f.csv"
    path.write_text(written(rows, file))
    assert_equal(
        counted(path, spec_with(file), ALL_SUBSETS), expected(rows, spec_with(file), ALL_SUBSETS)
    )


def test_a_decimal_comma_makes_a_point_no_number(tmp_path):
    spec = replaced(
        spec_of(
            single("pay", Bins((0.0, 1.5, 10.0)), other="show"),
            single("age", Integers(0, 9), other="show"),
            single("code", Categorical(("1.5", "1,5"), ("point", "comma")), other="show"),
        ),
        FileFormat(delimiter=";", decimal=","),
    )
    path = tmp_path / "f.csv"
    path.write_text("pay;age;code\n1,5;3,0;1.5\n1.5;3.0;1,5\n1,4;3;1.5\n")
    tables = tabulate(path, spec=spec, subsets=[(0,), (1,), (2,)])
    assert tables[0,].tolist() == [1, 1, 1]
    assert tables[1,].tolist() == [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1]
    assert tables[2,].tolist() == [2, 1, 0]


TEXTS = st.lists(st.sampled_from(['"', ",", "\n", "\r\n", "\r", "a", "1", " ", "M"]), max_size=6)
ROWS = st.lists(st.tuples(*[TEXTS.map("".join)] * 2).filter(any), max_size=8)
QUOTED = FileFormat(newlines_in_quotes=True)


def csv_text(rows, *, ending="\n", always=False):
    out = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if always else csv.QUOTE_MINIMAL
    csv.writer(out, lineterminator=ending, quoting=quoting).writerows(rows)
    return out.getvalue().encode()


def parsed(content, size, dialect, width=2):
    batches = [
        text_files.columns(chunk, width=width, wanted=range(width), dialect=dialect)
        for chunk in text_files.chunks(io.BytesIO(content), size, dialect)
    ]
    return [own for batch in batches for own in records_of(batch)], sum(
        b.malformed for b in batches
    )


@FUZZ
@given(
    rows=ROWS,
    more=st.tuples(*[TEXTS.map("".join)] * 2).filter(any),
    place=st.integers(0, 8),
    size=st.integers(1, 40),
    piece=st.integers(1, 40),
    always=st.booleans(),
    ending=st.sampled_from(["\n", "\r\n"]),
)
def test_a_record_of_a_writer_is_one_whatever_its_text(
    rows, more, place, size, piece, always, ending
):
    # Python's writer does not quote a carriage return alone, unless it quotes everything.
    assume(
        always or not any("\r" in text.replace("\r\n", "") for row in (*rows, more) for text in row)
    )
    dialect, whole = dialect_of(QUOTED), text_files._PIECE
    with_one = [*rows[:place], more, *rows[place:]]
    try:
        for text_files._PIECE, chunk in ((whole, 2**23), (piece, size)):
            for own in (rows, with_one):
                content = csv_text(own, ending=ending, always=always)
                records, malformed = parsed(content, chunk, dialect)
                assert records == [tuple(text.encode() for text in row) for row in own]
                assert malformed == 0
    finally:
        text_files._PIECE = whole


@FUZZ
@given(content=MESSY, sizes=st.lists(st.integers(1, 30), min_size=2, max_size=2))
def test_any_bytes_are_read_alike_in_any_chunks_or_refused(content, sizes):
    def outcome(size):
        try:
            return parsed(content, size, dialect_of(QUOTED))
        except UnfitTextError as error:
            return str(error)

    assert outcome(sizes[0]) == outcome(sizes[1]) == outcome(2**23)


BROKEN = [b'a"b,1\n', b'a"b",1\n', b'"a"b,1\n', b'"a,1\n2,3\n', b'"a""\n', b' "a",1\n', b'"a" ,1\n']


@pytest.mark.parametrize("line", BROKEN)
@pytest.mark.parametrize("size", [1, 3, 2**23])
def test_quotes_that_no_writer_wrote_are_an_error_without_a_place_or_value(
    tmp_path, monkeypatch, line, size
):
    monkeypatch.setattr("dpquery.measurement.counting.tabulate._CHUNK", size)
    path = tmp_path / "f.csv"
    spec = replaced(spec_of(single("x", Boolean(), other="show")), QUOTED)
    messages = set()
    for around in (b"", b"CANARY,2\n" * 3):
        path.write_bytes(b"x,y\n" + around + line)
        check_header(path, spec)
        with pytest.raises(DataError) as caught:
            tabulate(path, spec=spec, subsets=[()])
        messages.add(str(caught.value))
        assert caught.value.__context__ is None
    assert len(messages) == 1
    assert "leave `newlines_in_quotes` out" in messages.pop()


@pytest.mark.nightly
@pytest.mark.parametrize("size", [2**16, 2**23])
@pytest.mark.parametrize("long", [b"x", b"\n", b'""', b",", b"\r\n"])
def test_a_record_that_is_too_long_is_one_malformed_record(size, long):
    huge = b'"' + long * (3 * MAX_LINE // len(long)) + b'",1\n'
    for content in (huge, b"a,1\n" + huge + b'"b\n",2\n', b"a,1\n" + huge[:-1]):
        records, malformed = parsed(content, size, dialect_of(QUOTED))
        assert malformed == 1
        assert len(records) == content.count(b"a,1") + content.count(b'"b\n"')


def test_memory_stays_bounded_within_a_quote_that_never_ends():
    class Endless:
        left = 64

        def read(self, size):
            self.left -= 1
            return b'"' + b"x" * size if self.left == 63 else b"x" * size * (self.left > 0)

    with pytest.raises(UnfitTextError):
        list(text_files.chunks(Endless(), 2**18, dialect_of(QUOTED)))


LETTERS = Categorical(("Ä", "é€", "x"), ("1", "2", "3"))
ENCODED = [
    *(("utf-8", "utf-8"), ("utf-16", "utf-16"), ("utf-16-le", "utf-16-le")),
    *(("utf-16-be", "utf-16-be"), ("cp1252", "cp1252")),
]


@pytest.mark.parametrize(("declared", "encoding"), ENCODED)
@pytest.mark.parametrize("suffix", UNPACKED)
@pytest.mark.parametrize("block", [3, 2**20])
def test_letters_mean_the_same_in_every_encoding(
    tmp_path, monkeypatch, declared, encoding, suffix, block
):
    monkeypatch.setattr(text_files, "_DECODED", block)
    spec = replaced(
        spec_of(single("größe", LETTERS, other="show")),
        FileFormat(encoding=declared, delimiter=";"),
    )
    text = "größe;b\r\nÄ;1\r\né€;1\r\nÄ;€\nx;\nÃ;2\n"
    path = tmp_path / f"f.csv{suffix}"
    path.write_bytes(UNPACKED[suffix](text.encode(encoding)))
    check_header(path, spec)
    assert tabulate(path, spec=spec, subsets=[(0,)])[0,].tolist() == [2, 1, 1, 1]
    path.write_bytes(in_members(text.encode(encoding), suffix))
    assert tabulate(path, spec=spec, subsets=[(0,)])[0,].tolist() == [2, 1, 1, 1]


def test_every_byte_of_latin_1_and_cp1252_is_a_letter_of_its_own():
    for encoding, to_utf8 in text_files._BYTE_LETTERS.items():
        letters = [to_utf8(bytes([byte])) for byte in range(256)]
        assert len(set(letters)) == 256
        for byte, letter in enumerate(letters):
            known = bytes([byte]).decode(encoding, "ignore")
            assert not known or letter.decode() == known


UNITS = st.lists(
    st.sampled_from(
        [0x0A, 0x2C, 0x22, 0x41, 0x31, 0xD800, 0xDC00, 0xD83D, 0xDE00, 0xFEFF, 0, 0x0A0A]
    ),
    max_size=12,
)


@FUZZ
@given(
    lines=st.lists(UNITS.map(lambda own: [u for u in own if u != 0x0A]), max_size=6),
    more=UNITS.map(lambda own: [u for u in own if u != 0x0A]),
    place=st.integers(0, 6),
    order=st.sampled_from(["<u2", ">u2"]),
    block=st.integers(1, 9),
)
def test_a_line_of_any_units_of_utf_16_is_one_record(tmp_path, lines, more, place, order, block):
    file = FileFormat(encoding={"<u2": "utf-16-le", ">u2": "utf-16-be"}[order])
    spec = replaced(spec_of(single("a", Categorical(("A", "1"), ("A", "1")), other="show")), file)
    path, tables = tmp_path / "f.csv", []
    with pytest.MonkeyPatch.context() as patch:
        for own, size in ((lines, 2**20), ([*lines[:place], more, *lines[place:]], block)):
            patch.setattr(text_files, "_DECODED", size)
            units = [ord("a"), 10, *(unit for line in own for unit in (*line, 10))]
            path.write_bytes(np.array(units, order).tobytes())
            tables.append(tabulate(path, spec=spec, subsets=[(0,), ()]))
    assert moved(*tables) in ({0}, {1})
    assert int(tables[1][()] - tables[0][()]) == (more not in ([], [13]))


def test_utf_16_of_an_odd_length_is_an_error_after_the_header(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes("a\n1\n".encode("utf-16") + b"x")
    spec = replaced(spec_of(single("a", Boolean(), other="show")), FileFormat(encoding="utf-16"))
    check_header(path, spec)
    with pytest.raises(DataError, match="even number of bytes"):
        tabulate(path, spec=spec, subsets=[()])


HEADERS = [
    (b"sex;age;x\n", FileFormat(), 'delimiter: ";"'),
    (b"sex\tage\n", FileFormat(delimiter=";"), "delimiter: tab"),
    (b"sex,age\n", FileFormat(delimiter="|"), 'delimiter: ","'),
    ("sex,age\n".encode("utf-16"), FileFormat(), "encoding: utf-16"),
    ("sex,age\n".encode("utf-16"), FileFormat(encoding="latin-1"), "encoding: utf-16"),
    ("sex,age\n".encode("utf-16-le"), FileFormat(encoding="utf-16"), "no byte order mark"),
    (b"sex,age\xff\n", FileFormat(), "in UTF-8; write one there"),
    ("sex,größe,age\n".encode("latin-1"), FileFormat(), "such as `file: {encoding: latin-1}`"),
]


@pytest.mark.parametrize(("header", "file", "words"), HEADERS)
def test_a_header_of_another_format_says_what_to_declare(tmp_path, header, file, words):
    path = tmp_path / "f.csv"
    path.write_bytes(header)
    spec = replaced(spec_of(single("sex", Boolean()), single("age", Integers(0, 1))), file)
    with pytest.raises(DataError) as caught:
        check_header(path, spec)
    assert words in str(caught.value)


def test_a_header_may_have_line_feeds_in_its_quotes(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes(b'"a\nb",sex\nx,yes\n"y\nz",yes\n')
    spec = replaced(spec_of(single("sex", Boolean())), QUOTED)
    check_header(path, spec)
    assert tabulate(path, spec=spec, subsets=[(0,)])[0,].tolist() == [0, 2]


@pytest.mark.nightly
@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_a_packed_file_that_is_cut_or_changed_is_an_error_at_its_end(tmp_path, suffix):
    path = tmp_path / f"f.csv{suffix}"
    spec = spec_of(single("sex", Boolean()))
    rows = b"".join(b"%s,%d\n" % (b"yes" if k % 3 else b"no", k * k) for k in range(400_000))
    content = UNPACKED[suffix](b"sex,n\n" + rows)
    for damaged in (content[:-3], content[: len(content) * 3 // 4], content + b"x"):
        path.write_bytes(damaged)
        check_header(path, spec)
        with pytest.raises(DataError, match="unpacks without an error"):
            tabulate(path, spec=spec, subsets=[()])
    path.write_bytes(b"sex\nyes\n")
    with pytest.raises(DataError, match="not a header"):
        check_header(path, spec)


@pytest.fixture
def folder(tmp_path):
    files = tmp_path / "data"
    files.mkdir()
    (files / "a.csv").write_text("sex,age\nyes,1\n")
    (files / "b.csv.gz").write_bytes(UNPACKED[".gz"](b"x,age,sex\n0,1,no\n0,0,yes\n"))
    (files / "_SUCCESS").write_text("")
    (files / ".hidden").write_text("")
    return files


SPEC = spec_of(single("sex", Boolean()), single("age", Integers(0, 1)))


def test_several_files_are_one_table_whatever_the_order_of_their_columns(folder):
    given = [[folder], [folder / "*.csv*"], [folder / "b.csv.gz", folder / "a.csv"]]
    for data in (folder, *given):
        shares = []
        check_header(data, SPEC)
        with reporting(shares.append):
            found = tabulate(data, spec=SPEC, subsets=[(0, 1)])
        assert found[0, 1].tolist() == [[0, 1], [1, 1]]
        assert shares[-1] == "reading the data: 100%"


def test_the_rows_of_a_person_are_limited_over_all_files(folder):
    for name in "cd":
        (folder / name).write_text("id,sex,age\np,yes,1\n")
    spec = spec_of(single("age", Integers(0, 1)), person="id")
    found = tabulate([folder / "c", folder / "d"], spec=spec, subsets=[()])
    assert found[()] == 1


def refused(data, words):
    with pytest.raises(DataError, match=words):
        check_header(data, SPEC)
    with pytest.raises(DataError, match=words):
        tabulate(data, spec=SPEC, subsets=[()])


def test_a_file_that_is_named_twice_is_refused_however_it_is_named(folder, tmp_path):
    (tmp_path / "link.csv").symlink_to(folder / "a.csv")
    (tmp_path / "hard.csv").hardlink_to(folder / "a.csv")
    for other in (folder / "a.csv", tmp_path / "link.csv", tmp_path / "hard.csv", folder):
        refused([folder / "a.csv", other], "named twice")
        refused([other, folder / "*.csv"], "named twice")


LOGS = {"_delta_log/0.json": "sex=1/a.csv", "metadata/v1.metadata.json": "data/sex=1/a.csv"}
"""What makes a folder a table whose files hold removed rows too, and where a file of it lies."""


@pytest.mark.parametrize("log", LOGS)
def test_a_table_of_delta_or_iceberg_is_refused_however_its_files_are_named(folder, tmp_path, log):
    table, file = tmp_path / "table", tmp_path / "table" / LOGS[log]
    file.parent.mkdir(parents=True)
    shutil.copy(folder / "a.csv", file)
    check_header(file, SPEC)
    (table / log).parent.mkdir()
    (table / log).touch()
    for named in (table, file, file.parent, file.parent / "*.csv", tmp_path / "*"):
        refused(named, f"{table} is a table of Delta or Iceberg, .*in Spark .*to Parquet")


def test_what_is_no_data_is_named(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "a folder without files")
    refused(tmp_path, "holds the folder")
    refused(tmp_path / "*.parquet", "matches no file")
    refused([], "no data is named")
    (folder / "c.csv").write_text("sex,CANARY\n")
    refused(folder, "c.csv: the header lacks the declared columns? .*age")
    (folder / "c.csv").rename(folder / "c.parquet.gz")
    refused(folder, "compressed as a whole")
