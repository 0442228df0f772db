"""Text in every dialect, encoding and compression: one record more is one record, and no other.

The oracles are a reading line by line, Python's csv module and the same rows written plainly.
"""

import csv
import io
import itertools
import shutil
import traceback
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from specs import (
    ALL_SUBSETS,
    FUZZ,
    LINE,
    UNPACKED,
    assert_equal,
    attributes,
    counted,
    dialect_of,
    expected,
    moved,
    run,
    single,
    slow_counts,
    spec_of,
    written,
)
from specs import packed_in_members as in_members

from dpquery.exceptions import DataError, UnsupportedWorkloadError
from dpquery.limits import MAX_LINE, MAX_STRATEGY_CELLS
from dpquery.measurement.counting import tables, text_files
from dpquery.measurement.counting import tabulate as module
from dpquery.measurement.counting.sources import UnfitTextError
from dpquery.measurement.counting.tables import PackedCodes
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.progress import reporting
from dpquery.spec.columns import Bins, Boolean, Categorical, Integers
from dpquery.spec.spec import FileFormat, Privacy

DIALECTS = [
    FileFormat(delimiter=delimiter, quote=quote)
    for delimiter, quote in itertools.product([",", ";", "\t", "|"], ['"', "'", ""])
]


MARKS = [b'"', b'"', b"'", b"'", b",", b";", b"\t", b"|", b"\n", b"\n", b"\r", b"\0", b"a", b"b "]


MESSY = st.lists(st.sampled_from([*MARKS, b"\xef\xbb\xbf", b"\xff", b'""', b'"\n']), max_size=30)
MESSY = MESSY.map(b"".join)


QUOTED = FileFormat(newlines_in_quotes=True)
SPEC = spec_of(single("sex", Boolean()), single("age", Integers(0, 1)))


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
    body=st.lists(LINE, max_size=12),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    last=st.booleans(),
    other=st.sampled_from(("count", "show", "drop")),
    chunk_bytes=st.integers(1, 40),
)
def test_nasty_files_count_as_a_line_by_line_reading_says_in_any_chunks(
    tmp_path, body, ending, last, other, chunk_bytes
):
    spec = spec_of(*attributes(other=other))
    shorter = [line for line in body if len(line) < 1000]
    for lines, options in ((body, {}), (shorter, {"chunk_bytes": chunk_bytes})):
        content = ending.join(lines) + (ending if last else b"")
        found = run(tmp_path / "f.csv", content, spec=spec, **options)
        assert_equal(found, slow_counts(content, spec=spec))


@pytest.mark.parametrize(
    "odd", [b'"', b'"1"x', b'1"x"', b'"1\n2"', b"\0", b"\r", b"\rx", b"\r\r\n"]
)
def test_a_chunk_with_what_the_fast_reader_takes_for_more_than_text_is_read_line_by_line(odd):
    assert text_files._is_clean(b"x,1\r\ny,2\n")
    assert text_files._is_clean(b'"x,1"\r\n"y","2""3"\n')
    assert not text_files._is_clean(b"x,1\r\ny" + odd + b",2\r\nz,3\n")


LONGEST = b"x" * (MAX_LINE - 2)


@pytest.mark.parametrize(
    ("line", "small", "ones"),
    [
        (b"1," + LONGEST, 2**17, 1),
        (b"1,x" + LONGEST, 2**17, 0),
        (b"1," * (3 * MAX_LINE), 2**17, 0),
        (b"\xef\xbb\xbf1,x", 4, 0),
    ],
)
def test_a_line_is_what_it_is_wherever_a_chunk_begins_and_malformed_if_too_long(
    tmp_path, line, small, ones
):
    options = {"header": b"age,more", "subsets": [(0,)]}
    spec = spec_of(single("age", Integers(0, 1), other="count"))
    for body in (line, line + b"\n0,x\n", b"0,x\n" + line + b"\n0,x\n", b"0,x\n" + line + b"\r\n"):
        expected = slow_counts(body, spec=spec, **options)
        assert expected[0,].tolist()[:2] == [body.count(b"0,x"), ones * (b"\r" not in body)]
        for size in (small, 2**20, 2**24):
            path = tmp_path / "f.csv"
            assert_equal(run(path, body, spec=spec, chunk_bytes=size, **options), expected)


def test_a_chunk_never_grows_past_a_line_and_its_own_size():
    class Endless:
        left = 64

        def read(self, size):
            self.left -= 1
            return b'"' + b"x" * size if self.left == 63 else b"x" * size * (self.left > 0)

    dialects = {quote: dialect_of(replace(QUOTED, quote=quote)) for quote in ("'", '"')}
    pieces = list(text_files.chunks(Endless(), 2**18, dialects["'"]))
    assert max(map(len, pieces)) <= MAX_LINE + 2**18
    with pytest.raises(UnfitTextError):
        list(text_files.chunks(Endless(), 2**18, dialects['"']))


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
        messages.add(breaks(path, spec))
    (message,) = messages
    assert "leave `newlines_in_quotes` out" in message


def breaks(path, spec):
    """Return what is said of data whose header is read and whose rows are not."""
    check_header(path, spec)
    with pytest.raises(DataError) as caught:
        tabulate(path, spec=spec, subsets=[()])
    assert caught.value.__context__ is None
    return str(caught.value)


@pytest.mark.nightly
@pytest.mark.parametrize("size", [2**16, 2**23])
@pytest.mark.parametrize("long", [b"x", b"\n", b'""', b",", b"\r\n"])
def test_a_record_that_is_too_long_is_one_malformed_record(size, long):
    huge = b'"' + long * (3 * MAX_LINE // len(long)) + b'",1\n'
    for content in (huge, b"a,1\n" + huge + b'"b\n",2\n', b"a,1\n" + huge[:-1]):
        records, malformed = parsed(content, size, dialect_of(QUOTED))
        assert malformed == 1
        assert len(records) == content.count(b"a,1") + content.count(b'"b\n"')


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


HEADERS = [
    (b"sex;age;x\n", FileFormat(), 'delimiter: ";"'),
    (b"sex\tage\n", FileFormat(delimiter=";"), "delimiter: tab"),
    (b"sex,age\n", FileFormat(delimiter="|"), 'delimiter: ","'),
    ("sex,age\n".encode("utf-16"), FileFormat(), "encoding: utf-16"),
    ("sex,age\n".encode("utf-16"), FileFormat(encoding="latin-1"), "encoding: utf-16"),
    ("sex,age\n".encode("utf-16-le"), FileFormat(encoding="utf-16"), "no byte order mark"),
    (b"sex,age\xff\n", FileFormat(), "in UTF-8; write one there"),
    ("sex,größe,age\n".encode("latin-1"), FileFormat(), "such as `file: {encoding: latin-1}`"),
    (b"SECRET,sex", FileFormat(), "column age;"),
    *((own, FileFormat(), "") for own in (b"", b"\n", b"\xff\xfes\0e\0x\0", b"\x1f\x8b\x08")),
    *((own, FileFormat(), "") for own in (b"sex,age,sex,SECRET", b'"sex,age')),
    (b"sex,age" + b"," * (MAX_LINE + 1), FileFormat(), ""),
]


@pytest.mark.parametrize(("header", "file", "words"), HEADERS)
def test_a_header_that_is_not_as_declared_is_refused_without_showing_it(
    tmp_path, header, file, words
):
    path = tmp_path / "f.csv"
    path.write_bytes(header)
    for refuse in (check_header, partial(tabulate, subsets=[()])):
        with pytest.raises(DataError) as caught:
            refuse(path, spec=replaced(SPEC, file))
        assert words in str(caught.value)
        assert "SECRET" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("content", "file"),
    [
        (b'\xef\xbb\xbf"sex", age ,other,other,id\r\nyes,1,,,p\r\n', FileFormat()),
        (b'"a\nb",sex,age,id\nx,no,0,q\n"y\nz",yes,1,p\n', QUOTED),
    ],
)
def test_a_header_may_have_a_byte_order_mark_spaces_crlf_and_quotes_with_line_feeds(
    tmp_path, content, file
):
    path, spec = tmp_path / "f.csv", replace(SPEC, file=file, privacy=Privacy(person="id"))
    path.write_bytes(content)
    check_header(path, spec)
    found = tabulate(path, spec=spec, subsets=[(0, 1)])[0, 1]
    assert found.tolist() == [[int(file == QUOTED), 0], [0, 1]]


@pytest.mark.nightly
@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_a_packed_file_that_is_cut_or_changed_is_an_error_at_its_end(tmp_path, suffix):
    path, spec = tmp_path / f"f.csv{suffix}", spec_of(single("sex", Boolean()))
    rows = b"".join(b"%s,%d\n" % (b"yes" if k % 3 else b"no", k * k) for k in range(400_000))
    content = UNPACKED[suffix](b"sex,n\n" + rows)
    for damaged in (content[:-3], content[: len(content) * 3 // 4], content + b"x"):
        path.write_bytes(damaged)
        assert "unpacks without an error" in breaks(path, spec)
    path.write_bytes(b"sex\nyes\n")
    with pytest.raises(DataError, match="not a header"):
        check_header(path, spec)


def test_utf_16_of_an_odd_length_is_an_error_after_the_header(tmp_path):
    path = tmp_path / "f.csv"
    path.write_bytes("sex,age\n1,1\n".encode("utf-16") + b"x")
    assert "even number of bytes" in breaks(path, replaced(SPEC, FileFormat(encoding="utf-16")))


def test_a_disk_that_breaks_shows_nothing_of_the_data(tmp_path, monkeypatch):
    path = tmp_path / "f.csv"
    path.write_bytes(b"sex,age\nyes,1\n")
    monkeypatch.setattr(text_files, "columns", Mock(side_effect=OSError("CANARY yes")))
    assert "CANARY" not in breaks(path, SPEC)


@pytest.fixture
def folder(tmp_path):
    files = tmp_path / "data"
    files.mkdir()
    (files / "a.csv").write_text("sex,age\nyes,1\n")
    (files / "b.csv.gz").write_bytes(UNPACKED[".gz"](b"x,age,sex\n0,1,no\n0,0,yes\n"))
    (files / "_SUCCESS").write_text("")
    (files / ".hidden").write_text("")
    return files


def test_several_files_are_one_table_whatever_the_order_of_their_columns(folder):
    given = [[folder], [folder / "*.csv*"], [folder / "b.csv.gz", folder / "a.csv"]]
    for data in (folder, *given):
        shares = []
        check_header(data, SPEC)
        with reporting(shares.append):
            found = tabulate(data, spec=SPEC, subsets=[(0, 1)])
        assert found[0, 1].tolist() == [[0, 1], [1, 1]]
        assert shares[-1] == "reading the data: 100%"


def refused(data, words):
    for refuse in (check_header, partial(tabulate, subsets=[()])):
        with pytest.raises(DataError, match=words):
            refuse(data, spec=SPEC)


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
    refused(tmp_path / "none.csv", "there is no file")
    refused(tmp_path / "empty", "a folder without files")
    refused(tmp_path, "holds the folder")
    refused(tmp_path / "*.parquet", "matches no file")
    refused([], "no data is named")
    (folder / "c.csv").write_text("sex,CANARY\n")
    refused(folder, "c.csv: the header lacks the declared columns? .*age")
    (folder / "c.csv").rename(folder / "c.parquet.gz")
    refused(folder, "compressed as a whole")


# Tables of all subsets, each counted in one that holds it.


def test_codes_that_fill_many_words_come_back_from_them():
    shape = (2, 2**62, 7, 3, 2**62, 1, 2**31)
    packed, rng = PackedCodes((0, 1, 2, 4, 5, 6), shape), np.random.default_rng(3)
    codes = {i: rng.integers(0, shape[i], 50) for i in (0, 1, 2, 4, 5, 6)}
    rows = rng.integers(0, 2, 50) == 1
    words = packed.pack(codes, rows)
    assert words.shape == (packed.words, rows.sum())
    assert packed.words == 4
    assert PackedCodes((0, 2, 3), shape).words == PackedCodes((), shape).words == 1
    for i, found in packed.unpack(words).items():
        np.testing.assert_array_equal(found, codes[i][rows])


def test_a_value_outside_a_column_that_no_subset_names_still_takes_the_record_out(tmp_path):
    spec = spec_of(single("a", Integers(0, 1)), single("b", Integers(0, 1)))
    completed = run(tmp_path / "f.csv", b"1,1\n1,7\n", spec=spec, header=b"a,b", subsets=[(0,)])
    assert completed[0,].tolist() == [0, 1]


def test_subsets_are_increasing_and_their_cells_are_bounded(tmp_path):
    spec = spec_of(*(single(c, Integers(0, 99_999)) for c in "ab"))
    for subset in [(1, 0), (0, 0), (2,), (-1,)]:
        with pytest.raises(ValueError, match="increasing"):
            tabulate(tmp_path / "f.csv", spec=spec, subsets=[subset])
    with pytest.raises(UnsupportedWorkloadError, match="cells"):
        tabulate(tmp_path / "f.csv", spec=spec, subsets=[(0, 1)])
    assert MAX_STRATEGY_CELLS <= tables.MAX_COUNTED_CELLS  # what is planned can be counted


def test_a_large_sparse_table_is_counted_too(tmp_path):
    spec = spec_of(*(single(c, Integers(0, 999)) for c in "ab"))
    completed = run(
        tmp_path / "f.csv", b"5,7\n5,7\n", spec=spec, header=b"a,b", subsets=[(0, 1), (1,)]
    )
    assert completed[0, 1][5, 7] == completed[0, 1].sum() == completed[1,][7] == 2


def subsets_up_to(d, size):
    return [subset for k in range(size + 1) for subset in itertools.combinations(range(d), k)]


def test_every_subset_is_counted_in_a_table_that_holds_it():
    shape = (3, 1, 4, 2, 5, 2)
    subsets = [*subsets_up_to(6, 3), (0, 1, 2, 3, 4), (0, 2)]
    homes = tables.homes_of(subsets, shape)
    assert set(homes) == set(subsets)
    assert all(set(subset) <= set(home) for subset, home in homes.items())
    assert set(homes.values()) == {*itertools.combinations(range(6), 3), (0, 1, 2, 3, 4)} - {
        *itertools.combinations(range(5), 3)
    }


@pytest.mark.parametrize("small", [0, 20, 10**6])
def test_a_table_is_the_sum_of_any_larger_one(tmp_path, monkeypatch, small):
    monkeypatch.setattr(tables, "_SMALL", small)
    generator = np.random.default_rng(3)
    sizes = (3, 1, 4, 2, 5)
    spec = spec_of(*(single(c, Integers(0, n - 1)) for c, n in zip("abcde", sizes, strict=True)))
    rows = np.column_stack([generator.integers(n, size=200) for n in sizes])
    (tmp_path / "f.csv").write_text("a,b,c,d,e\n" + "\n".join(",".join(map(str, r)) for r in rows))
    subsets = [*subsets_up_to(5, 2), (0, 2, 3, 4), (1, 2, 4)]
    found = tabulate(tmp_path / "f.csv", spec=spec, subsets=subsets)
    assert list(found) == subsets
    for subset, counts in found.items():
        expected = np.zeros([sizes[i] for i in subset], np.int64)
        np.add.at(expected, tuple(rows[:, i] for i in subset), 1)
        np.testing.assert_array_equal(counts, expected if subset else len(rows))


def test_tables_inside_others_do_not_count_against_the_limit(monkeypatch):
    subsets, shape = subsets_up_to(30, 2), (10,) * 30
    monkeypatch.setattr(tables, "MAX_COUNTED_CELLS", 435 * 100)
    pairs = set(itertools.combinations(range(30), 2))
    assert set(tables.homes_of(subsets, shape).values()) == pairs
    monkeypatch.setattr(tables, "MAX_COUNTED_CELLS", 435 * 100 - 1)
    with pytest.raises(UnsupportedWorkloadError, match=r"the limit is 43,499"):
        module.check_table_sizes(subsets, shape)
